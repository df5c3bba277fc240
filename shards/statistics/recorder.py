"""Sums up a shard's counters in windows of wall-clock time, and hands them to the scribe as lines of records.

A window is closed in small steps between which the event loop runs. What is counted meanwhile belongs to exactly one
of the two windows, so totals are exact. Windows begin at multiples of their length; when the clock is set, a window
is shorter or longer, which its row shows. Called by the shard.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from gnatswarm.broker.tally import Tally
from gnatswarm.shards.boundary import records
from gnatswarm.shards.boundary.pace import Pace
from gnatswarm.shards.boundary.process_use import process_use
from gnatswarm.shards.statistics.client_rows import Client, ClientRows, rest_line, shown
from gnatswarm.shards.statistics.scribe import FILE_MARK, LOST_MARK, Scribe, WindowRows
from gnatswarm.shards.statistics.subject_history import (
    MOST_KEPT,
    Heaviest,
    SubjectCounts,
    SubjectHistory,
    Window,
    WindowCounts,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gnatswarm.broker.fanout import Fanout
    from gnatswarm.broker.link import SiblingLink
    from gnatswarm.broker.mesh import Mesh
    from gnatswarm.broker.options import Stats
    from gnatswarm.shards.boundary.page import Page
    from gnatswarm.shards.boundary.rows import ConnectionRow, DeniedRow
    from gnatswarm.shards.links.links import Links
    from gnatswarm.shards.sockets.reactor import Reactor

logger = logging.getLogger("gnatswarm.stats")

# Slots of the match cache, and of a tally, read in one step: some 50 and 150 µs.
CACHE_SLOTS = 1024
TALLY_SLOTS = 128
QUEUE_ROWS = 100
LINES_A_BLOCK = 2048
# A timer that fires at most this much early still ends the window it was set for.
BOUNDARY_SLACK_US = 50_000
MOST_SLOW_ROWS = 256

_encoder = msgspec.json.Encoder()


class _LinkWindow:
    """The links to one sibling in one window; a link may be replaced by another within it."""

    __slots__ = ("before", "paused_us", "peak", "total")

    def __init__(self) -> None:
        self.before: dict[int, tuple[int, ...]] = {}  # id() of a link → its counters when last read
        self.total = [0, 0, 0, 0, 0]
        self.peak = 0
        self.paused_us = 0


class Recorder:
    """The statistics of one shard.

    `take_denied` returns what permissions have denied since its last call; `sessions` are the clients by id.
    """

    def __init__(
        self,
        options: Stats,
        directory: str,
        *,
        broker: str,
        boot: str,
        shard: int,
        page: Page,
        reactor: Reactor,
        links: Links,
        mesh: Mesh,
        fanout: Fanout,
        take_denied: Callable[[], list[DeniedRow]],
        sessions: Mapping[int, Client],
    ) -> None:
        self._fanout = fanout
        self._take_denied = take_denied
        self._refused = 0, 0  # messages and bytes that earlier windows have counted
        self._options = options
        self._window_us = int(options.window_s * 1_000_000)
        self._broker = broker
        self._boot = boot
        self._shard = shard
        self._page = page
        self._reactor = reactor
        self._links = links
        self._sublists = mesh.sublists
        self._scribe = Scribe(
            directory,
            broker=broker,
            shard=shard,
            boot=boot,
            max_age_s=options.max_age_s,
            max_bytes=options.max_bytes,
        )
        self._lags_us: list[int] = []
        self._by_peer: dict[int, _LinkWindow] = {}
        self._slow: list[ConnectionRow] = []
        self._counters = self._running_counters()
        self._steps: Iterator[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self.history = SubjectHistory()
        self.unwanted_msgs: dict[str, int] = {}  # by account, in all windows that have ended; "": of forgotten ones
        self.longest_step_s = 0.0  # the longest step of closing a window, in CPU time
        self._clients: ClientRows | None = None
        if options.max_clients:
            self._clients = ClientRows(
                sessions, most=options.max_clients, subjects=options.client_subjects, names=options.client_names
            )
        mesh.tally(options.max_subjects, options.client_subjects if options.max_clients else 0)
        self._open_window()
        self._wait()

    # ---- from the shard

    def on_sweep(self, late_s: float) -> None:
        """Ten times a second: how late the timer was."""
        self._lags_us.append(max(0, int(late_s * 1_000_000)))
        for session in self._links.sessions:
            link = session.link
            if link.is_joined:
                window = self._link_window(link.shard)
                window.peak = max(window.peak, link.pending_bytes)
                if link.is_behind:
                    window.paused_us += 100_000

    def on_slow(self, row: ConnectionRow) -> None:
        """A slow consumer was closed."""
        if len(self._slow) < MOST_SLOW_ROWS:
            self._slow.append(row)

    def on_closed(self, client: Client) -> None:
        """A client has left; its connection has its counters still."""
        if self._clients is not None:
            self._clients.on_closed(client)

    def on_moved(self, client: Client) -> None:
        """A client goes on in another shard; its connection has its counters and subscriptions still."""
        if self._clients is not None:
            self._clients.on_moved(client)

    def on_link_gone(self, link: SiblingLink) -> None:
        """A link has ended: add its last counters."""
        if link.shard >= 0:
            window = self._link_window(link.shard)
            self._add_link(window, id(link), link_counters(link))
            window.before.pop(id(link), None)

    def close(self) -> None:
        """Write everything counted so far to disk; blocks for some two seconds at most."""
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
        for _ in self._steps or ():  # finish a window that is being closed
            pass
        for _ in self._window_steps():
            pass
        if not self._scribe.close():
            logger.error("The disk takes too long: the last statistics of this shard are not complete")

    # ---- for monitoring

    @property
    def open_us(self) -> int:
        """How long the open window has lasted."""
        return (time.monotonic_ns() - self._opened_ns) // 1000

    async def wait_window(self) -> None:
        """Wait until no window is being closed; then each is open or in the history."""
        if self._task is not None and not self._task.done():
            await asyncio.shield(self._task)

    # ---- windows

    def _open_window(self) -> None:
        now_us = time.time_ns() // 1000
        slack_us = min(BOUNDARY_SLACK_US, self._window_us // 20)
        self._start_us = (now_us + slack_us) // self._window_us * self._window_us
        self._opened_ns = time.monotonic_ns()

    def _wait(self) -> None:
        left_us = self._start_us + self._window_us - time.time_ns() // 1000
        # min(): after the clock was set back, the window's end may be hours away.
        left_s = min(max(left_us, 1000), self._window_us) / 1_000_000
        self._timer = asyncio.get_running_loop().call_later(left_s, self._on_boundary)

    def _on_boundary(self) -> None:
        if self._task is None or self._task.done():  # else the last window is still being closed: extend this one
            self._task = asyncio.get_running_loop().create_task(self._end_window())
        else:
            self._wait()

    async def _end_window(self) -> None:
        pace = Pace()
        self._steps = self._window_steps()
        try:
            for _ in self._steps:
                await pace()
        except Exception:  # an error of ours: the rows of this window are lost, and those of no other
            logger.exception("a window of the statistics is lost")
            self._open_window()
        self._steps = None
        self.longest_step_s = max(self.longest_step_s, pace.longest_s)
        self._wait()

    def _window_steps(self) -> Iterator[None]:
        """Close the window and open the next one, in short steps."""
        self.history.ended += 1  # tells readers of the open window that it has changed
        lines: list[bytes] = []
        blocks: list[bytes] = []
        total = WindowCounts()
        subjects = 0
        widths: tuple[list[int], list[int]] = ([], [])
        tallies: list[tuple[str, Tally]] = []
        forgotten = self.unwanted_msgs.keys() - {""}
        for sublist in list(self._sublists()):
            forgotten.discard(sublist.account.decode())
            at = 0
            while at := sublist.harvest(at, CACHE_SLOTS):
                yield
            # There may be ten thousands of accounts: one in which nothing was counted keeps its tally, …
            tally = sublist.tally
            if tally is not None and not tally.is_empty:
                tallies.append((sublist.account.decode(), tally))
                sublist.count_into(Tally(self._options.max_subjects))
            for mine, found in zip(widths, sublist.take_widths(), strict=True):
                mine.extend([0] * (len(found) - len(mine)))
                for i, n in enumerate(found):
                    mine[i] += n
            yield  # … and they are not gone through in one turn
        for account in forgotten:
            self.unwanted_msgs[""] = self.unwanted_msgs.get("", 0) + self.unwanted_msgs.pop(account)
        window = self._close_window()
        client_lines: list[bytes] = []
        of_clients = [0, 0, 0, 0]
        if self._clients is not None:
            yield from self._clients.steps(window, client_lines, of_clients)
        yield
        heaviest, other_msgs = Heaviest(MOST_KEPT), 0
        for account, tally in tallies:
            counted, other = itertools.starmap(WindowCounts, tally.settle())
            total += counted
            if counted.unwanted:
                self.unwanted_msgs[account] = self.unwanted_msgs.get(account, 0) + counted.unwanted
            yield
            at = 0
            while True:
                read, at = tally.read(at, TALLY_SLOTS)
                rows = list(itertools.starmap(SubjectCounts, read))
                subjects += len(rows)
                heaviest.add(account, rows)
                lines += [self._subject_line(window, account, row) for row in rows]
                _fold(lines, blocks)
                yield
                if not at:
                    break
            other_msgs += other.msgs
            if other.msgs or other.link_in_msgs:
                lines.append(
                    self._subject_line(
                        window, account, SubjectCounts(records.OTHER, 0, *msgspec.structs.astuple(other))
                    )
                )
        length_us = self._bounds(window)[1]
        self.history.add(Window(length_us, heaviest.rows, other_msgs + heaviest.left_out_msgs))
        yield
        for sublist in list(self._sublists()):
            account = sublist.account.decode()
            room = self._options.max_subjects
            left_out = 0
            more = True
            while more:
                members, others, more = sublist.harvest_queues(QUEUE_ROWS, room)
                lines += [self._queue_line(window, account, *row) for row in members]
                left_out += others
                room -= len(members)
                _fold(lines, blocks)
                yield
            left_out += sublist.take_gone_deliveries()
            if left_out:
                lines.append(self._queue_line(window, account, records.OTHER, "", 0, "", left_out))
        refused_msgs, refused_bytes = refused = self._take_refused()
        if self._clients is not None:
            all_of_it = (total.msgs + refused_msgs, total.payload_bytes + refused_bytes)
            missing = [n - m for n, m in zip((*all_of_it, total.deliveries, total.out_bytes), of_clients, strict=True)]
            if any(missing):
                client_lines.append(rest_line(window, tuple(missing)))
            lines += client_lines
        lines += self._other_lines(window, total, subjects, widths, refused)
        while lines:
            _fold(lines, blocks, least=1)
            yield
        booked = (
            *(total.msgs + refused_msgs, total.payload_bytes + refused_bytes, total.deliveries, total.out_bytes),
            *(total.link_out_msgs, total.link_in_msgs),
        )
        self._put(window, blocks, booked)

    def _take_refused(self) -> tuple[int, int]:
        """Messages and bytes that were published and sent nowhere: no subject has counted them."""
        (msgs, size), self._refused = self._refused, (self._fanout.refused_msgs, self._fanout.refused_bytes)
        return self._refused[0] - msgs, self._refused[1] - size

    def _close_window(self) -> dict[str, object]:
        """The common fields of the window's rows; opens the next window."""
        window = {
            "version": records.RECORDS_VERSION,
            "broker": self._broker,
            "boot": self._boot,
            "shard": self._shard,
            "file": FILE_MARK,
            "window_start_us": self._start_us,
            "window_us": (time.monotonic_ns() - self._opened_ns) // 1000,
        }
        self._open_window()
        return window

    def _put(self, window: dict[str, object], blocks: list[bytes], booked: tuple[int, ...]) -> None:
        start_us, length_us = self._bounds(window)
        page, shard, end_us = self._page, self._shard, start_us + length_us
        # (By this end, as its rows have it, the router sees whether the last window in the file was noted.)
        self._scribe.put(WindowRows(start_us, end_us, blocks, lambda: page.note_recorded(shard, end_us, booked)))

    @staticmethod
    def _bounds(window: dict[str, object]) -> tuple[int, int]:
        start_us, length_us = window["window_start_us"], window["window_us"]
        assert isinstance(start_us, int) and isinstance(length_us, int)
        return start_us, length_us

    # ---- rows

    def _subject_line(self, window: dict[str, object], account: str, row: SubjectCounts) -> bytes:
        return _encoder.encode(
            records.SubjectRecord(
                **window,  # type: ignore[arg-type]
                account=account,
                subject=row.subject,
                is_folded=row.subject == records.OTHER or row.subject.endswith(".>"),
                in_msgs=row.msgs,
                in_bytes=row.payload_bytes,
                deliveries=row.deliveries,
                out_bytes=row.out_bytes,
                widest=row.widest,
                link_out_msgs=row.link_out_msgs,
                link_in_msgs=row.link_in_msgs,
                unwanted_msgs=row.unwanted,
                cache_misses=row.misses,
                error_msgs=row.error,
            )
        )

    def _queue_line(
        self, window: dict[str, object], account: str, subject: str, queue: str, cid: int, sid: str, deliveries: int
    ) -> bytes:
        return _encoder.encode(
            records.QueueRecord(
                **window,  # type: ignore[arg-type]
                account=account,
                subject=subject,
                queue=queue,
                cid=cid,
                sid=sid,
                deliveries=deliveries,
            )
        )

    def _other_lines(
        self,
        window: dict[str, object],
        total: WindowCounts,
        subjects: int,
        widths: tuple[list[int], list[int]],
        refused: tuple[int, int],
    ) -> list[bytes]:
        """The rows of links, of slow consumers, of what was denied, and of the shard."""
        found: list[records.Record] = []
        for session in self._links.sessions:
            if session.link.is_joined:
                self._add_link(self._link_window(session.link.shard), id(session.link), link_counters(session.link))
        for peer, link in sorted(self._by_peer.items()):
            if any(link.total) or link.peak or link.paused_us:
                found.append(records.LinkRecord(**window, peer=peer, **_link_fields(link)))  # type: ignore[arg-type]
            link.total = [0, 0, 0, 0, 0]
            link.peak = link.paused_us = 0
        slow, self._slow = self._slow, []
        found += [_slow_record(window, row, names=self._options.client_names) for row in slow]
        found += [
            records.DeniedRecord(
                **window,  # type: ignore[arg-type]
                account=row.account,
                user=row.user,
                publishes=row.publishes,
                subscriptions=row.subscriptions,
            )
            for row in self._take_denied()
        ]
        lags, self._lags_us = sorted(self._lags_us), []
        before, self._counters = self._counters, self._running_counters()
        cpu_s, slow_consumers, stalls = (a - b for a, b in zip(self._counters, before, strict=True))
        shown = self._page.snapshot(self._shard)
        found.append(
            records.ShardRecord(
                **window,  # type: ignore[arg-type]
                window_nominal_us=self._window_us,
                connections=shown["connections"],
                subscriptions=shown["subscriptions"],  # without the broker's own
                in_msgs=total.msgs,
                in_bytes=total.payload_bytes,
                out_msgs=total.deliveries,
                out_bytes=total.out_bytes,
                unwanted_msgs=total.unwanted,
                link_out_msgs=total.link_out_msgs,
                link_in_msgs=total.link_in_msgs,
                cache_misses=total.misses,
                subjects=subjects,
                widths=tuple(widths[0]),
                link_widths=tuple(widths[1]),
                lag_p50_us=percentile(lags, 0.5),
                lag_p99_us=percentile(lags, 0.99),
                lag_max_us=lags[-1] if lags else 0,
                cpu_s=round(cpu_s, 6),
                resident_bytes=process_use(os.getpid()).resident_bytes,
                slow_consumers=int(slow_consumers),
                stalls=int(stalls),
                lost_windows=LOST_MARK,
                refused_msgs=refused[0],
                refused_bytes=refused[1],
            )
        )
        return [_encoder.encode(record) for record in found]

    def _running_counters(self) -> tuple[float, int, int]:
        return time.process_time(), self._reactor.slow_consumers, self._reactor.stalls

    def _link_window(self, peer: int) -> _LinkWindow:
        return self._by_peer.setdefault(peer, _LinkWindow())

    @staticmethod
    def _add_link(window: _LinkWindow, key: int, counters: tuple[int, ...]) -> None:
        before = window.before.get(key, (0,) * len(counters))
        window.before[key] = counters
        for i, (now, then) in enumerate(zip(counters, before, strict=True)):
            window.total[i] += now - then


def link_counters(link: SiblingLink) -> tuple[int, ...]:
    """(messages sent, bytes sent, messages received, bytes received, deliveries of received messages)."""
    return link.out_msgs, link.out_bytes, link.in_msgs, link.in_bytes, link.deliveries


def _link_fields(link: _LinkWindow) -> dict[str, int]:
    sent_msgs, sent_bytes, received_msgs, received_bytes, deliveries = link.total
    return {
        "sent_msgs": sent_msgs,
        "sent_bytes": sent_bytes,
        "received_msgs": received_msgs,
        "received_bytes": received_bytes,
        "received_deliveries": deliveries,
        "peak_pending_bytes": link.peak,
        "paused_us": link.paused_us,
    }


def _fold(lines: list[bytes], blocks: list[bytes], least: int = LINES_A_BLOCK) -> None:
    """Make a block of the first lines, if there are `least`: those of thousands of accounts would take a second."""
    if len(lines) >= least:
        blocks.append(b"\n".join(lines[:LINES_A_BLOCK]) + b"\n")
        del lines[:LINES_A_BLOCK]


def _slow_record(window: dict[str, object], row: ConnectionRow, *, names: bool) -> records.SlowRecord:
    heaviest = max(row.subs, key=lambda sub: sub.msgs, default=None)
    return records.SlowRecord(
        **window,  # type: ignore[arg-type]
        cid=row.cid,
        user=shown(row.user),
        name=shown(row.name) if names else "",
        ip=row.ip if names else "",
        subject=heaviest.subject if heaviest is not None else "",
        pending_bytes=row.pending_bytes,
        reason=row.reason,
    )


def percentile(ordered: list[int], share: float) -> int:
    """The smallest value that at least this share of the values does not exceed; 0 for an empty list."""
    if not ordered:
        return 0
    return ordered[min(len(ordered) - 1, max(0, -(-int(len(ordered) * share * 1000) // 1000) - 1))]
