"""What is decided about connections to other members of the cluster, without any."""

from __future__ import annotations

import asyncio
import ssl
from types import SimpleNamespace
from typing import Any

import pytest

from gnatswarm.broker.limits import Limits
from gnatswarm.broker.options import Cluster, Options
from gnatswarm.shards.gateway import routes as routes_module
from gnatswarm.shards.gateway import words
from gnatswarm.shards.gateway.remote import Address, Remote, places_of, told_address
from gnatswarm.shards.gateway.route import RouteSession
from gnatswarm.shards.gateway.routes import LONGEST_AGAIN_S, Dialled, Routes
from tests.support.members import Members
from tests.support.timers import Timers


@pytest.mark.parametrize(
    ("configured", "dialled", "name"),
    [
        (["one.example", "two.example"], "two.example", "two.example"),
        (["one.example", "two.example"], "198.51.100.1", "one.example"),  # others told of it, by its address
        ([], "198.51.100.1", "198.51.100.1"),
    ],
)
def test_a_member_s_certificate_must_have_a_name_that_is_configured(
    configured: list[str], dialled: str, name: str
) -> None:
    context = ssl.create_default_context()
    routes: Any = SimpleNamespace(
        cluster=Cluster(),
        _contexts=(context, context),
        _addresses=lambda: [Address(host, 6222) for host in configured],
    )
    gate = Routes._gate(routes, Address(dialled, 6222))
    assert gate is not None and gate.server_hostname == name


@pytest.mark.parametrize(("deep", "is_told"), [(6, True), (7, True), (8, False), (982, False), (100_000, False)])
def test_members_are_told_of_a_newcomer_all_that_it_says_unless_it_is_nested_deeply(
    deep: int, *, is_told: bool
) -> None:
    """In JSON that can be read, but not written, a member once ended the gateway."""
    nested = "[" * deep + "]" * deep
    info = f'{{"server_id":"N","nonce":"n","x":{nested}}}'
    if is_told:
        told = f'INFO {{"server_id":"N","x":{nested},"ip":"nats-route://h:1/"}}\r\n'
        assert words.gossip(info.encode(), "nats-route://h:1/") == told.encode()
    else:
        with pytest.raises(ValueError, match="INFO cannot be read"):
            words.gossip(info.encode(), "nats-route://h:1/")


def test_members_are_told_of_no_newcomer_that_says_more_than_they_read() -> None:
    longest = 131072 - len('INFO {"x":"","ip":"u"}\r\n')
    assert len(words.gossip(b'{"x":"%b"}' % (b"x" * longest), "u")) == 131072
    with pytest.raises(ValueError, match="INFO cannot be passed on"):
        words.gossip(b'{"x":"%b"}' % (b"x" * (longest + 1)), "u")


def test_an_error_in_what_a_spare_connection_has_said_costs_that_connection_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    closed: list[str] = []
    spare: Any = SimpleNamespace(info=SimpleNamespace(server_id="N"), close=closed.append)
    present: Any = SimpleNamespace(info=spare.info)

    def register(_session: Any) -> None:
        raise RecursionError

    routes: Any = SimpleNamespace(
        _sessions=[present, spare],
        _waiting=SimpleNamespace(remove=lambda _session: None),
        _members={"N": present},
        _spares={"N": [spare]},
        _is_closed=False,
        _register=register,
        _teller=SimpleNamespace(changed=lambda: None),
        _tell_leaf_nodes=lambda: None,
    )
    routes._promote = lambda session: Routes._promote(routes, session)
    Routes.on_ended(routes, present, "Client Closed")
    assert closed == ["Parse Error"] and "an error of ours" in caplog.text
    assert not routes._members and not routes._spares and routes._sessions == [spare]


NOBODY, CLOSED, LASTED = "nobody listens", "closed at once", "lasted"
AFTER_ONE = (1.0, 0.1)  # seconds, and how many at random more


@pytest.mark.parametrize(
    ("is_backed_off", "tries", "pauses"),
    [
        (False, [NOBODY] * 4, [(1.0,)] * 4),
        (False, [NOBODY, CLOSED, CLOSED, NOBODY], [(1.0,), AFTER_ONE, AFTER_ONE, (1.0,)]),
        (True, [NOBODY] * 7, [(1.0,), (2.0,), (4.0,), (8.0,), (16.0,), (30.0,), (30.0,)]),
        (True, [NOBODY, NOBODY, CLOSED, NOBODY, NOBODY], [(1.0,), (2.0,), AFTER_ONE, (1.0,), (2.0,)]),
        (True, [NOBODY, NOBODY, LASTED, NOBODY], [(1.0,), (2.0,), (1.0,)]),
    ],
)
async def test_a_member_is_dialled_again_as_nats_server_does(
    is_backed_off: bool, tries: list[str], pauses: list[tuple[float, ...]]
) -> None:
    """Each second, or with connect_backoff after twice the time, until somebody listens there."""
    left, found = list(tries), []

    async def dial_once(_dialled: Dialled, _attempt: int) -> Any:
        if not left:
            raise asyncio.CancelledError
        how = left.pop(0)
        if how == NOBODY:
            return None
        return SimpleNamespace(
            is_self=False, was_member=how == LASTED, is_duplicate=False, info=None, has_lasted=how == LASTED
        )

    async def pause(*seconds: float) -> None:
        found.append(seconds)

    routes: Any = SimpleNamespace(
        cluster=Cluster(connect_backoff=is_backed_off),
        _members={},
        _dialled={},
        _dial_once=dial_once,
        _has_tried=lambda _address: None,
        _pause=pause,
    )
    with pytest.raises(asyncio.CancelledError):
        await Routes._keep_dialling(routes, Dialled(Address("one.example", 6222), is_configured=True))
    assert found == pauses


@pytest.mark.parametrize(
    ("hosts", "dialled"),
    [
        (["own", "far"], ["own", "far"]),
        (["own", "also own", "far"], ["own", "also own", "far"]),
        (["own"], ["own", "far"]),
        (["own", "also own"], ["own", "also own", "far"]),
        (["192.0.2.1"], ["192.0.2.1"]),
    ],
)
async def test_a_name_that_is_also_this_broker_s_is_dialled_at_its_other_addresses(
    monkeypatch: pytest.MonkeyPatch, hosts: list[str], dialled: list[str]
) -> None:
    """All members may have one name: each finds itself there, at first perhaps alone. An address itself is left."""
    is_name = hosts[0] == "own"
    here = list(hosts)
    pauses: list[float] = []
    found: list[str] = []
    tried: list[Address] = []

    async def places(*_: Any) -> list[Any]:
        return [(0, 0, 0, "", (host, 6222)) for host in here]

    async def pause(seconds: float, _spread_s: float = 0.0) -> None:
        pauses.append(seconds)
        here.append("far")  # another member has come

    async def connect(_loop: Any, left: list[Any], _timeout_s: float) -> tuple[Any, Any]:
        where = left[0][-1]
        return SimpleNamespace(getpeername=lambda: where, detach=lambda: 0), where

    def opened(_fd: int, host: str, *_: Any, **__: Any) -> Any:
        found.append(host)
        assert not tried or pauses  # nobody is told that there are no members before the last address was tried
        over = asyncio.get_running_loop().create_future()
        over.set_result(None)
        if host == "far":
            raise asyncio.CancelledError
        return SimpleNamespace(is_self=True, is_quiet=True, was_member=False, over=over)

    monkeypatch.setattr(routes_module, "places_of", places)
    monkeypatch.setattr(routes_module, "connected", connect)
    address = Address("members.example" if is_name else hosts[0], 6222)
    routes: Any = SimpleNamespace(
        cluster=Cluster(),
        _loop=None,
        _members={},
        _own_places=set(),
        _dialled={},
        _has_tried=tried.append,
        _open=opened,
        _pause=pause,
    )
    routes.flush = lambda: None
    routes._dial_once = lambda *words: Routes._dial_once(routes, *words)
    dialling = Routes._keep_dialling(routes, Dialled(address, is_configured=True))
    if is_name:
        with pytest.raises(asyncio.CancelledError):
            await dialling
    else:
        await dialling
        assert tried == [address]
    assert found == dialled
    assert pauses == ([LONGEST_AGAIN_S] if is_name and "far" not in hosts else [])


@pytest.mark.parametrize("host", ["127.0.0.1\0x", "a b", "a\x7f", "a\u2028b", ""])
def test_what_another_server_names_and_no_host_is_called_is_not_dialled(host: str) -> None:
    with pytest.raises(ValueError, match="no host"):
        told_address(f"nats-route://{host}:6222", 0)


async def test_a_handshake_that_cannot_begin_is_a_failed_attempt(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """OpenSSL says TypeError of a name with a NUL, and ended the gateway with it."""

    async def places(*_: Any) -> list[Any]:
        return [(0, 0, 0, "", ("198.51.100.1", 6222))]

    async def connect(_loop: Any, left: list[Any], _timeout_s: float) -> tuple[Any, Any]:
        return SimpleNamespace(getpeername=lambda: left[0][-1], detach=lambda: 0), left[0][-1]

    def opened(*_: Any, **__: Any) -> Any:
        raise TypeError("argument must be encoded string without null bytes, not str")

    monkeypatch.setattr(routes_module, "places_of", places)
    monkeypatch.setattr(routes_module, "connected", connect)
    flushed: list[bool] = []
    routes: Any = SimpleNamespace(_loop=None, _own_places=set(), _open=opened, flush=lambda: flushed.append(True))
    routes._failed = lambda *words: Routes._failed(routes, *words)
    dialled = Dialled(Address("198.51.100.1\0x", 6222), is_configured=False)
    assert await Routes._dial_once(routes, dialled, 1) is None
    assert flushed and dialled.session is None and "without null bytes" in caplog.text


async def test_a_hub_whose_handshake_cannot_begin_is_dialled_again(caplog: pytest.LogCaptureFixture) -> None:
    tried: list[Address] = []

    async def connect(address: Address) -> None:
        tried.append(address)
        if len(tried) == 3:
            raise asyncio.CancelledError
        raise TypeError("argument must be encoded string without null bytes, not str")

    remote: Any = SimpleNamespace(
        _configured=[Address("hub.example", 7422)],
        _discovered=[],
        _connect=connect,
        _failures=0,
        remote=SimpleNamespace(no_randomize=True, reconnect_s=0.0),
    )
    remote._failed = lambda *words: Remote._failed(remote, *words)
    with pytest.raises(asyncio.CancelledError):
        await Remote._run(remote)
    assert len(tried) == 3 and "without null bytes" in caplog.text


async def test_the_addresses_of_a_name_are_dialled_in_random_order() -> None:
    """Members and hubs: so one that takes connections and says nothing is not always the first."""

    async def getaddrinfo(_host: str, port: int, **_: Any) -> list[Any]:
        return [(0, 0, 0, "", (host, port)) for host in ("one", "two")]

    loop: Any = SimpleNamespace(getaddrinfo=getaddrinfo)
    firsts = [(await places_of(loop, Address("hubs.example", 7422), 1.0))[0][-1] for _ in range(200)]
    assert set(firsts) == {("one", 7422), ("two", 7422)}


def test_a_reload_of_fence_is_told_to_connected_members() -> None:
    said: list[bytes] = []
    routes: Any = Routes.__new__(Routes)
    routes._options, routes._dialled, routes._sessions = Options(), {}, []
    routes._members = {"M": SimpleNamespace(link=SimpleNamespace(send=said.append))}
    routes._teller = SimpleNamespace(changed=lambda: None)
    routes._addresses = routes._learn_own_urls = routes._dial_configured = routes.flush = list
    routes.hello = lambda: routes._options.fence.encode()
    for fence in ("broker", "cluster", "cluster", "broker"):
        routes.reload(Options(fence=fence), has_new_accounts=False)
    assert said == [b"cluster", b"broker"]


def test_a_reload_changes_how_often_connected_members_are_pinged() -> None:
    """A route pings each 30 s at least, and `cluster { ping_interval }` counts before that of clients."""
    timers: Any = Timers()
    cluster = Members(1, fenced=False)
    member = cluster.members[0]
    session = RouteSession(
        timers,
        member.exchange,
        SimpleNamespace(flush=lambda: None, cluster=Cluster()),
        rid=1,
        host="h",
        port=1,
        dialled=None,
        is_configured=False,
        identity=words.Identity("N", "n", "2.9.10", 1000, True),
        ping_interval_s=120.0,
        ping_max=2,
    )
    sock = member.mesh.engines[member.gateway].probe.adopt(session.link)
    session._has_started = True
    routes: Any = Routes.__new__(Routes)
    routes._options, routes._dialled, routes._sessions = Options(), {}, [session]
    routes._teller = SimpleNamespace(changed=lambda: None)
    routes._addresses = routes._learn_own_urls = routes._dial_configured = routes.flush = list

    def reload(cluster: Cluster, ping_interval_s: float) -> None:
        limits = Limits(ping_interval_s=ping_interval_s, ping_max=3)
        routes.reload(Options(cluster=cluster, limits=limits), has_new_accounts=False)

    reload(Cluster(), 20.0)
    assert timers.next("_ping") == 1.0  # the first comes soon
    reload(Cluster(ping_interval_s=300.0), 10.0)
    assert timers.next("_ping") == 30.0
    session.on_pong()
    reload(Cluster(), 10.0)
    reload(Cluster(ping_max=1), 10.0)
    assert [timers.next("_ping"), timers.next("_ping")] == [10.0] * 2
    member.mesh.engines[member.gateway].probe.finish()
    assert bytes(sock.sent) == b"PING\r\n" * 3 + b"-ERR 'Stale Connection'\r\n"
    session.link.leave()
    cluster.close()
