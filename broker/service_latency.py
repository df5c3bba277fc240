"""The latency of a service's replies: which requests are measured, and the event about one, as in nats-server 2.9.10.

Pure; the caller passes the times. A request is measured by chance (`sampling`), or because its headers say that it is
traced (Jaeger, Zipkin B3, W3C). The event goes to a subject of the exporting account.
"""

import itertools
import re
from typing import Any

import msgspec
import orjson

from gnatswarm.broker.advisory import event_id
from gnatswarm.broker.goformat import time_text

TYPE = "io.nats.server.metric.v1.service_latency"
REPLIED, NO_REPLY_SUBJECT, REQUESTOR_GONE, NO_RESPONDER, TIMED_OUT = 200, 400, 408, 503, 504
DESCRIPTIONS = {
    NO_REPLY_SUBJECT: "Bad Request",
    REQUESTOR_GONE: "Request Timeout",
    NO_RESPONDER: "Service Unavailable",
    TIMED_OUT: "Service Timeout",
}
# Behind the generated reply subject of a measured request, so that other shards tell who replies to it.
MEASURED = b"m"
# What is kept of a request's headers until its reply comes; tracers' own fields have less than 1 KB together.
MOST_TRACE_BYTES = 16_384
# So many fields are looked at: a megabyte of short ones would hold up the shard for 0.4 s.
MOST_TRACE_FIELDS = 256
OBJECT_BYTES = 100  # of a Python string and its place, beside the text
B3_PARTS = ("X-B3-Sampled", "X-B3-Traceid", "X-B3-Parentspanid", "X-B3-Spanid")

_HEX_DIGITS = frozenset("0123456789abcdefABCDEF")
_OF_TRACE = re.compile(
    rb"\r\n[ \t]*+(?:(?:uber-trace-id|b3|traceparent|tracestate)[ \t]*+|(?:uberctx|x-b3)-[^:\r\n]*+):[^\r\n]*+",
    re.IGNORECASE,
)

Headers = dict[str, list[str]]


class Measured(msgspec.Struct, frozen=True):
    """One request whose reply is waited for. `requestor`: as much of the client as the import shares."""

    account: bytes
    subject: bytes
    requestor: dict[str, Any]
    headers: Headers
    cid: int  # 0: no client of this shard has asked
    asked_us: int

    @property
    def text_bytes(self) -> int:
        """About what its headers take."""
        return sum(itertools.starmap(_bytes, self.headers.items()))


def _headers(block: bytes) -> Headers:
    """Those fields of a header block that a trace may have, with their names as Go writes them: `X-B3-Traceid`."""
    found: Headers = {}
    for match in itertools.islice(_OF_TRACE.finditer(block), MOST_TRACE_FIELDS):
        name, _colon, value = match[0].decode("utf-8", "replace").partition(":")
        key = "-".join(part.capitalize() for part in name.strip().split("-"))
        found.setdefault(key, []).append(value.strip())
    return found


def _bytes(name: str, values: list[str]) -> int:
    return len(name) + sum(map(len, values)) + OBJECT_BYTES * (1 + len(values))


def traced(block: bytes) -> Headers | None:
    """What a request's headers say of its trace, without what is too long; None: it is not traced."""
    found = _of_trace(_headers(block))
    if found is None:
        return None
    kept: Headers = {}
    room = MOST_TRACE_BYTES
    for name, values in found.items():
        size = _bytes(name, values)
        if size <= room:
            kept[name] = values
            room -= size
    return kept


def _of_trace(headers: Headers) -> Headers | None:
    uber, sampled, b3 = headers.get("Uber-Trace-Id"), headers.get("X-B3-Sampled"), headers.get("B3")
    parent = headers.get("Traceparent")
    if uber:
        words = uber[0].split(":")
        flags = words[3] if len(words) == 4 and len(words[3]) <= 2 and _HEX_DIGITS.issuperset(words[3]) else ""
        is_sampled = flags and int(flags, 16) & 1
        return (
            {k: v for k, v in headers.items() if k == "Uber-Trace-Id" or k.startswith("Uberctx-")}
            if is_sampled
            else None
        )
    if sampled and sampled[0] == "0":
        return None
    if (sampled and sampled[0] == "1") or "X-B3-Traceid" in headers:
        return {name: headers[name] for name in B3_PARTS if name in headers}
    if b3:
        words = b3[0].split("-")
        return None if "0" in (words[2:3] if len(words) != 1 else words) else {"B3": b3}
    if parent and parent[0].endswith("-01"):
        return {name: headers[name] for name in ("Traceparent", "Tracestate") if name in headers}
    return None


def event(
    measured: Measured, status: int, responder: dict[str, Any] | None, *, now_us: int, passed_us: int, system_ns: int
) -> bytes:
    """The event. `now_us`: since 1970; `passed_us`: since the request; `system_ns`: what passing the reply on took.

    `responder` is None where its client is not known: on another shard or server, or if there was no reply.
    """
    asked_ns = int(measured.requestor.get("rtt", 0))
    found: dict[str, Any] = {"type": TYPE, "id": event_id(), "timestamp": time_text(now_us), "status": status}
    if status in DESCRIPTIONS:
        found["description"] = DESCRIPTIONS[status]
    found["requestor"] = measured.requestor
    if responder is not None:
        found["responder"] = responder
    if measured.headers:
        found["header"] = measured.headers
    found["start"] = time_text(now_us - passed_us - asked_ns // 1000)
    service_ns = total_ns = 0
    if status == REPLIED:
        answered_ns = int((responder or {}).get("rtt", 0))
        service_ns = max(0, passed_us * 1000 - answered_ns)
        system_ns = system_ns if answered_ns else 0
        total_ns = asked_ns + passed_us * 1000 + system_ns
    else:
        system_ns = 0
    return orjson.dumps(found | {"service": service_ns, "system": system_ns, "total": total_ns})
