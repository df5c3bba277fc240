"""Connections that move between shards while a page asks for them: each of them is told once, by the shard that has it.

Shards answer at moments of their own. A client may be open in one answer and, moved meanwhile, in a later one; or in
neither, if it was on its way. Each answer says who has lately left, whereto, and who has lately come (ConnectionsPart);
those that no answer has are asked for again where they went. Costs nothing while nobody moves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from gnatswarm.shards.boundary.pace import Pace
from gnatswarm.shards.boundary.rows import (
    AccountsPart,
    ClientPart,
    ConnectionRow,
    ConnectionsPart,
    ConnectionsQuery,
    PassingRow,
    is_found,
    order,
)

# Asks one shard about these clients.
Ask = Callable[[int, list[int]], Awaitable[list[ConnectionsPart]]]
AskOfAccounts = Callable[[int, list[int]], Awaitable[list[AccountsPart]]]
Row = TypeVar("Row")
Part = TypeVar("Part")
Lists = list[tuple[int, list[ConnectionRow]]]

# A client that moves on while it is asked for is followed so often.
MOST_HOPS = 3
ROWS_IN_ONE_STEP = 128


async def settled(
    query: ConnectionsQuery, lists: Lists, first_parts: Mapping[int, ConnectionsPart], ask: Ask
) -> tuple[Lists, int]:
    """The shards' lists with each client once, and by how much the sum of their totals is too small.

    That is exact if the lists are whole; else as far as it can be told, for clients that move more than once meanwhile.

    `first_parts`: the first part of each shard's answer. Each list stays in the order of the query; there may be
    more lists than shards.
    """
    left: dict[int, tuple[int, ConnectionRow]] = {}  # by cid, what its latest shard says
    for part in first_parts.values():
        for to, row in part.left:
            if row.cid not in left or left[row.cid][1].moved_us < row.moved_us:
                left[row.cid] = to, row
    came = {(cid, shard): (old, us) for shard, part in first_parts.items() for cid, old, us in part.came}
    if not left and not came:
        return lists, 0
    counted = sum(part.total for part in first_parts.values())
    is_whole = all(len(rows) == first_parts[shard].total for shard, rows in lists if shard in first_parts)
    lists = await _once(lists)
    more = -_counted_twice(first_parts, came)
    shown = {row.cid for _, rows in lists for row in rows}
    missing = {
        cid: place
        for cid, place in left.items()
        if cid not in shown and (cid, place[0]) not in came and place[0] in first_parts
    }
    for _ in range(MOST_HOPS):
        by_shard: dict[int, list[int]] = {}
        for cid, (to, _row) in missing.items():
            by_shard.setdefault(to, []).append(cid)
        known, missing = missing, {}
        for shard, cids in by_shard.items():
            found: list[ConnectionRow] = []
            for part in await ask(shard, cids):
                here = {row.cid for row in part.rows} | set(part.coming)
                for row in part.rows:
                    found.append(row)
                    more += row.moved_us > first_parts[shard].counted_us  # else it was counted, but is on a later page
                if not query.subject:  # (what they subscribe to is on its way, too)
                    found += [known[cid][1] for cid in part.coming]
                more += len(part.coming)
                for to, row in part.left:  # those that it left before it came are older
                    is_news = row.cid in known and row.moved_us > known[row.cid][1].moved_us
                    if is_news and row.cid not in here and to in first_parts:
                        missing[row.cid] = to, row
            wanted = [row for row in found if is_found(row, query)]
            lists = [*lists, (shard, sorted(wanted, key=order(query.sort, query.now_us)))]
    return lists, sum(len(rows) for _, rows in lists) - counted if is_whole else more


async def uncounted(first_parts: Mapping[int, AccountsPart], ask: AskOfAccounts) -> Counter[str]:
    """By account, how many more clients there are than the shards have counted; fewer, where some were counted twice.

    Exact for clients that move once meanwhile.
    """
    more: Counter[str] = Counter()
    left: dict[int, PassingRow] = {}  # by cid, what its latest shard says
    for row in (row for part in first_parts.values() for row in part.left):
        if row.cid not in left or left[row.cid].moved_us < row.moved_us:
            left[row.cid] = row
    came = {(row.cid, shard): row for shard, part in first_parts.items() for row in part.came}
    gone = {shard: {row.cid for row in part.left} for shard, part in first_parts.items()}
    counted_us = {shard: part.counted_us for shard, part in first_parts.items()}
    for (cid, shard), row in came.items():
        more[row.account] -= _is_counted_twice(cid, shard, row.shard, row.moved_us, gone, counted_us)
    missing = {cid: row for cid, row in left.items() if (cid, row.shard) not in came and row.shard in first_parts}
    for _ in range(MOST_HOPS):
        by_shard: dict[int, list[int]] = {}
        for cid, row in missing.items():
            by_shard.setdefault(row.shard, []).append(cid)
        known, missing = missing, {}
        for shard, cids in by_shard.items():
            for part in await ask(shard, cids):
                here = {row.cid for row in part.came} | set(part.coming)
                for row in part.came:
                    more[row.account] += row.moved_us > counted_us[shard]  # else it was counted there
                more.update(known[cid].account for cid in part.coming)
                for row in part.left:  # those that it left before it came are older
                    is_news = row.cid in known and row.moved_us > known[row.cid].moved_us
                    if is_news and row.cid not in here and row.shard in first_parts:
                        missing[row.cid] = row
    return more


async def reaches(shards: Sequence[int], tell: Callable[[int], Awaitable[list[ClientPart]]]) -> bool:
    """Whether a command about one client reaches it on one of these shards, which are told it one after the other."""
    is_coming = False
    for _ in range(MOST_HOPS):
        is_coming = may_have_moved = False
        for shard in shards:
            parts = await tell(shard)
            if any(part.is_found for part in parts):
                return True
            is_coming = is_coming or any(part.is_coming for part in parts)
            # (A shard that has ended meanwhile says nothing: its clients may have left it before.)
            may_have_moved = may_have_moved or not parts or any(part.has_left for part in parts)
        if not is_coming and not may_have_moved:
            break
    return is_coming


async def _once(lists: Lists) -> Lists:
    """Without the earlier of two rows of one client; one that has ended is the later one."""
    pace = Pace()
    best: dict[int, ConnectionRow] = {}
    for _, rows in lists:
        for step in steps(rows):
            for row in step:
                other = best.get(row.cid)
                if other is None or _age(row) > _age(other):
                    best[row.cid] = row
            await pace()
    kept = []
    for shard, rows in lists:
        mine: list[ConnectionRow] = []
        for step in steps(rows):
            mine += [row for row in step if best[row.cid] is row]
            await pace()
        kept.append((shard, mine))
    return kept


def steps(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    """The rows, so many at a time that others may have their turn between."""
    return (rows[at : at + ROWS_IN_ONE_STEP] for at in range(0, len(rows), ROWS_IN_ONE_STEP))


def once(
    found: Iterable[tuple[int, Row]], key: Callable[[Row], Hashable], age: Callable[[Row], Any]
) -> list[tuple[int, Row]]:
    """Without the earlier of two rows (shard, row) with the same key: what two shards said of a client that moved."""
    latest: dict[Hashable, tuple[int, Row]] = {}
    add_latest(latest, found, key, age)
    return list(latest.values())


async def once_of_many(
    found: Sequence[tuple[int, Row]], key: Callable[[Row], Hashable], age: Callable[[Row], Any]
) -> list[tuple[int, Row]]:
    """The same, step by step."""
    latest: dict[Hashable, tuple[int, Row]] = {}
    pace = Pace()
    for step in steps(found):
        add_latest(latest, step, key, age)
        await pace()
    return list(latest.values())


def add_latest(
    latest: dict[Hashable, tuple[int, Row]],
    found: Iterable[tuple[int, Row]],
    key: Callable[[Row], Hashable],
    age: Callable[[Row], Any],
) -> None:
    """Add rows (shard, row), each in place of an earlier one with the same key."""
    for shard, row in found:
        name = key(row)
        if name not in latest or age(row) > age(latest[name][1]):
            latest[name] = shard, row


def _age(row: ConnectionRow) -> tuple[bool, int]:
    return row.stop_us > 0, row.moved_us


def _counted_twice(first_parts: Mapping[int, ConnectionsPart], came: Mapping[tuple[int, int], tuple[int, int]]) -> int:
    """How many clients were counted by the shard that they left, and later by the one that they came to."""
    gone: dict[int, set[int]] = {shard: {row.cid for _, row in part.left} for shard, part in first_parts.items()}
    counted_us = {shard: part.counted_us for shard, part in first_parts.items()}
    return sum(
        _is_counted_twice(cid, shard, old, moved_us, gone, counted_us) for (cid, shard), (old, moved_us) in came.items()
    )


def _is_counted_twice(
    cid: int, shard: int, old: int, moved_us: int, gone: Mapping[int, set[int]], counted_us: Mapping[int, int]
) -> bool:
    """Whether the client was counted by the shard that it left, and by this one.

    A shard that counted after it had come here has the old shard's number, and is another process.
    """
    return old in gone and cid not in gone[old] and cid not in gone[shard] and counted_us[old] < moved_us


def first_parts(answers: Sequence[tuple[int, Sequence[Part]]]) -> dict[int, Part]:
    """The part of each answer that has the counts."""
    return {shard: parts[0] for shard, parts in answers if parts}
