"""The supervisor's sink for events that do not concern supervision itself. Given to its constructor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from gnatswarm.shards.boundary.control import ControlMessage


class Audience(Protocol):
    """Every method is called from the event loop and must return soon."""

    def on_message(self, shard: int, message: ControlMessage) -> None:
        """A shard sent a message that changes no state, such as the answer to a question or a system request."""

    def on_shard_gone(self, shard: int) -> None:
        """The shard's process was reaped: it will not answer questions any more."""

    def on_operator_socket(self) -> None:
        """The operator socket was removed by somebody, and there is a new one."""

    def on_stopping(self) -> None:
        """The broker is about to stop; this is the last chance to send messages to shards."""

    def on_lame_duck(self) -> None:
        """Lame duck mode begins."""
