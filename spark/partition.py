"""Puts services that talk to each other on the same shard, and no shard above its bound: a balanced graph partition.

Heavy edges are contracted first, as METIS does (Karypis and Kumar, 1998), but only while a group fits on a shard.
Groups are packed by weight, the heaviest first, where they talk most. Then single services move, and pairs change
places, as long as that saves crossings (Fiduccia and Mattheyses, 1982). It begins anew with smaller groups, and keeps
the best. A pure function, the same for the same input. Called by the job `place`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

# Of the mean load: no shard gets more.
BOUND = 1.25
# Groups of at most such parts of what fits on a shard.
GROUPS = (1.0, 0.75, 0.5, 0.25, 0.0)
MOST_PASSES = 20

Edges = Mapping[tuple[str, str], float]


class Partition(NamedTuple):
    """Where each service goes."""

    shard: dict[str, int]
    left: list[str]  # heavier than a shard may be: they stay spread over all


def partition(weights: Mapping[str, float], edges: Edges, shards: int, bound: float = BOUND) -> Partition:
    """Each service's shard, with few crossings and no shard over `bound` times the mean. ValueError: shards < 1."""
    if shards < 1:
        raise ValueError(f"{shards} shards")
    total = sum(weights.values())
    most = bound * total / shards
    left = sorted(name for name, weight in weights.items() if weight > most)
    names = sorted(set(weights) - set(left))
    # What is spread over all shards loads each of them: there is less room for the others.
    spread = sum(weights[name] for name in left) / shards
    graph = _neighbours(names, edges)
    best: dict[str, int] = {}
    best_cut = -1.0
    for part in GROUPS:
        placed = _refined(
            _packed(_groups(names, weights, graph, part * (most - spread)), weights, graph, shards, most - spread),
            weights,
            graph,
            shards,
            most - spread,
        )
        cut = crossing(edges, placed)
        if _heaviest(placed, weights) <= most - spread + 1e-9 * most and (best_cut < 0 or cut < best_cut):
            best, best_cut = placed, cut
    return Partition(best, left if best or not names else sorted(weights))


def crossing(edges: Edges, placed: Mapping[str, int]) -> float:
    """The weight of edges between different shards, of services that are placed."""
    return sum(w for (a, b), w in edges.items() if a in placed and b in placed and placed[a] != placed[b])


def crossing_share(edges: Edges, placed: Mapping[str, int], shards: int) -> float:
    """The part of all messages that crosses. Services that are not placed are spread evenly."""
    total = sum(edges.values())
    if not total:
        return 0.0
    spread = sum(w for (a, b), w in edges.items() if a not in placed or b not in placed) * (1 - 1 / shards)
    return (crossing(edges, placed) + spread) / total


def balance(weights: Mapping[str, float], placed: Mapping[str, int], shards: int) -> float:
    """The load of the heaviest shard ÷ the mean; services that are not placed are spread evenly."""
    loads = [sum(w for name, w in weights.items() if name not in placed) / shards] * shards
    for name, shard in placed.items():
        loads[shard] += weights[name]
    return max(loads) * shards / sum(loads) if sum(loads) else 1.0


def _neighbours(names: list[str], edges: Edges) -> dict[str, dict[str, float]]:
    known = set(names)
    found: dict[str, dict[str, float]] = {name: {} for name in names}
    for (a, b), weight in sorted(edges.items()):
        if a != b and a in known and b in known:
            found[a][b] = found[a].get(b, 0.0) + weight
            found[b][a] = found[b].get(a, 0.0) + weight
    return found


def _groups(
    names: list[str], weights: Mapping[str, float], graph: Mapping[str, Mapping[str, float]], most: float
) -> list[list[str]]:
    """Services joined along the heaviest edges, while a group weighs at most so much."""
    group = {name: [name] for name in names}
    weight = {name: weights[name] for name in names}
    lines = sorted(((w, a, b) for a in names for b, w in graph[a].items() if a < b), key=lambda one: (-one[0], one[1:]))
    for _w, a, b in lines:
        one, other = group[a], group[b]
        if one is other or weight[one[0]] + weight[other[0]] > most:
            continue
        weight[one[0]] += weight[other[0]]
        one += other
        for name in other:
            group[name] = one
    seen: dict[int, list[str]] = {id(one): one for one in group.values()}
    return sorted(seen.values(), key=lambda one: (-weight[one[0]], one[0]))


def _packed(
    groups: list[list[str]],
    weights: Mapping[str, float],
    graph: Mapping[str, Mapping[str, float]],
    shards: int,
    most: float,
) -> dict[str, int]:
    """Each group where it talks most and there is room; one that fits nowhere goes service by service."""
    placed: dict[str, int] = {}
    loads = [0.0] * shards
    waiting = [list(group) for group in reversed(groups)]
    while waiting:
        group = waiting.pop()
        weight = sum(weights[name] for name in group)
        talk = [0.0] * shards
        for name in group:
            for other, w in graph[name].items():
                if other in placed:
                    talk[placed[other]] += w
        free = [shard for shard in range(shards) if loads[shard] + weight <= most]
        if not free and len(group) > 1:
            waiting += [[name] for name in sorted(group, key=lambda name: weights[name])]
            continue
        where = max(free, key=lambda shard: (talk[shard], -loads[shard])) if free else loads.index(min(loads))
        for name in group:
            placed[name] = where
        loads[where] += weight
    return placed


def _refined(
    placed: dict[str, int],
    weights: Mapping[str, float],
    graph: Mapping[str, Mapping[str, float]],
    shards: int,
    most: float,
) -> dict[str, int]:
    """Single services move, and neighbours change places, while that saves crossings."""
    loads = [0.0] * shards
    for name, shard in placed.items():
        loads[shard] += weights[name]

    def talk(name: str) -> list[float]:
        found = [0.0] * shards
        for other, w in graph[name].items():
            found[placed[other]] += w
        return found

    def move(name: str, to: int) -> None:
        loads[placed[name]] -= weights[name]
        loads[to] += weights[name]
        placed[name] = to

    for _ in range(MOST_PASSES):
        has_moved = False
        for name in sorted(placed):
            mine, here = talk(name), placed[name]
            for to in sorted(range(shards), key=lambda shard: (-mine[shard], loads[shard])):
                if to == here or mine[to] <= mine[here]:
                    break
                if loads[to] + weights[name] <= most:
                    move(name, to)
                    has_moved = True
                    break
                for other in sorted(one for one, shard in placed.items() if shard == to):
                    theirs = talk(other)
                    gain = mine[to] - mine[here] + theirs[here] - theirs[to] - 2 * graph[name].get(other, 0.0)
                    more = weights[name] - weights[other]
                    if gain > 1e-9 and loads[to] + more <= most and loads[here] - more <= most:
                        move(name, to)
                        move(other, here)
                        has_moved = True
                        break
                if placed[name] != here:
                    break
        if not has_moved:
            break
    return placed


def _heaviest(placed: Mapping[str, int], weights: Mapping[str, float]) -> float:
    loads: dict[int, float] = {}
    for name, shard in placed.items():
        loads[shard] = loads.get(shard, 0.0) + weights[name]
    return max(loads.values(), default=0.0)
