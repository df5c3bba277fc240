"""Plots are of what clients have named, whatever that is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

NOTHING: dict[str, Any] = dict.fromkeys(("fanouts", "hottest", "over_time", "shards", "matrix"), ())


def test_each_subject_has_its_bar_with_its_name_as_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    from matplotlib import pyplot
    from matplotlib.patches import Rectangle

    from gnatswarm.spark.plots import plots

    monkeypatch.setattr(pyplot, "close", lambda: None)
    names = ["$a.$b", "a.${^_x}$", r"b.\$\frac$", "same", "same", "long." * 100, "x\x01"]
    rows = [{"subject": name, "deliveries": 10 - at} for at, name in enumerate(names)]
    (path,) = plots(NOTHING | {"hottest": rows}, tmp_path)
    assert path == tmp_path / "hottest.png" and os.path.getsize(path)
    (axes,) = pyplot.gcf().axes
    bars = [bar for bar in axes.patches if isinstance(bar, Rectangle)]
    assert [bar.get_width() for bar in bars] == [4, 5, 6, 7, 8, 9, 10]
    assert len({bar.get_y() for bar in bars}) == len(names)
    shown = [label.get_text().replace(r"\$", "$") for label in axes.get_yticklabels()]
    assert shown == [r"x\u0001", ("long." * 100)[:39] + "…", "same", "same", r"b.\$\frac$", "a.${^_x}$", "$a.$b"]
    monkeypatch.undo()
    pyplot.close("all")


def test_letters_that_the_font_lacks_are_no_warnings(recwarn: pytest.WarningsRecorder, tmp_path: Path):
    from gnatswarm.spark.plots import plots

    assert plots(NOTHING | {"hottest": [{"subject": "\u65e5\u672c", "deliveries": 1}]}, tmp_path)
    assert not [str(one.message) for one in recwarn]
