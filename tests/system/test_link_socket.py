"""Whoever speaks to a shard's link socket and is no sibling is closed with one clear log line, and disturbs nobody."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat

import pytest

from gnatswarm.shards.boundary import linkdir
from gnatswarm.shards.links.links import LINK_VERSION
from tests.support import swarm

pytestmark = pytest.mark.kinds("gnatswarm-2")


def hello(broker_id: str, **changed: object) -> bytes:
    """Of no shard that the router has named."""
    words = {"server_id": broker_id, "shard": 63, "boot_id": "0" * 16, "link_version": LINK_VERSION}
    return json.dumps(words | changed).encode()


def greeting(broker_id: str, **changed: object) -> bytes:
    """The first words of somebody who dials."""
    words = hello(broker_id, **changed)
    return b"INFO " + words + b" \r\nCONNECT " + words + b"\r\n"


# What is said, and what the log says about it.
RUBBISH = {
    "http": (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", "must be INFO and CONNECT"),
    "tls": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64), "must be INFO and CONNECT"),
    "zeros": (bytes(4096), "must be INFO and CONNECT"),
    "a client": (b"SUB > 1\r\n", "must be INFO and CONNECT"),
    "a message at once": (b"RMSG $G foo 2\r\nhi\r\n", "must be INFO and CONNECT"),
    "interest at once": (b"RS+ $G foo\r\n", "must be INFO and CONNECT"),
    "no json": (b"INFO hello\r\n", "INFO is not a sibling's"),
    "nested too deeply": (b'INFO {"a":' + b"[" * 60_000 + b"\r\n", "INFO is not a sibling's"),
    "an endless line": (b"INFO " + b"a" * 400_000, "must be INFO and CONNECT"),
    "connect first": (b"CONNECT {}\r\n", "CONNECT out of place"),
    "half a frame": (b'INFO {"server_id"', "no INFO and CONNECT within"),
    "nothing": (b"", "no INFO and CONNECT within"),
}
IMPOSTORS: dict[str, tuple[dict[str, object], str]] = {
    "another version": ({"link_version": 999}, "version 999"),
    "another broker": ({"server_id": "NOBODY"}, "another broker"),
    "a number too high": ({"shard": 64}, "calls itself 64"),
    "its own number": ({"shard": 0}, "calls itself 0"),
}


async def close_of(path: str, words: bytes) -> None:
    """Say it, and read until the shard closes."""
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.setblocking(False)
        await loop.sock_connect(sock, path)
        try:
            await loop.sock_sendall(sock, words)
            while await loop.sock_recv(sock, 65536):
                pass
        except (BrokenPipeError, ConnectionResetError):
            return


async def is_told_once(broker, cluster, words: bytes, says: str) -> None:
    witnesses = [await cluster.client_on(shard) for shard in range(2)]
    await witnesses[0].talk("SUB still.here 1\r\nPING\r\n", expect="PONG\r\n")
    seen = len(broker.log.lines)
    async with asyncio.timeout(30):
        await close_of(swarm.link_sockets(broker)[0], words)
    await asyncio.to_thread(broker.log.wait_line, says, 30.0, seen)
    for _ in range(10):
        await witnesses[1].talk("PUB still.here 1\r\nx\r\nPING\r\n", expect_last="PONG\r\n")
        await witnesses[0].messages(1)
    lines = [line for line in broker.log.lines[seen:] if "[DBG]" not in line]
    assert len(lines) == 1, lines
    assert "[ERR]" in lines[0]


@pytest.fixture
def swarmed(start_broker, cluster_of):
    broker = start_broker()
    return broker, cluster_of(broker)


async def test_rubbish_is_closed_with_one_line(swarmed):
    broker, cluster = swarmed
    for words, says in RUBBISH.values():
        await is_told_once(broker, cluster, words, says)


async def test_impostors_are_closed_with_one_line(swarmed):
    broker, cluster = swarmed
    broker_id = (await cluster.client()).info["server_id"]
    for changed, says in IMPOSTORS.values():
        words = b"INFO " + hello(broker_id, **changed) + b" \r\n"
        await is_told_once(broker, cluster, words, says)


async def test_who_does_not_have_the_boot_id_of_its_number_is_not_linked(swarmed):
    """A number that nobody has, and one whose shard has another boot id: closed after its time."""
    broker, cluster = swarmed
    broker_id = (await cluster.client()).info["server_id"]
    for changed in ({}, {"shard": 1}):
        words = greeting(broker_id, **changed) + b"RS+ $G >\r\nPING\r\n"
        await is_told_once(broker, cluster, words, "boot id '0000000000000000', which the router does not know")
    rows = await asyncio.to_thread(swarm.rows, broker)
    assert [row["links"] for row in rows.values()] == [1, 1]


async def test_a_killed_shards_socket_file_does_not_disturb_its_successor(swarmed, subject):
    """It stays behind, and is of no use to anybody: the successor has a path of its own."""
    broker, cluster = swarmed
    before = swarm.link_sockets(broker)
    for shard in (0, 1):
        await swarm.kill(broker, shard)
        back = await swarm.client_on(cluster, shard)
        witness = await swarm.client_on(cluster, 1 - shard)
        await witness.talk(f"SUB {subject}.{shard} 1\r\nPING\r\n", expect="PONG\r\n")
        await back.talk(f"PUB {subject}.{shard} 1\r\nx\r\nPING\r\n", expect="PONG\r\n")
        await witness.expect(f"MSG {subject}.{shard} 1 1\r\nx\r\n")
    after = swarm.link_sockets(broker)
    assert not set(before.values()) & set(after.values())
    # Only what listens is left: the router has removed the dead ones' files.
    left = {name for name in os.listdir(os.path.dirname(after[0])) if name[0].isdigit()}
    wanted = {os.path.basename(path) for path in after.values()}
    assert left == wanted | {linkdir.path_for_moves(name) for name in wanted}


async def test_a_hundred_strangers_at_once_disturb_nobody(swarmed):
    broker, cluster = swarmed
    path = swarm.link_sockets(broker)[0]
    witness = await cluster.client_on(0)
    async with asyncio.timeout(30):
        await asyncio.gather(*(close_of(path, b"rubbish\r\n") for _ in range(100)))
    await witness.talk("SUB a 1\r\nPUB a 1\r\nx\r\nPING\r\n", expect="MSG a 1 1\r\nx\r\nPONG\r\n")


def test_the_socket_is_private(swarmed):
    broker, _ = swarmed
    for path in swarm.link_sockets(broker).values():
        assert stat.S_IMODE(os.stat(path).st_mode) & 0o077 == 0
        assert stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode) == 0o700
