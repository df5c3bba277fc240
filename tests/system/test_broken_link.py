"""A link that breaks while both its shards live: nothing that a PONG promised is lost, and it is made again at once."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import re
import socket
from pathlib import Path

import pytest

from gnatswarm.shards.links.links import LINK_VERSION
from tests.support import swarm
from tests.support.servers import wait_until
from tests.support.wire import Closed

pytestmark = pytest.mark.kinds("gnatswarm-2", "gnatswarm-4")

_PIDFD_GETFD = 438  # the same number on every architecture


def _borrowed(pid: int, fd: int) -> socket.socket:
    """A shard's own descriptor, as a copy of ours: what is done to the socket is done to the shard's."""
    libc = ctypes.CDLL(None, use_errno=True)
    pidfd = os.pidfd_open(pid)
    try:
        copy = libc.syscall(_PIDFD_GETFD, pidfd, fd, 0)
    finally:
        os.close(pidfd)
    if copy < 0:
        pytest.skip(f"this system does not let a process look at its descendants' sockets: {ctypes.get_errno()}")
    return socket.socket(fileno=copy)


def link_ends(broker, pid: int, shard: int) -> list[socket.socket]:
    """The sockets of this shard that it accepted at its own link socket (links to shards with higher numbers)."""
    path = swarm.link_sockets(broker)[shard]
    inodes = set()
    for line in Path("/proc/net/unix").read_text().splitlines():
        words = line.split()
        if words[-1] == path and words[3] == "00000000" and words[5] == "03":  # connected
            inodes.add(words[6])
    found = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            target = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(f"/proc/{pid}/fd/{name}"))
            if target and target[1] in inodes:
                found.append(_borrowed(pid, int(name)))
    return found


async def break_links(broker, shard: int = 0) -> None:
    """Shuts down every link that was dialled to a shard, below both ends."""
    pid = (await swarm.pids(broker))[shard]
    ends = link_ends(broker, pid, shard)
    assert ends
    for end in ends:
        end.shutdown(socket.SHUT_RDWR)
        end.close()


async def wait_made_again(broker, seen: int, times: int) -> None:
    """Until so many ends of links have said so since that line of the log."""

    def said() -> bool:
        return sum("is made again" in line for line in broker.log.lines[seen:]) >= times

    await asyncio.to_thread(wait_until, said, 20.0)


@pytest.fixture
def swarmed(start_broker, cluster_of):
    broker = start_broker()
    return broker, cluster_of(broker)


class Fenced:
    """A publisher of numbered batches, each ended by its fence; what it was promised is what it had a PONG for."""

    def __init__(self, port: int, cluster, shard: int, subject: str) -> None:
        self.cluster = cluster
        self.shard = shard
        self.subject = subject.encode()
        self.promised: set[int] = set()
        self.sent = 0
        self.closed = 0
        self.is_over = False

    async def run(self) -> None:
        client = await self.cluster.client_on(self.shard, deadline_s=20)
        while not self.is_over:
            batch = range(self.sent, self.sent + 50)
            self.sent += 50
            words = b"".join(b"PUB %b 8\r\n%08d\r\n" % (self.subject, number) for number in batch)
            try:
                await client.talk(words + b"PING\r\n", expect="PONG\r\n", deadline_s=20)
            except Closed:
                self.closed += 1
                client = await self.cluster.client_on(self.shard, deadline_s=20)
                continue
            self.promised.update(batch)


async def test_what_a_pong_promised_is_delivered_though_links_break_under_load(swarmed, subject):
    """Publishers on all shards, subscribers on all shards, all links of shard 0 broken five times."""
    broker, cluster = swarmed
    shards = broker.kind.shards
    subscribers = [await cluster.client_on(shard) for shard in range(shards)]
    got: list[list[bytes]] = [[] for _ in subscribers]
    for client in subscribers:
        await client.talk(f"SUB {subject}.* 1\r\nPING\r\n", expect="PONG\r\n")
    publishers = [Fenced(broker.port, cluster, shard, f"{subject}.{shard}") for shard in range(shards)]

    async def read(at: int) -> None:
        while True:
            frame = await subscribers[at].read_frame(deadline_s=60)
            got[at].append(frame.raw.split(b"\r\n")[0].split()[1] + b" " + frame.payload)

    running = [asyncio.create_task(publisher.run()) for publisher in publishers]
    reading = [asyncio.create_task(read(at)) for at in range(shards)]
    try:
        for _ in range(5):
            seen = len(broker.log.lines)
            goals = [len(publisher.promised) + 200 for publisher in publishers]
            await break_links(broker)
            async with asyncio.timeout(30):
                while any(len(one.promised) < goal for one, goal in zip(publishers, goals, strict=True)):
                    await asyncio.wait([*running, *reading], timeout=0.02, return_when=asyncio.FIRST_EXCEPTION)
                    for task in [*running, *reading]:
                        if task.done():
                            task.result()
            await wait_made_again(broker, seen, 2 * (shards - 1))
        for publisher in publishers:
            publisher.is_over = True
        async with asyncio.timeout(30):
            await asyncio.gather(*running)
        # Everything promised is at the subscribers' shards already: the answer to their own PING comes behind it.
        for task in reading:
            task.cancel()
        await asyncio.wait(reading)
        for at, client in enumerate(subscribers):
            for frame in await client.flush(20):
                got[at].append(frame.raw.split(b"\r\n")[0].split()[1] + b" " + frame.payload)
    finally:
        for task in [*running, *reading]:
            task.cancel()
    for mine in got:
        assert len(set(mine)) == len(mine), "a message came twice"
        for publisher in publishers:
            numbers = [int(one.split()[1]) for one in mine if one.startswith(publisher.subject + b" ")]
            assert numbers == sorted(numbers), "out of order"
            missing = sorted(publisher.promised - set(numbers))
            assert not missing, f"{len(missing)} of {len(publisher.promised)} were promised and did not come"
    assert {row["starts"] for row in (await asyncio.to_thread(swarm.rows, broker)).values()} == {1}


async def test_fences_of_subscribers_wait_until_the_link_is_made_again(swarmed, subject):
    """SUB and PING beside breaking links: after each PONG a publish on another shard arrives, and nobody is closed."""
    broker, cluster = swarmed
    pid = (await swarm.pids(broker))[0]
    subscribers = [await cluster.client_on(shard) for shard in (0, 1)]
    for number in range(200):
        mine, other = subscribers[number % 2], subscribers[1 - number % 2]
        await mine.send(f"SUB {subject}.{number} {number}\r\n")
        if number % 5 == 0:
            for end in link_ends(broker, pid, 0):
                end.shutdown(socket.SHUT_RDWR)
                end.close()
        await mine.talk("PING\r\n", expect="PONG\r\n", deadline_s=20)
        await other.talk(f"PUB {subject}.{number} 1\r\nx\r\nPING\r\n", expect="PONG\r\n", deadline_s=20)
        await mine.expect(f"MSG {subject}.{number} {number} 1\r\nx\r\n")


async def speak_up(path: str, words: bytes, *, says: str) -> None:
    """Says this to a link's socket, and hears it out: to its end, or a PING where nothing is to be said about it."""
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock, contextlib.suppress(ConnectionError):
        sock.setblocking(False)
        await loop.sock_connect(sock, path)
        await loop.sock_sendall(sock, words)
        async with asyncio.timeout(30):
            said = b""
            while (piece := await loop.sock_recv(sock, 65536)) and (says or b"PING" not in said):
                said += piece


async def test_a_broken_frame_of_a_joined_sibling_ends_that_link_and_a_good_one_takes_its_place(swarmed, subject):
    """Somebody who knows the boot id speaks for shard 1, takes its link away, and then says rubbish."""
    broker, cluster = swarmed
    paths = swarm.link_sockets(broker)
    boot_id = os.path.basename(paths[1]).split(".")[1]
    clients = [await cluster.client_on(shard) for shard in range(broker.kind.shards)]
    for at, client in enumerate(clients):
        await client.talk(f"SUB {subject}.{at} 1\r\nPING\r\n", expect="PONG\r\n")
    words = {
        "server_id": clients[0].info["server_id"],
        "shard": 1,
        "boot_id": boot_id,
        "link_version": LINK_VERSION,
    }
    greeting = b"INFO " + json.dumps(words).encode() + b" \r\nCONNECT " + json.dumps(words).encode() + b"\r\n"
    broken = {
        b"RMSG $G foo 2\r\nhixx\r\n": "a payload without its end",
        b"RMSG $G foo 999999999\r\n": "no frame of a sibling",
        b"RS+ $G a..b\r\n": "bad subject in RS",
        b"RS+ $G foo q -1\r\n": "no frame of a sibling",
        b"GET / HTTP/1.1\r\n": "no frame of a sibling",
        b"QACK x\r\n": "no frame of a sibling",
        b"INFO " + json.dumps(words).encode() + b" \r\n": "INFO came twice",
        b"INFO " + json.dumps(words | {"boot_id": "0" * 16}).encode() + b" \r\n": "INFO came twice",
        b"INFO " + json.dumps(words | {"link_version": 999}).encode() + b" \r\n": "INFO came twice",
        b"RS+ $G " + b"a" * 400_000: "no frame of a sibling",  # a line that does not end
        b"RMSG $G foo " + b"9" * 30 + b"\r\n": "no frame of a sibling",
        b"CONNECT {}\r\n": "CONNECT out of place",
        b"RMSG $G foo 1000\r\nhalf a frame, and then the end": "",
    }
    for frame, says in broken.items():
        async with asyncio.timeout(60):
            while True:
                seen = len(broker.log.lines)
                await speak_up(paths[0], greeting + frame, says=says)
                # Shard 0 has another link, to us; then both have one to each other.
                await wait_made_again(broker, seen, 3)
                # The real shard 1 dials anew within a millisecond: it may have had its place back before all was read.
                if not says or any(says in line for line in broker.log.lines[seen:]):
                    break
        for at, client in enumerate(clients):
            other = clients[(at + 1) % len(clients)]
            await other.talk(f"PUB {subject}.{at} 1\r\nx\r\nPING\r\n", expect="PONG\r\n", deadline_s=20)
            await client.expect(f"MSG {subject}.{at} 1 1\r\nx\r\n")
    assert {row["starts"] for row in (await asyncio.to_thread(swarm.rows, broker)).values()} == {1}


async def test_a_link_that_cannot_be_made_again_ends_the_shard_that_is_dialled(start_broker, cluster_of, subject):
    """No socket is where its was, and then its links break: it is started anew with another, and all is well again."""
    broker = start_broker(args=["-D"])
    cluster = cluster_of(broker)
    before = await cluster.client_on(1)
    await before.talk(f"SUB {subject} 1\r\nPING\r\n", expect="PONG\r\n")
    path = Path(swarm.link_sockets(broker)[0])
    path.with_suffix(".other").touch()
    path.with_suffix(".other").replace(path)  # it is never missing: that would be mended
    await break_links(broker)
    # Whoever asks on shard 1 meanwhile is answered when the broker is whole again.
    await before.talk(f"SUB {subject}.2 2\r\nPING\r\n", expect="PONG\r\n", deadline_s=30)
    after = await swarm.client_on(cluster, 0)
    await after.talk(f"PUB {subject} 1\r\nx\r\nPUB {subject}.2 1\r\ny\r\nPING\r\n", expect="PONG\r\n", deadline_s=20)
    await before.expect(f"MSG {subject} 1 1\r\nx\r\nMSG {subject}.2 2 1\r\ny\r\n")
    rows = await asyncio.to_thread(swarm.rows, broker)
    assert rows[0]["starts"] == 2 and rows[1]["starts"] == 1
    assert re.search(r"could not be made again for 2(\.\d+)? s", broker.log.text)


async def test_a_link_is_made_again_though_somebody_removed_the_socket(start_broker, cluster_of, subject):
    """No shard is started anew for that: the one that is dialled listens again."""
    broker = start_broker(args=["-D"])
    cluster = cluster_of(broker)
    subscriber, publisher = await cluster.client_on(1), await cluster.client_on(0)
    await subscriber.talk(f"SUB {subject} 1\r\nPING\r\n", expect="PONG\r\n")
    os.unlink(swarm.link_sockets(broker)[0])
    await break_links(broker)
    for sibling in range(1, broker.kind.shards):
        line = rf"shard {sibling} - The link to shard 0 broke, and is made again; nothing lost"
        await asyncio.to_thread(broker.log.wait_line, line, 20.0)
    await publisher.talk(f"PUB {subject} 1\r\nx\r\nPING\r\n", expect="PONG\r\n", deadline_s=30)
    await subscriber.expect(f"MSG {subject} 1 1\r\nx\r\n")
    assert {row["starts"] for row in (await asyncio.to_thread(swarm.rows, broker)).values()} == {1}


# What somebody says who listens where shard 0 should, and what shard 1's log says about it.
FOREIGNERS: dict[str, tuple[dict[str, object] | bytes, str]] = {
    "rubbish": (b"HTTP/1.1 400 Bad Request\r\n\r\n", "the first frames must be INFO and CONNECT"),
    "another version": ({"link_version": 999}, f"a shard that speaks version 999 between shards, not {LINK_VERSION}"),
    "another boot id": ({"boot_id": "0" * 16}, "shard 0 is not the one that was dialled"),
    "half a frame": (b'INFO {"server_id"', ""),
}


@pytest.mark.kinds("gnatswarm-2")
@pytest.mark.parametrize("foreigner", FOREIGNERS)
async def test_a_foreign_process_where_a_sibling_should_listen(swarmed, subject, foreigner):
    """It is not taken for the sibling, whatever it says; the sibling, which cannot be reached, is started anew."""
    broker, cluster = swarmed
    words, says = FOREIGNERS[foreigner]
    path = swarm.link_sockets(broker)[0]
    waits = await cluster.client_on(1)
    await waits.talk(f"SUB {subject} 1\r\nPING\r\n", expect="PONG\r\n")
    if isinstance(words, dict):
        boot_id = os.path.basename(path).split(".")[1]
        of_shard_0 = {
            "server_id": waits.info["server_id"],
            "shard": 0,
            "boot_id": boot_id,
            "link_version": LINK_VERSION,
        }
        words = b"INFO " + json.dumps(of_shard_0 | words).encode() + b" \r\n"
    met = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        met.set()
        with contextlib.suppress(ConnectionError):
            writer.write(words)
            await reader.read()
            writer.close()

    os.unlink(path)
    async with await asyncio.start_unix_server(answer, path):
        await break_links(broker)
        # It waits behind the hole, and is answered when the broker is whole again.
        await waits.talk(f"SUB {subject}.2 2\r\nPING\r\n", expect="PONG\r\n", deadline_s=30)
        assert met.is_set()
    back = await swarm.client_on(cluster, 0)
    await back.talk(f"PUB {subject} 1\r\nx\r\nPUB {subject}.2 1\r\ny\r\nPING\r\n", expect="PONG\r\n", deadline_s=20)
    await waits.expect(f"MSG {subject} 1 1\r\nx\r\nMSG {subject}.2 2 1\r\ny\r\n")
    rows = await asyncio.to_thread(swarm.rows, broker)
    assert rows[0]["starts"] == 2 and rows[1]["starts"] == 1
    assert re.search(r"the link to shard 1 broke and could not be made again for 2(\.\d+)? s", broker.log.text)
    if says:
        assert any("shard 1" in line and says in line for line in broker.log.lines), says
