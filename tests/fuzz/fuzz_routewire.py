"""The frames between shards against broken ones: an answer never changes when more bytes come, nor reaches further."""

from __future__ import annotations

import random
from typing import Any

from gnatswarm.broker.routewire import parse_route
from tests.fuzz.programs import HEADER, QUEUES, SUBJECTS, mutated, seeds


def frame(rng: random.Random) -> bytes:
    subject = rng.choice(SUBJECTS)
    queues = [queue for queue in rng.sample(QUEUES, rng.randrange(4)) if queue]
    tail = rng.choice([[], [b"r"], [b"+", b"r", *queues], [b"|", *queues], [b"+"], [b"|"], [b"12"]])
    size = b"%d" % rng.choice([0, 5, 100, 70_000_000, 999_999_999])
    match rng.randrange(9):
        case 0:
            words = [rng.choice([b"RMSG", b"XMSG"]), b"$G", subject, *tail, size]
        case 1:
            words = [rng.choice([b"HMSG", b"XHMG"]), b"$G", subject, *tail, b"%d" % len(HEADER), size]
        case 2:
            verb = rng.choice([b"QMSG", b"QHMG", b"XQMG", b"XQHG"])
            words = [verb, b"7", b"3", b"0", b"0", b"$G", subject, *tail, b"5", size]
        case 3:
            words = [b"RS+", b"$G", subject, *rng.choice([[], [b"q"], [b"q", b"3"], [b"q", b"0"], [b"q", b"3", b"x"]])]
        case 4:
            words = [b"RS-", b"$G", subject, *rng.choice([[], [b"q"], [b"q", b"3"]])]
            if rng.random() < 0.3:
                words = [b"QEND", b"7", b"$G", subject, *rng.choice([[], [b"q"], [b"q", b"3"]])]
            elif rng.random() < 0.3:
                words = [b"NONE", b"$G", subject, *rng.choice([[], [b"r"], [b"r", b"r"]])]
        case 5:
            number = rng.choice([b"1", b"18446744073709551615", b"99999999999999999999999", b"", b"-1"])
            words = [rng.choice([b"QACK", b"QNAK", b"QASK", b"MSTOP", b"MNEXT"]), number]
        case 6:
            two, three = (b"MOVE", b"MPART", b"MCOUNT", b"MARK"), (b"MSHIFT", b"MARKQ", b"MDONE")
            verb, most = rng.choice([*((one, 2) for one in two), *((one, 3) for one in three), (b"MOVED", 4)])
            words = [verb, *rng.choices([b"0", b"1", b"2", b"7", b"64", b"70000000"], k=rng.randint(1, most))]
        case 7:
            verb = rng.choice([b"RTAKE", b"ROWN", b"RGOES", b"RDROP", b"RDUE"])
            prefix = rng.choice([b"_R_.00AAAAAAAA.", b"_R_.3fAAAAAAAA.", b"_R_.00AAAAAAA.", b"x"])
            words = [verb, prefix, *rng.choices([b"0", b"1", b"64", b"70000000"], k=rng.randint(0, 3))]
        case _:
            return rng.choice(
                [b"PING\r\n", b"PONG\r\n", b"INFO {}\r\n", b"CONNECT {}\r\n", b"BYE\r\n", b"-ERR 'x'\r\n"]
            )
    return b" ".join(words) + b"\r\n"


def test_an_answer_never_changes_when_more_bytes_come():
    for seed in seeds("routewire"):
        rng = random.Random(seed)
        data = frame(rng) + rng.choice([b"", b"hello\r\n", frame(rng)])
        if rng.random() < 0.7:
            data = mutated(rng, data)
        try:
            parsed_alike(data)
        except AssertionError as error:
            raise AssertionError(f"GNATSWARM_FUZZ_SEED={seed}: {error}") from error


def parsed_alike(data: bytes) -> None:
    """The first frame of these bytes is parsed alike however many of them have come."""
    answer: dict[str, Any] = {"op": "MORE"}
    for size in range(len(data) + 1):
        now = parse_route(data[:size])
        if answer["op"] != "MORE":
            assert now == answer, data[:size]
        answer = now
    if "line_size" in answer:
        line = data[: answer["line_size"]]
        assert line.endswith(b"\n") and line.count(b"\n") == 1, data
        for part in (answer.get(name, b"") for name in ("account", "subject", "reply")):
            assert part in line, data
        for part in answer.get("queues", ()):
            assert part in line, data
