"""What the system account and the pages say of leaf nodes: who comes, who goes, who is refused, and how many there are.

The same on gnatswarm in both modes and on both versions of nats-server.
"""

from __future__ import annotations

import asyncio
import json
import urllib.request
from typing import Any

import pytest

from tests.support.leaves import Net, hub_port, know
from tests.support.ports import free_port
from tests.support.servers import Broker
from tests.support.turns import until
from tests.support.wire import Client
from tests.system.test_leaf import Start, net, start

__all__ = ["net", "start"]
KINDS = ("gnatswarm-2", "gnatswarm-2-as-2.15", "nats-server", "nats-server-2.15")
NEWER = ("gnatswarm-2-as-2.15", "nats-server-2.15")
ACCOUNTS = """
http: "127.0.0.1:-1"
accounts { A { users: [ {user: a, password: a} ] }, SYS { users: [ {user: s, password: s} ] } }
system_account: SYS
"""


async def events_of(client: Client, subject: str, count: int) -> list[dict[str, Any]]:
    """So many events of this subject, as soon as they are there."""
    async with asyncio.timeout(20):
        while True:
            await client.flush()
            found = [json.loads(frame.payload) for frame in client.inbox if frame.subject == subject]
            if len(found) >= count:
                return found


async def page(broker: Broker, path: str) -> Any:
    port = int(broker.log.wait_line(r"Starting http monitor on \S*:(\d+)")[1])

    def fetch() -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
            return json.load(answer)

    return await asyncio.to_thread(fetch)


@pytest.mark.parametrize("kind", KINDS)
async def test_leaf_nodes_are_told_of_like_clients(start: Start, net: Net, kind: str) -> None:
    up_port = free_port()
    remote = f'remotes [ {{ url: "nats://a:a@127.0.0.1:{up_port}", account: A }} ]'
    here = start(kind, f'server_name: here\nleafnodes {{ listen: "127.0.0.1:-1", {remote} }}\n{ACCOUNTS}')
    system = await net.client(here, **{"user": "s", "pass": "s"})
    await system.talk(
        "SUB $SYS.ACCOUNT.A.> 1\r\nSUB $SYS.SERVER.*.CLIENT.AUTH.ERR 2\r\nPING\r\n", expect_last="PONG\r\n"
    )

    up = start("nats-server", f'server_name: up\nleafnodes {{ listen: "127.0.0.1:{up_port}" }}\n{ACCOUNTS}')
    told = 0
    if kind in NEWER:  # 2.9 publishes only the end of a connection that it has made itself
        (event,) = await events_of(system, "$SYS.ACCOUNT.A.CONNECT", 1)
        who = event["client"]
        assert (who["kind"], who["acc"], who["host"]) == ("Leafnode", "A", "127.0.0.1")
        assert not {"user", "name", "lang", "ver", "client_type"} & set(who)
        told = 1

    below_url = f"nats://a:a@127.0.0.1:{hub_port(here)}"
    below = start(
        "nats-server",
        f'server_name: below\nleafnodes {{ remotes [ {{ url: "{below_url}", account: A }} ] }}\n{ACCOUNTS}',
    )
    *_, event = await events_of(system, "$SYS.ACCOUNT.A.CONNECT", told + 1)
    who = event["client"]
    assert event["type"] == "io.nats.server.advisory.v1.client_connect"
    assert (who["kind"], who["acc"], who["user"], who["name"]) == ("Leafnode", "A", "a", "below")
    assert who["ver"] == "2.9.10"
    assert who.get("name_tag") == ("A" if kind in NEWER else None)

    counts: list[dict[str, Any]] = []

    async def knows_both() -> None:
        while not counts or counts[-1]["leafnodes"] < 2:
            counts[:] = await events_of(system, "$SYS.ACCOUNT.A.SERVER.CONNS", 1)

    await asyncio.wait_for(knows_both(), 20)
    assert (counts[-1]["conns"], counts[-1]["leafnodes"], counts[-1]["total_conns"]) == (0, 2, 2)
    detail = (await page(here, "/accountz?acc=A"))["account_detail"]
    assert (detail["leafnode_connections"], detail["client_connections"]) == (2, 0)
    shown = [one["acc"] for one in (await page(here, "/accstatz"))["account_statz"]]
    assert ("A" in shown) == (kind in NEWER)
    (row,) = [one for one in (await page(here, "/accstatz?unused=1"))["account_statz"] if one["acc"] == "A"]
    assert (row["conns"], row["leafnodes"], row["total_conns"]) == (0, 2, 2)

    at_here = await net.client(here, **{"user": "a", "pass": "a"})
    at_below = await net.client(below, **{"user": "a", "pass": "a"})
    await know(at_below, at_here)
    below.stop()
    (event,) = await events_of(system, "$SYS.ACCOUNT.A.DISCONNECT", 1)
    assert event["client"]["name"] == "below" and event["client"]["stop"]
    # A connection of which not everything was read is reset.
    assert event["reason"] in ("Client Closed", "Read Error")
    assert event["sent"]["msgs"] >= 1
    up.stop()
    _, event = await events_of(system, "$SYS.ACCOUNT.A.DISCONNECT", 2)
    assert event["client"]["kind"] == "Leafnode" and event["reason"] in ("Client Closed", "Read Error")


WITHOUT_USERS = ACCOUNTS.replace("users: [ {user: s, password: s} ]", "")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", ["member", "leaf-node", "hub"])
async def test_users_of_another_server_hear_of_a_broker_whose_system_account_has_none(
    start: Start, net: Net, kind: str, way: str
) -> None:
    """It is a member of their cluster, or their account is shared over a leaf node connection, whoever has dialled."""
    if way == "member":
        port = free_port()
        asking = start(
            "nats-server", f"server_name: asking\ncluster {{ name: c, listen: '127.0.0.1:{port}' }}\n{ACCOUNTS}"
        )
        more = f"cluster {{ name: c, listen: '127.0.0.1:-1', routes: ['nats://127.0.0.1:{port}'] }}"
        here = start(kind, f"server_name: here\n{more}\n{WITHOUT_USERS}")
    elif way == "leaf-node":
        asking = start("nats-server", f"server_name: asking\nleafnodes {{ listen: '127.0.0.1:-1' }}\n{ACCOUNTS}")
        remote = f"{{ url: 'nats://s:s@127.0.0.1:{hub_port(asking)}', account: SYS }}"
        here = start(kind, f"server_name: here\nleafnodes {{ remotes: [ {remote} ] }}\n{WITHOUT_USERS}")
    else:
        user = "authorization { users: [ {user: l, password: l, account: SYS} ] }"
        here = start(kind, f"server_name: here\nleafnodes {{ listen: '127.0.0.1:-1'\n{user} }}\n{WITHOUT_USERS}")
        remote = f"{{ url: 'nats://l:l@127.0.0.1:{hub_port(here)}', account: SYS }}"
        asking = start("nats-server", f"server_name: asking\nleafnodes {{ remotes: [ {remote} ] }}\n{ACCOUNTS}")
    system = await net.client(asking, **{"user": "s", "pass": "s"})
    await system.send("SUB $SYS.ACCOUNT.A.CONNECT 1\r\nSUB answers 2\r\n")
    answered: set[str] = set()
    async with asyncio.timeout(20):
        while "here" not in answered:
            await system.send("PUB $SYS.REQ.SERVER.PING answers 0\r\n\r\n")
            answered = {one["server"]["name"] for one in await events_of(system, "answers", len(answered) + 1)}
    await net.client(here, **{"user": "a", "pass": "a"})
    assert (await events_of(system, "$SYS.ACCOUNT.A.CONNECT", 1))[-1]["server"]["name"] == "here"


@pytest.mark.parametrize("kind", KINDS)
async def test_a_refused_leaf_node_and_a_refused_member_are_told_of(start: Start, net: Net, kind: str) -> None:
    here = start(
        kind,
        'leafnodes { listen: "127.0.0.1:-1" }\n'
        f'cluster {{ name: c, listen: "127.0.0.1:-1", authorization {{ user: r, password: r }} }}\n{ACCOUNTS}',
    )
    system = await net.client(here, **{"user": "s", "pass": "s"})
    await system.talk("SUB $SYS.SERVER.*.CLIENT.AUTH.ERR 2\r\nPING\r\n", expect_last="PONG\r\n")
    subject = f"$SYS.SERVER.{system.info['server_id']}.CLIENT.AUTH.ERR"
    route_port = int(here.log.wait_line(r"Listening for route connections on \S*:(\d+)")[1])
    said = json.dumps({"user": "a", "pass": "no", "name": "x", "version": "2.9.10"})
    for n, (port, line) in enumerate(
        ((hub_port(here), said), (route_port, said), (hub_port(here), ""), (route_port, "")), start=1
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"CONNECT {line}\r\n".encode() if line else b"GET / HTTP/1.1\r\n\r\n")
        async with asyncio.timeout(30):
            assert b"-ERR 'Authorization Violation'" in await reader.read()
        writer.close()
        event = (await events_of(system, subject, n))[-1]
        who = event["client"]
        assert (who["kind"], who["acc"]) == ("Router" if port == route_port else "Leafnode", "N/A")
        assert event["reason"] == "Authentication Failure"
        assert who.get("user", "") == ("a" if line else "")
        assert who.get("name", "") == ("x" if line and port != route_port else who.get("name", ""))
    here.log.wait_line("rid:.*authentication error")
    here.log.wait_line('lid:.*authentication error - User "a"')


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("login", [{"user": "evil", "pass": "x"}, {"pass": "x"}], ids=["named", "unnamed"])
async def test_who_was_refused_is_who_it_claimed_to_be_also_where_who_gives_no_name_is_a_user(
    start: Start, net: Net, kind: str, login: dict[str, str]
) -> None:
    """A connection begins as no_auth_user. An audit must not say that this user was refused."""
    here = start(kind, f"{ACCOUNTS}\nno_auth_user: a\n")
    system = await net.client(here, **{"user": "s", "pass": "s"})
    await system.talk("SUB $SYS.SERVER.*.CLIENT.AUTH.ERR 2\r\nPING\r\n", expect_last="PONG\r\n")
    client = await Client.connect(here.port, None)
    net.all.append(client)
    await client.send(f"CONNECT {json.dumps(login)}\r\nPING\r\n")
    assert await client.wait_closed() == b"-ERR 'Authorization Violation'\r\n"
    subject = f"$SYS.SERVER.{system.info['server_id']}.CLIENT.AUTH.ERR"
    (event,) = await events_of(system, subject, 1)
    assert event["client"].get("user", "") == login.get("user", "")
    async with asyncio.timeout(20):
        while not (closed := (await page(here, "/connz?state=closed&auth=1"))["connections"]):
            pass  # nats-server lists it behind the event
    assert [row.get("authorized_user", "") for row in closed] == [login.get("user", "")]


@pytest.mark.parametrize("kind", KINDS)
async def test_the_round_trip_is_measured(start: Start, net: Net, kind: str) -> None:
    """In microseconds: on one host it is shorter than a millisecond, and never one microsecond."""
    hub = start("nats-server", f'leafnodes {{ listen: "127.0.0.1:-1" }}\n{ACCOUNTS}')
    remote = f'remotes [ {{ url: "nats://a:a@127.0.0.1:{hub_port(hub)}", account: A }} ]'
    leaf = start(kind, f"leafnodes {{ {remote} }}\n{ACCOUNTS}")

    await until(lambda: "Leafnode connection created" in leaf.log.text)
    async with asyncio.timeout(20):
        rtt = "0s"
        while rtt == "0s":
            (row,) = (await page(leaf, "/leafz"))["leafs"] or [{"rtt": "0s"}]
            rtt = row["rtt"]
    assert rtt != "1µs"
