"""Who of other servers is let in: an error of accept() keeps them out for a while only, and old ones may be refused."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from gnatswarm.shards.gateway import doors
from gnatswarm.shards.gateway.words import is_at_least


class Listener:
    """In the place of a listener of the reactor."""

    def __init__(self, _reactor: object, fd: int, _on_accept: object, on_error: Callable[[int], None]) -> None:
        self.fd = fd
        self.on_error = on_error
        self.did: list[str] = []

    def resume(self) -> None:
        self.did.append("resume")

    def close(self) -> None:
        self.did.append("close")


def test_other_servers_are_accepted_again_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Listener] = []
    later: list[tuple[float, Callable[[], None]]] = []

    def listener(*given: Any) -> Listener:
        made.append(Listener(*given))
        return made[-1]

    monkeypatch.setattr(doors, "Listener", listener)
    loop: Any = SimpleNamespace(call_later=lambda after_s, call: later.append((after_s, call)))
    reactor: Any = None
    fds = os.pipe()
    ports = doors.Doors(loop, reactor)
    for kind, fd in zip(("cluster", "leafnodes"), fds, strict=True):
        ports.open(kind, fd, lambda *_accepted: None)
    made[0].on_error(errno.EMFILE)
    ((after_s, again),) = later
    assert after_s == doors.ACCEPT_AGAIN_S
    ports.close("leafnodes")
    again()
    assert [one.did for one in made] == [["resume"], ["close"]]
    ports.close()
    ports.close()
    assert [one.did for one in made] == [["resume", "close"], ["close"]]
    for fd in fds:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


@pytest.mark.parametrize(
    ("version", "least", "is_enough"),
    [
        ("2.9.10", "2.9.10", True),
        ("2.9.9", "2.9.10", False),
        ("v2.10.0-beta.1", "2.9.10", True),
        ("2.9", "2.8.0", False),
        ("", "2.8.0", False),
    ],
)
def test_versions_are_compared_by_their_numbers(version: str, least: str, *, is_enough: bool) -> None:
    assert is_at_least(version, least) is is_enough
