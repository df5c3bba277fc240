"""The programs of the client matrix: each an official client, unchanged, that carries out one check a run.

A program that cannot be built here says what is missing, and how to get it: the test is then skipped, or fails where
GNATSWARM_REQUIRE_CLIENTS=1 says that none may be missing.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
# Kept between runs, and out of the tree: what was built, Go's cache, npm's packages.
BUILT = ROOT / "build" / "clients"
BUILD_DEADLINE_S = 300
DEBIAN_GO_PATH = Path("/usr/share/gocode")


class Missing(Exception):
    """The client is not on this machine; says what to install."""


class Unobtainable(Missing):
    """It cannot be installed here: it needs something for which this system has no package."""


def _built(name: str, source: Path, command: list[str], **environment: str) -> Path:
    """The program `name` made from `source`, made again when that is newer; by several test workers at once."""
    BUILT.mkdir(parents=True, exist_ok=True)
    program = BUILT / name
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        draft = BUILT / f"{name}.{os.getpid()}"
        done = subprocess.run(
            [word if word != "OUT" else str(draft) for word in command],
            capture_output=True,
            text=True,
            env=os.environ | environment,
            timeout=BUILD_DEADLINE_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        draft.rename(program)
    return program


def _python() -> list[str]:
    return [sys.executable, str(HERE / "matrix.py")]


def _runs(python: str) -> bool:
    """Whether it is there; a version manager's stand-in for one that is not installed only says so."""
    path = shutil.which(python)
    return path is not None and subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0


def _python_core() -> list[str]:
    python = BUILT / "python" / "bin" / "python"
    if not python.exists():
        why = "the client nats-core, for Python 3.13 and later, is not installed: make clients"
        raise Missing(why) if _runs("python3.13") or _runs("python3.14") else Unobtainable(f"{why}; none is here")
    return [str(python), str(HERE / "matrix_core.py")]


def _node(module: str) -> list[str]:
    node = shutil.which("node")
    if node is None:
        raise Missing("there is no node: apt-get install nodejs npm")
    folder = BUILT / "node_modules" / module
    if not folder.is_dir():
        raise Missing(f"the npm package {module} is not installed: make clients")
    return [node, str(HERE / "matrix.js"), str(folder)]


def _c() -> list[str]:
    compiler = os.environ.get("CC", "cc")
    source = HERE / "matrix.c"
    if shutil.which(compiler) is None:
        raise Missing(f"there is no C compiler ({compiler})")
    probe = [compiler, "-E", "-x", "c", "-o", os.devnull, "-"]
    if subprocess.run(probe, input=b"#include <nats/nats.h>\n", capture_output=True, check=False).returncode:
        raise Missing("there is no C client of NATS: apt-get install libnats-dev")
    return [str(_built("matrix-c", source, [compiler, "-Wall", "-Wextra", "-O1", str(source), "-o", "OUT", "-lnats"]))]


def _go() -> list[str]:
    go = shutil.which("go")
    if go is None:
        raise Missing("there is no Go compiler: apt-get install golang-go")
    if not (DEBIAN_GO_PATH / "src/github.com/nats-io/nats.go").is_dir():
        raise Missing("there is no Go client of NATS: apt-get install golang-github-nats-io-go-nats-dev")
    source = HERE / "matrix.go"
    settings = {"GO111MODULE": "off", "GOPATH": str(DEBIAN_GO_PATH), "GOCACHE": str(BUILT / "gocache"), "GOFLAGS": ""}
    return [str(_built("matrix-go", source, [go, "build", "-o", "OUT", str(source)], **settings))]


# As README's table has them.
PROGRAMS: dict[str, Callable[[], list[str]]] = {
    "Python, `nats-py`": _python,
    "Python, `nats-core`": _python_core,
    "Node, `nats`": functools.partial(_node, "nats"),
    "Node, `@nats-io/transport-node`": functools.partial(_node, "@nats-io/transport-node"),
    "C, `libnats`": _c,
    "Go, `nats.go`": _go,
}
