"""`python -P -m shards.zygote FD`: one process that has imported all a shard needs, and forks shards when asked.

Importing is most of what a shard's start costs; here it is paid once, beside the router's own start, and a shard is
there in a few milliseconds. It never runs an event loop or a thread, so that a fork of it is whole. A shard is forked
twice: its first parent ends at once, and the router, which adopts orphans, becomes the parent of the shard: it reaps
it, and its death is the shard's. Ends when the router does.

A request is one SOCK_SEQPACKET packet: the numbers that its descriptors should have in the shard, the first one the
control channel's, and the descriptors (SCM_RIGHTS). The answer is the shard's pid, or -errno.
"""

from __future__ import annotations

import array
import os
import signal
import socket
import struct
import sys

from shards import parentage

REQUEST = struct.Struct("=16i")  # descriptor numbers in the shard, the rest -1
ANSWER = struct.Struct("=i")


def main(fd: int) -> int:
    """Serve requests until the router is gone."""
    parentage.die_with_parent(signal.SIGKILL)
    parentage.name_process("gnat-zygote")
    # Allocations of imports are not garbage; looking for some among them costs a fifth of the start.
    import gc

    gc.disable()
    import shards.worker

    gc.freeze()
    gc.enable()
    with socket.socket(fileno=fd) as requests:
        while True:
            data, ancillary, _flags, _address = requests.recvmsg(
                REQUEST.size, socket.CMSG_SPACE(16 * 4), socket.MSG_CMSG_CLOEXEC
            )
            if len(data) != REQUEST.size:
                return 0
            descriptors = array.array("i")
            for _level, _kind, payload in ancillary:
                descriptors.frombytes(payload)
            numbers = list(REQUEST.unpack(data))[: len(descriptors)]
            _fork_shard(requests, descriptors.tolist(), numbers, shards.worker.run)
            for descriptor in descriptors:
                os.close(descriptor)


def _fork_shard(requests: socket.socket, descriptors: list[int], numbers: list[int], run: object) -> None:
    try:
        between = os.fork()
    except OSError as error:
        requests.send(ANSWER.pack(-(error.errno or 1)))
        return
    if between:
        os.waitpid(between, 0)
        return
    between = os.getpid()
    try:
        pid = os.fork()
    except OSError as error:
        requests.send(ANSWER.pack(-(error.errno or 1)))
        os._exit(1)
    if pid:
        requests.send(ANSWER.pack(pid))
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
    sys.exit(main(int(sys.argv[1])))
