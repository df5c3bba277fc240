"""Writes deploy/CONFIGURATION.md from the typed options: `make reference`. A test compares the page with it.

An option's meaning is the comment on its line in broker/options.py or broker/limits.py. Its key comes from the readers
of the configuration file, its flag from the table of flags, its reload column from the table of reloads. This file
itself only names the keys of blocks that have no table of keys.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from gnatswarm.broker import limits, options
from gnatswarm.router.config import not_offered, option_keys, option_values, tls_block, websocket_block
from gnatswarm.router.config.flags import FLAGS
from gnatswarm.router.config.reload import FIXED

PAGE = Path(__file__).with_name("CONFIGURATION.md")

HEAD = """\
# Configuration reference

`make reference` writes this page from the typed options (`broker/options.py`), and a test compares them. The syntax and
the names are nats-server's; only names marked ° are gnatswarm's own.
[config/gnatswarm.conf](config/gnatswarm.conf) is a file with every option at its default, and
`gnatswarm -t -c FILE` reports every error in a file, with line and column.

**Reload**: `yes` takes effect in a running broker by `gnatswarm reload`; `start` needs a restart, and a reload
that would change it is refused as a whole. Sizes: `64MB` (MB = 1024²), `64m` (m = 1000²). Durations: `"10s"`,
`"1h30m"`, `"250ms"`.

"""

SECTIONS: tuple[tuple[str, str, type[msgspec.Struct], str], ...] = (
    ("The broker", "", options.Options, ""),
    ("Limits", "limits.", limits.Limits, ""),
    ("Logging", "logging.", options.Logging, ""),
    ("Shards", "sharding.", options.Sharding, ""),
    (
        "Placement: `placement { … }`",
        "placement.",
        options.Placement,
        "[PLACEMENT.md](PLACEMENT.md) explains it.",
    ),
    (
        "A placement rule",
        "rule.",
        options.PlacementRule,
        'In `placement { rules: [ { name: "orders*", shard: 1 }, { account: A, together: true } ] }`.',
    ),
    ("Statistics: `stats { … }`", "stats.", options.Stats, ""),
    (
        "Encryption: `tls { … }`",
        "tls.",
        options.Tls,
        "The same keys are in `websocket`, `cluster` and `leafnodes { tls { … } }`. In the last two "
        + "`verify_and_map` may be reloaded.",
    ),
    ("WebSocket: `websocket { … }`", "websocket.", options.WebSocket, ""),
    ("Leaf nodes: `leafnodes { … }`", "leafnodes.", options.LeafNodes, ""),
    ("A hub", "remote.", options.LeafRemote, "In `leafnodes { remotes [ {…}, {…} ] }`."),
    ("A cluster: `cluster { … }`", "cluster.", options.Cluster, ""),
    ("TLS to a hub", "remote_tls.", options.ClientTls, "In a remote, `tls { … }`."),
    (
        "A user",
        "user.",
        options.User,
        "In `authorization { users: [ {…}, {…} ] }`, or in `accounts { NAME { users: [ {…} ] } }`.",
    ),
    (
        "Permissions",
        "permissions.",
        options.Permissions,
        "For one user: `{user: …, permissions: { publish: {allow: [...], deny: [...]}, subscribe: {...} }}`; for all "
        "users without permissions: `default_permissions` beside `users`.",
    ),
    (
        "Publish limits",
        "publish_limits.",
        options.PublishLimits,
        '`publish_limits { messages: 1000, bytes: 1MB, burst: "1s", stall: "10s" }`, of a user or of an account: '
        "how fast its clients may publish, all together and on all shards. nats-server has no such option. A client "
        "over the limit is not read, so nothing is lost; `-ERR 'Publish Rate Exceeded'` closes it when that has lasted "
        "for `stall` without a break of a `burst` (a second at least). A read is carried out as far as the limit goes: "
        "at any time at most one message of each shard is beyond burst and rate, or what two shards carry out at the "
        "same moment (16 KiB each); all of it is paid for, so the rate is exact in the long run. When a shard leaves "
        "or the broker stops, what clients over the limit had sent that cannot move is carried out without it, whether "
        "they have closed or not: of who goes on publishing at most 1 MiB more, and for a second.",
    ),
    ("An account", "account.", options.Account, "`accounts { NAME { … } }`"),
    ("An export", "export.", options.Export, "In `accounts { NAME { exports: [ {…}, {…} ] } }`."),
    (
        "An import",
        "import.",
        options.Import,
        "In `accounts { NAME { imports: [ {stream: {account: A, subject: s}}, {service: …} ] } }`.",
    ),
    (
        "A mapping",
        "mapping.",
        options.Mapping,
        "`mappings { foo: bar }`, in an account, or at the top level for the account $G. A destination is a subject, "
        "or a list of `{destination: …, weight: 30%}`; its tokens may be `$1` or `{{wildcard(1)}}`, "
        "`{{partition(buckets,1,2)}}`, `{{split(1,-)}}`, `{{splitFromLeft(1,2)}}`, `{{splitFromRight(1,2)}}`, "
        "`{{sliceFromLeft(1,2)}}`, `{{sliceFromRight(1,2)}}`, and as in 2.15 `{{left(1,2)}}`, `{{right(1,2)}}`, "
        "`{{random(buckets)}}` and `{{partition(buckets)}}`, of the whole subject. If the weights are less than 100% "
        "together, the rest stays on the subject itself; if the subject, as it is written, is one of the destinations, "
        "the rest is dropped. With `cluster: NAME` a destination is for members of that cluster, which then have none "
        "but such. Permissions apply to the destination.",
    ),
)

# Keys of blocks that have no table of keys and readers, and fields that no key sets.
BY_HAND = {
    "auth_token": "authorization { token }",
    "auth_user": "authorization { user }",
    "auth_password": "authorization { password }",
    "users": "authorization { users }",
    "accounts": "accounts",
    "limits.auth_timeout_s": "authorization { timeout }",
    "user.name": "user",
    "user.password": "password",
    "user.nkey": "nkey",
    "user.account": "(the block it is in)",
    "user.permissions": "permissions",
    "user.connection_types": "allowed_connection_types",
    "permissions.publish_allow": "publish { allow }",
    "permissions.publish_deny": "publish { deny }",
    "permissions.subscribe_allow": "subscribe { allow }",
    "permissions.subscribe_deny": "subscribe { deny }",
    "permissions.responses": "allow_responses { max }",
    "permissions.responses_expire_s": "allow_responses { expires }",
    "user.publish_limits": "publish_limits",
    "publish_limits.messages": "messages",
    "publish_limits.bytes": "bytes",
    "publish_limits.burst_s": "burst",
    "publish_limits.stall_s": "stall",
    "account.publish_limits": "publish_limits",
    "account.name": "(the name of the block)",
    "account.max_subscriptions": "limits { max_subscriptions }",
    "account.max_payload_bytes": "limits { max_payload }",
    "account.max_connections": "limits { max_connections }",
    "account.max_leafnodes": "limits { max_leafnodes }",
    "account.exports": "exports",
    "account.imports": "imports",
    "account.mappings": "mappings",
    "account.trace_destination": "msg_trace { dest }",
    "account.trace_percent": "msg_trace { sampling }",
    "account.jetstream": "jetstream: enabled, or a block",
    "export.subject": "stream",
    "export.is_service": "service",
    "export.accounts": "accounts",
    "export.response": "response_type",
    "export.threshold_s": "threshold",
    "export.latency_subject": "latency { subject }",
    "export.latency_percent": "latency { sampling }",
    "export.allow_trace": "allow_trace",
    "export.account_token_position": "account_token_position",
    "import.account": "{ account }",
    "import.subject": "{ subject }",
    "import.is_service": "service",
    "import.to": "to",
    "import.share": "share",
    "import.allow_trace": "allow_trace",
    "mapping.subject": "(the key)",
    "mapping.destinations": "(its value)",
    "mappings": "mappings",
    "tls.more_certs": "certs: [ {cert_file, key_file}, … ]",
    "websocket.tls": "tls { … }",
    "websocket.headers": "headers { Name: value }",
    "websocket.auth_token": "authorization { token }",
    "websocket.auth_user": "authorization { user }",
    "websocket.auth_password": "authorization { password }",
    "websocket.auth_timeout_s": "authorization { timeout }",
    "placement.rules": "rules",
    "rule.kind": "account, user, name or subject",
    "rule.pattern": "(its value)",
    "rule.shard": "shard, or together",
    "leafnodes.host": "host",
    "leafnodes.port": "port",
    "leafnodes.advertise": "advertise",
    "leafnodes.no_advertise": "no_advertise",
    "leafnodes.auth_timeout_s": "authorization { timeout }",
    "leafnodes.min_version": "min_version",
    "leafnodes.account": "authorization { account }",
    "leafnodes.isolate": "isolate_leafnode_interest",
    "leafnodes.users": "authorization { users }",
    "leafnodes.write_deadline_s": "write_deadline",
    "leafnodes.write_timeout": "write_timeout",
    "leafnodes.tls": "tls { … }",
    "leafnodes.remotes": "remotes",
    "cluster.name": "name",
    "cluster.host": "host",
    "cluster.port": "port",
    "cluster.routes": "routes",
    "cluster.advertise": "advertise",
    "cluster.no_advertise": "no_advertise",
    "cluster.connect_backoff": "connect_backoff",
    "cluster.connect_retries": "connect_retries",
    "cluster.ping_interval_s": "ping_interval",
    "cluster.ping_max": "ping_max",
    "cluster.write_deadline_s": "write_deadline",
    "cluster.write_timeout": "write_timeout",
    "cluster.user": "authorization { user }",
    "cluster.password": "authorization { password }",
    "cluster.auth_timeout_s": "authorization { timeout }",
    "cluster.permissions": "permissions { export, import }",
    "cluster.tls": "tls { … }",
    "cluster.tls_insecure": "tls { insecure }",
    "remote.urls": "urls",
    "remote.account": "account",
    "remote.credentials": "credentials",
    "remote.seed": "nkey",
    "remote.tls": "tls { … }",
    "remote.hub": "hub",
    "remote.isolate": "isolate_leafnode_interest",
    "remote.request_isolation": "request_isolation",
    "remote.ws_compression": "ws_compression",
    "remote.ws_no_masking": "ws_no_masking",
    "remote.deny_imports": "deny_imports",
    "remote.deny_exports": "deny_exports",
    "remote.reconnect_s": "reconnect_delay",
    "remote.no_randomize": "no_randomize, or dont_randomize",
    "remote.dial_timeout_s": "dial_timeout",
    "remote.first_info_timeout_s": "first_info_timeout",
    "remote.ignore_discovered_servers": "ignore_discovered_servers",
    "remote_tls.is_on": "(the block)",
    "remote_tls.ca_file": "ca_file",
    "remote_tls.cert_file": "cert_file",
    "remote_tls.key_file": "key_file",
    "remote_tls.insecure": "insecure",
    "remote_tls.pinned_certs": "pinned_certs",
    "remote_tls.timeout_s": "timeout",
    "remote_tls.handshake_first": "handshake_first",
    "remote_tls.min_version": "min_version",
    "remote_tls.cipher_suites": "cipher_suites",
    "remote_tls.curve_preferences": "curve_preferences",
}
NO_KEY = {
    "config_file": "`-c`",
    "has_guests": "as in nats-server, where the system account is the only one that is configured",
    "config_digest": "of the values in that file",
    "notices": "features that were configured and are not supported",
    "remote.jwt": "in that file",
    **{
        f"{block}.{what}_pem": "the content of that file"
        for block in ("tls", "websocket.tls", "cluster.tls", "leafnodes.tls", "remote_tls")
        for what in ("cert", "key", "ca")
    },
}
SECTION_FIELDS = frozenset(
    {"limits", "logging", "sharding", "stats", "placement", "tls", "websocket", "leafnodes", "cluster"}
)
OURS = frozenset(
    {"compatibility", "http_user", "http_password", "log_format", "shards", "accept", "link_dir", "prefer_local"}
)

# Each reader accepts at least one of these values; which fields it sets does not depend on the value.
SAMPLES: tuple[object, ...] = (
    *("30s", True, 5, "text", "127.0.0.1:1", "reuseport", "1.2", "1.3", "127.0.0.1", ["x"], {"x": "y"}, "udp://h:1"),
    *(["0" * 64], "2.15", ["https://x.example"], list(tls_block.ciphers.ALL)[:1], list(tls_block.ciphers.CURVES)[:1]),
    *("even", "cluster", "250ms", "retry"),
)


def comments(of: type[msgspec.Struct]) -> dict[str, str]:
    """The comment on each field's line."""
    lines = inspect.getsource(sys.modules[of.__module__]).splitlines()
    (body,) = [
        node.body
        for node in ast.walk(ast.parse("\n".join(lines)))
        if isinstance(node, ast.ClassDef) and node.name == of.__name__
    ]
    found = {}
    for node in body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            _code, _, comment = lines[(node.end_lineno or node.lineno) - 1].partition("  # ")
            found[node.target.id] = comment.strip()
    return found


def fields_set(read: Callable[[object], dict[str, object]]) -> frozenset[str]:
    """The dotted fields of Options that a reader of a key sets."""
    found: set[str] = set()
    for sample in SAMPLES:
        with contextlib.suppress(option_values.Mistake, option_values.BareSeconds):
            found |= set(read(sample))
    return frozenset(found)


@functools.cache
def keys_by_field() -> dict[str, list[str]]:
    """Dotted field → the keys of the file that set it, the preferred name first."""
    found: dict[str, list[str]] = {}

    def note(names: tuple[str, ...], fields: frozenset[str], prefix: str = "") -> None:
        for field in fields:
            kept = found.setdefault(prefix + field, [])
            kept += [name for name in names if name not in kept]

    several = []
    for key in option_keys.KEYS:
        if key.names == ("stats",):
            continue
        fields = fields_set(key.read)
        (several.append((key.names, fields)) if len(fields) > 1 else note(key.names, fields))
    for names, fields in several:  # `listen` sets two fields: it is never a field's first name
        note(names, fields)
    for table, prefix in (
        (option_keys._STATS, ""),
        (option_keys.PLACEMENT, ""),
        (tls_block._KEYS, "tls."),
        (websocket_block._KEYS, "websocket."),
    ):
        for name, read in sorted(table.items(), key=lambda entry: len(fields_set(entry[1])) > 1):
            note((name,), fields_set(read), prefix)
    return found


def shown_default(value: object, *, is_size: bool) -> str:
    """A default as it would be written in a configuration file."""
    if isinstance(value, msgspec.Struct):
        return "–"
    if value is None or value == () or value == "":
        return "–"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if is_size and isinstance(value, int) and value:
        for unit, size in (("GB", 1024**3), ("MB", 1024**2), ("KB", 1024)):
            if value % size == 0:
                return f"{value // size}{unit}"
    return str(value)


def with_unit(name: str, default: str) -> str:
    """A default with the unit of the field's name."""
    return f"{default} s" if name.endswith("_s") and not name.endswith("_per_s") and default != "–" else default


def rows(of: type[msgspec.Struct], prefix: str) -> Iterator[str]:
    """One line of a table for each field."""
    keys, meanings = keys_by_field(), comments(of)
    flags = {field: flag.names for flag in reversed(FLAGS) for field in flag.fields}
    for field in msgspec.structs.fields(of):
        dotted = prefix + field.name
        if (not prefix and field.name in SECTION_FIELDS) or dotted in NO_KEY:
            continue
        names = keys.get(dotted) or ([BY_HAND[dotted]] if dotted in BY_HAND else [])
        if not names:
            raise SystemExit(f"no key sets {dotted}, and deploy/reference.py does not say why")
        first, *others = names
        mark = " °" if first in OURS or prefix in ("stats.", "placement.", "rule.") else ""
        key = (f"`{first}`" if first[0] != "(" else first) + mark
        if others:
            key += "<br>also " + ", ".join(f"`{name}`" for name in others)
        flag = flags.get(dotted, ())
        shown = f"`{'--' if len(flag[0]) > 1 else '-'}{flag[0]}`" if flag else ""
        value = field.default if field.default is not msgspec.NODEFAULT else None
        default = with_unit(field.name, shown_default(value, is_size=field.name.endswith("_bytes")))
        if dotted == "headers":  # the key says the opposite of the field
            default, meanings["headers"] = "false", "true: no message headers (HPUB, HMSG)"
        reload = "start" if dotted in FIXED else "yes"
        means = meanings[field.name].replace("|", "\\|").replace("<", "&lt;")
        if not means:
            raise SystemExit(f"{of.__name__}.{field.name} has no comment that says what it means")
        yield f"| {key} | {shown} | {default} | {means} | {reload} |"


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for title, prefix, struct, note in SECTIONS:
        parts.append(f"## {title}\n\n")
        if note:
            parts.append(f"{note}\n\n")
        parts.append("| key | flag | default | meaning | reload |\n|---|---|---|---|---|\n")
        parts.append("\n".join(rows(struct, prefix)) + "\n\n")
    parts.append("## Options of nats-server that gnatswarm does not support\n\n")
    parts.append("Options that only add a feature are ignored, with a line in the log at start:\n\n")
    parts += [f"* `{name}`: {what}\n" for name, what in not_offered.OPENS.items()]
    parts.append("\nWith an option that restricts access, the broker refuses to start:\n\n")
    stops = [
        ("", not_offered.RESTRICTS),
        ("authorization", not_offered.RESTRICTS_IN_AUTHORIZATION),
        ("tls", not_offered.RESTRICTS_IN_TLS),
        ("websocket", not_offered.RESTRICTS_IN_WEBSOCKET),
        ("accounts", not_offered.RESTRICTS_IN_EXCHANGE),
        ("leafnodes { remotes", not_offered.RESTRICTS_IN_REMOTE),
    ]
    for block, table in stops:
        for name, what in table.items():
            parts.append(f"* `{f'{block} {{ {name} }}' + ' }' * block.count('{') if block else name}`: {what}\n")
    parts.append(
        "\nOptions for internals that are built differently have no effect, and are named in the log at start:\n\n"
    )
    parts += [f"* `{name}`: {what}\n" for name, what in not_offered.NO_EFFECT.items()]
    parts += [f"* `cluster {{ {name} }}`: {what}\n" for name, what in not_offered.NO_EFFECT_IN_CLUSTER.items()]
    parts += [
        f"* `cluster {{ tls {{ {name} }} }}`: {what}\n" for name, what in not_offered.NO_EFFECT_IN_CLUSTER_TLS.items()
    ]
    parts += [f"* `leafnodes {{ {name} }}`: {what}\n" for name, what in not_offered.NO_EFFECT_IN_LEAFNODES.items()]
    parts += [
        f"* `leafnodes {{ remotes {{ {name} }} }}`: {what}\n" for name, what in not_offered.NO_EFFECT_IN_REMOTE.items()
    ]
    parts += [
        f"* `leafnodes {{ remotes {{ tls {{ {name} }} }} }}`: {what}\n"
        for name, what in not_offered.NO_EFFECT_IN_REMOTE_TLS.items()
    ]
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE} is written")
