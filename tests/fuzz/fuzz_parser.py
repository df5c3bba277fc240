"""The parser against broken lines: an answer never changes when more bytes come, and never points outside its line."""

from __future__ import annotations

import random
from typing import Any

from gnatswarm.broker.parser import parse
from tests.fuzz.programs import TENDER, mutated, operations, publish, seeds, subscribe, unsubscribe

REFUSED = ("UNKNOWN", "BAD_ARGUMENTS", "LINE_TOO_LONG")


def line(rng: random.Random) -> bytes:
    match rng.randrange(5):
        case 0:
            return rng.randbytes(rng.randrange(40))
        case 1:
            return b"".join(rng.choice(TENDER) for _ in range(rng.randrange(6)))
        case 2:
            return publish(rng, 0)[:400]
        case 3:
            return rng.choice([subscribe, unsubscribe])(rng)
        case _:
            return operations(rng, 2, 0)[:400]


def test_an_answer_never_changes_when_more_bytes_come():
    for seed in seeds("parser"):
        rng = random.Random(seed)
        data = mutated(rng, line(rng)) if rng.random() < 0.8 else line(rng)
        max_line = rng.choice([8, 64, 4096])
        try:
            parsed_alike(data, max_line)
        except AssertionError as error:
            raise AssertionError(f"GNATSWARM_FUZZ_SEED={seed}: {error}") from error


def parsed_alike(data: bytes, max_line: int) -> None:
    """The first operation of these bytes is parsed alike however many of them have come."""
    answer: dict[str, Any] = {"op": "MORE"}
    for size in range(len(data) + 1):
        now = parse(data[:size], max_line)
        if answer["op"] != "MORE":
            assert now == answer, data[:size]
            if size > answer.get("line_size", 0) + 8:
                break
        answer = now
    if answer["op"] == "MORE":
        assert b"\n" not in data or data.index(b"\n") >= len(data) - 1 or data[:1] in b"\r\n", data
    elif answer["op"] not in REFUSED:
        whole = data[: answer["line_size"]]
        assert whole.endswith(b"\n") and whole.count(b"\n") == 1, data
        for name in ("subject", "reply", "queue", "sid", "argument"):
            assert answer.get(name, b"") in whole, data
