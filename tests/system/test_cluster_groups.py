"""Queue groups over a cluster, while members come and go, and where some may not have a message."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.support.leaves import hub_port
from tests.support.raw_route import RawRoute
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


async def publish_while_a_member_comes_and_goes(publisher: Client, leaver: Client, *, rounds: int) -> int:
    """How many: the numbers from 0 on."""
    number = 0
    for sid in range(rounds):
        await leaver.talk(f"SUB work group {sid}\r\nPING\r\n", expect_last="PONG\r\n")
        for step in range(3):
            words = range(number, number + MESSAGES_EACH // 3)
            await publisher.send("".join(f"PUB work {len(str(n))}\r\n{n}\r\n" for n in words))
            number = words.stop
            if step == 1:
                await leaver.send(f"UNSUB {sid}\r\n")
            await publisher.flush()
        await leaver.flush()
    return number


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
    number = await publish_while_a_member_comes_and_goes(publisher, leaver, rounds=ROUNDS)
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
    ("kinds", "where"),
    [
        (("gnatswarm-2", "gnatswarm-2", "nats-server"), 2),
        (("nats-server", "gnatswarm-2", "nats-server"), 2),
        (("nats-server", "gnatswarm-2"), 0),
        (("gnatswarm-2", "gnatswarm-2", "nats-server-2.15"), 2),
        (("nats-server-2.15", "gnatswarm-2"), 0),
    ],
    ids=["published-by-ours", "three", "two", "published-by-ours-newest", "two-newest"],
)
async def test_who_leaves_takes_what_may_not_go_to_a_nats_server_with_a_plain_subscriber(
    cluster: Start, net: Net, kinds: tuple[str, ...], where: int
):
    """A frame for its group would reach that one, too, who has the message already: so who leaves waits for routes.

    What a nats-server had matched when it heard of the end may come behind its PONG: one message of some thousand,
    where a tenth was lost without the wait.
    """
    brokers = cluster(*kinds)
    publisher, leaver, stays, plain = await net.clients([brokers[n] for n in (0, 1, where, where)])
    await subscribed(stays, "work group 1")
    await subscribed(plain, "work 1")
    await all_know([publisher, leaver, stays, plain])
    number = await publish_while_a_member_comes_and_goes(publisher, leaver, rounds=ROUNDS)
    await all_know([publisher, leaver, stays, plain])
    got = sorted(numbers(stays, leaver))
    assert len(set(got)) == len(got)
    assert number - len(got) <= (0 if kinds[0].startswith("gnat") else number // 100)
    assert numbers(plain) == list(range(number))
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


@pytest.mark.parametrize("is_behind_a_leaf_node", [False, True])
async def test_who_alone_of_a_group_may_have_a_message_gets_it_wherever_it_is(
    cluster: Start, net: Net, request: pytest.FixtureRequest, is_behind_a_leaf_node: bool
):
    """On a server, and at last on a shard, where others may not have it; or at a leaf node behind such a server."""
    hub = USERS + "leafnodes { listen: '127.0.0.1:-1' }\n"
    brokers = cluster("gnatswarm-2", "gnatswarm-2", "gnatswarm-2", more=hub)
    where = brokers[1]
    if is_behind_a_leaf_node:
        remote = f"leafnodes {{ remotes: [{{ url: 'nats://all:all@127.0.0.1:{hub_port(where)}' }}] }}\n"
        where = started("gnatswarm-1", USERS + remote)
        request.addfinalizer(where.stop)
    one = await net.client(where, "all")
    await subscribed(one, "work.> group 1")
    refused = [await net.client(broker, "some") for broker in brokers for _ in range(4)]
    for member in refused:
        await subscribed(member, "work.> group 1")
    publishers = [await net.client(broker, "all") for broker in brokers]
    await all_know([*publishers, one, *refused])
    for number in range(60):
        for publisher in publishers:
            await publisher.send(f"PUB work.x {len(str(number))}\r\n{number}\r\n")
    for publisher in publishers:
        await publisher.flush()
    async with asyncio.timeout(20):
        while len(got := [int(frame.payload) for frame in one.inbox if frame.subject == "work.x"]) < 180:
            await one.flush()
    await all_know([*publishers, one])
    assert sorted(got) == sorted(list(range(60)) * 3)
    assert len([frame for frame in one.inbox if frame.subject == "work.x"]) == 180


@pytest.mark.parametrize("kind", ["gnatswarm-2", "nats-server", "nats-server-2.15"])
async def test_what_a_member_at_a_leaf_node_has_just_left_goes_to_another_leaf_node(
    net: Net, request: pytest.FixtureRequest, kind: str
):
    """A nats-server does not send on what a leaf node sends back: who leaves takes it."""
    hub = started(kind, "http: '127.0.0.1:-1'\nleafnodes { listen: '127.0.0.1:-1' }\n")
    request.addfinalizer(hub.stop)
    leaves = []
    for name in "ab":
        remote = f"leafnodes {{ remotes: [{{ url: 'nats://127.0.0.1:{hub_port(hub)}' }}] }}\n"
        leaves.append(started("gnatswarm-2", f"server_name: {name}\n{remote}"))
        request.addfinalizer(leaves[-1].stop)
    publisher, leaver, stays = await net.clients([hub, *leaves])
    await subscribed(stays, "work group 1")
    await all_know([publisher, leaver, stays])
    number = await publish_while_a_member_comes_and_goes(publisher, leaver, rounds=3 * ROUNDS)
    least = number if kind.startswith("gnat") else number - number // 100  # as of routes, above
    async with asyncio.timeout(20):
        while len(numbers(stays, leaver)) < least:
            for client in (stays, leaver):
                await client.flush()
    got = sorted(numbers(stays, leaver))
    assert got == sorted(set(got)) and len(got) <= number
    assert numbers(leaver), "the one that comes and goes has had some"


async def test_what_a_gnatswarm_sends_back_does_not_come_to_who_wants_no_echo(cluster: Start, net: Net) -> None:
    """Its last member of the group has gone when the message comes there; only the publisher is left."""
    (here,) = cluster("gnatswarm-2")
    route = await RawRoute.dial(route_port(here), "NRAWMEMBER01", only_queues=True)
    client = await net.client(here, echo=False)
    await subscribed(client, "jobs workers 1")
    await route.talk("RS+ $G jobs workers 1\r\n")
    await client.flush()
    await client.send("PUB jobs 4\r\nmine\r\n")
    await client.flush()
    async with asyncio.timeout(20):
        while not (said := [line for line, _ in await route.talk() if line.startswith("QMSG ")]):
            pass
    names, _, words = said[0].removeprefix("QMSG ").partition(" ")
    whose = names.removeprefix("+,")
    assert whose == f"~{route.info['server_id'][:12]}~{client.info['client_id']}" and words == "$G jobs | workers 0 4"
    await route.talk(
        f"RS- $G jobs workers\r\nQMSG NRAWMEMBER01,{whose} {words}\r\nmine\r\nRMSG $G jobs | workers 5\r\nother\r\n"
    )
    assert [frame.payload for frame in await client.messages(1)] == [b"other"]
    await client.flush()
    assert not client.inbox
    route.close()


LONG = """
max_control_line: 131072
mappings: { "m.*": "z.{{wildcard(1)}}.{{wildcard(1)}}.{{wildcard(1)}}" }
"""


async def test_what_a_mapping_makes_long_comes_to_a_group_of_a_long_name(cluster: Start, net: Net) -> None:
    """It was dropped there where subject and group had more than 196,608 bytes together."""
    here, there = cluster("gnatswarm-2", "gnatswarm-2", more=LONG)
    publisher, member = await net.client(here), await net.client(there)
    await subscribed(member, f"z.> {'q' * 65_000} 1")
    await all_know([publisher, member])
    await publisher.send(f"PUB m.{'t' * 60_000} 2\r\nhi\r\n")
    (frame,) = await member.messages(1)
    assert (len(frame.subject), frame.payload) == (180_004, b"hi")
    assert "too long to be passed on" not in there.log.text
