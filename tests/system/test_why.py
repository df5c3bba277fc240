"""`gnatswarm why` asks a running broker who would get a message: members of groups, shards, and rules that deny it."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess

import pytest

from tests.support.pages import Pages
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


async def test_a_queue_group_is_one_over_the_accounts_that_import_the_stream(start_broker, cluster_of):
    broker = start_broker(config=CONFIG)
    cluster = cluster_of(broker)
    one, other = [await cluster.client({"user": name, "pass": name}) for name in "ab"]
    deaf = await cluster.client({"user": "deaf", "pass": "d"})
    for client, pattern in ((one, "jobs.secret"), (other, "a.secret"), (deaf, "jobs.*")):
        await client.send(f"SUB {pattern} workers 1\r\n")
        await client.flush()
    _, text, _ = await asyncio.to_thread(why, broker, "jobs.secret", "--user", "a")
    assert text.count(", one of 2 in the queue group workers\n") == 2
    assert ', in the queue group workers KEPT OUT by subscribe deny "jobs.secret"\n' in text
    for _ in range(20):
        await one.send("PUB jobs.secret 1\r\nx\r\n")
    assert len(await cluster.delivered(20, then_quiet=True)) == 20


SUBJECTS = ["a", "b", *(f"{one}.{other}" for one in "abc" for other in "abc"), "a.b.c", "c.b.a"]


def chosen_pattern(chance: random.Random) -> str:
    tokens = [chance.choice("abc**") for _ in range(chance.randint(1, 3))]
    return ".".join([*tokens[:-1], ">"] if chance.random() < 0.3 else tokens)


def chosen_permissions(chance: random.Random) -> str:
    rules = []
    for side in ("publish", "subscribe"):
        kinds = chance.choice([(), ("allow",), ("deny",), ("allow", "deny")])
        lists = [f"{kind}: {json.dumps([chosen_pattern(chance) for _ in range(3)])}" for kind in kinds]
        rules += [f"{side}: {{{', '.join(lists)}}}"] if lists else []
    return ", ".join([*rules, *(["allow_responses: true"] if chance.random() < 0.3 else [])])


def chosen_rules(chance: random.Random) -> str:
    """Three accounts of two users; A imports services and streams of B and C, B of C."""
    text = ""
    for number, account in enumerate("ABC"):
        users = [
            f"{{user: {account}{user}, password: p, permissions: {{{chosen_permissions(chance)}}}}}" for user in "12"
        ]
        imports = {}  # (none twice)
        for local in chance.sample(SUBJECTS, 6 if account < "C" else 0):
            exporter = chance.choice("ABC"[number + 1 :])
            asked, heard = chance.choice(SUBJECTS), chosen_pattern(chance)
            imports[f'service: {{account: {exporter}, subject: "{asked}"}}'] = f'to: "{local}"'
            imports[f'stream: {{account: {exporter}, subject: "{heard}"}}'] = f'prefix: "{local}"'
        mappings = {one: chance.choice(SUBJECTS) for one in chance.sample(SUBJECTS, 3)} | {"*.*": "$2.c"}
        lines = [f"{{{what}, {renamed}}}" for what, renamed in imports.items()]
        text += f"{account} {{ users: [{', '.join(users)}], imports: [{', '.join(lines)}]\n"
        text += f'exports: [{{stream: ">"}}, {{service: ">"}}], mappings: {json.dumps(mappings)} }}\n'
    return f"accounts {{\n{text}}}\n"


@pytest.mark.parametrize("seed", range(4))
async def test_what_is_said_of_any_rules_is_what_happens(start_broker, cluster_of, seed):
    chance = random.Random(seed)
    rules = chosen_rules(chance)
    broker = start_broker(args=["-m", "-1", "--no-stats"], config=rules)
    pages, cluster = Pages.of(broker), cluster_of(broker)
    clients = {}
    for user in (account + number for account in "ABC" for number in "12"):
        client = clients[user] = await cluster.client({"user": user, "pass": "p"})
        wanted = {">", *(chosen_pattern(chance) for _ in range(4))}
        await client.send("".join(f"SUB {pattern} {pattern}\r\n" for pattern in sorted(wanted)))
        await client.flush()  # (some are refused)
        client.inbox.clear()
    users = {client.info["client_id"]: user for user, client in clients.items()}

    said: dict[str, set[tuple[str, str]]] = {}  # who hears each publish, by which subscription
    refused: dict[str, int] = dict.fromkeys(clients, 0)
    for user, subject in ((user, subject) for user in clients for subject in SUBJECTS):
        page = await asyncio.to_thread(pages.json, f"/whyz?subject={subject}&user={user}")
        refused[user] += bool(page["why"]["stopped"])
        said[f"{user} {subject}"] = {
            (users[one["cid"]], one["subject"])
            for arrival in page["why"]["arrivals"]
            for one in arrival["listeners"]
            if not one["kept_out_by"]
        }

    happened: dict[str, set[tuple[str, str]]] = {publish: set() for publish in said}
    for user, client in clients.items():
        payloads = [(subject, f"{user} {subject}") for subject in SUBJECTS]
        await client.send("".join(f"PUB {subject} {len(text)}\r\n{text}\r\n" for subject, text in payloads))
        errors = [frame for frame in await client.flush() if frame.verb == "-ERR"]
        assert len(errors) == refused[user], rules
    for user, client in clients.items():
        await client.flush()
        for message in client.inbox:
            happened[message.payload.decode()].add((user, message.sid))
    assert said == happened, rules
