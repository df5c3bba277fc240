"""The `leafnodes` block of the configuration: the port for leaf nodes, and the hubs that this broker connects to.

A restriction that this broker does not enforce is a problem, never a notice: see `router.config.not_offered`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from gnatswarm.broker.access.nkey import user_key
from gnatswarm.broker.access.password_hash import is_good_hash, is_hashed
from gnatswarm.broker.options import GLOBAL_ACCOUNT, ClientTls, LeafRemote, User, each_file_once
from gnatswarm.broker.subject import is_valid_subscription
from gnatswarm.router.config import not_offered
from gnatswarm.router.config import option_values as values
from gnatswarm.router.config.conf_file import read_bytes
from gnatswarm.router.config.conf_tree import Block, Entry, List, Node, Position, Problem, Scalar, plain, text_in
from gnatswarm.router.config.option_keys import Settings
from gnatswarm.router.config.option_values import BareSeconds, Mistake
from gnatswarm.router.config.repetition import given_again, same
from gnatswarm.router.config.tls_block import TlsBlock, with_client_certificates
from gnatswarm.router.config.user_list import BAD_HASH, known, not_enforced, unknown_field

_SCHEMES = ("nats", "nats-leaf", "tls", "leaf", "leafnode", "ws", "wss")
_WEBSOCKET = ("ws://", "wss://")
# Of all kinds, members and leaf nodes included: the bits of a mask that siblings leave (`broker.exchange`).
_MOST_SERVERS = 31
_SWITCHES = {"hub": "hub", "isolate": "isolate", "isolate_leafnode_interest": "isolate",
             "request_isolation": "request_isolation", "ws_compression": "ws_compression",
             "ws_compress": "ws_compression", "websocket_compression": "ws_compression",
             "websocket_compress": "ws_compression", "ws_no_masking": "ws_no_masking",
             "websocket_no_masking": "ws_no_masking", "no_randomize": "no_randomize", "dont_randomize": "no_randomize",
             "ignore_discovered_servers": "ignore_discovered_servers"}  # fmt: skip
_TIMES = {"dial_timeout": "dial_timeout_s", "first_info_timeout": "first_info_timeout_s"}
_PLAIN_REMOTE = LeafRemote(())
# The log-in in a URL.
_LOGIN = re.compile("//[^/@]*@")
_REMOTE_KEYS = ("url", "urls", "account", "local", "credentials", "creds", "nkey", "seed", "tls", "deny_imports",
                "deny_import", "deny_exports", "deny_export", "reconnect_delay", "disabled",
                *_SWITCHES, *_TIMES)  # fmt: skip
_REMOTE_NAMES = {
    **{name: name for name in _REMOTE_KEYS},
    **_SWITCHES,
    **same("urls", "url"),
    **same("account", "local"),
    **same("credentials", "creds"),
    **same("seed", "nkey"),
    **same("deny_imports", "deny_import"),
    **same("deny_exports", "deny_export"),
}
_USER_KEYS = {"user": "user", "username": "user", "pass": "password", "password": "password", "account": "account",
              "nkey": "nkey"}  # fmt: skip
# A .creds file has 1 to 2 KB.

# Of no use without a port.
_OF_PORT = ("host", "net", "advertise", "leafnode_advertise", "no_advertise", "authorization", "tls", "min_version",
            "minimum_version")  # fmt: skip
# Of a leaf node that says its version.
_FIRST_VERSION = (2, 8, 0)


class LeafNodesBlock:
    """Reads one block into `settings`; errors are in `problems`."""

    def __init__(self, entry: Entry) -> None:
        self.settings: Settings = {}
        self.problems: list[Problem] = []
        self.notices: list[Problem] = []
        self._reconnect_s = LeafRemote(urls=()).reconnect_s
        self._without_password: list[Position] = []
        self._authorities: set[bytes] = set()  # what is in their files: to read a system's takes 20 ms
        if not isinstance(entry.value, Block):
            what = f"Expected map to define {entry.key}, got {entry.value.kind}"
            self._problem(entry.at, what, f"write {entry.key} {{ remotes [ {{ url: … }} ] }}")
            return
        remotes: Entry | None = None
        self.problems += given_again(entry.value, _NAMES, ("authorization", "tls"))
        for inner in entry.value:
            key = inner.key.lower()
            if key == "remotes":
                remotes = inner
            elif key in ("reconnect", "reconnect_delay", "reconnect_interval"):
                self._reconnect_s = self._seconds(inner, self._reconnect_s)
            elif key in _PORT_KEYS:
                self._port_entry(inner, key)
            elif key in not_offered.NO_EFFECT_IN_LEAFNODES:
                what = f'"{inner.key}" of leafnodes has no effect here'
                self.notices.append(Problem(inner.at, what, not_offered.NO_EFFECT_IN_LEAFNODES[key]))
            elif not inner.used:
                self.problems.append(unknown_field(inner, ["remotes", *_PORT_KEYS]))
        if not self.settings.get("leafnodes.tls.verify_and_map"):  # then a certificate is enough
            for at in self._without_password:
                self._problem(at, "a user without a password lets every leaf node in", "add a password")
        if remotes is not None:
            self._remotes(remotes)
        if not self.settings.get("leafnodes.port") and any(key.lower() in _OF_PORT for key in _keys(entry.value)):
            self.notices.append(Problem(entry.at, "settings of a port for leaf nodes, and no port", "add port: 7422"))

    # ---- the port

    def _port_entry(self, entry: Entry, key: str) -> None:
        if key == "tls":
            block = TlsBlock(entry, "leafnodes.tls")
            self.problems += block.problems
            self.notices += block.notices
            self.settings |= block.settings
            if block.settings.get("leafnodes.tls.handshakes_per_s"):
                self.problems.append(not_enforced(entry.at, '"connection_rate_limit" of leaf nodes'))
            return
        if key == "authorization":
            self._authorization(entry)
            return
        try:
            self.settings |= _PORT_KEYS[key](plain(entry.value))
        except BareSeconds as bare:
            self.settings |= _PORT_KEYS[key](f"{bare.seconds}s")
        except Mistake as mistake:
            self._problem(entry.at, f"{entry.key}: {mistake.what}", mistake.advice)

    def _authorization(self, entry: Entry) -> None:
        """Users of the port: one, several, or only the account of those who need not log in."""
        if not isinstance(entry.value, Block):
            advice = "write authorization { user: …, password: … }"
            self._problem(entry.at, f"expected a block, not {entry.value.kind}", advice)
            return
        users: tuple[User, ...] | None = None
        given: dict[str, str] = {}
        self.problems += given_again(entry.value, _USER_KEYS | {"users": "users", "timeout": "timeout"})
        for inner in entry.value:
            key = inner.key.lower()
            if key == "users":
                users = self._users(inner)
            elif key == "timeout":
                try:
                    seconds = values.auth_timeout_s(plain(inner.value))
                    self.settings["leafnodes.auth_timeout_s"] = seconds
                except Mistake as mistake:
                    self._problem(inner.at, f"timeout: {mistake.what}", mistake.advice)
            elif key in _USER_KEYS:
                given[_USER_KEYS[key]] = self._text(inner)
            else:
                known(inner, dict.fromkeys((*_USER_KEYS, "users", "timeout"), ""), self.problems)
        if users is not None and ("user" in given or "nkey" in given):
            what = "can not have a single user/pass and a users array"
            self._problem(entry.at, what, "move the user into users")
        elif "user" in given or "nkey" in given:
            user = self._user(given, entry.at)
            users = (user,) if user is not None else ()
        elif "password" in given:
            self._problem(entry.at, "a password without a user lets every leaf node in", "add a user")
        elif given.get("account"):
            self.settings["leafnodes.account"] = given["account"]
        if users:
            self.settings["leafnodes.users"] = users

    def _users(self, entry: Entry) -> tuple[User, ...]:
        if not isinstance(entry.value, List) or not entry.value.items:
            what = "expected a list of users" if not isinstance(entry.value, List) else "an empty list of users"
            self._problem(entry.at, what, "write users: [ {user: …, password: …} ]")
            return ()
        found: dict[str, User] = {}
        for item in entry.value.items:
            if not isinstance(item, Block):
                what = f"Expected user entry to be a map/struct, got {item.kind}"
                self._problem(item.at, what, "write {user: …, password: …}")
                continue
            given: dict[str, str] = {}
            self.problems += given_again(item, _USER_KEYS)
            for inner in item:
                if inner.key.lower() in _USER_KEYS:
                    given[_USER_KEYS[inner.key.lower()]] = self._text(inner)
                else:
                    known(inner, dict.fromkeys(_USER_KEYS, ""), self.problems)
            user = self._user(given, item.at)
            if user is None:
                continue
            if user.shown in found:
                self._problem(item.at, f'Duplicate user "{user.shown}" detected', "give each user once")
            found[user.shown] = user
        return tuple(found.values())

    def _user(self, given: dict[str, str], at: Position) -> User | None:
        name, password, nkey = given.get("user", ""), given.get("password", ""), given.get("nkey", "")
        account = given.get("account") or GLOBAL_ACCOUNT
        if nkey and (name or password):
            self._problem(at, "Nkey users do not take usernames or passwords", "make two entries")
        elif nkey and user_key(nkey) is None:
            self._problem(at, "Not a valid public nkey for a user", "it begins with U, and has 56 characters")
        elif nkey:
            return User("", "", nkey, account)
        elif not name:
            self._problem(at, "User entry requires a user", "add a name, as in {user: bob, password: …}")
        elif is_hashed(password) and not is_good_hash(password):
            self._problem(at, BAD_HASH, "make one with `htpasswd -nbB` or the like")
        else:
            if not password:
                self._without_password.append(at)
            return User(name, password, "", account)
        return None

    # ---- remotes

    def _remotes(self, entry: Entry) -> None:
        if not isinstance(entry.value, List):
            self._problem(entry.at, f"Expected remotes to be a list, got {entry.value.kind}", "write [ { url: … } ]")
            return
        found: list[LeafRemote] = []
        ways: set[tuple[object, ...]] = set()
        for item in entry.value.items:
            if not isinstance(item, Block):
                self._problem(item.at, f"Expected a remote to be a map, got {item.kind}", "write { url: … }")
                continue
            remote = self._remote(item)
            if remote is None:
                continue
            # Each of two would end the other's connection, again and again.
            way = remote.urls, remote.account, remote.credentials, remote.seed
            if way in ways:
                urls = ", ".join(f'"{_LOGIN.sub("//xxxxx@", url)}"' for url in remote.urls)
                self._problem(item.at, f'duplicate remote urls=[{urls}], account="{remote.account}"', "keep one")
            ways.add(way)
            found.append(remote)
        if len(found) > _MOST_SERVERS:
            what = f"{len(found)} remotes, but a broker has at most {_MOST_SERVERS} connections to other servers"
            self.notices.append(Problem(entry.at, what, "the others are refused: spread them over several brokers"))
        self.settings["leafnodes.remotes"] = each_file_once(found)

    def _remote(self, block: Block) -> LeafRemote | None:
        before = len(self.problems)
        settings: dict[str, object] = {"reconnect_s": self._reconnect_s}
        is_disabled = False
        self.problems += given_again(block, _REMOTE_NAMES, ["tls"])
        for inner in block:
            key = inner.key.lower()
            if key in ("url", "urls"):
                settings["urls"] = self._urls(inner)
            elif key in ("account", "local"):
                settings["account"] = self._text(inner)
            elif key in ("credentials", "creds"):
                settings |= self._credentials(inner)
            elif key in ("nkey", "seed"):
                settings["seed"] = self._seed(inner)
            elif key == "tls":
                settings["tls"] = self._tls(inner)
            elif key in ("deny_imports", "deny_import"):
                settings["deny_imports"] = self._subjects(inner)
            elif key in ("deny_exports", "deny_export"):
                settings["deny_exports"] = self._subjects(inner)
            elif key == "reconnect_delay":
                settings["reconnect_s"] = self._seconds(inner, self._reconnect_s)
            elif key in _TIMES:
                settings[_TIMES[key]] = self._seconds(inner, getattr(_PLAIN_REMOTE, _TIMES[key]))
            elif key in _SWITCHES:
                settings[_SWITCHES[key]] = self._boolean(inner)
            elif key == "disabled":
                is_disabled = self._boolean(inner)
            elif key in not_offered.NO_EFFECT_IN_REMOTE:
                what = f'"{inner.key}" has no effect here'
                self.notices.append(Problem(inner.at, what, not_offered.NO_EFFECT_IN_REMOTE[key]))
            elif key in not_offered.RESTRICTS_IN_REMOTE:
                if not (isinstance(inner.value, Scalar) and inner.value.value is False):
                    feature = not_offered.RESTRICTS_IN_REMOTE[key]
                    self.problems.append(not_enforced(inner.at, f'"{inner.key}": {feature}'))
            elif not inner.used:
                self.problems.append(unknown_field(inner, list(_REMOTE_KEYS)))
        if not settings.get("urls") and len(self.problems) == before:
            self._problem(block.at, "a remote without url", "add url: nats://host:7422")
        if settings.get("seed") and settings.get("credentials") and not settings.get("jwt"):
            self._problem(block.at, "a remote with nkey and credentials", "keep one of them")
        if len(self.problems) > before or is_disabled:
            return None
        return LeafRemote(**settings)  # type: ignore[arg-type]

    def _urls(self, entry: Entry) -> tuple[str, ...]:
        items: list[Node] = entry.value.items if isinstance(entry.value, List) else [entry.value]
        found = []
        for item in items:
            text = text_in(item)
            if text is None:
                self._problem(item.at, f"expected a URL, not {item.kind}", 'write "nats://host:7422"')
                continue
            url = text if "://" in text else f"nats://{text}"
            try:
                parts = urlsplit(url)
                has_host = bool(parts.hostname)
                _ = parts.port
            except ValueError:
                has_host = False
            if not has_host:
                # (the URL may have a password: it is not shown)
                self._problem(item.at, "error parsing leafnode url", "write nats://host:7422")
            elif parts.scheme not in _SCHEMES:
                self._problem(item.at, f'"{parts.scheme}" is no scheme of a leaf node url', "write nats:// or tls://")
            else:
                found.append(url)
        if len({url.lower().startswith(_WEBSOCKET) for url in found}) > 1:
            self._problem(entry.at, "remote leafnode urls with and without WebSocket", "make two remotes of them")
        return tuple(found)

    def _credentials(self, entry: Entry) -> dict[str, object]:
        from gnatswarm.shards.boundary.seeds import MOST_CREDENTIALS_BYTES, read_creds

        path = self._path(entry)
        if not path:
            return {}
        try:
            found = read_creds(read_bytes(path, MOST_CREDENTIALS_BYTES, is_included=True).decode("utf-8", "replace"))
        except OSError as error:
            self._problem(entry.at, f"{path}: {error.strerror}", "name a .creds file that this user may read")
            return {}
        if found is None:
            self._problem(entry.at, f"{path} has no user JWT and seed", "name a .creds file, as made by nsc")
            return {}
        return {"credentials": path, "jwt": found[0], "seed": found[1]}

    def _seed(self, entry: Entry) -> str:
        from gnatswarm.shards.boundary.seeds import seed_bytes

        text = self._text(entry)
        if text and seed_bytes(text) is None:
            self._problem(entry.at, "Remote leafnode nkey is not a valid seed", "give a user's seed, SU…")
            return ""
        return text

    def _tls(self, entry: Entry) -> ClientTls:
        block = TlsBlock(entry, "tls", is_remote=True)
        self.problems += block.problems
        self.notices += block.notices
        if block.problems:
            return ClientTls()
        settings: dict[str, Any] = {name.removeprefix("tls."): value for name, value in block.settings.items()}
        tls = ClientTls(is_on=True, **settings)
        return with_client_certificates(tls, entry.at, self.problems, self.notices, self._authorities)

    def _subjects(self, entry: Entry) -> tuple[str, ...]:
        items: list[Node] = entry.value.items if isinstance(entry.value, List) else [entry.value]
        found = []
        for item in items:
            text = text_in(item)
            if text is None or not is_valid_subscription(text.encode("utf-8", "surrogateescape")):
                self._problem(item.at, "not a valid subject", "tokens are separated by single dots")
            else:
                found.append(text)
        return tuple(found)

    def _text(self, entry: Entry) -> str:
        text = text_in(entry.value)
        if text is None or not text:
            self._problem(entry.at, f"{entry.key}: expected text, not {entry.value.kind}", "put it in quotes")
            return ""
        return text

    def _path(self, entry: Entry) -> str:
        try:
            return values.path(self._text(entry))
        except Mistake as mistake:
            self._problem(entry.at, f"{entry.key}: {mistake.what}", mistake.advice)
            return ""

    def _boolean(self, entry: Entry) -> bool:
        try:
            return values.boolean(plain(entry.value))
        except Mistake as mistake:
            self._problem(entry.at, f"{entry.key}: {mistake.what}", mistake.advice)
            return False

    def _seconds(self, entry: Entry, default: float) -> float:
        try:
            return values.duration_s(plain(entry.value)) or default
        except BareSeconds as bare:
            return bare.seconds or default
        except Mistake as mistake:
            self._problem(entry.at, f"{entry.key}: {mistake.what}", mistake.advice)
            return default

    def _problem(self, at: Position, what: str, advice: str) -> None:
        self.problems.append(Problem(at, what, advice))


def _keys(block: Block) -> list[str]:
    return [entry.key for entry in block]


def _listen(value: object) -> Settings:
    if not isinstance(value, str):  # a port alone leaves the host as it is
        return {"leafnodes.port": values.http_port(value)}
    host, port = values.listen(value)
    return {"leafnodes.host": host, "leafnodes.port": port}


def _min_version(value: object) -> Settings:
    version = values.text(value)
    parts = re.fullmatch(r"v?(\d+)\.(\d+)\.(\d+)\S*", version, re.ASCII)
    if parts is None:
        raise Mistake(f'invalid leafnode\'s minimum version: "{version}"', "write one such as 2.9.10")
    if tuple(map(int, parts.groups())) < _FIRST_VERSION:
        raise Mistake("the minimum version should be at least 2.8.0", "leave it out to let in all")
    return {"leafnodes.min_version": version.removeprefix("v")}


def _sets(name: str, read: Callable[[object], object]) -> Callable[[object], Settings]:
    return lambda value: {f"leafnodes.{name}": read(value)}


def _nothing(_value: object) -> Settings:
    return {}


_PORT_KEYS: dict[str, Callable[[object], Settings]] = {
    "listen": _listen,
    "port": _sets("port", values.http_port),
    "host": _sets("host", values.host),
    "net": _sets("host", values.host),
    "advertise": _sets("advertise", values.client_advertise),
    "leafnode_advertise": _sets("advertise", values.client_advertise),
    "no_advertise": _sets("no_advertise", values.boolean),
    "min_version": _min_version,
    "minimum_version": _min_version,
    "isolate_leafnode_interest": _sets("isolate", values.boolean),
    "isolate": _sets("isolate", values.boolean),
    "write_deadline": _sets("write_deadline_s", values.interval_s),
    "write_timeout": _sets("write_timeout", values.write_timeout),
    "authorization": _nothing,
    "tls": _nothing,
}
_NAMES = {
    **{name: name for name in (*_PORT_KEYS, "remotes")},
    **same("reconnect", "reconnect_delay", "reconnect_interval"),
    **same("host", "net"),
    **same("advertise", "leafnode_advertise"),
    **same("min_version", "minimum_version"),
    **same("isolate", "isolate_leafnode_interest"),
}
