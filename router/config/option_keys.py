"""Every supported key of the configuration file: its names, the fields that it sets, and its reader.

`KEYS` is the table; messages use the first name of a row. A row's reader returns fields of `broker.options.Options` by
dotted name, so that flags, which set the same fields, can override them.
"""

from __future__ import annotations

from collections.abc import Callable

from gnatswarm.router.config import option_values as values
from gnatswarm.router.config.conf_tree import Node, plain

Settings = dict[str, object]  # dotted field of Options → its value


class Key:
    """One option of the file's top level."""

    __slots__ = ("names", "read")

    def __init__(self, names: tuple[str, ...], read: Callable[[object], Settings]) -> None:
        self.names = names  # the first is the one in messages; the real server has them all
        self.read = read


def _sets(field: str, check: Callable[[object], object]) -> Callable[[object], Settings]:
    return lambda value: {field: check(value)}


def _listen(value: object) -> Settings:
    host, port = values.listen(value)
    # As in the real server, a port alone leaves the host as it is.
    return {"port": port or 4222} | ({"host": host} if isinstance(value, str) else {})


def _http(field: str) -> Callable[[object], Settings]:
    def read(value: object) -> Settings:
        if not isinstance(value, str):
            return {field: values.http_port(value)}
        host, port = values.listen(value)
        return {field: port, "http_host": host}

    return read


def _trace_verbose(value: object) -> Settings:
    # As with -VV: a trace, which always shows every operation here.
    return {"logging.trace": True} if values.boolean(value) else {}


def _no_headers(value: object) -> Settings:
    return {"headers": not values.boolean(value)}


def _system_account(value: object) -> Settings:
    # An empty name has no effect, as in the real server.
    name = values.text(value)
    return {"system_account": name} if name else {}


_STATS: dict[str, Callable[[object], Settings]] = {
    "enabled": _sets("stats.enabled", values.boolean),
    "dir": _sets("stats.dir", values.path),
    "window": _sets("stats.window_s", values.stats_window_s),
    "max_subjects": _sets("stats.max_subjects", values.stats_subjects),
    "max_clients": _sets("stats.max_clients", values.stats_clients),
    "client_subjects": _sets("stats.client_subjects", values.stats_client_subjects),
    "client_names": _sets("stats.client_names", values.boolean),
    "max_age": _sets("stats.max_age_s", values.stats_max_age_s),
    "max_size": _sets("stats.max_bytes", values.size_limit_bytes),
}


def _stats(value: object) -> Settings:
    """A block, or a boolean: `stats: false`."""
    if isinstance(value, bool):
        return {"stats.enabled": value}
    if not isinstance(value, dict):
        raise values.Mistake(f"expected a block, not {values.kind_of(value)}", "write stats { … } or stats: false")
    found: Settings = {}
    if len({name.lower() for name in value}) < len(value):
        raise values.Mistake("a field is given again, in another spelling", "keep one")
    for name, inner in value.items():
        read = _STATS.get(name.lower())
        if read is None:
            raise values.Mistake(f'unknown field "{name}"', f"known are {', '.join(_STATS)}")
        try:
            found |= read(inner)
        except values.Mistake as mistake:
            raise values.Mistake(f"{name}: {mistake.what}", mistake.advice) from None
        except values.BareSeconds as bare:
            found |= read(f"{bare.seconds:.0f}s")
    return found


# Of the block `placement`; its rules have a reader of their own (router.config.placement_block).
PLACEMENT: dict[str, Callable[[object], Settings]] = {
    "after_scale": _sets("placement.after_scale", values.after_scale),
    "bound": _sets("placement.bound", values.placement_bound),
}

KEYS = (
    Key(("port",), _sets("port", values.tcp_port)),
    Key(("host", "net"), _sets("host", values.host)),
    Key(("listen",), _listen),
    Key(("server_name",), _sets("server_name", values.text)),
    Key(("compatibility",), _sets("compatibility", values.compatibility)),  # not in nats-server
    Key(("server_tags",), _sets("server_tags", values.server_tags)),
    Key(("server_metadata",), _sets("server_metadata", values.server_metadata)),
    Key(("client_advertise",), _sets("client_advertise", values.client_advertise)),
    Key(("http",), _http("http_port")),
    Key(("http_port", "monitor_port"), _sets("http_port", values.http_port)),
    Key(("https",), _http("https_port")),
    Key(("https_port",), _sets("https_port", values.http_port)),
    Key(("http_base_path",), _sets("http_base_path", values.http_base_path)),
    Key(("http_user",), _sets("http_user", values.text)),  # not in nats-server, like the next one
    Key(("http_password",), _sets("http_password", values.text)),
    Key(("debug",), _sets("logging.debug", values.boolean)),
    Key(("trace",), _sets("logging.trace", values.boolean)),
    Key(("trace_verbose",), _trace_verbose),
    Key(("logtime",), _sets("logging.logtime", values.boolean)),
    Key(("logtime_utc",), _sets("logging.logtime_utc", values.boolean)),
    Key(("log_file", "logfile"), _sets("logging.file", values.path)),
    Key(("syslog",), _sets("logging.syslog", values.boolean)),
    Key(("remote_syslog",), _sets("logging.remote_syslog", values.remote_syslog)),
    Key(("log_size_limit", "logfile_size_limit"), _sets("logging.size_limit_bytes", values.size_limit_bytes)),
    Key(("log_max_num", "logfile_max_num"), _sets("logging.most_files", values.log_files)),
    Key(("log_format",), _sets("logging.format", values.log_format)),  # not in nats-server
    Key(("max_traced_msg_len",), _sets("logging.trace_payload_bytes", values.size_limit_bytes)),
    Key(("trace_headers",), _sets("logging.trace_headers", values.boolean)),
    Key(("pid_file", "pidfile"), _sets("pid_file", values.path)),
    Key(("ports_file_dir",), _sets("ports_file_dir", values.path)),
    Key(("max_payload",), _sets("limits.max_payload_bytes", values.max_payload_bytes)),
    Key(("max_control_line",), _sets("limits.max_control_line_bytes", values.max_control_line_bytes)),
    Key(("max_connections", "max_conn"), _sets("limits.max_connections", values.max_connections)),
    Key(("max_subscriptions", "max_subs"), _sets("limits.max_subscriptions", values.max_subscriptions)),
    Key(("max_sub_tokens", "max_subscription_tokens"), _sets("limits.max_subject_tokens", values.max_subject_tokens)),
    Key(("max_closed_clients",), _sets("limits.max_closed_clients", values.max_closed_clients)),
    Key(("max_pending",), _sets("limits.max_pending_bytes", values.max_pending_bytes)),
    Key(("write_deadline",), _sets("limits.write_deadline_s", values.write_deadline_s)),
    Key(("write_timeout",), _sets("limits.write_timeout", values.write_timeout)),
    Key(("ping_interval",), _sets("limits.ping_interval_s", values.ping_interval_s)),
    Key(("ping_max",), _sets("limits.ping_max", values.ping_max)),
    Key(("lame_duck_duration",), _sets("limits.lame_duck_duration_s", values.lame_duck_duration_s)),
    Key(("lame_duck_grace_period",), _sets("limits.lame_duck_grace_s", values.lame_duck_grace_s)),
    Key(("allow_non_tls",), _sets("allow_non_tls", values.boolean)),
    Key(("proxy_protocol",), _sets("proxy_protocol", values.boolean)),
    Key(("fence",), _sets("fence", values.fence)),  # not in nats-server, like the next one
    Key(("fence_timeout",), _sets("fence_timeout_s", values.fence_timeout_s)),
    Key(("no_header_support",), _no_headers),
    Key(("no_auth_user",), _sets("no_auth_user", values.text)),
    Key(("system_account", "system"), _system_account),
    Key(("shards",), _sets("sharding.shards", values.shard_count)),  # not in nats-server, like the four below
    Key(("accept",), _sets("sharding.accept", values.accept_mode)),
    Key(("link_dir",), _sets("sharding.link_dir", values.path)),
    Key(("stats",), _stats),
    Key(("prefer_local",), _sets("sharding.prefer_local", values.boolean)),
)

BY_NAME = {name: key for key in KEYS for name in key.names}


def read_node(key: Key, node: Node) -> Settings:
    """The settings of one option. A value from the environment that looks like a number may be text."""
    try:
        return key.read(plain(node))
    except values.Mistake:
        as_text = plain(node, prefers_text=True)
        if as_text == plain(node):
            raise
        try:
            return key.read(as_text)
        except values.Mistake:
            pass
        raise
