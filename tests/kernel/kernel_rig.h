/* Data for the tests of kernels: random numbers, elements of every dtype in
 * every way that has been hard on a kernel, and memory that ends where it
 * should not be read on. */
#ifndef TESTS_KERNEL_KERNEL_RIG_H
#define TESTS_KERNEL_KERNEL_RIG_H

#include "tests/unit/stats_rig.h"

#include <sys/mman.h>
#include <unistd.h>

/* ---- what a case is made of ---- */

#define FILLS(X)                                                              \
    X(BITS, "random bits")                                                    \
    X(CODES, "codes in a row")                                                \
    X(NORMAL, "normal")                                                       \
    X(OFFSET, "N(1000, 0.01)")                                                \
    X(ZEROS, "zeros")                                                         \
    X(SIGNED_ZEROS, "zeros of both signs")                                    \
    X(RELU, "half zeros")                                                     \
    X(CONSTANT, "constant")                                                   \
    X(STEPS, "constant, then another constant")                               \
    X(OUTLIER, "one outlier")                                                 \
    X(CHANNELS, "outliers at one distance")                                   \
    X(SMALL, "subnormals")                                                    \
    X(SPRINKLED, "NaN and infinities here and there")                         \
    X(ONE_BAD, "one NaN or infinity")                                         \
    X(BAD, "NaN and infinities only")                                         \
    X(NEARLY_BAD, "NaN and infinities but for one in a thousand")             \
    X(HUGE_ONES, "near the largest")                                          \
    X(TINY, "near the smallest normal number")                                \
    X(SPREAD, "every exponent")                                               \
    X(EDGES, "where a tile's form or unit changes")                           \
    X(PAIRS, "x and -x")                                                      \
    X(EXTREMES, "largest, smallest, 0 and -1")

enum fill {
#define FILL_MEMBER(name, text) FILL_##name,
    FILLS(FILL_MEMBER)
#undef FILL_MEMBER
        FILL_COUNT
};

static inline const char *fill_name(enum fill fill)
{
    static const char *const names[] = {
#define FILL_NAME(name, text) text,
        FILLS(FILL_NAME)
#undef FILL_NAME
    };
    return names[fill];
}

/* ---- random numbers ---- */

static inline uint64_t below(uint64_t *rng, uint64_t n)
{
    return n ? rng_next(rng) % n : 0;
}

/* ---- codes ---- */

/* A real dtype in bits: sign, exponent, `mantissa` bits. */
struct layout {
    unsigned size;
    bool is_float;
    unsigned mantissa, bias;
    uint64_t nan, inf, most; /* magnitudes; inf 0 for none */
};

static inline struct layout layout_of(int dtype)
{
    switch (dtype) {
    case TRD_F64:
    case TRD_C128:
        return (struct layout){8,
                               true,
                               52,
                               1023,
                               UINT64_C(0x7ff8000000000001),
                               UINT64_C(0x7ff0000000000000),
                               UINT64_C(0x7fefffffffffffff)};
    case TRD_F32:
    case TRD_C64:
        return (struct layout){4,          true,       23,        127,
                               0x7fc00001, 0x7f800000, 0x7f7fffff};
    case TRD_F16:
    case TRD_C32:
        return (struct layout){2, true, 10, 15, 0x7e01, 0x7c00, 0x7bff};
    case TRD_BF16:
        return (struct layout){2, true, 7, 127, 0x7fc1, 0x7f80, 0x7f7f};
    case TRD_F8_E4M3FN:
        return (struct layout){1, true, 3, 7, 0x7f, 0, 0x7e};
    case TRD_F8_E5M2:
        return (struct layout){1, true, 2, 15, 0x7d, 0x7c, 0x7b};
    case TRD_F8_E4M3FNUZ:
        return (struct layout){1, true, 3, 8, 0x80, 0, 0x7f};
    case TRD_F8_E5M2FNUZ:
        return (struct layout){1, true, 2, 16, 0x80, 0, 0x7f};
    case TRD_F8_E8M0FNU: /* no sign: see code_of() */
        return (struct layout){1, true, 0, 127, 0xff, 0, 0xfe};
    default:
        return (struct layout){trd_dtype_bytes(dtype), false, 0, 0, 0, 0, 0};
    }
}

/* The code near a value; not rounded well, only somewhere there. */
static inline uint64_t code_of(int dtype, double x)
{
    struct layout f = layout_of(dtype);
    uint64_t sign = UINT64_C(1) << (8 * f.size - 1);
    uint64_t magnitude;
    double m;
    int e;

    if (dtype == TRD_BOOL)
        return x > 0;
    if (!f.is_float) {
        double limit = ldexp(1, (int)(8 * f.size) - 1) * (1 - 0x1p-52);
        if (trd_dtype_kind(dtype) != TRD_KIND_SIGNED)
            return (uint64_t)fmin(fabs(x), 2 * limit);
        return (uint64_t)(int64_t)fmax(fmin(x, limit), -limit);
    }
    m = frexp(fabs(x), &e);
    e += (int)f.bias - 1;
    if (dtype == TRD_F8_E8M0FNU)
        return e < 0 ? 0 : e > 254 ? 254 : (uint64_t)e;
    if (x == 0)
        magnitude = 0;
    else if (e >= 1)
        magnitude = ((uint64_t)e << f.mantissa) +
                    (uint64_t)ldexp(2 * m - 1, (int)f.mantissa);
    else
        magnitude = (uint64_t)ldexp(2 * m, (int)f.mantissa - 1 + e);
    if (magnitude > f.most)
        magnitude = f.most;
    if (dtype == TRD_F8_E4M3FNUZ || dtype == TRD_F8_E5M2FNUZ)
        return magnitude | (x < 0 && magnitude ? sign : 0);
    return magnitude | (x < 0 ? sign : 0);
}

/* A NaN or an infinity; for integers the largest or the smallest. */
static inline uint64_t bad_code(int dtype, uint64_t *rng)
{
    struct layout f = layout_of(dtype);
    uint64_t sign = (rng_next(rng) & 1) << (8 * f.size - 1);
    uint64_t payload = rng_next(rng) & ((UINT64_C(1) << f.mantissa) - 1);

    if (!f.is_float)
        return rng_next(rng) & 1 ? sign : sign - 1;
    if (f.inf)
        return sign | f.inf | (rng_next(rng) & 1 ? payload : 0);
    return dtype == TRD_F8_E4M3FN ? sign | f.nan : f.nan;
}

static inline uint64_t small_code(int dtype, uint64_t *rng)
{
    struct layout f = layout_of(dtype);
    uint64_t sign = (rng_next(rng) & 1) << (8 * f.size - 1);
    uint64_t code = rng_next(rng) & ((UINT64_C(1) << f.mantissa) - 1);

    return f.is_float && f.nan != sign ? sign | code : code;
}

static inline double normal_of(uint64_t *rng)
{
    /* enough like one, and quick */
    uint64_t r = rng_next(rng);
    double sum = -4;

    for (int i = 0; i < 4; i++, r >>= 16)
        sum += (double)(r & 0xffff) * 0x1p-15;
    return sum * 0.866;
}

static inline double top_of(int dtype)
{
    struct layout f = layout_of(dtype);

    if (!f.is_float)
        return ldexp(1, (int)(8 * f.size) - 1);
    return ldexp(1, (int)(f.most >> f.mantissa) - (int)f.bias);
}

static inline uint64_t filled(int dtype, enum fill fill, size_t i, size_t n,
                              uint64_t base, uint64_t *rng)
{
    struct layout f = layout_of(dtype);
    double least = ldexp(1, 1 - (int)f.bias);
    uint64_t r;

    switch (fill) {
    case FILL_BITS:
        return rng_next(rng);
    case FILL_CODES:
        return base + i;
    case FILL_NORMAL:
        return code_of(dtype, normal_of(rng) * (f.size < 2 ? 10 : 1000));
    case FILL_OFFSET:
        return code_of(dtype, 1000 + 0.01 * normal_of(rng));
    case FILL_ZEROS:
        return 0;
    case FILL_SIGNED_ZEROS:
        r = rng_next(rng) & 1;
        return f.is_float && f.mantissa && !(f.nan == 0x80)
                   ? r << (8 * f.size - 1)
                   : 0;
    case FILL_RELU:
        return code_of(dtype, fmax(0, 20 * normal_of(rng)));
    case FILL_CONSTANT:
        return base;
    case FILL_STEPS:
        return i < base % (n + 1) ? base : base * 7919;
    case FILL_OUTLIER:
        return code_of(dtype, normal_of(rng) * (i == base % n ? 1e25 : 1));
    case FILL_CHANNELS:
        return code_of(dtype,
                       normal_of(rng) * (i % (2 + base % 700) ? 1 : 1e5));
    case FILL_SMALL:
        return base % 3 && rng_next(rng) % 2 ? code_of(dtype, normal_of(rng))
                                             : small_code(dtype, rng);
    case FILL_SPRINKLED:
        return below(rng, 100) ? code_of(dtype, normal_of(rng))
                               : bad_code(dtype, rng);
    case FILL_ONE_BAD:
        return i != base % n ? code_of(dtype, normal_of(rng))
                             : bad_code(dtype, rng);
    case FILL_BAD:
        return bad_code(dtype, rng);
    case FILL_NEARLY_BAD:
        return below(rng, 1000) ? bad_code(dtype, rng)
                                : code_of(dtype, normal_of(rng));
    case FILL_HUGE_ONES:
        return code_of(dtype, normal_of(rng) * top_of(dtype));
    case FILL_TINY:
        return code_of(dtype, f.is_float ? normal_of(rng) * least * 4
                                         : normal_of(rng));
    case FILL_SPREAD:
        r = below(rng, f.is_float ? 2 * f.bias : 8 * f.size);
        return code_of(dtype, ldexp(normal_of(rng),
                                    (int)r - (f.is_float ? (int)f.bias : 0)));
    case FILL_EDGES: /* 2^470 and 2^-400; Q of 2^120 and 2^-100 */
        if (f.size == 8)
            r = (base & 1 ? 466 : (uint64_t)-404) + base / 2 % 8;
        else
            r = (base & 1 ? 52 : (uint64_t)-58) + base / 2 % 8;
        return code_of(dtype, ldexp(normal_of(rng), (int)r));
    case FILL_PAIRS:
        r = hash_mix(base + i / 2); /* the same for both */
        return code_of(dtype, normal_of(&r) * (i % 2 ? -100 : 100));
    default: /* extremes */
        switch (below(rng, 4)) {
        case 0:
            return UINT64_MAX >> (65 - 8 * f.size);
        case 1:
            return UINT64_C(1) << (8 * f.size - 1);
        case 2:
            return 0;
        default:
            return UINT64_MAX;
        }
    }
}

/* n elements; complex ones are two of their parts. */
static inline void fill_elements(int dtype, enum fill fill, size_t n,
                                 uint64_t *rng, unsigned char *out)
{
    unsigned size = layout_of(dtype).size;
    size_t parts = n * trd_dtype_bytes(dtype) / size;
    uint64_t base = rng_next(rng);

    for (size_t i = 0; i < parts; i++) {
        uint64_t code = filled(dtype, fill, i, parts, base, rng);
        memcpy(out + i * size, &code, size);
    }
}

/* ---- memory with nothing behind it ---- */

struct guarded {
    unsigned char *at;
    size_t bytes; /* whole pages; no access on either side */
};

static inline struct guarded guarded_open(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    struct guarded g;
    unsigned char *all;

    g.bytes = (bytes + page - 1) / page * page;
    all = mmap(NULL, g.bytes + 2 * page, PROT_NONE,
               MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(all != MAP_FAILED);
    g.at = all + page;
    assert_int_equal(mprotect(g.at, g.bytes, PROT_READ | PROT_WRITE), 0);
    return g;
}

static inline void guarded_close(struct guarded *g)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    munmap(g->at - page, g->bytes + 2 * page);
}

/* Where to put `bytes` so that they end `shift` bytes before the edge, or
 * begin that far behind the other one. */
static inline unsigned char *guarded_place(const struct guarded *g,
                                           size_t bytes, size_t shift,
                                           bool at_end)
{
    return at_end ? g->at + g->bytes - bytes - shift : g->at + shift;
}

#endif
