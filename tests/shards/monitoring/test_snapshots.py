"""A shard's part of a monitoring page comes in pieces, and together they are all there is, each once."""

from __future__ import annotations

import pytest

from gnatswarm.broker.options import Options
from gnatswarm.shards.boundary.pace import Pace
from gnatswarm.shards.boundary.rows import ConnectionsQuery
from gnatswarm.shards.monitoring.snapshots import PART_SUBSCRIPTIONS, STEP_SLOTS, Snapshots
from tests.support.one_shard import OneShard


@pytest.mark.parametrize("count", [0, 1, PART_SUBSCRIPTIONS, 4 * PART_SUBSCRIPTIONS + 7])
async def test_all_subscriptions_of_a_client_are_listed_once(count: int) -> None:
    one = OneShard(Options())
    try:
        client, other = one.connect(), one.connect()
        words = b"".join(b"SUB a.%d %d\r\n" % (number, number) for number in range(count))
        await client.talk(b'CONNECT {"verbose":false}\r\n' + words + b"PING\r\n")
        await other.talk(b'CONNECT {"verbose":false}\r\nSUB b 1\r\nPING\r\n')
        shard = one.shard
        snapshots = Snapshots(
            channel=None,  # type: ignore[arg-type]
            clients=shard.clients,
            mesh=shard.mesh,
            fanout=shard.fanout,
        )
        found: dict[int, list[str]] = {}
        async for part in snapshots._connections(ConnectionsQuery(with_subs=True), Pace()):
            assert part.total == 2
            for row in part.rows:
                assert len(row.subs) < PART_SUBSCRIPTIONS + STEP_SLOTS
                found.setdefault(row.cid, []).extend(sub.subject for sub in row.subs)
        assert {cid: sorted(subjects) for cid, subjects in found.items()} == {
            1: sorted(f"a.{number}" for number in range(count)),
            2: ["b"],
        }
    finally:
        one.close()
