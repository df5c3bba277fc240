"""New connections go to the chosen listeners only, evenly, and to all where the kernel cannot be told."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnatswarm.router.listening import steering
from gnatswarm.router.listening.listeners import Listeners
from gnatswarm.router.listening.steering import Steering, program
from tests.support.ports import free_port


@pytest.fixture
def listeners() -> Iterator[Listeners]:
    made = Listeners("", -1, 4)
    yield made
    made.close()


def spread(listeners: Listeners, connections: int) -> list[int]:
    """How many connections each listener got."""
    clients = []
    for number in range(connections):
        host = "127.0.0.1" if number % 2 or listeners.sockets[0].family == socket.AF_INET else "::1"
        clients.append(socket.create_connection((host, listeners.port), timeout=30))
    counts = []
    for listener in listeners.sockets:
        count = 0
        while True:
            try:
                listener.accept()[0].close()
            except BlockingIOError:
                break
            count += 1
        counts.append(count)
    for client in clients:
        client.close()
    assert sum(counts) == connections
    return counts


@pytest.mark.parametrize("chosen", [[0], [3], [1, 2], [0, 3], [0, 1, 2], [0, 1, 2, 3]])
def test_only_the_chosen_get_connections_and_evenly(listeners: Listeners, chosen: list[int]) -> None:
    assert Steering(listeners.sockets).choose(chosen)
    counts = spread(listeners, 400)
    expected = 400 / len(chosen)
    for position, count in enumerate(counts):
        if position not in chosen:
            assert count == 0
        else:
            # Six standard deviations of a fair draw.
            assert abs(count - expected) <= 6 * (400 * (1 / len(chosen)) * (1 - 1 / len(chosen))) ** 0.5


def test_the_choice_can_change_at_any_time(listeners: Listeners) -> None:
    steered = Steering(listeners.sockets)
    for chosen in ([0], [2], [1, 3], [2]):
        assert steered.choose(chosen)
        counts = spread(listeners, 40)
        assert {position for position, count in enumerate(counts) if count} == set(chosen)
    assert not steered.choose([2])


def test_what_waits_in_a_queue_stays_when_it_is_steered_past(listeners: Listeners) -> None:
    steered = Steering(listeners.sockets)
    steered.choose([1])
    client = socket.create_connection(("127.0.0.1", listeners.port), timeout=30)
    steered.choose([0])
    accepted, _ = listeners.sockets[1].accept()
    accepted.sendall(b"here")
    assert client.recv(10) == b"here"
    accepted.close()
    client.close()


def test_a_new_listener_gets_nothing_until_it_is_chosen() -> None:
    listeners = Listeners("127.0.0.1", -1, 1)
    steered = Steering(listeners.sockets)
    steered.choose([0])
    listeners.grow_to(3)
    assert spread(listeners, 60) == [60, 0, 0]
    steered.choose([0, 1, 2])
    assert all(spread(listeners, 90))
    listeners.close()


def test_a_listener_that_was_alone_is_steered_with_the_second() -> None:
    listeners = Listeners("127.0.0.1", free_port(), 1)  # its own port: no group until there are two
    steered = Steering(listeners.sockets)
    assert steered.choose([0])
    assert not steered.choose([0])
    assert spread(listeners, 10) == [10]
    listeners.grow_to(2)
    steered.choose(steered.chosen)
    assert spread(listeners, 60) == [60, 0]
    assert steered.works
    listeners.close()


def test_choosing_nobody_keeps_the_last_choice(listeners: Listeners) -> None:
    steered = Steering(listeners.sockets)
    steered.choose([2])
    assert not steered.choose([])
    assert steered.chosen == (2,)
    assert spread(listeners, 10) == [0, 0, 10, 0]


def test_where_it_cannot_be_attached_the_kernel_hashes_over_all(
    listeners: Listeners, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steering, "SO_ATTACH_REUSEPORT_CBPF", 9999)
    steered = Steering(listeners.sockets)
    assert not steered.choose([0])
    assert not steered.works
    assert all(spread(listeners, 200))


def test_the_longest_program_is_accepted() -> None:
    listeners = Listeners("127.0.0.1", -1, 64)
    steered = Steering(listeners.sockets)
    odd = list(range(1, 64, 2))
    assert steered.choose(odd)
    counts = spread(listeners, 640)
    assert {position for position, count in enumerate(counts) if count} == set(odd)
    listeners.close()


def run(instructions: list[steering.Instruction], random: int) -> int:
    """A model of the kernel's interpreter, for the five instructions in use."""
    accumulator = at = 0
    while True:
        code, yes, no, constant = instructions[at]
        at += 1
        if code == 0x20:
            assert constant == -0x1000 + 56
            accumulator = random
        elif code == 0x94:
            accumulator %= constant
        elif code == 0x15:
            at += yes if accumulator == constant else no
        elif code == 0x06:
            return constant
        else:
            assert code == 0x16
            return accumulator


@given(st.sets(st.integers(0, 63), min_size=1).map(sorted))
def test_every_draw_is_one_of_the_chosen_and_each_is_drawn(chosen: list[int]) -> None:
    instructions = program(chosen)
    assert [run(instructions, random) for random in range(len(chosen))] == chosen
    assert len(instructions) <= 131
    assert run(instructions, 2**32 - 1) in chosen


def test_a_program_for_nobody_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        program([])
