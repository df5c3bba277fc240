"""What a configuration changes on the monitoring pages it changes as on the real server: one file, given to both."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.authority import Authority
from tests.support.pages import Pages
from tests.support.required import require
from tests.support.servers import KINDS, Broker
from tests.support.wire import Client

# Of one run alone, or ours alone; what the system account's own subscriptions are there is nothing here.
OF_ONE_RUN = {"server_id", "server_name", "go", "port", "http_port", "now", "start", "uptime", "mem", "cores", "cpu"}
OF_ONE_RUN |= {"gomaxprocs", "http_req_stats", "config_load_time", "subscriptions", "gnatswarm", "shards"}
OURS = {"gnatswarm", "shards", "denied_msgs", "denied_subscriptions"}
HASH = "$2a$04$Ot41DzDFIn3jPJE2nUD2vO3NXV9tqVi2bMMbEYfYLbDyQdoFzo8Ma"

OPTIONS = {
    "nothing": "server_name: x",
    "tls": "{tls}",
    "client certificates": "tls { {pair}, ca_file: '{ca}', verify: true, timeout: 5 }",
    "users by certificate": "tls { {pair}, ca_file: '{ca}', verify_and_map: true }\n"
    "authorization { users [ {user: a} ] }",
    "tls or not": "{tls}\nallow_non_tls: true",
    "a user": "authorization { user: a, pass: b, timeout: 3 }",
    "a token": "authorization { token: abcdef }",
    "users": "authorization { users [ {user: a, pass: b} ] }",
    "anybody is a user": "authorization { users [ {user: a, pass: b} ] }\nno_auth_user: a",
    "accounts": "accounts { A { users [ {user: a, pass: b} ] }, B {} }",
    "websocket": "websocket { port: -1, no_tls: true }",
    "websocket and tls": "websocket { host: 127.0.0.1, port: -1, compression: true, same_origin: true, "
    "allowed_origins: ['http://a:1'], handshake_timeout: '3s', tls { {pair} } }",
    "tags and limits": "server_tags: [a, b]\nmax_subscriptions: 7\nclient_advertise: 'h:1'\nmax_pending: 2MB",
    "tls and a user": "{tls}\nauthorization { user: a, pass: b }",
    "encrypted pages": "{tls}\nhttps: '127.0.0.1:-1'",
}


@pytest.fixture(scope="module", autouse=True)
def _oracle() -> None:
    require(KINDS["nats-server"])


def broker(name: str, config: str) -> Broker:
    return Broker(KINDS[name], args=[] if "https" in config else ["-m", "-1"], config=config)


def general(name: str, config: str, authority: Authority) -> dict[str, Any]:
    with broker(name, config) as running:
        pages = Pages.of(running, context=authority.client_context())
        page: dict[str, Any] = pages.json("/varz")
        # Ours says which port it got, theirs what was asked for.
        page["https_port"] = bool(page["https_port"])
        if page["websocket"]:
            page["websocket"]["port"] = 0
        return page


@pytest.mark.parametrize("text", OPTIONS.values(), ids=OPTIONS.keys())
def test_the_general_page_says_the_same_of_the_options(text: str, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.server().lines
    config = text.replace("{tls}", "tls { {pair} }").replace("{pair}", pair).replace("{ca}", str(authority.path))
    theirs, ours = (general(name, config, authority) for name in ("nats-server", "gnatswarm-2"))
    assert [name for name in ours if name not in OURS] == list(theirs)
    different = {name: (theirs[name], ours[name]) for name in theirs if theirs[name] != ours[name]}
    assert different.keys() <= OF_ONE_RUN, different


# One port each; its block on the page is compared.
PORTS = {
    "cluster": "cluster { name: c, port: -1 }",
    "encrypted cluster": "cluster { name: c, port: -1, tls { {pair}, ca_file: '{ca}' } }",
    "cluster with timeouts": "cluster { name: c, port: -1, routes: ['nats://127.0.0.1:1'], "
    "authorization { user: a, password: b, timeout: 4 }, tls { {pair}, ca_file: '{ca}', timeout: 5 } }",
    "leaf nodes": "leafnodes { port: -1, tls { {pair}, ca_file: '{ca}', verify: true, timeout: 3 } }",
    "leaf nodes with a timeout": "leafnodes { port: -1, authorization { timeout: 5 }, tls { {pair} } }",
    "websocket": "websocket { port: -1, tls { {pair} } }",
    "clients": "tls { {pair} }",
}
NEWER_PORTS = {
    "cluster that waits": "cluster { name: c, port: -1, write_deadline: '3s', write_timeout: close }",
    "clients that are waited for": "write_timeout: retry",
    "the default": "write_timeout: default",
    "clients with several certificates": "tls { certs: [ { {pair} } ] }",
}
OLD_AND_NEW = [("nats-server", "gnatswarm-2"), ("nats-server-2.15", "gnatswarm-2-as-2.15")]
CASES = [(text, *pair) for text in PORTS.values() for pair in OLD_AND_NEW]
CASES += [(text, *OLD_AND_NEW[1]) for text in NEWER_PORTS.values()]


@pytest.mark.parametrize(("text", "theirs", "ours"), CASES)
def test_the_general_page_says_the_same_of_each_port(text: str, theirs: str, ours: str, tmp_path: Path) -> None:
    require(KINDS[theirs])
    authority = Authority(tmp_path)
    config = text.replace("{pair}", authority.server().lines).replace("{ca}", str(authority.path))
    shown = []
    for page in (general(name, config, authority) for name in (theirs, ours)):
        block = page.get({"leafnodes": "leaf"}.get(text.split()[0], text.split()[0]), {})
        # (the port that it got, and what there is of a pool)
        found = {name: value for name, value in block.items() if name not in ("port", "cluster_port", "pool_size")}
        clients = {name: page.get(name) for name in ("auth_timeout", "write_timeout", "tls_cert_not_after")}
        shown.append((list(found.items()), clients))
    assert shown[0] == shown[1]


REFUSED = {
    "a user": "authorization { user: a, pass: b }",
    "a hash": f'authorization {{ users [ {{user: a, pass: "{HASH}"}} ] }}',
    "accounts": "accounts { A { users [ {user: a, pass: b} ] } }",
    "a token": "authorization { token: abc }",
    "no sense": "server_name: x",
}


@pytest.mark.parametrize("config", REFUSED.values(), ids=REFUSED.keys())
async def test_who_was_refused_is_shown_with_what_it_said_of_itself(config: str) -> None:
    about = {"name": "n", "lang": "go", "version": "1.2"}
    shown = []
    for kind in ("nats-server", "gnatswarm-1"):
        running = broker(kind, config).start()
        try:
            pages = Pages.of(running)
            for words in (
                {**about, "user": "a", "pass": "wrong", "auth_token": "x", "no_responders": True, "headers": False},
                about,
            ):
                client = await Client.connect(running.port, None)
                await client.send(f"CONNECT {json.dumps(words)}\r\n")
                if config == REFUSED["no sense"] and words is about:
                    client.shut_writing()
                await client.wait_closed()
                client.close()
            page = await pages.wait("/connz?state=closed&auth=1", lambda page: page["total"] == 2)
            rows = sorted(page["connections"], key=lambda row: int(row["cid"]))
            kept = ("reason", "name", "lang", "version", "authorized_user", "account", "in_msgs", "subscriptions")
            shown.append([{name: row.get(name) for name in kept} for row in rows])
        finally:
            await asyncio.to_thread(running.stop)
    assert shown[0] == shown[1]
    assert shown[1][0]["name"] == "n"


async def test_whoever_has_the_token_is_shown_without_it() -> None:
    """nats-server 2.9 shows the token. Here nothing is shown of a wrong one."""
    shown = []
    for kind in ("nats-server-2.15", "gnatswarm-2-as-2.15", "gnatswarm-2"):
        running = broker(kind, "authorization { token: abc }").start()
        try:
            pages = Pages.of(running)
            for token in ("abc", "wrong"):
                client = await Client.connect(running.port, None)
                await client.send(f'CONNECT {{"auth_token":"{token}","verbose":false}}\r\nPING\r\n')
                assert (await client.read_frame()).verb == ("PONG" if token == "abc" else "-ERR")
                client.close()
            page = await pages.wait("/connz?state=closed&auth=1", lambda page: page["total"] == 2)
            rows = sorted(page["connections"], key=lambda row: int(row["cid"]))
            shown.append([row.get("authorized_user") for row in rows])
        finally:
            await asyncio.to_thread(running.stop)
    assert shown[0][0] == "[REDACTED]" and shown[1] == ["[REDACTED]", None]
    assert shown[2] == [None, None]
