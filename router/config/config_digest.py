"""The digest of a configuration's values, as nats-server 2.15 shows it in its log, in /varz and after -t.

Two files with the same values have the same digest, whatever their blanks, comments, order and includes. It is SHA-256
of what Go's encoding/json writes for the parsed file. Somebody who knows the rest of a file can test guesses of a
password against the digest, as with nats-server. So it is computed only for `compatibility: "2.15"`.
"""

from __future__ import annotations

import sys
from operator import itemgetter

# Python's own SHA-256: `hashlib` would load OpenSSL at every start with a file.
if sys.version_info >= (3, 12):
    from _sha2 import sha256  # type: ignore[import-not-found, unused-ignore]
else:
    from _sha256 import sha256  # type: ignore[import-not-found, unused-ignore]

import msgspec

from gnatswarm.router.config.conf_tree import Block, List, Node

# Go escapes these in JSON, so that it can stand in a web page.
_ESCAPED = str.maketrans({c: f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"})


def config_digest(tree: Block) -> str:
    """`sha256:` and 64 hexadecimal digits."""
    text = msgspec.json.encode(_plain(tree)).decode()
    written = text.translate(_ESCAPED) + "\n"
    return f"sha256:{sha256(written.encode()).hexdigest()}"


def _plain(node: Node) -> object:
    if isinstance(node, Block):
        # Sorted here: msgspec's own sorting takes the square of the time for keys that are almost in order.
        return dict(sorted({_text(entry.key): _plain(entry.value) for entry in node}.items(), key=itemgetter(0)))
    if isinstance(node, List):
        return [_plain(item) for item in node.items]
    value = node.value
    if isinstance(value, float) and value.is_integer():
        return int(value)  # Go writes 5.0 as 5
    if isinstance(value, str):
        return _text(value)
    return value if isinstance(value, int | float) else value.strftime("%Y-%m-%dT%H:%M:%SZ")


def _text(value: str) -> str:
    """Without what is no Unicode: bytes of the file that are no UTF-8."""
    return value if value.isascii() else value.encode("utf-8", "replace").decode()
