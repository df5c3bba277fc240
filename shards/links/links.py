"""The links of one shard to its siblings: who dials whom, the handshake, and when all links are synchronised.

The shard with the higher number dials the lower, over the Unix socket named in the router's LinkedShards message. Both
send INFO, the one that dialled sends CONNECT; then the engine's SiblingLink carries interest and messages. The boot id
in the handshake distinguishes a dead shard from its successor. A link that breaks while its sibling lives is a hole, of
which the `LinkSink` is told. Not here: frames after the handshake (broker.link), fences (broker.fence).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from gnatswarm.broker.errors import CloseReason
from gnatswarm.broker.link import SiblingLink
from gnatswarm.broker.moves import Moves
from gnatswarm.broker.reply_prefixes import ReplyPrefixes
from gnatswarm.broker.reroutes import Reroutes

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from gnatswarm.broker.fence import MeshFence
    from gnatswarm.broker.mesh import Mesh
    from gnatswarm.shards.boundary.control import LinkedShard

logger = logging.getLogger("gnatswarm.links")

# Increased with every change of a frame or of the handshake. Shards of one broker come from one installation; versions
# differ when that was upgraded under a running broker.
LINK_VERSION = 13

# Said by a shard that ends in order: its siblings are not to take the end of their links for a fault.
GOODBYE = b"BYE\r\n"

# A process that connects and does not finish the handshake in this time is not a sibling. One that is may not run for
# seconds between its connecting and its first words, where many shards start on few processors.
HANDSHAKE_S = 10.0
DIAL_AGAIN_S = 0.1

# Two living shards restore a broken link in milliseconds. A shard that has not after this many checks exits and is
# restarted by the router: first the one that is dialled, whose socket may be the cause, then the other. Checks are
# counted, not seconds, because a process that did not run for a while has checked only once.
LOOK_S = 0.25
LOOKS_OF_THE_DIALLED = 8
LOOKS_OF_THE_DIALLER = 16
# A look at which interest was told, read or dropped since the last one, or moves went on for which the link waits, here
# or at its other end, which says nothing then: a million subjects take seconds where there are few processors.
LOOK_AT_PROGRESS = 0.125
# A look at any other link that is there instead, or being made: one of its ends may not run for seconds where there are
# few processors, and one that hangs is replaced by the router sooner. The first such link has half of the looks to it.
LOOK_AT_LINK = 0.25


class Hello(msgspec.Struct, frozen=True):
    """The content of INFO and CONNECT between shards; further keys are ignored."""

    server_id: str
    shard: int
    boot_id: str
    link_version: int


_hello_decoder = msgspec.json.Decoder(Hello)


class Hole:
    """A link broke though the router lists its sibling, of which this is the process."""

    def __init__(self, boot_id: str, since_s: float, process: int) -> None:
        self.boot_id = boot_id
        self.since_s = since_s
        self.process = process
        self.looks = 1.0  # at it, with the next one
        self.link: LinkSession | None = None  # that was there instead at the last look …
        self.progress = 0  # … and how far that was
        self.is_new = True  # no link was there at any look


class LinkSession:
    """One link: its engine part and the state of its handshake."""

    def __init__(
        self, links: Links, mesh: Mesh, fence: MeshFence, reroutes: Reroutes, *, dialled: LinkedShard | None
    ) -> None:
        self._links = links
        self.link = SiblingLink(mesh, fence, reroutes, self)
        self.link.rest_with(links.on_resting)
        self.dialled = dialled
        self.hello: Hello | None = None
        self.socket: LinkSocket | None = None
        self.process = 0  # at the other end, for Transport.has_ended()
        self.is_early = False  # its handshake came before the router told us of that shard

    def __str__(self) -> str:
        return f"link to shard {self.hello.shard}" if self.hello else "link to somebody"

    def on_info(self, raw: bytes) -> None:
        """The other end's INFO."""
        if self.hello is not None:
            self.link.end("INFO came twice")
            return
        try:
            hello = _hello_decoder.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:  # (nested too deeply)
            self.link.end(f"INFO is not a sibling's: {error}")
            return
        why = self._links.objection(hello, self.dialled)
        if why:
            self.link.end(why)
            return
        self.hello = hello
        if self.dialled is not None:
            self._links.on_linked(self)

    def on_connect(self, raw: bytes) -> None:
        """The other end dialled us and has sent its CONNECT."""
        if self.hello is None or self.dialled is not None or self.link.is_joined:
            self.link.end("CONNECT out of place")
            return
        self._links.on_introduced(self)

    def on_synchronised(self) -> None:
        """Both ends have each other's complete interest."""
        self._links.on_synchronised(self)

    def on_broken(self, why: str) -> None:
        """The other end broke the protocol between shards; the link is being closed."""
        logger.error("%s: %s; closing it", self, why)

    def on_closed(self, reason: int) -> None:
        """The link has ended."""
        self._links.on_closed(self, CloseReason(reason))


class LinkSocket(Protocol):
    """One end of a connection between two shards."""

    @property
    def opened(self) -> int:
        """When it was opened, in µs of the reactor's clock."""

    @property
    def is_hung_up(self) -> bool:
        """Whether the other end has closed it, perhaps without us having read that."""

    @property
    def unread_bytes(self) -> int:
        """What has come and is not carried out."""

    def kick(self, reason: CloseReason) -> None:
        """Close it; its session is told later."""

    def drain(self) -> None:
        """Read what has come, also the end."""


class Transport(Protocol):
    """How shards reach each other: `LinkSockets`, or its substitute in simulations. It listens from the start."""

    on_accepted: Callable[[Any], None]  # takes the connection of a sibling that has dialled

    def dial(self, path: str) -> Any:
        """A connection to the shard that listens there; OSError: none does, or it has no room."""

    def process_of(self, connection: Any) -> int:
        """The process at the other end, for has_ended(); 0: nobody knows."""

    def has_ended(self, process: int) -> bool:
        """Whether it certainly has."""

    def open(self, connection: Any, link: SiblingLink, session: LinkSession) -> LinkSocket:
        """Let a link be carried over this connection, and tell the session when it ends."""

    def finish(self) -> None:
        """Send what was queued outside of a round."""

    def listen_anew(self) -> None:
        """Listen again at the same path, if its file is gone."""

    def close(self) -> None:
        """Listen no more; connections stay."""


class LinkSink(Protocol):
    """Gets the reports of one shard's links."""

    def on_ready(self) -> None:
        """Called once, when the shard is synchronised with every shard in LinkedShards."""

    def on_change(self, links: int) -> None:
        """The number of synchronised links has changed."""

    def on_gone(self, link: SiblingLink) -> None:
        """A link has ended."""

    def on_hole(self) -> None:
        """A link is missing though its sibling lives: hold the operations of clients."""

    def on_doubt(self, sibling: int) -> int:
        """A broken link is back, and messages in flight may be lost; returns of how many connections."""

    def on_dead(self, sibling: int) -> None:
        """A sibling is dead, or has left: what it was sent concerns no later shard of its number."""

    def on_whole(self) -> None:
        """No link is missing any more."""

    def on_given_up(self, why: str) -> None:
        """A link could not be restored: this shard must end."""


class Links:
    """All links of one shard."""

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        sockets: Transport,
        mesh: Mesh,
        fence: MeshFence,
        hello: Hello,
        sink: LinkSink,
    ) -> None:
        self._loop = loop
        self._sockets = sockets
        self._mesh = mesh
        self._fence = fence
        self.reroutes = Reroutes(mesh, fence)
        self.moves = Moves(mesh, fence, self.reroutes)
        self.reply_prefixes = ReplyPrefixes(mesh, fence, self.reroutes)
        self._hello = hello
        self._sink = sink
        self._missing: dict[int, Hole] = {}  # siblings whose link broke
        self._parted: dict[str, float] = {}  # boot ids of siblings not to be dialled, and until when
        self._is_ready = False
        self._siblings: dict[int, LinkedShard] = {}
        self._sessions: dict[int, LinkSession] = {}  # joined ones, by the sibling's number
        self._greeting: dict[LinkSession, None] = {}  # those that are not joined yet, oldest first
        self._resting: list[SiblingLink] = []  # their messages take long to match
        # Both ends send INFO first; only the end that dialled sends CONNECT.
        words = msgspec.json.encode(hello)
        self._info = b"INFO " + words + b" \r\n"
        self._connect = b"CONNECT " + words + b"\r\n"
        self._last_linked: dict[int, str] = {}  # boot id of the last process of each number that was linked
        sockets.on_accepted = self._on_accepted
        self._is_at_work = False  # _go_on() is to be called
        mesh.soon = self._go_on_soon

    @property
    def sessions(self) -> list[LinkSession]:
        """The links that carry messages, by the sibling's number."""
        return [self._sessions[shard] for shard in sorted(self._sessions)]

    @property
    def has_unsent(self) -> bool:
        """Whether any sibling has yet to be sent what it is to have."""
        return any(session.link.pending_bytes for session in self._sessions.values())

    @property
    def has_unread(self) -> bool:
        """Whether anything of siblings' is still to be carried out."""
        return any(one.socket is not None and one.socket.unread_bytes for one in self._sessions.values())

    @property
    def siblings(self) -> list[int]:
        """The numbers of those that links lead to."""
        return list(self._sessions)

    def listen_anew(self) -> None:
        """Listen again at the same path, whose file was removed; existing links are unaffected."""
        self._sockets.listen_anew()

    def close(self) -> None:
        """This shard ends: say goodbye, listen and dial no more; links end with the process."""
        # (Others may let go of it before its process has ended: it would dial them, and be nobody whom they know.)
        self._siblings = {}
        self._missing.clear()  # nobody is kept waiting any more
        self._sockets.close()
        for session in [*self._sessions.values(), *self._greeting]:
            session.link.send(GOODBYE)
        self._flush()

    def _on_accepted(self, connection: Any) -> None:
        self._start(connection, dialled=None)

    def _dial(self, sibling: LinkedShard) -> None:
        if self._siblings.get(sibling.shard) is not sibling or sibling.shard in self._sessions:
            return
        if self._is_being_dialled(sibling):
            return
        if self._parted.get(sibling.boot_id, 0.0) > self._loop.time():
            self._loop.call_later(DIAL_AGAIN_S, self._dial, sibling)
            return
        try:
            connection = self._sockets.dial(sibling.path)
        except OSError as error:  # it has just died (the next LinkedShards will tell), or its backlog is full
            logger.debug("cannot reach shard %d: %s", sibling.shard, error)
            self._loop.call_later(DIAL_AGAIN_S, self._dial, sibling)
            return
        self._start(connection, dialled=sibling)

    def _start(self, connection: Any, *, dialled: LinkedShard | None) -> None:
        session = LinkSession(self, self._mesh, self._fence, self.reroutes, dialled=dialled)
        self._greeting[session] = None
        session.process = self._sockets.process_of(connection)
        session.socket = self._sockets.open(connection, session.link, session)
        session.link.send(self._info if dialled is None else self._info + self._connect)
        self._loop.call_later(HANDSHAKE_S, self._give_up, session)
        self._flush()

    def on_resting(self, link: SiblingLink) -> None:
        """Its messages take long to match: it is read on when others were served."""
        self._resting.append(link)
        if len(self._resting) == 1:
            self._loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        resting, self._resting = self._resting, []
        for link in resting:
            link.has_rested()
        self._flush()

    @property
    def is_at_work(self) -> bool:
        """Whether interest is being told to a sibling, or dropped, in turns."""
        return self._is_at_work

    def _go_on_soon(self) -> None:
        """The mesh has long work: it is done in turns, with others between."""
        if not self._is_at_work:
            self._is_at_work = True
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        after_s = self._mesh.go_on()
        self._is_at_work = after_s is not None
        if after_s:
            self._loop.call_later(after_s, self._go_on)
        elif after_s is not None:
            self._loop.call_soon(self._go_on)
        self._sockets.finish()

    def _flush(self) -> None:
        """Send on the loop's next turn what was queued outside of the reactor's turn."""
        self._loop.call_soon(self._sockets.finish)

    def _give_up(self, session: LinkSession) -> None:
        was_early = session.is_early
        if session in self._greeting and not was_early and session.socket is not None:
            session.socket.drain()  # what has come while this process did not run
            self._sockets.finish()
        if session not in self._greeting:
            return
        dialled = session.dialled
        sibling = self._siblings.get(dialled.shard) if dialled is not None else None
        lives = dialled is not None and sibling is not None and sibling.boot_id == dialled.boot_id
        if lives or session.is_early != was_early:
            # It has not come to answer: where many shards start on few processors, that takes seconds. (Whoever hangs
            # is replaced by the router.) Another connection would be answered no sooner, and the end of this one be
            # a broken link, if it was answered just now. Or its handshake has come, and not the router's word of it.
            self._loop.call_later(HANDSHAKE_S, self._give_up, session)
            return
        if session.is_early and session.socket is not None and session.socket.is_hung_up:
            session.socket.kick(CloseReason.CLIENT_CLOSED)  # it has ended meanwhile; who waits is not read
        elif session.is_early and session.hello is not None:
            session.link.end(f"boot id {session.hello.boot_id[:40]!r}, which the router does not know")
        else:
            session.link.end(f"no INFO and CONNECT within {HANDSHAKE_S:g} s")
        self._sockets.finish()

    # ---- siblings

    def on_linked_shards(self, shards: list[LinkedShard]) -> None:
        """The router's list of shards whose link sockets listen, this shard included."""
        known = {sibling.shard: sibling for sibling in shards}
        us = known.pop(self._hello.shard, None)
        self._hear_out(known)
        for shard, sibling in known.items():
            before = self._siblings.get(shard)
            if before is not None and before.boot_id == sibling.boot_id:
                known[shard] = before  # keep the object, so that dialling in progress continues
        self._siblings = known
        for shard, session in list(self._sessions.items()):
            if not self._is_alive(session) and not self._is_heard_out(session, known.get(shard)):
                self._drop(session, "its shard is gone")
        for shard, hole in list(self._missing.items()):
            if shard not in known or known[shard].boot_id != hole.boot_id:
                self._close_hole(shard)
        for session in [one for one in self._greeting if one.is_early and self._is_alive(one)]:
            session.is_early = False
            self.on_linked(session)
            session.link.go_on()
            self._flush()
        for shard, sibling in known.items():
            if shard < self._hello.shard:
                self._dial(sibling)
        if us is not None:
            self._look_whether_ready()

    def _hear_out(self, known: dict[int, LinkedShard]) -> None:
        """Read what those have sent that are not listed any more: the list may have overtaken their last messages.

        Where these take long to match, and their end has come, too, they are carried out in turns: see _is_heard_out.
        """
        for shard, session in list(self._sessions.items()):
            assert session.hello is not None and session.socket is not None
            sibling = known.get(shard)
            if self._is_heard_out(session, sibling):
                continue
            if sibling is None or sibling.boot_id != session.hello.boot_id:
                session.link.rest_with(None)
                session.socket.drain()

    def _is_heard_out(self, session: LinkSession, sibling: LinkedShard | None) -> bool:
        """Whether it is to be read on to its end, which on_closed() tells. Not when its shard has a successor."""
        return sibling is None and session.link.is_resting and session.socket is not None and session.socket.is_hung_up

    def _is_being_dialled(self, sibling: LinkedShard) -> bool:
        # (Not the object: a list without this shard may have come in between, as from a router that took over.)
        return any(one.dialled is not None and one.dialled.boot_id == sibling.boot_id for one in self._greeting)

    def part(self, shard: int, for_s: float) -> None:
        """For tests: break the link to this sibling, and do not dial it for so long; 0: dial it again.

        The end that is dialled only breaks it. A partition that outlasts the looks at a hole ends a shard, as always.
        """
        sibling = self._siblings.get(shard)
        if sibling is None:
            return
        # Only those that live: this must not grow.
        alive = {one.boot_id for one in self._siblings.values()}
        self._parted = {boot_id: until for boot_id, until in self._parted.items() if boot_id in alive}
        self._parted[sibling.boot_id] = self._loop.time() + for_s
        if for_s <= 0:
            return
        logger.warning("The link to shard %d is broken for %g s, as a test has asked for", shard, for_s)
        for session in [one for one in self._greeting if one.dialled and one.dialled.boot_id == sibling.boot_id]:
            session.link.end("parted")
        if shard in self._sessions:
            self._drop(self._sessions.pop(shard), "parted")
        self._flush()

    def objection(self, hello: Hello, dialled: LinkedShard | None) -> str:
        """Why a process with this handshake must not be linked; "" if it may."""
        if hello.link_version != LINK_VERSION:
            return f"a shard that speaks version {hello.link_version} between shards, not {LINK_VERSION}"
        if hello.server_id != self._hello.server_id:
            return "a shard of another broker"
        if not 0 <= hello.shard < 64 or hello.shard == self._hello.shard:
            return f"a shard that calls itself {hello.shard}"
        if dialled is not None and (hello.shard, hello.boot_id) != (dialled.shard, dialled.boot_id):
            return f"shard {dialled.shard} is not the one that was dialled"
        if dialled is None and hello.shard < self._hello.shard:
            return f"shard {hello.shard} dialled, which is ours to dial"
        return ""

    def _is_alive(self, session: LinkSession) -> bool:
        """Whether the process at the other end is in the router's list of linked shards."""
        if session.hello is None:
            return False
        sibling = self._siblings.get(session.hello.shard)
        return sibling is not None and sibling.boot_id == session.hello.boot_id

    def on_introduced(self, session: LinkSession) -> None:
        """The handshake of a process that dialled us is done. A new shard may dial before LinkedShards names it."""
        if self._is_alive(session):
            self.on_linked(session)
        else:
            session.is_early = True
            session.link.wait()

    def on_linked(self, session: LinkSession) -> None:
        """The handshake is done, and the other end is the shard that the router named."""
        assert session.hello is not None
        shard = session.hello.shard
        before = self._sessions.get(shard)
        if before is not None:  # it dials again before we have noticed the end of its last link
            self._drop(before, "another link of that shard is here")
        self._greeting.pop(session, None)
        self._sessions[shard] = session
        if shard in self._missing:
            lost = self._lost_text(shard)
            logger.warning("The link to shard %d broke, and is made again; %s", shard, lost)
        is_new = self._last_linked.get(shard) != session.hello.boot_id
        self._last_linked[shard] = session.hello.boot_id
        session.link.join(shard, is_new=is_new)
        logger.debug("linked to shard %d", shard)

    def _lost_text(self, shard: int) -> str:
        n = self._sink.on_doubt(shard)
        return (
            f"messages of {n} connections may be lost, and whoever relies on a PONG is closed, not acknowledged"
            if n
            else "nothing lost"
        )

    def _part(self, session: LinkSession) -> None:
        """Remove the sibling's interest now, not when the socket is closed: a successor's must not mix with it."""
        if not session.link.is_joined:
            session.link.join_no_more()
            return
        assert session.hello is not None
        shard = session.hello.shard
        # A shard that has just been killed is still in the last LinkedShards message; the next one will tell. Who has
        # said goodbye may be in it for long, where no router reads that it has left.
        is_broken = self._is_alive(session) and not session.link.has_left
        session.link.leave(is_broken=is_broken)
        if not is_broken:
            self._sink.on_dead(shard)
        else:
            was_whole = not self._missing
            if shard not in self._missing:  # (else it broke again before it was whole: the looks go on)
                hole = self._missing[shard] = Hole(session.hello.boot_id, self._loop.time(), session.process)
                self._loop.call_later(LOOK_S, self._look_at_hole, shard, hole)
            if was_whole:
                self._sink.on_hole()

    def _link_instead(self, shard: int, hole: Hole) -> LinkSession | None:
        """The link to this shard, or the one that is being made."""
        session = self._sessions.get(shard)
        if session is not None or not hole.process:
            return session
        return next((one for one in self._greeting if one.process == hole.process), None)

    def _look_at_hole(self, shard: int, hole: Hole) -> None:
        if self._missing.get(shard) is not hole:
            return
        before, hole.link = hole.link, self._link_instead(shard, hole)
        if hole.link is None and self._sockets.has_ended(hole.process):
            logger.warning("Shard %d has ended, and the router has not told so: serving on without it", shard)
            self._close_hole(shard)
            return
        most = LOOKS_OF_THE_DIALLED if shard > self._hello.shard else LOOKS_OF_THE_DIALLER
        if hole.is_new and hole.link is not None:
            hole.is_new = False
            hole.looks = min(hole.looks, most / 2)
        elif hole.looks >= most:
            for_s = self._loop.time() - hole.since_s
            self._sink.on_given_up(f"the link to shard {shard} broke and could not be made again for {for_s:.3g} s")
            return
        hole.looks += self._look_counts(hole, before)
        self._loop.call_later(LOOK_S, self._look_at_hole, shard, hole)

    def _look_counts(self, hole: Hole, before: LinkSession | None) -> float:
        """As much as this look at it counts; `before`: the link of the last one."""
        link, progress = hole.link, hole.progress
        if link is None:
            return 1
        hole.progress = link.link.n_told + self._mesh.n_slices + self.moves.n_slices
        if link is not before:  # (another one each time is no better than none)
            return 1
        return LOOK_AT_PROGRESS if hole.progress > progress or link.link.is_unheard else LOOK_AT_LINK

    def _close_hole(self, shard: int) -> None:
        """That sibling does not live any more, so nothing is missing."""
        del self._missing[shard]
        self._fence.gone(shard)
        self._sink.on_dead(shard)
        self.reroutes.look_again()
        self._look_whether_whole()

    def _look_whether_whole(self) -> None:
        if not self._missing:
            self._sink.on_whole()
            self._flush()

    def _drop(self, session: LinkSession, why: str) -> None:
        logger.debug("%s: %s", session, why)
        self._part(session)
        if session.hello is not None and self._sessions.get(session.hello.shard) is session:
            del self._sessions[session.hello.shard]
        if session.socket is not None:
            session.socket.kick(CloseReason.SERVER_SHUTDOWN)
        self._flush()

    def on_synchronised(self, session: LinkSession) -> None:
        """This shard and a sibling are synchronised."""
        assert session.hello is not None
        self._sink.on_change(self._in_step())
        if self._missing.pop(session.hello.shard, None):
            self._look_whether_whole()
        self._look_whether_ready()

    def on_closed(self, session: LinkSession, reason: CloseReason) -> None:
        """A link has ended: its sibling's interest is removed, and it is dialled again while the router lists it."""
        self._greeting.pop(session, None)
        self._part(session)
        session.link.leave()
        self._sink.on_gone(session.link)
        shard = session.hello.shard if session.hello else -1
        if self._sessions.get(shard) is session:
            del self._sessions[shard]
            logger.debug("%s closed: %s", session, reason.text)
        self._sink.on_change(self._in_step())
        dialled = session.dialled
        sibling = self._siblings.get(dialled.shard) if dialled is not None else None
        if dialled is not None and sibling is not None and sibling.boot_id == dialled.boot_id:
            was_joined = shard in self._missing
            self._loop.call_later(0 if was_joined else DIAL_AGAIN_S, self._dial, sibling)

    def _in_step(self) -> int:
        return sum(1 for session in self._sessions.values() if session.link.is_synchronised)

    def _look_whether_ready(self) -> None:
        if self._is_ready:
            return
        for shard in self._siblings:
            session = self._sessions.get(shard)
            if session is None or not session.link.is_synchronised:
                return
        self._is_ready = True
        self._sink.on_ready()
