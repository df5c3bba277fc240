"""Locust runs of the shipped scenarios, headless and short; each is a process, because locust changes its whole one."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.loadtest.bad_server import BadServer
from tests.support.authority import Authority
from tests.support.browser import Browser, find
from tests.support.forkserver import forkserver
from tests.support.ports import free_port
from tests.support.servers import Broker, Log

LOCUSTFILE = Path(__file__).resolve().parents[2] / "loadtest" / "locustfile.py"
PROMPT = Path(__file__).parent / "prompt.py"
LOCUST = [sys.executable, "-P", "-m", "locust", "-f", f"{LOCUSTFILE},{PROMPT}", "--headless", "-r", "100"]
# With one pipe for all that it says. gevent makes its own descriptors anew, before others have their numbers.
PROGRAM = "import gevent, os; gevent.reinit(); gevent.idle(); os.dup2(2, 1); from locust.main import main; main()"


@dataclass
class Ran:
    """A finished run: its exit code and all it said."""

    code: int
    text: str


def locust(folder: Path, *words: str, until: Iterable[str] = (), environment: dict[str, str] | None = None) -> Ran:
    """Run until each of these patterns was in the console's table, then ^C; without any, to its own end.

    Forked from a process that has imported locust, which takes it longer than most of these runs.
    """
    line = ["locust", *LOCUST[4:], "-t", "60s", "--csv", str(folder / "out"), *words]
    whole = {**os.environ, **(environment or {})}
    running = forkserver("locust.main").start(line, program=PROGRAM, directory=folder, environment=whole)
    log = Log(running.stderr)
    try:
        for pattern in until:
            log.wait_line(pattern, 40)
        if until:
            running.send_signal(signal.SIGINT)
        code = running.wait(40)
    finally:
        running.kill()
        log.join()
    return Ran(code, log.text)


def test_a_run_lasts_as_long_as_it_should_though_modules_were_read_for_long(tmp_path: Path):
    """Timers counted from before that: `-t 2s` was over at once, without a message and without an error."""
    busy = "import time\nuntil_s = time.monotonic() + 3\nwhile time.monotonic() < until_s:\n    pass\n"
    (tmp_path / "slow.py").write_text(busy)
    words = "-f", f"{tmp_path}/slow.py,{LOCUSTFILE}", "-t", "2s", "-u", "1", "--host", "nats://127.0.0.1:1"
    text = locust(tmp_path, *words).text
    stamps = [re.search(rf":(\d\d),(\d\d\d)\].*{said}", text) for said in ("Run time limit set", "limit reached")]
    set_ms, over_ms = (int(found[1]) * 1000 + int(found[2]) for found in stamps if found)
    assert (over_ms - set_ms) % 60_000 > 1900


def some(names: Iterable[str], digits: int = 1) -> list[str]:
    """Patterns: each of these names has requests, a number of at least so many digits."""
    return [rf" {re.escape(name)} +[1-9]\d{{{digits - 1},}} +\d+\(" for name in names]


def rows(folder: Path, what: str = "stats") -> dict[str, dict[str, str]]:
    with (folder / f"out_{what}.csv").open() as file:
        return {row["Name"]: row for row in csv.DictReader(file)}


@pytest.mark.parametrize(
    ("scenario", "names"),
    [
        ("mixed", {"fanout delivery", "request", "job done", "telemetry delivery", "own words", "connect"}),
        ("storm", {"subscribe, publish, receive", "connect"}),
        ("slow", {"delivery beside a slow consumer", "publish beside a slow consumer"}),
    ],
)
def test_a_scenario_runs_without_a_failure(broker: Broker, tmp_path: Path, scenario: str, names: set[str]):
    words = ["--host", broker.url, "--tags", scenario, "-u", "24", "--payload", "40-100"]
    ran = locust(tmp_path, *words, until=some(names, digits=2))
    assert ran.code == 0, ran.text
    found = rows(tmp_path)
    assert names <= set(found)
    assert found["Aggregated"]["Failure Count"] == "0"
    head, *table = ran.text.partition("Response time percentiles")[2].splitlines()[1:]
    assert head.split()[:3] == ["Type", "Name", "50%"] and head.endswith("# reqs")
    (whole,) = (line.split() for line in table if line.split()[:1] == ["Aggregated"])
    assert whole[-1] == found["Aggregated"]["Request Count"]
    assert 0 < float(whole[1]) <= float(whole[-2])
    # Below a millisecond, where locust alone would say 0.
    least = [float(found[name]["Min Response Time"]) for name in names]
    assert all(0 < value < 1000 for value in least)
    assert any("." in found[name]["50%"] and float(found[name]["50%"]) > 0 for name in names)


@pytest.mark.kinds("gnatswarm-1")
def test_json_and_html_are_written(broker: Broker, tmp_path: Path):
    words = ["--scenario", "request", "-u", "3", "--html", "out.html", "--json-file", "out"]
    ran = locust(tmp_path, "--host", broker.url, *words, until=some(["request"]))
    assert ran.code == 0, ran.text
    entries = json.loads((tmp_path / "out.json").read_text())
    requests = next(entry for entry in entries if entry["name"] == "request")
    assert requests["num_requests"] > 0
    assert any(0 < float(key) < 1000 and "." in key for key in requests["response_times"])
    assert "request" in (tmp_path / "out.html").read_text()


@pytest.mark.kinds("gnatswarm-1")
def test_workers_in_processes_of_their_own_add_up(broker: Broker, tmp_path: Path):
    port = str(free_port())
    words = ["--scenario", "storm", "-u", "6", "--processes", "2"]
    words += ["--master-bind-host", "127.0.0.1", "--master-bind-port", port, "--master-port", port]
    name = "subscribe, publish, receive"
    ran = locust(tmp_path, "--host", broker.url, *words, until=some([name]))
    assert ran.code == 0, ran.text
    assert float(rows(tmp_path)[name]["50%"]) > 0


@pytest.mark.kinds("gnatswarm-1")
def test_options_come_from_the_environment_too(broker: Broker, tmp_path: Path):
    name = "subscribe, publish, receive"
    environment = {"NATS_SCENARIO": "storm", "NATS_RATE": "50"}
    ran = locust(tmp_path, "--host", broker.url, "-u", "2", until=some([name]), environment=environment)
    assert ran.code == 0, ran.text
    assert set(rows(tmp_path)) == {"connect", name, "Aggregated"}


@pytest.mark.parametrize(
    ("delivery", "fault"),
    [
        (lambda number: [] if number == 5 else [number], "lost: 1 missing"),
        (lambda number: [number, number] if number == 5 else [number], "came twice"),
        (lambda number: {5: [], 6: [6, 5]}.get(number, [number]), "out of order"),
    ],
)
def test_what_is_lost_doubled_or_out_of_order_is_a_failure(
    tmp_path: Path, delivery: Callable[[int], list[int]], fault: str
):
    with BadServer(delivery) as server:
        # One publisher on one subject: its numbers are the server's.
        options = ["--scenario", "fanout", "--subjects", "1", "--rate", "50", "-u", "2"]
        ran = locust(tmp_path, "--host", server.url, *options, until=[r" fanout delivery +\d+ +[1-9]\d*\("])
    assert ran.code == 1
    with (tmp_path / "out_failures.csv").open() as file:
        assert any(fault in row["Error"] for row in csv.DictReader(file))


def test_a_server_that_goes_away_is_a_failure_and_not_a_traceback(start_broker: Callable[..., Broker], tmp_path: Path):
    broker = start_broker()

    def steps() -> Iterator[str]:
        yield r"SUB +fanout delivery +[1-9]"
        broker.send_signal(signal.SIGKILL)
        yield r"CONNECT +disconnected +[1-9]\d* +[1-9]"

    ran = locust(tmp_path, "--host", broker.url, "--scenario", "fanout", "-u", "4", until=steps())
    assert ran.code == 1
    assert "CONNECT disconnected: Disconnected" in ran.text
    assert "Traceback" not in ran.text


def test_mistakes_of_a_user_of_ones_own_are_failures_and_say_what_to_do(broker: Broker, tmp_path: Path):
    (tmp_path / "mine.py").write_text(
        "from locust import task\n"
        "from gnatswarm.loadtest.users import NatsUser\n\n"
        "class Odd(NatsUser):\n"
        "    rate_per_s = 50\n\n"
        "    @task\n"
        "    def odd(self):\n"
        "        self.publish('\\udcff')\n\n"
        "class Hasty(NatsUser):\n"
        "    def on_start(self):\n"
        "        self.publish('a')\n\n"
        "    @task\n"
        "    def nothing(self):\n"
        "        pass\n"
    )
    ran = locust(tmp_path, "-f", f"{tmp_path}/mine.py,{PROMPT}", "-u", "2", "--host", broker.url, "-t", "2s")
    assert ran.code == 1, ran.text
    assert "Hasty has no client yet: an on_start() calls super().on_start() first" in ran.text
    assert "event handler" not in ran.text, ran.text
    with open(tmp_path / "out_failures.csv", newline="") as file:
        (row,) = csv.DictReader(file)
    assert (row["Method"], row["Name"]) == ("PUB", "\\udcff") and "not a subject" in row["Error"]


def test_a_full_disk_is_said_where_the_csv_files_end(broker: Broker, tmp_path: Path):
    (tmp_path / "out_failures.csv").symlink_to("/dev/full")
    ran = locust(tmp_path, "-u", "1", "--host", broker.url, "-t", "2s", "--scenario", "fanout")
    assert ran.code == 1, ran.text
    assert "the CSV files are not complete: " in ran.text
    assert "submillisecond.py" not in ran.text, "a traceback"


def test_a_login_that_is_refused_is_a_failure(start_broker: Callable[..., Broker], tmp_path: Path):
    broker = start_broker(args=["--auth", "secret"])
    words = ["--host", broker.url, "--scenario", "storm", "-u", "1"]
    ran = locust(tmp_path, *words, until=[r" connect +\d+ +[1-9]\d*\("])
    assert ran.code == 1
    assert "Authorization Violation" in ran.text
    assert "Traceback" not in ran.text


@pytest.mark.kinds("gnatswarm-1")
def test_an_impossible_rate_is_said(broker: Broker, tmp_path: Path):
    words = ["--host", broker.url, "--scenario", "telemetry", "-u", "5", "--rate", "1000000"]
    # Latencies count from when a message was due: the longest of them is a second and more.
    ran = locust(tmp_path, *words, until=[r" telemetry publish .*\| +\S+ +\S+ +\d{4,} "])
    assert re.search(r"impossible rate: users fell up to \d+\.\d s behind their schedule", ran.text), ran.text
    assert "Traceback" not in ran.text


def test_tls_with_an_authority_of_ones_own(start_broker: Callable[..., Broker], tmp_path: Path):
    authority = Authority(tmp_path)
    broker = start_broker(config=f"tls {{ {authority.server().lines} }}")
    words = ["--host", f"tls://127.0.0.1:{broker.port}", "--scenario", "request", "-u", "3"]
    ran = locust(tmp_path, *words, "--tlsca", str(authority.path), until=some(["request"]))
    assert ran.code == 0, ran.text
    ran = locust(tmp_path, *words, until=[r" connect +\d+ +[1-9]\d*\("])
    assert ran.code == 1
    assert "certificate verify failed" in ran.text
    assert "Traceback" not in ran.text


@pytest.mark.kinds("gnatswarm-1")
@pytest.mark.parametrize("more", [[], ["--processes", "1"]])
def test_a_password_in_the_address_logs_in_and_is_not_shown(
    start_broker: Callable[..., Broker], tmp_path: Path, more: list[str]
):
    broker = start_broker(args=["--user", "joe", "--pass", "hunter2"])
    name = "subscribe, publish, receive"
    words = ["--host", f"nats://joe:hunter2@127.0.0.1:{broker.port}", "--scenario", "storm", "-u", "2"]
    if more:
        port = str(free_port())
        more = [*more, "--master-bind-host", "127.0.0.1", "--master-bind-port", port, "--master-port", port]
    ran = locust(tmp_path, *words, *more, "--html", "out.html", until=some([name]))
    assert ran.code == 0, ran.text
    page = (tmp_path / "out.html").read_text()
    assert f"127.0.0.1:{broker.port}" in page
    assert "hunter2" not in page + ran.text


def start(browser: Browser, words: str) -> None:
    """Start the run, and wait until the page shows these words of it.

    A click on a page that is still being drawn again may be lost: click until it says that it runs. Where it says that
    it is ready again, it is clicked again.
    """
    is_on = "/SPAWNING|RUNNING/.test(document.body.innerText.toUpperCase())"
    for deadline_s in (15, 15, 40):
        browser.wait(f"({is_on} || document.querySelector('button[type=submit]')?.click(), {is_on})", 40)
        with suppress(TimeoutError):
            browser.wait(f"document.body.innerText.includes({words!r})", deadline_s)
            return
    raise TimeoutError(browser.value("document.body.innerText.slice(0, 1500)"))


@pytest.mark.kinds("gnatswarm-1")
@pytest.mark.skipif(find() is None, reason="no chromium")
def test_the_page_has_our_options_and_shows_a_run(broker: Broker, tmp_path: Path):
    port = free_port()
    words = [*LOCUST[:-3], "--web-host", "127.0.0.1", "--web-port", str(port), "-r", "100", "-u", "24"]
    line = [*words, "--host", f"nats://joe:hunter2@127.0.0.1:{broker.port}"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=tmp_path) as running:
        assert running.stdout is not None
        log = Log(running.stdout)
        try:
            log.wait_line("Starting web interface", 40)
            program = find()
            assert program is not None
            with Browser(program) as browser:
                browser.open(f"http://127.0.0.1:{port}/")
                browser.wait("!!document.querySelector('button[type=submit]')")
                options = browser.value("Object.keys(window.templateArgs.extra_options).sort().join()")
                assert options == "even,payload,rate,subjects,zipf"
                assert "hunter2" not in browser.value("document.documentElement.outerHTML")
                try:
                    start(browser, "fanout delivery")
                    for name in ("job done", "own words", "request", "telemetry delivery"):
                        browser.wait(f"document.body.innerText.includes({name!r})", 40)
                except TimeoutError as error:
                    pytest.fail(f"{error}\nlocust says:\n{log.text}")
                assert "hunter2" not in browser.value("document.documentElement.outerHTML")
            running.send_signal(signal.SIGINT)
            running.wait(40)
        finally:
            running.kill()
            log.join()
    assert "Traceback" not in log.text


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--host", "http://127.0.0.1:1"], "begins with nats://"),
        (["--creds", "/nonexistent"], "/nonexistent: cannot be read"),
        (["--tlsca", "/nonexistent"], "/nonexistent: cannot be used as trusted certificates"),
        (["--rate", "nan"], "--rate is 0 or more"),
        (["--scenario", "nonsense"], "no scenario is called nonsense"),
        (["--payload", "huge"], "no distribution of sizes"),
        (["--subjects", "0"], "Zipf"),
        (["--rate", "-1"], "--rate is 0 or more"),
    ],
)
def test_bad_options_are_one_line(tmp_path: Path, words: list[str], why: str):
    ran = locust(tmp_path, "-u", "1", *words)
    assert ran.code == 1
    assert why in ran.text
    assert "Traceback" not in ran.text
