# cython: language_level=3
"""Signals at a parent's death, the names of processes, and pages given back: thin wrappers of prctl(2) and madvise(2).

Compiled because ctypes would cost each process five milliseconds at its start. Linux only.
"""

from libc.stddef cimport size_t
from libc.stdio cimport FILE, fclose, fgets, fopen, sscanf
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


def forget_files():
    """Take the pages of files that this process has read, and not written, out of its memory; returns their bytes.

    They stay in the kernel's cache, and are there again at the first touch. For a process that goes idle. 0: hidden.
    """
    # In C, because Python's objects would dirty more pages than are given back.
    cdef unsigned long first, last, start = 0, end = 0, number, resident = 0, given = 0
    cdef bint is_only_read = False
    cdef char line[4096]
    cdef char rights[5]
    cdef char path = 0
    cdef FILE *stream = fopen("/proc/self/smaps", "re")
    if stream == NULL:
        return 0
    while fgets(line, sizeof(line), stream) != NULL:
        if sscanf(line, "%lx-%lx %4s %*s %*s %*s %c", &first, &last, rights, &path) >= 3:  # the first line of a mapping
            start, end = first, last
            is_only_read = b"/" == path and rights[0] == b"r" and rights[1] == b"-" and rights[3] == b"p"
        elif sscanf(line, "Rss: %lu", &number) == 1:
            resident = number * 1024
        elif is_only_read and sscanf(line, "Anonymous: %lu", &number) == 1:  # else: relocated, when it was loaded
            if number == 0 and madvise(<void*> start, end - start, MADV_DONTNEED) == 0:
                given += resident
        path = 0
    fclose(stream)
    return given
