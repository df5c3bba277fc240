"""The ports for other servers against raw peers: no process ends, no client misses a message, every end is logged."""

from __future__ import annotations

from tests.fuzz.programs import seeds
from tests.fuzz.raw_servers import Attack


async def test_raw_servers_may_say_anything():
    attack = await Attack.begun()
    try:
        for seed in seeds("gateway"):
            try:
                await attack.case(seed)
            except (AssertionError, OSError) as error:
                raise AssertionError(f"GNATSWARM_FUZZ_SEED={seed}: {error}") from error
    finally:
        attack.close()
    print(f"{attack.connections} connections, {attack.dialled} dialled", end=" ")
