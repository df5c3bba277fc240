"""A `permissions { … }` block of the configuration, as `broker.options.Permissions`.

A rule without the expected effect is a problem: an empty list of allowed subjects (with which the real server allows
all), a queue in a publish rule (which matches nothing there), a key given twice.
"""

from __future__ import annotations

from gnatswarm.broker.options import Permissions
from gnatswarm.broker.subject import is_valid_subscription
from gnatswarm.router.config import option_values as values
from gnatswarm.router.config.conf_tree import Block, Entry, List, Node, Position, Problem, Scalar, plain, text_in
from gnatswarm.router.config.option_values import Mistake
from gnatswarm.router.config.repetition import given_again

_SIDES = {
    "publish": "publish",
    "pub": "publish",
    "import": "publish",
    "subscribe": "subscribe",
    "sub": "subscribe",
    "export": "subscribe",
    "allow_responses": "responses",
    "publish_allow_responses": "responses",
}
_RESPONSE_KEYS = {
    "max": "max",
    "max_msgs": "max",
    "max_messages": "max",
    "max_responses": "max",
    "expires": "expires",
    "expiration": "expires",
    "ttl": "expires",
}
# As in the real server: one response, within two minutes.
DEFAULT_RESPONSES = 1
DEFAULT_EXPIRES_S = 120.0
LONGEST_SUBJECT = 4096


class PermissionBlock:
    """Reads one block into `permissions`; errors go to `problems`."""

    def __init__(self, entry: Entry, problems: list[Problem]) -> None:
        self._problems = problems
        self._found: dict[str, tuple[str, ...]] = {}
        self._responses = 0
        self._expires_s = DEFAULT_EXPIRES_S
        block = entry.value
        if isinstance(block, Block):
            self._read(block)
        else:
            self._problem(
                entry.at, f"Expected permissions to be a map/struct, got {block.kind}", "write { publish: … }"
            )
        self.permissions = Permissions(
            publish_allow=self._found.get("publish_allow"),
            publish_deny=self._found.get("publish_deny", ()),
            subscribe_allow=self._found.get("subscribe_allow"),
            subscribe_deny=self._found.get("subscribe_deny", ()),
            responses=self._responses,
            responses_expire_s=self._expires_s,
        )

    def _read(self, block: Block) -> None:
        seen: set[str] = set()
        for entry in block:
            side = _SIDES.get(entry.key.lower())
            if side is None:
                if not entry.used:
                    self._problem(
                        entry.at, f'Unknown field "{entry.key}" parsing permissions', "write publish or subscribe"
                    )
                continue
            self._once(entry, side, seen)
            if side == "responses":
                self._read_responses(entry)
            else:
                self._read_side(entry.value, side)

    def _once(self, entry: Entry, name: str, seen: set[str]) -> None:
        if entry.replaces is not None or name in seen:
            # The last one would count, and could restrict less.
            self._problem(entry.at, f"{entry.key} is given again", "keep one")
        seen.add(name)

    def _read_side(self, node: Node, side: str) -> None:
        if not isinstance(node, Block):
            self._keep(f"{side}_allow", node, side)
            return
        seen: set[str] = set()
        for entry in node:
            key = entry.key.lower()
            if key not in ("allow", "deny"):
                if not entry.used:
                    what = f'Unknown field name "{entry.key}" parsing subject permissions'
                    self._problem(entry.at, what, "only allow and deny are permitted")
                continue
            self._once(entry, key, seen)
            self._keep(f"{side}_{key}", entry.value, side)

    def _keep(self, field: str, node: Node, side: str) -> None:
        items = node.items if isinstance(node, List) else [node]
        if not items and field.endswith("_allow"):
            self._problem(node.at, "an empty list allows everything", 'leave the key out, or write deny: ">"')
        subjects = []
        for item in items:
            text = text_in(item)
            if text is None:
                what = f"Expected subject permissions to be a subject, or array of subjects, got {item.kind}"
                self._problem(item.at, what, "put each in quotes")
                continue
            subject = self._subject(item.at, text, side)
            if subject:
                subjects.append(subject)
        self._found[field] = tuple(subjects)

    def _subject(self, at: Position, text: str, side: str) -> str:
        words = text.split()
        raw = words[0].encode("utf-8", "surrogateescape") if words else b""
        if len(words) not in (1, 2) or len(raw) > LONGEST_SUBJECT or not is_valid_subscription(raw):
            self._problem(at, f'subject "{text}" is not a valid subject', "tokens are separated by single dots")
            return ""
        if len(words) == 2 and side == "publish":
            self._problem(at, f'"{text}": a publish permission cannot name a queue', "write the subject alone")
            return ""
        return " ".join(words)

    def _read_responses(self, entry: Entry) -> None:
        node = entry.value
        if isinstance(node, Scalar) and isinstance(node.value, bool):
            self._responses = DEFAULT_RESPONSES if node.value else 0
            return
        if not isinstance(node, Block):
            what = "error parsing response permissions, expected a boolean or a map"
            self._problem(entry.at, what, 'write true, or { max: 1, expires: "2m" }')
            return
        self._responses = DEFAULT_RESPONSES
        self._problems += given_again(node, _RESPONSE_KEYS)
        for inner in node:
            key = _RESPONSE_KEYS.get(inner.key.lower())
            if key is None:
                if not inner.used:
                    self._problem(inner.at, f'Unknown field "{inner.key}" parsing permissions', "write max or expires")
                continue
            try:
                self._read_response(key, inner.value)
            except Mistake as mistake:
                self._problem(inner.at, f"{inner.key}: {mistake.what}", mistake.advice)

    def _read_response(self, key: str, node: Node) -> None:
        value = plain(node)
        if key == "max":
            self._responses = max(values.number(value, -(2**31), 2**31 - 1), -1) or DEFAULT_RESPONSES
            return
        is_negative = isinstance(value, str) and value.startswith("-")
        try:
            expires_s = values.duration_s(value[1:] if is_negative and isinstance(value, str) else value)
        except values.BareSeconds:
            raise Mistake("expected a duration, not a number", 'write it in quotes with a unit, as in "2m"') from None
        self._expires_s = 0.0 if is_negative else expires_s or DEFAULT_EXPIRES_S

    def _problem(self, at: Position, what: str, advice: str) -> None:
        self._problems.append(Problem(at, what, advice))
