"""Whole links against broken streams: a joined sibling may say anything, the worst that happens is that it is closed.

Three shards in one process; clients of the first subscribe, publish and fence while one of its links is fed frames,
well-formed and mutated, in pieces. Whatever came, the other link and all clients still work, and nothing is held for
anybody in the end.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import Literal

from tests.fuzz.fuzz_routewire import frame
from tests.fuzz.programs import HEADER, QUEUES, SUBJECTS, cut, mutated, operations, seeds
from tests.support.engine import QUIET, frames
from tests.support.mesh import Mesh


def message(rng: random.Random) -> bytes:
    """A complete frame, with its payload."""
    size = rng.choice([0, 1, 5, 100, 5_000, 40_000])
    queues = [queue for queue in rng.sample(QUEUES, rng.randrange(4)) if queue]
    tail = rng.choice([[], [b"r"], [b"+", b"r", *queues] if queues else [], [b"|", *queues] if queues else []])
    subject = rng.choice(SUBJECTS)
    account = rng.choice([b"$G", b"$G", b"$G", b"other"])
    if queues and rng.random() < 0.4:
        words = [b"QMSG", b"%d" % rng.randrange(9), b"%d" % rng.randrange(8), b"%d" % rng.randrange(4)]
        words += [b"%d" % rng.randrange(4), account, subject, b"|", queues[0]]
        return b" ".join([*words, b"%d" % size]) + b"\r\n" + b"x" * size + b"\r\n"
    if rng.random() < 0.3:
        words = [b"HMSG", account, subject, *tail, b"%d" % len(HEADER), b"%d" % (len(HEADER) + size)]
        return b" ".join(words) + b"\r\n" + HEADER + b"x" * size + b"\r\n"
    return b" ".join([b"RMSG", account, subject, *tail, b"%d" % size]) + b"\r\n" + b"x" * size + b"\r\n"


def said(rng: random.Random) -> bytes:
    """What a sibling says, more or less."""
    parts = []
    for _ in range(rng.randint(1, 12)):
        draw = rng.random()
        if draw < 0.5:
            parts.append(message(rng) * (rng.choice([2, 5]) if rng.random() < 0.3 else 1))
        elif draw < 0.85:
            line = frame(rng)
            parts.append(line if not line.startswith((b"RMSG", b"HMSG", b"Q")) else b"PING\r\n")
        elif draw < 0.92:
            parts.append(b"SLOW $G " + rng.choice(SUBJECTS) + b"\r\n")
        else:
            parts.append(frame(rng))
    data = b"".join(parts)
    return mutated(rng, data) if rng.random() < 0.6 else data


# The sibling sends these bytes in such pieces; this client sends these bytes; None: the other link carries what waits.
Step = tuple[Literal["sibling"], bytes, Iterator[int]] | tuple[Literal["client"], int, bytes, Iterator[int]] | None


def test_a_joined_sibling_may_say_anything():
    for seed in seeds("link"):
        try:
            unharmed(seed % 1000 + 1, steps(random.Random(seed)))
        except AssertionError as error:
            raise AssertionError(f"GNATSWARM_FUZZ_SEED={seed}: {error}") from error


def steps(rng: random.Random) -> Iterator[Step]:
    """Random steps, drawn one at a time."""
    for _ in range(rng.randint(1, 8)):
        match rng.randrange(4):
            case 0 | 1:
                yield "sibling", said(rng), cut(rng)
            case 2:
                yield "client", rng.randrange(2), operations(rng, rng.randint(1, 10)), cut(rng)
            case _:
                yield None


def unharmed(seed: int, steps: Iterable[Step]) -> None:
    """Whatever one sibling says, the other link and new clients work, and nothing is held for anybody in the end."""
    mesh = Mesh(3, seed=seed, connect=QUIET)
    bad = mesh.ends[0, 1]
    assert bad.socket is not None
    for step in steps:
        match step:
            case "sibling", data, sizes:
                mesh.engines[0].probe.feed(bad.socket, data, sizes)
            case "client", who, data, sizes:
                client = mesh.clients[who]
                if not client.is_over:
                    client.feed(data, sizes)
            case _:
                mesh.carry(0, 2, 1 << 20)
                mesh.carry(2, 0, 1 << 20)
    assert bool(bad.broken) == bad.socket.is_over
    assert len(bad.broken) <= 1, bad.broken
    # The other link and new clients still work.
    assert bad.link is not None
    bad.link.leave()
    if not bad.socket.is_over:
        frames(bytes(bad.socket.sent))  # whole frames only
        mesh.engines[0].probe.end(bad.socket)
    here, there = mesh.engines[0].client(), mesh.engines[2].client()
    mesh.clients += [here, there]
    mesh.shard_of += [0, 2]
    there.feed(b"SUB still.there 1\r\nPING\r\n")
    while (
        mesh.carry(0, 2, 1 << 20) or mesh.carry(2, 0, 1 << 20) or mesh.carry(1, 2, 1 << 20) or mesh.carry(2, 1, 1 << 20)
    ):
        pass
    assert there.take() == b"PONG\r\n"
    here.feed(b"PUB still.there 2\r\nhi\r\nPING\r\n")
    while mesh.carry(0, 2, 1 << 20) or mesh.carry(2, 0, 1 << 20):
        pass
    assert here.take().endswith(b"PONG\r\n")
    assert there.take() == b"MSG still.there 1 2\r\nhi\r\n"
    mesh.close()
