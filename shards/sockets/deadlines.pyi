from typing import final

from gnatswarm.broker.limits import Limits
from gnatswarm.shards.sockets.reactor import Reactor

@final
class Deadlines:
    def __init__(self, reactor: Reactor, limits: Limits, websocket_ping_interval_s: float = 0.0) -> None: ...
    def set_limits(self, limits: Limits, websocket_ping_interval_s: float = 0.0) -> None: ...
    def sweep(self, share: float = 0.1) -> None: ...
