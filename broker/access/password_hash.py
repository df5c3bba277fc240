"""The form of a password that is configured as a bcrypt hash: read before a start, without what compares hashes."""

from __future__ import annotations

import re

PREFIXES = ("$2a$", "$2b$", "$2x$", "$2y$")
_HASH = r"\$2[abxy]\$(\d\d)\$[./A-Za-z0-9]{53}\Z"  # compiled where there is one: the port is open before
_LEAST_COST, _MOST_COST = 4, 31


def is_hashed(password: str) -> bool:
    """Whether a configured secret looks like a bcrypt hash."""
    return password.startswith(PREFIXES)


def is_good_hash(password: str) -> bool:
    """Whether it is a valid bcrypt hash."""
    found = re.match(_HASH, password)
    return found is not None and _LEAST_COST <= int(found[1]) <= _MOST_COST
