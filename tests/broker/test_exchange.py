"""What passes between other servers and this broker's shards: tests/simulation has the rest."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Callable, Generator
from random import Random
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import pytest

from gnatswarm.broker.errors import CloseReason
from gnatswarm.broker.frozen import Shift, encoded_shifts
from gnatswarm.broker.limits import Limits
from gnatswarm.broker.options import Options
from gnatswarm.broker.options import Permissions as PermissionOptions
from gnatswarm.broker.permissions import Permissions
from gnatswarm.broker.reply_prefixes import ReplyPrefixes
from gnatswarm.broker.rules import RESPONSE_KINDS, Mapping, ServiceImport, StreamImport
from gnatswarm.broker.serverwire import parse_server
from gnatswarm.broker.service_imports import ServiceImports
from gnatswarm.shards.boundary.control import GATEWAY_NUMBER
from gnatswarm.shards.clients.message_tracing import MessageTracing
from tests.broker.test_traced import Told
from tests.support import patterns
from tests.support.engine import NO_ECHO, QUIET, EngineClient, frames
from tests.support.members import Members, RouteEnd
from tests.support.mesh import Mesh

if TYPE_CHECKING:
    from gnatswarm.broker.exchange import Resting

Value = TypeVar("Value")


def gone_through(steps: Generator[None, None, Value]) -> tuple[int, Value]:
    """How often others could be served, and what the last step returns."""
    n = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return n, end.value
        n += 1


@pytest.mark.parametrize("knows", [True, False], ids=["gnatswarm", "nats-server"])
@pytest.mark.parametrize("where", [1, 2], ids=["back", "on"])
@pytest.mark.parametrize("has_plain", [False, True])
def test_a_queue_message_without_a_member_here_goes_to_a_server_that_has_one(knows: bool, where: int, has_plain: bool):
    """It came from the second member. A frame to a nats-server would serve plain subscriptions once more."""
    cluster = Members(3, fenced=False, know_only_queues=knows)
    client, *_, other = cluster.members[where].clients
    client.feed(b"SUB a q 1\r\n")
    if has_plain:
        other.feed(b"SUB a 2\r\n")
    cluster.settle()
    end = cluster.routes[0, 1]
    end.engine.probe.feed(end.socket, b"HMSG $G a + r q 12 13\r\nNATS/1.0\r\n\r\nx\r\n")
    cluster.settle()
    assert client.messages() == ([] if has_plain and not knows else [(b"1", b"x")])
    assert other.messages() == []
    cluster.close()


@pytest.mark.parametrize("kind", ["route", "leaf", "hub"])
def test_who_leaves_a_group_takes_what_a_server_sends_before_it_knows(kind: Literal["route", "leaf", "hub"]):
    cluster = Members(1, fenced=False)
    client, *_, other = cluster.members[0].clients
    server_end = server(cluster, kind)
    frame = (b"RMSG $G" if kind == "route" else b"LMSG") + b" a | q 1\r\n%b\r\n"
    client.feed(b"SUB a q 1\r\n")
    cluster.settle()
    begin = len(server_end.socket.sent)
    client.feed(b"UNSUB 1\r\nPING\r\n")
    other.feed(b"SUB b 1\r\nPING\r\n")
    cluster.settle()
    verb = b"RS- $G" if kind == "route" else b"LS-"
    told = bytes(server_end.socket.sent[begin:])
    assert told.startswith(verb + b" a q\r\nPING\r\n"), told
    assert other.take() == b"PONG\r\n"  # nobody else waits for it
    server_end.engine.probe.feed(server_end.socket, frame % b"x")
    cluster.settle()
    assert client.take() == b"MSG a 1 1\r\nx\r\n"
    server_end.engine.probe.feed(server_end.socket, frame % b"y" + b"PONG\r\n" + frame % b"z")
    cluster.settle()
    assert client.take() == b"MSG a 1 1\r\ny\r\nPONG\r\n"
    assert not cluster.members[0].exchange.leaving  # and nothing is kept for it
    server_end.link.leave()
    cluster.close()


def test_who_leaves_a_group_waits_for_a_server_no_longer_than_the_bound_nor_for_one_that_is_gone():
    cluster = Members(1, fenced=False)
    client = cluster.members[0].clients[0]
    fence = cluster.members[0].exchange.fence
    route, other = server(cluster, "route"), server(cluster, "route")
    client.feed(b"SUB a q 1\r\nUNSUB 1\r\nPING\r\n")
    cluster.settle()
    assert client.take() == b""
    other.link.leave()
    cluster.settle()
    assert client.take() == b""
    now_us = route.engine.probe.now_us
    assert fence.expire(now_us + 1000, 1000) == ([route.link.slot], 0)
    cluster.settle()
    assert client.take() == b"PONG\r\n"
    client.feed(b"SUB a q 2\r\nUNSUB 2\r\nPING\r\n")
    cluster.settle()
    assert client.take() == b"PONG\r\n"  # it is late, and nobody waits for it
    route.link.leave()
    cluster.close()


def test_a_server_that_was_asked_is_asked_again_where_nobody_is_left_here_but_not_where_members_may_not_have_it():
    cluster = Members(1, fenced=False)
    routes = [server(cluster, "route", b"RS+ $G a q 1", server_id=f"NOTHER{n}ABCDE") for n in range(2)]
    asked = b"QMSG NOTHER0ABCDE,NOTHER1ABCDE $G a | q 0 1\r\n%b\r\n"
    begins = [len(end.socket.sent) for end in routes]
    routes[0].engine.probe.feed(routes[0].socket, asked % b"x")
    cluster.settle()
    sent = [bytes(end.socket.sent[begin:]) for end, begin in zip(routes, begins, strict=True)]
    assert sorted(sent) == [b"", b"QMSG NMEMBER00000 $G a | q 0 1\r\nx\r\n"]
    leaf = server(cluster, "leaf", b"LS+ a q 1", b"LS+ b q 1")
    leaf.link.set_permissions(Permissions(PermissionOptions(publish_deny=("a",))))
    begins = [len(end.socket.sent) for end in routes]
    routes[0].engine.probe.feed(routes[0].socket, asked % b"y")
    routes[0].engine.probe.feed(routes[0].socket, b"QMSG NOTHER0ABCDE $G a | q 0 1\r\nz\r\n")
    cluster.settle()
    sent = [bytes(end.socket.sent[begin:]) for end, begin in zip(routes, begins, strict=True)]
    assert sent == [b"", b"QMSG NMEMBER00000,NOTHER0ABCDE $G a | q 0 1\r\nz\r\n"]
    for end in (*routes, leaf):
        end.link.leave()
    cluster.close()


def test_a_server_that_is_here_again_is_one_while_what_it_wanted_is_dropped():
    cluster = Members(1, fenced=False)
    mesh = cluster.members[0].mesh
    first, other = (server(cluster, "route", b"RS+ $G a q 1", server_id=f"NOTHER{n}ABCDE") for n in range(2))
    leaf = server(cluster, "leaf", b"LS+ a q 1")
    leaf.link.set_permissions(Permissions(PermissionOptions(publish_deny=("a",))))
    mesh.work_in_turns(GATEWAY_NUMBER, 20)
    first.link.leave()
    again = server(cluster, "route", server_id="NOTHER0ABCDE")
    begin = len(other.socket.sent)
    again.engine.probe.feed(again.socket, b"QMSG NOTHER0ABCDE $G a | q 0 1\r\nz\r\n")
    cluster.settle()
    assert bytes(other.socket.sent[begin:]) == b"QMSG NMEMBER00000,NOTHER0ABCDE $G a | q 0 1\r\nz\r\n"
    while mesh.work(GATEWAY_NUMBER):
        pass
    for end in (again, other, leaf):
        end.link.leave()
    cluster.close()


def test_what_comes_in_the_round_in_which_a_server_s_connection_ends_goes_to_other_members():
    """Its end is found before the next socket is read, and attended to behind all of them."""
    cluster = Members(2, fenced=False)
    here, publisher, *_ = cluster.members[0].clients
    there = cluster.members[1].clients[0]
    for client in (here, there):
        client.feed(b"SUB a q 1\r\n")
    cluster.settle()
    publisher.feed(b"PUB a 1\r\nx\r\n" * 40)
    cluster.settle()
    assert min(len(here.messages()), len(there.messages())) > 5
    cluster.routes[0, 1].link.end()
    publisher.feed(b"PUB a 1\r\nx\r\n" * 40)
    cluster.members[0].mesh.carry(0, GATEWAY_NUMBER, 1 << 30)
    cluster.settle()
    assert (len(here.messages()), len(there.messages())) == (40, 0)
    cluster.close()


def test_what_a_nats_server_and_we_may_not_deliver_does_not_go_to_and_fro_for_ever():
    """Nothing in its frame says where it was: it is sent on some times, and then no more."""
    cluster = Members(1, fenced=False)
    route = server(cluster, "route", b"RS+ $G a q 1")
    leaf = server(cluster, "leaf", b"LS+ a q 1")
    leaf.link.set_permissions(Permissions(PermissionOptions(publish_deny=("a",))))
    begin = len(route.socket.sent)
    for _ in range(400):
        route.engine.probe.feed(route.socket, b"RMSG $G a | q 1\r\nx\r\n")
    cluster.settle()
    assert 300 < bytes(route.socket.sent[begin:]).count(b"RMSG $G a | q 1\r\nx\r\n") < 400
    for end in (route, leaf):
        end.link.leave()
    cluster.close()


def server(
    cluster: Members, kind: Literal["route", "leaf", "hub"], *words: bytes, of: str = "", **more: Any
) -> RouteEnd:
    """Another server that is connected to the first member, and has said this.

    `of`: the cluster of a leaf node; the rest as RouteEnd.
    """
    member = cluster.members[0]
    end = RouteEnd(member.mesh.engines[member.gateway], member.exchange, kind=kind, of=of, **more)
    if kind == "route":
        end.link.takes_origins = end.link.names_origins = True
    end.link.begin()
    for line in words:
        end.engine.probe.feed(end.socket, line + b"\r\n")
    cluster.settle()
    return end


def test_members_at_a_leaf_node_are_a_second_choice():
    cluster = Members(2, fenced=False)
    publisher, *_, near = cluster.members[0].clients
    far = cluster.members[1].clients[0]
    leaf = server(cluster, "leaf", b"LS+ a q 50", b"LS+ * q 50")
    begin = len(leaf.socket.sent)

    def published() -> tuple[int, int, int]:
        nonlocal begin
        publisher.feed(b"PUB a 1\r\nx\r\n" * 40)
        cluster.settle()
        at_leaf = bytes(leaf.socket.sent[begin:]).count(b"LMSG a | q 1\r\n")
        begin = len(leaf.socket.sent)
        return len(near.messages()), len(far.messages()), at_leaf

    assert published() == (0, 0, 40), "nobody else has members"
    far.feed(b"SUB a q 1\r\n")
    cluster.settle()
    assert published() == (0, 40, 0), "another member of the cluster has one"
    near.feed(b"SUB a q 1\r\n")
    cluster.settle()
    at_near, at_far, at_leaf = published()
    assert at_near + at_far == 40 and min(at_near, at_far) > 5 and at_leaf == 0
    far.feed(b"UNSUB 1\r\n")
    cluster.settle()
    assert published() == (40, 0, 0), "another shard has one"
    near.feed(b"UNSUB 1\r\n")
    cluster.settle()
    assert published() == (0, 0, 40), "nobody else has members any more"
    leaf.link.leave()
    cluster.close()


# What a server may be sent, and what it wants.
NONE_OF_IT = [
    (PermissionOptions(publish_deny=("x.no",)), b"x.no"),
    (PermissionOptions(publish_deny=("x.>",)), b"x.*"),
    (PermissionOptions(publish_deny=("x.>",)), b"x.>"),
    (PermissionOptions(publish_deny=("x.*",)), b"x.no"),
    (PermissionOptions(publish_allow=("y.>",)), b"x.>"),
    (PermissionOptions(publish_allow=("x.*.a",)), b"x.*"),
]
SOME_OF_IT = [
    (PermissionOptions(publish_deny=("x.other",)), b"x.no"),
    (PermissionOptions(publish_deny=("x.other",)), b"x.>"),
    (PermissionOptions(publish_allow=("y.>", "x.no")), b">"),
    (PermissionOptions(publish_allow=("*.no",)), b"x.*"),
]


@pytest.mark.parametrize("kind", ["leaf", "hub"])
def test_the_rights_of_who_has_logged_in_here_hold_whichever_end_is_the_hub(kind: Literal["leaf", "hub"]):
    """It may publish to "ask" and answer, and hear "in.>": no request of its own makes it hear more."""
    cluster = Members(1, fenced=False)
    client = cluster.members[0].clients[0]
    client.feed(b"SUB ask 1\r\nSUB inbox 2\r\n")
    end = server(cluster, kind, has_logged_in=True)
    end.refused = []
    rules = PermissionOptions(publish_allow=("in.>",), subscribe_allow=("ask",))
    end.link.set_permissions(Permissions(rules))
    end.link.set_answers(1, 60.0, tells=True)
    cluster.settle()
    begin = len(end.socket.sent)
    end.engine.probe.feed(end.socket, b"LS+ >\r\nLS+ secret\r\nLMSG ask secret 1\r\nx\r\nLMSG inbox 1\r\nx\r\n")
    assert end.refused == [("Subscription", b"secret"), ("Publish", b"inbox")]
    cluster.settle()
    assert client.take() == b"MSG ask 1 secret 1\r\nx\r\n"
    client.feed(b"PUB secret 1\r\ny\r\nPUB in.a inbox 1\r\nz\r\nPUB inbox 1\r\ny\r\n")
    cluster.settle()
    assert bytes(end.socket.sent[begin:]) == b"LS+ inbox\r\nLMSG in.a inbox 1\r\nz\r\n"
    client.take()
    end.engine.probe.feed(end.socket, b"LMSG inbox 1\r\n1\r\nLMSG inbox 1\r\n2\r\n")
    cluster.settle()
    assert client.take() == b"MSG inbox 2 1\r\n1\r\n"
    end.link.leave()
    cluster.close()


@pytest.mark.parametrize("kind", ["leaf", "hub"])
def test_of_so_much_interest_no_more_counts_until_some_ends(kind: Literal["leaf", "hub"]):
    cluster = Members(1, fenced=False)
    client = cluster.members[0].clients[0]
    end = server(cluster, kind)
    end.link.max_subscriptions = 3
    end.refused = []

    def told(*lines: bytes) -> list[bytes]:
        """What is refused of that."""
        assert end.refused is not None
        end.refused.clear()
        end.engine.probe.feed(end.socket, b"".join(line + b"\r\n" for line in lines))
        cluster.settle()
        assert {why for why, _ in end.refused} <= {"Limit"}
        return [subject for _, subject in end.refused]

    assert told(b"LS+ a", b"LS+ a", b"LS+ b", b"LS+ g q 1") == []
    assert told(b"LS+ g q 5", b"LS+ a", b"LS+ c", b"LS+ g r 1", b"LS- d", b"LS- g r") == [b"c", b"g"]
    begin = len(end.socket.sent)
    client.feed(b"PUB a 0\r\n\r\nPUB b 0\r\n\r\nPUB c 0\r\n\r\nPUB g 0\r\n\r\n")
    cluster.settle()
    assert bytes(end.socket.sent[begin:]) == b"LMSG a 0\r\n\r\nLMSG b 0\r\n\r\nLMSG g | q 0\r\n\r\n"
    assert told(b"LS- b", b"LS- b", b"LS+ c", b"LS+ d", b"LS- g q", b"LS+ e q 1", b"LS+ f") == [b"d", b"f"]
    assert end.link.subscriptions == 3
    end.link.leave()
    cluster.close()


@pytest.mark.parametrize("kind", ["leaf", "hub"])
def test_who_has_logged_in_here_and_is_isolated_hears_of_no_leaf_node(kind: Literal["leaf", "hub"]):
    cluster = Members(1, fenced=False)
    end = server(cluster, kind, has_logged_in=True, is_isolated=True)
    leaf = server(cluster, "leaf", b"LS+ a")
    cluster.members[0].clients[0].feed(b"SUB b 1\r\n")
    cluster.settle()
    told = bytes(end.socket.sent)
    assert b"LS+ b\r\n" in told and b"LS+ a\r\n" not in told
    for one in (end, leaf):
        one.link.leave()
    cluster.close()


@pytest.mark.parametrize("kind", ["route", "hub"])
@pytest.mark.parametrize("is_wanted", [False, True])
def test_interest_in_nothing_that_may_pass_is_none(kind: Literal["route", "hub"], is_wanted: bool):
    """So a requestor on a shard hears at once that there is no responder; and what may pass in part is sent."""
    for rules, pattern in SOME_OF_IT if is_wanted else NONE_OF_IT:
        cluster = Members(1, fenced=False)
        asker = cluster.members[0].clients[0]
        end = server(cluster, kind)
        if kind == "hub":
            end.link.withhold(Permissions(rules))
        end.link.set_permissions(Permissions(rules))
        verb = b"LS+ %b\r\n" if kind == "hub" else b"RS+ $G %b\r\n"
        end.engine.probe.feed(end.socket, verb % pattern)
        cluster.settle()
        asker.feed(b"SUB in 1\r\nPUB x.no in 0\r\n\r\n")
        cluster.settle()
        assert (b"x.no in 0\r\n" in bytes(end.socket.sent)) is is_wanted, (rules, pattern)
        assert bool(asker.messages()) is not is_wanted, (rules, pattern)
        end.link.leave()
        cluster.close()


def test_a_queue_message_goes_to_a_member_whose_server_may_have_it():
    """What permissions keep from one server is another member's, here or elsewhere, and not lost."""
    cluster = Members(1, fenced=False)
    publisher, *_, near = cluster.members[0].clients
    kept = server(cluster, "route")
    kept.link.set_permissions(Permissions(PermissionOptions(publish_deny=("x.no",))))
    kept.engine.probe.feed(kept.socket, b"RS+ $G x.> q 50\r\n")
    near.feed(b"SUB x.* q 1\r\n")
    cluster.settle()
    publisher.feed(b"PUB x.no 1\r\nx\r\n" * 40)
    cluster.settle()
    assert len(near.messages()) == 40
    near.feed(b"UNSUB 1\r\n")
    other = server(cluster, "route", b"RS+ $G x.> q 1")
    publisher.feed(b"PUB x.no 1\r\nx\r\n" * 40)
    cluster.settle()
    assert bytes(other.socket.sent).count(b"RMSG $G x.no | q 1\r\n") == 40
    for end in (kept, other):
        end.link.leave()
    cluster.close()


def test_what_finds_no_member_on_its_shard_goes_to_a_leaf_node_at_last():
    cluster = Members(1, fenced=False)
    publisher, *_, near = cluster.members[0].clients
    leaf = server(cluster, "leaf", b"LS+ a q 1")
    near.feed(b"SUB a q 1\r\n")
    cluster.settle()
    publisher.feed(b"PUB a 1\r\nx\r\n")
    near.close()
    cluster.settle()
    assert bytes(leaf.socket.sent).count(b"LMSG a | q 1\r\n") == 1
    leaf.link.leave()
    cluster.close()


def test_a_leaf_node_prefers_nobody_farther_than_the_hub():
    """Of what a leaf node publishes for a group, another one gets something only where the hub has no member."""
    cluster = Members(1, fenced=False)
    member = cluster.members[0].clients[0]
    other = server(cluster, "leaf", b"LS+ a q 50")
    leaf = server(cluster, "leaf")
    member.feed(b"SUB a q 1\r\n")
    cluster.settle()
    leaf.engine.probe.feed(leaf.socket, b"LMSG a | q 1\r\nx\r\n" * 20)
    cluster.settle()
    assert len(member.messages()) == 20
    member.feed(b"UNSUB 1\r\n")
    cluster.settle()
    leaf.engine.probe.feed(leaf.socket, b"LMSG a | q 1\r\nx\r\n" * 20)
    cluster.settle()
    assert bytes(other.socket.sent).count(b"LMSG a | q 1\r\n") == 20
    for end in (other, leaf):
        end.link.leave()
    cluster.close()


def test_hubs_are_not_asked_where_members_of_the_cluster_have_members_at_leaf_nodes():
    cluster = Members(1, fenced=False)
    route = server(cluster, "route", b"LS+ east $G a q 1")
    hub = server(cluster, "hub", b"LS+ a q 1")
    cluster.members[0].clients[0].feed(b"PUB a 1\r\nx\r\n" * 40)
    cluster.settle()
    assert bytes(route.socket.sent).count(b"RMSG $G a | q 1\r\n") == 40
    assert b"LMSG" not in bytes(hub.socket.sent)
    for end in (route, hub):
        end.link.leave()
    cluster.close()


def test_more_members_than_a_frame_may_name_are_told_as_the_most():
    cluster = Members(1, fenced=False)
    member = cluster.members[0]
    others = [server(cluster, "route", b"RS+ $G a q 999999999") for _ in range(2)]
    leaf = server(cluster, "leaf")
    assert not any(end.broken for end in member.mesh.ends.values())
    assert b"LS+ a q 999999999\r\n" in bytes(leaf.socket.sent)
    member.clients[0].feed(b"PUB a 1\r\nx\r\n")
    cluster.settle()
    assert sum(bytes(one.socket.sent).count(b"RMSG $G a | q 1\r\n") for one in others) == 1
    for one in (*others, leaf):
        one.link.leave()
    cluster.close()


def test_what_is_sent_on_goes_to_a_leaf_node_last():
    cluster = Members(1, shards=3, fenced=False)
    publisher, _, first, _, second, _ = cluster.members[0].clients
    leaf = server(cluster, "leaf", b"LS+ a q 50")
    for number in range(20):
        first.feed(b"SUB a q 1\r\n")
        cluster.settle()
        publisher.feed(b"PUB a 2\r\n%02d\r\n" % number)
        second.feed(b"SUB a q 1\r\n")
        cluster.carry((0, 2, 1))
        first.feed(b"UNSUB 1\r\n")
        cluster.settle()
        assert first.messages() + second.messages() == [(b"1", b"%02d" % number)]
        second.feed(b"UNSUB 1\r\n")
        cluster.settle()
    assert b"LMSG" not in bytes(leaf.socket.sent)
    leaf.link.leave()
    cluster.close()


def test_members_of_many_leaf_clusters_are_no_more_than_a_frame_may_name():
    cluster = Members(1, fenced=False)
    words = [b"LS+ %d $G a q 999999999" % n for n in range(9)]
    route = server(cluster, "route", *words)
    leaf = server(cluster, "leaf")
    assert b"LS+ a q 999999999\r\n" in bytes(leaf.socket.sent)
    for one in (route, leaf):
        one.link.leave()
    cluster.close()


ORIGINS = ("", "pond", "lake")


def _told(end: RouteEnd) -> tuple[set[str], dict[str, int]]:
    """What a leaf node knows after all that it was told: each plain interest begins and ends in turn."""
    plain: set[str] = set()
    groups: dict[str, int] = {}
    for line in bytes(end.socket.sent).decode().split("\r\n"):
        verb, *words = line.split(" ")
        if verb not in ("LS+", "LS-") or words[0].startswith("$LDS."):
            continue
        if len(words) > 1:
            groups[words[0]] = int(words[2]) if verb == "LS+" else 0
        else:
            assert (words[0] in plain) == (verb == "LS-"), line
            plain ^= {words[0]}
    return plain, {subject: members for subject, members in groups.items() if members}


def _wanted(routes: list[dict[tuple[str, str, str], int]], of: str) -> tuple[set[str], dict[str, int]]:
    """What a leaf node of this cluster is to know: a member's own queue members stand for all that it has."""
    plain = {
        subject for route in routes for (origin, subject, queue) in route if not queue and (not of or origin != of)
    }
    groups: dict[str, int] = {}
    for route in routes:
        for subject in {subject for _, subject, queue in route if queue}:
            members = {origin: n for (origin, name, queue), n in route.items() if queue and name == subject}
            n = members.get("", 0) or sum(n for origin, n in members.items() if not of or origin != of)
            if n:
                groups[subject] = groups.get(subject, 0) + n
    return plain, groups


@pytest.mark.parametrize("seed", range(30))
def test_leaf_nodes_are_told_all_but_what_their_own_cluster_wants_elsewhere(seed: int):
    """Two members tell, in any order, what they and leaf nodes of theirs want, and go; leaf nodes come at any time."""
    rng = Random(seed)
    cluster = Members(1, shards=1, fenced=False)
    routes = [server(cluster, "route"), server(cluster, "route")]
    wants: list[dict[tuple[str, str, str], int]] = [{}, {}]
    leaves = [(of, server(cluster, "leaf", of=of)) for of in ORIGINS]
    for step in range(200):
        which = rng.randrange(2)
        if rng.random() < 0.02:
            routes[which].link.leave()
            routes[which], wants[which] = server(cluster, "route"), {}
        elif rng.random() < 0.02:
            at = rng.randrange(len(leaves))
            of, leaf = leaves[at]
            leaf.link.leave()
            leaves[at] = of, server(cluster, "leaf", of=of)
        else:
            key = origin, subject, queue = rng.choice(ORIGINS), rng.choice("ab"), rng.choice(("", "q"))
            head = f"LS{{}} {origin}" if origin else "RS{}"
            members = rng.choice((0, 1, 2, 5))
            if members:
                wants[which][key] = members
                line = f"{head.format('+')} $G {subject} {f'{queue} {members}' if queue else ''}".strip()
            else:
                wants[which].pop(key, None)
                line = f"{head.format('-')} $G {subject} {queue}".strip()
            routes[which].engine.probe.feed(routes[which].socket, line.encode() + b"\r\n")
        cluster.settle()
        for of, leaf in leaves:
            assert _told(leaf) == _wanted(wants, of), (step, of)
    for end in [*routes, *(leaf for _, leaf in leaves)]:
        end.link.leave()
    cluster.close()


def test_what_a_leaf_node_publishes_names_its_cluster_to_members_but_not_for_groups_alone():
    """Of a group any member will do: also one at another leaf node of the same cluster, which else would be spared."""
    cluster = Members(1, fenced=False)
    route = server(cluster, "route", b"LS+ east $G a q 1")
    leaf = server(cluster, "leaf", of="east")
    begin = len(route.socket.sent)
    leaf.engine.probe.feed(leaf.socket, b"LMSG a | q 1\r\nx\r\n")
    cluster.settle()
    assert bytes(route.socket.sent[begin:]) == b"RMSG $G a | q 1\r\nx\r\n"
    route.engine.probe.feed(route.socket, b"RS+ $G a\r\n")
    cluster.settle()
    begin = len(route.socket.sent)
    leaf.engine.probe.feed(leaf.socket, b"LMSG a | q 1\r\ny\r\nLMSG a 1\r\nz\r\n")
    cluster.settle()
    assert bytes(route.socket.sent[begin:]) == b"LMSG east $G a | q 0 1\r\ny\r\nLMSG east $G a 0 1\r\nz\r\n"
    for end in (route, leaf):
        end.link.leave()
    cluster.close()


@pytest.mark.parametrize("words", [b"", b"a ", b"a | ", b"a + r "], ids=["subject", "reply", "group", "another group"])
@pytest.mark.parametrize("cluster_bytes", [1024, 1025])
def test_what_a_leaf_node_says_is_passed_on_only_where_it_can_be_read(words: bytes, cluster_bytes: int):
    """A longer line, with the cluster's name or the account in front of it, once ended the route on which it went."""
    cluster = Members(1, fenced=False)
    for client in cluster.members[0].clients:
        client.feed(b"SUB > 1\r\n")
    route = server(cluster, "route", b"RS+ $G >")
    leaf = server(cluster, "leaf", of="e" * cluster_bytes)
    refused: list[str] = []
    leaf.on_refused = lambda why, _subject: refused.append(why)  # type: ignore[method-assign]
    begin = len(route.socket.sent)
    place = words.replace(b"|", b"").replace(b"+", b"").split()
    longest = words + b"x" * (65_000 if b"|" in words or b"+" in words else 194_560 - len(b"$G" + b"".join(place)))
    for more in (b"", b"x", b"x" * 32_700):
        assert not refused
        leaf.engine.probe.feed(leaf.socket, b"LMSG " + longest + more + b" 2\r\nhi\r\n")
        cluster.settle()
        frame = bytes(route.socket.sent[begin:])
        if more:
            assert refused.pop() == "too long to be passed on" and not frame
        else:
            found = parse_server(frame, is_route=True)
            assert found["op"] == "MSG" and len(found.get("origin", b"")) == (1024 if cluster_bytes == 1024 else 0)
        begin = len(route.socket.sent)
    assert [len(client.messages()) for client in cluster.members[0].clients] == [1] * 4
    for end in (route, leaf):
        end.link.leave()
    cluster.close()


@pytest.mark.parametrize("size", [65_000, 65_001, 65_536, 70_000])
def test_a_group_whose_name_is_too_long_for_the_engine_is_refused(size: int):
    """The size of a name is 16 bits wide: a longer one was cut, and its members stayed when their connection ended."""
    cluster = Members(1, fenced=False)
    client = cluster.members[0].clients[0]
    leaf = server(cluster, "leaf")
    refused: list[tuple[str, bytes]] = []
    leaf.on_refused = lambda *what: refused.append(what)  # type: ignore[method-assign]
    name = b"q" * size
    leaf.engine.probe.feed(leaf.socket, b"LS+ s %b 1\r\n" % name)
    cluster.settle()
    assert refused == ([("bad queue group", name[:200])] if size > 65_000 else [])
    begin = len(leaf.socket.sent)
    client.feed(b"PUB s 1\r\nx\r\n")
    cluster.settle()
    assert bytes(leaf.socket.sent[begin:]) == (b"" if refused else b"LMSG s | %b 1\r\nx\r\n" % name)
    leaf.link.leave()
    cluster.close()


@pytest.mark.parametrize("kind", ["route", "leaf"])
@pytest.mark.parametrize("has_plain", [False, True])
def test_what_a_mapping_makes_long_comes_to_a_group_of_a_long_name_elsewhere(
    kind: Literal["route", "leaf"], *, has_plain: bool
):
    """All at their limits: what one gnatswarm sends, the next one takes, and passes on to its shards and members."""
    near, far = Members(1, fenced=False), Members(1, fenced=False)
    publisher, name = near.members[0].clients[0], b"q" * 65_000
    publisher.connection.set_limits(Limits(max_control_line_bytes=128 * 1024))
    repeats = b"z.{{wildcard(1)}}.{{wildcard(1)}}"
    engine = near.members[0].mesh.engines[0]
    assert engine.probe.mesh is not None
    engine.probe.fanout.gate = ServiceImports(engine.probe.fanout, 0)
    engine.probe.mesh.account(b"$G").set_rules([Mapping(b"m.*", [(repeats, 100)])], [])
    told = [b"z.> %b 1" % name, *[b"z.>"] * has_plain]
    prefix = b"RS+ $G " if kind == "route" else b"LS+ "
    there = server(near, "route" if kind == "route" else "hub", *(prefix + one for one in told))
    here = server(far, "route" if kind == "route" else "leaf", of="" if kind == "route" else "e" * 1024)
    onward = server(far, "route", b"RS+ $G z.> %b 1" % name, b"RS+ $G z.>") if kind == "leaf" else None
    member, plain = far.members[0].clients[:2]
    member.connection.set_limits(Limits(max_control_line_bytes=128 * 1024))
    member.feed(b"SUB z.> %b 1\r\n" % name * (kind == "route"))
    plain.feed(b"SUB z.> 2\r\n" * has_plain)
    far.settle()
    begin, begin_on = len(there.socket.sent), len(onward.socket.sent) if onward is not None else 0
    token = b"m" * ((194_560 - len(b"$Gz..reply")) // 2)
    publisher.feed(b"PUB m.%b reply 1\r\nx\r\n" % token)
    near.settle()
    frame = bytes(there.socket.sent[begin:])
    assert len(frame) > 194_560 + 65_000
    here.engine.probe.feed(here.socket, frame)
    far.settle()
    assert len(member.messages()) == (kind == "route") and len(plain.messages()) == has_plain
    if onward is not None:
        line, _, _ = bytes(onward.socket.sent[begin_on:]).partition(b"\r\n")
        assert len(line) > 194_560 + 65_000 and parse_server(line + b"\r\nx\r\n", is_route=True)["op"] == "MSG"
        onward.link.leave()
    for end in (there, here):
        end.link.leave()
    near.close()
    far.close()


def test_many_long_names_of_groups_go_on_in_frames_that_members_read():
    """With the name of the leaf node's cluster: one frame with all of them was longer than a line."""
    cluster = Members(1, fenced=False)
    names = [b"%d" % n * 11_100 for n in range(6)]
    told = [b"RS+ $G a.>", *(b"RS+ $G a.> %b 1" % name for name in names)]
    route = server(cluster, "route", *told, server_id="NOTHERABCDEF")
    leaf = server(cluster, "leaf", of="e" * 1024)
    begin = len(route.socket.sent)
    subject = b"a." + b"s" * (194_558 - len(b"$G"))
    leaf.engine.probe.feed(leaf.socket, b"LMSG %b | %b 1\r\nx\r\n" % (subject, b" ".join(names)))
    cluster.settle()
    lines = [line for line in bytes(route.socket.sent[begin:]).split(b"\r\n") if line.endswith(b" 1")]
    assert sorted(name for line in lines for name in names if name in line) == names
    assert max(map(len, lines)) < 261_888
    for end in (route, leaf):
        end.link.leave()
    cluster.close()


@pytest.mark.parametrize("word", ["INFO {}", "-ERR 'x'", "PING", "PONG", "LMSG denied 0\r\n"])
def test_a_server_that_sends_many_words_to_its_session_is_read_in_turns(word: str):
    """They are carried out in Python: 26,000 errors in one read kept others waiting for a tenth of a second."""
    cluster = Members(1, fenced=False)
    resting: list[Resting] = []
    cluster.members[0].exchange.rest_with(resting.append)
    end = server(cluster, "leaf")
    said: list[bytes] = []
    end.on_error = end.on_info = said.append  # type: ignore[method-assign]
    end.refused = []
    end.link.set_permissions(Permissions(PermissionOptions(subscribe_deny=("denied",))))
    end.engine.probe.feed(end.socket, f"{word}\r\n".encode() * 1000)
    turns = [end.link.in_lines]
    while resting:
        resting.pop().has_rested()
        end.engine.probe.finish()
        turns.append(end.link.in_lines)
    assert turns[-1] == 1000 and max(now - before for before, now in zip([0, *turns], turns, strict=False)) == 200
    end.link.leave()
    cluster.close()


def test_many_long_names_of_groups_go_on_in_frames_that_shards_read():
    """A nats-server may name them in one."""
    cluster = Members(1, fenced=False)
    names = [b"%d" % n * 10_000 for n in range(6)]
    for number, client in enumerate(cluster.members[0].clients[:2]):
        client.connection.set_limits(Limits(max_control_line_bytes=128 * 1024))
        client.feed(b"".join(b"SUB a.> %b %d\r\n" % (name, n) for n, name in enumerate(names) if n % 2 == number))
    cluster.settle()
    end = server(cluster, "route")
    end.refused = []
    subject = b"a." + b"s" * (194_558 - len(b"$G"))
    end.engine.probe.feed(end.socket, b"RMSG $G %b | %b 1\r\nx\r\n" % (subject, b" ".join(names)))
    end.engine.probe.feed(end.socket, b"RMSG $G a.b | %b 1\r\ny\r\n" % (b"q" * 65_001))
    cluster.settle()
    got = [one for client in cluster.members[0].clients[:2] for one in client.messages()]
    assert sorted(got) == [(b"%d" % n, b"x") for n in range(6)]
    assert [why for why, _ in end.refused] == ["too long to be passed on"]
    end.link.leave()
    cluster.close()


VARZ = b"$SYS.REQ.SERVER.PING.VARZ"


@pytest.mark.parametrize("kind", ["route", "leaf", "hub"])
@pytest.mark.parametrize("words", [b"", b"reply ", b"| audit ", b"+ reply other audit "])
def test_one_shard_answers_what_a_server_asks_of_the_system_account(
    kind: Literal["route", "leaf", "hub"], words: bytes
):
    """Also where the frame names queue groups: a member of one of those answers nothing."""
    cluster = Members(1, fenced=False)
    first, auditor, *_, last = cluster.members[0].clients
    cluster.members[0].exchange.set_system_account(b"$G")
    for shard in (first, last):
        shard.connection.post(b"SUB %b _sys_ answerer\r\n" % VARZ)
    auditor.feed(b"SUB $SYS.REQ.> audit auditor\r\n")
    cluster.settle()
    end = server(cluster, kind)
    told = b"RS+ $G %b\r\n" if kind == "route" else b"LS+ %b\r\n"
    assert told % VARZ in bytes(end.socket.sent) and b"_sys_" not in bytes(end.socket.sent)
    verb = b"RMSG $G" if kind == "route" else b"LMSG"
    for _ in range(5):
        end.engine.probe.feed(end.socket, b"%b %b %b1\r\nx\r\n" % (verb, VARZ, words))
    cluster.settle()
    assert len(first.messages() + last.messages()) == 5
    assert len(auditor.messages()) == (5 if b"audit" in words else 0)
    end.link.leave()
    cluster.close()


@pytest.mark.parametrize("kind", ["route", "leaf", "hub"])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_plain_subscription_of_a_request_to_the_system_account_changes_nothing_for_a_server(
    kind: Literal["route", "leaf", "hub"], *, is_first: bool
):
    """Its end does not end that the shards answer, nor the other way round."""
    cluster = Members(1, fenced=False)
    shard, *_, client = cluster.members[0].clients
    cluster.members[0].exchange.set_system_account(b"$G")
    end = server(cluster, kind)
    verb, account = (b"RS", b"$G ") if kind == "route" else (b"LS", b"")
    begins, ends = (verb + sign + b" " + account + VARZ + b"\r\n" for sign in (b"+", b"-"))

    begin = len(end.socket.sent)

    def told() -> bytes:
        nonlocal begin
        cluster.settle()
        last, begin = begin, len(end.socket.sent)
        return bytes(end.socket.sent[last:])

    own, other = (b"SUB %b _sys_ 1\r\n" % VARZ, b"UNSUB 1\r\n"), (b"SUB %b 1\r\n" % VARZ, b"UNSUB 1\r\n")
    steps: list[tuple[Callable[[bytes], object], tuple[bytes, bytes]]]
    steps = [(shard.connection.post, own), (client.feed, other)]
    steps = steps if is_first else steps[::-1]
    for do, (subscribe, _) in steps:
        do(subscribe)
        assert ends not in told()
    assert begins in bytes(end.socket.sent)
    (do_first, (_, first)), (do_last, (_, last)) = steps
    do_first(first)
    assert ends not in told()
    do_last(last)
    assert ends in told()
    end.link.leave()
    cluster.close()


@pytest.mark.parametrize("by_account", [True, False], ids=["2.15", "2.9"])
def test_what_a_hub_sends_goes_to_hubs_of_other_clusters_alone(*, by_account: bool):
    cluster = Members(1, fenced=False)
    cluster.members[0].exchange.is_apart_by_account = by_account
    first, same, other, unnamed = (server(cluster, "hub", b"LS+ a", of=of) for of in ("lake", "lake", "marsh", ""))
    begins = {end: len(end.socket.sent) for end in (same, other, unnamed)}
    first.engine.probe.feed(first.socket, b"LMSG a 1\r\nx\r\n")
    cluster.settle()
    sent = {end: bytes(end.socket.sent[begin:]) for end, begin in begins.items()}
    assert sent == {same: b"", other: b"LMSG a 1\r\nx\r\n", unnamed: b"LMSG a 1\r\nx\r\n"}
    for end in (first, same, other, unnamed):
        end.link.leave()
    cluster.close()


@pytest.mark.parametrize("others", [0, 1])
def test_who_comes_in_the_place_of_a_leaf_node_gets_what_comes_from_that_one_s_cluster(others):
    """`others`: so many leaf nodes of that cluster stay."""
    cluster = Members(1, fenced=False)
    route = server(cluster, "route")
    first = server(cluster, "leaf", of="east")
    stay = [server(cluster, "leaf", b"LS+ a", of="east") for _ in range(others)]
    first.link.leave()
    next_one = server(cluster, "leaf", b"LS+ a", of="west")
    route.engine.probe.feed(route.socket, b"LMSG east $G a 0 1\r\nx\r\n")
    cluster.settle()
    assert b"LMSG a 1\r\nx\r\n" in bytes(next_one.socket.sent)
    assert not any(b"LMSG" in bytes(one.socket.sent) for one in stay)
    for end in (route, next_one, *stay):
        end.link.leave()
    cluster.close()


def taken(ends: dict[str, RouteEnd], begins: dict[str, int]) -> dict[str, list[bytes]]:
    """The frames that each was sent since then; `begins` is moved on."""
    found = {}
    for name, end in ends.items():
        lines = [line for line in bytes(end.socket.sent[begins.get(name, 0) :]).split(b"\r\n") if b" " in line]
        begins[name] = len(end.socket.sent)
        if lines := [line for line in lines if b" $LDS." not in line and b"Info" not in line]:
            found[name] = lines
    return found


@pytest.mark.parametrize("by_account", [True, False], ids=["2.15", "2.9"])
def test_what_comes_from_a_leaf_node_goes_to_its_cluster_in_other_accounts_as_in_2_15(*, by_account: bool):
    """Account B imports a stream of A: interest is told in the same way, to members as the cluster's in B alone."""
    cluster = Members(1, fenced=False)
    cluster.members[0].exchange.is_apart_by_account = by_account
    mesh = cluster.members[0].mesh.engines[GATEWAY_NUMBER].probe.mesh
    assert mesh is not None
    mesh.account(b"B").streams = [StreamImport(mesh.account(b"A"), b"s.*", b"s.*")]
    ends = {"route": server(cluster, "route")}
    ends |= {f"{of} {name}": server(cluster, "leaf", of=of, account=name.encode()) for of in "xy" for name in "AB"}
    begins: dict[str, int] = {}
    taken(ends, begins)

    def after(who: str, words: bytes) -> dict[str, list[bytes]]:
        ends[who].engine.probe.feed(ends[who].socket, words)
        cluster.settle()
        return taken(ends, begins)

    own = {"x A": [b"LS+ s.1"]} if by_account else {}
    apart = [b"LS+ x B s.1", b"RS+ A s.1" if by_account else b"LS+ x A s.1"]
    assert after("x B", b"LS+ s.1\r\n") == {"route": apart, "y A": [b"LS+ s.1"], "y B": [b"LS+ s.1"], **own}
    message = [b"LMSG s.1 1"]
    assert after("x A", b"LMSG s.1 1\r\n1\r\n") == ({"x B": message} if by_account else {})
    assert after("y A", b"LMSG s.1 1\r\n1\r\n") == {"x B": message}
    assert after("x B", b"LMSG s.1 1\r\n1\r\n") == {}
    # By a member: in A from a leaf node of this cluster there, and from another one.
    assert after("route", b"LMSG x A s.1 0 1\r\n1\r\n") == ({"x B": message} if by_account else {})
    assert after("route", b"LMSG x B s.1 0 1\r\n1\r\n") == {}
    assert after("route", b"LMSG y A s.1 0 1\r\n1\r\n") == {"x B": message}
    # What the leaf node's A wants itself is its cluster's there.
    assert after("x A", b"LS+ s.1\r\n") == ({"route": [b"LS+ x A s.1"]} if by_account else {})
    ended = {"route": [b"LS- x B s.1"], "y B": [b"LS- s.1"]}
    if by_account:
        ended = {"route": [b"LS- x B s.1", b"RS- A s.1"], "x A": [b"LS- s.1"], "y B": [b"LS- s.1"]}
    assert after("x B", b"LS- s.1\r\n") == ended
    assert after("x A", b"LS- s.1\r\n") == {"route": [b"LS- x A s.1"], "y A": [b"LS- s.1"]}
    # Another connection of its cluster, in the same account.
    ends["again"] = server(cluster, "leaf", of="x", account=b"A")
    assert after("again", b"LS+ s.3\r\n").keys() - {"again"} == {"route", "y A"}
    assert after("x A", b"LMSG s.3 1\r\n1\r\n") == after("route", b"LMSG x A s.3 0 1\r\n1\r\n") == {}
    ends.pop("again").link.leave()
    cluster.settle()
    taken(ends, begins)
    # A group.
    told = after("x B", b"LS+ s.2 q 3\r\n")
    assert told["route"][-1] == (b"RS+ A s.2 q 3" if by_account else b"LS+ x A s.2 q 3")
    assert told.get("x A", [b""])[-1] == (b"LS+ s.2 q 3" if by_account else b"")
    to_group = [b"LMSG s.2 | q 1"]
    assert after("x A", b"LMSG s.2 | q 1\r\n1\r\n") == ({"x B": to_group} if by_account else {})
    assert after("y A", b"LMSG s.2 | q 1\r\n1\r\n") == {"x B": to_group}
    ends["x B"].link.leave()
    cluster.settle()
    told = taken(ends, begins)
    assert set(told["route"]) >= {b"LS- x B s.2 q", b"RS- A s.2 q" if by_account else b"LS- x A s.2 q"}
    for end in ends.values():
        end.link.leave()
    cluster.close()


@pytest.mark.parametrize("by_account", [True, False], ids=["2.15", "2.9"])
def test_a_request_to_another_account_goes_to_the_cluster_that_it_came_from_as_in_2_15(*, by_account: bool):
    """Also over a member, to which it is of no leaf node's cluster any more: it would spare those there."""
    cluster = Members(1, fenced=False)
    cluster.members[0].exchange.is_apart_by_account = by_account
    engine = cluster.members[0].mesh.engines[GATEWAY_NUMBER]
    assert engine.probe.mesh is not None
    engine.probe.fanout.gate = crossing = ServiceImports(engine.probe.fanout, GATEWAY_NUMBER)
    engine.probe.mesh.set_reply_prefix(crossing.reply_prefix)
    exporter, importer = engine.probe.mesh.account(b"A"), engine.probe.mesh.account(b"B")
    kind = RESPONSE_KINDS["singleton"]
    importer.set_rules([], [ServiceImport(importer, exporter, b"ask", b"ask", kind, 120_000_000)])
    ends = {"route": server(cluster, "route", b"RS+ A ask")}
    ends |= {name: server(cluster, "leaf", of="x", account=name.encode()) for name in "AB"}
    ends["A"].engine.probe.feed(ends["A"].socket, b"LS+ ask\r\n")
    cluster.settle()
    begins: dict[str, int] = {}
    taken(ends, begins)
    ends["B"].engine.probe.feed(ends["B"].socket, b"LMSG ask inbox 1\r\n1\r\n")
    cluster.settle()
    found = {name: [line.split(b" _R_")[0] for line in lines] for name, lines in taken(ends, begins).items()}
    to_route = [b"RS+ A", b"HMSG A ask" if by_account else b"LMSG x A ask"]
    assert found == {"route": to_route} | ({"A": [b"LS+", b"HMSG ask"]} if by_account else {})
    for end in ends.values():
        end.link.leave()
    cluster.close()


@pytest.mark.parametrize("sibling", [1, GATEWAY_NUMBER])
def test_what_stands_behind_the_last_at_of_a_jetstream_reply_is_the_subject(sibling):
    """A stream's name, which is in the reply, may have one, too. Only what the shard for other servers passes on."""
    mesh = Mesh(2, connect=QUIET)
    mesh.add(GATEWAY_NUMBER)
    mesh.settle()
    client = mesh.clients[0]
    client.feed(b"SUB deliver 1\r\n")
    mesh.settle()
    client.take()
    end = mesh.ends[0, sibling]
    assert end.socket is not None
    reply = b"$JS.ACK.S@1.c.1.1.1.1.0"
    end.engine.probe.feed(end.socket, b"RMSG $G deliver %b@orders.new 1\r\nx\r\n" % reply)
    mesh.finish()
    seen = b"orders.new 1 %b" % reply if sibling == GATEWAY_NUMBER else b"deliver 1 %b@orders.new" % reply
    assert client.take() == b"MSG %b 1\r\nx\r\n" % seen
    mesh.close()


def test_many_subscriptions_to_a_consumer_see_a_long_subject_each_with_its_own_sid():
    mesh = Mesh(2, connect=QUIET)
    mesh.add(GATEWAY_NUMBER)
    mesh.settle()
    client = mesh.clients[0]
    client.feed(b"".join(b"SUB deliver %d\r\n" % sid for sid in range(200)))
    mesh.settle()
    client.take()
    end = mesh.ends[0, GATEWAY_NUMBER]
    assert end.socket is not None
    long = b"orders." + b"n" * 2000
    end.engine.probe.feed(end.socket, b"RMSG $G deliver $JS.ACK.S.c.1.1.1.1.0@%b 1\r\nx\r\n" % long)
    mesh.finish()
    got = frames(client.take())
    assert {frame.subject for frame in got} == {long}
    assert sorted(int(frame.sid) for frame in got) == list(range(200))
    mesh.close()


def test_a_queue_message_without_a_member_here_goes_to_a_leaf_node_of_the_cluster_that_it_came_from():
    """Of a plain message its cluster has had its own; of a group its member may be the one that was chosen."""
    cluster = Members(1, fenced=False)
    route = server(cluster, "route")
    leaf = server(cluster, "leaf", b"LS+ a q 1", of="east")
    route.engine.probe.feed(route.socket, b"LMSG east $G a | q 0 1\r\nx\r\n")
    cluster.settle()
    assert bytes(leaf.socket.sent).count(b"LMSG a | q 1\r\nx\r\n") == 1
    assert bytes(leaf.socket.sent).count(b"LMSG") == 1
    for end in (route, leaf):
        end.link.leave()
    cluster.close()


def test_services_that_are_imported_here_are_told_to_leaf_nodes_and_hubs_but_not_to_members():
    """A member's clients follow their own imports. JetStream's API is a hub's own service, or none."""
    cluster = Members(1, fenced=False)
    own = cluster.members[0].exchange.set_own_interest
    own(b"$G", [b"svc.>", b"$JS.API.>"])
    ends = {kind: server(cluster, kind) for kind in ("route", "leaf", "hub")}
    wanted = {"route": set(), "leaf": {"svc.>", "$JS.API.>", "later"}, "hub": {"svc.>", "later"}}
    own(b"$G", [b"svc.>", b"$JS.API.>", b"later"])
    cluster.settle()
    assert {kind: _told(end)[0] for kind, end in ends.items()} == wanted
    assert b"RS+" not in bytes(ends["route"].socket.sent)
    own(b"$G", [])
    cluster.settle()
    assert not any(_told(end)[0] for end in ends.values())
    for end in ends.values():
        end.link.leave()
    cluster.close()


@pytest.mark.parametrize("kind", ["leaf", "route"])
def test_a_server_hears_where_answers_are_wanted_before_the_first_request(kind: Literal["leaf", "route"]):
    """Of a request from another account, once. Who comes in its place hears it at once: answers may be due."""
    cluster = Members(1, fenced=False)
    member = cluster.members[0]
    link = member.mesh.ends[member.gateway, 0]
    assert link.socket is not None
    word, account = (b"L", b"") if kind == "leaf" else (b"R", b"$G ")
    slots = set()
    for is_first in (True, False):
        end = server(cluster, kind, b"%bS+ %ba" % (word, account))
        slots.add(end.link.slot)
        wanted = b"%bS+ %b_R_.b.>\r\n" % (word, account)
        assert (wanted in bytes(end.socket.sent)) != is_first
        begin = len(end.socket.sent)
        for n in (1, 2):
            link.engine.probe.feed(link.socket, b"RMSG $G a _R_.b.%d 1\r\nx\r\n" % n)
        cluster.settle()
        told = bytes(end.socket.sent[begin:])
        assert told.startswith(wanted) == is_first
        assert [line for line in told.removeprefix(wanted).split(b"\r\n") if len(line) > 1] == [
            b"%bMSG %ba _R_.b.%d 1" % (word, account, n) for n in (1, 2)
        ]
        end.link.leave()
    assert len(slots) == 1


def test_a_leaf_node_s_interest_that_is_too_long_in_the_exporting_account_is_refused(monkeypatch: pytest.MonkeyPatch):
    """Shards could not be told of it; what the leaf node says of its own account holds."""
    cluster = Members(1, fenced=False)
    publisher = cluster.members[0].clients[0]
    mesh = cluster.members[0].mesh.engines[GATEWAY_NUMBER].probe.mesh
    assert mesh is not None
    exporter = mesh.account(b"E")
    mesh.account(b"$G").streams = [StreamImport(exporter, b"exporter.>", b"p.>")]
    leaf = server(cluster, "leaf")
    refused: list[tuple[str, bytes]] = []
    monkeypatch.setattr(leaf, "on_refused", lambda *words: refused.append(words))
    fits = b"t" * (65_000 - len(b"exporter."))
    for subject in (fits, fits + b"t"):
        leaf.engine.probe.feed(leaf.socket, b"LS+ p.%b\r\n" % subject)
    cluster.settle()
    assert refused == [("too long in the account that it is imported from", b"p." + b"t" * 198)]
    link = cluster.members[0].mesh.ends[GATEWAY_NUMBER, 0]
    assert link.socket is not None
    told = bytes(link.socket.sent)
    assert b"RS+ E exporter.%b\r\n" % fits in told and told.count(b"RS+ E ") == 1
    publisher.connection.set_limits(Limits(max_control_line_bytes=128 * 1024))
    publisher.feed(b"PUB p.%bt 1\r\nx\r\n" % fits)
    cluster.settle()
    assert bytes(leaf.socket.sent).endswith(b"LMSG p.%bt 1\r\nx\r\n" % fits)
    leaf.link.leave()
    cluster.close()


def imports_many(cluster: Members, exporter: bytes) -> None:
    """The account of leaf nodes imports 100 streams of that one."""
    mesh = cluster.members[0].mesh.engines[GATEWAY_NUMBER].probe.mesh
    assert mesh is not None
    streams = [StreamImport(mesh.account(exporter), b"s.%d" % n, b"s.%d" % n) for n in range(100)]
    mesh.account(b"$G").streams = streams


def wanted_of(cluster: Members, exporter: bytes) -> set[bytes]:
    """What the gateway has told the first shard that is wanted of that account."""
    socket = cluster.members[0].mesh.ends[GATEWAY_NUMBER, 0].socket
    assert socket is not None
    wanted: set[bytes] = set()
    for line in bytes(socket.sent).split(b"\r\n"):
        words = line.split(b" ")
        if words[0] in (b"RS+", b"RS-") and words[1] == exporter:
            (wanted.add if words[0] == b"RS+" else wanted.discard)(b" ".join(words[2:4]))
    return wanted


def test_a_leaf_node_whose_interest_meets_many_imported_streams_is_read_in_turns():
    """2,000 groups that meet 3,000 streams each kept the gateway for so long that it was ended as hung."""
    cluster = Members(1, fenced=False)
    resting: list[Resting] = []
    cluster.members[0].exchange.rest_with(resting.append)
    imports_many(cluster, b"E")
    leaf = server(cluster, "leaf")
    for verb, members, left in ((b"LS+", b" 1", 40 * 100), (b"LS-", b"", 0)):
        leaf.engine.probe.feed(leaf.socket, b"".join(b"%b s.* q%d%b\r\n" % (verb, n, members) for n in range(40)))
        turns = 1
        while resting:
            resting.pop().has_rested()
            leaf.engine.probe.finish()
            turns += 1
        assert turns > 3
        cluster.settle()
        assert len(wanted_of(cluster, b"E")) == left
    leaf.link.leave()
    cluster.close()


@pytest.mark.parametrize("kind", ["leaf", "route"])
def test_what_a_server_wants_is_looked_for_in_steps_among_what_all_want(kind: Literal["leaf", "route"]):
    """A page looked at all for each of them at once: 31 with 230,000 subscriptions in their account were 2.7 s."""
    cluster = Members(1, fenced=False)
    exchange = cluster.members[0].exchange
    verb = b"LS+" if kind == "leaf" else b"RS+ $G"
    other = server(cluster, "leaf", *(b"LS+ x.%d" % n for n in range(20_000)))
    end = server(cluster, kind, *(b"%b %b" % (verb, words) for words in (b"a", b"a.*", b"a.* q 2", b"b.> q 1")))
    wanted = {(b"a", b""), (b"a.*", b""), (b"a.*", b"q"), (b"b.>", b"q")}

    def look(most: int) -> Generator[None, None, Any]:
        return end.link.interest_told(most) if kind == "leaf" else exchange.interest_of_member(end.link.slot, most)

    def found(rows: list[tuple[bytes, ...]]) -> set[tuple[bytes, ...]]:
        return {row[-2:] if kind == "leaf" else row[1:3] for row in rows}

    steps, rows = gone_through(look(10))
    assert found(rows) == wanted and len(rows) == 4
    assert steps > 15
    for most in 0, 1, 3:
        fewer, rows = gone_through(look(most))
        assert found(rows) < wanted and len(rows) == most
        assert fewer <= steps
    # Interest comes and goes in between, and so does who has it.
    looking = look(10)
    next(looking)
    other.engine.probe.feed(other.socket, b"".join(b"LS- x.%d\r\n" % n for n in range(20_000)))
    assert found(gone_through(looking)[1]) == wanted
    looking = look(10)
    end.link.leave()
    assert found(gone_through(looking)[1]) <= wanted
    assert gone_through(look(10)) == (0, [])
    other.link.leave()
    cluster.close()


def test_a_reload_of_imported_streams_looks_in_steps_for_what_leaf_nodes_want():
    cluster = Members(1, fenced=False)
    exchange = cluster.members[0].exchange
    other = server(cluster, "leaf", *(b"LS+ x.%d" % n for n in range(20_000)))
    leaf = server(cluster, "leaf", b"LS+ s.7")
    other.link.leave()
    imports_many(cluster, b"E")
    shard = cluster.members[0].clients[0]
    shard.feed(b"".join(b"SUB y.%d %d\r\n" % (n, n) for n in range(20_000)))
    cluster.settle()
    assert sum(1 for _ in exchange.renewals({b"$G"})) > 15
    cluster.settle()
    assert wanted_of(cluster, b"E") == {b"s.7"}
    leaf.link.leave()
    cluster.close()


def test_a_reload_of_imported_streams_leaves_turns_to_others_and_follows_what_changes_meanwhile():
    cluster = Members(1, fenced=False)
    exchange = cluster.members[0].exchange
    leaf = server(cluster, "leaf", *(b"LS+ s.* q%d 1" % n for n in range(40)), b"LS+ s.7", b"LS+ s.8")
    imports_many(cluster, b"E")
    steps = sum(1 for _ in exchange.renewals({b"$G"}))
    cluster.settle()
    assert 3 < steps < 40
    assert len(wanted_of(cluster, b"E")) == 40 * 100 + 2
    imports_many(cluster, b"F")
    renewals = exchange.renewals({b"$G"})
    next(renewals)
    for n in range(39):
        leaf.engine.probe.feed(leaf.socket, b"LS- s.* q%d\r\n" % n)
    leaf.engine.probe.feed(leaf.socket, b"LS- s.7\r\nLS+ s.9\r\n")
    assert sum(1 for _ in renewals) < steps
    cluster.settle()
    assert not wanted_of(cluster, b"E")
    assert wanted_of(cluster, b"F") == {*(b"s.%d q39" % n for n in range(100)), b"s.8", b"s.9"}
    # Who has left meanwhile wants nothing, also while what it wanted is being forgotten.
    leaf.engine.probe.feed(leaf.socket, b"".join(b"LS+ x.%d\r\n" % n for n in range(20_000)))
    cluster.settle()
    leaf.engine.probe.feed(leaf.socket, b"".join(b"LS+ s.* q%d 1\r\n" % n for n in range(39)))
    imports_many(cluster, b"E")
    renewals = exchange.renewals({b"$G"})
    next(renewals)
    leaf.link.leave()
    assert not [*renewals]
    cluster.settle()
    assert not wanted_of(cluster, b"E") and not wanted_of(cluster, b"F")
    cluster.close()


def test_what_a_mapping_makes_too_long_of_a_leaf_node_s_message_is_refused(monkeypatch: pytest.MonkeyPatch):
    """Account and subject have at most 194,560 bytes together, so that shards read the line."""
    cluster = Members(1, fenced=False)
    engine = cluster.members[0].mesh.engines[GATEWAY_NUMBER]
    assert engine.probe.mesh is not None
    engine.probe.fanout.gate = ServiceImports(engine.probe.fanout, GATEWAY_NUMBER)
    repeats = b"z.{{wildcard(1)}}.{{wildcard(1)}}.{{wildcard(1)}}"
    engine.probe.mesh.account(b"$G").set_rules([Mapping(b"m.*", [(repeats, 100)])], [])
    client = cluster.members[0].clients[0]
    client.feed(b"SUB z.> 1\r\n")
    leaf = server(cluster, "leaf")
    refused: list[str] = []
    monkeypatch.setattr(leaf, "on_refused", lambda why, _subject: refused.append(why))
    token = b"m" * ((194_560 - len(b"$Gz...")) // 3)
    for subject in (token + b"m", token):
        leaf.engine.probe.feed(leaf.socket, b"LMSG m.%b 1\r\nx\r\n" % subject)
        cluster.settle()
        assert refused == ["too long to be passed on when it is mapped"]
    assert client.take() == b"MSG z.%b.%b.%b 1 1\r\nx\r\n" % (token, token, token)
    leaf.link.leave()
    cluster.close()


def test_own_interest_that_no_shard_could_be_told_is_none():
    cluster = Members(1, fenced=False)
    own = cluster.members[0].exchange.set_own_interest
    leaf = server(cluster, "leaf")
    own(b"$G", [b"s" * 65_001, b"svc"])
    cluster.settle()
    assert _told(leaf)[0] == {"svc"}
    leaf.link.leave()
    cluster.close()


@pytest.mark.parametrize("is_connected", [True, False])
def test_nothing_is_kept_of_an_account_that_is_forgotten(*, is_connected: bool):
    """Neither what shows loops, nor which answers are wanted: another server is told so no more, if it was."""
    cluster = Members(1, fenced=False)
    member = cluster.members[0]
    exchange, shard = member.exchange, member.mesh.ends[member.gateway, 0]
    mesh: Any = member.mesh.engines[member.gateway].probe.mesh
    mesh.account(b"A")
    loops = {account: exchange.loop_subject(account) for account in (b"A", b"$G")}
    end = server(cluster, "route", b"RS+ A a")
    assert shard.socket is not None
    shard.engine.probe.feed(shard.socket, b"RMSG A a _R_.00AAAAAAAA.0000x 1\r\nx\r\n")
    end.engine.probe.feed(end.socket, b"RS- A a\r\nRS+ $G b\r\n")  # (a link holds the account that it named last)
    shard.engine.probe.feed(shard.socket, b"RMSG $G b 1\r\nx\r\n")
    cluster.settle()
    if not is_connected:
        end.link.leave()
        cluster.settle()
    for forgets in False, True:
        if forgets:
            assert mesh.forget_accounts({b"$G"}) == 0
        exchange.forget_accounts()
        cluster.settle()
        told = [line for line in bytes(end.socket.sent).split(b"\r\n") if b"_R_." in line and b"MSG" not in line]
        is_taken_back = is_connected and forgets
        assert told == [b"RS%b A _R_.00AAAAAAAA.>" % sign for sign in (b"+", b"-")[: 1 + is_taken_back]]
        assert (exchange.loop_subject(b"$G"), exchange.loop_subject(b"A") == loops[b"A"]) == (loops[b"$G"], not forgets)
    mesh.account(b"A")
    assert b"_R_." not in bytes(server(cluster, "route", b"RS+ A a").socket.sent)
    cluster.close()


def test_ever_new_reply_subjects_of_a_server_are_told_as_one_pattern():
    """It is bounded what a leaf node is told, and each request comes after what leads to the answer to it."""
    cluster = Members(1, fenced=False)
    route, leaf = server(cluster, "route"), server(cluster, "leaf", b"LS+ a")
    first, other, many = b"_R_.first.1", b"_R_.other.1", 3000
    begin = len(leaf.socket.sent)
    for reply in (first, *(b"_R_.p%d.1" % n for n in range(many)), first, other):
        route.engine.probe.feed(route.socket, b"RMSG $G a %b 1\r\nx\r\n" % reply)
    cluster.settle()
    told: set[bytes] = set()
    most = requests = 0
    for line in bytes(leaf.socket.sent[begin:]).split(b"\r\n"):
        if line.startswith(b"LS+ "):
            told.add(line[4:])
        elif line.startswith(b"LS- "):
            told.remove(line[4:])
        elif line.startswith(b"LMSG "):
            requests += 1
            assert any(line.split()[2].startswith(one[:-1]) for one in told)
        most = max(most, len(told))
    assert requests == many + 3
    assert most <= 1025 and told == {b"_R_.>"}
    # Another place, another server: it hears that all are wanted.
    leaf.link.leave()
    leaf = server(cluster, "leaf", b"LS+ a")
    assert bytes(leaf.socket.sent).count(b"LS+ _R_.") == bytes(leaf.socket.sent).count(b"LS+ _R_.>\r\n") == 1
    route.engine.probe.feed(route.socket, b"RMSG $G a %b 1\r\nx\r\n" % first)
    cluster.settle()
    assert bytes(leaf.socket.sent).endswith(b"LS+ _R_.>\r\nLMSG a _R_.first.1 1\r\nx\r\n")
    for end in (route, leaf):
        end.link.leave()
    cluster.close()


def test_a_long_reply_subject_of_a_server_is_told_as_that_all_are_wanted():
    """Many of them would take much memory."""
    cluster = Members(1, fenced=False)
    route, leaf = server(cluster, "route"), server(cluster, "leaf", b"LS+ a")
    begin = len(leaf.socket.sent)
    replies = [b"_R_.%b.1" % (b"p" * size) for size in (1018, 1019)]
    for reply in replies:
        route.engine.probe.feed(route.socket, b"RMSG $G a %b 1\r\nx\r\n" % reply)
    cluster.settle()
    lines = bytes(leaf.socket.sent[begin:]).split(b"\r\n")
    told = [line for line in lines if line[:3] in (b"LS+", b"LS-")]
    assert told == [b"LS+ %b>" % replies[0][:-1], b"LS+ _R_.>", b"LS- %b>" % replies[0][:-1]]
    for end in (route, leaf):
        end.link.leave()
    cluster.close()


def test_of_long_reply_subjects_a_leaf_node_is_told_fewer():
    """It may answer to the last ones; what is remembered of them takes a megabyte."""
    cluster = Members(1, fenced=False)
    route, leaf = server(cluster, "route"), server(cluster, "leaf", b"LS+ a")
    leaf.link.set_permissions(Permissions(PermissionOptions(subscribe_allow=("b",))))
    leaf.link.set_answers(1, 60.0, tells=True)
    begin = len(leaf.socket.sent)
    replies = [b"%03d%b" % (n, b"r" * 60_000) for n in range(40)]
    for reply in (*replies, *replies[-5:], b"short"):
        route.engine.probe.feed(route.socket, b"RMSG $G a %b 1\r\nx\r\n" % reply)
    cluster.settle()
    told: dict[bytes, None] = {}
    for line in bytes(leaf.socket.sent[begin:]).split(b"\r\n"):
        if line.startswith(b"LS+ "):
            told[line[4:]] = None
        elif line.startswith(b"LS- "):
            del told[line[4:]]
    assert list(told) == [*replies[-17:], b"short"]
    for end in (route, leaf):
        end.link.leave()
    cluster.close()


def test_who_lingers_takes_what_would_have_to_go_to_another_server():
    """That one acknowledges nothing, and its members may have left, too."""
    cluster = Members(2, fenced=False)
    leaver, _, publisher, _ = cluster.members[0].clients
    far = cluster.members[1].clients[0]
    for client in (leaver, far):
        client.feed(b"SUB a q 1\r\n")
    cluster.settle()
    publisher.feed(b"PUB a 1\r\nx\r\n" * 40)
    cluster.members[0].mesh.finish()
    leaver.feed(b"UNSUB 1\r\nPING\r\n")
    cluster.settle()
    here, there = len(leaver.messages()), len(far.messages())
    assert here + there == 40 and min(here, there) > 5  # each was chosen for about half of them
    cluster.close()


def test_a_group_that_stands_twice_in_a_frame_gets_its_message_once():
    cluster = Members(1, fenced=False)
    client, *_, other = cluster.members[0].clients
    client.feed(b"SUB a q 1\r\nSUB a r 2\r\n")
    other.feed(b"SUB a q 1\r\n")
    cluster.settle()
    end = server(cluster, "route")
    end.engine.probe.feed(end.socket, b"RMSG $G a | q q r q r 1\r\nx\r\n")
    cluster.settle()
    got = client.messages() + other.messages()
    assert sorted(got) == [(b"1", b"x"), (b"2", b"x")]
    end.link.leave()
    cluster.close()


def test_a_subscriber_that_is_behind_holds_no_connection_to_a_server():
    """All else that comes over it would wait, too, and so would the word of what is wanted."""
    cluster = Members(1, fenced=False)
    member = cluster.members[0]
    shard, gateway = member.mesh.ends[0, member.gateway], member.mesh.ends[member.gateway, 0]
    client = member.clients[0]
    client.feed(b"SUB a 1\r\nSUB b 2\r\n")
    cluster.settle()
    end = server(cluster, "route")
    assert gateway.socket is not None and shard.socket is not None
    gateway.engine.probe.feed(gateway.socket, b"SLOW $G a\r\n")
    end.engine.probe.feed(end.socket, b"RMSG $G a 1\r\nx\r\n" * 3 + b"RS+ $G c\r\nRMSG $G b 1\r\ny\r\n")
    assert not end.socket.is_held
    cluster.settle()
    assert client.messages() == [(b"1", b"x")] * 3 + [(b"2", b"y")]
    end.link.leave()
    cluster.close()


@pytest.mark.parametrize(
    ("kind", "words"),
    [("leaf", b"LS+ wan.*"), ("leaf", b"LS+ wan.> q 1"), ("hub", b"LS+ >"), ("route", b"RS+ $G wan.*")],
)
def test_publishers_wait_for_a_server_that_is_behind_also_where_each_message_has_a_subject_of_its_own(
    kind: Literal["route", "leaf", "hub"], words: bytes
):
    cluster = Members(1, fenced=False)
    end = server(cluster, kind, words)
    publisher, other = cluster.members[0].clients[:2]
    end.engine.probe.set_takes(end.socket, 0)
    end.socket.set_stall_mark(100_000)
    for number in range(20):
        publisher.feed(b"PUB wan.%d 20000\r\n%b\r\n" % (number, b"x" * 20_000))
    assert not publisher.socket.is_stalled
    cluster.settle()
    publisher.feed(b"PUB wan.new 1\r\nx\r\n")
    assert publisher.socket.is_stalled
    if words != b"LS+ >":
        other.feed(b"PUB elsewhere 1\r\nx\r\n")
        assert not other.socket.is_stalled
    end.engine.probe.set_takes(end.socket, -1)
    for engine in cluster.members[0].mesh.engines.values():
        engine.probe.release_stalls()
    cluster.settle()
    end.link.leave()
    cluster.close()


@pytest.mark.parametrize("kind", ["leaf", "route"])
def test_a_server_hears_when_answers_are_wanted_no_more(kind: Literal["leaf", "route"]):
    """Where the shard that asked has gone, and none has taken over what is due to it, or that one has it no more."""
    cluster = Members(1, shards=3, fenced=False)
    mesh, gateway = cluster.members[0].mesh, cluster.members[0].gateway
    probe = mesh.engines[gateway].probe
    _prefixes = ReplyPrefixes(probe.mesh, probe.fence, probe.reroutes)  # type: ignore[arg-type]
    word, account = (b"L", b"") if kind == "leaf" else (b"R", b"$G ")
    end = server(cluster, kind, b"%bS+ %ba" % (word, account))
    begin = len(end.socket.sent)

    def says(shard: int, *frames: bytes) -> None:
        link = mesh.ends[gateway, shard]
        assert link.socket is not None
        link.engine.probe.feed(link.socket, b"".join(frames))

    def told() -> list[bytes]:
        nonlocal begin
        cluster.settle()
        sent = bytes(end.socket.sent[begin:])
        begin += len(sent)
        return [line[len(word) :] for line in sent.split(b"\r\n") if b"S+ " in line or b"S- " in line]

    def line(verb: bytes, shard: int) -> bytes:
        return b"%b %b_R_.0%dAAAAAAAA.>" % (verb, account, shard)

    for shard in (0, 1):
        says(shard, b"RMSG $G a _R_.0%dAAAAAAAA.0000x 1\r\nx\r\n" % shard)
    assert told() == [line(b"S+", 0), line(b"S+", 1)]
    says(2, b"ROWN _R_.01AAAAAAAA. 1\r\n")
    for shard in (0, 1):
        mesh.kill(shard)
    assert told() == [line(b"S-", 0)]
    says(2, b"RDROP _R_.01AAAAAAAA.\r\n")
    assert told() == [line(b"S-", 1)]
    end.link.leave()


@pytest.mark.parametrize("kind", ["leaf", "route"])
@pytest.mark.parametrize("is_due_first", [True, False])
def test_answers_that_are_due_and_a_subscription_to_them_are_told_once_and_end_with_the_last(
    kind: Literal["leaf", "route"], *, is_due_first: bool
):
    """A shard tells a gateway that joins of replies that are due to it, as interest, which ends with its link."""
    cluster = Members(1, shards=3, fenced=False)
    mesh, gateway = cluster.members[0].mesh, cluster.members[0].gateway
    probe = mesh.engines[gateway].probe
    _prefixes = ReplyPrefixes(probe.mesh, probe.fence, probe.reroutes)  # type: ignore[arg-type]
    word, account = (b"L", b"") if kind == "leaf" else (b"R", b"$G ")
    end = server(cluster, kind, b"%bS+ %ba" % (word, account))
    pattern = account + b"_R_.00AAAAAAAA.>"

    def says(shard: int, frames: bytes) -> None:
        link = mesh.ends[gateway, shard]
        assert link.socket is not None
        link.engine.probe.feed(link.socket, frames)

    def ask() -> None:
        says(0, b"RMSG $G a _R_.00AAAAAAAA.0000x 1\r\nx\r\n")

    def want() -> None:
        says(1, b"RS+ $G _R_.00AAAAAAAA.>\r\n")

    for do in (ask, want) if is_due_first else (want, ask):
        do()
        cluster.settle()
    told = [line for line in bytes(end.socket.sent).split(b"\r\n") if b"_R_." in line and b"MSG" not in line]
    assert told == [word + b"S+ " + pattern]
    mesh.kill(1 if is_due_first else 0)
    cluster.settle()
    assert word + b"S- " + pattern not in bytes(end.socket.sent)
    mesh.kill(0 if is_due_first else 1)
    cluster.settle()
    assert bytes(end.socket.sent).count(word + b"S- " + pattern + b"\r\n") == 1
    end.link.leave()


def test_a_server_that_is_told_nothing_any_more_does_not_hear_that_answers_are_wanted_no_more():
    """The gateway leaves: that would be written behind its end."""
    cluster = Members(1, shards=2, fenced=False)
    mesh, gateway = cluster.members[0].mesh, cluster.members[0].gateway
    probe = mesh.engines[gateway].probe
    _prefixes = ReplyPrefixes(probe.mesh, probe.fence, probe.reroutes)  # type: ignore[arg-type]
    end = server(cluster, "route", b"RS+ $G a")
    link = mesh.ends[gateway, 0]
    assert link.socket is not None
    link.engine.probe.feed(link.socket, b"RMSG $G a _R_.00AAAAAAAA.0000x 1\r\nx\r\n")
    cluster.settle()
    assert b"RS+ $G _R_.00AAAAAAAA.>\r\n" in bytes(end.socket.sent)
    cluster.members[0].exchange.hush()
    end.link.fall_silent()
    before = end.socket.queued
    mesh.kill(0)
    cluster.settle()
    end.link.ping()
    end.link.send(b"-ERR\r\n")
    probe.finish()
    assert end.socket.queued == before
    end.link.leave()


def test_a_server_that_tells_much_interest_rests_between_short_pieces_until_it_has_told_it():
    """Clients here are served meanwhile; what comes behind it, is there in its order."""
    cluster = Members(1, fenced=False)
    subscriber, publisher, *_ = cluster.members[0].clients
    subscriber.feed(b"SUB a 1\r\n")
    resting: list[Resting] = []
    cluster.members[0].exchange.rest_with(resting.append, 4_096, 100_000)
    end = server(cluster, "route")
    feed, socket = end.engine.probe.feed, end.socket
    told = b"".join(b"RS+ $G told.%06d\r\n" % number for number in range(20_000))
    message = b"RMSG $G a 1\r\nx\r\n"

    feed(socket, b"".join(b"RS+ $G few.%03d\r\n" % number for number in range(100)))
    assert not resting and not socket.is_held
    feed(socket, told[:60_000])
    assert not resting and not socket.is_held
    feed(socket, told[60_000:120_000])
    assert resting == [end.link] and socket.is_held
    feed(socket, told[120_000:] + message * 2)
    rests = 1
    while resting:
        resting.pop().has_rested()
        end.engine.probe.finish()
        assert socket.largest_read <= 1_100
        rests += 1
    assert 300_000 // 1_100 < rests < 400
    cluster.settle()
    assert subscriber.messages() == [(b"1", b"x")] * 2
    publisher.feed(b"PUB told.019999 1\r\ny\r\n")
    cluster.settle()
    assert bytes(socket.sent).endswith(b"RMSG $G told.019999 1\r\ny\r\n")
    feed(socket, message * 5_000)
    assert not socket.is_held and socket.largest_read > 50_000

    feed(socket, told)  # (again, and it ends meanwhile)
    assert resting and socket.is_held
    end.link.leave()
    resting.pop().has_rested()
    end.engine.probe.finish()
    cluster.close()


def test_a_server_whose_messages_take_long_to_match_rests_between_them():
    cluster = Members(1, fenced=False)
    subscriber, *_ = cluster.members[0].clients
    subscriber.feed(b"SUB > 0\r\n" + patterns.subscriptions())
    resting: list[Resting] = []
    cluster.members[0].exchange.rest_with(resting.append)
    end = server(cluster, "route")
    cluster.settle()
    words = patterns.publishes(200).replace(b"PUB ", b"RMSG $G ")
    end.engine.probe.feed(end.socket, words)
    rests = 0
    while resting:
        rests += 1
        resting.pop().has_rested()
        end.engine.probe.finish()
    cluster.settle()
    assert subscriber.messages() == [(b"0", b"%d" % n) for n in range(200)]
    assert rests >= 200 * patterns.STEPS // 100_000
    end.link.leave()
    cluster.close()


def test_a_gateway_that_withdraws_sends_on_what_is_on_its_way_and_then_gets_nothing():
    cluster = Members(1, shards=2, fenced=False)
    member = cluster.members[0]
    publisher = member.clients[0]
    route = server(cluster, "route", b"RS+ $G a", b"RS+ $G q w 2")
    publisher.feed(b"PUB a 1\r\n1\r\nPUB q 1\r\n2\r\n")
    member.mesh.finish()
    known: list[bool] = []
    member.exchange.withdraw(lambda: known.append(True))
    assert not known
    cluster.settle()
    assert known
    assert bytes(route.socket.sent).count(b"RMSG $G a 1\r\n1\r\n") == 1
    assert bytes(route.socket.sent).count(b"RMSG $G q | w 1\r\n2\r\n") == 1
    route.engine.probe.feed(route.socket, b"RS+ $G late\r\n")
    cluster.settle()
    publisher.feed(b"SUB none 1\r\nPUB a none 0\r\n\r\nPUB q none 0\r\n\r\nPUB late none 0\r\n\r\n")
    cluster.settle()
    assert len(publisher.messages()) == 3  # no responders
    near = member.clients[2]
    near.feed(b"SUB from.there 1\r\n")
    cluster.settle()
    route.engine.probe.feed(route.socket, b"RMSG $G from.there 1\r\n3\r\n")
    cluster.settle()
    assert near.messages() == [(b"1", b"3")]
    route.link.leave()
    cluster.close()


def test_what_a_member_told_of_an_account_before_a_shard_knew_it_comes_before_what_it_tells_then():
    """A shard may know an account before the gateway does, which has not been told to look for it yet."""
    cluster = Members(1, fenced=False)
    gateway = cluster.members[0].mesh.engines[GATEWAY_NUMBER]
    end = server(cluster, "route", b"RS+ NEW a", b"RS+ NEW b q 2", b"RS+ NEW c")
    assert gateway.probe.mesh is not None
    sublist = gateway.probe.mesh.account(b"NEW")
    end.engine.probe.feed(end.socket, b"RS- NEW a\r\n")
    assert end.link.subscriptions == 2
    assert end.link.take_accounts()
    assert end.link.subscriptions == 2 and sublist.account == b"NEW"
    assert sorted(gone_through(cluster.members[0].exchange.interest_of_member(end.link.slot, 9))[1]) == [
        (b"NEW", b"b", b"q", b""),
        (b"NEW", b"c", b"", b""),
    ]
    end.link.leave()
    cluster.close()


def test_long_names_of_accounts_that_are_not_known_here_are_not_kept():
    cluster = Members(1, fenced=False)
    end = server(cluster, "route")
    name = b"N" * 200_000
    tracemalloc.start()
    for number in range(200):
        end.engine.probe.feed(end.socket, b"RS+ %d%b a\r\n" % (number, name))
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 1 << 20
    assert not end.link.take_accounts(), "it has to tell them again"
    end.link.leave()
    cluster.close()


def test_interest_in_accounts_that_are_not_known_here_takes_16_mb():
    """Counted with what its words take a second time, in the key that an end is found by."""
    cluster = Members(1, fenced=False)
    end = server(cluster, "route")
    subject = b"s" * 60_000
    tracemalloc.start()
    for number in range(600):
        end.engine.probe.feed(end.socket, b"RS+ %d %d%b\r\n" % (number % 4, number, subject))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 1 << 23 < most < 1.1 * (1 << 24)
    end.link.leave()
    cluster.close()


def echoless(cluster: Members, member: int) -> EngineClient:
    """A client of the first shard of a member, which wants no echo."""
    mesh = cluster.members[member].mesh
    client = mesh.engines[0].client(NO_ECHO)
    mesh.clients.append(client)
    return client


@pytest.mark.parametrize("kind", ["route", "leaf", "hub"])
@pytest.mark.parametrize("is_alone", [False, True])
def test_a_server_that_knows_it_is_told_who_wants_no_echo_of_what_is_for_groups(
    kind: Literal["route", "leaf", "hub"], *, is_alone: bool
):
    """In the one frame that serves plain interest, too; and what it sends on does not come back to that client.

    `is_alone`: the publisher's shard knows of that one group alone, and nothing else.
    """
    cluster = Members(1, fenced=False)
    publisher = echoless(cluster, 0)
    word, account = (b"R", b"$G ") if kind == "route" else (b"L", b"")
    told = [b"%bS+ %ba q 1" % (word, account)] + [b"%bS+ %ba" % (word, account)] * (not is_alone)
    end = server(cluster, kind, *told, server_id="NOTHERABCDEF")
    publisher.feed(b"SUB a q 1\r\n" + b"SUB a other 2\r\n" * (not is_alone))
    cluster.settle()
    begin = len(end.socket.sent)
    publisher.feed(b"PUB a 1\r\nx\r\nPUB a r 1\r\ny\r\n")
    cluster.settle()
    whose = b"~NMEMBER00000~%d" % publisher.connection.cid
    assert bytes(end.socket.sent[begin:]) == b"".join(
        b"QMSG +,%b %ba %b q 0 1\r\n%b\r\n" % (whose, account, reply, payload)
        for reply, payload in ((b"|", b"x"), (b"+ r", b"y"))
    )
    end.engine.probe.feed(end.socket, b"QMSG NOTHERABCDEF,%b %ba | q 0 1\r\nx\r\n" % (whose, account))
    cluster.settle()
    assert publisher.messages() == []
    end.engine.probe.feed(end.socket, b"QMSG NOTHERABCDEF,~NOTHERABCDEF~1 %ba | q 0 1\r\nz\r\n" % account)
    cluster.settle()
    assert publisher.messages() == [(b"1", b"z")]
    end.link.leave()


@pytest.mark.parametrize("has_plain", [False, True])
def test_a_server_is_told_who_wants_no_echo_of_what_is_traced_too(*, has_plain: bool):
    cluster = Members(1, fenced=False)
    publisher = echoless(cluster, 0)
    engine = cluster.members[0].mesh.engines[0]
    assert engine.probe.mesh is not None
    engine.probe.fanout.tracing = MessageTracing(Options(), engine.probe.mesh, Told(), {})  # type: ignore[arg-type]
    end = server(cluster, "route", b"RS+ $G a q 1", *[b"RS+ $G a"] * has_plain, server_id="NOTHERABCDEF")
    begin = len(end.socket.sent)
    header = b"NATS/1.0\r\nNats-Trace-Dest: t\r\n\r\n"
    publisher.feed(b"HPUB a %d %d\r\n%bx\r\n" % (len(header), len(header) + 1, header))
    cluster.settle()
    whose = b"~NMEMBER00000~%d" % publisher.connection.cid
    sent = bytes(end.socket.sent[begin:])
    assert sent.startswith(b"QMSG +,%b $G a | q " % whose) and sent.count(b" $G a ") == 1
    end.link.leave()
    cluster.close()


@pytest.mark.parametrize(
    "groups", [[b"%02d" % n + b"r" * 3900 for n in range(12)], [b"%02d" % n for n in range(70)]], ids=["long", "many"]
)
@pytest.mark.parametrize("publishes", ["with echo", "without echo", "traced"])
@pytest.mark.parametrize("kind", ["route", "leaf", "hub"])
def test_a_group_at_a_server_with_plain_subscriptions_is_named_with_these_beside_many_groups_here(
    kind: Literal["route", "leaf", "hub"], publishes: str, groups: list[bytes]
):
    """A nats-server would give a second frame, for groups alone, to the plain subscriptions, too: so it gets none."""
    cluster = Members(1, fenced=False)
    publisher = echoless(cluster, 0) if publishes == "without echo" else cluster.members[0].clients[0]
    header = b""
    if publishes == "traced":
        engine = cluster.members[0].mesh.engines[0]
        assert engine.probe.mesh is not None
        engine.probe.fanout.tracing = MessageTracing(Options(), engine.probe.mesh, Told(), {})  # type: ignore[arg-type]
        header = b"NATS/1.0\r\nNats-Trace-Dest: t\r\n\r\n"
    client = cluster.members[0].clients[2]
    end = server(cluster, kind)
    words = b"RS+ $G a\r\nRS+ $G a q 1\r\n" if kind == "route" else b"LS+ a\r\nLS+ a q 1\r\n"
    subs = [b"SUB a %b %d\r\n" % (group, n) for n, group in enumerate(groups)]
    client.feed(b"".join(subs[::2]))
    cluster.settle()
    end.engine.probe.feed(end.socket, words)
    cluster.settle()
    client.feed(b"".join(subs[1::2]))
    cluster.settle()
    begin = len(end.socket.sent)
    for number in range(10):
        line = b"HPUB a %d %d" % (len(header), len(header) + 2) if header else b"PUB a 2"
        publisher.feed(b"%b\r\n%b%02d\r\n" % (line, header, number))
    cluster.settle()
    sent = bytes(end.socket.sent[begin:])
    assert sent.count(b"| q ") == 10
    assert [sent.count(b"%02d\r\n" % number) for number in range(10)] == [1] * 10
    assert len(client.messages()) == 10 * len(groups)
    end.link.leave()
    cluster.close()


@pytest.mark.parametrize("kind", ["route", "leaf", "hub"])
@pytest.mark.parametrize("lingers", ["its publisher", "who may not have it"])
def test_another_server_gets_what_nobody_who_lingers_may_have(kind: Literal["route", "leaf", "hub"], lingers: str):
    """It comes back from a shard whose member has just gone, and the last member here has unsubscribed."""
    cluster = Members(1, fenced=False)
    publisher = echoless(cluster, 0)
    goes = cluster.members[0].clients[2]
    words = b"RS+ $G a q 1" if kind == "route" else b"LS+ a q 1"
    member = publisher
    if lingers != "its publisher":
        member, mesh = cluster.members[0].clients[0], cluster.members[0].mesh.engines[0].probe.mesh
        assert mesh is not None
        member.connection.enter(mesh.account(b"$G"), Permissions(PermissionOptions(subscribe_deny=("a",))))
    end = server(cluster, kind)
    member.feed(b"SUB * q 1\r\n")
    goes.feed(b"SUB a q 1\r\n")
    end.engine.probe.feed(end.socket, words + b"\r\n")
    cluster.settle()
    begin = len(end.socket.sent)
    publisher.feed(b"PUB a 2\r\n%02d\r\n" * 20 % tuple(range(20)))
    member.feed(b"UNSUB 1\r\n")
    goes.close()
    cluster.settle()
    sent = bytes(end.socket.sent[begin:])
    assert member.messages() == []
    for number in range(20):
        assert sent.count(b"\r\n%02d\r\n" % number) == 1, number
    end.link.leave()
    cluster.close()


@pytest.mark.parametrize("kind", ["route", "leaf", "hub"])
@pytest.mark.parametrize("only", [b"", b"Nats-Trace-Only: true\r\n"], ids=["delivered", "only traced"])
def test_what_another_server_says_is_traced_is_not_where_it_is_sent_on(
    kind: Literal["route", "leaf", "hub"], only: bytes
):
    """Its header says that somebody traces it already; it comes to a shard whose member of the group has just gone."""
    cluster = Members(1, fenced=False)
    told = Told()
    for engine in (cluster.members[0].mesh.engines[shard] for shard in (0, 1)):
        assert engine.probe.mesh is not None
        engine.probe.fanout.tracing = MessageTracing(Options(), engine.probe.mesh, told, {})  # type: ignore[arg-type]
    goes, _, stays, _ = cluster.members[0].clients
    for client in (goes, stays):
        client.feed(b"SUB a q 1\r\n")
    end = server(cluster, kind)
    account = b"$G " if kind == "route" else b""
    for number in range(20):  # (runs, too)
        header = b"NATS/1.0\r\nNats-Trace-Dest: t\r\nNats-Trace-Hop: 7\r\n%b\r\n" % only
        words = b"HMSG %ba | q %d %d\r\n%b%02d\r\n"
        end.engine.probe.feed(end.socket, words % (account, len(header), len(header) + 2, header, number))
    goes.close()
    cluster.settle()
    assert {payload for _, payload in stays.messages()} == {b"%02d" % number for number in range(20)}
    assert not told.documents
    end.link.leave()
    cluster.close()


@pytest.mark.parametrize("group", [b"", b"| q "], ids=["plain", "of a group"])
def test_other_servers_hear_where_a_trace_has_been(group: bytes):
    """Without it a nats-server 2.15 that is told by this one traced it as if it began there; clients do not see it."""
    cluster = Members(1, fenced=False)
    member = cluster.members[0]
    for shard in (0, 1):
        engine = member.mesh.engines[shard]
        assert engine.probe.mesh is not None
        engine.probe.fanout.tracing = MessageTracing(Options(), engine.probe.mesh, Told(), {})  # type: ignore[arg-type]
    client = member.clients[0]
    client.feed(b"SUB a 1\r\n")
    route = server(cluster, "route", b"RS+ $G a", b"RS+ $G a q 1")
    leaf, other = (server(cluster, "leaf", b"LS+ a", b"LS+ a q 1", of=of) for of in ("one", "two"))
    header = b"NATS/1.0\r\nNats-Trace-Dest: t\r\nNats-Trace-Hop: 7\r\n\r\n"
    for number in range(3):  # (runs, too)
        words = b"HMSG a %b%d %d\r\n%b%d\r\n" % (group, len(header), len(header) + 1, header, number)
        leaf.engine.probe.feed(leaf.socket, words)
    cluster.settle()
    for end in (route, other):
        assert bytes(end.socket.sent).count(header) == 3
    got = client.take()
    assert got.count(b"Nats-Trace-Dest: t\r\n") == 3 and b"Nats-Trace-Hop" not in got
    for end in (route, leaf, other):
        end.link.leave()
    cluster.close()


@pytest.mark.parametrize("far", [1, 2])
def test_what_members_send_on_does_not_come_back_to_who_wants_no_echo(far: int):
    """It went to a member that has just gone there, and from there on, perhaps by another member."""
    cluster = Members(3, fenced=False)
    publisher, hears = echoless(cluster, 0), cluster.members[far].clients[1]
    publisher.feed(b"SUB a q 1\r\n")
    hears.feed(b"SUB a 2\r\n")
    chosen = cluster.members[1].clients[0]
    chosen.feed(b"SUB a q 1\r\n")
    if far == 2:
        cluster.members[2].clients[0].feed(b"SUB a q 1\r\n")
    cluster.settle()
    for number in range(20):
        publisher.feed(b"PUB a 2\r\n%02d\r\n" % number)
    chosen.close()
    if far == 2:
        cluster.members[2].clients[0].close()
    cluster.settle()
    assert publisher.messages() == []
    assert [payload for _, payload in hears.messages()] == [b"%02d" % number for number in range(20)]
    cluster.close()


@pytest.mark.parametrize(
    "words", [b"+,~", b"~~", b"+,~NMEMBER00000~", b"~NMEMBER00000~99999999999999999999", b"~a~1~2", b"+,~~1"]
)
def test_a_name_that_says_nothing_of_who_wants_no_echo_is_left_out(words: bytes):
    cluster = Members(1, fenced=False)
    client = cluster.members[0].clients[0]
    client.feed(b"SUB a q 1\r\n")
    end = server(cluster, "route", server_id="NOTHERABCDEF")
    end.engine.probe.feed(end.socket, b"QMSG %b $G a | q 0 1\r\nx\r\n" % words)
    cluster.settle()
    assert client.messages() == [(b"1", b"x")]
    end.link.leave()


@pytest.mark.parametrize("is_near", [True, False])
def test_a_frame_that_says_who_wants_no_echo_serves_plain_interest_once(*, is_near: bool):
    """At the shard of the group's member, and elsewhere."""
    cluster = Members(1, fenced=False)
    member, near, *_, far = cluster.members[0].clients
    hears = near if is_near else far
    member.feed(b"SUB a q 1\r\n")
    hears.feed(b"SUB a 2\r\n")
    end = server(cluster, "route", server_id="NOTHERABCDEF")
    for number in range(3):
        end.engine.probe.feed(end.socket, b"QMSG +,~NOTHERABCDEF~7 $G a | q 0 1\r\n%d\r\n" % number)
    cluster.settle()
    assert member.messages() == [(b"1", b"%d" % number) for number in range(3)]
    assert hears.messages() == [(b"2", b"%d" % number) for number in range(3)]
    end.link.leave()
    cluster.close()


@pytest.mark.parametrize("others", [0, 5])
def test_a_server_hears_once_of_a_group_that_moves_however_many_members_in_however_many_parts(others: int):
    """The gateway does once for the group what it did for each of its shifts: a client may have a million members.

    So may `others` have, in a move that is offered behind this one.
    """
    cluster = Members(1, fenced=False)
    route = server(cluster, "route")
    mesh = cluster.members[0].mesh
    probe, link = mesh.engines[GATEWAY_NUMBER].probe, mesh.ends[GATEWAY_NUMBER, 1].socket
    assert link is not None
    parts = 50
    for n in range(parts):
        shifts = encoded_shifts((Shift(b"$G", b"a", b"q", 2), Shift(b"$G", b"b.%d" % n, b"q", 1)))
        probe.feed(link, b"MSHIFT 7 5 %d\r\n%b\r\n" % (len(shifts), shifts))  # (shard 7 is dead: it counts nothing)
    for _ in range(others):
        shifts = encoded_shifts((Shift(b"$G", b"a", b"q", 2),))
        probe.feed(link, b"MSHIFT 8 5 %d\r\n%b\r\n" % (len(shifts), shifts))
    begin = len(route.socket.sent)

    def told() -> list[bytes]:
        nonlocal begin
        lines = bytes(route.socket.sent[begin:]).split(b"\r\n")
        begin = len(route.socket.sent)
        return [line for line in lines if line.startswith((b"RS+ $G a q", b"RS- $G a q"))]

    probe.feed(link, b"MARKQ 7 5 %d\r\n" % (2 * parts))
    assert told() == [b"RS+ $G a q 1", b"RS+ $G a q 100"]  # (through 1: see Exchange)
    probe.feed(link, b"MOVED 7 5 0 0\r\n\r\n")
    assert told() == [b"RS+ $G a q 1", b"RS- $G a q"]
    if others:
        probe.feed(link, b"MARKQ 8 5 %d\r\nMOVED 8 5 0 0\r\n\r\n" % others)
    assert probe.moves.is_idle
    route.link.leave()
    cluster.close()


def test_a_gateway_forgets_a_move_with_many_members_in_turns():
    cluster = Members(1, fenced=False)
    mesh = cluster.members[0].mesh
    probe, link = mesh.engines[GATEWAY_NUMBER].probe, mesh.ends[GATEWAY_NUMBER, 1].socket
    assert link is not None
    before = probe.memory["queue_names"]
    shifts = encoded_shifts(tuple(Shift(b"$G", b"a.%d" % number, b"q%d" % number, 1) for number in range(500)))
    probe.feed(link, b"MSHIFT 7 5 %d\r\n%b\r\nMARKQ 7 5 500\r\n" % (len(shifts), shifts))
    mesh.work_in_turns(GATEWAY_NUMBER, 64)
    probe.feed(link, b"MOVED 7 5 0 0\r\n\r\n")
    left = [probe.memory["queue_names"] - before]
    while mesh.work(GATEWAY_NUMBER):
        left.append(probe.memory["queue_names"] - before)
    assert max(more - fewer for more, fewer in itertools.pairwise(left)) == 64
    assert left[-1] == 0
    cluster.close()


def test_what_a_server_wanted_counts_no_more_when_it_is_gone_and_is_dropped_in_turns():
    """Its slot is free when others have been told of all of it; who comes meanwhile has another."""
    cluster = Members(1, fenced=False)
    exchange, mesh = cluster.members[0].exchange, cluster.members[0].mesh
    leaf = server(cluster, "leaf")
    told = [b"RS+ $G many.%d" % number for number in range(300)] + [
        b"RS+ $G many.%d q 1" % number for number in range(300)
    ]
    route = server(cluster, "route", *told)
    cluster.settle()
    free, slot = exchange.free_slots(), route.link.slot
    begin = len(leaf.socket.sent)
    mesh.work_in_turns(GATEWAY_NUMBER, 20)
    route.link.leave()
    leaf.engine.probe.feed(leaf.socket, b"LMSG many.7 1\r\nx\r\n")
    cluster.settle()
    assert exchange.free_slots() == free
    assert server(cluster, "route", b"RS+ $G many.5").link.slot != slot
    turns = 0
    while mesh.work(GATEWAY_NUMBER):
        turns += 1
    assert turns > 10
    assert exchange.free_slots() == free
    cluster.settle()
    ended = bytes(leaf.socket.sent[begin:])
    assert ended.count(b"LS- many.") == 600 - 1
    assert b"LS- many.5\r\n" not in ended
    assert server(cluster, "route").link.slot == slot
    cluster.close()


# ---- a server that connects is told all interest in turns


class ToldInterest:
    """What a server knows by the frames that it has got: (subject, group) → members, 1 without a group.

    A nats-server counts each frame for its leaf nodes: what is told twice is one subscription more.
    """

    def __init__(self, end: RouteEnd) -> None:
        self.end = end
        self.known: dict[tuple[bytes, bytes], int] = {}
        self.read = 0
        self.others: list[bytes] = []  # all lines that are no interest, and how much was known before each
        self.known_before: list[int] = []

    def read_on(self) -> int:
        """Reads the frames that are new; returns how much of it is interest."""
        self.end.engine.probe.finish()
        lines = bytes(self.end.socket.sent[self.read :]).split(b"\r\n")[:-1]
        self.read = len(self.end.socket.sent)
        n = 0
        for line in lines:
            verb, *words = line.split(b" ")
            if verb in (b"RS+", b"RS-"):
                assert words.pop(0) == b"$G"
            if verb not in (b"RS+", b"RS-", b"LS+", b"LS-"):
                self.others.append(line)
                self.known_before.append(len(self.known))
                continue
            if words[0].startswith(b"$LDS."):
                continue
            n += 1
            subject, queue, members = (*words, b"", b"1")[:3] if len(words) != 2 else (*words, b"0")
            before = self.known.pop((subject, queue), 0)
            now = int(members) if verb.endswith(b"+") else 0
            assert before != now, line
            if now:
                self.known[subject, queue] = now
        return n


def some_subject(dice: Random) -> bytes:
    """A literal, or a pattern of one of many shapes."""
    words = [dice.choice([b"*", b"%d" % dice.randrange(9), b"w"]) for _ in range(dice.randrange(1, 4))]
    if dice.random() < 0.3:
        return b"lit.%d" % dice.randrange(400)
    return b".".join([*words, b">"]) if dice.random() < 0.3 else b".".join(words)


@pytest.mark.parametrize("kind", ["route", "leaf"])
@pytest.mark.parametrize("seed", range(8))
def test_a_server_that_connects_is_told_each_interest_once_in_turns_whatever_changes_meanwhile(
    kind: Literal["route", "leaf"], seed: int
):
    dice = Random(seed)
    cluster = Members(1, fenced=False)
    member = cluster.members[0]
    mesh = member.mesh
    wanted: dict[tuple[bytes, bytes], list[tuple[int, bytes]]] = {}  # → (client, sid)
    n = 0

    def change(ending: float = 0.5) -> None:
        nonlocal n
        if dice.random() < ending and wanted:
            key = dice.choice(list(wanted))
            who, sid = wanted[key].pop()
            if not wanted[key]:
                del wanted[key]
            member.clients[who].feed(b"UNSUB %b\r\n" % sid)
        else:
            n += 1
            key = some_subject(dice), dice.choice([b"", b"", b"q", b"r"])
            who = dice.randrange(len(member.clients))
            wanted.setdefault(key, []).append((who, b"%d" % n))
            member.clients[who].feed(b"SUB %b %b %d\r\n" % (*key, n))

    for _ in range(300):
        change(0.1)
    mesh.settle()
    mesh.work_in_turns(GATEWAY_NUMBER, dice.choice([1, 3, 10]))
    end = RouteEnd(mesh.engines[GATEWAY_NUMBER], member.exchange, kind=kind)
    told = ToldInterest(end)
    end.link.begin()
    turns = 0
    while mesh.work(GATEWAY_NUMBER):
        turns += 1
        told.read_on()
        for _ in range(dice.randrange(3)):
            change()
        mesh.settle()
    assert turns > 10
    mesh.settle()
    told.read_on()
    assert told.known == {(subject, queue): len(who) if queue else 1 for (subject, queue), who in wanted.items()}
    assert set(told.others) <= {b"PING"}  # (for who has left a group)
    for _ in range(100):
        change()
    mesh.settle()
    told.read_on()
    assert told.known == {(subject, queue): len(who) if queue else 1 for (subject, queue), who in wanted.items()}
    end.link.leave()
    cluster.close()


@pytest.mark.parametrize("way", ["more", "fewer"])
def test_groups_that_change_in_every_turn_in_which_a_server_is_told_interest_are_told_as_they_are(way: str):
    """Wherever the cursor stands: before a group, at it, or behind it."""
    cluster = Members(1, fenced=False)
    member = cluster.members[0]
    client = member.clients[0]
    sids = {number: [b"%d.0" % number] for number in range(30)}
    for number, of_group in sids.items():
        if way == "fewer":
            of_group += [b"%d.%d" % (number, n) for n in range(1, 200)]
        client.feed(b"".join(b"SUB g.%d q %b\r\n" % (number, sid) for sid in of_group))
    cluster.settle()
    member.mesh.work_in_turns(GATEWAY_NUMBER, 1)
    end = RouteEnd(member.mesh.engines[GATEWAY_NUMBER], member.exchange)
    told = ToldInterest(end)
    end.link.begin()
    now: dict[tuple[bytes, bytes], int] = {}
    while member.mesh.work(GATEWAY_NUMBER):
        for number, of_group in sids.items():
            if way == "fewer":
                client.feed(b"UNSUB %b\r\n" % of_group.pop())
            else:
                of_group.append(b"%d.%d" % (number, len(of_group)))
                client.feed(b"SUB g.%d q %b\r\n" % (number, of_group[-1]))
        cluster.settle()
        told.read_on()
        now = {(b"g.%d" % number, b"q"): len(of_group) for number, of_group in sids.items()}
        assert all(now[key] == members for key, members in told.known.items())
    assert told.known == now
    end.link.leave()
    cluster.close()


def connecting(cluster: Members, kind: Literal["route", "leaf"] = "route", most: int = 0) -> ToldInterest:
    """A server that is being told of 3000 subjects, in turns of 100."""
    member = cluster.members[0]
    member.clients[0].feed(b"".join(b"SUB many.%d %d\r\n" % (number, number) for number in range(3000)))
    cluster.settle()
    member.mesh.work_in_turns(GATEWAY_NUMBER, 100)
    end = RouteEnd(member.mesh.engines[GATEWAY_NUMBER], member.exchange, kind=kind)
    verb = b"RS+ $G" if kind == "route" else b"LS+"
    end.link.begin(most)
    end.engine.probe.feed(end.socket, verb + b" there\r\n")
    cluster.settle()
    return ToldInterest(end)


def test_to_tell_a_server_all_interest_takes_turns():
    cluster = Members(1, fenced=False)
    told = connecting(cluster)
    mesh = cluster.members[0].mesh
    pieces = [told.read_on()]
    while mesh.work(GATEWAY_NUMBER):
        pieces.append(told.read_on())
    assert sum(pieces) == 3000
    assert max(pieces) < 170
    told.end.link.leave()
    cluster.close()


def test_what_else_a_server_is_sent_comes_in_order_behind_the_interest_that_it_is_being_told():
    """Who gets a message may answer it at once, or publish what somebody has just subscribed to."""
    cluster = Members(1, fenced=False)
    told = connecting(cluster)
    mesh = cluster.members[0].mesh
    publisher, subscriber = cluster.members[0].clients[:2]
    n = 0
    while mesh.work(GATEWAY_NUMBER) or not n:
        told.read_on()
        subscriber.feed(b"SUB inbox.%d i%d\r\n" % (n, n))
        publisher.feed(b"PUB there inbox.%d 2\r\n%02d\r\n" % (n, n))
        told.end.engine.probe.feed(told.end.socket, b"PING\r\n")
        cluster.settle()
        n += 1
    told.end.link.ping()
    told.read_on()
    assert n > 10
    assert told.known_before[0] >= 3000 + n - 1
    pongs = [line for line in told.others if line == b"PONG"]
    assert len(pongs) == n
    assert [line for line in told.others if line != b"PONG"] == [
        one for number in range(n) for one in (b"RMSG $G there inbox.%d 2" % number, b"%02d" % number)
    ] + [b"PING"]
    told.end.link.leave()
    cluster.close()


def test_who_is_told_interest_and_is_sent_too_much_meanwhile_stalls_publishers_and_is_closed_as_a_slow_consumer():
    cluster = Members(1, fenced=False)
    told = connecting(cluster, "leaf", 1_000_000)
    mesh = cluster.members[0].mesh
    publisher = cluster.members[0].clients[0]
    waited = []
    for _ in range(11):
        assert told.end.socket.close_reason == 0
        publisher.feed(b"PUB there 99000\r\n%b\r\n" % (b"x" * 99_000))
        cluster.settle()
        waited.append(publisher.socket.is_stalled)
        mesh.engines[0].probe.release_stalls()
    print(waited)
    assert waited == [False] * 7 + [True] * 4
    assert told.end.socket.close_reason == CloseReason.SLOW_CONSUMER_PENDING_BYTES
    told.end.link.leave()
    while mesh.work(GATEWAY_NUMBER):
        pass
    cluster.close()


def test_a_connection_that_ends_while_its_server_is_told_interest_is_told_no_more():
    cluster = Members(1, fenced=False)
    told = connecting(cluster)
    mesh = cluster.members[0].mesh
    exchange = cluster.members[0].exchange
    free = exchange.free_slots()
    publisher = cluster.members[0].clients[0]
    assert mesh.work(GATEWAY_NUMBER)
    publisher.feed(b"PUB there 1\r\nx\r\n")
    cluster.settle()
    told.end.link.leave()
    while mesh.work(GATEWAY_NUMBER):
        pass
    told.read_on()
    assert len(told.known) < 1000 and told.others == []
    publisher.feed(b"UNSUB 1\r\nSUB more 1\r\n")
    cluster.settle()
    again = server(cluster, "route")
    while mesh.work(GATEWAY_NUMBER):
        pass
    after = ToldInterest(again)
    after.read_on()
    assert len(after.known) == 3000 and exchange.free_slots() == free
    again.link.leave()
    cluster.close()


@pytest.mark.parametrize("how", ["leaves", "is closed"])
def test_what_a_server_was_sent_goes_out_where_the_gateway_ends_while_it_is_told_interest(how: str):
    cluster = Members(1, fenced=False)
    told = connecting(cluster)
    member = cluster.members[0]
    member.clients[0].feed(b"PUB there 1\r\nx\r\n")
    cluster.settle()
    told.read_on()
    assert told.others == []
    if how == "leaves":
        member.exchange.hush()
    else:
        told.end.link.end()
    told.read_on()
    assert told.others == [b"RMSG $G there 1", b"x"]
    assert len(told.known) < 1000
    told.end.link.leave()
    while member.mesh.work(GATEWAY_NUMBER):
        pass
    cluster.close()


def test_a_reply_that_another_account_waits_for_is_told_once_to_a_server_that_is_being_told_interest():
    """It is told of the prefix before the request; a subscription to just that is nothing new for it."""
    cluster = Members(1, fenced=False)
    subscriber = cluster.members[0].clients[1]
    subscriber.feed(b"SUB _R_.p.> 1\r\n")
    told = connecting(cluster, "leaf")
    mesh = cluster.members[0].mesh
    route = server(cluster, "route")
    route.engine.probe.feed(route.socket, b"RMSG $G there _R_.p.1 1\r\nx\r\n")
    cluster.settle()
    while mesh.work(GATEWAY_NUMBER):
        told.read_on()
    told.read_on()
    assert told.known[b"_R_.p.>", b""] == 1
    subscriber.feed(b"UNSUB 1\r\n")
    cluster.settle()
    told.read_on()
    assert told.known[b"_R_.p.>", b""] == 1  # the reply is still due
    route.link.leave()
    told.end.link.leave()
    cluster.close()


def test_a_reload_of_the_system_account_counts_for_a_server_that_is_being_told_interest():
    """What shards answer is told as plain interest there, and plain subscriptions beside that change nothing."""
    cluster = Members(1, fenced=False)
    member = cluster.members[0]
    shard = member.clients[1]
    both = [b"$SYS.REQ.%d" % number for number in range(20)]
    for number, subject in enumerate(both):
        shard.connection.post(b"SUB %b _sys_ q%d\r\nSUB %b p%d\r\n" % (subject, number, subject, number))
    shard.connection.post(b"SUB $SYS.REQ.A _sys_ a\r\n")
    told = connecting(cluster)
    for _ in range(15):  # it has been told of some of them, and of no group
        assert member.mesh.work(GATEWAY_NUMBER)

    def of_shards() -> dict[tuple[bytes, bytes], int]:
        told.read_on()
        return {key: members for key, members in told.known.items() if key[0].startswith(b"$SYS")}

    assert 0 < len(of_shards()) < len(both)
    member.exchange.set_system_account(b"$G")
    while member.mesh.work(GATEWAY_NUMBER):
        pass
    assert of_shards() == {(subject, b""): 1 for subject in (*both, b"$SYS.REQ.A")}
    member.exchange.set_system_account(b"")
    groups = {(subject, b"_sys_"): 1 for subject in (*both, b"$SYS.REQ.A")}
    assert of_shards() == groups | {(subject, b""): 1 for subject in both}
    told.end.link.leave()
    cluster.close()


def test_a_gateway_withdraws_much_interest_in_turns_and_what_ends_meanwhile_ends():
    cluster = Members(1, shards=2, fenced=False)
    member = cluster.members[0]
    publisher = member.clients[0]
    told = [b"RS+ $G many.%d" % number for number in range(300)] + [b"RS+ $G many.%d q 2" % n for n in range(300)]
    route = server(cluster, "route", *told)
    member.mesh.work_in_turns(GATEWAY_NUMBER, 20)
    known: list[bool] = []
    member.exchange.withdraw(lambda: known.append(True))
    turns = 0
    while member.mesh.work(GATEWAY_NUMBER):
        assert not known
        turns += 1
        route.engine.probe.feed(route.socket, b"RS- $G many.%d\r\nRS- $G many.%d q\r\n" % (turns, turns + 50))
        route.engine.probe.feed(route.socket, b"RS+ $G late.%d\r\nRS+ $G many.%d q 3\r\n" % (turns, turns + 90))
        cluster.settle()
    assert turns > 10 and known
    publisher.feed(b"SUB none 1\r\n")
    for number in range(300):
        publisher.feed(b"PUB many.%d none 0\r\n\r\n" % number)
    for number in range(1, turns):
        publisher.feed(b"PUB late.%d none 0\r\n\r\n" % number)
    cluster.settle()
    assert len(publisher.messages()) == 300 + turns - 1  # no responders
    route.link.leave()
    cluster.close()


def broken_and_told_in_turns(cluster: Members, meanwhile: Callable[[], None]) -> None:
    """The link of shard 0 and the gateway breaks.

    Shard 0 has told its interest when `meanwhile` is called, the gateway nothing yet; in the end it has, too.
    """
    mesh = cluster.members[0].mesh

    def drop() -> None:
        while mesh.work(GATEWAY_NUMBER):
            pass

    mesh.work_in_turns(GATEWAY_NUMBER, 20)
    mesh.break_link(0, GATEWAY_NUMBER, drop)
    while mesh.carry(0, GATEWAY_NUMBER, 1 << 30):
        pass
    meanwhile()
    mesh.carry(GATEWAY_NUMBER, 0, 1 << 30)
    for _ in range(5):
        while mesh.work(GATEWAY_NUMBER):
            pass
        cluster.settle()


def test_a_link_gets_in_step_though_what_came_over_it_waits_for_that():
    """The PONG that it waits for waited for a queue message, and that for the link: the shard ended then."""
    cluster = Members(1, fenced=False)
    member = cluster.members[0]
    client = member.clients[0]
    end = server(cluster, "route")
    client.feed(b"SUB a q 1\r\n")
    cluster.settle()

    def meanwhile() -> None:
        end.engine.probe.feed(end.socket, b"RMSG $G a | q 1\r\nx\r\n")
        client.close()  # the only member

    broken_and_told_in_turns(cluster, meanwhile)
    assert all(member.mesh.ends[way].is_synchronised for way in ((0, GATEWAY_NUMBER), (GATEWAY_NUMBER, 0)))
    assert not any(engine.probe.reroutes.n_pending for engine in member.mesh.engines.values())
    cluster.close()


def test_a_server_s_pong_does_not_wait_for_a_shard_that_was_just_started():
    """Nobody is connected there before it has heard all, which takes a while where there is much."""
    cluster = Members(1, fenced=False)
    mesh = cluster.members[0].mesh
    end = server(cluster, "route")
    end.engine.probe.feed(end.socket, b"".join(b"RS+ $G many.%d\r\n" % n for n in range(200)))
    cluster.settle()
    mesh.work_in_turns(GATEWAY_NUMBER, 20)
    mesh.add(5, is_new=True)
    begin = len(end.socket.sent)
    end.engine.probe.feed(end.socket, b"PING\r\n")
    cluster.settle()
    assert not mesh.ends[GATEWAY_NUMBER, 5].is_synchronised
    assert bytes(end.socket.sent[begin:]) == b"PONG\r\n"
    while not mesh.ends[GATEWAY_NUMBER, 5].is_synchronised:
        mesh.work(GATEWAY_NUMBER)
        cluster.settle()
    cluster.close()


@pytest.mark.parametrize(
    ("names_origins", "lines", "is_left"),
    [
        (True, [b"LS+ EDGE NEW a", b"LS- EDGE NEW a"], False),
        (False, [b"LS+ EDGE NEW a", b"LS- NEW a"], False),
        (False, [b"LS+ EDGE NEW a", b"RS- NEW a"], False),
        (False, [b"RS+ NEW a", b"LS- NEW a"], False),
        (False, [b"LS+ EDGE NEW a q 1", b"LS- NEW a q"], False),
        (False, [b"LS+ EDGE NEW a q 1", b"RS+ NEW a q 2", b"LS+ EDGE NEW a q 1"], True),
    ],
)
@pytest.mark.parametrize("is_known", [True, False])
def test_interest_in_an_account_not_known_yet_is_as_if_it_had_been(
    names_origins: bool, lines: list[bytes], is_left: bool, is_known: bool
):
    """nats-server before 2.10 says the end of a leaf node's interest without its cluster's name."""
    cluster = Members(1, fenced=False)
    gateway = cluster.members[0].mesh.engines[GATEWAY_NUMBER]
    end = server(cluster, "route")
    end.link.takes_origins, end.link.names_origins = True, names_origins
    mesh = gateway.probe.mesh
    assert mesh is not None
    if is_known:
        mesh.account(b"NEW")
    for line in lines:
        end.engine.probe.feed(end.socket, line + b"\r\n")
    mesh.account(b"NEW")
    end.link.take_accounts()
    cluster.settle()
    _, told = gone_through(cluster.members[0].exchange.interest_of_member(end.link.slot, 10))
    assert (bool(told), end.link.subscriptions) == (is_left, int(is_left))
    cluster.close()


@pytest.mark.parametrize("how", ["dies", "link breaks"])
def test_a_shard_s_end_takes_back_no_reply_subject_of_another_broker_s_shard_of_that_number(how: str):
    cluster = Members(1, fenced=False)
    mesh = cluster.members[0].mesh
    asker, leaf = server(cluster, "route"), server(cluster, "leaf")
    leaf.engine.probe.feed(leaf.socket, b"LS+ service\r\n")
    cluster.settle()
    asker.engine.probe.feed(asker.socket, b"RMSG $G service _R_.00OtherBrk.0000token 1\r\n?\r\n")
    cluster.settle()
    assert b"LS+ _R_.00OtherBrk.>\r\n" in bytes(leaf.socket.sent)
    begin = len(leaf.socket.sent)
    if how == "dies":
        mesh.kill(0)
    else:
        mesh.break_link(0, GATEWAY_NUMBER)
    cluster.settle()
    assert b"_R_" not in bytes(leaf.socket.sent[begin:])
    cluster.close()


def test_no_server_is_read_while_a_link_to_a_shard_is_missing():
    cluster = Members(1, fenced=False)
    exchange = cluster.members[0].exchange
    client = cluster.members[0].clients[0]
    end = server(cluster, "route")
    client.feed(b"SUB a 1\r\n")
    cluster.settle()
    exchange.hold()
    late = server(cluster, "route")
    for one in (end, late):
        one.engine.probe.feed(one.socket, b"RMSG $G a 1\r\n1\r\nRMSG $G a 1\r\n2\r\n")
    cluster.settle()
    assert client.messages() == []
    exchange.go_on()
    cluster.settle()
    assert [body for _, body in client.messages()] == [b"1", b"2"] * 2
    cluster.close()
