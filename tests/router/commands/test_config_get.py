"""`gnatswarm config get` prints options as a broker would have them, by their names in the file, without secrets."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from gnatswarm.broker.options import Options
from gnatswarm.router import cli
from gnatswarm.router.commands.config_get import fields_by_name, values
from gnatswarm.router.config.option_keys import BY_NAME

FILE = """
max_payload: 2MB
ping_interval: "30s"
http_password: hush, http_user: u
authorization { users: [ {user: a, password: secret} ] }
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "broker.conf"
    path.write_text(FILE)
    return str(path)


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        (["max_payload"], "2097152\n"),
        (["PING_INTERVAL"], "30.0\n"),
        (["server_name"], "\n"),
        (["http_password"], "…\n"),
        (["max_payload", "port"], "max_payload: 2097152\nport: 4222\n"),
        (["port", "-p", "99"], "99\n"),
        (["no_header_support"], "false\n"),
        (["listen"], "0.0.0.0:4222\n"),
        (["listen", "-a", "::1", "-p", "99"], "[::1]:99\n"),
        (["http"], "\n"),
        (["http", "-m", "8222"], "127.0.0.1:8222\n"),
        (["http", "-m", "8222", "-a", "0.0.0.0"], "0.0.0.0:8222\n"),
        (["https", "-m", "8222"], "\n"),
        (["maps"], "[]\n"),
    ],
)
def test_values(file: str, capsys: pytest.CaptureFixture[str], words: list[str], printed: str) -> None:
    assert cli.main(["config", "get", *words, "-c", file], program="gnatswarm") == 0
    assert capsys.readouterr().out == printed


@pytest.mark.parametrize(("name", "other"), [("websocket", "ws"), ("leafnodes", "leaf"), ("mappings", "maps")])
def test_a_block_has_both_its_names(name: str, other: str) -> None:
    found = values(Options(), [name, other])
    assert found[name] == found[other] != ""


def test_all_of_them_are_shown_without_secrets(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["config", "get", "-c", file, "--json"], program="gnatswarm") == 0
    text = capsys.readouterr().out
    document = json.loads(text)
    assert "secret" not in text and "hush" not in text
    assert document["authorization.users"][0]["name"] == "a"
    assert set(BY_NAME) <= document.keys()
    assert document["tls"]["min_version"] == "1.2"


def test_the_opposite_of_a_field_is_shown_as_it_was_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("no_header_support: true")
    assert cli.main(["config", "get", "no_header_support", "-c", str(path)], program="gnatswarm") == 0
    assert capsys.readouterr().out == "true\n"


def test_blocks_and_the_only_user(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("""
        authorization { user: ann, password: hush }
        cluster { name: home, port: 6222, routes: ["nats://u:hush@other:6222"] }
        leafnodes { port: 7422, remotes: [ {url: "nats://u:hush@hub:7422"} ] }
        placement { bound: 2 }
    """)
    asked = ("cluster", "leafnodes", "placement", "authorization.user", "authorization.password")
    assert cli.main(["config", "get", *asked, "-c", str(path), "--json"], program="gnatswarm") == 0
    text = capsys.readouterr().out
    assert "hush" not in text
    document = json.loads(text)
    assert [document[name]["port"] for name in ("cluster", "leafnodes")] == [6222, 7422]
    assert document["placement"]["bound"] == 2.0
    assert (document["authorization.user"], document["authorization.password"]) == ("ann", "…")


def test_every_option_of_the_file_has_a_name() -> None:
    named = {field for _, field in fields_by_name()} | {"headers", "http_host"}  # no_header_support, http
    not_in_the_file = {"config_file", "config_digest", "notices", "has_guests"}
    missing = set()
    for section in msgspec.structs.fields(Options):
        inner = msgspec.structs.fields(section.type) if isinstance(section.default, msgspec.Struct) else ()
        fields = {f"{section.name}.{one.name}" for one in inner} or {section.name}
        if section.name not in named:
            missing |= fields - named
    assert missing == not_in_the_file


def test_every_name_has_the_value_of_its_option() -> None:
    found = values(Options(server_name="x"))
    assert (found["server_name"], found["max_conn"], found["shards"]) == ("x", 65536, 0)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["config"], "what to do?"),
        (["config", "set", "a"], "what to do?"),
        (["config", "get", "max_payloda"], 'there is no option "max_payloda" — did you mean max_payload?'),
        (["config", "get", "-c", "/nonexistent"], "no such file"),
    ],
)
def test_mistakes(capsys: pytest.CaptureFixture[str], words: list[str], says: str) -> None:
    assert cli.main(words, program="gnatswarm") == 1
    assert says in capsys.readouterr().err
