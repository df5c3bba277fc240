"""A file that is accepted before the modules that make options are imported makes options, with the same settings."""

from __future__ import annotations

import os
import pathlib
import random

import pytest

from gnatswarm.router.config.conf_tree import ConfigError
from gnatswarm.router.config.flags import parse
from gnatswarm.router.config.options_build import build, build_parsed
from gnatswarm.router.config.simple_file import LARGEST_BYTES, simple_file
from gnatswarm.router.listening.head_start import DEFAULT_PORT, simple

# Pieces of files, right and wrong; a file is some of them.
PIECES = [
    *("port: 4333", "port: -1", "port: 70000", "port: x", "listen: 4334", "listen: 'localhost:4335'", "listen: 'a:b'"),
    *("host: 127.0.0.1", "net: localhost", "host: '1 2'", "host: example.org", "PORT: 4333", "http: 8222"),
    *("http: '127.0.0.1:8223'", "http_port: 4333", "monitor_port: 0", "https: 8443", "http: 'x:1'"),
    *(
        "max_payload: 2MB",
        "max_payload: 60MB",
        "max_payload: 0",
        "max_pending: 1MB",
        "max_pending: 10",
        "max_pending: 0",
    ),
    *("max_connections: 5", "max_subs: -1", "ping_interval: 2", "ping_interval: '2s'", "ping_interval: soon"),
    *("write_deadline: 5", "lame_duck_duration: '10s'", "server_name: me", "server_name: 'a b'", "debug: true"),
    *("debug: maybe", "trace: no", "logtime: false", "shards: 2", "shards: 63", "accept: handoff", "accept: both"),
    *("compatibility: '2.15'", "compatibility: 2.9", "compatibility: 3", "stats: false", "stats { window: 1s }"),
    *("stats { window: 1h, x: 1 }", "log_file: ''", "log_file: '/nowhere/at/all.log'", "pid_file: 'x.pid'"),
    *("jetstream: enabled", "jetstream {}", "jetstream: perhaps", "gateway { x: 1 }", "gateway: 5", "mqtt {}"),
    *(
        "no_fast_producer_stall: true",
        "prof_port: 1",
        "resolver: MEMORY",
        "operator: x",
        "unknown: 5",
        "x: 5\nport: $x",
    ),
    *("port: $UNSET", "port", "{", "}", "include 'no.such'", "tls {}", "tls { cert_file: x }", "no_auth_user: ann"),
    *(
        "cluster { port: -1 }",
        "websocket { port: 4333 }",
        "leafnodes { port: -1 }",
        "system_account: SYS",
        "placement {}",
    ),
    *("authorization { user: ann, password: pw }", "authorization { user: ann, pass: pw, timeout: 2 }"),
    *("authorization { token: secret }", "authorization { token: '' }", "authorization { token: $2a$11$abc }"),
    *(
        "authorization { user: ann }",
        "authorization { password: pw }",
        "authorization {}",
        "authorization { users: [] }",
    ),
    *("authorization { user: a, pass: b, token: c }", "authorization { timeout: x, token: t }", "authorization: 5"),
    "authorization { users: [{user: ann, pass: pw}, {user: bob, pass: pw}] }",
    "authorization { users: [{user: ann, pass: pw}, {user: ann, pass: pw}] }",
    "authorization { users: [{user: ann, pass: $2a$11$short}] }",
    "authorization { users: [{user: ann}] }",
    "authorization { users: [{nkey: x}] }",
    "authorization { users: [{user: ann, pass: pw, x: 1}] }",
    "authorization { auth_callout {} , token: x }",
    *(
        f"authorization {{ users: [{{user: ann, pass: pw, permissions: {{ {inner} }} }}] }}"
        for inner in (
            *("publish: a.b", "publish: ['a.>', '*']", "pub: [], sub: x", "publish: 'a b'", "subscribe: 'a q'"),
            *("publish: a, pub: b", "subscribe: {allow: a, deny: [b.c]}", "subscribe: {allow: []}", "subscribe: {}"),
            *("publish: 'a..b'", "publish: '.a'", "publish: 'a.>.b'", "publish: {also: x}", "allow_responses: true"),
            *("publish: ''", "publish: 5", "publish: 'a*'", "sub: ['x.*.y', '>']", "x: y", "publish: [[a]]"),
        )
    ),
    "accounts { A: { users: [{user: ann, pass: pw}] } }",
    "accounts { A: { users: [{user: ann, pass: pw}] }, B: { users: [{user: ann, pass: pw}] } }",
    "accounts { A: { users: [{user: eve, pass: pw}] }, B: { users: [{user: bob, pass: pw}] } }",
    *("accounts {}", "accounts: [A]", "accounts { A: {} }", "accounts { $SYS: { users: [{user: a, pass: b}] } }"),
    "accounts { A: { users: [{user: ann, pass: pw}], exports: [{service: x}] } }",
    "accounts { A: { users: [{user: ann, pass: pw}], limits: {} } }",
    "accounts { 'a b': { users: [{user: ann, pass: pw}] } }",
]
FLAGS = [
    *("-a=127.0.0.1", "-p=4444", "-p=0", "-m=4333", "-m=0", "--shards=3", "--accept=reuseport", "-D"),
    *("--user=ann", "--pass=pw", "--auth=t", "-n=me", "--compatibility=2.15", "--no_stats", "--tls"),
]


def _written(tmp_path: pathlib.Path, text: str) -> str:
    path = tmp_path / "nats.conf"
    path.write_text(text)
    return str(path)


def test_each_file_that_is_accepted_makes_options(tmp_path: pathlib.Path) -> None:
    draw = random.Random(20)
    accepted = 0
    for _ in range(3000):
        text = "\n".join(draw.sample(PIECES, draw.choice((1, 1, 2, 3, 5))))
        flags = draw.sample(FLAGS, draw.choice((0, 0, 1, 2)))
        line = parse(["-c", _written(tmp_path, text), *flags])
        wished = simple(line)
        if wished is None:
            continue
        accepted += 1
        try:
            options = build(line).options
        except ConfigError as error:
            raise AssertionError(f"{text}\n{flags}: {error}") from error
        assert options.host == wished.host, (text, flags)
        assert (options.port or DEFAULT_PORT) == wished.port, (text, flags)
        assert (options.http_host, options.http_port, options.https_port) == (wished.http_host, wished.http_port, 0)
        assert (options.websocket.port, options.server_ports) == (0, {}), (text, flags)
        assert (options.sharding.shards, options.sharding.accept) == (wished.shards, wished.accept), (text, flags)
        assert options.logging.file == wished.log_file
        assert build_parsed(wished.parsed, line).options == options
    assert accepted > 300


@pytest.mark.parametrize("piece", [one for one in PIECES if "ann" in one and "no_auth" not in one])
def test_users_that_are_accepted_are_those_of_the_options(piece: str, tmp_path: pathlib.Path) -> None:
    path = _written(tmp_path, piece)
    found = simple_file(path)
    try:
        options = build(parse(["-c", path])).options
    except ConfigError:
        assert found is None
        return
    assert found is None or found.has_credentials
    assert options.users or options.auth_user


@pytest.mark.parametrize(
    "text",
    [
        "",
        "port: 4222",
        "listen: localhost:4222\nhttp: 8222",
        "authorization { user: ann, password: pw }",
        "accounts { A { users: [{user: ann, password: pw}] } }",
        "authorization { users: [{user: ann, password: pw, permissions: {publish: 'a.>', subscribe: [b, 'c.*']}}] }",
        "jetstream: enabled\ngateway { name: x }\nping_interval: 20\nmax_payload: 1MB",
    ],
)
def test_what_most_files_have_is_accepted(text: str, tmp_path: pathlib.Path) -> None:
    assert simple_file(_written(tmp_path, text)) is not None


def test_an_included_file_is_read_and_a_large_one_is_left(tmp_path: pathlib.Path) -> None:
    (tmp_path / "more.conf").write_text("port: 4333")
    found = simple_file(_written(tmp_path, "include more.conf"))
    assert found is not None
    assert found.settings["port"] == 4333
    (tmp_path / "more.conf").write_text("# " + "x" * LARGEST_BYTES + "\nport: 4333")
    assert simple_file(_written(tmp_path, "include more.conf")) is None
    assert simple_file(str(tmp_path / "more.conf")) is None


def test_a_pipe_is_not_read(tmp_path: pathlib.Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert simple_file(str(tmp_path / "pipe")) is None
    assert simple_file(str(tmp_path / "none")) is None
    assert simple_file("a\0b") is None
