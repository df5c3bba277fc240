"""What mappings deliver: the same on nats-server of both versions and on us, one message at a time."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter

import pytest

from tests.contract.test_compatibility import kinds_of, start
from tests.support.servers import Broker, Kind
from tests.support.wire import Client, Cluster

# Tokens of subjects; not such as begin with two separators, of which DIFFERENCES.md tells.
TOKENS = ("a", "hello", "abc-def", "-a", "a-", "a--b", "-", "é", "x*y", "a>b", "1", "aa-bb-cc-dd", "$x", "{{x}}", "*-*")
PATTERNS = ("{}.*", "{}.*.*", "{}.*.>", "{}.x.*.y.*")
# Of one wildcard; the newer server has all, and need not use each wildcard of a source.
OLD_PIECES = (
    *(
        "${n}",
        "{{{{wildcard({n})}}}}",
        "{{{{Wildcard( {n} )}}}}",
        "{{{{split({n},-)}}}}",
        "{{{{splitFromLeft({n},2)}}}}",
    ),
    *("{{{{sliceFromLeft({n},2)}}}}", "{{{{sliceFromRight({n},3)}}}}", "{{{{SplitFromRight({n}, 1)}}}}", "$+{n}"),
    *("{{{{partition(1000,{n})}}}}", "{{{{partition(7,{n},{n})}}}}", "{{{{partition(3,1,{n})}}}}"),
)
NEW_PIECES = (*OLD_PIECES, "{{{{left({n},2)}}}}", "{{{{Right({n},+2)}}}}", "{{{{partition(1000)}}}}", "literal")


@pytest.fixture(params=["2.9", "2.15"])
def both(request: pytest.FixtureRequest) -> tuple[Kind, Kind]:
    return kinds_of(request.param)


def mappings(chance: random.Random, pieces: tuple[str, ...], count: int) -> dict[str, str]:
    """No two of them match one subject."""
    found = {}
    for number in range(count):
        source = chance.choice(PATTERNS).format(f"s{number}")
        places = list(range(1, source.count("*") + 1))
        chance.shuffle(places)
        tokens = [f"d{number}", *(chance.choice(pieces).format(n=n) for n in places)]
        found[source] = ".".join([*tokens, *[">"] * source.endswith(">")])
    return found


def subject(chance: random.Random, pattern: str) -> str:
    words = {"*": 1, ">": chance.randint(1, 3)}
    tokens = [
        made
        for token in pattern.split(".")
        for made in (chance.choices(TOKENS, k=words[token]) if token in words else [token])
    ]
    return ".".join(tokens)


async def delivered(broker: Broker, subjects: list[str]) -> list[str]:
    """The subjects that these have come to, each heard by a plain subscriber and by one member of a group."""
    cluster = Cluster(broker)
    try:
        plain, *members, publisher = await cluster.clients(4, on_different_shards=broker.kind.shards > 1)
        await plain.talk("SUB > 1\r\nPING\r\n", expect_last="PONG\r\n")
        for member in members:
            await member.talk("SUB > g 1\r\nPING\r\n", expect_last="PONG\r\n")
        for at in range(0, len(subjects), 50):
            await publisher.send(
                "".join(f"PUB {one} 4\r\n{n:04}\r\n" for n, one in enumerate(subjects[at : at + 50], at))
            )
            await publisher.flush()
        found: list[dict[int, str]] = []
        for client in (plain, *members):
            frames = [*client.inbox, *(frame for frame in await client.flush() if frame.is_message)]
            own = [frame for frame in frames if not frame.subject.startswith("$SYS")]
            found.append({int(frame.payload): frame.subject for frame in own})
            assert len(found[-1]) == len(own)
        for group in found[1:]:
            assert all(found[0][number] == name for number, name in group.items())
        assert len(found[1]) + len(found[2]) == len(found[0])
        return [found[0].get(number, "") for number in range(len(subjects))]
    finally:
        cluster.close()


@pytest.mark.parametrize("seed", range(3))
async def test_each_message_comes_to_the_real_servers_subject(both, brokers, seed) -> None:
    chance = random.Random(seed)
    rules = mappings(chance, NEW_PIECES if both[0].compatibility == "2.15" else OLD_PIECES, 40)
    subjects = [subject(chance, pattern) for pattern in rules for _ in range(10)]
    text = "".join(f"{json.dumps(source)}: {json.dumps(place)}\n" for source, place in rules.items())
    theirs, ours = [
        await delivered(await asyncio.to_thread(start, brokers, kind, f"mappings {{\n{text}}}"), subjects)
        for kind in both
    ]
    different = [row for row in zip(subjects, theirs, ours, strict=True) if row[1] != row[2]]
    assert not different
    assert len(set(ours)) > len(rules)


WEIGHTED = """
cluster { name: east, listen: "127.0.0.1:-1" }
mappings {
    "a.*": [ {destination: "a.$1", weight: 30%} ]
    "b.*": [ {destination: "b.$1", weight: 30%}, {destination: "bb.$1", weight: 20%} ]
    c: [ {destination: c, weight: 30%} ]
    "d.>": [ {destination: "d.>", weight: 30%}, {destination: "dd.>", weight: 20%} ]
    e: [ {destination: ee, weight: 50%, cluster: east}, {destination: ef, weight: 50%} ]
    f: [ {destination: ff, weight: 100%, cluster: west} ]
    g: [ {destination: g, weight: 30%, cluster: east} ]
    h: {destination: hh, weight: 50%}
    i: [ {destination: ii, weight: 50%, cluster: west}, {destination: ij, weight: 50%} ]
    j: []
}
"""
MANY = 1000
SHARES = {
    "a.x": {"a.x": 100},
    "b.x": {"b.x": 80, "bb.x": 20},
    "c": {"c": 30},
    "d.x": {"d.x": 30, "dd.x": 20},
    "e": {"e": 50, "ee": 50},
    "f": {"f": 100},
    "g": {"g": 30},
    "h": {"h": 50, "hh": 50},
    "i": {"i": 50, "ij": 50},
    "j": {"j": 100},
}


async def test_shares_and_destinations_for_clusters_are_the_real_servers(both, brokers) -> None:
    for kind in both:
        broker = await asyncio.to_thread(start, brokers, kind, WEIGHTED)
        async with await Client.connect(broker.port, {"verbose": False}) as client:
            await client.send("SUB > 1\r\n")
            for published, shares in SHARES.items():
                await client.send(f"PUB {published} 0\r\n\r\n" * MANY)
                found = Counter(frame.subject for frame in await client.flush() if frame.is_message)
                counts = {name: count for name, count in found.items() if not name.startswith("$SYS")}
                assert counts.keys() == shares.keys(), kind
                for name, percent in shares.items():  # (six standard deviations)
                    assert abs(counts[name] - percent * MANY / 100) <= (0 if percent == 100 else 100), (kind, name)
