"""A subject rewritten by a rule: every function against a plain model, and every rule that cannot be."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnatswarm.broker.rules import Mapping, intersection, local_pattern, local_service_pattern
from gnatswarm.broker.subject import matches
from gnatswarm.broker.transform import Transform, TransformError

TOKENS = st.text("abxyz-é", min_size=1, max_size=6).map(str.encode)


def fnv_1a(data: bytes) -> int:
    value = 2166136261
    for byte in data:
        value = ((value ^ byte) * 16777619) % 2**32
    return value


def cut(token: bytes, sizes: list[int]) -> bytes:
    parts, at = [], 0
    for size in sizes:
        parts.append(token[at : at + size])
        at += size
    return b".".join([*parts, token[at:]] if token[at:] else parts)


def model(name: str, number: int, token: bytes) -> bytes:
    """What nats-server 2.9.10 makes of one token."""
    size = len(token)
    if name == "splitFromLeft":
        return cut(token, [number]) if number < size else token
    if name == "splitFromRight":
        return cut(token, [size - number]) if number < size else token
    if name == "sliceFromLeft":
        return cut(token, [number] * (size // number)) if number < size else token
    first = [size % number] if size % number else []
    return cut(token, first + [number] * (size // number)) if number < size else token


@given(
    TOKENS, st.integers(1, 7), st.sampled_from(["splitFromLeft", "splitFromRight", "sliceFromLeft", "sliceFromRight"])
)
def test_a_token_is_cut(token: bytes, number: int, name: str) -> None:
    rule = Transform(b"a.*", b"x.{{%s(1,%d)}}.y" % (name.encode(), number))
    assert rule(b"a." + token) == b"x." + model(name, number, token) + b".y"


@given(st.lists(TOKENS, min_size=3, max_size=3), st.integers(1, 100))
def test_partitions_are_fnv_1a_of_the_tokens(tokens: list[bytes], buckets: int) -> None:
    rule = Transform(b"a.*.b.*.*", b"p.{{partition(%d,3,1)}}.$1.$2.$3" % buckets)
    subject = b"a.%s.b.%s.%s" % tuple(tokens)
    expected = fnv_1a(tokens[2] + tokens[0]) % buckets
    assert rule(subject) == b"p.%d.%s" % (expected, b".".join(tokens))


def test_partitions_are_those_of_nats_server() -> None:
    """As nats-server answered."""
    rule = Transform(b"f.*.*", b"A.{{partition(7,1,2)}}.$2.$1")
    assert [rule(s) for s in (b"f.a.b", b"f.x.y", "f.é.1".encode())] == [b"A.2.b.a", b"A.4.y.x", "A.2.1.é".encode()]


def test_a_partition_without_tokens_is_of_the_whole_subject() -> None:
    """As nats-server 2.15.1 answered."""
    assert Transform(b"pb.x", b"p.{{partition(10)}}")(b"pb.x") == b"p.9"
    assert Transform(b"pc.*", b"p.{{partition(5)}}")(b"pc.hello") == b"p.0"
    assert Transform(b"a.>", b"b.{{partition(7)}}.>")(b"a.hello") == b"b.6.hello"
    assert Transform(b"pa.*.*", b"p.$1.$2.{{Partition(10)}}")(b"pa.x.y") == b"p.x.y.9"


@given(TOKENS, st.integers(1, 7))
def test_the_ends_of_a_token(token: bytes, number: int) -> None:
    rule = Transform(b"a.*", b"{{left(1,%d)}}.b.{{Right(1,%d)}}" % (number, number))
    assert rule(b"a." + token) == token[:number] + b".b." + token[-number:]


def test_random_numbers_are_below_their_bound_and_differ() -> None:
    rule = Transform(b"a.*", b"b.{{random(3)}}.$1")
    found = {rule(b"a.x") for _ in range(200)}
    assert found == {b"b.0.x", b"b.1.x", b"b.2.x"}
    assert rule.is_random and not Mapping(b"a.*", [(b"b.{{random(3)}}", 100)]).is_constant
    assert Mapping(b"a.*", [(b"b.{{left(1,3)}}", 100)]).is_constant
    assert Transform(b"a", b"b.{{random(1)}}")(b"a") == b"b.0"


@given(st.text("ab-", min_size=1, max_size=8).map(str.encode))
def test_a_token_is_split_at_separators(token: bytes) -> None:
    parts = [part for part in token.split(b"-") if part]
    assert Transform(b"a.*", b"x.{{split(1,-)}}")(b"a." + token) == b"x." + b".".join(parts)


@given(st.permutations([1, 2, 3]), st.lists(TOKENS, min_size=5, max_size=5))
def test_tokens_change_places_and_back(order: list[int], tokens: list[bytes]) -> None:
    destination = b"to." + b".".join(b"$%d" % i for i in order) + b".>"
    rule = Transform(b"*.a.*.*.>", destination)
    subject = b"%s.a.%s.%s.%s.%s" % tuple(tokens)
    expected = b".".join([b"to", *(tokens[i - 1] for i in order), *tokens[3:]])
    assert rule(subject) == expected
    assert rule.reversed()(expected) == subject


def test_the_same_in_braces() -> None:
    assert Transform(b"a.*.*", b"b.{{wildcard(2)}}.{{ Wildcard( 1 ) }}")(b"a.x.y") == b"b.y.x"


@pytest.mark.parametrize(
    ("source", "destination", "says"),
    [
        (b"foo.*", b"bar", "not using all of the token wildcard(s) in bar"),
        (b"foo.*.*", b"bar.$1", "not using all of the token wildcard(s) in bar.$1"),
        (b"foo.*", b"bar.$2", "wildcard index out of range in $2: [2]"),
        (b"foo.*", b"bar.$0", "wildcard index out of range in $0: [0]"),
        (b"foo.*", b"bar.*", "invalid subject bar.*, write $1"),
        (b"foo.>", b"bar.$1", "do not both end in >"),
        (b"foo", b"bar.>", "do not both end in >"),
        (b"foo", b"bar..x", "invalid subject bar..x"),
        (b"foo..x", b"bar", "invalid subject foo..x"),
        (b"foo.*", b"b.{{WILDCARD(1)}}", "unknown function in {{WILDCARD(1)}}"),
        (b"foo.*", b"b.{{wildCard(1)}}", "unknown function in {{wildCard(1)}}"),
        (b"foo.*", b"b.{{SPLITfromleft(1,2)}}", "unknown function"),
        (b"foo.*", b"b.$-1", "wildcard index out of range in $-1: [-1]"),
        (b"foo.*", b"b.{{wildcard(-1)}}", "function argument is invalid or in the wrong format"),
        (b"foo.*", b"b.{{split(1,a b)}}", "function argument is invalid or in the wrong format"),
        (b"foo.*", b"b.{{split(1,.)}}", "not a function: {{split(1,"),
        (b"foo.*", b"b.{{splitFromLeft(1,0)}}", "function argument is invalid or in the wrong format"),
        (b"foo", b"b.$1", "wildcard index out of range in $1: [1]"),
        (b"foo.*", b"b.{{bogus(1)}}", "unknown function in {{bogus(1)}}"),
        (b"foo.*", b"b.{{wildcard(1,2)}}", "too many arguments passed to the function"),
        (b"foo.*", b"b.{{wildcard()}}", "not enough arguments passed to the function"),
        (b"foo.*", b"b.{{partition()}}", "not enough arguments passed to the function"),
        (b"foo.*", b"b.{{random()}}", "not enough arguments passed to the function"),
        (b"foo.*", b"b.{{random(1,2)}}", "too many arguments passed to the function"),
        (b"foo.*", b"b.{{random(0)}}", "function argument is invalid or in the wrong format"),
        (b"foo.*", b"b.{{left(1)}}", "not enough arguments passed to the function"),
        (b"foo.*", b"b.{{left(1,2,3)}}", "too many arguments passed to the function"),
        (b"foo.*", b"b.{{right(1,0)}}", "function argument is invalid or in the wrong format"),
        (b"foo.*", b"b.{{left(2,2)}}", "wildcard index out of range in {{left(2,2)}}: [2]"),
        (b"foo.*", b"b.{{RANDOM(2)}}.$1", "unknown function"),
        (b"foo.*", b"b.{{partition(0,1)}}", "function argument is invalid or in the wrong format"),
        (b"foo.*", b"b.{{partition(a,1)}}", "function argument is invalid or in the wrong format"),
        (b"foo.*", b"b.{{split(1,)}}", "an empty separator"),
        (b"foo.*", b"b.{{wildcard(1)", "not a function"),
        (b".".join([b"*"] * 65), b"x", "more than 64 tokens"),
    ],
)
def test_a_rule_that_cannot_be(source: bytes, destination: bytes, says: str) -> None:
    with pytest.raises(TransformError, match=re.escape(says)):
        Transform(source, destination)


def test_numbers_may_have_a_plus_and_names_capital_letters() -> None:
    """As nats-server answered."""
    assert Transform(b"a.*.*", b"b.$+2.{{Wildcard(+1)}}")(b"a.x.y") == b"b.y.x"
    assert Transform(b"a.*", b"b.{{SplitFromleft(1,+2)}}")(b"a.xyz") == b"b.xy.z"
    assert Transform(b"a.*", b"b.$1x.$x.$", is_mapping=True)(b"a.y") == b"b.$1x.$x.$"


def test_a_mapping_need_not_use_each_wildcard() -> None:
    assert Transform(b"a.*.*", b"b.$2", is_mapping=True)(b"a.x.y") == b"b.y"
    assert Transform(b"a.*.>", b"b.>", is_mapping=True)(b"a.x.y.z") == b"b.y.z"
    rule = Transform(b"a.*", b"b", is_mapping=True)
    assert rule(b"a.x") == b"b" and rule.is_constant
    with pytest.raises(TransformError, match="out of range"):
        Transform(b"a.*", b"b.$2", is_mapping=True)


def test_a_function_cannot_be_undone() -> None:
    with pytest.raises(TransformError, match="cannot be undone"):
        Transform(b"a.*", b"b.{{partition(3,1)}}").reversed()
    with pytest.raises(TransformError, match="a wildcard twice"):
        Transform(b"a.*", b"b.$1.$1").reversed()


PATTERNS = st.lists(st.sampled_from([b"a", b"b", b"*"]), min_size=1, max_size=3).flatmap(
    lambda tokens: st.sampled_from([b".".join(tokens), b".".join([*tokens, b">"])])
)


@given(PATTERNS, PATTERNS, st.lists(st.lists(st.sampled_from([b"a", b"b", b"c"]), min_size=1, max_size=5), max_size=20))
def test_an_intersection_matches_what_both_do(one: bytes, other: bytes, subjects: list[list[bytes]]) -> None:
    both = intersection(one, other)
    for tokens in subjects:
        subject = b".".join(tokens)
        shared = matches(one, subject) and matches(other, subject)
        assert shared == (both is not None and matches(both, subject))


def test_what_an_import_is_called_here() -> None:
    assert local_pattern(b"a.*.b.>", b"x.*.>") == b"x.*.>"
    assert local_pattern(b"a.*.*", b"x.$2.$1") == b"x.*.*"
    assert local_service_pattern(b"a.b", b"x.>") == b"x.>"
    with pytest.raises(TransformError):
        local_pattern(b"a.b", b"x.*")


def test_a_mapping_of_more_than_everything() -> None:
    with pytest.raises(ValueError, match="more than 100"):
        Mapping(b"a", [(b"b", 60), (b"c", 60)])
    assert Mapping(b"a", [(b"b", 100)]).is_constant
    assert not Mapping(b"a", [(b"b", 50)]).is_constant
