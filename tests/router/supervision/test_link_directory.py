"""A broker goes on though somebody removes its directory, or what is in it, and says what it has made again."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.router.routers import DEADLINE_S, Router, wait_until

LINKS = "[0-9]*.*.sock"


@pytest.fixture(params=["one directory for all", "link_dir"])
def router(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Router]:
    """Three real shards."""
    with tempfile.TemporaryDirectory(prefix="gnat-", dir="/tmp") as links:
        sharding = {"link_dir": f"{links}/links"} if request.param == "link_dir" else {}
        with Router(tmp_path, 3, is_real=True, sharding=sharding) as router:
            router.links = Path(links, "links") if sharding else router.runtime / "gnatswarm"  # type: ignore[attr-defined]
            yield router.wait_ready()


def directories(router: Router) -> list[Path]:
    """The directory of the operator socket, and the directory of the link sockets."""
    bases = {router.runtime / "gnatswarm", router.links}  # type: ignore[attr-defined]
    return [path for base in sorted(bases) for path in base.glob(f"{router.process.pid}-*")]


def link_names(router: Router) -> list[str]:
    return sorted(path.name for one in directories(router) for path in one.glob(LINKS))


def rows(router: Router) -> list[dict[str, Any]]:
    return list(router.status()["shards"])


def kill_and_wait_back(router: Router, shard: int) -> None:
    """SIGKILL to that shard; its successor is linked to all and serves."""
    os.kill(rows(router)[shard]["pid"], signal.SIGKILL)

    def is_back() -> bool:
        row = rows(router)[shard]
        return bool(row["starts"] > 1 and row["phase"] == "ready" and row["links"] == 2)

    wait_until(is_back, f"shard {shard} is back and linked")
    assert [row["phase"] for row in rows(router)] == ["ready"] * 3
    assert [row["starts"] for row in rows(router)] == [1 + (row["shard"] == shard) for row in rows(router)]


def test_the_next_start_spares_a_broker_whose_file_is_gone(router: Router, tmp_path: Path) -> None:
    stopped = router.router_pid()
    os.kill(stopped, signal.SIGSTOP)  # it cannot make it again before the other one looks
    for directory in directories(router):
        (directory / "router.json").unlink()
    links = link_names(router)
    with Router(tmp_path, 1, is_real=True) as other:
        other.wait_ready()
    assert link_names(router) == links
    os.kill(stopped, signal.SIGCONT)
    for directory in directories(router):
        router.wait_log(
            rf"\[WRN\] Somebody removed {directory}/router\.json, which this broker needs; it is made again"
        )
    kill_and_wait_back(router, 0)
    assert router.operator("status").returncode == 0


def test_a_shard_comes_back_though_the_sockets_of_its_siblings_are_gone(router: Router) -> None:
    links = link_names(router)
    assert len(links) == 3
    for directory in directories(router):
        for path in directory.glob(LINKS):
            path.unlink()
    kill_and_wait_back(router, 2)  # it dials both
    router.wait_log(r"\[WRN\] shard 0 - somebody removed the link socket .*/0\.[0-9a-f]+\.sock; it is made again")
    assert len(set(link_names(router)) & set(links)) == 2
    assert len(link_names(router)) == 3


@pytest.mark.parametrize("what", ["directory", "base"])
def test_a_directory_that_is_removed_is_made_again(router: Router, what: str) -> None:
    paths = directories(router)
    for path in paths:
        shutil.rmtree(path if what == "directory" else path.parent)
    for path in paths:
        router.wait_log(rf"\[WRN\] Somebody removed {path}, which this broker needs; it is made again")
    assert directories(router) == paths
    wait_until(lambda: len(link_names(router)) == 3, "every shard listens again")
    assert router.operator("status").returncode == 0
    kill_and_wait_back(router, 1)
    router.kill()
    wait_until(lambda: not directories(router), "nothing is left")


def test_a_shard_that_is_killed_without_a_directory_comes_back_at_once(router: Router) -> None:
    pid = rows(router)[1]["pid"]
    for path in directories(router):
        shutil.rmtree(path)
    os.kill(pid, signal.SIGKILL)
    router.wait_log(r"\[WRN\] Somebody removed")
    wait_until(lambda: len(link_names(router)) == 3, "every shard listens again")
    wait_until(lambda: [row["phase"] for row in rows(router)] == ["ready"] * 3, "every shard serves")
    assert [row["starts"] for row in rows(router)] == [1, 2, 1]


def test_the_operators_socket_is_made_again(router: Router) -> None:
    (path,) = (router.runtime / "gnatswarm").glob(f"{router.process.pid}-*/operator.sock")
    path.unlink()
    assert router.operator("status").returncode == 0  # waits for it
    router.wait_log(rf"\[WRN\] Somebody removed the operators' socket {path}; it is made again")
    assert [row["phase"] for row in rows(router)] == ["ready"] * 3


def test_another_users_directory_of_our_name_stops_no_start_and_hides_nobody(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make another user's directory")
    with tempfile.TemporaryDirectory(prefix="gnat-", dir="/tmp") as parent:
        name = Path(parent, f"gnatswarm-{os.geteuid()}")
        name.mkdir(mode=0o755)
        os.chown(name, 65534, 65534)
        with Router(tmp_path, 1, environment={"XDG_RUNTIME_DIR": "", "TMPDIR": parent}) as router:
            router.wait_ready()
            done = router.operator("status")
            assert (done.returncode, done.stderr) == (0, "")
            router.process.send_signal(signal.SIGINT)
            assert router.process.wait(DEADLINE_S) == 0


def test_a_socket_for_moves_that_is_removed_alone_is_made_again(router: Router) -> None:
    for directory in directories(router):
        for path in directory.glob("*.mv"):
            path.unlink()
    router.wait_log(r"\[WRN\] shard 2 - somebody removed the socket for moving clients .*/2\.[0-9a-f]+\.mv")
    scaled = router.operator("scale", "1")
    assert scaled.returncode == 0, scaled.stderr
