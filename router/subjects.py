"""`/subjectz`: from the shards' rows to hot subjects of one broker, and to those that nobody wants. Pure.

A message is counted where it was published, a delivery where it was made, so that the sums over shards are right and
fan-out is one divided by the other. What is only known now (who publishes, who subscribes) is added last.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

from broker.goformat import time_text
from router.aggregate import Document
from shards.rows import HotSubjectRow, HotSubjectsPart, SubjectInterestRow

SORTS = ("msgs", "bytes", "deliveries", "out_bytes", "fanout", "widest", "unwanted")
NOT_RECORDED = (
    "the statistics recorder is off (stats.enabled, --no-stats): counted is since each subject's answer was cached, "
    "which a new subscription that matches begins anew; who publishes and what went to nobody is not known"
)


def merged(answers: Iterable[tuple[int, Sequence[HotSubjectsPart]]]) -> list[Document]:
    """Each subject of each account once."""
    found: dict[tuple[str, str], Document] = {}
    for shard, parts in answers:
        for row in (row for part in parts for row in part.rows):
            entry = found.get((row.account, row.subject))
            if entry is None:
                entry = found[row.account, row.subject] = _empty(row)
            entry["msgs"] += row.msgs
            entry["bytes"] += row.payload_bytes
            entry["deliveries"] += row.deliveries
            entry["out_bytes"] += row.out_bytes
            # Each is the widest here; one message may have reached all of them.
            entry["widest"] += row.widest
            entry["unwanted"] += row.unwanted
            entry["shards"][str(shard)] = {"msgs": row.msgs, "deliveries": row.deliveries}
    for entry in found.values():
        entry["fanout"] = round(entry["deliveries"] / entry["msgs"], 3) if entry["msgs"] else 0.0
    return list(found.values())


def _empty(row: HotSubjectRow) -> Document:
    return {
        "account": row.account,
        "subject": row.subject,
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
    """So many in that order; equals by name."""
    return heapq.nsmallest(
        offset + limit, entries, key=lambda entry: (-entry[sort], entry["subject"], entry.get("account", ""))
    )[offset:]


def covered(answers: Iterable[tuple[int, Sequence[HotSubjectsPart]]]) -> Document:
    """What time the counts are of, and how much they leave out."""
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
    """Adds rates and, shard by shard, who has to do with these subjects now."""
    for rows in answers:
        for entry, row in zip(entries, rows, strict=False):  # of a shard that died meanwhile there are none
            entry["publishers"] += row.publishers
            entry["subscriptions"] += row.subscriptions
            entry["queue_members"] += row.queue_members
            entry["queue_groups"] = max(entry["queue_groups"], row.queue_groups)
            entry["wanted"] = entry["wanted"] or row.is_wanted
    for entry in entries:
        entry["subscribers"] = entry["subscriptions"] + entry["queue_members"]
        entry["msgs_per_s"] = round(entry["msgs"] / seconds, 1) if seconds else 0.0
        if entry["subject"].endswith(".>"):  # many subjects together: nobody is asked for each
            entry["wanted"] = entry["unwanted"] < entry["msgs"] or entry["deliveries"] > 0
