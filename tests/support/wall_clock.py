"""A wall clock for one broker, by a small preloaded library: a test can set it while the broker runs.

Setting the machine's clock would need privileges and affect all programs. Timers are monotonic and not affected, as
when a real clock is set. Skips where there is no C compiler.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import time
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_suffix(".c")
BUILD_DEADLINE_S = 120


class WallClock:
    """`environment` is for the processes that should have this clock."""

    def __init__(self, directory: Path) -> None:
        compiler = os.environ.get("CC", "cc")
        if shutil.which(compiler) is None:
            pytest.skip(f"there is no C compiler ({compiler})")
        library = directory / "wall_clock.so"
        words = [compiler, "-Wall", "-Wextra", "-Werror", "-O1", "-fPIC", "-shared", str(SOURCE), "-o", str(library)]
        subprocess.run(words, check=True, timeout=BUILD_DEADLINE_S)
        self._offset = directory / "wall_clock_offset_us"
        self._offset.write_bytes(bytes(8))
        # ASan's runtime, in a debug build's run, has to come first.
        preloaded = [word for word in (os.environ.get("LD_PRELOAD"), str(library)) if word]
        self.environment = {"LD_PRELOAD": " ".join(preloaded), "WALL_CLOCK_OFFSET": str(self._offset)}

    @property
    def offset_s(self) -> float:
        """Seconds by which it is ahead of the real clock."""
        return float(struct.unpack("=q", self._offset.read_bytes())[0] / 1e6)

    def set(self, ahead_s: float) -> None:
        """So far ahead of the real one from here on, in one step; negative: behind."""
        with self._offset.open("r+b", buffering=0) as file:
            file.write(struct.pack("=q", int(ahead_s * 1e6)))

    def now_us(self) -> int:
        """Its current time."""
        return time.time_ns() // 1000 + int(self.offset_s * 1e6)
