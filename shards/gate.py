"""Gates: what a new connection of one listener has to pass before it speaks the protocol.

TLS in its forms, the WebSocket upgrade, or both. One gate serves all connections of a listener, until a reload makes
another; connections that are through keep what they have. None at all: plain, and nothing of this is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl

    from broker.options import Options
    from shards.frames import Frames


class Gate:
    """What shards.layered.LayeredSocket is made with."""

    __slots__ = ("allows_plain", "context", "fallback_s", "frames", "is_silent", "timeout_us")

    def __init__(
        self,
        *,
        timeout_s: float,
        context: ssl.SSLContext | None = None,
        allows_plain: bool = False,
        is_silent: bool = False,
        fallback_s: float = 0.0,
        frames: Callable[[], Frames] | None = None,
    ) -> None:
        self.timeout_us = int(timeout_s * 1_000_000)
        self.context = context  # None: no TLS
        self.allows_plain = allows_plain  # who begins with something else than a handshake is let in as it is
        self.is_silent = is_silent  # no INFO before the handshake …
        self.fallback_s = fallback_s  # … but after so long all the same; 0: never
        self.frames = frames  # makes the WebSocket end of one connection


def client_gate(options: Options) -> Gate | None:
    """Of the clients' port. CertificateError."""
    tls = options.tls
    if not tls.is_on:
        return None
    from shards.certificates import server_context

    return Gate(
        context=server_context(tls),
        timeout_s=tls.timeout_s,
        allows_plain=options.allow_non_tls,
        is_silent=tls.handshake_first,
        fallback_s=tls.handshake_fallback_s,
    )


def websocket_gate(options: Options) -> Gate | None:
    """Of the WebSocket port. CertificateError."""
    websocket = options.websocket
    if not websocket.port:
        return None
    from shards.frames import frames_factory

    context = None
    if websocket.tls.is_on:
        from shards.certificates import server_context

        context = server_context(websocket.tls)
    return Gate(context=context, timeout_s=websocket.handshake_timeout_s, frames=frames_factory(options))
