"""Services that see which client asks, and exporters that hear how long their services take."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.support.wire import Client

ALL = ("gnatswarm-1", "gnatswarm-2-as-2.15", "nats-server", "nats-server-2.15")

pytestmark = pytest.mark.kinds(*ALL)

CONFIG = """
accounts {
  A {
    users: [ {user: a, password: x} ]
    exports: [
      {service: "req.*", latency: {sampling: 100%, subject: "lat.all"}, threshold: "60s"}
      {service: "late.*", latency: {sampling: 100%, subject: "lat.all"}, threshold: "300ms"}
      {service: "traced", latency: {sampling: headers, subject: "lat.traced"}}
      {service: "never", latency: "lat.never"}
      {service: "open"}
    ]
  }
  B {
    users: [ {user: b, password: x} ]
    imports: [
      {service: {account: A, subject: "req.*"}, to: "ask.*", share: true}
      {service: {account: A, subject: "late.*"}, share: true}
      {service: {account: A, subject: "traced"}}, {service: {account: A, subject: "open"}, share: true}
    ]
  }
  C { users: [ {user: c, password: x} ], imports: [ {service: {account: A, subject: "req.*"}} ] }
}
"""
WHO = {"name": "asker", "lang": "go", "version": "9.9"}
TRACED = {
    "uber-trace-id: 1:2:3:1": {"Uber-Trace-Id": ["1:2:3:1"]},
    "X-B3-Sampled: 1": {"X-B3-Sampled": ["1"]},
    "X-B3-TraceId: 80f198ee": {"X-B3-Traceid": ["80f198ee"]},
    "b3: 80f1-e457-1": {"B3": ["80f1-e457-1"]},
    "traceparent: 00-4bf9-00f0-01": {"Traceparent": ["00-4bf9-00f0-01"]},
}
UNTRACED = (
    "a: b",
    "uber-trace-id: 1:2:3:0",
    "X-B3-Sampled: 0",
    "b3: 0",
    "b3: 80f1-e457-0",
    "traceparent: 00-4bf9-00f0-00",
)


async def on(cluster: Any, user: str, shard: int = 0) -> Client:
    client: Client = await cluster.client_on(shard, {"user": user, "pass": "x", "headers": True, **WHO})
    return client


async def event(listener: Client) -> tuple[str, dict[str, Any]]:
    [message] = await listener.messages(1)
    return message.subject, json.loads(message.payload)


async def ask(client: Client, service: Client, subject: str, header: str = "") -> bytes:
    """Ask, and answer; returns the header that the service got."""
    block = f"NATS/1.0\r\n{header}\r\n\r\n" if header else ""
    verb = f"HPUB {subject} in {len(block)} {len(block) + 2}" if header else f"PUB {subject} in 2"
    await client.send(f"{verb}\r\n{block}hi\r\n")
    [request] = await service.messages(1)
    await service.send(f"PUB {request.reply} 2\r\nok\r\n")
    [answer] = await client.messages(1)
    assert answer.payload == b"ok"
    return bytes(request.headers)


@pytest.fixture
async def parties(start_broker, cluster_of):
    cluster = cluster_of(start_broker(config=CONFIG))
    listener, service, asker = await on(cluster, "a"), await on(cluster, "a"), await on(cluster, "b", 1)
    await listener.talk("SUB lat.> 1\r\nPING\r\n", expect="PONG\r\n")
    await service.talk("SUB req.* 1\r\nSUB traced 2\r\nSUB open 3\r\nSUB late.* 4\r\nPING\r\n", expect="PONG\r\n")
    await asker.talk("SUB in 1\r\nPING\r\n", expect="PONG\r\n")
    return cluster, listener, service, asker


async def test_a_service_whose_import_shares_sees_which_client_asks(parties):
    cluster, _listener, service, asker = parties
    for subject in ("open", "ask.1"):
        header = await ask(asker, service, subject, "A: b")
        assert header.startswith(b"NATS/1.0\r\nA: b\r\nNats-Request-Info: {")
        told = json.loads(header.split(b"Nats-Request-Info: ")[1])
        assert {
            key: told[key] for key in ("host", "id", "acc", "user", "name", "lang", "ver", "kind", "client_type")
        } == {
            "host": "127.0.0.1",
            "id": asker.info["client_id"],
            "acc": "B",
            "user": "b",
            "name": "asker",
            "lang": "go",
            "ver": "9.9",
            "kind": "Client",
            "client_type": "nats",
        }
        assert told["server"] == asker.info["server_name"] and told["start"].endswith("Z")
    other = await on(cluster, "c", 1)
    await other.talk("SUB in 1\r\nPING\r\n", expect="PONG\r\n")
    header = await ask(other, service, "req.1")
    assert re.fullmatch(rb'NATS/1.0\r\nNats-Request-Info: \{"acc":"C"(,"rtt":\d+)?\}\r\n\r\n', header)


async def test_the_latency_of_each_reply_is_published(parties):
    _cluster, listener, service, asker = parties
    await ask(asker, service, "ask.1")
    subject, found = await event(listener)
    assert subject == "lat.all" and found["type"] == "io.nats.server.metric.v1.service_latency"
    assert len(found["id"]) == 22 and found["status"] == 200 and "description" not in found
    assert (found["requestor"]["acc"], found["requestor"]["user"]) == ("B", "b")
    responder = found["responder"]
    assert (responder["acc"], responder["id"]) == ("A", service.info["client_id"])
    assert responder["name"] == "asker" and responder["user"] == "a"
    rtt = found["requestor"]["rtt"] + responder["rtt"]
    # Where the responder's round trip is longer than the whole, the time of the service is 0.
    assert found["total"] > 0 and found["service"] >= 0
    assert found["total"] == found["service"] + found["system"] + rtt or found["service"] == 0
    assert found["start"] < found["timestamp"]


async def test_nobody_sees_what_shards_tell_each_other_of_a_responder(parties):
    """It is in the system account; in the exporter's and the importer's there is the reply alone."""
    cluster, listener, service, asker = parties
    watchers = [await on(cluster, user, shard) for user in ("a", "b") for shard in (0, 1)]
    for watcher in watchers:
        await watcher.talk("SUB _R_.> 1\r\nSUB in 2\r\nPING\r\n", expect="PONG\r\n")
    await ask(asker, service, "ask.1")
    await event(listener)
    for watcher in watchers:
        await watcher.flush()
        assert {message.payload for message in watcher.inbox} <= {b"ok"}


async def test_a_requestor_that_unsubscribes_is_a_408_when_nobody_is_left_to_hear_the_reply(parties):
    _cluster, listener, _service, asker = parties
    await asker.send("SUB in.* 2\r\nPUB ask.1 in.1 2\r\nhi\r\nPING\r\n")
    await asker.read_until_pong()
    await asker.send("UNSUB 2\r\n")
    found = (await event(listener))[1]
    assert (found["status"], found["description"]) == (408, "Request Timeout")
    assert (found["service"], found["system"], found["total"]) == (0, 0, 0) and "responder" not in found
    # Where nobody was there to hear it from the beginning, or somebody still is, it is the service's fault.
    await asker.send("PUB late.1 nobody 2\r\nhi\r\n")
    assert (await event(listener))[1]["status"] == 504
    await asker.send("SUB in 3\r\nPUB late.1 in 2\r\nhi\r\nPING\r\n")
    await asker.read_until_pong()
    await asker.send("UNSUB 3\r\n")
    assert (await event(listener))[1]["status"] == 504


async def test_traced_requests_alone_are_measured_where_sampling_is_by_headers(parties):
    _cluster, listener, service, asker = parties
    for header in UNTRACED:
        await ask(asker, service, "traced", header)
    for header, shown in TRACED.items():
        await ask(asker, service, "traced", header)
        subject, found = await event(listener)
        assert (subject, found["header"]) == ("lat.traced", shown)


async def test_requests_that_get_no_reply_are_published_too(parties, kind):
    cluster, listener, service, asker = parties
    await asker.send("PUB late.1 2\r\nhi\r\n")
    assert (await event(listener))[1]["description"] == "Bad Request"
    await asker.send("PUB late.1 in 2\r\nhi\r\n")
    subject, found = await event(listener)
    assert (subject, found["status"], found["description"]) == ("lat.all", 504, "Service Timeout")
    assert (found["service"], found["system"], found["total"]) == (0, 0, 0) and "responder" not in found
    gone = await on(cluster, "b", 1)
    # (nats-server says either, by chance)
    subject = "late.1" if kind.is_oracle else "ask.1"
    await gone.talk(f"SUB in 1\r\nPUB {subject} in 2\r\nhi\r\nPING\r\n", expect="PONG\r\n")
    gone.close()
    found = (await event(listener))[1]
    said = (found["status"], found["description"])
    assert said == (408, "Request Timeout") or (kind.is_oracle and said == (504, "Service Timeout"))
    await service.send("UNSUB 4\r\n")
    await service.flush()
    await asker.send("PUB late.1 in 2\r\nhi\r\n")
    found = (await event(listener))[1]
    assert (found["status"], found["description"]) == (503, "Service Unavailable")
