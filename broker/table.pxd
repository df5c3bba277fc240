# A hash table of C structs by a byte-string key: one pointer a slot, open addressing, backward-shift removal.
#
# An item begins with Keyed and has its key `key_offset` bytes from its start. The table owns its slots, never the
# items, which malloc() aligns. The bits of each pointer that are the same for all hold the low 20 bits of the hash, so
# that a probe rarely touches a wrong item, and a table of up to a million slots grows without touching any.
#
# A Spread is several of them, for many items: none grows so far that its growth is felt.

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

ctypedef struct Keyed:
    uint32_t hash
    uint16_t size     # bytes of the key
    uint8_t kind      # for the table's user; the table ignores it
    uint8_t flags     # likewise

ctypedef struct Table:
    uint64_t *slots   # 0: empty; NULL until the first insertion
    uint32_t mask     # slots - 1
    uint32_t count
    uint32_t key_offset

cdef enum:
    # The longest subject, queue name and sid that is put into a table: Keyed.size is 16 bits wide. Whoever puts one in
    # refuses a longer one; more than 65,535 bytes would be cut off.
    MOST_KEY_BYTES = 65000

cdef enum:
    SPREAD_TABLES = 64
    SPREAD_PARTS = 16     # into which each of these is split, once it is full with MOST_WHOLE items
    MOST_SPREAD = SPREAD_TABLES * SPREAD_PARTS
    MOST_WHOLE = 1536

ctypedef struct Spread:
    Table wholes[SPREAD_TABLES]
    uint64_t split   # a bit for each of them that is split; it is empty then
    Table *parts     # SPREAD_PARTS for each, side by side: a lookup in many comes by few pages. NULL: none is split

cdef extern from *:
    """
    #define GN_TAG_BITS 0xFFFF00000000000FULL
    """
    const uint64_t TAG_BITS "GN_TAG_BITS"   # of a slot: no pointer's
    # Has the processor fetch what is there into its caches, and goes on at once; any address will do.
    void prefetch "__builtin_prefetch"(const void *at) noexcept nogil


cdef inline Keyed *slot_item(uint64_t slot) noexcept nogil:
    return <Keyed *>(slot & ~TAG_BITS)


cdef void table_init(Table *table, uint32_t key_offset) noexcept nogil
cdef void table_free(Table *table) noexcept nogil
cdef Keyed *table_find(const Table *table, const uint8_t *key, size_t size, uint32_t hash) noexcept nogil
# Something with this hash will be looked for.
cdef inline void table_expect(const Table *table, uint32_t hash) noexcept nogil:
    prefetch(table.slots + (hash & table.mask))

# The key must not be there yet. False: no memory; nothing changed.
cdef bint table_insert(Table *table, Keyed *item) noexcept nogil
# The item must be there.
cdef void table_remove(Table *table, Keyed *item) noexcept nogil

cdef void spread_init(Spread *spread, uint32_t key_offset) noexcept nogil
cdef void spread_free(Spread *spread) noexcept nogil
# As those of a table.
cdef bint spread_insert(Spread *spread, Keyed *item) noexcept nogil
cdef void spread_remove(Spread *spread, Keyed *item) noexcept nogil


# The table for this hash, to find something in.
cdef inline Table *spread_table(Spread *spread, uint32_t hash) noexcept nogil:
    if spread.split >> (hash >> 26) & 1:
        return spread.parts + (hash >> 22)
    return &spread.wholes[hash >> 26]


# Table number n < MOST_SPREAD, which may be empty; NULL: there is none of that number now.
cdef inline Table *spread_at(Spread *spread, uint32_t n) noexcept nogil:
    if spread.split >> (n // SPREAD_PARTS) & 1:
        return spread.parts + n
    return NULL if n % SPREAD_PARTS else &spread.wholes[n // SPREAD_PARTS]


# Where a walk through all items of a spread is. Items may be removed on the way: where the last one was, there may be
# another then, so who has removed it steps back by one slot.
ctypedef struct Walk:
    uint32_t table
    uint32_t slot


# The next item; NULL: that was the last one. A walk begins with zeros.
cdef inline Keyed *spread_next(Spread *spread, Walk *walk) noexcept nogil:
    cdef Table *table
    cdef uint64_t slot
    while walk.table < MOST_SPREAD:
        table = spread_at(spread, walk.table)
        while table != NULL and table.slots != NULL and walk.slot <= table.mask:
            slot = table.slots[walk.slot]
            walk.slot += 1
            if slot:
                return slot_item(slot)
        walk.table += 1 if spread.split >> (walk.table // SPREAD_PARTS) & 1 else (
            SPREAD_PARTS - walk.table % SPREAD_PARTS)   # (one that is not split has no others)
        walk.slot = 0
    return NULL
