"""Any number of statistics rows, in files as shards write them: `python -m tests.bench.statistics_rows DIR`.

Each window of each shard: its subjects (Zipf-like weights, of them one row of inboxes and one `*other*`), a queue
group, links, the shard's own row; six windows of ten seconds a file, a zstd frame each. Shards' rows are the sums of
their subjects', and links' sent equal received. What they add up to is printed as JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from gnatswarm.shards.boundary import records, statfile

WINDOW_US = 10_000_000
WINDOWS_PER_FILE = 6
START_US = 1_770_000_000_000_000  # 2026-02-02 02:40 UTC
MEMBERS = 4
SERVICES = 50  # that publish, and as many that listen to them

_encode = msgspec.json.Encoder().encode


def window_lines(window: dict[str, Any], subjects: int, shards: int, turn: int, totals: Counter[str]) -> list[bytes]:
    """One window of one shard."""
    lines = []
    total: Counter[str] = Counter()
    for i in range(subjects):
        # Few are heavy, most are light; who is heavy stays so, and the numbers change with the window.
        msgs = 40_000 // (i + 1) + (i * 7 + turn * 13) % 5 + 1
        width = 1 + i % 7
        counts: dict[str, Any] = {
            "in_msgs": msgs,
            "in_bytes": msgs * 64,
            "deliveries": msgs * width,
            "out_bytes": msgs * width * 64,
            "link_out_msgs": msgs if i % 3 == 0 and shards > 1 else 0,
            "link_in_msgs": msgs if i % 3 == 0 and shards > 1 else 0,
            "unwanted_msgs": 0,
            "cache_misses": 1 if turn == 0 else 0,
        }
        total.update(counts)
        name = f"plant.{i % 40}.line.{i % 7}.sensor.{i}" if i > 1 else ("_INBOX.>", records.OTHER)[i]
        lines.append(
            _encode(
                records.SubjectRecord(
                    **window, account="$G", subject=name, is_folded=i < 2, widest=width, error_msgs=0, **counts
                )
            )
        )
    for cid in range(MEMBERS):
        lines.append(
            _encode(
                records.QueueRecord(
                    **window, account="$G", subject="plant.*.jobs", queue="workers", cid=cid, sid="1", deliveries=100
                )
            )
        )
    for peer in range(shards):
        if peer != window["shard"]:
            sent = total["link_out_msgs"] // (shards - 1)
            link: dict[str, Any] = {
                "peer": peer, "sent_msgs": sent, "sent_bytes": sent * 64, "received_msgs": sent,
                "received_bytes": sent * 64, "received_deliveries": sent, "peak_pending_bytes": 4096, "paused_us": 0,
            }  # fmt: skip
            lines.append(_encode(records.LinkRecord(**window, **link)))
    shard: dict[str, Any] = {
        "window_nominal_us": WINDOW_US, "connections": 100, "subscriptions": 1000, "out_msgs": total["deliveries"],
        "subjects": subjects, "widths": (0, total["in_msgs"]), "link_widths": (0, total["link_in_msgs"]),
        "lag_p50_us": 80, "lag_p99_us": 900, "lag_max_us": 2500, "cpu_s": 4.0, "resident_bytes": 60_000_000,
        "slow_consumers": 0, "stalls": 0, "lost_windows": 0, "in_msgs": total["in_msgs"],
        "in_bytes": total["in_bytes"], "out_bytes": total["out_bytes"], "unwanted_msgs": 0,
        "link_out_msgs": total["link_out_msgs"], "link_in_msgs": total["link_in_msgs"],
        "cache_misses": total["cache_misses"], "refused_msgs": 0, "refused_bytes": 0,
    }  # fmt: skip
    lines.append(_encode(records.ShardRecord(**window, **shard)))
    totals.update({**total, "rows": len(lines), "bytes": sum(map(len, lines)) + len(lines)})
    return lines


def client_lines(window: dict[str, Any], clients: int, shards: int, totals: Counter[str]) -> list[bytes]:
    """Clients of one shard in one window: of ten, one publishes to two subjects, and nine of another service listen."""
    lines = []
    for i in range(clients):
        group, is_publisher = i // 10 % SERVICES, i % 10 == 0
        cid = 1 + i * shards + window["shard"]
        subjects = [f"svc{group}.new", f"svc{group}.done"]
        received: tuple[records.Received, ...] = ()
        published: tuple[records.Published, ...] = ()
        if is_publisher:
            published = tuple(records.Published(subject=one, msgs=9, bytes=576, requests=0) for one in subjects)
        else:
            received = (records.Received(subject=f"svc{group}.*", queue="workers", msgs=2),)
        msgs = sum(one.msgs for one in published), sum(one.msgs for one in received)
        name = f"{'from' if is_publisher else 'to'}{group}-{i}"
        lines.append(
            _encode(
                records.ClientRecord(
                    **window, account="$G", user="", name=name, lib="bench",
                    ip="10.0.0.1", cid=cid, connections=1, opened=0, closed=0, in_msgs=msgs[0], in_bytes=msgs[0] * 64,
                    out_msgs=msgs[1], out_bytes=msgs[1] * 64, published=published, received=received,
                )
            )
        )  # fmt: skip
        totals.update(client_in_msgs=msgs[0], client_out_msgs=msgs[1], client_rows=1)
    totals.update(rows=len(lines), bytes=sum(map(len, lines)) + len(lines))
    return lines


def write(
    directory: Path,
    rows: int,
    *,
    brokers: int = 1,
    shards: int = 8,
    subjects: int = 2000,
    clients: int = 0,
    broker_names: str = "BROKER",
) -> Counter[str]:
    """At least so many rows; what they add up to."""
    totals: Counter[str] = Counter()
    turn = 0
    while totals["rows"] < rows:
        for broker in range(brokers):
            for shard in range(shards):
                number = turn // WINDOWS_PER_FILE + 1
                name = f"{broker_names}{broker:08d}", shard, f"boot{broker:04d}{shard:02d}"
                file = None
                for k in range(turn, turn + WINDOWS_PER_FILE):
                    if totals["rows"] >= rows:
                        break
                    window: dict[str, Any] = {
                        "version": records.RECORDS_VERSION, "broker": name[0], "boot": name[2], "shard": shard,
                        "file": number, "window_start_us": START_US + k * WINDOW_US, "window_us": WINDOW_US + k % 50,
                    }  # fmt: skip
                    if file is None:
                        start_us = START_US + k * WINDOW_US
                        file = statfile.StatFile(directory, statfile.file_name(*name, number), start_us)
                    lines = client_lines(window, clients, shards, totals)
                    lines += window_lines(window, subjects, shards, k, totals)
                    file.append([b"\n".join(lines) + b"\n"])
                    totals["windows"] += 1
                if file is not None:
                    totals["files"] += 1
                    totals["stored_bytes"] += file.size_bytes
                    file.finish()
        turn += WINDOWS_PER_FILE
    return totals


def main() -> int:
    """The program; its exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--brokers", type=int, default=1)
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--subjects", type=int, default=2000, help="per shard and window")
    parser.add_argument("--clients", type=int, default=0, help="per shard and window")
    asked = parser.parse_args()
    done = write(
        asked.directory, asked.rows, brokers=asked.brokers, shards=asked.shards, subjects=asked.subjects,
        clients=asked.clients,
    )  # fmt: skip
    print(json.dumps(done))
    return 0


if __name__ == "__main__":
    sys.exit(main())
