"""Supervision does the right thing for every phase and event, and never gets stuck."""

from __future__ import annotations

import math
from typing import get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnatswarm.router.supervision import supervision as s
from gnatswarm.router.supervision.supervision import Phase, ShardState, step
from gnatswarm.shards.boundary.control import (
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

DRAIN = Drain(10.0)
SAMPLES: dict[type[s.Event], s.Event] = {
    s.StartWanted: s.StartWanted(),
    s.LeaveWanted: s.LeaveWanted(DRAIN),
    s.StopWanted: s.StopWanted(),
    s.KillWanted: s.KillWanted(),
    s.SpawnFailed: s.SpawnFailed("no memory"),
    Linked: Linked("/links/0.b"),
    Ready: Ready(),
    Resumed: Resumed(True, True, 0),
    InStep: InStep(False),
    HasHeadroom: HasHeadroom(False),
    Pong: Pong(1),
    Fatal: Fatal("bad option"),
    Drained: Drained(),
    Relays: Relays(2, 60.0),
    s.ChannelEnded: s.ChannelEnded("undecodable"),
    s.Exited: s.Exited("signal 9"),
    s.TimePassed: s.TimePassed(),
    s.Late: s.Late(1.0),
}


def in_phase(phase: Phase, **changes: object) -> ShardState:
    """A plausible shard of that phase at time 100, wanted, ready before unless said otherwise."""
    state = ShardState(
        phase=phase,
        is_wanted=phase not in (Phase.STOPPED, Phase.DRAINING, Phase.STOPPING),
        leave=DRAIN if phase is Phase.DRAINING else None,
        deadline=110.0,
        was_ready=True,
        ready_since=99.0,
        ping_seq=1,
        ping_sent_at=100.0 if phase in (Phase.READY, Phase.DRAINING) else None,
        starts=1,
        last_reason="it was killed" if phase is Phase.KILLED else "",
    )
    return msgspec.structs.replace(state, **changes)


def kinds(actions: tuple[s.Action, ...]) -> list[str]:
    return [type(action).__name__ for action in actions]


def test_every_phase_has_a_handler_for_every_event() -> None:
    assert set(s.TRANSITIONS) == set(Phase)
    for row in s.TRANSITIONS.values():
        assert set(row) == set(SAMPLES) == {*s.RouterEvent.__subclasses__(), *get_args(s.ShardMessage)}


# phase → {event: (next phase, actions)} at time 100.5; what is not listed changes no phase and does nothing.
EXPECTED: dict[Phase, dict[type[s.Event], tuple[Phase, list[str]]]] = {
    Phase.STOPPED: {s.StartWanted: (Phase.STARTING, ["Spawn"])},
    Phase.BACKING_OFF: {s.StopWanted: (Phase.STOPPED, [])},
    Phase.STARTING: {
        s.StopWanted: (Phase.STOPPING, ["Send"]),
        s.KillWanted: (Phase.STARTING, ["Kill"]),
        s.SpawnFailed: (Phase.STARTING, ["Forget", "Report", "Spawn"]),
        Linked: (Phase.LINKED, []),
        Ready: (Phase.KILLED, ["Kill"]),
        Resumed: (Phase.KILLED, ["Kill"]),
        InStep: (Phase.KILLED, ["Kill"]),
        HasHeadroom: (Phase.KILLED, ["Kill"]),
        Pong: (Phase.KILLED, ["Kill"]),
        Fatal: (Phase.KILLED, ["Kill"]),
        Drained: (Phase.KILLED, ["Kill"]),
        Relays: (Phase.KILLED, ["Kill"]),
        s.ChannelEnded: (Phase.KILLED, ["Kill"]),
        s.Exited: (Phase.STARTING, ["Forget", "Report", "Spawn"]),
    },
    Phase.LINKED: {
        s.StopWanted: (Phase.STOPPING, ["Send"]),
        s.KillWanted: (Phase.LINKED, ["Kill"]),
        Linked: (Phase.KILLED, ["Kill"]),
        Ready: (Phase.READY, []),
        Resumed: (Phase.KILLED, ["Kill"]),
        HasHeadroom: (Phase.KILLED, ["Kill"]),
        Pong: (Phase.KILLED, ["Kill"]),
        Fatal: (Phase.KILLED, ["Kill"]),
        Drained: (Phase.KILLED, ["Kill"]),
        Relays: (Phase.KILLED, ["Kill"]),
        s.ChannelEnded: (Phase.KILLED, ["Kill"]),
        s.Exited: (Phase.STARTING, ["Forget", "Report", "Spawn"]),
    },
    Phase.READY: {
        s.LeaveWanted: (Phase.DRAINING, ["Send"]),
        s.StopWanted: (Phase.STOPPING, ["Send"]),
        s.KillWanted: (Phase.READY, ["Kill"]),
        Linked: (Phase.KILLED, ["Kill"]),
        Ready: (Phase.KILLED, ["Kill"]),
        Resumed: (Phase.KILLED, ["Kill"]),
        Fatal: (Phase.KILLED, ["Kill"]),
        Drained: (Phase.KILLED, ["Kill"]),
        Relays: (Phase.KILLED, ["Kill"]),
        s.ChannelEnded: (Phase.KILLED, ["Kill"]),
        s.Exited: (Phase.STARTING, ["Forget", "Report", "Spawn"]),
    },
    Phase.DRAINING: {
        Relays: (Phase.KILLED, ["Kill"]),  # before Drained
        s.StopWanted: (Phase.STOPPING, ["Send"]),
        s.KillWanted: (Phase.DRAINING, ["Kill"]),
        Linked: (Phase.KILLED, ["Kill"]),
        Ready: (Phase.KILLED, ["Kill"]),
        Resumed: (Phase.KILLED, ["Kill"]),
        Fatal: (Phase.KILLED, ["Kill"]),
        s.ChannelEnded: (Phase.KILLED, ["Kill"]),
        # Connections may wait in its queue: it comes back to serve them, and leaves then.
        s.Exited: (Phase.STARTING, ["Forget", "Report", "Spawn"]),
    },
    Phase.STOPPING: {s.KillWanted: (Phase.STOPPING, ["Kill"]), s.Exited: (Phase.STOPPED, ["Forget"])},
    Phase.KILLED: {
        s.KillWanted: (Phase.KILLED, ["Kill"]),
        s.Exited: (Phase.STARTING, ["Forget", "Report", "Spawn"]),
    },
}


@pytest.mark.parametrize("event", SAMPLES.values(), ids=lambda event: type(event).__name__)
@pytest.mark.parametrize("phase", Phase, ids=lambda phase: phase.value)
def test_each_phase_answers_each_event(phase: Phase, event: s.Event) -> None:
    state, actions = step(in_phase(phase), event, 100.5)
    assert (state.phase, kinds(actions)) == EXPECTED[phase].get(type(event), (phase, []))


@pytest.mark.parametrize("phase", Phase, ids=lambda phase: phase.value)
def test_who_waits_in_the_queue_of_a_shard_is_accepted_until_it_has_drained(phase: Phase) -> None:
    """A broker that stops leaves it to such a shard to refuse connections."""
    assert in_phase(phase).is_listening is (phase in (Phase.READY, Phase.DRAINING))
    drained, _ = step(in_phase(Phase.DRAINING), Drained(), 100.5)
    assert not drained.is_listening


def test_a_process_that_stays_for_tls_gives_its_number_back() -> None:
    drained, _ = step(in_phase(Phase.DRAINING), Drained(), 100.5)
    state, actions = step(drained, Relays(2, 60.0), 100.6)
    assert (state.phase, state.leave, kinds(actions)) == (Phase.STOPPED, None, ["Release", "Report"])
    assert state.deadline == math.inf
    replaced, _ = step(drained, s.StartWanted(), 100.6)
    state, actions = step(replaced, Relays(2, 60.0), 100.7)
    assert (state.phase, kinds(actions)) == (Phase.STARTING, ["Release", "Report", "Spawn"])
    assert not state.has_drained and state.deaths == 0


@pytest.mark.parametrize("phase", [Phase.DRAINING, Phase.STOPPING])
def test_a_shard_that_ended_while_there_was_no_router_is_waited_for_no_more(phase: Phase) -> None:
    """Who asks for all that have not said yet where they stand waited for it for ever."""
    left, _ = s.taken_over(in_phase(phase, is_wanted=False), 100.5, 0)
    assert left.is_resuming
    state, _ = step(left, s.Exited("exit code 0"), 100.6)
    assert (state.phase, state.is_resuming) == (Phase.STOPPED, False)


@pytest.mark.parametrize("phase", [Phase.READY, Phase.DRAINING])
def test_the_next_router_may_be_the_first_to_hear_that_a_process_stays_for_tls(phase: Phase) -> None:
    left, _ = s.taken_over(in_phase(phase), 100.5)
    state, actions = step(left, Relays(2, 60.0), 100.6)
    assert kinds(actions)[0] == "Release"
    assert not state.is_resuming
    assert state.has_process == (phase is Phase.READY)


def test_a_death_that_an_operator_asked_for_counts_as_the_first() -> None:
    state, actions = step(in_phase(Phase.READY, deaths=5), s.KillWanted(), 100.5)
    assert actions == (s.Kill(),)
    state, actions = step(state, s.Exited("killed by SIGKILL"), 100.6)
    assert state.phase is Phase.STARTING and state.deaths == 1
    assert actions[1] == s.Report("warning", "died: killed by SIGKILL; starting it again")


def test_deaths_are_counted_but_for_those_that_somebody_wanted() -> None:
    """An alarm counts them: a restart, a scale and an upgrade start processes, too."""
    dead = s.Exited("killed by SIGKILL")
    state, _ = step(in_phase(Phase.READY), dead, 100.5)
    assert state.all_deaths == 1
    for event in (Linked("l"), Ready()):
        state, _ = step(state, event, 100.6)
    state, _ = step(state, s.KillWanted(), 100.7)
    state, _ = step(state, dead, 100.8)
    assert state.all_deaths == 1  # an operator's
    left, _ = s.taken_over(state, 100.9)
    assert step(left, s.Exited("exit code 1"), 101.0)[0].all_deaths == 1  # its router has gone
    left, _ = step(left, Resumed(True, True, 1), 101.0)  # it was ready, and the router had not heard of it
    state, _ = step(left, dead, 101.1)
    assert state.all_deaths == 2
    for phase in (Phase.READY, Phase.DRAINING, Phase.STOPPING):
        state = in_phase(phase, all_deaths=2)
        if phase is Phase.READY:  # a restart: it leaves, and another comes
            state, _ = step(state, s.LeaveWanted(Drain(1.0)), 101.0)
            state, _ = step(state, s.StartWanted(), 101.0)
        if phase is not Phase.STOPPING:
            state, _ = step(state, Drained(), 101.1)
        assert step(state, s.Exited("exit code 0"), 101.2)[0].all_deaths == 2


def test_who_misses_a_link_gets_no_new_connections() -> None:
    state, actions = step(in_phase(Phase.READY), InStep(False), 100.5)
    assert not state.is_accepting
    assert not actions
    state, actions = step(state, InStep(True), 100.6)
    assert state.is_accepting
    assert not actions


def test_who_has_no_room_says_so_until_it_has_some_or_is_another_process() -> None:
    full, actions = step(in_phase(Phase.READY), HasHeadroom(False), 100.5)
    assert not full.has_headroom
    assert full.is_accepting  # it serves; where nobody has room, connections may as well wait for it
    assert not actions
    assert step(full, HasHeadroom(True), 100.6)[0].has_headroom
    assert step(full, s.Exited("signal 9"), 100.6)[0].has_headroom


def test_silence_first_makes_suspect_then_kills() -> None:
    state, actions = step(in_phase(Phase.READY, ping_sent_at=None, next_ping_at=100.0), s.TimePassed(), 100.0)
    assert actions == (s.Send(Ping(2)),)
    state, actions = step(state, s.TimePassed(), 100.5)
    assert state.is_accepting
    assert not actions
    state, actions = step(state, s.TimePassed(), 101.0)
    assert not state.is_accepting
    assert state.phase is Phase.READY
    answered, _ = step(state, Pong(2), 101.1)
    assert answered.is_accepting
    state, actions = step(state, s.TimePassed(), 102.0)
    assert state.phase is Phase.KILLED
    assert actions == (s.Kill(),)


def test_a_router_that_did_not_run_blames_nobody() -> None:
    state, _ = step(in_phase(Phase.READY), s.Late(5.0), 105.0)
    state, actions = step(state, s.TimePassed(), 105.1)
    assert state.is_accepting
    assert not actions


def test_the_wrong_answer_is_not_an_answer() -> None:
    state, actions = step(in_phase(Phase.READY), Pong(7), 100.1)
    assert actions == (s.Kill(),)
    assert state.phase is Phase.KILLED


def test_back_off_doubles_up_to_ten_seconds_and_is_forgotten_when_stable() -> None:
    assert [s.backoff_s(n) for n in range(1, 10)] == [0, 0.25, 0.5, 1, 2, 4, 8, 10, 10]
    assert s.backoff_s(10_000) == 10
    state, _ = step(in_phase(Phase.READY, deaths=4, ping_sent_at=None), s.TimePassed(), 99.0 + s.STABLE_AFTER_S)
    assert state.deaths == 0


def test_a_founder_that_says_fatal_stops_the_router_with_its_reason() -> None:
    state, _ = step(in_phase(Phase.STARTING, was_ready=False), Fatal("no such account"), 100.0)
    state, actions = step(state, s.Exited("exit code 1"), 100.1)
    assert state.phase is Phase.STOPPED
    assert actions == (s.Forget(), s.StopRouter("cannot start: no such account"))


def test_a_founder_that_dies_three_times_before_ready_stops_the_router() -> None:
    state, actions = step(ShardState(), s.StartWanted(), 0.0)
    now = 0.0
    for attempt in range(s.BOOT_ATTEMPTS):
        assert state.phase is Phase.STARTING, attempt
        state, actions = step(state, s.Exited("exit code 3"), now)
        now += 1.0
        if state.phase is Phase.BACKING_OFF:
            state, _ = step(state, s.TimePassed(), now)
    assert actions == (s.Forget(), s.StopRouter("cannot start: exit code 3"))


def test_a_shard_whose_start_fails_for_now_is_tried_again_and_then_given_up_with_its_reason() -> None:
    state = in_phase(Phase.STARTING, was_ready=False, is_founder=False)
    told: list[str] = []
    for attempt in range(s.BOOT_ATTEMPTS):
        state, _ = step(state, Fatal("file too large", may_pass=True), float(attempt))
        state, actions = step(state, s.Exited("killed by SIGKILL"), float(attempt))
        told += [action.text for action in actions if isinstance(action, s.Report)]
        if state.phase is Phase.BACKING_OFF:
            state, _ = step(state, s.TimePassed(), float(attempt + 1))
    assert (state.phase, state.is_wanted, state.last_reason) == (Phase.STOPPED, False, "file too large")
    assert told == [
        "died: file too large; starting it again",
        "died: file too large; starting it again in 0.25 s",
        "cannot start, the broker goes on without it: file too large",
    ]


def test_a_later_shard_that_cannot_boot_stops_nobody() -> None:
    state, _ = step(in_phase(Phase.STARTING, was_ready=False, is_founder=False), Fatal("no descriptors"), 100.0)
    state, actions = step(state, s.Exited("exit code 1"), 100.1)
    assert state.phase is Phase.STOPPED
    assert kinds(actions) == ["Forget", "Report"]


def test_a_shard_that_was_ready_once_is_tried_again_for_ever() -> None:
    state = in_phase(Phase.STARTING)
    state, _ = step(state, Fatal("no memory"), 100.0)
    state, _ = step(state, s.Exited("exit code 1"), 100.1)
    assert state.phase is Phase.BACKING_OFF
    assert state.deadline == 100.1 + s.BACKOFF_LONGEST_S


def test_leaving_waits_until_ready_so_that_waiting_connections_are_served() -> None:
    state, actions = step(in_phase(Phase.LINKED), s.LeaveWanted(DRAIN), 100.0)
    assert not actions
    state, actions = step(state, Ready(), 100.1)
    assert state.phase is Phase.DRAINING
    assert actions == (s.Send(DRAIN),)


def test_a_drained_shard_that_exits_is_not_replaced() -> None:
    state, _ = step(in_phase(Phase.DRAINING), Drained(), 100.0)
    state, _ = step(state, s.ChannelEnded(""), 100.1)
    assert state.phase is Phase.DRAINING
    state, actions = step(state, s.Exited("exit code 0"), 100.2)
    assert state.phase is Phase.STOPPED
    assert kinds(actions) == ["Forget", "Report"]


def test_scaling_up_while_it_leaves_starts_it_again() -> None:
    state, _ = step(in_phase(Phase.DRAINING), Drained(), 100.0)
    state, _ = step(state, s.StartWanted(), 100.1)
    state, actions = step(state, s.Exited("exit code 0"), 100.2)
    assert state.phase is Phase.STARTING
    assert kinds(actions) == ["Forget", "Report", "Spawn"]


def test_a_shard_that_does_not_stop_is_killed_and_not_replaced() -> None:
    state, actions = step(in_phase(Phase.READY), s.StopWanted(), 100.0)
    assert actions == (s.Send(Stop()),)
    state, actions = step(state, s.TimePassed(), 100.0 + s.STOP_DEADLINE_S)
    assert actions == (s.Kill(),)
    state, _ = step(state, s.Exited("signal 9"), 104.0)
    assert state.phase is Phase.STOPPED


def test_a_drain_that_takes_too_long_ends_in_a_kill_and_no_restart() -> None:
    state, _ = step(in_phase(Phase.READY), s.LeaveWanted(LameDuck(1.0, 2.0)), 100.0)
    state, _ = step(state, s.TimePassed(), 100.1)
    state, actions = step(msgspec.structs.replace(state, ping_sent_at=None), s.TimePassed(), 103.0 + s.LEAVE_MARGIN_S)
    assert actions == (s.Kill(),)
    state, _ = step(state, s.Exited("signal 9"), 106.0)
    assert state.phase is Phase.STOPPED


def test_who_leaves_is_steered_away_from_at_once() -> None:
    ready = in_phase(Phase.READY)
    assert ready.is_accepting
    assert not step(ready, s.LeaveWanted(DRAIN), 100.5)[0].is_accepting
    # Also when it is wanted again before it has left: what comes to it then would be closed.
    again, _ = step(in_phase(Phase.DRAINING), s.StartWanted(), 100.5)
    assert not again.is_accepting


def test_a_shard_that_hangs_while_it_leaves_is_killed_and_comes_back_for_its_queue() -> None:
    state, actions = step(in_phase(Phase.READY, ping_sent_at=None, next_ping_at=101.0), s.LeaveWanted(DRAIN), 100.0)
    assert actions == (s.Send(DRAIN),)
    state, actions = step(state, s.TimePassed(), 101.0)
    assert actions == (s.Send(Ping(2)),)
    state, actions = step(state, s.TimePassed(), 101.0 + s.HUNG_AFTER_S - 0.1)
    assert state.phase is Phase.DRAINING and state.is_suspect and not actions
    state, actions = step(state, s.TimePassed(), 101.0 + s.HUNG_AFTER_S)
    assert state.phase is Phase.KILLED and actions == (s.Kill(),)
    state, actions = step(state, s.Exited("signal 9"), 103.1)
    assert state.phase is Phase.STARTING and kinds(actions) == ["Forget", "Report", "Spawn"]
    assert not state.is_wanted and state.leave == DRAIN
    state, _ = step(state, Linked("/links/0.b"), 103.2)
    state, actions = step(state, Ready(), 103.3)
    assert state.phase is Phase.DRAINING and actions == (s.Send(DRAIN),)


def ticks(state: ShardState, since: float, computes_until: float, until: float) -> s.Result:
    """Four a second, after `since` up to `until`; up to `computes_until` it computes."""
    done: tuple[s.Action, ...] = ()
    for number in range(1, int((until - since) * 4) + 1):
        now = since + number / 4
        state, actions = step(state, s.TimePassed(now <= computes_until), now)
        done += actions
    return state, done


def test_a_shard_that_computes_is_told_of_once_and_serves_on() -> None:
    state, actions = ticks(in_phase(Phase.READY), 100.0, 107.75, 107.75)
    assert state.phase is Phase.READY and state.is_suspect
    late = "has been busy for 2.0 s: its clients, and PONGs that wait for it, wait meanwhile"
    assert actions == (s.Report("warning", late),)
    state, actions = step(state, Pong(state.ping_seq), 107.8)
    assert state.is_accepting and not actions
    state, (asked,) = step(state, s.TimePassed(), 108.5)
    assert asked == s.Send(Ping(2))
    _, actions = ticks(state, 108.5, 111.0, 111.0)
    assert actions == (s.Report("warning", late),)


def test_a_shard_that_computes_and_never_answers_is_killed_before_clients_give_up() -> None:
    state, actions = ticks(in_phase(Phase.READY), 100.0, 120.0, 100.0 + s.ENDLESS_AFTER_S)
    assert state.phase is Phase.KILLED and kinds(actions) == ["Report", "Kill"]
    assert state.last_reason == "it computed for 8.0 s, and did not answer"


def test_a_shard_that_has_computed_and_hangs_then_is_killed_as_long_after_that() -> None:
    state, actions = ticks(in_phase(Phase.READY), 100.0, 101.5, 103.25)
    assert state.phase is Phase.READY and kinds(actions) == ["Report"]
    state, actions = ticks(state, 103.25, 101.5, 103.5)
    assert state.phase is Phase.KILLED and state.last_reason == "it did not answer for 3.5 s"


def test_time_in_which_the_router_did_not_run_counts_for_none_that_had_computed() -> None:
    state, _ = ticks(in_phase(Phase.READY), 100.0, 101.5, 101.5)
    state, _ = step(state, s.Late(5.0), 106.5)
    state, actions = step(state, s.TimePassed(), 106.5 + s.HUNG_AFTER_S - 0.1)
    assert state.phase is Phase.READY
    state, actions = step(state, s.TimePassed(), 106.5 + s.HUNG_AFTER_S)
    assert actions == (s.Kill(),)


@pytest.mark.parametrize(("message", "allowed_s"), [(Drain(6.0), 6.0), (LameDuck(1.0, 2.0), 3.0)])
def test_a_shard_that_answers_but_does_not_leave_in_time_is_killed_for_good(
    message: Drain | LameDuck, allowed_s: float
) -> None:
    state, _ = step(in_phase(Phase.READY, ping_sent_at=None), s.LeaveWanted(message), 100.0)
    now, until = 100.0, 100.0 + allowed_s + s.LEAVE_MARGIN_S
    pings = 0
    while now < until - 0.25:
        now += 0.25
        state, actions = step(state, s.TimePassed(), now)
        assert state.phase is Phase.DRAINING and "Kill" not in kinds(actions), now
        if actions:
            pings += 1
            state, actions = step(state, Pong(state.ping_seq), now)
    assert pings > 2
    state, actions = step(state, s.TimePassed(), until)
    assert actions == (s.Kill(),)
    state, actions = step(state, s.Exited("signal 9"), until + 0.1)
    assert state.phase is Phase.STOPPED and "Spawn" not in kinds(actions)


def test_a_shard_that_has_left_and_does_not_exit_is_killed_without_waiting_for_its_whole_time() -> None:
    state, _ = step(in_phase(Phase.READY, ping_sent_at=None), s.LeaveWanted(Drain(600.0)), 100.0)
    state, _ = step(state, Drained(), 101.0)
    state, actions = step(state, s.TimePassed(), 101.0 + s.LEAVE_MARGIN_S - 0.1)
    assert not actions
    state, actions = step(state, s.TimePassed(), 101.0 + s.LEAVE_MARGIN_S)
    assert actions == (s.Kill(),)
    state, _ = step(state, s.Exited("signal 9"), 104.0)
    assert state.phase is Phase.STOPPED


def test_who_says_it_has_left_gets_no_more_time_for_it() -> None:
    state, _ = step(in_phase(Phase.DRAINING, deadline=100.5), Drained(), 100.4)
    assert step(state, s.TimePassed(), 100.5)[1] == (s.Kill(),)


messages: st.SearchStrategy[Drain | LameDuck] = st.sampled_from([DRAIN, LameDuck(1.0, 2.0)])
events = st.one_of(
    st.sampled_from([SAMPLES[kind] for kind in SAMPLES if kind not in (s.LeaveWanted, Pong)]),
    messages.map(s.LeaveWanted),
    st.integers(0, 5).map(Pong),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(events, st.floats(0, 5)), max_size=40), st.booleans(), st.booleans())
def test_whatever_happened_a_well_behaved_shard_ends_ready_or_stopped(
    history: list[tuple[s.Event, float]], founder: bool, silent: bool
) -> None:
    """After any history: a shard that behaves becomes ready or stopped, one that says nothing is killed each time."""
    now = 0.0
    state, _ = step(ShardState(is_founder=founder), s.StartWanted(), now)
    to_exit = False
    for event, later in history:
        now += later
        if isinstance(event, s.Exited | s.SpawnFailed) and not state.has_process:
            continue
        state, actions = step(state, event, now)
        for action in actions:
            to_exit = (to_exit or isinstance(action, s.Kill)) and not isinstance(action, s.Forget)
        assert kinds(actions).count("Spawn") <= 1
        # A process is only ever replaced after it was reaped.
        if "Spawn" in kinds(actions) and not isinstance(event, s.StartWanted | s.TimePassed):
            assert isinstance(event, s.Exited | s.SpawnFailed)

    killed_again = 0
    for _ in range(3000):
        if state.phase is Phase.STOPPED or (not silent and state.phase is Phase.READY and not state.is_suspect):
            break
        now += 0.25
        answers: list[s.Event] = []
        if state.phase is Phase.KILLED:
            answers = [s.Exited("signal 9")]
            killed_again += 1
        elif silent:
            pass
        elif state.phase is Phase.STARTING:
            answers = [Linked("/links/0.b"), Ready()]
        elif state.phase is Phase.DRAINING:
            answers = [Drained(), s.Exited("exit code 0")]
        elif state.phase is Phase.STOPPING:
            answers = [s.Exited("exit code 0")]
        elif state.phase is Phase.LINKED:
            answers = [Ready()]
        elif state.ping_sent_at is not None:
            answers = [Pong(state.ping_seq)]
        for answer in [*answers, s.TimePassed()]:
            state, _ = step(state, answer, now)
    else:
        # Silent, but once ready: it is tried for ever, and each try has an end.
        assert silent and state.was_ready and killed_again > 5


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(events, st.floats(0, 5)), max_size=30))
def test_after_stop_no_process_is_ever_started(history: list[tuple[s.Event, float]]) -> None:
    now = 0.0
    state, _ = step(ShardState(), s.StartWanted(), now)
    for event, later in history:
        now += later
        state, _ = step(state, event, now)
    state, _ = step(state, s.StopWanted(), now)
    for _ in range(100):
        now += 0.25
        happened: list[s.Event] = [s.TimePassed()]
        if state.phase is Phase.KILLED:
            happened.append(s.Exited("signal 9"))
        for event in happened:
            state, actions = step(state, event, now)
            assert "Spawn" not in kinds(actions)
        if state.phase is Phase.STOPPED:
            return
    raise AssertionError(f"still {state.phase}")


class TestTakenOver:
    """What a router makes of the states that a dead one has left."""

    @pytest.mark.parametrize("phase", [Phase.STOPPED, Phase.BACKING_OFF])
    def test_where_there_was_no_process_nothing_changes(self, phase: Phase) -> None:
        assert s.taken_over(in_phase(phase), 200.0) == (in_phase(phase), ())

    def test_a_shard_that_served_serves_on_and_is_asked_at_once(self) -> None:
        state, actions = s.taken_over(in_phase(Phase.READY, is_suspect=True), 200.0)
        assert state.is_accepting and not actions
        state, actions = step(state, s.TimePassed(), 200.0)
        assert kinds(actions) == ["Send"]
        state, actions = step(state, Resumed(False, False, 0), 200.1)
        assert not state.is_in_step and not state.has_headroom and not actions
        state, actions = step(state, Pong(state.ping_seq), 200.2)
        assert state.phase is Phase.READY and state.deaths == 0

    def test_one_that_does_not_resume_is_killed_as_silent(self) -> None:
        state, _ = s.taken_over(in_phase(Phase.READY), 200.0)
        state, _ = step(state, s.TimePassed(), 200.0)
        state, actions = step(state, s.TimePassed(), 200.0 + s.HUNG_AFTER_S)
        assert state.phase is Phase.KILLED and kinds(actions) == ["Kill"]

    @pytest.mark.parametrize("phase", [Phase.STARTING, Phase.LINKED])
    def test_one_that_the_dead_router_did_not_hear_serve_is_ready(self, phase: Phase) -> None:
        state, _ = s.taken_over(in_phase(phase, was_ready=False), 200.0)
        state, actions = step(state, Resumed(True, True, 0), 200.1)
        assert (state.phase, state.was_ready, state.ready_since, actions) == (Phase.READY, True, 200.1, ())

    @pytest.mark.parametrize("phase", [Phase.STARTING, Phase.LINKED])
    def test_one_that_had_not_been_ready_is_started_again_at_once(self, phase: Phase) -> None:
        state, _ = s.taken_over(in_phase(phase, was_ready=False, deaths=2), 200.0)
        state, actions = step(state, s.Exited("exit code 1"), 200.1)
        assert state.phase is Phase.STARTING
        assert kinds(actions) == ["Forget", "Report", "Spawn"]

    def test_one_that_died_meanwhile_is_started_again(self) -> None:
        state, _ = s.taken_over(in_phase(Phase.READY), 200.0, exit_code=-9)
        state, actions = step(state, s.Exited("killed by SIGKILL"), 200.0)
        assert kinds(actions) == ["Forget", "Report", "Spawn"]

    def test_one_that_left_meanwhile_is_not(self) -> None:
        state, _ = s.taken_over(in_phase(Phase.DRAINING), 200.0, exit_code=0)
        state, actions = step(state, s.Exited("exit code 0"), 200.0)
        assert state.phase is Phase.STOPPED
        assert kinds(actions) == ["Forget", "Report"]

    def test_one_that_leaves_goes_on_leaving(self) -> None:
        state, _ = s.taken_over(in_phase(Phase.DRAINING), 200.0)
        state, actions = step(state, Resumed(True, True, 0, leaves_within_s=5.0), 200.0)
        assert (state.phase, state.deadline, actions) == (Phase.DRAINING, 205.0 + s.LEAVE_MARGIN_S, ())

    def test_one_that_was_not_told_to_leave_is_told_now(self) -> None:
        state, _ = s.taken_over(in_phase(Phase.DRAINING), 200.0)
        state, actions = step(state, Resumed(True, True, 0), 200.0)
        assert actions == (s.Send(DRAIN),)
        assert state.phase is Phase.DRAINING

    def test_one_that_leaves_though_the_record_says_it_serves_comes_back(self) -> None:
        """The dead router told it, and died before it had noted that: nobody wants fewer shards."""
        state, _ = s.taken_over(in_phase(Phase.READY), 200.0)
        state, _ = step(state, Resumed(True, True, 0, leaves_within_s=5.0), 200.0)
        assert state.phase is Phase.DRAINING and not state.is_accepting
        state, _ = step(state, Drained(), 201.0)
        state, actions = step(state, s.Exited("exit code 0"), 201.0)
        assert kinds(actions) == ["Forget", "Report", "Spawn"]

    def test_one_that_was_to_be_killed_is_killed(self) -> None:
        state, actions = s.taken_over(in_phase(Phase.KILLED), 200.0)
        assert kinds(actions) == ["Kill"]
        assert step(state, s.Exited("killed by SIGKILL"), 200.1)[0].phase is Phase.STARTING

    def test_nobody_resumes_twice(self) -> None:
        state, _ = s.taken_over(in_phase(Phase.READY), 200.0)
        state, _ = step(state, Resumed(True, True, 0), 200.0)
        state, actions = step(state, Resumed(True, True, 0), 200.1)
        assert state.phase is Phase.KILLED and kinds(actions) == ["Kill"]

    @pytest.mark.parametrize("phase", Phase, ids=lambda phase: phase.value)
    @pytest.mark.parametrize("exit_code", [None, 0, 1, -9])
    def test_a_state_survives_the_record(self, phase: Phase, exit_code: int | None) -> None:
        state = in_phase(phase)
        again = msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=ShardState)
        assert s.taken_over(again, 200.0, exit_code) == s.taken_over(state, 200.0, exit_code)


def test_a_shard_that_leaves_and_was_wanted_again_for_a_moment_stays_away():
    state, _ = step(in_phase(Phase.READY), s.LeaveWanted(DRAIN), 100.0)
    state, _ = step(state, s.StartWanted(), 100.1)
    state, actions = step(state, s.LeaveWanted(DRAIN), 100.2)
    assert (state.phase, actions) == (Phase.DRAINING, ())  # it goes on with what it was told
    state, _ = step(state, Drained(), 100.3)
    state, actions = step(state, s.Exited("exit code 0"), 100.4)
    assert state.phase is Phase.STOPPED
    assert s.Spawn() not in actions
