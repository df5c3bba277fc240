"""What no broker has written, or an older one has, ends no report: it is set aside, counted as nothing, or named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import zstandard

from gnatswarm.shards.boundary import statfile
from tests.spark.test_batches import START_US, row

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
pytestmark = pytest.mark.xdist_group("spark")


def write(place: Path, number: int, *records: dict[str, Any]) -> Path:
    """A finished file with these records."""
    file = statfile.StatFile(place, statfile.file_name("B", 0, "boot", number), START_US)
    file.append([("".join(json.dumps(one) + "\n" for one in records)).encode()])
    file.finish()
    return Path(file._shown)


def collected(spark: Any, place: Path, capfd: pytest.CaptureFixture[str]) -> tuple[dict[str, Any], str]:
    """Every result, and the page."""
    from gnatswarm.spark.advice import advise
    from gnatswarm.spark.jobs.progress import Progress
    from gnatswarm.spark.jobs.report import collect, lines_of, summary
    from gnatswarm.spark.page import page

    with lines_of(spark, str(place), Progress(), is_small=True) as statistics:
        found = collect(statistics, 25)
    advice = advise(found)
    assert summary(found, advice)
    capfd.readouterr()
    return found, page(found, advice, str(place))


CANNOT_BE = "a number or a time that cannot be"


def test_numbers_and_times_that_cannot_be_are_set_aside(
    spark: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A few of them could not be added up, and a page could not show their dates: the report ended with a traceback."""
    place = tmp_path / "stats"
    largest = 2**63 - 1
    shard = dict(row(1, 0), kind="shard")
    client = dict(row(1, 0), kind="client")
    impossible = [
        row(1, 0, in_msgs=largest),
        row(1, 1, in_msgs=largest),
        row(1, 2, in_msgs=-(2**63)),
        row(1, 3, window_start_us=largest),
        row(1, 4, window_start_us=-1),
        row(1, 5, window_start_us=253_402_300_800_000_000),
        row(1, 6, window_us=largest),
        {**shard, "cpu_s": float("nan")},
        {**shard, "widths": [0, largest]},
        {**client, "published": [{"subject": "a", "msgs": 1}, {"subject": "b", "msgs": largest}]},
    ]
    write(place, 1, *impossible)
    write(place, 2, row(2, 0), row(2, 1, window_start_us=0))  # the clock was not set yet
    found, shown = collected(spark, place, capfd)
    assert found["aside"] == [{"why": CANNOT_BE, "count": len(impossible)}]
    assert found["totals"][0]["in_msgs"] == 2
    assert CANNOT_BE in shown


def test_what_records_lack_counts_as_nothing(spark: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from gnatswarm.spark import schema

    place = tmp_path / "stats"
    common = {name: value for name, value in row(1, 0).items() if name in schema.COMMON}
    write(
        place, 1, *({**common, "kind": kind, "window_start_us": START_US + n} for kind in schema.KINDS for n in (0, 1))
    )
    found, shown = collected(spark, place, capfd)
    assert found["aside"] == []
    assert found["queues"][0]["deliveries"] == found["totals"][0]["in_msgs"] == 0
    assert "None" not in shown


def test_files_of_which_nothing_can_be_read_are_named(
    spark: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "stats"
    good = write(place, 1, row(1, 0))
    names = ["a b%20c+d#e?.jsonl.zst", "torn.jsonl.zst", "zeros.jsonl.zst", "nothing.jsonl.zst"]
    foreign = [good.with_name(name) for name in names]
    foreign[0].write_bytes(b"no zstd")
    foreign[1].write_bytes(zstandard.compress(b"{}\n" * 9)[:-3])
    # A line is read whole, into memory: here 1 GB of the 1.2 GB that there are.
    zeros = zstandard.ZstdCompressor().compressobj()
    with foreign[2].open("wb") as file:
        for _ in range(1024):
            file.write(zeros.compress(bytes(1 << 20)))
        file.write(zeros.flush())
    foreign[3].touch()
    found, shown = collected(spark, place, capfd)
    assert [one["path"] for one in found["unreadable"]] == sorted(map(str, foreign))
    assert all(str(path) in shown for path in foreign)
    assert found["totals"][0]["in_msgs"] == 1
