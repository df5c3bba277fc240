"""The next connection goes to the shard with the fewest, those on their way included."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gnatswarm.router.listening.placement import Candidate, place


def test_nobody_takes_connections() -> None:
    assert place([]) is None


def test_fewest_connections_first() -> None:
    assert place([Candidate(0, 5, 0, 0), Candidate(1, 3, 0, 9), Candidate(2, 4, 0, 0)]) == 1


def test_those_on_their_way_count() -> None:
    assert place([Candidate(0, 5, 0, 0), Candidate(1, 3, 4, 0)]) == 0


def test_equals_take_turns() -> None:
    assert place([Candidate(0, 2, 0, 8), Candidate(1, 2, 0, 7)]) == 1
    assert place([Candidate(1, 0, 0, 0), Candidate(0, 0, 0, 0)]) == 0


@given(st.lists(st.integers(0, 50), min_size=1, max_size=64), st.integers(0, 500))
def test_any_start_ends_level(start: list[int], arriving: int) -> None:
    shards = [Candidate(number, count, 0, 0) for number, count in enumerate(start)]
    for number in range(arriving):
        shard = place(shards)
        assert shard is not None
        shards[shard] = shards[shard]._replace(in_flight=shards[shard].in_flight + 1, last_given=number + 1)
    given = [shard for shard in shards if shard.in_flight]
    highest = max((shard.connections + shard.in_flight for shard in given), default=0)
    # Nobody who was given one stands more than one above anybody.
    assert all(shard.connections + shard.in_flight >= highest - 1 for shard in shards)
