"""The shards of a running broker from an operator's side: their processes, their number, status, signals.

Asks the operator socket directly, as `gnatswarm status` does, because starting a program each time would take longer.
Signals only processes of that broker's own session.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import resource
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import msgspec

from gnatswarm.router.commands.operator_commands import exchange, find
from gnatswarm.router.supervision.operator_socket import OperatorRequest, ScaleRequest, StatusRequest
from tests.support.servers import Broker, session_pids
from tests.support.wire import Client, Closed, Cluster

# Restarting takes a shard some 50 ms; a loaded machine that runs another test worker takes seconds.
BACK_DEADLINE_S = 40.0
# A shard that leaves has ten seconds for its clients.
SCALE_DEADLINE_S = 60.0


def operate(broker: Broker, *words: str, deadline_s: float = SCALE_DEADLINE_S) -> str:
    """The output of `gnatswarm WORDS…` for this broker. AssertionError when it fails."""
    program = broker.kind.program()
    # A broker's parent asks for it: what the command needs from its environment is the broker's own.
    done = subprocess.run(
        [*program, *words, "-p", str(broker.port)], capture_output=True, text=True, timeout=deadline_s, check=False
    )
    assert done.returncode == 0, f"gnatswarm {' '.join(words)}: {done.stderr}"
    return done.stdout


async def scale(broker: Broker, shards: int) -> str:
    """Change the broker's number of shards, and wait until they serve; what `gnatswarm scale` would print."""
    return await asked(broker, ScaleRequest(shards))


async def asked(broker: Broker, request: OperatorRequest) -> str:
    """Have a command carried out; what it would print."""
    reply = await asyncio.to_thread(exchange, find(broker.pid, broker.port), request)
    assert not reply.error, reply.error
    return reply.text


def status(broker: Broker) -> dict[str, Any]:
    """The document of `gnatswarm status --json`, without rates, which would take time."""
    reply = exchange(find(broker.pid, broker.port), StatusRequest(sample_s=0.0))
    assert reply.status is not None, reply.error
    return dict(msgspec.to_builtins(reply.status))


def rows(broker: Broker) -> dict[int, dict[str, Any]]:
    """One row of the status per shard, by its number."""
    return {row["shard"]: row for row in status(broker)["shards"]}


async def pids(broker: Broker) -> dict[int, int]:
    """The process of each shard, by its number."""
    found = await asyncio.to_thread(rows, broker)
    return {shard: row["pid"] for shard, row in found.items() if row["pid"]}


def signal_shard(broker: Broker, pid: int, what: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal to a process of this broker; refuses other processes."""
    assert pid > 1 and pid != broker.pid and pid in session_pids(broker.pid), f"{pid} is no shard of this broker"
    os.kill(pid, what)


async def kill(broker: Broker, shard: int) -> int:
    """Kill the shard with this number by SIGKILL; returns its pid."""
    pid = (await pids(broker))[shard]
    signal_shard(broker, pid)
    return pid


def resident_bytes(pid: int) -> int:
    """Resident memory of one process; 0 when it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return 0


async def client_on(
    cluster: Cluster,
    shard: int,
    connect: dict[str, Any] | None = None,
    deadline_s: float = BACK_DEADLINE_S,
    **options: Any,
) -> Client:
    """A client on the shard with exactly this number; waits, because shards may be starting or leaving."""
    until = time.monotonic() + deadline_s
    while time.monotonic() < until:
        try:
            client = await Client.connect(cluster.broker.port, None, **options)
        except (ConnectionError, Closed):
            continue
        if client.shard == shard:
            cluster.all.append(client)
            words = json.dumps({"verbose": False, **(connect or {})})
            await client.talk(f"CONNECT {words}\r\nPING\r\n", expect_last="PONG\r\n")
            return client
        client.close()
    raise TimeoutError(f"no connection met shard {shard} within {deadline_s} s; {status(cluster.broker)}")


def link_sockets(broker: Broker) -> dict[int, str]:
    """The path of each shard's link socket, by its number, from the kernel's table."""
    pattern = re.compile(rf"\S+/{broker.pid}-[0-9a-f]+/(\d+)\.[0-9a-f]+\.sock$")
    found = {}
    for line in Path("/proc/net/unix").read_text().splitlines():
        is_listening = line.split()[3:4] == ["00010000"]
        if is_listening and (match := pattern.search(line)):
            found[int(match[1])] = match[0].strip()
    return found
