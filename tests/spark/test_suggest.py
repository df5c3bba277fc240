"""`gnatswarm suggest-permissions`: rules for what each user did, which allow that, and little else."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from gnatswarm.router.commands.dry_run import dry_run
from gnatswarm.router.config.keywords import options_from
from gnatswarm.spark.permissions_file import covers, generalised
from tests.spark.test_graph import client, frame

pytestmark = pytest.mark.xdist_group("spark")


@pytest.mark.parametrize(
    ("subjects", "others", "rules"),
    [
        (["a.b", "a.c"], [], ["a.b", "a.c"]),
        ([f"a.{x}" for x in "bcdefghijk"], [], ["a.*"]),
        ([f"a.{x}" for x in "bcdefghijk"], ["a.z"], [f"a.{x}" for x in "bcdefghijk"]),
        ([f"a.{x}" for x in "bcdefghijk"], ["a.b", "a.z.z", "b.z"], ["a.*"]),
        (["a.1", "a.2"], [], ["a.1", "a.2"]),
        (["a.1.x", "a.2.x", "a.n3.x", "a.4.y"], [], ["a.*.x", "a.4.y"]),
        ([f"a.{i}.{j}" for i in range(3) for j in range(3)], [], ["a.*.*"]),
        ([f"{i}" for i in range(20)], [], sorted(f"{i}" for i in range(20))),  # never the first token
        (["in.0123456789abcdef.x"], [], ["in.*.x"]),
        (["a.>", "a.b", "a.1", "a.2", "a.3"], [], ["a.>"]),
        (["u.1.>", "u.2.>", "u.3.>"], ["u.4.x"], ["u.1.>", "u.2.>", "u.3.>"]),
        (["u.1.>", "u.2.>", "u.3.>"], [], ["u.*.>"]),
        ([], ["a"], []),
    ],
)
def test_a_token_becomes_a_wildcard_only_for_a_reason(subjects: list[str], others: list[str], rules: list[str]):
    assert generalised(subjects, others) == sorted(rules)


def test_a_rule_covers_a_pattern_only_wholly():
    def does(rule: str, subject: str) -> bool:
        return covers(tuple(rule.split(".")), tuple(subject.split(".")))

    assert does("a.>", "a.b.>") and does("a.*", "a.*") and does("a.*", "a.b") and does(">", "a")
    assert not does("a.*", "a.>") and not does("a.b", "a.*") and not does("a.>", "a") and not does("a.*", "a.b.c")


def traffic() -> list[dict[str, Any]]:
    return [
        client("web-1", user="web", published=(("orders.new", 40, 40), ("user.1.seen", 1), ("user.2.seen", 1))),
        client("web-2", 1, user="web", published=(("user.3.seen", 1),), received=(("_INBOX.>", 40),)),
        client("billing", 1, user="billing", received=(("orders.*", 40, "workers"),), published=(("_INBOX.>", 40),)),
        client("audit", user='a"b c', received=(("orders.>", 40),), published=(("*other*", 3), ("a\nb", 1))),
        client("", user="*other*", published=(("*other*", 9),)),
        client("", user="*rest*", published=()) | {"in_msgs": 4},
    ]


def test_what_is_suggested_allows_what_was_done_and_says_what_is_not_known(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    from gnatswarm.spark.jobs.suggest_permissions import suggest
    from gnatswarm.spark.read import Statistics

    statistics = Statistics({"client": frame(spark, traffic())}, spark.createDataFrame([], "why string"))
    out = tmp_path / "p.conf"
    asked = argparse.Namespace(
        **{"broker": "", "used": False, "least_values": 10, "stats_dir": "/s\nx", "from_parquet": "", "out": str(out)}
    )
    assert suggest(asked, statistics) == 0
    assert f"permissions of 3 users in {out}; INCOMPLETE" in capsys.readouterr().out
    text = out.read_text()
    assert "# INCOMPLETE: 12 of these messages" in text and "no rule can name the subject a\\u000ab" in text
    assert "# Not counted: 4 messages of the broker itself" in text
    users = [("web", "web"), ("billing", "billing"), ('a\\"b c', "a_b_c")]
    listed = "\n".join(f'{{ user: "{user}", password: x, permissions: $PERMISSIONS_{name} }}' for user, name in users)
    options = options_from(f"{text}\nauthorization {{ users: [\n{listed}\n] }}")
    web, billing, audit = (user.permissions for user in options.users)
    assert web is not None and billing is not None and audit is not None
    assert (web.publish_allow, web.subscribe_allow) == (("orders.new", "user.*.seen"), ("_INBOX.>",))
    assert (billing.publish_deny, billing.subscribe_allow, billing.responses) == ((">",), ("orders.* workers",), 1)
    assert (audit.publish_deny, audit.subscribe_allow, audit.responses) == ((">",), ("orders.>",), 0)

    asked.used = True
    assert suggest(asked, statistics) == 0
    lines = capsys.readouterr().out.splitlines()
    found = dry_run(options, lines)
    assert [(one.user, one.subject) for one in found.denied] == [('a"b c', "a\nb")] and found.unknown_msgs == 12
    swapped = listed.replace("_web ", "_new ").replace("_billing ", "_web ").replace("_new ", "_billing ")
    options = options_from(f"{text}\nauthorization {{ users: [\n{swapped}\n] }}")
    denied = {(one.user, one.deed, one.subject): one.msgs for one in dry_run(options, lines).denied}
    assert denied["web", "publish", "orders.new"] == 40 and denied["web", "subscribe", "_INBOX.>"] == 40
    assert json.loads(lines[-1]) == {"is_cut": False}
