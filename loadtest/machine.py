"""The machine of a measurement: processor, memory, kernel, versions, commit; nothing that identifies the machine."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any


def describe() -> dict[str, Any]:
    """Facts for the head of a report; unknown ones are left out."""
    found: dict[str, Any] = {
        "processor": _first(r"(?m)^model name\s*:\s*(.+)$", "/proc/cpuinfo") or platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(int(_first(r"(?m)^MemTotal:\s*(\d+)", "/proc/meminfo") or 0) / 1024**2, 1),
        "kernel": f"{platform.system()} {platform.release()}",
        "virtual": "hypervisor" in (_first(r"(?m)^flags\s*:(.+)$", "/proc/cpuinfo") or ""),
        "python": platform.python_version(),
        "load_average": os.getloadavg()[0],
        "congestion_control": _read("/proc/sys/net/ipv4/tcp_congestion_control"),
        "gnatswarm": _version("gnatswarm"),
        "commit": _commit(),
    }
    return {key: value for key, value in found.items() if value not in ("", None)}


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _first(pattern: str, path: str) -> str:
    match = re.search(pattern, _read(path))
    return match[1].strip() if match else ""


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _commit() -> str:
    """The commit of this source tree, with + if files differ from it; "" outside of a source tree."""
    here = Path(__file__).resolve().parent.parent
    if not (here / ".git").exists():
        return ""
    try:
        said = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--abbrev=10"],
            cwd=here,
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return said.stdout.strip()
