"""Options as keywords of a call mean what they mean in the configuration file."""

from __future__ import annotations

import datetime
import os
from pathlib import Path

import pytest

from gnatswarm.broker.options import Options
from gnatswarm.router.config.conf_tree import ConfigError
from gnatswarm.router.config.keywords import Keywords, UnknownOption, conf_text, known_names, options_from


def options(**given):
    return options_from(conf_text(given, "here"), "here")


def test_a_program_gets_a_free_port_of_loopback_and_no_statistics():
    found = options()
    assert (found.host, found.port, found.stats.enabled) == ("127.0.0.1", -1, False)


def test_every_name_of_the_file_is_a_keyword_with_a_type():
    typed = set(Keywords.__annotations__)
    assert typed <= set(known_names())
    # The file has several names for some options; a type is given to one of each.
    others = {
        "net",
        "listen",
        "https",
        "http",
        "monitor_port",
        "logfile",
        "logfile_size_limit",
        "logfile_max_num",
        "pidfile",
        "max_conn",
        "max_subs",
        "system",
    }
    assert set(known_names()) - typed == others


def test_every_section_of_the_options_can_be_reached():
    """Every block of the file must be a keyword, or it could be used by the command only."""
    reached = {"auth_token", "auth_user", "auth_password", "users"}  # by authorization, token, user, …
    reached |= {
        "limits",
        "logging",
        "sharding",
        "headers",
        "config_file",
        "config_digest",
        "has_guests",
        "notices",
        "http_host",
        "fence_timeout_s",
    }  # under the names of their options
    assert set(Options.__struct_fields__) - reached <= set(known_names())


def test_subjects_are_mapped():
    (mapping,) = options(mappings={"old.*": "new.$1"}).mappings
    assert "old.*" in repr(mapping)


def test_values_come_through_as_they_are():
    found = options(
        server_name="a-b",
        max_payload=4096,
        max_pending="8MB",
        ping_interval=0.25,
        write_deadline=datetime.timedelta(seconds=3),
        lame_duck_duration="45s",
        server_tags=["x", "y"],
        debug=True,
        pid_file=Path("/tmp/x.pid"),
        stats={"window": 2, "dir": "/tmp/s"},
        http_port=-1,
    )
    assert (found.server_name, found.server_tags) == ("a-b", ("x", "y"))
    assert (found.limits.max_payload_bytes, found.limits.max_pending_bytes) == (4096, 8 * 2**20)
    assert (found.limits.ping_interval_s, found.limits.write_deadline_s) == (0.25, 3.0)
    assert (found.limits.lame_duck_duration_s, found.logging.debug, found.pid_file) == (45.0, True, "/tmp/x.pid")
    assert (found.stats.window_s, found.stats.enabled, found.http_port) == (2.0, True, -1)


@pytest.mark.parametrize(
    "secret", ['quo"te', "back\\slash", "new\nline", "ünïcode", "$2a", "\x01", "# {", "true", "8MB"]
)
def test_no_character_of_a_text_means_anything(secret: str):
    assert options(token=secret).auth_token == secret
    (user,) = options(users={secret: secret}).users
    assert (user.name, user.password) == (secret, secret)


def test_users_may_be_written_as_in_the_file():
    permissions = {"publish": ["a.>"], "subscribe": {"deny": "b"}}
    (user,) = options(users=[{"user": "ann", "password": "x", "permissions": permissions}]).users
    assert user.permissions is not None
    assert (user.permissions.publish_allow, user.permissions.subscribe_deny) == (("a.>",), ("b",))


def test_credentials_go_into_the_authorization_block_that_is_given():
    found = options(user="ann", password="x", authorization={"timeout": 5})
    assert (found.auth_user, found.auth_password, found.limits.auth_timeout_s) == ("ann", "x", 5.0)


def test_keywords_win_over_a_configuration_file(tmp_path: Path):
    path = tmp_path / "broker.conf"
    path.write_text("port: 4333\nmax_payload: 1KB\nmax_pending: 1MB\n")
    found = options(config=path, max_payload=2048)
    assert (found.port, found.limits.max_payload_bytes, found.limits.max_pending_bytes) == (4333, 2048, 2**20)
    assert found.stats.enabled  # the file's world: every default is the command's


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"max_paylod": 1}, "here: there is no option 'max_paylod'; did you mean max_payload?"),
        ({"shard": 1}, "did you mean shards?"),
        ({"zzz": 1}, "there is no option 'zzz'; see deploy/config/gnatswarm.conf"),
    ],
)
def test_a_keyword_that_there_is_not_is_a_type_error(given, said: str):
    with pytest.raises(UnknownOption) as found:
        options(**given)
    assert said in str(found.value)
    assert isinstance(found.value, TypeError)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"max_payload": "much"}, "here: max_payload: expected a size, not text"),
        ({"shards": 99}, "here: shards: 99 is out of range — write 0 to 62"),
        ({"token": ""}, "an empty token lets everybody in"),
        ({"password": "x"}, "a password without a user lets everybody in"),
        ({"tls": {"cert_fil": "x"}}, 'unknown field "cert_fil" — did you mean "cert_file"?'),
        ({"users": [{"user": "ann", "passwd": "x"}]}, 'unknown field "passwd" — did you mean'),
        ({"config": "/nowhere/x.conf"}, "no such file or directory"),
        ({"ping_interval": -1}, "here: ping_interval: a duration cannot be negative"),
    ],
)
def test_a_value_that_cannot_be_is_named_by_its_keyword(given, said: str):
    with pytest.raises(ConfigError) as found:
        options(**given)
    assert said in str(found.value)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"server_name": "\udcff"}, "server_name"),
        ({"users": [{"user": "ann", "password": "hush-\udcff"}]}, "password"),
        ({"log_file": Path("\udcff.log")}, "log_file"),
        ({"tls": {"\udcff": 1}}, "tls"),
        ({"config": os.fsencode("\udcff.conf").decode(errors="surrogateescape")}, "config"),
    ],
)
def test_a_text_that_is_no_utf_8_is_an_error_that_does_not_show_it(given, name: str):
    """It may be a password. Python has such texts for the bytes of file names."""
    with pytest.raises(ConfigError) as found:
        options(**given)
    assert str(found.value) == f"here: the value of {name} is not UTF-8 — leave the lone surrogates out"


def test_a_value_that_contains_itself_is_an_error():
    users: list[object] = []
    users.append(users)
    with pytest.raises(TypeError, match="nested too deep"):
        options(users=users)


def test_all_problems_are_said_at_once():
    with pytest.raises(ConfigError) as found:
        options(max_payload="much", ping_max="x")
    assert len(str(found.value).splitlines()) == 2


def test_a_problem_in_an_included_file_has_its_place(tmp_path: Path):
    path = tmp_path / "broker.conf"
    path.write_text("\nmax_paylod: 1KB\n")
    with pytest.raises(ConfigError) as found:
        options(config=path)
    assert f"{path}:2:1: " in str(found.value)


@pytest.mark.parametrize("name", ['a"b', "a'b", "a\\b", "a\u00a0b", "a\nb", "a: b", "a } $b #"])
def test_a_name_of_any_characters_is_that_name(tmp_path: Path, name: str):
    """The file has no escapes in keys and in names of files, as it has in values."""
    path = tmp_path / name
    path.write_text("max_payload: 77")
    found = options(config=path, server_metadata={name: name})
    assert (found.limits.max_payload_bytes, found.server_metadata) == (77, ((name, name),))


def test_a_name_is_no_more_of_the_configuration_than_a_name():
    name = 'x": { users: [ { user: eve, password: eve } ] }, "y'
    with pytest.raises(ConfigError, match="an account's name has no blanks"):
        options(accounts={name: {}})
    with pytest.raises(ConfigError, match="accounts: a name has quotes of both kinds"):
        options(accounts={f"'{name}": {}})


@pytest.mark.parametrize("value", [object(), b"bytes", {"a": object()}])
def test_a_value_of_a_type_that_fits_nothing_is_a_type_error(value):
    with pytest.raises(TypeError, match="fits no option"):
        options(tls=value)


def test_a_secret_is_in_no_message():
    with pytest.raises(ConfigError) as found:
        options(token="hush-hush", password="hush-hush", ping_max="x")
    assert "hush" not in str(found.value)
