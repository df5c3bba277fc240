"""INFO has the keys of the real server in its order, and beside what is ours nothing else, whatever is configured."""

from __future__ import annotations

import asyncio
import functools
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import nkeys
import orjson
import pytest

from tests.support.authority import Authority
from tests.support.required import require
from tests.support.servers import KINDS, Broker
from tests.support.wire import Client

OURS = {"gnatswarm", "shard"}
# Of 2.15: the commit it was built of, the level of JetStream, and a key for auth callouts. We have none of these.
MISSING = {"git_commit", "api_lvl", "xkey"}
PAIRS = (("nats-server", "gnatswarm-2"), ("nats-server-2.15", "gnatswarm-2-as-2.15"))
OF_ONE_RUN = {"server_id", "server_name", "go", "port", "client_id", "nonce"}
Told = TypeVar("Told")
PAIR = nkeys.from_seed(nkeys.encode_seed(bytes(range(32)), nkeys.PREFIX_BYTE_USER))

OPTIONS = {
    "nothing": "debug: false",
    "a user": "authorization { user: a, pass: b }",
    "anybody is a user": "authorization { users [ {user: a, pass: b} ] }\nno_auth_user: a",
    "an nkey": f"authorization {{ users = [ {{nkey: {PAIR.public_key.decode()}}}, {{user: a, password: b}} ] }}",
    "tls": "tls { {pair} }",
    "client certificates": "tls { {pair}, ca_file: '{ca}', verify: true }\nauthorization { user: a, pass: b }",
    "tls or not": "tls { {pair} }\nallow_non_tls: true",
    "no headers": "no_header_support: true",
    "a name and a limit": "server_name: 'a-b'\nmax_payload: 2kb",
    "advertised": "client_advertise: 'h:1'",
}
# Of users who log in by password, or of whoever gives none: what they are told later.
LATER = {
    "nothing": ("debug: false", {}),
    "an nkey": (OPTIONS["an nkey"], {"user": "a", "pass": "b"}),
    "anybody is a user": (OPTIONS["anybody is a user"], {}),
    "an account's limit": (
        "max_payload: 1000\naccounts { A { users [ {user: a, pass: b} ], limits { max_payload: 50 } } }",
        {"user": "a", "pass": "b"},
    ),
    "only the system account has users": ("accounts { $SYS { users [ {user: a, pass: b} ] } }", {}),
    "a limit over the server's": (
        "max_payload: 40\naccounts { A { users [ {user: a, pass: b} ], limits { max_payload: 50 } } }\nno_auth_user: a",
        {},
    ),
}
TWO_LIMITS = """accounts { A { users [ {user: a, pass: b} ], limits { max_payload: 50 } },
                          C { users [ {user: c, pass: b} ], limits { max_payload: 60 } },
                          FREE { users [ {user: free, pass: b} ] } }"""


@pytest.fixture(params=PAIRS, ids=lambda pair: pair[0])
def pair(request: pytest.FixtureRequest) -> tuple[str, str]:
    """The real server, and us like it."""
    require(KINDS[request.param[0]])
    found: tuple[str, str] = request.param
    return found


def assert_alike(theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    """The same keys in the same order, of the same types, and the same values where those are not of one run."""
    theirs = {name: value for name, value in theirs.items() if name not in MISSING}
    assert [name for name in ours if name not in OURS] == list(theirs)
    different = {name: (theirs[name], ours[name]) for name in theirs if theirs[name] != ours[name]}
    assert different.keys() <= OF_ONE_RUN, different
    assert all(type(ours[name]) is type(theirs[name]) and ours[name] for name in different)


async def told(running: Broker) -> dict[str, Any]:
    """What a client is told when it connects."""
    client = await Client.dial(running.port)
    try:
        return await client.read_info()
    finally:
        client.close()


async def told_later(running: Broker, log_in: dict[str, str]) -> list[dict[str, Any]]:
    """What a client is told behind its first PONG, if anything, and when the broker is about to go."""
    client = await Client.connect(running.port, {"verbose": False, "protocol": 1, **log_in})
    try:
        await client.send(b"PING\r\n")
        found = []
        while (frame := await client.read_frame()).verb != "PONG":
            assert frame.verb == "INFO"
            found.append(orjson.loads(frame.raw[5:]))
        running.send_signal(signal.SIGUSR2)
        while not (info := await client.read_info()).get("ldm"):
            pass  # it may be told of something else first
        return [*found, info]
    finally:
        client.close()


async def both(pair: tuple[str, str], ask: Callable[[Broker], Awaitable[Told]], config: str) -> list[Told]:
    """What the real server says, and what we say."""
    found = []
    for name in pair:
        running = Broker(KINDS[name], config=config)
        try:
            await asyncio.to_thread(running.start)
            found.append(await ask(running))
        finally:
            await asyncio.to_thread(running.kill)
    return found


@pytest.mark.parametrize("text", OPTIONS.values(), ids=OPTIONS.keys())
async def test_info_has_every_key_that_the_real_server_sends_in_its_order(
    pair: tuple[str, str], text: str, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    config = text.replace("{pair}", authority.server().lines).replace("{ca}", str(authority.path))
    assert_alike(*await both(pair, told, config))


@pytest.mark.parametrize(("config", "log_in"), LATER.values(), ids=LATER.keys())
async def test_later_infos_are_those_of_the_real_server(
    pair: tuple[str, str], config: str, log_in: dict[str, str]
) -> None:
    """With the max_payload of the client's account: client libraries check what they publish against it."""
    theirs, ours = await both(pair, functools.partial(told_later, log_in=log_in), config)
    assert len(theirs) == len(ours)
    for one, other in zip(theirs, ours, strict=True):
        assert_alike(one, other)


@pytest.mark.parametrize(("second", "protocol"), [("c", 1), ("free", 1), ("c", 0)])
async def test_a_log_in_before_the_first_pong_counts_for_it(pair: tuple[str, str], second: str, protocol: int) -> None:
    """The last one: of two that come in one write the first is forgotten, also where nothing follows the last one."""

    async def ask(running: Broker) -> list[dict[str, Any]]:
        client = await Client.dial(running.port)
        try:
            await client.read_info()
            connect = b'CONNECT {"verbose":false,"protocol":1,"user":"a","pass":"b"}\r\n'
            again = b'CONNECT {"verbose":false,"protocol":%d,"user":"%s","pass":"b"}\r\n' % (protocol, second.encode())
            await client.send(connect + again + b"PING\r\nPING\r\n")
            await client.read_until_pong()
            infos = []
            while (frame := await client.read_frame()).verb != "PONG":
                infos.append(orjson.loads(frame.raw[5:]))
            return infos
        finally:
            client.close()

    theirs, ours = await both(pair, ask, TWO_LIMITS)
    assert [info["max_payload"] for info in ours] == [info["max_payload"] for info in theirs]
    for one, other in zip(theirs, ours, strict=True):
        assert_alike(one, other)


async def test_a_log_in_behind_the_first_pong_is_followed_by_no_info(pair: tuple[str, str]) -> None:
    async def ask(running: Broker) -> list[str]:
        client = await Client.connect(running.port, {"verbose": False, "protocol": 1, "user": "a", "pass": "b"})
        try:
            told = await client.flush()
            await client.send(b'CONNECT {"verbose":false,"protocol":1,"user":"c","pass":"b"}\r\nPING\r\nPING\r\n')
            return [frame.verb for frame in (*told, await client.read_frame(), await client.read_frame())]
        finally:
            client.close()

    assert await both(pair, ask, TWO_LIMITS) == [["INFO", "PONG", "PONG"]] * 2
