"""The gap row: what a shard that died had counted, and no window of it has.

The totals are the shared page's, less what the shard's windows on disk add up to; the subjects are lost. A shard that
ended in order leaves no difference, and no row. Called by the supervisor when a process was reaped.
"""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from router.shard_process import ShardProcess
    from shards.page import Page
    from shards.records import GapRecord

log = logging.getLogger("gnatswarm.stats")


def note_gap(page: Page, process: ShardProcess, directory: str, reason: str) -> threading.Thread | None:
    """Writes the row, if there is one to write, in a thread: a disk may take its time. None: nothing is missing."""
    boot = process.boot
    until_us, missing = page.unrecorded(boot.shard)
    if not any(missing):
        return None
    start_us = max(until_us, process.booted_us)
    names = ("in_msgs", "in_bytes", "out_msgs", "out_bytes", "link_out_msgs", "link_in_msgs")
    from shards import records  # what most brokers never need

    row = records.GapRecord(
        version=records.RECORDS_VERSION,
        broker=boot.server_id,
        boot=boot.boot_id,
        shard=boot.shard,
        file=0,
        window_start_us=start_us,
        window_us=max(0, time.time_ns() // 1000 - start_us),
        reason=reason,
        **dict(zip(names, missing, strict=True)),
    )
    thread = threading.Thread(target=_write, args=(Path(directory), row), name="gap row")
    thread.start()
    return thread


def _write(directory: Path, row: GapRecord) -> None:
    import msgspec

    from shards import statfile

    name = statfile.file_name(row.broker, f"{row.shard:02d}-gap", row.boot, 0)
    try:
        statfile.adopt_orphans(directory)  # the windows that its last file has, even if the shard does not come back
        file = statfile.StatFile(directory, name, row.window_start_us)
        try:
            file.append(msgspec.json.encode(row) + b"\n")
        finally:
            file.finish()
    except OSError as error:
        log.error("Statistics: no gap row for shard %d: %s", row.shard, error.strerror)
