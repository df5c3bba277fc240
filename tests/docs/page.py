"""A page of the documentation: its fenced blocks, and a reader who types what it says and compares what comes.

A block of kind `console` is typed into bash, line by line: what follows a `$` is a command, what follows that is what
it must print. In what is printed, `…` stands for anything, and a number for any number; a process id, once seen, is
known by its place, so that a later `kill` in the page hits the process that it shows. Ports are replaced by free ones,
and measurements take less time than the page allows them: what is tried is that they are made.
A command that starts a broker goes on beside the others, until the page ends or stops it.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from tests.support.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
PORT = re.compile(r"\b(1?[4678][24]22|14333)\b")
NUMBER = re.compile(r"\d+(?:[.,:]\d+)*")
# A measurement by `gnatswarm bench` that lasts for a time, up to its comment; and how long a run of locust takes.
BENCH = re.compile(r"^gnatswarm bench (?!-h|--compare|connect|[^#]* -n )[^#]*")
LOCUST_S = re.compile(r"(?<= -t )5s\b")
COMMAND_DEADLINE_S = 60.0
# What a broker prints when it can be used.
READY = "Server is ready"


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    page: str
    line: int  # of its fence
    kind: str
    text: str

    @property
    def title(self) -> str:
        """The first line, by which lists of exceptions name it."""
        return self.text.split("\n", 1)[0]

    def __str__(self) -> str:
        return f"{self.page}:{self.line} ({self.kind}): {self.title}"


@dataclass
class Step:
    """One command of a console block, and what is to be printed."""

    command: str
    printed: list[str]


def blocks(path: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    found: list[Block] = []
    kind, start = "", 0
    lines: list[str] = []
    page = path.relative_to(ROOT).as_posix()
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("```") and not start:
            kind, start, lines = line.removeprefix("```").strip(), number, []
        elif line.startswith("```"):
            found.append(Block(page, start, kind, "\n".join(lines)))
            start = 0
        elif start:
            lines.append(line)
    assert not start, f"{page}:{start}: a fence that is not closed"
    return found


def steps(block: Block) -> list[Step]:
    """The commands of a console block. A command that ends in a backslash goes on in the next line."""
    found: list[Step] = []
    is_open = False
    for line in block.text.split("\n"):
        if is_open:
            found[-1].command += "\n" + line
        elif line.startswith("$ "):
            found.append(Step(line[2:], []))
        else:
            assert found, f"{block}: a console block begins with `$ `"
            if line.strip():
                found[-1].printed.append(line)
            continue
        is_open = line.endswith("\\")
    return found


def starts_broker(command: str) -> bool:
    """Whether a command serves until it is stopped."""
    words = shlex.split(command, comments=True)
    if words[:2] == ["make", "run"]:
        return True
    if not words or words[0].rsplit("/", 1)[-1] != "gnatswarm":
        return False
    only_prints = {"-t", "-v", "-h", "--help", "--version", "--signal", "-sl", "--help_tls"}
    commands = {"status", "health", "scale", "top", "doctor", "bench", "report", "ingest", "version", "help"}
    commands |= {"why", "config", "completion", "pub", "sub", "req", "reply", "events"}
    return not only_prints & set(words) and not commands & set(words)


class Mismatch(AssertionError):
    """The output differs from what the page says."""


class Reader:
    """Types a page's blocks, one after another, in a directory and an environment of their own."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="gnat-", dir="/tmp")
        self.here = Path(self._directory.name)
        (self.here / "run").mkdir(mode=0o700)
        self._ports: dict[str, str] = {}
        self._pids: dict[str, str] = {}  # as the page has them → as they are
        self._brokers: list[tuple[subprocess.Popen[bytes], Path]] = []
        self._environment = {
            **os.environ,
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "HOME": str(self.here),
            "XDG_RUNTIME_DIR": str(self.here / "run"),
            "XDG_STATE_HOME": str(self.here / "state"),
        }
        # Commands whose default is port 4222 find the page's broker.
        self._environment["NATS_URL"] = f"nats://127.0.0.1:{self._port('4222')}"
        # What a page names beside itself.
        (self.here / "deploy").symlink_to(ROOT / "deploy")
        (self.here / "loadtest").symlink_to(ROOT / "loadtest")

    def close(self) -> None:
        for process, _log in self._brokers:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
        for process, _log in self._brokers:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._directory.cleanup()

    def read(self, block: Block) -> None:
        """Execute the page's blocks. Mismatch if something else happens than it says."""
        if block.kind == "console":
            for step in steps(block):
                self._do(block, step)
        elif block.kind == "python":
            self._run_python(block)
        elif block.kind == "conf":
            self._test_configuration(block)
        else:
            raise Mismatch(f"{block}: nobody knows how to read this kind")

    # ---- kinds of blocks

    def _do(self, block: Block, step: Step) -> None:
        command = BENCH.sub(r"\g<0> --seconds 0.3 ", LOCUST_S.sub("2s", self._adapted(step.command)))
        if starts_broker(step.command):
            text = self._start_broker(block, step, command)
        else:
            done = subprocess.run(
                ["bash", "-c", command],
                cwd=self.here,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=COMMAND_DEADLINE_S,
                check=False,
            )
            text = done.stdout.decode("utf-8", "replace")
            if done.returncode != 0 and not step.printed:
                raise Mismatch(f"{block}\n$ {command}\nfailed ({done.returncode}):\n{text}")
        self._compare(block, step, command, text)

    def _start_broker(self, block: Block, step: Step, command: str) -> str:
        log = self.here / f"broker-{len(self._brokers)}.log"
        command = re.sub(r'^make run ARGS="(.*)"$', r"gnatswarm \1", command)
        command = command if not command.startswith("make run") else "gnatswarm"
        with log.open("wb") as stream:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {command}"],
                cwd=self.here,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
            )
        self._brokers.append((process, log))
        until = time.monotonic() + COMMAND_DEADLINE_S
        poll = threading.Event()
        while READY not in log.read_text(errors="replace"):
            if process.poll() is not None and step.printed:
                break  # a start that fails, and is shown to
            if process.poll() is not None or time.monotonic() > until:
                raise Mismatch(f"{block}\n$ {command}\ndid not start:\n{log.read_text(errors='replace')}")
            poll.wait(0.02)
        return log.read_text(errors="replace")

    def _run_python(self, block: Block) -> None:
        code = self._adapted(block.text)
        command = [sys.executable, "-P", "-c", code]
        if re.search(r"(?m)^(async )?def test_", code):
            (self.here / "test_block.py").write_text(code)
            options = ["-q", "-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-p", "no:locust"]
            options += ["-o", "asyncio_mode=auto", "--rootdir", str(self.here)]
            command = [sys.executable, "-P", "-m", "pytest", *options, "test_block.py"]
        done = subprocess.run(
            command,
            cwd=self.here,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=COMMAND_DEADLINE_S,
            check=False,
        )
        wanted = re.findall(r"print\(.*\)  # (.+)", block.text)
        if done.returncode != 0 or any(text not in done.stdout for text in wanted):
            raise Mismatch(f"{block}\nexit code {done.returncode}, wanted {wanted}:\n{done.stdout}{done.stderr}")

    def _test_configuration(self, block: Block) -> None:
        path = self.here / "block.conf"
        path.write_text(block.text)
        names = re.findall(r"\$([A-Z_]+)", block.text)
        done = subprocess.run(
            [str(BIN / "gnatswarm"), "-t", "-c", str(path)],
            env={**self._environment, **dict.fromkeys(names, "value")},
            capture_output=True,
            text=True,
            timeout=COMMAND_DEADLINE_S,
            check=False,
        )
        if done.returncode != 0:
            raise Mismatch(f"{block}\n{done.stderr}")

    # ---- what the page has, and what there is

    def _adapted(self, text: str) -> str:
        text = PORT.sub(lambda found: self._port(found[0]), text).replace(".venv/bin/", "")
        return re.sub(r"\b\d{4,}\b", lambda found: self._pids.get(found[0], found[0]), text)

    def _port(self, shown: str) -> str:
        if shown not in self._ports:
            self._ports[shown] = str(free_port())
        return self._ports[shown]

    def _compare(self, block: Block, step: Step, command: str, text: str) -> None:
        """Every line of the page is found, in its order. What a broker's log says later is waited for."""
        until = time.monotonic() + 20.0
        poll = threading.Event()
        while True:
            missing = self._missing(step.printed, text)
            if missing is None:
                return
            logs = "".join(log.read_text(errors="replace") for _process, log in self._brokers)
            # What a command makes the broker say stands in its log.
            missing = self._missing(step.printed, text + logs)
            if missing is None:
                return
            if time.monotonic() > until or not self._brokers:
                raise Mismatch(f"{block}\n$ {command}\nis to print\n  {missing}\nand printed\n{text}\n{logs[-3000:]}")
            poll.wait(0.05)

    def _missing(self, printed: list[str], text: str) -> str | None:
        lines = [line.rstrip() for line in text.splitlines()]
        at = 0
        seen: dict[str, str] = {}
        for wanted in printed:
            pattern, shown = _pattern(wanted)
            for number in range(at, len(lines)):
                found = pattern.fullmatch(lines[number])
                if found:
                    seen |= {mine: real for mine, real in zip(shown, found.groups(), strict=True) if len(mine) >= 4}
                    at = number + 1
                    break
            else:
                return wanted
        self._pids |= {mine: real for mine, real in seen.items() if mine.isdigit() and mine not in self._ports}
        return None


def _pattern(wanted: str) -> tuple[re.Pattern[str], list[str]]:
    """What a printed line may look like, and the numbers in it as the page has them."""
    parts: list[str] = []
    shown: list[str] = []
    for piece in re.split(r"(\d+(?:[.,:]\d+)*|…|\s+)", wanted.rstrip()):
        if NUMBER.fullmatch(piece):
            parts.append(r"(\d+(?:[.,:]\d+)*)")
            shown.append(piece)
        elif piece == "…":
            parts.append(".*")
        elif piece.isspace():
            parts.append(r"\s+" if parts else r"\s*")
        else:
            parts.append(re.escape(piece))
    return re.compile("".join(parts)), shown
