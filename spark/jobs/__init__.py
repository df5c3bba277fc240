"""The programs: `ingest` (files to Parquet), `compact` (that in few files), `report` (any of these to a page)."""

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
