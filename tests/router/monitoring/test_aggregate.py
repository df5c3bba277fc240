"""What shards say becomes one broker: sums, merged orders, the real server's texts for times and durations."""

from __future__ import annotations

import random
from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnatswarm.broker.bounds import NO_MAX_CONNECTIONS
from gnatswarm.broker.goformat import age_text, duration_text, time_text
from gnatswarm.broker.limits import Limits
from gnatswarm.broker.options import ClientTls, LeafNodes, LeafRemote, Logging, Options
from gnatswarm.router.monitoring import aggregate
from gnatswarm.router.monitoring.page_query import BadQuery, PageQuery
from gnatswarm.shards.boundary import rows
from gnatswarm.shards.boundary.rows import ConnectionRow, QueueRow, SubjectRow, SublistPart, SubscriptionRow
from tests.router.monitoring.broker_facts import START_US, facts, shard

NOW_US = START_US + 60_000_000


def queues(answers: list[tuple[int, list[QueueRow]]]) -> list[dict[str, Any]]:
    return sorted(aggregate.queues(answers), key=aggregate.busiest_first)


def connection(cid: int, **changes: Any) -> ConnectionRow:
    fields: dict[str, Any] = {
        "ip": "127.0.0.1",
        "port": 40_000 + cid,
        "start_us": START_US + cid * 1000,
        "active_us": START_US + cid * 1000,
        "stop_us": 0,
        "reason": "",
        **dict.fromkeys(
            ("rtt_us", "pending_bytes", "in_msgs", "out_msgs", "in_bytes", "out_bytes", "subscriptions"), 0
        ),
        **dict.fromkeys(("name", "lang", "version", "user"), ""),
    }
    return ConnectionRow(cid=cid, **(fields | changes))


# ---- general


def test_varz_adds_the_shards_up():
    document = aggregate.varz(
        facts(
            shard(0, in_msgs=5, out_bytes=7, connections=2, cpu_percent=10.0, resident_bytes=1_000_000),
            shard(1, in_msgs=6, out_bytes=8, connections=3, cpu_percent=20.25, resident_bytes=2_000_000),
        ),
        {"/varz": 4, "/": 1},
    )
    assert (document["in_msgs"], document["out_bytes"], document["connections"]) == (11, 15, 5)
    assert document["cpu"] == 31.8  # the router's 1.5 included
    assert document["mem"] == 13_000_000
    assert list(document["http_req_stats"]) == ["/", "/varz"]
    assert document["uptime"] == "1h0m0s"
    assert (document["ping_interval"], document["write_deadline"]) == (120_000_000_000, 10_000_000_000)
    assert isinstance(document["auth_timeout"], int)


def test_a_shard_that_was_removed_counts_no_more_but_for_what_it_had_counted():
    broker = facts(shard(0, in_msgs=5), shard(1, in_msgs=6, pid=0, phase="stopped", is_wanted=False))
    varz, shardz = aggregate.varz(broker, {}), aggregate.shardz(broker, [])
    assert (varz["shards"], varz["in_msgs"]) == (1, 11)
    assert (shardz["num_shards"], [row["in_msgs"] for row in shardz["shards"]]) == (1, [5, 6])


def test_varz_of_one_shard_is_that_shard_alone():
    broker = facts(shard(0, in_msgs=5), shard(1, in_msgs=6))
    assert aggregate.varz(broker.only(1), {})["in_msgs"] == 6
    assert aggregate.varz(broker.only(None), {})["in_msgs"] == 11


def test_clients_on_their_way_between_shards_are_connected():
    moving = msgspec.structs.replace(facts(shard(0, connections=2), shard(1, connections=1)), moving=4)
    assert aggregate.varz(moving, {})["connections"] == 7
    assert aggregate.varz(moving.only(1), {})["connections"] == 1


def test_varz_without_a_limit_of_connections_says_minus_one():
    for most, shown in ((10, 10), (NO_MAX_CONNECTIONS, -1)):
        options = Options(limits=Limits(max_connections=most))
        assert aggregate.varz(facts(shard(0), options=options), {})["max_connections"] == shown


def test_varz_names_no_secret():
    options = Options(auth_user="u", auth_password="hush", http_password="hush", logging=Logging(file="f"))
    text = str(aggregate.varz(facts(shard(0), options=options), {}))
    assert "hush" not in text
    assert "'auth_required': True" in text


def test_varz_shows_of_a_hub_what_nats_server_shows():
    tls = ClientTls(is_on=True, timeout_s=5.0, cert_file="c", cert_pem=b"hush", key_file="k", key_pem=b"hush")
    remotes = (LeafRemote(("tls://u:hush@h:1",), tls=tls), LeafRemote(("nats://i:1",), deny_imports=("a",)))
    document = aggregate.varz(facts(shard(0), options=Options(leafnodes=LeafNodes(remotes=remotes))), {})
    assert document["leaf"]["remotes"] == [
        {"local_account": "$G", "tls_timeout": 5, "urls": ["h:1"]},
        {"local_account": "$G", "urls": ["i:1"], "deny": {"imports": ["a"]}},
    ]
    assert "hush" not in str(document)


@pytest.mark.parametrize(("compatibility", "leafs"), [("2.9", None), ("2.15", [])])
def test_a_page_without_leaf_nodes_is_that_of_the_nats_server_of_that_version(compatibility, leafs):
    page = aggregate.leafz(facts(options=Options(compatibility=compatibility)), [])
    assert (page["leafnodes"], page["leafs"]) == (0, leafs)


@pytest.mark.parametrize(
    ("shards", "fault"),
    [
        ([shard(0), shard(1)], ""),
        ([shard(0), shard(1, phase="backing off")], "shard 1 is backing off"),
        ([shard(0, is_suspect=True)], "shard 0 does not answer"),
        ([shard(0, loop_lag_us=2_500_000)], "shard 0 lags by 2.5s"),
        # Leaving, or gone for good: nobody misses it.
        ([shard(0), shard(1, phase="stopped", is_wanted=False)], ""),
        ([shard(0), shard(1, phase="draining", is_wanted=False)], ""),
        ([shard(0, phase="killed"), shard(1, phase="starting")], "shard 0 is killed, shard 1 is starting"),
    ],
)
def test_health_names_the_shards_that_do_not_serve(shards, fault):
    assert aggregate.health(facts(*shards)) == fault


def test_a_broker_that_has_not_started_is_not_healthy():
    assert aggregate.health(facts(shard(0), is_serving=False)) == "the broker is not ready"


def test_a_fault_is_in_a_list_for_whom_wants_details():
    listed = [{"type": "CONNECTION", "error": "x"}]
    assert aggregate.health_status("x", details=True) == {"status": "error", "errors": listed}
    assert aggregate.health_status("x") == {"status": "unavailable", "error": "x"}
    assert aggregate.health_status("", details=True) == {"status": "ok"}


# ---- connections

numbers = st.integers(min_value=0, max_value=5)
some_connections = st.lists(
    st.builds(
        lambda a, b, c, d, e, stop, reason: {
            "subscriptions": a,
            "pending_bytes": b,
            "in_msgs": c,
            "out_bytes": d,
            "active_us": START_US + e,
            "stop_us": START_US + 10 + stop if stop else 0,
            "reason": reason,
        },
        *(numbers,) * 6,
        st.sampled_from(["Client Closed", "Stale Connection"]),
    ),
    max_size=20,
)


@given(some_connections, st.sampled_from(sorted(rows.SORTS)), st.integers(1, 4), st.integers(0, 8), st.integers(1, 8))
def test_merging_sorted_shards_is_sorting_all_of_them(found, sort, shards, offset, limit):
    everybody = [connection(cid, **changes) for cid, changes in enumerate(found, 1)]
    random.Random(sort).shuffle(everybody)
    key = rows.order(sort, NOW_US)
    answers = [(number, sorted(everybody[number::shards], key=key)[: offset + limit]) for number in range(shards)]
    merged = [row.cid for _shard, row in aggregate.merged(answers, sort, NOW_US, offset, limit)]
    assert merged == [row.cid for row in sorted(everybody, key=key)][offset : offset + limit]


def test_a_connection_that_came_in_pieces_is_one():
    sub = SubscriptionRow("s", "", "1", 0, 0, 7)
    pieces = [connection(7, subs=(sub,)), connection(7, subs=(sub, sub)), connection(8)]
    joined = aggregate.joined(pieces)
    assert [(row.cid, len(row.subs)) for row in joined] == [(7, 3), (8, 0)]


def test_pieces_of_a_connection_are_put_together_only_once():
    class Counted(ConnectionRow):
        joins: ClassVar[int] = 0

        def __setattr__(self, name: str, value: object) -> None:
            Counted.joins += 1
            super().__setattr__(name, value)

    sub = SubscriptionRow("s", "", "1", 0, 0, 7)
    pieces = [Counted(**(msgspec.structs.asdict(connection(7)) | {"subs": (sub,) * 4})) for _ in range(300)]
    Counted.joins = 0
    (whole,) = aggregate.joined(pieces)
    assert len(whole.subs) == 1200
    assert Counted.joins == 1


def test_a_closed_connection_has_stop_and_reason_and_stays_as_old_as_it_got():
    row = connection(
        1, start_us=START_US, active_us=START_US + 4_000_000, stop_us=START_US + 9_000_000, reason="Kicked"
    )
    document = aggregate.connection(2, row, NOW_US)
    assert (document["uptime"], document["idle"], document["reason"], document["shard"]) == ("9s", "5s", "Kicked", 2)
    assert list(document)[7:9] == ["stop", "reason"]
    assert "reason" not in aggregate.connection(2, connection(1), NOW_US)


def test_users_and_subscriptions_are_shown_when_asked_for():
    row = connection(1, user="bob", subs=(SubscriptionRow("a.*", "q", "9", 3, 5, 1),))
    assert "authorized_user" not in aggregate.connection(0, row, NOW_US)
    assert aggregate.connection(0, row, NOW_US, shows_user=True)["authorized_user"] == "bob"
    assert aggregate.connection(0, row, NOW_US, subs="list")["subscriptions_list"] == ["a.*"]
    assert aggregate.connection(0, row, NOW_US, subs="detail")["subscriptions_list_detail"] == [
        {"subject": "a.*", "qgroup": "q", "sid": "9", "msgs": 3, "max": 5, "cid": 1}
    ]


def test_subscriptions_of_a_closed_connection_have_no_max():
    row = connection(1, stop_us=START_US, subs=(SubscriptionRow("a.*", "", "9", 3, 5, 1),))
    assert aggregate.connection(0, row, NOW_US, subs="detail")["subscriptions_list_detail"] == [
        {"account": "$G", "subject": "a.*", "sid": "9", "msgs": 3, "cid": 1}
    ]


@pytest.mark.parametrize(
    ("account", "stop_us", "tag"),
    [("A", 0, "A"), ("$G", 0, "$G"), ("", 0, "$G"), ("A", START_US, "A"), ("$G", START_US, None), ("", START_US, None)],
)
def test_a_closed_connection_of_the_global_account_has_no_tag(account, stop_us, tag):
    """As with nats-server 2.15.1, whether it had logged in or not."""
    row = connection(1, account=account, stop_us=stop_us)
    assert aggregate.connection(0, row, NOW_US, shows_user=True, has_tags=True).get("name_tag") == tag
    assert "name_tag" not in aggregate.connection(0, row, NOW_US, shows_user=True)


@pytest.mark.parametrize(
    ("search", "is_found"),
    [
        ("", True),
        ("ALPHA", True),
        ("127.0.0.1:40007", True),
        ("bob", True),
        ("go 1.31", True),
        ("7", True),
        ("x", False),
    ],
)
def test_a_connection_is_found_by_what_an_operator_knows_of_it(search, is_found):
    row = connection(7, name="alpha-1", user="bob", lang="go", version="1.31.0")
    assert rows.is_found(row, rows.ConnectionsQuery(search=search)) == is_found


# ---- subscriptions, subjects, queues


def test_sublists_add_up_and_rates_are_over_all():
    document = aggregate.sublist(
        [
            SublistPart(3, 2, 5, 2, 100, 10, 4, 6),
            SublistPart(1, 2, 1, 0, 100, 30, 9, 2),
            SublistPart(0, 0, 0, 0, 0, 0, 0, 0),
        ]
    )
    assert document["num_subscriptions"] == 4
    assert (document["cache_hit_rate"], document["max_fanout"], document["avg_fanout"]) == (0.8, 9, 2)
    assert aggregate.sublist([])["cache_hit_rate"] == 0


def test_a_subject_on_several_shards_is_one_with_all_its_deliveries():
    found = aggregate.subjects(
        [
            (0, [SubjectRow("a", 10, 100, 5, 1, 1, 2, True), SubjectRow("lost", 4, 8, 0, 0, 0, 0, False)]),
            (1, [SubjectRow("a", 0, 0, 25, 3, 1, 1, True)]),
        ]
    )
    a, lost = found
    assert (a["msgs"], a["deliveries"], a["fanout"], a["subscriptions"]) == (10, 30, 3.0, 4)
    assert (a["queue_groups"], a["queue_members"], a["wanted"]) == (1, 3, True)
    assert a["shards"] == {
        "0": {"msgs": 10, "bytes": 100, "deliveries": 5},
        "1": {"msgs": 0, "bytes": 0, "deliveries": 25},
    }
    assert (lost["wanted"], lost["fanout"]) == (False, 0.0)
    assert aggregate.top_subjects(found, "msgs", 1) == [a]


def test_shares_of_a_queue_group_are_over_all_shards():
    groups = queues(
        [
            (0, [QueueRow("j", "q", "1", 30, 1, "one", "$G")]),
            (1, [QueueRow("j", "q", "1", 10, 2, "", "$G"), QueueRow("k", "q", "2", 0, 2, "", "$G")]),
        ]
    )
    assert [(group["subject"], group["msgs"], group["num_members"]) for group in groups] == [("j", 40, 2), ("k", 0, 1)]
    assert [(member["cid"], member["share"], member["shard"]) for member in groups[0]["members"]] == [
        (1, 0.75, 0),
        (2, 0.25, 1),
    ]
    assert groups[1]["members"][0]["share"] == 0.0


def test_a_member_that_moved_meanwhile_is_one_member():
    for answers in ((30, 31), (31, 30)):
        rows = [(shard, [QueueRow("j", "q", "1", msgs, 1, "one", "$G")]) for shard, msgs in enumerate(answers)]
        (group,) = queues([*rows, (2, [QueueRow("j", "q", "2", 9, 1, "one", "$G")])])
        assert (group["msgs"], group["num_members"]) == (40, 2)
        assert [(one["sid"], one["shard"], one["msgs"]) for one in group["members"]] == [
            ("1", answers.index(31), 31),
            ("2", 2, 9),
        ]


def test_accounts_that_use_the_same_names_have_nothing_in_common():
    subjects = aggregate.subjects(
        [(0, [SubjectRow("a", 10, 100, 5, 1, 0, 0, True, account=account) for account in ("B", "A")])]
    )
    assert [(row["account"], row["subject"], row["msgs"]) for row in subjects] == [("B", "a", 10), ("A", "a", 10)]
    assert [row["account"] for row in aggregate.top_subjects(subjects, "msgs", 9)] == ["A", "B"]
    groups = queues([(0, [QueueRow("j", "q", "1", 30, cid, "", account) for cid, account in ((1, "A"), (2, "B"))])])
    assert [(group["account"], group["msgs"], group["num_members"]) for group in groups] == [("A", 30, 1), ("B", 30, 1)]


@pytest.mark.parametrize(
    ("values", "max_over_mean", "gini"),
    [([], 1.0, 0.0), ([0, 0], 1.0, 0.0), ([5, 5, 5], 1.0, 0.0), ([0, 0, 0, 8], 4.0, 0.75), ([1, 3], 1.5, 0.25)],
)
def test_skew(values, max_over_mean, gini):
    assert aggregate.skew(values) == {"max_over_mean": max_over_mean, "gini": gini}


# ---- texts, as Go writes them


@pytest.mark.parametrize(
    ("us", "text"),
    [(0, "0s"), (411, "411µs"), (1_250, "1.25ms"), (999_999, "999.999ms"), (2_500_000, "2.5s"), (62_000_000, "1m2s")],
)
def test_durations(us, text):
    assert duration_text(us) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0s"),
        (59, "59s"),
        (60, "1m0s"),
        (3_725, "1h2m5s"),
        (86_400, "1d0h0m0s"),
        (31_536_000 + 86_400 + 3_661, "1y1d1h1m1s"),
    ],
)
def test_ages(seconds, text):
    assert age_text(seconds * 1_000_000) == text


def test_times_have_no_zeros_behind():
    assert time_text(1_700_000_000_000_000) == "2023-11-14T22:13:20Z"
    assert time_text(1_700_000_000_120_000) == "2023-11-14T22:13:20.12Z"
    assert time_text(1_700_000_000_000_001) == "2023-11-14T22:13:20.000001Z"


# ---- queries are bounded


def test_limits_are_cut_and_defaults_taken():
    assert PageQuery("").limit == PageQuery("limit=0").limit == PageQuery("limit=-9").limit == 1024
    assert PageQuery("limit=999999999").limit == 65_536
    assert PageQuery("limit=7&limit=x").limit == 7
    assert PageQuery("offset=3").offset == 3


@pytest.mark.parametrize(
    "text",
    ["&".join(f"a{number}=1" for number in range(40)), "callback=alert(1)", "callback=a%3Bb", "callback=" + "a" * 200],
)
def test_queries_that_try_too_much_are_refused(text):
    with pytest.raises(BadQuery):
        assert PageQuery(text).callback is None


@pytest.mark.parametrize("text", ["shard=2", "shard=-1", "shard=x", "shard=0000", "shard=٣"])
def test_only_a_shard_that_there_is_can_be_asked_for(text):
    with pytest.raises(BadQuery, match="no such shard"):
        PageQuery(text).shard([0, 1])
    assert PageQuery("shard=1").shard([0, 1]) == 1
    assert PageQuery("").shard([0, 1]) is None
