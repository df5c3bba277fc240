"""A parsed configuration file: a tree in which every node has its file, line and column.

Three kinds of node: `Scalar` (a word, string, number, boolean or date), `List` and `Block`. A block keeps its
entries in the order of the file, with keys as written; users of the tree compare keys without case. Nothing here knows
an option: the parser is `router.config.conf`, and `router.config.options_build` gives keys their meaning. Imports
nothing: `router.listening.head_start` reads files before msgspec, dataclasses or typing are imported.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

TYPE_CHECKING = False  # type checkers take it as true; importing `typing` would slow the start
if TYPE_CHECKING:
    import datetime
    from typing import Self


class _Comparable:
    """Compared, sorted and hashed by its values; not changed after it was made."""

    __slots__ = ()

    def _values(self) -> tuple[object, ...]:
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other._values() == self._values()

    def __lt__(self, other: Self) -> bool:
        return self._values() < other._values()

    def __hash__(self) -> int:
        return hash(self._values())

    def __repr__(self) -> str:
        return f"{type(self).__name__}{self._values()!r}"


class Position(_Comparable):
    """A place in a configuration file, or the command line."""

    __slots__ = ("column", "file", "line")

    def __init__(self, file: str, line: int = 0, column: int = 0) -> None:
        self.file = file  # as the operator named it; "" for the command line
        self.line = line  # 1..; 0: the file as a whole
        self.column = column  # 1.., in characters; 0: the file as a whole

    def _values(self) -> tuple[object, ...]:
        return (self.file, self.line, self.column)

    def __str__(self) -> str:
        if not self.file:
            return "command line"
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


class Problem(_Comparable):
    """One thing that is wrong with the configuration: where, what, and what to do about it."""

    __slots__ = ("advice", "at", "what")

    def __init__(self, at: Position, what: str, advice: str = "") -> None:
        self.at = at
        self.what = what
        self.advice = advice

    def _values(self) -> tuple[object, ...]:
        return (self.at, self.what, self.advice)

    def __str__(self) -> str:
        # A message about a whole file often has its name already ("open x.conf: no such file or directory").
        is_named = not self.at.line and self.at.file and self.at.file in self.what
        what = _without_passwords(self.what)
        text = what if is_named else f"{self.at}: {what}"
        return f"{text} — {self.advice}" if self.advice else text


class NewerProblem(Problem):
    """A problem with `compatibility: "2.15"` alone. Known when all is read; till then it is among the notices."""

    __slots__ = ()


def _without_passwords(text: str) -> str:
    return " ".join(map(_without_password, text.split(" "))) if "@" in text else text


def _without_password(word: str) -> str:
    """Nothing between the colon and the at sign of what may be a URL, however it is misspelt."""
    login, at, place = word.rpartition("@")
    colon = login.find(":")
    if login.startswith("://", colon):
        colon = login.find(":", colon + 1)
    return f"{login[: colon + 1]}…@{place}" if at and colon >= 0 else word


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


class Scalar:
    """One value that is neither list nor block."""

    __slots__ = ("at", "is_from_environment", "text", "value")

    def __init__(
        self,
        at: Position,
        value: str | int | float | bool | datetime.datetime,
        text: str = "",
        is_from_environment: bool = False,
    ) -> None:
        self.at = at
        self.value = value
        self.text = text  # as written, for messages
        self.is_from_environment = is_from_environment  # no quotes mark it as text: the option decides what 007 is

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


class List:
    """`[a, b, c]`."""

    __slots__ = ("at", "is_whole", "items")
    kind = "a list"

    def __init__(self, at: Position, items: list[Node] | None = None, is_whole: bool = True) -> None:
        self.at = at
        self.items: list[Node] = [] if items is None else items
        self.is_whole = is_whole  # False: an item is missing, because its variable is undefined


class Entry:
    """One `key: value` of a block."""

    __slots__ = ("at", "key", "replaces", "used", "value")

    def __init__(
        self, key: str, at: Position, value: Node, used: bool = False, replaces: Position | None = None
    ) -> None:
        self.key = key
        self.at = at  # of the key
        self.value = value
        self.used = used  # a `$variable` refers to it: then its key need not be an option
        self.replaces = replaces  # an earlier entry of the same name, which this one overrides


class Block:
    """`{ key: value … }`, or a whole file."""

    __slots__ = ("at", "entries", "unknown")
    kind = "a block"

    def __init__(self, at: Position, entries: dict[str, Entry] | None = None, unknown: set[str] | None = None) -> None:
        self.at = at
        self.entries: dict[str, Entry] = {} if entries is None else entries
        # Keys whose value is an undefined variable: reported once, at that variable.
        self.unknown: set[str] = set() if unknown is None else unknown

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


def give_up(node: Node) -> None:
    """Free what is in `node` piece by piece: at once, all threads would wait a while for the end of a large one."""
    if isinstance(node, List):
        while node.items:
            give_up(node.items.pop())
    elif isinstance(node, Block):
        while node.entries:
            give_up(node.entries.popitem()[1].value)


def text_in(node: Node) -> str | None:
    """The node's text; None: it is something else."""
    return node.as_text if isinstance(node, Scalar) else None


def plain(node: Node, *, prefers_text: bool = False) -> object:
    """The node as a plain value, for `router.config.option_values`."""
    if isinstance(node, Scalar):
        return node.as_text if prefers_text and node.is_from_environment else node.value
    if isinstance(node, List):
        return [plain(item, prefers_text=prefers_text) for item in node.items]
    return {entry.key: plain(entry.value, prefers_text=prefers_text) for entry in node}
