"""A leaf node of a nats-server hub: what clients of both may expect of each other.

Both versions of nats-server are hubs. A message that crosses has to find interest on the other side, and nobody tells
when that is known there; so `know` sends probes until one arrives.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import urllib.request
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gnatswarm.broker.access.nkey import user_key
from gnatswarm.shards.boundary.seeds import seed_bytes
from gnatswarm.shards.gateway.remote import TELL_EVERY
from tests.support.authority import Authority
from tests.support.leaves import (
    CREATED,
    Net,
    check_no_responders,
    check_request,
    hub_port,
    know,
    payloads,
    subscribed,
)
from tests.support.ports import free_port
from tests.support.servers import KINDS, Broker, BrokerUnavailable
from tests.support.turns import until
from tests.support.wire import Client

HUBS = ("nats-server", "nats-server-2.15")

Start = Callable[..., Broker]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts brokers that end with the test: `start(kind, config)`, and more for Broker."""
    started: list[Broker] = []

    def begin(kind: str, config: str, **more: Any) -> Broker:
        broker = Broker(KINDS[kind], config=config + "\nstats: false\n" * kind.startswith("gnat"), **more)
        try:
            broker.start()
        except BrokerUnavailable as error:
            pytest.skip(str(error))
        started.append(broker)
        return broker

    yield begin
    for broker in started:
        broker.kill()
        print(f"the log of {broker.kind}:", broker.log.text[-6000:], sep="\n")


@pytest.fixture(params=HUBS)
def hub_kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def net() -> AsyncIterator[Net]:
    found = Net()
    yield found
    for client in found.all:
        client.close()


def hub_config(more: str = "", leaf: str = "", port: int = -1) -> str:
    return f"server_name: hub\nleafnodes {{ host: 127.0.0.1, port: {port}\n{leaf} }}\n{more}"


def leaf_config(port: int, more: str = "", remote: str = "", login: str = "") -> str:
    at = f"{login}@" if login else ""
    return (
        f'server_name: leaf{uuid.uuid4().hex[:6]}\nleafnodes {{ reconnect: "50ms", remotes [ '
        f'{{ url: "nats://{at}127.0.0.1:{port}"\n{remote} }} ] }}\n{more}'
    )


async def test_each_message_crosses_once_and_in_order(start: Start, net: Net, hub_kind: str) -> None:
    hub = start(hub_kind, hub_config())
    leaf = start("gnatswarm-2", leaf_config(hub_port(hub)))
    at_hub, at_leaf, other = await net.client(hub), await net.client(leaf), await net.client(leaf)
    # Two patterns on one client, and a second client on the same subject: one frame crosses, each subscription has it.
    await subscribed(at_leaf, "up.* 1", "up.> 2")
    await subscribed(other, "up.x 3")
    await subscribed(at_hub, "down.* 1", "down.> 2")
    await know(at_hub, at_leaf)
    await know(at_hub, other)
    await know(at_leaf, at_hub)
    many = 5000
    await at_hub.send("".join(f"PUB up.x {len(str(n))}\r\n{n}\r\n" for n in range(many)))
    await at_leaf.send("".join(f"PUB down.x {len(str(n))}\r\n{n}\r\n" for n in range(many)))
    sent = [b"%d" % n for n in range(many)]
    assert await payloads(other, many) == sent
    for client in (at_leaf, at_hub):
        frames = await client.messages(2 * many, 20)
        for sid in ("1", "2"):
            assert [frame.payload for frame in frames if frame.sid == sid] == sent
    for client in (at_hub, at_leaf, other):
        await client.expect_quiet()


async def test_headers_and_large_payloads_cross(start: Start, net: Net, hub_kind: str) -> None:
    hub = start(hub_kind, hub_config())
    leaf = start("gnatswarm-2", leaf_config(hub_port(hub)))
    at_hub, at_leaf = await net.client(hub), await net.client(leaf)
    for here, there in ((at_hub, at_leaf), (at_leaf, at_hub)):
        await subscribed(there, "big 1")
        await know(here, there)
        body = b"x" * 900_000
        await here.send(b"HPUB big reply.to 18 %d\r\nNATS/1.0\r\na: b\r\n\r\n" % (18 + len(body)) + body + b"\r\n")
        (frame,) = await there.messages(1, 20)
        assert (frame.reply, frame.headers, frame.payload) == ("reply.to", b"NATS/1.0\r\na: b\r\n\r\n", body)
        await there.talk("UNSUB 1\r\nPING\r\n", expect_last="PONG\r\n")


async def test_a_request_is_answered_from_the_other_side_or_by_a_503(start: Start, net: Net, hub_kind: str) -> None:
    hub = start(hub_kind, hub_config())
    leaf = start("gnatswarm-2", leaf_config(hub_port(hub)))
    at_hub, at_leaf = await net.client(hub), await net.client(leaf)
    for asker, service in ((at_hub, at_leaf), (at_leaf, at_hub)):
        await check_request(asker, service, "svc")
    await check_no_responders(at_leaf)


async def test_one_member_of_a_queue_group_gets_each_message_on_either_side(
    start: Start, net: Net, hub_kind: str
) -> None:
    hub = start(hub_kind, hub_config())
    leaf = start("gnatswarm-2", leaf_config(hub_port(hub)))
    members = [await net.client(leaf) for _ in range(3)]
    at_hub, at_leaf = await net.client(hub), await net.client(leaf)
    for number, member in enumerate(members):
        await subscribed(member, f"work workers {number}")
        await know(at_hub, member)
    many = 300
    await at_hub.send("PUB work 0\r\n\r\n" * many)
    await at_hub.flush()

    async def taken(clients: list[Client]) -> list[int]:
        async with asyncio.timeout(20):
            while sum(len(client.inbox) for client in clients) < many:
                for client in clients:
                    await client.flush()
        return [len(client.inbox) for client in clients]

    counts = await taken(members)
    assert sum(counts) == many and min(counts) > many // 10, counts
    for client in members:
        client.inbox.clear()
        await client.send(f"UNSUB {members.index(client)}\r\n")
        await client.flush()
    # The group moves to the other side: nothing is left here.
    remote = [await net.client(hub) for _ in range(2)]
    for member in remote:
        await subscribed(member, "work workers 5")
        await know(at_leaf, member)
    await at_leaf.send("PUB work 0\r\n\r\n" * many)
    counts = await taken(remote)
    assert sum(counts) == many and min(counts) > many // 10, counts
    assert not any([await client.flush() for client in members])


async def test_a_hub_that_was_killed_is_found_again(start: Start, net: Net, hub_kind: str) -> None:
    port = free_port()
    hub = start(hub_kind, hub_config(port=port))
    leaf = start("gnatswarm-2", leaf_config(port))
    at_leaf = await net.client(leaf)
    await subscribed(at_leaf, "back 1", "back workers 2")
    leaf.log.wait_line(CREATED)
    lines = len(leaf.log.lines)
    hub.kill()
    leaf.log.wait_line(r"Leafnode connection closed", start=lines)
    # Its interest is gone with it.
    await subscribed(at_leaf, "none 3")
    await at_leaf.send("PUB anybody none 0\r\n\r\n")
    (answer,) = await at_leaf.messages(1)
    assert answer.headers.startswith(b"NATS/1.0 503")
    again = start(hub_kind, hub_config(port=port))
    leaf.log.wait_line(CREATED, 20.0, start=lines)
    at_hub = await net.client(again)
    await know(at_hub, at_leaf)
    await at_hub.send("PUB back 3\r\nyes\r\n")
    frames = await at_leaf.messages(2, 20)
    assert sorted(frame.sid for frame in frames) == ["1", "2"]


async def test_two_leaf_nodes_of_one_hub_reach_each_other(start: Start, net: Net, hub_kind: str) -> None:
    hub = start(hub_kind, hub_config())
    port = hub_port(hub)
    one, two = start("gnatswarm-2", leaf_config(port)), start("gnatswarm-1", leaf_config(port))
    here, there = await net.client(one), await net.client(two)
    await subscribed(there, "across 1")
    await know(here, there)
    await here.send("PUB across 2\r\nhi\r\n" * 100)
    assert await payloads(there, 100) == [b"hi"] * 100
    await there.expect_quiet()


async def test_two_connections_to_one_place_are_a_loop_and_one_is_closed(start: Start, net: Net, hub_kind: str) -> None:
    hub = start(hub_kind, hub_config())
    port = hub_port(hub)
    # A leaf of the hub, and of a nats-server that is a leaf of the same hub.
    middle = start(
        hub_kind,
        "server_name: middle\nleafnodes { host: 127.0.0.1, port: -1, remotes [ "
        f'{{ url: "nats://127.0.0.1:{port}" }} ] }}\n',
    )
    text = leaf_config(port).replace("remotes [ ", f'remotes [ {{ url: "nats://127.0.0.1:{hub_port(middle)}" }}, ')
    leaf = start("gnatswarm-2", text)
    leaf.log.wait_line("Loop detected|loop detected", 20.0)
    at_leaf, at_hub = await net.client(leaf), await net.client(hub)
    await subscribed(at_hub, "once 1")
    await know(at_leaf, at_hub)
    await at_leaf.send("PUB once 2\r\nhi\r\n")
    assert await payloads(at_hub, 1) == [b"hi"]
    await at_hub.expect_quiet()


async def test_only_its_account_crosses(start: Start, net: Net, hub_kind: str) -> None:
    users = "accounts { A { users [ {user: a, password: p} ] }, B { users [ {user: b, password: p} ] } }\n"
    hub = start(hub_kind, hub_config(users))
    leaf = start("gnatswarm-2", leaf_config(hub_port(hub), users, "account: B", "a:p"))
    at_hub, stranger = (
        await net.client(hub, user="a", **{"pass": "p"}),
        await net.client(hub, user="b", **{"pass": "p"}),
    )
    bound, other = await net.client(leaf, user="b", **{"pass": "p"}), await net.client(leaf, user="a", **{"pass": "p"})
    for client in (at_hub, stranger, bound, other):
        await subscribed(client, "x.* 1")
    await know(at_hub, bound)
    await know(bound, at_hub)
    await at_hub.send("PUB x.1 3\r\nhub\r\n")
    await at_hub.flush()
    await bound.send("PUB x.2 4\r\nleaf\r\n")
    await bound.flush()
    assert sorted(await payloads(at_hub, 2)) == [b"hub", b"leaf"]
    assert sorted(await payloads(bound, 2)) == [b"hub", b"leaf"]
    await stranger.expect_quiet()
    await other.expect_quiet()


async def test_permissions_of_the_hub_and_own_denials_hold(start: Start, net: Net, hub_kind: str) -> None:
    users = (
        "authorization { users [ {user: l, password: p, permissions: {"
        "publish: {allow: [out.>, probe.>], deny: out.no}, subscribe: [in.>, probe.>]}}, {user: u, password: p} ] }\n"
    )
    hub = start(hub_kind, hub_config(users))
    denials = "deny_imports: [in.secret], deny_exports: [out.own]"
    leaf = start("gnatswarm-2", leaf_config(hub_port(hub), "", denials, "l:p"))
    at_hub, at_leaf = await net.client(hub, user="u", **{"pass": "p"}), await net.client(leaf)
    await subscribed(at_leaf, "in.> 1", "other 2")
    await subscribed(at_hub, "> 1")
    await know(at_hub, at_leaf)
    await know(at_leaf, at_hub)
    at_hub.inbox.clear()
    await at_leaf.send(
        "PUB out.yes 1\r\n1\r\nPUB out.no 1\r\n2\r\nPUB out.own 1\r\n3\r\nPUB other.x 1\r\n4\r\nPUB out.end 1\r\n5\r\n"
    )
    assert await payloads(at_hub, 2) == [b"1", b"5"]
    await at_hub.send("PUB in.secret 1\r\n1\r\nPUB other 1\r\n2\r\nPUB in.yes 1\r\n3\r\n")
    found = await payloads(at_leaf, 1)
    assert found == [b"3"]
    assert leaf.is_running and "Permissions Violation" not in leaf.log.text


async def test_a_killed_gateway_is_replaced_and_clients_stay(start: Start, net: Net) -> None:
    hub = start("nats-server", hub_config())
    leaf = start("gnatswarm-2", leaf_config(hub_port(hub)) + "debug: true\n")
    pid = int(leaf.log.wait_line(r"Gateway is process (\d+)")[1])
    at_hub, at_leaf = await net.client(hub), await net.client(leaf)
    await subscribed(at_leaf, "still 1")
    await know(at_hub, at_leaf)
    lines = len(leaf.log.lines)
    os.kill(pid, signal.SIGKILL)
    leaf.log.wait_line(CREATED, 20.0, start=lines)
    await know(at_hub, at_leaf)
    await at_hub.send("PUB still 2\r\nhi\r\n")
    assert await payloads(at_leaf, 1) == [b"hi"]


async def test_a_hub_that_hides_its_addresses_is_connected(start: Start, net: Net, hub_kind: str) -> None:
    """With `no_advertise` 2.15 names none in its INFO, not even an empty list."""
    hub = start(hub_kind, hub_config(leaf="no_advertise: true"))
    leaf = start("gnatswarm-2", leaf_config(hub_port(hub)))
    at_hub, at_leaf = await net.client(hub), await net.client(leaf)
    await know(at_hub, at_leaf)
    await know(at_leaf, at_hub)


@pytest.mark.parametrize("kind", [*HUBS, "gnatswarm-1"])
async def test_a_port_for_others_than_leaf_nodes_is_told_apart(start: Start, kind: str) -> None:
    """Whether or not the server hides its addresses, and has a port for leaf nodes, too."""
    for hides in ("true", "false"):
        cluster = f'cluster {{ name: c, listen: "127.0.0.1:-1", no_advertise: {hides} }}\n'
        server = start(kind, hub_config(cluster, leaf=f"no_advertise: {hides}"))
        route = int(server.log.wait_line(r"Listening for route connections on \S*:(\d+)")[1])
        for port in (server.port, route):
            start("gnatswarm-1", leaf_config(port)).log.wait_line("this is not a leaf node port")


async def test_a_wrong_port_and_a_wrong_password_are_said_and_harm_nobody(start: Start, net: Net) -> None:
    hub = start("nats-server", hub_config("", "authorization { user: u, password: right }"))
    leaf = start("gnatswarm-2", leaf_config(hub.port))
    leaf.log.wait_line("not a leaf node port")
    wrong = start("gnatswarm-1", leaf_config(hub_port(hub), login="u:wrong"))
    wrong.log.wait_line("Authorization Violation")
    assert "wrong" not in wrong.log.text.replace(wrong.log.wait_line("Using configuration.*")[0], "")
    client = await net.client(leaf)
    await subscribed(client, "own 1")
    await client.send("PUB own 0\r\n\r\n")
    assert await payloads(client, 1) == [b""]


async def test_a_hub_that_refuses_again_and_again_is_told_of_at_first_and_every_so_often(start: Start) -> None:
    hub = start("nats-server", hub_config("", "authorization { user: u, password: right }"))
    leaf = start("gnatswarm-1", leaf_config(hub_port(hub), remote="reconnect_delay: '1ms'", login="u:wrong"))

    await until(lambda: leaf.log.text.count("was not made") >= 3)  # the 120th time
    assert hub.log.text.count("authentication error") > TELL_EVERY


async def test_an_nkey_signs_the_hubs_nonce(start: Start, net: Net, hub_kind: str) -> None:
    seed = "SUAAAAICAMCAKBQHBAEQUCYMBUHA6EARCIJRIFIWC4MBSGQ3DQOR4H776Y"
    public = "UAB2CB576PHBBPQ5ODORRZ2LYCMWPZGWGCN2KDK7DXOIMZASKUY3RLKK"
    if seed_bytes(seed) is None or user_key(public) is None:
        pytest.fail("the keys of this test are none")
    hub = start(hub_kind, hub_config(f"authorization {{ users [ {{nkey: {public}}}, {{user: u, password: p}} ] }}\n"))
    leaf = start("gnatswarm-1", leaf_config(hub_port(hub), "", f"nkey: {seed}"))
    at_hub, at_leaf = await net.client(hub, user="u", **{"pass": "p"}), await net.client(leaf)
    await know(at_hub, at_leaf)


async def test_a_hub_is_shown_the_credentials_that_the_file_holds_when_it_is_dialled(
    start: Start, tmp_path: Path
) -> None:
    """Some are valid for an hour, and others put into the file before that. A reload leaves the connection."""
    path = tmp_path / "user.creds"

    def put(jwt: str) -> None:
        seed = "SUAAAAICAMCAKBQHBAEQUCYMBUHA6EARCIJRIFIWC4MBSGQ3DQOR4H776Y"
        lines = "-----BEGIN NATS USER JWT-----", jwt, "-----BEGIN USER NKEY SEED-----", seed, ""
        path.write_text("\n".join(lines))

    port = await ByHand().open()
    put("first")
    leaf = start("gnatswarm-1", leaf_config(port.port, "", f"credentials: '{path}'"))
    hub = await port.next()
    hub.inform(connect_info=True)
    assert hub.connect["jwt"] == "first"
    put("second")
    leaf.send_signal(signal.SIGHUP)
    leaf.log.wait_line("Reloaded server configuration")
    assert "Leafnode connection closed" not in leaf.log.text
    put("third")
    for content, shown in (("", "third"), ("half", "second"), (None, "second")):
        if content:
            path.write_text(content)
        elif content is None:
            path.unlink()
        hub.writer.close()
        hub = await port.next()
        hub.inform(connect_info=True)
        assert hub.connect["jwt"] == shown
    hub.writer.close()
    port.close()


async def test_a_reload_adds_and_removes_a_hub(start: Start, net: Net) -> None:
    hub, second = start("nats-server", hub_config()), start("nats-server", hub_config())
    leaf = start("gnatswarm-2", leaf_config(hub_port(hub)))
    leaf.log.wait_line(CREATED)
    assert leaf.config is not None and leaf.directory is not None
    lines = len(leaf.log.lines)
    (leaf.directory / "broker.conf").write_text(leaf.config.replace(str(hub_port(hub)), str(hub_port(second))))
    leaf.send_signal(signal.SIGHUP)
    leaf.log.wait_line(r"closed: it was removed from the configuration", start=lines)
    leaf.log.wait_line(CREATED, start=lines)
    at_second, at_leaf = await net.client(second), await net.client(leaf)
    await know(at_second, at_leaf)


async def test_that_there_is_no_room_for_another_hub_is_said_as_a_failure_to_connect(start: Start) -> None:
    """So not at every try; it was never connected."""
    names = [f"a{number}" for number in range(32)]
    accounts = "".join(f"{name} {{ users [ {{ user: {name}, password: p }} ] }}\n" for name in names)
    hub = start("nats-server", hub_config(f"accounts {{\n{accounts}}}"))
    remotes = "".join(f'{{ url: "nats://{name}:p@127.0.0.1:{hub_port(hub)}", account: {name} }}\n' for name in names)
    leaf = start("gnatswarm-1", f"accounts {{\n{accounts}}}\nleafnodes {{ remotes [\n{remotes}] }}")
    assert " was not made: " in leaf.log.wait_line(r".*\(31 at most\)")[0]


async def test_services_are_imported_across_a_leaf_node_both_ways(start: Start, net: Net, hub_kind: str) -> None:
    """An account imports a service of the account that is shared; the responder is on the other side."""
    accounts = """accounts {
        S { users [ {user: s, password: p} ], exports [ {service: "svc.>"} ] }
        C { users [ {user: c, password: p} ], imports [ {service: {account: S, subject: "svc.>"}} ] }
    }
    """
    hub = start(hub_kind, hub_config(accounts))
    leaf = start("gnatswarm-2", leaf_config(hub_port(hub), accounts, "account: S", "s:p"))
    for asks, serves in ((leaf, hub), (hub, leaf)):
        asker = await net.client(asks, user="c", **{"pass": "p"})
        peer = await net.client(asks, user="s", **{"pass": "p"})
        responder = await net.client(serves, user="s", **{"pass": "p"})
        name = f"svc.{uuid.uuid4().hex[:6]}"
        await subscribed(responder, f"{name} 1")
        await know(peer, responder)
        await know(responder, peer)
        # (Its shard may be another than the peer's: what the gateway has told that one, it has told this one by then.)
        await subscribed(asker, "inbox 1")
        await asker.send(f"PUB {name} inbox 2\r\nhi\r\n")
        (request,) = await responder.messages(1, 20)
        assert request.payload == b"hi" and request.reply != "inbox"
        await responder.send(f"PUB {request.reply} 3\r\nyes\r\n")
        (answer,) = await asker.messages(1, 20)
        assert (answer.subject, answer.payload) == ("inbox", b"yes")


async def test_leafz_shows_the_connection(start: Start, net: Net) -> None:
    hub = start("nats-server", hub_config())
    leaf = start("gnatswarm-2", leaf_config(hub_port(hub)) + "http: '127.0.0.1:-1'\n")
    monitoring = leaf.log.wait_line(r"http monitor on \S*:(\d+)")[1]
    at_hub, at_leaf = await net.client(hub), await net.client(leaf)
    await know(at_hub, at_leaf)

    def fetch() -> dict[str, Any]:
        with urllib.request.urlopen(f"http://127.0.0.1:{monitoring}/leafz", timeout=30) as answer:
            return dict(json.load(answer))

    page = await asyncio.to_thread(fetch)
    assert page["leafnodes"] == 1
    (row,) = page["leafs"]
    assert (row["account"], row["port"]) == ("$G", hub_port(hub))
    assert row["in_msgs"] >= 1 and row["subscriptions"] > 0


async def test_a_hub_that_talks_nonsense_harms_no_client(start: Start, net: Net) -> None:
    """Whatever comes from the hub's port, the connection ends with a line in the log, and is tried again."""
    said: list[bytes] = []
    info = b'INFO {"server_id":"X","server_name":"x","client_id":1,"leafnode_urls":[],"headers":true} \r\n'
    words = [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"INFO {]\r\n",
        b"INFO {}\r\n",
        info + b"LMSG a 5\r\nhi\r\n\r\n\r\n",
        info + b"LS+ a q\r\n",
        info + b"LMSG a 999999999\r\n",
        info + b"LS+ " + b"x" * 300_000 + b"\r\n",
        info + b"LS+ a..b\r\nLMSG\r\n",
        info + b"CONNECT {}\r\n",
        info + b"\xff\xfe\x00\r\n",
    ]

    async def nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        said.append(words[len(said) % len(words)])
        writer.write(said[-1])
        with contextlib.suppress(ConnectionError, TimeoutError):
            await asyncio.wait_for(reader.read(), 3)
        writer.close()

    server = await asyncio.start_server(nonsense, "127.0.0.1", 0)
    leaf = start("gnatswarm-2", leaf_config(server.sockets[0].getsockname()[1]))
    client = await net.client(leaf)
    await subscribed(client, "own.* 1")
    await until(lambda: len(said) >= 2 * len(words))
    await client.send("PUB own.x 2\r\nhi\r\n")
    assert await payloads(client, 1) == [b"hi"]
    assert "Traceback" not in leaf.log.text and "Gateway has died" not in leaf.log.text
    assert not re.search("Gateway .*(exit code|killed)", leaf.log.text)
    server.close()


@pytest.mark.parametrize("is_verified", [False, True], ids=["server", "both"])
async def test_a_hub_that_asks_for_tls_is_spoken_to_encrypted(
    start: Start, net: Net, hub_kind: str, authority: Authority, is_verified: bool
) -> None:
    pair = authority.server()
    tls = f"cert_file: '{pair.cert}', key_file: '{pair.key}', ca_file: '{authority.path}'"
    hub = start(hub_kind, hub_config("", f"tls {{ {tls}, verify: {str(is_verified).lower()} }}"))
    mine = authority.client("CN=leaf")
    own = f", cert_file: '{mine.cert}', key_file: '{mine.key}'" if is_verified else ""
    leaf = start("gnatswarm-2", leaf_config(hub_port(hub), "", f"tls {{ ca_file: '{authority.path}'{own} }}"))
    at_hub, at_leaf = await net.client(hub), await net.client(leaf)
    await subscribed(at_leaf, "t 1")
    await know(at_hub, at_leaf)
    body = b"x" * 200_000
    await at_hub.send(b"PUB t %d\r\n" % len(body) + body + b"\r\n")
    assert await payloads(at_leaf, 1) == [body]
    # Without the authority the hub's certificate is not believed.
    stranger = start("gnatswarm-1", leaf_config(hub_port(hub)))
    stranger.log.wait_line("TLS handshake error: .*certificate", 20.0)


# ---- a hub by hand


class Hub:
    """One connection to a hub that says what it is told to; `connect` is what the leaf node has said."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.connect: dict[str, Any] = {}

    def say(self, words: bytes) -> None:
        self.writer.write(words)

    def inform(self, **content: Any) -> None:
        base = {"server_id": "X", "server_name": "x", "client_id": 1, "headers": True, "max_payload": 1000}
        self.say(b"INFO " + json.dumps({**base, **content}).encode() + b"\r\n")

    async def until(self, end: bytes) -> bytes:
        async with asyncio.timeout(30):
            return await self.reader.readuntil(end)

    async def told(self) -> bytes:
        """All that was said before the answer to a PING."""
        self.say(b"PING\r\n")
        return await self.until(b"PONG\r\n")


class ByHand:
    """A port for leaf nodes; what comes there waits in `hubs`."""

    def __init__(self) -> None:
        self.hubs: asyncio.Queue[Hub] = asyncio.Queue()
        self.others: list[str] = []  # addresses of its cluster, besides

    async def open(self) -> ByHand:
        self._server = await asyncio.start_server(self._on_connected, "127.0.0.1", 0)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    async def _on_connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hub = Hub(reader, writer)
        hub.inform(leafnode_urls=[f"127.0.0.1:{self.port}", *self.others], nonce="n", info_on_connect=True)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            hub.connect = json.loads((await hub.until(b"\r\n"))[8:])
            await self.hubs.put(hub)

    async def next(self) -> Hub:
        async with asyncio.timeout(20):
            return await self.hubs.get()

    def close(self) -> None:
        self._server.close()


async def test_a_leaf_node_sends_what_its_hub_allows(start: Start, net: Net) -> None:
    port = await ByHand().open()
    leaf = start("gnatswarm-2", leaf_config(port.port))
    hub = await port.next()
    hub.inform(connect_info=True, export={"allow": ["one", "known"]})
    hub.say(b"LS+ one\r\nLS+ two\r\nLS+ known\r\n")
    await hub.told()
    client = await net.client(leaf)
    await subscribed(client, "none 9")
    async with asyncio.timeout(20):
        while True:  # until its shard knows what the hub wants
            await client.send("PUB known none 0\r\n\r\n")
            if not any(frame.subject == "none" for frame in await client.flush()):
                break
    await client.send("PUB two 2\r\nno\r\nPUB one 2\r\nhi\r\n")
    assert b"LMSG two" not in await hub.until(b"LMSG one 2\r\nhi\r\n")
    hub.writer.close()
    port.close()


async def test_a_hub_that_changes_the_rights_is_dialled_again(start: Start, net: Net) -> None:
    """What each end has told fits the former ones. The same ones again, or none, change nothing."""
    port = await ByHand().open()
    leaf = start("gnatswarm-1", leaf_config(port.port, remote="reconnect_delay: '1ms'"))
    client = await net.client(leaf)
    await subscribed(client, "one 1", "two 2")
    hub = await port.next()
    hub.inform(connect_info=True, export={"allow": ["x"]}, **{"import": {"allow": ["one"]}})
    told = await hub.told()
    assert b"LS+ one\r\n" in told and b"LS+ two" not in told
    hub.inform(connect_info=True, export={"allow": ["x"]}, **{"import": {"allow": ["one"]}})
    hub.inform(leafnode_urls=[])
    assert b"LS" not in await hub.told()
    hub.inform(connect_info=True, **{"import": {"allow": ["two"]}})
    with pytest.raises(asyncio.IncompleteReadError):
        await hub.until(b"LS+")
    hub = await port.next()
    hub.inform(connect_info=True, **{"import": {"allow": ["two"]}})
    told = await hub.told()
    assert b"LS+ two\r\n" in told and b"LS+ one" not in told
    hub.writer.close()
    port.close()


async def test_a_hub_tells_no_more_interest_than_max_subscriptions(start: Start) -> None:
    port = await ByHand().open()
    leaf = start("gnatswarm-1", "max_subscriptions: 2\n" + leaf_config(port.port))
    hub = await port.next()
    hub.inform(connect_info=True)
    hub.say(b"LS+ a\r\nLS+ b\r\nLS+ c\r\nLS+ d\r\n")
    assert (await hub.told()).count(b"-ERR 'maximum subscriptions exceeded'\r\n") == 2
    hub.say(b"-ERR 'maximum subscriptions exceeded'\r\nLS- a\r\nLS+ c\r\n")  # (a hub may say so, too)
    assert b"-ERR" not in await hub.told()
    assert leaf.config is not None and leaf.directory is not None
    (leaf.directory / "broker.conf").write_text(leaf.config.replace("max_subscriptions: 2", "max_subscriptions: 3"))
    leaf.send_signal(signal.SIGHUP)
    leaf.log.wait_line("Reloaded server configuration")
    async with asyncio.timeout(20):
        while True:  # until the gateway has heard of that
            hub.say(b"LS+ d\r\n")
            if b"-ERR" not in await hub.told():
                break
    hub.say(b"LS+ e\r\n")
    assert b"-ERR" in await hub.told()
    hub.writer.close()
    port.close()


async def test_other_addresses_of_the_hub_are_dialled_with_the_log_in_of_the_configured_one(start: Start) -> None:
    first, second = [await ByHand().open() for _ in range(2)]
    first.others = [f"127.0.0.1:{second.port}"]
    start("gnatswarm-1", leaf_config(first.port, login="u:p"))
    hub = await first.next()
    assert (hub.connect["user"], hub.connect["pass"]) == ("u", "p")
    hub.writer.close()
    first.close()
    hub = await second.next()
    assert (hub.connect["user"], hub.connect["pass"]) == ("u", "p")
    hub.writer.close()
    second.close()


class Pretender:
    """A port that says it is a hub's, without TLS unless it `asks`; `heard` has what each connection began with."""

    def __init__(self, other_port: int = 0, *, asks: bool = False) -> None:
        self.info = {"server_id": "X", "client_id": 1, "tls_required": asks, "info_on_connect": True, "nonce": "n"}
        self.info["leafnode_urls"] = [f"127.0.0.1:{other_port}"] if other_port else []
        self.heard: asyncio.Queue[bytes] = asyncio.Queue()

    async def open(self) -> Pretender:
        self._server = await asyncio.start_server(self._on_connected, "127.0.0.1", 0)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    async def _on_connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"INFO " + json.dumps(self.info).encode() + b"\r\n")
        with contextlib.suppress(ConnectionError):
            self.heard.put_nowait(await reader.read(5))
        writer.close()

    async def next(self) -> bytes:
        async with asyncio.timeout(20):
            return await self.heard.get()

    def close(self) -> None:
        self._server.close()


CLIENT_HELLO = b"\x16\x03"  # with which TLS begins


async def test_addresses_that_are_named_before_tls_are_not_dialled(start: Start) -> None:
    """Whoever is in between can change that INFO, and end the handshake."""
    other = await Pretender().open()
    between = await Pretender(other.port, asks=True).open()
    remote = f"{{ url: 'tls://u:p@127.0.0.1:{between.port}', no_randomize: true, reconnect_delay: '1ms' }}"
    start("gnatswarm-1", f"leafnodes {{ remotes [ {remote} ] }}")
    for _ in range(6):  # (if it were dialled, then each second time)
        assert (await between.next()).startswith(CLIENT_HELLO)
    assert other.heard.empty()
    for port in (between, other):
        port.close()


async def test_addresses_that_a_hub_with_tls_names_are_dialled_with_tls(start: Start, authority: Authority) -> None:
    """Whatever they say of themselves: the password of a tls:// URL goes there, too."""
    other = await Pretender().open()
    pair = authority.server()
    tls = f"tls {{ cert_file: '{pair.cert}', key_file: '{pair.key}' }}"
    hub = start("gnatswarm-1", f"leafnodes {{ port: -1, host: 127.0.0.1, advertise: '127.0.0.1:{other.port}', {tls} }}")
    remote = f"{{ url: 'tls://u:p@127.0.0.1:{hub_port(hub)}', reconnect_delay: '1ms' }}"
    environment = {"SSL_CERT_FILE": str(authority.path)}
    leaf = start("gnatswarm-1", f"leafnodes {{ remotes [ {remote} ] }}", environment=environment)
    leaf.log.wait_line(CREATED)
    hub.kill()
    assert (await other.next()).startswith(CLIENT_HELLO)
    other.close()


async def test_addresses_that_a_hub_names_may_be_ignored(start: Start) -> None:
    first, second = [await ByHand().open() for _ in range(2)]
    first.others = [f"127.0.0.1:{second.port}"]
    start("gnatswarm-1", leaf_config(first.port, remote="ignore_discovered_servers: true, reconnect_delay: '1ms'"))
    for _ in range(20):  # (if it were not, the other one would be dialled half of the times)
        (await first.next()).writer.close()
    assert second.hubs.empty()
    for port in (first, second):
        port.close()


async def test_addresses_may_be_dialled_in_order(start: Start) -> None:
    ports = [await ByHand().open() for _ in range(5)]
    urls = ", ".join(f'"nats://127.0.0.1:{port.port}"' for port in ports)
    remote = f"{{ urls: [{urls}], no_randomize: true, ignore_discovered_servers: true, reconnect_delay: '1ms' }}"
    start("gnatswarm-1", f"leafnodes {{ remotes [ {remote} ] }}")
    for _ in range(3):
        for port in ports:
            (await port.next()).writer.close()
    for port in ports:
        port.close()


async def test_a_hub_has_the_time_for_its_info_that_is_configured(start: Start) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    leaf = start("gnatswarm-1", leaf_config(port, remote="first_info_timeout: '50ms'"))
    await asyncio.to_thread(leaf.log.wait_line, r"Error trying to connect .*: no INFO within 0.05 s")
    server.close()
