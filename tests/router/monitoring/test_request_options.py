"""Options of requests in the system account: what nats-server 2.15.1 takes, and says of the rest."""

from __future__ import annotations

import pytest

from gnatswarm.router.monitoring.request_options import BadOptions, RequestOptions, request_options


@pytest.mark.parametrize(
    ("what", "body", "options"),
    [
        ("CONNZ", b"", RequestOptions()),
        ("CONNZ", b"null", RequestOptions()),
        ("CONNZ", b'{"cid": null, "tags": [null, "a"]}', RequestOptions(tags=("", "a"))),
        ("CONNZ", b'{"CID": 5, "Sort": "subs", "auth": true}', RequestOptions(cid=5, sort="subs", auth=True)),
        ("CONNZ", b'{"cid": 18446744073709551615}', RequestOptions(cid=(1 << 64) - 1)),
        ("VARZ", b'{"cid": "x", "limit": {}, "no such": 1.5}', RequestOptions()),
        ("JSZ", b'{"accounts": true}', RequestOptions(accounts=True)),  # type: ignore[arg-type]
        ("STATZ", b'{"accounts": ["A"], "include_unused": true}', RequestOptions(accounts=("A",), include_unused=True)),
        ("STATZ", b'{"accounts": ["\\udfff"]}', RequestOptions(accounts=("\ufffd",))),
        ("CONNZ", b'{"user": "a\\ud800", "sort": "\\ud83d\\ude00"}', RequestOptions(user="a\ufffd", sort="\U0001f600")),
        (
            "CONNZ",
            b'{"user": "a\xff", "acc": "\xed\xa0\x80"}',
            RequestOptions(user="a\ufffd", acc="\ufffd" * 3, names_acc=True),
        ),
        ("SHARDZ", b'{"server_name": "a", "exact_match": true}', RequestOptions(server_name="a", exact_match=True)),
    ],
)
def test_keys_of_the_request_count_and_no_others(what: str, body: bytes, options: RequestOptions) -> None:
    assert request_options(what, body) == options


INTO = "json: cannot unmarshal"


@pytest.mark.parametrize(
    ("what", "body", "why"),
    [
        ("CONNZ", b"[]", f"{INTO} array into Go value of type server.ConnzEventOptions"),
        ("STATZ", b"7", f"{INTO} number into Go value of type server.AccountStatzEventOptions"),
        ("CONNZ", b'{"Cid": 1.5}', f"{INTO} number 1.5 into Go struct field ConnzEventOptions.Cid of type uint64"),
        ("CONNZ", b'{"cid": -1}', f"{INTO} number -1 into Go struct field ConnzEventOptions.cid of type uint64"),
        ("CONNZ", b'{"cid": true}', f"{INTO} bool into Go struct field ConnzEventOptions.cid of type uint64"),
        ("CONNZ", b'{"cid": {}}', f"{INTO} object into Go struct field ConnzEventOptions.cid of type uint64"),
        ("CONNZ", b'{"sort": 1}', f"{INTO} number into Go struct field ConnzEventOptions.sort of type server.SortOpt"),
        ("CONNZ", b'{"auth": 1}', f"{INTO} number into Go struct field ConnzEventOptions.auth of type bool"),
        ("SUBSZ", b'{"limit": 1e2}', f"{INTO} number 1e2 into Go struct field SubszEventOptions.limit of type int"),
        (
            "SUBSZ",
            b'{"offset": 99999999999999999999}',
            f"{INTO} number 99999999999999999999 into Go struct field SubszEventOptions.offset of type int",
        ),
        ("VARZ", b'{"tags": "x"}', f"{INTO} string into Go struct field VarzEventOptions.tags of type []string"),
        ("VARZ", b'{"tags": ["x", 5]}', f"{INTO} number into VarzEventOptions.tags.1 of type string"),
        ("VARZ", b'{"host": ["x"]}', f"{INTO} array into Go struct field VarzEventOptions.host of type string"),
    ],
)
def test_a_wrong_type_is_told_as_there(what: str, body: bytes, why: str) -> None:
    with pytest.raises(BadOptions) as refused:
        request_options(what, body)
    assert str(refused.value) == why


@pytest.mark.parametrize(
    "body",
    [b" \n", b"{", b"x", b'{"cid": 1} x', b"\xff", b"\xef\xbb\xbf{}", b'{"limit": NaN}', b'{"x":' + b"[" * 100_000],
)
def test_what_is_no_json_is_refused(body: bytes) -> None:
    with pytest.raises(BadOptions, match="invalid JSON"):
        request_options("CONNZ", body)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"x", "invalid JSON at character 1"),
        (b'{"cid": 1} x', "invalid JSON at character 12"),
        (b'{"x":' + b"[" * 100_000, "invalid JSON: nested too deeply"),
    ],
)
def test_what_is_wrong_with_it_is_said_in_our_words(body: bytes, why: str) -> None:
    with pytest.raises(BadOptions) as refused:
        request_options("CONNZ", body)
    assert str(refused.value) == why


@pytest.mark.parametrize("what", ["KICK", "LDM"])
def test_whom_a_command_is_about_is_read_apart_from_which_servers_shall_carry_it_out(what: str) -> None:
    body = b'{"server_name": 7, "cid": 5}'
    assert request_options(what, body, says_who=False) == RequestOptions(cid=5)
    why = f"{INTO} number into Go struct field EventFilterOptions.server_name of type string"
    with pytest.raises(BadOptions, match=why):
        request_options(what, body)
    with pytest.raises(BadOptions):
        request_options(what, b'{"cid": "5"}', says_who=False)


def test_a_number_of_a_million_digits_takes_no_time() -> None:
    with pytest.raises(BadOptions, match="of type uint64"):
        request_options("CONNZ", b'{"cid": ' + b"9" * 1_000_000 + b"}")
