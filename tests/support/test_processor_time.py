"""Processor time is counted of children too, while they run and when they have ended."""

from __future__ import annotations

import subprocess
import sys

from tests.support.processor_time import spent_s

# Says so when it has used 0.3 s of a processor, and ends when it is told to.
BUSY = """
import time
while time.process_time() < 0.3:
    pass
print(flush=True)
input()
"""


def test_what_a_child_takes_is_counted_once():
    before = spent_s()
    child = subprocess.Popen([sys.executable, "-c", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    child.stdout.readline()
    meanwhile = spent_s()
    child.communicate("\n")
    afterwards = spent_s()
    assert meanwhile - before >= 0.28  # the kernel counts in ticks
    assert 0 <= afterwards - meanwhile < 0.28
