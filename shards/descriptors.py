"""Enlarges the kernel's descriptor table of this process before there are clients.

The kernel doubles that table whenever it is full. In a process with threads it waits each time for an RCU grace period
(5 to 15 ms were measured). A shard has a helper thread, so on its way to 5,000 connections it and all its clients
stood still seven times. Before the first thread exists, enlarging the table costs only memory of the kernel: 8 bytes
for each descriptor.
"""

from __future__ import annotations

import fcntl
import os
import resource

# Half a MiB of kernel memory. A shard with more connections than that has to wait at each further doubling.
MOST_DESCRIPTORS = 65_536
# Beside clients: links to 63 siblings, listeners, epoll sets, files.
OWN_DESCRIPTORS = 128


def make_room(clients: int, fd: int) -> None:
    """Enlarge the table for so many clients, up to the process limit and MOST_DESCRIPTORS.

    `fd`: any open descriptor. To be called before there are threads.
    """
    limit, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    room = min(clients + OWN_DESCRIPTORS, MOST_DESCRIPTORS)
    if limit != resource.RLIM_INFINITY:
        room = min(room, limit)
    # The kernel makes the table large enough for the highest number in use, and never makes it smaller.
    os.close(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, room - 1))
