from collections.abc import Hashable, Sequence
from typing import final

@final
class Allowance:
    def __init__(
        self,
        buckets: Sequence[tuple[int, float, float, bool]],
        memory: object,
        *,
        stall_s: float = 0.0,
        key: Hashable = None,
    ) -> None: ...
    @property
    def burst_us(self) -> int: ...
    @property
    def stall_us(self) -> int: ...
    @property
    def key(self) -> Hashable: ...
    def look(self, now_us: int) -> tuple[int, int]: ...
    def publish(self, msgs: int, payload_bytes: int, now_us: int) -> None: ...
