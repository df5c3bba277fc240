"""Fixtures for tests that talk to brokers.

`kind` is a broker kind (every test that uses it runs once per selected kind), `broker` the shared running one of that
kind, `cluster` that broker with clients that are closed in the end, `broker_with` a shared one with a configuration,
`cluster_with` the same with nobody else's clients, and `start_broker` makes one of the test's own.
`@pytest.mark.kinds("nats-server", …)` narrows a test to some kinds.

    GNATSWARM_TEST_KINDS=gnatswarm-2,nats-server   which kinds to run on
    GNATSWARM_REQUIRE_ORACLE=1                     an absent nats-server is a failure, not a skip
    GNATSWARM_REQUIRE_CLIENTS=1                    a client that tests/clients lacks is a failure, not a skip
    GNATSWARM_COMMAND="…"                          another command than `gnatswarm` beside this Python
    GNATSWARM_CI=1                                 also what is too long for every day: Spark, killed and started again;
                                                   a minute of recorded histories
    GNATSWARM_SLOW=1                               also what takes minutes or gigabytes
    GNATSWARM_SCHEDULES=100000                     how many random schedules: tests/simulation
    TMPDIR=/tmp                                    where temporary files are; by default in memory, where that has room

At the end of a run of several files its duration and the processor time of its tests, without that of collecting them,
are printed beside the budget, and which files took most of either. One that takes long and little of a processor waits.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# The suite imports itself as `tests.…`; appended, so that an installed package wins over the source tree.
_ROOT = str(Path(__file__).resolve().parent.parent)
if _ROOT not in sys.path:
    sys.path.append(_ROOT)

from tests.support.processor_time import spent_s  # noqa: E402
from tests.support.required import require  # noqa: E402
from tests.support.servers import (  # noqa: E402
    KINDS,
    Broker,
    Kind,
    NotOffered,
    Pool,
    selected_kinds,
)
from tests.support.stuck_tasks import told_after  # noqa: E402
from tests.support.wire import Cluster  # noqa: E402

# How long an example takes says only how busy the machine is.
settings.register_profile("busy", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

# What the whole suite may take: who waits longer for it runs it less often. Printed, not enforced: machines differ.
BUDGET_S = 12 * 60
BUDGET_PROCESSOR_S = 15 * 60
SLOWEST_FILES = 10
# Before the time of a test is up: what its tasks wait for.
TELL_S = 15.0
_began_s = pytest.StashKey[float]()
_spent_s = pytest.StashKey[float]()
PROCESSOR_S = "processor time"
# Most tests make a few small files, which a disk takes milliseconds to remove. With less room they go to the disk.
MEMORY = Path("/dev/shm")
ROOM_BYTES = 2 << 30


def _keep_files_in_memory() -> None:
    """Make a directory in MEMORY that of all temporary files, if it has room and programs in it may run.

    Those of runs that are over are removed; that of this run stays until the next one, as pytest's own would.
    """
    with contextlib.suppress(OSError):
        for old in MEMORY.glob("gnat-[0-9]*"):
            if not Path("/proc", old.name.partition("-")[2]).exists():
                shutil.rmtree(old, ignore_errors=True)
        found = os.statvfs(MEMORY)
        if found.f_bavail * found.f_frsize >= ROOM_BYTES and not found.f_flag & os.ST_NOEXEC:
            own = MEMORY / f"gnat-{os.getpid()}"
            own.mkdir(mode=0o700)
            os.environ["TMPDIR"] = tempfile.tempdir = str(own)


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell ignores it for what it starts in the background, and so would all that tests start, and send ^C to.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if "TMPDIR" not in os.environ:  # workers have it from who started them
        _keep_files_in_memory()
    config.stash[_began_s] = time.monotonic()
    config.addinivalue_line("markers", "kinds(*names): run this test on these broker kinds only")
    config.addinivalue_line("markers", "slow: opt-in, takes minutes or gigabytes; runs with GNATSWARM_SLOW=1")
    config.addinivalue_line("markers", "long: takes some ten seconds; runs early, so that no worker waits for it alone")


@pytest.hookimpl(trylast=True)  # after the order in which brokers are shared best
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_turn)
    if os.environ.get("GNATSWARM_SLOW") != "1":
        for item in items:
            if item.get_closest_marker("slow"):
                item.add_marker(pytest.mark.skip(reason="opt-in: GNATSWARM_SLOW=1"))


def _turn(item: pytest.Item) -> int:
    """Workers begin with equal parts of the list and then take from the end of each other's.

    So a group that is at the beginning stays on one worker, and a long test there leaves nobody waiting in the end.
    """
    if item.get_closest_marker("xdist_group"):
        return 0
    return 1 if item.get_closest_marker("long") else 2


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    marker = item.get_closest_marker("timeout")
    timeout_s = float(marker.args[0] if marker and marker.args else item.config.getini("timeout"))
    if not inspect.iscoroutinefunction(getattr(item, "obj", None)) or timeout_s <= TELL_S:
        return (yield)
    with told_after(timeout_s - TELL_S):
        return (yield)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """What imports and collecting took is no file's.

    The collected tests, some millions of objects, live to the end: garbage collections that walk all of them took a
    sixth of a worker's processor time.
    """
    gc.collect()
    gc.freeze()
    session.stash[_spent_s] = spent_s()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, None, None]:
    """With the last of several tests of a file goes the processor time of all of them: to look costs milliseconds."""
    yield
    if nextitem is None or nextitem.path != item.path:
        spent = spent_s()
        item.user_properties.append((PROCESSOR_S, spent - item.session.stash[_spent_s]))
        item.session.stash[_spent_s] = spent


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    took_s: dict[str, float] = {}
    processor_s: dict[str, float] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                path = report.nodeid.partition("::")[0]
                took_s[path] = took_s.get(path, 0.0) + report.duration
                if report.when == "teardown":
                    spent = [float(str(value)) for name, value in report.user_properties if name == PROCESSOR_S]
                    processor_s[path] = processor_s.get(path, 0.0) + sum(spent)
    if len(took_s) < 2:
        return
    whole_s = time.monotonic() - terminalreporter.config.stash[_began_s]
    terminalreporter.section(
        f"{whole_s:.0f} s of a budget of {BUDGET_S} s for all tests; "
        f"{sum(processor_s.values()):.0f} of {BUDGET_PROCESSOR_S} s of a processor"
    )
    slowest = [sorted(times, key=times.__getitem__)[-SLOWEST_FILES:] for times in (took_s, processor_s)]
    for path in sorted({*slowest[0], *slowest[1]}, key=took_s.__getitem__, reverse=True):
        terminalreporter.line(f"{took_s[path]:7.1f} s, {processor_s.get(path, 0.0):5.1f} s of a processor  {path}")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    names = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
    if "kind" in metafunc.fixturenames and not any("kind" in name for name in names):
        marker = metafunc.definition.get_closest_marker("kinds")
        among = list(marker.args) if marker else None
        assert among is None or set(among) <= set(KINDS), f"unknown kinds in {among}"
        metafunc.parametrize("kind", selected_kinds(among), ids=str, scope="session")


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    pool = Pool()
    yield pool
    pool.close()


@pytest.fixture
def broker(kind: Kind, pool: Pool) -> Broker:
    """The shared broker of this kind. Other tests use it too: unique subjects, own clients, no signals."""
    require(kind)
    return pool.get(kind)


@pytest.fixture
def broker_with(kind: Kind, pool: Pool) -> Callable[..., Broker]:
    """The shared broker of this kind with that configuration: `broker_with(config, args)`. Other tests use it too."""
    require(kind)
    return lambda config, args=(): pool.get(kind, config, args)


@pytest.fixture
def start_broker(kind: Kind) -> Iterator[Callable[..., Broker]]:
    """Start a broker of this test's own: `start_broker(args=[…], config="…", port=0, descriptors=None, …)`."""
    require(kind)
    started: list[Broker] = []

    def start(**options: Any) -> Broker:
        broker = Broker(kind, **options)
        started.append(broker)
        try:
            return broker.start()
        except NotOffered as error:
            # The broker's own word; from the day on which it has the feature the test runs.
            pytest.skip(str(error))

    yield start
    for broker in started:
        if broker.is_running:
            broker.stop()
        else:
            broker.kill()
        # pytest shows it with a test that failed.
        print(f"the log of {kind} {broker.pid}:", broker.log.text[-8_000:], sep="\n")


@pytest.fixture
def cluster(broker: Broker) -> Iterator[Cluster]:
    """The shared broker, with clients that are closed in the end."""
    cluster = Cluster(broker)
    yield cluster
    cluster.close()


@pytest.fixture
def cluster_of() -> Iterator[Callable[[Broker], Cluster]]:
    """The same for a broker from `start_broker`."""
    made: list[Cluster] = []

    def of(broker: Broker) -> Cluster:
        made.append(Cluster(broker))
        return made[-1]

    yield of
    for cluster in made:
        cluster.close()


@pytest.fixture
def cluster_with(
    kind: Kind, broker_with: Callable[..., Broker], start_broker: Callable[..., Broker]
) -> Iterator[Callable[..., Cluster]]:
    """Clients of a broker with that configuration, and no others: `cluster_with(config, args)`.

    Tests have the broker one after the other, each when the clients of the one before are forgotten. Its counters go
    on, so a test that counts starts its own; so does nats-server, which is quick and closes before it forgets.
    """
    made: list[Cluster] = []

    def of(config: str | None, args: Sequence[str] = ()) -> Cluster:
        broker = start_broker(config=config, args=args) if kind.is_oracle else broker_with(config, args)
        made.append(Cluster(broker))
        return made[-1]

    yield of
    for cluster in made:
        cluster.depart()
