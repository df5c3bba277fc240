"""Sockets that the router accepts for shards: none is lost when a shard dies or its queue is full."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import os
import select
import socket
from collections.abc import Iterator
from typing import Any

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


async def test_what_the_kernel_forbids_for_one_shard_goes_to_another_and_the_log_says_it_once(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(sock: socket.socket, descriptors: list[int]) -> bool:
        if sock is handoff._lanes[0].router_end:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        return send_descriptors(sock, descriptors)

    def has_sent(number: int) -> bool:
        return handoff._lanes[1].sent == number

    monkeypatch.setattr(module, "send_descriptors", refuse)
    monkeypatch.setattr(module, "SAID_EVERY_S", 1000.0)
    handoff = Handoff(listener, Page.create(), lambda: [0, 1])
    for shard in (0, 1):
        handoff.shard_fd(shard)
    handoff.start()
    with contextlib.ExitStack() as clients:
        for number in range(1, 5):  # one after another: it goes on accepting
            clients.enter_context(socket.create_connection(listener.getsockname()))
            await until(functools.partial(has_sent, number))
    assert handoff._retry is None
    assert caplog.messages == ["Cannot hand connections over: Operation not permitted; trying again"]
    handoff.close()


async def test_what_the_kernel_forbids_for_every_shard_waits_and_the_log_says_it_once(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Who was to go there is sent when that is over."""
    broken = [True]

    def refuse(sock: socket.socket, descriptors: list[int]) -> bool:
        if broken:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        return send_descriptors(sock, descriptors)

    monkeypatch.setattr(module, "send_descriptors", refuse)
    monkeypatch.setattr(module, "DESCRIPTOR_RETRY_S", 1000.0)
    monkeypatch.setattr(module, "SAID_EVERY_S", 1000.0)
    handoff = Handoff(listener, Page.create(), lambda: [0, 1])
    for shard in (0, 1):
        handoff.shard_fd(shard)
    with contextlib.ExitStack() as clients:
        for _ in range(4):
            clients.enter_context(socket.create_connection(listener.getsockname()))
        handoff.start()
        await until(lambda: handoff._homeless)
        for _ in range(3):
            handoff.shards_changed()
        assert len(handoff._homeless) == 4
        assert caplog.messages == ["Cannot hand connections over: Operation not permitted; trying again"]
        # Not as often as a full queue is tried again: a shard may be busy for some milliseconds, this lasts.
        assert handoff._retry is not None and handoff._retry.when() > asyncio.get_running_loop().time() + 500
        broken.clear()
        handoff.shards_changed()
        await until(lambda: not handoff._homeless)
        assert sum(lane.sent for lane in handoff._lanes.values()) == 4
    handoff.close()


async def test_the_log_says_once_that_descriptors_have_run_out(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Refusing:
        tries = 0

        def fileno(self) -> int:
            return listener.fileno()

        def accept(self) -> tuple[socket.socket, object]:
            self.tries += 1
            if self.tries < 4:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return listener.accept()

    refusing: Any = Refusing()
    monkeypatch.setattr(module, "DESCRIPTOR_RETRY_S", 0.0)
    monkeypatch.setattr(module, "SAID_EVERY_S", 1000.0)
    handoff = Handoff(refusing, Page.create(), lambda: [0])
    handoff.shard_fd(0)
    handoff.start()
    with socket.create_connection(listener.getsockname()) as client:
        assert await received(handoff, 0) == client.getsockname()
    assert caplog.messages == ["Cannot accept connections: Too many open files; trying again"]
    handoff.close()


def placed(end: socket.socket) -> int:
    """How many sockets are in a shard's queue, which has ended behind them."""
    count = 0
    while descriptors := receive_descriptors(end):
        count += len(descriptors)
        for fd in descriptors:
            os.close(fd)
    assert descriptors is None
    return count


@pytest.mark.parametrize("may_refuse", [True, False])
async def test_who_waits_when_it_ends_is_handed_over_and_others_are_refused_if_that_may_be(may_refuse: bool) -> None:
    """They may have published, and gone. A service manager's port refuses nobody; who comes waits for the next."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=200))
        listener.setblocking(False)
        accepting = [0, 1]
        handoff = Handoff(listener, Page.create(), lambda: accepting, may_refuse=may_refuse)
        ends = [stack.enter_context(socket.socket(fileno=os.dup(handoff.shard_fd(shard)))) for shard in (0, 1)]
        stack.enter_context(handoff._lanes[0].router_end.dup())  # the keeper's
        handoff.start()
        for _ in range(150):
            stack.enter_context(socket.create_connection(listener.getsockname()))
        handoff.end([])
        accepting.clear()
        with pytest.raises(ConnectionRefusedError) if may_refuse else contextlib.nullcontext():
            stack.enter_context(socket.create_connection(listener.getsockname()))
        handoff.shards_changed()
        assert sum(placed(end) for end in ends) == 150
        assert handoff.holdings() == {}
        handoff.close()


async def test_who_finds_no_room_when_it_ends_is_handed_over_later(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_full = [True]
    monkeypatch.setattr(module, "send_descriptors", lambda *sent: not is_full and send_descriptors(*sent))
    handoff = Handoff(listener, Page.create(), lambda: [0])
    with socket.socket(fileno=os.dup(handoff.shard_fd(0))) as end, socket.create_connection(listener.getsockname()):
        handoff.start()
        handoff.end([])
        assert receive_descriptors(end) == []
        is_full.clear()
        await until(lambda: not handoff.holdings())
        assert placed(end) == 1


async def test_who_is_in_the_queue_of_a_shard_that_dies_when_it_ends_goes_to_another(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_full = [True]
    monkeypatch.setattr(module, "send_descriptors", lambda *sent: not is_full and send_descriptors(*sent))
    handoff = Handoff(listener, Page.create(), lambda: [0, 1])
    ends = [socket.socket(fileno=os.dup(handoff.shard_fd(shard))) for shard in (0, 1)]
    with ends[0], ends[1], socket.create_connection(listener.getsockname()):
        handoff.start()
        handoff.end([])
        is_full.clear()
        handoff.take_back(0)
        assert (placed(ends[0]), placed(ends[1])) == (0, 1)


async def test_it_may_end_twice(listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    is_full = [True]
    monkeypatch.setattr(module, "send_descriptors", lambda *sent: not is_full and send_descriptors(*sent))
    handoff = Handoff(listener, Page.create(), lambda: [0])
    with socket.socket(fileno=os.dup(handoff.shard_fd(0))) as end, socket.create_connection(listener.getsockname()):
        handoff.start()
        handoff.end([])
        listener.close()  # as in lame duck mode, while all queues are full; then the broker is told to stop
        handoff.end([])
        is_full.clear()
        await until(lambda: not handoff.holdings())
        assert placed(end) == 1


async def test_who_waits_when_it_ends_goes_to_a_late_shard_if_no_other_accepts(listener: socket.socket) -> None:
    handoff = Handoff(listener, Page.create(), lambda: [])
    ends = [socket.socket(fileno=os.dup(handoff.shard_fd(shard))) for shard in (0, 1)]
    with ends[0], ends[1], socket.create_connection(listener.getsockname()):
        handoff.start()
        handoff.end([1, 2])  # (2 has none of its queues)
        assert (placed(ends[0]), placed(ends[1])) == (0, 1)
