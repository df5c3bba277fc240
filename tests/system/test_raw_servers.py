"""Raw peers at the ports for other servers may say anything: always the same cases; `make fuzz` tries others."""

from __future__ import annotations

from tests.fuzz.raw_servers import Attack

CASES = 25
# In the log: peers of both kinds came so far as to pass messages, others were refused at each step before.
STEPS = ["Route connection created", "Leafnode parser ERROR", "INFO cannot be read", "CONNECT cannot be read"]
STEPS += ["no frame of a server", "told of a member at an address", "Error trying to connect to route"]


async def test_raw_servers_may_say_anything() -> None:
    attack = await Attack.begun()
    try:
        for seed in range(CASES):
            try:
                await attack.case(seed)
            except (AssertionError, OSError) as error:
                raise AssertionError(f"case {seed}: {error}") from error
        log = attack.broker.log.text
        for step in STEPS:
            assert step in log, step
        assert attack.dialled, "gossip did not make the broker dial a peer"
    finally:
        attack.close()
