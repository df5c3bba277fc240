"""Who is let in, on every shard: bcrypt without a stall, nkeys, no_auth_user, refusals that say nothing, reloads."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import signal
from pathlib import Path

import bcrypt
import nkeys
import pytest

from tests.support import swarm
from tests.support.pages import Pages
from tests.support.servers import NEW
from tests.support.wire import Client

pytestmark = pytest.mark.kinds("gnatswarm-1", "gnatswarm-2", "nats-server")

VIOLATION = b"-ERR 'Authorization Violation'\r\n"
# Costs: 4 is over at once, 10 takes some 50 ms.
QUICK, SLOW = (bcrypt.hashpw(b"s3cret", bcrypt.gensalt(cost)).decode() for cost in (4, 10))
PAIR = nkeys.from_seed(nkeys.encode_seed(bytes(range(32)), nkeys.PREFIX_BYTE_USER))
OTHER = nkeys.from_seed(nkeys.encode_seed(bytes(range(1, 33)), nkeys.PREFIX_BYTE_USER))


def signature(pair: nkeys.KeyPair, nonce: str) -> str:
    return base64.urlsafe_b64encode(pair.sign(nonce.encode())).rstrip(b"=").decode()


def users(*entries: str, more: str = "") -> str:
    """A configuration with these users, and more lines."""
    listed = "\n".join(f"    {{{entry}}}" for entry in entries)
    # Many seconds: what is compared takes its time on a busy machine.
    return f"authorization {{\n  timeout: 30\n  users = [\n{listed}\n  ]\n}}\n{more}\n"


async def log_in(cluster, shard: int, words: str) -> tuple[Client, bytes]:
    """A CONNECT with these JSON members and a PING, and the first line of the answer."""
    client = await cluster.raw_on(shard)
    await client.send(f'CONNECT {{"verbose":false,{words}}}\r\nPING\r\n')
    return client, await client.read_line()


async def reload(broker, config: str, said: str = r"Reloaded server configuration") -> None:
    """Gives the broker another configuration, and waits until it says that it holds on every shard."""
    (broker.directory / "broker.conf").write_text(config)
    seen = len(broker.log.lines)
    broker.send_signal(signal.SIGHUP)
    await asyncio.to_thread(broker.log.wait_line, said, 5.0, seen)


async def until_allowed(client: Client, operation: str) -> None:
    """Until it is answered without an error: the client's shard has heard of the new rules."""
    async with asyncio.timeout(30):
        while True:
            await client.send(f"{operation}PING\r\n")
            if (await client.read_line()) == b"PONG\r\n":
                return
            await client.expect(b"PONG\r\n")


@pytest.mark.parametrize("prefix", ["$2a$", "$2b$", "$2y$"])
async def test_bcrypt_lets_in_who_knows_the_password(start_broker, cluster_of, prefix):
    cluster = cluster_of(
        start_broker(config=users(f'user: a, password: "{prefix}{QUICK[4:]}"', "user: b, password: p"))
    )
    for shard in (0, 1):
        for words, answer in (
            ('"user":"a","pass":"s3cret"', b"PONG\r\n"),
            ('"user":"a","pass":"wrong"', VIOLATION),
            ('"user":"a"', VIOLATION),
            ('"user":"nobody","pass":"s3cret"', VIOLATION),
            ('"user":"b","pass":"p"', b"PONG\r\n"),
            ('"user":"a","pass":"s3cret"', b"PONG\r\n"),
        ):
            client, line = await log_in(cluster, shard, words)
            assert line == answer, words
            if answer == VIOLATION:
                assert await client.wait_closed() == b""


async def test_a_hashed_token_lets_in(start_broker, cluster_of):
    broker = start_broker(config=f'authorization {{ token: "{QUICK}" }}')
    cluster = cluster_of(broker)
    for shard in (0, 1):
        assert (await log_in(cluster, shard, '"auth_token":"s3cret"'))[1] == b"PONG\r\n"
        assert (await log_in(cluster, shard, '"auth_token":"' + QUICK + '"'))[1] == VIOLATION
    broker.stop()
    assert "did not stop" not in broker.log.text  # which would be a shard that waits for its thread


async def test_users_with_the_same_hash_that_come_together_are_who_they_say(start_broker, cluster_of):
    """One comparison is made for both. The second to come had the first one's account and permissions."""
    config = f"""accounts {{
        A: {{ users: [{{ user: admin, password: "{SLOW}" }}] }}
        B: {{ users: [{{ user: guest, password: "{SLOW}", permissions: {{ subscribe: "open.>" }} }}] }}
    }}"""
    cluster = cluster_of(start_broker(config=config))
    for shard in (0, 1):
        admin, guest = [await cluster.raw_on(shard) for _ in range(2)]
        await admin.send('CONNECT {"user":"admin","pass":"s3cret","verbose":false}\r\nPING\r\n')
        await guest.send('CONNECT {"user":"guest","pass":"s3cret","verbose":false}\r\nSUB secret.> 1\r\nPING\r\n')
        await guest.expect(b"-ERR 'Permissions Violation for Subscription to \"secret.>\"'\r\nPONG\r\n")
        await admin.expect(b"PONG\r\n")
        await admin.talk("PUB open.x 2\r\nhi\r\nPING\r\n", expect="PONG\r\n")
        await guest.talk("SUB open.> 2\r\nPING\r\n", expect="PONG\r\n")
        await admin.talk("PUB open.x 2\r\nhi\r\nPING\r\n", expect="PONG\r\n")
        await guest.talk("PING\r\n", expect="PONG\r\n")


async def test_what_follows_a_held_connect_comes_after_it(start_broker, cluster_of):
    """Everything in one segment, verbose: +OK for each in order, and nothing before the password was compared."""
    cluster = cluster_of(start_broker(config=users(f'user: a, password: "{SLOW}"')))
    client = await cluster.raw_on(1)
    await client.send(
        'CONNECT {"user":"a","pass":"s3cret","pedantic":false}\r\nSUB x 1\r\nPUB x 2\r\nhi\r\n' + "PING\r\n"
    )
    await client.expect(b"+OK\r\n+OK\r\n+OK\r\nMSG x 1 2\r\nhi\r\nPONG\r\n")
    wrong = await cluster.raw_on(1)
    await wrong.send('CONNECT {"user":"a","pass":"wrong"}\r\nSUB x 1\r\nPUB x 2\r\nno\r\nPING\r\n')
    await wrong.expect(VIOLATION)
    assert await wrong.wait_closed() == b""
    await client.expect_quiet()


@pytest.mark.kinds("gnatswarm-1", "gnatswarm-2")
async def test_comparisons_do_not_hold_up_other_clients(start_broker, cluster_of):
    """Twelve log-ins wait for seconds of bcrypt; a client that is in has more PONGs meanwhile than they answers."""
    cluster = cluster_of(start_broker(config=users(f'user: a, password: "{SLOW}"', "user: b, password: p")))
    busy = await cluster.client_on(0, {"user": "b", "pass": "p"})
    waiting = [await cluster.raw_on(0) for _ in range(12)]
    for number, client in enumerate(waiting):
        await client.send(f'CONNECT {{"verbose":false,"user":"a","pass":"wrong {number}"}}\r\nPING\r\n')
    rounds = 0
    answers = asyncio.ensure_future(asyncio.gather(*(client.read_line(60) for client in waiting)))
    while not answers.done():
        await busy.flush()
        rounds += 1
    assert rounds > 20, "a comparison held the loop: a PONG came with each answer"
    assert set(await answers) == {VIOLATION}


@pytest.mark.kinds("gnatswarm-1", "gnatswarm-2")
async def test_a_password_that_was_compared_costs_nothing_again(start_broker, cluster_of):
    costly = bcrypt.hashpw(b"s3cret", bcrypt.gensalt(12)).decode()  # 200 ms and more
    cluster = cluster_of(start_broker(config=users(f'user: a, password: "{costly}"')))
    shards = [(await swarm.pids(cluster.broker))[0]]
    for words in ('"user":"a","pass":"s3cret"', '"user":"a","pass":"wrong"'):
        before = cpu_ticks(shards)
        _client, first = await log_in(cluster, 0, words)
        compared = cpu_ticks(shards)
        for _ in range(10):
            assert (await log_in(cluster, 0, words))[1] == first
        assert cpu_ticks(shards) - compared < compared - before


def cpu_ticks(pids: list[int]) -> int:
    """The processor time of these processes, in ticks of 10 ms."""
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(one[11]) + int(one[12]) for one in fields)


@pytest.mark.kinds("gnatswarm-1", "gnatswarm-2")
async def test_a_herd_with_one_password_needs_one_comparison(start_broker, cluster_of):
    costly = bcrypt.hashpw(b"s3cret", bcrypt.gensalt(12)).decode()
    cluster = cluster_of(start_broker(config=users(f'user: a, password: "{costly}"')))
    herd = await asyncio.gather(*(log_in(cluster, number % 2, '"user":"a","pass":"s3cret"') for number in range(60)))
    assert {line for _client, line in herd} == {b"PONG\r\n"}


async def test_a_log_in_that_waits_too_long_is_told_so(start_broker, cluster_of):
    """As a client that says nothing: the time for a log-in is over, whoever it was that took so long."""
    config = f'authorization {{ timeout: 0.3, users = [ {{user: a, password: "{QUICK}"}} ] }}'
    cluster = cluster_of(start_broker(config=config))
    client = await cluster.raw_on(1)
    assert await client.wait_closed() == b"-ERR 'Authentication Timeout'\r\n"


async def test_an_nkey_signs_the_nonce_of_its_own_connection(start_broker, cluster_of):
    key = PAIR.public_key.decode()
    config = users(f"nkey: {key}, permissions: {{publish: mine}}", "user: a, password: p")
    cluster = cluster_of(start_broker(config=config))
    nonces = set()
    for shard in (0, 1):
        client = await cluster.raw_on(shard)
        nonce = client.info["nonce"]
        assert len(nonce) == 15
        nonces.add(nonce)
        await client.send(
            f'CONNECT {{"verbose":false,"nkey":"{key}","sig":"{signature(PAIR, nonce)}"}}\r\nPUB no 0\r\n\r\nPING\r\n'
        )
        await client.expect(b"-ERR 'Permissions Violation for Publish to \"no\"'\r\nPONG\r\n")
        for attack in ("replayed", "other key", "no signature", "another nkey"):
            client = await cluster.raw_on(shard)
            sig = {
                "replayed": signature(PAIR, nonce),
                "other key": signature(OTHER, client.info["nonce"]),
                "no signature": "",
                "another nkey": signature(OTHER, client.info["nonce"]),
            }[attack]
            name = OTHER.public_key.decode() if attack == "another nkey" else key
            await client.send(f'CONNECT {{"verbose":false,"nkey":"{name}","sig":"{sig}"}}\r\nPING\r\n')
            assert await client.read_line() == VIOLATION, attack
            assert await client.wait_closed() == b""
        assert (await log_in(cluster, shard, '"user":"a","pass":"p"'))[1] == b"PONG\r\n"
    assert len(nonces) == 2


async def test_no_nonce_without_nkeys(start_broker, cluster_of):
    cluster = cluster_of(start_broker(config=users("user: a, password: p")))
    assert "nonce" not in (await cluster.raw()).info


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ('"name":"x"', b"PONG\r\n"),
        ('"user":"a","pass":"p"', b"PONG\r\n"),
        ('"user":"guest"', VIOLATION),
        ('"user":"nobody"', VIOLATION),
        ('"pass":"x"', VIOLATION),
        ('"auth_token":"x"', VIOLATION),
    ],
)
async def test_no_auth_user_is_who_gives_nothing_at_all(broker_with, cluster_of, words, answer):
    config = users(
        "user: guest, password: g, permissions: {publish: open}", "user: a, password: p", more="no_auth_user: guest"
    )
    cluster = cluster_of(broker_with(config))
    client, line = await log_in(cluster, 1, words)
    assert line == answer
    assert "auth_required" not in client.info
    if answer != VIOLATION:
        await client.send(b"PUB closed 0\r\n\r\nPING\r\n")
        is_guest = "name" in words
        await client.expect(
            (b"-ERR 'Permissions Violation for Publish to \"closed\"'\r\n" if is_guest else b"") + b"PONG\r\n"
        )


async def test_no_auth_user_before_connect(start_broker, cluster_of):
    """Its permissions hold from the first operation on, and another log-in replaces them."""
    config = users("user: guest, password: g, permissions: {publish: open}", "user: a, password: p")
    cluster = cluster_of(start_broker(config=config + "no_auth_user: guest\n"))
    client = await cluster.raw_on(1)
    await client.send(b"PUB closed 0\r\n\r\nPING\r\n")
    line = await client.read_line()
    if line.startswith(b"-ERR 'Invalid"):
        line = await client.read_line()
    assert line == b"-ERR 'Permissions Violation for Publish to \"closed\"'\r\n"
    await client.expect(b"PONG\r\n")
    await client.send(b'CONNECT {"verbose":false,"user":"a","pass":"p"}\r\nPUB closed 0\r\n\r\nPING\r\n')
    await client.expect(b"PONG\r\n")


async def test_a_refusal_is_logged_with_address_and_user_and_without_secrets(start_broker, cluster_of):
    broker = start_broker(config=users(f'user: a, password: "{QUICK}"', "user: b, password: hunter2"))
    cluster = cluster_of(broker)
    for user, given in (("a", "hunter3"), ("b", "hunter3"), ("who", "hunter3"), ('q\\"\\n', "hunter3")):
        client, line = await log_in(cluster, 1, f'"user":"{user}","pass":"{given}"')
        assert line == VIOLATION
        host, port = client.sock.getsockname()[:2]
        shown = user.replace('\\"', '\\\\"').replace("\\n", "\\\\n")
        broker.log.wait_line(rf'{host}:{port} - cid:\d+ - authentication error - User "{shown}"')
    assert "hunter" not in broker.log.text and QUICK not in broker.log.text


NKEY = "UA3HGAFPF2MWPL2G5G5TNUQWPLYI2HCFDHKIVTLONVDTI6JB5P7DSN7U"
# What the log names, in 2.9 by what the configuration asks for: users, nkeys, or neither.
REFUSED = [
    ('"auth_token":"hunter"', 'Token "[REDACTED]"', 'User ""', 'Nkey ""'),
    ('"auth_token":"hunter","jwt":"hunter"', 'Token "[REDACTED]"', 'User ""', 'Nkey ""'),
    ('"auth_token":"hunter","user":"bob"', 'User "bob"', 'User "bob"', 'Nkey ""'),
    ('"user":"bob","pass":"hunter"', 'User "bob"', 'User "bob"', 'Nkey ""'),
    ('"nkey":"UX","user":"bob"', 'Nkey "UX"', 'User "bob"', 'Nkey "UX"'),
    ('"nkey":"UX","auth_token":"hunter"', 'Nkey "UX"', 'User ""', 'Nkey "UX"'),
    ('"pass":"hunter"', "", 'User ""', 'Nkey ""'),
    ('"auth_token":""', "", 'User ""', 'Nkey ""'),
]


@pytest.mark.kinds("gnatswarm-1", "gnatswarm-2-as-2.15", "nats-server", "nats-server-2.15")
@pytest.mark.parametrize("asks_for", ["users", "nkeys", "a token", "one user"])
async def test_the_log_names_who_was_refused_and_hides_tokens(start_broker, asks_for, kind):
    config = {
        "users": "users: [ {user: a, password: b} ]",
        "nkeys": f"users: [ {{user: a, password: b}}, {{nkey: {NKEY}}} ]",
        "a token": "token: good",
        "one user": "user: a, password: b",
    }
    broker = start_broker(config=f"authorization {{ {config[asks_for]} }}\n")
    for words, newer, by_users, by_nkeys in REFUSED:
        who = newer if kind.compatibility == NEW else {"users": by_users, "nkeys": by_nkeys}.get(asks_for, "")
        client = await Client.dial(broker.port)
        port = client.sock.getsockname()[1]
        await client.send(f"CONNECT {{{words}}}\r\n".encode())
        await client.wait_closed()
        said = broker.log.wait_line(rf":{port} - .*(authentication error.*)")[1]
        assert said == "authentication error" + f" - {who}" * bool(who)
    assert "hunter" not in broker.log.text


@pytest.mark.kinds("gnatswarm-1", "gnatswarm-2")
async def test_refusals_are_counted(start_broker, cluster_of):
    broker = start_broker(config=users("user: b, password: p"), args=["-m", "-1"])
    cluster = cluster_of(broker)
    for number in range(6):
        await log_in(cluster, number % 2, '"user":"b","pass":"x"')
    page = await asyncio.to_thread(Pages.of(broker).get, "/metrics")
    lines = [line for line in page.text.splitlines() if line.startswith("gnatswarm_refused_logins_total{")]
    assert sum(float(line.split()[-1]) for line in lines) == 6


async def test_a_reload_closes_who_is_admitted_no_more_and_nobody_else(start_broker, cluster_of):
    config = users("user: a, password: p", f'user: h, password: "{QUICK}"', "user: gone, password: p")
    broker = start_broker(config=config)
    cluster = cluster_of(broker)
    stays = [await cluster.client_on(shard, {"user": "a", "pass": "p"}) for shard in (0, 1)]
    stays += [await cluster.client_on(shard, {"user": "h", "pass": "s3cret"}) for shard in (0, 1)]
    goes = [await cluster.client_on(shard, {"user": "gone", "pass": "p"}) for shard in (0, 1)]
    await reload(broker, config.replace("gone, password: p", "gone, password: changed"))
    for client in goes:
        assert await client.wait_closed() == VIOLATION
    for client in stays:
        await client.expect_quiet()
    await reload(broker, users("user: a, password: p"))
    for client in stays[2:]:  # of a user that is there no more; the real server has no word for it
        assert await client.wait_closed() == (b"" if broker.kind.is_oracle else VIOLATION)
    for client in stays[:2]:
        await client.expect_quiet()


async def test_a_reload_gives_new_permissions(start_broker, cluster_of):
    """Subscriptions that are not allowed any more end with an error that names them; publishing follows at once."""
    before = users('user: a, password: p, permissions: {publish: ["p", "q"], subscribe: ["x.>", "y"]}', "user: b")
    rights = '{publish: ["q"], subscribe: {allow: ["x.>"], deny: "x.no"}}'
    after = users(f"user: a, password: p, permissions: {rights}", "user: b")
    broker = start_broker(config=before)
    cluster = cluster_of(broker)
    for shard in (0, 1):
        client = await cluster.client_on(shard, {"user": "a", "pass": "p"})
        other = await cluster.client_on(1 - shard, {"user": "b"})
        await client.talk("SUB x.> 1\r\nSUB y 2\r\nSUB x.a q 3\r\nPUB p 0\r\n\r\nPING\r\n", expect="PONG\r\n")
        await reload(broker, after)
        await client.expect(b'-ERR \'Permissions Violation for Subscription to "y" (sid "2")\'\r\n')
        await client.talk(
            "PUB p 0\r\n\r\nPUB q 0\r\n\r\nPING\r\n",
            expect="-ERR 'Permissions Violation for Publish to \"p\"'\r\nPONG\r\n",
        )
        await other.talk("PUB x.no 0\r\n\r\nPUB y 0\r\n\r\nPUB x.b 0\r\n\r\nPING\r\n", expect="PONG\r\n")
        await client.expect(b"MSG x.b 1 0\r\n\r\n")
        await client.expect_quiet()
        await reload(broker, before)
        await until_allowed(client, "PUB p 0\r\n\r\n")
        if not broker.kind.is_oracle:  # which goes on leaving it out
            await other.talk("PUB x.no 0\r\n\r\nPING\r\n", expect="PONG\r\n")
            await client.expect(b"MSG x.no 1 0\r\n\r\n")


async def test_a_refused_reload_changes_nobody_s_rights(start_broker, cluster_of):
    broker = start_broker(config=users("user: a, password: p, permissions: {publish: p}"))
    cluster = cluster_of(broker)
    client = await cluster.client_on(1, {"user": "a", "pass": "p"})
    await reload(broker, "authorization { users = [ {user: a, permissions: {publish: a..b}} ] }", r"a\.\.b")
    error = "-ERR 'Permissions Violation for Publish to \"x\"'\r\n"
    await client.talk("PUB p 0\r\n\r\nPUB x 0\r\n\r\nPING\r\n", expect=error + "PONG\r\n")


@pytest.mark.kinds("gnatswarm-2")
async def test_rules_hold_on_a_restarted_shard(start_broker, cluster_of):
    broker = start_broker(config=users(f'user: a, password: "{QUICK}", permissions: {{publish: p}}'))
    cluster = cluster_of(broker)
    for shard in (0, 1):
        await swarm.kill(broker, shard)
        client = await swarm.client_on(cluster, shard, {"user": "a", "pass": "s3cret"})
        error = "-ERR 'Permissions Violation for Publish to \"x\"'\r\n"
        await client.talk("PUB x 0\r\n\r\nPING\r\n", expect=error + "PONG\r\n")


@pytest.mark.kinds("gnatswarm-2")
async def test_a_refused_log_in_is_a_json_line_with_the_client_in_fields(start_broker):
    broker = start_broker(
        config="log_format: json\naccounts { A { users: [{user: known, password: a, permissions: {publish: x}}] } }\n"
    )
    client = await Client.dial(broker.port)
    info = await client.read_info()
    await client.send(b'CONNECT {"user":"guess","pass":"hunter2"}\r\n')
    assert (await client.read_line()).startswith(b"-ERR ")
    refused = json.loads(await asyncio.to_thread(lambda: broker.log.wait_line("authentication error").string))
    assert (refused["cid"], refused["user"]) == (info["client_id"], "guess")
    assert re.fullmatch(r"127\.0\.0\.1:\d+", refused["address"]) and "account" not in refused
    assert "hunter2" not in broker.log.text
    client = await Client.dial(broker.port)
    info = await client.read_info()
    await client.send(b'CONNECT {"user":"known","pass":"a","verbose":false}\r\nPUB no 0\r\n\r\n')
    denied = json.loads(await asyncio.to_thread(lambda: broker.log.wait_line("Publish Violation").string))
    assert (denied["cid"], denied["user"], denied["account"]) == (info["client_id"], "known", "A")
