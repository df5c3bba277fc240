"""A broker in a process of its own, started, controlled and stopped by a Python program.

Runs the same router and shards as the command. Options are passed in a file that exists only in memory; the log comes
back through a pipe; another pipe ends the broker when this program ends, however it ends. Nothing stays behind: no
process, no file. Ports and results come from the operator socket, never from the log. Each method says how long it
blocks. Called by `gnatswarm.embedding`, the public API, which also has awaitable versions.
"""

from __future__ import annotations

import collections
import contextlib
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Self

import msgspec

from gnatswarm.broker.options import Options
from gnatswarm.router.commands.operator_commands import NotFound, exchange, find
from gnatswarm.router.config.keywords import conf_text, options_from
from gnatswarm.router.config.reload import Change
from gnatswarm.router.supervision.operator_socket import (
    CHAOS_VARIABLE,
    DisconnectRequest,
    KillRequest,
    OperatorRequest,
    PartRequest,
    Ports,
    PortsRequest,
    PublishedRequest,
    ReloadRequest,
    Reply,
    ScaleRequest,
    Status,
    StatusRequest,
)
from gnatswarm.shards.boundary.children import child_environment

if TYPE_CHECKING:
    from typing import Unpack

    from gnatswarm.router.config.keywords import Keywords

# A start takes a tenth of a second; more on a busy machine.
START_DEADLINE_S = 30.0
LOOKS_EVERY_S = 0.2  # whether one can be asked that cannot be heard
STOP_DEADLINE_S = 10.0
MOST_LOG_LINES = 20_000
_READ_BYTES = 65_536  # of the log, at once
_MOST_READS = 64  # of it, for somebody who asks
# Lines from the end of the log in the text of BrokerFailed.
TAIL_LINES = 40
TAIL_BYTES = 16_384
# A process that was sent SIGKILL has ended by then.
ENDING_S = 10.0
_SIGKILL_BIT = 1 << (signal.SIGKILL - 1)
_PF_EXITING = 0x4  # of the kernel's linux/sched.h
_CREDENTIALS = struct.Struct("3i")  # pid, user, group: unix(7)

# A service manager sets these for this program, not for brokers that it starts.
_NOT_FOR_CHILDREN = frozenset(
    {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PIDFDID"}
)


def dialled(host: str) -> str:
    """The host that a client on this machine dials to reach a listener on `host`; IPv6 in brackets."""
    if host in ("", "0.0.0.0", "::"):
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host


def _is_ready(process: subprocess.Popen[bytes], notices: socket.socket, until: float) -> bool:
    """Wait until the process sends READY=1 (as to a service manager), has ended, or the time `until` has come.

    Every user of this machine can send something to the socket, and fill it, so that what the process says is lost.
    When somebody does, nothing in it counts: the process is ready when it can be asked, and answers when it serves.
    """
    is_heard = True
    ended = os.pidfd_open(process.pid)
    try:
        poller = select.poll()
        poller.register(notices, select.POLLIN)
        poller.register(ended, select.POLLIN)
        while (left_s := until - time.monotonic()) > 0:
            ready = {fd for fd, _events in poller.poll((left_s if is_heard else min(left_s, LOOKS_EVERY_S)) * 1000)}
            if notices.fileno() in ready:
                text, data, _flags, _address = notices.recvmsg(4096, socket.CMSG_SPACE(_CREDENTIALS.size))
                if _sender(data) != process.pid:
                    is_heard = False
                    poller.unregister(notices)
                elif b"READY=1" in text.split(b"\n"):
                    return True
            if ended in ready:
                return False
            if not is_heard and _can_be_asked(process.pid):
                return True
        return False
    finally:
        os.close(ended)


def _can_be_asked(pid: int) -> bool:
    """Whether an operator's request is answered, if it serves."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        try:
            sock.connect(find(pid, None))
        except (OSError, NotFound):
            return False
    return True


def _sender(data: list[tuple[int, int, bytes]]) -> int:
    """The pid that the kernel says of a datagram; 0: it says none."""
    found = [raw for level, kind, raw in data if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS]
    return int(_CREDENTIALS.unpack(found[0])[0]) if found else 0


def _is_being_killed(pid: int) -> bool:
    """Whether it has been sent SIGKILL, or is ending: on a busy machine a moment passes before it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
        flags = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[6]
    except (FileNotFoundError, ProcessLookupError):
        return True
    except OSError:  # this program may have no more descriptors
        return False
    pending = (line.split()[1] for line in status.splitlines() if line.startswith(("SigPnd:", "ShdPnd:")))
    return any(int(mask, 16) & _SIGKILL_BIT for mask in pending) or bool(int(flags) & _PF_EXITING)


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether it has; one that has been killed is waited for."""
    if process.poll() is None and _is_being_killed(process.pid):
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(ENDING_S)
    return process.poll() is not None


class BrokerFailed(Exception):
    """The broker failed to do what was requested; the text has the end of its log."""


def _is_readable(stream: IO[bytes], timeout_ms: int | None) -> bool:
    poll = select.poll()
    poll.register(stream, select.POLLIN)
    return bool(poll.poll(timeout_ms))


class BrokerLog:
    """The newest lines of a broker's log, read by a thread so that a full pipe never stops the broker, or by who asks.

    The stream is unbuffered: a buffer's lock, which the thread would have, would stop a forked child that closes it.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._rest = b""  # of a line that has not come whole
        self._is_over = False
        self._lines: collections.deque[str] = collections.deque(maxlen=MOST_LOG_LINES)
        self._count = 0
        self._thread = threading.Thread(target=self._read_all, name="gnatswarm log", daemon=True)
        self._thread.start()

    def _read_all(self) -> None:
        while not self._is_over:
            _is_readable(self._stream, None)
            with self._lock:
                self._read()

    def _read(self) -> bool:
        """Read what has been written; False: nothing has, or the stream has ended."""
        if self._is_over or not _is_readable(self._stream, 0):
            return False
        data = self._stream.read(_READ_BYTES)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if not data:
            self._is_over = True
            lines = [self._rest] if self._rest else []
        self._lines += [raw.decode("utf-8", "replace").rstrip("\r") for raw in lines]
        self._count += len(lines)
        return not self._is_over

    def _read_on(self) -> None:
        """What has been written before somebody asks is told; of a broker that never pauses, so much."""
        for _ in range(_MOST_READS):
            if not self._read():
                break

    @property
    def count(self) -> int:
        """Lines so far, including those that were dropped."""
        with self._lock:
            self._read_on()
            return self._count

    def since(self, start: int) -> list[str]:
        """The lines from number `start` on that are still kept."""
        with self._lock:
            self._read_on()
            dropped = self._count - len(self._lines)
            return list(self._lines)[max(0, start - dropped) :]

    def join(self) -> None:
        """Wait until the stream has ended."""
        self._thread.join(STOP_DEADLINE_S)


class RouterProcess:
    """One broker with these options; `start()` starts it and `stop()` stops it, as often as wanted.

    ConfigError and UnknownOption (a TypeError) from the constructor, which starts nothing.
    """

    def __init__(self, given: Mapping[str, object], who: str, *, chaos: bool = False) -> None:
        self._who = who
        self._given = dict(given)
        self._is_for_chaos = chaos
        self.options: Options = options_from(conf_text(given, who), who)
        self._process: subprocess.Popen[bytes] | None = None
        self._log: BrokerLog | None = None
        self._past: list[str] = []  # lines of earlier processes
        self._past_count = 0  # including those that were dropped
        self._lifeline: IO[bytes] | None = None
        self._conf_fd = -1
        self._operator_path = ""
        self._ports: dict[str, object] = {}  # bound ports, for a restart on the same ones
        self._ports_at_start: dict[
            str, object
        ] = {}  # ports in the present process's configuration: a reload must not change them
        self._port = 0  # the clients' port; 0: not started yet
        self._changing = threading.RLock()  # one start, stop, restart or reload at a time
        self.monitoring_url = ""  # of the monitoring pages; needs http_port or https_port
        self.websocket_url = ""

    # ---- life

    def start(self) -> Self:
        """Start it and wait until clients can connect: about 0.1 s. BrokerFailed with the end of its log."""
        with self._changing:
            if self.is_running:
                return self
            self._give_back()
            try:
                self._conf_fd = os.memfd_create("gnatswarm.conf")
                self._ports_at_start = dict(self._ports)
                self._write_conf(self._ports)
                with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notices:
                    notices.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
                    notices.bind("")  # an abstract name that the kernel chooses: no file
                    self._note_ports(self._ports_of(self._launched(notices), notices))
            except OSError as error:  # this program may have no more descriptors, or processes
                self.kill()
                raise BrokerFailed(f"the broker cannot be started: {error}") from None
            except BaseException:
                self.kill()
                raise
        return self

    def stop(self) -> None:
        """Stop it and wait for its end: some milliseconds. Does nothing if it does not run; kills it if it hangs."""
        with self._changing:
            process = self._process
            if process is None:
                return
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                try:
                    process.wait(STOP_DEADLINE_S)
                except subprocess.TimeoutExpired:
                    self.kill()
                    raise BrokerFailed(
                        f"the broker still ran {STOP_DEADLINE_S:g} s after it was told to stop, and was killed:\n"
                        + self._tail()
                    ) from None
            self._give_back()

    def kill(self) -> None:
        """Kill router and shards at once, without closing connections properly, as a power cut would."""
        with self._changing:
            if self._process is not None and self._process.poll() is None:
                self._process.kill()
                self._process.wait()
            self._give_back()

    def restart(self, *, kill: bool = False) -> None:
        """Stop it, or kill it, and start it on the same ports; clients reconnect."""
        with self._changing:
            if kill:
                self.kill()
            else:
                self.stop()
            self.start()

    def reload(self, **changes: Unpack[Keywords]) -> list[Change]:
        """Change options of the running broker; returns the changes. ConfigError, BrokerFailed: nothing was changed.

        BrokerFailed that says that the rest is in effect: only what it names is not, or not yet. Options that only a
        start can change are refused; the text names all of them.
        """
        with self._changing:
            given = self._given | dict(changes)
            options = options_from(conf_text(given, self._who), self._who)
            self._require_running()
            before, self._given = self._given, given
            asked = {*changes, *(("port",) if "listen" in changes else ())}
            ports = {name: port for name, port in self._ports_at_start.items() if name not in asked}
            self._write_conf(ports)
            try:
                answer = self._ask(ReloadRequest()).reload
            except BrokerFailed:
                self._given = before
                self._write_conf(self._ports_at_start)
                raise
            self.options, self._ports_at_start = options, ports
            block, held = given.get("websocket"), self._ports.get("websocket")
            if isinstance(block, Mapping) and isinstance(held, Mapping):
                self._ports["websocket"] = {**block, "port": held["port"]}
        assert answer is not None
        if answer.problems:
            raise BrokerFailed("\n".join((*answer.problems, "the rest is in effect")))
        return list(answer.changes)

    # ---- state

    @property
    def is_running(self) -> bool:
        """Whether its keeper runs: the process that was started."""
        return self._process is not None and not _has_ended(self._process)

    @property
    def pid(self) -> int:
        """The keeper's process id; the broker ends with it."""
        return self._running.pid

    def shard_pids(self) -> list[int]:
        """The shards' process ids, by shard number; 0 where there is no process at the moment."""
        return [row.pid for row in self.status().shards]

    @property
    def log(self) -> list[str]:
        """The last 20,000 lines of its log; lines from before a restart() come first."""
        return (self._past + (self._log.since(0) if self._log is not None else []))[-MOST_LOG_LINES:]

    @property
    def lines_logged(self) -> int:
        """The number of lines so far, including those of processes before a restart(); for log_since()."""
        return self._past_count + (self._log.count if self._log is not None else 0)

    def log_since(self, line: int) -> list[str]:
        """The lines from that number on, as far as they are among the last 20,000."""
        of_the_past = self._past_count - line
        past = self._past[-of_the_past:] if of_the_past > 0 else []
        return (past + (self._log.since(-min(0, of_the_past)) if self._log is not None else []))[-MOST_LOG_LINES:]

    # ---- commands

    def status(self) -> Status:
        """The status, as `gnatswarm status` shows it."""
        status = self._ask(StatusRequest(sample_s=0.0)).status
        assert status is not None
        return status

    def scale(self, shards: int) -> None:
        """Run this many shards, 1 to 62, and wait until all of them run; retiring a shard takes a second or more."""
        self._ask(ScaleRequest(shards))

    def kill_shard(self, shard: int = 0) -> None:
        """SIGKILL a shard, and wait until its successor serves; only its own clients are disconnected."""
        self._ask(KillRequest(shard))

    def part_shards(self, shard: int, other: int, seconds: float) -> None:
        """Break the link between two shards, and keep it broken for so long (0..60; 0: no longer); for tests.

        Returns when it is broken. After two seconds the lower of the two is replaced, because it cannot be reached.
        Only for a broker that was made with `chaos=True`: BrokerFailed.
        """
        self._ask(PartRequest(shard, other, float(seconds)))

    def disconnect_clients(self, first_cid: int = 0) -> int:
        """Disconnect every client whose id (client_id in INFO) is `first_cid` or higher; returns how many."""
        return self._ask(DisconnectRequest(first_cid)).clients

    def next_client_id(self) -> int:
        """The lowest id that a client connecting from now on can have."""
        return self._ask(DisconnectRequest(2**62)).next_cid

    def published(self) -> dict[str, int]:
        """What was published so far: messages by subject, the most frequent first, without inboxes."""
        return self._ask(PublishedRequest()).published

    def shard_count(self) -> int:
        """The requested number of shards."""
        return self._ask(DisconnectRequest(2**62)).shards

    # ---- inside

    def _launched(self, notices: socket.socket) -> subprocess.Popen[bytes]:
        """Start its process; from now on we must end it."""
        theirs, ours = os.pipe()
        self._lifeline = os.fdopen(ours, "wb", 0)
        module = "gnatswarm.router.owned"
        command = [sys.executable, "-P", "-m", module, str(theirs), "-c", f"/proc/self/fd/{self._conf_fd}"]
        environment = {name: value for name, value in child_environment().items() if name not in _NOT_FOR_CHILDREN}
        environment[CHAOS_VARIABLE] = "1" if self._is_for_chaos else ""
        environment["NOTIFY_SOCKET"] = "@" + notices.getsockname().removeprefix(b"\0").decode()
        try:
            process = self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                bufsize=0,
                env=environment,
                pass_fds=(theirs, self._conf_fd),
                # A Ctrl-C in the terminal is for the program, which then stops its broker.
                start_new_session=True,
            )
        finally:
            os.close(theirs)
        assert process.stderr is not None
        self._log = BrokerLog(process.stderr)
        return process

    @property
    def _running(self) -> subprocess.Popen[bytes]:
        self._require_running()
        assert self._process is not None
        return self._process

    def _require_running(self) -> None:
        if self._process is None:
            raise BrokerFailed("the broker has not been started, or has been stopped")
        if _has_ended(self._process):
            raise BrokerFailed(f"the broker has ended by itself:\n{self._tail()}")

    def _ask(self, request: OperatorRequest) -> Reply:
        self._require_running()
        try:
            reply = exchange(self._operator_path, request)
        except (OSError, msgspec.DecodeError) as error:
            raise BrokerFailed(f"the broker does not answer ({error}):\n{self._tail()}") from None
        if reply.error:
            raise BrokerFailed(reply.error)
        return reply

    def _write_conf(self, ports: Mapping[str, object]) -> None:
        text = conf_text({**self._given, **ports}, self._who).encode()
        os.ftruncate(self._conf_fd, 0)
        os.pwrite(self._conf_fd, text, 0)

    def _ports_of(self, process: subprocess.Popen[bytes], notices: socket.socket) -> Ports:
        """Ask its operator socket for its ports, once it serves. BrokerFailed.

        They are not read from the log, which may be in a file and whose format is configurable.
        """
        until = time.monotonic() + START_DEADLINE_S
        if not _is_ready(process, notices, until):
            why = "ended at once" if process.poll() is not None else f"is not ready after {START_DEADLINE_S:g} s"
            self.kill()  # then its log is complete
            raise BrokerFailed(f"the broker {why}:\n{self._tail()}")
        try:
            self._operator_path = find(process.pid, None)
        except NotFound as error:
            raise BrokerFailed(f"the broker has no operators' socket: {error}") from None
        ports = self._ask(PortsRequest()).ports
        assert ports is not None
        return ports

    def _note_ports(self, ports: Ports) -> None:
        options = self.options
        self._port = ports.clients
        self._ports = {"port": ports.clients}
        if ports.monitoring:
            scheme = "https" if options.https_port else "http"
            self.monitoring_url = f"{scheme}://{dialled(options.http_host or options.host)}:{ports.monitoring}"
            if scheme not in self._given:
                self._ports[f"{scheme}_port"] = ports.monitoring
        if ports.websocket:
            scheme = "wss" if options.websocket.tls.is_on else "ws"
            self.websocket_url = f"{scheme}://{dialled(options.websocket.host)}:{ports.websocket}"
            block = self._given.get("websocket")
            if isinstance(block, Mapping):
                self._ports["websocket"] = {**block, "port": ports.websocket}

    def _tail(self) -> str:
        """The end of its log, including that of its log file if it has one."""
        lines = self.log[-TAIL_LINES:]
        if self.options.logging.file:
            with contextlib.suppress(OSError), open(self.options.logging.file, "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
                lines += file.read().decode("utf-8", "replace").splitlines()[-TAIL_LINES:]
        return "\n".join(lines)

    def leave_to_parent(self) -> None:
        """In a child after fork(): the broker is the parent's, and ends with it; here it is stopped."""
        if self._process is not None:
            self._process.returncode = 0  # as it will be for Popen, which cannot wait for it
        self._log = None  # (its thread is the parent's)
        self._give_back()

    def _give_back(self) -> None:
        """Release the resources of a process that has ended."""
        if self._log is not None:
            self._log.join()
            self._past_count += self._log.count
            self._past = self.log
            self._log = None
        if self._process is not None:
            if self._process.stderr is not None:
                self._process.stderr.close()
            self._process = None
        if self._lifeline is not None:
            self._lifeline.close()
            self._lifeline = None
        if self._conf_fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self._conf_fd)
            self._conf_fd = -1
