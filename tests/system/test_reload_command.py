"""`gnatswarm reload` says what came of it, with an exit code; monitoring says when the last reload failed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import swarm
from tests.support.pages import Pages
from tests.support.servers import Broker, wait_until

pytestmark = pytest.mark.kinds("gnatswarm-2")
Start = Callable[..., Broker]


def reload(broker: Broker, *words: str) -> subprocess.CompletedProcess[str]:
    program = broker.kind.program()
    return subprocess.run(
        [*program, "reload", *words], capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL
    )


def login(name: str) -> str:
    return f'CONNECT {{"verbose":false,"user":"{name}","pass":"secret"}}\r\nPING\r\n'


def write(broker: Broker, text: str) -> None:
    assert broker.directory is not None
    (broker.directory / "broker.conf").write_text(text)


def failed_at(pages: Pages) -> tuple[float, str]:
    """What /metrics and /varz say."""
    found = re.search(r"(?m)^gnatswarm_config_reload_failed_time_seconds (\S+)$", pages.get("/metrics").body.decode())
    assert found
    return float(found[1]), pages.json("/varz").get("config_reload_failed_time", "")


async def test_what_changed_is_printed_and_holds_for_the_next_connection(start_broker: Start, cluster_of):
    broker = start_broker(config="max_payload: 100\n")
    write(broker, "max_payload: 200\n")
    done = await asyncio.to_thread(reload, broker, "-p", str(broker.port))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "reloaded:\n  limits.max_payload_bytes: 100 → 200\n"
    assert (await cluster_of(broker).raw()).info["max_payload"] == 200
    done = await asyncio.to_thread(reload, broker, "-P", str(broker.pid))
    assert (done.returncode, done.stdout) == (0, "reloaded: nothing changed\n")


async def test_thousands_of_users_hold_when_a_reload_says_that_it_is_done(start_broker: Start, cluster_of):
    """Shards are told them in parts: of each part one may log in; who is connected and may not any more is closed."""

    def users(first: int, last: int) -> str:
        named = "\n".join(f"{{user: u{n}, password: secret}}" for n in range(first, last))
        return f"authorization {{ users: [\n{named}\n] }}\n"

    broker = start_broker(config=users(0, 5))
    cluster = cluster_of(broker)
    gone, stays = [await cluster.raw() for _ in range(2)]
    for client, name in (gone, "u0"), (stays, "u1"):
        await client.talk(login(name), expect_last="PONG\r\n")
    write(broker, users(1, 2500))
    done = await asyncio.to_thread(reload, broker, "-p", str(broker.port))
    assert (done.returncode, done.stderr) == (0, "")
    await gone.expect("-ERR 'Authorization Violation'\r\n")
    assert await gone.wait_closed() == b""
    await stays.talk("PING\r\n", expect_last="PONG\r\n")
    for name in "u1", "u999", "u1000", "u2499":
        await (await cluster.raw()).talk(login(name), expect_last="PONG\r\n")
    refused = await cluster.raw()
    await refused.talk(login("u0"), expect="-ERR 'Authorization Violation'\r\n")


def test_every_error_is_printed_and_monitoring_says_when_it_failed_until_one_succeeds(start_broker: Start):
    broker = start_broker(args=["-m", "-1"], config="max_payload: 100\n")
    pages = Pages.of(broker)
    assert failed_at(pages) == (0, "")
    write(broker, "max_paylod: 200\nping_max: many\n")
    done = reload(broker, "-p", str(broker.port))
    assert (done.returncode, done.stdout) == (1, "")
    first, *errors = done.stderr.splitlines()
    assert first == "gnatswarm: not reloaded, the old configuration still holds:"
    assert len(errors) == 6 and "max_paylod" in errors[0] and "ping_max" in errors[3]
    assert errors[1:3] == ["      1 | max_paylod: …", "        | ^"]
    at_s, said = failed_at(pages)
    assert at_s > 0
    assert re.match(r"\d{4}-\d\d-\d\dT", said)
    write(broker, "max_payload: 200\n")
    assert reload(broker, "-p", str(broker.port)).returncode == 0
    assert failed_at(pages) == (0, "")
    # Whoever sends a signal does not hear the result; monitoring has it all the same.
    write(broker, "max_paylod: 200\n")
    broker.send_signal(signal.SIGHUP)
    wait_until(lambda: failed_at(pages)[0] > 0)


def test_the_router_serves_while_it_reads_a_configuration(start_broker: Start):
    """Thousands of users take seconds; here it is a pipe that somebody has yet to write to."""
    broker = start_broker(args=["-m", "-1"], config="max_payload: 100\n")
    assert broker.directory is not None
    path = broker.directory / "broker.conf"
    path.unlink()
    os.mkfifo(path)
    writer = os.open(path, os.O_RDWR)
    router = swarm.status(broker)["router_pid"]
    command = [*broker.kind.program(), "reload", "-p", str(broker.port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True) as asking:
        wait_until(lambda: str(path) in opened(router))
        assert Pages.of(broker).json("/healthz") == {"status": "ok"}
        swarm.status(broker)
        os.write(writer, b"max_payload: 200\n")
        os.close(writer)
        assert asking.communicate(timeout=60)[0] == "reloaded:\n  limits.max_payload_bytes: 100 → 200\n"


def opened(pid: int) -> list[str]:
    """What that process has open."""
    found = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(f"/proc/{pid}/fd/{name}"))
    return found


async def test_a_file_that_is_empty_while_it_is_written_opens_no_broker(start_broker: Start, cluster_of):
    broker = start_broker(config='authorization { users: [ { user: ann, password: "secret" } ] }\n')
    write(broker, "")
    done = await asyncio.to_thread(reload, broker, "-p", str(broker.port))
    assert done.returncode == 1
    assert "broker.conf: config has no values or is empty" in done.stderr
    assert (await cluster_of(broker).raw()).info["auth_required"]


def test_signal_reload_says_what_is_wrong_and_nothing_else(start_broker: Start):
    broker = start_broker(config="max_payload: 100\n")
    program = broker.kind.program()

    def signalled() -> tuple[int, str, str]:
        command = [*program, "--signal", f"reload={broker.pid}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, done.stdout, done.stderr

    write(broker, "max_payload: 200\n")
    assert signalled() == (0, "", "")
    write(broker, "max_paylod: 300\n")
    code, out, err = signalled()
    assert (code, out) == (1, "")
    assert err.startswith("gnatswarm: not reloaded, the old configuration still holds:\n") and "max_paylod" in err
    write(broker, "max_payload: 300\n")
    assert reload(broker, "-p", str(broker.port)).stdout == "reloaded:\n  limits.max_payload_bytes: 200 → 300\n"


def test_what_needs_a_restart_is_refused(start_broker: Start):
    broker = start_broker(config="max_payload: 100\n")
    write(broker, 'max_payload: 100\nserver_name: "another"\n')
    done = reload(broker, "-p", str(broker.port))
    assert done.returncode == 1
    assert "reload not supported for server_name" in done.stderr and "restart to change it" in done.stderr


def test_a_pid_file_that_cannot_be_written_leaves_the_one_before_until_it_can(start_broker: Start, tmp_path: Path):
    broker = start_broker(config=f'pid_file: "{tmp_path}/a"\n')
    other = tmp_path / "later" / "b"
    write(broker, f'pid_file: "{other}"\n')
    done = reload(broker, "-p", str(broker.port))
    assert done.returncode == 1 and "could not write pidfile" in done.stderr
    assert (tmp_path / "a").read_text() == str(broker.pid)
    other.parent.mkdir()
    assert reload(broker, "-p", str(broker.port)).returncode == 0
    assert other.read_text() == str(broker.pid) and not (tmp_path / "a").exists()
    # The same file by another name.
    (tmp_path / "link").symlink_to(other.parent)
    write(broker, f'pid_file: "{tmp_path}/link/b"\n')
    assert reload(broker, "-p", str(broker.port)).returncode == 0
    assert other.read_text() == str(broker.pid)
    broker.stop()
    assert not other.exists()


def test_what_alone_could_not_be_done_is_a_failure_too(start_broker: Start):
    broker = start_broker(args=["-m", "-1"], config="max_payload: 100\n")
    pages = Pages.of(broker)
    write(broker, 'max_payload: 200\nlog_file: "/nowhere/at/all.log"\n')
    done = reload(broker, "-p", str(broker.port))
    assert done.returncode == 1
    assert "limits.max_payload_bytes: 100 → 200" in done.stdout
    assert "cannot open the log file" in done.stderr
    assert failed_at(pages)[0] > 0
