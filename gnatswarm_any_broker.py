"""AnyBroker: the interface of a broker, in this process or in processes of its own.

A protocol for annotations: `gnatswarm.Broker` and `gnatswarm.BrokerProcess` implement it, and the pytest plugin's
fixtures return it. Two rules hold for all of it: attributes do no I/O, and every method `x()` that blocks has a twin
`ax()` that is awaited and leaves the event loop free.
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
    """The arguments of nats-py's `nats.connect()` that a broker can supply."""

    servers: list[str]
    user: str
    password: str
    token: str
    tls: ssl.SSLContext
    tls_hostname: str
    tls_handshake_first: bool


class AnyBroker(Protocol):
    """A broker that a program starts. Methods that need a running broker raise BrokerFailed if it does not run."""

    @property
    def options(self) -> Options:
        """The present options."""

    @property
    def host(self) -> str:
        """The host that programs on this machine connect to."""

    @property
    def port(self) -> int:
        """The clients' port. BrokerFailed before the first start."""

    @property
    def url(self) -> str:
        """URL for clients: nats://127.0.0.1:4222, or tls://… if it has TLS. BrokerFailed before the first start."""

    @property
    def websocket_url(self) -> str:
        """URL for WebSocket clients; "" if there is no port for them, or before the first start."""

    @property
    def connect_options(self) -> ConnectOptions:
        """Arguments for `nats.connect(**broker.connect_options)`, with the first user's credentials."""

    @property
    def is_running(self) -> bool:
        """Whether the broker runs."""

    @property
    def starts(self) -> int:
        """How many times it has been started."""

    @property
    def log(self) -> list[str]:
        """The last lines of its log; [] if the log goes to `logging` (embedded broker) or to a file."""

    @property
    def lines_logged(self) -> int:
        """The number of log lines so far, for log_since()."""

    def log_since(self, line: int) -> list[str]:
        """The log lines from number `line` on, as far as they are kept."""

    def start(self) -> Self:
        """Start the broker and wait until clients can connect; does nothing if it runs. BrokerFailed."""

    async def astart(self) -> Self:
        """start(), awaited."""

    def stop(self) -> None:
        """Stop the broker and its captures; does nothing if it does not run. BrokerFailed if it had ended by itself."""

    async def astop(self) -> None:
        """stop(), awaited."""

    def restart(self) -> None:
        """Stop the broker and start it on the same ports; clients reconnect, captures continue."""

    async def arestart(self) -> None:
        """restart(), awaited."""

    def reload(self, **changes: Unpack[Keywords]) -> list[Change]:
        """Change options while it runs; returns the changes. ConfigError, BrokerFailed: nothing was changed."""

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
        """Collect the messages that are published on a subject from now on. CaptureError."""

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
        """Close all captures; stop() does this too."""

    async def aclose_captures(self) -> None:
        """close_captures(), awaited."""

    def disconnect_clients(self, first_cid: int = 0) -> int:
        """Disconnect all clients whose id (client_id in INFO) is `first_cid` or higher; returns how many."""

    async def adisconnect_clients(self, first_cid: int = 0) -> int:
        """disconnect_clients(), awaited."""

    def next_client_id(self) -> int:
        """The lowest id that a client connecting from now on can have."""

    async def anext_client_id(self) -> int:
        """next_client_id(), awaited."""

    def shard_count(self) -> int:
        """The requested number of shards."""

    async def ashard_count(self) -> int:
        """shard_count(), awaited."""

    def published(self) -> dict[str, int]:
        """What was published so far: messages by subject, the most frequent first, without inboxes."""

    async def apublished(self) -> dict[str, int]:
        """published(), awaited."""

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
