"""A broker's private directory is its own, vanishes with it, and is removed by the next one when it could not."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from shards import linkdir
from shards.linkdir import LinkDirectory, LinkDirectoryError, Owner

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def base() -> Iterator[str]:
    directory = tempfile.mkdtemp(prefix="gnat-", dir="/tmp")
    yield f"{directory}/gnatswarm"
    shutil.rmtree(directory)


def test_it_is_private_and_goes_whole(base: str) -> None:
    directory = LinkDirectory(base, Owner(os.getpid(), 4222))
    assert os.stat(base).st_mode & 0o777 == os.stat(directory.path).st_mode & 0o777 == 0o700
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(directory.path + linkdir.LONGEST_NAME)
    directory.remove()
    assert [name for name in os.listdir(base) if name != ".lock"] == []
    linkdir.remove(directory.path)


def test_living_routers_are_found_and_spared(base: str) -> None:
    first = LinkDirectory(base, Owner(1, 4222, "a"))
    second = LinkDirectory(base, Owner(2, 4333, "b"))
    found = {owner.pid: owner for _path, owner in linkdir.live(base)}
    assert found == {1: Owner(1, 4222, "a"), 2: Owner(2, 4333, "b")}
    assert linkdir.remove_stale(base) == []
    first.remove()
    assert [owner.pid for _path, owner in linkdir.live(base)] == [2]
    second.remove()


def test_what_a_killed_router_left_is_removed_by_the_next(base: str) -> None:
    code = (
        "import os, sys\nfrom shards.linkdir import *\n"
        "directory = LinkDirectory(sys.argv[1], Owner(os.getpid(), 1))\n"
        "open(directory.path + '/0.aa.sock', 'w').close()\n"
        "os.kill(os.getpid(), 9)"
    )
    for _ in range(3):
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        subprocess.run([sys.executable, "-P", "-c", code, base], env=environment, timeout=20, check=False)
        left = [name for name in os.listdir(base) if name != ".lock"]
        assert len(left) == 1  # of the last one alone
    assert linkdir.live(base) == []
    directory = LinkDirectory(base, Owner(os.getpid(), 1))
    assert [f"{base}/{name}" for name in os.listdir(base) if name != ".lock"] == [directory.path]
    directory.remove()


def test_a_base_that_others_can_write_to_is_refused(base: str) -> None:
    os.mkdir(base, 0o700)
    os.chmod(base, 0o770)
    with pytest.raises(LinkDirectoryError, match="mode 0700"):
        LinkDirectory(base, Owner(1, 1))
    os.rmdir(base)
    os.symlink("/tmp", base)
    with pytest.raises(LinkDirectoryError, match="mode 0700"):
        LinkDirectory(base, Owner(1, 1))
    os.unlink(base)
    Path(base).touch()
    with pytest.raises(LinkDirectoryError, match="mode 0700"):
        LinkDirectory(base, Owner(1, 1))


def test_a_base_too_long_for_unix_sockets_is_refused_or_passed_over(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    long = base + "x" * 60
    with pytest.raises(LinkDirectoryError, match="too long for Unix sockets"):
        LinkDirectory(long, Owner(1, 1))
    os.makedirs(long)
    monkeypatch.setenv("XDG_RUNTIME_DIR", long)
    monkeypatch.setenv("TMPDIR", long)
    assert linkdir.default_base() == f"/tmp/gnatswarm-{os.geteuid()}"
    monkeypatch.setenv("TMPDIR", os.path.dirname(base))
    assert linkdir.default_base() == f"{os.path.dirname(base)}/gnatswarm-{os.geteuid()}"
    monkeypatch.setenv("XDG_RUNTIME_DIR", os.path.dirname(base))
    assert linkdir.default_base() == base


def test_no_base_no_brokers(base: str) -> None:
    assert linkdir.live(base) == []
    assert linkdir.remove_stale(base) == []
