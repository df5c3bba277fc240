"""What a file gives twice, in one spelling or in two, does not silently undo what it says first."""

from __future__ import annotations

import pathlib

import pytest

from gnatswarm.router.config.conf import parse_text
from gnatswarm.router.config.conf_tree import ConfigError
from gnatswarm.router.config.flags import parse
from gnatswarm.router.config.keywords import options_from
from gnatswarm.router.config.options_build import build
from gnatswarm.router.config.simple_file import simple_file

A, B = "{ users: [ {user: a, password: b} ] }", "{ users: [ {user: c, password: d} ] }"
NKEY = "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"accounts {{ A {A} }}\nAccounts {{ B {{}} }}", "Accounts is given again — keep one; the other is at t:1:1"),
        (f"authorization {A}\nAuthorization {B}", "Authorization is given again"),
        ("tls: {}\nTLS { verify: false }", "TLS is given again"),
        ("websocket { port: 1, no_tls: true }\nws { port: 2, no_tls: true }", "ws is given again"),
        ("leafnodes { port: 1 }\nleaf {}", "leaf is given again"),
        ("cluster { port: 1 }\nCluster {}", "Cluster is given again"),
        ("placement { bound: 2 }\nPlacement {}", "Placement is given again"),
        ("mappings { a: b }\nMAPS { a: c }", "MAPS is given again"),
        ("max_connections: 5\nMAX_CONN: 6", "MAX_CONN is given again"),
        ("authorization { token: a }\nx: $authorization\nauthorization {}", "authorization is given again"),
        ("stats { enabled: true, Enabled: false }", "stats: a field is given again, in another spelling"),
    ],
)
def test_a_second_spelling_of_a_top_level_option_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        options_from(text, "t")
    assert said in str(caught.value)
    assert simple_file(parse_text(text)) is None


def test_a_lock_that_is_also_a_variable_is_refused_when_it_is_given_again() -> None:
    text = "tls { cert_file: c, key_file: k, verify: true }\nwebsocket { port: 1, tls: $tls }\ntls { cert_file: c }"
    with pytest.raises(ConfigError, match="tls is given again"):
        options_from(text)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (f"authorization {{ users: [ {{user: a, password: b}} ], USERS: [ {{nkey: {NKEY}}} ] }}", "USERS"),
        ("authorization { user: a, pass: b, password: '' }", "password"),
        ("authorization { user: a, pass: b, pass: '' }", "pass"),
        ("authorization { token: a, Token: b }", "Token"),
        ("authorization { user: a, pass: b, timeout: 1, Timeout: 2 }", "Timeout"),
        ("authorization { users: [ {user: a, password: good, pass: ''} ] }", "pass"),
        ("authorization { users: [ {user: a, username: b, password: c} ] }", "username"),
        ("authorization { users: [ {user: a, password: b, password: c} ] }", "password"),
        (f"authorization {{ users: [ {{nkey: {NKEY}, NKey: U}} ] }}", "NKey"),
        (
            "authorization { users: [ {user: a, password: b,"
            " permissions { publish: x, allow_responses { max: 1, max_msgs: 9 } }} ] }",
            "max_msgs",
        ),
        ("accounts { A { users: [ {user: a, password: b} ], Users: [] } }", "Users"),
        ("accounts { A { limits { max_conn: 1, max_connections: 100 } } }", "max_connections"),
        ("accounts { A { msg_trace { dest: a, Dest: b } } }", "Dest"),
        ("cluster { port: 1, authorization { user: a, password: b, pass: c } }", "pass"),
        ("cluster { port: 1, authorization { user: a, password: b }, authentication { user: c } }", "authentication"),
        ("cluster { port: 1, host: '127.0.0.1', net: '0.0.0.0' }", "net"),
        ("websocket { port: 1, no_tls: true, host: '127.0.0.1', HOST: '0.0.0.0' }", "HOST"),
        ("websocket { port: 1, no_tls: true, authorization { user: a, password: b, pass: c } }", "pass"),
        ("websocket { port: 1, no_tls: true, allowed_origins: 'https://a', origins: 'https://b' }", "origins"),
        ("tls { cert_file: c, key_file: k, verify: true, Verify: false }", "Verify"),
        ("tls { cert_file: c, key_file: k, first: true, handshake_first: false }", "handshake_first"),
        ("tls { certs: [ {cert_file: c, key_file: k, Key_File: l} ] }", "Key_File"),
        ("leafnodes { port: 1, host: '127.0.0.1', net: '0.0.0.0' }", "net"),
        ("leafnodes { port: 1, authorization { user: a, password: b, pass: c } }", "pass"),
        ("leafnodes { port: 1, authorization { users: [ {user: a, password: b, pass: c} ] } }", "pass"),
        ("leafnodes { remotes: [ {url: 'nats://a:1', urls: ['nats://b:1']} ] }", "urls"),
        ("leafnodes { remotes: [ {url: 'tls://a:1', tls { insecure: false, Insecure: true }} ] }", "Insecure"),
        ("placement { after_scale: stay, After_Scale: even }", "After_Scale"),
        ("cluster { port: 1, authorization { user: a, password: b }, authorization {} }", "authorization"),
        ("cluster { port: 1, permissions { import: a }, permissions {} }", "permissions"),
        ("leafnodes { port: 1, authorization { user: a, password: b }, authorization {} }", "authorization"),
        ("leafnodes { port: 1, tls { cert_file: c, key_file: k, verify: true }, tls {} }", "tls"),
        ("websocket { port: 1, tls { cert_file: c, key_file: k, verify: true }, tls {} }", "tls"),
    ],
)
def test_a_second_spelling_in_a_block_is_refused(text: str, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        options_from(text)
    assert f"{key} is given again — keep one; the other is at" in str(caught.value)
    assert simple_file(parse_text(text)) is None


def test_in_one_spelling_the_last_of_other_options_counts_and_is_told() -> None:
    options = options_from("cluster { port: -1, host: '127.0.0.1', host: localhost }")
    assert options.cluster.host == "localhost"
    assert any("'host' is given again; this value counts" in notice for notice in options.notices)


@pytest.mark.parametrize(
    "text",
    [
        "PORT: 4333\nport: $PORT",
        "authorization { USER: a, PASS: b, user: $USER, pass: $PASS }",
        "authorization { users: [ {user: a, password: b} ] }\naccounts { a {}, A {} }",
        "server_metadata { a: x, A: y }",
        "websocket { port: -1, no_tls: true, headers { X-a: 1x, x-A: 2x } }",
    ],
)
def test_what_is_the_same_in_two_spellings_or_no_option_is_accepted(text: str) -> None:
    assert options_from(text).notices is not None


def test_a_file_that_includes_another_overrides_it_in_any_spelling(tmp_path: pathlib.Path) -> None:
    (tmp_path / "base.conf").write_text("max_connections: 5\nnet: 127.0.0.1\n")
    path = tmp_path / "t.conf"
    path.write_text("include base.conf\nmax_conn: 6\nhost: localhost\n")
    options = build(parse(["-c", str(path)])).options
    assert options.limits.max_connections == 6 and options.host == "localhost"
    said = [notice.partition(" — ")[0] for notice in options.notices]
    assert said == [
        f"{path}:2:1: 'max_conn' is given again; this value counts",
        f"{path}:3:1: 'host' is given again; this value counts",
    ]
