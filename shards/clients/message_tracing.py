"""Message tracing on one shard: begins a trace of each message that asks for one, and publishes its document.

Made for `compatibility: "2.15"` alone. Which messages ask is found by the engine (broker.traced), which also notes what
becomes of them in a MessageTrace. Not here: other servers, which are told of no trace.
"""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import TYPE_CHECKING

from gnatswarm.broker import census, message_trace
from gnatswarm.broker.message_trace import MessageTrace
from gnatswarm.broker.subject import matches

if TYPE_CHECKING:
    from gnatswarm.broker.mesh import Mesh
    from gnatswarm.broker.message_trace import Headers
    from gnatswarm.broker.options import Account, Options
    from gnatswarm.shards.clients.session import ClientSession
    from gnatswarm.shards.clients.system import System

logger = logging.getLogger("gnatswarm.clients")

ONLY = frozenset({"1", "true", "on"})
GZIPPED = b"Content-Encoding: gzip\r\n"
# The fastest level, some 10 ms for a megabyte: the others take seconds where it is made of few different letters.
COMPRESSION_LEVEL = 1
# A longer document is published as it is: compressing it would hold up the shard.
MOST_COMPRESSED_BYTES = 2 * 1024 * 1024


class MessageTracing:
    """What the engine calls as Fanout.tracing."""

    def __init__(
        self,
        options: Options,
        mesh: Mesh,
        system: System,
        sessions: dict[int, ClientSession],
    ) -> None:
        self._mesh = mesh
        self._system = system
        self._sessions = sessions
        self._accounts: dict[str, Account] = {}
        self._new = partial(MessageTrace, now_us=_now_us, who=self._who, is_exported=self._is_exported)
        self.configure(options)

    def configure(self, options: Options) -> None:
        """Apply these options."""
        for name in self._accounts:
            self._mesh.account(_raw(name)).traces_parents = False
        self._accounts = {account.name: account for account in options.accounts}
        for name, account in self._accounts.items():
            self._mesh.account(_raw(name)).traces_parents = bool(account.trace_destination)

    # ---- called by the engine

    def begin(self, cid: int, account: bytes, subject: bytes, block: bytes, size: int) -> MessageTrace | None:
        """The trace of a client's message; None: its header does not ask for one, after all."""
        headers = message_trace.headers_of(block)
        destination, is_by_parent = self._destination(account, headers, is_first=True)
        if destination is None:
            return None
        name, _account = self._who(cid)
        is_only = not is_by_parent and _is_only(headers)
        if not message_trace.is_destination(destination):
            if cid in self._sessions:
                shown = destination.decode("utf-8", "replace")
                logger.error(
                    '%s - Destination "%s" is not valid, won\'t be able to trace events', self._sessions[cid], shown
                )
            if not is_only:
                return None
        trace = self._new(
            account=account,
            destination=destination,
            headers=headers,
            size=size,
            is_only=is_only,
            hop="",
            is_by_parent=is_by_parent,
            is_wanted=self._is_wanted(account, destination),
        )
        trace.came(message_trace.CLIENT, cid, name, subject)
        return trace

    def begin_here(self, shard: int, account: bytes, subject: bytes, block: bytes, size: int) -> MessageTrace | None:
        """The same of a message that a sibling has traced."""
        headers = message_trace.headers_of(block)
        destination, is_by_parent = self._destination(account, headers, is_first=False)
        if destination is None:
            return None
        hop = headers.get("Nats-Trace-Hop", [""])[0]
        is_only = not is_by_parent and _is_only(headers)
        if not is_only and not message_trace.is_destination(destination):
            return None
        trace = self._new(
            account=account,
            destination=destination,
            headers=headers,
            size=size,
            is_only=is_only,
            hop=hop,
            is_by_parent=is_by_parent,
            is_wanted=self._is_wanted(account, destination),
        )
        trace.came(message_trace.SIBLING, shard, message_trace.shard_name(shard), subject)
        return trace

    def end(self, trace: MessageTrace) -> None:
        """The message was delivered: the document follows on the loop's next turn."""
        if not trace.is_wanted:
            return
        document = trace.document(self._system.named())
        header = b""
        if "gzip" in trace.headers.get("Accept-Encoding", [""])[0].lower() and len(document) <= MOST_COMPRESSED_BYTES:
            import gzip

            document = gzip.compress(document, COMPRESSION_LEVEL)
            header = message_trace.FIRST_LINE + GZIPPED + b"\r\n"
        self._system.say_soon(trace.account.decode("utf-8", "surrogateescape"), trace.destination, document, header)

    # ----

    def _is_wanted(self, account: bytes, destination: bytes) -> bool:
        return message_trace.is_destination(destination) and census.is_wanted(self._mesh.account(account), destination)

    def _destination(self, account: bytes, headers: Headers, *, is_first: bool) -> tuple[bytes | None, bool]:
        """(where documents go, whether the account's options say so); None: nowhere."""
        named = headers.get("Nats-Trace-Dest")
        if named is not None:
            if named[0] == message_trace.DISABLED.decode() or "Nats-Trace-Origin-Account" in headers:
                return None, False
            return named[0].encode(), False
        own = self._accounts.get(account.decode("utf-8", "surrogateescape"))
        if own is None or not own.trace_destination or not message_trace.is_sampled(headers):
            return None, True
        if is_first:
            import random

            if random.randrange(100) >= own.trace_percent:
                return None, True
        return _raw(own.trace_destination), True

    def _who(self, cid: int) -> tuple[str, str]:
        session = self._sessions.get(cid)
        return (session.connect.name, session.account) if session is not None else ("", "")

    def _is_exported(self, importer: str, exporter: bytes, subject: bytes) -> bool:
        """Whether the import that brings messages on this subject has allow_trace."""
        account = self._accounts.get(importer)
        name = exporter.decode("utf-8", "surrogateescape")
        for found in account.imports if account is not None else ():
            if not found.is_service and found.account == name and matches(_raw(found.subject), subject):
                return found.allow_trace
        return False


def _now_us() -> int:
    return time.time_ns() // 1000


def _is_only(headers: Headers) -> bool:
    return headers.get("Nats-Trace-Only", [""])[0].lower() in ONLY


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
