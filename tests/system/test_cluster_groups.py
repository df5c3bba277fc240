"""Queue groups over a cluster, while members come and go, and where some may not have a message."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.support.servers import Broker, wait_until
from tests.support.wire import Client
from tests.system.test_cluster import (
    Net,
    all_know,
    cluster_config,
    is_meshed,
    net,
    page,
    route_port,
    started,
    subscribed,
)

__all__ = ["net"]  # a fixture

Start = Callable[..., list[Broker]]
ROUNDS = 40
MESSAGES_EACH = 30
USERS = """
authorization { users: [{user: all, password: all}, {user: some, password: some,
  permissions: {subscribe: {deny: "work.x"}}}] }
"""


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Start:
    """Starts members, one of each kind named."""

    def start(*kinds: str, more: str = "") -> list[Broker]:
        brokers: list[Broker] = []
        for number, kind in enumerate(kinds):
            config = cluster_config(f"m{number}", tuple(route_port(one) for one in brokers), more)
            broker = started(kind, config)
            request.addfinalizer(broker.stop)
            brokers.append(broker)
        wait_until(lambda: is_meshed(brokers), 30)
        return brokers

    return start


def numbers(*clients: Client) -> list[int]:
    return [int(frame.payload) for client in clients for frame in client.inbox if frame.subject == "work"]


@pytest.mark.parametrize("where", [0, 2], ids=["where-it-is-published", "at-a-third-member"])
@pytest.mark.parametrize(
    "kinds",
    [("gnatswarm-2",) * 3, ("gnatswarm-2", "gnatswarm-2", "nats-server")],
    ids=["gnatswarms", "and-nats-server"],
)
async def test_a_group_gets_each_message_once_while_a_member_comes_and_goes(
    cluster: Start, net: Net, kinds: tuple[str, ...], where: int
):
    """One member stays, in a place with a plain subscriber of the subject (of a nats-server: without one)."""
    brokers = cluster(*kinds)
    publisher, near, leaver, stays, plain = await net.clients([brokers[n] for n in (0, 0, 1, where, where)])
    await subscribed(stays, "work group 1")
    watchers = [near] if kinds[where] == "nats-server" else [near, plain]
    for watcher in watchers:
        await subscribed(watcher, "work 1")
    await all_know([publisher, near, leaver, stays, plain])
    number = 0
    for sid in range(ROUNDS):
        await leaver.talk(f"SUB work group {sid}\r\nPING\r\n", expect_last="PONG\r\n")
        for step in range(3):
            words = range(number, number + MESSAGES_EACH // 3)
            await publisher.send("".join(f"PUB work {len(str(n))}\r\n{n}\r\n" for n in words))
            number = words.stop
            if step == 1:
                await leaver.send(f"UNSUB {sid}\r\n")
            await publisher.flush()
        await leaver.flush()
    async with asyncio.timeout(20):
        while len(numbers(stays, leaver)) < number or any(len(numbers(one)) < number for one in watchers):
            for client in (stays, leaver, *watchers):
                await client.flush()
    await all_know([publisher, near, leaver, stays, plain])
    assert sorted(numbers(stays, leaver)) == list(range(number))
    for watcher in watchers:
        assert numbers(watcher) == list(range(number))
    assert numbers(leaver), "the one that comes and goes has had some"


@pytest.mark.parametrize(
    "kinds", [("gnatswarm-2", "gnatswarm-2"), ("gnatswarm-2", "nats-server")], ids=["gnatswarms", "and-nats-server"]
)
async def test_what_no_member_of_a_group_may_have_does_not_go_round_for_ever(
    cluster: Start, net: Net, kinds: tuple[str, ...]
):
    """Each has told of its members, and learns only when the message is there that they may not have it."""
    brokers = cluster(*kinds, more=USERS)
    publisher = await net.client(brokers[0], "all")
    members = [await net.client(broker, "some") for broker in brokers for _ in range(4)]
    for member in members:
        await subscribed(member, "work.> group 1")
    await all_know([publisher, *members])
    await publisher.send("PUB work.x 2\r\nhi\r\n")
    await publisher.flush()

    def counts() -> list[tuple[int, int]]:
        routes = [route for broker in brokers for route in page(broker, "/routez")["routes"]]
        return [(route["in_msgs"], route["out_msgs"]) for route in routes]

    before: list[tuple[int, int]] = []
    async with asyncio.timeout(30):
        while (now := counts()) != before:
            before = now
            for member in members:
                await member.flush()
    assert not [frame for member in members for frame in member.inbox if frame.subject == "work.x"]
