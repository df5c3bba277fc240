"""Unix sockets on which the other processes of one user, and nobody else, connect to a shard.

The directory that they are in is private (0700), and so is each of them; besides, the kernel says whose process has
connected. Used for links and for clients that move.
"""

from __future__ import annotations

import os
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


def user_of(sock: socket.socket) -> int:
    """The user id of the process at the other end, as it was when that connected."""
    _pid, uid, _gid = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return int(uid)
