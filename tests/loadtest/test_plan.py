"""Scenarios: what is wrong with one is said, and the shipped ones are those that must be shown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gnatswarm.loadtest.bench import SCENARIOS, WORK
from gnatswarm.loadtest.plan import BadPlan, Scenario, Share, read_scenarios


def test_what_is_shipped_can_be_run():
    assert all(not scenario.faults() for scenario, _ in WORK.values())
    assert len(read_scenarios(SCENARIOS)) > 20


# The work whose speed is promised: figure → (must, aim).
PROMISED: dict[str, dict[str, tuple[float, float]]] = {
    "1:1 16 B": {"cpu": (6, 12)},
    "rotating 1,000": {"cpu": (4, 8)},
    "1:1 128 B": {"cpu": (4, 6)},
    "1:1 4 KB": {"cpu": (2.5, 3.5)},
    "1:10 16 B": {"cpu": (5, 9)},
    "10:10 128 B": {"cpu": (4, 6)},
    "queue of 4": {"cpu": (5, 9)},
    "other shard 16 B": {"cpu": (4, 8)},
    "rotating 100,000": {"cpu": (2.5, 4)},
    "request 1": {"cpu": (1.8, 2.3), "rate": (1.1, 1.1)},
    "request 1, other shard": {"cpu": (1.4, 1.8), "rate": (1, 1)},
    "request 50": {"cpu": (1.3, 1.8)},
    "1 per write": {"cpu": (2, 10), "rate": (1, 3)},
    "10 per write": {"cpu": (1, 2), "rate": (0.6, 1)},
    "100 per write": {"cpu": (3, 6), "rate": (1, 2)},
    "200 pairs": {"cpu": (2.5, 4), "rate": (1.4, 2)},
    "200 pairs, 20 per write": {"cpu": (2, 3.3), "rate": (1.2, 1.9)},
    "fan-in from 100": {"cpu": (3.5, 5), "rate": (1.2, 2)},
    "1:1 512 B, two per write": {"cpu": (2.5, 4), "rate": (1, 1.3)},
    "1,000 connections": {"cpu": (3, 4), "rate": (1.3, 2)},
    "10,000 connections": {"cpu": (3, 4), "rate": (1.3, 2)},
    "1,000 connections 20,000/s": {"cpu": (1.4, 1.7), "p99": (1, 1)},
    "10,000 connections 20,000/s": {"cpu": (1.4, 1.7), "p99": (1, 1)},
    "churn": {"rate": (1, 3)},
    "100,000 subscriptions": {"memory": (1, 3)},
    "5,000 connections": {"memory": (4, 10), "rate": (2, 3)},
}


def test_every_promise_is_a_scenario():
    found = {}
    for scenario in read_scenarios(SCENARIOS):
        pairs = dict(zip(scenario.figures, zip(scenario.must, scenario.aim, strict=True), strict=False))
        if pairs:
            found[scenario.name] = pairs
    assert found == PROMISED


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"kind": "x"}, "kind 'x' is none of"),
        ({"place": "x"}, "place 'x' is none of"),
        ({"publishers": 0, "subscribers": 0}, "neither"),
        ({"publishers": -1}, "publishers: 0 to"),
        ({"groups": 2}, "groups: 1 up to"),
        ({"payload_bytes": 1 << 30}, "payload: 0 to"),
        ({"seconds": 0.0}, "seconds: more than 0"),
        ({"subjects": 0}, "subjects: 1 to"),
        ({"kind": "latency"}, "a rate of more than 0"),
        ({"kind": "latency", "rate_per_s": 1.0, "payload_bytes": 8}, "latency: 16 payload bytes"),
        ({"kind": "request", "subscribers": 0}, "request needs both sides"),
        ({"kind": "connections"}, "connections: how many?"),
        ({"window_bytes": 1}, "window"),
        ({"idle": -1}, "idle: 0 to 100,000, not -1"),
        ({"rounds": 0}, "rounds: 1 to 100, not 0"),
        ({"subject": "a b"}, "subject 'a b'"),
        ({"subject": ""}, "subject ''"),
    ],
)
def test_what_cannot_be_run_is_said(changes: dict[str, object], fault: str):
    with pytest.raises(BadPlan, match=fault):
        replace(Scenario("s"), **changes).checked()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[a]\nfrobnicate = 1", "a: unknown key 'frobnicate'"),
        ("[a]\nmessages = 'x'", "a: messages = 'x' is no int"),
        ("[a]\nis_queue = 1", "a: is_queue = 1 is no bool"),
        ("a = 1", "a: not a table"),
        ("[a", "t.toml: "),
        ("[a]\nkind = 'x'\nplace = 'y'\n[b]\nsubjects = 0", "(?s)a: kind.*a: place.*b: subjects"),
    ],
)
def test_a_file_s_faults_are_all_said(tmp_path: Path, text: str, fault: str):
    path = tmp_path / "t.toml"
    path.write_text(text)
    with pytest.raises(BadPlan, match=fault):
        read_scenarios(path)


def test_subjects_of_rotations_and_groups_have_one_length():
    rotating = Scenario("s", subjects=1000)
    assert [rotating.subject_of(0, number) for number in (0, 999)] == [b"foo.000000", b"foo.000999"]
    assert rotating.pattern_of(0) == b"foo.*"
    grouped = Scenario("s", publishers=12, subscribers=12, groups=12)
    assert [grouped.subject_of(group, 0) for group in (0, 11)] == [b"foo.00", b"foo.11"]
    assert grouped.pattern_of(3) == b"foo.03"
    assert Scenario("s").subject_of(0, 0) == Scenario("s").pattern_of(0) == b"foo"


def test_groups_share_out_who_there_is():
    share = Share(Scenario("s", publishers=3, subscribers=4, groups=2))
    assert share.groups_publishers == [[0, 2], [1]]
    assert share.groups_subscribers == [[0, 2], [1, 3]]


def test_scaling_keeps_what_is_not_a_quantity():
    scenario = Scenario("s", messages=1000, connections=10, subscriptions=1, seconds=20).scaled(0.1)
    assert (scenario.messages, scenario.connections, scenario.subscriptions, scenario.seconds) == (100, 1, 1, 20)
    assert Scenario("s", seconds=2).scaled(0.5).seconds == 1
