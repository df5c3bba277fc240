"""The first screen says what somebody who starts a broker by hand wants to know."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from subprocess import PIPE, Popen

import pytest

from gnatswarm.broker.version import OWN_VERSION
from gnatswarm.router.commands.first_screen import first_screen
from tests.support.authority import Authority


def test_it_has_version_address_processes_and_something_to_try() -> None:
    text = first_screen("0.0.0.0:4222", 100, [101, 102], "reuseport")
    assert text.startswith(f"gnatswarm {OWN_VERSION} (")
    assert "0.0.0.0:4222" in text
    assert "router 100, 2 shards (reuseport): 101 102" in text
    assert max(len(line) for line in text.splitlines()) <= 120


def test_the_line_to_try_gets_its_message_back(start_broker) -> None:
    """What it says is typed into bash, against a broker."""
    broker = start_broker()
    text = first_screen(f"127.0.0.1:{broker.port}", 100, [101], "reuseport")
    line = text.splitlines()[-1].removeprefix("  try         ")
    done = subprocess.run(["bash", "-c", line], capture_output=True, timeout=30, check=False)
    assert b"MSG hi 1 5\r\nhello\r\n" in done.stdout


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
    ("address", "dial"), [("[::1]:4222", "::1/4222"), ("[::]:1", "127.0.0.1/1"), ("10.0.0.1:5", "10.0.0.1/5")]
)
def test_what_to_dial(address: str, dial: str) -> None:
    line = first_screen(address, 1, [2], "handoff").splitlines()[-1]
    assert line.startswith(f"  try         exec 3<>/dev/tcp/{dial};")


def test_many_shards_are_not_a_wall_of_numbers() -> None:
    text = first_screen("0.0.0.0:4222", 100, list(range(1_000_000, 1_000_064)), "reuseport")
    assert "64 shards" in text
    assert "…" in text
