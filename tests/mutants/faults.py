"""Deliberate faults, as the TOML files beside this one tell them.

A fault is a text in a source file that occurs there exactly once, and what replaces it. Unlike a context diff it
still applies when lines around it change, and one reads it without knowing line numbers.
"""

from __future__ import annotations

import hashlib
import tomllib
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Fault:
    """One fault, and the tests that are expected to see it."""

    name: str
    file: str  # relative to the project
    find: str  # occurs exactly once
    replace: str
    promise: str  # one sentence: what does not hold with this fault
    tests: tuple[str, ...] = ()  # files, or file::test
    simulation: int = 0  # so many drawn schedules, besides those of the corpus
    chosen_blind: bool = False  # from the code alone, before any test was read
    equivalent: str = ""  # why nobody can notice it; such a fault is not run

    @property
    def is_compiled(self) -> bool:
        return self.file.endswith(".pyx")

    def applied(self, source: str) -> str:
        """The source with this fault. ValueError: its text does not occur exactly once."""
        found = source.count(self.find)
        if found != 1:
            raise ValueError(f"{self.name}: the text to find occurs {found} times in {self.file}")
        return source.replace(self.find, self.replace)

    @property
    def digest(self) -> str:
        """Changes with everything that a run depends on, so that a changed fault is run again."""
        told = repr((self.file, self.find, self.replace, self.tests, self.simulation, self.equivalent))
        return hashlib.sha256(told.encode()).hexdigest()[:12]


def faults() -> list[Fault]:
    """All of them, in the order of their files."""
    found = []
    for path in sorted(HERE.glob("*.toml")):
        for table in tomllib.loads(path.read_text())["fault"]:
            table["tests"] = tuple(table.get("tests", ()))
            for text in ("find", "replace"):  # a text of several lines ends where its last line does
                table[text] = table[text].removesuffix("\n")
            found.append(Fault(**table))
    return found
