"""What the words of commands to a running broker are taken for."""

from __future__ import annotations

import pytest

from gnatswarm.router.commands.operator_arguments import operator_arguments
from gnatswarm.router.config.flags import BadCommandLine, parse


@pytest.mark.parametrize(
    ("words", "within_s", "finishes"),
    [
        (["restart"], 3600.0, False),
        (["restart", "--tls-within", "10m"], 600.0, False),
        (["upgrade", "/bin/true", "--tls_within=0", "-p", "4222"], 0.0, False),
        (["upgrade", "-tls-within=1h30m", "/bin/true"], 5400.0, False),
        (["restart", "-p", "4222", "--finish"], 3600.0, True),
        (["upgrade", "--finish"], 3600.0, True),
    ],
)
def test_how_long_and_whether_to_end_it(words: list[str], within_s: float, finishes: bool) -> None:
    asked = operator_arguments(parse(words), "gnatswarm")
    assert (asked.tls_within_s, asked.finishes) == (within_s, finishes)
    assert asked.executable == ("/bin/true" if "/bin/true" in words else "")


def test_a_file_is_asked_by_why_alone() -> None:
    asked = operator_arguments(parse(["-c", "FILE", "why", "a", "--user", "ann", "--json"]), "gnatswarm")
    assert asked.config is not None
    assert (asked.config.config_file, asked.subject, asked.user, asked.as_json) == ("FILE", "a", "ann", True)


@pytest.mark.parametrize(
    "words", [["scale", "4", "-p", "4222"], ["scale", "-p", "4222", "4"], ["-p", "4222", "scale", "4"]]
)
def test_the_number_of_shards_may_stand_behind_flags(words: list[str]) -> None:
    asked = operator_arguments(parse(words), "gnatswarm")
    assert (asked.shards, asked.port) == (4, 4222)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["restart", "--tls-within"], "flag needs an argument: --tls-within"),
        (["restart", "--tls-within", "10"], 'missing unit in duration "10"'),
        (["restart", "--tls-within", "-1s"], "cannot be negative"),
        (["upgrade", "--finish", "/bin/true"], "it takes no program"),
        (["upgrade", ""], "which program"),
        (["restart", "--pid", ""], "which broker"),
        (["scale", "2", "-P", ""], "which broker"),
        (["-c", "FILE", "status"], r"status: -c is for a start; .* \(as in: gnatswarm status -p 4222\)"),
        (["scale", "2", "-config", "FILE"], r"scale: -config is for a start; .* \(as in: gnatswarm scale 4 -p 4222\)"),
        (["reload", "-D"], "reload: -D is for a start"),
        (["status", "--user", "ann"], "status: -user is for a start"),
        (["why", "a", "--shards", "2"], "why: -shards is for a start"),
        (["-p", "4222", "why", "a", "-c", "FILE"], "why: -c asks a file, -p a running broker: give one of them"),
        (["why", "a", "-c", ""], "which file"),
        (["scale", "-p", "4222", "2", "3"], 'unexpected "3" after scale'),
        (["scale", "2", "--finish"], "flag provided but not defined: -finish"),
    ],
)
def test_what_is_refused(words: list[str], why: str) -> None:
    with pytest.raises(BadCommandLine, match=why):
        operator_arguments(parse(words), "gnatswarm")
