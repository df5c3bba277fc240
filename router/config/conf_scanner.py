"""Scans one text in nats-server's configuration syntax: keys, values, comments, strings, numbers.

Tokens depend on their context: whether `10-20` is text or a broken date, and whether a newline ends a statement. So the
parser (`router.config.conf`) calls the method for what it expects next; the method consumes it, or raises `Unreadable`
with the place. Opens no file and knows no option. Linear in the length of the text.
"""

from __future__ import annotations

import bisect
import re

from gnatswarm.router.config.conf_tree import Position, Problem, Scalar

TYPE_CHECKING = False  # type checkers take it as true; importing `typing` would slow the start
if TYPE_CHECKING:
    import datetime

_BLANKS = re.compile(r"[ \t]*")
_SPACE = re.compile(r"\s*")
_COMMENT = re.compile(r"(?:#|//)[^\n\r]*")
_REST_OF_LINE = re.compile(r"[^\n\r]*")
_KEY = re.compile(r"[^\s=:{}\[\]]+")
# A word ends where the real server ends it. An apostrophe ends it; a double quote does not.
# (Possessive quantifiers: a string of megabytes must not leave a backtracking point per character.)
_WORD = re.compile(r"[^ \t\r\n,;\]}'\\]*+(?:\\[^\n\r][^ \t\r\n,;\]}'\\]*+)*+")
_DOUBLE_QUOTED = re.compile(r'"([^"\\]*+(?:\\.[^"\\]*+)*+)"', re.DOTALL)
_BLOCK_STRING = re.compile(r"\((.*?\n)\)(?=\r?\n|\Z)", re.DOTALL)
_INCLUDE_NAME = re.compile(r"[^\s;}]*")
_ESCAPE = re.compile(r"\\(x[^\n\r]{0,2}|.)", re.DOTALL)
_NUMBER = re.compile(r"(-?\d+)(?:([kmgtpe])(i?)(b*))?\Z", re.IGNORECASE | re.ASCII)
_FLOAT = re.compile(r"-?\d+\.\d+\Z", re.ASCII)
_DATE_LIKE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_HEX_PAIR = re.compile(r"x[0-9a-fA-F]{2}\Z")

_SIMPLE_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", '"': '"', "\\": "\\"}
_BOOLEANS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4, "p": 5, "e": 6}
LARGEST_NUMBER = 2**63 - 1

# The real server knows only $2a$; newer tools write the same function as $2b$ and $2y$.
BCRYPT_PREFIXES = ("$2a$", "$2b$", "$2y$")


class Unreadable(Exception):
    """A syntax error; carries the problem. `router.config.conf` catches it."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.what)
        self.problem = problem


class Variable(str):
    """The name of a `$NAME` that is in the place of a value."""


class Scanner:
    """A text with a current offset; methods read from there."""

    def __init__(self, text: str, file: str) -> None:
        self.text = text
        self.file = file
        self.offset = 0
        self._line_starts = [0] + [match.end() for match in re.finditer(r"\r\n|\n|\r", text)]

    def position(self, offset: int | None = None) -> Position:
        """Line and column of an offset (default: the current one)."""
        where = self.offset if offset is None else offset
        line = bisect.bisect_right(self._line_starts, where)
        return Position(self.file, line, where - self._line_starts[line - 1] + 1)

    def peek(self) -> str:
        """The next character; "" at the end."""
        return self.text[self.offset : self.offset + 1]

    def take(self, characters: str) -> str:
        """Consume and return the next character if it is one of these; else ""."""
        found = self.peek()
        if found and found in characters:
            self.offset += 1
            return found
        return ""

    def skip_blanks(self) -> None:
        """Skip spaces and tabs."""
        self._skip(_BLANKS)

    def skip_comment(self) -> bool:
        """Skip a comment that starts here, without its newline; whether there was one."""
        return self._skip(_COMMENT)

    def skip_space_and_comments(self) -> None:
        """Skip white space, newlines and comments."""
        self._skip(_SPACE)
        while self._skip(_COMMENT):
            self._skip(_SPACE)

    def skip_space(self) -> bool:
        """Skip spaces, tabs and newlines; whether a newline was among them."""
        start = self.offset
        self._skip(_SPACE)
        return "\n" in self.text[start : self.offset] or "\r" in self.text[start : self.offset]

    def skip_line(self) -> None:
        """Skip to the end of this line, where parsing continues after an error."""
        self._skip(_REST_OF_LINE)

    def at_line_end(self) -> bool:
        """Whether the end of the line or of the text comes next."""
        return self.peek() in ("", "\n", "\r")

    def key(self) -> tuple[str, bool]:
        """A key, and whether it was quoted."""
        start = self.offset
        quote = self.take("\"'")
        if quote:
            end = self.text.find(quote, self.offset)
            if end < 0:
                self.offset = len(self.text)
                raise self._unreadable(start, "unexpected end of file in a quoted key", f"close it with {quote}")
            self.offset, name = end + 1, self.text[self.offset : end]
            if not name:
                raise self._unreadable(start, "a key has no name", "write a name between the quotes")
            return name, True
        match = _KEY.match(self.text, self.offset)
        if match is None:
            found = self.text[self.offset]
            self.offset += 1
            if found in "=:":
                raise self._unreadable(start, f"unexpected key separator '{found}'", "a key has to come before it")
            raise self._unreadable(start, f"unexpected '{found}'", "a key has to come first, as in `port: 4222`")
        self.offset = match.end()
        return match[0], False

    def scalar(self) -> Scalar | Variable:
        """A value that is neither list nor block; a Variable for a reference to one."""
        first = self.peek()
        if first == "'":
            return self._single_quoted()
        if first == '"':
            return self._double_quoted()
        if first == "(":
            return self._block_string()
        return self._word()

    def include_name(self) -> str:
        """The file name after `include`."""
        start = self.offset
        first = self.peek()
        if first and first in "[{(":
            what = {"[": "an array", "{": "a map", "(": "a block"}[first]
            raise self._unreadable(start, f"expected include value but found start of {what}", "name one file")
        if first and first in "\"'":
            end = self.text.find(first, start + 1)
            if end < 0:
                self.offset = len(self.text)
                raise self._unreadable(start, "unexpected end of file in a file name", f"close it with {first}")
            self.offset = end + 1
            name = self.text[start + 1 : end]
        else:
            match = _INCLUDE_NAME.match(self.text, start)
            assert match is not None  # it matches the empty string
            self.offset, name = match.end(), match[0]
        if not name:
            raise self._unreadable(start, "include names no file", 'write include "file.conf"')
        return name

    def _skip(self, pattern: re.Pattern[str]) -> bool:
        match = pattern.match(self.text, self.offset)
        if match is None:
            return False
        moved = match.end() > self.offset
        self.offset = match.end()
        return moved

    def _unreadable(self, offset: int, what: str, advice: str = "") -> Unreadable:
        return Unreadable(Problem(self.position(offset), what, advice))

    def _single_quoted(self) -> Scalar:
        start = self.offset
        end = self.text.find("'", start + 1)
        if end < 0:
            self.offset = len(self.text)
            raise self._unreadable(start, "unexpected end of file in a quoted string", "close it with '")
        self.offset = end + 1
        return Scalar(self.position(start), self.text[start + 1 : end], self.text[start : end + 1])

    def _double_quoted(self) -> Scalar:
        start = self.offset
        match = _DOUBLE_QUOTED.match(self.text, start)
        if match is None:
            self.offset = len(self.text)
            raise self._unreadable(start, "unexpected end of file in a quoted string", 'close it with "')
        self.offset = match.end()
        return Scalar(self.position(start), self._unescape(match[1], start + 1), match[0])

    def _block_string(self) -> Scalar:
        start = self.offset
        match = _BLOCK_STRING.match(self.text, start)
        if match is None:
            self.offset = len(self.text)
            advice = "end it with a ) that stands alone at the very beginning of a line"
            raise self._unreadable(start, "unexpected end of file processing block string", advice)
        self.offset = match.end()
        return Scalar(self.position(start), match[1], "( … )")

    def _word(self) -> Scalar | Variable:
        start = self.offset
        match = _WORD.match(self.text, start)
        if match is None or not match[0]:
            found = self.peek()
            shown = "the end of the file" if not found else "a new line" if found in "\r\n" else f"'{found}'"
            if found and not found.isspace():
                self.offset += 1
            raise self._unreadable(start, f"expected a value but found {shown}", "give the key a value")
        word = match[0]
        if word in ("#", "//"):  # `key: # comment`; but `pass: #secret` is a word, as on the real server
            raise self._unreadable(start, "expected a value but found a comment", "give the key a value")
        self.offset = match.end()
        at = self.position(start)
        if word[0] == "$":
            return Scalar(at, word, word) if word.startswith(BCRYPT_PREFIXES) else Variable(word[1:])
        return Scalar(at, self._word_value(word, start), word)

    def _word_value(self, word: str, start: int) -> str | int | float | bool | datetime.datetime:
        boolean = _BOOLEANS.get(word.lower())
        if boolean is not None:
            return boolean
        first = word[0]
        if first in "-.0123456789":
            number = _NUMBER.match(word)
            if number is not None:
                return self._integer(number, start)
            if _FLOAT.match(word):
                return float(word)
            if first == "-" or re.match(r"\.\d", word):
                raise self._unreadable(start, f"expected a number after '{first}'", "put text in quotes")
            if _DATE_LIKE.match(word):
                return self._date(word, start)
        return self._unescape(word, start) if "\\" in word else word

    def _integer(self, number: re.Match[str], start: int) -> int:
        digits, unit, binary, byte = number[1], number[2], number[3], number[4]
        # As on the real server: k is a thousand; ki, kb and kib are all 1024.
        scale = 1
        if unit:
            scale = (1024 if binary or byte else 1000) ** _POWERS[unit.lower()]
            if len(byte) > 1:
                raise self._unreadable(start, f"{number[0]!r} has no known unit", "write k, kb, kib, m, mb, mib, g …")
        # int() of a very long digit string is quadratic, and refused beyond 4300 digits.
        value = int(digits) * scale if len(digits) <= 20 else LARGEST_NUMBER + 1
        if not -LARGEST_NUMBER <= value <= LARGEST_NUMBER:
            shown = number[0] if len(number[0]) <= 40 else number[0][:40] + "…"
            raise self._unreadable(start, f"integer '{shown}' is out of the range", "it has to fit 64 bits")
        return value

    def _date(self, word: str, start: int) -> datetime.datetime:
        import datetime  # no option is a date

        try:
            return datetime.datetime.strptime(word, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=datetime.UTC)
        except ValueError:
            advice = "write 2006-01-02T15:04:05Z, or put text in quotes"
            raise self._unreadable(start, f"{word!r} is not a full ISO8601 Zulu date", advice) from None

    def _unescape(self, raw: str, start: int) -> str:
        if "\\" not in raw:
            return raw
        pieces: list[bytes] = []
        last = 0
        for match in _ESCAPE.finditer(raw):
            pieces.append(raw[last : match.start()].encode())
            last = match.end()
            code = match[1]
            if code in _SIMPLE_ESCAPES:
                pieces.append(_SIMPLE_ESCAPES[code].encode())
            elif _HEX_PAIR.match(code):
                pieces.append(bytes.fromhex(code[1:]))
            elif code.startswith("x"):
                what = f"expected two hexadecimal digits after '\\x', but got {code[1:]!r}"
                raise self._unreadable(start + match.start(), what, r"write \x41, say")
            else:
                advice = r"only \xXX, \t, \n, \r, \" and \\ are; in single quotes a \ is an ordinary character"
                raise self._unreadable(start + match.start(), f"invalid escape character {code!r}", advice)
        pieces.append(raw[last:].encode())
        try:
            return b"".join(pieces).decode()
        except UnicodeDecodeError:
            raise self._unreadable(
                start, "the \\x escapes here are not UTF-8 text", "escape whole characters"
            ) from None
