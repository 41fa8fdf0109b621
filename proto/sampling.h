/* Which elements of a tensor are its samples: FORMAT.md, "Samples". Pure, for
 * host and device, in the common subset of C and C++. */
#ifndef PROTO_SAMPLING_H
#define PROTO_SAMPLING_H

#include <stdint.h>

#include "tracerd/record.h"

#ifdef __CUDACC__
#define SAMPLING static inline __host__ __device__
#else
#define SAMPLING static inline
#endif

SAMPLING uint32_t sampling_count(uint64_t n, uint32_t k, int rule,
                                 uint64_t arg)
{
    uint64_t count = n;
    if (rule == TRD_EVERY)
        count = n / arg + (n % arg != 0);
    return count < k ? (uint32_t)count : k;
}

/* One step in fp64, i * step truncated, the last one n - 1: numpy's. */
SAMPLING uint64_t sampling_equidistant(uint64_t n, uint32_t count, uint32_t i)
{
    double step;
    if (i == 0)
        return 0;
    if (i + 1 == count)
        return n - 1;
    step = (double)(n - 1) / (double)(count - 1);
    return (uint64_t)((double)i * step);
}

/* A pseudorandom number below `limit`, from the upper half of a product (its
 * bias is below limit / 2^64). The mixing is that of SplitMix64. */
SAMPLING uint64_t sampling_below(uint64_t limit, uint64_t seed, uint32_t i)
{
    uint64_t z = seed + (i + UINT64_C(1)) * UINT64_C(0x9e3779b97f4a7c15);
    uint64_t low, high;
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    z ^= z >> 31;
    low = (z & 0xffffffffu) * (limit & 0xffffffffu) >> 32;
    low += (z >> 32) * (limit & 0xffffffffu);
    high = low >> 32;
    low = (low & 0xffffffffu) + (z & 0xffffffffu) * (limit >> 32);
    return (z >> 32) * (limit >> 32) + high + (low >> 32);
}

/* Part i of `count` parts of n elements, of which the first ones are longer
 * by one where n does not divide. */
SAMPLING uint64_t sampling_random(uint64_t n, uint32_t count, uint64_t seed,
                                  uint32_t i)
{
    uint64_t size = n / count, longer = n % count;
    uint64_t first = size * i + (i < longer ? i : longer);
    return first + sampling_below(size + (i < longer), seed, i);
}

/* Element of sample i, i < count = sampling_count(n, k, rule, arg). */
SAMPLING uint64_t sampling_index(uint64_t n, uint32_t count, int rule,
                                 uint64_t arg, uint32_t i)
{
    if (rule == TRD_EVERY)
        return i * arg;
    if (rule == TRD_RANDOM)
        return sampling_random(n, count, arg, i);
    return sampling_equidistant(n, count, i);
}

#endif
