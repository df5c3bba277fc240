"""Notifications to a service manager: a socket of the test takes the place of systemd's."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gnatswarm import keeper
from gnatswarm.router.supervision import notify
from gnatswarm.router.supervision.notify import Notifier
from gnatswarm.router.supervision.supervision import Phase, ShardState
from tests.router.routers import Router, wait_until

READY = ShardState(phase=Phase.READY, is_wanted=True)
BOOTING = ShardState(phase=Phase.STARTING, is_wanted=True)
SUSPECT = ShardState(phase=Phase.READY, is_wanted=True, is_suspect=True)


class Manager:
    """A service manager's socket, and what came in on it, one message an entry."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        self.socket.setblocking(False)
        self._heard: list[str] = []

    def heard(self) -> list[str]:
        while True:
            try:
                self._heard.append(self.socket.recv(4096).decode())
            except BlockingIOError:
                return self._heard

    def fields(self, name: str) -> list[str]:
        """The values of one field, in the order they came."""
        lines = [line.partition("=") for message in self.heard() for line in message.split("\n")]
        return [value for field, _, value in lines if field == name]

    def wait(self, claim: Callable[[list[str]], object], what: str) -> None:
        wait_until(lambda: claim(self.heard()), f"{what}; heard: {self._heard}")


@pytest.fixture
def manager() -> Iterator[Manager]:
    with tempfile.TemporaryDirectory(prefix="gnat-") as directory:
        manager = Manager(Path(directory, "notify"))
        yield manager
        manager.socket.close()


def notifier_at(address: str, watchdog_us: int = 0) -> Notifier:
    """One that sends as the keeper does."""
    notifier = Notifier(address, watchdog_us)
    notifier.send_by(keeper._notify)
    return notifier


def observe(notifier: Notifier, *shards: ShardState, is_serving: bool = True, **more: Any) -> None:
    notifier.observe(shards, is_serving=is_serving, is_leaving=more.get("is_leaving", False), connections=0)


def test_a_status_that_is_no_other_is_not_said_again(manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also not when it is time to look whether the number of connections is another one."""
    now_s = 1000.0
    monkeypatch.setattr(notify, "time", SimpleNamespace(monotonic=lambda: now_s))
    notifier = notifier_at(str(manager.path))
    for connections in (0, 0, 1, 1):
        notifier.observe([READY], is_serving=True, is_leaving=False, connections=connections)
        now_s += notify.STATUS_EVERY_S
    assert manager.fields("STATUS") == [
        "serving: 1 of 1 shards accept, 0 connections",
        "serving: 1 of 1 shards accept, 1 connection",
    ]


def test_ready_is_said_once_and_only_when_the_broker_serves(manager: Manager) -> None:
    notifier = notifier_at(str(manager.path))
    observe(notifier, READY, BOOTING, is_serving=False)
    assert manager.fields("READY") == []
    for _ in range(3):
        observe(notifier, READY, READY)
    assert manager.fields("READY") == ["1"]
    assert manager.fields("STATUS") == [
        "starting: 1 of 2 shards accept, 0 connections",
        "serving: 2 of 2 shards accept, 0 connections",
    ]


@pytest.mark.parametrize("sick", [BOOTING, SUSPECT, ShardState(phase=Phase.BACKING_OFF, is_wanted=True)])
def test_the_watchdog_is_not_fed_while_a_wanted_shard_does_not_answer(manager: Manager, sick: ShardState) -> None:
    notifier = notifier_at(str(manager.path), watchdog_us=1)
    observe(notifier, READY, sick)
    assert manager.fields("WATCHDOG") == []
    observe(notifier, READY, READY)
    assert manager.fields("WATCHDOG") == ["1"]


def test_a_shard_that_is_not_wanted_any_more_does_not_starve_the_watchdog(manager: Manager) -> None:
    notifier = notifier_at(str(manager.path), watchdog_us=1)
    observe(notifier, READY, ShardState(phase=Phase.DRAINING))
    assert manager.fields("WATCHDOG") == ["1"]
    observe(notifier, READY, ShardState(phase=Phase.DRAINING, is_suspect=True))
    assert manager.fields("WATCHDOG") == ["1"]


def test_a_watchdog_is_fed_three_times_in_its_time(manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    notifier = notifier_at(str(manager.path), watchdog_us=3_000_000)
    for _ in range(12):  # three seconds in ticks of a quarter
        observe(notifier, READY)
        now[0] += 0.25
    assert len(manager.fields("WATCHDOG")) == 3


def test_connections_alone_are_told_seldom(manager: Manager) -> None:
    notifier = notifier_at(str(manager.path))
    for connections in range(1000):
        notifier.observe([READY], is_serving=True, is_leaving=False, connections=connections)
    assert len(manager.fields("STATUS")) == 1


def test_a_full_or_absent_socket_stops_nobody(manager: Manager) -> None:
    notifier = notifier_at(str(manager.path))
    for _ in range(1000):  # more than its queue takes
        notifier.reloaded()
    manager.path.unlink()
    notifier.stopping()
    observe(notifier_at("/nonexistent/notify", watchdog_us=1), READY)


def test_the_environment_is_read_and_taken_away(manager: Manager) -> None:
    environment = {"NOTIFY_SOCKET": str(manager.path), "WATCHDOG_USEC": "1", "WATCHDOG_PID": "7", "HOME": "/"}
    notifier = Notifier.take(environment, pid=7)
    notifier.send_by(keeper._notify)
    assert environment == {"HOME": "/"}
    observe(notifier, READY)
    assert manager.fields("READY") == manager.fields("WATCHDOG") == ["1"]


def test_a_watchdog_for_another_process_is_not_ours(manager: Manager) -> None:
    environment = {"NOTIFY_SOCKET": str(manager.path), "WATCHDOG_USEC": "1", "WATCHDOG_PID": "8"}
    notifier = Notifier.take(environment, pid=7)
    notifier.send_by(keeper._notify)
    observe(notifier, READY)
    assert manager.fields("READY") == ["1"]
    assert manager.fields("WATCHDOG") == []


def test_an_abstract_socket_is_reached() -> None:
    name = f"gnatswarm-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(f"\0{name}")
        notifier = Notifier.take({"NOTIFY_SOCKET": f"@{name}"}, pid=1)
        notifier.send_by(keeper._notify)
        notifier.stopping()
        assert sock.recv(100) == b"STOPPING=1"


# ---- the whole broker


def start(
    manager: Manager, tmp_path: Path, config: str = "debug: false", *, watchdog_us: int = 0
) -> subprocess.Popen[bytes]:
    file = tmp_path / "broker.conf"
    file.write_text(config)
    environment = {**os.environ, "NOTIFY_SOCKET": str(manager.path)}
    if watchdog_us:
        environment["WATCHDOG_USEC"] = str(watchdog_us)
    with (tmp_path / "log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "gnatswarm", "-a", "127.0.0.1", "-p", "-1", "-c", str(file), "--shards", "2"],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=log,
        )


@pytest.fixture
def ended() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait(30)


def test_a_broker_is_ready_reloads_and_stops(
    manager: Manager, tmp_path: Path, ended: list[subprocess.Popen[bytes]]
) -> None:
    process = start(manager, tmp_path, "max_payload: 1000")
    ended.append(process)
    manager.wait(lambda heard: "READY=1" in heard, "READY=1")
    assert "Server is ready" in (tmp_path / "log").read_text()
    assert "serving: 2 of 2 shards accept, 0 connections" in manager.fields("STATUS")

    (tmp_path / "broker.conf").write_text("max_payload: 2000")
    process.send_signal(signal.SIGHUP)
    manager.wait(lambda _: manager.fields("READY") == ["1", "1"], "the end of the reload")
    assert manager.fields("RELOADING") == ["1"]
    assert all(stamp.isdigit() for stamp in manager.fields("MONOTONIC_USEC"))

    (tmp_path / "broker.conf").write_text("max_payload: nonsense")
    process.send_signal(signal.SIGHUP)
    manager.wait(lambda _: manager.fields("READY") == ["1", "1", "1"], "the end of the reload that failed")
    assert "the reload failed and changed nothing, the log says why" in manager.fields("STATUS")

    process.terminate()
    assert process.wait(30) == 0
    assert manager.fields("STOPPING") == ["1"]
    order = [line for message in manager.heard() for line in message.split("\n") if not line.startswith("MONO")]
    assert order.index("READY=1") < order.index("RELOADING=1") < order.index("STOPPING=1")


def test_a_broker_that_cannot_start_never_says_ready(
    manager: Manager, tmp_path: Path, ended: list[subprocess.Popen[bytes]]
) -> None:
    process = start(manager, tmp_path, "nonsense: 1")
    ended.append(process)
    assert process.wait(30) == 1
    assert manager.fields("READY") == []


def test_a_lame_duck_is_stopping_for_the_service_manager(
    manager: Manager, tmp_path: Path, ended: list[subprocess.Popen[bytes]]
) -> None:
    process = start(manager, tmp_path, 'lame_duck_grace_period: "0s"')
    ended.append(process)
    manager.wait(lambda heard: "READY=1" in heard, "READY=1")
    process.send_signal(signal.SIGUSR2)
    assert process.wait(30) == 0
    assert manager.fields("STOPPING") == ["1"]
    assert any(status.startswith("leaving: ") for status in manager.fields("STATUS"))


def test_the_watchdog_starves_while_a_shard_is_stopped_and_is_fed_when_another_has_taken_its_place(
    manager: Manager, tmp_path: Path
) -> None:
    # Real supervision and real pings, of stand-in shards: one is stopped, found hung, killed, replaced.
    environment = {"NOTIFY_SOCKET": str(manager.path), "WATCHDOG_USEC": "300000"}
    with Router(tmp_path, 2, environment=environment) as router:
        router.wait_ready()
        manager.wait(lambda heard: heard.count("WATCHDOG=1") >= 2, "a fed watchdog")
        fed = len(manager.heard())
        os.kill(router.pid_of(0), signal.SIGSTOP)
        router.wait_log("Shard 0 died: it did not answer")
        manager.wait(
            lambda heard: [m for m in heard[fed:] if "STATUS=serving: 2 of 2" in m], "both shards accepting again"
        )
        manager.wait(lambda heard: heard[-1] == "WATCHDOG=1", "a fed watchdog")
        later = manager.heard()[fed:]
        sick = next(n for n, message in enumerate(later) if message.startswith("STATUS=serving: 1 of 2"))
        well = next(n for n, message in enumerate(later) if n > sick and message.startswith("STATUS=serving: 2 of 2"))
        assert "WATCHDOG=1" not in later[sick:well]
