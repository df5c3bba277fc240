"""Members that are known by their certificates (`cluster { tls { verify_and_map } }`), as on nats-server."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509

from tests.support.authority import Authority, Pair
from tests.support.leaves import LISTENS as LEAVES_LISTEN
from tests.support.raw_route import RawRoute, connect, hello
from tests.support.servers import Broker
from tests.support.turns import until
from tests.system.test_cluster import (
    Net,
    Start,
    all_know,
    arrived,
    cluster_config,
    ended,
    is_meshed,
    net,
    page,
    route_port,
    start,
    started,
    subscribed,
)
from tests.system.test_cluster_reload import reload

__all__ = ["net", "start"]  # fixtures

KINDS = ("gnatswarm-2", "nats-server", "gnatswarm-2-as-2.15", "nats-server-2.15")


def mapping(authority: Authority, pair: Pair, user: str = "route.example", more: str = "") -> str:
    """The inside of `cluster`, where a member is known by its certificate as this user."""
    login = f"authorization {{ user: '{user}' {more} }}\n" if user else ""
    return f"{login}tls {{ {pair.lines}, ca_file: '{authority.path}', timeout: 5, verify_and_map: true }}"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module", params=KINDS)
def here(request: pytest.FixtureRequest, authority: Authority) -> Iterator[Broker]:
    """A member whose others are known by their certificates."""
    inner = mapping(authority, authority.member(), more=", password: secret")
    broker = started(str(request.param), cluster_config("here", inner=inner))
    yield broker
    ended([broker])


async def answer(broker: Broker, authority: Authority, pair: Pair, **login: str) -> tuple[RawRoute, str]:
    """A connection of a member with this certificate, and what it hears: "" if nothing ends it."""
    context = authority.client_context(pair)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    route = RawRoute(*await asyncio.open_connection("127.0.0.1", route_port(broker), ssl=context), "raw")
    line, _ = await route.read()
    route.info = json.loads(line[5:])
    route.write(connect("raw", **login) + hello("raw") + "PING\r\n")
    heard = ""
    while True:
        try:
            line, _ = await route.read()
        except EOFError:
            return route, heard or "EOF"
        if line == "PONG":
            return route, ""
        if line.startswith("-ERR"):
            heard = line


@pytest.mark.parametrize("login", [{}, {"user": "route.example", "pass": "wrong"}, {"user": "nobody", "pass": "x"}])
async def test_a_name_of_the_certificate_is_the_user_whatever_connect_says(
    here: Broker, authority: Authority, login: dict[str, str]
) -> None:
    pair = authority.client("CN=member", x509.DNSName("route.example"))
    route, heard = await answer(here, authority, pair, **login)
    assert heard == "" and route.info["auth_required"] and route.info["tls_verify"]
    route.close()
    await until(lambda: page(here, "/routez")["num_routes"] == 0)


@pytest.mark.parametrize("subject", ["CN=route.example", "CN=member"])
async def test_another_certificate_is_refused_with_the_right_password(
    here: Broker, authority: Authority, subject: str
) -> None:
    start_at = len(here.log.lines)
    route, heard = await answer(here, authority, authority.client(subject), user="route.example", **{"pass": "secret"})
    assert heard in ("-ERR 'Authorization Violation'", "EOF")
    route.close()
    who = ' - User "route.example"' if here.kind.compatibility != "2.9" else ""
    here.log.wait_line(f"authentication error{who}$", start=start_at)
    await until(lambda: page(here, "/routez")["num_routes"] == 0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("user", "is_taken"),
    [
        ("route@example", True),
        ("CN=member,OU=routes,O=gnats", True),
        ("OU=routes,O=gnats,CN=member", False),
        ("CN=member, OU=routes, O=gnats", False),
        ("CN=member", False),
        ("member", False),
        ("", False),
    ],
)
async def test_who_is_the_user(start: Start, authority: Authority, kind: str, user: str, is_taken: bool) -> None:
    here = start(kind, cluster_config("here", inner=mapping(authority, authority.member(), user)))
    pair = authority.client("O=gnats,OU=routes,CN=member", x509.RFC822Name("route@example"))
    route, heard = await answer(here, authority, pair)
    assert (heard == "") is is_taken
    route.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_who_dials_does_not_compare_the_other_ones_certificate(
    start: Start, authority: Authority, kind: str
) -> None:
    """Only who accepts does, as with passwords."""
    there = start("nats-server", cluster_config("there", inner=plain(authority)))
    inner = mapping(authority, authority.member(), "nobody")
    dials = start(kind, cluster_config("dials", (route_port(there),), inner=inner))
    await until(lambda: is_meshed([there, dials]))


def plain(authority: Authority) -> str:
    return f"tls {{ {authority.member().lines}, ca_file: '{authority.path}', timeout: 5 }}"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_leaf", [False, True], ids=["route", "leaf"])
async def test_a_server_at_an_address_has_the_name_that_is_configured(
    start: Start, authority: Authority, kind: str, *, is_leaf: bool
) -> None:
    """Whose certificate has no address: members tell each other of addresses."""
    pair = authority.member(x509.DNSName("localhost"))
    tls = f"tls {{ {pair.lines}, ca_file: '{authority.path}', timeout: 5 }}"
    if is_leaf:
        there = start("nats-server", f"leafnodes {{ listen: '127.0.0.1:-1', {tls} }}")
        port = int(there.log.wait_line(LEAVES_LISTEN)[1])
        urls = f"['tls://127.0.0.1:{port}', 'tls://localhost:1']"
        remote = f"{{ urls: {urls}, no_randomize: true, tls {{ ca_file: '{authority.path}' }} }}"
        config = f"leafnodes {{ remotes [ {remote} ] }}"
        created = "Leafnode connection created"
    else:
        there = start("nats-server", cluster_config("there", inner=tls))
        urls = f"['nats://127.0.0.1:{route_port(there)}', 'nats://localhost:1']"
        config = f"cluster {{ name: marsh, listen: '127.0.0.1:-1', routes: {urls}, {tls} }}"
        created = "Route connection created"
    dials = start(kind, config)
    there.log.wait_line(created)
    await until(lambda: created in dials.log.text)
    assert "certificate" not in dials.log.text


@pytest.mark.parametrize("kind", KINDS)
async def test_a_renewed_certificate_leaves_members_connected_and_is_shown_to_the_next(
    start: Start, net: Net, authority: Authority, tmp_path: Path, kind: str
) -> None:
    mine, new = Pair(tmp_path / "mine.pem", tmp_path / "mine.key"), authority.member()
    put(authority.member(), mine)
    there = start("nats-server", cluster_config("there", inner=plain(authority)))
    tls = f"tls {{ {mine.lines}, ca_file: '{authority.path}', timeout: 5 }}"
    here = start(kind, cluster_config("here", (route_port(there),), inner=tls))
    await until(lambda: is_meshed([here, there]))
    clients = await net.clients([here, there])
    for client in clients:
        await subscribed(client, "go.on 1")
    await all_know(clients)
    put(new, mine)
    await clients[1].send("PUB go.on 1\r\nx\r\n" * 500)
    reload(here, "timeout: 5", "timeout: 5")
    await clients[1].send("PUB go.on 1\r\nx\r\n" * 500)
    await clients[0].send("PUB go.on 1\r\nx\r\n" * 500)
    for client in clients:
        assert len(await arrived(client, 1500)) == 1500
    context = authority.client_context(authority.member())
    _reader, writer = await asyncio.open_connection("127.0.0.1", route_port(here), ssl=context)
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    assert shown == ssl.PEM_cert_to_DER_cert(new.cert.read_text())
    writer.close()


def put(pair: Pair, into: Pair) -> None:
    into.cert.write_bytes(pair.cert.read_bytes())
    into.key.write_bytes(pair.key.read_bytes())


@pytest.mark.parametrize("dials", [False, True])
async def test_a_reload_closes_members_whose_certificate_is_not_pinned_any_more(
    start: Start, authority: Authority, *, dials: bool
) -> None:
    own, other = authority.member(), authority.member()
    pins = f"pinned_certs: ['{other.pin}', '{own.pin}']"
    first, second = (
        f"tls {{ {pair.lines}, ca_file: '{authority.path}', timeout: 5, {pins} }}"
        for pair in ((other, own) if dials else (own, other))
    )
    accepts = start("gnatswarm-1", cluster_config("accepts", inner=first))
    dialler = start("gnatswarm-1", cluster_config("dialler", (route_port(accepts),), inner=second))
    await until(lambda: is_meshed([accepts, dialler]))
    here = dialler if dials else accepts
    reload(here, pins, f"pinned_certs: ['{other.pin}']")
    assert "Router connection closed" not in here.log.text
    reload(here, f"'{other.pin}'", f"'{own.pin}'")
    here.log.wait_line("Router connection closed: certificate not pinned")
