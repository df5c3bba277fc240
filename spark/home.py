"""The home from which Spark starts: links to what the package pyspark has, without the jars that no job here needs.

It is temporary; or it is kept, with most of what a start costs: the Java classes of a job, as Java has read and checked
them. GNATSWARM_SPARK_CACHE names the directory for that. The first job that finds nothing there has its Java write them
when it ends, and waits for that; later ones start from them. Java itself makes sure that they are of this Java and of
these jars, and otherwise starts as without them ("Application Class Data Sharing" in
https://docs.oracle.com/en/java/javase/17/docs/specs/man/java.html). Classes are code: a directory that somebody
else can write to is not used.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VARIABLE = "GNATSWARM_SPARK_CACHE"
# Parts of Spark that a job on this machine does not need. Java looks for a class in one jar after the other, and
# Spark's machine learning adds its functions to each session: that is a fourth of the start.
UNUSED_JARS = (
    "spark-mllib", "spark-hive", "spark-connect", "spark-yarn", "spark-kubernetes", "spark-graphx", "spark-pipelines",
    "spark-repl", "spark-streaming", "hive-", "datanucleus-", "derby", "kubernetes-", "vertx-", "volcano-", "breeze",
    "spire", "algebra", "cats-", "netty-tcnative", "rocksdbjni", "zookeeper", "curator-", "jline", "scala-compiler",
)  # fmt: skip
NEEDED_JARS = ("hive-storage-api",)  # by ORC
CLASSES = "classes.jsa"
# Java writes the classes in about the time of a start.
WRITE_S = 300.0
# Why Java cannot use or keep one class or another is nothing that a reader of its output could change.
SILENT = "-Xlog:disable"


class NotKept(Exception):
    """Why nothing can be kept in the directory that VARIABLE names, with the path."""


@dataclass(frozen=True)
class Home:
    """`path`: Spark's home. `classes`: where the classes that its Java reads at a start are kept, or None."""

    path: Path
    classes: Path | None = None

    @property
    def _unfinished(self) -> Path:
        assert self.classes is not None
        return self.classes.with_name(f"{CLASSES}.{os.getpid()}")

    def java_options(self) -> str:
        """For Java: to start from the classes that are kept, or to write them when it ends."""
        if self.classes is None:
            return ""
        if self.classes.exists():
            return f'"-XX:SharedArchiveFile={self.classes}" {SILENT}'
        return f'"-XX:ArchiveClassesAtExit={self._unfinished}" {SILENT}'

    def stop(self, session: SparkSession) -> bool:
        """Stop the session; if its Java is to write its classes, wait until it has. Whether they are new."""
        java: subprocess.Popen[bytes] | None = getattr(session.sparkContext._gateway, "proc", None)
        session.stop()
        if self.classes is None or self.classes.exists() or java is None or java.stdin is None:
            return False
        java.stdin.close()  # upon which it ends
        try:
            java.wait(WRITE_S)
            os.replace(self._unfinished, self.classes)
        except (OSError, subprocess.TimeoutExpired):
            return False
        return True


def spark_home(pyspark: Path, environment: Mapping[str, str], java: Path) -> Home:
    """A home for the package's directory `pyspark`: kept, if there is a directory for that, else temporary.

    Raises NotKept.
    """
    if not environment.get(VARIABLE):
        private = Path(tempfile.mkdtemp(prefix="gnatswarm-spark-"))
        atexit.register(shutil.rmtree, private, ignore_errors=True)
        link_home(pyspark, private)
        return Home(private)
    cache = Path(environment[VARIABLE]).absolute()
    try:
        return _kept_home(pyspark, java, cache)
    except OSError as error:
        raise NotKept(
            f"{VARIABLE}={cache}: {(error.strerror or str(error)).lower()}; name another directory"
        ) from error


def _kept_home(pyspark: Path, java: Path, cache: Path) -> Home:
    if ":" in str(cache) or '"' in str(cache):
        raise NotKept(f"{VARIABLE}={cache}: Java takes no path with ':' or '\"'; name another directory")
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = cache.stat()
    if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise NotKept(f"{VARIABLE}={cache}: others can write to it, and it has code; chmod go-w, or name another one")
    kept = cache / _name(pyspark, java)
    if not kept.is_dir():
        made = Path(tempfile.mkdtemp(prefix="new-", dir=cache))
        (made / "home").mkdir()
        link_home(pyspark, made / "home")
        try:
            made.rename(kept)
        except OSError:  # another job was faster
            shutil.rmtree(made)
    for path in kept.glob(f"{CLASSES}.*"):
        if not Path("/proc", path.suffix[1:]).exists():  # of a job that was killed
            path.unlink(missing_ok=True)
    return Home(kept / "home", kept / CLASSES)


def _name(pyspark: Path, java: Path) -> str:
    """Another Java and other jars have other classes."""
    of = [str(path.resolve()) + str(path.stat().st_mtime_ns) for path in (pyspark / "jars", java)]
    return hashlib.sha256("\n".join(of).encode(errors="surrogateescape")).hexdigest()[:16]


def link_home(pyspark: Path, home: Path) -> None:
    """Make links in the empty directory `home` to all that is in `pyspark`, without UNUSED_JARS."""
    for path in pyspark.iterdir():
        if path.name != "jars":
            (home / path.name).symlink_to(path)
    (home / "jars").mkdir()
    for path in (pyspark / "jars").iterdir():
        if not path.name.startswith(UNUSED_JARS) or path.name.startswith(NEEDED_JARS):
            (home / "jars" / path.name).symlink_to(path)


@contextlib.contextmanager
def started_from(home: Home) -> Iterator[None]:
    """Meanwhile, Spark starts from this home."""
    os.environ["SPARK_HOME"] = str(home.path)
    try:
        yield
    finally:
        del os.environ["SPARK_HOME"]
