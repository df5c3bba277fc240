"""The monitoring pages, built from the router's facts and the shards' answers.

Each page is a coroutine from a query to the bytes of a JSON document. General pages ask no shard. Only a few pages that
do are built at a time, so that many viewers cost a shard no more than a few.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Any, TypeVar

import msgspec
import orjson

from gnatswarm.broker.options import GLOBAL_ACCOUNT
from gnatswarm.router.config.arrivals import Journey
from gnatswarm.router.monitoring import aggregate, metrics, moving_clients, subjects, why_page
from gnatswarm.router.monitoring.aggregate import Document
from gnatswarm.router.monitoring.alarm_rules import Values
from gnatswarm.router.monitoring.alarms import Alarms
from gnatswarm.router.monitoring.facts import Facts
from gnatswarm.router.monitoring.history import INTERVAL_S, MOST_SAMPLES, History
from gnatswarm.router.monitoring.listeners import live_journey
from gnatswarm.router.monitoring.metrics import Accounts
from gnatswarm.router.monitoring.page_query import BadQuery, PageQuery
from gnatswarm.router.monitoring.shard_questions import ShardQuestions
from gnatswarm.shards.boundary import rows
from gnatswarm.shards.boundary.control import GATEWAY_NUMBER
from gnatswarm.shards.boundary.pace import Pace

# Pages that ask shards: how many are built at the same time, and how many may wait.
MOST_BUILT = 4
MOST_WAITING = 64
# Subjects and queue groups need a scan of all data of a shard; requests within this time share one scan.
LOOK_S = 1.0
MOST_SUBJECTS = 1000
DEFAULT_SUBJECTS = 100
# Windows of the recorder: those that a shard keeps; the default adds the open one.
MOST_WINDOWS = 6
DEFAULT_WINDOWS = 7
DEFAULT_SAMPLES = 120
MOST_HOT_SUBJECTS = 2000  # of each shard
MOST_METRIC_SUBJECTS = 100
DEFAULT_METRIC_SUBJECTS = 20
MOST_METRIC_ACCOUNTS = 1000
DEFAULT_METRIC_ACCOUNTS = 20
MOST_QUEUE_MEMBERS = 10_000
MOST_CLIENT_SUBS = 1000  # of one client, in /clientz
MOST_SLOW = 256
MOST_DENIED = 1000
MOST_DUE = 1000  # replies that an account owes, of each process
MOST_METRIC_USERS = 100
ROWS_IN_ONE_STEP = 32
SUBSCRIPTIONS_IN_ONE_STEP = 128
# /stacksz is requested when something hangs: it must not wait long for a shard that hangs.
STACKS_DEADLINE_S = 2.0

_Part = TypeVar("_Part", bound=rows.PageStruct)
_Value = TypeVar("_Value")


class Busy(Exception):
    """Too many pages are requested at once."""


class Pages:
    """All pages of one broker."""

    def __init__(
        self,
        gather: Callable[[], Facts],
        questions: ShardQuestions,
        requests: dict[str, int],
        history: History,
        alarms: Alarms,
    ) -> None:
        self._gather = gather
        self._questions = questions
        self._requests = requests
        self._history = history
        self._alarms = alarms
        self._building = asyncio.Semaphore(MOST_BUILT)
        self._waiting = 0
        self._looks: dict[str, tuple[float, asyncio.Task[Any]]] = {}
        self._asked: list[int] = []  # the shards that could be asked when a page was built last
        self.by_path: dict[str, Callable[[PageQuery], Awaitable[bytes]]] = {
            "/varz": self.varz,
            "/connz": self.connz,
            "/routez": self.routez,
            "/subsz": self.subsz,
            "/subscriptionsz": self.subsz,
            "/accountz": self.accountz,
            "/accstatz": self.accstatz,
            "/leafz": self.leafz,
            "/gatewayz": self.gatewayz,
            "/jsz": self.jsz,
            "/shardz": self.shardz,
            "/subjectz": self.subjectz,
            "/queuez": self.queuez,
            "/slowz": self.slowz,
            "/historyz": self.historyz,
            "/deniedz": self.deniedz,
            "/alarmz": self.alarmz,
            "/whyz": self.whyz,
            "/clientz": self.clientz,
        }

    # ---- pages that ask no shard

    async def varz(self, query: PageQuery) -> bytes:
        """General figures."""
        facts = self._facts(query)
        leafs = await self._leafs() if facts.options.has_gateway else []
        return _json(aggregate.varz(facts, self._requests, leafs=len(leafs)))

    async def leafz(self, query: PageQuery) -> bytes:
        """The leaf node connections, of one account or of all, with what they subscribe to if that is asked for."""
        facts = self._facts(query)
        with_subs, account = query.flag("subs"), query.text("acc")
        found = [row for row in await self._leafs(with_subs) if not account or row.account == account]
        return _json(aggregate.leafz(facts, found))

    async def _leafs(self, with_subs: bool = False) -> list[rows.LeafRow]:
        parts = await self._questions.ask(GATEWAY_NUMBER, rows.LeafsQuery(with_subs), rows.LeafsPart)
        return [row for part in parts for row in part.rows]

    async def gatewayz(self, query: PageQuery) -> bytes:
        """Gateways: always none."""
        facts = self._facts(query)
        query.check_gatewayz(is_like_newer=facts.options.is_like_newer)
        return _json({**aggregate.head(facts), "outbound_gateways": {}, "inbound_gateways": {}})

    async def jsz(self, query: PageQuery) -> bytes:
        """JetStream: always disabled."""
        facts = self._facts(query)
        query.check_jsz(is_like_newer=facts.options.is_like_newer)
        return _json(aggregate.jsz(facts))

    async def historyz(self, query: PageQuery) -> bytes:
        """Counters of the whole broker, one sample a second: the last two minutes, or up to an hour."""
        step = query.number("step", 1, MOST_SAMPLES)
        samples = self._history.latest(query.number("limit", DEFAULT_SAMPLES, MOST_SAMPLES), step)
        return orjson.dumps({**aggregate.head(self._gather()), "interval": INTERVAL_S * step, **samples})

    async def alarmz(self, query: PageQuery) -> bytes:
        """What is wrong now, since when, and what to do; and what was wrong lately."""
        self._alarms.refresh()
        facts = self._gather()
        name = "this broker" if facts.server_name == facts.server_id else facts.server_name
        return _json(aggregate.head(facts) | self._alarms.document(name, facts.now_us))

    def health(self) -> str:
        """What is wrong with the broker; "": nothing."""
        return aggregate.health(self._gather())

    # ---- pages that ask shards

    async def accstatz(self, query: PageQuery) -> bytes:
        """Traffic by account."""
        facts = self._facts(query)
        found = await self.account_statistics(facts, (), unused=query.flag("unused"))
        return _with_list(aggregate.head(facts), "account_statz", await _texts(found))

    async def account_statistics(
        self, facts: Facts, names: Collection[str], *, unused: bool, has_lost: bool = False, is_vital: bool = False
    ) -> list[Document]:
        """Statistics of these accounts, or of all; without `unused` only of those that have connections.

        `has_lost`: also of those whose connections have all ended.
        """
        async with self._turn(is_vital=is_vital):
            answers = await self._ask_all(facts, rows.AccountsQuery(names=tuple(names)), rows.AccountsPart)
            more = await self._uncounted(answers, names)
        leafs = Counter(row.account for row in await self._leafs()) if facts.options.has_gateway else Counter[str]()
        is_like_newer = facts.options.is_like_newer
        asked = frozenset(names)
        sums = {name: rows.AccountRow(name) for name in facts.accounts if not asked or name in asked}
        pace = Pace()
        used: set[str] = set()  # a shard knows them
        for _shard, parts in answers:
            for part in parts:
                if has_lost:
                    used.update(row.name for row in part.rows)
                aggregate.add_accounts(sums, part.rows)
                await pace()
        for name, connections in more.items():
            if name in sums:
                sums[name].connections = max(0, sums[name].connections + connections)
        found: list[Document] = []
        wanted = list(sums.values())
        for at in range(0, len(wanted), ROWS_IN_ONE_STEP):
            found += [
                aggregate.account_statistics(row, leafs[row.name], is_like_newer=is_like_newer)
                for row in wanted[at : at + ROWS_IN_ONE_STEP]
                # (2.9 does not look at leaf nodes here)
                if unused or row.connections or (is_like_newer and leafs[row.name]) or row.name in used
            ]
            await pace()
        return found

    async def _uncounted(
        self, answers: list[tuple[int, list[rows.AccountsPart]]], names: Collection[str] = ()
    ) -> Counter[str]:
        """By account, how many clients move and were not counted by the shards, less those that two have counted."""

        async def ask(shard: int, cids: list[int]) -> list[rows.AccountsPart]:
            return await self._questions.ask(
                shard, rows.AccountsQuery(names=tuple(names), cids=cids), rows.AccountsPart
            )

        return await moving_clients.uncounted(moving_clients.first_parts(answers), ask)

    async def connz(self, query: PageQuery, subject: str = "") -> bytes:
        """Connections, closed ones and open ones; of these, with `subject`, the ones that subscribe to some of it.

        Over HTTP nats-server has no such filter. It is for one account alone.
        """
        facts = self._facts(query)
        state = query.state
        sort = query.sort(state, is_like_newer=facts.options.is_like_newer)
        shows_user, subs, offset, limit, cid = (
            query.flag("auth"),
            query.subs,
            query.offset,
            query.limit,
            query.unsigned("cid"),
        )
        if cid:
            limit = 1  # (of one page there is nothing behind the first offset)
        account = query.text("acc")
        if subject and not account:
            raise BadQuery("filter by subject only valid with account filtering")
        if account and account not in facts.accounts:
            empty = {"num_connections": 0, "total": 0, "offset": offset, "limit": limit, "connections": None}
            return _json({"server_id": "", "now": aggregate.head(facts)["now"], **empty})
        question = rows.ConnectionsQuery(
            sort,
            offset + limit,
            state,
            cid,
            query.text("user"),
            account,
            query.search,
            with_subs=bool(subs),
            now_us=facts.now_us,
            subject=subject,
        )
        async with self._turn():
            answers = await self._ask_all(facts, question, rows.ConnectionsPart)
            if any(part.is_over for _shard, parts in answers for part in parts):
                raise BadQuery("too many subscriptions for one page: ask for less with limit, or see /subsz")
            pace = Pace()
            found = [(shard, aggregate.joined(row for part in parts for row in part.rows)) for shard, parts in answers]
            await pace()
            found, unseen = await self._settled(question, found, answers)
            if query.text("mqtt_client"):  # no client is one of MQTT; they are counted, as by nats-server
                found = []
            documents: list[Document] = []
            texts: list[bytes] = []
            count = 0
            for shard, row in aggregate.merged(found, sort, facts.now_us, offset, limit):
                documents.append(await _connection(facts, shard, row, shows_user=shows_user, subs=subs, pace=pace))
                if len(documents) == ROWS_IN_ONE_STEP:
                    count += len(documents)
                    texts.append(_items(documents))
                    documents = []
                    await pace()
            count += len(documents)
            if documents:
                texts.append(_items(documents))
            document = {
                **aggregate.head(facts),
                "num_connections": count,
                "total": sum(parts[0].total for _shard, parts in answers if parts) + unseen,
                "offset": offset,
                "limit": limit,
            }
            return _with_list(document, "connections", texts)

    async def _settled(
        self,
        question: rows.ConnectionsQuery,
        found: moving_clients.Lists,
        answers: list[tuple[int, list[rows.ConnectionsPart]]],
    ) -> tuple[moving_clients.Lists, int]:
        """Each client once though some of them move, and how many more there are than the shards have counted."""

        async def ask(shard: int, cids: list[int]) -> list[rows.ConnectionsPart]:
            asked = msgspec.structs.replace(question, cids=cids, state="open", most=len(cids), cid=0, search="")
            parts = await self._questions.ask(shard, asked, rows.ConnectionsPart)
            if parts:
                parts[0].rows = aggregate.joined(row for part in parts for row in part.rows)
            return parts[:1]

        if question.state == "closed":
            return found, 0
        return await moving_clients.settled(question, found, moving_clients.first_parts(answers), ask)

    async def clientz(self, query: PageQuery) -> bytes:
        """One client, open or closed: as /connz shows it, with its subscriptions, its log-in and its permissions."""
        facts = self._gather()
        cid = query.unsigned("cid")
        if not cid:
            raise BadQuery("which client? (as in /clientz?cid=7)")
        question = rows.ConnectionsQuery(most=1, state="all", cid=cid, with_subs=True, now_us=facts.now_us)
        question.most_subs = MOST_CLIENT_SUBS
        async with self._turn():
            answers = await self._ask_all(facts, question, rows.ConnectionsPart)
            found = [(shard, aggregate.joined(row for part in parts for row in part.rows)) for shard, parts in answers]
            found, _ = await self._settled(question, found, answers)
        one = next(aggregate.merged(found, "cid", facts.now_us, 0, 1), None)
        if one is not None:
            one[1].subs = one[1].subs[:MOST_CLIENT_SUBS]
        return _json(aggregate.head(facts) | aggregate.client(facts, *one) if one else {"client": None})

    async def subsz(self, query: PageQuery) -> bytes:
        """The counters of subscriptions; with subs=1 a list of them too."""
        facts = self._facts(query)
        account = query.text("acc")
        test, offset, limit = query.test_subject, query.offset, query.limit
        shows_list = query.flag("subs")
        shows_all = facts.options.is_like_newer
        if account and account not in facts.accounts:
            return _json(_subsz(facts, aggregate.sublist([]), query, 0) if shows_all else aggregate.sublist([]))
        async with self._turn():
            counters, _clients, _due = await self._sublist(facts, account)
            if not shows_list:
                return _json(_subsz(facts, counters, query, 0) if shows_all else counters)
            listed: list[tuple[int, rows.SubscriptionRow]] = []
            skip, matching = offset, 0
            for shard in _numbers(facts):
                if len(listed) >= limit and not (test and shows_all):
                    break
                question = rows.SubscriptionsQuery(skip, limit - len(listed), test, account)
                parts = await self._questions.ask(shard, question, rows.SubscriptionsPart)
                if any(part.is_over for part in parts):
                    raise BadQuery("too many long subscriptions for one page: ask for less with limit")
                listed += [(shard, row) for part in parts for row in part.rows]
                on_shard = parts[-1].total if parts else 0
                skip = max(0, skip - on_shard)
                matching += on_shard
            # Of a client that moved meanwhile; what was delivered moved with it.
            listed = await moving_clients.once_of_many(
                listed,
                key=lambda row: (row.cid, row.sid, row.stream, row.subject) if row.cid else id(row),
                age=lambda row: row.msgs,
            )
            total = len(listed)
            if shows_all:  # 2.15 says how many there are, 2.9 how many are on this page
                total = matching if test else counters["num_subscriptions"]
            # nats-server always has subscriptions of its own, so its list is empty only for a search.
            if not listed and (test or account or offset):
                return _json(_subsz(facts, counters, query, total) if shows_all else counters)
            pace = Pace()
            texts = []
            for at in range(0, len(listed), ROWS_IN_ONE_STEP):
                step = listed[at : at + ROWS_IN_ONE_STEP]
                texts.append(
                    _items(
                        [
                            aggregate.subscription(row, account=row.account, shard=shard, has_tag=shows_all)
                            for shard, row in step
                        ]
                    )
                )
                await pace()
            document = _subsz(facts, counters, query, total)
            return _with_list(document, "subscriptions_list", texts)

    async def accountz(self, query: PageQuery) -> bytes:
        """Accounts, or one in detail."""
        facts = self._facts(query)
        name = query.text("acc")
        if not name:
            return _json(aggregate.accountz(facts))
        return _json(aggregate.account(facts, await self.account_detail(facts, name)))

    async def account_detail(self, facts: Facts, name: str) -> Document:
        """One account."""
        if name not in facts.accounts:
            raise BadQuery(f"Account {name[:80]} does not exist")
        async with self._turn():
            counters, clients, due = await self._sublist(facts, name, MOST_DUE)
        leafs = [row for row in await self._leafs() if row.account == name] if facts.options.has_gateway else []
        return aggregate.account_detail(facts, name, counters, clients, leafs=len(leafs), due=due)

    async def routes(self, facts: Facts, with_subs: bool = False) -> list[rows.RouteRow]:
        """The connections to other members of the cluster."""
        if not facts.options.cluster.port:
            return []
        parts = await self._questions.ask(GATEWAY_NUMBER, rows.RoutesQuery(with_subs), rows.RoutesPart)
        return [row for part in parts for row in part.rows]

    async def routez(self, query: PageQuery) -> bytes:
        """Routes to other members, and what they want if that is asked for; shards=1: links between shards, too."""
        facts = self._facts(query)
        subs = query.subs
        found = [aggregate.route(row, facts, subs) for row in await self.routes(facts, bool(subs))]
        named = {"server_name": facts.server_name} if facts.options.is_like_newer else {}
        head = aggregate.head(facts)
        document: Document = {
            "server_id": head["server_id"],
            **named,
            "now": head["now"],
            **aggregate.route_permissions(facts),
            "num_routes": len(found),
            "routes": found,
        }
        if query.flag("shards"):
            links = [
                aggregate.link(shard, row, facts.now_us) for shard, found in await self._links(facts) for row in found
            ]
            document |= {"num_shard_links": len(links), "shard_links": links}
        return _json(document)

    async def shardz(self, query: PageQuery) -> bytes:
        """The shards, and the links between them; links=0 leaves the links out, and asks no shard."""
        facts = self._facts(query)
        if query.text("links") == "0":
            return _json(aggregate.shardz(facts, []))
        links = await self._links(facts)
        moves = await self._ask_all(facts, rows.MovesQuery(), rows.MovesPart)
        return _json(aggregate.shardz(facts, links) | {"moves": aggregate.moves(moves)})

    async def subjectz(self, query: PageQuery) -> bytes:
        """The hottest subjects of the last windows, and those without subscribers."""
        facts = self._facts(query)
        sort = query.text("sort") or "msgs"
        if sort not in subjects.SORTS:
            raise BadQuery(f"invalid sorting option: {sort[:80]}")
        offset = query.number("offset", 0, MOST_SUBJECTS)
        limit = query.number("limit", DEFAULT_SUBJECTS, MOST_SUBJECTS)
        account, only = query.text("acc"), query.text("subject")
        head = aggregate.head(facts) | {"recorder": "on" if facts.is_recorded else "off"}
        if only:
            head |= {"publishers": await self._publishers(facts, account, only)}
        if not facts.is_recorded:
            return _json(head | await self._cached_subjects(facts, sort, offset, limit, account, only))
        windows = query.windows(DEFAULT_WINDOWS, MOST_WINDOWS + 1)
        numbers = _numbers(facts)

        async def look() -> tuple[list[Document], Document]:
            question = rows.HotSubjectsQuery(windows, MOST_HOT_SUBJECTS, account)
            async with self._turn():
                answers = await self._ask_all(facts, question, rows.HotSubjectsPart)
            return subjects.merged(answers), subjects.covered(answers)

        entries, covered = await self._look(f"subjects {numbers} {windows} {account}", look)
        if only:
            entries = [one for one in entries if one["subject"] == only] or [subjects.nothing(account, only)]
        unwanted = [entry for entry in entries if entry["unwanted"]]
        # Copies, because the scan is shared with requests for other pages of it.
        shown = [dict(entry) for entry in subjects.page(entries, sort, offset, limit)]
        lost = [dict(entry) for entry in subjects.page(unwanted, "unwanted", 0, limit)]
        both = shown + lost
        question = rows.SubjectInterestQuery([(entry["account"], entry["subject"]) for entry in both])
        async with self._turn():
            answers = await self._ask_all(facts, question, rows.SubjectInterestPart)
        found = [[row for part in parts for row in part.rows] for _shard, parts in answers]
        subjects.complete(both, covered["seconds"], found)
        return _json(
            {
                **head,
                "window": facts.options.stats.window_s,
                "windows": windows,
                **covered,
                "num_subjects": len(entries),
                "sort": sort,
                "offset": offset,
                "limit": limit,
                "subjects": shown,
                "unwanted": lost,
            }
        )

    async def _publishers(self, facts: Facts, account: str, subject: str) -> list[Document]:
        """The clients of the account, or of any, whose latest message had this subject."""
        async with self._turn():
            question = rows.PublishersQuery(account, subject)
            answers = await self._ask_all(facts, question, rows.PublishersPart)
        return [
            {
                "cid": row.cid,
                "name": row.name,
                "user": row.user,
                "account": row.account or GLOBAL_ACCOUNT,
                "shard": shard,
                "in_msgs": row.in_msgs,
            }
            for shard, parts in answers
            for part in parts
            for row in part.rows
        ]

    async def _cached_subjects(
        self, facts: Facts, sort: str, offset: int, limit: int, account: str, only: str
    ) -> Document:
        """The hottest subjects without a recorder: from the match cache."""
        entries, _cached = await self._subjects(facts, folds=True, account=account)
        if only:
            entries = [one for one in entries if one["subject"] == only]
        key = sort if sort in aggregate.SUBJECT_SORTS else "msgs"
        nobody = [entry for entry in entries if not entry["wanted"]]
        return {
            "note": subjects.NOT_RECORDED,
            "num_subjects": len(entries),
            "sort": key,
            "offset": offset,
            "limit": limit,
            "subjects": subjects.page(entries, key, offset, limit),
            "unwanted": subjects.page(nobody, "msgs", 0, limit),
        }

    async def queuez(self, query: PageQuery) -> bytes:
        """Queue groups, and how evenly messages are spread over their members."""
        facts = self._facts(query)
        limit = query.number("limit", DEFAULT_SUBJECTS, MOST_SUBJECTS)

        async def look() -> tuple[list[Document], bool]:
            async with self._turn():
                answers = await self._ask_all(facts, rows.QueuesQuery(MOST_QUEUE_MEMBERS), rows.QueuesPart)
            is_over = any(part.is_over for _shard, parts in answers for part in parts)
            members = [(shard, [row for part in parts for row in part.rows]) for shard, parts in answers]
            pace = Pace()
            groups = []
            for group in aggregate.queues(members):
                groups.append(group)
                if len(groups) % ROWS_IN_ONE_STEP == 0:
                    await pace()
            return sorted(groups, key=aggregate.busiest_first), is_over

        groups, is_over = await self._look(f"queues {query.text('shard')}", look)
        return _json(
            {
                **aggregate.head(facts),
                "num_queues": len(groups),
                "limit": limit,
                "complete": not is_over,
                "queues": groups[:limit],
            }
        )

    async def slowz(self, query: PageQuery) -> bytes:
        """Slow consumers, present and past."""
        facts = self._facts(query)
        limit = query.number("limit", DEFAULT_SUBJECTS, MOST_SLOW)
        question = rows.SlowQuery(most=limit)
        if query.text("pending"):
            question.least_pending_bytes = query.number("pending", 1, 2**40)
        async with self._turn():
            answers = await self._ask_all(facts, question, rows.SlowPart)
        present = [(shard, row) for shard, parts in answers for part in parts for row in part.present]
        past = [(shard, row) for shard, parts in answers for part in parts for row in part.past]
        # One that moved, or was closed, while the shards answered.
        gone = {row.cid for _, row in past}
        present = [
            one
            for one in moving_clients.once(present, key=lambda row: row.cid, age=lambda row: row.moved_us)
            if one[1].cid not in gone
        ]
        present = heapq.nsmallest(limit, present, key=lambda pair: (-pair[1].pending_bytes, pair[1].cid))
        past = heapq.nsmallest(limit, past, key=lambda pair: (-pair[1].stop_us, pair[1].cid))
        return _json(
            {
                **aggregate.head(facts),
                "slow_consumers": aggregate.total(facts, "slow_consumers"),
                "stalls": aggregate.total(facts, "stalls"),
                "present": [aggregate.slow_consumer(shard, row, facts.now_us) for shard, row in present],
                "past": [aggregate.slow_consumer(shard, row, facts.now_us) for shard, row in past],
            }
        )

    async def deniedz(self, query: PageQuery) -> bytes:
        """What permissions have denied, and how often publish_limits made clients wait, by account and user."""
        facts = self._facts(query)
        limit = query.number("limit", DEFAULT_SUBJECTS, MOST_DENIED)
        async with self._turn():
            found = aggregate.denied(row for _shard, row in await self._denied(facts))
        totals = {name: aggregate.total(facts, name) for name in ("denied_msgs", "denied_subscriptions")}
        return _json({**aggregate.head(facts), **totals, "users": len(found), "denied": found[:limit]})

    async def whyz(self, query: PageQuery) -> bytes:
        """Who would get a message on a subject now, and which rule stops it: what `gnatswarm why` prints."""
        facts = self._facts(query)
        subject, account = query.literal_subject("subject"), query.text("acc")
        if not subject:
            raise BadQuery("which subject? (as in /whyz?subject=orders.new&user=shop)")
        numbers = _numbers(facts)
        try:
            user = why_page.publisher(facts.options, account, query.text("user"), subject)

            async def look() -> Journey:
                async with self._turn():
                    return await live_journey(facts.options, self._questions, numbers, subject, user)

            found = await self._look(f"why {numbers} {user!r} {subject!r}", look)
        except ValueError as error:
            raise BadQuery(str(error)) from None
        known = why_page.users(facts.options, account or found.account)
        return _json({**aggregate.head(facts), **why_page.document(found, known)})

    async def stacks(self, query: PageQuery) -> bytes:
        """The stacks of all processes, as text. For a shard that does not answer: only what the kernel says of it.

        Not queued behind other pages, because those may hang; simultaneous requests share one result.
        """
        facts = self._facts(query)
        return await self._look(f"stacks {_numbers(facts)}", lambda: self._all_stacks(facts))

    async def _all_stacks(self, facts: Facts) -> bytes:
        from gnatswarm.shards.boundary.stacks import kernel_text, stacks_text

        texts = [f"keeper {facts.pid} [running]:\n{kernel_text(facts.pid)}"]
        texts += [f"router {facts.router_pid} [running]:\n{kernel_text(facts.router_pid)}{stacks_text()}"]
        answers = await asyncio.gather(*(self._stacks_of(shard.shard) for shard in facts.shards))
        for shard, answer in zip(facts.shards, answers, strict=True):
            what = "running" if answer else "does not answer"
            texts.append(f"shard {shard.shard} {shard.pid} [{what}]:\n{kernel_text(shard.pid)}{answer}")
        return "\n".join(texts).encode("utf-8", "replace")

    async def _stacks_of(self, shard: int) -> str:
        """The stacks of a shard; "": it does not answer, or has no process."""
        try:
            parts = await asyncio.wait_for(
                self._questions.ask(shard, rows.StacksQuery(), rows.StacksPart), STACKS_DEADLINE_S
            )
        except TimeoutError:
            return ""
        return "".join(part.text for part in parts)

    async def metrics(self, query: PageQuery) -> bytes:
        """The metrics for Prometheus."""
        facts = self._facts(query)
        wanted = query.number("subjects", DEFAULT_METRIC_SUBJECTS, MOST_METRIC_SUBJECTS)
        if query.text("subjects") == "0":
            wanted = 0
        # Asking a shard that hangs would delay the page that reports it.
        asked = msgspec.structs.replace(facts, shards=[shard for shard in facts.shards if not shard.is_suspect])
        entries = (await self._subjects(asked, folds=True))[0] if wanted else []
        accounts = await self._account_metrics(asked, query)
        hottest = aggregate.top_subjects(entries, "msgs", wanted)
        denied = metrics.most_denied(await self._denied(asked), MOST_METRIC_USERS)
        hubs = self._alarms.asked("hubs")  # asked for every ten seconds: a gateway that hangs must not delay this page
        return metrics.exposition(facts, hottest, dict(self._requests), accounts, denied, hubs).encode()

    async def asked_metrics(self, facts: Facts) -> Values:
        """Metrics that alarms look at and only shards know; a shard that is late is not asked."""
        found: dict[str, dict[str, float]] = {}
        if facts.options.leafnodes.remotes:
            found["hubs"] = {"": float(await self._hubs())}
        if facts.is_recorded:
            asked = msgspec.structs.replace(facts, shards=[shard for shard in facts.shards if not shard.is_suspect])
            answers = await self._ask_all(asked, rows.AccountsQuery(counts_clients=False), rows.AccountsPart)
            found["unwanted_messages_total"] = {
                str(shard): float(sum(row.unwanted_msgs for part in parts for row in part.rows))
                for shard, parts in answers
            }
        return found

    async def _hubs(self) -> int:
        """How many hubs the gateway is connected to; none, if it does not answer."""
        try:
            parts = await self._questions.ask(GATEWAY_NUMBER, rows.LeafsQuery(), rows.LeafsPart)
        except BadQuery:
            return 0
        return sum(row.is_spoke for part in parts for row in part.rows)

    async def _account_metrics(self, facts: Facts, query: PageQuery) -> Accounts:
        """The busiest accounts. If no accounts are configured, shards do not count their clients for it."""
        most = query.number("accounts", DEFAULT_METRIC_ACCOUNTS, MOST_METRIC_ACCOUNTS)
        if query.text("accounts") == "0" or not facts.options.accounts:
            most = 0
        if not most and not facts.is_recorded:
            return metrics.NO_ACCOUNTS
        numbers = _numbers(facts)

        async def look() -> list[tuple[int, list[rows.AccountRow]]]:
            async with self._turn(is_vital=True):
                answers = await self._ask_all(facts, rows.AccountsQuery(bool(most)), rows.AccountsPart)
            return [(shard, [row for part in parts for row in part.rows]) for shard, parts in answers]

        answers = await self._look(f"accounts {numbers} {bool(most)}", look)
        return await metrics.accounts(answers, most, is_recorded=facts.is_recorded)

    # ---- asking

    def _facts(self, query: PageQuery) -> Facts:
        facts = self._gather()
        asked = [shard.shard for shard in facts.shards if shard.phase in ("ready", "draining") and not shard.is_suspect]
        if asked != self._asked:
            # Shards come and go within LOOK_S: a look at those of before is older than what was told meanwhile, and
            # counters that fall would be a restart to Prometheus.
            self._asked = asked
            self._looks = {what: look for what, look in self._looks.items() if not look[1].done()}
        return facts.only(query.shard([shard.shard for shard in facts.shards]))

    async def _ask_all(self, facts: Facts, query: rows.Query, kind: type[_Part]) -> list[tuple[int, list[_Part]]]:
        numbers = _numbers(facts)
        answers = await asyncio.gather(*(self._questions.ask(shard, query, kind) for shard in numbers))
        return list(zip(numbers, answers, strict=True))

    async def _denied(self, facts: Facts) -> list[tuple[int, rows.DeniedRow]]:
        """(shard, row) of what was denied to users; no shard is asked where nothing was."""
        options = facts.options
        is_limited = any(user.publish_limits is not None for user in options.users) or any(
            account.publish_limits is not None for account in options.accounts
        )
        if not is_limited and not aggregate.total(facts, "denied_msgs") + aggregate.total(
            facts, "denied_subscriptions"
        ):
            return []
        answers = await self._ask_all(facts, rows.DeniedQuery(), rows.DeniedPart)
        return [(shard, row) for shard, parts in answers for part in parts for row in part.rows]

    async def _sublist(
        self, facts: Facts, account: str = "", most_due: int = 0
    ) -> tuple[Document, int, list[rows.DueReplyRow]]:
        """The counters of an account's sublists, or of all, and the number of clients that use them.

        The replies that are due from that account, at most so many of each process, are those of the gateway, too.
        """
        query = rows.SublistQuery(account, most_due)
        answers = await self._ask_all(facts, query, rows.SublistPart)
        parts = [part for _shard, found in answers for part in found]
        due = [row for part in parts for row in part.due]
        if most_due and facts.options.has_gateway:
            for part in await self._questions.ask(GATEWAY_NUMBER, query, rows.SublistPart):
                due += part.due
        return aggregate.sublist(parts), sum(part.clients for part in parts), due

    async def _links(self, facts: Facts) -> list[tuple[int, Sequence[rows.LinkRow]]]:
        if sum(shard.links for shard in facts.shards) == 0:
            return []
        answers = await self._ask_all(facts, rows.LinksQuery(), rows.LinksPart)
        return [(shard, [row for part in parts for row in part.rows]) for shard, parts in answers]

    async def _subjects(self, facts: Facts, *, folds: bool, account: str = "") -> tuple[list[Document], int]:
        numbers = _numbers(facts)

        async def look() -> tuple[list[Document], int]:
            question = rows.SubjectsQuery(MOST_SUBJECTS, "_INBOX." if folds else "", account)
            async with self._turn(is_vital=True):
                answers = await self._ask_all(facts, question, rows.SubjectsPart)
            cached = sum(parts[0].cached for _shard, parts in answers if parts)
            found = [(shard, [row for part in parts for row in part.rows]) for shard, parts in answers]
            return aggregate.subjects(found), cached

        return await self._look(f"cached {numbers} {folds} {account}", look)

    async def _look(self, what: str, look: Callable[[], Awaitable[_Value]]) -> _Value:
        """The result of one scan, shared by all requests for the same within LOOK_S."""
        now = time.monotonic()
        for key in [key for key, (at, task) in self._looks.items() if task.done() and now - at >= LOOK_S]:
            del self._looks[key]
        if what not in self._looks:
            self._looks[what] = (now, asyncio.ensure_future(look()))
        task: asyncio.Task[_Value] = self._looks[what][1]
        # A request that is cancelled must not cancel the scan for the others.
        return await asyncio.shield(task)

    def _turn(self, *, is_vital: bool = False) -> _Turn:
        return _Turn(self, is_vital)


class _Turn:
    """Admits the few pages that may ask shards at the same time.

    A vital look is never refused, however many pages wait: /metrics needs it, and all who ask for it share one.
    """

    def __init__(self, pages: Pages, is_vital: bool) -> None:
        self._pages = pages
        self._is_vital = is_vital

    async def __aenter__(self) -> None:
        if self._pages._waiting >= MOST_WAITING and not self._is_vital:
            raise Busy
        self._pages._waiting += 1
        try:
            await self._pages._building.acquire()
        finally:
            self._pages._waiting -= 1

    async def __aexit__(self, *_: object) -> None:
        self._pages._building.release()


def _numbers(facts: Facts) -> list[int]:
    """The shards that can answer."""
    return [shard.shard for shard in facts.shards if shard.phase in ("ready", "draining")]


def _json(document: Document) -> bytes:
    return orjson.dumps(document, option=orjson.OPT_INDENT_2)


def _items(documents: Iterable[Document | str]) -> bytes:
    """Items of a list within a document, with that indentation."""
    text = orjson.dumps(list(documents), option=orjson.OPT_INDENT_2)
    return text[1:-2].replace(b"\n", b"\n  ")


async def _texts(documents: Sequence[Document]) -> list[bytes]:
    """Items of a list, serialized step by step."""
    pace = Pace()
    texts = []
    for at in range(0, len(documents), ROWS_IN_ONE_STEP):
        texts.append(_items(documents[at : at + ROWS_IN_ONE_STEP]))
        await pace()
    return texts


async def _connection(
    facts: Facts, shard: int, row: rows.ConnectionRow, *, shows_user: bool, subs: str, pace: Pace
) -> Document:
    """An item of the list of connections. Of one with thousands of subscriptions these are made step by step."""

    def of(first: int) -> Document:
        some = row
        if len(row.subs) > SUBSCRIPTIONS_IN_ONE_STEP:
            some = msgspec.structs.replace(row, subs=row.subs[first : first + SUBSCRIPTIONS_IN_ONE_STEP])
        has_tags = facts.options.is_like_newer
        return aggregate.connection(shard, some, facts.now_us, shows_user=shows_user, subs=subs, has_tags=has_tags)

    document = of(0)
    if subs and len(row.subs) > SUBSCRIPTIONS_IN_ONE_STEP:
        key = "subscriptions_list_detail" if subs == "detail" else "subscriptions_list"
        texts = [_items(document[key])]
        for first in range(SUBSCRIPTIONS_IN_ONE_STEP, len(row.subs), SUBSCRIPTIONS_IN_ONE_STEP):
            await pace()
            texts.append(_items(of(first)[key]))
        text = b",".join(texts).replace(b"\n", b"\n  ")
        document[key] = orjson.Fragment(b"[%b\n    ]" % text)
    return document


def _subsz(facts: Facts, counters: Document, query: PageQuery, total: int) -> Document:
    """The page without its list."""
    return {
        **aggregate.head(facts),
        **counters,
        "total": total,
        "offset": query.offset,
        "limit": query.limit,
    }


def _with_list(document: Document, name: str, texts: list[bytes]) -> bytes:
    """The document with one more member: a list whose items are serialized already."""
    begin = orjson.dumps(document, option=orjson.OPT_INDENT_2)[:-2]
    if not texts:
        return b'%b,\n  "%b": []\n}' % (begin, name.encode())
    return b'%b,\n  "%b": [%b\n  ]\n}' % (begin, name.encode(), b",".join(texts))
