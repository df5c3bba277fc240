"""Files of statistics that a shard began and did not finish: copies of their whole windows, for a reader.

A shard writes under a name with a dot, holds a lock meanwhile, and renames the file when it is complete. If all
processes of a broker were killed, the file stays unfinished until the next broker that writes there finishes it. A
report does not wait for that, and changes nothing in the directory, which may not be its own: it reads copies of the
whole windows. If the file is finished meanwhile, the copy does not count (`read.once`).
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from gnatswarm.spark.directories import absolute

ENDING = ".jsonl.zst"
READ_BYTES = 1 << 20
# What is inflated at once: four bytes may be a block of 128 KiB, in a foreign file. …
INFLATED_AT_ONCE_BYTES = 512
# … One that inflates to more than this is no broker's: those have some 32 MiB before they are inflated.
MOST_INFLATED_BYTES = 1 << 30


def copy_unfinished(stats_dir: str, into: Path) -> int:
    """Copy the whole frames of each unfinished file that nobody writes, under its final name; returns how many.

    Nothing for addresses (with ://). Files that cannot be opened are left out, and what no broker has written.
    """
    copied = 0
    for number, hidden in enumerate(_unfinished(stats_dir)):
        try:
            # One directory for each, because file names are unique only within a directory.
            copied += _copy(hidden, into / str(number) / hidden.name[1:])
        except OSError:
            continue
    return copied


def has_unfinished(stats_dir: str) -> bool:
    """Whether there are unfinished files with anything in them that nobody writes."""
    return any(_has_bytes(hidden) and not _is_held(hidden) for hidden in _unfinished(stats_dir))


def is_being_written(stats_dir: str) -> bool:
    """Whether somebody is writing a file there."""
    return any(_is_held(hidden) for hidden in _unfinished(stats_dir))


def _unfinished(stats_dir: str) -> Iterator[Path]:
    return Path(absolute(stats_dir)).rglob(f".*{ENDING}") if "://" not in stats_dir else iter(())


def _opened(hidden: Path) -> BinaryIO:
    """The file, for reading. OSError: it is gone, or no file: a named pipe would keep us."""
    file = open(os.open(hidden, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb")  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a file", str(hidden))
    return file


def _has_bytes(hidden: Path) -> bool:
    try:
        with _opened(hidden) as file:
            return os.fstat(file.fileno()).st_size > 0
    except OSError:
        return False


def _is_held(hidden: Path) -> bool:
    try:
        with _opened(hidden) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _copy(hidden: Path, copy: Path) -> bool:
    with _opened(hidden) as file:
        # An empty file may be a moment old, and its writer about to lock it.
        if not os.fstat(file.fileno()).st_size:
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        whole = _whole_frames(file.fileno())
        if not whole:
            return False
        copy.parent.mkdir(parents=True)
        file.seek(0)
        with copy.open("wb") as out:
            while whole and (data := file.read(min(whole, READ_BYTES))):
                out.write(data)
                whole -= len(data)
    return True


def _whole_frames(fd: int) -> int:
    """The number of bytes of the file's whole zstd frames; each of them is one window.

    OSError: it inflates to more than what a broker writes.
    """
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
