"""The timers of an event loop that has none: a test says when one is due."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any


class Timers:
    """A loop whose time stands still: it only keeps what is to be called, and after how many seconds."""

    def __init__(self) -> None:
        self._pending: dict[int, tuple[float, Callable[[], None]]] = {}
        self._made = 0

    def time(self) -> float:
        return 0.0

    def create_future(self) -> None:
        """Nobody waits for one here."""

    def call_later(self, after_s: float, call: Callable[[], None]) -> Any:
        number = self._made = self._made + 1
        self._pending[number] = after_s, call
        return SimpleNamespace(cancel=lambda: self._pending.pop(number, None))

    def next(self, name: str) -> float:
        """Call the only one that calls this function; after how many seconds it was due."""
        [number] = [number for number, (_, call) in self._pending.items() if getattr(call, "__name__", "") == name]
        after_s, call = self._pending.pop(number)
        call()
        return after_s
