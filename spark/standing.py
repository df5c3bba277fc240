"""Answers that stand: the report's results for each UTC day as Parquet, made anew when the day has new rows.

    <answers>/current                                         → refresh=<n>, exchanged at once
    <answers>/refresh=<n>/<answer>/date=<YYYY-MM-DD>/….parquet
    <answers>/refresh=<n>/made_of.json                        which batches of `ingest` each day was made of

A refresh is made beside those that stand: days without new rows are linked, not copied. Whoever reads `current` has one
refresh, whole; the one before it stays until the next. Processor time is bounded: after a refresh that took t seconds
the next begins 9 t later at the earliest, so refreshes take a tenth of the time.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TypedDict

from pyspark.sql import DataFrame, SparkSession

from gnatswarm.spark.answers import answers
from gnatswarm.spark.directories import absolute, unusable_text
from gnatswarm.spark.read import read_parquet

# Rows of each long answer of a day: more than a page shows, and bounded.
MOST_ROWS = 5000
# A refresh may take one part in so many of the time.
SHARE = 10
LEAST_PAUSE_S = 1.0
CURRENT = "current"
_PREFIX = "refresh="
_MADE_OF = "made_of.json"


class NotOurs(ValueError):
    """The directory of the answers cannot be used; the text says why, and what to do."""


class MadeOf(TypedDict):
    """What a refresh was made of."""

    services: str
    days: dict[str, list[str]]  # day → names of its batches, sorted


def batches_by_day(out: str) -> dict[str, list[str]]:
    """The complete batches of `ingest` that have rows of each day: day → names, sorted."""
    complete = {path.name for path in Path(out).glob("files/batch=*")}
    found: dict[str, set[str]] = {}
    for path in Path(out).glob("*/batch=*/date=*"):
        if path.parent.name in complete:
            found.setdefault(path.name.removeprefix("date="), set()).add(path.parent.name)
    return {day: sorted(batches) for day, batches in sorted(found.items())}


class StandingAnswers:
    """Keeps the answers in a local directory beside the tables in `out`. NotOurs."""

    def __init__(
        self, directory: str, out: str, services: str = "auto", clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`services`: as in `report --services`. `clock`: seconds."""
        if "://" in directory or "://" in out:
            raise NotOurs("--answers needs local directories, for itself and for --out: links exchange the answers")
        if why := unusable_text(directory):
            raise NotOurs(f"--answers: {why}")
        self._home = Path(directory)
        self._out = out
        self._services = services
        self._clock = clock
        self._next_at = clock()
        self._made_of: MadeOf = {"services": services, "days": {}}
        self._number = 0
        current = self._home / CURRENT
        if self._home.exists() and not self._home.is_dir():
            raise NotOurs(f"{directory} is no directory")
        if self._home.is_dir() and any(self._home.iterdir()) and not current.is_symlink():
            raise NotOurs(f"{directory} has something else than answers: choose an empty directory")
        if current.is_symlink():
            self._number = self._read(current)

    def _read(self, current: Path) -> int:
        """What stands, and its number; where that cannot be read, everything is made anew."""
        name = os.readlink(current)
        number = name.removeprefix(_PREFIX)
        if not name.startswith(_PREFIX) or not number.isdecimal():
            raise NotOurs(f"{current} links to {name!r}, not to {_PREFIX}<number>: choose an empty directory")
        with contextlib.suppress(OSError, ValueError):
            self._made_of = _checked(json.loads((current / _MADE_OF).read_text(encoding="utf-8")))
        return int(number)

    def due(self) -> dict[str, list[str]]:
        """The days with other batches than those their answers were made of: day → its batches.

        Never one of which a batch has gone: it was archived (`compact`), its answers stand, and a file that comes late
        would be all that is left of the day.
        """
        known = self._made_of["days"]
        are_same = self._made_of["services"] == self._services
        return {
            day: batches
            for day, batches in batches_by_day(self._out).items()
            if set(known.get(day, ())) <= set(batches) and not (are_same and known.get(day) == batches)
        }

    def refresh_if_due(self, session: SparkSession, is_stopped: Callable[[], bool] = lambda: False) -> list[str]:
        """`refresh`, unless it is too soon after the one before."""
        return self.refresh(session, is_stopped) if self._clock() >= self._next_at else []

    def refresh(self, session: SparkSession, is_stopped: Callable[[], bool] = lambda: False) -> list[str]:
        """Make the answers of each day that is due, and let them stand; returns these days.

        None if `is_stopped` says so between two answers: then the refresh before stands as it is.
        """
        began = self._clock()
        try:
            return self._refresh(session, is_stopped)
        finally:  # also after one that failed
            took_s = self._clock() - began
            self._next_at = self._clock() + max(LEAST_PAUSE_S, (SHARE - 1) * took_s)

    def _refresh(self, session: SparkSession, is_stopped: Callable[[], bool]) -> list[str]:
        days = self.due()
        if not days:
            return []
        self._home.mkdir(parents=True, exist_ok=True)
        making = self._home / f".{_PREFIX}{self._number + 1}"
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir()
        for day in days:
            for name, frame in self._answers(session, day).items():
                if is_stopped():
                    shutil.rmtree(making)
                    return []
                frame.coalesce(1).write.parquet(absolute(f"{making}/{name}/date={day}"))
        self._link_others(making, days)
        made_of: MadeOf = {"services": self._services, "days": self._made_of["days"] | days}
        (making / _MADE_OF).write_text(json.dumps(made_of, indent=1), encoding="utf-8")
        self._exchange(making)
        self._made_of = made_of
        return list(days)

    def _answers(self, session: SparkSession, day: str) -> Mapping[str, DataFrame]:
        statistics = read_parquet(session, self._out, [day])
        return answers(statistics, MOST_ROWS, self._services)

    def _link_others(self, making: Path, days: Collection[str]) -> None:
        """The other days' answers, as they stand."""
        for path in (self._home / CURRENT).glob("*/date=*/*"):
            answer, date = path.parts[-3:-1]
            if date.removeprefix("date=") not in days:
                (making / answer / date).mkdir(parents=True, exist_ok=True)
                os.link(path, making / answer / date / path.name)

    def _exchange(self, making: Path) -> None:
        """From now on this one stands; of older ones the last is left, for those who still read it."""
        self._number += 1
        stands = f"{_PREFIX}{self._number}"
        shutil.rmtree(self._home / stands, ignore_errors=True)  # of one that was killed before it stood
        os.rename(making, self._home / stands)
        link = self._home / f".{CURRENT}"
        link.unlink(missing_ok=True)
        link.symlink_to(stands)
        os.replace(link, self._home / CURRENT)
        for path in self._home.glob(f"{_PREFIX}*"):
            if path.name not in (stands, f"{_PREFIX}{self._number - 1}"):
                shutil.rmtree(path, ignore_errors=True)


def _checked(found: object) -> MadeOf:
    if not isinstance(found, dict):
        raise ValueError(_MADE_OF)
    services, days = found.get("services"), found.get("days")
    if not isinstance(services, str) or not isinstance(days, dict):
        raise ValueError(_MADE_OF)
    if not all(isinstance(batches, list) and all(isinstance(one, str) for one in batches) for batches in days.values()):
        raise ValueError(_MADE_OF)
    return {"services": services, "days": days}
