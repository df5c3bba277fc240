"""Which configuration files are known to be valid before the modules are imported that make `Options` of them.

A short grammar of what most files have: single options, users with passwords, hashes or nkeys and with subjects that
they may use, accounts with users and limits, variables, and blocks that are ignored. Syntax and values are read by
`conf` and `option_keys`, as for any file; here is only decided that nothing in the file can contradict anything else in
it. Whatever is not known here is no mistake: `options_build` reads the whole again, and says what is wrong. Invariant:
of a file that is accepted here, `options_build` makes options, with these settings. Called by
`router.listening.head_start`.
"""

from __future__ import annotations

import os
import stat

from gnatswarm.broker.access.password_hash import is_good_hash, is_hashed
from gnatswarm.router.config import not_offered
from gnatswarm.router.config import option_values as values
from gnatswarm.router.config.conf import Parsed, parse_file
from gnatswarm.router.config.conf_tree import Block, Entry, List, Node, Scalar, plain, text_in
from gnatswarm.router.config.option_keys import BY_NAME, Settings, read_node

# A larger file takes longer to read than the imports that are saved. All its includes together, too.
LARGEST_BYTES = 64 * 1024

# Options whose values need nothing but themselves.
_ALONE = frozenset(
    {
        *("port", "host", "listen", "server_name", "compatibility", "server_tags", "server_metadata"),
        *("client_advertise", "http", "http_port", "http_base_path", "http_user", "http_password"),
        *("debug", "trace", "logtime", "logtime_utc", "log_file", "log_size_limit", "log_max_num", "log_format"),
        *("max_traced_msg_len", "trace_headers", "pid_file", "ports_file_dir", "max_payload", "max_control_line"),
        *("max_connections", "max_subscriptions", "max_sub_tokens", "max_closed_clients", "max_pending"),
        *("write_deadline", "ping_interval", "ping_max"),
        *("lame_duck_duration", "lame_duck_grace_period", "allow_non_tls", "fence", "fence_timeout", "link_dir"),
        *("proxy_protocol", "no_header_support", "shards", "accept", "prefer_local", "stats"),
    }
)
# Those that name an account or a user of the file.
_NAMING = frozenset({"system_account", "no_auth_user"})
_BUILT_IN_ACCOUNTS = ("$SYS", "$G")
# Blocks that have readers of their own, so that none of these names is a variable's.
_BLOCKS = frozenset({"mappings", "maps", "tls", "websocket", "ws", "leafnodes", "leaf", "cluster", "placement"})
# With this much, max_pending is enough for any default.
DEFAULT_MAX_PAYLOAD_BYTES = 1024 * 1024
DEFAULT_LAME_DUCK_DURATION_S = 120.0
DEFAULT_LAME_DUCK_GRACE_S = 10.0
_LONGEST_SUBJECT = 256
_NAMES = {"user": "user", "username": "user", "pass": "password", "password": "password", "token": "token"}
_SIDES = {"publish": "publish", "pub": "publish", "subscribe": "subscribe", "sub": "subscribe"}
_PERMISSIONS = ("permission", "permissions")
_DEFAULTS = ("default_permission", "default_permissions")
_RESPONSES = "allow_responses"
_JETSTREAM_WORDS = ("enabled", "enable", "disabled", "disable", "true", "false")
_ACCOUNT_LIMITS = {
    "max_connections": "connections",
    "max_conn": "connections",
    "max_subscriptions": "subscriptions",
    "max_subs": "subscriptions",
    "max_payload": "payload",
}


class SimpleFile:
    """A file that was accepted: its tree, the settings of its single options, and whether it asks for credentials."""

    def __init__(self, parsed: Parsed, settings: Settings, has_credentials: bool) -> None:
        self.parsed = parsed
        self.settings = settings
        self.has_credentials = has_credentials


class _NotKnownHere(Exception):
    """Something that has to be read in whole."""


def parsed_file(path: str) -> Parsed | None:
    """The tree of a file that can be read again and is no larger than LARGEST_BYTES; None: it is not, or is wrong."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(status.st_mode) or status.st_size > LARGEST_BYTES:  # a pipe can be read only once
        return None
    parsed = parse_file(path, most_bytes=LARGEST_BYTES)
    return None if parsed.problems or not parsed.is_whole else parsed


def simple_file(parsed: Parsed) -> SimpleFile | None:
    """The file, if it is one of those; None: it is not."""
    try:
        return _judged(parsed)
    except (_NotKnownHere, values.Mistake, values.BareSeconds):
        return None


def _judged(parsed: Parsed) -> SimpleFile:
    settings: Settings = {}
    users: dict[str, None] = {}
    accounts: list[str] = []
    seen: set[str] = set()
    has_credentials = False
    for entry in parsed.tree:
        name = entry.key.lower()
        key = BY_NAME.get(name)
        option = name if key is None else key.names[0]
        if entry.replaces is not None or option in seen:
            raise _NotKnownHere
        seen.add(option)
        if key is not None and key.names[0] in _ALONE | _NAMING:
            try:
                settings |= read_node(key, entry.value)
            except values.BareSeconds as bare:  # accepted with a warning
                settings |= key.read(f"{bare.seconds:.0f}s")
        elif name == "authorization":
            has_credentials = True
            _authorization(entry, users)
        elif name == "accounts":
            has_credentials = True
            accounts = _accounts(entry, users)
        elif not _is_ignored(name, entry):
            raise _NotKnownHere
    if {"authorization", "accounts"} <= seen or " " in str(settings.get("server_name", "")):
        raise _NotKnownHere
    if settings.get("system_account", "$SYS") not in (*accounts, *_BUILT_IN_ACCOUNTS):
        raise _NotKnownHere
    if settings.get("no_auth_user") and settings["no_auth_user"] not in users:
        raise _NotKnownHere
    _limits(settings)
    return SimpleFile(parsed, settings, has_credentials)


def _limits(settings: Settings) -> None:
    """Limits that have to be lower than others, or whose 0 `compatibility` gives a meaning."""
    if settings.get("limits.max_connections") == 0:
        raise _NotKnownHere
    pending, payload = settings.get("limits.max_pending_bytes"), settings.get("limits.max_payload_bytes")
    if isinstance(pending, int) and pending < (payload if isinstance(payload, int) else DEFAULT_MAX_PAYLOAD_BYTES):
        raise _NotKnownHere
    grace_s = settings.get("limits.lame_duck_grace_s", DEFAULT_LAME_DUCK_GRACE_S)
    duration_s = settings.get("limits.lame_duck_duration_s", DEFAULT_LAME_DUCK_DURATION_S)
    if not (isinstance(grace_s, float) and isinstance(duration_s, float) and grace_s < duration_s):
        raise _NotKnownHere


def _is_ignored(name: str, entry: Entry) -> bool:
    """Whether it is a variable, a key whose value is not looked at, or a block that is ignored."""
    if name in not_offered.RESTRICTS or name in BY_NAME or name in _BLOCKS:
        return False
    if name == "jetstream":
        value = plain(entry.value)
        return isinstance(value, dict | bool) or str(value).lower() in ("enabled", "disabled")
    if name in not_offered.WANTS_BLOCK:
        return isinstance(entry.value, Block)
    return entry.used or name in not_offered.OPENS or name in not_offered.NO_EFFECT


def _authorization(entry: Entry, users: dict[str, None]) -> None:
    """`{ user, password }`, `{ token }`, or `{ users }` with default permissions or without; or only a timeout."""
    given: set[str] = set()
    has_defaults = False
    for inner in _entries(entry.value):
        name = inner.key.lower()
        if name == "timeout":
            values.auth_timeout_s(plain(inner.value))
        elif name == "users":
            given.add(name)
            _users(inner.value, users)
        elif name in _DEFAULTS and not has_defaults:
            has_defaults = True
            _permissions(inner.value)
        elif name in _NAMES and _NAMES[name] not in given:
            given.add(_NAMES[name])
            _secret(inner.value, is_name=_NAMES[name] == "user")
        elif not _is_variable(inner):
            raise _NotKnownHere
    if given not in (set(), {"user", "password"}, {"token"}, {"users"}) or (has_defaults and given != {"users"}):
        raise _NotKnownHere


def _is_variable(entry: Entry) -> bool:
    """Whether the key only names a value that is used elsewhere; `authorization` would have read any other."""
    name = entry.key.lower()
    return entry.used and name not in not_offered.RESTRICTS_IN_AUTHORIZATION and name not in _PERMISSIONS


def _accounts(entry: Entry, users: dict[str, None]) -> list[str]:
    """The names of accounts that have users and limits, and share nothing."""
    names = []
    for account in _entries(entry.value):
        if account.key.startswith("$") or not account.key.isidentifier():
            raise _NotKnownHere
        names.append(account.key)
        if isinstance(account.value, Block) and not account.value.entries:
            continue
        for inner in _entries(account.value):
            name = inner.key.lower()
            if name == "users":
                _users(inner.value, users)
            elif name == "default_permissions":
                _permissions(inner.value)
            elif name == "jetstream":
                if isinstance(inner.value, Block) or str(plain(inner.value)).lower() not in _JETSTREAM_WORDS:
                    raise _NotKnownHere
            elif name == "limits":
                _account_limits(inner.value)
            else:
                raise _NotKnownHere
    return names


def _account_limits(node: Node) -> None:
    seen: set[str] = set()
    for entry in _entries(node):
        name = _ACCOUNT_LIMITS.get(entry.key.lower())
        if name is None or name in seen:
            raise _NotKnownHere
        seen.add(name)
        values.number(plain(entry.value), 1, 2**31 - 1)


def _users(node: Node, users: dict[str, None]) -> None:
    """A list of users with a password or an nkey, none of them twice; their names are added."""
    if not isinstance(node, List) or not node.items:
        raise _NotKnownHere
    for item in node.items:
        found: dict[str, str] = {}
        for entry in _entries(item):
            name = entry.key.lower()
            kind = "permissions" if name in _PERMISSIONS else "nkey" if name == "nkey" else _NAMES.get(name, "token")
            if kind in found or kind == "token":
                raise _NotKnownHere
            found[kind] = ""
            if kind == "permissions":
                _permissions(entry.value)
            elif kind == "nkey":
                found[kind] = _nkey(entry.value)
            else:
                found[kind] = _secret(entry.value, is_name=kind == "user")
        if found.keys() - {"permissions"} not in ({"user", "password"}, {"nkey"}):
            raise _NotKnownHere
        shown = found.get("user") or found["nkey"]
        if shown in users:
            raise _NotKnownHere
        users[shown] = None


def _nkey(node: Node) -> str:
    from gnatswarm.broker.access.nkey import user_key

    text = text_in(node) or ""
    if user_key(text) is None:
        raise _NotKnownHere
    return text


def _permissions(node: Node) -> None:
    """What may be published or subscribed to, allowed or denied, in plain subjects, and whether answers may be sent."""
    seen: set[str] = set()
    for entry in _entries(node):
        side = _SIDES.get(entry.key.lower(), "")
        if entry.key.lower() == _RESPONSES and _RESPONSES not in seen:
            seen.add(_RESPONSES)
            _responses(entry.value)
            continue
        if not side or side in seen:
            raise _NotKnownHere
        seen.add(side)
        if not isinstance(entry.value, Block):
            _subjects(entry.value)
            continue
        for inner in _entries(entry.value):
            if inner.key not in ("allow", "deny"):
                raise _NotKnownHere
            _subjects(inner.value)


def _responses(node: Node) -> None:
    """`true`, `false`, or how many and for how long."""
    if isinstance(node, Scalar) and isinstance(node.value, bool):
        return
    for entry in _entries(node):
        if entry.key == "max":
            values.number(plain(entry.value), 1, 2**31 - 1)
        elif entry.key != "expires" or not values.duration_s(plain(entry.value)):
            raise _NotKnownHere


def _subjects(node: Node) -> None:
    items = node.items if isinstance(node, List) else [node]
    if not items or not all(_is_subject(text_in(item) or "") for item in items):
        raise _NotKnownHere


def _is_subject(text: str) -> bool:
    """Whether it is a subject of the plainest kind, with wildcards or without."""
    *before, last = text.split(".")
    return (
        text.isascii()
        and len(text) <= _LONGEST_SUBJECT
        and all(token == "*" or token.replace("_", "a").replace("-", "a").isalnum() for token in before)
        and (last in ("*", ">") or last.replace("_", "a").replace("-", "a").isalnum())
    )


def _entries(node: Node) -> list[Entry]:
    """The entries of a block that has some, each given once in whatever case."""
    if not isinstance(node, Block) or not node.entries or any(entry.replaces is not None for entry in node):
        raise _NotKnownHere
    if len({entry.key.lower() for entry in node}) < len(node):
        raise _NotKnownHere
    return list(node)


def _secret(node: Node, *, is_name: bool) -> str:
    """The text of a name or of a secret, which is no hash or a good one."""
    text = text_in(node)
    if not text or (not is_name and is_hashed(text) and not is_good_hash(text)):
        raise _NotKnownHere
    return text
