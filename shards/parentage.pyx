# cython: language_level=3
"""Who is told when a process dies, and what a process is called: thin faces of prctl(2).

Compiled because the other way, ctypes, costs each process five milliseconds of its start. Linux alone.
"""


def die_with_parent(int number):
    """From now on the kernel sends us this signal when our parent dies. One that has died before is not noticed."""
    return prctl(PR_SET_PDEATHSIG, <unsigned long> number) == 0


def adopt_orphans():
    """Processes below us whose parent dies become our own children, so that we can reap them."""
    return prctl(PR_SET_CHILD_SUBREAPER, <unsigned long> 1) == 0


def name_process(str name):
    """What `top` and `ps -o comm` show; the first 15 bytes of it."""
    cdef bytes raw = name.encode()[:15]
    return prctl(PR_SET_NAME, <unsigned long> <const char*> raw) == 0
