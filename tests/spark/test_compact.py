"""A day of the archive is there, whatever ends the run that makes it again."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest


class Killed(Exception):
    """In the middle of it."""


def days(archive: Path) -> dict[str, str]:
    return {path.parent.name: path.read_text() for path in archive.glob("gap/*/rows")}


@pytest.mark.parametrize("renamed", [0, 1, 2])
def test_a_day_that_was_being_replaced_is_there_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renamed: int):
    pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
    from gnatswarm.spark.jobs.compact import put_back, replace_day

    archive, made = tmp_path / "archive", tmp_path / "made" / "date=2026-02-02"
    day = archive / "gap" / made.name
    for path, text in ((day, "old"), (made, "new"), (day.with_name("date=2026-02-03"), "another")):
        path.mkdir(parents=True)
        (path / "rows").write_text(text)
    rename, left = Path.rename, [None] * renamed

    def dies(path: Path, target: Path) -> Path:
        if not left:
            raise Killed
        left.pop()
        found = rename(path, target)
        if not left:
            raise Killed
        return found

    with monkeypatch.context() as killed:
        killed.setattr(Path, "rename", dies)
        with pytest.raises(Killed):
            replace_day(day, made)
    put_back(str(archive))
    assert days(archive) == {day.name: "new" if renamed == 2 else "old", "date=2026-02-03": "another"}
    if renamed < 2:
        replace_day(day, made)
    assert days(archive) == {day.name: "new", "date=2026-02-03": "another"}
    put_back("hdfs://elsewhere/archive")


def test_what_a_run_that_was_killed_was_making_is_removed_by_one_a_day_later(tmp_path: Path):
    """Not before: a run in another container has no process that this one sees, and would write half of a day."""
    pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
    from gnatswarm.spark.jobs.compact import MADE, OVER_AFTER_S, put_back

    ended = subprocess.Popen(["true"])
    ended.wait()
    runs = [tmp_path / "gap" / f"{MADE}{number}" for number in (ended.pid, os.getpid())]
    for made in runs:
        (made / "date=2026-02-02").mkdir(parents=True)
    put_back(str(tmp_path))
    assert all(made.exists() for made in runs)
    for made in runs:
        os.utime(made, times=(time.time() - OVER_AFTER_S - 1,) * 2)
    put_back(str(tmp_path))
    assert [made.exists() for made in runs] == [False, True]
