"""`report --compare` as the program does it, from statistics to page; and what it says of a period that is none."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.bench import statistics_rows

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
pytestmark = pytest.mark.xdist_group("spark")

CAME_US = statistics_rows.START_US + 3 * statistics_rows.WINDOW_US
FIRST = "2026-02-02T02:40..2026-02-02T02:40:30"  # three windows, until CAME_US


@pytest.fixture(scope="module")
def statistics(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Six windows; the service from0 is there in the last three, its listener to0 all the time."""
    from gnatswarm.spark.read import read_lines, split

    place = tmp_path_factory.mktemp("compare")
    statistics_rows.write(place, 150, shards=1, subjects=3, clients=20)
    found = split(read_lines(spark, str(place)))
    late = found["client"].where(f"name not like 'from0-%' or window_start_us >= {CAME_US}")
    return replace(found, kinds=found.kinds | {"client": late})


def report(spark: Any, statistics: Any, page: Path, period: str) -> int:
    from gnatswarm.spark.jobs import report as job
    from gnatswarm.spark.jobs.arguments import report_parser
    from gnatswarm.spark.jobs.progress import Progress

    asked = report_parser().parse_args(["--stats-dir", "/stats", "--out", str(page), "--compare", period])
    return job.report(asked, spark, statistics, Progress())


@pytest.mark.slow
def test_the_page_says_who_is_new_and_who_is_gone(spark: Any, statistics: Any, tmp_path: Path):
    page = tmp_path / "page.html"
    assert report(spark, statistics, page, FIRST) == 0
    (part,) = re.findall(r"<h2>What has changed</h2>(.*?)<h2>", page.read_text(), re.S)
    lines = [re.findall(r"<td[^>]*>(.*?)</td>", line)[:4] for line in part.split("<tr>")[2:]]
    assert sorted(lines) == [
        ["gone", "*unknown*", "svc0.*", "to0"],
        ["new", "from0", "svc0.done", "to0"],
        ["new", "from0", "svc0.new", "to0"],
    ]


@pytest.mark.parametrize(
    ("period", "said"),
    [
        ("last week", "--compare: 'last week' is no period: write yesterday, a day (2026-02-03), or FROM..TO"),
        ("2026-02-02T03:00..2026-02-02T02:00", "it ends before it begins"),
        ("2020-01-01", "--compare: there are no rows of clients in 2020-01-01"),
        ("2026-02-02", "--compare: there are no rows of clients after 2026-02-02"),
    ],
)
def test_a_period_without_statistics_is_said_in_one_line(
    spark: Any, statistics: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], period: str, said: str
):
    assert report(spark, statistics, tmp_path / "page.html", period) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("gnatswarm report: ") and said in line
    assert not (tmp_path / "page.html").exists()


def test_views_of_a_directory_without_tables_are_refused(spark: Any, tmp_path: Path):
    from gnatswarm.spark.views import NoTables, create_views

    with pytest.raises(NoTables, match="has no tables of `gnatswarm ingest`"):
        create_views(spark, str(tmp_path / "nowhere"))
    (tmp_path / "files").mkdir()
    with pytest.raises(NoTables, match="with rows yet"):
        create_views(spark, str(tmp_path))
