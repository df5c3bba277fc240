from collections.abc import Callable
from typing import final

from gnatswarm.shards.sockets.reactor import Reactor
from gnatswarm.shards.sockets.source import Source

@final
class ShortTimer(Source):
    def __init__(self, reactor: Reactor, call: Callable[[], None]) -> None: ...
    def start(self, us: int) -> None: ...
    def close(self) -> None: ...
