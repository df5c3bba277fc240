"""How long a broker takes until a client reads the first INFO, beside what importing its event loop takes.

From the moment the process is started to the moment the first INFO is read, by a client that dials every half a
millisecond. In turn with `import asyncio, ssl, uvloop` in a fresh Python and with nats-server, the median of each;
ratios within one run are what counts.
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

from tests.bench.measure import table
from tests.support.servers import HOST, KINDS, Broker, Kind

RUNS = 9


def import_s() -> float:
    """Run a Python that imports the packages that a shard needs, and exits."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "import asyncio, ssl, uvloop"], check=True)
    return time.monotonic() - began


def first_info_s(kind: Kind) -> float:
    """One start, on a port that was free a moment ago: the log of one that chooses would have to be waited for."""
    with socket.create_server((HOST, 0)) as free:
        port = free.getsockname()[1]
    broker = Broker(kind, port=port, by_fork=False)
    try:
        began = time.monotonic()
        broker.launch()
        while True:
            try:
                with socket.create_connection((HOST, port)) as client:
                    if client.recv(4) == b"INFO":
                        return time.monotonic() - began
            except OSError:
                threading.Event().wait(0.0005)
    finally:
        broker.kill()


def test_time_until_the_first_info():
    measured: dict[str, Callable[[], float]] = {"import asyncio, ssl, uvloop": import_s}
    for kind in KINDS.values():
        if not kind.is_oracle or shutil.which("nats-server"):
            measured[f"first INFO, {kind}"] = partial(first_info_s, kind)
    times: dict[str, list[float]] = {name: [] for name in measured}
    for _ in range(RUNS):
        for name, measure in measured.items():
            times[name].append(measure())
    table(
        "From start to the first INFO, median",
        [(name, statistics.median(taken) * 1000) for name, taken in times.items()],
        "ms",
    )
