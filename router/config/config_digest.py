"""The digest of a configuration's values, as nats-server 2.15 shows it in its log, in /varz and after -t.

Two files with the same values have the same digest, whatever their blanks, comments, order and includes. It is SHA-256
of what Go's encoding/json writes for the parsed file. Somebody who knows the rest of a file can test guesses of a
password against the digest, as with nats-server. So it is computed only for `compatibility: "2.15"`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from operator import itemgetter

# Python's own SHA-256: `hashlib` would load OpenSSL at every start with a file.
if sys.version_info >= (3, 12):
    from _sha2 import sha256  # type: ignore[import-not-found, unused-ignore]
else:
    from _sha256 import sha256  # type: ignore[import-not-found, unused-ignore]

import msgspec

from gnatswarm.router.config.conf_tree import Block, List, Node

# Go escapes these in JSON, so that it can stand in a web page.
_ESCAPED = [(c.encode(), b"\\u%04x" % ord(c)) for c in "<>&\u2028\u2029"]

# Down to here each value is a piece of its own: a user in the list of an account. One piece of thousands of users would
# keep a router that reloads them from all else for a second.
_PIECES_DOWN_TO = 4


def config_digest(tree: Block) -> str:
    """`sha256:` and 64 hexadecimal digits."""
    digest = sha256()
    for piece in _pieces(tree, _PIECES_DOWN_TO):
        digest.update(piece)
    digest.update(b"\n")
    return f"sha256:{digest.hexdigest()}"


def _pieces(node: Node, depth: int) -> Iterator[bytes]:
    if depth == 0 or not isinstance(node, Block | List):
        yield _json(_plain(node))
        return
    is_block = isinstance(node, Block)
    values = _sorted(node) if isinstance(node, Block) else [("", item) for item in node.items]
    yield b"{" if is_block else b"["
    for at, (key, value) in enumerate(values):
        if at:
            yield b","
        if is_block:
            yield _json(key) + b":"
        yield from _pieces(value, depth - 1)
    yield b"}" if is_block else b"]"


def _json(value: object) -> bytes:
    written = msgspec.json.encode(value)
    for character, escaped in _ESCAPED:
        written = written.replace(character, escaped)
    return written


def _plain(node: Node) -> object:
    if isinstance(node, Block):
        return {key: _plain(value) for key, value in _sorted(node)}
    if isinstance(node, List):
        return [_plain(item) for item in node.items]
    value = node.value
    if isinstance(value, float) and value.is_integer():
        return int(value)  # Go writes 5.0 as 5
    if isinstance(value, str):
        return _text(value)
    return value if isinstance(value, int | float) else value.strftime("%Y-%m-%dT%H:%M:%SZ")


def _sorted(block: Block) -> list[tuple[str, Node]]:
    # Sorted here: msgspec's own sorting takes the square of the time for keys that are almost in order.
    return sorted({_text(entry.key): entry.value for entry in block}.items(), key=itemgetter(0))


def _text(value: str) -> str:
    """Without what is no Unicode: bytes of the file that are no UTF-8."""
    return value if value.isascii() else value.encode("utf-8", "replace").decode()
