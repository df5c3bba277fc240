"""Makes the package `gnatswarm` of this tree's folders, and builds its compiled modules in parallel, only what changed.

The table LINKS says where each part of `gnatswarm.…` is in this tree. Each run makes build/name/gnatswarm from it, a
directory of links: it is on the path of an editable install and on Cython's, and a wheel is copied from it. Each .pyx
in a folder of COMPILED becomes a compiled module beside it.

The package's metadata is in pyproject.toml. Environment:
GNATSWARM_NATIVE=1 adds -march=native (the wheel then works on this kind of processor only); GNATSWARM_DEBUG=1 turns on
assertions, AddressSanitizer and UndefinedBehaviorSanitizer; GNATSWARM_FUZZ=1 does the same, and counts the branches
taken, for `make fuzz` (gcc alone); GNATSWARM_SKIP_EXTENSIONS=1 compiles nothing (make installs the package this way,
and compiles afterwards).
"""

from __future__ import annotations

import fcntl
import logging
import os
import platform
import tempfile
import threading
from importlib.metadata import version
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
# Each file sets all others at its top, where they take precedence over these. Nobody pickles objects of the engine: the
# methods for that were an eighth of the modules, and a fiftieth of the time until a shard runs.
DIRECTIVES = {"language_level": 3, "auto_pickle": False}

# Other projects and packages use the names `broker`, `router` and `spark`, so ours exist only under `gnatswarm`.
NAME = ROOT / "build" / "name"
LINKS = {
    "__init__.py": "gnatswarm_init.py",
    "__main__.py": "gnatswarm_main.py",
    "keeper.py": "gnatswarm_keeper.py",
    "any_broker.py": "gnatswarm_any_broker.py",
    "embedding.py": "gnatswarm_embedding.py",
    "capture.py": "gnatswarm_capture.py",
    "chaos.py": "gnatswarm_chaos.py",
    "pytest_plugin.py": "gnatswarm_pytest_plugin.py",
    "broker": "broker",
    "shards": "shards",
    "router": "router",
    "loadtest": "loadtest",
    "spark": "spark",
    "probes": "tests/probes",
}
COMPILED = ("broker", "shards", "loadtest", "probes")
FOR_TESTS = ("probes",)  # in no wheel

FUZZ = os.environ.get("GNATSWARM_FUZZ") == "1"
DEBUG = FUZZ or os.environ.get("GNATSWARM_DEBUG") == "1"
BUILD = "fuzz" if FUZZ else "debug" if DEBUG else "release"  # the directory under build
NATIVE = os.environ.get("GNATSWARM_NATIVE") == "1"
COVERAGE = "tests/fuzz/coverage.h"  # in front of each module of the build for fuzzing
SKIP_EXTENSIONS = os.environ.get("GNATSWARM_SKIP_EXTENSIONS") == "1"

# Overruns of a buffer on the stack and of objects of known size end the process; the tables of addresses are read-only.
# Costs (tests/bench/instructions.py) 0 to 1.7 % of the instructions; -fstack-protector-strong would cost up to 3.3 %.
HARDEN = ["-fstack-protector", "-fstack-clash-protection", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2"]
HARDEN_LINK = ["-Wl,-z,relro,-z,now", "-Wl,-z,noexecstack"]
if platform.machine() == "x86_64":
    HARDEN.append("-fcf-protection")

if DEBUG:
    SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
    # -UNDEBUG: Python's own flags switch C's assert() off.
    COMPILE_ARGS = ["-O1", "-g", "-fno-omit-frame-pointer", "-UNDEBUG", *SANITIZE]
    LINK_ARGS = SANITIZE
    MACROS: list[tuple[str, str | None]] = []
else:
    # -fno-semantic-interposition: calls between functions of one module may be inlined in spite of -fPIC.
    # -g1: line numbers for perf and core dumps, no variables; a tenth of the size of -g.
    COMPILE_ARGS = ["-O3", "-fno-semantic-interposition", "-g1", *HARDEN]
    LINK_ARGS = HARDEN_LINK
    MACROS = [("CYTHON_WITHOUT_ASSERTIONS", "1")]
if FUZZ:
    COMPILE_ARGS += ["-fsanitize-coverage=trace-pc,trace-cmp", "-include", COVERAGE]
# Code that Cython generates has unused functions, variables and results, and compares signed with unsigned counters.
COMPILE_ARGS += ["-Wno-unused-function", "-Wno-unused-variable", "-Wno-unused-result", "-Wno-sign-compare"]
if NATIVE:
    COMPILE_ARGS.append("-march=native")


def make_name() -> None:
    """Make build/name/gnatswarm what LINKS says; safe when several processes do so at the same time."""
    package = NAME / "gnatswarm"
    package.mkdir(parents=True, exist_ok=True)
    (package / "py.typed").touch()  # type checkers look for it in the top-level package only
    for name, place in LINKS.items():
        if not (ROOT / place).exists():  # an archive of the sources has no tests
            continue
        link, target = package / name, os.path.relpath(ROOT / place, package)
        if not link.is_symlink() or os.readlink(link) != target:
            with tempfile.TemporaryDirectory(dir=NAME) as aside:
                os.symlink(target, f"{aside}/link")
                os.replace(f"{aside}/link", link)
    for link in package.iterdir():
        if link.is_symlink() and link.name not in LINKS:
            link.unlink()


def usable_cores() -> int:
    """How many compilers to run at the same time."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class CompiledModule(Extension):
    """An extension that is hashable, because cythonize collects failures in a set; setuptools' own is not."""

    __hash__ = object.__hash__


def extensions() -> list[Extension]:
    """One extension per .pyx, with its name under `gnatswarm`."""
    if SKIP_EXTENSIONS:
        return []
    sources = sorted((source, part) for part in COMPILED for source in Path(LINKS[part]).rglob("*.pyx"))
    return [
        CompiledModule(
            ".".join(("gnatswarm", part, *source.relative_to(LINKS[part]).with_suffix("").parts)),
            [source.as_posix()],
            include_dirs=["broker"],  # word.h: every module that cimports broker/word.pxd includes it
            extra_compile_args=COMPILE_ARGS,
            extra_link_args=LINK_ARGS,
            define_macros=MACROS,
        )
        for source, part in sources
    ]


class BuildCompiledModules(build_ext):
    """Runs Cython when extensions are built, not when only metadata is requested."""

    def finalize_options(self) -> None:
        if not (self.inplace or DEBUG):
            of_tests = tuple(f"gnatswarm.{part}." for part in FOR_TESTS)
            wanted = [module for module in self.distribution.ext_modules or () if not module.name.startswith(of_tests)]
            self.distribution.ext_modules = wanted
        super().finalize_options()
        self.parallel: int = self.parallel or usable_cores()

    def run(self) -> None:
        if not self.extensions:
            return
        work = ROOT / "build" / BUILD
        work.mkdir(parents=True, exist_ok=True)
        with (work / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # two builds in one tree would write each other's files
            self.build_into(work)

    def build_into(self, work: Path) -> None:
        from Cython.Build import cythonize

        # Timestamps show which sources changed, but not that flags or Cython's version did.
        fingerprint = repr((version("cython"), COMPILE_ARGS, LINK_ARGS, MACROS, DIRECTIVES))
        if FUZZ:
            fingerprint += (ROOT / COVERAGE).read_text()
        stamp = work / ("fingerprint-inplace" if self.inplace else "fingerprint-lib")
        begun = stamp.with_name(f"{stamp.name}-begun")  # all C files are made: what is older than it is built again
        is_whole = not (stamp.exists() and stamp.read_text() == fingerprint)
        goes_on = is_whole and begun.exists() and begun.read_text() == fingerprint  # with what was interrupted
        compiled = cythonize(
            self.extensions,
            build_dir=str((work / "cython").relative_to(ROOT)),
            include_path=[str(NAME.relative_to(ROOT))],
            compiler_directives=DIRECTIVES,
            nthreads=usable_cores(),
            force=self.force or (is_whole and not goes_on),
            quiet=True,
            exclude_failures=True,  # Cython prints the errors; the other modules are built all the same
        )
        if is_whole and not goes_on:
            begun.write_text(fingerprint)
        self.remove_modules_without_source()
        with_c = {extension.name: extension for extension in compiled}
        failed = len(with_c) < len(self.extensions)
        self.extensions[:] = [extension for extension in self.extensions if extension.name in with_c]
        for extension in self.extensions:
            extension.sources = with_c[extension.name].sources
            extension.depends = [*with_c[extension.name].depends, *([str(begun)] if is_whole else [])]
        # The longest first, or one of them is left to one core at the end.
        self.extensions.sort(key=lambda extension: -Path(extension.sources[0]).stat().st_size)
        self.built, self.counting = 0, threading.Lock()
        super().run()
        stamp.write_text(fingerprint)
        begun.unlink(missing_ok=True)
        if failed:
            raise SystemExit(1)

    def build_extension(self, ext: Extension) -> None:
        """Build one, on a thread of several, and say how many are done to who shows it (.ci/step)."""
        super().build_extension(ext)
        with self.counting:
            self.built += 1
            if progress := os.environ.get("GNATSWARM_PROGRESS"):
                Path(progress).write_text(f"{self.built} of {len(self.extensions)}")

    def remove_modules_without_source(self) -> None:
        """Remove each .so whose .pyx was renamed or became a .py: Python would still import it, before the .py."""
        target = NAME if self.inplace else Path(self.build_lib)
        wanted = {extension.name for extension in self.extensions}
        for part in COMPILED:
            for built in (target / "gnatswarm" / part).rglob("*.so"):
                module = built.relative_to(target).with_name(built.name.split(".")[0])
                if ".".join(module.parts) not in wanted:
                    built.unlink()


# URLs of pyproject.toml are relative, because no host is known; it would advise against that at every build.
logging.getLogger("setuptools.config._validate_pyproject.formats").setLevel(logging.ERROR)

if __name__ == "__main__":  # cythonize's workers may import this file
    make_name()
    pages = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "deploy" / "man").glob("*.1"))]
    setup(
        ext_modules=extensions(),
        cmdclass={"build_ext": BuildCompiledModules},
        data_files=[("share/man/man1", pages)],
    )
