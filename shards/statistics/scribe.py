"""The shard's helper thread: takes blocks of lines from the event loop and writes them to disk.

Only this thread compresses, writes, syncs, renames and removes statistics files; blocks come by value over a queue. A
disk that refuses writes, or hangs, does not disturb the shard: it is logged once, a bounded backlog is kept, and
windows beyond it are counted as lost. What is not written when the shard ends is dropped, since the router counts it
then, and a relay's thread may live for hours. Called by the recorder.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable

import msgspec

from gnatswarm.shards.boundary import statfile

logger = logging.getLogger("gnatswarm.stats")

# A file holds a minute's windows: a day of a shard is 1,440 files, and Spark's readers are at most a minute behind.
ROTATE_S = 60.0
ROTATE_BYTES = 32 * 1024 * 1024
# The backlog while a disk is full: some minutes of a busy shard. So much may be queued, too, while a disk hangs.
MOST_BACKLOG_BYTES = 8 * 1024 * 1024
# A clock that is wrong is mostly wrong for minutes: until NTP has set it, or until somebody sees the mistake.
EVEN_S = 3600.0
# To tell that a file is days old, a clock that is set by less is right.
SET_BY_S = 300.0
# The router sends SIGKILL three seconds after Stop.
CLOSE_S = 2.0


class WindowRows(msgspec.Struct, frozen=True):
    """One window's rows; `on_written` is called by the thread once the kernel has them."""

    start_us: int
    end_us: int
    blocks: list[bytes]  # of whole lines, with `FILE_MARK` where the file's number belongs, and `LOST_MARK`
    on_written: Callable[[], None]

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(map(len, self.blocks))


# A row's file number, and how many windows were lost since the last one that was written, are known only when it is
# written; until then they are these numbers, which no counter has.
FILE_MARK = -977_977_977
LOST_MARK = -977_977_978
_FILE = b'"file":%d,' % FILE_MARK
_LOST = b'"lost_windows":%d,' % LOST_MARK


class Scribe:
    """Writes the files of one shard."""

    def __init__(
        self,
        directory: statfile.AnyPath,
        *,
        broker: str,
        shard: int,
        boot: str,
        max_age_s: float = 0.0,
        max_bytes: int = 0,
    ) -> None:
        self._directory = directory
        self._names = (broker, shard, boot)
        self._max_age_s = max_age_s
        self._clock_began_s: float | None = None  # the wall's time when the other clock was 0, as it was at first, …
        self._even_since_s = 0.0  # … or when the wall clock was last set
        self._max_bytes = max_bytes
        self._file: statfile.StatFile | None = None
        self._number = 0
        self._backlog: deque[WindowRows] = deque()
        self._backlog_bytes = 0
        self._is_paused = False  # the disk refuses writes
        self._is_late = False  # the disk hangs; set by the event loop, and taken back by the thread
        self._is_over = False  # nothing is noted as written any more; set under this lock, …
        self._noting = threading.Lock()  # … which the thread has while it notes, and never while it waits for the disk
        self._told_lost = 0  # windows that rows in files say were lost
        self._lost = 0  # windows; written by the thread alone, …
        self._taken_bytes = 0  # … as is what it has taken from the queue
        self._displaced = 0  # windows; written by the event loop alone, …
        self._queued_bytes = 0  # … as is what it has queued and left there
        self._queue: queue.SimpleQueue[WindowRows | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="gnat-scribe", daemon=True)
        self._thread.start()

    def put(self, block: WindowRows) -> None:
        """Queue this block for writing; returns at once.

        While the disk hangs the oldest that are queued are lost, but never the newest.
        """
        self._queue.put(block)
        self._queued_bytes += block.size
        while self._queued_bytes - self._taken_bytes > MOST_BACKLOG_BYTES and self._queue.qsize() > 1:
            try:
                oldest = self._queue.get_nowait()
            except queue.Empty:  # the thread has taken it in this moment
                break
            assert oldest is not None
            self._queued_bytes -= oldest.size
            self._displaced += 1
            if not self._is_late:
                self._is_late = True
                self._log_pause("the disk takes too long")

    @property
    def lost_windows(self) -> int:
        """Since the start."""
        return self._lost + self._displaced

    def close(self) -> bool:
        """Write all that is queued and end; waits at most CLOSE_S. False: the disk took longer, the rest is dropped."""
        self._queue.put(None)
        self._thread.join(CLOSE_S)
        with self._noting:
            self._is_over = True
        return not self._thread.is_alive()

    # ---- in the thread

    def _run(self) -> None:
        self._tidy()
        while (block := self._queue.get()) is not None and not self._is_over:
            self._taken_bytes += block.size
            self._backlog.append(block)
            self._backlog_bytes += block.size
            self._write_backlog()
            while self._backlog_bytes > MOST_BACKLOG_BYTES:
                self._backlog_bytes -= self._backlog.popleft().size
                self._lost += 1
        self._write_backlog()
        try:
            self._finish()
        except OSError as error:
            self._pause(error)

    def _write_backlog(self) -> None:
        try:
            while self._backlog and not self._is_over:
                self._write(self._backlog[0])
                # It is written: if its file cannot be finished now, it must not be written to the next one, too.
                block = self._backlog.popleft()
                self._backlog_bytes -= block.size
                self._finish_if_due(block)
        except OSError as error:
            self._pause(error)
            return
        goes_on = self._is_paused or (self._is_late and self._queue.empty())
        self._is_paused = False
        if goes_on and not self._is_over:
            self._is_late = False
            logger.warning("Statistics go on: %d windows were lost", self.lost_windows)

    def _write(self, block: WindowRows) -> None:
        is_other_hour = self._file is not None and statfile.hour_directory(
            self._directory, block.start_us
        ) != statfile.hour_directory(self._directory, self._file.start_us)
        if is_other_hour or (self._file is not None and self._file.is_removed):
            self._finish()
        if self._file is None:
            self._number += 1
            name = statfile.file_name(*self._names, self._number)
            self._file = statfile.StatFile(self._directory, name, block.start_us)
        lost = self.lost_windows
        told = b'"lost_windows":%d,' % (lost - self._told_lost)
        number = b'"file":%d,' % self._number
        self._file.append(lines.replace(_FILE, number).replace(_LOST, told) for lines in block.blocks)
        self._told_lost = lost
        with self._noting:
            if not self._is_over:
                block.on_written()
                return
        self._file.take_back()

    def _finish_if_due(self, block: WindowRows) -> None:
        """End the file with its minute, which `block` may have filled, or when it is big enough."""
        assert self._file is not None
        # abs(): when the clock was set back, a window may begin before the file's first one.
        covered_s = abs(block.end_us - self._file.start_us) / 1_000_000
        if covered_s >= ROTATE_S or self._file.size_bytes >= ROTATE_BYTES:
            self._finish()
            self._tidy()

    def _finish(self) -> None:
        file, self._file = self._file, None
        if file is None:
            return
        if file.is_removed:
            file.drop()
            self._lost += file.windows
            logger.warning("A statistics file in %s was removed with %d windows", self._directory, file.windows)
        else:
            file.finish()

    def _tidy(self) -> None:
        """Finish files of dead writers, and remove old files."""
        try:
            statfile.adopt_orphans(self._directory)
            statfile.retain(
                self._directory, max_age_s=self._believed_age_s(), max_bytes=self._max_bytes, now_s=time.time()
            )
        except OSError as error:
            self._pause(error)

    def _believed_age_s(self) -> float:
        """From which age on files are removed; 0, none, while the wall clock may be wrong.

        If it stands days ahead for a minute (NTP has not set it yet, somebody mistypes a date), all files seem to be
        too old. So it is believed when it has run as evenly as the clock that nobody sets for an hour, or for
        `max_age_s` where that is less: since the start, and since it was set by more than SET_BY_S, rightly or not.
        """
        passed_s = time.clock_gettime(time.CLOCK_BOOTTIME)  # also while the machine sleeps
        began_s = time.time() - passed_s
        if self._clock_began_s is None or abs(began_s - self._clock_began_s) > SET_BY_S:
            self._clock_began_s, self._even_since_s = began_s, passed_s
        return self._max_age_s if passed_s - self._even_since_s >= min(EVEN_S, self._max_age_s) else 0.0

    def _pause(self, error: OSError) -> None:
        if self._is_paused:
            return
        self._is_paused = True
        self._log_pause(error.strerror or str(error))
        try:
            self._finish()  # its frames are complete; the next attempt begins a new file
        except OSError:
            self._file = None

    # ---- in both

    def _log_pause(self, why: str) -> None:
        logger.error("Statistics pause: cannot write to %s: %s; the broker goes on", self._directory, why)
