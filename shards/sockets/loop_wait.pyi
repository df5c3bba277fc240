import asyncio
from typing import final

from gnatswarm.shards.sockets.reactor import Reactor

@final
class LoopWait:
    @staticmethod
    def begin(loop: asyncio.AbstractEventLoop, reactor: Reactor) -> LoopWait | None: ...
    def end(self) -> None: ...
