"""Bytes of a joined sibling on its link, between operations of clients of the same shard."""

from __future__ import annotations

import itertools
import random
import zlib
from collections.abc import Iterator

from tests.fuzz.fuzz_link import Step, unharmed
from tests.fuzz.fuzz_routewire import parsed_alike
from tests.fuzz.programs import PATTERNS, QUEUES, SUBJECTS, TENDER, cut
from tests.fuzz.targets import SEPARATOR

WORDS = [*TENDER, *SUBJECTS, *PATTERNS, *QUEUES[2:], SEPARATOR + b"0", SEPARATOR + b"="]
WORDS += [
    b"RMSG $G ",
    b"HMSG $G ",
    b"QMSG 1 0 0 0 $G ",
    b"QHMG 1 0 0 0 $G ",
    b"RS+ $G ",
    b"RS- $G ",
    b"SLOW $G ",
    b"NONE 7 $G a ",
    b"| ",
    b"+ ",
]
WORDS += [b"MOVE 7 5\r\n", b"MPART 7 5\r\n", b"MNEXT 7\r\n", b"MCOUNT 7 5\r\n", b"MSTOP 7\r\n"]
WORDS += [
    b"MSHIFT 1 7 1\r\n\x90\r\n",
    b"MARKQ 1 7 0\r\n",
    b"MARK 1 7\r\n",
    b"MDONE 1 7 1\r\n",
    b"MOVED 1 7 0 0\r\n\r\n",
]
WORDS += [b"RTAKE _R_.00AAAAAAAA. 1\r\n", b"ROWN _R_.00AAAAAAAA. 1\r\n", b"RGOES _R_.00AAAAAAAA. 1\r\n"]
WORDS += [b"RDROP _R_.00AAAAAAAA.\r\n", b"RDUE _R_.00AAAAAAAA. 1 1\r\n\x90\r\n"]
WORDS += [b"QACK ", b"QNAK ", b"QASK ", b"QEND 1 $G a q", b"INFO {}", b"CONNECT {}", b"PONG\r\n", b"BYE\r\n"]
# Only so many bytes of a part are parsed at each length.
STEADY_BYTES = 300


def check(data: bytes) -> None:
    """A sibling may say anything: the worst that happens is that its link is closed, once and with a reason.

    The answer of the parser does not change when more bytes come. Whatever came, what is sent is whole frames, the
    other link and new clients work, and nothing is held for anybody in the end. The parts of an input: `0…` and `1…`
    are bytes of a client, `=` carries what waits on the other link, every other part is from the sibling. Each input
    is tried with whole parts and with parts in pieces.
    """
    parts = data.split(SEPARATOR)
    for part in parts[:4]:
        parsed_alike(part[:STEADY_BYTES])
    seed = zlib.crc32(data)
    unharmed(seed % 1000 + 1, steps(parts, itertools.repeat(1 << 24)))
    unharmed(seed % 1000 + 1, steps(parts, cut(random.Random(seed))))


def steps(parts: list[bytes], sizes: Iterator[int]) -> Iterator[Step]:
    """The parts as steps of fuzz_link."""
    for part in parts:
        if part == b"=":
            yield None
        elif part[:1] in (b"0", b"1"):
            yield "client", int(part[:1]), part[1:], sizes
        else:
            yield "sibling", part, sizes
