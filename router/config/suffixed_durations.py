"""Durations that are numbers because they are not in quotes: `10m` is ten million, as of bytes, and not ten minutes.

nats-server takes them for so many seconds. An entry that a `$variable` refers to is left alone: it may be a size by
the name of a duration, and where it is used as one it is found there.
"""

from __future__ import annotations

from collections.abc import Iterator

from gnatswarm.router.config.conf_tree import Entry, List, Node, Problem, Scalar

# In whatever block; where an option of such a name is none, its value is no number.
_DURATIONS = frozenset(
    {
        *("ping_interval", "write_deadline", "lame_duck_duration", "lame_duck_grace_period", "fence_timeout"),
        *("timeout", "handshake_timeout", "dial_timeout", "first_info_timeout", "max_age", "window", "burst", "stall"),
        *("reconnect", "reconnect_delay", "reconnect_interval", "expires", "expiration", "ttl"),
        *("threshold", "response_threshold", "response_max_time", "response_time"),
        *("handshake_first", "first", "immediate"),
    }
)


def suffixed_durations(node: Node) -> Iterator[Problem]:
    """What is to be said of each, at its place; the place is that of its key."""
    if isinstance(node, List):
        for item in node.items:
            yield from suffixed_durations(item)
    elif not isinstance(node, Scalar):
        for entry in node:
            if not isinstance(entry.value, Scalar):
                yield from suffixed_durations(entry.value)
            elif isinstance(entry.value.value, int) and entry.key.lower() in _DURATIONS and not entry.used:
                yield from _suffixed(entry, entry.value.text, entry.value.value)


def _suffixed(entry: Entry, text: str, value: int) -> Iterator[Problem]:
    digits = text.rstrip("kmgtpeibKMGTPEIB")
    if isinstance(value, bool) or digits == text:
        return
    minutes = f"for {digits} minutes" if digits != "1" else "for a minute"
    advice = f'{minutes} write "{digits}m"' if text == f"{digits}m" else 'write one such as "2s"'
    yield Problem(entry.at, f"{entry.key}: {text} is the number {value:,} here", advice)
