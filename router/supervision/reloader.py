"""The reloader: reads the configuration again and applies all of it to a running broker, or nothing.

`router.config.reload` decides what may change; this module applies it. Called at SIGHUP, and when an operator asks. The
configuration is read in a thread: thousands of users take seconds, in which shards die and clients come. One is read at
a time; whoever asks meanwhile gets the next one, together with all others who do.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import msgspec

from gnatswarm.router.config.conf_tree import ConfigError
from gnatswarm.router.config.reload import diff, with_chosen_ports
from gnatswarm.router.listening.listeners import ListenError
from gnatswarm.router.supervision import descriptors
from gnatswarm.router.supervision.opening import shards_of
from gnatswarm.router.supervision.operator_socket import ReloadAnswer
from gnatswarm.shards.boundary import logs
from gnatswarm.shards.boundary.control import encode, reload_of, users_in_parts

if TYPE_CHECKING:
    from gnatswarm.broker.options import Options
    from gnatswarm.router.supervision.broker import SupervisedBroker
    from gnatswarm.router.supervision.broker_commands import BrokerCommands
    from gnatswarm.router.supervision.notify import Notifier
    from gnatswarm.router.supervision.reload_echo import ReloadEcho

log = logging.getLogger("gnatswarm.router")

_Result = TypeVar("_Result")

# From its being applied. Less than a command waits for its reply.
CONFIRMED_WITHIN_S = 10.0
POLL_S = 0.002
# A configuration takes seconds with ten thousands of users. One that takes longer comes from a pipe, or a file server
# that is gone, and may never end: who asks is told so, and a restart is not refused because of it.
READ_WITHIN_S = 20.0
NOT_READ = "the new one has not been read yet; when it has, it is applied, and the log says so"
NOT_KEPT = (
    "the main process has no descriptor left to keep the new options: until it has, shards get those of before if the"
    " router dies"
)


class ReloadOutcome(msgspec.Struct, frozen=True):
    """The result of a reload: every reason why nothing was changed, or else the answer for an operator."""

    refused: tuple[str, ...] = ()
    answer: ReloadAnswer = msgspec.field(default_factory=ReloadAnswer)
    is_late: bool = False  # a shard has not confirmed it in time, as `answer` says, too


class Reloader:
    """Reloads one broker. `reparse` reads its configuration again, instead of those options.

    `on_reloaded` is called when the options changed.
    `on_scaled_up` is called when shards are being added, `warnings` says what of the new options cannot be done now.
    """

    def __init__(
        self,
        broker: SupervisedBroker,
        commands: BrokerCommands,
        notifier: Notifier,
        echo: ReloadEcho,
        *,
        reparse: Callable[[Options], Options] | None,
        on_reloaded: Callable[[], None],
        on_scaled_up: Callable[[], None] = lambda: None,
        warnings: Callable[[], list[str]] = list,
    ) -> None:
        self._broker = broker
        self._commands = commands
        self._notifier = notifier
        self._echo = echo
        self._reparse = reparse
        self._on_reloaded = on_reloaded
        self._on_scaled_up = on_scaled_up
        self._warnings = warnings
        self._present: asyncio.Task[ReloadOutcome] | None = None  # reads the configuration, and applies it
        self._next: asyncio.Task[ReloadOutcome] | None = None  # begins when that is over
        self._is_slow = False  # the configuration has not been read in READ_WITHIN_S

    @property
    def is_under_way(self) -> bool:
        """Whether one is being read or waits, or shards have not confirmed the last one.

        One that is slow does not count: it is not applied where something else has begun.
        """
        is_reading = (self._present is not None or self._next is not None) and not self._is_slow
        return is_reading or not self._echo.is_complete

    def begin(self) -> None:
        """Reload, for who does not wait for the outcome: the log has it."""
        self._turn()

    async def reload(self) -> ReloadOutcome:
        """Reload; each problem is also logged. It is applied then; shards confirm the new options later."""
        return await asyncio.shield(self._turn())

    async def reload_everywhere(self) -> ReloadOutcome:
        """Reload, and wait until it holds on every shard and is kept for another router, at most CONFIRMED_WITHIN_S.

        One that is not read in READ_WITHIN_S is answered as refused, and goes on.
        """
        try:
            async with asyncio.timeout(READ_WITHIN_S):
                outcome = await self.reload()
        except TimeoutError:
            return ReloadOutcome((NOT_READ,))
        give_up_at = time.monotonic() + CONFIRMED_WITHIN_S
        holdings = self._broker.holdings
        while not outcome.refused and not (self._echo.is_complete and holdings.is_answered):
            if time.monotonic() > give_up_at:
                return self._late(outcome)
            await asyncio.sleep(POLL_S)
        if outcome.refused or not holdings.are_options_late:
            return outcome
        answer = msgspec.structs.replace(outcome.answer, problems=(*outcome.answer.problems, NOT_KEPT))
        return msgspec.structs.replace(outcome, answer=answer)

    def _late(self, outcome: ReloadOutcome) -> ReloadOutcome:
        """It has been applied: each shard has been told, and will take it, or its next process will."""
        names = [one.name.lower() for one in self._broker.members if one.number in self._echo.awaited]
        if not names:
            return outcome
        have = "has" if len(names) == 1 else "have"
        late = f"{', '.join(names)} {have} not taken the new options yet, which hold everywhere else"
        answer = msgspec.structs.replace(outcome.answer, problems=(*outcome.answer.problems, late))
        return msgspec.structs.replace(outcome, answer=answer, is_late=True)

    def _turn(self) -> asyncio.Task[ReloadOutcome]:
        """The next one, which has not read anything yet."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._reload_after(self._present))
            self._next.add_done_callback(self._on_done)
        return self._next

    async def _reload_after(self, before: asyncio.Task[ReloadOutcome] | None) -> ReloadOutcome:
        if before is not None:
            await asyncio.wait([before])
        self._present, self._next = self._next, None
        return await self._reload_now()

    def _on_done(self, task: asyncio.Task[ReloadOutcome]) -> None:
        if self._present is task:
            self._present = None
        if not task.cancelled() and task.exception() is not None:
            log.critical("a reload failed", exc_info=task.exception())

    async def _reload_now(self) -> ReloadOutcome:
        self._notifier.reloading()
        try:
            outcome = await self._read_and_apply()
        except Exception as error:  # which nobody expected; who asked would wait for its end for ever
            log.critical("a reload failed", exc_info=error)
            self._note(has_failed=True)
            self._notifier.reloaded("the reload failed, the log says why")
            text = " ".join(str(error).split())
            return ReloadOutcome((f"an unexpected error, the log says where: {type(error).__name__}: {text}",))
        self._note(has_failed=bool(outcome.refused or outcome.answer.problems))
        if outcome.refused:
            self._notifier.reloaded("the reload failed and changed nothing, the log says why")
        return outcome

    def _note(self, *, has_failed: bool) -> None:
        self._broker.reload_failed_us = time.time_ns() // 1000 if has_failed else 0
        self._broker.remember()

    async def _read_and_apply(self) -> ReloadOutcome:
        if self._reparse is None:
            log.warning("Reload: there is no configuration to read again")
            return ReloadOutcome(("there is no configuration to read again",))
        why = self._objection()
        if why:
            return self._refused(why)
        slow = asyncio.get_running_loop().call_later(READ_WITHIN_S, self._on_slow)
        try:
            options, users = await _in_thread(partial(_read, self._reparse, self._broker.options))
        except ConfigError as error:
            log.error("Failed to reload server configuration: %s", error)
            return ReloadOutcome(tuple(_shown(error).splitlines()) or (type(error).__name__,))
        except (ListenError, OSError, ValueError) as error:
            log.error("Failed to reload server configuration: %s", error)
            return ReloadOutcome(tuple(str(error).splitlines()) or (type(error).__name__,))
        finally:
            slow.cancel()
            self._is_slow = False
        why = self._objection()  # the broker has gone on meanwhile
        return self._refused(why) if why else self._apply(options, users)

    def _on_slow(self) -> None:
        self._is_slow = True
        gc.enable()
        log.warning("Reload: the configuration has not been read within %.0f s; waiting for it", READ_WITHIN_S)

    def _objection(self) -> str:
        """Why nothing is reloaded now; "": nothing stands against it."""
        if self._broker.rolling is not None:
            return "a restart is under way: try again when it is over"
        return "the broker is shutting down" if self._broker.is_stopping else ""

    @staticmethod
    def _refused(why: str) -> ReloadOutcome:
        log.error("Reload refused, nothing was changed: %s", why.partition(":")[0])
        return ReloadOutcome((why,))

    def _apply(self, options: Options, users: list[bytes]) -> ReloadOutcome:
        old = self._broker.options
        options = with_chosen_ports(old, options, self._broker.bound_ports())
        reloaded = diff(old, options)
        if reloaded.is_refused:
            for line in reloaded.refused:
                log.error("Failed to reload server configuration: config %s", line)
            return ReloadOutcome(tuple(reloaded.refused))
        problems: list[str] = []
        read = options
        for change in reloaded.live:
            log.info("Reloaded: %s", change)
        if old.logging != options.logging:
            try:
                logs.configure(options.logging, process_label=logs.ROUTER_LABEL, pid=self._broker.pid)
            except OSError as error:
                why = logs.failure(options.logging, error)
                log.error("Reload: logging stays as it was: %s", why)
                problems.append(f"logging stays as it was: {why}")
                options = msgspec.structs.replace(options, logging=old.logging)
        said = _remarks(old, self._broker.wanted)
        for remark in _remarks(options, self._broker.wanted):
            if remark not in said:
                log.warning("%s", remark)
        if old.pid_file != options.pid_file:
            try:
                self._broker.runtime_files.write_pid_file(options.pid_file)
            except OSError as error:
                log.error("Could not write pidfile: %s: %s", options.pid_file, error.strerror)
                problems.append(f"could not write pidfile: {options.pid_file}: {error.strerror}")
                options = msgspec.structs.replace(options, pid_file=old.pid_file)
        self._broker.adopt(options)
        self._on_reloaded()
        serving = {shard.number for shard in self._broker.members if shard.process is not None}
        self._echo.expect(serving, self._broker.generation, options.config_digest)
        for part in users:
            self._broker.tell_all_encoded(part)
        self._broker.tell_all(reload_of(options, self._broker.generation))
        if options.sharding.shards != old.sharding.shards:
            before, wanted = self._broker.wanted, shards_of(options)
            problem = self._commands.scale(wanted)
            if problem:
                log.warning("Reload: %s", problem)
                problems.append(problem)
                self._broker.take_back(shards=old.sharding.shards)
            elif wanted > before:
                self._on_scaled_up()
        for problem in self._warnings():
            log.warning("Reload: %s", problem)
            problems.append(problem)
        changes = reloaded.live if self._broker.options is read else diff(old, self._broker.options).live
        return ReloadOutcome(answer=ReloadAnswer(changes, tuple(problems)))


def _remarks(options: Options, shards: int) -> list[str]:
    """What the log says of these options at a start."""
    scarcity = descriptors.scarcity(options, shards)
    return [*options.notices, scarcity] if scarcity else list(options.notices)


def _shown(error: ConfigError) -> str:
    """With the lines of the file, if there is a descriptor to read them, and the module that does it."""
    try:
        from gnatswarm.router.config.excerpt import with_lines

        return with_lines(error)
    except OSError:
        return str(error)


def _read(reparse: Callable[[Options], Options], instead_of: Options) -> tuple[Options, list[bytes]]:
    """The new options, and their users as all shards are told them."""
    options = reparse(instead_of)
    return options, [encode(part) for part in users_in_parts(options.users)]


async def _in_thread(read: Callable[[], _Result]) -> _Result:
    """What `read` returns or raises, in a thread that no end of the process waits for."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[_Result] = loop.create_future()

    def settle(result: _Result | None, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if result is None:
            done.set_exception(error or RuntimeError("nothing was read"))
        else:
            done.set_result(result)

    def run() -> None:
        found: tuple[_Result | None, BaseException | None]
        try:
            found = read(), None
        except BaseException as error:
            found = None, error
        finally:
            gc.enable()
        with contextlib.suppress(RuntimeError):  # the broker has ended, and its loop
            loop.call_soon_threadsafe(settle, *found)

    # Reading makes many objects and little garbage, and all threads wait while the collector looks at them.
    gc.disable()
    try:
        threading.Thread(target=run, name="reload", daemon=True).start()
    except RuntimeError:  # there may be no more threads
        gc.enable()
        return read()
    return await done
