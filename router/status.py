"""Status: what the shards of a broker are doing, for `gnatswarm status`.

Rates are the difference of two readings of the shared page and of /proc, taken only when somebody asks: an idle
broker's router does not wake up for it. Called by the supervisor.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING

from router.operator_socket import ShardStatus, Status

if TYPE_CHECKING:
    from router.supervisor import Shard, Supervisor
    from shards.page import Page

LONGEST_SAMPLE_S = 10.0


async def status(supervisor: Supervisor, sample_s: float) -> Status:
    """One row per shard that runs or should; rates over sample_s, at most LONGEST_SAMPLE_S."""
    page = supervisor.page
    before = {shard.number: _reading(shard, page) for shard in supervisor.shards}
    began = time.monotonic()
    await asyncio.sleep(max(0.01, min(sample_s, LONGEST_SAMPLE_S)))
    took_s = time.monotonic() - began
    rows = []
    for shard in supervisor.shards:
        if shard.number not in before or (shard.number >= supervisor.wanted and not shard.state.has_process):
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
        pid=os.getpid(),
        address=supervisor.doors.clients.address,
        server_name=supervisor.server_name,
        accept=supervisor.options.swarm.accept,
        steering=supervisor.is_handoff or supervisor.doors.steering.works,
        connections=page.connections,
        uptime_s=time.monotonic() - supervisor.started_at,
        shards=rows,
    )


def _reading(shard: Shard, page: Page) -> tuple[int, float, int, int]:
    """(pid, CPU seconds, messages in, messages out) so far."""
    slot = page.snapshot(shard.number)
    pid = shard.process.pid if shard.process is not None else 0
    return pid, _cpu_s(pid) if pid else 0.0, slot["in_msgs"], slot["out_msgs"]


def _cpu_s(pid: int) -> float:
    """CPU time of a process so far; 0 when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
