"""One running shard as the router sees it: a process with a pidfd, and the control channel.

Forked by the zygote, or started by exec where there is none; never forked from this process. It gets the descriptors
that Boot names, under the same numbers, and no others. The signals on which the router acts are blocked in it from its
first instruction, and later ignored. It is our child in both cases, and is reaped by its pidfd.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence

from gnatswarm.router.supervision.zygote import HANDLED_SIGNALS, ZygoteClient, child_environment
from gnatswarm.shards.boundary.control import Boot, Channel, ControlError, ControlMessage, ToRouter, encode

# A Unix socket takes this much at once, with the kernel's defaults (212,992 bytes) and a margin. A larger Boot, from a
# configuration with thousands of users, is sent when the event loop runs.
BOOT_SENT_AT_ONCE_BYTES = 128 * 1024


def shard_command() -> list[str]:
    """The command of a shard, without --control-fd N. -P: import nothing from the current directory."""
    return [sys.executable, "-P", "-m", "gnatswarm.shards"]


def exit_text(status: int) -> str:
    """How a process ended, as text for a log line, from its wait status."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


class ShardProcess:
    """Starts a shard and sends Boot to it. OSError and ZygoteGone when that fails.

    Call `meet` next, which may have to wait for the zygote; then, when an event loop runs, `open_channel`; after the
    process's death `close`.
    """

    def __init__(self, boot: Boot, launcher: ZygoteClient | Sequence[str]) -> None:
        self._sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._zygote = launcher if isinstance(launcher, ZygoteClient) else None
        self.pid = 0  # known from meet() on
        try:
            inherited = [theirs.fileno(), boot.page_fd, *boot.listener_fds, *boot.websocket_fds]
            if boot.handoff_fd >= 0:
                inherited.append(boot.handoff_fd)
            if isinstance(launcher, ZygoteClient):
                launcher.request(inherited)
            else:
                arguments = [*launcher, "--control-fd", str(theirs.fileno())]
                # dup2() onto itself clears close-on-exec in the child (glibc 2.29, musl 1.1.24, POSIX 2024).
                self.pid = os.posix_spawnp(
                    arguments[0],
                    arguments,
                    child_environment(),
                    file_actions=[(os.POSIX_SPAWN_DUP2, fd, fd) for fd in inherited],
                    setsigmask=HANDLED_SIGNALS,
                )
        except BaseException:
            self._sock.close()
            raise
        finally:
            theirs.close()
        self.boot = boot
        self.booted_us = time.time_ns() // 1000
        self._is_reaped = False
        self._channel: Channel | None = None
        self._pidfd = -1
        self._unsent: Boot | None = boot
        frame = encode(boot)
        if len(frame) <= BOOT_SENT_AT_ONCE_BYTES:
            self._unsent = None
            # It may be dead already; its exit status tells why.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self._sock.sendall(frame)

    def meet(self) -> None:
        """Wait until the process exists. OSError and ZygoteGone when it could not be started."""
        if self.pid == 0:
            assert self._zygote is not None
            self.pid = self._zygote.answer()

    def open_channel(
        self,
        on_message: Callable[[ShardProcess, ControlMessage], None],
        on_ended: Callable[[ShardProcess, ControlError | None], None],
        on_exited: Callable[[ShardProcess, str], None],
    ) -> None:
        """Receive the shard's messages, and wait for its end. `on_exited` is called once, when it was reaped."""
        import asyncio

        loop = asyncio.get_running_loop()
        self._pidfd = os.pidfd_open(self.pid)

        def reap() -> None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid == self.pid:
                self._is_reaped = True
                loop.remove_reader(self._pidfd)
                on_exited(self, exit_text(status))

        loop.add_reader(self._pidfd, reap)
        self._channel = Channel(
            self._sock, ToRouter, lambda message: on_message(self, message), lambda error: on_ended(self, error)
        )
        if self._unsent is not None:
            self._channel.send(self._unsent)
            self._unsent = None

    @property
    def is_open(self) -> bool:
        """Whether open_channel was called."""
        return self._pidfd >= 0

    def send(self, message: ControlMessage) -> None:
        """Send it, if the channel is still open."""
        if self._channel is not None:
            self._channel.send(message)

    def kill(self) -> None:
        """Send SIGKILL; does nothing once it was reaped, because another process may have the pid then."""
        if self.pid and not self._is_reaped:
            os.kill(self.pid, signal.SIGKILL)

    def wait_exit(self) -> None:
        """Block until it is dead and reaped; after kill()."""
        if self.pid and not self._is_reaped:
            os.waitpid(self.pid, 0)
            self._is_reaped = True

    def read_what_is_left(self) -> None:
        """Deliver the dead shard's last messages, such as a Fatal, before its death is handled."""
        if self._channel is not None:
            self._channel.read_to_end()

    def close(self) -> None:
        """Close the descriptors, after the process was reaped."""
        if self._channel is not None:
            self._channel.close_silently()
        self._sock.close()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1
