"""The record of a broker is used only by routers that know its version."""

from __future__ import annotations

import errno
import os
import re
import time

import msgspec
import pytest

from gnatswarm.broker.options import Options
from gnatswarm.router.supervision.record import (
    AGAIN_S,
    OPTIONS,
    RECORD_VERSION,
    BrokerRecord,
    Holdings,
    Left,
    OptionsRecord,
    Place,
    RecordError,
)
from gnatswarm.shards.boundary.keeping import RECORD, Legacy


def record_of(version: int) -> BrokerRecord:
    return BrokerRecord(version, "N", "n", 0.0, "", 1, False, 0, 0, Place("", 1), None, {}, [], [])


def left(version: int) -> Legacy:
    record = record_of(version)
    held = {}
    for name, data in ((RECORD, msgspec.msgpack.encode(record)), (OPTIONS, b"\x82\xaageneration\x01\xa7options\x80")):
        held[name] = os.memfd_create(name)
        os.write(held[name], data)
    return Legacy("killed", held, [], [])


@pytest.mark.parametrize("version", [RECORD_VERSION - 1, RECORD_VERSION + 1])
def test_a_record_of_another_version_is_refused(version):
    legacy = left(version)
    with pytest.raises(RecordError, match=f"version {version}, this router knows {RECORD_VERSION}"):
        Left.read(legacy)
    for number in legacy.held.values():
        os.close(number)


def test_its_own_is_read():
    legacy = left(RECORD_VERSION)
    assert Left.read(legacy).record.server_id == "N"
    for number in legacy.held.values():
        os.close(number)


class Keeper:
    """Takes what it is given, or (`is_full`) nothing."""

    def __init__(self) -> None:
        self.held: list[str] = []
        self.is_full = False

    def hold(self, name: str, descriptor: int) -> None:
        if self.is_full:
            raise OSError(errno.ETOOMANYREFS, "Too many references")
        self.held.append(name)

    def release(self, name: str) -> None:
        self.held.remove(name)


def test_what_cannot_be_held_now_is_held_later(caplog):
    """A reload, a shard's death: none of it may fail for the record that another router would need."""
    keeper = Keeper()
    holdings = Holdings(keeper, held={})
    keeper.is_full = True
    holdings.hold_options(OptionsRecord(1, Options()))
    holdings.remember(record_of(RECORD_VERSION))
    holdings.catch_up()
    assert keeper.held == []
    assert [record.levelname for record in caplog.records] == ["ERROR"]  # once
    keeper.is_full = False
    holdings.remember(record_of(RECORD_VERSION))
    holdings.catch_up()
    assert keeper.held == [RECORD, OPTIONS]
    holdings.catch_up()
    assert keeper.held == [RECORD, OPTIONS]


def test_what_the_keeper_had_no_room_for_is_offered_again(caplog, monkeypatch):
    """Another router would find the options before a reload, and say nothing of it."""
    now_s = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    keeper = Keeper()
    holdings = Holdings(keeper, held={})
    holdings.hold_options(OptionsRecord(1, Options()))
    holdings.remember(record_of(RECORD_VERSION))
    assert not holdings.is_answered and not holdings.are_options_late
    holdings.on_held(RECORD, False)
    holdings.on_held(OPTIONS, False)
    assert holdings.is_answered and holdings.are_options_late
    for _ in range(3):  # not at once
        holdings.catch_up()
    assert keeper.held == [OPTIONS, RECORD]
    now_s += AGAIN_S
    holdings.catch_up()
    assert sorted(keeper.held) == sorted([OPTIONS, RECORD] * 2)
    holdings.on_held(RECORD, False)
    holdings.on_held(OPTIONS, True)
    assert holdings.is_answered and not holdings.are_options_late
    lines = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert [re.findall(r"to keep (.*) for another", line) for line in lines] == [["record"], ["the options"]]


def test_an_answer_to_what_was_replaced_meanwhile_says_nothing(caplog):
    keeper = Keeper()
    holdings = Holdings(keeper, held={})
    for generation in (1, 2):
        holdings.hold_options(OptionsRecord(generation, Options()))
    holdings.on_held(OPTIONS, False)
    assert not holdings.is_answered and not holdings.are_options_late
    holdings.on_held(OPTIONS, True)
    assert holdings.is_answered and not holdings.are_options_late
    assert not caplog.records


def test_a_socket_for_which_there_was_no_room_is_offered_again():
    keeper = Keeper()
    holdings = Holdings(keeper, held={})
    things = {"listener.0": 5, "page": 6}
    holdings.keep(things)
    holdings.keep(things)
    assert keeper.held == ["listener.0", "page"]
    holdings.on_held("listener.0", False)
    holdings.on_held("page", True)
    holdings.keep(things)
    assert keeper.held == ["listener.0", "page", "listener.0"]
