"""Tests the model by examples from the specification, because other tests rely on it."""

from __future__ import annotations

import pytest

from tests.support.model import Model, is_literal, is_valid_subject, matches


@pytest.mark.parametrize(
    "subject", ["a", "a.b", "*", ">", "a.*.b", "a.>", "*.>", "a*", "a.>b", ">>", "a.**.b", "ü.☃", "$SYS.a"]
)
def test_well_formed_subjects(subject):
    assert is_valid_subject(subject)


@pytest.mark.parametrize("subject", ["", ".", "a.", ".a", "a..b", "a.>.b", ">.a", "a b", "a\tb", "a\r", "a\nb"])
def test_badly_formed_subjects(subject):
    assert not is_valid_subject(subject)


@pytest.mark.parametrize(
    ("subject", "literal"),
    [("a.b", True), ("a.*", False), (">", False), ("a.b*", True), ("a.>b", True), ("a..b", False)],
)
def test_literal_subjects(subject, literal):
    assert is_literal(subject) is literal


@pytest.mark.parametrize(
    ("pattern", "subject", "expected"),
    [
        ("a.b", "a.b", True),
        ("a.b", "a.B", False),
        ("a.*", "a.b", True),
        ("a.*", "a", False),
        ("a.*", "a.b.c", False),
        ("*", "a", True),
        ("*", "a.b", False),
        (">", "a", True),
        (">", "a.b.c", True),
        ("a.>", "a", False),
        ("a.>", "a.b", True),
        ("a.>", "a.b.c", True),
        ("a.>", "b.c", False),
        ("*.b.>", "a.b.c", True),
        ("*.b.>", "a.b", False),
        ("a*", "ab", False),
        ("a*", "a*", True),
        ("a.>b", "a.>b", True),
        ("a.>b", "a.x", False),
        # A publish subject with wildcards matches literally.
        ("a.*", "a.*", True),
        ("a.*", "a.>", True),
        ("a.b", "a.*", False),
        # A publish subject with an empty token matches nothing, not even `>`.
        (">", "a.", False),
        (">", ".a", False),
        (">", "", False),
        ("a.*", "a.", False),
        ("a.*.b", "a..b", False),
    ],
)
def test_matching(pattern, subject, expected):
    assert matches(pattern, subject) is expected


def test_every_plain_subscription_and_one_queue_member():
    model = Model()
    model.subscribe("a", "jobs.*", "", "1")
    model.subscribe("a", "jobs.x", "q", "2")
    model.subscribe("b", "jobs.>", "q", "1")
    model.subscribe("b", "jobs.x", "r", "2")
    delivery = model.publish("c", "jobs.x")
    assert delivery.plain == [("a", "1")]
    assert delivery.queues == {"q": {("a", "2"), ("b", "1")}, "r": {("b", "2")}}
    assert delivery.permits([("b", "2"), ("b", "1"), ("a", "1")])
    assert delivery.permits([("b", "2"), ("a", "2"), ("a", "1")])
    assert not delivery.permits([("b", "2"), ("a", "2"), ("b", "1"), ("a", "1")])
    assert not delivery.permits([("b", "2"), ("a", "1")])
    assert not delivery.permits([("b", "2"), ("a", "2")])
    assert not delivery.permits([("b", "2"), ("a", "2"), ("a", "1"), ("a", "1")])


def test_echo_false_keeps_out_own_subscriptions_queue_members_included():
    model = Model()
    model.set_echo("a", False)
    model.subscribe("a", "x", "", "1")
    model.subscribe("a", "x", "q", "2")
    assert model.publish("a", "x").is_empty
    assert not model.publish("b", "x").is_empty
    model.subscribe("b", "x", "q", "1")
    assert model.publish("a", "x").queues == {"q": {("b", "1")}}


def test_a_duplicate_sid_keeps_the_first_subject():
    model = Model()
    assert model.subscribe("a", "x", "", "1")
    assert model.subscribe("a", "y", "", "1")
    assert model.publish("a", "y").is_empty
    assert model.publish("a", "x").plain == [("a", "1")]


def test_a_duplicate_sid_is_accepted_before_its_subject_is_looked_at():
    model = Model()
    assert model.subscribe("a", "x", "", "1")
    assert model.subscribe("a", "x..y", "", "1")
    assert not model.subscribe("a", "x..y", "", "2")


def test_a_bad_subject_makes_no_subscription():
    model = Model()
    assert not model.subscribe("a", "x..y", "", "1")
    assert model.subscribe("a", "x", "", "1")
    assert model.publish("a", "x").plain == [("a", "1")]


def test_unsub_max_counts_from_the_sub():
    model = Model()
    model.subscribe("a", "x", "", "1")
    model.publish("b", "x")
    model.unsubscribe("a", "1", 2)
    assert model.publish("b", "x").plain == [("a", "1")]
    assert model.publish("b", "x").is_empty


@pytest.mark.parametrize("most", [None, 0, -1, 1])
def test_unsub_with_a_max_that_is_reached_or_none_removes_at_once(most):
    model = Model()
    model.subscribe("a", "x", "", "1")
    model.publish("b", "x")
    model.unsubscribe("a", "1", most)
    assert not model.is_interested("x")


def test_unsub_max_counts_only_the_queue_member_that_got_it():
    model = Model()
    model.subscribe("a", "x", "q", "1")
    model.subscribe("b", "x", "q", "1")
    model.unsubscribe("a", "1", 1)
    assert model.publish("c", "x", lambda queue, members: ("b", "1")).chosen == {"q": ("b", "1")}
    assert model.publish("c", "x", lambda queue, members: ("a", "1")).queues == {"q": {("a", "1"), ("b", "1")}}
    assert model.publish("c", "x").queues == {"q": {("b", "1")}}


def test_unsub_of_an_unknown_sid_leaves_nothing_behind():
    model = Model()
    model.unsubscribe("a", "1", 1)
    model.subscribe("a", "x", "", "1")
    model.publish("b", "x")
    assert not model.publish("b", "x").is_empty


def test_disconnect_removes_everything_of_that_client():
    model = Model()
    model.subscribe("a", "x", "", "1")
    model.subscribe("b", "x", "", "1")
    model.disconnect("a")
    assert model.publish("c", "x").plain == [("b", "1")]
