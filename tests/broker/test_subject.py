"""Subjects: what may be subscribed to, what may be published to, what matches what; by examples and by the model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnatswarm.broker.subject import is_literal, is_valid_publish, is_valid_subscription, matches
from tests.support import model

# Few letters, so that dots and wildcards meet in every way.
subjects = st.text(alphabet="ab.*>", max_size=12)


@pytest.mark.parametrize(
    "subject",
    [b"a", b"a.b", b"*", b">", b"a.*.b", b"a.>", b"*.>", b"a*", b"a.>b", b">>", b"a.**", b"\xff.\x00", b"$S.a"],
)
def test_subjects_that_may_be_subscribed_to(subject):
    assert is_valid_subscription(subject)


@pytest.mark.parametrize("subject", [b"", b".", b"a.", b".a", b"a..b", b"a.>.b", b">.a", b">.>", b"..", b">."])
def test_subjects_that_may_not_be_subscribed_to(subject):
    assert not is_valid_subscription(subject)
    assert not is_valid_publish(subject)
    assert not is_literal(subject)


@pytest.mark.parametrize("subject", [b"*", b">", b"a.*", b"a.>", b"*.a"])
def test_subjects_that_a_pedantic_client_may_subscribe_to_but_not_publish_to(subject):
    assert is_valid_subscription(subject)
    assert not is_valid_publish(subject)


@given(subjects)
def test_validity_is_the_models(subject):
    raw = subject.encode()
    assert is_valid_subscription(raw) is model.is_valid_subject(subject)
    assert is_valid_publish(raw) is model.is_literal(subject)
    assert is_literal(raw) is model.is_literal(subject)


@given(subjects, subjects)
def test_matching_is_the_models(pattern, subject):
    assert matches(pattern.encode(), subject.encode()) is model.matches(pattern, subject)


@given(st.lists(st.sampled_from(["a", "b", "*"]), min_size=1, max_size=5), st.booleans())
def test_a_pattern_made_from_a_subject_matches_it(tokens, has_rest):
    subject = ".".join("a" if token == "*" else token for token in tokens)
    pattern = ".".join([*tokens[:-1], ">"] if has_rest else tokens)
    assert matches(pattern.encode(), subject.encode())
    assert not matches(pattern.encode(), subject.encode() + b".")
