"""AnyBroker: what a running broker offers a program, wherever it runs.

A protocol for annotations: `gnatswarm.Broker` and `gnatswarm.BrokerProcess` both are one, and so is what the pytest
plugin's fixtures give. Two rules hold for all of it: attributes do no I/O, and every method `x()` that blocks has a
twin `ax()` that is awaited and leaves the event loop free.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypedDict

if TYPE_CHECKING:
    import ssl
    from typing import Unpack

    from nats.aio.client import Client as NatsClient

    from gnatswarm.broker.options import Options
    from gnatswarm.capture import Capture
    from gnatswarm.router.config.keywords import Keywords
    from gnatswarm.router.config.reload import Change


class ConnectOptions(TypedDict, total=False):
    """What `nats.connect()` of nats-py takes, as far as a broker knows it."""

    servers: list[str]
    user: str
    password: str
    token: str
    tls: ssl.SSLContext
    tls_hostname: str
    tls_handshake_first: bool


class AnyBroker(Protocol):
    """A broker that a program has started, or will. What needs a running one raises BrokerFailed where none runs."""

    @property
    def options(self) -> Options:
        """As they hold now."""

    @property
    def host(self) -> str:
        """How programs on this machine dial it."""

    @property
    def port(self) -> int:
        """Of its clients. BrokerFailed before the first start."""

    @property
    def url(self) -> str:
        """For a client: nats://127.0.0.1:4222, or tls://… where it encrypts. BrokerFailed before the first start."""

    @property
    def websocket_url(self) -> str:
        """For a WebSocket client; "": there is no port for them, or it has not been started."""

    @property
    def connect_options(self) -> ConnectOptions:
        """For `nats.connect(**broker.connect_options)`, the first user's credentials included."""

    @property
    def is_running(self) -> bool:
        """Whether it serves."""

    @property
    def starts(self) -> int:
        """How often it has been started."""

    @property
    def log(self) -> list[str]:
        """The last lines of its log; none where that goes to `logging` (of an embedded broker) or to a file."""

    @property
    def lines_logged(self) -> int:
        """How many lines of log there have been: for log_since()."""

    def log_since(self, line: int) -> list[str]:
        """The lines of log from that number on, as far as they are kept."""

    def start(self) -> Self:
        """Start it, and wait until clients can connect; nothing when it runs. BrokerFailed."""

    async def astart(self) -> Self:
        """start(), awaited."""

    def stop(self) -> None:
        """Stop it, and close its captures; nothing when it does not run. BrokerFailed when it had ended by itself."""

    async def astop(self) -> None:
        """stop(), awaited."""

    def restart(self) -> None:
        """Stop it and start it on the same ports; clients reconnect, captures go on."""

    async def arestart(self) -> None:
        """restart(), awaited."""

    def reload(self, **changes: Unpack[Keywords]) -> list[Change]:
        """Change options while clients talk; what has changed. ConfigError or BrokerFailed: nothing has, and why."""

    async def areload(self, **changes: Unpack[Keywords]) -> list[Change]:
        """reload(), awaited."""

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
        """Collect what is published on a subject from now on. CaptureError."""

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
        """capture(), awaited."""

    def close_captures(self) -> None:
        """Close all that capture() has made; stop() does so, too."""

    async def aclose_captures(self) -> None:
        """close_captures(), awaited."""

    def disconnect_clients(self, first_cid: int = 0) -> int:
        """Disconnect every client, or those whose id (client_id in INFO) is that or higher; how many there were."""

    async def adisconnect_clients(self, first_cid: int = 0) -> int:
        """disconnect_clients(), awaited."""

    def next_client_id(self) -> int:
        """Clients that connect from now on have this id or a higher one."""

    async def anext_client_id(self) -> int:
        """next_client_id(), awaited."""

    def shard_count(self) -> int:
        """How many shards it is to run."""

    async def ashard_count(self) -> int:
        """shard_count(), awaited."""

    async def connect(self, **options: Any) -> NatsClient:
        """A client of nats-py, connected and logged in; `options` are nats.connect's own. ImportError."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...
