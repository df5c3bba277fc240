"""Frames of other servers are read as nats-server writes them, and whatever else is refused."""

from __future__ import annotations

import pytest

from gnatswarm.broker.serverwire import parse_server


@pytest.mark.parametrize(
    ("line", "is_route", "wanted"),
    [
        (b"LS+ a.b\r\n", False, {"op": "SUB", "subject": b"a.b", "queues": []}),
        (b"ls+ a.b  q 3\n", False, {"op": "SUB", "subject": b"a.b", "queues": [b"q"], "members": 3}),
        (b"LS-  a.b\r\n", False, {"op": "UNSUB", "subject": b"a.b"}),
        (b"LS- a.b q\r\n", False, {"op": "UNSUB", "queues": [b"q"]}),
        (b"LS+ a.b q\r\n", False, {"op": "BAD"}),
        (b"RS+ $G a q 0\r\n", True, {"op": "SUB", "account": b"$G", "members": 0}),
        (b"RS+ $G\r\n", True, {"op": "BAD"}),
        (b"LS+ east $G a\r\n", True, {"op": "SUB", "origin": b"east", "account": b"$G", "subject": b"a"}),
        (b"LS-  $G a\r\n", True, {"op": "UNSUB", "account": b"$G", "subject": b"a"}),
        (b"LMSG a 2\r\nhi\r\n", False, {"op": "MSG", "subject": b"a", "size": 2, "is_plain": True}),
        (b"LMSG a  2\r\nhi\r\n", False, {"op": "MSG", "is_plain": False}),
        (b"LMSG a r 2\r\nhi\r\n", False, {"op": "MSG", "reply": b"r", "is_plain": True}),
        (b"LMSG a | q p 2\r\nhi\r\n", False, {"op": "MSG", "reply": b"", "queues": [b"q", b"p"], "is_plain": False}),
        (b"LMSG a + r q 2\r\nhi\r\n", False, {"op": "MSG", "reply": b"r", "queues": [b"q"]}),
        (b"HMSG a r 12 14\r\n", False, {"op": "MSG", "reply": b"r", "header_size": 12, "size": 14}),
        (
            b"LMSG o $G a 0 2\r\nhi\r\n",
            True,
            {"op": "MSG", "origin": b"o", "account": b"$G", "header_size": 0, "size": 2},
        ),
        (b"RMSG $G a 2\r\nhi\r\n", True, {"op": "MSG", "account": b"$G", "subject": b"a", "is_plain": True}),
        (b"RMSG $G a 2\r\nhi\r\n", False, {"op": "BAD"}),
        (
            b"QMSG NA,NB $G a + r q p 0 2\r\nhi\r\n",
            True,
            {"op": "MSG", "been": b"NA,NB", "account": b"$G", "subject": b"a", "reply": b"r", "queues": [b"q", b"p"]},
        ),
        (
            b"QMSG NA a | q 12 14\r\n",
            False,
            {"op": "MSG", "been": b"NA", "subject": b"a", "header_size": 12, "size": 14, "is_plain": False},
        ),
        (b"QMSG NA $G a r 0 2\r\nhi\r\n", True, {"op": "BAD"}),
        (b"QMSG NA $G a 0 2\r\nhi\r\n", True, {"op": "BAD"}),
        (b"QMSG $G a | q 0 2\r\nhi\r\n", True, {"op": "BAD"}),
        (b"LMSG a ? q p 2\r\n", False, {"op": "BAD"}),
        (b"LMSG a x\r\n", False, {"op": "BAD"}),
        (b"LMSG a 999999999\r\n", False, {"op": "TOO_LONG"}),
        (b"HMSG a 14 12\r\n", False, {"op": "BAD"}),
        (b"+OK\r\n", False, {"op": "IGNORED"}),
        (b"A- acc\r\n", True, {"op": "IGNORED"}),
        (b"-ERR 'no'\r\n", False, {"op": "ERR", "argument": b" 'no'"}),
        (b'INFO {"a":1} \r\n', False, {"op": "INFO", "argument": b'{"a":1} '}),
        (b"GET / HTTP/1.1\r\n", False, {"op": "BAD"}),
        (b"PI", False, {"op": "MORE"}),
        (b"LMSG a 2", False, {"op": "MORE"}),
    ],
)
def test_a_frame_is_read(line: bytes, is_route: bool, wanted: dict[str, object]) -> None:
    found = parse_server(line, is_route=is_route)
    assert {key: found[key] for key in wanted} == wanted


def test_the_end_of_interest_has_an_origin_if_both_ends_said_so() -> None:
    found = parse_server(b"LS- east $G a q\r\n", is_route=True, names_origins=True)
    assert (found["origin"], found["account"], found["subject"], found["queues"]) == (b"east", b"$G", b"a", [b"q"])
    found = parse_server(b"LS- $G a q\r\n", is_route=True)
    assert (found["account"], found["subject"], found["queues"]) == (b"$G", b"a", [b"q"])


def test_a_line_without_end_is_bounded() -> None:
    assert parse_server(b"LS+ " + b"x" * 300_000, is_route=False)["op"] == "TOO_LONG"
    assert parse_server(b"INFO " + b"x" * 300_000, is_route=False)["op"] == "TOO_LONG"


def test_a_frame_may_name_a_thousand_groups_and_no_more() -> None:
    many = b" ".join(b"q%d" % n for n in range(1000))
    assert len(parse_server(b"LMSG a | " + many + b" 0\r\n", is_route=False)["queues"]) == 1000
    more = b" ".join(b"q%d" % n for n in range(1100))
    assert parse_server(b"LMSG a | " + more + b" 0\r\n", is_route=False)["op"] == "TOO_LONG"
