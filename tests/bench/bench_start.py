"""How long a broker takes until its port is open, and until a client reads the first INFO, beside an empty Python.

And how long until a router that was killed is replaced, beside an ordinary start.

From the moment the process is started to the moment a client is connected or the first INFO is read, by a client that
dials every half a millisecond. In turn with `pass` and `import asyncio, ssl, uvloop` in a fresh Python and with
nats-server, the median of each; ratios within one run are what counts.
"""

from __future__ import annotations

import shutil
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial

import msgspec

from gnatswarm.router.commands.operator_commands import NotFound
from tests.bench.measure import table
from tests.support import swarm
from tests.support.servers import HOST, KINDS, Broker, Kind

RUNS = 9
# What a router that dies is replaced within, in ordinary starts.
MOST_STARTS = 3.0
DEATHS_APART_S = 1.5  # routers that die again and again end the broker
# What many files have: the port and the rest of the command line come before it.
FILE = """
server_name: bench
max_payload: 2MB
max_connections: 1000
ping_interval: "20s"
lame_duck_duration: "1m"
authorization {
  DEFAULT = { publish: ["orders.>", "_INBOX.>"], subscribe: ["orders.>", "_INBOX.>"], allow_responses: true }
  users: [
    {user: ann, password: "$2a$11$W2zko751KUvVy59mUTWmpOdWjpEm5qhcCZRd05GjI/sSOT.xtiHyG", permissions: $DEFAULT}
    {user: bob, password: secret, permissions: {publish: "chat.>", subscribe: "chat.>"}}
  ]
}
"""


def python_s(code: str) -> float:
    """Run a Python with this code, to its end."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.monotonic() - began


def start_s(kind: Kind, *, until_info: bool, config: str | None = None) -> float:
    """One start, on a port that was free a moment ago: the log of one that chooses would have to be waited for."""
    with socket.create_server((HOST, 0)) as free:
        port = free.getsockname()[1]
    broker = Broker(kind, port=port, config=config, by_fork=False)
    try:
        began = time.monotonic()
        broker.launch()
        while True:
            try:
                with socket.create_connection((HOST, port)) as client:
                    if not until_info or client.recv(4) == b"INFO":
                        return time.monotonic() - began
            except OSError:
                threading.Event().wait(0.0005)
    finally:
        broker.kill()


def test_time_until_the_first_info():
    imports = "import asyncio, ssl, uvloop"
    measured: dict[str, Callable[[], float]] = {code: partial(python_s, code) for code in ("pass", imports)}
    for kind in KINDS.values():
        if not kind.is_oracle or shutil.which("nats-server"):
            measured[f"open port, {kind}"] = partial(start_s, kind, until_info=False)
            measured[f"open port with a file, {kind}"] = partial(start_s, kind, until_info=False, config=FILE)
            measured[f"first INFO, {kind}"] = partial(start_s, kind, until_info=True)
    times: dict[str, list[float]] = {name: [] for name in measured}
    for _ in range(RUNS):
        for name, measure in measured.items():
            times[name].append(measure())
    table(
        "From start to an open port and to the first INFO, median",
        [(name, statistics.median(taken) * 1000) for name, taken in times.items()],
        "ms",
    )


def answering_router(broker: Broker, other_than: int = 0) -> int:
    """The pid of the first router, not that one, that answers `status`."""
    while True:
        try:
            pid = int(swarm.status(broker)["router_pid"])
        except (OSError, NotFound, AssertionError, msgspec.DecodeError):
            threading.Event().wait(0.0005)
            continue
        if pid != other_than:
            return pid


def test_a_router_that_dies_is_replaced():
    """Until `status` is answered: after a start, and after the router was killed. What a client hears meanwhile."""
    kind = Kind("gnatswarm-2", shards=2)
    starts = []
    for _ in range(RUNS):
        with socket.create_server((HOST, 0)) as free:
            port = free.getsockname()[1]
        broker = Broker(kind, port=port, by_fork=False)
        try:
            began = time.monotonic()
            broker.launch()
            answering_router(broker)
            starts.append(time.monotonic() - began)
        finally:
            broker.kill()
    replaced, calm, through = [], [], []
    with Broker(kind) as running, socket.create_connection((HOST, running.port)) as client:
        client.recv(65536)
        client.sendall(b'CONNECT {"verbose":false}\r\nSUB echo 1\r\n')
        router = answering_router(running)
        for _ in range(RUNS):
            calm.append(longest_trip(client, DEATHS_APART_S))
            listening = threading.Thread(target=lambda: through.append(longest_trip(client, DEATHS_APART_S)))
            listening.start()
            began = time.monotonic()
            swarm.signal_shard(running, router)
            router = answering_router(running, other_than=router)
            replaced.append(time.monotonic() - began)
            listening.join()
    rows = [("ordinary start", starts), ("a router that was killed", replaced)]
    table("Until status is answered, median", [(name, statistics.median(of) * 1000) for name, of in rows], "ms")
    rows = [("with a router", calm), ("while it is replaced", through)]
    table("A client's longest round trip, median", [(name, statistics.median(of) * 1000) for name, of in rows], "ms")
    assert statistics.median(replaced) <= MOST_STARTS * statistics.median(starts)


def longest_trip(client: socket.socket, for_s: float) -> float:
    """The longest of many messages to itself."""
    longest, until = 0.0, time.monotonic() + for_s
    while time.monotonic() < until:
        began = time.monotonic()
        client.sendall(b"PUB echo 1\r\nx\r\n")
        said = b""
        while b"\r\nx\r\n" not in said:
            said += client.recv(65536)
        longest = max(longest, time.monotonic() - began)
        threading.Event().wait(0.001)
    return longest
