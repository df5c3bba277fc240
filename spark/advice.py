"""Advice for an operator, each with the figures that it follows from. A pure function of collected results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from gnatswarm.spark.schema import UNREADABLE

Rows = Sequence[Mapping[str, Any]]

BUSY = 0.8  # of a core: above this a shard has no room for a burst
IDLE = 0.5  # of a core, all shards together: below this one shard would be enough
UNEVEN_CONNECTIONS = 1.3  # max ÷ mean
NEARLY_ALL = (
    0.8  # of the connections: even ones do not become uneven while the others leave, as 1 ÷ 0.8 is less than that
)
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
    together = at_once(answers["brokers"])
    # If several brokers ran at the same time, a row of `shards` is not one shard.
    shards = [] if together else [row for row in answers["shards"] if row["is_current"]]
    return [
        *_on_several_brokers(together, len(answers["brokers"])),
        *_on_shards(shards, _crossed(answers)["share"] or 0.0),
        *_on_connections(shards, answers["over_time"]),
        *_on_crossing(answers, shards),
        *_on_queue_groups(answers["queues"]),
        *_on_unwanted_messages(answers),
        *_on_slow_consumers(answers["slow"]),
        *_on_late_loops(answers["over_time"]),
        *_on_match_cache(shards),
        *_on_incomplete_statistics(answers),
    ]


def _crossed(answers: Mapping[str, Rows]) -> Mapping[str, Any]:
    """Which share of all deliveries came from another shard."""
    return answers["crossed"][0] if answers["crossed"] else {"share": None, "deliveries": 0}


def _cores_used(shards: Rows) -> float:
    return sum(row["cpu_share"] or 0.0 for row in shards)


def _on_several_brokers(together: tuple[str, str] | None, brokers: int) -> Iterator[Advice]:
    if together:
        yield Advice(
            "Report one broker at a time (--broker): these figures are of several that ran at the same time",
            f"{brokers} brokers, and {together[0]} and {together[1]} overlap in time",
        )


def _on_shards(shards: Rows, crossed_share: float) -> Iterator[Advice]:
    """More, fewer, or the work spread better."""
    busiest = max(shards, key=lambda row: row["cpu_share"] or 0.0, default=None)
    used = _cores_used(shards)
    if busiest is not None and (busiest["cpu_share"] or 0.0) > BUSY:
        figures = f"shard {busiest['shard']} used {busiest['cpu_share']:.0%} of a core over the whole time"
        uneven = busiest["cpu_share"] * len(shards) / used
        if len(shards) > 1 and uneven > UNEVEN_CONNECTIONS:
            yield Advice(
                "Spread the work: `accept: handoff`, or let heavy clients connect again",
                f"{figures}, {uneven:.2f} times the mean",
            )
        else:
            yield Advice(f"More shards: {len(shards) + 1} or more, if the host has the cores", figures)
    if len(shards) > 1 and used < IDLE:
        saved = f", and {crossed_share:.0%} of the deliveries would no longer go between shards"
        yield Advice(
            f"One shard would be enough{saved if crossed_share else ''}",
            f"{len(shards)} shards together used {used:.0%} of one core",
        )


def _connections(shards: Rows, over_time: Rows) -> list[int]:
    """Each shard's, when last nearly as many clients were connected as ever; empty: that cannot be told.

    Not the most of each: these are of different times, before a rebalance and after it. Not the last: clients leave one
    after the other.
    """
    numbers = [row["shard"] for row in shards]
    windows: dict[int, dict[int, int]] = {}
    for row in over_time:
        windows.setdefault(row["window_start_us"], {})[row["shard"]] = row["connections"] or 0
    found = {at: [one[n] for n in numbers] for at, one in windows.items() if one.keys() >= set(numbers)}
    most = max(map(sum, found.values()), default=0)
    return max(((at, one) for at, one in found.items() if sum(one) >= NEARLY_ALL * most), default=(0, []))[1]


def _on_connections(shards: Rows, over_time: Rows) -> Iterator[Advice]:
    connections = _connections(shards, over_time)
    if connections and len(shards) > 1 and sum(connections) >= ENOUGH_CONNECTIONS * len(shards):
        uneven = max(connections) * len(connections) / sum(connections)
        if uneven > UNEVEN_CONNECTIONS:
            shown = ", ".join(str(n) for n in connections)
            yield Advice("`accept: handoff` places connections evenly", f"connections per shard: {shown}")


def _on_crossing(answers: Mapping[str, Rows], shards: Rows) -> Iterator[Advice]:
    """Traffic between shards, unless fewer shards are the better advice."""
    crossed = _crossed(answers)
    share = crossed["share"] or 0.0
    needs_its_shards = _cores_used(shards) >= IDLE or len(shards) == 1
    if share > CROSSES and (crossed["deliveries"] or 0) >= ENOUGH_MSGS and needs_its_shards:
        heaviest = [row for row in answers["crossing"] if not row["is_folded"]][:3]
        names = ", ".join(f"{row['subject']} ({row['crossed']:,} frames)" for row in heaviest)
        yield Advice(
            "Much traffic goes between shards: connect publishers and subscribers of these subjects to one shard",
            f"{share:.0%} of {crossed['deliveries']:,} deliveries came from another shard; heaviest: {names}",
        )


def _on_queue_groups(queues: Rows) -> Iterator[Advice]:
    for row in queues:
        if row["deliveries"] >= ENOUGH_MSGS and row["members"] > 1 and row["max_to_mean"] > UNFAIR:
            yield Advice(
                f"Queue group {row['queue']} on {row['subject']} is uneven: did members join or leave?",
                f"{row['members']} members got {row['least']:,.0f} to {row['most']:,.0f} messages each",
            )


def _on_unwanted_messages(answers: Mapping[str, Rows]) -> Iterator[Advice]:
    totals = answers["totals"][0] if answers["totals"] else {"in_msgs": 0, "unwanted_msgs": 0}
    if totals["in_msgs"] >= ENOUGH_MSGS and totals["unwanted_msgs"] / totals["in_msgs"] > UNWANTED:
        names = ", ".join(f"{row['subject']} ({row['unwanted']:,})" for row in list(answers["unwanted"])[:3])
        yield Advice(
            "Publish fewer messages that have no subscriber, or find out which subscriber is missing",
            f"{totals['unwanted_msgs']:,} of {totals['in_msgs']:,} messages had no subscriber: {names}",
        )


def _on_slow_consumers(slow: Rows) -> Iterator[Advice]:
    for row in list(slow)[:3]:
        who = row["name"] or row["user"] or row["ip"]
        yield Advice(
            f"{who} reads too slowly for {row['subject'] or 'its subscriptions'}: add readers, or a queue group",
            f"closed {_times(row['times'])} ({row['reason']}), {row['most_pending_bytes']:,} bytes pending",
        )


def _on_late_loops(over_time: Rows) -> Iterator[Advice]:
    late = [row for row in over_time if (row["lag_p99_us"] or 0) > LATE_US]
    if late:
        worst = max(late, key=lambda row: row["lag_p99_us"])
        yield Advice(
            "Give the broker its own cores: its event loops have to wait for the processor",
            f"{len(late)} windows with a p99 over {LATE_US // 1000} ms, up to {worst['lag_p99_us'] / 1000:.0f} ms",
        )


def _on_match_cache(shards: Rows) -> Iterator[Advice]:
    msgs = sum((row["in_msgs"] or 0) + (row["link_in_msgs"] or 0) for row in shards)
    misses = sum(row["cache_misses"] or 0 for row in shards)
    if msgs >= ENOUGH_MSGS and misses / msgs > MISSES:
        yield Advice(
            "Use fewer different subjects, or change wildcard subscriptions less often, to save subject matching",
            f"{misses:,} of {msgs:,} messages were not in the match cache",
        )


def _on_incomplete_statistics(answers: Mapping[str, Rows]) -> Iterator[Advice]:
    if answers["gaps"]:
        lost = sum(row["in_msgs"] for row in answers["gaps"])
        yield Advice(
            "A shard died, or could not write its statistics: the log says why",
            f"{_times(len(answers['gaps']))}; {lost:,} messages are counted without their subject",
        )
    if answers["torn"]:
        yield Advice(
            "Some windows are incomplete: look for a disk or a copy that failed; the figures lack the rest of them",
            f"{len(answers['torn'])} windows",
        )
    if lost := {row["shard"]: row["lost_windows"] for row in answers["shards"] if row["lost_windows"]}:
        shown = ", ".join(f"{n:,} of shard {shard}" for shard, n in lost.items())
        yield Advice(
            "Some windows were never written: look for a disk that was full or hung; the figures lack them",
            f"windows: {shown}",
        )
    lines = [row for row in answers["aside"] if row["why"] != UNREADABLE]
    if lines:
        shown = ", ".join(f"{row['count']:,} ({row['why']})" for row in lines)
        yield Advice(
            "Some lines could not be used: look for a newer broker, or for files that were truncated or changed; the "
            "figures lack them",
            f"lines: {shown}",
        )
    if answers["unreadable"]:
        paths = [row["path"] for row in answers["unreadable"]]
        yield Advice(
            "Some files could not be read: copy them again; the figures lack them",
            ", ".join(paths[:3]) + (" …" if len(paths) > 3 else ""),
        )
