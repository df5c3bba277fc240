"""Unix sockets on which the other processes of one user, and nobody else, connect to a shard.

The directory that they are in is private (0700), and so is each of them; besides, the kernel says whose process has
connected. Used for links and for clients that move.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct

_CREDENTIALS = struct.Struct("iII")  # struct ucred: pid, uid, gid


def listening_at(path: str, backlog: int) -> socket.socket:
    """A socket that listens at this path, and does not block. OSError: it cannot."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    umask_before = os.umask(0o177)
    try:
        listening.bind(path)
    except OSError:
        listening.close()
        raise
    finally:
        os.umask(umask_before)
    listening.listen(backlog)
    return listening


def connect(sock: socket.socket, path: str) -> None:
    """Connect to the shard that listens at this path. OSError: none does; PermissionError: another user does.

    That directory is private, but perhaps not those above it: whoever owns one can put another in the place of ours.
    """
    sock.connect(path)
    uid = user_of(sock)
    if uid != os.geteuid():
        raise PermissionError(errno.EPERM, f"a process of user {uid} listens there", path)


def user_of(sock: socket.socket) -> int:
    """The user id of the process at the other end, as it was when that connected, or began to listen."""
    return _credentials(sock)[1]


def process_of(sock: socket.socket) -> int:
    """The id of that process; 0: it cannot be seen from here."""
    return _credentials(sock)[0]


def _credentials(sock: socket.socket) -> tuple[int, int, int]:
    pid, uid, gid = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return int(pid), int(uid), int(gid)


def has_ended(pid: int) -> bool:
    """Whether that process has certainly ended, though nobody may have reaped it.

    Of a process that cannot be seen, and where another one has its number by now, this is not certain.
    """
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(0))
    finally:
        os.close(descriptor)
