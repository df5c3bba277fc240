"""A small NATS client on plain sockets, for load tests, scripts and examples; works with any NATS server.

    from gnatswarm.loadtest import natswire

    with natswire.connect("nats://127.0.0.1:4222") as client:
        client.subscribe("greet.*", lambda message: message.respond(b"hello " + message.payload))
        print(client.request("greet.joe", b"joe").payload)

One thread per connection reads and runs the callbacks; publishing is safe from any thread. Blocking throughout, so
under gevent's monkey-patching (locust) thread and waits are greenlets. Invariant: a wait has a deadline, and the end of
the connection ends every wait. Not built for peaks: `gnatswarm bench` is.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from gnatswarm.loadtest.credentials import ANONYMOUS, Address, BadCredentials, Credentials, parse_url
from gnatswarm.loadtest.errors import (
    AuthenticationError,
    Disconnected,
    NatsError,
    NoResponders,
    Refused,
    RequestTimeout,
    ServerError,
)
from gnatswarm.loadtest.handshake import READ_BYTES, as_error, log_in, reason, tls_context
from gnatswarm.loadtest.message import Message, header_block
from gnatswarm.loadtest.subscription import Subscription
from gnatswarm.loadtest.tls_socket import TlsSocket
from gnatswarm.loadtest.wireparser import Err, Frame, Info, Msg, Parser, Ping, Pong, ProtocolViolation
from gnatswarm.loadtest.word import has_blanks

__all__ = [
    "AuthenticationError",
    "BadCredentials",
    "Client",
    "Credentials",
    "Disconnected",
    "Message",
    "NatsError",
    "NoResponders",
    "ProtocolViolation",
    "Refused",
    "RequestTimeout",
    "ServerError",
    "Settings",
    "Subscription",
    "connect",
    "tls_context",
]

logger = logging.getLogger("gnatswarm.loadtest")

INBOX_PREFIX = "_INBOX"
NO_RESPONDERS = 503


@dataclass(frozen=True)
class Settings:
    """A client's options, except its servers' addresses."""

    credentials: Credentials = ANONYMOUS  # those in a URL take precedence
    name: str = "natswire"
    verbose: bool = False
    pedantic: bool = False
    echo: bool = True
    no_responders: bool = True
    tls: ssl.SSLContext | None = None  # for tls:// and servers that require it; None: trust the system's authorities
    tls_first: bool = False  # TLS handshake before INFO: for servers with handshake_first
    timeout_s: float = 5.0  # for connecting, and for sending while the socket is full
    ping_interval_s: float = 30.0  # when idle; the connection is closed after two pings without PONG
    max_reconnects: int = 0  # attempts after a lost connection; 0: none, -1: for ever
    reconnect_wait_s: float = 0.25
    congestion_control: str = ""  # cubic, reno, bbr …; "": the system's
    # Callbacks; all run on the reading thread.
    on_error: Callable[[NatsError], None] | None = None  # for -ERR, and for exceptions in callbacks
    on_disconnect: Callable[[NatsError], None] | None = None
    on_reconnect: Callable[[], None] | None = None


@dataclass
class _Wait:
    """A caller that waits for a response or a PONG; `failure` if none will arrive."""

    done: threading.Event = field(default_factory=threading.Event)
    message: Message | None = None
    failure: NatsError | None = None
    on_pong: Callable[[], None] | None = None


def connect(url: str | Sequence[str] = "nats://127.0.0.1:4222", settings: Settings | None = None) -> Client:
    """A connected client. Several URLs are tried in turn, also when reconnecting."""
    client = Client(url, settings)
    client.connect()
    return client


class Client:
    """A connection to a NATS server; reconnects when it is lost, if `max_reconnects` allows."""

    def __init__(self, url: str | Sequence[str], settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        urls = [url] if isinstance(url, str) else list(url)
        self._servers = [parse_url(one) for one in urls]
        if not self._servers:
            raise ValueError("no server to connect to")
        self.info: dict[str, Any] = {}
        self.sent_msgs = 0
        self.received_msgs = 0
        self.reconnects = 0
        self.closed_because: NatsError | None = None
        self._next_sid = 0
        self._subscriptions: dict[int, Subscription] = {}
        self._pongs: list[_Wait] = []
        self._requests: dict[str, _Wait] = {}
        self._awaited: list[Subscription] = []  # once for each next() that waits
        self._inbox = f"{INBOX_PREFIX}.{secrets.token_hex(11)}"
        self._next_request = 0
        self._inbox_subscription: Subscription | None = None
        self._sock: socket.socket | TlsSocket | None = None
        self._parser = Parser()
        self._lock = threading.RLock()  # protects the socket's sending side and the state that must match what was sent
        self._reader: threading.Thread | None = None
        self._is_closing = False
        self.has_ended = False  # the connection is lost, and there will be no other
        self._unanswered_pings = 0

    # -- life -----------------------------------------------------------------------------------------------------

    def connect(self) -> None:
        """Connect. Refused, AuthenticationError, ServerError or ProtocolViolation if no server accepts us."""
        frames = self._open_any()
        self._reader = threading.Thread(target=self._read, args=(frames,), name="natswire", daemon=True)
        self._reader.start()

    @property
    def is_connected(self) -> bool:
        return self._sock is not None

    def close(self) -> None:
        """Close at once; published messages may still be on their way. Never fails; may be called twice."""
        self._is_closing = True
        sock = self._sock
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        reader = self._reader
        if reader is not None and reader is not threading.current_thread():
            reader.join(self.settings.timeout_s)

    def drain(self, timeout_s: float = 5.0) -> None:
        """Unsubscribe everything, wait until pending messages have been handled, and close."""
        try:
            for sid in list(self._subscriptions):  # kept until the PONG, because messages may be on their way
                self._send(f"UNSUB {sid}\r\n".encode())
            self.flush(timeout_s)
        finally:
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    # -- talking --------------------------------------------------------------------------------------------------

    def publish(
        self, subject: str, payload: bytes = b"", reply: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        """Send one message. There is no acknowledgement; `flush` returns when the server has it."""
        self._check_word(subject, "a subject")
        if reply:
            self._check_word(reply, "a subject")
        words = f"{subject} {reply}" if reply else subject
        if headers:
            block = header_block(headers)
            line = f"HPUB {words} {len(block)} {len(block) + len(payload)}\r\n".encode()
            self._send(b"".join((line, block, payload, b"\r\n")))
        else:
            self._send(b"".join((f"PUB {words} {len(payload)}\r\n".encode(), payload, b"\r\n")))
        self.sent_msgs += 1

    def subscribe(
        self, subject: str, callback: Callable[[Message], None] | None = None, queue: str = "", max_messages: int = 0
    ) -> Subscription:
        """Receive messages on `subject` (wildcards * and >), as a member of `queue` if given, at most `max_messages`.

        The callback runs on the reading thread: it may publish and subscribe, but must not wait for a response.
        """
        self._check_word(subject, "a subject")
        if queue:
            self._check_word(queue, "the name of a queue group")
        with self._lock:
            self._next_sid += 1
            subscription = Subscription(self, self._next_sid, subject, queue, callback, max_messages)
            self._subscriptions[subscription.sid] = subscription
            self._send(subscription.subscribe_lines())
        return subscription

    def unsubscribe(self, subscription: Subscription, max_messages: int = 0) -> None:
        """End a subscription now, or after `max_messages` since its beginning. It may have ended already."""
        with self._lock:
            if subscription.sid not in self._subscriptions:
                return
            subscription.max_messages = max_messages
            if not max_messages or subscription.delivered >= max_messages:
                del self._subscriptions[subscription.sid]
                self._send(f"UNSUB {subscription.sid}\r\n".encode())
            else:
                self._send(f"UNSUB {subscription.sid} {max_messages}\r\n".encode())

    def request(
        self, subject: str, payload: bytes = b"", timeout_s: float = 5.0, headers: Mapping[str, str] | None = None
    ) -> Message:
        """The first response; RequestTimeout, NoResponders or Disconnected if there is none."""
        self._forbid_on_reader("request")
        wait = _Wait()
        with self._lock:
            if self._inbox_subscription is None:
                self._inbox_subscription = self.subscribe(f"{self._inbox}.*", self._on_answer)
            self._next_request += 1
            reply = f"{self._inbox}.{self._next_request}"
            self._requests[reply] = wait
        try:
            self.publish(subject, payload, reply, headers)
            if not wait.done.wait(timeout_s):
                raise RequestTimeout(f"no answer from {subject} within {timeout_s} s")
        finally:
            self._requests.pop(reply, None)
        if wait.failure is not None:
            raise wait.failure
        assert wait.message is not None
        if wait.message.status == NO_RESPONDERS and not wait.message.payload:
            raise NoResponders(f"nobody subscribes to {subject}")
        return wait.message

    def flush(self, timeout_s: float = 5.0, on_pong: Callable[[], None] | None = None) -> None:
        """Return when everything sent so far has taken effect; with `on_pong`, return now and call it then."""
        wait = _Wait(on_pong=on_pong)
        if on_pong is None:
            self._forbid_on_reader("flush")
        with self._lock:
            self._pongs.append(wait)
            try:
                self._send(b"PING\r\n")
            except NatsError:
                if wait in self._pongs:
                    self._pongs.remove(wait)
                raise
        if on_pong is not None:
            return
        if not wait.done.wait(timeout_s):
            raise RequestTimeout(f"no PONG within {timeout_s} s")
        if wait.failure is not None:
            raise wait.failure

    @contextlib.contextmanager
    def while_waiting(self, subscription: Subscription) -> Iterator[None]:
        """Tell this subscription of a connection that ends meanwhile."""
        self._awaited.append(subscription)
        try:
            yield
        finally:
            self._awaited.remove(subscription)

    def send_raw(self, data: bytes) -> None:
        """Send these bytes as they are, for tests of invalid input."""
        self._send(data)

    # -- inside: sending --------------------------------------------------------------------------------------------

    def _send(self, data: bytes) -> None:
        with self._lock:
            sock = self._sock
            if sock is None:
                raise Disconnected(f"not connected: {self.closed_because or 'closed'}")
            try:
                sock.sendall(data)
            except OSError as error:
                # An operation was sent in part and cannot be completed: close this connection. One that the server
                # has closed is read to its end, where it says why: under gevent the reader would be cut off.
                is_read = not isinstance(error, TimeoutError) and isinstance(sock, socket.socket)
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_WR if is_read else socket.SHUT_RDWR)
                raise Disconnected(f"the connection was lost while sending: {reason(error)}") from None

    @staticmethod
    def _check_word(word: str, what: str) -> None:
        if not word or has_blanks(word):
            raise ValueError(f"not {what}: {word!r}")

    def _forbid_on_reader(self, what: str) -> None:
        if threading.current_thread() is self._reader:
            raise RuntimeError(f"{what}() in a callback would wait for itself")

    # -- inside: connecting -----------------------------------------------------------------------------------------

    def _open_any(self) -> list[Frame]:
        failure: NatsError | ProtocolViolation | None = None
        for address, credentials in self._servers:
            try:
                return self._open(address, credentials if credentials != ANONYMOUS else self.settings.credentials)
            except (NatsError, ProtocolViolation) as error:
                failure = error
        assert failure is not None
        raise failure

    def _open(self, address: Address, credentials: Credentials) -> list[Frame]:
        """Open a connection up to its first PONG; returns the frames that came with it."""
        settings = self.settings
        keys = {
            "verbose": settings.verbose,
            "pedantic": settings.pedantic,
            "echo": settings.echo,
            "name": settings.name,
            "lang": "python-natswire",
            "version": "1",
            "protocol": 1,
            "no_responders": settings.no_responders,
        }
        opened = log_in(
            address,
            credentials,
            keys,
            settings.timeout_s,
            settings.congestion_control,
            settings.tls,
            tls_first=settings.tls_first,
        )
        self.info = opened.info
        with self._lock:
            self._parser = opened.parser
            self._unanswered_pings = 0
            self._sock = TlsSocket(opened.sock) if isinstance(opened.sock, ssl.SSLSocket) else opened.sock
        return opened.frames

    # -- inside: the reading thread -----------------------------------------------------------------------------------

    def _read(self, frames: list[Frame]) -> None:
        while True:
            lost = self._read_connection(frames)
            self._disconnect(lost)
            again = None if self._is_closing or isinstance(lost, AuthenticationError) else self._reconnect()
            if again is None:
                self.has_ended = True
                self._end_awaited()
                return
            frames = again

    def _read_connection(self, frames: list[Frame]) -> NatsError:
        """Handle frames until the connection ends; returns the reason."""
        sock = self._sock
        assert sock is not None
        error: NatsError | None = None
        idle_since = time.monotonic()
        while True:
            for frame in frames:
                if self._is_closing:
                    break
                failed = self._on_frame(frame)
                error = failed or error
            try:
                data = sock.recv(READ_BYTES)
                frames = self._parser.feed(data)
            except TimeoutError:
                frames = []
                if time.monotonic() - idle_since < self.settings.ping_interval_s:
                    continue
                idle_since = time.monotonic()
                self._unanswered_pings += 1
                if self._unanswered_pings > 2:
                    return Disconnected("the server does not answer pings")
                with contextlib.suppress(NatsError):
                    self.flush(on_pong=_nothing)
                continue
            except OSError as failure:
                return error or Disconnected(f"the connection was lost: {reason(failure)}")
            except ProtocolViolation as violation:
                return NatsError(str(violation))
            idle_since = time.monotonic()
            if not data:
                return error or Disconnected("the server closed the connection")

    def _on_frame(self, frame: Frame) -> NatsError | None:
        if isinstance(frame, Msg):
            self._on_msg(frame)
        elif isinstance(frame, Pong):
            self._unanswered_pings = 0
            if self._pongs:
                wait = self._pongs.pop(0)
                if wait.on_pong is not None:
                    self._call(wait.on_pong)
                wait.done.set()
        elif isinstance(frame, Ping):
            with contextlib.suppress(Disconnected):
                self._send(b"PONG\r\n")
        elif isinstance(frame, Info):
            self.info = {**self.info, **frame.keys}
        elif isinstance(frame, Err):
            error = as_error(frame)
            self._report(error)
            return error
        return None

    def _on_msg(self, frame: Msg) -> None:
        self.received_msgs += 1
        subscription = self._subscriptions.get(frame.sid)
        if subscription is None:
            return  # unsubscribed while it was on its way
        subscription.delivered += 1
        if subscription.max_messages and subscription.delivered >= subscription.max_messages:
            self._subscriptions.pop(frame.sid, None)
        message = Message(self, subscription, frame.subject, frame.reply, frame.headers, frame.payload)
        self._call(subscription.deliver, message)

    def _on_answer(self, message: Message) -> None:
        wait = self._requests.pop(message.subject, None)
        if wait is not None:
            wait.message = message
            wait.done.set()

    def _call(self, callback: Callable[..., None], *arguments: Any) -> None:
        try:
            callback(*arguments)
        except Exception as error:
            # An error in the user's callback must not end the connection, which other subscriptions share.
            logger.debug("a callback failed", exc_info=True)
            self._report(NatsError(f"a callback raised {type(error).__name__}: {error}"))

    def _report(self, error: NatsError) -> None:
        if self.settings.on_error is not None:
            self.settings.on_error(error)

    def _disconnect(self, lost: NatsError) -> None:
        """Close the socket; every wait ends with the reason."""
        with self._lock:
            sock, self._sock = self._sock, None
            self.closed_because = Disconnected("closed") if self._is_closing else lost
            pongs, self._pongs = self._pongs, []
            waits = [*pongs, *self._requests.values()]
            self._requests.clear()
        if sock is not None:
            sock.close()
        for wait in waits:
            wait.failure = Disconnected(str(self.closed_because))
            wait.done.set()
        self._end_awaited()
        if not self._is_closing and self.settings.on_disconnect is not None:
            self.settings.on_disconnect(lost)

    def _end_awaited(self) -> None:
        for subscription in list(self._awaited):
            subscription.on_disconnect()

    def _reconnect(self) -> list[Frame] | None:
        attempts = 0
        pause = threading.Event()
        while not self._is_closing and attempts != self.settings.max_reconnects:
            attempts += 1
            try:
                frames = self._open_any()
            except AuthenticationError as error:
                self.closed_because = error
                return None
            except (NatsError, ProtocolViolation) as error:
                self.closed_because = error if isinstance(error, NatsError) else NatsError(str(error))
                pause.wait(self.settings.reconnect_wait_s)
                continue
            with self._lock, contextlib.suppress(Disconnected):
                for subscription in self._subscriptions.values():
                    self._send(subscription.subscribe_lines())
            self.reconnects += 1
            if self._is_closing:
                self.close()
            elif self.settings.on_reconnect is not None:
                self.settings.on_reconnect()
            return frames
        return None


def _nothing() -> None:
    pass
