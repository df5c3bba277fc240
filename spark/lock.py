"""One run at a time writes in a directory: two would remove what the other is writing, and neither would say so.

The lock is on the directory itself, and ends with its process. What is an address (with ://) is not locked, and
neither is a directory of a file system without such locks.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator

from gnatswarm.spark.directories import absolute


@contextlib.contextmanager
def alone(directory: str, on_wait: Callable[[], object] | None = None) -> Iterator[bool]:
    """Lock it, and make it where it is missing; False: another run has it.

    With `on_wait` wait for that one, after a call of it.
    """
    descriptor = -1
    is_alone = True
    try:
        with contextlib.suppress(OSError):  # whoever writes there says why that cannot be
            if "://" not in directory:
                os.makedirs(absolute(directory), exist_ok=True)
                descriptor = os.open(absolute(directory), os.O_RDONLY | os.O_DIRECTORY)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    is_alone = on_wait is not None
                    if on_wait is not None:
                        on_wait()
                        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield is_alone
    finally:
        if descriptor >= 0:
            os.close(descriptor)
