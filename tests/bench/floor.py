"""What each row of the comparison would cost a relay without rules: `python -P -m tests.bench.floor [ROW…]`.

The relay (floor.c) pays what every server pays to the kernel and copies each message twice. It is run prompt, and with
fixed pauses after its turns, as a patient server has them; the best of these is the floor. A ratio to nats-server can
hardly be better than the floor's (a pause of another length may be). Where even the floor's generator has nothing to
spare, the rate is the generator's.

Rows are names of loadtest/scenarios.toml; without any, the crowds and the lone request. The same compiled generator
drives all servers in turn, A B A B. Quote ratios of one run on a quiet machine. Exit code 0: measured; 1: a server
could not be started, or a message was lost; 2: no such row, no compiler.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gnatswarm.loadtest.bench import SCENARIOS
from gnatswarm.loadtest.compare import Comparison, compare
from gnatswarm.loadtest.errors import NatsError
from gnatswarm.loadtest.plan import Scenario, read_scenarios
from gnatswarm.loadtest.servers import ServerSpec, default_specs

SOURCE = Path(__file__).with_suffix(".c")
ROWS = (
    "200 pairs",
    "200 pairs, 20 per write",
    "fan-in from 100",
    "1:1 512 B, two per write",
    "1,000 connections",
    "10,000 connections",
    "request 1",
    "request 1, other shard",
)
PAUSES_US = (500, 3_000, 12_000)  # the shard's own: 20 to 200 µs, 3, 6 and 12 ms (shards/sockets/crowd.pyx)
# What clients on this host get from a shard at first: shards/sockets/window.pyx.
RECEIVE_BYTES = 131_072


@dataclass(frozen=True)
class Figures:
    """Medians of one server in one row."""

    label: str
    cpu_us: float  # of the server, for each delivery
    rate_per_s: float
    generator_share: float  # of a core
    is_bound: bool  # the generator had nothing to spare, in most runs


@dataclass(frozen=True)
class Bound:
    """One figure of a row as ratios to nats-server; more is better."""

    figure: str
    ours: float
    floor: float
    must: float | None


def build(folder: Path) -> Path:
    """The compiled relay; subprocess.CalledProcessError or FileNotFoundError."""
    program = folder / "floor"
    subprocess.run(["cc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", program, SOURCE], check=True)
    return program


def servers(program: Path, scenario: Scenario, pauses_us: Sequence[int]) -> list[ServerSpec]:
    """The relays that stand for the floor of this scenario, the broker, and every nats-server that is here."""
    base = (str(program), "-p", "{port}")
    crosses = scenario.place == "different"
    if crosses:
        relays = [ServerSpec("floor", (*base, "-n", "2"))]
    elif scenario.kind == "request":  # nobody waits with these
        relays = [ServerSpec("floor", base)]
    else:
        narrow = (*base, "-r", str(RECEIVE_BYTES))
        relays = [ServerSpec("floor", base)]
        relays += [ServerSpec(f"floor, {pause / 1000:g} ms", (*narrow, "-w", str(pause))) for pause in pauses_us]
    ours = "gnatswarm-2" if crosses else "gnatswarm-1"
    others = [spec for spec in default_specs() if spec.label == ours or spec.label.startswith("nats-server")]
    return relays + others


def figures(comparison: Comparison, scenario: Scenario) -> list[Figures]:
    """One for each server that could run it."""
    found = []
    for spec in comparison.specs:
        results = comparison.of(scenario.name, spec.label)
        if results and all(result.cpu_us is not None for result in results):
            share = statistics.median(max(result.generator_cpu_shares) for result in results)
            cpu = comparison.median(scenario.name, spec.label, "cpu") or 0.0
            rate = comparison.median(scenario.name, spec.label, "rate") or 0.0
            bound = statistics.median(result.is_generator_bound for result in results) > 0.5
            found.append(Figures(spec.label, cpu, rate, share, bound))
    return found


def bounds(scenario: Scenario, found: Sequence[Figures]) -> list[Bound]:
    """CPU and rate of ours and of the best relay beside the first nats-server; [] if one of them is missing."""
    relays = [one for one in found if one.label.startswith("floor")]
    ours = next((one for one in found if one.label.startswith("gnatswarm")), None)
    reference = next((one for one in found if one.label.startswith("nats-server")), None)
    if ours is None or reference is None or not relays:
        return []
    musts = dict(zip(scenario.figures, scenario.must, strict=False))
    least_cpu, most = min(one.cpu_us for one in relays), max(one.rate_per_s for one in relays)
    return [
        Bound("cpu", reference.cpu_us / ours.cpu_us, reference.cpu_us / least_cpu, musts.get("cpu")),
        Bound("rate", ours.rate_per_s / reference.rate_per_s, most / reference.rate_per_s, musts.get("rate")),
    ]


def verdict(bound: Bound) -> str:
    """One line about one figure."""
    said = f"{bound.figure}: {bound.ours:.2f} times nats-server's, the floor {bound.floor:.2f}"
    if bound.must is None:
        return said
    if bound.ours >= bound.must:
        return f"{said}; must {bound.must:g}: reached"
    why = "not reached" if bound.floor >= bound.must else "not reached, by the floor neither"
    return f"{said}; must {bound.must:g}: {why}"


def table(scenario: Scenario, found: Sequence[Figures]) -> str:
    """The row's servers, and what follows."""
    lines = [scenario.title or scenario.name]
    for one in found:
        bound = ", which limits the rate" if one.is_bound else ""
        lines.append(
            f"  {one.label:<20}{one.cpu_us:>10.4f} µs{one.rate_per_s:>14,.0f}/s"
            f"   generator {one.generator_share:.2f} of a core{bound}"
        )
    lines += [f"  {verdict(bound)}" for bound in bounds(scenario, found)]
    return "\n".join(lines)


def chosen(names: Sequence[str]) -> list[Scenario]:
    """The scenarios of these names; KeyError."""
    known = {scenario.name: scenario for scenario in read_scenarios(SCENARIOS)}
    return [known[name] for name in names or ROWS]


def main(argv: Sequence[str] | None = None) -> int:
    """Run with these arguments; returns the exit code."""
    parser = argparse.ArgumentParser("python -P -m tests.bench.floor", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("rows", nargs="*", metavar="ROW", help="of loadtest/scenarios.toml (default: crowds, requests)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each server in each row (default 3)")
    parser.add_argument("--scale", type=float, default=1.0, help="factor for messages (default 1)")
    parser.add_argument(
        "--pauses",
        default=PAUSES_US,
        metavar="US,US",
        help="pauses of patient relays in µs (default 500,3000,12000)",
        type=lambda text: [int(word) for word in text.split(",")],
    )
    options = parser.parse_args(argv)
    try:
        scenarios = chosen(options.rows)
    except KeyError as error:
        print(f"floor: no scenario {error} in {SCENARIOS}", file=sys.stderr)
        return 2
    status = 0
    with tempfile.TemporaryDirectory(prefix="gnatswarm-floor-") as folder:
        try:
            program = build(Path(folder))
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"floor: {SOURCE.name} could not be compiled: {error}", file=sys.stderr)
            return 2
        for scenario in scenarios:
            scaled = scenario.scaled(options.scale)
            try:
                comparison = compare(servers(program, scenario, options.pauses), [scaled], options.rounds)
            except NatsError as error:
                print(f"floor: {error}", file=sys.stderr)
                return 1
            print(table(scaled, figures(comparison, scaled)), flush=True)
            for (_, label), why in comparison.skipped.items():
                print(f"  {label}: {why}")
                status = 1
            if comparison.is_interrupted:
                break
    return status


if __name__ == "__main__":
    sys.exit(main())
