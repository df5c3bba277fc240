"""What those who only look see of a running broker: pages, status, answers, metrics. Nothing here changes anything.

`router.supervision.broker` is what stands behind it; a test may put a plain record in its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import socket

    from gnatswarm.broker.options import Options
    from gnatswarm.router.listening.listener_groups import ListenerGroups
    from gnatswarm.router.supervision.shard_process import ShardProcess
    from gnatswarm.router.supervision.supervision import ShardState
    from gnatswarm.shards.boundary.page import Page


class ShardView(Protocol):
    """One shard."""

    @property
    def number(self) -> int:
        """From 0."""

    @property
    def state(self) -> ShardState:
        """All that supervision remembers of it."""

    @property
    def process(self) -> ShardProcess | None:
        """The one that runs; None: none does."""


class BrokerView(Protocol):
    """One broker, as it is at the moment of each look."""

    @property
    def options(self) -> Options:
        """Those that hold now."""

    @property
    def configured_us(self) -> int:
        """When the options were last reloaded, µs since 1970; 0: never."""

    @property
    def server_id(self) -> str:
        """As long as a server's public key."""

    @property
    def server_name(self) -> str:
        """As configured, else the id."""

    @property
    def stats_dir(self) -> str:
        """Where statistics go; "": nowhere."""

    @property
    def started_at(self) -> float:
        """On the monotonic clock, in seconds."""

    @property
    def page(self) -> Page:
        """The shared page."""

    @property
    def listener_groups(self) -> ListenerGroups:
        """The clients' listening sockets."""

    @property
    def monitor_socket(self) -> socket.socket | None:
        """That of the monitoring pages; None: there are none over HTTP."""

    @property
    def is_handoff(self) -> bool:
        """Whether the router accepts, not the kernel."""

    @property
    def is_serving(self) -> bool:
        """Whether every founder was ready once."""

    @property
    def is_leaving(self) -> bool:
        """Whether it is a lame duck: no process is started any more."""

    @property
    def wanted(self) -> int:
        """How many shards there should be."""

    @property
    def shards(self) -> Sequence[ShardView]:
        """By number; those that have left for good included."""
