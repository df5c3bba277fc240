"""The `placement` block: what is read, every mistake with its place, and the file that `gnatswarm place` writes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gnatswarm.broker.options import Placement, PlacementRule
from gnatswarm.router.config.conf_tree import ConfigError
from gnatswarm.router.config.flags import parse
from gnatswarm.router.config.options_build import Built, build
from gnatswarm.router.config.placement_block import MOST_RULES
from gnatswarm.spark.placement_file import Expected, Rule, is_writable, written

Build = Callable[..., Built]


@pytest.fixture
def built(tmp_path: Path) -> Build:
    def from_text(text: str, *flags: str) -> Built:
        path = tmp_path / "t.conf"
        path.write_text(text, encoding="utf-8")
        return build(parse([*flags, *(["-c", str(path)] if text else [])]), environment={})

    return from_text


@pytest.fixture
def refusals(built: Build) -> Callable[[str], list[str]]:
    def of(text: str) -> list[str]:
        with pytest.raises(ConfigError) as caught:
            built(text)
        return [re.sub(r"\S*t\.conf:", "", str(problem)) for problem in caught.value.problems]

    return of


def test_defaults_and_flag(built: Build) -> None:
    assert built("").options.placement == Placement(after_scale="even", bound=1.25, rules=())
    assert built("placement { after_scale: stay, bound: 2 }").options.placement == Placement("stay", 2.0)
    assert built("placement { after_scale: stay }", "--placement", "even").options.placement.after_scale == "even"
    with pytest.raises(ConfigError, match='-placement: unknown value "some" — write even or stay'):
        built("", "--placement", "some")


def test_rules_in_their_order(built: Build) -> None:
    found = built(
        'placement { rules: [ { name: "a*", shard: 3 }, { user: ann, together: true }\n'
        ' { subject: "b.>", shard: 0 }, { account: "$G", together: true } ] }'
    )
    assert found.options.placement.rules == (
        PlacementRule("name", "a*", 3),
        PlacementRule("user", "ann"),
        PlacementRule("subject", "b.>", 0),
        PlacementRule("account", "$G"),
    )
    assert found.warnings == ()


RULES: list[tuple[str, list[str]]] = [
    ("placement: 5", ["1:1: Expected placement to be a map, got a number — write placement { rules: [ … ] }"]),
    ("placement {}\nplacement {}", ["2:1: placement is given again — keep one; the other is at 1:1"]),
    ("placement { rule: [] }", ['1:13: unknown field "rule" — did you mean "rules"?']),
    ("placement { rules: {} }", ["1:20: Expected rules to be a list, got a block — write rules: [ {…}, {…} ]"]),
    ("placement { after_scale: x }", ['1:13: after_scale: unknown value "x" — write even or stay']),
    ("placement { bound: 0.9 }", ["1:13: bound: 0.9 is out of range — write 1 to 62, such as 1.25"]),
    ("placement { bound: all }", ["1:13: bound: expected a number, not text — write one such as 1.25"]),
]
EXAMPLE = 'write { name: "orders*", shard: 1 }, or together: true in place of the shard'
ONE_RULE: list[tuple[str, str]] = [
    ("5", f"Expected a rule, got a number — {EXAMPLE}"),
    ("{nam: a, shard: 1}", 'unknown field "nam" — did you mean "name"?'),
    ("{shard: 1}", f"a rule that does not say whose it is — {EXAMPLE}"),
    ("{name: a}", f"a rule that does not say where — {EXAMPLE}"),
    ("{name: a, user: b, shard: 1}", f"a rule with name and user — {EXAMPLE}"),
    ("{name: a, together: true, shard: 1}", f"a rule with together and a shard — {EXAMPLE}"),
    ("{name: a, together: false}", "together: expected true — write together: true, or shard: N"),
    ("{name: a, shard: 62}", "shard: 62 is out of range — write 0 to 61"),
    ("{name: a, shard: b}", "shard: expected a number, not text — write a whole number, without quotes"),
    ("{name: '', shard: 1}", "name: an empty pattern matches no client — write 1 to 1024 characters; * stands for anything"),  # noqa: E501
    ("{name: 5, shard: 1}", "name: expected text, not a number — put it in quotes"),
    ("{subject: 'a..b', shard: 1}", 'subject: "a..b" is not a valid subject — write it as a subscription, as in orders.> or orders.*.new'),  # noqa: E501
]  # fmt: skip


@pytest.mark.parametrize(("text", "problems"), RULES)
def test_mistakes(refusals: Callable[[str], list[str]], text: str, problems: list[str]) -> None:
    assert refusals(text) == problems


@pytest.mark.parametrize(("rule", "problem"), ONE_RULE)
def test_mistakes_of_a_rule(refusals: Callable[[str], list[str]], rule: str, problem: str) -> None:
    (found,) = refusals(f"placement {{ rules: [\n {rule} ] }}")
    assert found.startswith("2:") and found.split(": ", 1)[1] == problem


def test_rules_that_contradict_or_hide_each_other(refusals: Callable[[str], list[str]]) -> None:
    found = refusals(
        "placement { rules: [\n{name: 'a*', shard: 1}\n{name: abc, shard: 0}\n{name: 'a*', shard: 2}\n"
        "{name: '*a', shard: 1}\n{user: abc, shard: 0}\n{subject: 'x.>', together: true}\n{subject: x.y, shard: 1} ] }"
    )
    assert found == [
        '3:1: name "abc" is within name "a*", whose rule comes first — put it before that one, which is at 2:1, '
        "or remove it",
        '4:1: name "a*" has a rule already, for shard 1 — keep one; the other is at 2:1',
        '8:1: subject "x.y" is within subject "x.>", whose rule comes first — put it before that one, which is at 7:1, '
        "or remove it",
    ]


def test_names_that_nobody_has_and_shards_that_do_not_run_are_warned_of(built: Build) -> None:
    found = built(
        "shards: 2\naccounts { A { users: [ {user: ann, password: x} ] } }\nplacement { rules: [\n"
        "{account: B, shard: 1}\n{user: 'bob*', shard: 1}\n{user: 'an*', shard: 2}\n{name: any, shard: 1} ] }"
    )
    assert [re.sub(r"\S*t\.conf:", "", line) for line in found.warnings] == [
        '4:1: no account of this configuration is "B" — check its spelling; * stands for anything',
        '5:1: no user of this configuration is "bob*" — check its spelling; * stands for anything',
        "6:1: there is no shard 2: shards is 2 — write 0 to 1, or more shards; till then these clients stay where they "
        "are",
    ]


def test_too_many_rules(refusals: Callable[[str], list[str]]) -> None:
    many = " ".join(f"{{name: n{n}, shard: 0}}," for n in range(MOST_RULES + 1))
    (found,) = refusals(f"placement {{ rules: [ {many} ] }}")
    assert "4097 rules — write 4096 at most" in found


names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8).filter(is_writable) | st.sampled_from(
    ["ab", "abc", "abcd", "b", "$G", "5", "true", "{", "}", "#x", "//", "a b", "é", "${x}", "$x"]
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.dictionaries(st.tuples(st.sampled_from(["name", "user"]), names), st.tuples(st.booleans(), st.integers(0, 61)))
)
def test_the_file_that_place_writes_is_taken_as_it_is(built: Build, services: dict[tuple[str, str], tuple[bool, int]]):
    rules = [
        Rule(kind, name + ("*" if has_numbers else ""), shard)
        for (kind, name), (has_numbers, shard) in services.items()
    ]
    expected = Expected(4, 0.5, 0.1, 1.5, 1.1, "name", 5)
    found = built(written(rules, expected, "statistics"))
    assert sorted((one.kind, one.pattern, one.shard) for one in found.options.placement.rules) == sorted(rules)
