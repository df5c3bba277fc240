"""Facts of a broker that does not exist, for tests of what is made of them."""

from __future__ import annotations

from typing import Any

import msgspec

from gnatswarm.broker.options import LeafNodes, LeafRemote, Options
from gnatswarm.router.monitoring.facts import Facts, ShardFacts

A_LEAF = Options(leafnodes=LeafNodes(remotes=(LeafRemote(urls=("nats://hub",)),)))  # of a hub
START_US = 1_700_000_000_000_000


def shard(number: int, **changes: Any) -> ShardFacts:
    """A shard that is well and has done nothing, but for what is said."""
    fields: dict[str, Any] = {
        field.name: "" if field.type is str else False if field.type is bool else 0
        for field in msgspec.structs.fields(ShardFacts)
    }
    fields |= {"shard": number, "pid": 1000 + number, "phase": "ready", "is_wanted": True, "is_accepting": True}
    return ShardFacts(**(fields | changes))


def facts(*shards: ShardFacts, options: Options | None = None, is_serving: bool = True) -> Facts:
    """A broker with these shards, up for an hour."""
    return Facts(
        server_id="N" + "A" * 55,
        server_name="test",
        options=options or Options(),
        host="127.0.0.1",
        port=4222,
        websocket_port=0,
        http_host="127.0.0.1",
        http_port=8222,
        https_port=0,
        created_us=START_US,
        configured_us=START_US,
        now_us=START_US + 3_600_000_000,
        uptime_us=3_600_000_000,
        is_serving=is_serving,
        pid=999,
        router_pid=998,
        router_cpu_percent=1.5,
        router_resident_bytes=10_000_000,
        cores=4,
        is_recorded=True,
        shards=list(shards),
    )
