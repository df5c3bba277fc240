"""Placement: which shard gets the next accepted connection, in the accept mode "handoff".

A pure function of the present counts. The shard with the fewest connections, including those on their way to it; among
equals the one that has waited longest, so that two idle shards take turns.
"""

from __future__ import annotations

from typing import NamedTuple


class Candidate(NamedTuple):
    """One shard that takes connections."""

    shard: int
    connections: int  # counted by the shard itself
    in_flight: int  # sent to it, but not counted by it yet
    last_given: int  # number of the last connection sent to it; 0: none yet


def place(candidates: list[Candidate]) -> int | None:
    """The shard for the next connection; None when there is no candidate."""
    if not candidates:
        return None
    return min(candidates, key=lambda c: (c.connections + c.in_flight, c.last_given, c.shard)).shard
