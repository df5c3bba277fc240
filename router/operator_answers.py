"""What a running router answers to its operators (`router.operator_socket`)."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import msgspec

from router.operator_socket import AnyRequest, DisconnectRequest, KillRequest, Reply, ScaleRequest
from router.status import status
from router.supervision import Phase
from shards.control import Disconnect

if TYPE_CHECKING:
    from router.supervisor import Supervisor

# A shard that leaves has ten seconds for its clients, and many take a while to start. Less than the asking side waits.
SCALE_DEADLINE_S = 50.0
SCALE_POLL_S = 0.05
# A shard is forked and in step with its siblings in some milliseconds.
KILL_DEADLINE_S = 20.0
KILL_POLL_S = 0.002
DISCONNECT_DEADLINE_S = 5.0

_one_at_a_time = asyncio.Lock()  # answers of shards do not say which request they answer


async def answer(supervisor: Supervisor, request: AnyRequest) -> Reply:
    """A status after its sample time; anything else when it is done, or has taken too long."""
    match request:
        case ScaleRequest(shards):
            return await _scale(supervisor, shards)
        case KillRequest(shard):
            return await _kill(supervisor, shard)
        case DisconnectRequest(first_cid):
            return await _disconnect(supervisor, first_cid)
    return Reply(status=await status(supervisor, request.sample_s))


async def _scale(supervisor: Supervisor, wanted: int) -> Reply:
    before = supervisor.wanted
    problem = supervisor.scale(wanted)
    if problem:
        return Reply(error=problem)
    deadline = time.monotonic() + SCALE_DEADLINE_S
    while not _is_scaled(supervisor, wanted):
        if time.monotonic() > deadline or supervisor.wanted != wanted:
            return Reply(error="the broker has not the wanted shards yet; `gnatswarm status` says why")
        await asyncio.sleep(SCALE_POLL_S)
    return Reply(text=f"{wanted} shards serve (before: {before})")


def _is_scaled(supervisor: Supervisor, wanted: int) -> bool:
    return all(
        shard.state.phase is (Phase.READY if shard.number < wanted else Phase.STOPPED) for shard in supervisor.shards
    )


async def _kill(supervisor: Supervisor, number: int) -> Reply:
    if not 0 <= number < supervisor.wanted:
        return Reply(error=f"there is no shard {number}; there are 0 to {supervisor.wanted - 1}")
    shard = supervisor.shards[number]
    if shard.process is None:
        return Reply(error=f"shard {number} has no process")
    victim = shard.process
    # Whoever asks for deaths gets them without the pauses that a shard in trouble makes.
    shard.state = msgspec.structs.replace(shard.state, deaths=0)
    victim.kill()
    deadline = time.monotonic() + KILL_DEADLINE_S
    while shard.process in (victim, None) or not shard.state.is_accepting:
        if time.monotonic() > deadline:
            return Reply(error=f"shard {number} is not back yet; `gnatswarm status` says why")
        await asyncio.sleep(KILL_POLL_S)
    return Reply(text=f"shard {number} was killed and is back")


async def _disconnect(supervisor: Supervisor, first_cid: int) -> Reply:
    next_cid = supervisor.page.next_client_id()
    if first_cid >= next_cid:
        return Reply(next_cid=next_cid)
    counts: dict[int, int] = {}
    async with _one_at_a_time:
        supervisor.on_disconnected = counts.__setitem__
        asked = [(shard, shard.process) for shard in supervisor.shards if shard.process is not None]
        supervisor.tell_all(Disconnect(first_cid))
        deadline = time.monotonic() + DISCONNECT_DEADLINE_S
        # One that dies meanwhile has no clients any more.
        while any(shard.number not in counts and shard.process is process for shard, process in asked):
            if time.monotonic() > deadline:
                return Reply(error="a shard does not answer; `gnatswarm status` says which")
            await asyncio.sleep(KILL_POLL_S)
    return Reply(text=f"{sum(counts.values())} clients disconnected", clients=sum(counts.values()), next_cid=next_cid)
