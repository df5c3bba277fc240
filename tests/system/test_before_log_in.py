"""Connections that have not logged in, or could not: whose they are, how long they may stay, and what is told of them.

The same on gnatswarm in both modes and on both versions of nats-server.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.support.leaves import Net
from tests.support.servers import Broker
from tests.support.wire import Client
from tests.system.test_leaf import Start, net, start
from tests.system.test_server_events import KINDS, NEWER, events_of, page

__all__ = ["net", "start"]

CONFIG = """
http: "127.0.0.1:-1"
system_account: SYS
accounts {
    SYS { users: [ {user: s, password: s} ] }
    PUBLIC { users: [ {user: guest, password: guest} ], limits { max_connections: 1 } }
    A { users: [ {user: a, password: a} ] }
}
"""
GUESTS = f"no_auth_user: guest\n{CONFIG}"


async def wait_closed_row(broker: Broker, reason: str) -> dict[str, Any]:
    async with asyncio.timeout(20):
        while True:
            rows = (await page(broker, "/connz?state=closed&auth=1"))["connections"]
            found = [row for row in rows if row["reason"] == reason]
            if found:
                return dict(found[-1])


@pytest.mark.parametrize("kind", KINDS)
async def test_who_has_said_nothing_is_no_guest_yet(start: Start, net: Net, kind: str) -> None:
    """Else idle connections, and those that are about to log in, would use up the guests' places."""
    broker = start(kind, GUESTS)
    idle = [await Client.connect(broker.port, None) for _ in range(3)]
    guest = await Client.connect(broker.port, None)
    await guest.talk("PING\r\n", expect_last="PONG\r\n")  # it has begun without CONNECT: the account is full
    await net.client(broker, **{"user": "a", "pass": "a"})
    late = await Client.connect(broker.port, None)
    await late.send("PING\r\n")
    await late.expect("-ERR 'maximum account active connections exceeded'\r\n")
    await late.wait_closed()
    row = await wait_closed_row(broker, "Maximum Account Connections Exceeded")
    assert row["account"] == "PUBLIC"
    listed = (await page(broker, "/connz?auth=1&acc=PUBLIC"))["connections"]
    assert [row["cid"] for row in listed] == [guest.info["client_id"]]
    for client in (*idle, guest, late):
        client.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_who_says_nothing_is_closed_where_there_are_guests_too(start: Start, kind: str) -> None:
    broker = start(kind, f"authorization {{ timeout: 1 }}\n{GUESTS}")
    silent = await Client.connect(broker.port, None)
    await silent.expect("-ERR 'Authentication Timeout'\r\n")
    await silent.wait_closed()


@pytest.mark.parametrize("kind", KINDS)
async def test_events_of_who_begins_without_connect_and_of_who_becomes_another(
    start: Start, net: Net, kind: str
) -> None:
    broker = start(kind, GUESTS)
    system = await net.client(broker, **{"user": "s", "pass": "s"})
    await system.talk("SUB $SYS.ACCOUNT.> 1\r\nPING\r\n", expect_last="PONG\r\n")
    guest = await Client.connect(broker.port, None)
    await guest.talk("PING\r\n", expect_last="PONG\r\n")
    guest.close()
    (gone,) = await events_of(system, "$SYS.ACCOUNT.PUBLIC.DISCONNECT", 1)
    assert (gone["client"]["acc"], gone["reason"]) == ("PUBLIC", "Client Closed")
    came = [frame for frame in system.inbox if frame.subject == "$SYS.ACCOUNT.PUBLIC.CONNECT"]
    assert len(came) == (kind in NEWER)

    first = await net.client(broker)
    await events_of(system, "$SYS.ACCOUNT.PUBLIC.CONNECT", 1 + (kind in NEWER))
    system.inbox.clear()
    words = {"user": "a", "pass": "a", "verbose": False, "protocol": 1}
    await first.talk(f"CONNECT {json.dumps(words)}\r\nPING\r\n", expect_last="PONG\r\n")
    (event,) = await events_of(system, "$SYS.ACCOUNT.A.CONNECT", 1)
    assert event["client"]["user"] == "a"
    async with asyncio.timeout(20):  # (that it had come may be told late)
        while (await events_of(system, "$SYS.ACCOUNT.PUBLIC.SERVER.CONNS", 1))[-1]["conns"]:
            pass


@pytest.mark.parametrize("kind", KINDS)
async def test_the_account_that_was_full_hears_who_did_not_come_in(start: Start, net: Net, kind: str) -> None:
    broker = start(kind, CONFIG)
    system = await net.client(broker, **{"user": "s", "pass": "s"})
    await system.talk("SUB $SYS.ACCOUNT.PUBLIC.DISCONNECT 1\r\nPING\r\n", expect_last="PONG\r\n")
    await net.client(broker, name="first", **{"user": "guest", "pass": "guest"})
    second = await Client.connect(broker.port, None)
    await second.send('CONNECT {"user":"guest","pass":"guest","name":"second"}\r\nPING\r\n')
    await second.wait_closed()
    events = await events_of(system, "$SYS.ACCOUNT.PUBLIC.DISCONNECT", 1)
    # (2.9.10 closes one that was there, too.)
    assert "second" in [event["client"]["name"] for event in events]
    assert {event["reason"] for event in events} == {"Maximum Account Connections Exceeded"}


@pytest.mark.parametrize("kind", KINDS)
async def test_who_leaves_before_it_has_logged_in_is_told_of_by_newer_servers(
    start: Start, net: Net, kind: str
) -> None:
    broker = start(kind, f"authorization {{ timeout: 3 }}\n{CONFIG}")
    system = await net.client(broker, **{"user": "s", "pass": "s"})
    await system.talk("SUB $SYS.ACCOUNT.$G.DISCONNECT 1\r\nPING\r\n", expect_last="PONG\r\n")
    (await Client.connect(broker.port, None)).close()
    silent = await Client.connect(broker.port, None)
    await silent.wait_closed()
    await wait_closed_row(broker, "Authentication Timeout")
    if kind in NEWER:
        events = await events_of(system, "$SYS.ACCOUNT.$G.DISCONNECT", 2)
        assert [event["reason"] for event in events][-2:] == ["Client Closed", "Authentication Timeout"]
    else:
        await system.flush()
        assert not system.inbox


@pytest.mark.parametrize("kind", KINDS)
async def test_connections_for_which_there_was_no_room_are_in_the_history(start: Start, net: Net, kind: str) -> None:
    broker = start(kind, "http: '127.0.0.1:-1'\nmax_connections: 1")
    await net.client(broker)
    refused = await Client.connect(broker.port, None)
    await refused.wait_closed()
    row = await wait_closed_row(broker, "Maximum Connections Exceeded")
    assert row["cid"] == refused.info["client_id"] and row["ip"] == "127.0.0.1"
