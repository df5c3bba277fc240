"""Connections that have not said who they are: which of them goes when there are too many, without any."""

from __future__ import annotations

from typing import Any

import pytest

from gnatswarm.shards.gateway.waiting import MOST_WAITING, Waiting


class Loop:
    """`later` has what it is to call."""

    def __init__(self) -> None:
        self.later: list[Any] = []

    def call_later(self, _after_s: float, call: Any) -> None:
        self.later.append(call)


class Stranger:
    def __init__(self, host: str) -> None:
        self.host = host
        self.has_gone = False

    def give_way(self) -> None:
        assert not self.has_gone
        self.has_gone = True


def waiting_with(loop: Loop, *strangers: Stranger) -> Waiting:
    waiting = Waiting(loop, "leaf nodes")  # type: ignore[arg-type]
    for stranger in strangers:
        waiting.add(stranger)
    return waiting


def test_a_newcomer_is_let_in_and_the_oldest_of_the_address_with_the_most_goes() -> None:
    early, late = Stranger("192.0.2.1"), Stranger("192.0.2.1")
    crowd = [Stranger("6.6.6.6") for _ in range(3 * MOST_WAITING)]
    waiting = waiting_with(Loop(), early, *crowd, late)
    assert not early.has_gone and not late.has_gone
    kept = MOST_WAITING - 2
    assert [stranger.has_gone for stranger in crowd] == [True] * (len(crowd) - kept) + [False] * kept
    assert waiting.is_full


def test_a_crowd_from_the_addresses_of_one_host_closes_only_its_own() -> None:
    early = Stranger("2001:db8:0:1::1")
    crowd = [Stranger(f"2001:db8::{number:x}") for number in range(2 * MOST_WAITING)]
    waiting = waiting_with(Loop(), early, *crowd)
    assert not early.has_gone
    kept = MOST_WAITING - 1
    assert [stranger.has_gone for stranger in crowd] == [True] * (len(crowd) - kept) + [False] * kept
    for stranger in crowd[-kept:]:
        waiting.remove(stranger)
    for _ in range(kept):
        waiting.add(Stranger("2001:db8::1"))
    assert waiting.is_full and not early.has_gone


def test_who_has_said_who_it_is_does_not_wait() -> None:
    known = [Stranger("6.6.6.6") for _ in range(MOST_WAITING)]
    waiting = waiting_with(Loop(), *known)
    for _ in range(2):  # once, and again when it ends
        for stranger in known:
            waiting.remove(stranger)
    assert not waiting.is_full
    for _ in range(MOST_WAITING):
        waiting.add(Stranger("6.6.6.6"))
    assert waiting.is_full
    assert not any(stranger.has_gone for stranger in known)


def test_the_log_has_one_line_for_those_of_a_second(caplog: pytest.LogCaptureFixture) -> None:
    loop = Loop()
    waiting = waiting_with(loop, *(Stranger("6.6.6.6") for _ in range(MOST_WAITING + 40)))
    (tell,) = loop.later
    assert not caplog.messages
    tell()
    waiting.add(Stranger("6.6.6.6"))
    loop.later[1]()
    text = "Too many connections to the port for leaf nodes that have not said who they are (256 may wait): closed"
    assert caplog.messages == [f"{text} 40", f"{text} 1"]
