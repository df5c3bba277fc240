"""`publish_limits` of users and accounts: what is read, and what is said about mistakes."""

from __future__ import annotations

import pytest

from gnatswarm.broker.options import PublishLimits
from gnatswarm.router.config.conf_tree import ConfigError
from gnatswarm.router.config.keywords import options_from


def test_users_and_accounts_have_them() -> None:
    options = options_from(
        """
        authorization { users: [
            { user: a, password: x, publish_limits: { messages: 1k, bytes: 2MB, burst: "500ms", stall: "0s" } }
            { user: b, password: x } ] }
        accounts { A { publish_limits: { bytes: 1000 }, users: [ { nkey: NKEY, publish_limits { msgs: 7 } } ] } }
    """.replace("NKEY", "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4")
    )
    a, b, nkey = sorted(options.users, key=lambda user: (user.nkey, user.name))
    assert a.publish_limits == PublishLimits(messages=1000, bytes=2 * 1024 * 1024, burst_s=0.5, stall_s=0.0)
    assert b.publish_limits is None and nkey.publish_limits == PublishLimits(messages=7)
    assert options.accounts[0].publish_limits == PublishLimits(bytes=1000, burst_s=1.0, stall_s=10.0)


@pytest.mark.parametrize(
    ("block", "said"),
    [
        ("5", "to be a map/struct"),
        ("{}", "publish_limits limits nothing"),
        ('{ burst: "1s" }', "limits nothing"),
        ("{ messages: 0 }", "messages: "),
        ("{ messages: -1 }", "messages: "),
        ("{ messages: fast }", "messages: "),
        ("{ messages: 1, burst: 1 }", 'write it in quotes with a unit, as in "1s"'),
        ('{ messages: 1, burst: "1ms" }', "a time of 0.01 to 3600 seconds is wanted"),
        ('{ messages: 1, stall: "2h" }', "0s: it waits for as long as it takes"),
        ("{ messages: 1, messages: 2 }", "is given again"),
        ("{ messages: 1, msgs: 2 }", "is given again"),
        ("{ mesages: 1 }", 'did you mean "messages"?'),
    ],
)
def test_mistakes_are_said(block: str, said: str) -> None:
    for text in (
        f"authorization {{ users: [ {{ user: a, password: x, publish_limits: {block} }} ] }}",
        f"accounts {{ A {{ publish_limits: {block} }} }}",
    ):
        with pytest.raises(ConfigError) as caught:
            options_from(text)
        assert said in str(caught.value)
