"""A process that gets no Boot is no shard's: it is ended, and the next one's pid is not mistaken for its own."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from gnatswarm.broker.options import Options
from gnatswarm.router.supervision.shard_process import ShardProcess
from gnatswarm.shards.boundary import control
from tests.shards.boundary.test_control import BOOT


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
