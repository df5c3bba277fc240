"""One SparkSession for the process: starting it is most of what these tests cost."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# Compiling takes longer than these few rows; and in a JVM that lives for a minute the second compiler would only take
# the processor from the first.
NO_CODE = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
ONE_COMPILER = "-XX:TieredStopAtLevel=1"
# With one compiler Java keeps 48 MB of code by default. The session of all tests has more: it spent a tenth of its time
# on finding code to drop, and then compiled again what it had dropped.
ROOM_FOR_CODE = "-XX:ReservedCodeCacheSize=240m"
# To verify classes, of Spark itself alone here, is a fifth of a start and of what is done for the first time.
UNVERIFIED = "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"

# Who is stopped while Spark answers leaves that answer to the next test, and so do all behind it.
TIMEOUT_S = 1800
HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """On a busy machine Spark takes minutes for what takes it seconds."""
    for item in items:
        if item.path.is_relative_to(HERE) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


def java_options() -> str:
    """Spark's temporary files, of which each job makes some dozens, are where Python's are."""
    return f"{ONE_COMPILER} {UNVERIFIED} -Djava.io.tmpdir={tempfile.gettempdir()}"


@pytest.fixture(scope="module", autouse=True)
def quick_programs() -> Iterator[None]:
    """What the tests start as programs of their own does not compile either."""
    with pytest.MonkeyPatch.context() as patch:
        options = " ".join(f"-D{name}={value}" for name, value in NO_CODE.items())
        patch.setenv("SPARK_SUBMIT_OPTS", f"{java_options()} {options}")
        yield


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
    from gnatswarm.spark.session import job_home, new_session

    settings = {
        "spark.sql.adaptive.enabled": "false",
        **NO_CODE,
        "spark.default.parallelism": "1",
        "spark.sql.files.openCostInBytes": "1",
        "spark.driver.extraJavaOptions": f"{java_options()} -XX:+UseSerialGC -XX:-UsePerfData {ROOM_FOR_CODE}",
    }
    master = "local[2]"
    home = job_home("tests", master)
    session = new_session("tests", master=master, memory="1200m", shuffle_partitions=1, settings=settings, home=home)
    yield session
    session.stop()
