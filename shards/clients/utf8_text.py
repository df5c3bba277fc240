"""Makes a client's texts about itself encodable.

Lone surrogates, which JSON can smuggle into a string, have no bytes in UTF-8: pages, events and records could not be
encoded. Each becomes a question mark.
"""

from __future__ import annotations


def utf8_text(text: str) -> str:
    """The text, with a question mark for each character that UTF-8 cannot encode."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
