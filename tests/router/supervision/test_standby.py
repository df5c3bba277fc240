"""A gateway's process stands by until it is wanted; one that cannot be used is killed, and none outlives the router."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Sequence

import msgspec
import pytest

from gnatswarm.router.supervision.standby import Readiness, Standby
from gnatswarm.shards.boundary import control
from gnatswarm.shards.boundary.control import Channel, ControlMessage, ServerPort, ToShard
from tests.shards.boundary.test_control import BOOT as SOME_BOOT

BOOT = msgspec.structs.replace(SOME_BOOT, shard=63, boot_id="0011", listener_fds=[], websocket_fds=[], is_gateway=True)
COMMAND = ["/new/gnatswarm", "_shard"]


class Keeper:
    """Launches processes, of which it has the other ends."""

    def __init__(self) -> None:
        self.ends: list[socket.socket] = []
        self.descriptors: list[list[int]] = []
        self.killed: list[int] = []
        self.reaped: list[int] = []
        self.errno = 0

    def launch(self, shard: int, descriptors: list[int], command: Sequence[str]) -> None:
        assert shard == 63 and command == COMMAND
        self.ends.append(socket.socket(fileno=os.dup(descriptors[0])))
        self.descriptors.append(descriptors[1:])

    def launched(self) -> int:
        if self.errno:
            raise OSError(self.errno, os.strerror(self.errno))
        return 100 + len(self.ends)

    def reach(self, pid: int, descriptor: int) -> None:
        raise AssertionError((pid, descriptor))

    def kill(self, pid: int) -> None:
        self.killed.append(pid)

    def wait_exited(self, pid: int) -> None:
        assert pid in self.killed
        self.reaped.append(pid)


class Scene:
    def __init__(self) -> None:
        self.keeper = Keeper()
        self.heard: asyncio.Queue[ControlMessage] = asyncio.Queue()
        self.standby = Standby(
            self.keeper, lambda process, message: self.heard.put_nowait(message), lambda process, error: None
        )

    def is_now(self, readiness: Readiness) -> bool:
        return self.standby.readiness is readiness

    async def wakes(self) -> None:
        self.keeper.ends[-1].sendall(control.encode(control.Awake()) + control.encode(control.Ready()))
        assert await self.heard.get() == control.Ready()  # the first word is not for others


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    one = Scene()
    yield one
    one.standby.close()
    for end in one.keeper.ends:
        end.close()


async def test_it_is_waited_for_and_then_gets_its_boot(scene: Scene) -> None:
    standby = scene.standby
    assert scene.is_now(Readiness.NONE) and standby.boot_id == ""
    standby.launch(BOOT, COMMAND)
    assert scene.is_now(Readiness.PENDING) and standby.boot_id == "0011"
    assert scene.keeper.descriptors == [[8, 9]]
    await scene.wakes()
    assert scene.is_now(Readiness.READY)
    later = msgspec.structs.replace(BOOT, generation=7)
    process = standby.take(later, COMMAND)
    assert process is not None and (process.pid, process.is_open) == (101, True)
    assert standby.boot_id == "" and standby.take(later, COMMAND) is None
    booted: asyncio.Future[ControlMessage] = asyncio.get_running_loop().create_future()
    there = Channel(scene.keeper.ends[0], ToShard, booted.set_result, lambda error: None)
    assert await booted == later
    there.close_silently()
    process.close()
    assert not scene.keeper.killed


@pytest.mark.parametrize("what", ["a port", "the program", "the page", "the process", "nothing: it hangs"])
async def test_what_cannot_be_used_is_killed(scene: Scene, what: str) -> None:
    scene.standby.launch(BOOT, COMMAND)
    if what != "nothing: it hangs":
        await scene.wakes()
    boot, command = BOOT, COMMAND
    match what:
        case "nothing: it hangs":
            pass
        case "a port":
            boot = msgspec.structs.replace(BOOT, server_ports={"cluster": ServerPort(11, "127.0.0.1", 6222)})
        case "the program":
            command = []
        case "the page":
            boot = msgspec.structs.replace(BOOT, page_fd=7)
        case _:
            boot = msgspec.structs.replace(BOOT, boot_id="0022")
    assert scene.standby.take(boot, command) is None
    assert scene.keeper.killed == [101] and scene.standby.boot_id == ""


async def test_one_that_dies_is_forgotten(scene: Scene) -> None:
    scene.standby.launch(BOOT, COMMAND)
    scene.standby.on_exited(100)  # somebody else
    assert scene.is_now(Readiness.PENDING)
    scene.standby.on_exited(101)
    assert scene.is_now(Readiness.NONE) and scene.standby.take(BOOT, COMMAND) is None
    assert not scene.keeper.killed


async def test_the_next_one_replaces_it_and_the_last_is_waited_for(scene: Scene) -> None:
    scene.standby.launch(BOOT, COMMAND)
    scene.standby.launch(msgspec.structs.replace(BOOT, boot_id="0022"), COMMAND)
    assert scene.keeper.killed == [101] and scene.standby.boot_id == "0022"
    scene.standby.close()
    assert scene.keeper.killed == [101, 102] and scene.keeper.reaped == [102]


async def test_where_none_can_be_started_there_is_none(scene: Scene) -> None:
    scene.keeper.errno = 11
    scene.standby.launch(BOOT, COMMAND)
    assert scene.is_now(Readiness.NONE) and scene.standby.take(BOOT, COMMAND) is None
