"""The report as one self-contained page: no scripts, no fonts, no requests; light and dark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from gnatswarm.spark import charts, svg
from gnatswarm.spark.advice import Advice, Rows
from gnatswarm.spark.figures import HEADINGS, bucket, clock, moment, number, percent, shown
from gnatswarm.spark.schema import GATEWAY

STYLE = """
:root{color-scheme:light dark;--back:#fbfbf9;--text:#1d2328;--soft:#5f6870;--rule:#dfe2e0;--card:#fff;--bar:#2a78b8;
--s0:#2a78b8;--s1:#c4561a;--s2:#2e8b57;--s3:#a13f8f;--s4:#9a7209;--s5:#4b5cc4;--s6:#b23a48;--s7:#2f8080}
@media(prefers-color-scheme:dark){:root{--back:#14181b;--text:#e4e7e6;--soft:#9aa4ab;--rule:#2b3237;--card:#1b2125;
--bar:#5aa5e0;--s0:#5aa5e0;--s1:#f0905a;--s2:#62c08a;--s3:#d583c6;--s4:#dcb04a;--s5:#8e9bf0;--s6:#ea7a86;--s7:#72c4c4}}
*{box-sizing:border-box}body{margin:0 auto;max-width:1080px;padding:28px 20px 60px;background:var(--back);
color:var(--text);font:15px/1.5 system-ui,sans-serif}h1{font-size:25px;margin:0}h2{font-size:17px;margin:34px 0 2px}
p.sub,p.why,.none,small{color:var(--soft)}p.why{margin:0 0 10px;font-size:13.5px;max-width:760px}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:10px;margin:20px 0}
.card{background:var(--card);border:1px solid var(--rule);border-radius:8px;padding:10px 14px}
.card b{display:block;font-size:22px;font-variant-numeric:tabular-nums}.card span{color:var(--soft);font-size:13px}
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:13.5px;
margin-bottom:10px}th,td{padding:4px 0 4px 14px;border-bottom:1px solid var(--rule);text-align:right;
white-space:nowrap}th:first-child,td:first-child{padding-left:0}.word{text-align:left}th{color:var(--soft);
font-weight:500}ol li{margin:8px 0}
svg{width:100%;min-width:480px;max-width:760px;height:auto;font:12px system-ui,sans-serif}svg text{fill:var(--text)}
svg .label{fill:var(--soft)}.bar{fill:var(--bar)}.axis{stroke:var(--rule);fill:none}.line{fill:none;stroke-width:1.8}
""" + "".join(f".line.s{i}{{stroke:var(--s{i})}}svg .key.s{i},.dot.s{i}{{fill:var(--s{i})}}" for i in range(8))


def page(answers: Mapping[str, Rows], advice: Sequence[Advice], source: str) -> str:
    """The whole page, from collected results."""
    items = "".join(f"<li><b>{escape(one.what)}</b><br><small>{escape(one.figures)}</small></li>" for one in advice)
    nothing = '<p class="none">Nothing to change: it runs as it should.</p>'
    sections = [
        ("Advice", "", f"<ol>{items}</ol>" if items else nothing),
        *_brokers(answers),
        *_of_services(answers),
        *_of_subjects(answers),
        *_of_shards(answers),
        *_of_trouble(answers),
    ]
    empty = [title for title, _, text in sections if not text]
    body = "".join(
        f"<h2>{escape(title)}</h2>"
        + (f'<p class="why">{escape(why)}</p>' if why else "")
        + f"<div class=wide>{text}</div>"
        for title, why, text in sections
        if text
    )
    if empty:
        body += f'<h2>Nothing to show</h2><p class="none">{escape("; ".join(empty))}.</p>'
    cards = "".join(
        f"<div class=card><b>{escape(value)}</b><span>{escape(name)}</span></div>" for value, name in _cards(answers)
    )
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>gnatswarm report</title><style>{STYLE}</style><h1>gnatswarm report</h1>"
        f'<p class="sub">{escape(_span(answers))}, from {escape(source)}</p>'
        f'<div class="cards">{cards}</div>{body}</html>\n'
    )


Section = tuple[str, str, str]  # title, explanation, HTML ("": nothing to show)


def _span(answers: Mapping[str, Rows]) -> str:
    brokers = answers["brokers"]
    if not brokers:
        return "no windows"
    first, last = min(row["first_us"] for row in brokers), max(row["last_us"] for row in brokers)
    return f"{moment(first)} to {moment(last)} UTC"


def _cards(answers: Mapping[str, Rows]) -> list[tuple[str, str]]:
    totals, spread, crossed = answers["totals"][0], answers["fanout"][0], answers["crossed"][0]
    return [
        (f"{totals['in_msgs']:,}", "messages published"),
        (f"{totals['out_msgs']:,}", "deliveries"),
        (number(spread["mean"]), "fan-out, mean"),
        (f"{number(spread['p50'])} / {number(spread['p99'])}", "fan-out, median / p99"),
        (percent(crossed["share"]), "of deliveries from another shard"),
        (f"{totals['unwanted_msgs']:,}", "messages without subscribers"),
        (str(sum(row["is_current"] for row in answers["shards"])), "shards"),
        (str(sum(row["times"] for row in answers["slow"])), "slow consumers closed"),
    ]


def _brokers(answers: Mapping[str, Rows]) -> list[Section]:
    rows = answers["brokers"] if len(answers["brokers"]) > 1 else []
    columns = ["broker", "first_us", "last_us", "shards", "in_msgs", "out_msgs"]
    why = "Each start of a broker has a new id. The figures below are of all of them; --broker selects one."
    return [("Brokers that wrote here", why, _table(rows, columns))] if rows else []


def _of_subjects(answers: Mapping[str, Rows]) -> list[Section]:
    spread = answers["fanout"][0]
    marks = ", ".join(f"{name} {number(spread[key])}" for key, name in (
        ("p50", "median"), ("p90", "p90"), ("p99", "p99"), ("p100", "most"))
    )  # fmt: skip
    return [
        (
            "Fan-out",
            "Messages by the fan-out of their subject in their window: deliveries on all shards ÷ messages published. "
            f"{marks}. A delivery counts in the window in which it was made.",
            svg.bars(
                [(f"{bucket(row)} ({row['subjects']:,} subjects)", row["msgs"]) for row in answers["fanouts"]],
                "messages",
            ),
        ),
        (
            "Hottest subjects",
            "By deliveries, also of messages that other servers sent, which are not among the messages here. crossed: "
            "frames sent to other shards, and to the gateway for other servers. may lack: at most so many more "
            "messages; not zero if there were too many subjects to count each.",
            svg.bars(charts.hottest(answers["hottest"]), "deliveries")
            + _table(
                answers["hottest"],
                ["subject", "account", "msgs", "bytes", "deliveries", "fanout", "crossed", "unwanted", "error"],
            ),
        ),
        (
            "Subjects without subscribers",
            "Messages published while there was no subscriber on any shard. "
            "gnatswarm why SUBJECT says who would get one now, and which rule stops it.",
            _table(answers["unwanted"], ["subject", "account", "msgs", "unwanted", "share"]),
        ),
        (
            "Queue groups",
            "Members that got messages. If all got the same number, max to mean is 1, and Gini 0.",
            _table(
                answers["queues"],
                ["queue", "subject", "account", *(["broker"] if len(answers["brokers"]) > 1 else []),
                 "members", "deliveries", "least", "most", "max_to_mean", "gini"],
            ),
        ),
        (
            "Fan-out of single messages within a shard",
            "Messages by the number of subscribers that they reached on the publisher's shard, or on another shard.",
            svg.bars(
                [
                    (f"{bucket(row)}{'' if row['origin'] == 'client' else ', from siblings'}", row["msgs"])
                    for row in answers["widths"]
                ],
                "messages",
            ),
        ),
    ]  # fmt: skip


MOST_DRAWN_ROWS = 40


def _of_services(answers: Mapping[str, Rows]) -> list[Section]:
    services = [row for row in answers.get("services", []) if row["in_msgs"] or row["out_msgs"] or row["opened"]]
    return [
        (
            "What has changed",
            "Talkers of this period against those of the period that it is compared with, in messages per second: new, "
            "gone, at least twice as busy (more), or half (less).",
            _table(
                answers.get("changes", []),
                ["change", "from_service", "subject", "to_service", "account", "before_per_s", "now_per_s"],
            ),
        ),
        (
            "Who talks to whom",
            "Messages delivered, from services (left) to services (right). A service is what clients' names have in "
            "common, else their user, else library and address (--services). Deliveries of a subject are shared among "
            "its publishers.",
            svg.graph(charts.between_services(answers.get("service_matrix", [])), "messages"),
        ),
        (
            "The heaviest talkers",
            "crossed: of these messages, delivered on another shard than that of their publisher.",
            _table(
                answers.get("edges", [])[:MOST_DRAWN_ROWS],
                ["from_service", "subject", "to_service", "account", "msgs", "bytes", "crossed_msgs", "queues"],
            ),
        ),
        (
            "Services",
            "clients: connections that were seen. opened, closed: of them, in this time.",
            _table(
                services[:MOST_DRAWN_ROWS],
                ["service", "account", "in_msgs", "in_bytes", "out_msgs", "clients", "opened", "closed", "on_shards"],
            ),
        ),
        (
            "What goes from shard to shard, and whose it is",
            "Services that talk much and sit on different shards: `gnatswarm place` finds a better place for them.",
            _table(
                answers.get("who_crosses", []),
                ["from_service", "subject", "to_service", "account", "msgs", "crossed_msgs", "crossed_share"],
            ),
        ),
        (
            "Subjects that depend on one",
            "One client publishes (publishers: 1) or one receives (listeners: 1). `gnatswarm report --explain SUBJECT` "
            "says who would miss it.",
            _table(
                answers.get("lone", []),
                ["subject", "account", "msgs", "publishers", "one_publisher", "listeners", "one_listener"],
            ),
        ),
        (
            "Requests",
            "Who asks whom. replies: all answers of the responder to the requester, on any subject.",
            _table(
                answers.get("pairs", []),
                ["requester", "subject", "responder", "account", "requests", "replies", "requests_per_s"],
            ),
        ),
        (
            "Clients that come and go",
            "Each log-in costs as much as thousands of messages: keep connections open.",
            _table(
                answers.get("churners", []),
                ["service", "account", "ip", "opened", "closed", "msgs", "opened_per_minute"],
            ),
        ),
    ]


def _of_shards(answers: Mapping[str, Rows]) -> list[Section]:
    used = [row for row in answers["links"] if row["msgs"] or row["paused_us"]]
    delivered = {(row["from_shard"], row["to_shard"]): row["deliveries"] for row in answers["matrix"]}
    outside = [
        {**row, "deliveries": delivered.get((row["from_shard"], row["to_shard"]))}
        for row in used
        if GATEWAY in (row["from_shard"], row["to_shard"])
    ]
    return [
        (
            "Messages in and out by shard",
            "Per second.",
            svg.lines(charts.over_time(answers["over_time"], "msgs_per_s"), "per second", clock),
        ),
        (
            "Processor time by shard",
            "Percent of one core; a shard cannot use more than one.",
            svg.lines(charts.over_time(answers["over_time"], "cpu_share", 100), "%", clock),
        ),
        (
            "The shards",
            "Connections and subscriptions are the maximum of all windows, each taken at its end: a client that moved "
            "is among those of both shards. In a restart other shards serve for a moment.",
            _table(
                answers["shards"],
                [
                    "shard", "connections", "subscriptions", "in_msgs", "out_msgs", "link_out_msgs", "link_in_msgs",
                    "cpu_share", "resident_bytes", "stalls", "lag_max_us", "lost_windows",
                ],
            ),
        ),
        (
            "How even the shards are",
            "If all shards do the same, max to mean is 1, and Gini 0. work: all messages in and out, including links.",
            _table(
                answers["skew"] if len(answers["shards"]) > 1 else [],
                ["measure", "n", "sum", "min", "max", "max_to_mean", "gini"],
            ),
        ),
        (
            "Deliveries from shard to shard",
            "By the publisher's shard (rows) and the subscriber's shard (columns). The diagonal is within one shard.",
            svg.matrix(*charts.between_shards(answers["shards"], answers["matrix"])),
        ),
        (
            "Subjects with most traffic between shards",
            "crossed: frames sent to other shards, and to the gateway. One frame serves all subscribers of a shard.",
            _table(answers["crossing"][:12], ["subject", "account", "msgs", "crossed", "deliveries", "fanout"]),
        ),
        (
            "From and to other servers",
            "What the gateway passed on to shards, which delivered it, and what it got of them.",
            _table(outside, ["from_shard", "to_shard", "msgs", "bytes", "deliveries"]),
        ),
        ("Links", "", _table(used, ["from_shard", "to_shard", "msgs", "bytes", "peak_pending_bytes", "paused_us"])),
        (
            "How late event loops were",
            "p99 of a timer's delay per window, in ms: so long may a message wait before the shard reads it.",
            svg.lines(charts.over_time(answers["over_time"], "lag_p99_us", 1e-3), "ms", clock),
        ),
    ]  # fmt: skip


def _of_trouble(answers: Mapping[str, Rows]) -> list[Section]:
    return [
        (
            "Slow consumers",
            "Clients that were closed because they did not read fast enough.",
            _table(answers["slow"], ["name", "user", "ip", "subject", "reason", "times", "most_pending_bytes"]),
        ),
        (
            "Denied by permissions",
            "What users tried and may not do. Such messages are part of the totals, but of no subject.",
            _table(answers["denied"], ["account", "user", "publishes", "subscriptions"]),
        ),
        (
            "Shards that died",
            "Messages that they had counted but not yet written: part of the totals, but of no subject.",
            _table(answers["gaps"], ["shard", "window_start_us", "window_us", "in_msgs", "out_msgs", "reason"]),
        ),
        (
            "Incomplete windows",
            "Their file is truncated; the missing rows are not in these figures.",
            _table(answers["torn"], ["window_start_us", "shard", "broker", "boot", "file"]),
        ),
        ("Lines that could not be used", "", _table(answers["aside"], ["why", "count"])),
        ("Files that could not be read", "The first fifty.", _table(answers["unreadable"], ["path"])),
    ]


def _table(rows: Rows, columns: Sequence[str]) -> str:
    """An HTML table with a heading and a format for each column; "" without rows."""
    if not rows:
        return ""
    words = {name for name in columns if any(isinstance(row[name], str) for row in rows)}

    def cell(tag: str, name: str, text: str) -> str:
        return f"<{tag}{' class=word' if name in words else ''}>{escape(text)}</{tag}>"

    head = "".join(cell("th", name, HEADINGS.get(name, name.replace("_", " "))) for name in columns)
    lines = "".join("<tr>" + "".join(cell("td", name, shown(name, row)) for name in columns) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{lines}</table>"
