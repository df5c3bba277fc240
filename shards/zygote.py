"""`python -P -m gnatswarm.shards.zygote FD ROUTER_PID`: a process that forks shards.

It has imported all modules that a shard needs. Imports are most of a shard's start; here they are done once, while the
router itself starts, and a shard is then ready in a few milliseconds. The zygote never runs an event loop or a thread,
because a fork would not copy those. It forks twice for each shard: the process in between exits at once, and the
router, which adopts orphans, becomes the shard's parent. So the router reaps the shard, and the shard is killed when
the router dies. The zygote ends when the router ends.

Packets on its SOCK_SEQPACKET socket: `F` with descriptors (SCM_RIGHTS) and the numbers that they shall have in the
shard, the control channel's first; the answer is the shard's pid or -errno. `D` with the path of a link directory, to
be removed if the router dies without removing it.
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

from gnatswarm.shards.boundary import linkdir, parentage

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
        """Read one packet. False: the router is gone."""
        try:
            data, ancillary, _flags, _address = self.sock.recvmsg(
                MAX_PACKET_BYTES, socket.CMSG_SPACE(16 * 4), socket.MSG_CMSG_CLOEXEC | flags
            )
        except ConnectionError:  # the router died with an answer of ours unread
            return False
        if data[:1] == b"D":
            self.link_dirs.append(os.fsdecode(data[1:]))
        elif data[:1] == b"F":
            descriptors = array.array("i")
            for _level, _kind, payload in ancillary:
                descriptors.frombytes(payload)
            self.requests.append((descriptors.tolist(), list(REQUEST.unpack(data)[1 : 1 + len(descriptors)])))
        return bool(data)

    def on_term(self, *_: object) -> None:
        """Exit if the router died while we were importing. If its whole group was signalled, the router decides."""
        if os.getppid() != self.router_pid:
            self.go()

    def go(self) -> None:
        """Exit at once. Removes the link directories if the router is dead."""
        if os.getppid() != self.router_pid:
            # The router may have sent the path of its directory while we were importing.
            with contextlib.suppress(OSError):
                while self.read(socket.MSG_DONTWAIT):
                    pass
            for path in self.link_dirs:
                self.remove(path)
        os._exit(0)

    def remove(self, path: str) -> None:
        """Remove a link directory; repeats while a shard that was just starting still binds its socket there."""
        give_up_at = time.monotonic() + ROUTER_DEATH_S
        linkdir.remove(path)
        while os.path.exists(path) and time.monotonic() < give_up_at:
            time.sleep(0.005)
            linkdir.remove(path)


def main(fd: int, router_pid: int) -> int:
    """Serve requests until the router is gone."""
    zygote = Zygote(fd, router_pid)
    signal.signal(signal.SIGTERM, zygote.on_term)
    parentage.die_with_parent(signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    if os.getppid() != router_pid:  # it died before we asked
        zygote.go()
    parentage.name_process("gnat-zygote")
    # Imports allocate much and leave no garbage; collecting during them would cost a fifth of the start.
    import gc

    gc.disable()
    import gnatswarm.shards.worker

    gc.freeze()
    gc.enable()
    # From here on the end of the socket shows that the router is dead. Forks inherit that SIGTERM is ignored.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while zygote.read():
        while zygote.requests:
            descriptors, numbers = zygote.requests.pop()
            _fork_shard(zygote.sock, descriptors, numbers, gnatswarm.shards.worker.run)
            for descriptor in descriptors:
                os.close(descriptor)
    # A dying router closes its sockets a moment before the kernel gives us another parent. One that lives and closes
    # them kills us.
    give_up_at = time.monotonic() + ROUTER_DEATH_S
    while os.getppid() == router_pid and time.monotonic() < give_up_at:
        time.sleep(0.001)
    zygote.go()
    return 0


def _answer(requests: socket.socket, value: int) -> None:
    with contextlib.suppress(ConnectionError):  # the router is gone; the next read reports it
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
    """Run the shard in this process; never returns."""
    code = 1
    try:
        while os.getppid() == between:
            os.sched_yield()
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
    """Move each descriptor to its number, which another of them may occupy at first."""
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
