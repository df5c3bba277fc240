"""Relays: processes that were shards, and encrypt for clients with TLS that have moved to others, and for leaf nodes.

After a rolling restart or upgrade there is one for each old shard that had such clients, and wherever a shard has left
that had leaf nodes by WebSocket with TLS: those are in the gateway. It ends when they have left.
When its time is over, when an operator wants it, or when restarts one after another have left too many younger ones,
its clients are told to reconnect, by the shards that they are in, and closed by the relay. It is not supervised: where
it dies its clients alone are disconnected, and where it hangs their shards find them stale. Called by the supervisor.
"""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING

from gnatswarm.router.supervision.broker import SupervisedRelay
from gnatswarm.shards.boundary.control import EndRelay, Relays, RelaysEnd, Stop

if TYPE_CHECKING:
    from gnatswarm.router.supervision.broker import SupervisedBroker
    from gnatswarm.router.supervision.shard_process import ShardProcess

log = logging.getLogger("gnatswarm.router")

# Its clients are told, and closed in the second half of this time, as those of a shard that leaves.
END_WITHIN_S = 20.0
# A relay has the memory of its old shard. Those of the last four restarts stay, or so many where the shards are few.
MOST_PER_SHARD = 4
LEAST = 16
# From Stop to SIGKILL; a relay takes 1.5 s for the last bytes of its clients.
STOP_WITHIN_S = 3.0


class RelayKeeping:
    """Those of one broker."""

    def __init__(self, broker: SupervisedBroker) -> None:
        self._broker = broker
        self._kill_at = math.inf

    def of(self, process: ShardProcess) -> SupervisedRelay | None:
        """The relay that this process is, if it is one."""
        return next((one for one in self._broker.relays if one.process is process), None)

    def add(self, process: ShardProcess) -> None:
        """This process has become one."""
        self._broker.relays.append(SupervisedRelay(process))

    def on_message(self, relay: SupervisedRelay, message: object) -> None:
        """It has said something."""
        if isinstance(message, Relays):
            relay.clients = message.clients
            relay.is_ending = relay.is_ending or message.ends_in_s < 0
            relay.ends_at = time.monotonic() + max(0.0, message.ends_in_s)

    def on_exited(self, pid: int, reason: str) -> bool:
        """A process has been reaped; False: it was no relay."""
        relay = next((one for one in self._broker.relays if one.process.pid == pid), None)
        if relay is None:
            return False
        relay.process.on_exited()
        relay.process.close()
        self._broker.relays.remove(relay)
        log.info("The relay of shard %d, process %d, has ended (%s)", relay.process.shard, pid, reason)
        return True

    def on_tick(self) -> None:
        """Time has passed."""
        now = time.monotonic()
        going_on = [one for one in self._broker.relays if not one.is_ending]
        surplus = len(going_on) - max(LEAST, MOST_PER_SHARD * self._broker.wanted)
        self.end([one for number, one in enumerate(going_on) if number < surplus or now >= one.ends_at])
        if now >= self._kill_at:
            self.kill()

    def end(self, relays: list[SupervisedRelay]) -> int:
        """Have the clients of these reconnect, and these end; returns how many clients that are."""
        ending = [one for one in relays if not one.is_ending]
        if not ending:
            return 0
        within_s = max(END_WITHIN_S, self._broker.options.limits.lame_duck_grace_s)
        told = RelaysEnd([one.process.boot_id for one in ending])
        for shard in self._broker.shards:
            if shard.process is not None:
                shard.process.send(told)
        for one in ending:
            one.is_ending = True
            one.process.send(EndRelay(within_s))
        clients = sum(one.clients for one in ending)
        log.info("%d connections with TLS of processes before end within %g s; clients are told", clients, within_s)
        return clients

    def stop(self) -> None:
        """The shards have ended, or end now: so do relays when their clients have their last bytes."""
        if self._kill_at == math.inf:
            self._kill_at = time.monotonic() + STOP_WITHIN_S
            for one in self._broker.relays:
                one.process.send(Stop())

    def kill(self) -> None:
        """End them at once."""
        for one in self._broker.relays:
            one.process.kill()

    def close(self) -> None:
        """Kill and reap them."""
        self.kill()
        for one in self._broker.relays:
            one.process.wait_exit()
            one.process.close()
        self._broker.relays.clear()
