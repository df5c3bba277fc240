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


async def test_info_names_the_address_of_the_port_that_was_reached(open_port):
    broker, port = open_port(rest="client_advertise: 'clients.example:88'\n")
    client = await connect(port)
    assert (client.info["host"], client.info["port"]) == ("127.0.0.1", port)
    client.close()
    info = (await Client.connect(broker.port)).info
    assert (info["host"], info["port"]) == ("clients.example", 88)


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


# ----------------------------------------------------------------------------------------------------- log-ins

USERS = "authorization { users [ {user: a, password: b}, {user: web, password: c}, {user: 'n n', password: 'p q'} ] }"
ONLY = "authorization { user: a, password: b }"
VIOLATION = b"-ERR 'Authorization Violation'\r\n"


async def web_log_in(port: int, said: str = "", *headers: str) -> bytes:
    """The answer to a WebSocket client's CONNECT with these members and a PING."""
    client = await upgrade(port, *headers)
    await client.say(b"CONNECT {" + ",".join(filter(None, ['"verbose":false', said])).encode() + b"}\r\nPING\r\n")
    while b"\r\n" not in client.stream:
        assert await client.read_frame() > 0
    client.close()
    return bytes(client.stream)


async def plain_log_in(broker: Broker, said: str = "") -> bytes:
    """The same of a client of the other port."""
    client = await Client.connect(broker.port)
    await client.send("CONNECT {" + ",".join(filter(None, ['"verbose":false', said])) + "}\r\nPING\r\n")
    line = await client.read_line()
    client.close()
    return line


A, B = '"user":"a","pass":"b"', '"user":"u","pass":"p"'


@pytest.mark.parametrize(
    ("block", "rest", "let_in", "kept_out"),
    [
        ("authorization { user: u, password: p }", "", [B], ["", A, '"user":"u"', '"user":"u","pass":"x"']),
        ("authorization { user: u, password: p }", ONLY, [B], ["", A]),
        ("authorization { user: u, password: p }", "authorization { token: tok }", [B], ["", '"auth_token":"tok"']),
        ("authorization { token: tok }", "", ['"auth_token":"tok"'], ["", '"auth_token":"x"', B]),
        ("authorization { token: tok }", ONLY, ['"auth_token":"tok"'], ["", A]),
        (
            "authentication { token: tok }",
            "authorization { token: old }",
            ['"auth_token":"tok"'],
            ['"auth_token":"old"'],
        ),
        ("no_auth_user: web", USERS, ["", A], ['"user":"web"', B, '"auth_token":"tok"', '"pass":"c"']),
        ("no_auth_user: web", f"no_auth_user: a\n{USERS}", ["", A], ['"user":"web"']),
    ],
)
async def test_websocket_clients_may_have_log_ins_of_their_own(open_port, block, rest, let_in, kept_out):
    _, port = open_port(block, rest)
    for said in let_in:
        assert await web_log_in(port, said) == b"PONG\r\n", said
    for said in kept_out:
        assert await web_log_in(port, said) == VIOLATION, said


async def test_other_clients_keep_the_brokers_log_in(open_port, kind):
    broker, port = open_port("authorization { user: u, password: p }", ONLY)
    assert [await plain_log_in(broker, said) for said in (A, B)] == [b"PONG\r\n", VIOLATION]
    client = await upgrade(port)
    assert client.info["auth_required"] is True
    client.close()
    broker.stop()
    broker, port = open_port("authorization { user: u, password: p }")
    assert await plain_log_in(broker) == b"PONG\r\n"
    plain, client = await Client.connect(broker.port), await upgrade(port)
    assert (plain.info.get("auth_required", False), client.info["auth_required"]) == (False, True)


async def test_who_says_nothing_is_the_no_auth_user_of_the_port(open_port):
    accounts = "accounts { A { users [ {user: a, password: b} ] }, W { users [ {user: web, password: c} ] } }"
    broker, port = open_port("no_auth_user: web", f"no_auth_user: a\n{accounts}")
    web = await connect(port, line=QUIET)
    known = await connect(port, line=b'CONNECT {"verbose":false,"user":"web","pass":"c"}\r\n')
    plain = await Client.connect(broker.port, {"verbose": False})
    await plain.talk("SUB x 1\r\nPING\r\n", expect="PONG\r\n")
    await known.say(b"SUB x 1\r\n")
    await known.flush()
    await web.say(b"PUB x 2\r\nhi\r\n")
    await web.flush()
    await known.expect(b"MSG x 1 2\r\nhi\r\n")
    await plain.talk("PING\r\n", expect="PONG\r\n")  # (nothing came before it)


async def test_a_websocket_client_has_its_own_time_to_log_in(open_port):
    broker, port = open_port("authorization { user: u, password: p, timeout: 0.2 }", f"{ONLY[:-1]}, timeout: 60 }}")
    plain = await Client.connect(broker.port)
    client = await upgrade(port)
    assert await client.rest() == b"-ERR 'Authentication Timeout'\r\n"
    await plain.send(f"CONNECT {{{A}}}\r\n")
    await plain.expect("+OK\r\n")


@pytest.mark.kinds("gnatswarm-2-as-2.15")
async def test_a_reload_of_the_log_in_closes_whom_it_keeps_out(open_port):
    broker, port = open_port("authorization { user: u, password: p }", ONLY)
    plain = await Client.connect(broker.port, {"verbose": False, "user": "a", "pass": "b"})
    client = await connect(port, line=b'CONNECT {"verbose":false,"user":"u","pass":"p"}\r\n')
    reload(broker, "password: p", "password: q")
    assert await client.rest() == VIOLATION
    assert await web_log_in(port, '"user":"u","pass":"q"') == b"PONG\r\n"
    await plain.talk("PING\r\n", expect="PONG\r\n")


# ----------------------------------------------------------------------------------------------------- cookies

COOKIES = "user_cookie: cu\n pass_cookie: cp\n token_cookie: ct"


@pytest.mark.parametrize(
    ("said", "headers", "is_let_in"),
    [
        ("", ["Cookie: cu=a; cp=b"], True),
        ("", ["Cookie: x=1; cu=a;cp=b ;", "cookie: y=2"], True),
        ("", ["Cookie: cu=a", "Cookie: cp=b"], True),
        ("", ['Cookie: cu="a"; cp="b"'], True),
        ("", ["Cookie: cu=n n; cp=p q"], True),
        ("", ["Cookie: cu=n%20n; cp=p q"], False),
        ("", ["Cookie: cu=zz; cp=b; cu=a"], True),
        ("", ["Cookie: cu=a; cp=b; cu=zz"], False),
        ("", ["Cookie: cu=a; cp=b; cu="], False),
        ("", ["Cookie: cu; cp=b; cu=a"], True),
        ("", ["Cookie: cp=b; cu=a; cu=z\\z"], True),  # an invalid one is skipped
        ("", ['Cookie: cu="a; cp=b'], False),
        ("", ["Cookie: cu = a; cp = b"], False),
        ("", ["Cookie: cu=a,cp=b"], False),
        ("", ["Cookie: CU=a; CP=b"], False),
        ("", ["Cookie: cu=a; cp=x"], False),
        ("", ["Cookie: cu=a"], False),
        ("", [], False),
        ('"user":"","pass":""', ["Cookie: cu=a; cp=b"], True),
        ('"user":"web","pass":"c"', ["Cookie: cu=a; cp=x"], True),
        ('"user":"a"', ["Cookie: cu=web; cp=b"], True),
        ('"pass":"b"', ["Cookie: cu=a; cp=x"], True),
        ('"user":"web"', ["Cookie: cu=a; cp=b"], False),
        ('"pass":"x"', ["Cookie: cu=a; cp=b"], False),
        ('"auth_token":"x"', ["Cookie: cu=a; cp=b"], True),
    ],
)
async def test_what_connect_leaves_out_comes_from_cookies(broker_with, said, headers, is_let_in):
    config = f"websocket {{\n host: 127.0.0.1\n port: -1\n no_tls: true\n {COOKIES}\n}}\n{USERS}\n"
    port = websocket_port(broker_with(config))
    assert await web_log_in(port, said, *headers) == (b"PONG\r\n" if is_let_in else VIOLATION)


async def test_a_token_may_come_from_a_cookie(open_port):
    _, port = open_port(COOKIES, "authorization { token: tok }")
    assert await web_log_in(port, "", "Cookie: ct=tok") == b"PONG\r\n"
    assert await web_log_in(port, "", "Cookie: ct=x") == VIOLATION
    assert await web_log_in(port, '"auth_token":"x"', "Cookie: ct=tok") == VIOLATION
    assert await web_log_in(port, '"auth_token":"tok"', "Cookie: ct=x") == b"PONG\r\n"


async def test_a_cookie_that_is_wrong_is_not_nobody(open_port):
    _, port = open_port(f"no_auth_user: web\n {COOKIES}", USERS)
    for cookie in ("cu=a; cp=x", "cu=a", "cp=x", "ct=x"):
        assert await web_log_in(port, "", f"Cookie: {cookie}") == VIOLATION, cookie
    assert await web_log_in(port, "", "Cookie: other=1") == b"PONG\r\n"


async def test_cookies_count_for_the_log_in_of_the_port_too(open_port):
    _, port = open_port(f"authorization {{ user: u, password: p }}\n {COOKIES}", ONLY)
    assert await web_log_in(port, "", "Cookie: cu=u; cp=p") == b"PONG\r\n"
    assert await web_log_in(port, "", "Cookie: cu=a; cp=b") == VIOLATION


async def test_without_such_options_cookies_mean_nothing(open_port):
    _, port = open_port("", USERS)
    assert await web_log_in(port, "", "Cookie: cu=a; cp=b") == VIOLATION


async def test_a_second_connect_needs_no_cookies(open_port):
    _, port = open_port(COOKIES, USERS)
    client = await upgrade(port, "Cookie: cu=a; cp=b")
    for _ in range(2):
        await client.say(QUIET)
        await client.flush()
    client.close()


@pytest.mark.kinds("gnatswarm-2-as-2.15")
async def test_no_cookie_is_in_the_log(open_port):
    broker, port = open_port(COOKIES, f"debug: true\ntrace: true\n{USERS}")
    await web_log_in(port, "", "Cookie: cu=a; cp=hunter2; ct=hunter2")
    await web_log_in(port, "", "Cookie: cu=a; cp=b")
    broker.log.wait_line("authentication error")
    assert "hunter2" not in broker.log.text
