"""One shard's part of the system account: publishes events about clients, and passes requests on to the router.

All shards are members of one queue group for these requests, so each request reaches exactly one shard, also when one
ends; the router answers it for the whole broker. Only a user's request about itself is answered here. Without users in
the system account there is no subscription, and an event costs a look at a flag; without a subscriber to the event it
costs a look into the match cache.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from typing import TYPE_CHECKING

import msgspec
import orjson

from gnatswarm.broker import advisory, census, service_latency
from gnatswarm.broker.advisory import Person, ServerIdentity
from gnatswarm.broker.bounds import LARGEST_MAX_CONTROL_LINE_BYTES, LARGEST_MAX_PAYLOAD_BYTES
from gnatswarm.broker.connection import ClientConnection, Fence
from gnatswarm.broker.errors import CloseReason
from gnatswarm.broker.options import GLOBAL_ACCOUNT
from gnatswarm.broker.subject import is_valid_subscription
from gnatswarm.shards.boundary.control import AccountChanged, SystemEvent, SystemReply, SystemRequest
from gnatswarm.shards.boundary.utf8_text import utf8_text
from gnatswarm.shards.boundary.wall_clock import wall_offset_us

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gnatswarm.broker.fanout import Fanout
    from gnatswarm.broker.limits import Limits
    from gnatswarm.broker.mesh import Mesh
    from gnatswarm.broker.options import Options, Permissions
    from gnatswarm.broker.service_latency import Measured
    from gnatswarm.shards.boundary.control import ControlMessage
    from gnatswarm.shards.boundary.page import Page
    from gnatswarm.shards.clients.session import ClientSession
    from gnatswarm.shards.sockets.page_counters import PageCounters
    from gnatswarm.shards.sockets.reactor import Reactor

logger = logging.getLogger("gnatswarm.system")

# The most requests that the router has not answered yet; more get an error. Users of other accounts may ask
# only about their own account, and must not be able to use up the whole limit, nor those of one account that of all.
MOST_ASKED = 256
MOST_ASKED_BY_OTHERS = 128
MOST_ASKED_BY_ANOTHER = 32
MOST_BODY_BYTES = 64 * 1024
# An account's connection count is published at most this often.
CHANGES_EVERY_S = 0.1
# The most subscribers that get the last event of a broker.
MOST_LAST_HEARERS = 4096
AGAIN_S = 1.0
# So long other members of the cluster have to say how many subscriptions they have.
COUNT_S = 0.5
# So long what they answer a user of another account is passed on to it.
ANSWERS_S = 2.0
# Of a number of subscriptions.
MOST_DIGITS = 16
READ_BYTES = 64 * 1024
# Why connections end that have not logged in: of these there is an event, in $G, as in nats-server 2.15.
TOLD_OF_STRANGERS = (
    CloseReason.AUTHENTICATION_FAILURE,
    CloseReason.AUTHENTICATION_TIMEOUT,
    CloseReason.CLIENT_CLOSED,
)


def _now_us() -> int:
    return time.time_ns() // 1000


def _inbox_of(server: ServerIdentity) -> str:
    """What the subjects begin with where members answer requests that this broker's shards pass on."""
    return f"$SYS._INBOX.{server.server_id}."


class Inbox:
    """The broker's own subscriptions: messages are delivered to one end of a socket pair and read at the other."""

    def __init__(self, system: System, reactor: Reactor, connection: ClientConnection) -> None:
        """OSError: there are no descriptors, or no memory for them."""
        self._system = system
        self._loop = asyncio.get_running_loop()
        inner, self._sock = socket.socketpair()
        for end in (inner, self._sock):
            end.setblocking(False)
        self._buffer = bytearray()
        self.connection = connection
        self.is_ended = False  # by us: another account is the system account now
        try:
            self._socket = reactor.open(inner.fileno(), connection, self)
        except OSError:
            inner.close()
            self._sock.close()
            raise
        inner.detach()
        self._loop.add_reader(self._sock.fileno(), self._on_readable)

    def close(self) -> None:
        """End the subscriptions."""
        self.is_ended = True
        self._socket.kick(CloseReason.CLIENT_CLOSED)

    def on_closed(self, _reason: int) -> None:
        """The reactor has closed its end."""
        self._loop.remove_reader(self._sock.fileno())
        self._sock.close()
        self._system.on_inbox_closed(self)

    def on_bytes_in(self, data: bytes) -> None:
        """Not traced: a trace shows only clients."""

    on_bytes_out = on_bytes_in

    def _on_readable(self) -> None:
        try:
            self._buffer += self._sock.recv(READ_BYTES)
        except BlockingIOError:
            return
        while (end := self._buffer.find(b"\r\n")) >= 0:
            words = bytes(self._buffer[:end]).split(b" ")  # (other blanks are part of a subject)
            if words[0] != b"MSG":  # the reactor's PING
                del self._buffer[: end + 2]
                self._sock.send(b"PONG\r\n")
                continue
            size = int(words[-1])
            if len(self._buffer) < end + 2 + size + 2:
                return
            body = bytes(self._buffer[end + 2 : end + 2 + size])
            del self._buffer[: end + 2 + size + 2]
            # "MSG subject sid reply size", or "MSG subject sid size".
            self._system.attempt(self._system.on_asked, words[1], words[3] if len(words) == 5 else b"", body)


class Count(msgspec.Struct):
    """A request for the number of subscriptions in the whole cluster, as far as its members have answered."""

    reply: bytes
    missing: int  # members that have not answered, this broker included
    timer: asyncio.TimerHandle
    subscriptions: int = 0


class Gathering(msgspec.Struct):
    """What a user of another account has asked about it, as far as other members of the cluster have not answered."""

    account: str
    reply: bytes
    missing: int
    timer: asyncio.TimerHandle


class System:
    """The system account on one shard.

    `tell` sends to the router; None in an embedded shard, which has no router. `may_answer`: it takes requests.
    """

    def __init__(
        self,
        *,
        reactor: Reactor,
        counters: PageCounters,
        fanout: Fanout,
        mesh: Mesh,
        page: Page,
        server: ServerIdentity,
        sessions: dict[int, ClientSession],
        tell: Callable[[ControlMessage], None] | None,
        may_answer: bool = True,
    ) -> None:
        self._may_answer = may_answer
        self._loop = asyncio.get_running_loop()
        self._tell = tell
        self._reactor = reactor
        self._counters = counters
        self._fanout = fanout
        self._mesh = mesh
        self._page = page
        self._sessions = sessions
        self._server = server
        self._voices: dict[str, ClientConnection] = {}  # the broker's own publishers, by account
        self._inbox: Inbox | None = None
        self._listens_again: asyncio.TimerHandle | None = None  # when there is to be a new one
        self._is_deaf = False  # there could be none the last time
        # Descriptors that clients cannot take may be used within this.
        self.reserved: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
        self._asked: dict[int, tuple[SystemRequest, bytes]] = {}  # seq → the request, reply subject
        self._told: set[str] = set()  # accounts whose change the router was told last
        self._last_seq = 0
        self._members = 0  # other members of the cluster
        self._count_prefix = f"$SYS._INBOX.{advisory.event_id()}.".encode()  # where they answer
        self._counts: dict[bytes, Count] = {}  # by the subject of the answers
        self._last_count = 0
        self._gather_prefix = f"{_inbox_of(server)}{advisory.event_id()}.".encode()
        self._gathered: dict[bytes, Gathering] = {}  # by the subject of the answers
        self.own_reply_prefix: Callable[[], bytes] = bytes
        self._shown: tuple[Permissions, orjson.Fragment | None] | None = None  # to a user that asked about itself
        self._changed: set[str] = set()
        self._is_saying_changes = False
        self._is_closed = False
        self.configure(server.options)

    def configure(self, options: Options) -> None:
        """Apply these options."""
        moved = options.system_account != self._server.options.system_account
        self._server = msgspec.structs.replace(self._server, options=options)
        self._account = options.system_account
        self._is_heard = self._may_answer and options.has_system_users
        for account in self._voices.keys() - options.account_names:
            del self._voices[account]
        if self._inbox is not None and (moved or not self._is_heard):
            self._inbox.close()
            self._finish_soon()
        elif self._inbox is None and self._is_heard:
            self._listen()

    def own_subscriptions(self, account: str = "") -> int:
        """How many subscriptions the broker itself has here in that account, or in all: pages leave them out."""
        return self._counters.own_subs if account in ("", self._account) else 0

    def set_cluster(self, name: str, members: int) -> None:
        """The cluster's name, and how many other members are connected."""
        self._server = msgspec.structs.replace(self._server, cluster=name)
        self._members = members

    def close(self) -> None:
        """End it in a process that continues."""
        self._is_heard = False
        self._is_closed = True
        if self._listens_again is not None:
            self._listens_again.cancel()
        if self._inbox is not None:
            self._inbox.close()
            self._reactor.finish()

    def _listen(self) -> None:
        heard = self._own_connection(self._account, self._server.options.limits, headers=False)
        try:
            with self.reserved():
                self._inbox = Inbox(self, self._reactor, heard)
        except OSError as error:  # this shard's clients need it less than they need the shard
            if not self._is_deaf:
                logger.error("Requests to the system account are not heard here: %s; trying again", error.strerror)
            self._is_deaf = True
            self._listen_later(AGAIN_S)
            return
        self._is_deaf = False
        for sid, subject in enumerate(advisory.request_subjects(self._server)):
            self._inbox.connection.post(b"SUB %b _sys_ %d\r\n" % (subject.encode(), sid))
        if self._server.options.cluster.port:
            self._inbox.connection.post(b"SUB %b* counts\r\n" % self._count_prefix)
            self._inbox.connection.post(b"SUB %b* answers\r\n" % self._gather_prefix)
        self._counters.own_subs = self._inbox.connection.subscriptions
        self._finish_soon()

    def on_inbox_closed(self, inbox: Inbox) -> None:
        """It fell too far behind: make a new one after AGAIN_S. Or we have ended it: at once, if there is to be one.

        Requests in the old one are lost.
        """
        if self._inbox is inbox:
            self._inbox = None
            self._counters.own_subs = 0
            self._listen_later(0.0 if inbox.is_ended else AGAIN_S)

    def _listen_later(self, after_s: float) -> None:
        if self._listens_again is None and not self._is_closed:
            self._listens_again = self._loop.call_later(after_s, self._listen_again)

    def _listen_again(self) -> None:
        """By the options of now: a reload may have changed them, and have made an inbox."""
        self._listens_again = None
        if self._inbox is None and self._is_heard:
            self._listen()

    def _own_connection(self, account: str, limits: Limits, *, headers: bool = True) -> ClientConnection:
        most = msgspec.structs.replace(limits, max_payload_bytes=2**30, max_control_line_bytes=2**20)
        connection = ClientConnection(
            self._fanout, self._mesh.account(account.encode()), Fence(), 0, most, must_authenticate=False
        )
        connection.configure(verbose=False, pedantic=False, echo=True, headers=headers, no_responders=False, protocol=0)
        return connection

    def _finish_soon(self) -> None:
        self._loop.call_soon(self._finish)

    def _finish(self) -> None:
        if not self._is_closed:
            self._reactor.finish()

    def _say(self, account: str, subject: bytes, payload: bytes, header: bytes = b"", reply: bytes = b"") -> None:
        if self._is_closed:
            return
        if len(header) + len(payload) > LARGEST_MAX_PAYLOAD_BYTES or len(subject) > LARGEST_MAX_CONTROL_LINE_BYTES:
            logger.warning(  # as no client could publish it: the document of a trace, which quotes a message's header
                "A message of the broker's own is not published, because it is too long: %d bytes on a subject of %d",
                len(header) + len(payload),
                len(subject),
            )
            return
        voice = self._voices.get(account)
        if voice is None:
            voice = self._voices[account] = self._own_connection(account, self._server.options.limits)
        if header:
            voice.post(
                b"HPUB %b %d %d\r\n%b%b\r\n" % (subject, len(header), len(header) + len(payload), header, payload)
            )
        else:
            voice.post(b"PUB %b %b %d\r\n%b\r\n" % (subject, reply, len(payload), payload))
        self._finish_soon()

    def say_soon(self, account: str, subject: bytes, payload: bytes, header: bytes = b"") -> None:
        """Publish a message of the broker's own in an account, on the loop's next turn.

        Not within a client's operation: it may hold a match result, which a publish could make invalid.
        """
        self._loop.call_soon(self.attempt, self._say, account, subject, payload, header)

    def named(self) -> advisory.Document:
        """The member `server` of an event of now."""
        return self._named(_now_us())

    # ---- events of services

    def describe(self, session: ClientSession) -> advisory.Document:
        """The client as other accounts see it that may know it (`share`), and the owners of services (`latency`)."""
        who = msgspec.structs.replace(_person(session), rtt_us=session.connection.rtt_us)
        return who.document(self._server.server_name, self._server.options.stated_cluster)

    def tell_responder(self, session: ClientSession, subject: bytes) -> None:
        """Tell the shard that waits for this reply who is about to send it: in the system account, in front of it."""
        if not subject.startswith(self.own_reply_prefix()):
            # (The caller holds no match result yet.)
            self._say(self._account, subject, orjson.dumps(self.describe(session)))

    def on_latency(
        self,
        measured: Measured,
        status: int,
        responder: ClientSession | advisory.Document | None,
        passed_us: int,
        system_ns: int,
    ) -> None:
        """A request to a service whose latency is published is over. The event follows on the loop's next turn."""
        who = responder if responder is None or isinstance(responder, dict) else self.describe(responder)
        payload = service_latency.event(
            measured, status, who, now_us=_now_us(), passed_us=passed_us, system_ns=system_ns
        )
        account = measured.account.decode("utf-8", "surrogateescape")
        self.say_soon(account, measured.subject, payload)

    def _named(self, now_us: int) -> advisory.Document:
        return self._server.document(self._page.next_event_number(), now_us)

    def _is_wanted(self, subject: str) -> bool:
        return census.is_wanted(self._mesh.account(self._account.encode()), subject.encode())

    # ---- events of clients

    def on_connected(self, session: ClientSession, before: str = "", *, is_announced: bool = True) -> None:
        """The client has logged in, and comes from account `before` if it had done so already."""
        if not self._is_heard:
            return
        if before:
            self._note_change(before)
        self._note_change(session.account)
        if not is_announced:
            return
        if self._speaks_of(session.account) and self._is_wanted(f"$SYS.ACCOUNT.{session.account}.CONNECT"):
            now_us = _now_us()
            self._publish(*advisory.connected(self._named(now_us), now_us, self._tagged(_person(session))))

    def on_disconnected(self, session: ClientSession) -> None:
        """The client has been closed; its connection still has its counters."""
        if not self._is_heard:
            return
        if session.admission is not None:
            account = session.account
            self._note_change(account)
        elif session.full_account:
            account = session.full_account
        elif self._is_like_newer and session.reason in TOLD_OF_STRANGERS:
            account = GLOBAL_ACCOUNT
        else:
            return
        if self._speaks_of(account) and self._is_wanted(f"$SYS.ACCOUNT.{account}.DISCONNECT"):
            self._publish(*advisory.disconnected(*self._end_of(session)))

    def on_refused(self, session: ClientSession) -> None:
        """The client's log-in was refused; it will be closed."""
        if self._is_heard and self._is_wanted(f"$SYS.SERVER.{self._server.server_id}.CLIENT.AUTH.ERR"):
            now_us = _now_us()
            reason = CloseReason.AUTHENTICATION_FAILURE.text
            self._publish(*advisory.refused(self._named(now_us), now_us, self._leaver(session, now_us), reason))

    @property
    def _is_like_newer(self) -> bool:
        return self._server.options.is_like_newer

    def _speaks_of(self, account: str) -> bool:
        """Whether there are events about clients of this account: 2.9 has none about $G."""
        return account != GLOBAL_ACCOUNT or self._is_like_newer

    def _leaver(self, session: ClientSession, now_us: int) -> Person:
        who = _person(session, now_us)
        if session.admission is None:  # it was refused, whatever account its connection began in
            who = msgspec.structs.replace(who, account=session.full_account or GLOBAL_ACCOUNT)
        return self._tagged(who)

    def _tagged(self, who: Person) -> Person:
        return msgspec.structs.replace(who, name_tag=who.account) if self._is_like_newer else who

    def _end_of(
        self, session: ClientSession
    ) -> tuple[advisory.Document, int, Person, tuple[int, int], tuple[int, int], str]:
        now_us = _now_us()
        connection = session.connection
        received = connection.in_msgs, connection.in_bytes
        sent = connection.out_msgs, connection.out_bytes
        who = self._leaver(session, now_us)
        return self._named(now_us), now_us, who, received, sent, session.reason.text

    def _publish(self, subject: str, document: bytes) -> None:
        self.say_soon(self._account, subject.encode(), document)

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
            if self._tell is not None:
                self._tell(AccountChanged(account))
        self._told, self._changed = self._changed, set()

    def ask_again(self) -> None:
        """Another router has taken over: repeat what the last one has not answered, or may not have read."""
        assert self._tell is not None
        for request, _reply in self._asked.values():
            self._tell(request)
        for account in self._told:
            self._tell(AccountChanged(account))

    # ---- requests

    def attempt(self, work: Callable[..., None], *given: object) -> None:
        """An error of ours in this: one request is not answered, one event not published, and this process goes on."""
        try:
            work(*given)
        except Exception:
            logger.exception("a request to the system account, or an event there, failed")

    def on_asked(self, subject: bytes, reply: bytes, body: bytes) -> None:
        """A request from a user of the system account, or the answer of a member of the cluster."""
        if subject.startswith(self._count_prefix):
            self._on_count(subject, body)
        elif subject.startswith(self._gather_prefix):
            self._on_gathered(subject, body)
        elif reply.startswith(_inbox_of(self._server).encode()):
            return  # a shard's of this broker, whose router it has asked
        elif subject == advisory.SUBSCRIBERS.encode() and reply and self._members:
            self._count(reply, body)
        elif reply or subject.endswith((b".PING", b".STATSZ")):
            self._ask(self._account, subject, reply, body)

    def on_request(self, session: ClientSession, subject: bytes, reply: bytes, body: bytes) -> bool:
        """A client publishes to $SYS.REQ.…, with a reply subject. True: the broker answers it, now or later."""
        account = session.account
        if subject == advisory.USER_INFO:
            now_us = _now_us()
            permissions = self._permissions_of(session)
            named = self._named(now_us)
            info = advisory.user_info(named, session.user, account, permissions, has_name=self._is_like_newer)
            self._loop.call_soon(self.attempt, self._say, account, reply, info)
            return True
        if account == self._account or subject not in advisory.ABOUT_ONES_OWN:
            return False
        self._loop.call_soon(self.attempt, self._ask, account, subject, reply, body)
        if self._members:
            self._loop.call_soon(self.attempt, self._gather, account, advisory.ABOUT_ONES_OWN[subject], reply, body)
        return True

    def _permissions_of(self, session: ClientSession) -> orjson.Fragment | None:
        """As permissions_document, in JSON. The latest is kept: a client may ask hundreds of times a turn."""
        identity = session.present_identity() if session.user else None
        rules = identity.permissions if identity is not None else None
        if rules is None:
            return None
        if self._shown is None or self._shown[0] is not rules:
            document = permissions_document(rules)
            self._shown = rules, orjson.Fragment(orjson.dumps(document)) if document else None
        return self._shown[1]

    def _ask(self, account: str, subject: bytes, reply: bytes, body: bytes) -> None:
        if len(body) > MOST_BODY_BYTES:
            self._fail(account, reply, 400, f"request of {len(body)} bytes, the most is {MOST_BODY_BYTES}")
        elif self._tell is None:
            self._fail(account, reply, 503, "this broker is inside of a program, and has no pages")
        elif not self._may_ask(account, [request.account for request, _reply in self._asked.values()]):
            self._fail(account, reply, 503, "too many requests at once, try again")
        else:
            self._last_seq += 1
            request = SystemRequest(self._last_seq, account, subject.decode("utf-8", "replace"), body)
            self._asked[self._last_seq] = request, reply
            self._tell(request)

    def _may_ask(self, account: str, waiting: Sequence[str]) -> bool:
        """Whether there is room for one more question of this account; `waiting`: whose are not answered yet."""
        if len(waiting) >= MOST_ASKED:
            return False
        others = len(waiting) - waiting.count(self._account)
        return account == self._account or (
            waiting.count(account) < MOST_ASKED_BY_ANOTHER and others < MOST_ASKED_BY_OTHERS
        )

    def _fail(self, account: str, reply: bytes, code: int, description: str) -> None:
        if reply:
            self._say(account, reply, advisory.failure(self._named(_now_us()), code, description))

    # ---- answers of the other members of the cluster

    def _gather(self, account: str, what: str, reply: bytes, body: bytes) -> None:
        """Ask the other members what a user asks about its account: each answers for itself, as with nats-servers."""
        waiting = [one.account for one in self._gathered.values()]
        if self._inbox is None or len(body) > MOST_BODY_BYTES or not self._may_ask(account, waiting):
            return
        self._last_count += 1
        answers_at = self._gather_prefix + b"%d" % self._last_count
        timer = self._loop.call_later(ANSWERS_S, self._gathered.pop, answers_at, None)
        self._gathered[answers_at] = Gathering(account, reply, self._members, timer)
        self._say(self._account, f"$SYS.REQ.ACCOUNT.{account}.{what}".encode(), body, reply=answers_at)

    def _on_gathered(self, answers_at: bytes, body: bytes) -> None:
        gathering = self._gathered.get(answers_at)
        if gathering is None:  # it came too late
            return
        self._say(gathering.account, gathering.reply, body)
        gathering.missing -= 1
        if not gathering.missing:
            gathering.timer.cancel()
            del self._gathered[answers_at]

    # ---- subscriptions of the whole cluster

    def _count(self, reply: bytes, body: bytes) -> None:
        """Ask every member, this broker included, and reply with the sum."""
        subject, queue = advisory.counted(body)
        if not is_valid_subscription(subject.encode("utf-8", "surrogateescape")):
            self._say(self._account, reply, b"0")
        elif len(self._counts) >= MOST_ASKED:
            self._fail(self._account, reply, 503, "too many requests at once, try again")
        else:
            self._last_count += 1
            answers_at = self._count_prefix + b"%d" % self._last_count
            timer = self._loop.call_later(COUNT_S, self.attempt, self._end_count, answers_at)
            self._counts[answers_at] = Count(reply, self._members + 1, timer)
            asked = advisory.count_request(self._account, subject, queue)
            self._say(self._account, advisory.SUBSCRIPTION_COUNT.encode(), asked, reply=answers_at)

    def _on_count(self, answers_at: bytes, body: bytes) -> None:
        count = self._counts.get(answers_at)
        if count is None:  # it came too late
            return
        if len(body) < MOST_DIGITS and body.isdigit():
            count.subscriptions += int(body)
        count.missing -= 1
        if not count.missing:
            self._end_count(answers_at)

    def _end_count(self, answers_at: bytes) -> None:
        """All have answered, or had the time."""
        count = self._counts.pop(answers_at)
        count.timer.cancel()
        self._say(self._account, count.reply, b"%d" % count.subscriptions)

    def on_reply(self, message: SystemReply) -> None:
        """The router has answered."""
        asked = self._asked.pop(message.seq, None)
        if asked is None:
            return
        account, reply = asked[0].account, asked[1]
        if message.payload:
            subject = reply or f"$SYS.SERVER.{self._server.server_id}.STATSZ".encode()
            self._say(account, subject, message.payload)

    # ---- messages of the router

    def on_event(self, event: SystemEvent) -> None:
        """Publish an event of the router."""
        if not self._is_heard:
            return
        if event.is_last_word:
            self._say_last_word(event.subject, event.payload)
        elif self._is_wanted(event.subject):
            self._say(self._account, event.subject.encode(), event.payload)

    def _say_last_word(self, subject: str, payload: bytes) -> None:
        """Send to this shard's subscribers only: every shard does so, and links may end before a frame has passed."""
        sublist = self._mesh.account(self._account.encode())
        found, _count = census.matching(sublist, subject.encode(), 0, MOST_LAST_HEARERS)
        groups = set()
        for cid, _number, (pattern, queue, sid, _msgs, _most) in found:
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
        user=utf8_text(session.shown_user),
        name=utf8_text(name),
        lang=utf8_text(lang),
        version=utf8_text(version),
        kind=session.kind,
        start_us=int(session.start_s(wall_offset_us()) * 1_000_000),
        stop_us=stop_us,
        rtt_us=session.connection.rtt_us if stop_us else 0,
    )


def permissions_document(rules: Permissions) -> advisory.Document:
    """A user's permissions, as nats-server 2.10 shows them to it."""
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
