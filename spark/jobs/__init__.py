"""The programs: `ingest` (files to Parquet), `compact` (that in few files), `report` (any of these to a page)."""

import io
import signal
import sys
from types import TracebackType


def _say_in_one_line(kind: type[BaseException], error: BaseException, at: TracebackType | None) -> None:
    """^C is no error of the program, wherever it comes: Spark's start alone takes seconds."""
    if issubclass(kind, KeyboardInterrupt):
        print("gnatswarm: interrupted", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, at)


if sys.argv[:1] == ["-m"]:  # as a program, which Python is just reading
    sys.excepthook = _say_in_one_line
    # Blocked by who started it, until here: before, ^C would be a traceback.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    # What its encoding lacks, such as an arrow in Latin 1, is shown by number: else it is an error.
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors in ("strict", "surrogateescape"):
        sys.stdout.reconfigure(errors="backslashreplace")
