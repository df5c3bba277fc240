"""A plan makes connections even with the fewest moves."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gnatswarm.router.supervision.rebalance import plan


@given(st.lists(st.integers(0, 2000), min_size=2, max_size=64))
def test_a_plan_evens_with_the_fewest_moves(counts):
    connections = dict(enumerate(counts))
    after = dict(connections)
    moved = 0
    for shard, parts in plan(connections).items():
        for to, clients in parts:
            assert clients > 0
            after[shard] -= clients
            after[to] += clients
            moved += clients
    assert max(after.values()) - min(after.values()) <= 1
    mean, rest = divmod(sum(counts), len(counts))
    highest = sorted(counts, reverse=True)
    assert moved == sum(max(0, count - mean - (at < rest)) for at, count in enumerate(highest))


def test_even_shards_and_a_single_one_need_no_plan():
    assert plan({0: 5, 1: 5}) == plan({0: 6, 1: 5}) == plan({0: 9}) == plan({}) == {}
