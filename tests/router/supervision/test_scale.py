"""What a router tells shards that are too many."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gnatswarm.broker.limits import Limits
from gnatswarm.broker.options import Options
from gnatswarm.router.supervision.supervision import Phase
from gnatswarm.shards.boundary.control import ControlMessage, Drain
from tests.router.supervision.test_take_over import Broker, a_shard, a_supervisor


@pytest.mark.parametrize(
    ("grace_s", "clients", "within_s"), [(10.0, (0, 30_000), (10.0, 310.0)), (0.0, (0, 30_000), (0.0, 0.0))]
)
def test_a_shard_with_many_clients_has_longer_to_leave(
    grace_s: float, clients: tuple[int, int], within_s: tuple[float, float]
) -> None:
    """They would be closed, and others could take them; not where nothing is waited for."""
    said: dict[int, list[ControlMessage]] = {n: [] for n in range(3)}
    shards = [a_shard(n, phase=Phase.READY, is_wanted=True) for n in said]
    for shard in shards:
        process: Any = SimpleNamespace(boot_id=f"b{shard.number}", send=said[shard.number].append)
        shard.process = process
    broker = Broker(*shards, wanted=3)
    broker.options = Options(limits=Limits(lame_duck_grace_s=grace_s))
    broker.hold = lambda more: None
    broker.page.snapshot = lambda number: {"connections": clients[number - 1]}
    a_supervisor(broker)._want(1)
    told = {n: [one for one in messages if isinstance(one, Drain)] for n, messages in said.items()}
    assert told == {0: [], 1: [Drain(within_s[0], [0])], 2: [Drain(within_s[1], [0])]}
