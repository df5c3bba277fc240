"""The limits that a broker enforces, each with default and unit; read at start and reload, passed as one struct.

Defaults are nats-server 2.9.10's, because clients were written for them.
"""

import msgspec


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Per-connection and broker-wide limits. 0 means "no limit" only where it says so."""

    max_payload_bytes: int = 1024 * 1024  # payload and header together; a larger message gets -ERR and a close
    max_control_line_bytes: int = 4096  # arguments of one operation, verb and CRLF not counted
    max_connections: int = 65_536  # over the whole broker; -1 or 0: no limit; 0 with compatibility "2.9": the default
    max_subscriptions: int = 0  # per client, and per connection of a leaf node or to a hub; 0: no limit
    max_subject_tokens: int = 0  # 1 to 255: of the subject of a subscription; 0: no limit
    max_pending_bytes: int = 64 * 1024 * 1024  # bytes queued for one client; above it, the client is a slow consumer
    write_deadline_s: float = 10.0  # a client that takes none of its pending bytes for so long is a slow consumer
    write_timeout: str = "default"  # what becomes of it then: "close" (as "default"), or "retry": it stays
    auth_timeout_s: float = 2.0  # from accept to a valid CONNECT, where one must log in; with tls: its timeout and 1 s
    ping_interval_s: float = 120.0  # a client that is idle for so long gets a PING
    ping_max: int = 2  # unanswered PINGs before 'Stale Connection'
    max_closed_clients: int = 10_000  # how many of each shard /connz?state=closed shows, in 4 KB each; at least 1
    lame_duck_grace_s: float = 10.0  # between the ldm INFO and the first close
    lame_duck_duration_s: float = 120.0  # all of lame duck mode; closes are spread, few of them by a second each
