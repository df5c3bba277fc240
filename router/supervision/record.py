"""The record of a running broker: what a router must know to take over the shards of one that has died.

It is written whenever something of it changes, into a memfd that the keeper holds: whole, or not at all. Options are in
a memfd of their own, because they are large and change only by a reload. What else a router needs are descriptors, by
names: `Holdings` tells the keeper which, and again where it had no room. Times are of the monotonic clock, which all
processes share.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec

from gnatswarm.broker.options import Options
from gnatswarm.router.supervision.supervision import ShardState
from gnatswarm.shards.boundary.keeping import RECORD

if TYPE_CHECKING:
    from gnatswarm.router.supervision.shard_process import ShardProcess
    from gnatswarm.shards.boundary.keeping import Child, Legacy

log = logging.getLogger("gnatswarm.router")

# Increased with every change of the structs below. Another version is refused.
RECORD_VERSION = 5
OPTIONS = "options"
# What the keeper had no room for is offered again after this time.
AGAIN_S = 1.0


class RecordError(Exception):
    """What a router has left cannot be used; the text says why."""


class ShardRecord(msgspec.Struct, frozen=True):
    """One shard number."""

    state: ShardState
    pid: int  # 0: no process
    boot_id: str
    booted_us: int
    link_path: str


class RelayRecord(msgspec.Struct, frozen=True):
    """A process that was a shard, and encrypts for clients that have moved (`router.supervision.relays`)."""

    pid: int
    shard: int  # whose process it was
    boot_id: str
    booted_us: int


class Place(msgspec.Struct, frozen=True):
    """Where listeners listen."""

    host: str
    port: int
    is_inherited: bool = False  # from a service manager


# What a rolling restart replaces next; an upgrade goes on with the router, and then the keeper.
SHARDS, ROUTER, KEEPER = "shards", "router", "keeper"


class RollingRecord(msgspec.Struct, frozen=True):
    """A rolling restart that is under way (`router.supervision.rolling`)."""

    shards: int  # how many there were when it began, and will be again; one more runs meanwhile
    old: list[str]  # boot ids of the processes that are to be replaced
    command: list[str] = []  # an upgrade: runs the program that takes over
    stage: str = SHARDS
    failure: str = ""  # an upgrade that goes back: why
    relay_s: float = 0.0  # for so long old processes encrypt for clients with TLS; 0: those are told to reconnect

    def is_replaced(self, number: int, process: ShardProcess | None) -> bool:
        """Whether this is one of the processes that stay when it is over."""
        return number < self.shards and process is not None and process.boot_id not in self.old


class GapsRecord(msgspec.Struct, frozen=True):
    """Gap rows of the statistics (`router.supervision.gap`)."""

    msgs: int = 0  # in all since the broker began
    rows: list[bytes] = []  # those that may not be on the disk, as JSON, …
    noted_until_us: list[dict[str, int]] = []  # … and for each by boot: when it had last noted a window


class BrokerRecord(msgspec.Struct, frozen=True):
    """One broker."""

    version: int
    server_id: str
    server_name: str
    started_at: float
    stats_dir: str
    wanted: int
    is_leaving: bool
    configured_us: int
    reload_failed_us: int
    clients: Place
    websocket: Place | None
    servers: dict[str, Place]  # for other servers, by kind
    directories: list[str]  # own, then the one for links if there is one
    members: list[ShardRecord]  # the shards by number, then the gateway if there is one
    rolling: RollingRecord | None = None
    command: list[str] = []  # runs a shard; []: the keeper forks it
    relays: list[RelayRecord] = []
    gaps: GapsRecord = GapsRecord()


class OptionsRecord(msgspec.Struct, frozen=True):
    """The present options, and how often they were reloaded."""

    generation: int
    options: Options


class Left(msgspec.Struct, frozen=True):
    """What a dead router has left, decoded."""

    record: BrokerRecord
    options: Options
    generation: int
    held: dict[str, int]
    children: list[Child]

    @classmethod
    def read(cls, legacy: Legacy) -> Left:
        """RecordError when this version cannot use it."""
        held = dict(legacy.held)
        try:
            version = msgspec.msgpack.decode(_bytes(held[RECORD]), type=_Version).version
            if version != RECORD_VERSION:
                raise RecordError(f"its record has version {version}, this router knows {RECORD_VERSION}")
            record = _read(held[RECORD], BrokerRecord)
            options = _read(held[OPTIONS], OptionsRecord)
        except (OSError, KeyError, msgspec.DecodeError) as error:
            raise RecordError(f"its record cannot be read: {error}") from None
        return cls(record, options.options, options.generation, held, legacy.children)


class _Version(msgspec.Struct):
    version: int


class Holder(Protocol):
    """The keeper, as far as it holds descriptors."""

    def hold(self, name: str, descriptor: int) -> None:
        """Keep this for the next router, in place of what had this name; Holdings.on_held() is told the answer."""

    def release(self, name: str) -> None:
        """Keep what has this name no more."""


class Holdings:
    """What the keeper holds for the next router. `begin()` once the broker serves: before, there is no next one.

    A record that cannot be written, without descriptors or memory, or that the keeper cannot take, is late: catch_up()
    tries again.
    """

    def __init__(self, holder: Holder, held: Mapping[str, int] | None = None) -> None:
        self._holder = holder
        self._held = {name: number for name, number in (held or {}).items() if name not in (RECORD, OPTIONS)}
        self._has_begun = held is not None
        self._late: dict[str, msgspec.Struct] = {}
        self._last: dict[str, msgspec.Struct] = {}  # the last that the keeper was sent
        self._unanswered: Counter[str] = Counter()
        self._refused: set[str] = set()  # names for which it had no room at last
        self._again_s = 0.0  # of the monotonic clock: not before

    def begin(self, options: OptionsRecord, things: Mapping[str, int], record: BrokerRecord) -> None:
        """Hold all this; from now on a router that dies is replaced."""
        self._has_begun = True
        self.hold_options(options)
        self.keep(things)
        self.remember(record)

    def keep(self, things: Mapping[str, int]) -> None:
        """Hold these descriptors and no others; those that it holds already cost nothing."""
        if not self._has_begun or things == self._held:
            return
        for name in self._held.keys() - things.keys():
            self._holder.release(name)
        for name, number in things.items():
            if self._held.get(name) != number:
                self._hold(name, number)
        self._held = dict(things)

    def remember(self, record: BrokerRecord) -> None:
        """Hold this record in place of the last."""
        if self._has_begun:
            self._write(RECORD, record)

    def hold_options(self, options: OptionsRecord) -> None:
        """Hold these options in place of the last."""
        if self._has_begun:
            self._write(OPTIONS, options)

    def catch_up(self) -> None:
        """Hold what is late, as far as that can be had now. To be called several times a second."""
        for name, record in list(self._late.items()):
            if name not in self._refused or time.monotonic() >= self._again_s:
                self._write(name, record)

    @property
    def is_answered(self) -> bool:
        """Whether the keeper has said of the last options whether it holds them."""
        return not self._unanswered[OPTIONS]

    @property
    def are_options_late(self) -> bool:
        """Whether another router would find the options of before: the keeper has no room for the present ones."""
        return OPTIONS in self._late

    def on_held(self, name: str, is_held: bool) -> None:
        """The keeper holds what it was sent under this name, or had no room for it, and holds what it had before."""
        self._unanswered[name] -= 1
        if self._unanswered[name] > 0:  # what counts is the answer to the last one
            return
        if is_held:
            self._refused.discard(name)
            return
        if name not in self._refused and (name == OPTIONS or not self._refused):
            log.error(
                "The main process has no descriptor left to keep %s for another router: if this one dies, what was "
                "there before holds again; trying again",
                "the options" if name == OPTIONS else name,
            )
        self._refused.add(name)
        self._again_s = time.monotonic() + AGAIN_S
        if name in self._last:
            self._late.setdefault(name, self._last[name])
        elif name in self._held:
            self._held[name] = -1  # keep() finds that it is another one

    def _hold(self, name: str, descriptor: int) -> None:
        self._holder.hold(name, descriptor)
        self._unanswered[name] += 1

    def _write(self, name: str, record: msgspec.Struct) -> None:
        try:
            self._hold_written(name, record)
        except OSError as error:
            if not self._late:
                log.error("Cannot write down the shards for another router: %s; trying again", error.strerror)
            self._late[name] = record
        else:
            self._late.pop(name, None)
            self._last[name] = record

    def _hold_written(self, name: str, record: msgspec.Struct) -> None:
        descriptor = os.memfd_create(f"gnatswarm-{name}", os.MFD_CLOEXEC)
        try:
            with open(descriptor, "wb", closefd=False) as stream:
                stream.write(msgspec.msgpack.encode(record))
            self._hold(name, descriptor)
        finally:
            os.close(descriptor)


Record = TypeVar("Record", bound=msgspec.Struct)


def _read(descriptor: int, kind: type[Record]) -> Record:
    return msgspec.msgpack.decode(_bytes(descriptor), type=kind)


def _bytes(descriptor: int) -> bytes:
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0)
