"""What everybody shares who asks for pages, over HTTP or in the system account: facts, questions to shards, the pages.

Made when the first of them asks. Here is no transport and no format of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from router import monitor_socket
from router.cores import usable_cores
from router.facts import Facts, Meter, gather
from router.pages import Pages
from router.shard_questions import ShardQuestions

if TYPE_CHECKING:
    from router.supervisor import Supervisor


class Desk:
    """That of one supervisor."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._cores = usable_cores()
        self._meter = Meter()
        self.address = supervisor.options.http_host, 0  # of the pages over HTTP; port 0: there are none
        sock = supervisor.monitor_socket
        if sock is not None:
            self.address = monitor_socket.address(sock, supervisor.options)
        self.requests: dict[str, int] = {}  # over HTTP, by path
        self.questions = ShardQuestions(supervisor.tell)
        supervisor.on_snapshot_reply = self.questions.on_reply
        supervisor.on_shard_gone = self.questions.on_gone
        self.pages = Pages(self.gather, self.questions, self.requests)

    def gather(self) -> Facts:
        """The facts now."""
        return gather(self._supervisor, self._meter, http=self.address, cores=self._cores)
