"""The record of a broker is used only by routers that know its version."""

from __future__ import annotations

import os

import msgspec
import pytest

from gnatswarm.router.supervision.record import OPTIONS, RECORD_VERSION, BrokerRecord, Left, Place, RecordError
from gnatswarm.shards.boundary.keeping import RECORD, Legacy


def left(version: int) -> Legacy:
    record = BrokerRecord(version, "N", "n", 0.0, "", 1, False, 0, 0, Place("", 1), None, {}, [], [])
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
