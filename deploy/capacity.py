"""Writes the tables of deploy/CAPACITY.md from a comparison's results: `make reference`. A test compares them.

Medians of the runs, as the results' own page has them. The only calculation is marked as one.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = Path(__file__).with_name("CAPACITY.md")
RESULTS = max((ROOT / "loadtest" / "results").glob("*/results.json"))  # the latest

# What to plan by: scenario → in words.
ONE_SHARD = {
    "1:1 16 B": "one publisher, one subscriber, 16 bytes",
    "1:1 128 B": "the same, 128 bytes",
    "1:1 4 KB": "the same, 4 KB",
    "1:10 16 B": "fan-out to ten, 16 bytes",
    "10:10 128 B": "ten publishers, ten subscribers of all, 128 bytes",
    "queue of 4": "a queue group of four, 16 bytes",
    "rotating 1,000": "1,000 rotating subjects, a wildcard subscriber",
    "rotating 100,000": "100,000 rotating subjects, a wildcard subscriber",
    "1 per write": "one message per write()",
    "request 50": "request and reply, 50 clients",
}


def runs() -> list[dict[str, object]]:
    """Every run of the comparison."""
    return list(json.loads(RESULTS.read_text(encoding="utf-8"))["runs"])


def median(scenario: str, server: str, figure: str) -> float | None:
    """The median of one figure; None: not measured."""
    found = [run[figure] for run in runs() if (run["scenario"], run["server"]) == (scenario, server)]
    numbers = [float(value) for value in found if isinstance(value, int | float)]  # type: ignore[arg-type]
    return statistics.median(numbers) if numbers else None


def tables() -> dict[str, str]:
    """The text between each pair of markers."""
    messages = ["| traffic | CPU, one shard | nats-server | one core, at most (calculated) |", "|---|---|---|---|"]
    shards = ["| traffic | 1 shard | 2 shards | 4 shards on two cores |", "|---|---|---|---|"]
    for scenario, words in ONE_SHARD.items():
        ours = [median(scenario, f"gnatswarm-{count}", "cpu_us") for count in (1, 2, 4)]
        theirs = median(scenario, "nats-server", "cpu_us")
        assert ours[0] is not None and theirs is not None, scenario
        per_second = 1e6 / ours[0]
        shown = f"{per_second / 1e6:.1f} million/s" if per_second >= 1e6 else f"{round(per_second, -3):,.0f}/s"
        messages.append(f"| {words} | {ours[0]:.4g} µs | {theirs:.4g} µs ({theirs / ours[0]:.1f} times) | {shown} |")
        shards.append(f"| {words} | " + " | ".join("–" if cpu is None else f"{cpu:.4g} µs" for cpu in ours) + " |")
    memory = ["| what | one shard | nats-server |", "|---|---|---|"]
    for scenario, words in MEMORY.items():
        ours_bytes, theirs_bytes = (
            median(scenario, server, "memory_bytes") for server in ("gnatswarm-1", "nats-server")
        )
        assert ours_bytes is not None and theirs_bytes is not None, scenario
        memory.append(f"| {words} | {ours_bytes:,.0f} bytes | {theirs_bytes:,.0f} bytes |")
    return {"messages": "\n".join(messages), "shards": "\n".join(shards), "memory": "\n".join(memory)}


MEMORY = {
    "5,000 connections": "an idle connection with one subscription",
    "100,000 subscriptions": "one more subscription (100,000 on one connection)",
}


def page(text: str) -> str:
    """The page with its tables made anew."""
    for name, table in tables().items():
        begin, rest = text.split(f"<!-- {name} -->\n", 1)
        text = f"{begin}<!-- {name} -->\n\n{table}\n\n{rest[rest.index('<!-- end -->') :]}"
    return text


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"{PAGE} is written")
