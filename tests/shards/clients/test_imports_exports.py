"""Mappings and service imports of a shard: what they note of a publisher, and what they forget."""

from __future__ import annotations

from gnatswarm.broker import census
from gnatswarm.broker.options import Account, Export, Import, Mapping, Options, User
from tests.support.one_shard import OneShard
from tests.support.turns import until


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
        responder, requestor = house.connect(), house.connect()
        for client, name in ((responder, b"a"), (requestor, b"b")):
            await client.wait(b"}")
            await client.talk(b'CONNECT {"verbose":false,"user":"%s","pass":"p"}\r\nPING\r\n' % name)
        await responder.talk(b"SUB help 1\r\nPING\r\n")
        await requestor.talk(b"SUB inbox 1\r\nPUB help inbox 1\r\n?\r\nPING\r\n")
        assert b"MSG help 1 _R_." in await responder.wait(b"?\r\n")
        await until(lambda: not house.shard.imports_exports.service_imports.waiting)
    finally:
        house.close()
