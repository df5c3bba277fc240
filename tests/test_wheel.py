"""The wheel, installed where nothing of the source tree is: it embeds, its plugin is found, its types are seen."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("broker", "shards", "router", "loadtest", "spark")
DEADLINE_S = 300


def run(*command: object, **more: object) -> str:
    done = subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        **more,  # type: ignore[call-overload]
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return str(done.stdout)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as pip builds it, but for the compiled modules, which are those of this tree."""
    tree = tmp_path_factory.mktemp("tree")
    ignored = shutil.ignore_patterns("__pycache__", "*.so", "results")
    for folder in SOURCES:
        shutil.copytree(ROOT / folder, tree / folder, ignore=ignored)
    for path in ROOT.glob("*"):
        if path.is_file() and not path.name.startswith("."):
            shutil.copy(path, tree)
    out = tmp_path_factory.mktemp("wheel")
    environment = os.environ | {"GNATSWARM_SKIP_EXTENSIONS": "1"}
    pip = (sys.executable, "-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps", "-w", out, tree)
    run(*pip, env=environment)
    (found,) = out.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with the wheel, and with our dependencies, but without the source tree."""
    home = tmp_path_factory.mktemp("venv")
    run(sys.executable, "-m", "venv", "--without-pip", home)
    (site,) = home.glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    for folder in SOURCES:
        for module in (ROOT / folder).rglob("*.so"):
            shutil.copy(module, site / module.relative_to(ROOT))
    # A directory that is only on the path: .pth files in it, such as an editable install's, do not count.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home / "bin" / "python"


def test_holds_the_root_modules_with_their_types_and_no_tests(wheel: Path):
    names = zipfile.ZipFile(wheel).namelist()
    for name in ("gnatswarm", "gnatswarm_capture", "gnatswarm_pytest"):
        assert f"{name}.py" in names and f"{name}-stubs/__init__.pyi" in names
    assert {"broker/py.typed", "shards/py.typed", "router/py.typed"} <= set(names)
    assert not [name for name in names if name.startswith(("tests", "deploy"))]


def test_embeds_a_broker(python: Path, tmp_path: Path):
    text = "import gnatswarm, shards\nwith gnatswarm.Broker() as b: print(gnatswarm.__file__, b.capture('a').messages)"
    said = run(python, "-c", text, cwd=tmp_path)
    assert said.startswith(str(python.parent.parent)) and said.endswith("gnatswarm.py []\n")


def test_gives_a_test_suite_its_broker(python: Path, tmp_path: Path):
    (tmp_path / "test_it.py").write_text(
        "async def test_hello(gnatswarm, gnatswarm_client):\n"
        '    captured = gnatswarm.capture("greet.*")\n'
        '    await gnatswarm_client.publish("greet.you", b"hello")\n'
        "    await gnatswarm_client.flush()\n"
        '    assert captured.payloads == [b"hello"]\n'
    )
    options = ("-o", "asyncio_mode=auto", "-p", "no:cacheprovider", "-q")
    assert "1 passed" in run(python, "-m", "pytest", *options, cwd=tmp_path)


def test_type_checkers_see_its_options(python: Path, tmp_path: Path):
    path = tmp_path / "typed.py"
    path.write_text(
        "import gnatswarm\nwith gnatswarm.Broker(max_payload=4096) as broker:\n"
        '    reveal_type(broker.capture(">").messages)\ngnatswarm.Broker(max_paylod=1)\n'
    )
    command = (sys.executable, "-m", "mypy", "--strict", "--python-executable", python, path)
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False, cwd=tmp_path)
    assert 'Revealed type is "list[gnatswarm_capture.Message]"' in done.stdout, done.stdout
    assert 'Unexpected keyword argument "max_paylod" for "Broker"; did you mean "max_payload"?' in done.stdout
    assert "Found 1 error" in done.stdout
