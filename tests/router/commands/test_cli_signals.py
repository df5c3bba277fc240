"""`--signal`: to whom it goes, and to whom never."""

from __future__ import annotations

import os
import pathlib
import signal

import pytest

from gnatswarm.router.commands import signals


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """What would have been sent; nothing is."""
    found: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: found.append((pid, number)))
    return found


@pytest.mark.parametrize(
    ("name", "number"),
    [("stop", signal.SIGKILL), ("quit", signal.SIGINT), ("term", signal.SIGTERM), ("reopen", signal.SIGUSR1),
     ("reload", signal.SIGHUP), ("ldm", signal.SIGUSR2)],
)  # fmt: skip
def test_each_command_is_the_real_servers_signal(sent: list[tuple[int, int]], name: str, number: int) -> None:
    assert signals.send(f"{name}=77", "gnatswarm") == 77
    assert sent == [(77, number)]


def test_a_pid_file_says_whom(sent: list[tuple[int, int]], tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x.pid"
    path.write_text("78\n")
    signals.send(f"reload={path}", "gnatswarm")
    assert sent == [(78, signal.SIGHUP)]


@pytest.mark.parametrize("target", ["0", "-1", "-5", "+0", "99999999999", "9" * 5000, "1x", "/nonexistent.pid", "²"])
def test_what_is_no_process_is_never_signalled(sent: list[tuple[int, int]], target: str) -> None:
    with pytest.raises(signals.SignalError, match="invalid pid"):
        signals.send(f"stop={target}", "gnatswarm")
    assert sent == []


@pytest.mark.parametrize("content", ["", "-1", "0", "abc", "12 13", "\0", "\xff", "9" * 100])
def test_a_pid_file_of_rubbish_signals_nobody(
    sent: list[tuple[int, int]], tmp_path: pathlib.Path, content: str
) -> None:
    path = tmp_path / "x.pid"
    path.write_text(content, encoding="latin-1")
    with pytest.raises(signals.SignalError, match="invalid pid"):
        signals.send(f"stop={path}", "gnatswarm")
    assert sent == []


def test_an_unknown_signal_is_refused_before_anybody_is_looked_for(sent: list[tuple[int, int]]) -> None:
    with pytest.raises(signals.SignalError, match='unknown signal "bogus"'):
        signals.send("bogus=77", "gnatswarm")


def test_a_dead_process_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def kill(pid: int, number: int) -> None:
        raise ProcessLookupError

    monkeypatch.setattr(os, "kill", kill)
    with pytest.raises(signals.SignalError, match="no such process: 77"):
        signals.send("quit=77", "gnatswarm")


def test_running_brokers_are_known_by_their_command_lines(tmp_path: pathlib.Path) -> None:
    processes = {
        "10": "/x/bin/python3\0/x/bin/gnatswarm\0-p\x004222\0",
        "11": "python\0-P\0-m\0gnatswarm\0-DV\0",
        "12": "python\0-P\0-m\0shards\0--control-fd\x005\0",
        "13": "/usr/sbin/nats-server\0",
        "14": "python3.11\0/opt/nats-server\0-c\0x\0",
        "15": "vim\0/x/gnatswarm\0",
        "16": "grep\0gnatswarm\0",
        str(os.getpid()): "gnatswarm\0",
        "17": "",
        "19": "/x/bin/python3\0/x/bin/gnatswarm\0top\0",
        "20": "gnatswarm\0status\0--json\0",
        "21": "python\0-m\0gnatswarm\0restart\0",
        "22": "gnatswarm\0-m\x008222\0top\0",
        "23": "gnatswarm\0-c\0" + "x" * 4096 + "\0",
        "24": "gnatswarm\0-c\0\0",
        "self": "gnatswarm\0",
    }
    for name, words in processes.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "cmdline").write_text(words)
    (tmp_path / "18").mkdir()
    assert sorted(signals.running_pids("gnatswarm", proc=str(tmp_path))) == [10, 11, 23, 24]
    assert sorted(signals.running_pids("nats-server", proc=str(tmp_path))) == [13, 14]


def test_none_or_many_running_brokers_are_not_guessed_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "running_pids", lambda program: [])
    with pytest.raises(signals.SignalError, match="no gnatswarm processes running"):
        signals.find_pid("", "gnatswarm")
    monkeypatch.setattr(signals, "running_pids", lambda program: [9, 8])
    with pytest.raises(signals.SignalError, match="multiple gnatswarm processes running:\n8\n9\n"):
        signals.find_pid("", "gnatswarm")
    monkeypatch.setattr(signals, "running_pids", lambda program: [9])
    assert signals.find_pid("", "gnatswarm") == 9
