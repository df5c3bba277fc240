"""Problems of a configuration with the line that each is in, and a caret below the place.

A line may hold a password, and what is printed at a failed start ends in a journal. So an excerpt shows only names of
options, values of options that are no secrets, and words that the problem itself names; anything else is an ellipsis.
Reads the files again, and leaves the excerpt out where that fails. Imported only when there is a problem.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from gnatswarm.router.config.conf_file import read_bytes
from gnatswarm.router.config.conf_tree import MOST_PROBLEMS_SHOWN, ConfigError, Problem
from gnatswarm.router.config.option_keys import BY_NAME

_MOST_FILE_BYTES = 1 << 20
_WIDTH = 100  # of an excerpt, in characters
_HIDDEN = "…"

_SECRET = frozenset({"http_password", "auth_token"})
_OPEN_VALUES = frozenset(BY_NAME) - _SECRET | {"cert_file", "key_file", "ca_file", "verify", "timeout", "account"}
_NAMES = (
    _OPEN_VALUES
    | _SECRET
    | {
        *(
            "authorization",
            "accounts",
            "users",
            "user",
            "username",
            "pass",
            "password",
            "token",
            "nkey",
            "tls",
            "websocket",
        ),
        *(
            "permissions",
            "permission",
            "publish",
            "subscribe",
            "pub",
            "sub",
            "allow",
            "deny",
            "allow_responses",
            "include",
        ),
        *(
            "imports",
            "exports",
            "stream",
            "service",
            "subject",
            "prefix",
            "to",
            "mappings",
            "default_permissions",
            "ws",
        ),
        *("enabled", "dir", "window", "max_subjects", "max_age", "max_size", "no_tls", "limits", "max", "expires"),
        *("max_clients", "client_subjects", "client_names"),
    }
)
# What cannot have a password, however a URL is misspelt: nothing is behind a colon but a port, or the // of a URL.
_WITHOUT_PASSWORD = re.compile(r"""["']?(?:\w*://)?(?:[^@:]*|\[[0-9A-Fa-f:.]*\])(?::\d{0,5})?["']?""")
_VARIABLE = re.compile(r"\$[A-Za-z_]\w*")
_TOKEN = re.compile(
    r"""(?P<space>\s+)|(?P<mark>[{}\[\],;:=()])|(?P<word>"(?:[^"\\]|\\.)*"?|'[^']*'?|[^\s{}\[\],;:=()"']+)""", re.DOTALL
)


def with_lines(error: ConfigError) -> str:
    """The text of the error; below each problem its line, as far as it may be shown."""
    files: dict[str, list[str]] = {}
    shown: list[str] = []
    for problem in error.problems[:MOST_PROBLEMS_SHOWN]:
        shown.append(str(problem))
        shown += _excerpt(problem, files)
    if len(error.problems) > MOST_PROBLEMS_SHOWN:
        shown.append(f"and {len(error.problems) - MOST_PROBLEMS_SHOWN} more problems")
    return "\n".join(shown)


def _excerpt(problem: Problem, files: dict[str, list[str]]) -> list[str]:
    at = problem.at
    if not at.line or not at.column:
        return []
    if at.file not in files:
        files[at.file] = _lines(at.file)
    lines = files[at.file]
    if at.line > len(lines):
        return []
    text, caret = censored(lines[at.line - 1], at.column - 1, problem.what)
    if text[caret : caret + 1] in ("", " "):
        return []  # the place is not in this text any more
    start = max(0, caret - _WIDTH // 2)
    number = f"{at.line:>5} | "
    return [number + text[start : start + _WIDTH], " " * (len(number) - 2) + "| " + " " * (caret - start) + "^"]


def _lines(file: str) -> list[str]:
    try:
        text = read_bytes(file, _MOST_FILE_BYTES, is_included=True).decode()
    except (OSError, ValueError):
        return []
    return re.split("\r\n|\n|\r", text.removeprefix("\ufeff"))


def censored(line: str, column: int, what: str) -> tuple[str, int]:
    """The line without anything that may be a secret, and the new position of this column."""
    pieces: list[str] = []
    length, caret = 0, 0
    for piece, start in _pieces(line, what):
        if start <= column:
            caret = length + (column - start if piece != _HIDDEN else 0)
        pieces.append(piece)
        length += len(piece)
    return "".join(pieces), caret


def _pieces(line: str, what: str) -> Iterator[tuple[str, int]]:
    """Each token of the line, or an ellipsis for it, and its column."""
    named = set(re.findall(r"[\w$.-]+", what))
    key = ""  # the key whose value comes next
    for match in _TOKEN.finditer(line):
        piece, start = match[0], match.start()
        if match["space"]:
            yield " " * len(piece), start
        elif match["mark"]:
            if piece not in ":=":
                key = ""
            yield piece, start
        elif piece.startswith(("#", "//")):
            return
        elif key:  # a value
            is_open = key in _OPEN_VALUES and piece.isprintable() and _WITHOUT_PASSWORD.fullmatch(piece)
            is_open = is_open or _VARIABLE.fullmatch(piece)
            yield (piece if is_open else _HIDDEN), start
            key = "hidden"  # another word behind a value belongs to it
        else:
            word = piece.strip("\"'")
            key = word.lower() if word.lower() in _NAMES else "hidden"
            yield (piece if key != "hidden" or (word in named and word.isprintable()) else _HIDDEN), start
