# cython: language_level=3, boundscheck=False, wraparound=False
"""The rules of an account's subjects: mappings to other subjects, and imports from other accounts.

Not here: whether an import is allowed (checked by the router), and who gets a message (sublist, service_imports).
"""

from gnatswarm.broker.subject cimport SUBJECT_BAD, SUBJECT_WILDCARD, subject_kind

import json

from gnatswarm.broker.transform import TransformError

RESPONSE_KINDS = {"singleton": RESPONSE_SINGLETON, "stream": RESPONSE_STREAM, "chunked": RESPONSE_CHUNKED}


cdef class Mapping:
    """`destinations`: (destination, percent), in sum at most 100; the rest of 100 is dropped. TransformError."""

    def __cinit__(self, bytes subject not None, destinations not None):
        cdef uint32_t sum = 0
        self.subject = subject
        self.destinations = []
        for destination, percent in destinations:
            if percent == 0:
                continue
            sum += percent
            if sum > 100:
                raise ValueError("more than 100 percent")
            self.destinations.append((Transform(subject, destination, is_mapping=True), percent))
            self.bounds[self.n_choices] = <uint8_t>sum
            self.n_choices += 1
        self.is_constant = self.n_choices == 1 and sum == 100 and not (<Transform>self.destinations[0][0]).is_random

    cdef Transform choose(self, uint64_t random):
        cdef uint32_t i
        cdef uint32_t percent = <uint32_t>((random >> 32) % 100)
        for i in range(self.n_choices):
            if percent < self.bounds[i]:
                return <Transform>self.destinations[i][0]
        return None


cdef class ServiceImport:
    """What `importer` publishes to `local_subject` is a request to `exporter` on `subject`, unless it begins with one
    of `stays`. `export`: the subject of the export that allows it, if it is another one."""

    def __cinit__(self, Sublist importer not None, Sublist exporter not None, bytes subject not None,
                  bytes local_subject not None, int response_kind, uint64_t threshold_us, tuple stays=(), *,
                  bint shares=False, tuple latency=None, bint traces=False, bytes export=None):
        self.export = (exporter.account, subject if export is None else export)
        self.importer = importer
        self.exporter = exporter
        self.response_kind = response_kind
        self.threshold_us = threshold_us
        self.stays = stays
        self.shares = shares
        self.traces = traces
        self.latency = latency
        self.set_requestor()
        self.subject = local_service_pattern(subject, local_subject)
        if subject_kind(subject, len(subject)) != SUBJECT_WILDCARD:
            self.renaming = None if local_subject == subject else Transform(subject, subject)
        elif local_subject != subject:
            self.renaming = (<Transform>_local_pattern(subject, local_subject)[1]).reversed()

    def set_requestor(self, **more):
        """What requests say of who asks, beside the importing account's name: `more` of it, as in nats-server."""
        told = {"acc": self.importer.account.decode("utf-8", "replace"), **more}
        self.note = b"Nats-Request-Info: %s\r\n" % json.dumps(told, separators=(",", ":")).encode()

    cdef bint is_for(self, bytes published):
        """Whether what is published to this subject, which fits the pattern, is a request."""
        return not published.startswith(self.stays)


cdef class StreamImport:
    """What `exporter` publishes to `subject` can be heard at `local_subject`."""

    def __cinit__(self, Sublist exporter not None, bytes subject not None, bytes local_subject not None):
        self.exporter = exporter
        self.subject = subject
        self.local_subject, self.renaming = _local_pattern(subject, local_subject)
        if self.renaming is not None:
            self.back = self.renaming.reversed()

    cdef bytes wanted(self, bytes subscribed):
        cdef bytes both = intersection(subscribed, self.local_subject)
        if both is None or self.back is None:
            return both
        return self.back(both)


def local_pattern(bytes subject not None, bytes local_subject not None) -> bytes:
    """The local subjects of an import, as a pattern. TransformError: the two subjects do not fit together."""
    return _local_pattern(subject, local_subject)[0]


def local_service_pattern(bytes subject not None, bytes local_subject not None) -> bytes:
    """The same for a service; a service on a single subject may have a pattern as its local subject."""
    if subject_kind(subject, len(subject)) != SUBJECT_WILDCARD:
        if subject_kind(local_subject, len(local_subject)) == SUBJECT_BAD:
            raise TransformError(f"invalid subject {local_subject.decode('utf-8', 'replace')}")
        return local_subject
    return _local_pattern(subject, local_subject)[0]


cdef tuple _local_pattern(bytes subject, bytes local_subject):
    """(the local subject with wildcards for what refers to the import's, its Transform or None)

    `to` may be written with `$1`, in any order, or with as many `*` as the subject has, in its order.
    """
    cdef Transform renaming
    cdef list tokens
    cdef int i, place = 0
    if local_subject == subject:
        return subject, None
    tokens = local_subject.split(b".")
    for i in range(<int>len(tokens)):
        if tokens[i] == b"*":
            place += 1
            tokens[i] = b"$%d" % place
    renaming = Transform(subject, b".".join(tokens))
    return renaming.reversed().source, renaming


def intersection(bytes one not None, bytes other not None):
    """The pattern of the subjects that two patterns share, or None."""
    cdef list ours = one.split(b".")
    cdef list theirs = other.split(b".")
    cdef list both = []
    cdef Py_ssize_t i, n_ours = len(ours), n_theirs = len(theirs)
    for i in range(max(n_ours, n_theirs)):
        if i < n_ours and ours[i] == b">":
            both += theirs[i:]
            return b".".join(both) if i < n_theirs else None
        if i < n_theirs and theirs[i] == b">":
            both += ours[i:]
            return b".".join(both) if i < n_ours else None
        if i >= n_ours or i >= n_theirs:
            return None
        if ours[i] == b"*":
            both.append(theirs[i])
        elif theirs[i] == b"*" or theirs[i] == ours[i]:
            both.append(ours[i])
        else:
            return None
    return b".".join(both)
