"""Makes locust record and show times below a millisecond.

Locust was built for web pages: it records and prints response times in whole milliseconds. A broker responds in tens of
microseconds, so every percentile would be 0. After `mend()` times have three significant digits down to 1 µs and are
shown with three decimals, in the console, CSV, JSON, HTML and web pages. CSV files also get the time after their last
regular write, which locust leaves out. Called by users.py; changes only locust.
"""

from __future__ import annotations

import logging
import math
from typing import Any

from locust import stats

DIGITS = 3
logger = logging.getLogger("gnatswarm.loadtest")


def bucket(response_time: float) -> float:
    """A time in ms, rounded to three significant digits but not below 1 µs; locust counts responses by these values."""
    if response_time <= 0:
        return 0.0
    return round(response_time, min(DIGITS, DIGITS - 1 - math.floor(math.log10(response_time))))


def mend() -> None:
    """Replace locust's functions that round times; may be called twice."""
    vars(stats)["bucket_response_time"] = bucket
    entry: Any = stats.StatsEntry
    entry.to_string = _to_string
    entry.percentile = _percentile
    if not hasattr(entry, "_to_dict_in_milliseconds"):
        entry._to_dict_in_milliseconds = entry.to_dict
        entry.to_dict = _to_dict
    writer: Any = stats.StatsCSV
    writer._percentile_fields = _percentile_fields
    files: Any = stats.StatsCSVFileWriter
    if not hasattr(files, "_close_as_they_are"):
        files._close_as_they_are = files.close_files
        files.close_files = _close_files


def _close_files(files: Any) -> None:
    """The last write of all. SystemExit where the disk is full, and files end somewhere."""
    try:
        for name in ("requests", "failures", "exceptions"):
            handle = getattr(files, f"{name}_csv_filehandle")
            handle.seek(0)
            getattr(files, f"{name}_csv")(getattr(files, f"{name}_csv_writer"))
            handle.truncate()
        files._close_as_they_are()
    except OSError as error:
        logger.error(f"the CSV files are not complete: {error.strerror}")
        raise SystemExit(1) from None


def _to_dict(entry: Any, escape_string_values: bool = False) -> dict[str, Any]:
    """As locust's, but with minimum and maximum unrounded."""
    words: dict[str, Any] = entry._to_dict_in_milliseconds(escape_string_values)
    least, most = entry.min_response_time or 0, entry.max_response_time
    return {**words, "min_response_time": round(least, DIGITS), "max_response_time": round(most, DIGITS)}


def _to_string(entry: Any, current: bool = True) -> str:
    """A line of the console's table, with the same columns as locust's."""
    rate = entry.current_rps if current else entry.total_rps
    failures = entry.current_fail_per_sec if current else entry.total_fail_per_sec
    name = f"{f'{entry.method} ' if entry.method else '':<{stats.STATS_TYPE_WIDTH}} {entry.name}"
    extremes = (entry.min_response_time or 0, entry.max_response_time)
    times = (entry.avg_response_time, *extremes, entry.median_response_time or 0)
    failed = f"{entry.num_failures}({entry.fail_ratio * 100:.2f}%)"
    return (
        f"{name:<{stats.STATS_NAME_WIDTH + 5}} {entry.num_requests:7d} {failed:>12} |"
        f"{' '.join(_short(one) for one in times)} | {rate or 0:7.1f} {failures or 0:11.2f}"
    )


def _short(milliseconds: float) -> str:
    return f"{milliseconds:7.{3 if milliseconds < 100 else 0}f}"


def _percentile(entry: Any) -> str:
    if not entry.num_requests:  # as in locust, whose caller leaves such a line out
        raise ValueError("no percentiles of nothing")
    times = [entry.get_response_time_percentile(one) for one in stats.PERCENTILES_TO_REPORT]
    cells = " ".join(f"{time:6.{3 if time < 10 else 2 if time < 100 else 0}f}" for time in times)
    head = f"{entry.method or '':<{stats.STATS_TYPE_WIDTH}} {entry.name:<{stats.STATS_NAME_WIDTH}}"
    return f"{head}   {cells} {entry.num_requests:6d}"  # locust's first column is two characters wider


def _percentile_fields(writer: Any, entry: Any, use_current: bool = False) -> list[Any]:
    if not entry.num_requests:
        return list(writer.percentiles_na)
    if use_current and entry.use_response_times_cache:
        return [entry.get_current_response_time_percentile(one) or 0 for one in writer.percentiles_to_report]
    return [entry.get_response_time_percentile(one) or 0 for one in writer.percentiles_to_report]
