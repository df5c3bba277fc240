"""gnatswarm from Python: a NATS-compatible broker inside a program, or in a process that it starts.

    with gnatswarm.Broker() as broker:                       # one shard, on a thread of this process
        publish_something(broker.url)

    async with gnatswarm.BrokerProcess(shards=4) as broker:  # several shards, in processes of their own
        await broker.akill_shard(2)

Both are in `gnatswarm.embedding`; its docstring says more. Importing this package does not import that module, because
every process of a broker and every test run with the plugin imports this package first.
"""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers take it as true; importing `typing` would slow the start
if TYPE_CHECKING:
    from gnatswarm.any_broker import AnyBroker, ConnectOptions
    from gnatswarm.capture import Capture, CaptureError, Message
    from gnatswarm.chaos import Chaos, Fault
    from gnatswarm.embedding import Broker, BrokerProcess, ExternalBroker
    from gnatswarm.router.broker_process import BrokerFailed
    from gnatswarm.router.config.conf_tree import ConfigError
    from gnatswarm.router.config.keywords import Keywords, UnknownOption
    from gnatswarm.router.config.reload import Change
    from gnatswarm.router.supervision.operator_socket import Status

    __version__: str

__all__ = [
    "AnyBroker",
    "Broker",
    "BrokerFailed",
    "BrokerProcess",
    "Capture",
    "CaptureError",
    "Change",
    "Chaos",
    "ConfigError",
    "ConnectOptions",
    "ExternalBroker",
    "Fault",
    "Keywords",
    "Message",
    "Status",
    "UnknownOption",
    "__version__",
]


def __getattr__(name: str) -> object:
    """A public name, imported on first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "__version__":
        from gnatswarm.broker.version import OWN_VERSION

        return OWN_VERSION
    from gnatswarm import chaos, embedding

    found: object = getattr(chaos if name in ("Chaos", "Fault") else embedding, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
