"""`gnatswarm config get` prints options as a broker would have them, by their names in the file, without secrets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gnatswarm.broker.options import Options
from gnatswarm.router import cli
from gnatswarm.router.commands.config_get import values
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
    ],
)
def test_values(file: str, capsys: pytest.CaptureFixture[str], words: list[str], printed: str) -> None:
    assert cli.main(["config", "get", *words, "-c", file], program="gnatswarm") == 0
    assert capsys.readouterr().out == printed


def test_all_of_them_are_shown_without_secrets(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["config", "get", "-c", file, "--json"], program="gnatswarm") == 0
    text = capsys.readouterr().out
    document = json.loads(text)
    assert "secret" not in text and "hush" not in text
    assert document["authorization.users"][0]["name"] == "a"
    assert set(BY_NAME) - document.keys() <= {"listen", "http", "https", "system"} | {"stats"}
    assert document["tls"]["min_version"] == "1.2"


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
