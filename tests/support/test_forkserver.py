"""What the fork server starts is a process as any other, but for how it began."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from tests.support.authority import Authority
from tests.support.forkserver import MORE, Forked, Forkserver, forkserver
from tests.support.servers import KINDS, NEEDS_MORE, READY, Broker

SAYS = """
import json, os, resource, sys
limit = resource.getrlimit(resource.RLIMIT_NOFILE)
fds = [int(name) for name in os.listdir("/proc/self/fd")]
print(json.dumps([sys.argv, dict(os.environ), limit, os.getsid(0) == os.getpid(), max(fds), "pytest" in sys.modules]))
sys.exit(7)
"""
TELLS_IMPORTS = """
import os, sys
def hook(event, arguments):
    if event == "import" and arguments[0] not in sys.modules:
        os.write(2, f"imported {arguments[0]}\\n".encode())
sys.addaudithook(hook)
from gnatswarm.router.cli import main
sys.exit(main())
"""
WAITS = "import signal, sys; print('here', flush=True); signal.pause()"


def test_a_program_has_what_it_was_given_and_no_descriptor_of_others():
    others = forkserver().start(["other"], program=WAITS, is_read=True)
    assert others.stdout is not None and others.stdout.readline() == b"here\n"
    given = {"TZ": "UTC", "XDG_RUNTIME_DIR": "/nowhere"}
    program = forkserver().start(["name", "word"], descriptors=100, environment=given, program=SAYS, is_read=True)
    assert program.stdout is not None
    said = json.loads(program.stdout.read())
    # 3 is what lists them.
    assert said == [["name", "word"], given, [100, 100], True, 3, False]
    assert program.wait(30) == 7
    others.kill()
    assert others.wait(30) == -signal.SIGKILL


def test_it_outlives_the_thread_that_made_it():
    made: list[Forkserver] = []
    thread = threading.Thread(target=lambda: made.append(Forkserver()))
    thread.start()
    thread.join()
    program = made[0].start(["name"], program=WAITS, is_read=True)
    assert program.stdout is not None and program.stdout.readline() == b"here\n"
    made[0].close()  # and all that it started
    assert program.wait(30) == -signal.SIGKILL


def test_the_end_is_told_to_all_who_wait():
    program = forkserver().start(["name"], program=WAITS, is_read=True)
    assert program.stdout is not None and program.stdout.readline() == b"here\n"
    assert program.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        program.wait(0)
    program.send_signal(signal.SIGTERM)
    assert program.wait(30) == program.poll() == -signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(program.pid, 0)
    program.send_signal(signal.SIGTERM)  # nobody


def test_an_error_is_what_python_makes_of_it():
    program = forkserver().start(["name"], program="raise RuntimeError('why')")
    assert program.wait(30) == 1 and b"RuntimeError: why" in program.stderr.read()


class Telling(Broker):
    """Writes to its log what it imports."""

    def _forked(self) -> Forked:
        imported = MORE if NEEDS_MORE.search(self.config or "") else ()
        return forkserver(*imported).start(self.command_line(), program=TELLS_IMPORTS)


@pytest.mark.parametrize(
    "config",
    [
        "ping_max: 2",
        "http: -1",
        "accounts { A { users: [{user: a, password: a}] } }",
        "authorization { users: [{user: a, password: a, permissions: {publish: b}}] }",
        "cluster { name: a, port: -1 }",
        "leafnodes { port: -1 }",
        "websocket { port: -1, no_tls: true }",
        "tls { %s }",
    ],
    ids=str.split("none pages accounts users cluster leafnodes websocket tls"),
)
def test_what_a_broker_needs_to_start_has_been_imported_before_it_is_forked(config: str, tmp_path: Path):
    """What is not costs the tests milliseconds of a processor at each of thousands of starts."""
    with Telling(KINDS["gnatswarm-2"], config=config.replace("%s", Authority(tmp_path).server().lines)) as broker:
        pass
    lines = broker.log.lines
    ready = next(number for number, line in enumerate(lines) if READY in line)
    assert [line for line in lines[:ready] if line.startswith("imported ")] == []  # (later: answers)


@pytest.mark.parametrize("given", [b"", b"few", b"x" * 300_000], ids=["nothing", "few", "more than a pipe holds"])
def test_a_program_reads_what_it_is_given_to_its_end(given: bytes):
    ran = forkserver().run(["name"], "import sys; print(len(sys.stdin.buffer.read()))", given=given)
    assert (ran.returncode, ran.stdout) == (0, f"{len(given)}\n")


def test_what_nobody_reads_of_what_it_is_given_is_forgotten():
    ran = forkserver().run(["name"], "print('done')", given=b"x" * 300_000)
    assert (ran.returncode, ran.stdout) == (0, "done\n")
