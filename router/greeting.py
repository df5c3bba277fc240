"""The first lines of a broker's log, as nats-server's: what starts, under which id, from which file, how safely."""

from __future__ import annotations

import logging

from broker.auth import is_hashed
from broker.options import Options
from broker.version import OWN_VERSION, SERVER_VERSION

log = logging.getLogger("gnatswarm.router")


def greet(options: Options, program: str, server_id: str, server_name: str) -> None:
    """Before anything is listened on."""
    log.info("Starting %s", program)
    log.info("  Version:  %s", SERVER_VERSION if program == "nats-server" else OWN_VERSION)
    log.info("  Name:     %s", server_name)
    log.info("  ID:       %s", server_id)
    if has_plain_password(options):
        log.warning("Plaintext passwords detected, use nkeys or bcrypt")
    if options.config_file:
        log.info("Using configuration file: %s", options.config_file)


def has_plain_password(options: Options) -> bool:
    """Whether a password stands in the configuration as clients say it; of tokens nothing is said there either."""
    passwords = [options.auth_password, *(user.password for user in options.users)]
    return any(password and not is_hashed(password) for password in passwords)
