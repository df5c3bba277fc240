"""An index of patterns answers as a look at each of them does, and looks at few."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnatswarm.broker import pattern_index
from gnatswarm.broker.exports import Exports
from gnatswarm.broker.options import Export, Import
from gnatswarm.broker.pattern_index import PatternIndex
from gnatswarm.broker.rules import intersection

N = 300

TOKENS = st.sampled_from(["a", "b", "a-", "a0", "*", "*a"])
PATTERNS = st.builds(
    lambda tokens, is_open: ".".join([*tokens, ">"] if is_open or not tokens else tokens).encode(),
    st.lists(TOKENS, max_size=4),
    st.booleans(),
)


@given(st.lists(PATTERNS, max_size=12), PATTERNS)
def test_it_answers_as_a_look_at_each_pattern_does(patterns: list[bytes], subject: bytes) -> None:
    index = PatternIndex((pattern, n) for n, pattern in enumerate(patterns))
    shared = [intersection(pattern, subject) for pattern in patterns]
    assert index.meeting(subject) == [n for n, both in enumerate(shared) if both is not None]
    assert index.around(subject) == [n for n, both in enumerate(shared) if both == subject]


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bytes, bytes]]:
    """The pairs of patterns that are compared."""
    pairs: list[tuple[bytes, bytes]] = []

    def compared(one: bytes, other: bytes) -> bytes | None:
        pairs.append((one, other))
        return intersection(one, other)

    monkeypatch.setattr(pattern_index, "intersection", compared)
    return pairs


@pytest.mark.parametrize("of_number", ["s.%d", "s.%d.>", "%d.*"], ids=["literal", "open", "wildcard"])
def test_it_looks_at_those_with_the_same_beginning(looks: Sequence[object], of_number: str) -> None:
    patterns = [(of_number % n).encode() for n in range(N)]
    index = PatternIndex(zip(patterns, range(N), strict=True))
    for n, pattern in enumerate(patterns):
        assert index.around(pattern) == index.meeting(pattern) == [n]
    assert index.compared == 2 * N and len(looks) == (0 if of_number == "s.%d" else 2 * N)


def test_of_patterns_that_begin_alike_a_subject_meets_few(looks: Sequence[object]) -> None:
    """A gateway looks for each message that a leaf node's account may import: 1,500 such imports took 0.6 ms."""
    index = PatternIndex((f"ev.*.t{n}".encode(), n) for n in range(N))
    for n in range(N):
        assert index.around(b"ev.x.t%d" % n) == index.meeting(b"ev.x.t%d" % n) == [n]
        assert index.around(b"ev.x.t%d.y" % n) == index.meeting(b"other.x.t%d" % n) == []
    assert index.compared == 4 * N and not looks


@pytest.mark.parametrize("is_service", [True, False], ids=["service", "stream"])
def test_an_import_is_compared_with_few_of_many_exports(looks: Sequence[object], is_service: bool) -> None:
    exports = Exports(Export(f"s.{n}.>", is_service) for n in range(N))
    for n in range(N):
        wanted = Import("A", f"s.{n}.x", is_service, to="x")
        assert [export.subject for export in exports.around(wanted)] == [f"s.{n}.>"]
    assert not looks


@pytest.mark.parametrize(("subject", "expected"), [("s.1", "s.1"), ("s.2", ">"), ("t", ">")])
def test_an_export_of_exactly_the_subject_goes_before_those_around_it(subject: str, expected: str) -> None:
    exports = Exports(Export(one, is_service=True) for one in (">", "s.*", "s.1"))
    assert exports.first_around(Import("A", subject, True, to=subject)) == Export(expected, is_service=True)


def test_an_export_of_the_other_kind_counts_for_nothing() -> None:
    exports = Exports([Export("s", is_service=False), Export(">", is_service=False)])
    assert exports.around(Import("A", "s", is_service=True, to="s")) == []
    assert Exports.of(None).first_around(Import("A", "s", is_service=True, to="s")) is None
