"""A wait for what no event tells: the condition is looked at in every turn of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

WITHIN_S = 40


async def until(condition: Callable[[], object]) -> None:
    """Give the loop turns until the condition holds; TimeoutError after WITHIN_S seconds."""
    async with asyncio.timeout(WITHIN_S):
        while not condition():  # noqa: ASYNC110 - no event for what tests alone want to know
            await asyncio.sleep(0)
