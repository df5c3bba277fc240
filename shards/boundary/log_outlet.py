"""Where lines of a log go: a descriptor that no process waits for.

A pipe, a terminal or a socket takes nothing more while nobody reads it: a pager, a terminal that was stopped, a
collector that hangs. A write would wait, and with it all clients of that process. So lines wait here, in their order,
and a thread that there is only meanwhile writes them as there is room. Files take whatever comes.
"""

from __future__ import annotations

import contextlib
import os
import select
import stat
import sys
import time

# Type checkers know this name; importing `typing` would take time.
TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    import threading

# Of socket(7), ioctl_tty(2) and fcntl(2), whose modules are imported where they are needed.
MSG_DONTWAIT = 0x40
FIONREAD = 0x541B
F_GETPIPE_SZ = 1032

# Lines that wait for a reader: some ten thousand. What is more is lost.
MOST_WAITING_BYTES = 1 << 20
# How often the thread looks whether it is to end, and whether a pipe is half empty.
LOOK_S = 0.2
AGAIN_S = 0.005
# At the end lines that wait are written as long as this much time brings room for some, …
LAST_ROOM_S = 0.2
LAST_LINES_S = 1.0  # … and no longer than this


class Outlet:
    """One open descriptor, which stays its opener's: close() leaves it open. OSError: it is none."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._own_fd = -1  # the same pipe or terminal, opened again: who shares `fd` would not expect O_NONBLOCK
        self._socket: socket.socket | None = None
        self._waiting = bytearray()
        self._lock: threading.Lock | None = None  # None: nothing waits
        self._thread: threading.Thread | None = None  # the last one, which ends when nothing waits
        kind = os.fstat(fd).st_mode
        self._may_block = stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind) or os.isatty(fd)
        if stat.S_ISSOCK(kind):
            import socket

            self._socket = socket.socket(fileno=os.dup(fd))
        elif self._may_block:
            with contextlib.suppress(OSError):  # for instance a container's, which is another user's
                flags = os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
                self._own_fd = os.open(f"/proc/self/fd/{fd}", flags)

    def write(self, data: bytes) -> bool:
        """Write these lines, or have them wait. False: too many wait already, and these are lost. OSError."""
        if not self._may_block:
            while data:
                data = data[os.write(self._fd, data) :]
            return True
        lock = self._lock
        if lock is not None:
            with lock:
                if self._lock is lock:
                    if len(self._waiting) + len(data) > MOST_WAITING_BYTES:
                        return False
                    self._waiting += data
                    return True
        taken = self._put(data)
        if taken < len(data):
            self._waiting += data[taken:]
            self._begin_waiting()
        return True

    def close(self) -> None:
        """Write what waits, for a moment, if it is read meanwhile."""
        give_up_s = time.monotonic() + LAST_LINES_S
        while (lock := self._lock) is not None:
            if time.monotonic() < give_up_s and self._has_room(LAST_ROOM_S):
                self._drain(lock)
                continue
            with lock:
                self._lock = None
        if self._thread is not None:
            self._thread.join()
        if self._socket is not None:
            self._socket.close()
        if self._own_fd >= 0:
            os.close(self._own_fd)

    def _put(self, data: bytes) -> int:
        """How many of these bytes it takes now. OSError."""
        try:
            if self._socket is not None:
                return self._socket.send(data, MSG_DONTWAIT)
            if self._own_fd >= 0:
                return os.write(self._own_fd, data)
            return os.write(self._fd, data[: select.PIPE_BUF]) if self._has_room(0.0) else 0
        except BlockingIOError:
            return 0

    def _has_room(self, within_s: float) -> bool:
        poller = select.poll()
        poller.register(self._fd, select.POLLOUT)
        if not poller.poll(within_s * 1e3):
            return False
        if self._own_fd >= 0 or self._socket is not None or os.isatty(self._fd):
            return True
        # Other processes write here, too, and between this look and our write: not when it is more than half full.
        import fcntl

        until_s = time.monotonic() + within_s
        size = fcntl.fcntl(self._fd, F_GETPIPE_SZ)
        while 2 * int.from_bytes(fcntl.ioctl(self._fd, FIONREAD, bytes(4)), sys.byteorder) > size:
            if time.monotonic() >= until_s:
                return False
            time.sleep(AGAIN_S)
        return True

    def _begin_waiting(self) -> None:
        import threading

        self._lock = lock = threading.Lock()
        self._thread = threading.Thread(target=self._keep_draining, args=(lock,), name="log", daemon=True)
        self._thread.start()

    def _keep_draining(self, lock: threading.Lock) -> None:
        while self._lock is lock:
            if self._has_room(LOOK_S):
                self._drain(lock)

    def _drain(self, lock: threading.Lock) -> None:
        """Write the next lines that wait, if there is room; the last ones end the waiting."""
        with lock:
            if self._lock is not lock:
                return
            # Whole lines, so that those of other processes come between them.
            end = self._waiting.rfind(b"\n", 0, select.PIPE_BUF) + 1 or select.PIPE_BUF
            try:
                del self._waiting[: self._put(bytes(self._waiting[:end]))]
            except OSError:  # nobody will read them
                self._waiting.clear()
            if not self._waiting:
                self._lock = None
