"""What a running broker leaves in the file system for others to find, and takes away when it goes.

Its private directory (operator socket, link sockets), another one for the links where the operator names a base for
them, the pid file and the ports file. Sockets of clients are `router.listeners`, log files `shards.logs`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from shards import linkdir

if TYPE_CHECKING:
    import socket

    from broker.options import Options
    from router.doors import Doors
    from router.portsfile import TemporaryFile


class Footprint:
    """Made with its directories, each announced before it is there; LinkDirectoryError when they cannot be had."""

    def __init__(
        self,
        options: Options,
        *,
        port: int,
        server_name: str,
        announce: Callable[[str], None],
    ) -> None:
        self._options = options
        self._pid_file: TemporaryFile | None = None
        self._ports_file: TemporaryFile | None = None
        owner = linkdir.Owner(os.getpid(), port, server_name)
        own = linkdir.LinkDirectory(linkdir.default_base(), owner, announce)
        self._directories = [own]
        self.operator_path = os.path.join(own.path, linkdir.OPERATOR_SOCKET)
        self.link_dir = own.path
        if options.swarm.link_dir:
            try:
                links = linkdir.LinkDirectory(options.swarm.link_dir, owner, announce)
            except linkdir.LinkDirectoryError:
                own.remove()
                raise
            self._directories.append(links)
            self.link_dir = links.path

    def write_pid_file(self, path: str) -> None:
        """Our pid, in place of the pid file there was; "" is none. OSError when it cannot be written."""
        old, self._pid_file = self._pid_file, None
        if old is not None:
            old.remove()
        if path:
            from router.portsfile import write_pid_file

            self._pid_file = write_pid_file(path)

    def write_ports_file(self, directory: str, program: str, doors: Doors, monitor: socket.socket | None) -> None:
        """The ports that answer now; "" is none. OSError when it cannot be written."""
        if directory:
            from router import monitor_socket
            from router.portsfile import Listening, write_ports_file

            pages = (
                None
                if monitor is None
                else Listening(
                    *monitor_socket.address(monitor, self._options), monitor_socket.monitoring_scheme(self._options)
                )
            )
            clients, websocket = doors.clients, doors.websocket
            self._ports_file = write_ports_file(
                directory,
                program,
                nats=Listening(clients.host, clients.port, "tls" if self._options.tls.is_on else ""),
                monitoring=pages,
                websocket=Listening(websocket.host, websocket.port, doors.websocket_scheme) if websocket else None,
            )

    def remove(self) -> None:
        """Everything goes."""
        for file in (self._pid_file, self._ports_file):
            if file is not None:
                file.remove()
        for directory in self._directories:
            directory.remove()
        self._directories.clear()
