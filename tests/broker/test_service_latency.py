"""Which requests are measured because of their headers, and the numbers of an event."""

from __future__ import annotations

import orjson
import pytest

from gnatswarm.broker import service_latency
from gnatswarm.broker.service_latency import NO_RESPONDER, REPLIED, Measured, event, traced

NOW_US = 1_700_000_000_000_000
MEASURED = Measured(b"A", b"lat", {"acc": "B", "rtt": 300_000}, {}, 7, 0)


@pytest.mark.parametrize(
    "lines",
    [
        "",
        "Uber-Trace-Id: 1:2:3",
        "Uber-Trace-Id: 1:2:3:+1",
        "Uber-Trace-Id: 1:2:3:zz",
        "Uber-Trace-Id: 1:2:3:001",
        "Uber-Trace-Id: 1:2:3:2\r\nX-B3-Sampled: 1",
        "X-B3-Sampled: 0\r\nX-B3-TraceId: 1",
        "b3: 0",
        "b3: 1-2-0-4",
        "traceparent: 00-1-2-00",
        "traceparent",
        ": x\r\n\xff: y",
    ],
)
def test_a_request_whose_headers_say_nothing_of_a_trace_is_not_measured(lines):
    assert traced(f"NATS/1.0\r\n{lines}\r\n\r\n".encode("latin-1")) is None


@pytest.mark.parametrize(
    ("lines", "shown"),
    [
        (
            "uber-trace-id: 1:2:3:f1\r\nuberctx-a: b\r\nc: d",
            {"Uber-Trace-Id": ["1:2:3:f1"], "Uberctx-A": ["b"]},
        ),
        ("x-b3-sampled: 1\r\nX-B3-SpanId: 2\r\nb3: 0", {"X-B3-Sampled": ["1"], "X-B3-Spanid": ["2"]}),
        ("b3: 1-2", {"B3": ["1-2"]}),
        ("traceparent: 00-1-2-01\r\ntracestate: a=b", {"Traceparent": ["00-1-2-01"], "Tracestate": ["a=b"]}),
    ],
)
def test_what_the_headers_of_a_trace_say_is_in_the_event(lines, shown):
    assert traced(f"NATS/1.0\r\n{lines}\r\n\r\n".encode()) == shown


def header(fields: list[str]) -> bytes:
    return "\r\n".join(["NATS/1.0", *fields, "", ""]).encode()


def test_what_is_too_long_is_not_kept_until_the_reply_comes():
    fields = ["uber-trace-id: 1:2:3:f1", "uberctx-a: " + "x" * 900_000, "uberctx-b: y"]
    assert traced(header(fields)) == {
        "Uber-Trace-Id": ["1:2:3:f1"],
        "Uberctx-B": ["y"],
    }
    fields = ["uber-trace-id: 1:2:3:f1", *(f"uberctx-{n}: " for n in range(50_000)), "uberctx-0: "]
    kept = traced(header(fields))
    assert kept is not None and 50 < len(kept) < 200


def test_of_a_megabyte_of_fields_those_of_a_trace_alone_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others are passed over at the speed of a search, and of its own so many are looked at."""
    others = ["a: b"] * 150_000
    assert traced(header([*others, "X-B3-Sampled: 1", *others])) == {"X-B3-Sampled": ["1"]}
    looked_at: list[dict[str, list[str]]] = []
    monkeypatch.setattr(service_latency, "_of_trace", looked_at.append)
    traced(header(["b3: x"] * 150_000))
    assert len(looked_at[0]["B3"]) == service_latency.MOST_TRACE_FIELDS


def numbers(status: int, responder: dict[str, int] | None, passed_us: int) -> tuple[int, int, int]:
    found = orjson.loads(event(MEASURED, status, responder, now_us=NOW_US, passed_us=passed_us, system_ns=50))
    assert found["start"].startswith("2023-11-14T22:13:")
    return found["service"], found["system"], found["total"]


def test_round_trips_are_no_part_of_the_time_that_the_service_took():
    assert numbers(REPLIED, {"rtt": 200_000}, 1000) == (800_000, 50, 1_300_050)
    assert numbers(REPLIED, {}, 1000) == numbers(REPLIED, None, 1000) == (1_000_000, 0, 1_300_000)
    assert numbers(REPLIED, {"rtt": 200_000}, 100) == (0, 50, 400_050)
    assert numbers(NO_RESPONDER, None, 1000) == (0, 0, 0)
