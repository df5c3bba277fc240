# cython: language_level=3
"""What the reads of one socket show about how it is written to, as tests ask: see note_habit in patience.pxd."""

from libc.stdint cimport uint64_t

from gnatswarm.shards.sockets.patience cimport ReadHabit, note_habit

cdef tuple FINDINGS = ("as before", "small and quick", "not patiently", "in bulk")


cdef class ProbeHabit:
    """The habit of one socket, without the socket."""

    cdef ReadHabit habit

    def __cinit__(self, uint64_t now_us, *, bint is_narrow=False):
        self.habit.read_us = now_us
        self.habit.is_narrow = is_narrow

    def read(self, Py_ssize_t size, uint64_t now_us) -> str:
        """A read of so many bytes; what it shows."""
        return FINDINGS[note_habit(&self.habit, size, now_us)]

    def send(self):
        """Something is sent to it."""
        self.habit.was_sent = True

    def admit(self):
        """It is read with patience from here on, as PatientSet.admit() has it."""
        self.habit.is_patient = True
        self.habit.small_reads = 0

    def gather(self):
        """It is one of the crowd from here on, as Socket.gather() has it."""
        self.habit.is_gathered = True

    def read_promptly(self):
        """It is in neither set any more, as Socket.read_promptly() has it."""
        self.habit.is_patient = self.habit.is_gathered = False
        self.habit.small_reads = 0
