"""Random conversations of four clients with a broker, and what each of them heard, in a form that two brokers share.

One seed makes one configuration and conversations for it: subscriptions, queue groups, UNSUB max, headers, requests and
replies, permissions, accounts with imports and exports, mappings, limits, later CONNECTs, malformed operations, and
bytes that come in pieces. Left out is what `deploy/DIFFERENCES.md` names, and what nats-server itself leaves to chance.
Each step is fenced on every client. `heard` is compared as it is, but for the order of messages that one publish
caused, for the members that queue groups choose, and for generated reply subjects.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from dataclasses import dataclass, field

from tests.support.servers import Broker
from tests.support.wire import Client, Closed, Frame

NAMES = "wxyz"
TOKENS = "abc"
ACCOUNTS = "ABC"
# A step that takes longer has hung; the machine may be busy.
STEP_DEADLINE_S = 30.0

_GENERATED = re.compile(r"_R_\.\S+")
_BLANKS = (" ",) * 12 + ("  ", "\t", " \t")


# ---- configurations


@dataclass
class Setting:
    """A configuration, and who may log in: user names, "" for a client without credentials."""

    text: str
    users: list[str]
    connects_again: bool  # else its users may have limits and rights that a later CONNECT changes there


def subject(chance: random.Random, most: int = 3, *, is_pattern: bool = False) -> str:
    tokens = [
        "*" if is_pattern and chance.random() < 0.4 else chance.choice(TOKENS) for _ in range(chance.randint(1, most))
    ]
    if is_pattern and chance.random() < 0.25:
        tokens[-1] = ">"
    return ".".join(tokens)


def _listed(subjects: list[str]) -> str:
    return "[" + ", ".join(f'"{one}"' for one in subjects) + "]"


def _permissions(chance: random.Random, *, may_reply: bool) -> str:
    """Rules for subscriptions have no wildcards that a pattern could overlap in part: there some are leaked."""
    parts = []
    for what in ("publish", "subscribe"):
        if chance.random() < 0.35:
            continue
        is_pattern = what == "publish"
        lists = {
            kind: [subject(chance, is_pattern=is_pattern) for _ in range(chance.randint(1, 3))]
            for kind in ("allow", "deny")
            if chance.random() < 0.6
        } or {"deny": [subject(chance, is_pattern=is_pattern)]}
        if "allow" in lists:
            lists["allow"] += ["_INBOX.>"] if chance.random() < 0.7 else []
            lists["allow"] += [f"{chance.choice(TOKENS)}.>"] if what == "subscribe" else []
        elif what == "subscribe" and chance.random() < 0.3:
            lists["deny"] = [f"{subject(chance)} {chance.choice(['q1', 'q*', '>'])}"]
        parts.append(f"{what}: {{ {', '.join(f'{kind}: {_listed(rules)}' for kind, rules in lists.items())} }}")
    if may_reply and chance.random() < 0.3:
        parts.append(chance.choice(["allow_responses: true", "allow_responses: { max: 2, expires: '1m' }"]))
    return f", permissions: {{ {', '.join(parts)} }}" if parts else ""


def _mappings(chance: random.Random) -> str:
    """No two of them match one subject."""
    found: dict[int, str] = {}
    for _ in range(chance.randint(1, 2)):
        source = subject(chance, is_pattern=True).replace(">", "a")
        wildcards = [f"${number + 1}" for number in range(source.count("*"))]
        chance.shuffle(wildcards)
        place = ".".join([*wildcards, *(chance.choice(TOKENS) for _ in range(chance.randint(1, 2)))])
        found[source.count(".")] = f'"{source}": "{place}"'
    return f"mappings {{ {', '.join(found.values())} }}"


def _import(chance: random.Random, account: str, kind: str, name: str) -> tuple[str, str]:
    """(the subject that it takes in the importing account, its text)."""
    renamed, suffix = name, ""
    wildcards = [f"${number + 1}" for number in range(name.count("*"))]
    choice = chance.random()
    if kind == "stream" and choice < 0.3:
        renamed, suffix = f"p.{name}", ", prefix: p"
    elif choice < 0.6:
        chance.shuffle(wildcards)
        to = ".".join(["to", *wildcards, *([">"] if name.endswith(">") else [])])
        renamed, suffix = re.sub(r"\$\d", "*", to), f', to: "{to}"'
    return renamed if kind == "service" else name, f'{{ {kind}: {{ account: {account}, subject: "{name}" }}{suffix} }}'


def _accounts(chance: random.Random, *, may_reply: bool) -> tuple[str, list[str]]:
    """An account imports from those before it only, so that there is no cycle."""
    names = ACCOUNTS[: chance.randint(2, 3)]
    exports: dict[str, list[tuple[str, str]]] = {}
    users, lines = [], []
    for number, name in enumerate(names):
        exports[name] = list(
            dict.fromkeys(
                (kind, f"{kind[1]}.{subject(chance, 2, is_pattern=True)}")
                for kind in chance.choices(("service", "stream"), k=chance.randint(0, 4))
            )
        )
        imports: dict[tuple[str, str], str] = {}
        for other in names[:number]:
            for kind, exported in exports[other]:
                if chance.random() < 0.7:
                    taken, text = _import(chance, other, kind, exported)
                    imports.setdefault((kind, taken), text)
        members = [f"{name.lower()}{index}" for index in range(chance.randint(1, 2))]
        users += members
        rights = [_permissions(chance, may_reply=may_reply) if chance.random() < 0.3 else "" for _ in members]
        listed = ", ".join(f"{{ user: {user}, password: p{rule} }}" for user, rule in zip(members, rights, strict=True))
        kinds = ("", ", response_type: stream", ", response_type: chunked")
        shown = ", ".join(
            f'{{ {kind}: "{exported}"{chance.choice(kinds) if kind == "service" else ""} }}'
            for kind, exported in exports[name]
        )
        parts = [f"users: [{listed}]", f"exports: [{shown}]", f"imports: [{', '.join(imports.values())}]"]
        parts += [_mappings(chance)] if chance.random() < 0.3 else []
        lines.append(f"{name} {{ {', '.join(parts)} }}")
    return "accounts {\n  " + "\n  ".join(lines) + "\n}", users


def setting(chance: random.Random) -> Setting:
    """A random configuration that both servers accept."""
    connects_again = chance.random() < 0.7
    lines = []
    for option, values, likely in (
        ("max_payload", (16, 64, 1024), 0.25),
        ("max_control_line", (64, 128, 256), 0.15),
        ("max_sub_tokens", (1, 2, 3), 0.15),
        ("max_subscriptions", (1, 2, 4), 0.0 if connects_again else 0.3),
        ("no_header_support", ("true",), 0.1),
    ):
        if chance.random() < likely:
            lines.append(f"{option}: {chance.choice(values)}")
    choice, users = chance.random(), [""]
    if choice < 0.15:
        lines.append(_mappings(chance))
    elif choice < 0.45:
        users = [f"u{number}" for number in range(chance.randint(1, 3))]
        listed = ", ".join(
            f"{{ user: {user}, password: p{_permissions(chance, may_reply=not connects_again)} }}" for user in users
        )
        lines += [f"authorization {{ users = [ {listed} ] }}", _mappings(chance) if chance.random() < 0.5 else ""]
    else:
        text, users = _accounts(chance, may_reply=not connects_again)
        lines.append(text)
    if users[0] and chance.random() < 0.3:
        lines.append(f"no_auth_user: {users[0]}")
        users.append("")
    return Setting("\n".join(lines) + "\n", users, connects_again)


# ---- conversations


@dataclass(frozen=True)
class Step:
    """What a client sends: operations, `@connect` and `@reply` among them; `piece_bytes` 0: in one segment."""

    client: str
    operations: tuple[str, ...]
    piece_bytes: int
    log_in: str  # whoever was closed connects again with this


MALFORMED = (
    *("SUB a\r\n", "SUB\r\n", "PUB a b c d\r\n\r\n", "PUB a -1\r\n\r\n", "PUB a 2000000\r\n", "MSG a 1 1\r\nx\r\n"),
    *("HPUB a 5 2\r\nab\r\n", "UNSUB\r\n", "XX\r\n", f"SUB {'a' * 300} 1\r\n", f"PUB {'a.' * 100}a 1\r\nx\r\n"),
    *("CONNECT []\r\n", "PUB a 2\r\nabc\r\n", "SUB a b c d\r\n", "INFO\r\n", "UNSUB 1 2 3\r\n"),
)
HARMLESS = ("PONG\r\n", "+OK\r\n", "INFO {}\r\n", "PONG  \r\n")
HEADERS = ("NATS/1.0\r\n\r\n", "NATS/1.0\r\nA: b\r\nA: c\r\n\r\n", "", "NATS/1.0 503\r\n\r\n")
ODD_PATTERNS = ("a..b", ".a", "a.", ">.a", "*a", "b>", "$SYS.>", "_R_.>", "_INBOX.>", "é", ">", "to.>", "p.>", "to.*")
ODD_SUBJECTS = ("a..b", ".a", "a.", "a.*", "*", "*a", "$SYS.a", "_R_.a", "_GR_.a", "é", "to.a", "to", "p.t.a", "to.a.b")


def connect(chance: random.Random, users: list[str] | None) -> str:
    """Options of a CONNECT; with `users` also whose."""
    options: dict[str, object] = {
        "verbose": chance.random() < 0.2,
        "pedantic": chance.random() < 0.2,
        "echo": chance.random() < 0.7,
        "headers": chance.random() < 0.7,
        "protocol": chance.randint(0, 1),
    }
    options["no_responders"] = chance.random() < (0.7 if options["headers"] else 0.02)
    user = chance.choice(users) if users else ""
    if user:
        options |= {"user": user, "pass": "p" if chance.random() < 0.97 else "wrong"}
    return json.dumps(options)


def _operation(chance: random.Random, number: int) -> str:
    def gap() -> str:
        return chance.choice(_BLANKS)

    def verb(text: str) -> str:
        return text if chance.random() < 0.95 else text.lower()

    def where(odd: tuple[str, ...], *, is_pattern: bool) -> str:
        choice = chance.random()
        if choice < 0.15:
            return chance.choice(odd)
        if choice < 0.45:
            return f"{chance.choice('et')}.{subject(chance, 2, is_pattern=is_pattern)}"
        return subject(chance, is_pattern=is_pattern)

    choice = chance.random()
    if choice < 0.25:
        queue = chance.choice(("q1", "q2")) if chance.random() < 0.35 else ""
        sid = f"{queue}{chance.randint(1, 3)}" if queue else str(chance.randint(1, 6))
        wanted = (verb("SUB"), where(ODD_PATTERNS, is_pattern=True), queue, sid)
        return gap().join(word for word in wanted if word) + "\r\n"
    if choice < 0.29:
        return f"SUB{gap()}_INBOX.{chance.choice(NAMES)}.{chance.choice('*>1')}{gap()}{chance.randint(7, 9)}\r\n"
    if choice < 0.36:
        if chance.random() < 0.3:  # (without a max: which member gets a message is chance)
            return f"UNSUB{gap()}{chance.choice(('q1', 'q2'))}{chance.randint(1, 3)}\r\n"
        most = chance.choice(("", "", " 0", " 1", " 2", " 3", " -1"))
        return f"{verb('UNSUB')}{gap()}{chance.randint(1, 9)}{most}\r\n"
    if choice < 0.9:
        payload = f"{number}" + "x" * (chance.choice((10, 60, 200)) if chance.random() < 0.1 else 0)
        words = [where(ODD_SUBJECTS, is_pattern=False)]
        if chance.random() < 0.35:
            words.append(f"_INBOX.{chance.choice(NAMES)}.{chance.randint(1, 2)}")
        if chance.random() < 0.3:
            header = chance.choice(HEADERS)
            words = [verb("HPUB"), *words, str(len(header)), str(len(header) + len(payload))]
            return gap().join(words) + f"\r\n{header}{payload}\r\n"
        return gap().join([verb("PUB"), *words, str(len(payload))]) + f"\r\n{payload}\r\n"
    if choice < 0.94:
        return f"@reply {number}"
    if choice < 0.97:
        return "@connect"
    return chance.choice(HARMLESS) if choice < 0.985 else chance.choice(MALFORMED)


def conversation(chance: random.Random, where: Setting, steps: int) -> list[Step]:
    """So many steps; all four clients connect before the first."""
    made, number = [], 0
    for _ in range(steps):
        operations: list[str] = []
        for _ in range(chance.choice((1, 1, 1, 2, 3))):
            number += 1
            operation = _operation(chance, number)
            if operation == "@connect":
                operation = f"CONNECT {connect(chance, None)}\r\n" if where.connects_again else "PONG\r\n"
            operations.append(operation)
            if operation in MALFORMED or operation.startswith("@"):
                break
        # Of a client that is closed while it sends, a server's last words may be lost: it sends in one piece.
        is_cut = not set(operations) & set(MALFORMED) and sum(map(len, operations)) < 200
        piece_bytes = chance.choice((0, 0, 0, 1, 3, 7)) if is_cut else 0
        made.append(Step(chance.choice(NAMES), tuple(operations), piece_bytes, connect(chance, where.users)))
    return made


# ---- one broker's side


@dataclass
class Heard:
    """What came in one step: by client, and by queue group."""

    by_client: dict[str, list[tuple[object, ...]]] = field(default_factory=dict)
    by_group: Counter[tuple[object, ...]] = field(default_factory=Counter)


@dataclass
class Side:
    """The clients of one broker."""

    broker: Broker
    clients: dict[str, Client] = field(default_factory=dict)
    requests: dict[str, tuple[bytes, str]] = field(default_factory=dict)  # the last: payload and reply subject
    closed: set[str] = field(default_factory=set)

    async def log_in(self, name: str, options: str) -> Heard:
        self.requests.pop(name, None)
        self.closed.discard(name)
        client = self.clients[name] = await Client.connect(self.broker.port)
        await client.send(f"CONNECT {options}\r\nPING\r\n")
        heard = Heard()
        heard.by_client[name] = shown(await self._until_pong(name), heard.by_group)
        return heard

    async def play(self, name: str, text: str, piece_bytes: int) -> Heard:
        """One client sends; then a PING of each shows what all have got, and one more what came to the sender."""
        data = text.encode() + b"PING\r\n"
        await self.clients[name].send_split(data, piece_bytes or len(data))
        frames = {name: await self._until_pong(name)}
        for other in [*NAMES, name]:
            if other not in self.closed and (other != name or len(frames) == len(NAMES) - len(self.closed)):
                await self.clients[other].send(b"PING\r\n")
                frames[other] = frames.get(other, []) + await self._until_pong(other)
        heard = Heard()
        for other in sorted(frames):
            for frame in frames[other]:
                if frame.is_message and frame.reply:
                    self.requests[other] = frame.payload, frame.reply
            heard.by_client[other] = shown(frames[other], heard.by_group)
        return heard

    async def _until_pong(self, name: str) -> list[Frame]:
        client, frames = self.clients[name], []
        while True:
            try:
                frames.append(await client.read_frame(STEP_DEADLINE_S))
            except Closed:
                self.closed.add(name)
                client.close()
                return [*frames, Frame(b"", "CLOSED")]
            if frames[-1].verb == "PONG":
                return frames

    def close(self) -> None:
        for client in self.clients.values():
            client.close()


def shown(frames: list[Frame], by_group: Counter[tuple[object, ...]]) -> list[tuple[object, ...]]:
    """These frames without what is left to chance; messages of queue groups are added to `by_group`."""
    found: list[tuple[object, ...]] = []
    for frame in frames:
        names = tuple(_GENERATED.sub("_R_", text) for text in (frame.subject, frame.reply))
        if frame.verb == "INFO" or "AUTH.ERR" in frame.subject:
            continue
        if not frame.is_message:
            one: tuple[object, ...] = (frame.verb, _GENERATED.sub("_R_", frame.raw.decode("utf-8", "replace")))
            # There it is said again when the payload comes in another segment.
            if not found or found[-1] != one or b"Publish Subject" not in frame.raw:
                found.append(one)
        elif frame.sid.startswith("q"):
            by_group[frame.sid[:2], *names, frame.payload] += 1
        else:
            # A status goes to one of the subscriptions that match, whichever.
            is_status = frame.headers.startswith(b"NATS/1.0 503") and not frame.payload
            header = re.sub(rb"Nats-Request-Info: \{.*\}", b"Nats-Request-Info: {}", frame.headers)
            found.append((frame.verb, frame.payload, *names, "" if is_status else frame.sid, header))
    return _sorted_runs(found)


def _sorted_runs(found: list[tuple[object, ...]]) -> list[tuple[object, ...]]:
    """Messages that follow one another and have the same payload, in order: those of one publish."""
    result: list[tuple[object, ...]] = []
    run: list[tuple[object, ...]] = []
    for one in found:
        if run and (len(one) == 2 or len(run[0]) == 2 or one[1] != run[0][1]):
            result += sorted(run, key=repr)
            run = []
        run.append(one)
    return result + sorted(run, key=repr)


def text_for(side: Side, sides: tuple[Side, Side], step: Step) -> str:
    """What this client sends here. Replies go to the reply subject of the request that it got last, on both sides."""
    text = ""
    for operation in step.operations:
        if not operation.startswith("@reply"):
            text += operation
            continue
        asked = [one.requests.get(step.client, (b"", "")) for one in sides]
        if asked[0][0] == asked[1][0] != b"":
            payload = operation.removeprefix("@reply ")
            text += f"PUB {side.requests[step.client][1]} {len(payload)}\r\n{payload}\r\n"
    return text


def are_alike(one: Heard, other: Heard) -> bool:
    """Of a client that was closed the last words may be missing: a reset overtakes them."""
    if one.by_group != other.by_group or one.by_client.keys() != other.by_client.keys():
        return False
    for name, theirs in one.by_client.items():
        ours = other.by_client[name]
        if theirs == ours:
            continue
        if not (theirs and ours and theirs[-1] == ours[-1] == ("CLOSED", "")):
            return False
        shorter = min(len(theirs), len(ours)) - 1
        if theirs[:shorter] != ours[:shorter]:
            return False
    return True
