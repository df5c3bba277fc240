"""The router's hold on its zygote, the process that forks shards (`shards.zygote`).

`prepare()` starts it, and is worth calling as the very first thing of a start: it imports what shards need while the
router reads its configuration. Imports nothing of ours for that reason. Where there is no zygote, or it has died,
shards are started by exec, which differs in nothing but time.
"""

from __future__ import annotations

import array
import contextlib
import os
import signal
import socket
import struct
import sys

GROUP_SIGNALS = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGTTIN,
    signal.SIGTTOU,
)

# Importing takes a tenth of a second; on a machine so busy that it takes this long, exec would not be faster.
ANSWER_DEADLINE_S = 20.0

_REQUEST = struct.Struct("=c16i")
_ANSWER = struct.Struct("=i")


class ZygoteGone(Exception):
    """The zygote has died, or does not answer."""


def child_environment() -> dict[str, str]:
    """Our environment; from a source tree also where our packages are, because of -P."""
    environment = dict(os.environ)
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if os.path.basename(root) not in ("site-packages", "dist-packages"):
        before = environment.get("PYTHONPATH", "")
        if root not in before.split(os.pathsep):
            environment["PYTHONPATH"] = root + os.pathsep + before if before else root
    return environment


class Zygote:
    """One zygote process; OSError when it cannot be started."""

    def __init__(self) -> None:
        self._sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._sock.settimeout(ANSWER_DEADLINE_S)
            number = theirs.fileno()
            # -P: a folder `shards` in the current directory is not ours.
            self.pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-P", "-m", "shards.zygote", str(number), str(os.getpid())],
                child_environment(),
                file_actions=[(os.POSIX_SPAWN_DUP2, number, number)],
                setsigmask=GROUP_SIGNALS,
            )
        self._is_reaped = False

    def request(self, descriptors: list[int]) -> None:
        """Ask for a shard with these descriptors under these numbers, the control channel's first. ZygoteGone."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        try:
            self._sock.sendmsg(
                [_REQUEST.pack(b"F", *descriptors, *[-1] * (16 - len(descriptors)))], rights, socket.MSG_NOSIGNAL
            )
        except OSError as error:
            raise ZygoteGone(str(error)) from None

    def remove_when_gone(self, link_dir: str) -> None:
        """Should this process die without removing this directory, the zygote does it."""
        with contextlib.suppress(OSError):
            self._sock.send(b"D" + os.fsencode(link_dir), socket.MSG_NOSIGNAL)

    def answer(self) -> int:
        """The pid of the oldest shard requested and not answered yet, our child by now. ZygoteGone, OSError."""
        try:
            data = self._sock.recv(_ANSWER.size)
        except OSError as error:
            raise ZygoteGone(str(error)) from None
        if len(data) != _ANSWER.size:
            raise ZygoteGone("it has died")
        (pid,) = _ANSWER.unpack(data)
        if pid < 0:
            raise OSError(-pid, os.strerror(-pid))
        return int(pid)

    def close(self) -> None:
        """End it; at once, whatever it does."""
        self._sock.close()
        if not self._is_reaped:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self._is_reaped = True


_prepared: Zygote | None = None


def prepare() -> None:
    """Start the zygote of this process, if there is none yet. Without one, a start is slower and nothing else."""
    global _prepared
    if _prepared is None:
        try:
            _prepared = Zygote()
        except OSError:
            return


def take_prepared() -> Zygote | None:
    """The zygote that was prepared, now the caller's."""
    global _prepared
    zygote, _prepared = _prepared, None
    return zygote
