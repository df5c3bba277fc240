"""What is said on the port for members of a cluster, byte by byte, is what nats-server says there.

Each test is a member that writes frames itself, and runs on both. UPSTREAM.md says which test of nats-server is which
of these.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from gnatswarm.shards.boundary.rows import MOST_LISTED_BYTES
from tests.support.ports import free_port
from tests.support.raw_route import Heard, RawRoute, connect, hello
from tests.support.servers import Broker
from tests.support.turns import until
from tests.support.wire import Client
from tests.system.test_cluster import ACCOUNTS, Net, Start, cluster_config, ended, net, page, route_port, start, started

__all__ = ["net", "start"]  # fixtures

KINDS = ("gnatswarm-2", "nats-server")
DEADLINE_S = 40
both = pytest.mark.parametrize("kind", KINDS)

Join = Callable[..., Awaitable[RawRoute]]


@pytest.fixture(scope="module", params=KINDS)
def here(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """The server, with its clients in the account PLAIN unless they say who they are."""
    broker = started(str(request.param), cluster_config("here", more=ACCOUNTS))
    yield broker
    ended([broker])


@pytest.fixture
async def join(here: Broker) -> AsyncIterator[Join]:
    """Another member of its cluster, which has told it nothing yet: `join(more keys of its INFO)`."""
    routes: list[RawRoute] = []

    async def joined(**info: Any) -> RawRoute:
        name = str(info.pop("name", f"raw{uuid.uuid4().hex}"))
        routes.append(await RawRoute.dial(route_port(here), name, system="SYS", **info))
        lines = [line for line, _ in await routes[-1].talk()]
        routes[-1].wanted_before = {line[len("RS+ ") :] for line in lines if line.startswith("RS+ ")}
        return routes[-1]

    yield joined
    for route in routes:
        route.close()


def unique(*names: str) -> list[str]:
    """Subjects that no other test has."""
    test = uuid.uuid4().hex[:8]
    return [f"{name}.{test}" for name in names]


async def told(route: RawRoute, client: Client, account: str = "PLAIN") -> list[str]:
    """The interest that the member has been told of, up to all that the client has said so far."""
    mark = f"mark.{uuid.uuid4().hex}"
    found: list[str] = []
    async with asyncio.timeout(DEADLINE_S):
        for said, line in ((f"SUB {mark} mark", f"RS+ {account} {mark}"), ("UNSUB mark", f"RS- {account} {mark}")):
            await client.talk(f"{said}\r\nPING\r\n", expect_last="PONG\r\n")
            while line not in found:
                found += [line for line, _ in await route.talk()]
    # (clients of the test before may still be leaving)
    others = {f"RS- {wanted}" for wanted in route.wanted_before}
    return [line for line in found if line.startswith("RS") and mark not in line and line not in others]


async def heard(route: RawRoute, client: Client, account: str = "PLAIN") -> list[Heard]:
    """The messages that the member has been sent, up to all that the client has published so far."""
    mark = f"mark.{uuid.uuid4().hex}"
    found = await route.talk(f"RS+ {account} {mark}\r\n")
    await client.send(f"PUB {mark} 0\r\n\r\n")
    found += await route.until(f"RMSG {account} {mark} 0")
    await route.talk(f"RS- {account} {mark}\r\n")
    return [(line, payload) for line, payload in found if line.startswith(("RMSG", "HMSG"))]


async def said(client: Client, lines: str) -> None:
    await client.talk(lines + "PING\r\n", expect_last="PONG\r\n")


async def test_who_dials_is_told_at_once_who_listens(here: Broker, join: Join) -> None:
    info = (await join()).info
    assert info["server_name"] == "here" and info["server_id"] and info["cluster"] == "marsh"
    assert info["port"] == route_port(here) and info["headers"] is True and info["proto"] >= 1
    assert f"127.0.0.1:{here.port}" in info["connect_urls"]
    assert "client_id" not in info and "auth_required" not in info and "tls_required" not in info
    assert info["nonce"]


async def test_a_member_may_have_no_name(join: Join, here: Broker, net: Net) -> None:
    (subject,) = unique("plain")
    route, client = await join(server_name=""), await net.client(here)
    await said(client, f"SUB {subject} 1\r\n")
    assert await told(route, client) == [f"RS+ PLAIN {subject}"]
    other = await join(server_name="")
    assert await told(other, client) == []


async def test_interest_is_told_when_it_begins_and_when_it_ends(join: Join, here: Broker, net: Net) -> None:
    (subject,) = unique("plain")
    route, one, other = await join(), await net.client(here), await net.client(here)
    await said(one, f"SUB {subject} 1\r\nSUB {subject} 2\r\nSUB {subject}.> 3\r\n")
    assert await told(route, one) == [f"RS+ PLAIN {subject}", f"RS+ PLAIN {subject}.>"]
    await said(other, f"SUB {subject} 1\r\n")
    assert await told(route, other) == []
    await said(one, "UNSUB 1\r\nUNSUB 2\r\n")
    assert await told(route, one) == []
    await said(other, "UNSUB 1\r\n")
    assert await told(route, other) == [f"RS- PLAIN {subject}"]
    # A client that goes takes its interest with it.
    one.close()
    assert await _last(route, f"RS- PLAIN {subject}.>") == [f"RS- PLAIN {subject}.>"]


async def _last(route: RawRoute, line: str) -> list[str]:
    """What the member has been told, once this has come."""
    found: list[str] = []
    async with asyncio.timeout(DEADLINE_S):
        while line not in found:
            found += [line for line, _ in await route.talk()]
    return found


async def test_the_weight_of_a_queue_group_is_told_with_each_member(join: Join, here: Broker, net: Net) -> None:
    (subject,) = unique("work")
    route, one, other = await join(), await net.client(here), await net.client(here)
    line = f"RS+ PLAIN {subject} group"
    for client, sid, weight in ((one, 1, 1), (other, 1, 2), (other, 2, 3)):
        await said(client, f"SUB {subject} group {sid}\r\n")
        assert await told(route, client) == [f"{line} {weight}"]
    await said(one, "UNSUB 1\r\n")
    assert await told(route, one) == [f"{line} 2"]
    other.close()
    lines = await _last(route, f"RS- PLAIN {subject} group")
    assert lines[-1] == f"RS- PLAIN {subject} group" and set(lines[:-1]) <= {f"{line} 1"}


async def test_a_limit_of_messages_ends_interest_where_the_client_is(join: Join, here: Broker, net: Net) -> None:
    (subject,) = unique("few")
    route, client = await join(), await net.client(here)
    await said(client, f"SUB {subject} 1\r\nUNSUB 1 2\r\n")
    assert await told(route, client) == [f"RS+ PLAIN {subject}"]
    early = [line for line, _ in await route.talk(f"RMSG PLAIN {subject} 1\r\na\r\n" * 3)]
    assert len(await client.messages(2)) == 2
    assert [*early, *await told(route, client)] == [f"RS- PLAIN {subject}"]
    assert client.inbox == []


async def test_a_new_member_is_told_the_interest_that_there_is(join: Join, here: Broker, net: Net) -> None:
    subject, queue, gone = unique("plain", "work", "gone")
    client = await net.client(here)
    await said(client, f"SUB {subject} 1\r\nSUB {subject} 2\r\nSUB {gone} 3\r\nUNSUB 3\r\n")
    await said(client, "".join(f"SUB {queue} group {sid}\r\n" for sid in (4, 5, 6)))
    wanted = [f"RS+ PLAIN {subject}", f"RS+ PLAIN {queue} group 3"]
    for _ in range(2):
        route = await join()
        lines = await told(route, client)
        # (the way to a weight goes through 1: nats-server 2.9 counts changes)
        early = [line for line in lines if line in wanted]
        assert sorted(early) == sorted(wanted) or lines == [], lines
        assert not any(gone in line for line in lines)
        route.close()


async def test_clients_messages_are_sent_once_whatever_matches(join: Join, here: Broker, net: Net) -> None:
    (subject,) = unique("from")
    route, client = await join(), await net.client(here)
    await route.talk(f"RS+ PLAIN {subject}\r\nRS+ PLAIN from.*\r\nRS+ PLAIN {subject} g 1\r\n")
    await client.send(f"PUB {subject} 2\r\nok\r\n")
    await client.send(f"PUB {subject} re.ply 0\r\n\r\n")
    await client.send(f"HPUB {subject} re.ply 12 14\r\nNATS/1.0\r\n\r\nok\r\n")
    assert await heard(route, client) == [
        (f"RMSG PLAIN {subject} | g 2", b"ok"),
        (f"RMSG PLAIN {subject} + re.ply g 0", b""),
        (f"HMSG PLAIN {subject} + re.ply g 12 14", b"NATS/1.0\r\n\r\nok"),
    ]
    await route.talk(f"RS- PLAIN {subject} g\r\nRS- PLAIN from.*\r\n")
    await client.send(f"PUB {subject} 2\r\nok\r\nPUB {subject} re.ply 2\r\nok\r\nPUB {subject}.x 2\r\nno\r\n")
    assert await heard(route, client) == [
        (f"RMSG PLAIN {subject} 2", b"ok"),
        (f"RMSG PLAIN {subject} re.ply 2", b"ok"),
    ]
    await route.talk(f"RS- PLAIN {subject}\r\n")
    await client.send(f"PUB {subject} 2\r\nno\r\n")
    assert await heard(route, client) == []


async def test_a_member_without_headers_gets_what_is_behind_them(join: Join, here: Broker, net: Net) -> None:
    (subject,) = unique("cut")
    route, client = await join(headers=False), await net.client(here)
    await route.talk(f"RS+ PLAIN {subject}\r\n")
    await client.send(
        f"HPUB {subject} re.ply 12 14\r\nNATS/1.0\r\n\r\nok\r\nHPUB {subject} 12 12\r\nNATS/1.0\r\n\r\n\r\n"
    )
    assert await heard(route, client) == [
        (f"RMSG PLAIN {subject} re.ply 2", b"ok"),
        (f"RMSG PLAIN {subject} 0", b""),
    ]


async def test_messages_of_a_member_reach_clients(join: Join, here: Broker, net: Net) -> None:
    (subject,) = unique("to")
    route, one, other = await join(), await net.client(here), await net.client(here, headers=False, no_responders=False)
    for client in (one, other):
        await said(client, f"SUB {subject} 1\r\nSUB to.* 2\r\nSUB {subject} g 3\r\n")
    body = bytes(range(256))
    await route.talk(
        f"RMSG PLAIN {subject} 2\r\nok\r\nRMSG PLAIN {subject} re.ply 0\r\n\r\n".encode()
        + b"RMSG PLAIN %b 256\r\n%b\r\n" % (subject.encode(), body)
        + b"HMSG PLAIN %b re.ply 12 14\r\nNATS/1.0\r\n\r\nok\r\n" % subject.encode()
    )
    for client, headers in ((one, b"NATS/1.0\r\n\r\n"), (other, b"")):
        frames = await client.messages(8)
        for sid in ("1", "2"):
            got = [(frame.reply, frame.headers, frame.payload) for frame in frames if frame.sid == sid]
            assert got == [("", b"", b"ok"), ("re.ply", b"", b""), ("", b"", body), ("re.ply", headers, b"ok")]
        await client.flush()
        assert client.inbox == []  # nothing for a queue group that was not named


async def test_only_named_queue_groups_get_a_message_one_member_of_each(join: Join, here: Broker, net: Net) -> None:
    (subject,) = unique("work")
    route, clients = await join(), await net.clients([here] * 3)
    for client in clients:
        await said(client, f"SUB {subject} one 1\r\nSUB {subject} two 2\r\nSUB {subject} 3\r\n")
    many = 60
    await route.talk(
        f"RMSG PLAIN {subject} | one 1\r\nx\r\nRMSG PLAIN {subject} + re.ply two one none 1\r\ny\r\n" * many
    )
    for client in clients:
        await client.flush()
    frames = [(number, frame) for number, client in enumerate(clients) for frame in client.inbox]
    assert sum(frame.sid == "1" for _, frame in frames) == 2 * many
    assert [frame.reply for _, frame in frames if frame.sid == "2"] == ["re.ply"] * many
    assert sum(frame.sid == "3" for _, frame in frames) == 2 * many * len(clients)
    for sid in ("1", "2"):
        assert {number for number, frame in frames if frame.sid == sid} == {0, 1, 2}


async def test_a_hundred_groups_of_a_member_are_named_in_one_frame(join: Join, here: Broker, net: Net) -> None:
    (subject,) = unique("many")
    route, client = await join(), await net.client(here)
    groups = [f"group{number}" for number in range(100)]
    await route.talk("".join(f"RS+ PLAIN {subject} {group} 1\r\n" for group in groups))
    await client.send(f"PUB {subject} 1\r\nx\r\n")
    frames = await heard(route, client)
    named = [name for line, _ in frames for name in line.split("|")[1].split()[:-1]]
    assert sorted(named) == sorted(groups)
    assert all(payload == b"x" for _, payload in frames)


async def test_what_comes_from_a_member_goes_to_no_other_member(join: Join, here: Broker, net: Net) -> None:
    subject, work = unique("hop", "work")
    sender, route, client = await join(), await join(), await net.client(here)
    await said(client, f"SUB {subject} 1\r\nSUB {work} g 2\r\n")
    for member in (sender, route):
        await member.talk(f"RS+ PLAIN {subject}\r\nRS+ PLAIN {work} g 1\r\n")
    assert await told(route, client) is not None
    await sender.talk(f"RMSG PLAIN {subject} 1\r\nx\r\nRMSG PLAIN {work} | g 1\r\nx\r\n" * 20)
    assert len(await client.messages(40)) == 40
    for member in (sender, route):
        assert await heard(member, client) == []
        # … and nobody is told what another member is interested in.
        assert not any("hop" in line for line in await told(member, client))


async def test_a_member_has_one_connection(join: Join, here: Broker, net: Net) -> None:
    """The second with its id is closed without a word, or gets nothing: each message comes once."""
    (subject,) = unique("once")
    route, client = await join(), await net.client(here)
    second = await RawRoute.dial(route_port(here), route.name, system="SYS")
    await route.talk(f"RS+ PLAIN {subject}\r\n")
    second.write("PING\r\n")
    await client.send(f"PUB {subject} 1\r\nx\r\n")
    assert await heard(route, client) == [(f"RMSG PLAIN {subject} 1", b"x")]
    async with asyncio.timeout(DEADLINE_S):
        try:
            while (frame := await second.read())[0] != "PONG":
                assert not frame[0].startswith(("RMSG", "RS+ PLAIN"))
        except EOFError:
            pass
    second.close()


async def test_interest_ends_with_the_connection(join: Join, here: Broker, net: Net) -> None:
    subject, work = unique("gone", "gone.work")
    route, client = await join(), await net.client(here)
    await route.talk(f"RS+ PLAIN {subject}\r\nRS+ PLAIN {work} g 5\r\n")
    await said(client, "SUB answers.* 1\r\n")
    await client.send(f"PUB {subject} answers.x 0\r\n\r\nPUB {work} answers.y 0\r\n\r\n")
    assert len(await heard(route, client)) == 2
    route.close()
    async with asyncio.timeout(DEADLINE_S):
        for name in (subject, work):
            while not any(b"503" in frame.headers for frame in client.inbox):
                await client.talk(f"PUB {name} answers.z 0\r\n\r\nPING\r\n", expect_last="PONG\r\n")
            client.inbox.clear()


async def test_accounts_have_their_own_interest(join: Join, here: Broker, net: Net) -> None:
    (subject,) = unique("mine")
    route, plain, exporting = await join(), await net.client(here), await net.client(here, "e")
    for client, account in ((plain, "PLAIN"), (exporting, "EXP")):
        await said(client, f"SUB {subject} 1\r\n")
        assert await told(route, client, account) == [f"RS+ {account} {subject}"]
    await route.talk(f"RMSG EXP {subject} 1\r\ne\r\nRMSG PLAIN {subject} 1\r\np\r\nRMSG OTHER {subject} 1\r\no\r\n")
    for client, payload in ((plain, b"p"), (exporting, b"e")):
        assert [frame.payload for frame in await client.messages(1)] == [payload]
        await client.flush()
        assert client.inbox == []
    # Interest in one account is none in another; in an unknown one it does no harm.
    await route.talk(f"RS+ EXP {subject}.x\r\nRS+ OTHER {subject}.x\r\n")
    await plain.send(f"PUB {subject}.x 1\r\np\r\n")
    await exporting.send(f"PUB {subject}.x 1\r\ne\r\n")
    messages = [*await heard(route, plain), *await heard(route, exporting, "EXP")]
    assert messages == [(f"RMSG EXP {subject}.x 1", b"e")]


async def test_an_imported_stream_is_wanted_in_both_accounts(join: Join, here: Broker, net: Net) -> None:
    (subject,) = unique("str")
    route, importing, exporting = await join(), await net.client(here, "i"), await net.client(here, "e")
    await said(importing, f"SUB {subject} 1\r\n")
    lines = [*await told(route, importing, "IMP"), *await told(route, exporting, "EXP")]
    assert sorted(lines) == [f"RS+ EXP {subject}", f"RS+ IMP {subject}"]
    for account in ("EXP", "IMP"):
        await route.talk(f"RMSG {account} {subject} 3\r\n{account}\r\n")
    assert sorted(frame.payload for frame in await importing.messages(2)) == [b"EXP", b"IMP"]
    await said(importing, "UNSUB 1\r\n")
    lines = [*await told(route, importing, "IMP"), *await told(route, exporting, "EXP")]
    assert sorted(lines) == [f"RS- EXP {subject}", f"RS- IMP {subject}"]


async def test_interest_in_answers_ends_with_the_shard_that_asked(start: Start, net: Net) -> None:
    """As long as it lives it stays, with nobody left who asks: on nats-server, too."""
    broker = start("gnatswarm-2", cluster_config("here", more=ACCOUNTS))
    route = await RawRoute.dial(route_port(broker), "raw", system="SYS")
    await route.talk("RS+ EXP svc\r\n")
    asked: dict[int, str] = {}
    while len(asked) < 2:
        asker = await net.client(broker, "i")
        await asker.send("PUB svc back 1\r\n?\r\n")
        while "svc" not in (line := (await route.frame())[0]):
            assert line.startswith("RS+ EXP _R_."), line
            asked[int(line.split()[2][4:6], 16)] = line.split()[2]
        asker.close()
    shards = {row["shard"]: row["pid"] for row in page(broker, "/shardz")["shards"]}
    os.kill(shards[1], signal.SIGKILL)
    assert (await route.frame())[0] == f"RS- EXP {asked[1]}"
    assert [line for line, _ in await route.talk()] == []
    route.close()


async def test_a_request_to_an_imported_service_goes_out_in_the_exporters_account(
    join: Join, here: Broker, net: Net
) -> None:
    route, asker, exporter = await join(), await net.client(here, "i"), await net.client(here, "e")
    await route.talk("RS+ EXP svc\r\n")
    await said(asker, "SUB back.* 1\r\n")
    for number in range(3):
        await asker.send(f"PUB svc back.{number} 1\r\n?\r\n")
        async with asyncio.timeout(DEADLINE_S):
            frames: list[Heard] = []
            while not any(line.split()[1:3] == ["EXP", "svc"] for line, _ in frames):
                frames += await route.talk()
        (line, payload), *_ = [frame for frame in frames if frame[0].split()[2] == "svc"]
        words = line.split()
        reply = words[3]
        assert payload.endswith(b"?") and reply.startswith("_R_.")
        if words[0] == "HMSG":
            assert b"Nats-Request-Info" in payload
        # Interest in the answer is told before the first request.
        if number == 0:
            wanted = [line for line, _ in frames if line.startswith("RS+ EXP _R_.")]
            assert wanted and reply.startswith(wanted[0].split()[2].rstrip(">"))
        await route.talk(f"RMSG EXP {reply} 1\r\n!\r\n")
        assert [(frame.subject, frame.payload) for frame in await asker.messages(1)] == [(f"back.{number}", b"!")]
    # What comes by a route in the importing account was followed where it was asked.
    await route.talk("RS- EXP svc\r\n")
    await said(exporter, "SUB svc 1\r\n")
    await route.talk("RMSG IMP svc re.ply 1\r\n?\r\n")
    await exporter.flush()
    assert exporter.inbox == []


async def test_clients_are_told_of_a_members_addresses(join: Join, here: Broker, net: Net) -> None:
    client = await net.client(here)
    route = await join(name="told", connect_urls=["192.0.2.1:4222", "192.0.2.2:4222"])

    async def urls_are(wanted: set[str]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while True:
                infos = [json.loads(frame.raw[5:]) for frame in await client.flush() if frame.verb == "INFO"]
                if infos and {url for url in infos[-1]["connect_urls"] if url.startswith("192.")} == wanted:
                    return

    await urls_are({"192.0.2.1:4222", "192.0.2.2:4222"})
    newcomer = await net.client(here)
    assert {"192.0.2.1:4222", "192.0.2.2:4222"} <= set(newcomer.info["connect_urls"])
    # A later INFO of the member changes nothing but that it is to be left.
    route.write(hello("told", connect_urls=["192.0.2.3:4222"]))
    await route.talk()
    route.write(hello("told", ldm=True))
    await urls_are(set())
    again = await join(connect_urls=["192.0.2.4:4222"])
    await urls_are({"192.0.2.4:4222"})
    again.close()
    await urls_are(set())


async def test_members_are_told_of_a_newcomer_and_where_it_listens(join: Join, here: Broker) -> None:
    first = await join(port=16222)
    second = await join(port=16223, nonce="secret", unknown=1)
    third = await join(port=16224, ip="nats-route://192.0.2.7:6222/")

    async def told_of(route: RawRoute, name: str) -> dict[str, object]:
        async with asyncio.timeout(DEADLINE_S):
            while True:
                for info in route.infos:
                    if info["server_id"] == name:
                        return info
                await route.talk()

    info = await told_of(first, second.name)
    assert (info["ip"], info["port"]) == ("nats-route://127.0.0.1:16223/", 16223)
    assert "nonce" not in info
    for route in (first, second):
        assert (await told_of(route, third.name))["ip"] == "nats-route://192.0.2.7:6222/"
    # Who is there already dials the newcomer, which is not told of it.
    assert [info["server_id"] for info in third.infos if info["server_id"] in (first.name, second.name)] == []
    assert [info["server_id"] for info in second.infos if info["server_id"] == first.name] == []


async def test_a_client_may_not_name_a_reply_subject_of_servers(here: Broker, net: Net) -> None:
    client = await net.client(here)
    await client.send("PUB any _R_.abcdef.ghijkl 0\r\n\r\n")
    assert any(b"Permissions Violation for Publish with Reply of" in frame.raw for frame in await client.flush())


PERMITTED = 'permissions { import: ["in.>"], export: { allow: ["out.>"], deny: ["out.no"] } }'


@both
async def test_permissions_of_the_cluster_hold_both_ways(start: Start, net: Net, kind: str) -> None:
    """`import` is what others are told that clients here want, `export` what these may want.

    A member that sends what it was not asked for is trusted, as by nats-server.
    """
    here = start(kind, cluster_config("here", inner=PERMITTED))
    route = await RawRoute.dial(route_port(here), "raw")
    client = await net.client(here)
    assert "in.>" in json.dumps(route.info["import"]) and "out.no" in json.dumps(route.info["export"])
    await said(client, "SUB in.x 1\r\nSUB secret 2\r\nSUB out.x 3\r\nSUB in.y g 4\r\n")
    await said(client, "SUB in.end 5\r\n")
    lines = await _last(route, "RS+ $G in.end")
    assert sorted(line for line in lines if line.startswith("RS+")) == [
        "RS+ $G in.end",
        "RS+ $G in.x",
        "RS+ $G in.y g 1",
    ]
    await route.talk("RS+ $G out.x\r\nRS+ $G out.no\r\nRS+ $G secret\r\nRS+ $G out.* g 1\r\nRS+ $G out.end\r\n")
    for subject in ("out.x", "out.no", "secret", "in.x"):
        await client.send(f"PUB {subject} 1\r\nx\r\n")
    await client.send("PUB out.end 0\r\n\r\n")
    messages = [line for line, _ in await route.until("RMSG $G out.end | g 0") if line.startswith("RMSG")]
    assert messages == ["RMSG $G out.x | g 1"]
    await client.flush()
    client.inbox.clear()
    # What is not exported counts as no interest.
    await said(client, "SUB back 9\r\nUNSUB 2\r\n")
    await client.send("PUB secret back 0\r\n\r\n")
    (answer,) = await client.messages(1, DEADLINE_S)
    assert answer.headers.startswith(b"NATS/1.0 503")
    await said(client, "SUB secret 2\r\n")
    for gone, left in (("out.no", 3), ("secret", 3), ("out.x", 2)):
        await route.talk(f"RS- $G {gone}\r\n")
        (row,) = page(here, "/routez")["routes"]
        assert row["subscriptions"] == left
    await route.talk("RMSG $G secret 1\r\nx\r\nRMSG $G in.x 1\r\nx\r\nRMSG $G in.y | g 1\r\nx\r\n")
    assert [frame.sid for frame in await client.messages(3)] == ["2", "1", "4"]
    route.close()


@both
async def test_a_low_max_pending_is_none_for_what_a_member_is_told(start: Start, net: Net, kind: str) -> None:
    here = start(kind, cluster_config("here", more="max_payload: 10000\nmax_pending: 20000"))
    client = await net.client(here)
    subjects = [f"{'x' * 30}.{number}" for number in range(5000)]
    for at in range(0, len(subjects), 500):
        await said(
            client, "".join(f"SUB {name} {number}\r\n" for number, name in enumerate(subjects[at : at + 500], at))
        )
    route = await RawRoute.dial(route_port(here), "raw")
    found: set[str] = set()
    async with asyncio.timeout(DEADLINE_S):
        while len(found) < len(subjects):
            found |= {line for line, _ in await route.talk() if line.startswith("RS+ $G x")}
    assert found == {f"RS+ $G {name}" for name in subjects}
    route.close()


class Listening:
    """A member that is dialled: its connections, in the order in which they came."""

    def __init__(self) -> None:
        self.came: asyncio.Queue[RawRoute] = asyncio.Queue()

    async def open(self) -> int:
        """Listen; returns the port."""
        self._server = await asyncio.start_server(self._on_connection, "127.0.0.1", 0, limit=1 << 24)
        return int(self._server.sockets[0].getsockname()[1])

    def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.came.put_nowait(RawRoute(reader, writer, "dialled"))

    async def next(self) -> RawRoute:
        async with asyncio.timeout(DEADLINE_S):
            return await self.came.get()

    def close(self) -> None:
        self._server.close()


@both
async def test_a_configured_member_is_dialled_again_and_told_the_interest(start: Start, net: Net, kind: str) -> None:
    there = Listening()
    port = await there.open()
    here = start(kind, cluster_config("here", (port,)).replace("nats://", "nats://u:p@"))
    client = await net.client(here)
    await said(client, "SUB kept 1\r\n")
    for attempt in range(2):
        route = await there.next()
        route.write(hello("dialled", port=port))
        lines = [(await route.read())[0], (await route.read())[0]]
        assert lines[0].startswith("CONNECT ") and lines[1].startswith("INFO "), lines
        stated, info = json.loads(lines[0][8:]), json.loads(lines[1][5:])
        assert (stated["name"], stated["cluster"]) == (info["server_id"], "marsh")
        assert (stated["user"], stated["pass"], stated["headers"], stated["verbose"]) == ("u", "p", True, False)
        assert (info["server_name"], info["port"]) == ("here", route_port(here))
        found: list[str] = []
        while "RS+ $G kept" not in found:
            found += [line for line, _ in await route.talk()]
        assert found.count("RS+ $G kept") == 1, attempt
        route.close()
    there.close()


@both
async def test_a_member_that_others_tell_of_is_dialled_once(start: Start, net: Net, kind: str) -> None:
    told_of = Listening()
    port = await told_of.open()
    here = start(kind, cluster_config("here", inner="connect_retries: 0"))
    route = await RawRoute.dial(route_port(here), "raw")
    route.write(hello("other", port=port, ip=f"nats-route://127.0.0.1:{port}/"))
    came = await told_of.next()
    came.write(hello("other", port=port))
    client = await net.client(here)
    await came.talk("RS+ $G from.here\r\n")
    await route.talk("RS+ $G from.here\r\n")
    await client.send("PUB from.here 1\r\nx\r\n")
    for member in (route, came):
        while (frame := await member.frame())[0] != "RMSG $G from.here 1":
            assert not frame[0].startswith("RMSG")
    # Told again while it is connected, it is not dialled again.
    route.write(hello("other", port=port, ip=f"nats-route://127.0.0.1:{port}/"))
    await route.talk()
    assert told_of.came.empty()
    for member in (route, came):
        member.close()
    told_of.close()


@both
async def test_a_list_of_routes_may_name_the_server_itself(start: Start, net: Net, kind: str) -> None:
    """It dials itself, learns it from INFO, and has no route; others are not disturbed."""
    port = free_port()
    here = start(kind, cluster_config("here", (port,), port=port))
    route = await RawRoute.dial(route_port(here), "raw")
    client = await net.client(here)
    await said(client, "SUB once 1\r\n")
    await client.talk("PUB once 1\r\nx\r\nPING\r\n", expect_last="PONG\r\n")
    await route.talk("RMSG $G once 1\r\ny\r\n")
    assert [frame.payload for frame in await client.messages(2)] == [b"x", b"y"]
    await client.flush()
    assert client.inbox == []
    route.close()


@both
@pytest.mark.parametrize(
    ("first", "answer"),
    [
        (connect("raw", user="u", **{"pass": "wrong"}), "-ERR 'Authorization Violation'"),
        (connect("raw"), "-ERR 'Authorization Violation'"),
        ("INFO {}\r\n", "-ERR 'Authorization Violation'"),
        ("PING\r\n", "-ERR 'Authorization Violation'"),
        ("PONG\r\n", "-ERR 'Authorization Violation'"),
        ("-ERR 'x'\r\n", "-ERR 'Authorization Violation'"),
        ("", "-ERR 'Authentication Timeout'"),
    ],
    ids=["wrong", "none", "INFO first", "PING first", "PONG first", "an error first", "silent"],
)
async def test_who_does_not_log_in_is_no_member(start: Start, kind: str, first: str, answer: str) -> None:
    timeout_s = 30 if first else 2
    inner = f"authorization {{ user: u, password: p, timeout: {timeout_s} }}"
    here = start(kind, cluster_config("here", inner=inner))
    route = RawRoute(*await asyncio.open_connection("127.0.0.1", route_port(here)), "raw")
    line, _ = await route.read()
    assert json.loads(line[5:])["auth_required"] is True
    route.write(first)
    assert [line for line in await route.ended() if line != "PING"] == [answer]  # (which comes within two seconds)
    # … and who does is one.
    right = RawRoute(*await asyncio.open_connection("127.0.0.1", route_port(here)), "right")
    right.write(connect("right", user="u", **{"pass": "p"}) + hello("right"))
    await right.read()
    await right.talk()
    right.close()


async def test_who_is_no_member_writes_no_long_line_in_the_log(start: Start) -> None:
    here = start(
        "gnatswarm-1-as-2.15", cluster_config("here", inner="authorization { user: u, password: p, timeout: 30 }")
    )
    route = RawRoute(*await asyncio.open_connection("127.0.0.1", route_port(here)), "raw")
    await route.read()
    route.write(connect("raw", user="u" * 100_000))
    assert await route.ended() == ["-ERR 'Authorization Violation'"]
    assert here.log.wait_line("authentication error - User (.*)")[1] == f'"{"u" * 1024}"'


async def test_who_never_says_who_it_is_does_not_stay(start: Start) -> None:
    """CONNECT is not enough: INFO names the member, and takes no longer."""
    here = start("gnatswarm-1", cluster_config("here", inner="authorization { timeout: 0.5 }"))
    route = RawRoute(*await asyncio.open_connection("127.0.0.1", route_port(here)), "raw")
    await route.read()
    route.write(connect("raw"))
    assert "-ERR 'Authentication Timeout'" in await route.ended()


async def test_a_member_that_says_what_cannot_be_told_to_others_is_refused(start: Start) -> None:
    """JSON nested some 980 deep could be read, but not written.

    When such a connection took the place of its member's first one, the gateway ended.
    """
    here = start("gnatswarm-1", cluster_config("here"))
    other = await RawRoute.dial(route_port(here), "other")
    await other.talk()
    first = await RawRoute.dial(route_port(here), "twice", port=7777)
    await first.talk()
    second = RawRoute(*await asyncio.open_connection("127.0.0.1", route_port(here)), "twice")
    nested = "[" * 100 + "]" * 100
    second.write(connect("twice") + hello("twice", port=7777)[:-3] + f', "x": {nested}}}\r\n')
    await second.ended()
    first.close()
    await other.talk()  # it is still one
    here.log.wait_line("INFO cannot be read: nested more than 8 deep")
    other.close()


async def test_a_member_that_is_dialled_and_says_nothing_is_dialled_again(start: Start) -> None:
    """It has as long to say who it is as one that dials; another address of its name may be tried then.

    Until it has it is not pinged, however often others are: what comes before CONNECT is refused.
    """
    came: asyncio.Queue[asyncio.StreamReader] = asyncio.Queue()
    silent = await asyncio.start_server(lambda reader, _: came.put_nowait(reader), "127.0.0.1", 0)
    at = silent.sockets[0].getsockname()[1]
    inner = 'authorization { timeout: 0.5 }\nping_interval: "50ms"'
    here = start("gnatswarm-1", cluster_config("here", routes=(at,), inner=inner))
    async with asyncio.timeout(DEADLINE_S):
        first = await came.get()
        assert await first.read() == b""
        await came.get()
    here.log.wait_line(rf"Error trying to connect to route 127.0.0.1:{at} \(attempt 1\): no INFO within 0.5 s")
    silent.close()


async def test_so_many_unknown_connections_may_wait_and_members_come_in_beside_them(start: Start) -> None:
    """A flood of connections that say nothing takes no more descriptors than so many, and fills no log."""
    # (so long that on a busy machine none of them is closed for its silence before the last one comes)
    here = start("gnatswarm-1", cluster_config("here", inner="authorization { timeout: 60 }"))
    member = await RawRoute.dial(route_port(here), "member")
    await member.talk()
    silent = [await asyncio.open_connection("127.0.0.1", route_port(here)) for _ in range(300)]
    other = await RawRoute.dial(route_port(here), "other")
    await other.talk()
    await member.talk()  # it is still one
    closed = 300 + 1 - 256
    async with asyncio.timeout(DEADLINE_S):
        for reader, _ in silent[:closed]:  # the oldest ones
            await reader.read()
    told = r"Too many connections to the port for members .* \(256 may wait\): closed (\d+)"
    await until(lambda: sum(map(int, re.findall(told, here.log.text))) == closed)
    assert len(re.findall(told, here.log.text)) < closed / 2
    for _, writer in silent:
        writer.close()
    member.close()
    other.close()


@pytest.mark.parametrize("kind", [*KINDS, "gnatswarm-2-as-2.15", "nats-server-2.15"])
async def test_a_page_lists_what_a_member_wants(kind: str, start: Start, net: Net) -> None:
    broker = start(kind, cluster_config("here", more=ACCOUNTS))
    is_newer = broker.kind.compatibility != "2.9"
    route = await RawRoute.dial(route_port(broker), "raw", system="SYS", lnoc=True, lnocu=True)
    words = ["PLAIN a", "EXP a", "PLAIN b.* q", "PLAIN a q", "EXP svc"]
    await route.talk("".join(f"RS+ {one}{' 1' * one.endswith('q')}\r\n" for one in words))
    await route.talk(
        "RS+ PLAIN b.* q 3\r\nRS+ UNKNOWN z\r\nLS+ leafs PLAIN leaf\r\nRS+ EXP gone q 2\r\nRS- EXP gone q\r\n"
    )

    async def listed(query: str) -> dict[str, Any]:
        rows = (await asyncio.to_thread(page, broker, f"/routez{query}"))["routes"]
        (row,) = [row for row in rows if row["remote_id"] == "raw" and row["subscriptions"]]
        assert row["subscriptions"] == 6
        return {key: value for key, value in row.items() if key.startswith("subscriptions_")}

    assert await listed("") == await listed("?subs=0") == {}
    subjects = (await listed("?subs=1"))["subscriptions_list"]
    assert sorted(subjects) == ["a", "a", "a", "b.*", "leaf", "svc"]
    details = (await listed("?subs=detail"))["subscriptions_list_detail"]
    keys = {*((f"R {one}" for one in words) if is_newer else words), "L leafs PLAIN leaf" if is_newer else "PLAIN leaf"}
    assert {one["sid"] for one in details} == keys and len(details) == 6
    (group,) = [one for one in details if "b.*" in one["sid"]]
    assert list(group) == ["subject", "qgroup", "sid", "msgs", "cid"]
    assert (group["subject"], group["qgroup"], group["msgs"]) == ("b.*", "q", 0)
    # A user of the system account may ask for the same.
    asker = await net.client(broker, "s")
    await said(asker, "SUB answer 1\r\n")
    for options, key in (("subscriptions", "_list"), ("subscriptions_detail", "_list_detail"), ("offset", "")):
        body = json.dumps({options: 1 if options == "offset" else True})
        await asker.send(f"PUB $SYS.REQ.SERVER.PING.ROUTEZ answer {len(body)}\r\n{body}\r\n")
        (answer,) = await asker.messages(1, DEADLINE_S)
        (row, *_) = [one for one in json.loads(answer.payload)["data"]["routes"] if one["subscriptions"]]
        assert [name for name in row if name.startswith("subscriptions_")] == [f"subscriptions{key}"] * bool(key)
    route.close()


async def test_a_member_with_long_subjects_is_shown_with_some_of_them(start: Start) -> None:
    """All of them were 24 MB, more than the gateway can tell at once: the page showed no member at all."""
    broker = start("gnatswarm-1", cluster_config("here", more=ACCOUNTS))
    route = await RawRoute.dial(route_port(broker), "raw", system="SYS")
    await route.talk("".join(f"RS+ PLAIN {number}.{'s' * 4000}\r\n" for number in range(3000)))
    rows = (await asyncio.to_thread(page, broker, "/routez?subs=1"))["routes"]
    (row,) = [row for row in rows if row["remote_id"] == "raw" and row["subscriptions"]]
    assert row["subscriptions"] == 3000
    assert MOST_LISTED_BYTES - 10_000 < 2 * sum(map(len, row["subscriptions_list"])) <= MOST_LISTED_BYTES
    route.close()
