"""The first screen says what somebody who starts a broker by hand wants to know."""

from __future__ import annotations

import pytest

from broker.version import OWN_VERSION
from router.first_screen import first_screen


def test_it_has_version_address_processes_and_something_to_try() -> None:
    text = first_screen("0.0.0.0:4222", 100, [101, 102], "reuseport")
    assert text.startswith(f"gnatswarm {OWN_VERSION} (")
    assert "0.0.0.0:4222" in text
    assert "router 100, 2 shards (reuseport): 101 102" in text
    assert text.endswith("| nc -q 1 127.0.0.1 4222\n")
    assert max(len(line) for line in text.splitlines()) <= 100


@pytest.mark.parametrize(
    ("address", "dial"), [("[::1]:4222", "::1 4222"), ("[::]:1", "127.0.0.1 1"), ("10.0.0.1:5", "10.0.0.1 5")]
)
def test_what_to_dial(address: str, dial: str) -> None:
    assert first_screen(address, 1, [2], "handoff").endswith(f"nc -q 1 {dial}\n")


def test_many_shards_are_not_a_wall_of_numbers() -> None:
    text = first_screen("0.0.0.0:4222", 100, list(range(1_000_000, 1_000_064)), "reuseport")
    assert "64 shards" in text
    assert "…" in text
