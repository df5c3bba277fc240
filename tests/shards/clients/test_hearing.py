"""Who is heard out is heard until nothing has come for a while, or its time is over; the test moves the clock."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from gnatswarm.shards.clients.hearing import DRY_S, HEAR_OUT_S, MOST_BYTES, Hearing

LIMIT: Any = "as much as it may publish"


class Client:
    """A client over its limit that has sent something, and may go on."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.allowance: object = LIMIT
        self.socket = SimpleNamespace(unread_bytes=100)
        self.has_ended = False
        self.connection = SimpleNamespace(in_bytes=0, in_msgs=0, is_moving=False, allow=self._allow)
        self.hearing = Hearing(lambda session: LIMIT, lambda session: None)

    def _allow(self, allowance: object) -> None:
        self.allowance = allowance

    def says(self, size: int) -> None:
        self.connection.in_bytes += size

    @property
    def is_over(self) -> bool:
        session: Any = self
        return self.hearing.is_over(session)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    client = Client()
    monkeypatch.setattr(time, "monotonic", lambda: client.now_s)
    return client


def test_a_moment_without_bytes_is_not_the_end_of_who_may_have_had_no_room(client: Client) -> None:
    """Its kernel sends more when it has noticed that there is some."""
    assert not client.is_over and client.allowance is None
    client.socket.unread_bytes = 0
    for _ in range(3):
        client.now_s += DRY_S * 0.9
        client.says(1)
        assert not client.is_over
        assert not client.is_over
    client.now_s += DRY_S
    assert client.is_over


def test_of_who_has_ended_nothing_more_comes(client: Client) -> None:
    client.has_ended = True
    assert not client.is_over
    client.says(MOST_BYTES * 2)
    assert not client.is_over, "its kernel has it all, and it is of no use to stop"
    client.socket.unread_bytes = 0
    client.is_over  # noqa: B018 - as above, what it has said just now
    assert client.is_over


def test_it_has_its_time_whatever_comes(client: Client) -> None:
    assert not client.is_over
    client.now_s += HEAR_OUT_S
    assert client.is_over


def test_who_moves_is_heard_where_it_goes_on(client: Client) -> None:
    client.connection.is_moving = True
    assert client.is_over and client.allowance is LIMIT


def test_who_is_closed_later_than_it_was_heard_is_heard_again(client: Client) -> None:
    session: Any = client
    client.hearing.begin(session)
    client.now_s += HEAR_OUT_S
    assert client.hearing.settle(session) and client.allowance is LIMIT
    assert not client.is_over and client.allowance is None
