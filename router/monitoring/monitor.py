"""Monitoring over HTTP: answers a request with one of the pages, the dashboard or the metrics.

Imported only where monitoring is configured, and never before the shards are started. It checks who may ask, wraps
responses (JSONP) and counts requests; the contents of pages are in `router.monitoring.pages`.
"""

from __future__ import annotations

import base64
import hmac
import html
import logging
import posixpath
import socket
import ssl
from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec
import orjson

from gnatswarm.router.listening.listeners import ListenError
from gnatswarm.router.listening.monitor_socket import monitoring_scheme
from gnatswarm.router.monitoring import dashboard, metrics
from gnatswarm.router.monitoring.aggregate import health_status
from gnatswarm.router.monitoring.host_header import HostHeader
from gnatswarm.router.monitoring.http_server import HttpRequest, HttpResponse, HttpServer, text_response
from gnatswarm.router.monitoring.page_query import BadQuery, PageQuery
from gnatswarm.router.monitoring.pages import Busy

if TYPE_CHECKING:
    from gnatswarm.broker.options import Options
    from gnatswarm.router.monitoring.state import MonitoringState
    from gnatswarm.router.supervision.broker_view import BrokerView

log = logging.getLogger("gnatswarm.router")

# The list of links, in nats-server's order; our own pages come last.
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
    ("historyz", "History"),
    ("deniedz", "Denied by Permissions"),
    ("alarmz", "Alarms"),
    ("metrics", "Metrics"),
    ("healthz", "Health Probe"),
)

# Programs made for nats-server may request these pages. They are always empty here, so people get no link to them.
EMPTY = ("jsz", "gatewayz")

# Small pages that ask no shard. They are served even when all ordinary places are taken: a liveness probe, which
# restarts a broker that does not answer, asks for one of the first two.
VITAL = ("/healthz", "/livez", "/varz", "/metrics")
# These need no password: they only say whether the broker is healthy, and a probe has no password.
WITHOUT_PASSWORD = ("/healthz", "/livez")


class Monitor:
    """The monitoring pages of one broker, on one listening socket."""

    def __init__(self, view: BrokerView, state: MonitoringState, sock: socket.socket) -> None:
        self._view = view
        self._sock = sock
        self._scheme = monitoring_scheme(view.options)
        self._context: ssl.SSLContext | None = None
        self.take_certificate()
        self._requests = state.requests
        self._pages = state.pages
        self._history = state.history
        self._alarms = state.alarms
        options = view.options
        self._host_header = HostHeader(sock, options.http_host, options.host, is_tls=self._scheme == "https")
        self._server = HttpServer(self._respond, self._is_vital)

    async def start(self) -> None:
        """Start serving."""
        self._history.start()
        self._alarms.start()
        await self._server.start(self._sock, self._current_context if self._context is not None else None)

    def close(self) -> None:
        """Stop serving."""
        self._server.close()
        self._history.close()
        self._alarms.close()

    def take_certificate(self) -> None:
        """Load the certificate of the present options. Viewers need no client certificate, as in nats-server."""
        if self._scheme != "https":
            return
        from gnatswarm.shards.boundary.certificates import CertificateError, server_context

        tls = msgspec.structs.replace(self._view.options.tls, verify=False, verify_and_map=False)
        try:
            self._context = server_context(tls)
        except CertificateError as error:  # it was valid when the options were checked
            if self._context is None:
                raise ListenError(f"Can't start monitoring: {error}") from None
            log.error("Monitoring keeps its old certificate: %s", error)

    def _current_context(self) -> ssl.SSLContext:
        assert self._context is not None
        return self._context

    # ---- requests

    def _is_vital(self, path: str) -> bool:
        base = self._view.options.http_base_path
        return path.startswith(base) and path[len(base) :] in VITAL

    async def _respond(self, request: HttpRequest) -> HttpResponse:
        refusal = self._host_header.refusal(request.headers.get("host", ""))
        if refusal:
            return text_response(refusal, 421)
        clean = _clean_path(request.path)
        if clean != request.path:
            return _redirect(clean, request.query, is_like_newer=self._view.options.is_like_newer)
        base = self._view.options.http_base_path
        if request.path != base and not request.path.startswith(f"{base}/"):
            return text_response("404 page not found\n", 404)
        path = request.path[len(base) :] or "/"
        if path not in WITHOUT_PASSWORD and not self._is_allowed(request):
            return text_response("401 unauthorized", 401, ("www-authenticate", 'Basic realm="gnatswarm"'))
        try:
            query = PageQuery(request.query)
            # 2.15 has no JSONP any more.
            callback = "" if self._view.options.is_like_newer else query.callback
            if callback and (refusal := self._host_header.jsonp_refusal(request.headers.get("sec-fetch-site", ""))):
                return text_response(refusal, 403)
            response = await self._page(path, query, request)
        except BadQuery as error:
            return text_response(str(error), 400)
        except Busy:
            return text_response("too many pages at once, try again", 503, ("retry-after", "1"))
        if response is None:
            return text_response("404 page not found\n", 404)
        if callback and response.content_type == "application/json":
            return response._replace(
                body=b"%b(%b)" % (callback.encode(), response.body), content_type="application/javascript"
            )
        return response

    async def _page(self, path: str, query: PageQuery, request: HttpRequest) -> HttpResponse | None:
        if path == "/":
            self._count("/")
            if request.wants_html:
                return HttpResponse(
                    dashboard.page([link for link in LINKS if link[0] not in _empty_pages(self._view.options)]),
                    "text/html; charset=utf-8",
                    headers=dashboard.HEADERS,
                )
            return HttpResponse(_list_of_links(request.path), "text/html; charset=utf-8")
        if path == "/healthz":
            self._count(path)
            return self._health(query)
        if path == "/livez":  # the router answers, and a liveness probe needs no more
            self._count(path)
            return HttpResponse(orjson.dumps(health_status("")))
        if path == "/metrics":
            self._count(path)
            text = await self._pages.metrics(query)
            if metrics.prefers_open_metrics(request.headers.get("accept", "")):
                return HttpResponse(metrics.open_metrics(text.decode()).encode(), metrics.OPEN_METRICS)
            return HttpResponse(text, metrics.CONTENT_TYPE)
        if path == "/stacksz":
            self._count(path)
            return HttpResponse(await self._pages.stacks(query), "text/plain; charset=utf-8")
        build = self._pages.by_path.get(path)
        if build is None:
            return None
        self._count("/subsz" if path == "/subscriptionsz" else path)
        return HttpResponse(await build(query))

    def _health(self, query: PageQuery) -> HttpResponse:
        is_like_newer = self._view.options.is_like_newer
        wrong = query.healthz(is_like_newer=is_like_newer)
        details = is_like_newer and query.flag("details")
        if wrong:
            return HttpResponse(orjson.dumps(health_status(wrong, is_bad_request=True, details=details)), status=400)
        fault = self._pages.health()
        return HttpResponse(orjson.dumps(health_status(fault, details=details)), status=503 if fault else 200)

    def _count(self, path: str) -> None:
        self._requests[path] = self._requests.get(path, 0) + 1

    def _is_allowed(self, request: HttpRequest) -> bool:
        options = self._view.options
        if not options.http_user:
            return True
        scheme, _, coded = request.headers.get("authorization", "").partition(" ")
        try:
            given = base64.b64decode(coded.strip(), validate=True) if scheme.lower() == "basic" else b""
        except ValueError:  # binascii.Error, or a character that is not ASCII
            return False
        return hmac.compare_digest(given, f"{options.http_user}:{options.http_password}".encode())


def _clean_path(path: str) -> str:
    """The path without empty, "." and ".." elements, as Go's HTTP server wants it."""
    if not path.startswith("/"):
        return path
    clean = "/" + posixpath.normpath(path).lstrip("/")
    return f"{clean}/" if path.endswith("/") and clean != "/" else clean


def _redirect(path: str, query: str, *, is_like_newer: bool) -> HttpResponse:
    """To the page of the clean path. Quoted, so that no browser takes it for another host's address."""
    status, words = (307, "Temporary Redirect") if is_like_newer else (301, "Moved Permanently")
    where = quote(path, safe="/$&+,:;=@~", errors="surrogateescape") + (f"?{query}" if query else "")
    body = f'<a href="{html.escape(where)}">{words}</a>.\n\n'.encode()
    return HttpResponse(body, "text/html; charset=utf-8", status, (("location", where),))


def _empty_pages(options: Options) -> set[str]:
    """Pages that have nothing to show."""
    routes = () if options.cluster.port else ("routez",)
    leafs = () if options.leafnodes.remotes or options.leafnodes.port else ("leafz",)
    return {*EMPTY, *routes, *leafs}


def _list_of_links(path: str) -> bytes:
    """For programs: one link per line, relative to the list's own path."""
    here = "." if path.endswith("/") else f"./{path.rpartition('/')[2]}"
    links = "\n".join(f"<a href={here}/{name}>{text}</a><br>" for name, text in LINKS)
    return f'<html lang="en">\n<body>\n{links}\n</body>\n</html>\n'.encode()
