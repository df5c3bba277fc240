"""Message tracing whose documents a test looks at."""

from __future__ import annotations

from gnatswarm.broker.message_trace import is_destination
from gnatswarm.shards.clients.message_tracing import MessageTracing


class AllWanted(MessageTracing):
    """Documents are made whether anybody subscribes to their destination or not."""

    def _is_wanted(self, account: bytes, destination: bytes) -> bool:
        return is_destination(destination)
