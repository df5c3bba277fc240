"""What the router reads of its broker agrees with the shared page at every moment."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from gnatswarm.broker.options import Options
from gnatswarm.router.monitoring import facts
from gnatswarm.router.supervision.supervision import Phase, ShardState
from gnatswarm.shards.boundary.page import Page


def view_of(page: Page, shards: int) -> Any:
    """A broker that serves with so many shards."""
    state = ShardState(phase=Phase.READY, is_wanted=True, was_ready=True)
    return SimpleNamespace(
        page=page,
        shards=[SimpleNamespace(number=number, state=state, process=None) for number in range(shards)],
        options=Options(),
        wanted=shards,
        listener_groups=SimpleNamespace(clients=SimpleNamespace(port=4222), websocket=None, servers={}),
        cluster_news=None,
        gateway=None,
        relays=[],
        placed=[],
        pid=1,
        server_id="N",
        server_name="N",
        stats_dir="",
        lost_msgs=0,
        started_at=0.0,
        configured_us=0,
        reload_failed_us=0,
        is_serving=True,
    )


def test_a_client_on_its_way_between_shards_is_connected_all_the_time():
    page = Page.create()
    view = view_of(page, 2)

    def connections() -> int:
        return facts.gather(view, facts.Meter(), http=("", 0), cores=1).connections

    assert page.try_add_connection(0, 0) and page.try_add_connection(1, 0)
    seen = [connections()]
    for step, shard in ((page.expect_connection, 1), (page.pass_connection, 0), (page.take_connection, 1)):
        step(shard)
        seen.append(connections())
    page.remove_connection(1)
    page.close()
    assert [*seen, connections()] == [2, 2, 2, 2, 1]
