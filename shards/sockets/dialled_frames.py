"""The client's side of one WebSocket connection, to a hub that is reached so: the upgrade that we ask for, then frames.

As `shards.sockets.frames`, with the same library, of which it is the other end. The path, the headers and what is
agreed on are those of nats-server: /leafnode, compression without context, and frames that are not masked if the hub
agrees.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from websockets.client import ClientProtocol
from websockets.exceptions import NegotiationError
from websockets.extensions.permessage_deflate import ClientPerMessageDeflateFactory
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.uri import parse_uri

from gnatswarm.broker.errors import CloseReason
from gnatswarm.shards.sockets.frames import (
    COMPRESSION_LEVEL,
    NO_MASKING,
    Frames,
    silent,
)

if TYPE_CHECKING:
    from websockets.protocol import Event


class DialledFrames(Frames):
    """The WebSocket state of a connection to `url` (ws:// or wss://); frames have at most `most_bytes`."""

    __slots__ = ("_masks",)

    def __init__(self, url: str, *, most_bytes: int, is_compressed: bool, masks: bool) -> None:
        extensions = [
            ClientPerMessageDeflateFactory(
                server_no_context_takeover=True,
                client_no_context_takeover=True,
                compress_settings={"level": COMPRESSION_LEVEL},
            )
        ]
        self._protocol: ClientProtocol = ClientProtocol(
            parse_uri(url),
            extensions=extensions if is_compressed else None,
            max_size=(None, most_bytes),
            logger=silent,
        )
        self._read_in_turns(most_bytes)
        self.is_open = False
        self.is_leaf = False  # (the hub is)
        self.is_masked = False
        self.is_over = False
        self.error = ""
        self.close_reason = CloseReason.CLIENT_CLOSED
        self.credentials = None
        self._masks = True
        request = self._protocol.connect()
        if not masks:
            request.headers[NO_MASKING] = "true"
        self._protocol.send_request(request)

    def _open(self, events: list[Event]) -> list[Event]:
        protocol = self._protocol
        error = protocol.handshake_exc
        if error is not None:
            if isinstance(error, NegotiationError):
                why = f"compression negotiation error: {error}"
            else:
                why = str(error.__cause__ or error)
            self._refuse(f"the hub does not upgrade to WebSocket: {why[:200]}")
        elif events:
            self.is_open = True
            response = events[0]
            assert isinstance(response, Response)
            self._masks = response.headers.get(NO_MASKING, "").lower() != "true"
        return events[1:]

    def frame(self, data: bytes) -> bytes:
        """A piece of our NATS stream as a WebSocket message, compressed where compresses() says so."""
        extensions = list(self._protocol.extensions) if self.compresses(len(data)) else None
        return Frame(Opcode.BINARY, data).serialize(mask=self._masks, extensions=extensions)

    def plain_frame(self, data: bytes) -> bytes:
        """The same, and never compressed."""
        return Frame(Opcode.BINARY, data).serialize(mask=self._masks)
