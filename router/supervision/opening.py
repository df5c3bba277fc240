"""The first step of a start: how many shards there will be, and the ports on which they will serve.

Done before the rest of the router is imported: whoever connects from then on waits in a listener's queue, and is
served by the first shard that is ready. So a script that starts a broker and connects at once is not refused. Most
often `router.start_early` has done it earlier still, and then these are its ports.
"""

from __future__ import annotations

from gnatswarm.router.config.cores import MAX_SHARDS, usable_cores
from gnatswarm.router.listening import monitor_socket
from gnatswarm.router.listening.listeners import ListenError
from gnatswarm.router.supervision import descriptors

TYPE_CHECKING = False  # type checkers take it as true; importing `typing` would slow the start
if TYPE_CHECKING:
    import socket

    from gnatswarm.broker.options import Options
    from gnatswarm.router.listening.head_start import HeadStart
    from gnatswarm.router.listening.inherited import Inherited

# In the gateway other servers have the numbers from 32 on (broker.exchange): so shards have those below, and one of
# them stays free for a rolling restart.
MOST_SHARDS_BESIDE_GATEWAY = 31


class CannotStart(Exception):
    """The broker cannot be started with this configuration; the text is for the operator."""


class Opened:
    """Listening sockets, open until they are closed, for this many shards. CannotStart: none is open.

    `inherited` are sockets to serve on in place of our own, `begun` those that are open already.
    """

    def __init__(self, options: Options, inherited: Inherited | None = None, begun: HeadStart | None = None) -> None:
        from gnatswarm.router.listening.listener_groups import ListenerGroups  # the head start does without

        self.shards = wanted_shards(options)
        passed_in = inherited.monitoring if inherited is not None else None
        is_handoff = options.sharding.accept == "handoff"
        self.monitor_socket: socket.socket | None = None
        if begun is not None:
            begun.adopt()
        try:
            self.monitor_socket = passed_in or (monitor_socket.listen(options) if begun is None else begun.monitor)
            self.listener_groups = ListenerGroups(
                options,
                self.shards,
                is_handoff=is_handoff,
                inherited=inherited,
                taken_over=None if begun is None else begun.ports,
            )
        except ListenError as error:
            if self.monitor_socket is not None:
                self.monitor_socket.close()
            raise CannotStart(str(error)) from None

    def close(self) -> None:
        """Close all of them."""
        self.listener_groups.close()
        if self.monitor_socket is not None:
            self.monitor_socket.close()


def most_shards(options: Options) -> int:
    """How many shards there may be."""
    return MOST_SHARDS_BESIDE_GATEWAY if options.has_gateway else MAX_SHARDS


def why_most(options: Options) -> str:
    """Why there may not be more shards, for an error; "": it is the most there can be."""
    return " (with leafnodes or cluster)" if most_shards(options) < MAX_SHARDS else ""


def shards_of(options: Options) -> int:
    """How many shards the options ask for: 0 is one for each core, and no more than there may be."""
    return options.sharding.shards or min(usable_cores(), most_shards(options))


def wanted_shards(options: Options) -> int:
    """As many as the options say, else one for each core. CannotStart where so many cannot run."""
    most = most_shards(options)
    wanted = shards_of(options)
    if not 1 <= wanted <= most:
        raise CannotStart(f"shards must be 1..{most}, not {wanted}" + why_most(options))
    if options.sharding.accept not in ("reuseport", "handoff"):
        raise CannotStart(f"accept must be 'reuseport' or 'handoff', not {options.sharding.accept!r}")
    shortage = descriptors.shortage(options, wanted)
    if shortage:
        raise CannotStart(shortage)
    return wanted
