"""Statistics files: written under a dot-name, locked, synced, renamed once, never changed again.

    <directory>/date=2026-02-03/hour=04/<broker>-<shard>-<boot>-<number>.jsonl.zst

The format is JSON Lines, compressed; each append is a zstd frame of its own, so that it survives when the writer is
killed: a later process that finds a dot-named file without a lock cuts it after its last whole frame and renames it.
Only the user may read files and directories, because they show who published what. Blocking; called by the shard's
helper thread, and by the router for its gap rows. Paths are text: pathlib would take two thirds of a megabyte.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import stat
import time
from collections.abc import Iterable, Iterator

ENDING = ".jsonl.zst"
COMPRESSION_LEVEL = 3  # zstd's own default: 12 times smaller rows at some 200 MB/s
READ_BYTES = 1 << 20
# What a dead writer left is inflated in pieces of this size: four bytes may be a block of 128 KiB, in a foreign file.
INFLATED_AT_ONCE_BYTES = 512
# A file that inflates to more is none of ours, which are some 32 MiB before they are inflated to twelve times as much.
MOST_INFLATED_BYTES = 1 << 30
FILE_MODE = 0o600
DIRECTORY_MODE = 0o700

AnyPath = str | os.PathLike[str]


def hour_directory(directory: AnyPath, at_us: int) -> str:
    """The directory for windows that began in this hour (UTC)."""
    return os.path.join(directory, time.strftime("date=%Y-%m-%d/hour=%H", time.gmtime(at_us / 1_000_000)))


def file_name(broker: str, shard: int | str, boot: str, number: int) -> str:
    """A name that is unique over all brokers, shards and restarts; names of one boot sort by number."""
    place = f"{shard:02d}" if isinstance(shard, int) else shard
    return f"{broker[:16]}-{place}-{boot}-{number:06d}{ENDING}"


def make_directory(directory: AnyPath) -> None:
    """Make the directory and its missing parents, for our user only; existing ones stay unchanged. Raises OSError."""
    try:
        os.mkdir(directory, DIRECTORY_MODE)
    except FileNotFoundError:
        parent = os.path.dirname(os.path.abspath(directory))
        if parent == os.fspath(directory):
            raise
        make_directory(parent)
        with contextlib.suppress(FileExistsError):
            os.mkdir(directory, DIRECTORY_MODE)
    except OSError:  # not only FileExistsError: a read-only file system reports that it is read-only instead
        if not os.path.isdir(directory):
            raise


class StatFile:
    """One file that is being written. Every method raises OSError when the disk refuses."""

    def __init__(self, directory: AnyPath, name: str, start_us: int) -> None:
        folder = hour_directory(directory, start_us)
        make_directory(folder)
        self.start_us = start_us
        self.size_bytes = 0
        self._last_bytes = 0  # of the last frame
        self.windows = 0  # times that append() succeeded
        self._hidden = os.path.join(folder, f".{name}")
        self._shown = os.path.join(folder, name)
        self._fd = locked_file(self._hidden)

    def append(self, blocks: Iterable[bytes]) -> None:
        """Append these blocks of lines as one frame, all or none."""
        import zstandard  # here: the router needs none, and shards that are forked have it

        frame = zstandard.ZstdCompressor(level=COMPRESSION_LEVEL).compressobj()
        written = 0
        try:
            for lines in itertools.chain(blocks, [b""]):
                rest = memoryview(frame.compress(lines) if lines else frame.flush())
                while rest:
                    done = os.write(self._fd, rest)
                    rest = rest[done:]
                    written += done
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self.size_bytes)
                os.lseek(self._fd, self.size_bytes, os.SEEK_SET)
            raise
        self.size_bytes += written
        self._last_bytes = written
        self.windows += 1

    def take_back(self) -> None:
        """Remove what the last append() has appended."""
        os.ftruncate(self._fd, self.size_bytes - self._last_bytes)
        os.lseek(self._fd, 0, os.SEEK_END)
        self.size_bytes -= self._last_bytes
        self._last_bytes = 0
        self.windows -= 1

    @property
    def is_removed(self) -> bool:
        """Whether somebody has removed the file, so that what is written goes nowhere."""
        return os.fstat(self._fd).st_nlink == 0

    def drop(self) -> None:
        """Close the file; without its name nothing is left of it."""
        os.close(self._fd)

    def finish(self) -> None:
        """Sync the file and give it its final name; an empty file is removed instead."""
        try:
            if self.size_bytes:
                publish(self._fd, self._hidden, self._shown)
            else:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._hidden)
        finally:
            os.close(self._fd)


def locked_file(path: str) -> int:
    """Make a file that no other process removes; its descriptor, for writing.

    Before it is locked, adopt_orphans() of another process may take it for the empty file of a dead writer.
    """
    while True:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
        fcntl.flock(fd, fcntl.LOCK_EX)  # waits for no longer than an empty file is looked at
        if os.fstat(fd).st_nlink:
            return fd
        os.close(fd)


def publish(fd: int, hidden: str, shown: str) -> None:
    """Sync the file, rename it, then sync its directory."""
    os.fsync(fd)
    os.rename(hidden, shown)
    folder = os.open(os.path.dirname(shown), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def adopt_orphans(directory: AnyPath) -> int:
    """Finish the files of dead writers; returns how many."""
    adopted = 0
    for folder, name in _files(directory):
        if name.startswith("."):
            with contextlib.suppress(OSError):
                adopted += _adopt(os.path.join(folder, name), os.path.join(folder, name[1:]))
    return adopted


def _files(directory: AnyPath) -> Iterator[tuple[str, str]]:
    """The directory and the name of every file, finished or not."""
    for folder in _folders(directory):
        yield from ((folder, name) for name in _names(folder) if name.endswith(ENDING))


def _folders(directory: AnyPath) -> Iterator[str]:
    """The directories of the hours, the earliest first."""
    for day in sorted(_names(directory)):
        if day.startswith("date="):
            for hour in sorted(_names(os.path.join(directory, day))):
                if hour.startswith("hour="):
                    yield os.path.join(directory, day, hour)


def _names(directory: AnyPath) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:  # it is gone, or no directory
        return []


def _adopt(hidden: str, shown: str, *, waits: bool = False) -> bool:
    # Neither what a link points at is ours to cut, nor may a named pipe keep us.
    fd = os.open(hidden, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False  # somebody is writing it
        if not os.path.exists(hidden) or os.stat(hidden).st_ino != os.fstat(fd).st_ino:
            return False  # another process adopted it meanwhile
        size = whole_frames(fd)
        if size == 0:
            os.unlink(hidden)
            return False
        os.ftruncate(fd, size)
        publish(fd, hidden, shown)
        return True
    finally:
        os.close(fd)


def whole_frames(fd: int) -> int:
    """The number of bytes of a file's whole zstd frames. OSError: it inflates to more than any of ours."""
    import zstandard

    whole = at = inflated = 0
    frame = zstandard.ZstdDecompressor().decompressobj()
    while data := os.pread(fd, READ_BYTES, at):
        begin = 0
        while begin < len(data):
            piece = data[begin : begin + INFLATED_AT_ONCE_BYTES]
            try:
                inflated += len(frame.decompress(piece))
            except zstandard.ZstdError:
                return whole
            if inflated > MOST_INFLATED_BYTES:
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
            begin += len(piece)
            if frame.eof:
                begin -= len(frame.unused_data)
                whole = at + begin
                frame = zstandard.ZstdDecompressor().decompressobj()
        at += len(data)
    return whole


def last_block(directory: AnyPath, name: str) -> bytes:
    """The lines of the last append() to the last file of this name's process, which has ended; b"": it has left none.

    Waits for whoever finishes that file just now.
    """
    import zstandard

    of_process, _, _ = name.rpartition("-")  # its files' numbers follow
    for folder, hidden in [one for one in _files(directory) if one[1].startswith(f".{of_process}-")]:
        with contextlib.suppress(FileNotFoundError):
            _adopt(os.path.join(folder, hidden), os.path.join(folder, hidden[1:]), waits=True)
    found = [os.path.join(*one) for one in _files(directory) if one[1].startswith(f"{of_process}-")]
    lines = b""
    if found:
        with open(max(found, key=os.path.basename), "rb") as file:
            rest = file.read()
        while rest:
            frame = zstandard.ZstdDecompressor().decompressobj()
            lines = frame.decompress(rest)
            rest = frame.unused_data
    return lines


def retain(directory: AnyPath, *, max_age_s: float, max_bytes: int, now_s: float) -> int:
    """Remove files that are too old, and the oldest while there are too many bytes; 0: no limit. Returns how many.

    Whoever says `now_s` should be sure of it: by a clock that stands ahead every file is too old, other brokers' too.
    Hour by hour: a week of eight shards is 80,000 files, and while they are sorted all at once the shard's loop stands.
    """
    total = removed = 0
    for folder in _folders(directory):
        old = [one for one in _finished_in(folder) if max_age_s > 0 and now_s - one[0] > max_age_s]
        removed += _remove(folder, [path for _modified_s, _size, path in old])
        total += sum(size for _modified_s, size, _path in _finished_in(folder))
    for folder in _folders(directory) if 0 < max_bytes < total else ():
        surplus = []
        for _modified_s, size, path in sorted(_finished_in(folder)):
            if total <= max_bytes:
                break
            surplus.append(path)
            total -= size
        removed += _remove(folder, surplus)
        if total <= max_bytes:
            break
    return removed


def _finished_in(folder: str) -> Iterator[tuple[float, int, str]]:
    """When it was changed, the size and the path of each finished file in the directory of an hour."""
    for name in _names(folder):
        if name.endswith(ENDING) and not name.startswith("."):
            path = os.path.join(folder, name)
            with contextlib.suppress(OSError):
                status = os.stat(path)
                yield status.st_mtime, status.st_size, path


def _remove(folder: str, paths: list[str]) -> int:
    """Remove these files, and the directory where they were the last ones; how many are gone."""
    removed = 0
    for path in paths:
        with contextlib.suppress(OSError):
            os.unlink(path)
            removed += 1
    if paths:
        for left in (folder, os.path.dirname(folder)):
            with contextlib.suppress(OSError):
                os.rmdir(left)
    return removed
