"""Starts brokers by forking a process that has imported them already, because importing is most of a broker's start.

Run as a program it is that process: it imports what router and shards import, or other modules that it is given, and at
each request forks a child that calls the command's `main`, or runs another program. A broker started so is in a session
of its own, dies with the test run, and is an ordinary one from `main` on. It differs in two things: /proc/PID/cmdline
of the keeper, and the variables that the loader and Python read at their own start. Who tests those starts a program:
`Broker(by_fork=False)`.

Needs nothing but the standard library, so a broker finds in its process no module that it did not import itself.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import json
import os
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, NoReturn

# A request has the environment in it.
_MOST_BYTES = 1 << 20
_NUMBER = struct.Struct("i")
_PR_SET_PDEATHSIG = 1
# What a broker imports in the first second, keeper, router and shard; the rest comes when it is asked for. (A test
# compares.)
_IMPORTED = (
    "asyncio",
    "shlex",
    "ssl",
    "uvloop",
    "gnatswarm.router.cli",
    "gnatswarm.keeper",
    "gnatswarm.shards.lean_imports",
    "gnatswarm.shards.worker",
    "gnatswarm.shards.boundary.keeping",
    "gnatswarm.shards.boundary.parentage",
    "gnatswarm.router.commands.first_screen",
    "gnatswarm.router.commands.operator_commands",
    "gnatswarm.router.commands.signals",
    "gnatswarm.router.companions",
    "gnatswarm.router.config.accounts_block",
    "gnatswarm.router.config.authorization",
    "gnatswarm.router.config.message_trace_block",
    "gnatswarm.router.config.options_build",
    "gnatswarm.router.config.simple_file",
    "gnatswarm.router.listening.listener_groups",
    "gnatswarm.router.listening.steering",
    "gnatswarm.router.monitoring.monitor",
    "gnatswarm.router.monitoring.state",
    "gnatswarm.router.serving",
    "gnatswarm.router.start_early",
    "gnatswarm.router.supervision.keeper_link",
    "gnatswarm.router.supervision.notify",
    "gnatswarm.router.supervision.operator_answers",
    "gnatswarm.router.supervision.operator_server",
    "gnatswarm.router.supervision.placing",
    "gnatswarm.router.supervision.rebalance",
    "gnatswarm.router.supervision.reloader",
    "gnatswarm.router.supervision.rolling",
    "gnatswarm.router.supervision.signal_handlers",
    "gnatswarm.router.supervision.successor",
    "gnatswarm.router.supervision.supervisor",
)
# And one that encrypts, or talks to other kinds of peers. Every fork copies what there is of all these: 5 ms.
MORE = (
    *_IMPORTED,
    "_strptime",
    "gnatswarm.router.config.cluster_block",
    "gnatswarm.router.config.leafnodes_block",
    "gnatswarm.router.config.websocket_block",
    "gnatswarm.shards.boundary.certificates",
    "gnatswarm.shards.clients.certificate_rule",
    "gnatswarm.shards.gateway.gateway",
    "gnatswarm.shards.sockets.frames",
    "gnatswarm.shards.sockets.gate",
)


Ran = subprocess.CompletedProcess[str]


class Forked:
    """A process that the fork server started; what tests use of `subprocess.Popen`."""

    def __init__(self, pid: int, stdout: IO[bytes] | None, stderr: IO[bytes], channel: socket.socket) -> None:
        self.pid = pid
        self.stdout = stdout
        self.stderr = stderr
        self.returncode: int | None = None
        self._channel = channel
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """Its exit code (negative: killed by that signal), or None while it runs."""
        return self._ended_within(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; subprocess.TimeoutExpired after `timeout` seconds."""
        code = self._ended_within(timeout)
        if code is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(f"forked broker {self.pid}", timeout)
        return code

    def send_signal(self, number: int) -> None:
        """Do nothing if it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _ended_within(self, timeout_s: float | None) -> int | None:
        with self._lock:
            if self.returncode is None:
                poller = select.poll()
                poller.register(self._channel, select.POLLIN)
                if poller.poll(None if timeout_s is None else timeout_s * 1000):
                    said = self._channel.recv(_NUMBER.size)
                    # Nothing: the server was killed, and the kernel kills what it has forked.
                    self.returncode = _NUMBER.unpack(said)[0] if said else -signal.SIGKILL
                    self._channel.close()
            return self.returncode


class Forkserver:
    """The process, as those see it that ask; started at once, ended by `close()` or with this process.

    `imported`: the modules that it imports, for other programs than brokers.

    It ends when nobody can ask any more. The kernel is not asked to kill it with us: that would be with the thread that
    made it, which may be a test's.
    """

    def __init__(self, *imported: str) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(Path(__file__).resolve()), str(theirs.fileno()), *(imported or _IMPORTED)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

    def start(
        self,
        arguments: Sequence[str],
        *,
        descriptors: int | None = None,
        environment: Mapping[str, str] | None = None,
        program: str = "",
        directory: Path | None = None,
        stdin: int | None = None,
        is_read: bool = False,
    ) -> Forked:
        """A process with these `arguments`, the first of which is its own name.

        `program` is Python to run instead of the command. `descriptors` is how many it may have, `environment` and
        `directory` are ours by default. `stdin`: the descriptor of its standard input, which stays ours, too; None:
        nothing to read. `is_read`: its standard output is a pipe, as its standard error is; else it is discarded.
        """
        request = {
            "arguments": list(arguments),
            "directory": str(directory or os.getcwd()),
            "environment": dict(os.environ if environment is None else environment),
            "descriptors": descriptors,
            "program": program,
        }
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        stderr, stderr_end = os.pipe()
        stdout, stdout_end = os.pipe() if is_read else (-1, os.open(os.devnull, os.O_WRONLY))
        given = os.open(os.devnull, os.O_RDONLY) if stdin is None else os.dup(stdin)
        with theirs:
            descriptors_given = [theirs.fileno(), given, stdout_end, stderr_end]
            socket.send_fds(self._control, [json.dumps(request).encode()], descriptors_given)
        for number in (given, stdout_end, stderr_end):
            os.close(number)
        pid = _NUMBER.unpack(ours.recv(_NUMBER.size))[0]
        return Forked(pid, os.fdopen(stdout, "rb") if is_read else None, os.fdopen(stderr, "rb"), ours)

    def run(
        self,
        arguments: Sequence[str],
        program: str = "",
        timeout_s: float = 60.0,
        *,
        given: bytes = b"",
        **options: Any,
    ) -> Ran:
        """As subprocess.run() of a program that is read to its end: what it said and its exit code.

        `given`: what it may read from its standard input, a pipe.
        """
        stdin, stdin_end = os.pipe()
        started = self.start(arguments, program=program, stdin=stdin, is_read=True, **options)
        os.close(stdin)
        assert started.stdout is not None
        with started.stdout, started.stderr, ThreadPoolExecutor(2) as pool:
            errors = pool.submit(started.stderr.read)
            pool.submit(_give, stdin_end, given)
            watch = threading.Timer(timeout_s, started.kill)
            watch.start()
            said = started.stdout.read()
            code = started.wait()
            is_late = not watch.is_alive()
            watch.cancel()
            done = Ran([*arguments], code, said.decode(), errors.result().decode())
        if is_late:
            raise subprocess.TimeoutExpired([*arguments], timeout_s, done.stdout, done.stderr)
        return done

    def close(self) -> None:
        self._control.close()
        self._process.wait()


def _give(descriptor: int, data: bytes) -> None:
    """Write all of it, as far as anybody reads it."""
    with contextlib.suppress(BrokenPipeError), os.fdopen(descriptor, "wb") as pipe:
        pipe.write(data)


@functools.cache
def forkserver(*imported: str) -> Forkserver:
    """The one of this process with these modules, started at the first call."""
    made = Forkserver(*imported)
    atexit.register(made.close)
    return made


# -- the process ------------------------------------------------------------------------------------------------------


def _serve(control: socket.socket) -> dict[str, Any] | None:
    """Fork at each request: the request, in the child. None when nobody asks any more, then all children are killed."""
    poller = select.poll()
    poller.register(control, select.POLLIN)
    running: dict[int, tuple[int, socket.socket]] = {}
    while True:
        for descriptor, _events in poller.poll():
            if descriptor != control.fileno():
                poller.unregister(descriptor)
                pid, channel = running.pop(descriptor)
                _pid, status = os.waitpid(pid, 0)
                with contextlib.suppress(BrokenPipeError), channel:
                    channel.send(_NUMBER.pack(os.waitstatus_to_exitcode(status)))
                os.close(descriptor)
                continue
            data, descriptors, _flags, _address = socket.recv_fds(control, _MOST_BYTES, 4)
            if not data:
                return None
            server = os.getpid()
            pid = os.fork()
            if pid == 0:
                _die_with(server)
                for number in (0, 1, 2):
                    os.dup2(descriptors[1 + number], number)
                os.closerange(3, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
                return dict(json.loads(data))
            for number in descriptors[1:]:
                os.close(number)
            channel = socket.socket(fileno=descriptors[0])
            channel.send(_NUMBER.pack(pid))
            ended = os.pidfd_open(pid)
            running[ended] = pid, channel
            poller.register(ended, select.POLLIN)


def _make_tables() -> None:
    """What msgspec makes of types at their first use, which the keeper has done for its children."""
    from gnatswarm.shards.boundary import control, keeping

    for expected in (keeping.ToKeeper, keeping.ToRouter):
        keeping.decoder_of(expected)
    for expected in (control.ToShard, control.ToRouter):
        control.decoder_of(expected)


def _die_with(parent: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _main() -> int:
    control = socket.socket(fileno=int(sys.argv[1]))
    os.setsid()  # a terminal's ^C is for those that ask
    # Imports allocate much and leave no garbage, and a collection would write to pages that are shared with the child.
    gc.disable()
    for name in sys.argv[2:]:
        __import__(name)
    if "gnatswarm.shards.boundary.keeping" in sys.modules:
        _make_tables()
    gc.freeze()
    gc.enable()
    request = _serve(control)
    if request is None:
        return 0
    control.detach()
    os.setsid()
    # The objects remember whether they could be sought, and now these are others' pipes.
    sys.stdin = os.fdopen(0, "r", encoding=sys.stdin.encoding, errors=sys.stdin.errors, closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding=sys.stdout.encoding, errors=sys.stdout.errors, closefd=False)
    if request["descriptors"] is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (request["descriptors"],) * 2)
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    sys.argv = request["arguments"]
    if request["program"]:
        exec(compile(request["program"], "<program>", "exec"), {"__name__": "__main__"})
        return 0
    return int(sys.modules["gnatswarm.router.cli"].main())


def _end(code: int) -> NoReturn:
    """As the interpreter ends, without its clearing of modules: that would copy most pages, each shared until then.

    That was a fourth of what a broker's start and end cost.
    """
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
    finally:
        os._exit(code)


def _run() -> int:
    """The exit code of `_main()`, as the interpreter would have it."""
    try:
        return _main()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
    except KeyboardInterrupt:
        raise  # the interpreter ends by that signal then
    except BaseException:
        sys.excepthook(*sys.exc_info())
    return 1


if __name__ == "__main__":
    _end(_run() & 0xFF)
