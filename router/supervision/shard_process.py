"""One running shard as the router sees it: a process of the keeper's, and the control channel.

The keeper starts it, kills it and reaps it; the router asks for that. The shard gets the descriptors that Boot names,
under the same numbers, and no others but its lifeline. The signals on which a broker acts are blocked in it from its
first instruction, and later ignored.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from gnatswarm.shards.boundary.control import Awake, Boot, Channel, ControlError, ControlMessage, ToRouter, encode

# A Unix socket takes this much at once, with the kernel's defaults (212,992 bytes) and a margin. A larger Boot, from a
# configuration with thousands of users, is sent when the event loop runs.
BOOT_SENT_AT_ONCE_BYTES = 128 * 1024


def exit_text(status: int) -> str:
    """How a process ended, as text for a log line, from its wait status."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def _descriptors(boot: Boot) -> list[int]:
    """Those that a shard inherits for this Boot."""
    found = [boot.page_fd, *boot.listener_fds, *boot.websocket_fds]
    found += [port.fd for port in boot.server_ports.values()]
    return [*found, boot.handoff_fd] if boot.handoff_fd >= 0 else found


class Parent(Protocol):
    """The keeper, as far as a shard's process needs it."""

    def launch(self, shard: int, descriptors: list[int], command: Sequence[str]) -> None:
        """Request a shard with these descriptors under the same numbers, the control channel's first."""

    def launched(self) -> int:
        """Wait for the pid of the oldest requested shard. OSError when it could not be started."""

    def reach(self, pid: int, descriptor: int) -> None:
        """Give that shard this end of a new control channel."""

    def kill(self, pid: int) -> None:
        """SIGKILL that shard; nothing once it was reaped."""

    def wait_exited(self, pid: int) -> None:
        """Block until that shard was reaped."""


class ShardProcess:
    """The process of one shard: `start()` a new one, or `taken_over()` from a dead router.

    Call `meet` next, which may have to wait for the keeper; then, when an event loop runs, `open_channel`; after the
    process's death `close`. One that was only `launched()` waits for `boot()`.
    """

    def __init__(self, parent: Parent, sock: socket.socket, *, shard: int, boot_id: str, booted_us: int) -> None:
        self._parent = parent
        self._sock = sock
        self.shard = shard
        self.boot_id = boot_id
        self.booted_us = booted_us
        self.pid = 0  # known from meet() on
        self._is_gone = False  # reaped
        self.is_awake = False  # its program is read, as it has said
        self._channel: Channel | None = None
        self._unsent: Boot | None = None
        self._used = 0, 0  # (ping, processor time of the main thread in ticks), at the last look: see has_computed()
        self._made_for: tuple[list[int], list[str]] | None = None  # descriptors of Boot, command; None: taken over

    @classmethod
    def start(cls, boot: Boot, parent: Parent, command: Sequence[str] = ()) -> ShardProcess:
        """Request a shard and send Boot to it; `command` replaces the one that runs a shard. OSError, ControlError."""
        process = cls.launched(boot, parent, command)
        try:
            process.boot(boot)
        except (OSError, ControlError):
            with contextlib.suppress(OSError):
                process.meet()  # or its pid would be taken for that of the next one
            process.kill()
            process.close()
            raise
        return process

    @classmethod
    def launched(cls, boot: Boot, parent: Parent, command: Sequence[str] = ()) -> ShardProcess:
        """As start(), for a Boot with the same descriptors and the same id, which is sent later. OSError."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        process = cls(parent, ours, shard=boot.shard, boot_id=boot.boot_id, booted_us=time.time_ns() // 1000)
        try:
            inherited = _descriptors(boot)
            process._made_for = inherited, list(command)
            parent.launch(boot.shard, [theirs.fileno(), *inherited], command)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        return process

    def fits(self, boot: Boot, command: Sequence[str]) -> bool:
        """Whether it was launched for this one."""
        return self.boot_id == boot.boot_id and self._made_for == (_descriptors(boot), list(command))

    def boot(self, boot: Boot) -> None:
        """Send Boot to it."""
        self.booted_us = time.time_ns() // 1000
        if self._channel is not None:
            self._channel.send(boot)
            return
        frame = encode(boot)
        if len(frame) <= BOOT_SENT_AT_ONCE_BYTES:
            # It may be dead already; its exit status tells why.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self._sock.sendall(frame)
        else:
            self._unsent = boot

    @classmethod
    def taken_over(cls, parent: Parent, pid: int, *, shard: int, boot_id: str, booted_us: int) -> ShardProcess:
        """A shard that another router has started: give it a new channel. OSError."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            process = cls(parent, ours, shard=shard, boot_id=boot_id, booted_us=booted_us)
            process.pid = pid
            parent.reach(pid, theirs.fileno())
        return process

    def meet(self) -> None:
        """Wait until the process exists. OSError when it could not be started."""
        if self.pid == 0:
            self.pid = self._parent.launched()

    def open_channel(
        self,
        on_message: Callable[[ShardProcess, ControlMessage], None],
        on_ended: Callable[[ShardProcess, ControlError | None], None],
    ) -> None:
        """Receive the shard's messages."""

        def received(message: ControlMessage) -> None:
            if isinstance(message, Awake):
                self.is_awake = True
            else:
                on_message(self, message)

        self._channel = Channel(self._sock, ToRouter, received, lambda error: on_ended(self, error))
        if self._unsent is not None:
            self._channel.send(self._unsent)
            self._unsent = None

    @property
    def is_open(self) -> bool:
        """Whether open_channel was called."""
        return self._channel is not None

    def send(self, message: ControlMessage) -> None:
        """Send it, if the channel is still open."""
        if self._channel is not None:
            self._channel.send(message)

    def send_encoded(self, encoded: bytes) -> None:
        """Send what `control.encode` has returned, if the channel is still open."""
        if self._channel is not None:
            self._channel.send_encoded(encoded)

    def has_computed(self, ping: int) -> bool:
        """Whether its main thread waits for a core, or has run since this was last asked for the same ping's answer.

        False, too, of one that cannot be looked at.
        """
        try:
            with open(f"/proc/{self.pid}/task/{self.pid}/stat", "rb") as file:
                stat = file.read()
        except OSError:
            return False
        fields = stat.rpartition(b")")[2].split()  # from the third one of proc(5) on
        before, self._used = self._used, (ping, int(fields[11]) + int(fields[12]))
        return fields[0] == b"R" or (before[0] == ping and self._used > before)

    def kill(self) -> None:
        """Send SIGKILL; does nothing once it was reaped."""
        if self.pid and not self._is_gone:
            self._parent.kill(self.pid)

    def wait_exit(self) -> None:
        """Block until it is dead and reaped; after kill()."""
        if self.pid and not self._is_gone:
            self._parent.wait_exited(self.pid)
            self._is_gone = True

    def on_exited(self) -> None:
        """It was reaped: deliver its last messages, such as a Fatal, before its death is handled."""
        self._is_gone = True
        if self._channel is not None:
            self._channel.read_to_end()

    def close(self) -> None:
        """Close the descriptors, after the process was reaped."""
        if self._channel is not None:
            self._channel.close_silently()
        self._sock.close()
