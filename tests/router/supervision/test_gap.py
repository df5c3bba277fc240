"""The gap row is the least of what is to be done about a dead shard."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from gnatswarm.router.supervision import gap


def test_a_row_for_which_there_is_no_thread_is_lost_and_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def start(_thread: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    page: Any = SimpleNamespace(unrecorded=lambda shard: (0, (1, 1, 0, 0, 0, 0)))
    process: Any = SimpleNamespace(shard=3, boot_id="b", booted_us=1)
    assert gap.note_gap(page, process, "server", "/dev/null/no-directory", "killed") is None
    assert [record.getMessage() for record in caplog.records] == [
        "Statistics: no gap row for shard 3: can't start new thread"
    ]
