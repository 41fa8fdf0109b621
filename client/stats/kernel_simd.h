/* Tiles of every dtype with values but complex, on vectors. Included once by
 * each kernel_*.c, after it has said what a vector is and what can be done
 * with one; no header in its own right.
 *
 * A tile is passed over two or three times, which is cheap as it is in the
 * first cache by then:
 *   look    on the bits as they lie: hash and extremes, no decoding;
 *   count   only where the extremes say that there are zeros or subnormals;
 *   sums    on the values: narrow, and wide where that did not do.
 *
 * A tile that is short or has elements that are not finite is copied first,
 * with K in the place of all that has no value: d is 0 there and no extreme
 * changes, so the same passes do for it.
 *
 * Invariants: reads only the elements it is given, keeps nothing; the figures
 * are those of kernel_c.c to the bit. */

#include "client/stats/kernel_simd_look.h"
#include "client/stats/kernel_simd_sums.h"

#if defined(__GNUC__)
#define NOINLINE __attribute__((noinline))
#else
#define NOINLINE
#endif

/* ---- what a run adds to the tally ---- */

/* The sums of tiles are left for the end, where several fit a vector. */
struct later {
    double s[TRD__RUN], q[TRD__RUN], finite[TRD__RUN]; /* S, Q, F */
    double hi[TRD__RUN], lo[TRD__RUN];                 /* D */
};

struct run {
    const struct trd__job *job;
    struct trd__sum *sums;
    unsigned tile;    /* in the run */
    uint64_t pending; /* tiles whose sums are left for later */
    struct later later;
    struct seen seen; /* of finite elements */
    vec next;
    uint64_t hash, finite, nan, pinf, ninf, zero, subnormal;
};

INLINE void run_begin(struct form f, struct run *run,
                      const struct trd__job *job, struct trd__sum *sums)
{
    run->job = job;
    run->sums = sums;
    run->tile = 0;
    run->pending = 0;
    run->seen = seen_none(f);
    run->next = all(UINT64_MAX, f.size);
    run->hash = run->finite = run->nan = run->pinf = run->ninf = 0;
    run->zero = run->subnormal = 0;
}

/* `finite` elements, and `absent` ones that are K instead. */
INLINE void run_add(struct form f, struct run *run, const struct seen *s,
                    const struct rare *r, uint32_t finite, uint32_t absent,
                    uint64_t k)
{
    uint64_t a = k & (f.order == FLOAT ? f.sign - 1 : UINT64_MAX);
    uint32_t zero = r->zero - (a == 0 && f.normal ? absent : 0);
    uint32_t below = r->below - (a < f.normal ? absent : 0);

    seen_merge(f, &run->seen, s);
    run->next = min_u(run->next, r->next, f.size);
    run->zero += zero;
    run->subnormal += f.normal > 1 ? below - (f.order == FLOAT ? zero : 0) : 0;
    run->finite += finite;
}

enum fold_by { MAX_S, MAX_U, MIN_S, MIN_U };

/* The one code of all lanes. */
INLINE uint64_t fold_codes(struct form f, vec v, enum fold_by by)
{
    for (unsigned half = VEC / 2; half >= f.size; half /= 2) {
        vec other = turn(v, half);
        v = by == MAX_S   ? max_s(v, other, f.size)
            : by == MAX_U ? max_u(v, other, f.size)
            : by == MIN_S ? min_s(v, other, f.size)
                          : min_u(v, other, f.size);
    }
    return first_word(v) & UINT64_MAX >> (64 - 8 * f.size);
}

/* Extremes of any dtype but int64 and uint64. */
INLINE void tally_values(struct form f, struct trd__tally *t, uint64_t up,
                         uint64_t down, uint64_t least, uint64_t next)
{
    double max, min, absmax;

    if (f.order == FLOAT && up & f.sign)
        up = f.sign | least; /* all are negative */
    if (f.order == UNSIGNED || (f.order == FLOAT && !(down & f.sign)))
        down = least; /* none is */
    max = value_of(f, up);
    min = value_of(f, down);
    absmax = max > -min ? max : -min;
    t->max.f = max > t->max.f ? max : t->max.f;
    t->min.f = min < t->min.f ? min : t->min.f;
    t->absmax.f = absmax > t->absmax.f ? absmax : t->absmax.f;
    if (next != UINT64_MAX >> (64 - 8 * f.size)) {
        double absmin = fabs(value_of(f, next + 1));
        t->absmin.f = absmin < t->absmin.f ? absmin : t->absmin.f;
    }
}

INLINE void tally_int64(struct form f, struct trd__tally *t, uint64_t up,
                        uint64_t down, uint64_t least, uint64_t next)
{
    uint64_t absmax = up;

    if (f.order == UNSIGNED) {
        t->max.u = up > t->max.u ? up : t->max.u;
        t->min.u = least < t->min.u ? least : t->min.u;
    } else {
        int64_t max, min;
        memcpy(&max, &up, sizeof max);
        memcpy(&min, &down, sizeof min);
        t->max.i = max > t->max.i ? max : t->max.i;
        t->min.i = min < t->min.i ? min : t->min.i;
        if (max < 0 || (min < 0 && 0 - down > up))
            absmax = 0 - down;
    }
    t->absmax.u = absmax > t->absmax.u ? absmax : t->absmax.u;
    if (next != UINT64_MAX && next + 1 < t->absmin.u)
        t->absmin.u = next + 1;
}

INLINE void run_end(struct form f, const struct run *run,
                    struct trd__tally *t)
{
    uint64_t up, down, least, next;

    t->hash += run->hash;
    t->nan += run->nan;
    t->pinf += run->pinf;
    t->ninf += run->ninf;
    t->zero += run->zero;
    t->subnormal += run->subnormal;
    t->finite += run->finite;
    if (!run->finite)
        return;
    up = fold_codes(f, run->seen.up, f.order == UNSIGNED ? MAX_U : MAX_S);
    down = f.order == UNSIGNED
               ? 0
               : fold_codes(f, run->seen.down,
                            f.order == SIGNED ? MIN_S : MAX_U);
    least = fold_codes(f, run->seen.least, MIN_U);
    next = f.normal ? fold_codes(f, run->next, MIN_U) : least - 1;
    if (is_int64(f))
        tally_int64(f, t, up, down, least, next);
    else
        tally_values(f, t, up, down, least, next);
}

/* ---- the sums of tiles ---- */

INLINE void sum_later(struct run *run, double s, double q, uint32_t finite,
                      struct dd shift, int32_t unit)
{
    unsigned i = run->tile;

    run->later.s[i] = s;
    run->later.q[i] = q;
    run->later.finite[i] = (double)finite;
    run->later.hi[i] = shift.hi;
    run->later.lo[i] = shift.lo;
    run->sums[i].unit = unit;
    run->pending |= UINT64_C(1) << i;
}

/* sum_of_tile() of reduce.h and what it needs, in vectors. */
struct ddv {
    vecd hi, lo;
};

INLINE struct ddv ddv_fast(vecd a, vecd b)
{
    struct ddv r;
    r.hi = a + b;
    r.lo = b - (r.hi - a);
    return r;
}

INLINE struct ddv ddv_add_d(struct ddv a, vecd b)
{
    vecd hi = a.hi + b;
    vecd t = hi - a.hi;
    vecd lo = (a.hi - (hi - t)) + (b - t);
    return ddv_fast(hi, lo + a.lo);
}

INLINE struct ddv ddv_mul_d(struct ddv a, vecd b)
{
    vecd p = a.hi * b;
    return ddv_fast(p, fmad_(a.lo, b, fmad_(a.hi, b, -p)));
}

INLINE struct ddv ddv_mul(struct ddv a, struct ddv b)
{
    vecd p = a.hi * b.hi;
    vecd e = fmad_(a.hi, b.hi, -p);
    return ddv_fast(p, fmad_(a.lo, b.hi, fmad_(a.hi, b.lo, e)));
}

INLINE vecd load_later(const double *x)
{
    return load_f64(TRD_F64, (const unsigned char *)x);
}

INLINE void sums_now(const struct run *run)
{
    for (unsigned i = 0; run->pending >> i; i += LANES_D) {
        double a[2][LANES_D], b[2][LANES_D];
        vecd s = load_later(run->later.s + i);
        vecd q = load_later(run->later.q + i);
        struct ddv d = {load_later(run->later.hi + i),
                        load_later(run->later.lo + i)};
        struct ddv ra = ddv_add_d(
            ddv_mul_d(d, load_later(run->later.finite + i)), s);
        struct ddv rb = ddv_add_d(ddv_mul(d, ddv_add_d(ra, s)), q);

        memcpy(a[0], &ra.hi, sizeof ra.hi);
        memcpy(a[1], &ra.lo, sizeof ra.lo);
        memcpy(b[0], &rb.hi, sizeof rb.hi);
        memcpy(b[1], &rb.lo, sizeof rb.lo);
        for (unsigned j = 0; j < LANES_D && run->pending >> (i + j); j++) {
            struct trd__sum *sum = &run->sums[i + j];

            if (!(run->pending >> (i + j) & 1))
                continue;
            sum->a.hi = a[0][j];
            sum->a.lo = a[1][j];
            sum->b.hi = b[0][j];
            sum->b.lo = b[1][j];
        }
        if (i + LANES_D == TRD__RUN)
            break;
    }
}

/* ---- tiles ---- */

/* Full rows for the sums, and the tile they stand for. */
struct part {
    const unsigned char *p;
    uint32_t n; /* elements of these rows */
    const struct seen *seen;
    uint64_t code;   /* K */
    double k;        /* the same, but for int64 and uint64 */
    uint32_t finite; /* elements; there is K in the place of the others */
    const unsigned char *given; /* for what only the reference can do */
    uint32_t m;
};

static NOINLINE void sum_by_reference(const struct run *run,
                                      const struct part *t)
{
    int dtype = run->job->dtype;
    struct trd__tally unused;

    trd__tally_init(&unused, dtype);
    trd__kernel_c.tiles[dtype](run->job, t->given, 0, t->m, &unused,
                               &run->sums[run->tile]);
}

/* D of the contract, for integers of 64 bits. */
INLINE struct dd shift_int64(struct form f, const struct trd__job *job,
                             uint64_t k)
{
    uint64_t bias = f.order == SIGNED ? f.sign : 0;
    uint64_t pilot;

    memcpy(&pilot, &job->pilot, sizeof pilot);
    if ((k ^ bias) < (pilot ^ bias))
        return dd_neg(dd_of_u64(pilot - k));
    return dd_of_u64(k - pilot);
}

INLINE void wide_sum(struct form f, struct run *run, const struct part *t)
{
    double pilot = run->job->pilot.f;
    double s, q;

    if (is_int64(f)) {
        if (wide_int64(f, t->p, t->n, t->code, &s, &q))
            sum_later(run, s, q, t->finite,
                      shift_int64(f, run->job, t->code), 0);
        else
            sum_by_reference(run, t);
        return;
    }
    if (f.dtype == TRD_F64) {
        /* the exponents of 2^470 and 2^-400 */
        bool ordinary = !any_reaches(f, t->seen, UINT64_C(1493) << 52) &&
                        fabs(pilot) < 0x1p470 &&
                        (fabs(pilot) >= 0x1p-400 ||
                         any_reaches(f, t->seen, UINT64_C(623) << 52));
        if (!ordinary) {
            sum_by_reference(run, t);
            return;
        }
    }
    if (t->n == TRD__TILE) /* compiled by itself: the rows are known */
        wide(f, t->p, TRD__TILE, t->k, &s, &q);
    else
        wide(f, t->p, t->n, t->k, &s, &q);
    /* nothing but zeros: the unit is the smaller one */
    sum_later(run, s, q, t->finite, dd_two(t->k, -pilot),
              q == 0 && t->k == 0 && pilot == 0 ? -1 : 0);
}

/* Of m elements; false where a wide one is needed. */
INLINE bool narrow_sum(struct form f, struct run *run, const unsigned char *p,
                       float k, uint32_t m)
{
    double s, q;

    narrow(f, p, k, &s, &q);
    if (!narrow_holds(s, q, m) &&
        !(q == 0 && !memcmp(p, p + f.size, (size_t)(m - 1) * f.size)))
        return false;
    sum_later(run, s, q, m, dd_two((double)k, -run->job->pilot.f), 0);
    return true;
}

/* The copy of m elements in n, with K in the place of what has no value;
 * counts that. */
INLINE uint32_t copy_finite(struct form f, struct run *run,
                            const unsigned char *p, uint32_t m, uint64_t code,
                            unsigned char *copy, uint32_t n)
{
    vec k = all(code, f.size);
    count finite = count_none(), pinf = count_none(), ninf = count_none();
    uint32_t absent, infinite;

    for (uint32_t at = m * f.size / VEC * VEC; at < n * f.size; at += VEC)
        store(copy + at, k);
    memcpy(copy, p, m * f.size);
    if (!f.special)
        return 0;
    for (unsigned at = 0; at < n * f.size; at += VEC) {
        vec w = load(copy + at);
        vec r = rank(f, w);
        vec limit = all(f.special, f.size);

        finite = count_lt(finite, r, limit, f.size);
        if (f.inf) {
            pinf = count_eq(pinf, w, all(f.inf, f.size), f.size);
            ninf = count_eq(ninf, w, all(f.sign | f.inf, f.size), f.size);
        }
        store(copy + at, pick_lt(r, limit, w, k, f.size));
    }
    absent = n - count_total(finite, f.size);
    run->pinf += count_total(pinf, f.size);
    run->ninf += count_total(ninf, f.size);
    infinite = count_total(pinf, f.size) + count_total(ninf, f.size);
    run->nan += absent - infinite;
    return absent;
}

/* None of m elements is finite. */
INLINE void count_absent(struct form f, struct run *run,
                         const unsigned char *p, uint32_t m)
{
    for (uint32_t i = 0; i < m; i++) {
        uint64_t code = code_at(f, p, i);

        if (f.inf && code == f.inf)
            run->pinf++;
        else if (f.inf && code == (f.sign | f.inf))
            run->ninf++;
        else
            run->nan++;
    }
}

/* The larger passes of one dtype, which several call. */
struct passes {
    void (*odd)(struct run *run, const unsigned char *p, uint32_t m);
    void (*wide)(struct run *run, const struct part *t);
    bool (*narrow)(struct run *run, const unsigned char *p, float k,
                   uint32_t m);
};

/* Short, or not all finite. */
INLINE void odd_tile(struct form f, struct passes passes, struct run *run,
                     const unsigned char *p, uint32_t m)
{
    _Alignas(64) unsigned char copy[TRD__TILE * 8];
    struct seen seen;
    struct rare rare;
    /* rows without an element would add zeros; narrow tiles are full */
    uint32_t rows = (m + TRD__LANES - 1) / TRD__LANES;
    uint32_t n = is_narrow(f) && run->job->narrow ? TRD__TILE
                                                  : rows * TRD__LANES;
    struct part t = {copy, n, &seen, 0, 0, 0, p, m};

    if (!find_k(f, p, m, &t.code, &t.k)) {
        count_absent(f, run, p, m);
        run->sums[run->tile] = sum_zero();
        return;
    }
    t.finite = m - copy_finite(f, run, p, m, t.code, copy, n);
    seen = look_again(f, copy, n);
    rare = rare_of(f, copy, n, &seen);
    run_add(f, run, &seen, &rare, t.finite, n - t.finite, t.code);
    if (!is_narrow(f) || !run->job->narrow || t.finite < m ||
        !passes.narrow(run, copy, (float)t.k, m))
        passes.wide(run, &t);
}

INLINE void full_tile(struct form f, struct passes passes, struct run *run,
                      const unsigned char *p, uint64_t index)
{
    struct seen seen;
    struct rare rare;
    struct part t = {p, TRD__TILE, &seen, 0, 0, TRD__TILE, p, TRD__TILE};
    uint64_t h;

    seen = look(f, p, &h);
    run->hash += hash_of_tile(h, index);
    if (any_special(f, &seen)) {
        passes.odd(run, p, TRD__TILE);
        return;
    }
    rare = rare_of(f, p, TRD__TILE, &seen);
    if (rare.sign) {
        passes.odd(run, p, TRD__TILE);
        return;
    }
    run_add(f, run, &seen, &rare, TRD__TILE, 0, 0);
    if (is_narrow(f) && run->job->narrow) {
        float k = median_f32(probe_f32(f, p, 0), probe_f32(f, p, 1),
                             probe_f32(f, p, 2));
        if (passes.narrow(run, p, k, TRD__TILE))
            return;
    }
    if (is_int64(f))
        t.code = median_code(f, p, TRD__TILE);
    else
        t.k = median_f64(probe_f64(f, p, 0), probe_f64(f, p, 1),
                         probe_f64(f, p, 2));
    passes.wide(run, &t);
}

INLINE void all_tiles(struct form f, struct passes passes,
                      const struct trd__job *job, const void *bytes,
                      uint64_t first, uint32_t n, struct trd__tally *tally,
                      struct trd__sum *sums)
{
    const unsigned char *p = bytes;
    struct run run;

    run_begin(f, &run, job, sums);
    for (; n >= TRD__TILE; n -= TRD__TILE, run.tile++) {
        full_tile(f, passes, &run, p, first + run.tile);
        p += TRD__TILE * f.size;
    }
    if (n) {
        run.hash +=
            hash_of_tile(hash_short(p, n * f.size), first + run.tile);
        passes.odd(&run, p, n);
    }
    sums_now(&run);
    run_end(f, &run, tally);
}

#define TILES(name, dtype)                                                    \
    static NOINLINE void wide_##name(struct run *run, const struct part *t)   \
    {                                                                         \
        wide_sum(form_of(dtype), run, t);                                     \
    }                                                                         \
                                                                              \
    static NOINLINE bool narrow_##name(                                       \
        struct run *run, const unsigned char *p, float k, uint32_t m)         \
    {                                                                         \
        return is_narrow(form_of(dtype)) &&                                   \
               narrow_sum(form_of(dtype), run, p, k, m);                      \
    }                                                                         \
                                                                              \
    static NOINLINE void tile_odd_##name(                                     \
        struct run *run, const unsigned char *p, uint32_t m)                  \
    {                                                                         \
        odd_tile(form_of(dtype),                                              \
                 (struct passes){NULL, wide_##name, narrow_##name}, run, p,   \
                 m);                                                          \
    }                                                                         \
                                                                              \
    static void tiles_##name(const struct trd__job *job, const void *bytes,   \
                             uint64_t first, uint32_t n,                      \
                             struct trd__tally *tally, struct trd__sum *sums) \
    {                                                                         \
        all_tiles(                                                            \
            form_of(dtype),                                                   \
            (struct passes){tile_odd_##name, wide_##name, narrow_##name},     \
            job, bytes, first, n, tally, sums);                               \
    }

TILES(f64, TRD_F64)
TILES(f32, TRD_F32)
TILES(f16, TRD_F16)
TILES(bf16, TRD_BF16)
TILES(e4m3fn, TRD_F8_E4M3FN)
TILES(e5m2, TRD_F8_E5M2)
TILES(e4m3fnuz, TRD_F8_E4M3FNUZ)
TILES(e5m2fnuz, TRD_F8_E5M2FNUZ)
TILES(e8m0fnu, TRD_F8_E8M0FNU)
TILES(i8, TRD_I8)
TILES(i16, TRD_I16)
TILES(i32, TRD_I32)
TILES(i64, TRD_I64)
TILES(u8, TRD_U8)
TILES(u16, TRD_U16)
TILES(u32, TRD_U32)
TILES(u64, TRD_U64)
TILES(bool, TRD_BOOL)

const struct trd__kernel KERNEL = {
    KERNEL_NAME,
    {
        [TRD_F64] = tiles_f64,
        [TRD_F32] = tiles_f32,
        [TRD_F16] = tiles_f16,
        [TRD_BF16] = tiles_bf16,
        [TRD_F8_E4M3FN] = tiles_e4m3fn,
        [TRD_F8_E5M2] = tiles_e5m2,
        [TRD_F8_E4M3FNUZ] = tiles_e4m3fnuz,
        [TRD_F8_E5M2FNUZ] = tiles_e5m2fnuz,
        [TRD_F8_E8M0FNU] = tiles_e8m0fnu,
        [TRD_I8] = tiles_i8,
        [TRD_I16] = tiles_i16,
        [TRD_I32] = tiles_i32,
        [TRD_I64] = tiles_i64,
        [TRD_U8] = tiles_u8,
        [TRD_U16] = tiles_u16,
        [TRD_U32] = tiles_u32,
        [TRD_U64] = tiles_u64,
        [TRD_BOOL] = tiles_bool,
    },
};
