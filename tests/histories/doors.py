"""The doors by which recorded clients come in: as whom, over which layers, and what their subjects are called there.

A history has the subjects of the account HOME. A client behind another door writes and reads other ones: they are
mapped when it publishes, or its account imports what HOME exports. So the checker needs to know nothing of doors.
"""

from __future__ import annotations

import json
import ssl
import zlib
from dataclasses import dataclass, replace
from random import Random

from tests.support.authority import Pair
from tests.support.framed import BINARY, CLOSE, CONTINUATION, DEFLATE, deflated, frame, request

# Smaller writes are not compressed.
LEAST_DEFLATED_BYTES = 100
# Larger writes are several frames: the broker takes no compressed one of much more than a payload.
MOST_FRAME_BYTES = 900_000
# Of a slow client, per read.
PAUSE_CHANCE = 0.05
# What a reload writes in other ways (`varied`), none of which changes anything for the clients.
OPEN = 'permissions: { publish: { deny: ["no"] }, subscribe: { deny: ["no"] } }'
HOUSE = """
max_payload: 1000000
stats: false
no_auth_user: guest
tls { cert_file: "%(cert)s", key_file: "%(key)s", timeout: 10 }
allow_non_tls: true
websocket { port: -1, compression: true, handshake_timeout: "10s", %(websocket)s }
accounts {
    X0: { }
    HOME: {
        users: [
            { user: guest, password: none, OPEN }
            { user: held, password: none, OPEN, publish_limits { messages: 1000, burst: "50ms", stall: "0s" } }
        ]
        mappings { "in.>": ">", no: not }
        exports: [
            { stream: "no.*" }
            { service: "no" }
            { stream: "h.>" }
            { service: "h.>", response_type: stream }
            { service: "_INBOX.>" }
        ]
    }
    AWAY: {
        users: [ { user: away, password: none } ]
        imports: [
            { stream: { account: HOME, subject: "h.>" }, prefix: seen }
            { service: { account: HOME, subject: "h.>" }, to: "ask.h.>" }
            { service: { account: HOME, subject: "_INBOX.>" }, to: "ask._INBOX.>" }
            { stream: { account: HOME, subject: "no.0" } }
        ]
    }
}
"""


@dataclass(frozen=True)
class Door:
    """One way in. The fields are of a client that comes in by it."""

    port: int
    user: str = ""
    context: ssl.SSLContext | None = None  # of a client with TLS
    is_framed: bool = False  # by WebSocket
    is_deflated: bool = False
    published: str = ""  # what is in front of subjects that it publishes to
    heard: str = ""  # and of those that it subscribes to
    is_away: bool = False  # of the account that imports
    may_ask: bool = True
    pause_chance: float = 0.0  # per read: that it reads nothing for a while

    @property
    def connect(self) -> bytes:
        words = {
            "verbose": False,
            "pedantic": False,
            "protocol": 1,
            "headers": True,
            "no_responders": True,
            "lang": "python",
            "version": "1",
            "name": "histories",
        }
        if self.user:
            words |= {"user": self.user, "pass": "none"}
        return f"CONNECT {json.dumps(words)}\r\n".encode()

    def may(self, kind: str, epoch: int) -> bool:
        """Whether a client does this in an epoch.

        What came from another account is not for those who import there. So in each epoch clients of that account
        either subscribe or publish.
        """
        if kind == "request" and not self.may_ask:
            return False
        return not self.is_away or kind not in ("sub", "pub", "request") or (kind == "sub") == (epoch % 2 == 0)


def house(cert: Pair, is_websocket_secure: bool) -> str:
    """The configuration of a broker with all doors."""
    files = {"cert": cert.cert, "key": cert.key}
    websocket = f'tls {{ cert_file: "{cert.cert}", key_file: "{cert.key}" }}' if is_websocket_secure else "no_tls: true"
    return HOUSE.replace("OPEN", OPEN) % {**files, "websocket": websocket}


def doors(
    port: int, websocket_port: int, context: ssl.SSLContext, is_websocket_secure: bool, may_ask: bool
) -> list[Door]:
    """All of such a broker. `may_ask`: also clients who import may ask what is answered over accounts."""
    framed = Door(websocket_port, is_framed=True, context=context if is_websocket_secure else None)
    layers = [Door(port), Door(port, context=context), framed, replace(framed, is_deflated=True)]
    found: list[Door] = []
    for layer in layers:
        found += [layer] * 2
        found.append(replace(layer, pause_chance=PAUSE_CHANCE))
        found.append(replace(layer, user="held"))
        found.append(replace(layer, published="in."))
        found.append(replace(layer, user="away", published="ask.", heard="seen.", is_away=True, may_ask=may_ask))
    return found


class Frames:
    """The WebSocket layer of one connection."""

    def __init__(self, door: Door) -> None:
        self._is_deflated = door.is_deflated
        self._rest = bytearray()
        self._is_upgraded = False
        self._parts: list[bytes] = []  # of a message in several frames
        self._is_first_deflated = False
        self.hello = request(door.port, *([f"Sec-WebSocket-Extensions: {DEFLATE}"] if door.is_deflated else []))

    def wrapped(self, data: bytes) -> bytes:
        if len(data) > MOST_FRAME_BYTES:
            return self.wrapped(data[:MOST_FRAME_BYTES]) + self.wrapped(data[MOST_FRAME_BYTES:])
        if self._is_deflated and len(data) >= LEAST_DEFLATED_BYTES:
            return frame(BINARY, deflated(data), reserved=0x40)
        return frame(BINARY, data)

    @staticmethod
    def goodbye() -> bytes:
        return frame(CLOSE, b"\x03\xe8")

    def take(self, data: bytes) -> bytes:
        """The NATS stream in what came. ValueError for what no server sends."""
        rest = self._rest
        rest += data
        if not self._is_upgraded:
            end = rest.find(b"\r\n\r\n")
            if end < 0:
                return b""
            if not rest.startswith(b"HTTP/1.1 101 "):
                raise ValueError(f"not upgraded: {bytes(rest[:100])!r}")
            self._is_upgraded = True
            del rest[: end + 4]
        found = []
        while (whole := self._frame()) is not None:
            found.append(whole)
        return b"".join(found)

    def _frame(self) -> bytes | None:
        """The payload of the next frame, b"" of a control frame or a part; None: it is not whole."""
        rest = self._rest
        if len(rest) < 2:
            return None
        size, at = rest[1] & 0x7F, 2
        if size > 125:
            at = 4 if size == 126 else 10
            if len(rest) < at:
                return None
            size = int.from_bytes(rest[2:at], "big")
        if len(rest) < at + size:
            return None
        first, data = rest[0], bytes(rest[at : at + size])
        del rest[: at + size]
        if first & 0x0F == CLOSE:
            return b""
        if first & 0x0F not in (BINARY, CONTINUATION):
            raise ValueError(f"a frame that no server sends: {first:#x}")
        if first & 0x0F == BINARY:
            self._is_first_deflated = bool(first & 0x40)
        self._parts.append(data)
        if not first & 0x80:
            return b""
        data = b"".join(self._parts)
        self._parts.clear()
        if self._is_first_deflated:
            data = zlib.decompressobj(wbits=-15).decompress(data + b"\x00\x00\xff\xff")
        return data


def varied(config: str, rng: Random) -> str:
    """The same configuration for its clients, but another one.

    Rights and limits are written in other ways, others' accounts come and go.
    """
    denied = ", ".join(f'"{name}"' for name in rng.sample([*(f"no.{n}" for n in range(9)), "h.*.*.no", "no.>"], 4))
    rights = rng.choice(
        (
            f"permissions: {{ publish: {{ deny: [{denied}] }}, subscribe: {{ deny: [{denied}] }} }}",
            f'permissions: {{ publish: {{ allow: [">"], deny: [{denied}] }}, subscribe: {{ deny: [{denied}] }} }}',
            'permissions: { publish: { allow: ["h.>", "_INBOX.>", "in.>", "_R_.>"] } }',
            f'permissions: {{ subscribe: {{ allow: ["h.>", "_INBOX.>"], deny: [{denied}] }} }}',
            'permissions: { publish: { allow: [">"] } }',
        )
    )
    return (
        config.replace(OPEN, rights)
        .replace("max_payload: 1000000", f"max_payload: {rng.randint(1_000_000, 1_100_000)}")
        .replace("messages: 1000", f"messages: {rng.randint(500, 3000)}")
        .replace("no: not", " ".join(f"no.{number}: not\n" for number in rng.sample(range(9), 4)))
        .replace('subject: "no.0"', f'subject: "no.{rng.randint(0, 9)}"')
        .replace('{ service: "no" }', rng.choice(("", '{ service: "no" }')))
        .replace("X0: { }", "\n".join(f"X{number}: {{ }}" for number in rng.sample(range(9), 4)))
    )
