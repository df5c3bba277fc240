"""A foreign package under one of our names is named, with its place."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from router import packages

ROOT = Path(__file__).resolve().parent.parent.parent


def test_ours_are_ours() -> None:
    assert packages.clash() == ""


def test_another_package_named_shards_is_named(tmp_path: Path) -> None:
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "__init__.py").touch()
    done = subprocess.run(
        [sys.executable, "-P", "-c", "from router import packages; print(packages.clash())"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"},
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    assert f"another package 'shards' in {tmp_path} before gnatswarm's in {ROOT}" in done.stdout
