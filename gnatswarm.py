"""gnatswarm from Python: a NATS-compatible broker inside a program, or in a process that it starts.

    async with gnatswarm.Broker() as broker:                 # one shard, on a thread of this process
        client = await nats.connect(broker.url)

    with gnatswarm.BrokerProcess(shards=4) as broker:        # several shards, in processes of their own
        broker.kill_shard(2)

Both listen on a free port of 127.0.0.1 unless told otherwise, take every option of the configuration file as a
keyword (`Keywords`), leave nothing behind, work with and without an event loop, and can show what is published:
`broker.capture("orders.>")`. Methods block, for milliseconds; a program may call them from its event loop all the same,
because the broker is on another.

Errors: UnknownOption (a TypeError) for a keyword that there is not, ConfigError for a value that cannot be,
BrokerFailed for a broker that does not do what it should.
"""

from __future__ import annotations

import asyncio
import base64
import importlib.util
import os
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    import ssl
    from typing import Unpack

# `broker`, `shards` and `router` are common words: whatever of that name Python finds has to be ours.
_HERE = os.path.dirname(os.path.abspath(__file__))
for _name in ("broker", "shards", "router"):
    _spec = importlib.util.find_spec(_name)
    _found = os.path.dirname(os.path.dirname(os.path.abspath(_spec.origin or ""))) if _spec is not None else ""
    if _found != _HERE:
        raise ImportError(
            f"gnatswarm needs its own package {_name!r}, in {_HERE}, and Python finds "
            + (
                f"another one in {_found}: take that directory off PYTHONPATH, or do not start there"
                if _spec
                else "none"
            )
        )

from broker.conf_tree import ConfigError  # noqa: E402
from broker.options import Options  # noqa: E402
from broker.version import OWN_VERSION  # noqa: E402
from gnatswarm_capture import Capture, CaptureError, Login, Message  # noqa: E402
from router.broker_process import BrokerFailed, RouterProcess, dialled  # noqa: E402
from router.keywords import Keywords, UnknownOption, conf_text, options_from  # noqa: E402

__all__ = [
    "Broker",
    "BrokerFailed",
    "BrokerProcess",
    "Capture",
    "CaptureError",
    "ConfigError",
    "Keywords",
    "Message",
    "UnknownOption",
    "__version__",
]

__version__ = OWN_VERSION


class _Endpoint:
    """What a program sees of a running broker, wherever that runs."""

    options: Options
    port: int = 0  # of its clients; 0: not started yet

    def __init__(self) -> None:
        self._captures: list[Capture] = []

    def start(self) -> Self:
        """Start it, and wait until clients can connect."""
        raise NotImplementedError

    def stop(self) -> None:
        """Stop it; nothing when it does not run."""
        raise NotImplementedError

    @property
    def host(self) -> str:
        """How programs on this machine dial it."""
        return dialled(self.options.host)

    @property
    def url(self) -> str:
        """For a client: nats://127.0.0.1:4222, or tls://… where it encrypts. Without credentials."""
        scheme = "tls" if self.options.tls.is_on and not self.options.allow_non_tls else "nats"
        return f"{scheme}://{self.host}:{self.port}"

    @property
    def connect_options(self) -> dict[str, Any]:
        """What `nats.connect(**broker.connect_options)` of nats-py needs, the first user's credentials included.

        Encrypted connections trust any certificate: whoever started the broker knows that it is this one.
        """
        login = self._login({})
        found: dict[str, Any] = {"servers": [self.url]}
        if login.token:
            found["token"] = login.token
        elif login.user:
            found |= {"user": login.user, "password": login.password}
        if login.tls is not None:
            found |= {"tls": login.tls, "tls_hostname": "localhost"}
            if login.tls_first:
                found["tls_handshake_first"] = True
        return found

    def capture(self, subject: str, *, queue: str = "", **login: Any) -> Capture:
        """Collect what is published on a subject, wildcards included, from when this returns to when the broker stops.

        Logs in as the first user there is, or with `user` and `password`, `token`, `tls` (an SSLContext) as given.
        CaptureError when the broker refuses it.
        """
        capture = Capture(self._login(login), subject, queue=queue)
        self._captures.append(capture)
        return capture

    async def connect(self, **options: Any) -> Any:
        """A client of nats-py (`pip install nats-py`), connected and logged in; `options` are nats.connect's own."""
        try:
            import nats
        except ImportError:
            raise ImportError("connect() needs the NATS client for Python: pip install nats-py") from None
        return await nats.connect(**(self.connect_options | options))

    def _login(self, given: dict[str, Any]) -> Login:
        options = self.options
        known: dict[str, Any] = {}
        if not given.keys() & {"user", "password", "token"}:
            if options.auth_token:
                known["token"] = options.auth_token
            elif options.auth_user:
                known |= {"user": options.auth_user, "password": options.auth_password}
            elif options.users and not options.no_auth_user:
                known |= {"user": options.users[0].name, "password": options.users[0].password}
        if "tls" not in given and options.tls.is_on and not options.allow_non_tls:
            known |= {"tls": _trusting(), "tls_first": options.tls.handshake_first}
        return Login(host=self.host.strip("[]"), port=self.port, **known, **given)

    def _settle_captures(self) -> None:
        """After a restart: they are subscribed again, or this raises."""
        for capture in self._captures:
            capture.settle()

    def close_captures(self) -> None:
        """Close what capture() has made; stop() does so, too."""
        for capture in self._captures:
            capture.close()
        self._captures.clear()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.start)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.stop)


class Broker(_Endpoint):
    """A broker of one shard inside this process; `with`, `async with`, or start() and stop().

    It has a thread and an event loop of its own, so it serves while the program blocks, and whatever loop that runs;
    both share the interpreter's lock. What it has to say goes to the logger "gnatswarm". Several of them are several
    brokers. What needs a process of its own (shards, statistics, monitoring pages, files, tracing) is BrokerProcess.
    """

    def __init__(self, **options: Unpack[Keywords]) -> None:
        super().__init__()
        self._given: dict[str, object] = dict(options)
        self.options = self._checked(self._given)
        self._doors: Any = None
        self._shard: Any = None
        self.websocket_url = ""
        self.server_id = ""  # another one after each start

    def start(self) -> Self:
        """Start it: some milliseconds, and some tens more for the first one of a process. BrokerFailed."""
        if self._shard is not None:
            return self
        # Not before they are needed: a program that only asks for a BrokerProcess pays for none of it.
        from router.doors import Doors
        from router.listeners import ListenError
        from shards.embedded import EmbeddedShard

        # As long as a server's public key, as some clients' tests want it; it signs nothing.
        self.server_id = server_id = "N" + base64.b32encode(os.urandom(35)).decode()[:55]
        try:
            doors = Doors(self.options, 1, is_handoff=False)
        except ListenError as error:
            raise BrokerFailed(str(error)) from None
        try:
            self._shard = EmbeddedShard(
                self.options,
                doors.client_fds(0),
                doors.websocket_fds(0),
                server_id=server_id,
                server_name=self.options.server_name or server_id,
                port=doors.clients.port,
            )
        except BaseException:
            doors.close()
            raise
        self._doors = doors
        self.port = doors.clients.port
        if doors.websocket is not None:
            host = dialled(self.options.websocket.host)
            self.websocket_url = f"{doors.websocket_scheme}://{host}:{doors.websocket.port}"
        return self

    def stop(self) -> None:
        """Stop it; clients are disconnected at once. BrokerFailed when it had ended by itself."""
        self.close_captures()
        shard, self._shard = self._shard, None
        if shard is None:
            return
        shard.close()
        self._doors.close()
        shard.page.close()
        if shard.failure:
            raise BrokerFailed(f"the broker had ended: {shard.failure}")

    def restart(self) -> None:
        """Stop it and start it on the same ports; clients reconnect."""
        captures, self._captures = self._captures, []
        websocket_port = self._doors.websocket.port if self._doors and self._doors.websocket else 0
        self.stop()
        fixed: dict[str, object] = {"port": self.port}
        if isinstance(block := self._given.get("websocket"), dict) and websocket_port:
            fixed["websocket"] = block | {"port": websocket_port}
        self.options = self._checked(self._given | fixed)
        self._captures = captures
        self.start()
        self._settle_captures()

    def reload(self, **changes: Unpack[Keywords]) -> None:
        """Change options while clients talk, all of these or, with ConfigError or BrokerFailed, none."""
        from router.reload import diff

        given = self._given | dict(changes)
        options = self._checked(given | {"port": self.options.port})
        refused = diff(self.options, options).refused
        if refused:
            raise BrokerFailed("\n".join(refused))
        self._running.reload(options)
        self._given, self.options = given, options

    @property
    def is_running(self) -> bool:
        """Whether it serves."""
        return self._shard is not None and not self._shard.failure

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return int(self._running.page.connections)

    def counts(self) -> dict[str, int]:
        """in_msgs, in_bytes, out_msgs, out_bytes, subscriptions, slow_consumers, … since the start."""
        return dict(self._running.page.snapshot(0))

    def disconnect_clients(self, first_cid: int = 0) -> int:
        """Disconnect every client, or those whose id (client_id in INFO) is that or higher; how many there were."""
        return int(self._running.disconnect(first_cid))

    def next_client_id(self) -> int:
        """Clients that connect from now on have this id or a higher one."""
        return int(self._running.page.next_client_id())

    @property
    def _running(self) -> Any:
        if self._shard is None:
            raise BrokerFailed("the broker has not been started, or has been stopped")
        return self._shard

    @staticmethod
    def _checked(given: dict[str, object]) -> Options:
        """ConfigError and UnknownOption; TypeError for what only a process can have."""
        who = "gnatswarm.Broker()"
        options = options_from(conf_text(given, who), who)
        for name, is_asked_for in (
            ("shards", options.swarm.shards > 1),
            ("accept", options.swarm.accept != "reuseport"),
            ("stats", options.stats.enabled),
            ("http_port", bool(options.http_port)),
            ("https_port", bool(options.https_port)),
            ("pid_file", bool(options.pid_file)),
            ("ports_file_dir", bool(options.ports_file_dir)),
            ("log_file", bool(options.logging.file)),
            ("trace", options.logging.trace),
        ):
            if is_asked_for and name in given:
                raise TypeError(f"{who}: {name} needs a broker in a process of its own: gnatswarm.BrokerProcess")
        return options


class BrokerProcess(RouterProcess, _Endpoint):
    """A broker in processes of its own, one router and as many shards as `shards` says, by default one per core.

    `with`, `async with`, or start() and stop(). It ends with this program, however that ends.
    """

    def __init__(self, **options: Unpack[Keywords]) -> None:
        _Endpoint.__init__(self)
        RouterProcess.__init__(self, options, "gnatswarm.BrokerProcess()")

    def start(self) -> Self:
        """Start it and wait until clients can connect: some tenth of a second. BrokerFailed with its last words."""
        RouterProcess.start(self)
        return self

    def stop(self) -> None:
        """Stop it and wait until it has, some milliseconds; kills one that hangs, and says so by BrokerFailed."""
        self.close_captures()
        RouterProcess.stop(self)

    def restart(self, *, kill: bool = False) -> None:
        """Stop it, or kill it, and start it on the same ports; clients reconnect."""
        captures, self._captures = self._captures, []
        try:
            RouterProcess.restart(self, kill=kill)
        finally:
            self._captures = captures
        self._settle_captures()

    def kill_shard(self, shard: int = 0) -> None:
        """SIGKILL a shard, and wait until its successor serves; its clients are cut off, nobody else's."""
        RouterProcess.kill_shard(self, shard)
        self._settle_captures()


def _trusting() -> ssl.SSLContext:
    """For connections to a broker of ours: what it shows is not compared with any authority."""
    import ssl

    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
