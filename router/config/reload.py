"""The differences between two configurations, and whether a running broker can apply them all.

A pure function over two `Options`. If `refused` is not empty, the caller must apply nothing: the old options stay in
effect, and each refusal is one log line. A test checks that every field of Options is in one of the two tables.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gnatswarm.broker.options import SECRET_FIELDS, Options

# Fields that take effect in a running broker: new connections and operations see the new value at once.
LIVE = frozenset(
    {
        "limits",
        "logging",
        "tls",
        "allow_non_tls",
        "proxy_protocol",
        "websocket.advertise",
        "websocket.tls",
        "websocket.compression",
        "websocket.same_origin",
        "websocket.allowed_origins",
        "websocket.handshake_timeout_s",
        "websocket.headers",
        "websocket.ping_interval_s",
        "websocket.auth_token",
        "websocket.auth_user",
        "websocket.auth_password",
        "websocket.auth_timeout_s",
        "websocket.no_auth_user",
        "websocket.user_cookie",
        "websocket.pass_cookie",
        "websocket.token_cookie",
        "server_tags",
        "server_metadata",
        "system_account",
        "pid_file",
        "client_advertise",
        "http_user",
        "http_password",
        "auth_token",
        "auth_user",
        "auth_password",
        "users",
        "no_auth_user",
        "accounts",
        "mappings",
        "fence",
        "fence_timeout_s",
        "leafnodes.remotes",
        "cluster.routes",
        "cluster.ping_interval_s",
        "cluster.ping_max",
        "cluster.write_deadline_s",
        "cluster.write_timeout",
        "cluster.advertise",
        "cluster.no_advertise",
        "cluster.connect_backoff",
        "cluster.connect_retries",
        "cluster.user",
        "cluster.password",
        "cluster.auth_timeout_s",
        "cluster.permissions",
        "cluster.tls",
        "cluster.tls_insecure",
        "leafnodes.advertise",
        "leafnodes.isolate",
        "leafnodes.write_deadline_s",
        "leafnodes.write_timeout",
        "leafnodes.no_advertise",
        "leafnodes.auth_timeout_s",
        "leafnodes.min_version",
        "leafnodes.account",
        "leafnodes.users",
        "leafnodes.tls",
        "has_guests",
        "notices",
        "config_digest",
        "sharding.shards",
        "sharding.prefer_local",
        "placement.after_scale",
        "placement.bound",
        "placement.rules",
    }
)

# Fields that cannot change in a running broker, because sockets, processes or clients already use them; the reasons.
# Some are inside of a section that can.
FIXED = {
    "host": "listeners are made at the start",
    "port": "listeners are made at the start",
    "compatibility": "clients were told the old version",
    "server_name": "clients were told the old one",
    "ports_file_dir": "the file was written at the start",
    "http_host": "the monitoring listener is made at the start",
    "http_port": "the monitoring listener is made at the start",
    "https_port": "the monitoring listener is made at the start",
    "http_base_path": "the monitoring listener is made at the start",
    "headers": "clients were told whether there are headers",
    "tls.verify_and_map": "clients that are connected may have no certificate, or another user's",
    "config_file": "a broker keeps its file",
    "websocket.host": "listeners are made at the start",
    "websocket.port": "listeners are made at the start",
    "websocket.no_tls": "clients were told the old address",
    "websocket.tls.verify_and_map": "clients that are connected may have no certificate, or another user's",
    "leafnodes.host": "listeners are made at the start",
    "leafnodes.port": "listeners are made at the start",
    "sharding.accept": "listeners are made at the start",
    "stats.enabled": "statistics begin at the start",
    "stats.dir": "statistics begin at the start",
    "stats.window_s": "statistics begin at the start",
    "stats.max_subjects": "statistics begin at the start",
    "stats.max_clients": "statistics begin at the start",
    "stats.client_subjects": "statistics begin at the start",
    "stats.client_names": "statistics begin at the start",
    "stats.max_age_s": "statistics begin at the start",
    "stats.max_bytes": "statistics begin at the start",
    "cluster.name": "other servers were told the old one",
    "cluster.host": "listeners are made at the start",
    "cluster.port": "listeners are made at the start",
    "sharding.link_dir": "links between shards are made there at the start",
}

# What is said of the file as a whole, and is no option.
_OF_THE_FILE = ("notices", "config_digest")
_NOT_SHOWN = ("users", "accounts", "leafnodes.remotes", "leafnodes.users", "placement.rules")


class Change(msgspec.Struct, frozen=True):
    """One option that differs. Secrets are never in it."""

    field: str  # dotted, as in Options
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.field} changed" if not self.old and not self.new else f"{self.field}: {self.old} → {self.new}"


class OptionsDiff(msgspec.Struct, frozen=True):
    """The result of a comparison."""

    live: tuple[Change, ...] = ()  # takes effect at once
    refused: tuple[str, ...] = ()  # needs a restart: one line each; if there is any, nothing is to change

    @property
    def is_refused(self) -> bool:
        """Whether all of the old options have to stay."""
        return bool(self.refused)


def diff(old: Options, new: Options) -> OptionsDiff:
    """The differences between the options of a running broker and new ones."""
    live: list[Change] = []
    refused: list[str] = []
    if old.has_gateway != new.has_gateway:
        refused.append("reload not supported for leafnodes and cluster: they need a process of their own, restart")
    for field, before, after in _differences(old, new):
        if field in _OF_THE_FILE:
            continue
        change = _change(field, before, after)
        if field in FIXED:
            refused.append(f"reload not supported for {change}: {FIXED[field]}, restart to change it")
        else:
            live.append(change)
    return OptionsDiff(tuple(live), tuple(refused))


def with_chosen_ports(old: Options, new: Options, bound: Mapping[str, int]) -> Options:
    """The new options, with the old values of ports that stay as they are: -1 is whichever port is `bound`, as there.

    `bound` has the ports of the running broker, by their fields (dotted), without those that are not open. The port for
    monitoring is not among them: nats-server refuses such a reload.
    """
    for field, port in bound.items():
        section, _, name = field.rpartition(".")
        before, after = (getattr(one, section) if section else one for one in (old, new))
        values = getattr(before, name), getattr(after, name)
        if -1 in values and values[1] in (-1, port):
            after = msgspec.structs.replace(after, **{name: values[0]})
            new = msgspec.structs.replace(new, **{section: after}) if section else after
    return new


def _differences(old: msgspec.Struct, new: msgspec.Struct, prefix: str = "") -> list[tuple[str, object, object]]:
    """Dotted field, old and new value, for every field that differs, sections opened."""
    found: list[tuple[str, object, object]] = []
    for field in msgspec.structs.fields(type(old)):
        before, after = getattr(old, field.name), getattr(new, field.name)
        if before == after:
            continue
        if isinstance(before, msgspec.Struct) and isinstance(after, msgspec.Struct):
            found += _differences(before, after, f"{prefix}{field.name}.")
        else:
            found.append((f"{prefix}{field.name}", before, after))
    return found


def _change(field: str, before: object, after: object) -> Change:
    if field.rpartition(".")[2] in SECRET_FIELDS or field in _NOT_SHOWN:
        return Change(field, "", "")
    return Change(field, _shown(before), _shown(after))


def _shown(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)
