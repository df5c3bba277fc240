"""The records of a history: one for everything that a client did or saw, in a file of a JSON object per line.

Times are nanoseconds of the host's monotonic clock. `at` of an operation is taken before its first byte is written,
`at` of what a client sees after its bytes were read. The broker acted between the two. Operations without an answer of
their own (SUB, UNSUB, PUB) are complete with the next Pong of their connection.

Records of one connection are in the order in which it wrote and read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec


class Record(msgspec.Struct, frozen=True, tag_field="is", gc=False, omit_defaults=True):
    """The base of all records."""

    at: int


class Began(Record, frozen=True, tag="began"):
    """The first record."""

    broker: str
    seed: int
    clients: int
    servers: int = 1


class Open(Record, frozen=True, tag="open"):
    """A connection that was greeted with a PONG. `place`: the shard or server that it met."""

    conn: int
    place: str


class Sub(Record, frozen=True, tag="sub"):
    conn: int
    sid: int
    pattern: str
    queue: str = ""


class Unsub(Record, frozen=True, tag="unsub"):
    """`most` 0: at once; otherwise after so many messages since SUB."""

    conn: int
    sid: int
    most: int = 0


class Pub(Record, frozen=True, tag="pub"):
    """`message`: its number, which is in the payload. `size`: of the payload, in bytes.

    `crosses`: it answers a request of another account, so the shard that has led the request there leads it back.
    """

    conn: int
    message: int
    subject: str
    size: int
    wants_answer: bool = False
    crosses: bool = False


class Ping(Record, frozen=True, tag="ping"):
    conn: int


class Pong(Record, frozen=True, tag="pong"):
    conn: int


class Msg(Record, frozen=True, tag="msg"):
    """A delivery."""

    conn: int
    sid: int
    message: int
    subject: str
    size: int


class Nobody(Record, frozen=True, tag="nobody"):
    """503: nobody responds to this request."""

    conn: int
    message: int


class Close(Record, frozen=True, tag="close"):
    """The client ends its connection: "shut" closes its half and reads until the end, "reset" sends a reset."""

    conn: int
    how: str


class Closed(Record, frozen=True, tag="closed"):
    """The end of a connection, seen by its client. Without a Close before it the broker ended it."""

    conn: int


class Odd(Record, frozen=True, tag="odd"):
    """Something that no client should see: an error, or bytes that are no operation."""

    conn: int
    text: str


class Fault(Record, frozen=True, tag="fault"):
    """From here to the next Mended, connections to these places may end."""

    what: str
    places: tuple[str, ...]


class Mended(Record, frozen=True, tag="mended"):
    """The last fault is over: it does not excuse the end of connections that are opened from now on."""


class Ended(Record, frozen=True, tag="ended"):
    """The last record: every client has had its time to get its last PONG."""


Event = (
    Began | Open | Sub | Unsub | Pub | Ping | Pong | Msg | Nobody | Close | Closed | Odd | Fault | Mended | Ended
)  # fmt: skip


class Recorder:
    """Writes a history."""

    def __init__(self, file: BinaryIO) -> None:
        self._encode = msgspec.json.Encoder().encode
        self._write = file.write
        self.count = 0

    def __call__(self, event: Event) -> None:
        self._write(self._encode(event) + b"\n")
        self.count += 1


def read(path: Path) -> Iterator[Event]:
    """The events in this file."""
    decoder = msgspec.json.Decoder(Event)
    with path.open("rb") as file:
        for line in file:
            yield decoder.decode(line)


def write(path: Path, events: Iterable[Event]) -> None:
    """A history that exists already."""
    with path.open("wb") as file:
        recorder = Recorder(file)
        for event in events:
            recorder(event)
