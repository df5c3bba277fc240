"""The columns of the broker's records, kind by kind, as Spark reads them.

shards/boundary/records.py defines them for the shards; tests/spark/test_contract.py compares the two. Fields that are
missing in old files are null; unknown fields are ignored. Types are Spark's names.
"""

from __future__ import annotations

# Rows of a newer version are set aside, because the meaning of their numbers is not known here.
KNOWN_VERSION = 3

# The process that is connected to other servers has a shard's rows, with this number and without clients.
GATEWAY = 63

OTHER = "*other*"
REST = "*rest*"

COMMON = {
    "version": "bigint",
    "broker": "string",
    "boot": "string",
    "shard": "bigint",
    "file": "bigint",
    "window_start_us": "bigint",
    "window_us": "bigint",
}

KINDS: dict[str, dict[str, str]] = {
    "subject": {
        "account": "string",
        "subject": "string",
        "is_folded": "boolean",
        "in_msgs": "bigint",
        "in_bytes": "bigint",
        "deliveries": "bigint",
        "out_bytes": "bigint",
        "widest": "bigint",
        "link_out_msgs": "bigint",
        "link_in_msgs": "bigint",
        "unwanted_msgs": "bigint",
        "cache_misses": "bigint",
        "error_msgs": "bigint",
    },
    "queue": {
        "account": "string",
        "subject": "string",
        "queue": "string",
        "cid": "bigint",
        "sid": "string",
        "deliveries": "bigint",
    },
    "link": {
        "peer": "bigint",
        "sent_msgs": "bigint",
        "sent_bytes": "bigint",
        "received_msgs": "bigint",
        "received_bytes": "bigint",
        "received_deliveries": "bigint",
        "peak_pending_bytes": "bigint",
        "paused_us": "bigint",
    },
    "shard": {
        "window_nominal_us": "bigint",
        "connections": "bigint",
        "subscriptions": "bigint",
        "in_msgs": "bigint",
        "in_bytes": "bigint",
        "out_msgs": "bigint",
        "out_bytes": "bigint",
        "link_out_msgs": "bigint",
        "link_in_msgs": "bigint",
        "unwanted_msgs": "bigint",
        "cache_misses": "bigint",
        "subjects": "bigint",
        "widths": "array<bigint>",
        "link_widths": "array<bigint>",
        "lag_p50_us": "bigint",
        "lag_p99_us": "bigint",
        "lag_max_us": "bigint",
        "cpu_s": "double",
        "resident_bytes": "bigint",
        "slow_consumers": "bigint",
        "stalls": "bigint",
        "lost_windows": "bigint",
        "refused_msgs": "bigint",
        "refused_bytes": "bigint",
    },
    "slow": {
        "cid": "bigint",
        "user": "string",
        "name": "string",
        "ip": "string",
        "subject": "string",
        "pending_bytes": "bigint",
        "reason": "string",
    },
    "denied": {
        "account": "string",
        "user": "string",
        "publishes": "bigint",
        "subscriptions": "bigint",
    },
    "client": {
        "account": "string",
        "user": "string",
        "name": "string",
        "lib": "string",
        "ip": "string",
        "cid": "bigint",
        "connections": "bigint",
        "opened": "bigint",
        "closed": "bigint",
        "in_msgs": "bigint",
        "in_bytes": "bigint",
        "out_msgs": "bigint",
        "out_bytes": "bigint",
        "published": "array<struct<subject:string,msgs:bigint,bytes:bigint,requests:bigint>>",
        "received": "array<struct<subject:string,queue:string,msgs:bigint>>",
    },
    "gap": {
        "in_msgs": "bigint",
        "in_bytes": "bigint",
        "out_msgs": "bigint",
        "out_bytes": "bigint",
        "link_out_msgs": "bigint",
        "link_in_msgs": "bigint",
        "reason": "string",
    },
}

CORRUPT = "_corrupt"
# Why a file has no line that could be used or set aside.
UNREADABLE = "a file of which nothing can be read"

# No window has such a count, and 30,000 of them can be added up. Times are before the year 2113, as that of every clock
# that is set; a page cannot show the year 10000.
MOST_COUNT = 1 << 48
MOST_TIME_US = 1 << 52


def types(kind: str) -> dict[str, str]:
    """The columns of a kind's DataFrame, in order, with their types."""
    return {"source": "string", **COMMON, **KINDS[kind]}


def numbers() -> list[str]:
    """All fields that are numbers, of all kinds, but for the time of a window."""
    fields = COMMON | {name: kind for fields in KINDS.values() for name, kind in fields.items()}
    return [name for name, kind in fields.items() if kind in ("bigint", "double") and name != "window_start_us"]


def number_lists() -> list[str]:
    """All fields that are lists of numbers, and fields of structures in a list."""
    found = []
    for name, kind in {name: kind for fields in KINDS.values() for name, kind in fields.items()}.items():
        if kind == "array<bigint>":
            found.append(name)
        elif kind.startswith("array<struct<"):
            inner = (field.split(":") for field in kind.removeprefix("array<struct<").removesuffix(">>").split(","))
            found += [f"{name}.{field}" for field, inner_kind in inner if inner_kind == "bigint"]
    return found


def columns(kind: str) -> list[str]:
    """The columns of a kind's DataFrame, in order."""
    return [*types(kind)]


def ddl() -> str:
    """One schema for lines of all kinds, which use each column name with one type only, and for corrupt lines."""
    fields = {"kind": "string", **COMMON}
    for kind in KINDS.values():
        fields |= kind
    fields[CORRUPT] = "string"
    return ", ".join(f"`{name}` {kind}" for name, kind in fields.items())
