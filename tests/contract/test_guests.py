"""Who is let in without credentials where only the system account has users: those that the real server lets in.

`accounts { $SYS { users [ … ] } }` is how a user for `nats server report` is usually added: nobody else has to log in.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.framed import connect as connect_framed
from tests.support.framed import websocket_port
from tests.support.required import require
from tests.support.servers import KINDS, Broker
from tests.support.wire import Client

USERS = "users [ {user: s, password: p} ]"
SYSTEM_ALONE = f"accounts {{ $SYS {{ {USERS} }} }}\n"
PAIRS = (("nats-server", "gnatswarm-2"), ("nats-server-2.15", "gnatswarm-2-as-2.15"))
LOG_INS: tuple[dict[str, str], ...] = (
    {},
    {"user": "s", "pass": "p"},
    {"user": "s", "pass": "x"},
    {"user": "x", "pass": "p"},
    {"auth_token": "x"},
)
OPEN = (True, True, False, False, False)
LOCKED = (False, *OPEN[1:])
CONFIGS = {
    "the system account": (SYSTEM_ALONE, OPEN),
    "one of another name": (f"accounts {{ S {{ {USERS} }} }}\nsystem_account: S", OPEN),
    "one that is no system account": (f"accounts {{ S {{ {USERS} }} }}", LOCKED),
    "another account": (f"accounts {{ $SYS {{ {USERS} }}, A {{}} }}", LOCKED),
    "a guest that is a user": (SYSTEM_ALONE + "no_auth_user: s", OPEN),
}
# 2.9 lets everybody in even beside these.
BESIDE = {"an empty block": "authorization {}", "a timeout": "authorization { timeout: 3 }"}


@pytest.fixture(params=PAIRS, ids=lambda pair: pair[0])
def pair(request: pytest.FixtureRequest) -> tuple[str, str]:
    """The real server, and us like it."""
    require(KINDS[request.param[0]])
    found: tuple[str, str] = request.param
    return found


async def let_in(port: int, log_in: dict[str, str]) -> bool:
    """Whether it hears a PONG."""
    client = await Client.connect(port)
    try:
        await client.send(b"CONNECT {")
        words = ", ".join(f'"{name}": "{value}"' for name, value in ({"lang": "x"} | log_in).items())
        await client.send(f'"verbose": false, {words}}}\r\nPING\r\n'.encode())
        return (await client.read_frame()).verb == "PONG"
    finally:
        client.close()


@pytest.mark.parametrize(("config", "expected"), CONFIGS.values(), ids=CONFIGS.keys())
async def test_who_is_let_in(pair: tuple[str, str], config: str, expected: tuple[bool, ...]) -> None:
    for name in pair:
        with Broker(KINDS[name], config=config) as broker:
            assert tuple([await let_in(broker.port, log_in) for log_in in LOG_INS]) == expected, name


@pytest.mark.parametrize("block", BESIDE.values(), ids=BESIDE.keys())
async def test_an_authorization_block_locks_it_as_in_the_newer_server(pair: tuple[str, str], block: str) -> None:
    for name in pair:
        with Broker(KINDS[name], config=SYSTEM_ALONE + block) as broker:
            assert await let_in(broker.port, {}) is (name == "nats-server")


HASH = "$2a$04$Ot41DzDFIn3jPJE2nUD2vO3NXV9tqVi2bMMbEYfYLbDyQdoFzo8Ma"
NKEY = "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4"


async def test_a_guest_whose_password_is_a_hash_is_let_in_here_alone(pair: tuple[str, str]) -> None:
    config = f'authorization {{ users [ {{user: g, password: "{HASH}"}} ] }}\nno_auth_user: g'
    for name in pair:
        with Broker(KINDS[name], config=config) as broker:
            assert await let_in(broker.port, {}) is name.startswith("gnatswarm"), name


async def test_who_names_the_guests_nkey_without_its_signature_is_let_in_there_alone() -> None:
    config = f"authorization {{ users [ {{nkey: {NKEY}}} ] }}\nno_auth_user: {NKEY}"
    require(KINDS[PAIRS[1][0]])
    for name in PAIRS[1]:
        with Broker(KINDS[name], config=config) as broker:
            assert await let_in(broker.port, {})
            assert await let_in(broker.port, {"nkey": NKEY}) is (name == "nats-server-2.15"), name


@pytest.mark.kinds("gnatswarm-1", "gnatswarm-2")
async def test_guests_are_in_the_global_account_by_websocket_too_until_a_reload_locks_it(
    start_broker: Callable[..., Broker], tmp_path: Path
) -> None:
    path = tmp_path / "c.conf"
    text = SYSTEM_ALONE + "websocket { host: 127.0.0.1, port: -1, no_tls: true }\n"
    path.write_text(text)
    broker = start_broker(args=["-c", str(path)])
    guest = await Client.connect(broker.port, {"verbose": False})
    framed = await connect_framed(websocket_port(broker))
    await guest.talk("SUB a 1\r\nPING\r\n", expect_last="PONG\r\n")
    await framed.say(b"PUB a 2\r\nhi\r\n")
    assert (await guest.read_frame()).payload == b"hi"
    path.write_text(text + "authorization {}\n")
    broker.send_signal(signal.SIGHUP)
    assert (await guest.read_frame()).raw == b"-ERR 'Authorization Violation'\r\n"
    await guest.wait_closed()
    await framed.rest()
    assert not await let_in(broker.port, {})
    guest.close()
    framed.close()
