# cython: language_level=3
"""The shared page: the counters that all processes of one broker share.

A memfd made by the router and mapped by every shard: the next client id, the number of connections of the whole
broker (atomic, so that max_connections is exact), what has passed to and from other servers, and one slot of gauges
and counters per shard. It is not a message channel: no process waits on it. Invariant: the broker's connection count is
the sum of the slots' counts, except for changes in progress, and clients on their way from one shard to another. It
outlives a killed shard, so ids are never reused and totals never decrease. Cost: 17 KiB for the whole broker; for each
account with a connection limit 0.5 KiB and at most 8 KiB more, for each user with publish_limits at most 8 KiB; never
more than 10 MiB. A connection costs five atomic additions, a message only plain stores.
"""

import os
import time

cimport cython
from libc.errno cimport errno
from libc.stdlib cimport free, malloc
from posix.mman cimport MAP_FAILED, MAP_SHARED, PROT_READ, PROT_WRITE, mmap, munmap

import fcntl
import hashlib

SLOTS = PAGE_SLOTS
VERSION = PAGE_VERSION
ACCOUNTS = PAGE_ACCOUNTS
PUBLISHERS = PAGE_PUBLISHERS

# How often settle_connections tries to find a moment in which no living shard is inside a change. A change takes some
# 50 ns, so the first or second try succeeds; a shard stopped inside one (SIGSTOP) must not block the router.
QUIET_MOMENT_ATTEMPTS = 1000
# … and for how long: with thousands of accounts to compare a try takes a millisecond, and clients may be logging in.
QUIET_MOMENT_S = 0.01


@cython.final
cdef class Page:
    """One mapping of the page. `create()` makes a new page, `attach(fd)` maps one that was inherited."""

    def __cinit__(self):
        self.header = NULL
        self.layout = NULL
        self.fd = -1

    def __dealloc__(self):
        if self.layout != NULL:
            munmap(self.layout, sizeof(PageLayout))

    cdef int map_descriptor(self, int fd) except -1:
        cdef void* address = mmap(NULL, sizeof(PageLayout), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
        if address == MAP_FAILED:
            raise OSError(errno, "cannot map the shared page: " + os.strerror(errno))
        self.layout = <PageLayout*> address
        self.header = &self.layout.header
        self.fd = fd
        return 0

    cdef ShardSlot* slot(self, int shard) except NULL:
        if not 0 <= shard < PAGE_SLOTS:
            raise IndexError(f"the page has slots 0..{PAGE_SLOTS - 1}, not {shard}")
        return &self.layout.slots[shard]

    @staticmethod
    def create():
        """A new page, sealed at its size so that no process can shrink it while others have it mapped."""
        cdef Page page = Page()
        fd = os.memfd_create("gnatswarm-page", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, sizeof(PageLayout))
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            page.map_descriptor(fd)
        except BaseException:
            os.close(fd)
            raise
        page.header.magic = PAGE_MAGIC
        page.header.version = PAGE_VERSION
        page.header.slots = PAGE_SLOTS
        page.header.created_us = time.time_ns() // 1000
        page.header.next_client_id = 1
        return page

    @staticmethod
    def attach(int fd):
        """Map the page of an inherited descriptor, which the Page then owns.

        ValueError when it is not a page, or has another version; the descriptor is left open then.
        """
        cdef Page page = Page()
        if os.fstat(fd).st_size != sizeof(PageLayout):
            raise ValueError(f"descriptor {fd} is not a page of this version: {os.fstat(fd).st_size} bytes")
        page.map_descriptor(fd)
        if page.header.magic != PAGE_MAGIC or page.header.version != PAGE_VERSION:
            page.fd = -1
            raise ValueError(f"descriptor {fd} is not a page of version {PAGE_VERSION}")
        page.is_in_doubt = True   # the router before this one may have died in doubt
        return page

    def close(self):
        """Close the descriptor. The mapping stays until the object is deallocated, so pointers into it stay valid."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    @property
    def connections(self):
        """Connections of the whole broker, now."""
        return page_connections(self.header)

    @property
    def created_us(self):
        """When the page was made, in µs since 1970."""
        return self.header.created_us

    def next_client_id(self):
        """A new client id: from 1, unique over all shards and their restarts."""
        return page_next_client_id(self.header)

    def peek_client_id(self):
        """The id that the next client will get, left to it: every later client has this id or a higher one."""
        return page_peek_client_id(self.header)

    def next_event_number(self):
        """A new number for an event of the broker itself: from 1, ascending over all processes."""
        return page_next_event_number(self.header)

    def try_add_connection(self, int shard, int64_t max_connections):
        """Count one connection for the shard, unless the broker has max_connections already (<= 0: no limit)."""
        return page_try_add_connection(self.header, self.slot(shard), max_connections) == 1

    def remove_connection(self, int shard):
        """Undo one successful try_add_connection."""
        page_remove_connection(self.header, self.slot(shard))

    def expect_connection(self, int shard):
        """A client of another shard, where it is counted, is about to go on in this one.

        take_connection() or expect_no_more() follows. The broker counts it once all the time.
        """
        page_expect_connection(self.slot(shard))

    def pass_connection(self, int shard):
        """A client of this shard is on its way to the one that expects it."""
        page_pass_connection(self.slot(shard))

    def take_connection(self, int shard):
        """An expected client is here."""
        page_take_connection(self.slot(shard))

    def expect_no_more(self, int shard):
        """One that was expected does not come. If it was on its way, doubt_connections() follows."""
        page_expect_no_more(self.slot(shard))

    def note_heard_out(self, int shard, bint is_so):
        """This shard stops, and has carried out what its clients had sent; False: it begins to serve."""
        self.slot(shard)   # (IndexError)
        page_note_heard_out(self.header, shard, is_so)

    def is_heard_out(self, int shard):
        """Whether note_heard_out() says so."""
        self.slot(shard)
        return page_is_heard_out(self.header, shard) != 0

    def doubt_connections(self):
        """Clients may have been lost on their way between shards: settle_connections() compares."""
        page_doubt_connections(self.header)

    def try_handshake(self, uint64_t most, uint64_t now_ms=0):
        """Count one TLS handshake of the whole broker, unless there were `most` (1 to 1,000,000) in this second.

        `now_ms`: of the monotonic clock; 0: now. A second begins with the first handshake after the last one ended.
        """
        return page_try_handshake(self.header, now_ms or time.monotonic_ns() // 1000000, most) == 1

    def account_place(self, bytes name not None):
        """The account's place on the page: 0 to 16,383; -1: all places are taken by other accounts with limits."""
        return page_account_place(self.layout, key_of(name))

    def publisher_words(self, bytes name not None):
        """Addresses of the two words for the publish_limits of a user or account: of messages, and of bytes.

        They are zeros at first, the same for all processes, and valid while the Page lives.
        """
        cdef int place = page_publisher_place(self.layout, key_of(name))
        cdef uint64_t *words = <uint64_t *> self.layout.publisher_paid[place]
        return <size_t> words, <size_t> (words + 1)

    def keep_names(self, list accounts not None, list publishers not None):
        """Give the places of all others back, but of accounts that have clients; of these accounts each gets a place.

        Names as for account_place() and publisher_words(). Only the router may call this, when all shards know that no
        others are configured with limits.
        """
        cdef PageLayout* page = self.layout
        cdef unsigned at, freed = 0
        cdef uint64_t key
        page_tidy_keys(page.account_keys, PAGE_ACCOUNT_KEYS, page.account_places, bytearray(PAGE_ACCOUNT_KEYS))
        page_tidy_keys(page.publisher_keys, PAGE_PUBLISHERS, NULL, bytearray(PAGE_PUBLISHERS))
        kept = {key_of(name) for name in accounts}
        for at in range(PAGE_ACCOUNT_KEYS):
            key = page_load_key(page.account_keys, at)
            if key >= PAGE_KEY_FIRST and key not in kept or key == PAGE_KEY_EMPTIED:
                page_free_account(page, at)
        for key in kept:
            slot = page_key_slot(page.account_keys, PAGE_ACCOUNT_KEYS, key)
            if slot >= 0 and not page.account_places[<unsigned> slot]:
                freed = page_pass_place(page, freed, <unsigned> slot)
        kept = {key_of(name) for name in publishers}
        for at in range(PAGE_PUBLISHERS):
            key = page_load_key(page.publisher_keys, at)
            if key >= PAGE_KEY_FIRST and key not in kept:
                page_store(&page.publisher_paid[at][0], 0)
                page_store(&page.publisher_paid[at][1], 0)
                page_free_key(page.publisher_keys, at)

    def account_connections(self, int place):
        """Connections of an account, on all shards."""
        return page_account_connections(self.layout, self.checked_place(place))

    def try_add_to_account(self, int shard, int place, int64_t most):
        """Count one connection for the account, unless it has `most` already (<= 0: no limit)."""
        self.slot(shard)
        return page_try_add_to_account(self.layout, shard, self.checked_place(place), most) == 1

    def remove_from_account(self, int shard, int place):
        """Undo one successful try_add_to_account."""
        self.slot(shard)
        page_remove_from_account(self.layout, shard, self.checked_place(place))

    def pass_to_account(self, int shard, int place):
        """A client that is counted is on its way to another shard; behind pass_connection()."""
        self.slot(shard)
        page_pass_to_account(self.layout, shard, self.checked_place(place))

    def take_to_account(self, int shard, int place):
        """One that another shard has counted is here; before take_connection()."""
        self.slot(shard)
        page_take_to_account(self.layout, shard, self.checked_place(place))

    cdef int checked_place(self, int place) except -1:
        if not 0 <= place < PAGE_ACCOUNTS:
            raise IndexError(f"the page has places 0..{PAGE_ACCOUNTS - 1} for accounts, not {place}")
        return place

    def note_boot(self, int shard, uint64_t pid):
        """The router has started the shard as this process."""
        cdef ShardSlot* slot = self.slot(shard)
        page_store(&slot.pid, pid)
        page_store(&slot.boots, slot.boots + 1)

    def forget_connections(self, int shard):
        """Subtract the connections of a dead shard from the broker's count, once; it must be reaped before.

        Returns how many they were. The shard's gauges and pid become 0, its counters stay. Exact also when the shard
        was killed inside a change, or clients were on their way to or from it: the broker's count is compared with the
        sum of all slots in a moment without changes, now or by settle_connections().
        """
        cdef ShardSlot* slot = self.slot(shard)
        cdef int64_t gone = <int64_t> page_load(&slot.connections)
        page_forget_accounts(self.layout, shard)
        page_store(&slot.connections, 0)
        page_store(&slot.subscriptions, 0)
        page_store(&slot.loop_lag_us, 0)
        page_store(&slot.links, 0)
        page_store(&slot.pid, 0)
        page_subtract(self.header, gone)
        page_store(&slot.changes_done, page_load(&slot.changes_begun))
        self.is_in_doubt = True
        return gone + self.settle_connections()

    def settle_connections(self):
        """Correct the broker's count of connections if a shard has died, or doubts it; by how many it was too high.

        Those of accounts with limits, too.

        Another shard may be inside a change just now for longer than this tries, or expect a client: then it is 0, and
        the next call tries again.
        """
        cdef int64_t error
        cdef int64_t* of_accounts
        cdef int accounts, place
        if page_take_doubts(self.header):
            self.is_in_doubt = True
        if not self.is_in_doubt:
            return 0
        until_s = time.monotonic() + QUIET_MOMENT_S
        accounts = page_accounts(self.layout)
        of_accounts = <int64_t*> malloc((accounts + 1) * sizeof(int64_t))
        if of_accounts == NULL:
            raise MemoryError
        try:
            for _ in range(QUIET_MOMENT_ATTEMPTS):
                if self.count_error(&error, of_accounts, accounts):
                    self.is_in_doubt = False
                    page_subtract(self.header, error)
                    for place in range(accounts):
                        if of_accounts[place]:
                            page_correct_account(self.layout, place, of_accounts[place])
                    return error
                if time.monotonic() > until_s:
                    break
        finally:
            free(of_accounts)
        return 0

    cdef bint count_error(self, int64_t* error, int64_t* of_accounts, int accounts) noexcept:
        """Sets `error` to the broker's count minus the sum of the slots, and those of accounts with limits likewise.

        False when there was a change meanwhile.
        """
        cdef uint64_t[PAGE_SLOTS] begun
        cdef int64_t total = 0
        cdef int k, slots = 1   # (corrections are in the first)
        for k in range(PAGE_SLOTS):
            begun[k] = page_load(&self.layout.slots[k].changes_begun)
            if page_load(&self.layout.slots[k].changes_done) != begun[k]:
                return False
            if begun[k]:
                slots = k + 1
        for k in range(PAGE_SLOTS):
            total += <int64_t> page_load(&self.layout.slots[k].connections)
        error[0] = page_connections(self.header) - total
        for k in range(accounts):
            of_accounts[k] = page_account_error(self.layout, k, slots)
        for k in range(PAGE_SLOTS):
            if page_load(&self.layout.slots[k].changes_begun) != begun[k]:
                return False
        return True

    def snapshot(self, int shard):
        """The slot's numbers by name."""
        cdef ShardSlot* slot = self.slot(shard)
        return {
            "connections": slot.connections,
            "subscriptions": slot.subscriptions,
            "loop_lag_us": slot.loop_lag_us,
            "links": slot.links,
            "pid": slot.pid,
            "boots": slot.boots,
            "total_connections": slot.total_connections,
            "accepted_sockets": slot.accepted_sockets,
            "in_msgs": slot.in_msgs,
            "in_bytes": slot.in_bytes,
            "out_msgs": slot.out_msgs,
            "out_bytes": slot.out_bytes,
            "slow_consumers": slot.slow_consumers,
            "stalls": slot.stalls,
            "link_in_msgs": slot.link_in_msgs,
            "link_in_bytes": slot.link_in_bytes,
            "link_out_msgs": slot.link_out_msgs,
            "link_out_bytes": slot.link_out_bytes,
            "refused_logins": slot.refused_logins,
            "failed_handshakes": slot.failed_handshakes,
            "stale_connections": slot.stale_connections,
            "denied_msgs": slot.denied_msgs,
            "denied_subscriptions": slot.denied_subscriptions,
            "unwritten_msgs": max(0, <int64_t> (slot.in_msgs - slot.recorded[0])),   # (a window's are noted at once)
        }

    @property
    def servers_traffic(self):
        """What passed to and from other servers since the broker began: (messages in, bytes in, messages out, bytes
        out)."""
        header = self.header
        return header.servers_in_msgs, header.servers_in_bytes, header.servers_out_msgs, header.servers_out_bytes

    def note_recorded(self, int shard, uint64_t until_us, counts not None):
        """A window is on disk, with (messages in, bytes in, messages out, bytes out, link messages out, in)."""
        cdef ShardSlot* slot = self.slot(shard)
        cdef int i
        for i in range(6):
            page_store(&slot.recorded[i], slot.recorded[i] + <uint64_t> counts[i])
        page_store(&slot.recorded_us, until_us)

    def unrecorded(self, int shard):
        """For a dead shard: (until when windows are on disk, the six counts that no window contains).

        A gap row says them, and note_gap() follows. (Who still wrote after its end, as a relay whose disk had hung, may
        have written more than was counted.)
        """
        cdef ShardSlot* slot = self.slot(shard)
        now = (slot.in_msgs, slot.in_bytes, slot.out_msgs, slot.out_bytes, slot.link_out_msgs, slot.link_in_msgs)
        return slot.recorded_us, tuple([max(0, now[i] - slot.recorded[i]) for i in range(6)])

    def note_gap(self, int shard, uint64_t until_us):
        """All that a dead shard has counted is in the statistics, or in a gap row that ends then."""
        cdef ShardSlot* slot = self.slot(shard)
        now = (slot.in_msgs, slot.in_bytes, slot.out_msgs, slot.out_bytes, slot.link_out_msgs, slot.link_in_msgs)
        for i in range(6):
            page_store(&slot.recorded[i], now[i])
        page_store(&slot.recorded_us, until_us)

    def store(self, int shard, str name, uint64_t value):
        """Write one gauge or counter of the shard's own slot from Python; the compiled writers use the slot itself."""
        cdef ShardSlot* slot = self.slot(shard)
        if name == "subscriptions":
            page_store(&slot.subscriptions, value)
        elif name == "loop_lag_us":
            page_store(&slot.loop_lag_us, value)
        elif name == "links":
            page_store(&slot.links, value)
        elif name == "total_connections":
            page_store(&slot.total_connections, value)
        elif name == "accepted_sockets":
            page_store(&slot.accepted_sockets, value)
        elif name == "in_msgs":
            page_store(&slot.in_msgs, value)
        elif name == "in_bytes":
            page_store(&slot.in_bytes, value)
        elif name == "out_msgs":
            page_store(&slot.out_msgs, value)
        elif name == "out_bytes":
            page_store(&slot.out_bytes, value)
        elif name == "slow_consumers":
            page_store(&slot.slow_consumers, value)
        elif name == "stalls":
            page_store(&slot.stalls, value)
        elif name == "refused_logins":
            page_store(&slot.refused_logins, value)
        elif name == "failed_handshakes":
            page_store(&slot.failed_handshakes, value)
        elif name == "stale_connections":
            page_store(&slot.stale_connections, value)
        elif name == "denied_msgs":
            page_store(&slot.denied_msgs, value)
        elif name == "denied_subscriptions":
            page_store(&slot.denied_subscriptions, value)
        else:
            raise KeyError(name)


# ---- for tests: a process that is killed between two steps of a change ----

def is_inside_change(Page page, int shard):
    """Whether the slot's last change was begun and not done."""
    cdef ShardSlot* slot = page.slot(shard)
    return page_load(&slot.changes_begun) != page_load(&slot.changes_done)


def key_of(bytes name not None):
    """What stands for a name in the page's tables."""
    return max(int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little"), PAGE_KEY_FIRST)


def begin_change(Page page, int shard, str change, int steps):
    """Only the first 1..4 steps of page_try_add_connection ("add") or page_remove_connection ("remove")."""
    cdef ShardSlot* slot = page.slot(shard)
    cdef int64_t count = 1 if change == "add" else -1
    if steps >= 1:
        page_store(&slot.changes_begun, slot.changes_begun + 1)
    if steps >= 2:
        page_subtract(page.header, -count)
    if steps >= 3:
        page_store(&slot.connections, slot.connections + count)
    if steps >= 4:
        page_store(&slot.changes_done, slot.changes_done + 1)


def end_change(Page page, int shard):
    """The change that was begun is done, and changed nothing more."""
    cdef ShardSlot* slot = page.slot(shard)
    page_store(&slot.changes_done, slot.changes_begun)


def put_account_connections(Page page, int shard, int place, int32_t count):
    """What a shard's own number is when many clients have moved."""
    page.layout.accounts[place].connections[shard] = count


def put_account_key(Page page, bytes name):
    """Only the first step of account_place(): the account is known, and has no place."""
    placed = page.header.accounts_placed
    place = page.account_place(name)
    page.header.accounts_placed = placed
    for at in range(PAGE_ACCOUNT_KEYS):
        if page.layout.account_places[at] == place + 1:
            page.layout.account_places[at] = 0
