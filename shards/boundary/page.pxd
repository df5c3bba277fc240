# The layout of the shared page, and the operations on it that must be atomic.
#
#   header   │ magic, version, slot count │ next client id │ connections of the broker │ … │   one cache line each
#   slot 0   │ 32 words, four cache lines: written by shard 0 alone, read by everybody
#   …        │
#   slot 63  │
#   accounts │ keys of accounts with a connection limit │ per shard, connections of each: counted there, and there now
#   publish  │ keys of users and accounts with publish_limits │ two words of each, for broker.allowance: atomic
#
# A shard writes its slot's plain counters with ordinary stores: an aligned word is never torn, and a reader may see a
# value that is a few nanoseconds old. Only words that several processes write, and those of a change, are atomic.
#
# PageHeader* and ShardSlot* STAY VALID UNTIL THE Page IS DEALLOCATED; keep a reference to the Page beside them.

from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

cdef extern from *:
    """
    #ifndef GNATSWARM_PAGE_LAYOUT
    #define GNATSWARM_PAGE_LAYOUT
    #include <stdint.h>
    #include <stddef.h>

    #define PAGE_MAGIC UINT64_C(0x676e617473776d31)   /* "gnatswm1" */
    #define PAGE_VERSION 7
    #define PAGE_SLOTS 64
    #define PAGE_ACCOUNTS 16384      /* broker.bounds has these two numbers, too */
    #define PAGE_PUBLISHERS 65536
    #define PAGE_ACCOUNT_KEYS (2 * PAGE_ACCOUNTS)

    typedef struct {
        uint64_t magic;
        uint64_t version;
        uint64_t slots;
        uint64_t created_us;
        uint64_t next_client_id __attribute__((aligned(64)));   /* atomic, all shards */
        int64_t connections __attribute__((aligned(64)));       /* atomic, all shards */
        uint64_t event_number __attribute__((aligned(64)));     /* atomic, all shards and the router */
        uint64_t handshakes;                                    /* atomic, all shards: see page_try_handshake */
        /* Counters of what passes to and from other servers: of the gateway, whose next process goes on with them. */
        uint64_t servers_in_msgs __attribute__((aligned(64)));
        uint64_t servers_in_bytes;
        uint64_t servers_out_msgs;
        uint64_t servers_out_bytes;
        uint64_t doubts;                                        /* atomic, all shards: see page_doubt_connections */
        uint64_t accounts_placed;                               /* atomic, all shards: so many have a place */
        uint64_t heard_out;                                     /* atomic, all shards: a bit of each that stops */
        uint64_t spare[9];
    } PageHeader;

    typedef struct {
        /* Gauges of the running process; the router zeroes them when it dies. */
        uint64_t connections __attribute__((aligned(64)));
        uint64_t changes_begun;       /* of these and of accounts' connections; differs from changes_done inside a
                                         change, and while clients of other shards are expected, by their number */
        uint64_t changes_done;
        uint64_t subscriptions;
        uint64_t loop_lag_us;
        uint64_t links;               /* siblings synchronised with */
        uint64_t pid;                 /* written by the router */
        uint64_t boots;               /* written by the router */
        /* Counters; they never decrease, and a restarted shard continues from them. */
        uint64_t total_connections __attribute__((aligned(64)));
        uint64_t accepted_sockets;    /* every socket taken from listener or hand-off, refused ones included */
        uint64_t in_msgs;
        uint64_t in_bytes;
        uint64_t out_msgs;
        uint64_t out_bytes;
        uint64_t slow_consumers;
        uint64_t stalls;
        uint64_t link_in_msgs;
        uint64_t link_in_bytes;
        uint64_t link_out_msgs;
        uint64_t link_out_bytes;
        uint64_t refused_logins;      /* CONNECTs that were refused, and clients that sent none in time */
        /* How much of these counters is in statistics files on disk, and until when; after a gap row the router makes
           them equal to the counters. */
        uint64_t recorded_us;
        uint64_t recorded[6];         /* messages and bytes in, out, link messages out and in */
        uint64_t failed_handshakes;   /* TLS handshakes and WebSocket upgrades that failed */
        uint64_t stale_connections;   /* closed because they did not answer our pings */
        uint64_t denied_msgs;         /* of in_msgs: the client's permissions did not allow them */
        uint64_t denied_subscriptions;
    } ShardSlot;

    typedef struct {
        /* Connections of the account, counted by the shard that accepted them. The sum is the broker's; a client that
           moves leaves it as it is, so that a shard's own number may fall below zero. */
        int32_t connections[PAGE_SLOTS];
        /* … and how many of these clients the shard has now: what dies with it. */
        int32_t clients[PAGE_SLOTS];
    } AccountSlot;

    typedef struct {
        PageHeader header;
        ShardSlot slots[PAGE_SLOTS];
        /* Places are given in order, so that few accounts have few pages of memory. */
        uint64_t account_keys[PAGE_ACCOUNT_KEYS];     /* atomic; see page_key_slot */
        uint32_t account_places[PAGE_ACCOUNT_KEYS];   /* atomic; from 1; 0: none yet. Stays when the key is freed */
        AccountSlot accounts[PAGE_ACCOUNTS];
        uint64_t publisher_keys[PAGE_PUBLISHERS];   /* atomic; see page_key_slot */
        uint64_t publisher_paid[PAGE_PUBLISHERS][2];   /* atomic, all shards: for messages, and for bytes */
    } PageLayout;

    _Static_assert(sizeof(PageHeader) == 384, "the page header has changed: raise PAGE_VERSION");
    _Static_assert(sizeof(ShardSlot) == 256, "the slot has changed: raise PAGE_VERSION");

    static inline uint64_t page_next_client_id(PageHeader *header) {
        return __atomic_fetch_add(&header->next_client_id, 1, __ATOMIC_RELAXED);
    }
    static inline uint64_t page_peek_client_id(PageHeader *header) {
        return __atomic_load_n(&header->next_client_id, __ATOMIC_RELAXED);
    }

    static inline uint64_t page_next_event_number(PageHeader *header) {
        return __atomic_add_fetch(&header->event_number, 1, __ATOMIC_RELAXED);
    }

    /* One TLS handshake more in this second, which begins with its first one: the word is its begin in ms of the
       monotonic clock, above 24 bits of how many there were. 0: there were `most` already. */
    #define PAGE_HANDSHAKE_BITS 24
    static inline int page_try_handshake(PageHeader *header, uint64_t now_ms, uint64_t most) {
        uint64_t was = __atomic_load_n(&header->handshakes, __ATOMIC_RELAXED), now;
        do {
            uint64_t count = was & ((UINT64_C(1) << PAGE_HANDSHAKE_BITS) - 1);
            /* Signed: another process may have read its clock a moment later. */
            if (was == 0 || (int64_t)(now_ms - (was >> PAGE_HANDSHAKE_BITS)) >= 1000)
                now = now_ms << PAGE_HANDSHAKE_BITS | 1;
            else if (count < most)
                now = was + 1;
            else
                return 0;
        } while (!__atomic_compare_exchange_n(&header->handshakes, &was, now, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
        return 1;
    }

    /* A shard may be killed between any two of these steps. While changes_begun is ahead of changes_done the router
       does not trust the slot's count and computes the difference from the sum (Page.forget_connections). */
    static inline int page_try_add_connection(PageHeader *header, ShardSlot *slot, int64_t max_connections) {
        int64_t now = __atomic_load_n(&header->connections, __ATOMIC_SEQ_CST);
        __atomic_fetch_add(&slot->changes_begun, 1, __ATOMIC_SEQ_CST);
        do {
            if (max_connections > 0 && now >= max_connections) {
                __atomic_fetch_add(&slot->changes_done, 1, __ATOMIC_SEQ_CST);
                return 0;
            }
        } while (!__atomic_compare_exchange_n(&header->connections, &now, now + 1, 0,
                                              __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
        __atomic_fetch_add(&slot->connections, 1, __ATOMIC_SEQ_CST);
        __atomic_fetch_add(&slot->changes_done, 1, __ATOMIC_SEQ_CST);
        return 1;
    }

    static inline void page_remove_connection(PageHeader *header, ShardSlot *slot) {
        __atomic_fetch_add(&slot->changes_begun, 1, __ATOMIC_SEQ_CST);
        __atomic_fetch_sub(&header->connections, 1, __ATOMIC_SEQ_CST);
        __atomic_fetch_sub(&slot->connections, 1, __ATOMIC_SEQ_CST);
        __atomic_fetch_add(&slot->changes_done, 1, __ATOMIC_SEQ_CST);
    }

    /* A client that moves is counted by the broker all the time, by its old shard until it leaves that, and by the new
       one from its arrival on. While it is expected there, nobody compares the sum: it may be on its way. */
    static inline void page_expect_connection(ShardSlot *slot) {
        __atomic_fetch_add(&slot->changes_begun, 1, __ATOMIC_SEQ_CST);
    }

    static inline void page_expect_no_more(ShardSlot *slot) {
        __atomic_fetch_add(&slot->changes_done, 1, __ATOMIC_SEQ_CST);
    }

    static inline void page_take_connection(ShardSlot *slot) {
        __atomic_fetch_add(&slot->connections, 1, __ATOMIC_SEQ_CST);
        __atomic_fetch_add(&slot->changes_done, 1, __ATOMIC_SEQ_CST);
    }

    static inline void page_pass_connection(ShardSlot *slot) {
        __atomic_fetch_add(&slot->changes_begun, 1, __ATOMIC_SEQ_CST);
        __atomic_fetch_sub(&slot->connections, 1, __ATOMIC_SEQ_CST);
        __atomic_fetch_add(&slot->changes_done, 1, __ATOMIC_SEQ_CST);
    }

    /* Clients may have been lost on their way: the router is to compare the count with the sum of all slots. */
    static inline void page_doubt_connections(PageHeader *header) {
        __atomic_store_n(&header->doubts, 1, __ATOMIC_SEQ_CST);
    }

    static inline int page_take_doubts(PageHeader *header) {
        return __atomic_exchange_n(&header->doubts, 0, __ATOMIC_SEQ_CST) != 0;
    }

    /* A shard that stops has carried out what its clients had sent; it begins to serve. */
    static inline void page_note_heard_out(PageHeader *header, unsigned shard, int is_so) {
        if (is_so)
            __atomic_or_fetch(&header->heard_out, UINT64_C(1) << shard, __ATOMIC_SEQ_CST);
        else
            __atomic_and_fetch(&header->heard_out, ~(UINT64_C(1) << shard), __ATOMIC_SEQ_CST);
    }

    static inline int page_is_heard_out(PageHeader *header, unsigned shard) {
        return __atomic_load_n(&header->heard_out, __ATOMIC_SEQ_CST) >> shard & 1;
    }

    /* A table of keys, with linear probing: a key behind a slot that is free again is found all the same. The router
       frees slots (page_free_key), shards and the router fill them. */
    #define PAGE_KEY_NONE 0          /* never used */
    #define PAGE_KEY_FREED 1
    #define PAGE_KEY_EMPTIED 2       /* the router takes the place that it has */
    #define PAGE_KEY_FIRST 3

    /* The slot of a key, which is put there if it is nowhere; -1: all are taken. */
    static inline int page_key_slot(uint64_t *keys, unsigned size, uint64_t key) {
        for (;;) {
            int room = -1;
            uint64_t found = key;
            for (unsigned i = 0; i < size && found != PAGE_KEY_NONE; i++) {
                unsigned at = (key + i) % size;
                found = __atomic_load_n(&keys[at], __ATOMIC_SEQ_CST);
                if (found == key)
                    return (int)at;
                if (room < 0 && found <= PAGE_KEY_FREED)
                    room = (int)at;
            }
            if (room < 0)
                return -1;
            found = __atomic_load_n(&keys[room], __ATOMIC_SEQ_CST);
            if (found <= PAGE_KEY_FREED && __atomic_compare_exchange_n(&keys[room], &found, key, 0, __ATOMIC_SEQ_CST,
                                                                       __ATOMIC_SEQ_CST))
                return room;
        }
    }

    static inline uint64_t page_load_key(const uint64_t *keys, unsigned at) {
        return __atomic_load_n(&keys[at], __ATOMIC_SEQ_CST);
    }

    static inline void page_free_key(uint64_t *keys, unsigned at) {
        __atomic_store_n(&keys[at], (uint64_t)PAGE_KEY_FREED, __ATOMIC_SEQ_CST);
    }

    /* For the router alone. Slots that were freed, have no place, and are on the way to no key are as if they had never
       been used. Not at once when they are freed: who looked for room before that would put its key behind them.
       `passed`: `size` zeros. */
    static inline void page_tidy_keys(uint64_t *keys, unsigned size, const uint32_t *places, char *passed) {
        for (unsigned at = 0; at < size; at++) {
            uint64_t key = page_load_key(keys, at);
            for (unsigned i = key % size; key >= PAGE_KEY_FIRST && i != at; i = (i + 1) % size)
                passed[i] = 1;
        }
        for (unsigned at = 0; at < size; at++) {
            uint64_t freed = PAGE_KEY_FREED;
            if (!passed[at] && !(places && places[at]))
                __atomic_compare_exchange_n(&keys[at], &freed, (uint64_t)PAGE_KEY_NONE, 0, __ATOMIC_SEQ_CST,
                                            __ATOMIC_SEQ_CST);
        }
    }

    /* For the router alone. The account is not configured any more: frees its slot, which keeps its place, unless it
       has clients. 1: freed. */
    static inline int page_free_account(PageLayout *page, unsigned at) {
        uint32_t place = __atomic_load_n(&page->account_places[at], __ATOMIC_SEQ_CST);
        if (place) {
            AccountSlot *account = &page->accounts[place - 1];
            for (int shard = 0; shard < PAGE_SLOTS; shard++)
                if (__atomic_load_n(&account->clients[shard], __ATOMIC_SEQ_CST))
                    return 0;
            for (int shard = 0; shard < PAGE_SLOTS; shard++)   /* (of clients that moved, or were lost) */
                __atomic_store_n(&account->connections[shard], 0, __ATOMIC_SEQ_CST);
        }
        page_free_key(page->account_keys, at);
        return 1;
    }

    /* For the router alone. Gives a slot with a key, and without a place, that of a slot from `at` on that was freed;
       where to go on for the next one. */
    static inline unsigned page_pass_place(PageLayout *page, unsigned at, unsigned to) {
        for (; at < PAGE_ACCOUNT_KEYS; at++) {
            uint64_t freed = PAGE_KEY_FREED;
            uint32_t place = __atomic_load_n(&page->account_places[at], __ATOMIC_SEQ_CST), none = 0;
            if (!place || !__atomic_compare_exchange_n(&page->account_keys[at], &freed, (uint64_t)PAGE_KEY_EMPTIED, 0,
                                                       __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
                continue;
            __atomic_store_n(&page->account_places[at], 0, __ATOMIC_SEQ_CST);
            if (!__atomic_compare_exchange_n(&page->account_places[to], &none, place, 0, __ATOMIC_SEQ_CST,
                                             __ATOMIC_SEQ_CST))
                __atomic_store_n(&page->account_places[at], place, __ATOMIC_SEQ_CST);   /* a shard was quicker */
            page_free_key(page->account_keys, at);
            return at + 1;
        }
        return at;
    }

    /* The place of a key that is there. Who has put it there may have been killed before it had one. */
    static inline int page_place_of_key(PageLayout *page, unsigned at) {
        uint32_t place = __atomic_load_n(&page->account_places[at], __ATOMIC_SEQ_CST);
        if (!place && __atomic_load_n(&page->header.accounts_placed, __ATOMIC_SEQ_CST) < PAGE_ACCOUNTS) {
            uint64_t next = __atomic_add_fetch(&page->header.accounts_placed, 1, __ATOMIC_SEQ_CST);
            if (next <= PAGE_ACCOUNTS &&
                __atomic_compare_exchange_n(&page->account_places[at], &place, (uint32_t)next, 0, __ATOMIC_SEQ_CST,
                                            __ATOMIC_SEQ_CST))
                return (int)next - 1;
        }
        return (int)place - 1;
    }

    static inline int page_account_place(PageLayout *page, uint64_t key) {
        int at = page_key_slot(page->account_keys, PAGE_ACCOUNT_KEYS, key);
        return at < 0 ? -1 : page_place_of_key(page, (unsigned)at);
    }

    /* Places below this may be taken; a new one may be, any time. */
    static inline int page_accounts(PageLayout *page) {
        uint64_t placed = __atomic_load_n(&page->header.accounts_placed, __ATOMIC_SEQ_CST);
        return placed < PAGE_ACCOUNTS ? (int)placed : PAGE_ACCOUNTS;
    }

    /* When all places are taken, two share one: they may publish less then, never more. */
    static inline int page_publisher_place(PageLayout *page, uint64_t key) {
        int place = page_key_slot(page->publisher_keys, PAGE_PUBLISHERS, key);
        return place < 0 ? (int)(key % PAGE_PUBLISHERS) : place;
    }

    /* A shard's own number grows, or falls, by each client that moves, and wraps: the sum is right modulo 2**32. */
    static inline int64_t page_account_connections(PageLayout *page, int place) {
        uint32_t sum = 0;
        for (int shard = 0; shard < PAGE_SLOTS; shard++)
            sum += (uint32_t)__atomic_load_n(&page->accounts[place].connections[shard], __ATOMIC_SEQ_CST);
        return (int32_t)sum;
    }

    /* Adds first and compares then: so the limit is never exceeded; at worst two connections that come at the same time
       for the last place are both refused. */
    static inline int page_try_add_to_account(PageLayout *page, int shard, int place, int64_t most) {
        ShardSlot *slot = &page->slots[shard];
        int is_room = 1;
        __atomic_fetch_add(&slot->changes_begun, 1, __ATOMIC_SEQ_CST);
        __atomic_fetch_add(&page->accounts[place].connections[shard], 1, __ATOMIC_SEQ_CST);
        if (most > 0 && page_account_connections(page, place) > most) {
            __atomic_fetch_sub(&page->accounts[place].connections[shard], 1, __ATOMIC_SEQ_CST);
            is_room = 0;
        } else {
            __atomic_fetch_add(&page->accounts[place].clients[shard], 1, __ATOMIC_SEQ_CST);
        }
        __atomic_fetch_add(&slot->changes_done, 1, __ATOMIC_SEQ_CST);
        return is_room;
    }

    static inline void page_remove_from_account(PageLayout *page, int shard, int place) {
        ShardSlot *slot = &page->slots[shard];
        __atomic_fetch_add(&slot->changes_begun, 1, __ATOMIC_SEQ_CST);
        __atomic_fetch_sub(&page->accounts[place].connections[shard], 1, __ATOMIC_SEQ_CST);
        __atomic_fetch_sub(&page->accounts[place].clients[shard], 1, __ATOMIC_SEQ_CST);
        __atomic_fetch_add(&slot->changes_done, 1, __ATOMIC_SEQ_CST);
    }

    /* A client that moves is counted all the time. Between page_pass_connection and page_take_connection: nobody
       compares the sums meanwhile. */
    static inline void page_pass_to_account(PageLayout *page, int shard, int place) {
        __atomic_fetch_sub(&page->accounts[place].clients[shard], 1, __ATOMIC_SEQ_CST);
    }

    static inline void page_take_to_account(PageLayout *page, int shard, int place) {
        __atomic_fetch_add(&page->accounts[place].clients[shard], 1, __ATOMIC_SEQ_CST);
    }

    static inline void page_forget_accounts(PageLayout *page, int shard) {
        for (int place = 0; place < page_accounts(page); place++) {
            int32_t gone = page->accounts[place].clients[shard];
            if (gone) {
                __atomic_fetch_sub(&page->accounts[place].connections[shard], gone, __ATOMIC_SEQ_CST);
                __atomic_store_n(&page->accounts[place].clients[shard], 0, __ATOMIC_SEQ_CST);
            }
        }
    }

    /* By how many the account's count is too high, while nothing changes; of these first slots. */
    static inline int64_t page_account_error(PageLayout *page, int place, int slots) {
        uint32_t error = 0;
        for (int shard = 0; shard < slots; shard++) {
            error += (uint32_t)__atomic_load_n(&page->accounts[place].connections[shard], __ATOMIC_SEQ_CST);
            error -= (uint32_t)__atomic_load_n(&page->accounts[place].clients[shard], __ATOMIC_SEQ_CST);
        }
        return (int32_t)error;
    }

    static inline void page_correct_account(PageLayout *page, int place, int64_t error) {
        __atomic_fetch_sub(&page->accounts[place].connections[0], (int32_t)error, __ATOMIC_SEQ_CST);
    }

    static inline int64_t page_connections(PageHeader *header) {
        return __atomic_load_n(&header->connections, __ATOMIC_SEQ_CST);
    }

    static inline uint64_t page_load(const uint64_t *word) {
        return __atomic_load_n(word, __ATOMIC_SEQ_CST);
    }

    static inline void page_store(uint64_t *word, uint64_t value) {
        __atomic_store_n(word, value, __ATOMIC_SEQ_CST);
    }

    static inline void page_subtract(PageHeader *header, int64_t count) {
        __atomic_fetch_sub(&header->connections, count, __ATOMIC_SEQ_CST);
    }
    #endif
    """
    enum:
        PAGE_MAGIC
        PAGE_VERSION
        PAGE_SLOTS
        PAGE_ACCOUNTS
        PAGE_ACCOUNT_KEYS
        PAGE_PUBLISHERS
        PAGE_KEY_EMPTIED
        PAGE_KEY_FIRST

    ctypedef struct PageHeader:
        uint64_t magic
        uint64_t version
        uint64_t slots
        uint64_t created_us
        uint64_t next_client_id
        int64_t connections
        uint64_t servers_in_msgs
        uint64_t servers_in_bytes
        uint64_t servers_out_msgs
        uint64_t servers_out_bytes
        uint64_t accounts_placed

    ctypedef struct ShardSlot:
        uint64_t connections          # through page_try_add_connection and page_remove_connection only
        uint64_t changes_begun
        uint64_t changes_done
        uint64_t subscriptions
        uint64_t loop_lag_us
        uint64_t links
        uint64_t pid
        uint64_t boots
        uint64_t total_connections
        uint64_t accepted_sockets
        uint64_t in_msgs
        uint64_t in_bytes
        uint64_t out_msgs
        uint64_t out_bytes
        uint64_t slow_consumers
        uint64_t stalls
        uint64_t link_in_msgs
        uint64_t link_in_bytes
        uint64_t link_out_msgs
        uint64_t link_out_bytes
        uint64_t refused_logins
        uint64_t recorded_us
        uint64_t[6] recorded
        uint64_t failed_handshakes
        uint64_t stale_connections
        uint64_t denied_msgs
        uint64_t denied_subscriptions

    ctypedef struct AccountSlot:
        int32_t *connections

    ctypedef struct PageLayout:
        PageHeader header
        ShardSlot[64] slots
        uint64_t *account_keys
        uint32_t *account_places
        AccountSlot *accounts
        uint64_t *publisher_keys
        uint64_t[2] *publisher_paid

    # The next client id: dense, from 1, unique over all shards, never reused.
    uint64_t page_next_client_id(PageHeader* header) noexcept nogil
    uint64_t page_peek_client_id(PageHeader* header) noexcept nogil
    uint64_t page_next_event_number(PageHeader* header) noexcept nogil
    # 1: counted; 0: the broker is full and nothing changed. max_connections <= 0: no limit.
    int page_try_handshake(PageHeader* header, uint64_t now_ms, uint64_t most) noexcept nogil
    int page_try_add_connection(PageHeader* header, ShardSlot* slot, int64_t max_connections) noexcept nogil
    void page_remove_connection(PageHeader* header, ShardSlot* slot) noexcept nogil
    int64_t page_connections(PageHeader* header) noexcept nogil
    # Of a client that moves: expected by its new shard, left by the old one, taken by the new one, or not expected any
    # more.
    void page_expect_connection(ShardSlot* slot) noexcept nogil
    void page_pass_connection(ShardSlot* slot) noexcept nogil
    void page_take_connection(ShardSlot* slot) noexcept nogil
    void page_expect_no_more(ShardSlot* slot) noexcept nogil
    void page_doubt_connections(PageHeader* header) noexcept nogil
    int page_take_doubts(PageHeader* header) noexcept nogil
    void page_note_heard_out(PageHeader* header, unsigned shard, int is_so) noexcept nogil
    int page_is_heard_out(PageHeader* header, unsigned shard) noexcept nogil
    uint64_t page_load_key(const uint64_t* keys, unsigned at) noexcept nogil
    void page_free_key(uint64_t* keys, unsigned at) noexcept nogil
    void page_tidy_keys(uint64_t* keys, unsigned size, const uint32_t* places, char* passed) noexcept nogil
    int page_key_slot(uint64_t* keys, unsigned size, uint64_t key) noexcept nogil
    int page_free_account(PageLayout* page, unsigned at) noexcept nogil
    unsigned page_pass_place(PageLayout* page, unsigned at, unsigned to) noexcept nogil
    # The account's place among those with a connection limit; -1: all places are taken.
    int page_account_place(PageLayout* page, uint64_t key) noexcept nogil
    int page_publisher_place(PageLayout* page, uint64_t key) noexcept nogil
    int64_t page_account_connections(PageLayout* page, int place) noexcept nogil
    # 1: counted; 0: the account has `most` already. most <= 0: no limit.
    int page_try_add_to_account(PageLayout* page, int shard, int place, int64_t most) noexcept nogil
    void page_remove_from_account(PageLayout* page, int shard, int place) noexcept nogil
    # Of a client that moves and is counted: its old shard has it no more, its new one has it.
    void page_pass_to_account(PageLayout* page, int shard, int place) noexcept nogil
    void page_take_to_account(PageLayout* page, int shard, int place) noexcept nogil
    void page_forget_accounts(PageLayout* page, int shard) noexcept nogil
    int page_accounts(PageLayout* page) noexcept nogil
    int64_t page_account_error(PageLayout* page, int place, int slots) noexcept nogil
    void page_correct_account(PageLayout* page, int place, int64_t error) noexcept nogil
    uint64_t page_load(const uint64_t* word) noexcept nogil
    void page_store(uint64_t* word, uint64_t value) noexcept nogil
    void page_subtract(PageHeader* header, int64_t count) noexcept nogil


cdef class Page:
    cdef PageHeader* header           # owned by this object, unmapped when it is deallocated
    cdef PageLayout* layout
    cdef readonly int fd              # owned: closed by close()
    cdef bint is_in_doubt             # a shard has died, or clients were lost on their way: see settle_connections()

    cdef int map_descriptor(self, int fd) except -1
    cdef bint count_error(self, int64_t* error, int64_t* of_accounts, int accounts) noexcept
    # An account's place, or an IndexError.
    cdef int checked_place(self, int place) except -1
    # Never returns NULL: a number outside 0..63 is an IndexError.
    cdef ShardSlot* slot(self, int shard) except NULL
