"""What the router itself knows of its broker at one moment, without asking any shard: the input of most pages.

Read from the shared page, the supervisor's states and /proc; costs a few system calls per shard and nothing at all in
the shards. Rates of CPU time need two looks, which `Meter` remembers.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import msgspec

from broker.info import advertised
from broker.options import GLOBAL_ACCOUNT

if TYPE_CHECKING:
    from broker.options import Options
    from router.supervisor import Supervisor

# Two looks closer than this say nothing of a rate: /proc counts hundredths of a second.
SHORTEST_SAMPLE_S = 0.5
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class ShardFacts(msgspec.Struct):
    """One shard. The counters are of all its processes since the broker started, gauges of the present one."""

    shard: int
    pid: int  # 0: no process
    phase: str
    is_wanted: bool  # it should run
    is_accepting: bool
    is_suspect: bool  # late with its answer to the router
    starts: int
    last_reason: str  # why its last process ended
    cpu_s: float
    cpu_percent: float
    resident_bytes: int
    connections: int
    total_connections: int
    subscriptions: int
    in_msgs: int
    out_msgs: int
    in_bytes: int
    out_bytes: int
    slow_consumers: int
    stalls: int
    link_in_msgs: int
    link_out_msgs: int
    links: int
    loop_lag_us: int
    refused_logins: int = 0
    failed_handshakes: int = 0


class Facts(msgspec.Struct):
    """The broker."""

    server_id: str
    server_name: str
    options: Options
    host: str
    port: int
    websocket_port: int  # 0: none
    http_host: str
    http_port: int  # 0: the pages are encrypted, or there are none
    https_port: int
    created_us: int
    configured_us: int
    now_us: int
    is_serving: bool  # every shard it started with has been ready
    router_pid: int
    router_cpu_percent: float
    router_resident_bytes: int
    cores: int
    is_recorded: bool  # the shards' recorders count by subject and window
    shards: list[ShardFacts]

    @property
    def accounts(self) -> list[str]:
        """Their names, the system's and the one of users in none included."""
        ours = [self.options.system_account, GLOBAL_ACCOUNT]
        return ours + [account.name for account in self.options.accounts if account.name not in ours]

    def only(self, shard: int | None) -> Facts:
        """The same broker, seen as if it had that one shard alone; None: as it is."""
        if shard is None:
            return self
        return msgspec.structs.replace(self, shards=[one for one in self.shards if one.shard == shard])


class Meter:
    """CPU time of processes, as a rate since the look before."""

    def __init__(self) -> None:
        self._before: dict[int, tuple[float, float, float]] = {}  # pid: when, CPU seconds then, percent before that

    def percent(self, pid: int, cpu_s: float) -> float:
        """Of one core, since the last look that is long enough ago; 0 at the first."""
        now = time.monotonic()
        at, cpu_then_s, percent = self._before.get(pid, (0.0, 0.0, 0.0))
        if at and now - at < SHORTEST_SAMPLE_S:
            return percent
        percent = 100 * (cpu_s - cpu_then_s) / (now - at) if at else 0.0
        self._before[pid] = (now, cpu_s, max(percent, 0.0))
        return max(percent, 0.0)

    def forget_all_but(self, pids: set[int]) -> None:
        """Processes that are gone."""
        for pid in self._before.keys() - pids:
            del self._before[pid]


def gather(supervisor: Supervisor, meter: Meter, *, http: tuple[str, int], cores: int) -> Facts:
    """The facts now; `http` is where the pages are.

    A shard that has left for good is there for its counters, until nothing was ever counted.
    """
    shards = []
    for shard in supervisor.shards:
        slot = supervisor.page.snapshot(shard.number)
        pid = shard.process.pid if shard.process is not None else 0
        cpu_s, resident_bytes = process_use(pid)
        shards.append(
            ShardFacts(
                shard=shard.number,
                pid=pid,
                phase=shard.state.phase.value,
                is_wanted=shard.number < supervisor.wanted,
                is_accepting=shard.state.is_accepting,
                is_suspect=shard.state.is_suspect,
                starts=shard.state.starts,
                last_reason=shard.state.last_reason,
                cpu_s=cpu_s,
                cpu_percent=meter.percent(pid, cpu_s) if pid else 0.0,
                resident_bytes=resident_bytes,
                **{name: slot[name] for name in _FROM_PAGE},
            )
        )
    options, clients = supervisor.options, supervisor.doors.clients
    host, port = advertised(options.client_advertise, options.host or "0.0.0.0", clients.port)
    own_cpu_s, own_resident_bytes = process_use(os.getpid())
    percent = meter.percent(os.getpid(), own_cpu_s)
    meter.forget_all_but({os.getpid(), *(one.pid for one in shards)})
    return Facts(
        server_id=supervisor.server_id,
        server_name=supervisor.server_name,
        options=options,
        host=host,
        port=port,
        websocket_port=supervisor.doors.websocket.port if supervisor.doors.websocket else 0,
        http_host=http[0],
        http_port=0 if options.https_port else http[1],
        https_port=http[1] if options.https_port else 0,
        created_us=supervisor.page.created_us,
        configured_us=supervisor.configured_us or supervisor.page.created_us,
        now_us=time.time_ns() // 1000,
        is_serving=supervisor.is_serving,
        router_pid=os.getpid(),
        router_cpu_percent=percent,
        router_resident_bytes=own_resident_bytes,
        cores=cores,
        is_recorded=bool(supervisor.stats_dir),
        shards=shards,
    )


_FROM_PAGE = (
    "connections",
    "total_connections",
    "subscriptions",
    "in_msgs",
    "out_msgs",
    "in_bytes",
    "out_bytes",
    "slow_consumers",
    "stalls",
    "link_in_msgs",
    "link_out_msgs",
    "links",
    "loop_lag_us",
    "refused_logins",
    "failed_handshakes",
)


def process_use(pid: int) -> tuple[float, int]:
    """(CPU seconds so far, resident bytes) of a process; zeros when it is gone, or for pid 0."""
    if not pid:
        return 0.0, 0
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return 0.0, 0
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS, int(fields[21]) * PAGE_BYTES
