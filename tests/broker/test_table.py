"""The hash table of C structs, against a dict."""

from __future__ import annotations

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gnatswarm.broker.table import SpreadProbe, TableProbe

# Few low bits, so that keys crowd in the same slots and shifting back has work. Of some the 20 that a slot holds are
# the same, of others only the 16 above its pointer.
hashes = st.sampled_from([0, 1, 2, 3, 5, 7, 0x10001, 0x10003, 0xFFFF0003, 0xFFFFFFFF, 0x80000000, 0x100003])
keys = st.binary(max_size=2)


class TableAgainstDict(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.table = TableProbe()
        self.model = {}
        self.values = 0

    @rule(key=keys, hash=hashes)
    def insert(self, key, hash):
        if (key, hash) not in self.model:
            self.values += 1
            self.table.insert(key, hash, self.values)
            self.model[key, hash] = self.values

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def remove(self, data):
        key, hash = data.draw(st.sampled_from(sorted(self.model)))
        self.table.remove(key, hash)
        del self.model[key, hash]

    @rule(key=keys, hash=hashes)
    def find(self, key, hash):
        assert self.table.find(key, hash) == self.model.get((key, hash))

    @invariant()
    def holds_what_the_dict_holds(self):
        assert len(self.table) == len(self.model)
        assert sorted(self.table.values()) == sorted(self.model.values())
        for (key, hash), value in self.model.items():
            assert self.table.find(key, hash) == value

    @invariant()
    def is_at_most_three_quarters_full_and_nothing_when_empty(self):
        assert len(self.table) * 4 <= self.table.slots * 3
        assert bool(self.model) == bool(self.table.slots)


TableAgainstDict.TestCase.settings = settings(max_examples=60, stateful_step_count=60)
test_a_table_holds_what_a_dict_holds = TableAgainstDict.TestCase


def test_a_table_grows_by_doubling_and_keeps_every_item():
    table = TableProbe()
    for i in range(10_000):
        table.insert(b"%d" % i, i * 2654435761 & 0xFFFFFFFF, i)
    assert table.slots == 16_384
    assert all(table.find(b"%d" % i, i * 2654435761 & 0xFFFFFFFF) == i for i in range(10_000))


def test_a_table_whose_slots_hold_too_little_of_a_hash_asks_the_items():
    items = 790_000  # more than three quarters of a million slots
    table = TableProbe()
    hashed = [i * 2654435761 & 0xFFFFFFFF for i in range(items)]
    for i in range(items):
        table.insert(b"%d" % i, hashed[i], i)
    assert table.slots == 1 << 21
    assert all(table.find(b"%d" % i, hashed[i]) == i for i in range(0, items, 7))
    for i in range(0, items, 7):
        table.remove(b"%d" % i, hashed[i])
    found = [table.find(b"%d" % i, hashed[i]) for i in range(70_000)]
    assert found == [i if i % 7 else None for i in range(70_000)]


def test_keys_of_one_hash_are_told_apart():
    table = TableProbe()
    for i in range(50):
        table.insert(b"%d" % i, 12345, i)
    for i in range(0, 50, 2):
        table.remove(b"%d" % i, 12345)
    assert [table.find(b"%d" % i, 12345) for i in range(50)] == [i if i % 2 else None for i in range(50)]
    with pytest.raises(KeyError):
        table.remove(b"0", 12345)


def test_no_table_of_a_spread_grows_far_and_all_of_it_goes_with_the_last_item():
    spread = SpreadProbe()
    rng = random.Random(1)
    hashed = {b"%d" % i: rng.getrandbits(32) for i in range(300_000)}
    for value, (key, hash) in enumerate(hashed.items()):
        spread.insert(key, hash, value)
    assert len(spread.slots) == 1024
    assert set(spread.slots) <= {256, 512}
    assert sorted(spread.values()) == list(range(300_000))
    keys = list(hashed)
    rng.shuffle(keys)
    for key in keys[:299_990]:
        spread.remove(key, hashed[key])
    found = {key: spread.find(key, hashed[key]) for key in keys}
    assert found == {key: int(key) if key in keys[299_990:] else None for key in keys}
    for key in keys[299_990:]:
        spread.remove(key, hashed[key])
    assert (spread.split, spread.slots) == (0, [])


def test_tables_of_a_spread_are_split_one_by_one_and_become_one_again():
    spread = SpreadProbe()
    others = [i << 26 for i in range(1, 64)]
    for hash in others:
        spread.insert(b"other", hash, hash)
    crowd = list(range(0, 1 << 26, 40_000))  # all begin with the same six bits
    for number, hash in enumerate(crowd):
        spread.insert(b"%d" % number, hash, number)
        if number in (1535, 1536):
            assert spread.slots[:2] == ([2048, 4] if number == 1535 else [256, 256])
    assert all(spread.find(b"%d" % number, hash) == number for number, hash in enumerate(crowd))
    for number, hash in enumerate(crowd):
        spread.remove(b"%d" % number, hash)
    assert (spread.split, spread.slots) == (0, [4] * 63)
    spread.insert(b"again", 5, 5)
    assert spread.slots == [4] * 64
    assert spread.find(b"again", 5) == 5
