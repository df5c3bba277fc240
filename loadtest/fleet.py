"""The generator's processes: forks them, starts them together, waits for them, and always ends them.

Each runs one job: it reports ready, receives go, reports done, receives finish, and sends its result. The time between
go and done is measured; the check for surplus messages comes after it. Invariant: no process outlives `run`, and the
first failure of one process fails the run.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from gnatswarm.loadtest import processes
from gnatswarm.loadtest.credentials import BadCredentials
from gnatswarm.loadtest.errors import LoadFailed, NatsError

_PR_SET_PDEATHSIG = 1
# For making frames and connections; a process that is not ready by then has hung.
READY_DEADLINE_S = 60.0
# For reading the remaining messages and a last PING on every connection.
FINISH_DEADLINE_S = 30.0
PROGRESS_S = 0.25


class Job(Protocol):
    """What one process does."""

    def run(self) -> None:
        """The part that is measured."""

    def result(self) -> dict[str, Any]:
        """The result; may still talk to the server."""


class _Process:
    """One forked process and the channel to it."""

    def __init__(self, make: Callable[[], Job]) -> None:
        ours, theirs = socket.socketpair()
        self.channel = ours
        self._buffer = b""
        self.said: dict[str, Any] = {}
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            ours.close()
            _live(make, theirs, parent)  # does not return
        theirs.close()

    def tell(self, word: str) -> None:
        with contextlib.suppress(OSError):  # it is dead; read() reports that
            self.channel.sendall(word.encode() + b"\n")

    def read(self) -> None:
        """Read its reports once; LoadFailed if it reports a failure or has died."""
        data = self.channel.recv(1 << 20)
        if not data:
            raise LoadFailed("a generator process died")
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            self.said.update(json.loads(line))
        if "failed" in self.said:
            raise LoadFailed(self.said["failed"])

    def end(self) -> None:
        self.channel.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def _live(make: Callable[[], Job], channel: socket.socket, parent: int) -> None:
    """Run a forked process from its start to its exit."""

    def say(**words: Any) -> None:
        channel.sendall(json.dumps(words).encode() + b"\n")

    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends us
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        try:
            job = make()
            say(ready=True)
            channel.recv(16)
            before, before_ns = processes.read_cpu([os.getpid()]), time.process_time_ns()
            job.run()
            used_ns = time.process_time_ns() - before_ns
            waited_ns = processes.usage(before, processes.read_cpu([os.getpid()])).wait_ns
            say(done=True)
            channel.recv(16)
            say(result={**job.result(), "cpu_ns": used_ns, "waited_ns": waited_ns})
            channel.recv(16)
        except (NatsError, BadCredentials, OSError, MemoryError) as error:
            say(failed=str(error) or type(error).__name__)
            channel.recv(16)
    finally:
        os._exit(0)


class Fleet:
    """The processes of one run."""

    def __init__(self, makers: Sequence[Callable[[], Job]]) -> None:
        self._processes: list[_Process] = []
        try:
            for make in makers:
                self._processes.append(_Process(make))
        except BaseException:
            self.end()
            raise

    def wait_ready(self) -> None:
        """Wait until every process can begin."""
        self._wait("ready", READY_DEADLINE_S)

    def run(self, deadline_s: float, on_progress: Callable[[], None] | None = None) -> None:
        """Start all processes and wait until all are done; `on_progress` is called a few times a second."""
        for process in self._processes:
            process.tell("go")
        self._wait("done", deadline_s, on_progress)

    def results(self) -> list[dict[str, Any]]:
        """The result of each process."""
        for process in self._processes:
            process.tell("finish")
        self._wait("result", FINISH_DEADLINE_S)
        return [process.said["result"] for process in self._processes]

    def end(self) -> None:
        """End all processes; may be called twice."""
        while self._processes:
            self._processes.pop().end()

    def _wait(self, word: str, deadline_s: float, on_progress: Callable[[], None] | None = None) -> None:
        until = time.monotonic() + deadline_s
        while waiting := [process for process in self._processes if word not in process.said]:
            left_s = until - time.monotonic()
            if left_s <= 0:
                raise LoadFailed(f"a generator process was not {word} within {deadline_s:.0f} s")
            patience_s = min(left_s, PROGRESS_S) if on_progress else left_s
            poll = select.poll()  # (select() itself takes no descriptor above 1,023)
            for process in waiting:
                poll.register(process.channel, select.POLLIN)
            readable = {descriptor for descriptor, _ in poll.poll(patience_s * 1000)}
            for process in waiting:
                if process.channel.fileno() in readable:
                    process.read()
            if on_progress and not readable:
                on_progress()
