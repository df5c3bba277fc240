"""Reads `msg_trace` of an account: a destination, or `{ dest: traces.a, sampling: 50% }`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gnatswarm.broker.subject import is_literal
from gnatswarm.router.config.conf_tree import Block, Problem, Scalar, text_in
from gnatswarm.router.config.repetition import given_again
from gnatswarm.router.config.user_list import unknown_field

if TYPE_CHECKING:
    from gnatswarm.router.config.conf_tree import Entry

NO_WILDCARDS = "write a subject without wildcards"


def message_trace(entry: Entry, problems: list[Problem]) -> tuple[str, int]:
    """(destination, percent); "" after a problem."""
    value = entry.value
    if not isinstance(value, Block):
        if text_in(value) is None:
            what = f'Expected account message trace "{entry.key}" to be a string or a map/struct, got {value.kind}'
            problems.append(Problem(entry.at, what, "write a subject, or { dest: …, sampling: … }"))
            return "", 100
        return _destination(entry, problems), 100
    destination, percent, has_sampling = "", 100, False
    has_destination = False
    problems += given_again(value, {"dest": "dest", "sampling": "sampling"})
    for inner in value:
        key = inner.key.lower()
        if key == "dest":
            has_destination = True
            destination = _destination(inner, problems)
        elif key == "sampling":
            has_sampling = True
            percent = _percent(inner, problems)
        elif not inner.used:
            problems.append(unknown_field(inner, ["dest", "sampling"]))
    if has_sampling and not has_destination:
        what = "Trace destination sampling ignored since no destination was set"
        problems.append(Problem(entry.at, what, "add dest: …"))
    return destination, percent


def _destination(entry: Entry, problems: list[Problem]) -> str:
    text = text_in(entry.value) or ""
    if not is_literal(text.encode("utf-8", "surrogateescape")) or any(c.isspace() for c in text):
        problems.append(Problem(entry.at, f'Trace destination "{text}" is not valid', NO_WILDCARDS))
        return ""
    return text


def _percent(entry: Entry, problems: list[Problem]) -> int:
    value = entry.value.value if isinstance(entry.value, Scalar) else None
    advice = "write 1 to 100, or a percentage, as in 50%"
    if isinstance(value, bool) or not isinstance(value, int | str):
        what = f'Trace destination sampling field "{entry.key}" should be an integer or a percentage'
        problems.append(Problem(entry.at, f"{what}, got {entry.value.kind}", advice))
        return 100
    digits = str(value).strip().removesuffix("%").strip()
    if not (digits.isascii() and digits.removeprefix("-").isdigit()):
        problems.append(Problem(entry.at, f'Invalid trace destination sampling value "{value}"', advice))
        return 100
    if not 1 <= int(digits[:9]) <= 100:
        what = f"Trace destination sampling value {digits} is invalid, needs to be [1..100]"
        problems.append(Problem(entry.at, what, advice))
        return 100
    return int(digits)
