"""What a configuration file says, as a tree in which every node knows its file, line and column.

Three kinds of node: `Scalar` (a word, string, number, boolean or date), `List` and `Block`. A block keeps its
entries in the order of the file, keys as written; names are compared without case by whoever looks them up.
Nothing here knows an option; the parser is `broker.conf`, the meaning of keys is the router's.
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
        # A file as a whole is named in what is said of it ("open x.conf: no such file or directory").
        is_named = not self.at.line and self.at.file and self.at.file in self.what
        said = self.what if is_named else f"{self.at}: {self.what}"
        return f"{said} — {self.advice}" if self.advice else said


# A file that is something else altogether yields a problem a line; nobody reads more than these.
MOST_PROBLEMS_SHOWN = 25


class ConfigError(Exception):
    """The operator's configuration is wrong; carries every problem found, in the order of the file."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(dict.fromkeys(problems))
        super().__init__(str(self))

    @property
    def in_one_line(self) -> str:
        """The first problem, and how many more there are: for a log, as when a reload is refused."""
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

    @property
    def kind(self) -> str:
        """What an operator would call it."""
        names = {bool: "a boolean", int: "a number", float: "a decimal number", str: "text"}
        return names.get(type(self.value), "a date")


class List(msgspec.Struct):
    """`[a, b, c]`."""

    at: Position
    items: list[Node] = []
    kind = "a list"


class Entry(msgspec.Struct):
    """One `key: value` of a block."""

    key: str
    at: Position  # of the key
    value: Node
    used: bool = False  # a `$variable` referred to it: then it needs to mean nothing else
    replaces: Position | None = None  # an earlier entry of the same name, which no longer counts


class Block(msgspec.Struct):
    """`{ key: value … }`, or a whole file."""

    at: Position
    entries: dict[str, Entry] = {}
    kind = "a block"

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries.values())

    def __len__(self) -> int:
        return len(self.entries)


Node = Scalar | List | Block
