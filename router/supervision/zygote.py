"""The router's side of its zygote, the process that forks shards (`shards.zygote`).

`prepare()` starts it and should be called first of all at a start: then the zygote imports the shards' modules while
the router reads its configuration. For that reason this module imports nothing of ours. Without a zygote shards are
started by exec, which is only slower.
"""

from __future__ import annotations

import array
import contextlib
import os
import signal
import socket
import struct
import sys

# The signals on which the router acts. They are blocked in its children: terminals, `timeout` and service managers send
# some of them to the whole process group, and a shard that one of them ended would lose its open window of statistics.
HANDLED_SIGNALS = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGTERM,
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
    """Our environment; from a source tree with the package's path in PYTHONPATH, because of -P."""
    environment = dict(os.environ)
    root = os.path.abspath(__file__).rsplit(os.sep, __name__.count(".") + 1)[0]
    if os.path.basename(root) not in ("site-packages", "dist-packages"):
        before = environment.get("PYTHONPATH", "")
        if root not in before.split(os.pathsep):
            environment["PYTHONPATH"] = root + os.pathsep + before if before else root
    return environment


class ZygoteClient:
    """One zygote process; OSError when it cannot be started."""

    def __init__(self) -> None:
        self._sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._sock.settimeout(ANSWER_DEADLINE_S)
            number = theirs.fileno()
            # -P: do not import from the current directory, not even modules named like the standard library's.
            self.pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-P", "-m", "gnatswarm.shards.zygote", str(number), str(os.getpid())],
                child_environment(),
                file_actions=[(os.POSIX_SPAWN_DUP2, number, number)],
                setsigmask=HANDLED_SIGNALS,
            )
        self._is_reaped = False

    def request(self, descriptors: list[int]) -> None:
        """Request a shard with these descriptors under the same numbers, the control channel's first. ZygoteGone."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        try:
            self._sock.sendmsg(
                [_REQUEST.pack(b"F", *descriptors, *[-1] * (16 - len(descriptors)))], rights, socket.MSG_NOSIGNAL
            )
        except OSError as error:
            raise ZygoteGone(str(error)) from None

    def remove_when_gone(self, link_dir: str) -> None:
        """Have the zygote remove this directory if this process dies without doing so."""
        with contextlib.suppress(OSError):
            self._sock.send(b"D" + os.fsencode(link_dir), socket.MSG_NOSIGNAL)

    def answer(self) -> int:
        """The pid of the oldest requested shard without an answer; it is our child. ZygoteGone, OSError."""
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
        """End it at once, whatever it is doing."""
        self._sock.close()
        if not self._is_reaped:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self._is_reaped = True


_prepared: ZygoteClient | None = None


def prepare() -> None:
    """Start the zygote of this process, if there is none yet. Failure only makes the broker's start slower."""
    global _prepared
    if _prepared is None:
        try:
            _prepared = ZygoteClient()
        except OSError:
            return


def take_prepared() -> ZygoteClient | None:
    """The prepared zygote, now owned by the caller; None: there is none."""
    global _prepared
    zygote, _prepared = _prepared, None
    return zygote
