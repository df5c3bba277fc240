"""Which of many patterns share subjects with another one, found without a look at each of them.

For configurations with ten thousands of imports and exports, whose rules compare all with all. Messages find their
subscriptions otherwise: see `broker.sublist`.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Generic, TypeVar

from gnatswarm.broker.rules import intersection

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_Item = TypeVar("_Item")
_WILDCARDS = (b"*", b">")
_Shape = tuple[int, tuple[int, ...], bool]


class PatternIndex(Generic[_Item]):
    """Patterns, each with something that it stands for; answers are in the order in which they were given.

    They are kept by their heads, the tokens in front of the first wildcard: two patterns can share a subject only if
    the head of one begins the other's. For subjects without wildcards they are kept by their shapes, too, which are
    few: where their wildcards are. `compared`: how many were looked at for all answers so far, some 0.8 us each.
    """

    def __init__(self, items: Iterable[tuple[bytes, _Item]]) -> None:
        self._by_head: dict[bytes, list[tuple[int, bytes, _Item]]] = {}
        for number, (pattern, item) in enumerate(items):
            self._by_head.setdefault(_head(pattern), []).append((number, pattern, item))
        self._heads = sorted(self._by_head)
        # By shape (tokens, places of those that are literal, whether others follow) and the literal tokens.
        self._by_shape: dict[_Shape, dict[tuple[bytes, ...], list[tuple[int, bytes, _Item]]]] = {}
        self.compared = 0

    def around(self, subject: bytes) -> list[_Item]:
        """Those whose patterns match all that this subject or pattern matches."""
        head = _head(subject)
        if head == subject:
            return self._matching(subject)
        found = self._of_heads(_beginnings(head))
        return _items(one for one in found if intersection(one[1], subject) == subject)

    def meeting(self, subject: bytes) -> list[_Item]:
        """Those whose patterns share a subject with this one."""
        head = _head(subject)
        if head == subject:
            return self._matching(subject)
        beyond = self._heads
        if head:
            first, last = (bisect_left(beyond, head + end) for end in (b".", b"/"))  # "/" comes behind "."
            beyond = beyond[first:last]
        found = self._of_heads([*_beginnings(head), *(one for one in beyond if one)])
        return _items(one for one in found if intersection(one[1], subject) is not None)

    def _of_heads(self, heads: Iterable[bytes]) -> list[tuple[int, bytes, _Item]]:
        found = [one for head in heads for one in self._by_head.get(head, ())]
        self.compared += len(found)
        return found

    def _matching(self, subject: bytes) -> list[_Item]:
        """Those that match a subject without wildcards."""
        if not self._by_shape:
            for one in (one for of_head in self._by_head.values() for one in of_head):
                shape, literal = _shape(one[1])
                self._by_shape.setdefault(shape, {}).setdefault(literal, []).append(one)
        tokens = subject.split(b".")
        found: list[tuple[int, bytes, _Item]] = []
        for (n_tokens, places, is_open), by_literal in self._by_shape.items():
            if len(tokens) > n_tokens if is_open else len(tokens) == n_tokens:
                found += by_literal.get(tuple([tokens[place] for place in places]), ())
        self.compared += len(self._by_shape)
        return _items(found)


def _items(found: Iterable[tuple[int, bytes, _Item]]) -> list[_Item]:
    return [item for _, _, item in sorted(found, key=lambda one: one[0])]


def _shape(pattern: bytes) -> tuple[_Shape, tuple[bytes, ...]]:
    tokens = pattern.split(b".")
    is_open = tokens[-1] == b">"
    if is_open:
        tokens.pop()
    places = tuple(place for place, token in enumerate(tokens) if token != b"*")
    return (len(tokens), places, is_open), tuple(tokens[place] for place in places)


def _head(pattern: bytes) -> bytes:
    """The pattern up to its first wildcard; all of it, where it has none."""
    if b"*" not in pattern and b">" not in pattern:
        return pattern
    tokens = pattern.split(b".")
    first = next((i for i, token in enumerate(tokens) if token in _WILDCARDS), len(tokens))
    return b".".join(tokens[:first])


def _beginnings(head: bytes) -> Iterator[bytes]:
    """Its heads of no, one, two and more tokens, up to itself."""
    yield b""
    end = head.find(b".")
    while end >= 0:
        yield head[:end]
        end = head.find(b".", end + 1)
    if head:
        yield head
