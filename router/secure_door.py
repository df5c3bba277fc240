"""The door of the monitoring pages where they are encrypted: a socket that was accepted in, streams past TLS out.

Who speaks plain HTTP there is told so in plain, as by nats-server. Time is bounded here, the number of connections by
whoever calls.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl

logger = logging.getLogger("gnatswarm.monitor")

# The first byte of a TLS record that begins a handshake.
HANDSHAKE = b"\x16"
PLAIN = b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def streams_past_handshake(
    sock: socket.socket, context: ssl.SSLContext, *, limit: int, deadline_s: float
) -> Streams | None:
    """Streams of `limit` bytes, or None when it came to none within that time; the socket is ours either way."""
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
    """What comes first, left where it is."""
    loop = asyncio.get_running_loop()
    is_readable = asyncio.Event()
    loop.add_reader(sock.fileno(), is_readable.set)
    try:
        await is_readable.wait()
    finally:
        loop.remove_reader(sock.fileno())
    return sock.recv(1, socket.MSG_PEEK)
