"""What somebody who mistyped a name probably meant: the known name with the fewest typing errors, or none.

A typing error is a character that is missing, extra, wrong, or exchanged with its neighbour (Damerau-Levenshtein, the
restricted form). Few are allowed, because a wrong guess is worse than none: `usr` is not `cluster`. Imported only for
an error message.
"""

from __future__ import annotations

from collections.abc import Iterable

# (names of up to so many characters, errors): a third of a name may be wrong, but never more than three characters.
_ALLOWED = ((2, 0), (5, 1), (8, 2))
_MOST = 3


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that is meant, the first of equally good ones; "": there is no good guess."""
    wanted = _bare(name)
    allowed = next((errors for length, errors in _ALLOWED if len(wanted) <= length), _MOST)
    best, fewest = "", allowed + 1
    for candidate in known:
        if sorted(_words(candidate)) == sorted(_words(name)):  # payload_max
            return candidate
        bare = _bare(candidate)
        most = min(fewest, len(candidate))
        if abs(len(wanted) - len(bare)) >= most:  # each is an error, so it need not be looked at
            continue
        errors = typing_errors(wanted, bare, most)
        if errors < most:
            best, fewest = candidate, errors
    return best


def _bare(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


def _words(name: str) -> list[str]:
    return name.lower().replace("-", "_").split("_")


def typing_errors(one: str, other: str, most: int) -> int:
    """The number of typing errors that make one of the other, or `most`, if there are more."""
    before: list[int] = []
    last = list(range(len(other) + 1))
    for at, character in enumerate(one, 1):
        row = [at]
        for to, wanted in enumerate(other, 1):
            errors = min(last[to] + 1, row[-1] + 1, last[to - 1] + (character != wanted))
            if at > 1 and to > 1 and character == other[to - 2] and one[at - 2] == wanted:
                errors = min(errors, before[to - 2] + 1)
            row.append(errors)
        if min(row) >= most and min(last) + 1 >= most:
            return most
        before, last = last, row
    return min(last[-1], most)
