"""Shards forked by the zygote are the router's own children, and nothing depends on the zygote's life."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from gnatswarm.router.supervision.zygote import ZygoteClient, ZygoteGone
from gnatswarm.shards import zygote as shard_side
from tests.router.routers import Router, pause, wait_until
from tests.support.servers import wait_pids_gone


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def children_of(pid: int) -> dict[int, str]:
    """The name of a process, by its pid."""
    found = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                if parent_of(int(entry.name)) == pid:
                    found[int(entry.name)] = Path(entry.path, "comm").read_text().strip()
            except OSError:
                continue
    return found


def sockets_of(pid: int) -> set[str]:
    """The kernel's names of the sockets it holds."""
    found = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            found.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    return {name for name in found if name.startswith("socket:")}


def shard_pids(router: Router) -> list[int]:
    return [row["pid"] for row in router.status()["shards"]]


def zygote_of(router: Router) -> int:
    return next(pid for pid, name in children_of(router.process.pid).items() if name == "gnat-zygote")


def info_from(port: int) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        return client.recv(4096)


def test_shards_are_the_routers_children_and_hold_what_they_were_given(tmp_path: Path) -> None:
    with Router(tmp_path, 2, is_real=True) as router:
        router.wait_ready()
        pids = shard_pids(router)
        assert set(children_of(router.process.pid)) == {*pids, zygote_of(router)}
        assert info_from(router.port).startswith(b"INFO ")
        of_router = sockets_of(router.process.pid)
        listeners = [sockets_of(pid) & of_router for pid in pids]
        # Each holds its own listener, and not its sibling's.
        assert len(listeners[0]) == len(listeners[1]) == 1
        assert listeners[0] != listeners[1]


def test_a_killed_shard_is_forked_again(tmp_path: Path) -> None:
    with Router(tmp_path, 1, is_real=True) as router:
        router.wait_ready()
        (old,) = shard_pids(router)
        os.kill(old, signal.SIGKILL)
        router.wait_log(r"Shard 0 died: killed by SIGKILL; starting it again")
        wait_until(lambda: router.status()["shards"][0]["phase"] == "ready", "it is back")
        (new,) = shard_pids(router)
        assert new != old
        assert parent_of(new) == router.process.pid
        assert info_from(router.port).startswith(b"INFO ")


def test_without_the_zygote_shards_start_by_exec(tmp_path: Path) -> None:
    with Router(tmp_path, 1, is_real=True) as router:
        router.wait_ready()
        os.kill(zygote_of(router), signal.SIGKILL)
        assert info_from(router.port).startswith(b"INFO ")
        os.kill(shard_pids(router)[0], signal.SIGKILL)
        router.wait_log("starting them by exec")
        wait_until(lambda: router.status()["shards"][0]["phase"] == "ready", "it is back")
        assert b"shards\0--control-fd" in Path(f"/proc/{shard_pids(router)[0]}/cmdline").read_bytes()
        assert info_from(router.port).startswith(b"INFO ")


def test_a_killed_router_takes_all_with_it(tmp_path: Path) -> None:
    router = Router(tmp_path, 3, is_real=True)
    router.wait_ready()
    below = list(children_of(router.process.pid))
    assert len(below) == 4
    router.kill()
    assert wait_pids_gone(below, 5.0) == []
    assert router.leftovers() == []


def test_a_router_killed_at_any_moment_of_its_start_leaves_nobody(tmp_path: Path) -> None:
    for delay_ms in range(0, 240, 20):
        router = Router(tmp_path, 2, is_real=True)
        pause(delay_ms / 1000)  # the moment of death is the test's input
        session = router.process.pid
        router.kill()
        wait_until(partial(_is_empty, session), "nobody is left", 5.0)
        assert router.leftovers() == [], f"killed after {delay_ms} ms"


def _is_empty(session: int) -> bool:
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                fields = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == session and fields[0] not in "ZX":
                return False
    return True


def test_many_shards_start_at_once(tmp_path: Path) -> None:
    with Router(tmp_path, 64, is_real=True) as router:
        router.wait_log("Server is ready", 30.0)
        assert len(set(shard_pids(router))) == 64
        assert info_from(router.port).startswith(b"INFO ")


def test_a_zygote_that_is_told_to_stop_leaves_that_to_the_router(tmp_path: Path) -> None:
    with Router(tmp_path, 1, is_real=True) as router:
        router.wait_ready()
        os.kill(zygote_of(router), signal.SIGTERM)
        assert "2 shards" in router.operator("scale", "2").stdout
        assert len(router.leftovers()) == 1
        assert "starting them by exec" not in router.log.text


def test_a_zygote_that_is_told_to_stop_while_it_imports_goes_on() -> None:
    zygote = ZygoteClient()
    os.kill(zygote.pid, signal.SIGTERM)
    ours, theirs = socket.socketpair()
    with ours, theirs:  # closed, they end the shard
        zygote.request([theirs.fileno()])
        assert zygote.answer() > 0
    zygote.close()


def test_a_zygote_that_died_says_so() -> None:
    zygote = ZygoteClient()
    os.kill(zygote.pid, signal.SIGKILL)
    with pytest.raises(ZygoteGone):
        zygote.answer()
    with pytest.raises(ZygoteGone):
        zygote.request([0])
    zygote.close()


def test_descriptors_get_their_numbers_even_where_those_are_in_use() -> None:
    code = (
        "import os\nfrom gnatswarm.shards.zygote import place_descriptors\n"
        "a, b, c = os.memfd_create('a'), os.memfd_create('b'), os.memfd_create('c')\n"
        "place_descriptors([a, b, c], [b, c, 77])\n"
        "print([os.readlink(f'/proc/self/fd/{n}').split(' ')[0] for n in (b, c, 77)])\n"
        "print(os.path.exists(f'/proc/self/fd/{a}'))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout == "['/memfd:a', '/memfd:b', '/memfd:c']\nFalse\n"


def test_both_ends_agree_on_their_packets() -> None:
    from gnatswarm.router.supervision import zygote as router_side

    assert router_side._REQUEST.format == shard_side.REQUEST.format
    assert router_side._ANSWER.format == shard_side.ANSWER.format


def test_a_router_that_ends_with_an_answer_unread_is_gone_and_nothing_worse() -> None:
    """As when a start fails after the first fork: the kernel then reports that the connection was reset."""
    routers_end, zygotes_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    zygote = shard_side.Zygote(zygotes_end.detach(), os.getpid())
    shard_side._answer(zygote.sock, 1)
    routers_end.close()
    assert not zygote.read()
    shard_side._answer(zygote.sock, 2)
    zygote.sock.close()
