"""The `cluster` block of the configuration and its flags, as settings of Options.

A restriction that this broker does not enforce is a problem, never a notice: see `router.config.not_offered`.
"""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import unquote, urlsplit

from gnatswarm.broker.options import Permissions
from gnatswarm.router.config import not_offered
from gnatswarm.router.config import option_values as values
from gnatswarm.router.config.conf_tree import Block, Entry, List, Node, Position, Problem, Scalar, plain, text_in
from gnatswarm.router.config.option_keys import Settings
from gnatswarm.router.config.option_values import BareSeconds, Mistake
from gnatswarm.router.config.permission_block import PermissionBlock
from gnatswarm.router.config.repetition import given_again, same
from gnatswarm.router.config.tls_block import TlsBlock
from gnatswarm.router.config.user_list import unknown_field

_AUTHORIZATION = {"user": "user", "username": "user", "pass": "password", "password": "password", "timeout": "timeout"}


class ClusterBlock:
    """Reads one block into `settings`; errors are in `problems`."""

    def __init__(self, entry: Entry) -> None:
        self.settings: Settings = {}
        self.problems: list[Problem] = []
        self.notices: list[Problem] = []
        if not isinstance(entry.value, Block):
            what = f"Expected map to define cluster, got {entry.value.kind}"
            self._problem(entry.at, what, "write cluster { name: …, port: 6222 }")
            return
        self.problems += given_again(entry.value, _NAMES, _LOCKS)
        for inner in entry.value:
            self._entry(inner)

    def _entry(self, entry: Entry) -> None:
        key = entry.key.lower()
        if key in _KEYS:
            try:
                found = _KEYS[key](plain(entry.value))
                self.settings |= {f"cluster.{name}": value for name, value in found.items()}
            except BareSeconds as bare:
                self.settings |= {f"cluster.{name}": value for name, value in _KEYS[key](f"{bare.seconds}s").items()}
            except Mistake as mistake:
                self._problem(entry.at, f"{key}: {mistake.what}", mistake.advice)
        elif key == "routes":
            self._routes(entry)
        elif key in ("authorization", "authentication"):
            self._authorization(entry)
        elif key == "permissions":
            self._permissions(entry)
        elif key == "tls":
            self._tls(entry)
        elif key in not_offered.NO_EFFECT_IN_CLUSTER:
            what = f'"{entry.key}" has no effect here'
            self.notices.append(Problem(entry.at, what, not_offered.NO_EFFECT_IN_CLUSTER[key]))
        elif not entry.used:
            self.problems.append(unknown_field(entry, [*_KEYS, "routes", "authorization", "permissions", "tls"]))

    def _routes(self, entry: Entry) -> None:
        items: list[Node] = entry.value.items if isinstance(entry.value, List) else [entry.value]
        found = []
        for item in items:
            text = text_in(item)
            try:
                found.append(values.route_url(plain(item) if text is None else text))
            except Mistake as mistake:
                self._problem(item.at, mistake.what, mistake.advice)
        self.settings["cluster.routes"] = tuple(found)

    def _tls(self, entry: Entry) -> None:
        block = TlsBlock(entry, "cluster.tls")
        self.problems += block.problems
        self.notices += block.notices
        self.settings |= block.settings
        if not isinstance(entry.value, Block):
            return
        for inner in entry.value:
            if why := not_offered.NO_EFFECT_IN_CLUSTER_TLS.get(inner.key.lower()):
                self.notices.append(Problem(inner.at, f'"{inner.key}" has no effect here', why))
            elif inner.key.lower() == "insecure" and isinstance(inner.value, Scalar) and inner.value.value is True:
                self.settings["cluster.tls_insecure"] = True
                what = "certificates of members that are dialled are not checked"
                self.notices.append(Problem(inner.at, what, "name their ca_file"))
        self.settings["cluster.tls.verify"] = True  # as in the real server, whatever the block says

    def _authorization(self, entry: Entry) -> None:
        if not isinstance(entry.value, Block):
            what = f"{entry.key}: expected a block, not {entry.value.kind}"
            self._problem(entry.at, what, "write authorization { user: …, password: … }")
            return
        self.problems += given_again(entry.value, _AUTHORIZATION | {"permissions": "permissions"})
        for inner in entry.value:
            name = _AUTHORIZATION.get(inner.key.lower(), "")
            if name == "timeout":
                try:
                    self.settings["cluster.auth_timeout_s"] = values.auth_timeout_s(plain(inner.value))
                except BareSeconds as bare:
                    self.settings["cluster.auth_timeout_s"] = bare.seconds
                except Mistake as mistake:
                    self._problem(inner.at, f"timeout: {mistake.what}", mistake.advice)
            elif name:
                text = text_in(inner.value)
                if not text:
                    self._problem(inner.at, f"{inner.key}: expected text, not {inner.value.kind}", "put it in quotes")
                else:
                    self.settings[f"cluster.{name}"] = text
            elif inner.key.lower() in ("users", "token"):
                what = f"Cluster authorization does not allow {inner.key}"
                self._problem(inner.at, what, "members have one user and password")
            elif inner.key.lower() == "permissions":
                self._permissions(inner)
            elif not inner.used:
                self.problems.append(unknown_field(inner, list(_AUTHORIZATION)))

    def _permissions(self, entry: Entry) -> None:
        """In the file's words a member publishes what is imported, and subscribes to what is exported."""
        before = len(self.problems)
        found = PermissionBlock(entry, self.problems).permissions
        if len(self.problems) > before or found is None:
            return
        if found.responses:
            self._problem(entry.at, "Cluster permissions do not support dynamic responses", "remove allow_responses")
            return
        self.settings["cluster.permissions"] = Permissions(
            publish_allow=found.subscribe_allow,
            publish_deny=found.subscribe_deny,
            subscribe_allow=found.publish_allow,
            subscribe_deny=found.publish_deny,
        )

    def _problem(self, at: Position, what: str, advice: str) -> None:
        self.problems.append(Problem(at, what, advice))


def listen_url(value: object) -> Settings:
    """The settings of --cluster: nats://[user:password@]host:port. Without a user, the file's does not count."""
    text = values.text(value)
    url = text if "://" in text else f"nats://{text}"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        # urlsplit knows no port -1.
        head, _, tail = url.rpartition(":")
        if tail != "-1":
            raise Mistake("expected an address", "write nats://0.0.0.0:6222") from None
        parts, port = urlsplit(head), -1
    if port is None:
        raise Mistake("expected an address with a port", "write nats://0.0.0.0:6222")
    if parts.username is not None and parts.password is None:
        raise Mistake("Expected user and password", "write nats://user:password@host:6222")
    return {
        "cluster.host": values.host(parts.hostname or ""),
        "cluster.port": port,
        "cluster.user": unquote(parts.username or ""),
        "cluster.password": unquote(parts.password or ""),
    }


def _listen(value: object) -> Settings:
    if not isinstance(value, str):
        return {"port": values.http_port(value)}
    host, port = values.listen(value)
    return {"host": host, "port": port}


def _sets(name: str, read: Callable[[object], object]) -> Callable[[object], Settings]:
    return lambda value: {name: read(value)}


_KEYS: dict[str, Callable[[object], Settings]] = {
    "name": _sets("name", values.cluster_name),
    "listen": _listen,
    "port": _sets("port", values.http_port),
    "host": _sets("host", values.host),
    "net": _sets("host", values.host),
    "advertise": _sets("advertise", values.client_advertise),
    "cluster_advertise": _sets("advertise", values.client_advertise),
    "no_advertise": _sets("no_advertise", values.boolean),
    "connect_backoff": _sets("connect_backoff", values.boolean),
    "connect_retries": _sets("connect_retries", values.connect_retries),
    "ping_interval": _sets("ping_interval_s", values.interval_s),
    "write_deadline": _sets("write_deadline_s", values.interval_s),
    "write_timeout": _sets("write_timeout", values.write_timeout),
    "ping_max": _sets("ping_max", lambda value: values.number(value, 0, 1_000_000)),
}
_LOCKS = ("authorization", "permissions", "tls")
_NAMES = {
    **{name: name for name in (*_KEYS, "routes", "permissions", "tls")},
    **same("host", "net"),
    **same("advertise", "cluster_advertise"),
    **same("authorization", "authentication"),
}
