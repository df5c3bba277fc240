"""Which export of an account an imported service belongs to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gnatswarm.broker.rules import intersection

if TYPE_CHECKING:
    from gnatswarm.broker.options import Account, Export, Import


def export_of(exporter: Account | None, wanted: Import) -> Export | None:
    """The export of an imported service, which has its response type: of the same subject, or the first around it."""
    services = [export for export in exporter.exports if export.is_service] if exporter is not None else []
    exact = [export for export in services if export.subject == wanted.subject]
    subject = _raw(wanted.subject)
    for export in exact or services:
        if intersection(_raw(export.subject), subject) == subject:
            return export
    return None


def _raw(subject: str) -> bytes:
    return subject.encode("utf-8", "surrogateescape")
