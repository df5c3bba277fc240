"""Answers that stand: made for the days with new rows, exchanged as a whole, never made of what is left of one."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.spark.test_batches import START_US, lines_of, row, write

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
pytestmark = pytest.mark.xdist_group("spark")

FIRST, SECOND = "2026-02-02", "2026-02-03"


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Tables:
    """What a directory of `ingest` looks like from outside, and answers beside it."""

    def __init__(self, spark: Any, home: Path) -> None:
        self.spark = spark
        self.out = home / "tables"
        self.answers = home / "answers"
        self.clock = Clock()

    def add(self, batch: int, *days: str) -> None:
        """A complete batch with rows of these days."""
        for day in days:
            (self.out / "gap" / f"batch={batch}" / f"date={day}").mkdir(parents=True)
        (self.out / "files" / f"batch={batch}").mkdir(parents=True)

    def standing(self, services: str = "auto") -> Any:
        from gnatswarm.spark.standing import StandingAnswers

        return StandingAnswers(str(self.answers), str(self.out), services, self.clock)

    def read(self, _session: Any, out: str, days: list[str]) -> int:
        """In the place of read_parquet: how many batches have rows of the day."""
        (day,) = days
        return len(list(Path(out).glob(f"gap/batch=*/date={day}")))

    def answered(self, rows: int, most: int, services: str) -> dict[str, Any]:
        """In the place of `answers`: as many rows."""
        return {"gaps": self.spark.range(rows), "queues": self.spark.range(1)}

    def gaps(self) -> dict[str, int]:
        """Rows of the answer "gaps", by day."""
        from gnatswarm.spark.views import create_answer_views

        assert create_answer_views(self.spark, str(self.answers)) == ["gaps_by_day", "queues_by_day"]
        found = self.spark.sql("SELECT CAST(date AS string) AS day, count(*) AS n FROM gaps_by_day GROUP BY date")
        return {row["day"]: row["n"] for row in found.collect()}


@pytest.fixture
def tables(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tables:
    from gnatswarm.spark import standing

    made = Tables(spark, tmp_path)
    monkeypatch.setattr(standing, "read_parquet", made.read)
    monkeypatch.setattr(standing, "answers", made.answered)
    return made


def test_answers_of_real_rows_stand(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Some of them; test_live has all."""
    from gnatswarm.spark import standing
    from gnatswarm.spark.answers import answers
    from gnatswarm.spark.views import create_answer_views
    from gnatswarm.spark.write import write_batch

    rows = [row(1, number, window_start_us=START_US + number) for number in range(3)]
    rows += [row(1, 3, kind="queue", window_start_us=START_US)]
    write(path := tmp_path / "rows.jsonl", rows)
    out = str(tmp_path / "tables")
    write_batch(lines_of(spark, path), 0, out)
    some = ("edges", "gaps", "queues")

    def few(*asked: Any) -> dict[str, Any]:
        frames = answers(*asked)
        return {name: frames[name] for name in some}

    monkeypatch.setattr(standing, "answers", few)
    assert standing.StandingAnswers(str(tmp_path / "answers"), out).refresh(spark) == [FIRST]
    assert create_answer_views(spark, str(tmp_path / "answers")) == [f"{name}_by_day" for name in some]
    assert [row["deliveries"] for row in spark.table("queues_by_day").collect()] == [1]
    assert spark.table("gaps_by_day").count() == 3


def test_days_with_new_rows_are_made_anew_and_the_others_are_the_same_files(tables: Tables):
    tables.add(0, FIRST, SECOND)
    standing = tables.standing()
    assert standing.refresh(tables.spark) == [FIRST, SECOND]
    assert tables.gaps() == {FIRST: 1, SECOND: 1}
    (first,) = tables.answers.glob(f"current/gaps/date={FIRST}/*.parquet")
    inode = first.stat().st_ino
    assert standing.refresh(tables.spark) == []
    tables.add(1, SECOND)
    tables.add(2, SECOND)
    assert standing.refresh(tables.spark) == [SECOND]
    assert tables.gaps() == {FIRST: 1, SECOND: 3}
    (first,) = tables.answers.glob(f"current/gaps/date={FIRST}/*.parquet")
    assert first.stat().st_ino == inode
    # A program that starts again knows what they are made of; with other services it makes all of them.
    assert tables.standing().refresh(tables.spark) == []
    assert tables.standing("user").refresh(tables.spark) == [FIRST, SECOND]
    assert tables.gaps() == {FIRST: 1, SECOND: 3}
    # Who still reads the refresh before finds it; the first is gone.
    assert sorted(path.name for path in tables.answers.iterdir()) == ["current", "refresh=2", "refresh=3"]


def test_a_day_of_which_a_batch_was_archived_keeps_its_answers(tables: Tables):
    tables.add(0, FIRST)
    tables.add(1, FIRST)
    standing = tables.standing()
    standing.refresh(tables.spark)
    shutil.rmtree(tables.out / "gap" / "batch=0" / f"date={FIRST}")
    tables.add(2, FIRST, SECOND)
    assert standing.refresh(tables.spark) == [SECOND]
    assert tables.gaps() == {FIRST: 2, SECOND: 1}


def test_a_batch_that_is_not_complete_is_none(tables: Tables):
    tables.add(0, FIRST)
    standing = tables.standing()
    standing.refresh(tables.spark)
    tables.add(1, FIRST)
    (tables.out / "files" / "batch=1").rename(tables.out / "aside.batch=1")
    assert not standing.due()
    (tables.out / "aside.batch=1").rename(tables.out / "files" / "batch=1")
    assert list(standing.due()) == [FIRST]


def test_a_refresh_that_is_stopped_or_fails_leaves_what_stands(tables: Tables, monkeypatch: pytest.MonkeyPatch):
    tables.add(0, FIRST)
    standing = tables.standing()
    standing.refresh(tables.spark)
    tables.add(1, FIRST)
    asked: list[int] = []

    def is_stopped() -> bool:
        asked.append(1)
        return len(asked) > 1

    assert standing.refresh(tables.spark, is_stopped) == []
    assert tables.gaps() == {FIRST: 1}
    assert sorted(path.name for path in tables.answers.iterdir()) == ["current", "refresh=1"]

    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(os, "rename", fails)
        with pytest.raises(OSError, match="No space"):
            standing.refresh(tables.spark)
    assert tables.gaps() == {FIRST: 1}
    assert standing.refresh(tables.spark) == [FIRST]
    assert tables.gaps() == {FIRST: 2}


@pytest.mark.parametrize("step", ["symlink_to", "replace"])
def test_who_was_killed_before_a_refresh_stood_makes_it_again(
    tables: Tables, monkeypatch: pytest.MonkeyPatch, step: str
):
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    tables.add(0, FIRST)
    tables.standing().refresh(tables.spark)
    tables.add(1, FIRST)
    with monkeypatch.context() as dies:
        dies.setattr({"symlink_to": Path, "replace": os}[step], step, killed)
        with pytest.raises(KeyboardInterrupt):
            tables.standing().refresh(tables.spark)
    assert tables.gaps() == {FIRST: 1}
    assert tables.standing().refresh(tables.spark) == [FIRST]
    assert tables.gaps() == {FIRST: 2}
    assert sorted(path.name for path in tables.answers.iterdir()) == ["current", "refresh=1", "refresh=2"]


def test_refreshes_take_a_tenth_of_the_time(tables: Tables, monkeypatch: pytest.MonkeyPatch):
    standing = tables.standing()
    made: list[float] = []

    def takes_4_s(*_: object) -> list[str]:
        made.append(tables.clock.now)
        tables.clock.now += 4
        return []

    monkeypatch.setattr(standing, "_refresh", takes_4_s)
    for _ in range(100):
        standing.refresh_if_due(tables.spark)
        tables.clock.now += 1
    assert made == [0, 40, 80]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda home: home.write_text("x"), "is no directory"),
        (lambda home: (home.mkdir(), (home / "theirs").touch()), "something else than answers"),
        (lambda home: (home.mkdir(), (home / "current").symlink_to("../other")), "'../other', not to refresh=<number>"),
    ],
)
def test_a_directory_that_is_something_else_is_refused(tmp_path: Path, make: Any, says: str):
    from gnatswarm.spark.standing import NotOurs, StandingAnswers

    make(tmp_path / "answers")
    with pytest.raises(NotOurs, match=says):
        StandingAnswers(str(tmp_path / "answers"), str(tmp_path / "tables"))


def test_an_address_is_refused(tmp_path: Path):
    from gnatswarm.spark.standing import NotOurs, StandingAnswers

    with pytest.raises(NotOurs, match="local directories"):
        StandingAnswers(str(tmp_path / "answers"), "s3a://bucket/tables")


def test_what_they_were_made_of_is_not_believed_when_it_is_damaged(tables: Tables):
    tables.add(0, FIRST)
    tables.standing().refresh(tables.spark)
    for text in ("{", "[]", '{"services": 1, "days": {}}', '{"services": "auto", "days": {"2026-02-02": "batch=0"}}'):
        (tables.answers / "current" / "made_of.json").write_text(text)
        assert list(tables.standing().due()) == [FIRST]


def test_without_answers_there_are_no_views(spark: Any, tmp_path: Path):
    from gnatswarm.spark.views import NoTables, create_answer_views

    with pytest.raises(NoTables, match="no answers"):
        create_answer_views(spark, str(tmp_path))
