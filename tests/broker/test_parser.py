"""One operation from contiguous bytes: each case whole, byte by byte, and with more bytes behind it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnatswarm.broker.parser import parse

MAX_LINE = 64
# Blanks in front of arguments, and what follows PING, may be so long: it is held until the line ends.
IGNORED = 65_536
# What may follow an operation without changing it: nothing, another one, half of one, rubbish.
TRAILING = [b"", b"PING\r\n", b"PUB a", b"\r\n", b"\x00\xff\n"]


def pub(subject=b"foo", reply=b"", size=5, canonical=True):
    return {"op": "PUB", "subject": subject, "reply": reply, "size": size, "canonical": canonical}


def hpub(subject=b"foo", reply=b"", header_size=12, size=17, canonical=True):
    return {**pub(subject, reply, size, canonical), "op": "HPUB", "header_size": header_size}


def sub(subject=b"foo", queue=b"", sid=b"1"):
    return {"op": "SUB", "subject": subject, "queue": queue, "sid": sid}


def unsub(sid=b"1", max_msgs=0):
    return {"op": "UNSUB", "sid": sid, "max_msgs": max_msgs}


def word(op, argument=b""):
    return {"op": op, "argument": argument}


GOOD = [
    (b"PUB foo 5\r\n", pub()),
    (b"pub foo 5\r\n", pub()),
    (b"PuB foo 5\r\n", pub()),
    (b"PUB foo.bar.baz inbox.1 0\r\n", pub(b"foo.bar.baz", b"inbox.1", 0)),
    (b"PUB foo 999999999\r\n", pub(size=999_999_999)),
    (b"PUB foo 005\r\n", pub()),
    (b"PUB foo 5\n", pub(canonical=False)),
    (b"PUB\tfoo 5\r\n", pub()),
    (b"PUB foo\t5\r\n", pub(canonical=False)),
    (b"PUB  foo 5\r\n", pub(canonical=False)),
    (b"PUB foo  5\r\n", pub(canonical=False)),
    (b"PUB foo 5 \r\n", pub(canonical=False)),
    (b"PUB foo 5\r\r\n", pub(canonical=False)),
    (b"PUB foo 5\t\r\n", pub(canonical=False)),
    (b"PUB foo\r5\r\n", pub(canonical=False)),
    (b"PUB foo r\t5\r\n", pub(reply=b"r", canonical=False)),
    (b"PUB foo..bar 5\r\n", pub(b"foo..bar")),
    (b"PUB f\x00\x01\xff 5\r\n", pub(b"f\x00\x01\xff")),
    (b"HPUB foo 12 17\r\n", hpub()),
    (b"hpub foo r 12 17\r\n", hpub(reply=b"r")),
    (b"HPUB foo 0 0\r\n", hpub(header_size=0, size=0)),
    (b"HPUB foo 17 17\r\n", hpub(header_size=17)),
    (b"HPUB foo 12  17\r\n", hpub(canonical=False)),
    (b"SUB foo 1\r\n", sub()),
    (b"sub foo 1\n", sub()),
    (b"SUB foo workers 1\r\n", sub(queue=b"workers")),
    (b"SUB \t foo \t workers \t 1 \t \r\n", sub(queue=b"workers")),
    (b"SUB foo.*.> q.* a-sid\r\n", sub(b"foo.*.>", b"q.*", b"a-sid")),
    (b"SUB foo..bar 1\r\n", sub(b"foo..bar")),
    (b"UNSUB 1\r\n", unsub()),
    (b"unsub 1 5\r\n", unsub(max_msgs=5)),
    (b"UNSUB 1 0\r\n", unsub()),
    (b"UNSUB 1 -5\r\n", unsub()),
    (b"UNSUB 1 many\r\n", unsub()),
    (b"UNSUB 1 1234567890\r\n", unsub()),
    (b"UNSUB 1 999999999\r\n", unsub(max_msgs=999_999_999)),
    (b"PING\r\n", word("PING")),
    (b"ping\n", word("PING")),
    (b"PING   \r\n", word("PING")),
    (b"PINGPONG\r\n", word("PING", b"PONG")),
    (b"PONG\r\n", word("PONG")),
    (b"pOnG now\r\n", word("PONG", b"now")),
    (b"PING " + b"x" * 5000 + b"\r\n", word("PING", b"x" * 5000)),
    (b"CONNECT {}\r\n", word("CONNECT", b"{}")),
    (b"CONNECT{}\r\n", word("CONNECT", b"{}")),
    (b"connect \t {} \n", word("CONNECT", b"{} ")),
    (b"CONNECT\r\n", word("CONNECT")),
    (b"INFO {}\r\n", word("INFO", b"{}")),
    (b"+OK\r\n", word("+OK")),
    (b"+ok fine\r\n", word("+OK", b"fine")),
    (b"-ERR 'no'\r\n", word("-ERR", b"'no'")),
    (b"-err 'no'\n", word("-ERR", b"'no'")),
    # A line as long as it may be, its end not counted.
    (b"SUB " + b"a" * (MAX_LINE - 2) + b" 1\r\n", sub(b"a" * (MAX_LINE - 2))),
    (b"SUB " + b"a" * (MAX_LINE - 2) + b" 1\n", sub(b"a" * (MAX_LINE - 2))),
    (b"PUB " + b"a" * (MAX_LINE - 2) + b" 0\r\n", pub(b"a" * (MAX_LINE - 2), size=0)),
    (b"UNSUB " + b"a" * MAX_LINE + b"\r\n", unsub(b"a" * MAX_LINE)),
    # Blanks in front of the arguments do not count.
    (b"SUB" + b" " * 5000 + b"a 1\r\n", sub(b"a")),
    (b"CONNECT" + b" " * 5000 + b"{}\r\n", word("CONNECT", b"{}")),
    (b"CONNECT " + b"x" * MAX_LINE + b"\r\n", word("CONNECT", b"x" * MAX_LINE)),
]

# Refused, and how many bytes it takes to know.
BAD = [
    # not an operation: at its first wrong byte
    (b"X", "UNKNOWN", 1),
    (b"\r\n", "UNKNOWN", 1),
    (b" PING\r\n", "UNKNOWN", 1),
    (b"\x00", "UNKNOWN", 1),
    (b"\xff", "UNKNOWN", 1),
    (b"GET / HTTP/1.1\r\n", "UNKNOWN", 1),
    (b"MSG foo 1 0\r\n", "UNKNOWN", 1),
    (b"RS+ $G foo\r\n", "UNKNOWN", 1),
    (b"PX", "UNKNOWN", 2),
    (b"PUX", "UNKNOWN", 3),
    (b"PIXG\r\n", "UNKNOWN", 3),
    (b"PONX", "UNKNOWN", 4),
    (b"PUBX", "UNKNOWN", 4),
    (b"PUB\r\n", "UNKNOWN", 4),
    (b"HPUX", "UNKNOWN", 4),
    (b"HMSG", "UNKNOWN", 2),
    (b"SUBS", "UNKNOWN", 4),
    (b"SUB\n", "UNKNOWN", 4),
    (b"UNSUB1", "UNKNOWN", 6),
    (b"COMMENT", "UNKNOWN", 3),
    (b"INTO", "UNKNOWN", 3),
    (b"+KO", "UNKNOWN", 2),
    (b"-ERX", "UNKNOWN", 4),
    (b"-ERR\r\n", "UNKNOWN", 5),
    # 0x20 is set in both cases of a letter, and in other characters too
    (b"\x10UB foo 1\r\n", "UNKNOWN", 1),
    (b"\x0bok\r\n", "UNKNOWN", 1),
    # arguments that cannot be read: at the end of the line
    (b"PUB \r\n", "BAD_ARGUMENTS", 6),
    (b"PUB foo\r\n", "BAD_ARGUMENTS", 9),
    (b"PUB foo bar\r\n", "BAD_ARGUMENTS", 13),
    (b"PUB foo -5\r\n", "BAD_ARGUMENTS", 12),
    (b"PUB foo +5\r\n", "BAD_ARGUMENTS", 12),
    (b"PUB foo 5.0\r\n", "BAD_ARGUMENTS", 13),
    (b"PUB foo 0x5\r\n", "BAD_ARGUMENTS", 13),
    (b"PUB foo 1234567890\r\n", "BAD_ARGUMENTS", 20),
    (b"PUB foo 18446744073709551621\r\n", "BAD_ARGUMENTS", 30),
    (b"PUB foo a b 5\r\n", "BAD_ARGUMENTS", 15),
    (b"HPUB foo 5\r\n", "BAD_ARGUMENTS", 12),
    (b"HPUB foo 6 5\r\n", "BAD_ARGUMENTS", 14),
    (b"HPUB foo -1 5\r\n", "BAD_ARGUMENTS", 15),
    (b"HPUB foo 1 x\r\n", "BAD_ARGUMENTS", 14),
    (b"HPUB foo a b 1 5\r\n", "BAD_ARGUMENTS", 18),
    (b"SUB \r\n", "BAD_ARGUMENTS", 6),
    (b"SUB foo\r\n", "BAD_ARGUMENTS", 9),
    (b"SUB foo a b 1\r\n", "BAD_ARGUMENTS", 15),
    (b"UNSUB \r\n", "BAD_ARGUMENTS", 8),
    (b"UNSUB 1 2 3\r\n", "BAD_ARGUMENTS", 13),
    # over the limit: as soon as it is, whatever else is wrong with it
    (b"SUB " + b"a" * (MAX_LINE - 1) + b" 1\r\n", "LINE_TOO_LONG", 4 + MAX_LINE + 1),
    (b"SUB a b c d " + b"a" * MAX_LINE, "LINE_TOO_LONG", 4 + MAX_LINE + 1),
    (b"PUB " + b"a" * (MAX_LINE + 1) + b"\r\n", "LINE_TOO_LONG", 4 + MAX_LINE + 1),
    (b"HPUB " + b" " * (MAX_LINE + IGNORED + 1), "LINE_TOO_LONG", 5 + MAX_LINE + IGNORED + 1),
    (b"SUB a b 1" + b" " * MAX_LINE + b"\r\n", "LINE_TOO_LONG", 4 + MAX_LINE + 1),
    (b"UNSUB " + b"1" * (MAX_LINE + 1) + b"\n", "LINE_TOO_LONG", 6 + MAX_LINE + 1),
    (b"CONNECT " + b"x" * (MAX_LINE + 1) + b"\r\n", "LINE_TOO_LONG", 8 + MAX_LINE + 1),
    (b"CONNECT" + b" " * (MAX_LINE + IGNORED + 1), "LINE_TOO_LONG", 7 + MAX_LINE + IGNORED + 1),
    (b"INFO " + b"x" * (MAX_LINE + 1), "LINE_TOO_LONG", 5 + MAX_LINE + 1),
    (b"PING " + b"x" * (IGNORED + 1), "LINE_TOO_LONG", 5 + IGNORED + 1),
]


def shown(value):
    if not isinstance(value, bytes):
        return None if isinstance(value, int) else value["op"] if isinstance(value, dict) else value
    return repr(value if len(value) < 40 else value[:20] + b"..." + value[-8:])


@pytest.mark.parametrize("trailing", TRAILING, ids=shown)
@pytest.mark.parametrize(("data", "expected"), GOOD, ids=shown)
def test_an_operation_is_read_whole(data, expected, trailing):
    assert parse(data + trailing, MAX_LINE) == {**expected, "line_size": len(data)}


@pytest.mark.parametrize(("data", "expected"), GOOD, ids=shown)
def test_an_operation_is_more_until_its_line_ends(data, expected):
    for size in [*range(min(len(data), 200)), len(data) - 1]:
        assert parse(data[:size], MAX_LINE) == {"op": "MORE"}, data[:size]


@pytest.mark.parametrize("trailing", TRAILING, ids=shown)
@pytest.mark.parametrize(("data", "op", "enough"), BAD, ids=shown)
def test_what_is_no_operation_is_refused(data, op, enough, trailing):
    assert parse(data + trailing, MAX_LINE) == {"op": op}


@pytest.mark.parametrize(("data", "op", "enough"), BAD, ids=shown)
def test_what_is_no_operation_is_refused_as_soon_as_it_is_known(data, op, enough):
    for size in [*range(min(enough, 200)), enough - 1]:
        assert parse(data[:size], MAX_LINE) == {"op": "MORE"}, data[:size]
    for size in range(enough, len(data) + 1):
        assert parse(data[:size], MAX_LINE) == {"op": op}, data[:size]


VERBS = [b"PUB", b"HPUB", b"SUB", b"UNSUB", b"PING", b"CONNECT", b"-ERR", b"+OK"]
BLANKS = [b" ", b"  ", b"\t", b"\r", b"\n", b"\r\n"]
WORDS = [b"foo", b"foo.*", b"5", b"12", b"-1", b"1234567890", b"{}", b"\x00", b"\xff", b"x" * 30]
pieces_of_lines = st.sampled_from(VERBS + BLANKS + WORDS)
lines = st.lists(pieces_of_lines, max_size=10).map(b"".join) | st.binary(max_size=20)


@given(lines)
def test_an_answer_does_not_change_when_more_bytes_come(data):
    """Feeding byte by byte gives the same result as feeding the whole."""
    answer = {"op": "MORE"}
    for size in range(len(data) + 1):
        now = parse(data[:size], MAX_LINE)
        if answer["op"] != "MORE":
            assert now == answer
        answer = now
