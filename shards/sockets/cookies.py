"""The credentials in the cookies of a WebSocket upgrade: user name, password and token, as nats-server 2.15 reads them.

The last cookie of a name counts, invalid ones are skipped, quotes around a value do not belong to it, and nothing is
decoded. Source: its behaviour, in tests/system/test_websocket_options.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

# User name, password and token; "": the client gives none, or an empty one.
Credentials = tuple[str, str, str]

_NOT_IN_VALUES = frozenset('";\\')


def credentials_of(lines: Iterable[str], names: Credentials) -> Credentials | None:
    """Those in the values of the headers `Cookie`, by the names of their cookies; None: all are empty."""
    given = dict(_cookies(lines))
    user, password, token = (given.get(name, "") if name else "" for name in names)
    return (user, password, token) if user or password or token else None


def _cookies(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    for line in lines:
        for part in line.split(";"):
            name, _, value = part.strip(" \t").partition("=")
            if len(value) > 1 and value[0] == value[-1] == '"':
                value = value[1:-1]
            if all(" " <= letter < "\x7f" and letter not in _NOT_IN_VALUES for letter in value):
                yield name.strip(" \t"), value
