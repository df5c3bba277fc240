"""Stamps and ledgers: what is lost, doubled or out of order is named; and how load is spread."""

from __future__ import annotations

import math
import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnatswarm.loadtest.correctness import STAMP_BYTES, Ledger, Stamp, Stamper
from gnatswarm.loadtest.distributions import MAX_PAYLOAD_BYTES, Arrivals, Zipf, payload_sizes


def faults(numbers: list[int]) -> list[str]:
    ledger = Ledger()
    return [ledger.fault("s", Stamp(0, 1, number, 0)) for number in numbers]


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ([1, 2, 3], ["", "", ""]),
        ([7, 8], ["", ""]),
        ([1, 4], ["", "lost: 2 missing"]),
        ([1, 1], ["", "came twice"]),
        ([1, 3, 2], ["", "lost: 1 missing", "out of order"]),
        ([1, 3, 2, 2], ["", "lost: 1 missing", "out of order", "came twice"]),
    ],
)
def test_a_ledger_names_what_is_wrong(numbers: list[int], expected: list[str]):
    assert faults(numbers) == expected


@given(st.integers(2, 50), st.data())
def test_one_fault_in_a_row_is_one_fault(count: int, data: st.DataObject):
    numbers = list(range(1, count + 1))
    at = data.draw(st.integers(1, count - 1))
    assert not any(faults(numbers))
    doubled = [*numbers[:at], numbers[at - 1], *numbers[at:]]
    assert [fault for fault in faults(doubled) if fault] == ["came twice"]
    lost = numbers[:at] + numbers[at + 1 :]
    assert [fault for fault in faults(lost) if fault] == (["lost: 1 missing"] if at < count - 1 else [])


def test_publishers_and_subjects_are_counted_apart():
    ledger = Ledger()
    first, second = Stamper(), Stamper()
    for subject in ("a", "b"):
        for stamper in (first, second):
            assert ledger.fault(subject, stamper.stamp(subject)) == ""
            assert ledger.fault(subject, stamper.stamp(subject)) == ""


@given(st.integers(0, 500))
def test_a_stamp_comes_back_from_its_payload(size_bytes: int):
    stamp = Stamper().stamp("s", due_s=12.5)
    payload = stamp.payload(size_bytes)
    assert len(payload) == max(size_bytes, STAMP_BYTES)
    assert Stamp.read(payload) == stamp
    assert stamp.due_ns == 12_500_000_000


def test_what_has_no_stamp_is_somebody_else_s():
    assert Stamp.read(b"hello") is None
    assert Stamp.read(b"x" * 100) is None


def test_latency_is_known_on_one_clock_alone():
    stamp = Stamper().stamp("s", due_s=time.monotonic() - 1)
    assert 1.0 <= (stamp.latency_s() or 0) < 5.0
    assert stamp._replace(clock_id=stamp.clock_id ^ 1).latency_s() is None


def test_zipf_prefers_the_first_as_it_should():
    rng = random.Random(1)
    drawn = [Zipf(10, 1.0).draw(rng) for _ in range(20_000)]
    harmonic = sum(1 / k for k in range(1, 11))
    for number in (0, 1, 9):
        assert drawn.count(number) / len(drawn) == pytest.approx(1 / (number + 1) / harmonic, rel=0.15)
    assert {Zipf(3, 0.0).draw(rng) for _ in range(100)} == {0, 1, 2}
    assert Zipf(1, 2.0).draw(rng) == 0


def test_however_far_a_log_normal_distribution_goes_a_payload_is_no_larger_than_the_largest():
    rng = random.Random(1)
    drawn = {payload_sizes("lognormal:5:1000")(rng) for _ in range(100)}
    assert {0, MAX_PAYLOAD_BYTES} <= drawn and max(drawn) == MAX_PAYLOAD_BYTES


@pytest.mark.parametrize(("n", "s"), [(0, 1.0), (5, -1.0), (5, math.nan), (5, math.inf), (10**9, 1.0)])
def test_a_zipf_distribution_that_is_none_is_refused(n: int, s: float):
    with pytest.raises(ValueError, match="Zipf"):
        Zipf(n, s)


@pytest.mark.parametrize(
    ("text", "least", "most"), [("256", 256, 256), ("16-64", 16, 64), ("lognormal:100:0.5", 5, 2000)]
)
def test_payload_sizes(text: str, least: int, most: int):
    rng = random.Random(1)
    sizes = [payload_sizes(text)(rng) for _ in range(500)]
    assert least <= min(sizes) and max(sizes) <= most


@pytest.mark.parametrize("text", ["", "x", "64-16", "-5", "99999999", "lognormal:1", "1-2-3"])
def test_sizes_that_are_none_are_refused(text: str):
    with pytest.raises(ValueError, match=r"size|payload"):
        payload_sizes(text)


def test_arrivals_do_not_wait_for_anybody():
    rng = random.Random(1)
    even = Arrivals(10, 5.0, rng, is_poisson=False)
    assert [round(even.next_s(), 9) for _ in range(3)] == [5.1, 5.2, 5.3]
    poisson = Arrivals(1000, 0.0, rng)
    due = [poisson.next_s() for _ in range(5000)]
    assert due == sorted(due)
    assert due[-1] == pytest.approx(5.0, rel=0.1)
    with pytest.raises(ValueError, match="more than 0"):
        Arrivals(0, 0.0, rng)
