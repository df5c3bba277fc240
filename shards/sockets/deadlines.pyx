# cython: language_level=3, boundscheck=False, wraparound=False
"""When clients are pinged, and when sockets are closed because time is up: log-in, pings, write deadline, last words.

It goes through the reactor's sockets a share at a time, and pings few of them in one turn; how often is `lookout`'s to
say. Not here: how long a handshake may take (the socket's own check_opening). Cost: a few dozen instructions for a
socket.
"""

from gnatswarm.broker.connection cimport ClientConnection
from gnatswarm.broker.outbuf cimport CLOSE_SLOW_CONSUMER_WRITE_DEADLINE, out_condemn, out_pending
from gnatswarm.broker.serverlink cimport ServerLink
from gnatswarm.broker.serverwire cimport DIALECT_ROUTE
from gnatswarm.shards.sockets.source cimport Source

from gnatswarm.broker import errors

cdef enum:
    FIRST_PING_US = 2000000         # at this age a client's round trip is first measured, if it has said something
    MOST_SLOW = 4096                # slow consumers that are remembered, so that each is told of once
    LEAST_SWEPT = 64                # sockets of one sweep, if there are so many
    MOST_TOLD = 32                  # clients that are pinged or ended in one turn, some 10 µs each: others wait
    REPLIES_A_LOOK = 1024           # of a client, replies that it may give no more, that are forgotten in one sweep


cdef inline void note_use(Socket socket, ClientConnection client) noexcept:
    """Note when the client last did something other than answer pings."""
    cdef uint64_t work = client.in_msgs + client.out.msgs + client.subs.count
    if work != socket.work:
        socket.work = work
        socket.used_us = max(client.active_us, client.out.taken_us)


cdef int note_slow(Deadlines self, Socket socket, ClientConnection client) except -1:
    """A client that stays past its write deadline (write_timeout: retry): count and tell it once for each time."""
    if self.slow.get(client.cid) == client.out.taken_us:
        return 0
    if len(self.slow) >= MOST_SLOW:
        self.slow.clear()
    self.slow[client.cid] = client.out.taken_us
    self.reactor.slow_consumers += 1
    socket.owner.on_write_deadline()
    return 0


cdef inline int has_frames(Socket socket) except -1:
    # A plain socket never has, so only others are asked. (No cimport of `layered`: it is loaded where a port needs it.)
    return type(socket) is not Socket and (<object>socket).has_frames


cdef inline int is_log_in_late(Deadlines self, Socket socket, uint64_t now_us) except -1:
    cdef uint64_t timeout_us = self.auth_timeout_us
    if self.websocket_auth_timeout_us != timeout_us and has_frames(socket):
        timeout_us = self.websocket_auth_timeout_us
    return now_us - socket.opened_us > timeout_us


cdef inline int is_ping_due(Deadlines self, Socket socket, ClientConnection client, uint64_t now_us) except -1:
    cdef uint64_t interval_us = self.ping_interval_us
    if self.websocket_ping_interval_us != interval_us and has_frames(socket):
        interval_us = self.websocket_ping_interval_us
    if client.pinged_us == 0 and client.has_spoken and now_us - socket.opened_us > FIRST_PING_US:
        return True
    return now_us - max(client.active_us, client.pinged_us) > interval_us


cdef class Deadlines:
    """The deadlines of one reactor's sockets."""

    def __cinit__(self, Reactor reactor not None, limits, websocket=None, leafnodes=None, cluster=None):
        self.reactor = reactor
        self.slow = {}
        self.set_limits(limits, websocket, leafnodes, cluster)

    def set_limits(self, limits, websocket=None, leafnodes=None, cluster=None):
        """Use these limits (broker.limits) from now on, and those that WebSocket clients, leaf nodes and members of the
        cluster have (broker.options)."""
        cdef int i
        self.ping_interval_us = <uint64_t>(limits.ping_interval_s * 1e6)
        self.ping_max = limits.ping_max
        self.auth_timeout_us = <uint64_t>(limits.auth_timeout_s * 1e6)
        self.write_deadline_us = <uint64_t>(limits.write_deadline_s * 1e6)
        self.retries_writes = limits.write_timeout == "retry"
        for i, block in enumerate((leafnodes, cluster)):
            self.server_deadline_us[i] = self.write_deadline_us
            if block is not None and block.write_deadline_s:
                self.server_deadline_us[i] = <uint64_t>(block.write_deadline_s * 1e6)
            self.closes_servers[i] = block is not None and block.write_timeout == "close"
        self.websocket_ping_interval_us = self.ping_interval_us
        self.websocket_auth_timeout_us = self.auth_timeout_us
        if websocket is not None and websocket.ping_interval_s:
            self.websocket_ping_interval_us = <uint64_t>(websocket.ping_interval_s * 1e6)
        if websocket is not None and websocket.auth_timeout_s:
            self.websocket_auth_timeout_us = <uint64_t>(websocket.auth_timeout_s * 1e6)

    def sweep(self, double share=0.1):
        """Check a share of the sockets, and send what comes of it; ten calls with a tenth check each socket once.

        True: so much came of it that the rest is left to go_on().
        """
        cdef Py_ssize_t n = len(self.reactor.sources)
        self.n_due = min(n, self.n_due + <Py_ssize_t>(n * share) + LEAST_SWEPT)
        return self.go_on()

    def go_on(self):
        """Check some more of the sockets of the last sweep; True: it is to be called again, when others had a turn."""
        cdef Reactor reactor = self.reactor
        cdef list sources = reactor.sources
        cdef Source source
        cdef int told = 0
        cdef bint has_begun = reactor.begin_calls()
        reactor.read_clock()
        try:
            while self.n_due > 0 and told < MOST_TOLD and sources:
                self.n_due -= 1
                self.swept_at += 1
                if self.swept_at >= <uint64_t>len(sources):
                    self.swept_at = 0
                source = <Source>sources[self.swept_at]
                if isinstance(source, Socket):
                    try:
                        told += self.check(<Socket>source, reactor.box.now_us)
                    except Exception:
                        reactor.blame(<Socket>source)
                        told += 1
            reactor.is_unfinished = True
        finally:
            reactor.end_calls(has_begun)
        return self.n_due > 0 and bool(sources)

    cdef int check(self, Socket socket, uint64_t now_us) except -1:
        """1: its client was told something."""
        cdef ClientConnection client
        if socket.is_lingering:
            if now_us >= socket.linger_until_us:
                socket.close()
            else:
                socket.close_if_heard()
            return 0
        if socket.is_emptying:
            if not isinstance(socket.peer, ServerLink):
                socket.close()
            elif self.is_server_late(socket, now_us):
                self.reactor.slow_consumers += 1
                socket.close()
            return 0
        if socket.is_opening:
            socket.check_opening()
            return 0
        if not isinstance(socket.peer, ClientConnection):
            if isinstance(socket.peer, ServerLink) and self.is_server_late(socket, now_us):
                out_condemn(&socket.peer.out, CLOSE_SLOW_CONSUMER_WRITE_DEADLINE)
            return 0
        client = <ClientConnection>socket.peer
        note_use(socket, client)
        if client.reply_permissions is not None:
            client.reply_permissions.drop_expired(REPLIES_A_LOOK, now_us)
        if client.out.is_blocked and now_us - client.out.taken_us > self.write_deadline_us:
            if not self.retries_writes:
                out_condemn(&client.out, CLOSE_SLOW_CONSUMER_WRITE_DEADLINE)
                return 1
            note_slow(self, socket, client)
        if client.must_authenticate:
            if is_log_in_late(self, socket, now_us):
                client.end(errors.AuthenticationTimeout())
                return 1
        elif client.holds == 0 and is_ping_due(self, socket, client, now_us):   # (who is not read cannot be stale)
            if client.pings_out >= self.ping_max:
                client.end(errors.StaleConnection())
            else:
                client.ping()
            return 1
        return 0

    cdef bint is_server_late(self, Socket socket, uint64_t now_us) noexcept:
        """Whether another server has taken nothing within its write deadline; or (write_timeout: close) not all that
        waited for it at the beginning of that time."""
        cdef ServerLink link = <ServerLink>socket.peer
        cdef int i = link.dialect == DIALECT_ROUTE
        if not link.out.is_blocked:
            link.due_bytes = 0
            return False
        socket.look_whether_it_takes()   # (nothing may be published meanwhile)
        if now_us - link.out.taken_us > self.server_deadline_us[i]:
            return True
        if not self.closes_servers[i]:
            return False
        if link.out.taken_bytes >= link.due_bytes:
            link.due_bytes = link.out.taken_bytes + out_pending(&link.out)
            link.due_since_us = now_us
        return now_us - link.due_since_us > self.server_deadline_us[i]
