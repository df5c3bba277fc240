"""The dashboard in a real browser, and `gnatswarm top`: what people see is what the clients did.

GNATSWARM_SCREENSHOTS=<directory> keeps pictures of the page: light, dark, and on a phone.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import pytest_asyncio

from gnatswarm.router.commands.operator_commands import exchange, find
from gnatswarm.router.supervision.operator_socket import MoveRequest
from tests.support import browser, page_faults, swarm
from tests.support.browser import Browser
from tests.support.pages import Pages
from tests.support.servers import KINDS, Broker, oracle_is_required
from tests.support.wire import Cluster

pytestmark = pytest.mark.kinds("gnatswarm-2")

ATTACK = "<img src=x onerror=window.isHurt=1>"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    program = browser.find()
    if program is None:
        if oracle_is_required():
            pytest.fail("chromium is not installed", pytrace=False)
        pytest.skip("chromium is not installed")
    with Browser(program) as started:
        yield started


@pytest_asyncio.fixture
async def lively(start_broker: Callable[..., Broker], cluster_of: Callable[[Broker], Cluster]) -> Any:
    """A broker with something to see: 60 clients, hot subjects, a queue group, a subject that nobody wants."""
    broker = start_broker(args=["-m", "-1"], config="http_base_path: /monitoring\n")
    cluster = cluster_of(broker)
    for at in range(60):
        await cluster.client({"name": f"sensor-{at:02}"})
    subscribers = await cluster.clients(4, on_different_shards=True, connect={"name": "subscriber"})
    for client in subscribers:
        await client.send("SUB hot.> 1\r\nSUB jobs workers 2\r\n")
        await client.flush()
    publisher = await cluster.client({"name": ATTACK})
    await publisher.send("PUB hot.a 5\r\nhello\r\n" * 250 + "PUB jobs 1\r\nx\r\n" * 100 + "PUB lost 1\r\nx\r\n" * 7)
    await publisher.flush()
    pages = Pages.of(broker, base="/monitoring")
    await pages.wait("/varz", lambda page: page["out_msgs"] == 1100)
    return broker, pages, cluster


BADGE = "(badge => badge.textContent + badge.className.slice(5))(document.getElementById('health'))"


def cells(page: Browser, table: str, column: int) -> list[str]:
    """What stands in one column."""
    script = f"[...document.querySelectorAll('#{table} tbody tr')].map(row => row.cells[{column}].textContent)"
    return list(page.value(script))


async def test_the_page_shows_the_broker(chromium, lively):
    _broker, pages, _cluster = lively
    for path in ("/", ""):  # with and without a slash behind the base path the links are right
        chromium.open(f"http://{pages.host}:{pages.port}/monitoring{path}")
        chromium.wait("document.documentElement.dataset.looks >= 2")
        assert chromium.value("document.getElementById('health').textContent") == "healthy"
        tiles = chromium.value(
            "Object.fromEntries([...document.querySelectorAll('.tile')].map(t => [t.dataset.tile, t.innerText]))"
        )
        assert tiles["Connections"].split()[1] == "65"
        assert tiles["Published"].endswith("357 in all")
        assert tiles["Delivered"].endswith("1,100 in all")
        assert tiles["Subscriptions"].split()[1] == "8"
    assert cells(chromium, "shards", 1) == ["ready", "ready"]
    assert sum(int(text) for text in cells(chromium, "shards", 2)) == 65
    subjects = dict(zip(cells(chromium, "subjects", 0), cells(chromium, "subjects", 3), strict=True))
    assert subjects == {"hot.a": "250", "jobs": "100", "lost": "7"}
    assert cells(chromium, "subjects", 8) == ["4", "4", "nobody"]
    assert (cells(chromium, "queues", 0), cells(chromium, "queues", 4)) == (["workers"], ["100"])
    assert len(chromium.value("[...document.querySelectorAll('.members i')].map(i => i.title)")) == 4
    links = chromium.value("[...document.querySelectorAll('.matrix tbody td')].map(cell => cell.textContent)")
    assert (links[0], links[3]) == ("·", "·")
    addresses = chromium.value("[...document.querySelectorAll('footer a')].map(link => link.getAttribute('href'))")
    assert {"varz", "connz", "metrics", "healthz"} < set(addresses)
    # Programs still find the pages that are always empty here; people are not led there.
    assert not {"jsz", "routez", "gatewayz"} & set(addresses)
    assert all(page in pages.get("/").text for page in ("jsz", "routez", "leafz", "gatewayz"))
    assert chromium.errors == []


async def test_the_rate_of_a_subject_is_that_of_its_account(chromium, start_broker, cluster_of):
    config = "accounts { A { users: [ {user: a, password: a} ] }, B { users: [ {user: b, password: b} ] } }\n"
    broker = start_broker(args=["-m", "-1", "--no-stats"], config=config)
    cluster, pages = cluster_of(broker), Pages.of(broker)
    for user, count in (("a", 300), ("b", 2)):
        client = await cluster.client({"user": user, "pass": user})
        await client.talk("PUB x 1\r\nx\r\n" * count + "PING\r\n", expect="PONG\r\n")
    chromium.open(f"http://{pages.host}:{pages.port}/")
    chromium.wait("document.documentElement.dataset.looks >= 2")
    chromium.wait("document.querySelectorAll('#subjects tbody tr').length == 2")
    # What each was compared with, by its key.
    counted = chromium.value("[...before].filter(([key]) => key.startsWith('subject ')).map(([, one]) => one.value)")
    assert sorted(counted) == [2, 300]
    assert chromium.errors == []


async def test_connections_are_searched_sorted_and_paged(chromium, lively):
    _broker, pages, _cluster = lively
    chromium.open(f"http://{pages.host}:{pages.port}/monitoring/")
    chromium.wait("document.querySelectorAll('#connections-table tbody tr').length == 50")
    chromium.value("document.getElementById('next').click()")
    chromium.wait("document.querySelectorAll('#connections-table tbody tr').length == 15")
    assert chromium.value("document.getElementById('connections-count').textContent") == "51–65 of 65"
    # A slash goes to the search field, and what is typed there is what is shown.
    chromium.press("/")
    chromium.wait("document.activeElement.id === 'search'")
    chromium.enter("sensor-1")
    chromium.wait("document.querySelectorAll('#connections-table tbody tr').length == 10")
    assert cells(chromium, "connections-table", 1) == [f"sensor-1{at}" for at in range(10)]
    chromium.value("document.getElementById('search').value = ''")
    chromium.enter(" ")
    # Sorted by what clients got: subscribers first. By keyboard alone.
    chromium.value("document.querySelector('#connections-table [data-sort=msgs_to]').focus()")
    chromium.press("Enter")
    chromium.wait("document.querySelector('#connections-table tbody td:nth-child(2)').textContent === 'subscriber'")
    heading = "document.querySelector('#connections-table th[aria-sort]')"
    assert chromium.value(f"{heading}.textContent + ' ' + {heading}.ariaSort") == "Msgs to descending"
    assert chromium.value("document.activeElement.dataset.sort") == "msgs_to"
    # A client's name is text, whatever it looks like.
    chromium.value("document.getElementById('search').value = 'onerror'")
    chromium.value("document.getElementById('search').dispatchEvent(new Event('input'))")
    chromium.wait("document.querySelectorAll('#connections-table tbody tr').length == 1")
    assert cells(chromium, "connections-table", 1) == [ATTACK]
    assert not chromium.value("window.isHurt")
    assert chromium.value("document.querySelectorAll('#connections-table img').length") == 0
    assert chromium.errors == []


async def test_only_what_nobody_wants_and_pause(chromium, lively):
    _broker, pages, _cluster = lively
    chromium.open(f"http://{pages.host}:{pages.port}/monitoring/")
    chromium.wait("document.querySelectorAll('#subjects tbody tr').length == 3")
    chromium.value("document.getElementById('unwanted').click()")
    chromium.wait("document.querySelectorAll('#subjects tbody tr').length == 1")
    assert cells(chromium, "subjects", 0) == ["lost"]
    chromium.press("p")
    chromium.wait("document.getElementById('pause').getAttribute('aria-pressed') === 'true'")
    chromium.press("p")
    looks = chromium.value("document.documentElement.dataset.looks")
    chromium.wait(f"document.documentElement.dataset.looks > {looks}")


@pytest.mark.parametrize("look", ["light", "dark", "phone", "phone-dark"])
async def test_it_fits_the_screen_and_can_be_read(chromium, lively, tmp_path, look):
    _broker, pages, _cluster = lively
    width = 390 if "phone" in look else 1280
    chromium.open(f"http://{pages.host}:{pages.port}/monitoring/", width=width, is_dark="dark" in look)
    chromium.wait("document.documentElement.dataset.looks >= 2")
    assert chromium.value("document.documentElement.scrollWidth") <= width
    brightness = "Number(getComputedStyle(document.body).{}.match(/\\d+/g)[1])"
    ground, ink = (chromium.value(brightness.format(name)) for name in ("backgroundColor", "color"))
    assert (ink - ground > 150) if "dark" in look else (ground - ink > 150)
    directory = Path(os.environ.get("GNATSWARM_SCREENSHOTS", tmp_path))
    picture = directory / f"dashboard-{look}.png"
    chromium.photograph(picture)
    assert picture.stat().st_size > 10_000
    assert chromium.value(page_faults.SCRIPT) == []
    # By keyboard alone, and one sees where one is.
    chromium.press("Tab")
    assert chromium.value("document.activeElement.textContent") == "Skip to connections"
    chromium.press("Tab")
    assert chromium.value("document.activeElement.id") == "pause"
    assert chromium.value("parseFloat(getComputedStyle(document.activeElement).outlineWidth)") >= 2
    for address in ("#client/1", "#subject/$G/lost", "#queue/$G/jobs/workers"):
        chromium.value(f"location.hash = '{address}'")
        chromium.wait("document.querySelector('#detail-body .facts') !== null")
        assert chromium.value(page_faults.SCRIPT) == []
        assert chromium.value("document.documentElement.scrollWidth") <= width


async def test_a_broker_that_goes_away_is_said_and_its_return_is_seen(chromium, lively):
    broker, pages, cluster = lively
    chromium.open(f"http://{pages.host}:{pages.port}/monitoring/")
    chromium.wait("document.documentElement.dataset.looks >= 1")
    cluster.close()
    broker.stop()
    chromium.wait("document.getElementById('trouble').textContent.startsWith('The broker does not answer')")
    chromium.wait(f"{BADGE} === 'no answer bad'")
    assert chromium.value("document.documentElement.classList.contains('stale')")
    chromium.errors.clear()


async def test_a_router_that_hangs_is_said_too(chromium, lively):
    """It accepts, and answers nothing: no error ends the page's wait."""
    broker, pages, _cluster = lively
    chromium.open(f"http://{pages.host}:{pages.port}/monitoring/")
    chromium.wait(f"{BADGE} === 'healthy good'")
    router = swarm.status(broker)["router_pid"]
    os.kill(router, signal.SIGSTOP)
    try:
        chromium.wait(f"{BADGE} === 'no answer bad'")
    finally:
        os.kill(router, signal.SIGCONT)
    chromium.wait(f"{BADGE} === 'healthy good' && !document.documentElement.classList.contains('stale')")
    assert chromium.value("document.getElementById('trouble').textContent") == ""
    chromium.errors.clear()


async def test_a_shard_that_hangs_is_said_at_once(chromium, lively):
    """Pages that ask the shard wait until it is killed; what is wrong does not."""
    broker, pages, _cluster = lively
    chromium.open(f"http://{pages.host}:{pages.port}/monitoring/")
    chromium.wait("document.documentElement.dataset.looks >= 1")
    hung = (await swarm.pids(broker))[1]
    swarm.signal_shard(broker, hung, signal.SIGSTOP)
    chromium.wait("document.getElementById('health').textContent.includes('shard 1 ')")
    state = "document.querySelector('#shards tbody tr:nth-child(2)').cells[1]"
    chromium.wait(f"{state}.textContent !== 'ready' && {state}.firstChild.className === 'bad'")
    chromium.wait("document.getElementById('health').textContent === 'healthy'", 30)
    chromium.wait("[...document.querySelectorAll('#shards tbody tr')].at(1).cells[10].textContent === '2'", 30)
    assert chromium.value("document.getElementById('trouble').textContent") == ""


async def test_the_chart_knows_what_happened_before_the_page_was_opened(chromium, lively):
    _broker, pages, _cluster = lively
    # Four samples: three rates.
    await pages.wait("/historyz", lambda page: len(page["at"]) >= 4 and page["in_msgs"][-1] == 357)
    chromium.open(f"http://{pages.host}:{pages.port}/monitoring/")
    chromium.wait("document.querySelectorAll('#chart polyline').length == 2")
    # Of its own looks the page has one point fewer than there were.
    chromium.wait("document.querySelector('#chart polyline').getAttribute('points').split(' ').length > looks")
    chromium.value(
        "(span => { span.value = '3600'; span.dispatchEvent(new Event('change')); })(document.getElementById('span'))"
    )
    chromium.wait("document.getElementById('chart').getAttribute('aria-label').includes('one hour: now')")


async def test_the_second_in_which_the_page_was_opened_is_in_the_chart_too(chromium, lively):
    """What came after the broker's last sample, and before the first look, is asked for later."""
    _broker, pages, _cluster = lively
    chromium.open(f"http://{pages.host}:{pages.port}/monitoring/")
    asked = "performance.getEntriesByType('resource').filter(one => one.name.includes('historyz')).length"
    chromium.wait(f"looks > 3 && {asked} === 2")


async def test_the_chart_of_ten_minutes_has_means_of_its_steps(chromium, lively):
    """Not what the second was like in which a step ended: of bursts most such seconds know nothing."""
    _broker, pages, _cluster = lively
    chromium.open(f"http://{pages.host}:{pages.port}/monitoring/")
    chromium.wait("looks > 3 && history.length")
    chromium.value("isPaused = true")
    general = json.dumps(await asyncio.to_thread(pages.json, "/varz"))
    # A thousand messages in each second of which the number ends in 1 or 6.
    label = chromium.value(
        f"(general => {{ KEPT = 600; history.length = 0; looks = 5;"
        " for (let second = 0; second <= 20; second++) drawGeneral({ ...general,"
        " now: new Date(1e12 + 1000 * second).toISOString(), in_msgs: 1000 * Math.floor((second + 4) / 5) });"
        f" return document.getElementById('chart').getAttribute('aria-label') }})({general})"
    )
    assert label.endswith("now 200 published, 0 delivered; at most 200 and 0"), label


async def test_other_servers_are_hubs_or_leaf_nodes_as_the_broker_says(chromium, lively):
    _broker, pages, _cluster = lively
    chromium.open(f"http://{pages.host}:{pages.port}/monitoring/")
    chromium.wait("looks > 0")
    chromium.value("isPaused = true")
    leaf = "{ ip: '::1', port: 1, account: 'A', in_msgs: 0, out_msgs: 0, in_bytes: 0, out_bytes: 0, rtt: '0s' }"
    # (as nats-server 2.9's page, that of a broker with its ways does not say which of the two it is)
    rows = f"[{{ is_spoke: true }}, {{ is_spoke: false }}, {{}}].map(one => ({{ ...{leaf}, ...one }}))"
    chromium.value(f"drawServers({{ leafs: {rows} }}, {{}})")
    assert cells(chromium, "leafs", 1) == ["hub", "leaf node", "leaf node or hub"]


async def test_a_subject_that_is_no_text_is_not_one_that_nobody_wants(chromium, start_broker, cluster_of, tmp_path):
    for args in (["--stats-dir", str(tmp_path)], ["--no-stats"]):
        broker = start_broker(args=["-m", "-1", *args])
        pages = Pages.of(broker)
        client = await cluster_of(broker).client()
        await client.talk(
            b"SUB no.\xff 1\r\nPUB no.\xff 1\r\nx\r\nPUB lost.\xff 1\r\nx\r\nPING\r\n", expect_last="PONG\r\n"
        )
        page = await asyncio.to_thread(pages.json, "/subjectz")
        assert {row["subject"]: row["wanted"] for row in page["subjects"]} == {"no.\ufffd": True, "lost.\ufffd": False}
        chromium.open(pages.url + "/#subject/$G/no.%EF%BF%BD")
        chromium.wait("document.querySelectorAll('#subjects tbody tr').length == 2")
        shown = dict(zip(cells(chromium, "subjects", 0), cells(chromium, "subjects", 8), strict=True))
        assert shown == {"no.\ufffd": "" if args[0] == "--stats-dir" else "1", "lost.\ufffd": "nobody"}
        assert set(cells(chromium, "subjects", 7)) == {"unknown"}
        chromium.wait("document.getElementById('detail-body').innerText.includes('deliveries')")
        assert "Nobody" not in chromium.value("document.getElementById('detail-body').innerText")
        assert chromium.errors == []


async def test_a_clock_that_is_set_back_does_not_stop_the_page(chromium, lively):
    _broker, pages, _cluster = lively
    chromium.open(f"http://{pages.host}:{pages.port}/monitoring/")
    chromium.wait("looks > 2 && history.length")
    seen = "[[0, 5000], [200, 5002], [300, 1403], [400, 1404], [500, 1405]].map(([n, at]) => rate('a', n, at))"
    assert chromium.value(seen) == [0, 100, 0, 100, 100]
    chromium.value("history.push({ now: 1e12, in: 0, out: 0 })")  # a look before the clock was set back
    chromium.wait("history.length > 1 && history.every(point => point.now < 1e12)")


async def test_a_shard_that_was_removed_is_not_one_that_is_missing(chromium, lively):
    broker, pages, cluster = lively
    client = await swarm.client_on(cluster, 1)  # one that has counted nothing would not be listed
    await client.talk("PUB lost 1\r\nx\r\nPING\r\n", expect_last="PONG\r\n")
    await swarm.scale(broker, 1)
    chromium.open(f"http://{pages.host}:{pages.port}/monitoring/")
    chromium.wait("document.documentElement.dataset.looks >= 2")
    assert cells(chromium, "shards", 1) == ["ready", "stopped"]
    assert chromium.value("document.getElementById('skew').textContent") == "one shard"
    assert chromium.value("document.getElementById('links').textContent") == "One shard: nothing to link."
    assert chromium.value("document.querySelectorAll('#shards .bad').length") == 0


async def test_the_shares_of_many_members_fit_their_place(chromium, start_broker, cluster_of):
    broker = start_broker(args=["-m", "-1"])
    clients = await cluster_of(broker).clients(32)
    for client in clients:
        await client.talk("SUB jobs workers 1\r\nPING\r\n", expect="PONG\r\n")
    await clients[0].talk("PUB jobs 1\r\nx\r\n" * 500 + "PING\r\n", expect_last="PONG\r\n")
    chromium.open(Pages.of(broker).url + "/")
    chromium.wait("document.querySelectorAll('#queues .members i').length === 32")
    bar = "document.querySelector('#queues .members')"
    assert chromium.value(f"{bar}.scrollWidth <= {bar}.clientWidth")
    widths = chromium.value(f"[...{bar}.children].map(one => one.getBoundingClientRect().width)")
    assert min(widths) >= 2
    assert all(
        before >= after - 0.1 for before, after in pairwise(widths)
    )  # the busiest first; parts of a pixel differ


async def test_accounts_are_told_apart(chromium, start_broker, cluster_of):
    config = "accounts { A { users: [{user: a, password: a}] }, B { users: [{user: b, password: b}] } }\n"
    broker = start_broker(args=["-m", "-1"], config=config)
    cluster = cluster_of(broker)
    for user in ("a", "b"):
        member = await cluster.client({"user": user, "pass": user, "name": f"member of {user}"})
        await member.talk("SUB jobs workers 1\r\nPING\r\n", expect_last="PONG\r\n")
        publisher = await cluster.client({"user": user, "pass": user})
        await publisher.talk("PUB jobs 1\r\nx\r\nPING\r\n", expect_last="PONG\r\n")
    pages = Pages.of(broker)
    chromium.open(pages.url + "/")
    chromium.wait("document.querySelectorAll('#queues tbody tr').length == 2")
    assert sorted(cells(chromium, "queues", 2)) == ["A", "B"]
    assert cells(chromium, "queues", 3) == ["1", "1"]
    assert sorted(cells(chromium, "subjects", 1)) == ["A", "B"]
    assert cells(chromium, "subjects", 3) == ["1", "1"]
    assert sorted(cells(chromium, "connections-table", 3)) == ["A", "A", "B", "B"]


async def test_a_name_cannot_turn_the_text_around_it(chromium, start_broker, cluster_of):
    broker = start_broker(args=["-m", "-1"])
    client = await cluster_of(broker).client({"name": "invoice\u202efdp.exe\u0007\u200b"})
    await client.talk("SUB a \u2066q 1\r\nPING\r\n", expect_last="PONG\r\n")
    chromium.open(Pages.of(broker).url + "/")
    chromium.wait("document.querySelectorAll('#connections-table tbody tr').length == 1")
    assert cells(chromium, "connections-table", 1) == ["invoice\\u{202E}fdp.exe\\u{7}\\u{200B}"]
    chromium.wait("document.querySelectorAll('#queues tbody tr').length == 1")
    assert cells(chromium, "queues", 0) == ["\\u{2066}q"]
    tips = "[...document.querySelectorAll('[title]')].map(element => element.title).join()"
    assert not re.search("[\u202a-\u202e\u2066-\u2069\u200b]", chromium.value(f"document.body.innerText + {tips}"))


async def test_publishers_are_a_number_or_unknown_never_blank(chromium, start_broker, cluster_of, tmp_path):
    """A client counts for the subject of its latest message only, so a busy subject may have none."""
    for args, shown in (
        (["--stats-dir", str(tmp_path)], {"busy": "0", **{f"last.{at}": "1" for at in range(3)}}),
        (["--no-stats"], dict.fromkeys(["busy", "last.0", "last.1", "last.2"], "unknown")),
    ):
        broker = start_broker(args=["-m", "-1", *args])
        for at in range(3):
            client = await cluster_of(broker).client()
            lines = f"PUB busy 1\r\nx\r\nPUB last.{at} 1\r\nx\r\nPING\r\n"
            await client.talk(lines, expect_last="PONG\r\n")
        chromium.open(Pages.of(broker).url + "/")
        chromium.wait("document.querySelectorAll('#subjects tbody tr').length == 4")
        assert dict(zip(cells(chromium, "subjects", 0), cells(chromium, "subjects", 7), strict=True)) == shown


async def test_rows_open(chromium, lively):
    _broker, pages, _cluster = lively
    chromium.open(f"http://{pages.host}:{pages.port}/monitoring/")
    for table, rows in (("queues", 1), ("shards", 2)):
        chromium.wait(f"document.querySelectorAll('#{table} tbody tr').length == {rows}")
    title, body = (f"document.getElementById('detail{part}').innerText" for part in ("-title", "-body"))
    chromium.wait("document.querySelectorAll('#subjects tbody tr').length == 3")

    def opened(table: str, row: int) -> str:
        """With the mouse, in the middle of the row's second cell."""
        chromium.click(f"document.querySelectorAll('#{table} tbody tr')[{row}].cells[1]")
        chromium.wait(
            "document.getElementById('detail').open && document.querySelector('#detail-body .facts') !== null"
        )
        return str(chromium.value(f"{title} + '\\n' + {body}"))

    def close() -> None:
        chromium.press("Escape")
        chromium.wait("!document.getElementById('detail').open")

    shard = opened("shards", 1)
    assert shard.startswith("Shard 1\n") and re.search(r"last exit\s+none", shard)
    close()
    subject = opened("subjects", 0)
    assert subject.startswith("hot.a\n")
    assert subject.count("hot.>") == 4  # its subscribers
    close()
    queue = opened("queues", 0)
    assert queue.startswith("workers on jobs\n")
    assert queue.count("subscriber") == 4
    # By keyboard: from the member to the client, and what it is subscribed to.
    chromium.value("document.querySelector('#detail-body [data-row]').focus()")
    chromium.press("Enter")
    chromium.wait(f"{title}.startsWith('Client ') && {body}.includes('workers')")
    assert "hot.>" in chromium.value(body)
    close()
    chromium.wait("document.querySelectorAll('#connections-table tbody tr').length == 50")
    client = opened("connections-table", 0)
    assert "sensor-00" in client and "It has none." in client
    assert chromium.errors == []


ACCOUNTS = """
accounts {
  A { users: [ {user: shop, password: s, permissions: {publish: {allow: "orders.>"}}},
               {user: worker, password: w, permissions: {publish: {deny: ">"}}} ] }
}
"""


async def move(broker: Broker, shard: int, to: int) -> None:
    """Every client of the shard goes on in the other one."""
    reply = await asyncio.to_thread(exchange, find(broker.pid, broker.port), MoveRequest(shard, to, 1))
    assert reply.text.startswith("1 clients moved"), reply


async def test_clients_and_subjects_have_pages_and_what_is_wrong_is_said(chromium, start_broker, cluster_of, tmp_path):
    broker = start_broker(args=["-m", "-1", "--stats-dir", str(tmp_path)], config=ACCOUNTS)
    pages, cluster = Pages.of(broker), cluster_of(broker)
    await pages.wait("/alarmz", lambda page: page["watched_since"] is not None)
    worker = await cluster.client_on(0, {"user": "worker", "pass": "w", "name": ATTACK + "\u202e" + "n" * 2000})
    shop = await cluster.client_on(1, {"user": "shop", "pass": "s"})
    await worker.talk("SUB orders.new workers 1\r\nPING\r\n", expect_last="PONG\r\n")
    await shop.send("PUB orders.new 1\r\nx\r\nPUB orders.lost 1\r\nx\r\nPUB stock 1\r\nx\r\n")
    await shop.expect_line(".*Publish to .stock.*")
    detail = "document.getElementById('detail')"
    title, body = f"{detail}.querySelector('h2').innerText", "document.getElementById('detail-body').innerText"

    chromium.open(pages.url + "/")
    chromium.wait("document.querySelector('#alarms .info')?.innerText.includes('what their permissions do not allow')")
    assert "gnatswarm why SUBJECT --user NAME" in chromium.value("document.querySelector('#alarms .info').innerText")
    assert "permissions" in chromium.value("document.getElementById('said').textContent")
    # It is said once to a screen reader, not at every look.
    chromium.value(
        "window.told = []; for (const place of document.querySelectorAll('[role=status], [role=alert]')) {"
        "  let last = place.textContent;"
        "  new MutationObserver(() => last === (last = place.textContent) && told.push(last))"
        "    .observe(place, {childList: true, characterData: true, subtree: true}); }"
    )
    # What nobody got leads to why.
    chromium.wait("document.querySelector('#subjects a[href=\"#subject/A/orders.lost\"]') !== null")
    chromium.click("document.querySelector('#subjects a[href=\"#subject/A/orders.lost\"]')")
    chromium.wait(f"{body}.includes('Nobody subscribes to it.')")
    assert 'publish allow "orders.>"' in chromium.value(body) and chromium.value(title) == "orders.lost"
    chromium.value(
        "(choice => { choice.value = 'worker'; choice.dispatchEvent(new Event('change')); })"
        "(document.getElementById('why-user'))"
    )
    chromium.wait(f"{body}.includes('STOPPED: worker may not publish it')")
    chromium.press("Escape")
    chromium.wait(f"!{detail}.open && location.hash === ''")
    looks = chromium.value("Number(document.documentElement.dataset.looks)")
    chromium.wait(f"document.documentElement.dataset.looks > {looks + 1}")
    assert chromium.value("told") == []

    # A client has an address, and its page is kept fresh: it moves meanwhile.
    chromium.value(f"location.hash = '#client/{worker.info['client_id']}'")
    chromium.wait(f"{body}.includes('Subscriptions: 1')")
    shown = chromium.value(body)
    assert ATTACK + "\\u{202E}nnn" in shown and not chromium.value("window.isHurt")
    assert re.search(r"user\s+worker\s+by\s+password\s+account\s+A\s", shown)
    assert re.search(r"shard\s+0\s+moved\s+no\s", shown) and re.search(r"But not\s+>\s", shown)
    chromium.value("document.querySelector('#detail-body a').focus()")
    await move(broker, 0, 1)
    chromium.wait(f"/shard\\s+1\\s+moved\\s+from shard 0/.test({body})")
    # Drawn anew, but who has come to the link is still there.
    assert chromium.value("document.activeElement.getAttribute('href')") == "#shard/1"
    shards = "[...document.querySelectorAll('#shards tbody tr')]"
    chromium.wait(f"{shards}.map(row => row.cells[10].textContent).join() === '0 / 1,1 / 0'")
    # From the subject to who gets it, by keyboard; the focus goes back to where it was.
    chromium.press("Escape")
    chromium.wait(f"!{detail}.open")
    chromium.value("document.querySelector('#connections-table [data-row]').focus()")
    row = chromium.value("document.activeElement.dataset.row")
    chromium.press("Enter")
    chromium.wait(f"{detail}.open && {body}.includes('Subscriptions')")
    chromium.press("Escape")
    chromium.wait(f"!{detail}.open && document.activeElement.dataset.row === '{row}'")
    # Addresses that are none of ours, and things that are not there.
    for address, wanted in (
        ("#client/999", "no longer remembers"),
        (f"#subject/A/{quote(ATTACK, safe='')}", "Nothing was published"),
        ("#shard/7", "no such shard"),
        ("#queue/A/x/y", "no members"),
    ):
        chromium.value(f"location.hash = '{address}'")
        chromium.wait(f"{body}.includes('{wanted}')")
    for address in ("#nonsense/1", "#client", "#constructor/1", "#client/%"):
        chromium.value(f"location.hash = '{address}'")
        chromium.wait(f"!{detail}.open")
    assert not chromium.value("window.isHurt")
    # A broken address has been asked for: Chromium notes answers of 400, and nothing else is wrong.
    assert [error for error in chromium.errors if "status of 400" not in error] == []


async def test_nothing_is_loaded_from_elsewhere(lively):
    _broker, pages, _cluster = lively
    page = pages.get("/", Accept="text/html")
    assert page.headers["content-security-policy"].startswith("default-src 'none'")
    # Namespaces are names, not addresses.
    addresses = re.findall(r"(?:https?:)?//[\w.]+", page.text.replace("http://www.w3.org", ""))
    assert [address for address in addresses if "." in address] == []
    assert "<link rel" in page.text and "src=" not in page.text


# ---- gnatswarm top


def top(kind: Any, *words: str) -> subprocess.CompletedProcess[str]:
    """One look: standard input is no terminal, so that it goes on until it is stopped; standard output neither."""
    program = kind.program()
    process = subprocess.Popen(
        [*program, "top", *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    shown = ""
    assert process.stdout is not None
    assert process.stderr is not None
    for line in process.stdout:
        shown += line
        if "quit" in line:
            process.terminate()
            break
    errors = process.stderr.read()
    process.stdout.close()
    process.stderr.close()
    return subprocess.CompletedProcess([], process.wait(30), shown, errors)


async def test_top_shows_the_broker_in_a_terminal(lively, kind):
    _broker, pages, _cluster = lively
    shown = top(kind, f"{pages.host}:{pages.port}/monitoring").stdout
    assert re.search(r"connections 65 of \d+ so far", shown)
    assert re.search(r"357 in all.*\n.*1,100 in all", shown)
    assert len(re.findall(r"^ +\d  ready", shown, re.MULTILINE)) == 2
    assert "sensor-00" in shown


async def test_top_watches_a_nats_server_too(kind, cluster_of):
    if shutil.which("nats-server", path="/usr/sbin:/usr/local/bin:/usr/bin") is None and not oracle_is_required():
        pytest.skip("nats-server is not installed")
    with Broker(KINDS["nats-server"], args=["-m", "-1"]) as broker:
        client = await cluster_of(broker).client({"name": "theirs"})
        await client.talk("PUB a 1\r\nx\r\nPING\r\n", expect_last="PONG\r\n")
        shown = top(kind, "-m", str(Pages.of(broker).port)).stdout
        assert "nats-server 2." in shown
        assert "theirs" in shown
        assert "SHARD" not in shown


async def test_top_says_when_there_is_nothing_to_watch(kind):
    done = top(kind, "http://127.0.0.1:1")
    assert done.returncode == 1
    assert "does not answer" in done.stderr
    assert top(kind, "ftp://x").returncode == 1
