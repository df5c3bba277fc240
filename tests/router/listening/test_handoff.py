"""Sockets that the router accepts for shards: none is lost when a shard dies or its queue is full."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Iterator

import pytest

from gnatswarm.router.listening import handoff as module
from gnatswarm.router.listening.handoff import Handoff
from gnatswarm.shards.boundary.handoff import receive_descriptors, send_descriptors
from gnatswarm.shards.boundary.page import Page
from tests.support.turns import until


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        yield listener


async def received(handoff: Handoff, shard: int) -> tuple[str, int]:
    """The peer of the next socket in the shard's queue."""
    end = handoff._lanes[shard].shard_end
    await until(lambda: select.select([end], [], [], 0)[0])
    descriptors = receive_descriptors(end)
    assert descriptors is not None
    [fd] = descriptors
    with socket.socket(fileno=fd) as sock:
        found: tuple[str, int] = sock.getpeername()
    return found


async def test_what_waits_in_the_queue_of_a_dead_shard_goes_to_another(listener: socket.socket) -> None:
    accepting = [0]
    handoff = Handoff(listener, Page.create(), lambda: accepting)
    for shard in (0, 1):
        handoff.shard_fd(shard)
    handoff.start()
    with socket.create_connection(listener.getsockname()) as client:
        await until(lambda: handoff._lanes[0].sent)
        accepting[:] = [1]
        handoff.take_back(0)
        handoff.shards_changed()
        assert await received(handoff, 1) == client.getsockname()
    handoff.close()


async def test_a_full_queue_delays_a_connection(listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    refusals = [False, False]

    def send_later(sock: socket.socket, descriptors: list[int]) -> bool:
        assert all(os.fstat(fd) for fd in descriptors)
        return refusals.pop() if refusals else send_descriptors(sock, descriptors)

    monkeypatch.setattr(module, "send_descriptors", send_later)
    handoff = Handoff(listener, Page.create(), lambda: [0])
    handoff.shard_fd(0)
    handoff.start()
    with socket.create_connection(listener.getsockname()) as client:
        assert await received(handoff, 0) == client.getsockname()
    assert not refusals
    handoff.close()
