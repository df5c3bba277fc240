"""The monitoring pages have the real server's fields, types, formats, order and errors, seen side by side with it.

The same clients do the same on both; then every page is asked of both. What is ours alone, and what the real server has
and we do not, stands in two tables with the reasons.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import re
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest
import pytest_asyncio

from tests.support.pages import Pages
from tests.support.required import require
from tests.support.servers import HOST, KINDS, Broker, BrokerUnavailable, oracle_is_required
from tests.support.wire import Client, Cluster

pytestmark = pytest.mark.asyncio(loop_scope="module")

# Fields of ours that the real server has not: which version of us it is, and the shard.
OURS = {"gnatswarm", "shards", "shard", "denied_msgs", "denied_subscriptions"}
# The real server's system account exports services to every account; we have no such services.
MISSING = {"imports", "exports"}
# Of 2.15: its commit, its switches and waits of JetStream.
MISSING |= {"git_commit", "feature_flags", "disk_io_wait_stats"}
# Links of 2.15's root page that lead to Go's variables and to JetStream's Raft groups.
MISSING_LINKS = {"debug", "raftz"}

PAIRS = (("nats-server", "gnatswarm-2"), ("nats-server-2.15", "gnatswarm-2-as-2.15"))

FORMATS = (
    ("time", re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?Z")),
    ("age", re.compile(r"(\d+y)?(\d+d)?(\d+h)?(\d+m)?\d+s")),
    ("duration", re.compile(r"\d+(\.\d+)?(µs|ms|s)")),
    ("address", re.compile(r"\d+\.\d+\.\d+\.\d+")),
    ("id", re.compile(r"N[A-Z2-7]{55}")),
)


class Side(NamedTuple):
    """One of the two brokers, with the same things done to it."""

    broker: Broker
    pages: Pages


async def scenario(broker: Broker, cluster: Cluster) -> None:
    """Four open connections that differ in everything a page can be sorted by, and two that have ended."""
    about = {"lang": "go", "version": "1.31.0", "headers": True}
    alpha = await cluster.client({"name": "alpha", **about})
    await alpha.send("SUB big.* 1\r\nSUB bar q 2\r\nSUB z 3\r\nUNSUB 3 5\r\n")
    await alpha.flush()
    beta = await cluster.client({"name": "beta"})
    await beta.send("SUB small 1\r\n")
    await beta.flush()
    gamma = await cluster.client({"name": "gamma"})
    delta = await cluster.client({"name": "delta"})
    await delta.send("SUB q1 1\r\nSUB q2 2\r\nSUB q3 3\r\nSUB q4 4\r\n")
    await delta.flush()
    await gamma.talk("PUB big.one 5\r\nhello\r\nPING\r\n", expect_last="PONG\r\n")
    await beta.talk(f"PUB small 100\r\n{'x' * 100}\r\nPUB small 1\r\nx\r\nPING\r\n", expect_last="PONG\r\n")
    await alpha.talk("PUB q1 1\r\nx\r\nPUB q1 1\r\nx\r\nPUB q1 1\r\nx\r\nPING\r\n", expect_last="PONG\r\n")
    for client, count in ((alpha, 1), (beta, 2), (delta, 3)):
        await client.messages(count)
    for name, text in (("first", "SUB gone 1\r\nSUB gone.too q 2\r\n"), ("second", "PUB nowhere 2\r\nhi\r\n")):
        leaver = await Client.connect(broker.port, {"verbose": False, "name": name})
        await leaver.send(text)
        await leaver.flush()
        leaver.shut_writing()
        await leaver.wait_closed()
        leaver.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=PAIRS, ids=lambda pair: pair[0])
async def sides(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Side, Side]]:
    """The real server and us."""
    require(KINDS[request.param[0]])
    found, clusters = [], []
    for kind in request.param:
        broker = Broker(KINDS[kind], args=["-m", "-1"]).start()
        clusters.append(Cluster(broker))
        found.append(Side(broker, Pages.of(broker)))
    try:
        for side, cluster in zip(found, clusters, strict=True):
            await scenario(side.broker, cluster)
            await side.pages.wait("/connz?state=closed", lambda page: page["total"] == 2)
        yield found[0], found[1]
    finally:
        for side, cluster in zip(found, clusters, strict=True):
            cluster.close()
            side.broker.stop()


def shape(value: Any) -> Any:
    """A document without its values: names in order, types, and the formats of texts."""
    if isinstance(value, dict):
        shapes = {name: shape(inner) for name, inner in value.items() if name not in OURS | MISSING}
        # A round trip that is not known yet is 0s, which could be either.
        return shapes | ({"rtt": "duration"} if shapes.get("rtt") in ("age", "duration") else {})
    if isinstance(value, list):
        merged: dict[str, Any] = {}
        for item in value:
            if isinstance(item, dict):
                merged |= shape(item)
            else:
                return [shape(item)]
        return [merged] if merged else []
    if isinstance(value, str):
        return next((name for name, pattern in FORMATS if pattern.fullmatch(value)), "text")
    # Go writes whole floats without a point.
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__


def names(value: Any) -> Any:
    """The names of a document's members, in order. Lists of subscriptions have none on the real server."""
    if isinstance(value, dict):
        left_out = OURS | MISSING | {"subscriptions_list", "subscriptions_list_detail"}
        return [(name, names(inner)) for name, inner in value.items() if name not in left_out]
    return [names(item) for item in value[:1]] if isinstance(value, list) else None


def without_counts(page: dict[str, Any]) -> dict[str, Any]:
    """Which pages were asked for differs."""
    return {name: 0 if name == "http_req_stats" else inner for name, inner in page.items()}


SHAPES = (
    "/varz",
    "/connz",
    "/connz?subs=1",
    "/connz?subs=detail",
    "/connz?auth=1",
    # Once the real server was asked for closed connections in detail it shows them so on every page: that comes last.
    "/connz?state=closed",
    "/connz?state=all&limit=100",
    "/connz?state=all&subs=true",
    "/connz?state=closed&subs=detail",
    "/connz?limit=1&offset=1",
    "/connz?offset=100",
    "/connz?limit=-5",
    "/connz?limit=",
    "/connz?cid=4000000",
    "/connz?cid=4000000&offset=3&limit=0",
    "/connz?user=nobody",
    "/connz?acc=$G",
    "/connz?acc=none",
    "/routez",
    "/routez?subs=1",
    "/subsz",
    "/subscriptionsz",
    "/subsz?subs=1",
    "/subsz?subs=1&test=big.one",
    "/subsz?subs=1&acc=$G&limit=100",
    "/subsz?subs=1&acc=none",
    "/subsz?subs=1&offset=100000",
    "/accountz",
    "/accountz?acc=$G",
    "/accstatz",
    "/accstatz?unused=1",
    "/leafz",
    "/gatewayz",
    "/jsz",
    "/healthz",
    "/healthz?js-enabled=1",
)


@pytest.mark.parametrize("path", SHAPES)
async def test_a_page_has_the_real_servers_shape(sides, path):
    theirs, ours = (side.pages.get(path) for side in sides)
    assert (ours.status, ours.content_type) == (theirs.status, theirs.content_type)
    document = theirs.json
    our_shape, their_shape = shape(without_counts(ours.json)), shape(without_counts(document))
    assert our_shape == their_shape, f"{our_shape}\n{their_shape}"
    assert names(without_counts(ours.json)) == names(without_counts(document))


ERRORS = (
    "/connz?sort=bogus",
    "/connz?sort=stop",
    "/connz?sort=reason",
    "/connz?sort=stop&state=all",
    "/connz?limit=x",
    "/connz?limit=1.5",
    "/connz?limit=99999999999999999999",
    "/connz?offset=1_0",
    "/connz?cid=x",
    "/connz?cid=-1",
    "/connz?cid=99999999999999999999",
    "/connz?state=bogus",
    "/connz?subs=7",
    "/connz?auth=zz",
    "/subsz?test=foo..",
    "/subsz?test=foo.*",
    "/subsz?test=%3E",
    "/subsz?subs=maybe",
    "/subsz?subs=detail",
    "/gatewayz?accs=x",
    "/accountz?acc=nope",
    "/nope",
    "/varz/",
    "/subsz?test=a..b",
    "/jsz?accounts=x",
    "/jsz?streams=x",
    "/jsz?consumers=x",
    "/jsz?config=x",
    "/jsz?offset=x",
    "/jsz?limit=x",
    "/jsz?leader-only=x",
    "/jsz?leader-only=true",
    "/healthz?js-enabled=x",
    "/healthz?js-enabled-only=x",
    "/healthz?js-server-only=x",
    "/healthz?js-meta-only=x",
    "/healthz?details=x",
    "/healthz?stream=x",
    "/healthz?stream=x&details=1",
    "/healthz?account=x&consumer=x&details=true",
    "/healthz?consumer=x",
    "/healthz?account=x&stream=y&consumer=z",
    "/healthz?js-enabled-only=1&js-server-only=1",
)
# A field that is not percent-encoded as it should be is left out, and so is one with a semicolon.
LEFT_OUT = ("state=%zz", "limit=%zz", "limit=%z", "sort=%", "state=closed;x", "%zz=1", "a;b=1")
CLEANED = ("//connz?limit=1&x=%22", "/./connz", "/a/../connz", "//", "/connz//", "/../", "//a%20b", '//a<b"', "///\\a")


@pytest.mark.parametrize("path", ERRORS)
async def test_an_error_is_the_real_servers_to_the_letter(sides, path):
    theirs, ours = (side.pages.get(path) for side in sides)
    assert (ours.status, ours.text.strip(), ours.content_type) == (
        theirs.status,
        theirs.text.strip(),
        theirs.content_type,
    )


@pytest.mark.parametrize("field", ["subs=x", "subs=detail"])
async def test_a_field_of_the_page_of_gateways_is_refused_as_by_the_real_server(sides, field):
    theirs, ours = (side.pages.get(f"/gatewayz?{field}") for side in sides)
    assert ours.status == theirs.status
    assert theirs.status == 200 or ours.text == theirs.text


@pytest.mark.parametrize("state", ["open", "closed"])
async def test_no_client_is_one_of_mqtt(sides, state):
    theirs, ours = (side.pages.json(f"/connz?mqtt_client=alpha&state={state}") for side in sides)
    kept = ("num_connections", "total", "connections")
    assert [ours[key] for key in kept] == [theirs[key] for key in kept]


@pytest.mark.parametrize("field", LEFT_OUT)
async def test_a_field_that_is_none_is_left_out(sides, field):
    for side in sides:
        page = await asyncio.to_thread(side.pages.json, f"/connz?{field}&offset=1")
        assert (page["offset"], page["limit"], page["total"], page["num_connections"]) == (1, 1024, 4, 3)


@pytest.mark.parametrize("test", ["%00", "a%20b", "%ff", "a%09", "big.%00"])
async def test_a_subject_with_any_characters_may_be_tested(sides, test):
    for side in sides:
        page = await asyncio.to_thread(side.pages.get, f"/subsz?subs=1&test={test}")
        found = [one["subject"] for one in page.json.get("subscriptions_list") or () if one["account"] == "$G"]
        assert (page.status, found) == (200, ["big.*"] if "big" in test else [])


@pytest.mark.parametrize("path", CLEANED)
async def test_a_path_with_empty_parts_leads_to_the_page(sides, path):
    answers = []
    for side in sides:
        connection = http.client.HTTPConnection(HOST, side.pages.port, timeout=30)
        connection.putrequest("GET", path)
        connection.endheaders()
        response = await asyncio.to_thread(connection.getresponse)
        headers = (response.getheader("location"), response.getheader("content-type"))
        answers.append((response.status, *headers, response.read()))
        connection.close()
    theirs, ours = answers
    assert ours == theirs
    assert ours[0] in (301, 307)


# By what our scenario makes differ on both sides; ties are in no order on the real server.
OPEN_SORTS = ("cid", "start", "subs", "msgs_to", "bytes_to", "bytes_from", "last", "idle", "uptime")
CLOSED_SORTS = ("cid", "start", "stop", "subs", "bytes_from", "uptime")


@pytest.mark.parametrize(
    ("sort", "state"), [*((s, "open") for s in OPEN_SORTS), *((s, "closed") for s in CLOSED_SORTS)]
)
async def test_connections_are_sorted_as_on_the_real_server(sides, sort, state):
    found = []
    for side in sides:
        page = side.pages.json(f"/connz?sort={sort}&state={state}")
        found.append([connection["name"] for connection in page["connections"]])
    if sort in ("uptime", "bytes_from", "last", "idle"):
        # Whole seconds, or equal numbers: only the first, or nothing, is told apart.
        found = [[order[0]] if sort == "bytes_from" else sorted(order) for order in found]
    assert found[0] == found[1]


@pytest.mark.parametrize("path", ["/varz", "/connz?limit=1", "/subsz", "/healthz"])
async def test_jsonp_wraps_the_same_way(sides, path):
    separator = "&" if "?" in path else "?"
    for side in sides:
        page = side.pages.get(f"{path}{separator}callback=a.b")
        assert page.status == 200
        if path != "/healthz":
            if side.broker.kind.compatibility == "2.15":  # there it is no more
                assert page.content_type == "application/json" and page.json
                continue
            assert page.content_type == "application/javascript"
            assert re.fullmatch(r"a\.b\(\{.*\}\)", page.text, re.DOTALL)


async def test_numbers_are_the_same_on_both_sides(sides):
    counted = ("connections", "total_connections", "in_msgs", "in_bytes", "out_msgs", "out_bytes", "slow_consumers")
    theirs, ours = [
        await side.pages.wait("/varz", lambda page: (page["in_msgs"], page["out_msgs"]) == (7, 6)) for side in sides
    ]
    assert {name: ours[name] for name in counted} == {name: theirs[name] for name in counted}
    per_connection = ("name", "in_msgs", "out_msgs", "in_bytes", "out_bytes", "subscriptions", "lang", "version")
    lists = []
    for side in sides:
        page = side.pages.json("/connz?state=all&subs=detail")
        lists.append(
            [
                {name: connection.get(name) for name in per_connection}
                | {
                    "subs": sorted(
                        (sub["subject"], sub.get("qgroup"), sub["sid"], sub["msgs"], sub.get("max"))
                        for sub in connection.get("subscriptions_list_detail", [])
                    )
                }
                for connection in page["connections"]
            ]
        )
    assert lists[0] == lists[1]


async def test_the_root_page_links_to_what_the_real_servers_does(sides):
    theirs, ours = (set(re.findall(r"<a href=\./(\w+)", side.pages.get("/").text)) for side in sides)
    assert theirs - MISSING_LINKS <= ours


async def test_head_has_no_body(sides):
    for side in sides:
        page = await asyncio.to_thread(side.pages.get, "/varz", "HEAD")
        assert (page.status, page.body) == (200, b"")


RULES = """
accounts {
  A {
    users: [{user: a, password: a}]
    exports: [
      {service: "svc.*", response: stream}
      {service: slow, accounts: [B], latency: {sampling: 50%, subject: "late.a"}}
      {service: "also.*", latency: {sampling: headers, subject: "late.b"}}
      {stream: "str.>"}
    ]
    mappings: { "m.*": "n.$1" }
  }
  B {
    users: [{user: b, password: b}]
    imports: [
      {service: {account: A, subject: "svc.*"}, to: "of.$1"}
      {service: {account: A, subject: slow}, to: renamed}
      {service: {account: A, subject: "also.x"}}
      {stream: {account: A, subject: "str.>"}, prefix: from}
    ]
  }
  SYS { users: [{user: s, password: s}] }
}
system_account: SYS
"""


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair[0])
async def test_exports_imports_and_mappings_of_an_account_are_shown_as_there(pair):
    found = []
    for name in pair:
        try:
            broker = Broker(KINDS[name], args=["-m", "-1"], config=RULES)
            with broker:
                pages = Pages.of(broker)
                details = [
                    (await asyncio.to_thread(pages.json, f"/accountz?acc={one}"))["account_detail"] for one in "AB"
                ]
        except BrokerUnavailable as error:
            if not oracle_is_required():
                pytest.skip(str(error))
            raise
        found.append([_rules(detail) for detail in details])
    assert found[1] == found[0]


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair[0])
async def test_the_replies_that_an_account_owes_are_shown_as_there(pair):
    found = []
    for name in pair:
        require(KINDS[name])
        with Broker(KINDS[name], args=["-m", "-1"], config=RULES) as broker:
            cluster = Cluster(broker)
            responder = await cluster.client_on(0, {"user": "a", "pass": "a", "headers": True})
            await responder.talk("SUB svc.1 1\r\nSUB also.x 2\r\nPING\r\n", expect="PONG\r\n")
            header = "NATS/1.0\r\nUber-Trace-Id: 1:2:3:1\r\nA: b\r\n\r\n"
            asker = await cluster.client_on(1, {"user": "b", "pass": "b", "headers": True})
            await asker.send(
                f"SUB in.* 1\r\nPUB of.1 in.1 0\r\n\r\nHPUB also.x in.2 {len(header)} {len(header)}\r\n{header}\r\n"
            )
            await asker.flush()
            made = {message.subject: message.reply for message in await responder.messages(2)}
            replies = Pages.of(broker).json("/accountz?acc=A")["account_detail"]["responses"]
            assert replies.keys() == {*made.values()}
            text = json.dumps([replies[made[subject]] for subject in ("svc.1", "also.x")])
            for subject, reply in made.items():
                text = text.replace(reply, f"made for {subject}")
            found.append(text)
            cluster.close()
    assert found[1] == found[0]


def _rules(detail: dict[str, Any]) -> dict[str, list[Any]]:
    """What was configured, in no order; without what the system account offers to all."""
    rules: dict[str, list[Any]] = {"mappings": [*detail.get("mappings", {}).items()]}
    for kind in ("exports", "imports"):
        own = [rule for rule in detail.get(kind, ()) if rule.get("account") != "SYS"]
        rules[kind] = sorted(own, key=lambda rule: str(rule["subject"]))
    return rules
