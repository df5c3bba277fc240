"""Which headers ask for a trace: found by the compiled search, wherever in the block the line stands."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnatswarm.broker import message_trace
from gnatswarm.broker.traced import asks

FIRST = b"NATS/1.0\r\n"
LINES = st.sampled_from(
    [
        b"Nats-Trace-Dest: t",
        b"Nats-Trace-Dest:t",
        b"Nats-Trace-Dest",
        b"Nats-Trace-Desu: t",
        b"Nats-Msg-Id: 1",
        b"XNats-Trace-Dest: t",
        b"nats-trace-dest: t",
        b"A: Nats-Trace-Dest: t",
        b"TraceParent: 00-0-0-01",
        b"traceparent:",
        b"traceparen: 1",
        b"N: \nNats",
    ]
) | st.binary(max_size=80).map(lambda data: data.replace(b"\n", b""))


@given(st.lists(LINES, max_size=6), st.booleans())
def test_a_header_asks_where_a_line_begins_with_the_name(lines: list[bytes], by_parent: bool) -> None:
    block = FIRST + b"".join(line + b"\r\n" for line in lines) + b"\r\n"
    begins = block.split(b"\n")[1:]
    expected = any(line.startswith(b"Nats-Trace-Dest:") for line in begins)
    expected = expected or (by_parent and any(line.lower().startswith(b"traceparent:") for line in begins))
    assert asks(block, by_parent) is expected


@pytest.mark.parametrize("before", range(70))
def test_it_is_found_at_every_place(before: int) -> None:
    block = FIRST + b"a" * before + b"\r\nNats-Trace-Dest: t\r\n\r\n"
    assert asks(block)
    assert not asks(block[:-9])  # cut in the middle of the name


@pytest.mark.parametrize(
    "block",
    [b"", b"NATS/1.0", FIRST, b"NATS/1.0 503\r\nNats-Trace-Dest: t\r\n\r\n", b"Nats-Trace-Dest: t\r\n" * 2],
)
def test_what_does_not_begin_as_a_header_asks_for_nothing(block: bytes) -> None:
    assert not asks(block, True)


@pytest.mark.parametrize(
    ("flags", "is_sampled"), [("01", True), ("03", True), ("00", False), ("81", False), ("ff", False)]
)
def test_the_flags_of_a_traceparent_are_a_signed_byte_as_in_nats_server(flags: str, is_sampled: bool) -> None:
    assert message_trace.is_sampled({"traceparent": [f"00-trace-span-{flags}"]}) is is_sampled


def test_a_hop_names_the_way_to_it() -> None:
    for hop, wanted in (("", [b"1", b"2"]), ("2", [b"2.1", b"2.2"])):
        one = message_trace.MessageTrace(
            account=b"A",
            destination=b"traces",
            headers={},
            size=0,
            is_only=False,
            hop=hop,
            is_by_parent=False,
            now_us=lambda: 0,
            who=lambda cid: ("", "A"),
            is_exported=lambda account, exporter, subject: False,
        )
        assert [one.sent_on(shard) for shard in (1, 2)] == wanted
