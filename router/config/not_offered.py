"""Options and flags of nats-server that this broker does not support: one table for each consequence.

The rule: an option that only opens a port or adds a feature is ignored, with a line in the log at start. An option that
restricts access is an error with its place, so that a half-understood configuration never leaves a broker open. When
one of them becomes supported, remove it here and add its key to `router.config.option_keys`.
"""

from __future__ import annotations

# Top-level keys that restrict access. An empty block restricts nothing and is accepted.
RESTRICTS = {
    "operator": "operators and their JWTs",
    "operators": "operators and their JWTs",
    "root": "operators and their JWTs",
    "roots": "operators and their JWTs",
    "root_operator": "operators and their JWTs",
    "root_operators": "operators and their JWTs",
    "trusted": "trusted operator keys",
    "trusted_keys": "trusted operator keys",
    "resolver": "account resolvers",
    "account_resolver": "account resolvers",
    "accounts_resolver": "account resolvers",
    "resolver_tls": "account resolvers",
    "resolver_preload": "account resolvers",
    "resolver_pinned_accounts": "account resolvers",
    "auth_callout": "authentication by a service",
    "proxies": "trusted proxies that sign their connections",
}

# The same inside `authorization`, and in each user.
RESTRICTS_IN_AUTHORIZATION = {
    "auth_callout": "authentication by a service",
    "proxy_required": "users that must come through a trusted proxy",
    "account": "users that name their account (write the user into the account's block)",
}

# The same inside a `tls` block.
RESTRICTS_IN_TLS = {
    "verify_cert_and_check_known_urls": "certificates that are compared with known URLs",
    "cert_store": "certificate stores of Windows",
    "cert_match": "certificate stores of Windows",
    "cert_match_by": "certificate stores of Windows",
    "cert_match_skip_invalid": "certificate stores of Windows",
    "ca_certs_match": "certificate stores of Windows",
    "ocsp_peer": "OCSP checks of certificates",
}

# The same inside a `websocket` block.
RESTRICTS_IN_WEBSOCKET = {
    "jwt_cookie": "JWTs in cookies",
}

# The same in an account's exports and imports: a token (a JWT) would decide which account may import.
RESTRICTS_IN_EXCHANGE = {
    "token_req": "exports that require an activation token (a JWT)",
    "token_required": "exports that require an activation token (a JWT)",
    "activation": "imports with an activation token (a JWT)",
    "token": "imports with an activation token (a JWT)",
}

# Keys of an account that add a feature.
OPENS_IN_ACCOUNTS = {
    "jetstream": "in a cluster, the account's clients use the JetStream of members that have it",
}

# Keys of a `leafnodes` block that have no effect.
NO_EFFECT_IN_LEAFNODES = {
    "compression": "leaf node connections are not compressed",
}
# The same in each of its remotes.
NO_EFFECT_IN_REMOTE = {
    "jetstream_cluster_migrate": "nothing is stored here",
    "js_cluster_migrate": "nothing is stored here",
    "compression": "leaf node connections are not compressed",
    "write_deadline": "the broker's own counts",
}
# … and of its `tls` block.
NO_EFFECT_IN_REMOTE_TLS = {
    "verify_and_map": "a hub's certificate selects no user, nor does it for nats-server",
    "connection_rate_limit": "handshakes with hubs are not limited, nor are they by nats-server",
}
# Keys of a remote that change how the hub is reached.
RESTRICTS_IN_REMOTE = {
    "proxy": "proxies on the way to the hub",
}

# Keys of a `cluster` block that have no effect.
NO_EFFECT_IN_CLUSTER = {
    "pool_size": "there is one connection to each member; members that have more use one to this broker",
    "accounts": "there is one connection to each member for all accounts",
    "compression": "routes are not compressed",
}
# … and of its `tls` block.
NO_EFFECT_IN_CLUSTER_TLS = {
    "connection_rate_limit": "handshakes with members are not limited, nor are they by nats-server",
}

# Top-level keys that open a port or add a feature.
OPENS = {
    "gateway": "gateways to other clusters",
    "mqtt": "MQTT connections",
    "jetstream": "JetStream: nothing is stored",
    "store_dir": "JetStream: nothing is stored",
    "storedir": "JetStream: nothing is stored",
    "default_js_domain": "JetStream: nothing is stored",
    "prof_port": "a profiling port",
    "ocsp": "OCSP stapling",
    "ocsp_cache": "OCSP stapling",
    "prof_block_rate": "a profiling port",
    "default_sentinel": "a JWT for clients without credentials",
    "feature_flags": "switches of JetStream",
}

# Top-level keys for internals that are built differently here.
NO_EFFECT = {
    "disable_sublist_cache": "the match cache is always on",
    "no_sublist_cache": "the match cache is always on",
    "connect_error_reports": "of failures to reach a server the first is logged, and every sixtieth",
    "reconnect_error_reports": "of failures to reach a server the first is logged, and every sixtieth",
    "no_system_account": "a system account without users publishes nothing; monitoring pages still show it",
    "no_system": "a system account without users publishes nothing; monitoring pages still show it",
    "no_sys_acc": "a system account without users publishes nothing; monitoring pages still show it",
    "no_fast_producer_stall": "a publisher waits at most 0.1 s at a time for a slow subscriber, and nothing is dropped",
}

# The real server checks that these are blocks; so do we, so that a typing error is found.
WANTS_BLOCK = frozenset({"gateway", "mqtt"})

# Flags of the same kinds.
FLAGS_OPEN = {
    "js": OPENS["jetstream"],
    "sd": OPENS["jetstream"],
    "profile": OPENS["prof_port"],
}
