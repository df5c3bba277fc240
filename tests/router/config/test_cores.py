"""The default number of shards respects affinity and the quota of the control group, both versions."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gnatswarm.router.config.cores import usable_cores


def group(tmp_path: Path, line: str, files: dict[str, str]) -> tuple[str, str]:
    (tmp_path / "self").write_text(line + "\n")
    for name, text in files.items():
        path = tmp_path / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(tmp_path / "self"), str(tmp_path / "cgroup")


@pytest.fixture(autouse=True)
def sixteen_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(16)))


@pytest.mark.parametrize(
    ("line", "files", "cores"),
    [
        ("0::/a/b", {}, 16),
        ("0::/a/b", {"a/b/cpu.max": "max 100000\n"}, 16),
        ("0::/a/b", {"a/b/cpu.max": "300000 100000\n"}, 3),
        ("0::/a/b", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "150000 100000\n"}, 2),
        ("0::/a/b", {"a/b/cpu.max": "10000 100000\n"}, 1),
        ("0::/", {"cpu.max": "400000 100000\n"}, 4),
        ("0::/../../host", {"cpu.max": "400000 100000\n"}, 4),
        ("3:cpu,cpuacct:/x", {"cpu/x/cpu.cfs_quota_us": "250000\n", "cpu/x/cpu.cfs_period_us": "100000\n"}, 3),
        ("3:cpu,cpuacct:/x", {"cpu/x/cpu.cfs_quota_us": "-1\n", "cpu/x/cpu.cfs_period_us": "100000\n"}, 16),
        ("0::/a", {"a/cpu.max": "nonsense"}, 16),
        ("nonsense", {}, 16),
        ("0::/a", {"a/cpu.max": "9000000 100000\n"}, 16),
    ],
)
def test_quota(tmp_path: Path, line: str, files: dict[str, str], cores: int) -> None:
    assert usable_cores(*group(tmp_path, line, files)) == cores


def test_affinity_and_the_most_shards_there_can_be(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nothing = group(tmp_path, "", {})
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {3})
    assert usable_cores(*nothing) == 1
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(200)))
    assert usable_cores(*nothing) == 62
