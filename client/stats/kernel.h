/* What the statistics of one tensor are, to the bit, and the table through
 * which a faster machine computes them.
 *
 * THE CONTRACT
 *
 * The result is a function of the element sequence x_0 ... x_{n-1} (row-major
 * order) alone. Every kernel, on whatever device, gives the bits that
 * kernel_c.c gives. All arithmetic is IEEE 754, round to nearest even, with
 * subnormals, and nothing is contracted: fma stands where fma is written.
 *
 * Values
 *   float     the value of the bits; fp8 and e8m0 as their formats say.
 *   integer   the integer. bool: 1 for every byte but 0.
 *   complex   |z|: sqrt(fma(re, re, im * im)) in fp64; for complex128 the
 *             parts are first scaled by the power of two that brings the
 *             larger into [1, 2). An infinite part makes +inf, otherwise a
 *             NaN part makes NaN; |z| above the fp64 range is +inf.
 *   packed    no value; such tensors have n and the hash only.
 * An element is finite unless its value is NaN or infinite.
 *
 * Exact figures
 *   nan, pinf, ninf, zero, subnormal: counts, by bit pattern. subnormal is
 *   below the smallest normal number of the source dtype, of the part's dtype
 *   for complex. max, min, absmax over finite elements; absmin over finite
 *   non-zero ones, 0 where there is none. -0 becomes +0.
 *
 * Tiles
 *   Tile t holds elements 1024 t ... 1024 t + m - 1, m <= 1024. Element i of a
 *   tile is in lane i mod 64, row i div 64. The pilot P is the first finite
 *   element of tile 0, or 0 where that has none.
 *
 *   Shift: K is the median of the tile's elements 0, 331 m div 1024 and
 *   677 m div 1024. (So that one outlier channel does not make K: two of the
 *   three share a channel only for 2, 173, 331, 346 or 677 channels, and then,
 *   but for 2, in few tiles, which the second rule below takes care of.)
 *
 *   Narrow tile: d = x - K; s += d; q = fma(d, d, q) per lane in row order, in
 *   fp32, with one s for rows 0 to 7 and another one for rows 8 to 15. The
 *   rest is fp64: s = s' + s'' of each lane, and halves over the 64 lanes
 *   (l + (l + 32), of the 32 sums l + (l + 16), ..., 0 + 1) give S and Q.
 *   Absent elements have d = 0.
 *
 *   Wide tile: the same in fp64, with one s for all rows, over the F finite
 *   elements; others have d = 0. Where one of the three is not finite, K is the tile's first finite
 *   element; where none is, the tile is absent. Let M be the largest of |P|
 *   and the magnitudes of the tile. If M >= 2^470, x, K and P are multiplied
 *   by 2^-600 first, if M < 2^-400 by 2^600: the unit of the tile is then
 *   2^600 or 2^-600, otherwise 1; so no square overflows, and none that counts
 *   underflows. int64 and uint64: x - K and K - P are taken as integers, and
 *   x - K rounded once.
 *
 *   Which: wide for n <= 65536, and for float64, complex, int32, uint32,
 *   int64 and uint64 of any n. Otherwise narrow, but a narrow tile is done
 *   again as a wide one where
 *   - Q is not in [2^-100, 2^120]: NaN, infinities, overflow and underflow all
 *     show there (a tile of equal elements has S = Q = 0 in either form, so a
 *     kernel may keep that one as it is), or
 *   - 16 S^2 > 15 m Q in fp64: K is nearly four or more of the tile's
 *     standard deviations off its mean, and a difference of large fp32 sums
 *     would not do.
 *
 * Sums
 *   Over a tile's F finite elements, in double-double (reduce.h, operation by
 *   operation), in the tile's unit:
 *       D = K - P,  A = S + F D = sum(x - P),  B = Q + D (S + A)
 *                                               = sum((x - P)^2).
 *   Over tiles: a perfect binary tree by tile index, absent tiles 0. 0 is the
 *   identity of the sum, so an aligned power-of-two run of tiles is a subtree
 *   and any split among threads or blocks gives the same bits. Of two units
 *   the larger is the unit of the sum.
 *       mean = P + A/F,  M2 = B - A (A/F),  std = sqrt(M2 / F),
 *       l2 = sqrt(M2 + F mean^2).
 *   l2 beyond the fp64 range is +inf.
 *
 *   Double-double because P is whatever comes first: with P off by z standard
 *   deviations B exceeds M2 by z^2, and z may be as large as sqrt(n).
 *
 *   Error. Wide: std and l2 within 1e-13, mean within 1e-13 std. (But where
 *   tile 0 has no finite element, and P is 0, std loses 2^-104 (mean / std)^2
 *   besides.) Narrow: std
 *   and l2 within 4e-8, mean within 5e-9 std, where the rounding errors of the
 *   elements are independent, outlier channels of any period included. On a
 *   grid of some hundred to some thousand steps a standard deviation
 *   (integers, fp32 with a mean of 1e4 standard deviations) squares round down
 *   more often than up, ties to even: std and l2 within 1e-7. Where errors are
 *   alike (few values, a pattern that every tile repeats, a channel 1e5
 *   standard deviations off) they do not cancel: std and l2 within 1e-6, mean
 *   within 1e-6 std.
 *
 * Hash
 *   The tile's bytes, element bits in order, little endian, are 64-bit words
 *   w_j, the last one filled up with zeros.
 *       x = w_j ^ key_j,  key_j = A[j mod 16] ^ R[j div 16],
 *       H_t = sum_j (lo32(x) + 2^32) (hi32(x) + 2^32)      mod 2^64,
 *       hash = mix(sum_t mix(H_t + t C) + n)                mod 2^64.
 *   mix is a bijection; it, C and the tables A and R are in reduce.h.
 *   It is commutative over words and tiles. What it promises:
 *   - A change within one 32-bit half of one word (so any change of one
 *     element of at most 4 bytes, and every single bit) always changes it: the
 *     product then changes by e f, 0 < |e| < 2^32, 2^32 <= f < 2^33, which no
 *     2^64 divides.
 *   - Two tensors that differ otherwise agree with odds of about 2^-32 where
 *     only two halves of one tile differ, and 2^-64 where many do.
 *   - It knows n, but neither shape nor dtype. It is no defence against
 *     somebody who looks for collisions.
 *
 * Samples: trd_sample_index(). Histogram: struct trd_histogram.
 *
 * Threads: everything here may be called from any thread; nothing is kept
 * between calls. Every function but trd__stats_with() and trd__kernels()
 * expects the floating-point modes above. */
#ifndef CLIENT_STATS_KERNEL_H
#define CLIENT_STATS_KERNEL_H

#include <fenv.h>
#include "client/stats/reduce.h"
#include "tracerd/stats.h"

#include <float.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if FLT_EVAL_METHOD != 0
#error "the statistics need fp32 and fp64 arithmetic without extra precision"
#endif
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the statistics read elements as little endian"
#endif

enum {
    TRD__TILE = 1024,     /* elements of a full tile */
    TRD__LANES = 64,      /* lanes of a tile */
    TRD__HALF = 512,      /* where the second s of a lane begins */
    TRD__WIDE_N = 65536,  /* up to here every dtype uses wide tiles */
    TRD__RUN = 64,        /* most tiles of one call of a kernel */
    TRD__MAX_ELEMENT = 16 /* bytes of the largest element */
};

/* What all tiles of one tensor share. In here and in struct trd__tally the
 * member of union trd_value is i for int64, u for uint64 and f for every
 * other dtype, integers too. */
struct trd__job {
    int dtype;             /* enum trd_dtype */
    bool narrow;           /* try narrow tiles first */
    union trd_value pilot; /* P; 0 where no element is finite */
};

/* Figures that add up in any order. absmax and absmin are u for int64. */
struct trd__tally {
    uint64_t nan, pinf, ninf, zero, subnormal;
    uint64_t finite;
    union trd_value max, min;       /* the reverse extremes before any */
    union trd_value absmax, absmin; /* 0 and the largest before any */
    uint64_t hash;                  /* sum over tiles of mix(H_t + t C) */
};

/* Adds the tiles of `n` elements (at most TRD__RUN full tiles, or fewer of
 * which the last may be short) that lie at `bytes`, one behind the other and
 * at any alignment, to *tally, and writes the sums of each tile to sums[].
 * `first` is the tile index of the first. */
typedef void trd__tiles(const struct trd__job *job, const void *bytes,
                        uint64_t first, uint32_t n, struct trd__tally *tally,
                        struct trd__sum *sums);

/* One way to compute tiles. A NULL entry leaves the dtype to trd__kernel_c,
 * which has them all but text and opaque. */
struct trd__kernel {
    const char *name;
    trd__tiles *tiles[TRD_DTYPE_LIMIT];
};

extern const struct trd__kernel trd__kernel_c;

/* The kernels that this machine runs, the fastest one first and
 * trd__kernel_c last, then NULL. */
const struct trd__kernel *const *trd__kernels(void);

/* The one to use: the first of trd__kernels(), or as TRACERD_KERNEL says. */
const struct trd__kernel *trd__kernel_best(void);

#if defined(__x86_64__)
typedef unsigned trd__modes; /* MXCSR */
#else
typedef fenv_t trd__modes;
#endif

/* Rounds to nearest and keeps subnormals, until the caller's own modes are put
 * back. For whoever computes with figures in the caller's thread. */
void trd__modes_enter(trd__modes *caller);
void trd__modes_leave(const trd__modes *caller);

/* trd_stats_cpu_as() with a kernel and a number of threads of the caller's
 * choice; threads also for tensors that are too small to be worth it. */
int trd__stats_with(const struct trd__kernel *kernel, unsigned threads,
                    const struct trd_tensor *tensor,
                    const struct trd_want *want, struct trd_stats *out,
                    void *samples, struct trd_histogram *histogram);

/* ---- pieces of the reference that other kernels may use ---- */

void trd__tally_init(struct trd__tally *tally, int dtype);

/* Adds a tile of `bytes` bytes at `tile` to tally->hash. */
void trd__hash_tile(const void *tile, size_t bytes, uint64_t index,
                    struct trd__tally *tally);

/* The sums of a wide tile from the values of its m elements (any dtype but
 * int64 and uint64). */
void trd__wide_sum(const struct trd__job *job, const double *x, uint32_t m,
                   struct trd__sum *sum);

/* Adds what the other one counted. */
void trd__tally_merge(struct trd__tally *tally, int dtype,
                      const struct trd__tally *other);

/* The sums of a run of adjacent sums, level by level: what a carry is to a
 * binary counter. */
struct trd__tree {
    uint64_t n;                /* tiles so far */
    struct trd__sum level[63]; /* level[i] holds where bit i of n is set */
};
void trd__tree_add(struct trd__tree *tree, const struct trd__sum *sum);
void trd__tree_add_run(struct trd__tree *tree, const struct trd__sum *sums,
                       uint32_t n);
struct trd__sum trd__tree_total(const struct trd__tree *tree);

/* The figures from tally and sums of all tiles; every field of *out. */
void trd__finish(const struct trd__job *job, uint64_t n,
                 const struct trd__tally *tally, const struct trd__sum *sum,
                 struct trd_stats *out);

/* ---- histogram.c ---- */

/* Whether elements of row r of tile t are counted: r, or all 16 rows. */
unsigned trd__bin_row(uint64_t tile);

/* Adds m elements at any alignment to bins[trd_dtype_bins(dtype)]. */
void trd__bins_add(int dtype, const void *elements, uint32_t m,
                   uint64_t *bins);

/* The histogram of bins. */
void trd__bins_finish(int dtype, enum trd_histogram_kind kind,
                      const uint64_t *bins, struct trd_histogram *out);

/* ---- pool.c ---- */

/* Calls work(arg) on this thread and, as far as they come, on up to
 * threads - 1 others; returns when all calls have. Others run it with the
 * floating-point modes above. */
void trd__pool_run(unsigned threads, void (*work)(void *arg), void *arg);

/* ---- dtype.c ---- */

/* Values fit fp32 exactly, and the dtype may use narrow tiles. */
bool trd__is_narrow(int dtype);

/* Smallest normal number of the dtype, 0 where it has no subnormals. */
double trd__min_normal(int dtype);

/* Values of n elements at any alignment: fp32 for narrow dtypes, fp64 for
 * every dtype but int64, uint64 and packed ones. NaN stays a NaN. */
void trd__decode32(int dtype, const void *elements, uint32_t n, float *x);
void trd__decode64(int dtype, const void *elements, uint32_t n, double *x);

#endif
