"""Replaces the shards of a running broker one after another, by processes that take their clients over.

By `gnatswarm restart` and `upgrade`. One shard more than wanted is started first; each shard's clients move to the
process before it, then its own successor starts, so no client moves twice but those of the first shard, and there are
never fewer shards than wanted. Clients with TLS go on through their old processes (`relays`). The gateway is last: it
ends before the next one dials, which has read its program by then (`standby`). What is still to be done is in the
broker's record: a router that takes over goes on. An upgrade goes on with the router, which makes room for one of the
new version, and the keeper, which becomes the new program; where shards or router of it do not serve, it goes back.
Not here: how a client moves (the shards'), whether a program is fit to take over (`successor`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn

import msgspec

from gnatswarm.router.supervision import successor
from gnatswarm.router.supervision.broker import time_to_move_s
from gnatswarm.router.supervision.record import KEEPER, ROUTER, SHARDS, RollingRecord
from gnatswarm.router.supervision.relays import END_WITHIN_S
from gnatswarm.router.supervision.standby import Readiness
from gnatswarm.router.supervision.supervision import (
    BOOT_ATTEMPTS,
    BOOT_DEADLINE_S,
    ENDLESS_AFTER_S,
    LEAVE_MARGIN_S,
    Phase,
)

if TYPE_CHECKING:
    from gnatswarm.router.supervision.broker import SupervisedBroker, SupervisedShard
    from gnatswarm.router.supervision.broker_commands import RollingCommands

log = logging.getLogger("gnatswarm.router")

POLL_S = 0.02
# A look that comes so late has not been late alone: the router did not run, and nobody is blamed for that time.
LONGEST_PAUSE_S = 0.5
# An operator hears that often at least that it goes on. Less than a command waits for the next line.
SAY_EVERY_S = 5.0
# A shard may take so long for its clients, and longer with many. It ends when they have moved. Those that cannot move
# and do not leave when they are told are closed at its end.
LEAVE_WITHIN_S = 20.0
# One that answers late answers by then, or has been replaced.
LATE_WITHIN_S = ENDLESS_AFTER_S + 2.0
# A gateway that is replaced ends within this: other servers get what is on its way, and have said their last.
GATEWAY_LEAVES_WITHIN_S = 1.0
# A new router has taken over the shards, the keeper has become the new program.
PROVEN_WITHIN_S = 15.0
RENEWED_WITHIN_S = 30.0

_NOT_ENDED = "", "nothing is under way; the log says how the last restart or upgrade has ended"

Say = Callable[[str], None]


class RollingFailed(Exception):
    """It ends here; the text says why, and what holds now."""


class Rolling:
    """Rolling restarts of one broker, one at a time. `own`: the command that runs its program."""

    def __init__(self, broker: SupervisedBroker, commands: RollingCommands, own: Sequence[str] = ()) -> None:
        self._broker = broker
        self._commands = commands
        self._own = list(own)
        self._task: asyncio.Task[str] | None = None
        self._is_asking = False  # a program whether it can take over
        self._outcome = _NOT_ENDED
        self._say: Say = lambda text: None
        self._said_at = 0.0

    def objection(self) -> str:
        """Why shards cannot be replaced now; "": they can."""
        broker = self._broker
        if broker.is_leaving or broker.is_stopping:
            return "the broker is shutting down"
        if not broker.is_serving:
            return "the broker is still starting"
        if broker.rolling is not None or self._task is not None or self._is_asking:
            return "a restart is under way"
        for shard in broker.members:
            is_wanted = shard.is_gateway or shard.number < broker.wanted
            if is_wanted and not shard.state.is_accepting:
                return f"{shard.name.lower()} does not serve: it {shard.state.doing}"
            if not is_wanted and shard.state.phase is not Phase.STOPPED:
                return f"{shard.name.lower()} is still leaving"
        return ""

    async def _objection_of_started(self) -> str:
        """As objection(), once those serve that start already, as the gateway does when a broker has just begun.

        And those that are late with an answer, or with a link, as on a busy machine.
        """
        left_s = BOOT_DEADLINE_S
        while left_s > 0:
            starting = any(one.state.phase in (Phase.STARTING, Phase.LINKED) for one in self._broker.members)
            is_late = left_s > BOOT_DEADLINE_S - LATE_WITHIN_S and any(map(_is_late, self._broker.members))
            if not starting and not is_late:
                break
            left_s -= await _pause()
        return self.objection()

    async def restart(self, say: Say, relay_s: float) -> tuple[str, str]:
        """Replace every process but keeper and router; returns (what was done, "") or ("", why not).

        `say` is told how it goes on. `relay_s`: for so long old processes encrypt for clients with TLS, which stay
        connected; 0: those are told to reconnect.
        """
        why = await self._objection_of_started()
        if why:
            return "", why
        self._outcome = _NOT_ENDED
        broker = self._broker
        old = [one.process.boot_id for one in broker.members if one.process is not None]
        why = self._commands.begin_rolling(RollingRecord(broker.wanted, old, relay_s=relay_s))
        if why:
            return "", why
        return await self._carry_out(say)

    async def upgrade(self, executable: str, say: Say, relay_s: float) -> tuple[str, str]:
        """Replace every process by this program ("": the broker's own, which may have changed); as restart()."""
        why = await self._objection_of_started()
        if why:
            return "", why
        self._outcome = _NOT_ENDED  # or who has to ask again would hear of the last one
        command = [executable] if executable else self._own
        self._is_asking = True
        try:
            spoken = successor.own_formats(self._broker.keeper.formats())
            version = await successor.ask(command, spoken)
        except successor.Unfit as error:
            return "", f"{error}. Nothing has changed"
        finally:
            self._is_asking = False
        why = self.objection()  # the broker has gone on meanwhile
        if why:
            return "", why
        say(f"{' '.join(command)} is gnatswarm {version}")
        old = [one.process.boot_id for one in self._broker.members if one.process is not None]
        why = self._commands.begin_rolling(RollingRecord(self._broker.wanted, old, command, relay_s=relay_s))
        if why:
            return "", why
        return await self._carry_out(say)

    async def finish(self, say: Say) -> tuple[str, str]:
        """Have clients reconnect whose TLS is in processes that were replaced, and wait until those have ended."""
        broker = self._broker
        if not broker.relays:
            return "no process of before serves clients with TLS", ""
        waiting = set(map(id, broker.relays))
        processes = f"{len(waiting)} process{'es' if len(waiting) > 1 else ''} of before"
        clients = self._commands.end_relays()
        say(f"{processes}: {clients} connection{'' if clients == 1 else 's'} with TLS to end; clients are told")
        said_at, left_s = time.monotonic(), END_WITHIN_S + LEAVE_WITHIN_S
        while any(id(one) in waiting for one in broker.relays):
            now = time.monotonic()
            if left_s <= 0:
                return "", f"{processes}: not ended yet; `gnatswarm status` shows who is left"
            if now - said_at >= SAY_EVERY_S:
                said_at = now
                say(f"{sum(one.clients for one in broker.relays)} connections have not ended")
            left_s -= await _pause()
        return f"{processes} {'have' if len(waiting) > 1 else 'has'} ended", ""

    async def follow(self, say: Say) -> tuple[str, str]:
        """Wait for what is under way, begun by a router before perhaps; or how the last one has ended."""
        if self._task is None:
            return self._outcome
        self._say = say
        await asyncio.wait([self._task])
        return self._outcome

    def go_on(self) -> None:
        """Finish what a router that has died had begun; nothing where it had not."""
        rolling = self._broker.rolling
        if rolling is None or rolling.stage != ROUTER:
            self._broker.keeper.is_successor = False  # of its version one has proven itself before
        if rolling is not None:
            log.info("The rolling %s goes on", "upgrade" if rolling.command else "restart")
            self._start(log.info)

    async def _carry_out(self, say: Say) -> tuple[str, str]:
        # The operator may leave; it goes on.
        await asyncio.wait([self._start(say)])
        return self._outcome

    def _start(self, say: Say) -> asyncio.Task[str]:
        self._say = say
        self._task = asyncio.get_running_loop().create_task(self._roll())
        self._task.add_done_callback(self._on_done)
        return self._task

    def _on_done(self, task: asyncio.Task[str]) -> None:
        self._task = None
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, RollingFailed):
            self._outcome = "", str(error)
            log.error("The rolling restart has ended: %s", error)
        elif error is None:
            self._outcome = task.result(), ""
            log.info("%s", task.result())
        else:
            self._outcome = "", f"an unexpected error has ended it, the log says more: {error!a}"
            raise error

    # ---- the steps; each may find that it has been done

    async def _roll(self) -> str:
        try:
            return await self._roll_all()
        except Exception as error:
            left = self._broker.rolling
            is_on_trial = left is not None and left.stage == ROUTER and self._broker.keeper.is_successor
            # Who cannot prove itself is ended by the keeper, and the router before goes back.
            if left is None or self._is_ending or is_on_trial:
                raise
            if left.stage == KEEPER:  # all the others are replaced, and start shards of their version
                self._commands.note_rolling(None)
                raise
            self._commands.end_rolling(LEAVE_WITHIN_S)  # or nothing else could ever be changed
            if isinstance(error, RollingFailed) and left.stage == ROUTER:
                raise RollingFailed(f"{error}. The shards are of {' '.join(left.command)}, the router is not") from None
            raise

    async def _roll_all(self) -> str:
        rolling = self._broker.rolling
        assert rolling is not None
        if self._is_ending:  # as another router finds it, whose broker ends before it has begun
            raise RollingFailed("the broker is shutting down")
        began = time.monotonic()
        if rolling.stage == SHARDS:
            rolling = await self._roll_shards(rolling)
        if rolling.stage == ROUTER:
            rolling = await self._roll_router(rolling)
        if rolling.stage == KEEPER:
            await self._roll_keeper(rolling)
            return f"upgraded to {' '.join(rolling.command)}"
        n = rolling.shards
        gateway = " and the gateway" if self._broker.gateway is not None else ""
        return f"{n} shard{'s' if n > 1 else ''}{gateway} restarted in {time.monotonic() - began:.1f} s"

    async def _roll_shards(self, rolling: RollingRecord) -> RollingRecord:
        """What is left then."""
        try:
            to = await self._replace_all(rolling)
        except RollingFailed as error:
            if self._is_ending:
                raise
            if rolling.command:
                await self._go_back(rolling, str(error))
            spare = self._broker.shards[rolling.shards]
            self._commands.end_rolling(self._leave_within_s(spare))
            raise
        spare = self._broker.shards[rolling.shards]
        self._tell(f"shard {spare.number} leaves again")
        left = msgspec.structs.replace(rolling, stage=ROUTER) if rolling.command else None
        self._commands.end_rolling(self._leave_within_s(spare), [to.number], left)
        await self._wait_left(spare)
        if rolling.failure:
            raise RollingFailed(f"{rolling.failure}. The version before serves again")
        return left or rolling

    async def _go_back(self, rolling: RollingRecord, why: str) -> NoReturn:
        """Replace what is of the new version by what was before. RollingFailed, always."""
        self._tell(f"going back: {why}")
        log.error("The upgrade goes back: %s", why)
        broker = self._broker
        new = [
            one.process.boot_id
            for one in broker.members
            if one.process is not None and (one.process.boot_id not in rolling.old or rolling.stage != SHARDS)
        ]
        if not new:
            self._commands.end_rolling(LEAVE_WITHIN_S)
            raise RollingFailed(f"{why}. Nothing has changed")
        back = RollingRecord(rolling.shards, new, failure=why, relay_s=rolling.relay_s)
        problem = self._commands.begin_rolling(back)
        if problem:
            raise RollingFailed(f"{why}; and going back: {problem}")
        await self._roll_shards(back)
        raise AssertionError("going back ends with its reason")

    async def _roll_router(self, rolling: RollingRecord) -> RollingRecord:
        """Make room for the new version's router; or be that, and see that it serves."""
        keeper = self._broker.keeper
        unfit, keeper.unfit = keeper.unfit, ""
        if unfit:
            await self._go_back(rolling, f"the router of {' '.join(rolling.command)} did not serve: {unfit}")
        spare = self._broker.shards[rolling.shards]
        await self._wait_left(spare)
        if not keeper.is_successor:
            self._tell("the router makes room for its successor")
            log.info("Making room for the router of %s", " ".join(rolling.command))
            await asyncio.sleep(POLL_S)  # the operator hears it
            if self._is_ending:  # the next router could not finish that
                raise RollingFailed("the broker is shutting down")
            keeper.make_room(rolling.command)
        shards = self._broker.shards[: rolling.shards]
        await self._wait(lambda: all(shard.state.is_accepting for shard in shards), shards[0], PROVEN_WITHIN_S)
        rolling = msgspec.structs.replace(rolling, stage=KEEPER)
        self._commands.note_rolling(rolling)
        keeper.taken_over()
        keeper.is_successor = False
        return rolling

    async def _roll_keeper(self, rolling: RollingRecord) -> None:
        """Have the keeper become the new program, which forks shards itself from then on."""
        keeper = self._broker.keeper
        self._tell("the keeper becomes the new program")
        keeper.renew(rolling.command)
        left_s = RENEWED_WITHIN_S
        while keeper.renewed is None and left_s > 0:
            left_s -= await _pause()
        why = "it does not answer" if keeper.renewed is None else keeper.renewed.error
        if not why:
            self._broker.command = self._broker.own_command = []
        self._commands.note_rolling(None)
        if why:
            raise RollingFailed(f"everything but the keeper (process {self._broker.pid}) was replaced: {why}")

    async def _replace_all(self, rolling: RollingRecord) -> SupervisedShard:
        """Returns the shard that was replaced last."""
        shards = self._broker.shards
        spare = shards[rolling.shards]
        if spare.state.phase is not Phase.READY:
            self._tell(f"shard {spare.number} starts beside the others")
        await self._wait(lambda: spare.state.is_accepting, spare, BOOT_DEADLINE_S, is_start=True)
        to = spare
        for shard in shards[: rolling.shards]:
            await self._replace(shard, to, rolling)
            to = shard
        gateway = self._broker.gateway
        if gateway is not None and not _is_new(gateway, rolling):
            self._tell("the gateway is replaced: other servers connect anew")
            await self._replace_gateway(gateway, rolling)
        return to

    async def _replace(self, shard: SupervisedShard, to: SupervisedShard, rolling: RollingRecord) -> None:
        if _is_new(shard, rolling) and shard.state.is_accepting:
            return
        within_s = self._leave_within_s(shard)
        if shard.state.phase is Phase.READY and not _is_new(shard, rolling):
            n = self._connections(shard)
            self._tell(f"shard {shard.number}: {n} client{'' if n == 1 else 's'} move to shard {to.number}")
            self._commands.replace(shard.number, within_s, [to.number], rolling.relay_s)
        elif shard.state.phase is Phase.STOPPED:
            self._commands.start_stopped(shard.number)
        await self._wait_new(shard, rolling, within_s + LEAVE_MARGIN_S + BOOT_DEADLINE_S)
        assert shard.process is not None
        self._tell(f"shard {shard.number} is process {shard.process.pid} now")

    async def _replace_gateway(self, gateway: SupervisedShard, rolling: RollingRecord) -> None:
        if gateway.process is not None:
            await self._prepare_gateway()
        if not _is_new(gateway, rolling):  # (it may have died meanwhile)
            self._commands.replace_gateway(GATEWAY_LEAVES_WITHIN_S)
        await self._wait_new(gateway, rolling, GATEWAY_LEAVES_WITHIN_S + LEAVE_MARGIN_S + BOOT_DEADLINE_S)

    async def _prepare_gateway(self) -> None:
        """Until its next process is ready. RollingFailed: none will be, and the present one serves on."""
        for _ in range(BOOT_ATTEMPTS):
            self._commands.prepare_gateway()
            left_s = BOOT_DEADLINE_S
            while (readiness := self._commands.gateway_readiness) is Readiness.PENDING:
                if self._is_ending:
                    raise RollingFailed("the broker is shutting down")
                if left_s <= 0:
                    break
                left_s -= await _pause()
            if readiness is Readiness.READY:
                return
            if readiness is Readiness.PENDING:
                why = f"has not started within {BOOT_DEADLINE_S:.0f} s"
                raise RollingFailed(f"the gateway's next process {why}; the one before serves on")
        raise RollingFailed("the gateway's next process does not start, or ends at once; the one before serves on")

    # ---- waiting

    async def _wait_new(self, shard: SupervisedShard, rolling: RollingRecord, within_s: float) -> None:
        """Until a new process of this shard serves."""
        await self._wait(lambda: _is_new(shard, rolling) and shard.state.is_accepting, shard, within_s, is_start=True)

    async def _wait(
        self, is_so: Callable[[], bool], shard: SupervisedShard, within_s: float, *, is_start: bool = False
    ) -> None:
        left_s = within_s
        most_starts = shard.state.starts + BOOT_ATTEMPTS
        while not is_so():
            if self._is_ending:
                raise RollingFailed("the broker is shutting down")
            state = shard.state
            # One that dies on its way is started again; one that dies often would die for ever.
            would_fail_again = state.fatal_reason or state.starts >= most_starts
            is_down = state.phase is Phase.STOPPED or (state.phase is Phase.BACKING_OFF and would_fail_again)
            cannot = is_start and is_down
            if cannot or left_s <= 0:
                late = f" within {within_s:.0f} s: it {state.doing}"
                why = f": {state.fatal_reason or state.last_reason}" if cannot else late
                what = "does not serve" if is_start else "has not left"
                raise RollingFailed(f"{shard.name.lower()} {what}{why}; the other shards serve on")
            if time.monotonic() - self._said_at >= SAY_EVERY_S:
                n = self._connections(shard)
                self._tell(f"{shard.name.lower()} {state.doing}, with {n} client{'' if n == 1 else 's'}")
            left_s -= await _pause()

    async def _wait_left(self, spare: SupervisedShard) -> None:
        within_s = self._leave_within_s(spare) + 2 * LEAVE_MARGIN_S
        await self._wait(lambda: spare.state.phase is Phase.STOPPED, spare, within_s)

    @property
    def _is_ending(self) -> bool:
        return self._broker.is_leaving or self._broker.is_stopping

    def _leave_within_s(self, shard: SupervisedShard) -> float:
        least_s = max(LEAVE_WITHIN_S, self._broker.options.limits.lame_duck_grace_s)
        return least_s + time_to_move_s(self._broker.page, shard.number)

    def _connections(self, shard: SupervisedShard) -> int:
        return int(self._broker.page.snapshot(shard.number)["connections"])

    def _tell(self, text: str) -> None:
        self._said_at = time.monotonic()
        self._say(text)


async def _pause() -> float:
    """Let others run for a moment; returns how much of a limit that was."""
    began = time.monotonic()
    await asyncio.sleep(POLL_S)
    return min(time.monotonic() - began, LONGEST_PAUSE_S)


def _is_new(shard: SupervisedShard, rolling: RollingRecord) -> bool:
    return shard.process is not None and shard.process.boot_id not in rolling.old


def _is_late(shard: SupervisedShard) -> bool:
    """Whether it serves, and gets no new clients for the moment."""
    state = shard.state
    return state.phase is Phase.READY and state.is_wanted and not state.is_accepting
