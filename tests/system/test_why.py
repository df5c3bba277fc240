"""`gnatswarm why` asks a running broker who would get a message: members of groups, shards, and rules that deny it."""

from __future__ import annotations

import asyncio
import json
import subprocess

import pytest

from tests.support.servers import Broker

pytestmark = pytest.mark.kinds("gnatswarm-2")
CONFIG = """
accounts {
  A {
    users: [ {user: a, password: a}, {user: deaf, password: d, permissions: {subscribe: {deny: "jobs.secret"}}} ]
    exports: [ {stream: "jobs.>"} ]
  }
  B { users: [ {user: b, password: b} ], imports: [ {stream: {account: A, subject: "jobs.*"}, to: "a.$1"} ] }
}
"""


def why(broker: Broker, *words: str) -> tuple[int, str, str]:
    program = broker.kind.program()
    command = [*program, "why", *words, "-p", str(broker.port)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL)
    return done.returncode, done.stdout, done.stderr


async def test_who_would_get_a_message(start_broker, cluster_of):
    broker = start_broker(config=CONFIG)
    cluster = cluster_of(broker)
    user = {"user": "a", "pass": "a", "verbose": False}
    first, second = [await cluster.client_on(shard, user) for shard in (0, 1)]
    deaf = await cluster.client({"user": "deaf", "pass": "d", "verbose": False})
    there = await cluster.client({"user": "b", "pass": "b", "verbose": False})
    for client, said in (
        (first, "SUB jobs.> workers 1\r\n"),
        (second, "SUB jobs.secret workers 1\r\n"),
        (deaf, "SUB jobs.* 1\r\n"),
        (there, "SUB a.> 1\r\nSUB other 2\r\n"),
    ):
        await client.send(said)
        await client.flush()

    code, text, error = await asyncio.to_thread(why, broker, "jobs.secret", "--user", "a")
    assert (code, error) == (0, "")
    lines = [line.strip() for line in text.splitlines()]
    group = "one of 2 in the queue group workers"
    assert f'cid {first.info["client_id"]} a on shard 0: "jobs.>", {group}' in lines
    assert f'cid {second.info["client_id"]} a on shard 1: "jobs.secret", {group}' in lines
    kept = 'KEPT OUT by subscribe deny "jobs.secret"'
    assert f'cid {deaf.info["client_id"]} deaf on shard {deaf.shard}: "jobs.*" {kept}' in lines
    at = lines.index('in B on a.secret (B imports the stream "jobs.*" of A)')
    assert lines[at + 1] == f'cid {there.info["client_id"]} b on shard {there.shard}: "a.>"'

    code, text, _ = await asyncio.to_thread(why, broker, "x", "--user", "a", "--json")
    document = json.loads(text)
    assert (code, document["is_live"], document["arrivals"][0]["listeners"]) == (1, True, [])
    for words, says in ((("x",), "add --user NAME"), (("x.*", "--user", "a"), "no subject that can be published to")):
        code, text, error = await asyncio.to_thread(why, broker, *words)
        assert (code, text) == (1, "") and says in error and "Traceback" not in error
