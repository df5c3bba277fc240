# What the configuration says of an account's subjects: mappings to others, and imports from other accounts.
#
#   Mapping         a message published to `subject` goes to another subject of the same account
#   ServiceImport   … goes, as a request, to another account as well       (both: Sublist.rules)
#   StreamImport    a subscription here also hears what another account publishes   (Sublist.streams)
#
# All three are made once, by a start or a reload, and not changed.

cimport cython
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from broker.sublist cimport Sublist
from broker.transform cimport Transform

# What a service's answers are like.
cdef enum ResponseKind:
    RESPONSE_SINGLETON = 0     # one message
    RESPONSE_STREAM = 1        # any number, until an empty one
    RESPONSE_CHUNKED = 2       # likewise


@cython.final
cdef class Mapping:
    cdef readonly bytes subject
    cdef readonly list destinations     # (Transform, percent)
    cdef readonly bint is_constant      # one and the same destination for all messages
    cdef uint32_t n_choices
    cdef uint8_t bounds[101]            # the percentages, added up
    # One of the destinations, by chance; None: this message is to be lost.
    cdef Transform choose(self, uint64_t random)


@cython.final
cdef class ServiceImport:
    cdef readonly bytes subject         # in the importing account
    cdef readonly Sublist importer
    cdef readonly Sublist exporter
    cdef Transform renaming             # to the exporter's subjects; None: they are the same
    cdef readonly int response_kind
    cdef bytes note                     # the header line that says who asks
    cdef readonly uint64_t threshold_us  # an answer may come for so long


@cython.final
cdef class StreamImport:
    cdef readonly Sublist exporter
    cdef readonly bytes subject         # in the exporting account
    cdef readonly bytes local_subject   # in the importing one
    cdef Transform renaming             # exporter's subject → importer's; None: they are the same
    cdef Transform back

    # What a subscription here is interested in over there; None: nothing.
    cdef bytes wanted(self, bytes subscribed)
