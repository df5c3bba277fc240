"""Which placement rule a client matches: the first of those whose pattern matches its account, user, name or subjects.

A pattern of a name matches the whole of it, and `*` stands for any text, also none. A pattern of a subject matches a
subscription to it, or to a part of it: `orders.>` matches `orders.*`, and not `>`. Pure; a rule costs a client nothing
unless its pattern begins with `*` or has one inside. Called by the shards, and by the reader of the configuration.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gnatswarm.broker.options import PlacementRule

NAMES = ("account", "user", "name")
SUBJECT = "subject"
KINDS = (*NAMES, SUBJECT)
NONE = -1
_BEHIND_ALL = 1 << 30


def glob_matches(pattern: str, text: str) -> bool:
    """Whether the pattern matches the whole text. Where the text is a pattern too: whether it matches all of that's."""
    first, *rest = pattern.split("*")
    if not rest:
        return pattern == text
    last = rest.pop()
    if len(text) < len(first) + len(last) or not text.startswith(first) or not text.endswith(last):
        return False
    at, end = len(first), len(text) - len(last)
    for part in rest:
        found = text.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True


def subject_covers(pattern: str, subject: str) -> bool:
    """Whether all that a subscription to `subject` can receive is within `pattern`; both are valid subscriptions."""
    wide, narrow = pattern.split("."), subject.split(".")
    for at, token in enumerate(wide):
        if token == ">":
            return at < len(narrow)
        if at == len(narrow) or (token != narrow[at] and (token != "*" or narrow[at] == ">")):
            return False
    return len(wide) == len(narrow)


class Patterns:
    """Patterns of names, each with a number; the lowest number counts."""

    def __init__(self) -> None:
        self._exact: dict[str, int] = {}
        self._prefixes: dict[str, int] = {}  # of those whose only `*` is the last character
        self._lengths: list[int] = []  # of the prefixes
        self._others: list[tuple[int, str]] = []

    def add(self, pattern: str, number: int) -> None:
        """Add one; numbers grow."""
        stars = pattern.count("*")
        if not stars:
            self._exact.setdefault(pattern, number)
        elif stars == 1 and pattern.endswith("*"):
            if self._prefixes.setdefault(pattern[:-1], number) == number and len(pattern) - 1 not in self._lengths:
                self._lengths.append(len(pattern) - 1)
        else:
            self._others.append((number, pattern))

    def find(self, text: str) -> int:
        """The number of the first that matches the whole text, or all of a pattern; NONE."""
        best = self._exact.get(text, _BEHIND_ALL)
        for length in self._lengths:
            if length <= len(text):
                best = min(best, self._prefixes.get(text[:length], _BEHIND_ALL))
        for number, pattern in self._others:
            if number > best:
                break
            if glob_matches(pattern, text):
                best = number
                break
        return NONE if best == _BEHIND_ALL else best


class PlacementRules:
    """The rules of one configuration, by their place in it."""

    def __init__(self, rules: Sequence[PlacementRule]) -> None:
        self._names = {kind: Patterns() for kind in NAMES}
        self._subjects: list[tuple[int, str]] = []
        for number, rule in enumerate(rules):
            if rule.kind == SUBJECT:
                self._subjects.append((number, rule.pattern))
            else:
                self._names[rule.kind].add(rule.pattern, number)

    def of_names(self, account: str, user: str, name: str) -> int:
        """The first rule that matches a client with these, leaving out those for subjects; NONE."""
        found = [
            number
            for kind, text in zip(NAMES, (account, user, name), strict=True)
            if (number := self._names[kind].find(text)) != NONE
        ]
        return min(found, default=NONE)

    def asks_for_subjects(self, number: int) -> bool:
        """Whether a rule for subjects would come before this one, which matched a client's names."""
        return bool(self._subjects) and (number == NONE or self._subjects[0][0] < number)

    def of_subjects(self, subjects: Iterable[str], number: int) -> int:
        """The first rule that matches a client with these subscriptions, whose names match this one; NONE."""
        listed = list(subjects)
        for at, pattern in self._subjects:
            if number != NONE and at > number:
                break
            if any(subject_covers(pattern, subject) for subject in listed):
                return at
        return number
