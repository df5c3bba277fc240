"""A file that is accepted before the modules that make options are imported makes options, with the same settings."""

from __future__ import annotations

import os
import pathlib
import random

import pytest

from gnatswarm.broker.limits import Limits
from gnatswarm.router.config import simple_file as simple_file_module
from gnatswarm.router.config.conf_tree import ConfigError
from gnatswarm.router.config.flags import parse
from gnatswarm.router.config.options_build import build, build_parsed
from gnatswarm.router.config.simple_file import LARGEST_BYTES, SimpleFile, parsed_file
from gnatswarm.router.listening.head_start import DEFAULT_PORT, simple

EXAMPLES = pathlib.Path(__file__).resolve().parents[3] / "deploy" / "config"
HASH = "$2a$11$W2zko751KUvVy59mUTWmpOdWjpEm5qhcCZRd05GjI/sSOT.xtiHyG"
NKEY = "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4"

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
    *(
        "max_connections: 5",
        "max_connections: 0",
        "max_subs: -1",
        "ping_interval: 2",
        "ping_interval: '2s'",
        "ping_interval: soon",
    ),
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
    "accounts { A: { users: [{user: ann, pass: pw}], limits: {max_subs: 5, max_payload: 1KB} }, SYS: {} }",
    "accounts { A: { users: [{user: ann, pass: pw}], limits: {max_subs: 0} }, SYS: {} }",
    "accounts { A: { users: [{user: ann, pass: pw}], default_permissions: {publish: a}, jetstream: enabled } }",
    "accounts { A: { users: [{user: ann, pass: pw}], jetstream: perhaps } }",
    *("lame_duck_duration: '30s'", "lame_duck_duration: '1m'", "lame_duck_grace_period: '40s'", "fence: cluster"),
    *("lame_duck_grace_period: 5", "allow_non_tls: true", "link_dir: /tmp", "fence: perhaps", "system_account: ''"),
    *("system_account: $SYS", "system_account: A", "no_auth_user: eve", "no_auth_user: ''", "no_auth_user: " + NKEY),
    "authorization { timeout: 2 }",
    "authorization { default_permissions: {publish: a}, users: [{user: ann, pass: pw}] }",
    "authorization { default_permissions: {publish: a}, default_permission: {}, users: [{user: ann, pass: pw}] }",
    "authorization { default_permissions: {publish: a}, user: ann, pass: pw }",
    "authorization { ALL = {publish: '>'}\n users: [{user: ann, pass: pw, permissions: $ALL}] }",
    "authorization { ALL = {publish: '>'}\n users: [{user: ann, pass: pw}] }",
    "ALL = {publish: '>'}\nauthorization { users: [{user: ann, pass: pw, permissions: $ALL}] }",
    "tls = {publish: '>'}\nauthorization { users: [{user: ann, pass: pw, permissions: $tls}] }",
    "authorization { account = pw\n users: [{user: ann, pass: $account}] }",
    f"authorization {{ users: [{{user: ann, pass: '{HASH}'}}] }}",
    f"authorization {{ user: ann, pass: '{HASH}' }}",
    f"authorization {{ token: '{HASH}' }}",
    f"authorization {{ token: '{HASH[:-1]}' }}",
    "authorization { user: '$2a$ann', pass: '$ecret' }",
    f"authorization {{ users: [{{nkey: {NKEY}}}, {{user: ann, pass: pw}}] }}",
    f"authorization {{ users: [{{nkey: {NKEY}}}, {{nkey: {NKEY}}}] }}",
    f"authorization {{ users: [{{nkey: {NKEY[:-1]}A}}] }}",
    f"authorization {{ users: [{{nkey: {NKEY}, pass: ann}}] }}",
    *(
        f"authorization {{ users: [{{user: ann, pass: pw, permissions: {{ allow_responses: {inner} }} }}] }}"
        for inner in (
            *("true", "false", "5", "{}", "{max: 5}", "{max: 0}", "{max: x}", "{expires: '1m'}", "{expires: 5}"),
            *("{expires: soon}", "{expires: '0s'}", "{max: 5, expires: '2m'}", "{max: 5, ttl: '2m'}", "true, sub: 'a'"),
            "true, allow_responses: false",
        )
    ),
]
FLAGS = [
    *("-a=127.0.0.1", "-p=4444", "-p=0", "-m=4333", "-m=0", "--shards=3", "--accept=reuseport", "-D"),
    *("--user=ann", "--pass=pw", "--auth=t", "-n=me", "--compatibility=2.15", "--no_stats", "--tls"),
]


def simple_file(path: str) -> SimpleFile | None:
    parsed = parsed_file(path)
    return None if parsed is None else simple_file_module.simple_file(parsed)


def _written(tmp_path: pathlib.Path, text: str) -> str:
    path = tmp_path / "nats.conf"
    path.write_text(text)
    return str(path)


def test_each_file_that_is_accepted_makes_options(tmp_path: pathlib.Path) -> None:
    draw = random.Random(20)
    accepted = 0
    for _ in range(4000):
        text = "\n".join(draw.sample(PIECES, draw.choice((1, 1, 2, 3, 5))))
        flags = draw.sample(FLAGS, draw.choice((0, 0, 1, 2)))
        line = parse(["-c", _written(tmp_path, text), *flags])
        parsed = parsed_file(line.config_file)
        wished = None if parsed is None else simple(line, parsed)
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
        "port: 4222",
        "listen: localhost:4222\nhttp: 8222",
        "authorization { user: ann, password: pw }",
        "accounts { A { users: [{user: ann, password: pw}] } }",
        "authorization { users: [{user: ann, password: pw, permissions: {publish: 'a.>', subscribe: [b, 'c.*']}}] }",
        "jetstream: enabled\ngateway { name: x }\nping_interval: 20\nmax_payload: 1MB",
        "authorization { timeout: 2 }\nlame_duck_duration: '1m'\nlame_duck_grace_period: '5s'",
        f"authorization {{ users: [{{user: ann, password: '{HASH}'}}, {{nkey: {NKEY}}}] }}",
        "authorization { ALL = {pub: '>', allow_responses: true}\n users: [{user: ann, pass: pw, permissions: $ALL}] }",
        "authorization { default_permissions: {publish: a}, users: [{user: ann, pass: pw}] }\nno_auth_user: ann",
        "accounts { A { users: [{user: ann, pass: pw}], limits {max_subs: 5} }, SYS {} }\nsystem_account: SYS",
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


def test_the_defaults_that_limits_are_compared_with_are_those_of_options() -> None:
    limits = Limits()
    assert limits.max_payload_bytes == simple_file_module.DEFAULT_MAX_PAYLOAD_BYTES
    assert limits.lame_duck_duration_s == simple_file_module.DEFAULT_LAME_DUCK_DURATION_S
    assert limits.lame_duck_grace_s == simple_file_module.DEFAULT_LAME_DUCK_GRACE_S
    assert limits.max_pending_bytes >= limits.max_payload_bytes


@pytest.mark.parametrize("name", ["gnatswarm.conf", "laptop.conf", "many-tenants.conf", "one-big-host.conf"])
def test_examples_that_need_no_other_reader_are_accepted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("PAGES_PASSWORD", "NATS_TOKEN"):
        monkeypatch.setenv(variable, "secret")
    path = str(EXAMPLES / name)
    found = simple_file(path)
    assert (found is not None) == (name in ("laptop.conf", "one-big-host.conf"))
