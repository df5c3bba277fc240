"""One hub that this broker is a leaf node of: dials it, again and again, and keeps what it knows of its addresses.

It reads the hub's first INFO, because that decides whether TLS follows, and shows that the port is a leaf node port;
then `shards.gateway.leaf` has the connection. By WebSocket there is an upgrade first, and TLS before that, and with
`handshake_first` TLS, so the session reads that INFO itself. Every wait has an end.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import msgspec

from gnatswarm.broker.bounds import LARGEST_FRAME_PAYLOAD_BYTES
from gnatswarm.broker.errors import CloseReason
from gnatswarm.shards.boundary.seeds import creds_now
from gnatswarm.shards.gateway import words
from gnatswarm.shards.gateway.addresses import name_for_tls
from gnatswarm.shards.gateway.leaf import LeafSession
from gnatswarm.shards.sockets.gate import Gate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from ssl import SSLObject

    from gnatswarm.broker.exchange import Exchange
    from gnatswarm.broker.options import LeafRemote, Options
    from gnatswarm.shards.gateway.hub_contexts import HubContexts
    from gnatswarm.shards.gateway.server_events import ServerEvents
    from gnatswarm.shards.gateway.words import Identity, ServerInfo
    from gnatswarm.shards.sockets.frames import Frames
    from gnatswarm.shards.sockets.frozen_socket import FrozenFrames
    from gnatswarm.shards.sockets.layered import LayeredSocket
    from gnatswarm.shards.sockets.reactor import Reactor

logger = logging.getLogger("gnatswarm.gateway")

MOST_INFO_BYTES = 65536
# After a loop, or a refusal that would only come again.
LONG_WAIT_S = 30.0
# Addresses that a hub may name; a cluster has fewer servers.
MOST_URLS = 64
# A failure that repeats is logged at the first time, and then every so many tries.
TELL_EVERY = 60
# As for links between shards: one round of a busy client should fit.
SOCKET_BUFFER_BYTES = 1024 * 1024


class Address(msgspec.Struct, frozen=True):
    """One address to dial."""

    host: str
    port: int
    login: tuple[str, str] = ("", "")
    tls: bool = False
    websocket: bool = False
    path: str = ""  # by WebSocket: in front of /leafnode

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def address_of(url: str, default_port: int) -> Address:
    """The address in a URL such as nats://user:password@host:7422 or wss://host/path. ValueError: it has none."""
    parts = urlsplit(url if "://" in url else f"nats://{url}")
    if not parts.hostname:
        raise ValueError(f"no host in {parts.scheme}://…")
    login = unquote(parts.username or ""), unquote(parts.password or "")
    is_websocket = parts.scheme in ("ws", "wss")
    path = parts.path.strip("/") if is_websocket else ""
    port = parts.port or default_port
    return Address(parts.hostname, port, login, parts.scheme in ("tls", "wss"), is_websocket, path)


def told_address(url: str, default_port: int) -> Address:
    """As `address_of`, of what another server has said. ValueError also for characters that no host's name has."""
    address = address_of(url, default_port)
    if not address.host.isprintable() or " " in address.host:  # of one with a NUL, C libraries take what is before it
        raise ValueError(f"{address.host!r} is no host")
    return address


# What getaddrinfo() says of one address of a name: family, kind, protocol, name, and where it is.
Place = tuple[int, int, int, str, tuple[Any, ...]]


async def places_of(loop: asyncio.AbstractEventLoop, address: Address, timeout_s: float) -> list[Place]:
    """All addresses of a name, in random order, as nats-server dials them. OSError.

    In the system's order each of several hosts with one name has itself first, and one that does not serve would be
    dialled again and again.
    """
    found = await asyncio.wait_for(
        loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM), timeout=max(timeout_s, 5.0)
    )
    random.shuffle(found)
    return list(found)


async def connected(
    loop: asyncio.AbstractEventLoop, places: Sequence[Place], timeout_s: float
) -> tuple[socket.socket, tuple[Any, ...]]:
    """A connection to the first of these that answers, and where that is. OSError, in nats-server's words."""
    last: OSError = OSError("the name has no address")
    for family, kind, protocol, _name, where in places:
        sock = socket.socket(family, kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, protocol)
        dial = f"dial tcp {Address(str(where[0]), int(where[1]))}"
        try:
            await asyncio.wait_for(loop.sock_connect(sock, where), timeout_s)
        except TimeoutError:
            sock.close()
            last = TimeoutError(f"{dial}: i/o timeout")
        except OSError as error:
            sock.close()
            last = OSError(f"{dial}: connect: {os.strerror(error.errno or 0).lower()}")
        except BaseException:
            sock.close()
            raise
        else:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
            return sock, where
    raise last


async def read_line(loop: asyncio.AbstractEventLoop, sock: socket.socket) -> bytes:
    """One line, and not a byte more: what follows may be TLS. ConnectionError, ValueError."""
    line = b""
    while True:
        ready = loop.create_future()
        loop.add_reader(sock.fileno(), lambda done=ready: done.done() or done.set_result(None))  # type: ignore[misc]
        try:
            await ready
        finally:
            loop.remove_reader(sock.fileno())
        seen = sock.recv(MOST_INFO_BYTES, socket.MSG_PEEK)
        if not seen:
            raise ConnectionError("it closed the connection")
        end = seen.find(b"\n")
        line += sock.recv(end + 1 if end >= 0 else len(seen))
        if end >= 0:
            return line
        if len(line) > MOST_INFO_BYTES:
            raise ValueError("its first line has no end")


class Remote:
    """The connection to one configured hub.

    `flush` sends what was queued outside of the reactor's round; `opens_loop` says whether a connection that finds a
    loop is to be closed, or another one was just now; `cluster_name` is that of this broker's cluster, "": it has none;
    `next_id` gives numbers that no client has.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        reactor: Reactor,
        exchange: Exchange,
        remote: LeafRemote,
        identity: Identity,
        options: Options,
        flush: Callable[[], None],
        opens_loop: Callable[[str], bool],
        cluster_name: Callable[[], str],
        next_id: Callable[[], int],
        events: ServerEvents,
        contexts: HubContexts,
    ) -> None:
        self._loop = loop
        self._reactor = reactor
        self._exchange = exchange
        self._identity = identity
        self._options = options
        self._contexts = contexts
        self.remote = remote
        self.flush = flush
        self.opens_loop = opens_loop
        self.cluster_name = cluster_name
        self._next_id = next_id
        self.events = events
        self.session: LeafSession | None = None
        self._configured = [address_of(url, 7422) for url in remote.urls]
        self._discovered: list[Address] = []
        self._failures = 0
        self._waits_long = False
        self._has_lasted = False  # the last connection, and nothing was refused: it is dialled again at once
        self._over: asyncio.Future[None] | None = None
        self._task = loop.create_task(self._run())
        self._task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._loop.call_exception_handler({"message": "dialling a hub failed", "exception": error})

    @property
    def is_like_newer(self) -> bool:
        """Whether the broker behaves as nats-server 2.15."""
        return self._options.is_like_newer

    def reload(self, options: Options, remote: LeafRemote) -> None:
        """Use the new options, in which it is this remote: the same, but for what its certificate files hold.

        That holds from the next dial on, as does what the system's authorities are now. A hub is left whose certificate
        the options refuse.
        """
        self._options = options
        self.remote = remote
        if self.session is not None:
            self.session.reload()
            self.session.set_pings(options.limits.ping_interval_s, options.limits.ping_max)
            self.flush()

    def connect_again(self, why: str) -> None:
        """End the connection, over which the hub was told what does not hold any more; the next one is made soon."""
        if self.session is not None:
            self.session.close(why)
            self.flush()

    def close(self, why: str) -> None:
        """End the connection, and dial no more."""
        self._task.cancel()
        if self.session is not None:
            self.session.close(why)
            self.flush()

    def stop_dialling(self) -> None:
        """Make no connection any more; the present one stays."""
        self._task.cancel()

    # ---- dialling

    async def _run(self) -> None:
        addresses: list[Address] = []
        while True:
            if not addresses:
                addresses = [*self._configured, *self._discovered]
                addresses.reverse()  # the last one is dialled first
                if len(addresses) > 1 and not self.remote.no_randomize:
                    random.shuffle(addresses)
            address = addresses.pop()
            self._waits_long = self._has_lasted = False
            try:
                await self._connect(address)
            except Exception as error:  # OpenSSL and resolvers object to what others name in ways of their own
                self._failed(address, str(error) or type(error).__name__)
            if self._has_lasted:
                addresses.append(address)  # a hub that restarts listens there again, or still does
            else:
                await asyncio.sleep(LONG_WAIT_S if self._waits_long else self.remote.reconnect_s)

    def _failed(self, address: Address, why: str) -> None:
        self._failures += 1
        if self._failures == 1 or self._failures % TELL_EVERY == 0:
            text = 'Error trying to connect as leafnode to remote server "%s" (attempt %d): %s'
            logger.error(text, address, self._failures, why)

    async def _connect(self, address: Address) -> None:
        """Connect, and return when that connection has ended."""
        remote = await self._with_credentials()
        timeout_s = self.remote.dial_timeout_s
        begins = address.websocket or self.remote.tls.handshake_first
        # Made before: a hub with `handshake_first: auto` waits for 50 ms.
        gate = self._gate(address, is_wanted=False) if begins else None
        sock, _where = await connected(self._loop, await places_of(self._loop, address, timeout_s), timeout_s)
        if begins:
            await self._pass_messages(sock, address, remote, None, gate)
            return
        info_timeout_s = self.remote.first_info_timeout_s
        try:
            raw = await asyncio.wait_for(read_line(self._loop, sock), info_timeout_s)
            if not raw[:5].lower() == b"info ":
                raise ValueError(f"it is no NATS server: it began with {raw[:40]!r}")
            info = words.read_info(raw[5:])
            objection = self.objection_to(info)
            if objection:
                raise ValueError(objection)
            gate = self._gate(address, is_wanted=info.tls_required)
        except (TimeoutError, ConnectionError) as error:
            sock.close()
            why = f"no INFO within {info_timeout_s:g} s" if isinstance(error, TimeoutError) else str(error)
            hint = "; a hub with handshake_first sends INFO to who has that in the remote's tls, too"
            raise ConnectionError(f"{why}{hint if self.remote.tls.is_on or address.tls else ''}") from None
        except BaseException:
            sock.close()
            raise
        if gate is None:  # (else what it says may be another's word, until the connection is encrypted)
            self.on_urls(info)
        await self._pass_messages(sock, address, remote, info, gate)

    def most_subscriptions(self, account: str) -> int:
        """How much interest a hub may tell to this account; 0: any."""
        return self._options.limits_of(account).max_subscriptions

    def objection_to(self, info: ServerInfo) -> str:
        """Why this first INFO is none of a hub; "": it is one."""
        names_urls = info.leafnode_urls is not None or info.ws_connect_urls is not None
        if not info.client_id or not (names_urls or info.info_on_connect):  # (2.15 with no_advertise names none)
            return "this is not a leaf node port: its INFO has no leafnode_urls"
        if info.server_id == self._identity.server_id:
            self._waits_long = True
            return "this broker itself listens there"
        return ""

    def objection_to_certificate(self, tls: SSLObject) -> str:
        """Why a hub with this certificate may not be connected; "": it may.

        Pins of the port hold here, as there; and those of the remote.
        """
        from gnatswarm.shards.clients.certificate_rule import certificate_rule

        context = self._contexts.of(self.remote.tls)
        rules = [certificate_rule(one, context) for one in (self.remote.tls, self._options.leafnodes.tls)]
        return next((why for rule in rules if rule is not None and (why := rule.objection(tls))), "")

    async def _with_credentials(self) -> LeafRemote:
        """The remote with what its file of credentials holds now, as nats-server has it: some are valid for an hour.

        Where it cannot be read, or is just being written, with what it held at the start or the last reload.
        """
        remote = self.remote
        if remote.credentials:
            found = await self._loop.run_in_executor(None, creds_now, remote.credentials)
            if found is not None:
                return msgspec.structs.replace(remote, jwt=found[0], seed=found[1])
        return remote

    async def _pass_messages(
        self,
        sock: socket.socket,
        address: Address,
        remote: LeafRemote,
        info: ServerInfo | None,
        gate: Gate | None,
    ) -> None:
        """Give the connection to a session, and return when it has ended. `info` None: the session reads it."""
        self._over = self._loop.create_future()
        session = self.session = LeafSession(
            self._loop,
            self._exchange,
            self,
            remote,
            self._identity,
            info,
            address=str(address),
            login=address.login if address.login[0] else self._configured[0].login,
            is_encrypted=gate is not None and gate.context is not None,
            lid=self._next_id(),
            ping_interval_s=self._options.limits.ping_interval_s,
            ping_max=self._options.limits.ping_max,
        )
        if info is None:
            session.wait_for_info(self.remote.first_info_timeout_s + self.remote.tls.timeout_s)
        layered: LayeredSocket | None = None
        if gate is not None:
            from gnatswarm.shards.sockets.layered import LayeredSocket

            layered = LayeredSocket(gate)
        try:
            session.socket = self._reactor.open(sock.fileno(), session.link, session, layered)
        except OSError:  # it cannot be watched
            session.on_closed(CloseReason.READ_ERROR)
            sock.close()
            raise
        sock.detach()
        if layered is None:
            session.begin()
        else:
            try:
                layered.connect()
            except Exception:
                session.close("the handshake could not begin")
                self.flush()
                raise
        self.flush()
        await self._over

    def _gate(self, address: Address, *, is_wanted: bool) -> Gate | None:
        """What comes before the protocol: TLS, WebSocket; None: nothing."""
        tls = self.remote.tls
        frames = self._frames(address) if address.websocket else None
        if not (is_wanted or tls.is_on or address.tls):
            return Gate(timeout_s=tls.timeout_s, frames=frames) if frames is not None else None
        name = name_for_tls(address.host, [one.host for one in self._configured])
        return Gate(context=self._contexts.of(tls), timeout_s=tls.timeout_s, server_hostname=name, frames=frames)

    def _frames(self, address: Address) -> Callable[[FrozenFrames | None], Frames]:
        """Makes the WebSocket state of a connection to this address."""
        # Imported here: few hubs are reached so.
        from gnatswarm.shards.sockets.dialled_frames import DialledFrames
        from gnatswarm.shards.sockets.frames import FRAME_ROOM_BYTES

        scheme = "wss" if address.tls or self.remote.tls.is_on else "ws"
        path = f"{address.path}/leafnode" if address.path else "leafnode"
        return lambda _: DialledFrames(
            f"{scheme}://{address}/{path}",
            most_bytes=LARGEST_FRAME_PAYLOAD_BYTES + FRAME_ROOM_BYTES,
            is_compressed=self.remote.ws_compression,
            masks=not self.remote.ws_no_masking,
        )

    # ---- from the session

    def on_accepted(self, session: LeafSession) -> None:
        """The hub has accepted."""
        self._failures = 0
        logger.info("%s - Leafnode connection created for account: %s", session, session.remote.account)

    def on_ended(self, session: LeafSession, reason: str, *, wait_long: bool) -> None:
        """The connection has ended."""
        self._waits_long |= wait_long  # (objection_to() may have said so)
        self._has_lasted = session.has_lasted and not wait_long
        if session.is_accepted:
            is_like_newer = self._options.is_like_newer
            who = f" - Remote: {session.info.shown}" if is_like_newer else f" account: {session.remote.account}"
            logger.info("%s - Leafnode connection closed: %s%s", session, reason, who)
        else:
            address = session.address
            self._failures += 1
            if self._failures == 1 or self._failures % TELL_EVERY == 0:
                logger.error("Leafnode connection to %s was not made: %s", address, reason)
        self.session = None
        if self._over is not None and not self._over.done():
            self._over.set_result(None)

    def on_urls(self, info: ServerInfo) -> None:
        """The hub named the addresses of its cluster, or none.

        Where a configured URL asks for TLS they are dialled with TLS: the log-in goes there, too.
        """
        first = self._configured[0]
        is_encrypted = any(one.tls for one in self._configured)
        urls = info.ws_connect_urls if first.websocket else info.leafnode_urls
        if not urls or self.remote.ignore_discovered_servers:
            return
        known = {(one.host, one.port) for one in self._configured}
        found = []
        for url in urls[:MOST_URLS]:
            try:
                address = told_address(url, 7422)
            except ValueError:
                continue
            if (address.host, address.port) not in known:
                same = {"login": first.login, "websocket": first.websocket, "path": first.path}
                found.append(msgspec.structs.replace(address, tls=address.tls or is_encrypted, **same))
        self._discovered = found
