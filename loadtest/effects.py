"""Which options of `gnatswarm bench` have an effect on which kind of work; the others are refused.

An option that was ignored would say of a result what is not so, such as a rate that nobody kept to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from gnatswarm.loadtest.plan import Scenario

# Kinds with publishers and subscribers, in loops of their own.
_LOOPS = ("flow", "request", "latency", "churn")


def _of(*kinds: str) -> Callable[[Scenario], bool]:
    return lambda scenario: scenario.kind in kinds


# By option: whether a scenario takes it. Those that are not here have an effect on all.
_TAKES: dict[str, Callable[[Scenario], bool]] = {
    "publishers": _of(*_LOOPS),
    "subscribers": _of(*_LOOPS),
    "messages": _of("flow", "request"),
    "seconds": _of(*_LOOPS),
    "size": _of(*_LOOPS),
    "rate": _of("latency", "churn"),
    "subjects": _of("flow"),
    "subject": _of(*_LOOPS),
    "write": lambda scenario: scenario.kind == "flow" and scenario.publishers > 0,
    "window": lambda scenario: (
        scenario.kind in ("flow", "latency", "churn") and min(scenario.publishers, scenario.subscribers) > 0
    ),
    "connections": _of("connections"),
    "subscriptions": _of("subscriptions"),
    "place": _of(*_LOOPS),
    "patience": _of("flow", "request"),
    "processes": _of("flow", "request", "latency"),
    "congestion": _of(*_LOOPS, "subscriptions"),
}


def takes(scenario: Scenario, option: str) -> bool:
    """Whether this option has an effect on this scenario."""
    return _TAKES[option](scenario) if option in _TAKES else True


def check(given: Iterable[str], scenarios: Sequence[Scenario], work: dict[str, Any], what: str) -> None:
    """ValueError for an option that none of the scenarios takes. `work`: all kinds by name; `what`: the one chosen."""
    for option in given:
        if not any(takes(scenario, option) for scenario in scenarios):
            where = what or "any of these scenarios"
            others = [name for name, (scenario, _) in work.items() if takes(scenario, option)]
            listed = " and ".join(filter(None, [", ".join(others[:-1]), others[-1]]))
            raise ValueError(f"--{option} has no effect on {where}: it is for {listed}")
