"""One message to everybody who wants it: prefixes, headers, groups, siblings; and random programs by the model."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnatswarm.broker.limits import Limits
from gnatswarm.broker.rules import StreamImport
from gnatswarm.broker.tally import Tally
from tests.support.engine import NO_RESPONDERS, QUIET, WITH_HEADERS, Engine, EngineClient, frames
from tests.support.mesh import Mesh, of_account
from tests.support.model import Model

HEADER = b"NATS/1.0\r\nA: b\r\n\r\n"


@pytest.fixture
def engine():
    return Engine()


# ---- headers


@pytest.mark.parametrize("reply", [b"", b"r "])
@pytest.mark.parametrize("size", [0, 3, 5000, 40_000])
def test_headers_go_to_those_who_take_them_and_are_stripped_for_the_others(engine, reply, size):
    publisher, taker, other = engine.client(WITH_HEADERS), engine.client(WITH_HEADERS), engine.client(QUIET)
    taker.feed(b"SUB a 1\r\n")
    other.feed(b"SUB a 1\r\n")
    payload = b"x" * size
    publisher.feed(b"HPUB a %s%d %d\r\n%s%s\r\n" % (reply, len(HEADER), len(HEADER) + size, HEADER, payload))
    assert taker.take() == b"HMSG a 1 %s%d %d\r\n%s%s\r\n" % (reply, len(HEADER), len(HEADER) + size, HEADER, payload)
    assert other.take() == b"MSG a 1 %s%d\r\n%s\r\n" % (reply, size, payload)
    # As on nats-server: what each of them got; the total does not say who takes headers.
    assert (taker.connection.out_bytes, other.connection.out_bytes) == (len(HEADER) + size, size)
    assert engine.probe.fanout.out_bytes == 2 * (len(HEADER) + size)


@pytest.mark.parametrize(
    ("said", "tail"),
    [
        (b"PUB a  r\t3 \r\nabc\r\n", b" r 3\r\nabc\r\n"),
        (b"PUB a 003\r\nabc\r\n", b" 003\r\nabc\r\n"),  # canonical blanks: as it came
        (b"PUB a  003\r\nabc\r\n", b" 3\r\nabc\r\n"),
        (b"PUB a 3\nabc\r\n", b" 3\r\nabc\r\n"),
        (b"pub\ta 3\r\nabc\r\n", b" 3\r\nabc\r\n"),
        (b"HPUB a 0 3\r\nabc\r\n", b" 3\r\nabc\r\n"),  # no header: a message without one
        (b"HPUB  a 0 3\r\nabc\r\n", b" 3\r\nabc\r\n"),
    ],
)
def test_what_follows_the_subject_goes_out_with_single_blanks(engine, said, tail):
    publisher, listener = engine.clients(2, WITH_HEADERS)
    listener.feed(b"SUB a 1\r\n")
    publisher.feed(said * 3)
    assert listener.take() == (b"MSG a 1" + tail) * 3


def test_what_is_not_canonical_has_its_header_too(engine):
    publisher, taker, other = engine.client(WITH_HEADERS), engine.client(WITH_HEADERS), engine.client(QUIET)
    taker.feed(b"SUB a 1\r\n")
    other.feed(b"SUB a 1\r\n")
    publisher.feed(b"HPUB  a  r 18   20 \n%shi\r\n" % HEADER)
    assert taker.take() == b"HMSG a 1 r 18 20\r\n%shi\r\n" % HEADER
    assert other.take() == b"MSG a 1 r 2\r\nhi\r\n"


@pytest.mark.parametrize("operation", ["PUB", "HPUB"])
def test_a_run_of_one_line_brings_everybody_every_payload(engine, operation):
    """Clients with and without headers, one with two subscriptions, a queue group, a sibling."""
    publisher, taker = engine.clients(2, WITH_HEADERS)
    other, twice = engine.clients(2)
    link = engine.probe.link(1)
    engine.probe.set_remote(1, b"a")
    taker.feed(b"SUB a 1\r\n")
    other.feed(b"SUB a 1\r\nSUB b q 2\r\n")
    twice.feed(b"SUB a 1\r\nSUB * 2\r\n")
    payloads = [b"%03d" % number for number in range(100)]
    for subject in (b"a", b"b"):
        if operation == "PUB":
            lines = [b"PUB %s 3\r\n%s\r\n" % (subject, payload) for payload in payloads]
        else:
            lines = [b"HPUB %s 18 21\r\n%s%s\r\n" % (subject, HEADER, payload) for payload in payloads]
        publisher.feed(b"".join(lines))
    assert taker.messages() == [(b"1", payload) for payload in payloads]
    assert other.messages() == [(sid, payload) for sid in (b"1", b"2") for payload in payloads]
    told = twice.messages()
    # The first message on both before the second on either.
    assert [payload for _, payload in told] == [p for p in payloads for _ in range(2)] + payloads
    assert {frozenset(sid for sid, _ in told[i : i + 2]) for i in range(0, 200, 2)} == {frozenset((b"1", b"2"))}
    assert [frame.payload for frame in frames(bytes(link.sent))] == payloads


# ---- long subjects of many subscriptions

LONG_SUBJECT = b"long." + b"s" * 1995
MANY = [b"%d" % 10**digits for digits in range(1, 10)] + [b"s%d" % number for number in range(400)]  # sids


@pytest.mark.parametrize("size", [3, 40_000])
@pytest.mark.parametrize("count", [1, 100])
def test_each_of_many_subscriptions_hears_a_long_subject_under_its_own_sid(engine, size, count):
    """With headers and without, in runs and alone, copied and by reference; a message of one of them, too."""
    publisher, taker = engine.clients(2, WITH_HEADERS)
    other = engine.client()
    link = engine.probe.link(1)
    engine.probe.set_remote(1, LONG_SUBJECT)
    lines = b"".join(
        b"SUB %s %s\r\n" % (subject, sid) for sid, subject in zip(MANY, (b">", b"long.*") * 300, strict=False)
    )
    taker.feed(lines)
    other.feed(lines)
    count = count if size < 1000 else 1
    payloads = [b"%03d" % number + b"x" * (size - 3) for number in range(count)]
    for verb, header in ((b"PUB", b""), (b"HPUB", HEADER)):
        sizes = b"%d %d" % (len(header), len(header) + size) if header else b"%d" % size
        publisher.feed(
            b"".join(b"%s %s r %s\r\n%s%s\r\n" % (verb, LONG_SUBJECT, sizes, header, each) for each in payloads)
        )
        for client, own in ((taker, header), (other, b"")):
            got = frames(client.take())
            assert {(frame.subject, frame.reply, frame.body[: frame.header_size]) for frame in got} == {
                (LONG_SUBJECT, b"r", own)
            }
            for sid in MANY[:12] + MANY[-3:]:
                assert [frame.payload for frame in got if frame.sid == sid] == payloads
            assert len(got) == len(MANY) * count
    assert len(frames(bytes(link.sent))) == 2 * count


def test_a_group_of_many_members_takes_a_long_subject_each_under_its_own_sid(engine):
    publisher, *members = engine.clients(4)
    for number, member in enumerate(members):
        member.feed(b"".join(b"SUB > q %d-%s\r\n" % (number, sid) for sid in MANY))
    publisher.feed(b"PUB %s 1\r\nx\r\n" % LONG_SUBJECT * 3000)
    got = [(number, frame) for number, member in enumerate(members) for frame in frames(member.take())]
    assert len(got) == 3000
    assert {frame.subject for _, frame in got} == {LONG_SUBJECT}
    assert all(frame.sid.split(b"-")[0] == b"%d" % number for number, frame in got)
    assert len({frame.sid for _, frame in got}) > 2 * len(MANY)  # of 1,227


def test_a_message_to_one_of_many_members_costs_no_copy_of_its_subject_for_each(engine):
    publisher, member = engine.clients(2)
    member.feed(b"".join(b"SUB > q %d\r\n" % sid for sid in range(5000)))
    publisher.feed(b"PUB %s 0\r\n\r\n" % LONG_SUBJECT)
    assert len(frames(member.take())) == 1
    assert engine.probe.sublist.cache_bytes < 100 * 5000  # the subjects alone would be 10 MB


def test_who_hears_a_long_stream_of_another_account_on_other_subjects_has_one_copy_of_each():
    """Of two imports by turns, plainly and as members of a group, beside one of the exporter's own."""
    mesh = Mesh(1, connect=QUIET)
    accounts = mesh.engines[0].probe.mesh
    assert accounts is not None
    exporter, importer = accounts.account(b"E"), accounts.account(b"I")
    importer.streams = [StreamImport(exporter, b"long.>", to) for to in (b"one.long.>", b"other.import.>")]
    publisher = of_account(mesh, 0, b"E", b"SUB > own\r\n")
    lines = [b"SUB one.> one-%s\r\nSUB other.> other-%s\r\nSUB other.> q q-%s\r\n" % (sid, sid, sid) for sid in MANY]
    member = of_account(mesh, 0, b"I", b"".join(lines))
    publisher.feed(b"PUB %s 1\r\nx\r\n" % LONG_SUBJECT)
    mesh.finish()
    got = frames(member.take())
    rest = LONG_SUBJECT.removeprefix(b"long.")
    for prefix, subject in ((b"one-", b"one.long." + rest), (b"other-", b"other.import." + rest)):
        mine = [frame for frame in got if frame.sid.startswith(prefix)]
        assert {frame.subject for frame in mine} == {subject}
        assert sorted(frame.sid for frame in mine) == sorted(prefix + sid for sid in MANY)
    assert [frame.subject for frame in got if frame.sid.startswith(b"q-")] == [b"other.import." + rest]
    assert len(got) == 2 * len(MANY) + 1
    assert publisher.take() == b"MSG %s own 1\r\nx\r\n" % LONG_SUBJECT
    assert exporter.cache_bytes < 100 * 3 * len(MANY)  # the subjects alone would be 2.4 MB
    mesh.close()


def test_of_many_subscriptions_for_its_reply_a_requestor_hears_503_on_one_of_its_own(engine):
    client = engine.client(NO_RESPONDERS)
    client.feed(b"".join(b"SUB > %s\r\nUNSUB %s\r\nSUB long.> %s\r\n" % (sid, sid, sid) for sid in MANY))
    client.feed(b"PUB nobody %s 0\r\n\r\n" % LONG_SUBJECT)
    (frame,) = frames(client.take())
    assert (frame.subject, frame.body) == (LONG_SUBJECT, b"NATS/1.0 503\r\n\r\n")
    assert frame.sid in MANY


# ---- queue groups


def counted(clients, publisher, data):
    publisher.feed(data)
    return Counter(index for index, client in enumerate(clients) for _ in client.messages())


def test_who_has_its_max_in_a_run_counts_in_the_width_of_what_it_took_of_it(engine):
    engine.probe.sublist.count_into(Tally(16))
    *readers, publisher = engine.clients(4)
    for reader, most in zip(readers, (2, 3, 100), strict=True):
        reader.feed(b"SUB a 1\r\nUNSUB 1 %d\r\n" % most)
    publisher.feed(b"PUB a 1\r\nx\r\n")  # the line that the run repeats
    publisher.feed(b"PUB a 1\r\nx\r\n" * 5)
    assert [len(reader.messages()) for reader in readers] == [2, 3, 6]
    assert engine.probe.sublist.take_widths() == ((0, 3, 1, 2), ())


def test_one_member_of_a_group_gets_each_message_and_all_members_their_share(engine):
    publisher, *members = engine.clients(5)
    for member in members:
        member.feed(b"SUB jobs.* workers 1\r\n")
    members[0].feed(b"SUB jobs.x workers 2\r\n")  # another pattern, the same group: twice the share
    shares = counted(members, publisher, b"PUB jobs.x 0\r\n\r\n" * 5000)
    assert sum(shares.values()) == 5000
    assert 1800 < shares[0] < 2200  # five standard deviations around 2,000
    for index in (1, 2, 3):
        assert 850 < shares[index] < 1150


def test_plain_subscriptions_come_before_the_queue_member(engine):
    client = engine.client()
    client.feed(b"SUB a q 1\r\nSUB a 2\r\nSUB a q 3\r\nSUB > 4\r\n")
    sids = [frame.sid for frame in frames(client.talk(b"PUB a 0\r\n\r\n"))]
    assert set(sids[:2]) == {b"2", b"4"} and sids[2] in (b"1", b"3")


def test_a_member_that_is_closing_is_passed_over(engine):
    publisher, first, second = engine.clients(3)
    first.feed(b"SUB a q 1\r\n")
    second.feed(b"SUB a q 1\r\n")
    first.feed(b"BOGUS\r\n", finish=False)
    publisher.feed(b"PUB a 0\r\n\r\n" * 100, finish=False)
    engine.probe.finish()
    assert len(second.messages()) == 100


def test_echo_false_leaves_a_group_to_the_others(engine):
    client = engine.client(b'CONNECT {"verbose":false,"echo":false}\r\n')
    other = engine.client()
    client.feed(b"SUB a q 1\r\nSUB a 2\r\n")
    assert client.talk(b"PUB a 0\r\n\r\n" * 10) == b""
    other.feed(b"SUB a q 1\r\n")
    assert client.talk(b"PUB a 0\r\n\r\n" * 50) == b""
    assert len(other.messages()) == 50


# ---- siblings


def lines(link, taken=0):
    return [frame.line for frame in frames(bytes(link.sent)[taken:])]


def test_a_sibling_gets_one_frame_however_many_want_it_there(engine):
    publisher, local = engine.clients(2)
    local.feed(b"SUB a.b 1\r\n")
    link = engine.probe.link(5)
    engine.probe.set_remote(5, b"a.*")
    engine.probe.set_remote(5, b"a.b")
    engine.probe.set_remote(5, b">")
    publisher.feed(b"PUB a.b r 2\r\nhi\r\nPUB c 0\r\n\r\n")
    assert bytes(link.sent) == b"RMSG $G a.b r 2\r\nhi\r\nRMSG $G c 0\r\n\r\n"
    assert local.messages() == [(b"1", b"hi")]


def test_a_sibling_gets_headers_whole_and_a_group_by_name(engine):
    publisher = engine.client(WITH_HEADERS)
    link = engine.probe.link(1)
    engine.probe.set_remote(1, b"a")
    publisher.feed(b"HPUB a 18 20\r\n%shi\r\n" % HEADER)
    engine.probe.set_remote(1, b"a", b"q", 2)
    publisher.feed(b"HPUB a r 18 20\r\n%shi\r\nPUB a 2\r\nhi\r\n" % HEADER)
    assert lines(link) == [b"HMSG $G a 18 20", b"HMSG $G a + r q 18 20", b"RMSG $G a | q 2"]
    assert {frame.payload for frame in frames(bytes(link.sent))} == {b"hi"}


@pytest.mark.parametrize("size", [1000, 2000, 32_000, 33_000, 60_000])
@pytest.mark.parametrize("receivers", [1, 3])
@pytest.mark.parametrize("takes", [0, 50_000, 1 << 30])
def test_runs_of_large_messages_arrive_whole_and_in_order(engine, size, receivers, takes):
    listeners = [engine.client() for _ in range(receivers)]
    for listener in listeners:
        listener.feed(b"SUB a 1\r\n")
        listener.take()
        engine.probe.set_takes(listener.socket, takes)
    payloads = [bytes([number % 256]) * size for number in range(250_000 // size)]
    for _ in range(2):
        engine.client().feed(b"".join(b"PUB a %d\r\n%s\r\n" % (size, payload) for payload in payloads))
    for listener in listeners:
        engine.probe.set_takes(listener.socket, -1)
        engine.probe.finish()
        assert listener.take() == b"".join(b"MSG a 1 %d\r\n%s\r\n" % (size, payload) for payload in payloads) * 2


@pytest.mark.parametrize(
    ("publishers", "max_pending"),
    [(1, 200_000), *((publishers, most) for publishers in (1, 5) for most in (300_000, 2_000_000, 64_000_000))],
)
def test_whoever_sends_large_messages_waits_for_a_receiver_that_is_behind(publishers, max_pending):
    """It has taken bytes lately, so it is not stuck: at its mark publishers wait, long before it would be closed."""
    engine = Engine(Limits(max_pending_bytes=max_pending))
    listener = engine.client()
    listener.feed(b"SUB a 1\r\n")
    listener.take()
    publishing = [engine.client() for _ in range(publishers)]
    run = b"PUB a 4096\r\n" + b"x" * 4096 + b"\r\n"
    for one in publishing:
        one.feed(run)  # the next ones are runs from their first message on
    engine.probe.set_takes(listener.socket, 20_000)
    fed = publishers
    while not all(one.socket.is_stalled for one in publishing):
        for one in publishing:
            if not one.socket.is_stalled:
                one.feed(run * 60)
                fed += 60
        assert listener.socket.close_reason == 0, f"closed with {listener.socket.pending} bytes pending"
    overshoot = 2 * 65_536 + 16_384 * publishers  # the chunks that are looked at whole, and a run of each
    assert listener.socket.pending <= max_pending // 2 + overshoot
    engine.probe.set_takes(listener.socket, -1)
    engine.probe.finish()
    engine.probe.release_stalls()
    assert len(listener.messages()) == fed


@pytest.mark.parametrize("size", [10, 40_000, 200_000])
def test_a_big_message_goes_to_clients_and_siblings_alike(engine, size):
    publisher, first, second = engine.clients(3)
    payload = b"p" * size
    links = [engine.probe.link(1), engine.probe.link(2)]
    engine.probe.set_remote(1, b"a")
    engine.probe.set_remote(2, b"a", b"q", 1)
    first.feed(b"SUB a 1\r\n")
    second.feed(b"SUB * 1\r\n")
    for pieces in ([], [1000] * 20):
        publisher.feed(b"PUB a r %d\r\n%s\r\n" % (size, payload), pieces)
    for client in (first, second):
        assert client.messages() == [(b"1", payload)] * 2
    assert [frame.body for frame in frames(bytes(links[0].sent))] == [payload] * 2
    assert lines(links[1]) == [b"RMSG $G a + r q %d" % size] * 2
    assert engine.probe.memory["bytes_in_chunks"] == 0


def test_queue_members_are_chosen_evenly_over_all_shards(engine):
    publisher, *here = engine.clients(3)
    for member in here:
        member.feed(b"SUB a q 1\r\n")
    link = engine.probe.link(1)
    engine.probe.set_remote(1, b"a", b"q", 6)
    publisher.feed(b"PUB a 0\r\n\r\n" * 4000)
    shares = [len(member.messages()) for member in here]
    assert sum(shares) + len(frames(bytes(link.sent))) == 4000
    assert all(370 < share < 630 for share in shares)  # 500 each, six standard deviations


SECOND = 0x80000000  # added to the number of members that are second choice


def test_members_of_second_choice_get_a_message_where_there_are_no_others(engine):
    publisher, member = engine.clients(2)
    second, first = engine.probe.link(1), engine.probe.link(2)
    engine.probe.set_remote(1, b"*", b"q", SECOND | 50)
    engine.probe.set_remote(2, b"a", b"q", 3)
    member.feed(b"SUB a q 1\r\n")
    publisher.feed(b"PUB a 0\r\n\r\n" * 100)
    assert len(member.messages()) + len(frames(bytes(first.sent))) == 100 and first.sent and not second.sent
    member.feed(b"UNSUB 1\r\n")
    publisher.feed(b"PUB a 0\r\n\r\n" * 10)
    assert not second.sent
    engine.probe.set_remote(2, b"a", b"q", 0)
    publisher.feed(b"PUB a 0\r\n\r\n" * 10)
    assert len(frames(bytes(second.sent))) == 10


def test_a_member_that_takes_nothing_leaves_it_to_those_of_second_choice(engine):
    publisher = engine.client(b'CONNECT {"verbose":false,"echo":false}\r\n')
    second, first = engine.probe.link(1), engine.probe.link(2)
    engine.probe.set_remote(1, b"a", b"q", SECOND | 5)
    publisher.feed(b"SUB a q 1\r\n")
    publisher.feed(b"PUB a 0\r\n\r\n" * 20)
    assert len(frames(bytes(second.sent))) == 20
    engine.probe.set_remote(2, b"a", b"q", 1)
    publisher.feed(b"PUB a 0\r\n\r\n" * 20)
    assert (len(frames(bytes(second.sent))), len(frames(bytes(first.sent)))) == (20, 20)
    assert publisher.messages() == []


def test_members_of_second_choice_are_as_likely_as_each_other(engine):
    publisher = engine.client()
    links = [engine.probe.link(shard) for shard in (1, 2)]
    engine.probe.set_remote(1, b"a", b"q", SECOND | 1)
    engine.probe.set_remote(2, b"a", b"q", SECOND | 3)
    publisher.feed(b"PUB a 0\r\n\r\n" * 4000)
    shares = [len(frames(bytes(link.sent))) for link in links]
    assert sum(shares) == 4000 and 830 < shares[0] < 1170  # six standard deviations


def test_local_members_come_first_where_that_was_asked_for():
    engine = Engine(prefers_local=True)
    publisher, member = engine.clients(2)
    member.feed(b"SUB a q 1\r\n")
    link = engine.probe.link(1)
    engine.probe.set_remote(1, b"a", b"q", 100)
    publisher.feed(b"PUB a 0\r\n\r\n" * 50)
    assert len(member.messages()) == 50 and not link.sent
    member.feed(b"UNSUB 1\r\n")
    publisher.feed(b"PUB a 0\r\n\r\n")
    assert len(link.sent)


def test_many_groups_at_many_siblings_get_a_message_each(engine):
    """More groups than one frame may name."""
    publisher = engine.client()
    links = {shard: engine.probe.link(shard) for shard in (0, 7, 63)}
    groups = {b"group-%d" % i: (0, 7, 63)[i % 3] for i in range(200)}
    for name, shard in groups.items():
        engine.probe.set_remote(shard, b"a", name, 1)
    engine.probe.set_remote(7, b"a")
    publisher.feed(b"PUB  a r 2\r\nhi\r\n")  # not canonical: its tail is rebuilt
    served: Counter[bytes] = Counter()
    for shard, link in links.items():
        plain_frames = 0
        for frame in frames(bytes(link.sent)):
            assert frame.body == b"hi"
            words = frame.words
            plus = words.index(b"+")
            assert words[plus - 2 : plus + 2] == [b"$G", b"a", b"+", b"r"]
            plain_frames += words[0] == b"RMSG"
            for name in words[plus + 2 : -1]:
                assert groups[name] == shard
                served[name] += 1
        assert plain_frames <= 1
    assert served == dict.fromkeys(groups, 1)
    assert lines(links[7])[-1].startswith(b"RMSG ")  # its plain subscriptions are served, and once


def test_a_message_of_a_sibling_goes_to_plain_subscriptions_and_one_member_of_each_group_named(engine):
    plain, first, second = engine.clients(3)
    plain.feed(b"SUB a.* 1\r\n")
    for member in (first, second):
        member.feed(b"SUB a.b q 1\r\nSUB a.b other 2\r\n")
    link = engine.probe.link(1)
    engine.probe.set_remote(1, b">")
    assert engine.probe.deliver_here(b"a.b", b"hi", queues=[b"q", b"gone"], reply=b"r") == {b"gone"}
    assert plain.take() == b"MSG a.b 1 r 2\r\nhi\r\n"
    assert [*first.messages(), *second.messages()] == [(b"1", b"hi")]
    assert not link.sent  # one hop
    engine.probe.deliver_here(b"a.b", b"hi", plainly=False, queues=[b"q"])
    assert plain.take() == b""
    assert [*first.messages(), *second.messages()] == [(b"1", b"hi")]


@pytest.mark.parametrize("others", [0, 1, 2, 3])
def test_members_share_the_messages_of_siblings_whatever_comes_between_them(engine, others):
    members = engine.clients(4)
    for member in members:
        member.feed(b"SUB a q 1\r\n")
    engine.client().feed(b"SUB b 1\r\n")
    for _ in range(4000):
        engine.probe.deliver_here(b"a", b"", queues=[b"q"])
        for _ in range(others):
            engine.probe.deliver_here(b"b", b"")
    counts = [len(member.messages()) for member in members]
    assert sum(counts) == 4000
    assert all(800 < count < 1200 for count in counts), counts


def test_max_is_reached_by_messages_of_siblings_too(engine):
    client = engine.client()
    client.feed(b"SUB a 1\r\nUNSUB 1 2\r\nSUB a q 2\r\nUNSUB 2 1\r\n")
    assert engine.probe.deliver_here(b"a", b"x", queues=[b"q"]) == set()
    assert engine.probe.deliver_here(b"a", b"x", queues=[b"q"]) == {b"q"}
    assert engine.probe.deliver_here(b"a", b"x", queues=[b"q"]) == {b"q"}
    assert Counter(sid for sid, _ in client.messages()) == {b"1": 2, b"2": 1}


# ---- random programs

CLIENTS = 3
WITHOUT_HEADERS = 1
tokens = st.sampled_from(["a", "b", "*"])
subjects = st.lists(tokens, min_size=1, max_size=3).map(".".join)
patterns = subjects | subjects.map(lambda subject: subject + ".>") | st.just(">")
odd_subjects = st.sampled_from(["a..b", ".a", "a.", ">.a"])
sids = st.sampled_from(["1", "2", "sid"])
operations = st.one_of(
    st.tuples(st.just("SUB"), patterns | odd_subjects, st.sampled_from(["", "", "q", "r"]), sids),
    st.tuples(st.just("UNSUB"), sids, st.none() | st.integers(0, 4)),
    st.tuples(st.just("PUB"), subjects | odd_subjects, st.booleans(), st.booleans(), st.integers(1, 6)),
    st.tuples(st.just("ECHO"), st.booleans()),
    st.tuples(st.just("LEAVE")),
)
programs = st.lists(st.tuples(st.integers(0, CLIENTS - 1), operations), max_size=40)


def payload_of(number: int, repeat: int) -> bytes:
    """All of one size, so that repeated publishes have equal control lines."""
    return b"payload %03d.%d" % (number, repeat)


def line_of(operation: tuple[Any, ...], number: int, repeat: int = 0) -> bytes:
    match operation:
        case ("SUB", subject, queue, sid):
            return " ".join(filter(None, ("SUB", subject, queue, sid))).encode() + b"\r\n"
        case ("UNSUB", sid, most):
            return (f"UNSUB {sid}" if most is None else f"UNSUB {sid} {most}").encode() + b"\r\n"
        case ("PUB", subject, has_reply, has_header, _):
            payload = payload_of(number, repeat)
            words = [subject.encode(), *([b"reply"] if has_reply else [])]
            if not has_header:
                return b"PUB %s %d\r\n%s\r\n" % (b" ".join(words), len(payload), payload)
            sizes = (len(HEADER), len(HEADER) + len(payload))
            return b"HPUB %s %d %d\r\n%s%s\r\n" % (b" ".join(words), *sizes, HEADER, payload)
        case ("ECHO", echo):
            return b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"echo":%s}\r\n' % (
                b"true" if echo else b"false"
            )
    raise AssertionError(operation)


def taken_among(keys: list[tuple[str, str]], queue: str, members: set[tuple[str, str]]) -> tuple[str, str]:
    """The member of a queue group that the broker chose."""
    return next(key for key in keys if key in members)


def check_publish(model: Model, clients: list[EngineClient], who: int, operation: tuple[Any, ...], number: int) -> None:
    """Whether every client was sent what a PUB that came several times in a row causes, and in its order."""
    _, subject, has_reply, has_header, repeats = operation
    got: list[list[tuple[str, str]]] = [[] for _ in range(repeats)]
    for index, receiver in enumerate(clients):
        repeats_in_order = []
        for frame in frames(receiver.take()):
            takes_headers = has_header and index != WITHOUT_HEADERS
            assert frame.subject == subject.encode()
            assert frame.reply == (b"reply" if has_reply else b"")
            assert frame.body[: frame.header_size] == (HEADER if takes_headers else b"")
            repeat = int(frame.payload.split(b".")[1])
            assert frame.payload == payload_of(number, repeat)
            got[repeat].append((str(index), frame.sid.decode()))
            repeats_in_order.append(repeat)
        assert repeats_in_order == sorted(repeats_in_order)
    for keys in got:
        assert model.candidates(str(who), subject).permits(keys)
        model.publish(str(who), subject, partial(taken_among, keys))


@settings(max_examples=300, deadline=None)
@given(programs, st.lists(st.integers(1, 90) | st.just(100_000), max_size=100), st.integers(1, 2**32))
def test_a_random_program_delivers_what_the_model_permits(program, pieces, seed):
    """Three clients, one of which takes no headers; what they say is cut at random bytes."""
    engine = Engine(seed=seed)
    model = Model()
    connects = [QUIET if index == WITHOUT_HEADERS else WITH_HEADERS for index in range(CLIENTS)]
    clients = [engine.client(connect) for connect in connects]
    sizes = iter(pieces)
    for number, (who, operation) in enumerate(program):
        client = clients[who]
        match operation:
            case ("LEAVE",):
                client.close()
                model.disconnect(str(who))
                clients[who] = engine.client(connects[who])
            case ("SUB", subject, queue, sid):
                answer = client.talk(line_of(operation, number), sizes)
                is_good = model.subscribe(str(who), subject, queue, sid)
                assert answer == (b"" if is_good else b"-ERR 'Invalid Subject'\r\n")
            case ("UNSUB", sid, most):
                assert client.talk(line_of(operation, number), sizes) == b""
                model.unsubscribe(str(who), sid, most)
            case ("ECHO", echo) if who != WITHOUT_HEADERS:
                assert client.talk(line_of(operation, number), sizes) == b""
                model.set_echo(str(who), echo)
            case ("PUB", _, _, has_header, repeats) if who != WITHOUT_HEADERS or not has_header:
                client.feed(b"".join(line_of(operation, number, repeat) for repeat in range(repeats)), sizes)
                check_publish(model, clients, who, operation, number)
        for index, receiver in enumerate(clients):
            held = sum(row.client == str(index) for row in model.subscriptions)
            assert receiver.connection.subscriptions == held
    for client in clients:
        client.close()
    engine.assert_empty()


def test_siblings_get_a_groups_messages_in_proportion_to_their_members():
    """Each member is equally likely, wherever it is; 4,000 messages are many enough for a tenth."""
    engine = Engine()
    links = {shard: engine.probe.link(shard) for shard in (1, 2, 3)}
    for shard, members in ((1, 5), (2, 1), (3, 4)):
        engine.probe.set_remote(shard, b"a", b"q", members)
    engine.client().feed(b"PUB a 1\r\nx\r\n" * 4000)
    got = {shard: bytes(link.sent).count(b" $G a | q 1\r\n") for shard, link in links.items()}
    assert sum(got.values()) == 4000
    assert 1800 < got[1] < 2200 and 300 < got[2] < 500 and 1400 < got[3] < 1800
