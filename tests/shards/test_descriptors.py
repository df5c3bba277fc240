"""The descriptor table is enlarged at once, up to the limit, and uses no descriptor."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gnatswarm.shards.descriptors import MOST_DESCRIPTORS

# In a process of its own: a table that has grown never shrinks.
PROGRAM = """
import os, resource, sys
from gnatswarm.shards.descriptors import make_room
def entries():
    return int(open("/proc/self/status").read().split("FDSize:")[1].split()[0])
asked, limit = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
opened, before = os.listdir("/proc/self/fd"), entries()
make_room(asked, 0)
print(before, entries(), os.listdir("/proc/self/fd") == opened)
"""


@pytest.mark.parametrize(
    ("asked", "limit", "least", "most"),
    [
        (3000, 4000, 3000, 4096),
        (1000, 4000, 1025, 2048),  # and what is not for clients
        (3000, 500, 500, 1024),
        (2**31, 4000, 4000, 4096),
        (10, 4000, 10, 256),  # less than it has
    ],
)
def test_the_table_has_so_many_entries(asked, limit, least, most):
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(asked), str(limit)], capture_output=True, text=True, check=True
    )
    before, after, is_same = ran.stdout.split()
    assert int(before) <= 256
    assert least <= int(after) <= most
    assert is_same == "True"


def test_it_has_a_bound():
    assert MOST_DESCRIPTORS * 8 == 512 * 1024  # bytes of kernel memory


# In a process of its own, too: each start has a few descriptors more than the last one.
STARTS = """
import os, resource
import gnatswarm
with gnatswarm.Broker() as one:  # imports
    port = one.port
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
failed = 0
for more in range(1, 40):
    before = len(os.listdir("/proc/self/fd"))
    broker = gnatswarm.Broker(port=port)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before - 1 + more, hard))
    try:
        broker.start()
        break
    except gnatswarm.BrokerFailed:
        failed += 1
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    broker.start()  # the port is free
    broker.stop()
    assert len(os.listdir("/proc/self/fd")) == before, more
broker.stop()
print(failed)
"""


def test_an_embedded_broker_that_has_too_few_to_start_leaves_none_and_no_port() -> None:
    ran = subprocess.run([sys.executable, "-P", "-c", STARTS], capture_output=True, text=True, check=False, timeout=60)
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) > 5
