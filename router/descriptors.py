"""How many descriptors the broker's processes may have open: a shard needs one per client. Set before shards start."""

from __future__ import annotations

import logging
import resource

log = logging.getLogger("gnatswarm.router")


def raise_limit() -> None:
    """As far as it goes. Soft limits are low for programs that use select(), which none of ours does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError) as error:
            log.debug("The limit of %d open files stays: %s", soft, error)
