# cython: language_level=3
"""Signals at a parent's death, and the names of processes: thin wrappers of prctl(2), and one of /proc.

Compiled because ctypes would cost each process five milliseconds at its start. Linux only.
"""

from libc.stddef cimport size_t
from libc.string cimport memcpy, memset

# In /proc/PID/stat behind the name in parentheses, from 0: where the command line begins and ends in our memory.
cdef int ARG_START = 45
cdef int ARG_END = 46


def die_with_parent(int number):
    """Have the kernel send us this signal when our parent dies. Does nothing if the parent has died before."""
    return prctl(PR_SET_PDEATHSIG, <unsigned long> number) == 0


def name_process(str name):
    """Set the name that `top` and `ps -o comm` show; only its first 15 bytes are used."""
    cdef bytes raw = name.encode()[:15]
    return prctl(PR_SET_NAME, <unsigned long> <const char*> raw) == 0


def title_process(str title):
    """Replace the command line that `ps` shows, cut to its length; only in a forked process. False: not possible."""
    cdef bytes raw = title.encode()
    cdef size_t room, length
    cdef char* area
    try:
        with open("/proc/self/stat", "rb") as stream:
            fields = stream.read().rpartition(b")")[2].split()
        start, end = int(fields[ARG_START]), int(fields[ARG_END])
    except (OSError, IndexError, ValueError):
        return False
    if not 0 < start < end:  # hidden, as where /proc is restricted
        return False
    room = end - start
    length = min(<size_t> len(raw), room - 1)
    # C's argv: the interpreter has copied it long ago, and reads it no more.
    area = <char*> <size_t> start
    memset(area, 0, room)
    memcpy(area, <const char*> raw, length)
    return True
