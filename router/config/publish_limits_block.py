"""A `publish_limits { … }` block of a user or an account, as `broker.options.PublishLimits`."""

from __future__ import annotations

from gnatswarm.broker.options import PublishLimits
from gnatswarm.router.config import option_values as values
from gnatswarm.router.config.conf_tree import Block, Entry, Problem, plain
from gnatswarm.router.config.option_values import Mistake
from gnatswarm.router.config.spelling import nearest

KEYS = {"messages": "messages", "msgs": "messages", "bytes": "bytes", "burst": "burst_s", "stall": "stall_s"}
MOST_PER_SECOND = 2**40
SHORTEST_BURST_S, LONGEST_S = 0.01, 3600.0


def publish_limits(entry: Entry, problems: list[Problem]) -> PublishLimits | None:
    """The limits; None and a problem where the block is wrong."""
    block = entry.value
    if not isinstance(block, Block):
        what = f"Expected {entry.key} to be a map/struct, got {block.kind}"
        problems.append(Problem(entry.at, what, "write { messages: 1000, bytes: 1MB }"))
        return None
    found: dict[str, float] = {}
    is_wrong = False
    for inner in block:
        field = KEYS.get(inner.key.lower())
        if field is None:
            if not inner.used:
                near = nearest(inner.key, KEYS)
                advice = f'did you mean "{near}"?' if near else f"known are {', '.join(KEYS)}"
                problems.append(Problem(inner.at, f'unknown field "{inner.key}" in {entry.key}', advice))
            continue
        try:
            if inner.replaces is not None or field in found:
                raise Mistake("is given again", "keep one")
            found[field] = _value(field, plain(inner.value))
        except Mistake as mistake:
            problems.append(Problem(inner.at, f"{inner.key}: {mistake.what}", mistake.advice))
            is_wrong = True
    if is_wrong:
        return None
    if not found.get("messages") and not found.get("bytes"):
        problems.append(Problem(entry.at, f"{entry.key} limits nothing", "write messages, bytes or both, per second"))
        return None
    return PublishLimits(
        messages=int(found.get("messages", 0)),
        bytes=int(found.get("bytes", 0)),
        burst_s=found.get("burst_s", PublishLimits().burst_s),
        stall_s=found.get("stall_s", PublishLimits().stall_s),
    )


def _value(field: str, value: object) -> float:
    if field in ("messages", "bytes"):
        return values.number(value, 1, MOST_PER_SECOND, "bytes" if field == "bytes" else "")
    try:
        seconds = values.duration_s(value)
    except values.BareSeconds:
        raise Mistake("expected a duration, not a number", 'write it in quotes with a unit, as in "1s"') from None
    least = SHORTEST_BURST_S if field == "burst_s" else 0.0
    if not least <= seconds <= LONGEST_S:
        end = "; 0s: it waits for as long as it takes" if field == "stall_s" else ""
        raise Mistake(f"a time of {least:g} to {LONGEST_S:g} seconds is wanted, not {seconds:g}", f'as in "1s"{end}')
    return seconds
