from collections.abc import Iterable
from typing import final

from gnatswarm.broker.connection import ClientConnection, Fence
from gnatswarm.broker.mesh import Mesh

@final
class MeshFence(Fence):
    def __init__(self, mesh: Mesh) -> None: ...
    def doubt(self, shard: int, connections: Iterable[ClientConnection]) -> int: ...
    def gone(self, shard: int) -> None: ...
