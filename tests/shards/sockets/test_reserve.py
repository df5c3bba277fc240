"""Some descriptors are for links alone: clients cannot take them, and a link gives none of them to clients."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator

import pytest

from gnatswarm.shards.sockets.reserve import DESCRIPTORS_FOR_LINKS, MOST_OF_LIMIT, Reserve


@pytest.fixture
def limited() -> Iterator[None]:
    """Afterwards the limit of the process is as before."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def limit() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


@pytest.mark.parametrize(
    ("descriptors", "for_clients"),
    [(1024, 1024 - DESCRIPTORS_FOR_LINKS), (400, 400 - 400 // MOST_OF_LIMIT)],
    ids=["many", "few"],
)
def test_what_is_kept_back_is_for_links_and_only_while_one_is_made(
    limited: None, descriptors: int, for_clients: int
) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, hard))
    reserve = Reserve()
    assert limit() == for_clients
    for _ in range(2):
        with reserve.opened():
            assert limit() == descriptors
        assert limit() == for_clients
    with pytest.raises(OSError, match="no link"), reserve.opened():
        raise OSError("no link")
    assert limit() == for_clients
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] == hard


def test_a_client_gets_none_of_them_and_a_link_does(limited: None) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    reserve = Reserve()
    taken = []
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(0))
        assert max(taken) == limit() - 1
        with reserve.opened():
            taken.append(os.dup(0))
        with pytest.raises(OSError, match="Too many open files"):
            taken.append(os.dup(0))
    finally:
        for fd in taken:
            os.close(fd)


def test_one_that_is_within_another_takes_nothing_from_it(limited: None) -> None:
    """A reload uses them, and within it whoever makes a socket."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    reserve = Reserve()
    with reserve.opened():
        with reserve.opened():
            assert limit() == 1024
        assert limit() == 1024
    assert limit() < 1024


def test_where_somebody_has_lowered_the_limit_it_does_without(limited: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """By prlimit, of a process that may not raise it again: what is to be done there is tried all the same."""
    reserve = Reserve()

    def refuse(_what: int, _limits: tuple[int, int]) -> None:
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "setrlimit", refuse)
    with reserve.opened():
        pass
