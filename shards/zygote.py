"""`python -P -m shards.zygote FD ROUTER_PID`: a process that has imported all a shard needs, and forks shards from it.

Importing is most of what a shard's start costs; here it is paid once, beside the router's own start, and a shard is
there in a few milliseconds. It never runs an event loop or a thread, so that a fork of it is whole. A shard is forked
twice: its first parent ends at once, and the router, which adopts orphans, becomes the parent of the shard: it reaps
it, and its death is the shard's. Ends when the router does.

Packets on its SOCK_SEQPACKET: `F` and the numbers that the descriptors sent along (SCM_RIGHTS) should have in the
shard, the control channel's first, answered by the shard's pid or -errno; `D` and the path of a link directory, to be
removed should the router die without doing so.
"""

from __future__ import annotations

import array
import contextlib
import os
import signal
import socket
import struct
import sys
import time

from shards import linkdir, parentage

REQUEST = struct.Struct("=c16i")  # b"F", descriptor numbers in the shard, the rest -1
ANSWER = struct.Struct("=i")


MAX_PACKET_BYTES = 4096
ROUTER_DEATH_S = 2.0


class Zygote:
    """Serves the requests that come over this socket."""

    def __init__(self, fd: int, router_pid: int) -> None:
        self.router_pid = router_pid
        self.sock = socket.socket(fileno=fd)
        self.link_dirs: list[str] = []
        self.requests: list[tuple[list[int], list[int]]] = []

    def read(self, flags: int = 0) -> bool:
        """Take one packet in. False: the router is gone."""
        try:
            data, ancillary, _flags, _address = self.sock.recvmsg(
                MAX_PACKET_BYTES, socket.CMSG_SPACE(16 * 4), socket.MSG_CMSG_CLOEXEC | flags
            )
        except ConnectionError:  # gone with an answer of ours unread
            return False
        if data[:1] == b"D":
            self.link_dirs.append(os.fsdecode(data[1:]))
        elif data[:1] == b"F":
            descriptors = array.array("i")
            for _level, _kind, payload in ancillary:
                descriptors.frombytes(payload)
            self.requests.append((descriptors.tolist(), list(REQUEST.unpack(data)[1 : 1 + len(descriptors)])))
        return bool(data)

    def go(self, *_: object) -> None:
        """The end, at once; also as a signal handler. A router that still lives tidies up itself."""
        if os.getppid() != self.router_pid:
            # It may have told us of its directory while we were importing.
            with contextlib.suppress(OSError):
                while self.read(socket.MSG_DONTWAIT):
                    pass
            for path in self.link_dirs:
                self.remove(path)
        os._exit(0)

    def remove(self, path: str) -> None:
        """A shard that was just starting may bind its socket there while we look: then there is one more to remove."""
        give_up_at = time.monotonic() + ROUTER_DEATH_S
        linkdir.remove(path)
        while os.path.exists(path) and time.monotonic() < give_up_at:
            time.sleep(0.005)
            linkdir.remove(path)


def main(fd: int, router_pid: int) -> int:
    """Serve requests until the router is gone."""
    zygote = Zygote(fd, router_pid)
    signal.signal(signal.SIGTERM, zygote.go)
    parentage.die_with_parent(signal.SIGTERM)
    parentage.name_process("gnat-zygote")
    # Allocations of imports are not garbage; looking for some among them costs a fifth of the start.
    import gc

    gc.disable()
    import shards.worker

    gc.freeze()
    gc.enable()
    while zygote.read():
        while zygote.requests:
            descriptors, numbers = zygote.requests.pop()
            _fork_shard(zygote.sock, descriptors, numbers, shards.worker.run)
            for descriptor in descriptors:
                os.close(descriptor)
    # A dying process closes its sockets a moment before it stops being a parent. One that lives and closes them kills
    # us.
    give_up_at = time.monotonic() + ROUTER_DEATH_S
    while os.getppid() == router_pid and time.monotonic() < give_up_at:
        time.sleep(0.001)
    zygote.go()
    return 0


def _answer(requests: socket.socket, value: int) -> None:
    with contextlib.suppress(ConnectionError):  # the router is gone, as the next read tells
        requests.send(ANSWER.pack(value))


def _fork_shard(requests: socket.socket, descriptors: list[int], numbers: list[int], run: object) -> None:
    try:
        between = os.fork()
    except OSError as error:
        _answer(requests, -(error.errno or 1))
        return
    if between:
        os.waitpid(between, 0)
        return
    between = os.getpid()
    try:
        pid = os.fork()
    except OSError as error:
        _answer(requests, -(error.errno or 1))
        os._exit(1)
    if pid:
        _answer(requests, pid)
        os._exit(0)
    _become_shard(requests, descriptors, numbers, between, run)


def _become_shard(
    requests: socket.socket, descriptors: list[int], numbers: list[int], between: int, run: object
) -> None:
    """Never returns."""
    code = 1
    try:
        while os.getppid() == between:
            os.sched_yield()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        requests.close()
        place_descriptors(descriptors, numbers)
        parentage.name_process("gnat-shard")
        assert callable(run)
        code = run(numbers[0])
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


def place_descriptors(descriptors: list[int], numbers: list[int]) -> None:
    """Move each descriptor to its number; any of the numbers may be in use by another of them."""
    import fcntl

    above = max(*descriptors, *numbers, 2) + 1
    moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, above) for descriptor in descriptors]
    for descriptor in descriptors:
        os.close(descriptor)
    for descriptor, number in zip(moved, numbers, strict=True):
        os.dup2(descriptor, number, inheritable=False)
        os.close(descriptor)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
