"""Amounts of a command line mean what was typed, or are refused."""

from __future__ import annotations

import argparse

import pytest

from gnatswarm.loadtest.amounts import count, rate, size_bytes


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("0", 0),
        ("007", 7),
        ("1000000", 1_000_000),
        ("1_000_000", 1_000_000),
        ("1,000,000", 1_000_000),
        ("12,345", 12_345),
        ("5k", 5_000),
        ("1M", 1_000_000),
        ("1,000k", 1_000_000),
    ],
)
def test_counts(text: str, wanted: int):
    assert count(text) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("2000", 2000.0),
        ("2,000", 2000.0),
        ("2_000", 2000.0),
        ("0.5", 0.5),
        (".5", 0.5),
        ("50k", 50_000.0),
        ("1.5M", 1.5e6),
        ("1,000.5", 1000.5),
        ("1e3", 1000.0),
        ("-1", -1.0),
        ("+2", 2.0),
    ],
)
def test_rates(text: str, wanted: float):
    assert rate(text) == wanted


@pytest.mark.parametrize(
    "text", ["0,5", "1,5", "1,00", "1000,000", "1,0000", ",100", "1,", "0,001", "1_000,000", "1,000_000"]
)
def test_a_comma_that_groups_no_thousands_is_refused(text: str):
    for amount in (count, rate):
        with pytest.raises(argparse.ArgumentTypeError, match="commas group thousands"):
            amount(text)


@pytest.mark.parametrize("text", ["", "_", "1__0", "_1", "x", "1.", "5x", "nan", "1 000", "\u0663"])
def test_what_is_no_number_is_refused(text: str):
    for amount in (count, rate):
        with pytest.raises(argparse.ArgumentTypeError, match="is no"):
            amount(text)


def test_sizes():
    assert [size_bytes(text) for text in ("16", "4k", "1M", "2KiB")] == [16, 4096, 1024**2, 2048]
