"""When a soak or a trial ends, and pauses that end with it: the pace of clients, and how long a fault lasts."""

from __future__ import annotations

import asyncio
import contextlib


class Clock:
    """`is_over` is set in the end."""

    def __init__(self) -> None:
        self.is_over = asyncio.Event()

    async def pause(self, seconds: float) -> None:
        """So long, or until it is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.is_over.wait()
