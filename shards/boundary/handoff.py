"""Passing accepted sockets from the router to a shard, in the accept mode "handoff".

One SOCK_SEQPACKET Unix socket pair per shard. A packet is up to SOCKETS_PER_PACKET descriptors (SCM_RIGHTS) and one
byte, their number; it is received whole or not at all, so a killed shard leaves no partial packet. The router keeps
both ends, and takes back the packets that a dead shard has not read. Called by the router (send) and the shard
(receive).
"""

from __future__ import annotations

import array
import errno
import socket

# A burst of connections costs one system call per packet; the kernel's limit is 253 descriptors (SCM_MAX_FD).
SOCKETS_PER_PACKET = 64

# Stands for a descriptor that this process could not receive.
NOT_RECEIVED = -1

_QUEUE_FULL = frozenset((errno.ETOOMANYREFS, errno.ENOBUFS, errno.ENOMEM))

_DESCRIPTOR_BYTES = array.array("i").itemsize


def handoff_pair() -> tuple[socket.socket, socket.socket]:
    """(the router's end, the shard's end); both non-blocking."""
    router_end, shard_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    return router_end, shard_end


def send_descriptors(sock: socket.socket, descriptors: list[int]) -> bool:
    """Send copies of 1..SOCKETS_PER_PACKET descriptors in one packet; the caller closes the originals.

    False when the queue is full or the other end is gone; nothing was sent then.
    """
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
    try:
        sock.sendmsg([bytes([len(descriptors)])], rights, socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
    except (BlockingIOError, InterruptedError, BrokenPipeError, ConnectionResetError, ConnectionRefusedError):
        return False
    except OSError as error:
        # Too many descriptors in flight (ETOOMANYREFS), or no memory for them now: the same as a full queue.
        if error.errno in _QUEUE_FULL:
            return False
        raise
    return True


def receive_descriptors(sock: socket.socket) -> list[int] | None:
    """The descriptors of the next packet, close-on-exec and owned by the caller.

    [] when no packet is waiting, None when the other end has closed. A process at its descriptor limit does not get
    all of them: the kernel closes the others, which disconnects their clients. Each of those is a NOT_RECEIVED.
    """
    try:
        data, ancillary, _flags, _address = sock.recvmsg(
            1, socket.CMSG_LEN(SOCKETS_PER_PACKET * _DESCRIPTOR_BYTES), socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT
        )
    except (BlockingIOError, InterruptedError):
        return []
    except ConnectionResetError:
        return None
    if not data:
        return None
    received = array.array("i")
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            received.frombytes(payload[: len(payload) - len(payload) % _DESCRIPTOR_BYTES])
    return list(received) + [NOT_RECEIVED] * (data[0] - len(received))
