"""Monitoring over HTTP: from a request to one of the pages, the dashboard or the metrics.

Imported only where monitoring is asked for, and never before the shards were started. Here is who may ask, how an
answer is wrapped, and what is counted; what a page shows is `router.pages`.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import logging
import socket
import ssl
from typing import TYPE_CHECKING

import msgspec
import orjson

from router import dashboard, metrics
from router.http_server import HttpServer, Request, Response, text_response
from router.listeners import ListenError
from router.monitor_socket import monitoring_scheme
from router.page_query import BadQuery, PageQuery
from router.pages import Busy

if TYPE_CHECKING:
    from router.supervisor import Supervisor

log = logging.getLogger("gnatswarm.router")

# What the list of links shows, in the real server's order, ours behind.
LINKS = (
    ("varz", "General"),
    ("jsz", "JetStream"),
    ("connz", "Connections"),
    ("accountz", "Accounts"),
    ("accstatz", "Account Stats"),
    ("subsz", "Subscriptions"),
    ("routez", "Routes"),
    ("leafz", "LeafNodes"),
    ("gatewayz", "Gateways"),
    ("shardz", "Shards"),
    ("subjectz", "Subjects"),
    ("queuez", "Queue Groups"),
    ("slowz", "Slow Consumers"),
    ("metrics", "Metrics"),
    ("healthz", "Health Probe"),
)


class Monitor:
    """The monitoring pages of one supervisor, on one listening socket."""

    def __init__(self, supervisor: Supervisor, sock: socket.socket) -> None:
        self._supervisor = supervisor
        self._sock = sock
        self._scheme = monitoring_scheme(supervisor.options)
        self._context: ssl.SSLContext | None = None
        self._take_certificate()
        supervisor.on_reloaded = self._take_certificate
        desk = supervisor.desk
        self._host, self._port = desk.address
        self._requests = desk.requests
        self._pages = desk.pages
        self._server = HttpServer(self._respond)

    async def start(self) -> None:
        """From here on pages are served."""
        log.info("Starting %s monitor on %s:%d", self._scheme, self._host, self._port)
        await self._server.start(self._sock, self._current_context if self._context is not None else None)

    def close(self) -> None:
        """Serve no more."""
        self._server.close()

    def _take_certificate(self) -> None:
        """The one that the options name now. Of whoever looks none is asked for, as by nats-server."""
        if self._scheme != "https":
            return
        from shards.certificates import CertificateError, server_context

        tls = msgspec.structs.replace(self._supervisor.options.tls, verify=False, verify_and_map=False)
        try:
            self._context = server_context(tls)
        except CertificateError as error:  # it was good a moment ago, when the options were checked
            if self._context is None:
                raise ListenError(f"Can't start monitoring: {error}") from None
            log.error("Monitoring keeps its old certificate: %s", error)

    def _current_context(self) -> ssl.SSLContext:
        assert self._context is not None
        return self._context

    # ---- requests

    async def _respond(self, request: Request) -> Response:
        base = self._supervisor.options.http_base_path
        if request.path != base and not request.path.startswith(f"{base}/"):
            return text_response("404 page not found", 404)
        path = request.path[len(base) :] or "/"
        if path != "/healthz" and not self._is_allowed(request):
            return text_response("401 unauthorized", 401, ("www-authenticate", 'Basic realm="gnatswarm"'))
        try:
            query = PageQuery(request.query)
            callback = query.callback
            response = await self._page(path, query, request)
        except BadQuery as error:
            return text_response(str(error), 400)
        except Busy:
            return text_response("too many pages at once, try again", 503, ("retry-after", "1"))
        if response is None:
            return text_response("404 page not found", 404)
        if callback and response.content_type == "application/json":
            return response._replace(
                body=b"%b(%b)" % (callback.encode(), response.body), content_type="application/javascript"
            )
        return response

    async def _page(self, path: str, query: PageQuery, request: Request) -> Response | None:
        if path == "/":
            self._count("/")
            if request.wants_html:
                return Response(dashboard.page(LINKS), "text/html; charset=utf-8", headers=dashboard.HEADERS)
            return Response(_list_of_links(request.path), "text/html; charset=utf-8")
        if path == "/healthz":
            self._count(path)
            fault = self._pages.health()
            if fault:
                return Response(_health("unavailable", fault), status=503)
            return Response(_health("ok"))
        if path == "/metrics":
            self._count(path)
            return Response(await self._pages.metrics(query), metrics.CONTENT_TYPE)
        build = self._pages.by_path.get(path)
        if build is None:
            return None
        self._count("/subsz" if path == "/subscriptionsz" else path)
        return Response(await build(query))

    def _count(self, path: str) -> None:
        self._requests[path] = self._requests.get(path, 0) + 1

    def _is_allowed(self, request: Request) -> bool:
        options = self._supervisor.options
        if not options.http_user:
            return True
        scheme, _, coded = request.headers.get("authorization", "").partition(" ")
        try:
            given = base64.b64decode(coded.strip(), validate=True) if scheme.lower() == "basic" else b""
        except binascii.Error:
            return False
        return hmac.compare_digest(given, f"{options.http_user}:{options.http_password}".encode())


def _health(status: str, error: str = "") -> bytes:
    # As the real server writes it: no blanks, and no error when there is none.
    return orjson.dumps({"status": status, "error": error} if error else {"status": status})


def _list_of_links(path: str) -> bytes:
    """For programs: one link a line, relative to where the list is."""
    here = "." if path.endswith("/") else f"./{path.rpartition('/')[2]}"
    links = "\n".join(f"<a href={here}/{name}>{text}</a><br>" for name, text in LINKS)
    return f'<html lang="en">\n<body>\n{links}\n</body>\n</html>\n'.encode()
