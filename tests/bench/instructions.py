"""Instructions of the engine for each message or operation: `python -P -m tests.bench.instructions [ROW…]`.

A gate that noise cannot fool, beside the times of `make bench`: cachegrind counts every instruction of a small program
that drives gnatswarm.probes.engine (no sockets, no kernel). Each load is run with N operations and with 3N, and the
difference divided by 2N, so that start-up, preparation and warming up cancel out. All seeds are fixed; each run is a
fork of one process under valgrind that has run nothing before. Runs agree to 0.01 %; a row alone, in another
directory, or beside other Python sources (objects lie, and so hash, elsewhere), to 1 %.

Counted beside the engine: the probe's copies of what it is fed (as a kernel would: two instructions for 32 bytes, each
way) and, for a CONNECT, the session of tests.support.engine instead of shards.clients. An operation on several shards
is what all of them do. Counts are comparable between builds by the same compiler, Python and libc alone.

Exit code 0: counted, nothing moved; 1: a row moved, either way; 2: it could not be counted.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnatswarm.probes import engine as probe
from gnatswarm.probes.engine import ProbeSocket
from tests.support.engine import NO_ECHO, QUIET, Engine, EngineClient
from tests.support.mesh import Mesh

READ = 262_144  # bytes of one read
TALK_LINES = 32  # with --clients: of each client, subjects that statistics tell apart
TALLY = 100_000  # subjects that statistics tell apart: they are on, as in a shard by default
# valgrind says that its processor copies fast by `rep movsb`, glibc believes it, and cachegrind counts an instruction
# for each byte: half of what was counted for a small message was the copying of what the probe is fed.
TUNABLES = "glibc.cpu.hwcaps=-ERMS:glibc.cpu.x86_non_temporal_threshold=0x10000000"
# The hash of a Python object is its address, so addresses must be the same in every run: otherwise a fence moves by
# 0.3 %. For the same reason nothing of the environment is passed on, and byte code is never read from files.
STANDING = ("setarch", "-R")
WITHIN_PERCENT = 3.0  # a change of the code that is meant to cost nothing stays below it

Block = Callable[[int], object]


@dataclass(frozen=True)
class Load:
    """What one row does: `block(i)` is its i-th block of operations; `receivers` are sent what comes of them.

    `idle(i)` is what of a block is the driver's own; it does not count.
    """

    block: Block
    receivers: list[ProbeSocket]
    idle: Block = lambda _: None


@dataclass(frozen=True)
class Row:
    """One load. `make(blocks)` prepares for so many blocks of `operations` each; N is `blocks` of them.

    `least_bytes`: what its receivers are sent for an operation at least, so that a load that delivers nothing is seen.
    """

    name: str
    make: Callable[[int], Load]
    operations: int
    blocks: int
    least_bytes: int


# ---- what is fed


def published(subject: bytes, size: int) -> bytes:
    return b"PUB %s %d\r\n%s\r\n" % (subject, size, b"x" * size)


def rotating(subjects: int, operations: int) -> list[bytes]:
    """Blocks of 16 B messages on so many subjects in turn: one round through all of them."""
    return [
        b"".join(published(b"device.%06d" % i, 16) for i in range(start, start + operations))
        for start in range(0, subjects, operations)
    ]


def counting(client: EngineClient) -> ProbeSocket:
    """Its socket, which from now on discards everything that is sent to it."""
    client.socket.is_counting = True
    return client.socket


def counted_engine() -> Engine:
    engine = Engine()
    engine.probe.tally(TALLY, TALK_LINES if "--clients" in sys.argv else 0)
    return engine


# ---- one shard


def fan_out(size: int, publishers: int, subscriptions: Iterable[bytes], operations: int) -> Callable[[int], Load]:
    """The same line over and over, publisher by publisher; each of the subscriptions is a client's."""

    def make(_: int) -> Load:
        engine = counted_engine()
        receivers = []
        for line in subscriptions:
            client = engine.client()
            client.feed(line)
            receivers.append(counting(client))
        senders = engine.clients(publishers)
        data = published(b"bench.subject", size) * operations
        return Load(lambda i: senders[i % publishers].feed(data), receivers)

    return make


def rotation(subjects: int, operations: int) -> Callable[[int], Load]:
    def make(_: int) -> Load:
        engine = counted_engine()
        publisher, subscriber = engine.clients(2)
        subscriber.feed(b"SUB device.> 1\r\n")
        data = rotating(subjects, operations)
        return Load(lambda i: publisher.feed(data[i % len(data)]), [counting(subscriber)])

    return make


def ever_new_subjects(operations: int) -> Callable[[int], Load]:
    """No match result is in the cache, and no line repeats the one before."""

    def make(blocks: int) -> Load:
        engine = counted_engine()
        publisher = engine.client()
        receivers = []
        for line in (b"SUB device.> 1\r\n", b"SUB > 1\r\n"):
            client = engine.client()
            client.feed(line)
            receivers.append(counting(client))
        data = rotating(blocks * operations, operations)
        return Load(lambda i: publisher.feed(data[i]), receivers)

    return make


def requests(operations: int) -> Callable[[int], Load]:
    """A subscription, a request, its answer and the end of the subscription, for an inbox that there was not before."""

    def make(blocks: int) -> Load:
        engine = counted_engine()
        service, client = engine.clients(2)
        service.feed(b"SUB service 1\r\n")
        inboxes = [[b"_INBOX.%08d" % (i * operations + j) for j in range(operations)] for i in range(blocks)]
        asked = [
            b"".join(b"SUB %s %d\r\nPUB service %s 2\r\nhi\r\n" % (inbox, j, inbox) for j, inbox in enumerate(block))
            for block in inboxes
        ]
        answers = [b"".join(published(inbox, 2) for inbox in block) for block in inboxes]
        ended = b"".join(b"UNSUB %d\r\n" % j for j in range(operations))

        def block(i: int) -> None:
            client.feed(asked[i])
            service.feed(answers[i])
            client.feed(ended)

        return Load(block, [counting(service), counting(client)])

    return make


def subscribing(operations: int) -> Callable[[int], Load]:
    def make(blocks: int) -> Load:
        engine = counted_engine()
        client = engine.client()
        data = [
            b"".join(b"SUB _INBOX.%08d 1\r\nUNSUB 1\r\n" % (i * operations + j) for j in range(operations))
            for i in range(blocks)
        ]
        return Load(lambda i: client.feed(data[i]), [])

    return make


CONNECT = (
    b'CONNECT {"verbose":false,"pedantic":false,"tls_required":false,"name":"bench","lang":"python3","version":"2.9.0",'
    b'"protocol":1,"echo":true,"headers":true,"no_responders":true}\r\n'
)


def connecting(operations: int) -> Callable[[int], Load]:
    """The same line repeatedly on one connection, in a form that clients may send."""

    def make(_: int) -> Load:
        engine = counted_engine()
        client = engine.client()
        data = CONNECT * operations
        return Load(lambda i: client.feed(data), [])

    return make


def coming_and_going(operations: int) -> Callable[[int], Load]:
    def make(_: int) -> Load:
        engine = counted_engine()
        steady = engine.client()

        def block(_: int) -> None:
            for _ in range(operations):
                client = engine.client(CONNECT)
                client.feed(b"PING\r\n")
                client.close()
            steady.feed(b"PING\r\n")

        return Load(block, [counting(steady)])

    return make


# ---- several shards


def counted_mesh(shards: int) -> Mesh:
    mesh = Mesh(shards, connect=QUIET)
    for engine in mesh.engines.values():
        assert engine.probe.mesh is not None
        engine.probe.mesh.tally(TALLY)
    return mesh


def settle(mesh: Mesh) -> None:
    """Carries all bytes and then discards them, so that no buffer grows."""
    mesh.settle()
    for end in mesh.ends.values():
        assert end.socket is not None
        end.socket.sent.clear()
        end.carried = 0


def crossing(data: list[bytes], subscriptions: Iterable[bytes], connect: bytes = b"") -> Callable[[int], Load]:
    """From a client of one shard to clients of the other, one for each subscription."""

    def make(_: int) -> Load:
        mesh = counted_mesh(2)
        publisher = mesh.clients[0]
        publisher.feed(connect)
        receivers = []
        for line in subscriptions:
            client = mesh.engines[1].client()
            client.feed(line)
            receivers.append(counting(client))
        settle(mesh)

        def block(i: int) -> None:
            publisher.feed(data[i % len(data)])
            settle(mesh)

        return Load(block, receivers, lambda _: settle(mesh))

    return make


def told(operations: int) -> Callable[[int], Load]:
    """Every subscription is told to three siblings, and its end as well, because a round lies between them."""

    def make(blocks: int) -> Load:
        mesh = counted_mesh(4)
        client = mesh.clients[0]
        begun = [
            b"".join(b"SUB told.%08d %d\r\n" % (i * operations + j, j) for j in range(operations))
            for i in range(blocks)
        ]
        ended = b"".join(b"UNSUB %d\r\n" % j for j in range(operations))

        def block(i: int) -> None:
            client.feed(begun[i])
            settle(mesh)
            client.feed(ended)
            settle(mesh)

        def idle(_: int) -> None:
            settle(mesh)
            settle(mesh)

        return Load(block, [], idle)

    return make


def fences(operations: int) -> Callable[[int], Load]:
    """Each waits for the other shard's acknowledgement before the next begins; the UNSUB is read after the PONG."""

    def make(blocks: int) -> Load:
        mesh = counted_mesh(2)
        client = mesh.clients[0]
        there, back = mesh.ends[0, 1].socket, mesh.ends[1, 0].socket
        assert there is not None and back is not None
        here, sibling = mesh.engines[0].probe, mesh.engines[1].probe
        lines = [b"SUB fence.%08d 1\r\nPING\r\nUNSUB 1\r\n" % i for i in range(blocks * operations)]
        silence = [b""] * operations

        def rounds(lines: list[bytes]) -> None:
            for line in lines:
                here.feed(client.socket, line)
                said = bytes(there.sent)
                there.sent.clear()
                sibling.feed(back, said)
                said = bytes(back.sent)
                back.sent.clear()
                here.feed(there, said)

        def block(i: int) -> None:
            rounds(lines[i * operations : (i + 1) * operations])

        return Load(block, [counting(client)], lambda _: rounds(silence))

    return make


FOUR_MEMBERS = [b"SUB bench.subject workers %d\r\n" % i for i in range(4)]
ROWS = [
    Row("1:1, 16 B in runs", fan_out(16, 1, [b"SUB bench.subject 1\r\n"], 5000), 5000, 40, 16),
    Row("1:1, 128 B in runs", fan_out(128, 1, [b"SUB bench.subject 1\r\n"], 1500), 1500, 60, 128),
    Row("1:10, 16 B in runs", fan_out(16, 1, [b"SUB bench.subject 1\r\n"] * 10, 5000), 5000, 8, 160),
    Row("10:10, 128 B in runs", fan_out(128, 10, [b"SUB bench.subject 1\r\n"] * 10, 1500), 1500, 20, 1280),
    Row("queue group of 4, 16 B in runs", fan_out(16, 1, FOUR_MEMBERS, 5000), 5000, 10, 16),
    Row("1,000 subjects in turn, wildcard", rotation(1000, 1000), 1000, 20, 16),
    Row("100,000 subjects in turn, wildcard", rotation(100_000, 5000), 5000, 20, 16),
    Row("ever new subjects, two subscribers", ever_new_subjects(2000), 2000, 5, 32),
    Row("request and reply, an inbox each", requests(500), 500, 10, 4),
    Row("SUB and UNSUB", subscribing(2000), 2000, 5, 0),
    Row(
        "across 2 shards, 16 B in runs",
        crossing([published(b"bench.subject", 16) * 5000], [b"SUB > 1\r\n"]),
        5000,
        20,
        16,
    ),
    Row(
        "across 2 shards, 1,000 subjects in turn", crossing(rotating(1000, 1000), [b"SUB device.> 1\r\n"]), 1000, 20, 16
    ),
    Row(
        "across 2 shards, queue group of 4",
        crossing([published(b"bench.subject", 16) * 5000], FOUR_MEMBERS),
        5000,
        10,
        16,
    ),
    Row(
        "across 2 shards, queue group of 4, without echo",
        crossing([published(b"bench.subject", 16) * 5000], FOUR_MEMBERS, NO_ECHO),
        5000,
        10,
        16,
    ),
    Row("SUB and UNSUB told on 4 shards", told(1000), 1000, 4, 0),
    Row("fence on 2 shards: SUB, PING, UNSUB", fences(200), 200, 10, 6),
    Row("CONNECT", connecting(200), 200, 10, 0),
    Row("a client: CONNECT, PING, gone", coming_and_going(200), 200, 10, 0),
]


# ---- counting


def run(row: Row, blocks: int) -> None:
    """The row's load, so many blocks of it, and idle ones up to 3N: the difference is operations and nothing else."""
    gc.disable()
    os.urandom = random.Random(1).randbytes  # seeds of the engine's tables: chains in them are as long in every run
    load = row.make(3 * row.blocks)
    for i in range(3 * row.blocks):
        if i < blocks:
            load.block(i)
        else:
            load.idle(i)
    sent = sum(socket.taken for socket in load.receivers)
    assert sent >= row.least_bytes * row.operations * blocks, f"{row.name}: only {sent} bytes were delivered"


def run_all(rows: list[Row]) -> None:
    """What is under valgrind: a process for each row with N and with 3N, and a line of their ids for each."""
    for row in rows:
        for blocks in (row.blocks, 3 * row.blocks):
            pid = os.fork()
            if pid == 0:
                status = 1
                try:
                    run(row, blocks)
                    status = 0
                except BaseException:
                    sys.excepthook(*sys.exc_info())
                finally:
                    os._exit(status)
            if os.waitpid(pid, 0)[1]:
                sys.exit(1)
            print(pid, flush=True)


def count(rows: list[Row]) -> dict[str, float]:
    """Instructions of one operation of each row."""
    with tempfile.TemporaryDirectory() as directory:
        done = subprocess.run(
            [
                *STANDING,
                "valgrind",
                "--tool=cachegrind",
                "--cache-sim=no",
                "--cachegrind-out-file=/dev/null",
                f"--log-file={directory}/%p",
                *(sys.executable, "-P", "-m", "tests.bench.instructions", "--run"),
                *(["--clients"] if "--clients" in sys.argv else []),
                *(row.name for row in rows),
            ],
            env={
                "PATH": os.environ["PATH"],
                "GLIBC_TUNABLES": TUNABLES,
                "PYTHONDONTWRITEBYTECODE": "1",
                "PYTHONHASHSEED": "0",
                "PYTHONPATH": os.pathsep.join(sys.path),
                "PYTHONPYCACHEPREFIX": "/nonexistent",
            },
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        totals = []
        for pid in done.stdout.split():
            found = re.search(r"I +refs: +([\d,]+)", Path(directory, pid).read_text(encoding="utf-8"))
            assert found is not None, "valgrind counted nothing"
            totals.append(int(found[1].replace(",", "")))
    return {
        row.name: round((more - less) / (2 * row.blocks * row.operations), 2)
        for row, less, more in zip(rows, totals[::2], totals[1::2], strict=True)
    }


def tools() -> dict[str, str]:
    """The versions that instruction counts depend on, besides the code."""
    compiler = re.search(rb"(GCC: \([^)]*\)|clang version) [\d.]+", Path(probe.__file__).read_bytes())
    return {
        "compiler": compiler[0].decode() if compiler else "unknown",
        "libc": " ".join(platform.libc_ver()),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "valgrind": subprocess.run(
            ["valgrind", "--version"], stdout=subprocess.PIPE, text=True, check=True
        ).stdout.strip(),
    }


def moved(counted: dict[str, float], kept: dict[str, float], within_percent: float) -> list[str]:
    """A sentence for each row that differs from the stored counts."""
    found = []
    for name, now in counted.items():
        before = kept.get(name)
        if before is None:
            found.append(f"{name}: {now:,.1f}, and nothing to compare it with")
        elif abs(now - before) > before * within_percent / 100:
            found.append(f"{name}: {now:,.1f} instead of {before:,.1f} ({now / before - 1:+.1%})")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.bench.instructions", description="Instructions per operation.")
    parser.add_argument("row", nargs="*", help="rows whose names contain one of these; all of them unless said")
    parser.add_argument("--write", type=Path, metavar="FILE", help="keep what was counted, as JSON")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="exit 1 if a row is not what was kept")
    parser.add_argument("--within", type=float, default=WITHIN_PERCENT, metavar="PERCENT")
    parser.add_argument("--clients", action="store_true", help="with statistics by client, as in a shard by default")
    parser.add_argument("--run", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    rows = [row for row in ROWS if not arguments.row or any(part in row.name for part in arguments.row)]
    if not rows:
        parser.error("there is no such row: " + ", ".join(row.name for row in ROWS))
    if arguments.run:
        run_all(rows)
        return 0
    if shutil.which("setarch") is None:
        print("Instructions are counted at fixed addresses; setarch is missing (package util-linux)", file=sys.stderr)
        return 2
    if shutil.which("valgrind") is None:
        print(
            "Instructions are counted by valgrind, which is missing (Debian, Fedora: package valgrind)", file=sys.stderr
        )
        return 2
    kept: dict[str, Any] = {}
    if arguments.compare:
        kept = json.loads(arguments.compare.read_bytes())
    try:
        counted = count(rows)
    except subprocess.CalledProcessError as error:
        print(f"could not be counted: {error}", file=sys.stderr)
        return 2
    for name, each in counted.items():
        before = kept.get("instructions", {}).get(name)
        print(f"{name:<42}{each:12,.1f}" + (f"{before:12,.1f}{each / before - 1:+9.2%}" if before else ""))
    used = tools()
    if arguments.write:
        arguments.write.write_text(
            json.dumps({"tools": used, "instructions": counted}, indent=2) + "\n", encoding="utf-8"
        )
    if not arguments.compare:
        return 0
    if used != kept["tools"]:
        print(f"Not the same tools: {used}, and those kept were counted with {kept['tools']}")
    wrong = moved(counted, kept["instructions"], arguments.within)
    for sentence in wrong:
        print(f"moved: {sentence}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
