"""The record of a broker is used only by routers that know its version."""

from __future__ import annotations

import errno
import os

import msgspec
import pytest

from gnatswarm.broker.options import Options
from gnatswarm.router.supervision.record import (
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
