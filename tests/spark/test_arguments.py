"""Where the jobs look without being told is where a broker writes without being told."""

from __future__ import annotations

import importlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from gnatswarm.router.config import stats_place
from gnatswarm.router.config.option_values import MOST_SHARDS
from gnatswarm.spark.jobs import arguments
from tests.spark.test_batches import lines_of, row


@pytest.mark.parametrize(
    "environment", [{"XDG_STATE_HOME": "/s"}, {"XDG_STATE_HOME": "relative", "HOME": "/h"}, {"HOME": "/h"}]
)
def test_the_default_is_where_brokers_write(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert arguments.default_directory(4222) == stats_place.default_directory(4222)


def test_a_report_without_a_directory_is_of_port_4222_and_names_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
    from gnatswarm.spark.jobs import ingest, report

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    stats = tmp_path / "gnatswarm" / "stats"
    assert report.main([]) == 1
    assert capsys.readouterr().err == f"gnatswarm report: there is no directory {stats}/4222\n"
    (stats / "4333").mkdir(parents=True)
    for program, words in ((report, []), (ingest, ["--out", str(tmp_path / "out")])):
        assert program.main(words) == 1
        said = capsys.readouterr().err
        assert f"there is no directory {stats}/4222" in said and "statistics: 4333 (--port)" in said
    assert report.main(["-p", "4333"]) == 1
    assert "there are no statistics in" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "words", "why"),
    [
        ("report", ["--date", "2026-02-03"], "--date goes with --from-parquet"),
        ("suggest_permissions", ["--date", "2026-02-03"], "--date goes with --from-parquet"),
        ("report", ["--compare", "nonsense"], "--compare: 'nonsense' is no period: write yesterday, a day"),
        ("report", ["--compare", "2026-02-03.."], "--compare: '' is no period"),
        ("report", ["--compare", "0001-01-01T00:00+05:00"], "--compare: '0001-01-01T00:00+05:00' is no period"),
        ("report", ["--compare", "2026-02-04..2026-02-03"], "--compare: 2026-02-04..2026-02-03: it ends before it"),
        ("report", ["--services", "("], "--services: "),
    ],
)
def test_a_mistake_is_said_before_spark_starts(
    name: str, words: list[str], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
    program = importlib.import_module(f"gnatswarm.spark.jobs.{name}")
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "statistics.jsonl.gz").touch()
    assert program.main(["--stats-dir", str(tmp_path), "--master", "no-such-master", *words]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"gnatswarm {name.replace('_', '-')}: {why}")


def test_the_last_day_that_there_is_can_be_compared_with():
    from gnatswarm.spark.period import periods

    assert periods("9999-12-31", 0).now[0] - periods("9999-12-31", 0).before[0] == 86_400_000_000


def test_a_directory_of_another_user_is_said_to_be_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Statistics are their broker's user's alone, so this is what a report of anybody else meets."""
    pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
    from gnatswarm.spark.jobs import ingest, report
    from gnatswarm.spark.read import stored_files

    (tmp_path / "a.jsonl.zst").touch()

    def refuse(*_arguments: object, **_words: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        for name in ("scandir", "listdir"):
            patch.setattr(os, name, refuse)
        for program, words in ((report, []), (ingest, ["--out", str(tmp_path / "out")])):
            assert program.main(["--stats-dir", str(tmp_path), *words]) == 1
            assert f"{tmp_path} cannot be read (permission denied): statistics are" in capsys.readouterr().err
        assert arguments.recorded_ports(str(tmp_path)) == []
    assert list(stored_files(str(tmp_path)))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "is_file", refuse)
        assert not stored_files(str(tmp_path))


def test_a_percent_sign_in_a_path_is_no_format(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_STATE_HOME", "/a%sb")
    for made in arguments.PARSERS.values():
        assert "/a%sb" in made().format_help() or made is arguments.compact_parser


def test_two_do_not_ingest_into_the_same_tables_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """The second would make the first one's batch again, and remove what that has written of it."""
    pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
    from gnatswarm.spark.jobs import ingest
    from gnatswarm.spark.lock import alone

    (stats := tmp_path / "stats").mkdir()
    monkeypatch.setattr(ingest, "run", lambda _name, work, **_named: work(None))
    with alone(str(out := tmp_path / "tables")) as is_alone:
        assert is_alone
        assert ingest.main(["--stats-dir", str(stats), "--out", str(out)]) == 1
        assert capsys.readouterr().err.splitlines()[-1] == f"gnatswarm ingest: another one is writing to {out}"
        with alone(str(tmp_path / "others")) as is_alone:
            assert is_alone
    with alone(str(out)) as is_alone:
        assert is_alone
    with alone("s3a://bucket/tables") as is_alone, alone("s3a://bucket/tables") as is_too:
        assert is_alone and is_too
    (tmp_path / "file").touch()
    with alone(str(tmp_path / "file" / "tables")) as is_alone:  # (Spark says why it cannot write there)
        assert is_alone


def test_days_are_not_put_among_the_batches_of_other_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
    from gnatswarm.spark.jobs import compact

    for tables in ("a", "b"):
        (tmp_path / tables / "files" / "batch=0").mkdir(parents=True)
    words = ["--from-parquet", str(tmp_path / "a"), "--out", str(tmp_path / "b"), "--date", "2026-02-02"]
    assert compact.main([*words, "--master", "no-such-master"]) == 1
    why = f"{tmp_path / 'b'} has tables of `gnatswarm ingest`: choose another --out"
    assert capsys.readouterr().err == f"gnatswarm compact: {why}\n"


@pytest.mark.parametrize("shards", ["-1", "63"])
def test_a_placement_is_on_as_many_shards_as_a_broker_may_have(
    shards: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
    from gnatswarm.spark.jobs import place

    (tmp_path / "files").mkdir()
    words = ["--from-parquet", str(tmp_path), "--out", str(tmp_path / "p"), "--shards", shards]
    assert place.main([*words, "--master", "no-such-master"]) == 1
    assert capsys.readouterr().err == f"gnatswarm place: --shards {shards}: a broker has 1 to {MOST_SHARDS}\n"


@pytest.mark.parametrize("date", ["2026-11-8", "2026-11-31", "20261108", "2026-W45-7", "yesterday", ""])
@pytest.mark.parametrize("name", ["report", "compact", "suggest_permissions"])
def test_a_date_that_is_no_day_is_said_before_spark_starts(
    name: str, date: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
    program = importlib.import_module(f"gnatswarm.spark.jobs.{name}")
    (tmp_path / "tables" / "files").mkdir(parents=True)
    words = ["--from-parquet", str(tmp_path / "tables"), "--out", str(tmp_path / "out")]
    assert program.main([*words, "--date", "2026-11-08", "--date", date, "--master", "no-such-master"]) == 1
    why = f"--date {date!r} is no day: write YYYY-MM-DD"
    assert capsys.readouterr().err == f"gnatswarm {name.replace('_', '-')}: {why}\n"


def test_a_day_or_a_broker_without_rows_is_said_and_nothing_is_written(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    from gnatswarm.spark.jobs import compact, report, suggest_permissions
    from gnatswarm.spark.write import write_batch

    (path := tmp_path / "a.jsonl").write_text(f"{json.dumps(row(1, 0))}\nno record\n")
    write_batch(lines_of(spark, path), 0, str(tmp_path / "tables"))
    out = tmp_path / "out"
    words = ["--from-parquet", str(tmp_path / "tables"), "--out", str(out)]
    days = ["--date", "2026-02-02", "--date", "2026-02-04"]
    for program, asked, why in (
        (report, days, "there are no rows of 2026-02-04"),
        (compact, days, "there are no rows of 2026-02-04"),
        (suggest_permissions, days, "there are no rows of 2026-02-04"),
        (report, [*days[:2], "--broker", "NOSUCH"], "there are no rows of a broker NOSUCH"),
    ):
        monkeypatch.setattr(program, "run", lambda _program, work, **_options: work(spark))
        assert program.main([*words, *asked]) == 1
        assert capsys.readouterr().err.splitlines()[-1].endswith(f"{why} in {tmp_path / 'tables'}")
        assert not out.exists()
