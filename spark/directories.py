"""Names of directories, as Spark is told them.

Hadoop takes `[ab]*` for a pattern where it reads, `a:b` for an address, and `link/..` for where the link is. Users'
names are names: only what has :// is an address, which Spark gets as it is, with any pattern. What Hadoop would take
for an address besides (file:/x) is refused, unless it is there.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

_SIGNS = "\\{}[]*?"
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:(?=/)")
_SIGN = re.compile(f"[{re.escape(_SIGNS)}]")


def absolute(directory: str) -> str:
    """For writing; for reading see literal()."""
    if "://" in directory:
        return directory
    path = Path(directory).absolute()
    if ".." in path.parts:
        path = path.resolve()
    return "/" + str(path).lstrip("/")  # (//a would be a machine)


def literal(directory: str) -> str:
    """For reading: a pattern that only this directory matches."""
    return directory if "://" in directory else _SIGN.sub(r"\\\g<0>", absolute(directory))


def unusable_text(*directories: str) -> str:
    """Why Spark cannot use one of these names, or ""."""
    for directory in directories:
        if not directory or "://" in directory:
            continue
        path = absolute(directory)
        scheme = _ADDRESS.match(directory)
        if scheme is not None and not os.path.lexists(path):
            address = f"{scheme[0]}///{directory[scheme.end() :].lstrip('/')}"
            what = f"{directory} is an address with one slash, and no directory that is here"
            return f"{what}: write {address}, or ./{directory} for a directory of that name"
        if any("\ud800" <= sign <= "\udfff" for sign in path):
            return f"Spark takes no name that is not UTF-8: {directory!a}; make a symbolic link to it"
        # Where a path has a pattern, Hadoop puts it together again, and takes what is before a colon for a scheme.
        if ":" in path and _SIGN.search(path):
            return f"Spark reads no path with ':' and one of {' '.join(_SIGNS)}: {path}; make a symbolic link to it"
    return ""
