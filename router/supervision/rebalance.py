"""Evens the connections over the shards: tells those with more than the mean how many clients to move, and where.

By `gnatswarm rebalance`, and when shards were added (`placement { after_scale: even }`). A plan moves as few clients as
it can: no shard ends with more than one connection above another, as far as its clients can move (those with TLS
cannot, and those with a placement rule stay where it says). Each shard moves at most 1,000 a second, a few at a time,
so the others notice little. Not here: how a client moves (the shards').
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from typing import TYPE_CHECKING

from gnatswarm.router.supervision.supervision import Phase
from gnatswarm.shards.boundary.control import MoveAway, Moved

if TYPE_CHECKING:
    from gnatswarm.router.supervision.broker_commands import ShardChannels
    from gnatswarm.router.supervision.broker_view import BrokerView, ShardView

log = logging.getLogger("gnatswarm.router")

# For a shard that has ten thousand clients too many; less than a command waits for its reply.
WITHIN_S = 30.0
# A shard that has not answered so long after that is asked no more.
MARGIN_S = 5.0
POLL_S = 0.02
# Clients that have moved are counted by their new shard a moment later; of a shard that hangs, not.
SETTLE_S = 1.0
# New shards serve after some tenths of a second.
START_WITHIN_S = 60.0

Plan = dict[int, list[tuple[int, int]]]


def plan(connections: dict[int, int]) -> Plan:
    """How many clients each shard moves, and where: {shard: [(to, clients)]}. The fewest that make them even."""
    total, n = sum(connections.values()), len(connections)
    if n < 2:
        return {}
    mean, rest = divmod(total, n)
    fullest_first = sorted(connections, key=lambda shard: (-connections[shard], shard))
    wanted = {shard: mean + (place < rest) for place, shard in enumerate(fullest_first)}
    lacking = [[shard, wanted[shard] - connections[shard]] for shard in fullest_first]
    lacking = [one for one in reversed(lacking) if one[1] > 0]
    found: Plan = {}
    for shard in fullest_first:
        excess = connections[shard] - wanted[shard]
        while excess > 0:
            to, room = lacking[0]
            moved = min(excess, room)
            found.setdefault(shard, []).append((to, moved))
            excess -= moved
            lacking[0][1] -= moved
            if not lacking[0][1]:
                lacking.pop(0)
    return found


def is_scaled(view: BrokerView) -> bool:
    """Whether all wanted shards serve, and all others have ended."""
    return all(
        shard.state.phase is (Phase.READY if shard.number < view.wanted else Phase.STOPPED) for shard in view.shards
    )


class Rebalance:
    """Rebalances one broker. One at a time."""

    def __init__(self, view: BrokerView, channels: ShardChannels) -> None:
        self._view = view
        self._channels = channels
        self._answers: dict[int, Moved] = {}
        self._task: asyncio.Task[None] | None = None
        self._is_under_way = False

    def begin_after_scale(self) -> None:
        """Shards are being added: even the connections when they serve, if the options say so."""
        self._task = asyncio.get_running_loop().create_task(self._when_all_serve())

    async def _when_all_serve(self) -> None:
        deadline = time.monotonic() + START_WITHIN_S
        while not is_scaled(self._view):
            if time.monotonic() > deadline:
                return  # supervision says why
            await asyncio.sleep(POLL_S)
        _, problem = await self.after_scale()
        if problem:
            log.warning("Connections were not evened: %s", problem)

    async def after_scale(self, within_s: float = WITHIN_S) -> tuple[str, str]:
        """Shards were added: what carry_out() says, or ("", "") if nobody is to move, or nobody is there."""
        if self._view.options.placement.after_scale != "even" or not self._view.page.connections:
            return "", ""
        return await self.carry_out(within_s=within_s)

    def on_moved(self, shard: int, message: Moved) -> None:
        """A shard has moved its clients."""
        self._answers[shard] = message

    @property
    def is_under_way(self) -> bool:
        """Whether clients are being moved."""
        return self._is_under_way

    def _taking_part(self) -> list[ShardView]:
        shards = self._view.shards
        return [shard for shard in shards if shard.number < self._view.wanted and shard.state.is_accepting]

    async def carry_out(self, chosen: Plan | None = None, within_s: float = WITHIN_S) -> tuple[str, str]:
        """Even the connections, or move as `chosen`; returns (what was done, "") or ("", why not).

        It takes up to `within_s` seconds, and MARGIN_S more if a shard does not answer.
        """
        if self._is_under_way:
            return "", "a rebalance is under way"
        if self._view.is_leaving:
            return "", "the broker is shutting down"
        if self._view.rolling is not None:
            return "", "a restart is under way"
        self._is_under_way = True
        try:
            return await self._carry_out(chosen, within_s)
        finally:
            self._is_under_way = False

    async def _carry_out(self, chosen: Plan | None, within_s: float) -> tuple[str, str]:
        before = self._connections()
        if len(before) < 2:
            return "", "there are not two shards that take connections"
        for target, _ in (part for parts in (chosen or {}).values() for part in parts):
            if target not in before:  # one that starts may die yet, with clients that came from a shard that served
                return "", f"shard {target} does not serve now"
        asked = {}
        self._answers = {}
        by_number = {shard.number: shard for shard in self._view.shards}
        for number, to in (plan(before) if chosen is None else chosen).items():
            if self._channels.tell(number, MoveAway(to, within_s)):
                asked[number] = by_number[number].process
        deadline = time.monotonic() + within_s + MARGIN_S
        # A shard that dies meanwhile moves nobody any more.
        while any(n not in self._answers and by_number[n].process is process for n, process in asked.items()):
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(POLL_S)
        await self._settle()
        moved = sum(answer.clients for answer in self._answers.values())
        after = self._connections()
        shown = ", ".join(f"shard {number}: {n} ({before.get(number, 0)})" for number, n in after.items())
        text = f"{moved} clients moved; connections now (before): {shown}"
        stay: Counter[str] = Counter()
        for answer in self._answers.values():
            stay.update(answer.stay)
        if max(after.values(), default=0) - min(after.values(), default=0) > 1:
            for why, n in stay.most_common(5):
                text += f"\n  {n} could not move: {why}"
        log.info("Rebalanced: %s", text.replace("\n ", ";"))
        return text, ""

    async def _settle(self) -> None:
        """The last clients are not counted any more where they were: wait until they are where they go on."""
        page = self._view.page
        deadline = time.monotonic() + SETTLE_S
        while page.connections > sum(page.snapshot(shard.number)["connections"] for shard in self._view.shards):
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(POLL_S)

    def _connections(self) -> dict[int, int]:
        page = self._view.page
        return {shard.number: page.snapshot(shard.number)["connections"] for shard in self._taking_part()}
