"""Requests to a broker's system account over a raw client, and the system events that it receives.

Responses arrive on a fresh inbox. The system account responds in order, so the response to a later request proves that
an earlier one got no more responses, or none.
"""

from __future__ import annotations

import itertools
from typing import Any

import orjson

from tests.support.wire import Client, Frame, as_bytes

_numbers = itertools.count()


async def ask(client: Client, subject: str, body: Any = b"") -> Any:
    """The only response, decoded; None for 503 (no responders)."""
    frame = await ask_frame(client, subject, body)
    return None if b"503" in frame.headers else orjson.loads(frame.payload)


async def ask_frame(client: Client, subject: str, body: Any = b"") -> Frame:
    """The only response, not decoded. Other messages that arrive meanwhile go to the client's `inbox`."""
    inbox = f"_INBOX.{next(_numbers)}"
    sid = f"ask{next(_numbers)}"
    text = as_bytes(body) if isinstance(body, bytes | str) else orjson.dumps(body)
    await client.send(f"SUB {inbox} {sid}\r\nPUB {subject} {inbox} {len(text)}\r\n".encode() + text + b"\r\n")
    while True:
        frame = await client.read_frame()
        if frame.is_message and frame.sid == sid:
            break
        if frame.is_message:
            client.inbox.append(frame)
    await client.send(f"UNSUB {sid}\r\n")
    return frame


async def is_silent(client: Client, subject: str, body: Any = b"") -> bool:
    """Whether there is no response, although a later request gets one."""
    inbox = f"_INBOX.silent.{next(_numbers)}"
    text = as_bytes(body) if isinstance(body, bytes | str) else orjson.dumps(body)
    await client.send(f"SUB {inbox} silent\r\nPUB {subject} {inbox} {len(text)}\r\n".encode() + text + b"\r\n")
    for _ in range(3):  # another shard may respond to the later request
        await ask(client, "$SYS.REQ.SERVER.PING.HEALTHZ")
    await client.flush()
    await client.send("UNSUB silent\r\n")
    heard = [frame for frame in client.inbox if frame.sid == "silent"]
    client.inbox = [frame for frame in client.inbox if frame.sid != "silent"]
    return all(b"503" in frame.headers for frame in heard)


async def heard(client: Client, subject: str) -> Any:
    """The next message to that subject, decoded."""
    for at, frame in enumerate(client.inbox):
        if frame.subject == subject:
            return orjson.loads(client.inbox.pop(at).payload)
    while True:
        frame = await client.read_frame()
        if frame.is_message and frame.subject == subject:
            return orjson.loads(frame.payload)
        if frame.is_message:
            client.inbox.append(frame)
