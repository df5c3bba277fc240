"""Names of directories are names, whatever signs they have: not patterns, not addresses."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import zstandard

from gnatswarm.spark.directories import absolute, literal, unusable_text
from tests.spark.test_batches import row

pytestmark = pytest.mark.xdist_group("spark")


def write(path: Path, file: int, rows: int) -> None:
    path.parent.mkdir(parents=True)
    lines = "".join(json.dumps(row(file, number)) + "\n" for number in range(rows))
    path.write_bytes(zstandard.compress(lines.encode()))


@pytest.mark.parametrize("name", ["[ab]{c,d}", r"*?\ %41#", "a:b"])
def test_every_job_reads_and_writes_the_directories_of_these_names_and_no_others(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
):
    from gnatswarm.spark.jobs import ingest
    from gnatswarm.spark.jobs.compact import compact
    from gnatswarm.spark.jobs.report import write_tables
    from gnatswarm.spark.read import place, read_lines, read_parquet, split
    from gnatswarm.spark.standing import StandingAnswers
    from gnatswarm.spark.views import create_answer_views, statements

    monkeypatch.chdir(tmp_path)  # (Java stays where it is)
    write(Path(name, name, "one.jsonl.zst"), 1, rows=5)
    Path(name, "bad.jsonl.zst").write_bytes(b"nothing")
    write(Path("ac", "other.jsonl.zst"), 2, rows=7)  # which patterns would find
    write(Path("bd %41#", "other.jsonl.zst"), 3, rows=7)
    lines = split(read_lines(spark, name))
    assert lines["gap"].count() == 5
    assert [Path(place(one["source"])) for one in lines.aside.collect()] == [tmp_path / name / "bad.jsonl.zst"]

    out, kept = f"{name}/tables", f"{name}/kept"
    for _ in range(2):  # the second one finds what the first one has read and written
        ingest.start(spark, name, out).awaitTermination()
        assert read_parquet(spark, out)["gap"].count() == 5
    assert ingest.unread(spark, name, out, began=float("inf")) == [tmp_path / name / "bad.jsonl.zst"]
    assert compact(spark, out, kept, ["2026-02-02"]) == {"gap": 5}
    assert read_parquet(spark, kept)["gap"].count() == 5

    answers = StandingAnswers(f"{name}/answers", out)
    monkeypatch.setattr(answers, "_answers", lambda session, day: {"gaps": read_parquet(session, out, [day])["gap"]})
    assert answers.refresh(spark) == ["2026-02-02"]
    assert create_answer_views(spark, f"{name}/answers") == ["gaps_by_day"]
    assert spark.table("gaps_by_day").count() == 5
    write_tables(spark, {"subject": spark.range(1)}, {"subject": [{"id": 3}]}, Path(kept))
    os.rename(Path(kept, "subject.parquet"), Path(kept, "subject"))
    spark.sql(statements(kept)[0])
    assert spark.table("subject_rows").collect() == [(3,)]


def test_what_has_a_scheme_is_left_to_spark():
    assert absolute("s3a://b/[ab]*") == literal("s3a://b/[ab]*") == "s3a://b/[ab]*"


def test_a_directory_above_a_link_is_the_one_above_where_it_leads(tmp_path: Path):
    (tmp_path / "there" / "below").mkdir(parents=True)
    (tmp_path / "link").symlink_to("there/below")
    assert absolute(f"{tmp_path}/link/../stats") == f"{tmp_path}/there/stats"
    assert absolute(f"/{tmp_path}/link") == f"{tmp_path}/link"  # two slashes are one, and no machine's name


def test_names_that_spark_cannot_take_are_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    from gnatswarm.spark.jobs import compact, report

    assert unusable_text("a:b", "[ab]", "s3a://b/[ab]") == ""
    both = tmp_path / "a:b" / "[ab]"
    foreign = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    assert report.main(["--stats-dir", str(both)]) == 1
    assert report.main(["--from-parquet", foreign]) == 1
    assert report.main(["--tables", foreign]) == 1
    assert compact.main(["--from-parquet", str(tmp_path), "--out", str(both), "--date", "2026-02-02"]) == 1
    said = capsys.readouterr().err.splitlines()
    assert [str(both) in line for line in said] == [True, False, False, True]
    assert ["not UTF-8" in line for line in said] == [False, True, True, False]


def test_an_address_with_one_slash_is_no_name_of_a_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Hadoop takes file:/x as file:///x. A directory `file:` was made here for its tables."""
    from gnatswarm.spark.jobs import compact, ingest, report

    monkeypatch.chdir(tmp_path)
    (tmp_path / "stats").mkdir()
    (tmp_path / "tables" / "files").mkdir(parents=True)
    assert ingest.main(["--stats-dir", "stats", "--out", "file:/tables"]) == 1
    assert ingest.main(["--stats-dir", "dbfs:/stats", "--out", "tables"]) == 1
    assert ingest.main(["--stats-dir", "stats", "--out", "new", "--answers", "s3a:/b"]) == 1
    assert report.main(["--from-parquet", "hdfs:/x"]) == 1
    assert report.main(["--from-parquet", "tables", "--tables", "file:/x"]) == 1
    assert compact.main(["--from-parquet", "tables", "--out", "file:/x", "--date", "2026-02-02"]) == 1
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 6 and all("is an address with one slash" in line for line in said)
    assert said[0].endswith("write file:///tables, or ./file:/tables for a directory of that name")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["stats", "tables"]
    assert unusable_text("./file:/x", "a/file:/x", "C:/x", "file:x") == ""
    (tmp_path / "file:" / "x").mkdir(parents=True)
    assert unusable_text("file:/x") == ""


def test_views_of_a_name_that_spark_cannot_take_are_refused_in_one_line(tmp_path: Path):
    from gnatswarm.spark.standing import NotOurs, StandingAnswers
    from gnatswarm.spark.views import NoTables, create_answer_views, create_views

    both = tmp_path / "a:b" / "[ab]"
    (both / "files").mkdir(parents=True)
    (both / "refresh=1" / "edges").mkdir(parents=True)
    (both / "current").symlink_to("refresh=1")
    session: Any = None  # is not asked
    with pytest.raises(NoTables, match="Spark reads no path"):
        create_views(session, str(both))
    with pytest.raises(NoTables, match="Spark reads no path"):
        create_answer_views(session, str(both))
    with pytest.raises(NotOurs, match="Spark reads no path"):
        StandingAnswers(str(both), str(tmp_path))
