from collections.abc import Iterable
from typing import Protocol, final

from gnatswarm.broker.connection import ClientConnection, Fence
from gnatswarm.broker.mesh import Mesh

class Servers(Protocol):
    """The other servers of a gateway: an Exchange."""

    def doubt(self) -> int: ...

@final
class MeshFence(Fence):
    def __init__(self, mesh: Mesh) -> None: ...
    def doubt(self, shard: int, connections: Iterable[ClientConnection], servers: Servers | None = None) -> int: ...
    def gone(self, shard: int) -> None: ...
    def forget_published(self, shard: int, connections: Iterable[ClientConnection]) -> None: ...
