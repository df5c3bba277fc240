"""Reads the bytes of a configuration file, and nothing that could block for ever.

An included file must be a regular file. `-c` may also name a pipe that another process writes to (`-c <(generate)`,
`-c /dev/stdin`). A pipe can be read once, and an empty pipe is an error. /dev/null is an empty file.
"""

from __future__ import annotations

import errno
import os
import stat

from gnatswarm.shards.boundary.file_kind import other_kind

READ_BYTES = 1 << 16


def read_bytes(path: str, most_bytes: int, *, is_included: bool) -> bytes:
    """The file's bytes, at most `most_bytes`. OSError when it cannot be read, ValueError with a NUL in `path`."""
    _check(os.stat(path), is_included)  # before opening, because opening a device can have effects
    # O_NONBLOCK: the open does not wait if a FIFO has replaced the file since then, nor the read of a file in /proc.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        status = os.fstat(fd)
        _check(status, is_included)
        is_pipe = stat.S_ISFIFO(status.st_mode)
        if is_pipe:
            os.set_blocking(fd, True)  # read waits for the writer, and returns at once if there is none
        data = bytearray()
        while len(data) < most_bytes and (piece := os.read(fd, min(READ_BYTES, most_bytes - len(data)))):
            data += piece
    finally:
        os.close(fd)
    if is_pipe and not data:
        raise OSError(errno.ENODATA, "nobody writes to this pipe, or it was read before")
    return bytes(data)


def _check(status: os.stat_result, is_included: bool) -> None:
    """OSError for a kind of file that is not accepted."""
    mode = status.st_mode
    kind = other_kind(mode)
    is_null = stat.S_ISCHR(mode) and status.st_rdev == os.makedev(1, 3)
    if not kind or (not is_included and (stat.S_ISFIFO(mode) or is_null)):
        return
    raise OSError(errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL, f"is {kind}")
