"""Builds the compiled modules: every .pyx under broker/, shards/ and loadtest/, in parallel, and only what changed.

The rest of the package's description stands in pyproject.toml. Environment:
GNATSWARM_NATIVE=1 adds -march=native (such a wheel does not travel); GNATSWARM_DEBUG=1 turns on assertions,
AddressSanitizer and UndefinedBehaviorSanitizer; GNATSWARM_SKIP_EXTENSIONS=1 compiles nothing (make installs the package
so, and compiles after).
"""

from __future__ import annotations

import fcntl
import os
from importlib.metadata import version
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
COMPILED_FOLDERS = ("broker", "shards", "loadtest")
DIRECTIVES = {"language_level": 3}  # every other directive is a file's own, at its top; there it wins over this
ROOT_MODULES = ("gnatswarm", "gnatswarm_capture", "gnatswarm_pytest")

DEBUG = os.environ.get("GNATSWARM_DEBUG") == "1"
NATIVE = os.environ.get("GNATSWARM_NATIVE") == "1"
SKIP_EXTENSIONS = os.environ.get("GNATSWARM_SKIP_EXTENSIONS") == "1"

if DEBUG:
    SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
    # -UNDEBUG: Python's own flags switch C's assert() off.
    COMPILE_ARGS = ["-O1", "-g", "-fno-omit-frame-pointer", "-UNDEBUG", *SANITIZE]
    LINK_ARGS = SANITIZE
    MACROS: list[tuple[str, str | None]] = []
else:
    # -fno-semantic-interposition: calls between functions of one module may be inlined in spite of -fPIC.
    # -g1: line numbers for perf and core dumps, no variables; a tenth of the size of -g.
    COMPILE_ARGS = ["-O3", "-fno-semantic-interposition", "-g1"]
    LINK_ARGS = []
    MACROS = [("CYTHON_WITHOUT_ASSERTIONS", "1")]
# What Cython writes and then does not need, or counts with an int of its own, is nobody's mistake.
COMPILE_ARGS += ["-Wno-unused-function", "-Wno-unused-variable", "-Wno-sign-compare"]
if NATIVE:
    COMPILE_ARGS.append("-march=native")


def usable_cores() -> int:
    """How many compilers may run at once."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class CompiledModule(Extension):
    """An extension that can be in a set, where cythonize collects failures; setuptools' own cannot."""

    __hash__ = object.__hash__


def extensions() -> list[Extension]:
    """One extension per .pyx, named after its place."""
    if SKIP_EXTENSIONS:
        return []
    sources = sorted(path for folder in COMPILED_FOLDERS for path in Path(folder).rglob("*.pyx"))
    return [
        CompiledModule(
            ".".join(source.with_suffix("").parts),
            [source.as_posix()],
            include_dirs=["broker"],  # word.h, which broker.word's pxd brings to whoever cimports it
            extra_compile_args=COMPILE_ARGS,
            extra_link_args=LINK_ARGS,
            define_macros=MACROS,
        )
        for source in sources
    ]


class BuildCompiledModules(build_ext):
    """Cythonizes when extensions are really built, and not when metadata is only asked for."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.parallel: int = self.parallel or usable_cores()

    def run(self) -> None:
        if not self.extensions:
            return
        work = ROOT / "build" / ("debug" if DEBUG else "release")
        work.mkdir(parents=True, exist_ok=True)
        with (work / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # two builds in one tree would write each other's files
            self.build_into(work)

    def build_into(self, work: Path) -> None:
        from Cython.Build import cythonize

        # Timestamps say which sources changed; they know nothing of flags or of another Cython.
        fingerprint = repr((version("cython"), COMPILE_ARGS, LINK_ARGS, MACROS, DIRECTIVES))
        stamp = work / ("fingerprint-inplace" if self.inplace else "fingerprint-lib")
        if not stamp.exists() or stamp.read_text() != fingerprint:
            self.force = True
        compiled = cythonize(
            self.extensions,
            build_dir=str((work / "cython").relative_to(ROOT)),
            compiler_directives=DIRECTIVES,
            nthreads=usable_cores(),
            force=self.force,
            quiet=True,
            exclude_failures=True,  # Cython says which, and where; the others are built all the same
        )
        self.remove_modules_without_source()
        with_c = {extension.name: extension for extension in compiled}
        failed = len(with_c) < len(self.extensions)
        self.extensions[:] = [extension for extension in self.extensions if extension.name in with_c]
        for extension in self.extensions:
            extension.sources = with_c[extension.name].sources
            extension.depends = with_c[extension.name].depends
        super().run()
        stamp.write_text(fingerprint)
        if failed:
            raise SystemExit(1)

    def remove_modules_without_source(self) -> None:
        """A .so whose .pyx was renamed or became a .py would still be imported, and before the .py."""
        target = ROOT if self.inplace else Path(self.build_lib)
        wanted = {extension.name for extension in self.extensions}
        for folder in COMPILED_FOLDERS:
            for built in (target / folder).rglob("*.so"):
                module = built.relative_to(target).with_name(built.name.split(".")[0])
                if ".".join(module.parts) not in wanted:
                    built.unlink()


class TypedRootModules(build_py):
    """Adds `gnatswarm-stubs` and the like: type checkers take the types of a package from itself, of a module not."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        for name in self.py_modules or ():
            stubs = Path(self.build_lib) / f"{name}-stubs"
            stubs.mkdir(parents=True, exist_ok=True)
            self.copy_file(f"{name}.py", str(stubs / "__init__.pyi"))


if __name__ == "__main__":  # cythonize's workers may import this file
    setup(
        ext_modules=extensions(),
        py_modules=[name for name in ROOT_MODULES if (ROOT / f"{name}.py").exists()],
        cmdclass={"build_ext": BuildCompiledModules, "build_py": TypedRootModules},
    )
