"""The dashboard: one page for a browser, with everything it needs in it. What it shows it fetches from the pages."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import lru_cache

# Nothing from elsewhere, and nothing that somebody's client name could smuggle in.
HEADERS = (
    (
        "content-security-policy",
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("referrer-policy", "no-referrer"),
)


@lru_cache(maxsize=1)
def _source() -> str:
    # importlib.resources would read it from a zip file too, and takes longer to import than all the rest.
    with open(os.path.join(os.path.dirname(__file__), "dashboard.html"), encoding="utf-8") as file:
        return file.read()


def page(links: Iterable[tuple[str, str]]) -> bytes:
    """The page, with the plain list of pages in it."""
    items = "".join(f'<a href="{name}">{text}</a>' for name, text in links)
    return _source().replace("<!--links-->", items, 1).encode()
