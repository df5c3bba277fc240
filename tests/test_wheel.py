"""The wheel, installed where nothing of the source tree is: one name, which embeds, tests and has types.

GNATSWARM_WHEEL names a finished one (`make wheel`, as CI does). Without it one is put together with this tree's own
compiled modules, which is quicker.
"""

from __future__ import annotations

import email
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import gnatswarm

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("broker", "shards", "router", "loadtest", "spark")
DEADLINE_S = 300
FINISHED = os.environ.get("GNATSWARM_WHEEL", "")

pytestmark = pytest.mark.long


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
    """Built as pip builds it, but for the compiled modules, which are those of this tree; or the finished one."""
    if FINISHED:
        return ROOT / FINISHED
    tree = tmp_path_factory.mktemp("tree")
    ignored = shutil.ignore_patterns("__pycache__", "*.so", "results")
    for folder in SOURCES:
        shutil.copytree(ROOT / folder, tree / folder, ignore=ignored)
    shutil.copytree(ROOT / "deploy" / "man", tree / "deploy" / "man")
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
    if not FINISHED:
        for folder in SOURCES:
            for module in (ROOT / folder).rglob("*.so"):
                shutil.copy(module, site / "gnatswarm" / module.relative_to(ROOT))
    # A directory that is only on the path: .pth files in it, such as an editable install's, do not count.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home / "bin" / "python"


def test_takes_one_name_in_site_packages(wheel: Path):
    names = zipfile.ZipFile(wheel).namelist()
    version = f"gnatswarm-{gnatswarm.__version__}"
    assert {name.split("/")[0] for name in names} == {"gnatswarm", f"{version}.dist-info", f"{version}.data"}


def test_holds_the_man_pages(wheel: Path):
    files = [one.filename for one in zipfile.ZipFile(wheel).infolist() if not one.is_dir()]
    names = {name.partition(".data/")[2] for name in files if ".data/" in name}
    assert names == {f"data/share/man/man1/{path.name}" for path in (ROOT / "deploy" / "man").glob("*.1")} != set()


def test_holds_all_that_runs_and_what_it_reads(wheel: Path):
    names = set(zipfile.ZipFile(wheel).namelist())
    sources = {
        path.relative_to(ROOT)
        for folder in SOURCES
        for ending in ("py", "pyi", "pxd", "html", "sql", "properties", "toml")
        for path in (ROOT / folder).rglob(f"*.{ending}")
        if "results" not in path.parts
    }
    assert {f"gnatswarm/{path}" for path in sources} <= names
    modules = ("__init__", "__main__", "any_broker", "capture", "chaos", "embedding", "pytest_plugin")
    assert {"gnatswarm/py.typed", *(f"gnatswarm/{name}.py" for name in modules)} <= names
    assert not [name for name in names if set(name.split("/")) & {"tests", "deploy", "results"}]


@pytest.mark.skipif(not FINISHED, reason="GNATSWARM_WHEEL names no finished wheel: make wheel")
def test_a_finished_wheel_is_for_many_linuxes_and_holds_every_compiled_module(wheel: Path):
    assert re.search(r"-manylinux_2_\d+_\w+[.-]|-manylinux2014_", wheel.name)
    names = set(zipfile.ZipFile(wheel).namelist())
    modules = {f"gnatswarm/{path.relative_to(ROOT)}" for folder in SOURCES for path in (ROOT / folder).rglob("*.so")}
    assert modules and modules <= names


def test_its_compiled_modules_need_the_c_library_alone():
    """So that `make wheel` gets the tag of every Linux with that library."""
    modules = [module for folder in SOURCES for module in (ROOT / folder).rglob("*.so")]
    needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", run("readelf", "--dynamic", *modules)))
    assert modules and needed <= {"libc.so.6", "libpthread.so.0", "libm.so.6"}


def test_compiled_modules_are_hardened():
    """Addresses are bound before anything runs and read-only from then on; no stack can be executed."""
    modules = [module for folder in ("broker", "shards") for module in (ROOT / folder).rglob("*.so")]
    assert modules
    for module in modules:
        assert "BIND_NOW" in run("readelf", "--dynamic", "--wide", module), module
        segments = run("readelf", "--segments", "--wide", module)
        (stack,) = re.findall(r"GNU_STACK.*", segments)
        assert "GNU_RELRO" in segments and "RWE" not in stack, module
    assert "__stack_chk_fail" in run("readelf", "--dyn-syms", "--wide", *modules)


def test_embeds_a_broker(python: Path, tmp_path: Path):
    text = "import gnatswarm\nwith gnatswarm.Broker() as b: print(gnatswarm.__file__, b.capture('a').messages)"
    said = run(python, "-c", text, cwd=tmp_path)
    assert said.startswith(str(python.parent.parent)) and said.endswith("__init__.py []\n")


def test_gives_a_test_suite_its_broker(python: Path, tmp_path: Path):
    (tmp_path / "test_it.py").write_text(
        "async def test_hello(gnatswarm, gnatswarm_client):\n"
        '    captured = await gnatswarm.acapture("greet.*")\n'
        '    await gnatswarm_client.publish("greet.you", b"hello")\n'
        "    await gnatswarm_client.flush()\n"
        "    await captured.asettle()\n"
        '    assert captured.payloads == [b"hello"]\n'
    )
    options = ("-o", "asyncio_mode=auto", "-p", "no:cacheprovider", "-q")
    assert "1 passed" in run(python, "-m", "pytest", *options, cwd=tmp_path)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Somebody's project, whose own modules have our folders' names; each says so when it is imported."""
    for name in ("broker.py", "shards.py", "router/__init__.py", "spark/__init__.py", "loadtest/__init__.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("WHOSE = 'the project'\n")
    return tmp_path


THEIRS = "import broker, loadtest, router, shards, spark\n"
THEIRS += "assert {broker.WHOSE, loadtest.WHOSE, router.WHOSE, shards.WHOSE, spark.WHOSE} == {'the project'}\n"


def test_a_project_with_modules_of_the_same_names_embeds_it(python: Path, project: Path):
    text = "import gnatswarm\n" + THEIRS
    text += "with gnatswarm.Broker() as b: print(b.capture('a').messages)\n"
    text += "with gnatswarm.BrokerProcess(shards=2) as b: print(b.capture('a').messages)\n"
    (project / "main.py").write_text(text)
    assert run(python, "main.py", cwd=project) == "[]\n[]\n"
    assert run(python, "-m", "gnatswarm", "--version", cwd=project) == f"gnatswarm: v{gnatswarm.__version__}\n"


def test_a_project_with_modules_of_the_same_names_is_tested_with_it(python: Path, project: Path):
    (project / "test_it.py").write_text(
        THEIRS + "def test_it(gnatswarm):\n"
        "    assert gnatswarm.capture('a').messages == []\n"
        "def test_embedded(gnatswarm_factory):\n"
        "    assert gnatswarm_factory(embedded=True).capture('a').messages == []\n"
    )
    # `python -m pytest`: the project's directory comes first on the path.
    assert "2 passed" in run(python, "-m", "pytest", "-p", "no:cacheprovider", "-q", cwd=project)


def test_type_checkers_see_its_options(python: Path, tmp_path: Path):
    path = tmp_path / "typed.py"
    path.write_text(
        "import gnatswarm\nwith gnatswarm.Broker(max_payload=4096) as broker:\n"
        '    reveal_type(broker.capture(">").messages)\ngnatswarm.Broker(max_paylod=1)\n'
    )
    cache = ROOT / ".mypy_cache" / "wheel"  # what the standard library is, and ours as far as it is the same
    command = (sys.executable, "-m", "mypy", "--strict", "--cache-dir", cache, "--python-executable", python, path)
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False, cwd=tmp_path)
    assert 'Revealed type is "list[gnatswarm.capture.Message]"' in done.stdout, done.stdout
    assert 'Unexpected keyword argument "max_paylod" for "Broker"; did you mean "max_payload"?' in done.stdout
    assert "Found 1 error" in done.stdout


def test_the_metadata_says_who_made_it_and_where_to_read_on_and_extras_are_described(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = email.message_from_bytes(archive.read(name))
    assert metadata["Author"]
    urls = dict(line.split(", ", 1) for line in metadata.get_all("Project-URL", []))
    assert {"Changelog", "Documentation"} <= urls.keys()
    for url in urls.values():
        assert "://" in url or (ROOT / url).is_file(), url
    readme = (ROOT / "README.md").read_text()
    for extra in metadata.get_all("Provides-Extra", []):
        assert re.search(rf"(?m)^\| (`\w+`, )*`{extra}`(, `\w+`)* \| ", readme), extra
