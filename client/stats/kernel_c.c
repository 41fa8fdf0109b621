/* The reference kernel: the contract of kernel.h in plain C, the definition
 * that every other kernel is compared with. Any thread.
 *
 * A tile is decoded into a small array of fp32 or fp64 values on the stack;
 * counts, extremes, sums and hash are then separate passes over it.
 *
 * Invariants: reads only the elements it is given, keeps nothing. */
#include "client/stats/kernel.h"

#include <string.h>

#define F32_INF INT32_C(0x7f800000)
#define F64_INF INT64_C(0x7ff0000000000000)

#define KEYS_4(i) HASH_K(i), HASH_K((i) + 1), HASH_K((i) + 2), HASH_K((i) + 3)
#define KEYS_16(i) KEYS_4(i), KEYS_4((i) + 4), KEYS_4((i) + 8), KEYS_4((i) + 12)

static const uint64_t key_a[16] = {KEYS_16(0)};
static const uint64_t key_r[128] = {KEYS_16(16),  KEYS_16(32), KEYS_16(48),
                                    KEYS_16(64),  KEYS_16(80), KEYS_16(96),
                                    KEYS_16(112), KEYS_16(128)};

void trd__hash_tile(const void *tile, size_t bytes, uint64_t index,
                    struct trd__tally *tally)
{
    const unsigned char *p = tile;
    size_t words = bytes / 8;
    size_t rest = bytes % 8;
    uint64_t h = 0;
    uint64_t w;

    for (size_t j = 0; j < words; j++) {
        memcpy(&w, p + 8 * j, 8);
        h += hash_word(w, key_a[j % 16] ^ key_r[j / 16]);
    }
    if (rest) {
        w = 0;
        memcpy(&w, p + 8 * words, rest);
        h += hash_word(w, key_a[words % 16] ^ key_r[words / 16]);
    }
    tally->hash += hash_of_tile(h, index);
}

void trd__tally_init(struct trd__tally *tally, int dtype)
{
    memset(tally, 0, sizeof *tally);
    if (dtype == TRD_I64) {
        tally->max.i = INT64_MIN;
        tally->min.i = INT64_MAX;
        tally->absmin.u = UINT64_MAX;
    } else if (dtype == TRD_U64) {
        tally->min.u = tally->absmin.u = UINT64_MAX;
    } else {
        tally->max.f = -INFINITY;
        tally->min.f = tally->absmin.f = INFINITY;
        tally->absmax.f = 0;
    }
}

/* Extremes of a tile of floats. */
static void extremes(struct trd__tally *t, double max, double min,
                     double absmin)
{
    double absmax = max > -min ? max : -min;

    if (max > t->max.f)
        t->max.f = max;
    if (min < t->min.f)
        t->min.f = min;
    if (absmax > t->absmax.f)
        t->absmax.f = absmax;
    if (absmin < t->absmin.f)
        t->absmin.f = absmin;
}

/* Counts and extremes come from the bits. Read as integers, with those of
 * negative floats turned round, they order as the floats do; -0 is just below
 * 0. No branches on signs: nothing predicts them. */
static inline int32_t order32(uint32_t bits)
{
    return (int32_t)(bits ^ (0 - (bits >> 31)) >> 1);
}

static double value32(int32_t order)
{
    uint32_t bits = (uint32_t)order32((uint32_t)order);
    float v;
    memcpy(&v, &bits, sizeof v);
    return (double)v;
}

static void tally32(struct trd__tally *t, const float *x, uint32_t m,
                    double min_normal)
{
    uint32_t nan = 0, pinf = 0, ninf = 0, zero = 0, below = 0;
    int32_t max = INT32_MIN, min = INT32_MAX;
    uint32_t absmin = UINT32_MAX;
    float normal = (float)min_normal;
    uint32_t limit;

    memcpy(&limit, &normal, sizeof limit);
    for (uint32_t i = 0; i < m; i++) {
        uint32_t bits, a;
        int32_t order;

        memcpy(&bits, &x[i], sizeof bits);
        a = bits & INT32_MAX;
        order = order32(bits);
        if (a >= (uint32_t)F32_INF) {
            nan += a > (uint32_t)F32_INF;
            pinf += order == F32_INF;
            ninf += order == -1 - F32_INF;
            continue;
        }
        zero += a == 0;
        below += a < limit;
        max = order > max ? order : max;
        min = order < min ? order : min;
        absmin = a - 1 < absmin ? a - 1 : absmin; /* 0 becomes the largest */
    }
    t->nan += nan;
    t->pinf += pinf;
    t->ninf += ninf;
    t->zero += zero;
    t->subnormal += limit ? below - zero : 0;
    m -= nan + pinf + ninf;
    t->finite += m;
    if (m)
        extremes(t, value32(max), value32(min),
                 zero < m ? value32((int32_t)(absmin + 1)) : INFINITY);
}

static inline int64_t order64(uint64_t bits)
{
    return (int64_t)(bits ^ (0 - (bits >> 63)) >> 1);
}

static double value64(int64_t order)
{
    uint64_t bits = (uint64_t)order64((uint64_t)order);
    double v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

static void tally64(struct trd__tally *t, const double *x, uint32_t m,
                    double min_normal)
{
    uint32_t nan = 0, pinf = 0, ninf = 0, zero = 0, below = 0;
    int64_t max = INT64_MIN, min = INT64_MAX;
    uint64_t absmin = UINT64_MAX;
    uint64_t limit;

    memcpy(&limit, &min_normal, sizeof limit);
    for (uint32_t i = 0; i < m; i++) {
        uint64_t bits, a;
        int64_t order;

        memcpy(&bits, &x[i], sizeof bits);
        a = bits & INT64_MAX;
        order = order64(bits);
        if (a >= (uint64_t)F64_INF) {
            nan += a > (uint64_t)F64_INF;
            pinf += order == F64_INF;
            ninf += order == -1 - F64_INF;
            continue;
        }
        zero += a == 0;
        below += a < limit;
        max = order > max ? order : max;
        min = order < min ? order : min;
        absmin = a - 1 < absmin ? a - 1 : absmin; /* 0 becomes the largest */
    }
    t->nan += nan;
    t->pinf += pinf;
    t->ninf += ninf;
    t->zero += zero;
    t->subnormal += limit ? below - zero : 0;
    m -= nan + pinf + ninf;
    t->finite += m;
    if (m)
        extremes(t, value64(max), value64(min),
                 zero < m ? value64((int64_t)(absmin + 1)) : INFINITY);
}

/* Indices of the elements whose median is K. */
static uint32_t probe(uint32_t m, int which)
{
    return which == 0 ? 0 : (which == 1 ? 331 : 677) * m / TRD__TILE;
}

/* fma is correctly rounded everywhere, but a call of the C library where the
 * compiler may not assume the instruction. So the two loops that live on it
 * are compiled once more for machines that have it. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__FMA__)
#define FMA_TWICE 1
#define LANES static inline __attribute__((always_inline)) void
#else
#define FMA_TWICE 0
#define LANES static inline void
#endif

/* The sum of the lanes: l + 32, then l + 16, ... */
static inline double halves(double lane[TRD__LANES])
{
    for (int w = TRD__LANES / 2; w; w /= 2)
        for (int l = 0; l < w; l++)
            lane[l] += lane[l + w];
    return lane[0];
}

/* S and Q: of the differences x - k in fp32, of given ones in fp64. */
LANES lanes32_loop(const float *x, uint32_t m, float k, double *sum,
                   double *square)
{
    float s[2 * TRD__LANES] = {0};
    float q[TRD__LANES] = {0};
    double ds[TRD__LANES], dq[TRD__LANES];

    for (uint32_t i = 0; i < m; i++) {
        uint32_t l = i % TRD__LANES;
        float d = x[i] - k;
        s[l + i / TRD__HALF * TRD__LANES] += d;
        q[l] = fmaf(d, d, q[l]);
    }
    for (uint32_t l = 0; l < TRD__LANES; l++) {
        ds[l] = (double)s[l] + (double)s[l + TRD__LANES];
        dq[l] = (double)q[l];
    }
    *sum = halves(ds);
    *square = halves(dq);
}

LANES lanes64_loop(const double *d, uint32_t m, double *sum, double *square)
{
    double s[TRD__LANES] = {0};
    double q[TRD__LANES] = {0};

    for (uint32_t i = 0; i < m; i++) {
        s[i % TRD__LANES] += d[i];
        q[i % TRD__LANES] = fma(d[i], d[i], q[i % TRD__LANES]);
    }
    *sum = halves(s);
    *square = halves(q);
}

#if FMA_TWICE
__attribute__((target("fma"))) static void
lanes32_fma(const float *x, uint32_t m, float k, double *sum, double *square)
{
    lanes32_loop(x, m, k, sum, square);
}

__attribute__((target("fma"))) static void
lanes64_fma(const double *d, uint32_t m, double *sum, double *square)
{
    lanes64_loop(d, m, sum, square);
}
#endif

static void lanes32(const float *x, uint32_t m, float k, double *sum,
                    double *square)
{
#if FMA_TWICE
    if (__builtin_cpu_supports("fma")) {
        lanes32_fma(x, m, k, sum, square);
        return;
    }
#endif
    lanes32_loop(x, m, k, sum, square);
}

static void lanes64(const double *d, uint32_t m, double *sum, double *square)
{
#if FMA_TWICE
    if (__builtin_cpu_supports("fma")) {
        lanes64_fma(d, m, sum, square);
        return;
    }
#endif
    lanes64_loop(d, m, sum, square);
}

void trd__wide_sum(const struct trd__job *job, const double *x, uint32_t m,
                   struct trd__sum *sum)
{
    double d[TRD__TILE];
    double largest = fabs(job->pilot.f);
    double first = 0;
    uint32_t finite = 0;
    double k, s, q, scale;
    int32_t unit;

    for (uint32_t i = 0; i < m; i++) {
        if (!isfinite(x[i]))
            continue;
        if (!finite++)
            first = x[i];
        if (fabs(x[i]) > largest)
            largest = fabs(x[i]);
    }
    if (!finite) {
        *sum = sum_zero();
        return;
    }
    k = first;
    if (isfinite(x[0]) && isfinite(x[probe(m, 1)]) && isfinite(x[probe(m, 2)]))
        k = median_f64(x[0], x[probe(m, 1)], x[probe(m, 2)]);

    unit = largest >= 0x1p470 ? 1 : largest < 0x1p-400 ? -1 : 0;
    scale = sum_scale(unit);
    k *= scale;
    for (uint32_t i = 0; i < m; i++)
        d[i] = isfinite(x[i]) ? x[i] * scale - k : 0;
    lanes64(d, m, &s, &q);
    *sum = sum_of_tile(s, q, finite, dd_two(k, -(job->pilot.f * scale)), unit);
}


/* A narrow tile; a wide one where fp32 was not enough. */
static void narrow_sum(const struct trd__job *job, const float *x, uint32_t m,
                       struct trd__sum *sum)
{
    float k = median_f32(x[0], x[probe(m, 1)], x[probe(m, 2)]);
    double wide[TRD__TILE];
    double s, q;

    lanes32(x, m, k, &s, &q);
    /* Equal elements: common, and the redo would find the same zeros. */
    if (narrow_holds(s, q, m) ||
        (q == 0 && !memcmp(x, x + 1, (m - 1) * sizeof *x))) {
        *sum = sum_of_tile(s, q, m, dd_two((double)k, -job->pilot.f), 0);
        return;
    }
    for (uint32_t i = 0; i < m; i++)
        wide[i] = (double)x[i];
    trd__wide_sum(job, wide, m, sum);
}

static uint32_t tile_length(uint32_t n, uint32_t start)
{
    return n - start < TRD__TILE ? n - start : TRD__TILE;
}

/* Dtypes whose values fit fp32. */
static void tiles32(const struct trd__job *job, const void *bytes,
                    uint64_t first, uint32_t n, struct trd__tally *tally,
                    struct trd__sum *sums)
{
    const unsigned char *p = bytes;
    size_t size = trd_dtype_bytes(job->dtype);
    double min_normal = trd__min_normal(job->dtype);

    for (uint32_t i = 0; i < n; i += TRD__TILE, first++, sums++) {
        uint32_t m = tile_length(n, i);
        const void *tile = p + i * size;
        float x[TRD__TILE];

        trd__decode32(job->dtype, tile, m, x);
        tally32(tally, x, m, min_normal);
        trd__hash_tile(tile, m * size, first, tally);
        if (job->narrow) {
            narrow_sum(job, x, m, sums);
        } else {
            double wide[TRD__TILE];
            for (uint32_t j = 0; j < m; j++)
                wide[j] = (double)x[j];
            trd__wide_sum(job, wide, m, sums);
        }
    }
}

/* Dtypes whose values fit fp64 but not fp32. */
static void tiles64(const struct trd__job *job, const void *bytes,
                    uint64_t first, uint32_t n, struct trd__tally *tally,
                    struct trd__sum *sums)
{
    const unsigned char *p = bytes;
    size_t size = trd_dtype_bytes(job->dtype);
    double min_normal = trd__min_normal(job->dtype);

    for (uint32_t i = 0; i < n; i += TRD__TILE, first++, sums++) {
        uint32_t m = tile_length(n, i);
        const void *tile = p + i * size;
        double x[TRD__TILE];

        trd__decode64(job->dtype, tile, m, x);
        tally64(tally, x, m, min_normal);
        trd__hash_tile(tile, m * size, first, tally);
        trd__wide_sum(job, x, m, sums);
    }
}

/* a - b, both int64 or both uint64, as sign and magnitude. */
static uint64_t distance(uint64_t a, uint64_t b, bool is_signed, bool *less)
{
    uint64_t bias = (uint64_t)is_signed << 63;
    *less = (a ^ bias) < (b ^ bias);
    return *less ? b - a : a - b;
}

static double difference(uint64_t a, uint64_t b, bool is_signed)
{
    bool less;
    double d = (double)distance(a, b, is_signed, &less);
    return less ? -d : d;
}

static uint64_t median_int(uint64_t a, uint64_t b, uint64_t c, bool is_signed)
{
    uint64_t bias = (uint64_t)is_signed << 63;
    uint64_t lo, hi, m;

    a ^= bias;
    b ^= bias;
    c ^= bias;
    lo = a < b ? a : b;
    hi = a < b ? b : a;
    m = hi < c ? hi : c;
    return (lo > m ? lo : m) ^ bias;
}

static void tally_int(struct trd__tally *t, const uint64_t *x, uint32_t m,
                      bool is_signed)
{
    for (uint32_t i = 0; i < m; i++) {
        uint64_t v = x[i];
        uint64_t a = is_signed && v >> 63 ? 0 - v : v;

        if (!is_signed) {
            t->max.u = v > t->max.u ? v : t->max.u;
            t->min.u = v < t->min.u ? v : t->min.u;
        } else {
            int64_t s;
            memcpy(&s, &v, sizeof s);
            t->max.i = s > t->max.i ? s : t->max.i;
            t->min.i = s < t->min.i ? s : t->min.i;
        }
        t->zero += a == 0;
        t->absmax.u = a > t->absmax.u ? a : t->absmax.u;
        if (a && a < t->absmin.u)
            t->absmin.u = a;
    }
    t->finite += m;
}

/* int64 and uint64: no fp64 holds them, so differences are integers. */
static void tiles_int(const struct trd__job *job, const void *bytes,
                      uint64_t first, uint32_t n, struct trd__tally *tally,
                      struct trd__sum *sums)
{
    const unsigned char *p = bytes;
    bool is_signed = job->dtype == TRD_I64;
    uint64_t pilot;

    memcpy(&pilot, &job->pilot, sizeof pilot);
    for (uint32_t i = 0; i < n; i += TRD__TILE, first++, sums++) {
        uint32_t m = tile_length(n, i);
        const void *tile = p + i * sizeof(uint64_t);
        uint64_t x[TRD__TILE];
        double d[TRD__TILE];
        double s, q;
        uint64_t k;
        struct dd shift;
        bool less;

        memcpy(x, tile, m * sizeof *x);
        tally_int(tally, x, m, is_signed);
        trd__hash_tile(tile, m * sizeof *x, first, tally);
        k = median_int(x[0], x[probe(m, 1)], x[probe(m, 2)], is_signed);
        for (uint32_t j = 0; j < m; j++)
            d[j] = difference(x[j], k, is_signed);
        lanes64(d, m, &s, &q);
        shift = dd_of_u64(distance(k, pilot, is_signed, &less));
        *sums = sum_of_tile(s, q, m, less ? dd_neg(shift) : shift, 0);
    }
}

static void tiles_packed(const struct trd__job *job, const void *bytes,
                         uint64_t first, uint32_t n, struct trd__tally *tally,
                         struct trd__sum *sums)
{
    const unsigned char *p = bytes;
    size_t size = trd_dtype_bytes(job->dtype);

    for (uint32_t i = 0; i < n; i += TRD__TILE, first++, sums++) {
        trd__hash_tile(p + i * size, tile_length(n, i) * size, first, tally);
        *sums = sum_zero();
    }
}

const struct trd__kernel trd__kernel_c = {
    "c",
    {
        [TRD_F64] = tiles64,         [TRD_F32] = tiles32,
        [TRD_F16] = tiles32,         [TRD_BF16] = tiles32,
        [TRD_F8_E4M3FN] = tiles32,   [TRD_F8_E5M2] = tiles32,
        [TRD_F8_E4M3FNUZ] = tiles32, [TRD_F8_E5M2FNUZ] = tiles32,
        [TRD_F8_E8M0FNU] = tiles32,  [TRD_I8] = tiles32,
        [TRD_I16] = tiles32,         [TRD_I32] = tiles64,
        [TRD_I64] = tiles_int,       [TRD_U8] = tiles32,
        [TRD_U16] = tiles32,         [TRD_U32] = tiles64,
        [TRD_U64] = tiles_int,       [TRD_BOOL] = tiles32,
        [TRD_C32] = tiles64,         [TRD_C64] = tiles64,
        [TRD_C128] = tiles64,        [TRD_F4_E2M1X2] = tiles_packed,
    },
};
