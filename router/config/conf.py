r"""The server's relaxed configuration syntax, from text to a tree; every error at once, each with its place.

    port: 4222            # `key: value`, `key = value` or `key value`; comments with # or //
    authorization {
      user = $USER        // a variable: a key seen before in this or an outer block, else from the environment
      password: "s\x65cret"
    }
    include ./more.conf   # relative to this file
    max_payload: 8MB

JSON is valid, too. After an error, parsing continues with the next line, so that one run reports all errors. Some
forms that the real server ignores (a key without a value, a NUL that ends the file early) are errors here, because a
half-read configuration could leave a broker open. Reads files and the given environment; knows no option.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from gnatswarm.router.config.conf_file import read_bytes
from gnatswarm.router.config.conf_scanner import Scanner, Unreadable, Variable
from gnatswarm.router.config.conf_tree import Block, ConfigError, Entry, List, Node, Position, Problem, Scalar

# A configuration with thousands of users is a few hundred kilobytes; resolver preloads reach megabytes.
LARGEST_FILE_BYTES = 16 * 1024 * 1024
MOST_BYTES = 64 * 1024 * 1024  # of all files together, each as often as it is included
MOST_FILES = 500  # included files, counted each time: two files that include a third twice grow fast
DEEPEST_NESTING = 100  # blocks and lists inside each other; the parser is recursive, so its depth needs a limit
# How many values variables may put into the tree; a value counts each time. Thirty lines such as `b: [$a, $a]` would
# make a billion values.
MOST_REPEATED_VALUES = 1_000_000
MOST_PROBLEMS = 1000  # a binary or otherwise wrong file could have one per line

_IF_EMPTY = "write it again; to have every option at its default, start without a configuration"

_ONE_WORD = re.compile(r"[^\s,;\[\]{}()'\"\\#$]+")
_CONTROL_CHARACTER = re.compile("[\x00-\x08\x0e-\x1f\x7f]")


class Parsed:
    """What a file said, and everything that is wrong with how it says it."""

    def __init__(self, tree: Block, reading: _Reading) -> None:
        self.tree = tree
        self.problems = reading.problems
        self.notices = reading.notices  # legal, but probably not meant
        self.empty_files = reading.empty_files
        self.is_whole = reading.is_whole  # False: a value is missing, because its variable is undefined


def parse_file(path: str, *, environment: Mapping[str, str] | None = None, most_bytes: int = 0) -> Parsed:
    """The tree of a configuration file and its includes; never raises, problems are in the result.

    `most_bytes` is the limit of all files together; 0: MOST_BYTES.
    """
    reading = _Reading(os.environ if environment is None else environment, most_bytes)
    return _parsed(reading.file(path, Position(path)), reading, path)


def parse_text(text: str, *, file: str = "text", environment: Mapping[str, str] | None = None) -> Parsed:
    """The tree of a text; includes are relative to the directory of `file`."""
    reading = _Reading(os.environ if environment is None else environment)
    return _parsed(reading.text(text, file), reading, file)


def _parsed(tree: Block, reading: _Reading, file: str) -> Parsed:
    """What was read. If it sets nothing, that is a problem: a file that was cut short would open the broker to all."""
    if not (tree.entries or tree.unknown or reading.problems):
        reading.problem(Position(file), "config has no values or is empty", _IF_EMPTY)
    return Parsed(tree, reading)


def load(path: str, *, environment: Mapping[str, str] | None = None) -> Block:
    """The tree of a configuration file; ConfigError with every problem if there is any."""
    parsed = parse_file(path, environment=environment)
    if parsed.problems:
        raise ConfigError(parsed.problems)
    return parsed.tree


def _real(path: str) -> str:
    """The file that this path names; "": none, as reading it will report (a NUL; relative, in a removed directory)."""
    try:
        return os.path.realpath(path)
    except (OSError, ValueError):
        return ""


def overridden(entry: Entry, earlier: Position) -> Problem:
    """The notice of a key that is given again, in place of what an earlier one says."""
    return Problem(entry.at, f"{entry.key!r} is given again; this value counts", f"remove it at {earlier}")


class _Reading:
    """The state that the parsers of a file and its includes share."""

    def __init__(self, environment: Mapping[str, str], most_bytes: int = 0) -> None:
        self.environment = environment
        self.most_bytes = most_bytes or MOST_BYTES
        self.problems: list[Problem] = []
        self.notices: list[Problem] = []
        self.empty_files: list[str] = []  # of those that were read
        self.is_whole = True
        self.open_files: list[str] = []  # real paths, outermost first
        self.files = 0
        self.bytes = 0  # of all files
        self.repeated_values = 0

    def file(self, path: str, at: Position) -> Block:
        """The tree of one file; if it cannot be read, an empty tree and a problem at `at`."""
        empty = Block(Position(path, 1, 1), {}, set())
        real = _real(path)
        if real and real in self.open_files:
            chain = " includes ".join([*map(os.path.basename, self.open_files), os.path.basename(real)])
            self.problem(at, f"circular include of {path!r}: {chain}", "remove one of these includes")
            return empty
        self.files += 1
        if self.files > MOST_FILES:
            if self.files == MOST_FILES + 1:
                self.problem(at, f"more than {MOST_FILES} files are included", "include each file once")
            return empty
        text = self._read(path, at)
        if text is None:
            return empty
        self.open_files.append(real)
        try:
            return self.text(text, path)
        finally:
            self.open_files.pop()

    def text(self, text: str, file: str) -> Block:
        """The tree of one text."""
        if not text.strip():
            self.empty_files.append(file)
            self.notices.append(Problem(Position(file), "the configuration is empty", "every option is at its default"))
        return _Parser(Scanner(text.removeprefix("\ufeff"), file), self).top()

    def problem(self, at: Position, what: str, advice: str = "") -> None:
        """Note a problem."""
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(Problem(at, what, advice))

    def _read(self, path: str, at: Position) -> str | None:
        try:
            data = read_bytes(path, LARGEST_FILE_BYTES + 1, is_included=at.line > 0)
        except (OSError, ValueError) as error:  # ValueError: a NUL in the name
            # The system's own words, as the real server has them: "open x: no such file or directory".
            reason = (error.strerror or str(error)).lower() if isinstance(error, OSError) else str(error)
            failed = "read" if isinstance(error, IsADirectoryError) else "open"
            if at.line:
                self.problem(
                    at, f"error parsing include file '{path}', {failed} {path}: {reason}", "name a readable file"
                )
            else:
                self.problem(at, f"{failed} {path}: {reason}", "name a readable configuration file")
            return None
        self.bytes += len(data)
        if self.bytes > self.most_bytes:
            if self.bytes - len(data) <= self.most_bytes:
                what = f"the configuration and all it includes are larger than {self.most_bytes // (1024 * 1024)} MiB"
                self.problem(at, what, "include less")
            return None
        # First look for bytes that no text has, so that an executable is reported as binary, not as too large.
        try:
            text = data[:LARGEST_FILE_BYTES].decode("utf-8")
        except UnicodeDecodeError as error:
            if len(data) <= LARGEST_FILE_BYTES or error.start < LARGEST_FILE_BYTES - 4:
                before = data[: error.start].decode("utf-8", "replace")
                what = "a control character" if _CONTROL_CHARACTER.search(before) else "a byte"
                place = Scanner(before, path).position(len(before))
                self.problem(
                    place, f"{what} that is no UTF-8 text: this is a binary file", "name a text file, in UTF-8"
                )
                return None
            text = ""
        control = _CONTROL_CHARACTER.search(text)
        if control is not None:
            place = Scanner(text, path).position(control.start())
            self.problem(place, f"control character {control[0]!r}: this is a binary file", "name a text file")
            return None
        if len(data) > LARGEST_FILE_BYTES:
            most_mib = LARGEST_FILE_BYTES // (1024 * 1024)
            self.problem(Position(path), f"the file is larger than {most_mib} MiB", "name a configuration file")
            return None
        return text


class _Parser:
    """Recursive descent over one text. Each method leaves the scanner after what it has read."""

    def __init__(self, scanner: Scanner, reading: _Reading) -> None:
        self.scanner = scanner
        self.reading = reading
        self.scopes: list[Block] = []  # the open blocks, outermost first: where variables are looked up

    def top(self) -> Block:
        """The whole text, in braces or not."""
        scanner = self.scanner
        block = Block(scanner.position(0), {}, set())
        scanner.skip_space_and_comments()
        start = scanner.offset
        if scanner.take("{"):
            self._entries(block, start)
            scanner.skip_space_and_comments()
        if scanner.peek():
            self._entries(block, None)
        return block

    def _entries(self, block: Block, opened_at: int | None) -> None:
        """Read entries up to the closing brace (consumed) or, at the top (`opened_at` None), to the end of the text."""
        scanner = self.scanner
        self.scopes.append(block)
        while True:
            scanner.skip_space_and_comments()
            start = scanner.offset
            if not scanner.peek():
                if opened_at is not None:
                    self._problem(opened_at, "unexpected end of file: this block is not closed", "close it with }")
                break
            if scanner.take("}"):
                if opened_at is not None:
                    break
                note = Problem(scanner.position(start), "a } that closes nothing", "check where its block begins")
                self.reading.notices.append(note)
                continue
            if scanner.take(",;"):
                continue
            try:
                self._entry(block, nested=opened_at is not None)
                self._end_of_value(in_list=False, nested=opened_at is not None)
            except Unreadable as unreadable:
                self._recover(unreadable, start, closer="" if opened_at is None else "}")
        self.scopes.pop()

    def _entry(self, block: Block, *, nested: bool) -> None:
        scanner = self.scanner
        at = scanner.position()
        name, quoted = scanner.key()
        if name.lower() == "include" and not quoted and scanner.peek() not in ("=", ":"):
            scanner.skip_blanks()
            self._include(block, at, scanner.include_name())
            return
        key_end = scanner.offset
        broke_line = scanner.skip_space()
        if scanner.take(":="):
            scanner.skip_blanks()
            if nested:  # in a block a value may stand on the next line
                broke_line = scanner.skip_space()
            elif scanner.at_line_end() and scanner.peek():
                raise self._unreadable(
                    key_end, f"expected a value for {name!r} but found a new line", "give it a value"
                )
        elif broke_line and (scanner.peek() == "}" or not scanner.peek()):
            raise self._unreadable(key_end, f"{name!r} has no value", "give it a value, or remove it")
        if not scanner.peek() or scanner.peek() in "},;":
            raise self._unreadable(key_end, f"{name!r} has no value", "give it a value, or remove it")
        value = self._value()
        if value is None:
            block.unknown.add(name)
        else:
            self._put(block, Entry(name, at, value))

    def _include(self, block: Block, at: Position, name: str) -> None:
        # An absolute name stays absolute (the real server joins it to the directory, which is never intended).
        path = os.path.join(os.path.dirname(self.scanner.file), name)
        included = self.reading.file(path, at)
        for entry in included:
            self._put(block, entry)
        block.unknown |= included.unknown

    def _put(self, block: Block, entry: Entry) -> None:
        earlier = block.entries.get(entry.key)
        if earlier is not None:
            entry.replaces = earlier.at
            if not earlier.used:
                self.reading.notices.append(overridden(entry, earlier.at))
        block.entries[entry.key] = entry

    def _value(self) -> Node | None:
        """The next value; None for an undefined variable, which is reported."""
        scanner = self.scanner
        start = scanner.offset
        if len(self.scopes) > DEEPEST_NESTING:
            scanner.offset = len(scanner.text)
            raise self._unreadable(start, f"blocks and lists are nested deeper than {DEEPEST_NESTING}", "")
        if scanner.take("{"):
            block = Block(scanner.position(start), {}, set())
            self._entries(block, start)
            return block
        if scanner.take("["):
            return self._list(start)
        value = scanner.scalar()
        return self._variable(value, scanner.position(start)) if isinstance(value, Variable) else value

    def _list(self, opened_at: int) -> List:
        scanner = self.scanner
        found = List(scanner.position(opened_at), [])
        self.scopes.append(Block(found.at, {}))  # lists have no names, but count as nesting
        try:
            while True:
                scanner.skip_space_and_comments()
                if not scanner.peek():
                    raise self._unreadable(
                        opened_at, "unexpected end of file: this list is not closed", "close it with ]"
                    )
                if scanner.take("]"):
                    return found
                start = scanner.offset
                try:
                    if scanner.take(","):
                        raise self._unreadable(start, "unexpected array value terminator ','", "a value comes first")
                    value = self._value()
                    if value is None:
                        found.is_whole = False
                    else:
                        found.items.append(value)
                    self._end_of_value(in_list=True, nested=True)
                except Unreadable as unreadable:
                    self._recover(unreadable, start, closer="]")
        finally:
            self.scopes.pop()

    def _end_of_value(self, *, in_list: bool, nested: bool) -> None:
        """Skip the end of a value; a closing bracket stays for the list or block that it closes."""
        scanner = self.scanner
        scanner.skip_blanks()
        scanner.skip_comment()
        if scanner.at_line_end() or scanner.take("," if in_list else ",;"):
            return
        found = scanner.peek()
        if found == ("]" if in_list else "}"):
            return
        place = "a list" if in_list else "a block" if nested else "a top-level"
        ends = (
            "a comma, a new line or ]" if in_list else "a comma, a new line or }" if nested else "a new line or comment"
        )
        what = f"expected {place} value to end with {ends}, but got '{found}' instead"
        raise self._unreadable(scanner.offset, what, "start a new line, or quote a value that has blanks in it")

    def _variable(self, name: str, at: Position) -> Node | None:
        for scope in reversed(self.scopes):
            entry = scope.entries.get(name)
            if entry is not None:
                entry.used = True
                return self._repeated(entry.value, at)
            if name in scope.unknown:
                return None
        text = self.reading.environment.get(name) if name else None
        if text is None:
            # Not `Unreadable`: the rest of the line is well formed, and would be skipped.
            advice = f"set {name} above this line or in the environment" if name else "a $ that is meant goes in quotes"
            self.reading.problem(at, f"variable reference for '{name}' can not be found", advice)
            self.reading.is_whole = False
            return None
        return self._repeated(self._from_environment(name, text, at), at)

    def _repeated(self, value: Node, at: Position) -> Node:
        """The value with the position of the reference to it; Unreadable when this makes the tree too large or deep."""
        reading = self.reading
        rest: list[tuple[Node, int]] = [(value, len(self.scopes))]
        while rest:
            node, depth = rest.pop()
            reading.repeated_values += 1
            if reading.repeated_values > MOST_REPEATED_VALUES:
                what = f"variables repeat more than {MOST_REPEATED_VALUES} values"
                raise Unreadable(Problem(at, what, "use variables in fewer lists and blocks"))
            if isinstance(node, Scalar):
                continue
            if depth > DEEPEST_NESTING:
                raise Unreadable(Problem(at, f"blocks and lists are nested deeper than {DEEPEST_NESTING}"))
            rest += [
                (inner, depth + 1)
                for inner in (node.items if isinstance(node, List) else (entry.value for entry in node))
            ]
        return _moved(value, at)

    def _from_environment(self, name: str, text: str, at: Position) -> Node:
        # The environment's text is a value of this syntax, so that lists and numbers can come from there. It
        # sees no environment itself: FOO='$FOO' would never end.
        if not text.isascii() and any("\udc80" <= one <= "\udcff" for one in text):  # a byte that was no UTF-8
            raise Unreadable(Problem(at, f"variable reference for '{name}' is not UTF-8"))
        inner = _Reading({})
        tree = inner.text("value = " + text, f"${name}")
        if inner.problems and _ONE_WORD.fullmatch(text):
            return Scalar(at, text, text)  # looks like a number or a date and is neither, such as -secret or 2020-01-01
        if inner.problems or list(tree.entries) != ["value"]:
            # Without the reason of the parser, which has parts of the text: that is often a secret.
            reason = "it is no value" if inner.problems else "it is more than one value"
            what = f"variable reference for '{name}' could not be parsed: {reason}"
            raise Unreadable(Problem(at, what, f"put quotes inside the environment variable, as in {name}='\"text\"'"))
        value = tree.entries["value"].value
        if isinstance(value, Scalar):
            value.is_from_environment = True
        return value

    def _recover(self, unreadable: Unreadable, statement_start: int, *, closer: str) -> None:
        """Note the problem; continue where this list or block is closed on this line, else on the next line."""
        scanner = self.scanner
        problem = unreadable.problem
        self.reading.problem(problem.at, problem.what, problem.advice)
        start = max(scanner.offset, statement_start + 1)  # always forward
        scanner.offset = min(start, len(scanner.text))
        scanner.skip_line()
        closed_at = scanner.text.find(closer, start, scanner.offset) if closer else -1
        if closed_at >= 0:
            scanner.offset = closed_at

    def _problem(self, offset: int, what: str, advice: str) -> None:
        self.reading.problem(self.scanner.position(offset), what, advice)

    def _unreadable(self, offset: int, what: str, advice: str) -> Unreadable:
        return Unreadable(Problem(self.scanner.position(offset), what, advice))


def _moved(node: Node, at: Position) -> Node:
    """The same value with the position of the reference to the variable."""
    if isinstance(node, Scalar):
        return Scalar(at, node.value, node.text, node.is_from_environment)
    return List(at, node.items, node.is_whole) if isinstance(node, List) else Block(at, node.entries, node.unknown)
