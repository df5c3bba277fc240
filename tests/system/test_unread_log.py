"""Whoever has the log does not read it: a pager, a stopped terminal, a collector that hangs. The broker goes on."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.servers import KINDS, LISTENING, READY, wait_until
from tests.support.wire import Client

BAD = 3000


class Unread:
    """A broker whose standard error is a pipe that is read as far as the line that it is ready."""

    def __init__(self, kind: str, *more: str) -> None:
        words = [*KINDS[kind].command(), "-a", "127.0.0.1", "-p", "-1", *more]
        self.process = subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
        said = b""
        while READY.encode() not in said:
            said += self._read()
        found = re.search(LISTENING, said.decode())
        assert found is not None
        self.port = int(found[1])

    def _read(self) -> bytes:
        assert self.process.stderr is not None
        more = os.read(self.process.stderr.fileno(), 65536)
        assert more
        return more

    def connections_in_log(self, count: int) -> set[bytes]:
        """Those that the rest of the log names: at least so many."""
        said = b""
        while len(found := set(re.findall(rb"cid:(\d+) ", said))) < count:
            said += self._read()
        return found


@pytest.fixture(params=["gnatswarm-2", "nats-server"])
def unread(request: pytest.FixtureRequest) -> Iterator[Unread]:
    found = Unread(request.param)
    with found.process:
        yield found
        if found.process.poll() is None:
            found.process.kill()


async def bad_clients(port: int, count: int) -> set[bytes]:
    """So many connections that the log names; returns their ids."""
    found: set[bytes] = set()
    for _ in range(count):
        one = await Client.connect(port, None)
        found.add(b"%d" % one.info["client_id"])
        await one.send("NOTHING\r\n")
        with contextlib.suppress(EOFError, ConnectionError):
            await one.expect("-ERR 'Unknown Protocol Operation'\r\n")
        one.close()
    return found


async def test_a_log_that_nobody_reads_stops_nobody(unread: Unread) -> None:
    clients = [await Client.connect(unread.port, None) for _ in range(6)]
    for number, client in enumerate(clients):
        await client.talk(f"SUB s.{number} 1\r\nPING\r\n", expect_last="PONG\r\n")
    bad = await bad_clients(unread.port, BAD)
    clients += [await Client.connect(unread.port, None) for _ in range(6)]
    for number, client in enumerate(clients):
        await client.talk(f"SUB s.{number} 2\r\nPING\r\n", expect_last="PONG\r\n")
        await client.talk(f"PUB s.{number} 1\r\nx\r\nPING\r\n", expect_last="PONG\r\n")
    # Who reads it late misses nothing of this.
    assert unread.connections_in_log(BAD) == bad
    for client in clients:
        client.close()
    unread.process.send_signal(signal.SIGTERM)
    assert unread.process.wait(20) in (0, 1)


@pytest.fixture
def port_with_full_output(tmp_path: Path) -> Iterator[int]:
    """Of a broker whose standard output is a pipe that takes no more."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    for size in (65536, 1):
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writing, bytes(size))
    os.set_blocking(writing, True)
    log = tmp_path / "log"
    words = [*KINDS["gnatswarm-2"].command(), "-a", "127.0.0.1", "-p", "-1"]
    with log.open("wb") as file, subprocess.Popen(words, stdout=writing, stderr=file) as process:
        try:
            wait_until(lambda: READY in log.read_text())
            found = re.search(LISTENING, log.read_text())
            assert found is not None
            yield int(found[1])
        finally:
            process.kill()
            os.close(reading)
            os.close(writing)


async def test_a_standard_output_that_is_full_stops_nobody(port_with_full_output: int) -> None:
    """A broker whose output goes with its log to a pager writes there again when its router is replaced."""
    client = await Client.connect(port_with_full_output, None)
    await client.talk("PING\r\n", expect_last="PONG\r\n")
    client.close()


async def test_a_reload_loses_nothing_of_what_waits(tmp_path: Path) -> None:
    """Also where it changes what is logged."""
    file = tmp_path / "broker.conf"
    file.write_text("max_payload: 1000")
    unread = Unread("gnatswarm-2", "-c", str(file))
    with unread.process:
        bad = await bad_clients(unread.port, BAD // 2)
        for number in range(3):
            file.write_text(f"max_payload: {2000 + number}\ndebug: {'true' if number % 2 else 'false'}")
            unread.process.send_signal(signal.SIGHUP)
            bad |= await bad_clients(unread.port, BAD // 6)
        assert unread.connections_in_log(len(bad)) >= bad
        unread.process.terminate()


@pytest.fixture(params=[(2,), (0, 1, 2)], ids=str)
def port_of_closed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[int]:
    """Of a broker that was started without these descriptors."""

    def close() -> None:
        for number in request.param:
            os.close(number)

    words = [*KINDS["gnatswarm-2"].command(), "-a", "127.0.0.1", "-p", "-1", "-D", "--ports_file_dir", str(tmp_path)]
    with subprocess.Popen(words, preexec_fn=close) as process:
        wait_until(lambda: any(one.read_text() for one in tmp_path.glob("*.ports")))
        (ports,) = tmp_path.glob("*.ports")
        yield int(json.loads(ports.read_text())["nats"][0].rpartition(":")[2])
        process.terminate()


async def test_a_closed_standard_error_is_nobody_else_s(port_of_closed: int) -> None:
    """What is opened next must not have its number: lines of the log were written into what the processes share."""
    bad = sorted(map(int, await bad_clients(port_of_closed, 100)))
    assert bad[-1] < 1000  # client ids are in the page that the processes share
    await (await Client.connect(port_of_closed, None)).talk("PING\r\n", expect_last="PONG\r\n")
