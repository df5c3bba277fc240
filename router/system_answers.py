"""Answers to requests in the system account: from a subject and its options to the document nats-server would send.

Options of a request are read as strictly as the pages' own: a wrong type is an error that says where. Imported when
somebody asks.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import msgspec
import orjson

from broker import advisory
from broker.advisory import Document, Server
from router import aggregate
from router.page_query import DEFAULT_LIMIT, BadQuery, PageQuery
from router.pages import Busy
from shards import rows

if TYPE_CHECKING:
    from router.facts import Facts
    from router.supervisor import Supervisor

# An answer is one control message and one message to the client; past this it is asked for in pages.
MOST_ANSWER_BYTES = 8 * 1024 * 1024
# Documents up to here are written anew without blanks; longer ones stay as the pages have them.
MOST_COMPACTED_BYTES = 512 * 1024

_STATES = ("open", "closed", "all")


class Options(msgspec.Struct, rename={"js_enabled": "js-enabled", "js_server_only": "js-server-only"}):
    """What a request may say, whatever it asks for; other keys are ignored, as Go does."""

    # Which servers are meant.
    server_name: str = ""
    cluster: str = ""
    host: str = ""
    tags: tuple[str, ...] = ()
    domain: str = ""
    # What is asked for.
    sort: str = ""
    auth: bool = False
    subscriptions: bool = False
    subscriptions_detail: bool = False
    offset: int = 0
    limit: int = 0
    cid: int = 0
    state: int = 0
    user: str = ""
    acc: str = ""
    account: str = ""
    test: str = ""
    accounts: tuple[str, ...] = ()
    include_unused: bool = False
    js_enabled: bool = False
    js_server_only: bool = False


class Unasked(Exception):
    """Nobody wants an answer to that from this broker."""


_options = msgspec.json.Decoder(Options)


class SystemAnswers:
    """Those of one supervisor."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._desk = supervisor.desk
        self._of_server: dict[str, Callable[[Options], Awaitable[object]]] = {
            "VARZ": lambda asked: self._page(self._desk.pages.varz),
            "CONNZ": lambda asked: self._connections(asked, asked.acc),
            "SUBSZ": lambda asked: self._subscriptions(asked, asked.account),
            "ROUTEZ": lambda asked: self._page(self._desk.pages.routez),
            "GATEWAYZ": lambda asked: self._page(self._desk.pages.gatewayz),
            "LEAFZ": lambda asked: self._page(self._desk.pages.leafz),
            "ACCOUNTZ": lambda asked: self._page(self._desk.pages.accountz, acc=asked.account),
            "JSZ": lambda asked: self._page(self._desk.pages.jsz),
            "SHARDZ": lambda asked: self._page(self._desk.pages.shardz),  # ours
            "HEALTHZ": self._health,
        }
        self._of_account: dict[str, Callable[[Options, str], Awaitable[object]]] = {
            "CONNZ": self._connections,
            "SUBSZ": self._subscriptions,
            "LEAFZ": lambda asked, name: self._page(self._desk.pages.leafz),
            "JSZ": self._no_jetstream,
            "INFO": lambda asked, name: self._desk.pages.account_detail(self._desk.gather(), name),
            "STATZ": self._statistics,
        }

    # ---- the way of a request

    async def answer(self, account: str, subject: str, body: bytes) -> bytes:
        """The document; b"": there is none. `account` is the asker's, who without that of the system sees its own."""
        try:
            return await self._answer(account, subject, body)
        except Unasked:
            return b""

    async def _answer(self, account: str, subject: str, body: bytes) -> bytes:
        words = subject.split(".")[2:]  # behind $SYS.REQ
        try:
            asked = _options.decode(body) if body.strip() else Options()
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return advisory.failure(self._named(), 400, str(error))
        if not self._is_meant(asked):
            raise Unasked
        if account != self._supervisor.options.system_account:
            what = advisory.ABOUT_ONES_OWN.get(subject.encode())
            if what is None:
                raise Unasked
            return await self._wrapped(self._of_account[what](asked, account))
        match words:
            case ["SERVER", "PING"] | ["SERVER", "PING", "STATSZ"]:
                return await self.statsz()
            case ["SERVER", name, what] if name in ("PING", self._supervisor.server_id):
                return await self._server(name, what, asked, body)
            case ["ACCOUNT", name, "CONNS"]:
                return await self._connection_count(name)
            case ["ACCOUNT", "PING", "STATZ"]:
                return await self._wrapped(self._statistics(asked, ""))
            case ["ACCOUNT", *names, what] if what in self._of_account:
                return await self._wrapped(self._of_account[what](asked, ".".join(names)))
        raise Unasked

    async def _server(self, name: str, what: str, asked: Options, body: bytes) -> bytes:
        if what == "STATSZ":
            return await self.statsz()
        if what in ("KICK", "LDM") and name != "PING":
            return await self._wrapped(self._client(asked, is_kicked=what == "KICK"), has_data=False)
        found = self._of_server.get(what)
        if found is None:
            raise Unasked
        return await self._wrapped(found(asked))

    def _is_meant(self, asked: Options) -> bool:
        supervisor = self._supervisor
        options = supervisor.options
        return (
            asked.server_name in supervisor.server_name
            and asked.host in (options.host or "0.0.0.0")
            and not asked.cluster  # there is none
            and not asked.domain  # of JetStream
            and {tag.lower() for tag in asked.tags} <= set(options.server_tags)
        )

    def _named(self) -> Document:
        supervisor = self._supervisor
        server = Server(supervisor.server_id, supervisor.server_name, supervisor.options)
        return server.document(supervisor.page.next_event_number(), time.time_ns() // 1000)

    async def _wrapped(self, work: Awaitable[object], *, has_data: bool = True) -> bytes:
        """{"server", "data"}, and "error" where there is one."""
        answer: Document = {"data": None} if has_data else {}
        try:
            answer["data"] = await work
            if answer["data"] is None:
                del answer["data"]
        except Busy:
            answer["error"] = {"code": 503, "description": "too many requests at once, try again"}
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

    async def _connections(self, asked: Options, account: str) -> object:
        if not 0 <= asked.state < len(_STATES):
            raise BadQuery(f"invalid state: {asked.state}")
        return await self._page(
            self._desk.pages.connz,
            sort=asked.sort,
            auth=int(asked.auth),
            subs="detail" if asked.subscriptions_detail else int(asked.subscriptions),
            offset=max(asked.offset, 0),
            limit=max(asked.limit, 0),
            cid=max(asked.cid, 0),
            state=_STATES[asked.state],
            user=asked.user,
            acc=account,
        )

    async def _subscriptions(self, asked: Options, account: str) -> object:
        # Of one account nats-server lists them unasked.
        is_listed = asked.subscriptions or bool(account and not asked.account)
        offset, limit = max(asked.offset, 0), max(asked.limit, 0)
        query: dict[str, str | int] = {"offset": offset, "limit": limit, "test": asked.test, "acc": account}
        page = await self._page(self._desk.pages.subsz, subs=int(is_listed), **query)
        if not isinstance(page, dict) or "server_id" in page:
            return page
        # Over HTTP nats-server says no more than the counters where no list was asked for, or there is none.
        bounds = {"total": 0, "offset": offset, "limit": limit or DEFAULT_LIMIT}
        return {**aggregate.head(self._desk.gather()), **page, **bounds}

    async def _health(self, _asked: Options) -> object:
        fault = self._desk.pages.health()
        return {"status": "unavailable", "error": fault} if fault else {"status": "ok"}

    async def _no_jetstream(self, _asked: Options, _account: str) -> object:
        raise BadQuery("jetstream not enabled")

    async def _statistics(self, asked: Options, account: str) -> object:
        facts = self._desk.gather()
        names = asked.accounts or ((account,) if account else ())
        found = await self._desk.pages.account_statistics(facts, names, unused=asked.include_unused)
        if account and not found and not asked.include_unused:
            raise Unasked  # as nats-server: whoever has no clients of it is silent
        return {**aggregate.head(facts), "account_statz": found}

    async def _client(self, asked: Options, *, is_kicked: bool) -> object:
        facts = self._desk.gather()
        if asked.cid <= 0:
            raise BadQuery("cid is missing: which client is meant")
        query = rows.ClientQuery(asked.cid, is_kicked)
        for shard in facts.shards:
            parts = await self._desk.questions.ask(shard.shard, query, rows.ClientPart) if shard.pid else []
            if any(part.is_found for part in parts):
                return None
        raise BadQuery("no such client id")

    # ---- figures that are also sent unasked

    async def statsz(self) -> bytes:
        """How the broker is."""
        facts = self._desk.gather()
        accounts = await self._desk.pages.account_statistics(facts, (), unused=False)
        return orjson.dumps({"server": self._named(), "statsz": aggregate.statsz(facts, len(accounts))})

    async def connections(self, account: str) -> list[tuple[str, bytes]]:
        """(subject, document) of how many connections an account has, to be published."""
        try:
            payload = await self._count(self._desk.gather(), account)
        except Unasked:  # a reload has taken it away
            return []
        return [(subject, payload) for subject in advisory.account_connections_subjects(account)]

    async def _connection_count(self, account: str) -> bytes:
        facts = self._desk.gather()
        if account not in facts.accounts:
            raise Unasked
        return await self._count(facts, account)

    async def _count(self, facts: Facts, account: str) -> bytes:
        found: list[dict[str, Any]] = await self._desk.pages.account_statistics(facts, (account,), unused=True)
        if not found:
            raise Unasked
        return advisory.account_connections(self._named(), facts.now_us, found[0])
