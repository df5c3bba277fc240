"""The history of closed connections, as rows; slow consumers have a list of their own.

So an ordinary flood of closes does not push slow consumers out. Only rows are kept, not connections; as many as
`max_closed_clients` says. Called by the clients.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

from gnatswarm.broker import census
from gnatswarm.broker.errors import CloseReason
from gnatswarm.shards.boundary.rows import AccountRow, ConnectionRow, SubscriptionRow
from gnatswarm.shards.boundary.utf8_text import utf8_text

if TYPE_CHECKING:
    from gnatswarm.shards.clients.session import ClientSession

MOST_SLOW = 256
# A closed connection is remembered with this many slots of its subscriptions, so some 32 to 64 of them.
SUBSCRIPTION_SLOTS = 64

SLOW = frozenset({CloseReason.SLOW_CONSUMER_PENDING_BYTES, CloseReason.SLOW_CONSUMER_WRITE_DEADLINE})


class Closed:
    """The history of one shard."""

    def __init__(self, most: int) -> None:
        self.latest: deque[ConnectionRow] = deque(maxlen=most)  # for /connz?state=closed
        self.slow: deque[ConnectionRow] = deque(maxlen=MOST_SLOW)
        self.by_account: dict[str, AccountRow] = {}  # sums over all closed connections

    def set_most(self, most: int) -> None:
        """Keep so many of the latest closed connections from now on."""
        self.latest = deque(self.latest, maxlen=most)

    def note(self, session: ClientSession) -> None:
        """A session has just ended; its connection still has its subscriptions and its pending bytes."""
        row = connection_row(session, wall_offset_us())
        row.stop_us = int(session.ended_s * 1_000_000)
        row.reason = session.reason.text
        if row.subscriptions:
            found, _next = census.subscriptions(session.connection, 0, SUBSCRIPTION_SLOTS)
            row.subs = tuple(SubscriptionRow(*one, row.cid) for one in found)
        self.latest.append(row)
        if row.account:
            account = self.by_account.setdefault(row.account, AccountRow(row.account))
            account.in_msgs += row.in_msgs
            account.in_bytes += row.in_bytes
            account.out_msgs += row.out_msgs
            account.out_bytes += row.out_bytes
            account.slow_consumers += session.reason in SLOW
        if session.reason in SLOW:
            self.slow.append(row)

    def note_moved(self, account: str, in_msgs: int, in_bytes: int, out_msgs: int, out_bytes: int) -> None:
        """A client with these counters goes on in another shard; with negative ones, it has come from another."""
        if account:
            row = self.by_account.setdefault(account, AccountRow(account))
            row.left_in_msgs += in_msgs
            row.left_in_bytes += in_bytes
            row.left_out_msgs += out_msgs
            row.left_out_bytes += out_bytes


def wall_offset_us() -> int:
    """What to add to a monotonic time to get µs since 1970."""
    return (time.time_ns() - time.monotonic_ns()) // 1000


def connection_row(session: ClientSession, offset_us: int) -> ConnectionRow:
    """A connection as it is now, without its subscriptions."""
    counts = census.counters(session.connection)
    active_us = counts.last_us
    connect = session.connect
    if session.socket is not None and session.socket.work == counts.in_msgs + counts.out_msgs + counts.subscriptions:
        active_us = session.socket.used_us  # there were only pings since then
    return ConnectionRow(
        counts.cid,
        session.host,
        session.port,
        int(session.started_s * 1_000_000),
        active_us + offset_us,
        0,
        "",
        counts.rtt_us,
        counts.pending_bytes,
        counts.in_msgs,
        counts.out_msgs,
        counts.in_bytes,
        counts.out_bytes,
        counts.subscriptions,
        utf8_text(connect.name),
        utf8_text(connect.lang),
        utf8_text(connect.version),
        utf8_text(session.shown_user),
        session.account,
        kind=session.kind,
        tls_version=session.tls_version,
        tls_cipher_suite=session.tls_cipher_suite,
        came_from=session.came_from,
        moved_us=session.moved_us,
        login=session.login,
        publish_waits=session.connection.publish_waits,
    )
