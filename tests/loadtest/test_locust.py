"""Locust runs of the shipped scenarios, headless and short; each is a process, because locust changes its whole one."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loadtest.servers import free_port
from tests.loadtest.bad_server import BadServer
from tests.support.servers import Broker, Log

LOCUSTFILE = Path(__file__).resolve().parents[2] / "loadtest" / "locustfile.py"
LOCUST = [sys.executable, "-P", "-m", "locust", "-f", str(LOCUSTFILE), "--headless", "-r", "100", "--only-summary"]


def locust(folder: Path, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **options.pop("environment", {})}
    return subprocess.run(
        [*LOCUST, "--csv", str(folder / "out"), *words],
        capture_output=True, text=True, timeout=60, check=False, cwd=folder, env=environment, **options,
    )  # fmt: skip


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
    ran = locust(tmp_path, "--host", broker.url, "--tags", scenario, "-u", "24", "-t", "2s", "--payload", "40-100")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = rows(tmp_path)
    assert names <= set(found)
    assert found["Aggregated"]["Failure Count"] == "0"
    # Below a millisecond, where locust alone would say 0.
    least = [float(found[name]["Min Response Time"]) for name in names]
    assert all(0 < value < 1000 for value in least)
    assert any("." in found[name]["50%"] and float(found[name]["50%"]) > 0 for name in names)


@pytest.mark.kinds("gnatswarm-1")
def test_json_and_html_are_written(broker: Broker, tmp_path: Path):
    words = ["--scenario", "request", "-u", "3", "-t", "1s", "--html", "out.html", "--json"]
    ran = locust(tmp_path, "--host", broker.url, *words)
    assert ran.returncode == 0, ran.stderr
    requests = next(entry for entry in json.loads(ran.stdout) if entry["name"] == "request")
    assert requests["num_requests"] > 0
    assert any(0 < float(key) < 1000 and "." in key for key in requests["response_times"])
    assert "request" in (tmp_path / "out.html").read_text()


@pytest.mark.kinds("gnatswarm-1")
def test_workers_in_processes_of_their_own_add_up(broker: Broker, tmp_path: Path):
    port = str(free_port())
    words = ["--scenario", "storm", "-u", "4", "-t", "1s", "--processes", "2"]
    words += ["--master-bind-host", "127.0.0.1", "--master-bind-port", port, "--master-port", port]
    ran = locust(tmp_path, "--host", broker.url, *words)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert float(rows(tmp_path)["subscribe, publish, receive"]["50%"]) > 0


@pytest.mark.kinds("gnatswarm-1")
def test_options_come_from_the_environment_too(broker: Broker, tmp_path: Path):
    ran = locust(
        tmp_path, "--host", broker.url, "-u", "2", "-t", "1s", environment={"NATS_SCENARIO": "storm", "NATS_RATE": "50"}
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert set(rows(tmp_path)) == {"connect", "subscribe, publish, receive", "Aggregated"}


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
        options = ["--scenario", "fanout", "--subjects", "1", "--rate", "50", "-u", "2", "-t", "2s"]
        ran = locust(tmp_path, "--host", server.url, *options)
    assert ran.returncode == 1
    with (tmp_path / "out_failures.csv").open() as file:
        assert any(fault in row["Error"] for row in csv.DictReader(file))


def test_a_server_that_goes_away_is_a_failure_and_not_a_traceback(start_broker: Callable[..., Broker], tmp_path: Path):
    broker = start_broker()
    words = [word for word in LOCUST if word != "--only-summary"]
    words += ["--host", broker.url, "--scenario", "fanout", "-u", "4", "-t", "60s"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=tmp_path) as running:
        assert running.stdout is not None
        log = Log(iter(running.stdout.readline, b""))
        log.wait_line(r"SUB +fanout delivery +[1-9]", 30)
        broker.send_signal(signal.SIGKILL)
        log.wait_line(r"CONNECT +disconnected +[1-9]\d* +[1-9]", 30)
        running.send_signal(signal.SIGINT)
        log.wait_line(r"CONNECT disconnected: Disconnected", 30)
        assert running.wait(30) == 1
    log.join()
    assert "Traceback" not in log.text


def test_a_login_that_is_refused_is_a_failure(start_broker: Callable[..., Broker], tmp_path: Path):
    broker = start_broker(args=["--auth", "secret"])
    ran = locust(tmp_path, "--host", broker.url, "--scenario", "storm", "-u", "1", "-t", "1s")
    assert ran.returncode == 1
    assert "Authorization Violation" in ran.stdout + ran.stderr
    assert "Traceback" not in ran.stdout + ran.stderr


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--scenario", "nonsense"], "no scenario is called nonsense"),
        (["--payload", "huge"], "no distribution of sizes"),
        (["--subjects", "0"], "Zipf"),
        (["--rate", "-1"], "--rate is 0 or more"),
    ],
)
def test_bad_options_are_one_line(tmp_path: Path, words: list[str], why: str):
    ran = locust(tmp_path, "-u", "1", "-t", "1s", *words)
    assert ran.returncode == 1
    assert why in ran.stderr
    assert "Traceback" not in ran.stderr
