"""From flags and files to Options: every key, both sources, and what stops a start."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnatswarm.broker.bounds import LARGEST_OPTIONS_BYTES
from gnatswarm.broker.limits import Limits
from gnatswarm.broker.options import Logging, Options, Sharding, Stats, Tls, User, WebSocket
from gnatswarm.router.config import not_offered, option_values, options_build
from gnatswarm.router.config.conf_tree import ConfigError
from gnatswarm.router.config.flags import parse
from gnatswarm.router.config.option_keys import KEYS
from gnatswarm.router.config.options_build import Built, build
from gnatswarm.shards.boundary import control
from gnatswarm.shards.boundary.certificates import with_files
from tests.support.authority import Authority

Build = Callable[..., Built]
EXAMPLE = pathlib.Path(__file__).resolve().parents[3] / "deploy" / "config" / "gnatswarm.conf"

A_USER = "authorization { users [ {user: a, password: b} ] }"
IN_ACCOUNT = "accounts { A { users [ {user: a, password: b} ] } }"


@pytest.fixture
def built(tmp_path: pathlib.Path) -> Build:
    """Builds from a configuration text and flags; "": from flags alone."""

    def from_text(text: str, *flags: str, **environment: str) -> Built:
        path = tmp_path / "t.conf"
        path.write_text(text)
        return build(parse([*(["-c", str(path)] if text else []), *flags]), environment=environment)

    return from_text


@pytest.fixture
def refusals(built: Build) -> Callable[..., list[str]]:
    """The problems of a configuration text and flags, as `line:col: what — advice` or `command line: …`."""

    def of(text: str, *flags: str) -> list[str]:
        with pytest.raises(ConfigError) as caught:
            built(text, *flags)
        return [re.sub(r"^\S*t\.conf:", "", str(problem)) for problem in caught.value.problems]

    return of


@pytest.fixture
def authority(tmp_path: pathlib.Path) -> Authority:
    """Certificates to name in a configuration."""
    return Authority(tmp_path)


def get(options: Options, field: str) -> Any:
    """A field by its dotted name."""
    found: Any = options
    for name in field.split("."):
        found = getattr(found, name)
    return found


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("port: 1234", "port", 1234),
        ("PORT: 1234", "port", 1234),
        ("port: -1", "port", -1),
        ("port: 0", "port", 4222),
        ("host: 127.0.0.1", "host", "127.0.0.1"),
        ("net: '::1'", "host", "::1"),
        ("listen: '[::1]:99'", "host", "::1"),
        ("listen: '[::1]:99'", "port", 99),
        ("listen: 99", "port", 99),
        ("listen: ':99'", "host", ""),
        ("host: a\nlisten: 99", "host", "a"),
        ("listen: '*:99'", "host", ""),
        ("listen: localhost:-1", "port", -1),
        ("server_name: 'a-b'", "server_name", "a-b"),
        ("server_tags: [A, 'b c']", "server_tags", ("a", "b c")),
        ('compatibility: "2.15"', "compatibility", "2.15"),
        ("compatibility: 2.15", "compatibility", "2.15"),
        ("compatibility: 2.9", "compatibility", "2.9"),
        ("server_tags: one", "server_tags", ("one",)),
        ("syslog: true", "logging.syslog", True),
        ("remote_syslog: 'tcp://h:514'", "logging.remote_syslog", "tcp://h:514"),
        ("remote_syslog: 'tcp://u:s3cr3t@x@h:514'", "logging.remote_syslog", "tcp://h:514"),
        ("remote_syslog: 'unix:///dev/log'", "logging.remote_syslog", "unix:///dev/log"),
        ("server_metadata { b: c, 'a b': '5' }", "server_metadata", (("a b", "5"), ("b", "c"))),
        ("server_metadata {}", "server_metadata", ()),
        ("client_advertise: 'a:1'", "client_advertise", "a:1"),
        ("client_advertise: a", "client_advertise", "a"),
        ("http: 8222", "http_port", 8222),
        ("http: 'a:8222'", "http_host", "a"),
        ("http_port: -1", "http_port", -1),
        ("monitor_port: 8222", "http_port", 8222),
        ("http_base_path: x/", "http_base_path", "/x"),
        ("debug: on", "logging.debug", True),
        ("trace: yes", "logging.trace", True),
        ("trace_verbose: true", "logging.trace", True),
        ("trace: true, trace_verbose: false", "logging.trace", True),
        ("logtime: false", "logging.logtime", False),
        ("logtime_utc: true", "logging.logtime_utc", True),
        ("log_file: a", "logging.file", "a"),
        ("logfile: a", "logging.file", "a"),
        ("log_size_limit: 1k", "logging.size_limit_bytes", 1000),
        ("logfile_size_limit: -1", "logging.size_limit_bytes", 0),
        ("log_max_num: 3", "logging.most_files", 3),
        ("logfile_max_num: -1", "logging.most_files", 0),
        ("log_format: JSON", "logging.format", "json"),
        ("max_traced_msg_len: 10", "logging.trace_payload_bytes", 10),
        ("pid_file: a", "pid_file", "a"),
        ("pidfile: a", "pid_file", "a"),
        ("ports_file_dir: a", "ports_file_dir", "a"),
        ("max_payload: 8MB", "limits.max_payload_bytes", 8 * 1024**2),
        ("max_payload: 0", "limits.max_payload_bytes", 1024**2),
        ("max_control_line: 32KB", "limits.max_control_line_bytes", 32 * 1024),
        ("max_control_line: 0", "limits.max_control_line_bytes", 4096),
        ("max_connections: 10", "limits.max_connections", 10),
        ("max_conn: 10", "limits.max_connections", 10),
        ("max_connections: 0", "limits.max_connections", 2**31 - 1),
        ("max_connections: 0\ncompatibility: '2.9'", "limits.max_connections", 65_536),
        ("max_connections: -1", "limits.max_connections", 2**31 - 1),
        ("max_subscriptions: 5", "limits.max_subscriptions", 5),
        ("max_subs: -1", "limits.max_subscriptions", 0),
        ("max_sub_tokens: 16", "limits.max_subject_tokens", 16),
        ("max_subscription_tokens: 255", "limits.max_subject_tokens", 255),
        ("max_closed_clients: 5", "limits.max_closed_clients", 5),
        ("max_closed_clients: 0", "limits.max_closed_clients", 10_000),
        ("trace_headers: true", "logging.trace_headers", True),
        ("max_pending: 2MB", "limits.max_pending_bytes", 2 * 1024**2),
        ("max_pending: 0", "limits.max_pending_bytes", 64 * 1024**2),
        ("write_deadline: '250ms'", "limits.write_deadline_s", 0.25),
        ("write_deadline: 2s", "limits.write_deadline_s", 2.0),
        ("write_deadline: '0s'", "limits.write_deadline_s", 10.0),
        ("write_timeout: retry", "limits.write_timeout", "retry"),
        ("write_timeout: default", "limits.write_timeout", "default"),
        ("ping_interval: '1h30m'", "limits.ping_interval_s", 5400.0),
        ("ping_max: 5", "limits.ping_max", 5),
        ("ping_max: 0", "limits.ping_max", 2),
        ("lame_duck_duration: '30s'", "limits.lame_duck_duration_s", 30.0),
        ("lame_duck_grace_period: '1s'", "limits.lame_duck_grace_s", 1.0),
        ("authorization { timeout: 5 }", "limits.auth_timeout_s", 5.0),
        ("authorization { timeout: 0.5 }", "limits.auth_timeout_s", 0.5),
        ("authorization { timeout: '3s' }", "limits.auth_timeout_s", 3.0),
        ("authorization { token: t }", "auth_token", "t"),
        ("authorization { user: u, password: p }", "auth_user", "u"),
        ("authorization { username: u, pass: p }", "auth_password", "p"),
        ("authorization { user: u }", "auth_user", "u"),
        ("authorization { users [ {user: a, pass: b} {user: c}\n] }".replace("} {", "}, {"), "users",
         (User("a", "b"), User("c"))),
        ("authorization { users [ {user: a, pass: b} ] }\nno_auth_user: a", "no_auth_user", "a"),
        ("no_header_support: true", "headers", False),
        ("shards: 3", "sharding.shards", 3),
        ("accept: handoff", "sharding.accept", "handoff"),
        ("link_dir: a", "sharding.link_dir", "a"),
        ("prefer_local: true", "sharding.prefer_local", True),
        ("FREE: 7\nport: $FREE", "port", 7),
    ],
)  # fmt: skip
def test_a_key_sets_its_option(built: Build, text: str, field: str, value: object) -> None:
    options = built(text).options
    assert get(options, field) == value
    assert options.notices == ()


def test_a_payload_without_limit_is_as_large_as_can_be_and_discouraged(built: Build) -> None:
    options = built("max_payload: -1").options
    assert options.limits.max_payload_bytes == 64 * 1024**2
    assert "Maximum payloads over 8.00 MB are generally discouraged" in options.notices[0]


def test_every_key_is_in_the_example_and_the_example_is_the_default() -> None:
    options = build(parse(["-c", str(EXAMPLE)]), environment={}).options
    assert options == Options(config_file=str(EXAMPLE), config_digest=options.config_digest)
    written = EXAMPLE.read_text()
    for key in KEYS:
        assert re.search(rf"^(# )?{key.names[0]}(:| {{)", written, re.MULTILINE), key.names[0]


STATS_BLOCK = {
    **{"enabled": True, "dir": "/d", "window": "1s", "max_subjects": 1, "max_age": "1h", "max_size": 1},
    **{"max_clients": 0, "client_subjects": 1, "client_names": False},
}


def test_every_option_can_be_configured() -> None:
    """Whoever adds a field to Options adds a key for it, or says here why there is none."""
    settable = set()
    for key in KEYS:
        texts = ("1:1", "30s", "1s", "json", "reuseport", "2.15", "udp://h:1", "cluster", "retry")
        examples: tuple[object, ...] = (1, True, *texts, [], {}, STATS_BLOCK)
        for value in examples:
            try:
                settable |= set(key.read(value))
            except (option_values.Mistake, option_values.BareSeconds):
                continue
    sections: dict[str, type[msgspec.Struct]] = {
        "limits": Limits,
        "logging": Logging,
        "stats": Stats,
        "sharding": Sharding,
    }
    fields = {field.name for field in msgspec.structs.fields(Options)} - sections.keys()
    fields |= {f"{name}.{field.name}" for name, kind in sections.items() for field in msgspec.structs.fields(kind)}
    authorization = {"auth_token", "auth_user", "auth_password", "users", "accounts", "limits.auth_timeout_s"}
    told_by_the_program = {"config_file", "config_digest", "notices", "has_guests"}
    # their keys: below, in test_imports_exports_options.py, and in tests of blocks
    blocks = {"tls", "websocket", "mappings", "leafnodes", "cluster", "placement"}
    assert fields - authorization - told_by_the_program - blocks == settable


def test_flags_win_over_the_file(built: Build) -> None:
    text = "port: 1\nhost: a\ndebug: true\nserver_name: file\nmax_payload: 1k"
    options = built(text, "-p", "2", "-D=false", "-V", "--name=flag", "--shards", "2").options
    assert options == Options(
        host="a",
        port=2,
        server_name="flag",
        logging=Logging(debug=False, trace=True),
        limits=Limits(max_payload_bytes=1000),
        sharding=Sharding(shards=2),
        config_file=options.config_file,
        config_digest=options.config_digest,
    )


def test_what_is_not_asked_for_is_as_on_the_newer_server(built: Build, refusals: Callable[..., list[str]]) -> None:
    assert built("port: -1").options.config_digest.startswith("sha256:")
    assert built("port: -1", "--compatibility", "2.9").options.config_digest == ""
    for text in ("server_name: 'a b'", "cluster { port: -1, name: 'a b' }"):
        assert refusals(text)
        assert not built(text, "--compatibility", "2.9").options.notices


def test_a_token_by_flag_replaces_the_files_user(built: Build, refusals: Callable[..., list[str]]) -> None:
    options = built("authorization { user: u, pass: p }", "--auth", "t").options
    assert (options.auth_token, options.auth_user, options.auth_password) == ("t", "", "")
    (problem,) = refusals("authorization { users [{user: a, pass: b}] }", "--user", "x", "--pass", "y")
    assert "credentials on the command line and users in the file" in problem


def test_a_user_by_flag_has_the_files_password(built: Build, refusals: Callable[..., list[str]]) -> None:
    for flags, user, password in (
        (("--user", "bob"), "bob", "s3cret"),
        (("--pass", "x"), "alice", "x"),
        (("--user", "bob", "--pass", "x"), "bob", "x"),
    ):
        options = built("authorization { user: alice, password: s3cret }", *flags).options
        assert (options.auth_token, options.auth_user, options.auth_password) == ("", user, password)
    for flags in (("--user", "bob"), ("--user", "bob", "--pass", "x")):
        (problem,) = refusals("authorization { token: t }", *flags)
        assert "Cannot have a user/pass and token" in problem


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("foo: 1", '1:1: unknown field "foo"'),
        ("  max_paylod: 1", '1:3: unknown field "max_paylod" — did you mean "max_payload"?'),
        ("port: abc", "1:1: port: expected a number, not text"),
        ("port: '4222'", "1:1: port: expected a number, not text"),
        ("port: 1.5", "1:1: port: expected a number, not a decimal number"),
        ("port: true", "1:1: port: expected a number, not a boolean"),
        ("port: {}", "1:1: port: expected a number, not a block"),
        ("port: 99999", "1:1: port: 99999 is out of range — write -1 to 65535"),
        ("port: -5", "1:1: port: -5 is out of range"),
        ("host: 5", "1:1: host: expected text, not a number"),
        ("host: 127.0.0.1:4222", "1:1: host: a host and a port in one"),
        ("listen: abc", '1:1: listen: could not parse address string "abc"'),
        ("listen: abc:def", '1:1: listen: could not parse port "def"'),
        ("listen: 'a:99999'", "1:1: listen: 99999 is out of range"),
        ("http: a:b", '1:1: http: could not parse port "b"'),
        ("debug: 1", "1:1: debug: expected a boolean, not a number"),
        ("debug: 'true'", "1:1: debug: expected a boolean, not text"),
        ('compatibility: 2.15\nserver_name: "a b"', "2:1: server name cannot contain spaces"),
        ("compatibility: 2.12", "1:1: compatibility: 2.12 is no known version — write 2.9 or 2.15"),
        ("compatibility: [2.9]", "1:1: compatibility: [2.9] is no known version"),
        ("server_tags: [1 ]", "1:1: server_tags: expected text, not a number"),
        ("remote_syslog: x", '1:1: remote_syslog: invalid network type: ""'),
        ("remote_syslog: 'ftp://h:1'", '1:1: remote_syslog: invalid network type: "ftp"'),
        ("remote_syslog: 'udp://h'", "1:1: remote_syslog: no host and port — write udp://host:514"),
        ("remote_syslog: 'udp://u:s3cr3t'", "1:1: remote_syslog: the port is no number — write udp://host:514"),
        ("remote_syslog: 'udp://h:99999'", "1:1: remote_syslog: Port out of range"),
        ("remote_syslog: 'unix:'", "1:1: remote_syslog: no path"),
        ("syslog: x", "1:1: syslog: expected a boolean, not text"),
        ("server_metadata: x", "1:1: server_metadata: expected a block, not text"),
        ("server_metadata { a: 5 }", "1:1: server_metadata: a: expected text, not a number"),
        ("max_payload: '64MB'", "1:1: max_payload: expected a number, not text — write a size such as 64MB, without"),
        ("max_payload: 1XB", "1:1: max_payload: expected a size, not text — write a size such as 64MB; units are k"),
        ("max_payload: 65MB", "1:1: max_payload: 68157440 is out of range"),
        ("max_pending: 100", "1:1: max_payload (1048576) cannot be higher than max_pending (100)"),
        ("max_control_line: 1GB", "1:1: max_control_line: 1073741824 is out of range"),
        ("ping_max: -1", "1:1: ping_max: -1 is out of range"),
        ("write_deadline: '2x'", '1:1: write_deadline: unknown unit "x" in duration "2x"'),
        (r'pid_file: "a\x00b"', "1:1: pid_file: a path has no NUL character"),
        (r'log_file: "a\x00b"', "1:1: log_file: a path has no NUL character"),
        (r'stats { dir: "a\x00b" }', "1:1: stats: dir: a path has no NUL character"),
        (r'tls { cert_file: "a\x00b", key_file: k }', "1:7: cert_file: a path has no NUL character"),
        (r'host: "a\x00b"', "1:1: host: a host has neither blanks nor slashes"),
        ("write_deadline: '5'", '1:1: write_deadline: missing unit in duration "5"'),
        ("write_deadline: '-1s'", "1:1: write_deadline: a duration cannot be negative"),
        ("write_deadline: 2.5", "1:1: write_deadline: expected a duration, not a decimal number"),
        ("write_timeout: RETRY", "1:1: write_timeout: must be 'default', 'close' or 'retry'"),
        ("write_timeout: 5", "1:1: write_timeout: must be"),
        ("ping_interval: '1ns'", "1:1: ping_interval: shorter than a millisecond"),
        ("lame_duck_duration: '1s'", "1:1: lame_duck_duration: invalid lame_duck_duration of 1s, minimum is 30 sec"),
        ("lame_duck_duration: 60", "1:1: lame_duck_duration: expected a duration, not a number"),
        ("lame_duck_grace_period: '200s'", "1:1: lame duck grace period (200s) should be strictly lower than lame"),
        ("client_advertise: 'a:b'", '1:1: client_advertise: could not parse port "b"'),
        ("accept: x", '1:1: accept: unknown value "x" — write reuseport or handoff'),
        ("shards: 65", "1:1: shards: 65 is out of range"),
        ("stats { window: 30m }", "1:1: stats: window: a window of 30,000,000 s is out of range"),
        ("cluster: 5", "1:1: Expected map to define cluster"),
        ("jetstream: x", "1:1: Expected 'enabled' or 'disabled' for string value"),
        ("authorization: 5", "1:1: expected a block, not a number"),
        ("authorization { usr: a }", '1:17: unknown field "usr" — did you mean "user"?'),
        ("authorization { user: 5 }", "1:17: user: expected text, not a number"),
        ("authorization { token: x, user: a }", "1:1: Cannot have a user/pass and token"),
        ("authorization { user: x, users [{user: a}] }", "1:1: Can not have a single user/pass and a users array"),
        ("authorization { token: x, users [{user: a}] }", "1:1: Can not have a token and a users array"),
        ("authorization { users [{user: a}, {user: a}] }", '1:35: Duplicate user "a" detected'),
        ("authorization { users [{pass: a}] }", "1:24: User entry requires a user"),
        ("authorization { users [a] }", "1:24: Expected user entry to be a map/struct"),
        ("authorization { users: {} }", "1:17: Expected users field to be an array"),
        ("authorization { timeout: x }", "1:17: timeout: not a duration"),
        ("no_auth_user: x", '1:1: no_auth_user: "x" present, but users are not defined'),
        ("authorization { users [{user: a}] }\nno_auth_user: x", '2:1: no_auth_user: "x" not present as user'),
    ],
)
def test_what_is_wrong_is_said_with_its_place(refusals: Callable[..., list[str]], text: str, expected: str) -> None:
    (problem, *rest) = refusals(text)
    assert rest == []
    assert problem.startswith(expected)


@pytest.mark.parametrize("piece", ["1", "1."])
def test_a_duration_of_any_length_is_refused_at_once(refusals, piece):
    (problem,) = refusals(f"write_deadline: '{piece * 200_000}'")
    assert problem.startswith('1:1: write_deadline: missing unit in duration "1')


def test_what_shards_could_not_be_told_is_refused(built: Build, refusals: Callable[..., list[str]]) -> None:
    """A start ended in a traceback. A reload was adopted, told to nobody, and no shard that died came back."""
    tags = 'server_tags: "%s"\n'
    largest = built(tags % ("x" * (LARGEST_OPTIONS_BYTES - 10_000))).options
    # What else a shard is told with them has room.
    assert len(control.encode(control.Reload(largest))) < control.MAX_FRAME_BYTES - 2**19
    (refusal,) = refusals(tags % ("x" * LARGEST_OPTIONS_BYTES))
    assert "the configuration is too large" in refusal


def test_more_than_can_be_counted_is_refused(
    built: Build, refusals: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Accounts beyond the number were accepted, and their clients refused for ever, as if these had all connections."""
    monkeypatch.setattr(options_build, "MOST_COUNTED_ACCOUNTS", 2)
    monkeypatch.setattr(options_build, "MOST_PUBLISH_LIMITS", 2)
    account = "%s { limits { max_connections: %d }, users: [{ user: %s, password: p%s }] }"
    text = "accounts {" + ", ".join([account % ("A", 1, "a", "%s"), account % ("B", 1, "b", ""), "%s", "%s"]) + "}"
    limits = ", publish_limits { messages: 5 }"
    none = account % ("C", -1, "c", limits)
    assert len(built(text % (limits, none, "")).options.accounts) == 3
    (refusal,) = refusals(text % ("", none, account % ("D", 1, "d", "")))
    assert "3 accounts have limits { max_connections }, and at most 2 can be counted" in refusal
    (refusal,) = refusals(text % (limits, none, "D { publish_limits { bytes: 5 } }"))
    assert "3 users and accounts have publish_limits, and at most 2 can be counted" in refusal


def test_everything_wrong_is_said_at_once(refusals: Callable[..., list[str]]) -> None:
    problems = refusals("foo: 1\nport: x\nhost: 'a\ntls { verify: true }", "-m", "99999")
    assert [problem.split(": ")[0] for problem in problems] == ["3:7", "1:1", "2:1", "command line"]
    assert len(refusals("port: x\nfoo: 1\ntls { a: b }")) == 3


@pytest.mark.parametrize(
    "text",
    [
        *(f"{key}: something" for key in not_offered.RESTRICTS),
        *(f"authorization {{ user: a, {key}: something }}" for key in not_offered.RESTRICTS_IN_AUTHORIZATION),
        *(
            f"authorization {{ users [ {{user: a, pass: b, {key}: x}} ] }}"
            for key in not_offered.RESTRICTS_IN_AUTHORIZATION
        ),
        # Hashes that nothing could be compared with.
        "authorization { user: a, pass: $2a$11$3kIDaCxw.Glsl1 }",
        'authorization { users [ {user: a, pass: "$2b$11$3kIDaCxw.Glsl1"} ] }',
        "authorization { token: $2a$11$3kIDaCxw.Glsl1 }",
        # What the real server takes for a lock and is none.
        "authorization { pass: x }",
        "authorization { token: '' }",
        "authorization { user: '' }",
        "authorization { users [] }",
        "authorization",
        "authorization { user: a }\nauthorization {}",
        "authorization { user: a }\nAuthorization { token: t }",
        "tls { verify: true }\ntls {}",
    ],
)
def test_a_lock_that_would_not_hold_stops_the_start(refusals: Callable[..., list[str]], text: str) -> None:
    assert re.match(r"\d+:\d+: ", refusals(text)[0])


@pytest.mark.parametrize("flags", [["-ms", "1"], ["--pass", "x"],
                                   ["--user", ""], ["--auth", ""], ["--auth", "$2a$11$abc"],
                                   ["--auth", "x", "--user", "y"]])  # fmt: skip
def test_a_flag_that_would_not_hold_stops_the_start(refusals: Callable[..., list[str]], flags: list[str]) -> None:
    assert refusals("port: 1", *flags)[0].startswith("command line: ")


def test_a_secret_is_in_no_message(refusals: Callable[..., list[str]], built: Build) -> None:
    for text in ("authorization { pass: hunter2 }", "authorization { token: hunter2, user: hunter2 }",
                 "authorization { users [ {user: u, pass: hunter2, nkey: hunter2} ] }"):  # fmt: skip
        assert "hunter2" not in "".join(refusals(text))
    assert "hunter2" not in repr(built("authorization { user: u, pass: hunter2 }").options)
    assert "hunter2" not in repr(built("authorization { users [{user: u, pass: hunter2}] }").options)


@pytest.mark.parametrize("key", [*not_offered.OPENS, *not_offered.NO_EFFECT])
def test_what_only_opens_something_is_announced(built: Build, key: str) -> None:
    value = "{}" if key in not_offered.WANTS_BLOCK else "true"
    (notice,) = built(f"{key} {value}").options.notices
    assert key in notice
    assert "t.conf:1:1" in notice


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("msg_trace: a.b", ("a.b", 100)),
        ("trace_dest: a.b", ("a.b", 100)),
        ("msg_trace { dest: a.b, sampling: 5 }", ("a.b", 5)),
        ('msg_trace { dest: a.b, sampling: "50%" }', ("a.b", 50)),
    ],
)
def test_where_traces_go_that_a_traceparent_asks_for(built: Build, text: str, expected: tuple[str, int]) -> None:
    accounts = f"accounts {{ A {{ users [ {{user: a, password: b}} ], {text} }} }}"
    options = built(accounts).options
    (account,) = [one for one in options.accounts if one.name == "A"]
    assert (account.trace_destination, account.trace_percent) == expected and options.notices == ()
    (notice,) = built(f'compatibility: "2.9"\n{accounts}').options.notices
    assert "message tracing needs compatibility" in notice


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("A { msg_trace: 5 }", 'Expected account message trace "msg_trace" to be a string or a map/struct'),
        ('A { msg_trace: "a.*" }', 'Trace destination "a.*" is not valid'),
        ('A { trace_dest: "" }', 'Trace destination "" is not valid'),
        ("A { msg_trace { dest: a, sampling: 0 } }", "sampling value 0 is invalid, needs to be [1..100]"),
        ("A { msg_trace { dest: a, sampling: 101 } }", "sampling value 101 is invalid, needs to be [1..100]"),
        ("A { msg_trace { dest: a, sampling: x } }", 'Invalid trace destination sampling value "x"'),
        ("A { msg_trace { dest: a, sampling: 1.5 } }", "should be an integer or a percentage"),
        ("A { msg_trace { sampling: 5 } }", "sampling ignored since no destination was set"),
        ("A { msg_trace { destination: a } }", 'unknown field "destination"'),
        ("A { exports [ {stream: s, allow_trace: true} ] }", "Detected allow_trace directive on non-service"),
        (
            "A { exports [ {service: s} ] }, B { imports [ {service: {account: A, subject: s}, allow_trace: true} ] }",
            "Detected allow_trace directive on a non-stream",
        ),
        ("A { exports [ {service: s, allow_trace: 5} ] }", "Expected allow_trace to be a boolean"),
    ],
)
def test_traces_that_are_configured_wrongly(built: Build, text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(problem)):
        built(f'compatibility: "2.15"\naccounts {{ {text} }}')


def test_who_lets_traces_follow(built: Build) -> None:
    text = (
        "A { exports [ {stream: s}, {service: t, allow_trace: true}, {service: u} ] }, "
        "B { imports [ {stream: {account: A, subject: s}, allow_trace: true}, {service: {account: A, subject: t}} ] }"
    )
    accounts = {one.name: one for one in built(f'compatibility: "2.15"\naccounts {{ {text} }}').options.accounts}
    assert [one.allow_trace for one in accounts["A"].exports] == [False, True, False]
    assert [one.allow_trace for one in accounts["B"].imports] == [True, False]


def test_what_newer_servers_have_and_restricts_nothing_is_accepted(built: Build, authority: Authority) -> None:
    assert built("proxy_protocol: false\nproxies { }").options.notices == ()
    users = "users [ {user: a, pass: b, proxy_required: false, allowed_connection_types: [IN_PROCESS]} ]"
    (user,) = built(f"authorization {{ {users} }}").options.users
    assert user.connection_types == ("IN_PROCESS",) and not user.may_come_by("STANDARD")
    block = f"tls {{ {authority.server().lines}, allow_insecure_cipher_suites: true }}"
    assert built(block).options.notices == ()


RSA, CBC = "TLS_RSA_WITH_AES_128_GCM_SHA256", "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256"
INSECURE = "insecure cipher suites configured without 'allow_insecure_cipher_suites' option set"


@pytest.mark.parametrize(
    "block",
    ["TLS", "cluster { name: c, port: -1, TLS }", "leafnodes { port: -1, TLS }", "websocket { port: -1, TLS }"],
)
def test_insecure_cipher_suites_have_to_be_allowed_as_2_15(built: Build, authority: Authority, block: str) -> None:
    def text(suites: str, more: str = "") -> str:
        tls = f"tls {{ {authority.server().lines}, {more} cipher_suites: [ {suites} ] }}"
        return block.replace("TLS", tls)

    with pytest.raises(ConfigError, match=f"{INSECURE}: {RSA}, {CBC} — "):
        built(f"{text(f'{RSA}, {CBC}')}\ncompatibility: '2.15'")
    with pytest.raises(ConfigError, match=INSECURE):
        built(text(CBC, "allow_insecure_cipher_suites: false,"))
    built(text(f"{RSA}, {CBC}", "allow_insecure_cipher_suites: true,"))
    built(text("TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA"))
    older = built(f"{text(RSA)}\ncompatibility: '2.9'").options
    assert not any("insecure" in notice for notice in older.notices)


TLS_SETTINGS = (
    ("verify: true", "verify", True),
    ("verify_and_map: true", "verify_and_map", True),
    ("ca_file: CA", "ca_file", "CA"),
    ("timeout: 5", "timeout_s", 5.0),
    ("timeout: 0.5", "timeout_s", 0.5),
    ("timeout: '3s'", "timeout_s", 3.0),
    ("min_version: '1.3'", "min_version", "1.3"),
    ("min_version: 1.3", "min_version", "1.3"),
    (
        "cipher_suites: [tls_ecdhe_rsa_with_aes_128_gcm_sha256]",
        "cipher_suites",
        ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",),
    ),
    ("curve_preferences: [CurveP384]", "curve_preferences", ("CurveP384",)),
    ("curve_preferences: [CurveP384, CurveP256, X25519, CurveP521]", "curve_preferences", ()),
    ("handshake_first: true", "handshake_first", True),
    ("first: auto", "handshake_fallback_s", 0.05),
    ("immediate: '300ms'", "handshake_fallback_s", 0.3),
    ("handshake_first: off", "handshake_first", False),
    (f"verify: true, pinned_certs: [{'AB' * 32}, {'ab' * 32}]", "pinned_certs", ("ab" * 32,)),
    ("connection_rate_limit: 7", "handshakes_per_s", 7),
    ("connection_rate_limit: -1", "handshakes_per_s", 0),
)


@pytest.mark.parametrize("where", ["tls", "websocket.tls"])
@pytest.mark.parametrize(("text", "field", "value"), TLS_SETTINGS)
def test_a_key_of_a_tls_block_sets_its_option(
    built: Build, authority: Authority, where: str, text: str, field: str, value: object
) -> None:
    if where == "websocket.tls" and text.endswith("limit: 7"):
        pytest.skip("refused there")
    text = text.replace("CA", str(authority.path))
    value = str(authority.path) if value == "CA" else value
    block = f"tls {{ {authority.server().lines}\n{text}\n }}"
    users = "authorization { users [ {user: a} ] }\n"
    options = built(users + (block if where == "tls" else f"websocket {{ port: -1\n{block}\n }}")).options
    assert get(options, f"{where}.{field}") == value
    assert options.notices == ()


def test_every_option_of_tls_and_websocket_can_be_configured() -> None:
    named = {"cert_file", "key_file", "more_certs"} | {field for _, field, _ in TLS_SETTINGS}
    read = {"cert_pem", "key_pem", "ca_pem"}  # with the files that are named
    assert {field.name for field in msgspec.structs.fields(Tls)} == named | read
    named = {"tls"} | {field.removeprefix("websocket.") for _, field, _ in WEBSOCKET_SETTINGS}
    assert {field.name for field in msgspec.structs.fields(WebSocket)} == named


WEBSOCKET_SETTINGS = (
    ("port: 1", "websocket.port", 1),
    ("listen: 'a:1'", "websocket.host", "a"),
    ("listen: 'a:1'", "websocket.port", 1),
    ("listen: 1", "websocket.port", 1),
    ("host: a", "websocket.host", "a"),
    ("net: a", "websocket.host", "a"),
    ("advertise: 'a:1'", "websocket.advertise", "a:1"),
    ("no_tls: true", "websocket.no_tls", True),
    ("compression: true", "websocket.compression", True),
    ("same_origin: true", "websocket.same_origin", True),
    ("allowed_origins: ['http://a', 'https://b:1']", "websocket.allowed_origins", ("http://a", "https://b:1")),
    ("origin: 'http://a'", "websocket.allowed_origins", ("http://a",)),
    ("handshake_timeout: '3s'", "websocket.handshake_timeout_s", 3.0),
    ("handshake_timeout: 3", "websocket.handshake_timeout_s", 3.0),
    ("headers { X-A: b, x-a: 'c d', Date: '' }", "websocket.headers", (("X-A", "b"), ("x-a", "c d"), ("Date", ""))),
    ("headers {}", "websocket.headers", ()),
    ("ping_interval: '250ms'", "websocket.ping_interval_s", 0.25),
    ("ping_interval: '0s'", "websocket.ping_interval_s", 0.0),
    ("authorization { token: t, timeout: 5 }", "websocket.auth_token", "t"),
    ("authentication { token: t, timeout: 0.5 }", "websocket.auth_timeout_s", 0.5),
    ("authorization { username: u, password: p }", "websocket.auth_user", "u"),
    ("authorization { username: u, password: p }", "websocket.auth_password", "p"),
    ("authorization { timeout: 0 }", "websocket.auth_timeout_s", 0.0),
    ("no_auth_user: a }\nauthorization { users [ {user: a, password: b} ]", "websocket.no_auth_user", "a"),
    ("user_cookie: u", "websocket.user_cookie", "u"),
    ("pass_cookie: u", "websocket.pass_cookie", "u"),
    ("token_cookie: ''", "websocket.token_cookie", ""),
    ("token_cookie: __Host-x", "websocket.token_cookie", "__Host-x"),
)


@pytest.mark.parametrize(("text", "field", "value"), WEBSOCKET_SETTINGS)
def test_a_key_of_the_websocket_block_sets_its_option(built: Build, text: str, field: str, value: object) -> None:
    options = built("websocket {\n" + ("" if "no_tls" in text else "no_tls: true\n") + f"{text}\n}}").options
    assert get(options, field) == value
    assert options.notices == ()


def test_tls_flags_win_over_the_file(built: Build, authority: Authority) -> None:
    one, other = authority.server(), authority.server()
    flags = [
        "--tlscert",
        str(other.cert),
        "--tlskey",
        str(other.key),
        "--tlsverify",
        "--tlscacert",
        str(authority.path),
    ]
    for more in ([], ["--tls"]):
        tls = built(f"tls {{ {one.lines}, timeout: 7 }}", *flags, *more).options.tls
        wanted = Tls(str(other.cert), str(other.key), str(authority.path), verify=True, timeout_s=7.0)
        assert tls == with_files(wanted) and tls.key_pem == other.key.read_bytes()


def test_pins_without_verify_are_warned_of(built: Build, authority: Authority) -> None:
    pair = authority.server()
    options = built(f'tls {{ {pair.lines}, pinned_certs: [ "{pair.pin}" ] }}').options
    assert "pinned_certs without verify: no client can connect" in options.notices[0]


def test_a_certificate_signed_with_sha1_is_warned_of(built: Build, authority: Authority) -> None:
    pair = authority.by_sha1(authority.server())
    (notice,) = built(f"tls {{ {pair.lines} }}").options.notices
    assert f"{pair.cert}: signed with SHA-1" in notice
    # OpenSSL 3.5 takes it as it is.
    assert "used at OpenSSL's security level 0" in notice or "or an older algorithm" in notice


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tls: 1", "1:1: expected a block, not a number"),
        ("tls { cert_file: x }", "1:1: missing 'key_file' in TLS configuration"),
        ("tls { key_file: x }", "1:1: missing 'cert_file' in TLS configuration"),
        ("tls { verify: true }", "1:1: missing 'cert_file' in TLS configuration"),
        ("tls { cert_file: /nope, key_file: /nope }", "1:1: error parsing X509 certificate/key pair: open /nope:"),
        ("tls { bogus: 1 }", '1:7: unknown field "bogus"'),
        (
            "websocket { port: 1, tls { cert_file: x, key_file: y, connection_rate_limit: 7 } }",
            '1:22: "connection_rate_limit" of WebSocket clients is not offered',
        ),
        ("tls { pinned_certs: [a] }", "1:7: pinned_certs: key a does not look like hex-encoded sha256 of DER"),
        ("tls { pinned_certs: [5] }", "1:7: pinned_certs: expected a list of hex-encoded sha256 of DER"),
        ("tls { pinned_certs: [] }", "1:7: pinned_certs: an empty list lets everybody in"),
        ('tls { connection_rate_limit: "5" }', "1:7: connection_rate_limit: expected a number, not text"),
        ("tls { connection_rate_limit: 9999999 }", "1:7: connection_rate_limit: 9999999 is out of range"),
        ("tls { certs: x }", "1:7: certs: expected a list, not text"),
        ("tls { certs: [x] }", "1:15: certs: expected a block, not text"),
        ("tls { certs: [] }", "1:1: missing 'cert_file' in TLS configuration"),
        ("tls { certs: [{}] }", "1:15: certs: both cert_file and key_file are required"),
        ("tls { certs: [{ cert_file: x }] }", "1:15: certs: both cert_file and key_file are required"),
        ("tls { certs: [{ cert_file: 5, key_file: x }] }", "1:17: cert_file: expected text, not a number"),
        ("tls { certs: [{ CERT, ca_file: x }] }", '1:CA: unknown field "ca_file"'),
        ("tls { CERT, certs: [{ CERT }] }", "1:CE: error parsing tls config, cannot combine 'cert_file' option"),
        ("tls { certs: [{ CERT }, { cert_file: /nope, key_file: KEY }] }", "1:1: error parsing X509 certificate"),
        ("tls { certs: [{ CERT }, { cert_file: AUTHORITY, key_file: KEY }] }", "1:1: error parsing X509"),
        ("tls { cipher_suites: [ FOO ] }", "1:7: cipher_suites: unrecognized cipher FOO"),
        ("tls { cipher_suites: FOO }", "1:7: cipher_suites: expected a list of names"),
        ("tls { curve_preferences: [ FOO ] }", "1:7: curve_preferences: unrecognized curve preference FOO"),
        ("tls { curve_preferences: [ X25519, CurveP256 ] }", "1:7: curve_preferences: several curves cannot be"),
        ("tls { min_version: '1.1' }", "1:7: min_version: unknown TLS version"),
        ("tls { timeout: x }", "1:7: timeout: not a duration"),
        ("tls { verify: 1 }", "1:7: verify: expected a boolean"),
        ("tls { handshake_first: maybe }", "1:7: handshake_first: "),
        ("tls { CERT, verify_and_map: true, ca_file: AUTHORITY }", "1:1: verify_and_map, but users are not defined"),
        ("tls { CERT, verify: true, ca_file: '' }", "1:CA: ca_file: expected a file, not an empty name"),
        ("tls { CERT, ca_file: /nope }", "1:1: error parsing root ca certificate: open /nope: no such"),
        ("tls { CERT, verify: true, ca_file: /nope }", "1:1: error parsing root ca certificate: open /nope: no such"),
        ("tls { CERT, verify: true, ca_file: KEY }", "1:1: error parsing root ca certificate: "),
        ("tls { cert_file: AUTHORITY, key_file: KEY }", "1:1: error parsing X509 certificate/key pair: "),
        ("tls { CERT }\ntls {}", "2:1: tls is given again"),
        ("websocket: 1", "1:1: Expected websocket to be a map, got a number"),
        ("websocket { port: 1 }", "1:1: websocket requires TLS configuration"),
        ("websocket { port: 1, tls {} }", "1:1: websocket requires TLS configuration"),
        ("websocket { port: 1, no_tls: true, bogus: 1 }", '1:36: unknown field "bogus"'),
        ("websocket { port: 1, no_tls: true, authorization: x }", "1:36: expected a block, not text"),
        ("websocket { port: 1, no_tls: true, authorization { user: a, token: x } }", "1:36: Cannot have a"),
        ("websocket { port: 1, no_tls: true, authorization { pass: x } }", "1:36: a password without a user has no"),
        ("websocket { port: 1, no_tls: true, authorization { token: '' } }", "1:52: an empty token has no effect"),
        ("websocket { port: 1, no_tls: true, authorization { user: 5 } }", "1:52: user: expected text, not a number"),
        ("websocket { port: 1, no_tls: true, authorization { user: a, username: b } }", "1:61: username is given"),
        ("websocket { port: 1, no_tls: true, authorization { users: [] } }", '1:52: unknown field "users"'),
        ("websocket { port: 1, no_tls: true, authorization { auth_callout {} } }", '1:52: "auth_callout": auth'),
        ("websocket { port: 1, no_tls: true, authorization { user: a, timeout: x } }", "1:61: timeout: not a duration"),
        ("websocket { port: 1, no_tls: true, authorization { user: a, pass: '$2a$xx' } }", "1:61: not a bcrypt hash"),
        ("websocket { port: 1, no_tls: true, authorization { user: a }, authentication {} }",
         "1:63: authentication is given again"),
        (f"websocket {{ port: 1, no_tls: true, authorization {{ user: a }} }}\n{A_USER}",
         "1:36: websocket authentication username not compatible with presence of users/nkeys"),
        (f"websocket {{ port: 1, no_tls: true, authorization {{ token: a }} }}\n{A_USER}",
         "1:36: websocket authentication token not compatible with presence of users/nkeys"),
        ("websocket { port: 1, no_tls: true, no_auth_user: x }", '1:36: no_auth_user: "x" present, but users are not'),
        (f"websocket {{ port: 1, no_tls: true, no_auth_user: x }}\n{A_USER}", '1:36: no_auth_user: "x" not present as'),
        (f"websocket {{ port: 1, no_tls: true, authorization {{ user: a }} }}\n{IN_ACCOUNT}",
         "1:36: websocket authentication username not compatible with presence of users/nkeys"),
        ("websocket { port: 1, no_tls: true, user_cookie: 5 }", "1:36: user_cookie: expected text, not a number"),
        ("websocket { port: 1, no_tls: true, user_cookie: 'a b' }", '1:36: user_cookie: "a b" is no name of a cookie'),
        ("websocket { port: 1, no_tls: true, user_cookie: a, pass_cookie: a }", "1:1: one cookie for two of"),
        ("websocket { port: 1, no_tls: true, jwt_cookie: x }", '1:36: "jwt_cookie": JWTs in cookies'),
        ("websocket { port: 1, no_tls: true, headers: x }", "1:36: error parsing headers: expected a block, not text"),
        ("websocket { port: 1, no_tls: true, headers { A: 1 } }", "1:46: error parsing header key A: expected text"),
        ("websocket { port: 1, no_tls: true, headers { A: [a] } }", "1:46: error parsing header key A: expected text"),
        ("websocket { port: 1, no_tls: true, headers { 'A B': x } }", '1:46: "A B" is no name of a header'),
        ("websocket { port: 1, no_tls: true, headers { 'A:': x } }", '1:46: "A:" is no name of a header'),
        ("websocket { port: 1, no_tls: true, headers { 'é': x } }", '1:46: "é" is no name of a header'),
        ('websocket { port: 1, no_tls: true, headers { A: "b\\r\\nX: y" } }', "1:46: header A: control characters"),
        ('websocket { port: 1, no_tls: true, headers { A: "b\\x00" } }', "1:46: header A: control characters"),
        *(
            (f"websocket {{ port: 1, no_tls: true, headers {{ {name}: x }} }}", f'1:46: invalid header "{name}" not')
            for name in ("Upgrade", "connection", "Host", "Content-Length", "Nats-No-Masking", "Transfer-Encoding",
                         "Sec-WebSocket-Accept", "sec-websocket-protocol")
        ),
        ("websocket { port: 1, no_tls: true, ping_interval: 5 }", '1:36: invalid use of field "ping_interval"'),
        ("websocket { port: 1, no_tls: true, ping_interval: '-1s' }", "1:36: ping_interval: a duration cannot be"),
        ("websocket { port: 1, no_tls: true, ping_interval: '1us' }", "1:36: ping_interval: shorter than a milli"),
        ("websocket { port: 1, no_tls: true, ping_interval: x }", "1:36: ping_interval: "),
        ("websocket { port: 1, no_tls: true, origin: x }", '1:36: origin: "x" is no origin'),
        ("websocket { port: 1, tls { CERT, verify_and_map: true, ca_file: AUTHORITY } }",
         "1:1: verify_and_map, but users are not defined"),
    ],
)  # fmt: skip
def test_encryption_that_would_not_hold_stops_the_start(
    refusals: Callable[..., list[str]], authority: Authority, text: str, expected: str
) -> None:
    server = authority.server()
    words = {"CERT": server.lines, "AUTHORITY": str(authority.path), "KEY": str(server.key)}
    for word, meant in words.items():
        text = text.replace(word, meant)
    # (a column behind the paths)
    expected = expected.replace("CA", str(text.find("ca_file") + 1)).replace("CE", str(text.find("certs") + 1))
    assert refusals(text)[0].startswith(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("authorization { users [ {user: a, permissions { publish: [] }} ] }", "an empty list allows everything"),
        ("authorization { users [ {user: a, permissions { sub: {allow: []} }} ] }", "an empty list allows everything"),
        ("authorization { users [ {user: a, permissions { publish: a, pub: b }} ] }", "pub is given again"),
        ("authorization { users [ {user: a, permissions { sub: {deny: a, deny: b} }} ] }", "deny is given again"),
        ("system_account: SYS", 'there is no account "SYS"'),
        ("http_password: x", "1:1: http_password without http_user lets everybody read the pages"),
        ("http_user: ''\nhttp_password: x", "2:1: http_password without http_user lets everybody read the pages"),
        ("http_user: a\nhttp_password: ''", "1:1: http_user without http_password lets in who knows the name"),
        ("http_user: a", "1:1: http_user without http_password lets in who knows the name"),
    ],
)
def test_a_right_that_would_not_hold_stops_the_start(
    refusals: Callable[..., list[str]], text: str, expected: str
) -> None:
    assert expected in refusals(text)[0]


@pytest.mark.parametrize(
    "flags", [["--tls"], ["--tlsverify"], ["--tlscert", "x"], ["--tlskey", "x"], ["--tls", "--tlscert", "x"]]
)
def test_a_tls_flag_without_what_it_needs_stops_the_start(refusals: Callable[..., list[str]], flags: list[str]) -> None:
    assert re.match("command line: TLS Server (certificate|private key) must be", refusals("port: 1", *flags)[0])


def test_a_key_with_a_password_is_refused_instead_of_asked_for(
    refusals: Callable[..., list[str]], authority: Authority, tmp_path: pathlib.Path
) -> None:
    locked = authority.server(password=b"secret")
    said = (
        f"{locked.key} is encrypted with a password, which nobody could type here; write it without one: openssl pkey"
    )
    assert said in refusals(f"tls {{ {locked.lines} }}")[0]


def test_what_is_switched_off_needs_no_notice(built: Build) -> None:
    assert built("jetstream: disabled").options.notices == ()
    assert built("jetstream: Disable").options.notices == ()
    assert built("jetstream: enable").options.notices == built("jetstream: enabled").options.notices != ()
    assert built("jetstream: false").options.notices == ()
    assert built("", "-js=false").options.notices == ()
    assert any("-js" in notice for notice in built("port: 1", "-js", "-sd", "x").options.notices)
    assert built("tls {}\naccounts {}").options.notices == ()


def test_bare_seconds_that_are_too_many_are_a_mistake(refusals: Callable[[str], list[str]]) -> None:
    (problem,) = refusals("fence_timeout: 99999999")
    assert "1:1: fence_timeout: clients would wait for 1e+08 s" in problem


def test_bare_seconds_are_taken_and_warned_of(built: Build) -> None:
    result = built("ping_interval: 5\nwrite_deadline: 0")
    assert result.options.limits.ping_interval_s == 5.0
    assert result.options.limits.write_deadline_s == 10.0
    assert len(result.warnings) == 2
    assert "should be converted to a duration" in result.warnings[0]


@pytest.mark.parametrize("flags", [["-p", "99999"], ["--shards", "65"], ["--shards", "-1"], ["--accept", "x"],
                                   ["-m", "-2"], ["--log_format", "xml"], ["-a", "a b"]])  # fmt: skip
def test_flags_have_the_ranges_of_the_keys(refusals: Callable[..., list[str]], flags: list[str]) -> None:
    (problem,) = refusals("port: 1", *flags)
    assert problem.startswith(f"command line: -{flags[0].lstrip('-')}: ")


NAMES = st.sampled_from([name for key in KEYS for name in key.names] + ["authorization", "tls", "cluster", "x"])
USERS = "{users:[{user:a,pass:1}]}"
DATE = "2020-01-02T03:04:05Z"
VALUES = st.sampled_from(
    [
        "1",
        "-1",
        "0",
        "99999999",
        "1.5",
        "true",
        "''",
        "'a'",
        "'2s'",
        "[]",
        "{}",
        "[1,'a']",
        "{user:a}",
        "$A",
        USERS,
        DATE,
    ]
)


@given(st.lists(st.tuples(NAMES, VALUES)))
def test_any_value_for_any_key_gives_options_or_problems(
    tmp_path_factory: pytest.TempPathFactory, lines: list[tuple[str, str]]
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.conf"
    path.write_text("\n".join(f"{key}: {value}" for key, value in lines))
    try:
        options = build(parse(["-c", str(path)]), environment={}).options
    except ConfigError:
        return
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(options), type=Options) == options


def test_the_tables_of_keys_do_not_overlap() -> None:
    tables: list[Any] = [
        {name for key in KEYS for name in key.names},
        not_offered.RESTRICTS,
        not_offered.OPENS,
        not_offered.NO_EFFECT,
    ]
    names = [name for table in tables for name in table]
    assert len(names) == len(set(names))


def test_a_port_that_is_off_needs_no_tls(built: Build) -> None:
    assert built("https_port: 0", "-ms", "0").options.notices == ()
