"""One shard's part of a monitoring page: its own connections, subscriptions, subjects and links, as rows.

Built in slices, so that even a long page does not block the loop; each row shows the state at the time it was made.
Questions are answered one at a time, and building pauses while the router has not read enough, so memory stays
bounded. Called by the worker with the router's questions.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import msgspec

from gnatswarm.broker import census
from gnatswarm.broker.placement_rules import SubjectPattern
from gnatswarm.shards.boundary import rows
from gnatswarm.shards.boundary.control import SnapshotReply
from gnatswarm.shards.boundary.pace import Pace
from gnatswarm.shards.boundary.rows import ConnectionRow, DueReplyRow, QueueRow, SubjectRow, SubscriptionRow
from gnatswarm.shards.boundary.utf8_text import utf8_replaced
from gnatswarm.shards.boundary.wall_clock import wall_offset_us
from gnatswarm.shards.clients.closed import busiest_and_some, connection_row, unpacked
from gnatswarm.shards.monitoring.hot_subjects import hot_subjects, subject_interest

if TYPE_CHECKING:
    from gnatswarm.broker.census_counts import FoldedCounts
    from gnatswarm.broker.fanout import Fanout
    from gnatswarm.broker.mesh import Mesh
    from gnatswarm.broker.service_imports import ServiceImports
    from gnatswarm.broker.service_latency import Measured
    from gnatswarm.broker.sublist import Sublist
    from gnatswarm.shards.boundary.control import Channel, Snapshot
    from gnatswarm.shards.clients.clients import Clients
    from gnatswarm.shards.clients.session import ClientSession
    from gnatswarm.shards.links.links import Links
    from gnatswarm.shards.statistics.recorder import Recorder

logger = logging.getLogger("gnatswarm.monitoring")

# Encoding so many rows takes a fifth of a slice (0.8 µs each).
PART_ROWS = 64
PART_SUBSCRIPTIONS = 256
# A subscription with long texts counts as several, one more for so many characters: a subject may have 128 KB, a
# message to the router 16 MB, and 200,000 subscriptions with subjects of 4 KB would take 800 MB in the router.
TEXT_OF_ONE = 256
# Work of one step: some 100 µs.
STEP_ROWS = 32
STEP_SLOTS = 256
# Characters of subscriptions that one step reads, or compares with a pattern; beside its text a subscription costs as
# much as STEP_OF_ONE more.
STEP_TEXT = 4096
STEP_OF_ONE = 64
# Of these each subscription may get streams of many accounts.
STEP_IMPORTERS = 16
# Characters of subscriptions of one slow consumer.
SLOW_TEXT = 16_384
STEP_CACHE_SLOTS = 1024
# Rows sorted in one step; the sorted runs are then merged.
RUN_ROWS = 128
# One answer of /connz lists no more subscriptions than this; /subsz shows them page by page.
MOST_SUBSCRIPTIONS = 200_000
# A Pong to the router waits behind at most this much of a page.
MOST_UNREAD_BYTES = 1024 * 1024
UNREAD_POLL_S = 0.005
# The router asks one question at a time; more than this waiting is a bug in the router.
MOST_WAITING = 64


class Snapshots:
    """Answers the router's questions about one shard, in the order they came."""

    def __init__(
        self,
        *,
        channel: Channel,
        clients: Clients,
        mesh: Mesh,
        fanout: Fanout,
        links: Links | None = None,
        recorder: Recorder | None = None,
        leafs: Callable[[bool], Iterable[rows.LeafRow | None]] = lambda _subs: (),
        moves: Callable[[], rows.MovesPart] = rows.MovesPart,
        routes: Callable[[bool], Iterable[rows.RouteRow | None]] = lambda _with_subs: (),
        services: ServiceImports | None = None,
        own_subscriptions: Callable[[str], int] = lambda _account: 0,
    ) -> None:
        """`leafs` and `routes` also give None, where others may be served before the next row.

        `own_subscriptions`: how many of an account's, or with "" of all, are the broker's own, and are not counted.
        """
        self._own_subscriptions = own_subscriptions
        self._services = services  # None: there are none
        self._leafs = leafs
        self._moves = moves
        self._routes = routes
        self._channel = channel
        self._clients = clients
        self._mesh = mesh
        self._fanout = fanout
        self._links = links
        self._waiting: deque[Snapshot] = deque()
        self._task: asyncio.Task[None] | None = None
        self._recorder = recorder  # None: nothing is recorded
        self.longest_s = 0.0  # the longest that any answer has blocked the loop

    def use(self, channel: Channel) -> None:
        """Another router has taken over: answer on this channel, and no question of the dead one."""
        self._channel = channel
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()

    def answer(self, question: Snapshot) -> None:
        """Answer it when its turn comes."""
        if len(self._waiting) >= MOST_WAITING:
            self._channel.send(SnapshotReply(question.seq, b""))
            return
        self._waiting.append(question)
        if self._task is None:
            self._start()

    def _start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._work())
        self._task.add_done_callback(self._on_done)

    async def _work(self) -> None:
        while self._waiting:
            question = self._waiting[0]
            query = question.query
            pace = Pace()
            async for part in self._parts(query, pace):
                self._channel.send(SnapshotReply(question.seq, rows.encode_part(part), is_last=False))
                # Rare, and the channel has no event for it.
                while self._channel.pending_bytes > MOST_UNREAD_BYTES and not self._channel.is_closed:  # noqa: ASYNC110
                    await asyncio.sleep(UNREAD_POLL_S)
                await pace()
            self.longest_s = max(self.longest_s, pace.longest_s)
            logger.debug("%s took %d slices, the longest of %.2f ms CPU", query.page, pace.slices, pace.longest_s * 1e3)
            self._channel.send(SnapshotReply(question.seq, b""))
            self._waiting.popleft()

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled() and task.exception() is not None:
            # A page that cannot be built must not end the shard: log the error and send no rows.
            question = self._waiting.popleft()
            logger.error("cannot build %s", question.query.page, exc_info=task.exception())
            self._channel.send(SnapshotReply(question.seq, b""))
        if self._waiting:
            self._start()

    def _parts(self, query: rows.Query, pace: Pace) -> AsyncIterator[rows.Part]:
        match query:
            case rows.ConnectionsQuery():
                return self._connections(query, pace)
            case rows.SubscriptionsQuery():
                return self._subscriptions(query, pace)
            case rows.SublistQuery():
                return self._sublist_counters(query, pace)
            case rows.SubjectsQuery():
                return self._subjects(query, pace)
            case rows.HotSubjectsQuery():
                return _nothing() if self._recorder is None else hot_subjects(query, self._mesh, self._recorder, pace)
            case rows.SubjectInterestQuery():
                return subject_interest(query, self._mesh, self._clients, pace)
            case rows.QueuesQuery():
                return self._queues(query, pace)
            case rows.SlowQuery():
                return self._slow(query, pace)
            case rows.LinksQuery():
                return self._link_rows()
            case rows.LeafsQuery():
                return self._leaf_rows(query, pace)
            case rows.RoutesQuery():
                return self._route_rows(query, pace)
            case rows.AccountsQuery():
                return self._accounts(query, pace)
            case rows.DeniedQuery():
                return self._denied()
            case rows.ClientQuery():
                return self._client(query)
            case rows.PublishersQuery():
                return self._publishers(query, pace)
            case rows.MovesQuery():
                return self._move_counts()
            case rows.StacksQuery():
                return _stacks()

    def _sublists(self, account: str = "") -> list[Sublist]:
        """The sublists of one account, or of all."""
        names = self._mesh.account_names()
        return [self._mesh.account(name) for name in names if not account or name == account.encode()]

    # ---- connections

    async def _connections(self, query: rows.ConnectionsQuery, pace: Pace) -> AsyncIterator[rows.ConnectionsPart]:
        total = await self._total(query, pace)
        part = rows.ConnectionsPart(total, [], counted_us=time.time_ns() // 1000)
        if query.state != "closed":
            passing = self._clients.passing
            part.left = [
                (shard, row)
                for shard, row in passing.left
                if (not query.cids or row.cid in query.cids) and _is_of_account(row.account, query)
            ]
            part.came = [
                (cid, shard, moved_us)
                for cid, shard, moved_us in passing.came
                if (session := self._clients.open.get(cid)) is not None and _is_of_account(session.account, query)
            ]
            part.coming = [cid for cid in query.cids if self._clients.is_expected(cid)]
        listed = weighed = waiting = 0
        for row in await self._chosen(query, pace):
            if not query.with_subs:
                part.rows.append(msgspec.structs.replace(row, packed_subs=b"") if row.packed_subs else row)
            else:
                session = self._clients.open.get(row.cid)
                async for piece, weight in _with_subscriptions(row, session, pace):
                    part.rows.append(piece)
                    listed += len(piece.subs)
                    weighed += weight
                    waiting += weight
                    if waiting >= PART_SUBSCRIPTIONS:
                        yield part
                        part, waiting = rows.ConnectionsPart(total, []), 0
                    if query.most_subs and listed >= query.most_subs:
                        yield part
                        return
                    if weighed > MOST_SUBSCRIPTIONS:
                        yield rows.ConnectionsPart(total, [], is_over=True)
                        return
            if len(part.rows) >= PART_ROWS:
                yield part
                part, waiting = rows.ConnectionsPart(total, []), 0
            await pace()
        yield part

    async def _total(self, query: rows.ConnectionsQuery, pace: Pace) -> int:
        """How many there are in that state, of the account if one is asked for; the rest of the query chooses rows."""
        sessions = list(self._clients.open.values()) if query.state != "closed" else []
        closed = list(self._clients.closed.latest) if query.state != "open" else []
        if not query.account:
            return len(sessions) + len(closed)
        total = 0
        for at in range(0, len(sessions), RUN_ROWS):
            total += sum(_is_of_account(one.account, query) for one in sessions[at : at + RUN_ROWS])
            await pace()
        for at in range(0, len(closed), RUN_ROWS):
            total += sum(_is_of_account(row.account, query) for row in closed[at : at + RUN_ROWS])
            await pace()
        return total

    async def _chosen(self, query: rows.ConnectionsQuery, pace: Pace) -> list[ConnectionRow]:
        """The chosen rows, in order; rows of open connections are without subscriptions."""
        subscribed = _Subscribed(query.subject, self._clients.most_subject_bytes, pace)
        if query.cid:
            session = self._clients.open.get(query.cid) if query.state != "closed" else None
            if session is not None:
                row = connection_row(session, wall_offset_us())
                is_found = rows.is_found(row, query) and await subscribed.has(session)
                return [row] if is_found else []
        runs: list[list[ConnectionRow]] = []
        key = rows.order(query.sort, query.now_us)
        if query.cids:
            known = [session for cid in query.cids if (session := self._clients.open.get(cid)) is not None]
            asked = [
                session for session in known if _is_of_account(session.account, query) and await subscribed.has(session)
            ]
            return sorted((connection_row(session, wall_offset_us()) for session in asked), key=key)
        if query.state != "closed" and not query.cid:
            # `open` is in the order of client ids and start times, but for those that have moved here: no need to look
            # at all connections.
            is_in_order = query.sort in ("cid", "start") and query.state == "open"
            sessions = list(self._clients.open.values())
            if is_in_order and self._clients.passing.has_come:
                sessions.sort(key=lambda one: (one.began_us if query.sort == "start" else 0, one.connection.cid))
            if is_in_order and not query.user and not query.account and not query.search and not query.subject:
                sessions = sessions[: query.most]
            offset_us = wall_offset_us()
            run: list[ConnectionRow] = []
            for at in range(0, len(sessions), STEP_ROWS):
                step = [(connection_row(session, offset_us), session) for session in sessions[at : at + STEP_ROWS]]
                step = [(row, session) for row, session in step if rows.is_found(row, query)]
                if query.subject:
                    step = [one for one in step if await subscribed.has(one[1])]
                run += [row for row, _session in step]
                if len(run) >= RUN_ROWS and not is_in_order:
                    run.sort(key=key)
                    runs.append(run)
                    run = []
                await pace()
            if is_in_order:
                return run[: query.most]
            run.sort(key=key)
            runs.append(run)
        if query.state != "open":
            closed = list(self._clients.closed.latest)
            for at in range(0, len(closed), RUN_ROWS):
                run = [row for row in closed[at : at + RUN_ROWS] if rows.is_found(row, query)]
                run.sort(key=key)
                runs.append(run)
                await pace()
        chosen: list[ConnectionRow] = []
        for row in heapq.merge(*runs, key=key):
            if len(chosen) >= query.most:
                break
            chosen.append(row)
            if len(chosen) % STEP_ROWS == 0:
                await pace()
        return chosen

    async def _accounts(self, query: rows.AccountsQuery, pace: Pace) -> AsyncIterator[rows.AccountsPart]:
        # At once: whoever ends from here on is not in the sums of those who have ended, and is counted below.
        names = frozenset(query.names)
        first = self._moving(query, names)
        if query.cids:
            yield first
            return
        found = {
            name: msgspec.structs.replace(row)
            for name, row in self._clients.closed.by_account.items()
            if not names or name in names
        }
        sessions = [
            session
            for session in (self._clients.open.values() if query.counts_clients else ())
            if session.account and not session.reason and (not names or session.account in names)
        ]
        for name, count in Counter(session.account for session in sessions).items():
            found.setdefault(name, rows.AccountRow(name)).connections = count
        unwanted = list(self._recorder.unwanted_msgs.items()) if self._recorder is not None else []
        unwanted = [(name, count) for name, count in unwanted if not names or name in names]
        await pace()
        for at in range(0, len(unwanted), STEP_SLOTS):
            for name, unwanted_msgs in unwanted[at : at + STEP_SLOTS]:
                found.setdefault(name, rows.AccountRow(name)).unwanted_msgs = unwanted_msgs
            await pace()
        for at in range(0, len(sessions), STEP_ROWS):
            for session in sessions[at : at + STEP_ROWS]:
                connection = session.connection
                row = found.setdefault(session.account, rows.AccountRow(session.account))
                if session.reason or connection.cid in self._clients.open:
                    row.in_msgs += connection.in_msgs
                    row.in_bytes += connection.in_bytes
                    row.out_msgs += connection.out_msgs
                    row.out_bytes += connection.out_bytes
                else:  # it has moved to another shard meanwhile
                    row.left_in_msgs += connection.in_msgs
                    row.left_in_bytes += connection.in_bytes
                    row.left_out_msgs += connection.out_msgs
                    row.left_out_bytes += connection.out_bytes
            await pace()
        sublists = self._sublists() if query.counts_clients else []
        for at in range(0, len(sublists), STEP_SLOTS):
            for sublist in sublists[at : at + STEP_SLOTS]:
                name = sublist.account.decode()
                count = sublist.n_subs - self._own_subscriptions(name)
                if count > 0 and (not names or name in names):
                    found.setdefault(name, rows.AccountRow(name)).subscriptions = count
            await pace()
        accounts = list(found.values())
        first.rows = accounts[:PART_ROWS]
        yield first
        for at in range(PART_ROWS, len(accounts), PART_ROWS):
            yield rows.AccountsPart(accounts[at : at + PART_ROWS])

    def _moving(self, query: rows.AccountsQuery, names: frozenset[str]) -> rows.AccountsPart:
        """Who has lately left this shard, and who has come; of `query.cids`, who is here and who is coming."""
        part = rows.AccountsPart([], counted_us=time.time_ns() // 1000)
        if not query.counts_clients:
            return part
        clients = self._clients
        asked = frozenset(query.cids)
        part.left = [
            rows.PassingRow(row.cid, to, row.moved_us, row.account)
            for to, row in clients.passing.left
            if row.account and (not names or row.account in names) and (not asked or row.cid in asked)
        ]
        known = query.cids or [cid for cid, _old, _us in clients.passing.came]
        part.came = [
            rows.PassingRow(cid, session.came_from, session.moved_us, session.account)
            for cid in dict.fromkeys(known)
            if (session := clients.open.get(cid)) is not None
            and session.account
            and not session.reason
            and (not names or session.account in names)
        ]
        part.coming = [cid for cid in query.cids if clients.is_expected(cid)]
        return part

    async def _denied(self) -> AsyncIterator[rows.DeniedPart]:
        yield rows.DeniedPart(self._clients.denials.rows)

    async def _publishers(self, query: rows.PublishersQuery, pace: Pace) -> AsyncIterator[rows.PublishersPart]:
        part = rows.PublishersPart([])
        sublists, subject = self._sublists(query.account), query.subject.encode()
        # Hash seeds differ between sublists, so a hash also identifies the account.
        found: set[int] = set()
        for at in range(0, len(sublists), STEP_SLOTS):
            found.update(census.subject_hash(sublist, subject) for sublist in sublists[at : at + STEP_SLOTS])
            await pace()
        sessions = list(self._clients.open.values())
        for at in range(0, len(sessions), STEP_SLOTS):
            for session in sessions[at : at + STEP_SLOTS]:
                if census.published_to(session.connection) in found and len(part.rows) < query.most:
                    part.rows.append(connection_row(session, wall_offset_us()))
            await pace()
        yield part

    async def _move_counts(self) -> AsyncIterator[rows.MovesPart]:
        yield self._moves()

    async def _client(self, query: rows.ClientQuery) -> AsyncIterator[rows.ClientPart]:
        clients = self._clients
        if not query.is_kicked and clients.is_deaf(query.cid):
            yield rows.ClientPart(is_found=True, is_deaf=True)
            return
        is_found = clients.dismiss(query.cid, is_kicked=query.is_kicked)
        has_left = not is_found and any(row.cid == query.cid for _, row in clients.passing.left)
        yield rows.ClientPart(is_found, clients.is_expected(query.cid), has_left)

    # ---- subscriptions

    async def _subscriptions(self, query: rows.SubscriptionsQuery, pace: Pace) -> AsyncIterator[rows.SubscriptionsPart]:
        sublists = self._sublists(query.account)
        if query.test:
            subject = query.test.encode()
            counts = []
            for sublist in sublists:
                counts.append(census.matching(sublist, subject, 0, 0)[1])
                await pace()
            yield rows.SubscriptionsPart(sum(counts), [])
            before = weighed = 0  # matches in the sublists already done, and what was listed of them
            for sublist, count in zip(sublists, counts, strict=True):
                account = sublist.account.decode()
                at = max(0, query.offset - before)
                told: set[int] = set()
                for passed in range(0, at if at < count and query.most else 0, STEP_SLOTS):
                    census.pass_over(sublist, subject, passed, min(STEP_SLOTS, at - passed), told)
                    await pace()
                while at < count and before + at < query.offset + query.most:
                    most = min(STEP_SLOTS, query.offset + query.most - before - at)
                    found, _count = census.matching(sublist, subject, at, most, STEP_TEXT, told)
                    if not found:  # they were removed meanwhile
                        break
                    listed = [
                        SubscriptionRow(*fields, cid, self._account_of(cid) or account, number)
                        for cid, number, fields in found
                    ]
                    for portion, weight in _portions(listed):
                        yield rows.SubscriptionsPart(sum(counts), portion)
                        weighed += weight
                        if weighed > MOST_SUBSCRIPTIONS:
                            yield rows.SubscriptionsPart(sum(counts), [], is_over=True)
                            return
                    at += len(found)
                    await pace()
                before += count
            return
        part = rows.SubscriptionsPart(0, [])
        skip, left = query.offset, query.most
        total = weighed = waiting = 0
        for session in list(self._clients.open.values()):
            if left <= 0:
                break
            await pace()
            is_own = query.account in ("", session.account)
            count = session.connection.subscriptions if is_own else 0
            if is_passed := skip >= count:
                skip -= count
                total += count
            async for step, weight in _steps_in(query.account, session, pace, with_own=not is_passed):
                total += len(step)
                taken = step[skip : skip + left]
                skip = max(0, skip - len(step))
                left -= len(taken)
                part.rows += taken
                weighed += weight if taken else 0
                waiting += weight if taken else 0
                if waiting >= PART_SUBSCRIPTIONS:
                    yield part
                    part, waiting = rows.SubscriptionsPart(total, []), 0
                if weighed > MOST_SUBSCRIPTIONS:
                    yield rows.SubscriptionsPart(total, [], is_over=True)
                    return
                if left <= 0:
                    break
            part.total = total
        yield part

    def _account_of(self, cid: int) -> str:
        """The account of an open client; "": there is none."""
        session = self._clients.open.get(cid)
        return "" if session is None else session.account

    async def _sublist_counters(self, query: rows.SublistQuery, pace: Pace) -> AsyncIterator[rows.SublistPart]:
        lookups = self._fanout.in_msgs + self._fanout.link_in_msgs  # of all accounts: not counted per account
        sublists = self._sublists(query.account)
        part = rows.SublistPart(0, 0, 0, 0, lookups if sublists else 0, 0, 0, 0)
        if not query.account:
            part.inserts += self._mesh.forgotten_inserts
            part.removes += self._mesh.forgotten_removes
            part.misses += self._mesh.forgotten_builds
        for sublist in sublists:
            at = 0
            while True:
                _count, most, together, at = census.cache_widths(sublist, at, STEP_CACHE_SLOTS)
                part.widest = max(part.widest, most)
                part.widths += together
                await pace()
                if not at:
                    break
            part.subscriptions += sublist.n_subs
            part.cached += sublist.cache_count
            part.inserts += sublist.n_inserts
            part.removes += sublist.n_removes
            part.misses += sublist.n_builds
        own = min(self._own_subscriptions(query.account), part.subscriptions)
        part.subscriptions -= own
        part.inserts -= own  # so what is there now is inserts less removes, as in nats-server
        part.misses = min(part.misses, part.lookups)
        sessions = list(self._clients.open.values())
        for start in range(0, len(sessions), STEP_CACHE_SLOTS):
            step = sessions[start : start + STEP_CACHE_SLOTS]
            part.clients += sum(1 for session in step if not query.account or session.account == query.account)
            await pace()
        if query.most_due and self._services is not None:
            due = self._services.due(query.account.encode(), query.most_due)
            part.due = [_due_row(*one) for one in due]
        yield part

    async def _queues(self, query: rows.QueuesQuery, pace: Pace) -> AsyncIterator[rows.QueuesPart]:
        part = rows.QueuesPart([])
        left = query.most
        waiting = 0
        for session in list(self._clients.open.values()):
            await pace()
            if not session.connection.subscriptions:
                continue
            name = connection_row(session, 0).name
            async for step, weight in _subscription_steps(session, pace, queued_only=True):
                if len(step) > left:
                    part.is_over = True
                part.rows += [
                    QueueRow(row.subject, row.queue, row.sid, row.msgs, row.cid, name, session.account)
                    for row in step[:left]
                ]
                left -= len(step)
                waiting += weight
                if waiting >= PART_SUBSCRIPTIONS:
                    yield part
                    part, waiting = rows.QueuesPart([], part.is_over), 0
            if left < 0:
                break
        yield part

    # ---- traffic

    async def _subjects(self, query: rows.SubjectsQuery, pace: Pace) -> AsyncIterator[rows.SubjectsPart]:
        heaviest: list[tuple[int, str, str]] = []  # a heap of the heaviest, the lightest of them first
        found: dict[tuple[str, str], SubjectRow] = {}
        folds: dict[str, SubjectRow] = {}  # by account
        fold = query.fold.encode()
        at = 0
        sublists = self._sublists(query.account)
        while sublists:
            least = heaviest[0][0] + 1 if len(heaviest) >= query.most else 1
            account = sublists[-1].account.decode()
            step, folded, at = census.cached_entries(sublists[-1], at, STEP_CACHE_SLOTS, least, fold, True)
            for fields in step:
                row = SubjectRow(*fields, account=account)
                key = account, row.subject
                if key in found:  # the cache grew between two steps, and the entry has moved to a later slot
                    continue
                found[key] = row
                entry = (max(row.msgs, row.deliveries), *key)
                if len(heaviest) < query.most:
                    heapq.heappush(heaviest, entry)
                else:
                    del found[heapq.heappushpop(heaviest, entry)[1:]]
            together = folds.setdefault(account, SubjectRow(query.fold + ">", 0, 0, 0, 0, 0, 0, False, account=account))
            together.folded += folded.entries
            _add_counts(together, folded)
            if not at:
                sublists.pop()
            await pace()
        cached = sum(sublist.cache_count for sublist in self._sublists(query.account))
        answer = _joined(found[account, subject] for _weight, account, subject in sorted(heaviest, reverse=True))
        answer += [together for together in folds.values() if together.folded]
        for at in range(0, max(1, len(answer)), PART_ROWS):
            yield rows.SubjectsPart(cached, answer[at : at + PART_ROWS])

    async def _slow(self, query: rows.SlowQuery, pace: Pace) -> AsyncIterator[rows.SlowPart]:
        offset_us = wall_offset_us()
        behind: list[ConnectionRow] = []
        sessions = list(self._clients.open.values())
        for at in range(0, len(sessions), STEP_ROWS):
            for session in sessions[at : at + STEP_ROWS]:
                if session.connection.pending_bytes >= query.least_pending_bytes:
                    behind.append(connection_row(session, offset_us))
            await pace()
        behind.sort(key=lambda row: -row.pending_bytes)
        del behind[query.most :]
        for row in behind:
            still_open = self._clients.open.get(row.cid)
            if still_open is not None:
                some = busiest_and_some(still_open.connection, STEP_SLOTS, SLOW_TEXT)
                row.subs = tuple(SubscriptionRow(*one, row.cid) for one in some)
            await pace()
        past = list(self._clients.closed.slow)[-query.most :]
        past.reverse()
        for at in range(0, max(1, len(behind), len(past)), STEP_ROWS):
            yield rows.SlowPart(behind[at : at + STEP_ROWS], [unpacked(row) for row in past[at : at + STEP_ROWS]])

    async def _leaf_rows(self, query: rows.LeafsQuery, pace: Pace) -> AsyncIterator[rows.Part]:
        for row in self._leafs(query.subs):
            await pace()
            if row is not None:
                yield rows.LeafsPart([row])

    async def _route_rows(self, query: rows.RoutesQuery, pace: Pace) -> AsyncIterator[rows.Part]:
        for row in self._routes(query.subs):
            await pace()
            if row is not None:
                yield rows.RoutesPart([row])

    async def _link_rows(self) -> AsyncIterator[rows.LinksPart]:
        sessions = self._links.sessions if self._links is not None else []
        now_us = time.monotonic_ns() // 1000
        offset_us = wall_offset_us()
        part = rows.LinksPart([])
        for session in sessions:
            counts = census.link_counters(session.link)
            opened_us = session.socket.opened if session.socket is not None else now_us
            part.rows.append(
                rows.LinkRow(
                    session.link.shard,
                    opened_us + offset_us,
                    session.dialled is not None,
                    counts.pending_bytes,
                    counts.in_msgs,
                    counts.out_msgs,
                    counts.in_bytes,
                    counts.out_bytes,
                )
            )
        yield part


def _joined(found: Iterable[SubjectRow]) -> list[SubjectRow]:
    """The rows, with subjects in UTF-8; those that are then the same are one."""
    joined: dict[tuple[str, str], SubjectRow] = {}
    for row in found:
        row.subject = utf8_replaced(row.subject)
        other = joined.setdefault((row.account, row.subject), row)
        if other is not row:
            _add_counts(other, row)
    return list(joined.values())


def _add_counts(to: SubjectRow, more: SubjectRow | FoldedCounts) -> None:
    to.msgs += more.msgs
    to.payload_bytes += more.payload_bytes
    to.deliveries += more.deliveries
    to.subscriptions += more.subscriptions
    to.queue_groups += more.queue_groups
    to.queue_members += more.queue_members
    to.is_wanted = to.is_wanted or more.is_wanted


async def _stacks() -> AsyncIterator[rows.StacksPart]:
    from gnatswarm.shards.boundary.stacks import stacks_text

    yield rows.StacksPart(stacks_text())


async def _nothing() -> AsyncIterator[rows.Part]:
    parts: tuple[rows.Part, ...] = ()
    for part in parts:
        yield part


async def _subscription_steps(
    session: ClientSession, pace: Pace, *, queued_only: bool = False
) -> AsyncIterator[tuple[list[SubscriptionRow], int]]:
    """All subscriptions of a client, in steps, each with what it counts as."""
    at = 0
    while True:
        found, at = census.subscriptions(session.connection, at, STEP_SLOTS, queued_only, STEP_TEXT)
        cid = session.connection.cid
        for portion in _portions([SubscriptionRow(*row, cid) for row in found]):
            yield portion
        if not at:
            return
        await pace()


async def _steps_in(
    account: str, session: ClientSession, pace: Pace, *, with_own: bool
) -> AsyncIterator[tuple[list[SubscriptionRow], int]]:
    """A client's subscriptions in that account, or in all (""): its own, and those to streams of other accounts."""
    if with_own:
        async for step, weight in _subscription_steps(session, pace):
            for row in step:
                row.account = session.account
            yield step, weight
    at = 0
    while True:
        found, at = census.shadows(session.connection, at, STEP_IMPORTERS, STEP_TEXT)
        cid = session.connection.cid
        wanted = [one for one in found if account in ("", one[0].decode())]
        for portion in _portions([SubscriptionRow(*row, cid, session.account, stream) for _, stream, row in wanted]):
            yield portion
        if not at:
            return
        await pace()


def _portions(found: list[SubscriptionRow]) -> Iterator[tuple[list[SubscriptionRow], int]]:
    """All of them in order, each time about as many as go into a part, and what these count as."""
    start = weight = 0
    for end, row in enumerate(found, 1):
        weight += 1 + (len(row.subject) + len(row.queue) + len(row.sid)) // TEXT_OF_ONE
        if weight >= PART_SUBSCRIPTIONS:
            yield found[start:end], weight
            start, weight = end, 0
    if weight:
        yield found[start:], weight


def _due_row(made: bytes, account: bytes, reply: bytes, measured: Measured | None) -> DueReplyRow:
    row = DueReplyRow(made.decode(), account.decode("utf-8", "replace"), reply.decode("utf-8", "replace"))
    if measured is not None:
        row.latency_subject, row.headers = measured.subject.decode("utf-8", "replace"), measured.headers
    return row


def _is_of_account(account: str, query: rows.ConnectionsQuery) -> bool:
    return query.account in ("", account)


class _Subscribed:
    """Chooses clients that have a subscription that overlaps a pattern: all with "", none with one that is too long."""

    def __init__(self, pattern: str, most_bytes: int, pace: Pace) -> None:
        self._is_any = not pattern
        self._pattern = SubjectPattern(pattern) if len(pattern.encode()) <= most_bytes else None
        self._pace = pace
        self._work = 0  # since the last pause, over all clients

    async def has(self, session: ClientSession) -> bool:
        """Whether this is one of them."""
        if self._is_any:
            return True
        if self._pattern is None:
            return False
        await self._pace()
        async for step, _weight in _subscription_steps(session, self._pace):
            for row in step:
                self._work += STEP_OF_ONE + len(row.subject)
                if self._work > STEP_TEXT:
                    self._work = 0
                    await self._pace()
                if self._pattern.overlaps(row.subject):
                    return True
        return False


async def _with_subscriptions(
    row: ConnectionRow, session: ClientSession | None, pace: Pace
) -> AsyncIterator[tuple[ConnectionRow, int]]:
    """The row with its subscriptions, and what they count as; several rows when there are many."""
    if session is None or row.stop_us:
        whole = unpacked(row)
        yield whole, max(len(whole.subs), len(row.packed_subs) // TEXT_OF_ONE)
        return
    # A copy, so that its subscriptions are freed once it is sent: long-lived objects trigger garbage collections.
    piece, waiting = msgspec.structs.replace(row, subs=()), 0
    async for step, weight in _subscription_steps(session, pace):
        piece.subs = (*piece.subs, *step)
        waiting += weight
        if waiting >= PART_SUBSCRIPTIONS:
            yield piece, waiting
            piece, waiting = msgspec.structs.replace(row, subs=()), 0
    yield piece, waiting
