"""The listening sockets of one broker: one SO_REUSEPORT listener per shard, made here and alive as long as the router.

SO_REUSEPORT would silently share the port with another broker of the same user. So the first listener binds and listens
without it, which fails where anybody listens, and of several brokers that start at once only one gets the port; then it
gets the option, and the next one makes a group with it. It is no socket that is closed again: a client may already be
in its queue. No lock file is used, because other users of the host could take it. Not here: who accepts (a shard, or
router.listening.handoff), and which listener is chosen (router.listening.steering).
"""

from __future__ import annotations

import errno
import os
import time

TYPE_CHECKING = False  # type checkers take it as true; importing `typing` would slow the start
if TYPE_CHECKING:
    import socket
    from collections.abc import Collection

    from gnatswarm.broker.options import Options
else:
    import _socket as socket  # what `socket` makes enumerations of; adopt() makes its sockets of ours

# Connections that wait for a shard to accept them, per listener. The kernel cuts it to net.core.somaxconn, whose
# default has been this since Linux 5.4; uvloop's own default of 100 loses bursts of reconnecting clients.
BACKLOG = 4096

# Scripts kill -9 a broker and start the next one on the same port at once; its shards need a moment to die.
PORT_WAIT_S = 2.0
PORT_RETRY_S = 0.01

_EVERY_ADDRESS = ("", "0.0.0.0", "::")


class ListenError(Exception):
    """The configured address cannot be listened on; the text says which, why, and what to do."""


def address_text(host: str, port: int) -> str:
    """`host:port` for the log, IPv6 in brackets; an empty host is shown as 0.0.0.0."""
    host = host or "0.0.0.0"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class ListeningSockets:
    """Listening sockets on one address; index k is shard k's, for as long as the router lives."""

    may_refuse = False  # they are ours alone, and may be shut down

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self.sockets: list[socket.socket] = []

    @property
    def address(self) -> str:
        """The address for the log: HOST:PORT."""
        return address_text(self.host, self.port)

    def grow_to(self, count: int) -> None:
        """Open listeners until there are `count`; OSError when that is not possible."""
        raise NotImplementedError

    def shrink_to(self, count: int) -> None:
        """Close the last listeners; connections in their queues are reset. Only where steering does not work."""
        while len(self.sockets) > count:
            self.sockets.pop().close()

    def refuse(self, *, but: Collection[int] = ()) -> None:
        """Have new connections refused, where the sockets are ours alone to end, and close our copies.

        `but`: not those of these shards, which refuse connections themselves; a second call follows.
        """
        if not but:
            self.close()

    def close(self) -> None:
        """Close our copies. Whoever holds another copy (a shard, a service manager) keeps the port busy."""
        for sock in self.sockets:
            sock.close()
        self.sockets.clear()


class Listeners(ListeningSockets):
    """Listeners that the router opens itself. ListenError when the address is not available within `wait_s`.

    `early`: it has to be available at once, and `socket` need not be imported: adopt() is for later. `set_by`: the
    options that set host and port, for the error.
    """

    may_refuse = True

    def __init__(
        self,
        host: str,
        port: int,
        count: int,
        *,
        wait_s: float = PORT_WAIT_S,
        early: bool = False,
        set_by: tuple[str, str] = ("-a", "-p"),
    ) -> None:
        host = host.strip("[]")
        super().__init__(host, port)
        self._early = early
        self._family, self._bind_host = _resolve(host, port)
        try:
            if port <= 0:
                # The kernel picks a port on which nobody listens.
                self.sockets.append(self._open(0))
                self.port = self.sockets[0].getsockname()[1]
            else:
                self.sockets.append(self._first(time.monotonic() + (0.0 if early else wait_s)))
            self.grow_to(count)
        except OSError as error:
            self.close()
            raise ListenError(_explain(host, port, error, *set_by)) from None
        except ListenError:
            self.close()
            raise

    @classmethod
    def taken_over(cls, host: str, port: int, sockets: list[socket.socket]) -> Listeners:
        """Those that another router has opened; none where they are closed for good."""
        taken = cls.__new__(cls)
        ListeningSockets.__init__(taken, host, port)
        taken.sockets, taken._early = sockets, False
        if sockets:
            taken._family, taken._bind_host = sockets[0].family, str(sockets[0].getsockname()[0])
        return taken

    def grow_to(self, count: int) -> None:
        """Open listeners until there are `count`; OSError when descriptors run out."""
        try:
            while len(self.sockets) < count:
                self.sockets.append(self._open(self.port) if len(self.sockets) != 1 else self._second())
        finally:
            if not self._early:
                self.adopt()

    def adopt(self) -> None:
        """Make sockets of Python's `socket` of those that are none yet."""
        import socket as whole

        self._early = False
        for number, sock in enumerate(self.sockets):
            if not isinstance(sock, whole.socket):
                self.sockets[number] = adopted(sock)
                self.sockets[number].setblocking(False)

    def refuse(self, *, but: Collection[int] = ()) -> None:
        """Refuse new connections at once, although shards have copies; those that wait in the queues are reset."""
        import contextlib  # here: little is imported before the port is open

        for number, sock in enumerate(self.sockets):
            if number not in but:
                with contextlib.suppress(OSError):  # other kernels than Linux's may refuse that
                    sock.shutdown(socket.SHUT_RDWR)
        super().refuse(but=but)

    def _first(self, deadline: float) -> socket.socket:
        """A listener on a port on which nobody else listens. OSError where somebody still does after `deadline`."""
        while True:
            sock = tcp_socket(self._family)
            try:
                sock.bind((self._bind_host, self.port))
                sock.listen(BACKLOG)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                sock.setblocking(False)
                return sock
            except OSError as error:
                sock.close()
                if error.errno != errno.EADDRINUSE or time.monotonic() >= deadline:
                    raise
            time.sleep(PORT_RETRY_S)

    def _second(self) -> socket.socket:
        """A listener beside the first one."""
        try:
            return self._open(self.port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
        # The kernel, such as gVisor's, shares no port that was first bound without SO_REUSEPORT.
        self.sockets.pop().close()
        self.sockets.append(self._open(self.port))
        return self._open(self.port)

    def _open(self, port: int) -> socket.socket:
        sock = tcp_socket(self._family)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            sock.bind((self._bind_host, port))
            sock.listen(BACKLOG)
            sock.setblocking(False)
        except BaseException:
            sock.close()
            raise
        return sock


class Ports:
    """The listeners of one broker's ports: for clients, for WebSocket clients, and for other servers by kind."""

    def __init__(
        self, clients: ListeningSockets, websocket: Listeners | None = None, servers: dict[str, Listeners] | None = None
    ) -> None:
        self.clients = clients
        self.websocket = websocket
        self.servers: dict[str, Listeners] = {} if servers is None else servers  # as in Options.server_ports

    @classmethod
    def open(
        cls, options: Options, shards: int, *, clients: ListeningSockets | None = None, early: bool = False
    ) -> Ports:
        """All ports of these options; `clients` are open already. ListenError: none is open."""
        if clients is None:
            count = 1 if options.sharding.accept == "handoff" else shards
            clients = Listeners(options.host, options.port, count, early=early)
        ports = cls(clients)
        try:
            if options.websocket.port:
                host, port = options.websocket.host, options.websocket.port
                ports.websocket = Listeners(host, port, shards, early=early, set_by=set_in("websocket"))
            for kind, (host, port) in options.server_ports.items():
                ports.servers[kind] = Listeners(host, port, 1, early=early, set_by=set_in(kind))
        except ListenError:
            ports.close()
            raise
        return ports

    def adopt(self) -> None:
        """Make sockets of Python's `socket` of all that were opened early."""
        for group in (self.clients, self.websocket, *self.servers.values()):
            if isinstance(group, Listeners):
                group.adopt()

    def close(self) -> None:
        """Close our copies of all of them."""
        for group in (self.clients, self.websocket, *self.servers.values()):
            if group is not None:
                group.close()


def set_in(block: str) -> tuple[str, str]:
    """The options that set host and port in a block of the file."""
    return f"{block} {{ host: … }}", f"{block} {{ port: … }}"


def adopted(sock: socket.socket) -> socket.socket:
    """The same as a socket of Python's `socket`, in blocking mode."""
    import socket as whole

    return whole.socket(fileno=sock.detach())


def tcp_socket(family: int) -> socket.socket:
    """A socket to bind, which also takes what comes over IPv4."""
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    return sock


def has_ipv6() -> bool:
    """Whether a socket can listen on every address of both kinds."""
    probe = None
    try:
        probe = tcp_socket(socket.AF_INET6)
        probe.bind(("::", 0))
    except OSError:
        return False
    finally:
        if probe is not None:
            probe.close()
    return True


def _resolve(host: str, port: int) -> tuple[int, str]:
    """Family and address to bind. Every address is one dual-stack socket where there is IPv6; a name prefers IPv4."""
    if host in _EVERY_ADDRESS:
        return (socket.AF_INET6, "::") if has_ipv6() else (socket.AF_INET, "0.0.0.0")
    try:
        # The codec for other names imports more than all the rest until the port is open.
        name = host.encode() if host.isascii() else host
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ListenError(
            f"cannot listen on {address_text(host, max(port, 0))}: no address for this name ({why})"
        ) from None
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)
    return found[0][0], str(found[0][4][0])


def _explain(host: str, port: int, error: OSError, host_option: str, port_option: str) -> str:
    at = address_text(host, port)
    where = f"cannot listen on {at}"
    if error.errno == errno.EADDRINUSE:
        any_free = port_option.replace("…", "-1") if "…" in port_option else f"{port_option} -1"
        return (
            f'Error listening on port: {at}, "listen tcp {at}: bind: address already in use" '  # tools look for it
            "— the port is in use by another process. "
            f"Find it with `ss -ltnp 'sport = :{port}'`, or choose another port with {port_option}"
            f" ({any_free}: any free one)"
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return (
            f"{where}: this host has no such address. Choose one of `ip address` with {host_option},"
            " or none for all of them"
        )
    if error.errno == errno.EACCES:
        return f"{where}: no permission for ports under 1024. Choose a higher one with {port_option}"
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return f"{where}: no file descriptors left. Raise the limit with `ulimit -n`"
    return f"{where}: {os.strerror(error.errno or 0)}"
