"""How many descriptors the broker's processes may have open: a shard needs one per client. Set before shards start."""

from __future__ import annotations

import resource

from gnatswarm.broker.bounds import NO_MAX_CONNECTIONS

TYPE_CHECKING = False  # type checkers take it as true; importing `typing` would slow the start
if TYPE_CHECKING:
    from gnatswarm.broker.options import Options

# Counted in idle processes, plus some for files being imported or written and for an operator's connection.
ROUTER_OWN = 36  # 21 were counted, with one shard
SHARD_OWN = 26  # 19 were counted, without siblings; statistics and TLS open files besides
ROUTER_FOR_SHARD = 3  # its listener, its control channel, its pidfd
# A broker with fewer clients per shard than this is useless.
LEAST_CLIENTS = 8
# The default of max_connections is large. A broker with room for half of it needs no warning at every start.
FAR_BELOW = 2


def raise_limit() -> None:
    """Raise the soft limit to the hard limit. It is low only for programs that use select(), which we do not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError) as error:
            import logging  # the port is open before this is imported

            logging.getLogger("gnatswarm.router").debug("The limit of %d open files stays: %s", soft, error)


def needed(options: Options, shards: int) -> int:
    """The smallest limit with which this many shards, and their router, can serve some clients."""
    has_websocket = bool(options.websocket.port)
    for_shard = ROUTER_FOR_SHARD + has_websocket + 2 * (options.sharding.accept == "handoff")
    router = ROUTER_OWN + for_shard * shards + len(options.server_ports)
    shard = SHARD_OWN + has_websocket + (shards - 1) + LEAST_CLIENTS
    # A shard reserves an eighth for links, and sends new clients to other shards when a sixteenth is left.
    return max(router, -(-shard * 16 // 13))


def clients_wanted(options: Options) -> tuple[int, str]:
    """How many clients there is to be room for, and max_connections as it is shown. Without a limit: the default."""
    most = options.limits.max_connections
    if most != NO_MAX_CONNECTIONS:
        return most, str(most)
    from gnatswarm.broker.limits import Limits

    return Limits().max_connections, "without limit"


def scarcity(options: Options, shards: int) -> str:
    """A warning that far fewer clients fit than max_connections allows, with advice; "": enough of them fit."""
    limit, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted, shown = clients_wanted(options)
    if limit == resource.RLIM_INFINITY or wanted <= 0:
        return ""
    room = max(0, limit * 13 // 16 - SHARD_OWN - bool(options.websocket.port) - (shards - 1)) * shards
    if room * FAR_BELOW >= wanted:
        return ""
    least = -(-(wanted // shards + SHARD_OWN + shards) * 16 // 13)
    return (
        f"max_connections is {shown}, but about {room} clients fit: each process may have {limit} file descriptors. "
        f"Raise the limit to {least} with `ulimit -n` (LimitNOFILE= in a unit file), or lower max_connections"
    )


def shortage(options: Options, shards: int) -> str:
    """Why this many shards cannot run with the present limit, and what to do; "" when they can."""
    limit, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    least = needed(options, shards)
    if limit == resource.RLIM_INFINITY or limit >= least:
        return ""
    what, fewer = (f"{shards} shards", ", or run fewer shards") if shards > 1 else ("one shard", "")
    return (
        f"too few file descriptors: each process may have {limit}, a broker of {what} needs at least {least}, and one "
        f"more for each client. Raise the limit with `ulimit -n` (LimitNOFILE= in a unit file){fewer}"
    )
