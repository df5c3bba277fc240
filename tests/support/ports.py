"""A port for a program that a test starts later, or starts again."""

from __future__ import annotations

import contextlib
import random
import socket

from tests.support.servers import HOST

# Below those that the kernel gives to whoever asks for any, or dials.
_RANGE = range(12_000, 32_000)


def free_port() -> int:
    """A port on which nobody listens, and which nobody is given: another test's broker could have it otherwise."""
    while True:
        port = random.choice(_RANGE)
        with contextlib.suppress(OSError), socket.create_server((HOST, port)):
            return port
