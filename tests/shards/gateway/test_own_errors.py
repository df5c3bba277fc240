"""An error of ours for one connection to another server costs that one, and not the gateway with all others."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import Mock

import pytest

from gnatswarm.broker.exchange import Exchange
from gnatswarm.broker.options import Cluster, LeafNodes, LeafRemote, Options
from gnatswarm.shards.boundary.control import ServerPort
from gnatswarm.shards.gateway.hub import HubSession
from gnatswarm.shards.gateway.leaf import LeafSession
from gnatswarm.shards.gateway.leaf_port import LeafPort
from gnatswarm.shards.gateway.remote import Address, Remote
from gnatswarm.shards.gateway.route import RouteSession
from gnatswarm.shards.gateway.routes import Routes
from gnatswarm.shards.gateway.words import Identity, ServerInfo
from tests.support.one_shard import OneShard
from tests.support.turns import until

OPTIONS = Options(leafnodes=LeafNodes(port=-1, auth_timeout_s=0.01), cluster=Cluster(name="c", port=-1))
IDENTITY = Identity("N", "N", "2.9.10", 1000, True)


class Servers:
    """What the gateway has for other servers, on the reactor of a shard; `failed`: what would end its process."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.failed: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda _loop, context: self.failed.append(context))
        self.house = OneShard(OPTIONS)
        shard = self.house.shard
        self.exchange = Exchange(shard.mesh, shard.fence)
        self.events = Mock()
        next_id = Mock(side_effect=range(1, 99))
        self.common: dict[str, Any] = {"next_id": next_id, "flush": self.flush, "events": self.events}
        self.leaf_port = LeafPort(
            *self.place,
            IDENTITY,
            OPTIONS,
            7422,
            cluster_name=str,
            websocket_port=0,
            opens_loop=lambda _account: False,
            **self.common,
        )

    @property
    def place(self) -> tuple[Any, Any, Any]:
        return self.loop, self.house.shard.reactor, self.exchange

    def flush(self) -> None:
        self.loop.call_soon(self.house.shard.reactor.finish)

    def routes(self) -> Routes:
        return Routes(
            *self.place,
            OPTIONS,
            IDENTITY,
            ServerPort(-1, "127.0.0.1", 1),
            clients_at=("127.0.0.1", 4222),
            websocket_port=0,
            known_routes=[],
            tell=Mock(),
            **self.common,
        )

    def remote(self) -> Remote:
        """Of a hub that nobody dials."""
        remote: Remote = Remote.__new__(Remote)
        remote._loop, remote._reactor, remote._exchange = self.place
        remote.remote, remote._options, remote._identity = LeafRemote(urls=("h:7422",)), OPTIONS, IDENTITY
        remote._configured = [Address("h", 7422)]
        remote.flush, remote._next_id, remote.events = self.flush, self.common["next_id"], self.events
        remote.cluster_name, remote.opens_loop = str, lambda _account: False
        remote._failures, remote._waits_long = 0, False
        return remote


@pytest.fixture
async def servers() -> AsyncIterator[Servers]:
    servers = Servers()
    yield servers
    servers.leaf_port.passwords.close()
    servers.house.close()


@pytest.mark.parametrize(
    ("kind", "callback", "given"),
    [
        (RouteSession, "_ping", ()),
        (RouteSession, "_too_late", ()),
        (RouteSession, "take_accounts", ()),
        (LeafSession, "_ping", ()),
        (LeafSession, "_end_loop", ()),
        (LeafSession, "_miss_info", (1.0,)),
        (LeafSession, "_give_up", ()),
        (LeafSession, "begin", ()),
        (LeafSession, "reload", ()),
        (HubSession, "_give_up", ()),
        (HubSession, "greet", ()),
        (HubSession, "on_compared", (None, True)),
        (HubSession, "tell_urls", ()),
        (HubSession, "reload", ()),
    ],
)
def test_no_callback_for_one_connection_raises_anything(kind: Any, callback: str, given: tuple[Any, ...]) -> None:
    session = kind.__new__(kind)  # nothing of it works
    session.socket = Mock()
    getattr(session, callback)(*given)
    session.socket.blame.assert_called_once_with()


async def test_a_leaf_node_that_does_not_log_in_costs_nobody_else_what_goes_wrong_then(
    servers: Servers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    port = servers.leaf_port
    ends = [socket.socketpair() for _ in range(2)]
    for _, theirs in ends:
        theirs.setblocking(False)
        port.on_accept(theirs.detach(), "10.0.0.1", 1)
    bad, good = port.sessions
    monkeypatch.setattr(bad, "_refuse", lambda _why: 1 // 0)
    await until(lambda: not port.sessions)
    assert [ours.recv(4096).endswith(b"Timeout'\r\n") for ours, _ in ends] == [False, True]
    assert (bad.is_gone, good.is_gone, servers.failed) == (True, True, [])
    assert caplog.text.count("its connection is closed because of an error of ours") == 1


async def test_a_server_whose_connection_cannot_be_watched_is_closed_and_ends_nobody_else(
    servers: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    """A user may have so many watched sockets, over all processes: then epoll_ctl fails."""
    reactor: Any = Mock(open=Mock(side_effect=OSError("cannot watch a socket")))
    servers.leaf_port._reactor = reactor
    routes = servers.routes()
    routes._reactor = reactor
    for accepts in servers.leaf_port, routes:
        ours, theirs = socket.socketpair()
        accepts.on_accept(theirs.detach(), "10.0.0.1", 1)
        assert ours.recv(1) == b""  # closed
    assert not servers.leaf_port.sessions and not routes.sessions and not routes._waiting._n
    assert caplog.text.count("cannot be served, and is closed: cannot watch a socket") == 2
    remote = servers.remote()
    remote._reactor = reactor
    ours, theirs = socket.socketpair()
    with pytest.raises(OSError, match="cannot watch a socket"):
        await remote._pass_messages(theirs, Address("h", 7422), remote.remote, ServerInfo(), None)
    assert ours.recv(1) == b"" and remote.session is None


async def test_a_hub_that_cannot_be_answered_is_left_and_no_connection_to_it_stays(
    servers: Servers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It was dialled again, while the connection stayed until the hub closed it; which took the next one for ended."""
    remote = servers.remote()
    monkeypatch.setattr(LeafSession, "start", lambda _session: 1 // 0)
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    await remote._pass_messages(theirs, Address("h", 7422), remote.remote, ServerInfo(), None)
    assert ours.recv(1) == b"" and remote.session is None and not servers.failed
    assert "its connection is closed because of an error of ours" in caplog.text
