"""Faults by seed: what is dropped is dropped again in the next run, and everything else comes as it was sent."""

from __future__ import annotations

import asyncio
import functools
import math
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gnatswarm
from gnatswarm.chaos import OF_SHARDS, Fault, _Frames, _matches, faults
from tests.support.turns import until
from tests.support.wire import Client

STREAM = (
    b'INFO {"a":1,"connect_urls":["other:4222"]}\r\nPING\r\nPUB a.b 3\r\nx\r\n\r\npub c r 0\r\n\r\n'
    b"HPUB a.b r 12 14\r\nNATS/1.0\r\n\r\nhi\r\nMSG a.b 1 2\r\nok\r\n+OK\r\n"
)
PARTS = [
    ("", b'INFO {"a":1}\r\n'),
    ("", b"PING\r\n"),
    ("a.b", b"PUB a.b 3\r\nx\r\n\r\n"),
    ("c", b"pub c r 0\r\n\r\n"),
    ("a.b", b"HPUB a.b r 12 14\r\nNATS/1.0\r\n\r\nhi\r\n"),
    ("a.b", b"MSG a.b 1 2\r\nok\r\n"),
    ("", b"+OK\r\n"),
]


@given(st.lists(st.integers(1, 40), max_size=30))
def test_a_stream_is_taken_apart_wherever_it_is_cut(sizes: list[int]):
    frames, found, at = _Frames(), [], 0
    for size in [*sizes, len(STREAM)]:
        if STREAM[at : at + size]:
            found += list(frames.feed(STREAM[at : at + size]))
        at += size
    assert found == PARTS


@pytest.mark.parametrize("head", [b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"HTTP/1.1 101 Switching Protocols\r\n\r\n"])
@pytest.mark.parametrize("cut", [1, 3, 7, 16, 20])
def test_websocket_goes_on_as_it_comes(head: bytes, cut: int):
    """A frame has no line's end that could be waited for, or one in its middle."""
    frames = _Frames()
    assert b"".join(part for data in (head[:cut], head[cut:]) for _subject, part in frames.feed(data)) == head
    for frame in (b"\x82\x06PING\r\n", b"\x82\x04PUB ", b"\x16", b"PUB a 5\r\nhe", b"l\r\no\x00"):
        assert list(frames.feed(frame)) == [("", frame)]


def test_a_large_message_is_joined_once():
    """Joined anew with every piece, one of 48 MB took half a minute, in which the broker took its client for dead."""
    found: list[tuple[str, bytes]] = []
    piece, frames = bytes(1000), _Frames()
    list(frames.feed(b"PUB a 8000000\r\n"))
    for _ in range(8000):
        found += frames.feed(piece)
        assert sum(len(one) for one in frames._kept[:1]) < 2000
    found += frames.feed(b"\r\nPING\r\n")
    assert [(subject, len(frame)) for subject, frame in found] == [("a", 15 + 8_000_000 + 2), ("", 6)]


def test_patterns_are_those_of_subscriptions():
    assert _matches("a.*", "a.b") and _matches(">", "a") and _matches("a.>", "a.b.c") and _matches("a", "a")
    assert not _matches("a.>", "a") and not _matches("a.*", "a.b.c") and not _matches("a.b", "a")


@pytest.fixture(scope="module")
def broker() -> Iterator[gnatswarm.Broker]:
    with gnatswarm.Broker() as found:
        yield found


async def connected(port: int) -> Client:
    return await Client.connect(port=port, connect={"verbose": False})


async def lost(broker: gnatswarm.Broker, seed: int) -> list[int]:
    """Of forty messages on each of two connections, those that a proxy with this seed loses."""
    watch = await connected(broker.port)
    await watch.talk("SUB > 1\r\nPING\r\n", expect="PONG\r\n")
    with gnatswarm.Chaos(broker.url, seed=seed) as chaos:
        chaos.drop("t.*", share=0.3)
        for n in range(2):
            client = await connected(int(chaos.url.rpartition(":")[2]))
            for i in range(40):
                await client.send(f"PUB t.{n} 2\r\n{i + 10}\r\nPUB other 1\r\nx\r\n")
            await client.flush()
            client.close()
        await watch.flush()
        here = [int(one.payload) + 100 * int(one.subject[2:]) for one in watch.inbox if one.subject[0] == "t"]
        assert sum(one.subject == "other" for one in watch.inbox) == 80
        assert len(chaos.happened) == 80 - len(here)
    watch.close()
    return sorted({100 * n + i + 10 for n in range(2) for i in range(40)} - set(here))


async def test_the_same_seed_has_the_same_faults(broker: gnatswarm.Broker):
    first = await lost(broker, 1)
    assert 5 < len(first) < 50 and await lost(broker, 1) == first != await lost(broker, 2)


async def test_connections_are_stalled_delayed_and_cut_and_others_are_not(broker: gnatswarm.Broker):
    direct = await connected(broker.port)
    with gnatswarm.Chaos(broker.url) as chaos:
        port = int(chaos.url.rpartition(":")[2])
        client = await connected(port)
        await client.talk("SUB a.> 1\r\nPING\r\n", expect="PONG\r\n")
        with chaos.having([gnatswarm.Fault("delay", "a.late", seconds=0.1)]):
            await direct.talk("PUB a.late 1\r\n1\r\nPUB a.now 1\r\n2\r\nPING\r\n", expect="PONG\r\n")
            assert [one.payload for one in await client.messages(2)] == [b"2", b"1"]
        chaos.slow(1_000_000)
        await client.talk("PING\r\n", expect="PONG\r\n")
        chaos.stall()
        await client.send("PUB b 1\r\nx\r\nPING\r\n")
        await direct.talk("SUB b 2\r\nPING\r\n", expect="PONG\r\n")
        await direct.expect_quiet()
        chaos.go_on()
        await client.expect("PONG\r\n")
        assert [one.subject for one in await direct.messages(1)] == ["b"]
        chaos.cut()
        await client.wait_closed()
        client.close()
        again = await connected(port)
        await again.talk("PING\r\n", expect="PONG\r\n")
        again.close()
    with pytest.raises(ConnectionError):
        await connected(port)
    direct.close()


async def test_what_is_delayed_comes_though_its_publisher_has_closed(broker: gnatswarm.Broker):
    direct = await connected(broker.port)
    await direct.talk("SUB a.> 1\r\nPING\r\n", expect="PONG\r\n")
    with gnatswarm.Chaos(broker.url) as chaos:
        chaos.delay("a.late", 0.05)
        client = await connected(int(chaos.url.rpartition(":")[2]))
        await client.talk("PUB a.late 1\r\n1\r\nPUB a.now 1\r\n2\r\nPING\r\n", expect="PONG\r\n")
        client.close()
        assert [one.payload for one in await direct.messages(2)] == [b"2", b"1"]
    direct.close()


async def test_what_is_delayed_comes_though_the_server_has_closed():
    with gnatswarm.Broker() as ending, gnatswarm.Chaos(ending.url) as chaos:
        chaos.delay("a.late", 0.3)
        client = await connected(int(chaos.url.rpartition(":")[2]))
        await client.talk("SUB a.> 1\r\nPUB a.late 1\r\n1\r\n", expect="")
        await until(lambda: len(chaos.happened) == 2)  # published late, and delivered late
        await asyncio.to_thread(ending.stop)
        assert [one.payload for one in await client.messages(1)] == [b"1"]
        await client.wait_closed()
        client.close()


async def test_a_client_that_says_no_more_hears_the_rest(broker: gnatswarm.Broker):
    """What a client sends before it closes its half is answered through the proxy as it is without."""
    with gnatswarm.Chaos(broker.url) as chaos:
        for _ in range(5):
            reader, writer = await asyncio.open_connection("127.0.0.1", int(chaos.url.rpartition(":")[2]))
            writer.write(b'CONNECT {"verbose":false}\r\nSUB a 1\r\nPUB a 2\r\nhi\r\nPING\r\n')
            writer.write_eof()
            heard = await asyncio.wait_for(reader.read(), 30)
            writer.close()
            assert heard.endswith(b"MSG a 1 2\r\nhi\r\nPONG\r\n")


async def test_the_beginning_of_an_operation_comes_before_the_end_of_the_stream():
    async def cut_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"PING\r\nMSG a 1 5\r\nhe")
        writer.close()

    async with await asyncio.start_server(cut_off, "127.0.0.1", 0) as server:
        with gnatswarm.Chaos(f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}") as chaos:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(chaos.url.rpartition(":")[2]))
            assert await asyncio.wait_for(reader.read(), 30) == b"PING\r\nMSG a 1 5\r\nhe"
            writer.close()


async def test_what_is_delayed_waits_for_the_end_of_a_stall(broker: gnatswarm.Broker):
    direct = await connected(broker.port)
    with gnatswarm.Chaos(broker.url) as chaos:
        client = await connected(int(chaos.url.rpartition(":")[2]))
        await client.talk("SUB a.> 1\r\nPING\r\n", expect="PONG\r\n")
        chaos.delay("a.late", 0.5)
        clock = asyncio.get_running_loop().time
        while True:
            since_s = clock()
            await direct.talk("PUB a.late 1\r\n1\r\nPUB a.now 1\r\n2\r\nPING\r\n", expect="PONG\r\n")
            assert [one.payload for one in await client.messages(1)] == [b"2"]
            chaos.stall()
            if clock() < since_s + 0.5:  # it was not due before the stall
                break
            chaos.go_on()
            assert [one.payload for one in await client.messages(1)] == [b"1"]
        until_s = clock() + 0.7  # it is due meanwhile
        while clock() < until_s:
            await direct.flush()
            assert client.take_arrived_messages(1) == []
        chaos.go_on()
        assert [one.payload for one in await client.messages(1)] == [b"1"]
        client.close()
    direct.close()


def test_it_can_be_started_again_and_ends_without_a_word(broker: gnatswarm.Broker, capfd: pytest.CaptureFixture[str]):
    chaos = gnatswarm.Chaos(broker.url)
    for _ in range(3):
        with chaos, socket.create_connection(("127.0.0.1", int(chaos.url.rpartition(":")[2]))) as sock:
            assert sock.recv(5) == b"INFO "
            chaos.stop()
    assert "Exception" not in capfd.readouterr().err


async def test_a_forked_child_leaves_it_to_its_parent(broker: gnatswarm.Broker):
    """What the child would hold open could not be cut, and nobody would hear that a client has closed."""
    with gnatswarm.Chaos(broker.url) as chaos:
        port = int(chaos.url.rpartition(":")[2])
        before = broker.connections
        leaving, staying = await connected(port), await connected(port)
        reader, writer = os.pipe()
        its_reader, its_writer = os.pipe()
        child = os.fork()
        if not child:
            os.close(writer)
            for client in (leaving, staying):
                client.sock.close()
            chaos.stop()
            os.write(its_writer, b"1")
            os.read(reader, 1)
            os._exit(0)
        for end in (reader, its_writer):
            os.close(end)
        try:
            assert os.read(its_reader, 1) == b"1"
            leaving.close()
            await until(lambda: broker.connections == before + 1)
            chaos.cut()
            await staying.wait_closed()
            staying.close()
            chaos.stop()
            with pytest.raises(ConnectionError):
                await connected(port)
        finally:
            os.close(writer)
            os.close(its_reader)
            await asyncio.to_thread(os.waitpid, child, 0)


def test_mistakes_are_said(broker: gnatswarm.Broker):
    for url in ("nats://", "", "nats://u:secret@a:b:c", "nats://u:secret@[::1", "nats://127.0.0.1:99999"):
        with pytest.raises(ValueError, match=r"not the address of a server.*write nats://") as mistake:
            gnatswarm.Chaos(url)
        assert "secret" not in str(mistake.value)
    chaos = gnatswarm.Chaos("nats://u:p@127.0.0.1:1")
    with pytest.raises(RuntimeError, match="has not started"):
        _ = chaos.url
    for fault in (gnatswarm.Fault("burn"), gnatswarm.Fault("drop", share=2), gnatswarm.Fault("slow", bytes_per_s=0)):
        with pytest.raises(ValueError, match=r"is no fault|share is"):
            chaos.apply(fault)
    numbers: list[Any] = [math.nan, math.inf, -math.inf]
    for number in numbers:  # of which a message would wait for ever, or not at all
        for begin in (
            functools.partial(chaos.delay, "a", number),
            functools.partial(chaos.slow, number),
            functools.partial(chaos.drop, "a", number),
        ):
            with pytest.raises(ValueError, match="seconds are finite"):
                begin()
    for subject in ("", "a..b", ".a", "a b"):  # a test with this fault would pass without any
        for begin in (functools.partial(chaos.drop, subject), functools.partial(chaos.delay, subject, 0.1)):
            with pytest.raises(ValueError, match="no message has such a subject"):
                begin()
    with chaos:
        assert chaos.url.startswith("nats://u:p@127.0.0.1:")


@pytest.fixture(scope="module")
def swarm() -> Iterator[gnatswarm.BrokerProcess]:
    with gnatswarm.BrokerProcess(shards=2, chaos=True) as found:
        yield found


@pytest.fixture
async def ends(swarm: gnatswarm.BrokerProcess) -> AsyncIterator[list[Client]]:
    """A client on each of two shards; the one on shard 1 subscribes to `t`."""
    found: dict[int, Client] = {}
    while len(found) < 2:
        client = await connected(swarm.port)
        if found.setdefault(client.shard, client) is not client:
            client.close()
    ends = [found[0], found[1]]
    await ends[1].talk("SUB t 1\r\nPING\r\n", expect="PONG\r\n")
    yield ends
    for client in ends:
        client.close()


def process_state(swarm: gnatswarm.BrokerProcess, shard: int) -> str:
    """Its letter in /proc; T: it is stopped."""
    return Path(f"/proc/{swarm.shard_pids()[shard]}/stat").read_text().rpartition(")")[2].split()[0]


def is_in_state(swarm: gnatswarm.BrokerProcess, *, stopped: bool) -> bool:
    return (process_state(swarm, 0) == "T") == stopped


async def test_a_stalled_shard_says_nothing_until_it_goes_on(swarm: gnatswarm.BrokerProcess, ends: list[Client]):
    with gnatswarm.Chaos(swarm.url, shards=swarm) as chaos:
        chaos.stall_shard(1, 60.0)
        await ends[0].send("PUB t 1\r\nx\r\n")
        assert ends[1].take_arrived_messages(1) == [] and process_state(swarm, 1) == "T"
        chaos.go_on()
        await ends[1].expect("MSG t 1 1\r\nx\r\n")
        chaos.stall_shard(0, 0.05)  # it ends by itself
        await ends[0].talk("PING\r\n", expect="PONG\r\n")
        assert [str(one) for one in chaos.happened] == ["stall_shard 1", "stall_shard 0"]
    starts = [row.starts for row in (await swarm.astatus()).shards]
    assert starts == [1, 1]


async def test_a_slow_shard_runs_for_its_share_and_fast_again_without(swarm: gnatswarm.BrokerProcess):
    with gnatswarm.Chaos(swarm.url, shards=swarm) as chaos, chaos.having([Fault("slow_shard", share=0.2)]):
        for is_stopped in (True, False, True, False):
            await until(functools.partial(is_in_state, swarm, stopped=is_stopped))
    assert process_state(swarm, 0) != "T"


async def test_clients_wait_while_shards_are_parted(swarm: gnatswarm.BrokerProcess, ends: list[Client]):
    with gnatswarm.Chaos(swarm.url, shards=swarm) as chaos:
        chaos.part_shards(0, 1, 60.0)
        await ends[0].send("PUB t 1\r\nx\r\nPING\r\n")
        assert [row.links for row in (await swarm.astatus()).shards] == [0, 0]
        assert ends[0].take_arrived_messages(1) == ends[1].take_arrived_messages(1) == []
        chaos.clear()
        await ends[1].expect("MSG t 1 1\r\nx\r\n")
        await ends[0].expect("PONG\r\n")
    assert [row.starts for row in (await swarm.astatus()).shards] == [1, 1]


async def test_a_killed_shard_is_replaced_also_while_it_is_stopped(swarm: gnatswarm.BrokerProcess):
    before = swarm.shard_pids()
    with gnatswarm.Chaos(swarm.url, shards=swarm) as chaos:
        chaos.stall_shard(1, 60.0)
        chaos.slow_shard(1, 0.5)
        chaos.kill_shard(1)
    after = swarm.shard_pids()
    assert before[0] == after[0] and before[1] != after[1]


def test_mistakes_about_shards_are_said(swarm: gnatswarm.BrokerProcess):
    with gnatswarm.Chaos(swarm.url) as chaos, pytest.raises(RuntimeError, match="no shards to do that to"):
        chaos.kill_shard(0)
    with pytest.raises(RuntimeError, match="has not started"):
        gnatswarm.Chaos(swarm.url, shards=swarm).stall_shard(0, 1.0)
    with gnatswarm.Chaos(swarm.url, shards=swarm) as chaos:
        for shard, other in ((0, 2), (1, 1), (-1, 0)):
            with pytest.raises(RuntimeError, match="has the shards 0 to 1"):
                chaos.part_shards(shard, other, 1.0)
        with pytest.raises(ValueError, match="share is"):
            chaos.slow_shard(0, 0.0)
        with pytest.raises(gnatswarm.BrokerFailed, match="seconds must be"):
            chaos.part_shards(0, 1, 1000.0)
    with gnatswarm.BrokerProcess(shards=2) as plain, pytest.raises(gnatswarm.BrokerFailed, match="GNATSWARM_CHAOS=1"):
        plain.part_shards(0, 1, 1.0)


@given(faults("a", "b", shards=3))
def test_what_is_drawn_can_be_applied(found: list[gnatswarm.Fault]):
    chaos = gnatswarm.Chaos("nats://127.0.0.1:1")
    for fault in found:
        if fault.kind in OF_SHARDS:  # these act at once
            assert (
                0 <= fault.shard < 3
                and fault.seconds < 1
                and (fault.kind != "part_shards" or fault.other > fault.shard)
            )
        else:
            chaos.apply(fault)


WITHOUT_DESCRIPTORS = """
import os, resource
from gnatswarm import Chaos

with Chaos("127.0.0.1:1"):  # what is imported is open no more
    pass
limits = resource.getrlimit(resource.RLIMIT_NOFILE)
room, is_started, chaos = 0, False, Chaos("127.0.0.1:1")
while not is_started:
    before = len(os.listdir("/proc/self/fd")) - 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (before + room, limits[1]))
    try:
        is_started = not chaos.start().url.endswith(":0")
    except RuntimeError as error:
        print(error)
    room += 1
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    chaos.stop()
    assert len(os.listdir("/proc/self/fd")) - 1 <= before
"""


def test_a_start_without_descriptors_fails_at_once_and_leaves_none_open():
    """With room for none, for one, and so on until it starts."""
    done = subprocess.run([sys.executable, "-c", WITHOUT_DESCRIPTORS], capture_output=True, text=True, check=False)
    assert done.stderr == "" and done.returncode == 0
    assert set(done.stdout.splitlines()) == {"chaos cannot listen: [Errno 24] Too many open files"}
