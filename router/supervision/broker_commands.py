"""Commands to a running broker, from signals, operators and a new configuration.

`router.supervision.supervisor` carries it out; messages to shards go through `router.supervision.broker`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from gnatswarm.router.supervision.record import RollingRecord
    from gnatswarm.router.supervision.standby import Readiness
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


class RollingCommands(Protocol):
    """The steps of a rolling restart; each returns at once."""

    def begin_rolling(self, rolling: RollingRecord) -> str:
        """Start one shard more than wanted, and remember the plan; "" or why not."""

    def replace(self, number: int, within_s: float, to: list[int], relay_s: float) -> None:
        """Have this shard move its clients to those in `to` and end, within that time; its next process follows.

        `relay_s`: for so long its process encrypts for those with TLS; 0: they are told to reconnect.
        """

    def end_relays(self) -> int:
        """Have the clients of relays reconnect; returns how many those are that had not been told."""

    def prepare_gateway(self) -> None:
        """Start the gateway's next process, which waits until it is used."""

    @property
    def gateway_readiness(self) -> Readiness:
        """Whether that process is ready to be used."""

    def replace_gateway(self, within_s: float) -> None:
        """End the gateway's process within this time; its next one follows."""

    def start_stopped(self, number: int) -> None:
        """Start this shard, which has no process."""

    def end_rolling(self, within_s: float, to: list[int] | None = None, then: RollingRecord | None = None) -> None:
        """Have the additional shard leave, with its clients to `to` (None: to all that serve); `then` is left to do."""

    def note_rolling(self, rolling: RollingRecord | None) -> None:
        """This is left to do."""


class ShardChannels(Protocol):
    """Sends messages that change no shard's state to the shards."""

    def tell(self, shard: int, message: ControlMessage) -> bool:
        """Send this message to one shard. False if it has no process."""

    def tell_all(self, message: ControlMessage) -> None:
        """Send this message to every shard that has a process."""
