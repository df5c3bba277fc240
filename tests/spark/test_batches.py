"""A batch that is tried again is the same batch, a file that comes twice counts once: on few rows, without a stream."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import resource
import shutil
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import zstandard

from gnatswarm.shards.boundary import records, statfile

pytestmark = pytest.mark.xdist_group("spark")

START_US = 1_770_000_000_000_000
DAY_US = 86_400_000_000
SUMS = (("gap", "in_msgs"), ("queue", "deliveries"))


def row(file: int, number: int, *, kind: str = "gap", **changes: Any) -> dict[str, Any]:
    """One record of a kind with few fields."""
    counts = dict.fromkeys(("in_msgs", "in_bytes", "out_msgs", "out_bytes", "link_out_msgs", "link_in_msgs"), 1)
    common = {"broker": "B", "boot": "boot", "shard": 0, "file": file, "version": 1, "window_us": 10_000_000}
    queue = {"account": "$G", "subject": "s", "queue": "q", "cid": 1, "sid": "1", "deliveries": 1}
    own = {**counts, "reason": ""} if kind == "gap" else queue
    return {"kind": kind, **common, "window_start_us": START_US + number * 10_000_000, **own, **changes}


def write(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def lines_of(spark: Any, *paths: Path) -> Any:
    from gnatswarm.spark import schema
    from gnatswarm.spark.read import with_source

    reader = spark.read.schema(schema.ddl()).option("columnNameOfCorruptRecord", schema.CORRUPT)
    return with_source(reader.json([str(path) for path in paths]))


def msgs(spark: Any, out: Path) -> tuple[int, int]:
    """What the tables of gaps and of queues add up to."""
    from gnatswarm.spark.read import read_parquet

    statistics = read_parquet(spark, str(out))
    gaps, queues = (statistics[kind].selectExpr(f"'{kind}' AS kind", f"{column} AS n") for kind, column in SUMS)
    found = {row["kind"]: row["sum(n)"] for row in gaps.unionAll(queues).groupBy("kind").sum("n").collect()}
    return found.get("gap", 0), found.get("queue", 0)


@pytest.fixture
def one_file(tmp_path: Path) -> Path:
    """Ten gaps and five queues, of two days."""
    rows = [row(1, number) for number in range(10)]
    rows += [row(1, number, kind="queue", window_start_us=START_US + DAY_US) for number in range(5)]
    write(path := tmp_path / "one.jsonl", rows)
    return path


def test_a_row_is_of_the_records_that_shards_write():
    assert set(row(1, 1)) - {"kind"} == set(records.GapRecord.__struct_fields__)
    assert set(row(1, 1, kind="queue")) - {"kind"} == set(records.QueueRecord.__struct_fields__)
    assert statfile.ENDING.startswith(".jsonl")


def test_rows_are_in_the_directory_of_the_utc_day_of_their_window(spark: Any, tmp_path: Path):
    from gnatswarm.spark.write import write_batch

    day_us = START_US // DAY_US * DAY_US  # 2026-02-02
    starts = (day_us, day_us + DAY_US - 1, day_us + DAY_US)
    write(path := tmp_path / "days.jsonl", [row(1, 0, window_start_us=start_us) for start_us in starts])
    write_batch(lines_of(spark, path), 0, str(tmp_path / "tables"))
    days = sorted(found.name for found in (tmp_path / "tables" / "gap" / "batch=0").glob("date=*"))
    assert days == ["date=2026-02-02", "date=2026-02-03"]
    written = spark.read.parquet(str(tmp_path / "tables" / "gap" / "batch=0" / days[0]))
    assert sorted(found[0] for found in written.select("window_start_us").collect()) == list(starts[:2])


def test_a_batch_that_is_written_again_is_there_once(spark: Any, tmp_path: Path, one_file: Path):
    from gnatswarm.spark.write import write_batch

    out = tmp_path / "tables"
    for number in range(2):
        spark.sparkContext.setJobGroup(group := f"{tmp_path} {number}", "a batch")
        counts = write_batch(lines_of(spark, one_file), 0, str(out))
        assert counts == {"gap": 10, "queue": 5, "copies": 0, "aside": 0}
        # One counts, one writes each kind, one the list of files. The second time two read lists, its own and others'.
        assert len(spark.sparkContext.statusTracker().getJobIdsForGroup(group)) == 4 - number
        assert msgs(spark, out) == (10, 5)
    assert {path.name for path in out.glob("*/*")} == {"batch=0"}


def test_a_batch_that_is_complete_and_tried_again_stays_as_it_is(
    spark: Any, tmp_path: Path, one_file: Path, monkeypatch: pytest.MonkeyPatch
):
    """As where ingest was killed before Spark had noted the batch, and is killed again: it has its list."""
    from gnatswarm.spark import write as written
    from gnatswarm.spark.write import write_batch

    def killed(_rows: object, directory: str, *_others: object, **_named: object) -> None:
        shutil.rmtree(directory)
        raise OSError(errno.ENOSPC, directory)

    out = tmp_path / "tables"
    write_batch(lines_of(spark, one_file), 0, str(out))
    write(other := tmp_path / "other.jsonl", [row(2, number) for number in range(3)])
    with monkeypatch.context() as broken:
        broken.setattr(written, "overwrite", killed)
        write_batch(lines_of(spark, one_file), 0, str(out))
        assert msgs(spark, out) == (10, 5)
        with pytest.raises(OSError, match="batch=0"):  # another checkpoint's
            write_batch(lines_of(spark, other), 0, str(out))


def test_a_file_that_another_batch_has_is_a_copy_whatever_its_name(spark: Any, tmp_path: Path, one_file: Path):
    from gnatswarm.spark.write import write_batch

    out = tmp_path / "tables"
    write_batch(lines_of(spark, one_file), 0, str(out))
    (copy := tmp_path / "copy.jsonl").write_bytes(one_file.read_bytes())
    write(new := tmp_path / "new.jsonl", [row(2, number) for number in range(3)])
    for _ in range(2):  # also when this one is tried again
        counts = write_batch(lines_of(spark, copy, new), 1, str(out))
        assert counts["copies"] == 15
        assert msgs(spark, out) == (13, 5)


def test_what_was_written_of_a_batch_counts_only_when_all_of_it_was(
    spark: Any, tmp_path: Path, one_file: Path, monkeypatch: pytest.MonkeyPatch
):
    from gnatswarm.spark import write as written
    from gnatswarm.spark.read import read_parquet
    from gnatswarm.spark.write import write_batch

    out = tmp_path / "tables"
    write(before := tmp_path / "before.jsonl", [row(7, 1), row(7, 2, kind="queue")])
    write_batch(lines_of(spark, before), 0, str(out))
    for nth in (2, 3):
        with monkeypatch.context() as broken:
            broken.setattr(written, "overwrite", failing_at(nth, written.overwrite))
            with pytest.raises(OSError, match="No space"):
                write_batch(lines_of(spark, one_file), 1, str(out))
        assert len(list(out.glob("*/batch=1"))) == nth - 1
        assert msgs(spark, out) == (1, 1)
    assert read_parquet(spark, str(out)).aside.isEmpty()
    write_batch(lines_of(spark, one_file), 1, str(out))
    assert msgs(spark, out) == (11, 6)


def test_a_batch_that_is_tried_again_with_other_files_keeps_nothing_of_those_before(
    spark: Any, tmp_path: Path, one_file: Path, monkeypatch: pytest.MonkeyPatch
):
    """As where the first ingest was killed, and its checkpoint removed; or where retention has removed files since."""
    from gnatswarm.spark import write as written
    from gnatswarm.spark.read import read_parquet
    from gnatswarm.spark.write import write_batch

    out = tmp_path / "tables"
    (torn := tmp_path / "torn.jsonl").write_text(one_file.read_text() + "{")
    with monkeypatch.context() as broken:
        broken.setattr(written, "overwrite", failing_at(4, written.overwrite))
        with pytest.raises(OSError, match="No space"):
            write_batch(lines_of(spark, torn), 0, str(out))
    assert len(list(out.glob("*/batch=0"))) == 3
    write(other := tmp_path / "other.jsonl", [row(2, number) for number in range(3)])
    write_batch(lines_of(spark, other), 0, str(out))
    assert msgs(spark, out) == (3, 0)
    assert read_parquet(spark, str(out)).aside.isEmpty()
    write_batch(lines_of(spark, one_file), 1, str(out))
    assert msgs(spark, out) == (13, 5)


def test_of_a_file_that_was_read_truncated_the_rest_is_taken_once(
    spark: Any, tmp_path: Path, one_file: Path, monkeypatch: pytest.MonkeyPatch
):
    """Under another name, with an equal row in both parts; also in a batch that fails, and is written again."""
    from gnatswarm.spark import write as written
    from gnatswarm.spark.write import write_batch

    out = tmp_path / "tables"
    lines = one_file.read_text().splitlines(keepends=True)
    lines = [*lines[:4], *lines[:14], *lines[:1], *lines[14:]]
    (torn := tmp_path / "torn.jsonl").write_text("".join(lines[:6]) + lines[6][:20])
    (whole := tmp_path / "whole.jsonl").write_text("".join(lines))
    write(new := tmp_path / "new.jsonl", [row(2, number) for number in range(3)])
    write_batch(lines_of(spark, torn), 0, str(out))
    assert msgs(spark, out) == (6, 0)
    with monkeypatch.context() as broken:
        broken.setattr(written, "overwrite", failing_at(2, written.overwrite))
        with pytest.raises(OSError, match="No space"):
            write_batch(lines_of(spark, whole, new), 1, str(out))
    assert msgs(spark, out) == (6, 0)
    for _ in range(2):
        assert write_batch(lines_of(spark, whole, new), 1, str(out))["copies"] == 6
        assert msgs(spark, out) == (15 + 3, 5)
    assert write_batch(lines_of(spark, torn, whole), 2, str(out))["copies"] == 6 + 20
    assert msgs(spark, out) == (15 + 3, 5)


def test_of_a_file_whose_rows_have_been_archived_nothing_is_taken(spark: Any, tmp_path: Path, one_file: Path):
    from gnatswarm.spark.write import write_batch

    out = tmp_path / "tables"
    (torn := tmp_path / "torn.jsonl").write_text("".join(one_file.read_text().splitlines(keepends=True)[:6]))
    write_batch(lines_of(spark, torn), 0, str(out))
    for day in out.glob("*/batch=0/date=*"):
        shutil.rmtree(day)
    assert write_batch(lines_of(spark, one_file), 1, str(out))["copies"] == 15
    assert msgs(spark, out) == (0, 0)


def failing_at(nth: int, write: Callable[..., None]) -> Callable[..., None]:
    calls = []

    def writes(*arguments: Any, **named: Any) -> None:
        calls.append(1)
        if len(calls) == nth:
            raise OSError(28, "No space left on device")
        write(*arguments, **named)

    return writes


# Each a file with its copies, name → how many of its rows; last whose name is taken.
COPIES = [
    ({"1 a torn": 4, "1 b whole": 10}, "1 b whole"),
    ({"2 a whole": 10, "2 b torn": 4}, "2 a whole"),
    ({"3 a torn": 1, "3 b whole": 10, "3 c torn": 9}, "3 b whole"),
    ({"4 a whole": 10, "4 b whole": 10}, "4 a whole"),
    ({"5": 10}, "5"),
]


def test_a_day_that_is_archived_again_keeps_what_was_removed_from_the_tables_since(
    spark: Any, tmp_path: Path, one_file: Path
):
    """A file of a dead broker may be finished, and come, after that: it would be all that is left of the day."""
    from gnatswarm.spark.jobs.compact import compact
    from gnatswarm.spark.write import write_batch

    out, archive = tmp_path / "tables", tmp_path / "archive"
    day = "2026-02-02"
    write_batch(lines_of(spark, one_file), 0, str(out))
    assert compact(spark, str(out), str(archive), [day]) == {"gap": 10}
    for path in out.glob(f"*/batch=*/date={day}"):
        shutil.rmtree(path)
    write(late := tmp_path / "late.jsonl", [row(2, number) for number in range(3)])
    write_batch(lines_of(spark, late), 1, str(out))
    for _ in range(2):
        assert compact(spark, str(out), str(archive), [day]) == {"gap": 13}
    assert msgs(spark, archive) == (13, 0) and len(list(archive.glob("gap/**/*.parquet"))) == 1
    assert [path.name for path in archive.glob("*/*")] == [f"date={day}"] * 2
    listed = spark.read.parquet(str(archive / "files")).select("file", "source", "date").collect()
    assert sorted((one["file"], Path(one["source"]).name, str(one["date"])) for one in listed) == [
        (1, "one.jsonl", day),
        (2, "late.jsonl", day),
    ]


def test_a_day_that_is_archived_again_keeps_rows_that_the_tables_have_not_of_the_same_file(
    spark: Any, tmp_path: Path, one_file: Path
):
    """As where new tables were begun, and a copy that came late is truncated."""
    from gnatswarm.spark.jobs.compact import compact
    from gnatswarm.spark.write import write_batch

    archive, day = tmp_path / "archive", "2026-02-02"
    lines = one_file.read_text().splitlines(keepends=True)
    lines = [*lines[:10], *lines[:1]]  # with an equal row
    parts = {"whole": lines, "begin": lines[:6]}
    for name, part in parts.items():
        (path := tmp_path / f"{name}.jsonl").write_text("".join(part))
        write_batch(lines_of(spark, path), 0, str(tmp_path / name))
    for name, n in (("begin", 6), ("whole", 11), ("begin", 11)):
        assert compact(spark, str(tmp_path / name), str(archive), [day]) == {"gap": n}
        assert msgs(spark, archive) == (n, 0)


def test_two_runs_that_archive_a_day_at_once_lose_nothing_of_it(
    spark: Any, tmp_path: Path, one_file: Path, monkeypatch: pytest.MonkeyPatch
):
    """The second waits for the first, which does not know what has come meanwhile."""
    from gnatswarm.spark.jobs import compact as compacts
    from gnatswarm.spark.write import write_batch

    out, archive, day = tmp_path / "tables", tmp_path / "archive", "2026-02-02"
    write_batch(lines_of(spark, one_file), 0, str(out))
    write(late := tmp_path / "late.jsonl", [row(2, number) for number in range(3)])
    is_over_or_waits = threading.Event()
    found: list[dict[str, int]] = []

    def again() -> None:
        found.append(compacts.compact(spark, str(out), str(archive), [day], is_over_or_waits.set))
        is_over_or_waits.set()

    second = threading.Thread(target=again)
    overwrite = compacts._overwrite_days

    def meanwhile(rows: Any, directory: str) -> None:
        if not second.ident:
            write_batch(lines_of(spark, late), 1, str(out))
            second.start()
            assert is_over_or_waits.wait(300)
        overwrite(rows, directory)

    monkeypatch.setattr(compacts, "_overwrite_days", meanwhile)
    assert compacts.compact(spark, str(out), str(archive), [day]) == {"gap": 10}
    second.join(300)
    assert found == [{"gap": 13}]
    assert msgs(spark, archive) == (13, 0)


def test_of_copies_that_come_together_the_one_with_the_most_rows_is_taken(spark: Any, tmp_path: Path):
    from gnatswarm.spark.read import place, split
    from gnatswarm.spark.write import write_batch

    expected = {taken: copies[taken] for copies, taken in COPIES}
    for file, (copies, _) in enumerate(COPIES):
        for name, n in copies.items():
            write(tmp_path / f"{name}.jsonl", [row(file, number) for number in range(n)])
    # Of another shard, boot or broker: none of its copies.
    for number, other in enumerate((row(0, 0, shard=1), row(0, 0, boot="next"), row(0, 0, broker="C"))):
        write(tmp_path / f"other {number}.jsonl", [other])
        expected[f"other {number}"] = 1
    lines = lines_of(spark, *sorted(tmp_path.glob("*.jsonl")))
    found = split(lines)["gap"].groupBy("source").count().collect()
    assert {Path(place(each["source"])).stem: each["count"] for each in found} == expected

    out = tmp_path / "tables"
    counts = write_batch(lines, 0, str(out))
    assert msgs(spark, out) == (sum(expected.values()), 0)
    assert counts["copies"] == sum(sum(copies.values()) for copies, _ in COPIES) - 50


def test_files_and_tables_of_an_older_version_are_read_beside_new_ones(spark: Any, tmp_path: Path):
    """A version before refused messages: its rows have fewer columns, its tables too."""
    import msgspec

    from gnatswarm.spark import schema
    from gnatswarm.spark.read import read_parquet
    from gnatswarm.spark.transforms import trouble
    from gnatswarm.spark.write import write_batch

    def shard_row(file: int, **refused: int) -> dict[str, Any]:
        fields = {field.name: field.type for field in msgspec.structs.fields(records.ShardRecord)}
        numbers = {name: 0 for name, kind in fields.items() if kind in (int, float)}
        values = {**numbers, "widths": [], "link_widths": [], **refused}
        common = row(file, file, kind="queue")
        return {**values, **{name: common[name] for name in schema.COMMON}, "kind": "shard", "version": 2}

    old = {name: value for name, value in shard_row(1).items() if not name.startswith("refused_")} | {"version": 1}
    write(tmp_path / "old.jsonl", [old])
    write(tmp_path / "new.jsonl", [shard_row(2, refused_msgs=5, refused_bytes=50)])
    out = tmp_path / "tables"
    # As the older version wrote it: the column is not there.
    with pytest.MonkeyPatch.context() as patch:
        without = {name: kind for name, kind in schema.KINDS["shard"].items() if not name.startswith("refused_")}
        patch.setitem(schema.KINDS, "shard", without)
        write_batch(lines_of(spark, tmp_path / "old.jsonl"), 0, str(out))
    write_batch(lines_of(spark, tmp_path / "new.jsonl"), 1, str(out))
    statistics = read_parquet(spark, str(out))
    assert statistics["shard"].count() == 2
    (totals,) = trouble.totals(statistics["subject"], statistics["gap"], statistics["shard"]).collect()
    assert (totals["in_msgs"], totals["in_bytes"], totals["refused_msgs"]) == (5, 50, 5)


def test_what_a_session_reads_again_is_what_is_there_now(spark: Any, tmp_path: Path):
    from gnatswarm.spark.read import read_lines, split

    def gaps() -> int:
        return int(split(read_lines(spark, str(tmp_path)))["gap"].count())

    def store(file: int, rows: int) -> None:
        text = "".join(json.dumps(row(file, number)) + "\n" for number in range(rows))
        (tmp_path / f"{file}{statfile.ENDING}").write_bytes(zstandard.compress(text.encode()))

    store(1, 10)
    assert gaps() == 10
    store(2, 5)
    assert gaps() == 15
    store(2, 6)
    assert gaps() == 16


@pytest.mark.parametrize("is_long", [True, False])
def test_a_batch_that_is_cut_short_is_said_and_nothing_else_of_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_long: bool
):
    """Spark logs a cancelled batch with the stacks of its threads."""
    from gnatswarm.spark.jobs import ingest
    from gnatswarm.spark.jobs.progress import Progress
    from gnatswarm.spark.session import StopSignal

    done: list[str] = []
    status = {"isTriggerActive": is_long}
    query = SimpleNamespace(
        isActive=True, status=status, awaitTermination=lambda _seconds: False, stop=lambda: done.append("stop")
    )
    stop = StopSignal()
    stop.is_asked = True
    monkeypatch.setattr(ingest, "FINISH_BATCH_S", 0)
    ingest.wait(cast("Any", query), stop, Progress(), lambda: None, lambda: done.append("hush"))
    assert done == (["hush", "stop"] if is_long else ["stop"])
    assert ("the next run makes it" in capsys.readouterr().err) is is_long


def test_what_ends_a_batch_is_said_with_its_first_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """A full disk was `[STREAM_FAILED] Query … terminated with exception: [FOREACH_BATCH_USER_FUNCTION_ERROR]`."""
    from pyspark.errors import PySparkException

    from gnatswarm.spark.jobs import ingest

    class Failed(PySparkException):
        def __init__(self, text: str, cause: Exception | None = None) -> None:
            super().__init__(text)
            self._cause = cause

    def awaited(_seconds: int) -> bool:
        raise Failed("[STREAM_FAILED]")

    def start(*_places: object, on_error: Callable[[Exception], object], **_options: object) -> object:
        full = Failed("No space left on device\n\nJVM stacktrace:\n  at x")
        on_error(Failed("[TASK_WRITE_FAILED] Task failed\n  at y", Failed("[OTHER]", full)))
        return SimpleNamespace(awaitTermination=awaited)

    monkeypatch.setattr(ingest, "start", start)
    monkeypatch.setattr(ingest, "run", lambda _program, work, **_options: work(cast("Any", None)))
    monkeypatch.setattr(signal, "signal", lambda *_words: None)
    out = str(tmp_path / "tables")
    assert ingest.main(["--stats-dir", str(tmp_path), "--out", out]) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    why = "[TASK_WRITE_FAILED] Task failed (No space left on device)"
    assert said == f"gnatswarm ingest: cannot write a batch to {out}: {why}"


def test_the_first_cause_of_an_error_of_java_is_said():
    from gnatswarm.spark.session import reason

    def thrown(text: str, cause: object = None) -> Any:
        return SimpleNamespace(toString=lambda: text, getCause=lambda: cause)

    error = Exception()
    full = thrown("java.io.IOException: No space left on device")
    cast("Any", error).java_exception = thrown("x: Task failed\n\tat y", thrown("z", full))
    assert reason(error) == "x: Task failed (java.io.IOException: No space left on device)"
    cast("Any", error).java_exception = thrown("alone")
    assert reason(error) == "alone"


@contextlib.contextmanager
def no_file_over(most_bytes: int) -> Iterator[None]:
    """As if the disk were full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_file_that_cannot_be_written_whole_stays_as_it_was(tmp_path: Path):
    pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
    from gnatswarm.spark.jobs.report import write_whole

    rules = tmp_path / "rules.conf"
    write_whole(rules, "former")
    rules.chmod(0o640)
    with no_file_over(1000), pytest.raises(OSError, match=re.escape(f"File too large: '{rules}'")):
        write_whole(rules, "x" * 5000)
    assert rules.read_text() == "former"
    write_whole(rules, "latter")
    assert (rules.read_text(), rules.stat().st_mode & 0o777) == ("latter", 0o640)
    assert [*tmp_path.iterdir()] == [rules]


def test_a_file_in_a_directory_that_is_another_s_and_what_is_no_file_are_written_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
    from gnatswarm.spark.jobs.report import write_whole

    rules, link = tmp_path / "rules.conf", tmp_path / "link"
    link.symlink_to(rules)
    write_whole(link, "by the link")
    assert link.is_symlink() and rules.read_text() == "by the link"
    write_whole(Path(os.devnull), "nothing")

    def denied(*_words: object) -> None:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "replace", denied)  # (for root every directory is its own)
    write_whole(rules, "in place")
    assert rules.read_text() == "in place" and {*tmp_path.iterdir()} == {rules, link}

    def mounted(*_words: object) -> None:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    monkeypatch.setattr(Path, "replace", mounted)
    write_whole(rules, "where it is mounted")
    assert rules.read_text() == "where it is mounted" and {*tmp_path.iterdir()} == {rules, link}


def test_a_file_that_its_owner_has_made_read_only_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
    from gnatswarm.spark.jobs.report import write_whole

    rules = tmp_path / "rules.conf"
    write_whole(rules, "former")

    def denied(*_words: object, **_options: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "access", lambda *_words, **_options: False)  # (root may write every file)
    monkeypatch.setattr(Path, "write_text", denied)
    with pytest.raises(PermissionError, match=re.escape(f"Permission denied: '{rules}'")):
        write_whole(rules, "latter")
    assert rules.read_text() == "former" and [*tmp_path.iterdir()] == [rules]


def test_a_file_that_is_written_whole_keeps_its_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The broker that includes it may run as somebody else than who writes it."""
    pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
    from gnatswarm.spark.jobs.report import write_whole

    rules = tmp_path / "rules.conf"
    write_whole(rules, "former")
    if os.geteuid() == 0:
        os.chown(rules, 65534, 65534)
    rules.chmod(0o640)
    former = rules.stat()
    chown, modes = os.chown, []

    def seen(draft: Path, uid: int, gid: int) -> None:
        modes.append(draft.stat().st_mode & 0o777)
        chown(draft, uid, gid)

    monkeypatch.setattr(os, "chown", seen)
    write_whole(rules, "latter")
    now = rules.stat()
    assert modes == [0o600]  # nobody reads meanwhile who may not read the file
    assert rules.read_text() == "latter" and now.st_ino != former.st_ino
    assert (now.st_uid, now.st_gid, now.st_mode) == (former.st_uid, former.st_gid, former.st_mode)

    for why in (errno.EPERM, errno.EINVAL):  # (the latter: in a container whose users are not those of the file)

        def denied(*_words: object, why: int = why) -> None:
            raise OSError(why, os.strerror(why))

        monkeypatch.setattr(os, "chown", denied)
        write_whole(rules, f"in place {why}")
        assert rules.read_text() == f"in place {why}" and rules.stat().st_ino == now.st_ino


def test_a_disk_that_is_full_at_the_end_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    from gnatswarm.spark import session
    from gnatswarm.spark.jobs.report import write_whole

    page = tmp_path / "report.html"
    page.symlink_to("/dev/full")

    def work(_session: object) -> int:
        write_whole(page, "<html>")
        return 0

    monkeypatch.setattr(session, "new_session", lambda *_words, **_options: SimpleNamespace(stop=lambda: None))
    monkeypatch.setattr(signal, "signal", lambda *_words: None)
    assert session.run("gnatswarm report", work, master="", memory="", shuffle_partitions=0) == 1
    assert capsys.readouterr().err == f"gnatswarm report: {page}: No space left on device\n"
