"""Alarms: the same conditions as the alerts of Prometheus, with since when they hold, and bounded in memory."""

from __future__ import annotations

import asyncio
import os
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gnatswarm.router.monitoring import alarms as module
from gnatswarm.router.monitoring import metrics
from gnatswarm.router.monitoring.alarm_rules import ALARM_RULES, Values
from gnatswarm.router.monitoring.alarms import MOST_PAST, Alarms, values
from gnatswarm.router.monitoring.facts import Facts
from gnatswarm.router.monitoring.shard_questions import Unanswered
from tests.router.monitoring.broker_facts import facts, shard
from tests.support.turns import until

CASES = Path(__file__).resolve().parents[3] / "deploy" / "prometheus" / "gnatswarm.rules.test.yml"
WELL: Values = {"healthy": {"": 1.0}}
ILL: Values = {"healthy": {"": 0.0}}
ANSWER: Values = {"unwanted_messages_total": {"0": 5.0}}


def alarms() -> Alarms:
    return Alarms(facts, None)  # type: ignore[arg-type]


def numbers(text: str) -> Iterator[float]:
    """The values of a series as promtool writes them: 7, 0x20, 0+7.5x80."""
    for word in text.split():
        found = re.fullmatch(r"([\d.e]+)(?:\+([\d.]+))?(?:x(\d+))?", word)
        assert found is not None, word
        for at in range(int(found[3] or 0) + 1):
            yield float(found[1]) + at * float(found[2] or 0)


def seconds(text: str) -> float:
    return float(text[:-1]) * {"s": 1, "m": 60}[text[-1]]


@pytest.mark.parametrize("case", yaml.safe_load(CASES.read_text())["tests"], ids=lambda case: case["name"])
def test_what_fires_in_prometheus_fires_here(case: dict[str, Any]) -> None:
    series: list[tuple[str, str, list[float]]] = []
    for one in case["input_series"]:
        name, labels = re.fullmatch(r"(?:gnatswarm_)?(\w+)\{(.*)\}", one["series"]).groups()  # type: ignore[union-attr]
        series.append((name, (re.findall(r'shard="(\d+)"', labels) or [""])[0], list(numbers(one["values"]))))
    step = seconds(case["interval"])
    seen = alarms()
    told = [one for one in case["alert_rule_test"] if one["alertname"] != "GnatswarmDown"]
    for at in range(max(len(found) for _, _, found in series)):
        now: dict[str, dict[str, float]] = {}
        for name, place, found in series:
            if at < len(found):
                now.setdefault(name, {})[place] = found[at]
        seen.take(at * step, int(at * step * 1e6) + 1, now)
        for one in told:
            if seconds(one["eval_time"]) == at * step:
                expected = {alert["exp_labels"].get("shard", "") for alert in one.get("exp_alerts", ())}
                assert {place for name, place in seen.firing() if f"Gnatswarm{name}" == one["alertname"]} == expected


def test_every_rule_has_what_the_page_shows() -> None:
    known = metrics.values(facts(shard(0))).keys() | {"unwanted_messages_total", "hubs", "hubs_configured"}
    for rule in ALARM_RULES:
        assert rule.severity in ("page", "ticket", "info")
        assert rule.action.endswith(".")
        if rule.condition is not None:
            assert set(re.findall(r"gnatswarm_(\w+)", rule.condition.promql)) <= known
    assert len({rule.name for rule in ALARM_RULES}) == len(ALARM_RULES)


def test_an_alarm_says_since_when_and_goes_to_the_past() -> None:
    seen = alarms()
    seen.take(0, 1_000_000, WELL)
    for at in (10, 20, 30):
        seen.take(at, (at + 1) * 1_000_000, ILL, "shard 1 is killed")
    (alarm,) = seen.document("here", 31_000_000)["alarms"]
    # Held for 20 of 30 seconds: it is shown already, but nobody is called.
    assert (alarm["alert"], alarm["state"], alarm["severity"]) == ("GnatswarmUnhealthy", "pending", "page")
    assert (alarm["since"], alarm["lasts"]) == ("1970-01-01T00:00:11Z", "20s")
    assert alarm["summary"].startswith("a shard of here") and alarm["detail"] == "shard 1 is killed"
    seen.take(40, 41_000_000, ILL)
    assert seen.document("here", 41_000_000)["alarms"][0]["state"] == "firing"
    seen.take(50, 51_000_000, WELL)
    document = seen.document("here", 61_000_000)
    assert document["alarms"] == []
    (past,) = document["past"]
    assert (past["since"], past["until"], past["ago"]) == ("1970-01-01T00:00:11Z", "1970-01-01T00:00:51Z", "10s")


def test_what_never_fired_is_not_in_the_past_and_the_past_is_bounded() -> None:
    seen = alarms()
    for at in range(3 * MOST_PAST):  # ten seconds ill, ten well: never for 30
        seen.take(at * 10, at * 10_000_000 + 1, ILL if at % 2 else WELL)
    assert seen.document("", 1)["past"] == []
    for at in range(3 * MOST_PAST):
        seen.take(10_000 + at * 100, at, {"config_reload_failed_time_seconds": {"": float(at % 3 > 0)}})
    assert len(seen.document("", 1)["past"]) == MOST_PAST
    assert len(seen._samples) <= 10


def test_the_next_router_goes_on_and_not_with_another_form() -> None:
    fd = os.memfd_create("alarms")
    first = Alarms(facts, None, fd=fd)  # type: ignore[arg-type]
    assert first.document("", 1)["watched_since"] is None
    first._asked = ANSWER
    counts = {"received_messages_total": {"0": 0.0}, "denied_messages_total": {"0": 0.0}}
    first.take(0, 1_000_000, {**WELL, **counts})
    first.take(10, 11_000_000, {**ILL, **counts, "denied_messages_total": {"0": 3.0}}, "shard 0 is killed")
    first.take(50, 51_000_000, {**WELL, **counts, "denied_messages_total": {"0": 3.0}})
    told = first.document("here", 60_000_000)
    assert [one["alert"] for one in told["alarms"]] == ["GnatswarmDenied"]
    assert [one["alert"] for one in told["past"]] == ["GnatswarmUnhealthy"]
    second = Alarms(facts, None, fd=fd)  # type: ignore[arg-type]
    assert second._asked == ANSWER
    # The first look of the next router: the counter has not grown since, but it has within the window.
    second.take(56, 57_000_000, {**WELL, **counts, "denied_messages_total": {"0": 3.0}})
    assert second.document("here", 60_000_000) == told
    assert list(second._samples)[:-1] == list(first._samples)
    for other in (b"", b"\x00" * 40, b"\xff" * 40, struct.pack("qq", 16, 5) + b"\x80" * 5):
        os.ftruncate(fd, 0)
        os.pwrite(fd, other, 0)
        assert Alarms(facts, None, fd=fd).document("", 1)["watched_since"] is None  # type: ignore[arg-type]
    os.close(fd)


def test_a_rule_that_another_version_does_not_have_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    fd = os.memfd_create("alarms")
    Alarms(facts, None, fd=fd).take(10, 11_000_000, ILL)  # type: ignore[arg-type]
    monkeypatch.setattr(module, "ALARM_RULES", [rule for rule in ALARM_RULES if rule.name != "Unhealthy"])
    assert Alarms(facts, None, fd=fd).present == []  # type: ignore[arg-type]
    os.close(fd)


def test_a_text_that_was_not_finished_does_not_replace_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    fd = os.memfd_create("alarms")
    memory = module._Memory(fd)
    for text in (b"one", b"two", b"three"):
        memory.write(text)
        assert memory.read() == text
    written = os.pwrite
    heads: list[int] = []

    def dies(fd: int, data: bytes, place: int) -> int:  # before it writes the head
        if place == 0:
            heads.append(len(data))
            return len(data)
        return written(fd, data, place)

    monkeypatch.setattr(os, "pwrite", dies)
    memory.write(b"four, which is longer")
    assert heads and memory.read() == b"three"
    os.close(fd)


def test_the_gravest_is_first() -> None:
    seen = alarms()
    counters = ("slow_consumers_total", "denied_messages_total", "shard_deaths_total")
    seen.take(0, 1, {name: {"0": 0.0} for name in counters})
    seen.take(5, 2, {name: {"0": 7.0} for name in counters})
    found = [alarm["alert"] for alarm in seen.document("", 2)["alarms"]]
    assert found == ["GnatswarmShardRestarts", "GnatswarmSlowConsumers", "GnatswarmDenied"]


def test_a_counter_that_began_again_has_not_fallen() -> None:
    seen = alarms()
    for at, count in enumerate((1000.0, 1000.0, 50.0, 90.0)):
        seen.take(at * 5, at, {"unwanted_messages_total": {"1": count}, "received_messages_total": {"1": count}})
    assert seen.firing() == set()
    seen.take(20, 9, {"unwanted_messages_total": {"1": 101.0}, "received_messages_total": {"1": 101.0}})
    assert seen.firing() == {("ToNobody", "")}


async def test_a_shard_that_does_not_answer_delays_no_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ASK_EVERY_S", 0.0)
    monkeypatch.setattr(module, "FRESH_S", 0.0)
    asked: list[Facts] = []
    may_answer = asyncio.Event()

    async def ask(seen: Facts) -> Values:
        asked.append(seen)
        await may_answer.wait()
        return ANSWER

    found = Alarms(lambda: facts(shard(0)), ask)
    found.refresh()
    assert not found._samples  # nobody watches
    found.start()
    await until(lambda: bool(asked))
    for _ in range(5):
        found.refresh()
    assert len(asked) == 1  # and no second question behind one that is not answered
    assert len(found._samples) == 2  # what was asked for in between is not kept
    may_answer.set()
    await until(lambda: found._asked == ANSWER)
    assert values(facts(shard(0)), found._asked)["unwanted_messages_total"] == {"0": 5.0}
    found.close()


async def test_the_last_counts_stay_when_a_shard_does_not_answer() -> None:
    async def ask(_: Facts) -> Values:
        if found._asked:
            raise Unanswered("shard 0 does not answer")
        return ANSWER

    found = Alarms(facts, ask)
    for _ in range(2):
        await found._ask(facts())
        assert found._asked == ANSWER


def test_nothing_is_wrong_with_a_broker_that_starts() -> None:
    starting = Alarms(lambda: facts(shard(0, phase="starting"), is_serving=False), None)  # type: ignore[arg-type]
    assert not starting._look()
    assert starting.document("", 1)["alarms"] == []


async def test_after_a_look_that_failed_there_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else no alarm would come any more, and those that fire would fire for ever."""
    looks: list[bool] = []
    loop = asyncio.get_running_loop()
    failed: list[object] = []
    loop.set_exception_handler(lambda _loop, context: failed.append(context.get("exception")))
    monkeypatch.setattr(module, "INTERVAL_S", 0.0)

    def gather() -> Facts:
        looks.append(True)
        if len(looks) < 3:
            raise ZeroDivisionError
        return facts()

    seen = Alarms(gather, None)  # type: ignore[arg-type]
    with pytest.raises(ZeroDivisionError):
        seen.start()
    await until(lambda: len(looks) >= 3)
    seen.close()
    assert [type(one) for one in failed] == [ZeroDivisionError]
