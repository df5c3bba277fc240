"""Runs one target under atheris: libFuzzer changes inputs, and keeps those that take a new branch.

Python modules of the target are instrumented when they are imported, compiled ones count their own branches
(tests/fuzz/coverage.h, in the build for fuzzing only). Usage, by tests.fuzz alone:

    python -m tests.fuzz.guided TARGET [libFuzzer's own flags and directories]
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys

import atheris
from atheris import core_with_libfuzzer

from tests.fuzz.targets import COMPILED, check_of, kept

# As the macro in coverage.h.
COUNTERS = 16_384
# Python modules of others that process the target's bytes.
OTHERS = {"websocket": ["websockets"]}
# Compiled modules whose branches say something about the inputs; the other ones only cost time.
MODULES = ("gnatswarm.broker.",)


def main() -> None:
    """Fuzz until libFuzzer ends the process."""
    target, *flags = sys.argv[1:]
    with atheris.instrument_imports(include=["gnatswarm", *OTHERS.get(target, [])]):
        check = check_of(target)
        for path in kept(target):  # imports what is only imported when it is needed
            with contextlib.suppress(Exception):
                check(path.read_bytes())
    atheris.Setup([os.environ.get("GNATSWARM_FUZZ_WRAPPER", sys.argv[0]), *flags], check)
    if target in COMPILED:
        register()
    atheris.Fuzz()


def register() -> None:
    """Tell libFuzzer where compiled modules count their branches, and let it see what they compare."""
    fuzzer = ctypes.CDLL(core_with_libfuzzer.__file__)
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__file__", None) or ""
        if not name.startswith(MODULES) or not file.endswith(".so"):
            continue
        library = ctypes.CDLL(file)
        if not hasattr(library, "gnatswarm_counters"):
            continue
        counters = ctypes.addressof(ctypes.c_char.in_dll(library, "gnatswarm_counters"))
        places = ctypes.addressof(ctypes.c_char.in_dll(library, "gnatswarm_places"))
        fuzzer.__sanitizer_cov_8bit_counters_init(ctypes.c_void_p(counters), ctypes.c_void_p(counters + COUNTERS))
        fuzzer.__sanitizer_cov_pcs_init(ctypes.c_void_p(places), ctypes.c_void_p(places + 16 * COUNTERS))
        compared = (ctypes.c_void_p * 4).in_dll(library, "gnatswarm_compared")
        for index, size in enumerate((1, 2, 4, 8)):
            compared[index] = ctypes.cast(getattr(fuzzer, f"__sanitizer_cov_trace_cmp{size}"), ctypes.c_void_p).value


if __name__ == "__main__":
    main()
