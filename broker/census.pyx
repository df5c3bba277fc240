# cython: language_level=3, boundscheck=False, wraparound=False
"""A census of the engine: read-only views of connections, subscriptions and cached match results.

For monitoring. It changes and keeps nothing, so it may be called at any time between two rounds. Long results are
returned in slices: pass `start`, get `next`, which is 0 at the end. If a table grows or shrinks between two slices, an
item may appear twice or not at all; `layout` shows whether it did. Cost: some 100 ns per slot, 300 ns per row, and as
much again for each 100 characters: a slice also ends where its rows have `most_text` of them.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp

from gnatswarm.broker.connection cimport ClientConnection
from gnatswarm.broker.link cimport SiblingLink
from gnatswarm.broker.outbuf cimport OutBuf, out_pending
from gnatswarm.broker.peer cimport Peer
from gnatswarm.broker.interest cimport NO_MAX, SUB_SHADOW, Node, QueueName, Shadow, Sub
from gnatswarm.broker.entry cimport Earlier, Entry
from gnatswarm.broker.rules cimport StreamImport
from gnatswarm.broker.subject cimport subject_matches
from gnatswarm.broker.sublist cimport CACHE_WAYS, Sublist
from gnatswarm.broker.table cimport slot_item
from gnatswarm.broker.word cimport SLACK, hash_bytes

from gnatswarm.broker.census_counts import ConnectionCounts, FoldedCounts, LinkCounts


cdef uint64_t ANY_TEXT = <uint64_t>-1


cdef str text_of(const uint8_t *at, size_t size):
    return at[:size].decode("utf-8", "replace")


cdef bytes subject_bytes(Sublist sublist, const Node *node):
    cdef uint8_t small[512]
    cdef size_t size = sublist.subject_of(node, small, sizeof(small))
    cdef bytearray large
    if size <= sizeof(small):
        return small[:size]
    large = bytearray(size)
    sublist.subject_of(node, large, size)
    return bytes(large)


cdef tuple subscription_row(Sublist sublist, Sub *sub):
    """(subject, queue, sid, messages delivered, max); of a Shadow, sid and messages of the client's subscription."""
    cdef Sub *named = (<Shadow *>sub).parent if sub.key.kind == SUB_SHADOW else sub
    cdef QueueName *name
    cdef str queue = ""
    if sub.group != NULL:
        name = sub.group.name
        queue = text_of(<uint8_t *>name + sizeof(QueueName), name.key.size)
    return (subject_bytes(sublist, sub.node).decode("utf-8", "replace"), queue,
            text_of(<uint8_t *>named + sizeof(Sub), named.key.size), named.delivered,
            0 if sub.max_msgs == NO_MAX else sub.max_msgs)


cdef tuple cast_in(Sublist exporter, Sub *sub, bytes subject, set told):
    """(number, row) of the Shadow through which a client's subscription gets this subject of another account.

    (0, its own row): it is one of this account. See cast_of().
    """
    number, address = cast_of(exporter, sub, subject, told)
    if number:
        return number, subscription_row(exporter, <Sub *><size_t>address)
    return 0, subscription_row(exporter, sub)


cdef tuple cast_of(Sublist exporter, Sub *sub, bytes subject, set told):
    """(number, address) of the next of the subscription's Shadows that get this subject of that account: its place
    among all of them, from 1; 0: there is none. Those in `told` have been returned before.
    """
    cdef ClientConnection client
    cdef Sub *shadow
    cdef bytes wanted
    if sub.out.peer != NULL and isinstance(<Peer>sub.out.peer, ClientConnection):
        client = <ClientConnection>sub.out.peer
        if client.sublist is not exporter and client.shadows is not None:
            for number, (address, stream) in enumerate(client.shadows.cast_by.get(<size_t>sub, ()), 1):
                shadow = <Sub *><size_t>address
                if (<StreamImport>stream).exporter is exporter and address not in told:
                    wanted = subject_bytes(exporter, shadow.node)
                    if subject_matches(wanted, len(wanted), subject, len(subject)):
                        told.add(address)
                        return number, address
    return 0, 0


def counters(ClientConnection client not None) -> ConnectionCounts:
    """What was counted of one client."""
    cdef OutBuf *out = &client.out
    cdef uint64_t last_us = client.active_us if client.active_us > out.taken_us else out.taken_us
    return ConnectionCounts(client.cid, client.in_msgs, out.msgs, client.in_bytes, out.payload_bytes, out_pending(out),
                            client.subs.count, last_us, client.rtt_us)


def link_counters(SiblingLink link not None) -> LinkCounts:
    """What was counted at this end of a link."""
    return LinkCounts(link.in_msgs, link.out.msgs, link.in_bytes, link.out.payload_bytes, out_pending(&link.out))


cdef inline uint64_t text_in(tuple row):
    return len(<str>row[0]) + len(<str>row[1]) + len(<str>row[2])


def layout(ClientConnection client not None) -> int:
    """A number that changes when the client's table of subscriptions grows or shrinks."""
    return client.subs.mask


def subscriptions(ClientConnection client not None, uint32_t start, uint32_t slots, bint queued_only=False,
                  uint64_t most_text=ANY_TEXT) -> tuple:
    """([(subject, queue, sid, messages delivered, max)], next) of `slots` slots of the client's table."""
    cdef list rows = []
    cdef uint64_t end, text = 0
    cdef uint32_t i
    cdef Sub *sub
    if client.subs.slots == NULL or start > client.subs.mask:
        return rows, 0
    end = min(<uint64_t>start + slots, <uint64_t>client.subs.mask + 1)
    for i in range(start, <uint32_t>end):
        if client.subs.slots[i]:
            sub = <Sub *>slot_item(client.subs.slots[i])
            if sub.group != NULL or not queued_only:
                row = subscription_row(client.sublist, sub)
                rows.append(row)
                text += text_in(row)
                if text >= most_text:
                    end = <uint64_t>i + 1
                    break
    return rows, 0 if end > client.subs.mask else end


def busiest(ClientConnection client not None, uint32_t slots) -> tuple | None:
    """The row, as in subscriptions(), of the one with most messages in the first `slots` slots; None: it has none."""
    cdef Sub *found = NULL
    cdef Sub *sub
    cdef uint32_t i
    if client.subs.slots == NULL or slots == 0:
        return None
    for i in range(min(slots - 1, client.subs.mask) + 1):
        if client.subs.slots[i]:
            sub = <Sub *>slot_item(client.subs.slots[i])
            if found == NULL or sub.delivered > found.delivered:
                found = sub
    return None if found == NULL else subscription_row(client.sublist, found)


def shadows(ClientConnection client not None, uint32_t start, uint32_t slots, uint64_t most_text=ANY_TEXT) -> tuple:
    """([(account, number, row as in subscriptions())], next): what those in these slots get of accounts that export.

    The number is that of the stream import among those of a subscription, from 1.
    """
    cdef list rows = []
    cdef uint64_t end, text = 0
    cdef uint32_t i
    cdef Sublist exporter
    if client.shadows is None or client.subs.slots == NULL or start > client.subs.mask:
        return rows, 0
    end = min(<uint64_t>start + slots, <uint64_t>client.subs.mask + 1)
    for i in range(start, <uint32_t>end):
        if client.subs.slots[i]:
            cast = client.shadows.cast_by.get(<size_t>slot_item(client.subs.slots[i]), ())
            for number, (address, stream) in enumerate(cast, 1):
                exporter = (<StreamImport>stream).exporter
                row = subscription_row(exporter, <Sub *><size_t>address)
                rows.append((exporter.account, number, row))
                text += text_in(row)
            if text >= most_text:
                end = <uint64_t>i + 1
                break
    return rows, 0 if end > client.subs.mask else end


def matching(Sublist sublist not None, bytes subject not None, uint32_t start, uint32_t most,
             uint64_t most_text=ANY_TEXT, set told=None) -> tuple:
    """([(cid, number, row)], total) of this shard's subscriptions that a message would reach: rows and numbers as in
    shadows(), 0 for clients of this account.

    `told`: a set for all slices of one list, which keeps which of the streams of one subscription have been told. A
    list that does not begin with the first one has had pass_over() for those before it.
    """
    cdef bytes padded = subject + bytes(SLACK)
    cdef const uint8_t *s = padded
    cdef Entry *entry = sublist.find(s, len(subject), hash_bytes(s, len(subject), sublist.seed))
    cdef list rows = []
    cdef uint64_t total, end, text = 0
    cdef uint32_t i
    cdef Sub *sub
    if entry == NULL:
        raise MemoryError
    if told is None:
        told = set()
    total = targets_of(entry)
    end = min(<uint64_t>start + most, total)
    for i in range(start, <uint32_t>end):
        sub = entry.targets[i].sub
        number, row = cast_in(sublist, sub, subject, told)
        rows.append((cid_of(sub), number, row))
        text += text_in(row)
        if text >= most_text:
            break
    return rows, total


def pass_over(Sublist sublist not None, bytes subject not None, uint32_t start, uint32_t most, set told not None):
    """What matching() of these would have put into `told`."""
    cdef bytes padded = subject + bytes(SLACK)
    cdef const uint8_t *s = padded
    cdef Entry *entry = sublist.find(s, len(subject), hash_bytes(s, len(subject), sublist.seed))
    cdef uint32_t i
    if entry == NULL:
        raise MemoryError
    for i in range(start, <uint32_t>min(<uint64_t>start + most, targets_of(entry))):
        cast_of(sublist, entry.targets[i].sub, subject, told)


cdef uint64_t targets_of(const Entry *entry) noexcept:
    cdef uint64_t total = entry.n_plain
    cdef uint32_t i
    for i in range(entry.n_choices):
        total += entry.choices[i].n_local
    return total


def interest(Sublist sublist not None, bytes subject not None) -> tuple:
    """(plain subscriptions here, queue groups on any shard, members here, is it wanted?) of a publish subject."""
    cdef bytes padded = subject + bytes(SLACK)
    cdef const uint8_t *s = padded
    cdef Entry *entry = sublist.find(s, len(subject), hash_bytes(s, len(subject), sublist.seed))
    cdef uint64_t members = 0
    cdef uint32_t i
    if entry == NULL:
        raise MemoryError
    for i in range(entry.n_choices):
        members += entry.choices[i].n_local
    return (entry.n_plain, entry.n_choices, members,
            entry.n_plain != 0 or entry.n_choices != 0 or entry.remote != 0)


def subject_hash(Sublist sublist not None, bytes subject not None) -> int:
    """The value of `published_to` for clients of this account whose latest message had this subject."""
    cdef bytes padded = subject + bytes(SLACK)
    return hash_bytes(<const uint8_t *>padded, len(subject), sublist.seed)


def published_to(ClientConnection client not None) -> int:
    """The hash of its latest message's subject; 0: it has published nothing."""
    return client.published_to


def is_wanted(Sublist sublist not None, bytes subject not None) -> bool:
    """Whether a message on it would reach a subscriber on any shard, or the account's mappings or imports take it."""
    cdef bytes padded = subject + bytes(SLACK)
    cdef const uint8_t *s = padded
    cdef Entry *entry = sublist.find(s, len(subject), hash_bytes(s, len(subject), sublist.seed))
    return entry == NULL or entry.n_plain != 0 or entry.n_choices != 0 or entry.remote != 0 or entry.extras_at != 0


cdef object cid_of(Sub *sub):
    if sub.out.peer != NULL and isinstance(<Peer>sub.out.peer, ClientConnection):
        return (<ClientConnection>sub.out.peer).cid
    return 0


cdef inline Entry *cached_at(Sublist sublist, size_t slot) noexcept:
    return <Entry *>(sublist.cache[slot] & ((<uint64_t>1 << 48) - 1))


cdef inline size_t cache_end(Sublist sublist, size_t start, size_t slots) noexcept:
    return min(start + slots, (<size_t>sublist.cache_mask + 1) * CACHE_WAYS)


cdef inline Earlier counted(const Entry *entry) noexcept:
    """The counts since a match result was built first."""
    cdef Earlier so_far
    so_far.msgs = entry.counts.msgs
    so_far.payload_bytes = entry.counts.payload_bytes
    so_far.deliveries = entry.counts.deliveries
    if entry.earlier != NULL:
        so_far.msgs += entry.earlier.msgs
        so_far.payload_bytes += entry.earlier.payload_bytes
        so_far.deliveries += entry.earlier.deliveries
    return so_far


def cached_entries(Sublist sublist not None, size_t start, size_t slots, uint64_t least,
                   bytes folded not None, bint is_exact=False) -> tuple:
    """([(subject, msgs, bytes, deliveries, plain subscriptions, queue groups, members, is wanted)], folded, next).

    Rows of subjects with `least` or more messages or deliveries. Subjects that begin with `folded` (unless it is empty)
    have no rows: FoldedCounts is their sum. `is_exact`: bytes of a subject that are not UTF-8 are surrogates, so that
    no two subjects have the same text. Counts begin when a match result is built, and again where the cache had no
    room for it meanwhile; subscriptions and members are this shard's.
    """
    cdef size_t end = cache_end(sublist, start, slots)
    cdef const uint8_t *prefix = folded
    cdef size_t prefix_size = len(folded)
    cdef uint64_t count = 0, msgs = 0, payload_bytes = 0, deliveries = 0, plain = 0, groups = 0, all_members = 0
    cdef bint is_wanted = False
    cdef list rows = []
    cdef Entry *entry
    cdef Earlier so_far
    cdef bytes subject
    cdef uint64_t members
    cdef size_t at
    cdef uint32_t i
    for at in range(start, end):
        entry = cached_at(sublist, at)
        if entry == NULL:
            continue
        so_far = counted(entry)
        if prefix_size and entry.subject_size >= prefix_size \
                and memcmp(entry.text, prefix, prefix_size) == 0:
            count += 1
            msgs += so_far.msgs
            payload_bytes += so_far.payload_bytes
            deliveries += so_far.deliveries
            plain += entry.n_plain
            groups += entry.n_choices
            for i in range(entry.n_choices):
                all_members += entry.choices[i].n_local
            is_wanted = is_wanted or entry.n_plain != 0 or entry.n_choices != 0 or entry.remote != 0
            continue
        if so_far.msgs < least and so_far.deliveries < least:
            continue
        members = 0
        for i in range(entry.n_choices):
            members += entry.choices[i].n_local
        subject = entry.text[:entry.subject_size]
        rows.append((subject.decode("utf-8", "surrogateescape" if is_exact else "replace"),
                     so_far.msgs, so_far.payload_bytes, so_far.deliveries, entry.n_plain, entry.n_choices, members,
                     entry.n_plain != 0 or entry.n_choices != 0 or entry.remote != 0))
    return (rows, FoldedCounts(count, msgs, payload_bytes, deliveries, plain, groups, all_members, is_wanted),
            end if end < cache_end(sublist, end, 1) else 0)


def cache_widths(Sublist sublist not None, size_t start, size_t slots) -> tuple:
    """(cached match results, the widest, sum of widths, next); a queue group counts as one, as in nats-server."""
    cdef size_t end = cache_end(sublist, start, slots)
    cdef uint64_t count = 0, widest = 0, together = 0, width
    cdef Entry *entry
    cdef size_t at
    for at in range(start, end):
        entry = cached_at(sublist, at)
        if entry != NULL:
            width = <uint64_t>entry.n_plain + entry.n_choices
            count += 1
            together += width
            if width > widest:
                widest = width
    return count, widest, together, end if end < cache_end(sublist, end, 1) else 0
