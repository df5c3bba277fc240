"""What a reload changes in the process that is connected to other servers."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from unittest.mock import Mock

import pytest

from gnatswarm.broker.access.auth import NOBODY, Admission, HashedPassword
from gnatswarm.broker.access.user_index import UserIndex
from gnatswarm.broker.options import (
    Account,
    ClientTls,
    Cluster,
    Export,
    Import,
    LeafNodes,
    LeafRemote,
    Mapping,
    Options,
    User,
    each_file_once,
)
from gnatswarm.shards.boundary.control import ServerPort
from gnatswarm.shards.clients import comparisons, passwords
from gnatswarm.shards.gateway.gateway import Gateway
from tests.support.one_shard import Client, OneShard
from tests.support.turns import until

SERVICE = Account("A", exports=(Export("help", is_service=True),))
ASKING = Account("B", imports=(Import("A", "help", is_service=True, to="ask"),))
MAPPED = Account("C", mappings=(Mapping("here", (("there", 100),)),))


class Process:
    """A gateway that is not started, whose exchange notes what it is told to want."""

    def __init__(self, house: OneShard, options: Options, **ports: ServerPort) -> None:
        shard = house.shard
        self.gateway = Gateway(
            asyncio.get_running_loop(),
            shard.reactor,
            shard.mesh,
            shard.fence,
            options,
            server_id="N",
            server_name="N",
            ports={"cluster": ServerPort(-1, "127.0.0.1", 1)} if options.cluster.port else ports,
            clients_at=("127.0.0.1", 4222),
            websocket_port=0,
            known_routes=[],
            next_id=Mock(return_value=1),
            next_event_number=Mock(return_value=1),
            tell=Mock(),
        )
        self.exchange = self.gateway.exchange
        self.told: list[tuple[bytes, set[bytes]]] = []

    def reload(self, options: Options) -> None:
        exchange, told = self.gateway.exchange, self.told
        self.gateway.exchange = Mock(wraps=exchange)
        self.gateway.exchange.system_account = exchange.system_account
        self.gateway.exchange.set_own_interest = lambda account, wanted: told.append((account, wanted))
        self.gateway.reload(options, UserIndex(), set())


@pytest.fixture
async def house() -> AsyncIterator[OneShard]:
    house = OneShard(Options())
    yield house
    house.close()


async def test_a_reload_before_its_start_counts(house: OneShard) -> None:
    process = Process(house, Options(cluster=Cluster(name="c", port=-1)))
    process.reload(Options(accounts=(SERVICE, ASKING), cluster=Cluster(name="c", port=-1, routes=("nats://h:1",))))
    assert (b"B", {b"ask"}) in process.told
    routes = process.gateway._routes
    assert routes is not None and routes.cluster.routes == ("nats://h:1",)


async def test_only_accounts_that_have_changed_are_told_again(house: OneShard) -> None:
    """There may be ten thousands of them."""
    process = Process(house, Options(accounts=(SERVICE, ASKING, MAPPED)))
    process.reload(Options(accounts=(SERVICE, ASKING, Account("C"))))
    assert process.told == [(b"C", set())]


async def test_an_account_that_is_configured_no_more_wants_nothing(house: OneShard) -> None:
    process = Process(house, Options(accounts=(SERVICE, ASKING, MAPPED)))
    process.reload(Options(accounts=(SERVICE,)))
    assert sorted(process.told) == [(b"B", set()), (b"C", set())]


async def test_a_reload_forgets_what_is_left_of_accounts_that_earlier_ones_have_removed(house: OneShard) -> None:
    gateway = Process(house, Options()).gateway
    gateway._is_started = True
    names = b"$G", b"GONE"
    before = [gateway.exchange.loop_subject(name) for name in names]
    gateway.reload(Options(), UserIndex(), set())
    after = [gateway.exchange.loop_subject(name) for name in names]
    assert (after[0] == before[0], after[1] == before[1]) == (True, False)


async def test_of_two_that_find_a_loop_one_is_closed_whatever_was_long_ago(
    house: OneShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = Process(house, Options()).gateway
    monkeypatch.setattr(gateway, "_loop", Mock(time=Mock(side_effect=[1.0, 1.5, 2.9, 3.1, 3.2])))
    assert [gateway._opens_loop(name) for name in "AABAB"] == [True, False, True, True, False]
    assert gateway._opened_s == {"A": 3.1, "B": 2.9}


async def test_a_reload_is_over_when_leaf_nodes_get_the_streams_of_now(house: OneShard) -> None:
    gateway = Process(house, Options()).gateway
    gateway._is_started = True
    steps: list[set[bytes]] = []

    def renewals(accounts: set[bytes]) -> Iterator[None]:
        for _ in range(3):
            steps.append(accounts)
            yield

    gateway.exchange = Mock(wraps=gateway.exchange, system_account=gateway.exchange.system_account, renewals=renewals)
    over: list[int] = []
    for account in ("A", "B"):
        gateway.reload(Options(), UserIndex(), {account}, lambda: over.append(len(steps)))
    assert (steps, over) == ([{b"A"}], []), "others have their turn"
    await until(lambda: len(over) == 2)
    assert (steps, over) == ([{b"A"}] * 3 + [{b"B"}] * 3, [3, 6])


async def test_after_a_reload_each_hub_is_dialled_once_also_where_several_name_one_file(house: OneShard) -> None:
    tls = ClientTls(ca_file="ca.pem", ca_pem=b"authorities")
    remotes = [LeafRemote(urls=(f"tls://h{number}:7422",), tls=tls) for number in range(3)]
    options = Options(leafnodes=LeafNodes(remotes=each_file_once(remotes)))
    gateway = Process(house, options).gateway
    gateway._is_started = True
    gateway._dial()
    gateway.reload(options, UserIndex(), set())
    assert [remote.remote for remote in gateway._remotes] == remotes
    gateway.reload(Options(), UserIndex(), set())
    assert not gateway._remotes


LEAF_NODES = "abc"
PLAIN, HASHED = (
    Options(users=tuple(User(name, secret + name) for name in LEAF_NODES), leafnodes=LeafNodes(port=-1))
    for secret in ("secret", "$2b$04$" + "h" * 52)
)


class Port:
    """The port for leaf nodes of a gateway."""

    def __init__(self, house: OneShard) -> None:
        listening = socket.create_server(("127.0.0.1", 0))
        listening.setblocking(False)
        self.at: tuple[str, int] = listening.getsockname()
        self.gateway = Process(house, PLAIN, leafnodes=ServerPort(listening.detach(), *self.at)).gateway
        self.gateway.start()
        port = self.gateway._leaf_port
        assert port is not None
        self.port = port

    async def connect(self, name: str) -> Client:
        there = socket.create_connection(self.at)
        there.setblocking(False)
        leaf = Client(there)
        await leaf.wait(b"\r\n")
        accepted = b'"remote_account":"$G"'
        words = f'CONNECT {{"user":"{name}","pass":"secret{name}","name":"{name}"}}\r\n'
        assert accepted in await leaf.talk(words.encode(), accepted)
        await leaf.wait(b"\r\n")
        return leaf


@pytest.mark.parametrize("is_right", [True, False])
async def test_a_reload_is_over_when_passwords_of_leaf_nodes_have_been_compared(
    house: OneShard, monkeypatch: pytest.MonkeyPatch, *, is_right: bool
) -> None:
    """Who asked for it was told that it was, while a leaf node was still connected that had to go."""
    may_compare = threading.Event()
    monkeypatch.setattr(passwords, "is_same", lambda *_: may_compare.wait(20) and is_right)
    there = Port(house)
    leaf = await there.connect("a")
    done: list[int] = []
    there.gateway.reload(HASHED, UserIndex(HASHED.users), set(), lambda: done.append(1))
    there.gateway.reload(HASHED, UserIndex(HASHED.users), set(), lambda: done.append(2))
    await leaf.talk(b"PING\r\n")
    assert not done
    may_compare.set()
    await until(lambda: done)
    assert done == [1, 2] and [session.is_gone for session in there.port.sessions] == [False] * is_right
    if is_right:
        assert (await leaf.talk(b"PING\r\n")).endswith(b"PONG\r\n")
    else:
        assert b"Authorization Violation" in await leaf.wait(b"Violation")
    there.gateway.close()


async def test_leaf_nodes_stay_through_a_reload_also_while_as_many_log_in_as_may_wait(
    house: OneShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their passwords are the same: those gave way to the log-ins, and their leaf nodes were cut."""
    may_compare = threading.Event()
    monkeypatch.setattr(passwords, "is_same", lambda *_: may_compare.wait(20))
    monkeypatch.setattr(comparisons, "COMPARE_AGAIN_S", 0.001)
    there = Port(house)
    leaf_nodes = [await there.connect(name) for name in LEAF_NODES]

    def log_in(number: int) -> None:
        question = HashedPassword(Admission(NOBODY), "", "$2b$", b"%d" % number)
        assert there.port.passwords.ask(question, Mock(is_gone=False, host=f"10.0.0.{number}"))

    for number in range(passwords.MOST_WAITING):
        log_in(number)
    done: list[bool] = []
    there.gateway.reload(HASHED, UserIndex(HASHED.users), set(), lambda: done.append(True))
    for number in range(100, 110):
        log_in(number)
    may_compare.set()
    await until(lambda: done)
    for leaf in leaf_nodes:
        assert (await leaf.talk(b"PING\r\n")).endswith(b"PONG\r\n")
    there.gateway.close()
