"""The end of a gateway: what happens to each of its connections."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gnatswarm.shards.gateway.leaving import Leaving


class Session:
    """A connection; `did` is what was done to it."""

    def __init__(self, *, slot: int = 32, has_socket: bool = True) -> None:
        self.did: list[str] = []
        self.link = SimpleNamespace(slot=slot)
        self.socket = SimpleNamespace(end_sending=self.end_sending) if has_socket else None

    def end_sending(self) -> bool:
        self.did.append("ends sending")
        return True

    def fall_silent(self, why: str) -> None:
        self.did += ["falls silent", why]

    def close(self, why: str) -> None:
        self.did.append(why)


@pytest.mark.parametrize(
    ("session", "did"),
    [
        (Session(), ["ends sending", "falls silent", "Server Shutdown"]),
        (Session(has_socket=False), ["Server Shutdown"]),
        (Session(slot=-1), ["Server Shutdown"]),  # who has not said who it is
    ],
)
def test_only_what_can_be_read_to_its_end_is_waited_for(session: Session, did: list[str]) -> None:
    later: list[Any] = []
    loop: Any = SimpleNamespace(
        time=lambda: 0.0,
        call_later=lambda _after_s, call: later.append(call),
        call_soon=lambda call: later.append(call),
    )
    exchange: Any = SimpleNamespace(
        withdraw=lambda call: call(), hush=lambda: None, call_when_known=lambda call: call()
    )
    done: list[bool] = []
    there: list[Any] = [session]
    reactor: Any = SimpleNamespace(finish=lambda: None, n_emptying=0)
    leaving = Leaving(loop, reactor, exchange, lambda: there, lambda: done.append(True))
    leaving.begin(1.0)
    limit, *soon = later
    later.clear()
    for call in soon:
        call()
    assert session.did == did
    later.pop()()
    assert session.did == did and not done  # it has not closed yet, and nothing more is done to it
    there.clear()
    later.pop()()
    assert not done  # a link is just being read
    later.pop()()
    assert done == [True]
    limit()
    assert done == [True]


def test_where_the_broker_stops_no_shard_is_waited_for() -> None:
    later: list[Any] = []
    loop: Any = SimpleNamespace(
        call_later=lambda _after_s, call: later.append(call), call_soon=lambda call: later.append(call)
    )
    exchange: Any = SimpleNamespace(hush=lambda: None)
    done: list[bool] = []
    there: list[Any] = [Session()]
    reactor: Any = SimpleNamespace(finish=lambda: None, n_emptying=0)
    Leaving(loop, reactor, exchange, lambda: there, lambda: done.append(True)).begin_last(1.0)
    limit, look = later
    look()
    assert there.pop().did == ["ends sending", "falls silent", "Server Shutdown"]
    assert not done
    for call in later[2:]:
        call()
    later[-1]()
    limit()
    assert done == [True]


def test_who_says_nothing_more_and_is_sent_what_waits_is_waited_for() -> None:
    """Its session has ended with what it says, so that nothing else tells of it."""
    later: list[Any] = []
    loop: Any = SimpleNamespace(
        call_later=lambda _after_s, call: later.append(call), call_soon=lambda call: later.append(call)
    )
    exchange: Any = SimpleNamespace(hush=lambda: None)
    done: list[bool] = []
    reactor: Any = SimpleNamespace(finish=lambda: None, n_emptying=1)
    Leaving(loop, reactor, exchange, list, lambda: done.append(True)).begin_last(1.0)
    limit, look = later
    look()
    later[-1]()
    assert not done
    reactor.n_emptying = 0
    later[-1]()
    later[-1]()
    assert done == [True]
    limit()


def test_an_error_of_ours_at_the_end_of_one_connection_costs_that_one_alone() -> None:
    """The others' last messages would be lost with the process."""
    later: list[Any] = []
    loop: Any = SimpleNamespace(
        time=lambda: 0.0,
        call_later=lambda _after_s, call: later.append(call),
        call_soon=lambda call: later.append(call),
    )
    exchange: Any = SimpleNamespace(withdraw=lambda call: call(), hush=lambda: None)
    bad, good = Session(), Session()
    assert bad.socket is not None
    bad.socket.end_sending = lambda: 1 // 0
    blamed: list[Any] = []
    reactor: Any = SimpleNamespace(finish=lambda: None, n_emptying=0, blame=blamed.append)
    there: list[Any] = [bad, good]
    Leaving(loop, reactor, exchange, lambda: there, lambda: None).begin(1.0)
    for call in later[1:]:
        call()
    later[-1]()
    assert (blamed, bad.did, good.did) == ([bad.socket], [], ["ends sending", "falls silent", "Server Shutdown"])
