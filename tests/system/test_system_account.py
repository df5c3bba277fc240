"""The system account: events and requests, answered once for the whole broker, as both nats-servers answer them.

Everything runs on one, two and four shards and on the real server, but for what only later servers have
($SYS.REQ.USER.INFO, KICK, LDM, the LAMEDUCK event) and what only several shards can show.
"""

from __future__ import annotations

import asyncio
import re
import signal

import orjson
import pytest

from gnatswarm.broker import advisory
from tests.support import swarm
from tests.support.asking import ask, ask_frame, heard, is_silent
from tests.support.pages import Pages
from tests.support.servers import wait_until
from tests.system.test_log_in import reload

NEWER = ("gnatswarm-2-as-2.15", "nats-server-2.15")
pytestmark = pytest.mark.kinds("gnatswarm-1", "gnatswarm-2", "gnatswarm-4", "nats-server", *NEWER)
OURS = pytest.mark.kinds("gnatswarm-1", "gnatswarm-2", "gnatswarm-4", "gnatswarm-2-as-2.15")
# What servers later than 2.9.10 have, and we have in both modes.
LATER = pytest.mark.kinds("gnatswarm-1", "gnatswarm-2", "gnatswarm-4", *NEWER)

CONFIG = """
server_name: here
server_tags: ["blue", "eu"]
system_account: SYS
accounts {
  SYS { users: [ {user: s, password: s} ] }
  A { users: [
    {user: a, password: a}
    {user: few, password: few, permissions: {
      publish: {allow: ["x", "$SYS.REQ.>"], deny: "x.y"}, subscribe: {deny: "z.>"}
      allow_responses: {max: 3, expires: "1m"}
    }}
    {user: mute, password: mute, permissions: {publish: "x"}}
  ] }
  B { users: [ {user: b, password: b} ] }
}
"""
SERVERS = {
    "2.9.10": ["name", "host", "id", "ver", "tags", "seq", "jetstream", "time"],
    # … and feature_flags and flags, JetStream's, of the real server alone
    "2.15.1": ["name", "host", "id", "ver", "tags", "jetstream", "seq", "time"],
}
EVENT = ["type", "id", "timestamp", "server"]
TIME = re.compile(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?Z\Z")


def said(user: str, **more: object) -> dict[str, object]:
    return {"user": user, "pass": user, "headers": True, "no_responders": True, **more}


@pytest.fixture
def cluster(cluster_with):
    """Of a broker that other tests have had before."""
    return cluster_with(CONFIG)


@pytest.fixture
def fresh_cluster(start_broker, cluster_of):
    """Of a broker that has counted nothing yet, and may be ended."""
    return cluster_of(start_broker(config=CONFIG))


async def listening(cluster, shard: int, *subjects: str):
    client = await cluster.client_on(shard, said("s"))
    for number, subject in enumerate(subjects):
        await client.send(f"SUB {subject} {number}\r\n")
    await client.flush()
    return client


def is_newer(cluster) -> bool:
    return bool(cluster.broker.kind.compatibility == "2.15")


def check_server(document) -> None:
    keys = [key for key in document if key not in ("feature_flags", "flags")]
    assert keys == SERVERS[document["ver"]]
    assert document["name"] == "here" and document["tags"] == ["blue", "eu"]
    assert document["host"] == "127.0.0.1" and document["jetstream"] is False and document["seq"] > 0
    assert TIME.match(document["time"])


def check_event(document, kind: str) -> None:
    assert list(document)[:4] == EVENT
    assert document["type"] == f"io.nats.server.advisory.v1.{kind}"
    assert re.match(r"[0-9A-Za-z]{22}\Z", document["id"]) and TIME.match(document["timestamp"])
    check_server(document["server"])


async def test_who_comes_and_goes_is_said_once_to_every_listener_on_every_shard(cluster):
    ears = [await listening(cluster, shard, "$SYS.ACCOUNT.A.*") for shard in range(cluster.broker.kind.shards)]
    for shard in range(cluster.broker.kind.shards):
        client = await cluster.client_on(shard, said("a", name="me", lang="py", version="1.2"))
        await client.talk("SUB x 1\r\nPUB x 2\r\nhi\r\nPUB y 1\r\nz\r\nPING\r\n", expect_last="PONG\r\n")
        cid = client.info["client_id"]
        for ear in ears:
            event = await heard(ear, "$SYS.ACCOUNT.A.CONNECT")
            check_event(event, "client_connect")
            keys = ["start", "host", "id", "acc", "user", "name", "lang", "ver", "kind", "client_type"]
            if is_newer(cluster):
                keys.insert(keys.index("kind"), "name_tag")
            assert list(event) == [*EVENT, "client"] and list(event["client"]) == keys
            who = {key: event["client"][key] for key in keys[1:]}
            assert who == {
                "host": "127.0.0.1", "id": cid, "acc": "A", "user": "a", "name": "me", "lang": "py", "ver": "1.2",
                "kind": "Client", "client_type": "nats", **({"name_tag": "A"} if is_newer(cluster) else {}),
            }  # fmt: skip
        client.close()
        for ear in ears:
            event = await heard(ear, "$SYS.ACCOUNT.A.DISCONNECT")
            check_event(event, "client_disconnect")
            assert list(event) == [*EVENT, "client", "sent", "received", "reason"]
            assert set(event["client"]) >= {*keys, "stop"} and event["client"]["id"] == cid
            assert event["sent"] == {"msgs": 2, "bytes": 3} and event["received"] == {"msgs": 1, "bytes": 2}
            assert event["reason"] == "Client Closed"
    for ear in ears:
        await ear.flush()
        assert not ear.inbox


async def test_the_global_account_is_not_spoken_of(start_broker, cluster_of):
    config = CONFIG.replace("accounts {", "authorization { users: [ {user: g, password: g} ] }\naccounts {")
    broker = start_broker(config=config)
    if broker.kind.compatibility == "2.15":
        pytest.skip("the newer server does: test_compatibility.py")
    cluster = cluster_of(broker)
    ear = await listening(cluster, 0, "$SYS.ACCOUNT.*.CONNECT")
    await cluster.client_on(1, said("g"))
    await cluster.client_on(1, said("b"))
    assert (await heard(ear, "$SYS.ACCOUNT.B.CONNECT"))["client"]["acc"] == "B"
    assert not [frame for frame in ear.inbox if "$G" in frame.subject]


async def test_a_refused_log_in_is_an_event_and_its_secret_is_not_in_it(cluster):
    ear = await listening(cluster, 0, "$SYS.SERVER.*.CLIENT.AUTH.ERR")
    for shard in range(cluster.broker.kind.shards):
        client = await cluster.raw_on(shard)
        await client.send('CONNECT {"user":"a","pass":"s3cret","name":"bad"}\r\n')
        await client.wait_closed()
        event = await heard(ear, f"$SYS.SERVER.{client.info['server_id']}.CLIENT.AUTH.ERR")
        check_event(event, "client_disconnect")
        assert list(event) == [*EVENT, "client", "sent", "received", "reason"]
        assert event["reason"] == "Authentication Failure"
        assert (event["client"]["user"], event["client"]["name"], event["client"]["acc"]) == ("a", "bad", "$G")
        assert event["sent"] == event["received"] == {"msgs": 0, "bytes": 0}
        assert b"s3cret" not in orjson.dumps(event)


async def test_connections_of_an_account_are_counted_over_all_shards(cluster):
    subjects = "$SYS.ACCOUNT.A.SERVER.CONNS", "$SYS.SERVER.ACCOUNT.A.CONNS"
    ear = await listening(cluster, 0, *subjects)
    counts = ["acc", "conns", "leafnodes", "total_conns", "sent", "received", "slow_consumers"]
    if is_newer(cluster):
        counts = ["acc", "name", "conns", "leafnodes", "total_conns", "num_subscriptions", *counts[4:]]
    clients = [await cluster.client_on(shard, said("a")) for shard in range(4)]
    for left in (4, 3):
        for subject in subjects:
            async with asyncio.timeout(30):
                while True:
                    event = await heard(ear, subject)
                    check_event(event, "account_connections")
                    assert list(event) == [*EVENT, *counts] and event["acc"] == "A"
                    if event["conns"] == left:
                        break
        clients.pop().close()


@pytest.mark.kinds("gnatswarm-2", "gnatswarm-4", "gnatswarm-2-as-2.15")
async def test_an_account_whose_last_clients_were_on_a_shard_that_was_killed_is_said_to_have_none(fresh_cluster):
    subject = "$SYS.ACCOUNT.A.SERVER.CONNS"
    ear = await listening(fresh_cluster, 0, subject)
    for _ in range(3):
        await fresh_cluster.client_on(1, said("a"))

    async def wait_count(count: int) -> None:
        async with asyncio.timeout(20):
            while (await heard(ear, subject))["conns"] != count:
                pass

    await wait_count(3)
    await swarm.kill(fresh_cluster.broker, 1)
    await wait_count(0)


async def test_statsz_comes_by_itself_and_adds_up_all_shards(cluster):
    ear = await listening(cluster, 0, "$SYS.SERVER.*.STATSZ")
    for shard in range(3):
        await cluster.client_on(shard, said("b"))
    async with asyncio.timeout(30):
        while True:
            event = await heard(ear, f"$SYS.SERVER.{ear.info['server_id']}.STATSZ")
            if event["statsz"]["connections"] == 4:
                break
    check_statsz(event)


def check_statsz(answer) -> None:
    check_server(answer["server"])
    assert list(answer) == ["server", "statsz"]
    keys = [
        "start", "mem", "cores", "cpu", "connections", "total_connections", "active_accounts", "subscriptions", "sent",
        "received", "slow_consumers", "active_servers",
    ]  # fmt: skip
    if answer["server"]["ver"].startswith("2.15."):
        keys.insert(keys.index("received"), "sent_to_clients")
        keys.insert(keys.index("slow_consumers"), "received_from_clients")
        keys.append("gomaxprocs")
    assert list(answer["statsz"]) == keys
    assert answer["statsz"]["active_accounts"] == 2 and answer["statsz"]["mem"] > 1_000_000


# What is asked → the members of "data", as the real server has them.
PAGES = {
    "VARZ": None,  # compared in tests/contract/test_monitoring.py
    "CONNZ": ["server_id", "now", "num_connections", "total", "offset", "limit", "connections"],
    "SUBSZ": [
        "server_id", "now", "num_subscriptions", "num_cache", "num_inserts", "num_removes", "num_matches",
        "cache_hit_rate", "max_fanout", "avg_fanout", "total", "offset", "limit",
    ],
    "ROUTEZ": ["server_id", "now", "num_routes", "routes"],
    "GATEWAYZ": ["server_id", "now", "outbound_gateways", "inbound_gateways"],
    "LEAFZ": ["server_id", "now", "leafnodes", "leafs"],
    "ACCOUNTZ": ["server_id", "now", "system_account", "accounts"],
    "JSZ": None,
    "HEALTHZ": ["status"],
}  # fmt: skip


NEWER_PAGES = {
    "ROUTEZ": ["server_id", "server_name", "now", "num_routes", "routes"],
    "HEALTHZ": ["status", "status_code"],
}


async def test_pages_are_answered_once_whoever_is_asked(cluster):
    for shard in range(cluster.broker.kind.shards):
        asker = await cluster.client_on(shard, said("s"))
        await asker.send("SUB _INBOX.> all\r\n")  # a second answer would be heard here
        own_id = asker.info["server_id"]
        for what, members in PAGES.items():
            for subject in (f"$SYS.REQ.SERVER.PING.{what}", f"$SYS.REQ.SERVER.{own_id}.{what}"):
                answer = await ask(asker, subject)
                check_server(answer["server"])
                assert list(answer) == ["server", "data"]
                if is_newer(cluster):
                    members = NEWER_PAGES.get(what, members)
                assert members is None or list(answer["data"]) == members
                assert answer["data"].get("server_id", own_id) == own_id
        for subject in ("$SYS.REQ.SERVER.PING", "$SYS.REQ.SERVER.PING.STATSZ", f"$SYS.REQ.SERVER.{own_id}.STATSZ"):
            answer = await ask(asker, subject)
            assert list(answer) == ["server", "statsz"]
        await asker.flush()
        answers = [frame.subject for frame in asker.inbox if frame.sid == "all"]
        assert len(answers) == len(set(answers)) == 2 * len(PAGES) + 3
        asker.close()


async def test_nobody_responds_to_what_is_not_answered(cluster):
    asker = await cluster.client_on(0, said("s"))
    for subject in ("$SYS.REQ.SERVER.PING.NOSUCHZ", "$SYS.REQ.SERVER.NOBODY.VARZ", "$SYS.REQ.NOTHING"):
        assert await ask(asker, subject) is None


async def test_connections_of_all_shards_are_one_page(fresh_cluster):
    asker = await fresh_cluster.client_on(0, said("s"))
    clients = [await fresh_cluster.client_on(shard, said("a", name=f"n{shard}")) for shard in range(4)]
    await clients[3].talk("SUB foo.* 7\r\nPING\r\n", expect="PONG\r\n")
    cids = [client.info["client_id"] for client in clients]
    ask_for = {"sort": "cid", "acc": "A", "auth": True, "subscriptions_detail": True}
    data = (await ask(asker, "$SYS.REQ.SERVER.PING.CONNZ", ask_for))["data"]
    assert [row["cid"] for row in data["connections"]] == sorted(cids)
    row = next(row for row in data["connections"] if row["cid"] == cids[3])
    assert (row["account"], row["authorized_user"]) == ("A", "a")
    assert [one["subject"] for one in row["subscriptions_list_detail"]] == ["foo.*"]
    page = (await ask(asker, "$SYS.REQ.SERVER.PING.CONNZ", {"acc": "A", "limit": 2, "offset": 1}))["data"]
    assert [row["cid"] for row in page["connections"]] == sorted(cids)[1:3]
    one = (await ask(asker, "$SYS.REQ.SERVER.PING.CONNZ", {"cid": cids[2]}))["data"]["connections"]
    assert [row["name"] for row in one] == ["n2"]
    clients[0].close()
    async with asyncio.timeout(30):
        while True:
            gone = (await ask(asker, "$SYS.REQ.SERVER.PING.CONNZ", {"state": 1, "acc": "A"}))["data"]["connections"]
            if gone:
                break
    assert [(row["cid"], row["reason"]) for row in gone] == [(cids[0], "Client Closed")]


async def test_subscriptions_that_a_subject_would_reach(cluster):
    asker = await cluster.client_on(0, said("s"))
    for shard in range(3):
        client = await cluster.client_on(shard, said("a"))
        await client.talk("SUB foo.* 7\r\nSUB other 8\r\nPING\r\n", expect="PONG\r\n")
    data = (await ask(asker, "$SYS.REQ.SERVER.PING.SUBSZ", {"subscriptions": True, "test": "foo.bar"}))["data"]
    assert [(one["account"], one["subject"]) for one in data["subscriptions_list"]] == [("A", "foo.*")] * 3


async def test_what_is_asked_about_one_account(fresh_cluster):
    asker = await fresh_cluster.client_on(0, said("s"))
    clients = [await fresh_cluster.client_on(shard, said("a")) for shard in range(3)]
    for client in clients:
        await client.talk("SUB foo 1\r\nPING\r\n", expect="PONG\r\n")
    await clients[0].talk("PUB foo 2\r\nhi\r\nPING\r\n", expect_last="PONG\r\n")
    ours = "$SYS.REQ.ACCOUNT.A."
    assert len((await ask(asker, ours + "CONNZ"))["data"]["connections"]) == 3
    listed = (await ask(asker, ours + "SUBSZ"))["data"]["subscriptions_list"]
    assert [one["subject"] for one in listed if not one["subject"].startswith("$SYS")] == ["foo"] * 3
    info = (await ask(asker, ours + "INFO"))["data"]
    assert (info["account_name"], info["client_connections"]) == ("A", 3) and "is_system" not in info
    assert (await ask(asker, "$SYS.REQ.ACCOUNT.SYS.INFO"))["data"]["is_system"] is True
    count = await ask(asker, ours + "CONNS")
    check_event(count, "account_connections")
    assert (count["acc"], count["conns"]) == ("A", 3)
    statistics = {"received": {"msgs": 1, "bytes": 2}, "sent": {"msgs": 3, "bytes": 6}}
    (one,) = (await ask(asker, ours + "STATZ"))["data"]["account_statz"]
    assert (one["acc"], one["conns"]) == ("A", 3)
    for direction, counted in statistics.items():  # 2.15 counts servers beside them
        assert one[direction] | counted == one[direction]
    every = (await ask(asker, "$SYS.REQ.ACCOUNT.PING.STATZ"))["data"]["account_statz"]
    assert sorted(one["acc"] for one in every) == ["A", "SYS"]
    only = (await ask(asker, "$SYS.REQ.ACCOUNT.PING.STATZ", {"accounts": ["A"]}))["data"]["account_statz"]
    assert [one["acc"] for one in only] == ["A"]
    assert (await ask(asker, ours + "LEAFZ"))["data"]["leafs"] == ([] if is_newer(fresh_cluster) else None)
    assert (await ask(asker, ours + "JSZ"))["error"] == {"code": 500, "description": "jetstream not enabled"}
    nobody = await ask(asker, "$SYS.REQ.ACCOUNT.NOPE.INFO")
    assert nobody["data"] is None and nobody["error"] == {"code": 500, "description": "Account NOPE does not exist"}
    assert (await ask(asker, "$SYS.REQ.ACCOUNT.NOPE.CONNZ"))["data"]["connections"] is None
    detail = (await ask(asker, "$SYS.REQ.SERVER.PING.ACCOUNTZ", {"account": "A"}))["data"]["account_detail"]
    assert detail["account_name"] == "A"
    assert await is_silent(asker, "$SYS.REQ.ACCOUNT.B.STATZ")


async def test_subscriptions_that_get_streams_of_an_account_are_counted_in_it(cluster_with):
    cluster = cluster_with("""
    system_account: SYS
    accounts {
      SYS { users: [ {user: s, password: s} ] }
      A { users: [ {user: a, password: a} ], exports: [ {stream: "s.>"} ] }
      B { users: [ {user: b, password: b} ], imports: [ {stream: {account: A, subject: "s.>"}} ] }
    }
    """)
    asker = await cluster.client_on(0, said("s"))
    for shard, user in enumerate("abb"):
        client = await cluster.client_on(shard, said(user))
        await client.talk("SUB s.* 1\r\nSUB s.x q 2\r\nPING\r\n", expect="PONG\r\n")
    for account, count in (("A", 6), ("B", 4)):
        for subject in ("s.x", "s.*", "s.>", ">"):
            assert await ask(asker, "$SYS.REQ.ACCOUNT.NSUBS", {"acc": account, "subject": subject}) == count
        (row,) = (await ask(asker, f"$SYS.REQ.ACCOUNT.{account}.STATZ"))["data"]["account_statz"]
        detail = (await ask(asker, f"$SYS.REQ.ACCOUNT.{account}.INFO"))["data"]
        if is_newer(cluster):
            assert row["num_subscriptions"] == detail["subscriptions"]


async def test_how_many_subscriptions_would_get_a_message(cluster):
    asker, outsider = await cluster.client_on(0, said("s")), await cluster.client_on(1, said("a"))
    subs = "SUB foo 2\r\nSUB foo.* q 3\r\nSUB foo.> 5\r\nSUB foo.x r 6\r\nPING\r\n"
    for shard, user in ((0, "s"), (1, "s"), (0, "b"), (1, "b")):
        await (await cluster.client_on(shard, said(user))).talk(subs, expect="PONG\r\n")
    counts = {"foo": 2, "foo.x": 6, "foo.x q": 2, "foo.y r": 0, "foo.* q": 2, "foo.*": 4, "foo.>": 6, "no": 0}
    counts |= {"": 0, " foo": 2, "foo q x": 0, "foo.x  q": 0, "bad..s": 0}
    for body, count in counts.items():
        assert (await ask_frame(asker, "$SYS.DEBUG.SUBSCRIBERS", body)).payload == b"%d" % count, body
    of_b: list[tuple[object, int]] = [({"acc": "B", "subject": "foo.x"}, 6), ({"acc": "B"}, 0)]
    of_b += [({"acc": "B", "subject": "foo.x", "queue": "cQ=="}, 2), ({"acc": "B", "subject": ">"}, 8)]
    for asked, count in of_b:
        assert (await ask_frame(asker, "$SYS.REQ.ACCOUNT.NSUBS", asked)).payload == b"%d" % count, asked
    unanswered: list[object] = [
        "",
        "B",
        {"acc": "NOPE", "subject": "foo"},
        {"acc": "B", "subject": "foo", "queue": "q"},
    ]
    for wrong in unanswered:
        assert await is_silent(asker, "$SYS.REQ.ACCOUNT.NSUBS", wrong)
    assert await ask(outsider, "$SYS.DEBUG.SUBSCRIBERS", "foo") is None


@pytest.mark.parametrize(
    ("asked", "is_meant"),
    [
        ({"server_name": "here"}, True),
        ({"server_name": "her"}, True),  # a part of it is enough there
        ({"server_name": "there"}, False),
        ({"host": "127.0.0"}, True),
        ({"host": "10.0.0.1"}, False),
        ({"tags": ["eu"]}, True),
        ({"tags": ["EU", "blue"]}, True),
        ({"tags": ["eu", "red"]}, False),
        ({"cluster": "c"}, False),
        ({"domain": "hub"}, False),
        ({"no such option": 1}, True),
    ],
)  # fmt: skip
async def test_who_is_not_meant_is_silent(cluster, asked, is_meant):
    asker = await cluster.client_on(0, said("s"))
    for subject in ("$SYS.REQ.SERVER.PING.VARZ", "$SYS.REQ.SERVER.PING", "$SYS.REQ.ACCOUNT.A.CONNZ"):
        if is_meant:
            assert (await ask(asker, subject, asked))["server"]["name"] == "here"
        else:
            assert await is_silent(asker, subject, asked)


@pytest.mark.parametrize(
    "body", [b"{", b'{"limit": "many"}', b'{"tags": 5}', b"[]", b"\xff\xfe", b'{"x":' + b"[" * 20_000]
)
async def test_options_that_make_no_sense_are_an_error_and_nothing_else(cluster, body):
    asker = await cluster.client_on(0, said("s"))
    answer = await ask(asker, "$SYS.REQ.SERVER.PING.CONNZ", body)
    assert list(answer) == ["server", "error"] and answer["error"]["code"] == 400 and answer["error"]["description"]


async def test_connections_are_filtered_by_what_they_subscribe_to(fresh_cluster):
    asker = await fresh_cluster.client_on(0, said("s"))
    subscribed = {"literal": "foo.a", "pattern": "foo.*", "all": ">", "other": "bar", "queue": "foo.a q"}
    for shard, (name, subject) in enumerate(subscribed.items()):
        client = await fresh_cluster.client_on(shard, said("a", name=name))
        await client.talk(f"SUB {subject} 1\r\nPING\r\n", expect="PONG\r\n")
    outsider = await fresh_cluster.client_on(1, said("b", name="b"))
    await outsider.talk("SUB foo.a 1\r\nPING\r\n", expect="PONG\r\n")

    async def found(client=asker, subject: str = "$SYS.REQ.SERVER.PING.CONNZ", **words) -> tuple[list[str], int]:
        data = (await ask(client, subject, {"sort": "cid", **words}))["data"]
        return sorted(row["name"] for row in data["connections"]), data["total"]

    assert await found(filter_subject="foo.a", acc="A") == (["all", "literal", "pattern", "queue"], 5)
    assert await found(filter_subject="foo.b", acc="A") == (["all", "pattern"], 5)
    assert await found(filter_subject="foo.>", acc="A", state=2) == (["all", "literal", "pattern", "queue"], 5)
    assert await found(filter_subject="foo.a", acc="A", user="nobody") == ([], 5)
    assert await found(filter_subject=">", acc="A") == (sorted(subscribed), 5)
    assert await found(filter_subject="foo.a", acc="B") == (["b"], 1)
    assert await found(outsider, "$SYS.REQ.ACCOUNT.PING.CONNZ", filter_subject="foo.>") == (["b"], 1)
    assert await found(outsider, "$SYS.REQ.ACCOUNT.PING.CONNZ", filter_subject="bar") == ([], 1)
    assert await found(subject="$SYS.REQ.ACCOUNT.A.CONNZ", filter_subject="bar") == (["all", "other"], 5)
    everywhere = await ask(asker, "$SYS.REQ.SERVER.PING.CONNZ", {"filter_subject": "foo.a"})
    why = "filter by subject only valid with account filtering"
    assert everywhere["error"] == {"code": 500, "description": why} and everywhere["data"] is None
    assert await found(mqtt_client="x", acc="A") == ([], 5)


async def test_texts_that_utf_8_cannot_encode_cost_no_answer(cluster):
    asker, outsider = await cluster.client_on(0, said("s")), await cluster.client_on(1, said("a"))
    for key in ("user", "acc", "sort"):
        answer = await ask(asker, "$SYS.REQ.SERVER.PING.CONNZ", b'{"%b": "\\ud800"}' % key.encode())
        if key == "sort":
            assert answer["error"] == {"code": 500, "description": "invalid sorting option: \ufffd"}
        else:
            assert answer["data"]["num_connections"] == 0
    answer = await ask(asker, "$SYS.REQ.SERVER.PING.ACCOUNTZ", b'{"account": "\\udc00\\udc00"}')
    assert answer["error"] == {"code": 500, "description": "Account \ufffd\ufffd does not exist"}
    named = {"accounts": b'["\\udfff"]', "include_unused": b"true"}
    body = b"{%b}" % b", ".join(b'"%b": %b' % (key.encode(), value) for key, value in named.items())
    assert (await ask(asker, "$SYS.REQ.ACCOUNT.PING.STATZ", body))["data"]["account_statz"] == []
    assert (await ask(outsider, "$SYS.REQ.ACCOUNT.PING.CONNZ", b'{"user": "\\ud800"}'))["data"]["connections"] == []
    assert (await ask(outsider, "$SYS.REQ.ACCOUNT.PING.CONNZ", b'{"user": "\xff"}'))["data"]["connections"] == []


async def test_options_that_cannot_be_served_are_an_error(cluster):
    asker = await cluster.client_on(0, said("s"))
    answer = await ask(asker, "$SYS.REQ.SERVER.PING.CONNZ", {"sort": "size"})
    assert answer["error"] == {"code": 500, "description": "invalid sorting option: size"} and answer["data"] is None


async def test_other_accounts_hear_nothing_and_are_answered_only_about_themselves(cluster):
    for shard in range(cluster.broker.kind.shards):
        outsider = await cluster.client_on(shard, said("a"))
        await outsider.talk("SUB $SYS.> ears\r\nPING\r\n", expect="PONG\r\n")
        other = await cluster.client_on(shard + 1, said("b", name="secret"))
        for subject in (
            "$SYS.REQ.SERVER.PING.VARZ",
            "$SYS.REQ.ACCOUNT.B.CONNZ",
            "$SYS.REQ.ACCOUNT.SYS.INFO",
            f"$SYS.REQ.SERVER.{outsider.info['server_id']}.VARZ",
        ):
            # With ears of its own it is itself who could respond.
            await outsider.send(f"SUB mine 9\r\nPUB {subject} mine 0\r\n\r\n")
            await outsider.flush()
        for subject in ("$SYS.REQ.ACCOUNT.PING.CONNZ", "$SYS.REQ.SERVER.PING.CONNZ"):
            connections = (await ask(outsider, subject, {"acc": "B"}))["data"]["connections"]
            assert {row["cid"] for row in connections} >= {outsider.info["client_id"]}
            assert other.info["client_id"] not in {row["cid"] for row in connections}
        (one,) = (await ask(outsider, "$SYS.REQ.ACCOUNT.PING.STATZ"))["data"]["account_statz"]
        assert one["acc"] == "A"
        other.close()
        await outsider.flush()
        assert [frame for frame in outsider.inbox if frame.sid == "9"] == []
        # It hears what its own account says there, and no event.
        assert all(frame.subject.startswith("$SYS.REQ.") for frame in outsider.inbox)


TWO_ACCOUNTS = """
system_account: SYS
accounts {
  SYS { users: [ {user: s, password: s} ] }
  APP { users: [ {user: app, password: app} ] }
  BANK { users: [ {user: teller, password: teller} ] }
}
no_auth_user: app
"""
# What nobody of the account APP may see: accounts, users, names and subjects of the other one.
SECRETS = (b"BANK", b"teller", b"vault", b"payments", b"intruder")


def asked_about_others(cids: list[int]) -> dict[str, list[dict[str, object]]]:
    """By the request that users of any account may send: bodies that ask for another account's clients."""
    shown = {"auth": True, "subscriptions": True, "subscriptions_detail": True}
    wanted: list[dict[str, object]] = [{}, {"acc": "BANK"}, {"account": "BANK"}, {"accounts": ["BANK"]}]
    wanted += [{"user": "teller"}, {"sort": "subs"}, {"offset": 0, "limit": 100}, {"search": "vault"}]
    wanted += [{"filter_subject": "payments.>", "acc": "BANK"}, {"filter_subject": "payments.>"}]
    wanted += [{"mqtt_client": "vault"}, {"server_name": ""}, {"host": ""}]
    wanted += [{"cid": cid, **more} for cid in cids for more in ({}, {"acc": "BANK"}, {"user": "teller"})]
    connections = [{**shown, **one, "state": state} for one in wanted for state in (0, 1, 2)]
    statistics: list[dict[str, object]] = [{}, {"accounts": ["BANK"]}, {"accounts": ["BANK", "APP"]}, {"acc": "BANK"}]
    return {
        "$SYS.REQ.ACCOUNT.PING.CONNZ": connections,
        "$SYS.REQ.SERVER.PING.CONNZ": connections,
        "$SYS.REQ.ACCOUNT.PING.STATZ": [
            {**one, "include_unused": all_} for one in statistics for all_ in (False, True)
        ],
    }


@pytest.fixture
def two_accounts(cluster_with):
    """Of a broker with the accounts APP and BANK."""
    return cluster_with(TWO_ACCOUNTS)


async def clients_of_bank(cluster, shard: int) -> list[int]:
    """The ids of three clients of the account BANK: an open one, one that has ended, and one with a wrong password."""
    clients = [await cluster.client_on(shard, said("teller", name="vault")) for _ in range(2)]
    for client in clients:
        await client.talk("SUB payments.* 1\r\nPUB payments.1 2\r\nhi\r\nPING\r\n", expect_last="PONG\r\n")
    clients[1].shut_writing()
    await clients[1].wait_closed()
    refused = await cluster.raw_on(shard)
    await refused.send(b"CONNECT " + orjson.dumps(said("teller", name="intruder") | {"pass": "x"}) + b"\r\n")
    await refused.wait_closed()
    return [client.info["client_id"] for client in (*clients, refused)]


@pytest.mark.parametrize("subject", asked_about_others([]))
async def test_nothing_of_another_account_is_told_whatever_is_asked(two_accounts, subject):
    old_is_open = two_accounts.broker.kind.name == "nats-server"  # 2.9.10 tells of any client whose cid is asked for
    for shard in range(two_accounts.broker.kind.shards):
        cids = await clients_of_bank(two_accounts, shard + 1)
        asker = await two_accounts.client_on(shard, said("app"))
        for body in asked_about_others(cids)[subject]:
            if old_is_open and body.get("cid"):
                continue
            frame = await ask_frame(asker, subject, body)
            told = [secret for secret in SECRETS if secret in frame.payload]
            assert not told, (body, frame.payload)
        found = orjson.loads((await ask_frame(asker, subject, {})).payload)["data"]
        if "connections" in found:
            assert asker.info["client_id"] in [row["cid"] for row in found["connections"]]
        else:
            assert [row["acc"] for row in found["account_statz"]] == ["APP"]
        asker.close()


@pytest.mark.parametrize("account", ["PING", "BANK", "APP", "SYS"])
async def test_the_rest_is_not_answered_to_users_of_other_accounts(two_accounts, account):
    for shard in range(two_accounts.broker.kind.shards):
        (cid, *_) = await clients_of_bank(two_accounts, shard + 1)
        asker = await two_accounts.client_on(shard, said("app"))
        own_id = asker.info["server_id"]
        body = {"account": "BANK", "acc": "BANK", "subscriptions": True, "subject": ">", "cid": cid}
        ones_own = ("CONNZ", "STATZ") if account == "PING" else ()
        subjects = [f"$SYS.REQ.ACCOUNT.{account}.{what}" for what in advisory.OF_ACCOUNTS if what not in ones_own]
        servers = (*advisory.OF_SERVERS, *advisory.OF_THIS_SERVER)
        subjects += [f"$SYS.REQ.SERVER.{own_id}.{what}" for what in servers]
        subjects += [f"$SYS.REQ.SERVER.PING.{what}" for what in servers if what not in ("CONNZ", "IDZ")]
        subjects += ["$SYS.REQ.ACCOUNT.NSUBS", "$SYS.DEBUG.SUBSCRIBERS"]
        for one in subjects:
            frame = await ask_frame(asker, one, body)
            assert b"503" in frame.headers, (one, frame.payload)
        asker.close()


async def test_whoever_may_not_publish_may_not_ask(cluster):
    mute = await cluster.client_on(0, said("mute"))
    await mute.talk(
        "PUB $SYS.REQ.ACCOUNT.PING.CONNZ inbox 0\r\n\r\nPING\r\n",
        expect="-ERR 'Permissions Violation for Publish to \"$SYS.REQ.ACCOUNT.PING.CONNZ\"'\r\nPONG\r\n",
    )


async def test_shutdown_is_said_to_listeners_on_every_shard(fresh_cluster):
    ears = [
        await listening(fresh_cluster, shard, "$SYS.SERVER.*.SHUTDOWN")
        for shard in range(fresh_cluster.broker.kind.shards)
    ]
    fresh_cluster.broker.send_signal(signal.SIGINT)
    for ear in ears:
        frame = await ear.read_frame()
        assert frame.subject == f"$SYS.SERVER.{ear.info['server_id']}.SHUTDOWN"
        check_server(orjson.loads(frame.payload))
        await ear.wait_closed()
    await asyncio.to_thread(fresh_cluster.broker.wait_exit)


# ---- as servers later than 2.9.10 have it


@LATER
async def test_lame_duck_is_said(fresh_cluster):
    ears = [
        await listening(fresh_cluster, shard, "$SYS.SERVER.*.LAMEDUCK")
        for shard in range(fresh_cluster.broker.kind.shards)
    ]
    fresh_cluster.broker.send_signal(signal.SIGUSR2)
    for ear in ears:
        check_server(await heard(ear, f"$SYS.SERVER.{ear.info['server_id']}.LAMEDUCK"))
        ear.close()
    if fresh_cluster.broker.kind.is_oracle:  # it stays for 10 s more, whatever it is told
        fresh_cluster.broker.send_signal(signal.SIGKILL)


@LATER
async def test_everybody_may_ask_who_it_is(cluster):
    for shard in range(cluster.broker.kind.shards):
        few = await cluster.client_on(shard, said("few"))
        answer = await ask(few, "$SYS.REQ.USER.INFO")
        check_server(answer["server"])
        named = {"account_name": "A"} if is_newer(cluster) else {}
        answer["data"]["permissions"]["publish"]["allow"].sort()  # nats-server says them in any order
        assert answer["data"] == {
            "user": "few",
            "account": "A",
            **named,
            "permissions": {
                "publish": {"allow": ["$SYS.REQ.>", "x"], "deny": ["x.y"]},
                "subscribe": {"deny": ["z.>"]},
                "responses": {"max": 3, "ttl": 60_000_000_000},
            },
        }
        # Whoever else subscribes to it gets it too; a second question is answered like the first.
        wiretap = await cluster.client_on(shard + 1, said("a"))
        await wiretap.talk("SUB > 1\r\nPING\r\n", expect="PONG\r\n")
        asker = await cluster.client_on(shard, said("s"))
        for client, user, account in ((wiretap, "a", "A"), (asker, "s", "SYS"), (asker, "s", "SYS")):
            named = {"account_name": account} if is_newer(cluster) else {}
            assert (await ask(client, "$SYS.REQ.USER.INFO"))["data"] == {"user": user, "account": account} | named


@LATER
async def test_everybody_may_ask_without_any_configuration(start_broker, cluster_of):
    cluster = cluster_of(start_broker())
    client = await cluster.client_on(0, {"headers": True, "no_responders": True})
    named = {"account_name": "$G"} if is_newer(cluster) else {}
    assert (await ask(client, "$SYS.REQ.USER.INFO"))["data"] == {"user": "", "account": "$G"} | named
    assert (await ask(client, "$SYS.REQ.ACCOUNT.PING.CONNZ"))["data"]["num_connections"] == 1
    assert (await ask_frame(client, "$SYS.REQ.SERVER.PING")).headers.startswith(b"NATS/1.0 503\r\n")


@LATER
async def test_a_client_is_kicked_wherever_it_is(cluster):
    asker = await listening(cluster, 0, "$SYS.ACCOUNT.A.DISCONNECT")
    server = f"$SYS.REQ.SERVER.{asker.info['server_id']}"
    for shard in range(cluster.broker.kind.shards):
        client = await cluster.client_on(shard, said("a"))
        cid = client.info["client_id"]
        assert list(await ask(asker, server + ".KICK", {"cid": cid})) == ["server"]
        assert await client.wait_closed() == b""
        event = await heard(asker, "$SYS.ACCOUNT.A.DISCONNECT")
        assert (event["client"]["id"], event["reason"]) == (cid, "Kicked")
        again = await ask(asker, server + ".KICK", {"cid": cid})
        unknown = "no such client or leafnode id" if is_newer(cluster) else "no such client id"
        assert again["error"] == {"code": 500, "description": unknown}
    for body in ({}, {"cid": 0}):
        assert (await ask(asker, server + ".KICK", body))["error"]["code"] == 500
    if not cluster.broker.kind.is_oracle:  # it does not answer these
        assert (await ask(asker, server + ".KICK", {"cid": 2**63 - 1}))["error"]["code"] == 500
    assert await ask(asker, "$SYS.REQ.SERVER.PING.KICK", {"cid": asker.info["client_id"]}) is None


@LATER
@pytest.mark.parametrize("what", ["KICK", "LDM"])
async def test_a_command_that_says_of_no_client_is_not_answered(cluster, what):
    asker = await cluster.client_on(0, said("s"))
    subject = f"$SYS.REQ.SERVER.{asker.info['server_id']}.{what}"
    for wrong in (b"", b" ", b"x", b"[]", b'{"cid": -1}', b'{"cid": "1"}', b'{"server_name": 7, "cid": true}'):
        assert await is_silent(asker, subject, wrong), wrong
    error = (await ask(asker, subject, {"server_name": 7, "cid": 99}))["error"]
    assert error["code"] == 400
    assert error["description"].endswith("struct field EventFilterOptions.server_name of type string")


@LATER
async def test_a_client_is_told_to_go_elsewhere(cluster):
    asker = await cluster.client_on(0, said("s"))
    client = await cluster.client_on(1, said("a", protocol=1))
    assert list(
        await ask(asker, f"$SYS.REQ.SERVER.{asker.info['server_id']}.LDM", {"cid": client.info["client_id"]})
    ) == ["server"]
    while not orjson.loads((await client.read_line()).removeprefix(b"INFO ")).get("ldm"):
        assert is_newer(cluster)  # it says before what the client logged in as
    await client.talk("PING\r\n", expect="PONG\r\n")


@LATER
async def test_who_reads_no_other_info_cannot_be_told_to_go(cluster):
    asker = await cluster.client_on(0, said("s"))
    subject = f"$SYS.REQ.SERVER.{asker.info['server_id']}.LDM"
    for protocol, says, hears in ((0, "PING\r\n", "PONG\r\n"), (1, "", "+OK\r\n")):  # (the second has had no PONG)
        client = await cluster.raw_on(1)
        await client.send(f"CONNECT {orjson.dumps(said('a', protocol=protocol, verbose=not says)).decode()}\r\n{says}")
        await client.expect(hears)
        error = (await ask(asker, subject, {"cid": client.info["client_id"]}))["error"]
        assert (error["code"], error["description"].split(" or ")[0]) == (500, "client does not support Lame Duck Mode")
        if says:
            await client.expect_quiet()


async def test_the_number_of_connections_of_an_account_is_told_whichever_servers_are_meant(cluster):
    await cluster.client_on(0, said("a"))
    asker = await cluster.client_on(0, said("s"))
    for body in ({"server_name": "nobody"}, {"host": "nowhere", "exact_match": True}, {"tags": ["none"]}):
        assert (await ask(asker, "$SYS.REQ.ACCOUNT.A.CONNS", body))["acc"] == "A"
    subject = "$SYS.REQ.ACCOUNT.A.CONNS"
    await asker.send(f"SUB malformed 1\r\nPUB {subject} malformed 2\r\n[]\r\nPUB {subject} malformed 1\r\nx\r\n")
    assert (await ask(asker, subject))["acc"] == "A"
    assert not asker.inbox


async def test_the_number_of_connections_is_not_told_of_an_account_without_clients_or_that_the_body_does_not_name(
    cluster,
):
    await cluster.client_on(0, said("a"))
    asker = await cluster.client_on(0, said("s"))
    assert await is_silent(asker, "$SYS.REQ.ACCOUNT.$G.CONNS")
    for other in ("B", ""):
        assert await is_silent(asker, "$SYS.REQ.ACCOUNT.A.CONNS", {"acc": other})
    for body in ({"acc": "A"}, {"acc": "A", "server_name": 7}, {"acc": None}):
        assert (await ask(asker, "$SYS.REQ.ACCOUNT.A.CONNS", body))["acc"] == "A"


async def test_connections_in_a_state_that_there_is_not_are_none(cluster):
    asker = await cluster.client_on(0, said("s"))
    for state in (-1, 3):
        page = (await ask(asker, "$SYS.REQ.SERVER.PING.CONNZ", {"state": state, "limit": 2, "offset": 1}))["data"]
        counts = [page[key] for key in ("num_connections", "total", "offset", "limit", "connections")]
        assert counts == [0, 0, 1, 2, []]


async def test_the_one_client_that_is_asked_for_is_on_the_first_page(cluster):
    asker = await cluster.client_on(0, said("s"))
    for cid in (asker.info["client_id"], 4_000_000):
        for offset in (0, 1, 7):
            page = (await ask(asker, "$SYS.REQ.SERVER.PING.CONNZ", {"cid": cid, "offset": offset, "limit": 5}))["data"]
            counts = [page[key] for key in ("num_connections", "offset", "limit")]
            assert counts == [int(cid < 4_000_000 and not offset), offset, 1]


# Options that 2.9 does not know, and so ignores, whatever their values.
NEWER_OPTIONS = {
    "VARZ": ["exact_match"],
    "CONNZ": ["exact_match"],
    "GATEWAYZ": ["subscriptions", "subscriptions_detail"],
    "JSZ": ["raft", "stream_leader_only"],
    "HEALTHZ": ["account", "stream", "consumer", "details", "js-enabled", "js-meta-only"],
}


@pytest.mark.parametrize("what", NEWER_OPTIONS)
async def test_options_are_those_of_the_version(cluster, kind, what):
    asker = await cluster.client_on(0, said("s"))
    for option in NEWER_OPTIONS[what]:
        answer = await ask(asker, f"$SYS.REQ.SERVER.PING.{what}", {option: {}})
        is_known = "cannot unmarshal object" in answer.get("error", {}).get("description", "")
        assert is_known is (kind.name in NEWER), option


async def test_a_part_of_the_name_is_enough_for_2_9_whatever_is_asked(cluster, kind):
    asker = await cluster.client_on(0, said("s"))
    part = {"server_name": asker.info["server_name"][:-1], "exact_match": True}
    assert await is_silent(asker, "$SYS.REQ.SERVER.PING.VARZ", part) is (kind.name in NEWER)


async def test_the_subject_says_whose_subscriptions_are_listed(cluster):
    client = await cluster.client_on(0, said("a"))
    await client.talk("SUB only.a 1\r\nPING\r\n", expect="PONG\r\n")
    asker = await cluster.client_on(0, said("s"))
    page = (await ask(asker, "$SYS.REQ.ACCOUNT.A.SUBSZ", {"account": "B", "test": "only.a"}))["data"]
    assert {row["account"] for row in page["subscriptions_list"]} == {"A"}


@pytest.mark.kinds(*NEWER)
@pytest.mark.parametrize(
    ("asked", "lacks"), [({"stream": "s"}, '"account"'), ({"account": "A", "consumer": "c"}, '"stream"')]
)
async def test_what_the_health_of_a_stream_is_asked_without_is_said(cluster, asked, lacks):
    asker = await cluster.client_on(0, said("s"))
    data = (await ask(asker, "$SYS.REQ.SERVER.PING.HEALTHZ", asked))["data"]
    assert (data["status"], data["status_code"]) == ("error", 400)
    assert data["error"].startswith(f"{lacks} must not be empty when checking ")
    data = (await ask(asker, "$SYS.REQ.SERVER.PING.HEALTHZ", {**asked, "details": True}))["data"]
    assert (data["status"], data["status_code"], "error" in data) == ("error", 400, False)
    (error,) = data["errors"]
    assert error["type"] == "BAD_REQUEST" and error["error"].startswith(f"{lacks} must not be empty when checking ")


@pytest.mark.kinds("gnatswarm-1", "gnatswarm-2", "gnatswarm-4", "nats-server")
async def test_as_2_9_nobody_answers_what_newer_servers_are_asked(cluster):
    asker = await cluster.client_on(0, said("s"))
    own_id = asker.info["server_id"]
    for what in ("PING.IDZ", f"{own_id}.IDZ", f"{own_id}.RELOAD"):
        assert await ask(asker, f"$SYS.REQ.SERVER.{what}") is None


@pytest.mark.kinds(*NEWER)
async def test_a_server_says_its_name(cluster):
    asker = await cluster.client_on(0, said("s"))
    own_id = asker.info["server_id"]
    for name in ("PING", own_id):
        answer = await ask(asker, f"$SYS.REQ.SERVER.{name}.IDZ")
        assert list(answer.items()) == [("name", "here"), ("host", "127.0.0.1"), ("id", own_id)]


@pytest.mark.kinds(*NEWER)
async def test_a_reload_can_be_asked_for(fresh_cluster):
    broker = fresh_cluster.broker
    asker = await fresh_cluster.client_on(0, said("s"))
    reload_subject = f"$SYS.REQ.SERVER.{asker.info['server_id']}.RELOAD"
    path = broker.directory / "broker.conf"
    path.write_text(CONFIG + "max_payload: 2222\n")
    assert list(await ask(asker, reload_subject)) == ["server"]
    await asyncio.to_thread(broker.log.wait_line, "Reloaded server configuration")
    path.write_text("nonsense: true\n")
    refused = await ask(asker, reload_subject)
    assert list(refused) == ["server", "error"] and refused["error"]["code"] == 500
    assert 'unknown field "nonsense"' in refused["error"]["description"]
    assert await ask(await fresh_cluster.client_on(1, said("a")), reload_subject) is None


# ---- what only several shards, and reloads, can show


def is_back(broker, died: int) -> bool:
    row = swarm.rows(broker)[0]
    return bool(row["phase"] == "ready" and row["pid"] != died)


@pytest.mark.kinds("gnatswarm-2", "gnatswarm-4")
async def test_answers_survive_dead_shards_and_scaling(fresh_cluster):
    broker = fresh_cluster.broker
    asker = await fresh_cluster.client_on(1, said("s"))
    before = await ask(asker, "$SYS.REQ.SERVER.PING")

    async def is_answered_once(times: int = 8) -> None:
        """Whichever member of the group is chosen: by chance each of them is in so many."""
        await asker.send("SUB _INBOX.> all\r\n")
        for _ in range(times):
            answer = await ask(asker, "$SYS.REQ.SERVER.PING.HEALTHZ")
            assert "data" in answer
        await asker.flush()
        assert len([frame for frame in asker.inbox if frame.sid == "all"]) == times
        asker.inbox.clear()
        await asker.send("UNSUB all\r\n")

    died = await swarm.kill(broker, 0)
    # What it had been given when it died is lost with it; its siblings have to have noticed.
    await asyncio.to_thread(wait_until, lambda: is_back(broker, died), 10.0)
    await is_answered_once()
    await swarm.scale(broker, broker.kind.shards + 1)
    await is_answered_once()
    later = await ask(asker, "$SYS.REQ.SERVER.PING")
    assert later["server"]["seq"] > before["server"]["seq"]
    await swarm.scale(broker, 2)
    await is_answered_once()


@OURS
async def test_a_broker_without_system_users_has_no_subscription_of_its_own(start_broker, cluster_of):
    for config in ("", CONFIG):
        broker = start_broker(config=config or None, args=["-m", "-1"])
        found = Pages.of(broker).json("/subsz?subs=1&test=$SYS.REQ.SERVER.PING").get("subscriptions_list", [])
        assert not found if not config else {one["qgroup"] for one in found} == {"_sys_"}


@OURS
async def test_subscriptions_of_the_brokers_own_are_counted_on_no_page(start_broker, cluster_of):
    broker = start_broker(config=CONFIG, args=["-m", "-1"])
    pages, cluster = Pages.of(broker), cluster_of(broker)
    await listening(cluster, 0, "$SYS.ACCOUNT.A.CONNECT")
    client = await cluster.client_on(1, said("a"))
    await client.talk("SUB one 1\r\nSUB two 2\r\nPING\r\n", expect="PONG\r\n")
    counted = pages.json("/subsz?subs=1&limit=10")
    listed = counted["subscriptions_list"]
    assert pages.json("/varz")["subscriptions"] == counted["num_subscriptions"] == counted["total"] == len(listed) == 3
    assert counted["num_inserts"] - counted["num_removes"] == 3
    for account, count in (("A", 2), ("SYS", 1)):
        detail = pages.json(f"/accountz?acc={account}")["account_detail"]
        (row,) = (one for one in pages.json("/accstatz")["account_statz"] if one["acc"] == account)
        assert detail["subscriptions"] == row.get("num_subscriptions", count) == count


@OURS
async def test_a_reload_gives_the_system_account_its_first_user_and_takes_it_away(start_broker, cluster_of):
    without = CONFIG.replace("{user: s, password: s}", "")
    broker = start_broker(config=without)
    cluster = cluster_of(broker)
    outsider = await cluster.client_on(0, said("a"))
    await reload(broker, CONFIG)
    asker = await listening(cluster, 0, "$SYS.ACCOUNT.A.CONNECT")
    assert "statsz" in await ask(asker, "$SYS.REQ.SERVER.PING")
    await cluster.client_on(1, said("a"))
    assert (await heard(asker, "$SYS.ACCOUNT.A.CONNECT"))["client"]["user"] == "a"
    await reload(broker, without)
    assert await asker.wait_closed() == b"-ERR 'Authorization Violation'\r\n"
    await outsider.talk("PING\r\n", expect="PONG\r\n")


@OURS
async def test_a_flood_of_questions_is_answered_or_refused_and_holds_nobody(cluster):
    """Of other accounts few are looked at at once; each question has exactly one answer."""
    flooder = await cluster.client_on(0, said("a"))
    count = 400
    await flooder.send(
        "SUB in 1\r\n" + "PUB $SYS.REQ.ACCOUNT.PING.CONNZ in 0\r\n\r\n" * count + "PUB $SYS.REQ.USER.INFO in 0\r\n\r\n"
    )
    answers = [orjson.loads(frame.payload) for frame in await flooder.messages(count + 1)]
    refused = [one for one in answers if one.get("error", {}).get("code") == 503]
    served = [one for one in answers if "connections" in one.get("data", {})]
    assert len(refused) + len(served) == count and served and refused
    await flooder.flush()
    assert not flooder.inbox
    too_long = await ask(flooder, "$SYS.REQ.ACCOUNT.PING.CONNZ", b" " * 70_000)
    assert too_long["error"]["code"] == 400


@OURS
async def test_the_system_s_queue_is_not_for_clients(cluster):
    client = await cluster.client_on(0, said("s"))
    await client.talk(
        "SUB $SYS.REQ.> _sys_ 1\r\nPING\r\n",
        expect='-ERR \'Permissions Violation for Subscription to "$SYS.REQ.>" using queue "_sys_"\'\r\nPONG\r\n',
    )


async def test_no_system_account_takes_nothing_from_one_that_has_users(start_broker, cluster_of):
    broker = start_broker(args=["-m", "-1"], config="no_system_account: true\n" + CONFIG)
    cluster = cluster_of(broker)
    for shard in range(broker.kind.shards):
        client = await cluster.client_on(shard, said("s"))
        check_server((await ask(client, "$SYS.REQ.SERVER.PING"))["server"])
    assert Pages.of(broker).json("/varz")["system_account"] == "SYS"


async def test_no_system_account_without_users_shows_on_the_pages_of_nats_server_alone(start_broker):
    broker = start_broker(args=["-m", "-1"], config="no_system_account: true\n")
    named = {} if broker.kind.is_oracle else {"system_account": "$SYS"}
    page = Pages.of(broker).json("/varz")
    assert {key: value for key, value in page.items() if key == "system_account"} == named
