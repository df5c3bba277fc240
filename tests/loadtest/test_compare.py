"""Comparisons: taking turns, ratios, and the report."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gnatswarm.loadtest import bench, processes, report
from gnatswarm.loadtest import compare as compare_module
from gnatswarm.loadtest.compare import Comparison
from gnatswarm.loadtest.credentials import Address, Credentials
from gnatswarm.loadtest.errors import LoadFailed
from gnatswarm.loadtest.measure import Result, Target
from gnatswarm.loadtest.plan import Scenario
from gnatswarm.loadtest.servers import Server, ServerSpec, default_specs
from tests.support.servers import KINDS, Broker, Log, wait_pids_gone

BENCH = [sys.executable, "-P", "-m", "gnatswarm.loadtest.bench"]


def result(scenario: str, server: str, **numbers: Any) -> Result:
    return Result(scenario, server, "flow", "delivery", units=1, expected_units=1, **numbers)


@pytest.fixture
def comparison() -> Comparison:
    """Ours twice as good as the reference, by medians of three."""
    scenario = Scenario("work", title="some work", figures=("cpu", "rate", "p50"), must=(1.5, 3), aim=(4, 5))
    other = Scenario("other", title="not run by ours", figures=("cpu",), must=(1,), aim=(2,))
    specs = [ServerSpec("ours", ("ours", "{port}")), ServerSpec("theirs", url="nats://127.0.0.1:1")]
    made = Comparison(specs, [scenario, other], "theirs", 3, versions={"ours": "1", "theirs": "2"})
    for factor in (1, 100, 1.1):
        latency = {"p50": 10.0 * factor, "p99": 20.0}
        made.results.append(result("work", "ours", cpu_us=1.0 * factor, rate_per_s=200.0, latency_us=latency))
        made.results.append(result("work", "theirs", cpu_us=2.2, rate_per_s=100.0, latency_us={"p50": 5.5, "p99": 1.0}))
    made.skipped["other", "ours"] = "it has one shard"
    return made


def test_a_ratio_is_better_by_so_many_times(comparison: Comparison):
    assert comparison.ratio("work", "ours", "cpu") == pytest.approx(2.0)
    assert comparison.ratio("work", "ours", "rate") == pytest.approx(2.0)
    assert comparison.ratio("work", "ours", "p50") == pytest.approx(0.5)
    assert comparison.ratio("work", "ours", "memory") is None
    assert comparison.ratio("other", "ours", "cpu") is None


def test_the_page_says_what_was_reached_and_what_was_not_run(comparison: Comparison):
    page = report.page(comparison, {"cores": 2}, "cubic", "2026-01-01", ["ratios.svg"])
    assert "| some work | CPU | ours | 1.10 µs | 2.20 µs | **2.00** | 1.5 | 4 | must reached |" in page
    assert "| some work | rate | ours | 200/s | 100/s | **2.00** | 3 | 5 | **below must** |" in page
    assert "| not run by ours | CPU |" in page
    assert "other on ours: not run: it has one shard" in page
    assert "![ratios.svg](ratios.svg)" in page
    assert "`cubic`" in page


def test_a_saturated_generator_and_wrong_counts_are_in_the_notes(comparison: Comparison):
    comparison.results[0].is_generator_bound = True
    comparison.results[1].notes.append("wrong: subscriber 0 got 1 messages, 2 were sent")
    page = report.page(comparison, {}, "cubic", "2026-01-01", [])
    assert "work on ours: the generator was saturated in 1 of 3 rounds" in page
    assert "work on theirs: wrong: subscriber 0 got 1 messages, 2 were sent" in page


def test_the_page_says_where_the_reference_is_ahead_and_what_limited_the_others(comparison: Comparison):
    page = report.page(comparison, {}, "cubic", "2026-01-01", [])
    assert "## Where theirs is ahead" in page
    assert "| some work: p50 | ours | 0.50 | nothing that its runs show |" in page
    assert "some work: CPU | ours" not in page and "some work: rate | ours" not in page

    for one in comparison.of("work", "ours"):
        one.rate_per_s, one.is_generator_bound = 90.0, True
    page = report.page(comparison, {}, "cubic", "2026-01-01", [])
    assert "| some work: rate | ours | 0.90 | the generator, in 3 of 3 runs |" in page
    for one in comparison.of("work", "ours"):
        one.is_generator_bound, one.notes = False, ["the machine was busy: for each second …"]
    page = report.page(comparison, {}, "cubic", "2026-01-01", [])
    assert "| some work: p50 | ours | 0.50 | it waited for a CPU in 3 of 3 runs |" in page


def test_a_figure_counts_only_where_each_way_to_run_is_behind_and_each_peer_counts(comparison: Comparison):
    comparison.specs += [ServerSpec("more", url="nats://127.0.0.1:2"), ServerSpec("newer", url="nats://127.0.0.1:3")]
    kinds = {"ours": "gnatswarm 1", "theirs": "nats-server 2", "more": "gnatswarm 1", "newer": "nats-server 3"}
    comparison.versions = kinds
    comparison.results.append(result("work", "newer", cpu_us=0.5, rate_per_s=1.0))
    page = report.page(comparison, {}, "cubic", "2026-01-01", [])
    assert "## Where theirs or newer is ahead" in page
    assert "| some work: CPU | ours | 0.45 |" in page
    comparison.results.append(result("work", "more", cpu_us=0.1, rate_per_s=1.0, latency_us={"p50": 5.0}))
    page = report.page(comparison, {}, "cubic", "2026-01-01", [])
    assert page.split("is ahead\n\n")[1].startswith("In no figure.")
    comparison.versions = dict.fromkeys(kinds, "gnatswarm 1")
    assert "## Where theirs is ahead" in report.page(comparison, {}, "cubic", "2026-01-01", [])


@pytest.mark.parametrize(
    ("value", "figure", "text"),
    [
        (None, "cpu", "–"),
        (0.01234, "cpu", "0.0123 µs"),
        (12.345, "p99", "12.35 µs"),
        (1234.5, "p99", "1,234 µs"),
        (1234567.8, "rate", "1,234,568/s"),
        (512.0, "memory", "512 B"),
        (2048.0, "memory", "2.00 KB"),
    ],
)
def test_figures_are_shown_with_their_unit(value: float | None, figure: str, text: str):
    assert report.shown(value, figure) == text


def test_a_server_says_its_command_without_places_of_this_machine():
    assert ServerSpec.parse("a=/usr/sbin/nats-server -p {port}").shown == "nats-server -p PORT"
    own = ServerSpec("b", (sys.executable, "-P", "-m", "gnatswarm", "-p", "{port}"))
    assert own.shown == "gnatswarm -p PORT"


def test_the_systems_nats_server_and_the_newest_one_are_compared_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def labels(*, in_system: bool, beside: bool) -> list[str]:
        place = tmp_path / f"{in_system}-{beside}"
        for folder, exists in (("system", in_system), ("beside", beside)):
            (place / folder).mkdir(parents=True)
            if exists:
                (place / folder / "nats-server").touch(0o755)
        found = str(place / "system" / "nats-server") if in_system else None
        monkeypatch.setattr(shutil, "which", lambda *_args, **_named: found)
        monkeypatch.setattr(sys, "executable", str(place / "beside" / "python"))
        return [spec.label for spec in default_specs() if spec.label.startswith("nats")]

    assert labels(in_system=False, beside=False) == []
    assert labels(in_system=True, beside=False) == ["nats-server"]
    assert labels(in_system=False, beside=True) == ["nats-server"]
    assert labels(in_system=True, beside=True) == ["nats-server", "nats-server-newest"]


def test_a_server_that_does_not_start_says_why_and_leaves_no_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (temporary := tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    script = tmp_path / "server"
    script.write_text("#!/bin/sh\necho first; echo 'no good' >&2; exit 3\n")
    script.chmod(0o755)
    with pytest.raises(Exception, match=r"^a: it ended at once: no good$"):
        Server(ServerSpec.parse(f"a={script} {{port}}")).start()
    with pytest.raises(Exception, match="no such file"):
        Server(ServerSpec.parse("a=/nonexistent/server {port}")).start()
    assert not list(temporary.iterdir())


def test_statistics_of_a_server_that_is_started_are_on_and_gone_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in ("temporary", "state"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    own = f"{sys.executable} -P -m gnatswarm -a 127.0.0.1 -p {{port}} --shards 1"
    with Server(ServerSpec.parse(f"a={own}")).start() as server:
        (found,) = (tmp_path / "temporary").glob("*/state/gnatswarm/stats/*")
        assert found.name == str(server.address.port)
    assert not [*(tmp_path / "temporary").iterdir(), *(tmp_path / "state").iterdir()]


@pytest.mark.kinds("gnatswarm-1")
def test_a_comparison_from_beginning_to_end(broker: Broker, tmp_path: Path):
    """The running broker against a fresh one of ours: pages, numbers and plots, and nothing left running."""
    own = " ".join(KINDS["gnatswarm-1"].command())
    scenarios = tmp_path / "some.toml"
    scenarios.write_text(
        '[flow]\nfigures = ["cpu", "rate"]\nmust = [1]\naim = [2]\nmessages = 20000\n'
        '[latency]\nkind = "latency"\nrate_per_s = 2000\nseconds = 0.2\nfigures = ["p50"]\n'
        '[crowd]\nkind = "latency"\nrate_per_s = 2000\nseconds = 0.2\nfigures = ["p50"]\n'
        "publishers = 40\nsubscribers = 80\ngroups = 40\nidle = 7\n"
        '[idle]\nkind = "connections"\nconnections = 50\nsubscriptions = 1\nfigures = ["memory"]\n'
        '[apart]\nplace = "different"\nmessages = 1000\nfigures = ["cpu"]\n'
    )
    out = tmp_path / "results"
    words = ["--compare", "--server", f"fresh={own} -a 127.0.0.1 -p {{port}}", "--server", f"given={broker.url}"]
    words += ["--repeat", "2", "--reference", "given", "--scenarios", str(scenarios), "--out", str(out)]
    ran = subprocess.run(
        [*BENCH, *words, "--settle", "0.02", "--congestion", "reno"],
        capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    names = {path.name for path in out.iterdir()}
    assert {"README.md", "results.json", "results.csv", "ratios.svg", "ratios.png", "latency-1.svg"} <= names
    page = (out / "README.md").read_text()
    assert "`reno`" in page and "apart on fresh: not run: it has one shard" in page
    assert str(tmp_path) not in page and os.uname().nodename + " " not in page
    runs = json.loads((out / "results.json").read_text())["runs"]
    turns = [run["server"] for run in runs if run["scenario"] == "flow"]
    assert turns == ["fresh", "given", "fresh", "given"]
    assert all(run["is_ok"] and run["cpu_us"] > 0 for run in runs)
    assert [run["units"] for run in runs if run["scenario"] == "crowd"] == [800] * 4  # each to the two of its group
    assert len(list(csv.DictReader((out / "results.csv").open()))) == len(runs)
    assert re.search(r"flow +fresh +cpu ×\d+\.\d\d \(must 1, aim 2\)", ran.stdout)


@pytest.mark.kinds("gnatswarm-1")
def test_an_interrupted_comparison_leaves_what_there_is_and_no_server(broker: Broker, tmp_path: Path):
    own = " ".join(KINDS["gnatswarm-1"].command())
    words = ["--compare", "--server", f"fresh={own} -a 127.0.0.1 -p {{port}}", "--server", f"given={broker.url}"]
    words += ["--reference", "given", "--scenario", "1:1 16 B", "--scale", "0.002", "--repeat", "1000"]
    with subprocess.Popen([*BENCH, *words, "--out", str(tmp_path)], stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        log = Log(running.stdout)
        log.wait_line("^given .*1:1 16 B", 30)
        started = [pid for pid in processes.tree([running.pid]) if pid != running.pid]
        running.send_signal(signal.SIGINT)
        assert running.wait(30) == 130
        log.join()
    assert "(medians of up to 1000: it was interrupted)" in log.text
    assert "it was interrupted" in (tmp_path / "README.md").read_text()
    assert len(started) >= 2
    assert wait_pids_gone(started, 30.0) == []


def test_a_server_that_wants_a_login_says_so_at_once():
    own = " ".join(KINDS["gnatswarm-1"].command())
    with pytest.raises(LoadFailed, match=r"^a: 127.0.0.1:\d+: Authorization Violation$"):
        Server(ServerSpec.parse(f"a={own} -a 127.0.0.1 -p {{port}} --auth secret")).start()
    spec = replace(
        ServerSpec.parse(f"a={own} -a 127.0.0.1 -p {{port}} --auth secret"), credentials=Credentials(token="secret")
    )
    with Server(spec).start() as server:
        assert server.info["auth_required"]


def test_the_reason_stands_before_the_goodbyes(tmp_path: Path):
    script = tmp_path / "server"
    script.write_text("#!/bin/sh\necho '[1] [FTL] no port'; echo '[1] [INF] Server Exiting..'; exit 1\n")
    script.chmod(0o755)
    with pytest.raises(LoadFailed, match=r"^a: it ended at once: \[1\] \[FTL\] no port$"):
        Server(ServerSpec.parse(f"a={script} {{port}}")).start()


@pytest.mark.kinds("gnatswarm-1")
def test_memory_is_measured_on_a_process_of_its_own_each_time(broker: Broker, monkeypatch: pytest.MonkeyPatch):
    """A server that has held connections keeps some of their memory: the second time it would show less."""
    pids: list[tuple[int, ...]] = []

    def fake(scenario: Scenario, target: Target, *_: Any) -> Result:
        pids.append(target.pids)
        return result(scenario.name, target.label, memory_bytes=1.0)

    monkeypatch.setattr(compare_module, "measure", fake)
    own = " ".join(KINDS["gnatswarm-1"].command())
    specs = [ServerSpec.parse(f"a={own} -a 127.0.0.1 -p {{port}}"), ServerSpec.parse(f"b={broker.url}")]
    idle = Scenario("idle", kind="connections", connections=10, subscriptions=1)
    compare_module.compare(specs, [idle, replace(idle, name="again")], rounds=2)
    fresh, given = pids[::2], pids[1::2]
    assert len(set(fresh)) == 4
    assert len(set(given)) == 1


def test_a_scenario_may_ask_for_more_rounds_than_others(comparison: Comparison, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(compare_module, "measure", lambda scenario, target, *_: result(scenario.name, target.label))
    monkeypatch.setattr(Server, "start", lambda self: self)
    monkeypatch.setattr(Server, "target", lambda self, *_: Target(self.spec.label, Address("127.0.0.1", 1)))
    few, many = comparison.scenarios[0], replace(comparison.scenarios[1], rounds=3)
    specs = [ServerSpec.parse(f"{label}=nats://127.0.0.1:1") for label in ("a", "b")]
    made = compare_module.compare(specs, [few, many], rounds=2)
    assert [(one.scenario, one.server) for one in made.results] == [
        *([(few.name, "a"), (few.name, "b")] * 2),
        *([(many.name, "a"), (many.name, "b")] * 6),
    ]
    page = report.page(made, {}, "cubic", "2026-01-01", [])
    assert "2 rounds (A B A B …; 6 of not run by ours)" in page


def test_a_run_that_failed_has_no_ratio_and_is_in_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Messages are lost from the second round on: those of the first are no figure of this server."""
    runs: list[str] = []

    def fake(scenario: Scenario, target: Target, *_: Any) -> Result:
        runs.append(target.label)
        if (target.label, runs.count("ours")) == ("ours", 2):
            raise LoadFailed("nothing moved for 10 s: 90 deliveries of 100")
        return result(scenario.name, target.label, cpu_us=1.0 if target.label == "ours" else 2.0, rate_per_s=1.0)

    monkeypatch.setattr(compare_module, "measure", fake)
    monkeypatch.setattr(Server, "start", lambda self: self)
    monkeypatch.setattr(Server, "target", lambda self, *_: Target(self.spec.label, Address("127.0.0.1", 1)))
    scenarios = tmp_path / "some.toml"
    scenarios.write_text('[flow]\ntitle = "flow"\nfigures = ["cpu"]\nmust = [1.5]\naim = [4]\n')
    words = ["--compare", "--scenarios", str(scenarios), "--out", str(tmp_path / "out"), "--reference", "theirs"]
    words += ["--server", "ours=nats://127.0.0.1:1", "--server", "theirs=nats://127.0.0.1:1"]
    assert bench.main(words) == 1
    shown = capsys.readouterr().out
    assert "×" not in shown and "not installed" not in shown
    assert re.search("flow +ours +FAILED: nothing moved for 10 s: 90 deliveries of 100", shown)
    page = (tmp_path / "out" / "README.md").read_text()
    assert "| flow | CPU | ours | – | 2.00 µs | – | 1.5 | 4 | **failed** |" in page
    assert "| flow: CPU | failed | 2.00 µs |" in page
    assert "flow on ours: failed in round 2: nothing moved for 10 s: 90 deliveries of 100" in page
    document = json.loads((tmp_path / "out" / "results.json").read_text())
    assert (document["skipped"], list(document["failed"])) == ({}, ["flow on ours"])
    runs.clear()
    assert bench.main([*words, "-q"]) == 1
    assert capsys.readouterr().err == "gnatswarm bench: flow on ours: nothing moved for 10 s: 90 deliveries of 100\n"


def test_a_server_of_the_comparison_that_cannot_start_is_one_line(tmp_path: Path):
    false = shutil.which("false")
    words = ["--compare", "--server", f"a={false} {{port}}", "--server", "b=nats://127.0.0.1:1", "--out", str(tmp_path)]
    ran = subprocess.run([*BENCH, *words], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 1
    assert ran.stderr.splitlines() == ["gnatswarm bench: a: it ended at once, exit code 1"]
