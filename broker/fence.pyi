from typing import final

from broker.connection import Fence
from broker.mesh import Mesh

@final
class MeshFence(Fence):
    def __init__(self, mesh: Mesh) -> None: ...
