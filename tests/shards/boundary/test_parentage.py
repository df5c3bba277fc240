"""What a process gives back of files that it has read."""

from __future__ import annotations

import mmap
import os
import re
import signal
import socket
import tempfile

from gnatswarm.shards.boundary import parentage
from tests.support.servers import HOST, Broker, Kind, session_pids, wait_until


def resident_kb(pid: int | str) -> int:
    """Of files that this process only reads: what is in its memory."""
    with open(f"/proc/{pid}/smaps") as stream:
        mappings = re.split(r"(?m)^(?=[0-9a-f]+-[0-9a-f]+ )", stream.read())
    total = 0
    for mapping in mappings:
        if re.match(r"\S+ r-[-x]p \S+ \S+ \S+ +/", mapping) and re.search(r"(?m)^Anonymous: +0 kB", mapping):
            found = re.search(r"(?m)^Rss: +(\d+)", mapping)
            assert found is not None
            total += int(found[1])
    return total


def test_pages_of_files_are_given_back_and_come_again() -> None:
    with tempfile.TemporaryFile() as file:
        file.write(b"read" * 1_000_000)
        file.flush()
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ, flags=mmap.MAP_PRIVATE) as read:
            assert read.find(b"x") == -1
            before = resident_kb("self")
            given = parentage.forget_files()
            assert given >= 4_000_000
            assert resident_kb("self") < before - 3_000
            assert read[-4:] == b"read"


def test_pages_that_were_written_and_those_of_memory_stay() -> None:
    with tempfile.TemporaryFile() as file:
        file.write(b"read" * 4096)
        file.flush()
        written = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        with written, mmap.mmap(-1, 8192) as memory:
            written[:4] = memory[:4] = b"keep"
            parentage.forget_files()
            assert (written[:4], memory[:4], written[4:8]) == (b"keep", b"keep", b"read")


def test_a_keeper_at_rest_gives_back_its_files_and_still_starts_shards() -> None:
    with Broker(Kind("gnatswarm-1", shards=1), by_fork=False) as broker:
        (shard,) = shard_pids(broker)
        most = resident_kb(shard)
        wait_until(lambda: resident_kb(broker.pid) < most / 2)
        os.kill(shard, signal.SIGKILL)
        wait_until(lambda: shard_pids(broker) not in ([], [shard]))
        with socket.create_connection((HOST, broker.port)) as client:
            assert client.recv(4) == b"INFO"


def shard_pids(broker: Broker) -> list[int]:
    return [pid for pid in session_pids(broker.pid) if _name(pid) == "gnat-shard"]


def _name(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm") as stream:
            return stream.read().strip()
    except OSError:
        return ""
