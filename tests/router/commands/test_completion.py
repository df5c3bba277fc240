"""Shells complete every command, the flags of each, and values that are words."""

from __future__ import annotations

import functools
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gnatswarm.router import cli
from gnatswarm.router.commands.completion import SHELLS
from gnatswarm.router.config.flags import BY_NAME
from tests.support.forkserver import forkserver


@functools.cache
def script_for(shell: str) -> str:
    """By the command: pytest's own way of importing modules cannot run them as programs, as it does."""
    done = forkserver().run(["gnatswarm", "completion", shell])
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.fixture(scope="module")
def bash() -> str:
    return script_for("bash")


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
        ("gnatswarm -c ", set()),
    ],
)
def test_bash_completes(bash: str, typed: str, offered: set[str]) -> None:
    assert completed(bash, typed) == offered


def test_every_command_is_offered(bash: str) -> None:
    assert set(cli.COMMANDS) <= completed(bash, "gnatswarm ")


def test_flags_come_from_the_help_of_each_command(bash: str) -> None:
    assert {"--port", "--pid", "--json", "-p", "-P"} <= completed(bash, "gnatswarm status -")
    assert {"--rate", "--lines", "-H", "--header"} <= completed(bash, "gnatswarm pub -")
    assert all("--help" in completed(bash, f"gnatswarm {command} --h") for command in cli.HELP_PROGRAMS)


def test_scripts_for_other_shells_have_everything_and_can_be_read() -> None:
    for shell in ("zsh", "fish"):
        script = script_for(shell)
        assert all(command in script for command in cli.COMMANDS)
        assert all(name in script for name in BY_NAME)
        if program := shutil.which(shell):
            subprocess.run([program, "-n", "/dev/stdin"], input=script, text=True, timeout=60, check=True)


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str, str], str]]:
    """What an interactive zsh shows after something is typed, up to an expected text."""
    if shutil.which("zsh") is None:
        pytest.skip("zsh is not installed")
    script = tmp_path_factory.mktemp("zsh") / "_gnatswarm"
    script.write_text(script_for("zsh"))
    pid, fd = pty.fork()
    if pid == 0:
        os.execvpe("zsh", ["zsh", "-f", "-i"], os.environ | {"TERM": "dumb"})

    def typed(text: str, until: str) -> str:
        os.write(fd, text.encode())
        shown, deadline = b"", time.monotonic() + 30
        while until.encode() not in shown:
            left_s = deadline - time.monotonic()
            assert select.select([fd], [], [], max(0.0, left_s))[0], f"no {until!r} within 30 s: {shown!r}"
            shown += os.read(fd, 65536)
        return shown.decode()

    typed(f"PS1= RPS1=; stty -echo; autoload -U compinit; compinit -u -D; source {script}; echo is''set\n", "isset")
    yield typed
    os.close(fd)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        ("gnatswarm sta", "tus "),
        ("gnatswarm --signal rel", "oad "),
        ("gnatswarm completion ba", "sh "),
        ("gnatswarm why orders.new --us", "er "),
        ("gnatswarm -c /proc/self/cmdli", "ne "),
        ("gnatswarm report /proc/self/cmdli", "ne "),
    ],
)
def test_zsh_completes(terminal: Callable[[str, str], str], typed: str, shown: str) -> None:
    found = terminal(f"\x15{typed}\t", typed + shown)
    assert ":" not in found.replace("\x15", "").split(typed, 1)[1], found  # a complaint of zsh


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes(tmp_path: Path) -> None:
    script = tmp_path / "gnatswarm.fish"
    script.write_text(script_for("fish"))
    wanted = {
        "gnatswarm sta": "status",
        "gnatswarm --signal re": "reload reopen",
        "gnatswarm completion ": "bash fish zsh",
        "gnatswarm pub --tlsc": "--tlsca --tlscert",
        "gnatswarm -c gnats": "gnatswarm.fish",
    }
    asked = "".join(f"; complete -C '{typed}'; echo =" for typed in wanted)
    command = ["fish", "--no-config", "-c", f"source {script}{asked}"]
    environment = os.environ | {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=True, cwd=tmp_path, env=environment
    )
    assert done.stderr == ""
    assert [" ".join(one.split()) for one in done.stdout.split("=\n")[:-1]] == list(wanted.values())


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [sys.executable, "-P", "-m", "gnatswarm", "completion", "bash"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, cwd=tmp_path)
    assert "complete -o default -F _gnatswarm gnatswarm" in done.stdout
    for words in (["completion"], ["completion", "tcsh"]):
        assert cli.main(words, program="gnatswarm") == 1
        assert "for which shell?" in capsys.readouterr().err
