"""The ports for other servers against raw peers: no process ends, no client misses a message, every end is logged."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.programs import seeds
from tests.fuzz.raw_servers import Attack
from tests.support.authority import Authority


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "TLS"])
async def test_raw_servers_may_say_anything(tmp_path: Path, encrypted: bool):
    attack = await Attack.begun(Authority(tmp_path) if encrypted else None)
    try:
        for seed in seeds("gateway-tls" if encrypted else "gateway"):
            try:
                await attack.case(seed)
            except (AssertionError, OSError) as error:
                raise AssertionError(f"GNATSWARM_FUZZ_SEED={seed}: {error}") from error
    finally:
        attack.close()
    dialled = f"{attack.dialled} dialled as members, {attack.dialled_as_hub} as hubs"
    print(f"{attack.connections} connections, {attack.upgraded} by WebSocket, {dialled}", end=" ")
