"""`gnatswarm place`: from rows of clients to a file of rules, with what it promises, and what came of that."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

import pytest

from gnatswarm.spark.placement_file import BadFile, Expected, Rule, expected_of, is_writable, written
from tests.spark.test_graph import client, frame
from tests.spark.test_shards import frame as of_kind
from tests.spark.test_shards import windows

pytestmark = pytest.mark.xdist_group("spark")

EXPECTED = Expected(4, 0.75, 0.0, 1.1, 1.05, "name", 123)


def test_a_file_says_again_what_it_promised():
    text = written([Rule("name", "a*", 1), Rule("name", "a-b*", 0)], EXPECTED, "/stats\nplacement {")
    assert expected_of(text) == EXPECTED
    assert text.index('"a-b*", shard: 0') < text.index('"a*", shard: 1')  # of rules that match, the first counts
    assert next(line for line in text.splitlines() if not line.startswith("#")) == "placement {"


@pytest.mark.parametrize("text", ["", "placement { }", "# expects {", '# expects {"shards": 1}', "# expects 7"])
def test_another_file_is_refused(text: str):
    with pytest.raises(BadFile):
        expected_of(text)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("shards", value) for value in ("4", None, 0, 4.0, True)],
        *[(field, "0.5") for field in ("crossing_before", "crossing", "balance_before", "balance")],
        *[("services_by", value) for value in ("lunch", None, 7)],
        *[("at_us", value) for value in ("123", None, -1, 1 << 63, 1.5)],
    ],
)
def test_a_file_that_was_changed_too_much_is_refused(field: str, value: object):
    """Before Spark is started, and not in the middle of what it says."""
    text = written([], EXPECTED, "/stats")
    promised = json.dumps(EXPECTED._asdict())
    with pytest.raises(BadFile, match=f" of {field} makes no sense"):
        expected_of(text.replace(promised, json.dumps(EXPECTED._asdict() | {field: value})))


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a*", "a\nb", "", "\u202e", "x" * 1000])
def test_a_name_that_no_pattern_can_say_has_no_rule(name: str):
    assert not is_writable(name)


def badly_spread() -> list[dict[str, Any]]:
    """Eight pairs: each talks to its listener on the next shard."""
    rows = []
    for i in range(8):
        rows.append(client(f"talker{i}", i % 4, published=((f"s.{i}", 100),), cid=100 + i))
        rows.append(client(f"listener{i}", (i + 1) % 4, received=((f"s.{i}", 100),), cid=200 + i))
    rows.append(client('evil"; }', 0, published=(("nobody", 1),), cid=300))
    return rows


def test_pairs_that_are_badly_spread_get_rules_that_bring_them_together(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
    from gnatswarm.spark.jobs import place as job
    from gnatswarm.spark.jobs.place import place
    from gnatswarm.spark.read import Statistics

    def asked(**more: Any) -> argparse.Namespace:
        given = {"shards": 0, "services": "name", "bound": 1.25, "least_gain": 0.05, "stats_dir": "/stats"}
        return argparse.Namespace(**given | {"from_parquet": "", "out": str(tmp_path / "p.conf")} | more)

    # A restart had a fifth one for a moment, and the gateway is none.
    shards = [row for shard in (0, 1, 2, 3, 63) for row in windows(shard, 0, 9, 4)] + windows(4, 2, 3, 4, short=True)
    kinds = {"client": frame(spark, badly_spread()), "shard": of_kind(spark, "shard", shards)}
    statistics = Statistics(kinds, spark.createDataFrame([], "why string"))
    figures = job.Figures(statistics, "name")
    with monkeypatch.context() as found:  # once
        found.setattr(job, "Figures", lambda of, by: {(id(statistics), "name"): figures}[id(of), by])
        assert place(asked(least_gain=1.1), statistics, None) == 0
        assert "nothing is written" in capsys.readouterr().out and not (tmp_path / "p.conf").exists()
        assert place(asked(), statistics, None) == 0
        said = capsys.readouterr().out
        assert place(asked(least_gain=1.1), statistics, None) == 0
        assert f"; {tmp_path / 'p.conf'} stays as it is" in capsys.readouterr().out
    text = (tmp_path / "p.conf").read_text()
    expected = expected_of(text)
    assert (expected.crossing_before, expected.crossing, expected.shards) == (1.0, 0.0, 4)
    assert expected.balance <= 1.25 and "100.0% → 0.0%" in said and 'without a rule: evil"; }' in said
    shard = dict(re.findall(r'name: "(\w+)", shard: (\d)', text))
    assert len(shard) == 16
    assert all(shard[f"talker{i}"] == shard[f"listener{i}"] for i in range(8))
    assert sorted(list(shard.values()).count(str(i)) for i in range(4)) == [4, 4, 4, 4]

    after = [row | {"window_start_us": expected.at_us, "shard": 0} for row in badly_spread()]
    statistics = Statistics(kinds | {"client": frame(spark, [*badly_spread(), *after])}, statistics.aside)
    assert place(asked(), statistics, expected) == 0
    assert "cross: 0.0% (promised 0.0%, before 100.0%)" in capsys.readouterr().out


def test_before_and_expected_are_of_the_same_deliveries_and_shards(spark: Any):
    """Three shards, of which one has no clients; most of what is received is from elsewhere."""
    pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
    from gnatswarm.spark.jobs.place import Figures
    from gnatswarm.spark.partition import crossing_share
    from gnatswarm.spark.read import Statistics

    rows = [
        client("talker", 0, published=(("a", 100),)),
        client("listener", 1, received=(("a", 100),)),
        client("far", 1, received=(("from.elsewhere", 900),)),
    ]
    shards = [row for shard in (0, 1, 2) for row in windows(shard, 0, 0, 1)]
    kinds = {"client": frame(spark, rows), "shard": of_kind(spark, "shard", shards)}
    figures = Figures(Statistics(kinds, spark.createDataFrame([], "why string")), "name")
    as_it_is = {"talker": 0, "listener": 1, "far": 1}
    assert figures.crossing == crossing_share(figures.edges, as_it_is, figures.shards) == 1.0
    assert figures.shards == 3
    assert figures.unevenness(figures.shards) == 1000 * 3 / 1100
