"""One shard's part of the system account: it says who comes and goes, and passes requests on to the router.

Every shard is a member of one queue group for those requests, so each reaches exactly one of them, and the router
answers it for the whole broker: nobody has to be chosen, and nobody is missed when a shard goes. What a user asks about
itself is known here. Where the system account has no users there is no subscription, and an event costs one look at a
flag; where nobody wants one, a look into the match cache.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from typing import TYPE_CHECKING

import msgspec

from broker import advisory, census
from broker.advisory import Person, Server
from broker.connection import ClientConnection, Fence
from broker.errors import CloseReason
from broker.options import GLOBAL_ACCOUNT
from shards.control import AccountChanged, SystemEvent, SystemReply, SystemRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.fanout import Fanout
    from broker.limits import Limits
    from broker.mesh import Mesh
    from broker.options import Options, User
    from shards.clients import ClientSession
    from shards.control import Message
    from shards.page import Page
    from shards.reactor import Reactor

logger = logging.getLogger("gnatswarm.system")

# Requests that the router has not answered yet; others are told so. Users of other accounts may ask only about their
# own, and must not be able to fill the queue of the system's.
MOST_ASKED = 256
MOST_ASKED_BY_OTHERS = 32
MOST_BODY_BYTES = 64 * 1024
# However many connections come and go, an account's number is said so often.
CHANGES_EVERY_S = 0.1
# Whoever hears the last word of a broker; more are not waited for.
MOST_LAST_HEARERS = 4096
AGAIN_S = 1.0
READ_BYTES = 64 * 1024


def _now_us() -> int:
    return time.time_ns() // 1000


class Inbox:
    """The broker's own subscription: what is delivered to it comes out of one end of a socket pair."""

    def __init__(self, system: System, reactor: Reactor, connection: ClientConnection) -> None:
        self._system = system
        self._loop = asyncio.get_running_loop()
        inner, self._sock = socket.socketpair()
        for end in (inner, self._sock):
            end.setblocking(False)
        self._buffer = bytearray()
        self.connection = connection
        self._socket = reactor.open(inner.detach(), connection, self)
        self._loop.add_reader(self._sock.fileno(), self._on_readable)

    def close(self) -> None:
        """No more."""
        self._socket.kick(CloseReason.CLIENT_CLOSED)

    def on_closed(self, _reason: int) -> None:
        """The engine has let go of it."""
        self._loop.remove_reader(self._sock.fileno())
        self._sock.close()
        self._system.on_inbox_closed(self)

    def on_bytes_in(self, data: bytes) -> None:
        """Of no interest in a trace of clients."""

    on_bytes_out = on_bytes_in

    def _on_readable(self) -> None:
        try:
            self._buffer += self._sock.recv(READ_BYTES)
        except BlockingIOError:
            return
        while (end := self._buffer.find(b"\r\n")) >= 0:
            words = bytes(self._buffer[:end]).split()
            if words[0] != b"MSG":  # a PING: the reactor looks whether we are alive
                del self._buffer[: end + 2]
                self._sock.send(b"PONG\r\n")
                continue
            size = int(words[-1])
            if len(self._buffer) < end + 2 + size + 2:
                return
            body = bytes(self._buffer[end + 2 : end + 2 + size])
            del self._buffer[: end + 2 + size + 2]
            # "MSG subject sid reply size", or "MSG subject sid size".
            self._system.on_asked(words[1], words[3] if len(words) == 5 else b"", body)


class System:
    """All of it, for one shard."""

    def __init__(
        self,
        *,
        reactor: Reactor,
        fanout: Fanout,
        mesh: Mesh,
        page: Page,
        server: Server,
        sessions: dict[int, ClientSession],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        # To the router; without one, nobody answers what it would.
        self.tell: Callable[[Message], None] | None = None
        self._reactor = reactor
        self._fanout = fanout
        self._mesh = mesh
        self._page = page
        self._sessions = sessions
        self._server = server
        self._voices: dict[str, ClientConnection] = {}  # through which the broker speaks, by account
        self._inbox: Inbox | None = None
        self._asked: dict[int, tuple[str, bytes]] = {}  # seq → account, reply subject
        self._last_seq = 0
        self._asked_by_others = 0
        self._changed: set[str] = set()
        self._is_saying_changes = False
        self._is_closed = False
        self.configure(server.options)

    def configure(self, options: Options) -> None:
        """These options hold from here on."""
        moved = options.system_account != self._server.options.system_account
        self._server = msgspec.structs.replace(self._server, options=options)
        self._account = options.system_account
        self._is_heard = options.has_system_users
        if self._inbox is not None and (moved or not self._is_heard):
            self._inbox.close()
        elif self._inbox is None and self._is_heard:
            self._listen()

    def close(self) -> None:
        """The end within a process that goes on."""
        self._is_heard = False
        self._is_closed = True
        if self._inbox is not None:
            self._inbox.close()
            self._reactor.finish()

    def _listen(self) -> None:
        self._inbox = Inbox(self, self._reactor, self._own_connection(self._account, self._server.options.limits))
        for sid, subject in enumerate(advisory.request_subjects(self._server.server_id)):
            self._inbox.connection.post(b"SUB %b _sys_ %d\r\n" % (subject.encode(), sid))
        self._reactor.own_subs = self._inbox.connection.subscriptions
        self._finish_soon()

    def on_inbox_closed(self, inbox: Inbox) -> None:
        """It was closed, or fell too far behind: then it begins anew, and who waits for an answer may ask again."""
        if self._inbox is inbox:
            self._inbox = None
            self._reactor.own_subs = 0
            if self._is_heard:
                self._loop.call_later(AGAIN_S, self.configure, self._server.options)

    def _own_connection(self, account: str, limits: Limits) -> ClientConnection:
        most = msgspec.structs.replace(limits, max_payload_bytes=2**30, max_control_line_bytes=2**20)
        connection = ClientConnection(
            self._fanout, self._mesh.account(account.encode()), Fence(), 0, most, must_authenticate=False
        )
        connection.configure(verbose=False, pedantic=False, echo=True, headers=False, no_responders=False, protocol=0)
        return connection

    def _finish_soon(self) -> None:
        self._loop.call_soon(self._finish)

    def _finish(self) -> None:
        if not self._is_closed:
            self._reactor.finish()

    def _say(self, account: str, subject: bytes, payload: bytes) -> None:
        if self._is_closed:
            return
        voice = self._voices.get(account)
        if voice is None:
            voice = self._voices[account] = self._own_connection(account, self._server.options.limits)
        voice.post(b"PUB %b %d\r\n%b\r\n" % (subject, len(payload), payload))
        self._finish_soon()

    def _named(self, now_us: int) -> advisory.Document:
        return self._server.document(self._page.next_event_number(), now_us)

    def _is_wanted(self, subject: str) -> bool:
        return census.is_wanted(self._mesh.account(self._account.encode()), subject.encode())

    # ---- who comes and goes

    def on_connected(self, session: ClientSession) -> None:
        """Its CONNECT was accepted."""
        if not self._is_heard:
            return
        self._note_change(session.account)
        if session.account != GLOBAL_ACCOUNT and self._is_wanted(f"$SYS.ACCOUNT.{session.account}.CONNECT"):
            now_us = _now_us()
            self._publish(*advisory.connected(self._named(now_us), now_us, _person(session)))

    def on_disconnected(self, session: ClientSession) -> None:
        """It has gone; its connection still has its counters."""
        if not self._is_heard or session.admission is None:
            return
        self._note_change(session.account)
        if session.account != GLOBAL_ACCOUNT and self._is_wanted(f"$SYS.ACCOUNT.{session.account}.DISCONNECT"):
            self._publish(*advisory.disconnected(*self._end_of(session)))

    def on_refused(self, session: ClientSession) -> None:
        """It was not let in, and is about to be closed."""
        if self._is_heard and self._is_wanted(f"$SYS.SERVER.{self._server.server_id}.CLIENT.AUTH.ERR"):
            now_us = _now_us()
            reason = CloseReason.AUTHENTICATION_FAILURE.text
            self._publish(*advisory.refused(self._named(now_us), now_us, _person(session, now_us), reason))

    def _end_of(
        self, session: ClientSession
    ) -> tuple[advisory.Document, int, Person, tuple[int, int], tuple[int, int], str]:
        now_us = _now_us()
        connection = session.connection
        received = connection.in_msgs, connection.in_bytes
        sent = connection.out_msgs, connection.out_bytes
        return self._named(now_us), now_us, _person(session, now_us), received, sent, session.reason.text

    def _publish(self, subject: str, document: bytes) -> None:
        # Not in the middle of a client's operation, whose look into the match cache a publish could make stale.
        self._loop.call_soon(self._say, self._account, subject.encode(), document)

    def _note_change(self, account: str) -> None:
        if account in self._changed or not any(map(self._is_wanted, advisory.account_connections_subjects(account))):
            return
        self._changed.add(account)
        if not self._is_saying_changes:
            self._is_saying_changes = True
            self._loop.call_later(CHANGES_EVERY_S, self._say_changes)

    def _say_changes(self) -> None:
        self._is_saying_changes = False
        for account in self._changed:
            if self.tell is not None:
                self.tell(AccountChanged(account))
        self._changed.clear()

    # ---- requests

    def on_asked(self, subject: bytes, reply: bytes, body: bytes) -> None:
        """Somebody of the system account asks."""
        if reply or subject.endswith((b".PING", b".STATSZ")):
            self._ask(self._account, subject, reply, body)

    def on_request(self, session: ClientSession, subject: bytes, reply: bytes, body: bytes) -> bool:
        """A client publishes to $SYS.REQ.…, with a reply subject. True: it is answered here, or will be."""
        account = session.account
        if subject == advisory.USER_INFO:
            now_us = _now_us()
            permissions = permissions_document(self._user_of(session))
            info = advisory.user_info(self._named(now_us), session.user, account, permissions)
            self._loop.call_soon(self._say, account, reply, info)
            return True
        if account == self._account or subject not in advisory.ABOUT_ONES_OWN:
            return False
        self._loop.call_soon(self._ask, account, subject, reply, body)
        return True

    def _user_of(self, session: ClientSession) -> User | None:
        for user in self._server.options.users:
            if user.shown == session.user and user.account == session.account:
                return user
        return None

    def _ask(self, account: str, subject: bytes, reply: bytes, body: bytes) -> None:
        is_other = account != self._account
        if len(body) > MOST_BODY_BYTES:
            self._fail(account, reply, 400, f"request of {len(body)} bytes, the most is {MOST_BODY_BYTES}")
        elif self.tell is None:
            self._fail(account, reply, 503, "this broker is inside of a program, and has no pages")
        elif len(self._asked) >= MOST_ASKED or (is_other and self._asked_by_others >= MOST_ASKED_BY_OTHERS):
            self._fail(account, reply, 503, "too many requests at once, try again")
        else:
            self._last_seq += 1
            self._asked[self._last_seq] = (account, reply)
            self._asked_by_others += is_other
            text = subject.decode("utf-8", "replace")
            self.tell(SystemRequest(self._last_seq, account, text, body))

    def _fail(self, account: str, reply: bytes, code: int, description: str) -> None:
        if reply:
            self._say(account, reply, advisory.failure(self._named(_now_us()), code, description))

    def on_reply(self, message: SystemReply) -> None:
        """The router has answered."""
        account, reply = self._asked.pop(message.seq, ("", b""))
        if account and account != self._account:
            self._asked_by_others -= 1
        if message.payload and account:
            subject = reply or f"$SYS.SERVER.{self._server.server_id}.STATSZ".encode()
            self._say(account, subject, message.payload)

    # ---- what the router says

    def on_event(self, event: SystemEvent) -> None:
        """The router has something to say."""
        if not self._is_heard:
            return
        if event.is_last_word:
            self._say_last_word(event.subject, event.payload)
        elif self._is_wanted(event.subject):
            self._say(self._account, event.subject.encode(), event.payload)

    def _say_last_word(self, subject: str, payload: bytes) -> None:
        """To this shard's subscribers alone: every shard is told to, and links may end before a frame has passed."""
        sublist = self._mesh.account(self._account.encode())
        found, _count = census.matching(sublist, subject.encode(), 0, MOST_LAST_HEARERS)
        groups = set()
        for cid, (pattern, queue, sid, _msgs, _most) in found:
            session = self._sessions.get(cid)
            if session is None or (queue and (pattern, queue) in groups):
                continue
            groups.add((pattern, queue))
            session.connection.send(b"MSG %b %b %d\r\n%b\r\n" % (subject.encode(), sid.encode(), len(payload), payload))
        self._reactor.finish()


def _person(session: ClientSession, stop_us: int = 0) -> Person:
    connect = session.connect
    if session.admission is None:
        name, lang, version = session.stated
    else:
        name, lang, version = connect.name, connect.lang, connect.version
    return Person(
        cid=session.connection.cid,
        host=session.host,
        account=session.account or GLOBAL_ACCOUNT,
        user=_printable(session.user or session.claimed),
        name=_printable(name),
        lang=_printable(lang),
        version=_printable(version),
        kind=session.kind,
        start_us=int(session.started_s * 1_000_000),
        stop_us=stop_us,
        rtt_us=session.connection.rtt_us if stop_us else 0,
    )


def _printable(text: str) -> str:
    """Lone surrogates, which JSON can smuggle in, have no bytes in UTF-8."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def permissions_document(user: User | None) -> advisory.Document | None:
    """As servers from 2.10 on show a user its own; None: it may do everything."""
    rules = user.permissions if user is not None else None
    if rules is None:
        return None
    document: advisory.Document = {}
    for name, allow, deny in (
        ("publish", rules.publish_allow, rules.publish_deny),
        ("subscribe", rules.subscribe_allow, rules.subscribe_deny),
    ):
        side = {"allow": list(allow or ())} if allow is not None else {}
        if deny:
            side["deny"] = list(deny)
        if side:
            document[name] = side
    if rules.responses:
        document["responses"] = {"max": rules.responses, "ttl": round(rules.responses_expire_s * 1e9)}
    return document
