"""The keeper: parent of router and shards. A router that dies is replaced; a keeper that dies takes all with it."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec
import pytest

from gnatswarm import keeper
from gnatswarm.keeper import MOST_DEATHS
from gnatswarm.shards.boundary import keeping
from tests.router.routers import DEADLINE_S, Router, dial, option_tree, pause, wait_until
from tests.support.servers import suspended, wait_pids_gone

SCALE_TO_2 = "import sys\nfrom gnatswarm.router.commands.operator_commands import scale\nsys.exit(scale(2))"


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def state_of(pid: int) -> str:
    """What a process does, in the kernel's letters: S if it waits."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def children_of(pid: int) -> dict[int, str]:
    """The name of a process, by its pid."""
    found = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                if parent_of(int(entry.name)) == pid:
                    found[int(entry.name)] = Path(entry.path, "comm").read_text().strip()
            except OSError:
                continue
    return found


def sockets_of(pid: int) -> set[str]:
    """The kernel's names of the sockets it holds."""
    found = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            found.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    return {name for name in found if name.startswith("socket:")}


def shard_pids(router: Router) -> list[int]:
    return [row["pid"] for row in router.status()["shards"]]


def _has_another(router: Router, killed: int) -> bool:
    """Two shards serve and nothing else runs beside the router; none is the one that was killed."""
    rows = router.status()["shards"]
    is_ready = [row["phase"] for row in rows] == ["ready", "ready"]
    return is_ready and killed not in (row["pid"] for row in rows) and len(children_of(router.process.pid)) == 3


def phases(router: Router) -> list[str]:
    return [row["phase"] for row in router.status()["shards"]]


def no_descriptors(pid: int) -> tuple[int, int]:
    """The keeper can open no more, once it has what another router needs; returns its limits of before."""
    record = "memfd:gnatswarm-record"
    wait_until(lambda: any(record in os.readlink(one.path) for one in os.scandir(f"/proc/{pid}/fd")), "a record")
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    used = {int(one.name) for one in os.scandir(f"/proc/{pid}/fd")}
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (min(set(range(len(used) + 1)) - used), limits[1]))
    return limits


def held_options(pid: int) -> list[int]:
    """The generations of the options that the keeper holds."""
    found: list[int] = []
    for one in os.scandir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # it is closing that one, for the next
            if "memfd:gnatswarm-options" in os.readlink(one.path):
                found.append(msgspec.msgpack.decode(Path(one.path).read_bytes())["generation"])
    return found


def info_from(port: int) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        return client.recv(4096)


class TestProcesses:
    def test_router_and_shards_are_its_children_and_a_shard_holds_what_it_was_given(self, tmp_path: Path) -> None:
        with Router(tmp_path, 2, is_real=True) as router:
            router.wait_ready()
            pids = shard_pids(router)
            below = children_of(router.process.pid)
            assert below == {router.router_pid(): "gnat-router", **dict.fromkeys(pids, "gnat-shard")}
            assert info_from(router.port).startswith(b"INFO ")
            of_router = sockets_of(router.router_pid())
            listeners = [sockets_of(pid) & of_router for pid in pids]
            # Each holds its own listener, and not its sibling's.
            assert len(listeners[0]) == len(listeners[1]) == 1
            assert listeners[0] != listeners[1]
            # … and nothing that is the keeper's: its channel to the router, and the other ends of lifelines.
            of_keeper = sockets_of(router.process.pid) - of_router
            assert of_keeper
            assert not [pid for pid in pids if sockets_of(pid) & of_keeper]

    def test_each_process_says_what_it_is(self, tmp_path: Path) -> None:
        """And none of them is taken for a broker by `--signal`, which looks for command lines."""
        with Router(tmp_path, 2, is_real=True, cluster={"host": "127.0.0.1", "port": -1}) as router:
            router.wait_ready()
            below = children_of(router.process.pid)
            titles = {Path(f"/proc/{pid}/cmdline").read_text().strip("\0"): name for pid, name in below.items()}
            assert titles == {
                "gnatswarm: router": "gnat-router",
                "gnatswarm: shard 0": "gnat-shard",
                "gnatswarm: shard 1": "gnat-shard",
                "gnatswarm: gateway": "gnat-gateway",
            }

    def test_a_killed_shard_is_forked_again(self, tmp_path: Path) -> None:
        with Router(tmp_path, 1, is_real=True) as router:
            router.wait_ready()
            (old,) = shard_pids(router)
            os.kill(old, signal.SIGKILL)
            router.wait_log(r"Shard 0 died: killed by SIGKILL; starting it again")
            wait_until(lambda: phases(router) == ["ready"], "it is back")
            (new,) = shard_pids(router)
            assert new != old
            assert parent_of(new) == router.process.pid
            assert info_from(router.port).startswith(b"INFO ")

    def test_many_shards_start_at_once(self, tmp_path: Path) -> None:
        with Router(tmp_path, 62, is_real=True) as router:
            router.wait_log("Server is ready", 90.0)
            assert len(set(shard_pids(router))) == 62
            assert info_from(router.port).startswith(b"INFO ")

    def test_it_reaps_orphans_as_the_first_process_of_a_container_must(self, tmp_path: Path) -> None:
        """A child that is not one of its own, as the kernel hands orphans to process 1."""
        code = (
            "import os, sys, time\n"
            "from gnatswarm.keeper import keep\n"
            "if os.fork() == 0: os._exit(3)\n"  # not waited for by anybody
            "def state(pid):\n"
            "    try: return open(f'/proc/{pid}/stat').read().rpartition(')')[2].split()[:2]\n"
            "    except OSError: return []\n"  # it has just ended, and is nobody's zombie
            "def route(post):\n"
            "    print('routing', flush=True)\n"
            "    post.sock.recv(1)\n"  # SIGTERM is passed on
            "    own = str(os.getppid())\n"
            "    print(sum(state(p) == ['Z', own] for p in os.listdir('/proc') if p.isdigit()), flush=True)\n"
            "    return 0\n"
            "sys.exit(keep(route, prepares=False))\n"
        )
        with subprocess.Popen([sys.executable, "-P", "-c", code], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "routing\n"
            wait_until(lambda: len(children_of(process.pid)) == 1, "the orphan is reaped, the router runs")
            process.send_signal(signal.SIGTERM)
            assert process.stdout.readline() == "0\n"
            assert process.wait(DEADLINE_S) == 0


class TestKeeperDies:
    def test_it_takes_all_with_it(self, tmp_path: Path) -> None:
        router = Router(tmp_path, 3, is_real=True)
        router.wait_ready()
        port, below = router.port, list(children_of(router.process.pid))
        assert len(below) == 4
        router.kill()
        assert wait_pids_gone(below, 30.0) == []
        assert router.leftovers() == []
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=2)

    def test_at_any_moment_of_its_start_it_leaves_nobody(self, tmp_path: Path) -> None:
        for delay_ms in range(0, 240, 20):
            router = Router(tmp_path, 2, is_real=True)
            pause(delay_ms / 1000)  # the moment of death is the test's input
            session = router.process.pid
            router.kill()
            wait_until(partial(_is_empty, session), "nobody is left")
            assert router.leftovers() == [], f"killed after {delay_ms} ms"

    def test_after_the_router_was_replaced(self, tmp_path: Path) -> None:
        router = Router(tmp_path, 2, is_real=True)
        router.wait_ready()
        router.kill_router()
        below = list(children_of(router.process.pid))
        router.kill()
        assert wait_pids_gone(below, 30.0) == []
        assert router.leftovers() == []


def _is_empty(session: int) -> bool:
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                fields = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == session and fields[0] not in "ZX":
                return False
    return True


@pytest.fixture(params=["reuseport", "handoff"])
def accept(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class TestRouterDies:
    """The router alone is killed: shards and clients stay, everything that a router does goes on."""

    def test_shards_clients_and_counts_stay(self, tmp_path: Path, accept: str) -> None:
        with Router(tmp_path, 2, accept=accept, is_real=False) as router:
            router.wait_ready()
            clients = dial(router.port, 20)
            for client in clients:
                client.greeting()
            before = router.status()
            for _ in range(3):
                router.kill_router()
            after = router.status()
            for name in ("pid", "address", "server_name", "accept", "steering", "connections"):
                assert after[name] == before[name]
            assert after["router_pid"] != before["router_pid"]
            assert [(row["pid"], row["starts"], row["phase"]) for row in after["shards"]] == [
                (row["pid"], 1, "ready") for row in before["shards"]
            ]
            late = dial(router.port, 20)
            assert {client.greeting()[0] for client in late} == {0, 1}
            assert router.status()["connections"] == 40
            for client in [*clients, *late]:
                client.close()
            wait_until(lambda: router.status()["connections"] == 0, "those who leave are counted")
            assert len(router.leftovers()) == 1

    def test_supervision_scaling_and_reload_go_on(self, tmp_path: Path, accept: str) -> None:
        path = tmp_path / "options.json"
        with Router(tmp_path, 1, accept=accept, environment={"RELOADED_OPTIONS": str(path)}) as router:
            router.wait_ready()
            router.kill_router()
            os.kill(router.pid_of(0), signal.SIGKILL)
            wait_until(lambda: phases(router) == ["ready"] and router.status()["shards"][0]["starts"] == 2, "restarted")
            assert router.operator("scale", "3").returncode == 0
            router.kill_router()
            assert phases(router) == ["ready"] * 3
            assert router.operator("scale", "2").returncode == 0
            tree = option_tree(3, -1, accept, limits={"max_connections": 3})
            path.write_text(json.dumps(tree))
            router.process.send_signal(signal.SIGHUP)
            router.wait_log("Reloaded server configuration")
            wait_until(lambda: phases(router) == ["ready"] * 3, "three shards")
            router.note_pids()

    def test_a_shard_that_dies_in_the_gap_is_started_again(self, tmp_path: Path, accept: str) -> None:
        with Router(tmp_path, 2, accept=accept) as router:
            router.wait_ready()
            victim, old = router.pid_of(1), router.router_pid()
            os.kill(old, signal.SIGSTOP)  # it cannot see the death
            os.kill(victim, signal.SIGKILL)
            os.kill(old, signal.SIGKILL)
            router.wait_log(r"\[WRN\] Shard 1 died: killed by SIGKILL; starting it again")
            wait_until(lambda: phases(router) == ["ready", "ready"], "it is back")
            assert [row["starts"] for row in router.status()["shards"]] == [1, 2]
            router.note_pids()

    def test_while_a_shard_starts(self, tmp_path: Path) -> None:
        """One that was never ready ends, and another is started; none is left over."""
        with Router(tmp_path, 2, is_real=True) as router:
            router.wait_ready()
            for _ in range(MOST_DEATHS - 1):
                killed = shard_pids(router)[1]
                os.kill(killed, signal.SIGKILL)
                router.kill_router()
                # (a router that takes over may not have heard of the death yet)
                wait_until(partial(_has_another, router, killed), "both serve, and none is left over")
            assert info_from(router.port).startswith(b"INFO ")

    def test_before_it_hears_where_a_new_shard_listens(self, tmp_path: Path) -> None:
        """That one is a stranger to the next router, and leaves no sockets."""
        with Router(tmp_path, 1, is_real=True) as router:
            router.wait_ready()
            victim = router.router_pid()
            (directory,) = (router.runtime / "gnatswarm").glob(f"{router.process.pid}-*")
            with suspended(router.process.pid):
                scaling = subprocess.Popen([sys.executable, "-P", "-c", SCALE_TO_2], env=router.environment)
                router.wait_log("Scaling from 1 to 2 shards")
                wait_until(lambda: state_of(victim) == "S", "it has asked the keeper for one, and waits")
                os.kill(victim, signal.SIGSTOP)
            wait_until(lambda: any(directory.glob("1.*.sock")), "the new shard listens")
            (strange,) = directory.glob("1.*.sock")
            os.kill(victim, signal.SIGKILL)
            scaling.wait(DEADLINE_S)
            wait_until(partial(_are_ready, router, len(shard_pids(router))), "all serve")
            wait_until(lambda: not strange.exists(), "its socket is removed")
            assert len(list(directory.glob("*.sock"))) == len(shard_pids(router)) + 1  # and the operators'

    def test_while_it_scales(self, tmp_path: Path, accept: str) -> None:
        with Router(tmp_path, 1, accept=accept, is_real=True) as router:
            router.wait_ready()
            for signals, wanted in ((signal.SIGTTIN, 2), (signal.SIGTTIN, 3), (signal.SIGTTOU, 2), (signal.SIGTTOU, 1)):
                seen = len(router.log.lines)
                router.process.send_signal(signals)
                router.wait_log(f"Scaling from . to {wanted} shards", start=seen)
                os.kill(router.router_pid(), signal.SIGKILL)
                wait_until(partial(_are_ready, router, wanted), f"{wanted} shards", 20.0)
                assert info_from(router.port).startswith(b"INFO ")

    def test_while_the_keeper_has_no_room_for_another(self, tmp_path: Path) -> None:
        """It has no descriptors, as it may have no memory or no processes: shards serve on, and it tries again."""
        with Router(tmp_path, 2, is_real=True) as router:
            router.wait_ready()
            pid, seen = router.process.pid, shard_pids(router)
            limits = no_descriptors(pid)
            os.kill(router.router_pid(), signal.SIGKILL)
            router.wait_log(r"\[ERR\] Cannot start another router: Too many open files; trying again")
            assert info_from(router.port).startswith(b"INFO ")
            resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
            router.wait_log("The router died: killed by SIGKILL")
            assert shard_pids(router) == seen
            assert len([line for line in router.log.lines if "Cannot start another router" in line]) == 1

    def test_while_the_keeper_has_no_room_for_the_options_of_a_reload(self, tmp_path: Path) -> None:
        """The log says it, and when there is room again another router goes on with the new options."""
        path = tmp_path / "options.json"
        with Router(tmp_path, 2, environment={"RELOADED_OPTIONS": str(path)}) as router:
            router.wait_ready()
            limits = no_descriptors(router.process.pid)
            path.write_text(json.dumps(option_tree(2, -1, "reuseport", limits={"max_connections": 3})))
            router.process.send_signal(signal.SIGHUP)
            router.wait_log(r"\[ERR\] The main process has no descriptor left to keep the options for another router")
            assert held_options(router.process.pid) == [0]
            resource.prlimit(router.process.pid, resource.RLIMIT_NOFILE, limits)
            wait_until(lambda: held_options(router.process.pid) == [1], "the keeper has those of the reload")
            router.kill_router()
            router.wait_log("goes on with its shards")
            assert {row["generation"] for row in router.reloads()} == {1}

    def test_it_ends_though_there_is_no_room_for_another(self, tmp_path: Path) -> None:
        with Router(tmp_path, 2, is_real=True) as router:
            router.wait_ready()
            no_descriptors(router.process.pid)
            os.kill(router.router_pid(), signal.SIGKILL)
            router.wait_log("Cannot start another router")
            router.process.send_signal(signal.SIGTERM)
            assert router.process.wait(DEADLINE_S) == 1
            assert router.leftovers() == []

    def test_in_the_moment_of_a_signal(self, tmp_path: Path) -> None:
        """The keeper reads of both at once: the next router carries it out."""
        path = tmp_path / "options.json"
        with Router(tmp_path, 2, environment={"RELOADED_OPTIONS": str(path)}) as router:
            router.wait_ready()
            path.write_text(json.dumps(option_tree(2, -1, "reuseport", limits={"max_connections": 3})))
            victim = router.router_pid()
            with suspended(router.process.pid):
                router.process.send_signal(signal.SIGHUP)
                os.kill(victim, signal.SIGSTOP)
                os.kill(victim, signal.SIGKILL)
            router.wait_log("The router died: killed by SIGKILL")
            router.wait_log("Reloaded: ")
            assert router.router_pid() != victim

    def test_a_shard_that_missed_a_reload_is_told(self, tmp_path: Path) -> None:
        path = tmp_path / "options.json"
        with Router(tmp_path, 2, environment={"RELOADED_OPTIONS": str(path)}) as router:
            router.wait_ready()
            path.write_text(json.dumps(option_tree(2, -1, "reuseport", limits={"max_connections": 3})))
            stopped = router.pid_of(1)
            os.kill(stopped, signal.SIGSTOP)
            router.process.send_signal(signal.SIGHUP)
            router.wait_log("Reloaded: ")
            router.kill_router()
            os.kill(stopped, signal.SIGCONT)
            wait_until(lambda: {0, 1} == {row["shard"] for row in router.reloads()}, "both have the new options")
            assert {row["generation"] for row in router.reloads()} == {1}

    def test_in_lame_duck_mode(self, tmp_path: Path) -> None:
        limits = {"lame_duck_grace_s": 4.0, "lame_duck_duration_s": 0.5}
        with Router(tmp_path, 2, is_real=True, limits=limits) as router:
            router.wait_ready()
            port, victim = router.port, router.router_pid()
            router.process.send_signal(signal.SIGUSR2)
            router.wait_log("Entering lame duck mode")
            os.kill(victim, signal.SIGKILL)
            router.wait_log("The router died: killed by SIGKILL")
            # It was killed in the middle of this: the next one finishes it.
            wait_until(partial(_is_refused, port), "nobody listens")
            assert router.process.wait(DEADLINE_S) == 0
            assert router.leftovers() == []

    def test_monitoring_is_served_again_on_the_same_port(self, tmp_path: Path) -> None:
        with Router(tmp_path, 2, is_real=True, http_port=-1) as router:
            router.wait_ready()
            port = router.wait_log(r"Starting http monitor on 127\.0\.0\.1:(\d+)")[1]
            with socket.create_connection(("127.0.0.1", int(port)), timeout=30) as reader:
                reader.sendall(b"GET /varz HTTP/1.1\r\nHost: 127.0.0.1\r\n")  # and never ends
                router.kill_router()
                with contextlib.suppress(ConnectionResetError):
                    assert reader.recv(100) == b""
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/shardz", timeout=30) as answer:
                assert json.load(answer)["router"]["pid"] == router.router_pid()

    def test_its_files_are_removed_at_the_end(self, tmp_path: Path) -> None:
        pid_file = tmp_path / "pid"
        with Router(tmp_path, 1, pid_file=str(pid_file), ports_file_dir=str(tmp_path)) as router:
            router.wait_ready()
            router.kill_router()
            assert pid_file.read_text() == str(router.process.pid)
            assert len(list(tmp_path.glob("*.ports"))) == 1
        assert not pid_file.exists()
        assert list(tmp_path.glob("*.ports")) == []
        assert router.leftovers() == []

    def test_after_a_stop_it_is_not_replaced(self, tmp_path: Path) -> None:
        with Router(tmp_path, 2) as router:
            router.wait_ready()
            os.kill(router.pid_of(0), signal.SIGSTOP)  # so that stopping takes a while
            victim = router.router_pid()
            router.process.send_signal(signal.SIGTERM)
            router.wait_log("Initiating Shutdown")
            os.kill(victim, signal.SIGKILL)
            assert router.process.wait(DEADLINE_S) == 1
            assert router.leftovers() == []
            assert "The router died" not in router.log.text

    def test_a_router_that_hangs_does_not_keep_the_broker_from_ending(self, tmp_path: Path) -> None:
        with Router(tmp_path, 2, is_real=True) as router:
            router.wait_ready()
            below = list(children_of(router.process.pid))
            os.kill(router.router_pid(), signal.SIGSTOP)
            router.process.send_signal(signal.SIGTERM)
            pause(keeper.SAME_REQUEST_S + 0.1)  # what comes sooner is the same request
            router.process.send_signal(signal.SIGTERM)
            assert router.process.wait(DEADLINE_S) == 1
            assert wait_pids_gone(below, 30.0) == []
            assert router.leftovers() == []

    def test_a_router_that_has_heard_both_times_ends_when_it_wants(self, tmp_path: Path) -> None:
        """In lame duck mode, which does not heed them."""
        limits = {"lame_duck_grace_s": keeper.UNHEARD_S + 1, "lame_duck_duration_s": 0.5}
        with Router(tmp_path, 2, is_real=True, limits=limits) as router:
            router.wait_ready()
            (client,) = dial(router.port, 1)
            router.process.send_signal(signal.SIGUSR2)
            router.wait_log("Entering lame duck mode")
            for _ in range(2):
                router.process.send_signal(signal.SIGTERM)
                pause(keeper.SAME_REQUEST_S + 0.1)
            assert router.process.wait(DEADLINE_S) == 0
            client.close()

    def test_a_group_that_is_told_to_stop_stops(self, tmp_path: Path) -> None:
        with Router(tmp_path, 2, is_real=True) as router:
            router.wait_ready()
            below = list(children_of(router.process.pid))
            os.killpg(router.process.pid, signal.SIGTERM)
            assert router.process.wait(DEADLINE_S) == 0
            assert wait_pids_gone(below, 30.0) == []
            assert router.leftovers() == []

    def test_signals_to_the_router_itself_do_nothing(self, tmp_path: Path) -> None:
        with Router(tmp_path, 1) as router:
            router.wait_ready()
            before = router.router_pid()
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2):
                os.kill(before, number)
            assert router.router_pid() == before
            assert phases(router) == ["ready"]

    def test_one_that_dies_again_and_again_ends_the_broker_and_says_so(self, tmp_path: Path) -> None:
        with Router(tmp_path, 1) as router:
            router.wait_ready()
            for _ in range(MOST_DEATHS - 1):
                router.kill_router()
            os.kill(router.router_pid(), signal.SIGKILL)
            assert router.process.wait(DEADLINE_S) == 1
            router.wait_log(rf"\[FTL\] The router died: killed by SIGKILL, the {MOST_DEATHS}th time within \d+ s")
            assert router.leftovers() == []

    def test_before_the_broker_serves_it_is_not_replaced(self, tmp_path: Path) -> None:
        with Router(tmp_path, 1, environment={"FAKE_SHARD_MUTE": "1"}) as router:
            router.wait_log("Listening for client connections")
            (victim,) = [pid for pid, name in children_of(router.process.pid).items() if name == "gnat-router"]
            os.kill(victim, signal.SIGKILL)
            assert router.process.wait(DEADLINE_S) == 1
            router.wait_log(r"\[FTL\] The router died: killed by SIGKILL\. The broker ends")
            assert router.leftovers() == []

    def test_descriptors_do_not_pile_up(self, tmp_path: Path, accept: str) -> None:
        with Router(tmp_path, 2, accept=accept) as router:
            router.wait_ready()

            def counts(*pids: int) -> list[int]:
                return [len(os.listdir(f"/proc/{pid}/fd")) for pid in pids]

            shards = [boot["pid"] for boot in router.boots()]
            before = counts(*shards)
            router.kill_router()
            # A shard that has not read its new channel yet, which comes through the keeper, has one less.
            wait_until(lambda: counts(*shards) == before, "a new channel to each shard")
            first = counts(router.process.pid, router.router_pid(), *shards)
            for _ in range(2):
                router.kill_router()
            # The operator's own connection may still have been open when they were counted first.
            wait_until(
                lambda: all(map(int.__le__, counts(router.process.pid, router.router_pid(), *shards), first)),
                "no more than after the first death",
            )


def _is_refused(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=2).close()
    except ConnectionRefusedError:
        return True
    return False


def _are_ready(router: Router, wanted: int) -> bool:
    return phases(router) == ["ready"] * wanted


def test_descriptors_get_their_numbers_even_where_those_are_in_use() -> None:
    code = (
        "import os\nfrom gnatswarm.keeper import place_descriptors\n"
        "a, b, c = os.memfd_create('a'), os.memfd_create('b'), os.memfd_create('c')\n"
        "place_descriptors([a, b, c], [b, c, 77])\n"
        "print([os.readlink(f'/proc/self/fd/{n}').split(' ')[0] for n in (b, c, 77)])\n"
        "print(os.path.exists(f'/proc/self/fd/{a}'))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout == "['/memfd:a', '/memfd:b', '/memfd:c']\nFalse\n"


@pytest.mark.parametrize("has_proc", [True, False])
def test_all_descriptors_but_some_are_closed_also_where_there_is_no_proc(has_proc: bool) -> None:
    code = (
        "import errno, os\nfrom gnatswarm.keeper import close_all_but\n"
        "a, b, c, d = (os.memfd_create(name) for name in 'abcd')\n"
        "e = os.dup2(a, 900)\n"
        "def hidden(path): raise FileNotFoundError(errno.ENOENT, 'there is no /proc', path)\n"
        f"if not {has_proc}: os.listdir = hidden\n"
        "close_all_but({b, d})\n"
        "print([os.path.exists(f'/proc/self/fd/{n}') for n in (0, 1, 2, a, b, c, d, e)])"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout == "[True, True, True, False, True, False, True, False]\n"


def test_a_process_that_has_ended_is_not_killed_because_its_number_may_be_anothers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    killed: list[int] = []
    monkeypatch.setattr(keeper, "_kill", killed.append)
    one = keeper._Keeper(lambda post: 0, -1, keeper._Again("gnatswarm", (), {}))
    one._children = {pid: keeper._Child(pid, 0, socket.socket()) for pid in (77, 78)}
    one._children[77].status = 0  # reaped, and the router has not read that yet
    for pid in (77, 78, 79):
        one._carry_out(one._words.Kill(pid), [])
    assert killed == [78]
    for child in one._children.values():
        child.lifeline.close()


def test_a_router_is_told_nothing_that_was_meant_for_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fork", lambda: 77)
    one = keeper._Keeper(lambda post: 0, -1, keeper._Again("gnatswarm", (), {}))
    one._unsent = [one._words.Launched(5)]  # its queue was full when it died
    one._start_router("it died")
    assert (one._router_pid, one._unsent) == (77, [])
    assert one._sock is not None
    one._sock.close()


def test_a_router_that_reads_slowly_hears_of_every_exit() -> None:
    one = keeper._Keeper(lambda post: 0, -1, keeper._Again("gnatswarm", (), {}))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # the kernel's least
        one._sock = ours
        told = [one._words.Exited(pid, 0) for pid in range(1, 401)]
        for packet in told:
            one._say(packet)
        decoder = keeping.decoder_of(keeping.ToRouter)
        heard: list[keeping.Packet] = []
        while len(heard) < len(told):
            before = len(heard)
            with contextlib.suppress(BlockingIOError):
                while received := keeping.receive(theirs, decoder, socket.MSG_DONTWAIT):
                    heard.append(received[0])
            assert before < len(heard) < len(told) + 1, "no more comes, though not all was heard"
            one._flush()
        assert heard == told


def test_what_is_not_held_is_said() -> None:
    """Its descriptor did not come along, because the keeper has none left: what it held before stays."""
    one = keeper._Keeper(lambda post: 0, -1, keeper._Again("gnatswarm", (), {}))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        one._sock = ours
        first = os.dup(ours.fileno())
        one._carry_out(keeping.Hold("options"), [first])
        one._carry_out(keeping.Hold("options"), [])
        assert one._held == {"options": first}
        decoder = keeping.decoder_of(keeping.ToRouter)
        answers = [keeping.receive(theirs, decoder, socket.MSG_DONTWAIT) for _ in range(2)]
        assert answers == [(keeping.Held("options", True), []), (keeping.Held("options", False), [])]
        one._release("options")


def test_a_router_that_has_to_prove_itself_is_killed_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[int] = []
    monkeypatch.setattr(keeper, "_kill", killed.append)
    one = keeper._Keeper(lambda post: 0, -1, keeper._Again("gnatswarm", (), {}))
    one._candidate, one._is_candidate, one._router_pid = ["next"], True, 77
    one._proof_until = time.monotonic() + 1000
    assert 0 < (one._until_due_ms() or 0) <= 1_000_001
    assert killed == []
    one._proof_until = time.monotonic() - 1
    assert one._until_due_ms() is None
    assert killed == [77]


def test_after_an_upgrade_a_router_that_dies_is_replaced_by_one_of_the_new_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Until the keeper has become that program, too; which may be impossible."""

    class BecameRouter(Exception):
        """In the place of exec."""

    def become(_keeper: object, sock: socket.socket, _reason: str, command: list[str] | str) -> None:
        sock.close()
        raise BecameRouter(command)

    monkeypatch.setattr(os, "fork", lambda: 0)
    monkeypatch.setattr(keeper._Keeper, "_become_router", become)
    monkeypatch.setattr(keeper._Keeper, "_be_router", become)  # of the old program
    one = keeper._Keeper(lambda post: 0, -1, keeper._Again("gnatswarm", (), {}))
    one._carry_out(one._words.Succeed(["next", "router"]), [])
    for is_proven in (False, True):
        if is_proven:
            one._carry_out(one._words.TakenOver(), [])
        with pytest.raises(BecameRouter) as became:
            one._start_router("it died")
        assert became.value.args == (["next", "router"],)
        assert (one._candidate is None) is is_proven


class TestSignalsBetweenTwoRouters:
    """One that a router has not read is for the next: it was lost, or it ended the broker at once."""

    @pytest.fixture
    def one(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[keeper._Keeper]:
        """A keeper whose routers do nothing; `heard` reads for them."""
        monkeypatch.setattr(os, "fork", lambda: 77)
        one = keeper._Keeper(lambda post: 0, -1, keeper._Again("gnatswarm", (), {}))
        monkeypatch.setattr(one, "_end", lambda: pytest.fail("the broker ends"))
        one._start_router("")
        one._held[keeping.RECORD] = -1
        yield one
        for sock in (one._sock, one._theirs):
            assert sock is not None
            sock.close()

    @staticmethod
    def heard(one: keeper._Keeper) -> list[keeping.Packet]:
        """What the present router has not read before."""
        packets = []
        decoder = keeping.decoder_of(keeping.ToRouter)
        assert one._theirs is not None
        with contextlib.suppress(BlockingIOError):
            while received := keeping.receive(one._theirs, decoder, socket.MSG_DONTWAIT):
                packets.append(received[0])
        return packets

    @staticmethod
    def router_ends(one: keeper._Keeper) -> None:
        one._router_pid = 0
        assert one._after_router() is None
        assert one._router_pid == 77

    @pytest.mark.parametrize("how", ["it dies", "it makes room"])
    @pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2])
    def test_a_signal_between_two_routers_is_for_the_next(
        self, one: keeper._Keeper, number: signal.Signals, how: str
    ) -> None:
        one._on_signal(signal.SIGTTIN)
        assert self.heard(one) == [keeping.Signalled(signal.SIGTTIN)]
        one._on_signal(number)
        if how == "it makes room":
            one._carry_out(keeping.Succeed(["next"]), [])
        one._say(keeping.Exited(78, 0))
        one._on_signal(signal.SIGTTOU)  # when it is gone
        self.router_ends(one)
        assert self.heard(one) == [keeping.Signalled(number), keeping.Signalled(signal.SIGTTOU)]
        assert one._is_candidate is (how == "it makes room")
        one._carry_out(keeping.TakenOver(), [])
        self.router_ends(one)
        assert self.heard(one) == []

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    @pytest.mark.parametrize("when", ["read before it makes room", "before it makes room", "when it has"])
    def test_one_of_the_version_before_ends_the_broker(
        self, one: keeper._Keeper, number: signal.Signals, when: str
    ) -> None:
        if when != "when it has":
            one._on_signal(number)
        if when == "read before it makes room":
            assert self.heard(one) == [keeping.Signalled(number)]
        one._carry_out(keeping.Succeed(["next"]), [])
        if when == "when it has":
            one._on_signal(number)
        self.router_ends(one)
        assert not one._is_candidate
        is_read = when == "read before it makes room"
        assert self.heard(one) == [keeping.Signalled(signal.SIGTERM if is_read else number)]

    def test_none_is_lost_where_the_queue_was_full(self, one: keeper._Keeper) -> None:
        assert one._sock is not None
        one._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # the kernel's least
        numbers = [signal.SIGTTIN, signal.SIGTTOU] * 25
        for number in numbers:
            one._on_signal(number)
        assert 0 < len(one._unsent) < len(numbers)
        self.router_ends(one)
        assert self.heard(one) == [keeping.Signalled(number) for number in numbers]

    def test_none_is_lost_where_the_next_one_cannot_be_forked_at_once(
        self, one: keeper._Keeper, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one._on_signal(signal.SIGHUP)
        with monkeypatch.context() as full:
            full.setattr(os, "fork", lambda: (_ for _ in ()).throw(BlockingIOError(11, "no processes")))
            one._router_pid = 0
            assert one._after_router() is None
        assert one._due is not None
        one._on_signal(signal.SIGUSR2)
        assert one._try_again(*one._due) is None
        assert self.heard(one) == [keeping.Signalled(signal.SIGHUP), keeping.Signalled(signal.SIGUSR2)]

    def test_none_is_lost_where_the_keeper_becomes_another_program(
        self, one: keeper._Keeper, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """One that comes when it has done all else; and it hands on what a router has not read."""
        assert one._theirs is not None
        wakes, woken = one._own = socket.socketpair()
        woken.setblocking(False)
        wakes.send(bytes([signal.SIGUSR2]))
        left: list[tuple[int, bool]] = []

        def run(_command: list[str], descriptor: int) -> None:
            assert one._theirs is not None
            is_inheritable = one._theirs.get_inheritable()
            left.append((keeping.read_succession(os.dup(descriptor)).theirs, is_inheritable))
            raise FileNotFoundError(2, "No such file or directory")

        monkeypatch.setattr(one._again, "run", run)
        monkeypatch.setitem(one._held, keeping.RECORD, os.dup(0))
        before = os.listdir("/proc/self/fd")
        one._renew(["next"])
        assert os.listdir("/proc/self/fd") == before
        assert left == [(one._theirs.fileno(), True)]
        assert not one._theirs.get_inheritable()
        failed = keeping.Renewed("cannot run next: No such file or directory")
        assert self.heard(one) == [keeping.Signalled(signal.SIGUSR2), failed]
        one._release(keeping.RECORD)
        for end in one._own:
            end.close()

    def test_none_is_lost_where_the_keeper_has_become_another_program(
        self, one: keeper._Keeper, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It has what a router had not read before."""
        one._on_signal(signal.SIGHUP)
        assert one._sock is not None and one._theirs is not None
        later = keeper._Keeper(lambda post: 0, -1, keeper._Again("gnatswarm", (), {}))
        sock, theirs = (os.dup(end.fileno()) for end in (one._sock, one._theirs))
        later.take_over(keeping.Succession(False, sock, os.getpid(), {}, [], [], router_pid=77, theirs=theirs))
        later._held[keeping.RECORD] = -1
        monkeypatch.setattr(later, "_end", lambda: pytest.fail("the broker ends"))
        self.router_ends(later)
        assert self.heard(later) == [keeping.Signalled(signal.SIGHUP)]
        for end in (later._sock, later._theirs):
            assert end is not None
            end.close()

    def test_an_end_is_seen_though_its_signal_found_no_room_among_others(self, one: keeper._Keeper) -> None:
        """Nothing else tells of it: the keeper has a copy of the router's end of their channel."""
        wakes, woken = socket.socketpair()
        with wakes, woken, subprocess.Popen([sys.executable, "-c", ""]) as router:
            os.waitid(os.P_PID, router.pid, os.WEXITED | os.WNOWAIT)
            one._router_pid = router.pid
            wakes.send(bytes([signal.SIGTERM]))
            one._take_signals(woken)
            assert one._router_pid == 0
            router.returncode = 0  # (it was reaped)

    @staticmethod
    def begins_trial(one: keeper._Keeper) -> None:
        one._carry_out(keeping.Succeed(["next"]), [])
        one._router_pid = 0
        assert one._after_router() is None
        assert one._is_candidate

    def test_what_one_on_trial_was_told_is_for_the_version_before_when_that_comes_back(
        self, one: keeper._Keeper
    ) -> None:
        one._on_signal(signal.SIGUSR1)
        self.begins_trial(one)
        one._on_signal(signal.SIGHUP)
        told = [keeping.Signalled(signal.SIGUSR1), keeping.Signalled(signal.SIGHUP)]
        assert self.heard(one) == told
        one._on_signal(signal.SIGUSR2)
        self.router_ends(one)
        assert not one._is_candidate
        assert self.heard(one) == [*told, keeping.Signalled(signal.SIGUSR2)]
        self.router_ends(one)
        assert self.heard(one) == []

    def test_what_one_that_has_taken_over_was_told_is_told_to_nobody_again(self, one: keeper._Keeper) -> None:
        self.begins_trial(one)
        one._on_signal(signal.SIGHUP)
        assert self.heard(one) == [keeping.Signalled(signal.SIGHUP)]
        one._carry_out(keeping.TakenOver(), [])
        one._on_signal(signal.SIGUSR2)
        self.router_ends(one)
        assert self.heard(one) == [keeping.Signalled(signal.SIGUSR2)]

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    @pytest.mark.parametrize("takes_over", [False, True])
    def test_one_on_trial_ends_at_once_when_the_broker_is_told_to_end(
        self, one: keeper._Keeper, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, takes_over: bool
    ) -> None:
        """It may hang. The version before ends the broker, also where the other one has said at last that it serves."""
        killed: list[int] = []
        monkeypatch.setattr(keeper, "_kill", killed.append)
        self.begins_trial(one)
        one._on_signal(number)
        assert killed == [77]
        if takes_over:
            one._carry_out(keeping.TakenOver(), [])
        self.router_ends(one)
        assert (one._is_candidate, one._command) == (False, [])
        assert self.heard(one) == [keeping.Signalled(number)]

    def test_one_that_has_taken_over_ends_the_broker_itself(
        self, one: keeper._Keeper, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Also where the keeper reads at once that it has, and the signal."""
        monkeypatch.setattr(keeper, "_kill", lambda pid: pytest.fail("it is killed"))
        self.begins_trial(one)
        wakes, woken = one._own = socket.socketpair()
        with wakes, woken:
            assert one._theirs is not None
            keeping.send(one._theirs, keeping.TakenOver())
            wakes.send(bytes([signal.SIGTERM]))
            one._await()
        assert (one._command, one._candidate) == (["next"], None)
        assert self.heard(one) == [keeping.Signalled(signal.SIGTERM)]


def test_what_a_keeper_is_asked_for_later_is_imported_before() -> None:
    """It may have no descriptor left then, or the directory of its code may be gone, and with it the whole broker."""
    program = """
import sys, gnatswarm.keeper as keeper
keeper._prepare()
class Nothing:
    def find_spec(self, name, path=None, target=None):
        raise OSError(24, "Too many open files")
sys.meta_path.insert(0, Nothing())
print(len(keeper.formats()))
"""
    ran = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=False)
    assert int(ran.stdout or 0) >= 6, ran.stderr
