"""An event loop for tests of what happens after a time, which need not pass."""

from __future__ import annotations

import asyncio


class ClockLoop(asyncio.SelectorEventLoop):
    """A loop whose clock the test sets."""

    now_s = 0.0

    def time(self) -> float:
        return self.now_s

    def pass_s(self, seconds: float) -> None:
        self.now_s += seconds
        for _ in range(3):  # what is due, what that causes, and its end
            self.call_soon(self.stop)
            self.run_forever()
