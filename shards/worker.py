"""One shard process: wires shard, links and control channel together, and runs until the router says stop.

The router has made everything that outlives a shard (listeners, page, link directory). When the router dies, a shard
that serves goes on, and waits for the channel of another router; one that does not serve yet exits. When the keeper
dies, the lifeline ends, and the shard exits at once without regard to its clients.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING, Any

import msgspec
import uvloop

from gnatswarm.broker.errors import CloseReason
from gnatswarm.shards.boundary import control, handoff, keeping, logs, rows
from gnatswarm.shards.boundary.children import HANDLED_SIGNALS
from gnatswarm.shards.boundary.page import Page
from gnatswarm.shards.boundary.parentage import die_with_parent
from gnatswarm.shards.clients.departure import QUIET_S, Departure
from gnatswarm.shards.descriptor_headroom import DescriptorHeadroom
from gnatswarm.shards.descriptors import make_room
from gnatswarm.shards.incoming_options import IncomingOptions
from gnatswarm.shards.links.link_sockets import LinkSockets
from gnatswarm.shards.links.links import LINK_VERSION, Hello, Links
from gnatswarm.shards.monitoring.snapshots import Snapshots
from gnatswarm.shards.moving.departures import PATIENCE_S, Departures, ToOthers
from gnatswarm.shards.moving.host import Host
from gnatswarm.shards.moving.placing import Placing
from gnatswarm.shards.shard import Shard
from gnatswarm.shards.siblings import Siblings
from gnatswarm.shards.sockets.reserve import Reserve
from gnatswarm.shards.statistics.recorder import Recorder
from gnatswarm.shards.stopping import Stopping

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gnatswarm.broker.access.user_index import UserIndex
    from gnatswarm.broker.link import SiblingLink
    from gnatswarm.broker.options import Logging, Options
    from gnatswarm.shards.boundary.control import ControlMessage
    from gnatswarm.shards.boundary.rows import ConnectionRow
    from gnatswarm.shards.clients.session import ClientSession
    from gnatswarm.shards.gateway.gateway import Gateway
    from gnatswarm.shards.moving.leaf_arrivals import LeafArrivals
    from gnatswarm.shards.sockets.relay import Relay

logger = logging.getLogger("gnatswarm.shard")

# In mode "handoff" a shard without descriptors may still get connections: log it at most this often.
SAY_FULL_S = 1.0
# Between Drained and the exit, for links to send the frames that they still hold.
LAST_WORDS_S = 0.1
# A relay tells the router at most this often how many clients and leaf nodes it has.
TELL_EVERY_S = 1.0
# So long a shard that leaves stays for the TLS of leaf nodes, where clients with TLS are told to reconnect: leaf nodes
# cannot be told, and lose messages where their connection ends. Restarts replace the gateway, which ends it sooner.
LEAF_NODES_STAY_S = 3600.0
# A relay that no router has ended so long after its time, which they may not understand any more, ends by itself.
ROUTER_LATE_S = 60.0
# What a relay's clients have to take their last bytes when the broker stops. Shorter than the router waits.
STOP_WITHIN_S = 1.5
# What other servers have then to take what waits for them, and to close, behind what shards have (HEAR_OUT_S).
SERVERS_WITHIN_S = 1.0
# At the broker's start clients are not accepted before the gateway has tried to reach the members, or this has passed.
CLUSTER_WITHIN_S = 1.0


def run(control_fd: int, lifeline_fd: int) -> int:
    """Run one shard until it ends; returns its exit code."""
    uvloop.install()
    return asyncio.run(_run(control_fd, lifeline_fd))


def _die(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an unexpected error and exit; the router restarts the shard.

    A shard that continued could lose messages silently.
    """
    error = context.get("exception")
    if isinstance(error, MemoryError):
        logger.critical("Out of memory: this shard ends, and another one takes its place")
    elif isinstance(error, Exception) and _is_of_certificates(error):  # at a reload; the router could load it
        logger.critical("%s: this shard ends, and another one takes its place", error)
    else:
        logger.critical("%s", context.get("message", "unexpected error"), exc_info=error)
    logs.exit_now(70)  # EX_SOFTWARE


async def _run(control_fd: int, lifeline_fd: int) -> int:
    asyncio.get_running_loop().set_exception_handler(_die)
    worker = Worker(socket.socket(fileno=control_fd), socket.socket(fileno=lifeline_fd))
    try:
        return await worker.done
    finally:
        worker.leave_loop()


class Worker:
    """The state of one shard process."""

    def __init__(self, sock: socket.socket, lifeline: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        self.done: asyncio.Future[int] = self._loop.create_future()
        self._channel = control.Channel(sock, control.ToShard, self._on_message, self._on_control_closed)
        self._channel.send(control.Awake())
        self._lifeline = lifeline
        self._loop.add_reader(lifeline.fileno(), self._on_lifeline)
        self._is_ready = False
        self._has_headroom = True
        self._has_drained = False
        self._leaves_at_s = 0.0  # by the loop's clock; 0: was not told to leave
        self._generation = 0  # of the options
        self._incoming: IncomingOptions | None = None  # None before Boot
        self._boot: control.Boot | None = None
        self._logging: Logging | None = None  # as the log is configured; None: it is not
        self._reserve: Reserve | None = None  # descriptors that clients cannot take; None before Boot
        self._handoff: socket.socket | None = None
        self._say_full_at_s = 0.0
        self._departure: Departure | None = None
        self._stopping: Stopping | None = None
        self._is_over = False  # everybody is closed, because it was told to stop
        self._departures: Departures | None = None
        self._host: Host | None = None
        self._placing: Placing | None = None
        self._recorder: Recorder | None = None
        self._gateway: Gateway | None = None
        self._leaf_arrivals: LeafArrivals | None = None
        self._relay: Relay | None = None  # carries TLS of clients that have moved, and of leaf nodes
        self._is_relay = False  # and that is all: this is no shard any more
        self._relay_ends_at_s = 0.0
        self._telling: asyncio.TimerHandle | None = None
        self._waits_for_cluster: asyncio.TimerHandle | None = None  # with clients, at the broker's start

    # ---- control channel

    def _on_message(self, message: ControlMessage) -> None:
        if self._is_relay:
            self._on_message_to_relay(message)
        elif self._incoming is None or not self._incoming.take(message):
            self._on_other_message(message)

    def _on_other_message(self, message: ControlMessage) -> None:
        match message:
            case control.Boot():
                try:
                    self._start(message)
                except Exception as error:
                    if not _is_refusal(error):
                        raise
                    self._fatal(str(error), may_pass=True)
            case control.LinkedShards(shards):
                if self._host is not None:
                    self._host.on_linked_shards(shards)
                self._links.on_linked_shards(shards)
            case control.ListenAnew():
                self._links.listen_anew()
                if self._host is not None:
                    self._host.listen_anew()
                if self._leaf_arrivals is not None:
                    self._leaf_arrivals.listen_anew()
            case control.PartLink(shard, for_s):
                self._links.part(shard, for_s)
                self._channel.send(control.Parted(shard))
            case control.Ping(seq):
                self._channel.send(control.Pong(seq))
            case control.Stop():
                self._stop()
            case control.Drain(deadline_s) if self._gateway is not None:
                self._leaves_at_s = self._leaves_at_s or self._loop.time() + deadline_s
                self._take_no_leaf_nodes()
                self._gateway.leave(deadline_s, self._on_gateway_left)
            case control.Drain(deadline_s, to, relay_s):
                self._stay_for_tls(relay_s)
                self._leaves_at_s = self._leaves_at_s or self._loop.time() + deadline_s
                # In the first half clients may leave by themselves, in the second the remaining ones are closed.
                self._leave(deadline_s / 2, deadline_s / 2, quiet_s=QUIET_S, to=to)
            case control.RelaysEnd(boot_ids):
                self._shard.clients.announce_end_of_relays(boot_ids)
            case control.MoveAway(to, within_s):
                self._move_away(dict(to), within_s)
            case control.Places():
                if self._placing is not None:
                    self._placing.go_by(message)
            case control.LameDuck() if self._gateway is not None:
                self._gateway.announce_departure()
                self._take_no_leaf_nodes()
            case control.LameDuck(grace_s, duration_s):
                self._stay_for_tls(0.0)
                self._leaves_at_s = self._leaves_at_s or self._loop.time() + grace_s + duration_s
                self._shard.end_listening()
                self._take_handed_over()
                self._leave(grace_s, duration_s, quiet_s=0.0)
            case control.ReopenLog():
                self._reopen_log()
            case control.Disconnect(first_cid):
                self._shard.clients.disconnect(first_cid, lambda clients: self._tell(control.Disconnected(clients)))
            case control.Snapshot():
                self._snapshots.answer(message)
            case control.SystemReply():
                self._shard.system.on_reply(message)
            case control.ClusterNews():
                self._shard.on_cluster_news(message)
                if self._waits_for_cluster is not None:
                    self._waits_for_cluster.cancel()
                    self._serve()
            case control.SystemEvent() if self._gateway is not None:
                if message.is_last_word:
                    self._gateway.say_last_word(message.subject, message.payload)
            case control.SystemEvent():
                self._shard.system.on_event(message)

    def _on_control_closed(self, error: control.ControlError | None) -> None:
        if not self.done.done() and not self._is_ready:
            logger.error("the router is gone%s", f": {error}" if error else "")
            logs.exit_now(1)  # the next router starts another: nobody is connected here

    def _on_lifeline(self) -> None:
        """A router has taken over, and gives us a new channel; or the keeper is dead."""
        with self._reserved():
            descriptor = keeping.receive_channel(self._lifeline)
        if descriptor is None:
            if not self.done.done():
                logger.error("the broker's main process is gone")
                os._exit(1)  # at once, because this process holds the port that the next broker needs
        elif descriptor >= 0:
            self._resume(socket.socket(fileno=descriptor))

    def _resume(self, sock: socket.socket) -> None:
        """Say where we stand, and again what the dead router has not answered."""
        if not self._is_ready or self.done.done():
            sock.close()
            return
        self._channel.read_to_end()
        if self._incoming is not None:
            self._incoming.on_new_router()
            # What the dead router has told by whole counts: where we stand is behind that.
            if self._incoming.are_being_read:
                self._loop.call_soon(self._resume, sock)
                return
        self._channel.close_silently()
        self._channel = control.Channel(sock, control.ToShard, self._on_message, self._on_control_closed)
        if self._is_relay:
            self._tell_relayed()
            return
        leaves_within_s = max(0.0, self._leaves_at_s - self._loop.time()) if self._leaves_at_s else -1.0
        self._tell(
            control.Resumed(
                self._siblings.is_in_step, self._has_headroom, self._generation, leaves_within_s, self._has_drained
            )
        )
        if self._placing is not None:
            self._placing.tell_again()
        self._snapshots.use(self._channel)
        self._shard.system.ask_again()
        if self._gateway is not None:
            self._gateway.tell_again()

    def _reserved(self) -> contextlib.AbstractContextManager[None]:
        """What the router asks for is done also where clients have taken all descriptors."""
        return contextlib.nullcontext() if self._reserve is None else self._reserve.opened()

    def _reopen_log(self) -> None:
        with self._reserved():
            problem = logs.reopen()
        if problem:
            logger.error("%s", problem)

    def _tell(self, message: ControlMessage) -> None:
        """Send to the present router; while there is none, nobody: `Resumed` says what counts."""
        self._channel.send(message)

    def _fatal(self, reason: str, *, may_pass: bool = False) -> None:
        self._channel.send(control.Fatal(reason, may_pass))
        self._finish(1)

    def _finish(self, code: int) -> None:
        if not self.done.done():
            if self._recorder is not None:
                self._recorder.close()
            if self._incoming is not None:
                self._incoming.close()
            self._channel.close_silently()
            self.done.set_result(code)

    def leave_loop(self) -> None:
        """The loop is about to be closed: serve nobody from now on."""
        if hasattr(self, "_shard"):  # it is made at Boot
            self._shard.leave_loop()

    # ---- life

    def _start(self, boot: control.Boot) -> None:
        if boot.version != control.CONTROL_VERSION:
            versions = f"{boot.version} of the control channel, this shard {control.CONTROL_VERSION}"
            self._fatal(f"router speaks version {versions}")
            return
        _die_with(boot.keeper_pid)
        self._generation = boot.generation
        # (not those users: they would stay here)
        self._boot = msgspec.structs.replace(boot, options=msgspec.structs.replace(boot.options, users=()))
        self._incoming = IncomingOptions(self._loop, self._steps, self._apply, self._on_message, boot.options.users)
        self._configure_logs(boot.options.logging)
        make_room(boot.options.limits.max_connections, boot.page_fd)
        self._page = page = Page.attach(boot.page_fd)
        page.note_heard_out(boot.shard, False)
        self._reserve = reserve = Reserve()
        headroom = DescriptorHeadroom(self._on_headroom)
        path = os.path.join(boot.link_dir, f"{boot.shard}.{boot.boot_id}.sock")
        self._shard = self._new_shard(boot, page, headroom)
        self._shard.system.reserved = reserve.opened
        self._shard.reactor.on_long_flush = lambda: self._channel.answer_pings()  # (a new router has another one)
        if boot.is_gateway:
            self._gateway = self._new_gateway(boot, page)
        elif boot.cluster is not None:
            self._shard.on_cluster_news(boot.cluster)
        self._link_to_siblings(boot, page, path, reserve)
        if boot.is_gateway:
            self._accept_leaf_nodes_of_shards(boot, path, reserve)
        else:
            self._let_clients_move(boot, path, headroom, reserve)
        self._recorder = self._new_recorder(boot)
        self._snapshots = self._new_snapshots()
        # Objects made so far live as long as the process: the garbage collector need not look at them again.
        gc.freeze()
        # A connection makes a dozen objects: with the default of 700 the collector took an eighth of an accept storm.
        gc.set_threshold(10_000, 20, 20)
        self._channel.send(control.Linked(path))
        if self._placing is not None:
            self._placing.configure(boot.options.placement, boot.generation)

    def _new_shard(self, boot: control.Boot, page: Page, headroom: DescriptorHeadroom) -> Shard:
        return Shard(
            boot.options,
            number=boot.shard,
            page=page,
            headroom=headroom,
            server_id=boot.server_id,
            server_name=boot.server_name,
            host=boot.host,
            port=boot.port,
            websocket_port=boot.websocket_port,
            tell=self._tell,
            on_sweep=self._on_sweep,
            on_slow=self._on_slow,
            on_client_closed=self._on_client_closed,
            on_client_moved=self._on_client_moved,
            has_clients=not boot.is_gateway,
        )

    def _new_gateway(self, boot: control.Boot, page: Page) -> Gateway:
        from gnatswarm.shards.gateway.gateway import Gateway

        gateway = Gateway(
            self._loop,
            self._shard.reactor,
            self._shard.mesh,
            self._shard.fence,
            boot.options,
            server_id=boot.server_id,
            server_name=boot.server_name,
            ports=boot.server_ports,
            clients_at=(boot.host, boot.port),
            websocket_port=boot.websocket_port,
            known_routes=boot.cluster.routes if boot.cluster is not None else [],
            next_id=page.next_client_id,
            next_event_number=page.next_event_number,
            tell=self._tell,
        )
        self._shard.counters.count_servers(gateway.exchange)
        return gateway

    def _link_to_siblings(self, boot: control.Boot, page: Page, path: str, reserve: Reserve) -> None:
        shard = self._shard
        self._siblings = Siblings(
            self._loop,
            shard,
            number=boot.shard,
            page=page,
            tell=self._tell,
            on_ready=self._on_ready,
            on_gone=self._on_link_gone,
        )
        if self._gateway is not None:
            self._siblings.servers = self._gateway.exchange
        self._links = Links(
            loop=self._loop,
            sockets=LinkSockets(self._loop, shard.reactor, path=path, reserve=reserve),
            mesh=shard.mesh,
            fence=shard.fence,
            hello=Hello(boot.server_id, boot.shard, boot.boot_id, LINK_VERSION),
            sink=self._siblings,
        )

    def _accept_leaf_nodes_of_shards(self, boot: control.Boot, path: str, reserve: Reserve) -> None:
        """The gateway takes leaf nodes that come by WebSocket from the shards that have accepted them."""
        if self._gateway is not None and boot.websocket_port and "leafnodes" in boot.server_ports:
            from gnatswarm.shards.moving.leaf_arrivals import LeafArrivals

            self._leaf_arrivals = LeafArrivals(
                self._loop, path, server_id=boot.server_id, reserve=reserve, take=self._gateway.take_leaf_node
            )

    def _let_clients_move(self, boot: control.Boot, path: str, headroom: DescriptorHeadroom, reserve: Reserve) -> None:
        """Clients may come from other shards and go to them, on demand and by placement rules."""
        shard = self._shard
        self._departures = Departures(self._loop, shard.clients, self._links.moves)
        self._host = self._departures.host = Host(
            self._loop,
            shard.clients,
            self._links.moves,
            shard.reactor,
            server_id=boot.server_id,
            shard=boot.shard,
            boot_id=boot.boot_id,
            link_path=path,
            most=headroom.most,
            reserve=reserve,
            on_ended=self._departures.on_ended,
        )
        self._placing = Placing(self._loop, shard.clients, self._departures, shard=boot.shard, tell=self._tell)
        self._host.on_arrived = self._placing.note_arrival
        if boot.options.leafnodes.port:
            shard.clients.leaf_way = self._host
            shard.clients.relay_here = self._relay_here

    def _new_snapshots(self) -> Snapshots:
        shard = self._shard
        return Snapshots(
            channel=self._channel,
            clients=shard.clients,
            mesh=shard.mesh,
            fanout=shard.fanout,
            links=self._links,
            recorder=self._recorder,
            leafs=self._gateway.leafs if self._gateway is not None else lambda _subs: (),
            moves=self._moves,
            routes=self._gateway.routes if self._gateway is not None else lambda _with_subs: (),
            services=shard.imports_exports.service_imports,
            own_subscriptions=shard.system.own_subscriptions,
        )

    def _moves(self) -> rows.MovesPart:
        if self._links is None or self._departures is None:
            return rows.MovesPart()
        moves = self._links.moves
        going = self._departures.still_to_go
        return rows.MovesPart(moves.n_moved, moves.n_arrived, moves.n_stopped, moves.n_lost, going)

    def _new_recorder(self, boot: control.Boot) -> Recorder | None:
        """Start the statistics recorder, if statistics are enabled and have a directory."""
        if not boot.stats_dir:
            return None
        return Recorder(
            boot.options.stats,
            boot.stats_dir,
            broker=boot.server_id,
            boot=boot.boot_id,
            shard=boot.shard,
            page=self._page,
            reactor=self._shard.reactor,
            links=self._links,
            mesh=self._shard.mesh,
            fanout=self._shard.fanout,
            take_denied=self._shard.clients.denials.take,
            sessions=self._shard.clients.open,
        )

    # ---- events of the shard and its links

    def _on_sweep(self, late_s: float) -> None:
        if self._recorder is not None:
            self._recorder.on_sweep(late_s)

    def _on_slow(self, row: ConnectionRow) -> None:
        if self._recorder is not None:
            self._recorder.on_slow(row)

    def _on_client_closed(self, session: ClientSession) -> None:
        if self._recorder is not None:
            self._recorder.on_closed(session)

    def _on_client_moved(self, session: ClientSession) -> None:
        if self._recorder is not None:
            self._recorder.on_moved(session)

    def _on_link_gone(self, link: SiblingLink) -> None:
        if self._recorder is not None:
            self._recorder.on_link_gone(link)

    def _on_headroom(self, has_headroom: bool) -> None:
        if has_headroom:
            logger.info("there are descriptors for new clients again")
        else:
            logger.warning("descriptors run out; new clients go to other shards while those have some")
        self._has_headroom = has_headroom
        self._channel.send(control.HasHeadroom(has_headroom))

    def _on_ready(self) -> None:
        """Synchronised with every sibling: accept clients only now, or their messages would miss remote subscribers.

        Members of the cluster are waited for, too, for a moment: their clients then know of this broker before its own
        clients are here, and these hear of them in their first INFO.
        """
        assert self._boot is not None
        cluster = self._boot.options.cluster
        if self._gateway is not None:
            self._gateway.start()
        elif cluster.port and cluster.routes and self._boot.cluster is None:
            self._waits_for_cluster = self._loop.call_later(CLUSTER_WITHIN_S, self._serve)
            return
        self._serve()

    def _serve(self) -> None:
        assert self._boot is not None
        self._waits_for_cluster = None
        if self._departure is not None or self._stopping is not None:
            return  # the broker ends already
        boot = self._boot
        self._shard.listen(boot.listener_fds, boot.websocket_fds, may_refuse=boot.may_refuse)
        if self._boot.handoff_fd >= 0:
            self._handoff = socket.socket(fileno=self._boot.handoff_fd)
            self._loop.add_reader(self._handoff.fileno(), self._take_handed_over)
        self._is_ready = True
        self._channel.send(control.Ready())

    def _take_handed_over(self) -> bool:
        """Take connections that the router has accepted for us, a packet of them; whether it hands over no others.

        The loop calls again while more wait: clients that are here have turns in between.
        """
        if self._handoff is None:
            return True
        descriptors = handoff.receive_descriptors(self._handoff)
        if descriptors is None:
            self._end_handoff()
            return True
        self._take(descriptors)
        self._shard.reactor.finish()
        return False

    def _end_handoff(self) -> None:
        if self._handoff is not None:
            self._loop.remove_reader(self._handoff.fileno())
            self._handoff.close()
            self._handoff = None

    def _take(self, descriptors: list[int]) -> None:
        gone = lost = descriptors.count(handoff.NOT_RECEIVED)
        for fd in descriptors:
            if fd == handoff.NOT_RECEIVED:
                continue
            try:
                with socket.socket(fileno=fd) as sock:
                    host, port = sock.getpeername()[:2]
                    sock.setblocking(False)
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    sock.detach()
            except OSError:
                gone += 1  # the client has left already; `sock` closes the descriptor
                continue
            self._shard.take(fd, host.removeprefix("::ffff:"), port)
        if gone:  # count them too, or the router would wait for ever for them to arrive
            self._shard.clients.count_accepted(gone)
        if lost and self._loop.time() >= self._say_full_at_s:
            logger.error("no descriptors left for connections that were handed over; they are closed")
            self._say_full_at_s = self._loop.time() + SAY_FULL_S

    def _configure_logs(self, options: Logging) -> None:
        assert self._boot is not None
        if options != self._logging:
            logs.configure(options, process_label=_label(self._boot), must_open=False)
            self._logging = options

    def _steps(self, options: Options, listeners: set[str]) -> Iterator[None]:
        return self._shard.imports_exports.steps(options, listeners)

    def _apply(self, options: Options, users: UserIndex, generation: int, listeners: set[str]) -> None:
        with self._reserved():
            self._reload(options, users, listeners, lambda: self._channel.send(control.Reloaded(generation)))
        self._generation = generation
        if self._placing is not None:
            self._placing.configure(options.placement, generation)

    def _reload(self, options: Options, users: UserIndex, listeners: set[str], on_done: Callable[[], None]) -> None:
        self._configure_logs(options.logging)
        if self._gateway is None:
            self._shard.reload(options, on_done, users=users, listeners=listeners)
        else:
            self._shard.reload(options, users=users, listeners=listeners)
            self._gateway.reload(options, users, listeners, on_done)

    def _move_away(self, to: dict[int, int], within_s: float) -> None:
        if self._departures is None or not self._departures.begin(to, within_s, self._on_moved, patience_s=PATIENCE_S):
            self._channel.send(control.Moved(0, {"other clients of this shard are being moved": 1}))

    def _on_moved(self, moved: int, stay: dict[str, int]) -> None:
        self._channel.send(control.Moved(moved, stay))

    def _leave(self, grace_s: float, spread_s: float, *, quiet_s: float, to: list[int] | None = None) -> None:
        if self._placing is not None:
            self._placing.stop()
        if self._departure is None:
            self._departure = Departure(
                self._loop,
                self._shard.clients,
                grace_s=grace_s,
                spread_s=spread_s,
                quiet_s=quiet_s,
                on_done=self._on_departed,
                mover=self._mover(to),
                is_awaited=self._is_awaited if to is not None else lambda: self._handoff is not None,
            )
            if self._host is not None:
                self._host.is_leaving = True

    def _mover(self, to: list[int] | None) -> ToOthers | None:
        if self._departures is None or not to:
            return None
        return ToOthers(self._departures, self._links.reply_prefixes, to)

    def _is_awaited(self) -> bool:
        """Whether clients that are elsewhere, or on their way, need this shard."""
        assert self._shard is not None
        is_on_way = self._host is not None and (self._host.is_busy or self._links.reply_prefixes.is_busy)
        is_asked = self._shard.imports_exports.service_imports.waiting > 0
        return is_on_way or is_asked or self._links.has_unsent

    def _on_departed(self) -> None:
        if self._is_over:  # it was told to stop meanwhile
            return
        self._shard.stop_listening()
        self._has_drained = True
        # Links may still hold frames for siblings, who close them once the router has told them that we have left.
        self._links.moves.send_on()
        self._shard.reactor.finish()
        self._channel.send(control.Drained(self._relay is not None and self._relay.connections > 0))
        self._close_ways()
        self._loop.call_later(LAST_WORDS_S, self._end_or_relay)

    def _on_gateway_left(self) -> None:
        self._has_drained = True
        self._channel.send(control.Drained(False))
        self._end()

    def _stop(self) -> None:
        if self._stopping is None:
            assert self._boot is not None
            if self._departures is not None:
                self._departures.cancel()
            end = self._end if self._gateway is None else self._end_servers
            self._stopping = Stopping(
                self._loop, self._boot.shard, self._shard, self._links, self._page, self._take_handed_over, end
            )

    def _end_servers(self) -> None:
        """All that clients had sent has come here: other servers get it before they are closed."""
        assert self._gateway is not None
        self._gateway.stop(SERVERS_WITHIN_S, self._end)

    def _end(self) -> None:
        """Close everybody."""
        if self.done.done():
            return
        if self._is_relay:  # (a shard that was leaving has left meanwhile)
            self._loop.call_later(STOP_WITHIN_S, self._finish, 0)
            return
        self._is_over = True
        self._shard.stop_listening()
        if self._gateway is not None:
            self._gateway.close()
        self._shard.clients.close_all(CloseReason.SERVER_SHUTDOWN)
        self._close_ways()
        if self._relay is not None and self._relay.connections:  # (whose shards close them just now)
            self._loop.call_later(STOP_WITHIN_S, self._finish, 0)
        else:
            self._finish(0)

    # ---- after the shard's end: the TLS of clients that have moved, and of leaf nodes

    def _relay_here(self) -> Relay:
        """The relay of this process, which outlives the shard."""
        if self._relay is None:
            from gnatswarm.shards.sockets.relay import Relay

            assert self._boot is not None
            self._relay = Relay(self._loop, self._boot.boot_id, self._on_relay_changed)
        return self._relay

    def _stay_for_tls(self, within_s: float) -> None:
        """This shard is to leave. Clients with TLS are to move, too, unless `within_s` is 0: then leaf nodes alone."""
        if self._departure is None:
            self._relay_ends_at_s = self._loop.time() + (within_s or LEAF_NODES_STAY_S)
            if within_s > 0 and self._shard.clients.may_have_tls:
                self._shard.clients.relay = self._relay_here()

    def _end_or_relay(self) -> None:
        """Every client has gone, and all frames are sent."""
        if self._relay is None or not self._relay.connections or self.done.done():
            self._finish(0)
            return
        assert self._boot is not None
        if self._recorder is not None:
            self._recorder.close()
            self._recorder = None
        self._links.on_linked_shards([])
        self._end_handoff()
        self._shard.close()
        self._is_relay = True
        assert self._incoming is not None
        self._incoming.close()
        self._relabel_log(f"relay {os.getpid()}")
        logger.info("No shard any more: encrypting for %s", self._relay.carried)
        alone_at_s = self._relay_ends_at_s + ROUTER_LATE_S
        self._loop.call_at(alone_at_s, self._relay.dismiss, ROUTER_LATE_S)
        self._tell_relayed()

    def _relabel_log(self, label: str) -> None:
        """Where it cannot be opened again, the log goes on under its old label."""
        assert self._logging is not None
        try:
            with self._reserved():
                logs.configure(self._logging, process_label=label)
        except OSError as error:
            logger.error("The log stays as it was: %s", logs.failure(self._logging, error))

    def _on_message_to_relay(self, message: ControlMessage) -> None:
        assert self._relay is not None
        match message:
            case control.EndRelay(within_s):
                self._relay_ends_at_s = -1.0
                self._relay.dismiss(within_s)
                self._tell_relayed()
            case control.Stop():  # the shards close our clients now, which ends us
                self._loop.call_later(STOP_WITHIN_S, self._finish, 0)
            case control.Ping(seq):
                self._channel.send(control.Pong(seq))
            case control.ReopenLog():
                self._reopen_log()

    def _on_relay_changed(self) -> None:
        if self._is_over and self._relay is not None and not self._relay.connections:
            self._loop.call_soon(self._finish, 0)
        elif self._is_relay and self._relay is not None and not self._relay.connections:
            logger.info("All connections with TLS have ended")
            self._loop.call_soon(self._finish, 0)
        elif self._is_relay and self._telling is None:
            self._telling = self._loop.call_later(TELL_EVERY_S, self._tell_relayed)

    def _tell_relayed(self) -> None:
        assert self._relay is not None
        self._telling = None
        ends_in_s = max(0.0, self._relay_ends_at_s - self._loop.time()) if self._relay_ends_at_s >= 0 else -1.0
        self._tell(control.Relays(self._relay.connections, ends_in_s))

    def _close_ways(self) -> None:
        """Links, and the ways for clients, end with the process; nobody can dial any more, or log in."""
        self._shard.clients.passwords.close()  # the process does not end before its thread
        self._links.close()
        if self._host is not None:
            self._host.close()
        self._take_no_leaf_nodes()

    def _take_no_leaf_nodes(self) -> None:
        if self._leaf_arrivals is not None:
            self._leaf_arrivals.close()
            self._leaf_arrivals = None


def _label(boot: control.Boot) -> str:
    """This process in log lines."""
    return "gateway" if boot.is_gateway else f"shard {boot.shard}"


def _is_refusal(error: Exception) -> bool:
    """Whether the system refuses something, or the files of a TLS block."""
    return isinstance(error, OSError) or _is_of_certificates(error)


def _is_of_certificates(error: Exception) -> bool:
    """Whether files of a TLS block cannot be loaded (the module is imported only for one)."""
    module = sys.modules.get("gnatswarm.shards.boundary.certificates")
    return module is not None and isinstance(error, module.CertificateError)


def _die_with(keeper_pid: int) -> None:
    """Leave signals to the keeper; ask the kernel to kill us when it dies, and exit if it has died already."""
    for number in HANDLED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    die_with_parent(signal.SIGKILL)
    if os.getppid() != keeper_pid:
        os._exit(1)
