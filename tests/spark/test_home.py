"""Where Spark starts from: links without the jars that no job needs, and what a directory keeps of a start."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gnatswarm.spark import home as homes
from gnatswarm.spark.home import CLASSES, UNUSED_JARS, VARIABLE, Home, NotKept, spark_home
from gnatswarm.spark.session import job_home, use_java

NEEDED = {"spark-core_2.13-4.jar", "spark-sql_2.13-4.jar", "hive-storage-api-2.jar", "scala-library-2.jar"}
NO_PROCESS = 1 << 30


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """What the package pyspark has, without its contents."""
    made = tmp_path / "pyspark"
    (made / "jars").mkdir(parents=True)
    (made / "bin").mkdir()
    for name in (*NEEDED, *(f"{beginning}-1.jar" for beginning in UNUSED_JARS)):
        (made / "jars" / name).touch()
    return made


@pytest.fixture
def java(tmp_path: Path) -> Path:
    made = tmp_path / "java"
    made.touch()
    return made


def kept(package: Path, java: Path, cache: Path) -> Home:
    return spark_home(package, {VARIABLE: str(cache)}, java)


def test_a_home_has_links_to_all_but_what_is_not_used(package: Path, java: Path, tmp_path: Path):
    for home in (spark_home(package, {}, java), kept(package, java, tmp_path / "cache")):
        assert {path.name for path in (home.path / "jars").iterdir()} == NEEDED
        assert (home.path / "bin").resolve() == package / "bin"


def test_what_is_kept_is_of_one_java_and_one_spark(package: Path, java: Path, tmp_path: Path):
    cache = tmp_path / "cache"
    first = kept(package, java, cache)
    assert kept(package, java, cache) == first
    assert cache.stat().st_mode & 0o777 == 0o700
    os.utime(java, ns=(1, 1))
    other_java = kept(package, java, cache)
    os.utime(package / "jars", ns=(1, 1))
    other_jars = kept(package, java, cache)
    assert len({first.path, other_java.path, other_jars.path}) == 3


def test_two_first_jobs_at_once_make_one_home(
    package: Path, java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    cache = tmp_path / "cache"
    link_home = homes.link_home

    def and_another_is_faster(source: Path, home: Path) -> None:
        link_home(source, home)
        monkeypatch.setattr(homes, "link_home", link_home)
        kept(package, java, cache)

    monkeypatch.setattr(homes, "link_home", and_another_is_faster)
    assert (kept(package, java, cache).path / "jars").is_dir()
    assert len(list(cache.iterdir())) == 1


def test_classes_are_written_once_and_then_used(package: Path, java: Path, tmp_path: Path):
    home = kept(package, java, tmp_path / "cache")
    assert home.classes is not None
    assert f"-XX:ArchiveClassesAtExit={home.classes}.{os.getpid()}" in home.java_options()
    home.classes.touch()
    assert f"-XX:SharedArchiveFile={home.classes}" in home.java_options()
    assert spark_home(package, {}, java).java_options() == ""


def test_what_a_killed_job_left_is_removed_and_what_another_one_writes_is_not(
    package: Path, java: Path, tmp_path: Path
):
    home = kept(package, java, tmp_path / "cache")
    left, written = home.path.parent / f"{CLASSES}.{NO_PROCESS}", home.path.parent / f"{CLASSES}.{os.getpid()}"
    left.touch()
    written.touch()
    kept(package, java, tmp_path / "cache")
    assert not left.exists() and written.exists()


@pytest.mark.parametrize("mode", [0o770, 0o702])
def test_a_directory_that_others_can_write_to_is_not_used(mode: int, package: Path, java: Path, tmp_path: Path):
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(mode)
    with pytest.raises(NotKept, match=r"GNATSWARM_SPARK_CACHE=.*/cache: others can write to it.*chmod go-w"):
        kept(package, java, cache)
    assert not list(cache.iterdir())


def test_a_directory_of_another_user_is_not_used(
    package: Path, java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(NotKept, match="others can write to it"):
        kept(package, java, tmp_path)


def test_a_directory_whose_name_java_does_not_take_is_not_used(package: Path, java: Path, tmp_path: Path):
    with pytest.raises(NotKept, match="no path with ':'"):
        kept(package, java, tmp_path / "a:b")


def test_a_job_that_cannot_keep_its_start_says_why_and_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
    (tmp_path / "file").touch()
    monkeypatch.setenv(VARIABLE, str(tmp_path / "file"))
    home = job_home("gnatswarm report", "local[*]")
    assert home is not None and home.classes is None and (home.path / "jars").is_dir()
    said = f"gnatswarm report: {VARIABLE}={tmp_path}/file: file exists; name another directory\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("variable", ["SPARK_HOME", "SPARK_CONF_DIR", "PYSPARK_GATEWAY_PORT"])
def test_who_says_how_spark_starts_is_obeyed(variable: str, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
    assert job_home("gnatswarm report", "spark://10.0.0.1:7077") is None
    monkeypatch.setenv(variable, "anything")
    assert job_home("gnatswarm report", "local[*]") is None


def test_a_java_writes_its_classes_when_a_job_ends_and_another_one_starts_from_them(tmp_path: Path):
    """Java is real, and so is the program that Spark's Java begins with; it ends, as Spark does, with its input."""
    pyspark = pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
    package = Path(pyspark.__file__).parent
    java = use_java()
    home = kept(package, java, tmp_path / "a cache")
    gateway = next(Path(home.path, "jars").glob("py4j-*.jar"))

    def start(*options: str) -> subprocess.Popen[bytes]:
        command = [java, *options, *shlex.split(home.java_options()), "-cp", gateway, "py4j.GatewayServer"]
        started = subprocess.Popen(
            [*map(str, command), "--die-on-broken-pipe", "0"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert started.stdout is not None
        assert started.stdout.readline().strip().isdigit()  # its port
        return started

    with start() as first:
        assert home.stop(session_of(first))
    assert home.classes is not None and home.classes.exists()
    with start("-Xshare:on") as second:  # which ends at once if it cannot use them
        assert str(home.classes) in Path(f"/proc/{second.pid}/maps").read_text()
        assert not home.stop(session_of(second))


def test_a_java_that_dies_leaves_no_classes(package: Path, java: Path, tmp_path: Path):
    home = kept(package, java, tmp_path / "cache")
    with subprocess.Popen(["true"], stdin=subprocess.PIPE) as dead:
        assert not home.stop(session_of(dead))
    assert home.classes is not None and not home.classes.exists()


def session_of(java: subprocess.Popen[bytes]) -> Any:
    gateway = SimpleNamespace(proc=java)
    return SimpleNamespace(sparkContext=SimpleNamespace(_gateway=gateway), stop=lambda: None)
