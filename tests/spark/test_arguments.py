"""Where the jobs look without being told is where a broker writes without being told."""

from __future__ import annotations

from pathlib import Path

import pytest

from gnatswarm.router.config import stats_place
from gnatswarm.spark.jobs import arguments


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


def test_a_percent_sign_in_a_path_is_no_format(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_STATE_HOME", "/a%sb")
    for made in arguments.PARSERS.values():
        assert "/a%sb" in made().format_help() or made is arguments.compact_parser
