from typing import final

from gnatswarm.broker.fence import MeshFence
from gnatswarm.broker.mesh import Mesh
from gnatswarm.broker.reroutes import Reroutes

@final
class ReplyPrefixes:
    is_leaving: bool
    def __init__(self, mesh: Mesh, fence: MeshFence, reroutes: Reroutes) -> None: ...
    @property
    def is_busy(self) -> bool: ...
    @property
    def n_given(self) -> int: ...
    @property
    def n_taken(self) -> int: ...
    def hand_over(self, to: list[int]) -> None: ...
