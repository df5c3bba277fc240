"""Gap rows: the least of what is to be done about a dead shard, and never nothing."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from gnatswarm.router.supervision import gap
from gnatswarm.router.supervision.gap import Gaps
from gnatswarm.router.supervision.record import GapsRecord
from gnatswarm.shards.boundary import statfile
from gnatswarm.shards.boundary.page import Page
from gnatswarm.shards.boundary.records import ShardRecord
from tests.support.servers import wait_until
from tests.support.statistics import rows


def note(gaps: Gaps, directory: Path | str, shard: int = 3, msgs: int = 1, boot: str = "b", until_us: int = 0) -> None:
    """A process ends, of whose `msgs` messages there is no statistics."""
    page = Page.create()
    page.note_recorded(shard, until_us, (max(0, -msgs), 0, 0, 0, 0, 0))
    page.store(shard, "in_msgs", max(0, msgs))
    page.store(shard, "in_bytes", max(0, msgs))
    end(gaps, page, directory, shard, boot)
    page.close()


def refuse(_file: object, _blocks: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def hidden_and_shown(directory: Path) -> tuple[Path, Path]:
    """The one file that is not finished, and what it is called then."""
    (hidden,) = directory.rglob(".*.zst")
    return hidden, hidden.with_name(hidden.name[1:])


def are_idle() -> bool:
    """Whether no thread writes rows."""
    return "gap row" not in [thread.name for thread in threading.enumerate()]


def end(gaps: Gaps, page: Page, directory: Path | str, shard: int = 3, boot: str = "b", booted_us: int = 1) -> None:
    """A process ends, of which the page has this."""
    process: Any = SimpleNamespace(shard=shard, boot_id=boot, booted_us=booted_us)
    gaps.note(page, process, "server", str(directory), "killed")


def test_a_row_for_which_there_is_no_thread_waits_and_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
):
    def start(_thread: object) -> None:
        raise RuntimeError("can't start new thread")

    gaps = Gaps(lambda: None)
    with monkeypatch.context() as broken:
        broken.setattr(threading.Thread, "start", start)
        note(gaps, tmp_path)
        gaps.write(str(tmp_path), is_urgent=True)
    assert [record.getMessage() for record in caplog.records] == [
        "Statistics: no gap row for shard 3: can't start new thread; it is tried again"
    ]
    gaps.close(str(tmp_path))
    assert [(row["kind"], row["shard"], row["in_msgs"]) for row in rows(tmp_path)] == [("gap", 3, 1)]


def test_what_a_full_disk_refuses_is_written_when_there_is_room_one_row_for_each_shard(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
):
    monkeypatch.setattr(gap, "RETRY_S", 0.0)
    gaps = Gaps(lambda: None)
    with monkeypatch.context() as full:
        full.setattr(statfile.StatFile, "append", refuse)
        note(gaps, tmp_path, msgs=5, boot="first", until_us=2_000_000)
        note(gaps, tmp_path, shard=1, msgs=7)
        for _ in range(2):  # again and again: the log says it once
            wait_until(are_idle)
            gaps.write(str(tmp_path))
        note(gaps, tmp_path, msgs=3, boot="second", until_us=9_000_000)
        wait_until(are_idle)
        gaps.write(str(tmp_path))
        wait_until(are_idle)
    assert rows(tmp_path, hidden=True) == [] and gaps.msgs == 15
    assert sorted(record.getMessage() for record in caplog.records) == [
        f"Statistics: no gap row for shard {shard}: No space left on device; it is tried again" for shard in (1, 3)
    ]
    gaps.close(str(tmp_path))
    found = {row["shard"]: row for row in rows(tmp_path)}
    assert {shard: (row["in_msgs"], row["in_bytes"]) for shard, row in found.items()} == {1: (7, 7), 3: (8, 8)}
    assert found[3]["boot"] == "second" and found[3]["window_start_us"] == 2_000_000


def test_what_could_not_be_written_at_all_is_told_at_the_end(caplog: pytest.LogCaptureFixture):
    gaps = Gaps(lambda: None)
    note(gaps, "/dev/null/no-directory", msgs=5)
    gaps.close("/dev/null/no-directory")
    assert caplog.records[-1].getMessage() == "Statistics: no gap row for shard 3: 5 messages are in no statistics"


def test_a_router_that_ends_does_not_wait_for_ever_for_a_disk(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
):
    answers = threading.Event()
    monkeypatch.setattr(gap, "LAST_S", 0.01)
    monkeypatch.setattr(statfile.StatFile, "append", lambda _file, _blocks: answers.wait())
    gaps = Gaps(lambda: None)
    note(gaps, tmp_path, msgs=5)
    gaps.close(str(tmp_path))
    assert caplog.records[-1].getMessage() == "Statistics: no gap row for shard 3: 5 messages are in no statistics"
    answers.set()
    wait_until(are_idle)


def test_whatever_prevents_a_row_is_said_and_it_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
):
    def fail(_directory: str) -> None:
        raise ImportError("no descriptors")

    gaps = Gaps(lambda: None)
    with monkeypatch.context() as broken:
        broken.setattr(statfile, "adopt_orphans", fail)
        note(gaps, tmp_path, msgs=5)
        wait_until(are_idle)
        gaps.write(str(tmp_path))
    assert "no gap row for shard 3: no descriptors; it is tried again" in caplog.text
    gaps.close(str(tmp_path))
    assert [row["in_msgs"] for row in rows(tmp_path)] == [5]


def test_what_was_written_beyond_what_was_counted_is_no_gap(tmp_path: Path):
    gaps = Gaps(lambda: None)
    note(gaps, tmp_path, msgs=-5)
    gaps.close(str(tmp_path))
    assert gaps.msgs == 0 and rows(tmp_path, hidden=True) == []


def test_another_router_writes_what_waits_and_nothing_twice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """The one before may have died between a row on the disk and the record of it, or beside a disk that hung."""
    told: list[GapsRecord] = []
    gaps = Gaps(lambda: told.append(gaps.record))
    note(gaps, tmp_path, msgs=5, boot="written")
    wait_until(lambda: len(rows(tmp_path)) == 1)
    (path,) = tmp_path.rglob("*-written-*")
    inode = path.stat().st_ino
    with monkeypatch.context() as full:
        full.setattr(statfile.StatFile, "append", refuse)
        wait_until(are_idle)
        note(gaps, tmp_path, msgs=3, boot="waiting")
        wait_until(are_idle)
    both = told[0], told[-1]
    left = GapsRecord(8, [one.rows[0] for one in both], [one.noted_until_us[0] for one in both])
    assert len(left.rows) == 2
    successor = Gaps(lambda: None)
    page = Page.create()
    for row in left.rows:  # it has it, or would count again what the next process does
        page.note_gap(3, msgspec.json.decode(row)["window_start_us"] + msgspec.json.decode(row)["window_us"])
    page.store(3, "in_msgs", 7)
    successor.take_over(left, page)
    assert page.unrecorded(3)[1][0] == 7
    assert successor.record == left
    note(successor, tmp_path, msgs=2, boot="newest")
    successor.close(str(tmp_path))
    assert successor.msgs == 10
    found = {row["boot"]: row["in_msgs"] for row in rows(tmp_path)}
    assert found == {"newest": 2, "waiting": 3, "written": 5}
    assert path.stat().st_ino == inode  # a file is never changed
    assert successor.record == GapsRecord(10)


class RouterDies(Exception):
    """In the middle of what it does."""


@pytest.mark.parametrize(
    ("when", "is_known"),
    [
        ("before it is handed over", True),
        ("behind that", True),
        ("behind that", False),
        ("when the page knows", True),
        ("when the page knows", False),
    ],
)
def test_a_router_that_dies_while_it_notes_a_gap_leaves_it_once(tmp_path: Path, when: str, *, is_known: bool):
    """`is_known`: the next router hears of the same process, too."""
    page = Page.create()
    page.note_recorded(3, 1_000_000, (10, 0, 0, 0, 0, 0))
    page.store(3, "in_msgs", 15)
    told: list[GapsRecord] = [GapsRecord()]

    def remember() -> None:
        if when == "before it is handed over":
            raise RouterDies
        told.append(gaps.record)
        if when == "behind that":
            raise RouterDies

    gaps = Gaps(remember)
    if when == "when the page knows":
        gaps.write = lambda *_, **__: None  # type: ignore[method-assign]
        end(gaps, page, tmp_path)
    else:
        with pytest.raises(RouterDies):
            end(gaps, page, tmp_path)
    successor = Gaps(lambda: None)
    successor.take_over(told[-1], page)
    if is_known:
        end(successor, page, tmp_path)
    page.store(3, "in_msgs", 17)  # the next one
    end(successor, page, tmp_path, boot="next")
    successor.close(str(tmp_path))
    assert sorted((row["boot"], row["in_msgs"]) for row in rows(tmp_path)) == [("b", 5), ("next", 2)]
    assert not any(page.unrecorded(3)[1])
    page.close()


def test_a_restarted_shard_whose_first_window_begins_before_its_gap_loses_nothing(tmp_path: Path):
    """Windows begin at multiples of their length, so its first one may seem to end before the one before it died."""
    page = Page.create()
    page.store(3, "in_msgs", 5)
    told: list[GapsRecord] = []
    gaps = Gaps(lambda: told.append(gaps.record))
    end(gaps, page, tmp_path, booted_us=16_000_000)
    page.note_recorded(3, 12_500_000, (0, 0, 0, 0, 0, 0))
    page.store(3, "in_msgs", 12)
    successor = Gaps(lambda: None)
    successor.take_over(told[0], page)
    assert page.unrecorded(3) == (12_500_000, (7, 0, 0, 0, 0, 0))
    gaps.close(str(tmp_path))
    page.close()


def test_a_router_that_dies_while_it_notes_another_gap_of_a_shard_leaves_both_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """The first one waits for a disk that is full."""
    page = Page.create()
    page.store(3, "in_msgs", 5)
    told: list[GapsRecord] = []

    def remember() -> None:
        told.append(gaps.record)
        if page.unrecorded(3)[1][0] == 2:
            raise RouterDies

    gaps = Gaps(remember)
    with monkeypatch.context() as full:
        full.setattr(statfile.StatFile, "append", refuse)
        end(gaps, page, tmp_path)
        wait_until(are_idle)
        gaps.write(str(tmp_path))
        page.store(3, "in_msgs", 7)
        with pytest.raises(RouterDies):
            end(gaps, page, tmp_path, boot="next")
    successor = Gaps(lambda: None)
    successor.take_over(told[-1], page)
    end(successor, page, tmp_path, boot="next")
    successor.close(str(tmp_path))
    assert sum(row["in_msgs"] for row in rows(tmp_path)) == 7 == successor.msgs
    page.close()


def window(start_us: int, msgs: int, boot: str = "b") -> bytes:
    """The row of a shard that has had so many messages in 10 s, one of which was refused."""
    kept: dict[str, Any] = {
        field.name: () if field.name.endswith("widths") else 0
        for field in msgspec.structs.fields(ShardRecord)
        if field.required
    }
    kept |= {"version": 1, "broker": "server", "boot": boot, "shard": 3, "file": 1, "refused_msgs": 1}
    kept |= {"window_start_us": start_us, "window_us": 10_000_000, "in_msgs": msgs - 1}
    return msgspec.json.encode(ShardRecord(**kept)) + b"\n"


@pytest.mark.parametrize("n_noted", [0, 1, 2])
@pytest.mark.parametrize("at_first", ["", "the disk refuses", "it is being finished", "the router dies"])
def test_a_window_that_was_written_and_not_noted_is_no_gap(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, n_noted: int, at_first: str
):
    """Its process was killed in between, as one whose disk hangs is; `n_noted` of two windows are on the page."""
    start_us = 1_790_000_000_000_000
    page = Page.create()
    file = statfile.StatFile(tmp_path, statfile.file_name("server", 3, "b", 1), start_us)
    lock = os.dup(file._fd)
    for number in range(max(1, n_noted)):
        file.append([window(start_us + number * 10_000_000, 100 + number)])
    for number in range(n_noted):
        page.note_recorded(3, start_us + 10_000_000 + number * 10_000_000, (100 + number, 0, 0, 0, 0, 0))
    if n_noted == 1:
        file.append([window(start_us + 10_000_000, 101)])
    page.store(3, "in_msgs", 1000)
    file.drop()
    if at_first != "it is being finished":
        os.close(lock)
    gaps = Gaps(lambda: None)
    monkeypatch.setattr(gap, "RETRY_S", 0.0)
    with monkeypatch.context() as full:
        if at_first == "the disk refuses":
            full.setattr(statfile.StatFile, "append", refuse)
        if at_first == "the router dies":  # before it has looked into the file
            gaps.write = lambda *_, **__: None  # type: ignore[method-assign]
        end(gaps, page, tmp_path)
        if at_first == "the router dies":
            left = gaps.record
            gaps = Gaps(lambda: None)
            gaps.take_over(left, page)
        if at_first == "it is being finished":
            os.rename(*hidden_and_shown(tmp_path))
            os.close(lock)
        wait_until(are_idle)
    gaps.close(str(tmp_path))
    found = rows(tmp_path)
    assert sum(row["in_msgs"] + row.get("refused_msgs", 0) for row in found) == 1000
    assert {row["kind"] for row in found} == {"gap", "shard"}
    page.close()


def test_a_window_that_was_not_noted_is_no_gap_where_its_shard_dies_again_while_a_row_is_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """Nobody has looked into either file when the rows of both deaths become one."""
    start_us = 1_790_000_000_000_000
    answers, append = threading.Event(), statfile.StatFile.append

    def hang(file: statfile.StatFile, blocks: list[bytes]) -> None:
        answers.wait()
        append(file, blocks)

    gaps = Gaps(lambda: None)
    page = Page.create()
    for number, boot in enumerate(["first", "next"], 1):
        file = statfile.StatFile(tmp_path, statfile.file_name("server", 3, boot, 1), start_us)
        file.append([window(start_us + number * 10_000_000, 100, boot)])
        file.finish()
    monkeypatch.setattr(statfile.StatFile, "append", hang)
    note(gaps, tmp_path, shard=1, msgs=7, boot="another")
    for number, boot in enumerate(["first", "next"], 1):
        page.store(3, "in_msgs", number * 150)
        end(gaps, page, tmp_path, boot=boot)
    answers.set()
    wait_until(are_idle)
    gaps.close(str(tmp_path))
    found = [row for row in rows(tmp_path) if row["shard"] == 3]
    assert sum(row["in_msgs"] + row.get("refused_msgs", 0) for row in found) == 300
    assert sorted(row["kind"] for row in found) == ["gap", "shard", "shard"]
    page.close()


def test_a_router_that_dies_when_it_has_written_rows_of_two_deaths_as_one_leaves_them_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """The first one has waited for a disk that was full."""
    page = Page.create()
    told: list[GapsRecord] = []
    gaps = Gaps(lambda: told.append(gaps.record))
    page.store(3, "in_msgs", 5)
    with monkeypatch.context() as full:
        full.setattr(statfile.StatFile, "append", refuse)
        end(gaps, page, tmp_path)
        wait_until(are_idle)
        gaps.write(str(tmp_path))
    page.store(3, "in_msgs", 7)
    end(gaps, page, tmp_path, boot="next")
    wait_until(are_idle)
    successor = Gaps(lambda: None)
    successor.take_over(told[-1], page)
    successor.close(str(tmp_path))
    assert [row["in_msgs"] for row in rows(tmp_path)] == [7]
    page.close()


def test_where_the_last_window_was_all_there_is_no_gap(tmp_path: Path):
    start_us = 1_790_000_000_000_000
    page = Page.create()
    file = statfile.StatFile(tmp_path, statfile.file_name("server", 3, "b", 1), start_us)
    file.append([window(start_us, 100)])
    file.finish()
    page.store(3, "in_msgs", 100)
    gaps = Gaps(lambda: None)
    end(gaps, page, tmp_path)
    gaps.close(str(tmp_path))
    assert [row["kind"] for row in rows(tmp_path)] == ["shard"]
    page.close()


def test_the_log_says_that_a_row_is_written_when_nothing_of_it_waits(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
):
    """The shard may have died again while the disk took the row of its first death."""

    def goes_on(file: statfile.StatFile, blocks: list[bytes]) -> None:
        answers.wait()
        append(file, blocks)

    caplog.set_level("INFO")
    answers, append = threading.Event(), statfile.StatFile.append
    written = "Statistics: the gap row for shard 3 is written"
    gaps = Gaps(lambda: None)
    monkeypatch.setattr(statfile.StatFile, "append", refuse)
    note(gaps, tmp_path, boot="first")
    wait_until(are_idle)
    monkeypatch.setattr(statfile.StatFile, "append", goes_on)
    gaps.write(str(tmp_path))  # it hears of the refusal
    gaps.write(str(tmp_path), is_urgent=True)
    note(gaps, tmp_path, boot="second")
    answers.set()
    wait_until(are_idle)
    answers.clear()
    gaps.write(str(tmp_path), is_urgent=True)
    assert written not in caplog.messages and len(rows(tmp_path)) == 1
    answers.set()
    wait_until(are_idle)
    gaps.write(str(tmp_path))
    assert caplog.messages.count(written) == 1 and len(rows(tmp_path)) == 2
