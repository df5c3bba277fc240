"""Amounts as people type them on a command line: `4k`, `1_000_000`, `1.5M`."""

from __future__ import annotations

import argparse
import re

# A comma stands between groups of three digits: who writes decimals with it would get ten times as much for 0,5.
_WHOLE = r"[1-9][0-9]{0,2}(?:,[0-9]{3})+|[0-9]+(?:_[0-9]+)*"


def size_bytes(text: str) -> int:
    """The number of bytes in `16`, `4k`, `1M`."""
    match = re.fullmatch(r"(\d+)\s*([kKmM]?)i?[bB]?", text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is no size (write 16, 4k or 1M)")
    return int(match[1]) * {"": 1, "k": 1024, "m": 1024**2}[match[2].lower()]


def count(text: str) -> int:
    """The number in `1000000`, `1_000_000`, `1,000,000`, `5k`, `1M`."""
    match = re.fullmatch(rf"({_WHOLE})([kKmM]?)", text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is no number{_comma_advice(text)}")
    return int(_plain(match[1])) * {"": 1, "k": 1000, "m": 1_000_000}[match[2].lower()]


def rate(text: str) -> float:
    """The rate per second in `2000`, `2,000`, `0.5`, `50k`, `1.5M`."""
    match = re.fullmatch(rf"([+-]?(?:(?:{_WHOLE})(?:\.[0-9]+)?|\.[0-9]+)(?:e[0-9]+)?)([kKmM]?)", text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is no rate (write 2000, 50k or 1.5M){_comma_advice(text)}")
    return float(_plain(match[1])) * {"": 1, "k": 1000, "m": 1_000_000}[match[2].lower()]


def _plain(number: str) -> str:
    return number.replace(",", "").replace("_", "")


def _comma_advice(text: str) -> str:
    return ": commas group thousands, as in 1,000; write 0.5 for a half" if "," in text else ""
