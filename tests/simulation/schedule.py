"""Which steps happen, in which order: drawn from a seed, or read from a file.

A schedule is text, a line a step, so that a failing one can be kept, shortened by hand, and read in a review:

    shards 3 seed 2 narrow
    sub 4 1 0
    carry 2 0 3
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

# What may happen, and how much of it there is where the seed does not say otherwise (see World for each).
KINDS = {
    "carry": 5,
    "settle": 2,
    "tell": 2,
    "pass": 1,
    "sub": 3,
    "unsub": 2,
    "max": 1,
    "burst": 2,
    "pub": 3,
    "volley": 1,
    "request": 1,
    "answer": 1,
    "ping": 3,
    "slow": 1,
    "take": 1,
    "rights": 1,
    "limits": 1,
    "go": 1,
    "come": 1,
    "break": 1,
    "kill": 1,
    "boot": 1,
    "leave": 1,
}
# What happens in a world whose connections move; drawn apart, so that the rest of a seed's schedule stays as it was.
MOVES = {"move": 8, "hand": 4, "stop": 1}
AROUND_MOVES = {"carry": 16, "pub": 6, "ping": 2, "sub": 2}
# What follows directly on a move in some schedules: frames arrive one by one, and messages are published between them.
BEHIND_MOVES = {"carry": 12, "pub": 8, "hand": 1, "move": 1, "volley": 1}
SHARE_WITH_MOVES = 0.5
# What placement by rule, a rolling restart and an operator make of moves: steps that follow each other, where a name
# with a number is the same client each time, and the others are drawn.
PATTERNS = {
    "placed when it has come": "rush carry pub carry bring pub rush carry carry bring ping",
    "placed, and placed again": "rush bring hop 1 carry pub bring hop 1 carry pub bring",
    "to and fro": "sub 1 hop 1 carry pub bring hop 1 pub bring volley hop 1 carry carry pub bring hop 1 bring",
    "publisher to and fro": "pub 1 hop 1 carry pub 1 bring pub 1 hop 1 bring pub 1 hop 1 carry bring pub 1 bring",
    "exchange": "hop hop hop hop carry pub carry pub bring pub hop hop bring",
    "all at once": "sub sub empty carry pub carry volley pub carry bring empty pub bring",
    "both members": "sub 1 sub 2 ping 1 ping 2 hop 1 hop 2 pub carry pub unsub 1 carry carry pub bring unsub 2 bring",
    "asker": "request 1 hop 1 answer carry bring answer carry hop 1 request 1 bring answer bring",
    "responder": "request settle hop 1 answer 1 carry bring answer 1 hop 1 answer 1 bring settle answer 1",
    "rolling restart": "boot settle pass settle retire tell tell pass carry pub request bring pass answer pass bring "
    "carry pub pass answer pass pass bring boot settle retire tell pass carry bring pass pass",
    "emptied while another joins": "boot tell tell carry empty carry carry tell pub bring tell carry empty bring",
    "left while others come": "hop hop hop carry carry carry carry retire tell pass pass pass carry pass pass "
    "bring pass pass pass pass",
    "left while an answer is due": "request settle retire tell pass pass carry pass pass answer bring pass pass answer",
    "left by half": "empty carry bring leave tell pass carry pub pass carry pass",
    "killed while it is emptied": "empty carry carry pub kill carry tell carry pub bring settle",
}
SHARE_WITH_PATTERNS = 0.4
# More of them, drawn apart, so that the rest of a seed's schedule stays as it was.
LATER_PATTERNS = (
    "sub 1 ping 1 settle max 1 hop 1 pub carry pub bring pub settle pub pub",
    "leave tell carry fall carry tell carry tell settle pub",
    "retire tell pass carry bring fall tell carry pass",
    "retire tell pass pass carry late pass late pass bring late pass carry bring pass pass",
    "leave tell pass late pass pass late pass pass",
    "gather settle desert carry carry carry carry carry carry carry carry carry carry carry carry ping",
    "gather gather settle desert carry carry carry carry desert carry carry carry carry carry carry carry ping settle",
    "gather settle desert 1 hop 1 carry carry carry bring ping 1 carry carry carry bring ping 1",
    "gather settle desert sever carry carry pub carry carry carry ping carry carry pass",
    "gather settle unsub sever carry pub carry pub carry ping settle",
    "boot tell tell carry carry tell carry come carry tell come carry tell come carry tell come settle",
    "request request settle sever answer carry carry answer carry carry carry settle pass",
)
SHARE_WITH_LATER_PATTERNS = 0.3
# What a shard does that leaves, at any time: in a world with accounts, drawn apart.
ENTRUSTED = (
    "request request settle entrust carry carry answer carry carry answer carry carry answer carry carry answer settle",
    "request request settle entrust carry answer carry answer carry answer carry answer entrust carry answer carry",
    "request request request settle entrust bring answer answer bring answer answer bring settle answer",
    "request settle entrust settle entrust settle answer settle retire tell pass pass answer",
    "request settle hop entrust carry answer hop carry answer carry bring",
    "request settle entrust carry carry kill tell answer carry",
)
SHARE_ENTRUSTED = 0.6
# The router dies, and another one takes over: drawn apart, of any world.
ROUTERS = (
    "router carry pub carry ping adopt tell tell carry",
    "router carry kill carry pub carry carry adopt tell tell carry settle",
    "router kill settle come pub adopt settle",
    "boot tell router tell carry adopt tell tell carry settle",
    "boot tell carry tell carry tell router tell carry tell carry carry adopt tell tell carry",
    "leave router tell pass carry adopt tell pass pass",
    "leave tell pass router pass tell adopt pass pass",
    "retire tell carry router carry bring pass adopt tell carry pass bring pass pass",
    "retire router adopt tell tell carry bring pass pass",
    "break carry router carry pass adopt tell carry settle",
    "router adopt tell router kill carry adopt tell tell settle",
    "kill tell router carry adopt tell carry tell settle",
    "hop carry router carry pub bring adopt tell hop bring",
)
SHARE_WITH_ROUTERS = 0.3
# Other servers are connected: drawn apart, of worlds whose accounts they can have; in half of these with
# `fence: cluster`, in half with rests of those that tell interest.
SHARE_WITH_SERVERS = 0.35
SHARE_WITH_RESTS = 0.5
SHARE_MAPPED = 0.6  # of those with a weighted mapping, of which some have other servers
SERVERS = {"there": 10, "over": 10, "dial": 2, "hang": 1, "fell": 1, "settle": 2, "ping": 2, "pub": 2, "request": 1}
SERVER_STEPS = (
    "serve",
    "seek",
    "reply",
    "dial",
    "hang",
    "fell",
    "over",
    "there",
    "replace",
    "flood",
    "reach",
    "within",
    "quit",
)
SERVER_FEATURES = "servers", "fenced", "rests"
# Runs are sent from where they were read, of messages of any size: drawn apart, of all worlds.
DIRECT = "direct"
SHARE_DIRECT = 0.3
# Some clients want none of what they publish: drawn apart, of all worlds.
NO_ECHO = "echoless"
SHARE_NO_ECHO = 0.3
# Clients send CONNECT again, often as somebody else: drawn apart, of all worlds.
ANEW = "anew"
SHARE_ANEW = 0.2
ANEW_PATTERNS = (
    "gather settle connect 1 carry carry pub carry carry ping 1 carry settle",
    "gather gather settle pub pub connect 1 connect 2 carry pub carry carry pub carry ping 1 carry",
    "gather settle desert 1 connect 1 carry carry pub carry carry carry connect 1 settle",
    "sub 1 ping 1 connect 1 pub carry hop 1 carry bring sub 1 ping 1 carry pub",
    "hop 1 connect 1 carry bring connect 1 pub bring hop 1 connect 1 bring",
    "gather settle connect 1 hop 1 carry carry hop 1 bring pub carry settle",
    "request 1 connect 1 answer settle answer request 1 settle connect 1 answer settle",
    "request request settle connect 1 connect 2 answer carry answer settle answer settle",
    "gather settle connect 1 break carry pub carry connect 1 carry pass settle",
    "gather settle connect 1 kill tell carry connect 1 pub carry settle",
    "gather settle retire connect 1 tell pass connect 2 carry bring pass pub bring pass pass",
    "sub 1 sub 1 connect 1 sub 1 connect 1 ping 1 carry pub settle pub",
)
# Queue groups prefer members on the publisher's shard: drawn apart, of all worlds.
LOCAL = "local"
SHARE_LOCAL = 0.1
# Requests have inboxes of their own, which end by a max; some clients know no headers: drawn apart, of all worlds.
MODEST = "modest"
SHARE_MODEST = 0.2
# The headers of some messages ask for a trace: drawn apart, of all worlds.
TRACED = "traced"
SHARE_TRACED = 0.2
# Payloads, control lines, names and numbers of subscriptions are as large as they may be, and larger by one: drawn
# apart, of worlds without slow clients.
BOUNDS = "bounds"
SHARE_BOUNDS = 0.15
# The broker and an account may have few clients more than there are at first: drawn apart, of worlds in which nobody
# logs in anew.
LIMITED = "limited"
SHARE_LIMITED = 0.2
LIMITED_STEPS = ("come", "come", "come", "go", "hop", "hand", "rush")
LIMITED_PATTERNS = (
    "come come come settle hop hop carry carry hand kill tell pass come carry bring come settle",
    "settle empty carry carry carry hand carry kill tell pass hand come bring pass settle come come",
    "settle hop hop carry carry hand break carry carry bring come come pass come settle come",
    "settle empty carry carry hand hand break carry carry bring pass settle come come come",
    "settle hop carry carry carry carry hand tear hand pass come bring settle come",
    "settle hop hop carry carry carry carry carry carry tear hand pass come bring settle come",
    "settle empty bring carry carry tear hand pass come bring settle come",
    "settle retire tell pass hand kill tell pass come hand carry pass bring come settle come",
    "settle go go come come come hop carry come carry hand come bring come",
)
# One shard hears late that a client moves, and what others publish meanwhile is acknowledged: drawn apart.
LAGGING = (
    "sub 1 settle hop 1 hand lag 2 hand lag 2 hand lag 2 lag 2 pub 2 ping 2 lag 2 lag 2 pub pub carry settle",
    "gather settle hop 1 hand lag 2 hand lag 2 lag 2 hand lag 2 pub 2 ping 2 lag 2 pub lag 2 pub settle",
    "sub 1 settle hop 1 bring lag 2 bring pub 2 ping 2 lag 2 lag 2 volley lag 2 ping 2 pub carry settle",
    "sub 1 settle hop 1 hand lag 2 hand hand lag 2 hand hand hand lag 2 volley ping lag 2 pub pub pub hand settle",
)
SHARE_LAGGING = 0.3
# Clients get other permissions while members of a queue group linger: drawn apart, of worlds with permissions.
LINGERING_RIGHTS = (
    "gather settle desert regrade carry carry pub carry carry settle",
    "gather settle desert carry regrade carry carry regrade carry carry ping settle",
    "gather settle rights rights desert regrade carry carry carry carry carry ping carry carry settle",
)
SHARE_LINGERING_RIGHTS = 0.6
# Clients that come say more in the same write as CONNECT, and PING before it, in pieces of any size: drawn apart, of
# all worlds.
EAGER = "eager"
SHARE_EAGER = 0.2
# Messages of some clients arrive in parts, with other steps between them, and what is on its way between shards but for
# its last bytes: drawn apart, of all worlds but those with slow clients.
PARTIAL = "partial"
SHARE_PARTIAL = 0.2
PARTIAL_STEPS = ("pub", "pub", "drip", "drip", "drip", "drip", "hop", "carry", "carry")
PARTIAL_PATTERNS = (
    "settle pub 1 hop 1 drip 1 carry carry bring drip 1 drip 1 settle drip 1 drip 1 settle",
    "settle pub 1 drip 1 kill tell drip 1 carry pub 2 drip 2 drip 1 drip 2 drip 1 settle",
    "sub gather settle pub 1 pub 2 drip 1 break carry drip 2 drip 1 carry drip 2 settle drip 1 drip 2 settle",
    "settle pub 1 retire tell pass drip 1 carry bring pass drip 1 drip 1 pass carry bring settle",
)
# The connections of clients that move are reset, behind messages that nobody has read yet: drawn apart, of worlds
# without slow clients.
RESET = "reset"
SHARE_RESET = 0.2
RESET_STEPS = ("hop", "carry", "reset", "reset")
RESET_PATTERNS = (
    "gather settle hop 1 reset pub carry pub carry bring settle",
    "sub 1 ping 1 settle hop 1 carry pub reset pub carry hand carry pub bring settle",
    "gather settle hop 1 pub reset stop pub carry settle",
    "gather settle hop 1 reset pub carry break carry pub bring pass settle",
    "gather gather settle empty carry reset pub reset carry pub bring pub settle",
    "request 1 settle hop 1 reset answer carry answer bring settle",
    "gather settle retire tell reset pub carry bring pass pub bring pass pass settle",
    "gather settle hop 1 reset carry kill tell carry pub bring settle",
)
# Some clients want +OK, or are pedantic, and say what is wrong: drawn apart, of all worlds.
VERBOSE = "verbose"
SHARE_VERBOSE = 0.2
# A link, a connection to another server and a client rest after almost everything that they do, until a step has their
# shard serve others: drawn apart, of all worlds.
BRIEF = "brief"
SHARE_BRIEF = 0.2
BRIEF_PATTERNS = (
    "sub sub settle pub volley carry break carry pub carry carry settle",
    "sub gather settle volley pub ping carry carry break carry carry carry ping settle",
    "gather settle volley carry carry break carry kill tell carry carry settle",
    "sub sub settle volley pub carry carry leave tell pass tell carry tell settle",
    "gather settle volley volley carry carry retire tell pass tell carry bring pass tell settle",
    "request request settle answer carry answer carry break carry answer carry settle",
    "sub settle pub hop carry volley carry carry break carry bring settle",
    "sub 1 settle volley volley hop 1 carry carry bring settle",
    "sub sub sub settle volley volley volley carry carry carry bereave carry carry tell carry settle",
    "gather sub settle volley volley carry carry bereave carry pub carry tell tell carry boot tell carry settle",
    "sub request request settle volley answer carry carry bereave carry carry tell carry ping settle",
)
# A link that is new is told all interest, and what one that has ended had told is dropped, one to three subjects in a
# turn: drawn apart, of all worlds.
GRADUAL = "gradual"
SHARE_GRADUAL = 0.3
GRADUAL_STEPS = ("sub", "sub", "pub", "carry", "carry", "carry", "ping", "break", "request")
GRADUAL_PATTERNS = (
    "sub sub gather settle break carry carry carry pub carry carry unsub carry sub ping carry carry pub carry settle",
    "sub sub sub settle kill tell tell carry pub carry request carry ping carry boot tell tell carry carry settle",
    "gather sub settle kill tell carry unsub carry volley carry carry ping carry carry tell tell carry settle pub",
    "sub gather settle break carry carry break carry carry carry break carry carry pub carry ping carry settle pub",
    "sub sub settle boot tell tell carry sub 1 ping 1 carry unsub 1 ping 1 carry sub 2 ping 2 carry carry settle pub",
    "sub gather settle boot tell tell carry unsub carry desert carry carry ping carry carry pub settle pub",
    "sub sub settle hop carry break carry carry hand carry carry bring pub carry settle",
    "sub sub settle hop tear hand pass come bring settle come",
    "request request settle kill tell carry request answer carry carry answer carry settle",
    "sub sub sub settle kill tell boot tell tell carry kill tell carry carry tell tell carry carry settle pub",
)
# An account that a member of the cluster has, and whose user is there, comes to our broker, to one process after the
# other: drawn apart, of worlds with other servers and several accounts.
GROWS = "grows"
SHARE_GROWS = 0.4
# The first leaf node is our hub instead, and our gateway a leaf node of it: drawn apart, of worlds with other servers
# and one account. (Our members are connected to it, too; how they would follow imports is not here.)
UPWARD = "upward"
SHARE_UPWARD = 0.3
# Leaf nodes of one cluster, such as one nats-server with several accounts, are of different accounts: drawn apart, of
# worlds with other servers and several accounts.
SPREAD = "spread"
SHARE_SPREAD = 0.5
# … and what comes from one of them goes to the others in other accounts, as in nats-server 2.15: of those worlds.
BY_ACCOUNT = "by-account"
SHARE_BY_ACCOUNT = 0.6
# One or two leaf nodes more, most of all leaf nodes of one cluster, each with rights of its own: drawn apart, of worlds
# with other servers.
POOLED = "pooled"
SHARE_POOLED = 0.4
# The gateway is replaced in order, or members elsewhere leave with messages on their way: drawn apart, of worlds with
# other servers.
OUTSIDE = (
    "gather there there settle pub pub pub within quit reach reach settle",
    "settle pub pub replace tell within within within within ping within within within within pass reach settle",
    "settle sub 1 replace tell within within within sub 1 ping 1 within within within reach settle pass settle",
    "gather settle replace tell within within within there unsub within within reach settle pass settle",
    "gather settle replace tell within within there desert 1 within within within reach settle pass settle",
    "settle pub there replace tell carry pub over there carry over pub carry over ping pass carry over pass settle",
    "settle replace tell pub there carry over there over carry pub there over pass over carry there pass settle pass",
    "settle pub pub replace tell carry carry over over pass over there over there pass settle pass dial dial settle",
    "settle gather replace tell carry desert carry over pub carry over pass over pass settle pass dial settle",
    "replace tell carry over fell pass settle pass dial dial dial settle",
    "settle there there replace tell carry hang over carry pub pass over pass settle pass dial dial settle",
    "settle ping sub replace tell carry ping over pass pub ping over carry pass settle pass dial settle",
    "settle flood replace tell carry flood over carry over pass over pass settle",
    "sub sub settle replace tell within within within flood flood reach carry reach pass carry settle",
    "settle replace tell within within pub there within flood flood reach carry reach pass carry settle",
    "replace tell router pass carry adopt tell over pass tell pass settle",
)
SHARE_OUTSIDE = 0.5
# Services of other accounts, whose users are at other servers: drawn apart, of worlds with both.
ELSEWHERE = (
    "serve settle seek settle reply settle reply settle",
    "serve serve settle seek seek over carry over reply carry over reply settle reply settle",
    "serve settle seek reach within reply reach within carry over settle reply settle",
    "serve settle seek settle reload seek settle reply settle",
    "serve settle seek settle replace tell within reply within reach pass settle reply dial dial settle",
    "serve settle seek settle hop reply carry bring settle reply settle",
    "serve settle seek settle retire tell pass pass reply carry pass settle reply settle",
    "serve settle seek settle entrust carry carry reply carry settle reply settle",
    "there there there settle reload there settle there pub settle reload there pub settle",
    "gather there there settle reload pub there settle desert over carry over settle",
)
SHARE_ELSEWHERE = 0.7
# With `fence: cluster`: one server hears of everything before the others do.
FENCED_PATTERNS = (
    "settle sub 1 ping 1 carry carry over 2 over 2 over 2 carry over 2 carry over 2 carry carry",
    "settle sub 1 pub 1 ping 1 bring carry carry carry over 2 over 2 over 2 over 2 over 2 carry carry carry carry",
)
# What shows a fault only where one link is late or broken, or a payload looks like a frame: drawn apart.
SINGLED = (
    "settle chase carry carry settle",
    "settle chase settle chase ping settle",
    "sub sub request 1 request 1 settle hop 1 settle owe carry carry settle pass",
    "settle mimic settle mimic settle",
    "settle recant adopt tell tell carry settle",
)
SHARE_SINGLED = 0.15
# A long history: the steps of several schedules, with everything that fits together, in which clients keep coming.
# They are not among those that drawn() draws: see drawn_lasting().
STOPS = "stops"
SHARE_STOPS = 0.3
# Most clients may publish only so much, counted over all shards: drawn apart, of worlds in which what a client says is
# not looked at before it is carried out, and in which nobody stops with it unsaid.
RATED = "rated"
SHARE_RATED = 0.4
NEVER_RATED = ANEW, BOUNDS, EAGER, STOPS, VERBOSE
RATED_STEPS = ("volley", "volley", "pub", "pass", "hop", "carry", "carry", "ping")
RATED_PATTERNS = (
    "sub gather settle volley 1 hop 1 carry carry pass carry bring pass ping 1 carry settle",
    "gather settle volley 1 volley 2 desert pass carry carry pass carry carry ping 1 settle",
    "sub settle volley 1 retire tell pass carry bring pass bring pass carry settle",
    "request 1 request 1 request 1 volley 1 hop 1 pass carry bring answer pass carry settle",
    "gather settle volley 1 hop 1 break carry pass carry bring pass carry ping 1 settle",
    "gather settle volley 1 hop 1 carry stop pass volley 1 pass hop 1 carry bring pass settle",
    "sub settle volley 1 volley 2 kill tell pass carry ping 1 pass carry ping 2 settle",
)
LASTING = "lasting"
LASTING_WORDS = "servers", "accounts", "reloads", "queues"
LASTING_STEPS = 500
LASTING_OWN_STEPS = {
    **{"come": 12, "rush": 4, "max": 8, "gather": 6, "desert": 4, "hop": 10, "pub": 10, "connect": 3, "settle": 10},
    **{"boot": 4, "retire": 2, "reload": 3, "replace": 2, "dial": 12, "serve": 4, "seek": 4, "reply": 6},
}
ROUTER_STEPS = "router", "adopt"
PATTERN_STEPS = (
    *("entrust", "hop", "empty", "rush", "bring", "retire", "fall", "late", "gather", "desert", "sever"),
    *("chase", "owe", "mimic", "recant"),
)
# Words of worlds that the counts by kind do not tell apart.
APART = (
    *(ANEW, BOUNDS, BRIEF, BY_ACCOUNT, DIRECT, EAGER, GRADUAL, GROWS, LASTING, LIMITED, LOCAL),
    *(MODEST, NO_ECHO, PARTIAL, POOLED, RATED, RESET, SPREAD, STOPS, TRACED, UPWARD, VERBOSE),
)
MOST_STEPS = 300
# Faults: most schedules have only some of them, or none.
FAULTS = ("go", "break", "kill", "leave")
# Features of a world: how often each occurs, and the steps that only such a world has, with their weights.
FEATURES = {
    "slow": (0.4, {"slow": 4, "take": 5, "volley": 4, "pub": 12, "pass": 4, "limits": 1}),
    "accounts": (0.4, {"request": 8, "answer": 8}),
    "rights": (0.3, {"rights": 1, "answer": 2}),
    "third": (0.15, {}),
    "queues": (0.5, {}),  # of a world with a third account: queue groups there
}
# Features of a world with accounts, drawn apart, so that the rest of a seed's schedule stays as it was.
LATER_FEATURES = {"chunked": 0.3, "weighted": 0.4, "reloads": 0.4}
MOST_RELOADS = 8
MOST_SHARDS_HERE = 6
MOST_SERVERS = 6


class Step(NamedTuple):
    """`kind`, and three numbers that say who, which and how much, each within what there is then."""

    kind: str
    who: int
    which: int
    much: int


@dataclass(frozen=True)
class Schedule:
    """How the world begins, and what happens in it."""

    shards: int
    seed: int
    is_narrow: bool
    steps: tuple[Step, ...]
    features: tuple[str, ...] = ()

    def has(self, feature: str) -> bool:
        """Whether its world has this: see FEATURES."""
        return feature in self.features

    def with_steps(self, steps: Sequence[Step]) -> Schedule:
        """The same world, in which this happens."""
        return replace(self, steps=tuple(steps))

    def __str__(self) -> str:
        head = f"shards {self.shards} seed {self.seed} {'narrow' if self.is_narrow else 'wide'}"
        head = " ".join([head, *self.features])
        return "\n".join([head, *(" ".join(map(str, step)) for step in self.steps)]) + "\n"


def drawn(seed: int) -> Schedule:
    """One of 60 to 200 steps.

    Each schedule has its own share of each kind of step, some of them none (swarm testing: Groce and others, 2012): so
    what shows only where something else is rare is found.
    """
    rng = random.Random(seed)
    weights = {kind: rng.choice((0, 1, 1, 2, 5)) * usual for kind, usual in KINDS.items()}
    for fault in FAULTS:
        if rng.random() < 0.6:
            weights[fault] = 0
    if rng.random() < 0.3:  # nothing but traffic
        weights.update(dict.fromkeys((*FAULTS, "boot", "tell"), 0))
    features = tuple(name for name, (share, _) in FEATURES.items() if rng.random() < share)
    if "accounts" not in features:
        features = tuple(name for name in features if name != "third")
    for name, (_, own) in FEATURES.items():
        for kind, usual in own.items():
            if name in features:
                weights[kind] = max(weights[kind], usual)
            elif kind in ("slow", "take", "limits", "rights"):
                weights[kind] = 0
    weights["carry"] = rng.choice((2, 5, 10, 30))
    for kind in ("sub", "pub", "ping"):
        weights[kind] = max(weights[kind], 1)
    kinds = rng.choices(list(weights), list(weights.values()), k=rng.randrange(60, 200))
    steps = tuple(drawn_step(rng, kind) for kind in kinds)
    shards, world, is_narrow = rng.randint(2, MOST_SHARDS_HERE), rng.randint(1, 1000), rng.random() < 0.5
    steps = with_patterns(seed, with_moves(seed, steps))
    if "accounts" in features:
        steps = with_entrusted(seed, steps)
    steps = with_singled(seed, with_later_patterns(seed, with_routers(seed, steps)))
    if random.Random(f"direct {seed}").random() < SHARE_DIRECT:
        features = (*features, DIRECT)
    schedule = with_later_features(seed, Schedule(shards, world, is_narrow, steps, features))
    if random.Random(f"echoless {seed}").random() < SHARE_NO_ECHO:
        schedule = replace(schedule, features=(*schedule.features, NO_ECHO))
    schedule = with_own_steps(seed, with_anew(seed, schedule), MODEST, SHARE_MODEST, ("ask", "ask", "answer", "settle"))
    schedule = with_own_steps(seed, schedule, VERBOSE, SHARE_VERBOSE, ("odd", "pub", "ping"))
    outside = ("there", "over") if schedule.has("servers") else ()
    traced = ("pub", "pub", "volley", "desert", "gather", *outside)
    schedule = with_own_steps(seed, schedule, TRACED, SHARE_TRACED, traced)
    if not schedule.has("slow"):
        bounds = ("exceed", "pub", "pub", "sub", "desert", *outside)
        schedule = with_own_steps(seed, schedule, BOUNDS, SHARE_BOUNDS, bounds)
    schedule = with_own_steps(seed, schedule, LOCAL, SHARE_LOCAL, ())
    if schedule.has("servers") and schedule.has("accounts"):
        if not schedule.has(ANEW):
            schedule = with_growth(seed, schedule)
        schedule = with_own_steps(seed, schedule, SPREAD, SHARE_SPREAD, ("there", "over", "settle"))
        if schedule.has(SPREAD):
            schedule = with_leaves_by_account(seed, schedule)
    elif schedule.has("servers"):
        schedule = with_own_steps(seed, schedule, UPWARD, SHARE_UPWARD, ("there", "over", "settle"))
    if schedule.has("servers"):
        schedule = with_pool(seed, schedule)
    schedule = with_own_steps(seed, schedule, EAGER, SHARE_EAGER, ("come", "come", "come", "rush", "go"))
    if not schedule.has("slow"):
        schedule = with_own_steps(seed, schedule, PARTIAL, SHARE_PARTIAL, PARTIAL_STEPS)
    if schedule.has(PARTIAL):
        rng = random.Random(f"partial patterns {seed}")
        schedule = replace(schedule, steps=with_some(rng, schedule.steps, list(PARTIAL_PATTERNS)))
    if not schedule.has(ANEW):
        schedule = with_own_steps(seed, schedule, LIMITED, SHARE_LIMITED, LIMITED_STEPS)
    if schedule.has(LIMITED):
        rng = random.Random(f"limited patterns {seed}")
        schedule = replace(schedule, steps=with_some(rng, schedule.steps, list(LIMITED_PATTERNS)))
    schedule = with_own_steps(seed, schedule, BRIEF, SHARE_BRIEF, ("pub", "sub", "carry", "carry", "ping"))
    if schedule.has(BRIEF):
        rng = random.Random(f"brief patterns {seed}")
        schedule = replace(schedule, steps=with_some(rng, schedule.steps, list(BRIEF_PATTERNS)))
    schedule = with_own_steps(seed, schedule, GRADUAL, SHARE_GRADUAL, GRADUAL_STEPS)
    if schedule.has(GRADUAL):
        rng = random.Random(f"gradual patterns {seed}")
        schedule = replace(schedule, steps=with_some(rng, schedule.steps, list(GRADUAL_PATTERNS)))
    if not schedule.has("slow"):
        schedule = with_own_steps(seed, schedule, RESET, SHARE_RESET, RESET_STEPS)
    if schedule.has(RESET):
        rng = random.Random(f"reset patterns {seed}")
        schedule = replace(schedule, steps=with_some(rng, schedule.steps, list(RESET_PATTERNS)))
    if not (schedule.has("slow") or schedule.has("servers")):
        schedule = with_own_steps(seed, schedule, STOPS, SHARE_STOPS, ())
    if not any(schedule.has(word) for word in NEVER_RATED):
        schedule = with_own_steps(seed, schedule, RATED, SHARE_RATED, RATED_STEPS)
    if schedule.has(RATED):
        rng = random.Random(f"rated patterns {seed}")
        schedule = replace(schedule, steps=with_some(rng, schedule.steps, list(RATED_PATTERNS)))
    rng = random.Random(f"lagging {seed}")
    if rng.random() < SHARE_LAGGING:
        schedule = replace(schedule, steps=with_some(rng, schedule.steps, list(LAGGING)))
    rng = random.Random(f"lingering rights {seed}")
    if schedule.has("rights") and rng.random() < SHARE_LINGERING_RIGHTS:
        schedule = replace(schedule, steps=with_some(rng, schedule.steps, list(LINGERING_RIGHTS)))
    return schedule


def drawn_lasting(seed: int) -> Schedule:
    """One of 500 steps and more, in a world of four to six shards with other servers, accounts and their reloads."""
    rng = random.Random(f"lasting {seed}")
    base = drawn(rng.getrandbits(40))
    while base.has("third") or not (base.has("servers") and base.has("accounts")):
        base = drawn(rng.getrandbits(40))
    words = dict.fromkeys((*base.features, *LASTING_WORDS, LASTING))
    steps = list(base.steps)
    while len(steps) < LASTING_STEPS:
        more = drawn(rng.getrandbits(40))
        if more.has("servers"):
            steps += more.steps
    for kind in rng.choices(list(LASTING_OWN_STEPS), list(LASTING_OWN_STEPS.values()), k=len(steps) // 4):
        steps.insert(rng.randrange(len(steps) + 1), drawn_step(rng, kind))
    return replace(base, shards=rng.randint(4, MOST_SHARDS_HERE), steps=tuple(steps), features=tuple(words))


def with_own_steps(seed: int, schedule: Schedule, word: str, share: float, kinds: tuple[str, ...]) -> Schedule:
    """The same schedule; in some worlds with this word, and up to 30 steps of these kinds."""
    rng = random.Random(f"{word} {seed}")
    if rng.random() >= share:
        return schedule
    steps = list(schedule.steps)
    for kind in rng.choices(kinds, k=rng.randrange(30)) if kinds else ():
        steps.insert(rng.randrange(len(steps) + 1), drawn_step(rng, kind))
    return replace(schedule, steps=tuple(steps), features=(*schedule.features, word))


def with_leaves_by_account(seed: int, schedule: Schedule) -> Schedule:
    """The same schedule; in some worlds with BY_ACCOUNT, and other servers that subscribe and then publish."""
    rng = random.Random(f"{BY_ACCOUNT} {seed}")
    if rng.random() >= SHARE_BY_ACCOUNT:
        return schedule
    return with_users_there(rng, schedule, BY_ACCOUNT, 4)


def with_pool(seed: int, schedule: Schedule) -> Schedule:
    """The same schedule; in some worlds with POOLED, and other servers that subscribe and then publish."""
    rng = random.Random(f"{POOLED} {seed}")
    if rng.random() >= SHARE_POOLED:
        return schedule
    for _ in range(rng.randrange(3)):
        schedule = with_users_there(rng, schedule, "", MOST_SERVERS)
    return with_users_there(rng, schedule, POOLED, MOST_SERVERS)


def with_users_there(rng: random.Random, schedule: Schedule, word: str, most: int) -> Schedule:
    """The same with this word, and with other servers that connect, subscribe and then publish."""

    def there(of: Sequence[int]) -> list[Step]:
        return [drawn_step(rng, "there")._replace(which=rng.choice(of)) for _ in range(10)]

    settle = drawn_step(rng, "settle")
    dialled = [drawn_step(rng, "dial")._replace(who=who) for who in range(most)]
    steps = list(schedule.steps)
    at = rng.randrange(len(steps) + 1)
    steps[at:at] = [*dialled, *there((0, 1, 2, 3)), settle, *there((8, 9, 10)), settle]
    features = (*schedule.features, word) if word else schedule.features
    return replace(schedule, steps=tuple(steps), features=features)


def with_growth(seed: int, schedule: Schedule) -> Schedule:
    """The same schedule; in some worlds an account comes, and what is said there stands around that."""
    rng = random.Random(f"grows {seed}")
    if rng.random() >= SHARE_GROWS:
        return schedule
    steps = list(schedule.steps)
    at = rng.randrange(len(steps) + 1)
    before = [drawn_step(rng, "there")._replace(who=0) for _ in range(rng.randrange(6))]
    behind = [drawn_step(rng, kind) for kind in rng.choices(("there", "come", "sub", "pub", "over", "settle"), k=20)]
    steps[at:at] = [*before, drawn_step(rng, "over"), drawn_step(rng, "grow"), *behind]
    return replace(schedule, steps=tuple(steps), features=(*schedule.features, GROWS))


def with_anew(seed: int, schedule: Schedule) -> Schedule:
    """The same schedule; in some of them clients send CONNECT again."""
    rng = random.Random(f"anew {seed}")
    if rng.random() >= SHARE_ANEW:
        return schedule
    steps = with_some(rng, schedule.steps, list(ANEW_PATTERNS))
    found = list(steps)
    for _ in range(rng.randrange(12)):
        found.insert(rng.randrange(len(found) + 1), drawn_step(rng, "connect"))
    return replace(schedule, steps=tuple(found), features=(*schedule.features, ANEW))


def with_moves(seed: int, steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """The same steps, and in half of all schedules moves of connections among them."""
    rng = random.Random(f"moves {seed}")
    if rng.random() >= SHARE_WITH_MOVES:
        return steps
    found = list(steps)
    weights = MOVES | (AROUND_MOVES if rng.random() < 0.7 else {})
    most_behind = rng.choice((0, 0, 20, 60))
    for kind in rng.choices(list(weights), list(weights.values()), k=rng.randrange(2, 100)):
        cluster = [drawn_step(rng, kind)]
        if kind == "move" and most_behind and len(found) < MOST_STEPS:
            behind = rng.choices(list(BEHIND_MOVES), list(BEHIND_MOVES.values()), k=rng.randrange(most_behind))
            cluster += [drawn_step(rng, kind) for kind in behind]
        place = rng.randrange(len(found) + 1)
        found[place:place] = cluster
    return tuple(found)


def with_patterns(seed: int, steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """The same steps, and in some schedules a few of the PATTERNS among them, with noise within."""
    rng = random.Random(f"patterns {seed}")
    if rng.random() >= SHARE_WITH_PATTERNS:
        return steps
    return with_some(rng, steps, list(PATTERNS.values()))


def with_entrusted(seed: int, steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """The same steps, and in some schedules a few of ENTRUSTED among them, with noise within."""
    rng = random.Random(f"entrusted {seed}")
    return with_some(rng, steps, list(ENTRUSTED)) if rng.random() < SHARE_ENTRUSTED else steps


def with_routers(seed: int, steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """The same steps, and in some schedules deaths of the router among them, and of shards meanwhile."""
    rng = random.Random(f"routers {seed}")
    if rng.random() >= SHARE_WITH_ROUTERS:
        return steps
    found = list(with_some(rng, steps, list(ROUTERS)))
    for at, step in enumerate(found):
        if step.kind == "router":
            for near in range(max(0, at - 3), min(len(found), at + 6)):
                if found[near].kind in ("kill", "leave"):
                    found[near] = found[near]._replace(much=found[near].much % 8)  # it happens
    return tuple(found)


def with_later_patterns(seed: int, steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """The same steps, and in some schedules a few of LATER_PATTERNS among them, with noise within."""
    rng = random.Random(f"later patterns {seed}")
    return with_some(rng, steps, list(LATER_PATTERNS)) if rng.random() < SHARE_WITH_LATER_PATTERNS else steps


def with_singled(seed: int, steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """The same steps, and in some schedules a few of SINGLED among them, with noise within."""
    rng = random.Random(f"singled {seed}")
    return with_some(rng, steps, list(SINGLED)) if rng.random() < SHARE_SINGLED else steps


def with_some(rng: random.Random, steps: tuple[Step, ...], patterns: list[str]) -> tuple[Step, ...]:
    found = list(steps)
    noise = rng.choice((0.0, 0.0, 0.2, 0.5))
    for pattern in rng.choices(patterns, k=rng.randrange(1, 5)):
        cluster: list[Step] = []
        people = {"1": below_24(rng), "2": below_24(rng)}
        words = pattern.split()
        for word, number in zip(words, [*words[1:], ""], strict=True):
            if word not in people:
                step = drawn_step(rng, word)
                cluster.append(step._replace(who=people.get(number, step.who)))
            if rng.random() < noise:
                cluster.append(drawn_step(rng, rng.choice(("carry", "pub", "hand", "sub", "ping"))))
        place = rng.randrange(len(found) + 1)
        found[place:place] = cluster
    return tuple(found)


def with_later_features(seed: int, schedule: Schedule) -> Schedule:
    """The same schedule; in a world with accounts perhaps with some of LATER_FEATURES."""
    if not schedule.has("accounts"):
        return with_servers(seed, schedule)
    rng = random.Random(f"features {seed}")
    features = [name for name, share in LATER_FEATURES.items() if rng.random() < share]
    if schedule.has("rights"):
        features = [name for name in features if name != "weighted"]
    steps = list(schedule.steps)
    if "reloads" in features:
        for _ in range(rng.randint(1, MOST_RELOADS)):
            steps.insert(rng.randrange(len(steps) + 1), drawn_step(rng, "reload"))
    if "weighted" in features:
        for _ in range(rng.randint(1, 30)):  # more of what is published to a mapping's subject
            steps.insert(rng.randrange(len(steps) + 1), drawn_step(rng, "pub")._replace(which=4))
    if "chunked" in features:
        for kind in rng.choices(("request", "answer", "answer", "settle"), k=rng.randint(4, 40)):
            steps.insert(rng.randrange(len(steps) + 1), drawn_step(rng, kind))
    schedule = replace(schedule, steps=tuple(steps), features=(*schedule.features, *features))
    if schedule.has("third"):  # (servers do not tell each other what has come from another account)
        return schedule
    if schedule.has("weighted") and random.Random(f"mapped {seed}").random() >= SHARE_MAPPED:
        return schedule
    return with_servers(seed, schedule)


def with_servers(seed: int, schedule: Schedule) -> Schedule:
    """The same schedule; in some worlds with other servers, which connect soon."""
    rng = random.Random(f"servers {seed}")
    if rng.random() >= SHARE_WITH_SERVERS:
        return schedule
    features = ["servers", "fenced"] if rng.random() < 0.5 else ["servers"]
    if random.Random(f"rests {seed}").random() < SHARE_WITH_RESTS:
        features.append("rests")
    steps = list(schedule.steps)
    weights = dict(SERVERS)
    for fault in ("hang", "fell"):
        if rng.random() < 0.4:
            del weights[fault]
    for kind in rng.choices(list(weights), list(weights.values()), k=rng.randint(30, 150)):
        steps.insert(rng.randrange(len(steps) + 1), drawn_step(rng, kind))
    first = [drawn_step(rng, "dial")._replace(who=who) for who in range(4)]
    if "fenced" in features:
        steps = list(with_some(random.Random(f"fenced {seed}"), tuple(steps), list(FENCED_PATTERNS)))
    outside = random.Random(f"outside {seed}")
    if outside.random() < SHARE_OUTSIDE:
        steps = list(with_some(outside, tuple(steps), list(OUTSIDE)))
    elsewhere = random.Random(f"elsewhere {seed}")
    if schedule.has("accounts") and elsewhere.random() < SHARE_ELSEWHERE:
        steps = list(with_some(elsewhere, tuple(steps), list(ELSEWHERE)))
    at = rng.randrange(1 + len(steps) // 8)
    steps[at:at] = [*first, drawn_step(rng, "settle")]
    return replace(schedule, steps=tuple(steps), features=(*schedule.features, *features))


def drawn_step(rng: random.Random, kind: str) -> Step:
    draw = rng.getrandbits
    while (who := draw(5)) >= 24:
        pass
    while (which := draw(5)) >= 24:
        pass
    while (much := draw(5)) >= 24:
        pass
    return Step(kind, who, which, much)


def below_24(rng: random.Random) -> int:
    """As rng.randrange(24), in a third of its time."""
    number = rng.getrandbits(5)
    while number >= 24:
        number = rng.getrandbits(5)
    return number


def parsed(text: str) -> Schedule:
    """What str() of a Schedule wrote; lines that begin with # are comments. ValueError names the bad line."""
    lines = [line.split() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    try:
        _, shards, _, seed, width, *features = lines[0]
        steps = tuple(Step(kind, int(who), int(which), int(much)) for kind, who, which, much in lines[1:])
        unknown = (
            {step.kind for step in steps}
            - set(KINDS)
            - set(MOVES)
            - set(PATTERN_STEPS)
            - set(ROUTER_STEPS)
            - set(SERVER_STEPS)
            - {"reload", "connect", "ask", "odd", "exceed", "grow", "tear", "bereave", "drip", "lag", "regrade", RESET}
        )
        unknown |= set(features) - set(FEATURES) - set(LATER_FEATURES) - {*SERVER_FEATURES, *APART}
        if unknown:
            raise ValueError(f"unknown: {', '.join(sorted(unknown))}")
        return Schedule(int(shards), int(seed), width == "narrow", steps, tuple(features))
    except (IndexError, ValueError) as error:
        raise ValueError(f"not a schedule: {error}") from None
