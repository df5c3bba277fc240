"""Processor time is counted of children too, while they run and when they have ended."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Says so when it has used 0.3 s of a processor, and ends when it is told to.
BUSY = """
import time
while time.process_time() < 0.3:
    pass
print(flush=True)
input()
"""


# In a process of its own: those of other tests may leave the family of this one at any moment.
COUNTING = f"""
import subprocess, sys
from tests.support.processor_time import spent_s

before = spent_s()
child = subprocess.Popen([sys.executable, "-c", {BUSY!r}], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
child.stdout.readline()
meanwhile = spent_s()
child.communicate("\\n")
print(meanwhile - before, spent_s() - meanwhile)
"""


def test_what_a_child_takes_is_counted_once():
    done = subprocess.run([sys.executable, "-c", COUNTING], cwd=ROOT, capture_output=True, text=True, check=True)
    while_it_ran, at_its_end = map(float, done.stdout.split())
    assert while_it_ran >= 0.28  # the kernel counts in ticks
    assert 0 <= at_its_end < 0.28
