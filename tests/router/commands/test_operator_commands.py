"""Operators are answered from the moment a broker can be found, or told plainly that it is starting."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gnatswarm.broker.options import Options
from gnatswarm.router import cli
from gnatswarm.router.commands import operator_commands
from gnatswarm.router.commands.operator_commands import NotFound
from gnatswarm.router.supervision.broker_view import RuleState
from gnatswarm.router.supervision.operator_socket import Reply, ShardStatus, Status, StatusRequest
from gnatswarm.router.supervision.runtime_files import RuntimeFiles, listen_for_operators
from gnatswarm.shards.boundary import linkdir
from tests.router.routers import runtime_directory
from tests.support.servers import wait_until


@pytest.fixture(autouse=True)
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = runtime_directory(tmp_path)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(directory))
    return directory / "gnatswarm"


@pytest.fixture
def directory(base: Path) -> Iterator[linkdir.LinkDirectory]:
    """The directory of a broker that can be found, but has no operator socket."""
    directory = linkdir.LinkDirectory(str(base), linkdir.Owner(os.getpid(), 4222))
    yield directory
    directory.remove()


def test_a_broker_that_can_be_found_can_be_asked() -> None:
    footprint = RuntimeFiles(Options(), pid=os.getpid(), port=4222, server_name="a", announce=lambda path: None)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(operator_commands.find(None, 4222))
    footprint.remove()


def test_who_asks_before_there_is_a_socket_waits_for_it(directory: linkdir.LinkDirectory) -> None:
    replies: list[Reply] = []
    asking = threading.Thread(target=lambda: replies.append(operator_commands.ask(StatusRequest(), None, 4222)))
    asking.start()
    with listen_for_operators(f"{directory.path}/{linkdir.OPERATOR_SOCKET}") as listening:
        listening.settimeout(30)
        sock, _ = listening.accept()
        with sock:
            sock.recv(1000)
            sock.sendall(b'{"text":"here"}\n')
        asking.join(30)
    assert replies == [Reply(text="here")]


def test_who_has_waited_long_enough_is_told_that_the_broker_starts(
    directory: linkdir.LinkDirectory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(operator_commands, "SOCKET_DEADLINE_S", 0.0)
    with pytest.raises(NotFound, match="it is starting or stopping"):
        operator_commands.ask(StatusRequest(), None, 4222)
    assert operator_commands.status(port=4222) == 1
    assert operator_commands.health(port=4222) == 1
    assert capsys.readouterr().err.count("it is starting or stopping, try again") == 2


def test_who_only_looks_at_a_router_that_does_not_answer_is_told_soon(
    directory: linkdir.LinkDirectory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(operator_commands, "LOOK_DEADLINE_S", 0.01)
    with listen_for_operators(f"{directory.path}/{linkdir.OPERATOR_SOCKET}"):
        assert operator_commands.status(port=4222) == 1
        assert operator_commands.health(port=4222) == 1
    assert capsys.readouterr().err == "gnatswarm: the broker does not answer: timed out\n" * 2


@pytest.mark.parametrize(
    "words", ["status", "health", "scale 3", "reload", "restart", "rebalance", "upgrade", "why --user u s"]
)
def test_ctrl_c_ends_a_command_and_one_that_acts_says_that_the_broker_goes_on(
    directory: linkdir.LinkDirectory, words: str
) -> None:
    with listen_for_operators(f"{directory.path}/{linkdir.OPERATOR_SOCKET}") as listening:
        listening.settimeout(20)
        command = [sys.executable, "-P", "-m", "gnatswarm", *words.split()]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
            sock, _ = listening.accept()
            with sock:
                assert sock.recv(1000)  # it waits for the answer, or is about to
                status = Path(f"/proc/{process.pid}/status").read_text()
                caught = int(re.search(r"^SigCgt:\t(\w+)", status, re.MULTILINE)[1], 16)  # type: ignore[index]
                assert not caught >> signal.SIGINT - 1 & 1, "a ^C just before it waits would not be noticed"
                process.send_signal(signal.SIGINT)
                said, _ = process.communicate(timeout=20)
    is_look = words.split()[0] in ("status", "health", "why")
    goes_on = b"gnatswarm: not waited for: the broker goes on; `gnatswarm status` shows how it stands\n"
    assert (process.returncode, said) == (-signal.SIGINT, b"" if is_look else goes_on)


def test_ctrl_c_ends_a_command_also_where_nobody_reads_what_it_says(directory: linkdir.LinkDirectory) -> None:
    """As with `gnatswarm restart 2>&1 | tee log`: ^C ends what reads the pipe, too."""
    with listen_for_operators(f"{directory.path}/{linkdir.OPERATOR_SOCKET}") as listening:
        listening.settimeout(20)
        with subprocess.Popen([sys.executable, "-P", "-m", "gnatswarm", "restart"], stderr=subprocess.PIPE) as process:
            assert process.stderr is not None
            process.stderr.close()
            sock, _ = listening.accept()
            with sock:
                assert sock.recv(1000)
                process.send_signal(signal.SIGINT)
                try:
                    assert process.wait(20) == -signal.SIGINT
                finally:
                    process.kill()


def test_a_command_that_has_its_answer_leaves_ctrl_c_as_it_was(directory: linkdir.LinkDirectory) -> None:
    before = (
        signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        signal.getsignal(signal.SIGINT),
        len(os.listdir("/proc/self/task")),
    )
    with listen_for_operators(f"{directory.path}/{linkdir.OPERATOR_SOCKET}") as listening:
        listening.settimeout(20)

        def answer() -> None:
            sock, _ = listening.accept()
            with sock:
                sock.recv(1000)
                sock.sendall(b'{"text":"done"}\n')

        answering = threading.Thread(target=answer)
        answering.start()
        assert cli.main(["rebalance"], program="gnatswarm") == 0
        answering.join(20)
    wait_until(lambda: len(os.listdir("/proc/self/task")) == before[2])
    assert (signal.pthread_sigmask(signal.SIG_BLOCK, ()), signal.getsignal(signal.SIGINT)) == before[:2]


def test_a_status_has_nothing_that_a_terminal_obeys() -> None:
    shard = ShardStatus(0, 7, "silent", 0, 0, 0.0, 0.0, 0, 0.0, 0, 1, "reason\x1b[2J")
    rule = RuleState("name\x1b[2J", False, -1, 0, 0, 0, 0.0, "")
    status = Status(1, 2, "127.0.0.1:4222", "n\x1b]0;owned\x07", "reuseport", True, 0, 1.0, [shard], [rule])
    table = operator_commands.status_table(status)
    assert table.startswith(r"n\x1b]0;owned\a on 127.0.0.1:4222, pid 1")
    assert table.endswith("name\\x1b[2J: 0 clients\nshard 0: reason\\x1b[2J")
    assert all(line.isprintable() for line in table.split("\n"))


def test_an_argument_that_is_not_utf_8_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    footprint = RuntimeFiles(Options(), pid=os.getpid(), port=4222, server_name="a", announce=lambda path: None)
    assert operator_commands.why("\udcff", "", port=4222) == 1
    assert operator_commands.upgrade("\udcff", 0, port=4222) == 1
    assert capsys.readouterr().err == "gnatswarm: what is asked has to be UTF-8\n" * 2
    footprint.remove()
