"""What is no file, though somebody has named it as one: it is not read, because that could block for ever.

Opening a device can have effects besides. Called before a file of the configuration is opened, by who knows whether a
pipe is one too.
"""

from __future__ import annotations

import os
import stat

_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a FIFO (named pipe), not a file"),
    (stat.S_ISSOCK, "a socket, not a file"),
    (stat.S_ISCHR, "a character device, not a file"),
    (stat.S_ISBLK, "a block device, not a file"),
)


def other_kind(mode: int) -> str:
    """What it is if it is not a regular file, or ""."""
    if stat.S_ISREG(mode):
        return ""
    return next((words for is_kind, words in _KINDS if is_kind(mode)), "not a file")


def is_nameless_pipe(path: str) -> bool:
    """Whether this leads to a pipe that no file system has: a descriptor of ours, as of a shell's <(…)."""
    return stat.S_ISFIFO(os.stat(path).st_mode) and not os.path.exists(os.path.realpath(path))
