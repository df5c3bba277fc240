"""What tests of the load generators share."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest


@pytest.fixture
def unused_port() -> Iterator[int]:
    """A loopback port on which nobody listens, kept from others while the test runs."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield sock.getsockname()[1]
