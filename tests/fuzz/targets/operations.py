"""Operations of three clients of one shard that has two siblings."""

from __future__ import annotations

import itertools
import random
import zlib
from typing import Any

from gnatswarm.broker.limits import Limits
from tests.fuzz.fuzz_connection import CLIENTS, run
from tests.fuzz.fuzz_parser import parsed_alike
from tests.fuzz.programs import PATTERNS, QUEUES, SUBJECTS, TENDER, cut
from tests.fuzz.targets import SEPARATOR

WORDS = [*TENDER, *SUBJECTS, *PATTERNS, *QUEUES[2:], b"HPUB ", b"SUB ", b"UNSUB ", b"CONNECT ", SEPARATOR + b"1"]
# Only so many bytes of a part are parsed at each length; streams up to the second length are also fed byte by byte.
STEADY_BYTES = 300
EACH_BYTES = 2000


def check(data: bytes) -> None:
    """The output is the same however the input is cut, consists of whole frames, and nothing is held in the end.

    The answer of the parser does not change when more bytes come. First byte: the limits. The rest is in parts: `0…`,
    `1…` and `2…` are bytes of a client (every other part is of the first one), `w…` changes the interest of a sibling,
    `d…` replaces a sibling, `g…` ends a client.
    """
    flags = data[0] if data else 0
    limits = Limits(
        max_control_line_bytes=64 if flags & 1 else 4096,
        max_payload_bytes=1000 if flags & 2 else 1_048_576,
        max_subscriptions=3 if flags & 4 else 0,
    )
    parts = data[1:].split(SEPARATOR)
    for part in parts[:4]:
        parsed_alike(part[1 : STEADY_BYTES + 1], limits.max_control_line_bytes)
    steps = [step(part) for part in parts]
    seed = zlib.crc32(data)
    whole = run(seed, limits, steps, itertools.repeat(10_000_000))
    assert run(seed, limits, steps, cut(random.Random(seed))) == whole
    if len(data) <= EACH_BYTES:
        assert run(seed, limits, steps, itertools.repeat(1)) == whole


def step(part: bytes) -> tuple[str, Any]:
    """One part as a step of fuzz_connection."""
    kind, rest = part[:1], part[1:]
    numbers = [*rest[:4], 0, 0, 0, 0]
    match kind:
        case b"0" | b"1" | b"2":
            return "say", (int(kind), rest)
        case b"w":
            subjects = [*SUBJECTS, b">", b"a.*"]
            subject, queue = subjects[numbers[1] % len(subjects)], QUEUES[numbers[2] % len(QUEUES)]
            return "want", (numbers[0] % 2, subject, queue, numbers[3] % 3)
        case b"d":
            return "drop", numbers[0] % 2
        case b"g":
            return "go", numbers[0] % CLIENTS
        case _:
            return "say", (0, part)
