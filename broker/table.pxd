# A hash table of C structs by a byte-string key: one pointer a slot, open addressing, backward-shift removal.
#
# An item begins with Keyed and has its key `key_offset` bytes from its start. The table owns its slots, never the
# items, which malloc() aligns. The bits of each pointer that are the same for all hold the low 20 bits of the hash, so
# that a probe rarely touches a wrong item, and a table of up to a million slots grows without touching any.

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

cdef extern from *:
    """
    #define GN_TAG_BITS 0xFFFF00000000000FULL
    """
    const uint64_t TAG_BITS "GN_TAG_BITS"   # of a slot: no pointer's


cdef inline Keyed *slot_item(uint64_t slot) noexcept nogil:
    return <Keyed *>(slot & ~TAG_BITS)


cdef void table_init(Table *table, uint32_t key_offset) noexcept nogil
cdef void table_free(Table *table) noexcept nogil
cdef Keyed *table_find(const Table *table, const uint8_t *key, size_t size, uint32_t hash) noexcept nogil
# The key must not be there yet. False: no memory; nothing changed.
cdef bint table_insert(Table *table, Keyed *item) noexcept nogil
# The item must be there.
cdef void table_remove(Table *table, Keyed *item) noexcept nogil
