"""What keeper and router say to each other: packets on a SOCK_SEQPACKET socket pair, each a msgspec struct.

The keeper (`gnatswarm.keeper`) is the process that a user starts, the parent of router and shards. It does what the
router asks, and decides nothing but this: whether a router that has died is replaced. Packets arrive whole or not at
all, so a router that is killed leaves no half of one. Descriptors travel with the packet that is about them
(SCM_RIGHTS). Used by both, and by shards for their lifeline.
"""

import array
import contextlib
import os
import socket
import sys

import msgspec

# Increased with every change of a packet or of Succession, but for a field of Succession that has a default, and that a
# program of before need not know: of two programs, the older one passes over it, or does not send it.
KEEPING_VERSION = 2

MAX_PACKET_BYTES = 64 * 1024
# A shard's control channel, page, listeners and hand-off queue, and room for more of each.
MAX_DESCRIPTORS = 24

# The held descriptor that says what the broker is (`router.supervision.record`). Without it a router is not replaced.
RECORD = "record"

_DESCRIPTOR_BYTES = array.array("i").itemsize


class Packet(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=True):
    """Base of all packets: an array whose first element is the class name."""


# ---- router → keeper ----


class Launch(Packet, frozen=True):
    """Start a shard with these descriptors, the control channel's first; answered by Launched, in order."""

    shard: int
    numbers: list[int]  # that the descriptors shall have in the shard
    command: list[str]  # run this by exec, with the control channel's and the lifeline's number; []: fork


class Kill(Packet, frozen=True):
    """SIGKILL this shard, if it has not been reaped."""

    pid: int


class Reach(Packet, frozen=True):
    """Give this shard the descriptor that comes along: its end of a new control channel."""

    pid: int


class Hold(Packet, frozen=True):
    """Keep the descriptor that comes along, for the next router, in place of the last one of that name.

    Answered by Held, in order.
    """

    name: str


class Release(Packet, frozen=True):
    """Close what is held under this name."""

    name: str


class Watch(Packet, frozen=True):
    """Remove this link directory, pid file or ports file when the broker has ended and it is still there."""

    path: str


class Notify(Packet, frozen=True):
    """Send this to the service manager at this address, which listens to the main process alone."""

    address: str
    text: str


class Forgotten(Packet, frozen=True):
    """What follows from this shard's end has been done."""

    pid: int


class Succeed(Packet, frozen=True):
    """I am about to end: run the next router by this command. Until it says TakenOver, the one before may come back."""

    command: list[str]


class TakenOver(Packet, frozen=True):
    """I serve in the place of the router before me, which is not needed any more."""


class Renew(Packet, frozen=True):
    """Become this program, in place, with everything that you hold; answered by Renewed."""

    command: list[str]


class FormatsWanted(Packet, frozen=True):
    """Which versions of formats do your shards speak? Answered by Formats."""


class Ending(Packet, frozen=True):
    """The router ends because the broker does: end with this exit code."""

    code: int


# ---- keeper → router ----


class Launched(Packet, frozen=True):
    """The pid of the shard, or -errno."""

    pid: int


class Held(Packet, frozen=True):
    """The answer to Hold."""

    name: str
    is_held: bool  # False: there was no room for one more descriptor here, and the last one is held still


class Exited(Packet, frozen=True):
    """A shard was reaped; repeated to the next router until Forgotten."""

    pid: int
    status: int  # as of waitpid(2)


class Signalled(Packet, frozen=True):
    """The broker was sent this signal."""

    number: int


class Renewed(Packet, frozen=True):
    """I am the program that Renew named; or why not."""

    error: str = ""


class Formats(Packet, frozen=True):
    """The versions, by the formats' names."""

    versions: dict[str, int]


ToKeeper = (
    Launch | Kill | Reach | Hold | Release | Watch | Notify | Forgotten | Ending
    | Succeed | TakenOver | Renew | FormatsWanted
)  # fmt: skip
ToRouter = Launched | Held | Exited | Signalled | Renewed | Formats

_encoder = msgspec.msgpack.Encoder()


class Child(msgspec.Struct, frozen=True):
    """A shard as the keeper knows it."""

    pid: int
    shard: int
    status: int | None = None  # of waitpid(2); None: it runs
    lifeline: int = -1  # the keeper's end of it, for the next keeper


class Succession(msgspec.Struct, frozen=True):
    """What a program gets that becomes the keeper or a router of a running broker, by exec. Descriptors are open."""

    is_router: bool
    sock: int  # its end of the channel between both
    keeper_pid: int
    held: dict[str, int]
    children: list[Child]
    link_dirs: list[str]
    reason: str = ""  # for a router: how the last one ended; "": it made room for this one
    owner: int = -1
    router_pid: int = 0
    is_stopping: bool = False
    theirs: int = -1  # for a keeper: a copy of the router's end of the channel
    version: int = KEEPING_VERSION


class Legacy(msgspec.Struct, frozen=True):
    """What a router that has died leaves to the next one."""

    reason: str  # how it ended, for the log; "": it made room
    held: dict[str, int]  # descriptors by name
    children: list[Child]
    link_dirs: list[str]


class Post(msgspec.Struct, frozen=True):
    """What a router gets from its keeper at its start."""

    sock: socket.socket
    keeper_pid: int
    legacy: Legacy | None = None  # None: the broker starts
    is_successor: bool = False  # another version than the keeper, to which a router has made room
    unfit: str = ""  # how the successor that we are back for has ended


def written(succession: Succession) -> int:
    """A descriptor with this, for the program that follows. OSError."""
    descriptor = os.memfd_create("gnatswarm-succession", 0)
    try:
        os.pwrite(descriptor, _encoder.encode(succession), 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_succession(descriptor: int) -> Succession:
    """What `written` has written; closes the descriptor. OSError; msgspec.DecodeError for another version."""
    try:
        data = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
    finally:
        os.close(descriptor)
    succession = msgspec.msgpack.decode(data, type=Succession)
    for number in (succession.sock, *succession.held.values(), succession.owner, succession.theirs):
        if number >= 0:
            os.set_inheritable(number, False)
    for child in succession.children:
        if child.lifeline >= 0:
            os.set_inheritable(child.lifeline, False)
    return succession


def send(sock: socket.socket, packet: Packet, descriptors: tuple[int, ...] | list[int] = (), flags: int = 0) -> None:
    """Send one packet, with copies of these descriptors. OSError."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    sock.sendmsg([_encoder.encode(packet)], rights, socket.MSG_NOSIGNAL | flags)


def receive(
    sock: socket.socket, decoder: msgspec.msgpack.Decoder[Packet], flags: int = 0
) -> tuple[Packet, list[int]] | None:
    """The next packet and its descriptors, close-on-exec and owned by the caller; None: the other end is gone.

    BlockingIOError with MSG_DONTWAIT when there is none; msgspec.DecodeError for anything that is no packet.
    """
    try:
        data, ancillary, _flags, _address = sock.recvmsg(
            MAX_PACKET_BYTES, socket.CMSG_SPACE(MAX_DESCRIPTORS * _DESCRIPTOR_BYTES), socket.MSG_CMSG_CLOEXEC | flags
        )
    except ConnectionError:  # it died with a packet of ours unread
        return None
    if not data:
        return None
    descriptors = array.array("i")
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(payload[: len(payload) - len(payload) % _DESCRIPTOR_BYTES])
    return decoder.decode(data), descriptors.tolist()


def decoder_of(expected: object) -> msgspec.msgpack.Decoder[Packet]:
    """A decoder for one direction: ToKeeper or ToRouter."""
    return msgspec.msgpack.Decoder(expected)


def send_channel(lifeline: socket.socket, descriptor: int) -> None:
    """Give a shard its end of a new control channel. A shard that is dead, or too busy to take it, gets none."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))]
    with contextlib.suppress(OSError):
        lifeline.sendmsg([b"C"], rights, socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)


def receive_channel(lifeline: socket.socket) -> int | None:
    """A shard's end of a new control channel; -1: nothing has come, None: the keeper is dead."""
    try:
        data, ancillary, _flags, _address = lifeline.recvmsg(
            1, socket.CMSG_SPACE(_DESCRIPTOR_BYTES), socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT
        )
    except (BlockingIOError, InterruptedError):
        return -1
    except ConnectionError:
        return None
    if not data:
        return None
    for _level, _kind, payload in ancillary:
        return int.from_bytes(payload[:_DESCRIPTOR_BYTES], sys.byteorder)
    return -1
