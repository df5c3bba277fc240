"""The `cluster` block and its flags: what is read, and every mistake, with its place, at once."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from gnatswarm.broker.options import Options, Permissions
from gnatswarm.router.config.conf_tree import ConfigError
from gnatswarm.router.config.flags import parse
from gnatswarm.router.config.options_build import build
from tests.support.authority import Authority

Build = Callable[..., Options]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def built(tmp_path: Path) -> Build:
    def from_text(text: str, *flags: str) -> Options:
        path = tmp_path / "t.conf"
        path.write_text(text)
        return build(parse([*(["-c", str(path)] if text else []), *flags]), environment={}).options

    return from_text


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("name: C", "name", "C"),
        ("listen: 'h:7'", "host", "h"),
        ("listen: 7", "port", 7),
        ("port: 7, net: h", "host", "h"),
        ("port: 7, routes: ['nats://u:p@h:1', 'i:2']", "routes", ("nats://u:p@h:1", "nats-route://i:2")),
        ("cluster_advertise: 'h:1'", "advertise", "h:1"),
        ("no_advertise: true", "no_advertise", True),
        ("connect_retries: 3", "connect_retries", 3),
        ("ping_interval: '150ms'", "ping_interval_s", 0.15),
        ("ping_interval: 20", "ping_interval_s", 20.0),
        ("ping_max: 5", "ping_max", 5),
        ("write_deadline: '3s'", "write_deadline_s", 3.0),
        ("write_timeout: close", "write_timeout", "close"),
        ("authorization { user: u, pass: p, timeout: 0.5 }", "user", "u"),
        ("authorization { user: u, pass: p, timeout: 0.5 }", "password", "p"),
        ("authorization { user: u, pass: p, timeout: 0.5 }", "auth_timeout_s", 0.5),
        # In the file's words a member publishes what is imported, and subscribes to what is exported.
        (
            "permissions { import: a, export { allow: 'b.*', deny: 'b.c' } }",
            "permissions",
            Permissions(publish_allow=("b.*",), publish_deny=("b.c",), subscribe_allow=("a",)),
        ),
    ],
)
def test_a_key_sets_its_option(built: Build, text: str, field: str, value: object) -> None:
    assert getattr(built(f"cluster {{ {text} }}").cluster, field) == value


def test_flags_override_the_file(built: Build) -> None:
    text = "cluster { name: C, listen: 'h:7', routes: ['i:1'], no_advertise: false }"
    flags = (
        "--cluster",
        "nats://u:p@j:8",
        "--cluster_name",
        "D",
        "--routes",
        "nats://k:1,nats://l:2",
        "--no_advertise",
    )
    cluster = built(text, *flags, "--connect_retries", "5", "--cluster_advertise", "m:9").cluster
    assert (cluster.host, cluster.port, cluster.user, cluster.password) == ("j", 8, "u", "p")
    assert (cluster.name, cluster.routes) == ("D", ("nats://k:1", "nats://l:2"))
    assert (cluster.no_advertise, cluster.connect_retries, cluster.advertise) == (True, 5, "m:9")
    assert built("", "--cluster_listen", "nats://0.0.0.0:-1").cluster.port == -1
    assert "p" not in repr(cluster).replace("port", "").replace("password", "").replace("permissions", "")


def test_pongs_may_wait_for_the_cluster(built: Build) -> None:
    assert (built("").fence, built("").fence_timeout_s) == ("broker", 0.25)
    options = built("fence: cluster\nfence_timeout: 1s\ncluster { port: 6222 }")
    assert (options.fence, options.fence_timeout_s, options.notices) == ("cluster", 1.0, ())
    assert built("fence_timeout: 0").fence_timeout_s == Options().fence_timeout_s
    assert "without a cluster" in built("fence: cluster").notices[0]


def test_members_keys_may_be_pinned(built: Build, authority: Authority) -> None:
    pair = authority.member()
    options = built(f"cluster {{ port: 1, tls {{ {pair.lines}, pinned_certs: [ {pair.pin} ] }} }}")
    assert options.cluster.tls.pinned_certs == (pair.pin,)
    assert not any("pinned_certs" in notice for notice in options.notices)  # (members always have certificates)


def test_members_may_be_known_by_their_certificates(built: Build, authority: Authority) -> None:
    tls = f"tls {{ {authority.member().lines}, verify_and_map: true, connection_rate_limit: 7 }}"
    options = built(f"cluster {{ port: 1, authorization {{ user: r.example }}, {tls} }}")
    assert options.cluster.tls.verify_and_map and options.cluster.user == "r.example"
    (notice,) = (one for one in options.notices if "cluster" in one or "rate" in one)
    assert '"connection_rate_limit" has no effect here' in notice
    nobody = built(f"cluster {{ port: 1, {tls} }}")
    assert any("no member can connect" in one for one in nobody.notices)


def test_only_a_port_needs_a_process_for_it(built: Build) -> None:
    assert built("cluster { port: 6222 }").has_gateway
    alone = built("cluster { name: C }")
    assert not alone.has_gateway and not alone.notices
    assert alone.stated_cluster == "C"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("cluster: 5", "1:1: Expected map to define cluster, got a number"),
        ("cluster { prot: 5 }", '1:11: unknown field "prot"'),
        ("cluster { port: 70000 }", "1:11: port: 70000 is out of range"),
        ("cluster { port: 1, routes: ['nats://u:pw@h'] }", "1:29: error parsing route url"),
        ("cluster { port: 1, routes: ['nats://u:pw@:'] }", "1:29: error parsing route url"),
        ("cluster { port: 1, routes: ['http://h:1'] }", '1:29: "http" is no scheme'),
        ("cluster { port: 1, routes: [5] }", "1:29: expected text"),
        ("cluster { routes: ['h:1'] }", "1:1: solicited routes require cluster capabilities"),
        ("cluster { authorization { users: [] } }", "1:27: Cluster authorization does not allow users"),
        ("cluster { authorization { password: pw } }", "cluster: a password without a user"),
        ("cluster { authorization { user: u, password: '$2a$11$pw' } }", "cluster: a password that is a bcrypt hash"),
        ("cluster { tls { cert_file: x } }", "1:11: missing 'key_file' in TLS configuration"),
        ("cluster { tls { cert_file: /no, key_file: /no } }", "1:1: error parsing X509"),
        ("cluster { permissions { allow_responses: true } }", "1:11: Cluster permissions do not support"),
        ("compatibility: '2.15'\ncluster { name: 'a b' }", "2:1: cluster name cannot contain spaces"),
        ("port: 4333\ncluster { port: 4333 }", "2:1: port 4333 is given to clients and to cluster"),
        ("cluster {}\ncluster {}", "2:1: cluster is given again"),
        ("fence: shard", "1:1: fence: "),
        ("fence_timeout: 6s", "1:1: fence_timeout: clients would wait for 6 s"),
        ("fence_timeout: 10us", "1:1: fence_timeout: shorter than a millisecond"),
    ],
)
def test_a_mistake_has_its_place(built: Build, text: str, wanted: str) -> None:
    with pytest.raises(ConfigError) as caught:
        built(text)
    found = [re.sub(r"^\S*t\.conf:", "", str(problem)) for problem in caught.value.problems]
    assert any(wanted in line for line in found), found
    assert "pw" not in "".join(found)


@pytest.mark.parametrize("url", ["nats://h", "nats://u@h:1", "h:x", "nats://h:99999"])
def test_a_bad_address_by_flag_is_refused(built: Build, url: str) -> None:
    with pytest.raises(ConfigError):
        built("", "--cluster", url)


LOCKED = "cluster { name: x, port: 6222, routes: ['nats://h:1'], authorization { user: u, password: p } }"


def test_an_empty_address_by_flag_turns_the_files_cluster_off(built: Build) -> None:
    cluster = built(LOCKED, "--cluster", "").cluster
    assert (cluster.port, cluster.routes) == (0, ())
    with pytest.raises(ConfigError, match="solicited routes require cluster capabilities"):
        built(LOCKED, "--cluster", "", "--routes", "nats://h:1")


def test_an_address_by_flag_has_a_user_of_its_own_or_none(built: Build) -> None:
    options = built(LOCKED, "--cluster", "nats://a:b@127.0.0.1:1")
    assert (options.cluster.user, options.cluster.password, options.cluster.port) == ("a", "b", 1)
    assert not any("every server may join" in notice for notice in options.notices)
    options = built(LOCKED, "--cluster", "nats://127.0.0.1:1")
    assert (options.cluster.user, options.cluster.password) == ("", "")
    assert any("-cluster has no user" in notice for notice in options.notices)
    with pytest.raises(ConfigError, match="a password without a user"):
        built("", "--cluster", "nats://:pw@127.0.0.1:1")
