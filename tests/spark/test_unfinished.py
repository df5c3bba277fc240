"""A report reads what is whole in files that a killed broker left unfinished, once, and changes nothing there."""

from __future__ import annotations

import os
import shutil
import tracemalloc
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard

from gnatswarm.shards.boundary import statfile
from gnatswarm.spark import unfinished
from tests.spark.test_batches import START_US, row

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")


def began(place: Path, number: int, windows: int) -> statfile.StatFile:
    """A file with so many windows, in each a gap of one message; its writer holds it."""
    file = statfile.StatFile(place, statfile.file_name("B", 0, "boot", number), START_US)
    for window in range(windows):
        file.append([msgspec.json.encode(row(number, window)) + b"\n"])
    return file


def abandon(file: statfile.StatFile, *, torn: bytes = b"") -> Path:
    """As when its process is killed, perhaps in the middle of a window."""
    os.write(file._fd, torn)
    os.close(file._fd)
    return Path(file._hidden)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A finished file of three windows, two abandoned ones of five and seven: one torn, one with a finished copy."""
    place = tmp_path / "stats"
    began(place, 1, 3).finish()
    abandon(began(place, 2, 5), torn=b"\x28\xb5\x2f\xfd torn")
    hidden = abandon(began(place, 3, 7))
    shutil.copy(hidden, hidden.with_name(hidden.name[1:]))
    return place


def listing(place: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}


@pytest.mark.parametrize("most_kept_bytes", [1 << 20, 0], ids=["in memory", "in tables"])
def test_whole_windows_of_unfinished_files_count_once(
    spark: Any, place: Path, most_kept_bytes: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    from gnatswarm.spark.jobs import report
    from gnatswarm.spark.jobs.progress import Progress

    monkeypatch.setattr(report, "MOST_KEPT_BYTES", most_kept_bytes)
    living, before = began(place, 4, 11), listing(place)
    with report.lines_of(spark, str(place), Progress()) as statistics:
        (total,) = statistics["gap"].agg({"in_msgs": "sum"}).collect()
        assert total[0] == 3 + 5 + 7
        assert statistics.aside.count() == 0
    assert listing(place) == before
    assert "2 files were not finished" in capfd.readouterr().err
    living.finish()


def test_what_is_there_decides_what_is_said(tmp_path: Path):
    from gnatswarm.spark.jobs.report import refusal

    out = str(tmp_path / "report.html")
    living = began(tmp_path / "living", 1, 2)
    assert "still being written" in refusal(str(tmp_path / "living"), "", out)
    living.finish()
    assert refusal(str(tmp_path / "living"), "", out) == ""
    abandon(began(tmp_path / "dead", 1, 2))
    assert refusal(str(tmp_path / "dead"), "", out) == ""
    abandon(began(tmp_path / "empty", 1, 0))
    assert "there are no statistics" in refusal(str(tmp_path / "empty"), "", out)


def test_what_no_broker_has_written_keeps_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A named pipe would be waited for, and a few KB of zeros may be gigabytes."""
    dead = abandon(began(tmp_path / "stats", 1, 2))
    os.mkfifo(dead.with_name(".pipe.jsonl.zst"))
    dead.with_name(".directory.jsonl.zst").mkdir()
    dead.with_name(".nowhere.jsonl.zst").symlink_to("missing")
    dead.with_name(".loop.jsonl.zst").symlink_to(".loop.jsonl.zst")
    zeros = dead.with_name(".zeros.jsonl.zst")
    zeros.write_bytes(zstandard.compress(bytes(100 << 20)))
    monkeypatch.setattr(unfinished, "MOST_INFLATED_BYTES", 90 << 20)
    tracemalloc.start()
    try:
        assert unfinished.copy_unfinished(str(tmp_path / "stats"), tmp_path / "copies") == 1
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 48 << 20
    assert [path.name for path in (tmp_path / "copies").rglob("*.zst")] == [dead.name[1:]]
    assert unfinished.has_unfinished(str(tmp_path / "stats"))
    dead.unlink()
    zeros.unlink()
    assert not unfinished.has_unfinished(str(tmp_path / "stats"))
    assert not unfinished.is_being_written(str(tmp_path / "stats"))
