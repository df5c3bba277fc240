"""`compatibility: "2.15"`: what the newer of the two servers does otherwise, on it and on us; 2.15 is the default.

Operations and answers are in transcripts; INFO is compared in test_info.py, the pages in test_monitoring.py.
"""

from __future__ import annotations

import asyncio
import calendar
import json
import re
import signal
import struct
import time

import pytest

from tests.support.pages import Pages
from tests.support.required import require
from tests.support.servers import KINDS, Broker, Kind
from tests.support.wire import Client

PAIRS = {"2.9": ("nats-server", "gnatswarm-2"), "2.15": ("nats-server-2.15", "gnatswarm-2-as-2.15")}
CONFIGS = {
    "nothing much": "debug: false\n",
    "values of every kind": """
        # a comment
        max_payload: 2MB, max_control_line = 4k
        X: 5, max_connections: $X
        ping_interval: "2m"
        server_name: "a<b>&cé"
        server_tags: ["x", "y"]
        authorization { timeout: 1.5, users [ {user: a, password: "b c"}, {user: d, password: e} ] }
    """,
    "a float without a fraction": "authorization { timeout: 5.0, token: abc }\n",
    "what is given again": "debug: true\ndebug: false\n",
}


def kinds_of(version: str) -> tuple[Kind, Kind]:
    """Theirs and ours."""
    theirs, ours = PAIRS[version]
    require(KINDS[theirs])
    return KINDS[theirs], KINDS[ours]


@pytest.fixture(params=PAIRS)
def both(request: pytest.FixtureRequest) -> tuple[Kind, Kind]:
    return kinds_of(request.param)


@pytest.fixture
def newer() -> tuple[Kind, Kind]:
    return kinds_of("2.15")


def start(brokers: list[Broker], kind: Kind, config: str = "") -> Broker:
    broker = Broker(kind, args=["-m", "-1"], config=config or None)
    brokers.append(broker)
    return broker.start()


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGINT], ids=lambda by: by.name)
def test_the_exit_code_of_a_broker_that_was_told_to_stop(both, brokers, by) -> None:
    codes, trapped = [], []
    for kind in both:
        broker = start(brokers, kind)
        broker.process.send_signal(by)
        codes.append(broker.wait_exit())
        trapped.append(re.findall(r"\[INF\] (Trapped .*)", broker.log.text))
    assert codes[0] == codes[1]
    assert trapped[0] == trapped[1]


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_the_digest_of_a_configuration_is_the_real_servers(newer, brokers, config) -> None:
    found = []
    for kind in newer:
        broker = start(brokers, kind, config)
        logged = re.findall(r"Using configuration file: \S+ \((sha256:[0-9a-f]{64})\)", broker.log.text)
        assert logged == [Pages.of(broker).json("/varz")["config_digest"]]
        found += logged
    assert found[0] == found[1]


def test_without_it_there_is_no_digest(brokers) -> None:
    broker = start(brokers, KINDS["gnatswarm-1"], "debug: false")
    assert "sha256" not in broker.log.text
    assert "config_digest" not in Pages.of(broker).json("/varz")


@pytest.mark.parametrize("config", ["logtime_utc: true", "logtime_utc: false"])
def test_the_log_has_its_time_in_utc_or_not(newer, brokers, config, tmp_path) -> None:
    """In a time zone in which no test runs, 13 hours and 45 minutes from UTC, by a file of RFC 8536."""
    zone = tmp_path / "zone"
    zone.write_bytes(
        b"TZif" + bytes(16) + struct.pack(">6l", 0, 0, 0, 0, 1, 4) + struct.pack(">lBB", 49_500, 0, 0) + b"XXX\0"
    )
    for kind in newer:
        broker = Broker(kind, config=config, environment={"TZ": f":{zone}"})
        brokers.append(broker)
        before_s = time.time() - 1
        broker.start()
        logged = re.findall(r"(?m)^\[\d+\] (\S+ \S+?)\.\d+ ", broker.log.text)
        first_s = calendar.timegm(time.strptime(logged[0], "%Y/%m/%d %H:%M:%S"))
        ahead_s = 0 if "true" in config else (13 * 60 + 45) * 60
        assert before_s + ahead_s <= first_s <= time.time() + ahead_s


def test_log_and_pages_say_the_version(both, brokers) -> None:
    versions = [Pages.of(start(brokers, kind)).json("/varz")["version"] for kind in both]
    assert versions[0] == versions[1]


async def test_a_client_that_does_not_answer_pings_is_counted_as_stale(newer, brokers) -> None:
    for kind in newer:
        broker = await asyncio.to_thread(start, brokers, kind, 'ping_interval: "100ms"\nping_max: 1')
        pages = Pages.of(broker)
        client = await Client.connect(broker.port, {"verbose": False})
        assert b"Stale Connection" in await client.wait_closed()
        document = await pages.wait("/varz", lambda page: page["stale_connections"])
        assert document["stale_connections"] == 1
        assert document["stale_connection_stats"] == {"clients": 1, "routes": 0, "gateways": 0, "leafs": 0}
        client.close()


MAPPINGS = """
mappings {
    "left.*": "a.{{left(1,3)}}", "right.*": "a.{{right(1,3)}}", "buckets.*.*": "a.$2.$1.{{partition(10)}}"
    "rest.>": "a.{{partition(7)}}.>", "none.*": "a.$1.{{random(1)}}"
    "some.*.*": "a.$2", "few.*.*": a, "tail.*.>": "a.>"
}
"""  # no partition of a subject without wildcards: nats-server 2.15.1 gives another one after one start in five


async def test_functions_of_mappings_that_came_later(newer, brokers) -> None:
    found = []
    for kind in newer:
        broker = await asyncio.to_thread(start, brokers, kind, MAPPINGS)
        async with await Client.connect(broker.port, {"verbose": False}) as client:
            await client.flush()
            await client.send("SUB > 1\r\n")
            for subject in (
                "left.abcdef",
                "left.a",
                "right.abcdef",
                "right.a",
                "buckets.x.y",
                "rest.a.b",
                "none.x",
                "some.x.y",
                "few.x.y",
                "tail.x.y.z",
            ):
                await client.send(f"PUB {subject} 0\r\n\r\n")
            found.append([frame.subject for frame in await client.flush() if frame.is_message])
    assert found[0] == found[1]
    assert found[1][:4] == ["a.abc", "a.a", "a.def", "a.a"]
    assert found[1][-3:] == ["a.y", "a", "a.y.z"]


EVENTS = """
accounts { B { users: [ {user: b, password: x} ] }, SYS { users: [ {user: s, password: x} ] } }
system_account: SYS
no_auth_user: b
"""


async def test_events_about_clients_of_every_account_and_of_refused_ones(both, brokers) -> None:
    """The newer server speaks of clients of $G too, those that were refused among them, and names the account."""
    found = []
    for kind in both:
        broker = await asyncio.to_thread(start, brokers, kind, EVENTS)
        said: set[tuple[object, ...]] = set()
        async with await Client.connect(broker.port, {"user": "s", "pass": "x"}) as ear:
            await ear.send("SUB $SYS.ACCOUNT.*.* 1\r\nSUB $SYS.SERVER.*.CLIENT.AUTH.ERR 2\r\n")
            await ear.flush()
            (await Client.connect(broker.port, {"user": "b", "pass": "x", "name": "one"})).close()
            refused = await Client.connect(broker.port)
            await refused.send('CONNECT {"user": "b", "pass": "wrong", "name": "two"}\r\n')
            await refused.wait_closed()
            while not {("CONNECT", "one"), ("DISCONNECT", "one"), ("ERR", "two")} <= {row[:2] for row in said} or (
                kind.compatibility == "2.15" and ("DISCONNECT", "two") not in {row[:2] for row in said}
            ):
                (message,) = await ear.messages(1)
                who = json.loads(message.payload).get("client", {})
                if who.get("name") in ("one", "two"):  # not whoever tried whether the server had started
                    what = message.subject.rpartition(".")[2]
                    said.add((what, who["name"], who["acc"], who.get("name_tag"), *list(who)[-3:]))
        found.append(said)
    assert found[0] == found[1]


NOBODY = "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4"
KEYS = f"""
server_metadata {{ owner: "team a", n: "5" }}
no_auth_user: {NOBODY}
accounts {{ A {{ users: [ {{nkey: {NOBODY}}} ] }} }}
"""


async def test_metadata_an_nkey_for_clients_without_credentials_and_subscriptions_of_accounts(newer, brokers) -> None:
    for kind in newer:
        broker = await asyncio.to_thread(start, brokers, kind, KEYS)
        pages = Pages.of(broker)
        assert pages.json("/varz")["metadata"] == {"owner": "team a", "n": "5"}
        async with await Client.connect(broker.port, {"verbose": False}) as client:
            before = {row["acc"]: row["num_subscriptions"] for row in pages.json("/accstatz")["account_statz"]}
            await client.send("SUB a 1\r\nSUB b 2\r\nPUB $SYS.REQ.USER.INFO a 0\r\n\r\n")
            (answer,) = await client.messages(1)
            document = json.loads(answer.payload)
            assert document["server"]["metadata"] == {"owner": "team a", "n": "5"}
            assert document["data"] == {"user": NOBODY, "account": "A", "account_name": "A"}
            found = {row["acc"]: row["num_subscriptions"] for row in pages.json("/accstatz")["account_statz"]}
            assert found["A"] - before["A"] == 2
