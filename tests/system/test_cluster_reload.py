"""Members of a cluster get a new configuration one after the other: what they have told each other meanwhile holds."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from typing import Any

import pytest

from tests.support.leaves import LISTENS as LEAVES_LISTEN
from tests.support.raw_route import RawRoute
from tests.support.servers import Broker
from tests.support.turns import until
from tests.system.test_cluster import (
    Net,
    Start,
    arrived,
    cluster_config,
    is_meshed,
    know,
    net,
    route_port,
    start,
    subscribed,
)
from tests.system.test_hub import Leaf, by_hand

__all__ = ["net", "start"]
ONE = "accounts { ONE { users: [{user: o, password: o}] }%s }\nno_auth_user: o\n"
TWO = "\nTWO { users: [{user: t, password: t}] }"
THREE = "\nTHREE { users: [{user: x, password: x}] }"
LEAFNODES = 'leafnodes { listen: "127.0.0.1:-1" }\n'
RELOADED = "Reloaded server configuration"


def reload(broker: Broker, before: str, after: str) -> None:
    assert broker.directory is not None
    path = broker.directory / "broker.conf"
    config = path.read_text()
    assert before in config
    path.write_text(config.replace(before, after))
    seen = len(broker.log.lines)
    broker.send_signal(signal.SIGHUP)
    broker.log.wait_line(RELOADED, start=seen)


def wanted_after(lines: list[str], wanted: set[str] | None = None) -> set[str]:
    """What interest these lines leave; of a group without the number of its members."""
    found = set(wanted or ())
    for line in lines:
        verb, _, words = line.partition(" ")
        words = words if verb in ("RS-", "LS-") or words.count(" ") < 2 else words.rpartition(" ")[0]
        if verb in ("RS+", "LS+"):
            found.add(words)
        elif verb in ("RS-", "LS-"):
            found.discard(words)
    return found


async def told(route: RawRoute) -> list[str]:
    return [line for line, _ in await route.talk()]


@pytest.mark.parametrize("kind", ["gnatswarm-2", "nats-server", "nats-server-2.15"])
async def test_interest_in_an_account_that_a_member_does_not_know_yet_counts_when_it_does(
    start: Start, net: Net, kind: str
) -> None:
    first = start(kind, cluster_config("first", more=ONE % "" + LEAFNODES))
    second = start("gnatswarm-2", cluster_config("second", (route_port(first),), more=ONE % ""))
    await until(lambda: is_meshed([first, second]))
    reload(first, ONE % "", ONE % TWO)
    here, hears = await net.client(first, "t"), await net.client(first, "o")
    await subscribed(here, "plain 1", "group q 2", "gone 3")
    await here.talk("UNSUB 3\r\nPING\r\n", expect_last="PONG\r\n")
    port = int(first.log.wait_line(LEAVES_LISTEN)[1])
    leaf = await by_hand(port, {"name": "l", "cluster": "pond", "user": "t", "pass": "t"})
    leaf.say("LS+ leaf\r\nPING\r\n")
    await leaf.until(b"PONG\r\n")
    asks = await net.client(second, "o")
    await know(asks, hears)  # all that was told before is there, too
    reload(second, ONE % "", ONE % TWO)
    sends = await net.client(second, "t")
    await know(sends, here)  # (the shards hear of it from the gateway, as of what is told only now)
    here.inbox.clear()
    await sends.send("".join(f"PUB {subject} 1\r\nx\r\n" for subject in ("plain", "group", "leaf")))
    assert [frame.subject for frame in await here.messages(2)] == ["plain", "group"]
    assert (await leaf.until(b"LMSG leaf 1\r\n")).endswith(b"LMSG leaf 1\r\n")
    await subscribed(sends, "r 1")
    await sends.send("PUB gone r 0\r\n\r\n")
    (answer,) = await sends.messages(1)
    assert answer.headers.startswith(b"NATS/1.0 503")
    leaf.writer.close()


async def test_interest_in_unknown_accounts_is_kept_as_it_was_told_last(start: Start, net: Net) -> None:
    here = start("gnatswarm-2", cluster_config("here", more=ONE % ""))
    route = await RawRoute.dial(route_port(here), "raw", system="none", lnoc=True, lnocu=True)
    await told(route)
    await route.talk(
        "RS+ TWO a\r\nRS+ TWO b q 1\r\nRS+ TWO b q 3\r\nRS+ TWO c\r\nRS- TWO c\r\nRS+ TWO d q 1\r\nRS- TWO d q\r\n"
        "LS+ pond TWO e\r\nRS+ TWO f\r\nRS+ OTHER a\r\n"
    )
    reload(here, ONE % "", ONE % TWO)
    await route.talk("RS- TWO f\r\n")
    client = await net.client(here, "t")
    await route.talk()
    await client.flush()
    for subject in "abcdef":
        await client.send(f"PUB {subject} 1\r\n{subject}\r\n")
    await client.flush()
    heard = [line for line, _ in await route.talk()]
    assert [line for line in heard if line.startswith("RMSG TWO")] == [
        "RMSG TWO a 1",
        "RMSG TWO b | q 1",
        "RMSG TWO e 1",
    ]
    route.close()


@pytest.mark.parametrize("is_one_by_one", [True, False])
async def test_a_route_that_told_more_than_is_kept_of_unknown_accounts_is_made_anew(
    start: Start, *, is_one_by_one: bool
) -> None:
    """Too much in one account, or too many accounts; what is kept costs no more memory."""
    here = start("gnatswarm-1", cluster_config("here", more=ONE % ""))
    route = await RawRoute.dial(route_port(here), "raw", system="none")
    if is_one_by_one:
        for number in range(0, 5000, 500):
            await route.talk("".join(f"RS+ A{n} a\r\n" for n in range(number, number + 500)))
    else:
        for number in range(0, 60000, 5000):
            await route.talk("".join(f"RS+ TWO a.{n}\r\n" for n in range(number, number + 5000)))
    reload(here, "no_auth_user: o", "no_auth_user: o\nserver_tags: x")  # adds no account
    await told(route)
    reload(here, ONE % "", ONE % TWO)
    await route.ended()
    here.log.wait_line("Router connection closed: it told too much of accounts that were not known here")


@pytest.mark.parametrize("keys", [{}, {"lnoc": True, "lnocu": True}], ids=["nats-server", "gnatswarm"])
async def test_a_reload_of_the_system_account_leaves_no_interest_behind(
    start: Start, net: Net, keys: dict[str, Any]
) -> None:
    """What members and leaf nodes have been told is what new ones are told, whichever account has been the one."""
    accounts = ONE % (TWO + THREE)
    here = start("gnatswarm-2", cluster_config("here", more=accounts + LEAFNODES + "system_account: TWO\n"))
    port = int(here.log.wait_line(LEAVES_LISTEN)[1])
    client = await net.client(here, "x")
    await subscribed(client, "$SYS.REQ.SERVER.PING 1", "$SYS.REQ.SERVER.PING.> 2")

    async def all_told(name: str) -> tuple[RawRoute, dict[str, Leaf]]:
        words = {"name": name, "pass": ""}
        leaves = {user: await by_hand(port, {**words, "user": user, "pass": user}) for user in "tx"}
        return await RawRoute.dial(route_port(here), name, system="none", **keys), leaves

    async def heard(route: RawRoute, leaves: dict[str, Leaf]) -> list[list[str]]:
        found = [await told(route)]
        for leaf in leaves.values():
            leaf.say("PING\r\n")
            found.append((await leaf.until(b"PONG\r\n")).decode().split("\r\n"))
        return found

    old = await all_told("old")
    wanted = [wanted_after(lines) for lines in await heard(*old)]
    for before, after in (("TWO", "THREE"), ("THREE", "TWO"), ("TWO", "THREE")):
        assert f"{before} $SYS.REQ.SERVER.PING" in wanted[0]
        reload(here, f"system_account: {before}", f"system_account: {after}")
        while f"{after} $SYS.REQ.SERVER.PING.STATSZ" not in wanted[0]:  # the shards are there about a second later
            wanted = [wanted_after(lines, had) for lines, had in zip(await heard(*old), wanted, strict=True)]
        new = await all_told(f"new{after}")
        wanted = [wanted_after(lines, had) for lines, had in zip(await heard(*old), wanted, strict=True)]
        assert wanted == [wanted_after(lines) for lines in await heard(*new)]
        new[0].close()
        for leaf in new[1].values():
            leaf.writer.close()
    old[0].close()


@pytest.mark.parametrize("kind", ["nats-server", "nats-server-2.15"])
async def test_a_member_that_takes_more_of_our_interest_after_a_reload_is_told_it(
    start: Start, net: Net, kind: str
) -> None:
    """It has refused what its `export` denies, and every other nats-server tells it that again."""
    there = start(kind, cluster_config("there", inner='permissions { export: { deny: ["kept.back"] } }'))
    here = start("gnatswarm-1", cluster_config("here", (route_port(there),)))
    await until(lambda: is_meshed([here, there]))
    hears, says = await net.client(here), await net.client(there)
    await subscribed(hears, "kept.back 1", "free 2")
    await know(says, hears)
    await says.talk("PUB kept.back 1\r\n1\r\nPUB free 1\r\n2\r\nPING\r\n", expect_last="PONG\r\n")
    assert [frame.payload for frame in await arrived(hears, 1)] == [b"2"]
    reload(there, "kept.back", "other")
    async with asyncio.timeout(20):
        while not hears.inbox:
            await says.talk("PUB kept.back 1\r\n3\r\nPING\r\n", expect_last="PONG\r\n")
            await hears.flush()
    assert hears.inbox[0].subject == "kept.back"
    assert here.log.wait_line("Router connection closed: the member's permissions have changed")


async def test_what_a_newer_member_imports_after_a_reload_holds_for_all_others(start: Start, net: Net) -> None:
    """It tells only one of those that have one connection to it."""
    there = start("nats-server-2.15", cluster_config("there", inner='permissions { import: { allow: ["old"] } }'))
    ours = [start("gnatswarm-1", cluster_config(name, (route_port(there),))) for name in ("one", "two")]
    await until(lambda: is_meshed([there, *ours]))
    hears, says = await net.client(there), await net.clients(ours)
    await subscribed(hears, "old 1", "new 2", "new group 3")

    async def hears_only(wanted: str, other: str, copies: int) -> None:
        """Returns when of both messages of each member, published in this order, it has heard the second one alone."""
        rounds = 0
        async with asyncio.timeout(20):
            while True:
                rounds += 1
                for number, client in enumerate(says):
                    words = "".join(f"PUB {subject} 8\r\n{rounds:06} {number}\r\n" for subject in (other, wanted))
                    await client.talk(words + "PING\r\n", expect_last="PONG\r\n")
                await hears.flush()
                heard = Counter((frame.subject, frame.payload) for frame in hears.inbox)
                for past in range(rounds):
                    texts = [b"%06d %d" % (past + 1, number) for number in range(len(says))]
                    if all((heard[wanted, text], heard[other, text]) == (copies, 0) for text in texts):
                        return

    await hears_only("old", "new", 1)
    hears.inbox.clear()
    reload(there, '"old"', '"new"')
    await hears_only("new", "old", 2)


async def test_what_a_newer_member_exports_no_more_after_a_reload_comes_to_nobody(start: Start, net: Net) -> None:
    """It takes back the interest of one of those that have one connection to it."""
    there = start("nats-server-2.15", cluster_config("there", inner="# rules\n"))
    ours = [start("gnatswarm-1", cluster_config(name, (route_port(there),))) for name in ("one", "two")]
    await until(lambda: is_meshed([there, *ours]))
    says, hear = await net.client(there), await net.clients(ours)
    for client in hear:
        await subscribed(client, "kept 1", "free 2")
        await know(says, client)
    lines = [len(broker.log.lines) for broker in ours]
    reload(there, "# rules", 'permissions { export: { deny: ["kept"] } }')
    for broker, line in zip(ours, lines, strict=True):
        broker.log.wait_line("Router connection closed: the member's permissions have changed", start=line)
    await until(lambda: is_meshed([there, *ours]))
    for client in hear:
        await know(says, client)
    await says.talk("".join(f"PUB {one} 0\r\n\r\n" for one in ("kept", "free")) + "PING\r\n", expect_last="PONG\r\n")
    assert [[frame.subject for frame in await arrived(client, 1)] for client in hear] == [["free"], ["free"]]
