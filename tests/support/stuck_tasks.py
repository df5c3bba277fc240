"""What the tasks of a test wait for, when its time is nearly up: the stack of the thread says that the loop waits."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def told_after(seconds: float) -> Iterator[None]:
    """Print to standard error where each task is that is not done after so long; pytest shows it of a failure."""
    timer = threading.Timer(seconds, _tell)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # there are tests that no thread is left


def _tell() -> None:
    for task in [one for one in gc.get_objects() if isinstance(one, asyncio.Task)]:
        if not task.done():
            print(task, *stack_of(task), sep="\n  ", file=sys.stderr, flush=True)


def stack_of(task: asyncio.Task[object]) -> list[str]:
    """Where it waits, outermost first: unlike Task.get_stack(), with what its coroutine awaits in turn."""
    found: list[str] = []
    waiting: object = task.get_coro()
    while waiting is not None:
        frame = getattr(waiting, "cr_frame", None) or getattr(waiting, "gi_frame", None)
        if frame is None:
            return [*found, f"awaits {waiting}"]
        found.append(f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_qualname}")
        waiting = getattr(waiting, "cr_await", None) or getattr(waiting, "gi_yieldfrom", None)
    return found
