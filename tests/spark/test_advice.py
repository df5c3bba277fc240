"""Advice follows from figures, names them, and stays away where they do not bear it; the page shows what there is."""

from __future__ import annotations

import re
from typing import Any

import pytest

from gnatswarm.spark.advice import advise
from gnatswarm.spark.figures import counted, duration, number, size
from gnatswarm.spark.page import page

Answers = dict[str, list[dict[str, Any]]]


def shard(number: int, cpu_share: float, connections: int = 10, msgs: int = 10_000, misses: int = 0) -> dict[str, Any]:
    return {
        "shard": number, "cpu_share": cpu_share, "connections": connections, "in_msgs": msgs, "link_in_msgs": 0,
        "cache_misses": misses, "subscriptions": 1, "out_msgs": msgs, "link_out_msgs": 0, "resident_bytes": 30_000_000,
        "stalls": 0, "lag_max_us": 900, "lost_windows": 0, "is_current": True,
    }  # fmt: skip


def broker(name: str, first_s: int, last_s: int) -> dict[str, Any]:
    times = {"first_us": first_s * 1_000_000, "last_us": last_s * 1_000_000}
    return {"broker": name, **times, "shards": 2, "in_msgs": 1, "out_msgs": 1}


def connected(*windows: tuple[int, ...]) -> list[dict[str, Any]]:
    """Of each window its time and the connections of its shards; -1: it has no row of this one."""
    return [
        {"window_start_us": at, "shard": n, "connections": count, "lag_p99_us": 0}
        for at, *counts in windows
        for n, count in enumerate(counts)
        if count >= 0
    ]


def answers(**given: Any) -> Answers:
    """The results of a healthy broker: two evenly loaded shards, each using half of its core."""
    found: Answers = {
        "totals": [{"in_msgs": 20_000, "out_msgs": 20_000, "unwanted_msgs": 0}],
        "brokers": [broker("AAAA", 0, 600)],
        "shards": [shard(0, 0.5), shard(1, 0.5)],
        "crossed": [{"share": 0.1, "deliveries": 20_000, "crossed": 2000, "frames": 2000}],
        "fanout": [{"msgs": 1, "deliveries": 1, "mean": 1.0, "p50": 1.0, "p90": 1.0, "p99": 1.0, "p100": 1.0}],
        **{
            name: []
            for name in ("crossing", "queues", "unwanted", "slow", "over_time", "gaps", "torn", "unreadable", "aside")
        },
        **{name: [] for name in ("denied", "hottest", "fanouts", "widths", "skew", "matrix", "links")},
    }
    return found | given


def test_a_broker_with_which_all_is_well_gets_none():
    assert advise(answers()) == []
    assert "Nothing to change" in page(answers(), [], "x")


@pytest.mark.parametrize(
    ("given", "what", "figures"),
    [
        ({"shards": [shard(0, 0.1), shard(1, 0.2)]}, "One shard would be enough", "together used 30% of one core"),
        ({"shards": [shard(0, 0.9), shard(1, 0.85)]}, "More shards: 3 or more", "shard 0 used 90% of a core"),
        ({"shards": [shard(0, 0.9), shard(1, 0.1)]}, "Spread the work", "used 90% of a core .* 1.80 times the mean"),
        (
            {"over_time": connected((0, 30, 5))},
            "`accept: handoff` places connections evenly", "connections per shard: 30, 5",
        ),
        (
            {
                "crossed": [{"share": 0.8, "deliveries": 1000}],
                "crossing": [
                    {"subject": "_INBOX.>", "is_folded": True, "crossed": 9},
                    {"subject": "a.b", "is_folded": False, "crossed": 8},
                ],
            },
            "subjects to one shard", r"80% of 1,000 deliveries came from another shard; heaviest: a\.b \(8 frames\)",
        ),
        (
            {
                "queues": [
                    {
                        "queue": "q", "subject": "s", "deliveries": 3000, "members": 2, "max_to_mean": 1.6,
                        "least": 600, "most": 2400,
                    }
                ]
            },
            "Queue group q on s is uneven", "2 members got 600 to 2,400 messages each",
        ),
        (
            {
                "totals": [{"in_msgs": 1000, "out_msgs": 1, "unwanted_msgs": 500}],
                "unwanted": [{"subject": "m", "unwanted": 500}],
            },
            "messages that have no subscriber", r"500 of 1,000 messages had no subscriber: m \(500\)",
        ),
        (
            {
                "slow": [
                    {
                        "name": "", "user": "u", "ip": "i", "subject": "s", "times": 1, "reason": "r",
                        "most_pending_bytes": 9,
                    }
                ]
            },
            "u reads too slowly for s", r"closed once \(r\), 9 bytes pending",
        ),
        ({"over_time": [connected((0, 1))[0] | {"lag_p99_us": 80_000}]}, "its own cores", "1 windows .* up to 80 ms"),
        ({"shards": [shard(0, 0.6, misses=4000)]}, "fewer different subjects", "4,000 of 10,000 messages"),
        ({"gaps": [{"in_msgs": 7}]}, "A shard died", "once; 7 messages"),
        ({"torn": [{}]}, "Some windows are incomplete", "1 windows"),
        (
            {"shards": [shard(0, 0.5), shard(1, 0.5) | {"lost_windows": 3}]},
            "Some windows were never written", "windows: 3 of shard 1",
        ),
        (
            {"aside": [{"why": "no record", "count": 1200}, {"why": "a newer version", "count": 1}]},
            "Some lines could not be used", r"lines: 1,200 \(no record\), 1 \(a newer version\)",
        ),
        (
            {
                "aside": [{"why": "a file of which nothing can be read", "count": 4}],
                "unreadable": [{"path": f"/stats/{n}"} for n in range(4)],
            },
            "Some files could not be read", "^/stats/0, /stats/1, /stats/2 …$",
        ),
    ],
)  # fmt: skip
def test_advice_names_the_figures_it_follows_from(given: Answers, what: str, figures: str):
    (one,) = advise(answers(**given))
    assert what in one.what
    assert re.search(figures, one.figures), one.figures


@pytest.mark.parametrize(
    "given",
    [
        {
            "totals": [{"in_msgs": 2, "out_msgs": 1, "unwanted_msgs": 1}],
            "unwanted": [{"subject": "m", "unwanted": 1}],
        },
        {
            "crossed": [{"share": 1.0, "deliveries": 2}],
            "crossing": [{"subject": "a", "is_folded": False, "crossed": 2}],
        },
        {"over_time": connected((0, 4, 1))},
        {
            "queues": [
                {
                    "queue": "q", "subject": "s", "deliveries": 4, "members": 2, "max_to_mean": 1.5,
                    "least": 1, "most": 3,
                }
            ]
        },
    ],
    ids=["unwanted", "crossing", "connections", "queues"],
)  # fmt: skip
def test_a_share_of_a_few_is_no_advice(given: Answers):
    assert advise(answers(**given)) == []


def test_of_brokers_that_ran_at_once_nothing_is_said_about_shards():
    given = answers(brokers=[broker("AAAA", 0, 600), broker("BBBB", 300, 900)], shards=[shard(0, 0.1), shard(1, 0.1)])
    (one,) = advise(given)
    assert "one broker at a time (--broker)" in one.what and "AAAA and BBBB" in one.figures
    assert "Brokers that wrote here" in page(given, [one], "x")
    # One after the other is one broker that was started again.
    after = answers(brokers=[broker("AAAA", 0, 600), broker("BBBB", 590, 900)], shards=[shard(0, 0.1), shard(1, 0.1)])
    assert "One shard would be enough" in advise(after)[0].what


def test_what_is_from_outside_is_text_on_the_page():
    nasty = "<img src=x onerror=alert(1)>"
    slow = {"name": nasty, "user": "", "ip": "", "subject": nasty, "reason": nasty, "times": 1, "most_pending_bytes": 1}
    hottest = {"subject": nasty, "account": nasty, "msgs": 1, "bytes": 1, "deliveries": 1, "fanout": 1.0, "crossed": 0}
    given = answers(slow=[slow], hottest=[hottest | {"unwanted": 0, "error": 0, "widest": 1}])
    shown = page(given, advise(given), nasty)
    assert "<img" not in shown and "&lt;img" in shown


def test_subjects_without_subscribers_come_with_how_to_find_out_why():
    given = answers(unwanted=[{"subject": "lost", "account": "$G", "msgs": 1, "unwanted": 1, "share": 1.0}])
    assert "gnatswarm why SUBJECT" in page(given, [], "title")


def test_numbers_have_their_unit():
    assert [size(n) for n in (0, 999, 1234, 5_600_000, 7e9)] == ["0 B", "999 B", "1.2 kB", "5.6 MB", "7.0 GB"]
    assert [size(n) for n in (1e3, 1e6, 1e9, 1e12, -2e6)] == ["1.0 kB", "1.0 MB", "1.0 GB", "1.0 TB", "-2.0 MB"]
    assert [duration(us) for us in (0, 900, 1500, 2_000_000)] == ["0 µs", "900 µs", "1.5 ms", "2.0 s"]
    assert [number(value) for value in (None, 14.0, 14.123, 123456.7)] == ["–", "14", "14.12", "123,457"]


def test_one_is_not_many():
    assert [counted(n, "message") for n in (0, 1, 2, 1501)] == [
        "0 messages",
        "1 message",
        "2 messages",
        "1,501 messages",
    ]


def test_a_shard_that_only_a_restart_had_is_not_judged():
    assert advise(answers(shards=[shard(0, 0.5), shard(1, 0.5), shard(2, 0.9) | {"is_current": False}])) == []


@pytest.mark.parametrize(
    ("windows", "said"),
    [
        ([(0, 40, 0), (1, 20, 20)], None),  # a rebalance
        ([(0, 20, 20), (1, 40, 0)], "40, 0"),
        ([(0, 20, 20), (1, 4, 20), (2, 0, 20), (3, 0, 0)], None),  # the end: one shard after the other
        ([(0, 0, 0), (1, 40, 0), (2, 36, 0), (3, 12, 0), (4, 0, 0)], "36, 0"),
        ([(0, 20, 20), (1, 40, -1), (2, 40, -1)], None),  # the other one's file is not finished yet
        ([(0, 40, -1), (1, -1, 40)], None),
    ],
)
def test_connections_are_judged_when_last_nearly_all_clients_were_connected(
    windows: list[tuple[int, ...]], said: str | None
):
    given = advise(answers(over_time=connected(*windows)))
    assert [one.figures for one in given] == ([f"connections per shard: {said}"] if said else [])
