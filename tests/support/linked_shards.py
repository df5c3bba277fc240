"""Two shards in a test's event loop that are linked, and move clients between them: no router, no processes."""

from __future__ import annotations

import asyncio
from pathlib import Path

from gnatswarm.broker.options import Options
from gnatswarm.shards.boundary.control import LinkedShard
from gnatswarm.shards.links.link_sockets import LinkSockets
from gnatswarm.shards.links.links import LINK_VERSION, Hello, Links
from gnatswarm.shards.moving.departures import Departures
from gnatswarm.shards.moving.host import Host
from gnatswarm.shards.siblings import Siblings
from gnatswarm.shards.sockets.reserve import Reserve
from tests.support.one_shard import OneShard
from tests.support.turns import until

MOST_DESCRIPTORS = 1000


def ignore(*_: object) -> None:
    """Nobody is told."""


class MovingShard:
    """One of them: as the worker puts it together."""

    def __init__(self, one: OneShard, number: int, directory: Path) -> None:
        loop = asyncio.get_running_loop()
        path = str(directory / f"{number}.boot.sock")
        self.one = one
        self.peer = LinkedShard(number, f"boot{number}", path)
        sink = Siblings(
            loop,
            one.shard,
            number=number,
            page=one.page,
            tell=ignore,
            on_ready=ignore,
            on_gone=ignore,
        )
        reserve = Reserve()
        self.links = Links(
            loop=loop,
            sockets=LinkSockets(loop, one.shard.reactor, path=path, reserve=reserve),
            mesh=one.shard.mesh,
            fence=one.shard.fence,
            hello=Hello("N", number, self.peer.boot_id, LINK_VERSION),
            sink=sink,
        )
        self.moves = self.links.moves
        self.ended: list[str] = []
        self.departures = Departures(loop, one.shard.clients, self.moves)
        self.host = self.departures.host = Host(
            loop,
            one.shard.clients,
            self.moves,
            one.shard.reactor,
            server_id="N",
            shard=number,
            boot_id=self.peer.boot_id,
            link_path=path,
            most=MOST_DESCRIPTORS,
            reserve=reserve,
            on_ended=self._on_ended,
        )

    def _on_ended(self, why: str) -> None:
        self.ended.append(why)
        if self.departures.batch:  # (a test may have begun the move itself)
            self.departures.on_ended(why)

    @property
    def cids(self) -> list[int]:
        """Clients that are here."""
        return list(self.one.shard.clients.open)

    def tell(self, shards: list[LinkedShard]) -> None:
        """The router's list."""
        self.host.on_linked_shards(shards)
        self.links.on_linked_shards(shards)

    def close(self) -> None:
        self.links.close()
        self.host.close()
        self.one.shard.reactor.finish()
        self.one.close()


class LinkedShards:
    """Shards 0 and 1 of a broker, in step."""

    def __init__(self, directory: Path, options: Options | None = None) -> None:
        first = OneShard(options or Options())
        second = OneShard(options or Options(), beside=first)
        self.shards = [MovingShard(one, number, directory) for number, one in enumerate((first, second))]
        self.page = first.page

    async def link(self) -> None:
        for shard in self.shards:
            shard.tell([one.peer for one in self.shards])
        await until(lambda: all(shard.one.shard.mesh.up for shard in self.shards))

    def close(self) -> None:
        for shard in reversed(self.shards):
            shard.close()
