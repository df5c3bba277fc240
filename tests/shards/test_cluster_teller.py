"""Newcomers in the cluster are told of at once; what follows, and who leaves, together."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from gnatswarm.shards.boundary.control import ClusterNews
from gnatswarm.shards.gateway.cluster_teller import TOGETHER_S, ClusterTeller
from tests.support.clock_loop import ClockLoop


class Told:
    """A cluster of so many other members, and what was told of it."""

    def __init__(self, loop: ClockLoop) -> None:
        self.loop = loop
        self.members = 0
        self.told: list[int] = []
        self.teller = ClusterTeller(loop, lambda: ClusterNews("c", members=self.members), self._tell)

    def _tell(self, news: ClusterNews) -> None:
        self.told.append(news.members)

    def become(self, members: int) -> None:
        self.members = members
        self.teller.changed()
        self.loop.pass_s(0.0)


@pytest.fixture
def cluster() -> Iterator[Told]:
    loop = ClockLoop()
    told = Told(loop)
    told.become(0)
    assert not told.told, "members are being dialled"
    told.teller.begin()
    loop.pass_s(0.0)
    yield told
    loop.close()


def test_the_first_newcomer_is_told_of_at_once_also_just_after_the_start(cluster: Told) -> None:
    assert cluster.told == [0]
    cluster.become(1)
    assert cluster.told == [0, 1]


def test_newcomers_behind_it_are_told_of_together(cluster: Told) -> None:
    for members in range(1, 31):
        cluster.become(members)
    assert cluster.told == [0, 1]
    cluster.loop.pass_s(TOGETHER_S)
    assert cluster.told == [0, 1, 30]
    cluster.become(31)
    assert cluster.told == [0, 1, 30], "something was told just now"
    cluster.loop.pass_s(TOGETHER_S)
    cluster.loop.pass_s(TOGETHER_S)
    cluster.become(32)
    assert cluster.told == [0, 1, 30, 31, 32]


def test_who_is_back_at_once_is_not_told_of(cluster: Told) -> None:
    cluster.become(1)
    cluster.loop.pass_s(TOGETHER_S)
    cluster.become(0)
    cluster.become(1)
    cluster.loop.pass_s(TOGETHER_S)
    assert cluster.told == [0, 1]
    cluster.become(0)
    cluster.loop.pass_s(TOGETHER_S)
    assert cluster.told == [0, 1, 0]


@pytest.mark.parametrize("what", ["forget", "close"])
def test_another_router_is_told_again_and_nobody_after_the_end(cluster: Told, what: str) -> None:
    end: Callable[[], None] = getattr(cluster.teller, what)
    end()
    cluster.loop.pass_s(TOGETHER_S)
    assert cluster.told == ([0, 0] if what == "forget" else [0])
    cluster.become(1)
    assert cluster.told == ([0, 0, 1] if what == "forget" else [0])
