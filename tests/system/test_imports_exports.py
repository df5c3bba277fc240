"""Accounts that import each other's streams and services: the same on every broker, on one shard and across shards.

The exporting account's client is on another shard than the importing one's, where there are two.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import re
import time
from collections import Counter
from typing import Any

import pytest

from gnatswarm.broker.subject import matches
from tests.support import swarm
from tests.support.pages import Pages
from tests.support.statistics import added, rows, stats_in
from tests.support.wire import Client, Cluster
from tests.system.test_log_in import reload

pytestmark = pytest.mark.kinds("gnatswarm-1", "gnatswarm-2", "gnatswarm-4", "nats-server")
OURS = pytest.mark.kinds("gnatswarm-1", "gnatswarm-2", "gnatswarm-4")

CONFIG = """
accounts {
  A {
    users: [ {user: a, password: x}, {user: limited, password: x, permissions: {publish: "only"}} ]
    exports: [
      {stream: "s.>"}, {stream: "private.>", accounts: [B]}
      {service: "req.>"}, {service: "st.>", response_type: stream}, {service: "ch.>", response_type: chunked}
      {service: "slow", threshold: "300ms"}, {service: "only.b", accounts: [B]}
      {service: "long.st", response_type: stream, threshold: "1200ms"}
      {service: "long.ch", response_type: chunked, threshold: "1200ms"}
    ]
  }
  B {
    users: [ {user: b, password: x}
             {user: few, password: x, permissions: {publish: "loc", subscribe: ["in", "A.s.1"]}} ]
    imports: [
      {stream: {account: A, subject: "s.>"}, prefix: A}
      {stream: {account: A, subject: "private.*.*"}, to: "p.$2.$1"}
      {service: {account: A, subject: "req.>"}}, {service: {account: A, subject: "req.fix"}, to: loc}
      {service: {account: A, subject: "req.w.*.*"}, to: "rev.$2.$1"}
      {service: {account: A, subject: "st.x"}}, {service: {account: A, subject: "ch.x"}}
      {service: {account: A, subject: slow}}, {service: {account: A, subject: "only.b"}}
      {service: {account: A, subject: "long.st"}}, {service: {account: A, subject: "long.ch"}}
    ]
    exports: [ {service: "rev.>"} ]
  }
  C {
    users: [ {user: c, password: x} ]
    imports: [ {stream: {account: A, subject: "s.>"}}, {service: {account: B, subject: "rev.*.*"}, to: "chain.*.*"} ]
  }
}
"""


async def on(cluster: Cluster, user: str, shard: int, **more: object) -> Client:
    return await cluster.client_on(
        shard, {"user": user, "pass": "x", "headers": True, "no_responders": True, "pedantic": False, **more}
    )


async def subjects(client: Client) -> list[tuple[str, str, bytes]]:
    """What has come: subject, sid, payload."""
    await client.flush()
    found = [(frame.subject, frame.sid, frame.payload) for frame in client.inbox]
    client.inbox.clear()
    return found


async def asked(client: Client) -> tuple[str, str]:
    """The subject of the one request that has come, and where its answer goes."""
    await client.flush()
    (frame,) = client.inbox
    client.inbox.clear()
    return frame.subject, frame.reply


@pytest.fixture
def exchange(cluster_with):
    return cluster_with(CONFIG)


async def test_a_stream_is_heard_under_the_name_it_is_imported_by(exchange):
    a, b, c = await on(exchange, "a", 0), await on(exchange, "b", 1), await on(exchange, "c", 2)
    await b.talk(
        "SUB A.s.* 1\r\nSUB A.> 2\r\nSUB A.s.x 3\r\nSUB p.two.* 4\r\nSUB s.x 5\r\nSUB *.s.y 6\r\nPING\r\n",
        expect="PONG\r\n",
    )
    await c.talk("SUB s.x 1\r\nSUB p.> 2\r\nSUB private.> 3\r\nPING\r\n", expect="PONG\r\n")
    await a.talk(
        "PUB s.x 1\r\n1\r\nPUB s.y.z 1\r\n2\r\nPUB private.one.two 1\r\n3\r\nPUB s.y 1\r\n4\r\nPING\r\n",
        expect="PONG\r\n",
    )
    assert sorted(await subjects(b)) == [
        ("A.s.x", "1", b"1"), ("A.s.x", "2", b"1"), ("A.s.x", "3", b"1"),
        ("A.s.y", "1", b"4"), ("A.s.y", "2", b"4"), ("A.s.y", "6", b"4"),
        ("A.s.y.z", "2", b"2"), ("p.two.one", "4", b"3"),
    ]  # fmt: skip
    assert await subjects(c) == [("s.x", "1", b"1")]
    await b.talk("PUB A.s.x 1\r\nL\r\nPING\r\n", expect_last="PONG\r\n")  # its own, and nobody else's
    assert sorted(await subjects(b)) == [("A.s.x", "1", b"L"), ("A.s.x", "2", b"L"), ("A.s.x", "3", b"L")]
    assert await subjects(a) == await subjects(c) == []


async def test_an_imported_stream_ends_with_its_subscription(exchange):
    a, b = await on(exchange, "a", 0), await on(exchange, "b", 1)
    await b.talk("SUB A.s.x 1\r\nSUB A.> 2\r\nPING\r\n", expect="PONG\r\n")
    await b.talk("UNSUB 1\r\nPING\r\n", expect="PONG\r\n")
    await a.talk("PUB s.x 1\r\n1\r\nPING\r\n", expect="PONG\r\n")
    assert await subjects(b) == [("A.s.x", "2", b"1")]
    await b.talk("UNSUB 2\r\nPING\r\n", expect="PONG\r\n")
    await a.talk("SUB in 1\r\nPUB s.x in 1\r\n1\r\nPING\r\n", expect_last="PONG\r\n")
    assert [frame.headers for frame in a.inbox] == [b"NATS/1.0 503\r\n\r\n"]


@OURS
async def test_unsub_max_counts_imported_messages(exchange):
    """nats-server 2.9.10 goes on delivering."""
    a, b = await on(exchange, "a", 0), await on(exchange, "b", 1)
    await b.talk("SUB A.s.x 1\r\nUNSUB 1 2\r\nPING\r\n", expect="PONG\r\n")
    await a.talk("PUB s.x 1\r\n1\r\n" * 3 + "PING\r\n", expect="PONG\r\n")
    await b.talk("PUB A.s.x 1\r\n1\r\nPING\r\n", expect_last="PONG\r\n")
    assert await subjects(b) == [("A.s.x", "1", b"1")] * 2


async def test_order_and_number_hold_across_accounts(exchange):
    a = await on(exchange, "a", 0)
    listeners = [await on(exchange, "b", shard) for shard in range(4)]
    for listener in listeners:
        await listener.talk("SUB A.s.x 1\r\nSUB A.s.> 2\r\nPING\r\n", expect="PONG\r\n")
    await a.talk("".join(f"PUB s.x 4\r\n{n:04}\r\n" for n in range(500)) + "PING\r\n", expect="PONG\r\n")
    for listener in listeners:
        got = await subjects(listener)
        for sid in "12":
            assert [payload for _, at, payload in got if at == sid] == [b"%04d" % n for n in range(500)]


async def test_queue_groups_share_an_imported_stream(exchange):
    a = await on(exchange, "a", 0)
    workers = [await on(exchange, "b", shard) for shard in range(4)]
    for worker in workers:
        await worker.talk("SUB A.s.* q 1\r\nPING\r\n", expect="PONG\r\n")
    await a.talk("PUB s.x 1\r\n1\r\n" * 200 + "PING\r\n", expect="PONG\r\n")
    got = [len(await subjects(worker)) for worker in workers]
    assert sum(got) == 200
    assert min(got) > 10


@pytest.mark.parametrize("at", [0, 1])
async def test_a_service_answers_and_does_not_see_who_asked(exchange, at):
    a, b = await on(exchange, "a", at), await on(exchange, "b", 1 - at)
    await a.talk("SUB req.> 1\r\nPING\r\n", expect="PONG\r\n")
    await b.talk("SUB in 1\r\nPUB loc in 2\r\nhi\r\nPING\r\n", expect="PONG\r\n")
    await a.flush()
    (request,) = a.inbox
    a.inbox.clear()
    assert (request.subject, request.payload) == ("req.fix", b"hi")
    assert re.fullmatch(rb'NATS/1.0\r\nNats-Request-Info: \{"acc":"B"(,"rtt":\d+)?\}\r\n\r\n', request.headers)
    assert request.reply.startswith("_R_.")
    await a.talk(f"PUB {request.reply} 2\r\nok\r\nPUB {request.reply} 5\r\nagain\r\nPING\r\n", expect="PONG\r\n")
    assert await subjects(b) == [("in", "1", b"ok")]


@pytest.mark.parametrize("at", [0, 1])
async def test_behind_two_imports_a_service_sees_which_account_asked_first(exchange, at):
    a, c = await on(exchange, "a", at), await on(exchange, "c", 1 - at)
    await a.talk("SUB req.> 1\r\nPING\r\n", expect="PONG\r\n")
    await c.talk("PUB chain.1.2 2\r\nhi\r\nPING\r\n", expect="PONG\r\n")
    await a.flush()
    (request,) = a.inbox
    told = json.loads(request.headers.partition(b"Nats-Request-Info: ")[2])
    told.pop("rtt", None)
    assert list(told.items()) == [("acc", "C"), ("svc", "B")]


async def test_subjects_of_services_are_rewritten(exchange):
    a, b = await on(exchange, "a", 0), await on(exchange, "b", 1)
    await a.talk("SUB req.> 1\r\nPING\r\n", expect="PONG\r\n")
    await b.talk("PUB rev.x.y in 0\r\n\r\nPUB req.z 0\r\n\r\nPUB none in 0\r\n\r\nPING\r\n", expect="PONG\r\n")
    assert [subject for subject, _, _ in await subjects(a)] == ["req.w.y.x", "req.z"]


@pytest.mark.parametrize("service", ["st", "ch"])
async def test_a_service_with_many_answers_ends_with_an_empty_one(exchange, service):
    a, b = await on(exchange, "a", 0), await on(exchange, "b", 1)
    await a.talk(f"SUB {service}.x 1\r\nPING\r\n", expect="PONG\r\n")
    await b.talk(f"SUB in 1\r\nPUB {service}.x in 0\r\n\r\nPING\r\n", expect="PONG\r\n")
    _, reply = await asked(a)
    answers = "".join(f"PUB {reply} 1\r\n{n}\r\n" for n in range(5))
    await a.talk(f"{answers}PUB {reply} 0\r\n\r\nPUB {reply} 4\r\nlate\r\nPING\r\n", expect="PONG\r\n")
    assert [payload for _, _, payload in await subjects(b)] == [b"0", b"1", b"2", b"3", b"4", b""]


async def test_an_answer_finds_whoever_listens_for_it(exchange):
    """The inbox is another connection's, on yet another shard; and a queue group's."""
    a, b = await on(exchange, "a", 0), await on(exchange, "b", 1)
    other, worker = await on(exchange, "b", 2), await on(exchange, "b", 3)
    await a.talk("SUB req.> 1\r\nPING\r\n", expect="PONG\r\n")
    await other.talk("SUB in 1\r\nPING\r\n", expect="PONG\r\n")
    await worker.talk("SUB in q 2\r\nPING\r\n", expect="PONG\r\n")
    for _ in range(20):
        await b.talk("PUB loc in 2\r\nhi\r\nPING\r\n", expect="PONG\r\n")
        _, reply = await asked(a)
        await a.talk(f"PUB {reply} 2\r\nok\r\nPING\r\n", expect="PONG\r\n")
        # The responder's PONG is a fence over the whole broker.
        assert await subjects(other) == [("in", "1", b"ok")]
        assert await subjects(worker) == [("in", "2", b"ok")]


async def test_responders_share_requests_as_a_queue_group(exchange):
    responders = [await on(exchange, "a", shard) for shard in range(4)]
    b = await on(exchange, "b", 1)
    for responder in responders:
        await responder.talk("SUB req.q workers 1\r\nPING\r\n", expect="PONG\r\n")
    await b.talk(
        "SUB in.* 1\r\n" + "".join(f"PUB req.q in.{n} 0\r\n\r\n" for n in range(100)) + "PING\r\n", expect="PONG\r\n"
    )
    counts = []
    for responder in responders:
        await responder.flush()
        counts.append(len(responder.inbox))
        for frame in responder.inbox:
            await responder.talk(f"PUB {frame.reply} 0\r\n\r\nPING\r\n", expect="PONG\r\n")
    assert sum(counts) == 100
    assert min(counts) > 5
    assert sorted(subject for subject, _, _ in await subjects(b)) == sorted(f"in.{n}" for n in range(100))


async def test_services_chain(exchange):
    a, c = await on(exchange, "a", 0), await on(exchange, "c", 1)
    await a.talk("SUB req.w.> 1\r\nPING\r\n", expect="PONG\r\n")
    await c.talk("SUB in 1\r\nPUB chain.x.y in 2\r\nhi\r\nPING\r\n", expect="PONG\r\n")
    subject, reply = await asked(a)
    assert subject == "req.w.y.x"
    await a.talk(f"PUB {reply} 2\r\nok\r\nPING\r\n", expect="PONG\r\n")
    assert await subjects(c) == [("in", "1", b"ok")]


@OURS
async def test_no_responders_is_said_for_an_imported_service(exchange):
    """nats-server 2.9.10 lets the request time out."""
    b = await on(exchange, "b", 1)
    await b.talk("SUB in 1\r\nPUB loc in 2\r\nhi\r\nPING\r\n", expect_last="PONG\r\n")
    assert [frame.headers for frame in b.inbox] == [b"NATS/1.0 503\r\n\r\n"]
    b.inbox.clear()
    a = await on(exchange, "a", 0)
    await a.talk("SUB req.fix 1\r\nPING\r\n", expect="PONG\r\n")
    await b.talk("PUB loc in 2\r\nhi\r\nPING\r\n", expect="PONG\r\n")
    assert await asked(a)


async def test_a_request_is_not_a_stream_message(exchange):
    """Who imports a stream of the exporting account does not hear what others ask its services."""
    a, b, c = await on(exchange, "a", 0), await on(exchange, "b", 1), await on(exchange, "c", 0)
    await a.talk("SUB > 1\r\nPING\r\n", expect="PONG\r\n")
    await c.talk("SUB > 1\r\nPING\r\n", expect="PONG\r\n")
    await b.talk("SUB > 1\r\nPUB req.s in 0\r\n\r\nPING\r\n", expect_last="PONG\r\n")
    assert [subject for subject, _, _ in await subjects(a)] == ["req.s"]
    assert [subject for subject, _, _ in await subjects(b)] == ["req.s"]
    assert await subjects(c) == []


async def test_the_header_comes_last_and_replaces_a_forged_one(exchange):
    a, b = await on(exchange, "a", 0), await on(exchange, "b", 1)
    await a.talk("SUB req.h 1\r\nPING\r\n", expect="PONG\r\n")
    header = b"NATS/1.0\r\nA: b\r\nNats-Request-Info: {}\r\nC: d\r\n\r\n"
    await b.talk(b"HPUB req.h %d %d\r\n%shi\r\nPING\r\n" % (len(header), len(header) + 2, header), "PONG\r\n")
    await a.flush()
    (frame,) = a.inbox
    lines = frame.headers.split(b"\r\n")
    assert lines[:3] == [b"NATS/1.0", b"A: b", b"C: d"]
    assert lines[3].startswith(b'Nats-Request-Info: {"acc":"B"')
    assert frame.payload == b"hi"


@OURS
@pytest.mark.parametrize(
    "forged",
    [
        b"NATS/1.0\r\nA: b\nNats-Request-Info: {}\r\n\r\n",
        b"NATS/1.0\nA: b\nNats-Request-Info: {}\n\n",
        b"NATS/1.0\r\nA: b\rNats-Request-Info: {}\r\n\r\n",
        b"NATS/1.0\r\nA: b\r\nnats-request-info : {}\n\n\r\n",
        b"NATS/1.0\r\nA: b\n\n\r\n",
        b"NATS/1.0\r\nA: b\r\r\r\n",
    ],
)
async def test_no_kind_of_line_end_hides_a_forged_header_or_the_true_one(exchange, forged):
    """Readers of headers differ in what ends a line, and an empty line ends what they read."""
    a, b = await on(exchange, "a", 0), await on(exchange, "b", 1)
    await a.talk("SUB req.h 1\r\nPING\r\n", expect="PONG\r\n")
    await b.talk(b"HPUB req.h %d %d\r\n%shi\r\nPING\r\n" % (len(forged), len(forged) + 2, forged), "PONG\r\n")
    await a.flush()
    (frame,) = a.inbox
    first, *lines, last, _end = re.split(rb"\r\n|\r|\n", frame.headers)
    told = [json.loads(line.partition(b":")[2]) for line in lines if line.lower().startswith(b"nats-request-info")]
    assert (first, lines[0], last) == (b"NATS/1.0", b"A: b", b"")
    assert [one["acc"] for one in told] == ["B"]
    assert b"" not in lines


@OURS
async def test_a_header_of_a_forged_line_alone_begins_as_all_do(exchange):
    a, b = await on(exchange, "a", 0), await on(exchange, "b", 1)
    await a.talk("SUB req.h 1\r\nPING\r\n", expect="PONG\r\n")
    forged = b"\r\nNats-Request-Info: {}\r\n\r\n"
    await b.talk(b"HPUB req.h %d %d\r\n%shi\r\nPING\r\n" % (len(forged), len(forged) + 2, forged), "PONG\r\n")
    await a.flush()
    (frame,) = a.inbox
    assert frame.headers.startswith(b'NATS/1.0\r\nNats-Request-Info: {"acc":"B"')


async def test_who_takes_no_headers_gets_none(exchange):
    a = await on(exchange, "a", 0, headers=False, no_responders=False)
    b = await on(exchange, "b", 1, headers=False, no_responders=False)
    await a.talk("SUB req.h 1\r\nPING\r\n", expect="PONG\r\n")
    await b.talk("PUB req.h in 2\r\nhi\r\nPING\r\n", expect="PONG\r\n")
    await a.flush()
    assert [(frame.verb, frame.payload) for frame in a.inbox] == [("MSG", b"hi")]


async def test_permissions_speak_of_the_client_s_own_subjects(exchange):
    a, few = await on(exchange, "a", 0), await on(exchange, "few", 1)
    await a.talk("SUB req.> 1\r\nPING\r\n", expect="PONG\r\n")
    await few.talk(
        "SUB A.s.1 1\r\nSUB A.s.2 2\r\nPUB loc in 0\r\n\r\nPUB req.x in 0\r\n\r\nPING\r\n",
        "-ERR 'Permissions Violation for Subscription to \"A.s.2\"'\r\n"
        "-ERR 'Permissions Violation for Publish to \"req.x\"'\r\nPONG\r\n",
    )
    await a.talk("PUB s.1 0\r\n\r\nPUB s.2 0\r\n\r\nPING\r\n", expect_last="PONG\r\n")
    assert [subject for subject, _, _ in await subjects(few)] == ["A.s.1"]
    assert [subject for subject, _, _ in await subjects(a)] == ["req.fix"]


async def test_a_responder_needs_the_permission_to_answer(exchange):
    limited, b = await on(exchange, "limited", 0), await on(exchange, "b", 1)
    await limited.talk("SUB req.p 1\r\nPING\r\n", expect="PONG\r\n")
    await b.talk("SUB in 1\r\nPUB req.p in 0\r\n\r\nPING\r\n", expect="PONG\r\n")
    _, reply = await asked(limited)
    error = f"-ERR 'Permissions Violation for Publish to \"{reply}\"'\r\n"
    await limited.talk(f"PUB {reply} 0\r\n\r\nPING\r\n", error + "PONG\r\n")
    assert await subjects(b) == []


async def test_an_answer_after_the_threshold_is_lost(exchange):
    a, b = await on(exchange, "a", 0), await on(exchange, "b", 1)
    await a.talk("SUB slow 1\r\nPING\r\n", expect="PONG\r\n")
    await b.talk("SUB in 1\r\nPUB slow in 0\r\n\r\nPING\r\n", expect="PONG\r\n")
    _, reply = await asked(a)
    until = time.monotonic() + 0.6  # the threshold is 0.3 s
    while time.monotonic() < until:
        await b.flush()
    await a.talk(f"PUB {reply} 2\r\nok\r\nPING\r\n", expect="PONG\r\n")
    assert await subjects(b) == []


async def test_the_threshold_of_several_answers_begins_anew_with_each(exchange):
    a, b = await on(exchange, "a", 0), await on(exchange, "b", 1)
    await a.talk("SUB long.* 1\r\nPING\r\n", expect="PONG\r\n")
    await b.talk("SUB in.* 1\r\nPING\r\n", expect="PONG\r\n")
    longest_s = math.inf
    while longest_s > 1.1:  # (a busy machine took too long)
        last_s, longest_s = time.monotonic(), 0.0
        await subjects(b)
        replies = []
        for service in ("st", "ch"):
            await b.talk(f"PUB long.{service} in.{service} 0\r\n\r\nPING\r\n", expect="PONG\r\n")
            replies.append((await asked(a))[1])
        answers = "".join(f"PUB {reply} 2\r\nok\r\n" for reply in replies)
        for _ in range(4):  # some 1.6 s in all, where 1.2 s may lie between two
            until = time.monotonic() + 0.4
            while time.monotonic() < until:
                await b.flush()
            since_s = time.monotonic()
            await a.talk(f"{answers}PING\r\n", expect_last="PONG\r\n")
            last_s, longest_s = since_s, max(longest_s, time.monotonic() - last_s)
        got = await subjects(b)
    assert got == [("in.st", "1", b"ok"), ("in.ch", "1", b"ok")] * 4


@OURS
async def test_a_made_up_reply_leads_nowhere(exchange):
    a, b = await on(exchange, "a", 0), await on(exchange, "b", 1)
    await a.talk("SUB req.> 1\r\nPING\r\n", expect="PONG\r\n")
    await b.talk("SUB in 1\r\nPUB req.x in 0\r\n\r\nPING\r\n", expect="PONG\r\n")
    _, reply = await asked(a)
    c = await on(exchange, "c", 1)
    for subject in (
        reply[:-1] + "!",
        reply[:13] + "zzzz" + reply[17:],
        reply[:14],
        "_R_.",
        "_R_.ffxxxxxxxx.0000y",
        "_R_.00",
    ):
        await a.talk(f"PUB {subject} 0\r\n\r\nPING\r\n", expect_last="PONG\r\n")
    # nobody but the account that was asked can answer
    for client in (b, c):
        await client.talk(f"PUB {reply} 0\r\n\r\nPING\r\n", expect="PONG\r\n")
    assert await subjects(b) == []
    await a.talk(f"PUB {reply} 2\r\nok\r\nPING\r\n", expect="PONG\r\n")
    assert await subjects(b) == [("in", "1", b"ok")]


def heard_as(account: str, subject: str) -> str | None:
    """Under which name an account hears what A publishes; None: not at all."""
    tokens = subject.split(".")
    if account == "A":
        return subject
    if tokens[0] == "s" and len(tokens) > 1:
        return f"A.{subject}" if account == "B" else subject
    if account == "B" and tokens[0] == "private" and len(tokens) == 3:
        return f"p.{tokens[2]}.{tokens[1]}"
    return None


@OURS
@pytest.mark.parametrize("seed", range(5))
async def test_any_subscriptions_hear_what_the_model_says(exchange, seed):
    """Subscriptions that come and go in three accounts, against the obvious rule."""
    chance = random.Random(seed)
    heads = {"A": ["s", "private", ">", "*"], "B": ["A.s", "A.*", "p", ">", "*", "*.s", "s"], "C": ["s", ">", "p", "*"]}
    clients = {(account, shard): await on(exchange, account.lower(), shard) for account in "ABC" for shard in range(4)}
    subs: dict[tuple[str, int], dict[str, str]] = {where: {} for where in clients}
    for step in range(30):
        for (account, shard), client in clients.items():
            mine = subs[account, shard]
            text = ""
            for sid in [sid for sid in mine if chance.random() < 0.3]:
                del mine[sid]
                text += f"UNSUB {sid}\r\n"
            if len(mine) < 4:
                head = chance.choice(heads[account])
                tail = "" if head == ">" else "".join(f".{chance.choice('xy*')}" for _ in range(chance.randrange(1, 3)))
                pattern = head + tail + (".>" if tail and chance.random() < 0.3 else "")
                mine[f"{step}"] = pattern
                text += f"SUB {pattern} {step}\r\n"
            await client.talk(text + "PING\r\n", expect_last="PONG\r\n")
            client.inbox.clear()
        publisher = clients["A", chance.randrange(4)]
        sent = [
            f"{chance.choice(['s', 'private'])}." + ".".join(chance.choices("xy", k=chance.randrange(1, 4)))
            for _ in range(6)
        ]
        lines = "".join(f"PUB {subject} 1\r\nm\r\n" for subject in sent)
        await publisher.talk(lines + "PING\r\n", expect_last="PONG\r\n")
        for (account, shard), client in clients.items():
            names = [heard_as(account, subject) for subject in sent]
            expected = [
                (name, sid)
                for name in names
                if name is not None
                for sid, pattern in subs[account, shard].items()
                if matches(pattern.encode(), name.encode())
            ]
            got = [(subject, sid) for subject, sid, _ in await subjects(client)]
            assert sorted(got) == sorted(expected), (step, account, shard)
            for sid in {sid for _, sid in expected}:
                assert [name for name, at in got if at == sid] == [name for name, at in expected if at == sid]


MAPPINGS = """
accounts {
  A {
    users: [ {user: a, password: x}, {user: may, password: x, permissions: {publish: "m.out"}}
             {user: maynot, password: x, permissions: {publish: "m.in"}} ]
    exports: [ {service: "svc.>"}, {stream: "s.>"} ]
    mappings {
      m.in: m.out
      "w.*.*": "w2.$2.$1"
      "p.*": "p.{{partition(10,1)}}.{{wildcard(1)}}"
      "half": [ {destination: one, weight: 50%}, {destination: two, weight: 50%} ]
      "stays": [ {destination: goes, weight: 50%} ]
      "lossy": [ {destination: lossy, weight: 50%} ]
      "svc.old": svc.new
      "t.in": s.out
    }
  }
  B {
    users: [ {user: b, password: x} ]
    imports: [ {service: {account: A, subject: "svc.>"}, to: "q.>"}, {stream: {account: A, subject: "s.>"}} ]
    mappings { "ask": "q.old" }
  }
}
"""


async def test_mappings_say_where_a_message_goes(cluster_with):
    cluster = cluster_with(MAPPINGS)
    a, hears = await on(cluster, "a", 0), await on(cluster, "a", 1)
    await hears.talk("SUB > 1\r\nPING\r\n", expect="PONG\r\n")
    lines = "PUB m.in 1\r\n1\r\nPUB w.x.y r 1\r\n2\r\nPUB p.abc 1\r\n3\r\nPUB m.out 1\r\n4\r\n"
    await a.talk(lines * 3 + "PING\r\n", expect="PONG\r\n")
    got = [(frame.subject, frame.reply) for frame in (await hears.flush(), hears.inbox)[1]]
    assert got == [("m.out", ""), ("w2.y.x", "r"), ("p.1.abc", ""), ("m.out", "")] * 3


async def test_weights_are_shares_of_the_messages(cluster_with):
    cluster = cluster_with(MAPPINGS)
    a, hears = await on(cluster, "a", 0), await on(cluster, "a", 1)
    await hears.talk("SUB > 1\r\nPING\r\n", expect="PONG\r\n")
    for subject, expected in (("half", ["one", "two"]), ("stays", ["goes", "stays"]), ("lossy", ["lossy"])):
        await a.talk(f"PUB {subject} 0\r\n\r\n" * 400 + "PING\r\n", expect="PONG\r\n")
        got = [name for name, _, _ in await subjects(hears)]
        assert sorted(set(got)) == expected
        assert all(120 < got.count(name) < 280 for name in expected)
        assert len(got) == 400 or subject == "lossy"


async def test_permissions_are_asked_about_the_mapped_subject(cluster_with):
    cluster = cluster_with(MAPPINGS)
    hears, may, maynot = await on(cluster, "a", 0), await on(cluster, "may", 1), await on(cluster, "maynot", 1)
    await hears.talk("SUB m.> 1\r\nPING\r\n", expect="PONG\r\n")
    await may.talk("PUB m.in 0\r\n\r\nPING\r\n", expect="PONG\r\n")
    error = "-ERR 'Permissions Violation for Publish to \"m.out\"'\r\n"
    await maynot.talk("PUB m.in 0\r\n\r\nPING\r\n", error + "PONG\r\n")
    assert [subject for subject, _, _ in await subjects(hears)] == ["m.out"]


async def test_mappings_and_imports_go_together(cluster_with):
    cluster = cluster_with(MAPPINGS)
    a, b = await on(cluster, "a", 0), await on(cluster, "b", 1)
    await a.talk("SUB svc.> 1\r\nPING\r\n", expect="PONG\r\n")
    await b.talk("SUB in 1\r\nSUB s.> 2\r\nPUB ask in 0\r\n\r\nPING\r\n", expect="PONG\r\n")
    subject, reply = await asked(a)
    assert subject == "svc.new"
    await a.talk(f"PUB {reply} 2\r\nok\r\nPUB t.in 1\r\ns\r\nPING\r\n", expect="PONG\r\n")
    assert await subjects(b) == [("in", "1", b"ok"), ("s.out", "2", b"s")]


async def test_mappings_of_the_file_are_the_global_account_s(start_broker, cluster_of):
    cluster = cluster_of(start_broker(config='mappings { "a.*": "b.$1" }\n'))
    one, other = await cluster.clients(2, on_different_shards=True)
    await other.talk("SUB > 1\r\nPING\r\n", expect="PONG\r\n")
    await one.talk("PUB a.x 0\r\n\r\nPING\r\n", expect="PONG\r\n")
    assert [subject for subject, _, _ in await subjects(other)] == ["b.x"]


async def test_a_reload_changes_imports_and_leaves_connections(start_broker, cluster_of):
    broker = start_broker(config=CONFIG)
    cluster = cluster_of(broker)
    a, b, c = await on(cluster, "a", 0), await on(cluster, "b", 1), await on(cluster, "c", 0)
    await a.talk("SUB req.> 1\r\nPING\r\n", expect="PONG\r\n")
    await b.talk("SUB A.s.x 1\r\nSUB N.s.x 2\r\nSUB in 3\r\nPING\r\n", expect="PONG\r\n")
    await c.talk("SUB s.x 1\r\nPING\r\n", expect="PONG\r\n")
    await a.talk("PUB s.x 1\r\n1\r\nPING\r\n", expect="PONG\r\n")
    assert await subjects(b) == [("A.s.x", "1", b"1")]
    text = (
        CONFIG.replace("prefix: A}", "prefix: N}")
        .replace("to: loc}", "to: place}")
        .replace('imports: [ {stream: {account: A, subject: "s.>"}}, ', "imports: [ ")
    )
    await reload(broker, text)
    await a.talk("PUB s.x 1\r\n2\r\nPING\r\n", expect="PONG\r\n")
    assert await subjects(b) == [("N.s.x", "2", b"2")]
    await b.talk("PUB loc in 0\r\n\r\nPUB place in 1\r\n3\r\nPING\r\n", expect_last="PONG\r\n")
    assert [(subject, payload) for subject, _, payload in await subjects(a)] == [("req.fix", b"3")]
    assert [payload for _, _, payload in await subjects(c)] == [b"1"]


@OURS
async def test_a_killed_shard_takes_its_imports_with_it(start_broker, cluster_of):
    broker = start_broker(config=CONFIG)
    if broker.kind.shards == 1:
        pytest.skip("there is no other shard")
    cluster = cluster_of(broker)
    a, b = await on(cluster, "a", 0), await on(cluster, "b", 1)
    await b.talk("SUB A.s.x 1\r\nPING\r\n", expect="PONG\r\n")
    await swarm.kill(broker, 1)
    await b.wait_closed()
    await a.talk("PUB s.x 1\r\n1\r\nPING\r\n", expect="PONG\r\n")
    again = await swarm.client_on(cluster, 1, {"user": "b", "pass": "x"})
    await again.talk("SUB A.s.x 1\r\nPING\r\n", expect="PONG\r\n")
    await a.talk("PUB s.x 1\r\n2\r\nPING\r\n", expect="PONG\r\n")
    assert await subjects(again) == [("A.s.x", "1", b"2")]


@OURS
async def test_monitoring_shows_what_accounts_have_of_each_other(start_broker, cluster_of):
    broker = start_broker(config=CONFIG + 'mappings { "a.*": "b.$1" }\n', args=["-m", "-1"])
    cluster = cluster_of(broker)
    b = await on(cluster, "b", 1)
    await b.talk("SUB A.s.x 1\r\nPING\r\n", expect="PONG\r\n")
    pages = Pages.of(broker)

    def detail(name: str) -> dict[str, Any]:
        return dict(pages.json(f"/accountz?acc={name}")["account_detail"])

    exporter, importer = await asyncio.to_thread(detail, "A"), await asyncio.to_thread(detail, "B")
    assert exporter["exports"][1] == {"subject": "private.>", "type": "stream", "approved_accounts": ["B"]}
    assert exporter["exports"][3] == {"subject": "st.>", "type": "service", "response_type": "Streamed"}
    rest = {"account": "A", "invalid": False, "share": False, "tracking": False}
    assert importer["imports"][0] == {"subject": "s.>", "local_subject": "A.s.>", "type": "stream", **rest}
    assert importer["imports"][4] == {"subject": "rev.*.*", "to": "req.w.*.*", "type": "service", **rest}
    assert (await asyncio.to_thread(detail, "$G"))["mappings"] == {"a.*": [{"subject": "b.$1", "weight": 100}]}
    # the shadow counts where it is, as on nats-server
    assert exporter["subscriptions"] == importer["subscriptions"] == 1
    connections = await asyncio.to_thread(pages.json, "/connz?acc=B&subs=1")
    assert [row["subscriptions_list"] for row in connections["connections"]] == [["A.s.x"]]


@OURS
async def test_statistics_count_a_message_where_it_was_published(start_broker, cluster_of, tmp_path):
    """And its deliveries where they were made: all rows together are what the shared page has."""
    broker = start_broker(config=CONFIG, args=stats_in(tmp_path))
    cluster = cluster_of(broker)
    a, b = await on(cluster, "a", 0), await on(cluster, "b", 1)
    await a.talk("SUB req.> 1\r\nPING\r\n", expect="PONG\r\n")
    await b.talk("SUB in 1\r\nSUB A.s.x 2\r\nPING\r\n", expect="PONG\r\n")
    for _ in range(5):
        await b.talk("PUB loc in 0\r\n\r\nPING\r\n", expect="PONG\r\n")
        _, reply = await asked(a)
        await a.talk(f"PUB {reply} 0\r\n\r\nPUB s.x 0\r\n\r\nPING\r\n", expect="PONG\r\n")
        await b.flush()
    broker.stop()
    records = rows(tmp_path)
    by_subject: Counter[tuple[str, str]] = Counter()
    heard: Counter[tuple[str, str]] = Counter()
    unwanted: Counter[tuple[str, str]] = Counter()
    for row in records:
        if row["kind"] == "subject":
            name = "_R_" if row["subject"].startswith("_R_") else row["subject"]
            by_subject[row["account"], name] += row["in_msgs"]
            heard[row["account"], name] += row["deliveries"]
            unwanted[row["account"], name] += row["unwanted_msgs"]
    assert +by_subject == {("B", "loc"): 5, ("A", "_R_"): 5, ("A", "s.x"): 5}
    assert +heard == {("A", "req.fix"): 5, ("B", "in"): 5, ("A", "s.x"): 5}
    if broker.kind.shards == 1:
        assert +unwanted == {}
    assert added(records, "shard", "in_msgs", "out_msgs") == {"in_msgs": 15, "out_msgs": 15}
    assert not [row for row in records if row["kind"] == "gap"]


CIRCLE = """accounts {
  A { users: [{user: a, password: x}], exports: [{service: x}], mappings: {x: z}
      imports: [{service: {account: B, subject: y}, to: z}] }
  B { users: [{user: b, password: x}], exports: [{service: y}], imports: [{service: {account: C, subject: w}, to: y}] }
  C { users: [{user: c, password: x}], exports: [{service: w}], imports: [{service: {account: A, subject: x}, to: w}] }
}
"""


@pytest.mark.kinds("gnatswarm-1", "gnatswarm-2", "gnatswarm-2-as-2.15", "nats-server", "nats-server-2.15")
async def test_a_message_passes_a_circle_of_services_once(cluster_with):
    """The circle is closed by a mapping, so the start does not refuse it."""
    circle = cluster_with(CIRCLE)
    clients = {user: await on(circle, user, shard) for shard, user in enumerate("abc")}
    for client in clients.values():
        await client.talk("SUB x 1\r\nSUB y 2\r\nSUB z 3\r\nSUB w 4\r\nPING\r\n", expect="PONG\r\n")
    for asker, subject, heard in (("a", "z", "wyzz"), ("a", "x", "wyzz"), ("b", "y", "wyyz"), ("c", "w", "wwyz")):
        await clients[asker].send(f"PUB {subject} in 2\r\nhi\r\n")
        await clients[asker].flush()
        found = [frame[0] for client in clients.values() for frame in await subjects(client)]
        assert "".join(sorted(found)) == heard, subject  # twice where it began: published, and come round
