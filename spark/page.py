"""The report as one self-contained page: no script, no font, no request to anywhere; light and dark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any

from spark import svg
from spark.advice import Advice, Rows

STYLE = """
:root{color-scheme:light dark;--back:#fbfbf9;--text:#1d2328;--soft:#69727a;--rule:#dfe2e0;--card:#fff;--bar:#2a78b8;
--s0:#2a78b8;--s1:#d1601f;--s2:#2e8b57;--s3:#a13f8f;--s4:#b8860b;--s5:#4b5cc4;--s6:#b23a48;--s7:#3f8f8f}
@media(prefers-color-scheme:dark){:root{--back:#14181b;--text:#e4e7e6;--soft:#98a2a9;--rule:#2b3237;--card:#1b2125;
--bar:#5aa5e0;--s0:#5aa5e0;--s1:#f0905a;--s2:#62c08a;--s3:#d583c6;--s4:#dcb04a;--s5:#8e9bf0;--s6:#ea7a86;--s7:#72c4c4}}
*{box-sizing:border-box}body{margin:0 auto;max-width:1080px;padding:28px 20px 60px;background:var(--back);
color:var(--text);font:15px/1.5 system-ui,sans-serif}h1{font-size:25px;margin:0}h2{font-size:17px;margin:34px 0 8px}
p.sub,.none,small{color:var(--soft)}.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:10px;
margin:20px 0}.card{background:var(--card);border:1px solid var(--rule);border-radius:8px;padding:10px 14px}
.card b{display:block;font-size:22px;font-variant-numeric:tabular-nums}.card span{color:var(--soft);font-size:13px}
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:13.5px}
th,td{padding:4px 10px 4px 0;border-bottom:1px solid var(--rule);text-align:right;white-space:nowrap}
th:first-child,td:first-child{text-align:left}th{color:var(--soft);font-weight:500}ol li{margin:6px 0}
svg{width:100%;max-width:760px;height:auto;font:12px system-ui,sans-serif}svg text{fill:var(--text)}
svg .label{fill:var(--soft)}.bar{fill:var(--bar)}.axis{stroke:var(--rule);fill:none}.line{fill:none;stroke-width:1.8}
""" + "".join(f".line.s{i}{{stroke:var(--s{i})}}svg .key.s{i},.dot.s{i}{{fill:var(--s{i})}}" for i in range(8))


def page(answers: Mapping[str, Rows], advice: Sequence[Advice], source: str) -> str:
    """All of it, from collected answers."""
    totals = answers["totals"][0]
    spread = answers["fanout"][0]
    crossed = answers["crossed"][0]
    times = [row["window_start_us"] for row in answers["over_time"]]
    span = f"{_time(min(times))} to {_time(max(times))}" if times else "no windows"
    cards = [
        (f"{totals['in_msgs']:,}", "messages published"),
        (f"{totals['out_msgs']:,}", "deliveries"),
        (_number(spread["mean"]), "fan-out, mean"),
        (f"{_number(spread['p50'])} / {_number(spread['p99'])}", "fan-out, median / p99"),
        (_percent(crossed["share"]), "of deliveries crossed shards"),
        (f"{totals['unwanted_msgs']:,}", "messages nobody wanted"),
        (str(len(answers["shards"])), "shards"),
        (str(sum(row["times"] for row in answers["slow"])), "slow consumers closed"),
    ]
    shards = [row["shard"] for row in answers["shards"]]
    cells = {
        (shards.index(row["from_shard"]), shards.index(row["to_shard"])): float(row["deliveries"])
        for row in answers["matrix"]
        if row["from_shard"] in shards and row["to_shard"] in shards
    }
    said = "".join(f"<li><b>{escape(one.what)}</b><br><small>{escape(one.figures)}</small></li>" for one in advice)
    sections = [
        ("Advice", f"<ol>{said}</ol>" if said else '<p class="none">Nothing to change: it runs as it should.</p>'),
        ("How wide messages go, within a shard", svg.bars(_width_rows(answers["widths"]), "messages")),
        (
            "Fan-out per subject and window, weighted by messages",
            _table(answers["fanout"], ["msgs", "deliveries", "mean", "p50", "p90", "p99", "p100"]),
        ),
        (
            "Hottest subjects",
            svg.bars([(row["subject"], float(row["deliveries"])) for row in answers["hottest"][:12]], "deliveries")
            + _table(
                answers["hottest"],
                ["subject", "account", "msgs", "bytes", "deliveries", "fanout", "widest", "crossed", "unwanted",
                 "error"],
            ),
        ),
        ("Messages in and out by shard", svg.lines(_over_time(answers["over_time"], "msgs_per_s"), "per second")),
        (
            "The shards",
            _table(
                answers["shards"],
                ["shard", "connections", "subscriptions", "in_msgs", "out_msgs", "link_out_msgs", "link_in_msgs",
                 "cpu_share", "resident_bytes", "stalls", "lag_max_us", "lost_windows"],
            )
            + _table(answers["skew"], ["measure", "n", "sum", "min", "max", "max_to_mean", "gini"]),
        ),
        ("Which shard feeds which (deliveries)", svg.matrix([str(shard) for shard in shards], cells)),
        (
            "Subjects that cross most",
            _table(answers["crossing"][:12], ["subject", "account", "msgs", "crossed", "deliveries"]),
        ),
        (
            "Links",
            _table(answers["links"], ["from_shard", "to_shard", "msgs", "bytes", "peak_pending_bytes", "paused_us"]),
        ),
        (
            "Queue groups",
            _table(
                answers["queues"],
                ["queue", "subject", "account", "members", "deliveries", "least", "most", "max_to_mean", "gini"],
            ),
        ),
        ("Subjects nobody wants", _table(answers["unwanted"], ["subject", "account", "msgs", "unwanted", "share"])),
        (
            "Slow consumers",
            _table(answers["slow"], ["name", "user", "ip", "subject", "reason", "times", "most_pending_bytes"]),
        ),
        ("Event loops: p99 of how late timers were", svg.lines(_over_time(answers["over_time"], "lag_p99_us"), "µs")),
        (
            "Gaps: what shards that died took with them",
            _table(answers["gaps"], ["shard", "window_start_us", "window_us", "in_msgs", "out_msgs", "reason"]),
        ),
        ("Lines that could not be used", _table(answers["aside"], ["why", "count"])),
    ]  # fmt: skip
    body = "".join(f"<h2>{escape(title)}</h2><div class=wide>{text}</div>" for title, text in sections)
    shown = "".join(f"<div class=card><b>{escape(value)}</b><span>{escape(name)}</span></div>" for value, name in cards)
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>gnatswarm report</title><style>{STYLE}</style><h1>gnatswarm report</h1>"
        f'<p class="sub">{escape(span)} UTC, from {escape(source)}</p><div class="cards">{shown}</div>{body}</html>\n'
    )


def _width_rows(rows: Rows) -> list[tuple[str, float]]:
    found = []
    for row in rows:
        width = str(row["least"]) if row["least"] == row["most"] else f"{row['least']}–{row['most']}"
        origin = "" if row["origin"] == "client" else ", from siblings"
        found.append((f"{width} subscriber{'' if width == '1' else 's'}{origin}", float(row["msgs"])))
    return found


def _over_time(rows: Rows, column: str) -> list[tuple[str, list[tuple[float, float]]]]:
    series: dict[int, list[tuple[float, float]]] = {}
    for row in rows:
        series.setdefault(row["shard"], []).append((row["window_start_us"] / 1e6, float(row[column] or 0)))
    return [(f"shard {shard}", line) for shard, line in sorted(series.items())]


def _table(rows: Rows, columns: Sequence[str]) -> str:
    if not rows:
        return '<p class="none">none</p>'
    head = "".join(f"<th>{escape(name.replace('_', ' '))}</th>" for name in columns)
    lines = "".join(
        "<tr>" + "".join(f"<td>{_cell(name, row[name])}</td>" for name in columns) + "</tr>" for row in rows
    )
    return f"<table><tr>{head}</tr>{lines}</table>"


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "–"
    if name == "window_start_us":
        return escape(_time(value))
    if name in ("share", "cpu_share"):
        return _percent(value)
    if isinstance(value, float):
        return _number(value)
    return f"{value:,}" if isinstance(value, int) and name not in ("shard",) else escape(str(value))


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}" if value >= 1000 or value == int(value) else f"{value:.2f}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def _time(at_us: int) -> str:
    return datetime.fromtimestamp(at_us / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S")
