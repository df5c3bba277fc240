"""Writes deploy/prometheus/gnatswarm.rules.yml from the table of alarms: `make reference`. A test compares them."""

from __future__ import annotations

import json
from pathlib import Path

from gnatswarm.router.monitoring.alarm_rules import ALARM_RULES, DOWN, AlarmRule

FILE = Path(__file__).with_name("prometheus") / "gnatswarm.rules.yml"

HEAD = """\
# Alerts that ask for somebody to look. severity: page (clients suffer now), ticket (they will, or some do), info.
# `make reference` writes this file from router/monitoring/alarm_rules.py, which the dashboard shows alarms by, too.
# gnatswarm.rules.test.yml says when each of them fires: promtool test rules gnatswarm.rules.test.yml
groups:
  - name: gnatswarm
    rules:
"""


def rules() -> str:
    """The whole file."""
    return HEAD + "".join(_rule(rule) for rule in ALARM_RULES)


def _rule(rule: AlarmRule) -> str:
    names = {"broker": "{{ $labels.instance }}", "shard": "{{ $labels.shard }}"}
    annotations = f"summary: {json.dumps(rule.summary.format(**names))}, action: {json.dumps(rule.action)}"
    lines = [f"# {rule.comment}"] if rule.comment else []
    lines += [f"- alert: Gnatswarm{rule.name}", f"  expr: {DOWN if rule.condition is None else rule.condition.promql}"]
    if rule.for_s:
        lines.append(f"  for: {_duration(rule.for_s)}")
    lines += [f"  labels: {{severity: {rule.severity}}}", f"  annotations: {{{annotations}}}"]
    return "".join(f"      {line}\n" for line in lines)


def _duration(seconds: float) -> str:
    return f"{seconds:g}s" if seconds % 60 else f"{seconds / 60:g}m"


if __name__ == "__main__":
    FILE.write_text(rules(), encoding="utf-8")
    print(f"{FILE} is written")
