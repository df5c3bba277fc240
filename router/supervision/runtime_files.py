"""The runtime files of a broker: made while it runs, and removed at its end.

Its private directory (operator socket, link sockets), a second one for link sockets if `link_dir` is configured, the
pid file and the ports file. `mend()` restores directories and operator socket when they are removed while it runs.
Not here: clients' sockets (`router.listening.listeners`) and log files (`shards.boundary.logs`).
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from gnatswarm.shards.boundary import linkdir

if TYPE_CHECKING:
    from gnatswarm.broker.options import Options
    from gnatswarm.router.listening.listener_groups import ListenerGroups
    from gnatswarm.router.supervision.portsfile import TemporaryFile


log = logging.getLogger("gnatswarm.router")


OPERATORS_BACKLOG = 128
# Names of a link directory's descriptors, in the order of `LinkDirectory.descriptors`.
_PARTS = ("base", "directory", "owner")


class RuntimeFiles:
    """The constructor makes the directories, or raises LinkDirectoryError. Each path is announced before it exists.

    `pid` is the broker's. `left`: paths of directories that another router has made, and descriptors by name.
    """

    def __init__(
        self,
        options: Options,
        *,
        pid: int,
        port: int,
        server_name: str,
        announce: Callable[[str], None],
        left: tuple[list[str], Mapping[str, int]] | None = None,
    ) -> None:
        self._options = options
        self._pid = pid
        self._announce = announce
        self._doors: set[str] = set()  # sockets for moves that were there when their directory was looked at
        self._pid_file: TemporaryFile | None = None
        self._ports_file: TemporaryFile | None = None
        owner = linkdir.Owner(pid, port, server_name)
        if left is not None:
            self._take_over(owner, *left)
            return
        own = linkdir.LinkDirectory(linkdir.default_base(), owner, announce)
        self._directories = [own]
        self._problem = ""  # why mend() failed last; "": it did not
        self._operator_path = os.path.join(own.path, linkdir.OPERATOR_SOCKET)
        try:
            self.operators = listen_for_operators(self._operator_path)
        except OSError as error:
            own.remove()
            raise linkdir.LinkDirectoryError(f"cannot listen at {self._operator_path}: {error.strerror}") from None
        self.link_dir = own.path
        if options.sharding.link_dir:
            try:
                links = linkdir.LinkDirectory(options.sharding.link_dir, owner, announce)
            except linkdir.LinkDirectoryError:
                self.operators.close()
                own.remove()
                raise
            self._directories.append(links)
            self.link_dir = links.path

    def _take_over(self, owner: linkdir.Owner, paths: list[str], held: Mapping[str, int]) -> None:
        self._directories = [
            linkdir.LinkDirectory.taken_over(path, owner, [held.get(f"directory.{n}.{part}", -1) for part in _PARTS])
            for n, path in enumerate(paths)
        ]
        self._problem = ""
        self._operator_path = os.path.join(paths[0], linkdir.OPERATOR_SOCKET)
        self.operators = socket.socket(fileno=held["operators"])
        self.link_dir = paths[-1]

    @property
    def directories(self) -> list[str]:
        """Their paths: our own, then the one for links if there is one."""
        return [directory.path for directory in self._directories]

    def holdings(self) -> dict[str, int]:
        """Descriptors that another router needs, by names."""
        parts = {
            f"directory.{n}.{part}": descriptor
            for n, directory in enumerate(self._directories)
            for part, descriptor in zip(_PARTS, directory.descriptors, strict=True)
            if descriptor >= 0
        }
        return {"operators": self.operators.fileno(), **parts}

    def take_over_files(self, program: str) -> None:
        """Remove at the end the pid file and the ports file that another router has written."""
        from gnatswarm.router.supervision.portsfile import TemporaryFile, ports_file_path

        if self._options.pid_file:
            self._pid_file = TemporaryFile.taken_over(self._options.pid_file, str(self._pid))
        if self._options.ports_file_dir:
            path = ports_file_path(self._options.ports_file_dir, program, self._pid)
            self._ports_file = TemporaryFile.taken_over(path)

    def mend(self) -> bool:
        """Restore removed directories and the operator socket; returns whether `operators` is a new socket.

        Link sockets are restored by the shards: see missing_links(). Cheap: to be called several times a second.
        """
        what, problem, is_other = "Somebody removed what this broker needs", "", False
        try:
            for directory in self._directories:
                for path in directory.mend():
                    log.warning("Somebody removed %s, which this broker needs; it is made again", path)
            if os.path.basename(self._operator_path) not in self._directories[0].names():
                # OperatorServer closes the old socket.
                self.operators, is_other = listen_for_operators(self._operator_path), True
                log.warning("Somebody removed the operators' socket %s; it is made again", self._operator_path)
        except linkdir.LinkDirectoryError as error:
            problem = str(error)
        except OSError as error:
            problem = f"cannot make {self._operator_path} again: {error.strerror}"
            if error.errno in (errno.EMFILE, errno.ENFILE) and error.filename:  # opened to look what it has
                what, problem = "Cannot look after this broker's files", f"{error.filename}: {error.strerror}"
        if problem and problem != self._problem:
            log.error("%s: %s. Trying again until it can be had", what, problem)
        self._problem = problem
        return is_other

    def missing_links(self, paths: Mapping[str, bool]) -> list[str]:
        """Those of these link sockets whose files are gone, or the sockets for moves beside them.

        Of each, whether it certainly has the latter; else it is missed where it was there once. Empty while their
        directory itself is missing.
        """
        try:
            names = set(self._directories[-1].names())
        except OSError:
            return []
        doors = {path: os.path.basename(linkdir.path_for_moves(path)) for path in paths}
        known = self._doors | names
        self._doors = {door for path, door in doors.items() if paths[path] or door in known}
        return [
            path for path, door in doors.items() if os.path.basename(path) not in names or door in self._doors - names
        ]

    def write_pid_file(self, path: str) -> None:
        """Write the pid file, which replaces the last one; path "": none. OSError, and the last one stays."""
        new = None
        if path:
            from gnatswarm.router.supervision.portsfile import write_pid_file

            self._announce(os.path.abspath(path))
            new = write_pid_file(path, self._pid)
        old, self._pid_file = self._pid_file, new
        if old is not None and (new is None or not new.is_same_as(old)):
            old.remove()

    def write_ports_file(
        self, directory: str, program: str, listener_groups: ListenerGroups, monitor: socket.socket | None
    ) -> None:
        """Write the ports file; directory "": none. OSError when it cannot be written."""
        if directory:
            from gnatswarm.router.listening import monitor_socket
            from gnatswarm.router.supervision.portsfile import Listening, ports_file_path, write_ports_file

            pages = (
                None
                if monitor is None
                else Listening(
                    *monitor_socket.address(monitor, self._options), monitor_socket.monitoring_scheme(self._options)
                )
            )
            clients, websocket = listener_groups.clients, listener_groups.websocket
            self._announce(os.path.abspath(ports_file_path(directory, program, self._pid)))
            self._ports_file = write_ports_file(
                directory,
                program,
                nats=Listening(clients.host, clients.port, "tls" if self._options.tls.is_on else ""),
                monitoring=pages,
                websocket=Listening(websocket.host, websocket.port, listener_groups.websocket_scheme)
                if websocket
                else None,
                servers={kind: Listening(one.host, one.port) for kind, one in listener_groups.servers.items()},
                pid=self._pid,
            )

    def remove(self) -> None:
        """Remove everything."""
        for file in (self._pid_file, self._ports_file):
            if file is not None:
                file.remove()
        self.operators.close()
        for directory in self._directories:
            directory.remove()
        self._directories.clear()


def listen_for_operators(path: str) -> socket.socket:
    """A listening socket for operators; requests wait until it is served. OSError."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        sock.bind(path)
        os.chmod(path, 0o600)  # its directory is private already; the file's own mode shows it, too
        sock.listen(OPERATORS_BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock
