"""How a shard ends when it cannot go on: at once, and with the reason in the log."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gnatswarm.broker.options import Logging
from gnatswarm.shards.worker import Worker

DIE = """
from gnatswarm.shards import worker
try:
    raise {error}
except BaseException as error:
    worker._die(None, {{"message": "Exception in callback", "exception": error}})
"""


@pytest.mark.parametrize(
    ("error", "lines"),
    [
        ("MemoryError()", ["Out of memory: this shard ends, and another one takes its place"]),
        (
            "__import__('gnatswarm.shards.boundary.certificates', fromlist=['']).CertificateError('open a.pem: no')",
            ["open a.pem: no: this shard ends, and another one takes its place"],
        ),
        ("ValueError('odd')", ["Exception in callback", "Traceback (most recent call last):", "ValueError: odd"]),
    ],
)
def test_what_was_not_expected_ends_the_shard_and_is_told(error: str, lines: list[str]):
    done = subprocess.run(
        [sys.executable, "-P", "-c", DIE.format(error=error)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 70
    said = done.stderr.splitlines()
    assert [line for line in said if not line.startswith(" ")] == lines


def test_a_relay_whose_log_cannot_be_opened_again_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """As where the directory has gone since. It is the log of the last reload, not that of the start."""
    asked: list[Logging] = []

    def configure(options: Logging, *, process_label: str) -> None:
        asked.append(options)
        raise FileNotFoundError(2, "No such file or directory", options.file)

    monkeypatch.setattr("gnatswarm.shards.worker.logs.configure", configure)
    worker: Any = SimpleNamespace(
        _logging=Logging(file=str(tmp_path / "gone" / "b.log")), _reserved=contextlib.nullcontext
    )
    Worker._relabel_log(worker, "relay 1")
    assert asked == [worker._logging]
    assert "The log stays as it was" in caplog.text and "No such file" in caplog.text
