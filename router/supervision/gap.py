"""Gap rows: what dead shards had counted and none of their windows on disk contains.

Each is the shared page's totals minus the sums of the shard's windows on disk; the subjects are lost. A shard that
ended normally leaves no difference, and no row, unless its disk was full. What cannot be written is kept, one row for
each shard, and tried again: until then nothing on the disk says what is missing, and the record for another router has
it. Called by the supervisor when a process was reaped, and again and again.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from gnatswarm.router.supervision.record import GapsRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gnatswarm.router.supervision.shard_process import ShardProcess
    from gnatswarm.shards.boundary.page import Page
    from gnatswarm.shards.boundary.records import GapRecord, Record

log = logging.getLogger("gnatswarm.stats")

# A disk that is full stays so for minutes, mostly.
RETRY_S = 5.0
# A router that ends waits so long for a disk.
LAST_S = 2.0
_COUNTS = ("in_msgs", "in_bytes", "out_msgs", "out_bytes", "link_out_msgs", "link_in_msgs")


class Missing(NamedTuple):
    """What a gap row says, before it is written."""

    row: GapRecord
    noted_until_us: dict[str, int]  # by boot: when it last noted a window; of those who were not looked for, as below


class Gaps:
    """Those of one broker. `msgs`: what clients had published, in all of them, since the broker began.

    `remember` is called when `record` has changed: before a row is written that was not in it.
    """

    def __init__(self, remember: Callable[[], None]) -> None:
        self.msgs = 0
        self._remember = remember
        self._left: list[Missing] = []  # another router's, which may have written them
        self._waiting: dict[int, Missing] = {}  # by shard
        self._late: set[int] = set()  # shards of which the log says that their row could not be written
        self._writing: _Writing | None = None
        self._next_at = 0.0

    @property
    def record(self) -> GapsRecord:
        """What another router must know: rows of which it is not known that they are on the disk."""
        if not (self._left or self._waiting or self._writing):
            return GapsRecord(self.msgs)
        import msgspec

        missing = [*(self._writing.missing if self._writing else ()), *self._left, *self._waiting.values()]
        rows = [msgspec.json.encode(one.row) for one in missing]
        return GapsRecord(self.msgs, rows, [one.noted_until_us for one in missing])

    def take_over(self, record: GapsRecord, page: Page) -> None:
        """Go on with what another router has left, which may have died before the page knew of its last row."""
        self.msgs = record.msgs
        if record.rows:
            import msgspec

            from gnatswarm.shards.boundary import records

            rows = [msgspec.json.decode(row, type=records.GapRecord) for row in record.rows]
            self._left = [Missing(*one) for one in zip(rows, record.noted_until_us, strict=True)]
            self._late = {row.shard for row in rows}  # as its log said
            for row in rows:
                # (By the time alone it would be known too seldom: a restarted shard's first window is said to begin
                # at a multiple of its length, and so may end before the process that the row is about has begun.)
                until_us, missing = page.unrecorded(row.shard)
                if until_us <= row.window_start_us and missing == tuple([getattr(row, name) for name in _COUNTS]):
                    page.note_gap(row.shard, _end_us(row))

    def note(self, page: Page, process: ShardProcess, server_id: str, directory: str, reason: str) -> None:
        """This process has ended. The row is written in a thread, because a disk may be slow."""
        until_us, missing = page.unrecorded(process.shard)
        if not any(missing):
            page.note_gap(process.shard, until_us)
            return
        self.msgs += missing[0]
        start_us = max(until_us, process.booted_us)
        try:
            from gnatswarm.shards.boundary import records  # rarely needed
        except OSError as error:  # no descriptors
            log.error("Statistics: no gap row for shard %d: %s", process.shard, error.strerror)
            return
        row = records.GapRecord(
            version=records.RECORDS_VERSION,
            broker=server_id,
            boot=process.boot_id,
            shard=process.shard,
            file=0,
            window_start_us=start_us,
            window_us=max(0, time.time_ns() // 1000 - start_us),
            reason=reason,
            **dict(zip(_COUNTS, missing, strict=True)),
        )
        # In this order: where this router dies in between, the next one sees on the page that it does not know the row,
        # which until then is not one with the shard's row that waits.
        self._left.append(Missing(row, {row.boot: until_us}))
        self._remember()
        page.note_gap(row.shard, _end_us(row))
        self._keep(self._left.pop())
        self._remember()
        self.write(directory, is_urgent=True)

    def write(self, directory: str, *, is_urgent: bool = False) -> None:
        """Write what waits, unless a thread does; what could not be written only after RETRY_S, or if it is urgent."""
        if self._writing is not None:
            if self._writing.thread.is_alive():
                return
            done, self._writing = self._writing, None
            self._take_back(done)
            self._remember()
        if not (self._left or self._waiting) or (time.monotonic() < self._next_at and not is_urgent):
            return
        writing = _Writing(directory, [*self._left, *self._waiting.values()])
        try:
            writing.thread.start()
        except RuntimeError as error:  # there may be no more threads
            self._next_at = time.monotonic() + RETRY_S
            self._say_late((one.row.shard for one in writing.missing), str(error))
            return
        self._left.clear()
        self._waiting.clear()
        self._writing = writing

    def close(self, directory: str) -> None:
        """This router ends: write what waits, or have the log tell what could not be written."""
        for _ in range(2):  # (what came while a thread wrote has not been tried yet)
            self.write(directory, is_urgent=True)
            if self._writing is not None:
                self._writing.thread.join(LAST_S)
        if self._writing is not None:
            self._take_back(self._writing)
            for missing in self._writing.under_way():
                self._keep(missing)
        for row, _noted_until_us in (*self._left, *self._waiting.values()):
            log.error("Statistics: no gap row for shard %d: %d messages are in no statistics", row.shard, row.in_msgs)

    def _keep(self, missing: Missing) -> None:
        """Rows of one shard become one: the disk may be full for days."""
        shard = missing.row.shard
        before = self._waiting.get(shard)
        self._waiting[shard] = missing if before is None else _joined(before, missing)

    def _take_back(self, done: _Writing) -> None:
        for missing, why in done.failed:
            shard = missing.row.shard
            newer = self._waiting.pop(shard, None)
            self._keep(missing)
            if newer is not None:
                self._keep(newer)
            self._say_late((shard,), why)
            self._next_at = time.monotonic() + RETRY_S
        for shard in sorted(self._late & {row.shard for row in done.written} - self._waiting.keys()):
            self._late.discard(shard)
            log.info("Statistics: the gap row for shard %d is written", shard)

    def _say_late(self, shards: Iterable[int], why: str) -> None:
        for shard in shards:
            if shard not in self._late:
                self._late.add(shard)
                log.error("Statistics: no gap row for shard %d: %s; it is tried again", shard, why)


def _joined(before: Missing, newer: Missing) -> Missing:
    import msgspec

    rows = before.row, newer.row
    end_us = max(map(_end_us, rows))
    start_us = min(row.window_start_us for row in rows)
    sums = {name: sum(getattr(row, name) for row in rows) for name in _COUNTS}
    row = msgspec.structs.replace(newer.row, window_start_us=start_us, window_us=end_us - start_us, **sums)
    return Missing(row, before.noted_until_us | newer.noted_until_us)


def _without_last_window(directory: str, missing: Missing, boot: str) -> Missing:
    """The rest, where the process was killed after it had written its last window, and before it noted that.

    (Where it is a relay whose disk hangs, it takes that back in the end, and this waits for it.)
    """
    import msgspec

    from gnatswarm.shards.boundary import records, statfile

    row, noted_until_us = missing.row, dict(missing.noted_until_us)
    until_us = noted_until_us.pop(boot)
    last = statfile.last_block(directory, statfile.file_name(row.broker, row.shard, boot, 0))
    for line in last.splitlines():
        if line.startswith(b'{"kind":"shard",'):
            window = msgspec.json.decode(line, type=records.ShardRecord)
            there = (
                *(window.in_msgs + window.refused_msgs, window.in_bytes + window.refused_bytes),
                *(window.out_msgs, window.out_bytes, window.link_out_msgs, window.link_in_msgs),
            )
            left = {name: getattr(row, name) - n for name, n in zip(_COUNTS, there, strict=True)}
            if _end_us(window) != until_us and min(left.values()) >= 0:
                row = msgspec.structs.replace(row, **left)
    return Missing(row, noted_until_us)


class _Writing:
    """One attempt to write some rows, in a thread; what came of it may be read when that has ended."""

    def __init__(self, directory: str, missing: list[Missing]) -> None:
        self.failed: list[tuple[Missing, str]] = []
        self.written: list[GapRecord] = []
        self.missing = missing
        self._directory = directory
        self.thread = threading.Thread(target=self._run, name="gap row", daemon=True)

    def under_way(self) -> list[Missing]:
        """Those of which nothing is known yet, because the disk does not answer."""
        return self.missing[len(self.written) + len(self.failed) :]

    def _run(self) -> None:
        for number in range(len(self.missing)):
            try:
                self._write(number)
            except OSError as error:
                self.failed.append((self.missing[number], error.strerror or str(error)))
            except Exception as error:  # as ImportError without descriptors: nothing may be lost unsaid
                self.failed.append((self.missing[number], str(error)))
            else:
                self.written.append(self.missing[number].row)

    def _write(self, number: int) -> None:
        from gnatswarm.shards.boundary import statfile

        statfile.adopt_orphans(self._directory)  # finish its last file, even if the shard is not restarted
        for boot in self.missing[number].noted_until_us:
            self.missing[number] = _without_last_window(self._directory, self.missing[number], boot)
        row = self.missing[number].row
        if any(getattr(row, count) for count in _COUNTS):
            _write(self._directory, row)


def _end_us(row: Record) -> int:
    return row.window_start_us + row.window_us


def _write(directory: str, row: GapRecord) -> None:
    import msgspec

    from gnatswarm.shards.boundary import statfile

    name = statfile.file_name(row.broker, f"{row.shard:02d}-gap", row.boot, 0)
    if os.path.exists(os.path.join(statfile.hour_directory(directory, row.window_start_us), name)):
        return  # a router has written it that died then
    file = statfile.StatFile(directory, name, row.window_start_us)
    try:
        file.append([msgspec.json.encode(row) + b"\n"])
    except OSError:
        file.finish()  # removes it
        raise
    try:
        file.finish()
    except OSError as error:  # it is there, and whoever writes next finishes it
        log.error("Statistics: the gap row for shard %d is not finished: %s", row.shard, error.strerror)
