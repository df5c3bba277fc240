"""`gnatswarm bench` as its users run it: a process, against our broker, the real server, and servers that misbehave."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nkeys
import pytest

from gnatswarm.loadtest import bench as bench_module
from gnatswarm.loadtest import processes
from gnatswarm.loadtest.bench import shortness
from gnatswarm.loadtest.measure import Result, judge
from gnatswarm.loadtest.plan import Scenario
from tests.loadtest.bad_server import BadServer
from tests.support.forkserver import Ran, forkserver
from tests.support.servers import Broker, wait_until

BENCH = [sys.executable, "-P", "-m", "gnatswarm.loadtest.bench"]
MODULE = "gnatswarm.loadtest.bench"
PROGRAM = f"import sys; from {MODULE} import main; sys.exit(main())"


def bench(*words: str, **options: Any) -> Ran:
    """Forked from a process that has imported it, which takes it longer than most of these runs."""
    return forkserver(MODULE).run(["bench", *words], PROGRAM, 60, **options)


def measured(*words: str) -> list[dict[str, Any]]:
    """Its JSON's runs; it must have ended well."""
    ran = bench(*words, "--settle", "0.02", "--json", "-")
    assert ran.returncode == 0, ran.stderr
    runs: list[dict[str, Any]] = json.loads(ran.stdout)["runs"]
    return runs


def failure(*words: str, **options: Any) -> str:
    """The one line that a failed run says."""
    ran = bench(*words, **options)
    lines = ran.stderr.splitlines()
    assert ran.returncode in (1, 2) and len(lines) == 1, ran
    assert lines[0].startswith("gnatswarm bench: ")
    return lines[0].removeprefix("gnatswarm bench: ")


@pytest.mark.parametrize(
    ("words", "units"),
    [
        ("pub -n 50000", 50_000),
        ("pubsub -n 20000", 20_000),
        ("pubsub -P 2 -S 3 -n 5000 --size 100", 30_000),
        ("pubsub -n 20000 --subjects 1000", 20_000),
        ("pubsub -n 2000 --write 1", 2_000),
        ("pubsub -n 50 --size 300k", 50),
        ("pubsub -P 2 -S 3 -n 5000 --processes 2", 30_000),
        ("pairs -P 3 -n 5000", 15_000),
        ("pairs -P 3 -n 5000 --processes 3", 15_000),
        ("queue -S 3 -n 20000", 20_000),
        ("queue -S 3 -n 20000 --processes 2", 20_000),
        ("request -P 3 -S 2 -n 200", 600),
        ("request -P 3 -S 2 -n 200 --processes 2", 600),
        ("latency --rate 2000 -t 0.2", 400),
        ("latency --rate 2000 -t 0.2 -P 2 -S 2 --processes 2", 800),
        ("connect --connections 100", 100),
        ("idle --connections 100", 100),
        ("subscriptions --subscriptions 2000", 2_000),
    ],
)
def test_every_kind_of_work_counts_all_of_it(broker: Broker, words: str, units: int):
    is_published = words.split()[0] not in ("connect", "idle", "subscriptions")
    subject = ("--subject", f"bench{abs(hash(words))}") if is_published else ()
    (run,) = measured(*words.split(), "-s", broker.url, *subject)
    assert (run["units"], run["expected_units"], run["surplus"], run["is_ok"]) == (units, units, 0, True)
    assert run["rate_per_s"] > 0
    assert run["cpu_us"] > 0  # found by the port it listens on
    if run["kind"] in ("request", "latency"):
        assert 0 < run["latency_us"]["p50"] <= run["latency_us"]["p99"] <= run["latency_us"]["max"]


def test_seconds_end_a_run_too(broker: Broker):
    (run,) = measured("pubsub", "-t", "0.2", "-s", broker.url, "--subject", "bench.seconds")
    assert run["units"] == run["expected_units"] > 0
    assert 0.1 < run["seconds"] < 30


def test_churn_counts_pairs_beside_a_publisher(broker: Broker):
    (run,) = measured("churn", "-t", "0.2", "--rate", "1000", "-s", broker.url, "--subject", "bench.churn")
    assert run["is_ok"] and run["units"] >= 100 and run["unit"] == "pair"


def test_sub_counts_what_another_process_publishes(broker: Broker):
    words = [*BENCH, "sub", "-S", "2", "-n", "1000", "-s", broker.url, "--subject", "bench.sub", "--json", "-"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as subscribers:
        # Published again and again, because nothing says when the subscribers are there.
        wait_until(lambda: bench_pub(broker) and subscribers.poll() is not None, 30)
        assert subscribers.stdout is not None
        (run,) = json.loads(subscribers.stdout.read())["runs"]
    assert run["units"] >= 2000


def bench_pub(broker: Broker) -> bool:
    return bench("pub", "-n", "1000", "-s", broker.url, "--subject", "bench.sub", "-q").returncode == 0


def test_the_table_and_the_files(broker: Broker, tmp_path: Path):
    files = ["--json", str(tmp_path / "out.json"), "--csv", str(tmp_path / "out.csv")]
    ran = bench("pub", "-n", "1000", "--repeat", "2", "-s", broker.url, *files)
    assert ran.returncode == 0
    assert len([line for line in ran.stdout.splitlines() if line.startswith("pub ")]) == 2
    words = json.loads((tmp_path / "out.json").read_text())
    assert [run["units"] for run in words["runs"]] == [1000, 1000]
    assert words["machine"]["cores"] >= 1
    rows = list(csv.DictReader(io.StringIO((tmp_path / "out.csv").read_text())))
    assert [row["units"] for row in rows] == ["1000", "1000"]


def test_the_command_gnatswarm_has_it():
    gnatswarm = str(Path(sys.executable).parent / "gnatswarm")
    ran = subprocess.run([gnatswarm, "bench", "--list"], capture_output=True, text=True, timeout=30, check=False)
    assert ran.returncode == 0
    assert "1:1 16 B" in ran.stdout


# ----------------------------------------------------------------------------------------------- servers that misbehave


def test_a_lost_message_is_found():
    with BadServer(delivery=lambda number: [] if number == 50 else [number]) as server:
        said = failure("pubsub", "-n", "100", "--patience", "0.3", "-s", server.url)
    assert said == "nothing moved for 0.3 s: 99 deliveries of 100 messages sent"


def test_a_doubled_message_is_found():
    """Also where it is the last one, and comes when all have been counted."""

    def doubled(number: int) -> Iterator[int]:
        pings = server.pings
        yield number
        if number == 99:
            wait_until(lambda: server.pings > pings)  # of the subscriber, who has had a hundred
            yield number

    with BadServer(delivery=doubled) as server:
        ran = bench("pubsub", "-n", "100", "-s", server.url)
    assert ran.returncode == 1
    assert "WRONG" in ran.stdout or "wrong" in ran.stdout


def test_a_changed_message_is_found():
    with BadServer(error_after=(10, b"MSG other 1 16\r\n" + b"x" * 16 + b"\r\n")) as server:
        assert "a delivery that nobody should get" in failure("pubsub", "-n", "100", "-s", server.url)


def test_an_error_in_mid_run_is_said():
    with BadServer(error_after=(10, b"-ERR 'Stale Connection'\r\n")) as server:
        assert "Stale Connection" in failure("pubsub", "-n", "100000", "-s", server.url)


@pytest.mark.parametrize("work", ["pubsub -n 100000", "request -n 10000", "latency --rate 5000 -t 5"])
def test_a_server_that_hangs_up_in_mid_run_is_said(work: str):
    with BadServer(hang_up_after=20) as server:
        assert "closed a connection" in failure(*work.split(), "-s", server.url)


def test_a_killed_server_ends_the_run(start_broker: Callable[..., Broker]):
    broker = start_broker()
    words = [*BENCH, "pubsub", "-t", "60", "-s", broker.url]
    with subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as running:
        pids = processes.tree([broker.pid])
        before = sum(processes.read_cpu(pids).run_ns.values())
        wait_until(lambda: sum(processes.read_cpu(pids).run_ns.values()) > before + 100_000_000, 20)
        broker.send_signal(signal.SIGKILL)
        assert running.wait(20) == 1
        assert running.stderr is not None
        said = running.stderr.read()
    assert len(said.splitlines()) == 1
    assert "closed a connection" in said


def test_what_is_no_nats_server_is_said():
    with BadServer(info=b"HTTP/1.1 400 Bad Request\r\n\r\n") as server:
        assert "this is no NATS server" in failure("pub", "-s", server.url)


@pytest.mark.parametrize("work", ["pub -n 10", "connect --connections 10", "subscriptions"])
def test_nobody_listens(unused_port: int, work: str):
    said = failure(*work.split(), "-s", f"nats://127.0.0.1:{unused_port}")
    assert said == f"127.0.0.1:{unused_port}: cannot connect: connection refused"


def test_login_is_refused(start_broker: Callable[..., Broker]):
    broker = start_broker(args=["--user", "joe", "--pass", "secret"])
    assert "Authorization Violation" in failure("pub", "-s", broker.url)
    (run,) = measured("idle", "--connections", "10", "-s", f"nats://joe:secret@127.0.0.1:{broker.port}")
    assert run["units"] == 10


@pytest.fixture
def seed(tmp_path: Path) -> tuple[str, str]:
    """The file of an nkey's seed, and its public key."""
    made = nkeys.encode_seed(b"0123456789abcdef0123456789abcdef", nkeys.PREFIX_BYTE_USER)
    path = tmp_path / "user.nk"
    path.write_text(f"{made.decode()}\n")
    return str(path), nkeys.from_seed(bytearray(made)).public_key.decode()


@pytest.mark.parametrize("work", ["idle --connections 100", "connect --connections 100", "pubsub -n 1000"])
def test_an_nkey_signs_the_nonce_of_every_connection(
    start_broker: Callable[..., Broker], seed: tuple[str, str], work: str
):
    path, public = seed
    broker = start_broker(config=f"authorization {{ users [ {{ nkey: {public} }} ] }}")
    assert "Authorization Violation" in failure(*work.split(), "-s", broker.url)
    (run,) = measured(*work.split(), "--creds", path, "-s", broker.url)
    assert run["units"] >= 100 and run["is_ok"]


@pytest.mark.parametrize("work", ["pub", "connect"])
def test_tls_is_refused_by_the_compiled_generator_with_a_way_out(work: str):
    said = failure(work, "-s", "tls://127.0.0.1:1")
    assert said.startswith("127.0.0.1:1: tls:// asks for TLS, which the compiled generator does not speak: use locust")
    with BadServer(info=b'INFO {"tls_required":true} \r\n') as server:
        said = failure(work, "-s", server.url)
    assert "the server requires TLS, which the compiled generator does not speak: use locust" in said


def test_memory_of_a_server_that_was_measured_before_says_so(broker: Broker):
    runs = measured(*["idle", "--connections", "50", "--repeat", "2", "-s"], broker.url)
    assert [any(note.startswith("the memory may be too low") for note in run["notes"]) for run in runs] == [False, True]


def test_a_connection_too_many_is_said(start_broker: Callable[..., Broker]):
    broker = start_broker(config="max_connections: 20")
    assert "maximum connections exceeded" in failure("connect", "--connections", "50", "-s", broker.url)


def test_too_few_descriptors_is_said_before_anything_is_made():
    with BadServer() as server:
        said = failure("connect", "--connections", "1000", "-s", server.url, descriptors=256)
    assert said.startswith("too few descriptors: 1,000 connections need")


def test_an_impossible_rate_is_said(broker: Broker):
    words = "latency --rate 50000000 -t 0.2 --subject bench.impossible -s"
    (run,) = measured(*words.split(), broker.url)
    assert any(note.startswith("impossible rate: 50,000,000/s was asked for") for note in run["notes"])


def test_an_impossible_publisher_beside_the_churn_is_said(broker: Broker):
    (run,) = measured(*["churn", "--rate", "100M", "-t", "0.2", "--subject", "bench.hurry", "-s"], broker.url)
    assert any(note.startswith("impossible rate: 100,000,000/s was asked for") for note in run["notes"])


def test_nothing_to_count_has_no_cpu_per_unit(broker: Broker):
    (run,) = measured(*["sub", "-t", "0.2", "--subject", "bench.nobody", "-s"], broker.url)
    assert (run["units"], run["cpu_us"]) == (0, None)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("sub -n 10 -S 2 -t 0.2 --subject bench.nobody", "0 of 10 messages were had by each subscriber in 0.2 s"),
        ("pubsub -n 900M -t 0.2 --subject bench.many", "of 900,000,000 messages were sent in 0.2 s"),
        ("request -n 900M -t 0.2 --subject bench.asked", "of 900,000,000 messages were sent in 0.2 s"),
    ],
)
def test_fewer_messages_than_were_asked_for_are_in_the_exit_code(broker: Broker, words: str, said: str):
    ran = bench(*words.split(), "--settle", "0.02", "-s", broker.url)
    assert ran.returncode == 1
    assert "the time was up: " in ran.stdout and said in ran.stdout


def judged(**numbers: Any) -> Result:
    result = Result("s", "server", "flow", "delivery", units=1, expected_units=1, **numbers)
    judge(result)
    return result


@pytest.mark.parametrize(
    ("generator", "server", "is_bound"),
    [
        ({"cpu": 0.95}, {"cpu": 0.5}, True),
        ({"cpu": 0.95}, {}, True),
        ({"cpu": 0.5}, {"cpu": 0.95}, False),
        ({"cpu": 0.95}, {"cpu": 0.95}, False),
        # Never idle, on a machine that gave it half a core.
        ({"cpu": 0.55, "waited": 0.4}, {"cpu": 0.3, "waited": 0.1}, True),
        ({"cpu": 0.55, "waited": 0.4}, {"cpu": 0.6, "waited": 0.35}, False),
        # Four shards half asleep are more than a core together, and none of them at its end.
        ({"cpu": 0.95}, {"cpu": 1.6, "busiest": 0.5}, True),
        ({"cpu": 0.95}, {"cpu": 1.6, "busiest": 0.97}, False),
        # A machine without a free core is not the generator's fault.
        ({"cpu": 0.95}, {"cpu": 14.5, "busiest": 0.6}, False),
    ],
)
def test_a_run_that_measured_the_generator_says_so(
    monkeypatch: pytest.MonkeyPatch, generator: dict[str, float], server: dict[str, float], is_bound: bool
):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))
    numbers = {
        "server_cpu_share": server.get("cpu"),
        "server_busiest_share": server.get("busiest", server.get("cpu")),
        "server_waited_share": server.get("waited"),
    }
    shares = {"generator_cpu_shares": [0.1, generator["cpu"]]}
    if "waited" in generator:
        shares["generator_waited_shares"] = [0.0, generator["waited"]]
    result = judged(**shares, **numbers)
    assert result.is_generator_bound is is_bound
    assert any(note.startswith("this measured the generator") for note in result.notes) is is_bound


def test_a_run_on_a_busy_machine_says_so():
    notes = judged(generator_cpu_shares=[0.3], server_cpu_share=0.4, server_waited_share=0.4).notes
    assert [note.split(":")[0] for note in notes] == ["the machine was busy"]
    assert judged(generator_cpu_shares=[0.3], server_cpu_share=0.4, server_waited_share=0.1).notes == []


def test_a_late_generator_says_so():
    notes = judged(server_cpu_share=0.1, lateness_us={"p99": 900.0}, service_us={"p99": 60.0}).notes
    assert notes[0].startswith("the generator was late: p99 900")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("pubsub --rate 1000", "--rate has no effect on pubsub: it is for latency and churn"),
        ("request --rate 10", "--rate has no effect on request"),
        ("latency -n 100", "--messages has no effect on latency: it is for pub, sub, pubsub, pairs, queue and request"),
        ("latency --subjects 2", "--subjects has no effect on latency"),
        ("connect -t 1", "--seconds has no effect on connect"),
        ("churn --processes 2", "--processes has no effect on churn"),
        ("idle --subscriptions 2", "--subscriptions has no effect on idle: it is for subscriptions"),
        ("pub --window 1M", "--window has no effect on pub"),
        ("sub --write 1", "--write has no effect on sub"),
        ("connect --congestion reno", "--congestion has no effect on connect"),
        ("pub --scale 0.1", "have no effect on pub: they are for --scenario"),
        ("pub --reference x", "have an effect with --compare alone"),
        ("--scenario latency.* -n 100", "--messages has no effect on any of these scenarios"),
    ],
)
def test_an_option_without_effect_is_refused(words: str, why: str):
    assert why in failure(*words.split(), "-s", "nats://127.0.0.1:1")


def test_an_option_changes_those_scenarios_that_it_has_an_effect_on():
    def scenarios(*words: str) -> dict[str, Scenario]:
        return {one.name: one for one in bench_module._scenarios(bench_module.arguments().parse_args(words))}

    found = scenarios("--compare", "--rate", "5k", "-n", "7")
    latency, flow = found["latency 20,000/s"], found["1:1 16 B"]
    assert (latency.rate_per_s, latency.messages, flow.rate_per_s, flow.messages) == (5000.0, 0, 0.0, 7)
    assert scenarios("pub", "-S", "2", "--window", "1M")["pub"].window_bytes == 1024**2


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("nonsense", "no kind of work"),
        ("-P 1 -S 1 -t 2", "name a kind of work (pub, sub, pubsub, pairs, queue,"),
        ("pairs -P 2 -S 3", "pairs: as many subscribers as publishers, not 3 and 2"),
        ("pub --size huge", "is no size"),
        ("pub --size 100M", "payload: 0 to"),
        ("pub -P 0", "neither a publisher nor a subscriber"),
        ("pub --frobnicate", "unrecognized arguments"),
        ("latency --rate 5x", "is no rate"),
        ("latency --rate nan", "is no rate"),
        ("--compare --server-pid 1", "finds the processes itself"),
        ("latency --rate 1e30", "rate: at most 1,000,000,000 a second"),
        ("pub --json /nonexistent/x.json", "/nonexistent/x.json: there is no such directory"),
        ("--compare --out /proc/nonexistent", "no such file or directory"),
        ("--compare --server a=tls://127.0.0.1:1 --server b=nats://127.0.0.1:1", "a: 127.0.0.1:1: tls:// asks for TLS"),
        ("pub -s http://127.0.0.1", "begins with nats://"),
        ("pub -s nats://127.0.0.1:99999", "the port is no number"),
        ("pub -t 0", "seconds: more than 0"),
        ("pub --processes 0", "--processes: 1 to 64"),
        ("latency --rate -1", "a rate of more than 0"),
        ("pubsub --subject a.*", "subject 'a.*'"),
        ("--scenario nothing.*", "nothing is called"),
        ("--scenario (", "--scenario: "),
        ("--compare pub", "not both"),
        ("--compare --server one=nats://127.0.0.1:1", "two servers or more"),
        ("--compare --server broker", "write LABEL=COMMAND"),
        ("--compare --server a=broker --server b=broker", "does not say {port}"),
        ("--compare --scenarios /nonexistent.toml", "no such file"),
        ("pub --creds /nonexistent", "cannot be read"),
        ("pub --congestion nonsense -s nats://127.0.0.1:1", "cannot connect"),
    ],
)
def test_a_bad_command_line_is_one_line(words: str, why: str):
    assert why in failure(*words.split())


def test_an_unknown_congestion_control_is_said():
    with BadServer() as server:
        assert "congestion control nonsense" in failure("pub", "-s", server.url, "--congestion", "nonsense")


def test_a_run_that_was_too_short_to_mean_anything_says_so(start_broker: Callable[..., Broker]):
    broker = start_broker()
    said = "too short to mean anything"
    assert said in bench("pubsub", "-n", "100", "-s", broker.url).stdout
    assert said not in bench("connect", "--connections", "5", "-s", broker.url).stdout


@pytest.mark.parametrize(
    ("kind", "seconds", "is_short"), [("flow", 0.4, True), ("flow", 0.6, False), ("connections", 0.1, False)]
)
def test_what_is_too_short(kind: str, seconds: float, is_short: bool):
    result = Result("pub", "s", kind, "message", units=1, expected_units=1, seconds=seconds)
    assert bool(shortness(result)) is is_short
