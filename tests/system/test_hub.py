"""A hub of leaf nodes: what clients of a gnatswarm and of its leaf nodes may expect of each other.

Leaf nodes are both versions of nats-server, and a gnatswarm. The brokers of most tests are shared: a test has subjects
of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import urllib.request
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import bcrypt
import pytest

from gnatswarm.shards.boundary.rows import MOST_LISTED_BYTES
from gnatswarm.shards.gateway.leaf import LASTED_S
from tests.support.asking import ask
from tests.support.authority import Authority
from tests.support.leaves import (
    Net,
    check_no_responders,
    check_request,
    hub_port,
    know,
    payloads,
    subscribed,
)
from tests.support.servers import KINDS, Broker, BrokerUnavailable
from tests.support.turns import until
from tests.support.wire import Client, Frame
from tests.system.test_cluster import cluster_config, route_port

LEAVES = ("nats-server", "nats-server-2.15", "gnatswarm-1")
ACCEPTED = r"Leafnode connection created"

HUB = """server_name: hub
leafnodes { listen: "127.0.0.1:-1" }
http: "127.0.0.1:-1"
debug: true
accounts {
    A { users [ {user: a, password: p}
                {user: some, password: p, permissions: {publish: [out.>], subscribe: {allow: [in.>], deny: in.no}}}
                {user: half, password: p, permissions: {publish: {deny: [half.no, half.no.>]}}} ]
        exports [ {service: "svc.>"} ] }
    B { users [ {user: b, password: p} ]
        imports [ {service: {account: A, subject: "svc.>"}, to: "of.a.>"} ]
        mappings { old.x: new.x } }
}
"""

Start = Callable[..., Broker]


def starter(started: list[Broker]) -> Start:
    def begin(kind: str, config: str) -> Broker:
        broker = Broker(KINDS[kind], config=config + "\nstats: false\n" * kind.startswith("gnat"))
        started.append(broker)
        try:
            broker.start()
        except BrokerUnavailable as error:
            pytest.skip(str(error))
        return broker

    return begin


def end(started: list[Broker]) -> None:
    for broker in started:
        broker.kill()
        print(f"the log of {broker.kind}:", broker.log.text[-6000:], sep="\n")


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts brokers that end with the test: `start(kind, config)`."""
    started: list[Broker] = []
    yield starter(started)
    end(started)


@pytest.fixture
async def net() -> AsyncIterator[Net]:
    found = Net()
    yield found
    for client in found.all:
        client.close()


def leaf_config(port: int, login: str = "a:p", remote: str = "", more: str = "") -> str:
    at = f"{login}@" if login else ""
    return (
        f"server_name: leaf{uuid.uuid4().hex[:6]}\nleafnodes {{ reconnect: 1, remotes [ "
        f'{{ url: "nats://{at}127.0.0.1:{port}"\n{remote} }} ] }}\n{more}'
    )


class Tree:
    """A hub, a leaf node of each kind for the account A, and one for B."""

    def __init__(self, hub: Broker, leaves: dict[str, Broker], of_b: Broker) -> None:
        self.hub = hub
        self.leaves = leaves
        self.of_b = of_b


@pytest.fixture(scope="module")
def tree() -> Iterator[Tree]:
    started: list[Broker] = []
    start = starter(started)
    hub = start("gnatswarm-2", HUB)
    leaves = {kind: start(kind, leaf_config(hub_port(hub))) for kind in LEAVES}
    yield Tree(hub, leaves, start("nats-server", leaf_config(hub_port(hub), "b:p")))
    end(started)


@pytest.fixture(params=LEAVES)
def leaf(request: pytest.FixtureRequest, tree: Tree) -> Broker:
    return tree.leaves[str(request.param)]


A = {"user": "a", "pass": "p"}
B = {"user": "b", "pass": "p"}


async def test_messages_cross_once_in_order_and_whole(tree: Tree, leaf: Broker, net: Net) -> None:
    at_hub, other, at_leaf = await net.client(tree.hub, **A), await net.client(tree.hub, **A), await net.client(leaf)
    await subscribed(at_leaf, "down.* 1", "down.> 2")
    await subscribed(at_hub, "up.* 1", "up.> 2")
    await subscribed(other, "up.x 3")
    await know(at_hub, at_leaf)
    await know(at_leaf, at_hub)
    await know(at_leaf, other)
    many = 3000
    await at_hub.send("".join(f"PUB down.x {len(str(n))}\r\n{n}\r\n" for n in range(many)))
    await at_leaf.send("".join(f"PUB up.x {len(str(n))}\r\n{n}\r\n" for n in range(many)))
    sent = [b"%d" % n for n in range(many)]
    assert await payloads(other, many) == sent
    for client in (at_leaf, at_hub):
        frames = await client.messages(2 * many, 20)
        for sid in ("1", "2"):
            assert [frame.payload for frame in frames if frame.sid == sid] == sent
    body = b"x" * 900_000
    for here, there, subject in ((at_hub, at_leaf, "down.big"), (at_leaf, other, "up.x")):
        await here.send(b"HPUB %s back 18 %d\r\nNATS/1.0\r\na: b\r\n\r\n" % (subject.encode(), 18 + len(body)))
        await here.send(body + b"\r\n")
        frame = (await there.messages(1, 20))[0]
        assert (frame.reply, frame.headers, frame.payload) == ("back", b"NATS/1.0\r\na: b\r\n\r\n", body)


async def test_requests_are_answered_and_queue_groups_served(tree: Tree, leaf: Broker, net: Net) -> None:
    at_hub, at_leaf = await net.client(tree.hub, **A), await net.client(leaf)
    for asker, service in ((at_hub, at_leaf), (at_leaf, at_hub)):
        await check_request(asker, service, "ask", "workers")
    await check_no_responders(at_hub)


async def test_a_leaf_node_reaches_the_others_through_the_hub_and_no_other_account(tree: Tree, net: Net) -> None:
    clients = [await net.client(broker) for broker in tree.leaves.values()]
    stranger = await net.client(tree.hub, **B)
    await subscribed(stranger, "> 1")
    for client in clients:
        await subscribed(client, "all.> 1")
    for here in clients:
        for there in clients:
            if here is not there:
                await know(here, there)
    for number, here in enumerate(clients):
        await here.send(f"PUB all.{number} 0\r\n\r\n" * 50)
        for there in clients:
            assert {frame.subject for frame in await there.messages(50, 20)} == {f"all.{number}"}
    for client in clients:
        await client.expect_quiet()
    await stranger.expect_quiet()


async def test_a_leaf_node_uses_services_that_its_account_imports_and_its_mappings(tree: Tree, net: Net) -> None:
    leaf = tree.of_b
    asker, service, plain = await net.client(leaf), await net.client(tree.hub, **A), await net.client(tree.hub, **B)
    await subscribed(service, "svc.* 1")
    await subscribed(plain, "new.x 1")
    await subscribed(asker, "inbox 1")
    await know(asker, plain)
    await know(plain, asker)
    await asker.send("PUB of.a.time inbox 2\r\nhi\r\n")
    (request,) = await service.messages(1, 20)
    assert (request.subject, request.payload) == ("svc.time", b"hi") and request.reply.startswith("_R_.")
    await service.send(f"PUB {request.reply} 3\r\nyes\r\n")
    (answer,) = await asker.messages(1, 20)
    assert (answer.subject, answer.payload) == ("inbox", b"yes")
    await asker.send("PUB old.x 1\r\n1\r\n")
    (mapped,) = await plain.messages(1, 20)
    assert (mapped.subject, mapped.payload) == ("new.x", b"1")
    for client in (asker, service, plain):
        await client.expect_quiet()


SHARED = """
accounts {
    A { users [ {user: a, password: p} ], exports [ {service: svc} ] }
    B { users [ {user: b, password: p} ], imports [ {service: {account: A, subject: svc}, share: true} ] }
    C { users [ {user: c, password: p} ], imports [ {service: {account: A, subject: svc}} ] }
}
"""


@pytest.mark.parametrize("kind", ["gnatswarm-2", "gnatswarm-1-as-2.15", "nats-server", "nats-server-2.15"])
@pytest.mark.parametrize("way", ["hub", "leaf-node"])
async def test_a_service_sees_which_leaf_node_or_hub_asks_where_that_is_shared(
    start: Start, net: Net, kind: str, way: str
) -> None:
    """Its user and name, as those of a client that asks; else the account alone."""
    for user, shares in (("b", True), ("c", False)):
        if way == "hub":
            here = start(kind, f'server_name: here\nleafnodes {{ listen: "127.0.0.1:-1" }}\n{SHARED}')
            other = start("nats-server", leaf_config(hub_port(here), f"{user}:p"))
            cluster = ""
        else:
            other = start("nats-server", 'server_name: hub\nleafnodes { listen: "127.0.0.1:-1" }')
            remote = f"{{ url: 'nats://127.0.0.1:{hub_port(other)}', account: {user.upper()} }}"
            here = start(kind, f"server_name: here\nleafnodes {{ remotes [ {remote} ] }}\n{SHARED}")
            cluster = "here"
        service, near = await net.client(here, **A), await net.client(here, **{"user": user, "pass": "p"})
        asker = await net.client(other)
        await subscribed(service, "svc 1")
        await know(asker, near)
        await know(near, asker)
        await asker.send("PUB svc back 2\r\nhi\r\n")
        (request,) = await service.messages(1, 20)
        told = json.loads(re.findall(rb"Nats-Request-Info: (.*)\r\n", request.headers)[0])
        told.pop("rtt", None)
        assert told["acc"] == user.upper()
        if not shares:
            assert set(told) == {"acc"}
            continue
        assert told["kind"] == "Leafnode" and told["host"] == "127.0.0.1" and told["id"] > 0 and told["start"]
        assert told["server"] == other.log.wait_line(r"Name: +(\S+)")[1]
        assert (told.get("user"), told.get("ver")) == (("b", "2.9.10") if way == "hub" else (None, None))
        assert told.get("cluster", "") == cluster


# ---- a leaf node by hand


async def unanswered(client: Client, subject: str) -> list[Frame]:
    """The 503 to a request that nobody is there for; []: somebody is. The client has subscribed to "none"."""
    await client.send(f"PUB {subject} none 0\r\n\r\n")
    return [frame for frame in await client.flush() if frame.subject == "none"]


async def until_answered(client: Client, subject: str) -> None:
    """Wait until somebody elsewhere is known to want it."""
    await subscribed(client, "none 9")
    async with asyncio.timeout(20):
        while await unanswered(client, subject):
            pass


class Leaf:
    """A leaf node that says what it is told to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, info: dict[str, Any]) -> None:
        self.reader = reader
        self.writer = writer
        self.info = info

    def say(self, text: str | bytes) -> None:
        self.writer.write(text if isinstance(text, bytes) else text.encode())

    async def until(self, end: bytes) -> bytes:
        async with asyncio.timeout(30):
            return await self.reader.readuntil(end)

    async def rest(self) -> bytes:
        async with asyncio.timeout(30):
            found = b""
            try:
                while data := await self.reader.read(65536):
                    found += data
            except ConnectionError:
                pass
            return found


async def by_hand(port: int, connect: dict[str, Any] | None = None) -> Leaf:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
    line = await reader.readline()
    leaf = Leaf(reader, writer, json.loads(line[5:]))
    if connect is not None:
        leaf.say(f"CONNECT {json.dumps({'version': '2.9.10', 'headers': True, **connect})}\r\n")
    return leaf


async def test_a_leaf_node_s_errors_have_a_line_a_second(tree: Tree, net: Net) -> None:
    """Each had a line of its own: 50,000 in two seconds, in which the gateway served nobody else."""
    leaf = await by_hand(hub_port(tree.hub), {"name": "odd", "user": "some", "pass": "p"})
    await leaf.until(b"\n")
    leaf.say("-ERR 'odd'\r\n" * 5000 + "PING\r\n")
    await leaf.until(b"PONG\r\n")
    leaf.writer.close()
    assert 0 < tree.hub.log.text.count('Leafnode Error "odd"') < 100


async def test_the_hub_says_who_it_is_and_what_the_user_may_do(tree: Tree, net: Net) -> None:
    port = hub_port(tree.hub)
    leaf = await by_hand(port, {"name": "hand", "user": "some", "pass": "p"})
    assert leaf.info["leafnode_urls"] == [f"127.0.0.1:{port}"]
    assert leaf.info["client_id"] and leaf.info["nonce"] and leaf.info["info_on_connect"]
    second = json.loads((await leaf.until(b"\n"))[5:])
    assert (second["connect_info"], second["remote_account"]) == (True, "A")
    assert (second["export"], second["import"]) == ({"allow": ["out.>"]}, {"allow": ["in.>"], "deny": ["in.no"]})
    at_hub = await net.client(tree.hub, **A)
    # Of interest here it is told what it may publish, and of messages here sent what it may hear.
    await subscribed(at_hub, "other.x 1", "out.* 2", "*.y 3")
    leaf.say("LS+ >\r\nPING\r\n")
    told = await leaf.until(b"PONG\r\n")
    while b"LS+ *.y" not in told or b"LS+ out.*" not in told:
        told += await leaf.until(b"\n")
    assert b"other.x" not in told
    await until_answered(at_hub, "in.known")
    await at_hub.send("PUB in.no 0\r\n\r\nPUB away 0\r\n\r\nPUB in.yes 0\r\n\r\n")
    heard = await leaf.until(b"LMSG in.yes 0\r\n")
    assert b"LMSG in.no" not in heard and b"away" not in heard
    leaf.say("LMSG out.a 2\r\nhi\r\n")
    assert await payloads(at_hub, 1) == [b"hi"]
    leaf.say("LMSG other.x 2\r\nhi\r\n")
    assert b"-ERR 'Permissions Violation for Publish to \"other.x\"'" in await leaf.rest()
    await at_hub.expect_quiet()


SOME = {"name": "hand", "user": "some", "pass": "p"}
REFUSED: list[tuple[str, dict[str, Any] | None, bytes, bytes, str]] = [
    ("a client", {"lang": "go", "name": "x"}, b"", b"attempted to connect to leaf node port", ""),
    ("a gateway", {"gateway": "g"}, b"", b'Rejecting connection from gateway "g" on the leafnode port', ""),
    ("no credentials", {"name": "x"}, b"", b"Authorization Violation", 'authentication error - User ""'),
    ("wrong password", {"user": "a", "pass": "w"}, b"", b"Authorization Violation", 'authentication error - User "a"'),
    ("unknown user", {"user": "u", "pass": "p"}, b"", b"Authorization Violation", 'authentication error - User "u"'),
    ("a long cluster", SOME | {"cluster": 513 * "é"}, b"", b"remote leafnode has a cluster name of more", "more than"),
    ("a long name", SOME | {"name": 1025 * "e"}, b"", b"remote leafnode has a cluster name of more", "more than"),
    ("HTTP", None, b"GET / HTTP/1.1\r\n\r\n", b"Authorization Violation", 'authentication error - User ""'),
    ("interest first", None, b"LS+ a\r\n", b"Authorization Violation", 'authentication error - User ""'),
    ("message first", None, b"LMSG a 2\r\nhi\r\n", b"Authorization Violation", 'authentication error - User ""'),
    ("PING first", None, b"PING\r\n", b"Authorization Violation", 'authentication error - User ""'),
    ("PONG first", None, b"PONG\r\n", b"Authorization Violation", 'authentication error - User ""'),
    ("INFO first", None, b"INFO {}\r\n", b"Authorization Violation", 'authentication error - User ""'),
    ("an error first", None, b"-ERR 'x'\r\n", b"Authorization Violation", 'authentication error - User ""'),
    ("no JSON", None, b"CONNECT {]\r\n", b"", "CONNECT cannot be read"),
    ("deep JSON", None, b'CONNECT {"x":' + b"[" * 20_000 + b"\r\n", b"", "CONNECT cannot be read"),
    ("a long line", None, b"CONNECT " + b"x" * 300_000, b"Authorization Violation", "authentication error"),
    ("subscription", SOME, b"LS+ other\r\n", b'Permissions Violation for Subscription to "other"', "Subscription Viol"),
    ("garbage", SOME, b"garbage\r\n", b"Unknown Protocol Operation", "parser ERROR"),
    ("a queue without weight", SOME, b"LS+ in.a q\r\n", b"Unknown Protocol Operation", "parser ERROR"),
    ("a payload without end", SOME, b"LMSG out.a 2\r\nhihihi\r\n", b"Unknown Protocol Operation", "parser ERROR"),
    ("interest in nothing", SOME, b"LS+ \r\n", b"Unknown Protocol Operation", "parser ERROR"),
    ("a message without a size", SOME, b"LMSG out.a\r\n", b"Unknown Protocol Operation", "parser ERROR"),
    ("a header larger than all", SOME, b"HMSG out.a 9 2\r\nhi\r\n", b"Unknown Protocol Operation", "parser ERROR"),
    ("a route's interest", SOME, b"RS+ A in.a\r\n", b"Unknown Protocol Operation", "parser ERROR"),
    ("a line without end", SOME, b"LS+ " + b"x" * 300_000, b"Unknown Protocol Operation", "over the limit"),
    ("a payload over all bounds", SOME, b"LMSG out.a 99999999\r\n", b"Unknown Protocol Operation", "over the limit"),
    ("max_payload", SOME, b"LMSG out.a 2000000\r\n", b"Maximum Payload Violation", "maximum payload exceeded"),
    ("two CONNECT", SOME, b"CONNECT {}\r\n", b"Unexpected CONNECT", ""),
]


async def test_what_a_leaf_node_may_not_say_ends_its_connection_with_a_reason(tree: Tree, net: Net) -> None:
    client = await net.client(tree.hub, **A)
    for name, connect, words, answer, logged in REFUSED:
        lines = len(tree.hub.log.lines)
        leaf = await by_hand(hub_port(tree.hub), connect)
        leaf.say(words)
        said = await leaf.rest()
        assert (b"-ERR '" + answer) in said if answer else b"-ERR" not in said, name
        tree.hub.log.wait_line(r"Leafnode connection closed", start=lines)
        tree.hub.log.wait_line(re.escape(logged), start=lines)  # (the end may have been that of another test's)
    leaf = await by_hand(hub_port(tree.hub))
    assert b"-ERR 'Authentication Timeout'" in await leaf.rest()
    await subscribed(client, "own.* 1")
    await client.send("PUB own.x 0\r\n\r\n")
    assert await payloads(client, 1) == [b""]
    text = tree.hub.log.text
    assert "Traceback" not in text and not [line for line in text.splitlines() if "Gateway" in line and "exit" in line]


async def test_what_a_leaf_node_says_while_its_password_is_compared_waits_for_the_log_in(start: Start) -> None:
    hashed = bcrypt.hashpw(b"p", bcrypt.gensalt(4)).decode()
    words = f'leafnodes {{ listen: "127.0.0.1:-1", authorization {{ user: h, password: "{hashed}" }} }}\n'
    hub = start("gnatswarm-1", words)
    for password in ("p", "wrong", "p"):
        leaf = await by_hand(hub_port(hub))
        leaf.say(f'CONNECT {{"user":"h","pass":"{password}","name":"n"}}\r\nPING\r\nLS+ wanted\r\nPING\r\n')
        if password == "wrong":
            assert await leaf.rest() == b"-ERR 'Authorization Violation'\r\n"
        else:
            said = await leaf.until(b"PONG\r\n")
            assert said.startswith(b"INFO ") and b"connect_info" in said
            await leaf.until(b"PONG\r\n")
            leaf.writer.close()


@pytest.mark.parametrize("kind", ["gnatswarm-1-as-2.15", "nats-server-2.15"])
async def test_the_log_names_whom_a_refused_leaf_node_claimed_to_be(start: Start, kind: str) -> None:
    hub = start(kind, "leafnodes { listen: '127.0.0.1:-1' }\nauthorization { users [ {user: a, password: p} ] }\n")
    for claims, shown in (
        ({"user": "x", "pass": "y"}, ' - User "x"'),
        ({"user": "x", "auth_token": "t"}, ' - User "x"'),
        ({"nkey": "UABC", "sig": "x"}, ' - Nkey "UABC"'),
        ({"auth_token": "secret"}, ' - Token "[REDACTED]"'),
        ({"pass": "y"}, ""),
    ):
        lines = len(hub.log.lines)
        leaf = await by_hand(hub_port(hub), {"name": "hand", **claims})
        assert b"-ERR 'Authorization Violation'" in await leaf.rest()
        assert hub.log.wait_line("authentication error(.*)", start=lines)[1] == shown
    assert "secret" not in hub.log.text


@pytest.mark.parametrize(
    "claims",
    [{"user": "u" * 100_000}, {"nkey": "n" * 100_000, "sig": "x"}, {"gateway": "g" * 100_000}],
    ids=["user", "nkey", "gateway"],
)
async def test_whoever_is_refused_writes_no_long_line_in_the_log(start: Start, claims: dict[str, str]) -> None:
    hub = start(
        "gnatswarm-1",
        "leafnodes { listen: '127.0.0.1:-1' }\nauthorization { users [ {user: a, password: p} ] }\n",
    )
    leaf = await by_hand(hub_port(hub), {"name": "hand", **claims})
    assert b"-ERR" in await leaf.rest()
    line = hub.log.wait_line("(?:authentication error|Rejecting connection from gateway)(.*)")[1]
    assert len(line) < 1200
    assert next(iter(claims.values()))[:1000] in line


async def test_what_its_user_is_denied_to_publish_ends_a_leaf_node_s_connection(tree: Tree, net: Net) -> None:
    client = await net.client(tree.hub, **A)
    await subscribed(client, "half.> 1")
    for subject in ("half.no", "half.no.x"):
        leaf = await by_hand(hub_port(tree.hub), {"name": "half", "user": "half", "pass": "p"})
        leaf.say(f"LMSG half.yes 2\r\nhi\r\nLMSG {subject} 2\r\nno\r\n")
        assert f'Permissions Violation for Publish to "{subject}"'.encode() in await leaf.rest()
        assert await payloads(client, 1) == [b"hi"]
    await client.expect_quiet()


async def test_who_logs_in_as_the_hub_has_its_user_s_rights_and_no_more(tree: Tree, net: Net) -> None:
    at_hub = await net.client(tree.hub, **A)
    leaf = await by_hand(hub_port(tree.hub), {**SOME, "name": "rules", "is_hub": True})
    leaf.say("LS+ >\r\nLMSG out.ask secret.rules 2\r\nhi\r\nPING\r\n")
    await leaf.until(b"PONG\r\n")
    await until_answered(at_hub, "in.known.rules")
    await at_hub.send("PUB secret.rules 0\r\n\r\nPUB in.no 0\r\n\r\nPUB in.last.rules 0\r\n\r\n")
    heard = await leaf.until(b"LMSG in.last.rules 0\r\n")
    assert b"LMSG secret" not in heard and b"LMSG in.no" not in heard
    await subscribed(at_hub, "secret.rules 1", "out.rules 2")
    leaf.say("LS+ secret.rules\r\nLMSG secret.rules 2\r\nno\r\nLMSG out.rules 2\r\nhi\r\nPING\r\n")
    assert await payloads(at_hub, 1) == [b"hi"]
    assert b"-ERR" not in await leaf.until(b"PONG\r\n")  # a nats-server tells all its interest, and is not to blame
    await at_hub.expect_quiet()
    leaf.writer.close()


@pytest.mark.parametrize("kind", ["gnatswarm-1", "nats-server"])
async def test_a_hub_that_dials_is_sent_what_its_user_may_hear(start: Start, net: Net, kind: str) -> None:
    """Not with 2.15, which as such a hub ends the connection itself for what its user may hear."""
    port = start("gnatswarm-2", "server_name: port\n" + HUB.split("\n", 1)[1].replace("out.>", '"out.>", "probe.>"'))
    url = f"nats://some:p@127.0.0.1:{hub_port(port)}"
    hub = start(kind, f"server_name: dials\nleafnodes {{ remotes [ {{ url: '{url}', hub: true }} ] }}\n")
    inside, at_hub = await net.client(port, **A), await net.client(hub)
    await know(at_hub, inside)
    await subscribed(at_hub, "in.no 1", "in.yes 2", "secret 3")
    await subscribed(inside, "out.yes 1", "secret 2")
    await until_answered(inside, "in.yes")
    await inside.send("PUB in.no 0\r\n\r\nPUB secret 0\r\n\r\nPUB in.yes 4\r\nlast\r\n")
    async with asyncio.timeout(20):
        while not any(frame.payload == b"last" for frame in at_hub.inbox):
            await at_hub.flush()
    assert {frame.subject for frame in at_hub.inbox} == {"in.yes"}
    assert "Violation" not in port.log.text
    assert "Leafnode connection closed" not in port.log.text


async def test_a_leaf_node_is_not_sent_what_it_denies_itself(tree: Tree, net: Net) -> None:
    leaf = await by_hand(hub_port(tree.hub), {**SOME, "name": "denies", "deny_pub": ["in.own.>", "in..bad"]})
    leaf.say("LS+ in.>\r\nPING\r\n")
    await leaf.until(b"PONG\r\n")
    at_hub = await net.client(tree.hub, **A)
    await until_answered(at_hub, "in.known.denies")
    # What its user may not hear is denied besides.
    await at_hub.send("PUB in.own.x 0\r\n\r\nPUB in.no 0\r\n\r\nPUB in.last.denies 0\r\n\r\n")
    heard = await leaf.until(b"LMSG in.last.denies 0\r\n")
    assert b"in.own.x" not in heard and b"LMSG in.no" not in heard
    leaf.writer.close()


async def test_a_leaf_node_is_told_that_a_message_is_traced_no_further(start: Start, net: Net) -> None:
    hub = start("gnatswarm-2-as-2.15", HUB)
    leaf = await by_hand(hub_port(hub), {"name": "traced", "user": "a", "pass": "p"})
    leaf.say("LS+ traced\r\nPING\r\n")
    await leaf.until(b"PONG\r\n")
    at_hub = await net.client(hub, **A)
    await until_answered(at_hub, "traced")
    header = "NATS/1.0\r\nNats-Trace-Dest: documents\r\n\r\n"
    await at_hub.send(f"HPUB traced {len(header)} {len(header) + 3}\r\n{header}end\r\n")
    heard = await leaf.until(b"\r\n\r\nend\r\n")
    assert b"Nats-Trace-Dest: trace disabled\r\n" in heard and b"documents" not in heard
    leaf.writer.close()


async def test_what_a_leaf_node_says_is_traced_already_is_not(start: Start, net: Net) -> None:
    """Its header chose the subject of a document, without a right to publish there; or the message was for nobody.

    It was so on the second shard of a queue message, which the first one, whose member had just left, sent on to it.
    """
    hub = start("gnatswarm-2-as-2.15", HUB)
    leaf = await by_hand(hub_port(hub), {"name": "forges", "user": "half", "pass": "p"})
    members: dict[int, Client] = {}
    async with asyncio.timeout(20):
        while len(members) < 2:
            client = await net.client(hub, **A)
            members.setdefault(client.shard, client)
    goes, stays = members.values()
    hears = await net.client(hub, **A)
    await subscribed(hears, "half.no 1")
    await subscribed(stays, "job q 1")
    await until_answered(hears, "job")
    header = "NATS/1.0\r\nNats-Trace-Dest: half.no\r\nNats-Trace-Hop: 1\r\n%s\r\n"
    headers = header % "", header % "Nats-Trace-Only: true\r\n"
    n = 0
    for _ in range(20):
        await goes.send("SUB job q 1\r\nPING\r\n")
        await goes.flush()
        words = [f"HMSG job | q {len(one)} {len(one) + 1}\r\n{one}x\r\n" for one in headers * 50]
        leaf.say("".join(words) + "PING\r\n")
        await goes.send("UNSUB 1\r\nSUB job q 1\r\n" * 50 + "UNSUB 1\r\nPING\r\n")
        await leaf.until(b"PONG\r\n")
        await goes.flush()
        n += len(words)
    async with asyncio.timeout(20):
        while len(goes.inbox) + len(stays.inbox) < n:
            await asyncio.gather(stays.flush(), goes.flush())
    await hears.flush()
    assert not hears.inbox
    leaf.writer.close()


async def test_a_leaf_node_at_a_port_for_others_is_refused_and_harms_nobody(start: Start, net: Net) -> None:
    broker = start("gnatswarm-2", f"{HUB}cluster {{ name: c, listen: '127.0.0.1:-1' }}\n")
    client = await net.client(broker, **A)
    await subscribed(client, "own 1")
    route = int(broker.log.wait_line(r"Listening for route connections on \S*:(\d+)")[1])
    words = b'CONNECT {"version":"2.9.10","name":"leaf","cluster":"leaf","user":"a","pass":"p"}\r\nLS+ own\r\n'
    for port, answer in (
        (broker.port, b"-ERR 'Unknown Protocol Operation'"),
        (route, b'-ERR \'Rejecting connection, cluster name "leaf" does not match "c"\''),
    ):
        leaf = await by_hand(port)
        leaf.say(words)
        assert answer in await leaf.rest()
    # And a nats-server that dials them: it says so itself, and tries again.
    for port in (broker.port, route):
        lost = start("nats-server", leaf_config(port))
        lost.log.wait_line("wrong port|Leafnode connection closed", 20.0)
    await client.send("PUB own 2\r\nhi\r\n")
    assert await payloads(client, 1) == [b"hi"]
    assert "Traceback" not in broker.log.text


@pytest.mark.parametrize("hides", [False, True])
async def test_leaf_nodes_hear_of_the_port_s_address_unless_that_is_off(start: Start, *, hides: bool) -> None:
    config = f'leafnodes {{ listen: "127.0.0.1:-1", no_advertise: {str(hides).lower()} }}\n'
    hub = start("gnatswarm-1", config)
    leaf = await by_hand(hub_port(hub))
    assert leaf.info["leafnode_urls"] == ([] if hides else [f"127.0.0.1:{hub_port(hub)}"])
    leaf.writer.close()


@pytest.mark.parametrize(
    ("kind", "other"), [("gnatswarm-2", "nats-server"), ("nats-server", "gnatswarm-2"), ("gnatswarm-2", "gnatswarm-1")]
)
async def test_leaf_nodes_hear_of_other_members_ports(start: Start, kind: str, other: str) -> None:
    port = "leafnodes { listen: '127.0.0.1:-1' }\n"
    hub = start(kind, cluster_config("one", more=port))
    leaf = await by_hand(hub_port(hub), {"name": "hand"})
    member = start(other, cluster_config("two", (route_port(hub),), port))
    both, own = sorted(f"127.0.0.1:{hub_port(broker)}" for broker in (hub, member)), [f"127.0.0.1:{hub_port(hub)}"]

    async def hears(urls: list[str]) -> None:
        heard: list[str] | None = None
        while heard != urls:
            line = await leaf.until(b"\n")
            if line.startswith(b"INFO "):
                heard = sorted(json.loads(line[5:])["leafnode_urls"])

    await hears(both)
    late = await by_hand(hub_port(hub))
    assert sorted(late.info["leafnode_urls"]) == both
    member.kill()
    await hears(own)
    for one in (leaf, late):
        one.writer.close()


async def test_a_reload_of_services_is_told_to_leaf_nodes(start: Start) -> None:
    without = HUB.replace('imports [ {service: {account: A, subject: "svc.>"}, to: "of.a.>"} ]', "")
    assert without != HUB
    hub = start("gnatswarm-2", without)
    leaf = await by_hand(hub_port(hub), {"name": "hand", "user": "b", "pass": "p"})
    await leaf.until(b"LS+ old.x\r\n")
    assert hub.directory is not None
    for config, told in ((HUB, b"LS+ of.a.>\r\n"), (without, b"LS- of.a.>\r\n")):
        (hub.directory / "broker.conf").write_text(config + "stats: false\n")
        hub.send_signal(signal.SIGHUP)
        await leaf.until(told)
    leaf.writer.close()


async def test_the_next_connection_of_a_leaf_node_replaces_the_last_one(tree: Tree) -> None:
    words = {"name": "twin", "cluster": "twin", "user": "a", "pass": "p", "remote_account": "$G"}
    first = await by_hand(hub_port(tree.hub), words)
    await first.until(b"LS+")
    second = await by_hand(hub_port(tree.hub), words)
    assert b"-ERR 'Duplicate Remote LeafNode Connection'" in await first.rest()
    second.say("PING\r\n")
    await second.until(b"PONG\r\n")
    second.writer.close()


async def test_a_leaf_node_may_be_connected_to_two_accounts(tree: Tree) -> None:
    """Its remotes may be of one own account: that of this broker tells them apart."""
    words = {"name": "both", "cluster": "both", "pass": "p", "remote_account": "$G"}
    leaves = [await by_hand(hub_port(tree.hub), {**words, "user": user}) for user in ("a", "b")]
    for leaf, account in zip(leaves, (b"A", b"B"), strict=True):
        assert b'"remote_account":"%b"' % account in await leaf.until(b"LS+")
    for leaf in leaves:
        leaf.say("PING\r\n")
        assert b"-ERR" not in await leaf.until(b"PONG\r\n")
        leaf.writer.close()


@pytest.mark.parametrize("kind", ["gnatswarm-2", "nats-server", "nats-server-2.15"])
async def test_an_account_has_so_many_leaf_nodes_as_its_limits_say(start: Start, kind: str) -> None:
    accounts = (
        "A { limits { max_leafnodes: 1 }\n users [ {user: a, password: p} ] }\nB { users [ {user: b, password: p} ] }"
    )
    hub = start(kind, f'leafnodes {{ listen: "127.0.0.1:-1" }}\naccounts {{ {accounts} }}\n')

    async def leaf(name: str, user: str) -> Leaf:
        words = {"name": name, "cluster": name, "user": user, "pass": "p", "remote_account": "$G"}
        return await by_hand(hub_port(hub), words)

    first = await leaf("one", "a")
    await first.until(b"LS+")
    second = await leaf("two", "a")
    assert b"-ERR 'maximum account active connections exceeded'\r\n" in await second.rest()
    hub.log.wait_line("Leafnode connection closed: Maximum Account Connections Exceeded")
    other = await leaf("three", "b")
    await other.until(b"LS+")
    first.say("PING\r\n")
    await first.until(b"PONG\r\n")
    first.writer.close()
    await first.writer.wait_closed()
    hub.log.wait_line(rf"lid:{first.info['client_id']} - Leafnode connection closed")
    while True:  # (nats-server logs it before it counts it)
        third = await leaf("two", "a")
        try:
            await third.until(b"LS+")
            break
        except asyncio.IncompleteReadError:
            assert kind.startswith("nats-server")
    if kind == "gnatswarm-2":  # its next connection replaces this one: there are no more than before
        last, third = third, await leaf("two", "a")
        await third.until(b"LS+")
        assert b"-ERR 'Duplicate Remote LeafNode Connection'" in await last.rest()
    for one in (third, other):
        one.writer.close()


@pytest.mark.parametrize("kind", ["gnatswarm-1", "nats-server", "nats-server-2.15"])
@pytest.mark.parametrize("whose", ["broker", "account"])
async def test_a_leaf_node_tells_no_more_interest_than_max_subscriptions(start: Start, kind: str, whose: str) -> None:
    most = {"broker": ("max_subscriptions: 2", ""), "account": ("", "limits { max_subscriptions: 2 }")}[whose]
    hub = start(
        kind,
        f"{most[0]}\nleafnodes {{ listen: '127.0.0.1:-1' }}\n"
        f"accounts {{ A {{ users [ {{user: a, password: p}} ]\n {most[1]} }} }}\n",
    )
    leaf = await by_hand(hub_port(hub), {"name": "x", "user": "a", "pass": "p"})

    async def errors(*lines: str) -> int:
        leaf.say("".join(line + "\r\n" for line in (*lines, "PING")))
        return (await leaf.until(b"PONG\r\n")).count(b"-ERR 'maximum subscriptions exceeded'\r\n")

    assert await errors("LS+ a", "LS+ b") == 0
    assert await errors("LS+ c", "LS+ d q 1") == 2
    assert len(re.findall("lid:[0-9]+ - maximum subscriptions exceeded", hub.log.text)) == 1  # in two seconds
    assert await errors("LS- a", "LS+ c") == 0
    assert await errors("LS+ a") == 1
    leaf.writer.close()


async def test_a_leaf_node_that_takes_no_more_interest_fills_no_log(start: Start) -> None:
    hub = start("gnatswarm-1", HUB)
    leaf = await by_hand(hub_port(hub), SOME)
    leaf.say("-ERR 'maximum subscriptions exceeded'\r\n" * 5 + "PING\r\n")
    await leaf.until(b"PONG\r\n")
    assert hub.log.text.count("maximum subscriptions exceeded") == 1
    leaf.writer.close()


async def test_so_many_silent_connections_may_wait_and_leaf_nodes_log_in_beside_them(start: Start) -> None:
    """A flood of connections that say nothing takes no more descriptors than so many, and fills no log."""
    listen = 'listen: "127.0.0.1:-1"'
    hub = start("gnatswarm-1", HUB.replace(listen, f"{listen}, authorization {{ timeout: 60 }}"))
    words = {"cluster": "one", "user": "a", "pass": "p", "remote_account": "$G"}
    first = await by_hand(hub_port(hub), {"name": "one", **words})
    await first.until(b"LS+")
    silent = [await asyncio.open_connection("127.0.0.1", hub_port(hub)) for _ in range(300)]
    other = await by_hand(hub_port(hub), {"name": "two", **words, "cluster": "two"})
    await other.until(b"LS+")
    first.say("PING\r\n")
    await first.until(b"PONG\r\n")
    closed = 300 + 1 - 256
    async with asyncio.timeout(20):
        for reader, _ in silent[:closed]:  # the oldest ones
            await reader.read()
    told = r"Too many connections to the port for leaf nodes .* \(256 may wait\): closed (\d+)"
    await until(lambda: sum(map(int, re.findall(told, hub.log.text))) == closed)
    # Of those for which others had to go the log has who logged in.
    lid = rf"lid:{other.info['client_id']} - Leafnode connection created"
    assert re.search(lid, hub.log.text) and len(re.findall(ACCEPTED, hub.log.text)) == 1 + 256 + 1
    for _, writer in silent:
        writer.close()
    for one in (first, other):
        one.writer.close()


async def test_a_loop_is_found_where_our_own_subject_comes_back(tree: Tree) -> None:
    words = {"name": "round", "user": "a", "pass": "p"}
    leaf = await by_hand(hub_port(tree.hub), words)
    told = await leaf.until(b"LS+ $LDS.")
    own = (await leaf.until(b"\n")).strip()
    assert told and own
    leaf.say(b"LS+ $LDS." + own + b"\r\n")
    assert (
        b"-ERR 'Loop detected for leafnode account=\"A\". Delaying attempt to reconnect for 30s'" in await leaf.rest()
    )


async def test_leafz_and_varz_tell_of_the_leaf_nodes(tree: Tree) -> None:
    monitoring = tree.hub.log.wait_line(r"http monitor on \S*:(\d+)")[1]

    def fetch(page: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"http://127.0.0.1:{monitoring}/{page}", timeout=30) as answer:
            return dict(json.load(answer))

    leaf = await by_hand(hub_port(tree.hub), {"name": "hand", "user": "b", "pass": "p"})
    leaf.say("LS+ seen.*\r\nLS+ seen.* q 3\r\nPING\r\n")
    await leaf.until(b"PONG\r\n")
    unknown = await by_hand(hub_port(tree.hub))
    tree.hub.log.wait_line(rf"lid:{unknown.info['client_id']} - Leafnode connection created")
    everybody = (await asyncio.to_thread(fetch, "leafz"))["leafs"]
    assert unknown.writer.get_extra_info("sockname")[1] not in [row["port"] for row in everybody]
    unknown.writer.close()
    of_b = (await asyncio.to_thread(fetch, "leafz?subs=1&acc=B"))["leafs"]
    assert {row["account"] for row in of_b} == {"B"}
    (own,) = [row for row in of_b if "seen.*" in row.get("subscriptions_list", [])]
    assert own["subscriptions_list"] == ["seen.*", "seen.*"] and own["subscriptions"] == 2
    leaf.writer.close()
    async with asyncio.timeout(20):  # (where this test is the first one, they are about to connect)
        page: dict[str, Any] = {"leafs": []}
        while [row["account"] for row in page["leafs"]].count("A") < len(LEAVES):
            page = await asyncio.to_thread(fetch, "leafz")
    varz = await asyncio.to_thread(fetch, "varz")
    assert not any("subscriptions_list" in row for row in page["leafs"])
    assert varz["leafnodes"] >= len(LEAVES)  # (those of other tests may come and go)
    assert varz["leaf"] == {"host": "127.0.0.1", "port": hub_port(tree.hub), "auth_timeout": 2, "tls_timeout": 2}


async def test_a_leaf_node_with_long_subjects_is_shown_with_some_of_them(tree: Tree) -> None:
    """All of them were 20 MB, more than the gateway can tell at once: the page showed no leaf node at all."""
    monitoring = tree.hub.log.wait_line(r"http monitor on \S*:(\d+)")[1]
    leaf = await by_hand(hub_port(tree.hub), {"name": "hand", "user": "b", "pass": "p"})
    for number in range(5000):
        leaf.say(f"LS+ {number}.{'s' * 4000}\r\n")
    leaf.say("PING\r\n")
    await leaf.until(b"PONG\r\n")

    def fetch() -> dict[str, Any]:
        with urllib.request.urlopen(f"http://127.0.0.1:{monitoring}/leafz?subs=1&acc=B", timeout=30) as answer:
            return dict(json.load(answer))

    (own,) = [row for row in (await asyncio.to_thread(fetch))["leafs"] if row["subscriptions"] == 5000]
    assert MOST_LISTED_BYTES - 5000 < sum(map(len, own["subscriptions_list"])) <= MOST_LISTED_BYTES
    leaf.writer.close()


@pytest.mark.parametrize("kind", ["gnatswarm-1", "nats-server", "gnatswarm-1-as-2.15", "nats-server-2.15"])
async def test_requests_for_leafz_name_an_account_and_ask_for_subscriptions(start: Start, net: Net, kind: str) -> None:
    users = "".join(f"{name} {{ users: [{{user: {name}, password: p}}] }}\n" for name in ("A", "B", "SYS"))
    config = f"accounts {{\n{users}}}\nsystem_account: SYS\nleafnodes {{ listen: '127.0.0.1:-1' }}\n"
    hub = start(kind, config)
    leaves = [await by_hand(hub_port(hub), {"name": name, "user": name, "pass": "p"}) for name in ("A", "B")]
    for name, leaf in zip(("A", "B"), leaves, strict=True):
        leaf.say(f"LS+ of.{name}\r\nPING\r\n")
        await leaf.until(b"PONG\r\n")
    asker = await net.client(hub, user="SYS", **{"pass": "p"})

    async def leafs(subject: str, **options: object) -> list[tuple[str, list[str]]]:
        rows = (await ask(asker, f"$SYS.REQ.{subject}.LEAFZ", options))["data"]["leafs"]
        return sorted((row["account"], row.get("subscriptions_list", [])) for row in rows)

    assert await leafs("SERVER.PING") == [("A", []), ("B", [])]
    assert await leafs("SERVER.PING", subscriptions=True) == [("A", ["of.A"]), ("B", ["of.B"])]
    assert await leafs("SERVER.PING", account="B") == [("B", [])]
    assert await leafs("ACCOUNT.A", subscriptions=True) == [("A", ["of.A"])]
    for leaf in leaves:
        leaf.writer.close()


@pytest.mark.parametrize("kind", ["gnatswarm-1-as-2.15", "nats-server-2.15"])
async def test_leafz_has_the_keys_of_2_15(start: Start, net: Net, kind: str) -> None:
    """Connected to a nats-server of 2.9, which compresses nothing, so that both say the same of that."""
    port = "http: '127.0.0.1:-1'\nleafnodes { listen: '127.0.0.1:-1', isolate_leafnode_interest: true }\n"
    hub = start(kind, f"server_name: hub\n{port}")
    leaf = start("nats-server", leaf_config(hub_port(hub), ""))
    await know(await net.client(hub), await net.client(leaf))
    lid = int(hub.log.wait_line(r"lid:(\d+) - Leafnode connection created")[1])
    monitoring = hub.log.wait_line(r"http monitor on \S*:(\d+)")[1]

    def fetch(query: str) -> list[dict[str, Any]]:
        with urllib.request.urlopen(f"http://127.0.0.1:{monitoring}/leafz{query}", timeout=30) as answer:
            return list(json.load(answer)["leafs"])

    async with asyncio.timeout(20):
        while "rtt" not in (row := (await asyncio.to_thread(fetch, "?subs=true"))[0]) or row["rtt"] == "0s":
            await know(await net.client(hub), await net.client(leaf))
    keys = "id name is_spoke is_isolated account ip port rtt in_msgs out_msgs in_bytes out_bytes subscriptions"
    assert list(row) == [*keys.split(), "subscriptions_list", "compression"]
    assert (row["id"], row["is_spoke"], row["is_isolated"], row["compression"]) == (lid, False, True, "not supported")
    assert any(subject.startswith("$LDS.") for subject in row["subscriptions_list"])
    assert await asyncio.to_thread(fetch, "?acc=other") == []


# ---- brokers of their own


async def test_a_leaf_node_comes_back_after_either_end_was_killed(start: Start, net: Net) -> None:
    hub = start("gnatswarm-2", HUB)
    leaf = start("nats-server", leaf_config(hub_port(hub)))
    at_hub, at_leaf = await net.client(hub, **A), await net.client(leaf)
    await subscribed(at_hub, "stays 1")
    await know(at_leaf, at_hub)
    lines = len(hub.log.lines)
    gateway = int(hub.log.wait_line(r"Gateway is process (\d+)")[1])
    os.kill(gateway, signal.SIGKILL)
    hub.log.wait_line(ACCEPTED, 20.0, start=lines)
    await know(at_leaf, at_hub)
    await at_leaf.send("PUB stays 2\r\nhi\r\n")
    assert await payloads(at_hub, 1) == [b"hi"]
    # The leaf node dies: its interest goes with it.
    await subscribed(at_leaf, "gone 1")
    await know(at_hub, at_leaf)
    lines = len(hub.log.lines)
    leaf.kill()
    hub.log.wait_line("Leafnode connection closed", 20.0, start=lines)
    await subscribed(at_hub, "none 2")
    async with asyncio.timeout(20):
        while not (frames := await unanswered(at_hub, "gone")):
            pass
    assert frames[0].headers.startswith(b"NATS/1.0 503")


async def test_a_leaf_node_that_does_not_read_harms_nobody_and_is_closed(start: Start, net: Net) -> None:
    hub = start("gnatswarm-2", HUB + "max_pending: 2MB\nmax_payload: 1MB\n")
    leaf = start("nats-server", leaf_config(hub_port(hub)))
    publisher, subscriber = await net.client(hub, **A), await net.client(hub, **A)
    at_leaf = await net.client(leaf)
    await subscribed(at_leaf, "flood 1")
    await subscribed(subscriber, "flood 1")
    await know(publisher, at_leaf)
    leaf.send_signal(signal.SIGSTOP)
    lines = len(hub.log.lines)
    body = "x" * 100_000
    sent = 0
    async with asyncio.timeout(30):
        while not any("Slow Consumer" in line for line in hub.log.lines[lines:]):
            await publisher.send(f"PUB flood {len(body)}\r\n{body}\r\n" * 10)
            await publisher.flush()
            sent += 10
            await subscriber.flush()
    assert len(await payloads(subscriber, sent)) == sent
    leaf.send_signal(signal.SIGCONT)
    await know(publisher, at_leaf)


async def test_a_reload_closes_whom_it_does_not_admit_any_more(start: Start) -> None:
    users = "authorization { users [ {user: one, password: p, account: A}, {user: two, password: p, account: B} ] }"
    config = HUB.replace('listen: "127.0.0.1:-1"', f'listen: "127.0.0.1:-1", {users}')
    config = "no_auth_user: one\n" + config.replace(
        "{user: a, password: p}", "{user: a, password: p}, {user: one, password: z}"
    )
    hub = start("gnatswarm-2", config)
    one = await by_hand(hub_port(hub), {"name": "one", "user": "one", "pass": "p"})
    two = await by_hand(hub_port(hub), {"name": "two", "user": "two", "pass": "p"})
    for login in ({"user": "a", "pass": "p"}, {}):  # users of the broker do not count beside these, nor does nobody's
        other = await by_hand(hub_port(hub), {"name": "a", **login})
        assert b"Authorization Violation" in await other.rest()
    for leaf, account in ((one, b"A"), (two, b"B")):
        assert b'"remote_account":"%s"' % account in await leaf.until(b"LS+")
    assert hub.config is not None and hub.directory is not None
    (hub.directory / "broker.conf").write_text(hub.config.replace("user: two, password: p", "user: two, password: q"))
    hub.send_signal(signal.SIGHUP)
    assert b"-ERR 'Authorization Violation'" in await two.rest()
    one.say("PING\r\n")
    await one.until(b"PONG\r\n")
    (hub.directory / "broker.conf").write_text(hub.config.replace("password: p, account: A", "password: p, account: B"))
    hub.send_signal(signal.SIGHUP)
    assert b"-ERR 'Authorization Violation'" in await one.rest()  # what it told was of the other account
    again = await by_hand(hub_port(hub), {"name": "one", "user": "one", "pass": "p"})
    assert b'"remote_account":"B"' in await again.until(b"LS+")
    again.writer.close()


@pytest.mark.parametrize("matches", [True, False])
async def test_a_reload_that_writes_a_password_as_its_hash_keeps_the_leaf_node(start: Start, *, matches: bool) -> None:
    """As nats-server does, which looks at no leaf node. It was closed, and what came until it was back was lost."""
    words = 'leafnodes { listen: "127.0.0.1:-1", authorization { user: h, password: "secret" } }\n'
    hub = start("gnatswarm-1", words)
    login = {"user": "h", "pass": "secret"}
    leaves = [await by_hand(hub_port(hub), {"name": name, **login}) for name in ("one", "two")]
    for leaf in leaves:
        leaf.say("PING\r\n")
        await leaf.until(b"PONG\r\n")
    assert hub.config is not None and hub.directory is not None
    hashed = bcrypt.hashpw(b"secret" if matches else b"other", bcrypt.gensalt(4)).decode()
    (hub.directory / "broker.conf").write_text(hub.config.replace('"secret"', f'"{hashed}"'))
    hub.send_signal(signal.SIGHUP)
    if matches:
        hub.log.wait_line("Reloaded server configuration")
        # Compared one after another: the new one waits for the answer that those two get.
        late = await by_hand(hub_port(hub), {"name": "three", **login})
        for leaf in (late, *leaves):
            leaf.say("PING\r\n")
            await leaf.until(b"PONG\r\n")
            leaf.writer.close()
        assert "does not admit" not in hub.log.text
    else:
        for leaf in leaves:
            assert b"-ERR 'Authorization Violation'" in await leaf.rest()


async def test_a_reload_has_leaf_nodes_connect_again_under_their_new_rights(start: Start, net: Net) -> None:
    """So that neither end goes on with what was told, or was on its way, under the former ones."""
    hub = start("gnatswarm-2", HUB)
    leaf = await by_hand(hub_port(hub), SOME)
    leaf.say("LS+ >\r\nPING\r\n")
    await leaf.until(b"PONG\r\n")
    at_hub = await net.client(hub, **A)
    await subscribed(at_hub, "out.* 1", "more.* 2")
    await until_answered(at_hub, "in.known")
    other = await by_hand(hub_port(hub), {"name": "half", "user": "half", "pass": "p"})
    other.say("PING\r\n")
    await other.until(b"PONG\r\n")
    assert hub.config is not None and hub.directory is not None
    changed = hub.config.replace("publish: [out.>]", "publish: [more.>]").replace("deny: in.no", "deny: in.also")
    (hub.directory / "broker.conf").write_text(changed)
    hub.send_signal(signal.SIGHUP)
    hub.log.wait_line("the configuration changes its rights")
    leaf.say("LMSG out.a 2\r\nno\r\n")  # it may not know yet, and is not to blame
    rest = await leaf.rest()
    assert b"-ERR" not in rest and b"LS+ more" not in rest
    other.say("LMSG out.b 2\r\nhi\r\nPING\r\n")  # whose rights are the same
    assert b"LS+" not in await other.until(b"PONG\r\n")
    assert await payloads(at_hub, 1) == [b"hi"]
    leaf = await by_hand(hub_port(hub), SOME)
    told = await leaf.until(b'"deny":["in.also"]')
    told += await leaf.until(b"\n")
    assert json.loads(told[told.rindex(b"INFO ") + 5 :])["export"] == {"allow": ["more.>"]}
    leaf.say("LS+ >\r\nPING\r\n")
    told = await leaf.until(b"PONG\r\n")
    assert told.count(b"LS+ more.*\r\n") == 1 and b"LS+ out" not in told
    await until_answered(at_hub, "in.known.again")
    await at_hub.send("PUB in.also 0\r\n\r\nPUB in.no 0\r\n\r\nPUB in.last 0\r\n\r\n")
    heard = await leaf.until(b"LMSG in.last 0\r\n")
    assert b"LMSG in.no 0" in heard and b"LMSG in.also" not in heard
    leaf.say("LMSG more.a 2\r\nhi\r\nLMSG out.a 2\r\nhi\r\n")
    assert await payloads(at_hub, 1) == [b"hi"]
    assert b"-ERR 'Permissions Violation for Publish to \"out.a\"'" in await leaf.rest()
    other.writer.close()


@pytest.mark.parametrize("kind", ["gnatswarm-1", "nats-server", "nats-server-2.15"])
async def test_interest_is_what_it_is_after_reloads_that_narrow_rights_and_widen_them(
    start: Start, net: Net, kind: str
) -> None:
    """Requests to what nobody wants who may have it get 503 at once; what is wanted and allowed arrives."""
    narrow = "permissions: {publish: [up.>, probe.>], subscribe: [down.>, probe.>]}"
    wide = 'permissions: {publish: [">"], subscribe: [">"]}'
    hub = start(
        "gnatswarm-2",
        'leafnodes { listen: "127.0.0.1:-1" }\n'
        f"accounts {{ A {{ users [ {{user: a, password: p}}, {{user: l, password: p, {wide}}} ] }} }}\n",
    )
    leaf = start(kind, leaf_config(hub_port(hub), login="l:p"))
    at_hub, at_leaf = await net.client(hub, **A), await net.client(leaf)
    await subscribed(at_hub, "in.hub 1", "in.hub.q q 2", "none 9")
    await subscribed(at_leaf, "in.leaf 1", "in.leaf.q q 2", "none 9")
    assert hub.config is not None and hub.directory is not None

    async def until_known(subjects: tuple[str, str], *, is_wanted: bool) -> None:
        """Each end knows whether somebody at the other wants the subject, and may have it."""
        for asker, subject in zip((at_leaf, at_hub), subjects, strict=True):
            async with asyncio.timeout(20):
                while bool(await unanswered(asker, subject)) is is_wanted:
                    pass

    plain, groups = ("in.hub", "in.leaf"), ("in.hub.q", "in.leaf.q")
    for subjects in (plain, groups):
        await until_known(subjects, is_wanted=True)
    (hub.directory / "broker.conf").write_text(hub.config.replace(wide, narrow))
    hub.send_signal(signal.SIGHUP)
    for subjects in (plain, groups):
        await until_known(subjects, is_wanted=False)
    for client in (at_hub, at_leaf):
        await client.talk("UNSUB 1\r\nPING\r\n", expect_last="PONG\r\n")
    (hub.directory / "broker.conf").write_text(hub.config)
    hub.send_signal(signal.SIGHUP)
    await until_known(groups, is_wanted=True)
    await until_known(plain, is_wanted=False)
    for client in (at_hub, at_leaf):
        await client.talk("UNSUB 2\r\nPING\r\n", expect_last="PONG\r\n")
    await until_known(groups, is_wanted=False)


@pytest.mark.parametrize("kind", ["gnatswarm-1", "nats-server", "nats-server-2.15"])
async def test_a_reload_without_rules_lets_a_connected_leaf_node_do_everything(
    start: Start, net: Net, kind: str
) -> None:
    rules = ', permissions: {publish: {deny: "out.>"}, subscribe: {deny: "in.>"}}'
    users = f"authorization {{ users [ {{user: l, password: p{rules}}}, {{user: u, password: p}} ] }}\n"
    hub = start("gnatswarm-2", 'leafnodes { listen: "127.0.0.1:-1" }\n' + users)
    leaf = start(kind, leaf_config(hub_port(hub), login="l:p"))
    at_hub, at_leaf = await net.client(hub, user="u", **{"pass": "p"}), await net.client(leaf)
    for client in (at_hub, at_leaf):
        await subscribed(client, "out.* 1", "in.* 2")
    for publisher, subscriber in ((at_hub, at_leaf), (at_leaf, at_hub)):
        await know(publisher, subscriber)
    await at_leaf.send("PUB out.no 0\r\n\r\n")
    await at_hub.send("PUB in.no 0\r\n\r\n")
    await know(at_hub, at_leaf)
    await know(at_leaf, at_hub)
    assert "out.no" not in {frame.subject for frame in at_hub.inbox}
    assert "in.no" not in {frame.subject for frame in at_leaf.inbox}
    assert hub.config is not None and hub.directory is not None
    (hub.directory / "broker.conf").write_text(hub.config.replace(rules, ""))
    hub.send_signal(signal.SIGHUP)
    for publisher, subscriber, subject in ((at_leaf, at_hub, "out.yes"), (at_hub, at_leaf, "in.yes")):
        async with asyncio.timeout(20):
            while subject not in {frame.subject for frame in subscriber.inbox}:
                await publisher.send(f"PUB {subject} 0\r\n\r\n")
                await publisher.flush()
                await subscriber.flush()


@pytest.mark.parametrize("first", [False, True], ids=["after INFO", "first"])
async def test_leaf_nodes_come_encrypted(start: Start, net: Net, authority: Authority, first: bool) -> None:
    pair = authority.server()
    tls = f"tls {{ cert_file: '{pair.cert}', key_file: '{pair.key}', ca_file: '{authority.path}', verify: true"
    tls += f", handshake_first: {str(first).lower()} }}"
    hub = start("gnatswarm-2", HUB.replace('listen: "127.0.0.1:-1"', f'listen: "127.0.0.1:-1", {tls}'))
    mine = authority.client("CN=leaf")
    own = f"tls {{ ca_file: '{authority.path}', cert_file: '{mine.cert}', key_file: '{mine.key}'"
    own += ", handshake_first: true }" if first else " }"
    kinds = ("nats-server-2.15",) if first else ("nats-server", "gnatswarm-1")
    at_hub = await net.client(hub, **A)
    for kind in kinds:
        at_leaf = await net.client(start(kind, leaf_config(hub_port(hub), remote=own)))
        await subscribed(at_leaf, "t 1")
        await know(at_hub, at_leaf)
        body = b"x" * 200_000
        await at_hub.send(b"PUB t %d\r\n" % len(body) + body + b"\r\n")
        assert await payloads(at_leaf, 1) == [body]
    plain = await by_hand(hub_port(hub), A) if not first else None
    if plain is not None:
        assert plain.info["tls_required"]
        await plain.rest()
        hub.log.wait_line("TLS leafnode handshake error")


async def is_open(port: int) -> bool:
    try:
        _reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


async def test_a_leaf_node_of_one_member_of_a_cluster_reaches_the_other(start: Start, net: Net) -> None:
    cluster = 'cluster { name: c, listen: "127.0.0.1:-1" }\n'
    hub = start("gnatswarm-2", "server_name: one\nleafnodes { listen: '127.0.0.1:-1' }\n" + cluster)
    route = hub.log.wait_line(r"Listening for route connections on \S*:(\d+)")[1]
    member = start(
        "nats-server",
        f'server_name: two\ncluster {{ name: c, listen: "127.0.0.1:-1"\nroutes: ["nats://127.0.0.1:{route}"] }}\n',
    )
    leaf = start("gnatswarm-1", leaf_config(hub_port(hub), ""))
    at_member, at_leaf = await net.client(member), await net.client(leaf)
    await subscribed(at_member, "x.* 1")
    await subscribed(at_leaf, "x.* 1")
    await know(at_leaf, at_member)
    await know(at_member, at_leaf)
    await at_leaf.send("PUB x.1 2\r\nup\r\n")
    await at_member.send("PUB x.2 4\r\ndown\r\n")
    assert sorted(await payloads(at_member, 2)) == [b"down", b"up"]
    assert sorted(await payloads(at_leaf, 2)) == [b"down", b"up"]
    same = await by_hand(hub_port(hub), {"name": "x", "cluster": "c"})
    assert same.info["cluster"] == "c"
    assert b"-ERR 'remote leafnode has same cluster name'" in await same.rest()
    # In lame duck mode no leaf node connects any more; those that are connected stay as long as clients do.
    await net.client(hub)
    hub.send_signal(signal.SIGUSR2)
    hub.log.wait_line("Entering lame duck mode")
    async with asyncio.timeout(20):
        while await is_open(hub_port(hub)):
            pass
    await at_member.send("PUB x.3 4\r\nlast\r\n")
    assert await payloads(at_leaf, 1) == [b"last"]


def dials(*ports: int, inner: str) -> str:
    urls = ", ".join(f'{{ url: "nats://127.0.0.1:{port}", {inner} }}' for port in ports)
    return f"server_name: dials{ports[0]}\nleafnodes {{ reconnect: 1, remotes [ {urls} ] }}\n"


MAPS = "mappings { 'w.*': 'mapped.$1' }\n"


@pytest.mark.parametrize("maps", ["hub", "leaf"])
@pytest.mark.parametrize(
    ("kind", "other"),
    [("nats-server", "nats-server"), ("gnatswarm-2", "nats-server"), ("gnatswarm-2", "gnatswarm-1")],
)
async def test_groups_hear_what_is_mapped_when_it_has_come(
    start: Start, net: Net, maps: str, kind: str, other: str
) -> None:
    """Who sends it to the end with the mapping knows no groups of the subject that it gets there; as by nats-server."""
    at_hub = "server_name: hub\nleafnodes { listen: '127.0.0.1:-1' }\n"
    kinds = {"hub": (kind, other), "leaf": (other, kind)}[maps]
    hub = start(kinds[0], at_hub + MAPS * (maps == "hub"))
    leaf = start(kinds[1], leaf_config(hub_port(hub), "", more=MAPS * (maps == "leaf")))
    here, there = (hub, leaf) if maps == "hub" else (leaf, hub)
    inside = [await net.client(here) for _ in range(2)]
    outside, publisher = await net.client(there), await net.client(there)
    await subscribed(inside[0], "mapped.* few 1", *(f"mapped.* many{n} {n + 10}" for n in range(70)))
    await subscribed(inside[1], "mapped.> few 1", "mapped.> 2", "other.> none 3")
    await subscribed(outside, "mapped.* away 1")
    for client in (*inside, outside):
        await know(publisher, client)
        await know(inside[0], client)
    await publisher.send("".join(f"PUB w.{n} 1\r\n{n}\r\n" for n in range(10)))
    await know(publisher, inside[0])
    await know(publisher, inside[1])
    heard: dict[str, list[str]] = {}
    for client in inside:
        for frame in client.inbox:
            if frame.subject.startswith("mapped."):
                assert frame.subject == f"mapped.{frame.payload.decode()}"
                heard.setdefault(frame.sid, []).append(frame.payload.decode())
    numbers = [str(n) for n in range(10)]
    assert sorted(heard.pop("1")) == numbers  # of one group, whoever of them
    assert heard.pop("2") == numbers
    assert heard == {str(n + 10): numbers for n in range(70)}


@pytest.mark.parametrize("kind", ["gnatswarm-1", "nats-server", "nats-server-2.15"])
async def test_who_dials_may_be_the_hub(start: Start, net: Net, kind: str) -> None:
    """What one leaf node publishes reaches the other: a leaf node of two hubs passes on no interest between them."""
    port = "leafnodes { listen: '127.0.0.1:-1' }\n"
    leaves = [start(one, f"server_name: leaf{number}\n{port}") for number, one in enumerate((kind, "gnatswarm-2"))]
    hub = start("gnatswarm-2", dials(*map(hub_port, leaves), inner="hub: true"))
    one, other, middle = [await net.client(broker) for broker in (*leaves, hub)]
    for client in (one, other, middle):
        await subscribed(client, "all 1")
    for here, there in ((one, other), (other, one), (middle, one), (middle, other), (one, middle)):
        await know(here, there)
    for client in (one, other, middle):
        await client.send("PUB all 1\r\nx\r\n" * 20)
    for client in (one, other, middle):
        assert len(await payloads(client, 60)) == 60
        await client.expect_quiet()
    assert "closed" not in hub.log.text


@pytest.mark.parametrize("way", ["all", "asks", "dials"])
async def test_isolated_leaf_nodes_hear_nothing_of_each_other_but_of_the_hub(start: Start, net: Net, way: str) -> None:
    if way == "dials":
        port = "leafnodes { listen: '127.0.0.1:-1' }\n"
        leaves = [start(kind, f"server_name: leaf{kind}\n{port}") for kind in ("nats-server", "gnatswarm-1")]
        inner = "hub: true, isolate_leafnode_interest: true"
        hub = start("gnatswarm-1", dials(*map(hub_port, leaves), inner=inner))
    else:
        isolate = "isolate_leafnode_interest: true" if way == "all" else ""
        hub = start("gnatswarm-1", f"server_name: hub\nleafnodes {{ listen: '127.0.0.1:-1', {isolate} }}")
        config = dials(hub_port(hub), inner="request_isolation: true" if way == "asks" else "")
        kinds = ("nats-server-2.15", "gnatswarm-1") if way == "asks" else ("nats-server", "gnatswarm-1")
        leaves = [
            start(kind, config.replace("server_name: dials", f"server_name: leaf{number}"))
            for number, kind in enumerate(kinds)
        ]
    one, other, middle = [await net.client(broker) for broker in (*leaves, hub)]
    await subscribed(other, "far 1", "both 2")
    await subscribed(one, "inbox 1")
    await subscribed(middle, "both 2")
    await know(one, middle)
    await know(middle, other)
    # Nobody whom the leaf node knows of wants it; but what goes to the hub anyway is passed on.
    await one.send("PUB far inbox 1\r\nx\r\nPUB both 1\r\ny\r\n")
    assert [frame.subject for frame in await other.messages(1, 20)] == ["both"]
    (nobody,) = await one.messages(1, 20)
    assert b"503" in nobody.headers
    await middle.send("PUB far 1\r\nz\r\n")
    assert [frame.payload for frame in await other.messages(1, 20)] == [b"z"]


async def test_a_reload_has_leaf_nodes_connect_again_isolated_or_not(start: Start) -> None:
    hub = start("gnatswarm-1", "leafnodes { listen: '127.0.0.1:-1' }\n")
    assert hub.config is not None and hub.directory is not None

    async def connected() -> tuple[Leaf, Leaf]:
        one, other = [await by_hand(hub_port(hub), {"name": name}) for name in ("one", "other")]
        one.say("LS+ far\r\nPING\r\n")
        await one.until(b"PONG\r\n")
        return one, other

    one, other = await connected()
    assert b"LS+ far\r\n" in await other.until(b"LS+ far\r\n")
    for is_isolated in (True, False):
        wanted = ", isolate_leafnode_interest: true }" if is_isolated else "}"
        (hub.directory / "broker.conf").write_text(hub.config.replace("}", wanted, 1))
        hub.send_signal(signal.SIGHUP)
        for leaf in (one, other):
            assert b"-ERR" not in await leaf.rest()
        one, other = await connected()
        other.say("PING\r\n")
        assert (b"LS+ far\r\n" in await other.until(b"PONG\r\n")) != is_isolated
    one.writer.close()
    other.writer.close()


async def test_a_reload_of_max_payload_holds_for_leaf_nodes_that_are_connected(start: Start, net: Net) -> None:
    hub = start("gnatswarm-2", "max_payload: 10\nleafnodes { listen: '127.0.0.1:-1' }\n")
    assert hub.config is not None and hub.directory is not None
    client = await net.client(hub)
    await client.talk("SUB big 1\r\nPING\r\n", expect_last="PONG\r\n")
    leaf = await by_hand(hub_port(hub), {"name": "leaf"})
    leaf.say("PING\r\n")
    await leaf.until(b"PONG\r\n")
    for most in (20, 15):
        seen = len(hub.log.lines)
        (hub.directory / "broker.conf").write_text(hub.config.replace("max_payload: 10", f"max_payload: {most}"))
        hub.send_signal(signal.SIGHUP)
        hub.log.wait_line("Reloaded server configuration", start=seen)
        leaf.say(f"LMSG big {most}\r\n{'x' * most}\r\n")
        (message,) = await client.messages(1, 20)
        assert len(message.payload) == most
    leaf.say("LMSG big 16\r\n")
    assert b"-ERR 'Maximum Payload Violation'" in await leaf.rest()


async def test_a_smaller_max_payload_holds_for_what_a_leaf_node_repeats(start: Start, net: Net) -> None:
    hub = start("gnatswarm-2", "max_payload: 20\nleafnodes { listen: '127.0.0.1:-1' }\n")
    assert hub.config is not None and hub.directory is not None
    client = await net.client(hub)
    await client.talk("SUB big 1\r\nPING\r\n", expect_last="PONG\r\n")
    leaf = await by_hand(hub_port(hub), {"name": "leaf"})
    leaf.say(2 * f"LMSG big 20\r\n{'x' * 20}\r\n")
    assert len(await client.messages(2, 20)) == 2
    (hub.directory / "broker.conf").write_text(hub.config.replace("max_payload: 20", "max_payload: 15"))
    hub.send_signal(signal.SIGHUP)
    hub.log.wait_line("Reloaded server configuration")
    leaf.say(f"LMSG big 20\r\n{'x' * 20}\r\n")
    assert b"-ERR 'Maximum Payload Violation'" in await leaf.rest()


ANSWERING = """server_name: hub
leafnodes { listen: '127.0.0.1:-1' }
accounts { A { users [
    {user: a, password: p}
    {user: two, password: p, permissions: {publish: [out.>], subscribe: [svc, "probe.>"], allow_responses: {max: 2}}}
    {user: soon, password: p, permissions: {publish: [out.>], allow_responses: {max: 9, expires: "1ms"}}}
    {user: only, password: p, permissions: {subscribe: [svc, "probe.>"], allow_responses: {max: -1}}}
] } }
"""


@pytest.mark.parametrize("kind", ["gnatswarm-2", "nats-server-2.15"])
async def test_a_leaf_node_may_answer_what_it_was_sent_so_often_and_so_long(start: Start, net: Net, kind: str) -> None:
    hub = start(kind, ANSWERING)
    at_hub = await net.client(hub, **A)
    await subscribed(at_hub, "inbox.* 1")
    for user, answers in (("two", [b"0", b"1"]), ("soon", []), ("only", [b"0", b"1", b"2"])):
        leaf = await by_hand(hub_port(hub), {"name": user, "user": user, "pass": "p"})
        leaf.say("LS+ svc\r\nPING\r\n")
        await leaf.until(b"PONG\r\n")
        await until_answered(at_hub, "svc")
        await at_hub.send(f"PUB svc inbox.{user} 2\r\nhi\r\n")
        await leaf.until(f"LMSG svc inbox.{user} 2\r\nhi\r\n".encode())
        if user == "soon":  # the next millisecond has begun when that has come back
            leaf.say("PING\r\n")
            await leaf.until(b"PONG\r\n")
            until_s = asyncio.get_running_loop().time() + 0.005
            while asyncio.get_running_loop().time() < until_s:
                await net.client(hub, **A)
        leaf.say("".join(f"LMSG inbox.{user} 1\r\n{n}\r\n" for n in range(3)))
        assert await payloads(at_hub, len(answers)) == answers
        if len(answers) == 3:
            leaf.say("LMSG inbox.other 1\r\nx\r\n")
        assert b"-ERR 'Permissions Violation for Publish to \"inbox." in await leaf.rest()
    await at_hub.expect_quiet()


@pytest.mark.parametrize(("user", "most"), [("two", 2), ("only", 5)])
async def test_a_gnatswarm_as_a_leaf_node_is_told_where_answers_are_wanted(
    start: Start, net: Net, user: str, most: int
) -> None:
    hub = start("gnatswarm-2", ANSWERING)
    leaf = start("gnatswarm-2", leaf_config(hub_port(hub), f"{user}:p"))
    at_hub, at_leaf = await net.client(hub, **A), await net.client(leaf)
    await subscribed(at_leaf, "svc 1")
    await subscribed(at_hub, "inbox.* 1")
    await know(at_hub, at_leaf)
    for number in range(1100):
        await at_hub.send(f"PUB svc inbox.{number} 2\r\nhi\r\n")
    requests = await at_leaf.messages(1100, 20)
    # More than it is told of: the oldest cannot be answered any more.
    for request in (requests[-1], requests[500]):
        await at_leaf.send(f"PUB {request.reply} 1\r\nx\r\n" * 5)
        assert [frame.subject for frame in await at_hub.messages(most, 20)] == [request.reply] * most
    await at_leaf.send(f"PUB {requests[0].reply} 1\r\nx\r\nPUB inbox.no 1\r\nx\r\n")
    await at_leaf.flush()
    await at_hub.expect_quiet()
    assert "closed" not in hub.log.text


async def test_a_leaf_node_dials_at_once_when_a_connection_that_has_lasted_ends(start: Start, net: Net) -> None:
    """The pause between tries is far longer than this test waits: the next gateway listens at the same port."""
    hub = start("gnatswarm-2", "leafnodes { listen: '127.0.0.1:-1' }\ndebug: true\n")
    url = f"nats://127.0.0.1:{hub_port(hub)}"
    leaf = start("gnatswarm-2", f'leafnodes {{ remotes [ {{ url: "{url}" }} ], reconnect: 600 }}')
    leaf.log.wait_line(ACCEPTED)
    at_hub, at_leaf = await net.client(hub), await net.client(leaf)
    began_s = asyncio.get_running_loop().time()
    while asyncio.get_running_loop().time() < began_s + 2 * LASTED_S:
        await know(at_leaf, at_hub)
    os.kill(int(hub.log.wait_line(r"Gateway is process (\d+)")[1]), signal.SIGKILL)
    await know(at_hub, at_leaf)
    await know(at_leaf, at_hub)


@pytest.mark.parametrize("kind", ["gnatswarm-2", "nats-server", "nats-server-2.15"])
async def test_leaf_nodes_below_the_least_version_are_refused(start: Start, net: Net, kind: str) -> None:
    hub = start(kind, 'server_name: hub\nleafnodes { listen: "127.0.0.1:-1", min_version: 2.10.0 }\n')
    remote = f'leafnodes {{ remotes [ {{ url: "nats://127.0.0.1:{hub_port(hub)}" }} ] }}'
    older = start("nats-server", f"server_name: older\n{remote}")
    older.log.wait_line("connection rejected since minimum version required is")
    newer = start("nats-server-2.15", f"server_name: newer\n{remote}")
    at_hub, at_newer = await net.client(hub), await net.client(newer)
    await know(at_hub, at_newer)
