"""Sessions whose subscriptions end some at a time: permissions were taken away, or the client logs in anew."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gnatswarm.broker.errors import CloseReason
from gnatswarm.broker.options import Options, Permissions, User
from gnatswarm.shards.clients.session import LOOKED_AT_ONCE
from tests.support.linked_shards import LinkedShards
from tests.support.one_shard import Client, OneShard
from tests.support.turns import until

ANEW = b'CONNECT {"verbose":true}\r\n'


def only(*subjects: str) -> Options:
    return Options(users=(User("a", "p", permissions=Permissions(subscribe_allow=subjects)),))


async def subscribed(house: OneShard, subs: int, connect: bytes) -> Client:
    """A client with so many subscriptions, to s.0, s.1 and so on."""
    client = house.connect()
    await client.wait(b"}")
    await client.talk(connect + b"PING\r\n")
    for first in range(0, subs, 500):
        lines = [b"SUB s.%d %d\r\n" % (n, n) for n in range(first, min(first + 500, subs))]
        await client.talk(b"".join(lines) + b"PING\r\n")
    return client


async def ended_by_turn(house: OneShard) -> list[int]:
    """How many subscriptions end in each turn of the loop, until none is left."""
    sublist = house.shard.mesh.account(b"$G")
    return await counted_by_turn(lambda: sublist.n_subs, lambda: not sublist.n_subs)


async def counted_by_turn(left: Callable[[], int], is_over: Callable[[], bool]) -> list[int]:
    """By how much it has fallen in each turn, until it is over."""
    ended: list[int] = []
    before = left()

    def look() -> bool:
        nonlocal before
        ended.append(before - left())
        before = left()
        return is_over()

    await until(look)
    return ended


VIOLATION = b"-ERR 'Authorization Violation'\r\n"
BY_PASSWORD = b'CONNECT {"verbose":false,"user":"a","pass":"p"}\r\n'


@pytest.mark.parametrize("by_s", [3600.0, -3600.0])
async def test_a_clock_that_is_set_before_connect_is_in_no_round_trip(
    monkeypatch: pytest.MonkeyPatch, by_s: float
) -> None:
    """Until the first PONG it is estimated: the time from the accepted connection to CONNECT."""
    house = OneShard(Options())
    try:
        client = house.connect()
        await client.wait(b"}")
        (session,) = house.shard.clients.open.values()
        assert session.socket is not None
        now_s = time.time
        monkeypatch.setattr(time, "time", lambda: now_s() + by_s)
        await client.talk(b"CONNECT {}\r\nPING\r\n")
        passed_us = time.monotonic_ns() // 1000 - session.socket.opened
        assert 1 < session.connection.rtt_us <= passed_us
    finally:
        house.close()


@pytest.mark.parametrize("has_cookies", [False, True])
async def test_a_guest_who_sends_no_connect_can_move(*, has_cookies: bool) -> None:
    """Its cookies are for a CONNECT, which would be its second log-in."""
    house = OneShard(Options(users=(User("a", "p"),), no_auth_user="a"))
    try:
        client = house.connect()
        await client.wait(b"}")
        (session,) = house.shard.clients.open.values()
        if has_cookies:
            session.on_cookies(("b", "q", ""))
            assert session.objection_to_freezing() == "it has not logged in yet"
        await client.talk(b"PING\r\n")
        assert session.objection_to_freezing() == ""
    finally:
        house.close()


async def test_a_reload_that_revokes_many_subscriptions_serves_others_in_between(
    caplog: pytest.LogCaptureFixture,
) -> None:
    house = OneShard(only(">"))
    try:
        caplog.set_level(logging.INFO, "gnatswarm.clients")
        client = await subscribed(house, 3500, BY_PASSWORD)
        other = await subscribed(house, 0, BY_PASSWORD)
        house.shard.reload(only("other"))
        ended = await ended_by_turn(house)
        assert max(ended) <= LOOKED_AT_ONCE
        assert sum(ended) == 3500
        said = await client.talk(b"SUB other 1\r\nPUB other 0\r\n\r\nPING\r\n")
        assert said.count(b"-ERR 'Permissions Violation for Subscription to \"s.") == 3500
        assert said.endswith(b"'\r\nMSG other 1 0\r\n\r\nPONG\r\n")
        assert await other.talk(b"PING\r\n") == b"PONG\r\n"
        lines = [record.getMessage() for record in caplog.records if "Removed sub" in record.getMessage()]
        assert len(lines) < len(ended)
        counts = [re.search(r"not authorized(?: \((\d+) since the last line\))?$", line) for line in lines]
        assert sum(int(found[1] or 1) for found in counts if found) == 3500
    finally:
        house.close()


async def test_clients_with_few_revoked_subscriptions_do_not_wait_for_one_with_many() -> None:
    house = OneShard(only(">"))
    try:
        await subscribed(house, 3500, BY_PASSWORD)
        for _ in range(10):
            await subscribed(house, 2, BY_PASSWORD)
        many, *few = (session.connection for session in house.shard.clients.open.values())
        house.shard.reload(only("other"))
        await until(lambda: not any(connection.subscriptions for connection in few))
        assert many.subscriptions > 500
        assert max(await ended_by_turn(house)) <= LOOKED_AT_ONCE
    finally:
        house.close()


async def test_a_client_that_goes_while_its_subscriptions_are_revoked_is_forgotten() -> None:
    house = OneShard(only(">"))
    try:
        client = await subscribed(house, 3500, BY_PASSWORD)
        house.shard.reload(only("other"))
        await until(lambda: house.shard.mesh.account(b"$G").n_subs < 3500)
        assert house.shard.mesh.account(b"$G").n_subs
        house.shard.clients.close_all(CloseReason.KICKED)
        await ended_by_turn(house)
        await client.wait(b"nothing")
        assert client.is_over and not house.shard.clients.open
    finally:
        house.close()


async def test_a_client_that_logs_in_anew_ends_its_subscriptions_some_at_a_time() -> None:
    house = OneShard(Options())
    try:
        client = await subscribed(house, 3500, ANEW)
        (session,) = house.shard.clients.open.values()
        assert session.socket is not None
        client._sock.sendall(ANEW + b"SUB s.1 1\r\nPUB s.1 0\r\n\r\nPING\r\n")
        sublist = house.shard.mesh.account(b"$G")
        await until(lambda: session.connection.is_ending)
        assert session.objection_to_freezing()
        ended = await counted_by_turn(lambda: sublist.n_subs, lambda: not session.connection.is_ending)
        assert max(ended) <= LOOKED_AT_ONCE
        assert await client.wait(b"PONG\r\n") == b"+OK\r\n+OK\r\n+OK\r\nMSG s.1 1 0\r\n\r\nPONG\r\n"
        assert sublist.n_subs == 1
        assert session.objection_to_freezing() == ""
    finally:
        house.close()


async def test_a_client_that_goes_while_it_logs_in_anew_leaves_no_secret() -> None:
    """Its session is kept for /connz."""
    house = OneShard(only(">"))
    try:
        client = await subscribed(house, 3500, BY_PASSWORD)
        (session,) = house.shard.clients.open.values()
        assert session.socket is not None
        client._sock.sendall(BY_PASSWORD)
        await until(lambda: session._entering)
        house.shard.clients.close_all(CloseReason.KICKED)
        assert (session._entering, session.connect.password) == (None, "")
        await ended_by_turn(house)
    finally:
        house.close()


@pytest.mark.parametrize("stays", [True, False])
async def test_a_reload_while_a_client_logs_in_anew_decides_whether_it_may(stays: bool) -> None:
    """It logs in as another user: when its subscriptions have ended, the rules are other ones."""
    a, b = User("a", "p"), User("b", "p", permissions=Permissions(publish_allow=("x",)))
    house = OneShard(Options(users=(a, b)))
    try:
        client = await subscribed(house, 3500, BY_PASSWORD)
        (session,) = house.shard.clients.open.values()
        assert session.socket is not None
        client._sock.sendall(b'CONNECT {"verbose":true,"user":"b","pass":"p"}\r\nPUB y 0\r\n\r\nPING\r\n')
        await until(lambda: session.connection.is_ending)
        assert session.user == "a"
        after = User("b", "p" if stays else "other", permissions=Permissions(publish_allow=("y",)))
        house.shard.reload(Options(users=(a, after)))
        said = await client.wait(b"PONG\r\n" if stays else b"nothing")
        assert said == (b"+OK\r\n+OK\r\nPONG\r\n" if stays else VIOLATION)
        assert client.is_over is not stays
        assert session.user == ("b" if stays else "a")
        assert session.connect.password == ""
    finally:
        house.close()


async def test_a_client_that_logs_in_anew_takes_what_its_queue_groups_are_still_sent(tmp_path: Path) -> None:
    """Another shard has chosen it before it knew. Only behind these is it somebody else, who may not have them."""
    users = User("a", "p"), User("b", "p", permissions=Permissions(subscribe_deny=("a",)))
    shards = LinkedShards(tmp_path, Options(users=users))
    try:
        await shards.link()
        here, there = (shard.one for shard in shards.shards)
        client, publisher = await subscribed(here, 0, BY_PASSWORD), await subscribed(there, 0, BY_PASSWORD)
        assert await client.talk(b"SUB a q 1\r\nPING\r\n") == b"PONG\r\n"
        client._sock.sendall(b'CONNECT {"verbose":true,"user":"b","pass":"p"}\r\nPING\r\n')  # is ready first
        publisher._sock.sendall(b"PUB a 0\r\n\r\n" * 5)
        there.shard.reactor.turn()
        here.shard.reactor.turn()
        assert await client.wait(b"PONG\r\n") == b"MSG a 1 0\r\n\r\n" * 5 + b"+OK\r\nPONG\r\n"
    finally:
        shards.close()
