"""No kept input of a fuzzer breaks its target's invariant, and no small change of one does.

The search for more is `make fuzz`: tests/fuzz/README.md.
"""

from __future__ import annotations

import random
import zlib

import pytest

from tests.fuzz.programs import mutated
from tests.fuzz.targets import CORPUS, MOST_BYTES, TARGETS, check_of, kept

CHANGES = 150  # of each target, always the same ones

EVERY_TARGET = pytest.mark.parametrize("target", TARGETS)


@EVERY_TARGET
def test_every_kept_input_holds(target):
    check = check_of(target)
    for path in kept(target):
        try:
            check(path.read_bytes())
        except Exception as error:
            raise AssertionError(f"{path}: {error}") from error


@EVERY_TARGET
def test_changed_inputs_hold(target):
    check = check_of(target)
    rng = random.Random(zlib.crc32(target.encode()))
    inputs = [path.read_bytes() for path in kept(target)]
    for _ in range(CHANGES):
        data = mutated(rng, rng.choice(inputs))[:MOST_BYTES]
        try:
            check(data)
        except Exception as error:
            raise AssertionError(f"{data!r}: {error}") from error


def test_each_target_has_inputs_that_are_small():
    assert {path.name for path in CORPUS.iterdir()} == set(TARGETS)
    for target in TARGETS:
        assert len(kept(target)) >= 10
        assert all(path.stat().st_size <= MOST_BYTES for path in kept(target))


@EVERY_TARGET
def test_a_target_says_what_it_checks(target):
    doc = check_of(target).__doc__
    assert doc
    assert len(doc.split()) > 20
