"""Listeners that were opened for shards which do not come get no connections."""

from __future__ import annotations

import errno
import os
import select
import socket
from collections.abc import Iterator, Sequence

import pytest

from gnatswarm.broker.options import Options, WebSocket
from gnatswarm.router.listening import steering
from gnatswarm.router.listening.listener_groups import ListenerGroups
from gnatswarm.router.listening.listeners import Listeners

CONNECTIONS = 40


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> Iterator[ListenerGroups]:
    """One listener; after one more there are no descriptors."""
    groups = ListenerGroups(Options(host="127.0.0.1", port=-1), 1, is_handoff=False)
    assert isinstance(groups.clients, Listeners)
    opened, left = groups.clients._open, [True]

    def open_one(port: int) -> socket.socket:
        if not left:
            raise OSError(errno.EMFILE, "Too many open files")
        left.pop()
        return opened(port)

    monkeypatch.setattr(groups.clients, "_open", open_one)
    yield groups
    groups.close()


def accepted_by_the_first(groups: ListenerGroups) -> int:
    """Of CONNECTIONS."""
    accepted = 0
    for _ in range(CONNECTIONS):
        with socket.create_connection(("127.0.0.1", groups.clients.port), timeout=30):
            try:
                groups.clients.sockets[0].accept()[0].close()
            except BlockingIOError:
                continue
            accepted += 1
    return accepted


def test_where_not_all_listeners_can_be_opened_and_none_can_be_steered_past_those_that_can_are_closed(
    groups: ListenerGroups,
):
    groups.steering.error = OSError(errno.EOPNOTSUPP, "Operation not supported")
    with pytest.raises(OSError, match="Too many open files"):
        groups.grow_to(4)
    groups.shrink_to(1)
    assert accepted_by_the_first(groups) == CONNECTIONS


def test_where_not_all_listeners_can_be_opened_connections_are_steered_past_those_that_can(
    groups: ListenerGroups, monkeypatch: pytest.MonkeyPatch
):
    """A listener that is alone may be in no group yet, to which a program could be attached."""
    attach = steering.attach

    def attach_to_many(listener: socket.socket, instructions: Sequence[steering.Instruction]) -> None:
        if len(groups.clients.sockets) == 1:
            raise OSError(errno.EINVAL, "Invalid argument")
        attach(listener, instructions)

    monkeypatch.setattr(steering, "attach", attach_to_many)
    groups.steer([0])
    with pytest.raises(OSError, match="Too many open files"):
        groups.grow_to(4)
    if not groups.steering.works:
        pytest.skip("this kernel steers no connections")
    assert len(groups.clients.sockets) == 2
    assert accepted_by_the_first(groups) == CONNECTIONS


def test_who_waits_for_a_shard_that_accepts_is_not_reset_at_whichever_port() -> None:
    """They may have published, and gone. Those of the other shard would wait for nobody."""
    options = Options(host="127.0.0.1", port=-1, websocket=WebSocket(host="127.0.0.1", port=-1, no_tls=True))
    groups = ListenerGroups(options, 2, is_handoff=False)
    assert groups.websocket is not None
    for group in (groups.clients, groups.websocket):
        clients = [socket.create_connection(("127.0.0.1", group.port), timeout=30) for _ in range(CONNECTIONS)]
        shards = [socket.socket(fileno=os.dup(sock.fileno())) for sock in group.sockets]
        assert [select.select([shard], [], [], 0)[0] for shard in shards] == [[shard] for shard in shards]
        groups.refuse(but=[0])
        shards[0].accept()[0].close()
        with pytest.raises(OSError, match="Invalid argument"):
            shards[1].accept()
        for sock in (*clients, *shards):
            sock.close()
    groups.refuse()
