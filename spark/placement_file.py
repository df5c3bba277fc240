"""The file that `gnatswarm place` writes: placement rules as an includable block, and what they promise.

    placement { rules: [ { name: "orders*", shard: 0 } ] }

Its first lines are comments: where the figures are from, and what is expected, as JSON, for `place --check`. A pattern
matches a whole name; `*` stands for anything. Of rules that match a client, the first counts: longer patterns come
first, so that each is reached. Names that cannot be written so have no rule.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import NamedTuple

MARK = "# expects "
MOST_AT_US = 1 << 62  # a whole number in tables has eight bytes


class BadFile(ValueError):
    """It was not written by `gnatswarm place`, or was changed too much."""


class Rule(NamedTuple):
    """One service's shard. `kind` is name or user."""

    kind: str
    pattern: str
    shard: int


class Expected(NamedTuple):
    """What is promised: shares of deliveries that cross, and the heaviest shard's load ÷ the mean."""

    shards: int
    crossing_before: float
    crossing: float
    balance_before: float
    balance: float
    services_by: str
    at_us: int  # the end of the statistics that it follows from


def is_writable(text: str) -> bool:
    """Whether a pattern can be written in a configuration file, and means what it says."""
    return bool(text) and text.isprintable() and not set(text) & set('"\\*') and len(text) <= 200


def written(rules: Iterable[Rule], expected: Expected, source: str) -> str:
    """The file's text."""
    shown = "".join(one if one.isprintable() else "?" for one in source)
    # Without the star: `ab*` matches all that `abc` does.
    ordered = sorted(rules, key=lambda rule: (-len(rule.pattern.rstrip("*")), "*" in rule.pattern, rule))
    lines = [
        f"# Placement rules by `gnatswarm place`, from {shown}.",
        f"# Deliveries between shards: {expected.crossing_before:.1%} before, {expected.crossing:.1%} expected.",
        f"# Heaviest shard ÷ mean: {expected.balance_before:.2f} before, {expected.balance:.2f} expected.",
        MARK + json.dumps(expected._asdict()),
        "placement {",
        "    rules: [",
        *(f'        {{ {rule.kind}: "{rule.pattern}", shard: {rule.shard} }}' for rule in ordered),
        "    ]",
        "}",
    ]
    return "\n".join(lines) + "\n"


def expected_of(text: str) -> Expected:
    """What a file promises. BadFile."""
    found = [line for line in text.splitlines() if line.startswith(MARK)]
    if len(found) != 1:
        raise BadFile(f"it has no line `{MARK}…`: it was not written by `gnatswarm place`")
    try:
        expected = Expected(**json.loads(found[0].removeprefix(MARK)))
    except (ValueError, TypeError) as error:
        raise BadFile(f"its line `{MARK}…` cannot be read: {error}") from None
    if wrong := [name for name, makes_sense in _sense(expected).items() if not makes_sense]:
        raise BadFile(f"its line `{MARK}…` cannot be read: what is said of {wrong[0]} makes no sense")
    return expected


def _sense(expected: Expected) -> dict[str, bool]:
    """Of each of its fields, whether it is what written() may have written."""
    shares = ("crossing_before", "crossing", "balance_before", "balance")
    return {
        "shards": type(expected.shards) is int and expected.shards > 0,
        **{name: type(getattr(expected, name)) in (int, float) for name in shares},
        "services_by": expected.services_by in ("name", "user"),
        "at_us": type(expected.at_us) is int and 0 <= expected.at_us < MOST_AT_US,
    }
