"""The latest of something, as many as there may be and as there is memory for; the oldest go first.

Knows nothing of what it keeps: who adds it says how many bytes that takes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Latest(Generic[Item]):
    """At most `most` items and `most_bytes`, but for the latest, which is kept whatever it takes."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._items: deque[Item] = deque()
        self._sizes: deque[int] = deque()
        self.bytes = 0  # of all of them

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, item: object) -> bool:
        return item in self._items

    def __iter__(self) -> Iterator[Item]:
        """The oldest first."""
        return iter(self._items)

    @property
    def oldest(self) -> Item:
        """There must be one."""
        return self._items[0]

    @property
    def newest(self) -> Item:
        """There must be one."""
        return self._items[-1]

    def add(self, item: Item, size: int) -> None:
        """It takes `size` bytes; older ones go if that is too much."""
        self._items.append(item)
        self._sizes.append(size)
        self.bytes += size
        self._drop()

    def bound(self, most: int, most_bytes: int) -> None:
        """Keep so many from now on."""
        self._most, self._most_bytes = most, most_bytes
        self._drop()

    def drop_oldest(self) -> None:
        """There must be one."""
        self._items.popleft()
        self.bytes -= self._sizes.popleft()

    def _drop(self) -> None:
        while len(self._items) > self._most or (self.bytes > self._most_bytes and len(self._items) > 1):
            self.drop_oldest()
