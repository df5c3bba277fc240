"""A program can take over a broker that speaks no version of a format which it does not know."""

from __future__ import annotations

import msgspec
import pytest

from gnatswarm.router.supervision.successor import Answer, objection, own_answer, own_formats

SPOKEN = own_formats({"links": 4, "pages": 2})


@pytest.mark.parametrize(
    ("links", "said"),
    [
        ((4, 4), ""),
        ((3, 5), ""),
        ((4, 9), ""),
        ((5, 5), "it has version 5 of links, this broker version 4"),
        ((1, 3), "it has versions 1 to 3 of links, this broker version 4"),
    ],
)
def test_the_version_that_the_broker_speaks_must_be_among_those_it_knows(links, said):
    knows = {name: (version, version) for name, version in SPOKEN.items()}
    assert objection(Answer("1", 1, {**knows, "links": links, "more": (1, 1)}), SPOKEN) == said


def test_a_format_that_it_does_not_know_at_all():
    assert objection(Answer("1", 1, {"links": (4, 4)}), SPOKEN) == "it does not know the format of pages"


def test_a_version_can_take_over_itself():
    answer = msgspec.json.decode(own_answer({"links": 4, "pages": 2}), type=Answer)
    assert objection(answer, SPOKEN) == ""
