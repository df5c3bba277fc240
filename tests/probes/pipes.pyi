from collections import Counter
from typing import Any, TypeVar

from gnatswarm.probes.engine import Probe, ProbeSocket

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
def told_of(lines: list[bytes], counts: Counter[str]) -> list[bytes]: ...
def finish_all(probes: list[Probe]) -> None: ...
def relieved(probes: list[Probe]) -> bool: ...
def client_frames(
    data: bytes, at: int, is_cut: bool, sight: Sight
) -> list[tuple[int, bytes, int, int, bytes, bytes, bytes]]: ...

class Sight:
    whose: Any
    socket: ProbeSocket
    queued: int
    sent: int
    is_watched: bool
    msgs: int
    payload_bytes: int

def with_news(sights: list[Sight]) -> list[Sight]: ...
