"""The first lines of a broker's log, as in nats-server: version, ids, configuration file, warnings about passwords."""

from __future__ import annotations

import logging

from gnatswarm.broker.options import Options
from gnatswarm.broker.version import OWN_VERSION

log = logging.getLogger("gnatswarm.router")


def greet(options: Options, program: str, server_id: str, server_name: str) -> None:
    """Log these lines; to be called before sockets listen."""
    log.info("Starting %s", program)
    log.info("  Version:  %s", options.server_version if program == "nats-server" else OWN_VERSION)
    if program == "nats-server":
        log.info("  Git:      [not set]")  # as of a nats-server that a distribution has built
    # (2.15 does not say here, nor in /varz, that a leaf node is a cluster of its own name)
    cluster = options.cluster.name if options.is_like_newer else options.stated_cluster
    if not cluster and options.cluster.port:
        from gnatswarm.broker.info import cluster_name  # (reads hashlib: seldom at a start)

        cluster = cluster_name("", server_id)
    if cluster:
        log.info("  Cluster:  %s", cluster)
    log.info("  Name:     %s", server_name)
    log.info("  ID:       %s", server_id)
    if has_plain_password(options):
        log.warning("Plaintext passwords detected, use nkeys or bcrypt")
    if options.config_file:
        digest = f" ({options.config_digest})" if options.config_digest else ""
        log.info("Using configuration file: %s%s", options.config_file, digest)


def has_plain_password(options: Options) -> bool:
    """Whether the configuration has a plain-text password; tokens do not count, as in nats-server."""
    passwords = [word for word in (options.auth_password, *(user.password for user in options.users)) if word]
    if not passwords:
        return False
    from gnatswarm.broker.access.password_hash import is_hashed

    return any(not is_hashed(password) for password in passwords)
