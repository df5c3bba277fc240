"""Exports, imports and mappings in a configuration: what is read, and every mistake, with its place, at once."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gnatswarm.broker import pattern_index
from gnatswarm.broker.options import Export, Import, Mapping
from gnatswarm.broker.rules import intersection
from gnatswarm.router.config.conf_tree import ConfigError
from gnatswarm.router.config.flags import parse
from gnatswarm.router.config.options_build import Built, build

Build = Callable[[str], Built]
A_AND_B = (("a.$1", 30), ("b", 20))


@pytest.fixture
def built(tmp_path: Path) -> Build:
    def from_text(text: str) -> Built:
        path = tmp_path / "t.conf"
        path.write_text(text)
        return build(parse(["-c", str(path)]), environment={})

    return from_text


@pytest.fixture
def refusals(built: Build) -> Callable[[str], list[str]]:
    def of(text: str) -> list[str]:
        with pytest.raises(ConfigError) as caught:
            built(text)
        return [re.sub(r"^\S*t\.conf:", "", str(problem)) for problem in caught.value.problems]

    return of


def test_what_is_said_is_what_is_meant(built: Build) -> None:
    options = built("""
accounts {
  A {
    exports: [ {stream: "s.>"}, {stream: p, accounts: [B, A]}, {service: q, response_type: Stream, threshold: "5s"}
               {service: r, response: chunked, response_time: "0s"}
               {service: u, response: Single}, {service: v, response: CHUNK} ]
    mappings { foo: bar, "w.*": [ {destination: "a.$1", weight: 20%}, {dest: "b.$1", weight: 30} ], same: same }
  }
  B {
    imports: [ {stream: {account: A, subject: "s.*"}, prefix: "x."}, {stream: {account: A, subject: p}}
               {service: {account: A, subject: q}, to: "ask.>"}, {service: {account: A, subject: r}} ]
  }
}
mappings { loss: {destination: loss, weight: 10%} }
""").options
    a, b = options.accounts
    assert a.exports == (
        Export("s.>", is_service=False),
        Export("p", is_service=False, accounts=("B", "A")),
        Export("q", is_service=True, response="stream", threshold_s=5.0),
        Export("r", is_service=True, response="chunked"),
        Export("u", is_service=True, response="singleton"),
        Export("v", is_service=True, response="chunked"),
    )
    assert b.imports == (
        Import("A", "s.*", is_service=False, to="x.s.*"),
        Import("A", "p", is_service=False, to="p"),
        Import("A", "q", is_service=True, to="ask.>"),
        Import("A", "r", is_service=True, to="r"),
    )
    assert a.mappings == (
        Mapping("foo", (("bar", 100),)),
        Mapping("w.*", (("a.$1", 20), ("b.$1", 30), ("w.$1", 50))),
        Mapping("same", (("same", 100),)),
    )
    assert options.mappings == (Mapping("loss", (("loss", 10),)),)


def calls_to_read(built: Build, accounts: int) -> int:
    """How many functions are called, and generators asked for their next, to read so many accounts with a user each."""
    text = "".join(f"A{number} {{ users: [ {{user: u{number}, password: p}} ] }}\n" for number in range(accounts))
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        options = built(f"accounts {{ {text} }}").options
    finally:
        sys.setprofile(None)
    assert [account.name for account in options.accounts] == [user.account for user in options.users]
    assert [user.name for user in options.users] == [f"u{number}" for number in range(accounts)]
    return calls


def test_twice_as_many_accounts_take_twice_as_long_to_read(built: Build) -> None:
    calls_to_read(built, 10)  # what is imported, and compiled, once
    assert calls_to_read(built, 1200) < 2.2 * calls_to_read(built, 600)


def exchange(exports: str, imports: str = "") -> str:
    return f"accounts {{\n A {{ exports: [\n{exports}\n] }}\n B {{ imports: [\n{imports}\n] }}\n C {{ }}\n}}\n"


@pytest.mark.parametrize(
    ("exports", "imports", "says"),
    [
        ("{stream: s}", "{stream: {account: Z, subject: s}}", '6:2: "Z" account not defined for stream import'),
        ("{stream: s, accounts: [Z]}", "", '3:2: "Z" account not defined for stream export'),
        (
            "{stream: s}",
            "{stream: {account: A, subject: t}}",
            '6:2: Error adding stream import "t": stream import not authorized',
        ),
        ("{stream: s}", "{service: {account: A, subject: s}}", "service import not authorized"),
        ("{stream: s, accounts: [C]}", "{stream: {account: A, subject: s}}", "stream import not authorized"),
        ("{stream: s, accounts: []}", "{stream: {account: A, subject: s}}", "stream import not authorized"),
        ("{stream: 'a.*'}", "{stream: {account: A, subject: 'a.>'}}", "stream import not authorized"),
        (
            "{stream: 'a.>'}, {stream: a.x, accounts: [C]}",
            "{stream: {account: A, subject: a.x}}",
            "stream import not authorized",
        ),
        (
            "{stream: s}",
            "{stream: {account: A, subject: s}}, {stream: {account: A, subject: s}, to: t}",
            "stream import already exists",
        ),
        (
            "{service: s}",
            "{service: {account: A, subject: s}}, {service: {account: A, subject: s}}",
            'Duplicate service import subject "s", previously used in import for account "A", subject "s"',
        ),
        ("{stream: s, service: t}", "", "an export is a stream or a service, not both"),
        ("{accounts: [B]}", "", "3:1: an export of nothing"),
        ("{stream: s, foo: 1}", "", '3:13: unknown field "foo"'),
        ("{stream: s}", "{stream: {account: A, subject: s}, foo: 1}", '6:36: unknown field "foo"'),
        ("{stream: s, response_type: stream}", "", "Detected response directive on non-service"),
        ("{stream: s, threshold: '5s'}", "", "Detected response directive on non-service"),
        ("{service: s, response_type: bad}", "", 'Unknown response type: "bad"'),
        ("{service: s, threshold: '1x'}", "", "Expected response threshold to be a parseable time duration"),
        ("{service: s, threshold: 1}", "", "Expected response threshold to be a parseable time duration"),
        ("{stream: s, accounts: B}", "", "Expected accounts to be an array"),
        ("{stream: s, account_token_position: 1}", "", '3:13: account_token_position: token 1 of "s" is no *'),
        ("{stream: 'a.*', account_token_position: 3}", "", '3:17: account_token_position: token 3 of "a.*" is no *'),
        ("{stream: 'a.>', account_token_position: 2}", "", "token 2 of"),
        ("{stream: 'a.*', account_token_position: -1}", "", "token -1 of"),
        ("{stream: 'a.*', account_token_position: x}", "", "account_token_position: expected a number, not text"),
        ("{stream: 'a.*', account_token_position: true}", "", "account_token_position: expected a number, not a b"),
        *(
            (
                exports,
                f"{{{kind}: {{account: A, subject: '{subject}'}}, to: 'to.here'}}",
                f"{kind} import not authorized",
            )
            for kind in ("stream", "service")
            for exports, subject in (
                (f"{{{kind}: 'a.*', account_token_position: 2}}", "a.C"),
                (f"{{{kind}: 'a.*', account_token_position: 2}}", "a.b"),
                (f"{{{kind}: 'a.*.*', account_token_position: 2}}", "a.C.B"),
                (f"{{{kind}: 'a.*', account_token_position: 2, accounts: []}}", "a.B"),
                (f"{{{kind}: 'a.*', account_token_position: 2}}, {{{kind}: 'a.>'}}", "a.C"),
                (f"{{{kind}: 'a.>'}}, {{{kind}: 'a.*', account_token_position: 2}}", "a.C"),
            )
        ),
        ("{stream: 'a.*', account_token_position: 2}", "{stream: {account: A, subject: 'a.*'}}", "not authorized"),
        ("{stream: s, token_req: true}", "", "activation token (a JWT) are not offered"),
        (
            "{stream: s}",
            "{stream: {account: A, subject: s}, token: eyJ}",
            "with an activation token (a JWT) are not",
        ),
        ("s", "", "Export Items should be a map with type entry, got text"),
        ("{stream: 1}", "", "Expected stream name to be string, got a number"),
        ("{stream: a..b}", "", 'subject "a..b" is not a valid subject'),
        ("{stream: s}", "{stream: s}", "Stream entry should be an account map, got text"),
        ("{stream: s}", "{stream: {account: A}}", "Expect an account name and a subject"),
        ("{stream: s}", "{stream: {account: A, subject: s}, prefix: 'p.*'}", "prefix can not contain wildcard tokens"),
        ("{stream: 's.*'}", "{stream: {account: A, subject: 's.*'}, prefix: '$1'}", "write a prefix without $1"),
        ("{stream: s}", "{stream: {account: A, subject: s}, prefix: 'p.$1'}", "write a prefix without $1"),
        ("{service: s, response_threshold: []}", "{service: {account: A, subject: s}}", "time duration, got a list"),
        (
            "{stream: s}",
            "{stream: {account: A, subject: s}, prefix: p, to: t}",
            "Stream import can not have a 'prefix' and a 'to' property",
        ),
        ("{service: s}", "{service: {account: A, subject: s}, prefix: p}", "a prefix is only for streams"),
        ("{stream: 'a.*'}", "{stream: {account: A, subject: 'a.*'}, to: x}", "not using all of the token wildcard(s)"),
        ("{stream: 'a.*'}", "{stream: {account: A, subject: 'a.*'}, to: 'x.$2'}", "wildcard index out of range"),
        (
            "{stream: 'a.*'}",
            "{stream: {account: A, subject: 'a.*'}, to: 'x.{{partition(2,1)}}'}",
            "has a function that cannot be undone",
        ),
        ("{service: 'a.*'}", "{service: {account: A, subject: 'a.*'}, to: x}", "not using all of the token wildcard"),
        ("{service: a}", "{service: {account: A, subject: a}, to: x..y}", "invalid subject x..y"),
        ("{stream: s}, {stream: s, accounts: [B]}", "", 'stream "s" is exported again, and differently'),
        (
            "{service: s, accounts: [B]}, {service: s, accounts: [C], response: stream}",
            "",
            'service "s" is exported again, and differently',
        ),
        (
            "{service: s, accounts: [B], threshold: 1s}, {service: s, accounts: [C], threshold: 2s}",
            "",
            'service "s" is exported again, and differently',
        ),
        ("{service: s, latency: x}, {stream: t, latency: y}", "", "latency is only for services"),
    ],
)
def test_a_mistake_is_found(refusals: Callable[[str], list[str]], exports: str, imports: str, says: str) -> None:
    (problem,) = refusals(exchange(exports, imports))
    assert says in problem
    assert re.match(r"\d+:\d+: .* — .+", problem)


def test_all_mistakes_are_found_at_once(refusals: Callable[[str], list[str]]) -> None:
    found = refusals(
        exchange(
            "{stream: s, foo: 1}\n{service: t, response_type: x}",
            "{stream: {account: A, subject: q}}\n{service: {account: Z, subject: q}}\n{stream: 3}",
        )
        + 'mappings {\n "a.>": b\n c: [ {destination: d} ]\n}\n'
    )
    assert sorted(int(problem.split(":")[0]) for problem in found) == [3, 4, 7, 8, 9, 14, 15]


def ring(kind: str, *accounts: tuple[str, str, str, str]) -> str:
    """Accounts that each export everything, and import (from, subject, as)."""
    blocks = [
        f"{name} {{ exports: [{{{kind}: '>'}}]\n"
        f" imports: [{{{kind}: {{account: {other}, subject: {subject}}}, to: {to}}}] }}"
        for name, other, subject, to in accounts
    ]
    return "accounts {\n" + "\n".join(blocks) + "\n}\n"


@pytest.mark.parametrize("kind", ["stream", "service"])
def test_imports_in_a_ring_are_found(refusals: Callable[[str], list[str]], built: Build, kind: str) -> None:
    (problem,) = refusals(ring(kind, ("A", "B", "x", "x"), ("B", "A", "x", "x")))
    assert f'Error adding {kind} import "x": import forms a cycle' in problem
    assert "A → B → A" in problem
    (problem,) = refusals(ring(kind, ("A", "B", "x", "x"), ("B", "C", "x", "x"), ("C", "A", "x", "x")))
    assert "A → B → C → A" in problem
    (problem,) = refusals(ring(kind, ("A", "B", "y", "x"), ("B", "A", "x", "y")))
    assert "cycle" in problem
    (problem,) = refusals(ring(kind, ("A", "B", "'x.*'", "'x.*'"), ("B", "A", "'x.>'", "'x.>'")))
    assert "cycle" in problem
    built(ring(kind, ("A", "B", "y", "z"), ("B", "A", "x", "w")))
    built(ring(kind, ("A", "B", "y", "z"), ("B", "A", "x", "y")))  # leads back to A, but to another subject
    built(ring(kind, ("A", "B", "'x.*'", "'b.x.*'"), ("B", "A", "'x.>'", "'a.x.>'")))
    (problem,) = refusals(ring(kind, ("A", "A", "x", "y")))
    assert "an account cannot import from itself" in problem


def test_many_accounts_that_import_all_of_each_other_are_looked_through(built: Build) -> None:
    """The search is bounded by imports, not by paths through them."""
    names = [f"A{n}" for n in range(40)]
    blocks = []
    for number, name in enumerate(names):
        imports = ", ".join(
            f"{{service: {{account: {other}, subject: 'x.>'}}, to: 'x.>'}}" for other in names[:1][:number]
        )
        more = ", ".join(f"{{service: {{account: {other}, subject: 's.*.{other}'}}}}" for other in names[:number])
        blocks.append(
            f"{name} {{ exports: [{{service: '>'}}], imports: [{imports}{more and ', ' * bool(imports)}{more}] }}"
        )
    assert len(built("accounts {\n" + "\n".join(blocks) + "\n}\n").options.accounts) == 40


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('"foo.>": bar', "4:11: Error adding mapping for \"foo.>\" to \"bar\" : foo.> and bar do not both end in >"),
        ('"foo.*": "b.$2"', "wildcard index out of range in $2: [2]"),
        ('foo: [ {destination: bar, weight: 101} ]', "Invalid weight 101 for mapping destination"),
        ('foo: [ {destination: bar, weight: -1} ]', "Invalid weight -1 for mapping destination"),
        ('foo: [ {destination: bar, weight: 0.5} ]', "Unknown entry type for weight of 0.5"),
        ('foo: [ {destination: bar} ]', 'Missing weight for mapping destination "bar"'),
        ('foo: [ {weight: 10} ]', "a mapping without a destination"),
        ('foo: [ {destination: a, weight: 60}, {destination: b, weight: 60} ]', "total weight needs to be <= 100"),
        ('foo: [ {destination: a, weight: 10}, {destination: a, weight: 10} ]', 'duplicate entry for "a"'),
        ('foo: [ bar ]', "Expected an entry for the mapping destination"),
        ('foo: 1', "Expected an entry for the mapping destination"),
        ('foo: [ {destination: bar, weight: 5, foo: x} ]', 'Unknown field "foo" for mapping destination'),
        ('"foo..x": bar', 'Subject "foo..x" is not a valid subject'),
        ('"foo x": bar', 'Subject "foo x" is not a valid subject'),
        ('"foo\tx": bar', 'Subject "foo\tx" is not a valid subject'),
        (
            'foo: "bar x"',
            'Error adding mapping for "foo" to "bar x" : invalid mapping destination: invalid subject',
        ),
        ('foo: a\n foo: b', 'duplicate entry for "foo"'),
    ],
)  # fmt: skip
def test_a_mistake_in_a_mapping_is_found(refusals: Callable[[str], list[str]], text: str, says: str) -> None:
    (problem,) = refusals(f"accounts {{\n A {{\n mappings {{\n {text}\n}} }} }}")
    assert says in problem


def test_latency_and_share_are_read(built: Build) -> None:
    exports = "{service: s, latency: x}, {service: t, latency: {subject: y, sampling: 5%}}, "
    exports += (
        '{service: u, latency: {subject: z, sampling: Headers}}, {service: v, latency: {subject: z, sampling: "7"}}'
    )
    options = built(exchange(exports, "{service: {account: A, subject: s}, share: true}")).options
    exporter, importer = options.accounts[:2]
    found = [(export.latency_subject, export.latency_percent) for export in exporter.exports]
    assert found == [("x", 100), ("y", 5), ("z", 0), ("z", 7)]
    assert importer.imports[0].share
    assert not any(word in notice for word in ('latency"', 'share"') for notice in options.notices)


@pytest.mark.parametrize(
    ("latency", "says"),
    [
        ("{sampling: 10}", "Latency subject required"),
        ("a.*", "invalid publish subject"),
        ('{subject: "a.>"}', "invalid publish subject"),
        ("{subject: a, sampling: 0}", "bad sampling percentage"),
        ("{subject: a, sampling: 101%}", "bad sampling percentage"),
        ("{subject: a, sampling: x%}", "Failed to parse latency sample"),
        ("{subject: a, sampling: -1}", "Failed to parse latency sample"),
        ("{subject: a, sampling: 10.5}", "Failed to parse latency sample"),
        ("{subject: a, sampling: true}", "Failed to parse latency sample"),
        ("{subject: a, foo: 1}", 'Unknown field "foo"'),
        ("5", "Expected latency subject to be string"),
        ("a, response_type: stream", "bad service response type"),
    ],
)
def test_a_mistake_in_latency_is_found(refusals: Callable[[str], list[str]], latency: str, says: str) -> None:
    (problem,) = refusals(exchange(f"{{service: s, latency: {latency}}}", ""))
    assert says.lower() in problem.lower()


@pytest.mark.parametrize(
    ("text", "destinations"),
    [
        ('"a.*": [ {destination: "a.$1", weight: 30%} ]', (("a.$1", 30), ("a.$1", 70))),
        ('"a.*": [ {destination: "a.$1", weight: 30%}, {destination: b, weight: 20%} ]', (*A_AND_B, ("a.$1", 50))),
        ('"a.*.>": [ {destination: "a.$1.>", weight: 30%} ]', (("a.$1.>", 30), ("a.$1.>", 70))),
        ('"a.*": [ {destination: "a.*", weight: 30%} ]', (("a.$1", 30),)),
        ('"a.>": [ {destination: "a.>", weight: 30%} ]', (("a.>", 30),)),
        ("a: []", (("a", 100),)),
    ],
)
def test_the_rest_is_dropped_where_the_subject_is_given_as_it_is_written(
    built: Build, text: str, destinations: tuple[tuple[str, int], ...]
) -> None:
    """As by nats-server; to the subject in other words goes what is given, and the rest."""
    (mapping,) = built(f"mappings {{ {text} }}").options.mappings
    assert mapping.destinations == destinations


FOR_CLUSTERS = """mappings {
    one: [ {destination: east, weight: 50%, cluster: east}, {destination: any, weight: 90%} ]
    two: {destination: west, weight: 100%, cluster: west}
    three: [ {destination: three, weight: 100%, cluster: east}, {destination: drop, weight: 100%, cluster: west} ]
}
"""


@pytest.mark.parametrize(
    ("cluster", "one", "two", "three", "ignored"),
    [
        ("", (("any", 90), ("one", 10)), (("two", 100),), (("three", 100),), 4),
        ("name: east", (("east", 50), ("one", 50)), (("two", 100),), (("three", 100),), 2),
        ("name: west", (("any", 90), ("one", 10)), (("west", 100),), (("drop", 100),), 2),
    ],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_a_member_has_the_destinations_of_its_cluster(
    built: Build, cluster: str, one: object, two: object, three: object, ignored: int, is_first: bool
) -> None:
    block = f"cluster {{ {cluster}\n port: -1 }}\n" if cluster else ""
    options = built(block + FOR_CLUSTERS if is_first else FOR_CLUSTERS + block).options
    assert [mapping.destinations for mapping in options.mappings] == [one, two, three]
    assert len([notice for notice in options.notices if "another cluster" in notice]) == ignored


def test_the_command_line_may_name_the_cluster(tmp_path: Path) -> None:
    path = tmp_path / "t.conf"
    path.write_text("cluster { name: west, port: -1 }\n" + FOR_CLUSTERS)
    options = build(parse(["-c", str(path), "--cluster_name", "east"]), environment={}).options
    assert options.mappings[0].destinations == (("east", 50), ("one", 50))


@pytest.mark.parametrize(
    ("value", "has_it"),
    [
        ("enabled", True),
        ("ENABLE", True),
        ("true", True),
        ("{ max_mem: 1G }", True),
        ("disabled", False),
        ("false", False),
    ],
)
def test_an_account_may_use_the_jetstream_of_other_members(built: Build, value: str, has_it: bool) -> None:
    found = built(f"accounts {{ A {{ jetstream: {value}, users: [{{user: a, password: a}}] }} }}")
    assert [account.jetstream for account in found.options.accounts] == [has_it]
    assert ("the JetStream of members that have it" in "".join(found.options.notices)) is has_it


@pytest.mark.parametrize("value", ["1", "x", "[a]"])
def test_what_says_nothing_of_jetstream_is_refused(refusals: Callable[[str], list[str]], value: str) -> None:
    (refused,) = refusals(f"accounts {{ A {{ jetstream: {value} }} }}")
    assert "Expected map, bool or string to define JetStream" in refused


@pytest.mark.parametrize(
    ("inner", "what"),
    [
        ("max_memroy: 1G", 'unknown field "max_memroy" of an account\'s jetstream — did you mean "max_memory"?'),
        ("domain: hub", 'unknown field "domain" of an account\'s jetstream'),
        ("max_streams: x", "max_streams: "),
        ("max_file: [a]", "max_file: "),
        ("max_bytes_required: 5", "max_bytes_required: expected true or false"),
        ("cluster_traffic: nobody", "cluster_traffic: expected a known word — write system or owner"),
    ],
)
def test_what_is_no_limit_of_an_accounts_jetstream_is_refused(
    refusals: Callable[[str], list[str]], inner: str, what: str
) -> None:
    (refused,) = refusals(f"accounts {{ A {{ jetstream {{ max_mem: -1, {inner} }} }} }}")
    assert what in refused


def test_every_limit_of_an_accounts_jetstream_is_known(built: Build) -> None:
    limits = "max_memory: 1G, max_disk: 10485760, streams: 5, max_consumers: -1, max_bytes_required: true"
    limits += ", mem_max_stream_bytes: 1M, store_max_stream_bytes: -1, max_ack_pending: 100, cluster_traffic: owner"
    assert built(f"accounts {{ A {{ jetstream {{ {limits} }} }} }}").options.accounts[0].jetstream


MANY = 400


@pytest.mark.parametrize("kind", ["service", "stream"])
@pytest.mark.parametrize("subject", ["s.%d", "s.%d.>", "s.%d.*.x"])
def test_an_import_is_not_compared_with_all_exports_and_all_imports(
    built: Build, monkeypatch: pytest.MonkeyPatch, kind: str, subject: str
) -> None:
    """There may be ten thousands of both, which a reload has to read while the broker serves."""
    pairs = []

    def compared(one: bytes, other: bytes) -> bytes | None:
        pairs.append((one, other))
        return intersection(one, other)

    monkeypatch.setattr(pattern_index, "intersection", compared)
    subjects = [subject % n for n in range(MANY)]
    exports = "\n".join(f"{{ {kind}: {one} }}" for one in subjects)
    imports = [
        "\n".join(f"{{ {kind}: {{ account: {exporter}, subject: {one} }} }}" for one in subjects) for exporter in "AB"
    ]
    options = built(
        f"accounts {{ A {{ exports [\n{exports}\n] }}\n B {{ exports [\n{exports}\n]\n imports [\n{imports[0]}\n] }}\n"
        f"C {{ imports [\n{imports[1]}\n] }}\n}}"
    ).options
    assert [len(account.imports) for account in options.accounts] == [0, MANY, MANY]
    assert len(pairs) <= 6 * MANY and bool(pairs) is (subject != "s.%d")  # (those without wildcards are not compared)
