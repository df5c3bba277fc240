"""The `websocket` block of the configuration: the port for browsers, as settings of Options.

A restriction that this broker does not enforce is a problem, never a notice: see `router.config.not_offered`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from urllib.parse import urlsplit

from gnatswarm.broker.access.password_hash import is_good_hash, is_hashed
from gnatswarm.broker.options import WebSocket
from gnatswarm.router.config import not_offered
from gnatswarm.router.config import option_values as values
from gnatswarm.router.config.conf_tree import Block, Entry, Position, Problem, Scalar, plain
from gnatswarm.router.config.option_keys import Settings
from gnatswarm.router.config.option_values import BareSeconds, Mistake
from gnatswarm.router.config.repetition import given_again, same
from gnatswarm.router.config.tls_block import TlsBlock
from gnatswarm.router.config.user_list import BAD_HASH, NAMES, known, not_enforced, text_of, unknown_field

# A header's name (RFC 9110, section 5.1), and what must not be in a value: it would end the header, or the response.
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
# Of the handshake itself, or such as give the response a body. nats-server refuses them, too, but for the last.
_OWN_HEADERS = frozenset({"upgrade", "connection", "host", "content-length", "nats-no-masking", "transfer-encoding"})
_OWN_PREFIX = "sec-websocket-"

_BLOCKS = ("tls", "headers", "authorization", "authentication")
_CREDENTIALS = NAMES | {"token": "token", "timeout": "timeout"}
_COOKIES = ("user_cookie", "pass_cookie", "token_cookie")


class WebSocketBlock:
    """Reads one block into `settings`; errors are in `problems`."""

    def __init__(self, entry: Entry) -> None:
        self.settings: Settings = {}
        self.problems: list[Problem] = []
        self.notices: list[Problem] = []
        self.places: dict[str, Position] = {}  # of fields that are compared with the rest of the configuration
        self._has_authorization = False
        if not isinstance(entry.value, Block):
            what = f"Expected websocket to be a map, got {entry.value.kind}"
            self.problems.append(Problem(entry.at, what, "write websocket { port: … }"))
            return
        self.problems += given_again(entry.value, _NAMES, ["tls"])
        for inner in entry.value:
            self._entry(inner)
            if inner.key.lower() == "no_auth_user":
                self.places["websocket.no_auth_user"] = inner.at
        has_port = self.settings.get("websocket.port", 0) != 0
        has_certificate = bool(self.settings.get("websocket.tls.cert_file"))
        if has_port and not has_certificate and not self.settings.get("websocket.no_tls"):
            advice = "add tls { … }, or no_tls: true if a proxy in front encrypts"
            self.problems.append(Problem(entry.at, "websocket requires TLS configuration", advice))
        self._check_cookies(entry.at)

    def _entry(self, entry: Entry) -> None:
        key = entry.key.lower()
        if key == "tls":
            block = TlsBlock(entry, "websocket.tls")
            self.problems += block.problems
            self.notices += block.notices
            self.settings |= block.settings
            if block.settings.get("websocket.tls.handshakes_per_s"):
                self.problems.append(not_enforced(entry.at, '"connection_rate_limit" of WebSocket clients'))
        elif key == "headers":
            self._headers(entry)
        elif key in ("authorization", "authentication"):
            self._authorization(entry)
        elif key in _KEYS:
            try:
                self.settings |= {f"websocket.{name}": found for name, found in _KEYS[key](plain(entry.value)).items()}
            except Mistake as mistake:
                self._problem(entry.at, f"{key}: {mistake.what}", mistake.advice)
            except BareSeconds as bare:
                what = f'invalid use of field "{key}": {key} should be converted to a duration'
                self._problem(entry.at, what, f'write "{bare.seconds:.0f}s"')
        elif key in not_offered.RESTRICTS_IN_WEBSOCKET:
            self.problems.append(not_enforced(entry.at, f'"{entry.key}": {not_offered.RESTRICTS_IN_WEBSOCKET[key]}'))
        elif not entry.used:
            self.problems.append(unknown_field(entry, [*_KEYS, *_BLOCKS, *not_offered.RESTRICTS_IN_WEBSOCKET]))

    def _headers(self, entry: Entry) -> None:
        """Headers of the response to an upgrade; each mistake has its own place."""
        if not isinstance(entry.value, Block):
            what = f"error parsing headers: expected a block, not {entry.value.kind}"
            self._problem(entry.at, what, "write headers { Name: value }")
            return
        found = []
        for inner in entry.value:
            name, value = inner.key, inner.value.value if isinstance(inner.value, Scalar) else None
            if not isinstance(value, str):
                what = f"error parsing header key {name}: expected text, not {inner.value.kind}"
                self._problem(inner.at, what, "put it in quotes")
            elif not _HEADER_NAME.fullmatch(name):
                self._problem(inner.at, f'"{name}" is no name of a header', "it has letters, digits and hyphens")
            elif name.lower() in _OWN_HEADERS or name.lower().startswith(_OWN_PREFIX):
                self._problem(inner.at, f'invalid header "{name}" not allowed', "the handshake itself has it")
            elif _CONTROL.search(value):
                self._problem(inner.at, f"header {name}: control characters", "a value is one line of text")
            else:
                found.append((name, value))
        self.settings["websocket.headers"] = tuple(found)

    def _authorization(self, entry: Entry) -> None:
        """A token, or the only user, of WebSocket clients, in place of the broker's."""
        if not isinstance(entry.value, Block):
            what = f"expected a block, not {entry.value.kind}"
            self._problem(entry.at, what, "write authorization { user: …, password: … }")
            return
        if entry.replaces is not None or self._has_authorization:
            self._problem(entry.at, f"{entry.key} is given again", "keep one")
        self._has_authorization = True
        self.problems += given_again(entry.value, _CREDENTIALS)
        given: dict[str, str] = {}
        for inner in entry.value:
            name = known(inner, _CREDENTIALS, self.problems)
            if name == "timeout":
                self._auth_timeout(inner)
            elif name:
                self._credential(inner, name, given)
        if "token" in given and ("user" in given or "pass" in given):
            # The real server starts, and then only the token counts.
            self._problem(entry.at, "Cannot have a user/pass and token", "remove one of them")
        elif "pass" in given and "user" not in given:
            self._problem(entry.at, "a password without a user has no effect", "add a user")
        fields = {"token": "auth_token", "user": "auth_user", "pass": "auth_password"}
        found = {f"websocket.{fields[name]}": value for name, value in given.items()}
        self.settings |= found
        self.places |= dict.fromkeys(found, entry.at)

    def _credential(self, entry: Entry, name: str, given: dict[str, str]) -> None:
        value = text_of(entry, self.problems)
        if value is None:
            return
        if not value and name != "pass":
            self._problem(entry.at, f"an empty {name} has no effect", f"write a {name}, or remove the key")
        elif name != "user" and is_hashed(value) and not is_good_hash(value):
            self._problem(entry.at, BAD_HASH, "make one with `htpasswd -nbB` or the like")
        else:
            given[name] = value

    def _auth_timeout(self, entry: Entry) -> None:
        value = plain(entry.value)
        try:
            self.settings["websocket.auth_timeout_s"] = values.auth_timeout_s(value) if value != 0 else 0.0
        except Mistake as mistake:
            self._problem(entry.at, f"timeout: {mistake.what}", mistake.advice)

    def _check_cookies(self, at: Position) -> None:
        """No cookie has two meanings: the real server would take it for the first one alone."""
        names = [name for key in _COOKIES if (name := self.settings.get(f"websocket.{key}"))]
        if len(set(names)) < len(names):
            self._problem(at, "one cookie for two of user_cookie, pass_cookie, token_cookie", "give them other names")

    def _problem(self, at: Position, what: str, advice: str) -> None:
        self.problems.append(Problem(at, what, advice))


def _port(value: object) -> Settings:
    return {"port": values.http_port(value)}


def _listen(value: object) -> Settings:
    if not isinstance(value, str):
        return _port(value)
    host, port = values.listen(value)
    return {"host": host, "port": port}


def _timeout(value: object) -> Settings:
    try:
        seconds = values.duration_s(value)
    except BareSeconds as bare:
        seconds = bare.seconds
    return {"handshake_timeout_s": seconds or WebSocket().handshake_timeout_s}


def _origins(value: object) -> Settings:
    items = value if isinstance(value, list) else [value]
    found = []
    for item in items:
        origin = values.text(item)
        try:
            parts = urlsplit(origin)
            _ = parts.port
        except ValueError:
            raise Mistake(f'unable to parse allowed origin "{origin}"', "write https://host:port") from None
        # The real server accepts such texts, and then refuses every page.
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise Mistake(f'"{origin}" is no origin', "write one such as https://example.com")
        found.append(origin)
    return {"allowed_origins": tuple(found)}


def _cookie(name: str) -> Callable[[object], Settings]:
    def read(value: object) -> Settings:
        cookie = values.text(value)
        if cookie and not _HEADER_NAME.fullmatch(cookie):
            # The real server starts, and such a cookie never comes.
            raise Mistake(f'"{cookie}" is no name of a cookie', "it has letters, digits and hyphens")
        return {name: cookie}

    return read


def _sets(name: str, read: Callable[[object], object]) -> Callable[[object], Settings]:
    return lambda value: {name: read(value)}


_KEYS: dict[str, Callable[[object], Settings]] = {
    "listen": _listen,
    "port": _port,
    "host": _sets("host", values.host),
    "net": _sets("host", values.host),
    "advertise": _sets("advertise", values.client_advertise),
    "no_tls": _sets("no_tls", values.boolean),
    "compression": _sets("compression", values.boolean),
    "same_origin": _sets("same_origin", values.boolean),
    "allowed_origins": _origins,
    "allowed_origin": _origins,
    "allow_origins": _origins,
    "allow_origin": _origins,
    "origins": _origins,
    "origin": _origins,
    "handshake_timeout": _timeout,
    "ping_interval": _sets("ping_interval_s", values.interval_s),
    "no_auth_user": _sets("no_auth_user", values.text),
    **{name: _cookie(name) for name in _COOKIES},
}
# (Of authorization there is one at most, in whatever spelling.)
_NAMES = {
    **{name: name for name in (*_KEYS, "tls", "headers")},
    **same("host", "net"),
    **same("allowed_origins", "allowed_origin", "allow_origins", "allow_origin", "origins", "origin"),
}
