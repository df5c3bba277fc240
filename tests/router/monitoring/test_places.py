"""Who gives way when the places of the monitoring's connections are taken."""

from __future__ import annotations

import time

import pytest

from gnatswarm.router.monitoring import places as places_module
from gnatswarm.router.monitoring.places import RESERVED, Doing, Place, Places


class Room:
    """Places, and who was cut."""

    def __init__(self, most: int) -> None:
        self.places = Places(most)
        self.cut: list[Place] = []

    def come(self, address: str, doing: Doing = Doing.ASKING) -> Place:
        place = Place(address, lambda: self.cut.append(place))
        self.places.take(place)
        place.turn(doing)
        return place


def test_the_oldest_that_asked_for_nothing_gives_way_first():
    room = Room(4)
    idle = room.come("10.0.0.1", Doing.IDLE)
    silent = [room.come(f"10.0.0.{at}") for at in (2, 3, 4)]
    room.come("10.0.0.5")
    room.come("10.0.0.6")
    assert room.cut == silent[:2]
    assert idle not in room.cut
    assert len(room.places) == 4


def test_who_is_kept_alive_gives_way_to_a_newcomer_where_most_of_them_are():
    room = Room(4)
    lone = room.come("10.0.0.1", Doing.IDLE)
    many = [room.come("10.0.0.2", Doing.IDLE) for _ in range(3)]
    room.come("10.0.0.3")
    assert room.cut == [many[0]]
    assert lone not in room.cut


def test_past_its_share_an_address_makes_room_among_its_own():
    room = Room(8)
    other = room.come("10.0.0.1")
    own = [room.come("10.0.0.2") for _ in range(20)]
    assert room.cut == own[:14]
    assert other not in room.cut
    assert len(room.places) == 7


def test_who_is_being_answered_never_gives_way_and_a_newcomer_gets_the_reserve():
    room = Room(2)
    served = [room.come("10.0.0.1", Doing.ANSWERING), room.come("10.0.0.2", Doing.ANSWERING)]
    first = room.come("10.0.0.3")
    assert first.is_reserved
    assert not room.places.leave_reserve(first)
    later = [room.come("10.0.0.4") for _ in range(RESERVED)]
    assert room.cut == [first]
    room.places.leave(served[0])
    assert room.places.leave_reserve(later[0])
    assert not later[0].is_reserved


def test_who_does_not_take_its_answer_gives_way_after_a_while(monkeypatch: pytest.MonkeyPatch):
    now_s = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    room = Room(1)
    slow = room.come("10.0.0.1", Doing.TAKING)
    assert room.come("10.0.0.2").is_reserved
    now_s += places_module.UNTAKEN_S + 0.1
    assert not room.come("10.0.0.3").is_reserved
    assert room.cut == [slow]
