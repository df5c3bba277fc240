"""A shard looks after the match caches of its accounts."""

from __future__ import annotations

import gc

from gnatswarm.broker.options import Options
from gnatswarm.probes.sublist import all_caches, fill_cache
from tests.support.one_shard import OneShard
from tests.support.turns import until


async def test_what_its_accounts_caches_have_too_much_is_forgotten_between_turns() -> None:
    gc.collect()  # other tests' caches
    _bytes_now, most, left = all_caches()
    house = OneShard(Options())
    for number in range(4):
        fill_cache(house.shard.mesh.account(b"%d" % number), 0, 2000, 30_000)
    assert all_caches()[0] > most
    await until(lambda: all_caches()[0] <= left)
    house.close()
