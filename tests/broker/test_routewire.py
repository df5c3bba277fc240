"""Frames between shards: whole, in pieces, wrong ones, and whatever the writer writes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnatswarm.broker.bounds import LARGEST_FRAME_PAYLOAD_BYTES, LARGEST_MAX_PAYLOAD_BYTES
from gnatswarm.broker.routewire import parse_route

SECOND = 0x80000000  # added to the number of members that are second choice


def message(op: str = "MSG", **said: object) -> dict[str, object]:
    defaults: dict[str, object] = {"op": op, "account": b"$G", "queues": [], "reply": b"", "header_size": 0}
    return defaults | said


FRAMES = [
    (b"PING\r\n", {"op": "PING"}),
    (b"BYE\r\n", {"op": "BYE"}),
    (b"PONG\r\n", {"op": "PONG"}),
    (b'INFO {"shard":1} \r\n', {"op": "INFO"}),
    (b'CONNECT {"shard":1}\r\n', {"op": "CONNECT"}),
    (b"QACK 17\r\n", {"op": "QUEUE_ACK", "id": 17}),
    (b"QNAK 17\r\n", {"op": "QUEUE_NAK", "id": 17}),
    (b"QASK 17\r\n", {"op": "ASK", "id": 17}),
    (
        b"NONE 7 $G a.b r\r\n",
        {"op": "NONE", "id": 7, "account": b"$G", "subject": b"a.b", "queues": [], "reply": b"r"},
    ),
    (
        b"QEND 17 $G a.* q\r\n",
        {"op": "QUEUE_END", "id": 17, "account": b"$G", "subject": b"a.*", "queues": [b"q"]},
    ),
    (b"QACK 18446744073709551615\r\n", {"op": "QUEUE_ACK", "id": 2**64 - 1}),
    (b"RS+ $G foo.bar\r\n", {"op": "SUB", "account": b"$G", "subject": b"foo.bar", "queues": [], "members": 0}),
    (b"RS- $G foo.*.>\r\n", {"op": "UNSUB", "account": b"$G", "subject": b"foo.*.>", "queues": []}),
    (b"RS+ A foo q 12\r\n", {"op": "SUB", "account": b"A", "subject": b"foo", "queues": [b"q"], "members": 12}),
    # (second choice: as many as it takes for there to be one)
    (b"RS+ A foo q 0\r\n", {"op": "SUB", "account": b"A", "subject": b"foo", "queues": [b"q"], "members": SECOND | 1}),
    (b"RS- A foo q\r\n", {"op": "UNSUB", "account": b"A", "subject": b"foo", "queues": [b"q"]}),
    (b"MOVE 7 12\r\n", {"op": "MOVE", "id": 7, "size": 12, "line_size": 11}),
    (b"MPART 7 16777216\r\n", {"op": "PART", "id": 7, "size": 16_777_216, "line_size": 18}),
    (b"MCOUNT 7 0\r\n\r\n", {"op": "COUNT", "id": 7, "size": 0, "line_size": 12}),
    (b"MNEXT 7\r\n", {"op": "NEXT", "id": 7, "size": 0, "line_size": 9}),
    (b"MSTOP 7\r\n", {"op": "STOP", "id": 7, "size": 0, "line_size": 9}),
    (b"MSHIFT 63 7 12\r\n", {"op": "SHIFT", "id": 7, "size": 12, "line_size": 16, "old_shard": 63}),
    (b"MARKQ 63 7 12\r\n", {"op": "ASK_MARK", "id": 7, "size": 0, "line_size": 15, "old_shard": 63, "shifts": 12}),
    (
        b"MDONE 3 7 999999999\r\n",
        {"op": "DONE", "id": 7, "size": 0, "line_size": 21, "old_shard": 3, "shifts": 999_999_999},
    ),
    (b"MARK 0 7\r\n", {"op": "MARK", "id": 7, "size": 0, "line_size": 10, "old_shard": 0}),
    (b"MOVED 3 7 1 0\r\n\r\n", {"op": "MOVED", "id": 7, "size": 0, "line_size": 15, "old_shard": 3, "outcome": 1}),
    (b"RTAKE _R_.3fAbcdef-_. 1\r\n", {"op": "TAKE", "prefix": b"_R_.3fAbcdef-_.", "times": 1, "line_size": 25}),
    (b"ROWN _R_.00AAAAAAAA. 0\r\n", {"op": "OWN", "prefix": b"_R_.00AAAAAAAA.", "times": 0, "line_size": 24}),
    (b"RGOES _R_.00AAAAAAAA. 63\r\n", {"op": "GOES", "prefix": b"_R_.00AAAAAAAA.", "shard": 63, "line_size": 26}),
    (b"RDROP _R_.00AAAAAAAA.\r\n", {"op": "DROP", "prefix": b"_R_.00AAAAAAAA.", "line_size": 23}),
    (
        b"RDUE _R_.00AAAAAAAA. 1 12\r\n",
        {"op": "DUE", "prefix": b"_R_.00AAAAAAAA.", "is_last": 1, "size": 12, "line_size": 27},
    ),
    (b"RMSG $G a 2\r\nhi\r\n", message(subject=b"a", size=2, line_size=13)),
    (b"RMSG $G a r 0\r\n\r\n", message(subject=b"a", reply=b"r", size=0, line_size=15)),
    (b"RMSG $G a | q 2\r\nhi\r\n", message(subject=b"a", queues=[b"q"], size=2, line_size=17)),
    (
        b"RMSG $G a + r q1 q2 2\r\nhi\r\n",
        message(subject=b"a", reply=b"r", queues=[b"q1", b"q2"], size=2, line_size=23),
    ),
    (b"HMSG $G a 12 14\r\n", message(subject=b"a", header_size=12, size=14, line_size=17)),
    (b"HMSG $G a r 12 12\r\n", message(subject=b"a", reply=b"r", header_size=12, size=12, line_size=19)),
    (b"HMSG $G a | q 12 14\r\n", message(subject=b"a", queues=[b"q"], header_size=12, size=14, line_size=21)),
    (
        b"QMSG 5 3 0 7 $G a | q 2\r\n",
        message("QUEUE_MSG", subject=b"a", queues=[b"q"], size=2, line_size=25, id=5, visited=3)
        | {"been": 0, "publisher": 7},
    ),
    (
        b"QHMG 0 0 0 0 $G a + r q 12 14\r\n",
        message("QUEUE_MSG", subject=b"a", reply=b"r", queues=[b"q"], header_size=12, size=14, line_size=31, id=0)
        | {"visited": 0, "been": 0, "publisher": 0},
    ),
]


@pytest.mark.parametrize(("frame", "expected"), FRAMES, ids=lambda value: str(value)[:40])
def test_a_frame_says_what_it_says_whatever_follows(frame, expected):
    for trailing in (b"", b"RMSG $G x 1\r\n", b"\xff\x00 junk"):
        assert parse_route(frame + trailing) == expected


@pytest.mark.parametrize("start", ["RMSG $G a ", "HMSG $G a 12 ", "QMSG 5 3 0 0 $G a | q "])
def test_a_message_has_at_most_the_largest_size_that_can_be_configured(start):
    size = LARGEST_FRAME_PAYLOAD_BYTES
    assert size == LARGEST_MAX_PAYLOAD_BYTES + 1024 * 1024
    assert parse_route(f"{start}{size}\r\n".encode())["size"] == size
    assert parse_route(f"{start}{size + 1}\r\n".encode()) == {"op": "BAD"}


@pytest.mark.parametrize("frame", [frame for frame, _ in FRAMES], ids=lambda value: str(value)[:40])
def test_a_line_that_is_not_complete_is_nothing_yet(frame):
    line = frame[: frame.index(b"\r\n") + 2]
    for size in range(len(line) - 1):
        assert parse_route(line[:size]) == {"op": "MORE"}, line[:size]


BAD = [
    b"HELLO\r\n",
    b"SUB foo 1\r\n",
    b"PUB foo 1\r\nx\r\n",
    b"GET / HTTP/1.1\r\n",
    b"\x16\x03\x01\x02\x00\x01",
    b"\x00\x00\x00\x00\x00",
    b"\r\n\r\n\r\n",
    b"RS+\r\n\r\n",
    b"RS+ $G\r\n",
    b"RS+ $G foo q\r\n",
    b"RS+ $G foo q -1\r\n",
    b"RS+ $G foo q many\r\n",
    b"RS+ $G foo q 1 2\r\n",
    b"RS- $G\r\n",
    b"RS- $G foo q 1\r\n",
    b"RS* $G foo\r\n",
    b"RMSG\r\n\r\n",
    b"RMSG $G\r\n",
    b"RMSG $G a\r\n",
    b"RMSG $G a x\r\n",
    b"RMSG $G a -1\r\n",
    b"RMSG $G a 99999999999\r\n",
    b"RMSG $G a r q 1\r\n",
    b"RMSG $G a x r q 1\r\n",
    b"RMSG $G a + r 1\r\n",
    b"HMSG $G a 12\r\n",
    b"HMSG $G a 14 12\r\n",
    b"HMSG $G a -1 12\r\n",
    b"QMSG $G a | q 2\r\n",
    b"QMSG 1 $G a | q 2\r\n",
    b"QMSG 1 1 $G a | q 2\r\n",
    b"QMSG 1 1 0 $G a | q 2\r\n",
    b"QMSG x 1 0 0 $G a | q 2\r\n",
    b"QMSG 1 1 x 0 $G a | q 2\r\n",
    b"QMSG 1 1 0 x $G a | q 2\r\n",
    b"QMSG 1 1 0 0 $G a 2\r\n",
    b"QMSG 1 1 0 0 $G a r 2\r\n",
    b"QMSG 111111111111111111111 1 0 0 $G a | q 2\r\n",
    b"QACK\r\n",
    b"QACK \r\n",
    b"QACK x\r\n",
    b"QACK -1\r\n",
    b"QNAK\r\n",
    b"QNAK x\r\n",
    b"QASK\r\n",
    b"QASK x\r\n",
    b"NONE 7 $G a\r\n",
    b"NONE 7 $G a r r\r\n",
    b"NONE x $G a r\r\n",
    b"QEND 1 $G a\r\n",
    b"QEND x $G a q\r\n",
    b"QEND 1 $G a q 1\r\n",
    b"MOVE 7\r\n",
    b"MOVE 7 16777217\r\n",
    b"MPART 7\r\n",
    b"MPART 7 16777217\r\n",
    b"MPARTS 7 7\r\n",
    b"MCOUNT 7\r\n",
    b"MCOUNT 7 16777217\r\n",
    b"MNEXT\r\n",
    b"MNEXT 7 7\r\n",
    b"MSHIFT 7 7\r\n",
    b"MSHIFT 64 7 7\r\n",
    b"MSHIFT 1 7 16777217\r\n",
    b"MDONE 1 7\r\n",
    b"MDONE 64 7 1\r\n",
    b"MDONE 1 7 -1\r\n",
    b"MARKQ 1 7 1 1\r\n",
    b"MOVE x 7\r\n",
    b"MOVE 7 7 7\r\n",
    b"MSTOP \r\n",
    b"MSTOP 1 2\r\n",
    b"MARKQ 64 7 0\r\n",
    b"MARKQ -1 7 0\r\n",
    b"MARKQ 1 7\r\n",
    b"MARK 64 7\r\n",
    b"MARK 1\r\n",
    b"MARK 1 2 3\r\n",
    b"MOVED 1 7 2 0\r\n",
    b"MOVED 1 7 1\r\n",
    b"MOVED 64 7 1 0\r\n",
    b"MOVER 1 7 1 0\r\n",
    b"RTAKE _R_.00AAAAAAAA.\r\n",
    b"RTAKE _R_.00AAAAAAAA. x\r\n",
    b"ROWN _R_.00AAAAAAA. 1\r\n",
    b"ROWN _R_.40AAAAAAAA. 1\r\n",
    b"ROWN _R_.0gAAAAAAAA. 1\r\n",
    b"ROWN _R_.00AAA.AAAA. 1\r\n",
    b"ROWN _R_.00AAAAAAAAA 1\r\n",
    b"ROWN _S_.00AAAAAAAA. 1\r\n",
    b"RGOES _R_.00AAAAAAAA. 64\r\n",
    b"RDROP _R_.00AAAAAAAA. 1\r\n",
    b"RDUE _R_.00AAAAAAAA. 2 0\r\n",
    b"RDUE _R_.00AAAAAAAA. 1 68157441\r\n",
    b"RDUE _R_.00AAAAAAAA. 1\r\n",
    b"XMS $G a 2\r\n",
    b"XHMG $G a 2\r\n",
    b"RMSG $G a | " + b" ".join(b"q%d" % n for n in range(65)) + b" 2\r\n",
    b"RMSG $G " + b"a" * 262_000,
    b"RS+ $G " + b"a" * 262_000,
    b"INFO " + b"a" * 262_000,
]


@pytest.mark.parametrize("data", BAD, ids=lambda value: str(value)[:40])
def test_what_is_no_frame_is_bad(data):
    assert parse_route(data) == {"op": "BAD"}


def test_sixty_four_queues_fit_into_one_frame():
    queues = [b"q%d" % number for number in range(64)]
    found = parse_route(b"RMSG $G a + r " + b" ".join(queues) + b" 2\r\n")
    assert (found["op"], found["queues"], found["reply"]) == ("MSG", queues, b"r")
    for verb, sizes in ((b"QMSG", b"2"), (b"QHMG", b"12 14"), (b"XQHG", b"12 14")):  # which have most words
        found = parse_route(verb + b" 0 0 0 7 $G a + r " + b" ".join(queues) + b" " + sizes + b"\r\n")
        assert (found["op"], found["queues"], found["reply"]) == ("QUEUE_MSG", queues, b"r")


token = st.binary(min_size=1, max_size=40).filter(lambda data: not set(data) & set(b" \t\r\n\x00"))
not_a_sign = token.filter(lambda data: data not in (b"+", b"|"))


@given(
    account=token,
    subject=token,
    reply=st.one_of(st.just(b""), not_a_sign),
    queues=st.lists(token, max_size=8),
    header_size=st.one_of(st.none(), st.integers(1, 500)),
    payload_size=st.integers(0, 100_000),
)
def test_a_message_is_read_as_it_was_written(account, subject, reply, queues, header_size, payload_size):
    """Frames put together as the specification has them, not by the code under test."""
    words = [b"HMSG" if header_size else b"RMSG", account, subject]
    if queues:
        words += [b"+", reply] if reply else [b"|"]
        words += queues
    elif reply:
        words.append(reply)
    size = payload_size + (header_size or 0)
    words += [b"%d" % number for number in ((header_size, size) if header_size else (size,))]
    line = b" ".join(words) + b"\r\n"
    assert parse_route(line) == {
        "op": "MSG",
        "account": account,
        "subject": subject,
        "queues": queues,
        "reply": reply,
        "size": size,
        "header_size": header_size or 0,
        "line_size": len(line),
    }


@given(data=st.binary(max_size=400))
def test_no_bytes_make_it_stumble(data):
    assert parse_route(data)["op"]


@given(
    verb=st.sampled_from(
        [
            f"{verb} ".encode()
            for verb in [
                "RMSG",
                "HMSG",
                "QMSG",
                "QHMG",
                "XMSG",
                "XHMG",
                "XQMG",
                "XQHG",
                "RS+",
                "RS-",
                "QACK",
                "QNAK",
                "QASK",
                "QEND",
                "NONE",
            ]
        ]
    ),
    rest=st.binary(max_size=200),
)
def test_no_arguments_make_it_stumble(verb, rest):
    found = parse_route(verb + rest + b"\r\n")
    if "size" in found:
        assert 0 <= found["header_size"] <= found["size"]
        assert found["line_size"] <= len(verb) + len(rest) + 2


def test_a_frame_says_that_its_message_came_from_another_account() -> None:
    plain = parse_route(b"RMSG A a r 2\r\n")
    assert parse_route(b"XMSG A a r 2\r\n") == plain | {"is_across": True}
    headed = parse_route(b"HMSG A a + r q w 12 14\r\n")
    assert parse_route(b"XHMG A a + r q w 12 14\r\n") == headed | {"is_across": True}
    queued = parse_route(b"QMSG 7 5 0 0 A a | q 2\r\n")
    assert parse_route(b"XQMG 7 5 0 0 A a | q 2\r\n") == queued | {"is_across": True}
    queued = parse_route(b"QHMG 7 5 0 0 A a + r q 12 14\r\n")
    assert parse_route(b"XQHG 7 5 0 0 A a + r q 12 14\r\n") == queued | {"is_across": True}
