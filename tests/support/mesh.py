"""Shards joined to each other in one process, without sockets: bytes between them move when the test says so.

Each is an Engine with a mesh, a fence and a link to every other; what a link has sent lies on its wire until `carry`
takes some of it to the other end. So every order in which links can be slow or fast is a list of numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from broker.fence import MeshFence
from broker.link import SiblingLink
from broker.probe import ProbeSocket
from tests.support.engine import Engine, EngineClient


@dataclass
class LinkEnd:
    """One shard's end of a link, with the Python side that the engine tells of things."""

    engine: Engine
    shard: int  # the sibling's number
    link: SiblingLink | None = None
    socket: ProbeSocket | None = None
    carried: int = 0  # bytes of what it has sent that were taken to the other end
    is_synchronised: bool = False
    broken: list[str] = field(default_factory=list)
    said: list[bytes] = field(default_factory=list)

    def open(self) -> None:
        """A new one, not joined."""

        def session(link: SiblingLink) -> LinkEnd:
            self.link = link
            return self

        self.carried = 0
        self.is_synchronised = False
        self.socket = self.engine.probe.dial(session)

    def on_info(self, raw: bytes) -> None:
        """INFO came."""
        self.said.append(raw)

    def on_connect(self, raw: bytes) -> None:
        """CONNECT came."""
        self.said.append(raw)

    def on_synchronised(self) -> None:
        """Both have each other's interest."""
        self.is_synchronised = True

    def on_broken(self, why: str) -> None:
        """What came was no frame."""
        self.broken.append(why)

    def on_closed(self, reason: int) -> None:
        """The engine is done with it."""

    def take(self, most: int) -> bytes:
        """At most so many bytes of what it has sent and nobody has read."""
        assert self.socket is not None
        data = bytes(self.socket.sent[self.carried : self.carried + most])
        self.carried += len(data)
        return data

    @property
    def waits(self) -> bool:
        """Whether something it sent has not been carried."""
        assert self.socket is not None
        return self.carried < len(self.socket.sent)


class Mesh:
    """So many shards, each linked to each."""

    def __init__(self, shards: int, *, seed: int = 1, clients_each: int = 2, connect: bytes) -> None:
        self.engines = [Engine(seed=seed + shard, shard=shard) for shard in range(shards)]
        self.ends = {(a, b): LinkEnd(self.engines[a], b) for a in range(shards) for b in range(shards) if a != b}
        for end in self.ends.values():
            end.open()
        for end in self.ends.values():
            assert end.link is not None
            end.link.join(end.shard)
        self.held: set[int] = set()  # shards whose clients wait until a link is in step again
        self.clients: list[EngineClient] = []
        self.shard_of: list[int] = []
        self.finish()
        self.settle()
        assert all(end.is_synchronised for end in self.ends.values())
        for shard, engine in enumerate(self.engines):
            for _ in range(clients_each):
                self.clients.append(engine.client(connect))
                self.shard_of.append(shard)

    def finish(self) -> None:
        """What was said from outside goes on the wires."""
        for engine in self.engines:
            engine.probe.finish()

    def carry(self, a: int, b: int, most: int, pieces: Iterable[int] = ()) -> bool:
        """Takes so many bytes from shard a to shard b; False: there were none."""
        self.engines[a].probe.finish()
        data = self.ends[a, b].take(most)
        if not data:
            return False
        end = self.ends[b, a]
        assert end.socket is not None
        self.engines[b].probe.feed(end.socket, data, pieces)
        self._release()
        return True

    def settle(self) -> None:
        """Carries everything, until nothing is on its way."""
        while sum(self.carry(a, b, 1 << 30) for a, b in self.ends):
            pass

    def break_link(self, a: int, b: int) -> int:
        """The link ends at both sides with what is on its wires, and is made again; how many clients are in doubt."""
        doubted = 0
        self.held |= {a, b}  # as shards.links does: nothing is carried out before it is in step again
        for client, shard in zip(self.clients, self.shard_of, strict=True):
            if shard in (a, b):
                client.connection.wait()
        for one, other in ((a, b), (b, a)):
            end = self.ends[one, other]
            assert end.link is not None and end.socket is not None
            end.link.leave(is_broken=True)
            end.engine.probe.end(end.socket)
        for one, other in ((a, b), (b, a)):
            end = self.ends[one, other]
            fence = end.engine.probe.fence
            assert isinstance(fence, MeshFence)
            mine = [
                client.connection for client, shard in zip(self.clients, self.shard_of, strict=True) if shard == one
            ]
            doubted += fence.doubt(other, [connection for connection in mine if not connection.is_closing])
            end.open()
            assert end.link is not None
            end.link.join(other)
        self.finish()
        return doubted

    def _release(self) -> None:
        for shard in list(self.held):
            if all(end.is_synchronised for (one, _), end in self.ends.items() if one == shard):
                self.held.discard(shard)
                for client, where in zip(self.clients, self.shard_of, strict=True):
                    if where == shard:
                        client.connection.go_on()
                self.engines[shard].probe.finish()

    def is_held(self, client: int) -> bool:
        """Whether its shard waits for a link."""
        return self.shard_of[client] in self.held

    def close(self) -> None:
        """Everybody leaves; nothing may be held for anybody."""
        for client in self.clients:
            if not client.is_over:
                client.close()
        for end in self.ends.values():
            assert end.link is not None and end.socket is not None
            end.link.leave()
            if not end.socket.is_over:
                end.engine.probe.end(end.socket)
        for engine in self.engines:
            engine.assert_empty()
