"""The Makefile installs for each target what it needs, and no more; steps that take long show that they go on."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.forkserver import forkserver

ROOT = Path(__file__).resolve().parent.parent
# What a build imports, which takes it longer than to compile nothing.
OF_CYTHON = "Main Builtin CythonScope Nodes ExprNodes Parsing ParseTreeTransforms Pipeline Optimize"
BUILDING = (
    "setuptools",
    "setuptools.command.build_ext",
    "Cython.Build",
    *(f"Cython.Compiler.{name}" for name in OF_CYTHON.split()),
)


def recipe(target: str, *variables: str) -> str:
    """What make would do for this target in a tree where nothing was done yet."""
    place = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "EXTRAS")}
    done = subprocess.run(
        ["make", "--dry-run", "--always-make", "VENV=/nowhere/.venv", target, *variables],
        cwd=ROOT,
        env=place,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("target", ["run", "build", "wheel", "reference"])
def test_what_needs_no_extra_installs_none(target: str) -> None:
    said = recipe(target)
    assert "--editable '.'" in said
    assert "optional-dependencies" not in said


@pytest.mark.parametrize(
    "target", ["test", "lint", "format", "bench", "instructions", "simulate", "soak", "mutants", "fuzz", "debug"]
)
def test_what_tests_and_lints_installs_all_of_it(target: str) -> None:
    assert " test dev loadtest spark > /nowhere/.venv/.tools.txt" in recipe(target)


def test_the_demo_installs_spark_alone() -> None:
    said = recipe("demo")
    assert " spark > /nowhere/.venv/.spark.txt" in said and "locust" not in said and ".tools" not in said


@pytest.mark.parametrize(("extras", "asked"), [("", "--editable '.'"), ("top", "--editable '.[top]'")])
def test_extras_are_those_that_are_named(extras: str, asked: str) -> None:
    assert asked in recipe("run", f"EXTRAS={extras}")


def step(*words: str) -> subprocess.CompletedProcess[str]:
    command = [str(ROOT / ".ci" / "step"), *words]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)


def test_a_step_shows_its_name_and_what_it_printed() -> None:
    done = step("[1/1] a step", "sh", "-c", "echo warning")
    assert (done.returncode, done.stdout, done.stderr) == (0, "[1/1] a step …\nwarning\n", "")


def test_a_step_that_fails_says_why_and_ends_with_its_code() -> None:
    done = step("[1/1] a step", "sh", "-c", "echo why; exit 3")
    assert done.returncode == 3
    assert "why\n" in done.stdout and "[1/1] a step failed after" in done.stderr


def test_a_long_step_shows_that_it_goes_on(tmp_path: Path) -> None:
    """On a terminal a line counts the seconds; it ends when the step has seen it."""
    shown = tmp_path / "shown"
    waiting = f"until grep -qE ' [1-9][0-9]* s' {shown}; do sleep 0.1; done"
    command = f'{ROOT}/.ci/step packages sh -c "{waiting}"'
    with shown.open("wb") as out:
        done = subprocess.run(
            ["script", "-qefc", command, "/dev/null"], stdout=out, stdin=subprocess.DEVNULL, timeout=60, check=False
        )
    assert done.returncode == 0
    assert re.search(r"packages … [1-9]\d* s", shown.read_text())


def test_a_step_shows_how_far_it_is(tmp_path: Path) -> None:
    shown = tmp_path / "shown"
    waiting = f"echo 12 of 63 >\\$GNATSWARM_PROGRESS; until grep -qE ' [1-9][0-9]* s' {shown}; do sleep 0.1; done"
    command = f'{ROOT}/.ci/step modules sh -c "{waiting}"'
    with shown.open("wb") as out:
        done = subprocess.run(
            ["script", "-qefc", command, "/dev/null"], stdout=out, stdin=subprocess.DEVNULL, timeout=60, check=False
        )
    assert done.returncode == 0
    assert re.search(r"modules … 12 of 63, [1-9]\d* s", shown.read_text())
    assert not list(tmp_path.glob("*.progress"))


def test_a_setting_is_written_where_it_changed_also_where_broken_pipes_are_errors(tmp_path: Path) -> None:
    """Programs that start make may ignore SIGPIPE, which it inherits."""
    (tmp_path / "Makefile").write_text((ROOT / "Makefile").read_text())
    command = ["make", "-s", "build/.flags"]

    def ignore() -> None:
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)

    for setting, is_written in (("", True), ("", False), ("1", True), ("1", False)):
        before = flags.stat().st_mtime_ns if (flags := tmp_path / "build" / ".flags").exists() else 0
        done = subprocess.run(
            [*command, f"GNATSWARM_NATIVE={setting}"],
            cwd=tmp_path,
            preexec_fn=ignore,
            restore_signals=False,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0 and "rror" not in done.stderr, done.stderr
        assert flags.read_text() == f"{setting}\n"
        assert (flags.stat().st_mtime_ns != before) == is_written


def test_a_build_that_was_interrupted_goes_on(tmp_path: Path) -> None:
    """And one with other flags compiles everything again, also where it is interrupted itself."""
    shutil.copy(ROOT / "setup.py", tmp_path)
    (tmp_path / "broker").mkdir()
    for name in ("a", "b"):
        (tmp_path / "broker" / f"{name}.pyx").write_text("")
    compiler, compiled, broken = tmp_path / "cc", tmp_path / "compiled", tmp_path / "broken"
    compiler.write_text(
        f'#!/bin/sh\nfor last; do :; done\nfor out; do [ "$before" = -o ] && break; before=$out; done\n'
        f'case "$*" in *" -c "*) grep -q . {broken} && case "$*" in *$(cat {broken})*) exit 1;; esac\n'
        f'echo "$*" | grep -o "broker/[ab].c" >> {compiled};; esac\nmkdir -p "$(dirname "$out")" && touch "$out"\n'
    )
    compiler.chmod(0o755)

    def build(but: str = "", **settings: str) -> list[str]:
        """What is compiled, where one of them is interrupted."""
        compiled.write_text("")
        broken.write_text(but)
        done = forkserver(*BUILDING).run(
            ["setup.py", "--quiet", "build_ext", "--parallel", "1"],
            "import runpy; runpy.run_path('setup.py', run_name='__main__')",
            directory=tmp_path,
            environment={**os.environ, "CC": str(compiler), **settings},
        )
        assert (done.returncode != 0) == bool(but), done.stderr
        return sorted(compiled.read_text().split())

    a, b = "broker/a.c", "broker/b.c"
    first = build(but=b) or build(but=a)  # (either may be compiled first)
    assert len(first) == 1
    assert build() == sorted({a, b} - set(first))
    assert build() == []
    first = build(but=b, GNATSWARM_NATIVE="1") or build(but=a, GNATSWARM_NATIVE="1")
    assert build(GNATSWARM_NATIVE="1") == sorted({a, b} - set(first))
    assert build() == [a, b]
