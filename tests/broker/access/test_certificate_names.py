"""Which user a certificate stands for: names in their order, distinguished names read as RFC 4514 has them."""

from __future__ import annotations

import pytest

from gnatswarm.broker.access import certificate_names
from gnatswarm.broker.access.certificate_names import (
    CertificateNames,
    SubjectIndex,
    distinguished_name,
    find_user,
    is_name,
    names_of,
)
from gnatswarm.broker.access.user_index import UserIndex
from gnatswarm.broker.options import User

BOB = {
    "subject": ((("organizationName", "gnats"),), (("commonName", "bob"),)),
    "subjectAltName": (("DNS", "d.example"), ("URI", "urn:u"), ("email", "b@example.com"), ("IP Address", "10.0.0.1")),
}


def user_of(names: CertificateNames, users: list[str]) -> str | None:
    return find_user(names, users, SubjectIndex(users))


def test_addresses_come_before_hosts_and_those_before_uris() -> None:
    assert names_of(BOB).alternatives == ("b@example.com", "d.example", "urn:u")


@pytest.mark.parametrize(
    ("users", "found"),
    [
        (["d.example", "b@example.com"], "b@example.com"),
        (["CN=bob,O=gnats", "urn:u"], "urn:u"),
        (["O=gnats,CN=bob", "CN=bob,O=gnats"], "CN=bob,O=gnats"),
        (["O=gnats,CN=bob"], "O=gnats,CN=bob"),
        (["cn = bob , O=gnats"], "cn = bob , O=gnats"),
        (["CN=bob", "O=gnats", "CN=BOB,O=gnats", "CN=bob,O=gnats,O=gnats", "10.0.0.1", "bob", "="], None),
        ([], None),
    ],
)
def test_the_first_name_that_is_a_user_counts(users: list[str], found: str | None) -> None:
    assert user_of(names_of(BOB), users) == found


@pytest.mark.parametrize("more", ["userId", "emailAddress", "title", "givenName", "domainComponent"])
def test_of_a_subject_what_other_servers_do_not_know_does_not_count(more: str) -> None:
    names = names_of({"subject": ((("commonName", "bob"),), ((more, "x"),))})
    assert user_of(names, ["UID=x,CN=bob", "EMAILADDRESS=x,CN=bob", "CN=bob"]) == "CN=bob"
    assert user_of(names, ["UID=x,CN=bob", "TITLE=x"]) is None
    with_domain = ["CN=bob", "DC=x,CN=bob"] if more == "domainComponent" else ["CN=bob"]
    assert user_of(names, ["DC=x,CN=bob", *with_domain]) == with_domain[-1]


def test_a_certificate_without_names_is_nobody() -> None:
    assert user_of(names_of({}), ["", "=", "CN="]) is None
    assert user_of(names_of({"subject": ()}), ["CN=", "x"]) is None


def test_of_many_users_those_alone_are_read_that_may_be_the_subject(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes 17 us: of 2,000 a client that said CONNECT 200 times in one write took its shard 6 s."""
    others = [f"CN=device{number},O=gnats" for number in range(1000)]
    users = ["O=gnats,CN=bob", *others, "CN=bob,O=gnats", "cn=bob, o=gnats"]
    subjects = SubjectIndex(users)
    read: list[str] = []

    def noting(text: str) -> certificate_names.Name | None:
        read.append(text)
        return distinguished_name(text)

    monkeypatch.setattr(certificate_names, "distinguished_name", noting)
    assert find_user(names_of(BOB), users, subjects) == "CN=bob,O=gnats"
    assert set(read) <= {"O=gnats,CN=bob", "CN=bob,O=gnats", "cn=bob, o=gnats"}
    assert find_user(names_of({"subject": ((("commonName", "eve"),),)}), users, subjects) is None
    assert not set(read) & set(others)


def test_users_who_are_added_later_come_behind_the_others() -> None:
    index = UserIndex([User("O=gnats,CN=bob", "", account="A")])
    index.add([User("CN=bob,O=gnats+L=x", ""), User("O=gnats, CN=bob", "")])
    assert index.of_certificate(names_of(BOB)) == "O=gnats,CN=bob"
    index.add([User("CN=bob,O=gnats", "")])
    assert index.of_certificate(names_of(BOB)) == "CN=bob,O=gnats"
    index.add([User("urn:u", "")])
    assert index.of_certificate(names_of(BOB)) == "urn:u"


SUBJECT = (
    (("countryName", "CH"),),
    (("domainComponent", "a"),),
    (("domainComponent", "b"),),
    (("commonName", ' #a, "b"+<c>; \\\\ '),),
    (("organizationalUnitName", "x"),),
    (("organizationalUnitName", "y"), ("organizationName", "# gnats")),
    (("emailAddress", "m@example"),),
)
WRITTEN = r"""CN=\ #a\, \"b\"\+\<c\>\; \\\\\ ,OU=x+OU=y,O=\# gnats,C=CH"""


@pytest.mark.parametrize(
    ("user", "found"),
    [
        ("b@example.com", True),
        ("d.example", True),
        ("urn:u", True),
        ("CN=bob,O=gnats", True),
        ("O=gnats,CN=bob", False),
        ("CN=bob, O=gnats", False),
        ("CN=bob", False),
        ("bob", False),
        ("10.0.0.1", False),
        ("", False),
    ],
)
def test_a_name_is_what_a_server_calls_it(user: str, found: bool) -> None:
    assert is_name(names_of(BOB), user) is found


def test_a_subject_is_written_as_go_writes_it() -> None:
    names = names_of({"subject": SUBJECT})
    assert is_name(names, WRITTEN)
    assert is_name(names, f"{WRITTEN},DC=a,DC=b")
    assert not is_name(names, f"{WRITTEN},DC=b,DC=a")
    assert not is_name(names_of({}), "")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("CN=a", [{("CN", "a")}]),
        ("CN=a,DC=b", [{("CN", "a")}, {("DC", "b")}]),
        ("CN=a+OU=b,O=c", [{("CN", "a"), ("OU", "b")}, {("O", "c")}]),
        (r"CN=a\,b", [{("CN", "a,b")}]),
        (r"CN=a\20", [{("CN", "a ")}]),
        (r"CN=\C3\A4", [{("CN", "ä")}]),
        ("CN=ä", [{("CN", "ä")}]),
        ("CN=", [{("CN", "")}]),
        ("1.2.3=a", [{("1.2.3", "a")}]),
        ("CN", None),
        ("CN=a,", None),
        ("=a", None),
        ("C N=a", None),
        ("CN=a\\", None),
        ("CN=a=b", None),
        (r"CN=a\=b", [{("CN", "a=b")}]),
        ("CN=#a", None),
        (r"CN=\#a", [{("CN", "#a")}]),
    ],
)
def test_a_distinguished_name_is_read(text: str, name: list[set[tuple[str, str]]] | None) -> None:
    wanted = None if name is None else tuple(frozenset(part) for part in name)
    assert distinguished_name(text) == wanted
