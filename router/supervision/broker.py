"""One broker as its router holds it: everything that outlives a shard, and the shards.

Listeners, the shared page, the runtime files; no client data. The keeper holds copies of all of it, and a record of the
rest, so that another router can take it over. It is made first, so that the readers
(`broker_view`) and the supervisor share it and need not know each other. Only the supervisor writes a shard's `state`.
"""

from __future__ import annotations

import base64
import errno
import math
import os
import socket
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from gnatswarm.router.config import stats_place
from gnatswarm.router.listening.inherited import InheritedListeners
from gnatswarm.router.listening.listener_groups import ListenerGroups
from gnatswarm.router.listening.listeners import Listeners, ListeningSockets, Ports
from gnatswarm.router.supervision.gap import Gaps
from gnatswarm.router.supervision.opening import CannotStart, Opened, most_shards
from gnatswarm.router.supervision.record import (
    RECORD_VERSION,
    BrokerRecord,
    Holdings,
    Left,
    OptionsRecord,
    Place,
    RelayRecord,
    RollingRecord,
    ShardRecord,
)
from gnatswarm.router.supervision.runtime_files import RuntimeFiles
from gnatswarm.router.supervision.supervision import ShardState
from gnatswarm.shards.boundary import linkdir
from gnatswarm.shards.boundary.control import GATEWAY_NUMBER, encode
from gnatswarm.shards.boundary.page import Page

if TYPE_CHECKING:
    from gnatswarm.broker.options import Options
    from gnatswarm.router.supervision.broker_view import RuleState
    from gnatswarm.router.supervision.keeper_link import KeeperLink
    from gnatswarm.router.supervision.shard_process import ShardProcess
    from gnatswarm.shards.boundary.control import ClusterNews, ControlMessage

# The names under which the keeper holds the history of counters, and the state of the alarms.
HISTORY, ALARMS = "history", "alarms"


# Of a shard that leaves, which moves up to 1,000 in a second: where there is much else to do, some take longer.
CLIENTS_PER_S = 100


class SupervisedShard:
    """One shard number with its state and its present process, if any."""

    def __init__(self, number: int, *, is_founder: bool, is_gateway: bool = False) -> None:
        self.number = number
        self.is_gateway = is_gateway
        self.name = "Gateway" if is_gateway else f"Shard {number}"
        self.state = ShardState(is_founder=is_founder)
        self.process: ShardProcess | None = None
        self.link_path = ""


def time_to_move_s(page: Page, shard: int) -> float:
    """How many seconds a shard that leaves has for the clients that it has now, in addition to what it has anyway."""
    return int(page.snapshot(shard)["connections"]) / CLIENTS_PER_S


class SupervisedRelay:
    """A process that was a shard, and encrypts for clients with TLS that have moved (`router.supervision.relays`)."""

    def __init__(self, process: ShardProcess) -> None:
        self.process = process
        self.clients = 0  # and leaf nodes, as it said last
        self.ends_at = math.inf  # by the monotonic clock: then its clients are told
        self.is_ending = False  # they have been

    @property
    def record(self) -> RelayRecord:
        """What another router must know."""
        process = self.process
        return RelayRecord(process.pid, process.shard, process.boot_id, process.booted_us)


class SupervisedBroker:
    """One broker: with the ports just `opened`, or with all that a dead router has `left`.

    `command` runs a shard in place of ours (tests). CannotStart when the constructor cannot make one of its parts;
    nothing stays behind then.
    """

    def __init__(
        self,
        options: Options,
        *,
        program: str,
        keeper: KeeperLink,
        command: Sequence[str] = (),
        opened: Opened | None = None,
        left: Left | None = None,
    ) -> None:
        self.options = options
        self.keeper = keeper
        self.pid = keeper.pid
        self.command = command
        self.own_command = command  # as long as this is the keeper's version
        self.left = left
        self._program = program
        self.is_handoff = options.sharding.accept == "handoff"
        self.is_stopping = False
        self.cluster_news: ClusterNews | None = None  # what the gateway told last; it tells each router again
        self.placed: list[RuleState] = []  # written by router.supervision.placing
        self.relays: list[SupervisedRelay] = []  # written by router.supervision.relays
        self.most_shards = most_shards(options)
        self.gaps = Gaps(self.remember)  # of the statistics
        if left is not None:
            self._take_over(left)
            return
        self.generation = 0  # how often the options were reloaded
        self.stats_dir = stats_place.choose(options, program)
        self.configured_us = 0  # when the options were last reloaded, µs since 1970; 0: never
        self.reload_failed_us = 0  # when the last reload failed, µs since 1970; 0: it did not, or there was none
        assert opened is not None
        self.wanted = opened.shards
        self.started_at = time.monotonic()
        # As long as nats-server's public key, because some clients' tests check it; ours is not a key.
        self.server_id = "N" + base64.b32encode(os.urandom(35)).decode()[:55]
        self.server_name = options.server_name or self.server_id
        self.holdings = Holdings(keeper)
        keeper.on_held = self.holdings.on_held
        self.monitor_socket = opened.monitor_socket
        try:
            self.page = Page.create()
        except OSError as error:
            opened.close()
            limit = "; ulimit -f (LimitFSIZE= in a unit file) is too low" if error.errno == errno.EFBIG else ""
            raise CannotStart(f"cannot make the page that the processes share: {error.strerror}{limit}") from None
        self.history_fd, self.alarms_fd = self._kept(HISTORY, {}), self._kept(ALARMS, {})
        self.listener_groups = opened.listener_groups
        try:
            self.runtime_files = RuntimeFiles(
                options,
                pid=self.pid,
                port=self.listener_groups.clients.port,
                server_name=self.server_name,
                announce=keeper.watch,
            )
        except linkdir.LinkDirectoryError as error:
            opened.close()
            raise CannotStart(str(error)) from None
        self.shards = [SupervisedShard(number, is_founder=True) for number in range(self.wanted)]
        # Connected to other servers; None: the options name none.
        self.gateway = _gateway(options)
        self.is_serving = False  # every founder has been ready, and "Server is ready" is in the log
        self.is_leaving = False  # lame duck: no process is started any more
        self.rolling: RollingRecord | None = None  # the rolling restart that is under way

    def _take_over(self, left: Left) -> None:
        """Be what another router has left: its sockets, page, files and shards' states."""
        record, held = left.record, left.held
        self.generation = left.generation
        self.stats_dir = record.stats_dir
        self.configured_us, self.reload_failed_us = record.configured_us, record.reload_failed_us
        self.wanted, self.started_at = record.wanted, record.started_at
        self.server_id, self.server_name = record.server_id, record.server_name
        self.holdings = Holdings(self.keeper, held)
        self.keeper.on_held = self.holdings.on_held
        self.monitor_socket = socket.socket(fileno=held["monitoring"]) if "monitoring" in held else None
        websocket = record.websocket
        self.history_fd, self.alarms_fd = self._kept(HISTORY, held), self._kept(ALARMS, held)
        self.listener_groups = ListenerGroups(
            self.options,
            self.wanted,
            is_handoff=self.is_handoff,
            taken_over=Ports(
                _listeners(record.clients, held),
                Listeners.taken_over(websocket.host, websocket.port, _sockets("websocket", held))
                if websocket is not None
                else None,
                {
                    kind: Listeners.taken_over(place.host, place.port, _sockets(kind, held))
                    for kind, place in record.servers.items()
                },
            ),
        )
        self.runtime_files = RuntimeFiles(
            self.options,
            pid=self.pid,
            port=record.clients.port,
            server_name=self.server_name,
            announce=self.keeper.watch,
            left=(record.directories, held),
        )
        self.runtime_files.take_over_files(self._program)
        self.page = Page.attach(held["page"])
        self.gateway = _gateway(self.options)
        shards = len(record.members) - (self.gateway is not None)
        self.shards = [SupervisedShard(number, is_founder=False) for number in range(shards)]
        for shard, one in zip(self.members, record.members, strict=True):
            shard.state, shard.link_path = one.state, one.link_path
        self.is_serving = True
        self.is_leaving = record.is_leaving
        self.rolling = record.rolling
        self.command = record.command
        self.gaps.take_over(record.gaps, self.page)

    # ---- what the keeper holds for another router

    def begin_record(self, more: Mapping[str, int]) -> None:
        """The broker serves: from now on a router that dies is replaced. `more`: descriptors beside ours, by names."""
        self.holdings.begin(
            OptionsRecord(self.generation, self.options), {**self._descriptors(), **more}, self._record()
        )

    def remember(self) -> None:
        """Something has changed that another router must know."""
        if self.is_serving and not self.is_stopping:
            self.holdings.remember(self._record())

    def hold(self, more: Mapping[str, int]) -> None:
        """Descriptors may have changed; `more`: those beside ours. To be called at every tick, too."""
        if self.is_serving:
            self.holdings.keep({**self._descriptors(), **more})

    def _descriptors(self) -> dict[str, int]:
        held = {**self.listener_groups.holdings(), **self.runtime_files.holdings(), "page": self.page.fd}
        if self.monitor_socket is not None:
            held["monitoring"] = self.monitor_socket.fileno()
        held |= {name: fd for name, fd in ((HISTORY, self.history_fd), (ALARMS, self.alarms_fd)) if fd >= 0}
        return held

    def _kept(self, name: str, held: Mapping[str, int]) -> int:
        """What another router has left, or an empty file in memory; -1: no pages are served, so nobody reads it."""
        if self.monitor_socket is None:
            return -1
        # (an older version, which is being upgraded, may have left none)
        return held[name] if name in held else os.memfd_create(f"gnatswarm-{name}", os.MFD_CLOEXEC)

    def _record(self) -> BrokerRecord:
        clients, websocket = self.listener_groups.clients, self.listener_groups.websocket
        return BrokerRecord(
            version=RECORD_VERSION,
            server_id=self.server_id,
            server_name=self.server_name,
            started_at=self.started_at,
            stats_dir=self.stats_dir,
            wanted=self.wanted,
            is_leaving=self.is_leaving,
            configured_us=self.configured_us,
            reload_failed_us=self.reload_failed_us,
            clients=_place(clients),
            websocket=_place(websocket) if websocket is not None else None,
            servers={kind: _place(listeners) for kind, listeners in self.listener_groups.servers.items()},
            directories=self.runtime_files.directories,
            members=[_shard_record(shard) for shard in self.members],
            rolling=self.rolling,
            command=list(self.command),
            relays=[one.record for one in self.relays],
            gaps=self.gaps.record,
        )

    @property
    def lost_msgs(self) -> int:
        """Messages in gap rows of the statistics, since the broker began."""
        return self.gaps.msgs

    @property
    def members(self) -> list[SupervisedShard]:
        """The shards, and the gateway if there is one."""
        return [*self.shards, self.gateway] if self.gateway is not None else list(self.shards)

    @property
    def shard_pids(self) -> list[int]:
        """The pids of the shards that have a process."""
        return [shard.process.pid for shard in self.shards if shard.process is not None]

    def shard_of(self, process: ShardProcess) -> SupervisedShard | None:
        """The shard that has this process; None if the process was replaced meanwhile."""
        return next((shard for shard in self.members if shard.process is process), None)

    def tell(self, shard: int, message: ControlMessage) -> bool:
        """Send this message to one shard, or to the gateway by its number. False when it has no process."""
        member = next((one for one in self.members if one.number == shard), None)
        process = member.process if member is not None else None
        if process is None:
            return False
        process.send(message)
        return True

    def tell_all(self, message: ControlMessage) -> None:
        """Send this message to every shard that has a process, to the gateway, and to relays."""
        self.tell_all_encoded(encode(message))  # once: it may have megabytes

    def tell_all_encoded(self, encoded: bytes) -> None:
        """As tell_all(), for what `control.encode` has returned."""
        for shard in self.members:
            if shard.process is not None:
                shard.process.send_encoded(encoded)
        for relay in self.relays:
            relay.process.send_encoded(encoded)

    def adopt(self, options: Options) -> None:
        """Replace the options, for the router and for shards that start from now on."""
        self.options = options
        self.configured_us = time.time_ns() // 1000
        self.generation += 1
        self.holdings.hold_options(OptionsRecord(self.generation, options))
        self.remember()

    def take_back(self, *, shards: int) -> None:
        """The options' number of shards, which only the router goes by, is this again: a reload could not have them."""
        sharding = msgspec.structs.replace(self.options.sharding, shards=shards)
        self.options = msgspec.structs.replace(self.options, sharding=sharding)
        self.holdings.hold_options(OptionsRecord(self.generation, self.options))

    def bound_ports(self) -> dict[str, int]:
        """The ports for clients and other servers that are open, by the options that name them."""
        groups = self.listener_groups
        ports = {"port": groups.clients.port}
        if groups.websocket is not None:
            ports["websocket.port"] = groups.websocket.port
        return ports | {f"{kind}.port": listeners.port for kind, listeners in groups.servers.items()}

    def write_ports_file(self) -> None:
        """Write it if the options name a directory for it. OSError when that fails."""
        where = self.options.ports_file_dir
        self.runtime_files.write_ports_file(where, self._program, self.listener_groups, self.monitor_socket)

    def close(self) -> None:
        """Release everything that is not a shard's: leaves no descriptor, socket file or directory of ours."""
        self.listener_groups.close()
        if self.monitor_socket is not None:
            self.monitor_socket.close()
        self.runtime_files.remove()
        self.page.close()
        for fd in (self.history_fd, self.alarms_fd):
            if fd >= 0:
                os.close(fd)


def _gateway(options: Options) -> SupervisedShard | None:
    return SupervisedShard(GATEWAY_NUMBER, is_founder=False, is_gateway=True) if options.has_gateway else None


def _place(listeners: ListeningSockets) -> Place:
    return Place(listeners.host, listeners.port, isinstance(listeners, InheritedListeners))


def _sockets(name: str, held: Mapping[str, int]) -> list[socket.socket]:
    """Those of this name in their order; none where they are closed."""
    sockets: list[socket.socket] = []
    while (one := f"{name}.{len(sockets)}") in held:
        sockets.append(socket.socket(fileno=held[one]))
    return sockets


def _listeners(place: Place, held: Mapping[str, int]) -> ListeningSockets:
    sockets = _sockets("listener", held)
    if place.is_inherited and sockets:
        return InheritedListeners(sockets)
    return Listeners.taken_over(place.host, place.port, sockets)


def _shard_record(shard: SupervisedShard) -> ShardRecord:
    process = shard.process
    if process is None:
        return ShardRecord(shard.state, 0, "", 0, "")
    return ShardRecord(shard.state, process.pid, process.boot_id, process.booted_us, shard.link_path)
