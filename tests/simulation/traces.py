"""What shards publish of messages whose header asks for a trace, as the real message tracing tells it, and the oracle.

Documents are kept where the broker would publish them: as messages they are like all others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import orjson

from gnatswarm.broker.message_trace import CLIENT
from gnatswarm.broker.options import Options
from gnatswarm.probes.engine import Probe
from tests.simulation.history import NEVER, Message, Subscription
from tests.support.traces import AllWanted

DESTINATION = b"Nats-Trace-Dest"
NO_DESTINATION = b"Nats-Trace-Dost"  # as long, and asks for nothing
HOP = b"Nats-Trace-Hop"
NO_HOP = b"Nats-Trace-Hap"
# Lines of a header that tracing adds or takes away, and that of requests to another account.
OWN_LINES = b"Nats-Trace-Hop: ", b"Nats-Request-Info: "


def header_of(number: int, *, asks: bool, is_only: bool) -> bytes:
    """A header that asks for a trace of this message, or one of the same length that does not."""
    only = b"Nats-Trace-Only: %b\r\n" % (b"true" if asks else b"nope") if is_only else b""
    to = DESTINATION if asks else NO_DESTINATION
    return b"NATS/1.0\r\n%b: t.%06d\r\nNumber: %06d\r\n%b\r\n" % (to, number, number, only)


def header_from_outside(number: int) -> bytes:
    """One that a user of another server has written: it may say that somebody traces the message already."""
    to = DESTINATION if number % 4 < 3 else NO_DESTINATION
    hop = HOP if number % 3 < 2 else NO_HOP
    only = b"Nats-Trace-Only: true\r\n" if number % 5 == 0 else b""
    return b"NATS/1.0\r\n%b: t.%06d\r\n%b: 7\r\nNumber: %06d\r\n%b\r\n" % (to, number, hop, number, only)


def lines_of(header: bytes, *, with_destination: bool) -> list[bytes]:
    """The lines of a header that its publisher wrote; without that of the destination, which changes on the way."""
    left_out = OWN_LINES if with_destination else (*OWN_LINES, DESTINATION)
    return sorted(line for line in header.split(b"\r\n")[1:] if line and not line.startswith(left_out))


class Known:
    """Who a client is, by its id: in the place of the shard's sessions."""

    def __init__(self, who: Callable[[int], tuple[int, str]]) -> None:
        self._who = who

    def get(self, cid: int) -> Any:
        number, account = self._who(cid)
        return SimpleNamespace(connect=SimpleNamespace(name=str(number)), account=account)

    def __contains__(self, cid: int) -> bool:
        return True

    __getitem__ = get


class Traces:
    """All documents, by message."""

    def __init__(self, who: Callable[[int], tuple[int, str]]) -> None:
        """`who(cid)`: its number, and its account."""
        self._known = Known(who)
        self.documents: dict[int, list[Any]] = {}
        self.n_across = 0  # so many of them tell another account's shards' part of a request

    def begin(self, probe: Probe, options: Options) -> None:
        """Trace messages at this shard."""
        assert probe.mesh is not None
        probe.fanout.tracing = AllWanted(options, probe.mesh, self, self._known)  # type: ignore[arg-type]

    def named(self) -> dict[str, str]:
        """The member `server` of a document."""
        return {"name": "N"}

    def say_soon(self, account: str, subject: bytes, payload: bytes, header: bytes = b"") -> None:
        """A shard publishes a document."""
        document = orjson.loads(payload)
        (number,) = document["request"]["header"]["Number"]
        self.documents.setdefault(int(number), []).append(document)
        self.n_across += subject.startswith(b"_R_")

    def check(self, message: Message, subscriptions: list[Subscription]) -> None:
        """Each hop tells once what became of it, and what it says was delivered was."""
        found = self.documents.get(message.number, [])
        if not message.is_traced:
            assert not found, f"{message}: nobody asked for {found}"
            return
        hops = Counter(one["request"]["header"].get("Nats-Trace-Hop", [""])[0] for one in found)
        assert not hops or max(hops.values()) == 1, f"{message}: a hop tells twice of it: {found}"
        said: Counter[tuple[int, str, str]] = Counter()
        for one in found:
            for event in one["events"]:
                if event["type"] == "eg" and event["kind"] == CLIENT and "error" not in event:
                    said[int(event["name"]), event["sub"], event.get("queue", "")] += 1
        got: Counter[tuple[int, str, str]] = Counter()
        plainly: set[tuple[int, str, str]] = set()
        for sub in subscriptions:
            if message.number in sub.got:
                key = sub.client, sub.pattern, sub.queue
                got[key] += 1
                if not sub.queue and sub.account == message.account and not sub.is_outside:
                    plainly.add(key)
        if message.is_only:
            assert not got, f"{message} came to {got}"
            return
        if message.may_be_lost or message.at == NEVER or message.acked_at == NEVER:
            return  # a document may be missing
        for key, n in got.items():
            assert n <= said[key] or key not in plainly, f"{message} came to {key}, and no document says so: {found}"
