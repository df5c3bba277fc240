"""Variables: the environment may give text that looks like a number, and one that is missing harms no other."""

from __future__ import annotations

import pathlib

import pytest

from gnatswarm.broker.options import Options
from gnatswarm.router.config.conf_tree import ConfigError
from gnatswarm.router.config.flags import parse
from gnatswarm.router.config.options_build import build


def options(tmp_path: pathlib.Path, text: str, **environment: str) -> Options:
    path = tmp_path / "t.conf"
    path.write_text(text)
    return build(parse(["-c", str(path)]), environment=environment).options


def problems(tmp_path: pathlib.Path, text: str, **environment: str) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        options(tmp_path, text, **environment)
    return [problem.what for problem in raised.value.problems]


WORDS = ["12345", "007", "1e5", "10k", "1.50", "true", "off", "2020-01-01", "-x", "2024-01-01T00:00:00Z", ".5x"]


@pytest.mark.parametrize("word", WORDS)
def test_where_text_is_expected_the_environment_gives_text(tmp_path, word):
    users = "users: [ { user: $W, password: $W } ]"
    found = options(tmp_path, f"server_name: $W\nauthorization {{ {users} }}", W=word)
    assert found.server_name == word
    assert [(user.name, user.password) for user in found.users] == [(word, word)]
    assert options(tmp_path, "authorization { token: $W }", W=word).auth_token == word
    named = options(tmp_path, "accounts { A { users: [ { user: a, password: $W } ] } }", W=word)
    assert named.users[0].password == word


def test_where_a_number_is_expected_it_gives_a_number(tmp_path):
    found = options(
        tmp_path, "port: $P\nmax_payload: $M\ndebug: $D\nping_interval: $I", P="4333", M="2MB", D="yes", I="5s"
    )
    assert (found.port, found.limits.max_payload_bytes, found.logging.debug) == (4333, 2 * 2**20, True)


def test_a_number_in_the_file_is_still_no_text(tmp_path):
    assert problems(tmp_path, "W: 12345\nserver_name: $W") == ["server_name: expected text, not a number"]


def test_text_of_the_environment_that_is_no_word_is_refused(tmp_path):
    for text in ("a b", "a'b", "[a", "{", "a, b: c"):
        (only,) = problems(tmp_path, "server_name: $W", W=text)
        assert only.startswith("variable reference for 'W' could not be parsed")


@pytest.mark.parametrize(
    "secret", ["$tr0ngpw", "tr0ng pw", "'tr0ngpw", "{tr0ngpw", "[tr0ngpw", "tr0ngpw\\q", "-tr0ng, pw"]
)
def test_a_secret_of_the_environment_that_is_no_value_is_not_shown(tmp_path, secret):
    (only,) = problems(tmp_path, "authorization { user: a, password: $PW }", PW=secret)
    assert only.startswith("variable reference for 'PW' could not be parsed: ") and "tr0ng" not in only


MISSING = "variable reference for '{}' can not be found"


def test_a_missing_variable_is_reported_where_it_is_missing_and_nowhere_else(tmp_path):
    assert problems(tmp_path, "A: $NONE\nport: $A\nserver_name: $A") == [MISSING.format("NONE")]


@pytest.mark.parametrize(
    "text",
    [
        "authorization { user: u, password: $NONE }\nno_auth_user: u",
        "authorization { user: $NONE, password: p }",
        "authorization { users: [ { user: $NONE, password: p } ] }",
        # The rest of the line is read as it is: its brackets close what they close.
        "accounts { A { users: [ { user: a, password: $NONE, permissions: { publish: x } } ] } }\nport: 4222",
        "accounts { A { users: [ { user: a, password: $NONE } ] } }\nno_auth_user: a\nsystem_account: A",
        "tls { cert_file: $NONE, key_file: k.pem }",
        "authorization { users: [ { user: a, permissions: { publish: [ $NONE ] } } ] }",
        "websocket { port: $NONE, no_tls: true }",
    ],
)
def test_a_missing_variable_condemns_nothing_that_is_right(tmp_path, text):
    assert problems(tmp_path, text) == [MISSING.format("NONE")]


def test_what_is_wrong_besides_is_still_reported(tmp_path):
    text = "server_name: $NONE\nprt: 1\nauthorization { user: u, pasword: x }"
    assert problems(tmp_path, text)[:2] == [MISSING.format("NONE"), 'unknown field "prt"']
    assert 'unknown field "pasword"' in problems(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "pair"),
    [
        ("port: 4333\nhttp_port: 4333", "clients and to monitoring"),
        ("http_port: 4222", "clients and to monitoring"),
        ("port: 4333\nwebsocket { port: 4333, no_tls: true }", "clients and to WebSocket"),
        ('http: "127.0.0.1:81"\nwebsocket { listen: "localhost:81", no_tls: true }', "WebSocket and to monitoring"),
        ('listen: "10.0.0.1:4333"\nhttp: "0.0.0.0:4333"', "clients and to monitoring"),
    ],
)
def test_one_port_for_two_is_a_problem(tmp_path, text, pair):
    (only,) = problems(tmp_path, text)
    assert f"is given to {pair}" in only


@pytest.mark.parametrize(
    "text",
    [
        "port: -1\nhttp_port: -1\nwebsocket { port: -1, no_tls: true }",
        'listen: "10.0.0.1:4333"\nhttp: "127.0.0.1:4333"',
        "port: 4222\nhttp_port: 0",
        "port: 4222\nhttp_port: 8222\nwebsocket { port: 8080, no_tls: true }",
    ],
)
def test_ports_that_do_not_meet_are_valid(tmp_path, text):
    options(tmp_path, text)


def test_text_of_the_environment_that_is_not_utf_8_is_refused(tmp_path):
    assert problems(tmp_path, "server_name: $NAME", NAME="a\udcff") == ["variable reference for 'NAME' is not UTF-8"]
