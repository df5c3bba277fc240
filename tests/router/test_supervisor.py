"""A router process keeps its shards, its port and its promises whatever dies, hangs or is asked of it."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import signal
import socket
import time
from collections import Counter
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from gnatswarm.broker.options import Options, Sharding
from gnatswarm.router.supervision.broker import SupervisedShard
from gnatswarm.router.supervision.descriptors import needed
from gnatswarm.router.supervision.supervision import Phase, ShardState, TimePassed
from gnatswarm.router.supervision.supervisor import TICK_S, Supervisor
from gnatswarm.shards.boundary.control import HasHeadroom, LameDuck, Stop
from tests.router.routers import DEADLINE_S, Dialled, Router, dial, option_tree, pause, wait_until
from tests.support.ports import free_port
from tests.support.servers import wait_pids_gone

if TYPE_CHECKING:
    from collections.abc import Sequence


def shards_of(clients: list[Dialled]) -> Counter[int]:
    return Counter(client.greeting()[0] for client in clients)


def close(clients: list[Dialled]) -> None:
    for client in clients:
        client.close()


def test_starts_says_so_and_shows_a_first_screen(tmp_path: Path) -> None:
    with Router(tmp_path, 2) as router:
        router.wait_ready()
        text = [line.split("] ", 2)[-1] for line in router.log.lines if "[INF]" in line]
        assert text[0] == "Starting gnatswarm"
        assert text[-2:] == [f"Listening for client connections on 127.0.0.1:{router.port}", "Server is ready"]
        router.process.send_signal(signal.SIGINT)
        assert router.process.wait(DEADLINE_S) == 0
        assert router.process.stdout is not None
        screen = router.process.stdout.read().decode()
        assert f"127.0.0.1:{router.port}" in screen
        assert str(router.pid_of(0)) in screen
        assert str(router.pid_of(1)) in screen


def test_a_stand_in_for_nats_server_writes_nothing_to_standard_output(tmp_path: Path) -> None:
    with Router(tmp_path, 1, program="nats-server") as router:
        router.wait_ready()
        router.process.send_signal(signal.SIGTERM)
        assert router.process.wait(DEADLINE_S) == 0
        assert router.process.stdout is not None
        assert router.process.stdout.read() == b""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 0)])
def test_a_signal_stops_it_with_nothing_left(tmp_path: Path, number: signal.Signals, code: int) -> None:
    with Router(tmp_path, 2) as router:
        router.wait_ready()
        port = router.port
        os.killpg(router.process.pid, number)  # as a terminal does: the shards get it too
        assert router.process.wait(DEADLINE_S) == code
        assert router.leftovers() == []
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=2)


def test_a_shard_gets_what_it_was_promised_and_no_other_descriptor(tmp_path: Path) -> None:
    with Router(tmp_path, 2, are_programs=True) as router:
        router.wait_ready()
        first, second = sorted(router.boots(), key=lambda boot: boot["shard"])
        assert first["port"] == second["port"] == router.port
        assert first["server_id"] == second["server_id"]
        assert len(first["server_id"]) == 56
        assert first["boot_id"] != second["boot_id"]
        assert os.stat(first["link_dir"]).st_mode & 0o777 == 0o700
        for boot in (first, second):
            given = {fd for fd in boot["given"] if fd >= 0}
            assert given <= set(boot["fds"])
            # Besides those and the standard three: the loop's own (epoll, its wake-up pair) and the listing of /proc.
            assert len(set(boot["fds"]) - given - {0, 1, 2}) <= 4
            blocked = set(boot["blocked"])
            assert {signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2} <= blocked
        assert first["given"][0] != second["given"][0]


def test_a_killed_shard_is_replaced_and_its_backlog_is_kept(tmp_path: Path) -> None:
    with Router(tmp_path, 1) as router:
        router.wait_ready()
        old = Dialled(router.port)
        old_boot = old.greeting()
        os.kill(old_boot[1], signal.SIGSTOP)
        waiting = dial(router.port, 20)  # the kernel has accepted them, the shard never will
        os.kill(old_boot[1], signal.SIGKILL)
        boots = {client.greeting()[1:] for client in waiting}
        assert len(boots) == 1
        assert boots != {old_boot[1:]}
        assert old.is_closed()
        router.wait_log(r"\[WRN\] Shard 0 died: killed by SIGKILL; starting it again")
        wait_until(lambda: router.status()["connections"] == 20, "the dead shard's connection is not counted")
        assert router.status()["shards"][0]["starts"] == 2
        close([old, *waiting])


def test_while_a_shard_is_away_new_connections_go_to_the_others(tmp_path: Path) -> None:
    with Router(tmp_path, 2) as router:
        router.wait_ready()
        os.kill(router.pid_of(1), signal.SIGSTOP)
        wait_until(lambda: _greeted_in_a_row(router.port, 12), "a shard that does not answer is steered past")
        router.wait_log(r"Shard 1 died: it did not answer for \d+\.\d s; starting it again")
        wait_until(lambda: router.status()["shards"][1]["phase"] == "ready", "the hung shard is back")
        router.note_pids()


def _greeted_in_a_row(port: int, count: int) -> bool:
    clients = []
    try:
        for _ in range(count):
            clients.append(Dialled(port, deadline_s=0.3))
            clients[-1].greeting()
    except TimeoutError:
        return False
    finally:
        close(clients)
    return True


def test_connections_are_counted_exactly_however_shards_die(tmp_path: Path) -> None:
    with Router(tmp_path, 2, limits={"max_connections": 30}) as router:
        router.wait_ready()
        for _round in range(3):
            clients = dial(router.port, 30)
            counts = shards_of(clients)
            assert sum(counts.values()) == 30
            one_too_many = Dialled(router.port)
            assert one_too_many.is_closed()
            one_too_many.close()
            os.kill(router.pid_of(0), signal.SIGKILL)
            wait_until(partial(_counts, router, counts[1]), "only shard 1's connections are counted")
            close(clients)
            wait_until(partial(_counts, router, 0), "none is counted")
            wait_until(lambda: router.status()["shards"][0]["phase"] == "ready", "shard 0 serves")
            router.note_pids()


def _counts(router: Router, connections: int) -> bool:
    return bool(router.status()["connections"] == connections)


@pytest.mark.long
def test_a_killed_router_frees_its_port_a_dozen_times_in_a_row(tmp_path: Path) -> None:
    port = free_port()
    for attempt in range(12):
        router = Router(tmp_path, 2, port=port, is_real=True)
        try:
            # Each second one is killed while its shards still boot.
            if attempt % 2:
                router.wait_log("Listening for client connections")
            else:
                router.wait_ready()
                with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
                    assert client.recv(4096).startswith(b"INFO ")
        finally:
            router.kill()
    with Router(tmp_path, 1, port=port) as last:
        last.wait_ready()
        assert len(last.leftovers()) == 1  # its own


def test_a_broker_of_which_all_processes_are_killed_leaves_a_directory_for_the_next(tmp_path: Path) -> None:
    router = Router(tmp_path, 2)
    router.wait_ready()
    # With the router among them: nobody tidies up after the keeper.
    shards = [*(boot["pid"] for boot in router.boots()), router.router_pid()]
    for pid in shards:
        os.kill(pid, signal.SIGSTOP)
    router.process.kill()
    for pid in shards:
        os.kill(pid, signal.SIGKILL)
    assert wait_pids_gone(shards, 30.0) == []
    router.kill()
    assert len(router.leftovers()) == 1
    with Router(tmp_path, 1) as last:
        last.wait_ready()
        assert len(last.leftovers()) == 1  # its own


def test_a_port_in_use_is_a_clear_error(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with Router(tmp_path, 2, port=port) as router:
            assert router.process.wait(DEADLINE_S) == 1
            router.wait_log(rf"\[FTL\] Error listening on port: 127\.0\.0\.1:{port}, .*address already in use.* -p")
            assert router.leftovers() == []


def test_a_second_broker_does_not_share_the_port_of_the_first(tmp_path: Path) -> None:
    with Router(tmp_path, 2) as first:
        first.wait_ready()
        with Router(tmp_path, 2, port=first.port) as second:
            assert second.process.wait(DEADLINE_S) == 1
            second.wait_log("the port is in use")
        client = Dialled(first.port)
        client.greeting()
        client.close()


def test_a_shard_that_says_fatal_stops_the_start_with_its_reason(tmp_path: Path) -> None:
    with Router(tmp_path, 2, environment={"FAKE_SHARD_FATAL": "no such account: X"}) as router:
        assert router.process.wait(DEADLINE_S) == 1
        router.wait_log(r"\[FTL\] Shard \d cannot start: no such account: X")
        assert router.leftovers() == []


def test_a_shard_that_dies_three_times_at_boot_stops_the_start(tmp_path: Path) -> None:
    with Router(tmp_path, 1, environment={"FAKE_SHARD_EXIT": "7"}) as router:
        assert router.process.wait(DEADLINE_S) == 1
        router.wait_log(r"\[FTL\] Shard 0 cannot start: exit code 7")
        assert len(router.boots()) == 3


def test_a_shard_that_babbles_is_killed_and_named(tmp_path: Path) -> None:
    with Router(tmp_path, 1, environment={"FAKE_SHARD_BABBLE": "1"}) as router:
        assert router.process.wait(DEADLINE_S) == 1
        router.wait_log(r"\[FTL\] Shard 0 cannot start: undecodable control message")


def test_scaling_up_and_down_while_clients_come(tmp_path: Path) -> None:
    with Router(tmp_path, 1) as router:
        router.wait_ready()
        done = router.operator("scale", "3")
        assert (done.returncode, done.stdout) == (0, "3 shards serve (before: 1)\n")
        clients = dial(router.port, 90)
        counts = shards_of(clients)
        assert set(counts) == {0, 1, 2}
        close(clients)
        done = router.operator("scale", "2")
        assert done.returncode == 0, done.stderr
        clients = dial(router.port, 40)
        assert set(shards_of(clients)) == {0, 1}
        close(clients)
        done = router.operator("scale", "4")
        assert done.returncode == 0, done.stderr
        clients = dial(router.port, 120)
        assert set(shards_of(clients)) == {0, 1, 2, 3}
        close(clients)
        wait_until(lambda: [row["links"] for row in router.status()["shards"]] == [3, 3, 3, 3], "all know all")
        router.note_pids()


def test_signals_scale_by_one(tmp_path: Path) -> None:
    with Router(tmp_path, 1) as router:
        router.wait_ready()
        router.process.send_signal(signal.SIGTTIN)
        wait_until(lambda: [row["phase"] for row in router.status()["shards"]] == ["ready", "ready"], "two shards")
        router.process.send_signal(signal.SIGTTOU)
        wait_until(lambda: len(router.status()["shards"]) == 1, "one shard")
        router.process.send_signal(signal.SIGTTOU)
        router.wait_log(r"SIGTTOU: shards must be 1\.\.62, not 0")
        router.note_pids()


@pytest.mark.parametrize("wanted", ["0", "63"])
def test_scaling_to_nonsense_is_refused(tmp_path: Path, wanted: str) -> None:
    with Router(tmp_path, 1) as router:
        router.wait_ready()
        done = router.operator("scale", wanted)
        assert (done.returncode, done.stderr) == (1, f"gnatswarm: shards must be 1..62, not {wanted}\n")


def test_status_is_a_table_for_people(tmp_path: Path) -> None:
    with Router(tmp_path, 2, server_name="marsh") as router:
        router.wait_ready()
        lines = router.operator("status").stdout.splitlines()
        assert lines[0].startswith(f"marsh on 127.0.0.1:{router.port}, pid {router.process.pid}, router ")
        assert lines[1].split()[:3] == ["SHARD", "PID", "STATE"]
        assert lines[2].split()[:3] == ["0", str(router.pid_of(0)), "ready"]
        assert len(lines) == 4


def test_no_broker_to_talk_to_is_said(tmp_path: Path) -> None:
    with Router(tmp_path, 1) as router:
        router.wait_ready()
    done = router.operator("status")
    assert done.returncode == 1
    assert "no broker of this user is running" in done.stderr


def test_a_lame_duck_takes_no_new_connection_and_ends_with_zero(tmp_path: Path) -> None:
    with Router(tmp_path, 2, limits={"lame_duck_grace_s": 0.1, "lame_duck_duration_s": 0.1}) as router:
        router.wait_ready()
        port = router.port
        router.process.send_signal(signal.SIGUSR2)
        router.wait_log("Entering lame duck mode")
        router.process.send_signal(signal.SIGTERM)
        assert router.process.wait(DEADLINE_S) == 0
        assert router.leftovers() == []
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=2)


def test_reload_without_a_configuration_changes_nothing(tmp_path: Path) -> None:
    with Router(tmp_path, 1) as router:
        router.wait_ready()
        router.process.send_signal(signal.SIGHUP)
        router.wait_log("there is no configuration to read again")
        router.process.send_signal(signal.SIGUSR1)
        assert router.status()["shards"][0]["phase"] == "ready"


def test_reload_takes_all_or_nothing(tmp_path: Path) -> None:
    path = tmp_path / "options.json"
    with Router(tmp_path, 1, environment={"RELOADED_OPTIONS": str(path)}) as router:
        router.wait_ready()
        router.process.send_signal(signal.SIGHUP)
        router.wait_log(r"\[ERR\] Failed to reload server configuration: .*No such file")
        tree = option_tree(2, -1, "reuseport")
        path.write_text(json.dumps({**tree, "host": "0.0.0.0"}))
        router.process.send_signal(signal.SIGHUP)
        router.wait_log("reload not supported for host")
        path.write_text(json.dumps({**tree, "limits": {"max_connections": 3}}))
        router.process.send_signal(signal.SIGHUP)
        router.wait_log("Reloaded server configuration")
        wait_until(lambda: [row["phase"] for row in router.status()["shards"]] == ["ready", "ready"], "two shards")
        pid_file = tmp_path / "pid"
        path.write_text(json.dumps({**tree, "pid_file": str(pid_file)}))
        router.process.send_signal(signal.SIGHUP)
        wait_until(lambda: pid_file.exists() and pid_file.read_text() == str(router.process.pid), "a pid file")
        router.note_pids()
    assert not pid_file.exists()


def test_pid_and_ports_file(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    with Router(tmp_path, 1, pid_file=str(pid_file), ports_file_dir=str(tmp_path)) as router:
        router.wait_ready()
        assert pid_file.read_text() == str(router.process.pid)
        ports = json.loads((tmp_path / f"gnatswarm_{router.process.pid}.ports").read_text())
        assert ports["nats"] == [f"nats://127.0.0.1:{router.port}"]
    assert not pid_file.exists()
    assert list(tmp_path.glob("*.ports")) == []


def test_a_pid_file_that_cannot_be_written_stops_the_start(tmp_path: Path) -> None:
    with Router(tmp_path, 1, pid_file=str(tmp_path / "no" / "pid")) as router:
        assert router.process.wait(DEADLINE_S) == 1
        router.wait_log(r"\[FTL\] Could not write pidfile")
        assert router.leftovers() == []


def test_a_directory_where_the_pid_file_should_be_keeps_its_files(tmp_path: Path) -> None:
    theirs = tmp_path / "run" / "theirs"
    theirs.parent.mkdir()
    theirs.touch()
    with Router(tmp_path, 1, pid_file=str(theirs.parent)) as router:
        assert router.process.wait(DEADLINE_S) == 1
        router.wait_log(r"\[FTL\] Could not write pidfile: .*: Is a directory")
        assert router.leftovers() == []
    assert theirs.exists()


def test_an_operator_with_several_brokers_has_to_say_which(tmp_path: Path) -> None:
    with Router(tmp_path, 1) as first, Router(tmp_path, 1) as second:
        first.wait_ready()
        second.wait_ready()
        done = first.operator("status")
        assert done.returncode == 1
        assert "several brokers are running, say which by --pid or --port" in done.stderr
        assert f"pid {second.process.pid} on port {second.port}" in done.stderr


def test_too_few_descriptors_is_a_clear_error(tmp_path: Path) -> None:
    with Router(tmp_path, 62, descriptors=40) as router:
        assert router.process.wait(DEADLINE_S) == 1
        says = r"\[FTL\] too few file descriptors: each process may have 40, a broker of 62 shards needs at least \d+"
        router.wait_log(says + ".*Raise the limit with `ulimit -n`.*or run fewer shards")
        assert router.leftovers() == []


def test_stopping_does_not_wait_for_a_hung_shard(tmp_path: Path) -> None:
    with Router(tmp_path, 2) as router:
        router.wait_ready()
        os.kill(router.pid_of(0), signal.SIGSTOP)
        router.process.send_signal(signal.SIGTERM)
        assert router.process.wait(DEADLINE_S) == 0  # it would not end by itself
        assert router.leftovers() == []


def test_a_router_that_did_not_run_for_a_while_blames_no_shard(tmp_path: Path) -> None:
    with Router(tmp_path, 2) as router:
        router.wait_ready()
        before = [row["pid"] for row in router.status()["shards"]]
        stopped = router.router_pid()
        os.kill(stopped, signal.SIGSTOP)
        pause(2.5)  # longer than a shard may be silent
        os.kill(stopped, signal.SIGCONT)
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            assert [row["pid"] for row in router.status()["shards"]] == before


def test_restarts_leak_no_descriptor(tmp_path: Path) -> None:
    with Router(tmp_path, 2) as router:
        router.wait_ready()
        both = router.process.pid, router.router_pid()

        def descriptors() -> list[int]:
            return [len(os.listdir(f"/proc/{pid}/fd")) for pid in both]

        before: list[int] = []
        for _ in range(4):
            starts = router.status()["shards"][0]["starts"]
            os.kill(router.pid_of(0), signal.SIGKILL)
            wait_until(partial(_has_started, router, starts + 1), "shard 0 is back")
            before = before or descriptors()
        # One that is left over each time makes three. Two more are no leak: the operator's own connection, and a copy
        # that the keeper was not yet given when they were counted first.
        wait_until(
            lambda: all(now <= then + 2 for now, then in zip(descriptors(), before, strict=True)),
            "no descriptor is left over",
        )
        assert len(os.listdir(router.boots()[0]["link_dir"])) == 4  # lock, operator socket, two link sockets
        router.note_pids()


def _has_started(router: Router, starts: int) -> bool:
    row = router.status()["shards"][0]
    return bool(row["starts"] == starts and row["phase"] == "ready")


def test_a_closed_standard_output_is_no_reason_not_to_serve(tmp_path: Path) -> None:
    with Router(tmp_path, 1) as router:
        assert router.process.stdout is not None
        router.process.stdout.close()
        router.wait_ready()


class TestHandoff:
    """The accept mode "handoff"."""

    def test_two_idle_shards_take_turns(self, tmp_path: Path) -> None:
        with Router(tmp_path, 4, accept="handoff") as router:
            router.wait_ready()
            clients = []
            for _ in range(40):
                clients.append(Dialled(router.port))
                clients[-1].greeting()
            assert set(shards_of(clients).values()) == {10}
            close(clients)

    def test_a_burst_is_spread_evenly(self, tmp_path: Path) -> None:
        with Router(tmp_path, 2, accept="handoff") as router:
            router.wait_ready()
            clients = dial(router.port, 300)
            assert max(shards_of(clients).values()) - min(shards_of(clients).values()) <= 2
            close(clients)

    def test_what_a_killed_shard_left_goes_to_another(self, tmp_path: Path) -> None:
        with Router(tmp_path, 2, accept="handoff") as router:
            router.wait_ready()
            stopped = router.pid_of(1)
            os.kill(stopped, signal.SIGSTOP)
            clients = dial(router.port, 30)
            os.kill(stopped, signal.SIGKILL)
            assert sum(shards_of(clients).values()) == 30
            close(clients)
            router.note_pids()

    def test_scaling(self, tmp_path: Path) -> None:
        with Router(tmp_path, 1, accept="handoff") as router:
            router.wait_ready()
            assert router.operator("scale", "3").returncode == 0
            clients = dial(router.port, 30)
            assert set(shards_of(clients)) == {0, 1, 2}
            close(clients)
            assert router.operator("scale", "1").returncode == 0
            clients = dial(router.port, 10)
            assert set(shards_of(clients)) == {0}
            close(clients)
            router.note_pids()

    def test_a_shard_for_which_there_are_no_descriptors_is_started_when_there_are(self, tmp_path: Path) -> None:
        with Router(tmp_path, 1, accept="handoff") as router:
            router.wait_ready()
            pid = router.router_pid()
            hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)[1]
            # Enough for two shards, if operators without a question did not have them.
            limit = needed(Options(sharding=Sharding(accept="handoff")), 2)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, hard))
            (path,) = (router.runtime / "gnatswarm").glob("*/operator.sock")
            with contextlib.ExitStack() as operators:
                for _ in range(60):
                    operators.enter_context(socket.socket(socket.AF_UNIX)).connect(str(path))
                wait_until(lambda: len(os.listdir(f"/proc/{pid}/fd")) == limit, "all are used")
                router.process.send_signal(signal.SIGTTIN)
                router.wait_log(r"\[WRN\] Shard 1 died: cannot make its hand-off queue: Too many open files")

            def serves() -> bool:
                with contextlib.suppress(OSError):  # the router may be without descriptors for us yet
                    return [row["phase"] for row in router.status()["shards"]] == ["ready"] * 2
                return False

            wait_until(serves, "it serves")
            router.note_pids()


def test_founders_that_could_not_be_forked_and_were_requested_again_are_waited_for() -> None:
    """The keeper answers in the order of the requests."""
    requested = [f"first {number}" for number in range(4)]
    members: list[Any] = [SimpleNamespace(process=SimpleNamespace(pid=0, name=name)) for name in requested]
    met: list[str] = []

    def meet(shard: Any) -> None:
        assert shard.process.name == requested[len(met)], "another one is answered now"
        met.append(shard.process.name)
        if shard is members[3] and shard.process.name.startswith("again"):
            shard.process = None  # it waits until it is tried once more
        elif shard is members[1] or shard is members[3]:
            if shard.process.name.startswith("first"):
                requested.append(f"again {members.index(shard)}")
                shard.process = SimpleNamespace(pid=0, name=requested[-1])
            else:
                shard.process.pid = 7
        else:
            shard.process.pid = 7

    supervisor: Any = SimpleNamespace(_broker=SimpleNamespace(members=members), _meet=meet)
    Supervisor.meet(supervisor)
    assert met == ["first 0", "first 1", "first 2", "first 3", "again 1", "again 3"]


def test_a_second_stop_kills_what_has_not_stopped() -> None:
    said: list[object] = []
    refused: list[Sequence[int]] = []
    later: list[Any] = []
    shard = SupervisedShard(0, is_founder=True)
    shard.state = ShardState(phase=Phase.READY)
    process: Any = SimpleNamespace(boot_id="b", send=said.append, kill=lambda: said.append("kill"))
    shard.process = process
    broker: Any = SimpleNamespace(
        shards=[shard],
        members=[shard],
        relays=[],
        keeper=None,
        gateway=None,
        listener_groups=SimpleNamespace(close=lambda: None, refuse=lambda but=(): refused.append(but)),
        is_serving=False,
        is_leaving=False,
        page=SimpleNamespace(connections=0),
        hold=lambda more: None,
        remember=lambda: None,
    )
    audience: Any = SimpleNamespace(on_stopping=lambda: None)
    notifier: Any = SimpleNamespace(observe=lambda *_states, **_named: None)
    supervisor = Supervisor(broker, notifier=notifier, audience=audience)
    supervisor._loop = SimpleNamespace(call_later=lambda delay_s, then: later.append(then))  # type: ignore[assignment]
    supervisor.stop(1)
    assert Stop() in said and "kill" not in said
    assert refused == [[0]]  # (the others: it accepts those that wait in its queue, and refuses those that come then)
    [then] = later  # … unless it is hung
    then()
    assert refused == [[0], ()]
    supervisor.stop(1)
    assert said[-1] == "kill"


def test_where_all_shards_are_short_of_descriptors_all_that_accept_get_connections() -> None:
    """Not those that only start: who is steered there waits."""
    steered: list[list[int]] = []
    shards = [SupervisedShard(number, is_founder=True) for number in range(3)]
    for shard, phase in zip(shards, (Phase.READY, Phase.READY, Phase.STARTING), strict=True):
        shard.state = ShardState(phase=phase, is_wanted=True, is_in_step=True)
        process: Any = SimpleNamespace(boot_id=f"b{shard.number}", send=lambda message: None)
        shard.process = process
    broker: Any = SimpleNamespace(
        shards=shards,
        members=shards,
        shard_of=lambda process: next(one for one in shards if one.process is process),
        relays=[],
        keeper=None,
        rolling=None,
        listener_groups=SimpleNamespace(steer=steered.append),
        is_serving=True,
        is_leaving=False,
        page=SimpleNamespace(connections=0),
        remember=lambda: None,
    )
    notifier: Any = SimpleNamespace(observe=lambda *_states, **_named: None)
    audience: Any = None
    supervisor = Supervisor(broker, notifier=notifier, audience=audience)
    for shard, on in ((shards[0], False), (shards[1], False), (shards[0], True)):
        assert shard.process is not None
        supervisor._on_message(shard.process, HasHeadroom(on))
    assert steered == [[1], [0, 1], [0]]


def test_after_a_tick_that_failed_there_is_another() -> None:
    """Else no hung shard would be found any more, and none that is backing off started."""
    later: list[Any] = []
    broker: Any = SimpleNamespace(members=[], relays=[], keeper=None)
    anything: Any = None
    supervisor: Any = Supervisor(broker, notifier=anything, audience=anything)
    supervisor._loop = SimpleNamespace(call_later=lambda _delay_s, tick: later.append(tick))
    supervisor._keep_house = lambda: 1 // 0
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            supervisor._tick()
    assert later == [supervisor._tick] * 2


def test_a_shard_that_cannot_be_looked_after_costs_no_other_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[object] = []
    shards = [SupervisedShard(number, is_founder=True) for number in range(3)]
    broker: Any = SimpleNamespace(members=shards, relays=[], keeper=None)
    anything: Any = None
    supervisor: Any = Supervisor(broker, notifier=anything, audience=anything)
    supervisor._loop = SimpleNamespace(call_later=lambda _delay_s, _tick: None)
    supervisor._last_tick = time.monotonic()

    def deliver(shard: SupervisedShard, event: object) -> None:
        looked.append((shard.number, event))
        assert shard.number != 1

    monkeypatch.setattr(supervisor, "_deliver", deliver)
    monkeypatch.setattr(supervisor, "_keep_house", lambda: looked.append("house"))
    with pytest.raises(AssertionError):
        supervisor._tick()
    assert looked == [*((number, TimePassed()) for number in range(3)), "house"]


def test_whether_a_shard_computes_is_asked_while_its_answer_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, object]] = []
    shards = [SupervisedShard(number, is_founder=True) for number in range(3)]
    for shard in shards:
        process: Any = SimpleNamespace(has_computed=lambda ping: ping == 5)
        shard.process = process
        shard.state = ShardState(phase=Phase.READY, ping_seq=5, is_suspect=shard.number > 0)
    shards[2].process = None  # (it could not be started)
    broker: Any = SimpleNamespace(members=shards, relays=[], keeper=None)
    anything: Any = None
    supervisor: Any = Supervisor(broker, notifier=anything, audience=anything)
    supervisor._loop = SimpleNamespace(call_later=lambda _delay_s, _tick: None)
    supervisor._last_tick = time.monotonic()
    monkeypatch.setattr(supervisor, "_deliver", lambda shard, event: told.append((shard.number, event)))
    monkeypatch.setattr(supervisor, "_keep_house", lambda: None)
    supervisor._tick()
    assert told == [(0, TimePassed(False)), (1, TimePassed(True)), (2, TimePassed(False))]


@pytest.mark.parametrize("fails", ["settle", "rotate", "relays", "gaps", "mend", "catch up", "hold", "notify"])
def test_what_cannot_be_looked_after_costs_nothing_else_its_turn(fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk would have a service manager end the broker, which hears nothing of it any more."""
    done: list[str] = []

    def does(what: str) -> Any:
        def do(*_given: object) -> None:
            done.append(what)
            assert what != fails

        return do

    broker: Any = SimpleNamespace(
        members=[], relays=[], keeper=None, stats_dir="",
        page=SimpleNamespace(settle_connections=does("settle")),
        gaps=SimpleNamespace(write=does("gaps")),
        holdings=SimpleNamespace(catch_up=does("catch up")),
    )  # fmt: skip
    anything: Any = None
    supervisor: Any = Supervisor(broker, notifier=anything, audience=anything)
    supervisor._relays = SimpleNamespace(on_tick=does("relays"))
    monkeypatch.setattr("gnatswarm.shards.boundary.logs.rotate_when_full", does("rotate"))
    for name in ("mend", "hold", "notify"):
        monkeypatch.setattr(supervisor, f"_{name}", does(name))
    with pytest.raises(AssertionError):
        supervisor._keep_house()
    assert done == ["settle", "rotate", "relays", "gaps", "mend", "catch up", "hold", "notify"]


# The loop ends only when its threads have.
_ENDS_SLOWLY = f"""
import asyncio
import threading
from gnatswarm.router.companions import Companions
run = Companions.run
async def slowly(self, supervisor):
    try:
        return await run(self, supervisor)
    finally:
        asyncio.get_running_loop().run_in_executor(None, threading.Event().wait, {3 * TICK_S})
Companions.run = slowly
"""


def test_a_router_that_is_slow_to_end_looks_after_nothing_meanwhile(tmp_path: Path) -> None:
    """Sockets of the broker are closed by then: a tick would fail."""
    with Router(tmp_path, 1, first=_ENDS_SLOWLY) as router:
        router.wait_ready()
        router.process.send_signal(signal.SIGTERM)
        assert router.process.wait(DEADLINE_S) == 0
        router.log.join()
        assert [line for line in router.log.lines if "[FTL]" in line] == []


def test_scaling_down_to_shards_that_do_not_serve_is_refused() -> None:
    """All clients would be closed, and nobody could take them."""
    shards = [SupervisedShard(number, is_founder=True) for number in range(2)]
    shards[0].state = ShardState(phase=Phase.BACKING_OFF, is_wanted=True)
    shards[1].state = ShardState(phase=Phase.READY, is_wanted=True, is_in_step=True)
    broker: Any = SimpleNamespace(
        shards=shards,
        members=shards,
        relays=[],
        keeper=None,
        rolling=None,
        wanted=2,
        most_shards=8,
        is_serving=True,
        is_leaving=False,
    )
    nothing: Any = None
    supervisor = Supervisor(broker, notifier=nothing, audience=nothing)
    assert supervisor.scale(1) == (
        "no shard below 1 serves now, so clients could not move there: try again when one does"
    )
    assert broker.wanted == 2


def a_broker_of(shard: SupervisedShard, done: list[object]) -> Any:
    return SimpleNamespace(
        shards=[shard],
        members=[shard],
        relays=[],
        keeper=SimpleNamespace(forgotten=lambda pid: done.append(("forgotten", pid))),
        gateway=None,
        listener_groups=SimpleNamespace(steer=lambda numbers: None),
        is_serving=True,
        is_leaving=False,
        rolling=None,
        stats_dir="",
        page=SimpleNamespace(connections=0, forget_connections=lambda number: 0),
        runtime_files=SimpleNamespace(link_dir="/dev/null/no-directory"),
        remember=lambda: done.append("remember"),
    )


def test_a_shard_whose_end_could_not_be_told_to_all_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its next start, a shard would be lost for good, and the broker could not stop."""
    done: list[object] = []
    shard = SupervisedShard(0, is_founder=True)
    shard.state = ShardState(phase=Phase.READY, is_wanted=True, was_ready=True)
    process: Any = SimpleNamespace(pid=7, boot_id="b", on_exited=lambda: None, close=lambda: None)
    shard.process = process
    notifier: Any = SimpleNamespace(observe=lambda *_states, **_named: None)
    audience: Any = SimpleNamespace(on_shard_gone=lambda number: 1 // 0)
    supervisor = Supervisor(a_broker_of(shard, done), notifier=notifier, audience=audience)
    monkeypatch.setattr(supervisor, "_spawn", lambda one: done.append(("spawn", one.number)))
    with pytest.raises(ZeroDivisionError):
        supervisor.on_exited(7, signal.SIGKILL)
    assert done == [("spawn", 0), "remember", ("forgotten", 7)]
    assert shard.state.phase is Phase.STARTING


def test_a_shard_whose_start_failed_half_way_is_started_again_at_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no process that could be killed, or whose end somebody would tell."""
    done: list[object] = []
    shard = SupervisedShard(0, is_founder=True)
    shard.state = ShardState(phase=Phase.STARTING, is_wanted=True, was_ready=True, deadline=0.0)
    notifier: Any = SimpleNamespace(observe=lambda *_states, **_named: None)
    nothing: Any = None
    supervisor = Supervisor(a_broker_of(shard, done), notifier=notifier, audience=nothing)
    monkeypatch.setattr(supervisor, "_spawn", lambda one: done.append("spawn"))
    supervisor._deliver(shard, TimePassed())
    assert "spawn" in done
    assert shard.state.phase is Phase.STARTING and shard.state.last_reason == "it was not ready within 30 s"


def test_listeners_of_shards_that_cannot_be_added_are_closed() -> None:
    """Where connections cannot be steered, the kernel would have some wait there for ever."""
    shard = SupervisedShard(0, is_founder=True)
    shard.state = ShardState(phase=Phase.READY, is_wanted=True)
    broker = a_broker_of(shard, [])
    shrunk: list[int] = []

    def grow_to(_shards: int) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    broker.wanted, broker.most_shards, broker.options = 1, 8, Options()
    broker.listener_groups = SimpleNamespace(grow_to=grow_to, shrink_to=shrunk.append)
    nothing: Any = None
    supervisor = Supervisor(broker, notifier=nothing, audience=nothing)
    assert supervisor.scale(4) == "cannot open another listener: Too many open files"
    assert shrunk == [1] and broker.wanted == 1


@pytest.mark.parametrize("what", ["stop", "lame duck"])
def test_shards_are_told_to_end_although_somebody_else_could_not_be_told(what: str) -> None:
    """Nothing could end the broker any more: it is stopping already."""
    shard = SupervisedShard(0, is_founder=True)
    shard.state = ShardState(phase=Phase.READY, is_wanted=True)
    said: list[object] = []
    process: Any = SimpleNamespace(boot_id="b", send=said.append)
    shard.process = process
    broker = a_broker_of(shard, [])
    closed: list[str] = []
    broker.listener_groups = SimpleNamespace(
        refuse=lambda but: closed.append("refused"), close=lambda: closed.append("closed"), steer=lambda numbers: None
    )
    broker.hold, broker.options = lambda more: None, Options()
    notifier: Any = SimpleNamespace(observe=lambda *_states, **_named: None)
    audience: Any = SimpleNamespace(on_stopping=lambda: 1 // 0, on_lame_duck=lambda: 1 // 0)
    supervisor = Supervisor(broker, notifier=notifier, audience=audience)
    with pytest.raises(ZeroDivisionError):
        supervisor.stop(0) if what == "stop" else supervisor.become_lame_duck()
    assert closed == ["refused" if what == "stop" else "closed"]
    assert any(isinstance(message, Stop if what == "stop" else LameDuck) for message in said)
