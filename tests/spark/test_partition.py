"""The partition of the graph of talkers: at the best known answer, better than chance, and never over its bound."""

from __future__ import annotations

import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gnatswarm.spark.partition import BOUND, Partition, balance, crossing, crossing_share, partition

Weights = dict[str, float]
Edges = dict[tuple[str, str], float]


def weighed(edges: Edges) -> Weights:
    found: Weights = {}
    for (a, b), w in edges.items():
        found[a] = found.get(a, 0.0) + w
        found[b] = found.get(b, 0.0) + w
    return found


def pairs(n: int) -> tuple[Edges, float]:
    return {(f"talker{i}", f"listener{i}"): 100.0 for i in range(n)}, 0.0


def cliques(count: int, size: int, bridges: float) -> tuple[Edges, float]:
    """Groups in which all talk to all, in a ring with one thin line between neighbours: those are the best cut."""
    edges: Edges = {}
    for c in range(count):
        for i in range(size):
            for j in range(i):
                edges[f"c{c}.{j}", f"c{c}.{i}"] = 100.0
        edges[f"c{c}.0", f"c{(c + 1) % count}.1"] = bridges
    return edges, count * bridges


def planted(seed: int) -> tuple[Edges, float]:
    """Four groups of eight with heavy random lines inside, and light ones between: cutting those is best."""
    chance = random.Random(seed)
    edges: Edges = {}
    names = [f"s{i}" for i in range(32)]
    for i in range(32):
        for j in range(i):
            if i % 4 == j % 4:
                edges[names[j], names[i]] = 50.0 + chance.randrange(10)
            elif chance.random() < 0.1:
                edges[names[j], names[i]] = 1.0
    return edges, sum(w for (a, b), w in edges.items() if int(a[1:]) % 4 != int(b[1:]) % 4)


GRAPHS = {"pairs": pairs(8), "cliques": cliques(4, 6, 2.0), **{f"planted{i}": planted(i) for i in range(5)}}


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_with_a_known_best_cut_are_cut_so_and_chance_is_worse(name: str):
    edges, best = GRAPHS[name]
    weights = weighed(edges)
    placed = partition(weights, edges, 4)
    assert placed.left == []
    assert crossing(edges, placed.shard) == best
    assert balance(weights, placed.shard, 4) <= BOUND
    in_turn = {service: i % 4 for i, service in enumerate(weights)}  # as they come
    chance = random.Random(7)
    at_random = {service: chance.randrange(4) for service in sorted(weights)}
    assert crossing(edges, placed.shard) < min(crossing(edges, in_turn), crossing(edges, at_random)) / 4


def test_a_service_that_is_too_heavy_for_a_shard_stays_spread():
    edges = {("giant", f"s{i}"): 10.0 for i in range(8)} | {("s0", "s1"): 25.0}
    weights = weighed(edges) | {"giant": 600.0}
    placed = partition(weights, edges, 4)
    assert placed.left == ["giant"] and "giant" not in placed.shard
    assert placed.shard["s0"] == placed.shard["s1"]
    assert crossing_share(edges, placed.shard, 4) == pytest.approx(80 * 0.75 / 105)


def test_one_shard_nothing_and_no_shard():
    assert partition({"a": 1.0}, {}, 1) == Partition({"a": 0}, [])
    assert partition({}, {}, 4) == Partition({}, [])
    with pytest.raises(ValueError, match="0 shards"):
        partition({}, {}, 0)


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(st.sampled_from("abcdefghijkl"), st.floats(0.0, 100.0, allow_subnormal=False), max_size=12),
    st.dictionaries(
        st.tuples(st.sampled_from("abcdefghijkl"), st.sampled_from("abcdefghijkl")), st.floats(0.0, 50.0), max_size=30
    ),
    st.integers(1, 5),
)
@example({"a": 1e-170, "b": 1e-170, "c": 1e-170}, {}, 2)
def test_no_shard_is_over_its_bound_and_nobody_is_forgotten(weights: Weights, edges: Edges, shards: int):
    placed = partition(weights, edges, shards)
    assert set(placed.shard) | set(placed.left) == set(weights)
    assert not set(placed.shard) & set(placed.left)
    assert all(0 <= shard < shards for shard in placed.shard.values())
    assert balance(weights, placed.shard, shards) <= BOUND + 1e-6
    assert partition(weights, edges, shards) == placed
