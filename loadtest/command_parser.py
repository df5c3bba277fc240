"""Command lines of the programs here: argparse, which says when its help cannot be written."""

from __future__ import annotations

import argparse
import contextlib
import errno
import io
import os
import sys
from typing import Any

# The errors of a write for which there is no room.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class CommandParser(argparse.ArgumentParser):
    """argparse's own drops an error of the write, and exits with 0.

    What the encoding of standard output lacks, such as an arrow in Latin 1, is shown by number: else it is an error.
    """

    def __init__(self, *words: Any, **settings: Any) -> None:
        super().__init__(*words, **settings)
        if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors in ("strict", "surrogateescape"):
            sys.stdout.reconfigure(errors="backslashreplace")

    def print_help(self, file: Any = None) -> None:
        """Exit code 1 if it cannot be written, as of other commands."""
        try:
            print(self.format_help(), end="", file=file)
            if sys.stdout is not None:  # closed: `>&-`
                sys.stdout.flush()
        except BrokenPipeError:  # as with `| head`
            discard_output()
            self.exit(1)
        except OSError as error:
            discard_output()
            self.exit(1, f"{self.prog}: standard output: {(error.strerror or str(error)).lower()}\n")


def discard_output() -> None:
    """Discard the rest of standard output, also at Python's own last flush."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
