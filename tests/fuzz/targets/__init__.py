"""What is fuzzed: for each target a function that takes any bytes and fails where the target breaks its invariant.

A target is a module here with `check(data)`; its docstring states the invariant. `check` is pure: the same bytes
always give the same result. tests/fuzz/guided.py looks for bytes that make it fail; tests/test_fuzz_corpora.py replays
those that were kept in tests/fuzz/corpus/<target>.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

TARGETS = (
    "operations",
    "route_frames",
    "connect",
    "configuration",
    "websocket",
    "statistics_files",
    "control_messages",
)

# Those whose code is compiled. They run on the build for fuzzing, with its sanitizers; the other ones are Python, and
# run without: gcc's sanitizers define empty functions with the names that atheris calls to count Python's branches.
COMPILED = frozenset({"operations", "route_frames"})

CORPUS = Path(__file__).resolve().parent.parent / "corpus"

# The longest input that is tried or kept: longer ones find little that shorter ones do not, and take longer.
MOST_BYTES = 4096

# Parts of one input are separated by this byte: it is not used by any of the formats, and shows in a text file.
SEPARATOR = b"\x1e"


def check_of(target: str) -> Callable[[bytes], None]:
    """The function that checks one input of this target."""
    check: Callable[[bytes], None] = importlib.import_module(f"tests.fuzz.targets.{target}").check
    return check


def words_of(target: str) -> list[bytes]:
    """Words that are worth putting into inputs of this target; [] where the kept inputs have them all."""
    words: list[bytes] = getattr(importlib.import_module(f"tests.fuzz.targets.{target}"), "WORDS", [])
    return words


def kept(target: str) -> list[Path]:
    """The kept inputs of a target."""
    return sorted(path for path in (CORPUS / target).iterdir() if path.is_file())
