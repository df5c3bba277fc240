"""The gap row: what a dead shard had counted and none of its windows on disk contains.

It is the shared page's totals minus the sums of the shard's windows on disk; the subjects are lost. A shard that ended
normally leaves no difference, and no row. Called by the supervisor when a process was reaped.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gnatswarm.router.supervision.shard_process import ShardProcess
    from gnatswarm.shards.boundary.page import Page
    from gnatswarm.shards.boundary.records import GapRecord

log = logging.getLogger("gnatswarm.stats")


def note_gap(page: Page, process: ShardProcess, server_id: str, directory: str, reason: str) -> threading.Thread | None:
    """Write the row in a thread, because a disk may be slow. None: nothing is missing, or no row can be written."""
    until_us, missing = page.unrecorded(process.shard)
    if not any(missing):
        return None
    start_us = max(until_us, process.booted_us)
    names = ("in_msgs", "in_bytes", "out_msgs", "out_bytes", "link_out_msgs", "link_in_msgs")
    try:
        from gnatswarm.shards.boundary import records  # rarely needed
    except OSError as error:  # no descriptors
        log.error("Statistics: no gap row for shard %d: %s", process.shard, error.strerror)
        return None

    row = records.GapRecord(
        version=records.RECORDS_VERSION,
        broker=server_id,
        boot=process.boot_id,
        shard=process.shard,
        file=0,
        window_start_us=start_us,
        window_us=max(0, time.time_ns() // 1000 - start_us),
        reason=reason,
        **dict(zip(names, missing, strict=True)),
    )
    thread = threading.Thread(target=_write, args=(directory, row), name="gap row")
    try:
        thread.start()
    except RuntimeError as error:  # there may be no more threads
        log.error("Statistics: no gap row for shard %d: %s", process.shard, error)
        return None
    return thread


def _write(directory: str, row: GapRecord) -> None:
    import msgspec

    from gnatswarm.shards.boundary import statfile

    name = statfile.file_name(row.broker, f"{row.shard:02d}-gap", row.boot, 0)
    try:
        statfile.adopt_orphans(directory)  # finish its last file, even if the shard is not restarted
        file = statfile.StatFile(directory, name, row.window_start_us)
        try:
            file.append([msgspec.json.encode(row) + b"\n"])
        finally:
            file.finish()
    except OSError as error:
        log.error("Statistics: no gap row for shard %d: %s", row.shard, error.strerror)
