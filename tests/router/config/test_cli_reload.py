"""What a reload may change: all of it or nothing, and every refusal in one clear line."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from gnatswarm.broker.limits import Limits
from gnatswarm.broker.options import Cluster, LeafNodes, LeafRemote, Logging, Options, Sharding, Tls, User, WebSocket
from gnatswarm.router.config.conf_tree import ConfigError
from gnatswarm.router.config.flags import parse
from gnatswarm.router.config.options_build import build
from gnatswarm.router.config.reload import FIXED, LIVE, diff, with_chosen_ports


def test_nothing_changed_is_nothing() -> None:
    reload = diff(Options(), Options())
    assert (reload.live, reload.refused, reload.is_refused) == ((), (), False)
    assert diff(Options(), Options(notices=("x",), config_digest="sha256:0")) == reload  # these are no options


def test_what_can_change_live_is_named_with_old_and_new() -> None:
    old = Options(limits=Limits(max_payload_bytes=5), logging=Logging(file="a"))
    new = Options(limits=Limits(max_payload_bytes=6), logging=Logging(file="b"), server_tags=("x",))
    reload = diff(old, new)
    assert not reload.is_refused
    assert [str(change) for change in reload.live] == [
        "server_tags: () → ('x',)",
        "limits.max_payload_bytes: 5 → 6",
        'logging.file: "a" → "b"',
    ]


def test_one_change_that_needs_a_restart_refuses_all() -> None:
    reload = diff(Options(), Options(port=5, server_tags=("x",), sharding=Sharding(accept="handoff", shards=2)))
    assert reload.is_refused
    assert reload.refused == (
        "reload not supported for port: 4222 → 5: listeners are made at the start, restart to change it",
        'reload not supported for sharding.accept: "reuseport" → "handoff": '
        "listeners are made at the start, restart to change it",
    )


def test_secrets_are_not_shown() -> None:
    old = Options(auth_token="hunter1")
    new = Options(auth_user="u", auth_password="hunter2", users=(User("a", "hunter3"),))
    old = msgspec.structs.replace(old, cluster=Cluster(user="u", password="hunter4"))
    new = msgspec.structs.replace(new, cluster=Cluster(user="u", password="hunter5"))
    shown = " ".join(map(str, diff(old, new).live))
    assert "hunter" not in shown
    assert "users changed" in shown and "cluster.password changed" in shown


@pytest.mark.parametrize("field", [field.name for field in msgspec.structs.fields(Options)])
def test_every_option_is_either_live_or_fixed(field: str) -> None:
    if field in ("stats", "sharding", "placement", "websocket", "leafnodes", "cluster"):
        names = {f"{field}.{inner.name}" for inner in msgspec.structs.fields(type(getattr(Options(), field)))}
        listed = {name for name in LIVE | FIXED.keys() if name.startswith(f"{field}.")}
        assert names == {name for name in listed if name.count(".") == 1}
        assert all(name.rpartition(".")[0] in LIVE for name in listed - names)
    else:
        assert (field in LIVE) != (field in FIXED)


@pytest.mark.parametrize("is_on", [False, True], ids=["off", "on"])
def test_what_certificates_stand_for_stays_as_it_is_where_clients_are_connected(is_on: bool) -> None:
    """As on nats-server: those that are connected may have none, and their certificates were not looked at."""
    before, after = Tls(verify_and_map=is_on), Tls(verify_and_map=not is_on)
    for old, new, field in (
        (Options(tls=before), Options(tls=after), "tls"),
        (Options(websocket=WebSocket(tls=before)), Options(websocket=WebSocket(tls=after)), "websocket.tls"),
    ):
        (line,) = diff(old, new).refused
        assert line.startswith(f"reload not supported for {field}.verify_and_map: {is_on} → {not is_on}: ")
    for old, new in (
        (Options(cluster=Cluster(tls=before)), Options(cluster=Cluster(tls=after))),
        (Options(leafnodes=LeafNodes(tls=before)), Options(leafnodes=LeafNodes(tls=after))),
        (Options(tls=Tls(verify=is_on)), Options(tls=Tls(verify=not is_on))),
    ):
        assert not diff(old, new).is_refused


def test_the_port_that_was_chosen_may_be_named() -> None:
    """`-1` is whichever port is bound: to name that one changes nothing, to name another does."""
    old = Options(port=-1, cluster=Cluster(port=-1))
    bound = {"port": 4001, "cluster.port": 4002}
    for port, route in ((4001, 4002), (-1, 4002), (4001, -1)):
        new = with_chosen_ports(old, Options(port=port, cluster=Cluster(port=route)), bound)
        assert diff(old, new) == diff(old, old)
    named = Options(port=4001, cluster=Cluster(port=4002))
    assert diff(named, with_chosen_ports(named, old, bound)) == diff(old, old)
    other = diff(old, with_chosen_ports(old, Options(port=4001, cluster=Cluster(port=4003)), bound))
    assert [line.partition(":")[0] for line in other.refused] == ["reload not supported for cluster.port"]


def test_the_process_for_other_servers_neither_comes_nor_goes_with_a_reload() -> None:
    """Hubs may be named and unnamed where there is a port for leaf nodes or members besides; else it is refused."""
    some = LeafNodes(remotes=(LeafRemote(urls=("nats://h:7422",)),))
    for before, after in ((Options(), Options(leafnodes=some)), (Options(leafnodes=some), Options())):
        (line,) = diff(before, after).refused
        assert line.startswith("reload not supported for leafnodes and cluster: ")
    assert not diff(Options(cluster=Cluster(port=5)), Options(cluster=Cluster(port=5), leafnodes=some)).is_refused


def test_an_included_file_that_is_empty_for_a_moment_lets_nobody_in_who_had_to_log_in(tmp_path: Path) -> None:
    whole, users, more = tmp_path / "broker.conf", tmp_path / "users.conf", tmp_path / "more.conf"
    whole.write_text("port: 4222\ninclude users.conf\ninclude more.conf\n")
    users.write_text('authorization { users: [ { user: ann, password: "secret" } ] }\n')
    more.write_text("\n")
    line = parse(["-c", str(whole)])
    old = build(line).options
    assert build(line, instead_of=old).options.users == old.users  # (one that may be empty)
    users.write_text("")
    with pytest.raises(ConfigError, match="the file is empty, and without it everybody may connect"):
        build(line, instead_of=old)
    assert not build(line, instead_of=Options()).options.has_log_in  # nobody had to
    users.write_text("# nobody\n")
    whole.write_text("port: 4222\ninclude users.conf\n")
    assert not build(line, instead_of=old).options.has_log_in  # somebody has said so


@pytest.mark.parametrize("text", ["", "# users come here\n"])
def test_a_file_that_sets_nothing_changes_nothing(tmp_path: Path, text: str) -> None:
    """A tool that was killed while it wrote the file opened the broker to all."""
    path = tmp_path / "broker.conf"
    path.write_text(text)
    for old in (Options(), Options(auth_user="ann", auth_password="pw")):
        with pytest.raises(ConfigError, match="config has no values or is empty — write it again"):
            build(parse(["-c", str(path)]), instead_of=old)


def test_a_file_that_is_empty_for_a_moment_lets_no_guests_in_beside_the_system_account(tmp_path: Path) -> None:
    whole, users = tmp_path / "broker.conf", tmp_path / "users.conf"
    whole.write_text('accounts { $SYS { users: [ { user: sys, password: "secret" } ] } }\ninclude users.conf\n')
    users.write_text('authorization { users: [ { user: ann, password: "secret" } ] }\n')
    line = parse(["-c", str(whole)])
    old = build(line).options
    assert old.is_locked
    users.write_text("")
    with pytest.raises(ConfigError, match="the file is empty, and without it everybody may connect"):
        build(line, instead_of=old)
    options = build(line).options
    assert options.has_guests and options.has_log_in and not options.is_locked
