"""How a shard ends when it cannot go on: at once, and with the reason in the log."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
