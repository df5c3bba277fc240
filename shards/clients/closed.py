"""The history of closed connections, as rows; slow consumers have a list of their own.

So an ordinary flood of closes does not push slow consumers out. Only rows are kept, not connections; as many as
`max_closed_clients` says, and fewer where they are large: what a client said of itself, and the subjects that it
subscribed to, may be as long as its control lines. Called by the clients.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import msgspec

from gnatswarm.broker import census
from gnatswarm.broker.errors import CloseReason
from gnatswarm.shards.boundary.rows import AccountRow, ConnectionRow, SubscriptionRow
from gnatswarm.shards.boundary.utf8_text import utf8_text
from gnatswarm.shards.boundary.wall_clock import wall_offset_us
from gnatswarm.shards.clients.latest import Latest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gnatswarm.broker.connection import ClientConnection
    from gnatswarm.shards.clients.session import ClientSession

MOST_SLOW = 256
# A closed connection is remembered with this many slots of its subscriptions, so some 32 to 64 of them, …
SUBSCRIPTION_SLOTS = 64
# … and with so many characters of them together: 64 with ordinary subjects have half of it.
SUBSCRIPTIONS_TEXT = 8192
# A row with short texts takes 1 KB at most, 64 subscriptions with ordinary subjects 3 KB more.
MEAN_ROW_BYTES = 4096
# However few rows are kept: one may have texts of 128 KB, the largest control line, at four bytes a character.
LEAST_BYTES = 1024 * 1024
# A slow consumer is blamed on the busiest subscription in so many slots of its table: some 6 ms.
BLAMED_SLOTS = 65_536
# The struct, its numbers and address.
ROW_BYTES = 700
# Slots looked at in one step, so that not all subscriptions with the longest subjects are in memory at once.
STEP_SLOTS = 8

SLOW = frozenset({CloseReason.SLOW_CONSUMER_PENDING_BYTES, CloseReason.SLOW_CONSUMER_WRITE_DEADLINE})

# (subject, queue, sid, messages delivered, max), as in `census.subscriptions`.
_Fields = tuple[str, str, str, int, int]
_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(list[_Fields]).decode


class Closed:
    """The history of one shard."""

    def __init__(self, most: int) -> None:
        self.latest: Latest[ConnectionRow] = Latest(most, _most_bytes(most))  # for /connz?state=closed
        self.slow: Latest[ConnectionRow] = Latest(MOST_SLOW, _most_bytes(MOST_SLOW))
        self.by_account: dict[str, AccountRow] = {}  # sums over all closed connections

    def set_most(self, most: int) -> None:
        """Keep so many of the latest closed connections from now on."""
        self.latest.bound(most, _most_bytes(most))

    def note(self, session: ClientSession) -> None:
        """A session has just ended; its connection still has its subscriptions and its pending bytes."""
        row = connection_row(session, wall_offset_us())
        row.stop_us = int(session.ended_s * 1_000_000)
        row.reason = session.reason.text
        if row.subscriptions:
            some = some_subscriptions if session.reason not in SLOW else busiest_and_some
            row.packed_subs = _pack(some(session.connection, SUBSCRIPTION_SLOTS, SUBSCRIPTIONS_TEXT))
        size = row_bytes(row)
        self.latest.add(row, size)
        if session.account:
            account = self.by_account.setdefault(session.account, AccountRow(session.account))
            account.in_msgs += row.in_msgs
            account.in_bytes += row.in_bytes
            account.out_msgs += row.out_msgs
            account.out_bytes += row.out_bytes
            account.slow_consumers += session.reason in SLOW
        if session.reason in SLOW:
            self.slow.add(row, size)

    def note_refused(self, cid: int, host: str, port: int, kind: str) -> None:
        """A connection was closed when it was accepted, because there are as many as may be."""
        now_us = time.time_ns() // 1000
        row = ConnectionRow(
            *(cid, host, port, now_us, now_us, now_us),
            CloseReason.MAXIMUM_CONNECTIONS_EXCEEDED.text,
            *(0, 0, 0, 0, 0, 0, 0),
            *("", "", "", ""),
            kind=kind,
        )
        self.latest.add(row, row_bytes(row))

    def forget(self, accounts: Iterable[str]) -> None:
        """These accounts are not configured any more, and have no clients."""
        for account in accounts:
            self.by_account.pop(account, None)

    def note_moved(self, account: str, in_msgs: int, in_bytes: int, out_msgs: int, out_bytes: int) -> None:
        """A client with these counters goes on in another shard; with negative ones, it has come from another."""
        if account:
            row = self.by_account.setdefault(account, AccountRow(account))
            row.left_in_msgs += in_msgs
            row.left_in_bytes += in_bytes
            row.left_out_msgs += out_msgs
            row.left_out_bytes += out_bytes


def _most_bytes(most_rows: int) -> int:
    return max(LEAST_BYTES, most_rows * MEAN_ROW_BYTES)


def row_bytes(row: ConnectionRow) -> int:
    """The memory that a row without its list of subscriptions takes, roughly."""
    texts = sys.getsizeof(row.name) + sys.getsizeof(row.lang) + sys.getsizeof(row.version) + sys.getsizeof(row.user)
    return ROW_BYTES + texts + len(row.packed_subs)


def some_subscriptions(connection: ClientConnection, slots: int, most_text: int) -> list[_Fields]:
    """Those in so many slots of its table, but for those whose texts have no room in so many characters."""
    found: list[_Fields] = []
    at = 0
    while slots > 0:
        step, at = census.subscriptions(connection, at, min(slots, STEP_SLOTS))
        for fields in step:
            text = len(fields[0]) + len(fields[1]) + len(fields[2])
            if text <= most_text:
                most_text -= text
                found.append(fields)
        if not at:
            break
        slots -= STEP_SLOTS
    return found


def busiest_and_some(connection: ClientConnection, slots: int, most_text: int) -> list[_Fields]:
    """Likewise, and before them the one that most messages came to, wherever it is."""
    busiest = census.busiest(connection, BLAMED_SLOTS)
    text = len(busiest[0]) + len(busiest[1]) + len(busiest[2]) if busiest is not None else 0
    if busiest is None or text > most_text:
        return some_subscriptions(connection, slots, most_text)
    some = some_subscriptions(connection, slots, most_text - text)
    return [busiest, *(fields for fields in some if fields[2] != busiest[2])]


def unpacked(row: ConnectionRow) -> ConnectionRow:
    """The row of a closed connection with the list of its subscriptions."""
    if not row.packed_subs:
        return row
    subs = tuple(SubscriptionRow(*fields, row.cid) for fields in _unpack(row.packed_subs))
    return msgspec.structs.replace(row, subs=subs, packed_subs=b"")


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
        int(session.start_s(offset_us) * 1_000_000),
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
        session.account or session.full_account,
        kind=session.kind,
        tls_version=session.tls_version,
        tls_cipher_suite=session.tls_cipher_suite,
        came_from=session.came_from,
        moved_us=session.moved_us,
        login=session.login,
        publish_waits=session.connection.publish_waits,
    )
