"""The block `placement { after_scale, bound, rules }`, as settings of Options.

A rule is `{ account | user | name | subject: PATTERN, together: true | shard: N }`. One that no client could come to,
because an earlier one matches all of its clients, is a problem: somebody meant something by it.
"""

from __future__ import annotations

from gnatswarm.broker.options import PlacementRule
from gnatswarm.broker.placement_rules import KINDS, NAMES, NONE, SUBJECT, Patterns, Subjects
from gnatswarm.broker.subject import is_valid_subscription
from gnatswarm.router.config import option_values as values
from gnatswarm.router.config.conf_tree import Block, Entry, List, Node, Position, Problem, plain, text_in
from gnatswarm.router.config.option_keys import PLACEMENT, Settings
from gnatswarm.router.config.option_values import Mistake
from gnatswarm.router.config.repetition import given_again
from gnatswarm.router.config.user_list import unknown_field

# Each rule is compared with those before it.
MOST_RULES = 4096
MOST_PATTERN = 1024

_KEYS = (*PLACEMENT, "rules")
_WHERE = ("together", "shard")
_EXAMPLE = 'write { name: "orders*", shard: 1 }, or together: true in place of the shard'


class PlacementBlock:
    """Reads one block into `settings`; errors are in `problems`."""

    def __init__(self, entry: Entry) -> None:
        self.settings: Settings = {}
        self.problems: list[Problem] = []
        self.places: list[Position] = []  # of the rules
        self._rules: list[PlacementRule] = []
        self._patterns: dict[str, Patterns | Subjects] = {SUBJECT: Subjects(), **{kind: Patterns() for kind in NAMES}}
        if not isinstance(entry.value, Block):
            what = f"Expected placement to be a map, got {entry.value.kind}"
            self._problem(entry.at, what, "write placement { rules: [ … ] }")
            return
        self.problems += given_again(entry.value, {name: name for name in _KEYS})
        for inner in entry.value:
            self._entry(inner)

    def _entry(self, entry: Entry) -> None:
        name, value = entry.key.lower(), entry.value
        try:
            if name in PLACEMENT:
                self.settings |= PLACEMENT[name](plain(value))
            elif name == "rules":
                self._read_rules(value)
            elif not entry.used:
                self.problems.append(unknown_field(entry, list(_KEYS)))
        except Mistake as mistake:
            self._problem(entry.at, f"{name}: {mistake.what}", mistake.advice)

    def _read_rules(self, node: Node) -> None:
        if not isinstance(node, List):
            self._problem(node.at, f"Expected rules to be a list, got {node.kind}", "write rules: [ {…}, {…} ]")
            return
        if len(node.items) > MOST_RULES:
            self._problem(node.at, f"{len(node.items)} rules", f"write {MOST_RULES} at most: a * stands for many names")
            return
        for item in node.items:
            rule = self._rule(item)
            if rule is not None and self._is_reached(rule, item.at):
                self._patterns[rule.kind].add(rule.pattern, len(self._rules))
                self._rules.append(rule)
                self.places.append(item.at)
        self.settings["placement.rules"] = tuple(self._rules)

    def _rule(self, node: Node) -> PlacementRule | None:
        if not isinstance(node, Block):
            self._problem(node.at, f"Expected a rule, got {node.kind}", _EXAMPLE)
            return None
        known: dict[str, Entry] = {}
        for entry in node:
            name = entry.key.lower()
            if name not in (*KINDS, *_WHERE):
                if not entry.used:
                    self.problems.append(unknown_field(entry, [*KINDS, *_WHERE]))
            elif entry.replaces is not None or name in known:
                self._problem(entry.at, f"{name} is given again", "keep one")
            else:
                known[name] = entry
        kinds = [name for name in known if name in KINDS]
        where = [name for name in known if name in _WHERE]
        if len(kinds) != 1 or len(where) != 1:
            if node.unknown or len(known) < len(node):
                return None  # an undefined variable, or an unknown field: it is reported
            what = (
                f"a rule with {' and '.join(kinds)}" if len(kinds) > 1
                else "a rule that does not say whose it is" if not kinds
                else "a rule with together and a shard" if where
                else "a rule that does not say where"
            )  # fmt: skip
            self._problem(node.at, what, _EXAMPLE)
            return None
        pattern = self._pattern(kinds[0], known[kinds[0]])
        shard = self._shard(known[where[0]])
        return None if pattern is None or shard is None else PlacementRule(kinds[0], pattern, shard)

    def _pattern(self, kind: str, entry: Entry) -> str | None:
        text = text_in(entry.value)
        if text is None:
            self._problem(entry.at, f"{kind}: expected text, not {entry.value.kind}", "put it in quotes")
        elif not text or len(text) > MOST_PATTERN:
            what = f"a pattern of {len(text):,} characters" if text else "an empty pattern matches no client"
            self._problem(entry.at, f"{kind}: {what}", f"write 1 to {MOST_PATTERN} characters; * stands for anything")
        elif kind == SUBJECT and not is_valid_subscription(text.encode("utf-8", "surrogateescape")):
            advice = "write it as a subscription, as in orders.> or orders.*.new"
            self._problem(entry.at, f'subject: "{text}" is not a valid subject', advice)
        else:
            return text
        return None

    def _shard(self, entry: Entry) -> int | None:
        value = plain(entry.value)
        if entry.key.lower() == "together":
            if value is not True:
                self._problem(entry.at, "together: expected true", "write together: true, or shard: N")
            return -1 if value is True else None
        try:
            return values.number(value, 0, values.MOST_SHARDS - 1)
        except Mistake as mistake:
            self._problem(entry.at, f"shard: {mistake.what}", mistake.advice)
            return None

    def _is_reached(self, rule: PlacementRule, at: Position) -> bool:
        earlier = self._patterns[rule.kind].find(rule.pattern)
        if earlier == NONE:
            return True
        other, place = self._rules[earlier], self.places[earlier]
        if other.pattern == rule.pattern:
            what = f'{rule.kind} "{rule.pattern}" has a rule already, for {shown_target(other)}'
            self._problem(at, what, f"keep one; the other is at {place}")
        else:
            what = f'{rule.kind} "{rule.pattern}" is within {other.kind} "{other.pattern}", whose rule comes first'
            self._problem(at, what, f"put it before that one, which is at {place}, or remove it")
        return False

    def _problem(self, at: Position, what: str, advice: str) -> None:
        self.problems.append(Problem(at, what, advice))


def shown_target(rule: PlacementRule) -> str:
    """Where its clients belong, in words."""
    return "one shard together" if rule.shard < 0 else f"shard {rule.shard}"
