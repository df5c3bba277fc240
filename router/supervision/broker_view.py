"""Read-only protocols of a running broker, for monitoring pages, status, the system account and metrics.

`router.supervision.broker` implements them; a test may use a plain record instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    import socket

    from gnatswarm.broker.options import Options
    from gnatswarm.router.listening.listener_groups import ListenerGroups
    from gnatswarm.router.supervision.record import RollingRecord
    from gnatswarm.router.supervision.shard_process import ShardProcess
    from gnatswarm.router.supervision.supervision import ShardState
    from gnatswarm.shards.boundary.control import ClusterNews
    from gnatswarm.shards.boundary.page import Page


class RuleState(msgspec.Struct, frozen=True):
    """One rule, as operators see it."""

    rule: str  # as name "orders*"
    together: bool
    shard: int  # where its clients belong now; -1: they stay where they are
    clients: int  # that match it
    in_place: int  # of those: where they belong
    staying: int  # of the others: those with TLS, which cannot move
    msgs_per_s: float
    why: str  # why its clients stay where they are; "": they do not


class ShardView(Protocol):
    """One shard."""

    @property
    def number(self) -> int:
        """The shard's number, from 0."""

    @property
    def state(self) -> ShardState:
        """The state that supervision keeps of it."""

    @property
    def process(self) -> ShardProcess | None:
        """Its running process; None if there is none."""


class RelayView(Protocol):
    """A process that was a shard, and encrypts for clients with TLS that have moved."""

    @property
    def process(self) -> ShardProcess:
        """That process."""

    @property
    def clients(self) -> int:
        """How many they are, and leaf nodes that came by WebSocket."""

    @property
    def ends_at(self) -> float:
        """When they are told to reconnect, by the monotonic clock in seconds."""

    @property
    def is_ending(self) -> bool:
        """Whether they have been told."""


class BrokerView(Protocol):
    """One broker; attributes show its present state."""

    @property
    def pid(self) -> int:
        """The pid of the broker: the keeper's, not the router's."""

    @property
    def options(self) -> Options:
        """The present options."""

    @property
    def configured_us(self) -> int:
        """When the options were last reloaded, µs since 1970; 0: never."""

    @property
    def reload_failed_us(self) -> int:
        """When the last reload failed, even in part, µs since 1970; 0: it did not, or there was none."""

    @property
    def server_id(self) -> str:
        """The server id; as long as a server's public key."""

    @property
    def server_name(self) -> str:
        """The configured name, else the server id."""

    @property
    def stats_dir(self) -> str:
        """The directory of statistics files; "": none are written."""

    @property
    def lost_msgs(self) -> int:
        """Messages in gap rows of the statistics, since the broker began."""

    @property
    def started_at(self) -> float:
        """When it started, on the monotonic clock in seconds."""

    @property
    def page(self) -> Page:
        """The shared page."""

    @property
    def history_fd(self) -> int:
        """A memfd for `router.monitoring.history`, which outlives this router; -1: there is none."""

    @property
    def alarms_fd(self) -> int:
        """A memfd for `router.monitoring.alarms`, which outlives this router; -1: there is none."""

    @property
    def listener_groups(self) -> ListenerGroups:
        """The clients' listening sockets."""

    @property
    def monitor_socket(self) -> socket.socket | None:
        """The listening socket of the monitoring pages; None if they are not served over HTTP."""

    @property
    def cluster_news(self) -> ClusterNews | None:
        """What the gateway told last of the cluster; None: nothing yet."""

    @property
    def is_handoff(self) -> bool:
        """Whether the router accepts connections and hands them to shards."""

    @property
    def is_serving(self) -> bool:
        """Whether every founder has been ready."""

    @property
    def is_leaving(self) -> bool:
        """Whether it is in lame duck mode: no process is started any more."""

    @property
    def rolling(self) -> RollingRecord | None:
        """The rolling restart that is under way."""

    @property
    def wanted(self) -> int:
        """The requested number of shards."""

    @property
    def placed(self) -> Sequence[RuleState]:
        """The placement rules, and how far their clients are where they belong."""

    @property
    def relays(self) -> Sequence[RelayView]:
        """Processes that were shards, and encrypt for clients with TLS that have moved."""

    @property
    def shards(self) -> Sequence[ShardView]:
        """All shards by number, including those that have been removed."""


def cluster_of(view: BrokerView) -> str:
    """The name of the cluster; "": the broker is in none, and states none."""
    if view.listener_groups.servers.get("cluster") is None:
        return view.options.stated_cluster
    from gnatswarm.broker.info import cluster_name  # here: a router starts its shards before it needs this

    news = view.cluster_news
    return news.name if news is not None else cluster_name(view.options.cluster.name, view.server_id)
