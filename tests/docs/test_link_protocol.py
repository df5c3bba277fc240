"""deploy/LINK_PROTOCOL.md names the frames that the parser knows, and shows frames that it reads."""

from __future__ import annotations

import re

import pytest

from gnatswarm.broker.routewire import parse_route
from gnatswarm.shards.links.links import LINK_VERSION
from tests.docs.page import ROOT, blocks

PAGE = ROOT / "deploy" / "LINK_PROTOCOL.md"
TEXT = PAGE.read_text(encoding="utf-8")
PARSER = (ROOT / "broker" / "routewire.pyx").read_text(encoding="utf-8")

# Sections are headed by the frames that they specify.
IN_THE_PAGE = {verb for heading in re.findall(r"(?m)^### (`.*)$", TEXT) for verb in re.findall(r"`([^`]+)`", heading)}
# As the parser compares them: in lower case, with the blank behind.
IN_THE_PARSER = {verb.strip().upper() for verb in re.findall(r"verb_size = \w+, b'([^']+)', \d", PARSER)}

EXAMPLES = [
    line
    for block in blocks(PAGE)
    for line in block.text.split("\n")
    if "<" not in line and line.split(" ")[0] in IN_THE_PAGE
]


def test_the_page_and_the_parser_know_the_same_frames() -> None:
    assert IN_THE_PAGE == IN_THE_PARSER
    assert len(IN_THE_PAGE) > 10


def test_every_frame_that_is_sent_has_an_example() -> None:
    assert {line.split(" ")[0] for line in EXAMPLES} == IN_THE_PAGE - {"-ERR"}


@pytest.mark.parametrize("line", EXAMPLES)
def test_an_example_is_a_frame(line: str) -> None:
    found = parse_route(line.encode() + b"\r\n")
    assert found["op"] not in ("BAD", "MORE")


def test_the_page_names_the_version_that_shards_speak() -> None:
    assert f"It is version {LINK_VERSION} of the protocol" in TEXT
    assert set(re.findall(r'"link_version":(\d+)', TEXT)) == {str(LINK_VERSION)}
