"""Streams that an account imports reach the leaf node connections of that account, as they reach its clients.

nats-server is asked the same, as hub and as leaf node, alone and at the other end of a gnatswarm.
"""

from __future__ import annotations

import asyncio
import signal

import pytest

from tests.support.leaves import CREATED, Net, hub_port, know, payloads, subscribed
from tests.support.servers import Broker
from tests.support.wire import Client
from tests.system.test_leaf import Start, net, start

__all__ = ["net", "start"]
ACCOUNTS = """accounts {
    A { users [ {user: a, password: p} ], exports [ {stream: "orig.>"}, {stream: "own.*.*"} ] }
    B { users [ {user: b, password: p}
                {user: some, password: p, permissions: {subscribe: "str.seen"}} ]
        imports [ {stream: {account: A, subject: "orig.>"}, prefix: str}
                  {stream: {account: A, subject: "own.*.*"}, to: "mine.$2.$1"}
                  MORE ] }
}
"""
MORE = """{stream: {account: A, subject: "orig.two"}, to: "again"}
                  {stream: {account: A, subject: "orig.new"}, to: "new"}"""
PAIRS = [
    ("nats-server", "nats-server"),
    ("gnatswarm-2", "nats-server"),
    ("gnatswarm-2", "nats-server-2.15"),
    ("gnatswarm-2", "gnatswarm-2"),
    ("nats-server", "gnatswarm-2"),
    ("nats-server-2.15", "gnatswarm-2"),
]
A, B = {"user": "a", "pass": "p"}, {"user": "b", "pass": "p"}


@pytest.fixture(params=PAIRS, ids=" ".join)
def kinds(request: pytest.FixtureRequest) -> tuple[str, str]:
    return request.param  # type: ignore[no-any-return]


def hub_config(more: str = "", accounts: str = ACCOUNTS) -> str:
    return f"server_name: hub\nleafnodes {{ listen: '127.0.0.1:-1' }}\n{accounts.replace('MORE', more)}"


def leaf_config(hub: Broker, user: str = "b", account: str = "", accounts: str = "") -> str:
    url = f"nats://{user + ':p@' if user else ''}127.0.0.1:{hub_port(hub)}"
    return f'server_name: leaf\nleafnodes {{ reconnect: 1, remotes [ {{ url: "{url}"\n{account} }} ] }}\n{accounts}'


def connected(start: Start, kind: str, hub: Broker, config: str) -> Broker:
    """A leaf node of this hub, which knows it.

    (One of 2.9 imported nothing for what was subscribed to in the moment in which it connected, once.)
    """
    leaf = start(kind, config)
    leaf.log.wait_line(CREATED)
    hub.log.wait_line(CREATED)
    return leaf


async def sent(client: Client, *subjects: str) -> None:
    await client.send("".join(f"PUB {subject} back {len(subject)}\r\n{subject}\r\n" for subject in subjects))
    await client.flush()


async def is_wanted(client: Client, subject: str) -> bool:
    """Whether nobody says that nobody is there for a request; the client has subscribed to "none"."""
    await client.send(f"PUB {subject} none 0\r\n\r\n")
    return not any(frame.subject == "none" for frame in await client.flush())


async def heard(client: Client, count: int) -> list[tuple[str, bytes, str]]:
    return sorted((one.subject, one.payload, one.reply or "") for one in await client.messages(count, 20))


async def test_a_leaf_node_hears_the_streams_that_its_account_imports(
    start: Start, net: Net, kinds: tuple[str, str]
) -> None:
    hub = start(kinds[0], hub_config())
    leaf = connected(start, kinds[1], hub, leaf_config(hub))
    exporter, other, importer = await net.client(hub, **A), await net.client(hub, **A), await net.client(hub, **B)
    at_leaf = await net.client(leaf)
    await subscribed(at_leaf, "str.orig.> 1", "str.*.one 2", "mine.> 3")
    await subscribed(other, "orig.> 1")
    await know(importer, at_leaf)
    await sent(exporter, "orig.one", "orig.two", "own.x.y", "not.exported")
    assert await heard(other, 2) == [("orig.one", b"orig.one", "back"), ("orig.two", b"orig.two", "back")]
    assert await heard(at_leaf, 4) == [
        ("mine.y.x", b"own.x.y", "back"),
        ("str.orig.one", b"orig.one", "back"),
        ("str.orig.one", b"orig.one", "back"),
        ("str.orig.two", b"orig.two", "back"),
    ]
    many = 2000
    await exporter.send("".join(f"PUB orig.x {len(str(n))}\r\n{n}\r\n" for n in range(many)))
    assert await payloads(at_leaf, many) == [b"%d" % n for n in range(many)]
    await exporter.send(b"HPUB orig.h 12 14\r\nNATS/1.0\r\n\r\nhi\r\n")
    (frame,) = await at_leaf.messages(1, 20)
    assert (frame.subject, frame.headers, frame.payload) == ("str.orig.h", b"NATS/1.0\r\n\r\n", b"hi")
    # Interest ends with the last subscription.
    await at_leaf.talk("UNSUB 1\r\nUNSUB 3\r\nPING\r\n", expect_last="PONG\r\n")
    await know(importer, at_leaf)
    await sent(exporter, "orig.one", "own.x.y", "orig.two")
    assert await heard(at_leaf, 1) == [("str.orig.one", b"orig.one", "back")]
    await at_leaf.expect_quiet()
    await importer.expect_quiet()


async def test_a_queue_group_of_a_leaf_node_gets_each_message_of_a_stream_once(
    start: Start, net: Net, kinds: tuple[str, str]
) -> None:
    hub = start(kinds[0], hub_config())
    leaf = connected(start, kinds[1], hub, leaf_config(hub))
    exporter, importer = await net.client(hub, **A), await net.client(hub, **B)
    members = [await net.client(leaf) for _ in range(3)]
    for member in members:
        await subscribed(member, "str.orig.q workers 1", "str.orig.> 2")
    await know(importer, members[2])
    count = 300
    await sent(exporter, *["orig.q"] * count)
    taken = []
    for member in members:
        frames = [one.sid for one in await member.messages(count, 20)]
        while frames.count("2") < count:
            frames += [one.sid for one in await member.messages(1, 20)]
        await member.flush()
        taken.append(len(frames) + len(member.inbox) - count)
    assert sum(taken) == count and min(taken) > 0, taken


async def test_the_hub_hears_the_streams_that_the_leaf_nodes_account_imports(
    start: Start, net: Net, kinds: tuple[str, str]
) -> None:
    """The accounts are the leaf node's; its account B is the hub's only one."""
    hub = start(kinds[0], "server_name: hub\nleafnodes { listen: '127.0.0.1:-1' }\n")
    leaf = connected(start, kinds[1], hub, leaf_config(hub, "", "account: B", ACCOUNTS.replace("MORE", "")))
    exporter, importer, at_hub = await net.client(leaf, **A), await net.client(leaf, **B), await net.client(hub)
    await subscribed(at_hub, "str.> 1", "mine.x.y 2")
    await know(importer, at_hub)
    await sent(exporter, "orig.one", "own.y.x", "own.x.y")
    assert await heard(at_hub, 2) == [("mine.x.y", b"own.y.x", "back"), ("str.orig.one", b"orig.one", "back")]
    await at_hub.expect_quiet()


async def test_permissions_hold_for_the_subject_that_the_leaf_node_sees(start: Start, net: Net) -> None:
    accounts = ACCOUNTS.replace('"str.seen"', "[str.orig.seen, probe.>]")
    hub = start("gnatswarm-2", hub_config(accounts=accounts))
    leaf = start("nats-server", leaf_config(hub, "some"))
    exporter, importer, at_leaf = await net.client(hub, **A), await net.client(hub, **B), await net.client(leaf)
    await subscribed(at_leaf, "str.> 1")
    await know(importer, at_leaf)
    await sent(exporter, "orig.no", "orig.seen")
    assert await heard(at_leaf, 1) == [("str.orig.seen", b"orig.seen", "back")]
    await at_leaf.expect_quiet()


async def test_a_reload_of_imports_and_a_lost_connection_are_followed(start: Start, net: Net) -> None:
    hub = start("gnatswarm-2", hub_config())
    leaf = start("nats-server", leaf_config(hub))
    exporter, importer, at_leaf = await net.client(hub, **A), await net.client(hub, **B), await net.client(leaf)
    await subscribed(at_leaf, "again 1", "str.orig.two 2", "new 3")
    await subscribed(exporter, "none 9")
    await know(importer, at_leaf)
    await sent(exporter, "orig.two")
    assert await heard(at_leaf, 1) == [("str.orig.two", b"orig.two", "back")]
    assert not await is_wanted(exporter, "orig.gone")
    for words, wanted in (("SUB str.orig.gone 4", True), ("UNSUB 4", False)):
        await at_leaf.talk(f"{words}\r\nPING\r\n", expect_last="PONG\r\n")
        async with asyncio.timeout(20):
            while await is_wanted(exporter, "orig.gone") != wanted:
                pass
        assert [one[0] for one in await heard(at_leaf, wanted)] == ["str.orig.gone"] * wanted
    assert hub.config is not None and hub.directory is not None
    for more, expected in ((MORE, ["again", "str.orig.two"]), ("", ["str.orig.two"])):
        lines = len(hub.log.lines)
        (hub.directory / "broker.conf").write_text(hub_config(more) + "stats: false\n")
        hub.send_signal(signal.SIGHUP)
        hub.log.wait_line("Reloaded server configuration", start=lines)
        await exporter.flush()
        await sent(exporter, "orig.two")
        assert [one[0] for one in await heard(at_leaf, len(expected))] == expected
        async with asyncio.timeout(20):
            while await is_wanted(exporter, "orig.new") != bool(more):
                pass
        assert [one[0] for one in await heard(at_leaf, bool(more))] == ["new"] * bool(more)
        await at_leaf.expect_quiet()
    lines = len(hub.log.lines)
    leaf.kill()
    hub.log.wait_line("Leafnode connection closed", 20.0, start=lines)
    async with asyncio.timeout(20):
        while await is_wanted(exporter, "orig.two"):
            pass


async def test_a_member_of_a_cluster_and_a_leaf_node_of_the_exporter_publish_what_a_leaf_node_imports(
    start: Start, net: Net
) -> None:
    cluster = 'cluster { name: c, listen: "127.0.0.1:-1"'
    hub = start("gnatswarm-2", hub_config() + cluster + " }\n")
    route = hub.log.wait_line(r"Listening for route connections on \S*:(\d+)")[1]
    routes = f'\nroutes: ["nats://127.0.0.1:{route}"] }}\n'
    member = start("nats-server", "server_name: two\n" + ACCOUNTS.replace("MORE", "") + cluster + routes)
    leaf = start("nats-server", leaf_config(hub))
    other = start("nats-server", leaf_config(hub, "a").replace("server_name: leaf", "server_name: other"))
    at_leaf, at_member, at_other = await net.client(leaf), await net.client(member, **A), await net.client(other)
    await subscribed(at_leaf, "str.> 1")
    for publisher, known in ((at_member, await net.client(member, **B)), (at_other, await net.client(hub, **B))):
        await know(known, at_leaf)
        await subscribed(publisher, "none 9")
        async with asyncio.timeout(20):
            while True:
                await publisher.send("PUB orig.probe none 0\r\n\r\n")
                if not any(frame.subject == "none" for frame in await publisher.flush()):
                    break
        await at_leaf.messages(1, 20)
        await at_leaf.expect_quiet()
        await sent(publisher, "orig.one", "orig.two")
        assert [one[0] for one in await heard(at_leaf, 2)] == ["str.orig.one", "str.orig.two"]
        await at_leaf.expect_quiet()
