"""Raw peers at the ports for other servers: conversations that are mostly right, and what must hold whatever they say.

`conversation()` draws what a member of the cluster or a leaf node may say, with errors; `Attack` is a broker, two
clients of it, and the peers, of which the broker dials some: members that others tell of, and hubs. Leaf nodes also
come by WebSocket, and with an authority everything is encrypted. Used by tests/fuzz/fuzz_gateway.py for any time, by
tests/system/test_raw_servers.py for the same few cases each time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import socket
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Self

from tests.fuzz.programs import HEADER, ODD_SUBJECTS, PATTERNS, QUEUES, SUBJECTS, cut, mutated
from tests.support.authority import Authority
from tests.support.framed import BINARY, request, websocket_port
from tests.support.framed import frame as frame_of
from tests.support.servers import HOST, KINDS, Broker, session_pids
from tests.support.turns import until
from tests.support.wire import Client, abridged

CONFIG = """
server_name: fuzzed
debug: true
stats: false
cluster { name: marsh, listen: "127.0.0.1:-1", authorization { timeout: 1 }, %(tls)s }
leafnodes { listen: "127.0.0.1:-1", reconnect: 1, remotes: [ %(remotes)s ], %(tls)s }
websocket { listen: "127.0.0.1:-1", no_tls: true }
"""
HUBS = 4  # peers that the broker dials as their leaf node
ROUTES = r"Listening for route connections on \S*:(\d+)"
LEAVES = r"Listening for leafnode connections on \S*:(\d+)"
PEERS = 12  # of one case, at the same time
MOST_BYTES = 400_000  # of one conversation
# How long a peer that keeps its connection looks whether the broker closes it.
LINGER_S = 0.05
SAY_S = 5.0  # a peer that is held for longer goes
LISTENERS = 8  # peers that the broker may dial
ACCOUNTS = [b"$G", b"$G", b"$G", b"$SYS", b"other", b"", b"\xff", b"A" * 300]
NUMBERS: list[Any] = [0, -1, 1, 65_536, 2**31, 2**63, 2**64, 10**30, 1e300, 0.5]
TEXTS = ["", "x", "a b", "marsh", "\0", "\r\nPING", "ü", "\U0001f40a", "'", "%s", "{}", "x" * 3000]
# Addresses that gossip may name. All are here or nowhere, so nothing is dialled beyond this host: these lines stay as
# they are.
PLACES = ["127.0.0.1:1", "127.0.0.1:99999", "127.0.0.1:-1", "127.0.0.1", "[::1", "[::1]:1", "\0:1", "a b:1"]
PLACES += ["x" * 300 + ":1", "..:1", "u:p@127.0.0.1:1", "127.0.0.1:1/../#?", "ü..:1", "127.0.0.1:x", ":1", ""]
RAW_VALUES = [b"1e999", b"9" * 6000, b'"\xff"', b'"\\ud800"', b"-", b"nul", b"NaN", b'"\\u0000"', b"[" * 3000, b'{"a":']
RAW_VALUES += [b"[" * depth + b"]" * depth for depth in (100, 1000, 20_000)]
RAW_VALUES += [b'{"a":' * depth + b"1" + b"}" * depth for depth in (100, 1000, 20_000)]

LEAF_WORDS: list[dict[str, Any]] = [
    {"is_hub": True},
    {"isolate": True},
    {"user": "u", "pass": "p"},
    {"auth_token": "t"},
]
LEAF_WORDS += [{"deny_pub": ["a.>", "b", ".."]}, {"nkey": "U" * 56, "sig": "x"}, {"jwt": "e.y.j", "sig": "ü"}]


def odd(rng: random.Random) -> Any:
    """Any JSON value."""
    kind = rng.randrange(6)
    if kind == 0:
        return rng.choice(NUMBERS)
    if kind == 1:
        return rng.choice(TEXTS)
    if kind == 2:
        return rng.choice([None, True, False])
    if kind == 3:
        return [rng.choice(TEXTS) for _ in range(rng.choice([0, 1, 3, 100]))]
    if kind == 4:
        return {rng.choice(TEXTS): rng.choice(NUMBERS) for _ in range(3)}
    return {"allow": [rng.choice(TEXTS)], "deny": rng.choice([["a.>", "*"], "x", None, [1]])}


def line(rng: random.Random, verb: bytes, content: dict[str, Any]) -> bytes:
    """INFO or CONNECT, perhaps with keys that are missing, of another type, unknown, there twice or broken."""
    if rng.random() < 0.4:
        for _ in range(rng.choice([1, 1, 3])):
            key = rng.choice([*content, "unknown", "\0", ""])
            if rng.random() < 0.3:
                content.pop(key, None)
            else:
                content[key] = odd(rng)
    text = json.dumps(content, ensure_ascii=rng.random() < 0.5).encode("utf-8", "replace")
    if rng.random() < 0.2:
        name = rng.choice([*(key.encode() for key in content), b"unknown", b"\x9e"])
        text = text[:-1] + b', "' + name + b'": ' + rng.choice(RAW_VALUES) + b"}"
    return verb + b" " + text + b"\r\n"


def gossip(rng: random.Random, known: Known) -> bytes:
    """A member tells of another one; where one of our own peers listens, the broker dials it."""
    told = {"server_id": uuid.UUID(int=rng.getrandbits(128)).hex, "server_name": "told", "cluster": "marsh"}
    place = rng.choice([*PLACES, *known.places * 3])
    return b"INFO " + json.dumps({**told, "ip": rng.choice(["nats-route://", ""]) + place}).encode() + b"\r\n"


@dataclass
class Known:
    """What the peers have learned of the broker, and of each other."""

    server_id: str = "x"
    ids: list[str] = field(default_factory=list)
    places: list[str] = field(default_factory=list)  # where peers listen


def route_hello(rng: random.Random, known: Known) -> list[bytes]:
    new = uuid.UUID(int=rng.getrandbits(128)).hex
    server_id = rng.choices([new, *known.ids[-3:], known.server_id], [12, *[2] * len(known.ids[-3:]), 1])[0]
    known.ids.append(new)
    connect: dict[str, Any] = {"name": server_id, "cluster": "marsh", "headers": True, "verbose": False, "user": "u"}
    info: dict[str, Any] = {
        "server_id": server_id,
        "server_name": f"peer-{server_id[:8]}",
        "version": rng.choice(["2.9.10", "2.15.1", "", "x"]),
        "proto": 1,
        "host": HOST,
        "port": rng.choice([0, 1, 6222, -1, 99_999]),
        "headers": True,
        "max_payload": 1 << 20,
        "cluster": "marsh",
        "connect_urls": [f"{HOST}:1", *rng.choices(TEXTS, k=rng.choice([0, 0, 3, 200]))],
    }
    if rng.random() < 0.3:
        info["gnatswarm"] = "0.1"
    if rng.random() < 0.1:
        info["ldm"] = True
    said = [line(rng, b"CONNECT", connect), line(rng, b"INFO", info)]
    if rng.random() < 0.1:
        said.reverse()
    if rng.random() < 0.2:
        said.append(line(rng, b"INFO", {**info, "ldm": True}))
    return said


def leaf_hello(rng: random.Random, known: Known) -> list[bytes]:
    name = rng.choice(["leaf", f"leaf{rng.getrandbits(32)}"])
    connect: dict[str, Any] = {"name": name, "server_id": known.server_id, "version": "2.9.10", "headers": True}
    connect |= {"cluster": rng.choice(["far", name])}
    if rng.random() < 0.3:
        connect |= rng.choice(LEAF_WORDS)
    return [line(rng, b"CONNECT", connect), *rng.choice([[], [], [line(rng, b"INFO", {"server_id": name})]])]


def frame(rng: random.Random, *, is_route: bool) -> bytes:
    """Interest, a message, or what keeps a connection alive."""
    subject = rng.choice([*SUBJECTS, *SUBJECTS, *PATTERNS, *ODD_SUBJECTS, b">", b"$LDS.x", b"$SYS.REQ.SERVER.PING"])
    where = [rng.choice(ACCOUNTS)] if is_route else []
    queue = rng.choice(QUEUES)
    size = rng.choice([0, 1, 5, 300, 40_000])
    match rng.randrange(8):
        case 0 | 1 | 2:
            verb = b"RS+" if is_route else b"LS+"
            weight = [queue, rng.choice([b"1", b"0", b"3", b"-1", b"99999999999"])] if queue else []
            return b" ".join([verb, *where, subject, *weight]) + b"\r\n"
        case 3:
            return b" ".join([b"RS-" if is_route else b"LS-", *where, subject, *([queue] if queue else [])]) + b"\r\n"
        case 4 | 5:
            tail = rng.choice([[], [b"r"], [b"+", b"r", b"q"], [b"|", b"q"], [b"|"], [b"|", *[b"q"] * 2000]])
            verb = b"RMSG" if is_route else b"LMSG"
            claimed = b"%d" % (size if rng.random() < 0.9 else rng.choice([0, size + 1, 10**8, 2**64]))
            if rng.random() < 0.1:  # a request that the router answers
                body = rng.choice(RAW_VALUES)
                where[:] = [b"$SYS"] * is_route
                subject = b"$SYS.REQ.SERVER.PING" + rng.choice([b"", b".STATSZ", b".CONNZ", b".SUBSZ"])
                return b" ".join([verb, *where, subject, b"r", b"%d" % len(body)]) + b"\r\n" + body + b"\r\n"
            if rng.random() < 0.3:
                words = [b"HMSG", *where, subject, *tail, b"%d" % len(HEADER), b"%d" % (len(HEADER) + size)]
                return b" ".join(words) + b"\r\n" + HEADER + b"x" * size + b"\r\n"
            return b" ".join([verb, *where, subject, *tail, claimed]) + b"\r\n" + b"x" * size + b"\r\n"
        case 6:
            return rng.choice([b"PING\r\n", b"PONG\r\n", b"PONG\r\n", b"-ERR 'x\xff'\r\n", b"+OK\r\n", b"-ERR\r\n"])
        case _:
            return rng.choice(
                [b"RS+ \r\n", b"LS+ a\r\n", b"RMSG\r\n", b"LMSG $G a.b 2\r\nhi\r\n", b"A+ x\r\n", b"A- x\r\n"]
            )


def conversation(rng: random.Random, known: Known, *, is_route: bool) -> bytes:
    """What one peer says."""
    parts = (route_hello if is_route else leaf_hello)(rng, known)
    parts += [frame(rng, is_route=is_route) for _ in range(rng.choice([0, 1, 5, 30]))]
    if rng.random() < 0.4:
        at = rng.randrange(len(parts))
        parts[at] = mutated(rng, parts[at])
    if rng.random() < 0.1:
        rng.shuffle(parts)
    if is_route and rng.random() < 0.3:
        parts[2:2] = [gossip(rng, known) for _ in range(rng.choice([1, 3]))]
    said = b"".join(parts)[:MOST_BYTES]
    return said[: rng.randrange(len(said) + 1)] if rng.random() < 0.15 else said


def dialled_conversation(rng: random.Random, known: Known) -> bytes:
    """What a peer says that the broker has dialled."""
    info = route_hello(rng, known)[1]
    parts = [info, b"PONG\r\n", *(frame(rng, is_route=True) for _ in range(rng.choice([0, 5, 30])))]
    return mutated(rng, b"".join(parts)) if rng.random() < 0.4 else b"".join(parts)


def hub_conversation(rng: random.Random, known: Known) -> tuple[bytes, bytes]:
    """What a hub says at first, and when the broker has said who it is."""
    new = uuid.UUID(int=rng.getrandbits(128)).hex
    info: dict[str, Any] = {
        "server_id": rng.choices([new, known.server_id], [9, 1])[0],
        "server_name": f"hub-{new[:8]}",
        "version": rng.choice(["2.9.10", "2.15.1", "x"]),
        "headers": True,
        "max_payload": rng.choice([1 << 20, 1, 0, -1]),
        "client_id": rng.choice([5, 5, 5, 0]),
        "nonce": rng.choice(["abcdefghijklmno", "", "ü"]),
        "leafnode_urls": [f"{HOST}:1", *rng.choices(PLACES, k=rng.choice([0, 0, 3, 200]))],
    }
    if rng.random() < 0.8:
        info["info_on_connect"] = True
    if rng.random() < 0.1:
        info["tls_required"] = True
    rights = {"import": {"allow": ["a.>"]}, "export": rng.choice([None, {"deny": ["b"]}, odd(rng)])}
    accepted = {**info, "connect_info": True, "remote_account": "$G", **(rights if rng.random() < 0.3 else {})}
    frames = b"".join(frame(rng, is_route=False) for _ in range(rng.choice([0, 5, 30])))
    later = line(rng, b"INFO", accepted) + frames
    return line(rng, b"INFO", info), mutated(rng, later) if rng.random() < 0.3 else later


class Attack:
    """A broker with both ports, two clients of it that talk to each other, and peers that say anything."""

    def __init__(self, broker: Broker, talker: Client, listener: Client, authority: Authority | None) -> None:
        self.broker = broker
        self._tls = authority.client_context(authority.member()) if authority is not None else None
        self.connections = 0
        self._talker = talker
        self._listener = listener
        self._ports = [int(broker.log.wait_line(pattern)[1]) for pattern in (ROUTES, LEAVES)]
        self._ports.append(websocket_port(broker))
        self._pids = sorted(session_pids(broker.pid))
        self._known = Known()
        self._servers: list[asyncio.Server] = []
        self.dialled = 0
        self.dialled_as_hub = 0
        self.upgraded = 0  # leaf nodes that came by WebSocket
        self._subject = f"ours.{uuid.uuid4().hex}"

    @classmethod
    async def begun(cls, authority: Authority | None = None) -> Self:
        """A new broker, which encrypts if there is an authority; its log is in what is raised."""
        hubs = [socket.create_server((HOST, 0)) for _ in range(HUBS)]
        remotes = ", ".join(f'{{ url: "nats://{HOST}:{hub.getsockname()[1]}" }}' for hub in hubs)
        tls = ""
        if authority is not None:
            tls = f"tls {{ {authority.member().lines}, ca_file: '{authority.path}', verify: true, timeout: 2 }}"
        broker = Broker(KINDS["gnatswarm-2"], config=CONFIG % {"remotes": remotes, "tls": tls})
        broker.start()
        talker, listener = [await Client.connect(broker.port, {"verbose": False}) for _ in range(2)]
        attack = cls(broker, talker, listener, authority)
        await attack._listen()
        for hub in hubs:
            attack._servers.append(await asyncio.start_server(attack._on_leaf, sock=hub))
        await listener.talk(f"SUB {attack._subject} 1\r\nPING\r\n", expect_last="PONG\r\n")
        return attack

    def close(self) -> None:
        """End everything."""
        for server in self._servers:
            server.close()
        self._talker.close()
        self._listener.close()
        self.broker.kill()

    async def _listen(self) -> None:
        for _ in range(LISTENERS):
            self._servers.append(await asyncio.start_server(self._on_dialled, HOST, 0))
        self._known.places = [f"{HOST}:{server.sockets[0].getsockname()[1]}" for server in self._servers]

    async def _on_dialled(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.dialled += 1
        rng = random.Random(self.dialled)
        with contextlib.suppress(OSError):
            writer.write(dialled_conversation(rng, self._known))
            async with asyncio.timeout(LINGER_S):
                while await reader.read(65_536):
                    pass
        writer.close()

    async def _on_leaf(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.dialled_as_hub += 1
        rng = random.Random(self.dialled_as_hub)
        first, later = hub_conversation(rng, self._known)
        with contextlib.suppress(OSError):
            writer.write(first)
            async with asyncio.timeout(LINGER_S):
                await reader.read(65_536)
            writer.write(later)
            async with asyncio.timeout(LINGER_S):
                while await reader.read(65_536):
                    pass
        writer.close()

    async def case(self, seed: int) -> None:
        """Peers talk at the same time, and our clients to each other. AssertionError: something did not hold."""
        rng = random.Random(seed)
        since = len(self.broker.log.lines)
        talks, said_by = [], []
        for _ in range(PEERS):
            is_route = rng.random() < 0.5
            said = conversation(rng, self._known, is_route=is_route)
            said_by.append(said)
            talks.append(self._talk(rng.getrandbits(32), said, is_route=is_route))
        payloads = [b"%d of %d" % (number, seed) for number in range(20)]
        names, _ = await asyncio.gather(asyncio.gather(*talks), self._publish(payloads))
        self.connections += len(names)
        await self._listened(payloads)
        await self._all_told(since, dict(zip(names, said_by, strict=True)))
        self._unharmed(since)

    async def _talk(self, seed: int, said: bytes, *, is_route: bool) -> str:
        """One peer says this, in pieces, and goes in one of several ways. Returns its name in the log."""
        rng = random.Random(seed)
        framed = not is_route and rng.random() < 0.3
        sock = socket.create_connection((HOST, self._ports[0 if is_route else 2 if framed else 1]))
        name = "" if framed else f"{HOST}:{sock.getsockname()[1]} - {'rid' if is_route else 'lid'}:"
        reader, writer = await asyncio.open_connection(sock=sock, limit=1 << 22)
        try:
            async with asyncio.timeout(SAY_S):
                if framed:
                    writer.write(request(self._ports[2], path=rng.choice(["/leafnode", "/leafnode", "/x/leafnode"])))
                    self.upgraded += b" 101 " in await reader.readuntil(b"\r\n\r\n")
                elif self._tls is not None and is_route and rng.random() < 0.9:
                    await writer.start_tls(self._tls, server_hostname=HOST)
                if rng.random() < 0.8:
                    self._learn(await reader.read(65_536))
                if self._tls is not None and not is_route and not framed and rng.random() < 0.9:
                    await writer.start_tls(self._tls, server_hostname=HOST)
                await self._say(writer, said, cut(rng, 1 if len(said) < 2000 else 500), rng if framed else None)
            way = rng.randrange(4)
            if way == 0 and writer.can_write_eof():
                writer.write_eof()
            elif way == 1:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
            elif way == 2:
                async with asyncio.timeout(LINGER_S):
                    while await reader.read(65_536):
                        writer.write(frame_of(BINARY, b"PONG\r\n") if framed else b"PONG\r\n")
        except (OSError, asyncio.IncompleteReadError):  # (a TimeoutError is one)
            pass  # the broker may close at any time
        finally:
            writer.transport.abort() if rng.random() < 0.3 else writer.close()
        return name

    async def _say(
        self, writer: asyncio.StreamWriter, said: bytes, sizes: Iterator[int], framing: random.Random | None
    ) -> None:
        at = 0
        while at < len(said):
            size = next(sizes)
            piece = said[at : at + size]
            if framing is not None and framing.random() < 0.99:
                piece = frame_of(BINARY, piece, masked=framing.random() < 0.99)
            writer.write(piece)
            await writer.drain()
            at += size
            await asyncio.sleep(0)

    def _learn(self, said: bytes) -> None:
        found = re.search(rb'"server_id":"(\w+)"', said)
        if found is not None:
            self._known.server_id = found[1].decode()

    async def _publish(self, payloads: list[bytes]) -> None:
        for payload in payloads:
            await self._talker.send(b"PUB %s %d\r\n%s\r\n" % (self._subject.encode(), len(payload), payload))
            await asyncio.sleep(0)

    async def _listened(self, payloads: list[bytes]) -> None:
        """Each message came once, in order, and nothing else."""
        got = await self._listener.messages(len(payloads), 20)
        assert [frame.payload for frame in got] == payloads
        await self._talker.talk("PING\r\n", expect_last="PONG\r\n")
        await self._listener.talk("PING\r\n", expect_last="PONG\r\n")

    async def _all_told(self, since: int, said_by: dict[str, bytes]) -> None:
        """The log names each connection, but those that the broker takes for itself."""
        own = self._known.server_id.encode()
        wanted = {name for name, said in said_by.items() if name and (own not in said or "lid" in name)}

        def is_told() -> bool:
            text = "\n".join(self.broker.log.lines[since:])
            return all(name in text for name in wanted) or "Traceback" in text

        try:
            await until(is_told)
        except TimeoutError:
            self._unharmed(since)
            text = "\n".join(self.broker.log.lines[since:])
            missing = {name: abridged(said_by[name], 2000) for name in wanted if name not in text}
            raise AssertionError(f"not in the log: {missing}") from None

    def _unharmed(self, since: int) -> None:
        """The same processes run as before, and none has logged a traceback."""
        new = self.broker.log.lines[since:]
        pids = sorted(session_pids(self.broker.pid))
        assert pids == self._pids, f"processes were {self._pids}, are {pids}; the log:\n" + "\n".join(new[-60:])
        assert not any("Traceback" in one for one in new), "\n".join(new[-60:])
