"""What a router does that takes over: strangers are killed, missed reloads told, what was wanted is begun."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gnatswarm.broker.options import Options, User
from gnatswarm.router.supervision.broker import SupervisedShard
from gnatswarm.router.supervision.supervision import Phase, ShardState
from gnatswarm.router.supervision.supervisor import Supervisor
from gnatswarm.shards.boundary.control import (
    LameDuck,
    LinkedShards,
    Reload,
    ReloadUsers,
    ReopenLog,
    Resumed,
    decode_users,
)
from gnatswarm.shards.boundary.keeping import Child


class Broker(SimpleNamespace):
    """As much of a broker as taking over needs."""

    def __init__(self, *shards: SupervisedShard, wanted: int) -> None:
        self.done: list[tuple[str, int]] = []
        keeper = SimpleNamespace(
            pid=1,
            kill=lambda pid: self.done.append(("kill", pid)),
            forgotten=lambda pid: self.done.append(("forgotten", pid)),
            reach=lambda pid, descriptor: None,
        )
        super().__init__(
            shards=list(shards), members=list(shards), wanted=wanted, keeper=keeper, relays=[], gateway=None,
            is_leaving=False, is_handoff=False, is_stopping=False, is_serving=True, generation=2, options=Options(),
            tell_all=lambda message: None, rolling=None, remember=lambda: None, cluster_news=None,
            page=SimpleNamespace(connections=0),
            listener_groups=SimpleNamespace(steer=lambda numbers: None),
            runtime_files=SimpleNamespace(link_dir="/dev/null/no-directory"),
        )  # fmt: skip

    def shard_of(self, process: object) -> SupervisedShard | None:
        return next((one for one in self.shards if one.process is process), None)


def a_supervisor(broker: Broker) -> Supervisor:
    nothing: Any = SimpleNamespace(observe=lambda *_states, **_named: None)
    given: Any = broker
    return Supervisor(given, notifier=nothing, audience=nothing)


def a_shard(number: int, **state: Any) -> SupervisedShard:
    shard = SupervisedShard(number, is_founder=True)
    shard.state = ShardState(**state)
    return shard


def test_a_process_that_the_record_does_not_know_is_killed():
    broker = Broker(a_shard(0), wanted=1)
    children = [Child(77, 0, None), Child(78, 0, 9)]
    left: Any = SimpleNamespace(
        record=SimpleNamespace(members=[SimpleNamespace(pid=0, boot_id="", booted_us=0)], relays=[]),
        children=children,
        held={},
    )
    a_supervisor(broker).take_over(left)
    assert ("kill", 77) in broker.done
    assert ("forgotten", 78) in broker.done


def test_a_shard_that_missed_a_reload_gets_it():
    shard = a_shard(0, phase=Phase.READY, is_wanted=True, is_resuming=True)
    said: list[object] = []
    process: Any = SimpleNamespace(boot_id="b", send=said.append)
    shard.process = process
    broker = Broker(shard, wanted=1)
    supervisor = a_supervisor(broker)
    supervisor._on_message(process, Resumed(True, True, 2))
    assert not [one for one in said if isinstance(one, Reload)]
    shard.state = ShardState(phase=Phase.READY, is_wanted=True, is_resuming=True)
    broker.options = Options(users=(User("a", "secret"),))
    said.clear()
    supervisor._on_message(process, Resumed(True, True, 1))
    users, reload = said
    assert isinstance(users, ReloadUsers) and decode_users(users.users) == [User("a", "secret")]
    assert reload == Reload(Options(), 2)


def test_what_the_dead_router_had_not_come_to_start_is_started(monkeypatch):
    shard = a_shard(0, phase=Phase.READY, is_wanted=True)
    process: Any = SimpleNamespace(boot_id="b", send=lambda message: None)
    shard.process = process
    broker = Broker(shard, wanted=2)
    told: list[object] = []
    broker.tell_all = told.append
    supervisor = a_supervisor(broker)
    started: list[int] = []
    monkeypatch.setattr(supervisor, "_spawn", lambda one: started.append(one.number))
    supervisor._finish_what_was_begun()
    assert started == [1]
    assert told == [ReopenLog()]


def test_lame_duck_mode_goes_on(monkeypatch):
    """The record says so before any shard is told."""
    ready, dead = a_shard(0, phase=Phase.READY, is_wanted=True), a_shard(1, phase=Phase.BACKING_OFF, is_wanted=True)
    said: list[object] = []
    process: Any = SimpleNamespace(boot_id="b", send=said.append)
    ready.process = process
    broker = Broker(ready, dead, wanted=2)
    broker.is_leaving = True
    supervisor = a_supervisor(broker)
    monkeypatch.setattr(supervisor, "_spawn", lambda one: pytest.fail(f"shard {one.number} is started"))
    supervisor._finish_what_was_begun()
    limits = broker.options.limits
    assert [one for one in said if not isinstance(one, LinkedShards)] == [
        LameDuck(limits.lame_duck_grace_s, limits.lame_duck_duration_s - limits.lame_duck_grace_s)
    ]
    assert (ready.state.phase, dead.state.phase) == (Phase.DRAINING, Phase.STOPPED)
