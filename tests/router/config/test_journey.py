"""`gnatswarm why`: what the rules of a configuration do with a message, each rule by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gnatswarm.broker.options import Options
from gnatswarm.broker.permissions import Permissions
from gnatswarm.router import cli
from gnatswarm.router.config.arrivals import Arrival, Journey, Listener, is_heard, shown
from gnatswarm.router.config.journey import Unknown, journey
from gnatswarm.router.config.keywords import options_from

RULES = """
accounts {
  A {
    users: [
      {user: ann, password: a, permissions: {publish: {allow: ["orders.>", "new.>"], deny: ["orders.audit.>"]}}}
      {user: bob, password: b, permissions: {subscribe: {deny: "new.orders.>"}, publish: "none", allow_responses: true}}
    ]
    mappings: { "orders.*": [{destination: "new.orders.$1", weight: 60%}, {destination: "old.$1", weight: 30%}] }
    exports: [{stream: "new.>"}]
    imports: [{service: {account: C, subject: "audit.*"}, to: "orders.log.*"}]
  }
  B {
    users: [{user: cid, password: c}]
    imports: [{stream: {account: A, subject: "new.orders.*"}, to: "from.a.$1"}]
  }
  C { users: [{user: dan, password: d}], exports: [{service: "audit.*"}] }
}
"""


@pytest.fixture
def options() -> Options:
    return options_from(RULES)


def test_a_publish_that_is_denied_names_the_rule(options: Options) -> None:
    for subject, rule in (
        ("orders.audit.x", 'ann may not publish it: publish deny "orders.audit.>"'),
        ("other", "ann may not publish it: it is not in publish allow [orders.>, new.>]"),
    ):
        found = journey(options, subject, "ann")
        assert (found.stopped, found.arrivals, is_heard(found)) == (rule, (), False)
        assert f"STOPPED: {rule}" in shown(found)
    assert "allow_responses" in journey(options, "x", "bob").stopped


def test_mappings_and_imported_streams_are_followed(options: Options) -> None:
    found = journey(options, "orders.eu", "ann")
    assert (found.stopped, found.rules) == (
        "",
        (
            'the mapping "orders.*" of A: 60 % to new.orders.eu, 30 % to old.eu, 10 % to orders.eu',
            'ann may publish new.orders.eu: publish allow "new.>"',
            'ann may publish orders.eu: publish allow "orders.>"',
            "ann may not publish old.eu: it is not in publish allow [orders.>, new.>]",
        ),
    )
    assert [(one.account, one.subject) for one in found.arrivals] == [
        ("A", "new.orders.eu"),
        ("B", "from.a.eu"),
        ("A", "orders.eu"),
    ]
    here, there = found.arrivals[:2]
    assert (here.may, here.may_not) == (("ann",), ('bob: subscribe deny "new.orders.>"',))
    assert (there.may, there.how) == (("cid",), 'B imports the stream "new.orders.*" of A')


def test_requests_go_to_the_account_of_the_service(options: Options) -> None:
    found = journey(options, "orders.log.7", "ann")
    assert [(one.account, one.subject, one.may) for one in found.arrivals if one.account == "C"] == [
        ("C", "audit.7", ("dan",))
    ]


@pytest.mark.parametrize(
    ("permissions", "stopped"),
    [
        ('publish: {allow: ["a.>"]}', ""),
        ('publish: {allow: ["b"]}', "u may not publish a.b: it is not in publish allow [b]"),
        ('publish: {deny: ["b"]}', ""),
        ('publish: {deny: ["a.>"]}', 'u may not publish a.b: publish deny "a.>"'),
    ],
)
def test_permissions_are_asked_about_the_subject_that_it_is_mapped_to(permissions: str, stopped: str) -> None:
    user = f"{{user: u, password: p, permissions: {{{permissions}}}}}"
    found = journey(options_from(f"accounts {{ B {{ users: [{user}], mappings: {{b: a.b}} }} }}"), "b", "u")
    assert (found.stopped, [one.subject for one in found.arrivals]) == (stopped, [] if stopped else ["a.b"])
    assert found.rules[0] == 'the mapping "b" of B: 100 % to a.b'


def test_who_may_respond_and_has_no_publish_allow_may_do_nothing_else() -> None:
    for rules in ("allow_responses: true", 'publish: {deny: "x"}, allow_responses: {max: 3}'):
        options = options_from(f"authorization {{ users: [{{user: u, password: p, permissions: {{{rules}}}}}] }}")
        permissions = options.users[0].permissions
        assert permissions is not None and not Permissions(permissions).can_publish(b"a")
        reason = "there is no publish allow (but it may respond to what it received: allow_responses)"
        assert journey(options, "a", "u").stopped == f"u may not publish it: {reason}"


SERVICES = """
accounts {
  A { users: [{user: a, password: p}], exports: [{stream: ">"}], imports: [{service: {account: B, subject: "b"}}] }
  B {
    users: [{user: b, password: p}]
    mappings: { "*": "a.$1" }
    exports: [{service: "b"}, {stream: ">"}]
    imports: [{service: {account: C, subject: "c"}, to: "a.b"}]
  }
  C { users: [{user: c, password: p}], exports: [{service: "c"}, {stream: ">"}] }
  D {
    users: [{user: d, password: p}]
    imports: [
      {stream: {account: A, subject: ">"}, prefix: "from.a"}
      {stream: {account: B, subject: ">"}, prefix: "from.b"}
      {stream: {account: C, subject: ">"}, prefix: "from.c"}
    ]
  }
}
"""


def test_a_request_is_mapped_by_the_exporter_and_is_in_no_stream_of_it() -> None:
    found = journey(options_from(SERVICES), "b", "a")
    assert [(one.account, one.subject, one.how) for one in found.arrivals] == [
        ("A", "b", ""),
        ("D", "from.a.b", 'D imports the stream ">" of A'),
        ("B", "a.b", 'A imports the service "b" of B, then by the mapping "*", 100 %'),
        ("C", "c", 'B imports the service "c" of C'),
    ]
    assert 'the mapping "*" of B: 100 % to a.b' in found.rules


def test_a_circle_of_services_that_mappings_make_ends_as_in_the_engine() -> None:
    text = """
    accounts {
      A { exports: [{service: ">"}], imports: [{service: {account: B, subject: "b.>"}}], mappings: {"a.>": "%s"} }
      B { exports: [{service: ">"}], imports: [{service: {account: A, subject: "a.>"}}], mappings: {"b.>": "%s"} }
      C { users: [{user: c, password: p}], imports: [{service: {account: A, subject: "a.>"}}] }
    }
    """
    found = journey(options_from(text % ("b.a.>", "a.b.>")), "a.x", "c")
    assert [(one.account, one.subject) for one in found.arrivals] == [("C", "a.x"), ("A", "b.a.x"), ("B", "a.b.a.x")]
    found = journey(options_from(text % ("b.>", "a.>")), "a.x", "c")
    assert [(one.account, one.subject) for one in found.arrivals] == [
        ("C", "a.x"),
        ("A", "b.x"),
        ("B", "a.x"),
    ]


def test_who_publishes_must_be_clear(options: Options) -> None:
    with pytest.raises(Unknown, match=r"add --user NAME \(users: ann, bob, cid, dan\)"):
        journey(options, "x")
    with pytest.raises(Unknown, match='no user "eve"'):
        journey(options, "x", "eve")
    for subject in ("a.*", "a..b", ">", "a b", "a\tb", ""):
        with pytest.raises(ValueError, match="no subject that can be published to"):
            journey(options, subject, "ann")


def test_a_name_cannot_drive_the_terminal() -> None:
    one = Listener(7, "ann\u202e", 0, "a.\x1b[2J.>", "\u2067q")
    found = Journey("a.\x1b[2J", "", "$G", arrivals=(Arrival("$G", "a.\x1b[2J", "", listeners=(one,)),), is_live=True)
    text = shown(found)
    assert all(line.isprintable() for line in text.split("\n"))
    assert 'cid 7 ann\\u202e on shard 0: "a.\\x1b[2J.>", one of 1 in the queue group \\u2067q' in text
    with pytest.raises(ValueError, match=r"^\"a\.\\u202e\*\\x1b\.\*\" is no subject"):
        journey(Options(), "a.\u202e*\x1b.*")


def test_where_nobody_logs_in_everybody_may_hear_it() -> None:
    found = journey(Options(), "x")
    assert (found.user, found.account, is_heard(found)) == ("", "$G", True)
    assert "may be heard by all clients of this account" in shown(found)
    assert "x to" not in shown(found)


def test_what_is_dropped_by_weights_is_said() -> None:
    found = journey(options_from("mappings: {a: [{destination: a, weight: 20%}]}"), "a")
    assert found.rules[0] == 'the mapping "a" of $G: 20 % to a, 80 % are dropped'


def test_the_command_reads_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "broker.conf"
    path.write_text(RULES)
    words = ["why", "orders.eu", "--user", "ann", "-c", str(path)]
    assert cli.main(words, program="gnatswarm") == 0
    assert 'not by bob: subscribe deny "new.orders.>"' in capsys.readouterr().out
    assert cli.main([*words, "--json"], program="gnatswarm") == 0
    assert json.loads(capsys.readouterr().out)["account"] == "A"
    assert cli.main(["why", "--user", "ann", "-c", str(path), "orders.audit.x"], program="gnatswarm") == 1
    assert "STOPPED" in capsys.readouterr().out
    tested = ["-t", "-c", str(path), "--user", "ann", "--why"]
    assert cli.main([*tested, "orders.audit.x"], program="gnatswarm") == 1
    said = capsys.readouterr()
    assert "is valid" in said.err and "STOPPED" in said.out
    assert cli.main(["-json", *tested, "orders.eu"], program="gnatswarm") == 0
    assert json.loads(capsys.readouterr().out)["user"] == "ann"
    for wrong, says in (
        (["why", "-c", str(path)], "which subject?"),
        (["why", "x", "-c", str(path)], "--user NAME"),
        (["-c", str(path), "--why", "x"], "-why needs -t"),
        ([*tested, "a.*"], "is no subject that can be published to"),
    ):
        assert cli.main(wrong, program="gnatswarm") == 1
        assert says in capsys.readouterr().err
