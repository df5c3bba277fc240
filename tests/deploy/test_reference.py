"""The pages that are written by scripts say what there is now: options, and what was measured."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from gnatswarm.router.config.option_keys import KEYS

ROOT = Path(__file__).resolve().parents[2]


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"deploy_{name}", ROOT / "deploy" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    return script("reference")


@pytest.fixture(scope="module")
def page(reference: ModuleType) -> str:
    return str(reference.page())


def test_the_capacity_tables_are_what_was_measured() -> None:
    written = (ROOT / "deploy" / "CAPACITY.md").read_text(encoding="utf-8")
    assert written == script("capacity").page(written), "run `make reference`"


def test_the_page_is_what_the_options_are(page: str) -> None:
    written = (ROOT / "deploy" / "CONFIGURATION.md").read_text(encoding="utf-8")
    assert written == page, "run `make reference`"


def test_every_option_has_a_line_in_its_section(reference: ModuleType) -> None:
    for _title, prefix, struct, _note in reference.SECTIONS:
        fields = {field.name for field in msgspec.structs.fields(struct)}
        left_out = {
            name
            for name in fields
            if prefix + name in reference.NO_KEY or (not prefix and name in reference.SECTION_FIELDS)
        }
        assert len(list(reference.rows(struct, prefix))) == len(fields - left_out), struct


@pytest.mark.parametrize("key", [key for key in KEYS if key.names != ("stats",)], ids=lambda key: key.names[0])
def test_every_key_of_the_file_is_on_the_page(page: str, key: object) -> None:
    assert all(f"`{name}`" in page for name in key.names)  # type: ignore[attr-defined]


def test_the_alerts_are_those_of_the_table() -> None:
    written = (ROOT / "deploy" / "prometheus" / "gnatswarm.rules.yml").read_text(encoding="utf-8")
    assert written == script("alerts").rules(), "run `make reference`"


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="argparse lays its help out differently")
def test_the_man_pages_are_the_help() -> None:
    written = {path.name: path.read_text(encoding="ascii") for path in (ROOT / "deploy" / "man").iterdir()}
    assert written == script("manpages").pages(), "run `make reference`"


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
def test_the_man_pages_are_good_roff() -> None:
    paths = sorted((ROOT / "deploy" / "man").iterdir())
    done = subprocess.run(
        ["groff", "-ww", "-man", "-Tutf8", "-z", *paths], capture_output=True, text=True, check=True, timeout=120
    )
    assert (done.stderr, len(paths) > 20) == ("", True)
