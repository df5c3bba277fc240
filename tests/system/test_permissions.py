"""What a user may do holds on every shard and across them, and the real server says the same wherever it is right."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.wire import Client, Cluster
from tests.system.test_log_in import reload

pytestmark = pytest.mark.kinds("gnatswarm-1", "gnatswarm-2", "nats-server")
OURS = pytest.mark.kinds("gnatswarm-1", "gnatswarm-2")


def config(permissions: str, more: str = "") -> str:
    """User `a` with these permissions, user `b` with all."""
    return f"""authorization {{
  users = [
    {{user: a, password: a, permissions: {permissions}}}
    {{user: b, password: b}}
    {more}
  ]
}}
"""


def denied(subject: str, queue: str = "", *, to: str = "Subscription to") -> str:
    using = f' using queue "{queue}"' if queue else ""
    return f"-ERR 'Permissions Violation for {to} \"{subject}\"{using}'\r\n"


async def pair(cluster: Cluster) -> tuple[Client, Client]:
    """The limited one and the other, on different shards where there are two."""
    return await cluster.client_on(0, {"user": "a", "pass": "a"}), await cluster.client_on(
        1, {"user": "b", "pass": "b"}
    )


@pytest.mark.parametrize(
    ("permissions", "subject", "is_allowed"),
    [
        ('{publish: "p.*"}', "p.a", True),
        ('{publish: "p.*"}', "p.a.b", False),
        ('{publish: "p.>"}', "p.a.b", True),
        ('{publish: "p.>"}', "p", False),
        ('{pub: ["x", "p.*.q"]}', "p.a.q", True),
        ('{publish: {allow: "p.>", deny: "p.no"}}', "p.no", False),
        ('{publish: {allow: "p.>", deny: "p.no"}}', "p.yes", True),
        ('{publish: {deny: "*.no"}}', "p.no", False),
        ('{publish: {deny: "*.no"}}', "p.yes", True),
        ('{publish: {deny: ">"}}', "p", False),
        ('{subscribe: "x"}', "p", True),
        ("{}", "p", True),
        ('{publish: "P"}', "p", False),
        ('{publish: "p*"}', "pp", False),
    ],
)
async def test_publish(broker_with, cluster_of, permissions, subject, is_allowed):
    cluster = cluster_of(broker_with(config(permissions)))
    limited, other = await pair(cluster)
    await other.talk(f"SUB {subject} 1\r\nPING\r\n", expect="PONG\r\n")
    error = "" if is_allowed else denied(subject, to="Publish to")
    # More than one: the second is the same line again.
    await limited.talk(f"PUB {subject} 2\r\nhi\r\n" * 3 + "PING\r\n", expect=error * 3 + "PONG\r\n")
    if is_allowed:
        await other.expect(f"MSG {subject} 1 2\r\nhi\r\n" * 3)
    await other.expect_quiet()


@pytest.mark.parametrize(
    ("permissions", "subscription", "is_allowed"),
    [
        ('{subscribe: "s.*"}', "s.a", True),
        ('{subscribe: "s.*"}', "s.*", True),
        ('{subscribe: "s.>"}', "s.*.>", True),
        ('{subscribe: "s.*"}', "s", False),
        ('{subscribe: "s.a"}', "s.*", False),
        ('{subscribe: "s.a"}', ">", False),
        ('{sub: ["x", "s.>"]}', "s.a.b q", True),
        ('{subscribe: {deny: "s.no"}}', "s.no", False),
        ('{subscribe: {deny: "s.no"}}', "s.no q", False),
        ('{subscribe: {deny: "s.*"}}', "s.>", False),
        ('{subscribe: {deny: "s.no"}}', "s.>", True),
        ('{subscribe: {allow: "s.>", deny: "s.no.>"}}', "s.no.a", False),
        # queues
        ('{subscribe: "s q"}', "s q", True),
        ('{subscribe: "s q"}', "s r", False),
        ('{subscribe: "s q"}', "s", False),
        ('{subscribe: ["s", "s v1", "s v1.>", "s *.dev"]}', "s", True),
        ('{subscribe: ["s", "s v1", "s v1.>", "s *.dev"]}', "s v1", True),
        ('{subscribe: ["s", "s v1", "s v1.>", "s *.dev"]}', "s v1.a.b", True),
        ('{subscribe: ["s", "s v1", "s v1.>", "s *.dev"]}', "s x.dev", True),
        ('{subscribe: ["s", "s v1", "s v1.>", "s *.dev"]}', "s v2", False),
        ('{subscribe: {allow: ["s", "s *.dev"], deny: "> *.prod"}}', "s x.prod", False),
        ('{subscribe: {deny: "s q"}}', "s q", False),
        ('{subscribe: {deny: "s q"}}', "s r", True),
        ('{subscribe: {deny: "s q"}}', "s", True),
    ],
)
async def test_subscribe(broker_with, cluster_of, permissions, subscription, is_allowed):
    cluster = cluster_of(broker_with(config(permissions)))
    for shard in (0, 1):
        client = await cluster.client_on(shard, {"user": "a", "pass": "a", "verbose": True})
        subject, _, queue = subscription.partition(" ")
        expected = "+OK\r\n" if is_allowed else denied(subject, queue)
        await client.talk(f"SUB {subscription} 1\r\nPING\r\n", expect=expected + "PONG\r\n")
        # The sid of a refused one is free.
        await client.talk("UNSUB 1\r\nPING\r\n", expect="+OK\r\nPONG\r\n")


# Where the real server is wrong: a pattern is taken as a literal subject, and hears what nobody allowed.
STRICTER = [
    ('{subscribe: "s.*"}', "s.>", "s.a.b"),
    ('{subscribe: "*"}', ">", "s.a"),
    ('{subscribe: "s.*.x"}', "s.>.x", None),
    # A queue that is denied by name takes the denial of the subject away from others there.
    ('{subscribe: {deny: ["s", "s q"]}}', "s r", "s"),
]


@OURS
@pytest.mark.parametrize(("permissions", "subscription", "_leaks"), STRICTER)
async def test_where_the_real_server_grants_too_much_we_do_not(
    broker_with, cluster_of, permissions, subscription, _leaks
):
    cluster = cluster_of(broker_with(config(permissions)))
    client = await cluster.client_on(1, {"user": "a", "pass": "a"})
    subject, _, queue = subscription.partition(" ")
    await client.talk(f"SUB {subscription} 1\r\nPING\r\n", expect=denied(subject, queue) + "PONG\r\n")


@pytest.mark.kinds("nats-server")
@pytest.mark.parametrize(("permissions", "subscription", "leaks"), [row for row in STRICTER if row[2]])
async def test_the_real_server_does(start_broker, cluster_of, permissions, subscription, leaks):
    """From the day on which it does not, the table is wrong."""
    cluster = cluster_of(start_broker(config=config(permissions)))
    limited, other = await pair(cluster)
    await limited.talk(f"SUB {subscription} 1\r\nPING\r\n", expect="PONG\r\n")
    await other.talk(f"PUB {leaks} 0\r\n\r\nPING\r\n", expect="PONG\r\n")
    await limited.expect(f"MSG {leaks} 1 0\r\n\r\n")


@pytest.mark.parametrize(
    ("deny", "subscriptions", "hears", "does_not"),
    [
        ('"d.no"', ["d.>"], ["d.yes", "d.no.more"], ["d.no"]),
        ('"d.no.>"', ["d.>", "d.no"], ["d.yes", "d.no"], ["d.no.a", "d.no.a.b"]),
        ('["d.a", "d.b"]', ["d.*", ">"], ["d.c"], ["d.a", "d.b"]),
        ('"d.no"', ["d.> q"], ["d.yes"], ["d.no"]),
    ],
)
async def test_a_deny_rule_filters_a_granted_wildcard(start_broker, cluster_of, deny, subscriptions, hears, does_not):
    """Twice each, and across shards; the subscription that came last does not undo it."""
    cluster = cluster_of(start_broker(config=config(f"{{subscribe: {{deny: {deny}}}}}")))
    limited, other = await pair(cluster)
    for number, subscription in enumerate(subscriptions):
        await limited.talk(f"SUB {subscription} {number}\r\nPING\r\n", expect="PONG\r\n")
    for subject in (*hears, *does_not) * 2:
        await other.talk(f"PUB {subject} 0\r\n\r\nPING\r\n", expect="PONG\r\n")
    await limited.flush()
    heard = [frame.subject for frame in limited.inbox]
    assert set(heard) == set(hears)


@OURS
async def test_a_filter_needs_no_subset(start_broker, cluster_of):
    """Rules and patterns that overlap without one covering the other; nats-server sets up no filter for these."""
    cluster = cluster_of(start_broker(config=config('{subscribe: {deny: "d.*"}}')))
    limited, other = await pair(cluster)
    await limited.talk("SUB *.no 1\r\nPING\r\n", expect="PONG\r\n")
    await other.talk("PUB d.no 0\r\n\r\nPUB e.no 0\r\n\r\nPING\r\n", expect="PONG\r\n")
    await limited.expect(b"MSG e.no 1 0\r\n\r\n")
    await limited.expect_quiet()


@OURS
async def test_a_queue_message_goes_to_a_member_that_may_have_it(start_broker, cluster_of):
    """Members on all shards, some kept out by a deny rule: no message is lost to them."""
    cluster = cluster_of(start_broker(config=config('{subscribe: {deny: "jobs.secret"}}')))
    limited = [await cluster.client_on(shard, {"user": "a", "pass": "a"}) for shard in (0, 1, 0, 1)]
    free = await cluster.client_on(0, {"user": "b", "pass": "b"})
    publishers = [await cluster.client_on(shard, {"user": "b", "pass": "b"}) for shard in (0, 1)]
    for client in (*limited, free):
        await client.talk("SUB jobs.> workers 1\r\nPING\r\n", expect="PONG\r\n")
    for publisher in publishers:
        await publisher.talk("PUB jobs.secret 0\r\n\r\n" * 50 + "PING\r\n", expect="PONG\r\n")
    async with asyncio.timeout(30):
        while len(free.inbox) < 100:
            await free.flush()
    for client in (*limited, free):
        await client.flush()
    assert [len(client.inbox) for client in (*limited, free)] == [0, 0, 0, 0, 100]


async def test_default_permissions_are_for_who_has_none(start_broker, cluster_of):
    text = """authorization {
  default_permissions = { publish: "d" }
  users = [
    {user: a, password: a}
    {user: b, password: b, permissions: { publish: "e" }}
  ]
}
"""
    cluster = cluster_of(start_broker(config=text))
    for shard in (0, 1):
        for user, may, may_not in (("a", "d", "e"), ("b", "e", "d")):
            client = await cluster.client_on(shard, {"user": user, "pass": user})
            await client.talk(
                f"PUB {may} 0\r\n\r\nPUB {may_not} 0\r\n\r\nPING\r\n",
                expect=denied(may_not, to="Publish to") + "PONG\r\n",
            )


@pytest.mark.parametrize(
    ("responses", "count"), [("true", 1), ("{max: 3}", 3), ("{max: -1}", 8), ('{max: 3, expires: "1m"}', 3)]
)
async def test_a_service_may_answer_so_often(start_broker, cluster_of, responses, count):
    permissions = f'{{subscribe: "svc", allow_responses: {responses}}}'
    cluster = cluster_of(start_broker(config=config(permissions)))
    service, client = await pair(cluster)
    await service.talk("SUB svc 1\r\nPING\r\n", expect="PONG\r\n")
    await client.talk("SUB inbox.* 1\r\nPUB svc inbox.1 1\r\n?\r\nPING\r\n", expect="PONG\r\n")
    await service.expect(b"MSG svc 1 inbox.1 1\r\n?\r\n")
    errors = denied("inbox.1", to="Publish to") * (8 - count)
    await service.talk("PUB inbox.1 1\r\n!\r\n" * 8 + "PING\r\n", expect=errors + "PONG\r\n")
    await client.flush()
    assert len(client.inbox) == count
    await service.talk(
        "PUB inbox.2 1\r\n!\r\nPUB svc 0\r\n\r\nPING\r\n",
        expect=denied("inbox.2", to="Publish to") + denied("svc", to="Publish to") + "PONG\r\n",
    )


async def test_the_time_for_an_answer_ends(start_broker, cluster_of):
    permissions = '{subscribe: "svc", allow_responses: {max: 100000, expires: "3s"}}'
    cluster = cluster_of(start_broker(config=config(permissions)))
    service, client = await pair(cluster)
    await service.talk("SUB svc 1\r\nPING\r\n", expect="PONG\r\n")
    await client.talk("SUB inbox 1\r\nPUB svc inbox 0\r\n\r\nPING\r\n", expect="PONG\r\n")
    await service.expect(b"MSG svc 1 inbox 0\r\n\r\n")
    answered = 0
    async with asyncio.timeout(30):
        while True:
            await service.send(b"PUB inbox 0\r\n\r\nPING\r\n")
            line = await service.read_line()
            if line != b"PONG\r\n":
                break
            answered += 1
    assert line.decode() == denied("inbox", to="Publish to")
    assert answered > 1


async def test_a_permission_error_takes_the_place_of_ok(start_broker, cluster_of):
    cluster = cluster_of(start_broker(config=config('{publish: "p", subscribe: "s"}')))
    client = await cluster.client_on(1, {"user": "a", "pass": "a", "verbose": True})
    await client.talk(
        "PUB p 0\r\n\r\nPUB x 0\r\n\r\nSUB s 1\r\nSUB x q 2\r\nUNSUB 2\r\nPING\r\n",
        expect="+OK\r\n" + denied("x", to="Publish to") + "+OK\r\n" + denied("x", "q") + "+OK\r\nPONG\r\n",
    )


async def test_ten_thousand_rules(start_broker, cluster_of):
    rules = ", ".join(f'"r.{number}.*"' for number in range(10_000))
    broker = start_broker(config=config(f"{{publish: [{rules}], subscribe: {{deny: [{rules}]}}}}"))
    cluster = cluster_of(broker)
    limited, other = await pair(cluster)
    await limited.talk("SUB r.> 1\r\nPING\r\n", expect="PONG\r\n")
    for number in (0, 5000, 9999):
        error = denied(f"s.{number}", to="Publish to")
        await limited.talk(f"PUB r.{number}.a 0\r\n\r\nPUB s.{number} 0\r\n\r\nPING\r\n", expect=error + "PONG\r\n")
    for number in (0, 5000, 9999):
        await other.talk(f"PUB r.{number}.a 0\r\n\r\nPUB r.{number} 0\r\n\r\nPING\r\n", expect="PONG\r\n")
    await limited.flush()
    assert [frame.subject for frame in limited.inbox] == ["r.0", "r.5000", "r.9999"]


@OURS
async def test_violations_are_logged_with_the_user_and_do_not_flood_the_log(start_broker, cluster_of):
    broker = start_broker(config=config('{publish: "p"}'))
    cluster = cluster_of(broker)
    client = await cluster.client_on(1, {"user": "a", "pass": "a"})
    await client.talk(
        "PUB x 0\r\n\r\n" * 10_000 + "PING\r\n", expect=denied("x", to="Publish to") * 10_000 + "PONG\r\n"
    )
    broker.log.wait_line(r'Publish Violation - User "a", Subject "x"')
    assert len([line for line in broker.log.lines if "Violation" in line]) < 100


# What an attacker tries, and what it gets.
ATTACKS = [
    ("a wildcard wider than the rule", "SUB > 1", denied(">")),
    ("a wildcard in the place of a token", "SUB *.* 1", denied("*.*")),
    ("a subject with a blank token", "SUB s..a 1", denied("s..a")),
    ("another case", "SUB S.a 1", denied("S.a")),
    ("a longer token", "SUB ss.a 1", denied("ss.a")),
    ("a queue to get around", "SUB x q 1", denied("x", "q")),
    ("the system's queue", "SUB s.a _sys_ 1", denied("s.a", "_sys_")),
    ("publishing to a pattern", "PUB * 0\r\n", denied("*", to="Publish to")),
    ("publishing an empty token", "PUB p. 0\r\n", denied("p.", to="Publish to")),
    ("publishing with a server's reply", "PUB p.a _R_.x 0\r\n", denied("_R_.x", to="Publish with Reply of")),
    ("publishing as a gateway", "PUB _GR_.x 0\r\n", denied("_GR_.x", to="Publish to")),
    ("a subject of 4,000 bytes", f"PUB {'x' * 4000} 0\r\n", denied("x" * 4000, to="Publish to")),
    ("2,000 tokens", f"PUB {'.'.join('x' * 2000)} 0\r\n", denied(".".join("x" * 2000), to="Publish to")),
    ("a quote in the subject", 'PUB x"y 0\r\n', denied('x\\"y', to="Publish to")),
    ("control characters", "PUB x\x01\x7f 0\r\n", denied("x\\x01\\x7f", to="Publish to")),
    ("bytes that are no text", b"PUB x\xff\xfe 0\r\n", denied("x\\xff\\xfe", to="Publish to")),
]


@pytest.mark.parametrize(("line", "answer"), [row[1:] for row in ATTACKS], ids=[row[0] for row in ATTACKS])
async def test_an_attack_gets_an_error_and_nothing_else(broker_with, cluster_of, line, answer):
    cluster = cluster_of(broker_with(config('{publish: ["p.>"], subscribe: ["s.>"]}')))
    client = await cluster.client_on(1, {"user": "a", "pass": "a", "pedantic": False})
    raw = line if isinstance(line, bytes) else line.encode()
    await client.talk(raw + b"\r\nPING\r\n", expect=answer + "PONG\r\n")
    # Byte by byte, too.
    await client.send_split(raw + b"\r\nPING\r\n", 1)
    await client.expect(answer + "PONG\r\n")


@pytest.mark.kinds("gnatswarm-2", "nats-server", "gnatswarm-2-as-2.15", "nats-server-2.15")
async def test_a_reload_that_takes_a_subscription_away_names_its_queue_on_newer_servers(start_broker, cluster_of):
    def text(allowed: str) -> str:
        return f"authorization {{ users: [ {{user: a, password: a, permissions: {{subscribe: {allowed}}}}} ] }}"

    broker = start_broker(config=text("[x, y]"))
    cluster = cluster_of(broker)
    for client in await cluster.clients(2, True, {"user": "a", "pass": "a"}):
        await client.talk("SUB x 1\r\nSUB y q 2\r\nPING\r\n", expect="PONG\r\n")
    await reload(broker, text("z"))
    group = ' using queue "q"' if broker.kind.compatibility == "2.15" else ""
    said = {
        '-ERR \'Permissions Violation for Subscription to "x" (sid "1")\'\r\n',
        f'-ERR \'Permissions Violation for Subscription to "y"{group} (sid "2")\'\r\n',
    }
    for client in cluster.all:
        assert {(await client.read_line()).decode() for _ in said} == said
