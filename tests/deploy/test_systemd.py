"""The unit files are what systemd takes, and the broker works as confined as they say."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import bcrypt
import nats
import pytest
from nats.aio.client import Client

from gnatswarm.router.config.flags import parse
from gnatswarm.router.config.options_build import build
from tests.deploy.unit_file import UnitFile
from tests.support.authority import Authority
from tests.support.servers import Log, session_pids, wait_pids_gone

ROOT = Path(__file__).resolve().parents[2]
SYSTEMD = ROOT / "deploy" / "systemd"
SERVICE = SYSTEMD / "gnatswarm.service"
GNATSWARM = Path(sys.executable).parent / "gnatswarm"

# What a service that has to reach the network and to share memory cannot do without costs about this much.
MOST_EXPOSURE = 15  # tenths

needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """The files, with the broker where it is here instead of in /opt."""
    for file in [*SYSTEMD.glob("*.service"), *SYSTEMD.glob("*.socket")]:
        (tmp_path / file.name).write_text(file.read_text().replace("/opt/gnatswarm/bin/gnatswarm", str(GNATSWARM)))
    return tmp_path


@needs_systemd
def test_systemd_takes_every_unit(units: Path) -> None:
    done = analyze("verify", "--man=no", *map(str, sorted(units.iterdir())))
    assert (done.returncode, done.stderr) == (0, "")


@needs_systemd
def test_a_mistake_in_a_unit_would_be_found(units: Path) -> None:
    service = units / SERVICE.name
    service.write_text(service.read_text().replace("Restart=on-failure", "Restart=sometimes"))
    assert "sometimes" in analyze("verify", "--man=no", str(service)).stderr


@needs_systemd
def test_little_of_the_host_is_exposed_to_it(units: Path) -> None:
    done = analyze(
        "security", "--offline=true", "--no-pager", f"--threshold={MOST_EXPOSURE}", str(units / SERVICE.name)
    )
    assert done.returncode == 0, done.stdout
    assert "exposure level" in done.stdout


def test_a_lame_duck_has_the_time_it_needs() -> None:
    unit = UnitFile(SERVICE)
    limits = build(parse(["-c", str(ROOT / "deploy/config/gnatswarm.conf")])).options.limits
    assert unit.one("KillSignal") == "SIGUSR2"  # leave slowly
    assert unit.one("KillMode") == "mixed"
    assert float(unit.one("TimeoutStopSec").removesuffix("s")) > limits.lame_duck_duration_s + limits.lame_duck_grace_s


class Confined:
    """The broker in the confines of the unit file, with directories as systemd would make them."""

    def __init__(self, config: str, base: Path) -> None:
        unit = UnitFile(SERVICE)
        self.state, runtime, temporary = base / "state", base / "run", base / "tmp"
        for directory in (self.state, runtime, temporary):
            directory.mkdir(mode=0o700)
        self.config = base / "gnatswarm.conf"
        self.config.write_text(config)
        environment = self.environment = {
            **dict(word.split("=", 1) for word in unit.words("Environment")),
            # In place of /var/lib and /run/gnatswarm.
            "XDG_STATE_HOME": str(self.state),
            "XDG_RUNTIME_DIR": str(runtime),
            "TMPDIR": str(temporary),
            "PATH": os.environ["PATH"],
        }
        self.process = subprocess.Popen(
            [
                *(sys.executable, str(Path(__file__).with_name("confine.py")), str(SERVICE)),
                *map(str, (self.state, runtime, temporary)),
                *("--", str(GNATSWARM), "-c", str(self.config)),
            ],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert self.process.stderr is not None
        self.log = Log(self.process.stderr)

    def reload(self) -> subprocess.CompletedProcess[str]:
        """What `systemctl reload` runs, and waits for."""
        command = UnitFile(SERVICE).one("ExecReload").split()
        assert command[0] == "/opt/gnatswarm/bin/gnatswarm"
        words = [str(self.process.pid) if word == "$MAINPID" else word for word in command[1:]]
        return subprocess.run(
            [str(GNATSWARM), *words], env=self.environment, capture_output=True, text=True, timeout=60, check=False
        )

    def close(self) -> None:
        pids = session_pids(self.process.pid)
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        assert wait_pids_gone(pids, 30.0) == []
        self.log.join()
        assert self.process.stderr is not None
        self.process.stderr.close()


def status_of(pid: int) -> str:
    return Path(f"/proc/{pid}/status").read_text()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def confined(authority: Authority) -> Iterator[Confined]:
    hashed = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()
    config = f"""
        listen: "127.0.0.1:-1", http: "127.0.0.1:-1", shards: 2
        authorization {{ users: [ {{user: ann, password: "{hashed}"}} ] }}
        tls {{ {authority.server().lines} }}
        websocket {{ host: 127.0.0.1, port: -1, no_tls: true }}
        stats {{ window: "100ms", dir: "{{state}}/stats" }}
        lame_duck_grace_period: "0s"
    """
    # Sockets between the processes: their paths have to be short.
    with tempfile.TemporaryDirectory(prefix="gnat-", dir="/tmp") as base:
        broker = Confined(config.replace("{state}", f"{base}/state"), Path(base))
        yield broker
        broker.close()


@needs_systemd
async def test_the_broker_does_all_it_can_in_the_confines_of_its_unit(confined: Confined, authority: Authority) -> None:
    log = confined.log
    port = int(await asyncio.to_thread(lambda: log.wait_line(r"Listening for client connections on \S*:(\d+)", 20)[1]))
    pages = await asyncio.to_thread(lambda: log.wait_line(r"Starting http monitor on (\S+)", 20)[1])
    await asyncio.to_thread(log.wait_line, "Server is ready", 20)
    if os.geteuid() == 0 and os.uname().machine in ("x86_64", "aarch64"):
        status = status_of(confined.process.pid)
        assert re.search(r"(?m)^Seccomp:\t2$", status) and re.search(r"(?m)^CapEff:\t0+$", status)
    # Steering is a BPF program on sockets, by setsockopt: no privilege, and no system call of that name.
    assert "Cannot steer" not in log.text

    async def connect() -> Client:
        return await nats.connect(
            f"tls://127.0.0.1:{port}", user="ann", password="secret", tls=authority.client_context()
        )

    clients = [await connect() for _ in range(8)]
    got: asyncio.Queue[bytes] = asyncio.Queue()

    async def on_message(message: object) -> None:
        got.put_nowait(message.data)  # type: ignore[attr-defined]

    for client in clients:
        await client.subscribe("news", cb=on_message)
        await client.flush()
    await clients[0].publish("news", b"hello")
    async with asyncio.timeout(20):
        assert [await got.get() for _ in clients] == [b"hello"] * 8

    def fetch(path: str) -> bytes:
        with urllib.request.urlopen(f"http://{pages}{path}", timeout=20) as answer:
            return bytes(answer.read())

    shards = json.loads(await asyncio.to_thread(fetch, "/shardz"))["shards"]
    assert b"gnatswarm_healthy 1" in await asyncio.to_thread(fetch, "/metrics")
    # A shard dies and is replaced, another one comes, the configuration is read again.
    os.kill(shards[0]["pid"], signal.SIGKILL)
    await asyncio.to_thread(log.wait_line, "Shard 0 died: killed by SIGKILL; starting it again", 20)
    confined.process.send_signal(signal.SIGTTIN)
    await asyncio.to_thread(log.wait_line, "Scaling from 2 to 3 shards", 20)
    reloaded = await asyncio.to_thread(confined.reload)
    assert (reloaded.returncode, reloaded.stdout) == (0, "reloaded: nothing changed\n")
    whole = confined.config.read_text()
    confined.config.write_text(f"{whole}\nnonsense_key: 1")
    reloaded = await asyncio.to_thread(confined.reload)
    assert reloaded.returncode == 1 and "nonsense_key" in reloaded.stderr
    confined.config.write_text(whole)
    for client in clients:
        await client.close()
    late = await connect()
    await late.flush()
    await late.close()
    # Statistics are written, the log has no complaint, and leaving takes all processes along.
    pids = session_pids(confined.process.pid)
    confined.process.send_signal(signal.SIGUSR2)
    assert await asyncio.to_thread(confined.process.wait, 60) == 0
    assert wait_pids_gone(pids, 30.0) == []
    assert list((confined.state / "stats").rglob("*.jsonl.zst"))
    confined.log.join()
    wrong = [line for line in log.lines if "[ERR]" in line or "[FTL]" in line or "Traceback" in line]
    assert len(wrong) == 1 and "Failed to reload" in wrong[0]


@needs_systemd
def test_the_confines_are_real(tmp_path: Path) -> None:
    # What the unit forbids fails in them: otherwise the test above would show nothing.
    code = (
        "import ctypes, mmap, os, socket\n"
        "def tried(what):\n"
        "    try: what(); return 'allowed'\n"
        "    except OSError as error: return error.errno\n"
        "print(tried(lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)))\n"
        "print(tried(lambda: socket.socket(socket.AF_UNIX).close()))\n"
        "print(tried(lambda: os.chroot('/')))\n"
        "print(tried(lambda: mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)))\n"
        f"print(tried(lambda: open('{ROOT}/written', 'w')))\n"
    )
    confine = str(Path(__file__).with_name("confine.py"))
    done = subprocess.run(
        [sys.executable, confine, str(SERVICE), str(tmp_path), "--", sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    family, unix, chroot, executable, written = done.stdout.split()
    assert (family, unix, chroot) == ("97", "allowed", "1"), done.stderr
    if "MemoryDenyWriteExecute" not in done.stderr:
        assert executable == "13"
    if "ProtectSystem" not in done.stderr:
        assert written == "30"
