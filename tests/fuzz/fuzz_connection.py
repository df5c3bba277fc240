"""Whole connections against broken streams.

Three clients and two siblings on one sublist. First: what comes out is the same however the bytes come in, whole,
byte by byte or in random pieces. Then: kernels that take little, limits that are small and clients that go at any
moment do no harm. Each time nothing is held for anybody once all have left.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

from gnatswarm.broker.errors import CloseReason
from gnatswarm.broker.limits import Limits
from tests.fuzz.programs import SUBJECTS, connect, cut, mutated, operations, seeds
from tests.support.engine import Engine, EngineClient, frames

# Room for the longest line with blanks and what PING may have behind it, and less than one big payload more.
ROOM = 150_000
CLIENTS = 3


def program(rng: random.Random) -> list[tuple[str, Any]]:
    """Steps: a client sends bytes, a sibling subscribes, a client leaves."""
    steps: list[tuple[str, Any]] = [("say", (who, connect(rng))) for who in range(CLIENTS) if rng.random() < 0.9]
    for _ in range(rng.randint(1, 12)):
        draw = rng.random()
        if draw < 0.75:
            data = operations(rng, rng.randint(1, 8))
            if rng.random() < 0.4:
                data = mutated(rng, data)
            steps.append(("say", (rng.randrange(CLIENTS), data)))
        elif draw < 0.9:
            queue = rng.choice([b"", b"q", b"r"])
            steps.append(("want", (rng.randrange(2), rng.choice([*SUBJECTS, b">", b"a.*"]), queue, rng.randrange(3))))
        elif draw < 0.95:
            steps.append(("drop", rng.randrange(2)))
        else:
            steps.append(("go", rng.randrange(CLIENTS)))
    return steps


def run(seed: int, limits: Limits, steps: list[tuple[str, Any]], sizes: Iterator[int]) -> list[Any]:
    """All that can be seen from outside after every step."""
    engine = Engine(limits, seed=seed, room=ROOM)
    links = {shard: engine.probe.link(shard) for shard in range(2)}
    clients = [engine.client(b"") for _ in range(CLIENTS)]
    seen: list[Any] = []
    for what, step in steps:
        match what:
            case "say":
                who, data = step
                clients[who].feed(data, sizes)
            case "want":
                shard, subject, queue, members = step
                engine.probe.set_remote(shard, subject, queue, members)
            case "drop":
                engine.probe.unlink(step)
                links[step] = engine.probe.link(step)
            case "go":
                clients[step].close()
        seen.append([outcome(client) for client in clients])
        seen.append([bytes(link.sent) for link in links.values()])
    for client in clients:
        if not client.is_over:
            frames(client.take())  # whole frames only
            client.close()
    for shard in links:
        frames(bytes(links[shard].sent))
        engine.probe.unlink(shard)
    links.clear()
    engine.assert_empty()
    return seen


def outcome(client: EngineClient) -> tuple[Any, ...]:
    connection = client.connection
    return (
        bytes(client.socket.sent),
        client.errors,
        client.is_over,
        client.reason,
        connection.in_msgs,
        connection.in_bytes,
        connection.subscriptions if not client.is_over else 0,
        client.socket.kept,
    )


def test_what_comes_out_does_not_depend_on_how_the_bytes_come_in():
    for seed in seeds("connection"):
        rng = random.Random(seed)
        limits = Limits(
            max_control_line_bytes=rng.choice([64, 4096]),
            max_payload_bytes=rng.choice([1000, 1_048_576]),
            max_subscriptions=rng.choice([0, 0, 3]),
        )
        steps = program(rng)
        said = sum(len(step[1]) for what, step in steps if what == "say")
        whole = run(seed, limits, steps, itertools.repeat(10_000_000))
        assert run(seed, limits, steps, cut(random.Random(seed))) == whole, f"GNATSWARM_FUZZ_SEED={seed}"
        if said < 20_000:
            assert run(seed, limits, steps, itertools.repeat(1)) == whole, f"GNATSWARM_FUZZ_SEED={seed}"


def test_slow_kernels_small_limits_and_sudden_ends_do_no_harm():
    for seed in seeds("slow"):
        rng = random.Random(seed)
        limits = Limits(max_pending_bytes=rng.choice([1000, 50_000, 200_000, 1_000_000]))
        engine = Engine(limits, seed=seed, room=ROOM, prefers_local=rng.random() < 0.2)
        links = {shard: engine.probe.link(shard) for shard in range(2)}
        clients = [engine.client(connect(rng)) for _ in range(CLIENTS)]
        everyone = list(clients)
        for _ in range(rng.randint(5, 40)):
            who = rng.randrange(CLIENTS)
            match rng.randrange(9):
                case 0 | 1 | 2:
                    data = operations(rng, rng.randint(1, 30), 0.2)
                    clients[who].feed(data, cut(rng, 300), finish=rng.random() < 0.7)
                case 3:
                    if not clients[who].is_over:
                        engine.probe.set_takes(clients[who].socket, rng.choice([-1, 0, 1, 100, 5000, 100_000]))
                case 4:
                    engine.probe.set_clock(engine.probe.now_us + rng.choice([0, 1000, 200_000]))
                case 5:
                    engine.probe.release_stalls()
                case 6:
                    queue = rng.choice([b"", b"q"])
                    engine.probe.set_remote(rng.randrange(2), rng.choice(SUBJECTS), queue, rng.randrange(3))
                case 7:
                    if rng.random() < 0.3:
                        clients[who].close()
                    if clients[who].is_over:
                        clients[who] = engine.client(connect(rng))
                        everyone.append(clients[who])
                case _:
                    reply = rng.choice([b"", b"r"])
                    payload = b"z" * rng.choice([0, 5, 3000, 40_000])
                    queues = rng.sample([b"q", b"r", b"gone"], rng.randrange(3))
                    engine.probe.deliver_here(
                        rng.choice(SUBJECTS), payload, plainly=rng.random() < 0.7, queues=queues, reply=reply
                    )
        engine.probe.finish()
        for client in everyone:
            check_stream(client, seed)
            client.close()
        for shard in list(links):
            engine.probe.unlink(shard)
        links.clear()
        engine.assert_empty()


def check_stream(client: EngineClient, seed: int) -> None:
    """What a client was sent is whole frames, the last one cut short perhaps where its kernel took no more."""
    data = bytes(client.socket.sent)
    is_cut = client.socket.pending or client.reason in (
        CloseReason.SLOW_CONSUMER_PENDING_BYTES,
        CloseReason.CLIENT_CLOSED,
    )
    try:
        frames(data)
    except (AssertionError, ValueError):
        assert is_cut or client.is_over, f"GNATSWARM_FUZZ_SEED={seed}: {data[-200:]!r}"
