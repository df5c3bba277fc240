# The rules of an account's subjects: mappings to other subjects, and imports from other accounts.
#
#   Mapping         a message published to `subject` goes to another subject of the same account
#   ServiceImport   … also goes to another account, as a request           (both: Sublist.rules)
#   StreamImport    a subscription here also gets messages of another account       (Sublist.streams)
#
# All three are made by a start or a reload and never changed.

cimport cython
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from gnatswarm.broker.sublist cimport Sublist
from gnatswarm.broker.transform cimport Transform

# How a service replies.
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
    cdef uint8_t bounds[101]            # cumulative percentages
    # A random destination; None: drop this message.
    cdef Transform choose(self, uint64_t random)


@cython.final
cdef class ServiceImport:
    cdef readonly bytes subject         # in the importing account
    cdef readonly Sublist importer
    cdef readonly Sublist exporter
    cdef Transform renaming             # to the exporter's subjects; None: they are the same
    cdef readonly int response_kind
    cdef bytes note                     # the header line that names the requestor
    cdef readonly uint64_t threshold_us  # how long a reply may take
    cdef readonly bint traces           # a trace follows requests to the exporter
    cdef readonly bint shares           # requests say which client they come from
    cdef readonly tuple latency         # (subject, percent that is measured) of the export; None: nothing is
    cdef readonly tuple export           # (exporter's account, subject of its export): see ServiceImports.passed
    cdef readonly tuple stays            # beginnings of subjects that are no requests to it

    cdef bint is_for(self, bytes published)


@cython.final
cdef class StreamImport:
    cdef readonly Sublist exporter
    cdef readonly bytes subject         # in the exporting account
    cdef readonly bytes local_subject   # in the importing one
    cdef Transform renaming             # exporter's subject → importer's; None: they are the same
    cdef Transform back

    # The exporter's subjects that a subscription here is interested in; None: none.
    cdef bytes wanted(self, bytes subscribed)
