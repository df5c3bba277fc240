"""A scratch copy of the project: one fault at a time is put into it, compiled and tried.

The copy has the sources and the compiled modules; the working tree is never written. A touched .pyx is compiled alone,
with setup.py's flags but little optimization, and the result is kept for the next run (by the hash of all it is made
of). A .pxd is no place for a fault: every module that cimports it would have to be compiled again.
"""

from __future__ import annotations

import hashlib
import os
import re
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from tests.mutants.faults import Fault

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "mutants"
NOT_COPIED = shutil.ignore_patterns(
    "build", "dist", ".git", ".venv", ".*_cache", ".hypothesis", "__pycache__", "node_modules"
)
RAN = re.compile(r"\b[1-9]\d* passed")
# (What is in brackets may have " - " in it, as what follows the name does.)
FAILED = re.compile(r"^(?:FAILED|ERROR) ([^\[\n]+?(?:\[.*?\])?)(?: - .*)?$", re.MULTILINE)
# A fault that makes something wait for ever is seen by this; the slowest selections take a tenth of it.
MOST_SECONDS = 900


class NoTests(Exception):
    """Nothing ran: the selection is wrong."""


class DoesNotBuild(Exception):
    """Cython or the compiler refuses it: no fault at all."""


class Tree:
    """One scratch copy."""

    def __init__(self, number: int) -> None:
        self.root = WORK / f"tree-{number}"
        if self.root.exists():
            shutil.rmtree(self.root)
        shutil.copytree(ROOT, self.root, symlinks=True, ignore=NOT_COPIED)
        self.environment = os.environ | {
            "PYTHONPATH": f"{self.root}/build/name:{self.root}",
            "HOME": str(self.root),
            # Tests of brokers: two shards have all that a fault is put into.
            "GNATSWARM_TEST_KINDS": "gnatswarm-2,gnatswarm-2-as-2.15",
        }
        self.environment.pop("PYTEST_ADDOPTS", None)
        subprocess.run(
            [sys.executable, "setup.py", "--name"],  # makes build/name
            cwd=self.root,
            env=self.environment | {"GNATSWARM_SKIP_EXTENSIONS": "1"},
            check=True,
            stdout=subprocess.DEVNULL,
        )
        self.controls: dict[str, bool] = {}
        self.tests: subprocess.Popen[str] | None = None  # those that run now

    def put(self, fault: Fault) -> None:
        """Apply the fault. DoesNotBuild: it is refused."""
        source = self.root / fault.file
        source.write_text(fault.applied(source.read_text()))
        if fault.is_compiled:
            built = self.compiled(source)
            module = self.module(source)
            module.unlink()
            shutil.copy(built, module)

    def restore(self, fault: Fault) -> None:
        """Take the fault out again."""
        shutil.copy(ROOT / fault.file, self.root / fault.file)
        if fault.is_compiled:
            module = self.module(self.root / fault.file)
            module.unlink(missing_ok=True)
            shutil.copy(ROOT / module.relative_to(self.root), module)

    @staticmethod
    def module(source: Path) -> Path:
        return source.with_suffix(str(sysconfig.get_config_var("EXT_SUFFIX")))

    def compiled(self, source: Path) -> Path:
        settings = runpy.run_path(str(self.root / "setup.py"), run_name="settings")
        flags = [flag for flag in settings["COMPILE_ARGS"] if not flag.startswith(("-O", "-g"))]
        flags += ["-O1", "-g0", *(f"-D{name}={value}" for name, value in settings["MACROS"])]
        digest = hashlib.sha256(repr((flags, sys.version)).encode())
        for folder in ("broker", "shards"):
            for header in sorted((*(self.root / folder).rglob("*.pxd"), *(self.root / folder).rglob("*.h"))):
                digest.update(header.read_bytes())
        digest.update(source.read_bytes())
        kept = WORK / "compiled" / f"{source.stem}-{digest.hexdigest()[:20]}.so"
        if kept.exists():
            return kept
        kept.parent.mkdir(parents=True, exist_ok=True)
        name = ".".join(("gnatswarm", *source.relative_to(self.root).with_suffix("").parts))
        c = self.root / "build" / f"{name}.c"
        cython = [sys.executable, "-m", "cython", "-3", "-I", "build/name", "--module-name", name]
        self.build([*cython, str(source.relative_to(self.root)), "-o", str(c)])
        compiler = [*shlex.split(sysconfig.get_config_var("CC")), "-shared", "-fPIC", "-DNDEBUG", "-w"]
        include = ["-I", sysconfig.get_path("include"), "-I", "broker"]
        aside = c.with_suffix(".so")
        self.build([*compiler, *flags, *settings["LINK_ARGS"], *include, str(c), "-o", str(aside)])
        shutil.move(aside, kept)
        return kept

    def build(self, command: list[str]) -> None:
        done = subprocess.run(command, cwd=self.root, env=self.environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise DoesNotBuild((done.stderr or done.stdout)[-2000:])

    def seen_by(self, fault: Fault, unfit: Sequence[str] = ()) -> str | None:
        """The test that fails with the fault in place, but for those that are `unfit`; None: all pass. NoTests."""
        selections: list[tuple[list[str], int]] = []
        if fault.tests:
            selections.append((list(fault.tests), 0))
        if fault.simulation:
            selections.append((["tests/simulation/test_simulation.py"], fault.simulation))
        for tests, schedules in selections:
            failed = self.run(tests, schedules, unfit)
            if failed is not None:
                return failed
        return None

    def passes_without(self, test: str, fault: Fault) -> bool:
        """Does that test pass without any fault? Else its failure says nothing."""
        if test not in self.controls:
            self.controls[test] = self.run([test], fault.simulation) is None
        return self.controls[test]

    def kill(self) -> None:
        """Kill the tests that run now, with all that they have started."""
        if self.tests is not None:
            os.killpg(self.tests.pid, signal.SIGKILL)

    def run(self, tests: list[str], schedules: int, unfit: Sequence[str] = ()) -> str | None:
        """The first test that fails, or what else happened; None: all pass. NoTests: none ran. Not those `unfit`."""
        command = [sys.executable, "-P", "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly"]
        environment = self.environment | ({"GNATSWARM_SCHEDULES": str(schedules)} if schedules else {})
        with subprocess.Popen(
            [*command, "--timeout", "120", "--tb", "no", *(f"--deselect={test}" for test in unfit), *tests],
            cwd=self.root,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            self.tests = process
            try:
                told, _ = process.communicate(timeout=MOST_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()
                return "all of them wait for ever"
            finally:
                self.tests = None
        if process.returncode == 0 and RAN.search(told):
            return None
        if process.returncode in (0, 4, 5):
            raise NoTests(f"no test ran of {', '.join(tests)}")
        found = FAILED.search(told)
        if found:
            return found[1]
        return f"the test process itself ({tests[0]})"
