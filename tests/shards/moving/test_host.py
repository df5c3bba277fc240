"""Clients of one shard go on in the next: with everything that was on its way, and under the rules that hold then."""

from __future__ import annotations

import asyncio
import errno
import functools
import math
import os
import socket
import struct
from collections import deque
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from gnatswarm.broker.bounds import LARGEST_MAX_CONTROL_LINE_BYTES
from gnatswarm.broker.connection import ClientConnection
from gnatswarm.broker.freezer import freeze
from gnatswarm.broker.frozen import OfferedClient, RecordRefused
from gnatswarm.broker.limits import Limits
from gnatswarm.broker.moves import SLICE_SUBS
from gnatswarm.broker.options import Account, Options, Permissions, PublishLimits, User
from gnatswarm.shards.boundary.control import ClusterNews
from gnatswarm.shards.boundary.linkdir import path_for_moves
from gnatswarm.shards.clients import moved as records
from gnatswarm.shards.clients.session import ClientSession
from gnatswarm.shards.moving import host
from gnatswarm.shards.moving import move_channel as channel
from gnatswarm.shards.shard import Shard
from tests.support.linked_shards import LinkedShards, MovingShard
from tests.support.one_shard import Client
from tests.support.turns import until

MANY = 5000  # subscriptions


def options(*denied: str) -> Options:
    return Options(users=(User("a", "x", permissions=Permissions(subscribe_deny=denied)),))


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[LinkedShards]:
    two = LinkedShards(tmp_path, options("c"))
    await two.link()
    yield two
    two.close()


async def come(two: LinkedShards, subscriptions: str = "", connect: str = "") -> Client:
    """A client of shard 0, logged in."""
    client = two.shards[0].one.connect()
    await client.wait(b"}")
    connect = f'CONNECT {{"verbose":false,"user":"a","pass":"x"{connect}}}\r\n{subscriptions}PING\r\n'
    assert (await client.talk(connect.encode())).startswith(b"PONG\r\n")
    return client


async def moved(two: LinkedShards, n: int) -> dict[str, int]:
    """So many clients have moved; the reasons of those that could not."""
    done: list[tuple[int, dict[str, int]]] = []
    assert two.shards[0].departures.begin({1: n}, 20.0, lambda *words: done.append(words))
    await until(lambda: done)
    assert done[0][0] == n
    return done[0][1]


async def test_clients_go_on_in_the_next_shard(two: LinkedShards) -> None:
    first, second = [await come(two, "SUB a 1\r\n") for _ in range(2)]
    cids = two.shards[0].cids
    assert await moved(two, 2) == {}
    await until(lambda: (two.shards[0].cids, two.shards[1].cids) == ([], cids))
    assert two.shards[0].ended == [""]
    await first.talk(b"PUB a 2\r\nhi\r\nPING\r\n")
    assert await second.wait(b"hi\r\n") == b"MSG a 1 2\r\nhi\r\n"
    assert two.page.connections == 2
    assert not two.shards[0].host.is_busy and not two.shards[1].host.is_busy


async def test_a_client_with_the_longest_name_keeps_nobody_from_moving(tmp_path: Path) -> None:
    most = LARGEST_MAX_CONTROL_LINE_BYTES
    two = LinkedShards(tmp_path, msgspec.structs.replace(options("c"), limits=Limits(max_control_line_bytes=most)))
    await two.link()
    await come(two)
    await come(two, connect=f',"name":"{"n" * (most - 100)}"')
    await come(two)
    assert await moved(two, 3) == {}
    two.close()


class Rest:
    """In place of a shard's timer: how often the shard has slept, or gone on at once; it wakes at its loop's next turn.

    `n_served`: how many others were served in each turn.
    """

    def __init__(self, shard: MovingShard, n_served: int = 0) -> None:
        self.rests = self.turns = 0
        self.n_served = n_served
        self.go_on = shard.host._go_on
        shard.host._rest.close()
        shard.host._rest = self  # type: ignore[assignment]
        shard.host._reactor = self  # type: ignore[assignment]

    @property
    def n_ready(self) -> int:
        return self.n_served

    def start(self, us: int) -> None:
        self.rests += us > 0
        self.turns += 1
        asyncio.get_running_loop().call_soon(self.go_on)

    def close(self) -> None:
        """As of a timer."""


async def three_moved(two: LinkedShards, n_served: int) -> tuple[Rest, Rest]:
    """How both shards have rested while three clients moved."""
    for _ in range(3):
        await come(two, "SUB a 1\r\n")
    old, new = [Rest(shard, n_served) for shard in two.shards]
    assert await moved(two, 3) == {}
    await until(lambda: len(two.shards[1].cids) == 3)
    return old, new


async def test_a_shard_sleeps_after_it_was_busy_for_a_while(two: LinkedShards, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "BUSY_NS", 0)
    old, new = await three_moved(two, n_served=0)
    assert old.rests == old.turns >= 3 + 3, "written down; handed over"
    assert new.rests == new.turns >= 3 + 3 + 3, "made; read; they go on"


async def test_a_shard_with_nobody_to_serve_sleeps_only_until_there_is_more_to_do(
    two: LinkedShards, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "BUSY_NS", 10**12)
    for rest in await three_moved(two, n_served=0):
        assert rest.rests <= rest.turns - 6


async def test_a_shard_sleeps_when_others_were_served_and_moves_go_on_all_the_same(
    two: LinkedShards, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "BUSY_NS", 10**12)
    monkeypatch.setattr(host, "GIVE_WAY_NS", 10**18)  # for ever
    moving = asyncio.create_task(three_moved(two, n_served=1))
    await until(lambda: isinstance(two.shards[0].host._rest, Rest) and two.shards[0].host._rest.turns > 100)
    assert len(two.shards[0].cids) == 3 and not two.shards[1].moves.n_arriving
    monkeypatch.setattr(host, "GIVE_WAY_NS", 0)
    for rest in await moving:
        assert rest.rests == rest.turns


async def test_a_shard_that_is_kept_busy_moves_several_in_each_turn(
    two: LinkedShards, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "GIVE_WAY_NS", 0)
    monkeypatch.setattr(host, "TURN_NS", 10**12)
    for rest in await three_moved(two, n_served=1):
        assert rest.rests == rest.turns < 3 + 3


async def test_who_arrives_does_not_wait_for_those_who_are_looked_at(two: LinkedShards) -> None:
    """A shard may look at many clients that cannot move, while others are on their way to it."""
    await come(two, "SUB a 1\r\n")
    cids = two.shards[0].cids
    new = two.shards[1].host
    looks = 0

    def look() -> None:
        nonlocal looks
        looks += 1
        if two.shards[1].cids != cids:
            new.in_turn(look)

    new.in_turn(look)
    assert await moved(two, 1) == {}
    await until(lambda: two.shards[1].cids == cids)
    assert looks


async def test_a_host_that_closes_sends_what_waits_for_more(two: LinkedShards) -> None:
    old, new = two.shards
    assert not old.host.open_way(1)
    way = old.host._outgoing[1]
    way.send(channel.HandedOver(1, b"no record"), os.dup(0), is_last=False)
    old.host.close()
    await until(lambda: new.host.n_refused)


@pytest.mark.parametrize("by", ["the host", "another frame"])
async def test_what_turns_say_to_siblings_waits_until_somebody_sends_it(two: LinkedShards, by: str) -> None:
    other = await come(two)
    for _ in range(2):
        await come(two, "SUB a 1\r\n")
    old = two.shards[0]
    shard = old.one.shard
    old.host._rest.close()
    old.host._rest = SimpleNamespace(start=lambda us: None, close=lambda: None)  # type: ignore[assignment]
    old.moves.move([session.connection for session in list(shard.clients.open.values())[1:]], 1)
    shard.reactor.finish()
    assert old.moves.go_on() and old.moves.go_on(), "both are written down, and offered"
    shard.reactor.finish()
    assert old.links.has_unsent
    if by == "the host":
        old.moves.send_on()
        shard.reactor.finish()
    else:
        assert b"PONG" in await other.talk(b"SUB z 1\r\nPING\r\n")
    assert not old.links.has_unsent
    await until(lambda: two.shards[1].moves.n_arriving == 2)


@pytest.mark.parametrize("is_moving", [False, True])
async def test_who_moves_before_its_turn_hears_the_news_of_the_old_shard(two: LinkedShards, *, is_moving: bool) -> None:
    """The next shard may have told its clients before this one came."""
    client = await come(two, connect=',"protocol":1')
    await client.talk(b"PING\r\n")
    shard = two.shards[0].one.shard
    shard.clients._tells_soon = True  # a turn that does not come
    (session,) = shard.clients.open.values()
    if not is_moving:
        shard.clients.announce(shard.clients.info)
    assert not two.shards[0].host.open_way(1)
    two.shards[0].moves.move([session.connection], 1)
    assert session.connection.is_moving
    if is_moving:
        next_shard = two.shards[1].one.shard
        await until(lambda: next_shard.clients.is_expected(session.connection.cid))
        shard.clients.announce(shard.clients.info)
    await until(lambda: len(two.shards[1].cids) == 1)
    assert (await client.talk(b"PING\r\n")).count(b"INFO {") == 1


async def test_a_shard_that_leaves_takes_no_clients(two: LinkedShards) -> None:
    await come(two)
    two.shards[1].host.is_leaving = True
    two.shards[0].departures.begin({1: 1}, 0.2, lambda *_: None)
    await until(lambda: two.shards[0].ended)
    assert two.shards[0].ended == ["this shard is leaving"]
    assert two.shards[0].host.open_way(1) == "shard 1 is leaving", "it is not asked again"
    assert len(two.shards[0].cids) == 1


async def test_a_reload_holds_for_clients_whose_move_is_stopped(two: LinkedShards) -> None:
    client = await come(two, "SUB a 1\r\nSUB b 2\r\n")
    old = two.shards[0]
    shard = old.one.shard
    sessions = list(shard.clients.open.values())
    assert not old.host.open_way(1)
    old.moves.move([session.connection for session in sessions], 1)
    shard.reload(options("b"))
    assert shard.mesh.account(b"$G").n_subs == 2, "what was announced to the next shard stays until the move is over"
    old.moves.stop()
    shard.reactor.finish()
    await until(lambda: old.ended)
    assert old.ended == ["it was stopped"]
    assert shard.mesh.account(b"$G").n_subs == 1
    told = await client.talk(b"PING\r\n")
    assert told.startswith(b"-ERR 'Permissions Violation for Subscription to ") and b'"b"' in told


@pytest.mark.parametrize("is_moving", [False, True])
async def test_rights_that_a_reload_takes_are_not_kept_by_who_moves_before_its_turn(
    two: LinkedShards, *, is_moving: bool
) -> None:
    """The next shard, where the reload is over, looks at nobody any more who has the rights of now."""
    client = await come(two, "SUB a 1\r\nSUB b 2\r\n")
    old, new = two.shards
    clients = old.one.shard.clients
    (session,) = clients.open.values()
    assert not old.host.open_way(1)
    if is_moving:  # it is not written down yet
        old.moves.move([session.connection], 1)
    clients._checks_soon = not is_moving  # a turn that does not come yet
    for shard in two.shards:
        shard.one.shard.reload(options("b"))
    if not is_moving:
        old.moves.move([session.connection], 1)
    await until(lambda: old.ended)
    assert old.ended == ["a reload has yet to come to it"]
    clients._check_some()
    assert await moved(two, 1) == {}
    assert b'Permissions Violation for Subscription to "b"' in await client.talk(b"PING\r\n")
    await until(lambda: len(new.cids) == 1)
    assert new.one.shard.mesh.account(b"$G").n_subs == 1


async def test_rules_of_before_a_reload_are_forgotten_when_who_moved_meanwhile_has_gone(two: LinkedShards) -> None:
    await come(two)
    old, new = two.shards
    clients = old.one.shard.clients
    (session,) = clients.open.values()
    assert not old.host.open_way(1)
    old.moves.move([session.connection], 1)
    await until(lambda: new.one.shard.clients.is_expected(session.connection.cid))
    old.one.shard.reload(options("c"))
    assert clients._formers
    await until(lambda: old.ended)
    assert old.ended == [""]
    assert not clients._formers and not clients.rights._before


@pytest.mark.parametrize("stays", [False, True])
async def test_a_reload_is_over_when_it_holds_for_who_was_moving(two: LinkedShards, *, stays: bool) -> None:
    """And there are no more clients than it allows, also of these."""
    for _ in range(3):
        await come(two, "SUB b 1\r\n")
    old, new = two.shards
    assert not old.host.open_way(1)
    old.moves.move([one.connection for one in old.one.shard.clients.open.values()], 1)
    await until(lambda: len(new.one.shard.clients._expected) == 3)
    done: list[tuple[int, int]] = []

    def note(shard: MovingShard) -> None:
        one = shard.one.shard
        done.append((len(one.clients._reload_later), one.mesh.account(b"$G").n_subs))

    wanted = msgspec.structs.replace(options("b"), limits=Limits(max_connections=1))
    for shard in two.shards:
        shard.one.shard.reload(wanted, functools.partial(note, shard))
    assert not done
    if stays:
        old.moves.stop()
        old.one.shard.reactor.finish()
    await until(lambda: len(done) == 2)
    assert done == [(0, 0)] * 2
    assert two.page.connections == 1


async def test_a_limit_of_connections_holds_for_who_was_to_move_before_a_reload_came_to_it(two: LinkedShards) -> None:
    """It is not counted yet, and the next shard has counted those that are there."""
    clients = [await come(two) for _ in range(2)]
    old = two.shards[0]
    here = old.one.shard.clients
    here._checks_soon = True  # a turn that does not come yet
    for shard in two.shards:
        shard.one.shard.reload(msgspec.structs.replace(options("c"), accounts=(Account("$G", max_connections=1),)))
    done: list[int] = []
    old.departures.begin({1: 2}, 20.0, lambda n, _: done.append(n))
    await until(lambda: old.departures.reasons == {"a reload has yet to come to it": 2} or done)
    here._check_some()
    await until(lambda: done)
    assert done == [1]
    assert two.page.connections == 1
    assert "maximum account active connections exceeded" in (await clients[1].wait(b"'")).decode()


@pytest.mark.parametrize("is_of_account", [False, True])
@pytest.mark.parametrize("is_moving", [False, True])
async def test_a_limit_of_connections_holds_for_who_moves_while_one_shard_has_been_through_a_reload(
    two: LinkedShards, *, is_moving: bool, is_of_account: bool
) -> None:
    """The next shard looks at nobody any more, and when its old one would, the client is not there."""
    for _ in range(2):
        await come(two)
    old, new = two.shards
    own = Account("$G", max_connections=int(is_of_account))
    limits = Limits() if is_of_account else Limits(max_connections=1)
    wanted = msgspec.structs.replace(options("c"), accounts=(own,), limits=limits)
    assert not old.host.open_way(1)
    if is_moving:  # they are not written down yet
        old.moves.move([one.connection for one in old.one.shard.clients.open.values()], 1)
        old.one.shard.reload(wanted)
    new.one.shard.reload(wanted)
    if not is_moving:
        old.moves.move([one.connection for one in old.one.shard.clients.open.values()], 1)
    await until(lambda: old.ended)
    if not is_moving:
        old.one.shard.reload(wanted)
    await until(lambda: two.page.connections == 1)
    assert await moved(two, 1) == {}


@pytest.mark.parametrize("is_of_account", [False, True])
@pytest.mark.parametrize("is_chosen", [False, True])
async def test_a_limit_of_connections_holds_for_who_moves_before_the_end_of_a_reload_that_has_come_to_it(
    two: LinkedShards, *, is_chosen: bool, is_of_account: bool
) -> None:
    """It is looked for clients that are too many when all passwords have been compared, which may take seconds."""
    for _ in range(2):
        await come(two)
    old, new = two.shards
    here = old.one.shard.clients
    own = Account("$G", max_connections=int(is_of_account))
    limits = Limits() if is_of_account else Limits(max_connections=1)
    wanted = msgspec.structs.replace(options("c"), accounts=(own,), limits=limits)
    comparing, here._comparisons = here._comparisons, SimpleNamespace(are_over=False)  # type: ignore[assignment]
    for shard in two.shards:
        shard.one.shard.reload(wanted)
    assert not here._unchecked
    assert not old.host.open_way(1)
    if is_chosen:
        old.moves.move([one.connection for one in here.open.values()], 1)
    else:
        old.departures.begin({1: 2}, 20.0, lambda *_: None)
        await until(lambda: old.departures.reasons or old.ended)
    here._comparisons = comparing
    here._look_again(())
    await until(lambda: two.page.connections == 1)
    if is_chosen:
        assert await moved(two, 1) == {}
    await until(lambda: len(new.cids) == 1)


class Moves:
    """What the engine was told of clients that come."""

    def __init__(self) -> None:
        self.came: list[int] = []
        self.ended: list[tuple[int, int]] = []
        self.host: Any = None
        self.n_arriving = 0

    def go_on(self) -> bool:
        return False

    def send_on(self) -> None:
        pass

    def arrive(self, old: int, id: int, frozen: Any) -> bool:
        self.came.append(frozen.cid)
        return True

    def end_arrivals(self, old: int, id: int = 0) -> None:
        self.ended.append((old, id))


async def test_clients_that_were_sent_come_though_their_old_shard_is_not_listed_any_more(two: LinkedShards) -> None:
    """A shard that leaves is gone as soon as it has handed the last over; the next one may be busy meanwhile."""
    client = await come(two)
    old, new = two.shards
    (session,) = old.one.shard.clients.open.values()
    cid = session.connection.cid
    moves = Moves()
    new.host._moves = moves  # type: ignore[assignment]
    words = records.encoded_session(session.freeze())
    assert session.socket is not None
    record = records.encoded(records.MovedClient(session.socket.freeze(), freeze(session.connection)))
    new.host.admit(0, 7, OfferedClient(cid, b"$G", words, ()))
    assert not old.host.open_way(1)
    await until(lambda: new.host._incoming and new.host._incoming[0].hello)
    old.host._send(1, channel.HandedOver(7, record), old.one.shard.clients.leave_behind(session, 1))
    await until(lambda: not old.host.is_busy)
    new.host.on_linked_shards([new.peer])
    assert moves.came == [cid]
    assert moves.ended == [(0, 0), (0, 0)], "nobody else comes from there"
    assert new.host._incoming == []
    client.close()


async def test_arrivals_end_where_their_old_shard_has_gone_before_it_sent_anything(two: LinkedShards) -> None:
    moves = Moves()
    new = two.shards[1]
    new.host._moves = moves  # type: ignore[assignment]
    new.host.on_linked_shards([new.peer])
    assert moves.ended == [(0, 0)]


async def test_a_way_that_has_not_sent_everything_is_busy(two: LinkedShards) -> None:
    old = two.shards[0]
    assert not old.host.open_way(1)
    assert not old.host.is_busy
    way = old.host._outgoing[1]
    way._sock.setsockopt(1, 7, 1)  # SO_SNDBUF: as small as it can be
    for _ in range(64):
        way.send(channel.HandedOver(1, bytes(65536)), os.dup(0))
    assert old.host.is_busy
    way.close()
    assert not old.host.is_busy


async def test_strangers_are_refused(two: LinkedShards, caplog: pytest.LogCaptureFixture) -> None:
    new = two.shards[1]
    path = path_for_moves(new.peer.path)
    for hello, why in (
        (channel.Hello(99, "N", 0, "boot0"), "version 99"),
        (channel.Hello(channel.CHANNEL_VERSION, "M", 0, "boot0"), "another broker"),
        (channel.Hello(channel.CHANNEL_VERSION, "N", 0, "boot9"), "does not know"),
    ):
        closed: list[channel.Outgoing] = []
        channel.Outgoing(new.host._loop, path, hello, closed.append)
        await until(closed.__len__)
        assert why in caplog.text
        caplog.clear()


async def test_a_client_that_was_not_announced_is_closed(two: LinkedShards, caplog: pytest.LogCaptureFixture) -> None:
    client = await come(two)
    old, new = two.shards
    (session,) = old.one.shard.clients.open.values()
    assert session.socket is not None
    record = records.encoded(records.MovedClient(session.socket.freeze(), freeze(session.connection)))
    fd = old.one.shard.clients.leave_behind(session, 1)
    assert not old.host.open_way(1)
    old.host._send(1, channel.HandedOver(7, record), fd)
    await until(lambda: new.host.n_refused)
    assert "was not announced" in caplog.text
    await client.wait(b"nothing")
    assert client.is_over


def limited() -> Options:
    """User b may publish one message a second."""
    return Options(users=(*options().users, User("b", "x", publish_limits=PublishLimits(messages=1))))


async def begin_to_move_and_be_reset(two: LinkedShards, user: str) -> tuple[ClientSession, Client]:
    """A client that has published 50 messages and was reset, its session, and who hears them.

    It begins to move, and then a message for it shows that it takes nothing more.
    """
    old = two.shards[0]
    listener = await come(two, "SUB m 1\r\n")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        gone = socket.create_connection(listening.getsockname())
        accepted, _ = listening.accept()
    gone.setblocking(False)
    accepted.setblocking(False)
    old.one.shard.take(accepted.detach(), "127.0.0.1", 1)
    client = Client(gone)
    connect = f'CONNECT {{"verbose":false,"user":"{user}","pass":"x"}}\r\nSUB flood 1\r\nPING\r\n'
    assert (await client.talk(connect.encode())).endswith(b"PONG\r\n")
    session = list(old.one.shard.clients.open.values())[-1]
    assert not old.host.open_way(1)
    old.moves.move([session.connection], 1)
    gone.sendall(b"PUB m 1\r\n.\r\n" * 50)
    gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    listener.send(b"PUB flood 1\r\n.\r\n" * 2)
    old.one.shard.reactor.turn()
    assert session.connection.is_moving
    return session, listener


async def test_the_next_shard_hears_of_one_that_closes_before_the_move_is_over(two: LinkedShards) -> None:
    """Where there are many subscriptions, that is seconds later."""
    old, new = two.shards
    client = await come(two)
    await client.talk(b"".join(b"SUB s.%d %d\r\n" % (n, n) for n in range(MANY)) + b"PING\r\n")
    (connection,) = [old.one.shard.clients.open[cid].connection for cid in old.cids]
    asker = new.one.connect()
    await asker.wait(b"}")
    connect = b'CONNECT {"user":"a","pass":"x","headers":true,"no_responders":true}'
    await asker.talk(connect + b"\r\nSUB inbox 1\r\nPING\r\n")

    def go_on() -> bool:
        return connection.subscriptions == MANY and old.moves.go_on()

    old.host._kinds = deque((old.host._read_some, go_on, old.host._do_work))
    assert not old.host.open_way(1)
    old.moves.move([connection], 1)
    await until(lambda: connection.subscriptions < MANY)  # messages come to the next shard alone
    client.close()
    old.host._look_for_ended()
    answers = [await asker.talk(b"PUB s.1 inbox 1\r\nx\r\nPING\r\n") for _ in range(100)]
    assert b" 503" in answers[-1]


@pytest.mark.parametrize("stays", [False, True], ids=["moves", "stays"])
async def test_what_a_client_had_published_before_a_reset_is_carried_out_though_it_moves(
    two: LinkedShards, caplog: pytest.LogCaptureFixture, *, stays: bool
) -> None:
    old, new = two.shards
    session, listener = await begin_to_move_and_be_reset(two, "a")
    cid = session.connection.cid
    if stays:
        old.moves.stop()
    await until(lambda: old.ended and cid not in (*old.cids, *new.cids) and new.moves.is_idle)
    assert (await listener.talk(b"PING\r\n")).count(b"MSG m ") == 50
    assert (len(old.cids), new.cids, new.host.n_refused) == (1, [], 0)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_the_move_of_a_client_that_closes_ends_before_all_of_it_is_offered(
    two: LinkedShards, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "LOOK_EVERY_S", 0.0)
    old, new = two.shards
    client = await come(two)
    await client.talk(b"".join(b"SUB s.%d %d\r\n" % (n, n) for n in range(MANY)) + b"PING\r\n")
    cid = old.cids[-1]
    assert not old.host.open_way(1)
    old.moves.move([old.one.shard.clients.open[cid].connection], 1)
    client.close()
    await until(lambda: old.ended and not old.cids and new.moves.is_idle)
    assert old.ended == ["its connection has ended"]
    assert new.moves.n_slices < MANY / SLICE_SUBS, "not all of it was made there"
    assert not (new.cids or old.moves.departing)


async def test_one_of_several_that_closes_while_they_move_takes_nothing_more_and_stays(two: LinkedShards) -> None:
    old, new = two.shards
    clients = [await come(two, "SUB s 1\r\n"), await come(two)]
    asker = await come(two, "SUB inbox 1\r\n", ',"headers":true,"no_responders":true')
    goes, stays = [old.one.shard.clients.open[cid].connection for cid in old.cids[:2]]
    assert not old.host.open_way(1)
    old.moves.move([goes, stays], 1)
    while old.moves.n_slices < 2:  # both are written down
        old.moves.go_on()
    clients[0].close()
    old.host._look_for_ended()
    assert b" 503" in await asker.talk(b"PUB s inbox 1\r\nx\r\nPING\r\n")
    await until(lambda: old.ended and goes.cid not in (*old.cids, *new.cids) and stays.cid in new.cids)
    assert (old.moves.n_moved, new.moves.is_idle) == (1, True)


async def test_who_is_limited_and_sends_no_more_hears_until_all_it_had_sent_is_carried_out(tmp_path: Path) -> None:
    """Its shard cannot tell it from one that has closed. What it sends to itself came no more, but its PONG did."""
    limits = PublishLimits(messages=50, burst_s=0.02)
    two = LinkedShards(tmp_path, Options(users=(*options().users, User("b", "x", publish_limits=limits))))
    try:
        await two.link()
        old, new = two.shards
        client, _other = old.one.connect(), await come(two)
        await client.wait(b"}")
        connect = b'CONNECT {"verbose":false,"user":"b","pass":"x","headers":true,"no_responders":true}\r\n'
        await client.talk(connect + b"SUB s 1\r\nSUB inbox 2\r\nPING\r\n")
        cid = old.cids[0]
        client.send(b"PUB s 1\r\nx\r\nPUB nobody inbox 1\r\nx\r\n" * 5 + b"PING\r\n")
        client.end_sending()
        assert not old.host.open_way(1)
        old.moves.move([session.connection for session in old.one.shard.clients.open.values()], 1)
        while old.moves.n_slices < 2:  # both are written down
            old.moves.go_on()
        old.host._look_for_ended()
        heard = await client.wait(b"PONG\r\n")
        assert (heard.count(b"MSG s 1 1\r\nx"), heard.count(b" 503")) == (5, 5)
        assert cid not in old.cids and old.moves.n_moved == 2
        await until(lambda: cid not in new.cids)
    finally:
        two.close()


async def test_who_closes_while_it_moves_is_not_counted_as_moved(
    two: LinkedShards, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = two.shards
    closes, _goes = [await come(two) for _ in range(2)]
    cids = old.cids
    words_of = old.host.words_of

    def words(client: ClientConnection) -> bytes:
        found = words_of(client)
        if client.cid == cids[1]:  # both are being moved
            closes.close()
            old.host._look_for_ended()
        return found

    monkeypatch.setattr(old.host, "words_of", words)
    done: list[tuple[int, dict[str, int]]] = []
    assert old.departures.begin({1: 2}, 20.0, lambda *words: done.append(words))
    await until(lambda: done)
    assert done == [(1, {})]
    await until(lambda: (old.cids, new.cids) == ([], cids[1:]))


@pytest.mark.parametrize("stays", [False, True], ids=["moves", "stays"])
async def test_who_takes_nothing_more_has_no_subscriptions_where_it_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, *, stays: bool
) -> None:
    """It is limited, and would be a member of its groups for all that time."""
    monkeypatch.setattr(host, "LOOK_EVERY_S", 60.0)  # the move is over before that
    two = LinkedShards(tmp_path, limited())
    try:
        await two.link()
        old, new = two.shards
        session, _ = await begin_to_move_and_be_reset(two, "b")
        cid = session.connection.cid
        if stays:
            old.moves.stop()
        where = old if stays else new
        await until(lambda: cid in where.cids and where.one.shard.clients.open[cid].connection.in_msgs)
        connection = where.one.shard.clients.open[cid].connection
        assert (connection.in_msgs, connection.subscriptions) == (1, 0)
        assert not connection.is_moving
    finally:
        two.close()


async def test_others_move_though_one_with_many_subscriptions_has_closed_and_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is limited, and what it has sent before is still to be carried out."""
    monkeypatch.setattr(host, "LOOK_EVERY_S", 0.0)
    two = LinkedShards(tmp_path, limited())
    try:
        await two.link()
        old, new = two.shards
        client, _other = old.one.connect(), await come(two)
        await client.wait(b"}")
        subscriptions = b"".join(b"SUB s.%d %d\r\n" % (n, n) for n in range(MANY))
        await client.talk(b'CONNECT {"verbose":false,"user":"b","pass":"x"}\r\n' + subscriptions + b"PING\r\n")
        client.send(b"PUB a 1\r\nx\r\n" * 50)
        limited_one, other = old.cids
        connection = old.one.shard.clients.open[limited_one].connection
        await until(lambda: connection.in_msgs)
        client.close()
        assert old.departures.begin({1: 2}, 20.0, lambda *words: None)
        await until(lambda: new.cids == [other])
        assert old.cids == [limited_one]
    finally:
        two.close()


@pytest.mark.parametrize("how", ["there is no way", "it is not listed", "the way is closed", "no descriptor comes"])
async def test_a_client_that_is_lost_on_its_way_counts_no_more(two: LinkedShards, how: str) -> None:
    """Else nobody would get its place before a shard dies."""
    await come(two)
    await come(two)
    old, new = two.shards
    session = list(old.one.shard.clients.open.values())[1]
    assert session.socket is not None
    record = records.encoded(records.MovedClient(session.socket.freeze(), freeze(session.connection)))
    if how != "there is no way":
        assert not old.host.open_way(1)
        await until(lambda: new.host._incoming and new.host._incoming[0].hello)
    fd = old.one.shard.clients.leave_behind(session, 1)
    assert two.page.settle_connections() == 0
    if how == "no descriptor comes":
        os.close(fd)
        fd = -1
    elif how == "the way is closed":
        new.host._incoming[0].close()
    old.host._send(1, channel.HandedOver(7, record), fd)
    if how == "it is not listed":
        old.host.on_linked_shards([old.peer])
    await until(lambda: two.page.settle_connections() == 1)
    assert two.page.connections == len(old.cids) == 1


async def test_a_client_whose_move_is_stopped_is_expected_no_more_and_may_come_later(two: LinkedShards) -> None:
    await come(two)
    old, new = two.shards
    (session,) = old.one.shard.clients.open.values()
    clients = new.one.shard.clients
    done: list[tuple[int, dict[str, int]]] = []
    assert old.departures.begin({1: 1}, 20.0, lambda *words: done.append(words))
    await until(lambda: clients.is_expected(session.connection.cid))
    old.moves.stop()
    old.one.shard.reactor.finish()
    await until(lambda: old.ended)
    assert not clients.is_expected(session.connection.cid)
    assert not done
    await until(lambda: done)
    assert done == [(1, {})]
    await until(lambda: new.cids)


async def test_there_is_room_for_so_many_clients_alone(two: LinkedShards) -> None:
    new = two.shards[1]
    new.host._most = 10
    with pytest.raises(RecordRefused, match="no room"):
        new.host.admit(0, 1, OfferedClient(5, b"$G", b"", ()))


async def test_where_few_descriptors_may_be_open_they_are_counted(two: LinkedShards) -> None:
    open_now = len(os.listdir("/proc/self/fd"))
    for most, is_room in ((open_now + 64, True), (open_now, False)):
        host = two.shards[1].host
        host._most, host._counted_s = most, -1.0
        assert (host._used() < most) is is_room


async def test_of_clients_with_tls_so_many_leave_as_their_relays_have_room_for(two: LinkedShards) -> None:
    """What others of the batch will take counts, what relays have, and what is not sent yet.

    All else is counted now and then, and hundreds of clients go meanwhile.
    """
    for _ in range(3):
        await come(two)
    old = two.shards[0]
    shard, relay = old.one.shard, SimpleNamespace(connections=0, key="boot0")
    shard.clients.relay = relay  # type: ignore[assignment]
    for session in shard.clients.open.values():
        session.tls_version = "1.3"
    old.host._counted_s, old.host._others, old.host._most = math.inf, 100, 3 + 100 + 2 * 3

    def may_go() -> list[bool]:
        return [not old.host.objection(one, beside) for beside, one in enumerate(shard.clients.open.values())]

    assert may_go() == [True, True, False]
    relay.connections = 1
    assert may_go() == [True, False, False]
    old.host._outgoing[1] = SimpleNamespace(unsent_descriptors=2)  # type: ignore[assignment]
    assert may_go() == [False, False, False]
    del old.host._outgoing[1]
    old.host._counted_s = -math.inf
    assert old.host._used() == len(os.listdir("/proc/self/fd"))


async def test_who_finds_no_room_stays_and_is_served(two: LinkedShards) -> None:
    client = await come(two)
    old, new = two.shards
    new.host._most = 10
    old.departures.begin({1: 1}, 0.2, lambda *_: None)
    await until(lambda: old.ended)
    assert old.ended == ["there is no room for more descriptors"]
    assert await client.talk(b"PING\r\n") == b"PONG\r\n"
    assert (len(old.cids), new.cids) == (1, [])
    await until(lambda: new.one.shard.clients.is_expected(old.cids[0]) is False)


UNFIT = {
    "no socket": "its descriptor is no socket",
    "another version": "a record of version 1;",
    "truncated": "truncated or damaged",
}


@pytest.mark.parametrize("what", UNFIT)
async def test_what_cannot_be_taken_is_refused_with_the_reason(
    two: LinkedShards, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """The clients that move with it, and those that are there, go on."""
    first, second, stays = await come(two, "SUB a 1\r\n"), await come(two, "SUB a 1\r\n"), await come(two)
    old, new = two.shards
    cids = old.cids
    send = old.host._send

    def sent(shard: int, message: channel.Message, fd: int = -1, *, is_last: bool = True) -> None:
        if isinstance(message, channel.HandedOver) and records.decoded(message.record).client.cid == cids[0]:
            if what == "no socket":
                os.close(fd)
                fd = os.open(os.devnull, os.O_RDWR)
            elif what == "another version":
                message = channel.HandedOver(message.move, b"\0\1" + message.record[2:])
            else:
                message = channel.HandedOver(message.move, message.record[:-3])
        send(shard, message, fd)

    monkeypatch.setattr(old.host, "_send", sent)
    assert not old.host.open_way(1)
    old.moves.move([old.one.shard.clients.open[cid].connection for cid in cids[:2]], 1)
    await until(lambda: old.ended and not new.host.is_busy)
    assert UNFIT[what] in caplog.text
    assert new.host.n_refused == 1
    assert (old.cids, new.cids) == ([cids[2]], [cids[1]])
    await stays.talk(b"PUB a 2\r\nhi\r\nPING\r\n")
    assert await second.wait(b"hi\r\n") == b"MSG a 1 2\r\nhi\r\n"
    await first.wait(b"nothing")
    assert first.is_over
    assert new.one.shard.mesh.account(b"$G").n_subs == 1


async def test_a_client_that_cannot_be_taken_at_last_is_closed_and_leaves_nothing(
    two: LinkedShards, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await come(two, "SUB a 1\r\n")
    old, new = two.shards

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(new.one.shard.clients, "take_over", refuse)
    assert await moved(two, 1) == {}
    await until(lambda: new.host.n_refused)
    assert "cannot be taken from shard 0, and is closed" in caplog.text
    await client.wait(b"nothing")
    assert client.is_over
    assert (old.cids, new.cids) == ([], [])
    assert [shard.one.shard.mesh.account(b"$G").n_subs for shard in two.shards] == [0, 0]


async def test_a_client_whose_socket_cannot_be_watched_is_closed_and_counts_nowhere(
    two: LinkedShards, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user may have so many watched sockets, over all processes: then epoll_ctl fails."""
    first, second = [await come(two, "SUB a 1\r\n") for _ in range(2)]
    old, new = two.shards
    cids = old.cids
    clients = new.one.shard.clients
    take_over, unfit = clients.take_over, os.open(os.devnull, os.O_RDWR)  # no epoll set takes this one

    def take(session: ClientSession, fd: int, moved: records.MovedClient, came_from: int) -> None:
        take_over(session, unfit if session.connection.cid == cids[0] else fd, moved, came_from)

    monkeypatch.setattr(clients, "take_over", take)
    assert await moved(two, 2) == {}
    await until(lambda: new.host.n_refused and not new.host.is_busy)
    os.close(unfit)
    assert "cannot be taken from shard 0, and is closed: [Errno 1] cannot watch a socket" in caplog.text
    await first.wait(b"nothing")
    assert first.is_over
    assert (old.cids, new.cids) == ([], [cids[1]])
    assert not clients.is_expected(cids[0])
    assert [cid for cid, _old, _us in clients.passing.came] == [cids[1]]
    assert new.one.shard.mesh.account(b"$G").n_subs == 1
    assert [two.page.snapshot(number)["connections"] for number in (0, 1)] == [0, 1]
    two.page.settle_connections()
    assert two.page.connections == 1
    assert await second.talk(b"PING\r\n") == b"PONG\r\n"


@pytest.mark.parametrize("is_kicked", [True, False])
async def test_a_client_that_is_told_to_go_while_it_moves_is_told_where_it_comes(
    two: LinkedShards, monkeypatch: pytest.MonkeyPatch, is_kicked: bool
) -> None:
    """Its old shard has sent it off, and it is not in the new one yet."""
    client = await come(two, 'CONNECT {"verbose":false,"user":"a","pass":"x","protocol":1}\r\nSUB a 1\r\n')
    old, new = two.shards
    (cid,) = old.cids
    took = new.host._take

    def take(shard: int, message: channel.HandedOver, fd: int) -> None:
        clients = new.one.shard.clients
        assert (old.cids, new.cids, clients.is_expected(cid)) == ([], [], True)
        assert not clients.dismiss(cid, is_kicked=is_kicked)
        took(shard, message, fd)

    monkeypatch.setattr(new.host, "_take", take)
    assert await moved(two, 1) == {}
    said = await client.wait(b"nothing" if is_kicked else b'"ldm":true')
    assert client.is_over is is_kicked
    if not is_kicked:
        assert said.startswith(b"INFO ")
        assert new.cids == [cid]


NEWS = ClusterNews(name="c", own_urls=["a:1"], urls=["b:1"])


def announce(shard: Shard, what: str) -> None:
    if what == "its shard leaves":
        shard.clients.announce_departure()
    elif what == "its relay ends":
        shard.clients.announce_end_of_relays(["relay"])
    else:
        shard.on_cluster_news(NEWS)


# … and what INFO says then.
ANNOUNCED = {"its shard leaves": b'"ldm":true', "its relay ends": b'"ldm":true', "the cluster": b'"b:1"'}


def with_relay(shard: Shard) -> None:
    """The TLS of its clients is in another process."""
    for session in (*shard.clients.open.values(), *shard.clients._expected.values()):
        session.relay = "relay"


@pytest.mark.parametrize("what", ANNOUNCED)
async def test_what_is_announced_while_a_client_is_on_its_way_is_told_where_it_comes(
    two: LinkedShards, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Its old shard has sent it off, and it is not in the new one yet."""
    client = await come(two, "SUB a 1\r\n", ',"protocol":1')
    old, new = two.shards
    cids = old.cids
    took = new.host._take

    def take(shard: int, message: channel.HandedOver, fd: int) -> None:
        assert (old.cids, new.cids, new.one.shard.clients.is_expected(cids[0])) == ([], [], True)
        with_relay(new.one.shard)
        for one in (new, old):
            announce(one.one.shard, what)
        took(shard, message, fd)

    monkeypatch.setattr(new.host, "_take", take)
    assert await moved(two, 1) == {}
    await until(lambda: new.cids == cids)
    said = await client.talk(b"PING\r\n")
    assert said.count(b"INFO {") == 1 and ANNOUNCED[what] in said


@pytest.mark.parametrize("what", ANNOUNCED)
async def test_what_the_old_shard_has_told_a_client_that_moves_it_does_not_hear_again(
    two: LinkedShards, what: str
) -> None:
    client = await come(two, "SUB a 1\r\n", ',"protocol":1')
    old, new = two.shards
    (session,) = old.one.shard.clients.open.values()
    with_relay(old.one.shard)
    assert not old.host.open_way(1)
    old.moves.move([session.connection], 1)
    await until(lambda: new.one.shard.clients.is_expected(session.connection.cid))
    with_relay(new.one.shard)
    assert session.connection.is_moving and len(old.cids) == 1
    for one in (old, new):
        announce(one.one.shard, what)
    await until(lambda: len(new.cids) == 1)
    said = await client.talk(b"PING\r\n")
    assert said.count(b"INFO {") == 1 and ANNOUNCED[what] in said


async def test_a_client_hears_in_its_next_shard_what_that_one_knew_before_its_own(two: LinkedShards) -> None:
    old, new = two.shards
    first = await come(two, "SUB a 1\r\n", ',"protocol":1')
    new.one.shard.on_cluster_news(NEWS)
    assert await moved(two, 1) == {}
    await until(lambda: len(new.cids) == 1)
    assert (await first.talk(b"PING\r\n")).count(b"INFO {") == 1
    old.one.shard.on_cluster_news(NEWS)
    second = await come(two, "SUB a 1\r\n", ',"protocol":1')
    assert await moved(two, 1) == {}
    await until(lambda: len(new.cids) == 2)
    assert await second.talk(b"PING\r\n") == b"PONG\r\n"


async def test_clients_on_their_way_are_disconnected_and_counted_where_they_come(
    two: LinkedShards, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request is answered when they are gone."""
    clients = [await come(two, "SUB a 1\r\n") for _ in range(3)]
    old, new = two.shards
    cids = old.cids
    counts: dict[int, list[int]] = {0: [], 1: []}
    took = new.host._take

    def take(shard: int, message: channel.HandedOver, fd: int) -> None:
        if records.decoded(message.record).client.cid == cids[1]:
            assert cids[1] not in old.cids + new.cids
            for number, one in enumerate(two.shards):
                one.one.shard.clients.disconnect(cids[1], counts[number].append)
            assert counts == {0: [1], 1: []}
        took(shard, message, fd)

    monkeypatch.setattr(new.host, "_take", take)
    assert await moved(two, 2) == {}
    await until(lambda: counts[1])
    assert counts == {0: [1], 1: [1]} and new.cids == cids[:1]
    for client in clients[1:]:
        await client.wait(b"nothing")
        assert client.is_over
    assert await clients[0].talk(b"PING\r\n") == b"PONG\r\n"


async def test_a_client_that_its_old_shard_disconnects_while_it_moves_is_counted_there_alone(
    two: LinkedShards,
) -> None:
    client = await come(two, "SUB a 1\r\n")
    old, new = two.shards
    (session,) = old.one.shard.clients.open.values()
    cid = session.connection.cid
    assert not old.host.open_way(1)
    old.moves.move([session.connection], 1)
    await until(lambda: new.one.shard.clients.is_expected(cid))
    assert session.connection.is_moving and old.cids == [cid]
    counts: dict[int, list[int]] = {0: [], 1: []}
    for number, one in enumerate(two.shards):
        one.one.shard.clients.disconnect(0, counts[number].append)
    assert counts == {0: [1], 1: []}
    await until(lambda: counts[1])
    assert counts == {0: [1], 1: [0]}
    assert not new.one.shard.clients.is_expected(cid) and not new.one.shard.clients._dismiss_later
    await client.wait(b"nothing")
    assert client.is_over


async def test_who_moves_behind_a_disconnection_of_the_next_shard_and_before_its_own_is_disconnected(
    two: LinkedShards,
) -> None:
    old, new = two.shards
    clients = [await come(two) for _ in range(3)]
    cids = old.cids
    counts: list[int] = []
    for first in (cids[2], cids[1]):
        new.one.shard.clients.disconnect(first, counts.append)
    later = await come(two)
    (later_cid,) = set(old.cids) - set(cids)
    assert await moved(two, 4) == {}
    await until(lambda: not old.cids and new.cids == [cids[0], later_cid])
    old.one.shard.clients.disconnect(cids[1], counts.append)
    assert counts == [0, 0, 0]
    for client in clients[1:]:
        await client.wait(b"nothing")
        assert client.is_over
    for client in (clients[0], later):
        assert await client.talk(b"PING\r\n") == b"PONG\r\n"


async def test_who_is_told_to_go_and_does_not_come_is_forgotten(two: LinkedShards) -> None:
    """Another client may be told of the same id: of a shard that asks again."""
    await come(two)
    old, new = two.shards
    new.host._most = 10
    clients = new.one.shard.clients
    expect = clients.expect(old.cids[0], old.one.shard.clients.open[old.cids[0]].freeze())
    assert not clients.dismiss(old.cids[0], is_kicked=True)
    clients.forget_expected(expect)
    assert clients._dismiss_later == {}


async def test_what_a_turn_has_queued_is_sent_though_nothing_else_happens(
    two: LinkedShards, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shard that was busy for a while rests with a timer, which would send it; so would the sweep of every second."""
    monkeypatch.setattr(host, "BUSY_NS", 10**12)
    await come(two, "SUB a 1\r\n")
    cids = two.shards[0].cids
    for shard in two.shards:
        shard.one.shard._timer.cancel()
    assert await moved(two, 1) == {}
    await until(lambda: (two.shards[0].cids, two.shards[1].cids) == ([], cids))


def is_there(path: str) -> bool:
    return os.path.exists(path)


async def test_a_door_that_is_closed_is_not_made_again(two: LinkedShards) -> None:
    """The router may miss the file of a shard that leaves before it hears why, and the shard may yet be stopped."""
    host, path = two.shards[1].host, path_for_moves(two.shards[1].peer.path)
    os.unlink(path)
    host.listen_anew()
    assert is_there(path)
    host.close()
    host.listen_anew()
    assert not is_there(path)
    host.close()


async def test_a_way_to_a_shard_that_is_not_there_says_so(two: LinkedShards) -> None:
    old = two.shards[0]
    assert old.host.open_way(5) == "shard 5 is not there"
    os.unlink(path_for_moves(two.shards[1].peer.path))
    assert old.host.open_way(1) == "shard 1 takes no clients: No such file or directory"
