"""Sockets that a service manager opened: they decide where the broker listens, and they survive it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from gnatswarm.broker.options import Options, Sharding
from gnatswarm.router.listening.inherited import Inherited
from gnatswarm.router.listening.listeners import ListenError
from tests.router.routers import wait_until
from tests.support.ports import free_port
from tests.support.servers import Log

CODE = """
import json, os, sys
passed = json.loads(sys.argv[1])
for number, descriptor in enumerate(passed):  # out of the way first
    os.dup2(descriptor, 100 + number)
for number in range(len(passed)):
    os.dup2(100 + number, 3 + number)
    os.close(100 + number)
os.environ["LISTEN_PID"] = str(os.getpid())
os.environ["LISTEN_FDS"] = str(len(passed))
os.execv(sys.executable, [sys.executable, "-P", "-m", "gnatswarm", *sys.argv[2:]])
"""


def listening(port: int = 0, *, reuse: bool = False, host: str = "127.0.0.1") -> socket.socket:
    sock = socket.socket()
    if reuse:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.bind((host, port))
    sock.listen(64)
    return sock


class Activated:
    """A broker that is passed sockets as a service manager does it: from descriptor 3 on, told by the environment."""

    def __init__(self, sockets: Sequence[socket.socket], *arguments: str, names: str = "") -> None:
        descriptors = [sock.fileno() for sock in sockets]
        environment = {**os.environ, "LISTEN_FDNAMES": names} if names else dict(os.environ)
        self.process = subprocess.Popen(
            [sys.executable, "-c", CODE, json.dumps(descriptors), *arguments],
            pass_fds=descriptors,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        assert self.process.stderr is not None
        self.log = Log(self.process.stderr)

    def stop(self, by: signal.Signals = signal.SIGINT) -> int:
        if self.process.poll() is None:
            self.process.send_signal(by)
        try:
            return self.process.wait(30)
        finally:
            self.process.kill()
            self.process.wait()
            self.log.join()
            assert self.process.stderr is not None
            self.process.stderr.close()


@pytest.fixture
def started() -> Iterator[list[Activated]]:
    brokers: list[Activated] = []
    yield brokers
    for broker in brokers:
        broker.stop()


def shard_of(port: int) -> int:
    """Connect, and return the number of the shard that answered."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as sock:
        greeting = b""
        while not greeting.endswith(b"\n"):
            greeting += sock.recv(4096)
    found = re.search(rb'"shard":(\d+)', greeting)
    assert found is not None, greeting
    return int(found[1])


def test_one_socket_is_handed_over_and_both_shards_serve_on_it(started: list[Activated]) -> None:
    with listening() as sock:
        port = sock.getsockname()[1]
        # The configuration's port gives way: the sockets say where the broker listens.
        started.append(Activated([sock], "-p", "1", "--shards", "2", "--no-stats"))
        started[0].log.wait_line(f"Listening for client connections on 127.0.0.1:{port}", 30)
        started[0].log.wait_line("Server is ready", 30)
        assert {shard_of(port) for _ in range(8)} == {0, 1}


def test_several_sockets_are_one_shards_each_and_steering_works_on_them(started: list[Activated]) -> None:
    first = listening(reuse=True)
    port = first.getsockname()[1]
    sockets = [first, listening(port, reuse=True), listening(port, reuse=True)]
    started.append(Activated(sockets, "--no-stats"))
    for sock in sockets:
        sock.close()
    log = started[0].log
    log.wait_line("Server is ready", 30)
    assert {shard_of(port) for _ in range(60)} == {0, 1, 2}
    # Two signals, one at a time, and connections go to the shard that is left.
    for left in (2, 1):
        started[0].process.send_signal(signal.SIGTTOU)
        log.wait_line(f"Scaling from {left + 1} to {left} shards", 30)
        log.wait_line(f"Shard {left} has left", 30)
    assert {shard_of(port) for _ in range(20)} == {0}
    assert "Cannot steer" not in log.text


def test_more_shards_than_sockets_are_refused_with_the_reason(started: list[Activated]) -> None:
    first = listening(reuse=True)
    sockets = [first, listening(first.getsockname()[1], reuse=True)]
    started.append(Activated(sockets, "--no-stats"))
    log = started[0].log
    log.wait_line("Server is ready", 30)
    started[0].process.send_signal(signal.SIGTTIN)
    log.wait_line("cannot open another listener: the service manager opened 2 sockets, one for each shard", 30)
    for sock in sockets:
        sock.close()


def test_a_restart_refuses_nobody(started: list[Activated]) -> None:
    with listening() as sock:
        port = sock.getsockname()[1]
        started.append(Activated([sock], "--shards", "1", "--no-stats"))
        started[0].log.wait_line("Server is ready", 30)
        assert started[0].stop() == 0
        # Nobody serves. Who dials now waits, as the listener is not ours alone.
        with socket.create_connection(("127.0.0.1", port), timeout=30) as waiting:
            started.append(Activated([sock], "--shards", "1", "--no-stats"))
            assert waiting.recv(5) == b"INFO "


def test_a_reload_changes_nothing_about_them(started: list[Activated], tmp_path: Path) -> None:
    config = tmp_path / "broker.conf"
    config.write_text("port: 1\nmax_payload: 1000\nstats: false")
    with listening() as sock:
        started.append(Activated([sock], "-c", str(config)))
        log = started[0].log
        log.wait_line("Server is ready", 30)
        config.write_text("port: 1\nmax_payload: 2000\nstats: false")
        started[0].process.send_signal(signal.SIGHUP)
        log.wait_line("Reloaded server configuration", 30)
        assert "reload not supported" not in log.text


def test_pages_are_served_on_a_socket_of_that_name(started: list[Activated]) -> None:
    with listening() as clients, listening() as pages:
        started.append(Activated([clients, pages], "--no-stats", "--shards", "1", names="gnatswarm.socket:monitoring"))
        started[0].log.wait_line(f"Starting http monitor on 127.0.0.1:{pages.getsockname()[1]}", 15)
        started[0].log.wait_line("Server is ready", 30)
        with socket.create_connection(pages.getsockname(), timeout=30) as sock:
            sock.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
            answer = b""
            while data := sock.recv(4096):
                answer += data
        assert answer.endswith(b'{"status":"ok"}')


def test_systemds_own_activation_starts_the_broker_with_its_first_client(tmp_path: Path) -> None:
    activate = shutil.which("systemd-socket-activate")
    if activate is None:
        pytest.skip("systemd-socket-activate is not installed")
    port = free_port()
    command = [sys.executable, "-P", "-m", "gnatswarm", "--shards", "2", "--no-stats"]
    environment = [f"-E{name}={os.environ[name]}" for name in ("PYTHONPATH", "TMPDIR", "HOME") if name in os.environ]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [activate, *environment, "-l", f"127.0.0.1:{port}", *command], stdout=subprocess.DEVNULL, stderr=log
        )
    try:
        wait_until(lambda: "Listening on" in (tmp_path / "log").read_text(), "systemd-socket-activate listens")
        assert shard_of(port) in (0, 1)  # it has execed the broker, in its own place
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()


# ---- what is refused


def take(**environment: str) -> Inherited | None:
    return Inherited.take({"LISTEN_PID": "5", **environment}, pid=5)


@pytest.mark.parametrize(
    "environment",
    [{}, {"LISTEN_FDS": ""}, {"LISTEN_FDS": "0"}, {"LISTEN_FDS": "x"}, {"LISTEN_FDS": "1", "LISTEN_PID": "6"}],
)
def test_what_is_not_for_us_is_let_alone(environment: dict[str, str]) -> None:
    assert take(**environment) is None


def test_the_variables_are_taken_away() -> None:
    environment = {"LISTEN_PID": "6", "LISTEN_FDS": "1", "LISTEN_FDNAMES": "a", "HOME": "/"}
    assert Inherited.take(environment, pid=5) is None
    assert environment == {"HOME": "/"}


def refused(started: list[Activated], sockets: Sequence[socket.socket], *arguments: str, names: str = "") -> str:
    started.append(Activated(sockets, *arguments, names=names))
    assert started[-1].process.wait(30) == 1
    started[-1].log.join()
    for sock in sockets:
        sock.close()
    assert "Traceback" not in started[-1].log.text
    return started[-1].log.text


def test_several_addresses_are_refused(started: list[Activated]) -> None:
    assert "sockets of several addresses" in refused(started, [listening(), listening()])


def test_a_socket_that_does_not_listen_is_refused(started: list[Activated]) -> None:
    assert "descriptor 3 was passed in and is not listening" in refused(started, [socket.socket()])


def test_another_number_of_shards_than_sockets_is_refused(started: list[Activated]) -> None:
    first = listening(reuse=True)
    both = [first, listening(first.getsockname()[1], reuse=True)]
    assert "shards: 3, but the service manager opened 2 sockets" in refused(started, both, "--shards", "3")


def test_one_port_twice_is_refused(started: list[Activated]) -> None:
    sock = listening()
    assert "without ReusePort=" in refused(started, [sock, sock.dup()])


def test_two_sockets_for_the_pages_are_refused(started: list[Activated]) -> None:
    text = refused(started, [listening(), listening()], names="monitoring:monitoring")
    assert "2 sockets named monitoring" in text


def test_a_number_beyond_all_sense_is_refused_before_anything_is_opened() -> None:
    with pytest.raises(ListenError, match="62 shards"):
        take(LISTEN_FDS="999999999999")


def test_a_configuration_that_says_the_same_shards_is_fine() -> None:
    first = listening(reuse=True)
    both = [first, listening(first.getsockname()[1], reuse=True)]
    inherited = Inherited(both)
    adapted = inherited.adapt(Options(sharding=Sharding(shards=2, accept="handoff")))
    assert (adapted.sharding.accept, adapted.sharding.shards) == ("reuseport", 2)
    for sock in both:
        sock.close()
