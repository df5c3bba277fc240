"""Carries out operators' requests in a running router (`router.supervision.operator_socket`)."""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from gnatswarm.router.supervision.operator_socket import (
    CHAOS_VARIABLE,
    AnyRequest,
    DisconnectRequest,
    FinishRequest,
    FollowRequest,
    KillRequest,
    MoveRequest,
    PartRequest,
    Ports,
    PortsRequest,
    PublishedRequest,
    RebalanceRequest,
    ReloadRequest,
    Reply,
    RestartRequest,
    ScaleRequest,
    UpgradeRequest,
    WhyRequest,
)
from gnatswarm.router.supervision.rebalance import MARGIN_S, is_scaled
from gnatswarm.router.supervision.status import status
from gnatswarm.router.supervision.supervision import Phase
from gnatswarm.shards.boundary.control import Disconnect, PartLink

if TYPE_CHECKING:
    from gnatswarm.router.config.arrivals import Journey
    from gnatswarm.router.supervision.broker_commands import BrokerCommands, ShardChannels
    from gnatswarm.router.supervision.broker_view import BrokerView
    from gnatswarm.router.supervision.operator_server import Say
    from gnatswarm.router.supervision.rebalance import Rebalance
    from gnatswarm.router.supervision.reloader import Reloader
    from gnatswarm.router.supervision.rolling import Rolling

# A retiring shard has ten seconds for its clients, and starting many takes a while. Less than the client side waits.
SCALE_DEADLINE_S = 50.0
SCALE_POLL_S = 0.05
# A shard is forked and synchronised with its siblings in some milliseconds.
KILL_DEADLINE_S = 20.0
KILL_POLL_S = 0.002
DISCONNECT_DEADLINE_S = 5.0
PART_DEADLINE_S = 5.0
# Shards that are parted for longer than two seconds do not stay so: one of them is replaced.
LONGEST_PART_S = 60.0
# A start takes a tenth of a second, on a busy machine more. Less than the client side waits.
START_DEADLINE_S = 50.0
POLL_S = 0.002


class Disconnections:
    """Counts the clients that each shard has disconnected on request."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        # A shard's Disconnected does not name the request that it answers.
        self._one_at_a_time = asyncio.Lock()

    def on_disconnected(self, shard: int, clients: int) -> None:
        """A shard has disconnected so many clients."""
        self._counts[shard] = clients

    async def carry_out(self, view: BrokerView, channels: ShardChannels, first_cid: int) -> int | None:
        """Disconnect every client with that id or a higher one; returns how many, None when a shard does not answer."""
        async with self._one_at_a_time:
            counts = self._counts = {}
            asked = [(shard, shard.process) for shard in view.shards if shard.process is not None]
            channels.tell_all(Disconnect(first_cid))
            deadline = time.monotonic() + DISCONNECT_DEADLINE_S
            # A shard that dies meanwhile has no clients any more.
            while any(shard.number not in counts and shard.process is process for shard, process in asked):
                if time.monotonic() > deadline:
                    return None
                await asyncio.sleep(KILL_POLL_S)
            return sum(counts.values())


class Partings:
    """Breaks links between shards, for tests."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[int, int], asyncio.Event] = {}

    def on_parted(self, shard: int, other: int) -> None:
        """A shard has broken its link to another."""
        if (shard, other) in self._waiting:
            self._waiting[shard, other].set()

    async def carry_out(self, channels: ShardChannels, shard: int, other: int, seconds: float) -> bool:
        """Have both ends break their link; whether they did."""
        # The one that dials first: the other's end could be dialled again at once.
        for one, sibling in ((max(shard, other), min(shard, other)), (min(shard, other), max(shard, other))):
            done = self._waiting.setdefault((one, sibling), asyncio.Event())
            try:
                if not channels.tell(one, PartLink(sibling, seconds)):
                    return False
                async with asyncio.timeout(PART_DEADLINE_S):
                    await done.wait()
            except TimeoutError:
                return False
            finally:
                self._waiting.pop((one, sibling), None)
        return True


class OperatorAnswers:
    """Replies to the operators of one broker."""

    def __init__(
        self,
        view: BrokerView,
        channels: ShardChannels,
        commands: BrokerCommands,
        disconnections: Disconnections,
        partings: Partings,
        reloader: Reloader,
        rebalance: Rebalance,
        rolling: Rolling,
        live_journey: Callable[[str, str], Awaitable[Journey]],
        published: Callable[[], Awaitable[dict[str, int]]],
    ) -> None:
        self._view = view
        self._channels = channels
        self._commands = commands
        self._disconnections = disconnections
        self._partings = partings
        self._reloader = reloader
        self._rebalance = rebalance
        self._rolling = rolling
        self._live_journey = live_journey  # of a subject and a user
        self._published = published  # messages by subject

    async def answer(self, request: AnyRequest, say: Say) -> Reply:
        """The reply: a status after its sample time; for other requests when they are done or have taken too long.

        `say` sends lines of progress before it.
        """
        match request:
            case ScaleRequest(shards):
                return await self._scale(shards)
            case KillRequest(shard):
                return await self._kill(shard)
            case PartRequest(shard, other, seconds):
                return await self._part(shard, other, seconds)
            case DisconnectRequest(first_cid):
                return await self._disconnect(first_cid)
            case PortsRequest():
                return await self._ports()
            case ReloadRequest():
                return await self._reload()
            case PublishedRequest():
                return Reply(published=await self._published())
            case RebalanceRequest():
                text, problem = await self._rebalance.carry_out()
                return Reply(text=text, error=problem)
            case MoveRequest(shard, to, clients):
                text, problem = await self._rebalance.carry_out({shard: [(to, clients)]})
                return Reply(text=text, error=problem)
            case RestartRequest() | UpgradeRequest():
                return await self._roll(request, say)
            case FinishRequest():
                text, problem = await self._rolling.finish(say)
                return Reply(text=text, error=problem)
            case FollowRequest():
                text, problem = await self._rolling.follow(say)
                return Reply(text=text, error=problem)
            case WhyRequest(subject, user):
                try:
                    return Reply(journey=await self._live_journey(subject, user))
                except ValueError as error:
                    return Reply(error=str(error))
        return Reply(status=await status(self._view, request.sample_s))

    async def _scale(self, wanted: int) -> Reply:
        before = self._view.wanted
        problem = self._commands.scale(wanted)
        if problem:
            return Reply(error=problem)
        deadline = time.monotonic() + SCALE_DEADLINE_S
        while not is_scaled(self._view):
            if time.monotonic() > deadline:
                return Reply(error="the broker has not the wanted shards yet; `gnatswarm status` says why")
            if self._view.wanted != wanted:
                rolling = self._view.rolling
                if rolling is not None and rolling.shards == wanted:
                    break  # it began because all of them serve, and runs one more for a while
                return Reply(error=_another_command(self._view.wanted))
            for shard in self._view.shards:
                if shard.number < wanted and shard.state.phase is Phase.STOPPED:  # it was tried often enough
                    why = shard.state.fatal_reason or shard.state.last_reason
                    return Reply(error=f"shard {shard.number} cannot start: {why}; scale again, or to fewer shards")
            await asyncio.sleep(SCALE_POLL_S)
        text = f"{wanted} shard{'s serve' if wanted > 1 else ' serves'} (before: {before})"
        if wanted > before:
            evened, problem = await self._rebalance.after_scale(max(1.0, deadline - time.monotonic() - MARGIN_S))
            text += f"; {evened or problem}" if evened or problem else ""
        return Reply(text=text)

    async def _roll(self, request: RestartRequest | UpgradeRequest, say: Say) -> Reply:
        if self._rebalance.is_under_way:
            return Reply(error="a rebalance is under way")
        if self._reloader.is_under_way:
            return Reply(error="a reload is under way")
        if isinstance(request, UpgradeRequest):
            text, problem = await self._rolling.upgrade(request.executable, say, request.relay_s)
        else:
            text, problem = await self._rolling.restart(say, request.relay_s)
        return Reply(text=text, error=problem)

    async def _kill(self, number: int) -> Reply:
        if not 0 <= number < self._view.wanted:
            return Reply(error=f"there is no shard {number}; there are 0 to {self._view.wanted - 1}")
        shard = self._view.shards[number]
        if shard.process is None:
            return Reply(error=f"shard {number} has no process")
        victim = shard.process
        self._commands.kill_shard(number)
        deadline = time.monotonic() + KILL_DEADLINE_S
        while shard.process in (victim, None) or not shard.state.is_accepting:
            if time.monotonic() > deadline:
                return Reply(error=f"shard {number} is not back yet; `gnatswarm status` says why")
            if not shard.state.is_wanted:  # it was scaled away meanwhile, or has been tried often enough
                if number >= self._view.wanted:
                    return Reply(error=_another_command(self._view.wanted))
                return Reply(error=f"shard {number} is not to come back; `gnatswarm status` says why")
            await asyncio.sleep(KILL_POLL_S)
        return Reply(text=f"shard {number} was killed and is back")

    async def _part(self, shard: int, other: int, seconds: float) -> Reply:
        if os.environ.get(CHAOS_VARIABLE) != "1":
            return Reply(error=f"this broker parts no shards: it was not started with {CHAOS_VARIABLE}=1")
        if shard == other or not 0 <= min(shard, other) <= max(shard, other) < self._view.wanted:
            return Reply(error=f"there is no link between shards {shard} and {other}: {self._view.wanted} run")
        if not (math.isfinite(seconds) and 0 <= seconds <= LONGEST_PART_S):
            return Reply(error=f"seconds must be 0..{LONGEST_PART_S:g}, not {seconds:g}")
        if not await self._partings.carry_out(self._channels, shard, other, seconds):
            return Reply(error="a shard does not answer; `gnatswarm status` says which")
        return Reply(text=f"shards {shard} and {other} have no link for {seconds:g} s")

    async def _ports(self) -> Reply:
        view = self._view
        deadline = time.monotonic() + START_DEADLINE_S
        while not view.is_serving:
            if time.monotonic() > deadline:
                return Reply(error="the broker is still starting; `gnatswarm status` says why")
            await asyncio.sleep(POLL_S)
        websocket = view.listener_groups.websocket
        return Reply(
            ports=Ports(
                clients=view.listener_groups.clients.port,
                websocket=websocket.port if websocket is not None else 0,
                monitoring=view.monitor_socket.getsockname()[1] if view.monitor_socket is not None else 0,
            )
        )

    async def _reload(self) -> Reply:
        outcome = await self._reloader.reload_everywhere()
        if outcome.refused:
            return Reply(error="\n".join(outcome.refused))
        return Reply(reload=outcome.answer)

    async def _disconnect(self, first_cid: int) -> Reply:
        next_cid = self._view.page.peek_client_id()
        if first_cid >= next_cid:
            return Reply(next_cid=next_cid, shards=self._view.wanted)
        clients = await self._disconnections.carry_out(self._view, self._channels, first_cid)
        if clients is None:
            return Reply(error="a shard does not answer; `gnatswarm status` says which")
        text = f"{clients} clients disconnected"
        return Reply(text=text, clients=clients, next_cid=next_cid, shards=self._view.wanted)


def _another_command(shards: int) -> str:
    return f"another command has come: the broker is to have {shards} shard{'s' if shards > 1 else ''} now"
