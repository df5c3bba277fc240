"""The clients of one shard when rules change: a reload takes effect at once, also for clients that are logging in."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
import time
from collections.abc import AsyncIterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import bcrypt
import msgspec
import pytest

from gnatswarm.broker.access.auth import NOBODY, Admission, HashedPassword
from gnatswarm.broker.access.certificate_names import CertificateNames
from gnatswarm.broker.errors import CloseReason
from gnatswarm.broker.limits import Limits
from gnatswarm.broker.options import (
    Account,
    Export,
    Import,
    Options,
    Permissions,
    PublishLimits,
    Tls,
    User,
    WebSocket,
)
from gnatswarm.shards.boundary.control import ClusterNews
from gnatswarm.shards.clients import clients as clients_module
from gnatswarm.shards.clients import comparisons, hearing, passwords
from gnatswarm.shards.clients.clients import (
    BUSY_AT_ONCE,
    ENTRIES_COUNT_AS_CLIENT,
    ENTRIES_COUNT_AS_LOOK,
    SURPLUS_AT_ONCE,
)
from gnatswarm.shards.clients.passwords import WaitingClient
from tests.support.framed import BINARY, frame, request
from tests.support.one_shard import WITHIN_S, Client, OneShard
from tests.support.turns import until

FULL = b"-ERR 'maximum connections exceeded'\r\n"
VIOLATION = b"-ERR 'Authorization Violation'\r\n"
SALT = b"$2b$04$" + b"a" * 21 + b"u"
HASH = bcrypt.hashpw(b"good", SALT).decode()
OTHER_HASH = bcrypt.hashpw(b"other", SALT).decode()


async def let_in(house: OneShard) -> Client | None:
    """A client that got as far as a PONG; None: there were too many."""
    client = house.connect()
    said = await client.wait(b"}")
    if FULL in said:  # in one write with INFO
        await client.wait(b"more")
        assert client.is_over
        return None
    return client if (await client.talk(b"CONNECT {}\r\nPING\r\n")).endswith(b"PONG\r\n") else None


@pytest.fixture
async def house() -> AsyncIterator[OneShard]:
    house = OneShard(Options(limits=Limits(max_connections=2)))
    yield house
    house.close()


async def test_max_connections_of_a_reload_holds_for_who_is_there_and_for_who_comes(house: OneShard) -> None:
    stay = [await let_in(house), await let_in(house)]
    assert all(stay) and await let_in(house) is None
    house.shard.reload(Options(limits=Limits(max_connections=3)))
    stay.append(await let_in(house))
    assert stay[2] is not None and await let_in(house) is None
    house.shard.reload(Options(limits=Limits(max_connections=1)))
    assert await let_in(house) is None
    first, *latest = (client for client in stay if client is not None)
    for client in latest:
        assert FULL in await client.wait(b"more")
        assert client.is_over
    assert await first.talk(b"PING\r\n") == b"PONG\r\n"
    assert house.page.connections == 1


def allowing(most: int, *, by_account: bool) -> Options:
    account = Account("A", max_connections=most if by_account else 0)
    limits = Limits(max_connections=1000 if by_account else most)
    return Options(accounts=(account,), users=(User("a", account="A"),), no_auth_user="a", limits=limits)


@pytest.mark.parametrize("by_account", [False, True], ids=["broker", "account"])
async def test_clients_beyond_a_limit_of_a_reload_are_closed_in_turns(
    by_account: bool,
) -> None:
    house = OneShard(allowing(900, by_account=by_account))
    clients = house.shard.clients
    many, stay = 4 * SURPLUS_AT_ONCE, 10
    for _ in range(many):
        await house.connect().talk(b"PING\r\n", wanted=b"PONG\r\n")
    left: list[int] = []  # by turn
    done: list[int] = []
    house.shard.reload(allowing(stay, by_account=by_account), lambda: done.append(len(clients.open)))

    def is_done() -> bool:
        left.append(len(clients.open))
        return bool(done)

    await until(is_done)
    assert left[0] == many - SURPLUS_AT_ONCE
    assert all(before - after <= SURPLUS_AT_ONCE for before, after in pairwise(left))
    assert done == [stay]
    assert list(clients.open) == list(range(1, stay + 1))  # the latest have gone
    assert house.page.connections == stay
    house.close()


@pytest.mark.parametrize("by_account", [False, True], ids=["broker", "account"])
async def test_a_reload_that_allows_more_again_keeps_those_that_were_not_closed_yet(by_account: bool) -> None:
    house = OneShard(allowing(900, by_account=by_account))
    clients = house.shard.clients
    for _ in range(4 * SURPLUS_AT_ONCE):
        await house.connect().talk(b"PING\r\n", wanted=b"PONG\r\n")
    done: list[str] = []
    house.shard.reload(allowing(10, by_account=by_account), lambda: done.append("fewer"))
    house.shard.reload(allowing(900, by_account=by_account), lambda: done.append("more"))
    await until(lambda: len(done) == 2)
    assert len(clients.open) == house.page.connections == 3 * SURPLUS_AT_ONCE
    house.close()


@pytest.mark.parametrize("websocket", [False, True], ids=["plain", "websocket"])
async def test_a_connection_that_cannot_be_watched_is_closed_and_ends_nobody_else(
    caplog: pytest.LogCaptureFixture, websocket: bool
) -> None:
    """A user may have so many watched sockets, over all processes: then epoll_ctl fails."""
    most = Options(
        accounts=(Account("A", max_connections=1),),
        users=(User("a", account="A"),),
        no_auth_user="a",
        websocket=WebSocket(port=-1, no_tls=True),
    )
    house = OneShard(most)
    clients = house.shard.clients
    unfit = os.open(os.devnull, os.O_RDWR)  # no epoll set takes this one
    (clients.on_accept_websocket if websocket else clients.on_accept)(unfit, "127.0.0.1", 1)
    assert "cannot be served, and is closed: [Errno 1] cannot watch a socket" in caplog.text
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(unfit)
    assert not clients.open and house.page.connections == 0
    client = house.connect()  # the account has room for one
    await client.wait(b"}")
    assert (await client.talk(b"CONNECT {}\r\nPING\r\n")).endswith(b"PONG\r\n")
    house.close()


async def test_an_error_behind_a_log_in_that_was_waited_for_reaches_its_client() -> None:
    """The client is resumed and closed in the same pass over those that called: its error is sent all the same."""
    house = OneShard(Options(users=(User("a", HASH),)))
    try:
        client = house.connect()
        await client.wait(b"}")
        said = await client.talk(b'CONNECT {"verbose":false,"user":"a","pass":"good"}\r\nFOO\r\n', wanted=b"nothing")
        assert client.is_over
        assert said.endswith(b"-ERR 'Unknown Protocol Operation'\r\n")
    finally:
        house.close()


async def test_all_subscriptions_of_a_closed_client_end_however_many_there_are(house: OneShard) -> None:
    """They are removed some at a time."""
    client = await let_in(house)
    assert client is not None
    for first in range(0, 20_500, 500):
        await client.talk(b"".join(b"SUB a.%d %d\r\n" % (n, n) for n in range(first, first + 500)) + b"PING\r\n")
    sublist = house.shard.mesh.account(b"$G")
    assert sublist.n_subs == 20_500
    client.close()
    await until(lambda: sublist.n_subs == 0)


def importing(prefix: str, *, rights: Permissions | None = None) -> Options:
    """`a` is of the account that exports a stream, `b` of one that imports it with this prefix."""
    imports = (Import("A", "s.*", is_service=False, to=f"{prefix}.s.*"),)
    accounts = (Account("A", exports=(Export("s.*", is_service=False),)), Account("B", imports=imports))
    return Options(
        users=(User("a", "", account="A"), User("b", "", account="B", permissions=rights)), accounts=accounts
    )


@pytest.mark.parametrize("rights", [None, Permissions(subscribe_deny=("no",))], ids=["streams", "rights too"])
async def test_subscriptions_follow_other_streams_in_turns_and_others_go_between(rights: Permissions | None) -> None:
    house = OneShard(importing("x"))
    clients = house.shard.clients
    turns = 0
    end_some = clients._end_some

    def one_turn() -> None:
        nonlocal turns
        turns += 1
        end_some()

    try:
        many, other, publisher = [house.connect() for _ in range(3)]
        for client, user in (many, "b"), (other, "b"), (publisher, "a"):
            await client.wait(b"}")
            await client.talk(b'CONNECT {"verbose":false,"user":"%s","pass":""}\r\nPING\r\n' % user.encode())
        for first in range(0, 5000, 500):
            subs = (b"SUB x.s.%d x%d\r\nSUB y.s.%d y%d\r\n" % (n, n, n, n) for n in range(first, first + 500))
            await many.talk(b"".join(subs) + b"PING\r\n")
        await many.talk(b"SUB no 2\r\nPING\r\n")
        clients._end_some = one_turn  # type: ignore[method-assign]
        house.shard.reload(importing("y", rights=rights))
        session = next(one for one in clients.open.values() if one.connection.subscriptions)
        assert session.connection.is_ending
        served = 0
        while session.connection.is_ending:
            assert await other.talk(b"PING\r\n") == b"PONG\r\n"
            served += 1
        assert turns >= 10, "10,000 subscriptions, at most 1,000 of them in a turn"
        assert served >= 3
        await publisher.talk(b"PUB s.7 1\r\n1\r\nPUB s.4999 1\r\n2\r\nPING\r\n")
        said = await many.talk(b"PING\r\n")
        assert said.endswith(b"MSG y.s.7 y7 1\r\n1\r\nMSG y.s.4999 y4999 1\r\n2\r\nPONG\r\n")
        assert (b"Permissions Violation" in said) == (rights is not None)
    finally:
        house.close()


async def come_with_5000_subscriptions(house: OneShard) -> None:
    client = house.connect()
    await client.wait(b"}")
    await client.talk(b'CONNECT {"verbose":false,"user":"b","pass":""}\r\nPING\r\n')
    for first in range(0, 5000, 500):
        subs = (b"SUB x.s.%d %d\r\n" % (n, n) for n in range(first, first + 500))
        await client.talk(b"".join(subs) + b"PING\r\n")


@pytest.mark.parametrize(
    "after", [importing("y"), importing("x", rights=Permissions(subscribe_deny=("x.s.*",)))], ids=["streams", "rights"]
)
async def test_a_reload_is_over_when_the_last_of_many_subscriptions_has_followed_it(after: Options) -> None:
    """Until then a client hears, or is taken to hear, what it may not hear any more."""
    house = OneShard(importing("x"))
    left: list[int] = []
    try:
        await come_with_5000_subscriptions(house)
        exporter = house.shard.mesh.account(b"A")
        assert exporter.n_subs == 5000
        for _ in range(2):
            house.shard.reload(after, lambda: left.append(exporter.n_subs))
        await until(lambda: len(left) == 2)
        assert left == [0, 0]
    finally:
        house.close()


async def test_a_reload_does_not_wait_for_who_closes_before_all_has_followed_it() -> None:
    house = OneShard(importing("x"))
    done: list[bool] = []
    try:
        await come_with_5000_subscriptions(house)
        house.shard.reload(importing("y"), lambda: done.append(True))
        (session,) = house.shard.clients.open.values()
        assert session.connection.is_ending and not done
        assert session.socket is not None
        session.socket.kick(CloseReason.CLIENT_CLOSED)
        await until(lambda: done == [True])
    finally:
        house.close()


async def test_who_comes_while_clients_are_held_waits_too(house: OneShard) -> None:
    """A link is missing: what anybody published now would miss subscribers there."""
    clients = house.shard.clients
    before = await let_in(house)
    assert before is not None
    clients.hold()
    after = house.connect()
    await after.wait(b"}")
    after._sock.sendall(b'CONNECT {"verbose":false}\r\nPING\r\n')
    for _ in range(50):  # a socket pair delivers at once: what has not happened after so many will not happen
        house.shard.reactor.turn()
    with pytest.raises(BlockingIOError):
        after._sock.recv(100)
    clients.go_on()
    assert await after.wait(b"PONG\r\n") == b"PONG\r\n"


class Way:
    """The way to a gateway that is being started; `taken` are the descriptors that went there."""

    def __init__(self) -> None:
        self.is_started = False
        self.taken: list[int] = []

    def is_open(self) -> bool:
        return self.is_started

    def hand_leaf_node(self, fd: int, *more: object) -> None:
        self.taken.append(fd)


async def test_a_leaf_node_waits_for_the_gateway_also_where_clients_go_on_meanwhile() -> None:
    """As when the gateway's link is there, and its way not yet. What it says is not carried out as a client's."""
    house = OneShard(Options(websocket=WebSocket(port=-1, no_tls=True)))
    house.shard.clients.leaf_way = way = Way()
    leaf = house.connect(websocket=True)
    leaf.send(request(1, path="/leafnode"))
    await leaf.wait(b"\r\n\r\n")
    house.shard.clients.hold()
    house.shard.clients.go_on()
    words = frame(BINARY, b'CONNECT {"version":"2.9.10"}\r\nLS+ a\r\n')
    leaf.send(words)
    for _ in range(50):  # a socket pair delivers at once: what has not happened after so many will not happen
        house.shard.reactor.turn()
    way.is_started = True
    await until(lambda: way.taken or not house.shard.clients.open)
    with socket.socket(fileno=way.taken.pop()) as sock:
        assert sock.recv(1000) == words
    house.close()


@pytest.mark.parametrize("password", ["secret", "wrong"])
async def test_a_session_keeps_no_secret_of_its_connect(password: str) -> None:
    house = OneShard(Options(users=(User("a", "secret"),)))
    try:
        client = house.connect()
        await client.wait(b"}")
        (session,) = house.shard.clients.open.values()
        await client.talk(
            b'CONNECT {"user":"a","pass":"%s","auth_token":"t","sig":"s"}\r\nPING\r\n' % password.encode()
        )
        connect = session.connect
        assert connect.user == "a"
        assert (connect.password, connect.auth_token, connect.sig, connect.jwt) == ("", "", "", "")
    finally:
        house.close()


async def test_a_certificate_stands_for_a_user_that_there_is_now() -> None:
    """What a client is mapped to is asked at its CONNECT, of the rules of the last reload."""
    mapped = Tls(verify_and_map=True)
    house = OneShard(Options(tls=mapped, users=(User("before"), User("always"))))
    try:
        for users, expected in (
            (("before", "always"), {"before", "always"}),
            (("after", "always"), {"after", "always"}),
        ):
            house.shard.reload(Options(tls=mapped, users=tuple(User(name) for name in users)))
            let_in = set()
            for name in ("before", "after", "always"):
                client = house.connect()
                await client.wait(b"}")
                session = list(house.shard.clients.open.values())[-1]
                session.names = CertificateNames((name,))
                if (await client.talk(b"CONNECT {}\r\nPING\r\n")).endswith(b"PONG\r\n"):
                    assert session.user == name
                    let_in.add(name)
            assert let_in == expected
    finally:
        house.close()


class Comparison:
    """bcrypt as slow as the test wants: it answers when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._loop = asyncio.get_running_loop()
        self._begun = asyncio.Event()
        self._may_end = threading.Event()
        self._compare = passwords.is_same
        monkeypatch.setattr(passwords, "is_same", self._is_same)

    def _is_same(self, password: str, hashed: str) -> bool:
        self._loop.call_soon_threadsafe(self._begun.set)
        assert self._may_end.wait(WITHIN_S)
        return self._compare(password, hashed)

    async def wait_begun(self) -> None:
        async with asyncio.timeout(WITHIN_S):
            await self._begun.wait()

    def end(self) -> None:
        self._may_end.set()


AS_USER = b'CONNECT {"verbose":false,"user":"a","pass":"good"}\r\nPING\r\n'
BY_TOKEN = b'CONNECT {"verbose":false,"auth_token":"good"}\r\nPING\r\n'
USER = Options(users=(User("a", HASH),))
TOKEN = Options(auth_token=HASH)


@pytest.mark.parametrize(
    ("before", "log_in", "after", "is_let_in", "next_is_let_in"),
    [
        (USER, AS_USER, Options(users=(User("a", HASH), User("b", "b"))), True, True),
        (USER, AS_USER, Options(users=(User("a", OTHER_HASH),)), False, False),
        (USER, AS_USER, Options(users=(User("a", "good"),)), True, True),
        (USER, AS_USER, Options(users=(User("b", "b"),)), False, False),
        (USER, AS_USER, Options(users=(User("a", HASH, account="A"),), accounts=(Account("A"),)), True, True),
        (USER, AS_USER, Options(users=(User("a", HASH, connection_types=("WEBSOCKET",)),)), False, False),
        (USER, AS_USER, Options(auth_token="good"), False, False),
        (TOKEN, BY_TOKEN, Options(auth_token=HASH, server_tags=("x",)), True, True),
        (TOKEN, BY_TOKEN, Options(auth_token=OTHER_HASH), False, False),
        (TOKEN, BY_TOKEN, Options(auth_token="good"), True, True),
        (TOKEN, BY_TOKEN, USER, False, False),
    ],
    ids=[
        "same user", "other password", "no hash", "user gone", "other account", "not this way", "token instead",
        "same token", "other token", "token no hash", "user instead",
    ],
)  # fmt: skip
async def test_a_password_is_compared_under_the_rules_that_hold_when_the_answer_comes(
    monkeypatch: pytest.MonkeyPatch,
    before: Options,
    log_in: bytes,
    after: Options,
    is_let_in: bool,
    next_is_let_in: bool,
) -> None:
    comparison = Comparison(monkeypatch)
    house = OneShard(before)
    try:
        client = house.connect()
        await client.wait(b"}")
        await client.talk(log_in, wanted=b"")
        await comparison.wait_begun()
        house.shard.reload(after)
        comparison.end()
        answer = await client.wait(b"PONG\r\n")
        assert answer.endswith(b"PONG\r\n" if is_let_in else VIOLATION)
        assert client.is_over is not is_let_in
        # What was compared may be known by now; the next one is asked under the new rules all the same.
        other = house.connect()
        await other.wait(b"}")
        assert (await other.talk(log_in)).endswith(b"PONG\r\n" if next_is_let_in else VIOLATION)
    finally:
        comparison.end()
        house.close()


async def test_clients_that_have_python_asked_again_and_again_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    house = OneShard(Options(users=(User("a", "p", permissions=Permissions(subscribe_allow=("other",))),)))
    clients = house.shard.clients
    note, read_on = clients.note_denied, clients._read_on
    denied: list[str] = []
    in_turns: list[int] = []

    def note_denied(account: str, user: str, *, is_publish: bool) -> None:
        denied.append(user)
        note(account, user, is_publish=is_publish)

    def one_turn() -> None:
        before = len(denied)
        read_on()
        in_turns.append(len(denied) - before)

    monkeypatch.setattr(clients, "note_denied", note_denied)
    monkeypatch.setattr(clients, "_read_on", one_turn)
    try:
        flooding = [house.connect() for _ in range(12)]
        other = house.connect()
        for client in (*flooding, other):
            await client.wait(b"}")
            await client.talk(b'CONNECT {"verbose":false,"user":"a","pass":"p"}\r\nPING\r\n')
        floods = [asyncio.ensure_future(client.talk(b"SUB x 1\r\n" * 1000 + b"PING\r\n")) for client in flooding]
        await until(lambda: bool(in_turns))
        assert await other.talk(b"PING\r\n") == b"PONG\r\n"
        assert not any(flood.done() for flood in floods)
        for flood in floods:
            said = await flood
            assert said.count(b"-ERR 'Permissions Violation") == 1000
            assert said.endswith(b"'\r\nPONG\r\n")
        assert max(in_turns) <= BUSY_AT_ONCE * 200
        # (Each read carries out 200; on a busy machine rounds are long, and as little as 2 KiB is read at a time.)
        assert sum(in_turns) >= 12 * 100
    finally:
        house.close()


async def who_hear_news(house: OneShard, n: int) -> list[Client]:
    clients = [house.connect() for _ in range(n)]
    for client in clients:
        await client.wait(b"}")
        await client.talk(b'CONNECT {"verbose":false,"protocol":1}\r\nPING\r\n')
    return clients


async def test_news_of_the_cluster_are_told_in_turns_and_each_client_hears_the_newest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who was told and who was not, when others come: all hear them once, and those that are to go that they are."""
    monkeypatch.setattr("gnatswarm.shards.clients.clients.TOLD_AT_ONCE", 2)
    house = OneShard(Options())
    shard = house.shard
    try:
        clients = await who_hear_news(house, 7)
        shard.on_cluster_news(ClusterNews(name="c", own_urls=["a:1"], urls=["b:1"]))
        told = [session for session in shard.clients.open.values() if session not in shard.clients._untold]
        assert len(told) == 2
        shard.clients.announce_departure()
        await until(lambda: not shard.clients._untold)
        for client in clients:
            infos = (await client.talk(b"PING\r\n")).split(b"\r\n")[:-2]
            assert len(infos) <= 2 and b'"ldm":true' in infos[-1] and b'["b:1"]' in infos[-1]
            assert b"ldm" not in b"".join(infos[:-1])
    finally:
        house.close()


async def test_who_is_to_go_hears_so_though_other_news_come_before_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gnatswarm.shards.clients.clients.TOLD_AT_ONCE", 1)
    house = OneShard(Options())
    shard = house.shard
    try:
        clients = await who_hear_news(house, 3)
        for session in shard.clients.open.values():
            session.relay = "gone"
        shard.clients.announce_end_of_relays(["gone"])
        shard.on_cluster_news(ClusterNews(name="c", own_urls=["a:1"], urls=["b:1"]))
        await until(lambda: not shard.clients._untold)
        for client in clients:
            said = await client.talk(b"PING\r\n")
            assert said.count(b'"ldm":true') == 1 and b'"b:1"]' in said
    finally:
        house.close()


async def test_who_is_closed_before_its_turn_hears_the_news_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gnatswarm.shards.clients.clients.TOLD_AT_ONCE", 1)
    house = OneShard(Options())
    shard = house.shard
    try:
        clients = await who_hear_news(house, 4)
        *_, closed = shard.clients.open.values()
        shard.clients.announce_departure()
        assert len(shard.clients._untold) == 3
        shard.clients.close([closed], CloseReason.KICKED)
        assert b'"ldm":true' in await clients[-1].wait(b"nothing")
        clients[-2].close()
        await until(lambda: len(shard.clients.open) == 2 and not shard.clients._untold)
        for client in clients[:2]:
            assert (await client.talk(b"PING\r\n")).count(b'"ldm":true') == 1
    finally:
        house.close()


def users(*names: str, **rights: Permissions) -> Options:
    return Options(users=tuple(User(name, "", permissions=rights.get(name)) for name in names))


async def entered(house: OneShard, user: str) -> Client:
    client = house.connect()
    await client.wait(b"}")
    await client.talk(
        b'CONNECT {"verbose":false,"user":"%b","pass":""}\r\nSUB s.%b 1\r\nPING\r\n' % ((user.encode(),) * 2)
    )
    return client


async def test_a_reload_looks_at_clients_in_turns_and_is_done_behind_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is left, or has gone or come meanwhile; a second reload begins anew."""
    monkeypatch.setattr("gnatswarm.shards.clients.clients.RELOADED_AT_ONCE", 2)
    house = OneShard(users("a", "b", "c"))
    shard, done = house.shard, list[str]()
    try:
        clients = [await entered(house, user) for user in "aaabbbccc"]
        sublist = shard.mesh.account(b"$G")
        shard.reload(users("a", "c"), lambda: done.append("first"))
        assert len(shard.clients._unchecked) == 7 and not done
        clients[-1].close()
        shard.reload(users("a", "c", a=Permissions(subscribe_deny=("s.a",))), lambda: done.append("second"))
        assert len(shard.clients._unchecked) == 9 and not done
        await until(lambda: done)
        assert done == ["first", "second"] and not shard.clients._unchecked
        for client in clients[:3]:
            assert b"Permissions Violation for Subscription" in await client.talk(b"PING\r\n")
        for client in clients[3:6]:
            assert VIOLATION in await client.wait(b"nothing")
        await until(lambda: sublist.n_subs == 2)
        for client in clients[6:8]:
            assert await client.talk(b"PING\r\n") == b"PONG\r\n"
    finally:
        house.close()


async def test_of_a_reload_that_allows_fewer_whom_it_does_not_let_in_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those who are left then may be few enough."""
    monkeypatch.setattr("gnatswarm.shards.clients.clients.RELOADED_AT_ONCE", 2)
    house = OneShard(users("a", "b", "c"))
    try:
        clients = [await entered(house, user) for user in "cccaaabbb"]
        fewer = msgspec.structs.replace(users("b", "c"), limits=Limits(max_connections=6))
        done: list[bool] = []
        house.shard.reload(fewer, lambda: done.append(True))
        await until(lambda: done)
        for client in clients[:3] + clients[6:]:
            assert await client.talk(b"PING\r\n") == b"PONG\r\n"
        assert len(house.shard.clients.open) == 6
    finally:
        house.close()


async def test_permissions_by_the_thousand_are_compiled_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """200 clients that came back at once, each of a user with 5,000 of its own, kept a shard from others for 1.4 s."""

    def options(tag: str) -> Options:
        of_one = [Permissions(publish_allow=tuple(f"{tag}.{n}.{i}" for i in range(1000))) for n in range(20)]
        return Options(users=tuple(User(f"u{n}", "x", permissions=one) for n, one in enumerate(of_one)))

    most_looks = 3 * 1000 // ENTRIES_COUNT_AS_LOOK
    monkeypatch.setattr(clients_module, "LOOKED_AT_ONCE", most_looks)
    monkeypatch.setattr(clients_module, "RELOADED_AT_ONCE", 3 * 1000 // ENTRIES_COUNT_AS_CLIENT)
    house = OneShard(options("a"))
    turns: list[int] = []
    compiled = 0

    def turn() -> None:
        nonlocal compiled
        turns.append(house.shard.clients.rights.compiled_entries - compiled)
        compiled = house.shard.clients.rights.compiled_entries
        watch()

    def watch() -> None:
        if not is_over:
            loop.call_soon(turn)

    is_over: list[bool] = []
    loop = asyncio.get_running_loop()
    there = [house.connect() for _ in range(20)]
    for client in there:
        await client.wait(b"}")
    watch()
    connect = b'CONNECT {"user":"u%d","pass":"x","verbose":false,"pedantic":false,"echo":true}\r\nPING\r\n'
    said = await asyncio.gather(*(client.talk(connect % n) for n, client in enumerate(there)))
    assert [one.endswith(b"PONG\r\n") for one in said] == [True] * 20
    assert sum(turns) == 20_000 and max(turns) <= 4000
    turns.clear()
    compiled = 0
    over: list[int] = []
    house.shard.reload(options("b"), lambda: over.append(len(turns)))
    await until(lambda: bool(over))
    assert sum(turns) == 20_000 and max(turns) <= 4000
    assert await there[3].talk(b"PUB b.3.999 0\r\n\r\nPING\r\n") == b"PONG\r\n"
    assert b"Permissions Violation" in await there[3].talk(b"PUB a.3.999 0\r\n\r\n", b"-ERR")
    is_over.append(True)
    house.close()


async def test_who_may_answer_may_do_so_after_two_reloads_of_which_one_overtakes_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rights of the responder are what they were; the first reload had not come to it when the second began."""
    monkeypatch.setattr("gnatswarm.shards.clients.clients.RELOADED_AT_ONCE", 1)
    rights = Permissions(publish_allow=("x",), responses=-1, responses_expire_s=0.0)
    house = OneShard(users("a", "b", b=rights))
    done: list[bool] = []
    try:
        asker, responder = [await entered(house, user) for user in "ab"]
        assert await asker.talk(b"SUB r 2\r\nPUB s.b r 0\r\n\r\nPING\r\n") == b"PONG\r\n"
        assert await responder.wait(b"\r\n\r\n") == b"MSG s.b 1 r 0\r\n\r\n"
        for _ in range(2):
            house.shard.reload(users("a", "b", "c", b=rights), lambda: done.append(True))
        await until(lambda: len(done) == 2)
        assert await responder.talk(b"PUB r 2\r\nhi\r\nPING\r\n") == b"PONG\r\n"
        assert await asker.wait(b"hi\r\n") == b"MSG r 2 2\r\nhi\r\n"
        assert not house.shard.clients.rights._before  # and nothing of earlier rights is kept
    finally:
        house.close()


async def test_max_connections_of_a_reload_holds_when_its_turns_are_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gnatswarm.shards.clients.clients.RELOADED_AT_ONCE", 1)
    house = OneShard(Options())
    done: list[bool] = []
    try:
        clients = [await let_in(house) for _ in range(4)]
        assert all(clients)
        house.shard.reload(Options(limits=Limits(max_connections=2)), lambda: done.append(True))
        house.shard.reload(Options(limits=Limits(max_connections=2)))
        await until(lambda: done)
        assert house.page.connections == 2
    finally:
        house.close()


async def test_streams_of_a_reload_are_followed_though_another_one_begins_before_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gnatswarm.shards.clients.clients.RELOADED_AT_ONCE", 1)
    house = OneShard(importing("x"))
    done: list[bool] = []
    try:
        clients = [house.connect() for _ in range(3)]
        for client, user in zip(clients, "bba", strict=True):
            await client.wait(b"}")
            await client.talk(b'CONNECT {"verbose":false,"user":"%b","pass":""}\r\nPING\r\n' % user.encode())
            await client.talk(b"SUB y.s.1 1\r\nPING\r\n")
        house.shard.reload(importing("y"))
        house.shard.reload(importing("y"), lambda: done.append(True))
        await until(lambda: done)
        await clients[2].talk(b"PUB s.1 1\r\nx\r\nPING\r\n")
        for client in clients[:2]:
            assert await client.talk(b"PING\r\n") == b"MSG y.s.1 1 1\r\nx\r\nPONG\r\n"
    finally:
        house.close()


@pytest.mark.parametrize("after", [Options(users=(User("a", "a"),)), Options()], ids=["no guests", "nobody logs in"])
async def test_a_reload_does_not_touch_who_has_not_said_yet_who_it_is(after: Options) -> None:
    """It may be about to log in, though as a guest it could not stay."""
    house = OneShard(Options(users=(User("a", "a"), User("guest")), no_auth_user="guest"))
    quiet, guest = house.connect(), house.connect()
    await guest.talk(b"PING\r\n")
    house.shard.reload(after)
    assert (await quiet.talk(b'CONNECT {"verbose":false,"user":"a","pass":"a"}\r\nPING\r\n')).endswith(b"PONG\r\n")
    if after.users:
        assert VIOLATION in await guest.wait(VIOLATION)
    else:
        assert await guest.talk(b"PING\r\n") == b"PONG\r\n"
    house.close()


class Limited:
    """A shard whose clients may publish two messages per second; two of them have just sent fifty."""

    def __init__(self) -> None:
        limits = PublishLimits(messages=2, stall_s=0)
        self.house = OneShard(Options(users=(User("a", publish_limits=limits),), no_auth_user="a"))
        self.clients = self.house.shard.clients

    async def begin(self) -> tuple[Client, Client]:
        first, second = self.house.connect(), self.house.connect()
        for client in (first, second):
            await client.talk(b'CONNECT {"verbose":false,"protocol":1}\r\nPING\r\n')
            client.send(b"PUB a 1\r\n.\r\n" * 50)
        self.sessions = list(self.clients.open.values())
        self.connections = [session.connection for session in self.sessions]
        await until(lambda: all(session.socket.unread_bytes for session in self.sessions if session.socket))
        assert all(one.in_msgs < 25 for one in self.connections)
        return first, second


@pytest.fixture
async def limited() -> AsyncIterator[Limited]:
    limited = Limited()
    yield limited
    limited.house.close()


async def test_of_who_waits_for_its_limits_and_has_gone_nothing_is_left(limited: Limited) -> None:
    await limited.begin()
    clients, gone = limited.clients, limited.sessions[0]
    await until(lambda: len(clients._limited) == 2)
    assert gone.socket is not None
    gone.socket.kick(CloseReason.AUTHENTICATION_EXPIRED)
    await until(lambda: len(clients.open) == 1)
    assert gone not in clients._limited and sum(clients.allowances._waiting.values()) == len(clients._limited)


async def test_who_has_other_limits_is_read_on_when_the_reactor_has_time(limited: Limited) -> None:
    """A link may bring it about, in the midst of its frames: 2,000 messages behind them were taken for the client's."""
    await limited.begin()
    clients, finished = limited.clients, list[str]()
    reactor = clients._reactor
    clients._reactor = SimpleNamespace(is_serving=True, finish=lambda: finished.append("finish"))  # type: ignore[assignment]
    before = limited.connections[0].in_msgs
    limited.connections[0].allow(None)
    clients.on_other_publish_limits(limited.sessions[0])
    assert not finished and limited.connections[0].in_msgs == before
    clients._reactor = reactor
    reactor.finish()
    await until(lambda: limited.connections[0].in_msgs == 50)


async def test_who_is_heard_and_goes_on_elsewhere_or_is_closed_is_told_to_go_before(limited: Limited) -> None:
    first, _second = await limited.begin()
    limited.clients.announce_departure()
    limited.clients.read_ahead()
    limited.clients.announce_departure()
    limited.clients.tell_now(limited.sessions[0])
    limited.house.shard.reactor.finish()
    assert b'"ldm":true' in await first.wait(b'"ldm":true')


async def test_who_has_ended_is_heard_out_without_its_limit_and_others_keep_theirs(limited: Limited) -> None:
    """A shard that leaves does not wait for the rate of those who have gone, and does not know who has."""
    ended, stays = await limited.begin()
    ended.close()
    assert limited.clients.read_ahead() == (2, {1})
    await until(lambda: 1 not in limited.clients.open)
    await until(lambda: limited.connections[1].in_msgs == 50)
    assert limited.connections[0].in_msgs == 50
    waits = limited.connections[1].publish_waits
    await until(lambda: limited.clients.read_ahead() == (0, set()))
    stays.send(b"PUB a 1\r\n.\r\n" * 50)
    await until(lambda: limited.connections[1].publish_waits > waits)
    assert limited.connections[1].in_msgs < 75


async def test_who_goes_on_talking_is_heard_so_far_and_for_so_long_alone(
    limited: Limited, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hearing, "MOST_BYTES", 1000)
    talks, _ = await limited.begin()
    assert limited.clients.hear_out(limited.sessions) == []
    await until(lambda: limited.connections[0].in_msgs == 50)
    assert limited.clients.hear_out(limited.sessions) == []
    talks.send(b"PUB a 1\r\n.\r\n" * 100)
    await until(lambda: limited.connections[0].in_msgs == 150)
    assert limited.clients.hear_out(limited.sessions) == [limited.sessions[0]]
    monkeypatch.setattr(time, "monotonic", lambda: time.monotonic_ns() / 1e9 + hearing.HEAR_OUT_S)
    assert limited.clients.hear_out(limited.sessions) == limited.sessions


@pytest.mark.parametrize("is_closing", [True, False])
async def test_who_is_heard_out_is_not_limited_by_a_reload(
    limited: Limited, monkeypatch: pytest.MonkeyPatch, is_closing: bool
) -> None:
    """It would stand still until it is closed, and what it has sent be lost."""
    monkeypatch.setattr(hearing, "HEAR_OUT_S", 60.0)
    monkeypatch.setattr(hearing, "DRY_S", 60.0)
    talks, _ = await limited.begin()
    if is_closing:
        assert limited.clients.hear_out(limited.sessions) == []
    else:
        assert limited.clients.read_ahead() == (2, set())
    limited.clients._readmit(limited.sessions[0])
    waits = limited.connections[0].publish_waits
    talks.send(b"PUB a 1\r\n.\r\n" * 50)
    await until(lambda: limited.connections[0].in_msgs == 100)
    assert limited.connections[0].publish_waits == waits


async def test_who_may_be_closed_has_nothing_more_to_say(limited: Limited, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hearing, "DRY_S", 0.0)
    ended, _ = await limited.begin()
    quiet = limited.house.connect()
    await quiet.talk(b"PING\r\n")
    sessions = list(limited.clients.open.values())
    ended.close()
    assert limited.clients.hear_out(sessions) == sessions[2:]
    await until(lambda: len(limited.clients.open) == 2)
    await until(lambda: limited.clients.hear_out(sessions[1:]) == sessions[1:])
    assert [one.in_msgs for one in limited.connections] == [50, 50]


async def test_who_was_just_about_to_be_read_on_is_heard_out_too(limited: Limited) -> None:
    """All it had sent is read, and kept, and its limit is over for now; what it kept is carried out a turn later."""
    await limited.begin()
    connection = limited.connections[0]
    session = limited.sessions[0]
    assert session.socket is not None
    assert connection.in_msgs < 25
    connection.publish_again()
    assert session.socket.unread_bytes > 0 and limited.clients.waits_for_limit(session)
    assert limited.clients.hear_out([session]) == []
    await until(lambda: connection.in_msgs == 50)


async def test_who_is_over_its_limit_is_told_to_go_when_it_has_been_heard(limited: Limited) -> None:
    """One that has closed would answer INFO with a reset, and its kernel would send nothing more."""
    tells, _ = await limited.begin()
    quiet = limited.house.connect()
    await quiet.talk(b'CONNECT {"verbose":false,"protocol":1}\r\nPING\r\n')
    limited.clients.announce_departure()
    assert b'"ldm":true' in quiet.has_heard() and tells.has_heard() == b""
    assert b'"ldm":true' in await tells.wait(b"\r\n") and limited.connections[0].in_msgs == 50


@pytest.mark.parametrize(
    "after", [None, PublishLimits(messages=1_000_000, stall_s=0)], ids=["without limits", "with a higher limit"]
)
async def test_who_waits_for_its_publish_limits_goes_on_when_a_reload_changes_them(after: PublishLimits | None) -> None:
    """Under the old ones its last message would come in some seven minutes."""

    def limited(limits: PublishLimits | None) -> Options:
        return Options(users=(User("a", publish_limits=limits), User("b", "b")), no_auth_user="a")

    house = OneShard(limited(PublishLimits(bytes=1, burst_s=3600, stall_s=0)))
    try:
        clients = house.shard.clients
        client = house.connect()
        await client.talk(b"PING\r\n")
        client.send(b"PUB a 1000\r\n%b\r\n" % bytes(1000) * 5 + b"PING\r\n")
        [connection] = clients.connections()
        await until(lambda: connection.in_msgs >= 4)
        done: list[bool] = []
        house.shard.reload(limited(PublishLimits(bytes=1, burst_s=3600, stall_s=0)), lambda: done.append(True))
        await until(lambda: done)
        assert connection.in_msgs == 4
        house.shard.reload(limited(after))
        assert (await client.wait(b"PONG\r\n")).endswith(b"PONG\r\n")
        assert connection.in_msgs == 5
    finally:
        house.close()


@pytest.mark.parametrize(
    ("after", "said"),
    [
        (["a", "b", "c"], []),
        (["a"], ["2 clients are closed, because the new users and rules do not let them in"]),
        (["a", "b"], ["1 client is closed, because the new users and rules do not let it in"]),
        (
            ["b", "c of another account"],
            [
                "1 client is closed, because the new users and rules do not let it in",
                "1 client is closed, because its user has another account now",
            ],
        ),
        (["one connection"], ["2 clients are closed, because there are more than max_connections"]),
        (["one of the account"], ["2 clients are closed, because their accounts have more than they may"]),
    ],
    ids=lambda case: ", ".join(case) if case and isinstance(case[0], str) and len(case[0]) < 30 else "",
)
async def test_the_log_says_how_many_clients_a_reload_has_closed_and_why(
    after: list[str], said: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    everybody = Options(users=tuple(User(name, name, account="A") for name in "abc"), accounts=(Account("A"),))
    house = OneShard(everybody)
    try:
        for name in "abc":
            words = b'CONNECT {"verbose":false,"user":"%b","pass":"%b"}\r\nPING\r\n' % (name.encode(), name.encode())
            await house.connect().talk(words)
        caplog.set_level(logging.INFO, "gnatswarm")
        options = everybody
        if after == ["one connection"]:
            options = msgspec.structs.replace(everybody, limits=Limits(max_connections=1))
        elif after == ["one of the account"]:
            options = msgspec.structs.replace(everybody, accounts=(Account("A", max_connections=1),))
        else:
            named = [(name[0], "B" if name[1:] else "A") for name in after]
            users = tuple(User(name, name, account=account) for name, account in named)
            options = Options(users=users, accounts=(Account("A"), Account("B")))
        done: list[bool] = []
        house.shard.reload(options, lambda: done.append(True))
        await until(lambda: done)
        found = [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]
        assert found == [f"Reloaded: {line}" for line in said]
    finally:
        house.close()


HASHES = {secret: bcrypt.hashpw(secret.encode(), bcrypt.gensalt(4)).decode() for secret in ("a", "b", "other")}


@pytest.mark.parametrize("by_token", [False, True])
@pytest.mark.parametrize("matches", [True, False])
async def test_who_has_a_password_that_a_reload_writes_as_its_hash_stays(*, by_token: bool, matches: bool) -> None:
    """As on nats-server. It was closed, and could log in again."""

    def options(secret: str) -> Options:
        return Options(auth_token=secret) if by_token else Options(users=(User("u", secret), User("b", "b")))

    house = OneShard(options("a"))
    try:
        words = b'"auth_token":"a"' if by_token else b'"user":"u","pass":"a"'
        clients = [house.connect() for _ in range(3)]
        for client in clients:
            await client.talk(b'CONNECT {"verbose":false,%b}\r\nPING\r\n' % words)
        done: list[int] = []
        house.shard.reload(options(HASHES["a" if matches else "other"]), lambda: done.append(1))
        house.shard.reload(
            msgspec.structs.replace(options(HASHES["a" if matches else "other"]), server_tags=("x",)),
            lambda: done.append(2),
        )
        assert not done and len(house.shard.clients.open) == 3
        await until(lambda: done)
        assert house.shard.clients.passwords.compared == 1 and done == [1, 2]
        if matches:
            assert [await client.talk(b"PING\r\n") for client in clients] == [b"PONG\r\n"] * 3
        else:
            assert [await client.wait(VIOLATION) for client in clients] == [VIOLATION] * 3
    finally:
        house.close()


def three_users(*secrets: str) -> Options:
    return Options(users=tuple(User(name, secret) for name, secret in zip("abc", secrets, strict=True)))


async def test_passwords_of_a_reload_are_compared_one_after_another_and_each_client_gets_its_own_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three users, of whom two stay, and one whose comparison cannot be made."""
    monkeypatch.setattr(comparisons, "COMPARE_ATTEMPTS", 2)
    house = OneShard(three_users("a", "b", "c"))
    try:
        clients = [house.connect() for _ in range(3)]
        for name, client in zip(b"abc", clients, strict=True):
            await client.talk(b'CONNECT {"verbose":false,"user":"%c","pass":"%c"}\r\nPING\r\n' % (name, name))
        asked = house.shard.clients.passwords.ask
        waiting: list[int] = []

        def ask(question: HashedPassword, waiter: WaitingClient) -> bool:
            waiting.append(house.shard.clients.passwords.waiting)
            return question.password != "c" and asked(question, waiter)

        house.shard.clients.passwords.ask = ask  # type: ignore[method-assign]
        done: list[bool] = []
        after = three_users(HASHES["a"], HASHES["other"], HASHES["other"])
        house.shard.reload(after, lambda: done.append(True))
        await until(lambda: done)
        assert waiting == [0] * 4
        assert await clients[0].talk(b"PING\r\n") == b"PONG\r\n"
        assert [await client.wait(VIOLATION) for client in clients[1:]] == [VIOLATION] * 2
        house.shard.reload(msgspec.structs.replace(after, server_tags=("x",)))
        assert await clients[0].talk(b"PING\r\n") == b"PONG\r\n" and waiting == [0] * 4
    finally:
        house.close()


async def test_of_passwords_of_a_reload_so_many_are_compared_also_where_others_wait_for_too_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where their host has 64 log-ins that wait, they were all closed in a moment."""
    monkeypatch.setattr(comparisons, "MOST_COMPARISONS", 2)
    house = OneShard(three_users("a", "a", "a"))
    try:
        clients = [house.connect() for _ in range(3)]
        for name, client in zip(b"abc", clients, strict=True):
            await client.talk(b'CONNECT {"verbose":false,"user":"%c","pass":"a"}\r\nPING\r\n' % name)
        asked = house.shard.clients.passwords.ask
        refused: list[HashedPassword] = []

        def ask(question: HashedPassword, waiter: WaitingClient) -> bool:
            if refused.count(question) < 2:
                refused.append(question)
                return False
            return asked(question, waiter)

        house.shard.clients.passwords.ask = ask  # type: ignore[method-assign]
        done: list[bool] = []
        hashes = [HASHES["a"], HASHES["a"].replace("$2b$", "$2a$"), HASHES["a"].replace("$2b$", "$2y$")]
        house.shard.reload(three_users(*hashes), lambda: done.append(True))
        await until(lambda: done)
        assert [await client.talk(b"PING\r\n") for client in clients[:2]] == [b"PONG\r\n"] * 2
        assert await clients[2].wait(VIOLATION) == VIOLATION
        assert len(refused) == 4
    finally:
        house.close()


async def test_what_one_reload_could_not_compare_the_next_one_does_also_while_a_client_moves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was closed without a comparison, as long as any client was on its way to another shard."""
    monkeypatch.setattr(comparisons, "COMPARE_ATTEMPTS", 1)
    plain, hashed = three_users("a", "b", "c"), three_users(HASHES["a"], "b", "c")
    house = OneShard(plain)
    try:
        clients, passwords = house.shard.clients, house.shard.clients.passwords
        clients._reload_later[-1] = False
        asked = passwords.ask
        for can_compare in (False, True):
            client = house.connect()
            await client.talk(b'CONNECT {"verbose":false,"user":"a","pass":"a"}\r\nPING\r\n')
            with monkeypatch.context() as broken:
                broken.setattr(passwords, "ask", asked if can_compare else lambda *_: False)
                house.shard.reload(hashed)
                await until(lambda: clients._comparisons.are_over and not clients._unchecked)
            if can_compare:
                assert await client.talk(b"PING\r\n") == b"PONG\r\n"
            else:
                assert await client.wait(VIOLATION) == VIOLATION
                house.shard.reload(plain)
    finally:
        house.close()


async def test_a_message_that_logs_a_guest_in_is_counted_once_whatever_comes_behind_it() -> None:
    """Some thousand +OK in the same write counted as messages, of all others with these limits."""
    limits = PublishLimits(messages=1000, burst_s=1, stall_s=0)
    house = OneShard(Options(users=(User("a", publish_limits=limits),), no_auth_user="a"))
    try:
        first, second = house.connect(), house.connect()
        await first.talk(b"PUB a 1\r\nx\r\n" + b"+OK\r\n" * 3000 + b"PING\r\n")
        await second.talk(b"PUB a 1\r\nx\r\n" * 500 + b"PING\r\n")
        assert [one.publish_waits for one in house.shard.clients.connections()] == [0, 0]
    finally:
        house.close()


@pytest.mark.parametrize("is_guest", [True, False])
async def test_publish_limits_hold_for_what_comes_in_one_write_with_the_log_in(*, is_guest: bool) -> None:
    """Who connected anew for each 32 KB had no limit."""
    limits = PublishLimits(bytes=1, burst_s=3600, stall_s=0)
    house = OneShard(Options(users=(User("a", "a", publish_limits=limits),), no_auth_user="a" if is_guest else ""))
    try:
        clients = [house.connect() for _ in range(2)]
        words = b"" if is_guest else b'CONNECT {"verbose":false,"user":"a","pass":"a"}\r\n'
        for client in clients:
            client.send(words + b"PUB a 1000\r\n%b\r\n" % bytes(1000) * 10)
        connections = house.shard.clients.connections()
        await until(lambda: all(one.publish_waits for one in connections))
        assert 4 <= sum(one.in_msgs for one in connections) <= 5
        quick = house.connect()
        await quick.talk(words + b"PING\r\n")
    finally:
        house.close()


@pytest.mark.parametrize(
    "what",
    [
        "reload",
        "surplus",
        "news",
        "close",
        "read on",
        "subscriptions",
        "hear",
        "hear out",
        "settle",
        "stays",
        "leaf node",
        "log-in",
    ],
)
async def test_an_error_of_ours_in_what_is_done_for_one_client_of_many_costs_that_client_alone(
    what: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It cost all clients of the shard."""
    house = OneShard(Options())
    failed: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: failed.append(context))
    try:
        there = [house.connect() for _ in range(3)]
        for client in there:
            await client.talk(b'CONNECT {"verbose":false,"protocol":1}\r\nPING\r\n')
        clients = house.shard.clients
        sessions = list(clients.open.values())
        bad = sessions[1]
        done: list[object] = []

        def fails_for_one(owner: object, name: str) -> None:
            before = getattr(owner, name)

            def stumbles(*given: Any, **named: Any) -> Any:
                if bad in given:
                    raise RuntimeError("of the test")
                return before(*given, **named)

            monkeypatch.setattr(owner, name, stumbles)

        match what:
            case "reload":
                fails_for_one(clients, "_readmit")
                house.shard.reload(Options(), lambda: done.append(True))
                await until(lambda: done)
            case "surplus":
                fails_for_one(clients, "_end_surplus")
                house.shard.reload(Options(limits=Limits(max_connections=3)), lambda: done.append(True))
                await until(lambda: done)
            case "news":
                fails_for_one(clients, "tell_now")
                clients.announce_departure()
            case "close":
                fails_for_one(clients, "tell_now")
                clients.close([bad], CloseReason.KICKED)
            case "read on":
                one: Any = SimpleNamespace(socket=bad.socket, connection=SimpleNamespace(read_on=lambda: 1 // 0))
                clients.on_turn_over(one)
            case "subscriptions":
                fails_for_one(type(bad), "end_some")
                clients.end_soon(bad)
            case "hear":
                fails_for_one(clients._hearing, "_begin")
                clients.read_ahead()
            case "settle":
                fails_for_one(clients._hearing, "settle")
                parts: dict[Any, Any] = clients._hearing._parts
                parts[bad] = None
                clients._settle()
            case "stays":
                fails_for_one(clients, "_readmit")
                clients._note_reload(bad, listens=False)
                clients.reload_those_that_stay()
            case "leaf node":
                clients.leaf_way = Mock()
                clients.on_leaf_node(bad)  # (no WebSocket)
            case "log-in":
                fails_for_one(type(bad), "_remember")
                bad._asking = bad.connect
                answered = Mock(is_gone=False, host="another")
                for waiter in bad, answered:
                    clients.passwords.ask(HashedPassword(Admission(NOBODY), "", "$2b$no hash", b"k"), waiter)
                await until(lambda: answered.on_compared.called)
            case _:
                fails_for_one(clients._hearing, "is_over")
                assert clients.hear_out(sessions) == sessions
        await until(lambda: bad.connection.cid not in clients.open)
        assert list(clients.open.values()) == [sessions[0], sessions[2]]
        for client in (there[0], there[2]):
            client.send(b"PING\r\n")
            assert (await client.wait(b"PONG\r\n")).endswith(b"PONG\r\n")
        assert not failed
        assert "its connection is closed because of an error of ours" in caplog.text
    finally:
        house.close()
