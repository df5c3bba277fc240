"""Requests from other clusters to which a hub is connected by gateways (a supercluster): leaf nodes answer them.

Such a request has a reply subject of the gateway's: _GR_.<cluster>.<server>.<the requestor's reply subject>.
"""

from __future__ import annotations

import pytest

from tests.support.leaves import CREATED, Net, hub_port, know, subscribed
from tests.support.servers import Broker
from tests.support.turns import until
from tests.system.test_cluster import route_port
from tests.system.test_hub import by_hand, net, start
from tests.system.test_leaf import Start

__all__ = ["net", "start"]

ACCOUNTS = """accounts {
    APP { users [ {user: a, password: p} ] }
    SYS { users [ {user: s, password: p} ] }
}
system_account: SYS
no_auth_user: a
"""
LISTEN = "listen: '127.0.0.1:-1'"


def gateway_port(broker: Broker) -> int:
    return int(broker.log.wait_line(r"Listening for gateways connections on \S*:(\d+)")[1])


def cluster(name: str, other: Broker | None = None) -> str:
    """One server of a cluster, which is connected to that of another one."""
    there = f"gateways: [ {{ name: C0, url: 'nats://127.0.0.1:{gateway_port(other)}' }} ]" if other else ""
    return (
        f"server_name: {name}\n{ACCOUNTS}cluster {{ name: {name}, {LISTEN} }}\n"
        f"gateway {{ name: {name}, {LISTEN}, {there} }}\nleafnodes {{ {LISTEN} }}\n"
    )


@pytest.mark.parametrize("kind", ["gnatswarm-2", "nats-server", "nats-server-2.15"])
@pytest.mark.parametrize("hub_kind", ["nats-server", "nats-server-2.15"])
async def test_a_service_at_a_leaf_node_answers_who_is_in_another_cluster(
    start: Start, net: Net, hub_kind: str, kind: str
) -> None:
    hub = start(hub_kind, cluster("C0"))
    far = start(hub_kind, cluster("C1", hub))
    remote = f'remotes [ {{ url: "nats://a:p@127.0.0.1:{hub_port(hub)}", account: APP }} ]'
    leaf = start(kind, f"server_name: leaf\n{ACCOUNTS}leafnodes {{ {remote} }}\n")
    leaf.log.wait_line(CREATED)
    asker, service = await net.client(far), await net.client(leaf)
    await subscribed(asker, "inbox.> 1")
    await subscribed(service, "svc 1", "group workers 2")
    await know(asker, service)
    for number, subject in enumerate(("svc", "group") * 10):
        await asker.send(f"PUB {subject} inbox.{number} 2\r\nhi\r\n")
        (request,) = await service.messages(1, 20)
        await service.send(f"PUB {request.reply} 3\r\nyes\r\n")
        (answer,) = await asker.messages(1, 20)
        assert (answer.subject, answer.payload) == (f"inbox.{number}", b"yes")


@pytest.mark.parametrize("kind", ["nats-server", "nats-server-2.15"])
async def test_a_member_of_a_cluster_with_gateways_says_what_it_cannot_do(start: Start, net: Net, kind: str) -> None:
    """And what members tell of other clusters is no member that could be dialled."""
    one = start(kind, cluster("C0"))
    routes = f"routes: ['nats://127.0.0.1:{route_port(one)}']"
    here = start("gnatswarm-1", f"{ACCOUNTS}cluster {{ name: C0, {LISTEN}, {routes} }}\n")
    here.log.wait_line("WRN.*connected to other clusters by gateways")
    far = start(kind, cluster("C1", one))
    ears, voice = await net.client(here), await net.client(far)
    await subscribed(ears, "far 1")
    await know(voice, ears)
    assert "cannot be dialled" not in here.log.text


HERE = """accounts { A { users [
    {user: a, password: p, permissions: {publish: [inbox.>, mark]}}
    {user: leaf, password: p, permissions: {publish: [svc], subscribe: [mark]}}
] } }
leafnodes { listen: '127.0.0.1:-1' }
"""


async def test_only_an_answer_to_a_request_from_another_cluster_goes_there(start: Start, net: Net) -> None:
    """By the rights to publish the subject that it has there; the server there may allow nothing but that."""
    here = start("gnatswarm-2", HERE)
    client = await net.client(here, user="a", **{"pass": "p"})
    await subscribed(client, "svc 1")
    leaf = await by_hand(hub_port(here), {"name": "leaf", "user": "leaf", "pass": "p"})
    leaf.say("PING\r\n")
    await leaf.until(b"PONG\r\n")
    denied = "-ERR 'Permissions Violation for Publish to \"_GR_.c.s.%s\"'\r\n"
    await client.talk("PUB _GR_.c.s.inbox.1 0\r\n\r\n", expect_last=denied % "inbox.1")
    leaf.say("LS+ _GR_.>\r\nLS+ mark\r\nPING\r\n")
    await leaf.until(b"PONG\r\n")
    await client.talk("PUB _GR_.c.s.inbox.0 0\r\n\r\nPUB mark 0\r\n\r\nPING\r\n", expect_last="PONG\r\n")
    assert b"inbox.0" not in await leaf.until(b"LMSG mark 0\r\n")
    leaf.say("LMSG svc _GR_.c.s.inbox.1 2\r\nhi\r\n")
    (request,) = await client.messages(1, 20)
    assert (request.reply, request.payload) == ("_GR_.c.s.inbox.1", b"hi")
    await client.talk("PUB _GR_.c.s.other 0\r\n\r\n", expect_last=denied % "other")
    await client.send("PUB _GR_.c.s.inbox.2 0\r\n\r\nPUB _GR_.c.s.inbox.1 3\r\nyes\r\nPUB mark 0\r\n\r\n")
    heard = await leaf.until(b"LMSG mark 0\r\n")
    assert b"LMSG _GR_.c.s.inbox.1 3\r\nyes\r\n" in heard
    assert b"inbox.2" not in heard
    leaf.writer.close()
    await until(lambda: "Leafnode connection closed" in here.log.text)
