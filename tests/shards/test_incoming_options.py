"""New options reach a shard with their users in parts: they are read in turns, and in force as a whole."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from gnatswarm.broker.access.user_index import UserIndex
from gnatswarm.broker.options import Options, User
from gnatswarm.shards import incoming_options
from gnatswarm.shards.boundary import control
from gnatswarm.shards.boundary.control import ControlMessage, Drain, Ping, ReopenLog, Stop
from gnatswarm.shards.incoming_options import IncomingOptions
from gnatswarm.shards.worker import Worker


def users(*names: str) -> tuple[User, ...]:
    return tuple(User(name, "secret") for name in names)


class Shard:
    """Notes what happens; turn() is one turn of its loop."""

    def __init__(self, *present: str) -> None:
        self.ready: deque[Callable[[], None]] = deque()
        self.done: list[object] = []
        self.steps = 0
        loop: Any = self
        self.incoming = IncomingOptions(loop, self.walk, self.apply, self.on_message, users(*present))

    def call_soon(self, call: Callable[..., None], *words: object) -> None:
        self.ready.append(partial(call, *words))

    def turn(self) -> None:
        for _ in range(len(self.ready)):
            self.ready.popleft()()

    def walk(self, options: Options, listeners: set[str]) -> Iterator[None]:
        for n in range(self.steps):
            self.done.append(n)
            yield
        listeners.add("A")

    def apply(self, options: Options, index: UserIndex, generation: int, listeners: set[str]) -> None:
        assert index.names == {user.name: user for user in options.users}
        assert listeners == {"A"}
        self.done.append((generation, [user.name for user in options.users]))

    def on_message(self, message: ControlMessage) -> None:
        if not self.incoming.take(message):
            self.done.append(message)


@pytest.fixture(autouse=True)
def _one_user_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "USERS_AT_ONCE", 1)
    monkeypatch.setattr(incoming_options, "GIVEN_UP_AT_ONCE", 1)


def tell(shard: Shard, generation: int, *names: str) -> None:
    options = Options(users=users(*names))
    for part in control.users_in_parts(options.users):
        shard.on_message(part)
    shard.on_message(control.reload_of(options, generation))


def test_options_without_users_are_in_force_at_once() -> None:
    shard = Shard()
    tell(shard, 1)
    assert shard.done == [(1, [])]


def test_users_are_read_in_turns_and_in_force_together_with_the_last() -> None:
    shard = Shard()
    tell(shard, 1, "a", "b", "c")
    assert shard.done == []
    shard.turn()
    assert shard.done == []
    shard.turn()
    assert shard.done == [(1, ["a", "b", "c"])]


def test_imports_and_exports_are_changed_in_turns_before_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incoming_options, "STEPS_AT_ONCE", 2)
    shard = Shard()
    shard.steps = 3
    tell(shard, 1, "a")
    shard.on_message(ReopenLog())
    shard.on_message(Ping(1))
    assert shard.done == [0, 1, Ping(1)]
    shard.turn()
    assert shard.done[3:] == [2, (1, ["a"]), ReopenLog()]


def test_a_shard_that_ends_changes_no_more_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incoming_options, "STEPS_AT_ONCE", 2)
    shard = Shard()
    shard.steps = 3
    tell(shard, 1)
    shard.incoming.close()
    shard.turn()
    assert shard.done == [0, 1] and not shard.ready


def test_a_shard_that_reads_users_says_that_it_lives_and_can_be_stopped() -> None:
    """The router kills one that does not answer."""
    shard = Shard()
    tell(shard, 1, "a", "b", "c")
    for message in (Ping(1), Stop()):
        shard.on_message(message)
    assert shard.done == [Ping(1), Stop()]


def test_what_the_router_says_behind_new_options_waits_for_them() -> None:
    shard = Shard()
    tell(shard, 1, "a", "b")
    shard.on_message(ReopenLog())
    tell(shard, 2, "c", "d")
    shard.on_message(Drain(1.0))
    shard.turn()
    assert shard.done == [(1, ["a", "b"]), ReopenLog()]
    shard.turn()
    assert shard.done[2:] == [(2, ["c", "d"]), Drain(1.0)]


@pytest.mark.parametrize("is_reading", [False, True], ids=["idle", "reading"])
def test_what_a_router_told_by_half_when_it_died_counts_for_nothing(is_reading: bool) -> None:
    shard = Shard()
    if is_reading:
        tell(shard, 1, "a", "b")
    for part in control.users_in_parts(users("x", "y")):
        shard.on_message(part)
    shard.incoming.on_new_router()
    shard.turn()
    tell(shard, 2, "c")
    assert shard.done == [(1, ["a", "b"])] * is_reading + [(2, ["c"])]


def test_where_a_shard_stands_is_said_when_what_it_reads_is_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next router may hold the options of before: it would not know that those being read come into force later."""
    shard = Shard()
    said: list[list[object]] = []
    worker: Any = SimpleNamespace(
        _loop=shard,
        _incoming=shard.incoming,
        _channel=Mock(),
        _on_message=shard.on_message,
        _on_control_closed=None,
        _is_ready=True,
        _is_relay=True,  # which says least
        _tell_relayed=lambda: said.append(list(shard.done)),
        done=Future(),
    )
    worker._resume = partial(Worker._resume, worker)
    monkeypatch.setattr(control, "Channel", Mock())
    tell(shard, 1, "a", "b")
    tell(shard, 2, "c", "d")
    worker._resume(Mock())
    assert said == []
    while shard.ready:
        shard.turn()
    assert said == [[(1, ["a", "b"]), (2, ["c", "d"])]]


def test_a_shard_that_ends_reads_no_more() -> None:
    shard = Shard()
    tell(shard, 1, "a", "b")
    shard.incoming.close()
    shard.turn()
    assert shard.done == [] and not shard.ready


def test_users_that_are_in_force_no_more_are_given_up_in_turns() -> None:
    """They are freed where nobody uses them: thousands take a while."""
    shard = Shard("a", "b", "c")
    tell(shard, 1, "d")
    left = []
    while shard.ready:
        left.append(len(shard.incoming._former))
        shard.turn()
    assert left == [2, 1] and not shard.incoming._former
    tell(shard, 2)
    assert not shard.incoming._former
