"""Leaf node connections without a server at the other end: when they are ended, and what their owner hears of it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from gnatswarm.broker.access.auth import Admission
from gnatswarm.broker.access.connect import ClientOptions
from gnatswarm.broker.access.user_index import UserIndex
from gnatswarm.broker.limits import Limits
from gnatswarm.broker.options import Cluster, LeafRemote, Options
from gnatswarm.shards.clients import comparisons
from gnatswarm.shards.gateway import words
from gnatswarm.shards.gateway.hub import HubSession
from gnatswarm.shards.gateway.leaf import LeafSession
from gnatswarm.shards.gateway.leaf_port import LeafPort
from gnatswarm.shards.gateway.remote import Remote
from gnatswarm.shards.gateway.route import RouteSession
from gnatswarm.shards.gateway.words import Identity
from tests.support.members import Members
from tests.support.timers import Timers


def a_session(cluster: Members, owner: Any, later: list[Any], timers: Any = None) -> LeafSession:
    """A connection to a hub; `later` gets what its timers are to call, unless there are `timers`."""
    loop: Any = timers or SimpleNamespace(
        time=lambda: 0.0, call_later=lambda _after_s, call, *_words: later.append(call)
    )
    return LeafSession(
        loop,
        cluster.members[0].exchange,
        owner,
        LeafRemote(urls=("nats://h:7422",)),
        Identity("N", "n", "2.9.10", 1000, True),
        None,
        address="h:7422",
        login=("", ""),
        is_encrypted=False,
        lid=1,
        ping_interval_s=1.0,
        ping_max=2,
    )


@pytest.mark.parametrize(
    ("said", "waits"),
    [
        (b"'Loop detected for leafnode account=\"A\". Delaying attempt to reconnect for 30s'", True),
        (b"'Authorization Violation'", False),  # an operator may mend that, at the hub
        (b"'remote leafnode has same cluster name'", True),
        (b"'Permissions Violation for Publish to \"a\"'", True),
        (b"'Duplicate Remote LeafNode Connection'", False),
        (b"'Stale Connection'", False),
    ],
)
def test_a_hub_that_says_that_dialling_makes_no_sense_is_left_alone_for_long(said: bytes, *, waits: bool) -> None:
    cluster = Members(1, fenced=False)
    ended: list[tuple[str, bool]] = []
    owner: Any = SimpleNamespace(on_ended=lambda _session, why, *, wait_long: ended.append((why, wait_long)))
    session = a_session(cluster, owner, [])
    session.on_error(said)
    session.on_closed(0)
    assert ended == [(f"the hub said: {said.decode().strip(chr(39))}", waits)]
    cluster.close()


A_HUB = b'"server_id":"N2","client_id":5,"nonce":"n","ip":"127.0.0.1:7422"'


@pytest.mark.parametrize(
    ("keys", "is_hub"),
    [
        (A_HUB + b',"leafnode_urls":["h:7422"],"info_on_connect":true', True),
        (A_HUB + b',"leafnode_urls":[]', True),  # of one that waits for no CONNECT
        (A_HUB + b',"ws_connect_urls":["h:443"]', True),
        (A_HUB + b',"info_on_connect":true', True),  # 2.15 with `no_advertise`
        (b'"server_id":"N2","client_id":5,"client_ip":"127.0.0.1","auth_required":true,"nonce":"n"', False),
        (b'"server_id":"N2","client_id":5,"connect_urls":["h:4222"]', False),
        (b'"server_id":"N2","nonce":"n","ip":"nats-route://h:6222/","leafnode_urls":["h:7422"]', False),
        (b'"server_id":"N2","nonce":"n","info_on_connect":true', False),
    ],
)
def test_a_hub_is_known_by_its_first_info(keys: bytes, *, is_hub: bool) -> None:
    info = words.read_info(b"{" + keys + b"}")
    remote: Any = SimpleNamespace(_identity=Identity("N", "n", "2.15.1", 1000, True))
    wrong = "this is not a leaf node port: its INFO has no leafnode_urls"
    assert Remote.objection_to(remote, info) == ("" if is_hub else wrong)


def test_a_connection_that_does_not_answer_is_stale() -> None:
    cluster = Members(1, fenced=False)
    member = cluster.members[0]
    later: list[Any] = []
    owner: Any = SimpleNamespace(flush=lambda: None)
    session = a_session(cluster, owner, later)
    probe = member.mesh.engines[member.gateway].probe
    sock = probe.adopt(session.link)
    session._keep_pinging()
    for answers in (True, False, False, False):
        assert not sock.close_reason
        later.pop()()
        probe.finish()
        if answers:
            session.on_pong()
    assert not later
    assert bytes(sock.sent) == b"PING\r\n" * 3 + b"-ERR 'Stale Connection'\r\n"
    assert sock.close_reason
    session.link.leave()
    cluster.close()


@pytest.mark.parametrize("kind", ["leaf node", "route"])
@pytest.mark.parametrize("way", ["read", "unread"])
def test_who_sends_other_things_than_its_late_pong_is_not_stale(kind: str, way: str) -> None:
    """Its PONG is behind much that waits on the way to it, or on the way here. It is not asked for more of them."""
    cluster = Members(1, fenced=False)
    member = cluster.members[0]
    timers: Any = Timers()
    owner: Any = SimpleNamespace(flush=lambda: None, cluster=Cluster())
    session: Any
    if kind == "leaf node":
        session = a_session(cluster, owner, [], timers)
        session._keep_pinging()
    else:
        session = RouteSession(
            timers,
            member.exchange,
            owner,
            rid=1,
            host="h",
            port=1,
            dialled=None,
            is_configured=False,
            identity=Identity("N", "n", "2.9.10", 1000, True),
            ping_interval_s=1.0,
            ping_max=2,
        )
        session._has_started = True
    probe = member.mesh.engines[member.gateway].probe
    sock = probe.adopt(session.link)
    for number in range(6):
        if way == "read":
            session.link.must_authenticate = False
            probe.set_clock(2_000_000 + number)
            probe.feed(sock, b"+OK\r\n")
        else:
            session.socket = SimpleNamespace(unread_bytes=1)
        timers.next("_ping")
        probe.finish()
    assert not sock.close_reason
    assert bytes(sock.sent) == b"PING\r\n" * 2
    session.socket = SimpleNamespace(unread_bytes=0)
    timers.next("_ping")
    probe.finish()
    assert sock.close_reason
    assert bytes(sock.sent).endswith(b"-ERR 'Stale Connection'\r\n")
    session.socket = None
    session.link.leave()
    cluster.close()


def test_a_connection_on_which_nothing_may_be_sent_is_not_stale() -> None:
    """The gateway leaves, and reads on: it asks for no PONG, and waits for none."""
    cluster = Members(1, fenced=False)
    member = cluster.members[0]
    later: list[Any] = []
    session = a_session(cluster, SimpleNamespace(flush=lambda: None), later)
    sock = member.mesh.engines[member.gateway].probe.adopt(session.link)
    session._keep_pinging()
    session.link.fall_silent()
    while later:
        later.pop()()
    assert not sock.queued and not sock.close_reason
    session.link.leave()
    cluster.close()


def test_a_leaf_node_whose_certificate_the_rules_refuse_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Members(1, fenced=False)
    member = cluster.members[0]
    for objection in ("certificate not pinned", ""):
        rule = SimpleNamespace(objection=lambda _tls, why=objection: why)
        owner: Any = SimpleNamespace(certificate_rule=rule, is_encrypted=True, asks_for_certificate=False)
        loop: Any = SimpleNamespace(time=lambda: 0.0)
        session = HubSession(
            loop,
            member.exchange,
            owner,
            lid=1,
            host="h",
            port=1,
            nonce=b"n",
            reached="h",
            frames=None,
            names=None,
            ping_interval_s=1.0,
            ping_max=2,
        )
        sock = member.mesh.engines[member.gateway].probe.adopt(session.link)
        tls: Any = SimpleNamespace()
        assert session.on_secured(tls) is not bool(objection)
        assert bool(sock.close_reason) is bool(objection)
        assert objection in caplog.text
        session.link.leave()
    cluster.close()


def reload_hub(session: Any, options: Options) -> None:
    port: Any = SimpleNamespace(sessions=[session], limits=options.limits, authenticator=None)
    port._formers, port._on_reloaded = [], []
    port._configure = port._look_again = lambda *_: None
    LeafPort.reload(port, options, UserIndex(()), lambda: None)


def reload_leaf_node(session: Any, options: Options) -> None:
    here = LeafRemote(urls=("nats://h:7422",))
    remote: Any = SimpleNamespace(session=session, remote=here, flush=lambda: None)
    Remote.reload(remote, options, here)


@pytest.mark.parametrize("reload", [reload_hub, reload_leaf_node])
def test_a_reload_changes_how_often_a_connected_leaf_node_is_pinged(reload: Callable[[Any, Options], None]) -> None:
    cluster = Members(1, fenced=False)
    member = cluster.members[0]
    timers = Timers()
    owner: Any = SimpleNamespace(flush=lambda: None)
    session = a_session(cluster, owner, [], timers)
    session.reload = lambda: None  # type: ignore[method-assign]
    sock = member.mesh.engines[member.gateway].probe.adopt(session.link)
    session._keep_pinging()
    reload(session, Options(limits=Limits(ping_interval_s=30.0, ping_max=5)))
    assert timers.next("_ping") == 1.0  # the first comes soon
    reload(session, Options(limits=Limits(ping_interval_s=10.0, ping_max=5)))
    reload(session, Options(limits=Limits(ping_interval_s=10.0, ping_max=3)))
    assert [timers.next("_ping") for _ in range(3)] == [10.0] * 3
    member.mesh.engines[member.gateway].probe.finish()
    assert bytes(sock.sent) == b"PING\r\n" * 3 + b"-ERR 'Stale Connection'\r\n"
    session.link.leave()
    cluster.close()


def test_a_hub_that_is_this_broker_is_left_alone_for_long_also_where_its_session_ends_for_that() -> None:
    """It was dialled anew each second, with a TLS handshake."""
    info = words.read_info(b"{" + A_HUB.replace(b"N2", b"N") + b',"leafnode_urls":[]}')
    remote: Any = Remote.__new__(Remote)
    remote._identity, remote._waits_long = Identity("N", "n", "2.15.1", 1000, True), False
    remote._failures, remote._over = 0, None
    objection = remote.objection_to(info)
    ended: Any = SimpleNamespace(has_lasted=False, is_accepted=False, address="h:7422")
    remote.on_ended(ended, objection, wait_long=False)
    assert objection == "this broker itself listens there" and remote._waits_long


def test_a_reload_while_passwords_of_the_one_before_are_compared_has_them_compared_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rules under which they were plain are known until all of them have been."""
    loop: Any = SimpleNamespace(call_soon=lambda call, *given: call(*given))
    monkeypatch.setattr(comparisons, "asyncio", SimpleNamespace(get_running_loop=lambda: loop))
    monkeypatch.setattr(comparisons, "COMPARE_ATTEMPTS", 1)
    hashed = Options(auth_user="h", auth_password="$2a$04$" + "x" * 53)
    nothing: Any = None
    port = LeafPort(
        loop,
        nothing,
        nothing,
        nothing,
        Options(auth_user="h", auth_password="secret"),
        7422,
        cluster_name=str,
        websocket_port=0,
        next_id=int,
        flush=lambda: None,
        opens_loop=bool,
        events=nothing,
    )
    admission = port.authenticator.examine(ClientOptions(user="h", password="secret"))
    assert isinstance(admission, Admission)
    passwords: Any = Mock()
    port.passwords = port._comparisons._passwords = passwords
    waits: list[bool] = []
    session: Any = Mock(is_gone=False, reload=lambda: waits.append(port.compares_anew(session, admission)))
    port.sessions.append(session)
    done: list[int] = []
    for number in range(2):
        port.reload(hashed, UserIndex(), lambda number=number: done.append(number))  # type: ignore[misc]
    assert (waits, done) == ([True, True], [])
    [asked] = passwords.ask.call_args_list
    question, waiter = asked.args
    waiter.on_compared(question, None)  # it cannot be made
    assert (waits, done) == ([True, True, False], [0, 1])
    port.reload(hashed, UserIndex(), lambda: done.append(2))
    assert (waits[3:], done) == ([False], [0, 1, 2])
