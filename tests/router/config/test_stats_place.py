"""Statistics go where they are told to go, or nowhere: never does a directory keep a broker from its work."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from gnatswarm.broker.options import Options, Stats
from gnatswarm.router.config.stats_place import stats_place


@pytest.mark.parametrize("configured", ["stats", ""])
def test_a_path_that_is_no_utf_8_turns_them_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, configured: str):
    """It is part of a message to the shards, which such a path is not: the start ended in a traceback."""
    here = tmp_path / os.fsdecode(b"\xff")
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("XDG_STATE_HOME", str(here))
    place = stats_place(Options(stats=Stats(enabled=True, dir=configured)), "gnatswarm")
    assert place.directory == ""
    assert "is not UTF-8" in place.notice
    msgspec.json.encode(place.notice)
    assert list(here.iterdir()) == []
