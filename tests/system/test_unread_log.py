"""Whoever has the log does not read it: a pager, a stopped terminal, a collector that hangs. The broker goes on."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Iterator

import pytest

from tests.support.servers import KINDS, LISTENING, READY
from tests.support.wire import Client

BAD = 3000


class Unread:
    """A broker whose standard error is a pipe that is read as far as the line that it is ready."""

    def __init__(self, kind: str) -> None:
        words = [*KINDS[kind].command(), "-a", "127.0.0.1", "-p", "-1"]
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


async def test_a_log_that_nobody_reads_stops_nobody(unread: Unread) -> None:
    clients = [await Client.connect(unread.port, None) for _ in range(6)]
    for number, client in enumerate(clients):
        await client.talk(f"SUB s.{number} 1\r\nPING\r\n", expect_last="PONG\r\n")
    bad: set[bytes] = set()
    for _ in range(BAD):
        one = await Client.connect(unread.port, None)
        bad.add(b"%d" % one.info["client_id"])
        await one.send("NOTHING\r\n")
        with contextlib.suppress(EOFError, ConnectionError):
            await one.expect("-ERR 'Unknown Protocol Operation'\r\n")
        one.close()
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
