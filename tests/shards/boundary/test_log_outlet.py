"""Lines of a log for whoever reads them late, or never: nobody waits, and what is read is whole and in order."""

from __future__ import annotations

import os
import pty
import socket
import threading
import tty
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from gnatswarm.shards.boundary import log_outlet
from gnatswarm.shards.boundary.log_outlet import MOST_WAITING_BYTES, Outlet

LINE = b"line %07d " + b"x" * 80 + b"\n"


class Reader:
    """The two ends of a pipe, a terminal or a socket."""

    def __init__(self, kind: str) -> None:
        if kind == "socket":
            ours, theirs = socket.socketpair()
            self.get, self.put = theirs.detach(), ours.detach()
        elif kind == "terminal":
            self.get, self.put = pty.openpty()
            tty.setraw(self.put)
        else:
            self.get, self.put = os.pipe()

    def read(self, n: int) -> bytes:
        """So many bytes."""
        found = b""
        while len(found) < n:
            more = os.read(self.get, min(65536, n - len(found)))
            assert more
            found += more
        return found

    def read_to(self, end: bytes) -> None:
        """All until these bytes."""
        found = b""
        while not found.endswith(end):
            found = found[-len(end) :] + os.read(self.get, 65536)


@pytest.fixture(params=["pipe", "pipe of somebody else", "terminal", "socket"])
def reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    if "else" in request.param:
        monkeypatch.setattr(os, "open", _refused)
    found = Reader(request.param)
    yield found
    for fd in (found.get, found.put):
        os.close(fd)


def _refused(*_: object) -> int:
    raise PermissionError


def write_until_full(outlet: Outlet) -> int:
    """The number of lines until one is lost."""
    count = 0
    while outlet.write(LINE % count):
        count += 1
    return count


def write_forever(outlet: Outlet) -> NoReturn:
    while True:
        outlet.write(LINE % 0)


def test_nobody_waits_for_a_reader_and_what_was_taken_comes_whole_and_in_order(reader: Reader) -> None:
    outlet = Outlet(reader.put)
    count = write_until_full(outlet)
    assert count * len(LINE % 0) >= MOST_WAITING_BYTES
    assert reader.read(count * len(LINE % 0)) == b"".join(LINE % number for number in range(count))
    outlet.close()


def test_lines_that_come_while_others_are_read_follow_them(reader: Reader) -> None:
    outlet = Outlet(reader.put)
    count = 20_000
    found: list[bytes] = []
    reading = threading.Thread(target=lambda: found.append(reader.read(count * len(LINE % 0))))
    reading.start()
    for number in range(count):
        while not outlet.write(LINE % number):
            pass
    reading.join(20)
    outlet.close()
    assert found == [b"".join(LINE % number for number in range(count))]


def test_the_last_lines_are_written_for_who_reads_and_not_waited_for_otherwise(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_outlet, "LAST_ROOM_S", 0.05)
    outlet = Outlet(reader.put)
    write_until_full(outlet)
    outlet.close()
    again = Outlet(reader.put)
    assert again.write(b"the end\n")
    reading = threading.Thread(target=reader.read_to, args=(b"the end\n",))
    reading.start()
    again.close()
    reading.join(20)
    assert not reading.is_alive()


def test_others_who_write_there_may_wait_as_before(reader: Reader) -> None:
    outlet = Outlet(reader.put)
    write_until_full(outlet)
    assert os.get_blocking(reader.put)
    outlet.close()
    assert os.get_blocking(reader.put)


@pytest.mark.parametrize("lines", [1, 50_000])
def test_a_reader_that_goes_costs_its_lines_alone(lines: int) -> None:
    get, put = os.pipe()
    outlet = Outlet(put)
    for number in range(lines):
        outlet.write(LINE % number)
    os.close(get)
    with pytest.raises(BrokenPipeError):
        write_forever(outlet)
    outlet.close()
    os.close(put)


@pytest.mark.parametrize("name", ["x.log", "/dev/null"])
def test_files_take_everything(tmp_path: Path, name: str) -> None:
    fd = os.open(tmp_path / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    outlet = Outlet(fd)
    for number in range(20_000):
        assert outlet.write(LINE % number)
    outlet.close()
    os.close(fd)
    if name == "x.log":
        assert (tmp_path / name).read_bytes() == b"".join(LINE % number for number in range(20_000))
