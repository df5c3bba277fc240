"""UPSTREAM.md names tests that exist, and each test of nats-server once."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROWS = re.findall(r"^\| (?!there|---)(.*?) \| (.*?) \|$", (HERE / "UPSTREAM.md").read_text(), re.MULTILINE)


def test_every_test_that_it_names_exists() -> None:
    sources = "\n".join(path.read_text() for path in HERE.parent.rglob("test_*.py"))
    named = {name for _, here in ROWS for name in re.findall(r"`(test_\w+)`", here)}
    assert len(named) > 60
    assert sorted(name for name in named if not re.search(rf"def {name}\(", sources)) == []


def test_each_test_of_nats_server_stands_once_with_an_answer() -> None:
    there = [name for names, _ in ROWS for name in re.split(r", | and their .*| \(.*?\)", names) if name]
    assert sorted(name for name in set(there) if there.count(name) > 1) == []
    assert all(len(here) > 10 for _, here in ROWS)
