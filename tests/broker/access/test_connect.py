"""CONNECT, read as the Go server reads it: keys in any case, overlays, wrong types, and JSON at its edges."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnatswarm.broker.access.connect import ClientOptions, overlay, require_object, require_sense
from gnatswarm.broker.errors import (
    AuthorizationViolation,
    BadArguments,
    InvalidClientProtocol,
    NoRespondersRequiresHeaders,
)

DEFAULTS = ClientOptions()


def test_defaults_before_the_first_connect():
    assert (DEFAULTS.verbose, DEFAULTS.pedantic, DEFAULTS.echo) == (True, True, True)
    assert not (DEFAULTS.tls_required or DEFAULTS.headers or DEFAULTS.no_responders)
    assert (DEFAULTS.protocol, DEFAULTS.user, DEFAULTS.name) == (0, "", "")


def test_what_a_connect_leaves_out_stays_as_it_was():
    first = overlay(DEFAULTS, b'{"verbose":false,"name":"a","headers":true}')
    second = overlay(first, b'{"pedantic":false}')
    assert (second.verbose, second.pedantic, second.name, second.headers) == (False, False, "a", True)
    assert DEFAULTS.verbose  # nothing is changed in place
    assert first.pedantic


def test_every_key_has_its_place():
    said = {"tls_required": True, "auth_token": "t", "user": "u", "pass": "p", "nkey": "n", "jwt": "j", "sig": "s"}
    said |= {"name": "me", "lang": "python", "version": "1.2", "protocol": 1, "echo": False}
    options = overlay(DEFAULTS, json.dumps(said).encode())
    assert (options.tls_required, options.auth_token, options.user, options.password) == (True, "t", "u", "p")
    assert (options.nkey, options.jwt, options.sig, options.name) == ("n", "j", "s", "me")
    assert (options.lang, options.version, options.protocol, options.echo) == ("python", "1.2", 1, False)


@pytest.mark.parametrize("key", ["verbose", "Verbose", "VERBOSE", "vErBoSe"])
def test_keys_count_in_any_case(key):
    assert overlay(DEFAULTS, json.dumps({key: False}).encode()).verbose is False


def test_of_equal_keys_the_last_counts():
    assert overlay(DEFAULTS, b'{"name":"a","name":"c"}').name == "c"
    assert overlay(DEFAULTS, b'{"name":"a","NAME":"b"}').name == "b"


@pytest.mark.parametrize("raw", [b"null", b"{}", b' {"x":[{"y":1}]} ', b'{"verbose":null,"name":null}'])
def test_what_says_nothing_changes_nothing(raw):
    assert overlay(DEFAULTS, raw) == DEFAULTS
    require_object(raw)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"x",
        b"[]",
        b'"s"',
        b"1",
        b"true",
        b"{",
        b"}",
        b"{'a':1}",
        b'{"a":1,}',
        b'{"a":1}{}',
        b'{"a":1} x',
        b'{"a":NaN}',
        b'{"a":Infinity}',
        b"\x00",
        b"\xff",
        b'{"name":"\n"}',
    ],
)
def test_what_is_no_object_is_refused(raw):
    with pytest.raises(BadArguments):
        overlay(DEFAULTS, raw)
    with pytest.raises(BadArguments):
        require_object(raw)


@pytest.mark.parametrize(
    "raw",
    [
        b'{"verbose":1}',
        b'{"verbose":"true"}',
        b'{"name":1}',
        b'{"name":["a"]}',
        b'{"protocol":"1"}',
        b'{"protocol":1.0}',
        b'{"protocol":true}',
        b'{"protocol":1e400}',
        b'{"protocol":9223372036854775808}',
        b'{"user":{}}',
    ],
)
def test_a_value_of_the_wrong_type_is_refused(raw):
    with pytest.raises(BadArguments):
        overlay(DEFAULTS, raw)


def test_bytes_that_are_no_utf_8_and_lone_surrogates_are_read_as_go_reads_them():
    assert overlay(DEFAULTS, b'{"name":"a\xffb"}').name == "a�b"
    assert overlay(DEFAULTS, b'{"lang":"\\ud800","name":"x"}').name == "x"


def test_deep_json_is_read_and_bottomless_json_is_refused():
    def deep(n: int) -> bytes:
        return b'{"x":' + b"[" * n + b"]" * n + b',"name":"me"}'

    assert overlay(DEFAULTS, deep(2000)).name == "me"
    with pytest.raises(BadArguments):
        overlay(DEFAULTS, deep(60_000))


@pytest.mark.parametrize("raw", [b'{"account":"A"}', b'{"new_account":true}', b'{"NEW_ACCOUNT":true,"name":"x"}'])
def test_a_client_may_not_choose_its_account(raw):
    with pytest.raises(AuthorizationViolation):
        overlay(DEFAULTS, raw)


@pytest.mark.parametrize(
    "members",
    [
        '"new_account":"x"',
        '"import":5',
        '"import":{"allow":5}',
        '"IMPORT":{"Allow":[5]}',
        '"export":[]',
        '"export":{"deny":"a"}',
    ],
)
def test_what_only_servers_say_has_to_be_right_all_the_same(members):
    with pytest.raises(BadArguments):
        overlay(DEFAULTS, f"{{{members}}}".encode())


def test_what_only_servers_say_has_no_effect():
    raw = b'{"import":{"allow":["a",null],"deny":null,"x":5},"export":{},"new_account":false,"remote_account":5}'
    assert overlay(DEFAULTS, raw) == DEFAULTS


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        (b'{"protocol":2}', InvalidClientProtocol),
        (b'{"protocol":-1}', InvalidClientProtocol),
        (b'{"no_responders":true}', NoRespondersRequiresHeaders),
        (b'{"no_responders":true,"headers":false}', NoRespondersRequiresHeaders),
    ],
)
def test_what_makes_no_sense_is_refused_once_the_client_may_come_in(raw, error):
    options = overlay(DEFAULTS, raw)
    with pytest.raises(error):
        require_sense(options)


@pytest.mark.parametrize("raw", [b'{"protocol":0}', b'{"protocol":1}', b'{"no_responders":true,"headers":true}'])
def test_what_makes_sense_passes(raw):
    require_sense(overlay(DEFAULTS, raw))


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(raw):
    with contextlib.suppress(BadArguments, AuthorizationViolation):
        overlay(DEFAULTS, raw)
