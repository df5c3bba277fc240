"""The container file, as far as it can be executed without a container engine: its steps, in plain directories."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gnatswarm.router.config.flags import parse
from tests.router.routers import wait_until

ROOT = Path(__file__).resolve().parents[2]
CONTAINERFILE = ROOT / "deploy" / "container" / "Containerfile"
INSTRUCTIONS = {"ARG", "FROM", "RUN", "WORKDIR", "COPY", "LABEL", "ENV", "USER", "VOLUME", "EXPOSE", "HEALTHCHECK"}
INSTRUCTIONS |= {"STOPSIGNAL", "ENTRYPOINT", "CMD"}


def stages() -> list[list[tuple[str, str]]]:
    """(instruction, rest) of each stage; what stands before the first FROM is left out."""
    text = re.sub(r"(?m)^\s*#.*\n", "", CONTAINERFILE.read_text(encoding="utf-8"))
    found: list[list[tuple[str, str]]] = []
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        if line.strip():
            instruction, _, rest = line.partition(" ")
            assert instruction in INSTRUCTIONS, line
            if instruction == "FROM":
                found.append([])
            if found:
                found[-1].append((instruction, rest.strip()))
    return found


def of(stage: list[tuple[str, str]], instruction: str) -> list[str]:
    return [rest for name, rest in stage if name == instruction]


def test_the_image_has_no_compiler_no_root_and_a_health_check() -> None:
    builder, image = stages()
    assert of(builder, "FROM")[0].endswith(" AS builder")
    assert of(image, "FROM") == ["docker.io/library/python:${PYTHON}"]
    assert not any("apt-get" in step or "pip" in step for step in of(image, "RUN"))
    (user,) = of(image, "USER")
    assert all(int(number) > 0 for number in user.split(":"))
    assert of(image, "STOPSIGNAL") == ["SIGTERM"] and signal.Signals["SIGTERM"]
    (check,) = of(image, "HEALTHCHECK")
    command = json.loads(check.partition(" CMD ")[2])
    assert command == ["gnatswarm", "health"]
    (entry,), (arguments,) = of(image, "ENTRYPOINT"), of(image, "CMD")
    assert json.loads(entry) == ["gnatswarm"]
    assert parse(json.loads(arguments)).config_file == "/etc/gnatswarm/gnatswarm.conf"


def test_what_it_copies_is_there_and_not_ignored() -> None:
    ignored = (ROOT / ".dockerignore").read_text().split("\n")
    for step in [rest for stage in stages() for rest in of(stage, "COPY") if "--from" not in rest]:
        source = shlex.split(step)[0]
        assert (ROOT / source).exists()
        assert source.split("/")[0] not in ignored
    for needed in ("pyproject.toml", "setup.py", "constraints.txt", "README.md", "LICENSE", "broker", "router"):
        assert needed not in ignored and (ROOT / needed).exists()


def test_shells_take_every_step() -> None:
    for stage in stages():
        for step in of(stage, "RUN"):
            done = subprocess.run(["sh", "-n", "-c", step], capture_output=True, text=True, check=False)
            assert (done.returncode, done.stderr) == (0, ""), step


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_steps_of_the_builder_make_a_broker_that_runs(tmp_path: Path) -> None:
    if os.environ.get("GNATSWARM_SLOW") != "1":
        pytest.skip("GNATSWARM_SLOW=1 runs it: compiles everything")
    source, target = tmp_path / "src", tmp_path / "opt"
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    for name in filter(None, files):
        if not name.startswith("tests/") and (ROOT / name).exists():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, source / name)
    for step in of(stages()[0], "RUN"):
        if "apt-get" in step:  # the compiler is here
            continue
        here = step.replace("/opt/gnatswarm", str(target)).replace("/src", str(source))
        here = re.sub(r"^python ", f"{shlex.quote(sys.executable)} ", here)
        subprocess.run(["sh", "-e", "-c", here], cwd=source, check=True, timeout=900)
    doctor = [str(target / "bin" / "gnatswarm"), "doctor", "-p", "-1"]
    done = subprocess.run(doctor, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "compiled" in done.stdout
    assert not (target / "bin" / "pip").exists()


class Process1:
    """A broker that is process 1 of a namespace of processes."""

    def __init__(self, directory: Path, runtime: str) -> None:
        self.gnatswarm = str(Path(sys.executable).parent / "gnatswarm")
        self.log_path = directory / "log"
        self.environment = {**os.environ, "XDG_RUNTIME_DIR": runtime}
        config = directory / "gnatswarm.conf"
        config.write_text('listen: "127.0.0.1:-1", shards: 2, lame_duck_grace_period: "0s"')
        with self.log_path.open("wb") as log:
            self.namespace = subprocess.Popen(
                ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", self.gnatswarm, "-c", str(config)],
                env=self.environment,
                stdout=subprocess.DEVNULL,
                stderr=log,
            )

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    @property
    def pid(self) -> int:
        """Its number outside."""
        return children(self.namespace.pid)[0]

    def inside(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["nsenter", "-t", str(self.pid), "-p", "-m", self.gnatswarm, *words],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def named(pids: list[int], name: str) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(name.encode())]


@pytest.fixture
def process_1(tmp_path: Path) -> Iterator[Process1]:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("needs root, for a namespace of processes")
    if subprocess.run(["unshare", "-pf", "--mount-proc", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine lets nobody make a namespace of processes")
    with tempfile.TemporaryDirectory(prefix="gnat-", dir="/tmp") as runtime:
        broker = Process1(tmp_path, runtime)
        try:
            wait_until(lambda: "Server is ready" in broker.log, "the broker is ready")
            yield broker
        finally:
            broker.namespace.kill()
            broker.namespace.wait()


def test_as_process_1_it_is_found_by_its_health_check_and_its_pre_stop(process_1: Process1) -> None:
    assert process_1.log.startswith("[1] ")
    healthy = process_1.inside("health")
    assert (healthy.returncode, healthy.stdout) == (0, "ok: 2 of 2 shards serve\n"), healthy.stderr
    left = process_1.inside("--signal", "ldm")
    assert (left.returncode, left.stderr) == (0, "")
    assert process_1.namespace.wait(60) == 0
    assert "every shard has left" in process_1.log


def test_as_process_1_its_client_stays_through_an_upgrade_and_the_death_of_its_router(process_1: Process1) -> None:
    """The client is outside: namespaces of processes share the network. The upgrade is with GNATSWARM_SLOW=1 only."""
    listening = re.search(r"Listening for client connections on (\S+):(\d+)", process_1.log)
    assert listening is not None
    with socket.create_connection((listening[1], int(listening[2])), timeout=20) as client:
        client.sendall(b'CONNECT {"verbose":false}\r\n')

        def answers() -> bool:
            client.sendall(b"PING\r\n")
            said = b""
            while not said.endswith(b"PONG\r\n"):
                said += client.recv(4096)
            return b"-ERR" not in said

        assert answers()
        before = process_1.pid
        if os.environ.get("GNATSWARM_SLOW") == "1":
            upgraded = process_1.inside("upgrade")
            assert upgraded.returncode == 0 and "upgraded to" in upgraded.stdout, upgraded.stdout + upgraded.stderr
            assert answers() and process_1.pid == before
        (router,) = named(children(before), "gnatswarm: router")
        os.kill(router, signal.SIGKILL)
        wait_until(lambda: "goes on with its shards" in process_1.log, "another router has taken over")
        assert answers() and process_1.pid == before
        assert process_1.inside("health").returncode == 0
        os.kill(before, signal.SIGTERM)
        assert process_1.namespace.wait(20) == 0  # as nats-server 2.15 after SIGTERM
        assert "Server Exiting" in process_1.log
