"""Options that a block gives twice, in one spelling or in two.

The parser keeps the last entry of each key as it is written, because names of accounts, subjects and variables differ
where their case does. Names of options do not: `Users` and `users` are one, and so are `pass` and `password`. Of two
spellings nats-server takes either, by chance, or both (users, accounts); here it is a problem, unless both have the
same value (a variable often has the name of the option that it is for).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from gnatswarm.router.config.conf_tree import Block, Entry, Position, Problem, plain


def in_other_spellings(block: Block, names: Mapping[str, str]) -> Iterator[tuple[Entry, Entry]]:
    """Each entry whose option an earlier one gives by another name and with another value; and that earlier one.

    `names` are the options of the block: every name in lower case → the one that counts for all of them.
    """
    seen: dict[str, Entry] = {}
    for entry in block:
        name = names.get(entry.key.lower())
        if name is None:
            continue
        earlier = seen.setdefault(name, entry)
        if earlier is not entry and plain(earlier.value) != plain(entry.value):
            yield entry, earlier


def given_again(block: Block, names: Mapping[str, str], locks: Collection[str] | None = None) -> list[Problem]:
    """A problem for each option that is given again, in one spelling if it is one of `locks` (None: all are).

    Of others in one spelling the last one counts, and the parser has a notice.
    """
    found = [repeated(entry, earlier.at) for entry, earlier in in_other_spellings(block, names)]
    for entry in block:
        name = names.get(entry.key.lower())
        if entry.replaces is not None and name is not None and (locks is None or name in locks):
            found.append(repeated(entry, entry.replaces))
    return found


def repeated(entry: Entry, earlier: Position) -> Problem:
    """The problem of an option that is given again."""
    return Problem(entry.at, f"{entry.key} is given again", f"keep one; the other is at {earlier}")


def same(*names: str) -> dict[str, str]:
    """Names of one option, the first of which counts for all."""
    return dict.fromkeys(names, names[0])
