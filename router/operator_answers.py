"""What a running router answers to its operators (`router.operator_socket`)."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from router.operator_socket import Reply, ScaleRequest, StatusRequest
from router.status import status
from router.supervision import Phase

if TYPE_CHECKING:
    from router.supervisor import Supervisor

# A shard that leaves has ten seconds for its clients, and many take a while to start. Less than the asking side waits.
SCALE_DEADLINE_S = 50.0
SCALE_POLL_S = 0.05


async def answer(supervisor: Supervisor, request: StatusRequest | ScaleRequest) -> Reply:
    """A status after its sample time; a scaling when it is done, or has taken too long."""
    if not isinstance(request, ScaleRequest):
        return Reply(status=await status(supervisor, request.sample_s))
    before = supervisor.wanted
    problem = supervisor.scale(request.shards)
    if problem:
        return Reply(error=problem)
    deadline = time.monotonic() + SCALE_DEADLINE_S
    while not _is_scaled(supervisor, request.shards):
        if time.monotonic() > deadline or supervisor.wanted != request.shards:
            return Reply(error="the broker has not the wanted shards yet; `gnatswarm status` says why")
        await asyncio.sleep(SCALE_POLL_S)
    return Reply(text=f"{request.shards} shards serve (before: {before})")


def _is_scaled(supervisor: Supervisor, wanted: int) -> bool:
    return all(
        shard.state.phase is (Phase.READY if shard.number < wanted else Phase.STOPPED) for shard in supervisor.shards
    )
