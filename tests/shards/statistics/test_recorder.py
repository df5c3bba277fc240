"""A recorder's windows when the clock is set, and at their boundaries: every message is in one, and in one only.

The clock is a fake, the files are real ones, and the messages go through the engine.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gnatswarm.broker.options import Stats
from gnatswarm.broker.tally import Tally
from gnatswarm.shards.boundary.pace import Pace
from gnatswarm.shards.boundary.page import Page
from gnatswarm.shards.boundary.rows import ConnectionRow, HotSubjectsQuery, SubscriptionRow
from gnatswarm.shards.boundary.statfile import ENDING
from gnatswarm.shards.monitoring import hot_subjects as hot_subjects_module
from gnatswarm.shards.statistics import recorder as recorder_module
from gnatswarm.shards.statistics.recorder import Recorder
from tests.support.engine import QUIET, Engine, EngineClient
from tests.support.mesh import Mesh
from tests.support.servers import wait_until
from tests.support.statistics import added, rows

WINDOW_US = 10_000_000
HOUR_S = 3600.0
START_US = 1_770_000_003_000_000  # three seconds into a window


class Clock:
    """Time that the test moves; replaces the modules time and asyncio in the recorder."""

    def __init__(self) -> None:
        self.wall_us = START_US
        self.passed_us = 0
        self.timers: list[tuple[int, Callable[[], None]]] = []
        self.tasks: list[asyncio.Task[None]] = []

    # -- as `time`
    def time_ns(self) -> int:
        return self.wall_us * 1000

    def monotonic_ns(self) -> int:
        return self.passed_us * 1000

    def process_time(self) -> float:
        return self.passed_us / 4e6  # a quarter of a core

    # -- as `asyncio` and its loop
    def get_running_loop(self) -> Clock:
        return self

    def call_later(self, delay_s: float, call: Callable[[], None]) -> SimpleNamespace:
        assert delay_s > 0
        timer = (self.passed_us + int(delay_s * 1e6), call)
        self.timers.append(timer)
        return SimpleNamespace(cancel=lambda: self.timers.remove(timer))

    def create_task(self, work: Any) -> asyncio.Task[None]:
        self.tasks.append(asyncio.ensure_future(work))
        return self.tasks[-1]

    # -- for the test
    def set(self, by_s: float) -> None:
        """Somebody sets the wall clock; no time passes."""
        self.wall_us += int(by_s * 1e6)

    async def pass_time(self, seconds: float) -> None:
        until_us = self.passed_us + int(seconds * 1e6)
        while due := [timer for timer in self.timers if timer[0] <= until_us]:
            timer = min(due, key=lambda timer: timer[0])
            self.timers.remove(timer)
            self.move_to(max(timer[0], self.passed_us))
            timer[1]()
            for task in self.tasks:
                await task
        self.move_to(until_us)

    def move_to(self, passed_us: int) -> None:
        self.wall_us += passed_us - self.passed_us
        self.passed_us = passed_us


class Person:
    """What a session says of its client."""

    account = "$G"
    user = "eve"
    stated = ("probe", "python3", "1.0")
    host = "127.0.0.1"

    def __init__(self, client: EngineClient) -> None:
        self.connection = client.connection


class Shard:
    """A recorder over an engine of its own. `publish` says so many messages, and notes it."""

    def __init__(self, directory: Path, clock: Clock, options: Stats) -> None:
        self.engine = Engine()
        self.engine.probe.tally(options.max_subjects, options.client_subjects)
        self.client = self.engine.client()
        self.client.feed(b"SUB a.* 1\r\n")
        self.clock = clock
        self.published = 0
        self.started_us = clock.passed_us
        self.page = Page.create()
        probe = self.engine.probe
        self.recorder = Recorder(
            options,
            str(directory),
            broker="B" * 16,
            boot="boot1",
            shard=0,
            page=self.page,
            reactor=SimpleNamespace(slow_consumers=0, stalls=0),  # type: ignore[arg-type]
            links=SimpleNamespace(sessions=[]),  # type: ignore[arg-type]
            mesh=SimpleNamespace(tally=probe.tally, sublists=lambda: [probe.sublist]),  # type: ignore[arg-type]
            fanout=SimpleNamespace(refused_msgs=0, refused_bytes=0),  # type: ignore[arg-type]
            take_denied=list,
            sessions={1: Person(self.client)},
        )

    def publish(self, count: int) -> None:
        self.client.feed(b"PUB a.b 3\r\nabc\r\n" * count)
        self.published += count


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(recorder_module, "time", clock)
    monkeypatch.setattr(recorder_module, "asyncio", clock)
    return clock


@pytest.fixture
def shard(tmp_path: Path, clock: Clock) -> Shard:
    return Shard(tmp_path, clock, Stats(window_s=WINDOW_US / 1e6))


def assert_complete(records: list[dict[str, Any]], shard: Shard) -> None:
    """Every message in one window, and windows that follow each other without a hole, whatever the wall clock said."""
    subjects = added(records, "subject", "in_msgs", "deliveries", "in_bytes")
    assert subjects == {"in_msgs": shard.published, "deliveries": shard.published, "in_bytes": 3 * shard.published}
    windows = [row for row in records if row["kind"] == "shard"]
    assert_clients(records)
    assert added(records, "client", "in_msgs", "out_msgs") == {"in_msgs": shard.published, "out_msgs": shard.published}
    assert added(records, "shard", "in_msgs")["in_msgs"] == shard.published
    assert sum(row["window_us"] for row in windows) == shard.clock.passed_us - shard.started_us
    assert all(row["window_start_us"] % WINDOW_US == 0 for row in records)
    assert all(row["window_nominal_us"] == WINDOW_US for row in windows)
    assert shard.page.unrecorded(0)[0] > 0  # the page knows until when there are windows


def assert_clients(records: list[dict[str, Any]]) -> None:
    """In every window the rows of clients add up to what the window has counted, and each to its parts."""
    for window in (row for row in records if row["kind"] == "shard"):
        key = (window["file"], window["window_start_us"], window["window_us"])
        mine = [row for row in records if (row["file"], row["window_start_us"], row["window_us"]) == key]
        for name, refused in ("in_msgs", "refused_msgs"), ("in_bytes", "refused_bytes"), ("out_msgs", ""):
            of_clients = sum(row[name] for row in mine if row["kind"] == "client")
            assert of_clients == window[name] + window.get(refused, 0), name
    for row in records:
        if row["kind"] == "client" and row["published"]:
            assert sum(one["msgs"] for one in row["published"]) == row["in_msgs"]


def starts(records: list[dict[str, Any]]) -> list[int]:
    return [row["window_start_us"] for row in records if row["kind"] == "shard"]


def file_names(directory: Path) -> list[str]:
    return [path.name for path in directory.glob(f"*/*/[!.]*{ENDING}")]


async def test_windows_begin_at_multiples_of_their_length(shard: Shard, clock: Clock, tmp_path: Path):
    for _ in range(7):
        shard.publish(11)
        await clock.pass_time(5)
    shard.recorder.close()
    records = rows(tmp_path)
    assert_complete(records, shard)
    first = START_US // WINDOW_US * WINDOW_US
    assert starts(records) == [first + i * WINDOW_US for i in range(4)]
    lengths = [row["window_us"] for row in records if row["kind"] == "shard"]
    assert lengths == [7_000_000, WINDOW_US, WINDOW_US, 8_000_000]


async def test_what_comes_while_a_window_ends_is_in_one_of_the_two(
    shard: Shard, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async def busy() -> None:  # between any two steps of a window's end
        shard.publish(1)

    monkeypatch.setattr(recorder_module, "Pace", lambda: SlowPace(busy))
    for _ in range(5):
        shard.publish(3)
        await clock.pass_time(10)
    assert shard.published >= 5 * 3 + 5 * 5
    shard.recorder.close()
    assert_complete(rows(tmp_path), shard)


class SlowPace:
    longest_s = 0.0

    def __init__(self, between: Callable[[], Any]) -> None:
        self.between = between

    async def __call__(self) -> None:
        await self.between()


@pytest.mark.parametrize("by_s", [HOUR_S, -HOUR_S, 30.0, -30.0, 0.5, -0.5, 400 * 24 * HOUR_S, -400 * 24 * HOUR_S])
async def test_a_clock_that_is_set_loses_and_doubles_nothing(shard: Shard, clock: Clock, tmp_path: Path, by_s: float):
    shard.publish(5)
    await clock.pass_time(12)
    shard.publish(7)
    clock.set(by_s)
    shard.publish(11)
    await clock.pass_time(25)  # the next window ends in ten seconds at most, wherever the clock stands
    shard.publish(13)
    shard.recorder.close()
    records = rows(tmp_path)
    assert_complete(records, shard)
    assert len(starts(records)) >= 4
    # The windows after the step are named by the new time.
    last = sorted((row for row in records if row["kind"] == "shard"), key=lambda row: row["file"])[-1]
    assert clock.wall_us - WINDOW_US < last["window_start_us"] <= clock.wall_us
    names = file_names(tmp_path)
    assert len(set(names)) == len(names) and len({row["file"] for row in records}) == len(names)


@pytest.mark.parametrize("by_s", [HOUR_S, -HOUR_S])
async def test_hot_subjects_cover_what_has_passed_and_not_by_how_much_the_clock_was_set(
    shard: Shard, clock: Clock, monkeypatch: pytest.MonkeyPatch, by_s: float
):
    monkeypatch.setattr(hot_subjects_module, "time", clock)
    shard.publish(5)
    await clock.pass_time(12)  # one window has ended …
    shard.publish(7)
    clock.set(by_s)
    await clock.pass_time(15)  # … and another one, or two
    sublist = shard.engine.probe.sublist
    mesh: Any = SimpleNamespace(account_names=lambda: [b"$G"], account=lambda _name: sublist)
    answer = hot_subjects_module.hot_subjects(HotSubjectsQuery(), mesh, shard.recorder, Pace())
    [part] = [part async for part in answer]
    assert part.now_us - part.since_us == 27_000_000
    assert part.now_us == clock.wall_us
    assert [(row.subject, row.msgs) for row in part.rows] == [("a.b", 12)]
    shard.recorder.close()


async def test_a_clock_that_is_set_again_and_again(shard: Shard, clock: Clock, tmp_path: Path):
    for by_s in (-7200.0, 3.0, 7200.0, -1.0, -86400.0, 86400.0, 0.001):
        clock.set(by_s)
        shard.publish(17)
        await clock.pass_time(6)
    shard.recorder.close()
    assert_complete(rows(tmp_path), shard)


async def test_a_disk_that_is_full_pauses_once_and_goes_on(
    shard: Shard, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    from gnatswarm.shards.boundary import statfile

    write, is_full = os.write, True

    def limited(fd: int, data: Any) -> int:
        if is_full:
            write(fd, bytes(data)[: len(data) // 2])  # half of it still fits
            raise OSError(28, "No space left on device")
        return write(fd, data)

    monkeypatch.setattr(statfile, "os", SimpleNamespace(**{**vars(os), "write": limited}))
    for _ in range(4):
        shard.publish(9)
        await clock.pass_time(10)
    await asyncio.to_thread(wait_until, lambda: "Statistics pause" in caplog.text)
    is_full = False
    shard.publish(9)
    await clock.pass_time(10)
    shard.recorder.close()
    assert_complete(rows(tmp_path), shard)
    said = [record.getMessage() for record in caplog.records]
    assert [line for line in said if "pause" in line] == [
        f"Statistics pause: cannot write to {tmp_path}: No space left on device; the broker goes on"
    ]
    assert said[-1] == "Statistics go on: 0 windows were lost"


async def test_an_error_of_ours_costs_the_rows_of_one_window(
    shard: Shard, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """There were none any more, and nobody heard why."""
    await clock.pass_time(10)
    with monkeypatch.context() as broken:
        broken.setattr(shard.recorder, "_take_refused", lambda: 1 // 0)
        await clock.pass_time(10)
    assert caplog.text.count("a window of the statistics is lost") == 1
    for _ in range(2):
        shard.publish(9)
        await clock.pass_time(10)
    shard.recorder.close()
    assert added(rows(tmp_path), "shard", "in_msgs") == {"in_msgs": 18}


async def test_a_window_has_only_its_own_frames_of_a_link(shard: Shard, clock: Clock, tmp_path: Path):
    link: Any = SimpleNamespace(
        shard=1, is_joined=True, is_behind=False, pending_bytes=0, out_msgs=5, out_bytes=50, in_msgs=2, in_bytes=20,
        deliveries=2,
    )  # fmt: skip
    sessions: list[Any] = shard.recorder._links.sessions
    sessions.append(SimpleNamespace(link=link))
    await clock.pass_time(10)
    link.out_msgs, link.out_bytes, link.deliveries = 8, 80, 3
    await clock.pass_time(10)
    shard.recorder.close()
    found = [record for record in rows(tmp_path) if record["kind"] == "link"]
    names = ("peer", "sent_msgs", "sent_bytes", "received_msgs", "received_bytes", "received_deliveries")
    assert [tuple(record[name] for name in names) for record in found] == [(1, 5, 50, 2, 20, 2), (1, 3, 30, 0, 0, 1)]


@pytest.mark.parametrize("names", [True, False])
async def test_rows_of_slow_consumers_say_no_more_of_a_client_than_rows_of_clients(
    clock: Clock, tmp_path: Path, names: bool
):
    shard = Shard(tmp_path, clock, Stats(window_s=WINDOW_US / 1e6, client_names=names))
    shard.recorder.on_slow(
        ConnectionRow(
            *(7, "192.0.2.1", 4222, 1, 2, 3, "Slow Consumer (Write Deadline)", 0, 99, 0, 0, 0, 0, 1),
            *("Jane Doe" + "n" * 60_000, "python3", "1.0", "u" * 60_000),
            subs=(SubscriptionRow("a.b", "", "1", 5, 0, 7),),
        )
    )
    shard.recorder.close()
    [row] = [row for row in rows(tmp_path) if row["kind"] == "slow"]
    assert (row["cid"], row["subject"], row["pending_bytes"]) == (7, "a.b", 99)
    assert (row["name"][:8], row["ip"]) == (("Jane Doe", "192.0.2.1") if names else ("", ""))
    assert len(row["name"]) <= 256 and len(row["user"]) <= 256


async def test_what_was_published_and_sent_nowhere_counts_as_recorded(shard: Shard, clock: Clock):
    """Else a gap row would count it again when the shard dies."""
    fanout: Any = shard.recorder._fanout
    fanout.refused_msgs, fanout.refused_bytes = 3, 12
    shard.page.store(0, "in_msgs", 3)
    shard.page.store(0, "in_bytes", 12)
    await clock.pass_time(10)
    shard.recorder.close()
    assert not any(shard.page.unrecorded(0)[1])


async def test_of_many_accounts_only_those_that_were_used_get_another_tally(shard: Shard, clock: Clock, tmp_path: Path):
    """Ten thousands of tallies of 64 KB each were made at every window's end, all in one turn."""
    mesh = Mesh(1, connect=QUIET)
    probe, of_accounts = shard.engine.probe, mesh.engines[0].probe.mesh
    assert of_accounts is not None
    others: list[Any] = [of_accounts.account(b"A%d" % number) for number in range(50)]
    for other in others:
        other.count_into(Tally(Stats().max_subjects))
    all_of_them: list[Any] = [probe.sublist, *others]
    used, *unused = all_of_them
    shard.recorder._sublists = lambda: all_of_them
    before = [sublist.tally for sublist in all_of_them]
    shard.publish(3)
    turns = sum(1 for _ in shard.recorder._window_steps())
    assert turns >= 2 * len(all_of_them)  # the loop may run after each account, twice
    assert [sublist.tally is tally for sublist, tally in zip(all_of_them, before, strict=True)] == [False] + [True] * 50
    unused[7].tally.note(b"s", 2, link_in=1)
    for _ in shard.recorder._window_steps():
        pass
    assert [sublist.tally is tally for sublist, tally in zip(unused, before[1:], strict=True)].index(False) == 7
    assert unused[7].tally.is_empty and used.tally.is_empty
    shard.recorder.close()
    found = [(row["account"], row["in_msgs"]) for row in rows(tmp_path) if row["kind"] == "subject"]
    assert found == [("$G", 3), ("A7", 2)]
    mesh.close()


async def test_what_nobody_got_of_accounts_that_are_forgotten_is_one_sum(shard: Shard):
    """Their names may come and go for months; the sum of all may not fall."""
    sublist = shard.engine.probe.sublist
    there = [sublist]
    shard.recorder._sublists = lambda: there

    def end_window() -> dict[str, int]:
        for _ in shard.recorder._window_steps():
            pass
        return shard.recorder.unwanted_msgs

    shard.client.feed(b"PUB nobody 0\r\n\r\n" * 3)
    assert end_window() == {"$G": 3}
    there.clear()
    assert end_window() == {"": 3}
    there.append(sublist)
    shard.client.feed(b"PUB nobody 0\r\n\r\n" * 2)
    assert end_window() == {"": 3, "$G": 2}
    there.clear()
    assert end_window() == {"": 5}
