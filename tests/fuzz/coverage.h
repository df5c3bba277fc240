/* Counts the branches that a compiled module takes, for a coverage-guided fuzzer; in front of every module of the build
 * for fuzzing (GNATSWARM_FUZZ=1) and of no other.
 *
 * gcc calls __sanitizer_cov_trace_pc() in each basic block. The counters are libFuzzer's "inline 8-bit counters":
 * tests/fuzz/guided.py finds both tables by name in the module, and registers them. A block's place in the table is a
 * hash of its distance from the start of the module's code, so two blocks may share one. Comparisons are passed on to
 * the fuzzer, which then tries the values that the code compares with. Each module has its own copy of all of this.
 * No header of the system is included here, because Python's has to be the first one.
 */
#define COUNTERS 16384 /* the largest module has some 10,000 blocks */
#define HIDDEN __attribute__((visibility("hidden"), no_sanitize_coverage, no_sanitize_address, no_sanitize_undefined))
#define SHOWN __attribute__((visibility("default")))

SHOWN __UINT8_TYPE__ gnatswarm_counters[COUNTERS];
SHOWN __UINT64_TYPE__ gnatswarm_places[2 * COUNTERS]; /* address and flags of each counter, as libFuzzer wants them */
SHOWN void (*gnatswarm_compared[4])(__UINT64_TYPE__, __UINT64_TYPE__); /* for 1, 2, 4 and 8 bytes; 0: nobody listens */

extern const char __ehdr_start __attribute__((visibility("hidden"))); /* the linker's name for its first byte */

HIDDEN void __sanitizer_cov_trace_pc(void)
{
    __UINT64_TYPE__ place = (__UINT64_TYPE__)((const char *)__builtin_return_address(0) - &__ehdr_start);
    __UINT32_TYPE__ index = (__UINT32_TYPE__)((place * 0x9E3779B97F4A7C15u) >> 50);
    __UINT8_TYPE__ count = (__UINT8_TYPE__)(gnatswarm_counters[index] + 1);
    gnatswarm_counters[index] = count ? count : 255; /* never back to "not reached" */
    gnatswarm_places[2 * index] = place;
}

#define COMPARED(name, size, type)                                                                                  \
    HIDDEN void name(type left, type right)                                                                         \
    {                                                                                                               \
        if (gnatswarm_compared[size])                                                                               \
            gnatswarm_compared[size](left, right);                                                                  \
    }

COMPARED(__sanitizer_cov_trace_cmp1, 0, __UINT8_TYPE__)
COMPARED(__sanitizer_cov_trace_cmp2, 1, __UINT16_TYPE__)
COMPARED(__sanitizer_cov_trace_cmp4, 2, __UINT32_TYPE__)
COMPARED(__sanitizer_cov_trace_cmp8, 3, __UINT64_TYPE__)
COMPARED(__sanitizer_cov_trace_const_cmp1, 0, __UINT8_TYPE__)
COMPARED(__sanitizer_cov_trace_const_cmp2, 1, __UINT16_TYPE__)
COMPARED(__sanitizer_cov_trace_const_cmp4, 2, __UINT32_TYPE__)
COMPARED(__sanitizer_cov_trace_const_cmp8, 3, __UINT64_TYPE__)

HIDDEN void __sanitizer_cov_trace_cmpf(float left, float right) { (void)left, (void)right; }
HIDDEN void __sanitizer_cov_trace_cmpd(double left, double right) { (void)left, (void)right; }

/* cases[0]: how many; cases[1]: bits of the value; then the cases. */
HIDDEN void __sanitizer_cov_trace_switch(__UINT64_TYPE__ value, void *table)
{
    const __UINT64_TYPE__ *cases = table;
    if (gnatswarm_compared[3])
        for (__UINT64_TYPE__ i = 0; i < cases[0]; i++)
            gnatswarm_compared[3](cases[2 + i], value);
}
