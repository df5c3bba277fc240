"""Measures one scenario on one server, once: sets up the connections, runs the fleet, and makes a result.

Counts every delivery. A result has a note if the generator or the machine was the limit instead of the server. Server
CPU is read at the beginning and the end of the measured part only.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from gnatswarm.loadtest import dialing, processes
from gnatswarm.loadtest.board import Board
from gnatswarm.loadtest.credentials import ANONYMOUS, Address, Credentials
from gnatswarm.loadtest.errors import LoadFailed
from gnatswarm.loadtest.fleet import Fleet, Job
from gnatswarm.loadtest.flow import Flow
from gnatswarm.loadtest.handshake import PLAIN_ONLY, Opened, log_in
from gnatswarm.loadtest.histogram import Histogram
from gnatswarm.loadtest.jobs import LOOPS, Churn, Dial, Loop, Subscribe, merged, numeric_address, tell
from gnatswarm.loadtest.paced import Paced
from gnatswarm.loadtest.plan import Scenario, Share
from gnatswarm.loadtest.roundtrip import RoundTrip

# A process that uses this share of a core counts as saturated, because its loop must sometimes wait.
SATURATED = 0.9
# The share of messages that must be sent in time; with less, the requested rate was not reached.
RATE_REACHED = 0.98
# Seconds that a server may wait for a CPU per second on a CPU; above it, other processes used the machine.
WAITED_TOO_LONG = 0.5
MOST_TRIES_FOR_A_SHARD = 500
USED_BEFORE = (
    "the memory may be too low: this server has held connections of an earlier run, and what it kept of them does"
    " not show as growth (start it anew for each)"
)
SPARE_DESCRIPTORS = 64
PERCENTILES = (50.0, 90.0, 99.0, 99.9, 99.99)


@dataclass(frozen=True)
class Target:
    """A server to measure."""

    label: str
    address: Address
    credentials: Credentials = ANONYMOUS
    pids: tuple[int, ...] = ()  # its main processes; their descendants count too. (): unknown
    congestion_control: str = ""
    was_measured: bool = False  # this server process has served a run before, and may have kept some of its memory

    def all_pids(self) -> list[int]:
        """All processes that belong to the server now."""
        return processes.tree(self.pids)


@dataclass
class Result:
    """The result of one run. A unit is a delivery or, by scenario, a response, a connection or a SUB/UNSUB pair."""

    scenario: str
    server: str
    kind: str
    unit: str
    units: int = 0
    expected_units: int = 0
    surplus: int = 0
    sent_msgs: int = 0
    seconds: float = 0.0
    rate_per_s: float = 0.0
    cpu_us: float | None = None  # server CPU per unit; None: we cannot see its processes
    server_cpu_share: float | None = None  # of one core, all its threads together
    server_busiest_share: float | None = None  # its busiest thread
    server_waited_share: float | None = None  # ready to run, and without a CPU
    generator_cpu_shares: list[float] = field(default_factory=list)  # of each process
    generator_waited_shares: list[float] = field(default_factory=list)  # of each process: ready to run, without a CPU
    memory_bytes: float | None = None  # per connection or subscription
    latency_us: dict[str, float] = field(default_factory=dict)  # p50 … max; paced: from when it was due
    service_us: dict[str, float] = field(default_factory=dict)  # paced: from when it was sent
    lateness_us: dict[str, float] = field(default_factory=dict)  # paced: from due to sent
    histogram: dict[str, Any] = field(default_factory=dict)  # all of latency_us
    asked_per_s: float = 0.0
    is_short: bool = False  # the time was up before there were as many messages as the scenario has
    is_generator_bound: bool = False
    notes: list[str] = field(default_factory=list)

    @property
    def is_ok(self) -> bool:
        """Whether every message arrived exactly once."""
        return self.units == self.expected_units and self.surplus == 0

    def as_words(self) -> dict[str, Any]:
        """The result as JSON values."""
        return {**asdict(self), "is_ok": self.is_ok}


UNITS = {
    "flow": "delivery",
    "request": "answer",
    "latency": "delivery",
    "connections": "connection",
    "subscriptions": "subscription",
    "churn": "pair",
}

Progress = Callable[[int, int], None]  # units so far, units at the end (0: unknown)


def measure(
    scenario: Scenario, target: Target, generator_processes: int = 1, on_progress: Progress | None = None
) -> Result:
    """Run a scenario once. NatsError with one line if it cannot be run, or was cut short."""
    if target.address.tls:
        raise LoadFailed(f"{target.address}: tls:// asks for TLS, which {PLAIN_ONLY}")
    with contextlib.ExitStack() as stack:
        run = _Run(scenario.checked(), target, max(1, generator_processes), stack)
        return run.measured(on_progress)


class _Run:
    def __init__(self, scenario: Scenario, target: Target, count: int, stack: contextlib.ExitStack) -> None:
        self.scenario = scenario
        self.target = target
        self.stack = stack
        self.boards: list[Board] = []
        self.makers: list[Callable[[], Job]] = []
        unit = "message" if scenario.kind == "flow" and not scenario.subscribers else UNITS[scenario.kind]
        self.result = Result(scenario.name, target.label, scenario.kind, unit, asked_per_s=scenario.rate_per_s)
        if scenario.kind == "connections":
            self.plan_dialling()
        elif scenario.kind == "subscriptions":
            opened = self.open()
            self.makers.append(lambda: Subscribe(opened, scenario.subscriptions))
        else:
            # The connection that subscribes and unsubscribes has a process of its own, beside the steady publisher's.
            self.plan_loops(1 if scenario.kind == "churn" else min(count, scenario.publishers + scenario.subscribers))
            if scenario.kind == "churn":
                board, opened = self.new_board(1, 0, 1), self.open()
                self.makers.append(lambda: Churn(board, opened, scenario.seconds))

    # -- setting up -------------------------------------------------------------------------------------------------

    def open(self) -> Opened:
        keys = {"verbose": False, "pedantic": False, "name": "gnatswarm bench", "lang": "c", "version": "1"}
        keys |= {"protocol": 1, "headers": False, "no_responders": False}
        target = self.target
        opened = log_in(
            target.address,
            target.credentials,
            keys,
            congestion_control=target.congestion_control,
            is_plain_only=True,
        )
        self.stack.callback(opened.sock.close)
        return opened

    def open_on(self, shard: int | None) -> Opened:
        """A connection to that shard; to any if None, or if the server's INFO names no shard."""
        for _ in range(MOST_TRIES_FOR_A_SHARD):
            opened = self.open()
            if shard is None or opened.info.get("shard", shard) == shard:
                return opened
            opened.sock.close()
        raise LoadFailed(f"{MOST_TRIES_FOR_A_SHARD} connections, none on shard {shard}: has the server so many?")

    def new_board(self, publishers: int, subscribers: int, count: int) -> Board:
        board = Board(publishers, subscribers, count)
        self.stack.callback(board.close)
        self.boards.append(board)
        return board

    def plan_loops(self, count: int) -> None:
        scenario = self.scenario
        need_descriptors(scenario.publishers + scenario.subscribers + scenario.idle)
        self.hold_idle()
        publishers_on = None if scenario.place == "any" else 0
        subscribers_on = {"any": None, "same": 0, "different": 1}[scenario.place]
        board = self.new_board(scenario.publishers, scenario.subscribers, count)
        shares = [Share(scenario) for _ in range(count)]
        for index in range(scenario.subscribers):
            group = index % scenario.groups
            opened = self.open_on(subscribers_on)
            queue_word = b" q1" if scenario.is_queue or scenario.kind == "request" else b""
            tell(opened, b"SUB %s%s 1\r\n" % (scenario.pattern_of(group), queue_word))
            # From the last process on, so that of two processes one publishes and the other subscribes.
            shares[-1 - index % count].subscribers.append((index, group, opened.sock.fileno()))
        for index in range(scenario.publishers):
            opened = self.open_on(publishers_on)
            share = shares[index % count]
            if scenario.kind == "request":
                tell(opened, b"SUB %s.%d.* 1\r\n" % (share.inbox, index))
            share.publishers.append((index, index % scenario.groups, opened.sock.fileno()))
        loop = LOOPS[scenario.kind]
        for process, share in enumerate(shares):
            self.makers.append(partial(_loop, loop, board, process, share))

    def plan_dialling(self) -> None:
        scenario = self.scenario
        self.open().sock.close()  # reports a refusal before a thousand connections are made
        need_descriptors(scenario.connections)
        dialled = self.dialled(has_subscription=scenario.subscriptions > 0)
        self.makers.append(lambda: Dial(*dialled[:2], scenario.connections, *dialled[2:]))

    def hold_idle(self) -> None:
        """Open connections that only exist, until the run is over."""
        if self.scenario.idle:
            family, where, before, behind = self.dialled(has_subscription=True)
            opened, _ = dialing.dial_many(family, where, self.scenario.idle, before, behind)
            for descriptor in opened:
                self.stack.callback(os.close, descriptor)

    def dialled(self, *, has_subscription: bool) -> tuple[int, bytes, bytes | Callable[[bytes], bytes], bytes]:
        """Family and address, and what many connections send before and behind their number: see dialing.dial_many."""
        target = self.target
        family, where = numeric_address(target.address.host, target.address.port)
        behind = b".x 1\r\nPING\r\n" if has_subscription else b'"}\r\nPING\r\n'

        def greeting(nonce: str) -> bytes:
            """The bytes that are sent before a connection's number."""
            hello = json.dumps({"verbose": False, **target.credentials.connect_keys(nonce)}).encode()
            if has_subscription:
                return b"CONNECT %s\r\nSUB idle." % hello
            return b'CONNECT %s,"name":"idle-' % hello[:-1]

        def signed(info_line: bytes) -> bytes:
            return greeting(nonce_of(info_line))

        return family, where, signed if target.credentials.nkey_seed else greeting(""), behind

    # -- running ------------------------------------------------------------------------------------------------------

    def measured(self, on_progress: Progress | None) -> Result:
        scenario, target, result = self.scenario, self.target, self.result
        fleet = Fleet(self.makers)
        self.stack.callback(fleet.end)
        fleet.wait_ready()
        time.sleep(scenario.settle_s)
        is_about_memory = scenario.kind in ("connections", "subscriptions")
        resident_bytes = processes.resident_bytes(target.all_pids()) if is_about_memory else 0
        before, start_ns = processes.read_cpu(target.all_pids()), time.monotonic_ns()
        limit_s = 120.0 if is_about_memory else scenario.seconds + scenario.patience_s + 30.0
        fleet.run(limit_s, (lambda: on_progress(*self.progress())) if on_progress else None)
        after, end_ns = processes.read_cpu(target.all_pids()), time.monotonic_ns()
        used = processes.usage(before, after) if target.pids else None
        wall_ns = max(1, end_ns - start_ns)
        if is_about_memory:
            time.sleep(scenario.memory_settle_s)
            grown_bytes = processes.resident_bytes(target.all_pids()) - resident_bytes
        reports = fleet.results()
        self.count(reports, wall_ns)
        wall_ns = max(1, min(wall_ns, round(result.seconds * 1e9)))  # without our delay in noticing the end
        result.generator_cpu_shares = [round(report["cpu_ns"] / wall_ns, 3) for report in reports]
        result.generator_waited_shares = [round(report["waited_ns"] / wall_ns, 3) for report in reports]
        if used is not None:
            result.cpu_us = used.run_ns / 1000 / result.units if result.units else None
            result.server_cpu_share = round(used.run_ns / wall_ns, 3)
            result.server_busiest_share = round(used.busiest_ns / wall_ns, 3)
            result.server_waited_share = round(used.wait_ns / wall_ns, 3)
            if is_about_memory:
                result.memory_bytes = max(0, grown_bytes) / max(1, result.units)
                if target.was_measured:
                    result.notes.append(USED_BEFORE)
        judge(result)
        return result

    def progress(self) -> tuple[int, int]:
        scenario, board = self.scenario, self.boards[-1] if self.boards else None
        if board is None:
            return 0, 0
        whole = scenario.messages * scenario.publishers * (1 if self.is_shared else max(1, self.receivers))
        return (board.received_msgs if board.subscribers else board.sent_msgs), whole

    @property
    def is_shared(self) -> bool:
        """Whether each message goes to only one subscriber."""
        return self.scenario.is_queue or self.scenario.kind == "request"

    @property
    def receivers(self) -> int:
        """How many subscribers get each message, if they do not share the messages."""
        return self.scenario.subscribers // self.scenario.groups

    def count(self, reports: Sequence[dict[str, Any]], wall_ns: int) -> None:
        """Set units, time and latencies from the processes' reports."""
        scenario, result = self.scenario, self.result
        loops = [report for report in reports if "sent" in report]
        others = [report for report in reports if "units" in report]
        sent = {int(index): count for report in loops for index, count in report["sent"].items()}
        received = {int(index): count for report in loops for index, count in report["received"].items()}
        result.sent_msgs = sum(sent.values())
        result.surplus = sum(report["surplus"] for report in loops)
        first_ns = min((report["first_ns"] for report in loops if report["first_ns"]), default=0)
        last_ns = max((report["last_ns"] for report in loops), default=0)
        for name in ("latency", "service", "lateness"):
            words = [report[name] for report in loops if name in report]
            if words:
                histogram = merged(words)
                setattr(result, f"{name}_us", percentiles(histogram))
                if name == "latency":
                    result.histogram = {"max_ns": histogram.max_ns, "pairs": histogram.pairs()}
        if others:
            result.units = result.expected_units = others[0]["units"]
            result.seconds = (others[0]["took_ns"] or wall_ns) / 1e9
            if scenario.kind == "churn":
                self.check_each(sent, received)
        else:
            result.seconds = max(1, last_ns - first_ns) / 1e9
            if scenario.kind == "request":
                result.units = sum(report["latency"]["count"] for report in loops)
                result.expected_units = result.sent_msgs
            elif not scenario.subscribers:
                result.units = result.expected_units = result.sent_msgs
            else:
                result.units = sum(received.values())
                result.expected_units = result.units
                self.check_each(sent, received)
        result.rate_per_s = result.units / result.seconds
        self.check_number(received)
        unsent = sum(report.get("unsent", 0) for report in loops)
        asked = result.sent_msgs + unsent
        if scenario.kind in ("latency", "churn") and result.sent_msgs < RATE_REACHED * asked:
            result.notes.append(
                f"impossible rate: {scenario.rate_per_s:,.0f}/s was asked for,"
                f" {result.sent_msgs / scenario.seconds:,.0f}/s could be sent;"
                f" {unsent:,} messages were due and never sent"
            )

    def check_number(self, received: dict[int, int]) -> None:
        """Note that the time was up before there were as many messages as were asked for."""
        scenario, result = self.scenario, self.result
        if not scenario.messages or scenario.kind not in ("flow", "request"):
            return
        if scenario.publishers:
            made, wanted, what = result.sent_msgs, scenario.messages * scenario.publishers, "sent"
        else:
            made, wanted, what = min(received.values()), scenario.messages, "had by each subscriber"
        if made < wanted:
            result.is_short = True
            result.notes.append(
                f"the time was up: {made:,} of {wanted:,} messages were {what} in {scenario.seconds:g} s"
            )

    def check_each(self, sent: dict[int, int], received: dict[int, int]) -> None:
        """Check each subscriber by itself, so that a loss and a duplicate do not cancel out."""
        scenario, result = self.scenario, self.result
        if not scenario.publishers:
            return
        wanted_all = 0
        for group in range(scenario.groups):
            wanted = sum(count for index, count in sent.items() if index % scenario.groups == group)
            got = {index: count for index, count in received.items() if index % scenario.groups == group}
            if scenario.is_queue:
                wanted_all += wanted
                wrong = {} if sum(got.values()) == wanted else {"all together": sum(got.values())}
            else:
                wanted_all += wanted * len(got)
                wrong = {f"subscriber {index}": count for index, count in got.items() if count != wanted}
            for who, count in wrong.items():
                result.notes.append(f"wrong: {who} got {count:,} messages, {wanted:,} were sent")
        if scenario.kind != "churn":
            result.expected_units = wanted_all


def nonce_of(info_line: bytes) -> str:
    """The nonce in an INFO line; "" if there is none."""
    try:
        return str(json.loads(info_line.partition(b" ")[2]).get("nonce", ""))
    except (ValueError, AttributeError):
        raise LoadFailed(f"this is no NATS server: {info_line[:60]!r}") from None


def _loop(
    make: Callable[[Board, int, Share], Flow | RoundTrip | Paced], board: Board, process: int, share: Share
) -> Job:
    return Loop(make(board, process, share))


def judge(result: Result) -> None:
    """Add notes for facts that the numbers alone do not show."""
    waits = result.generator_waited_shares or [0.0] * len(result.generator_cpu_shares)
    # The process with the least idle time; it also had work to do while it waited for a CPU.
    busiest, waited = max(zip(result.generator_cpu_shares, waits, strict=True), key=sum, default=(0.0, 0.0))
    server = result.server_cpu_share
    result.is_generator_bound = busiest + waited >= SATURATED and has_time_to_spare(result)
    if result.surplus:
        result.notes.append(f"wrong: {result.surplus:,} deliveries more than were sent")
    if result.is_generator_bound:
        beside = "" if server is None else f", the server {server:.0%} of one"
        result.notes.append(
            f"this measured the generator: its busiest process used {busiest:.0%} of a core"
            + (f" and waited {waited:.0%} for one" if waited >= 1 - SATURATED else "")
            + f"{beside}; the rate is the generator's (try --processes {len(waits) + 1})"
        )
    if server is None:
        result.notes.append("the server's processes are not ours to see (another machine?): no CPU, no memory")
    if server and (result.server_waited_share or 0.0) > WAITED_TOO_LONG * server:
        waited_s = (result.server_waited_share or 0.0) / server
        result.notes.append(
            f"the machine was busy: for each second of CPU the server waited {waited_s:.1f} s for one;"
            " the rate is the machine's"
        )
    late, service = result.lateness_us.get("p99", 0.0), result.service_us.get("p99", 0.0)
    if late > max(50.0, service) and not any(note.startswith("impossible") for note in result.notes):
        result.notes.append(
            f"the generator was late: p99 {late:,.0f} µs from due to sent; the latencies contain that,"
            " the service times do not"
        )


def has_time_to_spare(result: Result) -> bool:
    """Whether the server could have done more; True if we cannot see its processes.

    A server with several threads is saturated when its busiest thread is, or when the machine is.
    """
    server = result.server_cpu_share
    if server is None or server + (result.server_waited_share or 0.0) < SATURATED:
        return True
    is_machine_full = server + sum(result.generator_cpu_shares) >= SATURATED * len(os.sched_getaffinity(0))
    is_busy_waiting = (result.server_waited_share or 0.0) > WAITED_TOO_LONG * server
    busiest = result.server_busiest_share
    return busiest is not None and busiest < SATURATED and not is_machine_full and not is_busy_waiting


def percentiles(histogram: Histogram) -> dict[str, float]:
    """p50 … p99.99, mean and max in µs; {} when nothing was recorded."""
    if not histogram:
        return {}
    found = {f"p{percent:g}": histogram.at(percent) / 1000 for percent in PERCENTILES}
    return {**found, "max": histogram.max_ns / 1000, "mean": histogram.mean_ns / 1000}


def need_descriptors(connections: int) -> None:
    """Raise the soft limit as far as needed; LoadFailed if the hard limit is lower."""
    needed = connections + SPARE_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= needed or soft == resource.RLIM_INFINITY:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise LoadFailed(
            f"too few descriptors: {connections:,} connections need {needed:,}, and the limit is {hard:,}"
            f" (ulimit -Hn {needed})"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def find_pids(address: Address) -> tuple[int, ...]:
    """The processes on this machine that listen at this address; () if we see none."""
    if address.host not in ("127.0.0.1", "localhost", "::1", os.uname().nodename):
        return ()
    return tuple(processes.listening_pids(address.port))
