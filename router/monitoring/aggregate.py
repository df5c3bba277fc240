"""Builds the pages' documents from facts and shards' rows: one broker, whatever the number of shards. Pure functions.

Field names, their order, types and formats are nats-server's; fields of our own (`shard`, `gnatswarm`) come after
them, or are on pages of our own. Shards' rows are passed as (shard, rows) pairs.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

import msgspec

from gnatswarm.broker.bounds import NO_MAX_CONNECTIONS
from gnatswarm.broker.goformat import age_text, duration_text, time_text
from gnatswarm.broker.limits import Limits
from gnatswarm.broker.options import GLOBAL_ACCOUNT, Cluster, LeafNodes, LeafRemote, Tls, WebSocket
from gnatswarm.broker.version import LANGUAGE, OWN_VERSION
from gnatswarm.router.monitoring.account_rules import account_rules, responses
from gnatswarm.router.monitoring.facts import Facts, ShardFacts
from gnatswarm.router.monitoring.moving_clients import once
from gnatswarm.shards.boundary.rows import (
    AccountRow,
    ConnectionRow,
    DeniedRow,
    DueReplyRow,
    LeafRow,
    LinkRow,
    MovesPart,
    QueueRow,
    RouteRow,
    SubjectRow,
    SublistPart,
    SubscriptionRow,
    order,
)

Document = dict[str, Any]

# With this lag of an event loop clients wait noticeably; a health check should then prefer another broker.
LAGGING_US = 1_000_000
# Placement rules on a page that dashboards read each second; there may be thousands.
MOST_RULES = 200


def head(facts: Facts) -> Document:
    """The first fields of most documents."""
    return {"server_id": facts.server_id, "now": time_text(facts.now_us)}


def total(facts: Facts, name: str) -> int:
    """The sum of a counter or gauge over all shards."""
    return sum(getattr(shard, name) for shard in facts.shards)


def _traffic_of_all(facts: Facts, name: str) -> int:
    """A counter of messages or bytes: of clients and of other servers."""
    servers: int = getattr(facts, f"servers_{name}")
    return total(facts, name) + servers


# ---- general


def varz(facts: Facts, requests: dict[str, int], *, leafs: int = 0) -> Document:
    """The document of /varz. Counters never decrease, not even when a shard dies. `leafs`: leaf node connections."""
    options, limits = facts.options, facts.options.limits
    document: Document = {
        "server_id": facts.server_id,
        "server_name": facts.server_name,
        "version": options.server_version,
        "proto": 1,
        "go": LANGUAGE,
        "host": facts.host,
        "port": facts.port,
    }
    if options.has_log_in:
        document["auth_required"] = True
    if options.tls.is_on and not options.allow_non_tls:
        document["tls_required"] = True
    if options.tls.is_on and options.tls.asks_for_certificate:
        document["tls_verify"] = True
    has_most = limits.max_connections != NO_MAX_CONNECTIONS
    document["max_connections"] = limits.max_connections if has_most else -1
    if limits.max_subscriptions:
        document["max_subscriptions"] = limits.max_subscriptions
    if facts.connect_urls:
        document["connect_urls"] = list(facts.connect_urls)
    document |= {
        "ping_interval": _nanoseconds(limits.ping_interval_s),
        "ping_max": limits.ping_max,
        "http_host": facts.http_host,
        "http_port": facts.http_port,
        "http_base_path": options.http_base_path,
        "https_port": facts.https_port,
        "auth_timeout": _number(limits.auth_timeout_s),
        "max_control_line": limits.max_control_line_bytes,
        "max_payload": limits.max_payload_bytes,
        "max_pending": limits.max_pending_bytes,
        "cluster": _cluster(facts),
        "gateway": {},
        "leaf": _leaf(facts),
        "mqtt": {},
        "websocket": _websocket(facts),
        "jetstream": {},
        "tls_timeout": _number(options.tls.timeout_s),
        "write_deadline": _nanoseconds(limits.write_deadline_s),
        **(_write_timeout(limits) if options.is_like_newer else {}),
        "start": time_text(facts.created_us),
        "now": time_text(facts.now_us),
        "uptime": age_text(facts.uptime_us),
        "mem": total(facts, "resident_bytes") + facts.router_resident_bytes,
        "cores": facts.cores,
        "gomaxprocs": sum(shard.pid != 0 for shard in facts.shards),
        "cpu": _number(round(total(facts, "cpu_percent") + facts.router_cpu_percent, 1)),
        "connections": facts.connections,
        "total_connections": total(facts, "total_connections"),
        "routes": facts.members,
        "remotes": facts.members,
        "leafnodes": leafs,
        **_traffic(facts),
        "subscriptions": total(facts, "subscriptions"),
        "http_req_stats": dict(sorted(requests.items())),
        "config_load_time": time_text(facts.configured_us),
    }
    if facts.reload_failed_us:
        document["config_reload_failed_time"] = time_text(facts.reload_failed_us)
    if options.is_like_newer:
        document["config_digest"] = options.config_digest
    if options.server_tags:
        document["tags"] = list(options.server_tags)
    if options.server_metadata:
        document["metadata"] = dict(options.server_metadata)
    document["system_account"] = options.system_account
    if options.is_like_newer:
        none = {"routes": 0, "gateways": 0, "leafs": 0}
        # (where a broker has both, slow leaf nodes are counted among the routes)
        kind = "routes" if options.cluster.port else "leafs"
        slow = {"clients": total(facts, "slow_consumers"), **none, kind: facts.slow_servers}
        document["slow_consumer_stats"] = slow
        document["stale_connection_stats"] = {"clients": document["stale_connections"], **none}
        document |= _end_of_certificate(options.tls)
    document |= {"gnatswarm": OWN_VERSION, "shards": facts.wanted_shards}
    document |= {name: total(facts, name) for name in ("denied_msgs", "denied_subscriptions")}
    return document


def _cluster(facts: Facts) -> Document:
    cluster = facts.options.cluster
    if not cluster.port:
        name = cluster.name if facts.options.is_like_newer else facts.cluster_name
        return {key: value for key, value in (("name", name), ("addr", cluster.host)) if value}
    urls = [url.rpartition("://")[2].rpartition("@")[2].rstrip("/") for url in cluster.routes]
    return {
        "name": facts.cluster_name,
        "addr": cluster.host or "0.0.0.0",
        "cluster_port": facts.cluster_port,
        "auth_timeout": _number(cluster.auth_timeout_s),
        **({"urls": urls} if urls else {}),
        "tls_timeout": _number(cluster.tls.timeout_s),
        **({"tls_required": True, "tls_verify": True} if cluster.tls.is_on else {}),
        **({"pool_size": -1, **_newer_of_servers(cluster)} if facts.options.is_like_newer else {}),
    }


def _newer_of_servers(options: Cluster | LeafNodes) -> Document:
    """What 2.15 shows of a port for other servers, too: what they may not read for how long, and the certificate."""
    deadline_s = options.write_deadline_s
    return {
        **({"write_deadline": _nanoseconds(deadline_s)} if deadline_s else {}),
        **_write_timeout(options),
        **_end_of_certificate(options.tls),
    }


def _write_timeout(options: Limits | Cluster | LeafNodes) -> Document:
    return {"write_timeout": options.write_timeout} if options.write_timeout != "default" else {}


def _end_of_certificate(tls: Tls) -> Document:
    """Until when the first certificate of a port is valid."""
    if not tls.cert_pem:
        return {}
    from gnatswarm.shards.boundary.certificates import validity  # where there is TLS, it is imported

    end = validity(tls.pairs[0])[1]
    return {"tls_cert_not_after": time_text(round(end.timestamp()) * 1_000_000)}


def route(row: RouteRow, facts: Facts, subs: str = "") -> Document:
    """The connection to another member of the cluster; `subs`: "list" or "detail", to show what it is interested in."""
    now_us = facts.now_us
    is_like_newer = facts.options.is_like_newer
    return {
        "rid": row.rid,
        "remote_id": row.remote_id,
        **({"remote_name": row.name} if is_like_newer else {}),
        "did_solicit": row.did_solicit,
        "is_configured": row.is_configured,
        "ip": row.host,
        "port": row.port,
        "start": time_text(row.start_us),
        "last_activity": time_text(now_us - row.idle_us),
        "rtt": duration_text(row.rtt_us),
        "uptime": age_text(now_us - row.start_us),
        "idle": age_text(row.idle_us),
        **({"import": row.imports} if row.imports else {}),
        **({"export": row.exports} if row.exports else {}),
        "pending_size": row.pending_bytes,
        "in_msgs": row.in_msgs,
        "out_msgs": row.out_msgs,
        "in_bytes": row.in_bytes,
        "out_bytes": row.out_bytes,
        "subscriptions": row.subscriptions,
        **({"subscriptions_list": [sub.subject for sub in row.subs]} if subs == "list" and row.subs else {}),
        **(
            {"subscriptions_list_detail": [subscription(sub) for sub in row.subs]}
            if subs == "detail" and row.subs
            else {}
        ),
        **({"compression": "not supported"} if is_like_newer else {}),
    }


def route_permissions(facts: Facts) -> Document:
    """What this broker is told by other members, and tells them, where it is not everything."""
    permissions = facts.options.cluster.permissions
    if permissions is None:
        return {}
    sides = {
        "import": {"allow": permissions.subscribe_allow, "deny": permissions.subscribe_deny},
        "export": {"allow": permissions.publish_allow, "deny": permissions.publish_deny},
    }
    shown = {side: {name: rules for name, rules in found.items() if rules} for side, found in sides.items()}
    return {side: found for side, found in shown.items() if found}


def leafz(facts: Facts, found: list[LeafRow]) -> Document:
    """The leaf node connections. 2.15 names the other server, and says who is the leaf node."""
    is_like_newer = facts.options.is_like_newer
    leafs: list[Document] = [
        {
            **({"id": row.lid, "name": row.name, "is_spoke": row.is_spoke} if is_like_newer else {}),
            **({"is_isolated": True} if is_like_newer and row.is_isolated else {}),
            "account": row.account,
            "ip": row.host,
            "port": row.port,
            "rtt": duration_text(row.rtt_us),
            "in_msgs": row.in_msgs,
            "out_msgs": row.out_msgs,
            "in_bytes": row.in_bytes,
            "out_bytes": row.out_bytes,
            "subscriptions": row.subscriptions,
            **({"subscriptions_list": list(row.subs)} if row.subs else {}),
            **({"compression": "not supported"} if is_like_newer else {}),
        }
        for row in found
    ]
    return {**head(facts), "leafnodes": len(leafs), "leafs": leafs or ([] if is_like_newer else None)}


def _traffic(facts: Facts) -> Document:
    """Counters of messages, of clients and other servers; 2.15 says apart what is clients' alone."""
    received = {name: _traffic_of_all(facts, name) for name in ("in_msgs", "in_bytes")}
    sent = {name: _traffic_of_all(facts, name) for name in ("out_msgs", "out_bytes")}
    slow = {"slow_consumers": total(facts, "slow_consumers") + facts.slow_servers}
    if not facts.options.is_like_newer:
        counts = received | sent
        return {name: counts[name] for name in ("in_msgs", "out_msgs", "in_bytes", "out_bytes")} | slow
    return {
        **received,
        **{name.replace("_", "_client_"): total(facts, name) for name in received},
        **sent,
        **{name.replace("_", "_client_"): total(facts, name) for name in sent},
        **slow,
        "stale_connections": total(facts, "stale_connections"),
        "stalled_clients": total(facts, "stalls"),
    }


def _websocket(facts: Facts) -> Document:
    """The WebSocket options that are not at their defaults; nats-server leaves the others out."""
    options, port = facts.options.websocket, facts.websocket_port
    if not port:
        return {}
    document: Document = {"host": options.host or "0.0.0.0", "port": port}
    if options.advertise:
        document["advertise"] = options.advertise
    if options.no_auth_user:
        document["no_auth_user"] = options.no_auth_user
    if options.auth_timeout_s:
        document["auth_timeout"] = options.auth_timeout_s
    if options.handshake_timeout_s != WebSocket().handshake_timeout_s:
        document["handshake_timeout"] = _nanoseconds(options.handshake_timeout_s)
    if options.no_tls:
        document["no_tls"] = True
    if options.same_origin:
        document["same_origin"] = True
    if options.allowed_origins:
        document["allowed_origins"] = list(options.allowed_origins)
    if options.compression:
        document["compression"] = True
    return document | (_end_of_certificate(options.tls) if facts.options.is_like_newer else {})


def _leaf(facts: Facts) -> Document:
    """The options of leaf nodes: of the port, if there is one, and the hubs, without their passwords."""
    options, port = facts.options.leafnodes, facts.server_ports.get("leafnodes", 0)
    document: Document = {}
    if port:
        document = {
            "host": options.host or "0.0.0.0",
            "port": port,
            "auth_timeout": _number(options.auth_timeout_s),
            "tls_timeout": _number(options.tls.timeout_s),
        }
        if options.tls.is_on:
            document["tls_required"] = True
        if options.tls.asks_for_certificate:
            document["tls_verify"] = True
        if facts.options.is_like_newer:
            document |= _newer_of_servers(options)
    if options.remotes:
        document["remotes"] = [_remote(remote) for remote in options.remotes]
    return document


def _remote(remote: LeafRemote) -> Document:
    urls = [url.partition("://")[2].rpartition("@")[2] for url in remote.urls]
    denied = {"imports": list(remote.deny_imports), "exports": list(remote.deny_exports)}
    document: Document = {"local_account": remote.account}
    if remote.tls.is_on:
        document["tls_timeout"] = _number(remote.tls.timeout_s)
    document["urls"] = urls
    if any(denied.values()):
        document["deny"] = {key: subjects for key, subjects in denied.items() if subjects}
    return document


def health(facts: Facts) -> str:
    """Why the broker should get no new clients; "" when it is healthy."""
    if not facts.is_serving:
        return "the broker is not ready"
    faults = []
    for shard in facts.shards:
        # One that drains in a rolling restart serves its clients until its next process takes them.
        if not shard.is_wanted or (shard.phase == "draining" and any(one.is_accepting for one in facts.shards)):
            continue
        if shard.phase != "ready":
            faults.append(f"shard {shard.shard} is {shard.phase}")
        elif shard.is_suspect:
            faults.append(f"shard {shard.shard} does not answer")
        elif shard.loop_lag_us > LAGGING_US:
            faults.append(f"shard {shard.shard} lags by {duration_text(shard.loop_lag_us // 1000 * 1000)}")
    return ", ".join(faults)


def health_status(fault: str, *, is_bad_request: bool = False, details: bool = False) -> Document:
    """What a probe is told; "": nothing is wrong. With `details` (2.15) a fault is one of a list, with its kind."""
    if not fault:
        return {"status": "ok"}
    if details:
        kind = "BAD_REQUEST" if is_bad_request else "CONNECTION"
        return {"status": "error", "errors": [{"type": kind, "error": fault}]}
    return {"status": "error" if is_bad_request else "unavailable", "error": fault}


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1_000_000_000)


def _number(value: float) -> int | float:
    """Go writes a whole float without a point."""
    return int(value) if value == int(value) else value


# ---- connections


def merged(
    answers: Sequence[tuple[int, Iterable[ConnectionRow]]], sort: str, now_us: int, offset: int, limit: int
) -> Iterator[tuple[int, ConnectionRow]]:
    """(shard, connection) in order over all shards, from offset on; each shard's rows must be in that order already."""
    key = order(sort, now_us)
    marked = [_marked(shard, rows) for shard, rows in answers]
    return islice(heapq.merge(*marked, key=lambda pair: key(pair[1])), offset, offset + limit)


def _marked(shard: int, rows: Iterable[ConnectionRow]) -> Iterator[tuple[int, ConnectionRow]]:
    return ((shard, row) for row in rows)


def joined(rows: Iterable[ConnectionRow]) -> list[ConnectionRow]:
    """One row per connection; joins the rows of a connection whose subscriptions came in several."""
    whole: list[ConnectionRow] = []
    pieces: list[list[tuple[SubscriptionRow, ...]]] = []
    for row in rows:
        if whole and whole[-1].cid == row.cid:
            pieces[-1].append(row.subs)
        else:
            whole.append(row)
            pieces.append([row.subs])
    for row, subs in zip(whole, pieces, strict=True):
        if len(subs) > 1:
            row.subs = tuple(chain.from_iterable(subs))
    return whole


def connection(
    shard: int, row: ConnectionRow, now_us: int, *, shows_user: bool = False, subs: str = "", has_tags: bool = False
) -> Document:
    """One connection, as /connz shows it; `has_tags`: as 2.15 tells of users and accounts."""
    until_us = row.stop_us or now_us
    document: Document = {
        "cid": row.cid,
        "kind": "Client",
        "type": row.kind,
        "ip": row.ip,
        "port": row.port,
        "start": time_text(row.start_us),
        "last_activity": time_text(max(row.active_us, row.start_us)),
    }
    if row.stop_us:
        document["stop"] = time_text(row.stop_us)
        document["reason"] = row.reason
    document |= {
        "rtt": duration_text(row.rtt_us),
        "uptime": age_text(until_us - row.start_us),
        "idle": age_text(until_us - max(row.active_us, row.start_us)),
        "pending_bytes": row.pending_bytes,
        "in_msgs": row.in_msgs,
        "out_msgs": row.out_msgs,
        "in_bytes": row.in_bytes,
        "out_bytes": row.out_bytes,
        "subscriptions": row.subscriptions,
    }
    if row.name:
        document["name"] = row.name
    if row.lang:
        document["lang"] = row.lang
    if row.version:
        document["version"] = row.version
    if row.tls_version:
        document["tls_version"] = row.tls_version
        document["tls_cipher_suite"] = row.tls_cipher_suite
    if row.publish_waits:
        document["publish_waits"] = row.publish_waits
    if shows_user and (row.user or (has_tags and row.login == "token")):
        document["authorized_user"] = row.user or "[REDACTED]"  # (2.9 shows the token here)
    if shows_user and row.account not in ("", GLOBAL_ACCOUNT):
        document["account"] = row.account
    if shows_user and has_tags and (row.account not in ("", GLOBAL_ACCOUNT) or not row.stop_us):  # as there
        document["name_tag"] = row.account or GLOBAL_ACCOUNT
    if subs == "list" and row.subs:
        document["subscriptions_list"] = [sub.subject for sub in row.subs]
    elif subs == "detail" and row.subs:
        # Of closed connections nats-server shows the account as well, and no `max`.
        account = (row.account or GLOBAL_ACCOUNT) if row.stop_us else ""
        document["subscriptions_list_detail"] = [
            subscription(sub, account=account, has_tag=has_tags, is_closed=row.stop_us > 0) for sub in row.subs
        ]
    document["shard"] = shard
    if row.moved_us:
        document |= {"moved_from": row.came_from, "moved": time_text(row.moved_us)}
    return document


def client(facts: Facts, shard: int, row: ConnectionRow) -> Document:
    """One client with its log-in and permissions; these are the user's now, not those of a closed client then."""
    user = next((one for one in facts.options.users if one.shown == row.user and row.user), None)
    rules = user.permissions if user is not None else None
    return {
        "client": connection(shard, row, facts.now_us, shows_user=True, subs="detail"),
        "login": row.login,
        "permissions": None
        if rules is None
        else {
            "publish": {"allow": rules.publish_allow, "deny": rules.publish_deny},
            "subscribe": {"allow": rules.subscribe_allow, "deny": rules.subscribe_deny},
            "responses": rules.responses,
        },
    }


def subscription(
    row: SubscriptionRow,
    *,
    account: str = "",
    shard: int | None = None,
    has_tag: bool = False,
    is_closed: bool = False,
) -> Document:
    """One subscription, in /connz or (with its account) in /subsz."""
    document: Document = {"account": account} if account else {}
    if account and has_tag:
        document["account_tag"] = account
    document["subject"] = row.subject
    if row.queue:
        document["qgroup"] = row.queue
    document |= {"sid": row.sid, "msgs": row.msgs}
    if row.max_msgs and not is_closed:
        document["max"] = row.max_msgs
    document["cid"] = row.cid
    if shard is not None:
        document["shard"] = shard
    return document


# ---- subscriptions


def sublist(parts: Iterable[SublistPart]) -> Document:
    """The counters of all sublists together."""
    parts = list(parts)
    lookups = sum(part.lookups for part in parts)
    cached = sum(part.cached for part in parts)
    return {
        "num_subscriptions": sum(part.subscriptions for part in parts),
        "num_cache": cached,
        "num_inserts": sum(part.inserts for part in parts),
        "num_removes": sum(part.removes for part in parts),
        "num_matches": lookups,
        "cache_hit_rate": _share(lookups - sum(part.misses for part in parts), lookups),
        "max_fanout": max((part.widest for part in parts), default=0),
        "avg_fanout": _share(sum(part.widths for part in parts), cached),
    }


def _share(part: int, whole: int) -> int | float:
    return _number(part / whole) if whole else 0


# ---- accounts, and features that this broker does not have


def accountz(facts: Facts) -> Document:
    """The list of accounts."""
    return {**head(facts), "system_account": facts.options.system_account, "accounts": facts.accounts}


def account(facts: Facts, detail: Document) -> Document:
    """The page of one account."""
    return {**head(facts), "system_account": facts.options.system_account, "account_detail": detail}


def account_detail(
    facts: Facts,
    name: str,
    counters: Document,
    clients: int,
    *,
    leafs: int = 0,
    due: Sequence[DueReplyRow] = (),
) -> Document:
    """One account; `counters` are its sublist's, `leafs` its leaf node connections, `due` the replies that it owes."""
    detail: Document = {"account_name": name, "update_time": time_text(facts.created_us)}
    if name == facts.options.system_account:
        detail["is_system"] = True
    return detail | {
        "expired": False,
        "complete": True,
        "jetstream_enabled": False,
        "leafnode_connections": leafs,
        "client_connections": clients,
        "subscriptions": counters["num_subscriptions"],
        **account_rules(facts.options, name),
        **({"name_tag": name} if facts.options.is_like_newer else {}),
        "sublist_stats": counters,
        **({"responses": responses(facts.options, name, due)} if due else {}),
    }


def add_accounts(found: dict[str, AccountRow], answer: Iterable[AccountRow]) -> None:
    """Add some of a shard's rows to the sums, which are those of the accounts that are known."""
    for row in answer:
        whole = found.get(row.name)
        if whole is None:
            continue  # removed by a reload, which closed its clients
        whole.connections += row.connections
        whole.in_msgs += row.in_msgs
        whole.in_bytes += row.in_bytes
        whole.out_msgs += row.out_msgs
        whole.out_bytes += row.out_bytes
        whole.slow_consumers += row.slow_consumers
        whole.subscriptions += row.subscriptions


def account_statistics(row: AccountRow, leafs: int, *, is_like_newer: bool) -> Document:
    """Connections and traffic of an account; traffic, of clients, is counted since each shard started."""
    nothing = {"msgs": 0, "bytes": 0}
    elsewhere = dict.fromkeys(("gateways", "routes", "leafs"), nothing) if is_like_newer else {}
    return {
        "acc": row.name,
        **({"name": row.name} if is_like_newer else {}),
        "conns": row.connections,
        "leafnodes": leafs,
        "total_conns": row.connections + leafs,
        **({"num_subscriptions": row.subscriptions} if is_like_newer else {}),
        "sent": {"msgs": row.out_msgs, "bytes": row.out_bytes, **elsewhere},
        "received": {"msgs": row.in_msgs, "bytes": row.in_bytes, **elsewhere},
        "slow_consumers": row.slow_consumers,
    }


def statsz(facts: Facts, active_accounts: int, routes: Sequence[RouteRow] = ()) -> Document:
    """The server statistics that are published regularly in the system account."""
    newer = facts.options.is_like_newer
    sent = {"msgs": _traffic_of_all(facts, "out_msgs"), "bytes": _traffic_of_all(facts, "out_bytes")}
    received = {"msgs": _traffic_of_all(facts, "in_msgs"), "bytes": _traffic_of_all(facts, "in_bytes")}
    of_clients = {
        way: {"msgs": total(facts, f"{way}_msgs"), "bytes": total(facts, f"{way}_bytes")} for way in ("in", "out")
    }
    shown = [
        {
            "rid": row.rid,
            "name": row.name,
            "sent": {"msgs": row.out_msgs, "bytes": row.out_bytes},
            "received": {"msgs": row.in_msgs, "bytes": row.in_bytes},
            "pending": row.pending_bytes,
        }
        for row in routes
    ]
    return {
        "start": time_text(facts.created_us),
        "mem": total(facts, "resident_bytes") + facts.router_resident_bytes,
        "cores": facts.cores,
        "cpu": _number(round(total(facts, "cpu_percent") + facts.router_cpu_percent, 1)),
        "connections": facts.connections,
        "total_connections": total(facts, "total_connections"),
        "active_accounts": active_accounts,
        "subscriptions": total(facts, "subscriptions"),
        "sent": sent,
        **({"sent_to_clients": of_clients["out"]} if newer else {}),
        "received": received,
        **({"received_from_clients": of_clients["in"]} if newer else {}),
        "slow_consumers": total(facts, "slow_consumers") + facts.slow_servers,
        **({"routes": shown} if shown else {}),
        "active_servers": 1 + len({row.remote_id for row in routes}),
        **({"gomaxprocs": facts.cores} if newer else {}),
    }


def jsz(facts: Facts) -> Document:
    """The document of /jsz: there is no JetStream."""
    newer = facts.options.is_like_newer
    usage = {
        "memory": 0,
        "storage": 0,
        "reserved_memory": 0,
        "reserved_storage": 0,
        "accounts": 0,
        "ha_assets": 0,
        "api": {**({"level": 0} if newer else {}), "total": 0, "errors": 0},
    }
    about = {**head(facts), "disabled": True, "config": {"max_memory": 0, "max_storage": 0}}
    first = usage | about if newer else about | usage
    return {**first, "streams": 0, "consumers": 0, "messages": 0, "bytes": 0, **({"total": 0} if newer else {})}


# ---- shards and links


def shardz(facts: Facts, links: Sequence[tuple[int, Sequence[LinkRow]]]) -> Document:
    """The shards, how unevenly they are loaded, and the links between them."""
    wanted = [shard for shard in facts.shards if shard.is_wanted]
    return {
        **head(facts),
        "keeper": {"pid": facts.pid},
        "router": {
            "pid": facts.router_pid,
            "cpu": round(facts.router_cpu_percent, 1),
            "mem": facts.router_resident_bytes,
        },
        "num_shards": facts.wanted_shards,
        "skew": {
            name: skew([getattr(shard, name) for shard in wanted])
            for name in ("connections", "subscriptions", "in_msgs", "out_msgs", "cpu_s")
        },
        "placement": placement(facts),
        "relays": [msgspec.to_builtins(relay) for relay in facts.relays],
        "shards": [_shard(shard) for shard in facts.shards],
        "links": [link(shard, row, facts.now_us) for shard, rows in links for row in rows],
    }


def placement(facts: Facts) -> Document:
    """The placement rules, and how many clients are where they belong; at most MOST_RULES of them, the first ones."""
    return {
        "after_scale": facts.options.placement.after_scale,
        "bound": facts.options.placement.bound,
        "num_rules": len(facts.placed),
        "clients": sum(rule.clients for rule in facts.placed),
        "in_place": sum(rule.in_place for rule in facts.placed),
        "staying": sum(rule.staying for rule in facts.placed),
        "rules": [msgspec.to_builtins(rule) for rule in facts.placed[:MOST_RULES]],
    }


def _shard(shard: ShardFacts) -> Document:
    return {
        "shard": shard.shard,
        "pid": shard.pid,
        "state": shard.phase,
        "accepting": shard.is_accepting,
        "suspect": shard.is_suspect,
        "starts": shard.starts,
        "deaths": shard.deaths,
        "last_exit": shard.last_reason,
        "cpu": round(shard.cpu_percent, 1),
        "cpu_seconds": round(shard.cpu_s, 2),
        "mem": shard.resident_bytes,
        "loop_lag_us": shard.loop_lag_us,
        "connections": shard.connections,
        "total_connections": shard.total_connections,
        "subscriptions": shard.subscriptions,
        "in_msgs": shard.in_msgs,
        "out_msgs": shard.out_msgs,
        "in_bytes": shard.in_bytes,
        "out_bytes": shard.out_bytes,
        "denied_msgs": shard.denied_msgs,
        "denied_subscriptions": shard.denied_subscriptions,
        "slow_consumers": shard.slow_consumers,
        "stalls": shard.stalls,
        "links": shard.links,
        "link_in_msgs": shard.link_in_msgs,
        "link_out_msgs": shard.link_out_msgs,
    }


def moves(answers: Iterable[tuple[int, Sequence[MovesPart]]]) -> list[Document]:
    """Clients that have moved between shards, since each shard started."""
    return [{"shard": shard, **msgspec.structs.asdict(part)} for shard, parts in answers for part in parts]


def link(shard: int, row: LinkRow, now_us: int) -> Document:
    """One end of a link: what `shard` has sent to its sibling and received from it."""
    return {
        "shard": shard,
        "remote_shard": row.shard,
        "did_solicit": row.is_dialled,
        "start": time_text(row.start_us),
        "uptime": age_text(now_us - row.start_us),
        "pending_size": row.pending_bytes,
        "in_msgs": row.in_msgs,
        "out_msgs": row.out_msgs,
        "in_bytes": row.in_bytes,
        "out_bytes": row.out_bytes,
    }


def denied(rows: Iterable[DeniedRow]) -> list[Document]:
    """What permissions have denied, by account and user, most first; summed over shards."""
    found: dict[tuple[str, str], Document] = {}
    for row in rows:
        nothing = {"account": row.account, "user": row.user, "publishes": 0, "subscriptions": 0, "waits": 0}
        entry = found.setdefault((row.account, row.user), nothing)
        entry["publishes"] += row.publishes
        entry["subscriptions"] += row.subscriptions
        entry["waits"] += row.waits
    return sorted(
        found.values(),
        key=lambda entry: (
            -entry["publishes"] - entry["subscriptions"] - entry["waits"],
            entry["account"],
            entry["user"],
        ),
    )


def skew(values: Sequence[float]) -> Document:
    """Skew: the largest value divided by the mean (1: even), and the Gini coefficient (0: even, 1: all on one)."""
    whole = sum(values)
    if not whole:
        return {"max_over_mean": 1.0, "gini": 0.0}
    count = len(values)
    weighted = sum(rank * value for rank, value in enumerate(sorted(values), 1))
    gini = 2 * weighted / (count * whole) - (count + 1) / count
    return {"max_over_mean": round(max(values) * count / whole, 3), "gini": round(max(gini, 0.0), 3)}


# ---- subjects, queues, slow consumers


def subjects(answers: Iterable[tuple[int, Iterable[SubjectRow]]]) -> list[Document]:
    """Each subject of each account once; a message is counted where it was published, a delivery where it was made."""
    found: dict[tuple[str, str], Document] = {}
    for shard, rows in answers:
        for row in rows:
            key = row.account, row.subject
            entry = found.get(key)
            if entry is None:
                entry = found[key] = {
                    "account": row.account,
                    "subject": row.subject,
                    "msgs": 0,
                    "bytes": 0,
                    "deliveries": 0,
                    "fanout": 0.0,
                    "subscribers": 0,
                    "subscriptions": 0,
                    "queue_groups": 0,
                    "queue_members": 0,
                    "wanted": False,
                    "folded": 0,
                    "shards": {},
                }
            entry["msgs"] += row.msgs
            entry["bytes"] += row.payload_bytes
            entry["deliveries"] += row.deliveries
            entry["subscriptions"] += row.subscriptions
            entry["queue_groups"] = max(entry["queue_groups"], row.queue_groups)
            entry["queue_members"] += row.queue_members
            entry["subscribers"] += row.subscriptions + row.queue_members
            entry["wanted"] = entry["wanted"] or row.is_wanted
            entry["folded"] += row.folded
            entry["shards"][str(shard)] = {
                "msgs": row.msgs,
                "bytes": row.payload_bytes,
                "deliveries": row.deliveries,
            }
    for entry in found.values():
        entry["fanout"] = round(entry["deliveries"] / entry["msgs"], 3) if entry["msgs"] else 0.0
    return list(found.values())


SUBJECT_SORTS = ("msgs", "bytes", "deliveries", "fanout")


def top_subjects(entries: Iterable[Document], sort: str, limit: int) -> list[Document]:
    """The first `limit` entries in that order; ties by name."""
    return heapq.nsmallest(limit, entries, key=lambda entry: (-entry[sort], entry["subject"], entry["account"]))


def queues(answers: Iterable[tuple[int, Iterable[QueueRow]]]) -> Iterator[Document]:
    """Queue groups with their members and each member's share of the messages, one by one; see busiest_first."""
    groups: dict[tuple[str, str, str], list[tuple[int, QueueRow]]] = {}
    for shard, rows in answers:
        for row in rows:
            groups.setdefault((row.account, row.subject, row.queue), []).append((shard, row))
    for (account, subject, queue), found in groups.items():
        # A member that moved meanwhile: what it was delivered moved with it.
        members = once(found, key=lambda row: (row.cid, row.sid), age=lambda row: row.msgs)
        msgs = sum(row.msgs for _shard, row in members)
        members.sort(key=lambda pair: (-pair[1].msgs, pair[1].cid))
        yield {
            "account": account,
            "subject": subject,
            "queue": queue,
            "msgs": msgs,
            "num_members": len(members),
            "skew": skew([row.msgs for _shard, row in members]),
            "members": [
                {
                    "cid": row.cid,
                    "sid": row.sid,
                    "name": row.name,
                    "shard": shard,
                    "msgs": row.msgs,
                    "share": round(row.msgs / msgs, 4) if msgs else 0.0,
                }
                for shard, row in members
            ],
        }


def busiest_first(group: Document) -> tuple[int, str, str, str]:
    """The order of queue groups."""
    return -group["msgs"], group["subject"], group["queue"], group["account"]


MOST_SHOWN_SUBSCRIPTIONS = 8


def slow_consumer(shard: int, row: ConnectionRow, now_us: int) -> Document:
    """A present or past slow consumer: client, subscriptions, pending bytes, reason."""
    busiest = sorted(row.subs, key=lambda sub: -sub.msgs)[:MOST_SHOWN_SUBSCRIPTIONS]
    document: Document = {
        "cid": row.cid,
        "ip": row.ip,
        "port": row.port,
        "name": row.name,
        "authorized_user": row.user,
        "account": row.account,
        "lang": row.lang,
        "version": row.version,
        "start": time_text(row.start_us),
        "pending_bytes": row.pending_bytes,
        "out_msgs": row.out_msgs,
        "out_bytes": row.out_bytes,
        "subscriptions": row.subscriptions,
        "subscriptions_list_detail": [subscription(sub) for sub in busiest],
        "shard": shard,
    }
    if row.stop_us:
        document |= {"stop": time_text(row.stop_us), "ago": age_text(now_us - row.stop_us), "reason": row.reason}
    return document
