"""The first screen says what somebody who starts a broker by hand wants to know."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from subprocess import PIPE, Popen

import pytest

from gnatswarm.broker.version import OWN_VERSION
from gnatswarm.router.commands.first_screen import called_by, first_screen
from tests.support.authority import Authority


def test_it_has_version_address_processes_and_something_to_try() -> None:
    text = first_screen("0.0.0.0:4222", 100, 99, [101, 102], "reuseport")
    assert text.startswith(f"gnatswarm {OWN_VERSION} (")
    assert "0.0.0.0:4222" in text
    assert "broker 100, router 99, 2 shards (reuseport): 101 102" in text
    assert max(len(line) for line in text.splitlines()) <= 120


def test_the_lines_to_try_show_a_message(start_broker) -> None:
    """What it says is typed into shells, against a broker."""
    broker = start_broker()
    text = first_screen(
        f"127.0.0.1:{broker.port}", 100, 99, [101], "reuseport", own=[sys.executable, "-m", "gnatswarm"]
    )
    listen, publish = (line[14:] for line in text.splitlines()[-2:])
    with Popen(f"exec {listen} -n 1", shell=True, stdout=PIPE, text=True) as process:
        for _ in range(100):  # until it has subscribed
            subprocess.run(publish, shell=True, capture_output=True, timeout=30, check=True)
            if process.poll() is not None:
                break
        process.kill()
        assert process.stdout is not None
        assert "hello" in process.stdout.read()


def test_where_clients_have_to_log_in_or_encrypt_there_is_nothing_to_try(tmp_path: Path) -> None:
    """A password has no place on a screen, and the line would get an error."""
    for config in ("authorization { user: ann, password: a }", "accounts { A: { users: [ {user: a, password: b} ] } }"):
        assert "try   " not in shown(tmp_path, config)
    assert "try   " in shown(tmp_path, "max_payload: 1MB")
    assert "try   " not in shown(tmp_path, f"tls {{ {Authority(tmp_path).server().lines} }}")


def shown(tmp_path: Path, config: str) -> str:
    """The first screen of a broker with this configuration."""
    file = tmp_path / "broker.conf"
    file.write_text(f'listen: "127.0.0.1:-1"\nshards: 1\n{config}\n')
    command = [sys.executable, "-P", "-m", "gnatswarm", "-c", str(file)]
    with Popen(command, stdout=PIPE, stderr=PIPE, text=True) as process:
        assert process.stderr is not None and process.stdout is not None
        for line in process.stderr:
            if "Server is ready" in line:
                break
        process.terminate()
        text = process.stdout.read()
        process.stderr.read()
    assert "listening" in text
    return text


@pytest.mark.parametrize(
    ("address", "server"),
    [
        ("[::1]:4222", "-s 'nats://[::1]:4222'"),
        ("[::]:1", "-p 1"),
        ("0.0.0.0:4222", "-p 4222"),
        ("10.0.0.1:5", "-s nats://10.0.0.1:5"),
    ],
)
def test_what_to_dial(address: str, server: str) -> None:
    text = first_screen(address, 1, 3, [2], "handoff")
    assert text.endswith(f"  try         gnatswarm sub hi {server}\n  and then    gnatswarm pub hi hello {server}\n")


def test_what_to_type_is_what_was_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "bin" / "gnatswarm"
    script.parent.mkdir()
    script.touch(mode=0o755)
    monkeypatch.setenv("PATH", "/nowhere")
    assert called_by(["/usr/bin/python", str(script)]) == str(script)
    monkeypatch.chdir(tmp_path)
    assert called_by(["/usr/bin/python", str(script)]) == "bin/gnatswarm"
    monkeypatch.setenv("PATH", str(script.parent))
    assert called_by(["/usr/bin/python", str(script)]) == "gnatswarm"
    assert called_by([f"{tmp_path}/bin/python", "-P", "-m", "gnatswarm"]) == "bin/python -P -m gnatswarm"


def test_in_a_directory_that_was_removed_the_whole_path_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert called_by(["/usr/bin/python", f"{tmp_path}/bin/gnatswarm"]) == f"{tmp_path}/bin/gnatswarm"


def test_many_shards_are_not_a_wall_of_numbers() -> None:
    text = first_screen("0.0.0.0:4222", 100, 99, list(range(1_000_000, 1_000_064)), "reuseport")
    assert "64 shards" in text
    assert "…" in text
