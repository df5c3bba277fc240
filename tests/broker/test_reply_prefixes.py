"""Replies to requests between accounts, of which a shard that leaves hands over those that are due.

Shard 0 has the request, shard 1 takes it over, the responder is on shard 2, and who asked listens on shard 3, unless a
test says otherwise.
"""

from __future__ import annotations

import gc

import pytest

from gnatswarm.broker import due_replies, rules, service_imports
from gnatswarm.broker.due_replies import DueReply
from gnatswarm.broker.fanout import AccountGate
from gnatswarm.broker.limits import Limits
from gnatswarm.broker.reply_prefixes import ReplyPrefixes
from gnatswarm.broker.service_imports import ServiceImports
from gnatswarm.broker.service_latency import REPLIED, REQUESTOR_GONE, TIMED_OUT, Measured
from tests.support.engine import NO_RESPONDERS, QUIET, EngineClient, frames
from tests.support.mesh import Mesh

OLD, NEW, FAR, OTHER = 0, 1, 2, 3
THRESHOLD_US = 5_000_000


class Exchange:
    """Shards whose account B imports the services `s` and `many` of A, and C imports from B what it has from A."""

    def __init__(self, shards: int = 4) -> None:
        self.mesh = Mesh(shards, clients_each=0, connect=QUIET)
        self.imports: list[ServiceImports] = []
        self.prefixes: list[ReplyPrefixes] = []
        for shard, engine in self.mesh.engines.items():
            probe = engine.probe
            assert probe.mesh is not None
            probe.fanout.gate = made = ServiceImports(probe.fanout, shard)
            probe.mesh.set_reply_prefix(made.reply_prefix)
            a, b, c = (probe.mesh.account(name) for name in (b"A", b"B", b"C"))
            latency = (b"took", 100)
            b.set_rules(
                [],
                [
                    rules.ServiceImport(b, a, b"s", b"s", rules.RESPONSE_KINDS["singleton"], THRESHOLD_US),
                    rules.ServiceImport(b, a, b"many", b"many", rules.RESPONSE_KINDS["stream"], THRESHOLD_US * 2),
                    rules.ServiceImport(
                        b, a, b"timed", b"timed", rules.RESPONSE_KINDS["singleton"], THRESHOLD_US, latency=latency
                    ),
                ],
            )
            c.set_rules([], [rules.ServiceImport(c, b, b"s", b"s", rules.RESPONSE_KINDS["singleton"], THRESHOLD_US)])
            self.imports.append(made)
            self.prefixes.append(ReplyPrefixes(probe.mesh, probe.fence, probe.reroutes))  # type: ignore[arg-type]

    def client(self, shard: int, account: bytes, words: bytes = b"") -> EngineClient:
        client = self.mesh.connect(shard)
        there = self.mesh.engines[shard].probe.mesh
        assert there is not None
        client.connection.enter(there.account(account), None)
        client.feed(words)
        self.mesh.settle()
        return client

    def requested(self, responder: EngineClient) -> list[bytes]:
        """Where the answers to the requests go that have come to it."""
        self.mesh.settle()
        return [frame.reply for frame in frames(responder.take()) if frame.is_message]

    def begin(self, old: int = OLD, to: tuple[int, ...] = (NEW,)) -> None:
        self.prefixes[old].hand_over(list(to))
        self.mesh.finish()

    def carry(self, *hops: tuple[int, int]) -> None:
        self.mesh.carry_all(*hops)

    @property
    def is_idle(self) -> bool:
        return not any(self.prefixes[shard].is_busy for shard in self.mesh.alive)

    def sweep(self, after_us: int) -> None:
        for shard in self.mesh.alive:
            self.mesh.engines[shard].probe.set_clock(1_000_000 + after_us)
            self.imports[shard].sweep()
        self.mesh.finish()
        self.mesh.settle()

    def waiting(self) -> list[int]:
        return [one.waiting for one in self.imports]


def heard(client: EngineClient) -> list[bytes]:
    return [payload for _, payload in client.messages()]


def answer(client: EngineClient, reply: bytes, *payloads: bytes) -> None:
    client.feed(b"".join(b"PUB %b %d\r\n%b\r\n" % (reply, len(one), one) for one in payloads))


@pytest.fixture
def made():
    return Exchange()


@pytest.fixture
def due(made):
    """Two requests are due at OLD, one of them with many answers; their replies go to a listener at OTHER."""
    made.responder = made.client(FAR, b"A", b"SUB s 1\r\nSUB many 2\r\n")
    made.listener = made.client(OTHER, b"B", b"SUB in 1\r\nSUB in.many 2\r\n")
    made.asker = made.client(OLD, b"B", b"PUB s in 1\r\n?\r\nPUB many in.many 1\r\n?\r\n")
    made.single, made.many = made.requested(made.responder)
    made.listener.take()
    return made


def test_answers_come_through_the_successor_when_the_old_shard_has_gone(due):
    due.begin()
    due.mesh.settle()
    assert due.waiting() == [0, 2, 0, 0]
    assert due.is_idle
    due.mesh.kill(OLD)
    answer(due.responder, due.single, b"one", b"again")
    answer(due.responder, due.many, b"1", b"2", b"", b"3")
    due.mesh.settle()
    assert heard(due.listener) == [b"one", b"1", b"2", b""]
    assert due.waiting()[NEW] == 0
    due.mesh.close()


def test_what_is_due_from_an_account_is_listed_by_the_shard_that_passes_it_on(due):
    listed = [(due.single, b"B", b"in", None), (due.many, b"B", b"in.many", None)]
    assert [one.due(b"A", 10) for one in due.imports] == [listed, [], [], []]
    assert due.imports[OLD].due(b"A", 1) == listed[:1]
    assert due.imports[OLD].due(b"B", 10) == []
    due.begin()
    due.mesh.settle()
    assert [one.due(b"A", 10) for one in due.imports] == [[], listed, [], []]
    answer(due.responder, due.single, b"one")
    due.mesh.settle()
    assert due.imports[NEW].due(b"A", 10) == listed[1:]
    due.mesh.close()


def test_of_long_texts_fewer_are_listed(made, monkeypatch):
    made.client(FAR, b"A", b"SUB s 1\r\n")
    made.client(OLD, b"B", b"".join(b"PUB s in.%b%d 0\r\n\r\n" % (b"x" * 1000, number) for number in range(5)))
    monkeypatch.setattr(service_imports, "MOST_LISTED_BYTES", 3500)
    assert len(made.imports[OLD].due(b"A", 10)) == 3
    monkeypatch.setattr(service_imports, "MOST_LISTED_FROM", 2)
    assert len(made.imports[OLD].due(b"A", 10)) == 2
    made.mesh.close()


@pytest.mark.parametrize("responders_at", [FAR, OLD, NEW, OTHER])
def test_answers_that_come_at_any_moment_of_it_arrive_once_in_order_and_before_their_pong(made, responders_at):
    """One answer and PING is published after each single hop of what a hand-over sends."""
    responder = made.client(responders_at, b"A", b"SUB many 2\r\n")
    listener = made.client(OTHER, b"B", b"SUB in 1\r\n")
    made.client(OLD, b"B", b"PUB many in 1\r\n?\r\n")
    (reply,) = made.requested(responder)
    listener.take()
    made.begin()
    sent = pongs = 0
    got: list[bytes] = []
    for turn in range(200):
        if not responder.socket.is_held and sent < 30:
            sent += 1
            answer(responder, reply, b"%d" % sent)
            responder.feed(b"PING\r\n")
        busy = [pair for pair, end in made.mesh.ends.items() if end.waits]
        if not busy:
            break
        made.carry(busy[turn % len(busy)])
        got += heard(listener)
        pongs += responder.take().count(b"PONG")
        assert pongs <= len(got), "a PONG came before its answer"
    made.mesh.settle()
    got += heard(listener)
    assert made.is_idle
    answer(responder, reply, b"last", b"")
    made.mesh.settle()
    assert got + heard(listener) == [*(b"%d" % n for n in range(1, sent + 1)), b"last", b""]
    assert sent > 5
    assert made.waiting() == [0, 0, 0, 0]
    made.mesh.close()


@pytest.mark.parametrize("responders_at", [FAR, OLD, NEW])
@pytest.mark.parametrize("listens_at", [OLD, NEW])
def test_who_subscribes_to_reply_subjects_gets_them_once_and_so_does_who_asked(made, responders_at, listens_at):
    """A shard is sent such a message though it is not to pass it on."""
    responder = made.client(responders_at, b"A", b"SUB many 2\r\n")
    curious = made.client(listens_at, b"A", b"SUB _R_.> 1\r\n")
    listener = made.client(OTHER, b"B", b"SUB in 1\r\n")
    made.client(OLD, b"B", b"PUB many in 1\r\n?\r\n")
    (reply,) = made.requested(responder)
    made.begin()
    sent = 0
    for turn in range(200):
        if not responder.socket.is_held and sent < 20:
            sent += 1
            answer(responder, reply, b"%d" % sent)
        busy = [pair for pair, end in made.mesh.ends.items() if end.waits]
        if not busy:
            break
        made.carry(busy[turn % len(busy)])
    made.mesh.settle()
    assert made.is_idle
    assert heard(listener) == heard(curious) == [b"%d" % n for n in range(1, sent + 1)]
    assert sent > 5
    made.mesh.close()


def test_who_answers_at_the_successor_is_held_until_it_knows_what_is_due(made):
    responder = made.client(NEW, b"A", b"SUB s 1\r\nSUB other 2\r\n")
    listener = made.client(OTHER, b"B", b"SUB in 1\r\n")
    made.client(OLD, b"B", b"PUB s in 1\r\n?\r\n")
    (reply,) = made.requested(responder)
    made.begin()
    made.carry((OLD, NEW))
    answer(responder, reply, b"kept")
    responder.feed(b"PUB other 1\r\nx\r\nPING\r\n")
    assert responder.socket.is_held
    assert responder.take() == b""
    assert made.mesh.engines[NEW].probe.moves.why_not(responder.connection) == (
        "it has replied to a request that is being handed over to its shard"
    )
    made.mesh.settle()
    assert heard(listener) == [b"kept"]
    assert [frame.line[:4] for frame in frames(responder.take())] == [b"MSG ", b"PONG"]
    made.mesh.close()


def test_an_answer_that_is_kept_of_a_client_that_goes_arrives(made):
    responder = made.client(NEW, b"A", b"SUB s 1\r\n")
    listener = made.client(OTHER, b"B", b"SUB in 1\r\n")
    made.client(OLD, b"B", b"PUB s in 1\r\n?\r\n")
    (reply,) = made.requested(responder)
    made.begin()
    made.carry((OLD, NEW))
    answer(responder, reply, b"kept")
    responder.close()
    made.mesh.settle()
    assert heard(listener) == [b"kept"]
    made.mesh.close()


def test_a_successor_that_leaves_refuses_and_the_next_one_is_asked(due):
    due.prefixes[NEW].is_leaving = True
    due.begin(to=(NEW, OTHER))
    due.mesh.settle()
    assert due.waiting() == [2, 0, 0, 0]
    due.begin(to=(NEW, OTHER))
    due.mesh.settle()
    assert due.waiting() == [0, 0, 0, 2]
    answer(due.responder, due.single, b"one")
    due.mesh.settle()
    assert heard(due.listener) == [b"one"]
    due.mesh.close()


def test_a_shard_without_accounts_refuses(due):
    probe = due.mesh.engines[NEW].probe
    probe.fanout.gate = AccountGate()
    ReplyPrefixes(probe.mesh, probe.fence, probe.reroutes)
    due.begin()
    due.mesh.settle()
    assert due.waiting()[OLD] == 2
    due.mesh.close()


@pytest.mark.parametrize("hops", range(12))
def test_where_the_successor_dies_in_the_middle_the_old_shard_answers_or_asks_another(due, hops):
    due.begin()
    for turn in range(hops):
        busy = [pair for pair, end in due.mesh.ends.items() if end.waits]
        if busy:
            due.carry(busy[turn % len(busy)])
    is_lost = due.imports[OLD].waiting == 0
    due.mesh.kill(NEW)
    due.mesh.settle()
    assert not due.prefixes[OLD].is_busy
    if not is_lost:
        answer(due.responder, due.single, b"one")
        due.mesh.settle()
        assert heard(due.listener) == [b"one"]
        due.begin(to=(OTHER,))
        due.mesh.settle()
        answer(due.responder, due.many, b"1", b"")
        due.mesh.settle()
        assert heard(due.listener) == [b"1", b""]
    assert due.imports[OLD].waiting == 0
    due.mesh.close()


@pytest.mark.parametrize("hops", range(12))
def test_where_the_old_shard_dies_in_the_middle_nobody_waits_for_it(due, hops):
    due.begin()
    for turn in range(hops):
        busy = [pair for pair, end in due.mesh.ends.items() if end.waits]
        if busy:
            due.carry(busy[turn % len(busy)])
    answer(due.responder, due.single, b"one")
    due.responder.feed(b"PING\r\n")
    due.mesh.kill(OLD)
    due.mesh.settle()
    assert due.is_idle
    assert due.responder.take().endswith(b"PONG\r\n")
    assert heard(due.listener) in ([b"one"], [])
    answer(due.responder, due.many, b"1")
    due.mesh.settle()
    assert all(due.mesh.engines[shard].probe.reroutes.n_pending == 0 for shard in due.mesh.alive)
    due.sweep(THRESHOLD_US * 3)
    assert not any(due.waiting()[NEW:])
    due.mesh.close()


def test_a_link_that_breaks_in_the_middle_leaves_the_requests_where_they_were(due):
    due.begin()
    due.carry((OLD, NEW))
    due.mesh.break_link(OLD, NEW)
    due.mesh.settle()
    assert due.is_idle
    assert due.waiting() == [2, 0, 0, 0]
    answer(due.responder, due.single, b"one")
    due.mesh.settle()
    assert heard(due.listener) == [b"one"]
    due.mesh.close()


def test_a_third_link_that_breaks_in_the_middle_is_waited_for(due):
    due.begin()
    due.carry((OLD, NEW))
    due.mesh.break_link(OLD, FAR)
    answer(due.responder, due.single, b"one")
    due.mesh.settle()
    assert due.is_idle
    assert due.waiting() in ([0, 1, 0, 0], [0, 2, 0, 0])
    answer(due.responder, due.many, b"1", b"")
    due.mesh.settle()
    assert heard(due.listener)[-2:] == [b"1", b""]
    due.mesh.close()


def test_an_answer_on_its_way_to_the_old_shard_comes_before_the_prefix_is_given(made):
    """All have said where their answers go, but what one sent before that is late, and then has to wait for a link."""
    responder = made.client(FAR, b"A", b"SUB many 1\r\n")
    listener = made.client(NEW, b"B", b"SUB in 1\r\n")
    made.client(OLD, b"B", b"PUB many in 1\r\n?\r\n")
    (reply,) = made.requested(responder)
    listener.take()
    made.begin()
    answer(responder, reply, b"1")
    made.carry((OLD, NEW), (NEW, FAR), (NEW, OTHER), (FAR, NEW), (OTHER, NEW), (NEW, OLD))
    made.carry((OTHER, OLD), (OLD, OTHER), (OTHER, OLD), (OLD, NEW), (NEW, OLD), (OLD, FAR))
    made.mesh.break_link(OLD, OTHER)
    made.carry((FAR, OLD))
    made.mesh.settle()
    answer(responder, reply, b"2", b"")
    made.mesh.settle()
    assert heard(listener) == [b"1", b"2", b""]
    assert made.is_idle
    made.mesh.close()


def test_a_shard_that_joins_later_knows_where_answers_go(due):
    due.begin()
    due.mesh.settle()
    due.mesh.kill(OLD)
    for shard in (4, OLD):  # one of them has the number that the prefix names
        due.mesh.add(shard)
        probe = due.mesh.engines[shard].probe
        probe.fanout.gate = ServiceImports(probe.fanout, shard)
        probe.mesh.set_reply_prefix(probe.fanout.gate.reply_prefix)
        ReplyPrefixes(probe.mesh, probe.fence, probe.reroutes)
        for end in due.mesh.ends.values():  # (a link that stands hears of it anew)
            assert end.link is not None
        for other in due.mesh.alive:
            if other != shard:
                due.mesh.break_link(shard, other)
        due.mesh.settle()
        there = due.client(shard, b"A")
        answer(there, due.many, b"%d" % shard)
        due.mesh.settle()
    assert heard(due.listener) == [b"4", b"0"]
    due.mesh.close()


def test_a_successor_that_leaves_hands_over_what_it_had_taken(due):
    due.client(NEW, b"B", b"PUB s in 1\r\n?\r\n")
    (third,) = due.requested(due.responder)
    due.begin()
    due.mesh.settle()
    assert due.waiting() == [0, 3, 0, 0]
    due.begin(old=NEW, to=(OTHER,))
    due.mesh.settle()
    assert due.waiting() == [0, 0, 0, 3]
    due.mesh.kill(OLD)
    due.mesh.kill(NEW)
    for n, reply in enumerate((due.single, due.many, third)):
        answer(due.responder, reply, b"%d" % n)
    due.mesh.settle()
    assert heard(due.listener) == [b"0", b"1", b"2"]
    due.mesh.close()


def test_requests_that_come_meanwhile_are_answered_too(due):
    due.begin()
    due.asker.feed(b"PUB s in 1\r\n?\r\n")
    (late,) = due.requested(due.responder)
    assert due.waiting() == [1, 2, 0, 0]
    answer(due.responder, late, b"late")
    due.mesh.settle()
    assert heard(due.listener) == [b"late"]
    due.mesh.close()


def test_a_request_that_crossed_two_accounts_is_answered(made):
    responder = made.client(FAR, b"A", b"SUB s 1\r\n")
    listener = made.client(OTHER, b"C", b"SUB in 1\r\n")
    made.client(OLD, b"C", b"PUB s in 1\r\n?\r\n")
    (reply,) = made.requested(responder)
    made.begin()
    made.mesh.settle()
    made.mesh.kill(OLD)
    answer(responder, reply, b"one")
    made.mesh.settle()
    assert heard(listener) == [b"one"]
    made.mesh.close()


def test_thresholds_hold_where_the_requests_are_now_and_then_the_prefix_is_nobodys(due):
    due.begin()
    due.mesh.settle()
    due.mesh.kill(OLD)
    due.sweep(THRESHOLD_US + 1)
    assert due.waiting() == [0, 1, 0, 0]
    answer(due.responder, due.single, b"late")
    due.mesh.settle()
    assert heard(due.listener) == []
    due.sweep(THRESHOLD_US * 2 + 1)
    assert due.waiting() == [0, 0, 0, 0]
    assert due.imports[NEW].n_expired == 2
    asker = due.client(FAR, b"A", NO_RESPONDERS + b"SUB told 9\r\n")
    asker.take()
    asker.feed(b"PUB %b told 1\r\nx\r\n" % due.many)
    due.mesh.settle()
    assert b"503" in asker.take(), "a prefix with which nothing is due leads nowhere"
    due.mesh.close()


def test_an_answer_to_an_answer_finds_its_way_back(due):
    due.responder.feed(b"SUB back 7\r\n")
    due.begin()
    due.mesh.settle()
    due.responder.feed(b"PUB %b back 1\r\nx\r\n" % due.single)
    due.mesh.settle()
    (frame,) = frames(due.listener.take())
    assert frame.reply.startswith(b"_R_.01")
    due.begin(old=NEW, to=(OTHER,))
    due.mesh.settle()
    answer(due.listener, frame.reply, b"thanks")
    due.mesh.settle()
    assert heard(due.responder) == [b"thanks"]
    due.mesh.close()


def test_latency_is_measured_from_the_request_on(made):
    events: list[tuple[Measured, int, int]] = []
    for one in made.imports:
        one.clock_ns = lambda: 0
        one.on_latency = lambda measured, status, session, passed_us, ns: events.append((measured, status, passed_us))
    responder = made.client(FAR, b"A", b"SUB timed 1\r\n")
    made.client(OTHER, b"B", b"SUB in 1\r\n")
    asker = made.client(OLD, b"B", b"PUB timed in 1\r\n?\r\nPUB timed in 1\r\n?\r\n")
    first, _ = made.requested(responder)
    made.begin()
    made.mesh.settle()
    for shard in made.mesh.alive:
        made.mesh.engines[shard].probe.set_clock(1_000_700)
    answer(responder, first, b"x")
    made.mesh.settle()
    assert [(one.account, one.subject, one.cid, status, us) for one, status, us in events] == [
        (b"A", b"took", asker.connection.cid, REPLIED, 700)
    ]
    made.imports[NEW].on_client_gone(asker.connection.cid, 1)
    assert [status for _, status, _ in events] == [REPLIED, REQUESTOR_GONE]
    made.mesh.close()


def test_who_unsubscribes_after_its_request_was_handed_over_is_reported_at_once(made):
    """It was reported when the threshold had passed. Where nobody listened, that is so here, too."""
    events: list[int] = []
    for one in made.imports:
        one.on_latency = lambda measured, status, session, passed_us, ns: events.append(status)
    made.client(FAR, b"A", b"SUB timed 1\r\n")
    listener = made.client(OTHER, b"B", b"SUB in 1\r\n")
    made.client(OLD, b"B", b"PUB timed in 1\r\n?\r\nPUB timed nobody 1\r\n?\r\n")
    made.begin()
    made.mesh.settle()
    made.sweep(100)
    assert made.waiting()[NEW] == 2 and not events
    listener.feed(b"UNSUB 1\r\n")
    made.mesh.settle()
    made.sweep(200)
    made.sweep(300)
    assert events == [REQUESTOR_GONE] and made.waiting()[NEW] == 1
    made.sweep(THRESHOLD_US + 1000)
    assert events == [REQUESTOR_GONE, TIMED_OUT]
    made.mesh.close()


@pytest.mark.parametrize(("bound", "most"), [("PIECE_BYTES", 1000), ("PIECE_REPLIES", 10)])
def test_many_replies_are_handed_over_in_pieces(made, monkeypatch, bound, most):
    monkeypatch.setattr(due_replies, bound, most)
    responder = made.client(FAR, b"A", b"SUB s 1\r\n")
    listener = made.client(OTHER, b"B", b"SUB in 1\r\n")
    made.client(OLD, b"B", b"PUB s in 1\r\n?\r\n" * 100)
    replies = made.requested(responder)
    made.begin()
    made.mesh.settle()
    sent = bytes(made.mesh.ends[OLD, NEW].socket.sent)
    assert sent.count(b"RDUE ") > 5
    made.mesh.kill(OLD)
    for n, reply in enumerate(replies):
        answer(responder, reply, b"%d" % n)
    made.mesh.settle()
    assert heard(listener) == [b"%d" % n for n in range(100)]
    made.mesh.close()


def test_each_piece_waits_until_siblings_have_what_was_sent_before(made, monkeypatch):
    """A client's PONG waits for a turn of the old shard, and of the new one, of one piece at most."""
    monkeypatch.setattr(due_replies, "PIECE_REPLIES", 10)
    made.client(FAR, b"A", b"SUB s 1\r\n")
    made.client(OLD, b"B", b"PUB s in 1\r\n?\r\n" * 100)
    made.mesh.settle()
    made.begin()
    left = [100]
    hops = 0
    while made.prefixes[OLD].is_busy:
        made.carry(next(pair for pair, end in made.mesh.ends.items() if end.waits))
        hops += 1
        if made.imports[OLD].waiting != left[-1]:
            left.append(made.imports[OLD].waiting)
            assert made.imports[NEW].waiting >= 100 - left[-2], "the piece before has come"
    assert left == list(range(100, -1, -10))
    assert made.waiting() == [0, 100, 0, 0]
    made.mesh.close()


def test_who_asked_may_go_while_its_measured_requests_are_handed_over(made, monkeypatch):
    """The next shard sees that nobody listens; for those of which it hears later, it waits as if nobody ever had."""
    monkeypatch.setattr(due_replies, "PIECE_REPLIES", 1)
    events: list[int] = []
    for one in made.imports:
        one.on_latency = lambda measured, status, session, passed_us, ns: events.append(status)
    made.client(FAR, b"A", b"SUB timed 1\r\n")
    asker = made.client(OLD, b"B", b"SUB in 1\r\n" + b"PUB timed in 1\r\n?\r\n" * 3)
    made.mesh.settle()
    made.begin()
    while made.imports[OLD].waiting != 2:
        made.carry(next(pair for pair, end in made.mesh.ends.items() if end.waits))
    assert made.imports[OLD].on_client_gone(asker.connection.cid, 1000)
    asker.connection.leave()
    made.mesh.settle()
    assert made.waiting() == [0, 3, 0, 0] and not events
    made.sweep(100)
    assert events == [REQUESTOR_GONE]
    made.sweep(THRESHOLD_US + 1000)
    assert events == [REQUESTOR_GONE, TIMED_OUT, TIMED_OUT]
    assert made.is_idle and made.waiting() == [0] * 4
    made.mesh.close()


@pytest.mark.parametrize("hops", range(0, 40, 3))
@pytest.mark.parametrize("dies", [OLD, NEW])
def test_where_a_shard_dies_while_pieces_are_on_their_way_nobody_waits_for_it(made, monkeypatch, hops, dies):
    monkeypatch.setattr(due_replies, "PIECE_REPLIES", 10)
    responder = made.client(FAR, b"A", b"SUB s 1\r\n")
    made.client(OTHER, b"B", b"SUB in 1\r\n")
    made.client(OLD, b"B", b"PUB s in 1\r\n?\r\n" * 100)
    replies = made.requested(responder)
    made.begin()
    for turn in range(hops):
        busy = [pair for pair, end in made.mesh.ends.items() if end.waits]
        if busy:
            made.carry(busy[turn % len(busy)])
    made.mesh.kill(dies)
    made.mesh.settle()
    assert made.is_idle
    for reply in replies:
        answer(responder, reply, b"one")
    made.mesh.settle()
    assert all(made.mesh.engines[shard].probe.reroutes.n_pending == 0 for shard in made.mesh.alive)
    made.sweep(THRESHOLD_US * 3)
    assert [made.waiting()[shard] for shard in made.mesh.alive] == [0] * 3
    made.mesh.close()


@pytest.mark.parametrize(
    "words",
    [
        b"\xc1",
        b"\x91",
        due_replies.encoded([DueReply(b"_R_.00AAAAAAAA.0000x", b"B", b"A", b"in", 7, 0, 1)]),
        due_replies.encoded([DueReply(b"_R_.05AAAAAAAA.0000x", b"B", b"A", b"in", 0, 0, 1)]),
        due_replies.encoded([DueReply(b"_R_.00AAAAAAAA.", b"B", b"A", b"in", 0, 0, 1)]),
        due_replies.encoded([DueReply(b"_R_.00AAAAAAAA.zzzz", b"B", b"A", b"in", 0, 0, 1)]),
    ],
    ids=["no MessagePack", "truncated", "an unknown kind", "another prefix", "no lane", "a bad lane"],
)
def test_replies_that_cannot_be_read_end_the_link(made, words):
    end = made.mesh.ends[NEW, OLD]
    probe = made.mesh.engines[NEW].probe
    prefix = b"_R_.00AAAAAAAA."
    probe.feed(end.socket, b"RTAKE %b 1\r\n" % prefix)
    assert made.prefixes[NEW].is_busy
    probe.feed(end.socket, b"RDUE %b 1 %d\r\n%b\r\n" % (prefix, len(words), words))
    assert end.broken and "RDUE" in end.broken[0]


def test_replies_of_a_prefix_that_is_not_taken_are_ignored(made):
    end = made.mesh.ends[NEW, OLD]
    words = due_replies.encoded([DueReply(b"_R_.00AAAAAAAA.0000x", b"B", b"A", b"in", 0, 0, 1)])
    made.mesh.engines[NEW].probe.feed(end.socket, b"RDUE _R_.00AAAAAAAA. 1 %d\r\n%b\r\n" % (len(words), words))
    assert not end.broken
    assert made.waiting() == [0, 0, 0, 0]
    made.mesh.close()


def test_requests_that_nobody_answers_are_bounded_in_bytes(made):
    """Their reply subjects are made up by who asks; the oldest of them get no answer any more."""
    made.client(NEW, b"A", b"SUB s 1\r\n")
    asks = made.client(NEW, b"B")
    asks.connection.set_limits(Limits(max_control_line_bytes=128 * 1024))
    long, n = b"r" * 60_000, 1200
    for number in range(n):
        asks.feed(b"PUB s %b.%d 0\r\n\r\n" % (long, number))
    imports = made.imports[NEW]
    assert n // 2 < imports.waiting + imports.n_expired == n
    assert 60 << 20 < imports.waiting * 60_000 < 64 << 20
    for number in range(2000):
        asks.feed(b"PUB s r.%d 0\r\n\r\n" % number)
    made.sweep(10 * THRESHOLD_US)
    assert imports.waiting == 0
    asks.feed(b"".join(b"PUB s %b.%d 0\r\n\r\n" % (long, number) for number in range(1000)))
    assert imports.waiting == 1000  # what was forgotten counts no more


@pytest.mark.parametrize("reply", [b"in", b"in." + b"x" * 3000], ids=["many", "long"])
def test_an_account_whose_requests_nobody_answers_takes_no_other_s_answers(made, reply):
    """There is room for so many requests; who asks more than anybody else gives up his own oldest ones."""
    there = made.mesh.engines[OLD].probe.mesh
    a, d = there.account(b"A"), there.account(b"D")
    d.set_rules([], [rules.ServiceImport(d, a, b"s", b"s", rules.RESPONSE_KINDS["singleton"], THRESHOLD_US)])
    responder = made.client(OLD, b"A", b"SUB s 1\r\n")
    listener = made.client(OLD, b"D", b"SUB in 1\r\nPUB s in 0\r\n\r\n")
    [due] = made.requested(responder)
    flood = made.client(OLD, b"B", b"SUB in 1\r\n")
    imports, n = made.imports[OLD], 300_000 if reply == b"in" else 30_000
    for start in range(0, n, 5000):
        flood.feed(b"PUB s %b 0\r\n\r\n" % reply * min(5000, n - start))
        last = responder.take()
    assert imports.n_expired > 0
    answer(responder, due, b"for D")
    answer(responder, frames(last)[-1].reply, b"for B")
    made.mesh.settle()
    assert heard(listener) == [b"for D"]
    assert heard(flood) == ([b"for B"] if reply == b"in" else [])
    made.mesh.close()


def test_who_asks_through_another_account_takes_none_of_its_answers(made):
    """C asks B, which imports from A what C asks for: that is two requests of C."""
    responder = made.client(OLD, b"A", b"SUB s 1\r\n")
    listener = made.client(OLD, b"B", b"SUB in 1\r\nPUB s in 0\r\n\r\n")
    [due] = made.requested(responder)
    flood = made.client(OLD, b"C", b"SUB in 1\r\n")
    imports = made.imports[OLD]
    for _ in range(30):
        flood.feed(b"PUB s in 0\r\n\r\n" * 5000)
        last = responder.take()
    assert imports.n_expired > 0
    answer(responder, due, b"for B")
    answer(responder, frames(last)[-1].reply, b"for C")
    made.mesh.settle()
    assert heard(listener) == [b"for B"]
    assert heard(flood) == [b"for C"]
    made.mesh.close()


def test_who_asks_many_services_takes_no_more_room_for_that(made):
    """Requests wait by account and threshold; what counts is what waits of the account."""
    there = made.mesh.engines[OLD].probe.mesh
    a, d = there.account(b"A"), there.account(b"D")
    kind = rules.RESPONSE_KINDS["singleton"]
    d.set_rules([], [rules.ServiceImport(d, a, b"s", b"s%d" % n, kind, THRESHOLD_US + n) for n in range(20)])
    responder = made.client(OLD, b"A", b"SUB s 1\r\n")
    listener = made.client(OLD, b"B", b"SUB in 1\r\n" + b"PUB s in 0\r\n\r\n" * 20_000)
    due = made.requested(responder)
    flood = made.client(OLD, b"D")
    for _ in range(60):
        flood.feed(b"".join(b"PUB s%d in 0\r\n\r\n" % (number % 20) for number in range(5000)))
        responder.take()
    assert made.imports[OLD].n_expired > 0
    answer(responder, due[0], b"for B")
    made.mesh.settle()
    assert heard(listener) == [b"for B"]
    made.mesh.close()


def lanes() -> int:
    gc.collect()
    return sum(type(one).__name__ == "Lane" for one in gc.get_objects())


def ask_of_many(made, n: int) -> list[bytes]:
    """Five requests of B, and one of each of so many accounts, to A. Returns where answers go."""
    there = made.mesh.engines[OLD].probe.mesh
    a = there.account(b"A")
    responder = made.client(OLD, b"A", b"SUB s 1\r\n")
    made.client(OLD, b"B", b"SUB in 1\r\n" + b"PUB s in 0\r\n\r\n" * 5)
    for number in range(n):
        name = b"N%d" % number
        account = there.account(name)
        account.set_rules(
            [], [rules.ServiceImport(account, a, b"s", b"s", rules.RESPONSE_KINDS["singleton"], THRESHOLD_US)]
        )
        made.client(OLD, name, b"SUB in 1\r\nPUB s in 0\r\n\r\n")
    replies: list[bytes] = made.requested(responder)
    return replies


def test_requests_of_many_accounts_are_looked_at_in_turn(made, monkeypatch):
    """The shard does something else between them. At last none is left, nor a number."""
    monkeypatch.setattr(service_imports, "MOST_LANES_SWEPT", 4)
    before = lanes()
    ask_of_many(made, 10)
    waiting = [made.imports[OLD].waiting]
    for _ in range(4):
        made.sweep(2 * THRESHOLD_US)
        waiting.append(made.imports[OLD].waiting)
    assert waiting == [15, 8, 4, 0, 0]
    assert lanes() == before
    made.mesh.close()


def test_of_more_requests_than_are_looked_at_some_of_each_account_are_listed(made, monkeypatch):
    replies = ask_of_many(made, 3)
    assert [reply for reply, *_ in made.imports[OLD].due(b"A", 10)] == replies
    monkeypatch.setattr(service_imports, "MOST_LISTED_FROM", 5)
    assert sorted(importer for _, importer, *_ in made.imports[OLD].due(b"A", 10)) == [b"B", b"B", b"N0", b"N1", b"N2"]
    assert len(made.imports[OLD].due(b"A", 2)) == 2
    made.mesh.close()


def test_accounts_that_ask_once_and_go_leave_nothing_behind(made):
    """Their names may come and go for months; who waits meanwhile gets his answer."""
    there = made.mesh.engines[OLD].probe.mesh
    a = there.account(b"A")
    responder = made.client(OLD, b"A", b"SUB s 1\r\n")
    waits = made.client(OLD, b"B", b"SUB in 1\r\nPUB s in 0\r\n\r\n")
    [due] = made.requested(responder)
    before = lanes()

    def ask(name: bytes) -> tuple[EngineClient, bytes]:
        account = there.account(name)
        account.set_rules(
            [], [rules.ServiceImport(account, a, b"s", b"s", rules.RESPONSE_KINDS["singleton"], THRESHOLD_US)]
        )
        asker = made.client(OLD, name, b"SUB in 1\r\nPUB s in 0\r\n\r\n")
        [reply] = made.requested(responder)
        return asker, reply

    asked = [ask(b"N%d" % number) for number in range(20)]
    for several in (asked[:10], asked[10:]):
        for asker, reply in several:
            answer(responder, reply, b"yes")
            made.mesh.settle()
            assert heard(asker) == [b"yes"]
        made.sweep(0)
    for number in range(1000, 1050):
        asker, reply = ask(b"N%d" % number)
        asked += [(asker, reply)]
        answer(responder, reply, b"yes")
        made.mesh.settle()
        assert heard(asker) == [b"yes"]
        made.sweep(0)
    # Each is told a number of its lane, which others have had before.
    numbers = {reply[len(made.imports[OLD].reply_prefix) :][:4] for _, reply in asked}
    assert len(numbers) == 20, numbers
    assert lanes() == before
    answer(responder, due, b"at last")
    made.mesh.settle()
    assert heard(waits) == [b"at last"]
    made.mesh.close()
