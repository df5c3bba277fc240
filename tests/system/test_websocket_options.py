"""What `websocket { … }` has since nats-server 2.10: headers of the response, pings, and log-ins of its own."""

from __future__ import annotations

import signal

import pytest

from tests.support.framed import answer_to, connect, upgrade, websocket_port
from tests.support.servers import Broker
from tests.support.wire import Client

THEIRS = "nats-server-2.15"

# (INFO does not follow without "protocol": 1)
QUIET = b'CONNECT {"verbose":false}\r\n'

pytestmark = pytest.mark.kinds("gnatswarm-1-as-2.15", "gnatswarm-2-as-2.15", THEIRS)


@pytest.fixture
def open_port(start_broker):
    """Starts a broker with a WebSocket port: more lines of its block, and of the file; the broker and the port."""

    def start(more: str = "", rest: str = "") -> tuple[Broker, int]:
        broker = start_broker(config=f"websocket {{\n host: 127.0.0.1\n port: -1\n no_tls: true\n {more}\n}}\n{rest}")
        return broker, websocket_port(broker)

    return start


def reload(broker: Broker, *words: str) -> None:
    """Have the broker read its file again, with each first word replaced by the second."""
    assert broker.config is not None and broker.directory is not None
    text = broker.config
    for old, new in zip(words[::2], words[1::2], strict=True):
        assert old in text
        text = text.replace(old, new)
    (broker.directory / "broker.conf").write_text(text)
    start = len(broker.log.lines)
    broker.send_signal(signal.SIGHUP)
    broker.log.wait_line("Reloaded server configuration", start=start)


# ------------------------------------------------------------------------------------------- headers of the response


async def test_the_response_to_an_upgrade_has_the_headers_of_the_block(open_port):
    _, port = open_port('headers { Strict-Transport-Security: "max-age=1", X-a: "b c", x-a: "", X-U: "ü" }')
    client = await upgrade(port)
    lines = client.answer.split(b"\r\n")
    for line in (b"Strict-Transport-Security: max-age=1", b"X-a: b c", b"x-a: ", "X-U: ü".encode()):
        assert lines.count(line) == 1
    client.close()


async def test_one_of_them_may_be_the_date(open_port):
    _, port = open_port("headers { date: never }")
    client = await upgrade(port)
    assert [line for line in client.answer.split(b"\r\n") if line.lower().startswith(b"date:")] == [b"date: never"]
    client.close()


async def test_a_refusal_has_none_of_them(open_port):
    _, port = open_port("headers { X-Mine: yes1 }")
    answer = await answer_to(port, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 4")
    assert b"X-Mine" not in answer


@pytest.mark.kinds("gnatswarm-2-as-2.15")
async def test_a_reload_changes_headers_and_pings(open_port):
    """The real server refuses it: no option of the block changes there without a restart."""
    broker, port = open_port('headers { A: b }\n ping_interval: "10m"')
    client = await connect(port, line=QUIET)
    reload(broker, "A: b", "A: c", "10m", "100ms")
    await client.expect(b"PING\r\n")
    later = await upgrade(port)
    assert b"\r\nA: c\r\n" in later.answer
    for one in (client, later):
        one.close()


# ---------------------------------------------------------------------------------------------------------- pings


async def test_websocket_clients_have_their_own_ping_interval(open_port):
    """One that answers no ping goes, and a plain client, which is pinged after two minutes, stays."""
    broker, port = open_port('ping_interval: "100ms"', "ping_max: 3")
    plain = await Client.connect(broker.port, {"verbose": False})
    client = await connect(port, line=QUIET)
    assert await client.rest() == b"PING\r\n" * 3 + b"-ERR 'Stale Connection'\r\n"
    await plain.talk("PING\r\n", expect="PONG\r\n")
    plain.close()


async def test_they_may_be_pinged_less_often_than_others(open_port):
    broker, port = open_port('ping_interval: "1h"', "ping_interval: '150ms'\nping_max: 1000")
    client, plain = await connect(port, line=QUIET), await Client.connect(broker.port, {"verbose": False})
    plain.ignores_pings = False
    for _ in range(30):  # (both get their first one within two seconds, to measure the round trip)
        await plain.expect("PING\r\n")
        await plain.send("PONG\r\n")
    await client.flush()
    assert client.stream.count(b"PING\r\n") <= 1
    for one in (client, plain):
        one.close()
