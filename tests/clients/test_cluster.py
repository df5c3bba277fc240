"""Official clients find other members of a mixed cluster, go there when their server ends, and lose no subscription.

Every client is given one member's address. That member ends, each time in another way, and the only one that clients
may know is of another kind; it has come after the clients had connected, so that a later INFO told them of it. A third
member, which advertises no address, publishes, so that all messages cross a route.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator

import pytest

from tests.clients.programs import PROGRAMS, Missing
from tests.support.servers import Broker, Log, wait_until
from tests.support.wire import Client
from tests.system.test_cluster import cluster_config, ended, is_meshed, route_port, started

DEADLINE_S = 60
# The first test of a client builds its program, for which it has five minutes.
pytestmark = pytest.mark.timeout(1200)
RUN = 20  # messages after each failover
# After its first failover it hears of no more members, at a nats-server neither.
WITHOUT_NEWS = {"Python, `nats-core`"}


def killed(broker: Broker, _clients: dict[str, Log]) -> None:
    broker.kill()


def stopped(broker: Broker, _clients: dict[str, Log]) -> None:
    broker.stop()


def left(broker: Broker, clients: dict[str, Log]) -> None:
    """Lame duck mode, of which clients are told; the operator does not wait for those that stay.

    (SIGTERM is ignored then, as by nats-server.)
    """
    broker.send_signal(signal.SIGUSR2)
    for log in clients.values():
        log.wait_line("^LAMEDUCK$", DEADLINE_S)
    broker.stop(signal.SIGINT)


# Where clients are, and how that member ends.
STAGES: list[tuple[str, Callable[[Broker, dict[str, Log]], None]]] = [
    ("gnatswarm-2", killed),
    ("nats-server", stopped),
    ("gnatswarm-1", left),
    ("nats-server-2.15", killed),
    ("gnatswarm-2", stopped),
    ("nats-server", left),
]
LAST = "gnatswarm-2"


class Crowd:
    """One of every client that is here, each subscribed to the same subject."""

    def __init__(self, stack: contextlib.ExitStack, port: int) -> None:
        self.logs: dict[str, Log] = {}
        for client, found in PROGRAMS.items():
            if client in WITHOUT_NEWS:
                continue
            try:
                words = found()
            except Missing:  # tests/clients/test_clients.py says why
                continue
            program = subprocess.Popen(
                [*words, "reconnect"],
                env=os.environ | {"NATS_URL": f"nats://127.0.0.1:{port}"},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            stack.enter_context(program)
            stack.callback(program.kill)
            assert program.stdout is not None
            self.logs[client] = Log(program.stdout)

    def wait(self, pattern: str) -> None:
        for client, log in self.logs.items():
            try:
                log.wait_line(pattern, DEADLINE_S)
            except TimeoutError as error:
                raise AssertionError(f"{client}: {error}") from None

    def wait_reconnected(self, times: int) -> None:
        def have() -> bool:
            return all(log.lines.count("RECONNECTED") >= times for log in self.logs.values())

        try:
            wait_until(have, DEADLINE_S)
        except TimeoutError:
            said = {client: log.lines for client, log in self.logs.items()}
            raise AssertionError(f"not all have reconnected {times} times: {said}") from None

    def heard(self) -> dict[str, list[int]]:
        """The numbers that each has got."""
        return {
            client: [int(line.removeprefix("GOT ")) for line in log.lines if line.startswith("GOT ")]
            for client, log in self.logs.items()
        }


@pytest.fixture
def members() -> Iterator[list[Broker]]:
    """Those that run; a test adds to them, and ends them."""
    brokers: list[Broker] = []
    yield brokers
    ended(brokers)


async def test_clients_find_the_other_members_and_lose_no_subscription(members: list[Broker]) -> None:
    members.append(started("nats-server-2.15", cluster_config("hidden", inner="no_advertise: true")))
    seed = (route_port(members[0]),)
    publisher = await Client.connect(members[0].port, {"verbose": False})
    number = 0

    async def publish(count: int) -> None:
        nonlocal number
        for _ in range(count):
            await publisher.send(f"PUB reconnect {len(str(number))}\r\n{number}\r\n")
            number += 1
        await publisher.flush()

    with contextlib.ExitStack() as stack:
        members.append(started(STAGES[0][0], cluster_config("member0", seed)))
        crowd = Crowd(stack, members[-1].port)
        crowd.wait("^READY$")
        assert crowd.logs
        for stage, (_kind, end) in enumerate(STAGES):
            kind = [*(kind for kind, _ in STAGES), LAST][stage + 1]
            leaving, coming = members[-1], started(kind, cluster_config(f"member{stage + 1}", seed))
            members.append(coming)
            wait_until(lambda: is_meshed([members[0], leaving, coming]), 20)  # noqa: B023
            crowd.wait(rf"^TOLD\b.*127\.0\.0\.1:{coming.port}\b")
            end(leaving, crowd.logs)
            crowd.wait_reconnected(stage + 1)
            # Their subscriptions are known at the publisher's server when its messages reach them.
            first = number
            while not all(numbers and numbers[-1] >= first for numbers in crowd.heard().values()):
                await publish(1)
            last = number + RUN - 1
            await publish(RUN)
            crowd.wait(f"^GOT {last}$")
            for client, numbers in crowd.heard().items():
                assert numbers == sorted(set(numbers)), client
                assert numbers[-RUN:] == list(range(last - RUN + 1, last + 1)), client
        await publisher.send("PUB reconnect 4\r\nlast\r\n")
        crowd.wait("^OK$")
    publisher.close()
