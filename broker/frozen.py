"""One client connection, written down: everything that the engine knows of it, as a versioned record.

`broker.freezer` reads it off a connection and puts it into another one, in this shard or in the next. Not in it: who
the client is and what it may (its session and its permissions), and its socket. A record that is not understood
is refused before anything has changed.
"""

from typing import Annotated

import msgspec

# Increased with every change of a field, or of what one means.
MOVE_RECORD_VERSION = 6

# Bounds, so that no length in a record leads to a large allocation. One message with its control line may be half read;
# unsent output is bounded by the client's own max_pending when it is put in. A sid, a subject and a queue name each
# fit into one control line.
MOST_RECORD_BYTES = 256 * 1024 * 1024
MOST_NAME_BYTES = 65_000
MOST_HALF_READ_BYTES = 64 * 1024 * 1024 + 2 * 128 * 1024

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Name = Annotated[bytes, msgspec.Meta(max_length=MOST_NAME_BYTES)]


class RecordRefused(Exception):
    """A record cannot be used here; the text says why. Nothing has changed."""


class FrozenSubscription(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One subscription of a client."""

    sid: Annotated[bytes, msgspec.Meta(min_length=1, max_length=MOST_NAME_BYTES)]
    subject: Annotated[bytes, msgspec.Meta(min_length=1, max_length=MOST_NAME_BYTES)]
    queue: Name = b""  # b"": a plain one
    delivered: Count = 0  # messages since its SUB
    max_msgs: Count = 0  # it ends with the max_msgs-th (UNSUB); 0: no limit


class FrozenCount(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """How many messages one subscription has had since its SUB."""

    sid: Annotated[bytes, msgspec.Meta(min_length=1, max_length=MOST_NAME_BYTES)]
    delivered: Count


class FrozenReply(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A reply subject that the client may publish to though its permissions do not name it."""

    subject: bytes  # of any length: whoever asks makes it up
    asked_us: Count  # when it got the request, in µs of the monotonic clock
    replies: Count  # how often it has replied


class FrozenRequest(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A request of the client to which nobody responds, which it is still to be told."""

    subject: Annotated[bytes, msgspec.Meta(min_length=1)]
    reply: Annotated[bytes, msgspec.Meta(min_length=1)]


class FrozenClient(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One client connection. Times are µs of the host's monotonic clock, which all shards share; 0: never."""

    version: int = MOVE_RECORD_VERSION
    cid: Count
    account: Name
    subscriptions: tuple[FrozenSubscription, ...] = ()
    # of a client whose subscriptions were offered: what has become of them since then, where Counts did not say it
    counts: tuple[FrozenCount, ...] = ()  # of those that have had messages
    ended: tuple[Name, ...] = ()  # sids of those that have had as many as they may
    replies: tuple[FrozenReply, ...] = ()  # oldest first
    unanswered: tuple[FrozenRequest, ...] = ()
    # what its CONNECT asked for
    is_verbose: bool = True
    is_pedantic: bool = True
    echoes: bool = True
    takes_headers: bool = False
    wants_no_responders: bool = False
    names_subject: bool = False
    protocol: Annotated[int, msgspec.Meta(ge=0, le=255)] = 0
    # input that was read and not carried out, and output that the kernel has not taken
    unread: Annotated[bytes, msgspec.Meta(max_length=MOST_HALF_READ_BYTES)] = b""
    half_read_bytes: Annotated[int, msgspec.Meta(ge=0, le=MOST_HALF_READ_BYTES)] = 0
    #   not 0: `unread` is the beginning of one message of that many bytes, control line included
    unsent: bytes = b""
    # counters
    in_msgs: Count = 0
    in_bytes: Count = 0
    out_msgs: Count = 0
    out_bytes: Count = 0
    publish_waits: Count = 0  # how often publish_limits made it wait; since when, without a break; until when
    limited_us: Count = 0
    limited_until_us: Count = 0
    # when it was active
    active_us: Count = 0
    taken_us: Count = 0  # when the kernel last took output
    pinged_us: Count = 0
    rtt_us: Count = 0
    pings_out: Annotated[int, msgspec.Meta(ge=0, le=2**31)] = 0
    was_ponged: bool = False
    info_due: bytes | None = None  # an INFO that waits for its next PONG


class Shift(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Members of a queue group that move: so many fewer at the old shard, and more at the new one."""

    account: Name
    subject: Name
    queue: Name
    members: Annotated[int, msgspec.Meta(ge=1, le=999_999_999)]


class OfferedClient(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A client that is to move; the rest of its record follows when it does."""

    cid: Count
    account: Name
    words: bytes  # of the old shard's MovesHost to the new one's
    subscriptions: tuple[msgspec.Raw, ...]  # a FrozenSubscription each: there may be many, read in several turns


class Offer(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A part of the connections that are to move together.

    The first of its clients may be the last of the part before, with further subscriptions.
    """

    version: int
    shards: int  # those that the old one is linked to, and itself, a bit each: the new one must know the same
    is_last: bool
    clients: tuple[msgspec.Raw, ...]  # an OfferedClient each (encoded_client): they are read one after the other
    shifts: tuple[Shift, ...]  # of the members of queue groups in this part


class Counts(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What has become of some subscriptions of a client since they were offered."""

    cid: Count
    counts: tuple[FrozenCount, ...]
    ended: tuple[Name, ...]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(FrozenClient)
_subscription_decoder = msgspec.msgpack.Decoder(FrozenSubscription)
_client_decoder = msgspec.msgpack.Decoder(OfferedClient)
_offer_decoder = msgspec.msgpack.Decoder(Offer)
_shifts_decoder = msgspec.msgpack.Decoder(tuple[Shift, ...])
_counts_decoder = msgspec.msgpack.Decoder(Counts)


def encoded(frozen: FrozenClient) -> bytes:
    """The record as bytes: its version in 2 bytes, big-endian, and MessagePack."""
    return frozen.version.to_bytes(2, "big") + _encoder.encode(frozen)


def decoded(data: bytes) -> FrozenClient:
    """The record that `encoded` wrote; RecordRefused for anything else. Allocates nothing for an oversized one."""
    if len(data) > MOST_RECORD_BYTES:
        raise RecordRefused(f"a record of {len(data):,} bytes; at most {MOST_RECORD_BYTES:,} are taken")
    version = int.from_bytes(data[:2], "big")
    if len(data) < 2 or version != MOVE_RECORD_VERSION:
        found = f"of version {version}" if len(data) >= 2 else "without a version"
        raise RecordRefused(f"a record {found}; this broker understands version {MOVE_RECORD_VERSION}")
    try:
        frozen = _decoder.decode(memoryview(data)[2:])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RecordRefused(f"a record that is truncated or damaged: {error}") from None
    check(frozen)
    return frozen


def check(frozen: FrozenClient) -> None:
    """RecordRefused where its fields contradict each other, or have another version."""
    if frozen.version != MOVE_RECORD_VERSION:
        raise RecordRefused(
            f"a record of version {frozen.version}; this broker understands version {MOVE_RECORD_VERSION}"
        )
    if frozen.half_read_bytes and len(frozen.unread) >= frozen.half_read_bytes:
        raise RecordRefused(
            f"a message of {frozen.half_read_bytes:,} bytes of which {len(frozen.unread):,} are half read"
        )
    sids = {one.sid for one in frozen.subscriptions}
    if len(sids) != len(frozen.subscriptions):
        raise RecordRefused(f"{len(frozen.subscriptions):,} subscriptions with {len(sids):,} different sids")
    for one in frozen.subscriptions:
        _check_subscription(one)


def _check_subscription(one: FrozenSubscription) -> None:
    if one.max_msgs and one.delivered >= one.max_msgs:
        raise RecordRefused(f"subscription {one.sid!r} has had {one.delivered:,} messages of at most {one.max_msgs:,}")


def encoded_subscription(subscription: FrozenSubscription) -> msgspec.Raw:
    """One subscription of an offered client."""
    return msgspec.Raw(_encoder.encode(subscription))


def decoded_subscription(raw: msgspec.Raw) -> FrozenSubscription:
    """The subscription that `encoded_subscription` wrote; RecordRefused for anything else."""
    try:
        one = _subscription_decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RecordRefused(f"an offered subscription that is truncated or damaged: {error}") from None
    _check_subscription(one)
    return one


def encoded_client(client: OfferedClient) -> msgspec.Raw:
    """One client of an offer."""
    return msgspec.Raw(_encoder.encode(client))


def decoded_client(raw: msgspec.Raw) -> OfferedClient:
    """The client that `encoded_client` wrote; RecordRefused for anything else."""
    try:
        return _client_decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RecordRefused(f"an offered client that is truncated or damaged: {error}") from None


def encoded_offer(offer: Offer) -> bytes:
    """The offer as bytes: its version in 2 bytes, big-endian, and MessagePack."""
    return offer.version.to_bytes(2, "big") + _encoder.encode(offer)


def decoded_offer(data: bytes) -> Offer:
    """The offer that `encoded_offer` wrote; RecordRefused for anything else."""
    version = int.from_bytes(data[:2], "big")
    if version != MOVE_RECORD_VERSION:
        raise RecordRefused(f"an offer of version {version}; this shard understands version {MOVE_RECORD_VERSION}")
    try:
        return _offer_decoder.decode(memoryview(data)[2:])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:  # (what is kept raw, nested too deeply)
        raise RecordRefused(f"an offer that is truncated or damaged: {error}") from None


def encoded_shifts(shifts: tuple[Shift, ...]) -> bytes:
    """The shifts as MessagePack."""
    return _encoder.encode(shifts)


def decoded_shifts(data: bytes) -> tuple[Shift, ...]:
    """The shifts that `encoded_shifts` wrote; ValueError for anything else."""
    try:
        return _shifts_decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"bad shifts in MSHIFT: {error}") from None


def encoded_counts(counts: Counts) -> bytes:
    """The counts as MessagePack."""
    return _encoder.encode(counts)


def decoded_counts(data: bytes) -> Counts:
    """The counts that `encoded_counts` wrote; ValueError for anything else."""
    try:
        return _counts_decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"bad counts in MCOUNT: {error}") from None
