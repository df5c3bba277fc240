"""A shard's part of a monitoring page: chosen, counted and in order, in pieces that together are all there is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

import msgspec
import pytest
import pytest_asyncio

from gnatswarm.broker import census
from gnatswarm.broker.options import Account, Export, Import, Options, User
from gnatswarm.broker.placement_rules import SubjectPattern
from gnatswarm.shards.boundary import rows
from gnatswarm.shards.boundary.control import Snapshot, SnapshotReply
from gnatswarm.shards.boundary.pace import Pace
from gnatswarm.shards.boundary.rows import ConnectionsQuery
from gnatswarm.shards.clients.closed import connection_row
from gnatswarm.shards.monitoring import snapshots as module
from gnatswarm.shards.monitoring.snapshots import (
    MOST_UNREAD_BYTES,
    MOST_WAITING,
    PART_ROWS,
    PART_SUBSCRIPTIONS,
    SLOW_TEXT,
    STEP_OF_ONE,
    STEP_ROWS,
    STEP_SLOTS,
    STEP_TEXT,
    TEXT_OF_ONE,
    UNREAD_POLL_S,
    Snapshots,
)
from tests.support.one_shard import Client, OneShard
from tests.support.turns import until

WITHIN_S = 20

Part = TypeVar("Part", bound=rows.PageStruct)


@pytest.mark.parametrize("query", [rows.LeafsQuery(True), rows.RoutesQuery(True)])
async def test_others_are_served_while_it_is_looked_for_what_servers_want(query: rows.LeafsQuery | rows.RoutesQuery):
    """None in the place of a row: the look at this one goes on."""
    paces = 0

    class Counted(Pace):
        async def __call__(self) -> None:
            nonlocal paces
            paces += 1

    one = OneShard(Options())
    found: list[Any] = [None, None, "first", "second", None]
    snapshots = Snapshots(
        channel=None,  # type: ignore[arg-type]
        clients=one.shard.clients,
        mesh=one.shard.mesh,
        fanout=one.shard.fanout,
        leafs=lambda with_subs: iter(found if with_subs else ()),
        routes=lambda with_subs: iter(found if with_subs else ()),
    )
    assert [part.rows async for part in snapshots._parts(query, Counted())] == [["first"], ["second"]]  # type: ignore[union-attr]
    assert paces == len(found)
    one.close()


@pytest.mark.parametrize("count", [0, 1, PART_SUBSCRIPTIONS, 4 * PART_SUBSCRIPTIONS + 7])
async def test_all_subscriptions_of_a_client_are_listed_once(count: int) -> None:
    one = OneShard(Options())
    try:
        client, other = one.connect(), one.connect()
        words = b"".join(b"SUB a.%d %d\r\n" % (number, number) for number in range(count))
        await client.talk(b'CONNECT {"verbose":false}\r\n' + words + b"PING\r\n")
        await other.talk(b'CONNECT {"verbose":false}\r\nSUB b 1\r\nPING\r\n')
        shard = one.shard
        snapshots = Snapshots(
            channel=None,  # type: ignore[arg-type]
            clients=shard.clients,
            mesh=shard.mesh,
            fanout=shard.fanout,
        )
        found: dict[int, list[str]] = {}
        async for part in snapshots._connections(ConnectionsQuery(with_subs=True), Pace()):
            assert part.total == 2
            for row in part.rows:
                assert len(row.subs) < PART_SUBSCRIPTIONS + STEP_SLOTS
                found.setdefault(row.cid, []).extend(sub.subject for sub in row.subs)
        assert {cid: sorted(subjects) for cid, subjects in found.items()} == {
            1: sorted(f"a.{number}" for number in range(count)),
            2: ["b"],
        }
    finally:
        one.close()


class Router:
    """The router's end of the control channel: asks, and reads as fast as it is told to."""

    def __init__(self) -> None:
        self.said: list[SnapshotReply] = []
        self.pending_bytes = 0
        self.is_closed = False
        self.has_said = asyncio.Event()

    def send(self, reply: SnapshotReply) -> None:
        self.said.append(reply)
        self.has_said.set()

    async def wait_last(self, seq: int) -> list[SnapshotReply]:
        """The whole answer to that question."""
        async with asyncio.timeout(WITHIN_S):
            while True:
                found = [reply for reply in self.said if reply.seq == seq]
                if found and found[-1].is_last:
                    return found
                self.has_said.clear()
                await self.has_said.wait()


class Asked:
    """A shard with clients, and the router that asks it."""

    def __init__(self, imports: tuple[Import, ...] = ()) -> None:
        """`imports`: streams that B has of A."""
        self.one = OneShard(
            Options(
                accounts=(
                    Account("A", exports=tuple(Export(one.subject, is_service=False) for one in imports)),
                    Account("B", imports=imports),
                ),
                users=(User("ann", "x", account="A"), User("bob", "x", account="B")),
            )
        )
        self.router = Router()
        self.seq = 0
        shard = self.one.shard
        self.snapshots = Snapshots(
            channel=self.router,  # type: ignore[arg-type]
            clients=shard.clients,
            mesh=shard.mesh,
            fanout=shard.fanout,
            services=shard.imports_exports.service_imports,
        )

    async def client(self, user: str, words: bytes = b"", name: str = "") -> Client:
        client = self.one.connect()
        login = b'CONNECT {"verbose":false,"user":"%b","pass":"x","name":"%b"}\r\n' % (user.encode(), name.encode())
        await client.talk(login + words + b"PING\r\n")
        return client

    def ask(self, query: rows.Query) -> int:
        self.seq += 1
        self.snapshots.answer(Snapshot(self.seq, query))
        return self.seq

    async def parts(self, query: rows.Query, kind: type[Part]) -> list[Part]:
        """The answer, as the router reads it."""
        *replies, last = await self.router.wait_last(self.ask(query))
        assert last.body == b""
        return [msgspec.msgpack.decode(reply.body, type=kind) for reply in replies]

    async def part(self, query: rows.Query, kind: type[Part]) -> Part:
        (found,) = await self.parts(query, kind)
        return found


@pytest_asyncio.fixture
async def asked() -> AsyncIterator[Asked]:
    asked = Asked()
    yield asked
    asked.one.close()


async def cids(asked: Asked, **words: Any) -> list[int]:
    part = await asked.part(ConnectionsQuery(**words), rows.ConnectionsPart)
    return [row.cid for row in part.rows]


async def test_connections_are_chosen_and_sorted(asked: Asked) -> None:
    quiet = await asked.client("ann", name="quiet")
    await asked.client("bob", b"PUB a 1\r\nx\r\nPUB a 1\r\nx\r\n", name="loud")
    await asked.client("ann", b"PUB a 1\r\nx\r\n")
    assert await cids(asked) == [1, 2, 3]
    assert await cids(asked, most=2) == [1, 2]
    assert await cids(asked, sort="msgs_from") == [2, 3, 1]
    assert await cids(asked, sort="msgs_from", most=1) == [2]
    assert await cids(asked, user="ann") == [1, 3]
    assert await cids(asked, account="B") == [2]
    assert await cids(asked, search="LOU") == [2]
    assert await cids(asked, cid=3) == [3]
    assert await cids(asked, cid=4) == []
    assert await cids(asked, cid=2, account="A") == await cids(asked, cid=2, user="ann") == []
    assert await cids(asked, cid=2, account="B", user="bob") == [2]
    assert await cids(asked, cids=[1, 2, 3], account="A") == [1, 3]
    assert await cids(asked, state="closed") == []
    quiet.close()
    await asked.client("bob")  # its PONG is behind the end of the other
    assert await cids(asked) == [2, 3, 4]
    assert await cids(asked, state="closed") == [1]
    assert await cids(asked, state="all") == [1, 2, 3, 4]
    assert await cids(asked, state="closed", cid=1) == [1]


async def test_of_open_connections_those_are_chosen_that_subscribe_to_some_of_a_subject(asked: Asked) -> None:
    await asked.client("ann", b"SUB foo.* 1\r\nSUB x 2\r\n")
    await asked.client("bob", b"SUB foo.a q 1\r\n")
    await asked.client("ann")
    many = b"".join(b"SUB many.%d %d\r\n" % (number, number) for number in range(2 * STEP_SLOTS))
    (await asked.client("ann", many + b"SUB foo.b 9999\r\n")).close()
    await asked.client("ann", many + b"SUB foo.b 9999\r\n")
    assert await cids(asked, subject="foo.b") == [1, 5]
    assert await cids(asked, subject="foo.b", sort="subs") == [5, 1]
    assert await cids(asked, subject="foo.>", most=2) == [1, 2]
    assert await cids(asked, subject="foo.>", account="B") == [2]
    assert await cids(asked, subject="foo.b", cid=1) == [1]
    assert await cids(asked, subject="foo.b", cid=2) == []
    assert await cids(asked, subject="foo.b", cids=[1, 2, 3, 5]) == [1, 5]
    assert await cids(asked, subject="foo.b", state="all") == [1, 4, 5]  # closed ones are not looked at
    assert await cids(asked, subject="foo.b", state="closed") == [4]


class Steps(Pace):
    """Adds up what is done between two pauses."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.compared = self.read = self.looks = self.reads = 0
        self.most_compared = self.most_read = self.most_looks = self.most_reads = 0
        overlaps = SubjectPattern.overlaps

        def counted(pattern: SubjectPattern, other: str) -> bool:
            self.compared += len(other)
            self.looks += 1
            self.most_compared = max(self.most_compared, self.compared)
            self.most_looks = max(self.most_looks, self.looks)
            return overlaps(pattern, other)

        monkeypatch.setattr(SubjectPattern, "overlaps", counted)
        for name in ("subscriptions", "matching"):
            monkeypatch.setattr(census, name, self.reading(getattr(census, name)))

    def reading(self, read: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any) -> Any:
            found = read(*args)
            self.reads += 1
            self.most_reads = max(self.most_reads, self.reads)
            for row in found[0]:
                fields = row[-1] if isinstance(row[-1], tuple) else row
                self.read += sum(map(len, fields[:3]))
            self.most_read = max(self.most_read, self.read)
            return found

        return counted

    async def __call__(self) -> None:
        self.compared = self.read = self.looks = self.reads = 0


@pytest.mark.parametrize("words", [{}, {"cid": 1}, {"cids": [1]}, {"sort": "subs"}])
async def test_long_subjects_are_compared_with_a_pattern_a_few_at_a_time(
    asked: Asked, monkeypatch: pytest.MonkeyPatch, words: dict[str, Any]
) -> None:
    await asked.client("ann", long_subscriptions(100))
    steps = Steps(monkeypatch)
    parts = asked.snapshots._connections(ConnectionsQuery(subject=f"{LONG}.*", **words), steps)
    assert [part.rows async for part in parts] == [[]]
    assert len(LONG) < steps.most_compared <= steps.most_read <= STEP_TEXT + len(LONG)


async def test_of_many_clients_few_subscriptions_are_compared_with_a_pattern_at_a_time(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(STEP_ROWS):
        await asked.client("ann", subscriptions(100))
    steps = Steps(monkeypatch)
    parts = asked.snapshots._connections(ConnectionsQuery(subject="b"), steps)
    assert [part.rows async for part in parts] == [[]]
    assert 1 < steps.most_looks <= STEP_TEXT // STEP_OF_ONE


async def test_a_pattern_longer_than_any_subject_is_compared_with_none(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = asked.one.shard.clients.most_subject_bytes
    await asked.client("ann", b"SUB > 1\r\n")
    steps = Steps(monkeypatch)
    for size, found in ((most, 1), (most + 1, 0)):
        parts = asked.snapshots._connections(ConnectionsQuery(subject="s" * size), steps)
        assert [len(part.rows) async for part in parts] == [found]
    assert steps.most_looks == 1


async def test_subscriptions_that_a_subject_matches_are_read_a_few_at_a_time(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    same = b"".join(f"SUB found q {number}{LONG}\r\n".encode() for number in range(100))
    for user in ("ann", "bob"):
        await asked.client(user, same)
    steps = Steps(monkeypatch)
    parts = [part async for part in asked.snapshots._subscriptions(rows.SubscriptionsQuery(test="found"), steps)]
    assert sum(len(part.rows) for part in parts) == 200
    assert len(LONG) < steps.most_read < STEP_TEXT + 2 * len(LONG)
    assert steps.most_reads == 1, "each account's in a step of its own"


async def test_a_page_of_too_many_subscriptions_says_so(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_SUBSCRIPTIONS", 5)
    await asked.client("ann", subscriptions(5))
    (whole,) = await asked.parts(ConnectionsQuery(with_subs=True), rows.ConnectionsPart)
    assert not whole.is_over
    await asked.client("ann", subscriptions(1))
    *_, last = await asked.parts(ConnectionsQuery(with_subs=True), rows.ConnectionsPart)
    assert last.is_over and last.rows == []


def subscriptions(count: int) -> bytes:
    return b"".join(b"SUB a.%d %d\r\n" % (number, number) for number in range(count))


async def test_a_page_of_subscriptions_goes_over_clients(asked: Asked) -> None:
    for user in ("ann", "bob", "ann"):
        await asked.client(user, subscriptions(3))

    async def listed(**words: Any) -> tuple[int, list[tuple[int, str]]]:
        parts = await asked.parts(rows.SubscriptionsQuery(**words), rows.SubscriptionsPart)
        return parts[-1].total, [(row.cid, row.subject) for part in parts for row in part.rows]

    total, every = await listed()
    assert (total, sorted(every)) == (9, [(cid, f"a.{number}") for cid in (1, 2, 3) for number in range(3)])
    assert [cid for cid, _ in every] == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert await listed(offset=2, most=4) == (6, every[2:6])  # the third client was not looked at
    assert await listed(offset=4, most=3) == (9, every[4:7])
    assert await listed(offset=9) == await listed(offset=100) == (9, [])
    assert await listed(account="A", offset=2, most=2) == (6, [every[2], every[6]])
    total, found = await listed(test="a.1")
    assert (total, sorted(found)) == (3, [(1, "a.1"), (2, "a.1"), (3, "a.1")])
    assert len((await listed(test="a.1", offset=1, most=1))[1]) == 1
    assert await listed(test="a.1", account="B") == (1, [(2, "a.1")])
    assert await listed(test="b") == (0, [])


async def test_counters_of_one_account_or_of_all(asked: Asked) -> None:
    await asked.client("ann", b"SUB a 1\r\nSUB a 2\r\nSUB b 3\r\nUNSUB 3\r\nPUB a 0\r\n\r\n")
    await asked.client("bob", b"SUB a 1\r\nPUB a 0\r\n\r\n")
    both = await asked.part(rows.SublistQuery(), rows.SublistPart)
    assert (both.subscriptions, both.inserts, both.removes, both.clients) == (3, 4, 1, 2)
    assert (both.lookups, both.misses, both.cached, both.widest, both.widths) == (2, 2, 2, 2, 3)
    one = await asked.part(rows.SublistQuery("B"), rows.SublistPart)
    assert (one.subscriptions, one.inserts, one.removes, one.clients, one.widest) == (1, 1, 0, 1, 1)


async def test_accounts_count_who_is_there_and_who_has_left(asked: Asked) -> None:
    gone = await asked.client("ann", b"PUB a 3\r\nxyz\r\n")
    gone.close()
    await asked.client("ann", b"SUB a 1\r\nPUB a 2\r\nhi\r\n")
    part = await asked.part(rows.AccountsQuery(), rows.AccountsPart)
    (row,) = [row for row in part.rows if row.name == "A"]
    assert (row.connections, row.in_msgs, row.in_bytes, row.out_msgs, row.out_bytes) == (1, 2, 5, 1, 2)


@pytest.mark.parametrize("is_open", [True, False])
async def test_of_accounts_only_those_that_were_asked_for_are_told(asked: Asked, is_open: bool) -> None:
    for user in ("ann", "bob"):
        client = await asked.client(user, b"PUB a 3\r\nxyz\r\n")
        if not is_open:
            client.close()
    await asked.client("ann")  # its PONG is behind the ends of the others
    part = await asked.part(rows.AccountsQuery(names=("B",)), rows.AccountsPart)
    assert [(row.name, row.connections, row.in_msgs) for row in part.rows] == [("B", int(is_open), 1)]


async def test_who_leaves_while_accounts_are_counted_is_counted_once(asked: Asked) -> None:
    clients = [await asked.client("ann", b"PUB a 1\r\nx\r\n") for _ in range(2 * STEP_ROWS)]
    leaving = [clients[0], clients[-1]]

    class Leaves(Pace):
        """Two of them leave in the first step."""

        async def __call__(self) -> None:
            for client in leaving:
                client.close()
            leaving.clear()
            await asked.client("bob")  # its PONG is behind the ends of the others

    parts = [part async for part in asked.snapshots._accounts(rows.AccountsQuery(), Leaves())]
    (row,) = [row for part in parts for row in part.rows if row.name == "A"]
    assert row.in_msgs == row.in_bytes == 2 * STEP_ROWS


async def test_accounts_are_told_with_who_has_left_and_come_and_is_coming(asked: Asked) -> None:
    for user in ("ann", "bob", "ann", "bob"):
        await asked.client(user)
    clients = asked.one.shard.clients
    for cid in (1, 2):
        clients.open[cid].came_from, clients.open[cid].moved_us = 3, 7
        clients.passing.come(cid, 3, 7)
    for cid in (3, 4):
        clients.passing.leave(connection_row(clients.open[cid], 0), 2)
    gone = [clients.open.pop(cid) for cid in (3, 4)]
    clients._expected[9] = clients.open[1]
    part = await asked.part(rows.AccountsQuery(names=("A",)), rows.AccountsPart)
    assert [(row.name, row.connections) for row in part.rows] == [("A", 1)]
    assert part.left == [rows.PassingRow(3, 2, 0, "A")]
    assert (part.came, part.coming) == ([rows.PassingRow(1, 3, 7, "A")], [])
    part = await asked.part(rows.AccountsQuery(cids=[2, 4, 9, 8]), rows.AccountsPart)
    assert part.rows == []
    assert part.left == [rows.PassingRow(4, 2, 0, "B")]
    assert (part.came, part.coming) == ([rows.PassingRow(2, 3, 7, "B")], [9])
    del clients._expected[9]
    clients.open |= {session.connection.cid: session for session in gone}


async def test_the_rows_of_many_accounts_come_in_parts(asked: Asked) -> None:
    closed = asked.one.shard.clients.closed.by_account
    closed |= {f"A{number}": rows.AccountRow(f"A{number}", in_msgs=number) for number in range(3 * PART_ROWS + 1)}
    parts = await asked.parts(rows.AccountsQuery(), rows.AccountsPart)
    assert [len(part.rows) for part in parts] == [PART_ROWS] * 3 + [1]
    assert [row for part in parts for row in part.rows] == list(closed.values())


async def test_members_of_queue_groups_and_whether_there_are_more(asked: Asked) -> None:
    await asked.client("ann", b"SUB a q 1\r\nSUB a 2\r\nPUB a 0\r\n\r\n", name="worker")
    await asked.client("bob", b"SUB b r 7\r\n")
    part = await asked.part(rows.QueuesQuery(), rows.QueuesPart)
    assert [(row.subject, row.queue, row.sid, row.msgs, row.cid, row.name) for row in part.rows] == [
        ("a", "q", "1", 1, 1, "worker"),
        ("b", "r", "7", 0, 2, ""),
    ]
    assert not part.is_over
    part = await asked.part(rows.QueuesQuery(most=1), rows.QueuesPart)
    assert [row.sid for row in part.rows] == ["1"] and part.is_over


async def test_the_heaviest_subjects_and_what_is_folded(asked: Asked) -> None:
    words = b"SUB a 1\r\n" + b"PUB a 1\r\nx\r\n" * 3 + b"PUB b 1\r\nx\r\n" * 2 + b"PUB c 1\r\nx\r\n"
    words += b"PUB _INBOX.1 1\r\nx\r\nPUB _INBOX.2 1\r\nx\r\n"
    await asked.client("ann", words)

    async def found(**words: Any) -> list[tuple[str, int, int, bool, int]]:
        part = await asked.part(rows.SubjectsQuery(**words), rows.SubjectsPart)
        assert part.cached == 5
        return [(row.subject, row.msgs, row.deliveries, row.is_wanted, row.folded) for row in part.rows]

    inboxes = ("_INBOX.>", 2, 0, False, 2)
    assert await found() == [("a", 3, 3, True, 0), ("b", 2, 0, False, 0), ("c", 1, 0, False, 0), inboxes]
    assert await found(most=2) == [("a", 3, 3, True, 0), ("b", 2, 0, False, 0), inboxes]
    assert len(await found(fold="")) == 5


async def test_subjects_of_one_name_in_utf_8_are_counted_together(asked: Asked) -> None:
    await asked.client("ann", b"SUB x.* 1\r\n" + b"PUB x.\xff 1\r\na\r\n" * 5 + b"PUB x.\xfe 1\r\na\r\n" * 7)
    part = await asked.part(rows.SubjectsQuery(), rows.SubjectsPart)
    assert [(row.subject, row.msgs, row.deliveries, row.is_wanted) for row in part.rows] == [("x.\ufffd", 12, 12, True)]


async def test_subjects_and_publishers_of_one_account_or_of_all(asked: Asked) -> None:
    for user in ("ann", "bob", "bob"):
        await asked.client(user, b"PUB a 1\r\nx\r\n")

    async def found(account: str) -> tuple[int, list[tuple[str, int]], list[int]]:
        part = await asked.part(rows.SubjectsQuery(account=account), rows.SubjectsPart)
        clients = await asked.part(rows.PublishersQuery(account, "a"), rows.PublishersPart)
        return part.cached, [(row.account, row.msgs) for row in part.rows], [row.cid for row in clients.rows]

    assert await found("") == (2, [("B", 2), ("A", 1)], [1, 2, 3])
    assert await found("A") == (1, [("A", 1)], [1])
    assert await found("B") == (1, [("B", 2)], [2, 3])
    assert await found("nobody") == (0, [], [])


async def test_who_is_behind_is_shown_with_what_it_subscribed_to(asked: Asked) -> None:
    behind = await asked.client("ann", b"SUB a 1\r\n")
    publisher = await asked.client("ann")
    publish = b"PUB a 60000\r\n" + b"x" * 60_000 + b"\r\n"
    await publisher.talk(publish * 50 + b"PING\r\n")  # more than a socket pair takes
    part = await asked.part(rows.SlowQuery(), rows.SlowPart)
    assert [(row.cid, [sub.subject for sub in row.subs]) for row in part.present] == [(1, ["a"])]
    assert part.present[0].pending_bytes > 65_536 and part.past == []
    part = await asked.part(rows.SlowQuery(least_pending_bytes=10_000_000), rows.SlowPart)
    assert part.present == []
    behind.close()


async def test_of_many_who_are_behind_those_with_most_bytes_pending_are_shown(asked: Asked) -> None:
    for words in (b"SUB a 1\r\n", b"SUB a 1\r\nSUB a 2\r\nSUB a 3\r\n", b"SUB a 1\r\nSUB a 2\r\n"):
        await asked.client("ann", words)
    publisher = await asked.client("ann")
    publish = b"PUB a 60000\r\n" + b"x" * 60_000 + b"\r\n"
    await publisher.talk(publish * 50 + b"PING\r\n")
    for most, wanted in (1, [2]), (2, [2, 3]), (9, [2, 3, 1]):
        part = await asked.part(rows.SlowQuery(most=most), rows.SlowPart)
        assert [row.cid for row in part.present] == wanted


LONG = "s" * 4000


def long_subscriptions(count: int) -> bytes:
    return b"".join(f"SUB {LONG}{number} q {number}\r\n".encode() for number in range(count))


@pytest.mark.parametrize(
    ("query", "kind"),
    [
        (ConnectionsQuery(with_subs=True), rows.ConnectionsPart),
        (rows.SubscriptionsQuery(), rows.SubscriptionsPart),
        (rows.SubscriptionsQuery(test="found"), rows.SubscriptionsPart),
        (rows.QueuesQuery(), rows.QueuesPart),
    ],
)
async def test_a_part_with_long_subjects_is_not_larger_than_others(
    asked: Asked, query: rows.Query, kind: type[rows.PageStruct]
) -> None:
    same = b"".join(f"SUB found q {number}{LONG}\r\n".encode() for number in range(100))
    await asked.client("ann", long_subscriptions(300) + same)
    replies = await asked.router.wait_last(asked.ask(query))
    assert sum(len(reply.body) for reply in replies) > 100 * len(LONG)
    assert max(len(reply.body) for reply in replies) < 3 * PART_SUBSCRIPTIONS * TEXT_OF_ONE
    parts = [msgspec.msgpack.decode(reply.body, type=kind) for reply in replies[:-1]]
    found = [row for part in parts for row in part.rows]  # type: ignore[attr-defined]
    if kind is rows.ConnectionsPart:
        found = [sub for row in found for sub in row.subs]
    told = 100 if isinstance(query, rows.SubscriptionsQuery) and query.test else 400
    assert len({row.sid for row in found}) == len(found) == told


@pytest.mark.parametrize(
    ("query", "kind"),
    [
        (ConnectionsQuery(with_subs=True), rows.ConnectionsPart),
        (rows.SubscriptionsQuery(), rows.SubscriptionsPart),
        (rows.SubscriptionsQuery(test="found"), rows.SubscriptionsPart),
    ],
)
async def test_a_page_has_fewer_long_subjects(
    asked: Asked, monkeypatch: pytest.MonkeyPatch, query: rows.Query, kind: type[Any]
) -> None:
    """Not 1,000 with 4 KB each where 1,000 with short ones are allowed."""
    monkeypatch.setattr(module, "MOST_SUBSCRIPTIONS", 1000)
    short = b"".join(b"SUB found %d\r\n" % number for number in range(500))
    client = await asked.client("ann", short)
    assert not any(part.is_over for part in await asked.parts(query, kind))
    same = b"".join(f"SUB found x{number}{LONG}\r\n".encode() for number in range(400))
    await client.talk(same + b"PING\r\n")
    replies = await asked.router.wait_last(asked.ask(query))
    assert msgspec.msgpack.decode(replies[-2].body, type=kind).is_over
    assert sum(len(reply.body) for reply in replies) < 5 * 1000 * TEXT_OF_ONE


async def test_closed_connections_have_their_subscriptions_where_they_are_asked_for(asked: Asked) -> None:
    client = await asked.client("ann", b"SUB a.> 1\r\nSUB b workers 2\r\n")
    client.close()
    await until(lambda: not asked.one.shard.clients.open)
    for with_subs in (True, False):
        query = ConnectionsQuery(state="closed", with_subs=with_subs)
        (reply, _last) = await asked.router.wait_last(asked.ask(query))
        assert (b"workers" in reply.body) is with_subs
        (row,) = msgspec.msgpack.decode(reply.body, type=rows.ConnectionsPart).rows
        assert (row.subscriptions, row.packed_subs) == (2, b"")
        told = {("a.>", "", "1"), ("b", "workers", "2")} if with_subs else set()
        assert {(sub.subject, sub.queue, sub.sid) for sub in row.subs} == told


async def test_slow_consumers_with_long_subjects_fit_into_a_message(asked: Asked) -> None:
    behind = [await asked.client("ann", b"SUB a 1\r\n" + long_subscriptions(50)) for _ in range(STEP_ROWS)]
    publisher = await asked.client("ann")
    publish = b"PUB a 60000\r\n" + b"x" * 60_000 + b"\r\n"
    await publisher.talk(publish * 50 + b"PING\r\n")
    (reply, _last) = await asked.router.wait_last(asked.ask(rows.SlowQuery()))
    part = msgspec.msgpack.decode(reply.body, type=rows.SlowPart)
    assert len(part.present) == len(behind) == STEP_ROWS
    assert all(0 < sum(len(sub.subject) for sub in row.subs) <= SLOW_TEXT for row in part.present)


async def test_one_without_links_has_none(asked: Asked) -> None:
    assert (await asked.part(rows.LinksQuery(), rows.LinksPart)).rows == []
    assert await asked.parts(rows.HotSubjectsQuery(), rows.HotSubjectsPart) == [], "nothing is recorded"


@pytest.mark.parametrize("is_kicked", [True, False])
async def test_a_client_is_told_to_go_or_made_to(asked: Asked, is_kicked: bool) -> None:
    client = asked.one.connect()
    await client.talk(b'CONNECT {"verbose":false,"user":"ann","pass":"x","protocol":1}\r\nPING\r\n')
    assert (await asked.part(rows.ClientQuery(1, is_kicked), rows.ClientPart)).is_found
    said = await client.wait(b"INFO ")
    assert client.is_over is is_kicked
    if not is_kicked:
        assert b'"ldm":true' in (said if b"\r\n" in said else said + await client.wait(b"\r\n"))
    assert await asked.part(rows.ClientQuery(2, is_kicked), rows.ClientPart) == rows.ClientPart(False)


async def test_a_command_to_a_client_that_moves_says_so(asked: Asked) -> None:
    await asked.client("ann")
    clients = asked.one.shard.clients
    clients.passing.leave(connection_row(clients.open[1], 0), 3)
    session = clients.open.pop(1)
    assert await asked.part(rows.ClientQuery(1), rows.ClientPart) == rows.ClientPart(False, has_left=True)
    clients._expected[1] = session
    assert (await asked.part(rows.ClientQuery(1), rows.ClientPart)).is_coming
    clients.open[1] = clients._expected.pop(1)


async def test_what_matches_a_subject_by_several_streams_of_one_subscription_is_listed_once_on_all_pages() -> None:
    """Slices and pages begin between the streams of a subscription."""
    imports = tuple(Import("A", subject, is_service=False, to=subject) for subject in ("s.*", "s.a", "*.a"))
    asked = Asked(imports)
    try:
        count = STEP_SLOTS  # of each stream; so the second one begins in the second slice
        words = b"".join(b"SUB > %d\r\n" % number for number in range(count))
        await asked.client("bob", words)
        expected = sorted((str(number), one.subject) for number in range(count) for one in imports)
        for most in (len(expected), count // 3):
            found = []
            for offset in range(0, len(expected) + most, most):
                query = rows.SubscriptionsQuery(offset, most, "s.a", "A")
                for part in await asked.parts(query, rows.SubscriptionsPart):
                    assert part.total == len(expected)
                    found += [(row.sid, row.subject, row.stream) for row in part.rows]
            assert sorted((sid, subject) for sid, subject, _ in found) == expected, most
            assert len(set(found)) == len(expected)
    finally:
        asked.one.close()


async def test_questions_are_answered_in_their_order_and_no_more_than_may_wait(asked: Asked) -> None:
    numbers = [asked.ask(rows.LinksQuery()) for _ in range(MOST_WAITING + 1)]
    # What is one too many is answered with nothing, at once.
    assert asked.router.said == [SnapshotReply(numbers[-1], b"")]
    await asked.router.wait_last(numbers[-2])
    ends = [reply.seq for reply in asked.router.said if reply.is_last]
    assert ends == [numbers[-1], *numbers[:-1]]


async def test_a_page_that_cannot_be_built_is_logged_and_the_next_one_is(
    asked: Asked, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("of the test")

    await asked.client("ann")
    monkeypatch.setattr(census, "matching", fail)
    broken, good = asked.ask(rows.SubscriptionsQuery(test="a")), asked.ask(rows.LinksQuery())
    assert len(await asked.router.wait_last(good)) == 2
    assert [reply.body for reply in await asked.router.wait_last(broken)] == [b""]
    assert "cannot build subscriptions" in caplog.text


async def test_a_router_that_does_not_read_is_not_sent_more(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    polled = asyncio.Event()
    sleep = asyncio.sleep

    async def poll(seconds: float) -> None:
        if seconds == UNREAD_POLL_S:
            polled.set()
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", poll)
    await asked.client("ann", subscriptions(3 * PART_SUBSCRIPTIONS))
    asked.router.pending_bytes = MOST_UNREAD_BYTES + 1
    seq = asked.ask(rows.SubscriptionsQuery())
    await asyncio.wait_for(polled.wait(), WITHIN_S)
    assert len(asked.router.said) == 1
    asked.router.pending_bytes = 0
    assert len(await asked.router.wait_last(seq)) > 2


async def test_those_that_came_from_another_shard_are_in_order_and_the_coming_are_named() -> None:
    asked = Asked()
    try:
        for name in ("a", "b", "c"):
            await asked.client("ann", name=name)
        clients = asked.one.shard.clients
        # As after a move: a client with a lower id is the last in the dictionary.
        clients.open[1] = clients.open.pop(1)
        clients.passing.come(1, 3, 7)
        clients._expected[9] = clients.open[2]
        (part,) = await asked.parts(ConnectionsQuery(most=2), rows.ConnectionsPart)
        assert [row.cid for row in part.rows] == [1, 2]
        assert (part.total, part.came, part.coming) == (3, [(1, 3, 7)], [])
        (part,) = await asked.parts(ConnectionsQuery(cids=[9, 3, 8]), rows.ConnectionsPart)
        assert ([row.cid for row in part.rows], part.coming) == ([3], [9])
        del clients._expected[9]
    finally:
        asked.one.close()


async def test_of_a_client_with_many_subscriptions_some_are_enough() -> None:
    asked = Asked()
    try:
        count = 4 * PART_SUBSCRIPTIONS
        await asked.client("ann", b"".join(b"SUB a.%d %d\r\n" % (number, number) for number in range(count)))
        query = ConnectionsQuery(cid=1, with_subs=True, most_subs=PART_SUBSCRIPTIONS)
        parts = await asked.parts(query, rows.ConnectionsPart)
        listed = sum(len(row.subs) for part in parts for row in part.rows)
        assert PART_SUBSCRIPTIONS <= listed < PART_SUBSCRIPTIONS + STEP_SLOTS
        assert not any(part.is_over for part in parts)
    finally:
        asked.one.close()


async def test_clients_that_publish_to_a_subject_are_named() -> None:
    asked = Asked()
    try:
        await asked.client("ann", b"PUB other 1\r\nx\r\nPUB s 1\r\nx\r\n", name="latest")
        await asked.client("ann", b"PUB s 1\r\nx\r\nPUB other 1\r\nx\r\n", name="earlier")
        await asked.client("bob", b"PUB s 1\r\nx\r\n", name="of another account")
        (part,) = await asked.parts(rows.PublishersQuery("A", "s"), rows.PublishersPart)
        assert [(row.name, row.in_msgs) for row in part.rows] == [("latest", 2)]
        (part,) = await asked.parts(rows.PublishersQuery("A", "nothing"), rows.PublishersPart)
        assert part.rows == []
    finally:
        asked.one.close()
