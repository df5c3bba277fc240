"""Runs the same work on several servers in turn, A B A B, and computes ratios.

Taking turns spreads the noise of a shared machine over all servers; medians of several rounds remove the worst of it.
Scenarios about memory start a new server each time, because a server that has grown once does not grow again.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gnatswarm.loadtest.errors import NatsError
from gnatswarm.loadtest.measure import Progress, Result, measure
from gnatswarm.loadtest.plan import Scenario
from gnatswarm.loadtest.servers import Server, ServerSpec

MEMORY_KINDS = ("connections", "subscriptions")
# Figures that are better when they are lower.
LESS_IS_BETTER = ("cpu", "memory", "p50", "p99", "p99.9")


def figure_of(result: Result, figure: str) -> float | None:
    """One figure of a result; None if the result does not have it."""
    if figure == "cpu":
        return result.cpu_us
    if figure == "rate":
        return result.rate_per_s
    if figure == "memory":
        return result.memory_bytes
    return result.latency_us.get(figure)


@dataclass
class Comparison:
    """Every run, in order, and why others were skipped or failed."""

    specs: list[ServerSpec]
    scenarios: list[Scenario]
    reference: str  # the label of the server that others are compared with
    rounds: int
    results: list[Result] = field(default_factory=list)
    skipped: dict[tuple[str, str], str] = field(default_factory=dict)  # (scenario, label) → why it cannot be run there
    failed: dict[tuple[str, str], str] = field(default_factory=dict)  # the same → why a run was cut short; the last one
    versions: dict[str, str] = field(default_factory=dict)
    is_interrupted: bool = False  # stopped by ^C: later runs are missing

    def of(self, scenario: str, label: str) -> list[Result]:
        """All runs of one scenario on one server."""
        return [result for result in self.results if (result.scenario, result.server) == (scenario, label)]

    def median(self, scenario: str, label: str, figure: str) -> float | None:
        """The median of a figure; None if it was not measured in every round."""
        if (scenario, label) in self.failed:
            return None
        found = [value for result in self.of(scenario, label) if (value := figure_of(result, figure)) is not None]
        return statistics.median(found) if found else None

    def ratio(self, scenario: str, label: str, figure: str, other: str = "") -> float | None:
        """How many times better this server is than another, by default the reference; None if one lacks the figure."""
        ours, theirs = self.median(scenario, label, figure), self.median(scenario, other or self.reference, figure)
        if not ours or not theirs:
            return None
        return theirs / ours if figure in LESS_IS_BETTER else ours / theirs

    @property
    def others(self) -> list[str]:
        """Labels of the servers that are not the reference."""
        return [spec.label for spec in self.specs if spec.label != self.reference]

    def judged(self, scenario: Scenario) -> str | None:
        """The server that the targets of a row apply to: the first that can run the scenario."""
        return next(
            (label for label in self.others if (scenario.name, label) in self.failed or self.of(scenario.name, label)),
            None,
        )

    @property
    def is_ok(self) -> bool:
        """Whether every run that can be made was made, and every message arrived exactly once."""
        return not self.failed and all(result.is_ok for result in self.results)


def compare(
    specs: Sequence[ServerSpec],
    scenarios: Sequence[Scenario],
    rounds: int = 3,
    reference: str = "",
    congestion_control: str = "",
    generator_processes: int = 1,
    on_result: Callable[[Result], None] | None = None,
    on_progress: Progress | None = None,
) -> Comparison:
    """Run every scenario `rounds` × scenario.rounds times on every server. NatsError when a server cannot be started.

    A run that fails is that server's last of its scenario; its reason is kept. ^C ends the comparison early and keeps
    the finished runs.
    """
    labels = [spec.label for spec in specs]
    comparison = Comparison(
        list(specs),
        list(scenarios),
        reference or _default_reference(labels),
        rounds,
        versions=dict.fromkeys(labels, ""),
    )
    with contextlib.ExitStack() as stack:
        servers = {spec.label: stack.enter_context(Server(spec)).start() for spec in specs}
        for label, server in servers.items():
            comparison.versions[label] = server.version
        used: set[str] = set()  # servers that have already served a run

        def take_turn(scenario: Scenario, spec: ServerSpec) -> Result | None:
            key = (scenario.name, spec.label)
            if why := _unfit(scenario, servers[spec.label]):
                comparison.skipped[key] = why
            if key in comparison.skipped or key in comparison.failed:
                return None
            try:
                if scenario.kind in MEMORY_KINDS and spec.command:
                    with Server(spec).start() as fresh:
                        return measure(scenario, fresh.target(congestion_control), 1, on_progress)
                target = servers[spec.label].target(congestion_control, spec.label in used)
                used.add(spec.label)
                return measure(scenario, target, generator_processes, on_progress)
            except NatsError as error:
                comparison.failed[key] = str(error)
                return None

        try:
            for scenario in scenarios:
                for _ in range(rounds * scenario.rounds):
                    for spec in specs:
                        result = take_turn(scenario, spec)
                        if result is not None:
                            comparison.results.append(result)
                            if on_result:
                                on_result(result)
        except KeyboardInterrupt:
            comparison.is_interrupted = True
    return comparison


def _default_reference(labels: Sequence[str]) -> str:
    return "nats-server" if "nats-server" in labels else labels[0]


def _unfit(scenario: Scenario, server: Server) -> str:
    if scenario.place == "different" and server.shards == 1:
        return "it has one shard"
    return ""
