"""Hand-off: the router accepts each connection and passes it to the least loaded shard (accept mode "handoff").

For an even spread of few connections, and for systems whose kernel does not balance. The router never reads or writes
client data: a socket is accepted, sent over the shard's descriptor queue (shards.boundary.handoff) and closed here.
Invariant: an accepted socket is in exactly one place: here, in one queue, or with one shard; sockets in a dead shard's
queue go to other shards. When no shard accepts, connections wait in the listener's backlog.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping

from gnatswarm.router.listening.listeners import BACKLOG
from gnatswarm.router.listening.placement import Candidate, place
from gnatswarm.shards.boundary.handoff import (
    NOT_RECEIVED,
    SOCKETS_PER_PACKET,
    handoff_pair,
    receive_descriptors,
    send_descriptors,
)
from gnatswarm.shards.boundary.page import Page

log = logging.getLogger("gnatswarm.router.handoff")

# A full queue empties within a turn of the shard's loop.
QUEUE_RETRY_S = 0.005
# When descriptors run out, or the kernel forbids something, trying again at once would loop at full CPU.
DESCRIPTOR_RETRY_S = 0.1
# The log has one line for the tries of this time.
SAID_EVERY_S = 1.0


class Lane:
    """The queue of sockets on their way to one shard; the router keeps both ends as long as it lives."""

    def __init__(self, ends: tuple[socket.socket, socket.socket] | None = None) -> None:
        self.router_end, self.shard_end = ends or handoff_pair()
        self.sent = 0  # sockets passed to the shard's present process
        self.accepted_before = 0  # accepted_sockets on the page when that process started
        self.last_given = 0

    def close(self) -> None:
        self.router_end.close()
        self.shard_end.close()


class Handoff:
    """Accepts on one listener and places the connections. `accepting()` returns the shards that take some now.

    `may_refuse`: the listener is no service manager's, and end() has it refuse connections.
    """

    def __init__(
        self, listener: socket.socket, page: Page, accepting: Callable[[], list[int]], *, may_refuse: bool = False
    ) -> None:
        self._listener = listener
        self._page = page
        self._accepting = accepting
        self._may_refuse = may_refuse
        self._last: list[int] | None = None  # the shards that take the last ones; None: it has not ended
        self._lanes: dict[int, Lane] = {}
        self._homeless: list[int] = []  # accepted or taken back, and not placed yet
        self._given = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_reading = False
        self._retry: asyncio.TimerHandle | None = None
        self._say_at_s: dict[str, float] = {}  # by what is said: not before

    def shard_fd(self, shard: int) -> int:
        """The shard's end of its queue, which it inherits; the queue is made on first use."""
        lane = self._lanes.get(shard)
        if lane is None:
            lane = self._lanes[shard] = Lane()
        lane.sent = 0
        lane.accepted_before = self._page.snapshot(shard)["accepted_sockets"]
        return lane.shard_end.fileno()

    def holdings(self) -> dict[str, int]:
        """The descriptors of both ends of the queues, by names."""
        return {
            f"lane.{shard}.{name}": end.fileno()
            for shard, lane in self._lanes.items()
            for name, end in (("router", lane.router_end), ("shard", lane.shard_end))
        }

    def take_over(self, held: Mapping[str, int]) -> None:
        """Use the queues of another router, with the sockets in them; those that it had not queued yet are lost."""
        for name, descriptor in held.items():
            word, _, rest = name.partition(".")
            shard, _, end = rest.partition(".")
            if word == "lane" and end == "router":
                ends = socket.socket(fileno=descriptor), socket.socket(fileno=held[f"lane.{shard}.shard"])
                lane = self._lanes[int(shard)] = Lane(ends)
                lane.accepted_before = self._page.snapshot(int(shard))["accepted_sockets"]

    def start(self) -> None:
        """Start accepting, on the running event loop."""
        self._loop = asyncio.get_running_loop()
        self.shards_changed()

    def shards_changed(self) -> None:
        """To be called when the result of `accepting()` has changed."""
        if self._loop is None:
            return
        self._place_homeless()
        self._read_or_wait()

    def take_back(self, shard: int) -> None:
        """The shard's process is gone: give the sockets in its queue to other shards."""
        lane = self._lanes.get(shard)
        if lane is None:
            return
        while descriptors := receive_descriptors(lane.shard_end):
            self._homeless += [descriptor for descriptor in descriptors if descriptor != NOT_RECEIVED]
        lane.sent = 0
        lane.accepted_before = self._page.snapshot(shard)["accepted_sockets"]
        if self._last is not None and shard in self._last:
            self._last.remove(shard)
            self.shards_changed()

    def end(self, listening: Iterable[int]) -> None:
        """The broker ends: accept those that wait, and nobody any more. It closes when all are in a queue.

        Shards that accept now read theirs to the end; where none does, because they are late, those that are
        `listening`. Again it does nothing.
        """
        if self._loop is None:
            self.close()
            return
        if self._last is not None:
            return
        self._last = self._accepting() or [shard for shard in listening if shard in self._lanes]
        for _ in range(BACKLOG // SOCKETS_PER_PACKET):
            if not self._last or not self._accept_some():
                break
            self._place_homeless()
        if self._may_refuse:
            with contextlib.suppress(OSError):  # other kernels than Linux's may refuse that
                self._listener.shutdown(socket.SHUT_RDWR)
        self.shards_changed()

    def close(self) -> None:
        """Stop accepting; close the sockets that are still here, which disconnects their clients."""
        if self._loop is not None:
            if self._is_reading:
                self._loop.remove_reader(self._listener.fileno())
            if self._retry is not None:
                self._retry.cancel()
        self._loop = None
        for descriptor in self._homeless:
            os.close(descriptor)
        self._homeless.clear()
        for lane in self._lanes.values():
            if self._last is not None:  # (else another router may go on with it)
                lane.router_end.shutdown(socket.SHUT_WR)  # the shard sees its end, though the keeper has a copy
            lane.close()
        self._lanes.clear()

    def _read_or_wait(self) -> None:
        loop = self._loop
        assert loop is not None
        wanted = not self._homeless and self._retry is None and self._last is None and bool(self._accepting())
        if wanted and not self._is_reading:
            loop.add_reader(self._listener.fileno(), self._on_readable)
        elif self._is_reading and not wanted:
            loop.remove_reader(self._listener.fileno())
        self._is_reading = wanted
        if self._last is not None and not (self._last and self._homeless):
            self.close()

    def _on_readable(self) -> None:
        self._accept_some()
        self._place_homeless()
        self._read_or_wait()

    def _accept_some(self) -> bool:
        """At most as many as one packet has; whether there may be more."""
        for _ in range(SOCKETS_PER_PACKET):
            try:
                accepted, _address = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return False
            except ConnectionAbortedError:
                continue
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    raise
                self._say(logging.WARNING, "Cannot accept connections: %s; trying again", error)
                self._wait(DESCRIPTOR_RETRY_S)
                return False
            self._homeless.append(accepted.detach())
        return True

    def _place_homeless(self) -> None:
        """Send the sockets that wait here in as few packets as possible; those for which queues are full stay.

        What the kernel forbids for one shard goes to another, so that nobody waits for that shard.
        """
        candidates = takers = self._candidates()
        while self._homeless and takers:
            forbidden = self._send(self._packets(takers))
            takers = [one for one in takers if one.shard not in forbidden]
            if not forbidden:
                break
        if self._homeless and candidates:
            self._wait(QUEUE_RETRY_S if takers else DESCRIPTOR_RETRY_S)

    def _candidates(self) -> list[Candidate]:
        candidates = []
        for shard in self._accepting() if self._last is None else self._last:
            lane = self._lanes.get(shard)
            if lane is not None:
                slot = self._page.snapshot(shard)
                in_flight = max(0, lane.sent - (slot["accepted_sockets"] - lane.accepted_before))
                candidates.append(Candidate(shard, slot["connections"], in_flight, lane.last_given))
        return candidates

    def _packets(self, candidates: list[Candidate]) -> list[tuple[int, list[int]]]:
        """Take all sockets that wait here, for these shards. `candidates` is up to date behind it."""
        by_shard: dict[int, list[int]] = {}
        waiting, self._homeless = self._homeless, []
        for descriptor in waiting:
            shard = place(candidates)
            assert shard is not None
            self._given += 1
            by_shard.setdefault(shard, []).append(descriptor)
            for number, candidate in enumerate(candidates):
                if candidate.shard == shard:
                    candidates[number] = candidate._replace(in_flight=candidate.in_flight + 1, last_given=self._given)
        return [
            (shard, descriptors[start : start + SOCKETS_PER_PACKET])
            for shard, descriptors in by_shard.items()
            for start in range(0, len(descriptors), SOCKETS_PER_PACKET)
        ]

    def _send(self, packets: list[tuple[int, list[int]]]) -> set[int]:
        """Those that are not sent wait here again; the shards to which the kernel forbids to send them."""
        forbidden = set()
        for shard, packet in packets:
            lane = self._lanes[shard]
            is_sent = False
            try:
                is_sent = send_descriptors(lane.router_end, packet)
            except OSError as error:
                forbidden.add(shard)
                self._say(logging.ERROR, "Cannot hand connections over: %s; trying again", error)
            if not is_sent:
                self._homeless += packet
                continue
            lane.sent += len(packet)
            lane.last_given = self._given
            for descriptor in packet:
                os.close(descriptor)
        return forbidden

    def _say(self, level: int, text: str, error: OSError) -> None:
        now_s = time.monotonic()
        if now_s >= self._say_at_s.get(text, 0.0):
            self._say_at_s[text] = now_s + SAID_EVERY_S
            log.log(level, text, error.strerror)

    def _wait(self, delay_s: float) -> None:
        if self._retry is None and self._loop is not None:
            self._retry = self._loop.call_later(delay_s, self._waited)

    def _waited(self) -> None:
        self._retry = None
        self.shards_changed()
