from collections.abc import Callable
from typing import Any, final

from gnatswarm.broker.fanout import AccountGate, Fanout
from gnatswarm.broker.service_latency import Measured

DEFAULT_THRESHOLD_US: int

@final
class ServiceImports(AccountGate):
    def __init__(self, fanout: Fanout, shard: int, *, adds_headers: bool = True) -> None: ...
    @property
    def reply_prefix(self) -> bytes: ...
    @property
    def waiting(self) -> int: ...
    @property
    def n_requests(self) -> int: ...
    @property
    def n_replies(self) -> int: ...
    @property
    def n_expired(self) -> int: ...
    clock_ns: Callable[[], int] | None
    describe: Callable[[Any], dict[str, Any]] | None
    on_latency: Callable[[Measured, int, Any, int, int], None] | None
    on_measured_reply: Callable[[Any, bytes], None] | None
    system_account: bytes | None
    def sweep(self) -> None: ...
    def on_client_gone(self, cid: int, most: int) -> bool: ...
