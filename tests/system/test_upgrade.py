"""A running broker becomes another version of itself under load, and nobody notices; what cannot take over is refused.

Other versions are programs that change a constant of this one before they run it.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import sys
from pathlib import Path

import pytest

from gnatswarm import keeper
from gnatswarm.router.commands.operator_commands import exchange, find
from gnatswarm.router.supervision.operator_socket import (
    AnyRequest,
    FollowRequest,
    RebalanceRequest,
    ReloadRequest,
    Reply,
    RestartRequest,
    ScaleRequest,
    UpgradeRequest,
)
from tests.support import swarm
from tests.support.servers import Broker, session_pids, suspended
from tests.support.traffic import Traffic
from tests.support.wire import Cluster

pytestmark = pytest.mark.kinds("gnatswarm-2")

DEADLINE_S = 60.0


def program(directory: Path, name: str, change: str = "") -> str:
    """Another version: this one after `change`; or what `change` is."""
    path = directory / name
    running = "from gnatswarm.router.cli import main\nsys.exit(main())\n"
    path.write_text(change if change[:2] == "#!" else f"#!{sys.executable} -P\nimport os, sys\n{change}\n{running}")
    path.chmod(0o755)
    return str(path)


async def ask(broker: Broker, request: AnyRequest) -> Reply:
    return await asyncio.to_thread(exchange, find(broker.pid, broker.port), request)


async def follow(broker: Broker, request: AnyRequest, said: list[str] | None = None) -> Reply:
    """The last word, which another router may say."""
    heard = said if said is not None else []
    while True:
        try:
            at = find(broker.pid, broker.port)
            return await asyncio.to_thread(exchange, at, request, DEADLINE_S, heard.append)
        except (ConnectionAbortedError, ConnectionResetError):
            request = FollowRequest()


def command_line(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


def shards(broker: Broker) -> dict[str, bool]:
    """By title: whether the keeper has forked it, and it is of its version: then their command lines are as long."""
    own = len(command_line(broker.pid))
    titles = ("gnatswarm: shard", "gnatswarm: gateway")
    lines = [command_line(pid) for pid in session_pids(broker.pid)]
    return {line.rstrip("\0"): len(line) == own for line in lines if line.startswith(titles)}


async def test_messages_flow_on_and_nobody_is_disconnected(start_broker, cluster_of, subject, tmp_path):
    """Traffic fails for a message that is lost, doubled or out of order, and for a connection that is closed."""
    broker = start_broker(config='leafnodes { remotes: [ { url: "nats-leaf://127.0.0.1:1" } ] }\n')
    cluster: Cluster = cluster_of(broker)
    fan_out = Traffic(await cluster.clients(3, True), await cluster.clients(3, True), subject)
    grouped = Traffic(await cluster.clients(2, True), await cluster.clients(4, True), f"{subject}.q", queue="g")
    await fan_out.start()
    await grouped.start()
    before = set(session_pids(broker.pid))
    newer = program(tmp_path, "gnatswarm")
    upgrading = asyncio.create_task(follow(broker, UpgradeRequest(newer)))
    begun = asyncio.create_task(asyncio.to_thread(broker.log.wait_line, "Replacing 2 shards", DEADLINE_S))
    await asyncio.wait([upgrading, begun], return_when=asyncio.FIRST_COMPLETED)
    assert not upgrading.done(), upgrading.result()
    for request in (ScaleRequest(4), RebalanceRequest(), ReloadRequest(), RestartRequest(), UpgradeRequest(newer)):
        reply = await ask(broker, request)
        assert reply.error.startswith("a restart is under way"), request
    reply = await upgrading
    assert (reply.text, reply.error) == (f"upgraded to {newer}", "")
    await fan_out.progress(200)
    after = set(session_pids(broker.pid))
    assert before & after == {broker.pid}
    assert len(after) == len(before)
    assert newer in command_line(broker.pid)
    gateway = "gnatswarm: gateway"
    assert shards(broker) == {"gnatswarm: shard 0": False, "gnatswarm: shard 1": False, gateway: False}
    # What happens from now on happens in the new version.
    status = await asyncio.to_thread(swarm.status, broker)
    # One tells the router at any moment that the keeper has died.
    signals = await asyncio.to_thread(Path(f"/proc/{status['router_pid']}/status").read_text)
    assert "SigBlk:\t0000000000000000\n" in signals
    seen = len(broker.log.lines)
    with suspended(broker.pid):
        broker.process.send_signal(signal.SIGHUP)  # which the next router gets
        swarm.signal_shard(broker, status["router_pid"])
    await asyncio.to_thread(broker.log.wait_line, "The router died: killed by SIGKILL", DEADLINE_S, seen)
    await asyncio.to_thread(broker.log.wait_line, "Reloaded server configuration", DEADLINE_S, seen)
    await swarm.scale(broker, 3)
    assert shards(broker)["gnatswarm: shard 2"]
    assert await fan_out.finish() > 0
    assert await grouped.finish() > 0


UNFIT = {
    "an older control channel": (
        "from gnatswarm.shards.boundary import control\ncontrol.CONTROL_VERSION -= 1",
        r"cannot take over: it has version \d+ of control messages, this broker version \d+",
    ),
    "newer links": (
        "from gnatswarm.shards.links import links\nlinks.LINK_VERSION += 1",
        r"cannot take over: it has version \d+ of links between shards",
    ),
    "a newer record": (
        "from gnatswarm.router.supervision import record\nrecord.RECORD_VERSION += 1",
        r"cannot take over: it has version \d+ of router's record",
    ),
    "no gnatswarm": ("#!/bin/sh\necho hello", "is no gnatswarm that can take over: it did not say"),
    "broken": ("#!/bin/sh\necho oops >&2; exit 1", "is no gnatswarm that can take over: exit code 1, oops"),
    "a child of its own": (
        """#!/bin/sh\necho '{"gnatswarm": "1", "pid": 1, "formats": {}}'""",
        "as a child of its own",
    ),
    "without a format": (
        """#!/bin/sh\necho '{"gnatswarm": "1", "pid": '$$', "formats": {}}'""",
        "cannot take over: it does not know the format of",
    ),
}
# Fit at first, and then not: what it does, and what is said.
FAILING = {
    "no shard": ("if '_shard' in sys.argv: sys.exit(3)", r"shard 2 does not serve: exit code 3; .*Nothing has changed"),
    "one shard": (
        "if '_shard' in sys.argv and not os.path.exists(__file__ + '.first'): open(__file__ + '.first', 'w')\n"
        "elif '_shard' in sys.argv: sys.exit(4)",
        r"shard 0 does not serve: exit code 4; the other shards serve on. The version before serves again",
    ),
    "no router": (
        "if 'GNATSWARM_SUCCESSION' in os.environ: sys.exit(5)",
        r"the router of .* did not serve: exit code 5. The version before serves again",
    ),
}


async def test_what_cannot_take_over_is_refused_and_the_version_before_serves_on(
    start_broker, cluster_of, subject, tmp_path
):
    broker = start_broker()
    cluster = cluster_of(broker)
    traffic = Traffic(await cluster.clients(2, True), await cluster.clients(2, True), subject)
    await traffic.start()
    before = set(session_pids(broker.pid))
    said = {}
    for name, (change, _) in UNFIT.items():
        said[name] = (await ask(broker, UpgradeRequest(program(tmp_path, name.replace(" ", "-"), change)))).error
    said["none"] = (await ask(broker, UpgradeRequest("/nowhere/gnatswarm"))).error
    for name, (_, pattern) in [*UNFIT.items(), ("none", ("", "cannot run /nowhere/gnatswarm: No such file"))]:
        assert said[name].endswith("Nothing has changed"), (name, said[name])
        assert matches(pattern, said[name]), (name, said[name])
    assert set(session_pids(broker.pid)) == before
    for name, (change, pattern) in FAILING.items():
        reply = await follow(broker, UpgradeRequest(program(tmp_path, name.replace(" ", "-"), change)))
        assert matches(pattern, reply.error), (name, reply)
        rows = await asyncio.to_thread(swarm.rows, broker)
        assert {shard: row["phase"] for shard, row in rows.items()} == {0: "ready", 1: "ready"}
        assert shards(broker) == {"gnatswarm: shard 0": True, "gnatswarm: shard 1": True}, name
        await traffic.progress(100)
    assert await traffic.finish() > 0
    assert len(set(session_pids(broker.pid))) == len(before)


# A router on trial: it says that it is there, and does not serve.
ON_TRIAL = """
if 'GNATSWARM_SUCCESSION' in os.environ:
    import signal, socket
    from gnatswarm.shards.boundary import keeping
    succession = keeping.read_succession(int(os.environ['GNATSWARM_SUCCESSION'].partition(':')[0]))
    os.write(2, b'It is on trial\\n')
    {what_it_does}
"""


async def begin_trial(broker: Broker, directory: Path, what_it_does: str) -> None:
    """Upgrade to a program whose router does not serve; returns when it runs."""
    path = program(directory, "gnatswarm", ON_TRIAL.format(what_it_does=what_it_does))
    with contextlib.suppress(ConnectionAbortedError, ConnectionResetError):  # the router that was asked makes room
        await asyncio.to_thread(exchange, find(broker.pid, broker.port), UpgradeRequest(path), DEADLINE_S)
    await asyncio.to_thread(broker.log.wait_line, "It is on trial", DEADLINE_S)


async def test_a_broker_that_is_told_to_end_while_the_next_router_hangs_ends_in_order(start_broker, tmp_path):
    """The version before does it, before the time is over that the next router has."""
    broker = start_broker()
    await begin_trial(broker, tmp_path, "signal.pause()")
    assert await asyncio.to_thread(broker.stop, signal.SIGINT, keeper.PROOF_S / 2) == 0
    assert "Server Exiting" in broker.log.text


async def test_a_signal_to_a_next_router_that_does_not_serve_is_for_the_version_before(start_broker, tmp_path):
    broker = start_broker()
    await begin_trial(broker, tmp_path, "sys.exit(5 if socket.socket(fileno=succession.sock).recv(100) else 6)")
    broker.process.send_signal(signal.SIGUSR2)
    assert await asyncio.to_thread(broker.wait_exit) == 0
    assert "The router died: exit code 5" in broker.log.text
    assert "Entering lame duck mode" in broker.log.text


def matches(pattern: str, text: str) -> bool:
    return re.search(pattern, text) is not None
