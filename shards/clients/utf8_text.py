"""What a client says of itself, as text that can be shown.

Lone surrogates, which JSON can smuggle into a string, have no bytes in UTF-8: pages, events and records could not be
encoded. Each becomes a question mark.
"""

from __future__ import annotations


def utf8_text(text: str) -> str:
    """The same text where UTF-8 has bytes for all of it."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
