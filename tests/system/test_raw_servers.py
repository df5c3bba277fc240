"""Raw peers at the ports for other servers may say anything: always the same cases; `make fuzz` tries others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.raw_servers import Attack
from tests.support.authority import Authority

CASES = {"plain": 25, "TLS": 8}
# In the log: peers of both kinds came so far as to pass messages, others were refused at each step before.
STEPS = ["Route connection created", "Leafnode parser ERROR", "INFO cannot be read", "CONNECT cannot be read"]
STEPS += ["no frame of a server", "told of a member at an address", "Error trying to connect to route"]


@pytest.mark.parametrize("kind", CASES)
async def test_raw_servers_may_say_anything(tmp_path: Path, kind: str) -> None:
    attack = await Attack.begun(Authority(tmp_path) if kind == "TLS" else None)
    try:
        for seed in range(CASES[kind]):
            try:
                await attack.case(seed)
            except (AssertionError, OSError) as error:
                raise AssertionError(f"case {seed}: {error}") from error
        log = attack.broker.log.text
        assert attack.dialled_as_hub and attack.upgraded
        for step in STEPS if kind == "plain" else ["TLS", *STEPS[:1]]:
            assert step in log, step
        assert attack.dialled or kind == "TLS", "gossip did not make the broker dial a peer"
    finally:
        attack.close()
