"""Which placement rule a client matches: the first of those whose pattern matches its account, user, name or subjects.

A pattern of a name matches the whole of it, and `*` stands for any text, also none. A pattern of a subject matches a
subscription to it, or to a part of it: `orders.>` matches `orders.*`, and not `>`. Pure; a rule costs a client nothing
unless it is for names, and its pattern begins with `*` or has one inside. Called by the shards, and by the reader of
the configuration.
"""

from __future__ import annotations

from bisect import bisect_left
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


class SubjectPattern:
    """A pattern with which many subscriptions are compared; each comparison takes as long as the shorter text."""

    __slots__ = ("_tokens",)

    def __init__(self, pattern: str) -> None:
        self._tokens = pattern.split(".")

    def covers(self, subject: str) -> bool:
        """Whether all that a subscription to `subject` can receive is within it; both are valid subscriptions."""
        narrow = subject.split(".", len(self._tokens))
        for at, token in enumerate(self._tokens):
            if token == ">":
                return at < len(narrow)
            if at == len(narrow) or (token != narrow[at] and (token != "*" or narrow[at] == ">")):
                return False
        return len(self._tokens) == len(narrow)

    def overlaps(self, other: str) -> bool:
        """Whether there is a subject that both patterns match."""
        tokens = other.split(".", len(self._tokens))
        for token, opposite in zip(self._tokens, tokens, strict=False):
            if ">" in (token, opposite):
                return True
            if token != opposite and "*" not in (token, opposite):
                return False
        return len(self._tokens) == len(tokens)


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


class Names:
    """Many names, of which a pattern may match some."""

    def __init__(self, names: Iterable[str]) -> None:
        self._sorted = sorted(names)

    def __bool__(self) -> bool:
        return bool(self._sorted)

    def have(self, pattern: str) -> bool:
        """Whether it matches one. Looks at those that begin as it does."""
        begin = pattern.partition("*")[0]
        for at in range(bisect_left(self._sorted, begin), len(self._sorted)):
            name = self._sorted[at]
            if glob_matches(pattern, name):
                return True
            if not name.startswith(begin):
                break
        return False


def _next(nodes: Iterable[_Node], token: str) -> list[_Node]:
    """Where patterns go on that have this token, or one that covers it. A `>` ends them: see Subjects.find."""
    steps = (token,) if token == "*" else () if token == ">" else (token, "*")
    return [found for node in nodes for step in steps if (found := node.below.get(step)) is not None]


class _Node:
    """What follows in patterns that begin with the same tokens."""

    __slots__ = ("below", "number")

    def __init__(self) -> None:
        self.below: dict[str, _Node] = {}  # by token
        self.number = _BEHIND_ALL  # of the first pattern that ends here


class Subjects:
    """Patterns of subjects, each with a number; the lowest counts. As SubjectPattern.covers() for each at once."""

    def __init__(self) -> None:
        self._root = _Node()

    def add(self, pattern: str, number: int) -> None:
        """Add one; numbers grow."""
        node = self._root
        for token in pattern.split("."):
            node = node.below.setdefault(token, _Node())
        node.number = min(node.number, number)

    def find(self, subject: str) -> int:
        """The number of the first that covers this subscription; NONE."""
        best = _BEHIND_ALL
        nodes = [self._root]
        for token in subject.split("."):
            best = min([best, *(rest.number for node in nodes if (rest := node.below.get(">")) is not None)])
            nodes = _next(nodes, token)
        best = min([best, *(node.number for node in nodes)])
        return NONE if best == _BEHIND_ALL else best


class PlacementRules:
    """The rules of one configuration, by their place in it."""

    def __init__(self, rules: Sequence[PlacementRule]) -> None:
        self._names = {kind: Patterns() for kind in NAMES}
        self._subjects = Subjects()
        self._first_for_subjects = _BEHIND_ALL
        for number, rule in enumerate(rules):
            if rule.kind == SUBJECT:
                self._subjects.add(rule.pattern, number)
                self._first_for_subjects = min(self._first_for_subjects, number)
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
        return self._first_for_subjects < (_BEHIND_ALL if number == NONE else number)

    def of_subjects(self, subjects: Iterable[str], number: int) -> int:
        """The first rule that matches a client with these subscriptions, whose names match this one; NONE."""
        found = [one for subject in subjects if (one := self._subjects.find(subject)) != NONE]
        return min(found if number == NONE else [number, *found], default=NONE)
