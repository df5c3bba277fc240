"""A cluster of several servers, gnatswarms and nats-servers: what clients of each may expect of the others.

One cluster of four serves most tests: two gnatswarms and nats-servers of both versions; each member but the first knows
the first one's address alone, so that half of the routes are learned. What ends members has a cluster of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import ssl
import time
import urllib.request
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.support import framed, leaves, swarm
from tests.support.authority import Authority, Pair
from tests.support.servers import KINDS, Broker, BrokerUnavailable
from tests.support.turns import until
from tests.support.wall_clock import WallClock
from tests.support.wire import Client, Frame

LISTENS = r"Listening for route connections on \S*:(\d+)"
CREATED = r"Route connection created"
PAGES = r"Starting http monitor on \S*:(\d+)"
EVERY_KIND = ("gnatswarm-2", "nats-server", "nats-server-2.15", "gnatswarm-1")
ACCOUNTS = """
accounts {
  EXP { users: [{user: e, password: e}], exports: [{service: svc, response: singleton}, {stream: 'str.>'}] }
  IMP { users: [{user: i, password: i}], imports: [{service: {account: EXP, subject: svc}},
        {stream: {account: EXP, subject: 'str.>'}}] }
  PLAIN { users: [{user: p, password: p}] }
  SYS { users: [{user: s, password: s}] }
}
system_account: SYS
no_auth_user: p
"""


def route_port(broker: Broker) -> int:
    return int(broker.log.wait_line(LISTENS)[1])


def cluster_config(name: str, routes: tuple[int, ...] = (), more: str = "", inner: str = "", port: int = -1) -> str:
    urls = ", ".join(f'"nats://127.0.0.1:{port}"' for port in routes)
    return (
        f"server_name: {name}\nhttp: '127.0.0.1:-1'\n"
        f"cluster {{ name: marsh, listen: '127.0.0.1:{port}', routes: [{urls}]\n{inner} }}\n{more}\n"
    )


def started(kind: str, config: str, **options: Any) -> Broker:
    broker = Broker(KINDS[kind], config=config + "\nstats: false\n" * kind.startswith("gnat"), **options)
    try:
        broker.start()
    except BrokerUnavailable as error:
        pytest.skip(str(error))
    return broker


def page(broker: Broker, path: str) -> Any:
    port = int(broker.log.wait_line(PAGES)[1])
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
        return json.load(answer)


def is_meshed(brokers: list[Broker]) -> bool:
    return all(
        len({route["remote_id"] for route in page(broker, "/routez")["routes"]}) == len(brokers) - 1
        for broker in brokers
    )


Start = Callable[..., Broker]


def ended(brokers: list[Broker]) -> None:
    for broker in brokers:
        broker.kill()
        print(f"the log of {broker.kind}:", broker.log.text[-4000:], sep="\n")


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts brokers that end with the test."""
    brokers: list[Broker] = []

    def begin(kind: str, config: str, **options: Any) -> Broker:
        brokers.append(started(kind, config, **options))
        return brokers[-1]

    yield begin
    ended(brokers)


@pytest.fixture(scope="module")
def members() -> Iterator[list[Broker]]:
    """One of every kind, all connected to each other."""
    brokers: list[Broker] = []
    try:
        for kind in EVERY_KIND:
            seed = (route_port(brokers[0]),) if brokers else ()
            brokers.append(started(kind, cluster_config(f"member{len(brokers)}", seed, ACCOUNTS)))
        deadline = time.monotonic() + 30
        while not is_meshed(brokers):
            assert time.monotonic() < deadline, "the members did not find each other"
        yield brokers
    finally:
        ended(brokers)


class Net:
    """Clients of several brokers, closed in the end."""

    def __init__(self) -> None:
        self.all: list[Client] = []

    async def client(self, broker: Broker, user: str = "", **words: object) -> Client:
        client = await Client.connect(broker.port, None)
        self.all.append(client)
        keys = {"verbose": False, "headers": True, "no_responders": True, "protocol": 1, **words}
        if user:
            keys |= {"user": user, "pass": user}
        await client.talk(f"CONNECT {json.dumps(keys)}\r\nPING\r\n", expect_last="PONG\r\n")
        return client

    async def clients(self, brokers: list[Broker], user: str = "") -> list[Client]:
        return [await self.client(broker, user) for broker in brokers]


@pytest.fixture
async def net() -> AsyncIterator[Net]:
    found = Net()
    yield found
    for client in found.all:
        client.close()


async def know(publisher: Client, *subscribers: Client) -> None:
    """Returns when what `subscribers` have subscribed to before is known where `publisher` is."""
    for subscriber in subscribers:
        await leaves.know(publisher, subscriber)


async def all_know(clients: list[Client]) -> None:
    for publisher in clients:
        await know(publisher, *clients)


async def subscribed(client: Client, *lines: str) -> None:
    await client.talk("".join(f"SUB {line}\r\n" for line in lines) + "PING\r\n", expect_last="PONG\r\n")


async def arrived(client: Client, count: int) -> list[Frame]:
    """So many messages, whatever else comes."""
    async with asyncio.timeout(20):
        while len(client.inbox) < count:
            await client.flush()
    taken, client.inbox = client.inbox[:count], client.inbox[count:]
    return taken


async def settled(clients: list[Client]) -> None:
    """Returns when everything published so far has arrived: a last message of each to each."""
    subject = f"end.{uuid.uuid4().hex[:12]}"
    for client in clients:
        await subscribed(client, f"{subject} end")
    await all_know(clients)
    for client in clients:
        await client.send(f"PUB {subject} 0\r\n\r\n")
        await client.flush()
    async with asyncio.timeout(20):
        for client in clients:
            while sum(frame.subject == subject for frame in client.inbox) < len(clients):
                await client.flush()
    for client in clients:
        await client.talk("UNSUB end\r\nPING\r\n", expect_last="PONG\r\n")
        client.inbox = [frame for frame in client.inbox if frame.subject != subject]


async def test_a_message_reaches_every_server_once_and_in_order(members: list[Broker], net: Net) -> None:
    many = 1000
    clients = await net.clients(members)
    for client in clients:
        await subscribed(client, "order.* 1", "order.> 2")
    await all_know(clients)
    for number, client in enumerate(clients):
        await client.send("".join(f"PUB order.{number} {len(str(n))}\r\n{n}\r\n" for n in range(many)))
    wanted = [b"%d" % n for n in range(many)]
    for client in clients:
        frames = await client.messages(2 * many * len(clients), 20)
        for number in range(len(clients)):
            for sid in ("1", "2"):
                found = [frame.payload for frame in frames if frame.sid == sid and frame.subject == f"order.{number}"]
                assert found == wanted
    await settled(clients)
    assert not any(client.inbox for client in clients)


async def test_headers_and_big_messages_cross(members: list[Broker], net: Net) -> None:
    clients = await net.clients(members)
    body = b"NATS/1.0\r\nA: b\r\n\r\n" + b"x" * 500_000
    for client in clients:
        await subscribed(client, "big 1")
    await all_know(clients)
    for client in clients:
        await client.send(b"HPUB big re.ply 20 %d\r\n%b\r\n" % (len(body), body))
    for client in clients:
        frames = await client.messages(len(clients), 20)
        assert [(frame.reply, frame.payload[-2:]) for frame in frames] == [("re.ply", b"xx")] * len(clients)
        assert all(b"A: b" in frame.headers for frame in frames)


async def test_one_member_of_a_queue_group_gets_it_wherever_it_is(members: list[Broker], net: Net) -> None:
    clients = await net.clients(members)
    away = clients[1:]
    for client in away:
        await subscribed(client, "work group 1", "work other 2")
    await all_know(clients)
    each = 300
    for client in clients:
        await client.send("PUB work 1\r\nx\r\n" * each)
    await settled(clients)
    for sid in ("1", "2"):
        shares = [sum(frame.sid == sid for frame in client.inbox) for client in away]
        assert sum(shares) == each * len(clients)
        assert all(shares)
    # Who publishes where there is no member reaches all of them; the last member that stays gets everything.
    for client in away[1:]:
        await client.talk("UNSUB 1\r\nUNSUB 2\r\nPING\r\n", expect_last="PONG\r\n")
    await settled(clients)
    for client in clients:
        client.inbox.clear()
    await clients[0].send("PUB work 1\r\nx\r\n" * each)
    await settled(clients)
    assert [len(client.inbox) for client in clients] == [0, 2 * each, 0, 0]


async def test_a_request_is_answered_from_anywhere_or_has_no_responders(members: list[Broker], net: Net) -> None:
    clients = await net.clients(members)
    for responder in clients:
        await subscribed(responder, "ask 1")
        for asker in clients:
            await subscribed(asker, "answers.> 2")
        await all_know(clients)
        for asker in clients:
            await asker.send("PUB ask answers.a 1\r\n?\r\n")
            (asked,) = await responder.messages(1, 20)
            await responder.send(f"PUB {asked.reply} 1\r\n!\r\n")
            await responder.flush()
            await settled(clients)
            for client in clients:
                assert [frame.payload for frame in client.inbox] == [b"!"]
                client.inbox.clear()
        await responder.talk("UNSUB 1\r\nPING\r\n", expect_last="PONG\r\n")
        await settled(clients)
        for asker in clients:
            await asker.send("PUB ask answers.none 1\r\n?\r\n")
            (answer,) = await asker.messages(1, 20)
            assert b"503" in answer.headers
        for asker in clients:
            await asker.talk("UNSUB 2\r\nPING\r\n", expect_last="PONG\r\n")
        await settled(clients)


async def test_accounts_stay_apart_and_import_over_routes(members: list[Broker], net: Net) -> None:
    plain, exporting, importing = [await net.clients(members, user) for user in ("p", "e", "i")]
    for client in (*plain, *exporting, *importing):
        await subscribed(client, "str.x 1")
    for group in (plain, exporting, importing):
        await all_know(group)
    for client in exporting:
        await client.send("PUB str.x 1\r\ne\r\n")
    for client in importing:
        await client.send("PUB str.x 1\r\ni\r\n")
    for group in (plain, exporting, importing):
        await settled(group)
    assert [len(client.inbox) for client in plain] == [0] * 4
    assert [[frame.payload for frame in client.inbox] for client in exporting] == [[b"e"] * 4] * 4
    assert [sorted(frame.payload for frame in client.inbox) for client in importing] == [[b"e"] * 4 + [b"i"] * 4] * 4
    # A service of one account is asked from another one, on every pair of servers.
    for responder in exporting:
        await subscribed(responder, "svc 5")
        await all_know(exporting)
        responder.inbox.clear()
        for number, asker in enumerate(importing):
            asker.inbox.clear()
            await subscribed(asker, f"back.{number} 6")
            await all_know(importing)
            await asker.send(f"PUB svc back.{number} 1\r\n?\r\n")
            (asked,) = await responder.messages(1, 20)
            await responder.send(f"PUB {asked.reply} 1\r\n!\r\n")
            assert [frame.payload for frame in await asker.messages(1, 20)] == [b"!"]
            await asker.talk("UNSUB 6\r\nPING\r\n", expect_last="PONG\r\n")
        await responder.talk("UNSUB 5\r\nPING\r\n", expect_last="PONG\r\n")


async def test_unsubscribing_after_a_number_of_messages_is_exact(members: list[Broker], net: Net) -> None:
    clients = await net.clients(members)
    for client in clients[1:]:
        await client.talk("SUB few 1\r\nUNSUB 1 5\r\nPING\r\n", expect_last="PONG\r\n")
    await all_know(clients)
    await clients[0].send("PUB few 1\r\nx\r\n" * 20)
    await settled(clients)
    assert [len(client.inbox) for client in clients] == [0, 5, 5, 5]


async def test_every_server_answers_a_ping_to_the_system_account_once(members: list[Broker], net: Net) -> None:
    asker = await net.client(members[0], "s")
    await subscribed(asker, "pong 1")
    await know(asker, *await net.clients(members, "s"))
    await asker.send("PUB $SYS.REQ.SERVER.PING pong 0\r\n\r\n")
    answers = [json.loads(frame.payload) for frame in await asker.messages(len(members), 20)]
    assert sorted(answer["server"]["name"] for answer in answers) == [f"member{n}" for n in range(4)]


async def test_clients_and_pages_tell_of_the_cluster(members: list[Broker], net: Net) -> None:
    await all_know(await net.clients(members))
    for broker in members:
        client = await net.client(broker)
        assert client.info["cluster"] == "marsh"
        urls = client.info["connect_urls"]
        assert urls[0] == f"127.0.0.1:{broker.port}"
        assert sorted(urls) == sorted(f"127.0.0.1:{one.port}" for one in members)
        varz = page(broker, "/varz")
        assert (varz["cluster"]["name"], varz["routes"]) == ("marsh", 3)
    keys = [set(page(broker, "/routez")["routes"][0]) for broker in members]
    assert keys[0] == keys[1]
    (route,) = [one for one in page(members[0], "/routez")["routes"] if one["remote_id"] == _id(members[1])]
    assert route["in_msgs"] and route["out_msgs"] and route["subscriptions"] and not route["did_solicit"]


@pytest.mark.parametrize("kind", EVERY_KIND)
async def test_the_general_page_counts_what_passes_between_servers(start: Start, net: Net, kind: str) -> None:
    """Each has every message in both directions: from a client to the other server, or from that to a client."""
    here = start("gnatswarm-2", cluster_config("here", more="debug: true"))
    there = start(kind, cluster_config("there", (route_port(here),)))
    await until(lambda: is_meshed([here, there]))
    publisher, subscriber = await net.client(here), await net.client(there)
    await subscribed(subscriber, "counted 1")
    await know(publisher, subscriber)
    names = ("in_msgs", "out_msgs", "in_bytes", "out_bytes")
    size, beside = 50, 100  # what servers tell each other of themselves is counted by some, too
    before = [page(broker, "/varz") for broker in (here, there)]
    await publisher.send(f"PUB counted {size}\r\n{'x' * size}\r\n" * 1000)
    await arrived(subscriber, 1000)

    def counted(broker: Broker, was: dict[str, int]) -> bool:
        found = [page(broker, "/varz")[name] - was[name] for name in names]
        return all(1000 <= n < 1000 + beside for n in found[:2]) and all(n >= 1000 * size for n in found[2:])

    await until(lambda: counted(here, before[0]) and counted(there, before[1]))
    general = page(here, "/varz")
    await until(lambda: all(page(here, "/historyz?limit=1")[name][-1] >= general[name] for name in names))
    total = general["out_msgs"]
    os.kill(int(here.log.wait_line(r"Gateway is process (\d+)")[1]), signal.SIGKILL)
    await until(lambda: is_meshed([here, there]))
    assert page(here, "/varz")["out_msgs"] >= total


async def test_uptimes_do_not_follow_a_wall_clock_that_is_set(start: Start, tmp_path: Path) -> None:
    clock = WallClock(tmp_path)
    here = start("gnatswarm-2", cluster_config("here"), environment=clock.environment)
    there = start("gnatswarm-2", cluster_config("there", (route_port(here),)))
    await until(lambda: is_meshed([here, there]))
    for ahead_s in (7200, -7200):
        clock.set(ahead_s)
        [route] = page(here, "/routez")["routes"]
        general = page(here, "/varz")
        assert abs(datetime.fromisoformat(general["now"]).timestamp() * 1e6 - clock.now_us()) < 60e6
        for document in (general, route):
            assert re.fullmatch(r"(\dm)?\d\ds|\ds", document["uptime"]), document["uptime"]


@pytest.mark.parametrize("kind", EVERY_KIND)
async def test_who_connects_to_a_new_member_finds_the_cluster_complete(start: Start, net: Net, kind: str) -> None:
    """Its first client hears of the others at once, and those of nats-servers have heard of it.

    It is waited for, but not for long: on a busy machine not each start is in time.
    """
    there = start(kind, cluster_config("there"))
    for number in range(20):
        here = start("gnatswarm-2", cluster_config(f"here{number}", (route_port(there),)))
        clients = [await net.client(broker) for broker in (here, there)[: 2 if kind.startswith("nats") else 1]]
        urls = {f"127.0.0.1:{one.port}" for one in (here, there)}
        if all(urls <= set(client.info.get("connect_urls", ())) for client in clients):
            return
    raise AssertionError("its first clients were told later, each time")


async def test_a_member_that_cannot_be_reached_keeps_nobody_waiting(start: Start, net: Net) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(1)  # who connects there hears nothing
        here = start("gnatswarm-2", cluster_config("here", (silent.getsockname()[1], 1)))
        client = await net.client(here)
        assert client.info["cluster"] == "marsh"


async def test_a_route_has_the_keys_of_the_newer_server_where_it_is_asked_for(start: Start) -> None:
    brokers = [start("nats-server-2.15", cluster_config("there"))]
    brokers.append(start("gnatswarm-1-as-2.15", cluster_config("here", (route_port(brokers[0]),))))
    await until(lambda: is_meshed(brokers))
    pages = [page(broker, "/routez") for broker in brokers]
    assert set(pages[0]) == set(pages[1])
    assert set(pages[0]["routes"][0]) == set(pages[1]["routes"][0])


PERMITTED = """permissions {
    import: { allow: ["a.>", "b.*"], deny: "a.x" }
    export: ["c", "d.>"]
}"""


@pytest.mark.parametrize(("kind", "other"), [("gnatswarm-2", "nats-server"), ("gnatswarm-1", "nats-server-2.15")])
async def test_routez_shows_what_members_import_and_export(start: Start, kind: str, other: str) -> None:
    """Its own on top, and at each route what the other end says of itself; as nats-server."""
    here = start(kind, cluster_config("here", inner=PERMITTED))
    there = start(other, cluster_config("there", (route_port(here),), inner="permissions { export: { deny: [zz] } }"))
    third = start("nats-server", cluster_config("third", (route_port(here),)))
    brokers = [here, there, third]
    await until(lambda: is_meshed(brokers))
    own = {"import": {"allow": ["a.>", "b.*"], "deny": ["a.x"]}, "export": {"allow": ["c", "d.>"]}}
    shown = {_id(here): own, _id(there): {"export": {"deny": ["zz"]}}, _id(third): {}}
    for broker in brokers:
        found = page(broker, "/routez")
        assert {name: found[name] for name in ("import", "export") if name in found} == shown[_id(broker)]
        for route in found["routes"]:
            said = {name: route[name] for name in ("import", "export") if name in route}
            assert said == shown[route["remote_id"]], (broker.kind, route)


async def test_the_system_account_tells_of_the_whole_cluster(start: Start, net: Net) -> None:
    """Each member answers a PING, and names the cluster; the asker's own says how many subscriptions all have."""
    kinds = {"old": "nats-server", "new": "nats-server-2.15", "ours": "gnatswarm-2", "too": "gnatswarm-1"}
    brokers: list[Broker] = []
    for name, kind in kinds.items():
        others = tuple(route_port(one) for one in brokers)
        brokers.append(start(kind, cluster_config(name, others, more=ACCOUNTS)))
    await until(lambda: is_meshed(brokers))
    clients = [await net.client(broker, user="s", **{"pass": "s"}) for broker in brokers]
    for number, client in enumerate(clients):
        words = "".join(f"SUB foo {sid}\r\n" for sid in range(number + 1))
        await client.talk(f"{words}SUB foo q 20\r\nPING\r\n", expect_last="PONG\r\n")
    await all_know(clients)
    for client in clients:
        for body, count in (("foo", "14"), ("foo q", "4"), ("foo.*", "0"), ("none", "0")):
            async with asyncio.timeout(20):  # (members have half a second to answer)
                while (found := await _answers(client, "$SYS.DEBUG.SUBSCRIBERS", body, 1)) != [count]:
                    assert len(found) == 1
        shares = await _answers(client, "$SYS.REQ.ACCOUNT.NSUBS", '{"acc":"SYS","subject":"foo"}', 4)
        assert sorted(shares) == ["2", "3", "4", "5"]
        for body in ("", '{"cluster":"mar"}'):
            answers = [json.loads(one) for one in await _answers(client, "$SYS.REQ.SERVER.PING", body, 4)]
            assert sorted(one["server"]["name"] for one in answers) == sorted(kinds)
            assert {one["server"]["cluster"] for one in answers} == {"marsh"}
            for one in answers:
                if one["server"]["name"] not in ("old", "new"):  # (those count a member when its STATSZ has come)
                    assert one["statsz"]["active_servers"] == 4
                assert {route["name"] for route in one["statsz"]["routes"]} == {*kinds} - {one["server"]["name"]}
        assert await _answers(client, "$SYS.REQ.SERVER.PING", '{"cluster":"moor"}', 0) == []


async def test_every_member_answers_what_users_of_other_accounts_ask_about_theirs(
    members: list[Broker], net: Net
) -> None:
    """Once, wherever they ask; and none tells of another account."""
    clients = await net.clients(members)
    for who, client in enumerate(clients):
        for number, subject in enumerate(
            ("$SYS.REQ.ACCOUNT.PING.CONNZ", "$SYS.REQ.SERVER.PING.CONNZ", "$SYS.REQ.ACCOUNT.PING.STATZ")
        ):
            back = f"back.{who}.{number}"
            await subscribed(client, f"{back} {number}")
            for times in (1, 2):
                body = '{"acc":"IMP"}'
                await client.send(f"PUB {subject} {back} {len(body)}\r\n{body}\r\n")
                said = [json.loads(one.payload) for one in await arrived(client, len(members))]
                assert sorted(one["server"]["name"] for one in said) == [f"member{n}" for n in range(4)], times
                for one in said:
                    counts = [row["conns"] for row in one["data"].get("account_statz", ())]
                    assert counts in ([], [1]) and len(one["data"].get("connections", "1")) == 1
    await settled(clients)
    assert not any(client.inbox for client in clients), "another answer"


async def _answers(client: Client, subject: str, body: str, least: int) -> list[str]:
    """What comes in reply, from whichever members: so many, and no more when all have answered two requests more."""
    inbox = uuid.uuid4().hex
    asked = f"SUB {inbox} r\r\nPUB {subject} {inbox} {len(body)}\r\n{body}\r\nPING\r\n"
    await client.talk(asked, expect_last="PONG\r\n")
    async with asyncio.timeout(20):
        while sum(frame.subject == inbox for frame in client.inbox) < least:
            await client.flush()
    for _ in range(2):
        mark = uuid.uuid4().hex
        await client.send(f"SUB {mark} m\r\nPUB $SYS.REQ.SERVER.PING.HEALTHZ {mark} 0\r\n\r\n")
        async with asyncio.timeout(20):
            while sum(frame.subject == mark for frame in client.inbox) < 4:
                await client.flush()
        await client.talk("UNSUB m\r\nPING\r\n", expect_last="PONG\r\n")
    found = [frame.payload.decode() for frame in client.inbox if frame.subject == inbox]
    await client.talk("UNSUB r\r\nPING\r\n", expect_last="PONG\r\n")
    client.inbox.clear()
    return found


def _id(broker: Broker) -> str:
    return str(page(broker, "/varz")["server_id"])


def _said(port: int, said: bytes) -> bytes:
    """What is answered to these bytes on a port, to the end of the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as sock:
        sock.sendall(said)
        answer = b""
        with contextlib.suppress(ConnectionError):
            while piece := sock.recv(65536):
                answer += piece
    return answer


CONNECT = b'CONNECT {"name":"x","cluster":"%b"}\r\n'
HELLO = CONNECT % b"marsh" + b'INFO {"server_id":"x","server_name":"%b","cluster":"marsh","headers":true}\r\n'
GOSSIP = b'INFO {"server_id":"z","server_name":"z","cluster":"marsh","ip":"nats-route://%b/"}\r\n'


@pytest.mark.parametrize(
    ("said", "answer", "logged"),
    [
        (b'CONNECT {"lang":"go"}\r\nPING\r\n', b"attempted to connect to route port", "attempted to connect to route"),
        (CONNECT % b"moor", b'cluster name "moor" does not match "marsh"', 'cluster name "moor" does not match'),
        (b"GET / HTTP/1.1\r\n\r\n", b"Unknown Protocol Operation", "no frame of a server"),
        (b"INFO {}\r\n", b"Authorization Violation", "authentication error"),
        (CONNECT % b"marsh" + b"INFO {}\r\n", b"INFO", "its INFO has no server_id"),
        (CONNECT % b"marsh" + b'INFO {"server_id":"x","server_name":"x","\x9e":1}\r\n', b"INFO", "INFO cannot be read"),
        (b'CONNECT {"x":' + b"[" * 20_000 + b"\r\n", b"INFO", "CONNECT cannot be read"),
        (CONNECT % b"marsh" + b'INFO {"x":' + b"[" * 20_000 + b"\r\n", b"INFO", "INFO cannot be read"),
        (CONNECT % b"marsh" + b"RS+ $G a b\r\n", b"Unknown Protocol Operation", "no frame of a server"),
        (CONNECT % b"marsh" + b"RMSG $G a 200000000\r\n", b"Unknown Protocol Operation", "over the limit"),
        (b"CONNECT {" + b"x" * 300_000, b"Unknown Protocol Operation", "over the limit"),
        (HELLO % b"member0", b"INFO", 'Remote server has a duplicate name: "member0"'),
        (HELLO % b"y" + b"RS+ PLAIN " + b"a" * 300_000, b"Unknown Protocol Operation", "over the limit"),
        (HELLO % b"y" + b"RS+ PLAIN a..b\r\nRS- PLAIN\r\n", b"Unknown Protocol Operation", "bad subject: b'a..b'"),
        (HELLO % b"y" + b"RS-\r\n", b"Unknown Protocol Operation", "no frame of a server"),
        (HELLO % b"y" + b"RMSG PLAIN a\r\n", b"Unknown Protocol Operation", "no frame of a server"),
        (HELLO % b"y" + b"RMSG PLAIN a -1\r\n", b"Unknown Protocol Operation", "no frame of a server"),
        (HELLO % b"y" + b"RMSG PLAIN a | 1\r\nx\r\nRMSG\r\n", b"Unknown Protocol Operation", "no frame of a server"),
        (HELLO % b"y" + b"HMSG PLAIN a 5 3\r\nabc\r\n", b"Unknown Protocol Operation", "no frame of a server"),
        (HELLO % b"y" + b"RMSG PLAIN a 1\r\nxyz\r\n", b"Unknown Protocol Operation", "a payload without its end"),
        (HELLO % b"y" + b"RS+ nowhere a\r\nRMSG nowhere a 1\r\nx\r\nbad\r\n", b"Unknown Protocol Operation", "bad"),
        (HELLO % b"y" + GOSSIP % b"0.0.0.0:99999" + b"bad\r\n", b"Unknown", "an address that cannot be dialled"),
        (HELLO % b"y" + GOSSIP % b"" + b"bad\r\n", b"Unknown", "an address that cannot be dialled"),
        (HELLO % b"y" + GOSSIP % b"127.0.0.1:1" + b"bad\r\n", b"Unknown", "dial tcp 127.0.0.1:1: connect: connec"),
    ],
)
async def test_bad_input_on_the_port_is_refused(
    members: list[Broker], net: Net, said: bytes, answer: bytes, logged: str
) -> None:
    broker = members[0]
    since = len(broker.log.text)
    assert answer in await asyncio.to_thread(_said, route_port(broker), said)
    await until(lambda: logged in broker.log.text[since:])
    assert "Traceback" not in broker.log.text
    clients = await net.clients(members[:2])
    await subscribed(clients[0], "still 1")
    await know(clients[1], clients[0])


@pytest.mark.parametrize(
    ("login", "said", "answer"),
    [
        ("authorization { user: u, password: p }", CONNECT % b"marsh", b"Authorization Violation"),
        ("", HELLO % b"here", b"INFO"),
    ],
    ids=["wrong password", "same name"],
)
async def test_of_many_that_are_refused_most_hear_of_it_later(
    start: Start, login: str, said: bytes, answer: bytes
) -> None:
    """A nats-server 2.15 dials again at once: it was refused, and wrote lines of it, thousands of times a second."""
    here = start("gnatswarm-1", cluster_config("here", inner=login))
    began_s = time.monotonic()
    for _ in range(6):
        assert answer in await asyncio.to_thread(_said, route_port(here), said)
    assert time.monotonic() - began_s > 0.99
    other = start("gnatswarm-1", cluster_config("other", (route_port(here),), inner=login))
    await asyncio.to_thread(other.log.wait_line, CREATED)


class ByHand:
    """A connection of another member, which says what it is told to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def say(self, words: bytes) -> None:
        self.writer.write(words)

    async def until(self, end: bytes) -> bytes:
        async with asyncio.timeout(30):
            return await self.reader.readuntil(end)

    async def rest(self) -> bytes:
        async with asyncio.timeout(30):
            return await self.reader.read(-1)


async def by_hand(broker: Broker, name: str = "hand", **info: Any) -> ByHand:
    """It has joined, and said this of itself besides."""
    found = ByHand(*await asyncio.open_connection("127.0.0.1", route_port(broker)))
    content = {"server_id": name, "server_name": name, "cluster": "marsh", "headers": True, **info}
    found.say(b'CONNECT {"name":"%b","cluster":"marsh"}\r\n' % name.encode())
    found.say(b"INFO " + json.dumps(content).encode() + b"\r\n")
    await found.until(b"INFO ")
    await found.until(b"\n")
    found.say(b"PING\r\n")
    await found.until(b"PONG\r\n")
    return found


async def test_a_member_s_errors_and_bad_addresses_have_a_line_a_second(start: Start, net: Net) -> None:
    """Each had a line of its own: 50,000 in two seconds, in which the gateway served nobody else."""
    here = start("gnatswarm-2", cluster_config("here"))
    member = await by_hand(here)
    for said, logged in ((GOSSIP % b"0.0.0.0:99999", "cannot be dialled"), (b"-ERR 'odd'\r\n", "Route Error")):
        member.say(said * 5000 + b"PING\r\n")
        await member.until(b"PONG\r\n")
        client = await net.client(here)
        await subscribed(client, "still 1")
        member.say(b"RMSG $G still 2\r\nhi\r\n")
        assert [frame.payload for frame in await client.messages(1)] == [b"hi"]
        assert 0 < here.log.text.count(logged) < 100
    member.writer.close()


async def test_the_other_connection_of_a_member_is_used_where_the_one_ends(start: Start, net: Net) -> None:
    """A nats-server that was dialled while it dialled closes one of the two, whichever we have taken."""
    here = start("gnatswarm-2", cluster_config("here"))
    client = await net.client(here)
    await subscribed(client, "own 1")
    first = await by_hand(here)
    second = await by_hand(here)
    assert page(here, "/routez")["num_routes"] == 1
    first.writer.close()
    await second.until(b"RS+ $G own\r\n")
    second.say(b"RMSG $G own 2\r\nhi\r\n")
    assert [frame.payload for frame in await client.messages(1)] == [b"hi"]
    assert page(here, "/routez")["num_routes"] == 1
    second.writer.close()


async def test_members_hear_of_another_at_the_address_that_it_names(start: Start) -> None:
    here = start("gnatswarm-1", cluster_config("here"))
    first = await by_hand(here)
    for name, info, address in (
        ("named", {"port": 7000, "ip": "nats-route://198.51.100.1:7001/"}, "nats-route://198.51.100.1:7001/"),
        ("unnamed", {"port": 7002}, "nats-route://127.0.0.1:7002/"),
    ):
        other = await by_hand(here, name, **info)
        await first.until(b"INFO ")
        told = json.loads(await first.until(b"\n"))
        assert (told["server_id"], told["ip"]) == (name, address)
        other.writer.close()
    first.writer.close()


@pytest.mark.parametrize("hides", [False, True])
async def test_clients_hear_of_other_members_addresses_unless_that_is_off(
    start: Start, net: Net, *, hides: bool
) -> None:
    here = start("gnatswarm-2", cluster_config("here", inner=f"no_advertise: {str(hides).lower()}"))
    member = await by_hand(here, port=7000, connect_urls=["198.51.100.1:4222"])
    assert page(here, "/varz")["routes"] == 1
    told: list[bool] = []
    async with asyncio.timeout(20):
        while len(told) < 30 if hides else not any(told):
            client = await net.client(here)
            told.append("198.51.100.1:4222" in client.info.get("connect_urls", []))
    assert any(told) is not hides
    member.writer.close()


@pytest.mark.parametrize("kind", ["gnatswarm-2", "nats-server", "nats-server-2.15"])
async def test_clients_by_websocket_hear_where_a_member_says_that_they_reach_it(start: Start, kind: str) -> None:
    """Its own, and those of other members."""
    block = "websocket {{ port: -1, host: '127.0.0.1', no_tls: true, advertise: '{}' }}"
    here = start(kind, cluster_config("here", more=block.format("here.example:443")))
    there = start(kind, cluster_config("there", (route_port(here),), more=block.format("there.example")))
    port = framed.websocket_port(there)
    wanted = {"here.example:443", f"there.example:{port}"}
    told: set[str] = set()
    async with asyncio.timeout(20):
        while told != wanted:
            client = await framed.upgrade(framed.websocket_port(here))
            told = set(client.info.get("connect_urls", []))
            assert told <= wanted
            client.close()
    assert page(here, "/varz")["websocket"]["advertise"] == "here.example:443"


async def test_shards_that_start_know_of_the_cluster_also_under_the_next_router(start: Start, net: Net) -> None:
    here = start("gnatswarm-2", cluster_config("here"))
    member = await by_hand(here, port=7000, connect_urls=["198.51.100.1:4222"])
    for kills_router in (False, True):
        if kills_router:
            old = (await asyncio.to_thread(swarm.status, here))["router_pid"]
            lines = len(here.log.lines)
            swarm.signal_shard(here, old)
            here.log.wait_line("The router died: killed by SIGKILL", 20.0, lines)
        before = await swarm.kill(here, 0)
        async with asyncio.timeout(20):
            while (await swarm.pids(here)).get(0, before) == before:
                pass
            while True:
                client = await net.client(here)
                if client.shard == 0:
                    break
                client.close()
        assert "198.51.100.1:4222" in client.info["connect_urls"]
    member.writer.close()


async def test_a_member_s_rights_are_shown_as_it_said_last(start: Start) -> None:
    here = start("gnatswarm-1", cluster_config("here"))
    member = await by_hand(here)
    for denied in ("one", "two"):
        member.say(
            b'INFO {"server_id":"hand","server_name":"hand","import":{"deny":["%b"]}}\r\nPING\r\n' % denied.encode()
        )
        await member.until(b"PONG\r\n")
        (route,) = page(here, "/routez")["routes"]
        assert route["import"] == {"deny": [denied]}
    member.writer.close()


async def test_a_member_that_may_take_more_of_our_interest_is_connected_anew_and_no_other(start: Start) -> None:
    here = start("gnatswarm-1", cluster_config("here"))
    member = await by_hand(here)
    more = b'INFO {"server_id":"hand","server_name":"hand"%b}\r\nPING\r\n'
    rules = b',"export":{"deny":["%b"]}'
    for said in (b"", rules % b"one", rules % b"one" + b',"import":{"deny":["two"]}'):  # no more than before
        member.say(more % said)
        await member.until(b"PONG\r\n")
    member.say(more % (rules % b"three"))
    await member.rest()
    here.log.wait_line("Router connection closed: the member's permissions have changed")
    member.writer.close()


async def test_so_many_members_that_another_one_tells_of_are_dialled_and_no_more(start: Start) -> None:
    here = start("gnatswarm-1", cluster_config("here"))
    member = await by_hand(here)
    gossip = b'INFO {"server_id":"z%d","server_name":"z%d","cluster":"marsh","ip":"nats-route://127.0.0.1:%d/"}\r\n'
    member.say(b"".join(gossip % (port, port, port) for port in range(1, 101)))

    def dialled() -> set[str]:
        return set(re.findall(r"Error trying to connect to route.* 127.0.0.1:(\d+)", here.log.text))

    await until(lambda: len(dialled()) >= 64)
    for _ in range(20):
        member.say(b"PING\r\n")
        await member.until(b"PONG\r\n")
    assert len(dialled()) == 64
    member.writer.close()


async def test_a_reload_of_the_cluster_s_permissions_holds_for_members_that_are_connected(
    start: Start, net: Net
) -> None:
    here = start("gnatswarm-2", cluster_config("here", inner='permissions { import: { deny: "never" } }'))
    client = await net.client(here)
    first = await by_hand(here)
    await subscribed(client, "own 1")
    assert b"never" not in await first.until(b"RS+ $G own\r\n")
    assert here.config is not None and here.directory is not None
    (here.directory / "broker.conf").write_text(here.config.replace('deny: "never"', 'deny: "own"'))
    here.send_signal(signal.SIGHUP)
    await first.rest()
    here.log.wait_line("Router connection closed: the cluster's configuration has changed")
    again = await by_hand(here)
    await subscribed(client, "last 2")
    assert b"own" not in await again.until(b"RS+ $G last\r\n")
    again.writer.close()


async def test_a_route_to_a_port_for_clients_is_said_and_harms_nobody(start: Start, net: Net) -> None:
    other = start("nats-server", "")
    here = start("gnatswarm-1", cluster_config("here", (other.port,)))
    here.log.wait_line("Error trying to connect to route .*it is a port for clients", 20.0)
    for broker in (here, other):
        client = await net.client(broker)
        await subscribed(client, "still 1")
        await know(client, client)
    assert page(here, "/routez")["num_routes"] == 0


async def test_members_and_gateways_may_be_killed(start: Start, net: Net) -> None:
    first = start("gnatswarm-2", cluster_config("a", more="debug: true"))
    others = [start(kind, cluster_config(kind, (route_port(first),))) for kind in ("nats-server", "gnatswarm-1")]
    brokers = [first, *others]
    await until(lambda: is_meshed(brokers))
    clients = await net.clients(brokers)
    for client in clients:
        await subscribed(client, "go.on 1")
    await all_know(clients)
    # The gateway: clients stay, and after a moment reach the others again.
    lines = len(first.log.lines)
    os.kill(int(first.log.wait_line(r"Gateway is process (\d+)")[1]), signal.SIGKILL)
    first.log.wait_line(CREATED, 20.0, start=lines)
    await until(lambda: is_meshed(brokers))
    await all_know(clients)
    for client in clients:
        client.inbox.clear()
    await clients[1].send("PUB go.on 2\r\nhi\r\n")
    for client in clients:
        assert [frame.payload for frame in await arrived(client, 1)] == [b"hi"]
    # A member: the others go on, clients are told, and it comes back at another address of its own.
    others[0].kill()
    for client in (clients[0], clients[2]):
        async with asyncio.timeout(20):
            while not any(_without(frame, others[0].port) for frame in await client.flush()):
                pass
    back = start("nats-server", cluster_config("nats-server", (route_port(first),)))
    await until(lambda: is_meshed([first, others[1], back]))
    newcomer = await net.client(back)
    await know(newcomer, clients[0], clients[2])


async def test_members_and_their_clients_hear_that_a_broker_stops(start: Start, net: Net) -> None:
    stopping = start("gnatswarm-2", cluster_config("stopping", more=ACCOUNTS))
    seed = (route_port(stopping),)
    others = [start(kind, cluster_config(kind, seed, ACCOUNTS)) for kind in ("nats-server", "gnatswarm-1")]
    await until(lambda: is_meshed([stopping, *others]))
    ears = await net.clients(others, "s")
    for ear in ears:
        await subscribed(ear, "$SYS.SERVER.*.SHUTDOWN 1")
    server_id = _id(stopping)
    await asyncio.to_thread(stopping.stop)
    for ear in ears:
        (frame,) = await arrived(ear, 1)
        assert frame.subject == f"$SYS.SERVER.{server_id}.SHUTDOWN"
        assert json.loads(frame.payload)["name"] == "stopping"


async def test_routes_may_be_encrypted_and_ask_for_a_password(start: Start, net: Net, authority: Authority) -> None:
    """Two members learn of each other from the first, and log in with their own user and certificate."""

    def inner(password: str = "right") -> str:
        tls = f"tls {{ {authority.member().lines}, ca_file: '{authority.path}', timeout: 5 }}"
        return f"authorization {{ user: route, password: {password}, timeout: 5 }}\n{tls}"

    first = start("gnatswarm-1", cluster_config("first", inner=inner()))
    seed = (route_port(first),)
    log_in = cluster_config("x", seed, inner=inner()).replace("nats://", "nats://route:right@")
    others = [start(kind, log_in.replace("name: x", f"name: {kind}")) for kind in EVERY_KIND[1:]]
    await until(lambda: is_meshed([first, *others]))
    clients = await net.clients([first, *others])
    for client in clients:
        await subscribed(client, "secret 1")
    await all_know(clients)
    body = b"x" * 200_000
    for client in clients:
        await client.send(b"PUB secret %d\r\n%b\r\n" % (len(body), body))
    for client in clients:
        assert [frame.payload == body for frame in await arrived(client, len(clients))] == [True] * len(clients)
    # Who has no certificate, or the wrong password, is no member.
    plain = start("gnatswarm-1", cluster_config("plain", seed))
    plain.log.wait_line(rf"Error trying to connect to route 127.0.0.1:{seed[0]} .*: no INFO within")  # each waits
    stranger = start("gnatswarm-1", cluster_config("wrong", seed, inner=inner("wrong")))
    first.log.wait_line("authentication error")
    stranger.log.wait_line(r"Error trying to connect to route .*Authorization Violation")
    assert is_meshed([first, *others])


@pytest.mark.parametrize("kind", ["gnatswarm-1", "nats-server"])
async def test_a_reload_changes_the_log_in_with_which_a_member_is_dialled(start: Start, kind: str) -> None:
    there = start(kind, cluster_config("there", inner="authorization { user: route, password: right, timeout: 5 }"))
    config = cluster_config("here", (route_port(there),)).replace("nats://", "nats://route:wrong@")
    here = start("gnatswarm-1", config)
    here.log.wait_line("Error trying to connect to route .*Authorization Violation")
    assert here.config is not None and here.directory is not None
    (here.directory / "broker.conf").write_text(here.config.replace("route:wrong@", "route:right@"))
    here.send_signal(signal.SIGHUP)
    await until(lambda: is_meshed([here, there]))


@pytest.mark.parametrize("kind", ["gnatswarm-1", "nats-server", "nats-server-2.15"])
async def test_an_insecure_member_dials_others_whatever_their_certificate(
    start: Start, authority: Authority, kind: str
) -> None:
    foreign = Authority(authority.path.parent)
    seen = f"ca_file: '{authority.path}', timeout: 5"
    there = start("nats-server", cluster_config("there", inner=f"tls {{ {foreign.member().lines}, {seen} }}"))
    own = f"{authority.member().lines}, {seen}"
    careful = start(kind, cluster_config("careful", (route_port(there),), inner=f"tls {{ {own} }}"))
    careful.log.wait_line("TLS route handshake error: .*certificate")
    careless = start(kind, cluster_config("careless", (route_port(there),), inner=f"tls {{ {own}, insecure: true }}"))
    await until(lambda: is_meshed([there, careless]))
    assert page(careful, "/routez")["num_routes"] == 0


@pytest.mark.parametrize("kind", ["gnatswarm-1", "nats-server", "nats-server-2.15"])
async def test_a_member_may_pin_the_keys_of_others_whoever_dials(start: Start, authority: Authority, kind: str) -> None:
    good, bad = authority.member(), authority.member()

    def inner(pair: Pair, *pins: str) -> str:
        pinned = f", pinned_certs: [{', '.join(pins)}]" if pins else ""
        return f"tls {{ {pair.lines}, ca_file: '{authority.path}', timeout: 5{pinned} }}"

    here = start(kind, cluster_config("here", inner=inner(good, f"'{good.pin.upper()}'")))
    known = start("nats-server", cluster_config("known", (route_port(here),), inner=inner(good)))
    await until(lambda: is_meshed([here, known]))
    stranger = start("nats-server", cluster_config("stranger", (route_port(here),), inner=inner(bad)))
    here.log.wait_line("TLS route handshake error: certificate not pinned")
    dialler = start(kind, cluster_config("dialler", (route_port(stranger),), inner=inner(good, f"'{good.pin}'")))
    dialler.log.wait_line("TLS route handshake error: certificate not pinned")
    assert page(stranger, "/routez")["num_routes"] == 0
    assert page(dialler, "/routez")["num_routes"] == 0


@pytest.mark.parametrize("kind", ["gnatswarm-1", "nats-server-2.15"])
@pytest.mark.parametrize(
    ("option", "refused", "taken"),
    [
        ('min_version: "1.3"', "1.2", "1.3"),
        ("cipher_suites: [ TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384 ]", "AES128", "AES256"),
    ],
)
async def test_routes_have_the_versions_and_ciphers_of_the_tls_block(
    start: Start, authority: Authority, kind: str, option: str, refused: str, taken: str
) -> None:
    tls = f"tls {{ {authority.member().lines}, ca_file: '{authority.path}', timeout: 5, {option} }}"
    here = start(kind, cluster_config("here", inner=tls))

    async def hello(wanted: str) -> bytes:
        context = authority.client_context(authority.member())
        context.maximum_version = ssl.TLSVersion.TLSv1_3 if wanted == "1.3" else ssl.TLSVersion.TLSv1_2
        if wanted.startswith("AES"):
            context.set_ciphers(f"ECDHE-ECDSA-{wanted}-GCM-SHA{'256' if wanted == 'AES128' else '384'}")
        reader, writer = await asyncio.open_connection("127.0.0.1", route_port(here), ssl=context)
        try:
            return await reader.readexactly(5)
        finally:
            writer.close()

    with pytest.raises((ssl.SSLError, ConnectionError)):
        await hello(refused)
    assert await hello(taken) == b"INFO "


async def test_a_member_whose_authority_is_unknown_is_dialled_where_insecure_says_so(
    start: Start, authority: Authority, tmp_path: Path
) -> None:
    """The certificates of who dials are checked all the same, as in nats-server."""
    other = Authority(tmp_path)
    here = start(
        "nats-server",
        cluster_config("here", inner=f"tls {{ {authority.member().lines}, ca_file: '{authority.path}' }}"),
    )
    seed = (route_port(here),)
    careful = f"tls {{ {authority.member().lines}, ca_file: '{other.path}' }}"
    refused = start("gnatswarm-1", cluster_config("careful", seed, inner=careful))
    await asyncio.to_thread(refused.log.wait_line, "Error trying to connect to route .*certificate")
    careless = start(
        "gnatswarm-1", cluster_config("careless", seed, inner=careful.replace("tls {", "tls { insecure: true,"))
    )
    await until(lambda: is_meshed([careless, here]))
    context = other.client_context(authority.member())
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    reader, _ = await asyncio.open_connection("127.0.0.1", route_port(careless), ssl=context)
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await reader.readexactly(5)


async def test_a_member_that_stops_reading_harms_nobody_and_comes_back(start: Start, net: Net) -> None:
    """It is disconnected after write_deadline; meanwhile the others have every message."""
    first = start("gnatswarm-2-as-2.15", cluster_config("a", more='write_deadline: "300ms"'))
    others = [start(kind, cluster_config(kind, (route_port(first),))) for kind in ("nats-server", "gnatswarm-1")]
    await until(lambda: is_meshed([first, *others]))
    publisher, near, stopped, far = await net.clients([first, first, *others])
    for client in (near, stopped, far):
        await subscribed(client, "flood 1")
    await know(publisher, near, stopped, far)
    os.kill(others[0].pid, signal.SIGSTOP)
    body = b"PUB flood 100000\r\n%b\r\n" % (b"x" * 100_000)
    sent = 0
    while not first.log.text.count("Slow Consumer"):
        await publisher.send(body)
        await publisher.flush(30)
        sent += 1
        for client in (near, far):
            await arrived(client, 1)
    assert sent
    await until(lambda: page(first, "/varz")["slow_consumers"] == 1)
    counted = {"clients": 0, "routes": 1, "gateways": 0, "leafs": 0}
    assert page(first, "/varz")["slow_consumer_stats"] == counted
    os.kill(others[0].pid, signal.SIGCONT)
    await until(lambda: is_meshed([first, *others]))
    await know(publisher, stopped)


@pytest.mark.parametrize("kinds", [("gnatswarm-1", "nats-server"), ("gnatswarm-1", "gnatswarm-1")])
async def test_a_made_up_name_gives_way_and_a_wrong_one_is_refused(start: Start, kinds: tuple[str, str]) -> None:
    nameless = cluster_config("nameless").replace("name: marsh,", "")
    first = start(kinds[0], nameless)
    second = start(kinds[1], cluster_config("named", (route_port(first),)))
    await until(lambda: is_meshed([first, second]))
    await until(lambda: page(first, "/varz")["cluster"]["name"] == "marsh")
    other = cluster_config("other", (route_port(first),)).replace("name: marsh,", "name: moor,")
    third = start("gnatswarm-1", other)
    third.log.wait_line('Error trying to connect to route .*cluster name "marsh" does not match "moor"')
    assert page(third, "/routez")["num_routes"] == 0


async def test_members_below_one_hub_hear_it_once_and_lame_duck_mode_is_told(start: Start, net: Net) -> None:
    """Each member is a leaf node of the same hub, as servers of a cluster are: the hub passes nothing between them."""
    hub = start("nats-server", "server_name: hub\nleafnodes { listen: '127.0.0.1:-1' }")
    at = hub.log.wait_line(r"Listening for leafnode connections on \S*:(\d+)")[1]
    remote = f'leafnodes {{ remotes [ {{ url: "nats://127.0.0.1:{at}" }} ] }}'
    leaving = start("gnatswarm-1", cluster_config("leaving", more=remote))
    seed = (route_port(leaving),)
    staying = [start(kind, cluster_config(kind, seed, remote)) for kind in ("gnatswarm-1", "nats-server")]
    await until(lambda: is_meshed([leaving, *staying]))
    for broker in (leaving, *staying):
        broker.log.wait_line("Leafnode connection created")
    going, *others = clients = await net.clients([leaving, *staying, hub])
    for client in clients:
        await subscribed(client, "once 1")
    await all_know(clients)
    for client in clients:
        await client.send("PUB once 1\r\nx\r\n" * 10)
    await settled(clients)
    assert [len(client.inbox) for client in clients] == [40] * 4
    leaving.send_signal(signal.SIGUSR2)
    async with asyncio.timeout(20):
        for client in (going, *others[:2]):
            while not any(_without(frame, leaving.port) for frame in await client.flush()):
                pass
    # Who stays is reached to the end.
    await subscribed(going, "still 1")
    await know(others[0], going)


@pytest.mark.parametrize("kind", ["nats-server", "gnatswarm-2", "nats-server-2.15"])
async def test_a_lame_duck_tells_its_clients_once_to_leave_and_goes_on_to_tell_of_the_others(
    start: Start, net: Net, kind: str
) -> None:
    slow = "lame_duck_grace_period: '100s'\nlame_duck_duration: '200s'"
    leaving = start(kind, cluster_config("leaving", more=slow))
    seed = (route_port(leaving),)
    first, second = [start("gnatswarm-1", cluster_config(name, seed)) for name in ("first", "second")]
    await until(lambda: is_meshed([leaving, first, second]))
    clients = [await net.client(leaving) for _ in range(3)]
    unheard = await Client.connect(leaving.port, None)  # it has no PONG yet
    net.all.append(unheard)
    await unheard.send('CONNECT {"verbose":false,"protocol":1}\r\n')
    news: list[list[dict[str, Any]]] = [[] for _ in clients]

    async def told(*ports: int) -> None:
        """All have heard of these servers alone."""
        async with asyncio.timeout(20):
            for client, heard in zip(clients, news, strict=True):
                while not heard or sorted(heard[-1].get("connect_urls", [])) != sorted(f"127.0.0.1:{p}" for p in ports):
                    heard += [json.loads(frame.raw[5:]) for frame in await client.flush() if frame.verb == "INFO"]

    leaving.send_signal(signal.SIGUSR2)
    await told(first.port, second.port)
    assert [heard[-1].get("ldm") for heard in news] == [True] * 3
    second.kill()
    await told(first.port)
    assert [heard[-1].get("ldm") for heard in news] == [None] * 3
    third = start("gnatswarm-1", cluster_config("third", (route_port(first),)))
    await told(first.port, third.port)
    assert [sum("ldm" in one for one in heard) for heard in news] == [1] * 3
    if kind.startswith("gnat"):  # nats-server tells it of the others alone
        late = [json.loads(frame.raw[5:]) for frame in await unheard.flush() if frame.verb == "INFO"]
        late += [json.loads(frame.raw[5:]) for frame in await unheard.flush() if frame.verb == "INFO"]
        assert [one.get("ldm") for one in late] == [True]


def _without(frame: Frame, port: int) -> bool:
    """Whether it is an INFO whose connect_urls are without this port."""
    return frame.verb == "INFO" and f"127.0.0.1:{port}" not in json.loads(frame.raw[5:]).get("connect_urls", [])
