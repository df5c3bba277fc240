"""Who may connect: by token, one user or several; who is asked first; who stays when rules change."""

from __future__ import annotations

import pytest

from broker.auth import Admission, Authenticator, HashedPassword, Verdicts
from broker.connect import ConnectOptions
from broker.errors import AuthorizationViolation
from broker.options import Options, User

TOKEN = Options(auth_token="s3cret")
ONE_USER = Options(auth_user="derek", auth_password="pass")
USERS = Options(users=(User("a", "1"), User("b", "2"), User("open")))
GUESTS = Options(users=(User("a", "1"), User("guest")), no_auth_user="guest")


def said(token: str = "", user: str = "", password: str = "") -> ConnectOptions:
    return ConnectOptions(auth_token=token, user=user, password=password)


@pytest.mark.parametrize(
    ("options", "connect", "who"),
    [
        (Options(), said(), ""),
        (Options(), said("t", "u", "p"), ""),  # nobody asked
        (TOKEN, said("s3cret"), ""),
        (TOKEN, said("s3cret", "x", "y"), ""),
        (ONE_USER, said(user="derek", password="pass"), "derek"),
        (USERS, said(user="a", password="1"), "a"),
        (USERS, said(user="b", password="2"), "b"),
        (USERS, said(user="open"), "open"),
        (GUESTS, said(), "guest"),
        (GUESTS, said(user="a", password="1"), "a"),
    ],
)
def test_who_is_let_in(options, connect, who):
    rules = Authenticator(options)
    admission = rules.examine(connect)
    assert isinstance(admission, Admission)
    assert admission.identity.user == who
    assert rules.readmit(admission) == admission.identity


@pytest.mark.parametrize(
    ("options", "connect"),
    [
        (TOKEN, said()),
        (TOKEN, said("S3cret")),
        (TOKEN, said("s3cret ")),
        (TOKEN, said(password="s3cret")),
        (TOKEN, said("\ud800")),
        (ONE_USER, said()),
        (ONE_USER, said(user="derek")),
        (ONE_USER, said(user="derek", password="pass?")),
        (ONE_USER, said(user="Derek", password="pass")),
        (ONE_USER, said(token="pass")),
        (ONE_USER, said(user="other", password="")),
        (USERS, said(user="a", password="2")),
        (USERS, said(user="c", password="1")),
        (USERS, said()),
        (USERS, said(user="open", password="x")),
        (GUESTS, said(user="a", password="")),
        (GUESTS, said(user="nobody")),
        (GUESTS, said(password="x")),
        (GUESTS, said("x")),
    ],
)
def test_who_is_not(options, connect):
    with pytest.raises(AuthorizationViolation):
        Authenticator(options).examine(connect)


@pytest.mark.parametrize(
    ("options", "is_required", "asks"),
    [
        (Options(), False, False),
        (TOKEN, True, True),
        (ONE_USER, True, True),
        (USERS, True, True),
        (GUESTS, True, False),
    ],
)
def test_a_connect_must_come_first_where_nobody_is_let_in_without(options, is_required, asks):
    rules = Authenticator(options)
    assert (rules.is_required, rules.asks_before_connect) == (is_required, asks)


@pytest.mark.parametrize(
    ("before", "connect", "after", "stays"),
    [
        (TOKEN, said("s3cret"), Options(auth_token="other"), False),
        (TOKEN, said("s3cret"), TOKEN, True),
        (TOKEN, said("s3cret"), Options(), True),
        (USERS, said(user="a", password="1"), Options(users=(User("a", "1"),)), True),
        (USERS, said(user="a", password="1"), Options(users=(User("a", "changed"),)), False),
        (USERS, said(user="b", password="2"), Options(users=(User("a", "1"),)), False),
        (USERS, said(user="open"), Options(users=(User("open", "now"),)), False),
        (Options(), said(), TOKEN, False),
        (Options(), said(), GUESTS, True),
        (GUESTS, said(), USERS, False),
    ],
)
def test_who_stays_when_the_rules_change(before, connect, after, stays):
    admission = Authenticator(before).examine(connect)
    assert isinstance(admission, Admission)
    assert (Authenticator(after).readmit(admission) is not None) is stays


