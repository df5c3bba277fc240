"""Replies that are due to requests between accounts, written down for the shard that passes them on from now on.

`broker.reply_prefixes` sends them over a link, whose version is theirs too. What cannot be read ends the link.
"""

from typing import Annotated

import msgspec

from gnatswarm.broker.service_latency import Measured

# What one frame carries, about: the bytes of so many replies at most, which take some ms at either end. Clients are
# served between two frames, and PONGs that wait for either shard wait for no other frame.
PIECE_REPLIES = 2000
PIECE_BYTES = 256 * 1024

Micros = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class DueReply(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A reply that may come. Times are µs of the host's monotonic clock, which all shards share."""

    subject: bytes  # the generated one
    importer: bytes  # the account that waits for it …
    exporter: bytes  # … and the one that is asked
    reply: bytes  # where it goes
    kind: Annotated[int, msgspec.Meta(ge=0, le=2)]  # broker.rules.ResponseKind
    asked_us: Micros
    threshold_us: Micros  # how long it may take
    measured: Measured | None = None  # an export with `latency` wants to know how long it takes


# A table of requests is named by so many digits; the rest is random.
LANE_DIGITS = 4
_HEX_DIGITS = frozenset(b"0123456789abcdef")
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(tuple[DueReply, ...])


def size_of(one: DueReply) -> int:
    """About how many bytes of a frame it has."""
    return len(one.subject) + len(one.reply) + len(one.importer) + len(one.exporter) + 32


def encoded(replies: list[DueReply]) -> bytes:
    """The replies as MessagePack, in their order."""
    return _encoder.encode(replies)


def decoded(words: bytes, prefix: bytes) -> tuple[DueReply, ...]:
    """One piece, of replies with this prefix. ValueError: it is not well-formed."""
    try:
        found = _decoder.decode(words)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"bad replies in RDUE: {error}") from None
    for one in found:
        lane = one.subject[len(prefix) : len(prefix) + LANE_DIGITS]
        if not one.subject.startswith(prefix) or len(lane) < LANE_DIGITS or not _HEX_DIGITS.issuperset(lane):
            raise ValueError(f"bad replies in RDUE: {one.subject!r} has not the form of those with {prefix!r}")
    return found
