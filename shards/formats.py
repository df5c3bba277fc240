"""The versions of everything that processes of one broker say to each other, for `gnatswarm upgrade`.

Read when it is asked for, in the process that runs the code. The router's record is the router's (`RECORD_VERSION`).
"""

from __future__ import annotations

from gnatswarm.broker import frozen
from gnatswarm.shards.boundary import control, keeping, page
from gnatswarm.shards.clients import moved
from gnatswarm.shards.links import links
from gnatswarm.shards.moving import move_channel


def versions() -> dict[str, int]:
    """By the formats' names."""
    return {
        "control messages": control.CONTROL_VERSION,
        "links between shards": links.LINK_VERSION,
        "ways for clients": move_channel.CHANNEL_VERSION,
        "records of clients": frozen.MOVE_RECORD_VERSION,
        "who clients are": moved.CLIENT_RECORD_VERSION,
        "shared page": page.VERSION,
        "keeper's packets": keeping.KEEPING_VERSION,
    }
