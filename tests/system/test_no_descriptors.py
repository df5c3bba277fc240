"""Clients have taken all descriptors of the shards: links are made all the same, and who is inside notices nothing."""

from __future__ import annotations

import asyncio
import re
import resource

import bcrypt
import pytest

from tests.support import swarm
from tests.support.servers import wait_until
from tests.support.wire import Client, Cluster, Frame

pytestmark = pytest.mark.kinds("gnatswarm-2", "gnatswarm-4")

DESCRIPTORS = 256
IN_STEP_DEADLINE_S = 60.0
FULL = re.compile(r"\[\d+\].*cannot accept connections: Too many open files")
RUNS_OUT = re.compile(r"\[\d+\].*descriptors run out; new clients go to other shards")


async def fill(cluster: Cluster) -> None:
    """Connections until every shard has said that it can take no more."""
    broker = cluster.broker
    full: set[str] = set()
    async with asyncio.timeout(60):
        while len(full) < broker.kind.shards:
            for _ in range(100):
                cluster.all.append(await Client.dial(broker.port))
            # Who is inside and who waits in the backlog: a shard that is full says so within a turn of its loop.
            full = {line.split("[ERR]")[0].split()[0] for line in broker.log.lines if FULL.search(line)}


async def wait_in_step(broker, starts: dict[int, int]) -> None:
    """Until all shards serve and have their links, each started so many times."""
    shards = len(starts)
    async with asyncio.timeout(IN_STEP_DEADLINE_S):
        while True:
            rows = await asyncio.to_thread(swarm.rows, broker)
            if all(  # the router may not have heard of a shard's death yet
                row["phase"] == "ready" and row["links"] == shards - 1 and row["starts"] >= starts[shard]
                for shard, row in rows.items()
            ):
                break
    assert {shard: row["starts"] for shard, row in rows.items()} == starts


async def test_a_router_without_descriptors_still_supervises(start_broker, cluster_of):
    broker = start_broker(args=["--no-stats"])
    client, stays = [await swarm.client_on(cluster_of(broker), shard) for shard in (1, 0)]
    victim = (await swarm.pids(broker))[1]
    router = (await asyncio.to_thread(swarm.status, broker))["router_pid"]
    starts = {shard: row["starts"] for shard, row in (await asyncio.to_thread(swarm.rows, broker)).items()}
    limits = resource.prlimit(router, resource.RLIMIT_NOFILE)
    resource.prlimit(router, resource.RLIMIT_NOFILE, (3, limits[1]))
    swarm.signal_shard(broker, victim)
    await client.wait_closed()
    await asyncio.to_thread(broker.log.wait_line, "Shard 1 .*Too many open files", 20.0)
    await stays.talk("PING\r\n", expect="PONG\r\n")
    resource.prlimit(router, resource.RLIMIT_NOFILE, limits)
    async with asyncio.timeout(IN_STEP_DEADLINE_S):
        while (row := (await asyncio.to_thread(swarm.rows, broker))[1])["phase"] != "ready":
            pass
    assert row["starts"] > starts[1]
    assert "Traceback" not in broker.log.text


@pytest.fixture
async def crowded(start_broker, cluster_of):
    broker = start_broker(descriptors=DESCRIPTORS, config="placement { after_scale: stay }")
    return broker, cluster_of(broker)


@pytest.mark.parametrize("killed", [0, 1], ids=["the full one dials", "the full one is dialled"])
async def test_a_killed_shard_comes_back_though_its_sibling_is_full(crowded, subject, killed):
    broker, cluster = crowded
    stays = 1 - killed
    listener, talker = [await cluster.client_on(stays) for _ in range(2)]
    await listener.talk(f"SUB {subject} 1\r\nPING\r\n", expect="PONG\r\n")
    await fill(cluster)
    await swarm.kill(broker, killed)
    starts = {shard: 1 + (shard == killed) for shard in range(broker.kind.shards)}
    await wait_in_step(broker, starts)
    for number in range(20):
        await talker.talk(f"PUB {subject} 2\r\n{number:02}\r\nPING\r\n", expect="PONG\r\n")
        await listener.expect(f"MSG {subject} 1 2\r\n{number:02}\r\n")
    leave_all_but(cluster, listener, talker)
    back = await swarm.client_on(cluster, killed)
    await back.talk(f"PUB {subject} 2\r\nok\r\nPING\r\n", expect="PONG\r\n")
    await listener.expect(f"MSG {subject} 1 2\r\nok\r\n")


def leave_all_but(cluster: Cluster, *stay: Client) -> None:
    """All clients but these go."""
    cluster.leave(*(one for one in cluster.all if one not in stay))


async def test_a_reload_of_the_log_ends_no_shard_that_is_full(crowded, subject, tmp_path):
    """A log file, a certificate, an inbox in the system account are descriptors, too."""
    broker, cluster = crowded
    listener, talker = await cluster.clients(2, on_different_shards=True)
    await listener.talk(f"SUB {subject} 1\r\nPING\r\n", expect="PONG\r\n")
    await fill(cluster)
    log = tmp_path / "broker.log"
    changed = f'placement {{ after_scale: stay }}\nlog_file: "{log}"\ndebug: true\nmax_payload: 1000\n'
    (broker.directory / "broker.conf").write_text(changed)
    await asyncio.to_thread(swarm.operate, broker, "reload")
    await talker.talk(f"PUB {subject} 2\r\nok\r\nPING\r\n", expect="PONG\r\n")
    await listener.expect(f"MSG {subject} 1 2\r\nok\r\n")
    shards = broker.kind.shards
    starts = {shard: row["starts"] for shard, row in (await asyncio.to_thread(swarm.rows, broker)).items()}
    assert starts == dict.fromkeys(range(shards), 1)
    leave_all_but(cluster, listener, talker)  # of which each shard tells, at this level
    own = [re.compile(rf"shard {shard} - ") for shard in range(shards)]
    await asyncio.to_thread(wait_until, lambda: all(one.search(log.read_text()) for one in own))


ACCOUNTS = """
placement {{ after_scale: stay }}
accounts {{
  ONE {{ users: [ {{ user: one, password: x }} ] }}
  TWO {{ users: [ {{ user: two, password: x }} ] }}
  REST {{ users: [ {{ user: rest, password: x }} ] }}
}}
no_auth_user: rest
system_account: {account}
"""


async def test_a_reload_of_the_system_account_ends_no_shard_that_is_full(start_broker, cluster_of):
    """What hears its requests is made anew then, in a moment in which clients have taken its descriptors."""
    broker = start_broker(descriptors=DESCRIPTORS, config=ACCOUNTS.format(account="ONE"))
    cluster = cluster_of(broker)
    shards = range(broker.kind.shards)
    talkers = [await cluster.client_on(shard, {"user": "two", "pass": "x"}) for shard in shards]
    await fill(cluster)
    (broker.directory / "broker.conf").write_text(ACCOUNTS.format(account="TWO"))
    await asyncio.to_thread(swarm.operate, broker, "reload")
    for shard, talker in enumerate(talkers):
        # A subject each: an answer to what the one before asked may still be on its way.
        await talker.talk(f"SUB back.{shard} 1\r\nPING\r\n", expect="PONG\r\n")
        heard: list[Frame] = []
        async with asyncio.timeout(IN_STEP_DEADLINE_S):
            while not heard:
                await talker.send(f"PUB $SYS.REQ.SERVER.PING.STATSZ back.{shard} 0\r\n\r\n")
                heard = [frame for frame in await talker.flush() if frame.is_message]
    starts = {shard: row["starts"] for shard, row in (await asyncio.to_thread(swarm.rows, broker)).items()}
    assert starts == dict.fromkeys(shards, 1)
    assert "Traceback" not in broker.log.text


HASHED = """
placement {{ after_scale: stay }}
authorization {{ timeout: 60, users: [ {{ user: ann, password: "{hashed}" }} ] }}
"""


async def test_the_first_hashed_password_ends_no_shard_that_is_full(start_broker, cluster_of):
    """What compares it is loaded then. Nobody needs a password to take all descriptors."""
    hashed = bcrypt.hashpw(b"good", b"$2b$04$" + b"a" * 21 + b"u").decode()
    broker = start_broker(descriptors=DESCRIPTORS, config=HASHED.format(hashed=hashed))
    cluster = cluster_of(broker)
    shards = range(broker.kind.shards)
    early = [await cluster.raw_on(shard) for shard in shards]
    await fill(cluster)
    log_in = 'CONNECT {"user": "ann", "pass": "good", "verbose": false}\r\nPING\r\n'
    for client in early:
        await client.send(log_in)
        assert b"Authentication Timeout" in await client.wait_closed()
    starts = {shard: row["starts"] for shard, row in (await asyncio.to_thread(swarm.rows, broker)).items()}
    assert starts == dict.fromkeys(shards, 1)
    assert re.search("Passwords cannot be compared, who logs in is refused: .*Too many open files", broker.log.text)
    leave_all_but(cluster)
    for shard in shards:
        late = await cluster.raw_on(shard)
        await late.talk(log_in, expect="PONG\r\n")


async def test_a_shard_without_descriptors_is_taken_over_by_the_next_router(start_broker, cluster_of):
    broker = start_broker(args=["--no-stats"])
    stays = [await swarm.client_on(cluster_of(broker), shard) for shard in (0, 1)]
    before = await swarm.pids(broker)
    router = (await asyncio.to_thread(swarm.status, broker))["router_pid"]
    for pid in before.values():
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, resource.prlimit(pid, resource.RLIMIT_NOFILE)[1]))
    swarm.signal_shard(broker, router)
    await asyncio.to_thread(broker.log.wait_line, "goes on with its shards", 20.0)
    await asyncio.to_thread(swarm.operate, broker, "reload")  # each says that it has heard
    assert await swarm.pids(broker) == before
    for client in stays:
        await client.talk("PING\r\n", expect="PONG\r\n")


async def test_the_swarm_grows_though_its_shards_are_full(crowded, subject):
    broker, cluster = crowded
    shards = broker.kind.shards
    listener, talker = await cluster.clients(2, on_different_shards=True)
    await listener.talk(f"SUB {subject} 1\r\nPING\r\n", expect="PONG\r\n")
    await fill(cluster)
    await swarm.scale(broker, shards + 2)
    await wait_in_step(broker, dict.fromkeys(range(shards + 2), 1))
    # Whoever comes now goes to the new shards, which have room.
    comers = [await cluster.client() for _ in range(10)]
    assert min(one.shard for one in comers) >= shards
    await comers[0].talk(f"PUB {subject} 2\r\nok\r\nPING\r\n", expect="PONG\r\n")
    await listener.expect(f"MSG {subject} 1 2\r\nok\r\n")
    await talker.talk(f"PUB {subject} 2\r\nme\r\nPING\r\n", expect="PONG\r\n")
    await listener.expect(f"MSG {subject} 1 2\r\nme\r\n")


async def test_clients_of_full_shards_go_to_others(crowded):
    """A way to another shard is a descriptor, too."""
    broker, cluster = crowded
    shards = broker.kind.shards
    await fill(cluster)
    await swarm.scale(broker, shards + 1)
    await asyncio.to_thread(swarm.operate, broker, "rebalance")
    assert (await asyncio.to_thread(swarm.rows, broker))[shards]["connections"] > DESCRIPTORS // 4


async def test_who_comes_is_steered_past_a_full_shard_until_it_has_room_again(crowded):
    broker, cluster = crowded
    inside: list[Client] = []
    comers: list[Client] = []
    async with asyncio.timeout(60):
        while not (full := [line for line in broker.log.lines if RUNS_OUT.search(line)]):
            client = await cluster.client()
            inside.append(client) if client.shard == 0 else cluster.leave(client)
        # The router may hear it later than we read it.
        while not comers or 0 in {one.shard for one in comers}:
            cluster.leave(*comers)
            comers = [await cluster.client() for _ in range(10)]
    assert len(full) == 1
    comers += [await cluster.client() for _ in range(20)]
    assert 0 not in {one.shard for one in comers}
    # Nobody waits anywhere: it has said so while it had some left.
    assert not [line for line in broker.log.lines if FULL.search(line)]
    leave_all_but(cluster, *inside[: len(inside) // 2], *comers)
    back = await swarm.client_on(cluster, 0)
    assert back.shard == 0
