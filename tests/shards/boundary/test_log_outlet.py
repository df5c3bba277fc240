"""Lines of a log for whoever reads them late, or never: nobody waits, and what is read is whole and in order."""

from __future__ import annotations

import os
import pty
import socket
import threading
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
        self.is_terminal = kind == "terminal"
        if kind == "socket":
            ours, theirs = socket.socketpair()
            self.get, self.put = theirs.detach(), ours.detach()
        elif self.is_terminal:
            self.get, self.put = pty.openpty()
        else:
            self.get, self.put = os.pipe()

    def lines(self, count: int) -> bytes:
        """So many lines, without what a terminal puts at their ends."""
        found = b""
        while found.count(b"\n") < count:
            more = os.read(self.get, 65536)
            assert more
            found += more
        return found.replace(b"\r\n", b"\n") if self.is_terminal else found


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
    assert count * len(LINE % 0) >= MOST_WAITING_BYTES - len(LINE % 0)
    outlet.retire()  # what waits is written all the same
    assert reader.lines(count) == b"".join(LINE % number for number in range(count))


def test_lines_that_come_while_others_are_read_follow_them(reader: Reader) -> None:
    outlet = Outlet(reader.put)
    count = 20_000
    found: list[bytes] = []
    reading = threading.Thread(target=lambda: found.append(reader.lines(count)))
    reading.start()
    for number in range(count):
        while not outlet.write(LINE % number):
            outlet.flush()
    reading.join(60)
    outlet.retire()
    assert found == [b"".join(LINE % number for number in range(count))]


def test_the_end_waits_for_who_reads_and_for_nobody_else(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    outlet = Outlet(reader.put)
    count = write_until_full(outlet)
    outlet.flush()  # and comes back
    monkeypatch.setattr(log_outlet, "LAST_LINES_S", 60.0)
    monkeypatch.setattr(log_outlet, "LAST_ROOM_S", 60.0)
    reading = threading.Thread(target=reader.lines, args=(count,))
    reading.start()
    outlet.flush()
    reading.join(60)
    assert not reading.is_alive()
    outlet.retire()


def test_others_who_write_there_may_wait_as_before(reader: Reader) -> None:
    outlet = Outlet(reader.put)
    count = write_until_full(outlet)
    assert os.get_blocking(reader.put)
    outlet.retire()
    assert os.get_blocking(reader.put)
    reader.lines(count)


def test_a_thread_and_descriptors_last_until_all_is_written(reader: Reader) -> None:
    before = len(os.listdir("/proc/self/fd"))
    outlet = Outlet(reader.put)
    count = write_until_full(outlet)
    outlet.retire()
    (thread,) = (thread for thread in threading.enumerate() if thread.name == "log")
    reader.lines(count)
    thread.join(20)
    assert not thread.is_alive()
    assert len(os.listdir("/proc/self/fd")) <= before


def test_without_a_thread_lines_wait_for_one(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot_start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    outlet = Outlet(reader.put)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", cannot_start)
        count = write_until_full(outlet)
        outlet.flush()
    found: list[bytes] = []
    reading = threading.Thread(target=lambda: found.append(reader.lines(count)))
    reading.start()
    outlet._start_thread()
    reading.join(60)
    assert found == [b"".join(LINE % number for number in range(count))]
    outlet.retire()


@pytest.mark.parametrize("lines", [1, 11_500])
def test_a_reader_that_goes_costs_its_lines_alone_and_they_are_counted(lines: int) -> None:
    get, put = os.pipe()
    outlet = Outlet(put)
    for number in range(lines):
        assert outlet.write(LINE % number)
    os.close(get)
    with pytest.raises(BrokenPipeError):
        write_forever(outlet)
    lost = outlet.take_lost_lines()
    assert lost > 10_000 if lines > 1 else lost == 0
    assert outlet.take_lost_lines() == 0
    outlet.retire()
    os.close(put)


@pytest.mark.parametrize("name", ["x.log", "/dev/null"])
def test_files_take_everything(tmp_path: Path, name: str) -> None:
    fd = os.open(tmp_path / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    outlet = Outlet(fd)
    for number in range(20_000):
        assert outlet.write(LINE % number)
    outlet.flush()
    outlet.retire()
    os.close(fd)
    if name == "x.log":
        assert (tmp_path / name).read_bytes() == b"".join(LINE % number for number in range(20_000))
