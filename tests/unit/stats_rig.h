/* What the tests of the statistics share: calls with fewer arguments, random
 * numbers, the flush-to-zero modes. */
#ifndef TESTS_UNIT_STATS_RIG_H
#define TESTS_UNIT_STATS_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "client/stats/kernel.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

/* The figures of n contiguous elements. */
static inline struct trd_stats stats_of(int dtype, const void *data, size_t n)
{
    int64_t shape = (int64_t)n;
    struct trd_tensor t = {data, (enum trd_dtype)dtype, 1, &shape, NULL};
    struct trd_stats s;

    assert_int_equal(trd_stats_cpu(&t, 0, &s, NULL), 0);
    return s;
}

/* Two results have the same bits throughout. */
static inline void assert_same(const struct trd_stats *a,
                               const struct trd_stats *b)
{
    assert_memory_equal(a, b, sizeof *a);
}

/* The same bits, and so the same sign of zero; any two NaN are the same. */
static inline void assert_double(double got, double want)
{
    if (isnan(want)) {
        assert_true(isnan(got));
    } else if (memcmp(&got, &want, sizeof got)) {
        print_error("%.17g is not %.17g\n", got, want);
        fail();
    }
}

static inline void assert_near(double got, double want, double tolerance)
{
    if (!(fabs(got - want) <= tolerance)) {
        print_error("%.17g is not %.17g, off by %.3g where %.3g is allowed\n",
                    got, want, fabs(got - want), tolerance);
        fail();
    }
}

static inline uint64_t rng_next(uint64_t *state)
{
    return hash_mix(*state += UINT64_C(0x9e3779b97f4a7c15));
}

/* In (0, 1). */
static inline double rng_uniform(uint64_t *state)
{
    return ((double)(rng_next(state) >> 12) + 0.5) * 0x1p-52;
}

static inline double rng_normal(uint64_t *state)
{
    double r = sqrt(-2 * log(rng_uniform(state)));
    return r * cos(6.283185307179586 * rng_uniform(state));
}

/* Flush subnormals to zero and read them as zero, where we know how to. */
static inline unsigned flush_on(void)
{
#if defined(__SSE__)
    unsigned was = _mm_getcsr();
    _mm_setcsr(was | 0x8040u);
    return was;
#else
    return 0;
#endif
}

static inline void flush_restore(unsigned was)
{
#if defined(__SSE__)
    _mm_setcsr(was);
#else
    (void)was;
#endif
}

/* Element of equidistant sample i of min(k, n). */
static inline uint64_t sample_at(uint64_t n, uint32_t k, uint32_t i)
{
    struct trd_want want = {.samples = k};
    return trd_sample_index(n, &want, i);
}

#endif
