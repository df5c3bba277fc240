"""Who said and heard what in one window: the rows of clients, bounded.

A client's numbers are what its connection has counted since they were taken last, so a client that does nothing costs
nothing, and what comes while a window is closed belongs to one of two windows. Clients that have left are added up by
user, name, library and address: a thousand that come and go are one row. Called by the recorder.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

import msgspec

from gnatswarm.shards.boundary import records

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gnatswarm.broker.connection import ClientConnection

# Slots of a client's subscriptions that are read in one step, and of one that leaves, at most.
SUBSCRIPTION_SLOTS = 1024
MOST_LEFT_SLOTS = 4096
CLIENTS_A_STEP = 16
# CONNECT may hold a megabyte; nobody reads more of a name.
MOST_TEXT = 256

_encoder = msgspec.json.Encoder()

# As ClientConnection.take_talk() returns it.
Taken = tuple[bool, tuple[int, int, int, int], list[tuple[str, int, int, int]], list[tuple[str, str, int]]]


class Client(Protocol):
    """What a row needs to know of a client: its session."""

    @property
    def connection(self) -> ClientConnection:
        """The engine's side."""

    @property
    def account(self) -> str:
        """The account that it is in."""

    @property
    def user(self) -> str:
        """Its user's name, or its nkey."""

    @property
    def stated(self) -> tuple[str, str, str]:
        """Name, language and version of its CONNECT."""

    @property
    def host(self) -> str:
        """Its address."""


class Who(msgspec.Struct, frozen=True, gc=False):
    """Whose row it is."""

    account: str
    user: str
    name: str
    lib: str
    ip: str
    cid: int  # 0: all of these that have left


class Line:
    """The numbers of one row."""

    __slots__ = ("closed", "connections", "counts", "opened", "published", "received")

    def __init__(self) -> None:
        self.connections = self.opened = self.closed = 0
        self.counts = (0, 0, 0, 0)  # messages and bytes in, and out
        self.published: dict[str, tuple[int, int, int]] = {}
        self.received: dict[tuple[str, str], int] = {}

    @property
    def weight(self) -> int:
        """What decides which rows are kept."""
        return self.counts[0] + self.counts[2]

    def add(self, counts: tuple[int, int, int, int]) -> None:
        """More messages and bytes in and out."""
        a, b = self.counts, counts
        self.counts = a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3]

    def publish(self, rows: Iterable[tuple[str, int, int, int]]) -> None:
        """Add (subject, messages, bytes, requests)."""
        for subject, msgs, size, requests in rows:
            if (had := self.published.get(subject)) is not None:
                msgs, size, requests = msgs + had[0], size + had[1], requests + had[2]
            self.published[subject] = msgs, size, requests

    def receive(self, rows: Iterable[tuple[str, str, int]]) -> None:
        """Add (subject, queue, messages)."""
        for subject, queue, msgs in rows:
            key = subject, queue
            self.received[key] = self.received.get(key, 0) + msgs


class ClientRows:
    """The clients of one shard. `sessions` are those that are connected, by id; it is looked at once per window."""

    def __init__(self, sessions: Mapping[int, Client], *, most: int, subjects: int, names: bool) -> None:
        self._sessions = sessions
        self._most = most
        self._subjects = subjects
        self._names = names
        self._left: dict[Who, Line] = {}  # clients that left in this window, or moved, by who they were
        self._rest = Line()

    def on_closed(self, client: Client) -> None:
        """The client has left; its connection has its counters and subscriptions still."""
        taken = client.connection.take_talk()
        # Many short connections of the same kind are one row. Nothing else is remembered of a client.
        line = self._line(msgspec.structs.replace(self._who(client), cid=0))
        line.connections += 1
        line.closed += 1
        if taken is not None:
            self._add(line, client, taken)

    def on_moved(self, client: Client) -> None:
        """The client goes on in another shard, whose rows have nothing of what it did here; likewise."""
        taken = client.connection.take_talk()
        if taken is not None:
            line = self._line(self._who(client))
            line.connections += 1
            self._add(line, client, taken)

    def _line(self, who: Who) -> Line:
        """The numbers of clients that are here no more."""
        line = self._left.get(who)
        if line is None:
            line = self._rest if len(self._left) >= self._most else self._left.setdefault(who, Line())
        return line

    def _add(self, line: Line, client: Client, taken: Taken) -> None:
        """Add what was taken of a client that is here no more."""
        is_new, counts, said, heard = taken
        line.opened += is_new
        if not any(counts):
            return
        line.add(counts)
        if line is not self._rest:
            line.publish(said)
            line.receive(heard)
            at = 0
            while counts[2]:
                rows, at = client.connection.heard(at, SUBSCRIPTION_SLOTS)
                line.receive(rows)
                if not 0 < at < MOST_LEFT_SLOTS:
                    break
            self._bound(line)

    def steps(self, window: dict[str, object], lines: list[bytes], sums: list[int]) -> Iterator[None]:
        """Take what was counted, in short steps; adds the window's rows to `lines` and their numbers to `sums`."""
        left, self._left = self._left, {}
        rest, self._rest = self._rest, Line()
        kept: list[tuple[int, int, Who, Line]] = []  # a heap, the lightest first
        order = 0
        for who, line in left.items():
            order += 1
            self._keep(kept, (line.weight, order, who, line), rest)
        for n, client in enumerate(list(self._sessions.values())):
            taken = client.connection.take_talk()
            if taken is not None:
                line = Line()
                line.connections = 1
                is_new, counts, said, heard = taken
                line.opened = int(is_new)
                line.add(counts)
                line.publish(said)
                line.receive(heard)
                at = 0
                while counts[2]:
                    rows, at = client.connection.heard(at, SUBSCRIPTION_SLOTS)
                    line.receive(rows)
                    if not at:
                        break
                    self._bound(line)
                    yield
                self._bound(line)
                order += 1
                self._keep(kept, (line.weight, order, self._who(client), line), rest)
            if n % CLIENTS_A_STEP == CLIENTS_A_STEP - 1:
                yield
        yield
        for n, (_weight, _order, who, line) in enumerate(kept):
            lines.append(self._encoded(window, who, line, sums))
            if n % CLIENTS_A_STEP == CLIENTS_A_STEP - 1:
                yield
        if rest.connections:
            lines.append(self._encoded(window, Who("", records.OTHER, "", "", "", 0), rest, sums))

    def _keep(self, kept: list[tuple[int, int, Who, Line]], entry: tuple[int, int, Who, Line], rest: Line) -> None:
        if len(kept) < self._most:
            heapq.heappush(kept, entry)
            return
        line = heapq.heappushpop(kept, entry)[3]
        rest.add(line.counts)
        rest.connections += line.connections
        rest.opened += line.opened
        rest.closed += line.closed

    def _who(self, client: Client) -> Who:
        _name, language, version = client.stated
        return Who(
            client.account,
            shown(client.user),
            shown(client.stated[0]) if self._names else "",
            shown(f"{language} {version}".strip()),
            client.host if self._names else "",
            client.connection.cid,
        )

    def _bound(self, line: Line) -> None:
        """Keep the heaviest subjects; the row's totals have the others."""
        if len(line.published) > self._subjects:
            said = heapq.nlargest(self._subjects, line.published.items(), key=lambda one: one[1])
            line.published = dict(said)
        if len(line.received) > self._subjects:
            heard = heapq.nlargest(self._subjects, line.received.items(), key=lambda one: one[1])
            line.received = dict(heard)

    def _encoded(self, window: dict[str, object], who: Who, line: Line, sums: list[int]) -> bytes:
        for i, n in enumerate(line.counts):
            sums[i] += n
        in_msgs, in_bytes, out_msgs, out_bytes = line.counts
        published = [records.Published(subject, *counts) for subject, counts in line.published.items()]
        other = in_msgs - sum(one.msgs for one in published)
        if other > 0:
            size = in_bytes - sum(one.bytes for one in published)
            published.append(records.Published(records.OTHER, other, size, 0))
        received = [records.Received(*key, msgs) for key, msgs in line.received.items()]
        other = out_msgs - sum(one.msgs for one in received)
        if other > 0:
            received.append(records.Received(records.OTHER, "", other))
        return _encoder.encode(
            records.ClientRecord(
                **window,  # type: ignore[arg-type]
                **msgspec.structs.asdict(who),
                connections=line.connections,
                opened=line.opened,
                closed=line.closed,
                in_msgs=in_msgs,
                in_bytes=in_bytes,
                out_msgs=out_msgs,
                out_bytes=out_bytes,
                published=tuple(published),
                received=tuple(received),
            )
        )


def rest_line(window: dict[str, object], counts: tuple[int, ...]) -> bytes:
    """The row of the user REST: what the window's other rows of clients lack."""
    in_msgs, in_bytes, out_msgs, out_bytes = counts
    return _encoder.encode(
        records.ClientRecord(
            **window,  # type: ignore[arg-type]
            **msgspec.structs.asdict(Who("", records.REST, "", "", "", 0)),
            connections=0,
            opened=0,
            closed=0,
            in_msgs=in_msgs,
            in_bytes=in_bytes,
            out_msgs=out_msgs,
            out_bytes=out_bytes,
            published=(),
            received=(),
        )
    )


def shown(text: str) -> str:
    """A client's word, of bounded length, in characters that UTF-8 can write."""
    if len(text) > MOST_TEXT:
        text = text[: MOST_TEXT - 1] + "…"
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8", "replace")
