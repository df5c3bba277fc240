"""Makes what peers say of themselves encodable.

Lone surrogates, which JSON can smuggle into a string, have no bytes in UTF-8: pages, events, records and JSON lines of
logs could not be encoded. Each becomes a question mark.
"""

from __future__ import annotations


def utf8_replaced(text: str) -> str:
    """Text with surrogates for bytes that were not UTF-8: with U+FFFD in their place, as if it was decoded so."""
    return text if text.isascii() else text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def utf8_text(text: str) -> str:
    """The text, with a question mark for each character that UTF-8 cannot encode."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
