"""Descriptors are passed between processes in whole packets, or not at all."""

from __future__ import annotations

import os
import resource
import socket

from gnatswarm.shards.boundary.handoff import (
    NOT_RECEIVED,
    SOCKETS_PER_PACKET,
    handoff_pair,
    receive_descriptors,
    send_descriptors,
)


def pipes(count: int) -> tuple[list[int], list[int]]:
    pairs = [os.pipe() for _ in range(count)]
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def test_what_is_sent_arrives_in_order_and_works() -> None:
    router, shard = handoff_pair()
    reading, writing = pipes(SOCKETS_PER_PACKET)
    assert receive_descriptors(shard) == []
    assert send_descriptors(router, writing)
    for fd in writing:
        os.close(fd)
    received = receive_descriptors(shard)
    assert received is not None
    assert len(received) == SOCKETS_PER_PACKET
    assert not any(os.get_inheritable(fd) for fd in received)
    for number, fd in enumerate(received):
        os.write(fd, bytes([number]))
        assert os.read(reading[number], 10) == bytes([number])
        os.close(fd)
        os.close(reading[number])
    assert receive_descriptors(shard) == []
    router.close()
    assert receive_descriptors(shard) is None
    shard.close()


def test_a_full_queue_refuses_and_loses_nothing() -> None:
    router, shard = handoff_pair()
    reading, writing = pipes(1)
    sent = 0
    while send_descriptors(router, writing):
        sent += 1
        assert sent < 100_000
    got = 0
    while descriptors := receive_descriptors(shard):
        got += len(descriptors)
        for fd in descriptors:
            os.close(fd)
    assert got == sent
    assert send_descriptors(router, writing)
    shard.close()
    assert not send_descriptors(router, writing)
    for fd in (*reading, *writing):
        os.close(fd)
    router.close()


def test_the_queue_outlives_a_reader_because_both_ends_are_kept() -> None:
    router, shard = handoff_pair()
    reading, writing = pipes(1)
    copy = socket.socket(fileno=os.dup(shard.fileno()))
    send_descriptors(router, writing)
    copy.close()
    received = receive_descriptors(shard)
    assert received is not None
    for fd in (*received, *reading, *writing):
        os.close(fd)
    router.close()
    shard.close()


def test_those_for_which_there_is_no_room_are_counted() -> None:
    router, shard = handoff_pair()
    reading, writing = pipes(10)
    assert send_descriptors(router, writing)
    free = os.dup(0)
    os.close(free)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + 3, limits[1]))
    try:
        received = receive_descriptors(shard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert received is not None
    assert len(received) == 10
    here = [fd for fd in received if fd != NOT_RECEIVED]
    assert 1 <= len(here) <= 3
    assert here == received[: len(here)]
    assert receive_descriptors(shard) == []
    for fd in [*here, *reading, *writing]:
        os.close(fd)
    router.close()
    shard.close()
