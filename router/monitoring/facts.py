"""Facts: what the router knows about its broker at one moment without asking a shard; the input of most pages.

Read from the shared page, the shards' states and /proc; costs a few system calls per shard in the router, and nothing
in the shards. CPU rates need two readings; `Meter` keeps the earlier one.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import msgspec

from gnatswarm.broker.info import advertised
from gnatswarm.broker.options import GLOBAL_ACCOUNT
from gnatswarm.router.supervision.broker_view import RuleState, cluster_of
from gnatswarm.router.supervision.operator_socket import RelayStatus
from gnatswarm.router.supervision.status import relays
from gnatswarm.shards.boundary.control import GATEWAY_NUMBER
from gnatswarm.shards.boundary.process_use import process_use

if TYPE_CHECKING:
    from gnatswarm.broker.options import Options
    from gnatswarm.router.supervision.broker_view import BrokerView

# Two readings closer than this give no useful rate, because /proc counts hundredths of a second.
SHORTEST_SAMPLE_S = 0.5


class ShardFacts(msgspec.Struct):
    """One shard. Counters include all its processes since the broker started, gauges only the present one."""

    shard: int
    pid: int  # 0: no process
    phase: str
    is_wanted: bool  # it should run
    is_accepting: bool
    is_suspect: bool  # its answer to the router's ping is late
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
    stale_connections: int = 0
    deaths: int = 0  # of its processes, which nobody had asked for
    denied_msgs: int = 0  # of in_msgs
    denied_subscriptions: int = 0
    has_headroom: bool = True  # descriptors for more clients
    unwritten_msgs: int = 0  # of in_msgs: no statistics on disk have them, nor a gap row


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
    uptime_us: int  # whatever the wall clock was set to meanwhile
    is_serving: bool  # every founder has been ready
    pid: int  # of the broker: the keeper's
    router_pid: int
    router_cpu_percent: float  # the keeper included
    router_resident_bytes: int  # the keeper included
    cores: int
    is_recorded: bool  # the shards have recorders, which count by subject and window
    shards: list[ShardFacts]
    cluster_name: str = ""  # "": there is no cluster
    cluster_port: int = 0
    members: int = 0  # other members of the cluster that are connected
    connect_urls: tuple[str, ...] = ()  # that clients are told
    placed: list[RuleState] = []  # the placement rules
    relays: list[RelayStatus] = []  # processes that were replaced, and encrypt for clients with TLS that have moved
    server_ports: dict[str, int] = {}  # bound ports for other servers, by kind as in Options.server_ports
    slow_servers: int = 0  # other servers' connections that were closed as slow consumers
    servers_in_msgs: int = 0  # from other servers, since the broker began
    servers_in_bytes: int = 0
    servers_out_msgs: int = 0
    servers_out_bytes: int = 0
    reload_failed_us: int = 0  # when the last reload failed, even in part; 0: it did not, or there was none
    moving: int = 0  # connections that no shard has just now, because they are on their way to another one
    lost_msgs: int = 0  # in gap rows of the statistics, since the broker began

    @property
    def connections(self) -> int:
        """Client connections, now."""
        return sum(one.connections for one in self.shards) + self.moving

    @property
    def wanted_shards(self) -> int:
        """How many shards there are meant to be: one that was removed is here because of its counters."""
        return sum(one.is_wanted for one in self.shards)

    @property
    def accounts(self) -> list[str]:
        """All account names, including the system account and $G."""
        ours = [self.options.system_account, GLOBAL_ACCOUNT]
        return ours + [account.name for account in self.options.accounts if account.name not in ours]

    def only(self, shard: int | None) -> Facts:
        """The facts as if the broker had only this shard; None: unchanged."""
        if shard is None:
            return self
        shards = [one for one in self.shards if one.shard == shard]
        return msgspec.structs.replace(
            self, shards=shards, moving=0, slow_servers=0, **dict.fromkeys(SERVERS_TRAFFIC, 0)
        )


class Meter:
    """CPU use of processes, as a rate since the last reading."""

    def __init__(self) -> None:
        self._before: dict[int, tuple[float, float, float]] = {}  # pid: when, CPU seconds then, percent before that

    def percent(self, pid: int, cpu_s: float) -> float:
        """Percent of one core since the last reading that is long enough ago; 0 at the first."""
        now = time.monotonic()
        at, cpu_then_s, percent = self._before.get(pid, (0.0, 0.0, 0.0))
        if at and now - at < SHORTEST_SAMPLE_S:
            return percent
        percent = 100 * (cpu_s - cpu_then_s) / (now - at) if at else 0.0
        self._before[pid] = (now, cpu_s, max(percent, 0.0))
        return max(percent, 0.0)

    def forget_all_but(self, pids: set[int]) -> None:
        """Forget processes that are gone."""
        for pid in self._before.keys() - pids:
            del self._before[pid]


def gather(view: BrokerView, meter: Meter, *, http: tuple[str, int], cores: int) -> Facts:
    """The facts now; `http` is the address of the pages.

    A removed shard is included because of its counters, unless all of them are 0.
    """
    shards, slots = [], [view.page.snapshot(GATEWAY_NUMBER)]
    for shard in view.shards:
        slot = view.page.snapshot(shard.number)
        slots.append(slot)
        pid = shard.process.pid if shard.process is not None else 0
        use = process_use(pid)
        shards.append(
            ShardFacts(
                shard=shard.number,
                pid=pid,
                phase=shard.state.phase.value,
                is_wanted=shard.number < view.wanted,
                is_accepting=shard.state.is_accepting,
                is_suspect=shard.state.is_suspect,
                starts=shard.state.starts,
                deaths=shard.state.all_deaths,
                last_reason=shard.state.last_reason,
                has_headroom=shard.state.has_headroom or not shard.state.has_process,
                cpu_s=use.cpu_s,
                cpu_percent=meter.percent(pid, use.cpu_s) if pid else 0.0,
                resident_bytes=use.resident_bytes,
                **{name: slot[name] for name in _FROM_PAGE},
            )
        )
    options, clients = view.options, view.listener_groups.clients
    host, port = advertised(options.client_advertise, options.host or "0.0.0.0", clients.port)
    cluster_listeners, news = view.listener_groups.servers.get("cluster"), view.cluster_news
    own = {os.getpid(), view.pid}
    uses = {pid: process_use(pid) for pid in own}
    percent = sum(meter.percent(pid, use.cpu_s) for pid, use in uses.items())
    meter.forget_all_but({*own, *(one.pid for one in shards)})
    return Facts(
        server_id=view.server_id,
        server_name=view.server_name,
        options=options,
        host=host,
        port=port,
        server_ports={kind: one.port for kind, one in view.listener_groups.servers.items()},
        websocket_port=view.listener_groups.websocket.port if view.listener_groups.websocket else 0,
        http_host=http[0],
        http_port=0 if options.https_port else http[1],
        https_port=http[1] if options.https_port else 0,
        created_us=view.page.created_us,
        configured_us=view.configured_us or view.page.created_us,
        now_us=time.time_ns() // 1000,
        uptime_us=round((time.monotonic() - view.started_at) * 1e6),
        is_serving=view.is_serving,
        pid=view.pid,
        router_pid=os.getpid(),
        router_cpu_percent=percent,
        router_resident_bytes=sum(use.resident_bytes for use in uses.values()),
        cores=cores,
        is_recorded=bool(view.stats_dir),
        moving=view.page.connections - sum(slot["connections"] for slot in slots),
        lost_msgs=view.lost_msgs,
        shards=shards,
        cluster_name=cluster_of(view),
        cluster_port=cluster_listeners.port if cluster_listeners is not None else 0,
        members=news.members if news is not None else 0,
        connect_urls=(*news.own_urls, *news.urls) if news is not None else (),
        placed=list(view.placed),
        relays=relays(view),
        slow_servers=slots[0]["slow_consumers"] if options.has_gateway else 0,
        reload_failed_us=view.reload_failed_us,
        **dict(zip(SERVERS_TRAFFIC, view.page.servers_traffic, strict=True)),
    )


# In the order of the shared page's `servers_traffic`.
SERVERS_TRAFFIC = ("servers_in_msgs", "servers_in_bytes", "servers_out_msgs", "servers_out_bytes")
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
    "stale_connections",
    "denied_msgs",
    "denied_subscriptions",
    "unwritten_msgs",
)
