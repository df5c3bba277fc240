"""Which clients of this shard move to others, and when: so many to each, a batch at a time.

A batch is small and the next begins after a pause, so that others notice little: at most CLIENTS_PER_S. Who cannot move
now (it waits for its PONG, a slow receiver, a log-in) is tried again until the time is up. A batch has as many clients
as their subscriptions allow (Moves.fitting); one that a shard refuses, as where it has not enough descriptors, is
halved, down to one client. Where a shard takes nobody the others take its share. Clients that go where a placement rule
says are named, and tried once; any other journey goes before theirs, and that of a shard that leaves before all others:
there those with few subscriptions go first.
Called by the worker.
"""

from __future__ import annotations

import logging
import math
from collections import Counter, deque
from typing import TYPE_CHECKING

from gnatswarm.broker.frozen import RecordRefused
from gnatswarm.broker.moves import MOST_SUBSCRIPTIONS
from gnatswarm.shards.moving.host import NO_ROOM

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Iterator

    from gnatswarm.broker.connection import ClientConnection
    from gnatswarm.broker.moves import Moves
    from gnatswarm.broker.reply_prefixes import ReplyPrefixes
    from gnatswarm.shards.clients.clients import Clients
    from gnatswarm.shards.clients.session import ClientSession
    from gnatswarm.shards.moving.host import Host

logger = logging.getLogger("gnatswarm.moving")

# Those that move together are silent together; more of them cost less each.
BATCH_CLIENTS = 32
CLIENTS_PER_S = 1000
# A batch that waits for a sibling for so long is stopped, if it still can be. A client with many subscriptions has more
# time: they take about 20 µs each, in turns, of which others have most on a busy machine. One that moves alone goes on
# as long as the sibling does: nobody waits for it.
STOP_AFTER_S = 2.0
STOP_AFTER_EACH_S = 0.0002
# Shards are made even as far as clients can move: those that never log in or read nothing are not waited for.
PATIENCE_S = 3.0
AGAIN_S = 0.05
# Then those that are left are looked at anew, by the rules that hold by then.
NAMED_WITHIN_S = 30.0
# With more subscriptions than these of each fewer would fit one batch: one such client takes as long as many others.
FEW_SUBSCRIPTIONS = MOST_SUBSCRIPTIONS // BATCH_CLIENTS
# Clients looked at in one turn, some 3 µs each: others of this shard wait for that.
LOOK_AT = 8
# … in one line of the log.
MOST_REASONS = 8
# A shard that refuses everybody is asked again and again: the log says why so often.
WARN_EVERY_S = 1.0


class Departures:
    """Moves clients of one shard. One journey at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clients: Clients, moves: Moves) -> None:
        self._loop = loop
        self._clients = clients
        self._moves = moves
        self.host: Host | None = None
        # Why this client may not be moved to that shard to make shards even; "": it may.
        self.keeps: Callable[[ClientSession, int], str] = lambda session, to: ""
        # A client was looked at, and cannot move now because …; "": it can.
        self.on_look: Callable[[int, str], None] = lambda cid, why: None
        self._named: dict[int, deque[int]] | None = None  # by their shard; None: any clients
        self._next_journey: Callable[[], bool] | None = None
        self._on_next_done: Callable[[int, dict[str, int]], None] | None = None
        self._to: dict[int, int] = {}  # how many are still to go where
        self._shards: list[int] = []  # all of this journey
        self._refused: set[int] = set()  # which of them took nobody when they were last asked
        self._most: dict[int, int] = {}  # clients in a batch to those that have few descriptors left
        self._until_s = 0.0
        self._patience_s = math.inf
        self._on_done: Callable[[int, dict[str, int]], None] | None = None
        self._is_cancelled = False  # … and its present batch is the last
        self._chosen: list[ClientSession] = []  # for the next batch
        self._looked_at: set[int] = set()
        self._unseen: Iterator[int] = iter(())  # those that are looked at next
        self._slow: set[int] = set()  # who has kept a batch too long, or was refused: they come last, and alone
        self.light_first = False  # those with few subscriptions
        self.few_subscriptions = FEW_SUBSCRIPTIONS
        self._heavy: set[int] = set()  # the others, as far as they were seen
        self._stay: Counter[str] = Counter()
        self._may_follow = False  # one of those that were looked at can move now, or will be able to
        self._moved = 0
        self._sent: list[ClientConnection] = []  # the present or last batch
        self._target = -1
        self._moved_before = 0  # Moves.n_moved when it began
        self._is_stopped = False  # it took too long
        self._idle_since_s = 0.0  # nobody has moved since then
        self._warned_of: dict[str, float] = {}  # why clients stay → when the log last said so
        self._heard = 0  # parts of its offer that had been taken when it was looked at
        self._stopping: asyncio.TimerHandle | None = None

    @property
    def is_under_way(self) -> bool:
        """Whether clients are being moved, other than those that go where a rule says."""
        return self._next_journey is not None or (self._on_done is not None and self._named is None)

    @property
    def reasons(self) -> dict[str, int]:
        """Why clients could not move when they were last looked at, with their number."""
        return dict(self._stay)

    @property
    def batch(self) -> int:
        """How many clients are being moved just now."""
        return len(self._sent) if self._stopping is not None else 0

    @property
    def still_to_go(self) -> int:
        """How many clients are still to be moved, the present batch included."""
        return sum(self._to.values()) + self.batch

    def begin(
        self,
        to: dict[int, int],
        within_s: float,
        on_done: Callable[[int, dict[str, int]], None],
        *,
        patience_s: float = math.inf,
        takes_over: bool = False,
    ) -> bool:
        """Move so many clients to each of these shards within that time; False: others are being moved.

        It ends sooner when nobody could move for `patience_s`. `on_done` is called with how many were moved, and the
        reasons why others could not be, with their number. `takes_over`: a journey that is under way ends with its
        present batch.
        """
        if self.is_under_way and not takes_over:
            return False
        if self._on_done is not None:  # the present batch ends first
            self.cancel()
            self._next_journey = lambda: self.begin(to, within_s, on_done, patience_s=patience_s)
            self._on_next_done = on_done
            return True
        self._is_cancelled = False
        self._named = None
        self._to = {shard: n for shard, n in to.items() if n > 0}
        self._shards = list(to)
        self._refused.clear()
        self._most.clear()
        self._until_s = self._loop.time() + within_s
        self._patience_s = patience_s
        self._idle_since_s = self._loop.time()
        self._on_done = on_done
        self._slow.clear()
        self._look_anew()
        self._moved = 0
        self._in_turn(self._next)
        return True

    def begin_named(self, to: dict[int, Iterable[int]], on_done: Callable[[], None]) -> bool:
        """Move these clients to these shards, as far as they can move now; False: others are being moved."""
        if self._on_done is not None:
            return False
        self._named = {shard: deque(cids) for shard, cids in to.items()}
        self._to = {shard: len(cids) for shard, cids in self._named.items() if cids}
        self._is_cancelled = False
        self._refused.clear()
        self._most.clear()
        self._until_s = self._loop.time() + NAMED_WITHIN_S
        self._on_done = lambda moved, stay: on_done()
        self._chosen.clear()
        self._moved = 0
        self._in_turn(self._next)
        return True

    def cancel(self) -> None:
        """Begin no further batch."""
        self._is_cancelled = True
        self._to.clear()
        waiting, self._on_next_done, self._next_journey = self._on_next_done, None, None
        if waiting is not None:
            waiting(0, {})

    def _in_turn(self, work: Callable[[], None]) -> None:
        if self.host is None:
            self._loop.call_soon(work)
        else:
            self.host.in_turn(work)

    def _next(self) -> None:
        """Look at some more clients; when there are enough for a batch, or no more, it begins."""
        if not self._to or self._loop.time() >= self._until_s or self.host is None:
            self._finish()
            return
        ready = [one for one in self._to if one not in self._refused]
        if not ready and self._loop.time() - self._idle_since_s >= self._patience_s:
            self._finish()
            return
        if not ready:
            self._refused.clear()
            self._loop.call_later(AGAIN_S, self._next)
            return
        shard = max(ready, key=lambda one: self._to[one])
        if shard != self._target:
            self._target = shard
            self._look_anew()
        why = self.host.open_way(shard)
        if why:
            if self._named is None:
                self._share_out(shard)
            self._refuse(why)
        elif self._named is None:
            self._look_for_any(self._batch_size(shard))
        else:
            self._look_for_named(self._named[shard])

    def _batch_size(self, shard: int) -> int:
        return min(self._to[shard], BATCH_CLIENTS, self._most.get(shard, BATCH_CLIENTS))

    def _look_anew(self) -> None:
        """Clients that were looked at are looked at again."""
        self._chosen.clear()
        self._looked_at.clear()
        self._unseen = iter(())

    def _refuse(self, why: str) -> None:
        """The present shard takes nobody now."""
        if self._named is not None:  # they are named again by the next look at all clients
            del self._to[self._target]
            self._chosen.clear()
        else:
            logger.debug("no clients to shard %d for now: %s", self._target, why)
            self._stay = Counter({why: 1})
            self._look_anew()
            self._refused.add(self._target)
        self._in_turn(self._next)

    def _look_for_any(self, most: int) -> None:
        is_more = self._choose(most)
        if len(self._chosen) == most or (self._chosen and not is_more):
            self._in_turn(self._begin_batch)
        elif is_more:
            self._in_turn(self._next)
        elif self._may_follow and self._loop.time() - self._idle_since_s < self._patience_s:
            self._look_anew()  # all have been looked at: they are tried again
            self._loop.call_later(AGAIN_S, self._next)
        else:  # those that are left cannot move
            del self._to[self._target]
            self._look_anew()
            self._in_turn(self._next)

    def _choose(self, most: int) -> bool:
        """Choose some more that can move, up to so many; False: all have been looked at."""
        assert self.host is not None
        to = self._target
        if not self._looked_at:
            self._stay.clear()
            self._may_follow = False
        for _ in range(LOOK_AT):
            if len(self._chosen) == most:
                return True
            cid = next(self._unseen, None)
            if cid is None:  # those that have come meanwhile
                unseen = [cid for cid in self._clients.open if cid not in self._looked_at]
                for late in filter(None, (self._heavy, self._slow)):
                    unseen.sort(key=late.__contains__)
                self._unseen = iter(unseen)
                cid = next(self._unseen, None)
                if cid is None:
                    return False
            session = self._clients.open.get(cid)
            if self.light_first and session is not None and self._is_put_off(session.connection):
                continue
            self._looked_at.add(cid)
            if session is None:
                continue
            why = self.keeps(session, to) or self.host.objection(session, len(self._chosen))
            self._may_follow = self._may_follow or not (self._clients.stays(session) or self.keeps(session, to))
            self.on_look(cid, why)
            if why:
                self._stay[why] += 1
            else:
                self._chosen.append(session)
        return True

    def _is_put_off(self, client: ClientConnection) -> bool:
        """Whether it was not known that this client has many subscriptions: it is looked at behind the others."""
        if client.cid in self._heavy or client.subscriptions <= self.few_subscriptions:
            return False
        self._heavy.add(client.cid)
        return True

    def _look_for_named(self, cids: deque[int]) -> None:
        """Choose some more of the named clients that can move."""
        assert self.host is not None
        shard = self._target
        for _ in range(min(LOOK_AT, self._batch_size(shard) - len(self._chosen), len(cids))):
            session = self._clients.open.get(cids.popleft())
            if session is None or self.host.objection(session, len(self._chosen)):
                self._to[shard] -= 1
            else:
                self._chosen.append(session)
        if self._to[shard] <= 0:
            del self._to[shard]
            self._in_turn(self._next)
        elif len(self._chosen) == self._batch_size(shard):
            self._in_turn(self._begin_batch)
        else:
            self._in_turn(self._next)

    def _begin_batch(self) -> None:
        """Move those that were chosen. They were not held until now: some may not be able to move any more."""
        shard = self._target
        if shard in self._to:
            self._keep_few_subscriptions()
        wanted = len(self._chosen)
        chosen = [one.connection for one in self._chosen if self._moves.why_not(one.connection) is None]
        self._chosen.clear()
        if shard not in self._to:  # it was cancelled
            self._next()
            return
        n_fitting = self._moves.fitting(chosen)
        if n_fitting < len(chosen):
            wanted -= len(chosen) - n_fitting
            self._leave_for_the_next(chosen[n_fitting:])
            chosen = chosen[:n_fitting]
        if self._named is not None:
            self._to[shard] -= wanted - len(chosen)
        if chosen:
            try:
                self._moves.move(chosen, shard)
            except RecordRefused as error:
                self._refuse(str(error))
                return
            self._began_s = self._loop.time()
            self._moved_before = self._moves.n_moved
            self._is_stopped = False
            self._sent = chosen
            self._to[shard] -= len(chosen)
            subscriptions = sum(one.subscriptions for one in chosen)
            self._heard = self._moves.n_heard
            self._stopping = self._loop.call_later(STOP_AFTER_S + subscriptions * STOP_AFTER_EACH_S, self._stop)
        if self._to[shard] <= 0:
            del self._to[shard]
        if not chosen:
            self._in_turn(self._next)

    def _stop(self) -> None:
        """The batch takes too long. If that is most likely because of one client, the others are to go without it."""
        if len(self._sent) == 1 and self._heard != self._moves.n_heard:
            self._heard = self._moves.n_heard
            self._stopping = self._loop.call_later(STOP_AFTER_S, self._stop)
            return
        heaviest = max(self._sent, key=lambda one: one.subscriptions)
        if 2 * heaviest.subscriptions > sum(one.subscriptions for one in self._sent):
            self._slow.add(heaviest.cid)
        self._is_stopped = True
        self._moves.stop()

    def _keep_few_subscriptions(self) -> None:
        """Look only at as many of those that were chosen as fit into one batch by their numbers of subscriptions."""
        n = subscriptions = 0
        are_heavy = bool(self._chosen) and self._chosen[0].connection.cid in self._heavy
        for one in self._chosen:
            cid = one.connection.cid
            subscriptions += one.connection.subscriptions
            is_other = cid in self._slow or (cid in self._heavy) != are_heavy
            if n and (subscriptions > MOST_SUBSCRIPTIONS or is_other):
                break
            n += 1
        self._leave_for_the_next([one.connection for one in self._chosen[n:]])
        del self._chosen[n:]

    def _leave_for_the_next(self, chosen: list[ClientConnection]) -> None:
        """These are chosen again for the next batch."""
        cids = [one.cid for one in chosen]
        if self._named is None:
            self._looked_at.difference_update(cids)
        else:
            self._named[self._target].extendleft(reversed(cids))

    def _share_out(self, shard: int) -> None:
        """This one takes nobody: the others take its share, if there are any."""
        assert self.host is not None
        others = [one for one in self._shards if one != shard and not self.host.open_way(one)]
        if others:
            each, rest = divmod(self._to.pop(shard), len(others))
            for n, one in enumerate(others):
                self._to[one] = self._to.get(one, 0) + each + (n < rest)
            self._to = {one: n for one, n in self._to.items() if n}

    def on_ended(self, why: str) -> None:
        """The host says that a move is over."""
        if self._stopping is not None:
            self._stopping.cancel()
            self._stopping = None
        size = len(self._sent)
        moved = self._moves.n_moved - self._moved_before  # (who has gone meanwhile has not)
        self._moved += moved
        if moved or self._is_stopped:
            self._idle_since_s = self._loop.time()
        is_too_large = why == NO_ROOM and size > 1
        if is_too_large:
            self._try_fewer()
        elif why:
            self._warn(size - moved, why)
            if self._named is None and not self._is_cancelled:
                self._to[self._target] = self._to.get(self._target, 0) + size - moved
                self._refused.add(self._target)
                self._look_anew()
                if not self._is_stopped:
                    self._part_refused()
        elif self._target in self._most:
            self._most[self._target] = 2 * size
        took_s = self._loop.time() - self._began_s
        pause_s = AGAIN_S if why and not is_too_large else 0.0
        self._loop.call_later(max(size / CLIENTS_PER_S - took_s, pause_s), self._next)

    def _warn(self, clients: int, why: str) -> None:
        """Where a shard goes on refusing, not for each batch."""
        now_s = self._loop.time()
        if now_s - self._warned_of.get(why, -WARN_EVERY_S) >= WARN_EVERY_S:
            self._warned_of = {one: at_s for one, at_s in self._warned_of.items() if now_s - at_s < WARN_EVERY_S}
            self._warned_of[why] = now_s
            logger.warning("%s for now: %s", "1 client stays" if clients == 1 else f"{clients} clients stay", why)

    def _part_refused(self) -> None:
        """The shard has refused the batch, perhaps because of one client: others are to go without that one."""
        size = len(self._sent)
        if size == 1:
            self._slow.add(self._sent[0].cid)
        self._most[self._target] = max(1, size // 2)

    def _try_fewer(self) -> None:
        """The shard has no room for the whole batch: the next one is half as large."""
        shard, size = self._target, len(self._sent)
        logger.debug("shard %d has no room for %d more clients: %d are tried", shard, size, size // 2)
        self._most[shard] = size // 2
        if self._is_cancelled:
            return
        self._to[shard] = self._to.get(shard, 0) + size
        if self._named is None:
            self._look_anew()
        else:
            self._leave_for_the_next(self._sent)

    def _finish(self) -> None:
        done, self._on_done = self._on_done, None
        self._to.clear()
        if done is not None:
            done(self._moved, dict(self._stay))
        following, self._next_journey, self._on_next_done = self._next_journey, None, None
        if following is not None:
            following()


class ToOthers:
    """The `Mover` of a shard that leaves: all clients that can move go to these shards, as many to each.

    Then one of them takes over the replies that are due to those who have asked.
    """

    def __init__(self, departures: Departures, prefixes: ReplyPrefixes, to: list[int]) -> None:
        self._departures = departures
        self._prefixes = prefixes
        self._to = to
        self._is_moving = False
        self._stay: dict[str, int] = {}
        self.failing: set[int] = set()  # the ids of those that could not move when they were last looked at
        prefixes.is_leaving = True
        departures.on_look = self._on_look
        departures.light_first = True

    def move(self, clients: int, within_s: float) -> None:
        """Move so many clients within that time, unless some are being moved.

        A journey that an operator has begun ends: the shards that it leads to may be leaving too, and then nobody would
        move until it is too late.
        """
        if self._is_moving:
            return
        each, rest = divmod(clients, len(self._to))
        to = {shard: each + (n < rest) for n, shard in enumerate(self._to)}
        self._is_moving = self._departures.begin(to, within_s, self._on_moved, takes_over=True)

    def _on_moved(self, moved: int, stay: dict[str, int]) -> None:
        self._is_moving = False
        self._stay = stay or self._stay

    def _on_look(self, cid: int, why: str) -> None:
        if why:
            self.failing.add(cid)
        else:
            self.failing.discard(cid)

    def why(self) -> str:
        """Why those that were tried last have not moved, or ""."""
        under_way = self._departures.batch
        stay = self._departures.reasons or self._stay
        if under_way:
            stay = {**stay, "it is still being moved": under_way}
        return "; ".join(f"{n}: {why}" for why, n in sorted(stay.items())[:MOST_REASONS])

    def stop(self) -> None:
        """Begin to move no more."""
        self._departures.cancel()

    def hand_over(self) -> None:
        """Have another shard pass on the replies that are due."""
        self._prefixes.hand_over(self._to)
