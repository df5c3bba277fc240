"""Leaf nodes that are known by their certificates (`verify_and_map`), whether they come to the port or by WebSocket.

Both versions of nats-server are hubs and leaf nodes here, too, so that what is said of gnatswarm holds there.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.support.authority import Authority, Pair
from tests.support.leaves import CREATED, Net, check_own_account, hub_port, know
from tests.support.servers import Broker, wait_until
from tests.system.test_leaf import Start, net, start

__all__ = ["net", "start"]
HUBS = ("gnatswarm-2", "gnatswarm-1", "nats-server", "nats-server-2.15")
LEAVES = ("gnatswarm-1", "nats-server", "nats-server-2.15")
WEBSOCKET = r"Listening for websocket clients on wss?://\S*:(\d+)"
ACCOUNTS = """
server_name: hub
accounts {
  A { users: [ {user: a, password: a}, {user: "CN=of the broker"} ] }
  B { users: [ {user: b, password: b} ] }
}
"""
USERS = """authorization { users: [
    {user: "CN=left", account: A}
    {user: "right.example", account: B, password: right}
] }"""


def hub_of(start: Start, kind: str, authority: Authority, *, users: str = "", websocket: str = "verify") -> Broker:
    tls = f"{authority.server().lines}, ca_file: '{authority.path}'"
    return start(
        kind,
        f"{ACCOUNTS}\nleafnodes {{ listen: '127.0.0.1:-1', tls {{ {tls}, verify_and_map: true }}\n{users} }}\n"
        f"websocket {{ listen: '127.0.0.1:-1', tls {{ {tls}, {websocket}: true }} }}\n",
    )


def leaf_of(
    start: Start, kind: str, hub: Broker, way: str, authority: Authority, mine: Pair, login: str = ""
) -> Broker:
    port = hub_port(hub) if way == "nats" else int(hub.log.wait_line(WEBSOCKET)[1])
    own = f"tls {{ ca_file: '{authority.path}', {mine.lines} }}"
    url = f"{way}://{login}127.0.0.1:{port}"
    return start(kind, f"server_name: leaf{id(mine)}\nleafnodes {{ remotes [ {{ url: '{url}', {own} }} ] }}")


async def is_in(net: Net, hub: Broker, leaf: Broker, user: str) -> None:
    """Messages cross between the leaf node and this user's account alone."""
    at_leaf = await net.client(leaf)
    inside = await net.client(hub, **{"user": user, "pass": user})
    other = "b" if user == "a" else "a"
    outside = await net.client(hub, **{"user": other, "pass": other})
    await check_own_account(at_leaf, inside, outside)


@pytest.mark.parametrize("way", ["nats", "wss"])
@pytest.mark.parametrize("hub_kind", HUBS)
async def test_a_certificate_selects_the_user_of_leaf_nodes(
    start: Start, net: Net, authority: Authority, hub_kind: str, way: str
) -> None:
    from cryptography import x509

    hub = hub_of(start, hub_kind, authority, users=USERS)
    left = authority.client("CN=left")
    right = authority.client("CN=x", x509.DNSName("right.example"))
    for kind in LEAVES:
        await is_in(net, hub, leaf_of(start, kind, hub, way, authority, left), "a")
    await is_in(net, hub, leaf_of(start, "gnatswarm-1", hub, way, authority, right, "somebody:right@"), "b")


@pytest.mark.parametrize("way", ["nats", "wss"])
@pytest.mark.parametrize("hub_kind", HUBS)
async def test_a_certificate_selects_the_user_of_the_broker(
    start: Start, net: Net, authority: Authority, hub_kind: str, way: str
) -> None:
    hub = hub_of(start, hub_kind, authority, websocket="verify_and_map")
    mine = authority.client("CN=of the broker")
    for kind in LEAVES:
        await is_in(net, hub, leaf_of(start, kind, hub, way, authority, mine), "a")


@pytest.mark.parametrize("way", ["nats", "wss"])
@pytest.mark.parametrize("hub_kind", HUBS)
@pytest.mark.parametrize("users", [USERS, ""], ids=["users of leaf nodes", "users of the broker"])
async def test_who_has_another_certificate_does_not_come_in(
    start: Start, net: Net, authority: Authority, hub_kind: str, way: str, users: str
) -> None:
    """Whatever its URL says; and none without a certificate, or with the password missing that a user has, too."""
    from cryptography import x509

    hub = hub_of(start, hub_kind, authority, users=users, websocket="verify" if users else "verify_and_map")
    stranger = authority.client("CN=stranger")
    right = authority.client("CN=x", x509.DNSName("right.example"))
    for mine, login in ((stranger, "a:a@"), (stranger, ""), (right, "")):
        leaf = leaf_of(start, "gnatswarm-1", hub, way, authority, mine, login)
        leaf.log.wait_line("Authorization Violation")
        assert "Leafnode connection created for account" not in leaf.log.text
    foreign = Authority(authority.path.parent).client("CN=left")
    leaf_of(start, "gnatswarm-1", hub, way, authority, foreign)
    hub.log.wait_line("TLS (leafnode |websocket )?handshake error")


@pytest.mark.parametrize("kind", LEAVES)
async def test_pins_hold_for_hubs_that_are_dialled_too(start: Start, authority: Authority, kind: str) -> None:
    pair, other, own = authority.server(), authority.server(), authority.server()
    hub = start("nats-server", f"leafnodes {{ listen: '127.0.0.1:-1', tls {{ {pair.lines} }} }}")
    remote = f"{{ url: 'nats://127.0.0.1:{hub_port(hub)}', tls {{ ca_file: '{authority.path}' }} }}"
    for pin, said in (
        (pair.pin, "Leafnode connection created for account"),
        (other.pin, "TLS (leafnode )?handshake error: certificate not pinned"),
    ):
        tls = f"tls {{ {own.lines}, ca_file: '{authority.path}', verify: true, pinned_certs: ['{pin}'] }}"
        leaf = start(kind, f"leafnodes {{ listen: '127.0.0.1:-1', {tls}, remotes [ {remote} ] }}")
        leaf.log.wait_line(said)


async def test_pins_of_a_remote_hold_for_that_hub(start: Start, authority: Authority) -> None:
    """A nats-server reads them, and connects to any hub."""
    pair, other = authority.server(), authority.server()
    hub = start("nats-server-2.15", f"leafnodes {{ listen: '127.0.0.1:-1', tls {{ {pair.lines} }} }}")
    for pin, said in (
        (pair.pin, "Leafnode connection created for account"),
        (other.pin, "TLS handshake error: certificate not pinned"),
    ):
        tls = f"ca_file: '{authority.path}', pinned_certs: ['{pin}']"
        remote = f"{{ url: 'nats://127.0.0.1:{hub_port(hub)}', tls {{ {tls} }} }}"
        start("gnatswarm-1", f"leafnodes {{ remotes [ {remote} ] }}").log.wait_line(said)


@pytest.mark.parametrize(
    ("hub_kind", "kind"),
    [
        ("nats-server-2.15", "gnatswarm-1"),
        ("gnatswarm-1", "gnatswarm-1"),
        ("gnatswarm-1", "nats-server-2.15"),
    ],
)
async def test_a_hub_with_handshake_first_is_connected_to(
    start: Start, net: Net, authority: Authority, hub_kind: str, kind: str
) -> None:
    tls = f"tls {{ {authority.server().lines}, handshake_first: true }}"
    hub = start(hub_kind, f"leafnodes {{ listen: '127.0.0.1:-1', {tls} }}")
    own = f"tls {{ ca_file: '{authority.path}', handshake_first: true }}"
    leaf = start(kind, f"leafnodes {{ remotes [ {{ url: 'nats://127.0.0.1:{hub_port(hub)}', {own} }} ] }}")
    await know(await net.client(leaf), await net.client(hub))


async def test_who_does_not_begin_with_tls_where_the_hub_does_is_told_what_is_missing(
    start: Start, authority: Authority
) -> None:
    tls = f"tls {{ {authority.server().lines}, handshake_first: true }}"
    hub = start("nats-server-2.15", f"leafnodes {{ listen: '127.0.0.1:-1', {tls} }}")
    own = f"first_info_timeout: '100ms', tls {{ ca_file: '{authority.path}' }}"
    leaf = start("gnatswarm-1", f"leafnodes {{ remotes [ {{ url: 'nats://127.0.0.1:{hub_port(hub)}', {own} }} ] }}")
    leaf.log.wait_line(
        r"no INFO within 0.1 s; a hub with handshake_first sends INFO to who has that in the remote's tls"
    )


def reloaded(broker: Broker, *changes: tuple[str, str]) -> None:
    """Change the file of a broker, and have it read anew."""
    assert broker.config is not None and broker.directory is not None
    config = broker.config
    for before, after in changes:
        assert before in config
        config = config.replace(before, after)
    (broker.directory / "broker.conf").write_text(config)
    broker.send_signal(signal.SIGHUP)


CLOSED = r"lid:\d+ - Leafnode connection closed"


@pytest.mark.parametrize("kind", ["gnatswarm-1", "nats-server-2.15"])
@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("pinned_certs: ['{mine}', '{other}']", "pinned_certs: ['{other}']"), "certificate not pinned"),
        (("verify: true", "verify_and_map: true"), "its certificate selects another user, or none"),
    ],
)
async def test_a_reload_closes_leaf_nodes_whose_certificates_would_be_refused_now(
    start: Start, net: Net, authority: Authority, kind: str, change: tuple[str, str], why: str
) -> None:
    """And no others: one whose key is still pinned, and whose certificate has the name of its user, stays."""
    mine, other = authority.client("CN=x"), authority.client("CN=of the broker")
    before, after = (text.format(mine=mine.pin, other=other.pin) for text in change)
    tls = f"{authority.server().lines}, ca_file: '{authority.path}', verify: true"
    pins = f"pinned_certs: ['{mine.pin}', '{other.pin}']"
    hub = start("gnatswarm-1", f"{ACCOUNTS}\nleafnodes {{ listen: '127.0.0.1:-1', tls {{ {tls}, {pins} }} }}\n")
    stays = leaf_of(start, kind, hub, "nats", authority, other, "CN%3Dof%20the%20broker@")
    goes = leaf_of(start, kind, hub, "nats", authority, mine, "a:a@")
    at_hub = await net.client(hub, **{"user": "a", "pass": "a"})
    for leaf in (stays, goes):
        await know(at_hub, await net.client(leaf))
    reloaded(hub, (before, after))
    hub.log.wait_line(f"the configuration does not admit it any more: {why}")
    goes.log.wait_line(CLOSED)
    hub.log.wait_line(
        "TLS leafnode handshake error: certificate not pinned" if "pinned" in why else "authentication error"
    )
    assert hub.log.text.count("does not admit it any more") == 1
    assert "closed" not in stays.log.text


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ("tls {{ {lines} }}", "tls {{ {lines}, verify: true }}", "client didn't provide a certificate"),
        ("", "tls {{ {lines} }}", "connection not encrypted"),
    ],
    ids=["verify", "tls"],
)
async def test_a_reload_closes_leaf_nodes_without_what_the_port_asks_for_now(
    start: Start, authority: Authority, before: str, after: str, why: str
) -> None:
    lines = f"{authority.server().lines}, ca_file: '{authority.path}'"
    before, after = (f"listen: '127.0.0.1:-1', {text.format(lines=lines)} }}" for text in (before, after))
    hub = start("gnatswarm-1", f"leafnodes {{ {before}")
    own = f"tls {{ ca_file: '{authority.path}' }}" if "tls" in before else ""
    remote = f"{{ url: 'nats://127.0.0.1:{hub_port(hub)}', {own} }}"
    leaf = start("gnatswarm-1", f"leafnodes {{ remotes [ {remote} ] }}")
    leaf.log.wait_line(CREATED)
    reloaded(hub, (before, after))
    hub.log.wait_line(f"the configuration does not admit it any more: {why}")
    leaf.log.wait_line(CLOSED)


async def test_a_leaf_node_presents_what_its_files_held_at_the_last_reload(
    start: Start, authority: Authority, tmp_path: Path
) -> None:
    """A reload with a renewed certificate leaves the connection as it is; the next one has it, whatever came later."""
    old, new = authority.client("CN=old"), authority.client("CN=new")
    pins = f"pinned_certs: ['{old.pin}', '{new.pin}']"
    tls = f"tls {{ {authority.server().lines}, ca_file: '{authority.path}', verify: true, {pins} }}"
    hub = start("gnatswarm-1", f"leafnodes {{ listen: '127.0.0.1:-1', {tls} }}")
    mine = Pair(tmp_path / "mine.pem", tmp_path / "mine.key")
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(authority.path.read_bytes())

    def put(cert: bytes, key: bytes) -> None:
        mine.cert.write_bytes(cert)
        mine.key.write_bytes(key)

    put(old.cert.read_bytes(), old.key.read_bytes())
    remote = f"{{ url: 'nats://127.0.0.1:{hub_port(hub)}', tls {{ ca_file: '{trusted}', {mine.lines} }} }}"
    nobody = f"{{ url: 'nats://127.0.0.1:1', tls {{ ca_file: '{trusted}', {mine.lines} }} }}"  # names the same files
    leaf = start("gnatswarm-1", f"leafnodes {{ remotes [ {nobody}, {remote} ] }}")
    leaf.log.wait_line(CREATED)
    put(new.cert.read_bytes(), new.key.read_bytes())
    leaf.send_signal(signal.SIGHUP)
    leaf.log.wait_line("Reloaded server configuration")
    put(b"", b"half")
    trusted.unlink()
    assert "Leafnode connection closed" not in leaf.log.text
    reloaded(hub, (pins, f"pinned_certs: ['{new.pin}']"))
    hub.log.wait_line("the configuration does not admit it any more: certificate not pinned")
    wait_until(lambda: leaf.log.text.count("Leafnode connection created") == 2)


async def test_a_reload_leaves_a_hub_whose_certificate_would_be_refused_now(start: Start, authority: Authority) -> None:
    pair, own = authority.server(), authority.server()
    hub = start("gnatswarm-1", f"leafnodes {{ listen: '127.0.0.1:-1', tls {{ {pair.lines} }} }}")
    remote = f"{{ url: 'nats://127.0.0.1:{hub_port(hub)}', tls {{ ca_file: '{authority.path}' }} }}"
    pins = f"pinned_certs: ['{own.pin}', '{pair.pin}']"
    tls = f"tls {{ {own.lines}, ca_file: '{authority.path}', verify: true, {pins} }}"
    leaf = start("gnatswarm-1", f"leafnodes {{ listen: '127.0.0.1:-1', {tls}, remotes [ {remote} ] }}")
    leaf.log.wait_line(CREATED)
    reloaded(leaf, (pins, f"pinned_certs: ['{pair.pin}']"))
    leaf.log.wait_line("Reloaded server configuration")
    assert "Leafnode connection closed" not in leaf.log.text
    reloaded(leaf, (pins, f"pinned_certs: ['{own.pin}']"))
    leaf.log.wait_line("Leafnode connection closed: certificate not pinned")
    leaf.log.wait_line("TLS handshake error: certificate not pinned")
