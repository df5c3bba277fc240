"""Plots as inline SVG: bars, lines, a matrix. Colours are the page's CSS variables, which suit light and dark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from gnatswarm.spark.figures import visible

WIDTH = 640
LABEL = 190


def short(value: float) -> str:
    """1234567 → 1.23M."""
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            return f"{value / unit:.3g}{name}"
    return f"{value:.3g}"


def bars(rows: Sequence[tuple[str, float]], unit: str = "") -> str:
    """Horizontal bars, one per row."""
    if not rows:
        return ""
    most = max(value for _, value in rows) or 1.0
    parts = []
    for i, (label, value) in enumerate(rows):
        y = i * 22
        width = max(1.0, value / most * (WIDTH - LABEL - 80))
        label = visible(label)
        name = label if len(label) <= 28 else f"{label[:27]}…"
        parts.append(
            f"<g><title>{escape(label)}: {value:,.6g} {escape(unit)}</title>"
            f'<text class="label" x="{LABEL - 8}" y="{y + 15}" text-anchor="end">{escape(name)}</text>'
            f'<rect class="bar" x="{LABEL}" y="{y + 3}" width="{width:.1f}" height="16" rx="2"/>'
            f'<text x="{LABEL + width + 6:.1f}" y="{y + 15}">{short(value)}</text></g>'
        )
    return _svg(len(rows) * 22 + 4, "".join(parts))


def lines(series: Sequence[tuple[str, Sequence[tuple[float, float]]]], unit: str, time: Callable[[float], str]) -> str:
    """A line per series over time (x in seconds, written by `time`)."""
    points = [point for _, line in series for point in line]
    if not points:
        return ""
    first, last = min(x for x, _ in points), max(x for x, _ in points)
    top = max(y for _, y in points) or 1.0
    height = 180

    def place(x: float, y: float) -> str:
        across = (x - first) / (last - first) if last > first else 0.5
        return f"{50 + across * (WIDTH - 60):.1f},{height - 24 - y / top * (height - 40):.1f}"

    parts = [
        f'<text x="44" y="20" text-anchor="end">{short(top)}</text>',
        f'<text x="44" y="{height - 22}" text-anchor="end">0</text>',
        f'<text class="label" x="54" y="12">{escape(unit)}</text>',
        f'<path class="axis" d="M50 16V{height - 24}H{WIDTH - 10}"/>',
        f'<text class="label" x="50" y="{height - 10}">{time(first)}</text>',
        f'<text class="label" x="{WIDTH - 10}" y="{height - 10}" text-anchor="end">{time(last)}</text>',
    ]
    shown = min(8, len(series))
    for i, (name, line) in enumerate(series):
        drawn = " ".join(place(x, y) for x, y in line)
        tag = f'<polyline class="line s{i % 8}" points="{drawn}"/>'
        if len(line) == 1:
            x, y = place(*line[0]).split(",")
            tag = f'<circle class="dot s{i % 8}" cx="{x}" cy="{y}" r="3"/>'
        parts.append(f"<g><title>{escape(name)}</title>{tag}</g>")
        if i < 8:
            at = WIDTH - 10 - (shown - i - 1) * 64
            parts.append(f'<text class="key s{i % 8}" x="{at}" y="12" text-anchor="end">{escape(name)}</text>')
    return _svg(height, "".join(parts))


def matrix(names: Sequence[str], cells: dict[tuple[int, int], float]) -> str:
    """A square of values; rows are sources, columns are destinations."""
    if not cells:
        return ""
    most = max(cells.values()) or 1.0
    size = max(18, min(56, (WIDTH - 80) // max(1, len(names))))
    parts = []
    for i, name in enumerate(names):
        parts.append(
            f'<text class="label" x="54" y="{34 + i * size + size / 2}" text-anchor="end">from {escape(name)}</text>'
        )
        parts.append(
            f'<text class="label" x="{64 + i * size + size / 2}" y="20" text-anchor="middle">to {escape(name)}</text>'
        )
        for j, other in enumerate(names):
            value = cells.get((i, j), 0.0)
            x, y = 64 + j * size, 28 + i * size
            text = (
                f'<text x="{x + size / 2}" y="{y + size / 2 + 4}" text-anchor="middle">{short(value)}</text>'
                if size > 30
                else ""
            )
            parts.append(
                f"<g><title>{escape(name)} → {escape(other)}: {value:,.0f}</title>"
                f'<rect class="bar" x="{x}" y="{y}" width="{size - 2}" height="{size - 2}" rx="3" '
                f'fill-opacity="{0.06 + 0.6 * value / most:.3f}"/>{text}</g>'
            )
    return _svg(36 + len(names) * size, "".join(parts))


ROW = 26
# Room for an arrow between two columns of names.
ARROWS = (190, WIDTH - 190)
OTHERS = "others"


def graph(edges: Sequence[tuple[str, str, float]], unit: str, most: int = 20) -> str:
    """Who sends to whom: senders on the left, receivers on the right, a line for each pair, as thick as it is heavy.

    Of more than `most` on a side the lightest are drawn as one, so that 500 are as legible as five.
    """
    if not edges:
        return ""
    left, n_left = _heaviest([(edge[0], edge[2]) for edge in edges], most)
    right, n_right = _heaviest([(edge[1], edge[2]) for edge in edges], most)
    together: dict[tuple[int, int], float] = {}
    for sender, receiver, value in edges:
        pair = left.get(sender, len(left)), right.get(receiver, len(right))
        together[pair] = together.get(pair, 0.0) + value
    names = [[*map(visible, side), *([f"{n} {OTHERS}"] if n else [])] for side, n in ((left, n_left), (right, n_right))]
    height = ROW * max(len(side) for side in names) + 8
    heaviest = max(together.values()) or 1.0
    parts = []

    def middle(side: int, place: int) -> float:
        return height * (place + 0.5) / len(names[side])

    for (a, b), value in sorted(together.items(), key=lambda one: (one[1], one[0])):
        y, z = middle(0, a), middle(1, b)
        thick = 1.0 + 9.0 * (value / heaviest) ** 0.5
        parts.append(
            f'<path class="line s{a % 8}" style="stroke-width:{thick:.1f}" stroke-opacity=".55" '
            f'd="M{ARROWS[0]} {y:.1f}C{WIDTH / 2} {y:.1f} {WIDTH / 2} {z:.1f} {ARROWS[1]} {z:.1f}">'
            f"<title>{escape(names[0][a])} → {escape(names[1][b])}: {value:,.0f} {escape(unit)}</title></path>"
        )
    for side, at, anchor in ((0, ARROWS[0] - 8, "end"), (1, ARROWS[1] + 8, "start")):
        for place, name in enumerate(names[side]):
            label = name if len(name) <= 26 else f"{name[:25]}…"
            parts.append(
                f'<text x="{at}" y="{middle(side, place) + 4:.1f}" text-anchor="{anchor}">'
                f"{escape(label)}<title>{escape(name)}</title></text>"
            )
    return _svg(height, "".join(parts))


def _heaviest(ends: Sequence[tuple[str, float]], most: int) -> tuple[dict[str, int], int]:
    """The place of each of the heaviest, and how many are left."""
    total: dict[str, float] = {}
    for name, value in ends:
        total[name] = total.get(name, 0.0) + value
    ordered = sorted(total, key=lambda name: (-total[name], name))
    # One more is no row more than "1 others".
    kept = ordered if len(ordered) <= most + 1 else ordered[:most]
    return {name: place for place, name in enumerate(kept)}, len(ordered) - len(kept)


def _svg(height: float, body: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img">{body}</svg>'
