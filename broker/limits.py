"""The limits a broker enforces, each with its default, unit and reason; read once at start, passed whole.

Defaults are nats-server 2.9.10's, because clients were written against them.
"""

from __future__ import annotations

import msgspec

# The bounds of what an operator may ask for. One payload has to fit one allocation, one control line
# has to fit the read buffer beside a payload, and a broker with a pending limit under one payload
# could deliver nothing.
LARGEST_MAX_PAYLOAD_BYTES = 64 * 1024 * 1024
LARGEST_MAX_CONTROL_LINE_BYTES = 128 * 1024

# "No limit", where the real server takes -1 for it: more connections than one host's ports and memory allow.
NO_MAX_CONNECTIONS = 2**31 - 1

# The real server's own bounds: it warns of payloads over the one, and refuses a shorter lame duck than the other.
DISCOURAGED_MAX_PAYLOAD_BYTES = 8 * 1024 * 1024
SHORTEST_LAME_DUCK_DURATION_S = 30.0


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Per-connection and broker-wide limits. 0 means "no limit" only where it says so."""

    max_payload_bytes: int = 1024 * 1024  # payload and header together; past it -ERR and close
    max_control_line_bytes: int = 4096  # arguments of one operation, verb and CRLF not counted
    max_connections: int = 65_536  # over the whole broker
    max_subscriptions: int = 0  # per client; 0: no limit
    max_pending_bytes: int = 64 * 1024 * 1024  # queued for one client; past it a slow consumer
    write_deadline_s: float = 10.0  # bytes pending and none taken for so long: a slow consumer
    auth_timeout_s: float = 2.0  # from accept to a good CONNECT, where authentication is required
    ping_interval_s: float = 120.0  # idle for so long: PING
    ping_max: int = 2  # unanswered PINGs before 'Stale Connection'
    lame_duck_grace_s: float = 10.0  # between the ldm INFO and the first close
    lame_duck_duration_s: float = 120.0  # over which a lame duck's closes are spread
