"""Monitoring state shared by HTTP and the system account: facts, questions to shards, the pages.

Created when one of them first needs it. It has no transport and no format of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gnatswarm.router.config.cores import usable_cores
from gnatswarm.router.listening import monitor_socket
from gnatswarm.router.monitoring.alarms import Alarms
from gnatswarm.router.monitoring.facts import SERVERS_TRAFFIC, Facts, Meter, gather
from gnatswarm.router.monitoring.history import COUNTERS, History
from gnatswarm.router.monitoring.pages import Pages
from gnatswarm.router.monitoring.shard_questions import ShardQuestions

if TYPE_CHECKING:
    from gnatswarm.router.supervision.broker_commands import ShardChannels
    from gnatswarm.router.supervision.broker_view import BrokerView


class MonitoringState:
    """The monitoring state of one broker. Its owner tells `questions` what shards reply, and which are gone."""

    def __init__(self, view: BrokerView, channels: ShardChannels) -> None:
        self._view = view
        self._cores = usable_cores()
        self._meter = Meter()
        self.address = view.options.http_host, 0  # of the pages over HTTP; port 0: not served
        sock = view.monitor_socket
        if sock is not None:
            self.address = monitor_socket.address(sock, view.options)
        self.requests: dict[str, int] = {}  # over HTTP, by path
        self.questions = ShardQuestions(channels.tell)
        self.history = History(self._totals, fd=view.history_fd)  # started when pages are served over HTTP
        self._alarm_meter = Meter()  # of its own: a look must not shorten what pages measure over
        self.alarms = Alarms(  # likewise
            self._gather_for_alarms, lambda facts: self.pages.asked_metrics(facts), fd=view.alarms_fd
        )
        self.pages = Pages(self.gather, self.questions, self.requests, self.history, self.alarms)

    def _totals(self) -> dict[str, int]:
        page = self._view.page
        slots = [page.snapshot(shard.number) for shard in self._view.shards]
        servers = dict(zip(SERVERS_TRAFFIC, page.servers_traffic, strict=True))
        totals = {name: sum(slot[name] for slot in slots) + servers.get(f"servers_{name}", 0) for name in COUNTERS}
        return totals | {"connections": page.connections}  # some may be on their way between shards

    def gather(self) -> Facts:
        """The facts now."""
        return gather(self._view, self._meter, http=self.address, cores=self._cores)

    def _gather_for_alarms(self) -> Facts:
        return gather(self._view, self._alarm_meter, http=self.address, cores=self._cores)
