"""Advice for an operator, each with the figures that it follows from. A pure function of collected results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

Rows = Sequence[Mapping[str, Any]]

BUSY = 0.8  # of a core: above this a shard has no room for a burst
IDLE = 0.5  # of a core, all shards together: below this one shard would be enough
UNEVEN_CONNECTIONS = 1.3  # max ÷ mean
CROSSES = 0.3  # of all deliveries
UNFAIR = 1.25  # max ÷ mean of a queue group's members, if there were ENOUGH_MSGS
ENOUGH_MSGS = 1000  # shares of fewer messages are chance
ENOUGH_CONNECTIONS = 10  # on average; with fewer, the kernel's hash may well put most on one shard
UNWANTED = 0.05
LATE_US = 50_000
MISSES = 0.2
OVERLAP_US = 60_000_000


class Advice(NamedTuple):
    """One recommendation."""

    what: str
    figures: str


def _times(n: int) -> str:
    return "once" if n == 1 else f"{n:,} times"


def at_once(brokers: Rows) -> tuple[str, str] | None:
    """The ids of two brokers that ran at the same time; a restarted broker overlaps by less than a window."""
    last: Mapping[str, Any] | None = None
    for row in sorted(brokers, key=lambda row: row["first_us"]):
        if last is not None and row["first_us"] + OVERLAP_US < last["last_us"]:
            return last["broker"][:8], row["broker"][:8]
        last = row if last is None or row["last_us"] > last["last_us"] else last
    return None


def advise(answers: Mapping[str, Rows]) -> list[Advice]:
    """From the collected results of spark.answers; an empty list if there is nothing to recommend."""
    found: list[Advice] = []
    together = at_once(answers["brokers"])
    if together:
        found.append(
            Advice(
                "Report one broker at a time (--broker): these figures are of several that ran at the same time",
                f"{len(answers['brokers'])} brokers, and {together[0]} and {together[1]} overlap in time",
            )
        )
    # If several brokers ran at the same time, a row of `shards` is not one shard.
    shards = [] if together else list(answers["shards"])
    busiest = max(shards, key=lambda row: row["cpu_share"] or 0.0, default=None)
    used = sum(row["cpu_share"] or 0.0 for row in shards)
    crossed = answers["crossed"][0] if answers["crossed"] else {"share": None, "deliveries": 0}
    share = crossed["share"] or 0.0
    if busiest is not None and (busiest["cpu_share"] or 0.0) > BUSY:
        figures = f"shard {busiest['shard']} used {busiest['cpu_share']:.0%} of a core over the whole time"
        uneven = busiest["cpu_share"] * len(shards) / used
        if len(shards) > 1 and uneven > UNEVEN_CONNECTIONS:
            found.append(
                Advice(
                    "Spread the work: `accept: handoff`, or let heavy clients connect again",
                    f"{figures}, {uneven:.2f} times the mean",
                )
            )
        else:
            found.append(Advice(f"More shards: {len(shards) + 1} or more, if the host has the cores", figures))
    if len(shards) > 1 and used < IDLE:
        saved = f", and {share:.0%} of the deliveries would no longer go between shards" if share else ""
        what = f"One shard would be enough{saved}"
        found.append(Advice(what, f"{len(shards)} shards together used {used:.0%} of one core"))
    connections = [row["connections"] or 0 for row in shards]
    if len(shards) > 1 and sum(connections) >= ENOUGH_CONNECTIONS * len(shards):
        uneven = max(connections) * len(connections) / sum(connections)
        if uneven > UNEVEN_CONNECTIONS:
            shown = ", ".join(str(n) for n in connections)
            found.append(Advice("`accept: handoff` places connections evenly", f"connections per shard: {shown}"))
    if share > CROSSES and (crossed["deliveries"] or 0) >= ENOUGH_MSGS and (used >= IDLE or len(shards) == 1):
        heaviest = [row for row in answers["crossing"] if not row["is_folded"]][:3]
        names = ", ".join(f"{row['subject']} ({row['crossed']:,} frames)" for row in heaviest)
        found.append(
            Advice(
                "Much traffic goes between shards: connect publishers and subscribers of these subjects to one shard",
                f"{share:.0%} of {crossed['deliveries']:,} deliveries came from another shard; heaviest: {names}",
            )
        )
    for row in answers["queues"]:
        if row["deliveries"] >= ENOUGH_MSGS and row["members"] > 1 and row["max_to_mean"] > UNFAIR:
            found.append(
                Advice(
                    f"Queue group {row['queue']} on {row['subject']} is uneven: did members join or leave?",
                    f"{row['members']} members got {row['least']:,.0f} to {row['most']:,.0f} messages each",
                )
            )
    totals = answers["totals"][0] if answers["totals"] else {"in_msgs": 0, "unwanted_msgs": 0}
    if totals["in_msgs"] >= ENOUGH_MSGS and totals["unwanted_msgs"] / totals["in_msgs"] > UNWANTED:
        names = ", ".join(f"{row['subject']} ({row['unwanted']:,})" for row in list(answers["unwanted"])[:3])
        found.append(
            Advice(
                "Publish fewer messages that have no subscriber, or find out which subscriber is missing",
                f"{totals['unwanted_msgs']:,} of {totals['in_msgs']:,} messages had no subscriber: {names}",
            )
        )
    for row in list(answers["slow"])[:3]:
        who = row["name"] or row["user"] or row["ip"]
        found.append(
            Advice(
                f"{who} reads too slowly for {row['subject'] or 'its subscriptions'}: add readers, or a queue group",
                f"closed {_times(row['times'])} ({row['reason']}), {row['most_pending_bytes']:,} bytes pending",
            )
        )
    late = [row for row in answers["over_time"] if (row["lag_p99_us"] or 0) > LATE_US]
    if late:
        worst = max(late, key=lambda row: row["lag_p99_us"])
        found.append(
            Advice(
                "Give the broker its own cores: its event loops have to wait for the processor",
                f"{len(late)} windows with a p99 over {LATE_US // 1000} ms, up to {worst['lag_p99_us'] / 1000:.0f} ms",
            )
        )
    msgs = sum((row["in_msgs"] or 0) + (row["link_in_msgs"] or 0) for row in shards)
    misses = sum(row["cache_misses"] or 0 for row in shards)
    if msgs >= ENOUGH_MSGS and misses / msgs > MISSES:
        found.append(
            Advice(
                "Use fewer different subjects, or change wildcard subscriptions less often, to save subject matching",
                f"{misses:,} of {msgs:,} messages were not in the match cache",
            )
        )
    if answers["gaps"]:
        lost = sum(row["in_msgs"] for row in answers["gaps"])
        found.append(
            Advice(
                "A shard died: the log says why",
                f"{_times(len(answers['gaps']))}; {lost:,} messages are counted without their subject",
            )
        )
    if answers["torn"]:
        found.append(
            Advice(
                "Some windows are incomplete: look for a disk or a copy that failed; the figures lack the rest of them",
                f"{len(answers['torn'])} windows",
            )
        )
    return found
