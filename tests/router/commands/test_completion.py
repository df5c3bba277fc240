"""Shells complete every command, the flags of each, and values that are words."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gnatswarm.router import cli
from gnatswarm.router.commands.completion import SHELLS, completion, flags_of
from gnatswarm.router.config.flags import BY_NAME


@pytest.fixture(scope="module")
def bash() -> str:
    return completion("bash", cli.COMMANDS)


def completed(script: str, typed: str) -> set[str]:
    """What bash offers for the last word of `typed`."""
    words = typed.split(" ")
    listed = " ".join(f"'{word}'" for word in words)
    setting = f"COMP_WORDS=({listed}) COMP_CWORD={len(words) - 1}"
    program = f"{script}\n{setting}\n_gnatswarm\nprintf '%s\\n' \"${{COMPREPLY[@]}}\""
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("gnatswarm sta", {"status"}),
        ("gnatswarm --stats-", {"--stats-dir", "--stats-window"}),
        ("gnatswarm --accept ", {"reuseport", "handoff"}),
        ("gnatswarm --signal re", {"reload", "reopen"}),
        ("gnatswarm completion ", set(SHELLS)),
        ("gnatswarm why orders.new --us", {"--user"}),
        ("gnatswarm pub --tls", {"--tlsca", "--tlscert", "--tlskey", "--tlsfirst"}),
        ("gnatswarm sub --qu", {"--queue"}),
        ("gnatswarm bench --scena", {"--scenario", "--scenarios"}),
        ("gnatswarm report fil", set()),  # a file, which readline completes
    ],
)
def test_bash_completes(bash: str, typed: str, offered: set[str]) -> None:
    assert completed(bash, typed) == offered


def test_every_command_is_offered(bash: str) -> None:
    assert set(cli.COMMANDS) <= completed(bash, "gnatswarm ")


def test_flags_come_from_the_help_of_each_command() -> None:
    assert {"--port", "--pid", "--json", "-p", "-P"} <= set(flags_of("status"))
    assert {"--rate", "--lines", "-H", "--header"} <= set(flags_of("pub"))
    assert all(flags_of(command) for command in ("bench", "report", "ingest", "compact", "events"))


def test_scripts_for_other_shells_have_everything_and_can_be_read() -> None:
    for shell in ("zsh", "fish"):
        script = completion(shell, cli.COMMANDS)
        assert all(command in script for command in cli.COMMANDS)
        assert all(name in script for name in BY_NAME)
        if program := shutil.which(shell):
            subprocess.run([program, "-n", "/dev/stdin"], input=script, text=True, timeout=60, check=True)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [sys.executable, "-P", "-m", "gnatswarm", "completion", "bash"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, cwd=tmp_path)
    assert "complete -o default -F _gnatswarm gnatswarm" in done.stdout
    for words in (["completion"], ["completion", "tcsh"]):
        assert cli.main(words, program="gnatswarm") == 1
        assert "for which shell?" in capsys.readouterr().err
