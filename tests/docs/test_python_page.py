"""What the page on Python shows works as it stands there, and README's test too."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "deploy" / "PYTHON.md"
README = ROOT / "README.md"
DEADLINE_S = 90


def section(title: str, page: Path = PAGE) -> str:
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", page.read_text(), re.MULTILINE | re.DOTALL)
    assert found, f"{page.name} has no section {title!r}"
    return found[1]


def code(title: str, page: Path = PAGE) -> str:
    found = re.findall(r"^```python\n(.*?)^```", section(title, page), re.MULTILINE | re.DOTALL)
    assert found, f"{page.name} shows nothing under {title!r}"
    return "\n\n".join(found)


@pytest.mark.parametrize("page", [PAGE, README], ids=lambda page: page.name)
def test_the_test_passes(tmp_path: Path, page: Path):
    (tmp_path / "test_it.py").write_text(code("In your tests", page))
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-o", "asyncio_mode=auto", "-p", "no:cacheprovider"]
    command += ["-p", "no:hypothesispytest", "-p", "no:locust"]  # others' plugins, which take a second to import
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False, cwd=tmp_path)
    assert re.search(r"^\d passed", done.stdout, re.MULTILINE), done.stdout + done.stderr


def test_the_program_runs(tmp_path: Path):
    command = [sys.executable, "-P", "-c", code("In your program")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    first, second, *changes = done.stdout.splitlines()
    assert first == "b'hello'"
    assert re.fullmatch(r"nats://127\.0\.0\.1:\d+ \['ready', 'ready'\]", second)
    assert changes == ["limits.max_payload_bytes: 1048576 → 2097152", "auth_token changed"]


def test_every_fixture_that_is_named_exists():
    from gnatswarm import pytest_plugin

    named = set(re.findall(r"`(gnatswarm_?\w*)", section("In your tests")))
    assert {"gnatswarm", "gnatswarm_fresh", "gnatswarm_certificates"} <= named
    for name in named - {"gnatswarm_options"}:
        assert callable(getattr(pytest_plugin, name)), name


@pytest.mark.parametrize("title", ["In your tests", "In your program"])
def test_every_method_that_is_named_exists(title: str):
    import gnatswarm

    named = set(re.findall(r"`(?:\w+\.)?([a-z]\w+)\(\)`", section(title))) - {"len", "ax"}
    assert {"restart", "connect"} & named
    offered = gnatswarm.BrokerProcess, gnatswarm.Broker, gnatswarm.Capture, gnatswarm.Chaos
    for name in named:
        assert any(hasattr(of, name) for of in offered), name
