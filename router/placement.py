"""Placement: which shard gets the next accepted connection, in the accept mode "handoff".

A pure function of what is known at this moment. Least connections first, those on their way included; among equals
the one that has waited longest, so that two idle shards take turns.
"""

from __future__ import annotations

from typing import NamedTuple


class Candidate(NamedTuple):
    """One shard that takes connections."""

    shard: int
    connections: int  # that it has counted as its own
    in_flight: int  # passed to it and not counted yet
    last_given: int  # number of the last connection it was given; 0: none yet


def place(candidates: list[Candidate]) -> int | None:
    """The shard for the next connection; None when nobody takes one."""
    if not candidates:
        return None
    return min(candidates, key=lambda c: (c.connections + c.in_flight, c.last_given, c.shard)).shard
