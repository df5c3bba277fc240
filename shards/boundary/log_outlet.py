"""Where lines of a log go: a descriptor that nobody but a thread waits for.

A pipe, a terminal or a socket takes nothing more while nobody reads it: a pager, a terminal that was stopped, a
collector that hangs. A write would wait, and with it all clients of that process. So lines wait here, in their order,
and a thread writes them. It is started when something has to wait, and stays. While nothing waits, lines are written
at once where that is possible without waiting. Files take whatever comes.
"""

from __future__ import annotations

import contextlib
import os
import select
import stat
import threading
import time

# Type checkers know this name; importing `typing` would take time.
TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket

MSG_DONTWAIT = 0x40  # of socket(7); the module is imported where there is one

# Lines that wait for a reader: some ten thousand. What is more is lost.
MOST_WAITING_BYTES = 1 << 20
# The end of a process waits for who reads what is left, …
LAST_ROOM_S = 0.2  # … while so much time brings something
LAST_LINES_S = 1.0  # … and no longer than this


class Outlet:
    """Takes lines for a descriptor, of which it has a copy. OSError: it is none."""

    def __init__(self, fd: int) -> None:
        self.fd = os.dup(fd)
        self._at_once_fd = -1  # the same pipe, opened again: who shares it would not expect O_NONBLOCK
        self._socket: socket.socket | None = None
        self._waiting = bytearray()  # whole lines, but for the first
        self._lost_lines = 0  # by the thread
        self._is_writing = False  # the thread is
        self._is_retired = False
        self._changed = threading.Condition(threading.Lock())
        self._has_thread = False
        kind = os.fstat(fd).st_mode
        self._is_read = stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind) or os.isatty(fd)  # and may block
        if stat.S_ISSOCK(kind):
            import socket

            self._socket = socket.socket(fileno=os.dup(fd))
        elif stat.S_ISFIFO(kind):
            # (A terminal takes parts of lines, between which those of other processes would come: the thread does not.)
            with contextlib.suppress(OSError):  # for instance a container's, which is another user's
                self._at_once_fd = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    def write(self, data: bytes) -> bool:
        """Write these lines, or have them wait. False: too many wait already, and these are lost. OSError."""
        if not self._is_read:
            self._write_all(data)
            return True
        with self._changed:
            if not self._waiting and not self._is_writing:
                data = data[self._put(data) :]
                if not data:
                    return True
            elif len(self._waiting) + len(data) > MOST_WAITING_BYTES:
                return False
            self._waiting += data
            self._start_thread()
            self._changed.notify_all()
        return True

    def flush(self) -> None:
        """Wait for who reads what is left: at the end of the process."""
        give_up_s = time.monotonic() + LAST_LINES_S
        with self._changed:
            left = -1
            while (self._waiting or self._is_writing) and left != len(self._waiting) and time.monotonic() < give_up_s:
                left = len(self._waiting)
                self._changed.wait(LAST_ROOM_S)

    def retire(self) -> None:
        """Nothing more comes. What waits is still written, whenever it is read. A second call does nothing."""
        with self._changed:
            if self._is_retired:
                return
            self._is_retired = True
            self._changed.notify_all()
            if not self._has_thread:
                self._close()

    def take_lost_lines(self) -> int:
        """How many lines that waited were lost since the last call: who read them has gone."""
        lost, self._lost_lines = self._lost_lines, 0
        return lost

    def _put(self, data: bytes) -> int:
        """How many of these bytes it takes at once. OSError."""
        try:
            if self._socket is not None:
                return self._socket.send(data, MSG_DONTWAIT)
            return os.write(self._at_once_fd, data) if self._at_once_fd >= 0 else 0
        except BlockingIOError:
            return 0

    def _write_all(self, data: bytes) -> None:
        while data:
            data = data[os.write(self.fd, data) :]

    def _start_thread(self) -> None:
        if not self._has_thread:
            with contextlib.suppress(RuntimeError):  # there may be no more: the next line tries again
                threading.Thread(target=self._keep_writing, name="log", daemon=True).start()
                self._has_thread = True

    def _keep_writing(self) -> None:
        while True:
            with self._changed:
                self._is_writing = False
                self._changed.notify_all()
                while not self._waiting and not self._is_retired:
                    self._changed.wait()
                if not self._waiting:
                    self._close()
                    return
                # Whole lines, so that those of other processes come between them.
                end = self._waiting.rfind(b"\n", 0, select.PIPE_BUF) + 1 or self._waiting.find(b"\n") + 1
                data = bytes(self._waiting[:end])
                del self._waiting[:end]
                self._is_writing = True
            try:
                self._write_all(data)
            except OSError:
                self._lost_lines += data.count(b"\n")

    def _close(self) -> None:
        os.close(self.fd)
        if self._at_once_fd >= 0:
            os.close(self._at_once_fd)
        if self._socket is not None:
            self._socket.close()
