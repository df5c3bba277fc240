"""Members of one cluster that are hubs, or leaf nodes, all of them: nothing arrives by both ways, and nothing by none.

A cluster of leaf nodes is connected to two members of a cluster; or both members to one hub. What a nats-server does in
the place of a gnatswarm is the measure.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import pairwise, permutations
from typing import Any

import pytest

from tests.support.leaves import CREATED, Net, hub_port, know, payloads, subscribed
from tests.support.raw_route import RawRoute
from tests.support.servers import Broker
from tests.support.turns import until
from tests.support.wire import Client
from tests.system.test_cluster import route_port
from tests.system.test_cluster_reload import reload
from tests.system.test_hub import Leaf, by_hand
from tests.system.test_leaf import Start, net, start

__all__ = ["net", "start"]
ACCOUNTS = """accounts {
    A { users [ {user: a, password: p} ], exports [ {service: "svc.>"} ] }
    B { users [ {user: b, password: p} ], imports [ {service: {account: A, subject: "svc.>"}, to: "of.a.>"} ] }
}
"""
A, B = {"user": "a", "pass": "p"}, {"user": "b", "pass": "p"}
# The gnatswarm's place, the other member, the leaf nodes.
KINDS = [
    ("nats-server-2.15", "nats-server-2.15", "nats-server-2.15"),
    ("gnatswarm-2", "nats-server", "nats-server"),
    ("gnatswarm-2", "nats-server-2.15", "gnatswarm-1"),
    ("gnatswarm-2", "gnatswarm-1", "nats-server-2.15"),
]
PORT = "listen: '127.0.0.1:-1'"
NAMELESS = f"cluster {{ {PORT}\nroutes: [] }}\n"


@pytest.fixture(params=KINDS, ids=" ".join)
def kinds(request: pytest.FixtureRequest) -> tuple[str, str, str]:
    return request.param  # type: ignore[no-any-return]


def cluster(name: str, other: Broker | None = None) -> str:
    urls = ""
    if other is not None:
        port = other.log.wait_line(r"Listening for route connections on \S*:(\d+)")[1]
        urls = f'routes: ["nats://127.0.0.1:{port}"]'
    return f"cluster {{ name: {name}, {PORT}\n{urls} }}\n"


def remote(hub: Broker) -> str:
    return f'remotes [ {{ url: "nats://b:p@127.0.0.1:{hub_port(hub)}", account: B }} ]'


class Servers:
    """Their brokers by name, and a client of B at each."""

    def __init__(self, start: Start, net: Net) -> None:
        self._start = start
        self._net = net
        self.brokers: dict[str, Broker] = {}
        self.clients: dict[str, Client] = {}

    async def add(self, name: str, kind: str, config: str, accounts: str = ACCOUNTS) -> Broker:
        broker = self.brokers[name] = self._start(kind, f"server_name: {name}\n{accounts}{config}")
        self.clients[name] = await self.client(name, B)
        return broker

    async def client(self, name: str, login: dict[str, str]) -> Client:
        return await self._net.client(self.brokers[name], **login)

    async def all_know(self) -> None:
        for one, other in permutations(self.clients.values(), 2):
            await know(one, other)

    async def settle(self) -> None:
        """What was published before has arrived, by whichever way."""
        for chain in (list(self.clients.values()), list(self.clients.values())[::-1]):
            for one, other in pairwise(chain):
                await know(one, other)

    async def heard(self) -> Counter[tuple[str, str, str]]:
        """Who has heard what so far."""
        await self.settle()
        found: Counter[tuple[str, str, str]] = Counter()
        for name, client in self.clients.items():
            found.update((name, frame.subject, frame.sid) for frame in client.inbox)
            client.inbox = []
        return found


OF_LEAVES = "accounts { B { users [ {user: b, password: p} ] } }\n"


async def hubs(start: Start, net: Net, kinds: tuple[str, str, str]) -> Servers:
    """Two members of one cluster, and a leaf node of each, which are a cluster, too; in the order of the long way."""
    servers = Servers(start, net)
    one = await servers.add("one", kinds[0], f"leafnodes {{ {PORT} }}\n{cluster('c')}")
    leaf = await servers.add("leaf1", kinds[2], f"leafnodes {{ {remote(one)} }}\n{cluster('l')}", OF_LEAVES)
    two = await servers.add("two", kinds[1], f"leafnodes {{ {PORT} }}\n{cluster('c', one)}")
    await servers.add("leaf2", kinds[2], f"leafnodes {{ {remote(two)} }}\n{cluster('l', leaf)}", OF_LEAVES)
    servers.clients = {name: servers.clients[name] for name in ("leaf1", "one", "two", "leaf2")}
    return servers


async def test_a_cluster_of_leaf_nodes_of_two_members_hears_each_message_once(
    start: Start, net: Net, kinds: tuple[str, str, str]
) -> None:
    servers = await hubs(start, net, kinds)
    clients = servers.clients
    for client in clients.values():
        await subscribed(client, "plain 1", "both 2", "both workers 3", "group workers 4")
    await servers.all_know()
    for client in clients.values():
        await client.send("PUB plain 1\r\nx\r\n" * 10 + "PUB group 1\r\nx\r\n" * 40 + "PUB both 1\r\nx\r\n" * 10)
        await client.send(b"HPUB plain back 12 13\r\nNATS/1.0\r\n\r\nx\r\n")
        found = await servers.heard()
        assert {name: found[name, "plain", "1"] for name in clients} == dict.fromkeys(clients, 11)
        assert sum(found[name, "group", "4"] for name in clients) == 40
        assert sum(found[name, "both", "3"] for name in clients) == 10
        # (2.9, as a leaf node that was chosen, gives a group's message to another one of its cluster, and names it to
        # plain subscribers there, too: hubs that have members choose those.)
        assert {name: found[name, "both", "2"] for name in clients} == dict.fromkeys(clients, 10)


async def test_members_at_leaf_nodes_and_hubs_are_second_choice(
    start: Start, net: Net, kinds: tuple[str, str, str]
) -> None:
    servers = await hubs(start, net, kinds)
    clients = servers.clients
    for name in ("leaf1", "one", "leaf2"):
        await subscribed(clients[name], "work workers 1")
    await servers.all_know()
    for name, client in clients.items():
        if name == "two" and kinds[1] == "nats-server":
            continue  # 2.9 counts what a member tells of its leaf nodes as that member's own
        await client.send("PUB work 1\r\nx\r\n" * 50)
        found = await servers.heard()
        mine = ("leaf1", "leaf2") if name.startswith("leaf") else ("one",)
        assert sum(found[who, "work", "1"] for who in mine) == found.total() == 50, (name, found)
    await clients["one"].talk("UNSUB 1\r\nPING\r\n", expect_last="PONG\r\n")
    for client in clients.values():
        await client.send("PUB work 1\r\nx\r\n" * 20)
        found = await servers.heard()
        assert found["leaf1", "work", "1"] + found["leaf2", "work", "1"] == found.total() == 20


async def test_a_request_is_answered_once_from_either_side(start: Start, net: Net, kinds: tuple[str, str, str]) -> None:
    servers = await hubs(start, net, kinds)
    clients = servers.clients
    for name, client in clients.items():
        await subscribed(client, "ask services 1", f"inbox.{name} 2")
    await servers.all_know()
    for name, client in clients.items():
        await client.send(f"PUB ask inbox.{name} 1\r\nx\r\n" * 20)
        await servers.settle()
        answers = 0
        for one in clients.values():
            requests = [frame for frame in one.inbox if frame.subject == "ask"]
            one.inbox = []
            await one.send(f"PUB inbox.{name} 1\r\ny\r\n" * len(requests))
            answers += len(requests)
        assert answers == 20
        assert await servers.heard() == {(name, f"inbox.{name}", "2"): 20}


async def test_a_group_that_one_leaf_node_has_gets_what_its_cluster_and_the_members_publish(
    start: Start, net: Net, kinds: tuple[str, str, str]
) -> None:
    servers = await hubs(start, net, kinds)
    await subscribed(servers.clients["leaf2"], "only workers 1", "only 2")
    await servers.all_know()
    for client in servers.clients.values():
        await client.send("PUB only 1\r\nx\r\n" * 50)
        assert await servers.heard() == {("leaf2", "only", "1"): 50, ("leaf2", "only", "2"): 50}


@pytest.mark.parametrize("first", ["client", "leaf"])
async def test_interest_of_a_member_and_of_its_leaf_node_end_apart(
    start: Start, net: Net, kinds: tuple[str, str, str], first: str
) -> None:
    servers = await hubs(start, net, kinds)
    one, two, leaf = (servers.clients[name] for name in ("one", "two", "leaf2"))
    both = (two, leaf) if first == "client" else (leaf, two)
    for client in both:
        await subscribed(client, "x 1", "q workers 2")
        await servers.all_know()
    for client in both:
        await one.send("PUB x 1\r\nx\r\n" * 5 + "PUB q 1\r\nx\r\n" * 20)
        found = await servers.heard()
        assert sum(found[name, "q", "2"] for name in servers.clients) == 20
        assert sum(found[name, "x", "1"] for name in servers.clients) == (10 if client is both[0] else 5)
        await client.talk("UNSUB 1\r\nUNSUB 2\r\nPING\r\n", expect_last="PONG\r\n")
        await servers.all_know()
    await subscribed(one, "none 9")
    await servers.settle()
    async with asyncio.timeout(20):
        while True:
            await one.send("PUB x none 0\r\n\r\nPUB q none 0\r\n\r\n")
            if len([frame for frame in await one.flush() if frame.subject == "none"]) == 2:
                break


async def test_members_that_are_leaf_nodes_of_one_hub_follow_imports_of_its_requests_once(
    start: Start, net: Net, kinds: tuple[str, str, str]
) -> None:
    servers = Servers(start, net)
    hub = await servers.add("hub", kinds[1], f"leafnodes {{ {PORT} }}\n")
    one = await servers.add("one", kinds[0], f"leafnodes {{ {remote(hub)} }}\n{cluster('c')}")
    await servers.add("two", kinds[1], f"leafnodes {{ {remote(hub)} }}\n{cluster('c', one)}")
    exporters = {name: await servers.client(name, A) for name in servers.brokers}
    for client in exporters.values():
        await subscribed(client, "svc.t 1")
    await subscribed(servers.clients["hub"], "plain 1")
    await servers.all_know()
    for name, client in servers.clients.items():
        await client.send("PUB of.a.t inbox 1\r\nx\r\n" * 5)
        await servers.settle()
        for who, exporter in exporters.items():
            await know(exporters["one"], exporters["two"])
            await know(exporters["two"], exporters["one"])
            await exporter.flush()
            requests = [frame for frame in exporter.inbox if frame.subject == "svc.t"]
            exporter.inbox = []
            assert len(requests) == 5, (name, who)


TOLD = pytest.mark.parametrize("kind", ["gnatswarm-2", "nats-server-2.15"])


async def raw_hub(start: Start, kind: str, **says: Any) -> tuple[RawRoute, list[Leaf], Broker]:
    """A server, as seen by a member of its cluster and two leaf nodes of one cluster, and one of another."""
    here = start(kind, f"server_name: here\nleafnodes {{ {PORT} }}\n{cluster('marsh')}")
    route = await RawRoute.dial(route_port(here), "raw", **says)
    await route.talk()
    leaves = []
    for name, of in (("l1", "pond"), ("l2", "pond"), ("l3", "lake")):
        about = {"server_id": name, "name": name, "cluster": of, "remote_account": "$G"}
        leaves.append(await by_hand(hub_port(here), about))
        await acts(leaves[-1], "")
    await told(route)
    return route, leaves, here


async def acts(leaf: Leaf, said: str) -> list[str]:
    """What a leaf node is sent until the server has read this."""
    leaf.say(said + "PING\r\n")
    return [line for line in (await leaf.until(b"PONG\r\n")).decode().split("\r\n") if line.startswith("LMSG")]


async def told(route: RawRoute) -> list[str]:
    """What a member is told, to the last change that a leaf node has made before."""
    lines = [line for line, _ in await route.talk()]
    return [line for line in lines if not any(word in line for word in ("$LDS.", "$SYS.", "$JS."))]


async def after(route: RawRoute, leaf: Leaf, *lines: str) -> list[str]:
    """What a member is told of what a leaf node says."""
    found = []
    for line in lines:
        await acts(leaf, line + "\r\n")
        found += await told(route)
    return found


@TOLD
async def test_interest_of_leaf_nodes_is_told_apart_to_who_knows_how(start: Start, net: Net, kind: str) -> None:
    route, (one, two, other), here = await raw_hub(start, kind, lnoc=True, lnocu=True)
    client = await net.client(here)
    assert await after(route, one, "LS+ a") == ["LS+ pond $G a"]
    await client.talk("SUB a 1\r\nPING\r\n", expect_last="PONG\r\n")
    async with asyncio.timeout(20):
        while (lines := await told(route)) != ["RS+ $G a"]:
            assert lines == []
    assert await after(route, two, "LS+ a") == []
    assert await after(route, other, "LS+ a") == ["LS+ lake $G a"]
    assert await after(route, one, "LS- a") == []
    assert await after(route, two, "LS- a") == ["LS- pond $G a"]
    assert await after(route, other, "LS- a") == ["LS- lake $G a"]
    assert (await after(route, one, "LS+ q w 3"))[-1] == "LS+ pond $G q w 3"
    assert (await after(route, two, "LS+ q w 2"))[-1] == "LS+ pond $G q w 5"
    assert (await after(route, other, "LS+ q w 1"))[-1] == "LS+ lake $G q w 1"
    late = await RawRoute.dial(route_port(here), "late", lnoc=True, lnocu=True)
    async with asyncio.timeout(20):
        found: set[str] = set()
        while not {"RS+ $G a", "LS+ pond $G q w 5", "LS+ lake $G q w 1"} <= found:
            found |= set(await told(late))
    assert (await after(route, one, "LS- q w"))[-1] == "LS+ pond $G q w 2"
    assert (await after(route, two, "LS- q w"))[-1] == "LS- pond $G q w"
    assert (await after(route, other, "LS- q w"))[-1] == "LS- lake $G q w"
    route.close()
    late.close()


async def test_interest_of_leaf_nodes_is_added_up_for_who_does_not(start: Start, net: Net) -> None:
    route, (one, two, other), here = await raw_hub(start, "gnatswarm-2", lnoc=True)
    client = await net.client(here)
    await client.talk("SUB a 1\r\nPING\r\n", expect_last="PONG\r\n")
    async with asyncio.timeout(20):
        while (lines := await told(route)) != ["RS+ $G a"]:
            assert lines == []
    assert await after(route, one, "LS+ a", "LS+ b", "LS- a") == ["RS+ $G b"]
    assert await after(route, other, "LS+ b", "LS- b") == []
    assert await after(route, one, "LS+ q w 3") == ["RS+ $G q w 1", "RS+ $G q w 3"]
    assert await after(route, two, "LS+ q w 2", "LS- q w") == ["RS+ $G q w 5", "RS+ $G q w 3"]
    route.close()


@TOLD
async def test_a_message_of_a_leaf_node_does_not_come_back_to_its_cluster(start: Start, kind: str) -> None:
    route, (one, two, other), _ = await raw_hub(start, kind, lnoc=True, lnocu=True)
    await after(route, one, "LS+ a")
    await after(route, two, "LS+ a")
    await after(route, other, "LS+ a")
    await route.talk("LMSG pond $G a 0 1\r\nx\r\nLMSG sea $G a 0 1\r\ny\r\nRMSG $G a 1\r\nz\r\n")
    assert [await acts(leaf, "") for leaf in (one, two, other)] == [
        ["LMSG a 1"] * 2,
        ["LMSG a 1"] * 2,
        ["LMSG a 1"] * 3,
    ]
    await route.talk("RS+ $G b\r\nLS+ sea $G c\r\n")
    for leaf, origin in ((one, "pond"), (other, "lake")):
        await acts(leaf, "LMSG b 1\r\nx\r\nLMSG c 1\r\nx\r\n")
        assert [line for line, _ in await route.talk()] == [f"LMSG {origin} $G b 0 1", f"LMSG {origin} $G c 0 1"]
    route.close()


async def wanted_there(route: RawRoute, leaves: dict[str, Leaf], line: str) -> dict[str, str]:
    """Who of leaf nodes is told, "+" or "-", what a member says."""
    await route.talk(line + "\r\n")
    return await told_now(leaves)


async def told_now(leaves: dict[str, Leaf]) -> dict[str, str]:
    found = {}
    for name, leaf in leaves.items():
        leaf.say("PING\r\n")
        lines = (await leaf.until(b"PONG\r\n")).decode().split("\r\n")
        for one in (one for one in lines if one.startswith("LS") and not one.startswith(("LS+ $", "LS- $"))):
            found[name] = one[2]
    return found


@TOLD
async def test_a_leaf_node_is_not_told_what_only_its_own_cluster_wants_at_another_member(
    start: Start, kind: str
) -> None:
    """It would send there what nobody gets, and wait for answers of nobody."""
    route, (pond, _, lake), here = await raw_hub(start, kind, lnoc=True, lnocu=True)
    leaves = {"pond": pond, "lake": lake}
    for line, told_to in (
        ("LS+ pond $G a", {"lake": "+"}),
        ("RS+ $G a", {"pond": "+"}),
        ("RS- $G a", {"pond": "-"}),
        ("LS+ lake $G a", {"pond": "+"}),
        ("RS+ $G a", {}),
        ("LS- pond $G a", {}),
        ("RS- $G a", {"lake": "-"}),
        ("LS- lake $G a", {"pond": "-"}),
        ("LS+ pond $G q w 3", {"lake": "+"}),
        ("LS- pond $G q w", {"lake": "-"}),
        ("RS+ $G q w 2", {"pond": "+", "lake": "+"}),
        ("RS- $G q w", {"pond": "-", "lake": "-"}),
        ("LS+ lake $G q w 4", {"pond": "+"}),
        ("LS+ pond $G q w 1", {"lake": "+"}),
        ("LS- lake $G q w", {"pond": "-"}),
        ("LS+ pond $G z", {"lake": "+"}),
    ):
        assert await wanted_there(route, leaves, line) == told_to, line
    about = {"server_id": "l4", "name": "l4", "cluster": "pond", "remote_account": "$G"}
    late = await by_hand(hub_port(here), about)
    assert await wanted_there(route, {"late": late}, "RS+ $G late") == {"late": "+"}
    late.writer.close()
    await wanted_there(route, leaves, "RS- $G late")
    route.close()
    async with asyncio.timeout(20):
        found: dict[str, str] = {}
        while "lake" not in found:
            found |= await told_now(leaves)
    assert found == {"lake": "-"}


@pytest.mark.parametrize("kinds", [KINDS[0], KINDS[3]], ids=["nats-server-2.15", "gnatswarm-2"], indirect=True)
async def test_what_only_a_leaf_node_of_the_same_cluster_could_answer_has_no_responders(
    start: Start, net: Net, kinds: tuple[str, str, str]
) -> None:
    """Leaf nodes that say that they are one cluster, and are not connected: hubs pass nothing between them."""
    servers = Servers(start, net)
    one = await servers.add("one", kinds[0], f"leafnodes {{ {PORT} }}\n{cluster('c')}")
    two = await servers.add("two", kinds[1], f"leafnodes {{ {PORT} }}\n{cluster('c', one)}")
    for name, hub in (("leaf1", one), ("leaf2", two)):
        await servers.add(name, kinds[2], f"leafnodes {{ {remote(hub)} }}\n{cluster('l')}", OF_LEAVES)
    clients = servers.clients
    await subscribed(clients["leaf2"], "ask 1", "ask.group workers 1")
    await subscribed(clients["leaf1"], "none.* 9")
    await know(clients["one"], clients["leaf2"])
    await know(clients["leaf1"], clients["two"])
    await clients["leaf1"].send("PUB ask none.1 0\r\n\r\nPUB ask.group none.2 0\r\n\r\n")
    answers = await clients["leaf1"].messages(2, 20)
    assert {frame.subject for frame in answers} == {"none.1", "none.2"}
    assert all(b"503" in frame.headers for frame in answers)
    await clients["leaf2"].expect_quiet()


SHARED = """accounts {
    A { users [ {user: a, password: p} ], exports [ {service: "svc.>"}, {stream: "str.>"} ] }
    B { users [ {user: b, password: p} ], imports [ {service: {account: A, subject: "svc.>"}, to: "of.a.>"},
                                                    {stream: {account: A, subject: "str.>"}} ] }
}
"""


@pytest.mark.parametrize("place", ["one hub", "one cluster", "two clusters"])
@pytest.mark.parametrize("leaf_kind", ["nats-server-2.15", "gnatswarm-2-as-2.15"])
async def test_what_comes_from_a_hub_does_not_go_back_to_its_cluster_for_another_account(
    start: Start, net: Net, leaf_kind: str, place: str
) -> None:
    """The leaf node has both accounts at it, and the hub follows its imports itself. Another cluster gets it."""
    servers = Servers(start, net)
    own = "" if place == "one hub" else cluster("c")
    of_a = of_b = await servers.add("one", "nats-server-2.15", f"leafnodes {{ {PORT} }}\n{own}", SHARED)
    if place != "one hub":
        other = cluster("c", of_a) if place == "one cluster" else cluster("d")
        of_b = await servers.add("two", "nats-server-2.15", f"leafnodes {{ {PORT} }}\n{other}", SHARED)
    urls = ((of_a, "a", "A"), (of_b, "b", "B"))
    remotes = ", ".join(
        f'{{ url: "nats://{user}:p@127.0.0.1:{hub_port(hub)}", account: {account} }}' for hub, user, account in urls
    )
    await servers.add("leaf", leaf_kind, f"leafnodes {{ remotes [ {remotes} ] }}\n", SHARED)
    hubs = "one", "one" if place == "one hub" else "two"
    at_a, at_b = await servers.client(hubs[0], A), await servers.client(hubs[1], B)
    leaf_a, leaf_b = await servers.client("leaf", A), await servers.client("leaf", B)
    publishers = await servers.client(hubs[0], A), await servers.client(hubs[1], B)
    await subscribed(at_a, "svc.* 1")
    await subscribed(at_b, "str.* 1")
    await subscribed(leaf_a, "str.* 1")
    await subscribed(leaf_b, "of.a.* 1")
    for there, here in ((at_a, leaf_a), (at_b, leaf_b), (publishers[0], leaf_a), (publishers[1], leaf_b)):
        await know(there, here)
        await know(here, there)
    if place == "one cluster":  # and each hub knows what is wanted in account A at the other one
        beside = await servers.client("two", A)
        await know(beside, at_a)
        await know(publishers[0], beside)
    await publishers[0].send("PUB str.x 4\r\nonce\r\n")
    await publishers[1].send("PUB of.a.x 4\r\nonce\r\n")
    # The leaf node has passed it on when its own clients have it, and later ones come behind it by the same way.
    assert await payloads(leaf_a, 1) == await payloads(leaf_b, 1) == [b"once"]
    await leaf_a.send("PUB svc.x 4\r\nlast\r\n")
    await leaf_b.send("PUB str.x 4\r\nlast\r\n")
    for client in (at_a, at_b):
        found = await payloads(client, 2)  # (the first may come over the route between the hubs, behind the other)
        while b"last" not in found:
            found += await payloads(client, 1)
        assert sorted(found) == [b"last", b"once"]


OF_BOTH = "accounts { A { users [ {user: a, password: p} ] }, B { users [ {user: b, password: p} ] } }\n"


@pytest.mark.parametrize("place", ["one hub", "one cluster"])
@pytest.mark.parametrize(
    "kinds",
    [
        ("nats-server-2.15", "nats-server-2.15"),
        ("gnatswarm-2-as-2.15", "nats-server-2.15"),
        ("gnatswarm-2-as-2.15", "gnatswarm-2-as-2.15"),
    ],
    ids=" ".join,
)
async def test_what_only_the_hub_imports_comes_to_the_leaf_node_that_sent_it(
    start: Start, net: Net, kinds: tuple[str, str], place: str
) -> None:
    """From its one account to its other one, whether both are at the same hub or at two members of a cluster."""
    hub, leaf = kinds
    servers = Servers(start, net)
    own = "" if place == "one hub" else cluster("c")
    of_a = of_b = await servers.add("one", hub, f"leafnodes {{ {PORT}, no_advertise: true }}\n{own}", SHARED)
    if place != "one hub":
        more = f"leafnodes {{ {PORT}, no_advertise: true }}\n{cluster('c', of_a)}"
        of_b = await servers.add("two", hub, more, SHARED)
    remotes = ", ".join(
        f'{{ url: "nats://{name.lower()}:p@127.0.0.1:{hub_port(at)}", account: {name} }}'
        for at, name in ((of_a, "A"), (of_b, "B"))
    )
    await servers.add("leaf", leaf, f"leafnodes {{ remotes [ {remotes} ] }}\n", OF_BOTH)
    at_a, at_b = await servers.client("leaf", A), await servers.client("leaf", B)
    await subscribed(at_a, "svc.* 1")
    await subscribed(at_b, "str.* 1", "inbox.* 2")
    for client, other, probe in ((at_a, at_b, "str"), (at_b, at_a, "of.a")):
        async with asyncio.timeout(20):
            while not other.inbox:
                await client.send(f"PUB {probe}.x 5\r\nprobe\r\n")
                await client.flush()
                await other.flush()
    await at_a.send("PUB str.x 4\r\nonce\r\nPUB str.x 4\r\nlast\r\n")
    await at_b.send("PUB of.a.x inbox.1 4\r\nonce\r\nPUB of.a.x inbox.2 4\r\nlast\r\n")
    for client in (at_b, at_a):
        found = await client.messages(1, 20)
        while found[-1].payload != b"last":
            found += await client.messages(1, 20)
        found = [frame for frame in found if frame.payload != b"probe"]
        assert [frame.payload for frame in found] == [b"once", b"last"]
    await at_a.send("".join(f"PUB {request.reply} 2\r\nme\r\n" for request in found))
    assert [frame.subject for frame in await at_b.messages(2, 20)] == ["inbox.1", "inbox.2"]


@pytest.mark.parametrize("kind", ["nats-server-2.15", "gnatswarm-2"])
async def test_a_cluster_whose_made_up_name_gives_way_hears_what_its_hub_passes_on_once(
    start: Start, net: Net, kind: str
) -> None:
    """The hub was told two names, and would pass between the two what comes by the route, too."""
    servers = Servers(start, net)
    hub = await servers.add("hub", "nats-server", f"leafnodes {{ {PORT} }}\n")
    members = [
        await servers.add(name, kind, f"leafnodes {{ {remote(hub)} }}\n{NAMELESS}", OF_LEAVES)
        for name in ("leaf1", "leaf2")
    ]
    for member in members:
        member.log.wait_line(CREATED)
    # A real one knows its own connection, and ends it for the new name, only some time after that line.
    await servers.all_know()
    reload(members[1], "routes: []", f'routes: ["nats://127.0.0.1:{route_port(members[0])}"]')
    await until(lambda: sum(member.log.text.count(CREATED) for member in members) == 3)
    clients = servers.clients
    for client in clients.values():
        await subscribed(client, "plain 1")
    await servers.all_know()
    for client in clients.values():
        await client.send("PUB plain 1\r\nx\r\n" * 10)
    assert await servers.heard() == Counter({(name, "plain", "1"): 30 for name in clients})
