"""Official clients, unchanged, do with several shards what they do with the real server.

Every check runs on both, so that a program that asks for what no server does fails as well.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

import gnatswarm
from gnatswarm.router.commands.operator_commands import exchange, find
from gnatswarm.router.supervision.operator_socket import (
    AnyRequest,
    FollowRequest,
    MoveRequest,
    RebalanceRequest,
    Reply,
    RestartRequest,
    UpgradeRequest,
)
from tests.clients.programs import PROGRAMS, ROOT, Missing, Unobtainable
from tests.support.authority import Authority
from tests.support.ports import free_port
from tests.support.servers import KINDS, Broker, BrokerUnavailable, Log, oracle_is_required

SERVERS = ("gnatswarm", "nats-server")
# Names of the checks, as README's table has them, and what the programs call them.
CHECKS = {
    "publish, subscribe": "pubsub",
    "queue groups": "queue",
    "requests": "request",
    "headers": "headers",
    "drain": "drain",
}
DEADLINE_S = 60
SHARDS = 2
# The first test of a client builds its program, for which it has five minutes.
pytestmark = pytest.mark.timeout(1200)


@dataclass
class Server:
    """One of the two servers, running."""

    url: str
    # Cuts every client off and comes back on the same port: shards are killed one after the other, or the server.
    crash: Callable[[], None]


@contextlib.contextmanager
def serving(name: str, directory: Path, config: str = "") -> Iterator[Server]:
    if name == "gnatswarm":
        path = directory / "broker.conf"
        path.write_text(config or "# nothing\n")
        with gnatswarm.BrokerProcess(config=path, host="127.0.0.1", port=0, stats=False, shards=SHARDS) as broker:

            def kill_all_shards() -> None:
                for shard in range(SHARDS):
                    broker.kill_shard(shard)

            yield Server(f"nats://127.0.0.1:{broker.port}", kill_all_shards)
        return
    try:
        KINDS["nats-server"].command()
    except BrokerUnavailable as error:
        (pytest.fail if oracle_is_required() else pytest.skip)(str(error))
    with contextlib.ExitStack() as stack:
        oracle = stack.enter_context(Broker(KINDS["nats-server"], config=config or None, port=free_port()))

        def crash() -> None:
            oracle.stop(signal.SIGKILL)
            stack.enter_context(Broker(KINDS["nats-server"], config=config or None, port=oracle.port))

        yield Server(oracle.url, crash)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Server]]:
    """`shared(name, config)`: every client comes to the same ones."""
    with contextlib.ExitStack() as stack:
        running: dict[tuple[str, str], Server] = {}

        def get(name: str, config: str = "") -> Server:
            if (name, config) not in running:
                running[name, config] = stack.enter_context(serving(name, tmp_path_factory.mktemp(name), config))
            return running[name, config]

        yield get


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def with_tls(authority: Authority) -> str:
    return f"tls {{ {authority.server().lines} }}"


def command(client: str) -> list[str]:
    try:
        return PROGRAMS[client]()
    except Unobtainable as missing:
        pytest.skip(str(missing))
    except Missing as missing:
        (pytest.fail if os.environ.get("GNATSWARM_REQUIRE_CLIENTS") == "1" else pytest.skip)(str(missing))


def run(client: str, check: str, server: Server, **environment: str) -> None:
    done = subprocess.run(
        [*command(client), check],
        env=os.environ | {"NATS_URL": server.url} | environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert (done.returncode, done.stdout.split()[-1:]) == (0, ["OK"]), done.stdout + done.stderr


def publish(url: str, subject: str, payload: bytes) -> None:
    host, port = url.removeprefix("nats://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as sock:
        sock.sendall(
            b'CONNECT {"verbose":false}\r\nPUB %b %d\r\n%b\r\nPING\r\n' % (subject.encode(), len(payload), payload)
        )
        said = b""
        while b"PONG\r\n" not in said:
            said += sock.recv(4096)


both = pytest.mark.parametrize("name", SERVERS)
every_client = pytest.mark.parametrize("client", PROGRAMS)


@both
@every_client
@pytest.mark.parametrize("check", CHECKS.values())
def test_a_client_can(shared: Callable[..., Server], name: str, client: str, check: str):
    run(client, check, shared(name))


@both
@every_client
def test_a_client_comes_back_after_a_crash_with_its_subscription(tmp_path: Path, name: str, client: str):
    with (
        serving(name, tmp_path) as server,
        subprocess.Popen(
            [*command(client), "reconnect"],
            env=os.environ | {"NATS_URL": server.url},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as program,
    ):
        assert program.stdout is not None and program.stderr is not None
        log = Log(program.stdout)
        ended = threading.Timer(DEADLINE_S, program.kill)
        ended.start()
        try:
            log.wait_line("READY", DEADLINE_S)
            publish(server.url, "reconnect", b"first")
            log.wait_line("GOT first", DEADLINE_S)
            server.crash()
            log.wait_line("RECONNECTED", DEADLINE_S)
            # It says that before the server has read its subscription again.
            pause = threading.Event()
            while program.poll() is None:
                publish(server.url, "reconnect", b"last")
                pause.wait(0.05)
            log.wait_line("GOT last")
            log.wait_line("OK")
        finally:
            ended.cancel()
            program.kill()
        assert program.stderr.read() == b"" or program.returncode == 0


def followed(broker: gnatswarm.BrokerProcess, request: AnyRequest) -> Reply:
    """The last word of a restart or an upgrade, which another router may say."""
    while True:
        try:
            return exchange(find(broker.pid, broker.port), request, on_progress=lambda text: None)
        except (ConnectionAbortedError, ConnectionResetError):
            request = FollowRequest()


def test_no_client_notices_a_rebalance_a_restart_and_an_upgrade(tmp_path: Path):
    """Each hears every message once and in order, from before, in the middle and afterwards, and does not reconnect."""
    most = 4 * len(PROGRAMS)
    logs: dict[str, Log] = {}
    with (
        contextlib.ExitStack() as stack,
        gnatswarm.BrokerProcess(host="127.0.0.1", port=0, stats=False, shards=SHARDS) as broker,
    ):
        url = f"nats://127.0.0.1:{broker.port}"
        for client, found in PROGRAMS.items():
            try:
                words = found()
            except Missing:  # the tests of it say why
                continue
            program = subprocess.Popen(
                [*words, "reconnect"], env=os.environ | {"NATS_URL": url}, stdout=subprocess.PIPE
            )
            stack.enter_context(program)
            stack.callback(program.kill)
            assert program.stdout is not None
            logs[client] = Log(program.stdout)
        for log in logs.values():
            log.wait_line("READY", DEADLINE_S)
        numbers = itertools.count()
        pause = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            # All of them are on one shard, so that making shards even moves half of them.
            for request in (MoveRequest(1, 0, most), RebalanceRequest(), RestartRequest(), UpgradeRequest()):
                replies = pool.submit(followed, broker, request)
                while not replies.done():
                    publish(url, "reconnect", b"%d" % next(numbers))
                    pause.wait(0.005)
                assert replies.result().text, replies.result()
                if isinstance(request, RebalanceRequest) and len(logs) > 1:
                    assert not replies.result().text.startswith("0 clients moved")
        publish(url, "reconnect", b"last")
        heard = [f"GOT {number}" for number in range(next(numbers))]
        for client, log in logs.items():
            log.wait_line("OK", DEADLINE_S)
            assert log.lines == ["READY", *heard, "GOT last", "OK"], client
    assert logs


@both
@every_client
@pytest.mark.parametrize(
    ("config", "right", "wrong"),
    [
        ("authorization { token: s3cret }", {"NATS_TOKEN": "s3cret"}, {"NATS_TOKEN": "other"}),
        (
            "authorization { users: [ {user: ann, password: s3cret}, {user: ben, password: other} ] }",
            {"NATS_USER": "ben", "NATS_PASSWORD": "other"},
            {"NATS_USER": "ben", "NATS_PASSWORD": "s3cret"},
        ),
    ],
    ids=["token", "users"],
)
def test_a_client_logs_in_or_is_refused(
    shared: Callable[..., Server], name: str, client: str, config: str, right, wrong
):
    server = shared(name, config)
    run(client, "pubsub", server, **right)
    run(client, "refused", server, **wrong)
    run(client, "refused", server)


@both
@every_client
def test_a_client_encrypts(shared: Callable[..., Server], authority: Authority, with_tls: str, name: str, client: str):
    server = shared(name, with_tls)
    run(client, "pubsub", server, NATS_CA=str(authority.path))
    run(client, "request", server, NATS_CA=str(authority.path))


def test_readme_has_the_table_of_what_runs_here():
    readme = (ROOT / "README.md").read_text()
    (head, *rows) = re.findall(r"^\|(.*)\|$", readme[readme.index("| client |") :].split("\n\n")[0], re.MULTILINE)
    assert [word.strip() for word in head.split("|")] == ["client", *CHECKS, "a killed shard", "token, users", "TLS"]
    cells = [[word.strip() for word in row.split("|")] for row in rows[1:]]
    assert [row[0] for row in cells[: len(PROGRAMS)]] == list(PROGRAMS)
    assert all(row[1:] == ["yes"] * (len(CHECKS) + 3) for row in cells[: len(PROGRAMS)])
