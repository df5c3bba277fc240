"""A member of a cluster as bytes: what is written to a server's port for members, and what it answers.

It says hello as nats-server 2.9 does, answers PING, and knows so much of the protocol as it needs to find the end of a
frame. Frames of the system account are left out: each server tells others of it, and of this at any time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any, Self

DEADLINE_S = 40.0
# Lines that a payload follows; the last word is its size.
WITH_PAYLOAD = ("RMSG", "HMSG", "LMSG")

# A line without its end, and the payload behind it.
Heard = tuple[str, bytes]


class RawRoute:
    """One connection. `info` is the other end's first INFO, `infos` those that came later, the oldest first."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, name: str, system: str = "$SYS"
    ) -> None:
        self._reader = reader
        self._writer = writer
        self.name = name
        self.info: dict[str, Any] = {}
        self.infos: list[dict[str, Any]] = []
        self.system: list[Heard] = []  # what was left out
        self.wanted_before: set[str] = set()  # "ACCOUNT subject" that others wanted when it joined
        self._left_out = tuple(f"{verb} {system} " for verb in ("RS+", "RS-", "RMSG", "HMSG"))

    @classmethod
    async def dial(cls, at: int, name: str, /, *, cluster: str = "marsh", system: str = "$SYS", **info: Any) -> Self:
        """Connect, read INFO, and say who this is: `info` are more keys of its INFO, "headers" also of CONNECT."""
        route = cls(*await asyncio.open_connection("127.0.0.1", at, limit=1 << 24), name, system)
        line, _ = await route.read()
        assert line.startswith("INFO {"), line
        route.info = json.loads(line[5:])
        route.write(connect(name, cluster, headers=info.get("headers", True)) + hello(name, cluster, **info))
        return route

    def write(self, said: str | bytes) -> None:
        """Send these bytes."""
        self._writer.write(said.encode() if isinstance(said, str) else said)

    async def read(self) -> Heard:
        """The next frame, whatever it is. EOFError: there is none."""
        async with asyncio.timeout(DEADLINE_S):
            try:
                line = (await self._reader.readuntil(b"\r\n"))[:-2].decode()
                words = line.split()
                if not words or words[0] not in WITH_PAYLOAD:
                    return line, b""
                return line, (await self._reader.readexactly(int(words[-1]) + 2))[:-2]
            except (asyncio.IncompleteReadError, ConnectionError):
                raise EOFError(f"{self.name}: the other end has closed") from None

    async def frame(self) -> Heard:
        """The next frame that is not about the connection or the system account."""
        while True:
            line, payload = await self.read()
            if line == "PING":
                self.write("PONG\r\n")
            elif line.startswith("INFO "):
                self.infos.append(json.loads(line[5:]))
            elif line.startswith(self._left_out):
                self.system.append((line, payload))
            else:
                return line, payload

    async def talk(self, said: str | bytes = "") -> list[Heard]:
        """Say this and PING: the frames that came before PONG."""
        self.write((said.encode() if isinstance(said, str) else said) + b"PING\r\n")
        return await self.until("PONG")

    async def until(self, last: str) -> list[Heard]:
        """The frames before the first whose line is `last`."""
        found: list[Heard] = []
        while (heard := await self.frame())[0] != last:
            found.append(heard)
        return found

    async def ended(self) -> list[str]:
        """The lines that came before the other end closed."""
        lines = []
        with contextlib.suppress(EOFError):
            while True:
                lines.append((await self.read())[0])
        return lines

    def close(self) -> None:
        """End the connection."""
        self._writer.close()


def connect(name: str, cluster: str = "marsh", **more: Any) -> str:
    """The CONNECT line of a member."""
    said = {"echo": True, "verbose": False, "pedantic": False, "tls_required": False, "headers": True}
    return f"CONNECT {json.dumps(said | {'name': name, 'cluster': cluster} | more)}\r\n"


def hello(name: str, cluster: str = "marsh", **more: Any) -> str:
    """The INFO line of a member."""
    said = {"server_id": name, "server_name": name, "version": "2.9.10", "proto": 2, "go": "", "headers": True}
    return f"INFO {json.dumps(said | {'cluster': cluster, 'max_payload': 1 << 20} | more)}\r\n"
