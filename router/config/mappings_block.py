"""A block `mappings { subject: destination }`, of an account or of the whole file.

A destination is a subject, `{destination: …, weight: 30%}` or a list of those. If the weights are less than 100
together, the rest stays on the subject itself; if the subject, as it is written, is one of the destinations, the rest
is dropped (`foo.*: foo.$1` drops nothing). Destinations with `cluster` count in a member of that cluster, and there
only those; elsewhere those without.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from gnatswarm.broker.options import Mapping
from gnatswarm.broker.subject import is_valid_subscription
from gnatswarm.broker.transform import Transform, TransformError
from gnatswarm.router.config.conf_tree import Block, Entry, List, Node, Position, Problem, Scalar, text_in

_KEYS = {"dest": "destination", "destination": "destination", "weight": "weight", "cluster": "cluster"}


class _Destination(NamedTuple):
    """One as it is written."""

    subject: str
    weight: int
    cluster: str = ""  # for members of this one; "": for all that have none of their own


class MappingsBlock:
    """Reads one block; `mappings` is the result, in the order of the file. `cluster`: the name of ours, or ""."""

    def __init__(self, entry: Entry, problems: list[Problem], notices: list[Problem], cluster: str) -> None:
        self._problems = problems
        self._notices = notices
        self._cluster = cluster
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
        found: list[_Destination] = []
        for item in entry.value.items if isinstance(entry.value, List) else [entry.value]:
            destination = self._destination(subject, item, is_alone=not isinstance(entry.value, List))
            if destination is None:
                continue
            if any(destination.subject == one.subject for one in found):
                what = f'duplicate entry for "{destination.subject}"'
                self._problem(item.at, what, "keep one, with both weights")
                continue
            found.append(destination)
        for cluster in dict.fromkeys(one.cluster for one in found):
            total = sum(one.weight for one in found if one.cluster == cluster)
            if total > 100:
                self._problem(entry.value.at, f"total weight needs to be <= 100, not {total}", "lower some of them")
                return
        for cluster in dict.fromkeys(one.cluster for one in found if one.cluster not in ("", self._cluster)):
            what = f'the destinations of "{subject}" for another cluster were ignored: {cluster}'
            self._notice(entry.at, what, "name our own with cluster { name: … }")
        own = [one for one in found if one.cluster and one.cluster == self._cluster]
        chosen = own or [one for one in found if not one.cluster]
        itself = _itself(subject)
        shares = [(itself if one.subject == subject else one.subject, one.weight) for one in chosen]
        total = sum(weight for _, weight in shares)
        if total < 100 and not any(one.subject == subject for one in chosen):
            shares.append((itself, 100 - total))
        self.mappings += (Mapping(subject, tuple(shares)),)  # also to itself alone: it comes before those behind it

    def _destination(self, subject: str, node: Node, *, is_alone: bool) -> _Destination | None:
        text = text_in(node)
        if text is not None and is_alone:
            return self._checked(subject, _Destination(text, 100), node.at)
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
        cluster = text_in(keys["cluster"].value) if "cluster" in keys else ""
        if not isinstance(cluster, str):
            value = keys["cluster"].value
            self._problem(value.at, f"Expected cluster to be string, got {value.kind}", "put it in quotes")
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
        if weight is None:
            return None
        return self._checked(subject, _Destination(destination, weight, cluster), value.at)

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

    def _checked(self, subject: str, found: _Destination, at: Position) -> _Destination | None:
        destination = found.subject
        if destination == subject:
            return found
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
        return found

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
