"""The floor of a comparison: the relay delivers what it is sent, and what it cost is put beside the servers."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gnatswarm.loadtest.bench import SCENARIOS
from gnatswarm.loadtest.measure import measure
from gnatswarm.loadtest.plan import Scenario, read_scenarios
from gnatswarm.loadtest.servers import Server, ServerSpec
from tests.bench import floor

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")

PAIRS = Scenario("p", publishers=20, subscribers=20, groups=20, payload_bytes=64, write_bytes=1, messages=200)
BATCHES = replace(PAIRS, name="b", write_bytes=3_000, payload_bytes=128, idle=30)
FAN_IN = Scenario("f", publishers=20, write_bytes=1, messages=200)
FAN_OUT = Scenario("o", subscribers=20, messages=5_000)
REQUESTS = Scenario("r", kind="request", messages=200)
LARGE = Scenario("l", payload_bytes=100_000, messages=200)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return floor.build(tmp_path_factory.mktemp("floor"))


@pytest.fixture(scope="module", params=["", "-w 500 -r 131072", "-n 2"], ids=["prompt", "patient", "two processes"])
def relay(request: pytest.FixtureRequest, program: Path) -> Iterator[Server]:
    with Server(ServerSpec.parse(f"floor={program} -p {{port}} {request.param}")).start() as server:
        yield server


@pytest.mark.parametrize("scenario", [PAIRS, BATCHES, FAN_IN, FAN_OUT, REQUESTS, LARGE], ids=lambda one: one.name)
def test_everything_arrives_once_and_byte_by_byte(relay: Server, scenario: Scenario):
    result = measure(scenario, relay.target())
    assert result.units == result.expected_units > 0 and result.surplus == 0
    assert [note for note in result.notes if note.startswith("wrong")] == []


@pytest.mark.parametrize("scenario", [PAIRS, REQUESTS], ids=lambda one: one.name)
def test_two_processes_pass_on_what_crosses(program: Path, scenario: Scenario):
    with Server(ServerSpec.parse(f"floor={program} -p {{port}} -n 2")).start() as server:
        assert server.shards == 2
        result = measure(replace(scenario, place="different"), server.target())
    assert result.units == result.expected_units > 0 and result.surplus == 0


@pytest.mark.parametrize("words", [[], ["-p", "0"], ["-p", "70000"], ["-p", "1", "-n", "3"], ["-p", "x"], ["-z"]])
def test_a_bad_argument_is_said(program: Path, words: list[str]):
    ended = subprocess.run([program, *words], capture_output=True, text=True, timeout=20, check=False)
    assert ended.returncode == 2 and "usage: floor -p PORT" in ended.stderr


def figures(label: str, cpu_us: float, rate_per_s: float) -> floor.Figures:
    return floor.Figures(label, cpu_us, rate_per_s, 0.5, is_bound=False)


def test_the_best_relay_is_the_floor():
    scenario = Scenario("s", figures=("cpu", "rate"), must=(3, 1.5), aim=(4, 2))
    found = [
        figures("floor", 1.0, 110),
        figures("floor, 3 ms", 0.5, 90),
        figures("gnatswarm-1", 1.0, 80),
        figures("nats-server", 2.0, 100),
        figures("nats-server-newest", 1.0, 200),
    ]
    cpu, rate = floor.bounds(scenario, found)
    assert cpu == floor.Bound("cpu", ours=2.0, floor=4.0, must=3)
    assert rate == floor.Bound("rate", ours=0.8, floor=1.1, must=1.5)
    assert floor.verdict(cpu).endswith("must 3: not reached")
    assert floor.verdict(rate).endswith("must 1.5: not reached, by the floor neither")
    assert floor.verdict(floor.Bound("cpu", 3.0, 4.0, 3)).endswith("must 3: reached")
    assert "must" not in floor.verdict(floor.Bound("cpu", 3.0, 4.0, None))
    assert floor.bounds(scenario, found[:3]) == []


def test_every_row_is_a_scenario_with_a_floor(program: Path):
    known = {scenario.name: scenario for scenario in read_scenarios(SCENARIOS)}
    labels = {name: [spec.label for spec in floor.servers(program, known[name], (500,))] for name in floor.ROWS}
    assert labels["200 pairs"][:3] == ["floor", "floor, 0.5 ms", "gnatswarm-1"]
    assert labels["request 1"][:2] == ["floor", "gnatswarm-1"]
    assert labels["request 1, other shard"][:2] == ["floor", "gnatswarm-2"]


def test_an_unknown_row_is_said(capsys: pytest.CaptureFixture[str]):
    assert floor.main(["no such row"]) == 2
    assert "no scenario 'no such row'" in capsys.readouterr().err
