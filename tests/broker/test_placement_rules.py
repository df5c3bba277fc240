"""Which rule a client matches: the first, as a plain reading of the patterns would have it."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnatswarm.broker import placement_rules
from gnatswarm.broker.options import PlacementRule
from gnatswarm.broker.placement_rules import (
    NONE,
    Names,
    Patterns,
    PlacementRules,
    SubjectPattern,
    Subjects,
    glob_matches,
)
from gnatswarm.broker.subject import matches

texts = st.text("ab", max_size=5)
patterns = st.text("ab*", min_size=1, max_size=5)
tokens = st.lists(st.sampled_from(["a", "b", "*"]), min_size=1, max_size=4)
subjects = st.builds(lambda parts, tail: ".".join([*parts, ">"] if tail else parts), tokens, st.booleans())
literals = st.builds(".".join, st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=5))


def naive(pattern: str, text: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text, re.DOTALL) is not None


@settings(deadline=None)
@given(patterns, texts)
def test_a_star_stands_for_any_text(pattern, text):
    assert glob_matches(pattern, text) == naive(pattern, text)


@settings(deadline=None)
@given(st.lists(patterns, max_size=8), texts)
def test_the_first_pattern_counts(listed, text):
    known = Patterns()
    for number, pattern in enumerate(listed):
        known.add(pattern, number)
    assert known.find(text) == next((n for n, pattern in enumerate(listed) if naive(pattern, text)), NONE)


@settings(deadline=None)
@given(patterns, patterns, texts)
def test_a_pattern_that_matches_another_matches_all_of_its_texts(wide, narrow, text):
    if glob_matches(wide, narrow) and naive(narrow, text):
        assert naive(wide, text)


@settings(deadline=None)
@given(subjects, subjects, literals)
def test_what_covers_a_subscription_matches_all_that_it_can_receive(wide, narrow, subject):
    if SubjectPattern(wide).covers(narrow) and matches(narrow.encode(), subject.encode()):
        assert matches(wide.encode(), subject.encode())


@pytest.mark.parametrize(
    ("wide", "narrow", "covers"),
    [
        ("orders.>", "orders.*", True),
        ("orders.>", "orders.eu.>", True),
        ("orders.>", "orders", False),
        ("orders.>", ">", False),
        ("orders.*", "orders.>", False),
        ("orders.*", "orders.new", True),
        ("*.new", "orders.new", True),
        ("orders", "orders", True),
    ],
)
def test_covers(wide, narrow, covers):
    assert SubjectPattern(wide).covers(narrow) is covers
    known = Subjects()
    known.add(wide, 7)
    assert known.find(narrow) == (7 if covers else NONE)


@settings(deadline=None)
@given(patterns, st.lists(texts, max_size=8))
def test_names_have_what_a_pattern_matches(pattern, listed):
    assert Names(listed).have(pattern) == any(naive(pattern, text) for text in listed)


def test_a_pattern_looks_at_few_of_thousands_of_names(monkeypatch: pytest.MonkeyPatch):
    looked: list[str] = []

    def counted(pattern: str, text: str) -> bool:
        looked.append(text)
        return glob_matches(pattern, text)

    monkeypatch.setattr(placement_rules, "glob_matches", counted)
    names = Names(f"u{n}" for n in range(5000))
    assert [names.have(pattern) for pattern in ("u77", "u77*", "x", "u5001*", "u49*9", "t")] == [
        True,
        True,
        False,
        False,
        True,
        False,
    ]
    assert len(looked) < 40


@settings(deadline=None)
@given(st.lists(subjects, max_size=8), subjects)
def test_the_first_subject_that_covers_counts(listed, subject):
    known = Subjects()
    for number, pattern in enumerate(listed):
        known.add(pattern, number)
    assert known.find(subject) == next(
        (n for n, wide in enumerate(listed) if SubjectPattern(wide).covers(subject)), NONE
    )


def test_a_subscription_looks_at_few_of_thousands_of_rules(monkeypatch: pytest.MonkeyPatch):
    looked: list[object] = []
    going_on = placement_rules._next

    def counted(nodes: list[Any], token: str) -> list[Any]:
        looked.extend(nodes)
        return going_on(nodes, token)

    monkeypatch.setattr(placement_rules, "_next", counted)
    kinds = ("a.{}.>", "*.{}", "{}.*.b", "{}")
    rules = PlacementRules([PlacementRule("subject", kinds[n % 4].format(n), 0) for n in range(4000)])
    assert rules.of_subjects([f"a.{n}" for n in range(1, 4000, 40)], NONE) == 1
    assert len(looked) <= 100 * 3


def test_names_and_subjects_share_one_order():
    rules = PlacementRules(
        [
            PlacementRule("subject", "a.>", 0),
            PlacementRule("user", "ann", 1),
            PlacementRule("subject", "b.>", 2),
            PlacementRule("account", "*", 3),
        ]
    )
    assert rules.of_names("A", "ann", "") == 1
    assert rules.of_names("A", "bob", "x") == 3
    assert rules.asks_for_subjects(1) and rules.asks_for_subjects(3)
    assert rules.of_subjects(["b.c"], 1) == 1
    assert rules.of_subjects(["b.c"], 3) == 2
    assert rules.of_subjects(["b.c", "a.*"], 1) == 0
    assert rules.of_subjects([">"], 3) == 3
    assert not PlacementRules([PlacementRule("name", "x", 1)]).asks_for_subjects(NONE)


def test_the_ends_of_a_pattern_do_not_overlap():
    assert not glob_matches("ab*ba", "aba")
    assert not glob_matches("a*b*ba", "aba")
    assert glob_matches("ab*ba", "abba")


# All subjects of at most five tokens: two patterns of at most four, and `>`, overlap in one of these or in none.
SUBJECTS = [".".join(parts).encode() for count in range(1, 6) for parts in itertools.product("abc", repeat=count)]


@given(subjects, subjects)
def test_patterns_overlap_if_a_subject_matches_both(one: str, other: str):
    is_shared = any(matches(one.encode(), subject) and matches(other.encode(), subject) for subject in SUBJECTS)
    assert SubjectPattern(one).overlaps(other) is SubjectPattern(other).overlaps(one) is is_shared
