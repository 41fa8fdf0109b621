/* What the statistics cost: the part of bench_stats.py that must not measure
 * Python. A module that it loads by ctypes, with the library in it; each
 * function returns the seconds that its own loop took.
 *
 * The measure is a plain read of the same memory: vector loads, as wide as the
 * machine has, added up. One thread's work is measured by its CPU time, that
 * of several by the clock. */
#include "client/stats/kernel.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define BENCH_API __attribute__((visibility("default")))

BENCH_API void *bench_memory(size_t bytes, int huge);
BENCH_API void bench_repeat(unsigned char *p, size_t filled, size_t bytes);
BENCH_API const char *bench_read_width(void);
BENCH_API double bench_read(const void *p, size_t bytes, unsigned threads);
BENCH_API const char *bench_kernel(void);
BENCH_API int bench_dtype(const char *name);
BENCH_API double bench_stats(const void *p, int dtype, int ndim,
                             const int64_t *shape, const int64_t *strides,
                             uint32_t k, int histogram, unsigned threads,
                             unsigned calls);
BENCH_API int bench_figures(const void *p, int dtype, int64_t n, double out[3]);

static double now(unsigned threads)
{
    struct timespec t;
    clock_gettime(threads > 1 ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- memory ---- */

/* On huge pages as far as the system gives any, or on none. */
void *bench_memory(size_t bytes, int huge)
{
    size_t align = (size_t)1 << 21;
    unsigned char *p = mmap(NULL, bytes + align, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (p == MAP_FAILED)
        return NULL;
    p += (align - (uintptr_t)p % align) % align;
#if defined(MADV_HUGEPAGE)
    madvise(p, bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
#else
    (void)huge;
#endif
    return p;
}

/* The first `filled` bytes again and again. */
void bench_repeat(unsigned char *p, size_t filled, size_t bytes)
{
    for (size_t at = filled; at < bytes; at += filled)
        memcpy(p + at, p, bytes - at < filled ? bytes - at : filled);
}

/* ---- the plain read ---- */

typedef uint64_t vector __attribute__((vector_size(64), aligned(64)));
enum { AT_ONCE = 8, STEP = AT_ONCE * sizeof(vector) };

#define DEFINE_READ(name, attribute)                                           \
    attribute static uint64_t name(const void *p, size_t bytes)                \
    {                                                                          \
        const vector *v = p;                                                   \
        vector sum[AT_ONCE];                                                   \
        uint64_t total = 0;                                                    \
        memset(sum, 0, sizeof sum);                                            \
        for (size_t i = 0; i < bytes / STEP; i++, v += AT_ONCE)                \
            for (int j = 0; j < AT_ONCE; j++)                                  \
                sum[j] += v[j];                                                \
        for (int j = 0; j < AT_ONCE; j++)                                      \
            for (int k = 0; k < 8; k++)                                        \
                total += sum[j][k];                                            \
        return total;                                                          \
    }

DEFINE_READ(read_plain, )
#if defined(__x86_64__)
DEFINE_READ(read_avx2, __attribute__((target("avx2"))))
DEFINE_READ(read_avx512, __attribute__((target("avx512f"))))
#endif

typedef uint64_t reader(const void *p, size_t bytes);

static reader *widest(const char **name)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) {
        *name = "64 bytes";
        return read_avx512;
    }
    if (__builtin_cpu_supports("avx2")) {
        *name = "32 bytes";
        return read_avx2;
    }
#endif
    *name = "16 bytes";
    return read_plain;
}

const char *bench_read_width(void)
{
    const char *name;
    widest(&name);
    return name;
}

enum { PIECE = 1 << 20 };

struct read_call {
    reader *read;
    const unsigned char *p;
    size_t bytes;
    _Atomic size_t next;
    _Atomic uint64_t sum;
};

static void read_pieces(void *arg)
{
    struct read_call *c = arg;
    uint64_t sum = 0;
    size_t at;

    while ((at = atomic_fetch_add(&c->next, PIECE)) < c->bytes)
        sum +=
            c->read(c->p + at, c->bytes - at < PIECE ? c->bytes - at : PIECE);
    atomic_fetch_add(&c->sum, sum);
}

/* bytes: a multiple of 512, else the rest is not read; p of 64. */
double bench_read(const void *p, size_t bytes, unsigned threads)
{
    const char *name;
    struct read_call c = {widest(&name), p, bytes, 0, 0};
    double start = now(threads);

    trd__pool_run(threads, read_pieces, &c);
    return now(threads) - start;
}

/* ---- the statistics ---- */

const char *bench_kernel(void)
{
    return trd_stats_kernel();
}

int bench_dtype(const char *name)
{
    return trd_dtype_parse(name);
}

/* `calls` calls of trd_stats_cpu_as() one after the other; negative: an
 * error. */
double bench_stats(const void *p, int dtype, int ndim, const int64_t *shape,
                   const int64_t *strides, uint32_t k, int histogram,
                   unsigned threads, unsigned calls)
{
    static struct trd_histogram bins;
    unsigned char samples[64 * TRD__MAX_ELEMENT];
    struct trd_tensor t = {p, (enum trd_dtype)dtype, ndim, shape, strides};
    struct trd_want want = {.samples = k < 64 ? k : 64,
                            .histogram = (enum trd_histogram_kind)histogram};
    struct trd_stats s;
    double start;
    int r = trd_stats_threads(threads);

    start = now(threads);
    for (unsigned i = 0; i < calls && !r; i++)
        r = trd_stats_cpu_as(&t, &want, &s, samples, &bins);
    return r ? (double)r : now(threads) - start;
}

/* mean, std and l2 of n elements. */
int bench_figures(const void *p, int dtype, int64_t n, double out[3])
{
    struct trd_tensor t = {p, (enum trd_dtype)dtype, 1, &n, NULL};
    struct trd_stats s;
    int r = trd_stats_cpu(&t, 0, &s, NULL);

    if (r < 0)
        return r;
    out[0] = s.mean;
    out[1] = s.std;
    out[2] = s.l2;
    return 0;
}
