"""Collects the messages on a subject in the background, with a small client of its own; for tests.

    captured = broker.capture("orders.>")        # subscribed on every shard when this returns
    publish_some_orders()
    captured.settle()                            # everything that was flushed before has arrived
    assert [message.data for message in captured.messages] == [b"1", b"2"]

settle() does not guess: it sends PING and waits for PONG. So a test can check that nothing was published, without
waiting for a time. Reading (`messages`, len(), iteration) shows what has arrived so far, without any I/O. Each method
that blocks has an awaitable twin: `await captured.asettle()`. Needs no NATS client; survives a broker's restart. One
thread and one connection each; messages are kept in memory until clear(). In a child after fork() it is closed, with
what had arrived; the parent's goes on.
"""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import contextlib
import contextvars
import json
import math
import os
import select
import socket
import ssl
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, TypeVar

# For connecting, for settle() and receive(), and for reconnecting after the broker's restart.
DEADLINE_S = 10.0
_DIAL_AGAIN_S = 0.02
_READ_BYTES = 65536
# Subjects that the text of a TimeoutError names.
_MOST_NAMED = 8
_NEAR = 0.6  # of difflib's ratio

Result = TypeVar("Result")


class CaptureError(Exception):
    """The broker refused the subscription, or is gone; the text contains its error."""


@dataclass(frozen=True)
class Login:
    """The broker's address and our credentials."""

    host: str
    port: int
    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = None
    tls_first: bool = False  # the handshake comes before INFO
    tls_hostname: str = "localhost"  # the name that the certificate is to have, where that is checked


@dataclass(frozen=True)
class Message:
    """One message as a subscriber received it."""

    subject: str
    data: bytes
    reply: str = ""  # "": no reply is wanted
    headers: dict[str, list[str]] = field(default_factory=dict)

    @property
    def json(self) -> Any:
        """The payload parsed as JSON. ValueError if it is not JSON."""
        return json.loads(self.data)


class _Fence:
    """A PING of settle(), and the connection on which it was last sent."""

    connection: _Connection | None = None
    ping = 0


async def on_thread(work: Callable[[], Result], undo: Callable[[Result], object] | None = None) -> Result:
    """Run work() on a thread of its own while the event loop continues; returns its result or raises its exception.

    It does not use the loop's own threads, which a program may keep busy, with what waits for us above all. A cancelled
    call ends after work has ended (all work is bounded in time) and undo() has undone its result, which nobody else
    could do.
    """
    answer: concurrent.futures.Future[Result] = concurrent.futures.Future()

    def run() -> None:
        try:
            answer.set_result(work())
        except BaseException as error:  # raised again in the caller
            answer.set_exception(error)

    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(run,), name="gnatswarm call", daemon=True)
    thread.start()
    waiting = asyncio.wrap_future(answer)
    try:
        return await asyncio.shield(waiting)
    except asyncio.CancelledError:
        while not waiting.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([waiting])
        if undo is not None and waiting.exception() is None:
            result = waiting.result()
            await on_thread(lambda: undo(result))
        raise
    finally:
        if waiting.done():
            thread.join()


# All that this process has made, for its children after fork().
_all: weakref.WeakSet[Capture] = weakref.WeakSet()


def _leave_all_to_parent() -> None:
    for capture in list(_all):
        capture._leave_to_parent()


os.register_at_fork(after_in_child=_leave_all_to_parent)


class Capture:
    """Collects messages from its construction until close(). CaptureError if the broker refuses the subscription."""

    def __init__(
        self,
        login: Login,
        subject: str,
        *,
        queue: str = "",
        published: Callable[[], Mapping[str, int]] | None = None,
    ) -> None:
        """`published`: what was published so far, messages by subject; asked for the text of a TimeoutError."""
        words = subject + queue
        if not subject or any(one.isspace() or "\ud800" <= one <= "\udfff" for one in words):  # (surrogates: no UTF-8)
            raise ValueError(f"not a subject and a queue: {subject!r}, {queue!r}")
        self.subject = subject
        self._login = login
        self._published = published
        self._subscribe = f"SUB {subject} {queue + ' ' if queue else ''}1\r\n".encode()
        self._changed = threading.Condition()
        self._messages: list[Message] = []
        self._pings = self._pongs = 0  # on the present connection
        self._connection: _Connection | None = None
        self._failure = ""
        self._is_closed = False
        self._has_ended = False  # the thread
        self._wakers: list[Callable[[], None]] = []  # of event loops that wait for a change
        _all.add(self)
        try:
            self._connection = _Connection(login, self._subscribe)
        except OSError as error:
            raise CaptureError(f"cannot connect to {login.host}:{login.port}: {error}") from None
        self._thread = threading.Thread(target=self._read, name=f"capture {subject}", daemon=True)
        try:
            self._thread.start()
            self.settle()
        except BaseException:
            self.close()
            raise

    # ---- reading what has arrived so far

    @property
    def messages(self) -> list[Message]:
        """All messages so far, in order."""
        with self._changed:
            return list(self._messages)

    @property
    def payloads(self) -> list[bytes]:
        """The payloads of all messages so far."""
        return [message.data for message in self.messages]

    @property
    def subjects(self) -> list[str]:
        """The subjects of all messages so far."""
        return [message.subject for message in self.messages]

    def __len__(self) -> int:
        return len(self._messages)

    def __bool__(self) -> bool:
        return True  # also without messages

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages)

    def __getitem__(self, index: int) -> Message:
        return self._messages[index]

    def __repr__(self) -> str:
        return f"<Capture {self.subject!r}: {len(self._messages)} messages>"

    def clear(self) -> None:
        """Forget the messages so far."""
        with self._changed:
            self._messages.clear()

    # ---- waiting

    def settle(self, deadline_s: float = DEADLINE_S) -> None:
        """Block until everything that the broker had to deliver when this was called has arrived. CaptureError."""
        fence = _Fence()
        _check_deadline(deadline_s)
        with self._changed:
            if not self._changed.wait_for(lambda: self._has_passed(fence), deadline_s):
                raise CaptureError(self._unanswered(deadline_s))

    async def asettle(self, deadline_s: float = DEADLINE_S) -> None:
        """The same, awaited."""
        fence = _Fence()
        if not await self._until(lambda: self._has_passed(fence), deadline_s):
            raise CaptureError(self._unanswered(deadline_s))

    def receive(self, count: int = 1, deadline_s: float = DEADLINE_S) -> list[Message]:
        """Block until there are `count` messages in all; returns them. TimeoutError names the messages that arrived."""
        _refuse_to_block("receive", f"await captured.areceive({count})")
        _check_deadline(deadline_s)
        with self._changed:
            self._changed.wait_for(lambda: len(self._messages) >= count or self._failure, deadline_s)
        return self._received(count, deadline_s) or self._missed(count, deadline_s, self._elsewhere())

    async def areceive(self, count: int = 1, deadline_s: float = DEADLINE_S) -> list[Message]:
        """The same, awaited."""
        await self._until(lambda: len(self._messages) >= count or bool(self._failure), deadline_s)
        messages = self._received(count, deadline_s)
        return messages or self._missed(count, deadline_s, await on_thread(self._elsewhere))

    def _received(self, count: int, deadline_s: float) -> list[Message]:
        """The messages, if there are enough; []: too few came in time."""
        messages = self.messages
        if len(messages) >= count:
            return messages
        if self._failure:
            raise CaptureError(self._failure)
        return []

    def _missed(self, count: int, deadline_s: float, elsewhere: str) -> list[Message]:
        messages = self.messages
        if len(messages) >= count:
            return messages
        shown = ", ".join(f"{one.subject} {one.data[:60]!r}" for one in messages[:10]) or "nothing"
        away = f"; {self._away()}" if self._connection is None else ""
        raise TimeoutError(
            f"{len(messages)} of {count} messages on {self.subject} within {deadline_s:g} s: {shown}{away}{elsewhere}"
        )

    def _unanswered(self, deadline_s: float) -> str:
        away = f": {self._away()}" if self._connection is None else ""
        return f"the broker did not answer within {deadline_s:g} s{away}"

    def _away(self) -> str:
        return f"the broker on port {self._login.port} is gone"

    def _elsewhere(self) -> str:
        """What was published, as the end of a message; "": nothing is known."""
        try:
            published = self._published() if self._published is not None else {}
        except Exception:  # the broker may be gone; that must not hide what the caller waits for
            return ""
        return near_misses(self.subject, published)

    def _has_passed(self, fence: _Fence) -> bool:
        """Whether the broker has answered the fence's PING, which is sent once on each connection. CaptureError."""
        if self._failure or self._is_closed:
            raise CaptureError(self._failure or "the capture has been closed")
        connection = self._connection
        if connection is None:
            return False  # the broker is away
        if fence.connection is not connection:
            self._pings += 1
            fence.connection, fence.ping = connection, self._pings
            connection.send(b"PING\r\n")
        return self._pongs >= fence.ping

    async def _until(self, is_so: Callable[[], bool], deadline_s: float) -> bool:
        """Whether `is_so` becomes true within that time. No thread waits: the thread that reads wakes this loop."""
        _check_deadline(deadline_s)
        loop, changed = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has been closed meanwhile
                loop.call_soon_threadsafe(changed.set)

        with self._changed:
            self._wakers.append(wake)
        try:
            async with asyncio.timeout(deadline_s):
                while True:
                    changed.clear()
                    with self._changed:
                        if is_so():
                            return True
                    await changed.wait()
        except TimeoutError:
            return False
        finally:
            with self._changed:
                self._wakers.remove(wake)

    def _notify(self) -> None:
        """Wake all waiters, because something has changed; called with the lock held."""
        self._changed.notify_all()
        for wake in self._wakers:
            wake()

    # ---- life

    def close(self) -> None:
        """Unsubscribe. Messages can still be read afterwards, but settle() fails."""
        self._begin_close()
        with contextlib.suppress(RuntimeError):  # interrupted while it starts, it ends as soon as it has
            self._thread.join(DEADLINE_S)

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._is_closed

    async def aclose(self) -> None:
        """The same, awaited."""
        self._begin_close()
        await self._until(lambda: self._has_ended, DEADLINE_S)

    def _begin_close(self) -> None:
        with self._changed:
            self._is_closed = True
            connection, self._connection = self._connection, None
            self._notify()
        if connection is not None:
            connection.close()

    def _leave_to_parent(self) -> None:
        """In a child after fork(): hold neither the connection, which would not end with the parent's, nor its lock."""
        self._changed = threading.Condition()  # the thread that reads, which is the parent's, may have had it
        self._wakers = []
        self._is_closed = self._has_ended = True
        self._failure = self._failure or "the capture is the parent process's"
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.aclose()

    # ---- the thread

    def _read(self) -> None:
        try:
            self._collect()
        finally:
            with self._changed:
                self._has_ended = True
                self._notify()

    def _collect(self) -> None:
        connection = self._connection
        while connection is not None:
            try:
                for item in connection.read():
                    self._take(connection, item)
            except CaptureError as error:
                connection.close()
                self._end(str(error))
                return
            except OSError:
                pass
            connection.close()
            connection = self._dial_again()

    def _take(self, connection: _Connection, item: Message | bytes) -> None:
        with self._changed:
            if isinstance(item, Message):
                self._messages.append(item)
            elif item == b"PONG":
                self._pongs += 1
            self._notify()
        if item == b"PING":
            connection.send(b"PONG\r\n")

    def _dial_again(self) -> _Connection | None:
        """Connect again until the broker is back on the same port."""
        if self._is_closed:
            self._end("the capture has been closed")
            return None
        with self._changed:
            self._connection = None
            self._pings = self._pongs = 0
            self._notify()
        until = time.monotonic() + DEADLINE_S
        while time.monotonic() < until and not self._is_closed:
            try:
                connection = _Connection(self._login, self._subscribe)
            except (OSError, CaptureError):
                time.sleep(_DIAL_AGAIN_S)
                continue
            with self._changed:
                if self._is_closed:
                    connection.release()
                    break
                self._connection = connection
                self._notify()
            return connection
        closed = "the capture has been closed"
        self._end(closed if self._is_closed else self._away())
        return None

    def _end(self, why: str) -> None:
        with self._changed:
            self._connection = None
            self._failure = self._failure or why
            self._notify()


def near_misses(wanted: str, published: Mapping[str, int]) -> str:
    """The end of a message about `wanted`, to which nothing came: what was published so far, similar subjects first."""
    import difflib

    if not published:
        return ""
    here = [subject for subject in published if _matches(wanted, subject)]
    ratio = {subject: difflib.SequenceMatcher(None, wanted, subject).ratio() for subject in published}
    others = sorted((subject for subject in published if subject not in here), key=lambda one: (-ratio[one], one))
    text = ""
    if here:
        shown = ", ".join(f"{one} ({published[one]})" for one in here[:_MOST_NAMED])
        text += f"; published before this capture began, or in another account: {shown}"
    if others:
        shown = ", ".join(f"{one} ({published[one]})" for one in others[:_MOST_NAMED])
        more = f", and {len(others) - _MOST_NAMED} other subjects" if len(others) > _MOST_NAMED else ""
        near = f": did you mean {others[0]}?" if ratio[others[0]] >= _NEAR and not here else ""
        text += f"; published so far: {shown}{more}{near}"
    return text


def _matches(pattern: str, subject: str) -> bool:
    wanted, given = pattern.split("."), subject.split(".")
    for at, token in enumerate(wanted):
        if token == ">":
            return len(given) > at
        if at >= len(given) or token not in ("*", given[at]):
            return False
    return len(wanted) == len(given)


class _Connection:
    """One connection, logged in. OSError and CaptureError if that fails.

    Other threads' data is sent by the thread that reads, because a TLS socket must not be used by two threads.
    """

    def __init__(self, login: Login, first_words: bytes) -> None:
        self._to_send: collections.deque[bytes] = collections.deque()
        self._is_closing = False
        self._buffer = b""
        self._sock: socket.socket | ssl.SSLSocket = socket.create_connection((login.host, login.port), DEADLINE_S)
        self._ends: tuple[socket.socket, ...] = ()
        try:
            self._ends = self._woken, self._waker = socket.socketpair()
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if login.tls is not None and login.tls_first:
                self._sock = login.tls.wrap_socket(self._sock, server_hostname=login.tls_hostname)
            info = self._info()
            if login.tls is not None and not login.tls_first:
                self._sock = login.tls.wrap_socket(self._sock, server_hostname=login.tls_hostname)
            self._sock.sendall(_connect_line(login, info) + first_words)
        except BaseException:
            self.release()
            raise

    def _info(self) -> dict[str, Any]:
        # Byte by byte, because a TLS handshake may follow INFO directly.
        line = b""
        while not line.endswith(b"\r\n"):
            byte = self._sock.recv(1)
            if not byte:
                raise ConnectionResetError(f"the broker closed the connection: {line!r}")
            line += byte
        if not line.startswith(b"INFO "):
            raise CaptureError(f"not a NATS broker: {line[:80]!r}")
        return dict(json.loads(line[5:]))

    def send(self, data: bytes) -> None:
        """Send from any thread; the reading thread finds out if the connection is gone."""
        self._to_send.append(data)
        self._wake()

    def close(self) -> None:
        """End the connection, from any thread; the reading thread then releases its resources."""
        self._is_closing = True
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # gone already
            self._waker.send(b"!")

    def release(self) -> None:
        """Release the resources; called when no thread reads."""
        for sock in (self._sock, *self._ends):
            sock.close()

    def read(self) -> Iterator[Message | bytes]:
        """The broker's messages, and b"PING" or b"PONG", until it closes the connection. CaptureError for -ERR."""
        try:
            yield from self._read()
        finally:
            self.release()

    def _read(self) -> Iterator[Message | bytes]:
        while True:
            line = self._line()
            verb, _, rest = line.partition(b" ")
            if verb == b"MSG":
                yield self._message(rest.split(), headers=False)
            elif verb == b"HMSG":
                yield self._message(rest.split(), headers=True)
            elif verb in (b"PING", b"PONG"):
                yield verb
            elif verb == b"-ERR":
                raise CaptureError(f"the broker says {rest.decode('utf-8', 'replace')}")

    def _message(self, words: list[bytes], *, headers: bool) -> Message:
        size = int(words[-1])
        head = int(words[-2]) if headers else 0
        reply = words[2] if len(words) == (5 if headers else 4) else b""
        body = self._bytes(size + 2)
        return Message(
            words[0].decode("utf-8", "surrogateescape"),
            body[head:size],
            reply.decode("utf-8", "surrogateescape"),
            _headers(body[:head]),
        )

    def _line(self) -> bytes:
        while b"\r\n" not in self._buffer:
            self._more()
        line, _, self._buffer = self._buffer.partition(b"\r\n")
        return line

    def _bytes(self, size: int) -> bytes:
        pieces = [self._buffer]
        missing = size - len(self._buffer)
        while missing > 0:
            self._buffer = b""
            self._more()
            pieces.append(self._buffer)
            missing -= len(self._buffer)
        whole = b"".join(pieces)
        self._buffer = whole[size:]
        return whole[:size]

    def _more(self) -> None:
        while not (isinstance(self._sock, ssl.SSLSocket) and self._sock.pending()):
            poller = select.poll()
            poller.register(self._sock, select.POLLIN)
            poller.register(self._woken, select.POLLIN)
            ready = {fd for fd, _events in poller.poll()}
            if self._woken.fileno() in ready:
                self._woken.recv(4096)
                while self._to_send:
                    self._sock.sendall(self._to_send.popleft())
            if self._is_closing:
                raise ConnectionResetError
            if self._sock.fileno() in ready:
                break
        self._sock.settimeout(0.0)  # what has come may be a TLS record without data, as a session ticket is
        try:
            data = self._sock.recv(_READ_BYTES)
        except (BlockingIOError, ssl.SSLWantReadError):
            return
        finally:
            self._sock.settimeout(DEADLINE_S)
        if not data:
            raise ConnectionResetError
        self._buffer += data


def _connect_line(login: Login, info: dict[str, Any]) -> bytes:
    words: dict[str, Any] = {"verbose": False, "pedantic": False, "lang": "python", "version": "1", "name": "capture"}
    words |= {"protocol": 1, "headers": bool(info.get("headers")), "tls_required": login.tls is not None}
    words |= {"user": login.user, "pass": login.password} if login.user else {}
    words |= {"auth_token": login.token} if login.token else {}
    return b"CONNECT " + json.dumps(words).encode() + b"\r\n"


def _headers(block: bytes) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in block.decode("utf-8", "replace").split("\r\n")[1:]:
        name, colon, value = line.partition(":")
        if colon:
            found.setdefault(name, []).append(value.strip())
    return found


def _check_deadline(deadline_s: float) -> None:
    """ValueError for what is no number, which never passes."""
    if math.isnan(deadline_s):
        raise ValueError("deadline_s is not a number: nobody waits for ever")


def _refuse_to_block(method: str, instead: str) -> None:
    """Raise an error in an event loop: a blocked loop could not send what the call would wait for."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(f"{method}() would block the running event loop, and with it who publishes: {instead}")
