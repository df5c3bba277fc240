"""ARCHITECTURE.md names every room, and modules that are there; decisions are in their index; links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.page import ROOT
from tests.test_architecture import MAY_IMPORT

ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
MAP, READING_ORDER = (
    re.search(rf"(?ms)^## {title}\n(.*?)(?=^## |\Z)", ARCHITECTURE)[1]  # type: ignore[index]
    for title in ("The map", "Reading order")
)
ENDINGS = (".py", ".pyx", ".pxd", ".h", "")
MOST_WORDS = 2900

DECISIONS = ROOT / "deploy" / "decisions"
PAGES = [
    *ROOT.glob("*.md"),
    *(ROOT / "deploy").rglob("*.md"),
    *(ROOT / "loadtest").rglob("*.md"),
    *(ROOT / "spark").glob("*.md"),
]


def rooms() -> set[str]:
    """The folders of the source that hold modules, as paths."""
    return {
        path.parent.relative_to(ROOT).as_posix()
        for top in ("broker", "shards", "router", "spark", "loadtest")
        for path in (ROOT / top).rglob("__init__.py")
    }


# ---- the map


def test_the_map_has_a_line_for_every_room() -> None:
    in_the_map = set(re.findall(r"(?m)^\| `([\w/]+)/` \|", MAP))
    # A room of one page and its file; what is in it is data.
    assert rooms() - {"router/monitoring/dashboard"} <= in_the_map
    assert all((ROOT / room).is_dir() for room in in_the_map)


def test_the_map_has_a_line_for_everything_that_has_an_import_rule() -> None:
    in_the_map = set(re.findall(r"(?m)^\| `([\w./]+?)/?` \|", MAP))
    for part in MAY_IMPORT:
        assert {part.replace(".", "/"), f"gnatswarm_{part}.py"} & in_the_map, part


def test_the_reading_order_comes_through_every_room() -> None:
    for room in rooms() - {"router/monitoring/dashboard"}:
        parent, _, name = room.rpartition("/")
        assert f"`{room}/`" in READING_ORDER or (parent in rooms() and f"`{name}/`" in READING_ORDER), room


def test_the_reading_order_names_modules_that_are_there() -> None:
    steps = re.findall(r"(?m)^\d+\. (.*)$", READING_ORDER)
    folder = ""
    named = 0
    for step in steps:
        for name in re.findall(r"`([^`]+)`", step.replace(".pxd`", "`")):
            if name.endswith("/") and (ROOT / name).is_dir():
                folder = name.rstrip("/")
                continue
            places = [ROOT / f"{where}{name}{ending}" for where in (f"{folder}/", "") for ending in ENDINGS]
            assert any(place.exists() for place in places), f"{name} in: {step}"
            named += 1
    assert named > 80


def test_the_map_can_be_read_at_one_sitting() -> None:
    assert len(ARCHITECTURE.split()) <= MOST_WORDS


# ---- decisions


@pytest.mark.parametrize("path", sorted(DECISIONS.glob("2*.md")), ids=lambda path: path.stem)
def test_a_decision_is_dated_complete_and_in_the_index(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    index = (DECISIONS / "README.md").read_text(encoding="utf-8")
    title = text.split("\n", 1)[0].removeprefix("# ")
    date = path.name[:10]
    assert f"\nDecided on {date}.\n" in text
    assert re.findall(r"(?m)^## (.*)$", text) == ["Context", "Decision", "What lost", "Consequences"]
    assert f"| [{title}]({path.name}) | {date} |" in index


# ---- links


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as code hosts make them."""
    headings = re.findall(r"(?m)^#+ (.*)$", re.sub(r"(?ms)^```.*?^```", "", path.read_text(encoding="utf-8")))
    plain = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).strip().lower() for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_to_a_file_and_to_a_heading(path: Path) -> None:
    text = re.sub(r"(?ms)^```.*?^```", "", path.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\((?!\w+:)([^)\s]+)", text):
        name, _, anchor = target.partition("#")
        place = path.parent / name if name else path
        assert place.exists(), target
        if anchor and place.suffix == ".md":
            assert anchor in anchors(place), target
