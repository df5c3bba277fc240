"""Imports, exports and mappings of the accounts on one shard: turns options into the engine's rules.

Called at start and by each reload, on every shard; rules that did not change stay the same objects. Each account's hold
as a whole. Not here: whether an import is allowed (checked by the router), and how messages pass
(broker.service_imports).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gnatswarm.broker import jetstream, rules
from gnatswarm.broker.exports import Exports
from gnatswarm.broker.jetstream import accounts_with_jetstream
from gnatswarm.broker.options import Account
from gnatswarm.broker.service_imports import ServiceImports

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gnatswarm.broker.fanout import Fanout
    from gnatswarm.broker.mesh import Mesh
    from gnatswarm.broker.options import Export, Import, Options
    from gnatswarm.broker.sublist import Sublist


class ImportsExports:
    """The imports, exports and mappings of one shard's accounts."""

    def __init__(
        self, options: Options, fanout: Fanout, mesh: Mesh, *, server_name: str = "", cluster: str = ""
    ) -> None:
        self._mesh = mesh
        self.service_imports = ServiceImports(fanout, mesh.shard, adds_headers=options.headers)
        fanout.gate = self.service_imports
        mesh.set_reply_prefix(self.service_imports.reply_prefix)
        self._rules: dict[str, object] = {}  # the present ones of each account, for comparison
        self._streams: dict[str, object] = {}
        self._jetstream: dict[str, list[rules.ServiceImport]] = {}  # imports of its API
        self._place = {"server": server_name, "cluster": cluster}
        self.configure(options)

    def configure(self, options: Options) -> set[str]:
        """Apply these options; returns the accounts whose stream imports have changed."""
        changed: set[str] = set()
        for _ in self.steps(options, changed):
            pass
        return changed

    def steps(self, options: Options, changed: set[str]) -> Iterator[None]:
        """The same in steps of some 20 us, for who serves others in between; `changed` is filled."""
        accounts = {account.name: account for account in accounts_with_jetstream(options)}
        exports: dict[str, Exports] = {}
        api = (options.system_account, jetstream.API)
        for name in [*{*accounts, *self._rules, *self._streams}]:
            yield
            account = accounts.get(name) or Account(name)
            services: list[tuple[Import, Export | None]] = []
            for found in account.imports:
                if found.is_service:
                    yield
                    if found.account not in exports:
                        exports[found.account] = Exports.of(accounts.get(found.account))
                    services.append((found, exports[found.account].first_around(found)))
            if self._rules.get(name, ((), [])) != (account.mappings, services):
                yield from self._set_rules(name, account, services, api)
                self._rules[name] = (account.mappings, services)
            streams = [found for found in account.imports if not found.is_service]
            if self._streams.get(name, []) != streams:
                yield from self._set_streams(name, streams)
                self._streams[name] = streams
                changed.add(name)
            if name not in accounts:  # it has none any more, and may never come back
                for known in (self._rules, self._streams, self._jetstream):
                    known.pop(name, None)

    def set_cluster(self, name: str) -> None:
        """The cluster has another name: JetStream puts streams where the request comes from."""
        self._place["cluster"] = name
        for found in self._jetstream.values():
            for one in found:
                one.set_requestor(**self._place)

    def _set_rules(
        self, name: str, account: Account, services: list[tuple[Import, Export | None]], api: tuple[str, str]
    ) -> Iterator[None]:
        sublist = self._sublist(name)
        mappings = []
        for mapping in account.mappings:
            yield
            destinations = [(_raw(subject), weight) for subject, weight in mapping.destinations]
            mappings.append(rules.Mapping(_raw(mapping.subject), destinations))
        imports = []
        for found, export in services:
            yield
            if export is not None:
                stays = jetstream.STAYS if (found.account, found.subject) == api else ()
                imports.append(self._service_import(sublist, found, export, stays))
        self._jetstream[name] = [one for one in imports if one.stays]
        for one in self._jetstream[name]:
            one.set_requestor(**self._place)
        sublist.set_rules(mappings, imports)

    def _service_import(
        self, importer: Sublist, found: Import, export: Export, stays: tuple[bytes, ...]
    ) -> rules.ServiceImport:
        return rules.ServiceImport(
            importer,
            self._sublist(found.account),
            _raw(found.subject),
            _raw(found.to),
            rules.RESPONSE_KINDS[export.response],
            round(export.threshold_s * 1e6),
            stays,
            export=_raw(export.subject),
            shares=found.share,
            traces=export.allow_trace,
            latency=(_raw(export.latency_subject), export.latency_percent) if export.latency_subject else None,
        )

    def _set_streams(self, name: str, streams: list[Import]) -> Iterator[None]:
        imports = []
        for found in streams:
            yield
            imports.append(rules.StreamImport(self._sublist(found.account), _raw(found.subject), _raw(found.to)))
        self._sublist(name).streams = imports or None

    def _sublist(self, name: str) -> Sublist:
        return self._mesh.account(name.encode("utf-8", "surrogateescape"))


def _raw(subject: str) -> bytes:
    return subject.encode("utf-8", "surrogateescape")
