"""Sockets that a service manager opened for us: socket activation, sd_listen_fds(3).

The service manager's sockets listen also while no broker runs, so that a restart refuses no connection. If there is
one socket for clients, the router accepts on it and hands connections to the shards (accept mode "handoff"). If there
are several with SO_REUSEPORT on one address, each shard gets one, like our own listeners; no further ones can be added,
because all sockets of such a group must belong to one user, and the service manager is another. The sockets override
host, port, accept and shards of the configuration.
"""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping

import msgspec

from gnatswarm.broker.options import Options
from gnatswarm.router.listening.listeners import BACKLOG, ListenError, ListeningSockets, address_text

FIRST_FD = 3  # SD_LISTEN_FDS_START
# FileDescriptorName= tells the purpose of a socket; without it systemd sends the name of the unit.
MONITORING = "monitoring"
MOST_SOCKETS = 64  # a socket for each of 62 shards, one for the pages, and one too many


class InheritedListeners(ListeningSockets):
    """Listeners that a service manager passed in. It keeps copies, with the connections that wait in them."""

    def __init__(self, sockets: list[socket.socket]) -> None:
        super().__init__(*_place(sockets[0]))
        self.sockets = sockets

    def grow_to(self, count: int) -> None:
        """Opens nothing, because no sockets can be added to those passed in. OSError if there are fewer."""
        if count > len(self.sockets):
            raise OSError(0, f"the service manager opened {len(self.sockets)} sockets, one for each shard")


class Inherited:
    """The sockets passed in: those for clients, and at most one for the monitoring pages."""

    def __init__(self, clients: list[socket.socket], monitoring: socket.socket | None = None) -> None:
        self.clients = clients
        self.monitoring = monitoring

    @classmethod
    def take(cls, environment: MutableMapping[str, str], pid: int) -> Inherited | None:
        """Take the sockets that the environment names for this process; None: there are none. ListenError: unusable."""
        meant = environment.pop("LISTEN_PID", "")
        count = environment.pop("LISTEN_FDS", "")
        names = environment.pop("LISTEN_FDNAMES", "").split(":")
        environment.pop("LISTEN_PIDFDID", None)
        if meant != str(pid) or not count.isascii() or not count.isdigit() or int(count[:9]) == 0:
            return None
        if int(count[:9]) > MOST_SOCKETS:
            raise ListenError(f"{count} sockets were passed in (LISTEN_FDS); there may be one for each of 62 shards")
        clients: list[socket.socket] = []
        monitoring: list[socket.socket] = []
        for number in range(int(count)):
            descriptor = FIRST_FD + number
            try:
                # Only shards that are given the descriptor may have it, no other child processes.
                os.set_inheritable(descriptor, False)
                sock = socket.socket(fileno=descriptor)
                is_listening = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            except OSError as error:
                raise ListenError(f"descriptor {descriptor} was passed in and is no socket: {error.strerror}") from None
            if sock.family not in (socket.AF_INET, socket.AF_INET6) or not is_listening:
                raise ListenError(f"descriptor {descriptor} was passed in and is not listening on a TCP port")
            sock.setblocking(False)
            is_monitoring = number < len(names) and names[number] == MONITORING
            (monitoring if is_monitoring else clients).append(sock)
        if len(monitoring) > 1:
            raise ListenError(f"{len(monitoring)} sockets named {MONITORING} were passed in; one is enough")
        _check_clients(clients)
        return cls(clients, monitoring[0] if monitoring else None)

    def adapt(self, options: Options) -> Options:
        """The options, changed to match the sockets. ListenError when they contradict each other."""
        if self.clients:
            host, port = _place(self.clients[0])
            sharding = options.sharding
            if len(self.clients) == 1:
                sharding = msgspec.structs.replace(sharding, accept="handoff")
            elif sharding.shards not in (0, len(self.clients)):
                raise ListenError(
                    f"shards: {sharding.shards}, but the service manager opened {len(self.clients)} sockets: one for "
                    "each shard is needed, or a single one for all (and no ReusePort=)"
                )
            else:
                sharding = msgspec.structs.replace(sharding, accept="reuseport", shards=len(self.clients))
            options = msgspec.structs.replace(options, host=host, port=port, sharding=sharding)
        if self.monitoring is not None:
            host, port = _place(self.monitoring)
            ports = {"https_port" if options.https_port else "http_port": port}
            options = msgspec.structs.replace(options, http_host=host, **ports)
        return options


def _check_clients(clients: list[socket.socket]) -> None:
    places = {_place(sock) for sock in clients}
    if len(places) > 1:
        shown = ", ".join(sorted(address_text(*place) for place in places))
        raise ListenError(f"sockets of several addresses were passed in ({shown}); clients have one")
    if len(clients) > 1 and not all(sock.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT) for sock in clients):
        raise ListenError("several sockets of one address were passed in, without ReusePort=: they are one port twice")
    for sock in clients:
        # systemd's Backlog= is 128 before version 254. The kernel takes a later listen() as a new length.
        sock.listen(BACKLOG)


def _place(sock: socket.socket) -> tuple[str, int]:
    host, port = sock.getsockname()[:2]
    return str(host), int(port)
