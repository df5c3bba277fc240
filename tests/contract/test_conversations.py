"""Random conversations with the real server and with us: in each step, every client hears the same.

`GNATSWARM_CONVERSATIONS=500` plays so many settings, `GNATSWARM_CONVERSATION_SEED=…` begins with another seed; the seed
that fails, its configuration and the steps so far are in the message.
"""

from __future__ import annotations

import asyncio
import os
import random

import pytest

from tests.contract.conversations import (
    NAMES,
    Heard,
    Setting,
    Side,
    Step,
    are_alike,
    connect,
    conversation,
    setting,
    text_for,
)
from tests.support.required import require
from tests.support.servers import KINDS, Broker

PAIRS = (("nats-server", "gnatswarm-2"), ("nats-server-2.15", "gnatswarm-2-as-2.15"), ("nats-server", "gnatswarm-4"))
SETTINGS = int(os.environ.get("GNATSWARM_CONVERSATIONS", "3"))
FIRST_SEED = int(os.environ.get("GNATSWARM_CONVERSATION_SEED", "1"))
CONVERSATIONS, STEPS = 3, 40


def cases() -> list[object]:
    return [
        pytest.param(pair, seed, id=f"{pair[1]}-{seed}")
        for pair in PAIRS
        for seed in range(FIRST_SEED, FIRST_SEED + SETTINGS)
    ]


@pytest.mark.parametrize(("pair", "seed"), cases())
async def test_everybody_hears_what_they_would_hear_from_the_real_server(pair: tuple[str, str], seed: int) -> None:
    require(KINDS[pair[0]])
    chance = random.Random(seed)
    where = setting(chance)
    brokers = [Broker(KINDS[kind], config=where.text) for kind in pair]
    try:
        for broker in brokers:
            broker.start()
        for _ in range(CONVERSATIONS):
            await play((Side(brokers[0]), Side(brokers[1])), where, conversation(chance, where, STEPS), chance)
        assert "Traceback" not in brokers[1].log.text
    finally:
        for broker in brokers:
            await asyncio.to_thread(broker.kill)


async def play(sides: tuple[Side, Side], where: Setting, steps: list[Step], chance: random.Random) -> None:
    said: list[str] = []

    def compare(heard: list[Heard]) -> None:
        story = "\n".join([where.text, *said, "theirs:", repr(heard[0]), "ours:", repr(heard[1])])
        assert are_alike(heard[0], heard[1]), story
        assert sides[0].closed == sides[1].closed, story

    async def log_in(name: str, options: str) -> None:
        said.append(f"{name}: {options}")
        compare(list(await asyncio.gather(*(side.log_in(name, options) for side in sides))))

    try:
        for name in NAMES:
            await log_in(name, connect(chance, where.users))
        for step in steps:
            for name in sorted(sides[0].closed):
                await log_in(name, step.log_in)
            texts = [text_for(side, sides, step) for side in sides]
            if step.client in sides[0].closed or not texts[0]:
                continue
            said.append(f"{step.client}: {texts[1]!r}" + f" by {step.piece_bytes} bytes" * (step.piece_bytes > 0))
            played = (side.play(step.client, text, step.piece_bytes) for side, text in zip(sides, texts, strict=True))
            compare(list(await asyncio.gather(*played)))
    finally:
        for side in sides:
            side.close()
