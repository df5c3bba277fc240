"""What /proc says of a server's processes."""

from __future__ import annotations

import os

from gnatswarm.loadtest import machine, processes
from tests.support.servers import Broker, session_pids


def test_a_server_is_found_by_its_port_with_all_below_it(broker: Broker):
    pids = processes.listening_pids(broker.port)
    assert broker.pid in pids
    assert processes.tree(pids) == sorted(session_pids(broker.pid))
    assert processes.tree([broker.pid]) == sorted(session_pids(broker.pid))


def test_cpu_and_memory_are_those_of_the_processes():
    before = processes.read_cpu([os.getpid()])
    busy = sum(range(3_000_000))
    used = processes.usage(before, processes.read_cpu([os.getpid()]))
    assert busy > 0
    assert 5_000_000 < used.busiest_ns <= used.run_ns
    assert processes.resident_bytes([os.getpid()]) > 5_000_000


def test_processes_that_are_gone_count_as_nothing():
    gone = 2**22 + 1  # above every pid
    assert processes.read_cpu([gone]).run_ns == {}
    assert processes.resident_bytes([gone]) == 0
    assert processes.usage(processes.read_cpu([gone]), processes.read_cpu([gone])).run_ns == 0


def test_nobody_listens_on_an_unused_port(unused_port: int):
    assert processes.listening_pids(unused_port) == []


def test_a_machine_is_described_without_its_name():
    described = machine.describe()
    assert described["cores"] >= 1 and "Linux" in described["kernel"]
    assert os.uname().nodename not in str(described).split()
