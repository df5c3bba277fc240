"""Who may connect: by token, one user or several; who is asked first; who stays when rules change."""

from __future__ import annotations

import base64

import bcrypt
import msgspec
import nkeys
import pytest
from nacl.signing import SigningKey

from gnatswarm.broker.access.auth import NOBODY, Admission, Authenticator, HashedPassword, Identity, Verdicts
from gnatswarm.broker.access.connect import ClientOptions
from gnatswarm.broker.access.nkey import is_signed_by, new_nonce, user_key
from gnatswarm.broker.errors import AuthorizationViolation
from gnatswarm.broker.options import (
    LEAFNODE,
    LEAFNODE_WS,
    STANDARD,
    WEBSOCKET,
    LeafNodes,
    Options,
    Permissions,
    Tls,
    User,
    WebSocket,
)

TOKEN = Options(auth_token="s3cret")
ONE_USER = Options(auth_user="derek", auth_password="pass")
USERS = Options(users=(User("a", "1"), User("b", "2"), User("open")))
GUESTS = Options(users=(User("a", "1"), User("guest")), no_auth_user="guest")


def said(token: str = "", user: str = "", password: str = "") -> ClientOptions:
    return ClientOptions(auth_token=token, user=user, password=password)


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
    assert (rules.is_required, rules.anonymous() is None) == (is_required, asks)


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


@pytest.mark.parametrize(
    ("before", "connect"),
    [(Options(), said(user="a", password="1")), (Options(), said()), (USERS, said(user="a", password="1"))],
)
@pytest.mark.parametrize("kind", [STANDARD, WEBSOCKET])
def test_a_reload_asks_by_which_kind_of_connection_a_client_has_come(before, connect, kind):
    admission = Authenticator(before).examine(connect, kind=kind)
    assert isinstance(admission, Admission)
    for allowed in (STANDARD, WEBSOCKET):
        guest = User("guest", connection_types=(allowed,))
        after = Options(users=(User("a", "1", connection_types=(allowed,)), guest), no_auth_user="guest")
        assert (Authenticator(after).readmit(admission) is not None) is (allowed == kind)


# ---- users who are known by their certificates

MAPS = Tls(cert_file="c", key_file="k", verify_and_map=True)
BY_CERTIFICATE = (User("CN=ann"), User("bob", "1"), User("guest"))


@pytest.mark.parametrize(
    ("options", "mapped"),
    [
        (Options(users=BY_CERTIFICATE), {STANDARD, WEBSOCKET, LEAFNODE, LEAFNODE_WS}),  # nobody is known so
        (Options(users=BY_CERTIFICATE, tls=MAPS), {STANDARD}),
        (Options(users=BY_CERTIFICATE, websocket=WebSocket(tls=MAPS)), {WEBSOCKET, LEAFNODE_WS}),
        (Options(users=BY_CERTIFICATE, leafnodes=LeafNodes(tls=MAPS)), {LEAFNODE, LEAFNODE_WS}),
        (
            Options(users=BY_CERTIFICATE, websocket=WebSocket(tls=MAPS), leafnodes=LeafNodes(users=(User("l", "l"),))),
            {WEBSOCKET},
        ),
    ],
)
def test_who_is_known_by_a_certificate_is_not_let_in_by_its_name_alone_elsewhere(options, mapped):
    """As by nats-server 2.15; by 2.9 it was. Who has a password, and who needs no log-in, is let in everywhere."""
    options = msgspec.structs.replace(options, no_auth_user="guest")
    before = Authenticator(Options(users=BY_CERTIFICATE))
    rules = Authenticator(options)
    for kind in (STANDARD, WEBSOCKET, LEAFNODE, LEAFNODE_WS):
        for connect in (said(), said(user="guest"), said(user="bob", password="1")):
            assert isinstance(rules.examine(connect, kind=kind), Admission)
        admitted = before.examine(said(user="CN=ann"), kind=kind)
        assert isinstance(admitted, Admission)
        assert (rules.readmit(admitted) is not None) is (kind in mapped)
        if kind in mapped:
            assert isinstance(rules.examine(said(user="CN=ann"), kind=kind), Admission)
        else:
            with pytest.raises(AuthorizationViolation):
                rules.examine(said(user="CN=ann"), kind=kind)


# ---- bcrypt

HASH = bcrypt.hashpw(b"s3cret", b"$2b$04$" + b"a" * 21 + b"u").decode()
OTHER_HASH = bcrypt.hashpw(b"s3cret", b"$2b$04$" + b"b" * 21 + b"u").decode()
HASHED = Options(users=(User("a", HASH), User("plain", "p")))


def compared(rules: Authenticator, verdicts: Verdicts, connect: ClientOptions) -> Admission:
    """What a shard does, without a thread."""
    outcome = rules.examine(connect)
    if isinstance(outcome, HashedPassword):
        same = bcrypt.checkpw(outcome.password.encode(), outcome.hashed.encode()) and outcome.is_known
        verdicts.note(outcome.key, same)
        outcome = rules.examine(connect)
    assert isinstance(outcome, Admission)
    return outcome


@pytest.mark.parametrize(
    ("options", "connect"),
    [
        (HASHED, said(user="a", password="s3cret")),
        (Options(auth_user="a", auth_password=HASH), said(user="a", password="s3cret")),
        (Options(auth_token=HASH), said("s3cret")),
    ],
)
def test_a_hashed_secret_is_compared_once_and_then_known(options, connect):
    verdicts = Verdicts()
    rules = Authenticator(options, verdicts)
    assert isinstance(rules.examine(connect), HashedPassword)
    admission = compared(rules, verdicts, connect)
    assert isinstance(rules.examine(connect), Admission)
    assert rules.readmit(admission) == admission.identity


@pytest.mark.parametrize(
    "connect", [said(user="a", password="wrong"), said(user="a"), said(user="who", password="s3cret")]
)
def test_a_wrong_one_is_refused_then_and_at_once_the_next_time(connect):
    verdicts = Verdicts()
    rules = Authenticator(HASHED, verdicts)
    # An unknown user too: how long the answer takes does not say who exists.
    assert isinstance(rules.examine(connect), HashedPassword)
    for _ in range(2):
        with pytest.raises(AuthorizationViolation):
            compared(rules, verdicts, connect)


def test_an_unknown_user_is_not_let_in_whatever_the_comparison_says():
    verdicts = Verdicts()
    rules = Authenticator(HASHED, verdicts)
    question = rules.examine(said(user="who", password="x"))
    assert isinstance(question, HashedPassword)
    assert not question.is_known
    verdicts.note(question.key, True)
    assert rules.admitted(question) is None
    with pytest.raises(AuthorizationViolation):
        rules.examine(said(user="who", password="x"))


def test_beside_hashed_passwords_a_plain_one_is_refused_no_faster_than_an_unknown_user():
    """Else guesses that are refused at once say which of the names exist."""
    options = Options(users=(User("hashed", HASH), User("plain", "1"), User("open")))
    verdicts = Verdicts()
    rules = Authenticator(options, verdicts)
    unknown = rules.examine(said(user="who", password="x"))
    for name in ("plain", "open"):
        known = rules.examine(said(user=name, password="x"))
        assert isinstance(unknown, HashedPassword) and isinstance(known, HashedPassword)
        assert (known.hashed, known.is_known) == (unknown.hashed, False)
        assert rules.admitted(known) is None
        with pytest.raises(AuthorizationViolation):
            compared(rules, verdicts, said(user=name, password="x"))
    assert isinstance(rules.examine(said(user="plain", password="1")), Admission)


def test_a_password_that_was_compared_for_one_stranger_is_compared_again_for_the_next():
    """As for a known user; else the second answer, which comes at once or does not, says whether the name exists."""
    verdicts = Verdicts()
    rules = Authenticator(HASHED, verdicts)
    with pytest.raises(AuthorizationViolation):
        compared(rules, verdicts, said(user="who", password="x"))
    for name in ("somebody", "a"):
        assert isinstance(rules.examine(said(user=name, password="x")), HashedPassword)


@pytest.mark.parametrize("kind", ["$2a$", "$2x$", "$2y$"])
def test_hashes_of_other_programs_are_hashes_too(kind: str):
    users = (User("a", HASH.replace("$2b$", kind)),)
    rules = Authenticator(Options(users=users), verdicts := Verdicts())
    assert isinstance(rules.examine(said(user="a", password="s3cret")), HashedPassword)
    compared(rules, verdicts, said(user="a", password="s3cret"))
    with pytest.raises(AuthorizationViolation):
        compared(rules, verdicts, said(user="a", password=users[0].password))


def test_the_hash_itself_is_no_password():
    with pytest.raises(AuthorizationViolation):
        compared(Authenticator(HASHED, verdicts := Verdicts()), verdicts, said(user="a", password=HASH))


def test_who_came_in_by_another_hash_has_to_come_again():
    verdicts = Verdicts()
    admission = compared(Authenticator(HASHED, verdicts), verdicts, said(user="a", password="s3cret"))
    assert Authenticator(Options(users=(User("a", HASH, permissions=Permissions()),)), verdicts).readmit(admission)
    assert Authenticator(Options(users=(User("a", OTHER_HASH),)), verdicts).readmit(admission) is None
    assert Authenticator(Options(users=(User("a", "s3cret"),)), verdicts).readmit(admission)
    assert Authenticator(Options(users=(User("a", "other"),)), verdicts).readmit(admission) is None


def test_of_rules_that_changed_meanwhile_the_present_ones_decide():
    verdicts = Verdicts()
    question = Authenticator(HASHED, verdicts).examine(said(user="a", password="s3cret"))
    assert isinstance(question, HashedPassword)
    verdicts.note(question.key, True)

    def admitted(*users: User, auth_token: str = "") -> Identity | None:
        return Authenticator(Options(users=users, auth_token=auth_token), verdicts).admitted(question)

    assert admitted(User("a", HASH)) == Identity("a")
    assert admitted(User("a", HASH, account="A")) == Identity("a", "A")
    assert admitted(User("a", HASH, permissions=Permissions())) == Identity("a", permissions=Permissions())
    assert admitted(User("a", "s3cret")) == Identity("a")  # the same password, not hashed any more
    assert admitted() == NOBODY
    assert admitted(User("a", OTHER_HASH)) is None
    assert admitted(User("b", HASH)) is None
    assert admitted(auth_token="another") is admitted(auth_token="s3cret") is None


def test_no_secret_is_shown_or_kept():
    rules = Authenticator(HASHED)
    question = rules.examine(said(user="a", password="s3cret"))
    assert "s3cret" not in repr(question) and HASH not in repr(question)
    admission = Authenticator(Options()).examine(said("t0ken", "u", "p4ss"))
    assert "t0ken" not in repr(admission) and "p4ss" not in repr(admission)
    assert HASH not in repr(HASHED)


def test_verdicts_are_bounded_and_the_latest_stay():
    for is_same in (True, False):
        verdicts = Verdicts(most_right=3, most_wrong=3)
        for number in range(3):
            verdicts.note(b"%d" % number, is_same)
        assert verdicts.get(b"0") is is_same
        verdicts.note(b"3", is_same)
        assert [verdicts.get(key) for key in (b"0", b"1", b"2", b"3")] == [is_same, None, is_same, is_same]


def test_wrong_guesses_do_not_push_out_the_result_by_which_a_client_stays():
    verdicts = Verdicts(most_wrong=3)
    rules = Authenticator(HASHED, verdicts)
    admission = compared(rules, verdicts, said(user="a", password="s3cret"))
    for number in range(4):
        guess = rules.examine(said(user="a", password=f"guess{number}"))
        assert isinstance(guess, HashedPassword)
        verdicts.note(guess.key, False)
    assert Authenticator(HASHED, verdicts).readmit(admission) == admission.identity


# ---- nkeys


def key_pair(seed: int = 1) -> tuple[str, SigningKey]:
    signing = SigningKey(bytes([seed] * 32))
    raw = bytes([20 << 3]) + bytes(signing.verify_key)
    crc = nkeys.crc16(raw)
    return base64.b32encode(raw + crc.to_bytes(2, "little")).rstrip(b"=").decode(), signing


PUBLIC, SIGNING = key_pair()
NKEYS = Options(users=(User(nkey=PUBLIC, account="A"), User("a", "1")))


def signed(nonce: bytes, *, key: str = PUBLIC, signing: SigningKey = SIGNING) -> ClientOptions:
    signature = base64.urlsafe_b64encode(signing.sign(nonce).signature).rstrip(b"=").decode()
    return ClientOptions(nkey=key, sig=signature)


def test_a_public_key_is_what_the_nkeys_library_says_it_is():
    pair = nkeys.from_seed(nkeys.encode_seed(bytes(range(32)), nkeys.PREFIX_BYTE_USER))
    text = pair.public_key.decode()
    key = user_key(text)
    assert key is not None and len(key) == 32
    assert is_signed_by(key, b"nonce", base64.urlsafe_b64encode(pair.sign(b"nonce")).rstrip(b"=").decode())
    account = nkeys.from_seed(nkeys.encode_seed(bytes(range(32)), nkeys.PREFIX_BYTE_ACCOUNT)).public_key.decode()
    for bad in (
        text[:-1],
        text[:-1] + ("A" if text[-1] != "A" else "B"),
        text.lower(),
        "U" * 56,
        "",
        account,
        text + "A",
    ):
        assert user_key(bad) is None


def test_a_signature_lets_in():
    rules = Authenticator(NKEYS)
    assert rules.wants_nonce and rules.anonymous() is None
    nonce = new_nonce()
    admission = rules.examine(signed(nonce), nonce)
    assert isinstance(admission, Admission)
    assert (admission.identity.user, admission.identity.account) == (PUBLIC, "A")
    assert rules.readmit(admission) == admission.identity
    assert Authenticator(Options(users=(User("a", "1"),))).readmit(admission) is None
    ordinary = ClientOptions(nkey=PUBLIC, sig=base64.b64encode(SIGNING.sign(nonce).signature).decode())
    assert isinstance(rules.examine(ordinary, nonce), Admission)  # padded base64, as the real server takes it


@pytest.mark.parametrize(
    "attack", ["replayed", "none", "empty nonce", "other key", "cut", "padded", "rubbish", "unknown", "as user"]
)
def test_what_is_no_signature_of_this_connection_s_nonce_does_not(attack):
    rules = Authenticator(NKEYS)
    # (a signature without - and _ is ordinary base64, too, and may be padded)
    nonce = next(one for one in iter(new_nonce, b"") if set(signed(one).sig) & {"-", "_"})
    stranger, strangers = key_pair(2)
    connect = {
        "replayed": signed(new_nonce()),
        "none": ClientOptions(nkey=PUBLIC),
        "empty nonce": signed(b""),
        "other key": signed(nonce, signing=strangers),
        "cut": ClientOptions(nkey=PUBLIC, sig=signed(nonce).sig[:-4]),
        "padded": ClientOptions(nkey=PUBLIC, sig=f"{signed(nonce).sig}=="),
        "rubbish": ClientOptions(nkey=PUBLIC, sig="\ud800é=\n"),
        "unknown": signed(nonce, key=stranger, signing=strangers),
        "as user": ClientOptions(user=PUBLIC, password=signed(nonce).sig),
    }[attack]
    with pytest.raises(AuthorizationViolation):
        rules.examine(connect, b"" if attack == "empty nonce" else nonce)


def test_nonces_differ():
    assert len({new_nonce() for _ in range(1000)}) == 1000
    assert all(len(new_nonce()) == 15 for _ in range(10))
