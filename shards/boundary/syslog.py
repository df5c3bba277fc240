"""Log lines to syslog: the local one, or one elsewhere by UDP, TCP or a Unix socket, in nats-server's format.

Each process sends its own lines. Nothing blocks: what a slow or absent syslog does not take is counted as lost, and
said when it takes lines again. A TCP connection that breaks is made again, at most once a second. Imported only where
syslog is configured.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from urllib.parse import SplitResult, urlsplit

from gnatswarm.broker.options import Logging

LOCAL_PATHS = ("/dev/log", "/var/run/syslog", "/var/run/log")
CONNECT_DEADLINE_S = 2.0
TRY_AGAIN_S = 1.0
# One that did not answer at the start is looked for so often.
LOOK_EVERY_S = 5.0
# Lines that a TCP connection has not taken yet; a line is sent whole or not at all.
MOST_WAITING_BYTES = 256 * 1024
# A datagram that is longer may not arrive at all (RFC 5426 asks for 480 at least; this fits the loopback's and most).
MOST_LINE_BYTES = 8192

# As in nats-server: notices, not traces and informational lines; its facility is 0.
_SEVERITIES = {logging.DEBUG: 7, logging.INFO: 5, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}
_TRACE_SEVERITY = 5


class SyslogAddress:
    """Where lines go: `udp://host:port`, `tcp://host:port`, `unix:///path`, or "": the local one. ValueError."""

    def __init__(self, url: str) -> None:
        self.url = url
        parts = urlsplit(url)
        self.network = parts.scheme if url else "local"
        if self.network not in ("udp", "tcp", "unix", "local"):
            raise ValueError(f'invalid network type: "{parts.scheme}"')
        self.path = parts.path
        if self.network == "unix" and not self.path:
            raise ValueError("no path")
        self.host = parts.hostname or ""
        self.port = _port(parts) if self.network in ("udp", "tcp") else 0
        if self.network in ("udp", "tcp") and not (self.host and self.port):
            raise ValueError("no host and port")

    def connect(self) -> socket.socket:
        """A connected socket that does not block. OSError. Looks a name up, so it may take a while."""
        if self.network in ("local", "unix"):
            return self._connect_unix()
        kind = socket.SOCK_DGRAM if self.network == "udp" else socket.SOCK_STREAM
        failure = OSError("no address")
        try:
            found = socket.getaddrinfo(self.host, self.port, type=kind)
        except UnicodeError as error:  # a name with an empty label, or one of more than 63 bytes
            raise OSError(f"{self.host} is no host name: {error}") from None
        for family, _, _, _, address in found:
            sock = socket.socket(family, kind)
            try:
                sock.settimeout(CONNECT_DEADLINE_S)
                sock.connect(address)
                sock.setblocking(False)
                return sock
            except OSError as error:
                sock.close()
                failure = error
        raise failure

    def _connect_unix(self) -> socket.socket:
        failure = OSError("Unix syslog delivery error")
        for path in (self.path,) if self.path else LOCAL_PATHS:
            for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
                sock = socket.socket(socket.AF_UNIX, kind)
                try:
                    sock.setblocking(False)
                    sock.connect(path)
                    return sock
                except OSError as error:
                    sock.close()
                    failure = failure if not self.path else error
        raise failure

    def again(self, before: socket.socket) -> socket.socket:
        """A new socket to the same peer, which may still be connecting: nothing blocks. OSError."""
        if before.family == socket.AF_UNIX:
            return self._connect_unix()
        sock = socket.socket(before.family, before.type)
        sock.setblocking(False)
        sock.connect_ex(self._peer)
        return sock

    def note_peer(self, sock: socket.socket) -> None:
        """Remember the address, so that connecting again needs no look-up."""
        self._peer = sock.getpeername() if sock.family != socket.AF_UNIX else ""


class SyslogHandler(logging.Handler):
    """Sends each record as one message. OSError if there is no syslog to connect to; ValueError for a bad address."""

    def __init__(self, options: Logging, *, tag: str) -> None:
        super().__init__()
        self._address = SyslogAddress(options.remote_syslog)
        self._tag = f"{tag}[{os.getpid()}]: "
        self._host = socket.gethostname()
        self._lost_lines = 0
        self._waiting = b""  # of a stream: whole lines, of which it has not taken the first, or not all of it
        self._taken_bytes = 0  # of that first line
        self._tried_s = 0.0
        self.mutes_debug = options.trace and not options.debug
        self._socket = self._address.connect()
        self._address.note_peer(self._socket)

    def emit(self, record: logging.LogRecord) -> None:
        """Send the record, or count its lines as lost; never raises, never blocks."""
        if self.mutes_debug and record.levelno == logging.DEBUG:
            return
        severity = _SEVERITIES.get(record.levelno, _TRACE_SEVERITY)
        if self._lost_lines:
            lost = f"{self._lost_lines} log lines were lost: syslog did not take them"
            if self._send(self._message(4, lost)):
                self._lost_lines = 0
        for line in self.format(record).split("\n"):
            if not self._send(self._message(severity, line)):
                self._lost_lines += 1

    def close(self) -> None:
        """Close the connection; what it has not taken is lost."""
        self._socket.close()
        super().close()

    def _message(self, severity: int, line: str) -> bytes:
        if self._address.network == "local":
            head = f"<{severity}>{time.strftime('%b %e %H:%M:%S')} {self._tag}"
        else:
            head = f"<{severity}>{_rfc3339()} {self._host} {self._tag}"
        return (head + line).encode("utf-8", "backslashreplace")[:MOST_LINE_BYTES] + b"\n"

    def _send(self, message: bytes) -> bool:
        """Whether it was sent, or waits to be."""
        is_stream = self._socket.type == socket.SOCK_STREAM
        if is_stream:
            if len(self._waiting) + len(message) > MOST_WAITING_BYTES:
                self._flush()
                return False
            self._waiting += message
            return self._flush()
        try:
            self._socket.send(message)
            return True
        except BlockingIOError:
            return False
        except OSError:  # refused, or the local syslog was started again
            return self._connect_again() and self._send_once(message)

    def _send_once(self, message: bytes) -> bool:
        try:
            self._socket.send(message)
        except OSError:
            return False
        return True

    def _flush(self) -> bool:
        while self._waiting:
            try:
                taken = self._taken_bytes + self._socket.send(memoryview(self._waiting)[self._taken_bytes :])
            except (BlockingIOError, InterruptedError):
                return True
            except OSError:
                return self._connect_again()
            whole = self._waiting.rfind(b"\n", 0, taken) + 1
            self._waiting, self._taken_bytes = self._waiting[whole:], taken - whole
        return True

    def _connect_again(self) -> bool:
        now_s = time.monotonic()
        if now_s - self._tried_s < TRY_AGAIN_S:
            return self._socket.type == socket.SOCK_STREAM  # its lines wait, up to their bound
        self._tried_s = now_s
        try:
            fresh = self._address.again(self._socket)
        except OSError:
            return False
        old, self._socket = self._socket, fresh
        old.close()
        self._taken_bytes = 0  # a line that was sent in part is sent whole again
        return True


class Seeker:
    """Looks in a thread for a syslog that does not answer: `make` makes its handler, and may take a while."""

    def __init__(self, make: Callable[[], logging.Handler]) -> None:
        self._make = make
        self._found: logging.Handler | None = None
        self._is_over = threading.Event()
        self._lock = threading.Lock()
        with contextlib.suppress(RuntimeError):  # there may be no more threads
            threading.Thread(target=self._look, name="syslog", daemon=True).start()

    def take(self) -> logging.Handler | None:
        """The handler, once there is one."""
        return self._found

    def stop(self) -> None:
        """Look no more; what was found and not taken is closed."""
        with self._lock:
            self._is_over.set()
            if self._found is not None:
                self._found.close()

    def _look(self) -> None:
        while not self._is_over.wait(LOOK_EVERY_S):
            try:
                found = self._make()
            except OSError:
                continue
            with self._lock:
                if self._is_over.is_set():
                    found.close()
                else:
                    self._found = found
            return


def _port(parts: SplitResult) -> int:
    """0: none. ValueError: no number up to 65535."""
    try:
        return parts.port or 0
    except ValueError as error:  # its text may have a password that stands in the place of the port
        raise ValueError("Port out of range 0-65535" if "range" in str(error) else "the port is no number") from None


def _rfc3339() -> str:
    zone = time.strftime("%z")
    return time.strftime("%Y-%m-%dT%H:%M:%S") + ("Z" if zone in ("+0000", "") else f"{zone[:3]}:{zone[3:]}")
