"""`gnatswarm bench`: measures a NATS server, or compares several.

The command line of the generator: parses arguments, prints tables, writes files. Exit code 0: measured; 1: not
measured (in a comparison, if only one run failed), fewer messages than -n wants, or messages were lost or duplicated;
2: error in the command line.
Errors are one line on standard error.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib.util
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from gnatswarm.loadtest import compare, effects, machine, report
from gnatswarm.loadtest.amounts import count, rate, size_bytes
from gnatswarm.loadtest.command_parser import FULL, CommandParser, discard_output
from gnatswarm.loadtest.credentials import BadCredentials, Credentials, parse_url
from gnatswarm.loadtest.errors import NatsError
from gnatswarm.loadtest.measure import Progress, Result, Target, find_pids, measure
from gnatswarm.loadtest.plan import BadPlan, Scenario, read_scenarios
from gnatswarm.loadtest.servers import ServerSpec, default_specs

SCENARIOS = Path(__file__).with_name("scenarios.toml")
DEFAULT_URL = "nats://127.0.0.1:4222"

# The kinds of work, with their default scenarios.
WORK: dict[str, tuple[Scenario, str]] = {
    "pub": (Scenario("pub", subscribers=0, seconds=3), "publish; nobody subscribes"),
    "sub": (Scenario("sub", publishers=0, seconds=10), "count what others publish (same --subject and --size there)"),
    "pubsub": (Scenario("pubsub", seconds=3), "publish to subscribers who each get everything (-P 4 -S 10: 4 to 10)"),
    "pairs": (Scenario("pairs", publishers=4, subscribers=4, groups=4, seconds=3), "a subscriber for each publisher"),
    "queue": (Scenario("queue", subscribers=4, is_queue=True, seconds=3), "publish to a queue group"),
    "request": (
        Scenario("request", kind="request", seconds=3),
        "requests and their answers, one at a time each",
    ),
    "latency": (Scenario("latency", kind="latency", rate_per_s=10_000, seconds=3), "latency at a fixed --rate"),
    "connect": (Scenario("connect", kind="connections", connections=1_000), "connections per second, and their memory"),
    "idle": (
        Scenario("idle", kind="connections", connections=1_000, subscriptions=1),
        "memory of idle connections with a subscription each",
    ),
    "subscriptions": (
        Scenario("subscriptions", kind="subscriptions", subscriptions=100_000),
        "memory of subscriptions on one connection",
    ),
    "churn": (
        Scenario("churn", kind="churn", rate_per_s=20_000, seconds=3),
        "SUB+UNSUB pairs per second beside a publisher at --rate",
    ),
}

# The options that change a scenario, and the fields that they set.
FIELDS_OF = {
    "publishers": ("publishers",),
    "subscribers": ("subscribers",),
    "messages": ("messages",),
    "seconds": ("seconds",),
    "size": ("payload_bytes",),
    "rate": ("rate_per_s",),
    "subjects": ("subjects",),
    "subject": ("subject",),
    "write": ("write_bytes",),
    "window": ("window_bytes",),
    "connections": ("connections",),
    "subscriptions": ("subscriptions",),
    "place": ("place",),
    "patience": ("patience_s",),
    "settle": ("settle_s", "memory_settle_s"),
}

EXAMPLES = """\
examples:
  gnatswarm bench pubsub                          one publisher, one subscriber, on port 4222 of this machine
  gnatswarm bench pubsub -P 4 -S 10 --size 1k     4 publishers to 10 subscribers, 1 KiB
  gnatswarm bench latency --rate 50000            percentiles at 50,000 messages a second
  gnatswarm bench --scenario '1:1.*'              from the comparison's scenarios (--list shows them)
  gnatswarm bench --compare                       ours with 1, 2, 4 shards and nats-server, every scenario, a report
  gnatswarm bench --compare --server 'a=nats-server -a 127.0.0.1 -p {port}' --server b=nats://127.0.0.1:4222
"""


class _Parser(CommandParser):
    def error(self, message: str) -> NoReturn:
        sys.stderr.write(f"{self.prog}: {message}\n")
        raise SystemExit(2)


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    kinds = "\n".join(f"  {name:14} {text}" for name, (_, text) in WORK.items())
    parser = _Parser(
        "gnatswarm bench",
        description=f"Measure a NATS server.\n\nwhat:\n{kinds}",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("what", nargs="?", metavar="what", help="the kind of work (above)")
    which = parser.add_argument_group("the server")
    add = which.add_argument
    add(
        "-s",
        "--server",
        action="append",
        metavar="URL",
        help=f"default $NATS_URL, {DEFAULT_URL}; with --compare LABEL=…",
    )
    add("--creds", metavar="FILE", help="a .creds file or an nkey seed to log in with")
    add("--server-pid", type=int, metavar="PID", help="process to measure (default: the one that listens on the port)")
    work = parser.add_argument_group("the work")
    add = work.add_argument
    add("-P", "--publishers", type=count, metavar="N", help="publishers or requesters")
    add("-S", "--subscribers", type=count, metavar="N", help="subscribers or responders")
    add(
        "-n", "--messages", type=count, metavar="N", help="per publisher (of sub: per subscriber), instead of --seconds"
    )
    add("-t", "--seconds", type=float, metavar="S", help="duration; with --messages the longest duration")
    add("--size", type=size_bytes, metavar="BYTES", help="payload size (default 16)")
    add("--rate", type=rate, metavar="N", help="messages a second, all publishers together (latency, churn)")
    add("--subjects", type=count, metavar="N", help="rotate through this many subjects; subscribers use a wildcard")
    add("--subject", metavar="NAME", help="subject to publish to (default foo)")
    add("--write", type=size_bytes, metavar="BYTES", help="size of one write (default 64k; 1: each message by itself)")
    add("--window", type=size_bytes, metavar="BYTES", help="most unread bytes of the slowest subscriber (default 4M)")
    add("--connections", type=count, metavar="N", help="number of connections (connect, idle)")
    add("--subscriptions", type=count, metavar="N", help="number of subscriptions (subscriptions)")
    add("--place", choices=("any", "same", "different"), help="shards of publishers and subscribers (gnatswarm)")
    add("--patience", type=float, metavar="S", help="give up after this long without progress (default 10)")
    add("--settle", type=float, metavar="S", help="wait before measuring (default 0.2; before reading memory 1.5)")
    how = parser.add_argument_group("how")
    add = how.add_argument
    add("--processes", type=int, default=1, metavar="N", help="generator processes (default 1; use more if saturated)")
    add("--repeat", type=int, metavar="N", help="runs of each scenario (default 1; with --compare 3)")
    add("--congestion", default="", metavar="NAME", help="TCP congestion control of our sockets: cubic, reno, bbr …")
    add("--scenario", action="append", metavar="REGEX", help="scenarios by name, instead of `what`")
    add("--scenarios", type=Path, default=SCENARIOS, metavar="FILE", help="file of scenarios (default: those shipped)")
    add("--scale", type=float, default=1.0, metavar="X", help="factor for the scenarios' messages and connections")
    add("--list", action="store_true", help="list the scenarios and exit")
    add("--compare", action="store_true", help="run the scenarios on several servers in turn, and write a report")
    add("--reference", default="", metavar="LABEL", help="server to compare with (default nats-server)")
    out = parser.add_argument_group("output")
    add = out.add_argument
    add("--json", metavar="FILE", help="write all numbers here; - for standard output")
    add("--csv", metavar="FILE", help="write a row for each run here; - for standard output")
    add("--out", type=Path, metavar="DIR", help="where a comparison is written (default loadtest/results/<date>)")
    add("-q", "--quiet", action="store_true", help="no progress, no table")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run with these arguments; returns the exit code."""
    parser = arguments()
    options = parser.parse_args(argv)
    try:
        # (blocked by who started it: before, ^C would be a traceback)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        code = _run(options, parser)
        if sys.stdout is not None:  # closed: `>&-`
            sys.stdout.flush()
        return code
    except (NatsError, BadPlan, BadCredentials, ValueError) as error:
        lines = [f"gnatswarm bench: {line}" for line in (str(error) or type(error).__name__).splitlines()]
        print("\n".join(lines), file=sys.stderr)
        return 2 if isinstance(error, ValueError) else 1
    except BrokenPipeError:  # whoever reads our output has exited
        discard_output()
        return 1
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        if error.errno in FULL and not where:  # files that it writes have a name
            discard_output()
            where = "standard output: "
        print(f"gnatswarm bench: {where}{(error.strerror or str(error)).lower()}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("gnatswarm bench: interrupted", file=sys.stderr)
        return 130


def _run(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    if options.list:
        for scenario in read_scenarios(options.scenarios):
            print(f"{scenario.name:22} {scenario.title}")
        return 0
    if not (options.what or options.scenario or options.compare):
        if any(value != parser.get_default(name) for name, value in vars(options).items()):
            raise ValueError(f"name a kind of work ({', '.join(WORK)}), --scenario or --compare")
        parser.print_help()
        return 2
    scenarios = _scenarios(options)
    if not 1 <= options.processes <= 64 or not 1 <= (options.repeat or 1) <= 1000 or not 0 < options.scale <= 1000:
        raise ValueError("--processes: 1 to 64; --repeat: 1 to 1000; --scale: more than 0")
    for where in (options.json, options.csv):
        # Report this before the work, not after it.
        if where and where != "-" and not Path(where).absolute().parent.is_dir():
            raise ValueError(f"{where}: there is no such directory")
    if options.compare:
        return _compare(options, scenarios)
    if options.reference or options.out:
        raise ValueError("--reference and --out have an effect with --compare alone")
    return _measure(options, scenarios)


def _scenarios(options: argparse.Namespace) -> list[Scenario]:
    given = {name: value for name in FIELDS_OF if (value := getattr(options, name)) is not None}
    others = [name for name, default in (("processes", 1), ("congestion", "")) if getattr(options, name) != default]
    if options.what is not None:
        if options.scenario or options.compare:
            raise ValueError(f"{options.what}: name a kind of work, or --scenario and --compare, not both")
        if options.what not in WORK:
            raise ValueError(f"{options.what}: no kind of work (there are {', '.join(WORK)})")
        if options.scale != 1.0 or options.scenarios != SCENARIOS:
            raise ValueError(
                f"--scale and --scenarios have no effect on {options.what}: they are for --scenario, --compare"
            )
        scenario = _changed(WORK[options.what][0], given)
        if options.what == "pairs":
            pairs = options.publishers or options.subscribers or scenario.groups
            if options.subscribers not in (None, pairs):
                raise ValueError(f"pairs: as many subscribers as publishers, not {options.subscribers} and {pairs}")
            scenario = replace(scenario, publishers=pairs, subscribers=pairs, groups=pairs)
        effects.check([*given, *others], [scenario], WORK, options.what)
        if options.messages is not None and options.seconds is None:
            scenario = replace(scenario, seconds=Scenario.seconds * 3)
        return [scenario.checked()]
    found = read_scenarios(options.scenarios)
    if options.scenario:
        try:
            wanted = [re.compile(pattern) for pattern in options.scenario]
        except re.error as error:
            raise ValueError(f"--scenario: {error}") from None
        found = [one for one in found if any(pattern.fullmatch(one.name) for pattern in wanted)]
        if not found:
            raise ValueError(f"--scenario: nothing is called {' or '.join(options.scenario)} (--list shows the names)")
    found = [_changed(one.scaled(options.scale), given) for one in found]
    effects.check([*given, *others], found, WORK, "")
    return [one.checked() for one in found]


def _changed(scenario: Scenario, given: dict[str, Any]) -> Scenario:
    """The scenario with those of the options that it takes; some do so by how many publish and subscribe."""
    for name, value in given.items():
        if effects.takes(scenario, name):
            scenario = replace(scenario, **dict.fromkeys(FIELDS_OF[name], value))
    return scenario


# -------------------------------------------------------------------------------------------------------- one server


def _measure(options: argparse.Namespace, scenarios: Sequence[Scenario]) -> int:
    servers = options.server or [os.environ.get("NATS_URL") or DEFAULT_URL]
    if len(servers) > 1:
        raise ValueError("--server: several servers are for --compare")
    address, credentials = parse_url(servers[0])
    if options.creds:
        credentials = Credentials.from_file(options.creds)
    pids = (options.server_pid,) if options.server_pid else find_pids(address)
    target = Target(str(address), address, credentials, pids, options.congestion)
    results: list[Result] = []
    is_quiet = options.quiet or "-" in (options.json, options.csv)
    for scenario in scenarios:
        for _ in range(options.repeat or 1):
            again = replace(target, was_measured=bool(results))
            result = measure(scenario, again, options.processes, _progress(scenario.name, is_quiet))
            results.append(result)
            if not is_quiet:
                if len(results) == 1:
                    print(HEAD)
                notes = [*result.notes, *filter(None, [shortness(result)])]
                print(row(result), *(f"  {note}" for note in notes), sep="\n", flush=True)
    _write(options.json, lambda: report.json_text(results, machine.describe()))
    _write(options.csv, lambda: report.csv_text(results))
    is_short = options.messages is not None and any(result.is_short for result in results)
    return 0 if all(result.is_ok for result in results) and not is_short else 1


# A CPU time is read in steps of 10 ms, and a start takes some: below this they are most of what is measured.
MEANINGFUL_S = 0.5


def shortness(result: Result) -> str:
    """That the run was too short to mean anything; "" if it was not, or its length does not matter."""
    if result.kind in compare.MEMORY_KINDS or result.seconds >= MEANINGFUL_S or not result.is_ok:
        return ""
    return f"too short to mean anything: {result.seconds:.3f} s. With -t 3, or a larger -n, it takes long enough"


HEAD = f"{'work':18} {'units':>13} {'s':>7} {'rate':>15} {'CPU µs/unit':>11} {'p50 µs':>8} {'p99 µs':>9} {'memory':>9}"


def row(result: Result) -> str:
    """A result as a line of the table."""
    cpu = "–" if result.cpu_us is None else f"{result.cpu_us:.4f}"
    p50, p99 = (f"{result.latency_us[name]:,.1f}" if result.latency_us else "" for name in ("p50", "p99"))
    memory = report.shown(result.memory_bytes, "memory") if result.memory_bytes is not None else ""
    rate = f"{result.rate_per_s:,.0f}/s"
    is_wrong = "" if result.is_ok else f"   WRONG: {result.expected_units:,} expected, {result.surplus:,} surplus"
    return (
        f"{result.scenario:18} {result.units:13,} {result.seconds:7.3f} {rate:>15} {cpu:>11} {p50:>8} {p99:>9}"
        f" {memory:>9}{is_wrong}"
    )


def _write(where: str | None, text: Callable[[], str]) -> None:
    if where == "-":
        print(text(), end="")
    elif where:
        report.write_file(Path(where), text())


def _progress(label: str, is_quiet: bool) -> Progress | None:
    """A progress bar on standard error; None if that is no terminal."""
    if is_quiet or not sys.stderr.isatty():
        return None

    def show(units: int, whole: int) -> None:
        width = max(10, min(40, shutil.get_terminal_size().columns - 50))
        filled = min(width, units * width // whole) if whole else 0
        bar = f"[{'█' * filled}{'·' * (width - filled)}] " if whole else ""
        sys.stderr.write(f"\r{label[:20]:20} {bar}{units:,}\x1b[K\r")
        sys.stderr.flush()

    return show


# ----------------------------------------------------------------------------------------------------------- comparison


def _compare(options: argparse.Namespace, scenarios: Sequence[Scenario]) -> int:
    specs = [ServerSpec.parse(text) for text in options.server] if options.server else default_specs()
    if options.server_pid:
        raise ValueError("--server-pid: a comparison finds the processes itself, by their ports")
    if options.creds:
        specs = [replace(spec, credentials=Credentials.from_file(options.creds)) for spec in specs]
    labels = [spec.label for spec in specs]
    if len(specs) < 2 or len(set(labels)) < len(labels):
        raise ValueError("--compare needs two servers or more, each with a name of its own")
    if options.reference and options.reference not in labels:
        raise ValueError(f"--reference: no server is called {options.reference} (there are {', '.join(labels)})")
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    folder = options.out or Path("loadtest") / "results" / date
    folder.mkdir(parents=True, exist_ok=True)  # before the work, so that an error is reported early
    if not os.access(folder, os.W_OK):
        raise ValueError(f"{folder}: not ours to write in")
    is_quiet = options.quiet or "-" in (options.json, options.csv)
    if not is_quiet:
        print(f"{'server':14} {HEAD}")

    def on_result(result: Result) -> None:
        if not is_quiet:
            print(f"{result.server[:14]:14} {row(result)}", flush=True)

    described = machine.describe()
    with contextlib.ExitStack() as stack:
        stack.callback(_remove_empty, folder)
        comparison = compare.compare(
            specs,
            scenarios,
            options.repeat or 3,
            options.reference,
            options.congestion,
            options.processes,
            on_result,
            _progress("", is_quiet),
        )
    if not comparison.results and comparison.is_interrupted:
        raise KeyboardInterrupt
    if not comparison.results:
        whys = [*comparison.failed.values(), *comparison.skipped.values()]
        raise NatsError(next(iter(whys), "nothing was measured"))
    congestion = options.congestion or str(described.get("congestion_control", "the system's"))
    written = report.write(comparison, folder, described, congestion, date)
    _write(options.json, lambda: report.json_text(comparison.results, described, comparison, date))
    _write(options.csv, lambda: report.csv_text(comparison.results))
    if not is_quiet:
        _print_ratios(comparison)
        print(f"\nwritten: {', '.join(os.fspath(path) for path in written)}")
        if importlib.util.find_spec("matplotlib") is None:
            print("no plots: matplotlib is not installed (pip install 'gnatswarm[loadtest]')")
    else:
        for (scenario, label), why in comparison.failed.items():
            print(f"gnatswarm bench: {scenario} on {label}: {why}", file=sys.stderr)
    if comparison.is_interrupted:
        raise KeyboardInterrupt
    return 0 if comparison.is_ok else 1


def _remove_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


def _print_ratios(comparison: compare.Comparison) -> None:
    rounds = f"up to {comparison.rounds}: it was interrupted" if comparison.is_interrupted else str(comparison.rounds)
    print(f"\nbetter than {comparison.reference} by (medians of {rounds}):")
    for scenario in comparison.scenarios:
        for label in comparison.others:
            ratios = []
            for index, figure in enumerate(scenario.figures):
                ratio = comparison.ratio(scenario.name, label, figure)
                if ratio is None:
                    continue
                must, aim = report.wanted(scenario, index)
                of = f" (must {must:g}, aim {aim:g})" if must and aim and label == comparison.judged(scenario) else ""
                ratios.append(f"{figure} ×{ratio:.2f}{of}")
            if ratios:
                print(f"  {scenario.name:22} {label:14} {'   '.join(ratios)}")
    for (scenario_name, label), why in comparison.skipped.items():
        print(f"  {scenario_name:22} {label:14} not run: {why}")
    for (scenario_name, label), why in comparison.failed.items():
        print(f"  {scenario_name:22} {label:14} FAILED: {why}")


if __name__ == "__main__":
    raise SystemExit(main())
