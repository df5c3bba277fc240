"""Plans of runs: a scenario as the user describes it, and each generator process's share of it.

Scenarios come from scenarios.toml or the command line; both are checked here, and all faults are reported at once.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

KINDS = ("flow", "request", "latency", "connections", "subscriptions", "churn")
PLACES = ("any", "same", "different")

# The unread bytes that publishers may be ahead of the slowest subscriber. A server drops a client with more than its
# max_pending (64 MiB) before it; a fifteenth of that keeps every server busy and none in danger.
WINDOW_BYTES = 4 * 1024 * 1024
# One write of a publisher at full speed; as large as those of a client library that buffers.
WRITE_BYTES = 64 * 1024
# The two times in the payload of a paced message.
STAMP_BYTES = 16
MAX_PAYLOAD_BYTES = 8 * 1024 * 1024
MAX_CONNECTIONS = 100_000
# Rotating subjects are numbered with six digits.
MAX_SUBJECTS = 1_000_000
MAX_SECONDS = 3600.0
# The schedule is in nanoseconds.
MAX_RATE_PER_S = 1e9


class BadPlan(ValueError):
    """A scenario is invalid; the text has one line for each fault."""


@dataclass(frozen=True)
class Scenario:
    """One kind of work, its sizes, and what section of a comparison it is for."""

    name: str
    title: str = ""
    kind: str = "flow"
    publishers: int = 1  # requesters
    subscribers: int = 1  # responders
    groups: int = 1  # subjects with their own publishers and subscribers, which are assigned in turn
    payload_bytes: int = 16
    messages: int = 0  # per publisher; 0: as many as the seconds allow
    seconds: float = 20.0  # at most
    write_bytes: int = WRITE_BYTES  # of one write; 1: each message by itself
    subjects: int = 1  # each publisher rotates through them; subscribers use a wildcard if there are 2 or more
    is_queue: bool = False
    rate_per_s: float = 0.0  # latency, churn: of all publishers together
    patience_s: float = 10.0  # the run fails after this long without progress
    settle_s: float = 0.2  # pause between setting up and measuring, for work that connecting has caused
    memory_settle_s: float = 1.5  # pause before memory is read, so that garbage collectors have run
    place: str = "any"  # "same" or "different" shard for publishers and subscribers, if INFO names shards
    window_bytes: int = WINDOW_BYTES
    connections: int = 0  # connections: how many
    idle: int = 0  # connections beside the others, which only exist, each with a subscription that nobody publishes on
    subscriptions: int = 0  # subscriptions: how many on one connection; connections: on each
    subject: str = "foo"
    figures: tuple[str, ...] = ()  # shown in a comparison: cpu, rate, memory, p50, p99
    must: tuple[float, ...] = ()  # the ratio wanted for each figure
    aim: tuple[float, ...] = ()
    rounds: int = 1  # a comparison multiplies its rounds by this, for figures that vary from run to run

    def faults(self) -> list[str]:
        """The scenario's faults, a line each; empty: it can be run."""
        checks = [
            (self.kind in KINDS, f"kind {self.kind!r} is none of {', '.join(KINDS)}"),
            (self.place in PLACES, f"place {self.place!r} is none of {', '.join(PLACES)}"),
            (0 <= self.publishers <= MAX_CONNECTIONS, f"publishers: 0 to {MAX_CONNECTIONS:,}, not {self.publishers:,}"),
            (
                0 <= self.subscribers <= MAX_CONNECTIONS,
                f"subscribers: 0 to {MAX_CONNECTIONS:,}, not {self.subscribers:,}",
            ),
            (self.publishers + self.subscribers > 0, "neither a publisher nor a subscriber"),
            (
                1 <= self.groups <= max(1, self.publishers, self.subscribers),
                f"groups: 1 up to the number of publishers or subscribers, not {self.groups}",
            ),
            (0 <= self.payload_bytes <= MAX_PAYLOAD_BYTES, f"payload: 0 to {MAX_PAYLOAD_BYTES:,} bytes"),
            (self.messages >= 0, "messages: 0 or more"),
            (0 < self.seconds <= MAX_SECONDS, f"seconds: more than 0, at most {MAX_SECONDS:.0f}"),
            (0 < self.patience_s <= MAX_SECONDS, "patience: more than 0 seconds"),
            (0 <= min(self.settle_s, self.memory_settle_s) <= 60, "settling: 0 to 60 seconds"),
            (1 <= self.write_bytes <= 1 << 24, "write bytes: 1 to 16 MiB"),
            (1 <= self.subjects <= MAX_SUBJECTS, f"subjects: 1 to {MAX_SUBJECTS:,}"),
            (self.subjects == 1 or self.groups == 1, "rotating subjects and several groups do not go together"),
            (self.window_bytes >= 1024, "window: 1,024 bytes or more"),
            (self.rate_per_s <= MAX_RATE_PER_S, f"rate: at most {MAX_RATE_PER_S:,.0f} a second"),
            (self.kind == "latency" or self.rate_per_s >= 0, "rate: 0 or more messages a second"),
            (self.kind != "latency" or self.rate_per_s > 0, "latency needs a rate of more than 0 messages a second"),
            (
                self.kind != "latency" or self.payload_bytes >= STAMP_BYTES,
                f"latency: {STAMP_BYTES} payload bytes or more",
            ),
            (
                self.kind not in ("latency", "request") or min(self.publishers, self.subscribers) > 0,
                f"{self.kind} needs both sides",
            ),
            (
                self.kind not in ("connections", "subscriptions") or max(self.connections, self.subscriptions) > 0,
                f"{self.kind}: how many?",
            ),
            (1 <= self.rounds <= 100, f"rounds: 1 to 100, not {self.rounds}"),
            (0 <= self.connections <= MAX_CONNECTIONS, f"connections: at most {MAX_CONNECTIONS:,}"),
            (0 <= self.idle <= MAX_CONNECTIONS, f"idle: 0 to {MAX_CONNECTIONS:,}, not {self.idle:,}"),
            (
                bool(self.subject) and all(33 <= ord(letter) < 127 and letter not in "*>" for letter in self.subject),
                f"subject {self.subject!r}: letters, digits and dots",
            ),
        ]
        return [fault for is_right, fault in checks if not is_right]

    def checked(self) -> Scenario:
        """The scenario itself; BadPlan if it has faults."""
        faults = self.faults()
        if faults:
            raise BadPlan("\n".join(f"{self.name}: {fault}" for fault in faults))
        return self

    def scaled(self, factor: float) -> Scenario:
        """A copy with messages, connections and seconds multiplied by `factor`."""
        return replace(
            self,
            messages=max(1, round(self.messages * factor)) if self.messages else 0,
            connections=max(1, round(self.connections * factor)) if self.connections else 0,
            subscriptions=max(1, round(self.subscriptions * factor)) if self.subscriptions > 1 else self.subscriptions,
            seconds=self.seconds if self.messages else max(0.1, self.seconds * factor),
        )

    # -- subjects -------------------------------------------------------------------------------------------------

    @property
    def varying_bytes(self) -> int:
        """How many digits at the end of a subject differ between rotations or groups."""
        if self.subjects > 1:
            return 6
        return len(str(self.groups - 1)) if self.groups > 1 else 0

    def subject_of(self, group: int, rotation: int) -> bytes:
        """The subject that a publisher of this group publishes on."""
        if self.varying_bytes == 0:
            return self.subject.encode()
        number = rotation if self.subjects > 1 else group
        return f"{self.subject}.{number:0{self.varying_bytes}d}".encode()

    def pattern_of(self, group: int) -> bytes:
        """The subject that a subscriber of this group subscribes to."""
        return f"{self.subject}.*".encode() if self.subjects > 1 else self.subject_of(group, 0)


@dataclass
class Share:
    """One generator process's part of a scenario; connections are (index on the board, group, descriptor)."""

    scenario: Scenario
    publishers: list[tuple[int, int, int]] = field(default_factory=list)
    subscribers: list[tuple[int, int, int]] = field(default_factory=list)

    def subject_of(self, group: int, rotation: int) -> bytes:
        """As in Scenario."""
        return self.scenario.subject_of(group, rotation)

    def _members(self, count: int) -> list[list[int]]:
        groups: list[list[int]] = [[] for _ in range(self.scenario.groups)]
        for index in range(count):
            groups[index % self.scenario.groups].append(index)
        return groups

    @property
    def groups_publishers(self) -> list[list[int]]:
        """The publishers of each group, those of other processes included."""
        return self._members(self.scenario.publishers)

    @property
    def groups_subscribers(self) -> list[list[int]]:
        """The subscribers of each group, those of other processes included."""
        return self._members(self.scenario.subscribers)

    # Names that the compiled loops read.

    @property
    def varying_bytes(self) -> int:
        return self.scenario.varying_bytes

    @property
    def payload_bytes(self) -> int:
        return self.scenario.payload_bytes

    @property
    def messages(self) -> int:
        return self.scenario.messages

    @property
    def wanted_msgs(self) -> int:
        """The number of deliveries that ends the run, if this process has no publishers."""
        return 0 if self.scenario.publishers else self.scenario.messages

    @property
    def limit_s(self) -> float:
        return self.scenario.seconds

    @property
    def patience_s(self) -> float:
        return self.scenario.patience_s

    @property
    def write_bytes(self) -> int:
        return self.scenario.write_bytes

    @property
    def window_bytes(self) -> int:
        return self.scenario.window_bytes

    @property
    def subjects(self) -> int:
        return self.scenario.subjects

    @property
    def is_queue(self) -> bool:
        return self.scenario.is_queue

    @property
    def rate_per_s(self) -> float:
        return self.scenario.rate_per_s

    @property
    def inbox(self) -> bytes:
        """The requesters' inbox; as long as the inboxes of client libraries."""
        return b"_INBOX.Pq8dLwXk2mZ5tRfG0bVyN1"


def read_scenarios(path: Path) -> list[Scenario]:
    """The scenarios of a TOML file, `[name]` tables with Scenario's fields as keys; BadPlan with all faults."""
    try:
        with path.open("rb") as file:
            tables = tomllib.load(file)
    except OSError as error:
        raise BadPlan(f"{path}: {(error.strerror or str(error)).lower()}") from None
    except tomllib.TOMLDecodeError as error:
        raise BadPlan(f"{path}: {error}") from None
    scenarios: list[Scenario] = []
    faults: list[str] = []
    for name, table in tables.items():
        try:
            scenarios.append(_scenario(name, table).checked())
        except BadPlan as bad:
            faults += [f"{path}: {line}" for line in str(bad).splitlines()]
    if faults:
        raise BadPlan("\n".join(faults))
    return scenarios


def _scenario(name: str, table: object) -> Scenario:
    if not isinstance(table, Mapping):
        raise BadPlan(f"{name}: not a table")
    known = {one.name: one.default for one in fields(Scenario) if one.name != "name"}
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in known:
            raise BadPlan(f"{name}: unknown key {key!r}")
        wanted = type(known[key])
        if wanted is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if wanted is tuple and isinstance(value, list):
            value = tuple(value if key == "figures" else map(float, value))
        if type(value) is not wanted:
            raise BadPlan(f"{name}: {key} = {value!r} is no {wanted.__name__}")
        values[key] = value
    return Scenario(name, **values)
