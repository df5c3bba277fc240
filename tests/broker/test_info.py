"""INFO: the keys a client relies on, what is left out, and the two values that differ from client to client."""

from __future__ import annotations

import json

import pytest

from gnatswarm.broker.info import InfoTemplate, advertised, info_line


def template(**changes):
    values = {"server_id": "ID", "server_name": "n", "host": "0.0.0.0", "port": 4222, "shard": 0, "headers": True}
    return InfoTemplate(**{**values, "max_payload_bytes": 1_048_576, **changes})


def read(line: bytes):
    assert line.startswith(b"INFO {") and line.endswith(b"} \r\n")
    assert line.count(b"\r\n") == 1
    return json.loads(line[5:])


def test_an_info_has_what_clients_rely_on():
    info = read(template().line(7, "127.0.0.1"))
    assert info.pop("gnatswarm")
    assert info.pop("go").startswith("python3.")
    assert info == {
        "server_id": "ID",
        "server_name": "n",
        "version": "2.15.1",
        "proto": 1,
        "host": "0.0.0.0",
        "port": 4222,
        "headers": True,
        "max_payload": 1_048_576,
        "client_id": 7,
        "client_ip": "127.0.0.1",
        "shard": 0,
    }


def test_what_is_false_or_empty_is_left_out_but_for_what_is_always_there():
    info = read(template(headers=False).line(1, "::1"))
    assert info["headers"] is False
    assert not {"auth_required", "tls_required", "tls_available", "ldm", "connect_urls", "nonce", "jetstream"} & set(
        info
    )
    info = read(template(auth_required=True, connect_urls=["a:1"]).line(1, "::1"))
    assert info["auth_required"] is True and info["connect_urls"] == ["a:1"]


def test_every_address_is_called_as_nats_server_does():
    assert read(template(host="").line(1, "::1"))["host"] == "0.0.0.0"


def test_who_came_by_websocket_may_be_told_another_address():
    general = template(websocket_address=("", 80), websocket_auth_required=True, tls_required=True)
    of_websocket = read(general.for_websocket().line(1, "::1"))
    assert (of_websocket["host"], of_websocket["port"], of_websocket["auth_required"]) == ("0.0.0.0", 80, True)
    assert "tls_required" not in of_websocket
    assert read(general.line(1, "::1"))["port"] == 4222
    assert read(template().for_websocket().line(1, "::1"))["port"] == 4222


def test_later_infos_say_whether_there_are_users_at_all():
    first = template(has_users=True, websocket_has_users=True)
    assert "auth_required" not in read(first.line(1, "x"))
    assert "auth_required" not in read(first.for_websocket().line(1, "x"))
    assert read(first.for_later().line(1, "x"))["auth_required"] is True
    assert read(first.for_later().for_websocket().line(1, "x"))["auth_required"] is True


def test_a_client_is_told_the_max_payload_of_its_account():
    leaving = template(server_name='"max_payload":1048576,').for_departure()
    assert read(leaving.line(1, "x", max_payload_bytes=50)) == read(leaving.line(1, "x")) | {"max_payload": 50}


@pytest.mark.parametrize("name", ["100%", "%d %s %(x)s %%", 'a"b', "ünï\\", '","client_id":0,"client_ip":"?"', "{}"])
def test_a_name_comes_through_whatever_is_in_it(name):
    info = read(template(server_name=name).line(12, "10.0.0.1"))
    assert (info["server_name"], info["client_id"], info["client_ip"]) == (name, 12, "10.0.0.1")


def test_a_departure_is_the_same_with_ldm():
    before = template(connect_urls=["a:1", "b:1"], other_urls=["b:1"])
    leaving = before.for_departure()
    assert read(leaving.line(1, "x")) == read(before.line(1, "x")) | {"ldm": True, "connect_urls": ["b:1"]}
    assert "ldm" not in read(before.line(1, "x"))


def test_client_ids_may_be_as_large_as_they_get():
    assert read(template().line(2**63, "x"))["client_id"] == 2**63


def test_an_info_line_of_any_fields():
    assert info_line({"server_id": "", "x": 0, "y": "z"}) == b'INFO {"server_id":"","y":"z"} \r\n'


@pytest.mark.parametrize(
    ("advertise", "expected"),
    [
        ("", ("h", 1)),
        ("other", ("other", 1)),
        ("other:9", ("other", 9)),
        ("[::1]:9", ("::1", 9)),
        ("[::1]", ("::1", 1)),
        ("::1", ("::1", 1)),
    ],
)
def test_what_is_advertised_takes_the_place_of_host_and_port(advertise, expected):
    assert advertised(advertise, "h", 1) == expected
