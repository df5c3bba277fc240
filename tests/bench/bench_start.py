"""How long a broker takes until its port is open, and until a client reads the first INFO, beside an empty Python.

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

from tests.bench.measure import table
from tests.support.servers import HOST, KINDS, Broker, Kind

RUNS = 9


def python_s(code: str) -> float:
    """Run a Python with this code, to its end."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.monotonic() - began


def start_s(kind: Kind, *, until_info: bool) -> float:
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
