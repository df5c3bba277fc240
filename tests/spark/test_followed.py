"""Advice of the report is got from a real broker, followed, and the figure that it promised is better.

The rules that advice follows from are in test_advice, on figures that are written there.
"""

from __future__ import annotations

import asyncio
import functools
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.spark.test_advice import answers
from tests.support import swarm
from tests.support.servers import KINDS, Broker, wait_until
from tests.support.statistics import WHOLE, rows, stats_in
from tests.support.turns import until
from tests.support.wire import Client, Closed, Cluster

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.slow]

MSGS = 1200
CLIENTS = 24
ENOUGH = "One shard would be enough"
EVENLY = "`accept: handoff` places connections evenly"
UNEVEN = "Queue group workers on jobs is uneven"
UNHEARD = "Publish fewer messages that have no subscriber"
SUBJECTS = "Use fewer different subjects"
ONE_BROKER = "Report one broker at a time"
SPREAD = "Spread the work"
MORE_SHARDS = "More shards: 2 or more"
SLOW = "reader reads too slowly for flood: add readers, or a queue group"
OWN_CORES = "Give the broker its own cores"
DIED = "A shard died, or could not write its statistics: the log says why"
INCOMPLETE = "Some windows are incomplete"

WORKERS = 8
FLOOD_MSGS = 512  # of 64 KB


async def say(client: Client, operations: str) -> None:
    await client.talk(f"{operations}PING\r\n", expect_last="PONG\r\n")


async def act(publisher: Client, early: Client, late: Client, *, as_advised: bool) -> None:
    """Events, jobs and lost messages; as advised: both workers from the start, a subscriber, and few subjects."""
    await say(early, "SUB events.> 1\r\nSUB jobs workers 2\r\n")
    if as_advised:
        await say(late, "SUB jobs workers 2\r\nSUB lost 3\r\n")
    await say(publisher, "PUB jobs 1\r\nx\r\n" * MSGS)
    await say(late, "" if as_advised else "SUB jobs workers 2\r\n")
    await say(publisher, "PUB jobs 1\r\nx\r\nPUB lost 1\r\nx\r\n" * (MSGS // 2))
    await say(publisher, "".join(f"PUB events.{n % 3 if as_advised else n} 1\r\nx\r\n" for n in range(2 * MSGS)))


async def crowd(cluster: Cluster, shards: list[int]) -> list[Client]:
    """A client on each of these shards; -1: wherever the broker puts it."""
    return [await (cluster.client() if shard < 0 else cluster.client_on(shard)) for shard in shards]


async def recorded(place: Path, shards: int) -> None:
    """Wait until windows of all shards have all connections and messages."""

    def is_written() -> bool:
        found = [row for row in rows(place, hidden=True) if row["kind"] == "shard"]
        most = {row["shard"]: max(one["connections"] for one in found if one["shard"] == row["shard"]) for row in found}
        return len(most) == shards and sum(most.values()) >= CLIENTS

    await asyncio.to_thread(wait_until, is_written)


async def run(
    cluster_of: Callable[[Broker], Cluster], place: Path, kind: str, config: str, on: list[int], *, as_advised: bool
) -> None:
    """One broker, from start to end, with clients on these shards; the first publishes, the next two get it."""
    arguments = [*stats_in(place, "300ms"), "-m", "-1"]
    with Broker(KINDS[kind], arguments, config=config) as broker:
        clients = await crowd(cluster_of(broker), on)
        await act(clients[0], clients[1], clients[2], as_advised=as_advised)
        await recorded(place, len(await swarm.pids(broker)))
        for client in clients:
            client.close()


def advice(spark: Any, place: Path, broker: str = "") -> tuple[dict[str, str], dict[str, list[dict[str, Any]]]]:
    """(What is advised about these statistics, or those of one broker, and why; the figures)."""
    from gnatswarm.spark.advice import advise
    from gnatswarm.spark.jobs.report import collected
    from gnatswarm.spark.read import read_lines, split
    from gnatswarm.spark.transforms import matrix, queues, skew, subjects, trouble

    statistics = split(read_lines(spark, str(place))).of_broker(broker)
    subject, shard = statistics["subject"], statistics["shard"]
    found = collected(
        {
            "totals": trouble.totals(subject, statistics["gap"], shard),
            "unwanted": subjects.unwanted(subject),
            "queues": queues.balance(statistics["queue"]),
            "brokers": skew.per_broker(shard),
            "shards": skew.per_shard(shard),
            "over_time": skew.over_time(shard),
            "crossed": matrix.crossed_share(matrix.deliveries(shard, statistics["link"])),
            "slow": trouble.slow_consumers(statistics["slow"]),
            "gaps": trouble.gaps(statistics["gap"]),
            "torn": trouble.torn(subject, shard),
        }
    )
    return {one.what: one.figures for one in advise(answers(**found))}, found


def about(given: dict[str, str], what: str) -> bool:
    return any(one.startswith(what) for one in given)


async def test_what_is_advised_and_followed_makes_the_figure_better(
    spark: Any, cluster_of: Callable[[Broker], Cluster], tmp_path: Path
):
    badly = [1, 0, 0] + [0] * (CLIENTS - 3)
    await run(cluster_of, tmp_path / "before", "gnatswarm-2", "\n", badly, as_advised=False)
    given, before = await asyncio.to_thread(advice, spark, tmp_path / "before")
    for what in (ENOUGH, EVENLY, UNEVEN, UNHEARD, SUBJECTS):
        assert about(given, what), (what, given)
    assert before["crossed"][0]["share"] > 0.9 and "100% of the deliveries would no longer" in str(given)

    # One shard, both workers from the start, a subscriber of what nobody heard, and three subjects.
    await run(cluster_of, tmp_path / "one", "gnatswarm-1", "\n", [-1] * CLIENTS, as_advised=True)
    given, after = await asyncio.to_thread(advice, spark, tmp_path / "one")
    assert not any(about(given, what) for what in (ENOUGH, EVENLY, UNEVEN, UNHEARD, SUBJECTS)), given
    assert after["crossed"][0]["share"] == 0.0
    assert after["totals"][0]["unwanted_msgs"] == 0 < before["totals"][0]["unwanted_msgs"]
    assert after["queues"][0]["max_to_mean"] < before["queues"][0]["max_to_mean"]
    misses = [sum(row["cache_misses"] for row in figures["shards"]) for figures in (before, after)]
    assert misses[1] * 20 < misses[0]

    # Or two shards, and the router places the connections.
    config = "accept: handoff\n"
    await run(cluster_of, tmp_path / "evenly", "gnatswarm-2", config, [-1] * CLIENTS, as_advised=True)
    given, after = await asyncio.to_thread(advice, spark, tmp_path / "evenly")
    assert not about(given, EVENLY), given
    connections = [row["connections"] for row in after["shards"]]
    assert max(connections) - min(connections) <= 2 and sum(connections) >= CLIENTS


def broker_at(place: Path, kind: str = "gnatswarm-1", config: str = "\n", window: str = "300ms") -> Broker:
    return Broker(KINDS[kind], [*stats_in(place, window), "-m", "-1"], config=config)


async def work(broker: Broker, cluster: Cluster, on: list[int]) -> None:
    """A client on each of these shards, and each has its shard work as much."""
    for number, client in enumerate(await crowd(cluster, on)):
        for _ in range(100):
            await say(client, f"PUB own.{number} 1\r\nx\r\n" * 1000)


async def test_more_shards_and_work_spread_over_them_make_the_busiest_one_less_busy(
    spark: Any, cluster_of: Callable[[Broker], Cluster], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """How busy a shard is depends on who else has the processors: so any is busy, and processor time is compared."""
    monkeypatch.setattr("gnatswarm.spark.advice.BUSY", 0.0)
    runs = {
        "one": ("gnatswarm-1", "\n", [-1] * WORKERS),
        "badly": ("gnatswarm-2", "\n", [0] * WORKERS),
        "spread": ("gnatswarm-2", "accept: handoff\n", [-1] * WORKERS),
    }
    given, busiest = {}, {}
    for name, (kind, config, on) in runs.items():
        with broker_at(tmp_path / name, kind, config) as broker:
            await work(broker, cluster_of(broker), on)
        given[name], found = await asyncio.to_thread(advice, spark, tmp_path / name)
        assert found["totals"][0]["in_msgs"] == WORKERS * 100_000
        busiest[name] = max(row["cpu_s"] for row in found["shards"])
    assert about(given["one"], MORE_SHARDS) and not about(given["one"], SPREAD), given
    assert about(given["badly"], SPREAD) and not about(given["spread"], SPREAD), given
    assert busiest["spread"] < 0.8 * busiest["one"] and busiest["spread"] < 0.8 * busiest["badly"], busiest


async def flood(cluster: Cluster, readers: int, group: str) -> int:
    """Publish far more than one reader takes; how many messages arrived at all of them."""
    taken = 0
    may_take = [asyncio.Semaphore(0) for _ in range(readers)]

    async def read(client: Client, may: asyncio.Semaphore) -> None:
        nonlocal taken
        while True:
            await may.acquire()
            await client.read_frame(60.0)
            taken += 1

    reading = []
    for may in may_take:
        # A small buffer in its kernel: what it does not read stays with the broker.
        client = await cluster.client({"name": "reader"}, receive_bytes=16_384)
        await say(client, f"SUB flood {group} 1\r\n")
        reading.append(asyncio.create_task(read(client, may)))
    publisher = await cluster.client()
    for _ in range(FLOOD_MSGS // 16):
        await publisher.send(f"PUB flood 65536\r\n{'x' * 65_536}\r\n" * 16, 60.0)
        await publisher.flush(60.0)
        for may in may_take:
            for _ in range(4):  # of the 16
                may.release()
    for may in may_take:
        for _ in range(FLOOD_MSGS):
            may.release()
    await until(lambda: taken == FLOOD_MSGS or any(task.done() for task in reading))
    for task in reading:
        task.cancel()
    ended = await asyncio.gather(*reading, return_exceptions=True)
    assert all(isinstance(one, (Closed, ConnectionResetError, asyncio.CancelledError)) for one in ended), ended
    return taken


async def test_a_queue_group_of_readers_takes_what_one_was_too_slow_for(
    spark: Any, cluster_of: Callable[[Broker], Cluster], tmp_path: Path
):
    found, taken = {}, {}
    for name, readers, group in (("one", 1, ""), ("group", 8, "readers")):
        with broker_at(tmp_path / name, config="max_pending: 4MB\n") as broker:
            taken[name] = await flood(cluster_of(broker), readers, group)
        found[name] = await asyncio.to_thread(advice, spark, tmp_path / name)
    assert about(found["one"][0], SLOW) and found["one"][1]["slow"][0]["times"] == 1, found["one"]
    assert not about(found["group"][0], SLOW) and not found["group"][1]["slow"], found["group"]
    assert taken["one"] < taken["group"] == FLOOD_MSGS


def stop_for_a_second(broker: Broker, pid: int) -> None:
    until_s = time.monotonic() + 1.0
    swarm.signal_shard(broker, pid, signal.SIGSTOP)
    try:
        wait_until(lambda: time.monotonic() > until_s)
    finally:
        swarm.signal_shard(broker, pid, signal.SIGCONT)


async def test_a_broker_whose_processor_is_not_taken_away_is_less_late(
    spark: Any, cluster_of: Callable[[Broker], Cluster], tmp_path: Path
):
    latest = []
    for is_stopped in (True, False):
        place = tmp_path / str(is_stopped)
        with broker_at(place) as broker:
            client = await cluster_of(broker).client()
            pid = (await swarm.pids(broker))[0]
            if is_stopped:  # as where others have all cores for a second
                await asyncio.to_thread(stop_for_a_second, broker, pid)
            await say(client, "PUB a 1\r\nx\r\n")
        given, found = await asyncio.to_thread(advice, spark, place)
        assert about(given, OWN_CORES) or not is_stopped, given
        latest.append(max(row["lag_p99_us"] for row in found["over_time"]))
    assert latest[0] > 800_000 and latest[1] < latest[0] / 2, latest


def has_gap(place: Path) -> bool:
    return any(row["kind"] == "gap" for row in rows(place))


async def test_the_log_says_why_a_shard_died_and_without_that_all_messages_have_their_subject(
    spark: Any, cluster_of: Callable[[Broker], Cluster], tmp_path: Path
):
    found = []
    for is_killed in (True, False):
        place = tmp_path / str(is_killed)
        with broker_at(place, "gnatswarm-2", window=WHOLE) as broker:
            await say(await cluster_of(broker).client_on(1), "PUB a 1\r\nx\r\n" * MSGS)
            if is_killed:
                await swarm.kill(broker, 1)
                await asyncio.to_thread(broker.log.wait_line, r"Shard 1 died: killed by SIGKILL", 20.0)
                await asyncio.to_thread(wait_until, functools.partial(has_gap, place), 20.0)
        found.append(await asyncio.to_thread(advice, spark, place))
    (before, figures), (after, better) = found
    assert f"once; {MSGS:,} messages are counted without their subject" in before[DIED]
    assert not about(after, DIED) and not better["gaps"]
    assert figures["totals"][0]["in_msgs"] == better["totals"][0]["in_msgs"] == MSGS


async def test_a_file_that_was_copied_again_has_the_rest_of_its_window(
    spark: Any, cluster_of: Callable[[Broker], Cluster], tmp_path: Path
):
    with broker_at(tmp_path / "whole", window=WHOLE) as broker:
        client = await cluster_of(broker).client()
        await say(client, "".join(f"PUB rows.{n} 1\r\nx\r\n" for n in range(3 * MSGS)))
    (whole,) = (tmp_path / "whole").glob("date=*/hour=*/*.jsonl.zst")
    content = whole.read_bytes()
    found = []
    for name, size in (("failed", len(content) * 9 // 10), ("again", len(content))):
        copy = tmp_path / name / whole.relative_to(tmp_path / "whole")
        copy.parent.mkdir(parents=True)
        copy.write_bytes(content[:size])
        found.append(await asyncio.to_thread(advice, spark, tmp_path / name))
    (given, before), (later, after) = found
    assert about(given, INCOMPLETE) and len(before["torn"]) == 1, given
    assert not about(later, INCOMPLETE) and not after["torn"], later
    assert 0 < before["totals"][0]["in_msgs"] < after["totals"][0]["in_msgs"] == 3 * MSGS


async def test_one_broker_at_a_time_has_its_own_figures(
    spark: Any, cluster_of: Callable[[Broker], Cluster], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("gnatswarm.spark.advice.OVERLAP_US", 0)  # these two run for less than a minute
    with broker_at(tmp_path) as one, broker_at(tmp_path) as other:
        for broker, msgs in ((one, MSGS), (other, 2 * MSGS)):
            await say(await cluster_of(broker).client(), "PUB a 1\r\nx\r\n" * msgs)
        await asyncio.to_thread(wait_until, lambda: both_have_two_windows(tmp_path), 20.0)
    given, found = await asyncio.to_thread(advice, spark, tmp_path)
    assert about(given, ONE_BROKER) and found["totals"][0]["in_msgs"] == 3 * MSGS, given
    own = []
    for row in found["brokers"]:
        given, alone = await asyncio.to_thread(advice, spark, tmp_path, row["broker"])
        assert not about(given, ONE_BROKER), given
        own.append(alone["totals"][0]["in_msgs"])
    assert sorted(own) == [MSGS, 2 * MSGS]


def both_have_two_windows(place: Path) -> bool:
    counts = Counter(row["broker"] for row in rows(place, hidden=True) if row["kind"] == "shard")
    return len(counts) == 2 and min(counts.values()) >= 2
