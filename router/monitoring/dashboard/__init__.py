"""The dashboard: one self-contained page for browsers. It fetches its data from the monitoring pages."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import lru_cache

# No content from other sites, and no code injected by a client's name.
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
    # importlib.resources would work in a zip file too, but takes longer to import than everything else here.
    with open(os.path.join(os.path.dirname(__file__), "dashboard.html"), encoding="utf-8") as file:
        return file.read()


def page(links: Iterable[tuple[str, str]]) -> bytes:
    """The dashboard, with the plain list of pages in it."""
    items = "".join(f'<a href="{name}">{text}</a>' for name, text in links)
    return _source().replace("<!--links-->", items, 1).encode()
