"""Leaf nodes that another shard hands to the gateway: whose are taken, and what becomes of those that are not."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gnatswarm.shards.boundary.linkdir import path_for_moves
from gnatswarm.shards.moving.leaf_arrivals import LeafArrivals, LeafNode, encoded_leaf_node
from gnatswarm.shards.moving.move_channel import (
    CHANNEL_VERSION,
    Ended,
    HandedOver,
    Hello,
    Message,
    Outgoing,
)
from gnatswarm.shards.sockets.frozen_socket import FrozenFrames, FrozenSocket
from gnatswarm.shards.sockets.reserve import Reserve
from tests.support.turns import until


class Gateway:
    """Its door, what came through it, and ways to it that have ended."""

    def __init__(self, directory: Path) -> None:
        path = str(directory / "63.boot.sock")
        self.path = path_for_moves(path)
        self.taken: list[tuple[int, LeafNode]] = []
        self.closed: list[Outgoing] = []
        self.arrivals = LeafArrivals(
            asyncio.get_running_loop(),
            path,
            server_id="N",
            reserve=Reserve(),
            take=lambda fd, leaf: self.taken.append((fd, leaf)),
        )

    def dial(self, server_id: str = "N", version: int = CHANNEL_VERSION) -> Outgoing:
        hello = Hello(version, server_id, 0, "boot")
        return Outgoing(asyncio.get_running_loop(), self.path, hello, self.closed.append)


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    gateway = Gateway(tmp_path)
    yield gateway
    gateway.arrivals.close()


@pytest.mark.parametrize(("server_id", "version"), [("M", CHANNEL_VERSION), ("N", CHANNEL_VERSION + 1)])
async def test_another_broker_or_version_is_refused(
    gateway: Gateway, caplog: pytest.LogCaptureFixture, server_id: str, version: int
) -> None:
    way = gateway.dial(server_id, version)
    await until(lambda: gateway.closed)
    assert gateway.closed == [way]
    assert "of another broker" in caplog.text


@pytest.mark.parametrize("message", [HandedOver(0, b"no record"), Ended(1)])
async def test_a_descriptor_that_is_refused_is_closed(gateway: Gateway, message: Message) -> None:
    ours, theirs = socket.socketpair()
    with ours:
        ours.setblocking(False)
        way = gateway.dial()
        way.send(message, theirs.detach())
        await until(lambda: gateway.closed)
        assert gateway.closed == [way] and gateway.taken == []
        async with asyncio.timeout(30):
            assert await asyncio.get_running_loop().sock_recv(ours, 1) == b""


async def test_a_leaf_node_that_was_reset_already_is_taken(gateway: Gateway) -> None:
    """What it had sent is still to be read."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        gone = socket.create_connection(listening.getsockname())
        accepted, _ = listening.accept()
    gone.sendall(b"before")
    gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    gone.close()
    frozen = FrozenSocket(opened_us=1, used_us=1, work=0, read_us=1, frames=FrozenFrames())
    leaf = LeafNode(host="127.0.0.1", port=1, socket=frozen, is_masked=True, names=None)
    way = gateway.dial()
    way.send(HandedOver(0, encoded_leaf_node(leaf)), accepted.detach())
    await until(lambda: gateway.taken or gateway.closed)
    ((fd, taken),) = gateway.taken
    assert taken == leaf
    with socket.socket(fileno=fd) as sock:
        assert sock.recv(10) == b"before"
