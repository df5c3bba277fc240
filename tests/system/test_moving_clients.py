"""Clients move between shards while everybody talks: nothing is lost, doubled or reordered, and nobody notices.

In plain, over WebSocket and with TLS: those with TLS stay where they are, until their shard is replaced and encrypts
for them as a relay. The soak runs for some seconds here, and for GNATSWARM_SOAK_S seconds where that is set
(`make soak`), then also while shards and the router are killed, and while an operator does everything at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import random
import signal
import time

import pytest

from gnatswarm.router.commands.operator_commands import exchange, find
from gnatswarm.router.supervision.operator_socket import (
    AnyRequest,
    FollowRequest,
    MoveRequest,
    RebalanceRequest,
    ReloadRequest,
    Reply,
    RestartRequest,
    ScaleRequest,
    UpgradeRequest,
)
from tests.support import swarm, tunnel
from tests.support.authority import Authority
from tests.support.framed import DEFLATE, websocket_port
from tests.support.pages import Pages
from tests.support.servers import Broker
from tests.support.traffic import Traffic
from tests.support.wire import Client, Cluster

pytestmark = pytest.mark.kinds("gnatswarm-2", "gnatswarm-4")

SOAK_S = float(os.environ.get("GNATSWARM_SOAK_S", "0"))
LEAST_MOVES = 12
EMPTY_WITHIN_S = 30
OPERATION_WITHIN_S = 90.0
# A broker whose router dies five times within ten seconds ends.
BETWEEN_ROUTERS_S = 4.0
NEWCOMERS = ("starting", "linked")
MANY_SUBSCRIPTIONS = 6000
LOOKS = 100  # at the rows of status, for a shard that has just been started
# Members of a queue group take as much each: a chi-square value that one in a million fair groups exceeds (3 degrees).
MOST_CHI_SQUARE = 31.0


@pytest.fixture
def swarmed(start_broker, cluster_of):
    broker = start_broker(args=["-m", "-1"])
    return broker, cluster_of(broker)


@pytest.fixture
def open_to_all(start_broker, cluster_of, server):
    """A broker that takes clients in plain, with TLS and over WebSocket."""
    websocket = 'websocket { host: "127.0.0.1", port: -1, no_tls: true, compression: true }'
    # (These clients answer no PING: a long soak would close them as stale.)
    config = f'tls {{\n {server.lines}\n}}\nallow_non_tls: true\n{websocket}\nping_interval: "10h"\n'
    broker = start_broker(args=["-m", "-1"], config=config)
    return broker, cluster_of(broker)


class Load:
    """Clients of all kinds that talk, and the check that each hears what it should, once and in order."""

    def __init__(self, broker: Broker, cluster: Cluster, authority: Authority, subject: str) -> None:
        self._broker = broker
        self._cluster = cluster
        self._context = authority.client_context()
        self._subject = subject
        self._is_over = asyncio.Event()
        self._working: list[asyncio.Task[None]] = []
        self.clients = 0

    async def start(self) -> None:
        cluster, subject = self._cluster, self._subject
        shards = self._broker.kind.shards
        port = websocket_port(self._broker)
        framed = await tunnel.on_shards(functools.partial(tunnel.over_websocket, port), shards, 5)
        packed = functools.partial(tunnel.over_websocket, port, f"Sec-WebSocket-Extensions: {DEFLATE}")
        framed += await tunnel.on_shards(packed, shards, 2)
        secure = functools.partial(tunnel.over_tls, self._broker.port, self._context)
        with_tls = await tunnel.on_shards(secure, shards, 4)
        plain = await cluster.clients(13, True)
        cluster.all += [*framed, *with_tls]  # (which are closed in the end)
        self.clients = len(framed) + len(with_tls) + len(plain)
        self.fan_out = Traffic(
            [plain.pop(), plain.pop(), framed.pop(), with_tls.pop()],
            [plain.pop(), plain.pop(), framed.pop(), framed.pop(), with_tls.pop()],
            subject,
        )
        members = [plain.pop(), plain.pop(), framed.pop(), with_tls.pop()]
        self.grouped = Traffic([plain.pop(), plain.pop()], members, f"{subject}.q", queue="g")
        asker, listener, publisher = framed.pop(), framed.pop(), with_tls.pop()
        answerers = [*plain, framed.pop()]
        assert not framed and not with_tls
        await self.fan_out.start()
        await self.grouped.start()
        for client in answerers:
            await client.talk(f"SUB {subject}.r.ask workers 1\r\nPING\r\n", expect="PONG\r\n")
        self._working = [asyncio.create_task(answering(client)) for client in answerers]
        self._asked = asyncio.create_task(asking(asker, f"{subject}.r", self._is_over))
        self._filled = asyncio.create_task(bounded(listener, publisher, f"{subject}.m", self._is_over))

    def check(self) -> None:
        """What has failed by now fails here."""
        for task in (self._asked, self._filled, *self._working):
            assert not task.done() or task.result()

    async def finish(self) -> list[int]:
        """Everything that was sent has come; returns how much each member of the group got."""
        self._is_over.set()
        assert await self._asked > 0
        assert await self._filled > 0
        for task in self._working:
            task.cancel()
        await asyncio.gather(*self._working, return_exceptions=True)
        await self.fan_out.finish()
        await self.grouped.finish()
        return [sum(len(numbers) for numbers in got) for got in self.grouped.got]


async def move(broker: Broker, shard: int, to: int, clients: int) -> Reply:
    return await asyncio.to_thread(exchange, find(broker.pid, broker.port), MoveRequest(shard, to, clients))


async def connections(broker: Broker) -> list[int]:
    rows = await asyncio.to_thread(swarm.rows, broker)
    return [rows[shard]["connections"] for shard in sorted(rows)]


async def asking(client: Client, subject: str, is_over: asyncio.Event) -> int:
    """Asks one request after the other; returns how many. Every one is answered, by its own answer."""
    await client.send(f"SUB {subject}.answer.* 1\r\n")
    n = 0
    while not is_over.is_set():
        n += 1
        await client.send(f"PUB {subject}.ask {subject}.answer.{n} 0\r\n\r\n")
        (answer,) = await client.messages(1, deadline_s=20)
        assert answer.subject == f"{subject}.answer.{n}"
    return n


async def answering(client: Client) -> None:
    while True:
        (asked,) = await client.messages(1, deadline_s=600)
        await client.send(f"PUB {asked.reply} 2\r\nok\r\n")


async def bounded(client: Client, publisher: Client, subject: str, is_over: asyncio.Event) -> int:
    """Subscribes with a max, again and again: exactly that many messages come; returns how often."""
    n = 0
    while not is_over.is_set():
        n += 1
        await client.send(f"SUB {subject}.max {n}\r\nUNSUB {n} 5\r\n")
        await client.flush(deadline_s=20)
        await publisher.send(f"PUB {subject}.max 1\r\nx\r\n" * 9)
        await publisher.flush(deadline_s=20)
        assert len(await client.messages(5, deadline_s=20)) == 5
        assert await client.flush(deadline_s=20) == []
    return n


async def looking(pages: Pages, cids: list[int], is_over: asyncio.Event) -> int:
    """Asks for all connections again and again; returns how often. Each of them is there, once."""
    n = 0
    while not is_over.is_set():
        query = ("", "sort=msgs_to", "subs=1", "sort=uptime")[n % 4]
        page = await asyncio.to_thread(pages.json, f"/connz?{query}")
        assert sorted(row["cid"] for row in page["connections"]) == cids
        assert page["total"] == len(cids)
        n += 1
    return n


def places_of_tls(pages: Pages) -> dict[int, int]:
    """The shard of each client with TLS, by its id."""
    rows = pages.json("/connz")["connections"]
    return {row["cid"]: row["shard"] for row in rows if row.get("tls_version")}


async def test_a_soak_of_random_moves(open_to_all, authority, subject):
    broker, cluster = open_to_all
    dice = random.Random(7)
    load = Load(broker, cluster, authority, subject)
    await load.start()
    pages = Pages.of(broker)
    cids = sorted(row["cid"] for row in pages.json("/connz")["connections"])
    tls = places_of_tls(pages)
    assert (len(cids), len(tls)) == (load.clients, 4)
    is_over = asyncio.Event()
    seen = asyncio.create_task(looking(pages, cids, is_over))
    until = time.monotonic() + SOAK_S
    shards = list(range(broker.kind.shards))
    moved = n = 0
    while n < LEAST_MOVES or time.monotonic() < until:
        n += 1
        before = await connections(broker)
        shard, to = dice.sample(shards, 2)
        reply = await move(broker, shard, to, min(before[shard], dice.randint(1, 9)))
        assert not reply.error, reply.error
        moved += int(reply.text.split(" ", 1)[0])
        load.check()
        assert not seen.done() or seen.result()
    is_over.set()
    assert await seen > 0
    assert places_of_tls(pages) == tls
    shares = await load.finish()
    fair = sum(shares) / len(shares)
    assert sum((share - fair) ** 2 for share in shares) / fair < MOST_CHI_SQUARE, shares
    assert moved > LEAST_MOVES
    assert sum(await connections(broker)) == load.clients


async def emptied(broker: Broker, shard: int, others: list[int], dice: random.Random) -> None:
    """Move all clients of the shard to others."""
    async with asyncio.timeout(EMPTY_WITHIN_S):
        while clients := (await connections(broker))[shard]:
            await move(broker, shard, dice.choice(others), clients)


async def moved_about(broker: Broker, shards: list[int], dice: random.Random, is_over: asyncio.Event) -> int:
    """Move clients among these shards until told to end; returns how many moved.

    Where a shard or the router has just died, none may.
    """
    n = 0
    while not is_over.is_set():
        shard, to = dice.sample(shards, 2)
        with contextlib.suppress(OSError, EOFError):
            reply = await move(broker, shard, to, dice.randint(1, 9))
            n += 0 if reply.error else int(reply.text.split(" ", 1)[0])
    return n


async def back(broker: Broker, pid: int, shard: int) -> None:
    """Wait until another process than this one serves as the shard, and a router answers."""
    async with asyncio.timeout(swarm.BACK_DEADLINE_S):
        while True:
            with contextlib.suppress(OSError, EOFError, KeyError, AssertionError):
                row = (await asyncio.to_thread(swarm.rows, broker))[shard]
                if row["pid"] not in (0, pid) and row["phase"] == "ready":
                    return


@pytest.mark.skipif(not SOAK_S, reason="takes GNATSWARM_SOAK_S seconds: make soak")
async def test_a_soak_of_moves_while_shards_and_the_router_are_killed(open_to_all, authority, subject):
    """Each time a shard without clients, or the router, while clients move among the other shards: nobody notices."""
    broker, cluster = open_to_all
    dice = random.Random(11)
    load = Load(broker, cluster, authority, subject)
    await load.start()
    # From then on relays encrypt for clients with TLS, and they move like others.
    assert not (await followed(broker, RestartRequest())).error
    shards = list(range(broker.kind.shards))
    until = time.monotonic() + SOAK_S
    killed = moved = 0
    router_from = time.monotonic() + 1.0
    while time.monotonic() < until:
        victim = dice.choice(shards)
        others = [shard for shard in shards if shard != victim]
        await emptied(broker, victim, others, dice)
        is_enough = asyncio.Event()
        moving = asyncio.create_task(moved_about(broker, others, dice, is_enough)) if len(others) > 1 else None
        await load.fan_out.progress(dice.choice((1, 500)))
        pid = 0
        if time.monotonic() > router_from:
            router_from = time.monotonic() + BETWEEN_ROUTERS_S
            swarm.signal_shard(broker, (await asyncio.to_thread(swarm.status, broker))["router_pid"])
        else:
            pid = await swarm.kill(broker, victim)
        killed += 1
        await load.fan_out.progress(500)
        is_enough.set()
        if moving is not None:
            moved += await moving
        await back(broker, pid, victim)
        load.check()
    await load.finish()
    assert killed > 3
    assert moved > 0 or len(shards) == 2
    assert sum(await connections(broker)) == load.clients


def kill_newcomer(broker: Broker) -> bool:
    """Kill a shard that serves nobody yet, if there is one soon.

    It is stopped first: what it had told its router by then, the router says in its next answers.
    """
    for _ in range(LOOKS):
        for shard, row in swarm.rows(broker).items():
            if row["phase"] not in NEWCOMERS or not row["pid"]:
                continue
            with contextlib.suppress(ProcessLookupError, AssertionError):  # it ends by itself
                is_new = False
                swarm.signal_shard(broker, row["pid"], signal.SIGSTOP)
                try:
                    again = [swarm.rows(broker).get(shard, {}) for _ in range(2)][-1]
                    is_new = again.get("pid") == row["pid"] and again["phase"] in NEWCOMERS
                finally:  # also where the router dies meanwhile
                    swarm.signal_shard(broker, row["pid"], signal.SIGKILL if is_new else signal.SIGCONT)
                if is_new:
                    return True
    return False


async def followed(broker: Broker, request: AnyRequest) -> Reply:
    """The last word, which another router may say; of what ends with its router, that it did."""
    while True:
        try:
            at = find(broker.pid, broker.port)
            return await asyncio.to_thread(exchange, at, request, OPERATION_WITHIN_S, lambda text: None)
        except (ConnectionError, EOFError):
            if not isinstance(request, RestartRequest | UpgradeRequest | FollowRequest):
                return Reply(error="its router has died")
            request = FollowRequest()


@pytest.mark.skipif(not SOAK_S, reason="takes GNATSWARM_SOAK_S seconds: make soak")
async def test_a_soak_of_all_that_an_operator_does(open_to_all, authority, subject):
    """Several at once: moves, rebalances, reloads, more and fewer shards, restarts, upgrades, signals; kills.

    Of the router, and of shards that are to serve but do not yet.

    What is refused because something else is under way is refused; whatever happens, nobody notices.
    """
    broker, cluster = open_to_all
    dice = random.Random(int(os.environ.get("GNATSWARM_SEED", "13")))
    load = Load(broker, cluster, authority, subject)
    await load.start()
    # From then on clients with TLS can move, and are not told to leave when there are fewer shards.
    assert not (await followed(broker, RestartRequest())).error
    until = time.monotonic() + SOAK_S
    done: dict[str, int] = {}
    last_router_s = 0.0

    async def one() -> None:
        nonlocal last_router_s
        what = dice.choices(
            (
                "move",
                "rebalance",
                "reload",
                "scale",
                "restart",
                "upgrade",
                "router",
                "newcomer",
                "HUP",
                "USR1",
                "TTIN",
                "TTOU",
            ),
            (12, 3, 3, 3, 2, 1, 2, 3, 2, 1, 1, 1),
        )[0]
        most = broker.kind.shards + 2
        shard, to = dice.sample(range(most), 2)
        requests: dict[str, AnyRequest] = {
            "move": MoveRequest(shard, to, dice.randint(1, 30)),
            "rebalance": RebalanceRequest(),
            "reload": ReloadRequest(),
            "scale": ScaleRequest(dice.randint(2, most)),
            "restart": RestartRequest(),
            "upgrade": UpgradeRequest(),
        }
        if what in requests:
            reply = await followed(broker, requests[what])
            what += " refused" if reply.error else ""
        elif what == "newcomer":
            with contextlib.suppress(OSError, EOFError, AssertionError):  # no router answers just now
                what += " killed" if await asyncio.to_thread(kill_newcomer, broker) else ""
        elif what != "router":
            os.kill(broker.pid, getattr(signal, f"SIG{what}"))
        elif time.monotonic() > last_router_s + BETWEEN_ROUTERS_S:
            last_router_s = time.monotonic()
            with contextlib.suppress(OSError, EOFError, AssertionError):
                swarm.signal_shard(broker, (await asyncio.to_thread(swarm.status, broker))["router_pid"])
        done[what] = done.get(what, 0) + 1
        await load.fan_out.progress(dice.choice((1, 100, 500)), deadline_s=OPERATION_WITHIN_S)

    async def operate() -> None:
        while time.monotonic() < until:
            await one()
            load.check()

    await asyncio.gather(*(operate() for _ in range(3)))
    await load.finish()
    print(sorted(done.items()))
    assert {"move", "scale", "router", "newcomer killed"} <= set(done), done
    assert len(Pages.of(broker).json("/connz?limit=100")["connections"]) == load.clients, done


async def test_rebalance_evens_the_connections_and_clients_do_not_notice(swarmed, subject):
    broker, cluster = swarmed
    crowd = [await cluster.client_on(0) for _ in range(20)]
    for n, client in enumerate(crowd):
        await client.send(f"SUB {subject}.{n} 1\r\nSUB {subject}.all 2\r\n")
        await client.flush()
    publisher = await cluster.client_on(1)
    reply = await asyncio.to_thread(exchange, find(broker.pid, broker.port), RebalanceRequest())
    assert "clients moved" in reply.text, reply
    found = await connections(broker)
    assert sum(found) == 21
    assert max(found) - min(found) <= 1
    await publisher.send(f"PUB {subject}.all 1\r\nx\r\n" + "".join(f"PUB {subject}.{n} 1\r\ny\r\n" for n in range(20)))
    await publisher.flush()
    for client in crowd:
        assert len(await client.flush()) == 2
    again = await asyncio.to_thread(exchange, find(broker.pid, broker.port), RebalanceRequest())
    assert again.text.startswith("0 clients moved")


async def test_a_shard_that_leaves_moves_its_clients_and_tells_none_of_them(swarmed, subject):
    broker, cluster = swarmed
    last = broker.kind.shards - 1
    crowd = [await cluster.client_on(last) for _ in range(10)]
    for client in crowd:
        await client.send(f"SUB {subject} 1\r\n")
        await client.flush()
    publisher = await cluster.client_on(0)
    await swarm.scale(broker, last)
    await publisher.send(f"PUB {subject} 1\r\nx\r\n")
    await publisher.flush()
    for client in crowd:  # nothing but the message: no INFO
        assert [frame.payload for frame in await client.flush()] == [b"x"]


async def test_a_client_with_a_great_many_subscriptions_moves_like_any_other(swarmed, subject):
    """With more members of queue groups, and more bytes of subjects, than were moved once: then it was closed."""
    broker, cluster = swarmed
    last = broker.kind.shards - 1
    client = await cluster.client_on(last)
    publisher = await cluster.client_on(0)
    names = [f"{subject}.{n}.{'x' * 2000}" for n in range(MANY_SUBSCRIPTIONS)]
    await client.send("".join(f"SUB {name} q{n % 5} {n}\r\n" for n, name in enumerate(names)))
    assert await client.flush() == []
    leaving = asyncio.create_task(swarm.scale(broker, last))
    hearing = asyncio.create_task(client.messages(len(names), 60))  # (who does not read is not moved)
    for name in names:
        await publisher.send(f"PUB {name} 1\r\nx\r\n")
    await publisher.flush()
    await leaving
    assert [int(frame.sid) for frame in await hearing] == list(range(len(names)))
    assert await client.flush() == []
    assert "did not move" not in broker.log.text


async def test_nobody_is_cut_off_by_a_scale_to_shards_of_which_none_serves(swarmed, subject):
    broker, cluster = swarmed
    client = await cluster.client_on(1)
    async with asyncio.timeout(swarm.BACK_DEADLINE_S):
        while "starting it again in 2 s" not in broker.log.text:  # later each time
            with contextlib.suppress(KeyError, ProcessLookupError, AssertionError):  # it has no process just now
                await swarm.kill(broker, 0)
    reply = await asyncio.to_thread(exchange, find(broker.pid, broker.port), ScaleRequest(1))
    assert "no shard below 1 serves now" in reply.error
    assert (await phases(broker))[1] == "ready"
    await back(broker, 0, 0)
    await swarm.scale(broker, 1)
    await client.send(f"SUB {subject} 1\r\nPUB {subject} 1\r\nx\r\n")
    assert [frame.payload for frame in await client.flush()] == [b"x"]


async def test_nobody_moves_to_a_shard_that_does_not_serve(swarmed, subject):
    broker, cluster = swarmed
    client = await cluster.client_on(0)
    reply = await move(broker, 0, broker.kind.shards, 1)
    assert reply.error == f"shard {broker.kind.shards} does not serve now"
    await client.send(f"SUB {subject} 1\r\nPUB {subject} 1\r\nx\r\n")
    assert [frame.payload for frame in await client.flush()] == [b"x"]


async def test_the_last_command_counts_while_clients_move(swarmed, subject):
    """A shard that is leaving, is wanted again, and then is not: it leaves, and the clients that it had go on."""
    broker, cluster = swarmed
    last = broker.kind.shards - 1
    stubborn = await cluster.client_on(last)  # which cannot move: a queue subscription with a max
    await stubborn.talk("SUB never.published workers 9\r\nUNSUB 9 9\r\nPING\r\n", expect="PONG\r\n")
    traffic = Traffic([await cluster.client_on(0)], [await cluster.client_on(last) for _ in range(4)], subject)
    await traffic.start()
    commands = []
    for wanted in (last, last + 1, last):
        seen = len(broker.log.lines)
        commands.append(asyncio.create_task(swarm.scale(broker, wanted)))
        await asyncio.to_thread(broker.log.wait_line, f"Scaling from .* to {wanted} shards", start=seen)
        await traffic.progress(100)
    assert await phases(broker) == ["ready"] * last + ["draining"]
    stubborn.close()
    await commands[-1]
    assert await phases(broker) in (["ready"] * last, ["ready"] * last + ["stopped"])
    await traffic.progress(100)
    await traffic.finish()
    await asyncio.gather(*commands, return_exceptions=True)  # those that did not get what they wanted say so


async def phases(broker: Broker) -> list[str]:
    rows = await asyncio.to_thread(swarm.rows, broker)
    return [rows[shard]["phase"] for shard in sorted(rows)]
