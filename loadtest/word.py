"""A word of a line of the protocol: a subject, the name of a queue group, an account."""

from __future__ import annotations

# What ends a word for a server, or the line; and NUL, which nats-server takes for no part of a subject.
BLANKS = " \t\r\n\0"


def has_blanks(word: str) -> bool:
    """Whether it would not arrive as one word."""
    return any(blank in word for blank in BLANKS)
