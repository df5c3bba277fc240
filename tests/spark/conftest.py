"""One SparkSession for the process: starting it is most of what these tests cost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

# Compiling takes longer than these few rows; and in a JVM that lives for a minute the second compiler would only take
# the processor from the first.
NO_CODE = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
ONE_COMPILER = "-XX:TieredStopAtLevel=1"


@pytest.fixture(scope="module", autouse=True)
def quick_programs() -> Iterator[None]:
    """What the tests start as programs of their own does not compile either."""
    with pytest.MonkeyPatch.context() as patch:
        options = " ".join(f"-D{name}={value}" for name, value in NO_CODE.items())
        patch.setenv("SPARK_SUBMIT_OPTS", f"{ONE_COMPILER} {options}")
        yield


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
    from gnatswarm.spark.session import new_session

    settings = {
        "spark.sql.adaptive.enabled": "false",
        **NO_CODE,
        "spark.default.parallelism": "1",
        "spark.sql.files.openCostInBytes": "1",
        "spark.driver.extraJavaOptions": f"{ONE_COMPILER} -XX:+UseSerialGC -XX:-UsePerfData",
    }
    session = new_session("tests", master="local[2]", memory="1200m", shuffle_partitions=1, settings=settings)
    yield session
    session.stop()
