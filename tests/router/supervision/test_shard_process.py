"""A process that gets no Boot is no shard's: it is ended, and the next one's pid is not mistaken for its own.

And whether one computes is seen from outside.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from gnatswarm.broker.options import Options
from gnatswarm.router.supervision.shard_process import ShardProcess
from gnatswarm.shards.boundary import control
from tests.shards.boundary.test_control import BOOT
from tests.support.servers import wait_until


class Keeper:
    """Answers requests in their order, as the keeper does."""

    def __init__(self) -> None:
        self.pids: list[int] = []
        self.last_pid = 100
        self.killed: list[int] = []

    def launch(self, shard: int, descriptors: list[int], command: Sequence[str]) -> None:
        self.last_pid += 1
        self.pids.append(self.last_pid)

    def launched(self) -> int:
        return self.pids.pop(0)

    def reach(self, pid: int, descriptor: int) -> None:
        raise AssertionError((pid, descriptor))

    def kill(self, pid: int) -> None:
        self.killed.append(pid)

    def wait_exited(self, pid: int) -> None:
        raise AssertionError(pid)


def test_one_that_cannot_be_told_its_boot_is_killed_and_the_next_one_has_its_own_pid() -> None:
    keeper = Keeper()
    too_long = msgspec.structs.replace(BOOT, options=Options(server_tags=("x" * control.MAX_FRAME_BYTES,)))
    with pytest.raises(control.ControlError):
        ShardProcess.start(too_long, keeper)
    assert keeper.killed == [101]
    process = ShardProcess.start(BOOT, keeper)
    process.meet()
    assert process.pid == 102
    process.close()


@contextmanager
def a_process(program: str) -> Iterator[tuple[ShardProcess, subprocess.Popen[str]]]:
    """A shard's, as far as it can be seen, which has begun to do this."""
    keeper = Keeper()
    process = ShardProcess.start(BOOT, keeper)
    command = [sys.executable, "-Ic", f"import threading\nprint(end='.', flush=True)\n{program}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None and running.stdout.read(1) == "."
        process.pid = running.pid
        try:
            yield process, running
        finally:
            running.kill()
    process.close()


def test_one_that_computes_is_told_from_one_that_is_stopped() -> None:
    with a_process("while True: pass") as (process, running):
        assert all(process.has_computed(7) for _ in range(10))
        running.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, running.pid, os.WSTOPPED | os.WNOWAIT)
        process.has_computed(8)  # (what it has computed for an earlier ping says nothing)
        assert not any(process.has_computed(8) for _ in range(10))
        assert not any(process.has_computed(number) for number in range(9, 19))
    assert not process.has_computed(20)  # it has ended


def test_another_thread_that_computes_is_not_taken_for_the_main_one() -> None:
    """As where a password is compared, or a file compressed."""
    program = """
def compute():
    while True: hashlib.pbkdf2_hmac('sha256', b'', b'', 100_000)  # (which lets other threads run)
import hashlib
threading.Thread(target=compute, daemon=True).start()
waits = threading.Lock()
with waits: waits.acquire()
"""
    with a_process(program) as (process, running):
        used = Path(f"/proc/{running.pid}/stat")

        def is_seen_to_rest() -> bool:
            begun, now, looks = ticks_in(used.read_text()), 0, []
            while now < begun + 5:
                looks.append(process.has_computed(1))
                now = ticks_in(used.read_text())
            return not any(looks)

        wait_until(is_seen_to_rest)  # (it imports at first)


def ticks_in(stat: str) -> int:
    """The processor time that a whole process has used."""
    return sum(map(int, stat.rpartition(")")[2].split()[11:13]))
