"""The first lines of a broker's log, as in nats-server: version, ids, configuration file, warnings about passwords."""

from __future__ import annotations

import logging

from gnatswarm.broker.access.auth import is_hashed
from gnatswarm.broker.options import Options
from gnatswarm.broker.version import OWN_VERSION, SERVER_VERSION

log = logging.getLogger("gnatswarm.router")


def greet(options: Options, program: str, server_id: str, server_name: str) -> None:
    """Log these lines; to be called before sockets listen."""
    log.info("Starting %s", program)
    log.info("  Version:  %s", SERVER_VERSION if program == "nats-server" else OWN_VERSION)
    log.info("  Name:     %s", server_name)
    log.info("  ID:       %s", server_id)
    if has_plain_password(options):
        log.warning("Plaintext passwords detected, use nkeys or bcrypt")
    if options.config_file:
        log.info("Using configuration file: %s", options.config_file)


def has_log_in(options: Options) -> bool:
    """Whether clients have to log in, or are somebody with permissions of his own if they do not."""
    return bool(options.auth_token or options.auth_user or options.users)


def has_plain_password(options: Options) -> bool:
    """Whether the configuration has a plain-text password; tokens do not count, as in nats-server."""
    passwords = [options.auth_password, *(user.password for user in options.users)]
    return any(password and not is_hashed(password) for password in passwords)
