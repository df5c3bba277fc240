"""Other servers, as scripts: members of a cluster and leaf nodes that are connected to the simulated broker's gateway.

Each speaks the protocol between servers over a byte stream, and shares nothing with the broker's parser. It has one
user, who subscribes and publishes. Members of the cluster are connected to each other, too, without us: so what came
to us from one of them must not come to another through us. Leaf nodes may be a cluster, too (`origin`): two that are
connected to us, or one to us and one to a member. They are connected to each other, so members tell each other from
which such cluster something is, in the dialect (`LNOC`) of their version.

Where there are several accounts, a user is of one of them, and a leaf node is bound to one. Members have our accounts,
with their imports and mappings, and follow them for their users; leaf nodes leave that to us.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING

from gnatswarm.broker.errors import CloseReason
from gnatswarm.broker.exchange import Exchange
from gnatswarm.broker.fence import MeshFence
from gnatswarm.broker.message_trace import DISABLED
from gnatswarm.broker.options import GLOBAL_ACCOUNT
from gnatswarm.broker.options import Permissions as PermissionOptions
from gnatswarm.broker.permissions import Permissions
from gnatswarm.broker.serverlink import ServerLink
from gnatswarm.shards.gateway.leaving import Leaving
from tests.simulation.history import NEVER, Message, Subscription
from tests.simulation.schedule import BY_ACCOUNT, GROWS, MOST_SERVERS, POOLED, SPREAD, TRACED, UPWARD
from tests.simulation.tenants import LATE_ACCOUNT, RIGHTS, View, covers, is_kept_out, matches, may_publish
from tests.simulation.traces import header_from_outside, lines_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gnatswarm.broker.exchange import Resting
    from tests.simulation.promises import History
    from tests.simulation.swarm import Process, Swarm
    from tests.simulation.tenants import Tenants

OWN_ID = "NOURBROKER00"  # twelve letters, as QMSG has of each server's id
QUEUES = ("q", "r")  # and, in some worlds, a long one
LEAF_RIGHTS = (0, 0, 1, 2)
ONLY_ANSWERS = 5  # the rights of some leaf nodes in worlds with POOLED
SHARE_ONLY_ANSWERS = 0.2
SHARE_THIRD_MEMBER = 0.4  # of these worlds: one more member of the cluster, too
SHARE_IN_ONE = 0.6  # of these worlds: all leaf nodes are of one account
FIRST_USER = 1000  # numbers of clients from here on are users of other servers
KINDS = ("route", "route", "leaf", "leaf")
FENCE_TIMEOUT_S = 0.5
LATE_PONG_US = 2_000_000
LOOP_SUBJECT = b"$LDS."
SHARE_RESTED = 0.4  # of steps that carry bytes: before them, all go on that rest
# What members say in INFO about leaf nodes' clusters: nothing, that a message may be of one (nats-server 2.9), that
# interest is told apart as well (2.10.23 and newer, gnatswarm).
NO_LNOC, LNOC, LNOCU = "", "lnoc", "lnocu"


def number_in(body: bytes) -> int:
    """The number of the message with this header and payload."""
    return int(body.split()[-1])


def frames_in(data: bytes) -> Iterator[tuple[list[bytes], bytes, int]]:
    """Complete frames between servers: the words of each, what stands behind its line, and where it ends."""
    at = 0
    while (end := data.find(b"\r\n", at)) >= 0:
        words = data[at:end].split(b" ")
        at = end + 2
        body = b""
        if words[0].endswith(b"MSG"):
            size = int(words[-1])
            if len(data) < at + size + 2:
                break
            body = data[at : at + size]
            assert data[at + size : at + size + 2] == b"\r\n", data[at - 100 : at + 200]
            at += size + 2
        yield words, body, at


class Gateway:
    """What one process has beside its links, as shards.gateway has."""

    def __init__(self, process: Process, *, is_fenced: bool, rests: bool) -> None:
        probe = process.engine.probe
        assert isinstance(probe.fence, MeshFence) and probe.mesh is not None
        self.process = process
        self._mesh = probe.mesh
        self.exchange = Exchange(probe.mesh, probe.fence)
        self.exchange.set_own_id(OWN_ID)
        self.exchange.fence.is_on = is_fenced
        self.exchange.is_apart_by_account = process.swarm.is_by_account
        self._resting: list[Resting] = []
        if rests:
            self.exchange.rest_with(self._rest, 0, 0)
        elif process.swarm.is_brief:
            self.exchange.rest_with(self._rest)
        self.configure()
        self.exchange.fence.on_wait = self._on_wait
        self.late_until_us: dict[
            int, int
        ] = {}  # by slot: PONGs that waited for one that was late are on their way until …
        self._is_looking = False
        self.is_leaving = False  # it was told to end in order

    def configure(self) -> None:
        """What accounts import and map may have changed, as in shards.gateway.gateway."""
        for _ in self.exchange.renewals(self._mesh.account_names()):
            pass
        for account, wanted in self.process.swarm.own_interest().items():
            self.exchange.set_own_interest(account.encode(), {one.encode() for one in wanted})

    def take_accounts(self) -> None:
        """It has been given an account: what members have told in it counts."""
        servers = self.process.swarm.servers
        assert servers is not None
        for door in servers.doors:
            if door.gateway is self and door.is_open:
                assert door.link.take_accounts(), "what a member has told of an account is not kept"
        self.process.probe.finish()

    def leave(self, within_s: float, on_done: Callable[[], None]) -> None:
        """As shards.gateway.gateway: end, and lose nothing that is on its way."""
        servers = self.process.swarm.servers
        assert servers is not None
        if not self.is_leaving:
            self.is_leaving = True
            servers.on_leave()

        def sessions() -> list[DoorSession]:
            return [door.session for door in servers.doors if door.gateway is self and door.is_open]

        reactor = SimpleNamespace(finish=self.process.probe.finish, n_emptying=0)  # (doors do not half-close)
        leaving = Leaving(self.process.loop, reactor, self.exchange, sessions, on_done)  # type: ignore[arg-type]
        leaving.begin(within_s)

    def _rest(self, link: Resting) -> None:
        self.process.swarm.seen["server rests" if self.process.swarm.is_brief else "rest behind interest"] += 1
        self._resting.append(link)

    def end_rests(self) -> int:
        """Read on from all that rest; how many those are."""
        resting, self._resting = self._resting, []
        for link in resting:
            link.has_rested()
        return len(resting)

    def _on_wait(self) -> None:
        self.process.swarm.seen["fence of servers"] += 1
        if not self._is_looking:
            self._is_looking = True
            self.process.loop.call_later(FENCE_TIMEOUT_S, self._look)

    def _look(self) -> None:
        now_us = self.process.swarm.now_us
        late, next_us = self.exchange.fence.expire(now_us, round(FENCE_TIMEOUT_S * 1e6))
        self.process.swarm.seen["server is late"] += len(late)
        if late:
            self.late_until_us.update(dict.fromkeys(late, now_us + LATE_PONG_US))
            servers = self.process.swarm.servers
            assert servers is not None
            for message in servers.messages[servers.unsettled :]:
                message.is_late = True
        self._is_looking = next_us > 0
        if next_us:
            self.process.loop.call_later(next_us / 1e6, self._look)
        self.process.probe.finish()


class DoorSession:
    """What a gateway that leaves does with a connection."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self.link = door.link
        self.socket = self

    def end_sending(self) -> bool:
        """Nothing more comes from the gateway, which reads on."""
        if self._door.socket.pending:
            return False
        self._door.has_ended = True
        self._door.ends_at = self._door.socket.queued
        return True

    def fall_silent(self, _why: str) -> None:
        """The gateway sends nothing more, not even PONGs."""
        self.link.fall_silent()

    def close(self, _why: str) -> None:
        """The gateway reads no more either."""
        raise AssertionError("what the server has sent could have been read")


class Door:
    """One connection; the engine's session of it, too."""

    def __init__(self, gateway: Gateway, server: Server) -> None:
        self.gateway = gateway
        self.server = server
        self.carried = 0  # bytes that the server has read
        self.out = bytearray()  # all that the server has sent
        self.brought = 0  # bytes of that which are at the gateway
        self.rest = b""
        # For each PING: what it had told and sent before, and sent on for other servers.
        self.pings: list[tuple[list[Subscription], list[Message], list[Message]]] = []
        self.sent: list[Message] = []  # … since the last one
        self.sent_on: list[Message] = []
        self.has_ended = False  # the gateway sends nothing more
        self.ends_at = -1  # … than so many bytes; -1: it has closed
        self.is_left = False  # the server has read that, and sends nothing more either
        self.promised: list[tuple[Subscription, int]] = []  # when the gateway began to leave: since when each is known
        self.left_at = NEVER  # … and when that was
        self.was_in_step = False  # … and whether everything had arrived, and no link has broken since
        probe = gateway.process.probe
        self.link: ServerLink = ServerLink(gateway.exchange, self, is_route=server.kind == "route")
        self.socket = probe.adopt(self.link)
        self.session = DoorSession(self)
        self.link.takes_origins = server.says != NO_LNOC
        self.link.names_origins = server.says == LNOCU
        self.link.is_fenced = server.is_fenced
        if server.takes_only_queues:
            self.link.only_queues_as = server.short_id
        cluster = server.origin if server.kind == "leaf" else ""
        account = None if server.kind == "route" else server.account.encode()
        assert self.link.join(server.kind, account, cluster, is_checked=server.kind == "leaf")  # (we dial hubs)
        rights = RIGHTS[server.rights]
        if rights is not None:
            # What our broker may publish to it is what it may subscribe to.
            rules = PermissionOptions(
                publish_deny=rights.subscribe_deny,
                subscribe_allow=() if rights.responses else None,
                subscribe_deny=rights.publish_deny,
            )
            self.link.set_permissions(Permissions(rules))
            self.link.set_answers(rights.responses, rights.responses_expire_s, tells=server.takes_only_queues)
        self.link.begin()
        probe.finish()

    @property
    def is_open(self) -> bool:
        return self.gateway.process.is_alive and not self.socket.is_over

    @property
    def is_busy(self) -> bool:
        if self.is_left:
            return self.is_open and not (self.is_all_brought and self.socket.is_held)
        if self.has_ended:
            return self.gateway.process.is_alive
        return self.is_open and (not self.is_all_brought or len(self.socket.sent) > self.carried)

    @property
    def is_all_brought(self) -> bool:
        return self.brought == len(self.out)

    @property
    def is_late(self) -> bool:
        """Whether PONGs do not wait for it, or came lately because it was late."""
        gateway, slot = self.gateway, self.link.slot
        late_until_us = gateway.late_until_us.get(slot, 0)
        return slot < 0 or gateway.exchange.fence.late >> slot & 1 != 0 or gateway.process.swarm.now_us < late_until_us

    def end(self) -> None:
        """The connection breaks: what is on its way is lost."""
        if self.is_open:
            self.gateway.process.probe.end(self.socket)

    def break_off(self) -> None:
        """It breaks, and its socket is one of those that are read in one round of the gateway: others come after it."""
        if self.is_open:
            self.link.end()

    def lost(self) -> tuple[list[int], list[int]]:
        """What is on its way, by the numbers of the messages: to the server, and from it."""
        out = self.rest + self.socket.queued_from(self.carried)
        to_server = [number_in(body) for _, body, _ in frames_in(out) if body]
        read = self.brought - self.socket.unread_bytes
        return to_server, [number_in(body) for _, body, end in frames_in(bytes(self.out)) if body and end > read]

    def check_end(self) -> None:
        """Nothing is sent behind the end."""
        is_more = 0 <= self.ends_at != self.socket.queued
        assert not is_more, "the gateway sends more, and has said that it ends"

    def carry_in(self, most: int) -> None:
        """Bytes come to the gateway; behind the last one the end of the stream, where the server has left."""
        self.check_end()
        data = bytes(self.out[self.brought : self.brought + most]) if self.is_open else b""
        self.brought += len(data)
        if data:
            self.gateway.process.probe.feed(self.socket, data)
        if self.is_left and self.is_all_brought:
            self.gateway.process.probe.finish()  # what it read no more because it rested is read
            self.check_end()
            if not self.socket.is_held:
                self.end()

    def carry_out(self, most: int) -> None:
        """Bytes come to the server; behind the last one the end of the stream, where the gateway has ended it."""
        data = bytes(self.socket.sent[self.carried : self.carried + most])
        self.carried += len(data)
        self.rest = self.server.read(self.rest + data)
        self.check_end()
        if self.has_ended and self.carried == len(self.socket.sent):
            self.server.servers.on_end_of_stream(self.server)

    # ---- the session of the engine's link

    def on_pong(self) -> None:
        raise AssertionError("a PONG without a PING")

    def on_info(self, raw: bytes, /) -> None:
        raise AssertionError(raw)

    on_connect = on_error = on_info

    def on_early(self) -> None:
        raise AssertionError("a frame before the connection was made")

    on_interest = on_early

    def on_loop(self, _begins: bool, /) -> None:
        raise AssertionError("a loop")

    def on_unknown_account(self, account: bytes, /) -> None:
        assert account == LATE_ACCOUNT.encode() and self.server.account == LATE_ACCOUNT, account
        self.server.servers.seen["interest or a message in an account that is not known yet"] += 1

    def on_refused(self, why: str, subject: bytes, /) -> None:
        raise AssertionError((why, subject))

    rtt_us = 0

    def requestor(self) -> dict[str, object]:
        return {"kind": "Leafnode"}

    def on_broken(self, why: str, /) -> None:
        raise AssertionError(why)

    def on_closed(self, _reason: int, /) -> None:
        """The broker has closed it."""


class Server:
    """One other server, with its user."""

    def __init__(
        self,
        servers: Servers,
        number: int,
        kind: str,
        rng: Random,
        account: str,
        *,
        takes_only_queues: bool,
        is_spread: bool,
        is_pooled: bool,
    ) -> None:
        self.servers = servers
        self.number = FIRST_USER + number
        self.kind = kind
        self.account = account  # of its user; that to which a leaf node is bound
        self.rights = 0  # of a leaf node, by number: it keeps to them itself
        self.says = rng.choice((NO_LNOC, LNOC, LNOCU, LNOCU)) if kind == "route" else NO_LNOC
        # The cluster of leaf nodes that it is of; of a member, that its user is at a leaf node of it there.
        origins: tuple[str, ...] = ("",)
        if kind != "route" or self.says != NO_LNOC:
            origins = ("", "pond", "pond", "lake")
        if is_pooled and kind == "leaf":
            origins = ("pond", "pond", "pond", "lake", "")
        elif account != GLOBAL_ACCOUNT and not (is_spread and (kind == "leaf" or account == "A")):
            origins = ("",)  # (what a member tells of streams that a leaf node of its imports is not here)
        elif servers.swarm.is_by_account and len(origins) > 1:
            origins = ("pond", "pond", "pond", "lake")
        self.origin = rng.choice(origins) if kind != "hub" else ""
        self.takes_only_queues = takes_only_queues  # it is a gnatswarm, and knows QMSG
        self.is_fenced = takes_only_queues and kind == "route"  # … and has said that its clients' PONGs wait for ours
        self.short_id = f"NSERVER{self.number:05}"
        self.door: Door | None = None
        self.wants: list[Subscription] = []  # what its user is subscribed to now
        self.heard: set[tuple[str, str]] = set()  # (account, pattern)
        self.heard_queues: dict[tuple[str, str, str], int] = {}
        # Of other clusters of leaf nodes: (origin, account, pattern).
        self.heard_apart: set[tuple[str, str, str]] = set()
        self.heard_queues_apart: dict[tuple[str, str, str, str], int] = {}
        self.is_in_step = False  # all has arrived since it was connected, and nothing has ended
        self.to_answer: list[tuple[str, int]] = []
        self.may_answer: set[str] = set()  # beside what it may publish, over its present connection
        self.frames = 0  # of messages that came
        self.served_beside: set[tuple[int, int]] = set()  # plain subscriptions, and what came for a queue group
        self.told: dict[tuple[str, str, str], int] = {}  # (account, pattern, queue) → members, 1 of no group
        self.answered: set[int] = set()  # requests to other accounts
        self.breaks = 0  # how often it may have lost something

    def is_near(self, other: Server) -> bool:
        """Whether both are connected without us: nothing passes from one to the other here."""
        kinds = {self.kind, other.kind}
        if other is self or kinds in ({"route"}, {"route", "hub"}):
            return True
        if self.servers.swarm.is_by_account and self.account != other.account:
            return False
        return self.origin != "" and self.origin == other.origin

    def reaches(self, other: Server, account: str) -> bool:
        """Whether what it sends in this account gets to the user of one that is near: leaf nodes follow no imports."""
        if other is self or (self.kind == other.kind == "route" and (self.origin != other.origin or not self.origin)):
            return True
        return account == self.account == other.account

    def wants_ours(self, account: str, subject: str) -> bool:
        """Whether it was told that somebody wants this, beside leaf nodes of its user's own cluster."""
        found = {one for one in self.heard if one[0] == account}
        found |= {(account, one) for name, whose, one in self.heard_apart if name != self.origin and whose == account}
        return any(matches(pattern, subject) for _, pattern in found)

    def knows_group(self, account: str, subject: str, queue: str) -> bool:
        """Whether it was told that somebody here is a member of this queue group."""
        told = [*self.heard_queues, *(key[1:] for key in self.heard_queues_apart if key[0] != self.origin)]
        return any((whose, name) == (account, queue) and matches(one, subject) for whose, one, name in told)

    def frames_of(self, message: Message) -> tuple[View, ...]:
        """What its user publishes, in each account in which it sends it: a leaf node follows no imports."""
        subject = message.subject
        if self.kind != "route" or subject.startswith("_R_"):
            return (View(self.account, subject, is_across=False),)
        to = self.servers.tenants.mapped(self.account, subject)
        if len(to) > 1:  # a member chooses itself
            message.chosen = self.servers.dice.choice(to)
        return self.servers.tenants.views(self.account, subject, message.chosen)

    def seen_as(self, account: str, subject: str) -> str:
        """What its user sees of something in this account; "": nothing."""
        return self.servers.tenants.heard(View(account, subject, is_across=False), self.account)

    @property
    def current(self) -> list[Subscription]:
        """What its user is subscribed to, without an inbox."""
        return [one for one in self.wants if not one.pattern.startswith(f"_INBOX.{self.number}.")]

    def wanted_here(self) -> dict[tuple[str, str, str], int]:
        """What it is to tell: (account, pattern, queue) → members, 1 of no group."""
        found: Counter[tuple[str, str, str]] = Counter()
        rights = RIGHTS[self.rights]
        for sub in self.wants:
            if rights is not None and any(covers(rule, sub.pattern) for rule in rights.subscribe_deny):
                continue
            for account, pattern in self.servers.tenants.interest(
                self.account, sub.pattern, is_leaf=self.kind != "route"
            ):
                found[account, pattern, sub.queue] += 1
        return {key: n if key[2] else 1 for key, n in found.items()}

    # ---- what it tells

    def send(self, verb: str, account: str, words: str, body: bytes = b"", header_size: int = 0) -> None:
        if self.door is None:
            return
        if header_size:
            words = f"{words.rpartition(' ')[0]} {header_size} {words.rpartition(' ')[2]}"
        if self.kind != "route":
            verb = "H" + verb if header_size else "L" + verb
        elif not self.origin:
            verb, words = "H" + verb if header_size else "R" + verb, f"{account} {words}"
        else:
            # (LS- of 2.9 has two blanks in the place of the origin)
            name = " " if verb == "S-" and self.says == LNOC else self.origin
            verb, words = "L" + verb, f"{name} {account} {words}".replace("   ", "  ")
            if body and not header_size:
                words = f"{words.rpartition(' ')[0]} 0 {words.rpartition(' ')[2]}"
        self.door.out += f"{verb} {words}\r\n".encode() + body

    def send_only_queue(
        self, account: str, subject: str, queue: str, body: bytes, been: str = "", header_size: int = 0
    ) -> None:
        """A message that it has sent on for a group, whose last member there has gone; `been`: where it was before."""
        if self.door is not None:
            been = f"{been},{self.short_id}".lstrip(",")
            words = f"QMSG {been} {account} {subject} | {queue} {header_size} {len(body)}\r\n"
            self.door.out += words.encode() + body + b"\r\n"
            self.door.sent_on.append(self.servers.messages[number_in(body)])

    def tell(self) -> None:
        """Tell what is wanted here now, as far as that has changed."""
        before, self.told = self.told, self.wanted_here()
        for account, pattern, queue in sorted(before.keys() | self.told.keys()):
            n = self.told.get((account, pattern, queue), 0)
            if n == before.get((account, pattern, queue), 0):
                continue
            if queue:
                self.send("S+" if n else "S-", account, f"{pattern} {queue} {n}" if n else f"{pattern} {queue}")
            else:
                self.send("S+" if n else "S-", account, pattern)

    def tell_all(self) -> None:
        self.told = {}
        self.tell()
        if self.kind == "route":
            for account in self.servers.tenants.asked_by(self.account):
                self.send("S+", account, f"_R_.M{self.number}.>")

    # ---- what it hears

    def read(self, data: bytes) -> bytes:
        """Frames; returns what is not complete."""
        read = 0
        for words, body, after in frames_in(data):
            read = after
            verb = words[0]
            first = 2 if self.kind == "route" else 1
            origin = ""
            been = whose = ""
            if verb == b"QMSG":  # in front there is where it was, and who has published it and wants no echo
                names = words[1].decode().split(",")
                whose = next((name for name in names if name.startswith("~")), "")
                been = "" if names[0] == "+" else ",".join(name for name in names if name != whose)
                first += 1
            if self.kind == "route" and verb.startswith(b"L"):  # "<origin> <account>" in the place of the account
                assert self.says == LNOCU or (verb == b"LMSG" and self.says == LNOC), words
                origin = words[1].decode()
                first = 3
            if verb in (b"RMSG", b"LMSG", b"QMSG", b"HMSG"):
                # (behind the words of some there is a header's size, too)
                end = -2 if origin or verb in (b"QMSG", b"HMSG") else -1
                header_size = int(words[-2]) if end == -2 else 0
                self.on_message(self.account_in(words, first), words[first:end], body, header_size, origin, been, whose)
            elif verb == b"PING":
                assert self.door is not None
                self.door.out += b"PONG\r\n"
            elif verb == b"PONG":
                self.on_pong()
            else:
                assert verb in ((b"LS+", b"LS-") if self.kind != "route" or origin else (b"RS+", b"RS-")), words
                if origin:
                    account = words[2].decode()
                    self.on_interest_apart(verb[2:] == b"+", origin, account, [word.decode() for word in words[first:]])
                else:
                    account = self.account_in(words, first)
                    self.on_interest(account, verb[2:] == b"+", [word.decode() for word in words[first:]])
        return data[read:]

    def account_in(self, words: list[bytes], first: int) -> str:
        """The account in a frame whose words from `first` on are the subject and more."""
        return words[first - 1].decode() if self.kind == "route" else self.account

    def on_interest(self, account: str, wanted: bool, words: list[str]) -> None:
        if words[0].startswith(LOOP_SUBJECT.decode()):
            assert self.kind != "route", "a loop subject goes to leaf nodes and hubs alone"
        elif len(words) == 1 and wanted:
            self.heard.add((account, words[0]))
        elif len(words) == 1:
            assert (account, words[0]) in self.heard, f"{words[0]} ends in {account}, and has not begun"
            self.heard.remove((account, words[0]))
        elif wanted:
            self.heard_queues[account, words[0], words[1]] = int(words[2])
        else:
            assert (account, words[0], words[1]) in self.heard_queues, f"{words} ends in {account}, and has not begun"
            del self.heard_queues[account, words[0], words[1]]

    def on_interest_apart(self, wanted: bool, origin: str, account: str, words: list[str]) -> None:
        """Of leaf nodes' clusters: each begins once, and ends after it has begun."""
        self.servers.seen["interest of a leaf nodes' cluster told to a member"] += 1
        if len(words) == 1:
            assert ((origin, account, words[0]) in self.heard_apart) != wanted, (wanted, origin, words)
            self.heard_apart ^= {(origin, account, words[0])}
        elif wanted:
            self.heard_queues_apart[origin, account, words[0], words[1]] = int(words[2])
        else:
            del self.heard_queues_apart[origin, account, words[0], words[1]]

    def send_on(
        self, message: Message, account: str, subject: str, queue: str, body: bytes, header_size: int, been: str
    ) -> None:
        """Its last member has gone before we knew: another server of the cluster gets it, or we do again."""
        near = [one for one in self.servers.all if one.is_near(self)]
        members = [
            sub
            for one in near
            if self.reaches(one, account)
            and (seen := one.seen_as(account, subject))
            and not is_kept_out(one.rights, seen)
            for sub in one.wants
            if sub.queue == queue and matches(sub.pattern, seen)
        ]
        ours = sum(
            n
            for (whose, pattern, name), n in self.heard_queues.items()
            if (whose, name) == (account, queue) and matches(pattern, subject)
        )
        at = self.servers.dice.randrange(len(members) + ours) if members or ours else -1
        if 0 <= at < len(members):
            self.servers.got(members[at], message.number)
        elif at >= 0:
            self.servers.seen["queue message sent back by another server"] += 1
            message.sent_on |= {(account, queue)}
            self.send_only_queue(account, subject, queue, body, been, header_size)

    def on_pong(self) -> None:
        assert self.door is not None and self.door.pings, "a PONG without a PING"
        told, sent, _ = self.door.pings.pop(0)
        for message in sent:
            if message.may_be_lost and not self.is_fenced:
                self.servers.seen["PONG to a server that relies on none, and a link had broken"] += 1
            elif not (message.crosses_reload or message.is_lost_outside or message.is_orphaned):
                self.servers.seen["PONG to another server, and a link had broken"] += message.may_be_lost
                message.may_be_lost = False
                message.acked_at = self.servers.now
                message.acked_us = self.servers.swarm.now_us
        for sub in told:
            if self.kind == "route":  # every shard knows it
                sub.acked_at = min(sub.acked_at, self.servers.now)
                self.servers.seen["PONG to another server"] += 1

    def on_message(
        self, account: str, words: list[bytes], body: bytes, header_size: int, origin: str, been: str, whose: str
    ) -> None:
        """From our broker; `origin`: of a leaf node of this cluster; `been`: for groups alone, and where it was."""
        subject, queues, reply = words[0].decode(), [], ""
        if len(words) > 1 and words[1] in (b"+", b"|"):
            reply = words[2].decode() if words[1] == b"+" else ""
            queues = [word.decode() for word in words[3 if reply else 2 :]]
        elif len(words) > 1:
            reply = words[1].decode()
        number = number_in(body)
        if been:
            assert self.takes_only_queues and queues, words
            assert been.split(",")[0] in (OWN_ID, "-"), been
            self.servers.seen["queue message sent on, for its groups alone"] += 1
        message = self.servers.messages[number]
        self.check_header(message, body[:header_size])
        is_answer = message.subject.startswith("_R_")  # (what it is for its asker comes under another subject)
        if queues and message.is_echoless and self.takes_only_queues and not is_answer:
            # (what was detached does not say so)
            assert whose or self.servers.history.moved, f"{message}: who wants no echo is not named"
        if subject.startswith(f"_R_.M{self.number}."):
            self.on_answer(message, int(subject.split(".")[2]))
            return
        assert is_answer or self.servers.is_of(message, account, subject, self), (
            f"{message} came as {account} {subject}"
        )
        self.note_destination(message, account, subject)
        if reply.startswith("_R_"):
            assert self.wants_ours(account, reply), f"{message}: nobody has told that answers to {reply} are wanted"
        seen = self.seen_as(account, subject)
        assert seen or is_answer or message.crosses_reload, f"{message} came as {account} {subject} to {self.account}"
        assert not is_kept_out(self.rights, seen), f"{message} came as {seen}, which a leaf node is denied"
        if message.account != self.account:
            self.servers.seen["message to another account, at another server"] += 1
            self.servers.seen["request to another account, at another server"] += reply.startswith("_R_")
        came_from = self.servers.server_of(message)
        of_leaf = came_from.origin if came_from is not None else ""
        is_own = origin != "" and origin == self.origin
        assert origin in ("", of_leaf), f"{message} came as of {origin!r}"
        if self.says != NO_LNOC and of_leaf and not queues and not is_answer:
            is_apart = account == message.account or not self.servers.swarm.is_by_account
            assert origin == (of_leaf if is_apart else ""), f"{message} came as {account} of {origin!r}"
        if origin:
            self.servers.seen["message of a leaf nodes' cluster to a member"] += 1
        if came_from is not None and not is_own:
            if came_from.is_near(self):
                # Only for a group whose last member here had gone: see ServerLink.send_on(), and re-routes of shards.
                keys = {(account, queue) for queue in queues}
                is_named = message.named >= keys or message.named >= {(message.account, queue) for queue in queues}
                assert (queues and is_named) or is_answer, f"{message} came from there to {self.kind} {queues}"
                self.servers.seen["queue message sent on to another server"] += 1
            self.servers.seen[f"from a {came_from.kind} to a {self.kind}"] += 1
            self.servers.seen["message to another account of a leaf nodes' cluster"] += (
                came_from.kind == self.kind == "leaf" and self.origin == of_leaf != ""
            )
        self.servers.seen[f"message to a {self.kind}"] += 1
        self.servers.seen["queue message to a leaf node with rights"] += bool(queues) and self.rights > 0
        self.servers.seen["queue message to another server"] += bool(queues)
        self.frames += 1
        for sub in self.wants:
            if not sub.queue and matches(sub.pattern, seen) and not is_own and not been:
                # A frame that was sent on for a queue group serves plain subscriptions of a nats-server, too, such as
                # this one, of which nobody knew. The message comes in another frame for those of which somebody did,
                # before that one or behind it. (From a leaf node, one of its own cluster may have it without us.)
                is_excused = message.at <= sub.acked_at and (queues or (sub.sid, number) in self.served_beside)
                if not (is_excused and number in sub.got and (of_leaf or not self.takes_only_queues)):
                    self.servers.got(sub, number)
                if queues:
                    self.served_beside.add((sub.sid, number))
        for queue in queues:
            members = [one for one in self.wants if one.queue == queue and matches(one.pattern, seen)]
            if members:
                member = members[self.frames % len(members)]
                if not (self.number in message.near and message.is_of_leaf and number in member.got):
                    self.servers.got(member, number)  # (else it came here without us, as it was before it was mapped)
            elif self.kind == "route" and self.takes_only_queues:
                self.send_on(message, account, subject, queue, body, header_size, f"{been},{whose}".strip(","))
        if reply:
            self.to_answer.append((reply, number))
            rights = RIGHTS[self.rights]
            if rights is not None and rights.responses:
                self.may_answer.add(reply)
                assert not self.takes_only_queues or self.wants_ours(account, reply), f"{message}: {reply} is not told"

    def note_destination(self, message: Message, account: str, subject: str) -> None:
        """Note to which destination of a weighted mapping a message went: to the same for everybody."""
        to = self.servers.tenants.mapped(message.account, message.subject)
        if len(to) > 1 and not message.crosses_reload:
            heard = self.servers.tenants.heard
            found = [one for one in to if heard(View("A", one, is_across=False), account) == subject]
            assert found, f"{message} came as {account} {subject}"
            assert message.chosen in ("", found[0]), f"{message} went to {message.chosen}, and to {found[0]}"
            message.chosen = found[0]
            self.servers.seen["weighted mapping, at another server"] += 1

    def check_header(self, message: Message, header: bytes) -> None:
        """It has the header with which it was published, but for who traces it: that is told to no other server."""
        is_whole = not message.is_traced and not message.subject.startswith("_R_")
        lines = [lines_of(one, with_destination=is_whole) for one in (header, message.header)]
        assert lines[0] == lines[1], f"{message} came to another server with {header!r}"
        if message.is_traced:
            assert DISABLED in header and not message.is_only, f"{message}: another server may trace {header!r}"
            self.servers.seen["traced message to another server"] += 1

    def on_answer(self, message: Message, number: int) -> None:
        """To a request of its user to another account, for which it has made up the reply subject: the first one."""
        assert message.answers == number, f"{message} came as the answer to {number}"
        if number not in self.answered:
            self.answered.add(number)
            for sub in self.wants:
                if not sub.queue and matches(sub.pattern, f"_INBOX.{self.number}.{number}"):
                    self.servers.got(sub, message.number)


class Servers:
    """All other servers of one world."""

    def __init__(self, swarm: Swarm, seed: int, history: History, has: Callable[[str], bool]) -> None:
        """`has(word)`: what the world has, see README.md."""
        self.is_traced = has(TRACED)
        self.swarm = swarm
        self.seen: Counter[str] = swarm.seen
        self.rng = Random(f"servers {seed}")
        self.history = history
        self.tenants = history.tenants  # now
        self.subscriptions = history.subscriptions
        self.messages = history.messages
        self.asked: list[tuple[Message, Server, int]] = []  # requests to other accounts, and Server.breaks then
        self.now = 0
        kinds = self.rng.sample(KINDS, self.rng.randint(1, 4))
        if has(BY_ACCOUNT) and kinds.count("leaf") < 2:
            kinds = ["leaf", "leaf"]
        pool = Random(f"pool {seed}")
        if has(POOLED):
            kinds = [*kinds, *["leaf"] * pool.randint(1, 2)]
            if len(kinds) < MOST_SERVERS and Random(f"a third member {seed}").random() < SHARE_THIRD_MEMBER:
                kinds.append("route")
        origins = Random(f"origins {seed}")
        whose = Random(f"accounts {seed}").choices(self.tenants.accounts, k=len(kinds))
        if has(BY_ACCOUNT):  # (B and C import what A publishes)
            accounts = Random(f"leaf nodes' accounts {seed}").sample(("A", "B", "C"), 3)
            accounts = [*pool.choices(accounts, k=MOST_SERVERS), *accounts]
            whose = [accounts.pop() if kind == "leaf" else one for kind, one in zip(kinds, whose, strict=True)]
        elif has(POOLED) and pool.random() < SHARE_IN_ONE:
            one = whose[kinds.index("leaf")]
            whose = [one if kind == "leaf" else other for kind, other in zip(kinds, whose, strict=True)]
        if has(UPWARD) and "leaf" in kinds:
            kinds[kinds.index("leaf")] = "hub"
        if has(GROWS) and "route" in kinds:
            whose[kinds.index("route")] = LATE_ACCOUNT
        self.dice = Random(f"sent on {seed}")
        self.rest_dice = Random(f"rests {seed}")
        self.all = [
            Server(
                self,
                n,
                kind,
                origins,
                account,
                takes_only_queues=self.dice.random() < 0.6,
                is_spread=has(SPREAD),
                is_pooled=has(POOLED),
            )
            for n, (kind, account) in enumerate(zip(kinds, whose, strict=True))
        ]
        self.unsettled = 0  # messages from here on may not have arrived everywhere
        self.unacked: list[Message] = []  # of their users
        self.left: list[Door] = []  # whose servers have left them because the gateway leaves
        self.has_link_broken = False  # between shards, since everything had arrived
        self.has_server_gone = False  # likewise: others may not know yet what nobody wants any more
        rights = Random(f"rights {seed}")
        for server in self.all:
            if server.kind != "route" and (has(POOLED) or server.account != GLOBAL_ACCOUNT):
                # (a hub says what we may do there: here that is the same the other way round)
                server.rights = rights.choice(LEAF_RIGHTS)
                answers = Random(f"only answers {seed} {server.number}")
                if has(POOLED) and server.kind == "leaf" and answers.random() < SHARE_ONLY_ANSWERS:
                    server.rights = ONLY_ANSWERS
                self.history.rights[server.number] = [(0, server.rights)]
            if server.account != GLOBAL_ACCOUNT:
                self.subscribe(server, f"_INBOX.{server.number}.*", "")

    def server_of(self, message: Message) -> Server | None:
        return self.all[message.client - FIRST_USER] if message.client >= FIRST_USER else None

    @property
    def doors(self) -> list[Door]:
        return [one.door for one in self.all if one.door is not None] + self.left

    @property
    def is_held(self) -> bool:
        """Whether the gateway reads nothing of one of them for now: it feeds somebody slow."""
        return any(one.is_open and one.socket.is_held for one in self.doors)

    def is_of(self, message: Message, account: str, subject: str, server: Server) -> bool:
        """Whether a message may come to a server so: to a leaf node under the name that it has in its account."""
        for tenants in self.history.tenants_for(message):
            for view in tenants.views(message.account, message.subject, message.chosen):
                if server.kind != "route" and tenants.heard(view, account) == subject:
                    return True
                if (view.account, view.subject) == (account, subject):
                    return True
        return False

    def is_for(self, sub: Subscription, message: Message) -> bool:
        """Whether a subscription surely matches a message, as its account sees that."""
        arrangements = self.history.tenants_for(message)
        if len(arrangements) > 1 or message.subject.startswith("_R_"):
            return False
        tenants = arrangements[0]
        source = self.server_of(message)
        if sub.is_outside and source is not None and source.is_near(self.all[sub.client - FIRST_USER]):
            return False  # it has it already, or does not get it
        return any(
            view.is_sure
            and view.account not in message.unsent
            and (seen := tenants.heard(view, sub.account))
            and matches(sub.pattern, seen)
            and not self.history.may_be_kept_out(sub, seen, message.at, message.at)
            for view in tenants.views(message.account, message.subject, message.chosen)
        )

    def got(self, sub: Subscription, number: int) -> None:
        assert number not in sub.got, f"{sub}: {self.messages[number]} twice"
        sub.got[number] = self.now

    # ---- connections

    def dial(self, server: Server) -> None:
        """It connects, if the gateway serves."""
        gateway = self.swarm.gateway
        if (
            server.door is None
            and gateway is not None
            and not gateway.is_leaving
            and gateway.process.is_ready
            and gateway.process.is_alive
        ):
            server.door = Door(gateway, server)
            server.tell_all()
            self.seen["server connected"] += 1
            others = [one for one in self.all if one.door is not None and one.account != server.account]
            self.seen["leaf nodes' cluster of several accounts"] += any(
                one.origin == server.origin != "" for one in others
            )
            same = [one for one in self.all if one is not server and one.door is not None and one.kind == server.kind]
            is_one_of_several = any((one.origin, one.account) == (server.origin, server.account) for one in same)
            self.seen["leaf nodes' cluster of several servers"] += is_one_of_several and server.origin != ""

    def hang_up(self, server: Server) -> None:
        """Its connection ends: nobody knows any more what is wanted on the other side."""
        if server.door is not None:
            self.lose_with(server.door)
            server.door.end()
            self.detach(server)

    def detach(self, server: Server) -> None:
        """It has no connection to our broker any more."""
        server.door = None
        server.may_answer.clear()
        server.heard.clear()
        server.heard_queues.clear()
        server.heard_apart.clear()
        server.heard_queues_apart.clear()
        self.cut_off(server)

    def cut_off(self, server: Server) -> None:
        """What its user wants is not known to our broker from now on."""
        self.has_server_gone = True
        server.is_in_step = False
        server.breaks += 1
        for sub in server.wants:
            sub.acked_at = NEVER
            sub.cut_offs.append(self.now)

    def look(self) -> None:
        """The gateway has ended a connection in the place of a PONG: a broken link may have lost what came by it."""
        for server in self.all:
            door = server.door
            if door is not None and door.socket.is_over and door.socket.reason == CloseReason.ROUTE_REMOVED:
                assert server.is_fenced, f"server {server.number} does not rely on PONGs, and is disconnected"
                unanswered = [message for _, sent, _ in door.pings for message in sent] + door.sent
                sent_on = [message for *_, sent in door.pings for message in sent] + door.sent_on
                is_in_doubt = (unanswered or sent_on) and server.breaks
                assert is_in_doubt, f"server {server.number} is in doubt, and nothing can be lost"
                for message in unanswered:
                    message.is_lost_outside = message.may_be_lost = message.acked_at == NEVER
                for message in sent_on:  # (whatever PONG its own server has had)
                    message.is_lost_outside = message.may_be_lost = True
                self.seen["server's connection ended in doubt"] += 1
                self.lose_with(door)
                self.detach(server)

    def lose_with(self, door: Door) -> None:
        """What is on its way over this connection is lost."""
        to_server, from_server = door.lost()
        for number in to_server:
            self.messages[number].is_lost_outside = True
        for number in from_server:
            self.messages[number].is_lost_outside = self.messages[number].may_be_lost = True

    def lose(self) -> None:
        """What is on its way to or from other servers may be lost."""
        self.has_server_gone = True
        for message in self.messages[self.unsettled :]:
            message.is_lost_outside = True
        for message in self.unacked:
            message.may_be_lost = True

    def on_gateway_ended(self, *, has_left: bool) -> None:
        """Its process has ended; `has_left`: in order, after all that was on its way had arrived."""
        if has_left:
            for door in self.doors:  # what its socket had taken still arrives
                door.carry_out(1 << 30)
            return
        for server in self.all:
            self.hang_up(server)
        self.left.clear()
        self.lose()

    def on_leave(self) -> None:
        """The gateway begins to leave: what it knew is served, and it hears no more of what its servers want."""
        self.seen["gateway with servers replaced"] += bool(self.doors)
        for server in self.all:
            if server.door is not None:
                server.door.promised = [(sub, sub.acked_at) for sub in server.wants if not sub.queue]
                server.door.left_at = self.now
                server.door.was_in_step = server.is_in_step
                self.cut_off(server)

    def on_end_of_stream(self, server: Server) -> None:
        """The server has read all that the gateway sends, and closes; what it had sent before is still on its way."""
        door = server.door
        assert door is not None
        self.seen["server read to the gateway's end"] += 1
        for message in self.messages[self.unsettled :]:
            if self.is_promised(message):
                self.check_promised(door, message)
        door.is_left = True
        self.detach(server)
        if door.is_open:
            self.left.append(door)
        else:
            self.lose_with(door)

    def check_promised(self, door: Door, message: Message) -> None:
        """What was published before the gateway began to leave has come to whom it knew of then."""
        if message.at > door.left_at or message.is_outside:
            return  # (what another server sends is not passed on to this one any more)
        for sub, known_at in door.promised:
            if known_at < message.at and sub.left_at == NEVER and self.is_for(sub, message):
                assert message.number in sub.got, f"{sub}, on another server, did not get {message}"

    def on_break(self) -> None:
        """A link has broken, perhaps of the gateway: some of what other servers sent is lost, if they get no PONG."""
        self.has_link_broken = True
        for server in self.all:
            server.is_in_step = False
            server.breaks += 1
            if server.door is not None:
                server.door.was_in_step = False
        for message in self.unacked:
            message.may_be_lost |= message.acked_at == NEVER

    # ---- bytes

    def carry(self, which: int, most: int) -> bool:
        """Some bytes of one connection, in one direction; False: there are none."""
        if self.rest_dice.random() < SHARE_RESTED:
            self.end_rests()
        busy = [one for one in self.doors if one.is_busy]
        if not busy:
            return False
        door = busy[which % len(busy)]
        is_at_end = len(door.socket.sent) == door.carried and not door.has_ended
        if door.is_left or (not door.is_all_brought and (which % 2 or is_at_end)):
            door.carry_in(most)
        else:
            door.carry_out(most)
        self.forget_left()
        self.swarm.turn()
        return True

    def forget_left(self) -> None:
        """Forget the connections that have ended on both sides."""
        self.left = [one for one in self.left if one.is_open]

    def carry_all(self) -> bool:
        """Everything, once; False: there was nothing."""
        is_busy = self.end_rests()
        for door in self.doors:
            if door.is_busy:
                is_busy = True
                door.carry_in(1 << 30)
                if door.server.door is door:
                    door.carry_out(1 << 30)
        self.forget_left()
        if is_busy:
            self.swarm.turn()
        return is_busy

    def end_rests(self) -> bool:
        """Whoever rests is read on; False: nobody does."""
        return sum(gateway.end_rests() for gateway in {door.gateway: None for door in self.doors}) > 0

    # ---- their users

    def subscribe(self, server: Server, pattern: str, queue: str) -> None:
        sub = Subscription(server.number, len(self.subscriptions) + 1, pattern, queue, server.account, at=self.now)
        sub.is_outside = True
        sub.is_at_gnatswarm = server.takes_only_queues
        sub.is_second = server.kind != "route" or server.origin != ""
        self.subscriptions.append(sub)
        server.wants.append(sub)
        server.tell()

    def unsubscribe(self, server: Server, sub: Subscription) -> None:
        server.wants.remove(sub)
        sub.left_at = self.now
        server.tell()

    def take_account(self) -> None:
        """Our broker is given another account: what members have told in it before counts when all shards know it."""
        self.tenants = self.history.reloads[-1][1]
        for server in self.all:
            for sub in server.wants if server.account == LATE_ACCOUNT else []:
                sub.acked_at = NEVER
                self.seen["interest that was told before its account was known"] += server.door is not None

    def reload(self, tenants: Tenants) -> None:
        """Members have other imports and mappings, as our shards and the gateway have."""
        self.tenants = tenants
        gateway = self.swarm.gateway
        if gateway is not None and gateway.process.is_alive:
            gateway.configure()
            gateway.process.probe.finish()
        for server in self.all:
            server.tell()

    def ping(self, server: Server) -> None:
        if server.door is not None:
            door = server.door
            door.pings.append((list(server.wants), door.sent, door.sent_on))
            door.sent, door.sent_on = [], []
            door.out += b"PING\r\n"

    def publish(
        self, server: Server, subject: str, answers: int = -1, size: int = 0, *, wants_answer: bool = False
    ) -> None:
        if not may_publish(server.rights, subject) and subject not in server.may_answer:
            return
        self.seen["answer of a leaf node that may only answer"] += subject in server.may_answer
        message = Message(len(self.messages), server.number, subject, server.account, at=self.now, answers=answers)
        message.at_us = self.swarm.now_us
        message.is_outside = True
        message.may_be_lost = self.has_link_broken
        message.knows_no_origins = server.kind == "route" and server.origin != "" and server.says != LNOCU
        message.is_lost_outside = self.has_server_gone
        message.is_late = server.door is not None and server.door.is_late  # (it may not know who has left since)
        self.messages.append(message)
        near = [one for one in self.all if one.is_near(server)]
        message.near = frozenset(one.number for one in near)
        if self.is_traced and message.number % 7:
            message.header = header_from_outside(message.number)
            self.seen["message from another server that asks for a trace"] += 1
        body = message.header + (b"%d" % message.number).ljust(size)
        frames = server.frames_of(message)
        if server.kind != "route":  # (the choice in other accounts is ours, and of what it is mapped to)
            message.is_of_leaf = True
            is_mapped = self.tenants.mapped(server.account, subject) != (subject,)
            others = [view for view in self.tenants.views(server.account, subject) if view.is_across or is_mapped]
            groups = {*QUEUES, *(sub.queue for sub in self.subscriptions if sub.queue)}
            message.named |= {(view.account, queue) for view in others for queue in groups}
        for view in frames:
            if not self.publish_in(server, message, view, near, body, wants_answer=wants_answer):
                message.unsent |= {view.account}
        if server.door is None or len(message.unsent) == len({view.account for view in frames}):
            message.is_orphaned = True  # nobody else has said that it is wanted
        if server.door is not None:
            self.unacked.append(message)
            server.door.sent.append(message)
            self.seen[f"message from a {server.kind}"] += 1
            if wants_answer and server.is_in_step and len(self.tenants.views(server.account, subject)) > 1:
                self.seen["request of another server to another account"] += 1
                self.asked.append((message, server, server.breaks))

    def publish_in(
        self, server: Server, message: Message, view: View, near: list[Server], body: bytes, *, wants_answer: bool
    ) -> bool:
        """Publish in one account; False: nothing was sent to us."""
        account, subject = view.account, view.subject
        members: dict[str, list[Subscription | None]] = {}  # None: one of our broker's
        for one in near:
            seen = self.tenants.heard(view, one.account) if server.reaches(one, account) else ""
            if is_kept_out(one.rights, seen):  # (its user has these rights, too)
                continue
            for sub in one.wants:
                if seen and matches(sub.pattern, seen):
                    if sub.queue:
                        members.setdefault(sub.queue, []).append(sub)
                    else:
                        self.got(sub, message.number)
        of_leaves = [
            ((whose, pattern, queue), n)
            for (origin, whose, pattern, queue), n in server.heard_queues_apart.items()
            if origin != server.origin
        ]
        for (whose, pattern, queue), n in sorted([*server.heard_queues.items(), *of_leaves]):
            if whose == account and matches(pattern, subject):
                members.setdefault(queue, []).extend([None] * n)
        named = set()
        for queue, candidates in sorted(members.items()):
            chosen = self.rng.choice(candidates)
            if chosen is not None:
                self.got(chosen, message.number)
                continue
            message.named |= {(account, queue)}
            via = self.dice.choice([one for one in near if one.door is not None] or [server])
            is_asked = via is not server and via.kind == "route" and via.takes_only_queues and self.dice.random() < 0.3
            is_own = server.kind == "route" or self.tenants.mapped(account, subject) == (subject,)
            # (A member maps what comes from a leaf node, so it sends nothing on under its name there.)
            if is_asked and is_own and via.knows_group(account, subject, queue):  # (members hear nothing of hubs)
                self.seen["queue message sent on by another server"] += 1
                message.sent_on |= {(account, queue)}
                message.knows_no_origins |= via.origin != "" and via.says != LNOCU
                via.send_only_queue(account, subject, queue, body, header_size=len(message.header))
            else:
                named.add(queue)
        reply = ""
        if wants_answer:
            is_made_up = server.kind == "route" and view.is_across
            reply = (
                f"_R_.M{server.number}.{message.number}" if is_made_up else f"_INBOX.{server.number}.{message.number}"
            )
        if named:
            place = f"+ {reply}" if reply else "|"
            words = f"{subject} {place} {' '.join(sorted(named))} {len(body)}"
            server.send("MSG", account, words, body + b"\r\n", len(message.header))
        elif server.wants_ours(account, subject):
            place = f"{reply} " if reply else ""
            server.send("MSG", account, f"{subject} {place}{len(body)}", body + b"\r\n", len(message.header))
        else:
            return False
        return True

    # ---- when all has arrived

    def settled(self) -> None:
        """Everything has arrived, and all shards and the gateway are in step: who was there got what was sent."""
        for message in self.unacked:
            if not (message.may_be_lost or message.is_orphaned) and message.acked_at == NEVER:
                message.acked_at = self.now
                message.acked_us = self.swarm.now_us
        self.unacked.clear()
        self.check_asked()
        for message in self.messages[self.unsettled :]:
            if not self.is_promised(message):
                continue
            for server in self.all:
                for sub in server.wants:
                    if not sub.queue and sub.acked_at < message.at and self.is_for(sub, message):
                        assert message.number in sub.got, f"{sub}, on another server, did not get {message}"
        self.unsettled = len(self.messages)
        self.has_link_broken = self.has_server_gone = False
        for sub in self.subscriptions:
            if sub.is_outside and sub.left_at != NEVER:
                sub.left_acked_at = min(sub.left_acked_at, self.now)
        for server in self.all:
            server.is_in_step = server.door is not None and not server.door.gateway.is_leaving
            if server.is_in_step:
                for sub in server.wants:
                    sub.acked_at = min(sub.acked_at, self.now)
                self.check_heard(server)

    def check_asked(self) -> None:
        """Requests of other servers' users to other accounts have been answered, if somebody has answered them."""
        still = []
        for request, server, breaks in self.asked:
            in_time = self.swarm.now_us - request.at_us <= self.tenants.threshold_s * 1e6
            if server.breaks != breaks or request.is_lost_outside or request.crosses_reload or not in_time:
                continue
            inbox = server.wants[0]
            answers = [one for one in self.messages if one.answers == request.number and one.subject.startswith("_R_")]
            answers = [one for one in answers if one.at != NEVER and not one.is_denied]
            if any(one.number in inbox.got for one in answers):
                self.seen["answer to another server from another account"] += 1
                continue
            if all(self.is_promised(one) and one.acked_at != NEVER and not one.was_on_broken_link for one in answers):
                assert not answers, f"{request} of another server was answered by {answers[0]}, which did not come"
            still.append((request, server, breaks))
        self.asked = still

    def is_promised(self, message: Message) -> bool:
        """Whether all who are there for it must get it: also what its client published before a link broke."""
        if message.at == NEVER or message.is_denied or message.is_lost_outside or not message.is_promised:
            return False
        if message.is_only:  # traced, and for nobody
            return False
        return not self.has_link_broken or message.acked_at != NEVER  # (else its client is closed)

    def check_heard(self, server: Server) -> None:
        """Each server has been told what our clients and other kinds of servers want, and nothing else."""
        plain: set[tuple[str, str]] = set()
        queues: Counter[tuple[str, str, str]] = Counter()
        plain_apart: set[tuple[str, str, str]] = set()
        queues_apart: Counter[tuple[str, str, str, str]] = Counter()
        others = [one for one in self.all if one is not server and one.door is not None]
        # (of the leaf nodes of one cluster none hears of another, nor of a member's if that tells them apart)
        fed = {one.number: one for one in others if one.kind == "leaf" or server.kind == "leaf"}
        fed = {n: one for n, one in fed.items() if one.kind != server.kind or not one.is_near(server)}
        if server.kind == "leaf" and server.origin:
            fed = {n: one for n, one in fed.items() if one.says != LNOCU or not one.is_near(server)}
        if server.kind != "route":
            plain |= {(server.account, one) for one in self.swarm.own_interest().get(server.account, ())}
        of_leaf: dict[tuple[int, str, str, str], Counter[str]] = {}  # what leaf nodes' accounts import: by pattern here
        for sub in self.subscriptions:
            if sub.left_at != NEVER or (sub.is_outside and sub.client not in fed):
                continue
            origin = fed[sub.client].origin if sub.is_outside and server.says == LNOCU else ""
            rights = RIGHTS[fed[sub.client].rights if sub.is_outside else 0]
            if rights is not None and any(covers(rule, sub.pattern) for rule in rights.subscribe_deny):
                continue
            for account, pattern in self.tenants.interest(sub.account, sub.pattern):
                if server.kind != "route" and account != server.account:
                    continue
                is_apart = origin != "" and (account == sub.account or not self.swarm.is_by_account)
                if not sub.queue and is_apart:
                    plain_apart.add((origin, account, pattern))
                elif not sub.queue:
                    plain.add((account, pattern))
                elif sub.is_outside and fed[sub.client].kind != "route" and account != sub.account:
                    of_leaf.setdefault((sub.client, account, pattern, sub.queue), Counter())[sub.pattern] += 1
                elif is_apart:
                    queues_apart[origin, account, pattern, sub.queue] += 1
                else:
                    queues[account, pattern, sub.queue] += 1
        for (client, account, pattern, queue), counts in of_leaf.items():
            origin = fed[client].origin if server.says == LNOCU else ""
            if origin and not self.swarm.is_by_account:
                queues_apart[origin, account, pattern, queue] += max(counts.values())
            else:
                queues[account, pattern, queue] += max(counts.values())
        rights = RIGHTS[server.rights]
        for rule in rights.publish_deny if rights is not None else ():  # (of what it may not publish it hears nothing)
            plain = {one for one in plain if not covers(rule, one[1])}
            queues = Counter({one: n for one, n in queues.items() if not covers(rule, one[1])})
        if rights is not None and rights.responses:
            plain.clear()
            queues.clear()
        heard = {one for one in server.heard if not one[1].startswith("_R_") and one[1] not in server.may_answer}
        assert server.heard_apart == plain_apart, f"a member has heard of {server.heard_apart ^ plain_apart} wrongly"
        assert server.heard_queues_apart == dict(queues_apart), f"{server.heard_queues_apart}, not {queues_apart}"
        assert heard == plain, f"a {server.kind} of {server.account} has heard of {heard ^ plain} wrongly"
        assert server.heard_queues == dict(queues), f"a {server.kind} has heard {server.heard_queues}, not {queues}"

    def check_fenced(self, client: int, subscriptions: list[Subscription], messages: list[Message]) -> None:
        """A client gets its PONG with `fence: cluster`: members that are in step know all that it did before."""
        for server in self.all:
            door = server.door
            if server.kind != "route" or door is None or not door.is_open:
                continue
            is_leaving = door.left_at != NEVER
            if not (door.was_in_step if is_leaving else server.is_in_step) or door.is_late:
                continue
            self.seen["PONG that other servers know of"] += 1
            self.seen["PONG while the gateway leaves"] += is_leaving
            for sub in subscriptions:
                if sub.left_at == NEVER and sub.most == NEVER:
                    for account, pattern in self.tenants.interest(sub.account, sub.pattern):
                        is_known = (
                            (account, pattern, sub.queue) in server.heard_queues
                            if sub.queue
                            else (account, pattern) in server.heard
                        )
                        assert is_known, f"client {client} has its PONG, and another server does not know {sub}"
            for message in messages:
                if message.at == NEVER or message.is_denied or message.is_lost_outside or message.is_only:
                    continue
                if is_leaving:
                    self.check_promised(door, message)
                    continue
                for sub in server.wants:
                    if not sub.queue and sub.acked_at < message.at and self.is_for(sub, message):
                        assert message.number in sub.got, f"{message} is acknowledged, and {sub} did not get it"
