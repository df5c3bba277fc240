"""Shards' own statistics equal what was done: message by message, over restarts, and with a killed shard its gap."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from gnatswarm.router.commands.operator_commands import exchange, find
from gnatswarm.router.supervision.operator_socket import RestartRequest, UpgradeRequest
from tests.support import swarm
from tests.support.pages import Pages
from tests.support.servers import Broker, session_pids, wait_until
from tests.support.statistics import WHOLE, Truth, Workload, added, rows, stats_in
from tests.support.wall_clock import WallClock
from tests.support.wire import Cluster

KINDS = pytest.mark.kinds("gnatswarm-1", "gnatswarm-2", "gnatswarm-4")
Start = Callable[..., Broker]
Of = Callable[[Broker], Cluster]


def by_subject(records: list[dict[str, Any]], column: str) -> Counter[str]:
    found: Counter[str] = Counter()
    for row in records:
        if row["kind"] == "subject":
            found[row["subject"]] += row[column]
    return +found


def assert_true(records: list[dict[str, Any]], truth: Truth) -> None:
    assert by_subject(records, "in_msgs") == truth.msgs
    assert by_subject(records, "in_bytes") == +truth.bytes
    assert by_subject(records, "deliveries") == +truth.deliveries
    assert by_subject(records, "unwanted_msgs") == +truth.unwanted
    assert added(records, "subject", "out_bytes")["out_bytes"] == truth.out_bytes
    assert_clients_add_up(records, truth)


def assert_clients_add_up(records: list[dict[str, Any]], truth: Truth) -> None:
    """The rows of clients have the numbers of each window, and with the gaps those of everything that was done."""
    total = {"in_msgs": truth.msgs.total(), "in_bytes": truth.bytes.total()}
    total |= {"out_msgs": truth.deliveries.total(), "out_bytes": truth.out_bytes}
    found = added(records, "client", *total) + added(records, "gap", *total)
    assert found == {name: n for name, n in total.items() if n}
    windows: dict[tuple[str, int, int], Counter[str]] = {}
    for row in records:
        window = windows.setdefault((row["boot"], row["file"], row["window_start_us"]), Counter())
        if row["kind"] == "client":
            window.update(in_msgs=row["in_msgs"], out_msgs=row["out_msgs"])
        elif row["kind"] == "subject":
            window.subtract({"in_msgs": row["in_msgs"], "out_msgs": row["deliveries"]})
        elif row["kind"] == "shard":
            window.subtract({"in_msgs": row["refused_msgs"]})
    assert not any(any(window.values()) for window in windows.values())


def assert_true_with_gaps(records: list[dict[str, Any]], truth: Truth) -> dict[str, Any]:
    """What subjects' rows lack is in the gaps of killed shards, and no more; the sums of these gaps."""
    gap = added(records, "gap", "in_msgs", "in_bytes", "out_msgs", "out_bytes")
    subjects = added(records, "subject", "in_msgs", "in_bytes", "deliveries", "out_bytes")
    assert subjects["in_msgs"] + gap["in_msgs"] == truth.msgs.total()
    assert subjects["in_bytes"] + gap["in_bytes"] == truth.bytes.total()
    assert subjects["deliveries"] + gap["out_msgs"] == truth.deliveries.total()
    assert subjects["out_bytes"] + gap["out_bytes"] == truth.out_bytes
    assert_clients_add_up(records, truth)
    return gap


def mounted(place: Path) -> bool:
    """A file system of 256 KiB there; False without the right."""
    words = ["mount", "-t", "tmpfs", "-o", "size=256k", "gnatswarm-test", str(place)]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


@KINDS
@pytest.mark.parametrize("window", ["150ms", WHOLE])
async def test_every_message_is_in_a_window(start_broker: Start, cluster_of: Of, tmp_path: Path, window: str):
    broker = start_broker(args=stats_in(tmp_path, window))
    workload = await Workload.on(cluster_of(broker))
    await workload.publish_limited()
    await workload.publish(3)
    broker.stop()
    records = rows(tmp_path)
    truth = workload.truth
    assert_true(records, truth)
    assert not [row for row in records if row["kind"] == "gap"]
    shards = added(records, "shard", "in_msgs", "out_msgs", "unwanted_msgs")
    assert shards["in_msgs"] == truth.msgs.total() and shards["out_msgs"] == truth.deliveries.total()
    # Every message is in the histogram of its own shard, and every frame in that of the shard it went to.
    assert sum(sum(row["widths"]) for row in records if row["kind"] == "shard") == truth.msgs.total()
    link = added(records, "link", "sent_msgs", "received_msgs", "received_deliveries")
    assert link["sent_msgs"] == link["received_msgs"] == added(records, "subject", "link_in_msgs")["link_in_msgs"]
    assert sum(sum(row["link_widths"]) for row in records if row["kind"] == "shard") == link["received_msgs"]
    reached = sum(
        width * n
        for row in records
        if row["kind"] == "shard"
        for column in ("widths", "link_widths")
        for width, n in enumerate(row[column])
    )
    assert reached == truth.deliveries.total()
    jobs = [row for row in records if row["kind"] == "queue"]
    assert sum(row["deliveries"] for row in jobs) == truth.deliveries["jobs"]
    assert len({row["cid"] for row in jobs}) == 4


@pytest.mark.kinds("gnatswarm-2")
async def test_a_shard_counts_no_subscriptions_of_the_brokers_own(start_broker: Start, cluster_of: Of, tmp_path: Path):
    config = "system_account: SYS\naccounts { SYS { users: [ {user: s, password: s} ] } }"
    broker = start_broker(args=stats_in(tmp_path), config=config)
    client = await cluster_of(broker).client_on(0, {"user": "s", "pass": "s"})
    await client.talk("SUB one 1\r\nPING\r\n", expect="PONG\r\n")
    broker.stop()
    counts = [row["subscriptions"] for row in rows(tmp_path) if row["kind"] == "shard"]
    assert len(counts) == 2 and sum(counts) <= 1  # the client may have gone before the window ended


@pytest.mark.kinds("gnatswarm-2")
@pytest.mark.parametrize("window", ["150ms", WHOLE])
async def test_a_signal_to_the_whole_process_group_loses_no_window(
    start_broker: Start, cluster_of: Of, tmp_path: Path, window: str
):
    """As `timeout` sends it, and systemd with KillMode=control-group: to the router, and then to all processes."""
    broker = start_broker(args=stats_in(tmp_path, window))
    workload = await Workload.on(cluster_of(broker))
    await workload.publish(3)
    broker.send_signal(signal.SIGTERM)
    with contextlib.suppress(ProcessLookupError):  # it may be gone by now
        os.killpg(broker.pid, signal.SIGTERM)
    assert broker.wait_exit() == 1
    records = rows(tmp_path)
    assert_true(records, workload.truth)
    assert not [row for row in records if row["kind"] == "gap"]
    assert "killed by" not in broker.log.text


@pytest.mark.kinds("gnatswarm-2")
async def test_a_shard_leaves_signals_to_the_router(start_broker: Start, cluster_of: Of):
    broker = start_broker()
    pids = await swarm.pids(broker)
    everybody = set(session_pids(broker.pid)) - {broker.pid}
    assert everybody > set(pids.values())  # keeper and router too
    for pid in everybody:
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGINT)
    await swarm.kill(broker, 1)  # the keeper forks another
    await swarm.client_on(cluster_of(broker), 1)
    await swarm.client_on(cluster_of(broker), 0)
    assert (await swarm.pids(broker))[0] == pids[0]
    assert "starting them by exec" not in broker.log.text


@pytest.mark.kinds("gnatswarm-2")
async def test_restarts_and_connections_that_come_and_go_lose_nothing(
    start_broker: Start, cluster_of: Of, tmp_path: Path
):
    truth = Truth()
    for _ in range(2):
        broker = start_broker(args=stats_in(tmp_path, "200ms"))
        for _ in range(2):
            cluster = cluster_of(broker)
            workload = await Workload.on(cluster, truth)
            await workload.publish()
            await workload.leave()
        broker.stop()
    records = rows(tmp_path)
    assert_true(records, truth)
    assert added(records, "queue", "deliveries")["deliveries"] == truth.deliveries["jobs"]
    assert len({row["broker"] for row in records}) == 2


@pytest.mark.kinds("gnatswarm-2")
@pytest.mark.parametrize("window", ["150ms", WHOLE])
async def test_shards_that_come_and_go_lose_nothing(start_broker: Start, cluster_of: Of, tmp_path: Path, window: str):
    """What clients did, what they received, what monitoring says and what is written is all the same."""
    truth, received = Truth(), 0
    broker = start_broker(args=[*stats_in(tmp_path, window), "-m", "-1"])
    for shards in (2, 4, 1, 3):
        await swarm.scale(broker, shards)
        workload = await Workload.on(cluster_of(broker), truth, shards)
        await workload.publish()
        received += await workload.leave()
    varz = await asyncio.to_thread(Pages.of(broker).json, "/varz")
    broker.stop()
    records = rows(tmp_path)
    assert_true(records, truth)
    assert {row["shard"] for row in records} == {0, 1, 2, 3}
    assert not [row for row in records if row["kind"] == "gap"]
    assert received == truth.deliveries.total() == varz["out_msgs"]
    assert (varz["in_msgs"], varz["in_bytes"], varz["out_bytes"]) == (
        truth.msgs.total(), truth.bytes.total(), truth.out_bytes,
    )  # fmt: skip


@pytest.mark.kinds("gnatswarm-2")
async def test_what_clients_did_before_they_moved_is_in_their_rows(start_broker: Start, cluster_of: Of, tmp_path: Path):
    broker = start_broker(args=stats_in(tmp_path))
    cluster = cluster_of(broker)
    reader, writer = [await swarm.client_on(cluster, 1, {"name": name}) for name in ("reader", "writer")]
    await reader.talk("SUB seldom.* 1\r\nPING\r\n", expect="PONG\r\n")
    for subject in ("seldom.before", "seldom.after"):
        await writer.send(f"PUB {subject} 2\r\nhi\r\n" * 3)
        await writer.flush()
        await swarm.scale(broker, 1)  # the second time there is nobody to move
    broker.stop()
    clients = [row for row in rows(tmp_path) if row["kind"] == "client" and row["name"]]
    said = Counter({one["subject"]: 0 for row in clients for one in row["published"]})
    heard = Counter({row["name"]: 0 for row in clients})
    for row in clients:
        said.update({one["subject"]: one["msgs"] for one in row["published"]})
        heard.update({row["name"]: sum(one["msgs"] for one in row["received"])})
    assert said == {"seldom.before": 3, "seldom.after": 3}
    assert heard == {"reader": 6, "writer": 0}
    assert not [row for row in rows(tmp_path) if row["kind"] == "client" and row["user"] == "*rest*"]


@pytest.mark.kinds("gnatswarm-2")
@pytest.mark.parametrize("window", ["150ms", WHOLE])
async def test_a_killed_shard_leaves_a_gap_with_its_totals(
    start_broker: Start, cluster_of: Of, tmp_path: Path, window: str
):
    broker = start_broker(args=stats_in(tmp_path, window))
    workload = await Workload.on(cluster_of(broker))
    await workload.publish(2)
    truth = workload.truth
    if window == "150ms":  # what is in a window survives; the gap has the rest, be it little
        await asyncio.to_thread(
            wait_until,
            lambda: added(rows(tmp_path, hidden=True), "subject", "in_msgs")["in_msgs"] == truth.msgs.total(),
        )
    await swarm.kill(broker, 1)
    await asyncio.to_thread(
        wait_until, lambda: window == "150ms" or any(row["kind"] == "gap" for row in rows(tmp_path)), 10.0
    )
    await swarm.client_on(cluster_of(broker), 1)
    broker.stop()
    records = rows(tmp_path)
    gap = assert_true_with_gaps(records, truth)
    if window == WHOLE:
        (row,) = [row for row in records if row["kind"] == "gap"]
        assert row["shard"] == 1 and row["in_msgs"] == truth.msgs.total() // 2 and row["reason"]
    else:
        assert gap["in_msgs"] == 0


@pytest.mark.kinds("gnatswarm-2")
async def test_brokers_that_share_a_directory_keep_their_own_and_finish_what_a_dead_one_left(
    start_broker: Start, cluster_of: Of, tmp_path: Path
):
    """Nobody takes a file that somebody still writes for one that was left behind."""
    args = stats_in(tmp_path, "150ms")
    living, dying = start_broker(args=args), start_broker(args=args)
    ids = {broker: broker.log.wait_line(r"ID:\s+(\w+)")[1] for broker in (living, dying)}
    workloads = {broker: await Workload.on(cluster_of(broker)) for broker in (living, dying)}
    truths = {broker: workload.truth for broker, workload in workloads.items()}
    for workload in workloads.values():
        await workload.publish()

    def assert_whole(broker: Broker) -> None:
        assert_true([row for row in rows(tmp_path) if row["broker"] == ids[broker]], truths[broker])

    def msgs(broker: Broker, *, hidden: bool) -> int:
        records = [row for row in rows(tmp_path, hidden=hidden) if row["broker"] == ids[broker]]
        return added(records, "subject", "in_msgs")["in_msgs"]

    def are_written() -> bool:
        return all(msgs(broker, hidden=True) == truth.msgs.total() for broker, truth in truths.items())

    await asyncio.to_thread(wait_until, are_written)
    dying.kill()  # all of its processes at once: nobody is left to finish what is open
    assert msgs(dying, hidden=False) < truths[dying].msgs.total()
    # A third one finds files of the dead one to finish, and files of the living one.
    third = start_broker(args=args)
    await asyncio.to_thread(wait_until, lambda: msgs(dying, hidden=False) == truths[dying].msgs.total())
    await workloads[living].publish()
    living.stop()
    third.stop()
    assert_whole(living)
    assert_whole(dying)


@pytest.mark.kinds("gnatswarm-2")
@pytest.mark.parametrize("ahead_s", [7200.0, -7200.0, -40 * 86400.0])
async def test_a_gap_has_what_is_missing_though_the_clock_was_set_before(
    start_broker: Start, cluster_of: Of, tmp_path: Path, ahead_s: float
):
    clock = WallClock(tmp_path)
    place = tmp_path / "stats"
    broker = start_broker(args=stats_in(place, "300ms"), environment=clock.environment)
    workload = await Workload.on(cluster_of(broker))
    truth = workload.truth

    def published() -> int:
        return added(rows(place, hidden=True), "subject", "in_msgs")["in_msgs"]

    await workload.publish()
    await asyncio.to_thread(wait_until, lambda: published() == truth.msgs.total())
    clock.set(ahead_s)
    set_us = clock.now_us()
    # Until there are windows of the new time, and then some messages more.
    while not any(abs(row["window_start_us"] - set_us) < 600_000_000 for row in rows(place, hidden=True)):
        await workload.publish()
    await workload.publish()
    await swarm.kill(broker, 1)
    await swarm.client_on(cluster_of(broker), 1)
    broker.stop()
    records = rows(place)
    assert_true_with_gaps(records, truth)


@pytest.mark.kinds("gnatswarm-1")
async def test_a_directory_that_cannot_be_written_pauses_statistics_alone(
    start_broker: Start, cluster_of: Of, tmp_path: Path
):
    place = tmp_path / "stats"
    broker = start_broker(args=stats_in(place, "100ms"))
    workload = await Workload.on(cluster_of(broker))
    await workload.publish()
    await asyncio.to_thread(wait_until, lambda: bool(rows(place, hidden=True)))
    aside = tmp_path / "aside"
    os.rename(place, aside)
    place.write_text("in the way")
    # The file that is open goes on under its new name; SIGTERM makes the last attempt.
    await workload.publish()
    broker.stop(signal.SIGTERM)
    assert place.read_text() == "in the way"


@pytest.mark.kinds("gnatswarm-1")
async def test_a_directory_that_was_never_there_is_said_once(start_broker: Start, cluster_of: Of, tmp_path: Path):
    place = tmp_path / "file" / "stats"
    place.parent.write_text("in the way")
    broker = start_broker(args=stats_in(place, "100ms"))
    workload = await Workload.on(cluster_of(broker))
    await workload.publish(2)
    await asyncio.to_thread(broker.log.wait_line, "Statistics pause")
    await asyncio.to_thread(place.parent.unlink)
    await asyncio.to_thread(broker.log.wait_line, "Statistics go on: 0 windows were lost")
    broker.stop()
    assert_true(rows(place), workload.truth)
    assert broker.log.text.count("Statistics pause") == 1


@contextlib.asynccontextmanager
async def small_disk(place: Path) -> AsyncIterator[Path]:
    """A file system of its own there."""
    await asyncio.to_thread(place.mkdir)
    if not await asyncio.to_thread(mounted, place):
        pytest.skip("no right to mount a file system here")
    try:
        yield place
    finally:
        await asyncio.to_thread(subprocess.run, ["umount", "--lazy", str(place)], check=True)


def fill(file_name: Path) -> None:
    """Leave no room on its disk."""
    with file_name.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass


@pytest.mark.kinds("gnatswarm-1")
async def test_a_disk_that_is_full_pauses_statistics_until_there_is_room(
    start_broker: Start, cluster_of: Of, tmp_path: Path
):
    async with small_disk(tmp_path / "small") as place:
        filler = place / "filler"
        broker = start_broker(args=stats_in(place / "stats", "100ms"))
        workload = await Workload.on(cluster_of(broker))
        await workload.publish()
        await asyncio.to_thread(wait_until, lambda: bool(rows(place / "stats", hidden=True)))
        fill(filler)
        await workload.publish(2)
        await asyncio.to_thread(broker.log.wait_line, "Statistics pause: cannot write to .*: No space left on device")
        await workload.publish(2)  # the broker goes on
        filler.unlink()
        await asyncio.to_thread(broker.log.wait_line, "Statistics go on: 0 windows were lost", 30.0)
        await workload.publish()
        broker.stop()
        assert broker.log.text.count("Statistics pause") == 1
        assert_true(rows(place / "stats"), workload.truth)


@pytest.mark.kinds("gnatswarm-2")
async def test_what_shards_cannot_write_that_are_replaced_while_the_disk_is_full_is_told(
    start_broker: Start, cluster_of: Of, tmp_path: Path
):
    """The metrics tell it at once, and the statistics when there is room again."""
    async with small_disk(tmp_path / "small") as place:
        filler = place / "filler"
        broker = start_broker(args=[*stats_in(place / "stats", "100ms"), "-m", "-1"])
        pages = Pages.of(broker)
        workload = await Workload.on(cluster_of(broker))
        await workload.publish()
        await asyncio.to_thread(wait_until, lambda: bool(rows(place / "stats", hidden=True)))
        fill(filler)
        await asyncio.to_thread(broker.log.wait_line, "Statistics pause: cannot write to .*: No space left on device")
        await workload.publish(2)
        msgs = sum(shard["in_msgs"] for shard in pages.json("/shardz?links=0")["shards"])
        unwritten = re.findall(r"^gnatswarm_statistics_unwritten_messages{.*} (\d+)", pages.get("/metrics").text, re.M)
        assert 0 < sum(map(int, unwritten)) <= msgs
        reply = await asyncio.to_thread(exchange, find(broker.pid, broker.port), RestartRequest(), 30.0)
        assert reply.text.startswith("2 shards restarted"), reply.error
        await asyncio.to_thread(
            broker.log.wait_line, "no gap row for shard 1: No space left on device; it is tried again"
        )
        (lost,) = re.findall(r"^gnatswarm_statistics_lost_messages_total (\d+)", pages.get("/metrics").text, re.M)
        filler.unlink()
        broker.stop()
        gap = assert_true_with_gaps(rows(place / "stats"), workload.truth)
        assert gap["in_msgs"] == int(lost) > 0


@pytest.mark.kinds("gnatswarm-2")
@pytest.mark.parametrize("how", ["killed", "upgraded"])
async def test_gap_rows_that_wait_for_room_are_handed_to_the_next_router(
    start_broker: Start, cluster_of: Of, tmp_path: Path, how: str
):
    async with small_disk(tmp_path / "small") as place:
        filler = place / "filler"
        broker = start_broker(args=[*stats_in(place / "stats", "100ms"), "-m", "-1"])
        workload = await Workload.on(cluster_of(broker))
        await workload.publish()
        await asyncio.to_thread(wait_until, lambda: bool(rows(place / "stats", hidden=True)))
        fill(filler)
        await asyncio.to_thread(broker.log.wait_line, "Statistics pause: cannot write to .*: No space left on device")
        await workload.publish(2)
        await swarm.kill(broker, 1)
        await asyncio.to_thread(broker.log.wait_line, "no gap row for shard 1: No space left on device")
        seen = len(broker.log.lines)
        if how == "killed":
            router = (await asyncio.to_thread(swarm.status, broker))["router_pid"]
            swarm.signal_shard(broker, router)
            await asyncio.to_thread(broker.log.wait_line, "The router died: killed by SIGKILL", 20.0, seen)
        else:
            newer = tmp_path / "gnatswarm"
            running = "from gnatswarm.router.cli import main\nsys.exit(main())\n"
            newer.write_text(f"#!{sys.executable} -P\nimport sys\n{running}")
            newer.chmod(0o755)
            with contextlib.suppress(ConnectionAbortedError, ConnectionResetError):
                request = UpgradeRequest(str(newer))
                await asyncio.to_thread(exchange, find(broker.pid, broker.port), request, 60.0)
            await asyncio.to_thread(broker.log.wait_line, "upgraded to", 60.0, seen)
        page = await asyncio.to_thread(lambda: Pages.of(broker).get("/metrics").text)
        (lost,) = re.findall(r"^gnatswarm_statistics_lost_messages_total (\d+)", page, re.M)
        assert int(lost) > 0
        filler.unlink()
        await asyncio.to_thread(broker.log.wait_line, "the gap row for shard 1 is written", 20.0, seen)
        broker.stop()
        gap = assert_true_with_gaps(rows(place / "stats"), workload.truth)
        assert gap["in_msgs"] == int(lost)
        assert "messages are in no statistics" not in broker.log.text


def modes(top: Path) -> dict[Path, int]:
    """Of a directory and all in it."""
    return {path: path.stat().st_mode & 0o777 for path in (top, *top.rglob("*"))}


@pytest.mark.kinds("gnatswarm-2")
async def test_statistics_are_readable_for_their_user_alone(start_broker: Start, cluster_of: Of, tmp_path: Path):
    """Windows and the gap row of a killed shard, in directories that were there and that were not."""
    os.chmod(tmp_path, 0o755)
    place = tmp_path / "made" / "stats"
    before = os.umask(0)
    try:
        broker = start_broker(args=stats_in(place))
    finally:
        os.umask(before)
    cluster = cluster_of(broker)
    await (await Workload.on(cluster)).publish()
    await swarm.kill(broker, 1)
    await asyncio.to_thread(wait_until, lambda: list(place.glob("date=*/hour=*/*-gap-*")) != [])
    broker.stop()
    found = modes(place.parent)
    files = {path for path in found if path.is_file()}
    assert len(files) > 1
    assert {found[path] for path in files} == {0o600}
    assert {found[path] for path in found.keys() - files} == {0o700}
    assert modes(tmp_path)[tmp_path] == 0o755


@pytest.mark.kinds("gnatswarm-1")
async def test_without_statistics_nothing_is_written(start_broker: Start, cluster_of: Of, tmp_path: Path):
    broker = start_broker(args=[*stats_in(tmp_path, "100ms"), "--no-stats"])
    await (await Workload.on(cluster_of(broker))).publish()
    broker.stop()
    assert os.listdir(tmp_path) == []


@pytest.mark.slow
@pytest.mark.kinds("gnatswarm-1")
async def test_ten_million_different_subjects_need_no_more_memory_than_two(
    start_broker: Start, cluster_of: Of, tmp_path: Path
):
    broker = start_broker(args=stats_in(tmp_path, "1s"))
    cluster = cluster_of(broker)
    reader, publisher = await cluster.client(), await cluster.client()
    await reader.talk("SUB device.> 1\r\nPING\r\n", expect_last="PONG\r\n")
    pid = (await swarm.pids(broker))[0]
    resident = {}

    async def read_on() -> None:
        loop = asyncio.get_running_loop()
        while await loop.sock_recv(reader.sock, 1 << 20):
            pass

    reading = asyncio.ensure_future(read_on())
    for start in range(0, 10_000_000, 20_000):
        lines = "".join(f"PUB device.{i}.status 2\r\nok\r\n" for i in range(start, start + 20_000))
        await publisher.talk(f"{lines}PING\r\n", expect_last="PONG\r\n", deadline_s=60.0)
        resident[start + 20_000] = swarm.resident_bytes(pid)
    reading.cancel()
    broker.stop()
    shown = {n: resident[n] >> 20 for n in resident if n % 1_000_000 == 0}
    print("MiB resident after so many subjects:", shown)
    late = max(size for n, size in resident.items() if n > 2_000_000)
    assert late < 1.1 * resident[2_000_000], shown
    records = rows(tmp_path)
    assert added(records, "subject", "in_msgs")["in_msgs"] == 10_000_000
    windows = Counter(row["window_start_us"] for row in records if row["kind"] == "subject")
    assert max(windows.values()) <= 4096 + 1
