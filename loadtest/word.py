"""A word of a line of the protocol: a subject, the name of a queue group, an account."""

from __future__ import annotations

# What ends a word for a server, or the line; and NUL, which nats-server takes for no part of a subject.
BLANKS = " \t\r\n\0"


def has_blanks(word: str) -> bool:
    """Whether it would not arrive as one word, or is no text: Python has surrogates for bytes that are no UTF-8."""
    return any(blank in word for blank in BLANKS) or not is_text(word)


def is_text(words: str) -> bool:
    """Whether it can be sent, as UTF-8."""
    return words.isascii() or not any("\ud800" <= character <= "\udfff" for character in words)
