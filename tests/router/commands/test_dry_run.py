"""What a configuration would have denied, by the engine's own rules, of what users did."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from gnatswarm.broker.options import Options
from gnatswarm.router import cli
from gnatswarm.router.commands import dry_run
from gnatswarm.router.config.keywords import options_from

RULES = """
authorization { users: [
    { user: ann, password: a, permissions: {
        publish: { allow: ["orders.>"], deny: "orders.secret.>" }
        subscribe: { allow: ["jobs.* workers", "news.>", "_INBOX.ann.>"], deny: "news.local" } } }
    { user: bob, password: b, permissions: { publish: "none", allow_responses: true } }
    { user: all, password: c }
] }
"""


def used(user: str, deed: str, subject: str, msgs: int = 1, queue: str = "") -> str:
    row = {"account": "$G", "user": user, "deed": deed, "subject": subject, "queue": queue, "msgs": msgs, "requests": 0}
    return json.dumps(row)


@pytest.fixture
def options() -> Options:
    return options_from(RULES)


@pytest.mark.parametrize(
    ("user", "deed", "subject", "queue", "rule", "is_open"),
    [
        ("ann", "publish", "orders.new", "", "", False),
        ("ann", "publish", "orders.secret.x", "", 'publish deny "orders.secret.>"', False),
        ("ann", "publish", "order.new", "", "it is not in publish allow [orders.>]", False),
        ("ann", "subscribe", "jobs.a", "workers", "", False),
        ("ann", "subscribe", "jobs.a", "", "it is not in subscribe allow", False),
        ("ann", "subscribe", "jobs.a", "others", "it is not in subscribe allow", False),
        ("ann", "subscribe", "news.world.>", "", "", False),
        ("ann", "subscribe", "news.*", "", 'deny "news.local" keeps some', True),
        ("ann", "subscribe", "news.local", "", 'subscribe deny "news.local"', False),
        ("ann", "subscribe", ">", "", "it is not in subscribe allow", False),
        ("ann", "subscribe", "_INBOX.>", "", '"_INBOX.ann.>" is about some', True),
        ("bob", "publish", "_INBOX.>", "", "", False),
        ("bob", "publish", "a", "", "it is not in publish allow", False),
        ("bob", "subscribe", "_INBOX.>", "", "", False),
        ("all", "publish", "a", "", "", False),
        ("eve", "publish", "a", "", "there is no such user", False),
        ("", "publish", "a", "", "nobody can log in without credentials", False),
    ],
)
def test_each_rule_is_the_brokers(
    options: Options, user: str, deed: str, subject: str, queue: str, rule: str, is_open: bool
) -> None:
    found = dry_run.dry_run(options, [used(user, deed, subject, 7, queue)])
    assert (found.looked_at, found.unknown_msgs, found.is_cut) == (1, 0, False)
    if not rule:
        assert found.denied == ()
    else:
        (one,) = found.denied
        assert (rule in one.rule, one.is_open, one.msgs) == (True, is_open, 7)


def test_without_users_nobody_is_denied_anything_and_one_user_is_the_only_one() -> None:
    lines = [used("ann", "publish", "a"), used("", "publish", "a")]
    assert dry_run.dry_run(options_from("authorization { token: t }"), lines).denied == ()
    found = dry_run.dry_run(options_from("authorization { user: ann, password: a }"), lines).denied
    assert [one.user for one in found] == [""]


def test_what_no_row_tells_is_said(options: Options) -> None:
    lines = [
        json.dumps({"account": "", "user": "*other*", "in_msgs": 5, "out_msgs": 6}),
        json.dumps({"account": "", "user": "*rest*", "in_msgs": 50, "out_msgs": 6}),
        used("*other*", "publish", "*other*", 11),
        used("all", "publish", "*other*", 100),
        used("a\x1b", "publish", "a"),
        json.dumps({"is_cut": True}),
    ]
    found = dry_run.dry_run(options, lines)
    assert (found.unknown_msgs, found.is_cut, len(found.denied)) == (111, True, 1)
    text = dry_run.shown(found, "f.conf")
    assert "INCOMPLETE: 111 messages" in text and "heaviest" in text and "\x1b" not in text
    assert json.loads(dry_run.as_json(found))["denied"][0]["rule"] == "there is no such user"
    one = dry_run.shown(dry_run.Result((), 1, 1, is_cut=False), "f.conf")
    assert "(1 pair of user and subject," in one and "INCOMPLETE: 1 message more, of clients" in one


def test_the_command_reads_the_file_first_and_has_an_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f.conf"
    path.write_text(RULES)
    lines = "\n".join([used("ann", "publish", "x", 3), used("all", "publish", "x", 3)])
    seen: list[Any] = []

    def job(command: list[str]) -> tuple[str, list[str], bool]:
        found = asked(command)
        seen.append(found[1][found[1].index("gnatswarm.spark.jobs.suggest_permissions") :])
        return found[0], [sys.executable, "-c", f"print('''{lines}''')"], found[2]

    asked = dry_run.asked
    monkeypatch.setattr(dry_run, "asked", job)
    pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
    words = ["suggest-permissions", "-p", "4333", "--dry-run", str(path)]
    assert cli.main(words, program="gnatswarm") == 1
    said = capsys.readouterr().out
    assert f"{path} would have denied 3 messages of 1 user:" in said and '"ann" published to "x": 3 messages' in said
    assert seen == [["gnatswarm.spark.jobs.suggest_permissions", "-p", "4333", "--used"]]
    lines = used("all", "publish", "x", 3)
    assert cli.main([*words[:-2], f"--dry-run={path}", "--json"], program="gnatswarm") == 0
    assert json.loads(capsys.readouterr().out)["denied"] == []
    path.write_text("prot: 4222")
    assert cli.main(words, program="gnatswarm") == 1
    assert "port" in capsys.readouterr().err
    assert cli.main(words[:-1], program="gnatswarm") == 1
    assert "needs a configuration file" in capsys.readouterr().err
