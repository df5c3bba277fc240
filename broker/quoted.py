"""Text in double quotes, as by Go's %q, or without them: makes what a client sent safe to show.

Printable characters stay. Control characters, those that turn the direction of text, and invalid UTF-8 are escaped;
between quotes so are quotes and backslashes.
"""

from __future__ import annotations

_SHORT = {'"': '\\"', "\\": "\\\\", "\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_SHORT["\v"] = "\\v"


def quoted(data: bytes | str) -> str:
    """`data` in quotes, on one line."""
    text = data if isinstance(data, str) else data.decode("utf-8", "surrogateescape")
    if text.isascii() and text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'
    return '"' + "".join(_escaped(character) for character in text) + '"'


def visible(text: str) -> str:
    """`text` without quotes: for lines of which only a part comes from a client."""
    if text.isprintable():
        return text
    return "".join(one if one in '"\\' else _escaped(one) for one in text)


def _escaped(character: str) -> str:
    code = ord(character)
    if character in _SHORT:
        return _SHORT[character]
    if 0xDC80 <= code <= 0xDCFF:  # a byte of invalid UTF-8
        return f"\\x{code - 0xDC00:02x}"
    if character.isprintable() and not 0xD800 <= code <= 0xDFFF:
        return character
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
