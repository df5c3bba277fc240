from collections.abc import Callable
from typing import final

@final
class ServerFence:
    is_on: bool
    on_wait: Callable[[], object]
    @property
    def late(self) -> int: ...
    def expire(self, now_us: int, bound_us: int) -> tuple[list[int], int]: ...
