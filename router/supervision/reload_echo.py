"""Tracks which shards have not confirmed a reload yet, and logs when all have."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gnatswarm.router.supervision.notify import Notifier

log = logging.getLogger("gnatswarm.router")


class ReloadEcho:
    """A reload is done once every shard that was told has confirmed it, or is gone: then `on_done` is called."""

    def __init__(self, notifier: Notifier, on_done: Callable[[], None] = lambda: None) -> None:
        self._notifier = notifier
        self._on_done = on_done
        self._awaited: set[int] = set()  # shards that have not confirmed the last reload
        self._generation = 0  # of its options
        self._digest = ""

    @property
    def is_complete(self) -> bool:
        """Whether every shard has confirmed."""
        return not self._awaited

    @property
    def awaited(self) -> frozenset[int]:
        """The shards that have not."""
        return frozenset(self._awaited)

    def expect(self, shards: set[int], generation: int, digest: str = "") -> None:
        """Begin a reload: wait for confirmations of these shards. `digest`: of the configuration; "": not logged."""
        self._awaited = shards
        self._generation = generation
        self._digest = f" ({digest})" if digest else ""
        if not shards:
            self._end()

    def on_reloaded(self, shard: int, generation: int) -> None:
        """This shard has confirmed the reload of this generation, which may be one before the last."""
        if generation == self._generation:
            self.on_gone(shard)

    def on_gone(self, shard: int) -> None:
        """This shard is not waited for any more."""
        if shard in self._awaited:
            self._awaited.discard(shard)
            if not self._awaited:
                self._end()

    def _end(self) -> None:
        self._on_done()
        log.info("Reloaded server configuration%s", self._digest)
        self._notifier.reloaded()
