# Machine words: see word.h. Reads may pass the end by up to SLACK bytes; every buffer has them to spare.

from libc.stdint cimport uint8_t, uint32_t, uint64_t

cdef extern from "word.h" nogil:
    const size_t SLACK "GN_SLACK"
    bint likely "GN_LIKELY"(bint)
    bint unlikely "GN_UNLIKELY"(bint)
    uint64_t load64 "gn_load64"(const uint8_t *)
    uint32_t load32 "gn_load32"(const uint8_t *)
    const uint8_t *token_end "gn_token_end"(const uint8_t *, const uint8_t *)
    bint same_bytes "gn_same"(const uint8_t *, const uint8_t *, size_t)
    void copy_bytes "gn_copy"(uint8_t *, const uint8_t *, size_t)
    uint8_t *copy_run "gn_copy_run"(uint8_t *, const uint8_t *, size_t, const uint8_t *, size_t, size_t, size_t)
    uint64_t hash_bytes "gn_hash"(const uint8_t *, size_t, uint64_t)
    unsigned decimal "gn_decimal"(uint8_t *, uint64_t)
