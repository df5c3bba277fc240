from typing import final

from gnatswarm.broker.limits import Limits
from gnatswarm.broker.options import Cluster, LeafNodes, WebSocket
from gnatswarm.shards.sockets.reactor import Reactor

@final
class Deadlines:
    def __init__(
        self,
        reactor: Reactor,
        limits: Limits,
        websocket: WebSocket | None = None,
        leafnodes: LeafNodes | None = None,
        cluster: Cluster | None = None,
    ) -> None: ...
    def set_limits(
        self,
        limits: Limits,
        websocket: WebSocket | None = None,
        leafnodes: LeafNodes | None = None,
        cluster: Cluster | None = None,
    ) -> None: ...
    def sweep(self, share: float = 0.1) -> bool: ...
    def go_on(self) -> bool: ...
