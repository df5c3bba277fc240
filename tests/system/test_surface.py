"""Everything of a running broker that others can reach, read off the kernel: SECURITY.md says no less and no more.

Listening sockets and open files are found by /proc of each process, so a socket or a file that is added to the broker
fails here until it is listed with who may reach it.
"""

from __future__ import annotations

import os
import re
import stat
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.servers import HOST, Broker, session_pids, wait_until

ROOT = Path(__file__).resolve().parents[2]
SECRET = "s3cret-of-this-test"
# As listed in SECURITY.md: mode of each file that a broker makes, by what its path ends in.
MODES = {
    r"\.log$": 0o640,
    r"\.pid$": 0o644,
    r"\.ports$": 0o644,
    r"\.gss(\.part)?$|/stats/": 0o600,
    r"/router\.json$": 0o600,
    r"/\.lock$": 0o600,
    r"\.(sock|mv)$": 0o600,
}

pytestmark = pytest.mark.kinds("gnatswarm-2")


def socket_inodes(pid: int) -> set[int]:
    """The sockets that a process has open."""
    found = set()
    for entry in os.scandir(f"/proc/{pid}/fd"):
        try:
            match = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(entry.path))
        except FileNotFoundError:
            continue  # closed meanwhile
        if match:
            found.add(int(match[1]))
    return found


def listening_tcp(inodes: set[int]) -> set[tuple[str, int]]:
    """(address, port) of those of these sockets that listen on TCP."""
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            address, _, port = words[1].rpartition(":")
            if words[3] == "0A" and int(words[9]) in inodes:
                text = (
                    ".".join(str(byte) for byte in reversed(bytes.fromhex(address))) if len(address) == 8 else address
                )
                found.add((text, int(port, 16)))
    return found


def listening_unix(inodes: set[int]) -> set[str]:
    """Names of those of these sockets that listen on a Unix socket; an abstract name begins with @."""
    found = set()
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        words = line.split()
        accepts = int(words[3], 16) & 0x10000
        if accepts and int(words[6]) in inodes:
            found.add(words[7] if len(words) > 7 else "")
    return found


def sockets(broker: Broker) -> set[int]:
    return set().union(*(socket_inodes(pid) for pid in session_pids(broker.pid)))


def mode(path: str | os.PathLike[str]) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode)


def expected_mode(path: str) -> int:
    found = [wanted for pattern, wanted in MODES.items() if re.search(pattern, path)]
    assert len(found) == 1, f"{path}: not in SECURITY.md"
    return found[0]


@pytest.fixture
def runtime() -> Iterator[Path]:
    """The user's runtime directory; its path is short enough for Unix sockets."""
    with tempfile.TemporaryDirectory(prefix="gn-") as directory:
        yield Path(directory)


@pytest.fixture
def everything(runtime: Path, start_broker: Callable[..., Broker], tmp_path: Path) -> Broker:
    """A broker with every port, file and secret."""
    (tmp_path / "ports").mkdir()
    return start_broker(
        config=f"""
        http: "{HOST}:-1"
        http_user: "watch", http_password: "{SECRET}-pages"
        websocket {{ host: "{HOST}", port: -1, no_tls: true }}
        authorization {{ users: [ {{ user: app, password: "{SECRET}-app" }} ] }}
        cluster {{ name: surface, listen: "{HOST}:-1", authorization {{ user: r, password: "{SECRET}-routes" }} }}
        leafnodes {{ listen: "{HOST}:-1", authorization {{ user: l, password: "{SECRET}-leaf" }} }}
        pid_file: "{tmp_path}/broker.pid"
        ports_file_dir: "{tmp_path}/ports"
        stats {{ dir: "{tmp_path}/stats", window: "200ms" }}
        """,
        environment={"XDG_RUNTIME_DIR": str(runtime)},
    )


def test_it_listens_where_the_configuration_says_and_nowhere_else(everything):
    tcp = listening_tcp(sockets(everything))
    log = everything.log.text
    named = {everything.port} | {
        int(port) for port in re.findall(r"(?:monitor|websocket clients|\w+ connections) on\D+[\d.]+:(\d+)", log)
    }
    assert len(named) == 5, log
    assert tcp == {(HOST, port) for port in named}


def test_its_unix_sockets_are_in_a_directory_of_its_user_alone(everything, runtime):
    # The operators', and of each shard and the gateway, which starts last, that for links and that for what moves.
    wait_until(lambda: len(listening_unix(sockets(everything))) == 7)
    for path in listening_unix(sockets(everything)):
        assert path.startswith(str(runtime)), path
        assert mode(Path(path).parent) == 0o700
        assert os.stat(path).st_uid == os.geteuid()


def test_its_files_have_the_modes_that_are_listed(everything, tmp_path, runtime):
    wait_until(lambda: any(path.is_file() for path in tmp_path.glob("stats/**/*")))
    made = [str(path) for top in (tmp_path, runtime) for path in top.rglob("*") if not path.is_dir()]
    assert len(made) >= 8
    for path in made:
        if Path(path).exists():  # a window that was finished has another name by now
            assert mode(path) == expected_mode(path), path
    for directory in (tmp_path / "stats").rglob("*"):
        assert not directory.is_dir() or mode(directory) == 0o700


def test_nothing_else_of_it_is_open_for_writing(everything, tmp_path, runtime):
    for pid in session_pids(everything.pid):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            try:
                target = os.readlink(entry.path)
                flags = re.search(r"flags:\s+(\d+)", Path(f"/proc/{pid}/fdinfo/{entry.name}").read_text())
            except FileNotFoundError:
                continue
            assert flags is not None
            is_written = int(flags[1], 8) & os.O_ACCMODE != os.O_RDONLY
            is_device = target.startswith("/dev/") and not target.startswith("/dev/shm/")
            is_file = target.startswith("/") and not (is_device or target.startswith("/memfd:"))
            assert not (is_written and is_file) or target.startswith((str(tmp_path), str(runtime))), f"{pid}: {target}"


def test_no_secret_is_in_a_log_a_page_or_a_command_line(everything):
    for pid in session_pids(everything.pid):
        assert SECRET not in Path(f"/proc/{pid}/cmdline").read_text()
        assert SECRET not in Path(f"/proc/{pid}/environ").read_text()
    (url,) = re.findall(r"monitor on (\S+)", everything.log.text)
    base = url if url.startswith("http") else f"http://{url}"
    passwords = urllib.request.HTTPPasswordMgrWithDefaultRealm()
    passwords.add_password(None, base, "watch", f"{SECRET}-pages")
    opener = urllib.request.build_opener(urllib.request.HTTPBasicAuthHandler(passwords))
    for page in ("varz", "connz?auth=1&subs=detail", "accountz", "shardz", "metrics", "routez", "leafz"):
        with opener.open(f"{base}/{page}", timeout=30) as answer:
            assert SECRET not in answer.read().decode()
    assert SECRET not in everything.log.text


def test_without_options_pages_are_on_loopback_and_clients_are_not(start_broker):
    broker = start_broker(args=["-m", "-1", "--no-stats"])
    assert {address for address, _ in listening_tcp(sockets(broker))} == {HOST}  # (the tests give -a for clients)


def test_every_test_that_security_md_names_exists():
    text = (ROOT / "SECURITY.md").read_text()
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", text)
    assert len(named) >= 10
    for path, name in named:
        source = (ROOT / path).read_text()
        assert not name or f"def {name}(" in source, f"{path}::{name}"
