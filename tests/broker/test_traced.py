"""Which headers ask for a trace, wherever in the block the line stands, and where traced messages go."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnatswarm.broker import message_trace
from gnatswarm.broker.options import Account, Options
from gnatswarm.broker.traced import asks
from gnatswarm.shards.boundary.control import GATEWAY_NUMBER
from gnatswarm.shards.clients.message_tracing import MessageTracing
from tests.support.engine import NO_ECHO, NO_RESPONDERS, EngineClient, frames
from tests.support.mesh import Mesh
from tests.support.traces import AllWanted

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


@pytest.mark.parametrize(
    ("lines", "leads"),
    [
        (b"Nats-Trace-Dest: t\r\n", True),
        (b"Nats-Trace-Dest: t.*\r\n", False),
        (b"Nats-Trace-Dest: trace disabled\r\n", False),
        (b"Nats-Trace-Dest: t\r\nNats-Trace-Origin-Account: A\r\n", False),
        (b"traceparent: 00-1-2-01\r\n", True),
        (b"traceparent: 00-1-2-00\r\n", False),
    ],
)
def test_a_trace_leads_to_a_subject_that_is_none_of_those_that_end_it(lines: bytes, leads: bool) -> None:
    assert message_trace.may_lead_somewhere(FIRST + lines + b"\r\n") is leads


@given(st.lists(LINES, max_size=6), st.booleans())
def test_a_header_asks_where_a_line_begins_with_the_name(lines: list[bytes], by_parent: bool) -> None:
    block = FIRST + b"".join(line + b"\r\n" for line in lines) + b"\r\n"
    begins = block.split(b"\n")[1:]
    expected = any(line.startswith(b"Nats-Trace-Dest:") for line in begins)
    expected = expected or (by_parent and any(line.lower().startswith(b"traceparent:") for line in begins))
    assert asks(block, by_parent) is expected


def test_of_a_long_header_the_first_fields_are_read_and_those_of_its_trace() -> None:
    others = b"".join(b"%d: x\r\n" % number for number in range(100_000))
    for name in (b"Nats-Trace-Only", b"TraceParent", b"Accept-Encoding"):
        block = b"NATS/1.0\r\nNats-Trace-Dest: first\r\n%b%b: y\r\n%bNats-Trace-Dest: last\r\n\r\n" % (
            others,
            name,
            others,
        )
        found = message_trace.headers_of(block)
        assert (found["Nats-Trace-Dest"], found[name.decode()], found["7"]) == (["first", "last"], ["y"], ["x"])
        assert len(found) < message_trace.MOST_READ_BYTES / 6 + 3
    found = message_trace.headers_of(b"NATS/1.0\r\n" + b"Nats-Trace-Dest: x\r\n" * 50_000 + b"\r\n")
    assert len(found["Nats-Trace-Dest"]) < message_trace.MOST_READ_BYTES / 20 + message_trace.MOST_OF_TRACE + 1


@pytest.mark.parametrize(
    ("block", "changed"),
    [
        (b"", b"NATS/1.0\r\nHop: 1\r\n\r\n"),
        (b"NATS/1.0\r\n\r\n", b"NATS/1.0\r\nHop: 1\r\n\r\n"),
        (b"NATS/1.0\r\nHop: a\r\nHop:\r\nA: b\r\nHop: c\r\n\r\n", b"NATS/1.0\r\nA: b\r\nHop: 1\r\n\r\n"),
        (b"NATS/1.0\r\nA: b\r\n\r\n\r\nC: d", b"NATS/1.0\r\nA: b\r\nC: d\r\nHop: 1\r\n\r\n"),
        (b"NATS/1.0\r\nHops: a\r\n Hop: a\r\n\r\n", b"NATS/1.0\r\nHops: a\r\n Hop: a\r\nHop: 1\r\n\r\n"),
    ],
)
def test_a_line_takes_the_place_of_all_of_its_name(block: bytes, changed: bytes) -> None:
    assert message_trace.with_line(block, b"Hop", b"1") == changed


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


def a_trace(**changes: Any) -> message_trace.MessageTrace:
    given: dict[str, Any] = {
        "account": b"A",
        "destination": b"traces",
        "headers": {},
        "size": 0,
        "is_only": False,
        "hop": "",
        "is_by_parent": False,
        "now_us": lambda: 0,
        "who": lambda cid: ("", "A"),
        "is_exported": lambda account, exporter, subject: False,
    }
    return message_trace.MessageTrace(**(given | changes))


def test_a_hop_names_the_way_to_it() -> None:
    for hop, wanted in (("", [b"1", b"2"]), ("2", [b"2.1", b"2.2"])):
        one = a_trace(hop=hop)
        assert [one.sent_on(shard) for shard in (1, 2)] == wanted


def test_whether_it_follows_a_stream_is_asked_once_of_each_account() -> None:
    asked = []

    def is_exported(account: str, exporter: bytes, subject: bytes) -> bool:
        asked.append((account, exporter, subject))
        return account == "open"

    one = a_trace(who=lambda cid: ("", "open" if cid % 2 else "closed"), is_exported=is_exported)
    assert [one.exported(cid, b"A", b"s", b"to") for cid in range(100)] == [False, True] * 50
    assert asked == [("closed", b"A", b"s"), ("open", b"A", b"s")]
    assert (one.exported(1, b"A", b"other", b"to"), one.exported(1, b"B", b"s", b"to")) == (True, True)
    assert asked[2:] == [("open", b"A", b"other"), ("open", b"B", b"s")]


# ---- where traced messages go


class Told:
    """In the place of a shard's System: keeps the documents."""

    def __init__(self) -> None:
        self.documents: list[dict[str, Any]] = []

    def named(self) -> dict[str, str]:
        """The member `server` of a document."""
        return {}

    def say_soon(self, _account: str, _subject: bytes, document: bytes, _header: bytes) -> None:
        """What would be published."""
        self.documents.append(json.loads(document))


class Traced:
    """Three shards that trace messages, with two clients each."""

    def __init__(self, *, prefers_local: bool = False) -> None:
        self.mesh = Mesh(3, connect=NO_RESPONDERS, prefers_local=prefers_local)
        self.told = Told()
        for engine in self.mesh.engines.values():
            assert engine.probe.mesh is not None
            engine.probe.fanout.tracing = AllWanted(
                Options(),
                engine.probe.mesh,
                self.told,  # type: ignore[arg-type]
                {},
            )

    def client(self, shard: int) -> EngineClient:
        return self.mesh.clients[2 * shard]

    def echoless(self) -> EngineClient:
        """A client more of shard 0, which wants none of what it publishes."""
        self.mesh.clients.append(self.mesh.engines[0].client(NO_ECHO))
        return self.mesh.clients[-1]

    def publish(self, shard: int, *header: bytes) -> None:
        self.publish_as(self.client(shard), *header)

    def publish_as(self, client: EngineClient, *header: bytes) -> None:
        block = FIRST + b"".join(line + b"\r\n" for line in header) + b"\r\n"
        client.feed(b"HPUB a %d %d\r\n%b1\r\n" % (len(block), len(block) + 1, block))


@pytest.fixture
def traced() -> Iterator[Traced]:
    made = Traced()
    yield made
    made.mesh.settle()
    made.mesh.close()


def got(client: EngineClient) -> int:
    return sum(frame.is_message for frame in frames(client.take()))


@pytest.mark.parametrize("is_only", [False, True])
@pytest.mark.parametrize("stays", [False, True])
def test_what_is_only_traced_goes_to_no_member_where_the_chosen_one_has_just_left(
    traced: Traced, *, stays: bool, is_only: bool
) -> None:
    """Else it would be sent on to the other member's shard, or given to the member that has left."""
    leaver, other = traced.client(1), traced.client(2)
    leaver.feed(b"SUB a q 1\r\n")
    traced.mesh.settle()
    traced.publish(0, b"Nats-Trace-Dest: t", *[b"Nats-Trace-Only: true"] * is_only)
    if stays:
        other.feed(b"SUB a q 1\r\n")
        traced.mesh.settle_but((0, 1))
    leaver.feed(b"UNSUB 1\r\n")
    traced.mesh.settle()
    assert (got(leaver), got(other)) == ((0, 0) if is_only else (not stays, stays))
    events = [[event["type"] for event in document["events"]] for document in traced.told.documents]
    assert events == [["in", "eg"], ["in"]] if is_only else events[0] == ["in", "eg"]
    assert sum(engine.probe.reroutes.n_sent_on for engine in traced.mesh.engines.values()) == (stays and not is_only)


@pytest.mark.parametrize("prefers_local", [False, True])
def test_members_here_come_first_where_that_was_asked_for_as_without_a_trace(*, prefers_local: bool) -> None:
    traced = Traced(prefers_local=prefers_local)
    for shard in range(3):
        traced.client(shard).feed(b"SUB a q 1\r\n")
    traced.mesh.settle()
    for _ in range(60):
        traced.publish(0, b"Nats-Trace-Dest: t")
    traced.mesh.settle()
    counts = [got(traced.client(shard)) for shard in range(3)]
    assert counts == [60, 0, 0] if prefers_local else min(counts) > 0 and sum(counts) == 60
    traced.mesh.close()


@pytest.mark.parametrize("prefers_local", [False, True])
def test_a_member_elsewhere_gets_what_the_chosen_one_here_does_not_take(*, prefers_local: bool) -> None:
    """The publisher is a member, and wants no echo."""
    traced = Traced(prefers_local=prefers_local)
    publisher, member = traced.echoless(), traced.client(1)
    publisher.feed(b"SUB a q 1\r\n")
    member.feed(b"SUB a q 1\r\n")
    traced.mesh.settle()
    for _ in range(40):
        traced.publish_as(publisher, b"Nats-Trace-Dest: t")
    traced.mesh.settle()
    assert (got(publisher), got(member)) == (0, 40)
    traced.mesh.close()


def test_others_have_their_turn_between_traced_messages(traced: Traced) -> None:
    client = traced.client(0)
    client.feed(b"SUB a 1\r\n")
    block = FIRST + b"Nats-Trace-Dest: t\r\n\r\n"
    client.feed(b"HPUB a %d %d\r\n%b1\r\n" % (len(block), len(block) + 1, block) * 100)
    traced.mesh.settle()
    assert got(client) == 100
    assert client.session.turns == 4


def test_a_document_lists_only_so_many_receivers(traced: Traced, monkeypatch: pytest.MonkeyPatch) -> None:
    """All get the message; listing 100,000 took 0.3 s, in which nobody else was served."""
    assert message_trace.MOST_EVENTS <= 10_000
    monkeypatch.setattr(message_trace, "MOST_EVENTS", 4)
    client, other = traced.client(0), traced.mesh.clients[1]
    client.feed(b"".join(b"SUB a %d\r\n" % sid for sid in range(5)))
    other.feed(b"SUB a q 1\r\n")
    traced.publish(0, b"Nats-Trace-Dest: t")
    traced.mesh.settle()
    assert (got(client), got(other)) == (5, 1)
    (document,) = traced.told.documents
    assert ([event["type"] for event in document["events"]], document["unlisted"]) == (["in", "eg", "eg", "eg"], 3)
    client.feed(b"UNSUB 0\r\nUNSUB 1\r\nUNSUB 2\r\n")
    traced.publish(0, b"Nats-Trace-Dest: t")
    traced.mesh.settle()
    assert "unlisted" not in traced.told.documents[1]


def test_a_document_has_only_so_much_text(traced: Traced) -> None:
    """A client with a name of 3,900 bytes and 10,000 subscriptions made one of 40 MB of each message of 71 bytes."""
    client, n = traced.client(0), 20_000
    for sid in range(0, n, 1000):
        client.feed(b"".join(b"SUB a.*.%b %d\r\n" % (b"x" * 400, sid + more) for more in range(1000)))
    client.take()
    block = FIRST + b"Nats-Trace-Dest: t\r\nNats-Trace-Only: 1\r\n\r\n"
    client.feed(b"HPUB a.b.%b %d %d\r\n%b\r\n" % (b"x" * 400, len(block), len(block), block))
    (document,) = traced.told.documents
    assert len(document["events"]) - 1 + document["unlisted"] == n
    assert len(json.dumps(document["events"])) < 2 << 20


def test_nothing_is_listed_for_a_destination_that_nobody_subscribes_to(traced: Traced) -> None:
    for engine in traced.mesh.engines.values():
        assert engine.probe.mesh is not None
        engine.probe.fanout.tracing = MessageTracing(Options(), engine.probe.mesh, traced.told, {})  # type: ignore[arg-type]
    traced.client(0).feed(b"SUB a 1\r\nSUB a 2\r\n")
    traced.client(1).feed(b"SUB a 1\r\n")
    traced.mesh.settle()
    traced.publish(0, b"Nats-Trace-Dest: t")
    traced.mesh.settle()
    assert (got(traced.client(0)), got(traced.client(1)), traced.told.documents) == (2, 1, [])
    traced.client(2).feed(b"SUB t 9\r\n")
    traced.mesh.settle()
    traced.publish(0, b"Nats-Trace-Dest: t")
    traced.mesh.settle()
    assert sorted(len(document["events"]) for document in traced.told.documents) == [2, 4]


def test_a_traced_message_does_not_come_back_to_who_wants_no_echo(traced: Traced) -> None:
    """The member that it was sent to leaves. Plain interest on that shard gets a frame, and so a hop, of its own."""
    publisher, leaver, plain = traced.echoless(), traced.client(1), traced.mesh.clients[3]
    publisher.feed(b"SUB a q 1\r\n")
    leaver.feed(b"SUB a q 1\r\n")
    plain.feed(b"SUB a 1\r\n")
    traced.mesh.settle()
    for _ in range(10):
        traced.publish_as(publisher, b"Nats-Trace-Dest: t")
    leaver.feed(b"UNSUB 1\r\n")
    traced.mesh.settle()
    assert (got(publisher), got(leaver), got(plain)) == (0, 10, 10)
    documents = [document for document in traced.told.documents if "Nats-Trace-Hop" in document["request"]["header"]]
    heard = [event["cid"] for document in documents for event in document["events"] if event["type"] == "eg"]
    assert heard.count(plain.connection.cid) == 10


def hops_of(documents: list[dict[str, Any]]) -> list[str]:
    return [document["request"]["header"].get("Nats-Trace-Hop", [""])[0] for document in documents]


def test_what_is_sent_on_to_another_shard_has_a_hop_of_its_own(traced: Traced) -> None:
    """Readers find the document of each hop by its name: no two have the same."""
    leaver, other = traced.client(1), traced.client(2)
    leaver.feed(b"SUB a q 1\r\n")
    traced.mesh.settle()
    traced.publish(0, b"Nats-Trace-Dest: t")
    other.feed(b"SUB a q 1\r\n")
    traced.mesh.settle_but((0, 1))
    leaver.feed(b"UNSUB 1\r\n")
    traced.mesh.settle()
    assert got(other) == 1
    assert hops_of(traced.told.documents) == ["", "1", "1.1"]
    between = traced.told.documents[1]["events"]
    assert [(event["type"], event["cid"], event.get("hop")) for event in between] == [("in", 0, None), ("eg", 2, "1.1")]


@pytest.mark.parametrize(
    "lines", [[b"Nats-Trace-Hop: 9"], [b"Nats-Trace-Dest: t.*", b"Nats-Trace-Hop: 9"], [b"Nats-Trace-Hop:", b"A: b"]]
)
def test_what_is_not_traced_is_sent_on_as_it_was_published(traced: Traced, lines: list[bytes]) -> None:
    leaver, other = traced.client(1), traced.client(2)
    leaver.feed(b"SUB a q 1\r\n")
    traced.mesh.settle()
    traced.publish(0, *lines)
    other.feed(b"SUB a q 1\r\n")
    traced.mesh.settle_but((0, 1))
    leaver.feed(b"UNSUB 1\r\n")
    traced.mesh.settle()
    (message,) = [frame for frame in frames(other.take()) if frame.is_message]
    assert message.body == FIRST + b"".join(line + b"\r\n" for line in lines) + b"\r\n1"
    assert traced.told.documents == []


def test_what_goes_back_to_the_publishers_shard_has_a_hop_of_its_own(traced: Traced) -> None:
    """Its document has left by then: nobody took it where it was sent on to."""
    leaver, other, here = traced.client(1), traced.client(2), traced.client(0)
    leaver.feed(b"SUB a q 1\r\n")
    traced.mesh.settle()
    for number in range(4):
        traced.publish(0, b"Nats-Trace-Dest: t%d" % number)
    other.feed(b"SUB a q 1\r\n")
    traced.mesh.settle_but((0, 1))
    here.feed(b"SUB a q 1\r\n")
    leaver.feed(b"UNSUB 1\r\n")
    traced.mesh.carry_all((0, 1))
    other.feed(b"UNSUB 1\r\n")
    traced.mesh.settle()
    assert got(leaver) + got(other) + got(here) == 4
    for number in range(4):
        about = [one for one in traced.told.documents if one["request"]["header"]["Nats-Trace-Dest"] == [f"t{number}"]]
        hops = hops_of(about)
        assert len(hops) > 3
        assert len(hops) == len(set(hops))


def test_each_frame_of_a_traced_message_has_a_hop_of_its_own(traced: Traced) -> None:
    """Names of queue groups that are too long for one frame go in several."""
    member = traced.mesh.engines[1].client(NO_RESPONDERS)
    names = [bytes([letter]) * 3900 for letter in b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"]
    for sid, name in enumerate(names):
        member.feed(b"SUB a %b %d\r\n" % (name, sid + 1))
    traced.mesh.clients.append(member)
    traced.mesh.settle()
    traced.publish(0, b"Nats-Trace-Dest: t")
    traced.mesh.settle()
    assert got(member) == len(names)
    hops = hops_of(traced.told.documents)
    assert len(hops) > 2
    assert sorted(hops) == ["", *map(str, range(1, len(hops)))]


@pytest.mark.parametrize("is_only", [False, True])
def test_other_servers_get_what_is_traced_and_not_what_is_only_traced(traced: Traced, *, is_only: bool) -> None:
    traced.mesh.add(GATEWAY_NUMBER)
    traced.mesh.settle()
    engine = traced.mesh.engines[GATEWAY_NUMBER]
    in_place_of_a_server = engine.client(NO_RESPONDERS)
    in_place_of_a_server.feed(b"SUB a 1\r\n")
    traced.mesh.settle()
    traced.publish(0, b"Nats-Trace-Dest: t", *[b"Nats-Trace-Only: true"] * is_only)
    traced.mesh.settle()
    assert got(in_place_of_a_server) == (not is_only)
    (document,) = traced.told.documents
    error = message_trace.ONLY_NO_SUPPORT if is_only else message_trace.NO_SUPPORT
    assert [event.get("error", "") for event in document["events"]] == ["", error]
    in_place_of_a_server.close()


def test_other_servers_are_told_of_no_trace_of_what_is_sent_on_to_them(traced: Traced) -> None:
    traced.mesh.add(GATEWAY_NUMBER)
    traced.mesh.settle()
    in_place_of_a_server = traced.mesh.engines[GATEWAY_NUMBER].client(NO_RESPONDERS)
    leaver = traced.client(1)
    leaver.feed(b"SUB a q 1\r\n")
    traced.mesh.settle()
    traced.publish(0, b"Nats-Trace-Dest: t")
    in_place_of_a_server.feed(b"SUB a q 1\r\n")
    traced.mesh.settle_but((0, 1))
    leaver.close()
    traced.mesh.settle()
    (message,) = [frame for frame in frames(in_place_of_a_server.take()) if frame.is_message]
    assert b"Nats-Trace-Dest: trace disabled\r\n" in message.body
    assert traced.told.documents[-1]["events"][-1]["error"] == message_trace.NO_SUPPORT
    in_place_of_a_server.close()


def test_nothing_is_published_to_a_destination_that_is_no_subject(traced: Traced) -> None:
    """What is only traced is delivered to nobody all the same."""
    traced.client(1).feed(b"SUB a 1\r\n")
    traced.mesh.settle()
    traced.publish(0, b"Nats-Trace-Dest: t.*", b"Nats-Trace-Only: true")
    traced.mesh.settle()
    assert got(traced.client(1)) == 0
    assert traced.told.documents == []


def test_of_so_many_percent_each_shard_traces_the_same_and_a_reload_ends_it(traced: Traced) -> None:
    """The shard of the publisher draws; its siblings trace what it has traced."""
    mesh = traced.mesh.engines[0].probe.mesh
    tracing: Any = traced.mesh.engines[0].probe.fanout.tracing
    assert mesh is not None
    block = FIRST + b"traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\n\r\n"
    for percent, begins in ((0, False), (100, True)):
        account = Account("A", trace_destination="t", trace_percent=percent)
        tracing.configure(Options(accounts=(account,)))
        assert mesh.account(b"A").traces_parents
        assert (tracing.begin(1, b"A", b"a", block, 1) is not None) is begins
        assert tracing.begin_here(1, b"A", b"a", block, 1) is not None
    tracing.configure(Options())
    assert not mesh.account(b"A").traces_parents
    assert tracing.begin(1, b"A", b"a", block, 1) is None
