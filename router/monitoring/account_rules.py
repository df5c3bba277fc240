"""Exports, imports and mappings of an account as `/accountz?acc=` shows them; in nats-server's format."""

from __future__ import annotations

from collections.abc import Sequence

from gnatswarm.broker.exports import Exports
from gnatswarm.broker.options import GLOBAL_ACCOUNT, Account, Export, Import, Mapping, Options
from gnatswarm.broker.rules import local_service_pattern
from gnatswarm.router.config.imports_exports_rules import may_import
from gnatswarm.shards.boundary.rows import DueReplyRow

Document = dict[str, object]
_SERVICE = 2  # nats-server writes the type of a response as a number
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


def responses(options: Options, name: str, due: Sequence[DueReplyRow]) -> Document:
    """The replies that an account owes others, by the subject on which it replies."""
    # (Others' rules are not looked at: of 100,000 accounts with three imports each, they took the router 0.06 s.)
    concerned = {name, *(row.account for row in due)}
    accounts = {account.name: account for account in options.accounts if account.name in concerned}
    exports = accounts.get(name, Account(name)).exports
    latencies = {export.latency_subject: _latency(export) for export in exports if export.latency_subject}
    # Which import a request came by is not kept: where an account has several of this one, all have to share.
    share: dict[str, bool] = {}
    for account in accounts.values():
        for wanted in account.imports:
            if wanted.is_service and wanted.account == name:
                share[account.name] = share.get(account.name, True) and wanted.share
    found: Document = {}
    for row in due:
        if options.is_like_newer:
            head: Document = {"subject": row.reply, "account": row.account, "to": row.made, "local_subject": row.made}
        else:
            head = {"subject": row.made, "account": row.account, "to": row.reply}
        is_shared = share.get(row.account, False)
        head |= {"type": _SERVICE, "invalid": False, "share": is_shared, "tracking": bool(row.latency_subject)}
        if row.headers:
            head["tracking_header"] = row.headers
        if row.latency_subject in latencies:
            head["latency"] = latencies[row.latency_subject]
        found[row.made] = head
    return found


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
