"""The histogram against a sorted list."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnatswarm.loadtest.histogram import Histogram

durations_ns = st.integers(0, 2**42)


def nearest_rank(values: list[int], percent: float) -> int:
    return sorted(values)[max(0, math.floor(len(values) * percent / 100 + 0.5) - 1)]


@given(st.lists(durations_ns, min_size=1), st.floats(0, 100))
def test_percentiles_are_within_a_thousandth(values: list[int], percent: float):
    histogram = Histogram()
    for value in values:
        histogram.record(value)
    exact = nearest_rank(values, percent)
    assert exact <= histogram.at(percent) <= exact + exact // 1000 + 1
    assert (histogram.count, histogram.min_ns, histogram.max_ns) == (len(values), min(values), max(values))
    assert histogram.mean_ns == pytest.approx(sum(values) / len(values), rel=1e-9)


@given(st.lists(durations_ns), st.lists(durations_ns))
def test_a_merged_histogram_is_that_of_all(first: list[int], second: list[int]):
    whole, parts = Histogram(), Histogram()
    for values in (first, second):
        one = Histogram()
        for value in values:
            one.record(value)
            whole.record(value)
        parts.merge(one.pairs(), one.min_ns, one.max_ns, one.mean_ns)
    assert parts.pairs() == whole.pairs()
    assert (parts.count, parts.min_ns, parts.max_ns) == (whole.count, whole.min_ns, whole.max_ns)


def test_a_correction_adds_what_was_not_asked_for_in_the_meantime():
    histogram = Histogram()
    histogram.record_corrected(1000, 300)
    assert [value for value, _ in histogram.pairs()] == [100, 400, 700, 1000]


def test_what_is_negative_or_too_long_counts_at_the_ends():
    histogram = Histogram()
    histogram.record(-5)
    histogram.record(2**60)
    assert (histogram.min_ns, histogram.max_ns, histogram.count) == (0, 2**60, 2)


def test_an_empty_one_says_nothing():
    histogram = Histogram()
    assert (histogram.at(99), histogram.mean_ns, bool(histogram), len(histogram)) == (0, 0.0, False, 0)


def test_a_percentage_is_one():
    histogram = Histogram()
    histogram.record(1)
    with pytest.raises(ValueError, match="not a percentage"):
        histogram.at(101)
