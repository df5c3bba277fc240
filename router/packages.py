"""Whether the packages that Python found under our names are ours: `broker` and `shards` are common words.

One installation has all of them side by side. Called before anything of theirs is trusted.
"""

from __future__ import annotations

import importlib.util
import os

NEEDED = ("broker", "shards")


def clash() -> str:
    """One line that says which package is another's and where it is; "" when all are ours."""
    ours = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    for name in NEEDED:
        spec = importlib.util.find_spec(name)
        origin = spec.origin if spec is not None else None
        if origin is None:
            return f"the package {name!r} is missing beside gnatswarm in {ours}: install gnatswarm again"
        found = os.path.dirname(os.path.dirname(os.path.abspath(origin)))
        if found != ours:
            return (
                f"Python finds another package {name!r} in {found} before gnatswarm's in {ours}: "
                f"take that directory off PYTHONPATH, or start with `python -P -m router`"
            )
    return ""
