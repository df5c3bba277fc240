"""What INFO says, and when."""

from __future__ import annotations

import re

from tests.support.servers import HOST, NEW, OLD

VERSIONS = {OLD: "2.9.10", NEW: "2.15.1"}


async def test_info_has_what_clients_read(broker, cluster):
    client = await cluster.raw()
    info = client.info
    assert re.fullmatch(r"[0-9A-Z]{56}", info["server_id"])
    assert info["server_name"]
    assert info["version"] == VERSIONS[broker.kind.compatibility]
    assert info["proto"] == 1
    assert info["host"] == HOST
    assert info["port"] == broker.port
    assert info["headers"] is True
    assert info["max_payload"] == 1_048_576
    assert info["client_id"] > 0
    assert info["client_ip"] == HOST


async def test_info_leaves_out_what_is_false_or_empty(cluster):
    client = await cluster.raw()
    absent = {
        "auth_required",
        "tls_required",
        "tls_verify",
        "tls_available",
        "nonce",
        "connect_urls",
        "ws_connect_urls",
        "ldm",
        "cluster",
        "jetstream",
        "domain",
    }
    assert absent & set(client.info) == set()


async def test_info_ends_in_a_blank_before_its_line_end(cluster):
    client = await cluster.raw()
    assert client.info_line.startswith(b"INFO {")
    assert client.info_line.endswith(b"} \r\n")


async def test_info_names_the_server_as_it_was_named(start_broker, cluster_of):
    broker = start_broker(args=["-n", "gnat-one"])
    client = await cluster_of(broker).raw()
    assert client.info["server_name"] == "gnat-one"


async def test_the_server_id_is_another_one_after_a_restart(start_broker, cluster_of):
    first, second = start_broker(), start_broker()
    one, other = await cluster_of(first).raw(), await cluster_of(second).raw()
    assert one.info["server_id"] != other.info["server_id"]
