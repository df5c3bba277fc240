"""The files that tell scripts about a running broker: they appear whole, and are gone at the end."""

from __future__ import annotations

import json
import os
import pathlib
import stat

import pytest

from gnatswarm.router.supervision import portsfile
from gnatswarm.router.supervision.portsfile import Listening, TemporaryFile
from gnatswarm.shards.boundary import linkdir


def test_the_ports_file_is_the_real_servers(tmp_path: pathlib.Path) -> None:
    written = portsfile.write_ports_file(
        str(tmp_path), "nats-server", nats=Listening("127.0.0.1", 4222), monitoring=Listening("::1", 8222)
    )
    path = tmp_path / f"nats-server_{os.getpid()}.ports"
    assert path.read_text() == '{"nats":["nats://127.0.0.1:4222"],"monitoring":["http://[::1]:8222"]}'
    assert list(tmp_path.iterdir()) == [path]
    written.remove()
    assert list(tmp_path.iterdir()) == []
    written.remove()


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::"])
def test_a_wildcard_listener_has_a_url_for_every_address_loopback_first(host: str) -> None:
    urls = json.loads(portsfile.ports_text(nats=Listening(host, 5)))["nats"]
    assert urls[0] == "nats://127.0.0.1:5"
    assert len(set(urls)) == len(urls)


def test_a_name_is_resolved_and_an_unknown_one_kept() -> None:
    assert portsfile.urls("nats", Listening("localhost", 5)) == ["nats://127.0.0.1:5"]
    assert portsfile.urls("nats", Listening("no.such.host.invalid", 5)) == ["nats://no.such.host.invalid:5"]


def test_the_pid_file_holds_the_number_alone(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x.pid"
    path.write_text("stale text of a longer pid file")
    written = portsfile.write_pid_file(str(path))
    assert path.read_text() == str(os.getpid())
    written.remove()
    assert not path.exists()


def test_a_link_at_the_place_of_the_draft_is_not_written(tmp_path: pathlib.Path) -> None:
    """The pid file may be in a directory of all users, and our process id is no secret."""
    theirs, path = tmp_path / "theirs", tmp_path / "x.pid"
    theirs.write_text("of value")
    (tmp_path / f"x.pid.{os.getpid()}.tmp").symlink_to(theirs)
    written = portsfile.write_pid_file(str(path), 5)
    assert theirs.read_text() == "of value" and path.read_text() == "5"
    written.remove()
    assert [one.name for one in tmp_path.iterdir()] == ["theirs"]


def test_a_successors_file_is_left_alone(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x.pid"
    mine = portsfile.write_pid_file(str(path), 1)
    portsfile.write_pid_file(str(path), 2)
    mine.remove()
    assert path.read_text() == "2"


def test_a_directory_that_is_none_is_an_error_that_leaves_nothing(tmp_path: pathlib.Path) -> None:
    with pytest.raises(FileNotFoundError):
        portsfile.write_pid_file(str(tmp_path / "no" / "x.pid"))
    (tmp_path / "dir").mkdir()
    with pytest.raises(OSError, match="dir"):
        portsfile.write_pid_file(str(tmp_path / "dir"))
    assert [path.name for path in tmp_path.iterdir()] == ["dir"]


def test_what_is_no_file_is_written_and_stays(tmp_path: pathlib.Path) -> None:
    """As root /dev/null, or a link such as /dev/stdout, was replaced by a file, which was removed at the end."""
    pipe, link, target = tmp_path / "pipe", tmp_path / "link", tmp_path / "target"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="No such device"):  # nobody reads it
        portsfile.write_pid_file(str(pipe), 5)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    link.symlink_to(target)
    for path in (pipe, link):
        written = portsfile.write_pid_file(str(path), 5)
        assert TemporaryFile.taken_over(str(path), "5") is None
        written.remove()
        linkdir.remove_left(str(path), 5)
    assert os.read(reader, 100) == b"5"
    os.close(reader)
    assert target.read_text() == "5" and stat.S_ISFIFO(pipe.lstat().st_mode) and link.is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "pipe", "target"]


def test_a_file_of_ours_in_a_directory_of_others_is_written_in_place(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.pid"
    path.write_text("")
    really_open = os.open

    def open_existing_only(name: str, flags: int, *rest: int) -> int:
        if not os.path.exists(name):
            raise PermissionError(13, "Permission denied", name)
        return really_open(name, flags, *rest)

    monkeypatch.setattr(os, "open", open_existing_only)
    portsfile.write_pid_file(str(path), 5)
    assert path.read_text() == "5"
