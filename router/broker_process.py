"""A broker in a process of its own, started, steered and stopped by a Python program.

The same router and shards as the command's, with its options on a file that is in memory alone, its log in ours, and a
pipe that takes it along when this program ends, however it does. Nothing stays behind: no process, no file. Methods
block for as long as they say; a program with an event loop gives them to `asyncio.to_thread`, or lets them block: the
broker is elsewhere, and goes on. Called by `gnatswarm`, the public API.
"""

from __future__ import annotations

import collections
import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, Self

import msgspec

from broker.options import Options
from router.keywords import conf_text, options_from
from router.operator_commands import NotFound, exchange, find
from router.operator_socket import DisconnectRequest, KillRequest, Reply, Request, ScaleRequest, Status, StatusRequest
from router.zygote import child_environment

# A start takes a tenth of a second; on a machine that does ten other things, more.
START_DEADLINE_S = 30.0
STOP_DEADLINE_S = 10.0
RELOAD_DEADLINE_S = 10.0
MOST_LOG_LINES = 20_000

# What a service manager told this program is not meant for brokers that it starts.
_NOT_FOR_CHILDREN = frozenset(
    {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PIDFDID"}
)
_CLIENTS = r"Listening for client connections on \S*:(\d+)"
_WEBSOCKET = r"Listening for websocket clients on (wss?)://\S*:(\d+)"
_PAGES = r"Starting (https?) monitor on \S*:(\d+)"
_READY = r"Server is ready"


def dialled(host: str) -> str:
    """How a client on this machine dials what listens on that host; IPv6 in brackets."""
    if host in ("", "0.0.0.0", "::"):
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host


class BrokerFailed(Exception):
    """The broker did not do what was asked of it; the text has the end of its log."""


class BrokerLog:
    """The newest lines of a broker's log, read by a thread so that a full pipe never stops the broker."""

    def __init__(self, stream: Iterator[bytes]) -> None:
        self._changed = threading.Condition()
        self._lines: collections.deque[str] = collections.deque(maxlen=MOST_LOG_LINES)
        self._is_ended = False
        self.count = 0  # of all lines so far, those dropped included
        self._thread = threading.Thread(target=self._read, args=(stream,), name="gnatswarm log", daemon=True)
        self._thread.start()

    def _read(self, stream: Iterator[bytes]) -> None:
        for raw in stream:
            with self._changed:
                self._lines.append(raw.decode("utf-8", "replace").rstrip("\r\n"))
                self.count += 1
                self._changed.notify_all()
        with self._changed:
            self._is_ended = True
            self._changed.notify_all()

    def since(self, start: int) -> list[str]:
        """The lines from number `start` on that are still kept."""
        with self._changed:
            dropped = self.count - len(self._lines)
            return list(self._lines)[max(0, start - dropped) :]

    def wait_line(self, pattern: str, deadline_s: float, start: int = 0) -> re.Match[str]:
        """The first match in a line from number `start` on; TimeoutError, or EOFError when the log ended without."""
        compiled = re.compile(pattern)
        until = time.monotonic() + deadline_s
        with self._changed:
            while True:
                before, start = start, self.count
                dropped = self.count - len(self._lines)
                for line in list(self._lines)[max(0, before - dropped) :]:
                    found = compiled.search(line)
                    if found:
                        return found
                if self._is_ended:
                    raise EOFError
                if not self._changed.wait(until - time.monotonic()) and time.monotonic() >= until:
                    raise TimeoutError

    def join(self) -> None:
        """Wait until the stream has ended."""
        self._thread.join(STOP_DEADLINE_S)


class RouterProcess:
    """One broker with these options; `start()` starts it, `stop()` stops it, and again as often as wanted.

    ConfigError and UnknownOption (a TypeError) from the constructor, which starts nothing.
    """

    def __init__(self, given: Mapping[str, object], who: str) -> None:
        self._who = who
        self._given = dict(given)
        if given.get("log_file"):
            raise TypeError(f"{who}: log_file: the log of a broker in a process is in .log; write it where you want it")
        self.options: Options = options_from(conf_text(given, who), who)
        self._process: subprocess.Popen[bytes] | None = None
        self._log: BrokerLog | None = None
        self._past: list[str] = []  # lines of processes before the present one
        self._past_count = 0  # of those that were dropped, too
        self._lifeline: Any = None
        self._conf_fd = -1
        self._operator_path = ""
        self._ports: dict[str, object] = {}  # as bound, so that a restart finds them again
        self._ports_at_start: dict[str, object] = {}  # as the present process was told: a reload may not change them
        self.port = 0
        self.monitoring_url = ""  # of its pages, which http_port and https_port ask for
        self.websocket_url = ""

    # ---- life

    def start(self) -> Self:
        """Start it and wait until clients can connect: some tenth of a second. BrokerFailed with its last words."""
        if self.is_running:
            return self
        self._give_back()
        self._conf_fd = os.memfd_create("gnatswarm.conf")
        self._ports_at_start = dict(self._ports)
        self._write_conf(self._ports)
        theirs, ours = os.pipe()
        self._lifeline = os.fdopen(ours, "wb", 0)
        command = [sys.executable, "-P", "-m", "router.owned", str(theirs), "-c", f"/proc/self/fd/{self._conf_fd}"]
        try:
            process = self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env={name: value for name, value in child_environment().items() if name not in _NOT_FOR_CHILDREN},
                pass_fds=(theirs, self._conf_fd),
                # A Ctrl-C in the terminal is for the program, which then stops its broker.
                start_new_session=True,
            )
        finally:
            os.close(theirs)
        assert process.stderr is not None
        log = self._log = BrokerLog(iter(process.stderr.readline, b""))
        try:
            log.wait_line(_READY, START_DEADLINE_S)
            self._note_ports(log.wait_line(_CLIENTS, START_DEADLINE_S))
            self._operator_path = find(process.pid, None)
        except (EOFError, TimeoutError, NotFound) as error:
            why = "ended at once" if isinstance(error, EOFError) else f"is not ready after {START_DEADLINE_S:g} s"
            self.kill()
            raise BrokerFailed(f"the broker {why}:\n{self._tail()}") from None
        return self

    def stop(self) -> None:
        """Stop it and wait until it has: some milliseconds. Nothing when it does not run; kills one that hangs."""
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
        """End it as a power cut would: router and shards at once, clients without a word."""
        if self._process is not None:
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()
            self._give_back()

    def restart(self, *, kill: bool = False) -> None:
        """Stop it, or kill it, and start it on the same ports; clients reconnect."""
        if kill:
            self.kill()
        else:
            self.stop()
        self.start()

    def reload(self, **changes: object) -> None:
        """Change options while clients talk, all of these or, with ConfigError or BrokerFailed, none.

        What only a start can change is refused; the text says what.
        """
        given = self._given | changes
        options = options_from(conf_text(given, self._who), self._who)
        self._require_running()
        assert self._log is not None
        before, start = self._given, self._log.count
        self._given = given
        self._write_conf(self._ports_at_start)
        self._running.send_signal(signal.SIGHUP)
        try:
            answer = self._log.wait_line("Reloaded server configuration|Reload failed", RELOAD_DEADLINE_S, start)
        except (EOFError, TimeoutError):
            raise BrokerFailed(f"the broker did not reload:\n{self._tail()}") from None
        if answer[0] == "Reload failed":
            self._given = before
            self._write_conf(self._ports_at_start)
            refused = [line for line in self._log.since(start) if "[ERR]" in line or '"level":"ERR"' in line]
            raise BrokerFailed("\n".join(refused))
        self.options = options

    # ---- what it is

    @property
    def is_running(self) -> bool:
        """Whether its router lives."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Of its router."""
        return self._running.pid

    @property
    def shard_pids(self) -> list[int]:
        """Of its shards, by their numbers; 0 where there is no process at the moment."""
        return [row.pid for row in self.status().shards]

    @property
    def log(self) -> list[str]:
        """Its log, the last 20,000 lines; those of processes before a restart() come first."""
        return (self._past + (self._log.since(0) if self._log is not None else []))[-MOST_LOG_LINES:]

    @property
    def lines_logged(self) -> int:
        """How many lines there have been, those of processes before a restart() included: for log_since()."""
        return self._past_count + (self._log.count if self._log is not None else 0)

    def log_since(self, line: int) -> list[str]:
        """The lines from that number on, of the last 20,000."""
        missing = self.lines_logged - line
        return self.log[-missing:] if missing > 0 else []

    # ---- what it should do

    def status(self) -> Status:
        """What `gnatswarm status` shows."""
        status = self._ask(StatusRequest(sample_s=0.0)).status
        assert status is not None
        return status

    def scale(self, shards: int) -> None:
        """Run so many shards, 1 to 64, and wait until it does; one that leaves takes a second and more."""
        self._ask(ScaleRequest(shards))

    def kill_shard(self, shard: int = 0) -> None:
        """SIGKILL a shard, and wait until its successor serves; its clients are cut off, nobody else's."""
        self._ask(KillRequest(shard))

    def disconnect_clients(self, first_cid: int = 0) -> int:
        """Disconnect every client, or those whose id (client_id in INFO) is that or higher; how many there were."""
        return self._ask(DisconnectRequest(first_cid)).clients

    def next_client_id(self) -> int:
        """Clients that connect from now on have this id or a higher one."""
        return self._ask(DisconnectRequest(2**62)).next_cid

    # ---- inside

    @property
    def _running(self) -> subprocess.Popen[bytes]:
        self._require_running()
        assert self._process is not None
        return self._process

    def _require_running(self) -> None:
        if self._process is None:
            raise BrokerFailed("the broker has not been started, or has been stopped")
        if self._process.poll() is not None:
            raise BrokerFailed(f"the broker has ended by itself:\n{self._tail()}")

    def _ask(self, request: Request) -> Reply:
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

    def _note_ports(self, clients: re.Match[str]) -> None:
        assert self._log is not None
        self.port = int(clients[1])
        self._ports = {"port": self.port}
        if self.options.http_port or self.options.https_port:
            pages = self._log.wait_line(_PAGES, START_DEADLINE_S)
            self.monitoring_url = f"{pages[1]}://{dialled(self.options.http_host or self.options.host)}:{pages[2]}"
            if pages[1] not in self._given:
                self._ports[f"{pages[1]}_port"] = int(pages[2])
        if self.options.websocket.port:
            found = self._log.wait_line(_WEBSOCKET, START_DEADLINE_S)
            self.websocket_url = f"{found[1]}://{dialled(self.options.websocket.host)}:{found[2]}"
            block = self._given.get("websocket")
            if isinstance(block, Mapping):
                self._ports["websocket"] = {**block, "port": int(found[2])}

    def _tail(self) -> str:
        return "\n".join(self.log[-40:])

    def _give_back(self) -> None:
        """What belonged to a process that has ended."""
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
