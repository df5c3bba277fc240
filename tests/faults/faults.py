"""The faults: each happens to a running broker at a random moment, and says what it observed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import resource
import shutil
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from tests.faults.flow import BROKEN, CONNECT, Flow
from tests.faults.scene import SHARDS, Row, Scene, folder, memory_cgroup, observed, read_only_disk, scene, small_disk
from tests.support import swarm
from tests.support.pages import Pages
from tests.support.servers import HOST, KINDS, Broker, session_pids, wait_pids_gone
from tests.support.wall_clock import WallClock
from tests.support.wire import Client

STOPPED_S = 4.0
CROWD = 100
SILENT_UNTIL_S = 12.0  # log-in deadlines are two seconds here
FULL_FOR_S = 3.0
WINDOW_S = 1.0  # many statistics windows here
# Room that a shard has left when its memory is limited.
SPARE_BYTES = 24 << 20


@dataclass(frozen=True)
class Fault:
    """`run(seed)` starts a broker, lets the fault happen, and returns rows for the table."""

    name: str
    run: Callable[[str], Awaitable[list[Row]]]


FAULTS: list[Fault] = []
Happening = Callable[[Scene], Awaitable[str]]


def fault(name: str, title: str) -> Callable[[Happening], Happening]:
    """A fault on a broker with the usual configuration."""

    def note(happening: Happening) -> Happening:
        async def run(seed: str) -> list[Row]:
            with folder() as place:
                async with scene(place, seed) as one:
                    await one.moment()
                    happens = await happening(one)
                    return [await observed(one, title, happens)]

        FAULTS.append(Fault(name, run))
        return happening

    return note


def whole_run(name: str) -> Callable[[Callable[[str], Awaitable[list[Row]]]], Callable[[str], Awaitable[list[Row]]]]:
    """A fault that starts its own broker."""

    def note(run: Callable[[str], Awaitable[list[Row]]]) -> Callable[[str], Awaitable[list[Row]]]:
        FAULTS.append(Fault(name, run))
        return run

    return note


# ---- processes are killed and stopped


@fault("kill-shard", "`kill -9` of a shard")
async def kill_shard(one: Scene) -> str:
    shard = one.dice.randrange(SHARDS)
    old = (await asyncio.to_thread(one.shard_pids))[shard]
    one.signal(old, signal.SIGKILL)
    took_s = await one.until(lambda: one.shard_pids().get(shard, old) != old and one.serves())
    return f"the router starts it again: shard {shard} serves after {took_s:.2f} s"


@fault("stop-shard", "SIGSTOP of a shard, for ever")
async def stop_shard(one: Scene) -> str:
    shard = one.dice.randrange(SHARDS)
    old = (await asyncio.to_thread(one.shard_pids))[shard]
    one.signal(old, signal.SIGSTOP)
    took_s = await one.until(lambda: one.shard_pids().get(shard, old) != old and one.serves())
    return f"its pings are not answered: the router kills it and starts another, which serves after {took_s:.1f} s"


@fault("kill-router", "`kill -9` of the router")
async def kill_router(one: Scene) -> str:
    old = await asyncio.to_thread(lambda: one.router)
    one.signal(old, signal.SIGKILL)
    took_s = await one.until(lambda: one.router != old and one.serves())
    return f"the keeper starts another, which takes over within {took_s:.2f} s; shards go on"


@fault("stop-router", f"SIGSTOP of the router, for {STOPPED_S:.0f} s")
async def stop_router(one: Scene) -> str:
    router = await asyncio.to_thread(lambda: one.router)
    one.signal(router, signal.SIGSTOP)
    began_s = time.monotonic()
    async with asyncio.timeout(STOPPED_S):
        late = await Client.connect(one.broker.port, CONNECT)
    took_s = time.monotonic() - began_s
    late.close()
    await one.flow.pause(STOPPED_S - took_s)
    if router in session_pids(one.broker.pid):
        one.signal(router, signal.SIGCONT)
    now = await one.until(lambda: one.serves())
    is_same = await asyncio.to_thread(lambda: one.router == router)
    return (
        f"shards go on, a new client logs in after {took_s * 1000:.0f} ms; pages and commands wait; "
        f"{'it goes on' if is_same else 'it was replaced'} afterwards, within {now:.2f} s"
    )


@fault("kill-gateway", "`kill -9` of the gateway")
async def kill_gateway(one: Scene) -> str:
    old = one.gateway
    one.signal(old, signal.SIGKILL)
    took_s = await one.until(lambda: one.gateway != old and one.serves())
    return f"the router starts another within {took_s:.2f} s; connections to other servers are made again"


@fault("stop-gateway", "SIGSTOP of the gateway, for ever")
async def stop_gateway(one: Scene) -> str:
    old = one.gateway
    one.signal(old, signal.SIGSTOP)
    took_s = await one.until(lambda: one.gateway != old and one.serves())
    return f"its pings are not answered: it is killed and another one serves after {took_s:.1f} s"


@fault("kill-keeper", "`kill -9` of the keeper")
async def kill_keeper(one: Scene) -> str:
    pids = session_pids(one.broker.pid)
    one.ends = one.flow.may_end = True
    began_s = time.monotonic()
    os.kill(one.broker.pid, signal.SIGKILL)
    left = await asyncio.to_thread(wait_pids_gone, pids, 20.0)
    return (
        f"the broker ends: {len(pids) - len(left)} of {len(pids)} processes are gone after "
        f"{time.monotonic() - began_s:.2f} s; what started it has to start it again"
    )


@fault("stop-keeper", f"SIGSTOP of the keeper, for {STOPPED_S:.0f} s")
async def stop_keeper(one: Scene) -> str:
    os.kill(one.broker.pid, signal.SIGSTOP)
    await one.flow.pause(STOPPED_S)
    os.kill(one.broker.pid, signal.SIGCONT)
    took_s = await one.until(one.serves)
    return f"nothing: it only waits for others; all serve {took_s:.2f} s after it goes on"


# ---- disks and files


async def full_disk(one: Scene, is_mounted: bool) -> str:
    """The statistics' disk is full, or files there may not grow, and later there is room again."""
    filling = one.stats.parent / "filling"
    pids = list((await asyncio.to_thread(one.shard_pids)).values())
    if is_mounted:
        with contextlib.suppress(OSError), filling.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
    else:
        for pid in pids:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
    await one.flow.pause(FULL_FOR_S)
    if is_mounted:
        filling.unlink()
    else:
        for pid in pids:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    before = sizes(one.stats)
    took_s = await one.until(lambda: sizes(one.stats) > before)
    return f"serves on without statistics; {took_s:.1f} s after there is room they are written again"


def sizes(place: Path) -> int:
    return sum(path.stat().st_size for path in place.rglob("*") if path.is_file())


@whole_run("disk-full")
async def disk_full(seed: str) -> list[Row]:
    with folder() as place, small_disk(place / "disk", 512) as is_mounted:
        async with scene(place / "disk", seed) as one:
            await one.moment()
            happens = await full_disk(one, is_mounted)
            way = "a full disk" if is_mounted else "files may not grow (RLIMIT_FSIZE)"
            return [await observed(one, f"statistics: {way} for {FULL_FOR_S:.0f} s", happens)]


@fault("read-only", "statistics directory read-only, and a shard killed meanwhile")
async def read_only(one: Scene) -> str:
    """Files that are open may be written all the same: a shard that starts now needs a new one."""
    with read_only_disk(one.stats) as is_mounted:
        if not is_mounted:
            os.chmod(one.stats, 0o500)
        old = (await asyncio.to_thread(one.shard_pids))[1]
        one.signal(old, signal.SIGKILL)
        await one.until(lambda: one.shard_pids().get(1, old) != old and one.serves())
        await one.flow.pause(FULL_FOR_S)
    os.chmod(one.stats, 0o700)
    before = count(one.stats)
    took_s = await one.until(lambda: count(one.stats) > before)
    return f"serves on; the new shard writes no statistics; {took_s:.1f} s after it may write there it does"


def count(place: Path) -> int:
    return sum(1 for _ in place.rglob("*.zst"))


@fault("statistics-removed", "statistics directory removed")
async def statistics_removed(one: Scene) -> str:
    shutil.rmtree(one.stats)
    took_s = await one.until(lambda: one.stats.exists() and sizes(one.stats) > 0)
    return f"it is made anew after {took_s:.1f} s"


@whole_run("log-cannot-be-written")
async def log_full(seed: str) -> list[Row]:
    """The log's disk is full; a shard that is killed meanwhile has something to tell."""
    with folder() as place, small_disk(place / "log", 64) as is_mounted:
        if not is_mounted:
            return [Row("log on a full disk", "not tried: this user may not mount", "", "", True)]
        log = place / "log" / "broker.log"
        with socket.socket() as chosen:
            chosen.bind((HOST, 0))
            port = chosen.getsockname()[1]
        config = f"authorization {{ user: u, password: p }}\nlogfile: '{log}'\n"
        broker = Broker(KINDS[f"gnatswarm-{SHARDS}"], ["--no-stats"], config, port=port, by_fork=False)
        flow = Flow(port)
        with contextlib.ExitStack() as stack:
            broker.launch()
            stack.callback(broker.kill)
            async with asyncio.timeout(20):
                while True:
                    try:
                        (await Client.connect(port, CONNECT)).close()
                        break
                    except BROKEN:
                        await flow.pause(0.05)
            await flow.start()
            await flow.progress(10)
            filling = place / "log" / "filling"
            with contextlib.suppress(OSError), filling.open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(1024))
            rows = await asyncio.to_thread(swarm.rows, broker)
            swarm.signal_shard(broker, rows[1]["pid"])
            await flow.progress(20)
            filling.unlink()
            before = log.read_text()
            rows = await asyncio.to_thread(swarm.rows, broker)
            swarm.signal_shard(broker, rows[2]["pid"])
            await flow.progress(20)
            new = log.read_text().removeprefix(before).strip().splitlines()
            await flow.finish()
            told = "<br>".join(f"`{line.split('] ', 1)[-1][:150]}`" for line in new[:2])
            happens = "serves on; lines of that time are lost, later ones are written: " + ("yes" if new else "**no**")
            text = f"{happens}; {flow.waited()}"
            holds = flow.account() == (0, 0, 0) and bool(new)
            return [Row("log on a full disk, then with room; a shard killed in each", text, flow.lost(), told, holds)]


@whole_run("cannot-start")
async def cannot_start(_seed: str) -> list[Row]:
    """What it cannot write to when it starts."""
    rows = []
    for title, words, config in (
        ("statistics directory that cannot be made", [], "stats { dir: '/proc/gnatswarm/stats', window: 100ms }"),
        ("log file that cannot be opened", ["-l", "/proc/gnatswarm/log"], ""),
        ("pid file that cannot be written", ["-P", "/proc/gnatswarm/pid"], ""),
        ("no room for descriptors (`ulimit -n 24`)", [], ""),
    ):
        limit = 24 if "ulimit" in title else None
        broker = Broker(KINDS["gnatswarm-2"], words, config, descriptors=limit, by_fork=False)
        broker.launch()
        try:
            async with asyncio.timeout(20):
                while broker.is_running and not any("Server is ready" in line for line in broker.log.lines):
                    await asyncio.to_thread(wait_pids_gone, [broker.pid], 0.05)
            if broker.is_running:
                port = int(broker.log.wait_line(r"client connections on \S*:(\d+)")[1])
                (await Client.connect(port, {})).close()
                await asyncio.to_thread(wait_pids_gone, [broker.pid], WINDOW_S)
                happens, holds = "it starts and serves", True
            else:
                happens, holds = f"it does not start: exit code {broker.wait_exit()}", True
        except TimeoutError:
            happens, holds = "**it hangs**", False
        finally:
            broker.kill()
        lines = [line for line in broker.log.lines if re.search(r"\[(WRN|ERR|FTL)\]|gnatswarm:", line)]
        lines = lines or broker.log.lines[:2]
        told = "<br>".join(f"`{re.sub(r'^.*?(?=.(WRN|ERR|FTL))', '', line)[:160]}`" for line in lines[:2])
        rows.append(Row(title + ", at the start", happens, "–", told.replace("|", "\\|"), holds))
    return rows


# ---- resources


@fault("no-descriptors", "no descriptors left in any shard; 200 clients dial")
async def no_descriptors(one: Scene) -> str:
    pids = await asyncio.to_thread(one.shard_pids)
    before = {}
    for pid in pids.values():
        before[pid] = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        now = max(int(name) for name in os.listdir(f"/proc/{pid}/fd")) + 4
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (now, before[pid][1]))
    logged_in = 0
    clients: list[Client] = []

    async def dial() -> None:
        nonlocal logged_in
        with contextlib.suppress(*BROKEN):
            client = await Client.dial(one.broker.port)
            clients.append(client)
            async with asyncio.timeout(3):
                await client.read_info()
            logged_in += 1

    await asyncio.gather(*(dial() for _ in range(200)))
    for pid, limits in before.items():
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
    for client in clients:
        client.close()
    took_s = await one.until(lambda: client_is_served(one))
    return f"{logged_in} are served, the others wait; {took_s:.2f} s after the limit is lifted a new client is served"


@fault("router-no-descriptors", "no descriptors left in the router for 3 s, and a shard killed meanwhile")
async def router_no_descriptors(one: Scene) -> str:
    router = await asyncio.to_thread(lambda: one.router)
    old = (await asyncio.to_thread(one.shard_pids))[2]
    before = resource.prlimit(router, resource.RLIMIT_NOFILE)
    resource.prlimit(router, resource.RLIMIT_NOFILE, (3, before[1]))
    one.signal(old, signal.SIGKILL)
    await one.flow.pause(FULL_FOR_S)
    resource.prlimit(router, resource.RLIMIT_NOFILE, before)
    took_s = await one.until(lambda: one.shard_pids().get(2, old) != old and one.serves())
    is_same = await asyncio.to_thread(lambda: one.router == router)
    who = "the router" if is_same else "another router, which the keeper started,"
    return f"the other shards go on; {took_s:.1f} s after there are descriptors {who} has all shards serve"


def client_is_served(one: Scene) -> bool:
    with socket.create_connection((HOST, one.broker.port), timeout=2) as sock:
        return sock.recv(5) == b"INFO "


@fault("no-memory", f"each shard may take {SPARE_BYTES >> 20} MiB more (RLIMIT_AS), and a client subscribes for ever")
async def no_memory(one: Scene) -> str:
    for pid in (await asyncio.to_thread(one.shard_pids)).values():
        resource.prlimit(pid, resource.RLIMIT_AS, (mapped_bytes(pid) + SPARE_BYTES, resource.RLIM_INFINITY))
    made, _, is_new = await subscribe_for_ever(one)
    took_s = await one.until(one.serves)
    if is_new:
        return f"after {made:,} subscriptions the shard ends, and another one serves after {took_s:.2f} s"
    return f"after {made:,} subscriptions its connection is closed, and the shard goes on"


@whole_run("cgroup-memory")
async def cgroup_memory(seed: str) -> list[Row]:
    """As in a container or a unit with a limit: the kernel kills the process that is largest."""
    title = f"the whole broker may take {SPARE_BYTES >> 20} MiB more (cgroup), and a client subscribes for ever"
    with folder() as place, memory_cgroup() as group:
        if group is None:
            return [Row(title, "not tried: this user may not make a cgroup", "", "", holds=True)]
        group.enter()  # what starts from now on; memory counts where it was first used
        async with scene(place, seed) as one:
            group.leave()
            await one.moment()
            group.limit(group.usage() + SPARE_BYTES)
            made, shard, is_gone = await subscribe_for_ever(one)
            took_s = await one.until(one.serves)
            assert is_gone, "nobody was killed"
            way = f"the kernel kills shard {shard}; another one serves after {took_s:.2f} s"
            return [await observed(one, title, f"after {made:,} subscriptions {way}")]


async def subscribe_for_ever(one: Scene) -> tuple[int, int, bool]:
    """Until its connection breaks: (subscriptions, its shard, whether that is another process then)."""
    client = await Client.connect(one.broker.port, CONNECT)
    pid = (await asyncio.to_thread(one.shard_pids))[client.shard]
    made = 0
    with contextlib.suppress(*BROKEN):
        for _ in range(2000):
            words = b"".join(b"SUB greedy.%d.%b %d\r\n" % (n, b"x" * 200, n) for n in range(made, made + 500))
            await client.send(words)
            await client.flush(20)
            made += 500
    client.close()
    return made, client.shard, await asyncio.to_thread(lambda: one.shard_pids().get(client.shard) != pid)


def mapped_bytes(pid: int) -> int:
    """The address space that a process has."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()


# ---- time


def clock_step(seconds: float, title: str) -> None:
    """A fault: the wall clock is set."""

    async def run(seed: str) -> list[Row]:
        with folder() as place:
            clock = WallClock(place)
            async with scene(place, seed, environment=clock.environment) as one:
                await one.moment()
                clock.set(seconds)
                await one.flow.progress(20)
                before = sizes(one.stats)
                took_s = await one.until(lambda: sizes(one.stats) > before)
                happens = f"nothing: timers do not follow it; statistics are written on, {took_s:.1f} s later"
                return [await observed(one, title, happens)]

    FAULTS.append(Fault(f"clock {seconds:+.0f}", run))


clock_step(3600, "the clock is set an hour ahead")
clock_step(-3600, "the clock is set an hour back")
clock_step(10 * 86400, "the clock is set ten days ahead")


# ---- clients that harm

PORTS = {
    "clients' port": (r"Listening for client connections on \S*:(\d+)", b'CONNECT {"user":'),
    "WebSocket port": (r"Listening for websocket clients on \S*:(\d+)", b"GET / HTTP/1.1\r\nHost: x\r\nUpgr"),
    "monitoring port": (r"http monitor on \S*:(\d+)", b"GET /varz HTTP/1.1\r\nHost: "),
    "routes' port": (r"Listening for route connections on \S*:(\d+)", b'CONNECT {"name":"x","'),
    "leaf nodes' port": (r"Listening for leafnode connections on \S*:(\d+)", b'CONNECT {"name":"x","'),
}


def crowd(title: str, pattern: str, begin: bytes) -> None:
    """A fault: connections to one port that say nothing, and as many that say something, a byte each half second."""

    async def happening(one: Scene) -> str:
        port = int(one.broker.log.wait_line(pattern)[1])
        began_s = time.monotonic()
        ends: list[float] = []

        async def stand(at: int) -> None:
            client = await Client.dial(port)
            try:
                async with asyncio.timeout(SILENT_UNTIL_S):
                    for byte in begin[: 0 if at % 2 else None]:
                        await client.send(bytes((byte,)))
                        with contextlib.suppress(TimeoutError):
                            await client.wait_closed(0.5)
                            break
                    await client.wait_closed(SILENT_UNTIL_S)
                ends.append(time.monotonic() - began_s)
            except TimeoutError:
                pass
            finally:
                client.close()

        standing = [asyncio.create_task(stand(at)) for at in range(2 * CROWD)]
        await one.flow.progress(10)
        asked_s = time.monotonic()
        late = await Client.connect(one.broker.port, CONNECT)
        took_ms = (time.monotonic() - asked_s) * 1000
        late.close()
        health = (await asyncio.to_thread(Pages.of(one.broker).get, "/healthz")).status
        await asyncio.gather(*standing, return_exceptions=True)
        text = f"{len(ends)} of {2 * CROWD} are closed by the broker"
        if ends:
            text += f", within {min(ends):.1f} to {max(ends):.1f} s"
        return f"{text}; meanwhile a client logs in within {took_ms:.0f} ms, and `/healthz` says {health}"

    fault(f"crowd on the {title}", f"{title}: {CROWD} silent connections, {CROWD} that trickle")(happening)


for name, (pattern, begin) in PORTS.items():
    crowd(name, pattern, begin)


# ---- the link directory


@fault("cleaner-sockets", "a cleaner removes all sockets of the runtime directory; then a shard is killed")
async def cleaner_sockets(one: Scene) -> str:
    place = Path(next(iter((await asyncio.to_thread(swarm.link_sockets, one.broker)).values()))).parent
    for path in place.iterdir():
        if path.is_socket():
            path.unlink()
    return await linked_again(one, place)


@fault("cleaner-all", "a cleaner removes the runtime directory; then a shard is killed")
async def cleaner_all(one: Scene) -> str:
    place = Path(next(iter((await asyncio.to_thread(swarm.link_sockets, one.broker)).values()))).parent
    shutil.rmtree(place)
    return await linked_again(one, place)


async def linked_again(one: Scene, place: Path) -> str:
    made_s = await one.until(lambda: sum(path.is_socket() for path in place.iterdir()) > SHARDS)
    shard = one.dice.randrange(SHARDS)
    old = (await asyncio.to_thread(one.shard_pids))[shard]
    one.signal(old, signal.SIGKILL)
    took_s = await one.until(lambda: one.shard_pids().get(shard, old) != old and one.serves())
    return f"they are made again after {made_s:.1f} s; the killed shard is linked and serves after {took_s:.2f} s"


async def rows(names: list[str], seed: str, times: int) -> AsyncIterator[tuple[str, list[Row]]]:
    """The rows of each fault whose name contains one of these; all for none."""
    for one in FAULTS:
        if not names or any(name in one.name for name in names):
            for n in range(times):
                try:
                    yield one.name, await one.run(f"{seed} {one.name} {n}")
                except (TimeoutError, OSError, AssertionError) as error:
                    said = " ".join(str(error).split())[:300].replace("|", "\\|")
                    yield one.name, [Row(one.name, f"**{type(error).__name__}**: {said}", "", "", holds=False)]
