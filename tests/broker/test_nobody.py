"""A request that was sent to another shard, where nobody took it: its client is told that nobody responds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gnatswarm.broker import options, rules
from gnatswarm.broker.link import SiblingLink
from gnatswarm.broker.permissions import Permissions
from gnatswarm.broker.service_imports import ServiceImports
from gnatswarm.shards.clients.message_tracing import MessageTracing
from tests.support.engine import NO_ECHO, NO_RESPONDERS, QUIET, EngineClient, frames
from tests.support.mesh import Mesh, of_account

NOBODY = b"HMSG inbox 9 16 16\r\nNATS/1.0 503\r\n\r\n\r\n"


@pytest.fixture
def make() -> Iterator[Callable[..., Mesh]]:
    made = []

    def make(shards: int = 2, connect: bytes = NO_RESPONDERS) -> Mesh:
        made.append(Mesh(shards, connect=connect))
        return made[-1]

    yield make
    for mesh in made:
        mesh.settle()
        assert not any(end.broken for end in mesh.ends.values())
        assert all(engine.probe.reroutes.n_pending == 0 for engine in mesh.engines.values())
        mesh.close()


def client_of(mesh: Mesh, shard: int, which: int = 0) -> EngineClient:
    return mesh.clients[2 * shard + which]


def asker_of(mesh: Mesh) -> EngineClient:
    """A client of shard 0 that listens to its inbox."""
    asker = client_of(mesh, 0)
    asker.feed(b"SUB inbox 9\r\n")
    return asker


@pytest.mark.parametrize("queue", [b"", b"q"], ids=["plain", "group"])
@pytest.mark.parametrize("connect", [NO_RESPONDERS, NO_ECHO], ids=["echo", "no echo"])
def test_the_only_responder_has_just_had_its_max(make: Callable[..., Mesh], queue: bytes, connect: bytes) -> None:
    mesh = make(connect=connect)
    asker, responder = asker_of(mesh), client_of(mesh, 1, 1)  # (numbers of clients are unique in a broker)
    responder.feed(b"SUB a %b 1\r\nUNSUB 1 1\r\n" % queue)
    mesh.settle()
    asker.feed(b"PUB a inbox 1\r\n1\r\nPUB a inbox 1\r\n2\r\nPUB a inbox 1\r\n3\r\nPING\r\n")
    mesh.settle()
    assert responder.messages() == [(b"1", b"1")]
    assert asker.take() == 2 * NOBODY + b"PONG\r\n", "in front of the PONG, as on one shard"


def test_what_was_sent_on_and_found_nobody(make: Callable[..., Mesh]) -> None:
    """The message goes on to a third shard, whose member has gone as well."""
    mesh = make(3)
    asker, first, second = asker_of(mesh), client_of(mesh, 1), client_of(mesh, 2)
    first.feed(b"SUB a q 1\r\n")
    mesh.settle()
    asker.feed(b"PUB a inbox 1\r\n1\r\nPING\r\n")
    second.feed(b"SUB a q 1\r\n")
    mesh.carry_all((2, 1))
    first.close()
    second.close()
    mesh.settle()
    assert asker.take() == NOBODY + b"PONG\r\n"


def test_a_deny_rule_keeps_the_only_subscriber_from_it(make: Callable[..., Mesh]) -> None:
    mesh = make()
    asker, denied = asker_of(mesh), client_of(mesh, 1)
    denied.connection.enter(mesh.engines[1].probe.sublist, Permissions(options.Permissions(subscribe_deny=("x.no",))))
    denied.feed(b"SUB x.* 1\r\n")
    mesh.settle()
    asker.feed(b"PUB x.no inbox 1\r\n?\r\nPING\r\n")
    mesh.settle()
    assert asker.take() == NOBODY + b"PONG\r\n"


def denied_at(mesh: Mesh, shard: int) -> EngineClient:
    """A client of this shard that is subscribed to x.*, and may not have x.no."""
    denied = client_of(mesh, shard)
    rules = Permissions(options.Permissions(subscribe_deny=("x.no",)))
    denied.connection.enter(mesh.engines[shard].probe.sublist, rules)
    denied.feed(b"SUB x.* 1\r\n")
    return denied


def test_a_reply_subject_that_is_used_for_all_requests_does_not_mix_them_up(make: Callable[..., Mesh]) -> None:
    """The first request has its answer, from the shard that has nobody for the second one."""
    mesh = make(3)
    asker, there = asker_of(mesh), client_of(mesh, 2)
    denied = denied_at(mesh, 1)
    there.feed(b"SUB x.no 1\r\n")
    mesh.settle()
    asker.feed(b"PUB x.ok inbox 1\r\n1\r\nPUB x.no inbox 1\r\n2\r\nPING\r\n")
    mesh.settle()
    assert denied.messages() == [(b"1", b"1")] and there.messages() == [(b"1", b"2")]
    assert asker.take() == b"PONG\r\n"


def test_one_reply_subject_for_requests_that_go_to_several_shards_and_reach_nobody(make: Callable[..., Mesh]) -> None:
    mesh = make(3)
    asker, first, second = asker_of(mesh), client_of(mesh, 1), client_of(mesh, 2)
    first.feed(b"SUB a 1\r\nUNSUB 1 1\r\n")
    second.feed(b"SUB b 1\r\nUNSUB 1 1\r\n")
    mesh.settle()
    asker.feed(b"PUB a 0\r\n\r\nPUB b 0\r\n\r\nPUB a inbox 0\r\n\r\nPUB b inbox 0\r\n\r\nPING\r\n")
    mesh.settle()
    assert asker.take() == 2 * NOBODY + b"PONG\r\n"


def test_one_subject_and_one_reply_for_requests_that_go_to_other_shards_each_time(make: Callable[..., Mesh]) -> None:
    mesh = make(4)
    asker, first, second = asker_of(mesh), client_of(mesh, 2), client_of(mesh, 3)
    denied_at(mesh, 1)
    first.feed(b"SUB x.no 1\r\nUNSUB 1 1\r\n")
    mesh.settle()
    asker.feed(b"PUB x.no inbox 1\r\n1\r\nPING\r\n")
    mesh.settle()
    assert asker.take() == b"PONG\r\n" and first.messages() == [(b"1", b"1")]
    first.feed(b"SUB x.no 1\r\nUNSUB 1 1\r\n")
    second.feed(b"SUB x.no 1\r\n")
    mesh.settle()
    asker.feed(b"PUB x.no 1\r\n2\r\nPUB x.no inbox 1\r\n3\r\nPING\r\n")
    mesh.settle()
    assert second.messages() == [(b"1", b"2"), (b"1", b"3")]
    assert asker.take() == b"PONG\r\n"
    second.feed(b"UNSUB 1\r\n")
    mesh.settle()
    asker.feed(2 * b"PUB x.no inbox 1\r\n4\r\n" + b"PING\r\n")
    mesh.settle()
    assert asker.take() == 2 * NOBODY + b"PONG\r\n"


def test_a_link_rests_while_it_says_none_to_a_reply_that_many_listen_to(make: Callable[..., Mesh]) -> None:
    mesh = make()
    asker, others = client_of(mesh, 0), client_of(mesh, 0, 1)
    denied_at(mesh, 1)
    others.feed(b"".join(b"SUB inbox %d\r\n" % sid for sid in range(2000)))
    asker.feed(b"SUB inbox 9\r\n")
    mesh.settle()
    resting: list[SiblingLink] = []
    link = mesh.ends[0, 1].link
    assert link is not None
    link.rest_with(resting.append)
    asker.feed(b"".join(b"PUB x.no inbox 3\r\n%03d\r\n" % n for n in range(300)))
    rests = 0
    mesh.settle()
    while resting:
        rests += 1
        resting.pop().has_rested()
        mesh.settle()
    assert asker.take().count(b"503") == 300
    assert rests >= 300 * 2000 // 100_000


def test_an_asker_with_two_subscriptions_to_its_reply_is_told_once(make: Callable[..., Mesh]) -> None:
    mesh = make()
    asker, responder = asker_of(mesh), client_of(mesh, 1)
    asker.feed(b"SUB inbox 8\r\n")
    responder.feed(b"SUB a 1\r\nUNSUB 1 1\r\n")
    mesh.settle()
    asker.feed(b"PUB a 0\r\n\r\nPUB a inbox 1\r\n1\r\n")
    mesh.settle()
    assert asker.take().count(b"503") == 1


def test_who_got_it_elsewhere_counts(make: Callable[..., Mesh]) -> None:
    mesh = make(3)
    asker, here, gone, there = asker_of(mesh), client_of(mesh, 0, 1), client_of(mesh, 1), client_of(mesh, 2)
    gone.feed(b"SUB a q 1\r\nUNSUB 1 1\r\n")
    here.feed(b"SUB a 1\r\n")
    mesh.settle()
    asker.feed(b"PUB a inbox 1\r\n1\r\nPUB a inbox 1\r\n2\r\nPING\r\n")
    mesh.settle()
    assert asker.take() == b"PONG\r\n"
    here.feed(b"UNSUB 1\r\n")
    there.feed(b"SUB a 1\r\n")
    gone.feed(b"SUB a q 2\r\nUNSUB 2 1\r\n")
    mesh.settle()
    asker.feed(b"PUB a inbox 1\r\n1\r\nPUB a inbox 1\r\n2\r\nPING\r\n")
    mesh.settle()
    assert asker.take() == b"PONG\r\n"


@pytest.mark.parametrize("first", [1, 2])
def test_one_of_two_siblings_has_nobody(make: Callable[..., Mesh], first: int) -> None:
    mesh = make(3)
    asker, gone, there = asker_of(mesh), client_of(mesh, first), client_of(mesh, 3 - first)
    gone.feed(b"SUB a 1\r\nUNSUB 1 1\r\n")
    there.feed(b"SUB a 1\r\n")
    mesh.settle()
    asker.feed(b"PUB a inbox 1\r\n1\r\nPUB a inbox2 1\r\n2\r\nPING\r\n")
    mesh.settle()
    assert asker.take() == b"PONG\r\n"
    there.feed(b"UNSUB 1\r\nSUB a 2\r\nUNSUB 2 1\r\n")
    gone.feed(b"SUB a 2\r\nUNSUB 2 1\r\n")
    mesh.settle()
    asker.feed(b"PUB a 0\r\n\r\nPUB a inbox 1\r\n2\r\nPING\r\n")
    mesh.settle()
    assert asker.take() == NOBODY + b"PONG\r\n", "both have said so"


def test_a_group_is_served_and_a_plain_subscription_has_had_its_max(make: Callable[..., Mesh]) -> None:
    """A publisher without echo: the sibling hears of each in a frame of its own."""
    mesh = make(connect=NO_ECHO)
    asker, member, plain = asker_of(mesh), client_of(mesh, 1, 1), client_of(mesh, 1)
    member.feed(b"SUB a q 1\r\n")
    plain.feed(b"SUB a 1\r\nUNSUB 1 1\r\n")
    mesh.settle()
    asker.feed(b"PUB a 0\r\n\r\nPUB a inbox 1\r\n2\r\nPING\r\n")
    mesh.settle()
    assert asker.take() == b"PONG\r\n"


def test_nobody_but_the_asker_is_told(make: Callable[..., Mesh]) -> None:
    mesh = make()
    asker, other, responder = asker_of(mesh), client_of(mesh, 0, 1), client_of(mesh, 1)
    other.feed(b"SUB > 1\r\n")
    responder.feed(b"SUB a q 1\r\nUNSUB 1 1\r\n")
    careless = mesh.engines[0].client(QUIET)
    mesh.clients.append(careless)
    careless.feed(b"SUB careless 1\r\n")
    mesh.settle()
    other.feed(b"UNSUB 1\r\nSUB inbox 1\r\n")
    asker.feed(b"PUB a inbox 1\r\n1\r\nPUB a inbox 1\r\n2\r\n")
    careless.feed(b"PUB a careless 1\r\n3\r\n")
    mesh.settle()
    assert asker.take() == NOBODY
    assert other.take() == careless.take() == b""


@pytest.mark.parametrize("connect", [NO_RESPONDERS, NO_ECHO], ids=["echo", "no echo"])
@pytest.mark.parametrize("where", [(1, 1), (1, 2)], ids=["one sibling", "two siblings"])
@pytest.mark.parametrize("has_plain", [False, True], ids=["groups", "and plain"])
@pytest.mark.parametrize("served", ["", "q", "r", "plain"])
def test_of_several_groups_and_plain_subscriptions_one_that_gets_it_is_enough(
    make: Callable[..., Mesh], connect: bytes, where: tuple[int, int], has_plain: bool, served: str
) -> None:
    """All others have just had their max. Without echo a sibling hears of groups and of the rest in two frames.

    (Numbers of clients are unique in a broker: the others are not the first of their shards, as the asker is.)
    """
    mesh = make(3, connect)
    asker = asker_of(mesh)
    for group, shard in zip(("q", "r"), where, strict=True):
        client_of(mesh, shard, 1).feed(b"SUB a %s %s\r\n" % (group.encode(), group.encode()))
        if group != served:
            client_of(mesh, shard, 1).feed(b"UNSUB %s 1\r\n" % group.encode())
    if has_plain:
        client_of(mesh, where[0], 1).feed(b"SUB a 3\r\n" + b"UNSUB 3 1\r\n" * (served != "plain"))
    mesh.settle()
    asker.feed(b"PUB a 0\r\n\r\n" + b"PUB a inbox 1\r\n1\r\n" * 3 + b"PING\r\n")
    mesh.settle()
    is_served = served in ("q", "r") or (served == "plain" and has_plain)
    assert asker.take() == (b"" if is_served else 3 * NOBODY) + b"PONG\r\n"


@pytest.mark.parametrize("is_served", [False, True])
def test_what_was_sent_on_to_several_groups_and_found_nobody(make: Callable[..., Mesh], is_served: bool) -> None:
    """Of two groups both messages go on to a third shard, whose members have gone as well, or one of them."""
    mesh = make(3)
    asker, first, second, other = asker_of(mesh), client_of(mesh, 1), client_of(mesh, 2), client_of(mesh, 2, 1)
    first.feed(b"SUB a q 1\r\nSUB a r 2\r\n")
    mesh.settle()
    asker.feed(b"PUB a inbox 1\r\n1\r\nPING\r\n")
    second.feed(b"SUB * q 1\r\nUNSUB 1 1\r\nSUB a r 2\r\n")
    mesh.carry_all((2, 1))
    first.close()
    other.feed(b"PUB z 0\r\n\r\n")  # which is its max
    if not is_served:
        second.close()
    mesh.settle()
    assert asker.take() == (b"" if is_served else NOBODY) + b"PONG\r\n"


@pytest.mark.parametrize("served", [0, 64, None])
@pytest.mark.parametrize("connect", [NO_RESPONDERS, NO_ECHO], ids=["echo", "no echo"])
def test_of_more_groups_than_one_frame_names_one_that_gets_it_is_enough(
    make: Callable[..., Mesh], connect: bytes, served: int | None
) -> None:
    """They go in several frames: nobody has got it where all say so."""
    mesh = make(connect=connect)
    asker, responder = asker_of(mesh), client_of(mesh, 1, 1)  # (numbers of clients are unique in a broker)
    n = 65
    responder.feed(b"".join(b"SUB a q%d %d\r\n" % (group, group) for group in range(n)))
    responder.feed(b"".join(b"UNSUB %d 1\r\n" % group for group in range(n) if group != served))
    mesh.settle()
    asker.feed(b"PUB a 0\r\n\r\nPUB a inbox 1\r\n1\r\nPING\r\n")
    mesh.settle()
    assert asker.take() == (NOBODY if served is None else b"") + b"PONG\r\n"


@pytest.mark.parametrize("queue", [b"", b"q"], ids=["plain", "group"])
def test_the_last_of_a_run_of_requests_find_nobody(make: Callable[..., Mesh], queue: bytes) -> None:
    """A run that is read at once: the responder's max is reached in it."""
    mesh = make()
    asker, responder = asker_of(mesh), client_of(mesh, 1)
    responder.feed(b"SUB a %b 1\r\nUNSUB 1 3\r\n" % queue)
    mesh.settle()
    asker.feed(b"PUB a inbox 1\r\n1\r\n" * 6 + b"PING\r\n")
    mesh.settle()
    assert len(responder.messages()) == 3
    assert asker.take() == 3 * NOBODY + b"PONG\r\n"


@pytest.mark.parametrize("first", [1, 2], ids=["the first", "the last"])
def test_none_of_the_same_request_that_went_elsewhere_is_not_for_this_one(
    make: Callable[..., Mesh], first: int
) -> None:
    """Two requests with one subject and one reply, each to one of two groups' members: the other one has its answer."""
    mesh = make(3)
    asker, gone, there = asker_of(mesh), client_of(mesh, first), client_of(mesh, 3 - first)
    gone.feed(b"SUB a q 1\r\nUNSUB 1 1\r\n")
    mesh.settle()
    asker.feed(b"PUB a 0\r\n\r\nPUB a inbox 1\r\n1\r\n")  # the second will find nobody
    mesh.carry_all((0, first))
    there.feed(b"SUB a q 1\r\n")
    mesh.carry_all((3 - first, 0))
    mesh.carry_all((first, 0))
    assert asker.take() == NOBODY
    asker.feed(b"PUB a inbox 1\r\n2\r\nPING\r\n")
    mesh.settle()
    assert there.messages()[-1] == (b"1", b"2")
    assert asker.take() == b"PONG\r\n"


def test_every_request_of_many_that_are_on_their_way_is_told(make: Callable[..., Mesh]) -> None:
    """Requests that are not acknowledged are not forgotten, however many; the link is asked to acknowledge them."""
    mesh = make()
    asker, kept = asker_of(mesh), mesh.engines[0].probe.fanout
    denied = denied_at(mesh, 1)
    mesh.settle()
    for n in range(3000):
        asker.feed(b"PUB x.%b inbox 4\r\n%04d\r\n" % (b"no" if n % 3 else b"ok", n))
    assert kept.n_asked == 3000
    mesh.settle()
    assert asker.take() == 2000 * NOBODY
    assert len(denied.messages()) == 1000
    for n in range(3000):
        asker.feed(b"PUB x.no inbox 4\r\n%04d\r\n" % n)
        mesh.settle()
        assert kept.n_asked < 1024 or n == 0
    assert asker.take() == 3000 * NOBODY
    asker.feed(b"PING\r\n")
    mesh.settle()
    assert kept.n_asked == 0


def test_it_is_known_whose_request_each_is_of_many_that_go_behind_acknowledged_ones(make: Callable[..., Mesh]) -> None:
    """Of two clients in turns, more are on their way than there was room for; the oldest is not first there."""
    mesh = make()
    asker, other = asker_of(mesh), client_of(mesh, 0, 1)
    other.feed(b"SUB inbox 8\r\n")
    denied_at(mesh, 1)
    mesh.settle()
    asker.feed(10 * b"PUB x.ok inbox 0\r\n\r\n" + b"PING\r\n")
    mesh.settle()
    asker.take()
    mine, theirs = 0, 0
    for number in range(200):
        client = other if number % 3 else asker
        mine, theirs = mine + (client is asker), theirs + (client is other)
        client.feed(b"PUB x.no inbox 0\r\n\r\n")
    mesh.settle()
    assert asker.take() == mine * NOBODY
    assert other.take() == theirs * NOBODY.replace(b"inbox 9", b"inbox 8")


def test_what_is_kept_of_requests_to_other_accounts_is_bounded_by_their_size(make: Callable[..., Mesh]) -> None:
    mesh = make()
    with_services(mesh)
    of_account(mesh, 1, b"A", b"SUB s.* 1\r\n")
    asker, kept = of_account(mesh, 0, b"B", b""), mesh.engines[0].probe.fanout
    for n in range(1000):
        asker.feed(b"PUB s.%s inbox 2\r\n%02d\r\n" % (3000 * b"x", n % 100))
        mesh.settle()
        assert kept.n_asked < 400
    mesh.break_link(0, 1)
    assert kept.n_asked == 0, "and not longer than their link is there"
    mesh.settle()


def test_a_request_of_who_wants_no_echo_that_is_repeated_word_for_word(make: Callable[..., Mesh]) -> None:
    mesh = make(connect=NO_ECHO)
    asker, responder = asker_of(mesh), client_of(mesh, 1, 1)
    responder.feed(b"SUB a q 1\r\nUNSUB 1 2\r\n")
    mesh.settle()
    asker.feed(b"PUB a inbox 1\r\n1\r\n" * 6 + b"PING\r\n")
    mesh.settle()
    assert len(responder.messages()) == 2
    assert asker.take() == 4 * NOBODY + b"PONG\r\n"


# ---- requests to other accounts


def with_services(mesh: Mesh) -> list[ServiceImports]:
    """B imports the services s.* of A, and what A has of the other name, on all shards."""
    made = []
    for shard, engine in mesh.engines.items():
        there = engine.probe.mesh
        assert there is not None
        engine.probe.fanout.gate = crossing = ServiceImports(engine.probe.fanout, shard, adds_headers=False)
        there.set_reply_prefix(crossing.reply_prefix)
        a, b = there.account(b"A"), there.account(b"B")
        kind = rules.RESPONSE_KINDS["singleton"]
        b.set_rules([], [rules.ServiceImport(b, a, b"s.*", b"s.*", kind, 120_000_000)])
        made.append(crossing)
    return made


@pytest.mark.parametrize("queue", [b"", b"q"], ids=["plain", "group"])
def test_the_last_responder_in_another_account_has_just_had_its_max(make: Callable[..., Mesh], queue: bytes) -> None:
    mesh = make(3)
    services = with_services(mesh)
    responder = of_account(mesh, 1, b"A", b"SUB s.1 %b 1\r\nUNSUB 1 1\r\n" % queue)
    asker = of_account(mesh, 0, b"B", b"SUB inbox 9\r\n")
    asker.feed(b"PUB s.1 inbox 1\r\n1\r\nPUB s.1 inbox 1\r\n2\r\nPING\r\n")
    mesh.settle()
    assert len(responder.messages()) == 1
    assert asker.take() == NOBODY + b"PONG\r\n", "on the subject on which it waits"
    assert services[0].waiting == 1, "the other one may get no answer any more"


@pytest.mark.parametrize("served", ["", "A", "B"])
def test_a_request_in_two_accounts_is_nobodys_where_neither_has_anybody(make: Callable[..., Mesh], served: str) -> None:
    mesh = make(3)
    with_services(mesh)
    once = b"SUB s.1 1\r\nUNSUB 1 1\r\n"
    of_account(mesh, 1, b"A", once if served != "A" else b"SUB s.1 1\r\n")
    of_account(mesh, 2, b"A", once)
    of_account(mesh, 1, b"B", once if served != "B" else b"SUB s.1 1\r\n")
    asker = of_account(mesh, 0, b"B", b"SUB inbox 9\r\n")
    asker.feed(b"PUB s.1 0\r\n\r\nPUB s.1 inbox 1\r\n2\r\nPING\r\n")
    mesh.settle()
    assert asker.take() == (b"" if served else NOBODY) + b"PONG\r\n"


def test_who_has_only_imported_a_stream_of_the_exporter_is_no_responder(make: Callable[..., Mesh]) -> None:
    """Siblings are told of such interest, and not that it is a third account's."""
    mesh = make()
    with_services(mesh)
    for engine in mesh.engines.values():
        there = engine.probe.mesh
        assert there is not None
        there.account(b"C").streams = [rules.StreamImport(there.account(b"A"), b"s.>", b"s.>")]
    of_account(mesh, 1, b"C", b"SUB s.> 1\r\n")
    asker = of_account(mesh, 0, b"B", b"SUB inbox 9\r\nPUB s.1 inbox 1\r\n2\r\nPING\r\n")
    assert asker.take() == NOBODY + b"PONG\r\n"


# ---- traced requests


class Documents:
    """In the place of a shard's System: there are documents."""

    def named(self) -> dict[str, str]:
        """The member `server` of a document."""
        return {}

    def say_soon(self, account: str, subject: bytes, document: bytes, header: bytes) -> None:
        """Nobody reads them."""


@pytest.mark.parametrize("connect", [NO_RESPONDERS, NO_ECHO], ids=["echo", "no echo"])
@pytest.mark.parametrize("served", [b"", b"q", b"r", b"plain"])
def test_a_traced_request_is_nobodys_where_each_frame_finds_nobody(
    make: Callable[..., Mesh], connect: bytes, served: bytes
) -> None:
    mesh = make(3, connect)
    told: Any = Documents()
    for engine in mesh.engines.values():
        assert engine.probe.mesh is not None
        engine.probe.fanout.tracing = MessageTracing(options.Options(), engine.probe.mesh, told, {})
    asker, responder, other = asker_of(mesh), client_of(mesh, 1, 1), client_of(mesh, 2, 1)
    responder.feed(b"SUB a q q\r\nSUB a r r\r\nSUB a plain\r\n")
    other.feed(b"SUB a 1\r\nUNSUB 1 1\r\n")
    for sid in (b"q", b"r", b"plain"):
        if sid != served:
            responder.feed(b"UNSUB %b 1\r\n" % sid)
    mesh.settle()
    block = b"NATS/1.0\r\nNats-Trace-Dest: t\r\n\r\n"
    asker.feed(b"PUB a 0\r\n\r\nHPUB a inbox %d %d\r\n%b2\r\nPING\r\n" % (len(block), len(block) + 1, block))
    mesh.settle()
    assert asker.take() == (b"" if served else NOBODY) + b"PONG\r\n"
    assert sum(frame.is_message for frame in frames(responder.take())) == 3 + (served != b"")


@pytest.mark.parametrize("is_there", [False, True])
def test_an_answer_that_asks_back_is_told_where_its_asker_has_gone(
    make: Callable[..., Mesh], *, is_there: bool
) -> None:
    mesh = make(3)
    with_services(mesh)
    responder = of_account(mesh, 1, b"A", b"SUB s.1 1\r\nSUB inbox 9\r\n")
    asker = of_account(mesh, 0, b"B", b"SUB inbox 9\r\nPUB s.1 inbox 1\r\n1\r\n")
    (request,) = [frame for frame in frames(responder.take()) if frame.is_message]
    if not is_there:
        asker.feed(b"UNSUB 9\r\n")
    responder.feed(b"PUB %b inbox 1\r\n2\r\nPING\r\n" % request.reply)
    mesh.settle()
    assert responder.take() == (b"" if is_there else NOBODY) + b"PONG\r\n"
    assert len(asker.messages()) == is_there
