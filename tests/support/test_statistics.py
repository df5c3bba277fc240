"""A test of statistics may run while an hour, or a day, ends."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.support.statistics import LEAST_LEFT_S, whole_window

HOUR_S = 3600


@given(st.floats(0, 4e9))
def test_a_whole_window_ends_behind_the_longest_test(now_s: float):
    length_s = int(whole_window(now_s).removesuffix("m")) * 60
    assert length_s - now_s % length_s >= LEAST_LEFT_S and length_s <= HOUR_S
