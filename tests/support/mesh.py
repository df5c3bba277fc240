"""Shards joined to each other in one process, without sockets: bytes between them move when the test says so.

Each is an Engine with a mesh, a fence and a link to every other. Bytes that a link has sent wait until `carry` takes
some of them to the other end. So a list of numbers determines the order in which links deliver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from gnatswarm.broker.exchange import Exchange
from gnatswarm.broker.fence import MeshFence
from gnatswarm.broker.link import SiblingLink
from gnatswarm.probes.engine import ProbeSocket
from tests.support.engine import Engine, EngineClient


@dataclass
class LinkEnd:
    """One shard's end of a link, with the Python object that receives the engine's callbacks."""

    engine: Engine
    shard: int  # the sibling's number
    link: SiblingLink | None = None
    socket: ProbeSocket | None = None
    carried: int = 0  # bytes that were taken to the other end
    is_synchronised: bool = False
    broken: list[str] = field(default_factory=list)
    said: list[bytes] = field(default_factory=list)

    def open(self) -> None:
        """A new end, not joined."""
        self.carried = 0
        self.is_synchronised = False
        self.socket = self.engine.probe.dial(self)
        self.link = self.socket.link

    def on_info(self, raw: bytes) -> None:
        """INFO arrived."""
        self.said.append(raw)

    def on_connect(self, raw: bytes) -> None:
        """CONNECT arrived."""
        self.said.append(raw)

    def on_synchronised(self) -> None:
        """Both have each other's interest."""
        self.is_synchronised = True

    def on_broken(self, why: str) -> None:
        """Invalid bytes arrived."""
        self.broken.append(why)

    def on_closed(self, reason: int) -> None:
        """The engine has released it."""

    def take(self, most: int) -> bytes:
        """At most so many of the bytes that it has sent and the other end has not read."""
        assert self.socket is not None
        data = bytes(self.socket.sent[self.carried : self.carried + most])
        self.carried += len(data)
        return data

    @property
    def waits(self) -> bool:
        """Whether bytes that it sent have not been carried."""
        assert self.socket is not None
        return self.carried < len(self.socket.sent)


class Mesh:
    """A number of shards, all linked to each other."""

    def __init__(
        self, shards: int, *, seed: int = 1, clients_each: int = 2, connect: bytes, prefers_local: bool = False
    ) -> None:
        self._seed = seed
        self._connect = connect
        self._booted = shards  # so many shards there have been
        self.engines = {
            shard: Engine(seed=seed + shard, shard=shard, prefers_local=prefers_local) for shard in range(shards)
        }
        self.ends = {(a, b): LinkEnd(self.engines[a], b) for a in range(shards) for b in range(shards) if a != b}
        for end in self.ends.values():
            end.open()
        for end in self.ends.values():
            assert end.link is not None
            end.link.join(end.shard)
        self.held: set[int] = set()  # shards whose clients wait until a link is in step again
        self.servers: dict[int, Exchange] = {}  # other servers, of shards that are gateways
        self.clients: list[EngineClient] = []
        self.shard_of: list[int] = []
        self.finish()
        self.settle()
        assert all(end.is_synchronised for end in self.ends.values())
        for shard in range(shards):
            for _ in range(clients_each):
                self.connect(shard)

    @property
    def alive(self) -> list[int]:
        """Numbers of the shards that live."""
        return list(self.engines)

    def connect(self, shard: int) -> EngineClient:
        """A new client of that shard."""
        self.clients.append(self.engines[shard].client(self._connect))
        self.shard_of.append(shard)
        return self.clients[-1]

    def add(self, shard: int, *, is_new: bool = False) -> None:
        """A new shard with that number, linked to all the others; it is not in step yet.

        `is_new`: they know that nobody is connected there.
        """
        engine = Engine(seed=self._seed + self._booted, shard=shard)
        self._booted += 1
        for other, there in self.engines.items():
            for pair, mine in (((shard, other), engine), ((other, shard), there)):
                self.ends[pair] = LinkEnd(mine, pair[1])
                self.ends[pair].open()
                link = self.ends[pair].link
                assert link is not None
                link.join(pair[1], is_new=is_new and pair[1] == shard)
        self.engines[shard] = engine
        self.finish()

    def is_in_step(self, shard: int) -> bool:
        """Whether it and each other shard know each other's whole interest."""
        return all(end.is_synchronised for pair, end in self.ends.items() if shard in pair)

    def finish(self) -> None:
        """Flush what clients have caused to the links."""
        for engine in self.engines.values():
            engine.probe.finish()

    def work_in_turns(self, shard: int, nodes: int) -> None:
        """From here on a shard tells new siblings all interest, and drops that of those that are gone, with work()."""
        mesh = self.engines[shard].probe.mesh
        assert mesh is not None
        mesh.soon = lambda: None
        mesh.slice_nodes = nodes

    def work(self, shard: int) -> bool:
        """Do some of that; False: there was none."""
        mesh = self.engines[shard].probe.mesh
        assert mesh is not None
        before = mesh.n_slices
        mesh.go_on()
        self.finish()
        return mesh.n_slices != before

    def carry(self, a: int, b: int, most: int, pieces: Iterable[int] = ()) -> bool:
        """Carry at most so many bytes from shard a to shard b; False: there were none."""
        self.engines[a].probe.finish()
        data = self.ends[a, b].take(most)
        if not data:
            return False
        end = self.ends[b, a]
        assert end.socket is not None
        self.engines[b].probe.feed(end.socket, data, pieces)
        self._release()
        return True

    def carry_all(self, *hops: tuple[int, int]) -> None:
        """Carry the bytes that are on these links now, one link after the other."""
        for a, b in hops:
            self.carry(a, b, 1 << 30)

    def is_busy(self) -> bool:
        """Whether bytes are on their way between shards."""
        self.finish()
        return any(end.waits for end in self.ends.values())

    def settle(self) -> None:
        """Carry bytes until none is on its way."""
        while sum(self.carry(a, b, 1 << 30) for a, b in self.ends):
            pass

    def settle_but(self, way: tuple[int, int]) -> None:
        """Carry bytes until none is on its way but from the first of these shards to the second."""
        while sum(self.carry(a, b, 1 << 30) for a, b in self.ends if (a, b) != way):
            pass

    def break_link(self, a: int, b: int, meanwhile: Callable[[], None] = lambda: None) -> int:
        """Break the link, losing bytes on their way, and make it again; returns how many are in doubt.

        `meanwhile` is called when it is broken and not made again.
        """
        doubted = 0
        self.held |= {a, b}  # as shards.links.links does: nothing is carried out before it is in step again
        for client, shard in zip(self.clients, self.shard_of, strict=True):
            if shard in (a, b):
                client.connection.wait()
        for shard in {a, b} & self.servers.keys():
            self.servers[shard].hold()
        for one, other in ((a, b), (b, a)):
            end = self.ends[one, other]
            assert end.link is not None and end.socket is not None
            end.link.leave(is_broken=True)
            end.engine.probe.end(end.socket)
        meanwhile()
        for one, other in ((a, b), (b, a)):
            end = self.ends[one, other]
            fence = end.engine.probe.fence
            assert isinstance(fence, MeshFence)
            mine = [
                client.connection for client, shard in zip(self.clients, self.shard_of, strict=True) if shard == one
            ]
            there = [connection for connection in mine if not connection.is_closing]
            doubted += fence.doubt(other, there, self.servers.get(one))
            end.open()
            assert end.link is not None
            end.link.join(other)
        self.finish()
        return doubted

    def kill(self, shard: int) -> None:
        """A shard dies with its clients and the bytes on its links; its siblings are told."""
        for client, where in zip(self.clients, self.shard_of, strict=True):
            if where == shard and not client.is_over:
                client.close()
        for pair in [pair for pair in self.ends if shard in pair]:
            end = self.ends.pop(pair)
            assert end.link is not None and end.socket is not None
            end.link.leave()
            end.engine.probe.end(end.socket)
            if pair[1] == shard:
                fence = end.engine.probe.fence
                assert isinstance(fence, MeshFence)
                fence.forget_published(
                    shard,
                    [
                        client.connection
                        for client, where in zip(self.clients, self.shard_of, strict=True)
                        if where == pair[0] and not client.connection.is_closing
                    ],
                )
        del self.engines[shard]
        self.held.discard(shard)
        self.finish()
        self._release()

    def _release(self) -> None:
        for shard in list(self.held):
            if all(end.is_synchronised for (one, _), end in self.ends.items() if one == shard):
                self.held.discard(shard)
                for client, where in zip(self.clients, self.shard_of, strict=True):
                    if where == shard:
                        client.connection.go_on()
                if shard in self.servers:
                    self.servers[shard].go_on()
                self.engines[shard].probe.finish()

    def is_held(self, client: int) -> bool:
        """Whether its shard waits for a link."""
        return self.shard_of[client] in self.held

    def close(self) -> None:
        """All clients leave; then no shard may hold anything for any of them."""
        for client in self.clients:
            if not client.is_over:
                client.close()
        for end in self.ends.values():
            assert end.link is not None and end.socket is not None
            end.link.leave()
            if not end.socket.is_over:
                end.engine.probe.end(end.socket)
        for shard, engine in self.engines.items():
            while self.work(shard):
                pass
            engine.assert_empty()


def of_account(mesh: Mesh, shard: int, name: bytes, words: bytes = b"") -> EngineClient:
    """A new client of this account that has sent these words, which every shard knows of."""
    client = mesh.connect(shard)
    there = mesh.engines[shard].probe.mesh
    assert there is not None
    client.connection.enter(there.account(name), None)
    client.feed(words)
    mesh.settle()
    return client
