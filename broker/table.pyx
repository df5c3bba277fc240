# cython: language_level=3, boundscheck=False, wraparound=False
"""A hash table of C structs by a byte-string key; it holds pointers and does not own the items.

Load at most 3/4. Removal shifts items back, so there are no tombstones. Growing copies all slots at once, some 8 ns
each while the slots themselves say where they belong; a user with millions of keys spreads them over several tables,
each of which is split, once, before its growth takes 20 µs: clients' messages wait for it.
"""

from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy, memset


cdef enum:
    AHEAD = 12   # a growing table asks for items so many slots before it looks at their hashes: most are in no cache
    MOST_TAGGED = 0xFFFFF   # the largest mask whose bits of the hash a slot holds
    PART_SLOTS = 256   # of a table that was split off: for 96 items on average


# The bits of a hash that a slot holds, where it holds them: 16 above the pointer, 4 below it. (Compilers rotate.)
cdef inline uint64_t tag_of(uint64_t hash) noexcept nogil:
    return (hash << 48 | hash >> 16) & TAG_BITS


cdef inline uint64_t pack(Keyed *item) noexcept nogil:
    return <uint64_t>item | tag_of(item.hash)


# Where the item of a slot belongs.
cdef inline uint32_t home_of(uint64_t slot, uint32_t mask) noexcept nogil:
    if mask <= <uint32_t>MOST_TAGGED:
        return <uint32_t>(slot >> 48 | slot << 16) & mask
    return slot_item(slot).hash & mask


cdef void table_init(Table *table, uint32_t key_offset) noexcept nogil:
    table.slots = NULL
    table.mask = 0
    table.count = 0
    table.key_offset = key_offset


cdef void table_free(Table *table) noexcept nogil:
    free(table.slots)
    table.slots = NULL
    table.mask = table.count = 0


cdef Keyed *table_find(const Table *table, const uint8_t *key, size_t size, uint32_t hash) noexcept nogil:
    cdef uint32_t i = hash & table.mask
    cdef uint64_t tag = tag_of(hash)
    cdef uint64_t slot
    cdef Keyed *item
    if table.slots == NULL:
        return NULL
    while True:
        slot = table.slots[i]
        if slot == 0:
            return NULL
        if slot & TAG_BITS == tag:
            item = slot_item(slot)
            if item.hash == hash and item.size == size and \
                    memcmp(<uint8_t *>item + table.key_offset, key, size) == 0:
                return item
        i = (i + 1) & table.mask


cdef inline void place(uint64_t *slots, uint32_t mask, uint64_t slot, uint32_t home) noexcept nogil:
    cdef uint32_t i = home
    while slots[i] != 0:
        i = (i + 1) & mask
    slots[i] = slot


cdef bint table_insert(Table *table, Keyed *item) noexcept nogil:
    cdef uint64_t *slots
    cdef uint32_t mask, i
    if table.slots == NULL or (<uint64_t>table.count + 1) * 4 > (<uint64_t>table.mask + 1) * 3:
        mask = table.mask * 2 + 1 if table.slots != NULL else 3
        slots = <uint64_t *>calloc(<size_t>mask + 1, sizeof(uint64_t))
        if slots == NULL:
            return False
        if table.slots != NULL:
            for i in range(table.mask + 1):
                if mask > <uint32_t>MOST_TAGGED and i + AHEAD <= table.mask:   # (0 is prefetched in vain)
                    prefetch(slot_item(table.slots[i + AHEAD]))
                if table.slots[i] != 0:
                    place(slots, mask, table.slots[i], home_of(table.slots[i], mask))
            free(table.slots)
        table.slots = slots
        table.mask = mask
    place(table.slots, table.mask, pack(item), item.hash & table.mask)
    table.count += 1
    return True


cdef void table_remove(Table *table, Keyed *item) noexcept nogil:
    cdef uint32_t i = item.hash & table.mask
    cdef uint32_t gap, home
    cdef uint64_t wanted = pack(item)
    while table.slots[i] != wanted:
        i = (i + 1) & table.mask
    table.count -= 1
    if table.count == 0:   # an empty table costs nothing
        free(table.slots)
        table.slots = NULL
        table.mask = 0
        return
    gap = i
    while True:   # move items back so that none is cut off from its home slot by the gap
        i = (i + 1) & table.mask
        if table.slots[i] == 0:
            break
        home = home_of(table.slots[i], table.mask)
        if ((i - home) & table.mask) >= ((i - gap) & table.mask):
            table.slots[gap] = table.slots[i]
            gap = i
    table.slots[gap] = 0


cdef void spread_init(Spread *spread, uint32_t key_offset) noexcept nogil:
    cdef int i
    for i in range(SPREAD_TABLES):
        table_init(&spread.wholes[i], key_offset)
    spread.split = 0
    spread.parts = NULL


cdef void spread_free(Spread *spread) noexcept nogil:
    cdef uint32_t i
    for i in range(SPREAD_TABLES):
        table_free(&spread.wholes[i])
        if spread.split >> i & 1:
            spread_join(spread, i)


cdef void spread_join(Spread *spread, uint32_t i) noexcept nogil:
    """Frees the parts of a table that is split, and what all parts had in common with the last of them."""
    cdef uint32_t part
    for part in range(SPREAD_PARTS):
        table_free(&spread.parts[i * SPREAD_PARTS + part])
    spread.split &= ~(<uint64_t>1 << i)
    if spread.split == 0:
        free(spread.parts)
        spread.parts = NULL


cdef bint spread_split(Spread *spread, uint32_t i) noexcept nogil:
    """Splits one of the tables. False: no memory; nothing changed."""
    cdef Table *whole = &spread.wholes[i]
    cdef Table *parts
    cdef uint64_t slot
    cdef uint32_t j
    if spread.parts == NULL:
        spread.parts = <Table *>calloc(MOST_SPREAD, sizeof(Table))
        if spread.parts == NULL:
            return False
    spread.split |= <uint64_t>1 << i
    parts = spread.parts + i * SPREAD_PARTS
    for j in range(SPREAD_PARTS):
        table_init(&parts[j], whole.key_offset)
        parts[j].slots = <uint64_t *>calloc(PART_SLOTS, sizeof(uint64_t))
        if parts[j].slots == NULL:
            spread_join(spread, i)
            return False
        parts[j].mask = PART_SLOTS - 1
    for j in range(whole.mask + 1):
        if j + AHEAD <= whole.mask:
            prefetch(slot_item(whole.slots[j + AHEAD]))
        slot = whole.slots[j]
        if slot and not table_insert(spread_table(spread, slot_item(slot).hash), slot_item(slot)):
            spread_join(spread, i)
            return False
    for j in range(SPREAD_PARTS):
        if parts[j].count == 0:
            table_free(&parts[j])
    table_free(whole)
    return True


cdef bint spread_insert(Spread *spread, Keyed *item) noexcept nogil:
    cdef uint32_t i = item.hash >> 26
    if spread.wholes[i].count >= <uint32_t>MOST_WHOLE:
        spread_split(spread, i)   # (without memory for that it grows as it is)
    return table_insert(spread_table(spread, item.hash), item)


cdef void spread_remove(Spread *spread, Keyed *item) noexcept nogil:
    cdef uint32_t i = item.hash >> 26
    cdef Table *table = spread_table(spread, item.hash)
    cdef uint32_t part
    table_remove(table, item)
    if table.count or not spread.split >> i & 1:
        return
    for part in range(SPREAD_PARTS):
        if spread.parts[i * SPREAD_PARTS + part].count:
            return
    spread_join(spread, i)


ctypedef struct Named:
    Keyed key
    int64_t value


cdef Named *named(bytes key, uint32_t hash, int64_t value) except NULL:
    cdef Named *item = <Named *>malloc(sizeof(Named) + len(key))
    if item == NULL:
        raise MemoryError
    memset(item, 0, sizeof(Named))
    item.key.hash = hash
    item.key.size = <uint16_t>len(key)
    item.value = value
    memcpy(<uint8_t *>item + sizeof(Named), <const uint8_t *>key, len(key))
    return item


cdef class TableProbe:
    """A table for tests: from bytes to numbers, with hashes chosen by the caller."""

    cdef Table table

    def __cinit__(self):
        table_init(&self.table, sizeof(Named))

    def __dealloc__(self):
        cdef uint32_t i
        if self.table.slots != NULL:
            for i in range(self.table.mask + 1):
                free(slot_item(self.table.slots[i]))
        table_free(&self.table)

    def insert(self, bytes key not None, uint32_t hash, int64_t value):
        """The key must not be there yet."""
        cdef Named *item = named(key, hash, value)
        if not table_insert(&self.table, &item.key):
            free(item)
            raise MemoryError

    def find(self, bytes key not None, uint32_t hash) -> int | None:
        cdef Named *item = <Named *>table_find(&self.table, key, len(key), hash)
        return item.value if item != NULL else None

    def remove(self, bytes key not None, uint32_t hash):
        """KeyError: it is not there."""
        cdef Keyed *item = table_find(&self.table, key, len(key), hash)
        if item == NULL:
            raise KeyError(key)
        table_remove(&self.table, item)
        free(item)

    def __len__(self) -> int:
        return self.table.count

    @property
    def slots(self) -> int:
        """How many slots there are; 0 for an empty table."""
        return self.table.mask + 1 if self.table.slots != NULL else 0

    def values(self) -> list:
        """Every value, in the order of the slots."""
        cdef uint32_t i
        found = []
        for i in range(self.slots):
            if self.table.slots[i]:
                found.append((<Named *>slot_item(self.table.slots[i])).value)
        return found


cdef class SpreadProbe:
    """A spread for tests, as a TableProbe."""

    cdef Spread spread

    def __cinit__(self):
        spread_init(&self.spread, sizeof(Named))

    def __dealloc__(self):
        cdef Walk walk = Walk(0, 0)
        cdef Keyed *item = spread_next(&self.spread, &walk)
        while item != NULL:
            free(item)
            item = spread_next(&self.spread, &walk)
        spread_free(&self.spread)

    def insert(self, bytes key not None, uint32_t hash, int64_t value):
        """The key must not be there yet."""
        cdef Named *item = named(key, hash, value)
        if not spread_insert(&self.spread, &item.key):
            free(item)
            raise MemoryError

    def find(self, bytes key not None, uint32_t hash) -> int | None:
        cdef Named *item = <Named *>table_find(spread_table(&self.spread, hash), key, len(key), hash)
        return item.value if item != NULL else None

    def remove(self, bytes key not None, uint32_t hash):
        """KeyError: it is not there."""
        cdef Keyed *item = table_find(spread_table(&self.spread, hash), key, len(key), hash)
        if item == NULL:
            raise KeyError(key)
        spread_remove(&self.spread, item)
        free(item)

    @property
    def slots(self) -> list:
        """How many slots each table has that has any."""
        return [spread_at(&self.spread, i).mask + 1 for i in range(MOST_SPREAD)
                if spread_at(&self.spread, i) != NULL and spread_at(&self.spread, i).slots != NULL]

    @property
    def split(self) -> int:
        """How many tables are split."""
        return self.spread.split.bit_count()

    def values(self) -> list:
        """Every value, in the order of tables and slots."""
        cdef Walk walk = Walk(0, 0)
        cdef Keyed *item = spread_next(&self.spread, &walk)
        found = []
        while item != NULL:
            found.append((<Named *>item).value)
            item = spread_next(&self.spread, &walk)
        return found
