"""Every deliberate fault still applies, and the tests that are to see it exist. Trying them is `make mutants`."""

from __future__ import annotations

import ast
import functools
import re
from typing import Any
from unittest.mock import Mock

import pytest

from tests.mutants.__main__ import NOT_SEEN, SEEN, UNCLEAR, counts, is_current, outcome, recorded, table
from tests.mutants.faults import Fault, faults
from tests.mutants.tree import ROOT

FAULTS = faults()


@functools.cache
def text_of(path: str) -> str:
    return (ROOT / path).read_text()


def a_fault(**changes) -> Fault:
    given = {"name": "a", "file": "broker/a.py", "find": "x = 1", "replace": "x = 2", "promise": "x is 1."}
    return Fault(**(given | changes))


def test_every_fault_applies():
    wrong = []
    for fault in FAULTS:
        try:
            source = fault.applied(text_of(fault.file))
            if not fault.is_compiled:
                ast.parse(source)
        except (ValueError, SyntaxError) as error:
            wrong.append(f"{fault.name}: {error}")
    assert not wrong


def test_every_fault_changes_something_and_is_named_once():
    assert not [fault.name for fault in FAULTS if fault.find == fault.replace]
    names = [fault.name for fault in FAULTS]
    assert len(set(names)) == len(names)


def test_the_tests_of_every_fault_exist():
    wrong = []
    for fault in FAULTS:
        for test in fault.tests:
            path, *names = test.split("::")
            is_there = (ROOT / path).is_dir() or (
                (ROOT / path).is_file() and all(f"def {name.partition('[')[0]}(" in text_of(path) for name in names)
            )
            if not is_there:
                wrong.append(f"{fault.name}: {test}")
    assert not wrong
    assert not [fault.name for fault in FAULTS if not (fault.tests or fault.simulation or fault.equivalent)]


def test_faults_are_in_all_areas_and_many_were_chosen_blind():
    areas = {area: sum(fault.file.startswith(area + "/") for fault in FAULTS) for area in ("broker", "shards")}
    assert len(FAULTS) >= 100
    assert areas["broker"] >= 40
    assert 3 * sum(fault.chosen_blind for fault in FAULTS) >= len(FAULTS)


def test_a_text_that_occurs_twice_or_not_at_all_does_not_apply():
    assert a_fault().applied("x = 1\n") == "x = 2\n"
    for source in ("x = 3\n", "x = 1\nx = 1\n"):
        with pytest.raises(ValueError, match="occurs"):
            a_fault().applied(source)


def test_a_changed_fault_is_run_again():
    fault = a_fault()
    results = {"a": {"outcome": SEEN, "by": "t", "fault": fault.digest}}
    assert is_current(fault, results)
    assert not is_current(a_fault(replace="x = 3"), results)
    assert not is_current(a_fault(tests=("tests/test_make.py",)), results)


@pytest.mark.parametrize(
    ("failing", "found", "by"),
    [
        ((), NOT_SEEN, ""),
        (("t::sees it",), SEEN, "t::sees it"),
        (("t::bad", "t::sees it"), SEEN, "t::sees it"),
        (("t::bad",), UNCLEAR, "t::bad: without the fault too"),
        (("t::bad", "t::bad too", "t::bad as well", "t::sees it"), UNCLEAR, "t::bad, t::bad too, t::bad as well"),
    ],
)
def test_a_test_that_fails_without_the_fault_too_does_not_hide_what_others_see(failing, found, by):
    """One that did not fit the kinds of brokers here hid all others of its file."""
    tree: Any = Mock()
    tree.seen_by.side_effect = lambda _fault, unfit: next((test for test in failing if test not in unfit), None)
    tree.passes_without.side_effect = lambda test, _fault: "bad" not in test
    result = outcome(tree, a_fault())
    assert result["outcome"] == found and result["by"].startswith(by)
    assert tree.put.call_count == tree.restore.call_count


def test_the_table_counts_what_was_seen():
    known = [a_fault(), a_fault(name="b", chosen_blind=True)]
    results = {"a": {"outcome": SEEN, "by": "t::u"}, "b": {"outcome": NOT_SEEN, "by": ""}}
    assert counts(known, results)[SEEN] == 1
    page = table(known, results)
    assert "| all: 2 | 1 | 1 | 0 | 0 | 0 |" in page
    assert "| blind: 1 | 0 | 1 | 0 | 0 | 0 |" in page


def test_results_are_of_faults_that_exist():
    assert set(recorded()) <= {fault.name for fault in FAULTS}


def test_what_has_seen_a_fault_exists():
    """A test that was renamed since would leave a result that nobody can follow: run its fault again."""
    gone = []
    for name, result in recorded().items():
        path, *names = result["by"].split("::") if result["outcome"] == SEEN else ("",)
        for test in names[:1]:  # behind it: the method of a state machine of Hypothesis, which is not written down
            is_there = (ROOT / path).is_file() and re.search(rf"\b{test.partition('[')[0]}\b", text_of(path))
            if not is_there:
                gone.append(f"{name}: {result['by']}")
    assert not gone
