"""The public API of `import gnatswarm`: a broker inside a Python program, or in processes that it starts.

    with gnatswarm.Broker() as broker:                       # one shard, on a thread of this process
        publish_something(broker.url)

    async with gnatswarm.BrokerProcess(shards=4) as broker:  # several shards, in processes of their own
        await broker.akill_shard(2)

Both listen on a free port of 127.0.0.1 unless told otherwise, take every option of the configuration file as a
keyword (`Keywords`), leave nothing behind, work with and without an event loop, and can capture messages:
`broker.capture("orders.>")`. A method `x()` blocks, for as long as it says; its twin `ax()` is awaited. One object has
both, because one broker may need both: a fixture without a loop starts it, and a test with a loop kills its shards. In
a child after fork() they are stopped, and the parent's serve on.

Errors: UnknownOption (a TypeError) for an unknown keyword, ConfigError for an invalid value, BrokerFailed for a broker
that fails or that has not been started.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import os
import socket
import threading
import time
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self, cast
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    import ssl
    from typing import Unpack

    from nats.aio.client import Client as NatsClient

    from gnatswarm.router.listening.listener_groups import ListenerGroups
    from gnatswarm.shards.embedded import EmbeddedShard

from gnatswarm.any_broker import AnyBroker, ConnectOptions
from gnatswarm.broker.options import Options
from gnatswarm.capture import Capture, CaptureError, Login, Message, on_thread
from gnatswarm.router.broker_process import BrokerFailed, RouterProcess, dialled
from gnatswarm.router.config.conf_tree import ConfigError
from gnatswarm.router.config.keywords import Keywords, UnknownOption, conf_text, options_from
from gnatswarm.router.config.reload import Change, diff, with_chosen_ports
from gnatswarm.router.supervision.operator_socket import Status

__all__ = [
    "AnyBroker",
    "Broker",
    "BrokerFailed",
    "BrokerProcess",
    "Capture",
    "CaptureError",
    "Change",
    "ConfigError",
    "ConnectOptions",
    "ExternalBroker",
    "Keywords",
    "Message",
    "Status",
    "UnknownOption",
]

# For an external server that has just been told to start.
EXTERNAL_DEADLINE_S = 10.0
# Subjects of published(), as the router has it for BrokerProcess.
MOST_PUBLISHED = 1000
NOT_RUNNING = "the broker has not been started, or has been stopped"

# All that this process has made, for its children after fork().
_endpoints: weakref.WeakSet[_Endpoint] = weakref.WeakSet()


def _leave_all_to_parent() -> None:
    for endpoint in list(_endpoints):
        endpoint._leave_to_parent()


os.register_at_fork(after_in_child=_leave_all_to_parent)


class _Endpoint:
    """The common part of embedded brokers and brokers in processes of their own."""

    options: Options
    websocket_url: str
    _given: dict[str, object]  # the keywords, with those of reload()
    _made_with: dict[str, object]  # without
    _port: int  # the clients' port; 0: not started yet
    _changing: threading.RLock  # one start, stop, restart or reload at a time

    def __init__(self) -> None:
        self._captures: list[Capture] = []
        self.starts = 0  # so far

    @property
    def is_running(self) -> bool:
        """Whether it serves."""
        raise NotImplementedError

    def _checked(self, given: dict[str, object]) -> Options:
        """The options that these keywords are. ConfigError; UnknownOption; TypeError."""
        raise NotImplementedError

    def start(self) -> Self:
        """Start the broker and wait until clients can connect."""
        raise NotImplementedError

    def stop(self) -> None:
        """Stop the broker; does nothing if it does not run."""
        raise NotImplementedError

    def restart(self) -> None:
        """Stop the broker and start it on the same ports."""
        raise NotImplementedError

    def reload(self, **changes: Unpack[Keywords]) -> list[Change]:
        """Change options while the broker runs."""
        raise NotImplementedError

    def disconnect_clients(self, first_cid: int = 0) -> int:
        """Disconnect all clients whose id is `first_cid` or higher."""
        raise NotImplementedError

    def next_client_id(self) -> int:
        """The lowest id that a client connecting from now on can have."""
        raise NotImplementedError

    def shard_count(self) -> int:
        """The requested number of shards."""
        raise NotImplementedError

    def published(self) -> dict[str, int]:
        """What was published so far: messages by subject, the most frequent first, without inboxes.

        Of at most 1,000 subjects, over all accounts. Of hundreds of thousands some may have a count that began anew.
        """
        raise NotImplementedError

    # ---- awaited

    async def astart(self) -> Self:
        """start(), awaited; leaves no broker running if it is cancelled."""
        return await on_thread(self.start, lambda _started: self.stop())

    async def astop(self) -> None:
        """stop(), awaited."""
        await on_thread(self.stop)

    async def areload(self, **changes: Unpack[Keywords]) -> list[Change]:
        """reload(), awaited."""
        return await on_thread(lambda: self.reload(**changes))

    async def adisconnect_clients(self, first_cid: int = 0) -> int:
        """disconnect_clients(), awaited."""
        return await on_thread(lambda: self.disconnect_clients(first_cid))

    async def anext_client_id(self) -> int:
        """next_client_id(), awaited."""
        return await on_thread(self.next_client_id)

    async def apublished(self) -> dict[str, int]:
        """published(), awaited."""
        return await on_thread(self.published)

    async def ashard_count(self) -> int:
        """shard_count(), awaited."""
        return await on_thread(self.shard_count)

    # ---- clients

    @property
    def host(self) -> str:
        """The host that programs on this machine connect to."""
        return dialled(self.options.host)

    @property
    def port(self) -> int:
        """The clients' port. BrokerFailed before the first start."""
        if not self._port:
            raise BrokerFailed("the broker has not been started: it has no port and no URL yet")
        return self._port

    @property
    def url(self) -> str:
        """URL for clients: nats://127.0.0.1:4222, or tls://… if it has TLS. Without credentials."""
        scheme = "tls" if self.options.tls.is_on and not self.options.allow_non_tls else "nats"
        return f"{scheme}://{self.host}:{self.port}"

    @property
    def connect_options(self) -> ConnectOptions:
        """Arguments for nats-py's `nats.connect(**broker.connect_options)`, with the first user's credentials.

        TLS connections accept any certificate, because the caller has started this broker itself.
        """
        login = self._login()
        found: ConnectOptions = {"servers": [self.url]}
        if login.token:
            found["token"] = login.token
        elif login.user:
            found["user"], found["password"] = login.user, login.password
        if login.tls is not None:
            found["tls"], found["tls_hostname"] = login.tls, login.tls_hostname
            if login.tls_first:
                found["tls_handshake_first"] = True
        return found

    def capture(
        self,
        subject: str,
        *,
        queue: str = "",
        user: str = "",
        password: str = "",
        token: str = "",
        tls: ssl.SSLContext | None = None,
    ) -> Capture:
        """Collect messages on a subject (wildcards allowed), from the return of this call until the broker stops.

        Logs in with the given credentials, by default as the first user. CaptureError if the broker refuses it.
        """
        login = self._login(user, password, token, tls)
        capture = Capture(login, subject, queue=queue, published=self.published)
        for closed in [one for one in self._captures if one.is_closed]:
            with contextlib.suppress(ValueError):  # another thread was first
                self._captures.remove(closed)
        self._captures.append(capture)
        return capture

    async def acapture(
        self,
        subject: str,
        *,
        queue: str = "",
        user: str = "",
        password: str = "",
        token: str = "",
        tls: ssl.SSLContext | None = None,
    ) -> Capture:
        """capture(), awaited; leaves no capture open if it is cancelled."""
        return await on_thread(
            lambda: self.capture(subject, queue=queue, user=user, password=password, token=token, tls=tls),
            lambda capture: capture.close(),
        )

    async def connect(self, **options: Any) -> NatsClient:
        """A client of nats-py (`pip install nats-py`), connected and logged in; `options` are nats.connect's own."""
        try:
            import nats
        except ImportError:
            raise ImportError("connect() needs the NATS client for Python: pip install nats-py") from None
        return await nats.connect(**{**self.connect_options, **options})

    def _login(self, user: str = "", password: str = "", token: str = "", tls: ssl.SSLContext | None = None) -> Login:
        options = self.options
        if not (user or password or token):
            if options.auth_token:
                token = options.auth_token
            elif options.auth_user:
                user, password = options.auth_user, options.auth_password
            elif options.users and not (options.no_auth_user or options.has_guests):
                user, password = options.users[0].name, options.users[0].password
        if tls is None and options.tls.is_on and not options.allow_non_tls:
            tls = _trusting()
        return Login(
            host=self.host.strip("[]"),
            port=self.port,
            user=user,
            password=password,
            token=token,
            tls=tls,
            tls_first=tls is not None and options.tls.handshake_first,
        )

    def _leave_to_parent(self) -> None:
        """In a child after fork(): the broker is the parent's, and here it is stopped."""
        self._captures = []
        self._changing = threading.RLock()  # another thread may have had it

    def _settle_captures(self) -> None:
        """After a restart: wait until the captures are subscribed again. CaptureError."""
        for capture in self._captures:
            if not capture.is_closed:
                capture.settle()

    def close_captures(self) -> None:
        """Close all captures; stop() does this too."""
        for capture in self._captures:
            capture.close()
        self._captures.clear()

    def _captures_now(self) -> set[Capture]:
        return set(self._captures)

    def _close_captures_since(self, before: set[Capture]) -> None:
        """Close those that were not there then."""
        for capture in [one for one in self._captures if one not in before]:
            capture.close()
            with contextlib.suppress(ValueError):  # the broker has been stopped, or another thread was first
                self._captures.remove(capture)

    async def aclose_captures(self) -> None:
        """close_captures(), awaited."""
        await on_thread(self.close_captures)

    # ---- life

    def _undo_changes(self) -> None:
        """Give it the options again that it was made with; a broker that is stopped has them when it starts.

        By a reload, so that clients stay, or by a restart if a reload cannot. BrokerFailed.
        """
        with self._changing:
            made = self._made_with
            changes = {name: made.get(name) for name, value in self._given.items() if value != made.get(name)}
            if self.is_running:
                with contextlib.suppress(BrokerFailed):
                    self.reload(**cast("Keywords", changes))
                    return
            self._given, self.options = dict(made), self._checked(made)
            if self.is_running:
                self.restart()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        return await self.astart()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.astop()


class Broker(_Endpoint):
    """A broker of one shard inside this process; `with`, `async with`, or start() and stop().

    It has a thread and an event loop of its own, so it serves while the program blocks, and with any event loop; both
    share the interpreter's lock. It logs to the logger "gnatswarm". Several objects are several brokers. For features
    that need separate processes (shards, statistics, monitoring pages, files, tracing) use BrokerProcess.
    """

    def __init__(self, **options: Unpack[Keywords]) -> None:
        super().__init__()
        self._made_with: dict[str, object] = dict(options)
        self._given = dict(options)
        self.options = self._checked(self._given)
        self._listener_groups: ListenerGroups | None = None
        self._shard: EmbeddedShard | None = None
        self._port = self._websocket_port = 0
        self._changing = threading.RLock()
        self.websocket_url = ""
        self.server_id = ""  # changes with each start
        _endpoints.add(self)

    def start(self) -> Self:
        """Start the broker: some milliseconds, and some tens more for the first one of a process. BrokerFailed.

        A broker that was stopped starts on the same ports.
        """
        with self._changing:
            if self._shard is not None and self._shard.failure:
                with contextlib.suppress(BrokerFailed):
                    self.stop()
            if self._shard is None:
                if self._port:
                    self.options = self._on_same_ports()
                self._start()
                self.starts += 1
        return self

    def _start(self) -> None:
        # Imported when needed: a program that only uses BrokerProcess does not load them.
        from gnatswarm.router.listening.listener_groups import ListenerGroups
        from gnatswarm.router.listening.listeners import ListenError
        from gnatswarm.shards.embedded import EmbeddedShard

        # As long as a server's public key, because some clients' tests check it; ours is not a key.
        self.server_id = server_id = "N" + base64.b32encode(os.urandom(35)).decode()[:55]
        try:
            listener_groups = ListenerGroups(self.options, 1, is_handoff=False)
        except (ListenError, OSError) as error:
            raise BrokerFailed(str(error)) from None
        websocket = listener_groups.websocket
        try:
            self._shard = EmbeddedShard(
                self.options,
                listener_groups.client_fds(0),
                listener_groups.websocket_fds(0),
                server_id=server_id,
                server_name=self.options.server_name or server_id,
                port=listener_groups.clients.port,
                websocket_port=websocket.port if websocket is not None else 0,
            )
        except OSError as error:  # this program may have no more descriptors
            listener_groups.close()
            raise BrokerFailed(f"the broker cannot be started: {error}") from None
        except BaseException:
            listener_groups.close()
            raise
        self._listener_groups = listener_groups
        self._port = listener_groups.clients.port
        if websocket is not None:
            self._websocket_port = websocket.port
            host = dialled(self.options.websocket.host)
            self.websocket_url = f"{listener_groups.websocket_scheme}://{host}:{websocket.port}"

    def stop(self) -> None:
        """Stop the broker; clients are disconnected at once. BrokerFailed if it had ended by itself."""
        with self._changing:
            self.close_captures()
            shard, self._shard = self._shard, None
            listener_groups, self._listener_groups = self._listener_groups, None
            if shard is None:
                return
            try:
                shard.close()
            finally:
                if listener_groups is not None:
                    listener_groups.close()
                if shard.has_ended:  # else it may still count there
                    shard.page.close()
        if shard.failure:
            raise BrokerFailed(f"the broker had ended: {shard.failure}")

    def restart(self) -> None:
        """Stop the broker and start it on the same ports; clients reconnect."""
        with self._changing:
            captures, self._captures = self._captures, []
            try:
                self.stop()
                self.start()
            finally:
                self._captures = captures
            self._settle_captures()

    def _on_same_ports(self) -> Options:
        fixed: dict[str, object] = {"port": self._port}
        if isinstance(block := self._given.get("websocket"), dict) and self._websocket_port:
            fixed["websocket"] = block | {"port": self._websocket_port}
        return self._checked(self._given | fixed)

    async def arestart(self) -> None:
        """restart(), awaited."""
        await on_thread(self.restart)

    def reload(self, **changes: Unpack[Keywords]) -> list[Change]:
        """Change options while it runs; returns the changes. ConfigError, BrokerFailed: nothing was changed."""
        with self._changing:
            given = self._given | dict(changes)
            running = self._running
            options = with_chosen_ports(self.options, self._checked(given), self._bound_ports())
            difference = diff(self.options, options)
            if difference.refused:
                raise BrokerFailed("\n".join(difference.refused))
            running.reload(options)
            self._given, self.options = given, options
            return list(difference.live)

    def _bound_ports(self) -> dict[str, int]:
        """The open ports, by their options."""
        groups = self._listener_groups
        ports = {"port": self._port}
        if groups is not None and groups.websocket is not None:
            ports["websocket.port"] = groups.websocket.port
        return ports

    def _leave_to_parent(self) -> None:
        super()._leave_to_parent()
        self._shard = None
        groups, self._listener_groups = self._listener_groups, None
        if groups is not None:
            groups.close()

    @property
    def is_running(self) -> bool:
        """Whether it serves."""
        return self._shard is not None and not self._shard.failure

    @property
    def log(self) -> list[str]:
        """Always []: an embedded broker logs to the logger "gnatswarm"."""
        return []

    @property
    def lines_logged(self) -> int:
        """Always 0."""
        return 0

    def log_since(self, line: int) -> list[str]:
        """Always []."""
        return []

    @property
    def connections(self) -> int:
        """The number of connected clients."""
        return self._running.page.connections

    def counts(self) -> dict[str, int]:
        """Counters since the start, by name: in_msgs, in_bytes, out_msgs, out_bytes, slow_consumers and others."""
        return self._running.page.snapshot(0)

    def disconnect_clients(self, first_cid: int = 0) -> int:
        """Disconnect all clients whose id (client_id in INFO) is `first_cid` or higher; returns how many."""
        return self._running.disconnect(first_cid)

    def next_client_id(self) -> int:
        """The lowest id that a client connecting from now on can have."""
        return self._running.page.peek_client_id()

    def shard_count(self) -> int:
        """Always 1."""
        return 1

    def published(self) -> dict[str, int]:
        """What was published so far: messages by subject, the most frequent first, without inboxes."""
        return self._running.published(MOST_PUBLISHED)

    @property
    def _running(self) -> EmbeddedShard:
        if self._shard is None:
            raise BrokerFailed(NOT_RUNNING)
        return self._shard

    def _checked(self, given: dict[str, object]) -> Options:
        """The options. ConfigError; UnknownOption; TypeError for an option that needs BrokerProcess."""
        who = "gnatswarm.Broker()"
        options = options_from(conf_text(given, who), who)
        for name, is_asked_for in (
            ("shards", options.sharding.shards > 1),
            ("accept", options.sharding.accept != "reuseport"),
            ("stats", options.stats.enabled),
            ("http_port", bool(options.http_port)),
            ("https_port", bool(options.https_port)),
            ("pid_file", bool(options.pid_file)),
            ("ports_file_dir", bool(options.ports_file_dir)),
            ("log_file", bool(options.logging.file)),
            ("trace", options.logging.trace),
            ("syslog", options.logging.syslog),
            ("remote_syslog", bool(options.logging.remote_syslog)),
            ("leafnodes", bool(options.leafnodes.remotes)),
            ("cluster", bool(options.cluster.port)),
        ):
            # (from a file, too, what connects other servers: a broker that is in no cluster is not what it asks for)
            if is_asked_for and (name in given or name in ("leafnodes", "cluster")):
                raise TypeError(f"{who}: {name} needs a broker in a process of its own: gnatswarm.BrokerProcess")
        return options


class BrokerProcess(RouterProcess, _Endpoint):
    """A broker in processes of its own: one router, and `shards` shards (default: one per core).

    Use it with `with`, `async with`, or start() and stop(). It ends when this program ends, however it ends.
    With `chaos=True`, for tests, part_shards() works.
    """

    def __init__(self, *, chaos: bool = False, **options: Unpack[Keywords]) -> None:
        _Endpoint.__init__(self)
        RouterProcess.__init__(self, options, "gnatswarm.BrokerProcess()", chaos=chaos)
        self._made_with = dict(options)
        _endpoints.add(self)

    def start(self) -> Self:
        """Start the broker and wait until clients can connect: about 0.1 s. BrokerFailed with the end of its log."""
        with self._changing:
            if not self.is_running:
                RouterProcess.start(self)
                self.starts += 1
        return self

    def stop(self) -> None:
        """Stop the broker and wait for its end: some milliseconds. If it hangs, kills it and raises BrokerFailed."""
        with self._changing:
            self.close_captures()
            RouterProcess.stop(self)

    def restart(self, *, kill: bool = False) -> None:
        """Stop it, or kill it, and start it on the same ports; clients reconnect."""
        with self._changing:
            captures, self._captures = self._captures, []
            try:
                RouterProcess.restart(self, kill=kill)
            finally:
                self._captures = captures
            self._settle_captures()

    def kill_shard(self, shard: int = 0) -> None:
        """SIGKILL a shard, and wait until its successor serves; only its own clients are disconnected."""
        RouterProcess.kill_shard(self, shard)
        self._settle_captures()

    def _checked(self, given: dict[str, object]) -> Options:
        return options_from(conf_text(given, self._who), self._who)

    def _leave_to_parent(self) -> None:
        _Endpoint._leave_to_parent(self)
        RouterProcess.leave_to_parent(self)

    # ---- awaited

    async def arestart(self, *, kill: bool = False) -> None:
        """restart(), awaited."""
        await on_thread(lambda: self.restart(kill=kill))

    async def akill(self) -> None:
        """kill(), awaited."""
        await on_thread(self.kill)

    async def akill_shard(self, shard: int = 0) -> None:
        """kill_shard(), awaited."""
        await on_thread(lambda: self.kill_shard(shard))

    async def apart_shards(self, shard: int, other: int, seconds: float) -> None:
        """part_shards(), awaited."""
        await on_thread(lambda: self.part_shards(shard, other, seconds))

    async def ascale(self, shards: int) -> None:
        """scale(), awaited."""
        await on_thread(lambda: self.scale(shards))

    async def astatus(self) -> Status:
        """status(), awaited."""
        return await on_thread(self.status)

    async def ashard_pids(self) -> list[int]:
        """shard_pids(), awaited."""
        return await on_thread(self.shard_pids)


if TYPE_CHECKING:
    # Both classes implement the protocol; mypy checks it here.
    _BROKERS: tuple[type[AnyBroker], ...] = (Broker, BrokerProcess)


def _trusting() -> ssl.SSLContext:
    """A TLS context for a broker that we have started: its certificate is not checked."""
    import ssl

    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class ExternalBroker(_Endpoint):
    """A NATS server that somebody else has started, at a URL: nats://user:password@host:4222, tls://token@host.

    For tests that also run against the server that production has. It is not ours to stop or to change: restart(),
    reload() and the like raise BrokerFailed, stop() only closes captures, and clients are not disconnected. tls://
    checks the certificate against the machine's authorities, or SSL_CERT_FILE.
    """

    def __init__(self, url: str) -> None:
        super().__init__()
        try:
            parts = urlsplit(url if "://" in url else f"nats://{url}")
            port = parts.port or 4222
        except ValueError as error:
            raise ValueError(f"not the URL of a NATS server: {error}") from None
        if parts.scheme not in ("nats", "tls") or not parts.hostname or parts.path not in ("", "/"):
            raise ValueError("not the URL of a NATS server: write nats://host:4222 or tls://host:4222")
        user, password = unquote(parts.username or ""), unquote(parts.password or "")
        is_token = parts.password is None
        self.options = Options(
            host=parts.hostname,
            port=port,
            auth_token=user if is_token else "",
            auth_user="" if is_token else user,
            auth_password=password,
        )
        self.websocket_url = ""
        self._has_answered = False
        self.log: list[str] = []  # it is elsewhere
        self.lines_logged = 0
        self._is_tls = parts.scheme == "tls"
        self._port = port
        self._changing = threading.RLock()
        self._deadline_s = EXTERNAL_DEADLINE_S

    @property
    def url(self) -> str:
        """As given, without credentials."""
        host = self.host if ":" not in self.host else f"[{self.host.strip('[]')}]"
        return f"{'tls' if self._is_tls else 'nats'}://{host}:{self.port}"

    def start(self) -> Self:
        """Wait until it answers: up to 10 seconds the first time, as a container may just have been started."""
        until = time.monotonic() + self._deadline_s
        while True:
            try:
                with socket.create_connection((self.host.strip("[]"), self.port), timeout=2.0) as sock:
                    if not sock.recv(5).startswith(b"INFO "):
                        raise BrokerFailed(f"at {self.url} is no NATS server: it does not begin with INFO")
                break
            except OSError as error:
                if time.monotonic() > until:
                    self._deadline_s = 0.0  # not again for every test
                    raise BrokerFailed(f"no NATS server answers at {self.url}: {error}") from None
                time.sleep(0.1)
        self.starts, self._has_answered = 1, True
        return self

    @property
    def is_running(self) -> bool:
        """Whether it has answered."""
        return self._has_answered

    def stop(self) -> None:
        """Close what capture() has made; the server goes on."""
        self.close_captures()

    def log_since(self, line: int) -> list[str]:
        """Nothing: its log is elsewhere."""
        return []

    def _refused(self, what: str) -> NoReturn:
        text = "a test that needs that takes `gnatswarm_fresh`, or has options of its own"
        raise BrokerFailed(f"{self.url} is not ours to {what}: {text}")

    def restart(self, *, kill: bool = False) -> None:
        """Always raises BrokerFailed."""
        self._refused("restart")

    async def arestart(self, *, kill: bool = False) -> None:
        """Always raises BrokerFailed."""
        self._refused("restart")

    def reload(self, **changes: Unpack[Keywords]) -> list[Change]:
        """Always raises BrokerFailed."""
        self._refused("reload")

    def scale(self, shards: int) -> None:
        """Always raises BrokerFailed."""
        self._refused("scale")

    def kill_shard(self, shard: int = 0) -> None:
        """Always raises BrokerFailed."""
        self._refused("kill a shard of")

    def disconnect_clients(self, first_cid: int = 0) -> int:
        """Always raises BrokerFailed."""
        self._refused("disconnect clients of")

    def next_client_id(self) -> int:
        """Always raises BrokerFailed."""
        self._refused("ask for client ids")

    def shard_count(self) -> int:
        """Always raises BrokerFailed."""
        self._refused("ask for shards")

    def published(self) -> dict[str, int]:
        """Always {}: not known."""
        return {}

    def _login(self, user: str = "", password: str = "", token: str = "", tls: ssl.SSLContext | None = None) -> Login:
        if tls is None and self._is_tls:
            import ssl

            tls = ssl.create_default_context()
        login = super()._login(user, password, token, tls)
        return dataclasses.replace(login, tls_hostname=login.host)
