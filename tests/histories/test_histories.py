"""The promises hold in recorded histories of real brokers; the recorder and the counts are correct."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from dataclasses import replace

import pytest

from tests.histories import runs
from tests.histories.brokers import FAULTY, HOUSED, ORACLES, PLAIN, TARGETS, Target
from tests.histories.checker import Report, Violation
from tests.histories.doors import Door, Frames
from tests.histories.events import Began, Close, Closed, Event, Msg, Nobody, Odd, Open, Pong, read, write
from tests.histories.runs import Row, run, table
from tests.histories.wire import Wire
from tests.histories.workload import KINDS, epoch
from tests.support.framed import BINARY, CLOSE, CONTINUATION, deflated, frame
from tests.support.servers import BrokerUnavailable, oracle_is_required

IN_CI = pytest.mark.skipif(os.environ.get("GNATSWARM_CI") != "1", reason="takes a minute: GNATSWARM_CI=1")
# Each test run records some seconds of two shards, CI about a minute of all brokers. The number of operations is fixed:
# a slow machine takes longer and sees the same.
OPERATIONS = 15_000
OPERATIONS_IN_CI = 20_000


def recorded(target: Target, operations: int, folder) -> Row:
    """One history, with a seed of its own each day: the schedule is not the same again anyway."""
    try:
        return run(target, 0, seed=int.from_bytes(os.urandom(3)), clients=12, operations=operations, folder=folder)
    except BrokerUnavailable as error:
        if target.kind.is_oracle and not oracle_is_required():
            pytest.skip(str(error))
        raise


def is_telling(row: Row) -> bool:
    """Whether each rule had cases: a promise without a case proves nothing."""
    names = ("had to come", "had to come to a group", "503", "fences")
    return row.histories == 1 and all(row.counts[name] > row.counts["operations"] / 300 for name in names)


def test_every_promise_holds_in_a_history_of_two_shards(tmp_path):
    row = recorded(TARGETS["gnatswarm-2"], OPERATIONS, tmp_path)
    assert not row.violations, "\n".join(row.told)
    assert is_telling(row), row.counts
    assert not list(tmp_path.iterdir()), "a history without a violation is kept"


@IN_CI
@pytest.mark.parametrize("target", [*PLAIN, *FAULTY, *HOUSED], ids=lambda target: target.name)
def test_every_promise_holds_whatever_happens(target, tmp_path):
    row = recorded(target, OPERATIONS_IN_CI, tmp_path)
    assert not row.violations, "\n".join(row.told)
    assert is_telling(row), row.counts


@IN_CI
def test_the_checker_finds_nothing_in_one_nats_server(tmp_path):
    """The checker demands nothing that a single nats-server does not do."""
    row = recorded(ORACLES[0], OPERATIONS_IN_CI, tmp_path)
    assert not row.violations, "\n".join(row.told)
    assert is_telling(row), row.counts


@IN_CI
def test_the_checker_sees_that_pong_is_no_fence_in_a_cluster_of_nats_servers(tmp_path):
    for _ in range(25):  # a slow machine sees few
        row = recorded(ORACLES[1], OPERATIONS_IN_CI, tmp_path)
        seen = sum(row.violations[kind] for kind in ("lost", "late", "overtaken"))
        if seen:
            break
    assert seen
    assert not row.has_failed, "it is there for comparison"
    assert list(tmp_path.iterdir()), "a history with violations is kept"


# ---- what records


class Sink:
    """Takes what a connection writes."""

    def __init__(self) -> None:
        self.written = b""
        self.is_shut = self.is_aborted = False

    def write(self, data: bytes) -> None:
        assert not self.is_shut
        self.written += data

    def write_eof(self) -> None:
        self.is_shut = True

    def abort(self) -> None:
        self.is_aborted = True


READ = (
    b'INFO {"ldm":true} \r\nPING\r\nMSG a.b 7 5\r\n12.01\r\nHMSG _INBOX.3.4 0 16 16\r\nNATS/1.0 503\r\n\r\n\r\n'
    b"PONG\r\nMSG a 8 _INBOX.5.9 2\r\n9.\r\n-ERR 'no'\r\n"
)


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 1000])
def test_a_connection_records_what_it_reads_in_any_pieces(piece):
    events: list[Event] = []
    wire, sink = Wire(events.append, 3, Door(0)), Sink()  # type: ignore[arg-type]
    wire.connection_made(sink)  # type: ignore[arg-type]
    wire.place = "0"
    for at in range(0, len(READ), piece):
        wire.data_received(READ[at : at + piece])
    ats = [event.at for event in events]
    assert ats == sorted(ats)
    assert events == [
        Msg(ats[0], 3, 7, 12, "a.b", 5),
        Nobody(ats[1], 3, 4),
        Pong(ats[2], 3),
        Msg(ats[3], 3, 8, 9, "a", 2),
        Odd(ats[4], 3, "b\"-ERR 'no'\""),
    ]
    assert (sink.written, wire.is_leaving, wire.requests) == (b"PONG\r\n", True, [("_INBOX.5.9", 9)])


@pytest.mark.parametrize("bad", [b"MSG a 1 3\r\n1.x\r\n", b"MSG a 1 x\r\n", b"HMSG a 1 12 12\r\nNATS/1.0\r\n\r\n\r\n"])
def test_bytes_that_nobody_sent_are_recorded_as_odd(bad):
    events: list[Event] = []
    wire, sink = Wire(events.append, 3, Door(0)), Sink()  # type: ignore[arg-type]
    wire.connection_made(sink)  # type: ignore[arg-type]
    wire.data_received(bad)
    assert [type(event) for event in events] == [Odd]
    assert sink.is_aborted


FRAMED = b"".join(
    [
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        frame(BINARY, b"INFO ", masked=False),
        frame(BINARY, b"{}\r", fin=False, masked=False) + frame(CONTINUATION, b"\n", masked=False),
        frame(BINARY, b"MSG seen.a 7 323\r\n12." + b"0123456789abcdef" * 20 + b"\r\n", masked=False),
        frame(CLOSE, masked=False),
    ]
)


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 1000])
def test_behind_a_door_frames_and_names_of_subjects_are_taken_off(piece):
    events: list[Event] = []
    wire, sink = Wire(events.append, 3, Door(0, is_framed=True, heard="seen.")), Sink()  # type: ignore[arg-type]
    wire.connection_made(sink)  # type: ignore[arg-type]
    wire.place = "0"
    for at in range(0, len(FRAMED), piece):
        wire.data_received(FRAMED[at : at + piece])
    assert events == [Msg(events[0].at, 3, 7, 12, "a", 323)]


def test_what_is_compressed_is_read_again():
    door = Door(0, is_framed=True, is_deflated=True)
    frames = Frames(door)
    packed = frame(BINARY, deflated(b"INFO"), masked=False, reserved=0x40)
    assert frames.take(b"HTTP/1.1 101 \r\n\r\n" + packed) == b"INFO"
    words = b"PING\r\n" * 300_000
    assert len(frames.wrapped(words)) < len(words) / 100


def test_who_imports_subscribes_or_publishes_and_never_both_in_one_epoch():
    away = Door(0, is_away=True)
    assert [away.may(kind, 4) for kind in ("sub", "unsub", "most", "pub", "request")] == [
        True,
        True,
        True,
        False,
        False,
    ]
    assert [away.may(kind, 5) for kind in ("sub", "unsub", "most", "pub", "request")] == [False, True, True, True, True]
    assert not replace(away, may_ask=False).may("request", 5)


async def test_a_connection_that_was_shut_takes_what_comes_and_says_nothing():
    events: list[Event] = []
    wire, sink = Wire(events.append, 3, Door(0)), Sink()  # type: ignore[arg-type]
    wire.connection_made(sink)  # type: ignore[arg-type]
    wire.place = "0"
    closing = asyncio.create_task(wire.close("shut", 5))
    await asyncio.sleep(0)  # the task begins
    assert sink.is_shut
    wire.data_received(b"PING\r\nMSG a 1 2\r\n7.\r\n")
    wire.connection_lost(None)
    await closing
    assert [type(event) for event in events] == [Close, Msg, Closed]
    assert (sink.written, sink.is_aborted) == (b"", False)


def test_an_epoch_is_the_same_again_and_epochs_differ():
    epochs = [epoch(5, number) for number in range(60)]
    epoch.cache_clear()
    assert epochs == [epoch(5, number) for number in range(60)]
    for at, kind in enumerate(KINDS):
        assert kind == "sub" or any(one.weights[at] == 0 for one in epochs)
        assert any(one.weights[at] > 0 for one in epochs)
    assert len({one.subjects[0] for one in epochs}) == 60


# ---- what counts


def test_a_history_with_a_violation_is_kept_and_told(tmp_path):
    began = Began(5, "x", 1, 1)
    for name in ("good", "bad"):
        write(tmp_path / name, [began])
    row = Row(TARGETS["gnatswarm-1"])
    row.add(Report(counts=Counter(operations=10)), tmp_path / "good", 5)
    assert not row.has_failed
    report = Report([Violation("lost", "why", (Open(2_005, 1, "0"),))] * 5, Counter(operations=20))
    row.add(report, tmp_path / "bad", 5)
    assert [path.name for path in tmp_path.iterdir()] == ["bad"]
    assert list(read(tmp_path / "bad")) == [began]
    assert row.has_failed
    assert len(row.told) == runs.MOST_TOLD
    assert "2.0 µs  Open   conn=1, place='0'" in row.told[0]
    assert "| gnatswarm-1 | 2 | 30 | 0 | 0 | 0 | 0 | lost 5 |" in table([row])
