"""With `fence: cluster` a client's PONG means that the other members know, too, whatever they are."""

from __future__ import annotations

import asyncio
import re
import signal
import time

import pytest

from tests.support.raw_route import RawRoute
from tests.support.servers import Broker, suspended
from tests.support.turns import until
from tests.system.test_broken_link import break_links
from tests.system.test_cluster import Net, Start, cluster_config, is_meshed, know, net, route_port, start, subscribed

__all__ = ["net", "start"]
FENCED = "fence: cluster"
LATE = r"no answer within (\S+) s: PONGs to clients do not wait for it until it answers"


async def meshed(start: Start, *members: tuple[str, str]) -> list[Broker]:
    brokers: list[Broker] = []
    for number, (kind, more) in enumerate(members):
        seed = (route_port(brokers[0]),) if brokers else ()
        brokers.append(start(kind, cluster_config(f"member{number}", seed, more)))
    await until(lambda: is_meshed(brokers))
    return brokers


@pytest.mark.parametrize("other", ["gnatswarm-2", "nats-server", "nats-server-2.15"])
async def test_who_has_a_pong_gets_what_any_member_publishes_next(start: Start, net: Net, other: str) -> None:
    """No probe and no wait: each subject is published to at once, on the other members, and only once."""
    patient = f"{FENCED}\nfence_timeout: 5s"
    brokers = await meshed(start, ("gnatswarm-2", patient), (other, ""), ("gnatswarm-1", patient))
    subscribers = [await net.client(brokers[0]) for _ in range(4)] + [await net.client(brokers[2])]
    publishers = await net.clients(brokers)
    for number in range(60):
        subscriber = subscribers[number % len(subscribers)]
        await subscribed(subscriber, f"exact.{number} {number}")
        for publisher in publishers:
            await publisher.send(f"PUB exact.{number} 1\r\nx\r\n")
        frames = await subscriber.messages(len(publishers), 20)
        assert [frame.sid for frame in frames] == [str(number)] * len(publishers)


async def test_a_member_that_does_not_answer_holds_a_pong_once_and_briefly(start: Start, net: Net) -> None:
    here, there = await meshed(start, ("gnatswarm-2", f"{FENCED}\nfence_timeout: 2s"), ("nats-server", ""))
    near, far = await net.clients([here, there])
    await know(far, near)
    with suspended(there.pid):
        began = time.monotonic()
        await subscribed(near, "held 1")
        waited = time.monotonic() - began
        assert waited > 1.9
        assert await asyncio.to_thread(here.log.wait_line, LATE)
        for number in range(20):  # it is not waited for again
            await subscribed(near, f"more.{number} m{number}")
        assert len([line for line in here.log.lines if re.search(LATE, line)]) == 1
    await know(far, near)
    await subscribed(near, "again 2")
    await far.send("PUB again 1\r\nx\r\nPUB held 1\r\nx\r\n")
    assert [frame.subject for frame in await near.messages(2, 20)] == ["again", "held"]


async def test_a_reload_turns_it_on(start: Start, net: Net) -> None:
    here, there = await meshed(start, ("gnatswarm-1", ""), ("nats-server", ""))
    near = await net.client(here)
    with suspended(there.pid):
        await subscribed(near, "at.once 1")
        assert here.config is not None and here.directory is not None
        (here.directory / "broker.conf").write_text(f"{here.config}\n{FENCED}\n")
        here.send_signal(signal.SIGHUP)
        await asyncio.to_thread(here.log.wait_line, "Reloaded server configuration")
        await subscribed(near, "held 2")
        assert await asyncio.to_thread(here.log.wait_line, LATE)


async def test_a_member_says_whether_its_pongs_wait_for_others(start: Start) -> None:
    here = start("gnatswarm-1", cluster_config("here"))
    route = await RawRoute.dial(route_port(here), "raw")
    assert "fenced" not in route.info
    assert here.config is not None and here.directory is not None
    for more in (FENCED, ""):
        (here.directory / "broker.conf").write_text(f"{here.config}\n{more}\n")
        here.send_signal(signal.SIGHUP)
        while not route.infos:
            await route.talk()
        assert route.infos.pop().get("fenced", False) is (more == FENCED)
    route.close()


async def test_a_broken_link_ends_the_connections_of_fenced_members_alone(start: Start, net: Net) -> None:
    """Nobody at another server is promised anything by its PONG: a nats-server stays connected."""
    here = start("gnatswarm-2", cluster_config("here"))
    subscriber = await net.client(here)
    await subscribed(subscriber, "of.> 1")
    routes = [await RawRoute.dial(route_port(here), name, fenced=name == "fenced") for name in ("fenced", "plain")]
    for route in routes:
        await route.talk()
        route.write(f"RMSG $G of.{route.name} 1\r\nx\r\n")
    await subscriber.messages(2, 20)
    await break_links(here, subscriber.info["shard"])
    await asyncio.to_thread(here.log.wait_line, "gateway - The link to shard . broke, and is made again")
    fenced, plain = routes
    fenced.write("PING\r\n")
    assert "PONG" not in await fenced.ended()
    for _ in range(2):
        await plain.talk(f"RMSG $G of.{plain.name} 1\r\ny\r\n")
        assert [frame.payload for frame in await subscriber.messages(1, 20)] == [b"y"]
    plain.close()
