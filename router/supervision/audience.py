"""The supervisor's sink for what does not concern supervision itself. Given to its constructor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from gnatswarm.shards.boundary.control import ControlMessage


class Audience(Protocol):
    """Every call comes from the event loop, and has to return soon."""

    def on_message(self, shard: int, message: ControlMessage) -> None:
        """A shard said something that changes no state: an answer to a question, a request in the system account."""

    def on_shard_gone(self, shard: int) -> None:
        """Its process was reaped: it answers no question any more."""

    def on_operator_socket(self) -> None:
        """Somebody removed the operators' socket, and there is another one now."""

    def on_stopping(self) -> None:
        """The broker is about to stop; shards can be told things for the last time."""

    def on_lame_duck(self) -> None:
        """The broker begins to leave slowly."""
