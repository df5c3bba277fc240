"""`gnatswarm why`: what the rules of a configuration do with a message, each rule by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gnatswarm.broker.options import Options
from gnatswarm.router import cli
from gnatswarm.router.config.arrivals import Arrival, Journey, Listener, is_heard, shown
from gnatswarm.router.config.journey import Unknown, journey
from gnatswarm.router.config.keywords import options_from

RULES = """
accounts {
  A {
    users: [
      {user: ann, password: a, permissions: {publish: {allow: ["orders.>"], deny: ["orders.audit.>"]}}}
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
        ("other", "ann may not publish it: it is not in publish allow [orders.>]"),
    ):
        found = journey(options, subject, "ann")
        assert (found.stopped, found.arrivals, is_heard(found)) == (rule, (), False)
        assert f"STOPPED: {rule}" in shown(found)
    assert "allow_responses" in journey(options, "x", "bob").stopped


def test_mappings_and_imported_streams_are_followed(options: Options) -> None:
    found = journey(options, "orders.eu", "ann")
    assert found.rules == (
        'ann may publish it: publish allow "orders.>"',
        'the mapping "orders.*" of A: 60 % to new.orders.eu, 30 % to old.eu, 10 % to orders.eu',
    )
    assert [(one.account, one.subject) for one in found.arrivals] == [
        ("A", "new.orders.eu"),
        ("B", "from.a.eu"),
        ("A", "old.eu"),
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
    assert found.rules[1] == 'the mapping "a" of $G: 20 % to a, 80 % are dropped'


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
