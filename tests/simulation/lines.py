"""Which lines of the compiled engine the simulation runs: `python -m tests.simulation.lines --schedules 2000`.

Makes a separate build of broker/ and the tests' probes in build/lines, with gcc's counters (gcov); the usual build
stays as it is, and its compiled modules of shards are used. Only lines that Cython translates to C count.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
WORK = ROOT / "build" / "lines"
PARTS = ("broker", "shards", "router", "tests")
BUILD = """
from pathlib import Path
from setuptools import Extension, setup
from Cython.Build import cythonize
sources = [*Path("broker").rglob("*.pyx"), Path("tests/probes/engine.pyx"), Path("tests/probes/pipes.pyx")]
def name(source):
    return "gnatswarm." + ".".join(source.with_suffix("").parts).removeprefix("tests.")
flags = ["-O0", "--coverage", "-fprofile-update=single"]
modules = [
    Extension(name(source), [str(source)], include_dirs=["broker"], extra_compile_args=flags,
              extra_link_args=["--coverage"], define_macros=[("CYTHON_WITHOUT_ASSERTIONS", "1")])
    for source in sources
]
compiled = cythonize(modules, emit_linenums=True, quiet=True, include_path=["build/name"])
setup(name="lines", packages=[], ext_modules=compiled)
"""
RUN = """
import sys
from tests.simulation.hunt import hunt
covered, failed = hunt(0, 1, 3600.0, int(sys.argv[1]))
assert not failed, failed
"""


def build() -> None:
    """Copies the sources, and compiles them with counters."""
    shutil.rmtree(WORK, ignore_errors=True)
    for part in PARTS:
        # What is compiled of shards is imported, and not measured.
        made_anew = () if part == "shards" else ("*.so",)
        ignored = shutil.ignore_patterns(*made_anew, "*.c", "__pycache__")
        shutil.copytree(ROOT / part, WORK / part, ignore=ignored)
    package = WORK / "build" / "name" / "gnatswarm"
    package.mkdir(parents=True)
    for file, target in (("__init__.py", "gnatswarm_init.py"),):
        shutil.copy(ROOT / target, package / file)
    for part, place in (("broker", "broker"), ("shards", "shards"), ("router", "router"), ("probes", "tests/probes")):
        (package / part).symlink_to(WORK / place)
    (WORK / "build.py").write_text(BUILD)
    jobs = str(len(os.sched_getaffinity(0)))
    words = [sys.executable, "build.py", "--quiet", "build_ext", "--build-lib", "build/name", "--parallel", jobs]
    # The name points at the sources, so that what is built lies beside them.
    subprocess.run(words, cwd=WORK, env={**os.environ, "PYTHONPATH": str(package.parent)}, check=True)


def counts() -> dict[str, tuple[int, int]]:
    """(lines that ran, lines that there are) by module."""
    lines: dict[str, dict[int, int]] = defaultdict(dict)
    for notes in WORK.rglob("*.gcda"):
        words = ["gcov", "--json-format", "--stdout", str(notes)]
        told = subprocess.run(words, cwd=WORK, capture_output=True, check=True).stdout
        for file in json.loads(told)["files"]:
            if file["file"].endswith(".pyx"):
                found = lines[Path(file["file"]).name]
                for line in file["lines"]:
                    number = line["line_number"]
                    found[number] = found.get(number, 0) + line["count"]
    return {name: (sum(1 for n in found.values() if n), len(found)) for name, found in sorted(lines.items())}


def main() -> None:
    """Prints a table in Markdown."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.lines", description=__doc__)
    parser.add_argument("--schedules", type=int, default=2000)
    words = parser.parse_args()
    build()
    env = {**os.environ, "PYTHONPATH": f"{WORK / 'build' / 'name'}:{WORK}"}
    subprocess.run([sys.executable, "-P", "-c", RUN, str(words.schedules)], cwd=WORK, env=env, check=True)
    print("| module | lines that ran | of | |\n|---|---:|---:|---:|")
    for name, (ran, there) in counts().items():
        print(f"| `{name}` | {ran:,} | {there:,} | {ran / there:.0%} |")


if __name__ == "__main__":
    main()
