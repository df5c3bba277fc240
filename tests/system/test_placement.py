"""Placement rules on a running broker: clients end where the rules say, notice nothing, and stay there."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gnatswarm.router.commands.operator_commands import exchange, find
from gnatswarm.router.supervision.operator_socket import RebalanceRequest, ReloadRequest, Reply
from tests.support import swarm
from tests.support.authority import Authority
from tests.support.pages import Pages
from tests.support.secure import SecureClient, dial
from tests.support.servers import Broker

pytestmark = pytest.mark.kinds("gnatswarm-4")

WITHIN_S = 20.0
LOOK_AGAIN_S = 0.02


async def shards_of(pages: Pages) -> dict[str, int]:
    """The shard of each client, by name."""
    rows = (await asyncio.to_thread(pages.json, "/connz?limit=1000"))["connections"]
    return {row["name"]: row["shard"] for row in rows if "name" in row}


async def where(pages: Pages, wanted: dict[str, int]) -> None:
    """Wait until these clients are on these shards."""
    found: dict[str, int] = {}
    async with asyncio.timeout(WITHIN_S):
        while {name: found.get(name) for name in wanted} != wanted:
            found = await shards_of(pages)


async def rule(broker: Broker, number: int, **wanted: object) -> dict[str, Any]:
    """Wait until the status says this of a rule; the rule."""
    async with asyncio.timeout(WITHIN_S):
        while True:
            rules = (await asyncio.to_thread(swarm.status, broker))["rules"]
            found = dict(rules[number]) if number < len(rules) else {}
            if {name: found.get(name) for name in wanted} == wanted:
                return found


async def reload(broker: Broker, path: Path, text: str) -> Reply:
    await asyncio.to_thread(path.write_text, text)
    return await asyncio.to_thread(exchange, find(broker.pid, broker.port), ReloadRequest())


@pytest.fixture
def placed(start_broker, server, cluster_of):
    """A broker without rules yet, its configuration, its pages and clients."""
    broker = start_broker(args=["-m", "-1"], config=f"tls {{\n {server.lines}\n}}\nallow_non_tls: true\n")
    assert broker.directory is not None
    path = broker.directory / "broker.conf"
    return broker, path, path.read_text(), Pages.of(broker), cluster_of(broker)


async def secure_on(broker: Broker, authority: Authority, shard: int, name: str) -> SecureClient:
    """A client with TLS on this shard."""
    for _ in range(200):
        client = await dial(broker.port, authority.client_context())
        if client.shard == shard:
            await client.send(f'CONNECT {{"verbose":false,"name":"{name}"}}\r\n'.encode())
            await client.flush()
            return client
        client.close()
    raise AssertionError(f"200 connections did not meet shard {shard}")


async def test_clients_go_where_the_rules_say_and_stay_there(placed, authority, subject):
    broker, path, text, pages, cluster = placed
    crowd = {f"a-{n}": await cluster.client_on(n, {"name": f"a-{n}"}) for n in range(4)}
    crowd |= {f"pair-{n}": await cluster.client_on(n, {"name": f"pair-{n}"}) for n in (1, 3)}
    for n in (1, 3):
        await crowd[f"pair-{n}"].send(f"SUB pair.{n} 1\r\nSUB other 2\r\n")
    for client in crowd.values():
        await client.send(f"SUB {subject} 9\r\n")
        await client.flush()
    other = await cluster.client_on(0, {"name": "other"})
    include = path.with_name("placement.conf")
    include.write_text(
        'placement {\n    rules: [\n        { name: "a-3", shard: 0 }\n        { name: "a*", shard: 2 }\n'
        '        { subject: "pair.>", together: true }\n        { name: "far", shard: 9 }\n    ]\n}\n'
    )
    reply = await reload(broker, path, f'{text}include "placement.conf"\n')
    assert reply.reload is not None and not reply.error, reply
    assert "placement.rules" in [change.field for change in reply.reload.changes]
    (problem,) = reply.reload.problems
    assert 'name "far": there is no shard 9; 0 to 3 run' in problem
    wanted = {"a-0": 2, "a-1": 2, "a-2": 2, "a-3": 0, "other": 0}
    await where(pages, wanted)
    pair = await rule(broker, 2, clients=2, in_place=2)
    wanted |= {"pair-1": pair["shard"], "pair-3": pair["shard"]}
    await where(pages, wanted)
    # Who comes later is placed, too; who cannot move is counted.
    crowd["a-late"] = await cluster.client_on(3, {"name": "a-late"})
    await crowd["a-late"].send(f"SUB {subject} 9\r\n")
    secured = await secure_on(broker, authority, 1, "a-tls")
    await rule(broker, 1, clients=5, in_place=4, staying=1)
    assert (await shards_of(pages))["a-late"] == 2
    # Making shards even does not undo it.
    again = await asyncio.to_thread(exchange, find(broker.pid, broker.port), RebalanceRequest())
    assert "clients moved" in again.text, again
    await where(pages, {name: shard for name, shard in wanted.items() if name != "other"})
    # Without shards 2 and 3 their clients are elsewhere; with them they are back.
    await swarm.scale(broker, 2)
    assert "shard 2 does not take clients" in (await rule(broker, 1, shard=-1))["why"]
    assert set((await shards_of(pages)).values()) <= {0, 1}
    assert "4 shards serve" in await swarm.scale(broker, 4)
    await rule(broker, 1, clients=5, in_place=4, staying=1)
    await other.send(f"PUB {subject} 1\r\nx\r\n")
    await other.flush()
    for client in crowd.values():  # nothing but the message: no INFO, no error
        assert [frame.payload for frame in await client.flush()] == [b"x"]
    await secured.flush()
    page = (await asyncio.to_thread(pages.json, "/shardz?links=0"))["placement"]
    assert page["rules"][0] == {
        "rule": 'name "a-3"', "together": False, "shard": 0, "clients": 1, "in_place": 1, "staying": 0,
        "msgs_per_s": page["rules"][0]["msgs_per_s"], "why": "",
    }  # fmt: skip
    shown = await asyncio.to_thread(swarm.operate, broker, "status")
    assert 'name "a*": 4 of 5 clients on shard 2, 1 have TLS and stay where they are' in shown
    # A killed shard's clients come back anywhere, and go home.
    await swarm.kill(broker, 0)
    for client in (crowd.pop("a-3"),):
        await client.wait_closed()
    crowd["a-3"] = await swarm.client_on(cluster, 1, {"name": "a-3"})
    await where(pages, {"a-3": 0, "a-0": 2})
    # Rules that are gone leave clients where they are.
    reply = await reload(broker, path, text)
    assert reply.reload is not None and not reply.reload.problems
    assert await rule_count(broker) == 0
    await where(pages, {"a-3": 0, "a-0": 2})


async def rule_count(broker: Broker) -> int:
    return len((await asyncio.to_thread(swarm.status, broker))["rules"])
