"""TLS for the monitoring pages: does the handshake on an accepted socket and returns streams.

A client that speaks plain HTTP gets an error in plain HTTP, as from nats-server. This module bounds the time; the
caller bounds the number of connections.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl

logger = logging.getLogger("gnatswarm.monitor")

# The first byte of a TLS handshake record.
HANDSHAKE = b"\x16"
PLAIN = b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def streams_past_handshake(
    sock: socket.socket, context: ssl.SSLContext, *, limit: int, deadline_s: float
) -> Streams | None:
    """Streams with this buffer limit; None when the handshake failed or took too long. Takes over the socket."""
    loop = asyncio.get_running_loop()
    sock.setblocking(False)
    try:
        async with asyncio.timeout(deadline_s):
            if await _first_byte(sock) != HANDSHAKE:
                await loop.sock_sendall(sock, PLAIN)
                sock.close()
                return None
            reader = asyncio.StreamReader(limit=limit, loop=loop)
            protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol, sock, ssl=context, ssl_handshake_timeout=deadline_s
            )
            return reader, asyncio.StreamWriter(transport, protocol, reader, loop)
    except (OSError, TimeoutError) as error:  # an SSLError is an OSError
        logger.debug("TLS handshake of a monitoring connection failed: %s", error or "it took too long")
        sock.close()
        return None


async def _first_byte(sock: socket.socket) -> bytes:
    """The first byte from the client, which stays in the socket."""
    loop = asyncio.get_running_loop()
    is_readable = asyncio.Event()
    loop.add_reader(sock.fileno(), is_readable.set)
    try:
        await is_readable.wait()
    finally:
        loop.remove_reader(sock.fileno())
    return sock.recv(1, socket.MSG_PEEK)
