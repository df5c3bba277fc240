"""`gnatswarm upgrade` is refused where other processes could not talk to ours: it has to know every format."""

from __future__ import annotations

import re
from pathlib import Path

from gnatswarm.shards import formats

ROOT = Path(__file__).resolve().parents[2]
# Read from files, by whoever reads them: not between processes of one broker.
ON_DISK = {"RECORDS_VERSION"}


def test_every_format_between_processes_is_known() -> None:
    known = Path(formats.__file__).read_text()
    found = {
        name
        for folder in ("broker", "shards")
        for path in (ROOT / folder).rglob("*.py")
        for name in re.findall(r"(?m)^([A-Z_]+_VERSION) = \d+$", path.read_text())
    }
    assert len(found) > 5
    assert {name for name in found - ON_DISK if name not in known} == set()
    assert all(version > 0 for version in formats.versions().values())
