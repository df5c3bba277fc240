"""Serves the operator's socket of a running router: requests and replies are in `router.supervision.operator_socket`.

One request for each connection. Who does not send it in time, or goes away before the answer, hinders nobody. Knows no
broker: what answers is given to it. Used by `router.companions`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from gnatswarm.router.supervision.operator_socket import (
    MAX_REQUEST_BYTES,
    AnyRequest,
    Reply,
    decode_request,
    encode_reply,
)

if TYPE_CHECKING:
    import socket

logger = logging.getLogger("gnatswarm.router.operator")

# A client that sends no request for so long is not one of our commands. Those may not run for seconds on a busy
# machine, nor may this router.
REQUEST_DEADLINE_S = 30.0

Say = Callable[[str], None]  # sends a line of progress
Answer = Callable[[AnyRequest, Say], Awaitable[Reply]]


class OperatorServer:
    """Answers requests with the result of the `answer` given to serve(), on one listening socket at a time."""

    def __init__(self) -> None:
        self._answer: Answer | None = None
        self._server: asyncio.AbstractServer | None = None
        self._changing: asyncio.Task[None] | None = None  # a reference, because the loop holds tasks only weakly

    async def serve(self, listening: socket.socket, answer: Answer) -> None:
        """Serve this listening socket instead of the last one, which is closed; pending answers are still sent."""
        self._answer = answer
        before, self._server = (
            self._server,
            await asyncio.start_unix_server(self._on_operator, sock=listening, limit=MAX_REQUEST_BYTES),
        )
        if before is not None:
            before.close()

    def move_to(self, listening: socket.socket) -> None:
        """Soon serve this listening socket instead; does nothing if none is served yet."""
        if self._answer is not None:
            self._changing = asyncio.get_running_loop().create_task(self.serve(listening, self._answer))

    def close(self) -> None:
        """Accept no more requests."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _on_operator(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            line = await _request_line(reader)
            if line:

                def send(reply: Reply) -> None:
                    if not writer.is_closing():  # an operator may go away before the answer
                        writer.write(encode_reply(reply))

                send(await self._answer_line(line, lambda text: send(Reply(progress=text))))
                with contextlib.suppress(ConnectionError):
                    await writer.drain()
        except asyncio.CancelledError:
            return  # the broker ends; of a task that ends so asyncio would log a traceback
        finally:
            writer.close()

    async def _answer_line(self, line: bytes, say: Say) -> Reply:
        try:
            request = decode_request(line)
        except ValueError as error:
            return Reply(error=str(error))
        assert self._answer is not None
        try:
            return await self._answer(request, say)
        except Exception as error:  # which nobody expected; who hears nothing would take it for the router's end
            logger.critical("%s could not be answered", type(request).__name__, exc_info=True)
            return Reply(error=f"an unexpected error, the log says more: {error!a}")


async def _request_line(reader: asyncio.StreamReader) -> bytes:
    """The line of a request; empty, and logged, if none came in time or it was too long."""
    try:
        async with asyncio.timeout(REQUEST_DEADLINE_S):
            return await reader.readline()
    except (TimeoutError, ValueError, ConnectionError) as error:
        logger.warning("An operator's request was not readable: %s", str(error) or "nothing came")
        return b""
