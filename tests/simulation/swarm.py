"""Shards and their router without processes, sockets and clocks: everything happens only when the caller says so.

A shard is the compiled engine with the real links machine (shards.links), departure and hold (shards.siblings); the
router is supervision's pure machine. Between them are pipes: bytes wait in them until `carry`, control messages until
`tell`. Only `pass_s` lets time pass. The caller keeps the clients, and is told of the end of each process.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from types import SimpleNamespace
from typing import Any, Protocol

from gnatswarm.broker.connection import ClientConnection
from gnatswarm.broker.errors import CloseReason
from gnatswarm.broker.fence import MeshFence
from gnatswarm.broker.frozen import FrozenClient, OfferedClient, RecordRefused, decoded, encoded
from gnatswarm.broker.limits import Limits
from gnatswarm.broker.link import SiblingLink
from gnatswarm.probes.engine import Probe
from gnatswarm.probes.pipes import FrameReader, Pipe, busy_pipes, finish_all, is_over, told_of
from gnatswarm.router.supervision import supervision
from gnatswarm.router.supervision.rolling import GATEWAY_LEAVES_WITHIN_S
from gnatswarm.router.supervision.supervision import Phase, ShardState
from gnatswarm.shards.boundary import control
from gnatswarm.shards.clients.departure import QUIET_S, STEP_S, Departure
from gnatswarm.shards.links.links import LINK_VERSION, Hello, Links, LinkSession
from gnatswarm.shards.moving.departures import Departures, ToOthers
from gnatswarm.shards.moving.host import LEAVING
from gnatswarm.shards.siblings import Siblings
from tests.simulation.servers import Gateway, Servers
from tests.support.engine import Engine, EngineClient

ALL = 1 << 30
FIRST_US = 1_000_000  # where the engine's clock begins
LAST_WORDS_S = 0.1
ADOPTED_WITHIN_S = 0.3  # by the next router
TICK_S = 0.25
MOST_CARRIES = 1000  # rounds in which everything moves once; some tens are usual
FRAMES_OF_MESSAGES = b"RMSG", b"HMSG", b"XMSG", b"XHMG", b"QMSG", b"QHMG", b"XQMG", b"XQHG"
FRAMES_SENT_ON = b"QMSG", b"QHMG", b"XQMG", b"XQHG"


class Timer:
    """One call that is due at a time."""

    def __init__(self, at_s: float, number: int, call: Callable[..., object], args: tuple[Any, ...]) -> None:
        self.due = (at_s, number)
        self.call = call
        self.args = args
        self.is_over = False

    def cancel(self) -> None:
        self.is_over = True


class Loop:
    """The part of an event loop that a shard needs; its timers end with it."""

    def __init__(self, swarm: Swarm) -> None:
        self._swarm = swarm
        self.timers: list[tuple[tuple[float, int], Timer]] = []  # a heap
        self.put_off: set[Callable[..., object]] = set()  # what is called soon waits for serve_others()
        self._waiting: list[Callable[[], object]] = []

    def time(self) -> float:
        return self._swarm.now_s

    def call_later(self, after_s: float, call: Callable[..., object], *args: Any) -> Timer:
        swarm = self._swarm
        swarm.n_timers += 1
        timer = Timer(swarm.now_s + after_s, swarm.n_timers, call, args)
        heapq.heappush(self.timers, (timer.due, timer))
        swarm.next_due_s = min(swarm.next_due_s, timer.due[0])
        return timer

    def call_soon(self, call: Callable[..., object], *args: Any) -> Timer | None:
        if call in self.put_off:
            self.rest_until(call)
            return None
        return self.call_later(0.0, call, *args)

    @property
    def is_resting(self) -> bool:
        return bool(self._waiting)

    def rest_until(self, call: Callable[[], object]) -> None:
        """Somebody's turn is over: this is called when others were served."""
        self._waiting.append(call)

    def serve_others(self) -> bool:
        """Others are served, and who rests goes on; False: nobody does."""
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            call()
        return bool(waiting)

    def end(self) -> None:
        self.timers.clear()
        self._waiting.clear()

    def next_s(self) -> float:
        """When the next timer is due, after now; inf: none is."""
        timers = self.timers
        while timers and timers[0][1].is_over:
            heapq.heappop(timers)
        if not timers:
            return math.inf
        now_s = self._swarm.now_s
        if timers[0][0][0] > now_s:
            return timers[0][0][0]
        return min((due[0] for due, timer in timers if due[0] > now_s and not timer.is_over), default=math.inf)

    def run(self) -> bool:
        """Run all that is due; False: nothing was."""
        is_busy = False
        while self.timers and self.timers[0][0][0] <= self._swarm.now_s:
            is_busy = True
            _, first = heapq.heappop(self.timers)
            if not first.is_over:
                first.call(*first.args)
        return is_busy


class End(Pipe):
    """One shard's end of a link's byte stream."""

    process: Process
    other: End
    opened = 0

    def __init__(self, process: Process) -> None:
        self.process = process
        self.other = self
        self.link: SiblingLink | None = None
        self.reader = FrameReader()
        self.noted = 0  # bytes of ours that the other end has carried out, where it may rest: see note_read()

    def kick(self, _reason: CloseReason) -> None:
        self.process.loop.call_soon(self.end)

    @property
    def unread_bytes(self) -> int:
        """What the other end has sent and is not carried out here: it is on its way, or waits here."""
        if self.socket is None or self.other.socket is None or self.is_cut:
            return 0
        return len(self.other.socket.sent) - self.other.carried + self.socket.unread_bytes

    def drain(self) -> None:
        """What has been sent to this end is in its socket."""
        data = b"" if self.is_cut else self.other.take(ALL)
        if self.socket is None:
            return
        if self.process.swarm.is_brief:
            self.process.swarm.seen["sibling leaves with what rested"] += self.socket.unread_bytes > 0
            self.process.engine.probe.feed(self.socket, data, [], finish=False)  # (what it has read before is not more)
            self.other.note_read()
        elif data:
            self.process.swarm.note(self.other.reader.lines(data), self.other)
            self.process.engine.probe.feed(self.socket, data, [])

    def note_read(self) -> None:
        """Note what the other end has carried out of what it has read."""
        there = self.other
        if self.socket is None or there.socket is None or there.socket.is_over or there.link is None:
            return
        done = self.carried - there.socket.unread_bytes
        if there.link.is_joined and done > self.noted:
            lines = self.reader.lines(bytes(self.socket.sent[self.noted : done]))
            self.noted = done
            self.process.swarm.note(lines, self)

    @property
    def is_hung_up(self) -> bool:
        """Whether the other end has closed; what it sent before may be on its way."""
        is_over = self.is_cut or (self.other.socket is not None and not self.other.is_open)
        self.process.swarm.seen["sibling that rests, and has hung up, is not listed"] += is_over
        return is_over

    @property
    def rests(self) -> bool:
        """Whether nothing is read here now, because others are served first."""
        return self.process.loop.is_resting and self.socket is not None and self.socket.is_held

    def end(self) -> None:
        """Close this end; the other end is told after it has read what was sent."""
        if self.socket is not None and not self.socket.is_over:
            if self.is_cut and self.is_open and self.other.socket is not None:
                self.process.swarm.seen["link breaks while it rests"] += self.rests or self.other.rests
                self.process.swarm.on_break(self.in_flight(), self.lost())
            self.process.note_goodbye(self)
            self.process.engine.probe.end(self.socket)

    @property
    def is_joined(self) -> bool:
        """Whether messages are sent over it."""
        return self.is_open and self.link is not None and self.link.is_joined

    @property
    def read_here(self) -> int:
        """Bytes of ours that the other end has carried out."""
        if not self.process.swarm.is_brief:
            return self.carried
        self.note_read()
        return self.noted

    def in_flight(self) -> list[bytes]:
        """Queue messages that were sent on over this link and are not answered yet, with their headers."""
        assert self.socket is not None and self.other.socket is not None
        read = FrameReader().lines(bytes(self.other.socket.sent[: self.other.read_here]))
        answered = {line.split(b" ")[1] for line in read if line.startswith((b"QACK ", b"QNAK "))}
        return [
            body
            for line, body in FrameReader().frames(self.socket.queued_from(0))
            if line.startswith(FRAMES_SENT_ON) and line.split(b" ")[1] not in answered | {b"0"}
        ]

    def lost(self) -> list[bytes]:
        """Of the messages that were sent over this link, those that the other end has not read: their bodies."""
        assert self.socket is not None
        read = len(FrameReader().frames(bytes(self.socket.sent[: self.read_here])))
        frames = FrameReader().frames(self.socket.queued_from(0))[read:]
        return [body for line, body in frames if line.startswith(FRAMES_OF_MESSAGES)]


class Transport:
    """How one shard reaches the others: see shards.links.links.Transport."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.on_accepted: Callable[[End], None] = lambda end: None
        self.is_listening = True

    def dial(self, path: str) -> End:
        there = self._process.swarm.listening(path)
        if there is None:
            raise ConnectionRefusedError(path)
        mine, other = End(self._process), End(there)
        mine.other, other.other = other, mine
        there.loop.call_soon(there.transport.on_accepted, other)
        return mine

    def process_of(self, end: End) -> Any:
        return end.other.process

    def has_ended(self, process: Any) -> bool:
        self._process.swarm.seen["sibling found dead before the router tells"] += not process.has_process
        return not process.has_process

    def open(self, end: End, link: SiblingLink, _session: LinkSession) -> End:
        end.socket = self._process.engine.probe.adopt(link)
        end.link = link
        self._process.swarm.add_end(end)
        return end

    def finish(self) -> None:
        self._process.engine.probe.finish()

    def listen_anew(self) -> None:
        pass

    def close(self) -> None:
        self.is_listening = False


class Clients:
    """The part of shards.clients.clients that a shard's departure and links use."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.accepted = 0
        self.accepted_s = -math.inf  # when the last one came
        self.all: list[EngineClient] = []
        self.is_holding = False
        self.are_told = False  # that they are to go

    @property
    def open(self) -> dict[int, Any]:
        return {one.connection.cid: one.session for one in self.all if not one.is_over}

    def stays(self, session: object) -> bool:
        return False

    def connections(self) -> list[Any]:
        return [one.connection for one in self.all if not one.is_over]

    def hold(self) -> None:
        self.is_holding = True
        for connection in self.connections():
            connection.wait()

    def go_on(self) -> None:
        self.is_holding = False
        for connection in self.connections():
            connection.go_on()

    def add(self, client: EngineClient) -> None:
        self.accepted += 1
        self.accepted_s = self._process.loop.time()
        self.all.append(client)
        if self.is_holding:
            client.connection.wait()

    def finish_soon(self) -> None:
        self._process.loop.call_soon(self._process.probe.finish)

    def announce_departure(self, *, with_tls_only: bool = False) -> None:
        self.are_told = not with_tls_only

    def read_ahead(self) -> tuple[int, set[int]]:
        return 0, set()

    def hear_out(self, sessions: Iterable[Any]) -> list[Any]:
        return list(sessions)

    def close(self, sessions: Iterable[Any], _reason: CloseReason) -> None:
        self._process.engine.probe.finish()
        chosen = list(sessions)
        for one in self.all:
            if one.session in chosen:
                one.close()


class Sink(Siblings):
    """Tells a process that gives up to end."""

    def __init__(self, process: Process) -> None:
        super().__init__(
            process.loop,  # type: ignore[arg-type]
            SimpleNamespace(clients=process.clients, fence=process.engine.probe.fence),  # type: ignore[arg-type]
            number=process.number,
            page=SimpleNamespace(store=lambda *_: None),  # type: ignore[arg-type]
            tell=process.say,
            on_ready=process.on_ready,
            on_gone=lambda link: None,
        )
        self._process = process

    def on_hole(self) -> None:
        super().on_hole()
        self._process.swarm.seen["hole"] += 1

    def on_given_up(self, why: str) -> None:
        self._process.swarm.seen["given up"] += 1
        missed = [boot_id for number, boot_id in self._process.listed.items() if f"to shard {number} broke" in why]
        assert missed, f"{self._process.number} has no link to a shard that is not listed, and gives up"
        has_process = self._process.swarm.by_boot_id[missed[0]].has_process
        assert has_process, f"{self._process.number} has no link to {missed[0]}, whose process has ended, and gives up"
        left = self._process.swarm.by_boot_id[missed[0]].has_drained and missed[0] not in self._process.cut_from
        assert not left, f"{self._process.number} has no link to {missed[0]}, which has said goodbye, and gives up"
        self._process.loop.call_soon(self._process.die, why)


@dataclass
class Channel:
    """What a shard finds on its control channel, or behind it: another router's channel; 0: the end of its own."""

    router: int


@dataclass
class Word:
    """What one shard's host sends to another's about a move."""

    id: int  # of the move; 0: the sender is dead
    cid: int = 0  # of this client; 0: the move is over
    record: bytes = b""  # of it; b"": it does not come
    client: EngineClient | None = None  # … whose socket comes with it
    gone: EngineClient | None = None  # it was closed at its other end, as this shard itself sees, or tells its next one


class Movers(Protocol):
    """Who knows the clients that move."""

    def words_of(self, client: EngineClient) -> bytes: ...
    def objection(self, client: EngineClient) -> str: ...
    def admit(self, process: Process, offered: OfferedClient) -> ClientConnection: ...
    def goes_on(self, client: EngineClient, connection: ClientConnection) -> None: ...
    def forget_expected(self, process: Process) -> None: ...
    def takes_no_more(self, client: EngineClient) -> None: ...
    def on_way(self, client: EngineClient, there: Process) -> None: ...
    def arrived(self, client: EngineClient, process: Process, pending: int) -> None: ...
    def lost(self, client: EngineClient) -> None: ...


class MoveHost:
    """The `MovesHost` of one shard; `movers` (the world) knows who the clients are."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._sockets: dict[int, EngineClient] = {}  # those that came with records which are not settled
        self._from: dict[tuple[int, int], Process] = {}  # whose moves they are
        self.there = process  # where the present move leads to
        self._ways: dict[int, Process] = {}  # to whom a way is open, by number: a departure opens one before its turn
        self._is_journey = False  # it is one of Departures
        self._is_due = False  # there is work for go_on()
        self._work: deque[Callable[[], None]] = deque()
        self._closing: set[Process] = set()  # those that have said that they take nobody any more

    def client_of(self, connection: ClientConnection) -> EngineClient:
        return next(one for one in self._process.clients.all if one.connection is connection)

    def sibling(self, number: int) -> Process:
        """The process at the other end of the link; its number may have a successor by now."""
        session = next(one for one in self._process.links.sessions if one.link.shard == number)
        assert session.hello is not None
        return self._process.swarm.by_boot_id[session.hello.boot_id]

    def move(self, clients: list[ClientConnection], there: Process) -> None:
        """Begin to move these; RecordRefused: they stay."""
        before, self.there = self.there, there
        self._ways[there.number] = there
        try:
            self._process.links.moves.move(clients, there.number)
        except RecordRefused:
            self.there = before
            raise
        self._is_journey = False
        self._process.engine.probe.finish()

    @property
    def was_too_late(self) -> bool:
        """Whether the last move led to a shard that left in order, and never heard of it.

        The old shard cannot know that, and closes members of queue groups. But a shard that leaves refuses who is
        announced, once: then nobody is announced to it again.
        """
        return self.there.has_left and self.there not in self._closing

    def soon(self) -> None:
        """What is due for one client after the other, when the schedule says: a word of this shard to itself."""
        if not self._is_due:
            self._is_due = True
            self._process.swarm.send_word(self._process, self._process, Word(0))

    def in_turn(self, work: Callable[[], None]) -> None:
        self._work.append(work)
        self.soon()

    def go_on(self) -> None:
        self._is_due = False
        if self._work:
            self._work.popleft()()
            self.soon()
        elif self._process.links.moves.go_on():
            self.soon()
        self._process.engine.probe.finish()

    def open_way(self, shard: int) -> str:
        """As the host of shards.moving: of Departures, which moves clients next."""
        if self._process.links.moves.is_leaving:
            return "others are moving"
        if not any(one.link.shard == shard for one in self._process.links.sessions):
            return "it is not there"
        if self.sibling(shard) in self._closing:
            return "it is leaving"
        self.there = self._ways[shard] = self.sibling(shard)
        self._is_journey = True
        return ""

    def objection(self, session: Any, beside: int) -> str:
        """Why this client cannot move now; "": it can."""
        why = self._process.links.moves.why_not(session.connection)
        return why or self._process.swarm.movers.objection(self.client_of(session.connection))

    def words_of(self, client: ClientConnection) -> bytes:
        return self._process.swarm.movers.words_of(self.client_of(client))

    def hand_over(self, new: int, id: int, client: ClientConnection, frozen: FrozenClient | None) -> None:
        there = self.there = self._ways[new]
        if frozen is None:
            one = next((one for one in self._process.clients.all if one.connection is client), None)
            self._process.swarm.send_word(self._process, there, Word(id, client.cid, gone=one))
            return
        one = self.client_of(client)
        self._process.clients.all.remove(one)
        self._process.engine.probe.let_go(one.socket)
        client.leave()
        self._process.swarm.seen["moves though it was told"] += self._process.clients.are_told
        self._process.swarm.movers.on_way(one, there)
        self._process.swarm.send_word(self._process, there, Word(id, client.cid, encoded(frozen), one))

    def ended(self, new: int, id: int, why: str) -> None:
        self.there = self._ways[new]
        if why:
            self._process.swarm.send_word(self._process, self.there, Word(id))
        if why == LEAVING:
            self._closing.add(self.there)
        if self._is_journey:
            self._is_journey = False
            self._process.loop.call_soon(self._process.departures.on_ended, why)

    def hear(self, process: Process, word: Word) -> None:
        moves = self._process.links.moves
        old = process.number
        if process is self._process and word.gone is None:
            self.go_on()
        elif process is self._process:
            assert word.gone is not None
            moves.on_hung_up(word.gone.connection)
            self._process.engine.probe.finish()
        elif not word.cid:
            for key in [key for key, one in self._from.items() if one is process and word.id in (0, key[1])]:
                moves.end_arrivals(*key)
        elif not word.record:
            moves.forget(old, word.id, word.cid)
            if word.gone is not None:
                self._process.swarm.movers.takes_no_more(word.gone)
        else:
            assert word.client is not None
            self._sockets[word.cid] = word.client
            if not moves.arrive(old, word.id, decoded(word.record)):  # whatever the engine writes down can be read
                self._process.swarm.movers.lost(self._sockets.pop(word.cid))

    def look_at(self, client: EngineClient) -> None:
        """See, when the schedule says, that the other end of one that moves has closed."""
        self._process.swarm.send_word(self._process, self._process, Word(0, client.connection.cid, gone=client))

    def admit(self, old: int, id: int, offered: OfferedClient) -> ClientConnection:
        if self._process.departure is not None:
            raise RecordRefused(LEAVING)
        self._from[old, id] = self.sibling(old)
        return self._process.swarm.movers.admit(self._process, offered)

    def arrived(self, old: int, id: int, client: ClientConnection, frozen: FrozenClient) -> None:
        one = self._sockets.pop(client.cid)
        probe = self._process.engine.probe
        one.engine = self._process.engine
        self._process.swarm.movers.goes_on(one, client)
        pending = client.pending_bytes
        probe.take_in(one.socket, client)
        self._process.clients.add(one)
        self._process.swarm.movers.arrived(one, self._process, pending)
        if client.close_reason and not one.socket.is_deaf:
            probe.end(one.socket)
        elif not self._process.clients.is_holding:
            client.go_on()

    def lost(self, old: int, id: int, client: ClientConnection, frozen: FrozenClient | None, why: str) -> None:
        self._process.swarm.movers.forget_expected(self._process)
        if frozen is not None:
            self._process.swarm.movers.lost(self._sockets.pop(client.cid))


class Process:
    """One shard from its start to its end."""

    def __init__(self, swarm: Swarm, number: int, start: int) -> None:
        self.swarm = swarm
        self.number = number
        self.is_alive = True
        self.is_ready = False
        self.was_ready = False
        self.channel = swarm.routers  # the router at the other end of its control channel
        self.start = start
        self.has_drained = False
        self.has_left = False  # in order
        self.leaves_at_s = 0.0  # when it leaves at the latest
        self.quiet_s = 0.0  # for so long nobody must have come when it leaves before
        self.listed: dict[int, str] = {}  # boot ids of shards that live, as the router said last
        self.cut_from: set[str] = set()  # boot ids of siblings to which a link was cut: what was on its way is lost
        self.left_due = False  # it left when its time was up, with replies due
        self.is_relay = False  # this shard has left, and its process stays for clients with TLS
        self.is_relay_next = False  # it leaves, and its process stays for clients with TLS
        self.departure: Departure | None = None
        self.inbox: deque[control.ControlMessage | Channel] = deque()
        self.outbox: deque[supervision.Event] = deque()
        self.loop = Loop(swarm)
        self.engine = swarm.new_engine(number)
        self.probe = self.engine.probe
        if swarm.is_brief:
            self.probe.rest_often()
        self.clients = Clients(self)
        self.transport = Transport(self)
        self.peer = control.LinkedShard(number, f"{number}.{start}", f"/{number}.{start}")
        fence = self.engine.probe.fence
        mesh = self.engine.probe.mesh
        assert isinstance(fence, MeshFence) and mesh is not None
        self.links = Links(
            loop=self.loop,  # type: ignore[arg-type]
            sockets=self.transport,
            mesh=mesh,
            fence=fence,
            hello=Hello("N", number, self.peer.boot_id, LINK_VERSION),
            sink=(sink := Sink(self)),
        )
        self.sink = sink
        if swarm.is_brief:
            self.loop.put_off.add(self.links._read_on)
        if swarm.is_gradual:
            self.loop.put_off.add(self.links._go_on)
            mesh.slice_nodes = 1 + (number + start) % 3
        self.gateway: Gateway | None = None
        if number == control.GATEWAY_NUMBER:
            self.gateway = Gateway(self, is_fenced=swarm.is_fenced, rests=swarm.rests)
            self.sink.servers = self.gateway.exchange
        swarm.by_boot_id[self.peer.boot_id] = self
        self.links.moves.host = self.host = MoveHost(self)
        self.links.moves.slice_subs = 1 + (number + start) % 3  # clients here have few subscriptions
        self.links.moves.window = 1 + (number + start) % 2  # … and their offers few parts
        self.departures = Departures(self.loop, self.clients, self.links.moves)  # type: ignore[arg-type]
        self.departures.host = self.host  # type: ignore[assignment]
        self.departures.few_subscriptions = (number + start) % 3
        self.tell_router(control.Linked(self.peer.path))

    @property
    def has_process(self) -> bool:
        """Whether its process lives: as a shard, or as what carries TLS of those who have left."""
        return self.is_alive or self.is_relay

    def tell_router(self, message: supervision.ShardMessage) -> None:
        """Send a message on the control channel; a router that is dead reads nothing."""
        if self.channel == self.swarm.routers and self.swarm.has_router:
            self.outbox.append(message)

    def on_turn_over(self, session: Any) -> None:
        """A client has had its turn."""
        if self.swarm.is_brief:
            self.swarm.seen["client rests"] += 1
            self.loop.rest_until(lambda: session.connection.read_on())
        else:
            self.loop.call_soon(session.connection.read_on)

    def serve_others(self) -> bool:
        """Who rests here goes on; False: nobody does."""
        if not self.loop.serve_others():
            return False
        self.swarm.seen["rest is over"] += 1
        self.swarm.turn()
        if not self.swarm.is_brief:
            return True
        for end in self.swarm.ends:
            if end.other.process is self:
                end.note_read()
        return True

    def say(self, message: control.ControlMessage) -> None:
        """Send a message to the router, of those that simulated routers know."""
        if isinstance(message, control.InStep):
            self.tell_router(message)

    def note_goodbye(self, end: End) -> None:
        """A link ends here."""
        there = end.other.process
        is_listed = self.listed.get(there.number) == there.peer.boot_id
        self.swarm.seen["goodbye before the router tells"] += is_listed and end.link is not None and end.link.has_left

    def on_ready(self) -> None:
        alive = {one.peer.boot_id for one in self.swarm.alive}
        behind = [
            one
            for one in self.links.sessions
            if one.hello and one.hello.boot_id in alive and not one.link.is_synchronised
        ]
        assert not behind, f"{self.number} accepts, and is not in step"
        self.is_ready = self.was_ready = True
        self.tell_router(control.Ready())

    def post(self, message: control.ControlMessage) -> None:
        """Send it a message of the router, which may not know yet that it is dead: then nobody hears it."""
        if self.is_alive:
            self.inbox.append(message)

    def on_channel(self, router: int) -> None:
        """As the worker: the channel has ended, or the keeper has passed on another router's."""
        if self.is_relay:
            if router:
                self.channel = router
                self.tell_router(control.Relays(1, 3600.0))
        elif not self.was_ready:
            self.die("exit 1")  # nobody is connected here
        elif router:
            self.channel = router
            leaves_within_s = max(0.0, self.leaves_at_s - self.loop.time()) if self.leaves_at_s else -1.0
            self.tell_router(control.Resumed(self.sink.is_in_step, True, 0, leaves_within_s, self.has_drained))

    def hear(self, message: control.ControlMessage | Channel) -> None:
        """Handle a message from the router."""
        if isinstance(message, Channel):
            self.on_channel(message.router)
        elif isinstance(message, control.LinkedShards):
            self.listed = {one.shard: one.boot_id for one in message.shards}
            self.links.on_linked_shards(message.shards)
        elif isinstance(message, control.Ping):
            self.tell_router(control.Pong(message.seq))
        elif isinstance(message, control.Drain) and self.gateway is not None:
            self.leaves_at_s = self.leaves_at_s or self.loop.time() + message.deadline_s
            self.gateway.leave(message.deadline_s, self.on_gateway_left)
        elif isinstance(message, control.Drain) and self.departure is None:
            self.leaves_at_s = self.loop.time() + message.deadline_s
            self.quiet_s = min(QUIET_S, message.deadline_s)
            self.departure = Departure(
                self.loop,  # type: ignore[arg-type]
                self.clients,  # type: ignore[arg-type]
                grace_s=message.deadline_s / 2,
                spread_s=message.deadline_s / 2,
                quiet_s=self.quiet_s,
                on_done=self.on_departed,
                mover=ToOthers(self.departures, self.links.reply_prefixes, message.to) if message.to else None,
                is_awaited=self.is_awaited,
            )
            self.swarm.seen["leave"] += 1
            self.swarm.seen["retire"] += bool(message.to)
            self.is_relay_next = message.relay_s > 0

    def on_gateway_left(self) -> None:
        """As the worker: it ends at once."""
        servers = self.swarm.servers
        assert servers is not None
        self.has_left = not any(door.gateway is self.gateway and door.is_open for door in servers.doors)
        assert self.has_left or self.loop.time() >= self.leaves_at_s, "the gateway leaves before its servers have"
        self.swarm.seen["gateway gave up"] += not self.has_left
        self.is_ready = False
        self.has_drained = True
        self.tell_router(control.Drained(False))
        self.links.close()
        self.engine.probe.finish()
        self.die("exit 0")

    def is_awaited(self) -> bool:
        is_busy = self.links.moves.n_arriving > 0 or self.links.reply_prefixes.is_busy
        return is_busy or self.swarm.n_answers_due(self) > 0

    def on_departed(self) -> None:
        self.is_ready = False
        now_s = self.loop.time()
        assert now_s >= self.leaves_at_s or now_s - self.clients.accepted_s >= self.quiet_s - STEP_S, (
            f"shard {self.number} leaves {now_s - self.clients.accepted_s:.2f} s after a connection came: more may come"
        )
        # (When its time is up, clients that are still on their way to it or from it are lost.)
        moves = self.links.moves
        self.left_due = self.is_awaited()
        self.has_left = self.loop.time() < self.leaves_at_s or (moves.n_arriving == 0 and not moves.is_leaving)
        self.has_drained = True
        self.swarm.seen["left without a router"] += not self.swarm.has_router
        self.tell_router(control.Drained(self.is_relay_next))
        self.links.close()
        self.engine.probe.finish()
        self.loop.call_later(LAST_WORDS_S, self.die, "exit 0", self.is_relay_next)

    def die(self, why: str = "killed", is_relay: bool = False) -> None:
        """End the process, or (`is_relay`) the shard in it; bytes that its sockets have taken are still carried."""
        if not self.is_alive:
            if self.is_relay:  # that is no more than clients with TLS elsewhere
                self.is_relay = False
                self.outbox.append(supervision.Exited(why))
            return
        self.is_alive = False
        self.is_relay = is_relay
        self.swarm.forget_alive()
        self.transport.close()
        self.loop.end()
        # (The keeper passes a new channel on by another way, to a relay too.)
        self.inbox = deque(one for one in self.inbox if is_relay and isinstance(one, Channel))
        self.swarm.seen["relay"] += is_relay
        if is_relay:
            self.tell_router(control.Relays(1, 3600.0))
        else:
            self.swarm.seen["died without a router"] += not (self.swarm.has_router or self.has_drained)
            self.outbox.append(supervision.Exited(why))  # the keeper reaps it, and tells whichever router there is
        self.swarm.on_end(self)
        self.swarm.end_words(self)


class Swarm:
    """The router and its shards. `on_end(process)` is called when a process has ended, for whatever reason."""

    def __init__(
        self,
        shards: int,
        *,
        seed: int,
        limits: Limits,
        configure: Callable[[Engine], None] = lambda engine: None,
        capacity: int = -1,
        link_mark: int = 0,
        has_gateway: bool = False,
        is_fenced: bool = False,
        rests: bool = False,
        own_interest: Callable[[], dict[str, set[str]]] = dict,
        prefers_local: bool = False,
        is_brief: bool = False,
        is_gradual: bool = False,
        is_by_account: bool = False,
    ) -> None:
        """`is_brief`: who has had its turn goes on with serve_others(), or when all arrives, or when time passes.

        `is_gradual`: so does a shard that tells a new link all interest, or drops that of one that has ended.
        `is_by_account`: a leaf node's messages go to its cluster's connections in other accounts.
        """
        self.now_s = 0.0
        self.is_brief = is_brief
        self.is_gradual = is_gradual
        self.is_by_account = is_by_account
        self.is_fenced = is_fenced
        self.rests = rests
        self.own_interest = own_interest
        self._prefers_local = prefers_local
        self.servers: Servers | None = None  # set before anybody connects
        self.n_timers = 0
        self.next_due_s = 0.0  # no timer is due before
        self.seen: Counter[str] = Counter()
        self.on_end: Callable[[Process], None] = lambda process: None
        self.on_frames: Callable[[End, list[bytes]], None] = lambda end, lines: None
        self.on_break: Callable[[list[bytes], list[bytes]], None] = lambda sent_on, lost: None
        self.on_forgotten: Callable[[int], None] = lambda number: None  # by the router, with this number
        self.on_tick: Callable[[], None] = lambda: None  # of the router
        self.movers: Movers  # set before anybody moves
        self.n_answers_due: Callable[[Process], int] = lambda process: 0  # to requests to other accounts
        self.words: dict[tuple[Process, Process], deque[Word]] = {}  # on their way from host to host
        self.by_boot_id: dict[str, Process] = {}
        self._seed = seed
        self._limits = limits
        self._configure = configure
        self._capacity = capacity
        self.link_mark = link_mark
        self._booted = 0
        self._ticked_s = 0.0
        self.ends: list[End] = []
        self._peers: list[control.LinkedShard] = []
        self.routers = 1  # so many there have been
        self.has_router = True  # else the last one is dead
        self._router_died_s = 0.0
        self._late: tuple[int, ShardState, supervision.Event] | None = None  # the last change of the keeper's record
        self._told_again: list[tuple[int, supervision.Event]] = []  # what the keeper tells the next router
        self.wanted = set(range(shards))
        self.states = {number: ShardState() for number in range(shards)}
        if has_gateway:
            self.states[control.GATEWAY_NUMBER] = ShardState(is_founder=False)
            self.wanted.add(control.GATEWAY_NUMBER)
        self.processes: dict[int, Process] = {}  # the one that runs, or waits to be reaped
        self._alive: list[Process] | None = None  # None: to be found anew
        self.probes: list[Probe] = []  # of those that live
        self._listed: dict[int, list[control.LinkedShard]] = {}
        for number in sorted(self.wanted):
            self.deliver(number, supervision.StartWanted())
        self.settle()
        assert all(process.is_ready for process in self.processes.values()), "the broker does not start"

    # ---- shards

    def new_engine(self, number: int) -> Engine:
        """The engine of a new shard, with the next seed."""
        engine = Engine(self._limits, seed=self._seed + self._booted, shard=number, prefers_local=self._prefers_local)
        self._booted += 1
        engine.probe.last_cid = self._booted * 1000
        engine.probe.set_clock(self.now_us)
        self._configure(engine)
        return engine

    @property
    def now_us(self) -> int:
        return FIRST_US + int(self.now_s * 1e6)

    @property
    def alive(self) -> list[Process]:
        """The processes that live, by number."""
        if self._alive is None:
            self._alive = [one for _, one in sorted(self.processes.items()) if one.is_alive]
            self.probes = [one.probe for one in self._alive]
        return self._alive

    def forget_alive(self) -> None:
        """A process has begun or ended."""
        self._alive = None

    @property
    def shards(self) -> list[Process]:
        """The processes that live and have clients, by number."""
        return [one for one in self.alive if one.gateway is None]

    @property
    def gateway(self) -> Gateway | None:
        """That of the gateway's process, which may be dead; None: this broker has none."""
        process = self.processes.get(control.GATEWAY_NUMBER)
        return None if process is None else process.gateway

    @property
    def ready(self) -> list[Process]:
        """Processes that accept clients; the router steers new clients away from the others."""
        return [one for one in self.shards if one.is_ready and self.states[one.number].is_accepting]

    def listening(self, path: str) -> Process | None:
        for process in self.alive:
            if process.peer.path == path and process.transport.is_listening:
                return process
        return None

    # ---- moves

    def send_word(self, old: Process, new: Process, word: Word) -> None:
        """A host tells another one; to a process that is dead it is lost."""
        if new.is_alive:
            self.words.setdefault((old, new), deque()).append(word)
        elif word.client is not None:
            self.movers.lost(word.client)

    def end_words(self, process: Process) -> None:
        """It is dead: what it said still arrives, and then its end."""
        for old, new in list(self.words):
            if new is process:
                del self.words[old, new]
        for there in self.alive:
            self.words.setdefault((process, there), deque()).append(Word(0))

    def hand(self, which: int) -> bool:
        """Deliver one word from host to host; False: none is on its way."""
        if not self.words:
            return False
        old, new = way = next(islice(self.words, which % len(self.words), None))
        words = self.words[way]
        word = words.popleft()
        if not words:
            del self.words[way]
        new.host.hear(old, word)
        self.turn()
        return True

    # ---- the router

    def deliver(self, number: int, event: supervision.Event) -> None:
        """Give the event to supervision's machine, and carry out its actions."""
        before = self.states[number]
        state, actions = supervision.step(before, event, self.now_s)
        self.states[number] = state
        for action in actions:
            if isinstance(action, supervision.Spawn):
                self.processes[number] = Process(self, number, state.starts)
                self.forget_alive()
            elif isinstance(action, supervision.Kill):
                self.seen["killed by the router"] += not isinstance(event, supervision.KillWanted)
                self.processes[number].die()
            elif isinstance(action, supervision.Forget | supervision.Release):
                self.on_forgotten(number)
            elif isinstance(action, supervision.Send):
                self.processes[number].post(action.message)
            elif isinstance(action, supervision.StopRouter):
                raise AssertionError(action.reason)
        if supervision.lasting(state) != supervision.lasting(before):
            self._late = number, before, event
        if state.is_linked != before.is_linked:
            self.publish()

    def publish(self) -> None:
        """Publish as router.supervision.supervisor does."""
        peers = [self.processes[number].peer for number, state in self.states.items() if state.is_linked]
        if peers != self._peers:
            self._peers = peers
            for number, state in self.states.items():
                if state.is_linked:
                    self.processes[number].post(control.LinkedShards(peers))

    def tell(self, which: int) -> bool:
        """Deliver one control message; False: none is on its way."""
        busy: list[tuple[Process, deque[Any]]] = []
        for _, one in sorted((number, one) for number, one in self.processes.items() if one.inbox or one.outbox):
            if one.inbox:
                busy.append((one, one.inbox))
            if one.outbox and self.has_router:
                busy.append((one, one.outbox))
        if not busy:
            return False
        process, box = busy[which % len(busy)]
        message = box.popleft()
        if box is process.outbox:
            self.deliver(process.number, message)
        else:
            process.hear(message)
        self.turn()
        return True

    def hear_of_death(self, dead: Process, process: Process) -> None:
        """The router hears of a death, and one process of the router's next list; others later."""
        while dead.outbox:
            self.deliver(dead.number, dead.outbox.popleft())
        while process.inbox and process.is_alive:
            process.hear(process.inbox.popleft())
        self.turn()

    def pass_s(self, seconds: float) -> None:
        """Let time pass, for all."""
        until_s = self.now_s + seconds
        while True:
            self.serve_all()
            due_s = [process.loop.next_s() for process in self.alive]
            self.now_s = min(until_s, self._ticked_s + TICK_S, *due_s)
            now_us = self.now_us
            for process in self.alive:
                process.probe.set_clock(now_us)
            self.turn()
            if not self.has_router and self.now_s >= self._router_died_s + ADOPTED_WITHIN_S:
                self.adopt()
            if self.now_s >= self._ticked_s + TICK_S:
                self._ticked_s = self.now_s
                if not self.has_router:
                    continue
                self.on_tick()
                for number in list(self.states):
                    self.deliver(number, supervision.TimePassed())
                    self.answer_ping(number)
            if self.now_s >= until_s:
                break

    def answer_ping(self, number: int) -> None:
        """Answer a PING before anything else, because no shard hangs here."""
        process = self.processes.get(number)
        if process is not None and process.is_alive and process.inbox:
            last = process.inbox[-1]
            if isinstance(last, control.Ping):
                if process.channel != self.routers:  # it takes the channel first
                    while len(process.inbox) > 1:
                        process.hear(process.inbox.popleft())
                    while process.outbox:
                        self.deliver(number, process.outbox.popleft())
                    if not process.is_alive:
                        return
                process.inbox.pop()
                self.deliver(number, control.Pong(last.seq))

    def join(self, most: int) -> bool:
        """Request one shard more; False: there are enough."""
        for number in range(most):
            state = self.states.setdefault(number, ShardState(is_founder=False))
            if state.phase is Phase.STOPPED or not state.is_wanted:
                self.wanted.add(number)
                self.deliver(number, supervision.StartWanted())
                return True
        return False

    def is_wanted_again(self, number: int) -> bool:
        """Whether this shard is leaving, and another process is to follow."""
        state = self.states[number]
        return state.phase is Phase.DRAINING and state.is_wanted

    @property
    def staying(self) -> list[int]:
        """Numbers of shards that have a process, or will have one, and that nobody wants."""
        return [
            number
            for number, state in self.states.items()
            if number not in self.wanted and (state.is_wanted or state.phase is not Phase.STOPPED)
        ]

    def leave(self, number: int, *, moves: bool = False) -> None:
        """Retire this shard; its clients are closed, or move to the others, and then every second process stays."""
        others = [one for one, state in self.states.items() if one != number and state.is_accepting]
        to = [one for one in others if one != control.GATEWAY_NUMBER] if moves else []
        self.wanted.discard(number)
        relay_s = 3600.0 if moves and self.states[number].starts % 2 else 0.0
        self.deliver(number, supervision.LeaveWanted(control.Drain(4.0 if moves else 1.0, to, relay_s)))

    def replace_gateway(self) -> None:
        """As router.supervision.supervisor: its process ends in order, and the next one follows."""
        self.deliver(control.GATEWAY_NUMBER, supervision.LeaveWanted(control.Drain(GATEWAY_LEAVES_WITHIN_S)))
        self.deliver(control.GATEWAY_NUMBER, supervision.StartWanted())

    # ---- a router that dies, and the next

    def lose_router(self, *, is_late: bool) -> None:
        """The router dies, with what it has not read; `is_late`: before it wrote down what it did last."""
        self.has_router = False
        self._router_died_s = self.now_s
        self.seen["router death"] += 1
        if is_late and self._late is not None and not isinstance(self._late[2], control.Relays):
            number, before, event = self._late
            self.states[number] = before
            if isinstance(event, supervision.Exited):  # the keeper tells the next one again
                self._told_again.append((number, event))
            self.seen["record is late"] += 1
        self._late = None
        for process in self.processes.values():
            process.outbox = deque(one for one in process.outbox if isinstance(one, supervision.Exited))
            if process.has_process:
                process.inbox.append(Channel(0))

    def adopt(self) -> None:
        """Another router takes over what the last one has left, as router.supervision.supervisor does."""
        self.has_router = True
        self.routers += 1
        again, self._told_again = dict(self._told_again), []
        ended: list[tuple[int, supervision.Event]] = []
        for number, state in sorted(self.states.items()):
            process: Process | None = self.processes.get(number)
            exited = again.get(number)
            if process is not None and (not state.has_process or process.start != state.starts):
                if process.is_alive:  # it was just started, and is not in the record
                    process.die()
                    self.seen["stranger"] += 1
                if not process.is_relay:
                    process.outbox.clear()
                process = None
            elif process is not None and process.outbox:
                exited = process.outbox.popleft()
            code = None if exited is None else int(getattr(exited, "reason", "") != "exit 0")
            self.states[number], actions = supervision.taken_over(state, self.now_s, code)
            if exited is not None:
                ended.append((number, exited))
            elif process is None and state.has_process:
                ended.append((number, supervision.Exited("the router died before it was started")))
            elif process is not None and state.has_process:
                process.inbox.append(Channel(self.routers))
                if actions:
                    process.die()
        self._peers = []
        for number, event in ended:
            is_wanted = self.states[number].is_wanted
            self.deliver(number, event)
            if event == supervision.Exited("exit 0") and not is_wanted:
                assert self.states[number].phase is Phase.STOPPED, f"shard {number} has left, and is started again"
        for number in sorted(self.states):
            if number in self.wanted:
                self.deliver(number, supervision.StartWanted())
            else:
                self.deliver(number, supervision.LeaveWanted(control.Drain(1.0)))
        self.publish()

    # ---- links

    def add_end(self, end: End) -> None:
        self.ends.append(end)
        if self._capacity >= 0:
            assert end.socket is not None
            end.process.engine.probe.set_takes(end.socket, self._capacity)

    def turn(self) -> None:
        """Let every shard do what is due now."""
        if self.next_due_s <= self.now_s:
            is_busy = True
            while is_busy:
                is_busy = False
                for process in self.alive:
                    is_busy |= process.loop.run()
            self.next_due_s = min((one.loop.timers[0][0][0] for one in self.alive if one.loop.timers), default=math.inf)
        if self.alive:
            finish_all(self.probes)

    def busy_ends(self) -> list[End]:
        """Ends of links from which something is to be read at the other end: bytes, or the end of the stream."""
        busy, are_some_over = busy_pipes(self.ends)
        if are_some_over:
            self.ends = [end for end in self.ends if not is_over(end)]
        return busy

    def carry(self, end: End, most: int, pieces: Iterable[int] = ()) -> None:
        """Let the other end read at most so many bytes, or the end of the stream."""
        there = end.other
        assert there.socket is not None and end.socket is not None
        data = b"" if end.is_cut else end.take(most)
        if data:
            lines = [] if self.is_brief else end.reader.lines(data)
            reroutes = there.process.links.reroutes
            waiting = reroutes.n_pending - reroutes.n_sent_on
            self.note_work(there, data)
            there.process.engine.probe.feed(there.socket, data, pieces)
            self.mark(there)
            if self._capacity >= 0 and end.is_open:
                end.process.engine.probe.set_takes(end.socket, self._capacity - end.on_its_way)
            if reroutes.n_pending - reroutes.n_sent_on > waiting and not any(b" _R_" in line for line in lines):
                self.seen["out-of-step wait"] += 1
            if self.is_brief:
                self.seen["link rests"] += there.rests
                end.note_read()
            else:
                self.note(lines, end)
        elif there.rests and not (end.is_cut and end.carried % 2):  # (else it has written, and been told)
            self.seen["link ends while it rests"] += 1
            there.process.serve_others()  # it reads on, and the end behind the last of it
        else:
            there.end()
        self.turn()

    def note_work(self, there: End, data: bytes) -> None:
        """Something arrives at this end: is its shard about to tell or to drop interest?"""
        if self.is_gradual and there.process.links.is_at_work and there.link is not None:
            self.seen["link waits for the last one's interest to be dropped"] += not there.link.is_joined
            self.seen["frame while interest is told or dropped"] += 1
            self.seen["message while interest is told or dropped"] += b"MSG " in data

    def serve_all(self) -> None:
        """Everybody goes on who rests."""
        if self.is_brief or self.is_gradual:
            is_busy = True
            while is_busy:
                is_busy = False
                for one in self.alive:
                    if one.loop.is_resting:  # (hardly ever)
                        is_busy |= one.serve_others()

    def note(self, lines: list[bytes], end: End) -> None:
        """Frames of this end are read at the other one."""
        told = told_of(lines, self.seen)
        if told:
            self.on_frames(end, told)

    def mark(self, end: End) -> None:
        """Give a link its mark when it is joined; the mark is small here."""
        assert end.socket is not None
        if self.link_mark:
            end.socket.set_stall_mark(self.link_mark)

    def cut(self, end: End) -> None:
        """Break the link: each end will notice it later; bytes on their way are lost."""
        end.is_cut = end.other.is_cut = True
        end.process.cut_from.add(end.other.process.peer.boot_id)
        end.other.process.cut_from.add(end.process.peer.boot_id)

    def settle(self) -> None:
        """Deliver everything that is on its way; no time passes."""
        self.turn()
        for _ in range(MOST_CARRIES):
            self.serve_all()
            if self.tell(0) or self.hand(0):
                continue
            busy = self.busy_ends()
            if not busy and not (self.servers is not None and self.servers.carry_all()):
                break
            for end in busy:
                if end.other.is_open:
                    self.carry(end, ALL)
        else:
            raise AssertionError("what is on its way between shards goes round in circles")

    @property
    def is_whole(self) -> bool:
        """Whether each shard has its links to all that the router wants."""
        wanted = [self.processes[number] for number, state in self.states.items() if state.is_linked]
        whole = all(
            len(one.links.sessions) == len(wanted) - 1
            and not one.clients.is_holding
            and one.links.moves.is_idle
            and not one.links.reply_prefixes.is_busy
            for one in wanted
        )
        return (
            whole
            and self.has_router
            and not any(state.is_wanted and state.phase is not Phase.READY for state in self.states.values())
        )
