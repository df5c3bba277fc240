"""A name of a cluster without a port for its members: who is told of it, as on nats-server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest

from tests.support import leaves
from tests.support.raw_route import DEADLINE_S
from tests.support.servers import Broker
from tests.support.wire import Client
from tests.system.test_cluster import ended, page, started

KINDS = ("gnatswarm-2", "nats-server", "gnatswarm-2-as-2.15", "nats-server-2.15")
ACCOUNTS = """
http: "127.0.0.1:-1"
accounts {
  SYS { users: [{user: s, password: s}] }
  PLAIN { users: [{user: p, password: p}] }
}
system_account: SYS
no_auth_user: p
"""
DIALS = 'leafnodes { listen: "127.0.0.1:-1", remotes: [{url: "nats://127.0.0.1:9", account: PLAIN}] }'
# What is configured; what is told; and whether it is in /varz and in the log: under 2.9, under 2.15.
CONFIGURED = {
    "name": ("cluster { name: X }", "X", (True, True)),
    "name and leaf node": (f"server_name: lf\ncluster {{ name: X }}\n{DIALS}", "X", (True, True)),
    "leaf node": (f"server_name: lf\n{DIALS}", "lf", (True, False)),
    "leaf node without a name": (DIALS, None, (False, False)),
    "nothing": ("server_name: lf", None, (False, False)),
}


@pytest.fixture(scope="module", params=[(kind, case) for kind in KINDS for case in CONFIGURED], ids="-".join)
def named(request: pytest.FixtureRequest) -> Iterator[tuple[Broker, str | None, bool]]:
    """A broker so configured, the name that it tells, and whether it shows it."""
    kind, case = request.param
    config, name, shown = CONFIGURED[case]
    broker = started(kind, ACCOUNTS + config)
    yield broker, name, shown[broker.kind.compatibility != "2.9"]
    ended([broker])


async def test_clients_are_told(named: tuple[Broker, str | None, bool]) -> None:
    broker, name, _ = named
    client = await Client.connect(broker.port, None)
    client.close()
    assert client.info.get("cluster") == name


async def test_events_name_it(named: tuple[Broker, str | None, bool]) -> None:
    broker, name, _ = named
    watch = await Client.connect(broker.port, None)
    await watch.talk('CONNECT {"user":"s","pass":"s","verbose":false}\r\nPING\r\n', expect_last="PONG\r\n")
    await leaves.subscribed(watch, "$SYS.ACCOUNT.PLAIN.CONNECT 1")
    client = await Client.connect(broker.port, None)
    await client.talk('CONNECT {"verbose":false}\r\nPING\r\n', expect_last="PONG\r\n")
    (event,) = await watch.messages(1, DEADLINE_S)
    assert json.loads(event.payload)["server"].get("cluster") == name
    for one in (watch, client):
        one.close()


async def test_other_servers_are_told(named: tuple[Broker, str | None, bool]) -> None:
    broker, name, _ = named
    if "leafnode connections" not in broker.log.text:
        return
    reader, writer = await asyncio.open_connection("127.0.0.1", leaves.hub_port(broker))
    async with asyncio.timeout(DEADLINE_S):
        line = await reader.readline()
    writer.close()
    assert json.loads(line[5:]).get("cluster") == name


def test_pages_and_the_log_have_it(named: tuple[Broker, str | None, bool]) -> None:
    broker, name, is_shown = named
    shown = {"name": name} if is_shown else {}
    assert page(broker, "/varz")["cluster"] == shown
    lines = [line.rpartition("Cluster:  ")[2] for line in broker.log.lines if "Cluster:  " in line]
    assert lines == ([name] if is_shown else [])
    assert not [line for line in broker.log.lines if "[WRN]" in line and "cluster" in line]
