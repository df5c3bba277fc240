"""Supervision: what the router does about one shard, as a pure function (state, event, now) → (state, actions).

No process, socket or clock is touched here; the supervisor delivers the events and carries the actions out. Events
come from the router itself, or are messages of the shard. The table of transitions at the end is complete: it has a
handler for every phase and every event, so no case is left to an `else`. Invariants: a shard that does not answer a
ping in time is killed; a process is replaced only after it was reaped (Exited); every phase except STOPPED and READY
has a deadline, so nothing waits for ever.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable

import msgspec

from gnatswarm.shards.boundary.control import (
    ControlMessage,
    Drain,
    Drained,
    Fatal,
    HasHeadroom,
    InStep,
    LameDuck,
    Linked,
    Ping,
    Pong,
    Ready,
    Relays,
    Resumed,
    Stop,
)

PING_INTERVAL_S = 0.5  # between the answer to one ping and the next
SUSPECT_AFTER_S = 0.75  # a ping unanswered for this long: new connections are steered elsewhere
# A ping unanswered for this long: the shard is killed, with all its clients. Siblings' fences wait for it meanwhile.
# One that computes all the time has most likely much to do, or gets no core, and will answer: it is killed later, but
# before client libraries give up on a PONG, which they do after 10 s and more.
HUNG_AFTER_S = 2.0
ENDLESS_AFTER_S = 8.0

# From exec to Ready. 64 shards on two slow cores take some ten seconds together; one that takes thirty has hung.
BOOT_DEADLINE_S = 30.0
BOOT_ATTEMPTS = 3  # after this many deaths before its first Ready a shard counts as unable to boot

# After a single crash the shard is restarted at once; one that crashes repeatedly must not use up the machine.
BACKOFF_FIRST_S = 0.25
BACKOFF_LONGEST_S = 10.0
STABLE_AFTER_S = 10.0  # after being ready for this long, earlier deaths do not count any more

STOP_DEADLINE_S = 3.0  # from Stop to SIGKILL
LEAVE_MARGIN_S = 2.0  # a retiring shard is killed this long after its own deadline


# From Drained to Relays: its last statistics are written, which must not cost clients where the disk is slow.
RELAY_MARGIN_S = 10.0


class Phase(enum.Enum):
    """The phase of one shard."""

    STOPPED = "stopped"  # no process, none wanted
    BACKING_OFF = "backing off"  # no process; the next one starts at `deadline`
    STARTING = "starting"  # the process runs; its link socket does not listen yet
    LINKED = "linked"  # siblings can reach it; it does not accept yet
    READY = "ready"  # accepts and serves
    DRAINING = "draining"  # was asked to retire, still serves its clients
    STOPPING = "stopping"  # was told to stop at once
    KILLED = "killed"  # got SIGKILL, not reaped yet


class ShardState(msgspec.Struct, frozen=True):
    """The state of one shard; times are of one monotonic clock, in seconds."""

    phase: Phase = Phase.STOPPED
    is_founder: bool = True  # one of the broker's first shards: the start fails without it
    is_wanted: bool = False  # should run once the present phase has ended
    leave: Drain | LameDuck | None = None  # to be sent when the shard is ready
    deadline: float = math.inf  # by which the phase must end
    was_ready: bool = False  # at least once, in any of its processes
    ready_since: float = 0.0
    ping_seq: int = 0
    ping_sent_at: float | None = None  # of the unanswered ping
    next_ping_at: float = 0.0
    is_suspect: bool = False  # its answer to a ping is late
    computed_at: float = 0.0  # when it was last seen to compute while its answer was late
    told_seq: int = 0  # the last ping of which the log says that its answer is late
    is_in_step: bool = True  # it has links to all siblings
    has_headroom: bool = True  # it has descriptors for more clients
    has_drained: bool = False  # it sent Drained, or its time for that is over
    deaths: int = 0  # in a row, without STABLE_AFTER_S between them
    starts: int = 0
    all_deaths: int = 0  # that count, in all its processes
    is_excused: bool = False  # the death of its process does not count: an operator or a router's end is the cause
    is_resuming: bool = False  # it was taken over from a dead router, and has not said where it stands
    fatal_reason: str = ""  # the reason in its Fatal message
    last_reason: str = ""  # why the last process ended, for log and status

    @property
    def is_accepting(self) -> bool:
        """Whether new connections should be steered to it."""
        return self.phase is Phase.READY and self.is_wanted and self.is_in_step and not self.is_suspect

    @property
    def doing(self) -> str:
        """What the shard does, as what is said of it: "is starting"; of one that is ready why nobody is sent to it."""
        if self.phase is not Phase.READY or self.is_accepting:
            return f"is {self.phase.value}"
        if self.is_suspect:
            return "does not answer"
        return "is to leave" if not self.is_wanted else "has no link to some other shard"

    @property
    def is_listening(self) -> bool:
        """Whether it accepts who comes, whether or not anybody is steered to it."""
        return self.phase in (Phase.READY, Phase.DRAINING) and not self.has_drained

    @property
    def is_linked(self) -> bool:
        """Whether its siblings should hold a link to it."""
        return self.phase in (Phase.LINKED, Phase.READY, Phase.DRAINING)

    @property
    def is_retiring(self) -> bool:
        """Whether it was asked to retire, and still serves its clients."""
        return self.phase is Phase.DRAINING

    @property
    def has_process(self) -> bool:
        """Whether a process runs or waits to be reaped."""
        return self.phase not in (Phase.STOPPED, Phase.BACKING_OFF)


# ---- events ----


class RouterEvent(msgspec.Struct, frozen=True):
    """Something that the router itself wants or notices. The other events are messages of the shard."""


class StartWanted(RouterEvent, frozen=True):
    """The broker starts, or is scaled up."""


class LeaveWanted(RouterEvent, frozen=True):
    """The broker is scaled down, or in lame duck mode."""

    message: Drain | LameDuck


class StopWanted(RouterEvent, frozen=True):
    """The broker stops."""


class KillWanted(RouterEvent, frozen=True):
    """An operator wants its process to die as in a crash. It does not count as one: the next is started at once."""


class SpawnFailed(RouterEvent, frozen=True):
    """The process could not be started."""

    reason: str


class ChannelEnded(RouterEvent, frozen=True):
    """The control channel ended."""

    reason: str  # "": closed without an error, as when the process dies; its exit status tells more


class Exited(RouterEvent, frozen=True):
    """The process was reaped."""

    reason: str


class TimePassed(RouterEvent, frozen=True):
    """Sent a few times a second; deadlines are checked then.

    `computes`: the shard's answer is late, and its main thread has run since the last one, or waits for a core.
    """

    computes: bool = False


class Late(RouterEvent, frozen=True):
    """The router itself did not run for this long: missing answers of that time do not count."""

    gap_s: float


# Messages of the shard that change its state; the supervisor delivers them as they came.
ShardMessage = Linked | Ready | Resumed | InStep | HasHeadroom | Pong | Fatal | Drained | Relays

Event = RouterEvent | ShardMessage


# ---- actions ----


class Action(msgspec.Struct, frozen=True):
    """Something the supervisor has to do, in the order given."""


class Spawn(Action, frozen=True):
    """Start a process for this shard; SpawnFailed when that fails."""


class Kill(Action, frozen=True):
    """SIGKILL the process."""


class Send(Action, frozen=True):
    """Send this on the control channel."""

    message: ControlMessage


class Forget(Action, frozen=True):
    """The process is gone: subtract its connections, close its channel, take back its handed-over sockets."""


class Release(Action, frozen=True):
    """The process lives on as a relay: take it off the shard, then as Forget, without closing its channel."""


class StopRouter(Action, frozen=True):
    """The broker cannot start, for this reason."""

    reason: str


class Report(Action, frozen=True):
    """A line for the log."""

    level: str  # "info", "warning", "error"
    text: str


Result = tuple[ShardState, tuple[Action, ...]]
Handler = Callable[[ShardState, Event, float], Result]


def step(state: ShardState, event: Event, now: float) -> Result:
    """The shard's next state, and the actions to take."""
    return TRANSITIONS[state.phase][type(event)](state, event, now)


def taken_over(state: ShardState, now: float, exit_code: int | None = None) -> Result:
    """What a router makes of a shard that a dead router has left in this state.

    `exit_code`: of its process, if that has ended meanwhile; Exited follows then, or where there is no process. Else
    Resumed must follow, before the shard is silent for too long. One that had not been ready exits by itself, and that
    does not count as a death.
    """
    if not state.has_process:
        return state, ()
    state = _with(state, is_resuming=True, is_suspect=False, ping_sent_at=None, next_ping_at=now)
    if exit_code == 0:
        # It was told to leave, and has left: a shard ends so for no other reason.
        return _with(state, has_drained=True), ()
    if state.phase in (Phase.STARTING, Phase.LINKED):
        return _with(state, deaths=0, is_excused=True, deadline=now + BOOT_DEADLINE_S), ()
    if state.phase is Phase.KILLED:
        return state, (Kill(),)  # the dead router may not have come to do it
    return state, ()


def lasting(state: ShardState) -> ShardState:
    """The state without what changes all the time, to see whether a successor must know of a change."""
    return _with(state, ping_seq=0, ping_sent_at=None, next_ping_at=0.0, is_suspect=False, computed_at=0.0, told_seq=0)


def backoff_s(deaths: int) -> float:
    """The wait before the next start after this many deaths in a row: 0, 0.25, 0.5, … 10 s."""
    if deaths <= 1:
        return 0.0
    return float(min(BACKOFF_LONGEST_S, BACKOFF_FIRST_S * 2 ** min(deaths - 2, 16)))


def _with(state: ShardState, **changes: object) -> ShardState:
    return msgspec.structs.replace(state, **changes)


# ---- handlers ----


def _nothing(state: ShardState, event: Event, now: float) -> Result:
    return state, ()


def _spawn(state: ShardState, event: Event, now: float) -> Result:
    return _spawned(_with(state, is_wanted=True, leave=None, deaths=0, fatal_reason=""), now), (Spawn(),)


def _spawned(state: ShardState, now: float) -> ShardState:
    return _with(
        state,
        phase=Phase.STARTING,
        deadline=now + BOOT_DEADLINE_S,
        starts=state.starts + 1,
        ping_sent_at=None,
        is_suspect=False,
        is_in_step=True,
        has_headroom=True,
        has_drained=False,
        is_resuming=False,
        is_excused=False,
        fatal_reason="",
    )


def _again(state: ShardState, event: Event, now: float) -> Result:
    return _with(state, is_wanted=True, leave=None), ()


def _later(state: ShardState, event: Event, now: float) -> Result:
    # Connections may wait in its listener's queue already: it must accept them before it may retire.
    assert isinstance(event, LeaveWanted)
    return _with(state, is_wanted=False, leave=event.message), ()


def _leave(state: ShardState, event: Event, now: float) -> Result:
    assert isinstance(event, LeaveWanted)
    return _draining(_with(state, is_wanted=False, leave=event.message), now)


def _draining(state: ShardState, now: float) -> Result:
    message = state.leave
    assert isinstance(message, Drain | LameDuck)
    allowed_s = message.deadline_s if isinstance(message, Drain) else message.grace_s + message.duration_s
    state = _with(state, phase=Phase.DRAINING, deadline=now + allowed_s + LEAVE_MARGIN_S)
    return state, (Send(message),)


def _stop(state: ShardState, event: Event, now: float) -> Result:
    state = _with(state, phase=Phase.STOPPING, is_wanted=False, leave=None, deadline=now + STOP_DEADLINE_S)
    return state, (Send(Stop()),)


def _cancel(state: ShardState, event: Event, now: float) -> Result:
    return _with(state, phase=Phase.STOPPED, is_wanted=False, leave=None, deadline=math.inf, is_resuming=False), ()


def _crash(state: ShardState, event: Event, now: float) -> Result:
    # The phase stays: the exit is logged and repaired like that of a process that was killed from outside.
    return _with(state, deaths=0, is_excused=True), (Kill(),)


def _kill(state: ShardState, reason: str) -> Result:
    # The reason is logged once, when the process is reaped, together with what happens next.
    return _with(state, phase=Phase.KILLED, deadline=math.inf, last_reason=reason), (Kill(),)


def _breach(state: ShardState, event: Event, now: float) -> Result:
    return _kill(state, f"it said {type(event).__name__} while {state.phase.value}")


def _linked(state: ShardState, event: Event, now: float) -> Result:
    return _with(state, phase=Phase.LINKED), ()


def _ready(state: ShardState, event: Event, now: float) -> Result:
    state = _with(
        state,
        phase=Phase.READY,
        deadline=math.inf,
        was_ready=True,
        ready_since=now,
        next_ping_at=now,
        ping_sent_at=None,
    )
    if not state.is_wanted:
        return _draining(state, now)
    return state, ()


def _resumed(state: ShardState, event: Event, now: float) -> Result:
    """It serves, whatever of that the dead router knew; and it leaves, if the dead router came to say so."""
    assert isinstance(event, Resumed)
    if not state.is_resuming:
        return _breach(state, event, now)
    was_known = state.phase in (Phase.READY, Phase.DRAINING)
    state = _with(
        state,
        is_resuming=False,
        is_in_step=event.is_in_step,
        has_headroom=event.has_headroom,
        was_ready=True,
        is_excused=False,
        ready_since=state.ready_since if was_known else now,
    )
    if event.leaves_within_s >= 0:
        deadline = now + event.leaves_within_s + LEAVE_MARGIN_S
        return _with(state, phase=Phase.DRAINING, has_drained=event.has_drained, deadline=deadline), ()
    if state.leave is not None:
        return _draining(state, now)
    return _with(state, phase=Phase.READY, deadline=math.inf), ()


def _pong(state: ShardState, event: Event, now: float) -> Result:
    assert isinstance(event, Pong)
    if state.ping_sent_at is None or event.seq != state.ping_seq:
        return _kill(state, f"it answered ping {event.seq}, which was not asked")
    return _with(state, ping_sent_at=None, is_suspect=False, next_ping_at=now + PING_INTERVAL_S), ()


def _in_step(state: ShardState, event: Event, now: float) -> Result:
    assert isinstance(event, InStep)
    return _with(state, is_in_step=event.on), ()


def _headroom(state: ShardState, event: Event, now: float) -> Result:
    assert isinstance(event, HasHeadroom)
    return _with(state, has_headroom=event.on), ()


def _fatal(state: ShardState, event: Event, now: float) -> Result:
    assert isinstance(event, Fatal)
    return _kill(_with(state, fatal_reason="" if event.may_pass else event.reason), event.reason)


def _drained(state: ShardState, event: Event, now: float) -> Result:
    assert isinstance(event, Drained)
    deadline = now + RELAY_MARGIN_S if event.stays else min(state.deadline, now + LEAVE_MARGIN_S)
    return _with(state, has_drained=True, deadline=deadline), ()


def _relays(state: ShardState, event: Event, now: float) -> Result:
    """The process is no shard any more, though it lives; its number is free, as after its exit."""
    assert isinstance(event, Relays)
    if not (state.has_drained or state.is_resuming):
        return _breach(state, event, now)
    base = _with(
        state,
        phase=Phase.STOPPED,
        deadline=math.inf,
        leave=None,
        ping_sent_at=None,
        is_suspect=False,
        is_resuming=False,
        last_reason="",
    )
    text = f"has left, and its process encrypts for {event.clients} connections with TLS that others serve"
    done: tuple[Action, ...] = (Release(), Report("info", text))
    if state.is_wanted:
        return _spawned(_with(base, deaths=0), now), (*done, Spawn())
    return base, done


def _ended(state: ShardState, event: Event, now: float) -> Result:
    assert isinstance(event, ChannelEnded)
    if state.has_drained:
        return state, ()
    # Most often the process is dead already. A living one is useless without its channel.
    return _kill(state, event.reason)


def _booting(state: ShardState, event: Event, now: float) -> Result:
    if now >= state.deadline:
        return _kill(state, f"it was not ready within {BOOT_DEADLINE_S:.0f} s")
    return state, ()


def _serving(state: ShardState, event: Event, now: float) -> Result:
    if state.deaths and now - state.ready_since >= STABLE_AFTER_S:
        state = _with(state, deaths=0)
    return _ping(state, event, now)


def _leaving(state: ShardState, event: Event, now: float) -> Result:
    if now >= state.deadline:
        what = "exit" if state.has_drained else "drain"
        return _kill(_with(state, has_drained=True), f"it did not {what} in time")
    if state.has_drained:
        return state, ()
    return _ping(state, event, now)


def _ping(state: ShardState, event: Event, now: float) -> Result:
    assert isinstance(event, TimePassed)
    if state.ping_sent_at is None:
        if now < state.next_ping_at:
            return state, ()
        state = _with(state, ping_seq=state.ping_seq + 1, ping_sent_at=now)
        return state, (Send(Ping(state.ping_seq)),)
    silent_s = now - state.ping_sent_at
    if event.computes:
        state = _with(state, computed_at=now)
    idle_s = min(silent_s, now - state.computed_at)
    if idle_s >= HUNG_AFTER_S:
        return _kill(state, f"it did not answer for {silent_s:.1f} s")
    if silent_s >= ENDLESS_AFTER_S:
        return _kill(state, f"it computed for {silent_s:.1f} s, and did not answer")
    state = _with(state, is_suspect=silent_s >= SUSPECT_AFTER_S)
    if silent_s >= HUNG_AFTER_S and state.told_seq != state.ping_seq:
        late = f"has been busy for {silent_s:.1f} s: its clients, and PONGs that wait for it, wait meanwhile"
        return _with(state, told_seq=state.ping_seq), (Report("warning", late),)
    return state, ()


def _waiting(state: ShardState, event: Event, now: float) -> Result:
    if now >= state.deadline:
        return _kill(_with(state, has_drained=True), f"it did not stop within {STOP_DEADLINE_S:.0f} s")
    return state, ()


def _retry(state: ShardState, event: Event, now: float) -> Result:
    if now >= state.deadline:
        return _spawned(state, now), (Spawn(),)
    return state, ()


def _late(state: ShardState, event: Event, now: float) -> Result:
    assert isinstance(event, Late)
    asked = state.ping_sent_at
    return _with(
        state,
        deadline=state.deadline + event.gap_s,
        ping_sent_at=None if asked is None else asked + event.gap_s,
        computed_at=state.computed_at + event.gap_s,
    ), ()


def _finish(state: ShardState, event: Event, now: float) -> Result:
    # has_drained: this shard is not restarted for connections in its queue, whatever happens next.
    return _with(state, is_wanted=False, leave=None, has_drained=True), ()


def _gone(state: ShardState, event: Event, now: float) -> Result:
    """A process that was told to stop has ended."""
    return _with(state, phase=Phase.STOPPED, is_wanted=False, deadline=math.inf, is_suspect=False, is_resuming=False), (
        Forget(),
    )


def _died(state: ShardState, event: Event, now: float) -> Result:
    """The process has ended: either it should, or it is replaced."""
    assert isinstance(event, Exited | SpawnFailed)
    reason = state.last_reason if state.phase is Phase.KILLED and state.last_reason else event.reason
    base = _with(
        state,
        phase=Phase.STOPPED,
        deadline=math.inf,
        ping_sent_at=None,
        is_suspect=False,
        is_resuming=False,
        last_reason=reason,
    )
    if state.has_drained:
        done: tuple[Action, ...] = (Forget(), Report("info", f"has left ({reason})"))
        if state.is_wanted:
            return _spawned(_with(base, leave=None, deaths=0), now), (*done, Spawn())
        return _with(base, leave=None), done
    deaths = state.deaths + 1
    base = _with(base, deaths=deaths, all_deaths=state.all_deaths + (not state.is_excused))
    if not state.was_ready and (state.fatal_reason or deaths >= BOOT_ATTEMPTS):
        base = _with(base, is_wanted=False, leave=None)
        if state.is_founder:
            return base, (Forget(), StopRouter(f"cannot start: {reason}"))
        return base, (Forget(), Report("error", f"cannot start, the broker goes on without it: {reason}"))
    if not state.is_wanted and deaths >= BOOT_ATTEMPTS:
        return _with(base, leave=None), (Forget(), Report("error", f"died {deaths} times while leaving: {reason}"))
    # A shard that was ready before and cannot boot now (no memory, no descriptors) may boot later: the broker does
    # not stop for it, so clients of other shards are unaffected.
    delay_s = BACKOFF_LONGEST_S if state.fatal_reason else backoff_s(deaths)
    again = "starting it again" if delay_s == 0 else f"starting it again in {delay_s:g} s"
    told: tuple[Action, ...] = (Forget(), Report("warning", f"died: {reason}; {again}"))
    if delay_s == 0:
        return _spawned(base, now), (*told, Spawn())
    return _with(base, phase=Phase.BACKING_OFF, deadline=now + delay_s), told


# fmt: off
# SpawnFailed follows the step that requested the spawn, so the phase is STARTING then. Last messages of a process may
# be read after its death was noticed, or after it was told to stop: those are ignored.
_ROWS: dict[type[Event], tuple[Handler, ...]] = {
    #              STOPPED    BACKING    STARTING   LINKED     READY      DRAINING   STOPPING   KILLED
    StartWanted:  (_spawn,    _again,    _again,    _again,    _nothing,  _again,    _nothing,  _again),
    LeaveWanted:  (_nothing,  _later,    _later,    _later,    _leave,    _later,    _nothing,  _later),
    StopWanted:   (_nothing,  _cancel,   _stop,     _stop,     _stop,     _stop,     _nothing,  _finish),
    KillWanted:   (_nothing,  _nothing,  _crash,    _crash,    _crash,    _crash,    _crash,    _crash),
    SpawnFailed:  (_nothing,  _nothing,  _died,     _nothing,  _nothing,  _nothing,  _nothing,  _nothing),
    Linked:       (_nothing,  _nothing,  _linked,   _breach,   _breach,   _breach,   _nothing,  _nothing),
    Ready:        (_nothing,  _nothing,  _breach,   _ready,    _breach,   _breach,   _nothing,  _nothing),
    Resumed:      (_nothing,  _nothing,  _resumed,  _resumed,  _resumed,  _resumed,  _nothing,  _nothing),
    InStep:       (_nothing,  _nothing,  _breach,   _in_step,  _in_step,  _in_step,  _nothing,  _nothing),
    HasHeadroom:  (_nothing,  _nothing,  _breach,   _breach,   _headroom, _headroom, _nothing,  _nothing),
    Pong:         (_nothing,  _nothing,  _breach,   _breach,   _pong,     _pong,     _nothing,  _nothing),
    Fatal:        (_nothing,  _nothing,  _fatal,    _fatal,    _fatal,    _fatal,    _nothing,  _nothing),
    Drained:      (_nothing,  _nothing,  _breach,   _breach,   _breach,   _drained,  _nothing,  _nothing),
    Relays:       (_nothing,  _nothing,  _breach,   _breach,   _relays,   _relays,   _nothing,  _nothing),
    ChannelEnded: (_nothing,  _nothing,  _ended,    _ended,    _ended,    _ended,    _nothing,  _nothing),
    Exited:       (_nothing,  _nothing,  _died,     _died,     _died,     _died,     _gone,     _died),
    TimePassed:   (_nothing,  _retry,    _booting,  _booting,  _serving,  _leaving,  _waiting,  _nothing),
    Late:         (_nothing,  _nothing,  _late,     _late,     _late,     _late,     _late,     _nothing),
}
# fmt: on

TRANSITIONS: dict[Phase, dict[type[Event], Handler]] = {
    phase: {event: handlers[number] for event, handlers in _ROWS.items()} for number, phase in enumerate(Phase)
}
