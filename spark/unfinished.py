"""Files of statistics that a shard began and did not finish: copies of their whole windows, for a reader.

A shard writes under a name with a dot, holds a lock meanwhile, and renames the file when it is complete. If all
processes of a broker were killed, the file stays unfinished until the next broker that writes there finishes it. A
report does not wait for that, and changes nothing in the directory, which may not be its own: it reads copies of the
whole windows. If the file is finished meanwhile, the copy does not count (`read.once`).
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

ENDING = ".jsonl.zst"
READ_BYTES = 1 << 20


def copy_unfinished(stats_dir: str, into: Path) -> int:
    """Copy the whole frames of each unfinished file that nobody writes, under its final name; returns how many.

    Nothing for addresses (with ://). Files that cannot be opened are left out.
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
    return any(hidden.stat().st_size and not _is_held(hidden) for hidden in _unfinished(stats_dir))


def is_being_written(stats_dir: str) -> bool:
    """Whether somebody is writing a file there."""
    return any(_is_held(hidden) for hidden in _unfinished(stats_dir))


def _unfinished(stats_dir: str) -> Iterator[Path]:
    return Path(stats_dir).absolute().rglob(f".*{ENDING}") if "://" not in stats_dir else iter(())


def _is_held(hidden: Path) -> bool:
    try:
        with hidden.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _copy(hidden: Path, copy: Path) -> bool:
    with hidden.open("rb") as file:
        # An empty file may be a moment old, and its writer about to lock it.
        if not hidden.stat().st_size:
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
    """The number of bytes of the file's whole zstd frames; each of them is one window."""
    import zstandard

    whole = at = 0
    frame = zstandard.ZstdDecompressor().decompressobj()
    while data := os.pread(fd, READ_BYTES, at):
        at += len(data)
        while data:
            try:
                frame.decompress(data)
            except zstandard.ZstdError:
                return whole
            if not frame.eof:
                break
            data = frame.unused_data
            whole = at - len(data)
            frame = zstandard.ZstdDecompressor().decompressobj()
    return whole
