"""Remotes with the same options of TLS share a context, until a reload that brings other files or authorities."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest

from gnatswarm.broker.options import ClientTls
from gnatswarm.shards.boundary import certificates
from gnatswarm.shards.boundary.certificates import with_client_files
from gnatswarm.shards.gateway.hub_contexts import HubContexts
from tests.support.authority import Authority


@pytest.fixture
def named(tmp_path: Path) -> ClientTls:
    """Options that name their authorities."""
    return with_client_files(ClientTls(is_on=True, ca_file=str(Authority(tmp_path).path)))


def test_remotes_with_the_same_options_share_one(named: ClientTls, monkeypatch: pytest.MonkeyPatch) -> None:
    make = Mock(wraps=certificates.client_context)
    monkeypatch.setattr(certificates, "client_context", make)
    contexts = HubContexts()
    some = [contexts.of(tls) for tls in (named, ClientTls(is_on=True)) for _ in range(20)]
    assert len(set(some)) == make.call_count == 2


def test_a_reload_keeps_those_of_the_same_files_and_reads_the_systems_authorities_again(named: ClientTls) -> None:
    contexts = HubContexts()
    system, gone = ClientTls(insecure=True), ClientTls(insecure=True, ca_file=named.ca_file, ca_pem=named.ca_pem)
    before = [contexts.of(tls) for tls in (named, system, gone)]
    contexts.reload([named, system])
    after = [contexts.of(tls) for tls in (named, system, gone)]
    assert [one is other for one, other in zip(before, after, strict=True)] == [True, False, False]
