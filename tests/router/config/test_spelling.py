"""What somebody who mistyped a name meant: the right name, or none, but not a wrong one."""

from __future__ import annotations

import pytest

from gnatswarm.router.config.option_keys import BY_NAME
from gnatswarm.router.config.options_build import _ALL_NAMES
from gnatswarm.router.config.spelling import nearest, typing_errors


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        *(("prt", "port"), ("potr", "port"), ("porrt", "port"), ("tsl", "tls"), ("statz", "stats")),
        *(("max_conns", "max_conn"), ("maxpayload", "max_payload"), ("max-payload", "max_payload")),
        *(("payload_max", "max_payload"), ("ping_intervall", "ping_interval"), ("authorisation", "authorization")),
        *(("webscoket", "websocket"), ("jetsteam", "jetstream"), ("PORT_HTTP", "http_port")),
    ],
)
def test_a_typing_error_finds_what_was_meant(typed, meant):
    assert nearest(typed, _ALL_NAMES) == meant


@pytest.mark.parametrize("typed", ["usr", "nname", "verbose", "loglevel", "bind", "x", "q1", "cluster_nodes_list"])
def test_no_guess_is_better_than_a_wrong_one(typed):
    assert nearest(typed, _ALL_NAMES) == ""


def test_every_name_with_one_error_is_found():
    for name in BY_NAME:
        if len(name) > 3:
            assert typing_errors(nearest(name[:-2] + name[-1] + name[-2], BY_NAME), name, 2) <= 1
            assert typing_errors(nearest(name + "x", BY_NAME), name, 2) <= 1


@pytest.mark.parametrize(
    ("one", "other", "errors"),
    [("", "", 0), ("ab", "", 2), ("ab", "ba", 1), ("abc", "acb", 1), ("kitten", "sitting", 3), ("ca", "abc", 3)],
)
def test_typing_errors(one, other, errors):
    for most in range(6):
        assert typing_errors(one, other, most) == typing_errors(other, one, most) == min(errors, most)
