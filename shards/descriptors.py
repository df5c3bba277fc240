"""Room in the kernel's table of this process's descriptors, made before there are clients.

The kernel doubles that table whenever it is full, and where threads share it waits each time until every CPU has let
go of the old one (an RCU grace period: 5 to 15 ms were measured). A shard has a helper thread, so on its way to 5,000
connections it stood still seven times, and all its clients with it. Before the first thread room costs nothing but
itself: 8 bytes of kernel memory for each descriptor.
"""

from __future__ import annotations

import fcntl
import os
import resource

# Half a MiB of kernel memory. A shard with more connections than that waits for the table once more for each doubling.
MOST_DESCRIPTORS = 65_536
# Beside clients: links to 63 siblings, listeners, epoll sets, files.
OWN_DESCRIPTORS = 128


def make_room(clients: int, fd: int) -> None:
    """So that this process can have so many clients without waiting, as far as its limit and MOST_DESCRIPTORS go.

    `fd`: an open one, whichever. To be called before there are threads.
    """
    limit, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    room = min(clients + OWN_DESCRIPTORS, MOST_DESCRIPTORS)
    if limit != resource.RLIM_INFINITY:
        room = min(room, limit)
    # The table is made as large as the highest number in use asks for, and never made smaller.
    os.close(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, room - 1))
