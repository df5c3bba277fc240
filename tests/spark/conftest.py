"""One SparkSession for the process: starting it is most of what these tests cost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
    from spark.session import new_session

    settings = {
        "spark.sql.adaptive.enabled": "false",
        # Compiling takes longer than these few rows.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.default.parallelism": "1",
        "spark.sql.files.openCostInBytes": "1",
        # A JVM that lives for a minute: the second compiler would only take the processor from the first.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData",
    }
    session = new_session("tests", master="local[2]", memory="700m", shuffle_partitions=1, settings=settings)
    yield session
    session.stop()
