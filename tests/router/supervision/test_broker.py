"""What a router tells all its processes at once."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

from gnatswarm.broker.options import Options
from gnatswarm.router.supervision.broker import SupervisedBroker
from gnatswarm.shards.boundary import control


def test_what_all_are_told_is_encoded_and_kept_once() -> None:
    """Options may have 15 MiB, and there may be 62 shards that take their time to read them."""
    told: list[bytes] = []
    processes = [SimpleNamespace(process=SimpleNamespace(send_encoded=told.append)) for _ in range(4)]
    broker: Any = SimpleNamespace(members=[*processes[:3], SimpleNamespace(process=None)], relays=processes[3:])
    message = control.Reload(Options(), 3)
    broker.tell_all_encoded = partial(SupervisedBroker.tell_all_encoded, broker)
    SupervisedBroker.tell_all(broker, message)
    assert told == [control.encode(message)] * 4
    assert len(set(map(id, told))) == 1
