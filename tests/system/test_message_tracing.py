"""Message tracing: what becomes of a message whose header asks for it, on nats-server 2.15 and on us.

A broker of one shard publishes what nats-server does. Of several shards each that gets the message publishes a document
of its own, as servers of a cluster do.
"""

from __future__ import annotations

import gzip
import json
import random
from typing import Any

import pytest

from tests.support.wire import Client

# The byte of a gzip header that says how it was made (RFC 1952), and its value for the fastest way.
XFL, FASTEST = 8, 4
MEGABYTE = 1024 * 1024

ALL = ("gnatswarm-1-as-2.15", "gnatswarm-2-as-2.15", "nats-server-2.15")

pytestmark = pytest.mark.kinds(*ALL)

CONFIG = """
accounts {
  A {
    users: [
      {user: a, password: x}, {user: narrow, password: x, permissions: {publish: [foo, inbox]}}
      {user: dest, password: x, permissions: {publish: [traces]}}
    ]
    mappings: { "m.*": "n.$1" }
    msg_trace: { dest: "of.a" }
    imports: [
      {service: {account: B, subject: closed}, to: "to.closed"}, {service: {account: B, subject: open}, to: "to.open"}
    ]
    exports: [ {stream: st}, {stream: stx} ]
  }
  B { users: [ {user: b, password: x} ], exports: [ {service: closed}, {service: open, allow_trace: true} ] }
  C { users: [ {user: c, password: x} ]
      imports: [ {stream: {account: A, subject: st}}, {stream: {account: A, subject: stx}, allow_trace: true} ] }
  D { users: [ {user: d, password: x} ], trace_dest: "of.d" }
}
"""
DEST = ("Nats-Trace-Dest", "traces")
ONLY = ("Nats-Trace-Only", "true")
PARENT = ("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
UNSAMPLED = ("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00")


class Party:
    """Clients of one broker: `listener` hears all documents."""

    listener: Client

    def __init__(self, cluster: Any) -> None:
        self.cluster = cluster

    async def on(self, user: str, shard: int, name: str = "", **options: Any) -> Client:
        client: Client = await self.cluster.client_on(
            shard,
            {"user": user, "pass": "x", "headers": True, "no_responders": True, "name": name or user} | options,
        )
        return client

    async def on_both(self) -> list[Client]:
        """A publisher and `one` on shard 0, `two` on shard 1."""
        wanted = ((0, "publisher"), (0, "one"), (1, "two"))
        return [await self.on("a", shard, name) for shard, name in wanted]

    async def documents(self, count: int) -> list[Any]:
        """That many of them and no more, the publisher's shard's first."""
        found = [json.loads(message.payload) for message in await self.listener.messages(count)]
        await self.quiet()
        return sorted(found, key=lambda one: one["events"][0]["kind"])

    async def quiet(self) -> None:
        await self.listener.flush()
        await self.listener.flush()
        assert self.listener.inbox == []


@pytest.fixture
async def party(start_broker, cluster_of):
    cluster = cluster_of(start_broker(config=CONFIG))
    found = Party(cluster)
    found.listener = await found.on("a", 0, "listener")
    await found.listener.talk("SUB traces 1\r\nSUB of.a 2\r\nPING\r\n", expect_last="PONG\r\n")
    return found


async def subscribe(client: Client, *subjects: str) -> None:
    for sid, subject in enumerate(subjects, 1):
        await client.send(f"SUB {subject} {sid}\r\n")
    await client.flush()


def hpub(subject: str, *headers: tuple[str, str], payload: str = "x", reply: str = "") -> str:
    block = "NATS/1.0\r\n" + "".join(f"{name}: {value}\r\n" for name, value in headers) + "\r\n"
    words = " ".join(filter(None, ["HPUB", subject, reply, str(len(block)), str(len(block) + len(payload))]))
    return f"{words}\r\n{block}{payload}\r\n"


def bare(event: dict[str, Any]) -> dict[str, Any]:
    """Without time, and without what differs from run to run."""
    return {key: value for key, value in event.items() if key not in ("ts", "cid")}


def events_of(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [bare(event) for event in document["events"]]


def came(subject: str, **more: str) -> dict[str, Any]:
    return {"type": "in", "kind": 0, "name": "publisher", "acc": "A", "subj": subject, **more}


def went(name: str, sub: str, **more: str) -> dict[str, Any]:
    return {"type": "eg", "kind": 0, "name": name, "sub": sub, **more}


@pytest.mark.parametrize("only", [(), (ONLY,)], ids=["delivered", "only traced"])
async def test_the_document_names_every_subscription_that_gets_the_message(party, only):
    publisher, one = await party.on("a", 0, "publisher"), await party.on("a", 0, "one")
    await subscribe(one, "foo.x", "foo.x group", "foo.*")
    headers = (DEST, *only, ("X", "1"), ("X", "2"))
    await publisher.send(hpub("foo.x", *headers))
    (document,) = await party.documents(1)
    shown = {"Nats-Trace-Dest": ["traces"], "X": ["1", "2"]} | {name: [value] for name, value in only}
    assert document["request"] == {"header": shown, "msgsize": len(hpub("", *headers).partition("\r\n")[2]) - 2}
    assert "hops" not in document
    first, *rest = events_of(document)
    assert first == came("foo.x")
    assert document["events"][0]["cid"] == publisher.info["client_id"]
    assert {event["cid"] for event in document["events"][1:]} == {one.info["client_id"]}
    assert sorted(rest, key=str) == sorted(
        [went("one", "foo.x"), went("one", "foo.*"), went("one", "foo.x", queue="group")], key=str
    )
    assert all(event["ts"].endswith("Z") for event in document["events"])
    assert document["server"]["name"] == one.info["server_name"]
    assert len(await one.messages(0 if only else 3)) == (0 if only else 3)
    await one.flush()
    assert one.inbox == []


@pytest.mark.kinds("gnatswarm-2-as-2.15")
@pytest.mark.parametrize("only", [(), (ONLY,)], ids=["delivered", "only traced"])
async def test_a_sibling_publishes_a_document_of_its_own_which_the_hop_leads_to(party, only):
    publisher, one, two = await party.on_both()
    await subscribe(one, "foo")
    await subscribe(two, "foo", "foo group")
    await publisher.send(hpub("foo", DEST, *only))
    near, far = await party.documents(2)
    assert near["hops"] == 1
    assert events_of(near) == [
        came("foo"),
        went("one", "foo"),
        {"type": "eg", "kind": 1, "name": "shard-1", "hop": "1"},
    ]
    assert far["request"]["header"]["Nats-Trace-Hop"] == ["1"]
    first, *rest = events_of(far)
    assert first == {"type": "in", "kind": 1, "name": "shard-0", "acc": "A", "subj": "foo"}
    assert rest == [went("two", "foo"), went("two", "foo", queue="group")]
    assert "hops" not in far
    for client, count in (one, 1), (two, 2):
        assert len(await client.messages(0 if only else count)) == (0 if only else count)
        await client.flush()
        assert client.inbox == []


@pytest.mark.kinds("gnatswarm-2-as-2.15")
async def test_traced_messages_keep_their_place_among_others_on_every_shard(party):
    """Among runs of messages with headers of the same size, which differ in the header's name alone."""
    publisher, one, two = await party.on_both()
    for client in (one, two):
        await subscribe(client, "foo")
    plain = ("Nats-Trace-Desx", "traces")
    sent = [DEST if number % 7 == 3 else plain for number in range(50)]
    await publisher.send("".join(hpub("foo", name, payload=f"{number:02}") for number, name in enumerate(sent)))
    for client in (one, two):
        assert [message.payload for message in await client.messages(50)] == [b"%02d" % number for number in range(50)]
    assert len(await party.documents(2 * sent.count(DEST))) == 2 * sent.count(DEST)


async def test_no_responders_mappings_and_refusals_are_in_it(party):
    publisher, one = await party.on("a", 0, "publisher"), await party.on("a", 0, "one", echo=False)
    await subscribe(publisher, "inbox")
    await publisher.send(hpub("nobody", DEST, ONLY, reply="inbox"))
    assert b"503" in (await publisher.messages(1))[0].headers
    assert events_of((await party.documents(1))[0]) == [came("nobody")]
    await subscribe(one, "n.*", "own")
    await publisher.send(hpub("m.1", DEST))
    assert events_of((await party.documents(1))[0]) == [came("m.1"), {"type": "sm", "to": "n.1"}, went("one", "n.*")]
    await one.send(hpub("own", DEST))
    error = "Not delivered because of no echo"
    assert events_of((await party.documents(1))[0])[1] == went("one", "own", error=error)
    await publisher.send(hpub("foo", DEST, reply="_R_.a"))
    error = 'Permissions Violation for Publish with Reply of "_R_.a"'
    assert events_of((await party.documents(1))[0]) == [came("foo", error=error)]
    await publisher.send("HPUB foo 34 9000000\r\nNATS/1.0\r\nNats-Trace-Dest:traces\r\n\r\n")
    assert events_of((await party.documents(1))[0]) == [came("foo", error="maximum payload exceeded")]


async def test_who_may_not_publish_to_the_destination_may_not_ask_for_a_trace(party):
    narrow, dest, one = await party.on("narrow", 0), await party.on("dest", 0), await party.on("a", 0, "one")
    await subscribe(one, "foo")
    await narrow.send(hpub("foo", DEST))
    assert await narrow.read_line() == b"-ERR 'Permissions Violation for Publish to \"traces\"'\r\n"
    await party.quiet()
    await dest.send(hpub("foo", DEST))
    assert await dest.read_line() == b"-ERR 'Permissions Violation for Publish to \"foo\"'\r\n"
    (document,) = await party.documents(1)
    assert document["events"][0]["error"] == 'Permissions Violation for Publish to "foo"'
    await one.flush()
    assert one.inbox == []


async def test_headers_that_ask_for_no_trace(party):
    publisher, one = await party.on("a", 0, "publisher"), await party.on("a", 1, "one")
    await subscribe(one, "foo")
    for headers in (
        (("nats-trace-dest", "traces"), ONLY),
        (("Nats-Trace-Dest", "trace disabled"), PARENT, ONLY),
        (("Nats-Trace-Dest", "traces.*"),),
        (DEST, ("Nats-Trace-Origin-Account", "B")),
        (ONLY,),
        (UNSAMPLED,),
    ):
        await publisher.send(hpub("foo", *headers))
        await one.messages(1)
        await party.quiet()
    await publisher.send(hpub("foo", ("Nats-Trace-Dest", "traces.*"), ONLY))  # delivered to nobody, by mistake or not
    await publisher.flush()
    await one.flush()
    assert one.inbox == []


async def test_a_traceparent_asks_where_the_account_has_a_destination(party):
    publisher, other = await party.on("a", 0, "publisher"), await party.on("d", 0)
    await publisher.send(hpub("foo", ("TraceParent", PARENT[1])))
    assert events_of((await party.documents(1))[0]) == [came("foo")]
    await publisher.send(hpub("foo", PARENT, DEST))
    assert events_of((await party.documents(1))[0]) == [came("foo")]
    await subscribe(other, "of.d")
    await other.send(hpub("foo", PARENT))
    (message,) = await other.messages(1)
    assert json.loads(message.payload)["events"][0]["acc"] == "D"


async def test_a_trace_goes_to_another_account_where_that_allows_it(party):
    publisher, service = await party.on("a", 0, "publisher"), await party.on("b", 0)
    await subscribe(service, "closed", "open")
    await subscribe(publisher, "inbox")
    imported = {"type": "si", "acc": "B"}
    await publisher.send(hpub("to.closed", DEST, reply="inbox"))
    assert events_of((await party.documents(1))[0]) == [
        came("to.closed"),
        imported | {"from": "to.closed", "to": "closed"},
    ]
    (request,) = await service.messages(1)
    assert b"\r\nNats-Trace-Dest: trace disabled\r\n" in request.headers
    await publisher.send(hpub("to.open", DEST, reply="inbox"))
    assert events_of((await party.documents(1))[0]) == [
        came("to.open"),
        imported | {"from": "to.open", "to": "open"},
        went("b", "open", acc="B"),
    ]
    (request,) = await service.messages(1)
    assert b"\r\nNats-Trace-Dest: _R_." in request.headers
    await service.send(hpub(request.reply, ("a", "b"), payload="ok"))
    assert (await publisher.messages(1))[0].payload == b"ok"
    # Without delivery nobody can reply: where the trace stops, there seems to be no responder.
    await publisher.send(hpub("to.closed", DEST, ONLY, reply="inbox"))
    assert b"503" in (await publisher.messages(1))[0].headers
    await publisher.send(hpub("to.open", DEST, ONLY, reply="inbox"))
    documents = await party.documents(2)
    assert [len(document["events"]) for document in documents] == [2, 3]
    await service.flush()
    assert service.inbox == []


@pytest.mark.kinds("gnatswarm-2-as-2.15")
@pytest.mark.parametrize("only", [(), (ONLY,)], ids=["delivered", "only traced"])
async def test_a_trace_to_another_account_on_another_shard_comes_back(party, only):
    publisher, service = await party.on("a", 0, "publisher"), await party.on("b", 1)
    await subscribe(service, "open")
    await publisher.send(hpub("to.open", DEST, *only))
    near, far = await party.documents(2)
    assert [event["type"] for event in near["events"]] == ["in", "si", "eg"] and near["hops"] == 1
    assert events_of(far) == [
        {"type": "in", "kind": 1, "name": "shard-0", "acc": "B", "subj": "open"},
        went("b", "open"),
    ]
    await service.flush()
    assert len(service.inbox) == (0 if only else 1)


@pytest.mark.parametrize("only", [(), (ONLY,)], ids=["delivered", "only traced"])
async def test_a_stream_of_another_account_is_named_and_followed_where_its_import_allows_it(party, only):
    publisher, importer = await party.on("a", 0, "publisher"), await party.on("c", 0)
    await subscribe(importer, "st", "stx")
    await publisher.send(hpub("st", DEST, *only))
    exported = {"type": "se", "acc": "C"}
    assert events_of((await party.documents(1))[0]) == [came("st"), exported | {"to": "st"}]
    await publisher.send(hpub("stx", DEST, *only))
    assert events_of((await party.documents(1))[0]) == [
        came("stx"),
        exported | {"to": "stx"},
        went("c", "stx", acc="C"),
    ]
    await importer.flush()
    assert len(importer.inbox) == (0 if only else 2)


async def test_a_document_is_compressed_for_who_accepts_that(party):
    publisher = await party.on("a", 0, "publisher")
    await publisher.send(hpub("foo", DEST, ("Accept-Encoding", "gzip")))
    (message,) = await party.listener.messages(1)
    assert message.headers == b"NATS/1.0\r\nContent-Encoding: gzip\r\n\r\n"
    assert events_of(json.loads(gzip.decompress(message.payload))) == [came("foo")]


async def test_of_several_encodings_that_are_accepted_the_first_counts(party):
    publisher = await party.on("a", 0, "publisher")
    for first, last in ("gzip", "br"), ("br", "gzip"):
        await publisher.send(hpub("foo", DEST, ("Accept-Encoding", first), ("Accept-Encoding", last)))
    compressed, plain = await party.listener.messages(2)
    assert events_of(json.loads(gzip.decompress(compressed.payload))) == [came("foo")]
    assert events_of(json.loads(plain.payload)) == [came("foo")]


@pytest.mark.kinds("gnatswarm-2-as-2.15")
async def test_a_document_is_compressed_in_the_fastest_way_and_a_long_one_not_at_all(start_broker, cluster_of):
    broker = start_broker(config=CONFIG + "\nmax_payload: 4MB\n")
    party = Party(cluster_of(broker))
    listener = await party.on("a", 0, "listener")
    await listener.talk("SUB traces 1\r\nPING\r\n", expect_last="PONG\r\n")
    publisher = await party.on("a", 0, "publisher")
    # (letters with which zlib's other levels take seconds, so that the router would end the shard)
    letters = f"{int.from_bytes(random.Random(1).randbytes(MEGABYTE // 8)):b}"
    for text in letters, letters * 3:
        await publisher.send(hpub("foo", DEST, ("Accept-Encoding", "gzip"), ("Nats-Trace-Text", text)))
    compressed, whole = await listener.messages(2)
    assert compressed.headers == b"NATS/1.0\r\nContent-Encoding: gzip\r\n\r\n"
    assert compressed.payload[XFL] == FASTEST
    assert whole.headers == b""
    for document, text in (gzip.decompress(compressed.payload), letters), (whole.payload, letters * 3):
        assert json.loads(document)["request"]["header"]["Nats-Trace-Text"] == [text]


@pytest.mark.kinds("gnatswarm-1", "nats-server")
async def test_the_older_server_knows_no_traces(start_broker, cluster_of):
    cluster = cluster_of(start_broker())
    client = await cluster.client_on(0, {"headers": True})
    await client.talk("SUB > 1\r\nPING\r\n", expect="PONG\r\n")
    await client.send(hpub("foo", DEST, ONLY))
    assert [message.subject for message in await client.messages(1)] == ["foo"]
    await client.flush()
    assert client.inbox == []
