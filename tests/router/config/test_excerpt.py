"""Errors show their line with a caret, and never a secret: what is printed at a failed start ends in a journal."""

from __future__ import annotations

import pathlib

import pytest

from gnatswarm.router.config.conf_tree import ConfigError
from gnatswarm.router.config.excerpt import with_lines
from gnatswarm.router.config.flags import parse
from gnatswarm.router.config.options_build import build


def shown(tmp_path: pathlib.Path, text: str) -> list[str]:
    path = tmp_path / "t.conf"
    path.write_text(text)
    with pytest.raises(ConfigError) as raised:
        build(parse(["-c", str(path)]), environment={})
    return with_lines(raised.value).splitlines()


def test_the_caret_is_below_the_place(tmp_path):
    lines = shown(tmp_path, "port: 4222\n  max_payload: 1MB x\n")
    assert lines[0].startswith(f"{tmp_path}/t.conf:2:20: expected a top-level value to end")
    assert lines[1] == "    2 |   max_payload: 1MB …"
    assert lines[2] == "      |                    ^"


def test_each_problem_has_its_line(tmp_path):
    lines = shown(tmp_path, "prt: 1\n\nmax_payload: x\n")
    assert [line for line in lines if " | " in line and "^" not in line] == ["    1 | prt: …", "    3 | max_payload: x"]


SECRET = "hunter2"
SECRETS = [
    f"authorization {{ user: u, password: {SECRET}, permission: 7 }}",
    f"authorization {{ user: u, pasword: {SECRET} }}",
    f"pasword: '{SECRET} {SECRET}'",
    f"password: {SECRET} {SECRET}",
    f'authorization {{ users: [ {{ user: a, password: "{SECRET}\\q" }} ] }}',
    f"http_password: {SECRET} x",
    f"http_password: [ {SECRET} ]",
    f"PASSWORD = {SECRET}, prt: 1",
    f"accounts {{ A {{ users: [ {{ user: a, pass: {SECRET}, nope: {SECRET} }} ] }} }}",
    f"authorization {{ user: u, password: 1{SECRET}",
    f"prt: 1 # {SECRET}",
    f"prt: 1 // {SECRET}",
    f"tls {{ cert_file: a, key_file: b, password: {SECRET} }}",
    f"include [ {SECRET} ]",
    *(
        f'remote_syslog: "{url}"'
        for url in (
            f"udp://u:{SECRET}@",
            f"udp://u:{SECRET}",
            f"tcp://u:{SECRET}/x@h:514",
            f"x://{SECRET}@h:514",
            f"udp:/u:{SECRET}@h:99999",
            f"udp:u:{SECRET}@h:99999",
            f"UDP:/u:{SECRET}",
            f"u:{SECRET}@h:514",
            f"//u:{SECRET}@h:514",
            f"udp://u:x@{SECRET}@h:99999",
        )
    ),
]
MISSPELT_URLS = [
    f"nats://u:{SECRET}@h:4222",
    f"NATS://u:{SECRET}@h:4222",
    f"nats:/u:{SECRET}@h:4222",
    f"nats:u:{SECRET}@h:4222",
    f"//u:{SECRET}@h:4222",
    f"u:{SECRET}@h:4222",
    f"u:{SECRET}@h",
    f"nats://u:x@{SECRET}@h:4222",
    f"nats://u:x/{SECRET}@h:4222",
]


@pytest.mark.parametrize("text", SECRETS)
def test_no_secret_is_shown(tmp_path, text):
    lines = [line for line in shown(tmp_path, text) if " | " in line]
    assert lines
    assert not any(SECRET in line for line in lines)


@pytest.mark.parametrize("key", ["listen", "http", "port", "compatibility", "write_deadline"])
@pytest.mark.parametrize("url", MISSPELT_URLS)
def test_no_error_has_the_password_of_a_url(tmp_path, key, url):
    lines = shown(tmp_path, f'{key}: "{url}"')
    assert f"1:1: {key}: " in lines[0]
    assert not any(SECRET in line for line in lines)


@pytest.mark.parametrize("value", ["[::1]:99999", "127.0.0.1:99999", "/a/b:1", "a b", "10x", "udp://h:99999"])
def test_a_value_without_a_password_is_shown(tmp_path, value):
    assert f'    1 | max_payload: "{value}"' in shown(tmp_path, f'max_payload: "{value}"')


def test_a_name_with_an_at_sign_is_shown(tmp_path):
    lines = shown(tmp_path, 'authorization { users: [ {user: "a@b.c", pass: p}, {user: "a@b.c", pass: p} ] }')
    assert 'Duplicate user "a@b.c" detected' in lines[0]


def test_a_long_line_is_cut_around_the_place(tmp_path):
    users = ", ".join(f"{{user: u{at}, password: p}}" for at in range(200))
    lines = shown(tmp_path, f"authorization {{ users: [ {users}, {{password: x}} ] }}")
    assert max(map(len, lines[1:])) < 120
    assert lines[1][lines[2].index("^")] == "{"


def test_a_file_that_is_gone_has_no_lines(tmp_path):
    path = tmp_path / "t.conf"
    path.write_text("prt: 1")
    with pytest.raises(ConfigError) as raised:
        build(parse(["-c", str(path)]), environment={})
    path.unlink()
    assert with_lines(raised.value) == str(raised.value)
