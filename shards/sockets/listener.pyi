from collections.abc import Callable
from typing import final

from gnatswarm.shards.sockets.reactor import Reactor

@final
class Listener:
    def __init__(
        self,
        reactor: Reactor,
        fd: int,
        on_accept: Callable[[int, str, int], None],
        on_error: Callable[[int], None],
        full_at: int = ...,
        on_full: Callable[[], None] | None = None,
        *,
        may_refuse: bool = False,
    ) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def accept_waiting(self) -> None: ...
    def end(self) -> None: ...
    def close(self) -> None: ...
