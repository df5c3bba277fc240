"""Who is told that a server was too late to be waited for."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest

from gnatswarm.broker.options import Options
from gnatswarm.shards.gateway.route import RouteSession
from gnatswarm.shards.gateway.server_waits import ServerWaits

SLOT = 40


@pytest.mark.parametrize("fence", ["broker", "cluster"])
async def test_the_log_says_of_a_late_member_that_pongs_do_not_wait_for_it_where_they_do_for_others(fence: str) -> None:
    """Queue members that have left wait for it, too: that is nothing to warn of."""
    member = Mock(spec=RouteSession, link=SimpleNamespace(slot=SLOT))
    rules = SimpleNamespace(expire=lambda _now_us, _bound_us: ([SLOT], 0), is_on=False, on_wait=None)
    flushed = asyncio.Event()
    exchange = cast(Any, SimpleNamespace(fence=rules))
    ServerWaits(
        asyncio.get_running_loop(),
        exchange,
        Options(fence=fence, fence_timeout_s=0.001),
        lambda: [member],
        flushed.set,
    )
    assert rules.on_wait is not None
    rules.on_wait()
    await asyncio.wait_for(flushed.wait(), 20)
    assert member.say_late.called is (fence == "cluster")
