"""Exports, imports and mappings of an account as `/accountz?acc=` shows them; in nats-server's format."""

from __future__ import annotations

from gnatswarm.broker.exports import Exports
from gnatswarm.broker.options import GLOBAL_ACCOUNT, Account, Export, Import, Mapping, Options
from gnatswarm.broker.rules import local_service_pattern
from gnatswarm.router.config.imports_exports_rules import may_import

Document = dict[str, object]
_RESPONSES = {"singleton": "Singleton", "stream": "Streamed", "chunked": "Chunked"}


def account_rules(options: Options, name: str) -> Document:
    """The configuration of one account; empty keys are left out."""
    account = next((found for found in options.accounts if found.name == name), Account(name))
    mappings = options.mappings if name == GLOBAL_ACCOUNT else account.mappings
    exporters = {wanted.account for wanted in account.imports}
    exports = {found.name: Exports.of(found) for found in options.accounts if found.name in exporters}
    found: Document = {
        "mappings": {mapping.subject: _destinations(mapping) for mapping in mappings},
        "exports": [_export(export) for export in account.exports],
        "imports": [_import(options, name, wanted, exports) for wanted in account.imports],
    }
    return {key: value for key, value in found.items() if value}


def _destinations(mapping: Mapping) -> list[Document]:
    return [{"subject": subject, "weight": weight} for subject, weight in mapping.destinations]


def _export(export: Export) -> Document:
    document: Document = {"subject": export.subject, "type": "service" if export.is_service else "stream"}
    if export.is_service:
        document["response_type"] = _RESPONSES[export.response]
    if export.latency_subject:
        document["service_latency"] = _latency(export)
    if export.accounts is not None:
        document["approved_accounts"] = list(export.accounts)
    return document


def _latency(export: Export) -> Document:
    return {"sampling": export.latency_percent or "headers", "results": export.latency_subject}


def _import(options: Options, importer: str, wanted: Import, exports: dict[str, Exports]) -> Document:
    rest: Document = {"invalid": False, "share": wanted.share, "tracking": False}
    if not wanted.is_service:
        head: Document = {"subject": wanted.subject, "account": wanted.account, "local_subject": wanted.to}
        return {**head, "type": "stream", **rest}
    here = local_service_pattern(
        wanted.subject.encode("utf-8", "surrogateescape"), wanted.to.encode("utf-8", "surrogateescape")
    ).decode("utf-8", "surrogateescape")
    exporter = exports.get(wanted.account)
    export = may_import(exporter, wanted, importer) if exporter is not None else None
    if export is not None and export.latency_subject:
        rest["latency"] = _latency(export)
    if options.is_like_newer:
        head = {"subject": wanted.subject, "account": wanted.account, "to": here, "local_subject": here}
    else:
        head = {"subject": here, "account": wanted.account, "to": wanted.subject}
    return {**head, "type": "service", **rest}
