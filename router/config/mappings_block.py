"""A block `mappings { subject: destination }`, of an account or of the whole file.

A destination is a subject, `{destination: …, weight: 30%}` or a list of those. If the weights are less than 100
together, the rest stays on the subject itself; if the subject is one of the destinations, the rest is dropped.
"""

from __future__ import annotations

import re

from gnatswarm.broker.options import Mapping
from gnatswarm.broker.subject import is_valid_subscription
from gnatswarm.broker.transform import Transform, TransformError
from gnatswarm.router.config.conf_tree import Block, Entry, List, Node, Position, Problem, Scalar, text_in

_KEYS = {"dest": "destination", "destination": "destination", "weight": "weight", "cluster": "cluster"}


class MappingsBlock:
    """Reads one block; `mappings` is the result, in the order of the file."""

    def __init__(self, entry: Entry, problems: list[Problem], notices: list[Problem]) -> None:
        self._problems = problems
        self._notices = notices
        self.mappings: tuple[Mapping, ...] = ()
        block = entry.value
        if not isinstance(block, Block):
            self._problem(
                entry.at, f"Expected mappings to be a map, got {block.kind}", "write { subject: destination }"
            )
            return
        for inner in block:
            if inner.replaces is not None:
                self._problem(inner.at, f'duplicate entry for "{inner.key}"', "keep one")
            if any(one.isspace() for one in inner.key) or not is_valid_subscription(_raw(inner.key)):
                if not inner.used:
                    what = f'Subject "{inner.key}" is not a valid subject'
                    self._problem(inner.at, what, "tokens are separated by single dots")
                continue
            self._mapping(inner)

    def _mapping(self, entry: Entry) -> None:
        subject = entry.key
        found: list[tuple[str, int]] = []
        for item in entry.value.items if isinstance(entry.value, List) else [entry.value]:
            destination = self._destination(subject, item, is_alone=not isinstance(entry.value, List))
            if destination is None:
                continue
            if any(destination[0] == name for name, _ in found):
                self._problem(item.at, f'duplicate entry for "{destination[0]}"', "keep one, with both weights")
                continue
            found.append(destination)
        total = sum(weight for _, weight in found)
        if total > 100:
            self._problem(entry.value.at, f"total weight needs to be <= 100, not {total}", "lower some of them")
            return
        itself = _itself(subject)
        if total < 100 and not any(name in (itself, subject) for name, _ in found):
            found.append((itself, 100 - total))
        if [name for name, weight in found if weight] != [itself] or found[0][1] != 100:
            self.mappings += (Mapping(subject, tuple(found)),)

    def _destination(self, subject: str, node: Node, *, is_alone: bool) -> tuple[str, int] | None:
        text = text_in(node)
        if text is not None and is_alone:
            return self._checked(subject, text, node.at, 100)
        if not isinstance(node, Block):
            what = "Expected an entry for the mapping destination"
            self._problem(node.at, what, "write a subject, or {destination: …, weight: 50%}")
            return None
        keys: dict[str, Entry] = {}
        for entry in node:
            name = _KEYS.get(entry.key.lower())
            if name is not None and name not in keys:
                keys[name] = entry
            elif name is not None or not entry.used:
                what = f'Unknown field "{entry.key}" for mapping destination'
                self._problem(entry.at, what if name is None else f"{entry.key} is given again", "remove it")
        if "cluster" in keys:
            what = "a destination for another cluster was ignored"
            self._notice(keys["cluster"].at, what, "this broker is in none; the other destinations count")
            return None
        if "destination" not in keys:
            self._problem(node.at, "a mapping without a destination", "write {destination: …, weight: 50%}")
            return None
        value = keys["destination"].value
        destination = text_in(value)
        if not isinstance(destination, str):
            self._problem(value.at, f"Expected destination to be string, got {value.kind}", "put it in quotes")
            return None
        if "weight" not in keys:
            what = f'Missing weight for mapping destination "{destination}"'
            self._problem(node.at, what, "write weight: 50%")
            return None
        weight = self._weight(keys["weight"])
        return None if weight is None else self._checked(subject, destination, value.at, weight)

    def _weight(self, entry: Entry) -> int | None:
        value = entry.value.value if isinstance(entry.value, Scalar) else None
        text = str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""
        if not re.fullmatch(r"-?\d{1,9}%?", text):
            shown = entry.value.text if isinstance(entry.value, Scalar) and entry.value.text else entry.value.kind
            self._problem(entry.at, f"Unknown entry type for weight of {shown}", "write a whole number, as in 50%")
            return None
        weight = int(text.removesuffix("%"))
        if not 0 <= weight <= 100:
            self._problem(entry.at, f"Invalid weight {weight} for mapping destination", "write 0% to 100%")
            return None
        return weight

    def _checked(self, subject: str, destination: str, at: Position, weight: int) -> tuple[str, int] | None:
        if destination == subject:
            return destination if "*" not in subject.split(".") else _itself(subject), weight
        # Functions may have some between their arguments.
        if any(one.isspace() for one in re.sub(r"\{\{.*?\}\}", "", destination)):
            what = f'Error adding mapping for "{subject}" to "{destination}" : invalid mapping destination'
            self._problem(at, f"{what}: invalid subject", "no message can have a subject with blanks")
            return None
        try:
            Transform(_raw(subject), _raw(destination), is_mapping=True)
        except TransformError as error:
            what = f'Error adding mapping for "{subject}" to "{destination}" : {error}'
            self._problem(at, what, "write $1 for what the first * stands for")
            return None
        return destination, weight

    def _problem(self, at: Position, what: str, advice: str) -> None:
        self._problems.append(Problem(at, what, advice))

    def _notice(self, at: Position, what: str, advice: str) -> None:
        self._notices.append(Problem(at, what, advice))


def _itself(subject: str) -> str:
    """The subject as a destination: `foo.*` as `foo.$1`."""
    tokens, n = [], 0
    for token in subject.split("."):
        n += token == "*"
        tokens.append(f"${n}" if token == "*" else token)
    return ".".join(tokens)


def _raw(subject: str) -> bytes:
    return subject.encode("utf-8", "surrogateescape")
