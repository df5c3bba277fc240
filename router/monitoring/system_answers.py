"""Answers to requests in the system account: the document that nats-server would send for a subject and its options.

Imported at the first request.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import msgspec
import orjson

from gnatswarm.broker import advisory
from gnatswarm.broker.advisory import Document, ServerIdentity
from gnatswarm.broker.placement_rules import SubjectPattern
from gnatswarm.broker.subject import is_literal, is_valid_subscription
from gnatswarm.router.monitoring import aggregate, moving_clients
from gnatswarm.router.monitoring.page_query import DEFAULT_LIMIT, BadQuery, PageQuery
from gnatswarm.router.monitoring.pages import Busy
from gnatswarm.router.monitoring.request_options import BadOptions, RequestOptions, request_options
from gnatswarm.router.supervision.broker_view import cluster_of
from gnatswarm.shards.boundary import rows
from gnatswarm.shards.boundary.pace import Pace

if TYPE_CHECKING:
    from gnatswarm.router.monitoring.facts import Facts
    from gnatswarm.router.monitoring.state import MonitoringState
    from gnatswarm.router.supervision.broker_view import BrokerView
    from gnatswarm.router.supervision.reloader import ReloadOutcome

# An answer is one control message and one message to the client; a longer one must be requested page by page.
MOST_ANSWER_BYTES = 8 * 1024 * 1024
# Subscriptions that are looked at for one count: a pattern or a queue is compared with each of them.
MOST_COMPARED = 200_000
COMPARED_AT_ONCE = 1024
# Documents up to this size are serialized again without blanks; longer ones stay as the pages have them.
MOST_COMPACTED_BYTES = 512 * 1024
TOO_MANY = "too many requests at once, try again"

_STATES = ("open", "closed", "all")


class CountOptions(msgspec.Struct):
    """The options of SUBSCRIPTION_COUNT."""

    acc: str
    subject: str = ""
    queue: bytes = b""  # base64 in JSON; b"": every queue, and none


class Unasked(Exception):
    """The request is not for this broker: send no answer."""


_count_options = msgspec.json.Decoder(CountOptions)


def _check_client_named(what: str, body: bytes) -> None:
    """Unasked: this body does not say which client KICK or LDM is about. nats-server only writes that to its log."""
    try:
        request_options(what, body, says_who=False)
    except BadOptions:
        raise Unasked from None
    if not body:
        raise Unasked


def _subs(asked: RequestOptions) -> str | int:
    """How to show subscriptions, as in the query of a page."""
    return "detail" if asked.subscriptions_detail else int(asked.subscriptions)


class SystemAnswers:
    """Answers the requests to one broker."""

    def __init__(
        self, view: BrokerView, state: MonitoringState, reload: Callable[[], Awaitable[ReloadOutcome]] | None = None
    ) -> None:
        """`reload` reads the configuration again; None: it cannot be asked for."""
        self._view = view
        self._reload = reload
        self._is_like_newer = view.options.is_like_newer  # cannot change
        self._state = state
        self._of_server: dict[str, Callable[[RequestOptions], Awaitable[object]]] = {
            "VARZ": lambda asked: self._page(self._state.pages.varz),
            "CONNZ": lambda asked: self._connections(asked, asked.acc),
            "SUBSZ": lambda asked: self._subscriptions(asked, asked.account, is_listed=asked.subscriptions),
            "ROUTEZ": lambda asked: self._page(self._state.pages.routez, subs=_subs(asked)),
            "GATEWAYZ": lambda asked: self._page(self._state.pages.gatewayz),
            "LEAFZ": lambda asked: self._leafs(asked, asked.account),
            "ACCOUNTZ": lambda asked: self._page(self._state.pages.accountz, acc=asked.account),
            "JSZ": lambda asked: self._page(self._state.pages.jsz),
            "SHARDZ": lambda asked: self._page(self._state.pages.shardz),  # ours
            "HEALTHZ": self._health,
        }
        self._of_account: dict[str, Callable[[RequestOptions, str], Awaitable[object]]] = {
            "CONNZ": self._connections,
            "SUBSZ": lambda asked, name: self._subscriptions(asked, name, is_listed=True),
            "LEAFZ": self._leafs,
            "JSZ": self._no_jetstream,
            "INFO": lambda asked, name: self._state.pages.account_detail(self._state.gather(), name),
            "STATZ": self._statistics,
        }

    # ---- handling a request

    async def answer(self, account: str, subject: str, body: bytes) -> bytes:
        """The document; b"": no answer. `account` is the requestor's, who sees only that unless it is the system's."""
        try:
            return await self._answer(account, subject, body)
        except Unasked:
            return b""
        except Busy:
            return advisory.failure(self._named(), 503, TOO_MANY)

    async def _answer(self, account: str, subject: str, body: bytes) -> bytes:
        if subject in (advisory.SUBSCRIBERS, advisory.SUBSCRIPTION_COUNT):
            return await self._subscription_count(account, subject, body)
        words = subject.split(".")[2:]  # behind $SYS.REQ
        if words[:1] == ["SERVER"] and words[2:] == ["IDZ"] and self._is_like_newer:  # for all, whatever it says
            body = b""
        if words[-1:] in (["KICK"], ["LDM"]):
            _check_client_named(words[-1], body)
        is_for_all = words[-1:] == ["CONNS"]  # whichever servers its body names, as there
        try:
            asked = request_options(
                words[-1] if words[1:] != ["PING"] else "STATSZ",
                body,
                says_who=not is_for_all,
                is_like_newer=self._is_like_newer,
            )
        except BadOptions as error:
            if is_for_all:
                raise Unasked from None
            return advisory.failure(self._named(), 400, str(error))
        if not is_for_all and not self._is_meant(asked):
            raise Unasked
        if account != self._view.options.system_account:
            what = advisory.ABOUT_ONES_OWN.get(subject.encode())
            if what is None:
                raise Unasked
            return await self._wrapped(self._of_account[what](asked, account))
        match words:
            case ["SERVER", "PING"] | ["SERVER", "PING", "STATSZ"]:
                return await self.statsz()
            case ["SERVER", name, what] if name in ("PING", self._view.server_id):
                return await self._server(name, what, asked, body)
            case ["ACCOUNT", name, "CONNS"]:
                return await self._connection_count(name, asked)
            case ["ACCOUNT", "PING", "STATZ"]:
                return await self._wrapped(self._statistics(asked, ""))
            case ["ACCOUNT", *names, what] if what in self._of_account:
                return await self._wrapped(self._of_account[what](asked, ".".join(names)))
        raise Unasked

    async def _server(self, name: str, what: str, asked: RequestOptions, body: bytes) -> bytes:
        if what == "STATSZ":
            return await self.statsz()
        if what in ("KICK", "LDM") and name != "PING":
            return await self._wrapped(self._client(asked, is_kicked=what == "KICK"), has_data=False)
        if what == "RELOAD" and name != "PING" and self._is_like_newer and self._reload is not None:
            return await self._wrapped(self._reloaded(self._reload), has_data=False)
        if what == "IDZ" and self._is_like_newer:
            options = self._view.options
            return orjson.dumps(
                {"name": self._view.server_name, "host": options.host or "0.0.0.0", "id": self._view.server_id}
            )
        found = self._of_server.get(what)
        if found is None:
            raise Unasked
        return await self._wrapped(found(asked))

    def _is_meant(self, asked: RequestOptions) -> bool:
        view = self._view
        options = view.options
        wanted = (
            (asked.server_name, view.server_name),
            (asked.host, options.host or "0.0.0.0"),
            (asked.cluster, cluster_of(view)),
        )
        return (
            all(asks in has if not asked.exact_match else asks in ("", has) for asks, has in wanted)
            and not asked.domain  # of JetStream
            and {tag.lower() for tag in asked.tags} <= set(options.server_tags)
        )

    def _named(self) -> Document:
        view = self._view
        server = ServerIdentity(view.server_id, view.server_name, view.options, cluster_of(view))
        return server.document(view.page.next_event_number(), time.time_ns() // 1000)

    async def _wrapped(self, work: Awaitable[object], *, has_data: bool = True) -> bytes:
        """The result wrapped as {"server", "data"}, or with "error"."""
        answer: Document = {"data": None} if has_data else {}
        try:
            answer["data"] = await work
            if answer["data"] is None:
                del answer["data"]
        except Busy:
            answer["error"] = {"code": 503, "description": TOO_MANY}
        except BadQuery as error:
            answer["error"] = {"code": 500, "description": str(error)}
        text = orjson.dumps({"server": self._named()} | answer)
        if len(text) > MOST_ANSWER_BYTES:
            why = f"the answer has {len(text)} bytes, over {MOST_ANSWER_BYTES}: ask for less with limit and offset"
            return advisory.failure(self._named(), 500, why)
        return text

    # ---- documents

    async def _page(self, build: Callable[[PageQuery], Awaitable[bytes]], **query: str | int) -> object:
        page = await build(PageQuery(urlencode({key: value for key, value in query.items() if value})))
        return orjson.loads(page) if len(page) <= MOST_COMPACTED_BYTES else orjson.Fragment(page)

    async def _leafs(self, asked: RequestOptions, account: str) -> object:
        return await self._page(self._state.pages.leafz, subs=int(asked.subscriptions), acc=account)

    async def _connections(self, asked: RequestOptions, account: str) -> object:
        is_state = 0 <= asked.state < len(_STATES)
        subject = asked.filter_subject if asked.filter_subject != ">" else ""
        page = await self._page(
            lambda query: self._state.pages.connz(query, subject),
            sort=asked.sort,
            auth=int(asked.auth),
            subs=_subs(asked),
            offset=max(asked.offset, 0),
            limit=max(asked.limit, 0),
            cid=max(asked.cid, 0),
            state=_STATES[asked.state] if is_state else "open",
            user=asked.user,
            acc=account,
            mqtt_client=asked.mqtt_client if is_state else "nobody",
        )
        return page if is_state or not isinstance(page, dict) else page | {"total": 0}

    async def _subscriptions(self, asked: RequestOptions, account: str, *, is_listed: bool) -> object:
        offset, limit = max(asked.offset, 0), max(asked.limit, 0)
        query: dict[str, str | int] = {"offset": offset, "limit": limit, "test": asked.test, "acc": account}
        page = await self._page(self._state.pages.subsz, subs=int(is_listed), **query)
        if not isinstance(page, dict) or "server_id" in page:
            return page
        # Unlike here, over HTTP nats-server shows only the counters if no list was requested or it is empty.
        bounds = {"total": 0, "offset": offset, "limit": limit or DEFAULT_LIMIT}
        return {**aggregate.head(self._state.gather()), **page, **bounds}

    async def _health(self, asked: RequestOptions) -> object:
        fault = self._state.pages.health()
        if not self._is_like_newer:
            return aggregate.health_status(fault)
        query = {"account": asked.account, "stream": asked.stream, "consumer": asked.consumer}
        if wrong := PageQuery(urlencode(query)).healthz(is_like_newer=True):
            found, code = aggregate.health_status(wrong, is_bad_request=True, details=asked.details), 400
        else:
            found, code = aggregate.health_status(fault, details=asked.details), 503 if fault else 200
        return {"status": found.pop("status"), "status_code": code, **found}

    async def _reloaded(self, reload: Callable[[], Awaitable[ReloadOutcome]]) -> object:
        outcome = await reload()
        if outcome.refused:
            raise BadQuery("\n".join(outcome.refused))
        if outcome.is_late:
            raise BadQuery("a shard has not taken the new options yet")
        return None

    async def _no_jetstream(self, _asked: RequestOptions, _account: str) -> object:
        raise BadQuery("jetstream not enabled")

    async def _statistics(self, asked: RequestOptions, account: str) -> object:
        facts = self._state.gather()
        names = (account,) if account else asked.accounts
        found = await self._state.pages.account_statistics(facts, names, unused=asked.include_unused)
        if not found and not asked.include_unused:
            raise Unasked  # as in nats-server: a server without clients of these accounts does not answer
        return {**aggregate.head(facts), "account_statz": found}

    async def _client(self, asked: RequestOptions, *, is_kicked: bool) -> object:
        facts = self._state.gather()
        with_leaves = self._is_like_newer and is_kicked
        unknown = BadQuery("no such client or leafnode id" if with_leaves else "no such client id")
        if asked.cid <= 0:
            raise unknown
        query = rows.ClientQuery(asked.cid, is_kicked)

        told: list[rows.ClientPart] = []

        async def tell(shard: int) -> list[rows.ClientPart]:
            parts = await self._state.questions.ask(shard, query, rows.ClientPart)
            told.extend(parts)
            return parts

        if not await moving_clients.reaches([shard.shard for shard in facts.shards if shard.pid], tell):
            raise unknown
        if any(part.is_deaf for part in told):
            raise BadQuery("client does not support Lame Duck Mode or is not ready to receive the notification")
        return None

    # ---- counts of subscriptions: the answer is the number alone

    async def _subscription_count(self, account: str, subject: str, body: bytes) -> bytes:
        if account != self._view.options.system_account:
            raise Unasked
        if subject == advisory.SUBSCRIBERS:  # "subject" or "subject queue"
            wanted, queue = advisory.counted(body)
        else:
            try:
                asked = _count_options.decode(body)
                account, wanted, queue = asked.acc, asked.subject, asked.queue.decode("utf-8", "surrogateescape")
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                raise Unasked from None
        facts = self._state.gather()
        if account not in facts.accounts:
            raise Unasked
        raw = wanted.encode("utf-8", "surrogateescape")
        if len(raw) > self._view.options.limits.max_control_line_bytes:  # too long for any client
            return b"0"
        if any(character.isspace() for character in wanted) or not is_valid_subscription(raw):
            return b"0"
        try:
            return b"%d" % await self._count_subscriptions(facts, account, wanted, queue)
        except Busy:
            raise Unasked from None

    async def _count_subscriptions(self, facts: Facts, account: str, wanted: str, queue: str) -> int:
        """Subscriptions that would get this message, or are within this pattern; with `queue` of that group alone."""
        test = wanted if is_literal(wanted.encode("utf-8", "surrogateescape")) else ""
        pattern, pace = SubjectPattern(wanted), Pace()
        count = compared = 0
        for shard in (shard.shard for shard in facts.shards if shard.pid):
            offset = 0
            while True:
                most = COMPARED_AT_ONCE if queue or not test else 0
                question = rows.SubscriptionsQuery(offset, most, test, account)
                parts = await self._state.questions.ask(shard, question, rows.SubscriptionsPart)
                if not most:
                    count += parts[0].total if parts else 0
                    break
                found = [row for part in parts for row in part.rows]
                for row in found:
                    count += (not queue or row.queue == queue) and (bool(test) or pattern.covers(row.subject))
                    await pace()
                compared += len(found)
                if compared > MOST_COMPARED:
                    raise Unasked
                offset += len(found)
                if len(found) < COMPARED_AT_ONCE and not any(part.is_over for part in parts):
                    break
        return count

    # ---- figures that are also published without a request

    async def statsz(self) -> bytes:
        """The document of STATSZ."""
        facts = self._state.gather()
        accounts = await self._state.pages.account_statistics(facts, (), unused=False, is_vital=True)
        routes = await self._state.pages.routes(facts)
        return orjson.dumps({"server": self._named(), "statsz": aggregate.statsz(facts, len(accounts), routes)})

    async def connections(
        self, accounts: Collection[str] = (), *, has_lost: bool = False
    ) -> AsyncIterator[tuple[str, int, str, bytes]]:
        """The number of connections of each of these accounts, or of all that have any, and how to publish it.

        `has_lost`: also of those that had some, and have none.

        Account, number, subject and document: for both subjects of an account, one after the other.
        """
        facts = self._state.gather()
        found = await self._state.pages.account_statistics(
            facts, accounts, unused=bool(accounts), has_lost=has_lost, is_vital=True
        )
        pace = Pace()
        for one in found:
            for subject in advisory.account_connections_subjects(one["acc"]):
                document = advisory.account_connections(self._named(), facts.now_us, one)
                yield one["acc"], one["total_conns"], subject, document
            await pace()

    async def _connection_count(self, account: str, asked: RequestOptions) -> bytes:
        facts = self._state.gather()
        found = await self._state.pages.account_statistics(facts, (account,), unused=True)
        # As there, also of what the body names another account for, or of an account without clients.
        if (asked.names_acc and asked.acc != account) or not found or not found[0]["conns"]:
            raise Unasked
        return advisory.account_connections(self._named(), facts.now_us, found[0])
