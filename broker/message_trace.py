"""Message tracing, as in nats-server 2.15: which headers ask for it, and the document about one message at one shard.

A shard that delivers a traced message publishes a document about it, and passes the message on to siblings with one
header more (`Nats-Trace-Hop`). They publish documents of their own, as every server of a cluster does, and readers put
them together as those of a cluster. Pure; the caller passes the time and names of clients.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import orjson

from gnatswarm.broker.advisory import Document
from gnatswarm.broker.goformat import time_text
from gnatswarm.broker.subject import is_literal

DESTINATION, HOP, ONLY = b"Nats-Trace-Dest", b"Nats-Trace-Hop", b"Nats-Trace-Only"
ORIGIN_ACCOUNT = b"Nats-Trace-Origin-Account"
PARENT = b"traceparent"
# In the place of a destination: the message is not traced any more.
DISABLED = b"trace disabled"
FIRST_LINE = b"NATS/1.0\r\n"

# Kinds of connection in events.
CLIENT, SIBLING = 0, 1

NO_ECHO = "Not delivered because of no echo"
AUTO_UNSUBSCRIBED = "Not delivered because auto-unsubscribe exceeded"
CLIENT_CLOSED = "Not delivered because client is closed"
NO_SUPPORT = "Message delivered but remote does not support message tracing so no trace event generated from there"
ONLY_NO_SUPPORT = "Not delivered because remote does not support message tracing"
TOO_LARGE = "maximum payload exceeded"

Headers = dict[str, list[str]]

# A document lists so many events, at 3 µs each, with so many characters of names and subjects, or somewhat more. Other
# receivers get the message as well, and are counted.
MOST_EVENTS = 10_000
MOST_CHARACTERS = 1 << 20
# Of a header block all fields are read up to here: a megabyte of short ones would hold up the shard for 0.1 s.
MOST_READ_BYTES = 16_384
# … and so many, wherever they are, that say something of its trace.
MOST_OF_TRACE = 64
_OF_TRACE = re.compile(rb"\r\n(?:Nats-Trace-[^:\r\n]*+|Accept-Encoding|(?i:traceparent)):[^\r\n]*+")


def _lines(block: bytes) -> Iterator[bytes]:
    """Those of a header block that are read."""
    end = len(block) if len(block) <= MOST_READ_BYTES else block.rfind(b"\r\n", 0, MOST_READ_BYTES)
    yield from block[len(FIRST_LINE) : end].split(b"\r\n")
    for found in islice(_OF_TRACE.finditer(block, end), MOST_OF_TRACE):
        yield found[0][2:]


def headers_of(block: bytes) -> Headers:
    """The fields of a header block, with their names as they were written; of a long one the first, and its trace's."""
    found: Headers = {}
    for line in _lines(block):
        name, colon, value = line.partition(b":")
        if colon and name and value.strip(b" \t"):
            key = name.decode("utf-8", "replace")
            found.setdefault(key, []).append(value.strip(b" \t").decode("utf-8", "replace"))
    return found


def with_line(block: bytes, name: bytes, value: bytes) -> bytes:
    """A header block with this field alone of that name, at its end."""
    return without_line(block, name)[:-2] + b"%b: %b\r\n\r\n" % (name, value)


def without_line(block: bytes, name: bytes) -> bytes:
    """A header block without the fields of that name."""
    lines, mark = b"\r\n" + block[len(FIRST_LINE) :].rstrip(b"\r\n"), b"\r\n" + name + b":"
    kept, at = [], 0
    while (found := lines.find(mark, at)) >= 0:
        kept.append(lines[at:found])
        at = lines.find(b"\r\n", found + len(mark))
        at = len(lines) if at < 0 else at
    lines = b"".join([*kept, lines[at:]])
    while b"\r\n\r\n" in lines:  # an empty line would end the block
        lines = lines.replace(b"\r\n\r\n", b"\r\n")
    lines = lines.strip(b"\r\n")
    return FIRST_LINE + lines + (b"\r\n\r\n" if lines else b"\r\n")


def may_lead_somewhere(block: bytes) -> bool:
    """Whether documents about a message with this header could go anywhere: by its destination, or a `traceparent`."""
    headers = headers_of(block)
    named = headers.get(DESTINATION.decode())
    if named is None:
        return is_sampled(headers)
    is_over = named[0] == DISABLED.decode() or ORIGIN_ACCOUNT.decode() in headers
    return not is_over and is_destination(named[0].encode())


def later_hop(block: bytes, number: int) -> bytes:
    """The hop of what a shard sends on when its document has left; `number`: no two there have the same."""
    hop = headers_of(block).get(HOP.decode(), [""])[0]
    return f"{hop}.0.{number}".encode()


def is_sampled(headers: Headers) -> bool:
    """Whether a `traceparent` says that its trace is recorded."""
    for name, values in headers.items():
        if name.lower() == "traceparent":
            for value in values:
                words = value.split("-")
                if len(words) == 4 and len(words[3]) == 2 and _is_odd_hex(words[3]):
                    return True
    return False


def _is_odd_hex(text: str) -> bool:
    try:
        # nats-server reads a signed byte: 80 and more is no number.
        return text.isalnum() and int(text, 16) < 128 and int(text, 16) & 1 == 1
    except ValueError:
        return False


class MessageTrace:
    """What one shard knows of one traced message.

    `account` and `destination`: where the document goes. `place` is the destination as the account calls it in which
    the message is now; `is_only`: it is delivered to nobody; `is_by_parent`: no header names the destination, but the
    account's options do; `is_wanted`: somebody subscribes to the destination.
    """

    def __init__(
        self,
        *,
        account: bytes,
        destination: bytes,
        headers: Headers,
        size: int,
        is_only: bool,
        hop: str,
        is_by_parent: bool,
        is_wanted: bool = True,
        now_us: Callable[[], int],
        who: Callable[[int], tuple[str, str]],
        is_exported: Callable[[str, bytes, bytes], bool],
    ) -> None:
        """`hop` is "" but for a sibling's.

        `who(cid)` is a client's (name, account); `is_exported(account, exporting account, subject)`: whether traces
        follow a stream there.
        """
        self.account = account
        self.destination = self.place = destination
        self.headers = headers
        self.size = size
        self.is_only = is_only
        self.hop = hop
        self.is_by_parent = is_by_parent
        self.hops = 0
        self.events: list[Document] = []
        self.is_wanted = is_wanted  # whether the document is published
        self.is_full = not is_wanted  # no more receivers are listed
        self._characters = 0
        self.unlisted = 0  # … and so many were not
        self._now_us = now_us
        self._who = who
        self._exported = is_exported
        self._follows: dict[tuple[str, bytes, bytes], bool] = {}  # what that has said

    def _add(self, what: str, /, **fields: Any) -> None:
        self.events.append({"type": what, "ts": time_text(self._now_us()), **fields})
        for value in fields.values():
            if type(value) is str:
                self._characters += len(value)
        self.is_full = self.is_full or len(self.events) >= MOST_EVENTS or self._characters >= MOST_CHARACTERS

    def came(self, kind: int, number: int, name: str, subject: bytes) -> None:
        """Its first event: from this client or sibling, on this subject."""
        named = {"name": name} if name else {}
        account = self.account.decode("utf-8", "replace")
        self._add("in", kind=kind, cid=number, **named, acc=account, subj=subject.decode("utf-8", "replace"))

    def refused(self, error: str) -> None:
        """The publisher got this error."""
        self.events[0]["error"] = error

    def mapped(self, to: bytes) -> None:
        """A mapping sends it to another subject."""
        self._add("sm", to=to.decode("utf-8", "replace"))

    def imported(self, account: bytes, subject: bytes, to: bytes) -> None:
        """A service import sends it to another account."""
        texts = [text.decode("utf-8", "replace") for text in (account, subject, to)]
        self._add("si", acc=texts[0], **{"from": texts[1]}, to=texts[2])

    def exported(self, cid: int, exporter: bytes, subject: bytes, to: bytes) -> bool:
        """A stream import brings it from `exporter` to this client's account. False: its trace may not follow."""
        _name, account = self._who(cid)
        self._add("se", acc=account, to=to.decode("utf-8", "replace"))
        stream = account, exporter, subject
        if stream not in self._follows:  # (once: an account may have thousands of imports, and thousands of receivers)
            self._follows[stream] = self._exported(*stream)
        return self._follows[stream]

    def delivered(self, cid: int, subject: bytes, queue: bytes, error: str = "") -> None:
        """It was given to this subscription; or not, because of an error."""
        name, account = self._who(cid)
        fields: Document = {"kind": CLIENT, "cid": cid}
        if name:
            fields["name"] = name
        if account != self.events[0]["acc"]:
            fields["acc"] = account
        fields["sub"] = subject.decode("utf-8", "replace")
        if queue:
            fields["queue"] = queue.decode("utf-8", "replace")
        if error:
            fields["error"] = error
        self._add("eg", **fields)

    def sent_on(self, shard: int) -> bytes:
        """It goes to a sibling: returns the hop that its header is to name."""
        self.hops += 1
        hop = f"{self.hop}.{self.hops}" if self.hop else str(self.hops)
        self._add("eg", kind=SIBLING, cid=shard, name=shard_name(shard), hop=hop)
        return hop.encode()

    def left(self, shard: int) -> None:
        """It goes to the shard that is connected to other servers; of those nothing is told."""
        error = ONLY_NO_SUPPORT if self.is_only else NO_SUPPORT
        self._add("eg", kind=SIBLING, cid=shard, name=shard_name(shard), error=error)

    def document(self, server: Document) -> bytes:
        """The document; `server` is the member of that name."""
        hops = {"hops": self.hops} if self.hops else {}
        unlisted = {"unlisted": self.unlisted} if self.unlisted else {}
        request: Document = {"header": self.headers, "msgsize": self.size}
        return orjson.dumps({"server": server, "request": request, **hops, **unlisted, "events": self.events})


def shard_name(shard: int) -> str:
    """How events name a sibling."""
    return f"shard-{shard}"


def is_destination(subject: bytes) -> bool:
    """Whether documents can be published to it."""
    return bool(subject) and not any(c in b" \t\r\n" for c in subject) and is_literal(subject)
