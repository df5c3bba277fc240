"""Notifications to a service manager such as systemd: sd_notify(3), one datagram per message to $NOTIFY_SOCKET.

READY=1 once every shard accepts; STATUS= when it changes; RELOADING=1 and READY=1 around a reload; STOPPING=1;
WATCHDOG=1 only while every wanted shard answers its pings. A message that cannot be sent is dropped, because the broker
must not wait for a service manager. The keeper sends them, because a service manager listens to the main process.
Called by the supervisor; costs nothing without such a socket.
"""

from __future__ import annotations

import time
from collections.abc import Callable, MutableMapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gnatswarm.router.supervision.supervision import ShardState

# WATCHDOG=1 must come within the watchdog's time; sd_watchdog_enabled(3) advises half of it, a third allows for a late
# tick as well.
FEEDS_PER_WATCHDOG_TIME = 3

# The number of connections changes all the time; STATUS= is sent at most this often for that alone.
STATUS_EVERY_S = 10.0


class Notifier:
    """Sends to the service manager at this address ("": there is none; "@…" is abstract)."""

    def __init__(self, address: str = "", watchdog_us: int = 0) -> None:
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._feed_every_s = watchdog_us / 1e6 / FEEDS_PER_WATCHDOG_TIME  # 0: no watchdog
        self._fed_at = -float("inf")
        self._status = ""
        self._said: tuple[bool, int, int] | None = None  # the last status, without connections
        self._said_at = -float("inf")
        self._is_ready = False
        self._is_stopping = False
        self._sender: Callable[[str, str], None] | None = None  # address, text

    @classmethod
    def take(cls, environment: MutableMapping[str, str], pid: int) -> Notifier:
        """A notifier from the service manager's variables for this process, which are removed from the environment."""
        address = environment.pop("NOTIFY_SOCKET", "")
        watchdog = environment.pop("WATCHDOG_USEC", "")
        meant = environment.pop("WATCHDOG_PID", str(pid))
        has_watchdog = watchdog.isascii() and watchdog.isdigit() and meant == str(pid)
        # Only paths and abstract names are supported (not vsock, as from systemd on a virtual machine's host).
        return cls(address if address[:1] in ("/", "@") else "", int(watchdog) if has_watchdog else 0)

    def send_by(self, sender: Callable[[str, str], None]) -> None:
        """Send by this function of the address and the text; until then nothing is sent."""
        if self._address:
            self._sender = sender

    def observe(self, shards: Sequence[ShardState], *, is_serving: bool, is_leaving: bool, connections: int) -> None:
        """Send what has changed, and WATCHDOG=1 when it is due. Called at every tick and every decision.

        `is_serving`: every founder has been ready; `is_leaving`: no process is started any more.
        """
        if self._sender is None:
            return
        if is_leaving:
            self.stopping()
        # A retiring shard is not counted, even if another follows it (a rolling restart), but it must still answer its
        # pings; an ended one is not pinged.
        wanted = [shard for shard in shards if shard.is_wanted and not shard.is_retiring]
        accepting = sum(shard.is_accepting for shard in wanted)
        now = time.monotonic()
        said = (is_leaving, accepting, sum(shard.has_process for shard in shards) if is_leaving else len(wanted))
        if said != self._said or now - self._said_at >= STATUS_EVERY_S:
            self._said, self._said_at = said, now
            if is_leaving:
                status = f"leaving: {said[2]} shards are still there"
            else:
                doing = "serving" if is_serving else "starting"
                status = f"{doing}: {accepting} of {len(wanted)} shards accept"
            status += f", {connections} connection{'' if connections == 1 else 's'}"
            if status != self._status:
                self._status = status
                self._send(f"STATUS={status}")
        # After the status, so that whoever has waited for it finds the status true.
        if is_serving and not is_leaving and not self._is_ready:
            self._is_ready = self._send("READY=1")
        answers = accepting == len(wanted) and not any(shard.is_suspect for shard in shards)
        if self._feed_every_s and answers and now - self._fed_at >= self._feed_every_s:
            self._fed_at = now
            self._send("WATCHDOG=1")

    def reloading(self) -> None:
        """A reload begins; `reloaded` must follow, however it ends."""
        # systemd needs CLOCK_MONOTONIC to distinguish this reload from an earlier one (Type=notify-reload).
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}", "STATUS=reloading")

    def reloaded(self, problem: str = "") -> None:
        """The reload has ended; `problem` says why it changed nothing."""
        # This status stays until the next change, so that a failed reload is seen.
        self._send("READY=1", f"STATUS={problem or self._status}")

    def stopping(self) -> None:
        """The broker is stopping."""
        if not self._is_stopping:
            self._is_stopping = True
            self._send("STOPPING=1")

    def _send(self, *fields: str) -> bool:
        if self._sender is None:
            return False
        self._sender(self._address, "\n".join(fields))
        return True
