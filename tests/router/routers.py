"""Routers under test: the real supervisor in a process of its own, under a keeper, over fake shards."""

from __future__ import annotations

import atexit
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from gnatswarm.router.supervision.operator_socket import StatusRequest, encode_request
from tests.support.forkserver import forkserver
from tests.support.servers import Log, wait_pids_gone

FAKE_SHARD = Path(__file__).with_name("fake_shard.py")
DEADLINE_S = 30.0

# Where the keeper would run a fake shard by exec, the forked process goes on as one: a fifth of the processor time.
_FORKED = f"""
import os, signal, sys
execute = os.execvpe
def go_on(file, words, environment):
    if words[1:2] != [{str(FAKE_SHARD)!r}]:
        execute(file, words, environment)
    for number in range(1, signal.NSIG):  # as exec does
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = words[1:]
    try:
        exec(compile(open(words[1]).read(), words[1], "exec"), {{"__name__": "__main__"}})
    except SystemExit as end:
        os._exit(end.code or 0)
os.execvpe = go_on
"""
_PROGRAM = """
import json, os, sys
import msgspec
from gnatswarm.broker.options import Options
from gnatswarm.keeper import keep
from gnatswarm.router.supervision.notify import Notifier
notifier = Notifier.take(os.environ, os.getpid())
options, program, command = json.loads(sys.argv[1])
path = os.environ.get("RELOADED_OPTIONS")
reparse = (lambda _: msgspec.json.decode(open(path, "rb").read(), type=Options)) if path else None
def route(post):
    from gnatswarm.router.serving import serve
    return serve(msgspec.convert(options, Options), program=program, post=post, command=command, reparse=reparse,
                 notifier=notifier)
sys.exit(keep(route, prepares=not command))
"""


_runtime_directories: dict[Path, Path] = {}


def runtime_directory(tmp_path: Path) -> Path:
    """A test's own XDG_RUNTIME_DIR. pytest's directories are too long for Unix sockets."""
    if tmp_path not in _runtime_directories:
        directory = Path(tempfile.mkdtemp(prefix="gnat-", dir="/tmp"))
        atexit.register(shutil.rmtree, directory, ignore_errors=True)
        _runtime_directories[tmp_path] = directory
    return _runtime_directories[tmp_path]


def pause(length_s: float) -> None:
    """Let time pass, for a test whose input is a moment or a length of time; to wait for something is wait_until."""
    threading.Event().wait(length_s)


def wait_until(claim: Callable[[], object], what: str, deadline_s: float = DEADLINE_S) -> None:
    """Wait for a condition. AssertionError with its name when it does not come."""
    until = time.monotonic() + deadline_s
    while not claim():
        assert time.monotonic() < until, f"not within {deadline_s} s: {what}"
        pause(0.01)


def option_tree(shards: int, port: int, accept: str, **more: Any) -> dict[str, Any]:
    sharding = {"shards": shards, "accept": accept, **more.pop("sharding", {})}
    return {"host": "127.0.0.1", "port": port, "sharding": sharding, "logging": {"debug": True}, **more}


class Router:
    """One keeper and router, with fake shards, or real ones; stopped and checked at the end of the `with`."""

    def __init__(
        self,
        tmp_path: Path,
        shards: int = 2,
        *,
        port: int = -1,
        accept: str = "reuseport",
        environment: dict[str, str] | None = None,
        descriptors: int | None = None,
        program: str = "gnatswarm",
        is_real: bool = False,
        are_programs: bool = False,  # the shards, started by exec
        first: str = "",  # Python that the broker's process runs before all else
        **options: Any,
    ) -> None:
        self.runtime = runtime_directory(tmp_path)
        self.boot_log = Path(tempfile.mkdtemp(dir=tmp_path)) / "boots.jsonl"
        self.environment = {
            **os.environ,
            "XDG_RUNTIME_DIR": str(self.runtime),
            "FAKE_SHARD_BOOT_LOG": str(self.boot_log),
            **(environment or {}),
        }
        tree = option_tree(shards, port, accept, **options)
        command = [] if is_real else [sys.executable, str(FAKE_SHARD)]
        arguments = json.dumps([tree, program, command])

        self.process = forkserver().start(
            ["-c", arguments],
            program=("" if is_real or are_programs else _FORKED) + first + _PROGRAM,
            descriptors=descriptors,
            environment=self.environment,
            is_read=True,
        )
        assert self.process.stderr is not None
        self.log = Log(self.process.stderr)
        self.pids: set[int] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.note_pids()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(DEADLINE_S)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            self.log.join()
            assert self.process.stdout is not None
            self.process.stdout.close()
        assert wait_pids_gone(sorted(self.pids), 30.0) == [], "shards outlived their router"

    def kill(self) -> None:
        """SIGKILL the keeper, and wait until its log has ended: until all that could write to it have gone."""
        self.process.kill()
        self.process.wait()
        self.log.join()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def router_pid(self) -> int:
        """The pid of the present router, which is not that of the broker."""
        return int(self.status()["router_pid"])

    def kill_router(self) -> int:
        """SIGKILL the router alone, and wait until another serves; returns the new one's pid."""
        old, seen = self.router_pid(), len(self.log.lines)
        os.kill(old, signal.SIGKILL)
        self.log.wait_line("The router died: killed by SIGKILL", DEADLINE_S, seen)
        return self.router_pid()

    @property
    def port(self) -> int:
        return int(self.log.wait_line(r"Listening for client connections on \S*:(\d+)", DEADLINE_S)[1])

    def wait_ready(self) -> Self:
        self.log.wait_line("Server is ready", DEADLINE_S)
        self.note_pids()
        return self

    def boots(self) -> list[dict[str, Any]]:
        """What every shard process learned at its boot, in order."""
        if not self.boot_log.exists():
            return []
        return [json.loads(line) for line in self.boot_log.read_text().splitlines()]

    def reloads(self) -> list[dict[str, Any]]:
        """Which shard took which options, in order."""
        path = Path(f"{self.boot_log}.reloads")
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def note_pids(self) -> None:
        self.pids |= {boot["pid"] for boot in self.boots()}

    def pid_of(self, shard: int) -> int:
        return int([boot["pid"] for boot in self.boots() if boot["shard"] == shard][-1])

    def leftovers(self) -> list[str]:
        return sorted(path.name for path in (self.runtime / "gnatswarm").glob("*") if path.name != ".lock")

    def operator(self, *words: str) -> subprocess.CompletedProcess[str]:
        """`scale` or `status`, in a process of its own."""
        code = (
            "import sys\nfrom gnatswarm.router.commands.operator_commands import scale, status\n"
            "w = sys.argv[1:]\n"
            "sys.exit(scale(int(w[1])) if w[0] == 'scale' else status(as_json='json' in w))"
        )
        return forkserver().run(["-c", *words], program=code, environment=self.environment)

    def status(self) -> Any:
        """What `gnatswarm status` would ask for, without a process for it and without waiting for rates."""
        (path,) = (self.runtime / "gnatswarm").glob(f"{self.process.pid}-*/operator.sock")
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(DEADLINE_S)
            sock.connect(str(path))
            sock.sendall(encode_request(StatusRequest(sample_s=0.0)))
            with sock.makefile("rb") as answer:
                return json.loads(answer.readline())["status"]

    def wait_log(self, pattern: str, deadline_s: float = DEADLINE_S, start: int = 0) -> re.Match[str]:
        return self.log.wait_line(pattern, deadline_s, start)


class Dialled:
    """One client connection: which shard took it."""

    def __init__(self, port: int, deadline_s: float = DEADLINE_S, host: str = "127.0.0.1") -> None:
        self.sock = socket.create_connection((host, port), timeout=deadline_s)
        self._read = b""

    def greeting(self) -> tuple[int, int, str]:
        """(shard, pid, boot id), once a shard has accepted it."""
        while not self._read.endswith(b"\n"):
            data = self.sock.recv(100)
            if not data:
                raise ConnectionError("closed before a shard greeted")
            self._read += data
        shard, pid, boot_id = self._read.decode().split()
        return int(shard), int(pid), boot_id

    def is_closed(self) -> bool:
        try:
            return self.sock.recv(100) == b""
        except ConnectionError:
            return True

    def close(self) -> None:
        self.sock.close()


def dial(port: int, count: int) -> list[Dialled]:
    return [Dialled(port) for _ in range(count)]
