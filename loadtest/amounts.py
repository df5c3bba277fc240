"""Amounts as people type them on a command line: `4k`, `1_000_000`, `1.5M`."""

from __future__ import annotations

import argparse
import re


def size_bytes(text: str) -> int:
    """The number of bytes in `16`, `4k`, `1M`."""
    match = re.fullmatch(r"(\d+)\s*([kKmM]?)i?[bB]?", text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is no size (write 16, 4k or 1M)")
    return int(match[1]) * {"": 1, "k": 1024, "m": 1024**2}[match[2].lower()]


def count(text: str) -> int:
    """The number in `1000000`, `1_000_000`, `5k`, `1M`."""
    match = re.fullmatch(r"([\d_,]+)([kKmM]?)", text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is no number")
    return int(match[1].replace(",", "").replace("_", "")) * {"": 1, "k": 1000, "m": 1_000_000}[match[2].lower()]


def rate(text: str) -> float:
    """The rate per second in `2000`, `0.5`, `50k`, `1.5M`."""
    match = re.fullmatch(r"([+-]?[\d_,]*\.?\d+(?:e\d+)?)([kKmM]?)", text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is no rate (write 2000, 50k or 1.5M)")
    return float(match[1].replace(",", "")) * {"": 1, "k": 1000, "m": 1_000_000}[match[2].lower()]
