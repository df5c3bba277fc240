"""The operator's socket of a running router: one JSON line in, one JSON line out, then it closes.

A Unix socket in the broker's private directory (mode 0700), so that who may talk to it is the user who runs the
broker, and root. Served by the supervisor, used by `router.operator_commands`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import msgspec

log = logging.getLogger("gnatswarm.router.operator")

# A request is a few words; a client that sends none within a second is not one of ours.
MAX_REQUEST_BYTES = 4096
REQUEST_DEADLINE_S = 1.0


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Base of what an operator may ask."""


class StatusRequest(Request, frozen=True):
    """What do the shards do? Rates are measured over sample_s."""

    sample_s: float = 0.5


class ScaleRequest(Request, frozen=True):
    """Run this many shards; answered when they all serve, and those that leave have left."""

    shards: int


class KillRequest(Request, frozen=True):
    """Kill this shard as a crash would; answered when its successor serves. Such a death does not count as a crash."""

    shard: int


class DisconnectRequest(Request, frozen=True):
    """Disconnect every client whose id is first_cid or higher; answered when they are gone, with the next id."""

    first_cid: int


class ShardStatus(msgspec.Struct, frozen=True):
    """One row of the status table."""

    shard: int
    pid: int  # 0: no process
    phase: str
    connections: int
    subscriptions: int
    in_msgs_per_s: float
    out_msgs_per_s: float
    loop_lag_us: int
    cpu_percent: float  # of one core
    links: int
    starts: int
    last_reason: str


class Status(msgspec.Struct, frozen=True):
    """The answer to StatusRequest."""

    pid: int
    address: str
    server_name: str
    accept: str  # "reuseport" or "handoff"
    steering: bool  # False: the kernel hashes over all listeners
    connections: int
    uptime_s: float
    shards: list[ShardStatus]


class Reply(msgspec.Struct, frozen=True, omit_defaults=True):
    """Every answer: an error, or a line for the operator, or a status."""

    error: str = ""
    text: str = ""
    status: Status | None = None
    clients: int = 0  # disconnected
    next_cid: int = 0  # every client that connects from here on has this id or a higher one


AnyRequest = StatusRequest | ScaleRequest | KillRequest | DisconnectRequest
_decoder = msgspec.json.Decoder(AnyRequest)
_encoder = msgspec.json.Encoder()


def encode_request(request: Request) -> bytes:
    """One line."""
    return _encoder.encode(request) + b"\n"


def decode_reply(line: bytes) -> Reply:
    """The answer; msgspec.DecodeError when it is none."""
    return msgspec.json.decode(line, type=Reply)


async def serve_operators(path: str, answer: Callable[[AnyRequest], Awaitable[Reply]]) -> asyncio.AbstractServer:
    """Listen at path; every request gets what `answer` says. The caller closes the server."""

    async def on_operator(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_DEADLINE_S):
                line = await reader.readline()
            if line:
                writer.write(_encoder.encode(await _answer(line)) + b"\n")
                await writer.drain()
        except (TimeoutError, ValueError, ConnectionError) as error:
            log.warning("An operator's request was not readable: %s", error or "nothing came")
        finally:
            writer.close()

    async def _answer(line: bytes) -> Reply:
        try:
            request = _decoder.decode(line)
        except msgspec.DecodeError as error:
            return Reply(error=f"not a request: {error}")
        return await answer(request)

    return await asyncio.start_unix_server(on_operator, path, limit=MAX_REQUEST_BYTES)
