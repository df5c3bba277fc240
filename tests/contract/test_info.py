"""INFO has the keys of the real server in its order, and beside what is ours nothing else, whatever is configured."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import nkeys
import pytest

from tests.support.authority import Authority
from tests.support.servers import KINDS, Broker, BrokerUnavailable, oracle_is_required
from tests.support.wire import Client

OURS = {"gnatswarm", "shard"}
# Of 2.15: the commit it was built of, the level of JetStream, and a key for auth callouts. We have none of these.
MISSING = {"git_commit", "api_lvl", "xkey"}
PAIRS = (("nats-server", "gnatswarm-2"), ("nats-server-2.15", "gnatswarm-2-as-2.15"))
OF_ONE_RUN = {"server_id", "server_name", "go", "port", "client_id", "nonce"}
PAIR = nkeys.from_seed(nkeys.encode_seed(bytes(range(32)), nkeys.PREFIX_BYTE_USER))

OPTIONS = {
    "nothing": "",
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


@pytest.fixture(params=PAIRS, ids=lambda pair: pair[0])
def pair(request: pytest.FixtureRequest) -> tuple[str, str]:
    """The real server, and us like it."""
    try:
        KINDS[request.param[0]].command()
    except BrokerUnavailable as error:
        if not oracle_is_required():
            pytest.skip(str(error))
        raise
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


async def told_to_leave(running: Broker) -> dict[str, Any]:
    """What a client is told when the broker is about to go."""
    client = await Client.connect(running.port, {"verbose": False, "protocol": 1})
    try:
        running.send_signal(signal.SIGUSR2)
        while True:  # it may be told of something else first
            info = await client.read_info()
            if info.get("ldm"):
                return info
    finally:
        client.close()


async def both(
    pair: tuple[str, str], ask: Callable[[Broker], Awaitable[dict[str, Any]]], config: str
) -> list[dict[str, Any]]:
    """The real server's INFO and ours."""
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


async def test_who_is_told_to_leave_is_told_it_with_the_same_keys(pair: tuple[str, str]) -> None:
    assert_alike(*await both(pair, told_to_leave, ""))
