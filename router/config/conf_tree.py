"""A parsed configuration file: a tree in which every node has its file, line and column.

Three kinds of node: `Scalar` (a word, string, number, boolean or date), `List` and `Block`. A block keeps its
entries in the order of the file, with keys as written; users of the tree compare keys without case. Nothing here knows
an option: the parser is `router.config.conf`, and `router.config.options_build` gives keys their meaning.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator

import msgspec


class Position(msgspec.Struct, frozen=True, order=True):
    """A place in a configuration file, or the command line."""

    file: str  # as the operator named it; "" for the command line
    line: int = 0  # 1..; 0: the file as a whole
    column: int = 0  # 1.., in characters; 0: the file as a whole

    def __str__(self) -> str:
        if not self.file:
            return "command line"
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


class Problem(msgspec.Struct, frozen=True, order=True):
    """One thing that is wrong with the configuration: where, what, and what to do about it."""

    at: Position
    what: str
    advice: str = ""

    def __str__(self) -> str:
        # A message about a whole file often has its name already ("open x.conf: no such file or directory").
        is_named = not self.at.line and self.at.file and self.at.file in self.what
        text = self.what if is_named else f"{self.at}: {self.what}"
        return f"{text} — {self.advice}" if self.advice else text


# A file that is no configuration at all has a problem in each line; more than these do not help.
MOST_PROBLEMS_SHOWN = 25


class ConfigError(Exception):
    """The operator's configuration is wrong; carries every problem found, in the order of the file."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(dict.fromkeys(problems))
        super().__init__(str(self))

    @property
    def in_one_line(self) -> str:
        """The first problem, and the number of others: for a log line, such as of a refused reload."""
        more = f" (and {len(self.problems) - 1} more)" if len(self.problems) > 1 else ""
        return f"{self.problems[0]}{more}" if self.problems else ""

    def __str__(self) -> str:
        lines = [str(problem) for problem in self.problems[:MOST_PROBLEMS_SHOWN]]
        if len(self.problems) > MOST_PROBLEMS_SHOWN:
            lines.append(f"and {len(self.problems) - MOST_PROBLEMS_SHOWN} more problems")
        return "\n".join(lines)


class Scalar(msgspec.Struct):
    """One value that is neither list nor block."""

    at: Position
    value: str | int | float | bool | datetime.datetime
    text: str = ""  # as written, for messages
    is_from_environment: bool = False  # no quotes mark it as text: the option decides what 007 is

    @property
    def as_text(self) -> str | None:
        """The value as text; None if it is not text, such as a number without quotes."""
        if isinstance(self.value, str):
            return self.value
        return self.text if self.is_from_environment else None

    @property
    def kind(self) -> str:
        """The value's type, for messages."""
        names = {bool: "a boolean", int: "a number", float: "a decimal number", str: "text"}
        return names.get(type(self.value), "a date")


class List(msgspec.Struct):
    """`[a, b, c]`."""

    at: Position
    items: list[Node] = []
    is_whole: bool = True  # False: an item is missing, because its variable is undefined
    kind = "a list"


class Entry(msgspec.Struct):
    """One `key: value` of a block."""

    key: str
    at: Position  # of the key
    value: Node
    used: bool = False  # a `$variable` refers to it: then its key need not be an option
    replaces: Position | None = None  # an earlier entry of the same name, which this one overrides


class Block(msgspec.Struct):
    """`{ key: value … }`, or a whole file."""

    at: Position
    entries: dict[str, Entry] = {}
    unknown: set[str] = set()  # keys whose value is an undefined variable: reported once, at that variable
    kind = "a block"

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries.values())

    def __len__(self) -> int:
        return len(self.entries)


Node = Scalar | List | Block


def incomplete(node: Node, at: Position) -> Iterator[Position]:
    """Where `node`, whose key is at `at`, or a block or list in it lacks the value of an undefined variable."""
    if isinstance(node, List):
        if not node.is_whole:
            yield from (at, node.at)
        for item in node.items:
            yield from incomplete(item, item.at)
    elif isinstance(node, Block):
        if node.unknown:
            yield from (at, node.at)
        for entry in node:
            yield from incomplete(entry.value, entry.at)


def text_in(node: Node) -> str | None:
    """The node's text; None: it is something else."""
    return node.as_text if isinstance(node, Scalar) else None
