"""Checks the imports and exports of all accounts together: authorization, duplicates and cycles.

Pure functions over the blocks that `router.config.imports_exports_block` has read. Messages are the real server's where
it has one; places are more exact.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from msgspec import structs

from gnatswarm.broker.exports import Exports
from gnatswarm.broker.options import Export, Import
from gnatswarm.broker.pattern_index import PatternIndex
from gnatswarm.broker.rules import local_pattern, local_service_pattern
from gnatswarm.router.config.conf_tree import Position, Problem
from gnatswarm.router.config.imports_exports_block import ImportsExportsBlock


def exchange_problems(exchanges: Iterable[ImportsExportsBlock], names: Collection[str]) -> list[Problem]:
    """All problems between accounts; `names` are the names of all accounts."""
    exchanges = list(exchanges)
    exported = {exchange.name: Exports(export for export, _ in exchange.exports) for exchange in exchanges}
    problems: list[Problem] = []
    for exchange in exchanges:
        problems += _export_problems(exchange, names)
        problems += _import_problems(exchange, names, exported)
    if not problems:
        everything = [(exchange.name, found, at) for exchange in exchanges for found, at in exchange.imports]
        for is_service in (False, True):
            problems += _cycles([item for item in everything if item[1].is_service == is_service])
    return problems


def _word(found: Export | Import) -> str:
    return "service" if found.is_service else "stream"


def _export_problems(exchange: ImportsExportsBlock, names: Collection[str]) -> list[Problem]:
    problems = []
    seen: dict[tuple[str, bool], Export] = {}
    for export, at in exchange.exports:
        for name in export.accounts or ():
            if name not in names:
                what = f'"{name}" account not defined for {_word(export)} export'
                problems.append(Problem(at, what, "define it, or take it out of the list"))
        before = seen.setdefault((export.subject, export.is_service), export)
        if before is not export and (
            None in (before.accounts, export.accounts)
            or structs.replace(before, accounts=None) != structs.replace(export, accounts=None)
        ):
            # In the real server the order decides which one counts; then a list of accounts could be ignored.
            what = f'{_word(export)} "{export.subject}" is exported again, and differently'
            problems.append(Problem(at, what, "keep one, with all its accounts"))
    return problems


def may_import(exports: Exports, wanted: Import, importer: str) -> Export | None:
    """The export that permits this import, or None. As in nats-server, an export of exactly its subject goes first."""
    around = exports.around(wanted)
    if not all(_names_importer(export, wanted, importer) for export in around):
        # In the real server one of them decides, at random: another one would not let an account read all others' part.
        return None
    return next((one for one in around if one.accounts is None or importer in one.accounts), None)


def _names_importer(export: Export, wanted: Import, importer: str) -> bool:
    position = export.account_token_position
    return not position or wanted.subject.split(".")[position - 1] == importer


def _import_problems(
    exchange: ImportsExportsBlock, names: Collection[str], exported: dict[str, Exports]
) -> list[Problem]:
    problems = []
    streams: set[tuple[str, str]] = set()
    services: dict[str, Import] = {}
    for wanted, at in exchange.imports:
        word = _word(wanted)
        failed = f'Error adding {word} import "{wanted.subject}"'
        if wanted.account not in names:
            what = f'"{wanted.account}" account not defined for {word} import'
            problems.append(Problem(at, what, "define it, or remove the import"))
        elif wanted.account == exchange.name:
            what = f"{failed}: an account cannot import from itself"
            problems.append(Problem(at, what, "a mapping renames subjects within an account"))
        elif may_import(exported[wanted.account], wanted, exchange.name) is None:
            what = f"{failed}: {word} import not authorized"
            problems.append(Problem(at, what, f'"{wanted.account}" has to export it, to "{exchange.name}" too'))
        elif wanted.is_service:
            before = services.setdefault(wanted.to, wanted)
            if before is not wanted:
                used = f'previously used in import for account "{before.account}", subject "{before.subject}"'
                what = f'Duplicate service import subject "{wanted.to}", {used}'
                problems.append(Problem(at, what, "give one of them another subject, with to"))
        elif (wanted.account, wanted.subject) in streams:
            problems.append(Problem(at, f"{failed}: stream import already exists", "keep one"))
        else:
            streams.add((wanted.account, wanted.subject))
    return problems


def _cycles(imports: list[tuple[str, Import, Position]]) -> list[Problem]:
    """A problem for each import that closes a cycle of imports."""
    by_importer: dict[str, list[tuple[bytes, int]]] = {}
    for i, (importer, found, _at) in enumerate(imports):
        pattern = local_service_pattern if found.is_service else local_pattern
        by_importer.setdefault(importer, []).append((pattern(_raw(found.subject), _raw(found.to)), i))
    indexes = {importer: PatternIndex(here) for importer, here in by_importer.items()}

    def leads_to(i: int) -> list[int]:
        found = imports[i][1]
        index = indexes.get(found.account)
        return index.meeting(_raw(found.subject)) if index is not None else []

    problems = []
    done: set[int] = set()
    for start in range(len(imports)):
        if start in done:
            continue
        path, on_path = [(start, iter(leads_to(start)))], {start}
        while path:
            i, following = path[-1]
            j = next(following, None)
            if j is None:
                path.pop()
                on_path.discard(i)
                done.add(i)
            elif j in on_path:
                cycle = [k for k, _ in path[[k for k, _ in path].index(j) :]]
                names = " → ".join([imports[k][0] for k in cycle] + [imports[cycle[0]][0]])
                _, found, at = imports[i]
                what = f'Error adding {_word(found)} import "{found.subject}": import forms a cycle'
                problems.append(Problem(at, what, f"{names}; give it another subject here, with to"))
            elif j not in done:
                path.append((j, iter(leads_to(j))))
                on_path.add(j)
    return problems


def _raw(subject: str) -> bytes:
    return subject.encode("utf-8", "surrogateescape")
