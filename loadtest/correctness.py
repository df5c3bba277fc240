"""Checks that every published message arrives once and in order.

Every checked payload begins with a stamp: its publisher, its number among the publisher's messages on the subject, and
the time when it was due. A Ledger per subscription checks the stamps and reports missing, duplicated and reordered
messages. Messages before the first and after the last one that a ledger has seen of a publisher are not reported.
"""

from __future__ import annotations

import os
import struct
import time
import zlib
from pathlib import Path
from typing import NamedTuple

_FORMAT = struct.Struct("!4sIQQQ")
_MAGIC = b"GNLT"
STAMP_BYTES = _FORMAT.size


def _clock_id() -> int:
    """An id that is the same in all processes with the same monotonic clock: on one machine, until its next boot."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_bytes()
    except OSError:
        boot = str(os.getpid()).encode()
    return zlib.crc32(boot)


CLOCK_ID = _clock_id()


class Stamp(NamedTuple):
    """The beginning of a checked payload."""

    clock_id: int
    publisher: int
    number: int  # from 1, on one subject
    due_ns: int  # monotonic clock of the publisher's machine

    def payload(self, size_bytes: int) -> bytes:
        """The stamp filled up to `size_bytes`; never less than the stamp."""
        head = _FORMAT.pack(_MAGIC, *self)
        return head + b"x" * (size_bytes - len(head))

    @classmethod
    def read(cls, payload: bytes) -> Stamp | None:
        """The stamp of a payload; None if the message is not one of ours."""
        if len(payload) < STAMP_BYTES or not payload.startswith(_MAGIC):
            return None
        return cls(*_FORMAT.unpack_from(payload)[1:])

    def latency_s(self) -> float | None:
        """Time since it was due; None if it comes from a machine with another clock."""
        return (time.monotonic_ns() - self.due_ns) / 1e9 if self.clock_id == CLOCK_ID else None


class Stamper:
    """Makes one publisher's stamps."""

    def __init__(self) -> None:
        self.publisher = int.from_bytes(os.urandom(8), "big")
        self._numbers: dict[str, int] = {}

    def stamp(self, subject: str, due_s: float | None = None) -> Stamp:
        """The next stamp on that subject; due now unless `due_s` is given."""
        number = self._numbers.get(subject, 0) + 1
        self._numbers[subject] = number
        due_ns = time.monotonic_ns() if due_s is None else round(due_s * 1e9)
        return Stamp(CLOCK_ID, self.publisher, number, due_ns)


class Ledger:
    """The messages that one subscription has received, by publisher and subject."""

    def __init__(self) -> None:
        self._last: dict[tuple[int, str], int] = {}
        self._missing: dict[tuple[int, str], set[int]] = {}

    def fault(self, subject: str, stamp: Stamp) -> str:
        """What is wrong with this message's number, without details that would split a statistic; "": nothing."""
        key = (stamp.publisher, subject)
        last = self._last.get(key)
        if last is None or stamp.number == last + 1:
            self._last[key] = stamp.number
            return ""
        if stamp.number > last:
            self._last[key] = stamp.number
            # Numbers of missing messages are kept, to tell a late message from a duplicate.
            self._missing.setdefault(key, set()).update(range(max(last + 1, stamp.number - 10_000), stamp.number))
            return f"lost: {stamp.number - last - 1} missing"
        missing = self._missing.get(key, set())
        if stamp.number in missing:
            missing.discard(stamp.number)
            return "out of order"
        return "came twice"
