"""What schedules have covered: how big they were, of which kinds, and how often each named situation occurred."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from statistics import median

from tests.simulation.schedule import APART, Schedule
from tests.simulation.world import World

# The test suite's schedules must contain each of them. Name → what World or the frames between shards call it.
SITUATIONS = {
    "a PONG waits for siblings": "fence",
    "503: nobody responds": "503",
    "queue message re-routed": "re-route",
    "lingering member took it": "linger",
    "… waits for other servers": "QEND",
    "a group's members leave at once": "group deserted",
    "… and a message is sent on from one to the next": "message chased",
    "payload that ends like a frame": "payload like a frame",
    "QNAK: no taker there": "QNAK",
    "wait for a link to be in step": "out-of-step wait",
    "interest taken back unsent": "take-back",
    "run of equal control lines": "volley",
    "link rests": "link rests",
    "… and breaks": "link breaks while it rests",
    "… and its sibling leaves": "sibling leaves with what rested",
    "… and is at its end": "link ends while it rests",
    "… and is read to its end in turns": "sibling that rests, and has hung up, is not listed",
    "client rests": "client rests",
    "frame while a shard tells all interest, or drops it": "frame while interest is told or dropped",
    "… and it is a message": "message while interest is told or dropped",
    "… and the next link waits for that": "link waits for the last one's interest to be dropped",
    "client held for a slow client": "hold for a client",
    "client held for a link that is behind": "hold for a link",
    "client held by a sibling's SLOW": "hold by SLOW",
    "… of a pattern": "hold by SLOW of a pattern",
    "SLOW said": "SLOW",
    "slow consumer closed": "slow consumer",
    "slow client caught up": "caught up",
    "message to another account": "account crossing",
    "request to another account": "service crossing",
    "answer sent on, QASK": "QASK",
    "answer": "answer",
    "replies that are due handed over": "replies handed over",
    "… and one comes meanwhile": "reply kept back",
    "PUB denied": "PUB denied",
    "SUB denied": "SUB denied",
    "reply permission used": "reply permission",
    "permissions reloaded": "rights reloaded",
    "… of a user who logs in anew": "rights of a user reloaded",
    "… of a member that lingers": "rights of who lingers reloaded",
    "PING before CONNECT": "PING before CONNECT",
    "more in the same write as CONNECT": "more in the same write as CONNECT",
    "client reset while it moves": "reset while it moves",
    "… and is heard to its end where it goes": "heard out where it went",
    "… and where it stays": "heard out where it stayed",
    "CONNECT again": "anew",
    "… as nats-server 2.15, which ends subscriptions": "anew, and without subscriptions",
    "… and waits for who lingers": "anew, when siblings know",
    "… in another account": "anew, in another account",
    "… and is refused": "anew, refused",
    "member on the publisher's shard, which is preferred": "member near by",
    "request with an inbox of its own": "inbox with a max",
    "message with a header": "header",
    "… for a client that knows none": "header left out",
    "message in parts": "message in parts",
    "… whose publisher has moved meanwhile": "end of a message in parts, elsewhere",
    "payload of max_payload": "largest payload",
    "control line of max_control_line": "longest line",
    "… and larger by a byte": "too large",
    "SUB beyond max_subscriptions": "too many subscriptions",
    "traced message": "traced",
    "… for nobody": "traced only",
    "… of which several shards tell": "several documents",
    "… and shards of another account": "trace in another account",
    "… which another server gets": "traced message to another server",
    "… which comes back from there": "traced message that came back from other servers",
    "message from another server that asks for a trace": "message from another server that asks for a trace",
    "+OK": "+OK",
    "pedantic error": "Invalid Publish Subject",
    "many errors in one write": "many errors",
    "limits reloaded": "limits reloaded",
    "imports and mappings reloaded": "imports reloaded",
    "… in turns": "imports reloaded in turns",
    "an account forgotten that nobody had, and named again": "account forgotten, and named again",
    "one destination of a weighted mapping": "weighted mapping to a",
    "the other destination": "weighted mapping to a.b",
    "… at another server": "weighted mapping, at another server",
    "answer of several": "answer to be followed",
    "link broke": "link break",
    "all clients of a shard held": "hole",
    "… until it sees that the sibling is dead": "sibling found dead before the router tells",
    "the broker has as many clients as it may": "the broker has enough clients",
    "… or an account": "the account has enough clients",
    "connections handed over": "handed over",
    "moves at once, of several shards": "moves at once",
    "a link breaks with a client on its way": "link breaks with a client on its way",
    "member of a queue group moves": "member moves",
    "subscription with a max moves": "max moves",
    "slow client moves": "slow client moves",
    "client waits for publish_limits": "client waits for publish_limits",
    "… and moves": "client that waits for publish_limits moves",
    "move stopped or refused": "move stopped",
    "shard joined": "join",
    "shard left in order": "leave",
    "… and a client moves though it was told": "moves though it was told",
    "… and its sibling knows before the router tells": "goodbye before the router tells",
    "… which was wanted again, and then not": "not wanted after all",
    "… which was still being started when the router died": "shard recanted",
    "… and somebody connects to it": "late connection",
    "… and is killed": "kill of a shard that leaves",
    "shard killed, and back": "kill",
    "all shards stop": "stop",
    "… with messages on their way between them": "stop with messages on their way",
    "message to another member of a cluster": "message to a route",
    "message from another member": "message from a route",
    "message to a leaf node": "message to a leaf",
    "message from a leaf node": "message from a leaf",
    "… from a member to a leaf node": "from a route to a leaf",
    "… from a leaf node to a member": "from a leaf to a route",
    "… from a leaf node to another": "from a leaf to a leaf",
    "message to our hub": "message to a hub",
    "message from our hub": "message from a hub",
    "… from our hub to a leaf node": "from a hub to a leaf",
    "… from a leaf node to our hub": "from a leaf to a hub",
    "leaf nodes of one cluster in several accounts": "leaf nodes' cluster of several accounts",
    "… and what comes from one goes to another": "message to another account of a leaf nodes' cluster",
    "several leaf nodes of one cluster in one account": "leaf nodes' cluster of several servers",
    "queue message to another server": "queue message to another server",
    "… to a leaf node that may not have everything": "queue message to a leaf node with rights",
    "… sent on, for its groups alone": "queue message sent on, for its groups alone",
    "… sent on by another member": "queue message sent on by another server",
    "… and sent back by it": "queue message sent back by another server",
    "answer of a leaf node that may only answer": "answer of a leaf node that may only answer",
    "message of a leaf nodes' cluster to a member": "message of a leaf nodes' cluster to a member",
    "interest of a leaf nodes' cluster": "interest of a leaf nodes' cluster told to a member",
    "a group with members at leaf nodes alone": "members of second choice alone",
    "answer of another server": "answer of another server",
    "message to another account, at another server": "message to another account, at another server",
    "request to another account, at another server": "request to another account, at another server",
    "request of another server to another account": "request of another server to another account",
    "… and its answer": "answer to another server from another account",
    "imports and mappings reloaded beside other servers": "imports reloaded with servers",
    "interest of another member in an account that comes later": "interest that was told before its account was known",
    "PONG to another member": "PONG to another server",
    "a PONG waits for other members": "fence of servers",
    "… and says that they know": "PONG that other servers know of",
    "another member answers late": "server is late",
    "a server that tells interest rests": "rest behind interest",
    "… which rests, because what it sends takes long": "server rests",
    "what another server sent may be lost, and it gets no PONG": "server's connection ended in doubt",
    "… or it gets one, and nothing is lost": "PONG to another server, and a link had broken",
    "… or relies on none, and stays connected": "PONG to a server that relies on none, and a link had broken",
    "connection to another server ended": "connection to a server ended",
    "… while the gateway reads of its shards": "connection to a server ended within a round",
    "gateway killed, and back": "gateway died",
    "gateway with connections replaced in order": "gateway with servers replaced",
    "… and another server reads to its end": "server read to the gateway's end",
    "… and a PONG comes meanwhile": "PONG while the gateway leaves",
    "router died, and another one took over": "router death",
    "… which lacked its last decision": "record is late",
    "… and killed a shard that it did not know": "stranger",
    "shard died without a router": "died without a router",
    "shard left without a router": "left without a router",
}


@dataclass
class Coverage:
    """Adds up schedules that have passed or failed."""

    schedules: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    shards: Counter[int] = field(default_factory=Counter)
    steps: list[int] = field(default_factory=list)
    clients: list[int] = field(default_factory=list)
    messages: int = 0
    seen: Counter[str] = field(default_factory=Counter)
    within: Counter[str] = field(default_factory=Counter)  # in how many schedules each situation occurred

    def add(self, schedule: Schedule, world: World | None) -> None:
        """Add one schedule; without a world it has failed."""
        self.schedules += 1
        self.kinds[" + ".join(name for name in schedule.features if name not in APART) or "plain"] += 1
        self.shards[schedule.shards] += 1
        self.steps.append(len(schedule.steps))
        if world is not None:
            self.clients.append(len(world.people))
            self.messages += len(world.messages)
            self.seen.update(world.seen)
            self.within.update(name for name, count in world.seen.items() if count)

    def merge(self, other: Coverage) -> None:
        """Add the schedules of another process."""
        self.schedules += other.schedules
        self.kinds.update(other.kinds)
        self.shards.update(other.shards)
        self.steps += other.steps
        self.clients += other.clients
        self.messages += other.messages
        self.seen.update(other.seen)
        self.within.update(other.within)

    @property
    def missing(self) -> list[str]:
        """Situations that have not occurred."""
        return [name for name, key in SITUATIONS.items() if not self.seen[key]]

    def __str__(self) -> str:
        if not self.schedules:
            return "no schedules"
        clients = self.clients or [0]
        shards = ", ".join(f"{number}: {count:,}" for number, count in sorted(self.shards.items()))
        lines = [
            f"{self.schedules:>12,}  schedules; by shards at the start: {shards}",
            f"{int(median(self.steps)):>12,}  operations (median; {min(self.steps)} to {max(self.steps)})",
            f"{int(median(clients)):>12,}  clients (median; {min(clients)} to {max(clients)})",
            f"{self.messages:>12,}  messages published",
            "",
            *(f"{count:>12,}  schedules: {kind}" for kind, count in self.kinds.most_common()),
            "",
            f"{'times':>12}  {'schedules':>10}  situation",
            *(f"{self.seen[key]:>12,}  {self.within[key]:>10,}  {name}" for name, key in SITUATIONS.items()),
        ]
        return "\n".join(lines)
