from collections import Counter
from collections.abc import Sequence
from typing import Any, TypeVar

from gnatswarm.probes.engine import ProbeSocket

class FrameReader:
    def lines(self, data: bytes) -> list[bytes]: ...
    def frames(self, data: bytes) -> list[tuple[bytes, bytes]]: ...

class Pipe:
    process: Any
    other: Any
    socket: ProbeSocket | None
    carried: int
    is_cut: bool
    @property
    def on_its_way(self) -> int: ...
    @property
    def is_open(self) -> bool: ...
    def take(self, most: int) -> bytes: ...

Ends = TypeVar("Ends", bound=Pipe)

def busy_pipes(pipes: list[Ends]) -> tuple[list[Ends], bool]: ...
def is_over(pipe: Pipe) -> bool: ...
def count_words(lines: Sequence[bytes], counts: Counter[str]) -> None: ...

class Sight:
    whose: Any
    socket: ProbeSocket
    queued: int
    sent: int
    is_watched: bool

def with_news(sights: list[Sight]) -> list[Sight]: ...
