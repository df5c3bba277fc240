"""`/subjectz`: builds the broker's hot subjects, and those without subscribers, from the shards' rows. Pure functions.

A message is counted on the shard where it was published, a delivery on the shard that made it; so sums over shards are
right, and fan-out is deliveries divided by messages. Present publishers and subscribers are added last.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

from gnatswarm.broker.goformat import time_text
from gnatswarm.broker.options import GLOBAL_ACCOUNT
from gnatswarm.router.monitoring.aggregate import Document
from gnatswarm.shards.boundary.rows import HotSubjectsPart, SubjectInterestRow

SORTS = ("msgs", "bytes", "deliveries", "out_bytes", "fanout", "widest", "unwanted")
NOT_RECORDED = (
    "the statistics recorder is off (stats.enabled, --no-stats): counted is since each subject's answer was cached; "
    "who publishes and what went to nobody is not known"
)


def merged(answers: Iterable[tuple[int, Sequence[HotSubjectsPart]]]) -> list[Document]:
    """One entry for each subject of each account, summed over shards."""
    found: dict[tuple[str, str], Document] = {}
    for shard, parts in answers:
        for row in (row for part in parts for row in part.rows):
            entry = found.get((row.account, row.subject))
            if entry is None:
                entry = found[row.account, row.subject] = nothing(row.account, row.subject)
            entry["msgs"] += row.msgs
            entry["bytes"] += row.payload_bytes
            entry["deliveries"] += row.deliveries
            entry["out_bytes"] += row.out_bytes
            # `widest` is per shard; one message may have reached all of them.
            entry["widest"] += row.widest
            entry["unwanted"] += row.unwanted
            entry["shards"][str(shard)] = {
                "msgs": row.msgs,
                "bytes": row.payload_bytes,
                "deliveries": row.deliveries,
            }
    for entry in found.values():
        entry["fanout"] = round(entry["deliveries"] / entry["msgs"], 3) if entry["msgs"] else 0.0
    return list(found.values())


def nothing(account: str, subject: str) -> Document:
    """The entry of a subject to which nothing was published."""
    return {
        "account": account or GLOBAL_ACCOUNT,
        "subject": subject,
        "msgs": 0,
        "msgs_per_s": 0.0,
        "bytes": 0,
        "deliveries": 0,
        "out_bytes": 0,
        "fanout": 0.0,
        "widest": 0,
        "unwanted": 0,
        "wanted": False,
        "publishers": 0,
        "subscribers": 0,
        "subscriptions": 0,
        "queue_groups": 0,
        "queue_members": 0,
        "shards": {},
    }


def page(entries: Iterable[Document], sort: str, offset: int, limit: int) -> list[Document]:
    """`limit` entries in that order from `offset` on; ties by name."""
    return heapq.nsmallest(
        offset + limit, entries, key=lambda entry: (-entry[sort], entry["subject"], entry.get("account", ""))
    )[offset:]


def covered(answers: Iterable[tuple[int, Sequence[HotSubjectsPart]]]) -> Document:
    """The time that the counts cover, and how much they leave out."""
    parts = [parts[0] for _shard, parts in answers if parts]
    if not parts:
        return {"since": None, "seconds": 0.0, "other_msgs": 0}
    since_us = min(part.since_us for part in parts)
    return {
        "since": time_text(since_us),
        "seconds": round(max(part.now_us for part in parts) / 1e6 - since_us / 1e6, 3),
        "other_msgs": sum(part.other_msgs for part in parts),
    }


def complete(entries: Sequence[Document], seconds: float, answers: Iterable[Sequence[SubjectInterestRow]]) -> None:
    """Add rates, and the present publishers and subscribers by shard."""
    for rows in answers:
        for entry, row in zip(entries, rows, strict=False):  # a shard that died meanwhile has no rows
            entry["publishers"] += row.publishers
            entry["subscriptions"] += row.subscriptions
            entry["queue_members"] += row.queue_members
            entry["queue_groups"] = max(entry["queue_groups"], row.queue_groups)
            entry["wanted"] = entry["wanted"] or row.is_wanted
    for entry in entries:
        entry["subscribers"] = entry["subscriptions"] + entry["queue_members"]
        entry["msgs_per_s"] = round(entry["msgs"] / seconds, 1) if seconds else 0.0
        # A sum of many subjects has no counts of subscribers, and who wants what is not UTF-8 cannot be looked up.
        if entry["subject"].endswith(".>") or "\ufffd" in entry["subject"]:
            entry["wanted"] = entry["unwanted"] < entry["msgs"] or entry["deliveries"] > 0
