"""Who talks to whom, on few rows whose graph is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.xdist_group("spark")

Row = dict[str, Any]


def client(
    name: str,
    shard: int = 0,
    published: tuple[tuple[Any, ...], ...] = (),
    received: tuple[tuple[Any, ...], ...] = (),
    **more: Any,
) -> Row:
    """A row of a client: published (subject, msgs[, requests]), received (subject, msgs[, queue])."""
    said = [(s, n, 10 * n, (rest or [0])[0]) for s, n, *rest in published]
    heard = [(s, (rest or [""])[0], n) for s, n, *rest in received]
    row: Row = {
        **{"source": "f", "version": 3, "broker": "B", "boot": "b", "shard": shard, "file": 1},
        **{"window_start_us": 0, "window_us": 10_000_000, "account": "$G", "user": "", "name": name, "lib": "go 1"},
        **{"ip": "127.0.0.1", "cid": abs(hash((name, shard))) % 1000 + 1, "connections": 1, "opened": 1, "closed": 0},
        "in_msgs": sum(one[1] for one in said),
        "in_bytes": sum(one[2] for one in said),
        "out_msgs": sum(one[2] for one in heard),
        "out_bytes": 0,
    }
    return row | more | {"published": said, "received": heard}


def frame(spark: Any, rows: list[Row]) -> Any:
    from gnatswarm.spark import schema

    columns = {"source": "string", **schema.COMMON, **schema.KINDS["client"]}
    ddl = ", ".join(f"`{name}` {kind}" for name, kind in columns.items())
    return spark.createDataFrame([tuple(row[name] for name in columns) for row in rows], ddl)


# Lists of rows whose edges are found at once, each in accounts of its own: most of what this costs is Spark's planning.
SHOP = [
    client("web-1", 0, published=(("orders.new", 30),)),
    client("web-2", 1, published=(("orders.new", 10),)),
    client("shop", 1, published=(("orders.new", 60), ("orders.gone", 5))),
    client("billing-7f9c-2", 0, received=(("orders.new", 100),)),
    client("audit", 1, received=(("orders.>", 105),)),
    client("any", 0, received=(("*.gone", 5),)),
]
REQUESTS = [
    client("web", 0, published=(("price", 40, 40),), received=(("_INBOX.>", 40),)),
    client("app", 1, published=(("price", 20, 20), ("stock", 8, 8)), received=(("_INBOX.>", 28),)),
    client("prices", 0, published=(("_INBOX.>", 60),), received=(("price", 60, "workers"),)),
    client("stocks", 0, published=(("_INBOX.>", 8),), received=(("stock", 8),)),
]
IMPORTED = [client("a", received=(("imported.x", 7),)), client("b", published=(("nobody", 3),))]
APART = [
    client("a", published=(("x", 5),)),
    client("b", received=(("x", 5),)),
    client("c", account="other", published=(("x", 9),)),
    client("d", account="other", received=(("x", 9),)),
    client("e", broker="C", received=(("x", 2),)),
]
WILDCARDS = [
    ("a.*.c", "a.b.c", True),
    ("a.*.c", "a.b.d.c", False),
    ("a.*.*", "a.b.c", True),
    ("*.*.*", "a.b.c", True),
    ("a.>", "a.b.c", True),
    ("a.>", "a", False),
    (">", "a", True),
    ("a.*", "a.b.c", False),
    ("a+.$x.(y)[z]", "a+.$x.(y)[z]", True),
    ("a+.*.(y)[z]", "a+.q.(y)[z]", True),
    ("a+.*", "aa.q", False),
    (r"\Qa\E.*", r"\Qa\E.b", True),
    ("a.b*", "a.bc", False),
    ("a*.>", "ab.c", False),
    ("line.>", "line.a\u2028b", True),
    ("line.*", "line.\x85", True),
    ("line.end", "line.end\u2029", False),
    ("line.*.end", "line.a.end\x85", False),
]
MATCHED = [
    row
    for i, (pattern, subject, _does) in enumerate(WILDCARDS)
    for row in (
        client(f"from.{pattern}", account=f"A{i}", published=((subject, 4),)),
        client(f"to.{pattern}", account=f"A{i}", received=((pattern, 4),)),
    )
]

Edges = Callable[[list[Row]], dict[tuple[str, str, str], int]]


@pytest.fixture(scope="module")
def edges_of(spark: Any) -> Edges:
    """The edges of one of these lists."""
    from gnatswarm.spark.transforms import graph, talkers

    lists = [SHOP, REQUESTS, IMPORTED, APART, MATCHED]
    rows = [row | {"account": f"{i} {row['account']}"} for i, rows in enumerate(lists) for row in rows]
    found = graph.edges(graph.flows(talkers.by_service(frame(spark, rows)))).collect()

    def of(asked: list[Row]) -> dict[tuple[str, str, str], int]:
        (number,) = [i for i, rows in enumerate(lists) if rows is asked]
        mine = [row for row in found if row["account"].startswith(f"{number} ")]
        assert len({(row["from_service"], row["subject"], row["to_service"]) for row in mine}) == len(mine)
        return {(row["from_service"], row["subject"], row["to_service"]): row["msgs"] for row in mine}

    return of


def test_a_subject_goes_from_each_publisher_to_each_listener(edges_of: Edges):
    assert edges_of(SHOP) == {
        ("web", "orders.new", "billing"): 40,
        ("shop", "orders.new", "billing"): 60,
        ("web", "orders.new", "audit"): 40,
        ("shop", "orders.new", "audit"): 60,
        ("shop", "orders.gone", "audit"): 5,
        ("shop", "orders.gone", "any"): 5,
    }


def test_a_queue_group_shares_and_answers_go_to_those_who_asked(edges_of: Edges):
    assert edges_of(REQUESTS) == {
        ("web", "price", "prices"): 40,
        ("app", "price", "prices"): 20,
        ("app", "stock", "stocks"): 8,
        ("prices", "_INBOX.>", "web"): 40,
        ("prices", "_INBOX.>", "app"): 20,
        ("stocks", "_INBOX.>", "app"): 8,
    }


def test_what_nobody_here_published_is_of_an_unknown_service(edges_of: Edges):
    assert edges_of(IMPORTED) == {("*unknown*", "imported.x", "a"): 7}


def test_accounts_and_brokers_do_not_mix(edges_of: Edges):
    assert edges_of(APART) == {("a", "x", "b"): 5, ("c", "x", "d"): 9, ("*unknown*", "x", "e"): 2}


def test_wildcards_match_as_in_the_broker(edges_of: Edges):
    assert edges_of(MATCHED) == {
        (f"from.{pattern}", subject, f"to.{pattern}") if does else ("*unknown*", pattern, f"to.{pattern}"): 4
        for pattern, subject, does in WILDCARDS
    }


def test_services_by_user_name_pattern_and_subject(spark: Any):
    from gnatswarm.spark.transforms import talkers

    rows = [
        client("orders-5d9f7b-x2kqp", published=(("shop.new", 9), ("log.x", 1)), user="u"),
        client("", user="u", received=(("log.>", 3),)),
        client("", lib="nats.go 1.3", ip="10.0.0.9"),
        client("eve/blue", user="*other*"),
    ]

    ways = ["auto", "user", "name", "subject", "^([a-z]{3})"]
    found = talkers.by_service(frame(spark, rows)).select(*(talkers.service(by).alias(by) for by in ways)).collect()

    def named(by: str) -> list[str]:
        return sorted(row[by] for row in found)

    assert named("auto") == ["*other*", "nats.go 1.3 at 10.0.0.9", "orders", "u"]
    assert named("user") == ["*other*", "*unnamed*", "u", "u"]
    assert named("name") == ["*other*", "*unnamed*", "*unnamed*", "orders"]
    assert named("subject") == ["*other*", "*unnamed*", "log", "shop"]
    assert named("^([a-z]{3})") == ["*other*", "nats.go 1.3 at 10.0.0.9", "ord", "u"]


def test_what_crosses_who_is_alone_and_who_asks(spark: Any):
    from gnatswarm.spark.transforms import graph, talkers

    rows = [
        client("web", 0, published=(("price", 40, 40), ("log", 6))),
        client("web", 1, published=(("log", 4),), cid=77),
        client("prices", 1, received=(("price", 40),)),
        client("logger", 1, received=(("log", 10),)),
    ]
    services = talkers.by_service(frame(spark, rows))
    edges = graph.edges(graph.flows(services))
    crossed = {(row["subject"], row["to_service"]): row["crossed_msgs"] for row in graph.who_crosses(edges).collect()}
    assert crossed == {("price", "prices"): 40, ("log", "logger"): 6}
    lone = {row["subject"]: row.asDict() for row in graph.lone(*graph.talk(services)).collect()}
    assert (lone["price"]["publishers"], lone["price"]["one_publisher"]) == (1, "web")
    assert (lone["log"]["publishers"], lone["log"]["one_publisher"]) == (2, None)
    assert lone["log"]["one_listener"] == "logger" and lone["price"]["one_listener"] == "prices"
    (pair,) = graph.pairs(edges, services).collect()
    assert (pair["requester"], pair["subject"], pair["responder"], pair["requests"]) == ("web", "price", "prices", 40)
    assert pair["requests_per_s"] == 4.0
    matrix = {(row["from_service"], row["to_service"]): row["msgs"] for row in graph.between_services(edges).collect()}
    assert matrix == {("web", "prices"): 40, ("web", "logger"): 10}


def test_a_client_that_has_left_is_the_one_that_was_there(spark: Any):
    from gnatswarm.spark.transforms import graph, talkers

    rows = [
        client("web", published=(("price", 40),), cid=7),
        client("web", published=(("price", 2),), cid=0, window_start_us=10_000_000),
        client("prices", received=(("price", 40),), cid=8),
        client("prices", received=(("price", 2),), cid=0, window_start_us=10_000_000),
        client("briefly", published=(("log", 1),), cid=0),
        client("logger", received=(("log", 1),), cid=0),
    ]
    found = graph.lone(*graph.talk(talkers.by_service(frame(spark, rows)))).collect()
    assert {row["subject"]: (row["msgs"], row["publishers"], row["listeners"]) for row in found} == {
        "price": (42, 1, 1),
        "log": (1, 1, 1),
    }


def test_a_client_that_moved_or_has_several_subscriptions_is_one(spark: Any):
    from gnatswarm.spark.transforms import graph, talkers

    later: Row = {"window_start_us": 10_000_000}
    rows = [
        client("web", 0, published=(("price", 40),), cid=7),
        client("web", 1, published=(("price", 2),), cid=7, **later),
        client("prices", 0, received=(("price", 40), ("*", 40)), cid=8),
        client("prices", 1, received=(("price", 2), (">", 2)), cid=8, **later),
        client("web", 0, published=(("log", 3),), cid=9),
        client("shop", 0, published=(("log", 3),), cid=10),
        client("shop", 1, published=(("log", 1),), cid=10, **later),
        client("briefly", 1, published=(("log", 1),), cid=0, **later),
        client("logger", 1, received=(("log", 8),), cid=11),
    ]
    found = graph.lone(*graph.talk(talkers.by_service(frame(spark, rows)))).collect()
    assert {row["subject"]: (row["publishers"], row["listeners"], row["one_publisher"]) for row in found} == {
        "price": (1, 1, "web"),
    }


def test_new_gone_and_changed_talkers_between_two_periods(spark: Any):
    from gnatswarm.spark.transforms import graph

    def edges(*heard: tuple[str, int]) -> Any:
        columns = ", ".join(f"{name} string" for name in graph.KEY)
        numbers = "msgs bigint, bytes bigint, requests bigint, crossed_msgs bigint, queues string"
        rows = [("$G", "a", subject, "b", msgs, msgs, 0, 0, "") for subject, msgs in heard]
        return spark.createDataFrame(rows, f"{columns}, {numbers}")

    nothing = ("share", 0)  # each less than half a message
    before = edges(("old", 10), ("same", 100), ("up", 10), ("least", 0), nothing)
    now = edges(("same", 110), ("up", 40), ("new", 5), ("least", 1), ("never", 0), nothing)
    found = graph.changes(before, now, 10.0, 10.0).collect()
    assert {row["subject"]: row["change"] for row in found} == {
        **{"old": "gone", "up": "more", "new": "new", "least": "more"},
    }


def test_an_edge_of_less_than_half_a_message_is_no_error_of_the_questions(spark: Any):
    """Three publishers share the one message that was received."""
    from gnatswarm.spark.questions import QUESTIONS
    from gnatswarm.spark.transforms import graph, talkers

    rows = [client(name, published=(("a", 1),)) for name in ("one", "two", "three")] + [
        client("x", received=(("a", 1),))
    ]
    edges = graph.edges(graph.flows(talkers.by_service(frame(spark, rows))))
    graph.between_services(edges).createOrReplaceTempView("service_matrix")
    (statement,) = [text for text in QUESTIONS.values() if "service_matrix" in text]
    found = spark.sql(statement).collect()
    assert [(row["msgs"], row["crosses"]) for row in found] == [(0, None)] * 3


def test_churners_are_those_who_come_often(spark: Any):
    from gnatswarm.spark.transforms import talkers

    rows = [client("calm"), client("restless", cid=0, opened=60, closed=60, window_us=60_000_000)]
    (row,) = talkers.churners(talkers.by_service(frame(spark, rows))).collect()
    assert (row["service"], row["opened"], row["opened_per_minute"]) == ("restless", 60, 60.0)
