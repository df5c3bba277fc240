"""`/metrics`: the broker's counters in Prometheus' text format. Pure.

The number of series is bounded: a few per shard, requested page, hottest subject and user who was denied most; none
per connection.
Counters of messages, bytes and connections continue over a shard's restart; those of its process begin at 0 again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gnatswarm.broker.version import OWN_VERSION, SERVER_VERSION
from gnatswarm.router.monitoring.aggregate import health
from gnatswarm.router.monitoring.facts import Facts

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# Per shard: name, type, help, field of ShardFacts, what one of it is in the name's unit.
_PER_SHARD = (
    ("connections", "gauge", "Open client connections.", "connections", 1),
    (
        "accepted_connections_total",
        "counter",
        "Client connections that came, refused ones included.",
        "total_connections",
        1,
    ),
    ("subscriptions", "gauge", "Subscriptions of clients.", "subscriptions", 1),
    ("received_messages_total", "counter", "Messages that clients published.", "in_msgs", 1),
    ("received_bytes_total", "counter", "Bytes of those messages, headers included.", "in_bytes", 1),
    ("delivered_messages_total", "counter", "Messages delivered to clients.", "out_msgs", 1),
    ("delivered_bytes_total", "counter", "Bytes of those messages, headers included.", "out_bytes", 1),
    ("refused_logins_total", "counter", "Log-ins that failed or came too late.", "refused_logins", 1),
    (
        "failed_handshakes_total",
        "counter",
        "TLS handshakes and WebSocket upgrades that failed.",
        "failed_handshakes",
        1,
    ),
    ("denied_messages_total", "counter", "Received messages that permissions did not allow.", "denied_msgs", 1),
    (
        "denied_subscriptions_total",
        "counter",
        "Subscriptions that permissions did not allow.",
        "denied_subscriptions",
        1,
    ),
    ("slow_consumers_total", "counter", "Clients closed because they did not keep up.", "slow_consumers", 1),
    ("stalls_total", "counter", "Times that a publisher waited for a slow consumer.", "stalls", 1),
    ("link_received_messages_total", "counter", "Messages that came from sibling shards.", "link_in_msgs", 1),
    ("link_sent_messages_total", "counter", "Messages that went to sibling shards.", "link_out_msgs", 1),
    ("links", "gauge", "Siblings that this shard is linked to.", "links", 1),
    ("loop_lag_seconds", "gauge", "How late the event loop was lately, at worst.", "loop_lag_us", 1e-6),
    ("shard_ready", "gauge", "1: the shard serves.", "is_accepting", 1),
    ("shard_starts_total", "counter", "Processes started as this shard.", "starts", 1),
    ("shard_cpu_seconds_total", "counter", "CPU time of the shard's present process.", "cpu_s", 1),
    ("shard_resident_bytes", "gauge", "Memory of the shard's process.", "resident_bytes", 1),
)
_PER_SUBJECT = (
    ("subject_messages_total", "counter", "Messages published to one of the hottest subjects.", "msgs"),
    ("subject_bytes_total", "counter", "Bytes of those messages.", "bytes"),
    ("subject_deliveries_total", "counter", "Deliveries of those messages.", "deliveries"),
)


def exposition(
    facts: Facts,
    subjects: Sequence[Mapping[str, Any]],
    requests: Mapping[str, int],
    denied: Sequence[Mapping[str, Any]] = (),
) -> str:
    """The whole text. `subjects` are documents of /subjectz, `denied` of /deniedz; `requests`: how often by path."""
    lines: list[str] = []
    build = {"version": OWN_VERSION, "compatible_with": SERVER_VERSION, "server_name": facts.server_name}
    _family(lines, "build_info", "gauge", "Always 1; what this is.", [(build, 1)])
    _family(lines, "healthy", "gauge", "1: every shard serves and none lags.", [({}, int(not health(facts)))])
    _family(lines, "start_time_seconds", "gauge", "When the broker started.", [({}, facts.created_us / 1e6)])
    for name, text, at_us in (
        ("config_load_time_seconds", "When the configuration that holds was read.", facts.configured_us),
        ("config_reload_failed_time_seconds", "When the last reload failed; 0: it did not.", facts.reload_failed_us),
    ):
        _family(lines, name, "gauge", text, [({}, at_us / 1e6)])
    _family(lines, "shards", "gauge", "Shards there are meant to be.", [({}, sum(s.is_wanted for s in facts.shards))])
    limit = facts.options.limits.max_connections
    _family(lines, "max_connections", "gauge", "Client connections there may be.", [({}, limit)])
    _family(lines, "router_resident_bytes", "gauge", "Memory of the router.", [({}, facts.router_resident_bytes)])
    for name, kind, text, field, unit in _PER_SHARD:
        samples = [({"shard": str(shard.shard)}, getattr(shard, field) * unit) for shard in facts.shards]
        _family(lines, name, kind, text, samples)
    for name, kind, text, field in _PER_SUBJECT:
        _family(lines, name, kind, text, [({"subject": entry["subject"]}, entry[field]) for entry in subjects])
    by_user = [
        ({"account": entry["account"], "user": entry["user"], "action": action}, entry[field])
        for entry in denied
        for action, field in (("publish", "publishes"), ("subscribe", "subscriptions"))
        if entry[field]
    ]
    _family(lines, "permission_denied_total", "counter", "What permissions did not allow a user.", by_user)
    pages = [({"path": path}, count) for path, count in sorted(requests.items())]
    _family(lines, "http_requests_total", "counter", "Monitoring pages asked for.", pages)
    return "\n".join(lines) + "\n"


def _family(
    lines: list[str], name: str, kind: str, text: str, samples: Iterable[tuple[Mapping[str, str], float]]
) -> None:
    samples = list(samples)
    if not samples:
        return
    full = f"gnatswarm_{name}"
    lines += [f"# HELP {full} {text}", f"# TYPE {full} {kind}"]
    for labels, value in samples:
        shown = ",".join(f'{key}="{_escaped(label)}"' for key, label in labels.items())
        lines.append(f"{full}{{{shown}}} {_number(value)}" if shown else f"{full} {_number(value)}")


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(round(value, 6))
