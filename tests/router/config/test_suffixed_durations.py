"""Who writes `10m` without quotes for ten minutes is told that it is ten million."""

from __future__ import annotations

import pytest

from gnatswarm.router.config.conf import parse_text
from gnatswarm.router.config.conf_tree import ConfigError
from gnatswarm.router.config.flags import parse
from gnatswarm.router.config.keywords import options_from
from gnatswarm.router.config.options_build import build_parsed

A_USER = "user: a, password: b"
EXCHANGE = "accounts {{ A {{ exports: [ {{ service: x, response_threshold: {} }} ] }} }}"
ALLOWED = "permissions {{ allow_responses {{ expires: {} }} }}"
RESPONSES = f"authorization {{{{ users: [ {{{{ {A_USER}, {ALLOWED} }}}} ] }}}}"


@pytest.mark.parametrize(
    "text",
    [
        "ping_interval: {}",
        "write_deadline: {}",
        "stats {{ max_age: {} }}",
        "leafnodes {{ port: 1, reconnect: {} }}",
        "leafnodes {{ port: 1, write_deadline: {} }}",
        "leafnodes {{ port: 1, authorization {{ user: a, password: b, timeout: {} }} }}",
        "leafnodes {{ remotes: [ {{ url: 'nats://h:1', dial_timeout: {} }} ] }}",
        "leafnodes {{ remotes: [ {{ url: 'tls://h:1', tls {{ timeout: {} }} }} ] }}",
        "cluster {{ port: 1, ping_interval: {} }}",
        "cluster {{ port: 1, authorization {{ user: a, password: b, timeout: {} }} }}",
        "websocket {{ port: 1, no_tls: true, handshake_timeout: {} }}",
        f"authorization {{{{ {A_USER}, timeout: {{}} }}}}",
        "VARIABLE: {}\nping_interval: $VARIABLE",
    ],
)
def test_where_seconds_are_taken_it_is_a_warning(text: str) -> None:
    warnings = build_parsed(parse_text(text.format("10m")), parse([])).warnings
    (said,) = [one for one in warnings if "10m" in one]
    assert said.endswith(' 10m is the number 10,000,000 here — for 10 minutes write "10m"')
    assert not any("10000000s" in one for one in warnings)
    for good in ('"10m"', "5"):
        warnings = build_parsed(parse_text(text.format(good)), parse([])).warnings
        assert not any("is the number" in one for one in warnings)


@pytest.mark.parametrize(
    "text",
    [
        "lame_duck_duration: {}",
        "lame_duck_grace_period: {}",
        "fence_timeout: {}",
        "accounts {{ A {{ publish_limits {{ messages: 1, burst: {} }} }} }}",
        "websocket {{ port: 1, no_tls: true, ping_interval: {} }}",
        EXCHANGE,
        RESPONSES,
    ],
)
def test_where_a_number_is_refused_it_is_the_reason(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build_parsed(parse_text(text.format("1m")), parse([]))
    (problem,) = caught.value.problems
    assert problem.what.endswith(": 1m is the number 1,000,000 here")
    assert problem.advice == 'for a minute write "1m"'


def test_another_suffix_is_no_unit_of_time() -> None:
    options = options_from("ping_interval: 5k")
    assert 'ping_interval: 5k is the number 5,000 here — write one such as "2s"' in options.notices[0]


def test_a_size_by_the_name_of_a_duration_is_not_meant() -> None:
    text = f"burst: 1m\naccounts {{ A {{ users: [ {{ {A_USER} }} ], publish_limits {{ messages: $burst }} }} }}"
    assert not any("is the number" in notice for notice in options_from(text).notices)
