"""What is wrong with this broker now, since when, and what was wrong lately: the alarms of `/alarmz`.

Every five seconds, and when somebody asks, the conditions of `alarm_rules` are looked at, as Prometheus would with the
alerts of deploy/. A look asks no shard; what only shards know (the messages that nobody got, the hubs) is asked for at
leisure, so a shard that hangs delays nothing. Memory is bounded by the longest window of a condition, 15 minutes: 180
samples of some ten numbers for each shard, and the same encoded in a memfd that the keeper holds: another router goes
on with it. It runs while pages are served.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import msgspec

from gnatswarm.broker.goformat import age_text, time_text
from gnatswarm.router.monitoring import metrics
from gnatswarm.router.monitoring.aggregate import Document, health
from gnatswarm.router.monitoring.alarm_rules import ALARM_RULES, AlarmRule, Sample, Values
from gnatswarm.router.monitoring.facts import Facts
from gnatswarm.router.monitoring.page_query import BadQuery

INTERVAL_S = 5.0
# A broker that starts is looked at again after this long: the first look is what counters are compared with.
STARTING_S = 0.1
# Who asks again within this time gets the last look.
FRESH_S = 0.9
# With a recorder the shards count them once in a window, of ten seconds by default.
ASK_EVERY_S = 10.0
MOST_PAST = 100
_WINDOW_S = max(rule.condition.window_s for rule in ALARM_RULES if rule.condition is not None)
_NEEDED = {name for rule in ALARM_RULES if rule.condition is not None for name in rule.condition.needs}
_SEVERITIES = ("page", "ticket", "info")


class Alarm(NamedTuple):
    """A condition that holds on one shard, or ("") in the whole broker."""

    rule: AlarmRule
    shard: str
    since_s: float  # on the clock of the samples
    since_us: int  # since 1970
    value: float
    detail: str = ""
    until_us: int = 0  # 0: it still holds

    def is_firing(self, now_s: float) -> bool:
        """Whether it has held for long enough to ask for somebody."""
        return now_s - self.since_s >= self.rule.for_s


class _KeptAlarm(msgspec.Struct, frozen=True, array_like=True):
    """An alarm; its rule by name, because another version may have other rules."""

    rule: str
    shard: str
    since_s: float
    since_us: int
    value: float
    detail: str
    until_us: int


class _Kept(msgspec.Struct, frozen=True):
    """What another router goes on with. Times in seconds are of the monotonic clock, which all processes share."""

    began_us: int
    asked: dict[str, dict[str, float]]
    present: list[_KeptAlarm]
    past: list[_KeptAlarm]
    samples: list[msgspec.Raw]  # encoded when they were taken: most of them stay as they are from look to look


_samples = msgspec.msgpack.Decoder(tuple[float, dict[str, dict[str, float]]])


class _Memory:
    """A file in memory that has the last text written, or the one before: a router may be killed at any moment.

    Two places take turns, and the head, which says where the last text is, is written last.
    """

    _HEAD = struct.Struct("qq")  # place, length
    _PLACES = (_HEAD.size, 1 << 30)  # what lies between takes no memory

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def read(self) -> bytes:
        """The last text; b"": none."""
        head = os.pread(self._fd, self._HEAD.size, 0)
        if len(head) < self._HEAD.size:
            return b""
        place, length = self._HEAD.unpack(head)
        return os.pread(self._fd, length, place) if place in self._PLACES and length >= 0 else b""

    def write(self, text: bytes) -> None:
        """Replace the text. OSError: the last one stays."""
        last = os.pread(self._fd, self._HEAD.size, 0)
        is_second = len(last) < self._HEAD.size or self._HEAD.unpack(last)[0] != self._PLACES[1]
        place = self._PLACES[is_second]
        if os.pwrite(self._fd, text, place) == len(text):
            os.pwrite(self._fd, self._HEAD.pack(place, len(text)), 0)


class Alarms:
    """The alarms of one broker. `ask` asks the shards for those metrics that only they know; BadQuery: no answer.

    `fd`: the file in memory that another router may have left, and the next one gets; -1: none.
    """

    def __init__(self, gather: Callable[[], Facts], ask: Callable[[Facts], Awaitable[Values]], *, fd: int = -1) -> None:
        self._gather = gather
        self._ask_shards = ask
        self._samples: deque[Sample] = deque()
        self._present: dict[tuple[str, str], Alarm] = {}
        self._past: deque[Alarm] = deque(maxlen=MOST_PAST)
        self._began_us = 0
        self._now_s = 0.0
        self._asked_s = 0.0  # when the shards were asked last
        self._asked: Values = {}  # the last answer
        self._asking: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._encoded: dict[float, msgspec.Raw] = {}  # the samples, by their times
        self._kept_s = 0.0
        self._memory = _Memory(fd) if fd >= 0 else None
        if self._memory is not None:
            self._take_over(self._memory.read())

    def start(self) -> None:
        """Look now, and every five seconds from now on."""
        if self._timer is None:
            self._tick()

    def close(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._asking is not None:
            self._asking.cancel()

    def _tick(self) -> None:
        next_s = INTERVAL_S
        try:
            if not self._look():
                next_s = STARTING_S
        finally:  # a look that fails must not be the last one
            self._timer = asyncio.get_running_loop().call_later(next_s, self._tick)

    def refresh(self) -> None:
        """Look now, unless that was done within the last second, or they are not watched at all."""
        if self._timer is not None and time.monotonic() - self._now_s >= FRESH_S:
            self._look()

    def _look(self) -> bool:
        facts = self._gather()
        if not facts.is_serving:  # while it starts nothing is wrong yet
            return False
        now_s = time.monotonic()
        self.take(now_s, time.time_ns() // 1000, values(facts, self._asked), health(facts))
        if now_s - self._asked_s >= ASK_EVERY_S and (self._asking is None or self._asking.done()):
            self._asked_s = now_s
            self._asking = asyncio.get_running_loop().create_task(self._ask(facts))
        return True

    async def _ask(self, facts: Facts) -> None:
        with contextlib.suppress(BadQuery):  # a shard that answers pings and nothing else: the last counts stay
            self._asked = await self._ask_shards(facts)

    def take(self, now_s: float, now_us: int, found: Values, fault: str = "") -> None:
        """Look at these values; `fault`: what is wrong with the broker's health."""
        self._began_us = self._began_us or now_us
        self._now_s = now_s
        if len(self._samples) > 1 and now_s - self._samples[-2][0] < INTERVAL_S:
            self._samples.pop()  # somebody asked in between
        self._samples.append((now_s, found))
        while self._samples[0][0] < now_s - _WINDOW_S:
            self._samples.popleft()
        holding: dict[tuple[str, str], Alarm] = {}
        for rule in ALARM_RULES:
            if rule.condition is None:
                continue
            for shard, value in rule.condition.holds(self._samples).items():
                before = self._present.get((rule.name, shard))
                since_s, since_us = (before.since_s, before.since_us) if before is not None else (now_s, now_us)
                detail = fault if rule.name == "Unhealthy" else ""
                holding[rule.name, shard] = Alarm(rule, shard, since_s, since_us, value, detail)
        for key, alarm in self._present.items():
            if key not in holding and alarm.is_firing(now_s):
                self._past.appendleft(alarm._replace(until_us=now_us))
        is_news = self._present.keys() != holding.keys()
        self._present = holding
        if self._memory is not None and (is_news or now_s - self._kept_s >= INTERVAL_S):
            self._kept_s = now_s
            self._keep(self._memory)

    def _keep(self, memory: _Memory) -> None:
        """Write what another router needs."""
        encoded = self._encoded
        self._encoded = {
            sample[0]: encoded.get(sample[0]) or msgspec.Raw(msgspec.msgpack.encode(sample)) for sample in self._samples
        }
        present, past = ([_kept(alarm) for alarm in some] for some in (self._present.values(), self._past))
        state = _Kept(self._began_us, _plain(self._asked), present, past, list(self._encoded.values()))
        with contextlib.suppress(OSError):  # no memory: another router begins with what was written before
            memory.write(msgspec.msgpack.encode(state))

    def _take_over(self, text: bytes) -> None:
        """Go on with what another router has kept; with nothing if it is of another form."""
        try:
            kept = msgspec.msgpack.decode(text, type=_Kept)
            samples = [_samples.decode(one) for one in kept.samples]
        except msgspec.DecodeError:
            return
        self._began_us, self._asked = kept.began_us, kept.asked
        self._samples.extend(samples)
        present, past = ([alarm for one in some if (alarm := _known(one))] for some in (kept.present, kept.past))
        self._present = {(alarm.rule.name, alarm.shard): alarm for alarm in present}
        self._past.extend(past)

    @property
    def present(self) -> list[Alarm]:
        """All conditions that hold, the gravest and latest first."""
        return sorted(
            self._present.values(),
            key=lambda one: (not one.is_firing(self._now_s), _SEVERITIES.index(one.rule.severity), -one.since_us),
        )

    def asked(self, metric: str) -> float | None:
        """What the shards answered last for a metric of the broker; None: nothing yet."""
        return self._asked.get(metric, {}).get("")

    def firing(self) -> set[tuple[str, str]]:
        """(name of the rule, shard) of all that ask for somebody."""
        return {key for key, alarm in self._present.items() if alarm.is_firing(self._now_s)}

    def document(self, server_name: str, now_us: int) -> Document:
        """The lists of /alarmz."""
        present = [
            {"state": "firing" if alarm.is_firing(self._now_s) else "pending", **_document(alarm, server_name, now_us)}
            for alarm in self.present
        ]
        return {
            "interval": INTERVAL_S,
            "watched_since": time_text(self._began_us) if self._began_us else None,
            "alarms": present,
            "past": [_document(alarm, server_name, now_us) for alarm in self._past],
        }


def _plain(found: Values) -> dict[str, dict[str, float]]:
    return {name: dict(by_shard) for name, by_shard in found.items()}


def _kept(alarm: Alarm) -> _KeptAlarm:
    return _KeptAlarm(alarm.rule.name, *alarm[1:])


def _known(kept: _KeptAlarm) -> Alarm | None:
    """The alarm; None where this version has no such rule."""
    rule = next((rule for rule in ALARM_RULES if rule.name == kept.rule), None)
    return None if rule is None else Alarm(rule, *msgspec.structs.astuple(kept)[1:])


def values(facts: Facts, asked: Values) -> Values:
    """The metrics that conditions look at, as /metrics shows them."""
    return {name: by_shard for name, by_shard in (metrics.values(facts) | dict(asked)).items() if name in _NEEDED}


def _document(alarm: Alarm, server_name: str, now_us: int) -> Document:
    rule = alarm.rule
    document: Document = {
        "alert": f"Gnatswarm{rule.name}",
        "severity": rule.severity,
        "summary": rule.summary.format(broker=server_name, shard=alarm.shard),
        "detail": alarm.detail,
        "action": rule.action,
        "page": rule.page,
        "value": round(alarm.value, 3),
        "since": time_text(alarm.since_us),
        "lasts": age_text((alarm.until_us or now_us) - alarm.since_us),
    }
    if alarm.shard:
        document["shard"] = int(alarm.shard)
    if alarm.until_us:
        document |= {"until": time_text(alarm.until_us), "ago": age_text(now_us - alarm.until_us)}
    return document
