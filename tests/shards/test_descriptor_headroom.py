"""Headroom: reported once while some descriptors are left, and again only when enough clients have left."""

from __future__ import annotations

import resource

import pytest

from gnatswarm.shards.descriptor_headroom import MOST_LAST, NEVER, DescriptorHeadroom


@pytest.fixture
def room_of(monkeypatch):
    """The headroom of a process with that limit, and its reports so far."""

    def make(limit: int) -> tuple[DescriptorHeadroom, list[bool]]:
        monkeypatch.setattr(resource, "getrlimit", lambda which: (limit, limit))
        said: list[bool] = []
        return DescriptorHeadroom(said.append), said

    return make


@pytest.mark.parametrize(
    ("limit", "full_at"),
    [(256, 240), (1024, 960), (16_384, 15_360), (1_048_576, 1_048_576 - MOST_LAST), (resource.RLIM_INFINITY, NEVER)],
)
def test_the_last_descriptors_are_those_at_the_end(room_of, limit, full_at):
    assert room_of(limit)[0].full_at == full_at


def test_it_says_so_once_until_a_part_of_the_clients_has_gone(room_of):
    room, said = room_of(256)
    room.look(0)
    for clients in range(220, 236):
        room.fill(clients)
        room.look(clients)
    assert said == [False]
    room.look(205)
    assert said == [False]
    room.look(204)
    room.look(203)
    assert said == [False, True]
    room.fill(220)
    assert said == [False, True, False]


def test_where_others_than_clients_have_the_descriptors_it_tries_again_without_clients(room_of):
    room, said = room_of(256)
    room.fill(3)
    room.look(1)
    room.look(0)
    assert said == [False, True]
