"""Commands to a running broker, from signals, operators and a new configuration.

`router.supervision.supervisor` carries it out; messages to shards go through `router.supervision.broker`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from gnatswarm.shards.boundary.control import ControlMessage


class BrokerCommands(Protocol):
    """Each command returns at once; its effects show in the shards' states."""

    def scale(self, wanted: int) -> str:
        """Begin to run this many shards; "" or why not."""

    def kill_shard(self, number: int) -> None:
        """Kill its process as a crash would, without counting it as a crash."""

    def become_lame_duck(self) -> None:
        """Begin lame duck mode: no new connections, clients are told to reconnect and closed over time, then exit 0."""

    def stop(self, exit_code: int) -> None:
        """Stop every shard, bounded in time; a second call kills those that have not stopped."""


class ShardChannels(Protocol):
    """Sends messages that change no shard's state to the shards."""

    def tell(self, shard: int, message: ControlMessage) -> bool:
        """Send this message to one shard. False if it has no process."""

    def tell_all(self, message: ControlMessage) -> None:
        """Send this message to every shard that has a process."""
