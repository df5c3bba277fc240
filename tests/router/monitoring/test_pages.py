"""Pages put together from several shards' answers: in order, page by page, bounded, and one look for all who look."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from gnatswarm.broker.advisory import SUBSCRIBERS
from gnatswarm.broker.options import Account, Options, Permissions, User
from gnatswarm.router.monitoring import metrics, moving_clients, pages
from gnatswarm.router.monitoring.alarms import Alarms
from gnatswarm.router.monitoring.facts import Facts
from gnatswarm.router.monitoring.history import COUNTERS, History
from gnatswarm.router.monitoring.page_query import BadQuery, PageQuery
from gnatswarm.router.monitoring.pages import (
    MOST_BUILT,
    MOST_WAITING,
    ROWS_IN_ONE_STEP,
    SUBSCRIPTIONS_IN_ONE_STEP,
    Busy,
    Pages,
)
from gnatswarm.router.monitoring.shard_questions import Unanswered
from gnatswarm.router.monitoring.system_answers import SystemAnswers
from gnatswarm.shards.boundary import pace, rows
from gnatswarm.shards.boundary.control import GATEWAY_NUMBER
from tests.router.monitoring.broker_facts import A_LEAF, START_US, facts, shard
from tests.support.turns import until

NOTHING = {"msgs": 0, "bytes": 0}
ELSEWHERE = {"gateways": NOTHING, "routes": NOTHING, "leafs": NOTHING}
HISTORY = History(lambda: dict.fromkeys(COUNTERS, 0))
ALARMS = Alarms(facts, None)  # type: ignore[arg-type]

EMPTY: dict[type[rows.PageStruct], list[rows.PageStruct]] = {
    rows.ConnectionsQuery: [rows.ConnectionsPart(0, [])],
    rows.SubscriptionsQuery: [rows.SubscriptionsPart(0, [])],
    rows.SublistQuery: [rows.SublistPart(0, 0, 0, 0, 0, 0, 0, 0)],
    rows.SubjectsQuery: [rows.SubjectsPart(0, [])],
    rows.SlowQuery: [rows.SlowPart([], [])],
    rows.DeniedQuery: [rows.DeniedPart([])],
    rows.QueuesQuery: [rows.QueuesPart([])],
    rows.LinksQuery: [rows.LinksPart([])],
    rows.AccountsQuery: [rows.AccountsPart([])],
}


class Shards:
    """Answers with the rows set for a shard, or with those of an idle shard."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, rows.Query]] = []
        self.answers: dict[tuple[int, type[rows.PageStruct]], Callable[[Any], list[Any]]] = {}
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def ask(self, number: int, query: rows.Query, _kind: type[Any]) -> list[Any]:
        self.asked.append((number, query))
        await self.may_answer.wait()
        answer = self.answers.get((number, type(query)))
        return answer(query) if answer is not None else list(EMPTY.get(type(query), []))


class Site:
    """The pages of a broker of two shards; `begun` says how many have been asked for."""

    def __init__(self, **changes: Any) -> None:
        self.begun = 0
        self.shards = Shards()
        self.facts = facts(shard(0), shard(1), options=changes.pop("options", None))
        for name, value in changes.items():
            setattr(self.facts, name, value)
        self.pages = Pages(self.gather, self.shards, {}, HISTORY, ALARMS)  # type: ignore[arg-type]

    def gather(self) -> Facts:
        self.begun += 1
        return self.facts

    async def wait(self, begun: int, asked: int) -> None:
        """Until so many pages have gone as far as they can without an answer, and shards were asked so often."""
        await until(lambda: self.begun >= begun and len(self.shards.asked) >= asked)

    async def get(self, path: str, query: str = "") -> dict[str, Any]:
        found: dict[str, Any] = json.loads(await self.pages.by_path[path](PageQuery(query)))
        return found


def connection(cid: int, **changes: Any) -> rows.ConnectionRow:
    fields = {"cid": cid, "ip": "127.0.0.1", "port": 1, "start_us": START_US, "active_us": START_US}
    counts = dict.fromkeys(
        ("stop_us", "rtt_us", "pending_bytes", "in_msgs", "out_msgs", "in_bytes", "out_bytes", "subscriptions"), 0
    )
    words = dict.fromkeys(("reason", "name", "lang", "version", "user"), "")
    return rows.ConnectionRow(**{**fields, **counts, **words, "account": "$G", **changes})


PATHS = sorted(Pages(facts, None, {}, HISTORY, ALARMS).by_path)  # type: ignore[arg-type]
OF_ONE_THING = ("/whyz", "/clientz")


@pytest.mark.parametrize("path", [path for path in PATHS if path not in OF_ONE_THING])
@pytest.mark.parametrize("is_recorded", [True, False], ids=["recorded", "not recorded"])
async def test_every_page_is_a_document_when_nothing_has_happened(path: str, is_recorded: bool) -> None:
    assert isinstance(await Site(is_recorded=is_recorded).get(path), dict)


async def test_connections_of_all_shards_are_in_one_order() -> None:
    site = Site()
    for number, cids in ((0, (1, 4)), (1, (2, 3))):
        part = rows.ConnectionsPart(2, [connection(cid, in_msgs=cid) for cid in cids])
        site.shards.answers[number, rows.ConnectionsQuery] = lambda _query, part=part: [part]  # type: ignore[misc]
    page = await site.get("/connz", "limit=2&offset=1")
    assert [row["cid"] for row in page["connections"]] == [2, 3]
    assert (page["total"], page["num_connections"], page["offset"], page["limit"]) == (4, 2, 1, 2)
    # Any of the first three may be of any one shard.
    assert [query.most for _, query in site.shards.asked if isinstance(query, rows.ConnectionsQuery)] == [3, 3]


async def test_one_shard_alone_may_be_asked() -> None:
    site = Site()
    await site.get("/connz", "shard=1")
    assert [number for number, _ in site.shards.asked] == [1]
    with pytest.raises(BadQuery, match="no such shard"):
        await site.get("/connz", "shard=2")


async def test_a_shard_that_is_not_ready_is_not_asked() -> None:
    site = Site()
    site.facts.shards[0].phase = "starting"
    await site.get("/connz")
    assert [number for number, _ in site.shards.asked] == [1]


async def test_an_account_that_is_not_there_has_no_connections_and_nobody_is_asked() -> None:
    site = Site(options=Options())
    page = await site.get("/connz", "acc=nobody")
    assert (page["total"], page["connections"]) == (0, None)
    assert site.shards.asked == []
    with pytest.raises(BadQuery, match="does not exist"):
        await site.get("/accountz", "acc=nobody")


async def test_what_an_account_owes_is_known_by_shards_and_gateway() -> None:
    site = Site(options=Options(leafnodes=A_LEAF.leafnodes, accounts=(Account("A"),)))
    for number in (1, GATEWAY_NUMBER):
        due = [rows.DueReplyRow(f"_R_.{number}", "B", f"in.{number}")]
        part = rows.SublistPart(0, 0, 0, 0, 0, 0, 0, 0, due=due)
        site.shards.answers[number, rows.SublistQuery] = lambda _query, part=part: [part]  # type: ignore[misc]
    detail = (await site.get("/accountz", "acc=A"))["account_detail"]
    assert {made: reply["subject"] for made, reply in detail["responses"].items()} == {
        "_R_.1": "in.1",
        f"_R_.{GATEWAY_NUMBER}": f"in.{GATEWAY_NUMBER}",
    }


async def test_more_subscriptions_than_a_page_may_show_are_refused() -> None:
    site = Site()
    site.shards.answers[1, rows.ConnectionsQuery] = lambda _query: [rows.ConnectionsPart(1, [], is_over=True)]
    with pytest.raises(BadQuery, match="too many subscriptions"):
        await site.get("/connz", "subs=1")
    site.shards.answers[1, rows.SubscriptionsQuery] = lambda _query: [rows.SubscriptionsPart(1, [], is_over=True)]
    with pytest.raises(BadQuery, match="too many long subscriptions"):
        await site.get("/subsz", "subs=1")


async def test_a_page_of_subscriptions_goes_on_where_the_shard_before_ended() -> None:
    site = Site()
    for number in (0, 1):
        every = [rows.SubscriptionRow(f"s.{number}.{i}", "", "1", 0, 0, 1, "$G") for i in range(3)]
        site.shards.answers[number, rows.SubscriptionsQuery] = (
            lambda query, every=every: [  # type: ignore[misc]
                rows.SubscriptionsPart(3, every[query.offset : query.offset + query.most])
            ]
        )
    page = await site.get("/subsz", "subs=1&offset=2&limit=3")
    assert [row["subject"] for row in page["subscriptions_list"]] == ["s.0.2", "s.1.0", "s.1.1"]


@pytest.mark.parametrize(
    ("query", "older", "newer"),
    [
        ("limit=3", (3, 3), (6, 3)),
        ("offset=5&limit=3", (1, 1), (6, 1)),
        ("offset=99", (None, 0), (6, 0)),
        ("test=s&limit=1", (1, 1), (4, 1)),
        ("test=s&offset=99", (None, 0), (4, 0)),
    ],
)
@pytest.mark.parametrize("compatibility", ["2.9", "2.15"])
async def test_the_total_of_subscriptions_is_of_the_page_and_in_2_15_of_all_that_match(
    query: str, older: tuple[int | None, int], newer: tuple[int, int], compatibility: str
) -> None:
    site = Site(options=Options(compatibility=compatibility))
    for number in (0, 1):
        every = [rows.SubscriptionRow(f"s.{number}.{i}", "", "1", 0, 0, 1, "$G") for i in range(3)]

        def answer(query: rows.SubscriptionsQuery, every: list[Any] = every) -> list[Any]:
            found = every[:2] if query.test else every
            return [rows.SubscriptionsPart(len(found), found[query.offset : query.offset + query.most])]

        site.shards.answers[number, rows.SubscriptionsQuery] = answer
        site.shards.answers[number, rows.SublistQuery] = lambda _query: [rows.SublistPart(3, 0, 0, 0, 0, 0, 0, 0)]
    page = await site.get("/subsz", f"subs=1&{query}")
    found = page.get("total"), len(page.get("subscriptions_list", ()))
    assert found == (newer if compatibility == "2.15" else older)


async def test_many_who_want_the_same_look_cost_one() -> None:
    site = Site()
    site.shards.may_answer.clear()
    pages = [asyncio.ensure_future(site.get("/queuez", f"limit={limit}")) for limit in (1, 2, 3)]
    await site.wait(begun=3, asked=2)
    pages[0].cancel()  # the look is everybody's
    site.shards.may_answer.set()
    await asyncio.gather(*pages[1:])
    assert [number for number, _ in site.shards.asked] == [0, 1]


async def test_counters_do_not_fall_when_a_shard_comes_and_goes_within_the_time_of_a_look() -> None:
    site = Site(options=Options(accounts=(Account("A"),)))
    count = 0

    def answer(_query: rows.AccountsQuery) -> list[Any]:
        nonlocal count
        count += 1
        return [rows.AccountsPart([rows.AccountRow("A", in_msgs=count)])]

    site.shards.answers[0, rows.AccountsQuery] = answer
    two, three = site.facts.shards, [*site.facts.shards, shard(2)]
    late = [two[0], msgspec.structs.replace(two[1], is_suspect=True)]
    counts = []
    for shards in (two, three, two, late, two):
        site.facts.shards = shards
        page = (await site.pages.metrics(PageQuery(""))).decode()
        (line,) = [one for one in page.splitlines() if one.startswith("gnatswarm_account_received_messages_total")]
        counts.append(int(line.split()[1]))
    assert counts == sorted(counts)


async def test_few_pages_are_built_at_once_and_more_than_may_wait_are_refused() -> None:
    site = Site()
    site.shards.may_answer.clear()
    pages = [asyncio.ensure_future(site.get("/connz")) for _ in range(MOST_BUILT + MOST_WAITING)]
    await site.wait(begun=MOST_BUILT + MOST_WAITING, asked=2 * MOST_BUILT)
    assert len(site.shards.asked) == 2 * MOST_BUILT
    with pytest.raises(Busy):
        await site.get("/connz")
    assert (await site.get("/varz"))["server_name"] == "test", "it asks no shard"
    metrics = asyncio.ensure_future(site.pages.metrics(PageQuery("")))  # vital: it waits with them
    site.shards.may_answer.set()
    await asyncio.gather(*pages)
    assert b"gnatswarm_" in await metrics


async def test_a_sort_that_is_none_is_refused() -> None:
    for path in ("/connz", "/subjectz"):
        with pytest.raises(BadQuery, match="invalid sorting option"):
            await Site().get(path, "sort=colour")


async def test_a_page_of_many_connections_is_one_document() -> None:
    site = Site()
    count = 2 * ROWS_IN_ONE_STEP + 6
    part = rows.ConnectionsPart(count, [connection(cid) for cid in range(1, count + 1)])
    site.shards.answers[0, rows.ConnectionsQuery] = lambda _query: [part]
    page = await site.get("/connz")
    assert page["num_connections"] == page["total"] == count
    assert [row["cid"] for row in page["connections"]] == list(range(1, count + 1))


async def turns_until_done(page: asyncio.Future[bytes]) -> int:
    """How often the loop has run meanwhile."""
    turns = 0

    def is_done() -> bool:
        nonlocal turns
        turns += 1
        return page.done()

    await until(is_done)
    return turns


def system_answers(site: Site) -> SystemAnswers:
    view: Any = SimpleNamespace(
        options=site.facts.options,
        server_id="N",
        server_name="n",
        listener_groups=SimpleNamespace(servers={}),
        page=SimpleNamespace(next_event_number=lambda: 1),
    )
    state: Any = SimpleNamespace(gather=site.gather, questions=site.shards, pages=site.pages)
    return SystemAnswers(view, state)


async def test_who_counts_connections_is_told_when_too_many_ask_at_once() -> None:
    """As who asks in the system account for a page; it is no error of ours."""
    site = Site()
    site.shards.may_answer.clear()
    waiting = [asyncio.ensure_future(site.get("/connz")) for _ in range(MOST_BUILT + MOST_WAITING)]
    await site.wait(begun=MOST_BUILT + MOST_WAITING, asked=2 * MOST_BUILT)
    answer = await system_answers(site).answer(site.facts.options.system_account, "$SYS.REQ.ACCOUNT.$G.CONNS", b"")
    assert json.loads(answer)["error"]["code"] == 503
    site.shards.may_answer.set()
    await asyncio.gather(*waiting)


async def count_of(site: Site, subject: str) -> bytes:
    """How many subscriptions a request in the system account is told of."""
    return await system_answers(site).answer(site.facts.options.system_account, SUBSCRIBERS, subject.encode())


async def test_subscriptions_within_a_pattern_are_counted_in_many_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "SLICE_S", 0.0)
    site = Site()
    for number in (0, 1):
        found = [rows.SubscriptionRow(f"a.{sid}", "", str(sid), 0, 0, 1) for sid in range(500)]
        site.shards.answers[number, rows.SubscriptionsQuery] = lambda _query, found=found: [  # type: ignore[misc]
            rows.SubscriptionsPart(500, found)
        ]
    counted = asyncio.ensure_future(count_of(site, "a.*"))
    assert await turns_until_done(cast(Any, counted)) > 1000
    assert await counted == b"1000"


@pytest.mark.parametrize(("more", "asked"), [(0, 2), (1, 0)])
async def test_no_shard_is_asked_for_subscriptions_longer_than_any(more: int, asked: int) -> None:
    site = Site()
    longest = "s" * (site.facts.options.limits.max_control_line_bytes + more)
    assert await count_of(site, longest) == b"0"
    assert len(site.shards.asked) == asked


async def test_long_lists_that_clients_move_in_are_gone_through_in_many_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "SLICE_S", 0.0)
    site = Site()
    count = 20 * moving_clients.ROWS_IN_ONE_STEP
    found = [rows.SubscriptionRow(f"s.{number}", "", "1", 0, 0, number, "$G") for number in range(count)]
    site.shards.answers[0, rows.SubscriptionsQuery] = lambda _query: [rows.SubscriptionsPart(count, found)]
    steps = count / ROWS_IN_ONE_STEP
    page = asyncio.ensure_future(site.pages.subsz(PageQuery(f"subs=1&limit={count}")))
    assert await turns_until_done(page) > steps + 20
    assert len(json.loads(page.result())["subscriptions_list"]) == count
    here = [connection(cid) for cid in range(1, count + 1)]
    part = rows.ConnectionsPart(count, here, came=[(1, 1, START_US)])
    site.shards.answers[0, rows.ConnectionsQuery] = lambda _query: [part]
    page = asyncio.ensure_future(site.pages.connz(PageQuery(f"limit={count}")))
    assert await turns_until_done(page) > steps + 2 * 20
    assert [row["cid"] for row in json.loads(page.result())["connections"]] == [row.cid for row in here]


@pytest.mark.parametrize("subs", ["1", "detail"])
async def test_a_client_with_thousands_of_subscriptions_is_shown_in_many_turns(
    subs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site()
    count = 10 * SUBSCRIPTIONS_IN_ONE_STEP + 1
    many = tuple(rows.SubscriptionRow(f"s.{number}", "q" * (number % 2), "1", 0, 0, 1) for number in range(count))

    def answer(_query: object) -> list[rows.ConnectionsPart]:
        pieces = [many[at : at + 100] for at in range(0, count, 100)]
        here = [connection(1, subs=piece) for piece in pieces] + [connection(2, subs=many[:2]), connection(3)]
        return [rows.ConnectionsPart(3, here)]

    site.shards.answers[0, rows.ConnectionsQuery] = answer
    monkeypatch.setattr(pages, "SUBSCRIPTIONS_IN_ONE_STEP", count)
    at_once = await site.pages.connz(PageQuery(f"subs={subs}"))
    assert b'"s.%d"' % (count - 1) in at_once
    monkeypatch.setattr(pages, "SUBSCRIPTIONS_IN_ONE_STEP", SUBSCRIPTIONS_IN_ONE_STEP)
    monkeypatch.setattr(pace, "SLICE_S", 0.0)
    page = asyncio.ensure_future(site.pages.connz(PageQuery(f"subs={subs}")))
    assert await turns_until_done(page) > 10
    assert page.result().splitlines()[3:] == at_once.splitlines()[3:]


@pytest.mark.parametrize(("compatibility", "cids"), [("2.9", [4, 3, 2, 1]), ("2.15", [1, 2, 3, 4])])
async def test_who_has_been_idle_for_longest_comes_first_in_2_15_and_last_in_2_9(
    compatibility: str, cids: list[int]
) -> None:
    site = Site(options=Options(compatibility=compatibility))

    def answer(number: int, query: rows.ConnectionsQuery) -> list[Any]:
        every = [connection(cid, active_us=START_US + cid) for cid in (1, 2, 3, 4) if cid % 2 == number]
        every.sort(key=rows.order(query.sort, query.now_us))
        return [rows.ConnectionsPart(len(every), every[: query.most])]

    for number in (0, 1):
        site.shards.answers[number, rows.ConnectionsQuery] = partial(answer, number)
    page = await site.get("/connz", "sort=idle")
    assert [one["cid"] for one in page["connections"]] == cids
    page = await site.get("/connz", "sort=idle&limit=1&offset=1")
    assert [one["cid"] for one in page["connections"]] == cids[1:2]


async def test_thousands_of_queue_groups_are_summed_up_in_many_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "SLICE_S", 0.0)
    site = Site()
    count = 20 * ROWS_IN_ONE_STEP
    found = [rows.QueueRow(f"s.{number}", "q", "1", number, 1, "", "$G") for number in range(count)]
    for shard_number in (0, 1):
        site.shards.answers[shard_number, rows.QueuesQuery] = lambda _query: [rows.QueuesPart(found)]
    page = asyncio.ensure_future(site.pages.queuez(PageQuery("limit=2")))
    assert await turns_until_done(page) > 20
    document = json.loads(page.result())
    assert document["num_queues"] == count
    assert [one["subject"] for one in document["queues"]] == [f"s.{count - 1}", f"s.{count - 2}"]


async def test_of_thousands_of_accounts_that_are_asked_for_each_is_found_at_once() -> None:
    class Asked(tuple[str, ...]):
        def __contains__(self, _name: object) -> bool:
            raise AssertionError("the names that were asked for were looked through")

    site = Site(options=Options(accounts=(Account("A"), Account("B"))))
    found = await site.pages.account_statistics(site.facts, Asked(("A", "no")), unused=True)
    assert [one["acc"] for one in found] == ["A"]


async def test_accounts_that_a_shard_knows_and_that_have_no_connection_any_more_are_told_from_unused_ones() -> None:
    site = Site(options=Options(accounts=(Account("A"), Account("B"), Account("C"))))
    known = [rows.AccountRow("A", connections=1), rows.AccountRow("C")]
    site.shards.answers[0, rows.AccountsQuery] = lambda _query: [rows.AccountsPart(known)]

    async def named(**which: bool) -> list[str]:
        return [one["acc"] for one in await site.pages.account_statistics(site.facts, (), unused=False, **which)]

    assert await named() == ["A"]
    assert await named(has_lost=True) == ["A", "C"]

    async def said(*, has_lost: bool) -> dict[str, int]:
        told = system_answers(site).connections(has_lost=has_lost)
        return {account: count async for account, count, _subject, _document in told}

    assert await said(has_lost=False) == {"A": 1}
    assert await said(has_lost=True) == {"A": 1, "C": 0}


async def test_the_statistics_of_an_account_have_a_client_on_its_way() -> None:
    site = Site()
    left = [rows.PassingRow(7, 1, 0, "$G")]

    def of_new(query: rows.AccountsQuery) -> list[rows.AccountsPart]:
        return [rows.AccountsPart([], coming=[cid for cid in query.cids if cid == 7])]

    site.shards.answers[0, rows.AccountsQuery] = lambda _query: [
        rows.AccountsPart([rows.AccountRow("$G", connections=2)], left=left)
    ]
    site.shards.answers[1, rows.AccountsQuery] = of_new
    (found,) = (await site.get("/accstatz"))["account_statz"]
    assert (found["acc"], found["conns"]) == ("$G", 3)


@pytest.mark.parametrize("path", ["/accstatz", "/metrics"])
async def test_ten_thousands_of_accounts_are_summed_up_in_many_turns(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "SLICE_S", 0.0)
    names = [f"A{number:04}" for number in range(40 * ROWS_IN_ONE_STEP)]
    site = Site(options=Options(accounts=tuple(map(Account, names))))
    found = [rows.AccountRow(name, 1, number, number) for number, name in enumerate(names)]
    parts = [rows.AccountsPart(found[at : at + 64]) for at in range(0, len(found), 64)]
    for shard_number in (0, 1):
        site.shards.answers[shard_number, rows.AccountsQuery] = lambda _query: parts
    build = site.pages.by_path.get(path, site.pages.metrics)
    page: asyncio.Future[bytes] = asyncio.ensure_future(build(PageQuery("accounts=1")))
    turns = await turns_until_done(page)
    busiest = names[-1]
    if path == "/metrics":
        assert f'gnatswarm_account_connections{{account="{busiest}",shard="1"}} 1\n' in page.result().decode()
        assert turns > 2 * len(found) / metrics.ROWS_IN_ONE_STEP
    else:
        listed = json.loads(page.result())["account_statz"]
        assert [one["acc"] for one in listed] == names
        assert listed[-1]["received"] == {"msgs": 2 * len(found) - 2, "bytes": 2 * len(found) - 2, **ELSEWHERE}
        assert turns > 2 * len(found) / ROWS_IN_ONE_STEP + 2 * len(parts)


async def test_no_shard_is_asked_for_subscriptions_when_the_page_is_full() -> None:
    site = Site()
    found = [rows.SubscriptionRow(f"s.{i}", "", "1", 0, 0, 1, "$G") for i in range(2)]
    site.shards.answers[0, rows.SubscriptionsQuery] = lambda _query: [rows.SubscriptionsPart(2, found)]
    site.shards.answers[0, rows.SublistQuery] = lambda _query: [rows.SublistPart(2, 0, 0, 0, 0, 0, 0, 0)]
    page = await site.get("/subsz", "subs=1&limit=2")
    assert (page["total"], len(page["subscriptions_list"])) == (2, 2)
    assert [number for number, query in site.shards.asked if isinstance(query, rows.SubscriptionsQuery)] == [0]


async def test_links_are_shown_where_there_are_any_and_asked_for() -> None:
    site = Site()
    for number in (0, 1):
        row = rows.LinkRow(1 - number, START_US, number == 1, 5, 1, 2, 3, 4)
        site.shards.answers[number, rows.LinksQuery] = lambda _query, row=row: [  # type: ignore[misc]
            rows.LinksPart([row])
        ]
        site.facts.shards[number].links = 1
    assert "shard_links" not in await site.get("/routez")
    assert site.shards.asked == []
    page = await site.get("/routez", "shards=1")
    assert (page["num_routes"], page["num_shard_links"], len(page["shard_links"])) == (0, 2, 2)
    for one in site.facts.shards:
        one.links = 0
    site.shards.asked.clear()
    assert (await site.get("/routez", "shards=1"))["num_shard_links"] == 0
    assert site.shards.asked == [], "there are none"


async def test_slow_consumers_of_all_shards_are_in_one_order() -> None:
    site = Site()
    for number, pending in ((0, (10, 30)), (1, (20, 40))):
        present = [connection(bytes_, pending_bytes=bytes_) for bytes_ in pending]
        past = [connection(bytes_ + 1, stop_us=START_US + bytes_, reason="Slow Consumer") for bytes_ in pending]
        part = rows.SlowPart(present, past)
        site.shards.answers[number, rows.SlowQuery] = lambda _query, part=part: [part]  # type: ignore[misc]
    page = await site.get("/slowz", "limit=3&pending=7")
    assert [row["cid"] for row in page["present"]] == [40, 30, 20]
    assert [row["cid"] for row in page["past"]] == [41, 31, 21], "the latest first"
    asked = [query for _, query in site.shards.asked if isinstance(query, rows.SlowQuery)]
    assert [(query.least_pending_bytes, query.most) for query in asked] == [(7, 3)] * 2


async def test_a_slow_consumer_that_moved_or_was_closed_meanwhile_is_told_once() -> None:
    site = Site()
    here = [connection(1, pending_bytes=90, moved_us=START_US), connection(2, pending_bytes=80), connection(3)]
    there = [connection(1, pending_bytes=70, moved_us=START_US + 1)]
    closed = [connection(2, stop_us=START_US + 5, reason="Slow Consumer")]
    parts = rows.SlowPart(here, []), rows.SlowPart(there, closed)
    for turned in (parts, parts[::-1]):
        for number, part in enumerate(turned):
            site.shards.answers[number, rows.SlowQuery] = lambda _query, part=part: [part]  # type: ignore[misc]
        page = await site.get("/slowz")
        assert [(row["cid"], row["pending_bytes"]) for row in page["present"]] == [(1, 70), (3, 0)]
        assert [row["cid"] for row in page["past"]] == [2]


async def test_a_subscription_whose_client_moved_meanwhile_is_listed_once() -> None:
    site = Site()
    for number, msgs in ((0, 5), (1, 7)):
        found = [
            rows.SubscriptionRow("a", "", "1", msgs, 0, 1, "$G"),
            rows.SubscriptionRow(f"of.{number}", "", "2", 0, 0, 10 + number, "$G"),
        ]
        part = rows.SubscriptionsPart(2, found)
        site.shards.answers[number, rows.SubscriptionsQuery] = lambda _query, part=part: [part]  # type: ignore[misc]
    page = await site.get("/subsz", "subs=1")
    assert [(row["subject"], row["msgs"]) for row in page["subscriptions_list"]] == [("a", 7), ("of.0", 0), ("of.1", 0)]


async def test_metrics_without_subjects_and_recorder_ask_nobody() -> None:
    site = Site(is_recorded=False)
    assert b"gnatswarm_" in await site.pages.metrics(PageQuery("subjects=0"))
    assert site.shards.asked == []
    await site.pages.metrics(PageQuery("subjects=5"))
    assert [number for number, _ in site.shards.asked] == [0, 1]


async def test_metrics_without_subjects_ask_the_recorder_for_sums_only() -> None:
    site = Site()
    await site.pages.metrics(PageQuery("subjects=0"))
    assert site.shards.asked == [(number, rows.AccountsQuery(counts_clients=False)) for number in (0, 1)]


async def test_metrics_have_accounts_and_denials_without_a_shard_that_hangs() -> None:
    site = Site(options=Options(accounts=(Account("A"),)))
    for number, one in enumerate(site.facts.shards):
        one.denied_msgs = 3
        accounts = rows.AccountsPart([rows.AccountRow("A", 2, 10, 100, 20, 200, 1, 5)])
        denied = rows.DeniedPart([rows.DeniedRow("A", "ann", publishes=3)])
        site.shards.answers[number, rows.AccountsQuery] = lambda _query, part=accounts: [part]  # type: ignore[misc]
        site.shards.answers[number, rows.DeniedQuery] = lambda _query, part=denied: [part]  # type: ignore[misc]
    site.facts.shards[1].is_suspect = True
    text = (await site.pages.metrics(PageQuery(""))).decode()
    assert 'gnatswarm_account_connections{account="A",shard="0"} 2\n' in text
    assert 'gnatswarm_permission_denied_total{account="A",user="ann",action="publish",shard="0"} 3\n' in text
    assert {number for number, _ in site.shards.asked} == {0}
    assert 'gnatswarm_denied_messages_total{shard="1"} 3\n' in text, "the router's own facts are of all shards"


USERS = (
    User(name="deaf", password="x", account="A", permissions=Permissions(publish_deny=("orders.>",))),
    User(name="shop", password="x", account="A"),
    User(name="other", password="x", account="B"),
)


async def test_why_is_for_a_user_of_the_account_that_may_publish() -> None:
    site = Site(options=Options(accounts=(Account("A"), Account("B")), users=USERS))
    row = rows.SubscriptionRow("orders.*", "", "1", 0, 0, 7, "A")
    site.shards.answers[1, rows.SubscriptionsQuery] = lambda query: [
        rows.SubscriptionsPart(1, [row] if query.account == "A" else [])
    ]
    page = await site.get("/whyz", "subject=orders.new&acc=A")
    assert (page["why"]["user"], page["users"], page["heard"]) == ("shop", ["deaf", "shop"], True)
    assert 'cid 7 (no user) on shard 1: "orders.*"' in page["text"]
    page = await site.get("/whyz", "subject=orders.new&acc=A&user=deaf")
    assert 'publish deny "orders.>"' in page["why"]["stopped"] and not page["heard"]
    with pytest.raises(BadQuery, match="it depends on who publishes: add --user"):
        await site.get("/whyz", "subject=orders.new")
    for user in ("", "&user=shop"):
        with pytest.raises(BadQuery, match='there is no account "nope"'):
            await site.get("/whyz", f"subject=orders.new&acc=nope{user}")
    with pytest.raises(BadQuery, match=r'account "\$SYS" has no users'):
        await site.get("/whyz", "subject=orders.new&acc=$SYS")
    for wrong in ("", "subject=", "subject=a.*", "subject=a..b", "subject=" + "a" * 5000):
        with pytest.raises(BadQuery, match="subject"):
            await site.get("/whyz", wrong)


async def test_who_of_an_account_may_publish_is_found_without_a_look_at_all_users_for_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With 50,000 users of whom the first hundred may not, the router stood for half a second."""
    names = 0

    def shown(user: User) -> str:
        nonlocal names
        names += 1
        return user.name

    monkeypatch.setattr(User, "shown", property(shown))
    denies = Permissions(publish_deny=("orders.>",))
    users = tuple(User(f"u{number}", "x", account="A", permissions=denies) for number in range(500))
    page = await Site(options=Options(accounts=(Account("A"),), users=users)).get("/whyz", "subject=orders.new&acc=A")
    assert (page["why"]["user"], page["why"]["stopped"]) == ("u0", 'u0 may not publish it: publish deny "orders.>"')
    assert names < 5 * len(users)


async def test_a_client_is_shown_with_what_its_user_may_do() -> None:
    site = Site(options=Options(accounts=(Account("A"),), users=USERS))
    row = connection(7, user="deaf", account="A", login="password", came_from=0, moved_us=START_US, subscriptions=1)
    row.subs = (rows.SubscriptionRow("jobs", "workers", "1", 5, 0, 7),)
    site.shards.answers[1, rows.ConnectionsQuery] = lambda query: [
        rows.ConnectionsPart(1, [row] if query.cid == 7 else [])
    ]
    page = await site.get("/clientz", "cid=7")
    assert (page["client"]["shard"], page["client"]["moved_from"], page["login"]) == (1, 0, "password")
    assert page["client"]["subscriptions_list_detail"][0]["qgroup"] == "workers"
    assert page["permissions"]["publish"] == {"allow": None, "deny": ["orders.>"]}
    assert "password" not in {key for key in page if key != "login"}
    assert await site.get("/clientz", "cid=8") == {"client": None}
    with pytest.raises(BadQuery, match="which client"):
        await site.get("/clientz")


async def test_a_client_on_its_way_is_told_by_the_shard_that_expects_it() -> None:
    site = Site()
    row = connection(7, name="traveller")
    site.shards.answers[0, rows.ConnectionsQuery] = lambda query: [rows.ConnectionsPart(0, [], left=[(1, row)])]
    site.shards.answers[1, rows.ConnectionsQuery] = lambda query: [rows.ConnectionsPart(0, [], coming=query.cids)]
    page = await site.get("/connz", "search=travel")
    assert [(one["cid"], one["shard"]) for one in page["connections"]] == [(7, 1)]
    assert (page["num_connections"], page["total"]) == (1, 1)
    assert (await site.get("/connz", "search=nobody"))["connections"] == []
    assert (await site.get("/clientz", "cid=7"))["client"]["name"] == "traveller"


async def test_one_subject_has_its_publishers_even_if_nothing_was_counted() -> None:
    site = Site()
    publisher = connection(7, name="shop", in_msgs=3)
    site.shards.answers[1, rows.PublishersQuery] = lambda query: [
        rows.PublishersPart([publisher] if (query.account, query.subject) == ("A", "orders.new") else [])
    ]
    site.shards.answers[1, rows.HotSubjectsQuery] = lambda query: [
        rows.HotSubjectsPart(0, 1, 1, 0, [rows.HotSubjectRow("A", "orders.old", 5, 5, 5, 5, 0, 1)])
    ]
    page = await site.get("/subjectz", "subject=orders.new&acc=A")
    assert [(one["subject"], one["account"], one["msgs"]) for one in page["subjects"]] == [("orders.new", "A", 0)]
    named = {"cid": 7, "name": "shop", "user": "", "account": "$G", "shard": 1, "in_msgs": 3}
    assert page["publishers"] == [named]
    assert (await site.get("/subjectz", "subject=orders.old&acc=A"))["subjects"][0]["msgs"] == 5


async def test_hubs_are_counted_and_a_gateway_without_an_answer_has_none() -> None:
    site = Site(options=A_LEAF)
    hub = rows.LeafRow("hub", "$G", "10.0.0.1", 7422, True, 0, 0, 0, 0, 0, 0, 0)
    leaf = rows.LeafRow("leaf", "$G", "10.0.0.2", 7422, False, 0, 0, 0, 0, 0, 0, 0)
    site.shards.answers[GATEWAY_NUMBER, rows.LeafsQuery] = lambda _query: [rows.LeafsPart([hub, leaf])]
    row = rows.AccountRow("A", unwanted_msgs=7)
    site.shards.answers[1, rows.AccountsQuery] = lambda _query: [rows.AccountsPart([row])]
    found = await site.pages.asked_metrics(site.facts)
    assert found == {"hubs": {"": 1.0}, "unwanted_messages_total": {"0": 0.0, "1": 7.0}}

    def refused(_query: object) -> list[object]:
        raise Unanswered("shard 63 does not answer")

    site.shards.answers[GATEWAY_NUMBER, rows.LeafsQuery] = refused
    assert (await site.pages.asked_metrics(site.facts))["hubs"] == {"": 0.0}
