/* Machine words: the few things the engine needs that Cython cannot say.
 *
 * Reads may go up to GN_SLACK bytes past the end they are given: every buffer handed to these functions
 * (read buffers, blobs, partial operations, output chunks) is allocated with that many bytes to spare.
 */
#ifndef GNATSWARM_WORD_H
#define GNATSWARM_WORD_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#define GN_SLACK 64

#define GN_LIKELY(x) __builtin_expect(!!(x), 1)
#define GN_UNLIKELY(x) __builtin_expect(!!(x), 0)

static inline uint64_t gn_load64(const uint8_t *p) { uint64_t v; memcpy(&v, p, 8); return v; }
static inline uint32_t gn_load32(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return v; }

static inline int gn_is_separator(uint8_t c) { return c == ' ' || c == '\r' || c == '\n' || c == '\t'; }

/* First space, tab, CR or LF in [p, end), or end. Other control characters, NUL too, are ordinary
 * characters of a token, as they are for nats-server. */
static inline const uint8_t *gn_token_end(const uint8_t *p, const uint8_t *end) {
#if defined(__SSE2__)
    const __m128i space = _mm_set1_epi8(0x20);
    while (p < end) {
        __m128i v = _mm_loadu_si128((const __m128i *)p);
        unsigned m = (unsigned)_mm_movemask_epi8(_mm_cmpeq_epi8(_mm_min_epu8(v, space), v));
        if (!m) { p += 16; continue; }
        p += __builtin_ctz(m);
        if (p >= end) return end;
        if (GN_LIKELY(gn_is_separator(*p))) return p;
        p++;
    }
    return end;
#else
    while (p < end && !gn_is_separator(*p)) p++;
    return p;
#endif
}

/* Are n bytes equal? Meant for the 8 to 64 bytes of a control line; short ones go byte by byte. */
static inline int gn_same(const uint8_t *a, const uint8_t *b, size_t n) {
    if (n >= 8) {
        size_t i = 0;
        for (; i + 8 <= n; i += 8)
            if (gn_load64(a + i) != gn_load64(b + i)) return 0;
        return gn_load64(a + n - 8) == gn_load64(b + n - 8);
    }
    while (n--) if (a[n] != b[n]) return 0;
    return 1;
}

/* Copies n bytes in blocks of 32: may read and write up to 31 bytes past the end (GN_SLACK). A call of
 * memcpy costs more than the copy for the 10 to 64 bytes of a prefix or a small payload. */
static inline void gn_copy(uint8_t *to, const uint8_t *from, size_t n) {
    if (GN_UNLIKELY(n > 256)) { memcpy(to, from, n); return; }
    for (size_t i = 0; i < n; i += 32) memcpy(to + i, from + i, 32);
}

/* A run of `count` messages: each time the same prefix, then tail_size bytes from `tail`, which steps on by
 * `stride`. Returns where the next byte goes. Copies in blocks as gn_copy does; the sizes are looked at once. */
static inline uint8_t *gn_copy_run(uint8_t *to, const uint8_t *prefix, size_t prefix_size, const uint8_t *tail,
                                   size_t tail_size, size_t stride, size_t count) {
    if (GN_LIKELY(prefix_size <= 32 && tail_size <= 32)) {
        for (; count; count--, tail += stride) {
            memcpy(to, prefix, 32);
            to += prefix_size;
            memcpy(to, tail, 32);
            to += tail_size;
        }
    } else {
        for (; count; count--, tail += stride) {
            gn_copy(to, prefix, prefix_size);
            to += prefix_size;
            gn_copy(to, tail, tail_size);
            to += tail_size;
        }
    }
    return to;
}

static inline uint64_t gn_fold(uint64_t a, uint64_t b) {
    __uint128_t m = (__uint128_t)a * b;
    return (uint64_t)m ^ (uint64_t)(m >> 64);
}

/* A 64-bit hash by multiply-and-fold over 16-byte steps. The seed is random per table, so that nobody outside can
 * choose subjects that collide. It hides both factors of each product: bytes equal to what hides one (a constant,
 * say) would make it zero, and whatever is before and beside them would not count. */
static inline uint64_t gn_hash(const uint8_t *p, size_t n, uint64_t seed) {
    const uint64_t k0 = 0x9E3779B97F4A7C15ull, k1 = 0xD6E8FEB86659FD93ull;
    const uint64_t veil = seed * k1;
    uint64_t a, b;
    seed ^= k0;
    if (n <= 16) {
        if (n >= 8) { a = gn_load64(p); b = gn_load64(p + n - 8); }
        else if (n >= 4) { a = gn_load32(p); b = gn_load32(p + n - 4); }
        else if (n) { a = ((uint64_t)p[0] << 16) | ((uint64_t)p[n >> 1] << 8) | p[n - 1]; b = 0; }
        else { a = b = 0; }
    } else {
        size_t i = 0;
        for (; i + 16 < n; i += 16) seed = gn_fold(gn_load64(p + i) ^ veil, gn_load64(p + i + 8) ^ seed);
        a = gn_load64(p + n - 16);
        b = gn_load64(p + n - 8);
    }
    return gn_fold(k1 ^ n, gn_fold(a ^ veil, b ^ seed));
}

/* Decimal digits of v into to (at most 20); how many. */
static inline unsigned gn_decimal(uint8_t *to, uint64_t v) {
    uint8_t t[20];
    unsigned n = 0;
    do { t[n++] = (uint8_t)('0' + v % 10); v /= 10; } while (v);
    for (unsigned i = 0; i < n; i++) to[i] = t[n - 1 - i];
    return n;
}

#endif
