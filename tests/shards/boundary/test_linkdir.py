"""A broker's private directory is its own, vanishes with it, and is removed by the next one when it could not."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gnatswarm.shards.boundary import linkdir
from gnatswarm.shards.boundary.linkdir import LinkDirectory, LinkDirectoryError, Owner


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
        "import os, sys\nfrom gnatswarm.shards.boundary.linkdir import *\n"
        "directory = LinkDirectory(sys.argv[1], Owner(os.getpid(), 1))\n"
        "open(directory.path + '/0.aa.sock', 'w').close()\n"
        "os.kill(os.getpid(), 9)"
    )
    for _ in range(3):
        subprocess.run([sys.executable, "-P", "-c", code, base], timeout=20, check=False)
        left = [name for name in os.listdir(base) if name != ".lock"]
        assert len(left) == 1  # of the last one alone
    assert linkdir.live(base) == []
    directory = LinkDirectory(base, Owner(os.getpid(), 1))
    assert [f"{base}/{name}" for name in os.listdir(base) if name != ".lock"] == [directory.path]
    directory.remove()


def test_what_is_not_a_brokers_stays(base: str) -> None:
    """`link_dir` may be somebody's home directory, and the pid file's path a directory by mistake."""
    theirs = [".ssh/keys", "notes/0.aa.sock", "4222-backup/data", "1-01234z/data", "1-012345/data", "1-012345/0.aa.log"]
    os.mkdir(base, 0o700)
    for name in theirs:
        os.makedirs(f"{base}/{os.path.dirname(name)}", exist_ok=True)
        Path(f"{base}/{name}").touch()
    Path(f"{base}/1-012345/0.aa.sock").touch()  # of a broker that was killed
    directory = LinkDirectory(base, Owner(7, 1))
    assert not os.path.exists(f"{base}/1-012345/0.aa.sock")
    assert linkdir.live(base) == [(directory.path, Owner(7, 1))]
    for path in (f"{base}/.ssh", f"{base}/1-012345", f"{base}/notes", base):
        linkdir.remove_left(path, 7)
    linkdir.remove_left(directory.path, 8)
    assert os.path.exists(directory.path)
    linkdir.remove_left(directory.path, 7)
    assert not os.path.exists(directory.path)
    directory.remove()
    assert all(os.path.exists(f"{base}/{name}") for name in theirs)


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
    monkeypatch.setenv("TMPDIR", f"{base}/not/there")
    assert linkdir.default_base() == f"/tmp/gnatswarm-{os.geteuid()}"
    monkeypatch.setenv("XDG_RUNTIME_DIR", os.path.dirname(base))
    assert linkdir.default_base() == base


def test_no_base_no_brokers(base: str) -> None:
    assert linkdir.live(base) == []
    assert linkdir.remove_stale(base) == []


def test_a_living_router_is_spared_though_its_file_is_gone(base: str) -> None:
    directory = LinkDirectory(base, Owner(os.getpid(), 4222, "a"))
    os.unlink(f"{directory.path}/{linkdir.OWNER_FILE}")
    LinkDirectory(base, Owner(2, 4333)).remove()
    assert linkdir.live(base) == [(directory.path, Owner(os.getpid(), 0))]
    directory.remove()


def test_what_is_removed_is_made_again(base: str) -> None:
    directory = LinkDirectory(base, Owner(os.getpid(), 4222, "a"))
    owner_path = f"{directory.path}/{linkdir.OWNER_FILE}"
    assert directory.mend() == []
    os.unlink(owner_path)
    assert directory.mend() == [owner_path]
    for removed in (directory.path, base):
        shutil.rmtree(removed)
        assert directory.mend() == [directory.path]
        assert os.stat(base).st_mode & 0o777 == os.stat(directory.path).st_mode & 0o777 == 0o700
    assert directory.mend() == []
    LinkDirectory(base, Owner(2, 4333)).remove()
    assert linkdir.live(base) == [(directory.path, Owner(os.getpid(), 4222, "a"))]
    directory.remove()
    assert linkdir.live(base) == []


def test_what_cannot_be_made_again_is_said_and_tried_again(base: str) -> None:
    directory = LinkDirectory(base, Owner(os.getpid(), 4222))
    shutil.rmtree(base)
    os.mkdir(base, 0o700)
    os.chmod(base, 0o777)  # as somebody else's, made in the meantime
    with pytest.raises(LinkDirectoryError, match="mode 0700"):
        directory.mend()
    os.chmod(base, 0o700)
    assert directory.mend() == [directory.path]
    directory.remove()


@pytest.mark.parametrize("room", [0, 10])
def test_an_owner_file_that_could_not_be_written_is_written_when_it_can_be(
    base: str, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = Owner(os.getpid(), 4222)
    directory = LinkDirectory(base, owner)
    shutil.rmtree(directory.path)
    write = os.write

    def on_a_full_disk(fd: int, content: bytes) -> int:
        if not room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(fd, content[:room])

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", on_a_full_disk)
        for _ in range(3):
            with pytest.raises(LinkDirectoryError, match="No space left"):
                directory.mend()
            assert linkdir.live(base) == [(directory.path, Owner(os.getpid(), 0))]
    assert directory.mend() == [f"{directory.path}/{linkdir.OWNER_FILE}"]
    assert linkdir.live(base) == [(directory.path, owner)]
    assert directory.mend() == []
    directory.remove()


def test_cleaners_that_honour_locks_pass_over_base_and_directory(base: str) -> None:
    first, second = [LinkDirectory(base, Owner(number, 4222)) for number in (1, 2)]
    for path in (base, first.path, second.path):
        fd = os.open(path, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # as systemd-tmpfiles does
        os.close(fd)
    first.remove()
    second.remove()


def test_cleaners_that_go_by_times_find_fresh_ones(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = LinkDirectory(base, Owner(os.getpid(), 4222))
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(f"{directory.path}/0.aa.sock")
    everything = [base, f"{base}/.lock", directory.path, *(f"{directory.path}/{name}" for name in directory.names())]
    for path in everything:
        os.utime(path, (0, 0))
    directory.mend()
    assert {os.stat(path).st_mtime for path in everything} == {0.0}
    monkeypatch.setattr(linkdir, "TOUCH_EVERY_S", 0.0)
    directory.mend()
    assert min(min(os.stat(path).st_mtime, os.stat(path).st_atime) for path in everything) > 0
    directory.remove()


def test_nothing_stays_open(base: str) -> None:
    before = os.listdir("/proc/self/fd")
    directory = LinkDirectory(base, Owner(os.getpid(), 4222))
    shutil.rmtree(base)
    directory.mend()
    directory.remove()
    os.chmod(base, 0o770)
    with pytest.raises(LinkDirectoryError):
        LinkDirectory(base, Owner(os.getpid(), 4222))
    assert os.listdir("/proc/self/fd") == before


@pytest.fixture
def taken_name(base: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A directory for temporary files in which another user has a directory of the name that ours would have."""
    if os.geteuid() != 0:
        pytest.skip("only root can make another user's directory")
    parent = os.path.dirname(base)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("TMPDIR", parent)
    name = f"{parent}/gnatswarm-{os.geteuid()}"
    os.mkdir(name, 0o755)
    os.chown(name, 65534, 65534)
    return name


def test_a_name_that_another_user_has_taken_does_not_stop_us(taken_name: str) -> None:
    assert linkdir.default_base().startswith(f"{taken_name}-")
    first = LinkDirectory(linkdir.default_base(), Owner(os.getpid(), 4222))
    base = os.path.dirname(first.path)
    assert linkdir.default_base() == base  # the next one finds the first
    assert first.path in {path for one in linkdir.bases() for path, _owner in linkdir.live(one)}
    os.rmdir(taken_name)
    assert linkdir.default_base() == taken_name
    assert linkdir.bases() == [taken_name, base]  # who was there before is found all the same
    first.remove()


def test_another_users_directory_of_a_random_name_is_none_of_ours(taken_name: str) -> None:
    theirs = f"{taken_name}-abcdef"
    os.mkdir(theirs, 0o700)
    os.chown(theirs, 65534, 65534)
    assert theirs not in linkdir.bases()
    assert linkdir.default_base() != theirs
    with pytest.raises(LinkDirectoryError, match="It is user 65534's: choose another link_dir, or set XDG_RUNTIME_DIR"):
        LinkDirectory(theirs, Owner(os.getpid(), 4222))


def test_a_path_that_is_no_utf8_is_refused_with_the_reason(base: str) -> None:
    with pytest.raises(LinkDirectoryError, match=r"is no UTF-8.*choose another XDG_RUNTIME_DIR or link_dir"):
        LinkDirectory(base + "\udcff", Owner(1, 1))
    LinkDirectory(base + "é", Owner(os.getpid(), 1)).remove()
