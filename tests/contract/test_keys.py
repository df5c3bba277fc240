"""Every key of nats-server 2.15's configuration is known here: offered, or named with what happens.

The lists are held against the real server, which calls one key of each block unknown, and no other. They were made
from its documentation; at the top level, also by asking it about every word in its program.
"""

from __future__ import annotations

import pathlib
import re
import subprocess

import pytest

from gnatswarm.router.config.conf_tree import ConfigError
from gnatswarm.router.config.flags import parse
from gnatswarm.router.config.options_build import build
from tests.support.authority import Authority
from tests.support.servers import KINDS, BrokerUnavailable, oracle_is_required

NO_KEY = "no_such_key"
# A block's text around one key, and its keys.
BLOCKS: dict[str, tuple[str, str]] = {
    "top level": (
        "%s",
        """listen client_advertise port server_name host net debug trace trace_verbose trace_headers logtime
        logtime_utc mappings maps disable_sublist_cache no_sublist_cache accounts default_sentinel authorization
        http https http_port monitor_port https_port http_base_path cluster gateway leaf leafnodes store_dir
        storedir jetstream logfile log_file logfile_size_limit log_size_limit logfile_max_num log_max_num syslog
        remote_syslog pidfile pid_file ports_file_dir prof_port prof_block_rate max_control_line max_payload
        max_pending max_connections max_conn max_traced_msg_len max_subscriptions max_subs max_sub_tokens
        max_subscription_tokens ping_interval ping_max tls allow_non_tls write_deadline write_timeout
        lame_duck_duration lame_duck_grace_period operator operators roots root root_operators root_operator
        resolver account_resolver accounts_resolver resolver_tls resolver_preload resolver_pinned_accounts
        no_auth_user system_account system no_system_account no_system no_sys_acc no_header_support trusted
        trusted_keys connect_error_reports reconnect_error_reports websocket ws mqtt server_tags server_metadata
        default_js_domain ocsp_cache ocsp no_fast_producer_stall max_closed_clients proxies proxy_protocol
        feature_flags""",
    ),
    "authorization": (
        "authorization { %s }",
        """user username pass password token users timeout auth_callout permissions default_permission
        default_permissions proxy_required""",
    ),
    "a user": (
        "authorization { users [ { user: a, %s } ] }",
        """pass password nkey permissions permission authorization allowed_connection_types connection_types clients
        proxy_required""",
    ),
    "permissions": (
        "authorization { users [ { user: a, permissions { %s } } ] }",
        "publish pub import subscribe sub export allow_responses publish_allow_responses",
    ),
    "responses": (
        "authorization { users [ { user: a, permissions { allow_responses { %s } } } ] }",
        "max max_msgs max_messages max_responses expires expiration ttl",
    ),
    "an account": (
        "accounts { A { %s } }",
        """nkey users imports exports jetstream default_permissions mappings maps limits msg_trace trace_dest""",
    ),
    "limits of an account": (
        "accounts { A { limits { %s } } }",
        "max_connections max_conn max_subscriptions max_subs max_payload max_pay max_leafnodes max_leafs",
    ),
    "an export": (
        "accounts { A { exports [ { service: x, %s } ] } }",
        """accounts response response_type threshold response_threshold response_max_time latency
        account_token_position allow_trace""",
    ),
    "an import": (
        "accounts { A {}, B { imports [ { service: {account: A, subject: x}, %s } ] } }",
        "to share allow_trace",
    ),
    "cluster": (
        "cluster { %s }",
        """name listen port host net authorization routes tls cluster_advertise advertise no_advertise
        connect_retries connect_backoff permissions pool_size accounts compression ping_interval ping_max
        write_deadline write_timeout""",
    ),
    "leaf nodes": (
        "leafnodes { %s }",
        """listen port host net authorization remotes reconnect reconnect_delay reconnect_interval tls
        leafnode_advertise advertise no_advertise min_version minimum_version compression
        isolate_leafnode_interest isolate write_deadline write_timeout""",
    ),
    "log-in of leaf nodes": (
        "leafnodes { authorization { %s } }",
        "user username pass password nkey timeout users account proxy_required",
    ),
    "a remote": (
        "leafnodes { remotes [ { url: 'nats://localhost:1', %s } ] }",
        """no_randomize dont_randomize urls url account local creds credentials nkey seed tls hub deny_import
        deny_imports deny_export deny_exports ws_compress ws_compression websocket_compress websocket_compression
        ws_no_masking websocket_no_masking jetstream_cluster_migrate js_cluster_migrate compression
        first_info_timeout disabled proxy isolate_leafnode_interest isolate request_isolation
        ignore_discovered_servers""",
    ),
    "TLS": (
        "tls { %s }",
        """cert_file key_file ca_file insecure verify verify_and_map verify_cert_and_check_known_urls cipher_suites
        curve_preferences timeout connection_rate_limit pinned_certs cert_store cert_match_by cert_match
        ca_certs_match cert_match_skip_invalid handshake_first first immediate certs min_version
        allow_insecure_cipher_suites ocsp_peer""",
    ),
    "WebSocket": (
        "websocket { %s }",
        """listen port host net advertise no_tls tls same_origin allowed_origins allowed_origin allow_origins
        allow_origin origins origin compression handshake_timeout jwt_cookie user_cookie pass_cookie token_cookie
        no_auth_user authorization authentication ping_interval headers""",
    ),
}
UNKNOWN = re.compile(r"unknown (?:field|configuration)", re.IGNORECASE)


@pytest.fixture(scope="session")
def newer() -> str:
    """The real server, 2.15."""
    try:
        return KINDS["nats-server-2.15"].command()[0]
    except BrokerUnavailable as error:
        if oracle_is_required():
            raise
        pytest.skip(str(error))


def _known(command: str, path: pathlib.Path, around: str, key: str) -> bool:
    path.write_text(around % f"{key}: xyzzy")
    done = subprocess.run([command, "-t", "-c", str(path)], capture_output=True, text=True, timeout=20, check=False)
    return not UNKNOWN.search(done.stderr)


@pytest.mark.parametrize("block", BLOCKS)
def test_each_key_is_one_of_the_real_server(block: str, newer: str, tmp_path: pathlib.Path) -> None:
    around, keys = BLOCKS[block]
    path = tmp_path / "t.conf"
    assert not _known(newer, path, around, NO_KEY)
    assert [key for key in keys.split() if not _known(newer, path, around, key)] == []


@pytest.mark.parametrize("block", BLOCKS)
def test_each_key_is_known_here(block: str, tmp_path: pathlib.Path) -> None:
    around, keys = BLOCKS[block]
    path = tmp_path / "t.conf"
    unknown = []
    for key in (*keys.split(), NO_KEY):
        path.write_text(around % f"{key}: xyzzy")
        try:
            build(parse(["-c", str(path)]))
        except ConfigError as error:
            if UNKNOWN.search(str(error)):
                unknown.append(key)
    assert unknown == [NO_KEY]


STRICTER = {
    "a long control line": "max_control_line: 1MB",
    "a password alone": "authorization { password: b }",
    "a leaf nodes' password alone": "leafnodes { port: -1, authorization { password: b } }",
    "a leaf nodes' user alone": "leafnodes { port: -1, authorization { user: a } }",
    "permissions of the only user": "authorization { user: a, password: b, permissions { publish: a } }",
    "users by certificates, without users": "tls { {pair}, verify_and_map: true }",
    "credentials that are not there": "leafnodes { remotes [ { url: 'nats://h:1', creds: /no/such.creds } ] }",
}


@pytest.mark.parametrize("kind", ["nats-server", "nats-server-2.15"])
@pytest.mark.parametrize("text", STRICTER.values(), ids=STRICTER.keys())
def test_what_is_stricter_here_is_accepted_there(kind: str, text: str, newer: str, tmp_path: pathlib.Path) -> None:
    """The rows of "Stricter" in DIFFERENCES.md about values that `-t` of the real servers accepts."""
    path = tmp_path / "t.conf"
    path.write_text("port: -1\n" + text.replace("{pair}", Authority(tmp_path).server().lines))
    command = newer if kind == "nats-server-2.15" else KINDS[kind].command()[0]
    done = subprocess.run([command, "-t", "-c", str(path)], capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 0, done.stderr
    with pytest.raises(ConfigError):
        build(parse(["-c", str(path)]))
