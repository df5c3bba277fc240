"""Status: what the shards of a broker are doing, for `gnatswarm status`.

Rates are the difference of two readings of the shared page and of /proc, taken only on request, so that an idle
broker's router does not wake up for it. Called by OperatorAnswers.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING

from gnatswarm.router.supervision.operator_socket import RelayStatus, ShardStatus, Status
from gnatswarm.shards.boundary.process_use import process_use

if TYPE_CHECKING:
    from gnatswarm.router.supervision.broker_view import BrokerView, ShardView
    from gnatswarm.shards.boundary.page import Page

LONGEST_SAMPLE_S = 10.0
# The time of a relay that has just been taken over, and has not said when it ends.
LONGEST_RELAY_S = 30 * 86400.0


async def status(view: BrokerView, sample_s: float) -> Status:
    """One row per shard that runs or is wanted; rates over sample_s, at most LONGEST_SAMPLE_S."""
    page = view.page
    before = {shard.number: _reading(shard, page) for shard in view.shards}
    began = time.monotonic()
    await asyncio.sleep(max(0.01, min(sample_s, LONGEST_SAMPLE_S)))
    took_s = time.monotonic() - began
    rows = []
    for shard in view.shards:
        if shard.number not in before or (shard.number >= view.wanted and not shard.state.has_process):
            continue
        slot = page.snapshot(shard.number)
        pid, cpu_s, in_msgs, out_msgs = before[shard.number]
        now_pid, now_cpu_s, now_in_msgs, now_out_msgs = _reading(shard, page)
        rows.append(
            ShardStatus(
                shard=shard.number,
                pid=now_pid,
                phase=shard.state.phase.value,
                connections=slot["connections"],
                subscriptions=slot["subscriptions"],
                in_msgs_per_s=(now_in_msgs - in_msgs) / took_s,
                out_msgs_per_s=(now_out_msgs - out_msgs) / took_s,
                loop_lag_us=slot["loop_lag_us"],
                cpu_percent=100 * (now_cpu_s - cpu_s) / took_s if now_pid == pid else 0.0,
                links=slot["links"],
                starts=shard.state.starts,
                last_reason=shard.state.last_reason,
            )
        )
    return Status(
        pid=view.pid,
        router_pid=os.getpid(),
        address=view.listener_groups.clients.address,
        server_name=view.server_name,
        accept=view.options.sharding.accept,
        steering=view.is_handoff or view.listener_groups.steering.works,
        connections=page.connections,
        uptime_s=time.monotonic() - view.started_at,
        shards=rows,
        rules=list(view.placed),
        relays=relays(view),
    )


def relays(view: BrokerView) -> list[RelayStatus]:
    """Processes that were replaced, and encrypt for clients with TLS that have moved."""
    now = time.monotonic()
    return [
        RelayStatus(
            one.process.pid,
            one.process.shard,
            one.clients,
            -1.0 if one.is_ending else round(max(0.0, min(one.ends_at - now, LONGEST_RELAY_S)), 1),
        )
        for one in view.relays
    ]


def _reading(shard: ShardView, page: Page) -> tuple[int, float, int, int]:
    """(pid, CPU seconds, messages in, messages out) so far."""
    slot = page.snapshot(shard.number)
    pid = shard.process.pid if shard.process is not None else 0
    return pid, process_use(pid).cpu_s, slot["in_msgs"], slot["out_msgs"]
