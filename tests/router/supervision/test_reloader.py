"""What the router does with a configuration that was read again: every shard is told all of it, or nothing is done."""

from __future__ import annotations

import asyncio
import errno
import gc
import resource
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from gnatswarm.broker.limits import Limits
from gnatswarm.broker.options import Logging, Options, Sharding, User
from gnatswarm.router.config import excerpt
from gnatswarm.router.config.conf_tree import ConfigError, Position, Problem
from gnatswarm.router.supervision import opening
from gnatswarm.router.supervision import reloader as reloader_module
from gnatswarm.router.supervision.reload_echo import ReloadEcho
from gnatswarm.router.supervision.reloader import Reloader
from gnatswarm.shards.boundary import logs
from gnatswarm.shards.boundary.control import (
    USERS_AT_ONCE,
    ControlMessage,
    Framer,
    Reload,
    ReloadUsers,
    ToShard,
    decode_users,
)
from tests.support.turns import until


@dataclass
class Router:
    """What a reload sees of a broker; what it had done is in `steps`, in order."""

    options: Options
    configured_us: int = 0
    generation: int = 0
    pid: int = 1
    rolling: object = None
    is_stopping: bool = False
    cannot_scale: str = ""
    wanted: int = 2
    reload_failed_us: int = 0
    steps: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.shards = [
            SimpleNamespace(number=0, name="Shard 0", process=object()),
            SimpleNamespace(number=1, name="Shard 1", process=None),
        ]
        self.notifier = SimpleNamespace(
            reloading=lambda: self.steps.append("reloading"),
            reloaded=lambda why="": self.steps.append(f"reloaded: {why}"),
        )
        self.runtime_files = SimpleNamespace(write_pid_file=lambda path: self.steps.append(f"pid file {path}"))
        self.holdings: Any = SimpleNamespace(is_answered=True, are_options_late=False)
        self.echo = ReloadEcho(self.notifier)  # type: ignore[arg-type]

    @property
    def members(self) -> list[SimpleNamespace]:
        return self.shards

    def adopt(self, options: Options) -> None:
        self.options = options
        self.configured_us = 1
        self.generation += 1

    def remember(self) -> None:
        """It is in the record of the broker that a reload failed, or did not."""

    def bound_ports(self) -> dict[str, int]:
        return {}

    def tell_all(self, message: ControlMessage) -> None:
        self.steps.append(message)

    def tell_all_encoded(self, encoded: bytes) -> None:
        self.steps += Framer(ToShard).feed(encoded)

    def scale(self, shards: int) -> str:
        self.steps.append(f"scale {shards}")
        return self.cannot_scale

    def take_back(self, *, shards: int) -> None:
        self.options = replace(self.options, sharding=replace(self.options.sharding, shards=shards))

    def reload(self, reparse: Callable[[Options], Options] | None) -> None:
        asyncio.run(self.reloader(reparse).reload())

    def reloader(self, reparse: Callable[[Options], Options] | None) -> Reloader:
        broker: Any = self
        notifier: Any = self.notifier
        return Reloader(
            broker,
            broker,
            notifier,
            self.echo,
            reparse=reparse,
            on_reloaded=lambda: self.steps.append("monitoring"),
            on_scaled_up=lambda: self.steps.append("even"),
        )


@pytest.mark.parametrize(
    "wanted",
    [
        Options(limits=Limits(max_connections=3)),
        Options(limits=Limits(max_payload_bytes=3)),
        Options(auth_token="t"),
        Options(pid_file="pid"),
    ],
    ids=["connections", "payload", "token", "pid file"],
)
def test_every_shard_is_told_the_whole_of_it(wanted: Options) -> None:
    router = Router(Options())
    router.reload(lambda _: wanted)
    assert router.options is wanted and router.configured_us > 0
    assert [step for step in router.steps if isinstance(step, Reload)] == [Reload(wanted, 1)]
    # Whoever looks afterwards finds the new options with the router before a shard can have answered.
    assert router.steps.index("monitoring") < router.steps.index(Reload(wanted, 1))
    assert ("pid file pid" in router.steps) is bool(wanted.pid_file)


def test_users_are_told_in_parts_before_the_options() -> None:
    """A shard reads them in turns; it has all when the Reload comes."""
    router = Router(Options())
    wanted = Options(users=tuple(User(f"u{n}", "secret") for n in range(2 * USERS_AT_ONCE + 1)))
    router.reload(lambda _: wanted)
    *parts, last = [step for step in router.steps if isinstance(step, ReloadUsers | Reload)]
    assert last == Reload(Options(), 1)
    read = [decode_users(part.users) for part in parts if isinstance(part, ReloadUsers)]
    assert [len(users) for users in read] == [USERS_AT_ONCE, USERS_AT_ONCE, 1]
    assert tuple(user for users in read for user in users) == wanted.users


def test_a_reload_is_done_when_every_shard_that_was_told_has_said_so_or_is_gone() -> None:
    router = Router(Options())
    router.shards = [SimpleNamespace(number=number, process=object()) for number in range(2)]
    router.reload(lambda _: Options(limits=Limits(max_connections=3)))
    router.echo.on_reloaded(0, 1)
    router.echo.on_reloaded(0, 1)
    assert "reloaded: " not in router.steps
    router.echo.on_reloaded(1, 1)
    router.echo.on_gone(1)  # said it, and is gone later
    assert router.steps.count("reloaded: ") == 1


def test_a_shard_that_confirms_the_reload_before_has_not_confirmed_this_one() -> None:
    router = Router(Options())
    for most in (3, 4):
        router.reload(lambda _, most=most: Options(limits=Limits(max_connections=most)))  # type: ignore[misc]
    router.echo.on_reloaded(0, 1)
    assert not router.echo.is_complete and "reloaded: " not in router.steps
    router.echo.on_reloaded(0, 2)
    assert router.echo.is_complete and router.steps.count("reloaded: ") == 1


def test_where_no_shard_has_a_process_a_reload_is_done_at_once() -> None:
    """A service manager waits for the word that it is."""
    router = Router(Options())
    router.shards = [SimpleNamespace(number=0, process=None)]
    router.reload(lambda _: Options(limits=Limits(max_connections=3)))
    assert router.steps.count("reloaded: ") == 1


def test_a_shard_without_a_process_is_not_waited_for() -> None:
    """It gets the options with which it starts."""
    router = Router(Options())
    assert [shard.number for shard in router.shards if shard.process is None] == [1]
    router.reload(lambda _: Options(limits=Limits(max_connections=3)))
    router.echo.on_reloaded(0, 1)
    assert "reloaded: " in router.steps


def test_other_shards_come_and_go_after_all_were_told() -> None:
    router = Router(Options(sharding=Sharding(shards=2)))
    wanted = Options(sharding=Sharding(shards=3), limits=Limits(max_connections=3))
    router.reload(lambda _: wanted)
    assert router.steps[-2:] == ["scale 3", "even"]
    assert Reload(wanted, 1) in router.steps
    router.wanted = 3
    router.reload(lambda _: wanted)
    assert router.steps.count("scale 3") == 1
    router.reload(lambda _: Options(sharding=Sharding(shards=1)))
    assert router.steps[-1] == "scale 1"


def test_without_a_number_of_shards_there_are_as_many_as_a_start_would_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "usable_cores", lambda: 3)
    router = Router(Options(sharding=Sharding(shards=1)), wanted=1)
    router.reload(lambda _: Options())
    assert router.steps[-2:] == ["scale 3", "even"]


def test_shards_that_could_not_be_added_are_asked_for_again_by_the_next_reload() -> None:
    router = Router(Options(sharding=Sharding(shards=2)), cannot_scale="the broker is still starting")
    wanted = Options(sharding=Sharding(shards=3), auth_token="t")
    outcome = asyncio.run(router.reloader(lambda _: wanted).reload())
    assert outcome.answer.problems == ("the broker is still starting",)
    assert [change.field for change in outcome.answer.changes] == ["auth_token"]
    router.cannot_scale = ""
    router.reload(lambda _: wanted)
    assert router.steps.count("scale 3") == 2
    assert router.options == wanted


def test_what_a_start_would_remark_is_said_of_what_a_reload_brings(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _what: (1000, 1000))
    router = Router(Options(notices=("said before",), limits=Limits(max_connections=9)))
    more = Options(notices=("said before", "new"), limits=Limits(max_connections=9))
    wanted = iter((more, more, replace(more, limits=Limits(max_connections=9000))))
    for _ in range(3):
        router.reload(lambda _: next(wanted))
    router.reload(lambda _: replace(router.options, notices=("refused",), port=5))
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert said[0] == "new" and "max_connections is 9000, but about" in said[1] and len(said) == 2


def test_one_change_that_needs_a_restart_leaves_everything_as_it_was() -> None:
    router = Router(before := Options())
    router.reload(lambda _: Options(port=5, limits=Limits(max_connections=3), pid_file="pid"))
    assert router.options is before and router.configured_us == 0
    assert router.steps == ["reloading", "reloaded: the reload failed and changed nothing, the log says why"]


def test_a_configuration_that_cannot_be_read_leaves_everything_as_it_was() -> None:
    router = Router(before := Options())

    def reparse(_: Options) -> Options:
        raise ConfigError([])

    for parse in (reparse, None):
        router.reload(parse)
        assert router.options is before
        assert router.steps[-1] == "reloaded: the reload failed and changed nothing, the log says why"
    assert not [step for step in router.steps if isinstance(step, Reload)]


def test_a_mistake_is_told_without_the_lines_of_the_file_where_there_is_no_descriptor_to_read_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unread(error: ConfigError) -> str:
        raise OSError(errno.EMFILE, "Too many open files")

    def reparse(_: Options) -> Options:
        raise ConfigError([Problem(Position("b.conf", 1, 2), "what is wrong", "what to do")])

    monkeypatch.setattr(excerpt, "with_lines", unread)
    outcome = asyncio.run(Router(Options()).reloader(reparse).reload())
    assert outcome.refused == ("b.conf:1:2: what is wrong — what to do",)


def test_an_error_that_nobody_expected_is_the_end_of_the_reload(caplog: pytest.LogCaptureFixture) -> None:
    router = Router(before := Options())

    def reparse(_: Options) -> Options:
        raise RecursionError("as deep as it goes")

    outcome = asyncio.run(router.reloader(reparse).reload())
    assert outcome.refused == ("an unexpected error, the log says where: RecursionError: as deep as it goes",)
    assert router.options is before and router.reload_failed_us > 0
    assert router.steps == ["reloading", "reloaded: the reload failed, the log says why"]
    assert "a reload failed" in caplog.text and "as deep as it goes" in caplog.text


def test_a_log_file_that_cannot_be_opened_leaves_logging_as_it_was_and_the_rest_is_reloaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_given: object, **_named: object) -> None:
        raise OSError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(logs, "configure", refuse)
    old = Options()
    wanted = Options(auth_token="t", logging=Logging(file="log"))
    router = Router(old)
    router.reload(lambda _: wanted)
    (told,) = [step for step in router.steps if isinstance(step, Reload)]
    assert told.options == router.options == Options(auth_token="t", logging=old.logging)
    assert router.reload_failed_us > 0  # as /varz and /metrics tell
    router.reload(lambda _: router.options)
    assert router.reload_failed_us == 0


def read_when(may_go_on: threading.Event) -> Callable[[Options], Options]:
    """A configuration with a token that is read when the test says so."""

    def reparse(_: Options) -> Options:
        assert may_go_on.wait(20)
        return Options(auth_token="t")

    return reparse


async def test_the_router_goes_on_while_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    router = Router(Options())
    may_go_on = threading.Event()
    reloader = router.reloader(read_when(may_go_on))
    task = asyncio.create_task(reloader.reload())
    await until(lambda: router.steps == ["reloading"])
    assert reloader.is_under_way and router.options == Options()
    may_go_on.set()
    assert [change.field for change in (await task).answer.changes] == ["auth_token"]
    assert router.options == Options(auth_token="t")


async def test_however_many_ask_while_one_is_read_one_more_is_read_for_them() -> None:
    router = Router(Options())
    may_go_on = threading.Event()
    tokens: list[str] = []

    def reparse(_: Options) -> Options:
        tokens.append(str(len(tokens)))
        assert may_go_on.wait(20)
        return Options(auth_token=tokens[-1])

    reloader = router.reloader(reparse)
    first = asyncio.create_task(reloader.reload())
    await until(lambda: bool(tokens))
    others = [asyncio.create_task(reloader.reload()) for _ in range(20)]
    reloader.begin()
    may_go_on.set()
    await asyncio.gather(first, *others)
    assert tokens == ["0", "1"] and router.options.auth_token == "1"


@pytest.mark.parametrize("what", ["rolling", "is_stopping"])
async def test_what_has_begun_while_it_was_read_is_not_disturbed(what: str) -> None:
    router = Router(before := Options())

    def reparse(_: Options) -> Options:
        setattr(router, what, True)
        return Options(auth_token="t")

    assert (await router.reloader(reparse).reload()).refused
    assert router.options is before


async def test_where_there_are_no_more_threads_it_is_read_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    router = Router(Options())
    await router.reloader(lambda _: Options(auth_token="t")).reload()
    assert router.options.auth_token == "t"


async def test_who_asks_is_told_when_it_holds_on_every_shard() -> None:
    router = Router(Options())
    task = asyncio.create_task(router.reloader(lambda _: Options(auth_token="t")).reload_everywhere())
    await until(lambda: any(isinstance(step, Reload) for step in router.steps))
    assert not task.done()
    router.echo.on_reloaded(0, 1)
    assert not (await task).is_late


async def test_who_asks_is_told_that_a_shard_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reloader_module, "CONFIRMED_WITHIN_S", 0.0)
    outcome = await Router(Options()).reloader(lambda _: Options(auth_token="t")).reload_everywhere()
    assert outcome.is_late and not outcome.refused
    assert [change.field for change in outcome.answer.changes] == ["auth_token"]
    assert outcome.answer.problems == ("shard 0 has not taken the new options yet, which hold everywhere else",)


async def test_that_the_keeper_has_no_room_for_the_options_is_answered() -> None:
    """They hold, but another router would give shards those of before."""
    router = Router(Options())
    looks: list[bool] = []

    class Keeps:
        """The keeper says nothing at first, and then that it has no room."""

        are_options_late = False

        @property
        def is_answered(self) -> bool:
            looks.append(self.are_options_late)
            return self.are_options_late

    router.holdings = holdings = Keeps()
    asked = asyncio.create_task(router.reloader(lambda _: Options(auth_token="t")).reload_everywhere())
    await until(lambda: any(isinstance(step, Reload) for step in router.steps))
    router.echo.on_reloaded(0, 1)
    await until(lambda: asked.done() or len(looks) == 3)
    assert not asked.done()
    holdings.are_options_late = True
    outcome = await asked
    assert not outcome.refused and not outcome.is_late
    assert outcome.answer.problems == (reloader_module.NOT_KEPT,)


async def test_a_configuration_that_is_not_read_in_time_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """As from a file server that is gone: whoever asks is told, and a restart may begin."""
    monkeypatch.setattr(reloader_module, "READ_WITHIN_S", 0.0)
    router = Router(before := Options())
    may_go_on = threading.Event()
    reloader = router.reloader(read_when(may_go_on))
    first = asyncio.create_task(reloader.reload())
    for _ in range(2):
        assert (await reloader.reload_everywhere()).refused == (reloader_module.NOT_READ,)
    await until(lambda: not reloader.is_under_way)
    assert gc.isenabled()
    router.rolling = object()
    may_go_on.set()
    assert (await first).refused == ("a restart is under way: try again when it is over",)
    await until(lambda: router.steps.count("reloading") == 2 and reloader._present is None)
    assert router.options is before


async def test_a_configuration_that_is_read_late_is_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reloader_module, "READ_WITHIN_S", 0.0)
    router = Router(Options())
    may_go_on = threading.Event()
    reloader = router.reloader(read_when(may_go_on))
    assert (await reloader.reload_everywhere()).refused
    await until(lambda: not reloader.is_under_way)
    may_go_on.set()
    await until(lambda: router.options == Options(auth_token="t"))
    assert reloader.is_under_way  # until the shards have confirmed it
    router.echo.on_reloaded(0, 1)
    await until(lambda: not reloader.is_under_way)
