"""The `leafnodes` block: what is read, and every mistake, with its place, at once."""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import msgspec
import pytest

from gnatswarm.broker.options import ClientTls, LeafNodes, LeafRemote, User
from gnatswarm.router.config.conf_tree import ConfigError
from gnatswarm.router.config.flags import parse
from gnatswarm.router.config.options_build import Built, build
from gnatswarm.shards.boundary import certificates
from tests.support.authority import HOUR, Authority

Build = Callable[[str], Built]
SEED = "SUAAAAICAMCAKBQHBAEQUCYMBUHA6EARCIJRIFIWC4MBSGQ3DQOR4H776Y"

SUITE = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"
PIN = "ab" * 32
PUBLIC = "UAB2CB576PHBBPQ5ODORRZ2LYCMWPZGWGCN2KDK7DXOIMZASKUY3RLKK"


@pytest.fixture
def built(tmp_path: Path) -> Build:
    def from_text(text: str) -> Built:
        path = tmp_path / "t.conf"
        path.write_text(text)
        return build(parse(["-c", str(path)]), environment={})

    return from_text


@pytest.fixture
def refusals(built: Build) -> Callable[[str], list[str]]:
    def of(text: str) -> list[str]:
        with pytest.raises(ConfigError) as caught:
            built(text)
        return [re.sub(r"^\S*t\.conf:", "", str(problem)) for problem in caught.value.problems]

    return of


SETTINGS: list[tuple[str, str, object]] = [
    ("url: 'nats://u:p@h:1'", "urls", ("nats://u:p@h:1",)),
    ("urls: ['nats://h:1', 'tls://i']", "urls", ("nats://h:1", "tls://i")),
    ("url: 'leafnode://h:1'", "urls", ("leafnode://h:1",)),
    ("url: 'h:1'", "urls", ("nats://h:1",)),
    ("urls: ['ws://h:1', 'wss://h/at']", "urls", ("ws://h:1", "wss://h/at")),
    ("hub: true", "hub", True),
    ("isolate_leafnode_interest: true", "isolate", True),
    ("request_isolation: true", "request_isolation", True),
    ("ws_compression: true", "ws_compression", True),
    ("websocket_no_masking: true", "ws_no_masking", True),
    ("account: A", "account", "A"),
    ("local: A", "account", "A"),
    (f"nkey: {SEED}", "seed", SEED),
    ("deny_imports: [a, 'b.>']", "deny_imports", ("a", "b.>")),
    ("deny_import: a", "deny_imports", ("a",)),
    ("deny_exports: 'c.*'", "deny_exports", ("c.*",)),
    ("reconnect_delay: '250ms'", "reconnect_s", 0.25),
    ("no_randomize: true", "no_randomize", True),
    ("dont_randomize: true", "no_randomize", True),
    ("dial_timeout: '3s'", "dial_timeout_s", 3.0),
    ("dial_timeout: '0s'", "dial_timeout_s", 1.0),
    ("first_info_timeout: '250ms'", "first_info_timeout_s", 0.25),
    ("first_info_timeout: '0s'", "first_info_timeout_s", 2.0),
    ("ignore_discovered_servers: true", "ignore_discovered_servers", True),
    ("tls { insecure: true }", "tls", ClientTls(is_on=True, insecure=True)),
    ("tls { timeout: 5 }", "tls", ClientTls(is_on=True, timeout_s=5.0)),
    ("tls { handshake_first: true }", "tls", ClientTls(is_on=True, handshake_first=True)),
    ("tls { first: auto }", "tls", ClientTls(is_on=True, handshake_first=True)),
    ("tls { immediate: '300ms' }", "tls", ClientTls(is_on=True, handshake_first=True)),
    ("tls { handshake_first: off, verify: true }", "tls", ClientTls(is_on=True)),
    ("tls { min_version: '1.3' }", "tls", ClientTls(is_on=True, min_version="1.3")),
    (f"tls {{ cipher_suites: [{SUITE.lower()}] }}", "tls", ClientTls(is_on=True, cipher_suites=(SUITE,))),
    ("tls { curve_preferences: [CurveP256] }", "tls", ClientTls(is_on=True, curve_preferences=("CurveP256",))),
    (f"tls {{ pinned_certs: ['{PIN.upper()}'] }}", "tls", ClientTls(is_on=True, pinned_certs=(PIN,))),
]


@pytest.mark.parametrize(("text", "field", "value"), SETTINGS)
def test_a_key_of_a_remote_sets_its_option(built: Build, text: str, field: str, value: object) -> None:
    url = "" if "url" in text else "url: h"
    users = "accounts { A { users [ {user: a, password: p} ] } }\n"
    (remote,) = built(f"{users}leafnodes {{ remotes [ {{ {url}\n{text} }} ] }}").options.leafnodes.remotes
    assert getattr(remote, field) == value


def test_authorities_that_many_remotes_name_are_read_once(
    built: Build, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """82 remotes with the system's took a start and each reload 1.9 s of a processor."""
    load = Mock(wraps=certificates._load_authorities)
    monkeypatch.setattr(certificates, "_load_authorities", load)
    own = [f"tls {{ ca_file: '{authority.path}', {pair} }}" for pair in ("", authority.client().lines)]
    listed = "\n".join(f"{{ url: 'h{at}', {own[at % 2]} }}" for at in range(10))
    remotes = built(f"leafnodes {{ remotes [ {listed} ] }}").options.leafnodes.complete_remotes
    assert load.call_count == 1
    assert {remote.tls.ca_pem for remote in remotes} == {authority.path.read_bytes()}


def test_every_option_of_tls_to_a_hub_can_be_configured(built: Build, authority: Authority) -> None:
    found = {
        field.name
        for _, name, value in SETTINGS
        for field in msgspec.structs.fields(ClientTls)
        if name == "tls" and getattr(value, field.name) != field.default
    }
    pair = authority.client()
    for files in (pair.lines, f"certs: [ {{ {pair.lines} }} ]"):
        text = f"leafnodes {{ remotes [ {{ url: h, tls {{ {files}, ca_file: '{authority.path}' }} }} ] }}"
        (remote,) = built(text).options.leafnodes.remotes
        found |= {
            field.name
            for field in msgspec.structs.fields(ClientTls)
            if getattr(remote.tls, field.name) != field.default
        }
        assert (remote.tls.cert_file, remote.tls.key_pem) == (str(pair.cert), pair.key.read_bytes())
    assert found == {field.name for field in msgspec.structs.fields(ClientTls)}


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ("insecure: true", ["the hub's certificate is not checked"]),
        ("verify_and_map: true", ['"verify_and_map" has no effect here']),
        ("connection_rate_limit: 5", ['"connection_rate_limit" has no effect here']),
        ("verify_and_map: false, verify: true, insecure: false", []),
        (f"pinned_certs: ['{PIN}']", []),
    ],
)
def test_what_has_no_effect_on_tls_to_a_hub_is_a_notice(built: Build, keys: str, said: list[str]) -> None:
    notices = built(f"leafnodes {{ remotes [ {{ url: h, tls {{ {keys} }} }} ] }}").options.notices
    assert [one in notice for one, notice in zip(said, notices, strict=True)] == [True] * len(said)
    assert all(":1:39: " in notice for notice in notices)


@pytest.mark.parametrize(
    ("lasts", "said"),
    [
        (-HOUR, "expired on 20.*hubs that check it refuse it: renew it, then reload"),
        (3 * HOUR, "is not valid before 20.*check this machine's clock"),
        (HOUR / 12, "expires on 20.*renew it, then reload"),
        (HOUR, ""),
    ],
)
def test_a_certificate_for_a_hub_that_is_not_valid_is_a_notice(
    built: Build, authority: Authority, lasts: datetime.timedelta, said: str
) -> None:
    pair = authority.client(lasts=lasts)
    notices = built(f"leafnodes {{ remotes [ {{ url: h, tls {{ {pair.lines} }} }} ] }}").options.notices
    assert len(notices) == bool(said)
    assert all(re.search(f":1:33: the certificate {pair.cert} {said}", notice) for notice in notices)


def test_insecure_suites_stop_the_start_as_those_of_a_port(built: Build, refusals: Callable[[str], list[str]]) -> None:
    suite = "cipher_suites: [TLS_RSA_WITH_AES_128_GCM_SHA256]"
    text = "compatibility: '2.15'\nleafnodes {{ remotes [ {{ url: h, tls {{ {} }} }} ] }}"
    assert refusals(text.format(suite))[0].startswith("2:33: insecure cipher suites configured without")
    assert built(text.format(f"{suite}, allow_insecure_cipher_suites: true")).options.notices == ()


def test_every_option_of_a_remote_can_be_configured(built: Build, tmp_path: Path) -> None:
    of_a_file = {"credentials", "jwt"}
    fields = {field.name for field in msgspec.structs.fields(LeafRemote)}
    assert {field for _, field, _ in SETTINGS} | of_a_file == fields
    path = tmp_path / "u.creds"
    path.write_text(
        "-----BEGIN NATS USER JWT-----\neyJ0.x.y\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{SEED}\n------END USER NKEY SEED------\n"
    )
    text = f"leafnodes {{ remotes [ {{ url: h, credentials: '{path}' }} ] }}"
    (remote,) = built(text).options.leafnodes.remotes
    assert (remote.credentials, remote.jwt, remote.seed) == (str(path), "eyJ0.x.y", SEED)
    assert SEED not in repr(remote) and "eyJ0" not in repr(remote)


PORT_SETTINGS: list[tuple[str, str, object]] = [
    ("listen: 'h:7422'", "host", "h"),
    ("listen: 7422", "port", 7422),
    ("advertise: 'x:1'", "advertise", "x:1"),
    ("no_advertise: true", "no_advertise", True),
    ("authorization { timeout: 5 }", "auth_timeout_s", 5.0),
    ("min_version: v2.9.0", "min_version", "2.9.0"),
    ("minimum_version: 2.8.0", "min_version", "2.8.0"),
    ("authorization { account: A }", "account", "A"),
    ("authorization { user: u, password: p, account: A }", "users", (User("u", "p", "", "A"),)),
    ("authorization { users [ {user: u, pass: p} ] }", "users", (User("u", "p"),)),
    (f"authorization {{ nkey: {PUBLIC} }}", "users", (User("", "", PUBLIC),)),
    ("tls { cert_file: CERT, key_file: KEY, handshake_first: true }", "tls", True),
    ("isolate: true", "isolate", True),
    ("write_deadline: '250ms'", "write_deadline_s", 0.25),
    ("write_timeout: retry", "write_timeout", "retry"),
    ("isolate_leafnode_interest: true", "isolate", True),
    ("remotes [ { url: h } ]", "remotes", (LeafRemote(("nats://h",)),)),
]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.mark.parametrize(("text", "field", "value"), PORT_SETTINGS)
def test_a_key_of_the_port_sets_its_option(
    built: Build, authority: Authority, text: str, field: str, value: object
) -> None:
    pair = authority.server()
    text = text.replace("CERT", f"'{pair.cert}'").replace("KEY", f"'{pair.key}'")
    users = "accounts { A { users [ {user: a, password: p} ] } }\n"
    port = "" if "listen" in text else "port: 7422"
    found = getattr(built(f"{users}leafnodes {{ {port}\n{text} }}").options.leafnodes, field)
    assert found == value if field != "tls" else found.is_on and found.handshake_first and found.cert_pem


@pytest.mark.parametrize("block", ["leafnodes", "cluster"])
@pytest.mark.parametrize(("timeout", "seconds"), [("", 3.0), ("timeout: 5", 6.0)])
def test_behind_a_handshake_that_took_all_its_time_there_is_a_second_to_log_in(
    built: Build, authority: Authority, block: str, timeout: str, seconds: float
) -> None:
    """As for clients, unless `authorization { timeout }` says how long."""
    tls = f"tls {{ {authority.server().lines}, ca_file: '{authority.path}', verify: true, {timeout} }}"
    own = "authorization { user: u, password: p, timeout: 1 }"
    assert getattr(built(f"{block} {{ port: 7422\n{tls} }}").options, block).auth_timeout_s == seconds
    assert getattr(built(f"{block} {{ port: 7422\n{tls}\n{own} }}").options, block).auth_timeout_s == 1.0
    assert getattr(built(f"{block} {{ port: 7422 }}").options, block).auth_timeout_s == 2.0


def test_every_option_of_the_port_can_be_configured() -> None:
    fields = {field.name for field in msgspec.structs.fields(LeafNodes)}
    assert {field for _, field, _ in PORT_SETTINGS} == fields


def test_without_port_and_remotes_there_is_no_gateway(built: Build) -> None:
    options = built("leafnodes { host: h }").options
    assert not options.has_gateway and not options.server_ports
    assert "no port" in options.notices[0]
    options = built("leafnodes { port: 7422 }").options
    assert options.has_gateway and options.server_ports == {"leafnodes": ("", 7422)}
    assert built("leafnodes { remotes [ { url: h } ] }").options.has_gateway
    assert not built("leafnodes { remotes [ { url: h, disabled: true } ] }").options.has_gateway


def test_with_verify_and_map_a_certificate_is_enough(built: Build, authority: Authority) -> None:
    maps = f"tls {{ {authority.server().lines}, ca_file: '{authority.path}', verify_and_map: true }}"
    users = "authorization { users [ {user: u} ] }"
    for block in (f"{maps}\n{users}", f"{users}\n{maps}"):
        options = built(f"leafnodes {{ port: 1\n{block} }}").options
        assert [(user.name, user.password) for user in options.leafnodes.users] == [("u", "")]
        assert not any("WebSocket" in notice for notice in options.notices)
    websocket = "websocket { port: 2, no_tls: true }"
    notices = built(f"leafnodes {{ port: 1\n{maps}\n{users} }}\n{websocket}").options.notices
    assert any("leaf nodes by WebSocket are refused" in notice for notice in notices)
    asking = websocket.replace("no_tls: true", maps.replace("verify_and_map: true", "verify: true"))
    notices = built(f"leafnodes {{ port: 1\n{maps}\n{users} }}\n{asking}").options.notices
    assert not any("leaf nodes by WebSocket are refused" in notice for notice in notices)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("leafnodes: 5", "1:1: Expected map to define leafnodes, got a number"),
        ("leafnodes { port: x }", "1:13: port: expected a number"),
        ("leafnodes { port: 4222 }", "1:1: port 4222 is given to clients and to leaf nodes"),
        (
            "leafnodes { port: -1, min_version: 2.7.9 }",
            "1:23: min_version: the minimum version should be at least 2.8.0",
        ),
        ("leafnodes { min_version: two }", "1:13: min_version: invalid leafnode's minimum version"),
        ("leafnodes { authorization: 5 }", "1:13: expected a block"),
        ("leafnodes { authorization { password: pw } }", "1:13: a password without a user lets every leaf node in"),
        ("leafnodes { authorization { user: u } }", "1:13: a user without a password lets every leaf node in"),
        ("leafnodes { authorization { users [] } }", "1:29: an empty list of users"),
        ("leafnodes { authorization { users [ {user: u, pass: pw, permissions: {}} ] } }", "1:57: unknown field"),
        (
            "leafnodes { authorization { users [ {user: u, pass: pw, account: A} ] } }",
            "1:1: leafnodes: there is no acc",
        ),
        ("leafnodes { authorization { nkey: x } }", "1:13: Not a valid public nkey"),
        ("leafnodes { port: 1, tls { cert_file: x } }", "1:22: missing 'key_file'"),
        ("leafnodes { remotes: 5 }", "1:13: Expected remotes to be a list"),
        ("leafnodes { remotes [ 5 ] }", "1:23: Expected a remote to be a map"),
        ("leafnodes { remote [ ] }", '1:13: unknown field "remote"'),
        ("leafnodes { remotes [ {} ] }", "1:23: a remote without url"),
        ("leafnodes { remotes [ { url: h, acount: A } ] }", '1:33: unknown field "acount"'),
        ("leafnodes { remotes [ { url: h, account: A } ] }", '1:1: leafnodes: there is no account "A"'),
        ("leafnodes { remotes [ { url: 5 } ] }", "1:30: expected a URL"),
        ("leafnodes { remotes [ { urls: ['ws://h', 'nats://h'] } ] }", "1:25: remote leafnode urls with and without"),
        ("leafnodes { remotes [ { url: 'http://h' } ] }", '1:30: "http" is no scheme'),
        ("leafnodes { remotes [ { url: 'nats://u:pw@h:x' } ] }", "1:30: error parsing leafnode url"),
        ("leafnodes { remotes [ { url: h, nkey: SUX } ] }", "1:33: Remote leafnode nkey is not a valid seed"),
        ("leafnodes { remotes [ { url: h, credentials: /no/such } ] }", "1:33: /no/such: No such file"),
        ("leafnodes { remotes [ { url: h, deny_imports: ['a..b'] } ] }", "1:48: not a valid subject"),
        ("leafnodes { remotes [ { url: h, dial_timeout: x } ] }", "1:33: dial_timeout: "),
        ("leafnodes { remotes [ { url: h, first_info_timeout: '-1s' } ] }", "1:33: first_info_timeout: a duration"),
        ("leafnodes { remotes [ { url: h, no_randomize: 1 } ] }", "1:33: no_randomize: expected a boolean"),
        (
            "leafnodes { remotes [ { url: h, ignore_discovered_servers: x } ] }",
            "1:33: ignore_discovered_servers: expec",
        ),
        (
            "leafnodes { remotes [ { url: h, tls { cert_file: x } } ] }",
            "1:33: missing 'key_file' in TLS configuration — a",
        ),
        ("leafnodes { remotes [ { url: h, tls { key_file: x } } ] }", "1:33: missing 'cert_file' in TLS configuration"),
        ("leafnodes { remotes [ { url: h, tls: 5 } ] }", "1:33: expected a block, not a number — write tls { ca_file"),
        (
            "leafnodes { remotes [ { url: h, tls { ca_file: '' } } ] }",
            "1:39: ca_file: expected a file, not an empty name",
        ),
        ("leafnodes { remotes [ { url: h, tls { foo: 1 } } ] }", '1:39: unknown field "foo"'),
        ("leafnodes { remotes [ { url: h, tls { min_version: '1.1' } } ] }", "1:39: min_version: unknown TLS version"),
        ("leafnodes { remotes [ { url: h, tls { cipher_suites: [x] } } ] }", "1:39: cipher_suites: unrecognized cip"),
        ("leafnodes { remotes [ { url: h, tls { pinned_certs: [] } } ] }", "1:39: pinned_certs: an empty list lets"),
        ("leafnodes { remotes [ { url: h, tls { pinned_certs: [x] } } ] }", "1:39: pinned_certs: key x does not look"),
        ("leafnodes { remotes [ { url: h, tls { handshake_first: x } } ] }", '1:39: handshake_first: field "x" is in'),
        ("leafnodes { remotes [ { url: h, tls { ocsp_peer: true } } ] }", '1:39: "ocsp_peer": OCSP checks of cert'),
        ("leafnodes { remotes [ { url: h, tls { timeout: -1 } } ] }", "1:39: timeout: -1 seconds is out of range"),
        (
            "leafnodes { remotes [ { url: h, tls { certs: [ {cert_file: a, key_file: b}, {cert_file: c, key_file: d} ]"
            " } } ] }",
            "1:39: certs: a remote presents one certificate",
        ),
        (
            "leafnodes { remotes [ { url: h, tls { verify_cert_and_check_known_urls: true } } ] }",
            '1:39: "verify_cert_and_check_known_urls": certificates that are compared with known URLs',
        ),
        (
            "leafnodes { remotes [ { url: h, tls { ca_file: /no/such } } ] }",
            "1:33: error parsing root ca certificate: open /no/such: no such file",
        ),
        (
            "leafnodes { remotes [ { url: h, tls { cert_file: /no/such, key_file: /no/such } } ] }",
            "1:33: error parsing X509 certificate/key pair: open /no/such: no such file",
        ),
        (
            "leafnodes { remotes [ { url: 'nats://u:pw@h' }, { url: 'nats://u:pw@h' } ] }",
            '1:49: duplicate remote urls=["nats://xxxxx@h"], account="$G"',
        ),
        ("leafnodes { remotes [ { url: h } ] }\nleafnodes {}", "2:1: leafnodes is given again"),
        ("leafnodes { port: [1] }", "1:13: port: expected a number, not a list"),
        (
            "leafnodes { remotes [ { url: h, dial_timeout: {} } ] }",
            "1:33: dial_timeout: expected a duration, not a blo",
        ),
        (r'leafnodes { remotes [ { url: h, creds: "\x00" } ] }', "1:33: creds: a path has no NUL character"),
        (r'leafnodes { remotes [ { url: h, tls { ca_file: "\x00" } } ] }', "1:39: ca_file: a path has no NUL"),
        (r'leafnodes { remotes [ { url: h, tls { cert_file: "\x00" } } ] }', "1:39: cert_file: a path has no NUL"),
        (r'leafnodes { remotes [ { url: h, tls { key_file: "\x00" } } ] }', "1:39: key_file: a path has no NUL"),
    ],
)
def test_a_mistake_has_its_place(refusals: Callable[[str], list[str]], text: str, wanted: str) -> None:
    found = refusals(text)
    assert any(line.startswith(wanted) for line in found), found
    assert "pw" not in "".join(found)


def test_credentials_are_read_from_a_file_alone(refusals: Callable[[str], list[str]], tmp_path: Path) -> None:
    """A named pipe would be waited for, at the start and at every reload."""
    os.mkfifo(tmp_path / "pipe")
    for path, said in (
        (tmp_path / "pipe", "is a FIFO (named pipe), not a file"),
        (tmp_path, "is a directory"),
        ("/dev/zero", "is a character device, not a file"),
    ):
        (found,) = refusals(f"leafnodes {{ remotes [ {{ url: h, credentials: '{path}' }} ] }}")
        assert found.startswith(f"1:33: {path}: {said} — name a .creds file")


@pytest.mark.parametrize("is_old_format", [False, True])
def test_nobody_is_asked_for_the_password_of_a_key(
    refusals: Callable[[str], list[str]],
    authority: Authority,
    capfd: pytest.CaptureFixture[str],
    *,
    is_old_format: bool,
) -> None:
    """OpenSSL would ask on the terminal, where a start as a service waits for ever."""
    from cryptography.hazmat.primitives import serialization

    pair = authority.server(password=b"x")
    if is_old_format:
        key = serialization.load_pem_private_key(pair.key.read_bytes(), b"x")
        locked = serialization.BestAvailableEncryption(b"x")
        old = serialization.PrivateFormat.TraditionalOpenSSL
        pair.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, old, locked))
    (said,) = refusals(f"leafnodes {{ remotes [ {{ url: h, tls {{ {pair.lines} }} }} ] }}")
    assert said.startswith("1:33: error parsing X509 certificate/key pair: ")
    assert f"{pair.key} is encrypted with a password, which nobody could type here; write it without one" in said
    assert "pass phrase" not in capfd.readouterr().err


def test_a_number_of_seconds_is_a_write_deadline(built: Callable[..., Built]) -> None:
    assert built("leafnodes { port: 1, write_deadline: 5 }").options.leafnodes.write_deadline_s == 5.0


@pytest.mark.parametrize(
    ("inner", "host", "port"),
    [
        ("host: 127.0.0.1, listen: 7422", "127.0.0.1", 7422),
        ("listen: 7422, host: 127.0.0.1", "127.0.0.1", 7422),
        ("host: 127.0.0.1, listen: 0", "127.0.0.1", 0),
        ("listen: -1", "", -1),
        ("host: 127.0.0.1, listen: 'localhost:1'", "localhost", 1),
    ],
)
def test_a_port_alone_leaves_the_host_as_it_is(built: Callable[..., Built], inner: str, host: str, port: int) -> None:
    leafnodes = built(f"leafnodes {{ {inner} }}").options.leafnodes
    assert (leafnodes.host, leafnodes.port) == (host, port)


@pytest.mark.parametrize(("count", "is_told"), [(31, False), (32, True)])
def test_more_remotes_than_there_may_be_connections_are_a_notice(built: Build, count: int, is_told: bool) -> None:
    """Else the log tells of each, again and again, as of a connection that has been closed."""
    remotes = ", ".join(f"{{ url: h{number} }}" for number in range(count))
    notices = built(f"leafnodes {{ remotes [ {remotes}, {{ url: i, disabled: true }} ] }}").options.notices
    assert [f":1:13: {count} remotes, but a broker has at most 31 connections" in notice for notice in notices] == [
        True
    ] * is_told


def test_a_file_that_many_remotes_name_is_kept_once(built: Build, authority: Authority, tmp_path: Path) -> None:
    """72 with a bundle of all public authorities were refused as too large."""
    bundle = tmp_path / "bundle.pem"
    bundle.write_bytes(authority.path.read_bytes())
    pair = authority.client()
    tls = [f"tls {{ ca_file: '{bundle}' }}"] * 3 + [f"tls {{ {pair.lines}, ca_file: '{bundle}' }}"] * 2 + [""]
    text = "\n".join(f"{{ url: h{number}, {one} }}" for number, one in enumerate(tls))
    options = built(f"leafnodes {{ remotes [ {text} ] }}").options.leafnodes
    remotes = options.complete_remotes
    assert [remote.tls.ca_pem == bundle.read_bytes() for remote in remotes] == [True] * 5 + [False]
    assert [remote.tls.key_pem == pair.key.read_bytes() for remote in remotes] == [False] * 3 + [True] * 2 + [False]
    assert [one.apart_from_files for one in remotes] == [one.apart_from_files for one in options.remotes]
    for field in ("ca_pem", "cert_pem", "key_pem"):
        assert len([remote for remote in options.remotes if getattr(remote.tls, field)]) == 1
