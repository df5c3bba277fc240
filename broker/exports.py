"""Which export of an account an import belongs to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gnatswarm.broker.pattern_index import PatternIndex

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gnatswarm.broker.options import Account, Export, Import


class Exports:
    """The exports of one account. An import costs the same however many there are of them."""

    def __init__(self, exports: Iterable[Export]) -> None:
        self._exact: dict[tuple[bool, str], list[Export]] = {}
        self._exports = tuple(exports)
        self._patterns: dict[bool, PatternIndex[Export]] = {}  # of services, and of streams, when they are asked for
        for export in self._exports:
            self._exact.setdefault((export.is_service, export.subject), []).append(export)

    @classmethod
    def of(cls, account: Account | None) -> Exports:
        """Those of an account; None: it is not defined, and exports nothing."""
        return cls(account.exports if account is not None else ())

    def around(self, wanted: Import) -> list[Export]:
        """Those of its kind with exactly its subject, or else all those around it."""
        exact = self._exact.get((wanted.is_service, wanted.subject))
        return exact or self._index(wanted.is_service).around(_raw(wanted.subject))

    def _index(self, is_service: bool) -> PatternIndex[Export]:
        index = self._patterns.get(is_service)
        if index is None:
            found = [(_raw(export.subject), export) for export in self._exports if export.is_service == is_service]
            index = self._patterns[is_service] = PatternIndex(found)
        return index

    def first_around(self, wanted: Import) -> Export | None:
        """The export of an imported service, which has its response type."""
        return next(iter(self.around(wanted)), None)


def _raw(subject: str) -> bytes:
    return subject.encode("utf-8", "surrogateescape")
