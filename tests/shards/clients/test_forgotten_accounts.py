"""Accounts that a reload removes are forgotten: their names may come and go for months."""

from __future__ import annotations

import gc

import pytest

from gnatswarm.broker.mesh import Mesh
from gnatswarm.broker.options import Account, Export, Import, Mapping, Options, User
from gnatswarm.shards import shard
from tests.support.one_shard import Client, OneShard
from tests.support.turns import until


def having(*accounts: Account) -> Options:
    """With a user in each, of its name."""
    return Options(accounts=accounts, users=tuple(User(one.name.lower(), "p", account=one.name) for one in accounts))


async def logged_in(house: OneShard, name: bytes) -> Client:
    client = house.connect()
    await client.wait(b"}")
    await client.talk(b'CONNECT {"verbose":false,"user":"%s","pass":"p"}\r\nSUB x 1\r\nPING\r\n' % name)
    return client


def counted(mesh: Mesh) -> tuple[int, int]:
    """Subscriptions that came, and that went, in all accounts."""
    sublists = mesh.sublists()
    return (
        sum(one.n_inserts for one in sublists) + mesh.forgotten_inserts,
        sum(one.n_removes for one in sublists) + mesh.forgotten_removes,
    )


async def test_an_account_that_is_removed_is_forgotten_when_nothing_is_left_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shard, "FORGET_S", 0.0)
    monkeypatch.setattr(shard, "FORGET_AGAIN_S", 0.0)
    asked = Account("ASKED", exports=(Export("help", is_service=True),))
    asking = Account("ASKING", imports=(Import("ASKED", "help", is_service=True, to="help"),))
    house = OneShard(
        having(Account("STAYS"), Account("GOES"), Account("MAPS", mappings=(Mapping("a", (("b", 100),)),)))
    )
    mesh = house.shard.mesh
    try:
        first = await logged_in(house, b"goes")
        await logged_in(house, b"stays")
        house.shard.system.say_soon("GOES", b"x", b"said by the broker")
        await first.wait(b"said by the broker")
        first.close()
        await until(lambda: len(house.shard.clients.open) == 1)
        house.shard.reload(having(Account("STAYS"), asked, asking))
        await until(lambda: gc.collect() >= 0 and b"GOES" not in mesh.account_names())
        assert {b"STAYS", b"ASKED", b"ASKING"} <= set(mesh.account_names()) - {b"MAPS"} == set(mesh.account_names())
        assert counted(mesh) == (2, 1)

        house.shard.reload(having(Account("STAYS"), Account("GOES")))
        await until(lambda: not {b"ASKED", b"ASKING"} & set(mesh.account_names()))
        await logged_in(house, b"goes")  # it is made anew
        assert counted(mesh) == (3, 1)
    finally:
        house.close()


async def test_what_was_counted_of_clients_of_an_account_is_forgotten_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while another one stays, perhaps for ever: of an account that only other servers have."""
    monkeypatch.setattr(shard, "FORGET_S", 0.0)
    monkeypatch.setattr(shard, "FORGET_AGAIN_S", 0.0)
    house = OneShard(having(Account("STAYS"), Account("GOES")))
    counts = house.shard.clients.closed.by_account
    try:
        held = house.shard.mesh.account(b"held")
        for name in (b"stays", b"goes"):
            (await logged_in(house, name)).close()
        await until(lambda: set(counts) == {"STAYS", "GOES"})
        house.shard.reload(having(Account("STAYS")))
        await until(lambda: gc.collect() >= 0 and set(counts) == {"STAYS"})
        assert house.shard.mesh.account(b"held") is held
    finally:
        house.close()


async def test_an_account_that_somebody_holds_or_is_interested_in_is_not_forgotten() -> None:
    house = OneShard(having(Account("STAYS")))
    mesh = house.shard.mesh
    try:
        held = mesh.account(b"held")
        mesh.account(b"free")
        client = await logged_in(house, b"stays")
        assert mesh.forget_accounts({b"$G", b"$SYS"}) == 2  # a client is in the other one
        assert mesh.account(b"held") is held and b"free" not in mesh.account_names()
        del held
        assert mesh.forget_accounts({b"$G", b"$SYS"}) == 1
        client.close()
    finally:
        house.close()


async def test_an_account_with_counts_that_are_in_no_statistics_yet_is_not_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What comes from another account is counted apart."""
    monkeypatch.setattr(shard, "FORGET_S", 0.0)
    told = Account("TOLD", exports=(Export("log", is_service=True),))
    tells = Account("TELLS", imports=(Import("TOLD", "log", is_service=True, to="log"),))
    house = OneShard(having(told, tells))
    mesh = house.shard.mesh
    try:
        mesh.tally(100)
        hears, tells_it = await logged_in(house, b"told"), await logged_in(house, b"tells")
        await hears.talk(b"SUB log 2\r\nPING\r\n")
        await tells_it.talk(b"PUB log 1\r\n.\r\nPING\r\n")
        await hears.wait(b"MSG log 2 1\r\n.\r\n")
        hears.close()
        await until(lambda: len(house.shard.clients.open) == 1)
        house.shard.reload(having(Account("TELLS")))
        names = {b"$G", b"$SYS", b"TELLS"}
        gc.collect()
        assert mesh.forget_accounts(names) == 1
        [left] = [one for one in mesh.sublists() if one.account == b"TOLD"]
        assert left.tally is not None and not left.tally.is_empty
    finally:
        house.close()


async def test_the_configured_names_are_gone_through_once_for_each_reload(monkeypatch: pytest.MonkeyPatch) -> None:
    """25 ms for 50,000 accounts, every minute while one that was removed is held."""
    built: list[int] = []
    names = Options.account_names.fget  # type: ignore[attr-defined]

    def counted_names(options: Options) -> set[str]:
        built.append(1)
        return set(names(options))

    house = OneShard(having(Account("GOES")))
    mesh = house.shard.mesh
    try:
        held = [mesh.account(b"GOES")]
        monkeypatch.setattr(Options, "account_names", property(counted_names))
        for accounts in ([], [Account("NEW")]):
            house.shard.reload(having(*accounts))
            mesh.account(b"NEW")
            built.clear()
            for _ in range(3):
                house.shard._forget_accounts(60.0)
            assert len(built) == 1
            assert (b"NEW" in mesh.account_names()) is bool(accounts) and b"GOES" in mesh.account_names()
        held.clear()
        house.shard._forget_accounts(60.0)
        assert b"GOES" not in mesh.account_names() and len(built) == 1
        house.shard._forget_accounts(60.0)
        assert len(built) == 2  # they take some MB meanwhile
    finally:
        house.close()
