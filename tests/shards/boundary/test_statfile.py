"""Files of statistics: whole or not there, adopted from the dead, and gone when they are too old or too many."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import threading
import time
import tracemalloc
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard

from gnatswarm.shards.boundary import statfile
from gnatswarm.shards.statistics import scribe as scribe_module
from gnatswarm.shards.statistics.scribe import FILE_MARK, LOST_MARK, Scribe, WindowRows
from tests.support.servers import wait_until

START_US = 1_770_000_000_000_000
LINE = b'{"file":%d,"n":1}\n' % FILE_MARK
SECOND_US = 1_000_000
DAY_S = 86400.0
SLIGHTLY_S = 200.0


def text(path: Path) -> bytes:
    with path.open("rb") as file:
        return bytes(zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True).read())


def block(start_us: int, lines: bytes = LINE, length_us: int = 10 * SECOND_US) -> WindowRows:
    return WindowRows(start_us, start_us + length_us, [lines], lambda: None)


def finished(directory: Path) -> list[Path]:
    return sorted(directory.glob(f"*/*/[!.]*{statfile.ENDING}"))


def written(directory: Path, number: int, size: int, modified_s: float) -> Path:
    """A finished file of that size and age, an hour after the one before."""
    file = statfile.StatFile(
        directory, statfile.file_name("B", 0, "boot", number), START_US + number * 3600 * SECOND_US
    )
    file.append([os.urandom(size)])
    file.finish()
    path = max(finished(directory))
    os.utime(path, (modified_s, modified_s))
    return path


def test_what_is_too_old_goes_and_its_empty_directory_with_it(tmp_path: Path):
    paths = [written(tmp_path, number, 100, 1000.0 + number) for number in range(5)]
    assert statfile.retain(tmp_path, max_age_s=10.0, max_bytes=0, now_s=1012.5) == 3
    assert [path.exists() for path in paths] == [False, False, False, True, True]
    assert not paths[0].parent.exists()


def test_of_too_many_bytes_the_oldest_go(tmp_path: Path):
    paths = [written(tmp_path, number, 10_000, 1000.0 + number) for number in range(5)]
    size = paths[0].stat().st_size
    assert statfile.retain(tmp_path, max_age_s=0.0, max_bytes=2 * size + 500, now_s=1e9) == 3
    assert [path.exists() for path in paths] == [False, False, False, True, True]
    assert statfile.retain(tmp_path, max_age_s=0.0, max_bytes=0, now_s=1e9) == 0


def test_within_an_hour_the_oldest_go_first_too(tmp_path: Path):
    paths = [written(tmp_path, 1, 1000, 2000.0)]
    for number in (3, 2, 1):  # the last name is the oldest
        paths.append(paths[0].with_name(f"x{number}.jsonl.zst"))
        shutil.copy(paths[0], paths[-1])
        os.utime(paths[-1], (1000.0 + number, 1000.0 + number))
    size = paths[0].stat().st_size
    assert statfile.retain(tmp_path, max_age_s=0.0, max_bytes=2 * size, now_s=1e9) == 2
    assert [path.exists() for path in paths] == [True, True, False, False]


def test_a_week_of_files_is_not_looked_at_all_at_once(tmp_path: Path):
    """Sorting 160,000 names, of sixteen shards, held up the shard for a tenth of a second, once a minute."""
    for hour in range(50):
        folder = Path(statfile.hour_directory(tmp_path, START_US + hour * 3600 * SECOND_US))
        folder.mkdir(parents=True)
        for number in range(60):
            (folder / f"{number}.jsonl.zst").write_bytes(b"x")
    tracemalloc.start()
    try:
        assert statfile.retain(tmp_path, max_age_s=1e12, max_bytes=100, now_s=1e9) == 50 * 60 - 100
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 100 * 1024
    assert len(finished(tmp_path)) == 100 and len({path.parent for path in finished(tmp_path)}) == 2


@pytest.mark.parametrize("cut", [1, 7])
def test_a_dead_writers_file_is_cut_after_its_last_whole_append(tmp_path: Path, cut: int):
    file = statfile.StatFile(tmp_path, statfile.file_name("B", 0, "boot", 1), START_US)
    file.append([b"first\n"])
    file.append([b"second\n"])
    assert statfile.adopt_orphans(tmp_path) == 0  # it is being written
    (hidden,) = tmp_path.glob("date=*/hour=*/.*")
    os.close(file._fd)  # as a kill -9 does
    whole = hidden.stat().st_size
    os.truncate(hidden, whole - cut)
    assert statfile.adopt_orphans(tmp_path) == 1
    (path,) = finished(tmp_path)
    assert text(path) == b"first\n"
    assert not hidden.exists()


@pytest.fixture
def hour(tmp_path: Path) -> Path:
    """A directory of files of statistics."""
    return Path(written(tmp_path, 1, 100, 1000.0).parent)


def test_what_a_link_points_at_is_not_cut(tmp_path: Path, hour: Path):
    """The file of somebody else, of which only the first frame is whole."""
    foreign = tmp_path / "backup.jsonl.zst"
    foreign.write_bytes(content := zstandard.compress(b"first\n") + b"more")
    link = hour / ".link.jsonl.zst"
    link.symlink_to(foreign)
    (hour / ".loop.jsonl.zst").symlink_to(".loop.jsonl.zst")
    os.mkfifo(hour / ".pipe.jsonl.zst")
    (hour / ".directory.jsonl.zst").mkdir()
    before = sorted(hour.iterdir())
    assert statfile.adopt_orphans(tmp_path) == 0
    assert sorted(hour.iterdir()) == before
    assert foreign.read_bytes() == content


def bomb(path: Path, megabytes: int) -> None:
    """A frame of zeros, of which a few KB are as many megabytes."""
    frame = zstandard.ZstdCompressor().compressobj()
    with path.open("wb") as file:
        for _ in range(megabytes):
            file.write(frame.compress(bytes(1 << 20)))
        file.write(frame.flush())


def test_a_file_that_inflates_to_more_than_ours_is_left_and_takes_no_memory(
    tmp_path: Path, hour: Path, monkeypatch: pytest.MonkeyPatch
):
    path = hour / ".bomb.jsonl.zst"
    bomb(path, 128)
    assert path.stat().st_size < 1 << 16
    tracemalloc.start()
    try:
        with path.open("rb") as file:
            assert statfile.whole_frames(file.fileno()) == path.stat().st_size
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 48 << 20
    monkeypatch.setattr(statfile, "MOST_INFLATED_BYTES", 100 << 20)
    assert statfile.adopt_orphans(tmp_path) == 0
    assert path.exists()


def test_a_file_ends_with_its_minute_its_size_and_its_hour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(scribe_module, "ROTATE_BYTES", 400)
    scribe = Scribe(tmp_path, broker="B", shard=0, boot="boot")
    until_the_hour = START_US // (3600 * SECOND_US) * 3600 * SECOND_US + 3600 * SECOND_US - 120 * SECOND_US
    for i in range(6):  # two minutes of small windows up to a full hour: the first file is full after 60 s
        scribe.put(block(until_the_hour + i * 10 * SECOND_US))
    for i in range(6, 9):  # 30 s of the next file …
        scribe.put(block(until_the_hour + i * 10 * SECOND_US))
    scribe.put(block(until_the_hour + 120 * SECOND_US))  # … which ends with the hour
    scribe.put(
        block(until_the_hour + 130 * SECOND_US, os.urandom(600).hex().encode() + b"\n")
    )  # and this one is too big
    scribe.put(block(until_the_hour + 140 * SECOND_US))
    assert scribe.close()
    files = finished(tmp_path)
    assert [text(path).count(b"\n") for path in files] == [6, 3, 2, 1]
    for number, path in enumerate(files, 1):
        assert (f"{number:06d}" in path.name and b'"file":%d,' % number in text(path)) or number == 3
    assert len({path.parent for path in files}) == 2
    assert not list(tmp_path.glob("date=*/hour=*/.*"))


def test_a_file_of_nothing_is_never_seen(tmp_path: Path):
    file = statfile.StatFile(tmp_path, statfile.file_name("B", 0, "boot", 1), START_US)
    file.finish()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


class Disk:
    """What is asked of it, in order: what is synced, with its size then, and what gets another name."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: list[tuple[str, str, int]] = []
        self.is_full = False
        fsync, rename = os.fsync, os.rename

        def note_fsync(fd: int) -> None:
            if self.is_full:
                raise OSError(28, "No space left on device")
            path = Path(os.readlink(f"/proc/self/fd/{fd}"))
            self.steps.append(("sync", path.name, 0 if path.is_dir() else os.fstat(fd).st_size))
            fsync(fd)

        def note_rename(old: str, new: str) -> None:
            self.steps.append(("rename", f"{Path(old).name} {Path(new).name}", 0))
            rename(old, new)

        monkeypatch.setattr(os, "fsync", note_fsync)
        monkeypatch.setattr(os, "rename", note_rename)


def orders(name: str, folder: str, size: int) -> list[tuple[str, str, int]]:
    """A name is shown when what it names is on disk; and the name itself is, when somebody may rely on it."""
    return [("sync", f".{name}", size), ("rename", f".{name} {name}", 0), ("sync", folder, 0)]


def test_a_file_is_on_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    name = statfile.file_name("B", 0, "boot", 1)
    file = statfile.StatFile(tmp_path, name, START_US)
    file.append([LINE])
    disk = Disk(monkeypatch)
    file.finish()
    (path,) = finished(tmp_path)
    assert disk.steps == orders(name, path.parent.name, path.stat().st_size)


def test_a_dead_writers_file_is_cut_and_on_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    name = statfile.file_name("B", 0, "boot", 1)
    file = statfile.StatFile(tmp_path, name, START_US)
    file.append([LINE])
    whole = file.size_bytes
    file.append([LINE])
    os.truncate(next(tmp_path.glob(f"*/*/.{name}")), file.size_bytes - 1)
    os.close(file._fd)
    disk = Disk(monkeypatch)
    assert statfile.adopt_orphans(tmp_path) == 1
    (path,) = finished(tmp_path)
    assert disk.steps == orders(name, path.parent.name, whole)


def test_the_helper_thread_leaves_no_name_behind_that_is_not_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    disk = Disk(monkeypatch)
    scribe = Scribe(tmp_path, broker="B", shard=0, boot="boot")
    for minute in range(3):
        scribe.put(block(START_US + minute * 60 * SECOND_US, length_us=60 * SECOND_US))
    assert scribe.close()
    files = finished(tmp_path)
    assert disk.steps == [step for path in files for step in orders(path.name, path.parent.name, path.stat().st_size)]
    assert len(files) == 3


def test_an_append_that_the_disk_took_half_of_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = statfile.StatFile(tmp_path, statfile.file_name("B", 0, "boot", 1), START_US)
    file.append([b"first\n"])
    write, size = os.write, file.size_bytes

    def half(fd: int, data: memoryview) -> int:
        monkeypatch.setattr(os, "write", full)
        return write(fd, data[: len(data) // 2])

    def full(_fd: int, _data: memoryview) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", half)
    with pytest.raises(OSError, match="No space"):
        file.append([b"second\n"])
    monkeypatch.setattr(os, "write", write)
    file.finish()
    [path] = finished(tmp_path)
    assert path.stat().st_size == size
    assert text(path) == b"first\n"


def test_what_cannot_be_synced_has_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    disk = Disk(monkeypatch)
    disk.is_full = True
    file = statfile.StatFile(tmp_path, statfile.file_name("B", 0, "boot", 1), START_US)
    file.append([LINE])
    with pytest.raises(OSError, match="No space"):
        file.finish()
    assert not finished(tmp_path)


def test_what_a_full_disk_does_not_take_is_bounded_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(scribe_module, "MOST_BACKLOG_BYTES", 1000)
    place = tmp_path / "file"
    place.write_text("in the way")
    scribe = Scribe(place / "stats", broker="B", shard=0, boot="boot")
    for i in range(50):
        scribe.put(block(START_US + i * 10 * SECOND_US, LINE * 10))
        wait_until(scribe._queue.empty)  # else it is displaced there, and the thread has nothing to bound
    assert scribe.close()
    kept = 1000 // len(LINE * 10)
    assert scribe.lost_windows == 50 - kept


def test_what_a_disk_that_hangs_takes_after_the_shards_end_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The router has it in a gap row, and the slot of the page belongs to the next process: this one is a relay now."""
    monkeypatch.setattr(scribe_module, "CLOSE_S", 0.01)
    write, hangs, ends = os.write, threading.Event(), threading.Event()
    written: list[int] = []

    def late(fd: int, data: memoryview) -> int:
        if written:
            hangs.set()
            assert ends.wait(30.0)
        return write(fd, data)

    monkeypatch.setattr(os, "write", late)
    scribe = Scribe(tmp_path, broker="B", shard=0, boot="boot")

    def put(i: int) -> None:
        of_i = block(START_US + i * 10 * SECOND_US)
        scribe.put(msgspec.structs.replace(of_i, on_written=lambda: written.append(i)))

    put(0)
    wait_until(lambda: bool(written))
    put(1)
    assert hangs.wait(30.0)
    put(2)
    assert not scribe.close()
    ends.set()
    wait_until(lambda: not scribe._thread.is_alive())
    assert written == [0]
    [path] = finished(tmp_path)
    assert text(path).count(b"\n") == 1


def test_what_a_disk_that_hangs_does_not_take_is_bounded_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """Its first write returns when fifty windows wait: the first of them, and those that fit behind it, are kept."""
    monkeypatch.setattr(scribe_module, "MOST_BACKLOG_BYTES", 1000)
    rows = LINE * 9 + b'{"lost_windows":%d,"a":1}\n' % LOST_MARK
    write, hangs, ends = os.write, threading.Event(), threading.Event()
    written: list[int] = []

    def late(fd: int, data: memoryview) -> int:
        hangs.set()
        assert ends.wait(30.0)
        return write(fd, data)

    monkeypatch.setattr(os, "write", late)
    scribe = Scribe(tmp_path, broker="B", shard=0, boot="boot")

    def put(i: int) -> None:
        of_i = block(START_US + i * SECOND_US, rows, SECOND_US)
        scribe.put(msgspec.structs.replace(of_i, on_written=lambda: written.append(i)))

    put(0)
    assert hangs.wait(30.0)
    for i in range(1, 50):
        put(i)
    kept = 1000 // len(rows)
    assert scribe._queue.qsize() == kept
    assert scribe.lost_windows == 49 - kept
    ends.set()
    wait_until(lambda: not scribe._is_late)
    put(50)
    assert scribe.close()
    assert written == [0, *range(50 - kept, 51)]
    assert scribe.lost_windows == 49 - kept
    [path] = finished(tmp_path)
    assert text(path).count(b"\n") == (kept + 2) * 10
    told = [int(found) for found in re.findall(rb'"lost_windows":(-?\d+)', text(path))]
    assert len(told) == kept + 2 and sum(told) == 49 - kept
    assert [record.getMessage() for record in caplog.records] == [
        f"Statistics pause: cannot write to {tmp_path}: the disk takes too long; the broker goes on",
        f"Statistics go on: {49 - kept} windows were lost",
    ]


def test_a_new_file_is_not_taken_for_one_of_a_dead_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Another shard tidies up between the making of a file and its lock."""
    flock, taken = fcntl.flock, 0

    def late(fd: int, how: int) -> None:
        nonlocal taken
        if not taken:
            taken = 1
            statfile.adopt_orphans(tmp_path)
        flock(fd, how)

    monkeypatch.setattr(fcntl, "flock", late)
    file = statfile.StatFile(tmp_path, statfile.file_name("B", 0, "boot", 1), START_US)
    assert not file.is_removed
    file.append([LINE])
    file.finish()
    [path] = finished(tmp_path)
    assert text(path) == LINE


def test_a_window_is_written_once_though_its_file_could_not_be_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The disk takes a minute's last window, and then not its sync: the file is finished later, as of a dead writer."""
    disk = Disk(monkeypatch)
    disk.is_full = True
    written: list[int] = []
    scribe = Scribe(tmp_path, broker="B", shard=0, boot="boot")

    def put(i: int) -> None:
        of_i = block(START_US + i * 10 * SECOND_US)
        scribe.put(msgspec.structs.replace(of_i, on_written=lambda: written.append(i)))

    for i in range(6):
        put(i)
    wait_until(lambda: scribe._is_paused)
    disk.is_full = False
    for i in range(6, 12):
        put(i)
    assert scribe.close()
    statfile.adopt_orphans(tmp_path)
    assert written == list(range(12))
    assert sum(text(path).count(b"\n") for path in finished(tmp_path)) == 12


def test_a_directory_that_is_removed_is_made_again_and_its_windows_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    written: list[int] = []
    scribe = Scribe(tmp_path / "stats", broker="B", shard=0, boot="boot")

    def put(i: int) -> None:
        of_i = block(START_US + i * 10 * SECOND_US)
        scribe.put(msgspec.structs.replace(of_i, on_written=lambda: written.append(i)))
        wait_until(lambda: written[-1:] == [i])

    for i in range(3):
        put(i)
    shutil.rmtree(tmp_path / "stats")
    for i in range(3, 5):
        put(i)
    assert scribe.close()
    assert scribe.lost_windows == 3
    [path] = finished(tmp_path / "stats")
    assert text(path).count(b"\n") == 2
    assert "3 windows" in caplog.text
    assert caplog.text.count("removed") == 1


class Clock:
    """Time that the test moves; replaces the module in the scribe."""

    CLOCK_BOOTTIME = time.CLOCK_BOOTTIME

    def __init__(self, ahead_s: float) -> None:
        self.began_s = time.time()
        self.passed_s = 5000.0
        self.ahead_s = ahead_s  # of the right time

    def time(self) -> float:
        return self.began_s + self.passed_s - 5000.0 + self.ahead_s

    def clock_gettime(self, which: int) -> float:
        assert which == self.CLOCK_BOOTTIME
        return self.passed_s


class Tidying:
    """A scribe with a limit of a week, in a directory with a file of yesterday and one that is a month old."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch, *, ahead_s: float, max_age_s: float) -> None:
        self.clock = Clock(ahead_s)
        self.directory = directory
        self.old = written(directory, 1, 100, self.clock.began_s - 30 * DAY_S)
        self.recent = written(directory, 2, 100, self.clock.began_s - DAY_S)
        self.tidied, self.minutes = 0, 0
        retain = statfile.retain

        def counted(*args: Any, **keywords: Any) -> int:
            removed = retain(*args, **keywords)
            self.tidied += 1
            return removed

        monkeypatch.setattr(statfile, "retain", counted)
        monkeypatch.setattr(scribe_module, "time", self.clock)
        self.scribe = Scribe(directory, broker="B", shard=0, boot="boot", max_age_s=max_age_s)
        wait_until(lambda: self.tidied == 1)

    def go_on(self, minutes: int) -> None:
        """A window of a minute at the end of so many, after which the scribe tidies up."""
        before = self.tidied
        self.clock.passed_s += 60 * minutes
        self.scribe.put(block(START_US + self.minutes * 60 * SECOND_US, length_us=60 * SECOND_US))
        self.minutes += 1
        wait_until(lambda: self.tidied > before)

    @property
    def left(self) -> tuple[bool, bool]:
        """Whether the old and the recent file are there. What the scribe itself wrote is."""
        assert len(finished(self.directory)) == self.old.exists() + self.recent.exists() + self.minutes
        return self.old.exists(), self.recent.exists()


@pytest.mark.parametrize("ahead_s", [0.0, 30 * 86400.0, -400 * 86400.0])
def test_a_clock_that_is_wrong_at_the_start_removes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead_s: float
):
    """Until NTP sets it, which nobody knows of. It is believed when it has run evenly for an hour."""
    tidying = Tidying(tmp_path, monkeypatch, ahead_s=ahead_s, max_age_s=7 * DAY_S)
    assert tidying.left == (True, True)
    tidying.go_on(40)
    assert tidying.left == (True, True)
    tidying.clock.ahead_s = 0.0
    for minutes in (1, 19) if ahead_s == 0.0 else (1, 19, 20, 20):
        assert tidying.left == (True, True)
        tidying.go_on(minutes)
    assert tidying.left == ((ahead_s != 0.0), True)
    tidying.go_on(1)
    assert tidying.left == (False, True)
    assert tidying.scribe.close()


def test_a_clock_that_is_set_ahead_for_some_minutes_removes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tidying = Tidying(tmp_path, monkeypatch, ahead_s=0.0, max_age_s=7 * DAY_S)
    tidying.clock.passed_s += 3600
    tidying.clock.ahead_s = 365 * DAY_S
    for _ in range(5):
        tidying.go_on(10)
    assert tidying.left == (True, True)
    tidying.clock.ahead_s = SLIGHTLY_S
    tidying.go_on(1)
    tidying.clock.ahead_s = 0.0  # it is no correction to speak of
    tidying.go_on(59)
    assert tidying.left == (True, True)
    tidying.go_on(1)
    assert tidying.left == (False, True)
    assert tidying.scribe.close()


def test_who_keeps_files_for_minutes_need_not_wait_for_an_hour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tidying = Tidying(tmp_path, monkeypatch, ahead_s=0.0, max_age_s=1200.0)
    tidying.go_on(19)
    assert tidying.left == (True, True)
    tidying.go_on(1)
    assert not tidying.old.exists() and not tidying.recent.exists()
    assert tidying.scribe.close()


def test_files_and_the_directories_made_for_them_are_their_users_alone(tmp_path: Path):
    """Whatever the umask leaves open; what was there already stays as its owner made it."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o755)
    before = os.umask(0)
    try:
        file = statfile.StatFile(shared / "a" / "b", statfile.file_name("B", 0, "boot", 1), START_US)
        file.append([LINE])
        (hidden,) = shared.glob("a/b/date=*/hour=*/.*")
        assert hidden.stat().st_mode & 0o777 == 0o600
        file.finish()
    finally:
        os.umask(before)
    (path,) = finished(shared / "a" / "b")
    assert path.stat().st_mode & 0o777 == 0o600
    made = [shared / "a", shared / "a" / "b", path.parent.parent, path.parent]
    assert [folder.stat().st_mode & 0o777 for folder in made] == [0o700] * 4
    assert shared.stat().st_mode & 0o777 == 0o755


def test_a_file_in_the_way_of_a_directory_is_an_error(tmp_path: Path):
    (tmp_path / "a").write_text("")
    for path in (tmp_path / "a", tmp_path / "a" / "b"):
        with pytest.raises(OSError, match=r"exists|Not a directory"):
            statfile.make_directory(path)
