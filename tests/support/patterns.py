"""Patterns of which many are looked at for each subject that begins as they do, and that none matches."""

from __future__ import annotations

import itertools

# Nodes of their trie that are looked below for a subject().
STEPS = 2047


def subscriptions() -> bytes:
    """A client's 1,024 subscriptions, with sids from 1 on."""
    patterns = [".".join([*tokens, "a"]) for tokens in itertools.product("*a", repeat=10)]
    return "".join(f"SUB {pattern} {sid}\r\n" for sid, pattern in enumerate(patterns, 1)).encode()


def publishes(count: int) -> bytes:
    """Messages on a subject each, whose payloads are their numbers."""
    begin = "a." * 10
    return "".join(f"PUB {begin}b{n} {len(str(n))}\r\n{n}\r\n" for n in range(count)).encode()
