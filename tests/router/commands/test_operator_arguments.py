"""What `restart` and `upgrade` are told about clients with TLS."""

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
        (["scale", "2", "--finish"], "flag provided but not defined: -finish"),
    ],
)
def test_what_is_refused(words: list[str], why: str) -> None:
    with pytest.raises(BadCommandLine, match=why):
        operator_arguments(parse(words), "gnatswarm")
