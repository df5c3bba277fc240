"""`/metrics`: the broker's counters in Prometheus' text format. Pure.

The number of series is bounded: there are a few for each shard, requested page, hottest subject, busiest account and
most denied user, and none per connection. Counters of messages, bytes and connections continue over a shard's restart;
those of its process begin at 0 again.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from gnatswarm.broker.version import OWN_VERSION
from gnatswarm.router.monitoring.aggregate import denied as denied_together
from gnatswarm.router.monitoring.aggregate import health
from gnatswarm.router.monitoring.facts import Facts
from gnatswarm.shards.boundary.pace import Pace
from gnatswarm.shards.boundary.rows import AccountRow, DeniedRow

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
ROWS_IN_ONE_STEP = 256  # of accounts
OPEN_METRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

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
    ("descriptor_headroom", "gauge", "1: the shard has descriptors for more clients.", "has_headroom", 1),
    ("shard_starts_total", "counter", "Processes started as this shard.", "starts", 1),
    ("shard_deaths_total", "counter", "Processes of this shard that ended, and should not have.", "deaths", 1),
    ("shard_cpu_seconds_total", "counter", "CPU time of the shard's present process.", "cpu_s", 1),
    ("shard_resident_bytes", "gauge", "Memory of the shard's process.", "resident_bytes", 1),
)
# Of the broker, where it is connected to other servers: name, help, field of Facts.
_OF_SERVERS = (
    ("servers_received_messages_total", "Messages that came from other servers.", "servers_in_msgs"),
    ("servers_received_bytes_total", "Bytes of those messages, headers included.", "servers_in_bytes"),
    ("servers_sent_messages_total", "Messages that went to other servers.", "servers_out_msgs"),
    ("servers_sent_bytes_total", "Bytes of those messages, headers included.", "servers_out_bytes"),
)
_PER_SUBJECT = (
    ("subject_messages_total", "counter", "Messages published to one of the hottest subjects.", "msgs"),
    ("subject_bytes_total", "counter", "Bytes of those messages.", "bytes"),
    ("subject_deliveries_total", "counter", "Deliveries of those messages.", "deliveries"),
)
# Per account and shard, as by subject and user: a restarted shard begins at 0 again, and one that is late is not asked.
# A sum over shards would then fall by a part, which readers take for a restart with all that is left counted anew. What
# a client that has moved did elsewhere is that shard's.
_PER_ACCOUNT = (
    ("account_connections", "gauge", "Open client connections of an account.", "connections"),
    ("account_received_messages_total", "counter", "Messages that its clients published.", "in_msgs_here"),
    ("account_received_bytes_total", "counter", "Bytes of those messages.", "in_bytes_here"),
    ("account_delivered_messages_total", "counter", "Messages delivered to its clients.", "out_msgs_here"),
    ("account_delivered_bytes_total", "counter", "Bytes of those messages.", "out_bytes_here"),
    ("account_slow_consumers_total", "counter", "Its clients that were closed as slow consumers.", "slow_consumers"),
)


class Accounts(NamedTuple):
    """What /metrics shows of accounts, as (shard, row)."""

    shown: Sequence[tuple[int, AccountRow]] = ()  # of the busiest ones; none where there is only $G
    unwanted_msgs: Mapping[int, int] = MappingProxyType({})  # of all accounts, by shard
    unwanted_by_account: Sequence[tuple[int, AccountRow]] = ()


NO_ACCOUNTS = Accounts()
_COUNTER = re.compile(r"^# (HELP|TYPE) (\w+)_total ", re.MULTILINE)


async def accounts(answers: Iterable[tuple[int, Sequence[AccountRow]]], most: int, *, is_recorded: bool) -> Accounts:
    """The `most` accounts that sent and got most messages, in the shards' rows; 0: only the sums."""
    msgs: dict[str, int] = {}
    unwanted: dict[int, int] = {}
    shown: list[tuple[int, AccountRow]] = []
    pace = Pace()
    steps = [
        (shard, found[at : at + ROWS_IN_ONE_STEP])
        for shard, found in answers
        for at in range(0, len(found), ROWS_IN_ONE_STEP)
    ]
    for shard, step in steps:
        for row in step:
            if row.name:  # ("": of accounts that are forgotten, what nobody got)
                msgs[row.name] = msgs.get(row.name, 0) + row.in_msgs + row.out_msgs
            unwanted[shard] = unwanted.get(shard, 0) + row.unwanted_msgs
        await pace()
    busiest = set(heapq.nsmallest(most, msgs, key=lambda name: (-msgs[name], name)))
    await pace()
    for shard, step in steps:
        shown += [(shard, row) for row in step if row.name in busiest]
        await pace()
    return Accounts(shown, unwanted if is_recorded else {}, shown if is_recorded else ())


def most_denied(found: Sequence[tuple[int, DeniedRow]], most: int) -> list[tuple[int, DeniedRow]]:
    """The rows (shard, row) of the `most` users to whom most was denied by all shards together."""
    shown = {(entry["account"], entry["user"]) for entry in denied_together(row for _shard, row in found)[:most]}
    return [(shard, row) for shard, row in found if (row.account, row.user) in shown]


def prefers_open_metrics(accept: str) -> bool:
    """Whether a reader with this Accept header wants OpenMetrics rather than plain text, as Prometheus does."""
    weights: dict[str, float] = {}
    for part in accept.lower().split(","):
        kind, *parameters = (word.strip() for word in part.split(";"))
        given = dict(word.partition("=")[::2] for word in parameters)
        if kind == "application/openmetrics-text" and given.get("version", "1.0.0") != "1.0.0":
            continue
        try:
            weight = float(given.get("q", "1"))
        except ValueError:
            continue
        weights[kind] = max(weight, weights.get(kind, 0.0))
    plain = max(weights.get("text/plain", 0.0), weights.get("text/*", 0.0), weights.get("*/*", 0.0))
    wanted = weights.get("application/openmetrics-text", 0.0)
    return wanted > 0 and wanted >= plain


def open_metrics(text: str) -> str:
    """The same in OpenMetrics 1.0: a counter's family is named without _total, and the text has an end."""
    return _COUNTER.sub(r"# \1 \2 ", text) + "# EOF\n"


def exposition(
    facts: Facts,
    subjects: Sequence[Mapping[str, Any]],
    requests: Mapping[str, int],
    accounts: Accounts = NO_ACCOUNTS,
    denied: Sequence[tuple[int, DeniedRow]] = (),
    hubs: float | None = None,
) -> str:
    """The whole text. `subjects` are documents of /subjectz, `denied` (shard, row); `requests`: how often by path."""
    lines: list[str] = []
    build = {"version": OWN_VERSION, "compatible_with": facts.options.server_version, "server_name": facts.server_name}
    _family(lines, "build_info", "gauge", "Always 1; what this is.", [(build, 1)])
    for name, (text, value) in _of_the_broker(facts).items():
        _family(lines, name, "gauge", text, [({}, value)])
    if hubs is not None:
        _family(lines, "hubs", "gauge", "Hubs that the broker is connected to as a leaf node.", [({}, hubs)])
    for name, text, field in _OF_SERVERS if facts.options.has_gateway else ():
        _family(lines, name, "counter", text, [({}, getattr(facts, field))])
    for name, kind, text, field, unit in _PER_SHARD:
        samples = [({"shard": str(shard.shard)}, getattr(shard, field) * unit) for shard in facts.shards]
        _family(lines, name, kind, text, samples)
    if facts.is_recorded:
        text = "Received messages that no file of the statistics has yet."
        samples = [({"shard": str(shard.shard)}, shard.unwritten_msgs) for shard in facts.shards]
        _family(lines, "statistics_unwritten_messages", "gauge", text, samples)
        text = "Received messages of which the statistics have the number alone: their shard ended."
        _family(lines, "statistics_lost_messages_total", "counter", text, [({}, facts.lost_msgs)])
    text = "Messages that nobody got, up to the end of the last window of the statistics."
    samples = [({"shard": str(shard)}, count) for shard, count in accounts.unwanted_msgs.items()]
    _family(lines, "unwanted_messages_total", "counter", text, samples)
    for name, kind, text, field in _PER_ACCOUNT:
        samples = [({"account": row.name, "shard": str(shard)}, getattr(row, field)) for shard, row in accounts.shown]
        _family(lines, name, kind, text, samples)
    text = "Messages of an account that nobody got, up to the end of the last window."
    samples = [
        ({"account": row.name, "shard": str(shard)}, row.unwanted_msgs) for shard, row in accounts.unwanted_by_account
    ]
    _family(lines, "account_unwanted_messages_total", "counter", text, samples)
    for name, kind, text, field in _PER_SUBJECT:
        samples = [
            ({"account": entry["account"], "subject": entry["subject"], "shard": shard}, counts[field])
            for entry in subjects
            for shard, counts in entry["shards"].items()
        ]
        _family(lines, name, kind, text, samples)
    by_user = [
        ({"account": row.account, "user": row.user, "action": action, "shard": str(shard)}, count)
        for shard, row in denied
        for action, count in (("publish", row.publishes), ("subscribe", row.subscriptions))
        if count
    ]
    _family(lines, "permission_denied_total", "counter", "What permissions did not allow a user.", by_user)
    waits = [
        ({"account": row.account, "user": row.user, "shard": str(shard)}, row.waits)
        for shard, row in denied
        if row.waits
    ]
    _family(lines, "publish_limited_total", "counter", "How often a client waited because of publish_limits.", waits)
    pages = [({"path": path}, count) for path, count in sorted(requests.items())]
    _family(lines, "http_requests_total", "counter", "Monitoring pages asked for.", pages)
    return "\n".join(lines) + "\n"


def values(facts: Facts) -> dict[str, dict[str, float]]:
    """{metric: {shard: value}} of what the broker knows without asking a shard; the shard "": of the whole broker."""
    found = {name: {"": value} for name, (_, value) in _of_the_broker(facts).items()}
    for name, _kind, _text, field, unit in _PER_SHARD:
        found[name] = {str(shard.shard): getattr(shard, field) * unit for shard in facts.shards}
    return found


def _of_the_broker(facts: Facts) -> dict[str, tuple[str, float]]:
    """Gauges: {name: (help, value)}."""
    wanted_hubs = len(facts.options.leafnodes.remotes)
    hubs: dict[str, tuple[str, float]] = (
        {"hubs_configured": ("Hubs that the broker is to connect to.", wanted_hubs)} if wanted_hubs else {}
    )
    return hubs | {
        "healthy": ("1: every shard serves and none lags.", int(not health(facts))),
        "start_time_seconds": ("When the broker started.", facts.created_us / 1e6),
        "config_load_time_seconds": ("When the configuration that holds was read.", facts.configured_us / 1e6),
        "config_reload_failed_time_seconds": (
            "When the last reload failed; 0: it did not.",
            facts.reload_failed_us / 1e6,
        ),
        "shards": ("Shards there are meant to be.", facts.wanted_shards),
        "max_connections": ("Client connections there may be.", facts.options.limits.max_connections),
        "router_resident_bytes": ("Memory of the router.", facts.router_resident_bytes),
    }


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
