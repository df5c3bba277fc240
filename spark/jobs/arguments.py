"""The command lines of the jobs; run as a program, it prints the help of one of them.

Imports nothing of Spark, so that the help works where Spark is not installed.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from datetime import date
from typing import Any

DEFAULT_PORT = 4222
DATE_MISTAKE = "--date goes with --from-parquet: the shards' own files are read whole"


def date_mistake(texts: Iterable[str]) -> str:
    """Which of these is no day, or ""."""
    for text in texts:
        try:
            is_day = (
                date.fromisoformat(text).isoformat() == text
            )  # (20260203 and 2026-W06-2 are no names of directories)
        except ValueError:
            is_day = False
        if not is_day:
            return f"--date {text!r} is no day: write YYYY-MM-DD"
    return ""


def brokers_directory() -> str:
    """Where brokers write statistics by default, each in a directory named by its port; "" without a home."""
    state = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(state):  # the XDG standard: ignore a relative path
        home = os.path.expanduser("~")
        if not os.path.isabs(home):
            return ""
        state = os.path.join(home, ".local", "state")
    return os.path.join(state, "gnatswarm", "stats")


def default_directory(port: int) -> str:
    """The statistics of the broker with this port, unless it was told to write them elsewhere."""
    return os.path.join(brokers_directory(), str(port))


def recorded_ports(below: str = "") -> list[int]:
    """The ports of brokers that have written statistics by default."""
    directory = below or brokers_directory()
    try:
        names = [name for name in os.listdir(directory) if os.path.isdir(os.path.join(directory, name))]
    except OSError:  # there is none, or none that we may read
        return []
    return sorted(int(name) for name in names if name.isascii() and name.isdigit())


def missing_text(stats_dir: str) -> str:
    """The error for a missing directory; below the default directory, with the ports that have written there."""
    ports = recorded_ports()
    if not ports or os.path.dirname(stats_dir) != brokers_directory():
        return f"there is no directory {stats_dir}"
    known = ", ".join(map(str, ports))
    return f"there is no directory {stats_dir}; brokers with these ports have written statistics: {known} (--port)"


def unreadable_text(stats_dir: str) -> str:
    """Why nothing can be read of this directory; "": it can be read."""
    try:
        os.scandir(stats_dir).close()
    except (FileNotFoundError, NotADirectoryError):
        return missing_text(stats_dir)
    except OSError as error:
        whose = ": statistics are their broker's user's alone" if isinstance(error, PermissionError) else ""
        return f"{stats_dir} cannot be read ({(error.strerror or str(error)).lower()}){whose}"
    return ""


def _add_place(made: argparse._ActionsContainer) -> None:
    shown = brokers_directory().replace("%", "%%")
    made.add_argument(
        "--stats-dir",
        default="",
        metavar="DIR",
        help=f"directory of the shards' statistics files (default: {shown}/<port>)",
    )
    made.add_argument("-p", "--port", type=int, default=0, help=f"instead: the broker's port (default: {DEFAULT_PORT})")


class _Parser(argparse.ArgumentParser):
    """argparse's own drops an error of the write of the help, and exits with 0."""

    def print_help(self, file: Any = None) -> None:
        try:
            print(self.format_help(), end="", file=file)
            if sys.stdout is not None:  # closed: `>&-`
                sys.stdout.flush()
        except OSError as error:
            # Discard the rest, also at Python's own last flush.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            why = f"{self.prog}: standard output: {(error.strerror or str(error)).lower()}\n"
            self.exit(1, None if isinstance(error, BrokenPipeError) else why)


DESCRIPTIONS = {
    "report": "A broker's statistics as one HTML page, and optionally as tables (Parquet and CSV) and plots.",
    "ingest": "The shards' files into Parquet tables, each row exactly once; ends, or runs continuously.",
    "place": "Which services belong on which shard, as placement rules; and afterwards, what came true.",
    "suggest-permissions": "The least permissions for what each user did, from a broker's statistics; or what a "
    "configuration would have denied.",
    "compact": "Whole days of the tables of `gnatswarm ingest`, sorted, in few files, in another directory.",
}


def report_parser() -> argparse.ArgumentParser:
    """The command line."""
    made = _Parser(prog="gnatswarm report", description=DESCRIPTIONS["report"])
    source = made.add_mutually_exclusive_group()
    _add_place(source)
    source.add_argument("--from-parquet", default="", metavar="DIR", help="the tables of `gnatswarm ingest`")
    made.add_argument("--out", default="report.html", help="the page (default: %(default)s)")
    made.add_argument("--tables", default="", metavar="DIR", help="also write every result as Parquet and CSV")
    made.add_argument("--png", default="", metavar="DIR", help="also write the plots as PNG files")
    made.add_argument(
        "--date", action="append", metavar="YYYY-MM-DD", help="with --from-parquet: only this day; may be repeated"
    )
    made.add_argument("--broker", default="", metavar="ID", help="only the broker whose id begins with this")
    made.add_argument(
        "--services",
        default="auto",
        metavar="BY",
        help="what makes clients one service: auto (the default: name without its number, else user, else address), "
        "name, user, subject (its first token), or a regular expression of which the first group is taken of the name",
    )
    made.add_argument(
        "--explain", default="", metavar="SUBJECT", help="instead of a page: who publishes it, and who would miss it"
    )
    made.add_argument(
        "--compare",
        default="",
        metavar="PERIOD",
        help="what has changed since: yesterday, 2026-02-03, or 2026-02-03T10:00..2026-02-03T12:00 (UTC)",
    )
    made.add_argument("--top", type=int, default=25, help="rows of the long tables (default: %(default)s)")
    made.add_argument("--master", default="local[*]", help="local[*], spark://…, yarn, k8s://… (default: %(default)s)")
    made.add_argument(
        "--partitions", type=int, default=4, help="partitions of shuffles; use more for many millions of rows"
    )
    made.add_argument("--memory", default="1g", help="memory of the driver (default: %(default)s)")
    return made


def ingest_parser() -> argparse.ArgumentParser:
    """The command line."""
    made = _Parser(prog="gnatswarm ingest", description=DESCRIPTIONS["ingest"])
    _add_place(made.add_mutually_exclusive_group())
    made.add_argument("--out", required=True, help="directory of the Parquet tables")
    made.add_argument(
        "--checkpoint", default="", help="where the stream remembers what it has read (default: in --out)"
    )
    made.add_argument("--continuous", action="store_true", help="run until interrupted")
    made.add_argument(
        "--answers",
        default="",
        metavar="DIR",
        help="also keep the report's results of each day there, as Parquet; made anew when the day has new rows",
    )
    made.add_argument("--services", default="auto", metavar="BY", help="with --answers: as in `gnatswarm report`")
    made.add_argument("--every", default="30 seconds", help="with --continuous: how often (default: %(default)s)")
    made.add_argument(
        "--batch-mb", type=int, default=64, help="size of a batch's files, compressed (default: %(default)s)"
    )
    made.add_argument("--files-per-batch", type=int, default=0, help="instead of --batch-mb")
    made.add_argument("--master", default="local[*]", help="local[*], spark://…, yarn, k8s://… (default: %(default)s)")
    made.add_argument("--partitions", type=int, default=8, help="partitions of shuffles (default: %(default)s)")
    made.add_argument("--memory", default="1g", help="memory of the driver (default: %(default)s)")
    return made


def compact_parser() -> argparse.ArgumentParser:
    """The command line."""
    made = _Parser(prog="gnatswarm compact", description=DESCRIPTIONS["compact"])
    made.add_argument("--from-parquet", required=True, metavar="DIR", help="the tables of `gnatswarm ingest`")
    made.add_argument("--out", required=True, help="another directory, which `gnatswarm report` can read, too")
    made.add_argument(
        "--date", action="append", required=True, metavar="YYYY-MM-DD", help="a day (UTC); may be repeated"
    )
    made.add_argument("--master", default="local[*]", help="local[*], spark://…, yarn, k8s://… (default: %(default)s)")
    made.add_argument("--partitions", type=int, default=8, help="of shuffles (default: %(default)s)")
    made.add_argument("--memory", default="1g", help="of the driver (default: %(default)s)")
    return made


def place_parser() -> argparse.ArgumentParser:
    """The command line."""
    made = _Parser(prog="gnatswarm place", description=DESCRIPTIONS["place"])
    source = made.add_mutually_exclusive_group()
    _add_place(source)
    source.add_argument("--from-parquet", default="", metavar="DIR", help="the tables of `gnatswarm ingest`")
    made.add_argument("--out", default="placement.conf", help="the file (default: %(default)s)")
    made.add_argument("--shards", type=int, default=0, help="so many shards (default: those in the statistics)")
    made.add_argument("--services", default="name", choices=("name", "user"), help="place by (default: %(default)s)")
    made.add_argument(
        "--bound",
        type=float,
        default=1.25,
        help="the most load of a shard, in means (default: %(default)s)",
    )
    made.add_argument(
        "--least-gain",
        type=float,
        default=0.05,
        help="write nothing if a smaller share of deliveries would stop crossing (default: %(default)s)",
    )
    made.add_argument(
        "--check", default="", metavar="FILE", help="instead: what of this file's promise came true since"
    )
    made.add_argument("--master", default="local[*]", help="local[*], spark://…, yarn, k8s://… (default: %(default)s)")
    made.add_argument("--partitions", type=int, default=4, help="of shuffles (default: %(default)s)")
    made.add_argument("--memory", default="1g", help="of the driver (default: %(default)s)")
    return made


def suggest_permissions_parser() -> argparse.ArgumentParser:
    """The command line."""
    made = _Parser(
        prog="gnatswarm suggest-permissions",
        description=DESCRIPTIONS["suggest-permissions"],
        epilog="A token of a subject becomes * if so many values of it were seen beside the same other tokens, or "
        "three that all have digits, or one that looks random; never the first token, and never if that would allow "
        "what another user of the account did and this one did not.",
    )
    source = made.add_mutually_exclusive_group()
    _add_place(source)
    source.add_argument("--from-parquet", default="", metavar="DIR", help="the tables of `gnatswarm ingest`")
    made.add_argument("--out", default="permissions.conf", help="the file (default: %(default)s)")
    made.add_argument(
        "--dry-run",
        default="",
        metavar="FILE",
        help="instead: which messages and subscriptions of the recorded time this configuration would have denied; "
        "exit code 1 if any",
    )
    made.add_argument("--json", action="store_true", help="with --dry-run: the result as one JSON document")
    made.add_argument("--least-values", type=int, default=10, help="so many values make a * (default: %(default)s)")
    made.add_argument(
        "--date", action="append", metavar="YYYY-MM-DD", help="with --from-parquet: only this day; may be repeated"
    )
    made.add_argument("--broker", default="", metavar="ID", help="only the broker whose id begins with this")
    made.add_argument("--used", action="store_true", help="instead: what each user did, as lines of JSON for programs")
    made.add_argument("--master", default="local[*]", help="local[*], spark://…, yarn, k8s://… (default: %(default)s)")
    made.add_argument("--partitions", type=int, default=4, help="of shuffles (default: %(default)s)")
    made.add_argument("--memory", default="1g", help="of the driver (default: %(default)s)")
    return made


PARSERS = {
    "report": report_parser,
    "ingest": ingest_parser,
    "compact": compact_parser,
    "place": place_parser,
    "suggest-permissions": suggest_permissions_parser,
}


if __name__ == "__main__":
    PARSERS[sys.argv[1]]().print_help()
