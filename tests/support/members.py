"""Members of a cluster in one process, without sockets: each is a `Mesh` whose gateway is connected to the others.

As with a mesh, bytes move when the test says so: between shards of a member, and over the routes between members. What
a server process decides, such as who dials whom, is not here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gnatswarm.broker.exchange import Exchange
from gnatswarm.broker.fence import MeshFence
from gnatswarm.broker.serverlink import ServerLink
from gnatswarm.probes.engine import ProbeSocket
from gnatswarm.shards.boundary.control import GATEWAY_NUMBER
from tests.support.engine import NO_RESPONDERS, Engine, EngineClient
from tests.support.mesh import Mesh


class RouteEnd:
    """One member's end of a route (or, at a hub, of a leaf node's connection), which is also the link's session."""

    def __init__(
        self,
        engine: Engine,
        exchange: Exchange,
        *,
        kind: Literal["route", "leaf", "hub"] = "route",
        of: str = "",
        server_id: str = "",
        has_logged_in: bool = False,
        is_isolated: bool = False,
        account: bytes = b"$G",
    ) -> None:
        """`of`: the cluster of a leaf node, and its `account`; `server_id`: of a server that knows QMSG.

        `has_logged_in`: here, though it is a hub; `is_isolated`: it hears nothing of what leaf nodes want.
        """
        self.engine = engine
        self.carried = 0
        self.pongs = 0
        self.link = ServerLink(exchange, self, is_route=kind == "route")
        self.socket: ProbeSocket = engine.probe.adopt(self.link)
        self.link.only_queues_as = server_id
        self.refused: list[tuple[str, bytes]] | None = None  # what may be refused; None: nothing
        is_checked = kind == "leaf" or has_logged_in
        assert self.link.join(
            kind, None if kind == "route" else account, of, is_checked=is_checked, is_isolated=is_isolated
        )

    def on_info(self, raw: bytes, /) -> None:
        raise AssertionError(raw)

    on_connect = on_error = on_info

    def on_pong(self) -> None:
        self.pongs += 1

    def on_early(self) -> None:
        raise AssertionError("early")

    on_interest = on_early

    def on_loop(self, _begins: bool, /) -> None:
        raise AssertionError("loop")

    def on_unknown_account(self, _account: bytes, /) -> None:
        """All know the same accounts, when they have heard of them."""

    def on_refused(self, why: str, subject: bytes, /) -> None:
        if self.refused is None:
            raise AssertionError((why, subject))
        self.refused.append((why, subject))

    rtt_us = 0

    def requestor(self) -> dict[str, object]:
        return {"kind": "Leafnode"}

    def on_broken(self, why: str, /) -> None:
        raise AssertionError(why)

    def on_closed(self, _reason: int, /) -> None:
        """The test has ended it."""


def member_id(number: int) -> str:
    return f"NMEMBER{number:05}"


@dataclass
class Member:
    """One broker: clients are on all shards but the gateway."""

    mesh: Mesh
    exchange: Exchange
    gateway: int
    clients: list[EngineClient]


class Members:
    """A cluster, every member connected to every other."""

    def __init__(
        self,
        members: int,
        *,
        shards: int = 2,
        seed: int = 1,
        clients_each: int = 2,
        fenced: bool,
        know_only_queues: bool = True,
    ) -> None:
        self.members: list[Member] = []
        self.waits = 0  # how often PONGs began to wait for other members
        for number in range(members):
            mesh = Mesh(shards, seed=seed + 100 * number, clients_each=0, connect=NO_RESPONDERS)
            mesh.add(GATEWAY_NUMBER)
            mesh.settle()
            engine = mesh.engines[GATEWAY_NUMBER]
            fence = engine.probe.fence
            assert isinstance(fence, MeshFence) and engine.probe.mesh is not None
            exchange = Exchange(engine.probe.mesh, fence)
            mesh.servers[GATEWAY_NUMBER] = exchange
            exchange.set_own_id(member_id(number))
            exchange.fence.is_on = fenced
            exchange.fence.on_wait = self._on_wait
            clients = [mesh.connect(shard) for shard in range(shards) for _ in range(clients_each)]
            self.members.append(Member(mesh, exchange, GATEWAY_NUMBER, clients))
        self.routes: dict[tuple[int, int], RouteEnd] = {}
        for a in range(members):
            for b in range(members):
                if a != b:
                    member = self.members[a]
                    self.routes[a, b] = RouteEnd(
                        member.mesh.engines[member.gateway],
                        member.exchange,
                        server_id=member_id(b) if know_only_queues else "",
                    )
        for end in self.routes.values():
            end.link.begin()
        self.settle()

    def _on_wait(self) -> None:
        self.waits += 1

    @property
    def ways(self) -> list[tuple[int, int, int]]:
        """Everything that carries bytes: (member, shard, shard), and (-1, member, member) for a route."""
        inner = [(n, a, b) for n, member in enumerate(self.members) for a, b in member.mesh.ends]
        return inner + [(-1, a, b) for a, b in self.routes]

    def carry(self, way: tuple[int, int, int], most: int = 1 << 30) -> bool:
        """Carry at most so many bytes; False: there were none."""
        member, a, b = way
        if member >= 0:
            return self.members[member].mesh.carry(a, b, most)
        mine, theirs = self.routes[a, b], self.routes[b, a]
        mine.engine.probe.finish()
        data = bytes(mine.socket.sent[mine.carried : mine.carried + most])
        mine.carried += len(data)
        if data:
            theirs.engine.probe.feed(theirs.socket, data)
        return bool(data)

    def settle(self, but: tuple[int, ...] = ()) -> None:
        """Carry until nothing is on its way; nothing to and from these members."""
        ways = [way for way in self.ways if not (way[0] < 0 and set(way[1:]) & set(but))]
        while sum(self.carry(way) for way in ways):
            pass

    def cut(self, a: int, b: int) -> None:
        """The route between two members ends."""
        for pair in ((a, b), (b, a)):
            self.routes.pop(pair).link.leave()
        for member in self.members:
            member.mesh.finish()

    def close(self) -> None:
        """All end."""
        for end in self.routes.values():
            end.link.leave()
        for member in self.members:
            member.mesh.close()
