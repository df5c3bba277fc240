"""A configuration file with the files that it includes."""

from __future__ import annotations

import datetime
import functools
import io
import math
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import IO
from unittest import mock

import msgspec

from gnatswarm.broker.options import Options
from gnatswarm.router.config import conf, options_build, tls_block
from gnatswarm.router.config.conf_tree import Block, ConfigError, List, Node, Problem
from gnatswarm.router.config.flags import CommandLine
from gnatswarm.router.config.options_build import build_parsed
from gnatswarm.shards.boundary import certificates
from tests.fuzz.targets import SEPARATOR
from tests.support.authority import Authority

# The files are in memory only: the first part of the input, then files that it can include.
FILES = ("/conf/main.conf", "/conf/a.conf", "/conf/b.conf", "/c.conf")
ENVIRONMENT = {"NAME": "text", "NUMBER": "5", "LIST": "[1, a]", "BAD": "{", "LOOP": "$LOOP"}

# Names of options and of what stands in their blocks.
WORDS = [f"{name}: ".encode() for name in [*options_build._ALL_NAMES, *tls_block._KEYS]]
WORDS += [
    f"{word} ".encode()
    for word in (
        "users [ { user: a, password: b } ]",
        "nkey",
        "permissions",
        "publish",
        "subscribe",
        "allow",
        "deny",
        "allow_responses",
        "default_permissions",
        "exports",
        "imports",
        "stream",
        "service",
        "account",
        "subject",
        "to",
        "prefix",
        "response_type",
        "weight",
        "destination",
        "limits",
        "max_subs",
        "max_conn",
        "include a.conf",
        "$NAME",
    )
]


def check(data: bytes) -> None:
    """Any bytes of a configuration and its includes give Options or ConfigError, and no other exception.

    Each problem says where (a file of these, and a line that it has), and what is wrong. No other file is read, and
    files are not read more often than the limit allows. The same bytes give the same result. A tree without problems,
    written in the same syntax, is parsed as the same values. The control channel carries options unchanged, and their
    repr shows no password.
    """
    texts = dict(zip(FILES, data.split(SEPARATOR), strict=False))
    with only(texts):
        parsed = conf.parse_file(FILES[0], environment=ENVIRONMENT)
        again = conf.parse_file(FILES[0], environment=ENVIRONMENT)
        assert shape(again.tree) == shape(parsed.tree) and again.problems == parsed.problems
        for problem in [*parsed.problems, *parsed.notices]:
            is_placed(problem, texts)
        if not parsed.problems and is_finite(parsed.tree):
            assert_written_alike(parsed.tree)
        problems: tuple[Problem, ...] = ()
        try:
            options = build_parsed(parsed, CommandLine({}, {}, [])).options
        except ConfigError as error:
            problems = error.problems
            if not (problems and str(error) and error.in_one_line):
                raise AssertionError("an error says nothing") from error
        assert set(parsed.problems) <= set(problems)
        for problem in problems:
            is_placed(problem, texts)
        if problems:
            return
        same = msgspec.msgpack.decode(msgspec.msgpack.encode(options), type=Options)
        assert same == options or not is_finite(parsed.tree)
        for path in paths(options):
            assert "\0" not in path, f"a path with a NUL: {path!r}"
        shown = repr(options)
        for secret in (options.auth_password, options.auth_token, *(user.password for user in options.users)):
            assert len(secret) < 12 or f"'{secret}'" not in shown or secret in str(texts), "a secret is shown"


def paths(options: Options) -> list[str]:
    """What will be opened or listened on."""
    places = [options.logging.file, options.stats.dir, options.pid_file, options.ports_file_dir, options.host]
    for tls in (options.tls, options.websocket.tls):
        places += [tls.cert_file, tls.key_file, tls.ca_file]
    return [*places, options.sharding.link_dir, options.http_host, options.websocket.host]


@contextmanager
def only(texts: dict[str, bytes]) -> Iterator[None]:
    """No file is read but these."""
    reads = 0

    def read_bytes(path: str, most_bytes: int, *, is_included: bool) -> bytes:
        nonlocal reads
        reads += 1
        assert reads <= 2 * (conf.MOST_FILES + 1), "too many files are read"
        name = os.path.normpath(path)
        if name not in texts:
            if "\0" in path:
                raise ValueError("embedded null byte")
            raise FileNotFoundError(2, "No such file or directory", path)
        return texts[name][:most_bytes]

    def opened(path: str, mode: str, opener: object) -> IO[bytes]:
        if path in certificate_files():
            return io.BytesIO(certificate_files()[path])
        read_bytes(path, 0, is_included=True)
        raise PermissionError(13, "Permission denied", path)

    with (
        mock.patch.object(conf, "read_bytes", read_bytes),
        mock.patch.object(conf, "MOST_REPEATED_VALUES", 2000),  # a tree of a million values takes seconds to compare
        mock.patch.object(certificates, "open", opened, create=True),
    ):
        yield


@functools.cache
def certificate_files() -> dict[str, bytes]:
    """A certificate, its key, and who signed it."""
    with tempfile.TemporaryDirectory() as directory:
        authority = Authority(Path(directory))
        pair = authority.server()
        return {
            "cert.pem": pair.cert.read_bytes(),
            "key.pem": pair.key.read_bytes(),
            "ca.pem": authority.path.read_bytes(),
        }


def is_placed(problem: Problem, texts: dict[str, bytes]) -> None:
    """The problem names a place that exists, and says something."""
    assert problem.what and "\x00" not in f"{problem.at.file}"
    if not problem.at.file or problem.at.file.startswith("$"):
        return
    name = os.path.normpath(problem.at.file)
    lines = texts[name].decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n").count("\n") + 1
    assert 0 <= problem.at.line <= lines, f"line {problem.at.line} of {lines}: {problem}"
    assert problem.at.column >= (problem.at.line > 0)


def assert_written_alike(tree: Block) -> None:
    """The tree's text in the same syntax is parsed as the same values."""
    text = "".join(f"{key_text(entry.key)}: {written(entry.value)}\n" for entry in tree)
    same = conf.parse_text(text, environment={})
    assert not same.problems, (text, same.problems)
    assert shape(same.tree) == shape(tree), text


def key_text(key: str) -> str:
    for quote in "\"'":
        if quote not in key:
            return f"{quote}{key}{quote}"
    return key


def written(node: Node) -> str:
    """A value in the syntax of the configuration."""
    if isinstance(node, List):
        return "[" + ", ".join(written(item) for item in node.items) + "]"
    if isinstance(node, Block):
        return "{" + "".join(f"\n{key_text(entry.key)}: {written(entry.value)}" for entry in node) + "\n}"
    value = node.value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        digits = format(Decimal(repr(value)), "f")
        return digits if "." in digits else f"{digits}.0"
    if isinstance(value, datetime.datetime):
        return f"{value.year:04d}{value:-%m-%dT%H:%M:%SZ}"
    if isinstance(value, int):
        return str(value)
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def shape(node: Node) -> object:
    """The values of a tree without their places."""
    if isinstance(node, List):
        return [shape(item) for item in node.items]
    if isinstance(node, Block):
        return {entry.key: shape(entry.value) for entry in node}
    return (type(node.value).__name__, node.value)


def is_finite(node: Node) -> bool:
    """Whether the tree has no number that is infinite."""
    if isinstance(node, List):
        return all(is_finite(item) for item in node.items)
    if isinstance(node, Block):
        return all(is_finite(entry.value) for entry in node)
    return not isinstance(node.value, float) or math.isfinite(node.value)
