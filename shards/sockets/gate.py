"""Gates: what happens on a new connection of one port before the NATS protocol: PROXY header, TLS, WebSocket upgrade.

One gate serves all connections of a port until a reload makes another one; established connections are unaffected. A
plain port has no gate, and imports nothing of this.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl

    from gnatswarm.broker.options import Options
    from gnatswarm.shards.sockets.frames import Frames
    from gnatswarm.shards.sockets.frozen_socket import FrozenFrames


class Gate:
    """The parameters of a shards.sockets.layered.LayeredSocket."""

    __slots__ = (
        "allows_plain",
        "context",
        "fallback_s",
        "frames",
        "is_silent",
        "reads_proxy_header",
        "server_hostname",
        "timeout_us",
    )

    def __init__(
        self,
        *,
        timeout_s: float,
        context: ssl.SSLContext | None = None,
        allows_plain: bool = False,
        is_silent: bool = False,
        fallback_s: float = 0.0,
        frames: Callable[[FrozenFrames | None], Frames] | None = None,
        server_hostname: str = "",
        reads_proxy_header: bool = False,
    ) -> None:
        self.timeout_us = int(timeout_s * 1_000_000)
        self.context = context  # None: no TLS
        self.allows_plain = allows_plain  # a client that does not begin with a TLS handshake is served without TLS
        self.is_silent = is_silent  # INFO is sent only after the handshake, …
        self.fallback_s = fallback_s  # … or after this time without one; 0: never
        self.server_hostname = (
            server_hostname  # the server that we dialled: we begin the handshake; "": we were dialled
        )
        self.reads_proxy_header = reads_proxy_header  # of a load balancer, before everything else
        self.frames = frames  # makes the WebSocket state of a new connection (None), or of one that moves here


def client_gate(options: Options) -> Gate | None:
    """The gate of the clients' port; None: plain. Raises CertificateError."""
    tls = options.tls
    if not tls.is_on:
        return Gate(timeout_s=0, reads_proxy_header=True) if options.proxy_protocol else None
    from gnatswarm.shards.boundary.certificates import server_context

    return Gate(
        context=server_context(tls),
        timeout_s=tls.timeout_s,
        allows_plain=options.allow_non_tls,
        is_silent=tls.handshake_first,
        fallback_s=tls.handshake_fallback_s,
        reads_proxy_header=options.proxy_protocol,
    )


def websocket_gate(options: Options) -> Gate | None:
    """The gate of the WebSocket port; None: there is no such port. Raises CertificateError."""
    websocket = options.websocket
    if not websocket.port:
        return None
    from gnatswarm.shards.sockets.frames import frames_factory

    context = None
    if websocket.tls.is_on:
        from gnatswarm.shards.boundary.certificates import server_context

        context = server_context(websocket.tls)
    return Gate(context=context, timeout_s=websocket.handshake_timeout_s, frames=frames_factory(options))
