"""Routes that end again and again under load, in a cluster of every kind: what holds each time they are back."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import urllib.error
from pathlib import Path

import pytest

from tests.support.pipe import Pipe
from tests.support.servers import Broker
from tests.support.turns import until
from tests.support.wire import Client
from tests.system.test_cluster import (
    Net,
    Start,
    all_know,
    cluster_config,
    is_meshed,
    net,
    page,
    route_port,
    settled,
    start,
    subscribed,
)
from tests.system.test_cluster_faults import has_no_responders

__all__ = ["net", "start"]  # fixtures

ROUNDS = 6
WARM = 2  # what is kept for later, as buffers and descriptors for links, is there after so many
EACH = 30
GATEWAY = r"Gateway is process (\d+)"
# Far below what the interest or the messages of a round would come to if something of each were kept, load included.
MOST_GROWN_KIB = 24 << 10


def routes_of(broker: Broker) -> dict[str, int]:
    """The number of its route to each other member; {}: it cannot say now."""
    with contextlib.suppress(urllib.error.URLError, OSError):
        return {route["remote_id"]: route["rid"] for route in page(broker, "/routez")["routes"]}
    return {}


def gateway(broker: Broker) -> int:
    return int(re.findall(GATEWAY, broker.log.text)[-1])


def processes(broker: Broker) -> dict[int, int]:
    """The open descriptors of each process that serves: router, shards and gateway."""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError, IndexError):
            parent = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
            if broker.pid in (parent, int(name)):
                found[int(name)] = len(os.listdir(f"/proc/{name}/fd"))
    return found


def resident_kib(broker: Broker) -> int:
    sizes = [Path(f"/proc/{pid}/status").read_text() for pid in processes(broker)]
    return sum(int(found[1]) for text in sizes if (found := re.search(r"VmRSS:\s+(\d+)", text)))


class Load:
    """A client of each member publishes numbers until it is over; one of each hears all."""

    def __init__(self, publishers: list[Client], subscribers: list[Client]) -> None:
        self._publishers, self._subscribers = publishers, subscribers
        self._is_over = False
        self._tasks: list[asyncio.Task[None]] = []
        self._last = [[-1] * len(publishers) for _ in subscribers]
        self.heard = 0

    async def begin(self) -> None:
        for subscriber in self._subscribers:
            await subscribed(subscriber, "load.* 1")
        self._tasks = [asyncio.create_task(self._publish(who)) for who in range(len(self._publishers))]
        self._tasks += [asyncio.create_task(self._hear(at)) for at in range(len(self._subscribers))]

    async def _publish(self, who: int) -> None:
        number = 0
        while not self._is_over:
            lines = [f"PUB load.{who} {len(str(n))}\r\n{n}\r\n" for n in range(number, number + 20)]
            await self._publishers[who].send("".join(lines))
            await self._publishers[who].flush(20)
            number += 20

    async def _hear(self, at: int) -> None:
        subscriber, last = self._subscribers[at], self._last[at]
        while not self._is_over:
            await subscriber.flush(20)
            for frame in subscriber.inbox:
                who, number = int(frame.subject.rpartition(".")[2]), int(frame.payload)
                assert number > last[who], "a message came twice, or late"
                last[who] = number
                self.heard += 1
            subscriber.inbox = []

    async def end(self) -> None:
        self._is_over = True
        await asyncio.gather(*self._tasks)

    async def goes_on(self) -> None:
        """Returns when some more have been heard; fails when the load has."""
        wanted = self.heard + 200
        async with asyncio.timeout(30):
            while self.heard < wanted:
                for task in self._tasks:
                    if task.done():
                        task.result()
                await asyncio.sleep(0)


async def everything_holds(clients: list[Client], turn: int) -> None:
    """Everybody hears everything once and in order; each message for the group reaches one of its members."""
    for client in clients:
        client.inbox.clear()
    for who, client in enumerate(clients):
        for n in range(EACH):
            await client.send(f"PUB all.{who} 3\r\n{n:03}\r\nPUB work.{who} 3\r\n{n:03}\r\n")
    await settled(clients)
    for who in range(len(clients)):
        for client in clients:
            assert [int(f.payload) for f in client.inbox if f.subject == f"all.{who}"] == list(range(EACH)), turn
        worked = [int(f.payload) for client in clients for f in client.inbox if f.subject == f"work.{who}"]
        assert sorted(worked) == list(range(EACH)), turn


@pytest.mark.parametrize("fault", ["cut", "killed"])
async def test_what_holds_while_routes_are_up_holds_each_time_that_they_are_back(
    start: Start, net: Net, fault: str
) -> None:
    """The routes are cut in the middle of a frame, or the gateway is killed, while interest changes on all sides."""
    async with Pipe(0) as pipe:
        # Who learns of it from others dials the pipe, too.
        advertised = f"advertise: '127.0.0.1:{pipe.port}'"
        here = start("gnatswarm-2", cluster_config("here", inner=advertised, more="debug: true"))
        pipe.target = route_port(here)
        others = [start(kind, cluster_config(kind, (pipe.port,))) for kind in ("nats-server", "nats-server-2.15")]
        brokers = [here, *others]
        await until(lambda: is_meshed(brokers))
        clients = await net.clients(brokers)
        load = Load(await net.clients(brokers), await net.clients(brokers))
        for client in clients:
            await subscribed(client, "all.* 1", "work.* group 2", "answers.> 3", "gone.0 4")
        await all_know(clients)
        await load.begin()
        warm: tuple[int, int] | None = None
        for turn in range(ROUNDS):
            await load.goes_on()
            before = [await asyncio.to_thread(routes_of, broker) for broker in brokers]
            if fault == "cut":
                pipe.cut()
            else:
                os.kill(gateway(here), signal.SIGKILL)
            for client in clients:
                await client.send(f"UNSUB 4\r\nSUB gone.{turn + 1} 4\r\n")
                await client.flush(20)
            await until(lambda old=before: _are_new(brokers, old))  # type: ignore[misc]
            await all_know(clients)
            await everything_holds(clients, turn)
            for client in clients:
                await has_no_responders(client, f"gone.{turn}")
            if turn == WARM:
                warm = sum(processes(here).values()), resident_kib(here)
        await load.end()
        assert warm is not None
        most, most_kib = warm
        await until(lambda: sum(processes(here).values()) <= most)
        assert resident_kib(here) <= most_kib + MOST_GROWN_KIB
        for client in clients:
            await client.talk("UNSUB 1\r\nUNSUB 2\r\nUNSUB 4\r\nPING\r\n", expect_last="PONG\r\n")
        for client in clients:
            for subject in ("all.0", "work.0", f"gone.{ROUNDS}"):
                await has_no_responders(client, subject)


def _are_new(brokers: list[Broker], before: list[dict[str, int]]) -> bool:
    """Whether all routes of the first one are other ones than before, at both ends, and nothing is missing."""
    now = [routes_of(broker) for broker in brokers]
    mine = page(brokers[0], "/varz")["server_id"]
    return all(len(routes) == len(brokers) - 1 for routes in now) and all(
        now[at].get(other) != rid
        for at, routes in enumerate(before)
        for other, rid in routes.items()
        if at == 0 or other == mine
    )
