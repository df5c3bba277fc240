"""Connections that move while a page is gathered: each is told once, by the shard that has it, and counted once."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gnatswarm.router.monitoring import moving_clients
from gnatswarm.shards.boundary.rows import (
    AccountRow,
    AccountsPart,
    ClientPart,
    ConnectionRow,
    ConnectionsPart,
    ConnectionsQuery,
    PassingRow,
)
from tests.router.monitoring.test_pages import connection

SHARDS = 3


class World:
    """Shards that answer one at a time, while clients move, come and close between their answers."""

    def __init__(self, clients: int) -> None:
        self.now_us = 1_000_000
        self.open: list[dict[int, ConnectionRow]] = [{} for _ in range(SHARDS)]
        self.closed: list[list[ConnectionRow]] = [[] for _ in range(SHARDS)]
        self.on_the_way: dict[int, tuple[int, int, ConnectionRow]] = {}  # by cid: from, to
        self.left: list[list[tuple[int, ConnectionRow]]] = [[] for _ in range(SHARDS)]
        self.came: list[list[tuple[int, int, int]]] = [[] for _ in range(SHARDS)]
        for cid in range(1, clients + 1):
            self.open[cid % SHARDS][cid] = connection(cid)

    def step(self, what: tuple[str, int, int]) -> None:
        """What happens between two answers: ("leave", client, shard), ("arrive", …) or ("close", …)."""
        self.now_us += 1000
        kind, cid, to = what
        shard = next((shard for shard in range(SHARDS) if cid in self.open[shard]), None)
        if kind == "leave" and shard not in (None, to):
            row = self.open[shard].pop(cid)
            self.left[shard].append((to, row))
            self.on_the_way[cid] = shard, to, row
        elif kind == "arrive" and cid in self.on_the_way:
            old, new, row = self.on_the_way.pop(cid)
            here = connection(cid, came_from=old, moved_us=self.now_us)
            self.open[new][cid] = here
            self.came[new].append((cid, old, self.now_us))
        elif kind == "close" and shard is not None:
            row = self.open[shard].pop(cid)
            row.stop_us = self.now_us
            self.closed[shard].append(row)

    def replace(self, shard: int) -> None:
        """By another process, which knows nothing of who was there, if all have left it."""
        if not self.open[shard] and all(shard not in (old, new) for old, new, _ in self.on_the_way.values()):
            self.left[shard], self.came[shard] = [], []

    def answer(self, shard: int, query: ConnectionsQuery) -> ConnectionsPart:
        rows = [row for cid, row in sorted(self.open[shard].items()) if not query.cids or cid in query.cids]
        return ConnectionsPart(
            len(self.open[shard]),
            [*rows[: query.most]],
            counted_us=self.now_us,
            left=[one for one in self.left[shard] if not query.cids or one[1].cid in query.cids],
            came=[one for one in self.came[shard] if one[0] in self.open[shard]],
            coming=[cid for cid in query.cids if cid in self.on_the_way and self.on_the_way[cid][1] == shard],
        )

    def of_accounts(self, shard: int, cids: list[int]) -> AccountsPart:
        """Clients with an even id are of another account."""
        here = self.open[shard]
        counts = Counter(account_of(cid) for cid in here)
        recent = cids or [cid for cid, _old, _us in self.came[shard]]
        return AccountsPart(
            [] if cids else [AccountRow(name, connections=count) for name, count in counts.items()],
            counted_us=self.now_us,
            left=[
                PassingRow(row.cid, to, row.moved_us, account_of(row.cid))
                for to, row in self.left[shard]
                if not cids or row.cid in cids
            ],
            came=[
                PassingRow(cid, here[cid].came_from, here[cid].moved_us, account_of(cid))
                for cid in dict.fromkeys(recent)
                if cid in here
            ],
            coming=[cid for cid in cids if cid in self.on_the_way and self.on_the_way[cid][1] == shard],
        )


def account_of(cid: int) -> str:
    return "AB"[cid % 2]


CLIENTS = 6
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["leave", "arrive", "leave", "arrive", "close"]),
        st.integers(1, CLIENTS),
        st.integers(0, SHARDS - 1),
    ),
    max_size=8,
)


@given(
    st.lists(STEPS, min_size=SHARDS + 1, max_size=SHARDS + 1),
    st.sampled_from([2, 100]),
    st.sets(st.integers(0, SHARDS - 1)),
)
async def test_each_is_told_once_and_counted_once(
    steps: list[list[tuple[str, int, int]]], most: int, replaced: set[int]
) -> None:
    world = World(CLIENTS)
    query = ConnectionsQuery(most=most, now_us=1)
    for one in steps[-1]:  # before the page is asked for
        world.step(one)
    for shard in replaced:
        world.replace(shard)
    answers = []
    was_open = set(range(1, CLIENTS + 1)) - {row.cid for rows in world.closed for row in rows}
    for shard in range(SHARDS):
        for one in steps[shard]:
            world.step(one)
        answers.append((shard, [world.answer(shard, query)]))

    async def ask(shard: int, cids: list[int]) -> list[ConnectionsPart]:
        return [world.answer(shard, ConnectionsQuery(most=len(cids), cids=cids))]

    lists = [(shard, parts[0].rows) for shard, parts in answers]
    lists, more = await moving_clients.settled(query, lists, moving_clients.first_parts(answers), ask)
    told = [row.cid for _, rows in lists for row in rows]
    is_open = was_open - {row.cid for rows in world.closed for row in rows}
    assert len(told) == len(set(told))
    assert set(told) <= was_open
    if most == 100:
        assert set(told) >= is_open
        assert len(told) == sum(parts[0].total for _, parts in answers) + more
    else:  # the first page of two; who is on it may have closed since
        page = sorted(told)[:most]
        assert set(page) >= {cid for cid in is_open if len(page) < most or cid < page[-1]}
    for _, rows in lists:
        assert rows == sorted(rows, key=lambda row: row.cid)


@given(st.lists(STEPS, min_size=2 * SHARDS, max_size=2 * SHARDS), st.booleans())
async def test_of_each_account_each_connection_is_counted_once(
    steps: list[list[tuple[str, int, int]]], has_forgotten: bool
) -> None:
    """None closes, and each moves once at most; who came so long ago that its shard has forgotten it was counted."""
    world = World(CLIENTS)
    has_left: set[int] = set()

    def do(some: list[tuple[str, int, int]]) -> None:
        for kind, cid, to in some:
            if kind == "arrive" or (kind == "leave" and cid not in has_left):
                world.step((kind, cid, to))
            has_left.update(world.on_the_way)

    do(steps[-1])
    if has_forgotten:
        world.came = [[] for _ in range(SHARDS)]
    answers = []
    for shard in range(SHARDS):
        do(steps[shard])
        answers.append((shard, [world.of_accounts(shard, [])]))
    later = iter(steps[SHARDS:])

    async def ask(shard: int, cids: list[int]) -> list[AccountsPart]:
        do(next(later, []))
        return [world.of_accounts(shard, cids)]

    counts = await moving_clients.uncounted(moving_clients.first_parts(answers), ask)
    for _, parts in answers:
        counts.update({row.name: row.connections for row in parts[0].rows})
    assert +counts == Counter(account_of(cid) for cid in range(1, CLIENTS + 1))


async def test_no_shard_is_asked_again_for_accounts_while_nobody_moves() -> None:
    parts = {0: AccountsPart([]), 1: AccountsPart([])}
    assert await moving_clients.uncounted(parts, None) == Counter()  # type: ignore[arg-type]


async def test_where_a_client_went_last_is_known_whichever_shard_says_so_first() -> None:
    """From shard 1 to 0, and on to 2, which has counted it: there is nothing to ask."""
    parts = {
        0: AccountsPart([], counted_us=200, left=[PassingRow(7, 2, 50, "A")]),
        1: AccountsPart([], counted_us=200, left=[PassingRow(7, 0, 0, "A")]),
        2: AccountsPart([], counted_us=200, came=[PassingRow(7, 0, 100, "A")]),
    }
    assert await moving_clients.uncounted(parts, None) == Counter()  # type: ignore[arg-type]


async def test_nobody_is_asked_again_while_nobody_moves() -> None:
    parts = {0: ConnectionsPart(1, []), 1: ConnectionsPart(1, [])}
    lists: Any = [(0, [connection(1)]), (1, [connection(2)])]
    assert await moving_clients.settled(ConnectionsQuery(), lists, parts, None) == (lists, 0)  # type: ignore[arg-type]


async def test_who_has_left_a_process_that_was_replaced_is_not_taken_from_its_successor() -> None:
    parts = {
        0: ConnectionsPart(2, [], counted_us=9, came=[(1, 1, 5), (2, 1, 5)]),
        1: ConnectionsPart(1, [], counted_us=8),
    }
    lists: Any = [(0, [connection(1, moved_us=5), connection(2, moved_us=5)]), (1, [])]  # (1: on a later page)
    assert (await moving_clients.settled(ConnectionsQuery(most=2), lists, parts, None))[1] == 0  # type: ignore[arg-type]


async def test_one_shard_alone_does_not_follow_those_that_left_it() -> None:
    parts = {0: ConnectionsPart(0, [], left=[(1, connection(1))])}
    assert await moving_clients.settled(ConnectionsQuery(), [(0, [])], parts, None) == ([(0, [])], 0)  # type: ignore[arg-type]


MOVES = st.lists(st.sampled_from(("leave", "arrive")), max_size=2)


@given(st.integers(0, SHARDS - 1), st.lists(st.tuples(MOVES, st.integers(0, SHARDS - 1)), max_size=2))
async def test_a_command_reaches_its_client_wherever_it_goes_meanwhile(
    start: int, steps: list[tuple[list[str], int]]
) -> None:
    """It moves twice at most; a shard that expects it carries the command out when it is there."""
    cid = start + SHARDS
    world = World(2 * SHARDS)
    told: set[int] = set()  # shards that have told it, or will
    n_asked = 0

    async def tell(shard: int) -> list[ClientPart]:
        nonlocal n_asked
        n_asked += 1
        if steps:
            kinds, to = steps.pop(0)
            for kind in kinds:
                world.step((kind, cid, to))
        is_found = cid in world.open[shard]
        is_coming = cid in world.on_the_way and world.on_the_way[cid][1] == shard
        if is_found or is_coming:
            told.add(shard)
        has_left = any(row.cid == cid for _, row in world.left[shard])
        return [ClientPart(is_found, is_coming, has_left and not is_found)]

    assert await moving_clients.reaches(range(SHARDS), tell)
    world.step(("arrive", cid, 0))
    assert any(cid in world.open[shard] for shard in told)


async def test_a_client_that_nobody_knows_is_looked_for_once_and_behind_a_shard_that_ended_again() -> None:
    said: list[int] = []

    async def unknown(shard: int) -> list[ClientPart]:
        said.append(shard)
        return [ClientPart(False)]

    assert not await moving_clients.reaches([0, 1], unknown)
    assert said == [0, 1]

    async def ended(shard: int) -> list[ClientPart]:
        said.append(shard)
        return [] if shard == 1 else [ClientPart(len(said) > 2)]

    said.clear()
    assert await moving_clients.reaches([0, 1], ended)
    assert said == [0, 1, 0]
