# cython: language_level=3
"""Signals at a parent's death, adoption of orphans, and process names: thin wrappers of prctl(2).

Compiled because ctypes would cost each process five milliseconds at its start. Linux only.
"""


def die_with_parent(int number):
    """Have the kernel send us this signal when our parent dies. Does nothing if the parent has died before."""
    return prctl(PR_SET_PDEATHSIG, <unsigned long> number) == 0


def adopt_orphans():
    """Descendants whose parents die become our own children, so that we can reap them."""
    return prctl(PR_SET_CHILD_SUBREAPER, <unsigned long> 1) == 0


def name_process(str name):
    """Set the name that `top` and `ps -o comm` show; only its first 15 bytes are used."""
    cdef bytes raw = name.encode()[:15]
    return prctl(PR_SET_NAME, <unsigned long> <const char*> raw) == 0
