"""What the log says of a client's errors is what the real server's says: tools look for those lines."""

from __future__ import annotations

import asyncio
import base64
import re
import signal

import nkeys
import orjson
import pytest

from tests.support.required import require
from tests.support.servers import KINDS, Broker
from tests.support.wire import Client

PAIR = nkeys.from_seed(nkeys.encode_seed(bytes(range(32)), nkeys.PREFIX_BYTE_USER))
PUBLIC_KEY = PAIR.public_key.decode()
FEW = 'permissions: {publish: "x", subscribe: "y"}'

ANYBODY = "max_payload: 2222"
USERS = f"max_payload: 2222\nauthorization {{ users = [ {{user: a, password: a, {FEW}}} ] }}"
NOBODY_IS_A = f"no_auth_user: a\n{USERS}"
NKEYS = f"authorization {{ users = [ {{nkey: {PUBLIC_KEY}, {FEW}}} ] }}"
ACCOUNT = f"accounts {{ A {{ users = [ {{user: a, password: a, {FEW}}} ] }} }}"
TOKEN = "max_payload: 2222\nauthorization { token: abc }"
A = {"user": "a", "pass": "a"}

CASES = {
    "a publish": (USERS, A, b"PUB z 0\r\n\r\n"),
    "a publish with strange letters": (USERS, A, b'PUB z"\\\x01\xff\xc3\xa4 0\r\n\r\n'),
    "a reply": (USERS, A, b"PUB x _R_.a 0\r\n\r\n"),
    "a subscription": (USERS, A, b"SUB z 9\r\n"),
    "a subscription with strange letters": (USERS, A, b"SUB z\x01 sid\r\n"),
    "a subscription of a group": (USERS, A, b"SUB z q 1\r\n"),
    "a user that nobody named": (NOBODY_IS_A, {}, b"PUB z 0\r\n\r\n"),
    "a user by its key": (NKEYS, None, b"PUB z 0\r\n\r\n"),
    "nobody in particular": (ANYBODY, {}, b"PUB x _R_.a 0\r\n\r\n"),
    "somebody who need not be": (ANYBODY, {"user": "bob"}, b"PUB x _R_.a 0\r\n\r\n"),
    "a program that says what it is": (
        USERS,
        {**A, "name": 'n "m', "lang": "go", "version": "1.2"},
        b"PUB z 0\r\n\r\n",
    ),
    "a program that has a name": (USERS, {**A, "name": "n"}, b"PUB z 0\r\n\r\n"),
    "a program in a language": (USERS, {**A, "lang": "go"}, b"SUB z 1\r\n"),
    "a user of an account": (ACCOUNT, A, b"PUB z 0\r\n\r\n"),
    "a log-in that fails": (USERS, {"user": "a", "pass": "no", "version": "1.2"}, b""),
    "a log-in without a name": (USERS, {"pass": "no", "lang": "go"}, b""),
    "somebody with a token": (TOKEN, {"auth_token": "abc"}, b"PUB x _R_.a 0\r\n\r\n"),
    "a subscription with too many tokens": ("max_sub_tokens: 2", {}, b"SUB a.b.c 9\r\n"),
    "a payload": (ANYBODY, {}, b"PUB x 4194304\r\n"),
    "a payload by one byte": (ANYBODY, {}, b"PUB x 2223\r\n"),
    "a payload with headers": (ANYBODY, {"headers": True}, b"HPUB x 12 4000\r\n"),
}


PAIRS = (("nats-server", "gnatswarm-1"), ("nats-server-2.15", "gnatswarm-1-as-2.15"))


@pytest.fixture(params=PAIRS, ids=lambda pair: pair[0])
def pair(request: pytest.FixtureRequest) -> tuple[str, str]:
    """The real server, and us like it."""
    require(KINDS[request.param[0]])
    found: tuple[str, str] = request.param
    return found


async def logged(name: str, config: str, connect: dict[str, object] | None, words: bytes) -> list[str]:
    """What comes after the client's number in the lines about its errors. `connect` None: it signs with its key."""
    running = Broker(KINDS[name], config=config)
    try:
        await asyncio.to_thread(running.start)
        client = await Client.dial(running.port)
        info = await client.read_info()
        if connect is None:
            signature = base64.urlsafe_b64encode(PAIR.sign(info["nonce"].encode())).rstrip(b"=").decode()
            connect = {"nkey": PUBLIC_KEY, "sig": signature}
        await client.send(b"CONNECT " + orjson.dumps({"verbose": False, **connect}) + b"\r\n" + words)
        error = await client.read_line()
        assert error.startswith(b"-ERR "), error
        client.close()
        await asyncio.to_thread(running.log.wait_line, r"\[ERR\]")
        return re.findall(r"\[ERR\] (?:shard \d - )?127\.0\.0\.1:\d+ - cid:\d+ - (.*)$", running.log.text, re.MULTILINE)
    finally:
        await asyncio.to_thread(running.stop)


@pytest.mark.parametrize(("config", "connect", "words"), CASES.values(), ids=CASES.keys())
async def test_an_error_is_logged_in_the_words_of_the_real_server(pair, config, connect, words) -> None:
    theirs, ours = [await logged(name, config, connect, words) for name in pair]
    assert ours == theirs
    assert len(ours) == 1


FORMS = {
    "URL-safe": lambda raw: base64.urlsafe_b64encode(raw).rstrip(b"="),
    "URL-safe with padding": base64.urlsafe_b64encode,
    "ordinary": base64.b64encode,
    "ordinary without padding": lambda raw: base64.b64encode(raw).rstrip(b"="),
    "URL-safe on two lines": lambda raw: (
        base64.urlsafe_b64encode(raw).rstrip(b"=")[:40] + b"\r\n" + base64.urlsafe_b64encode(raw).rstrip(b"=")[40:]
    ),
    "ordinary and a line end": lambda raw: base64.b64encode(raw) + b"\n",
    "a blank": lambda raw: b" " + base64.urlsafe_b64encode(raw).rstrip(b"="),
    "both alphabets": lambda raw: base64.b64encode(raw).replace(b"/", b"_").rstrip(b"="),
}


async def test_a_signature_is_accepted_in_the_forms_of_the_real_server(pair) -> None:
    found = []
    for name in pair:
        answers = {}
        with Broker(KINDS[name], config=f"authorization {{ users [ {{ nkey: {PUBLIC_KEY} }} ] }}") as running:
            for form, encode in FORMS.items():
                while True:
                    client = await Client.dial(running.port)
                    raw = PAIR.sign((await client.read_info())["nonce"].encode())
                    if {"+", "/"} <= set(base64.b64encode(raw).decode()):  # else some forms are the same
                        break
                    client.close()
                connect = {"nkey": PUBLIC_KEY, "sig": encode(raw).decode(), "verbose": True}
                await client.send(b"CONNECT " + orjson.dumps(connect) + b"\r\n")
                answers[form] = await client.read_line()
                client.close()
        found.append(answers)
    theirs, ours = found
    assert ours == theirs
    assert len(set(ours.values())) == 2


HEADERS = {"headers": True, "verbose": False}
MESSAGES = b"SUB a 1\r\nPUB a 5\r\nhello\r\nHPUB a 18 23\r\nNATS/1.0\r\nA: b\r\n\r\nhello\r\nPING\r\n"


@pytest.mark.parametrize("config", ["", "trace_headers: true\n", "max_traced_msg_len: 3\n"])
async def test_a_trace_shows_operations_and_messages_as_the_real_server(pair, config) -> None:
    """Each direction in its order, without the INFO that only our trace shows, and the end of subscriptions."""
    if "2.15" not in pair[0] and config.startswith("trace_headers"):
        pytest.skip("an option of nats-server 2.11")
    found = []
    for name in pair:
        running = Broker(KINDS[name], config=f"trace: true\n{config}")
        try:
            await asyncio.to_thread(running.start)
            client = await Client.connect(running.port, HEADERS)
            await client.talk(MESSAGES, expect_last="PONG\r\n")
            client.close()
            first = await asyncio.to_thread(running.log.wait_line, r"->> \[PONG\]")  # of connect()
            await asyncio.to_thread(
                running.log.wait_line, r"->> \[PONG\]", start=running.log.lines.index(first.string) + 1
            )
            lines = re.findall(r"cid:\d+ - ((?:<<-|->>) .*)", running.log.text)
        finally:
            await asyncio.to_thread(running.stop)
        kept = [line for line in lines if "[INFO" not in line and "[CONNECT" not in line]
        found.append(sorted(kept, key=lambda line: line[:3]))
    assert found[0] == found[1]
    assert any("A: b" in line for line in found[0]) == (not config.startswith("max"))


# (Command line, file, file at the reload.)
NOTHING_OF_LOGS = "ping_max: 2\n"
RELOADS = {
    "a trace by command line stays": (["-V"], NOTHING_OF_LOGS, "trace: false\n"),
    "no trace by command line stays": (["-V=false"], "trace: true\n", "trace: true\ndebug: true\n"),
    "the file adds to the command line": (["-D"], "debug: false\n", "debug: false\ntrace: true\n"),
    "both by command line stay": (["-DV"], NOTHING_OF_LOGS, "debug: false\ntrace: false\nlogtime: false\n"),
    "a trace begins": ([], NOTHING_OF_LOGS, "trace_verbose: true\n"),
    "a trace ends": ([], "trace_verbose: true\n", NOTHING_OF_LOGS),
    "no times by command line stay": (["-T=false"], NOTHING_OF_LOGS, "logtime: true\n"),
    "a trace shows less": ([], "trace: true\n", "trace: true\nmax_traced_msg_len: 3\n"),
    "a trace shows more": ([], "trace: true\nmax_traced_msg_len: 3\n", "trace: true\n"),
}


async def shown(running: Broker, client: Client) -> tuple[bool, bool, list[str]]:
    """Whether lines have times, whether there are lines of -D, and what -V shows of a message by who was connected."""
    start = len(running.log.lines)
    await client.talk("PUB a 5\r\nhello\r\nPING\r\n", expect="PONG\r\n")
    refused = await Client.connect(running.port, {"verbose": False})
    await refused.send("SUB a..b 1\r\nPUB a 9999999\r\n")
    await refused.wait_closed()
    line = await asyncio.to_thread(running.log.wait_line, r".*\[ERR\].*maximum payload.*", start=start)
    lines = running.log.lines[start:]
    of_client = rf"cid:{client.info['client_id']} .*(<<- (?:MSG_PAYLOAD|\[PUB).*)"
    operations = re.findall(of_client, "\n".join(lines))
    return "/" in line[0].partition("[ERR]")[0], any("[DBG]" in one for one in lines), operations


@pytest.mark.parametrize(("args", "before", "after"), RELOADS.values(), ids=RELOADS.keys())
async def test_a_reload_of_debug_and_trace_is_that_of_the_real_server(pair, args, before, after) -> None:
    """What the command line says stays, and who is connected is traced as the file says now."""
    found = []
    for name in pair:
        with Broker(KINDS[name], args=args, config=before) as running:
            client = await Client.connect(running.port, {"verbose": False})
            as_before = await shown(running, client)
            assert running.directory is not None
            (running.directory / "broker.conf").write_text(after)
            start = len(running.log.lines)
            running.send_signal(signal.SIGHUP)
            await asyncio.to_thread(running.log.wait_line, "Reloaded server configuration", start=start)
            found.append((as_before, await shown(running, client)))
            client.close()
    assert found[1] == found[0]
