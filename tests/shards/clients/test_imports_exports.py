"""Mappings and service imports of a shard: what they note of a publisher, and what they forget."""

from __future__ import annotations

from itertools import groupby

import pytest

from gnatswarm.broker import census
from gnatswarm.broker.options import Account, Export, Import, Mapping, Options, Permissions, User
from gnatswarm.shards import shard
from tests.support.one_shard import Client, OneShard
from tests.support.turns import until


async def logged_in(house: OneShard, *names: bytes) -> list[Client]:
    """A client for each of these users."""
    clients = [house.connect() for _ in names]
    for client, name in zip(clients, names, strict=True):
        await client.wait(b"}")
        await client.talk(b'CONNECT {"verbose":false,"user":"%s","pass":"p"}\r\nPING\r\n' % name)
    return clients


async def test_a_publisher_to_a_mapped_subject_is_known_as_one_of_the_subject_that_it_goes_to() -> None:
    house = OneShard(Options(mappings=(Mapping("a", (("b", 100),)),)))
    try:
        client = house.connect()
        await client.wait(b"}")
        said = await client.talk(b'CONNECT {"verbose":false}\r\nSUB b 1\r\nPUB a 2\r\nhi\r\nPING\r\n')
        assert said.endswith(b"MSG b 1 2\r\nhi\r\nPONG\r\n")
        (session,) = house.shard.clients.open.values()
        assert census.published_to(session.connection) == census.subject_hash(house.shard.mesh.account(b"$G"), b"b")
    finally:
        house.close()


async def test_a_request_without_a_reply_is_forgotten_after_the_threshold() -> None:
    service = Account("A", exports=(Export("help", is_service=True, threshold_s=0.001),))
    asking = Account("B", imports=(Import("A", "help", is_service=True, to="help"),))
    users = tuple(User(name, "p", account=account) for name, account in (("a", "A"), ("b", "B")))
    house = OneShard(Options(accounts=(service, asking), users=users))
    try:
        responder, requestor = await logged_in(house, b"a", b"b")
        await responder.talk(b"SUB help 1\r\nPING\r\n")
        await requestor.talk(b"SUB inbox 1\r\nPUB help inbox 1\r\n?\r\nPING\r\n")
        assert b"MSG help 1 _R_." in await responder.wait(b"?\r\n")
        await until(lambda: not house.shard.imports_exports.service_imports.waiting)
    finally:
        house.close()


async def test_measured_requests_of_a_client_that_is_gone_are_forgotten_in_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Thousands take a while, and nobody else is served in between."""
    monkeypatch.setattr(shard, "FORGOTTEN_AT_ONCE", 3)
    service = Account("A", exports=(Export("help", is_service=True, latency_subject="took"),))
    asking = Account("B", imports=(Import("A", "help", is_service=True, to="help"),))
    users = tuple(User(name, "p", account=account) for name, account in (("a", "A"), ("b", "B")))
    house = OneShard(Options(accounts=(service, asking), users=users))
    left = []
    forget, imports = house.shard._forget_requests, house.shard.imports_exports.service_imports

    def one_turn(cid: int) -> None:
        forget(cid)
        left.append(imports.waiting)

    house.shard._forget_requests = one_turn  # type: ignore[method-assign]
    try:
        responder, requestor = await logged_in(house, b"a", b"b")
        await responder.talk(b"SUB help 1\r\nPING\r\n")
        await requestor.talk(b"SUB inbox 1\r\n" + b"PUB help inbox 1\r\n?\r\n" * 10 + b"PING\r\n")
        assert imports.waiting == 10
        requestor.close()
        await until(lambda: not imports.waiting)
        assert left == [7, 4, 1, 0]
    finally:
        house.close()


async def test_a_revoked_subscription_to_an_imported_stream_gets_nothing_before_it_has_ended() -> None:
    """The client's permissions are about the subjects that it sees, not about those of the exporting account."""

    def options(*allowed: str) -> Options:
        exporting = Account("A", exports=(Export("s.*", is_service=False),))
        importing = Account("B", imports=(Import("A", "s.*", is_service=False, to="x.s.*"),))
        limited = User("b", "p", account="B", permissions=Permissions(subscribe_allow=allowed))
        return Options(accounts=(exporting, importing), users=(User("a", "p", account="A"), limited))

    house = OneShard(options("x.s.*"))
    try:
        publisher, subscriber = await logged_in(house, b"a", b"b")
        await subscriber.talk(b"SUB x.s.1 1\r\nSUB x.s.2 2\r\nPING\r\n")
        publish = b"PUB s.1 0\r\n\r\nPUB s.2 0\r\n\r\n"
        await publisher.talk(publish + b"PING\r\n")
        assert (await subscriber.talk(b"PING\r\n")).count(b"MSG x.s.") == 2
        (connection,) = (one.connection for one in house.shard.clients.open.values() if one.user == "b")
        house.shard.reload(options("x.s.2", "s.*"))
        publisher._sock.sendall(publish)
        house.shard.reactor.turn()
        assert connection.is_ending
        said = await subscriber.talk(b"PING\r\n")
        assert said.startswith(b'MSG x.s.2 2 0\r\n\r\n-ERR \'Permissions Violation for Subscription to "x.s.1"')
        assert said.count(b"MSG") == said.count(b"-ERR") == 1
    finally:
        house.close()


async def test_a_reload_changes_accounts_step_by_step_and_each_as_a_whole() -> None:
    """There may be ten thousands of imports: others are served in between."""
    n = 50

    def options(tag: str) -> Options:
        exports = [Export(f"{tag}.{i}", is_service=True) for i in range(n)]
        exports += [Export(f"{tag}.s.{i}", is_service=False) for i in range(n)]
        imports = tuple(Import("A", one.subject, one.is_service, to=one.subject) for one in exports)
        mappings = tuple(Mapping(f"{tag}.m.{i}", ((f"{tag}.n", 100),)) for i in range(n))
        return Options(
            accounts=(Account("A", exports=tuple(exports)), Account("B", imports=imports, mappings=mappings))
        )

    house = OneShard(options("a"))
    try:
        there, account = house.shard.imports_exports, house.shard.mesh.account(b"B")
        changed: set[str] = set()
        seen = []
        for _ in there.steps(options("b"), changed):
            assert account.rules is not None and account.streams is not None
            seen.append("".join(sorted({one.subject[:1].decode() for one in (*account.rules, *account.streams)})))
            assert len(account.rules) == 2 * n
        assert len(seen) > 4 * n  # each service is found, then made; each mapping and stream is made
        assert [tags for tags, _ in groupby(seen)][:2] == ["a", "ab"] and seen.count(
            "ab"
        ) <= n  # rules as a whole, then streams
        assert changed == {"B"} and account.streams is not None and account.streams[0].subject == b"b.s.0"
        changed.clear()
        assert len([*there.steps(options("b"), changed)]) < 2 * n
        assert not changed
    finally:
        house.close()
