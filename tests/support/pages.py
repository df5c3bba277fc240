"""The monitoring pages of a broker under test, read as a tool reads them: plain HTTP, every wait with a deadline."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.support.servers import HOST, START_DEADLINE_S, Broker

# Both programs have the same log line.
MONITORING = re.compile(r"Starting (https?) monitor on \S*:(\d+)")
DEADLINE_S = 60.0


@dataclass(frozen=True)
class Page:
    """One HTTP response."""

    status: int
    headers: dict[str, str]  # lower-case names
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "")


@dataclass
class Pages:
    """Make it with `Pages.of(broker)`, of a broker started with `-m -1`."""

    port: int
    base: str = ""
    host: str = HOST
    headers: dict[str, str] = field(default_factory=dict)
    scheme: str = "http"
    context: ssl.SSLContext | None = None  # for https

    @classmethod
    def of(cls, broker: Broker, **options: Any) -> Pages:
        found = broker.log.wait_line(MONITORING.pattern, START_DEADLINE_S)
        return cls(int(found[2]), **{"scheme": found[1], **options})

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.host}:{self.port}{self.base}"

    def get(self, path: str, method: str = "GET", **headers: str) -> Page:
        """The page at `path`, whatever its status."""
        request = urllib.request.Request(self.url + path, method=method, headers=self.headers | headers)
        handlers = [urllib.request.ProxyHandler({}), _NoRedirect(), urllib.request.HTTPSHandler(context=self.context)]
        opener = urllib.request.build_opener(*handlers)
        try:
            with opener.open(request, timeout=DEADLINE_S) as answer:
                return _page(answer.status, answer.headers, answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return _page(error.code, error.headers, error.read())

    def json(self, path: str) -> Any:
        """The document at `path`."""
        page = self.get(path)
        assert page.status == 200, f"{path}: {page.status} {page.text[:400]}"
        return page.json

    async def wait(self, path: str, condition: Callable[[Any], bool], deadline_s: float = DEADLINE_S) -> Any:
        """The document at `path` when it fulfils the condition; meanwhile the event loop runs, so that clients read."""
        until = time.monotonic() + deadline_s
        while True:
            page = await asyncio.to_thread(self.get, path)
            document = page.json if "json" in page.content_type else page.text
            if condition(document):
                return document
            assert time.monotonic() < until, f"{path} not so within {deadline_s} s: {page.text[:3000]}"


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


def _page(status: int, headers: Any, body: bytes) -> Page:
    return Page(status, {name.lower(): value for name, value in headers.items()}, body)


def basic(user: str, password: str) -> dict[str, str]:
    """The header of basic authentication."""
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}
